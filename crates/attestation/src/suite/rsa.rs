//! `kc-rsa`: RSA-3072 with PSS and SHA-256, one signature a hop; RSA-2048 as the measured lower profile.
//!
//! Signing and verifying are `aws-lc-rs`'s, which draws the salts of PSS itself; a verifier accepts salts of 32 octets.

use std::fmt;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::PublicKeyComponents;
use aws_lc_rs::signature::{RSA_PSS_2048_8192_SHA256, RSA_PSS_SHA256, RsaKeyPair};
use crypto_bigint::{U1024, U1536, U2048, U3072};
use wayleave_crypto::secret::Secret;
use zeroize::Zeroizing;

use super::rsa_key::{EXPONENT, Examined, Primes, examine_modulus};
use super::{KeyRefused, SignError, Suite, SuiteId, SuiteKey};

type Primes3072 = Primes<{ U1536::LIMBS }, { U3072::LIMBS }>;
type Primes2048 = Primes<{ U1024::LIMBS }, { U2048::LIMBS }>;

/// RSA-3072: 128 bits.
pub static RSA_3072: Rsa = Rsa { size: Size::Bits3072 };
/// RSA-2048: 112 bits.
pub static RSA_2048: Rsa = Rsa { size: Size::Bits2048 };

/// The suite with moduli of one size. A public key is the modulus, big-endian; the exponent is always 65537.
#[derive(Clone, Copy, Debug)]
pub struct Rsa {
    size: Size,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    Bits2048,
    Bits3072,
}

impl Rsa {
    /// Makes a pair as [`Suite::generate`] does, of a type that can be handed on.
    ///
    /// # Panics
    /// Never: a pair that does not sign is not made.
    #[must_use]
    pub fn pair(&self, seed: &Secret<32>) -> RsaPair {
        let pair = match self.size {
            Size::Bits3072 => self.pair_of(&Primes3072::generate(seed)),
            Size::Bits2048 => self.pair_of(&Primes2048::generate(seed)),
        };
        pair.expect("two primes make a pair")
    }

    /// Takes a granted pair in: its two primes, big-endian, of equal length. Whatever the bytes, it costs at most the
    /// checks of [`Rsa::examine_granted`] and one signature.
    pub fn accept_granted(&self, primes: &[u8]) -> Result<RsaPair, KeyRefused> {
        match self.size {
            Size::Bits3072 => self.pair_of(&Primes3072::decode(primes)?),
            Size::Bits2048 => self.pair_of(&Primes2048::decode(primes)?),
        }
    }

    /// Takes a pair in as an `RSAPrivateKey` (RFC 8017 appendix A.1.2), all of whose numbers must agree.
    pub fn accept_pkcs1(&self, der: &[u8]) -> Result<RsaPair, KeyRefused> {
        match self.size {
            Size::Bits3072 => self.pair_of(&Primes3072::from_pkcs1(der)?),
            Size::Bits2048 => self.pair_of(&Primes2048::from_pkcs1(der)?),
        }
    }

    /// A pair's `RSAPrivateKey`, from its primes: for a key file.
    pub fn pkcs1_of(&self, primes: &[u8]) -> Result<Zeroizing<Vec<u8>>, KeyRefused> {
        let der = match self.size {
            Size::Bits3072 => Primes3072::decode(primes)?.to_pkcs1(),
            Size::Bits2048 => Primes2048::decode(primes)?.to_pkcs1(),
        };
        der.ok_or(KeyRefused::Mismatch)
    }

    /// The checks of a public key, with their cost.
    #[must_use]
    pub fn examine(&self, public: &[u8]) -> Examined {
        match self.size {
            Size::Bits3072 => examine_modulus::<{ U3072::LIMBS }>(public),
            Size::Bits2048 => examine_modulus::<{ U2048::LIMBS }>(public),
        }
    }

    /// The checks of a granted pair that come before its trial, with their cost.
    #[must_use]
    pub fn examine_granted(&self, primes: &[u8]) -> Examined {
        let examined = match self.size {
            Size::Bits3072 => Primes3072::decode_unchecked(primes).map(|primes| primes.examine()),
            Size::Bits2048 => Primes2048::decode_unchecked(primes).map(|primes| primes.examine()),
        };
        examined.unwrap_or_else(|why| Examined { verdict: Err(why), multiplications: 0 })
    }

    fn modulus_len(&self) -> usize {
        match self.size {
            Size::Bits3072 => U3072::BYTES,
            Size::Bits2048 => U2048::BYTES,
        }
    }

    fn pair_of<const HALF: usize, const FULL: usize>(
        &self,
        primes: &Primes<HALF, FULL>,
    ) -> Result<RsaPair, KeyRefused> {
        let der = primes.to_pkcs1().ok_or(KeyRefused::Mismatch)?;
        let pair = RsaKeyPair::from_der(&der).map_err(|_| KeyRefused::Mismatch)?;
        let pair = RsaPair { pair, public: primes.modulus(), primes: primes.encode() };
        // Only primes give signatures that verify.
        let trial = pair.signature(b"wayleave/kc-rsa/trial/v1").ok_or(KeyRefused::Mismatch)?;
        if self.verify(&pair.public, b"wayleave/kc-rsa/trial/v1", &trial) {
            Ok(pair)
        } else {
            Err(KeyRefused::Mismatch)
        }
    }
}

impl Suite for Rsa {
    fn id(&self) -> SuiteId {
        match self.size {
            Size::Bits3072 => SuiteId::KcRsa,
            Size::Bits2048 => SuiteId::KcRsa2048,
        }
    }

    fn strength(&self) -> u16 {
        match self.size {
            Size::Bits3072 => 128,
            Size::Bits2048 => 112,
        }
    }

    fn public_key_len(&self) -> usize {
        self.modulus_len()
    }

    fn signature_len(&self) -> usize {
        self.modulus_len()
    }

    fn generate(&self, seed: &Secret<32>) -> Box<dyn SuiteKey> {
        Box::new(self.pair(seed))
    }

    fn check_key(&self, public: &[u8]) -> Result<(), KeyRefused> {
        self.examine(public).verdict
    }

    fn take_granted(&self, public: &[u8], private: &[u8]) -> Result<Box<dyn SuiteKey>, KeyRefused> {
        let pair = self.accept_granted(private)?;
        if pair.public == public { Ok(Box::new(pair)) } else { Err(KeyRefused::Mismatch) }
    }

    fn verify(&self, public: &[u8], message: &[u8], signature: &[u8]) -> bool {
        // The exact length and an odd modulus: the rest that `check_key` checks can weaken a key, not a verifier.
        if public.len() != self.modulus_len() || public[0] & 0x80 == 0 || public[public.len() - 1] & 1 == 0 {
            return false;
        }
        let exponent = &EXPONENT.to_be_bytes()[1..];
        PublicKeyComponents { n: public, e: exponent }.verify(&RSA_PSS_2048_8192_SHA256, message, signature).is_ok()
    }
}

/// A key pair of `kc-rsa`.
pub struct RsaPair {
    pair: RsaKeyPair,
    public: Vec<u8>,
    primes: Zeroizing<Vec<u8>>,
}

impl RsaPair {
    /// What is handed on to grant the pair: its two primes, big-endian.
    #[must_use]
    pub fn primes(&self) -> &Zeroizing<Vec<u8>> {
        &self.primes
    }

    fn signature(&self, message: &[u8]) -> Option<Vec<u8>> {
        let mut signature = vec![0; self.public.len()];
        self.pair.sign(&RSA_PSS_SHA256, &SystemRandom::new(), message, &mut signature).ok()?;
        Some(signature)
    }
}

impl SuiteKey for RsaPair {
    fn public(&self) -> &[u8] {
        &self.public
    }

    fn private_half(&self) -> Option<Zeroizing<Vec<u8>>> {
        Some(self.primes.clone())
    }

    fn sign(&mut self, message: &[u8]) -> Result<Vec<u8>, SignError> {
        Ok(self.signature(message).expect("a pair that passed its trial fails only if memory does"))
    }
}

impl fmt::Debug for RsaPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RsaPair(..)")
    }
}
