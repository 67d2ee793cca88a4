//! SLH-DSA-SHA2-128s (FIPS 205), stateless hash-based signatures: the second half of what signs objects of the PKI.
//!
//! It signs no hop of a chain: a signature has 7,856 octets, and an UPDATE often 4,096 in all. Of the parameter sets of
//! 128 bits the small one, since an object is signed once, by hand, and then kept, copied and verified by every network:
//! against 128f a signature has less than half the octets (7,856, not 17,088) and is verified three times as fast; that it
//! takes twenty times as long to make (some 0.4 s) nobody notices.

use std::fmt;

use fips205::slh_dsa_sha2_128s::{KG, PK_LEN, PrivateKey, PublicKey, SIG_LEN};
use fips205::traits::{KeyGen, SerDes, Signer, Verifier};
use rand_core_06::{CryptoRng, RngCore};
use wayleave_crypto::kdf;
use wayleave_crypto::secret::Secret;

use super::{KeyRefused, SignError, Suite, SuiteId, SuiteKey};

/// Octets of a public key.
pub const KEY_LEN: usize = PK_LEN;
/// Octets of a signature.
pub const SIGNATURE_LEN: usize = SIG_LEN;
/// Octets of each of the three seeds of a key pair.
const SEED_LEN: usize = 16;

/// The scheme; it has no state.
#[derive(Clone, Copy, Debug, Default)]
pub struct SlhDsa;

/// A private key. It is wiped when it is dropped.
struct Key {
    private: PrivateKey,
    public: [u8; KEY_LEN],
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SlhDsaKey(..)")
    }
}

impl Suite for SlhDsa {
    fn id(&self) -> SuiteId {
        SuiteId::SlhDsa128s
    }

    fn strength(&self) -> u16 {
        128
    }

    fn is_post_quantum(&self) -> bool {
        true
    }

    fn public_key_len(&self) -> usize {
        KEY_LEN
    }

    fn signature_len(&self) -> usize {
        SIGNATURE_LEN
    }

    /// The three seeds (FIPS 205 algorithm 21) come from `seed` by HKDF: secret seed, seed of randomisers, public seed.
    fn generate(&self, seed: &Secret<32>) -> Box<dyn SuiteKey> {
        let seeds: Secret<{ 3 * SEED_LEN }> = kdf::derive("wayleave/attestation/slh-dsa/key/v1", seed.expose(), &[]);
        let [sk_seed, sk_prf, pk_seed] = split(seeds.expose());
        Box::new(Key::of(sk_seed, sk_prf, pk_seed))
    }

    /// Every 32 octets are a key.
    fn check_key(&self, public: &[u8]) -> Result<(), KeyRefused> {
        if public.len() == KEY_LEN { Ok(()) } else { Err(KeyRefused::Length { need: KEY_LEN, have: public.len() }) }
    }

    fn verify(&self, public: &[u8], message: &[u8], signature: &[u8]) -> bool {
        verify_in_context(public, message, signature, &[])
    }
}

/// FIPS 205 algorithm 24, with the context that our own signatures leave empty: their message begins with a label.
fn verify_in_context(public: &[u8], message: &[u8], signature: &[u8], context: &[u8]) -> bool {
    let (Ok(public), Ok(signature)) = (<[u8; KEY_LEN]>::try_from(public), <&[u8; SIGNATURE_LEN]>::try_from(signature))
    else {
        return false;
    };
    PublicKey::try_from_bytes(public).is_ok_and(|public| public.verify(message, signature, context))
}

fn split(seeds: &[u8; 3 * SEED_LEN]) -> [[u8; SEED_LEN]; 3] {
    std::array::from_fn(|seed| std::array::from_fn(|octet| seeds[seed * SEED_LEN + octet]))
}

impl Key {
    fn of(sk_seed: [u8; SEED_LEN], sk_prf: [u8; SEED_LEN], pk_seed: [u8; SEED_LEN]) -> Self {
        let (public, private) = KG::keygen_from_seed(&sk_seed, &sk_prf, &pk_seed);
        Self { private, public: public.into_bytes() }
    }

    /// FIPS 205 algorithm 22, the deterministic variant: this crate has no randomness. Whoever signs verifies the signature
    /// before it leaves, as a fault while signing could show two signatures of one hash-based key.
    fn sign_in_context(&self, message: &[u8], context: &[u8]) -> Option<Vec<u8>> {
        // Fails only with a context of more than 255 octets, or without randomness, which this variant does not ask for.
        self.private.try_sign_with_rng(&mut NoRandomness, message, context, false).ok().map(|octets| octets.to_vec())
    }
}

impl SuiteKey for Key {
    fn public(&self) -> &[u8] {
        &self.public
    }

    fn sign(&mut self, message: &[u8]) -> Result<Vec<u8>, SignError> {
        let signature =
            self.sign_in_context(message, &[]).filter(|signature| SlhDsa.verify(&self.public, message, signature));
        signature.ok_or(SignError::Faulty(SuiteId::SlhDsa128s))
    }
}

/// The deterministic variant asks for no randomness.
struct NoRandomness;

impl RngCore for NoRandomness {
    fn next_u32(&mut self) -> u32 {
        0
    }

    fn next_u64(&mut self) -> u64 {
        0
    }

    fn fill_bytes(&mut self, _: &mut [u8]) {}

    fn try_fill_bytes(&mut self, _: &mut [u8]) -> Result<(), rand_core_06::Error> {
        let unsupported = std::num::NonZeroU32::MIN.saturating_add(rand_core_06::Error::CUSTOM_START);
        Err(unsupported.into())
    }
}

impl CryptoRng for NoRandomness {}

#[cfg(test)]
mod tests {
    //! KCX, hybrid objects: key pairs and signatures of the NIST, good and bad: the same verdicts.

    use serde_json::Value;

    use super::*;

    /// Vectors of the NIST's ACVP server: key generation, and signatures of the interface `external` without a pre-hash.
    fn vectors() -> Value {
        let text = include_str!("../../../../test-data/attestation/slh-dsa-sha2-128s.json");
        serde_json::from_str(text).expect("JSON")
    }

    fn octets(value: &Value) -> Vec<u8> {
        let hex = value.as_str().expect("hexadecimal");
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("digits")).collect()
    }

    fn seed(value: &Value) -> [u8; SEED_LEN] {
        octets(value).try_into().expect("16 octets")
    }

    #[test]
    fn key_pairs_are_those_of_the_nist() {
        for vector in vectors()["keyGen"].as_array().expect("a list") {
            let key = Key::of(seed(&vector["skSeed"]), seed(&vector["skPrf"]), seed(&vector["pkSeed"]));
            assert_eq!(key.public(), octets(&vector["pk"]), "{}", vector["tcId"]);
        }
    }

    #[test]
    fn signatures_are_those_of_the_nist() {
        for vector in vectors()["sigGen"].as_array().expect("a list") {
            let private: [u8; 4 * SEED_LEN] = octets(&vector["sk"]).try_into().expect("64 octets");
            let private = PrivateKey::try_from_bytes(private).expect("a key");
            let key = Key { public: private.get_public_key().into_bytes(), private };
            let made = key.sign_in_context(&octets(&vector["message"]), &octets(&vector["context"]));
            assert!(made.is_some_and(|made| made == octets(&vector["signature"])), "{}", vector["tcId"]);
        }
    }

    #[test]
    fn what_the_nist_refuses_is_refused() {
        let vectors = vectors();
        let vectors = vectors["sigVer"].as_array().expect("a list");
        for vector in vectors {
            let [public, message, signature, context] =
                ["pk", "message", "signature", "context"].map(|field| octets(&vector[field]));
            let is_right = verify_in_context(&public, &message, &signature, &context);
            assert_eq!(Value::Bool(is_right), vector["testPassed"], "{}", vector["tcId"]);
        }
        assert!(vectors.iter().any(|vector| vector["testPassed"] == true));
    }
}
