//! Ed25519 signatures (RFC 8032) under one verification rule everywhere.
//!
//! What is signed is the label and the message, each with its length. Verification is the strict rule of
//! `ed25519-dalek` (canonical encodings, no small-order key), used alone: batch verification under another rule would
//! let two verifiers disagree about one signature.

use std::fmt;

use ed25519_dalek::Signer;

use crate::hash::hash;
use crate::secret::Secret;

/// A signature.
pub type Signature = [u8; 64];

/// The signature is not one of this key over this label and message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the signature is not valid")]
pub struct BadSignature;

/// A private signing key.
#[derive(Clone)]
pub struct SigningKey(ed25519_dalek::SigningKey);

impl SigningKey {
    /// From a 32-byte random seed (RFC 8032 section 5.1.5).
    #[must_use]
    pub fn from_seed(seed: &Secret<32>) -> Self {
        Self(ed25519_dalek::SigningKey::from_bytes(seed.expose()))
    }

    /// The seed, to be written to a key file and nowhere else.
    #[must_use]
    pub fn seed(&self) -> Secret<32> {
        Secret::new(self.0.to_bytes())
    }

    /// The public half.
    #[must_use]
    pub fn verifying_key(&self) -> VerifyingKey {
        VerifyingKey(self.0.verifying_key())
    }

    /// Signs `message` for the use that `label` names.
    #[must_use]
    pub fn sign(&self, label: &str, message: &[u8]) -> Signature {
        self.0.sign(&hash(label, &[message])).to_bytes()
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningKey(..)")
    }
}

/// A public key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VerifyingKey(ed25519_dalek::VerifyingKey);

impl VerifyingKey {
    /// From its 32-byte encoding. Refuses what is no point and what has small order.
    pub fn from_bytes(bytes: &[u8; 32]) -> Result<Self, BadSignature> {
        let key = ed25519_dalek::VerifyingKey::from_bytes(bytes).map_err(|_| BadSignature)?;
        if key.is_weak() { Err(BadSignature) } else { Ok(Self(key)) }
    }

    /// Its 32-byte encoding.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; 32] {
        self.0.to_bytes()
    }

    /// Checks a signature that [`SigningKey::sign`] made.
    pub fn verify(&self, label: &str, message: &[u8], signature: &Signature) -> Result<(), BadSignature> {
        let signature = ed25519_dalek::Signature::from_bytes(signature);
        self.0.verify_strict(&hash(label, &[message]), &signature).map_err(|_| BadSignature)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verifies_its_own_label_and_message_only() {
        let key = SigningKey::from_seed(&Secret::new([5; 32]));
        let signature = key.sign("header/v1", b"message");
        assert_eq!(key.verifying_key().verify("header/v1", b"message", &signature), Ok(()));
        assert_eq!(key.verifying_key().verify("other/v1", b"message", &signature), Err(BadSignature));
        assert_eq!(key.verifying_key().verify("header/v1", b"massage", &signature), Err(BadSignature));
    }

    #[test]
    fn a_small_order_key_is_refused() {
        let mut identity = [0u8; 32];
        identity[0] = 1;
        assert!(VerifyingKey::from_bytes(&identity).is_err());
    }
}
