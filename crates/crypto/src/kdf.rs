//! Key derivation: HKDF-SHA256 (RFC 5869), every use under a label of its own; and PBKDF2 (RFC 8018) where others derive by it.

use hkdf::Hkdf;
use hkdf::hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use zeroize::Zeroize;

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

/// Derives `N` bytes, at most 32, from `password` by PBKDF2-HMAC-SHA256 with `rounds` rounds, at least one (RFC 8018 section 5.2).
///
/// Only for keys that other programs derive so: it makes no weak password strong.
#[must_use]
pub fn pbkdf2<const N: usize>(password: &[u8], salt: &[u8], rounds: u32) -> Secret<N> {
    // One block of the hash's length, T_1, is all that so few bytes need.
    const { assert!(N <= 32) };
    let prf = Hmac::<Sha256>::new_from_slice(password).expect("HMAC takes keys of any length");
    let apply = |input: [&[u8]; 2]| -> [u8; 32] {
        let mut mac = prf.clone();
        input.iter().for_each(|part| mac.update(part));
        mac.finalize().into_bytes().into()
    };
    let mut round = apply([salt, &1u32.to_be_bytes()]);
    let mut block = round;
    for _ in 1..rounds {
        round = apply([&round, &[]]);
        block.iter_mut().zip(round).for_each(|(sum, octet)| *sum ^= octet);
    }
    let derived = Secret::new(std::array::from_fn(|at| block[at]));
    round.zeroize();
    block.zeroize();
    derived
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of Python's `hashlib.pbkdf2_hmac("sha256", ...)`.
    #[test]
    fn pbkdf2_has_the_values_of_another_implementation() {
        let derived: Secret<32> = pbkdf2(b"password", b"salt", 2);
        assert_eq!(derived.expose()[..8], [0xae, 0x4d, 0x0c, 0x95, 0xaf, 0x6b, 0x46, 0xd3]);
        assert_eq!(derived.expose()[28..], [0x95, 0x47, 0x4c, 0x43]);
        // A password that is longer than HMAC's block.
        let long: Secret<4> = pbkdf2(&[7; 65], b"salt", 1);
        assert_eq!(long.expose(), &[0x1e, 0x88, 0xda, 0x47]);
    }

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
