//! Key derivation: HKDF-SHA256 (RFC 5869), every use under a label of its own.

use hkdf::Hkdf;
use sha2::Sha256;

use crate::secret::Secret;

/// Derives `N` bytes (at most 8,160) from `secret` for the use that `label` names, bound to `context`.
#[must_use]
pub fn derive<const N: usize>(label: &str, secret: &[u8], context: &[u8]) -> Secret<N> {
    const { assert!(N <= 255 * 32) };
    let mut out = [0u8; N];
    Hkdf::<Sha256>::new(Some(label.as_bytes()), secret)
        .expand(context, &mut out)
        .expect("N is at most 255 hash lengths, checked at compile time");
    Secret::new(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc_5869_test_case_1() {
        let ikm = [0x0b; 22];
        let salt: [u8; 13] = std::array::from_fn(|i| u8::try_from(i).expect("13 fits"));
        let info: [u8; 10] = std::array::from_fn(|i| 0xf0 + u8::try_from(i).expect("10 fits"));
        let mut okm = [0u8; 42];
        Hkdf::<Sha256>::new(Some(&salt), &ikm).expand(&info, &mut okm).expect("42 bytes");
        assert_eq!(okm[..4], [0x3c, 0xb2, 0x5f, 0x25]);
    }

    #[test]
    fn labels_and_contexts_separate() {
        let a: Secret<16> = derive("x/v1", b"secret", b"1");
        assert_ne!(a, derive("y/v1", b"secret", b"1"));
        assert_ne!(a, derive("x/v1", b"secret", b"2"));
    }
}
