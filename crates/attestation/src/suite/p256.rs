//! `kc-p256`: ECDSA over P-256 with SHA-256, as the router keys of the RPKI sign (RFC 8208, RFC 8608).
//!
//! It is here so that a key that a router certificate (RFC 8209) binds to an AS can begin and take up chains. A public
//! key is the uncompressed point (65 octets, SEC 1 section 2.3.3), which is what such a certificate holds; a signature
//! is r and s, each in 32 octets, both from 1 to the curve's order less one. There is no other encoding of either. The
//! half in which s lies is free, as in RFC 8608: whoever turns s over makes another right signature of the same words,
//! and another chain, but proves nothing that was not signed.
//!
//! Signing and verifying are `aws-lc-rs`'s, which draws the nonces of ECDSA itself.

use std::fmt;

use aws_lc_rs::agreement;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, ParsedPublicKey};
use wayleave_crypto::kdf;
use wayleave_crypto::secret::Secret;
use zeroize::Zeroizing;

use super::{Claim, KeyRefused, SignError, Suite, SuiteId, SuiteKey};

/// Octets of an uncompressed point.
pub const KEY_LEN: usize = 65;
/// Octets of a signature: r, then s.
pub const SIGNATURE_LEN: usize = 64;
/// Octets of a private scalar, big-endian.
pub const SCALAR_LEN: usize = 32;

/// The suite.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct P256;

impl P256 {
    /// The pair of a private scalar, big-endian: 1 to the curve's order less one.
    pub fn pair(&self, scalar: &Secret<SCALAR_LEN>) -> Result<P256Pair, KeyRefused> {
        let private = agreement::PrivateKey::from_private_key(&agreement::ECDH_P256, scalar.expose());
        let private = private.map_err(|_| KeyRefused::Weak("the scalar is zero or not below the order"))?;
        let public = private.compute_public_key().map_err(|_| KeyRefused::Mismatch)?;
        pair_of(scalar, public.as_ref())
    }
}

fn pair_of(scalar: &Secret<SCALAR_LEN>, public: &[u8]) -> Result<P256Pair, KeyRefused> {
    let point = point(public)?;
    let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
    let pair = EcdsaKeyPair::from_private_key_and_public_key(algorithm, scalar.expose(), public);
    let pair = pair.map_err(|_| KeyRefused::Mismatch)?;
    Ok(P256Pair { pair, public: *point, scalar: scalar.clone() })
}

/// The octets of a point if they can be one: the length and the form that certificates have.
fn point(public: &[u8]) -> Result<&[u8; KEY_LEN], KeyRefused> {
    let point: &[u8; KEY_LEN] =
        public.try_into().map_err(|_| KeyRefused::Length { need: KEY_LEN, have: public.len() })?;
    if point[0] == 4 { Ok(point) } else { Err(KeyRefused::NotCanonical) }
}

fn parsed(public: &[u8]) -> Result<ParsedPublicKey, KeyRefused> {
    let parsed = ParsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point(public)?);
    parsed.map_err(|_| KeyRefused::Weak("the point is not on the curve"))
}

fn is_right(key: &ParsedPublicKey, message: &[u8], signature: &[u8]) -> bool {
    signature.len() == SIGNATURE_LEN && key.verify_sig(message, signature).is_ok()
}

impl Suite for P256 {
    fn id(&self) -> SuiteId {
        SuiteId::KcP256
    }

    fn strength(&self) -> u16 {
        128
    }

    fn public_key_len(&self) -> usize {
        KEY_LEN
    }

    fn signature_len(&self) -> usize {
        SIGNATURE_LEN
    }

    fn generate(&self, seed: &Secret<32>) -> Box<dyn SuiteKey> {
        let pair = (0u32..).find_map(|counter| {
            let scalar = kdf::derive("wayleave/attestation/p256/key/v1", seed.expose(), &counter.to_be_bytes());
            self.pair(&scalar).ok()
        });
        Box::new(pair.expect("all but one in 2^32 scalars are below the order"))
    }

    fn check_key(&self, public: &[u8]) -> Result<(), KeyRefused> {
        parsed(public).map(|_| ())
    }

    fn take_granted(&self, public: &[u8], private: &[u8]) -> Result<Box<dyn SuiteKey>, KeyRefused> {
        let scalar: [u8; SCALAR_LEN] =
            private.try_into().map_err(|_| KeyRefused::Length { need: SCALAR_LEN, have: private.len() })?;
        let pair = self.pair(&Secret::new(scalar))?;
        if pair.public == public { Ok(Box::new(pair)) } else { Err(KeyRefused::Mismatch) }
    }

    fn verify(&self, public: &[u8], message: &[u8], signature: &[u8]) -> bool {
        parsed(public).is_ok_and(|key| is_right(&key, message, signature))
    }

    fn verify_batch(&self, claims: &[Claim<'_>]) -> Vec<bool> {
        // A burst mostly has the signatures of one signer in a row: its point is decoded once.
        let mut last: Option<(&[u8], Option<ParsedPublicKey>)> = None;
        let mut verdicts = Vec::with_capacity(claims.len());
        for claim in claims {
            if last.as_ref().is_none_or(|(public, _)| *public != claim.public) {
                last = Some((claim.public, parsed(claim.public).ok()));
            }
            let key = last.as_ref().and_then(|(_, key)| key.as_ref());
            verdicts.push(key.is_some_and(|key| is_right(key, claim.message, claim.signature)));
        }
        verdicts
    }
}

/// A key pair of `kc-p256`.
pub struct P256Pair {
    pair: EcdsaKeyPair,
    public: [u8; KEY_LEN],
    scalar: Secret<SCALAR_LEN>,
}

impl SuiteKey for P256Pair {
    fn public(&self) -> &[u8] {
        &self.public
    }

    fn private_half(&self) -> Option<Zeroizing<Vec<u8>>> {
        Some(Zeroizing::new(self.scalar.expose().to_vec()))
    }

    fn sign(&mut self, message: &[u8]) -> Result<Vec<u8>, SignError> {
        let signature = self.pair.sign(&SystemRandom::new(), message);
        Ok(signature.expect("a sound pair fails only if memory or the system's randomness does").as_ref().to_vec())
    }
}

impl fmt::Debug for P256Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("P256Pair(..)")
    }
}
