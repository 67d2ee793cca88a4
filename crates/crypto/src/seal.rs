//! Committing authenticated encryption under a key that is used for one message.
//!
//! AES-256-GCM-SIV (RFC 8452) does not commit to its key: a ciphertext can be made that opens under two keys. We
//! derive the encryption key and a 32-byte key commitment from the message key, send the commitment in front, and
//! compare it in constant time before decrypting.

use aes_gcm_siv::aead::{AeadInOut, KeyInit};
use aes_gcm_siv::{Aes256GcmSiv, Nonce, Tag};
use subtle::ConstantTimeEq;

use crate::kdf;
use crate::secret::{Key128, Secret};

/// Bytes that sealing adds: the key commitment (32) and the tag (16).
pub const OVERHEAD: usize = 48;

/// The sealed bytes were not made with this key and this associated data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the sealed bytes do not open under this key")]
pub struct NotSealedWithThis;

/// Seals `plain` under `key`, which must never seal anything else, and binds it to `associated`.
///
/// The result is `commitment (32) || ciphertext (plain.len()) || tag (16)`.
#[must_use]
pub fn seal(label: &str, key: &Key128, associated: &[u8], plain: &[u8]) -> Vec<u8> {
    let (cipher, commitment) = open_key(label, key);
    let mut out = Vec::with_capacity(plain.len() + OVERHEAD);
    out.extend_from_slice(commitment.expose());
    out.extend_from_slice(plain);
    let tag = cipher
        .encrypt_inout_detached(&Nonce::default(), associated, (&mut out[32..]).into())
        .expect("a message is far below the 2^36 bytes that GCM-SIV allows");
    out.extend_from_slice(&tag);
    out
}

/// Opens what [`seal`] made with the same label, key and associated data.
pub fn open(label: &str, key: &Key128, associated: &[u8], sealed: &[u8]) -> Result<Vec<u8>, NotSealedWithThis> {
    let (commitment, rest) = sealed.split_first_chunk::<32>().ok_or(NotSealedWithThis)?;
    let (ciphertext, tag) = rest.split_last_chunk::<16>().ok_or(NotSealedWithThis)?;
    let (cipher, expected) = open_key(label, key);
    if !bool::from(expected.expose().ct_eq(commitment)) {
        return Err(NotSealedWithThis);
    }
    let mut plain = ciphertext.to_vec();
    cipher
        .decrypt_inout_detached(&Nonce::default(), associated, plain.as_mut_slice().into(), &Tag::from(*tag))
        .map_err(|_| NotSealedWithThis)?;
    Ok(plain)
}

/// The cipher and the key commitment.
fn open_key(label: &str, key: &Key128) -> (Aes256GcmSiv, Secret<32>) {
    let both: Secret<64> = kdf::derive(label, key.expose(), b"committing-aead");
    let (encryption, commitment) = both.expose().split_at(32);
    let encryption = Secret::new(<[u8; 32]>::try_from(encryption).expect("half of 64"));
    let commitment = Secret::new(<[u8; 32]>::try_from(commitment).expect("half of 64"));
    (Aes256GcmSiv::new(encryption.expose().into()), commitment)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LABEL: &str = "test/v1";

    #[test]
    fn opens_what_it_sealed() {
        let key = Key128::new([3; 16]);
        let sealed = seal(LABEL, &key, b"aad", b"plain");
        assert_eq!(sealed.len(), 5 + OVERHEAD);
        assert_eq!(open(LABEL, &key, b"aad", &sealed).as_deref(), Ok(&b"plain"[..]));
    }

    #[test]
    fn every_flipped_bit_is_refused() {
        let key = Key128::new([3; 16]);
        let sealed = seal(LABEL, &key, b"aad", b"plain");
        for bit in 0..sealed.len() * 8 {
            let mut bad = sealed.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(open(LABEL, &key, b"aad", &bad).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn another_key_label_or_context_does_not_open() {
        let key = Key128::new([3; 16]);
        let sealed = seal(LABEL, &key, b"aad", b"plain");
        assert!(open(LABEL, &Key128::new([4; 16]), b"aad", &sealed).is_err());
        assert!(open("other/v1", &key, b"aad", &sealed).is_err());
        assert!(open(LABEL, &key, b"aae", &sealed).is_err());
        for short in 0..sealed.len() {
            assert!(open(LABEL, &key, b"aad", &sealed[..short]).is_err());
        }
    }
}
