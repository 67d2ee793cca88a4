//! X25519 (RFC 7748), with every public key in one encoding and no secret that the peer alone decided.

use curve25519_dalek::montgomery::MontgomeryPoint;
use subtle::ConstantTimeEq;

use crate::secret::{Secret, Seed};

/// The public half of a Diffie-Hellman key: a canonical u-coordinate, 32 bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DhPublic([u8; 32]);

/// The secret half.
#[derive(Clone, Debug)]
pub struct DhSecret(Secret<32>);

/// Why a peer's public key is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DhError {
    /// The number is 2^255 - 19 or more: the same point has another encoding.
    #[error("the public key is not in canonical form")]
    NotCanonical,
    /// The point is of small order: the result would be zero whatever our secret.
    #[error("the public key is of small order")]
    SmallOrder,
}

impl DhPublic {
    /// A public key from a peer.
    pub fn from_bytes(bytes: [u8; 32]) -> Result<Self, DhError> {
        // Little-endian: p = 2^255 - 19 is ed, then 30 times ff, then 7f.
        let [low, middle @ .., high] = bytes;
        let is_beyond = high > 0x7f || high == 0x7f && middle == [0xff; 30] && low >= 0xed;
        if is_beyond { Err(DhError::NotCanonical) } else { Ok(Self(bytes)) }
    }

    /// The 32 bytes on the wire.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; 32] {
        self.0
    }
}

impl DhSecret {
    /// The key of a uniformly random seed.
    #[must_use]
    pub fn from_seed(seed: &Seed) -> Self {
        Self(seed.clone())
    }

    /// The public half.
    #[must_use]
    pub fn public(&self) -> DhPublic {
        DhPublic(MontgomeryPoint::mul_base_clamped(*self.0.expose()).to_bytes())
    }

    /// The shared secret, to be fed to a key derivation together with both public keys.
    pub fn agree(&self, peer: &DhPublic) -> Result<Secret<32>, DhError> {
        let shared = MontgomeryPoint(peer.0).mul_clamped(*self.0.expose()).to_bytes();
        if bool::from(shared.ct_eq(&[0; 32])) { Err(DhError::SmallOrder) } else { Ok(Secret::new(shared)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> [u8; 32] {
        std::array::from_fn(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).expect("hex"))
    }

    /// RFC 7748 section 5.2: `k, u = X25519(k, u), k` from the base point on, once and a thousand times.
    #[test]
    fn rfc_7748_iterations() {
        let mut nine = [0; 32];
        nine[0] = 9;
        let (mut k, mut u) = (nine, nine);
        for round in 1..=1_000 {
            // The iteration feeds u-coordinates back as they come; they are canonical.
            let shared = DhSecret::from_seed(&Secret::new(k)).agree(&DhPublic(u)).expect("not of small order");
            u = k;
            k = *shared.expose();
            if round == 1 {
                assert_eq!(k, bytes("422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079"));
            }
        }
        assert_eq!(k, bytes("684cf59ba83309552800ef566f2f4d3c1c3887c49360e3875f2eb94d99532c51"));
    }

    #[test]
    fn both_sides_agree() {
        let (alice, bob) = (DhSecret::from_seed(&Secret::new([3; 32])), DhSecret::from_seed(&Secret::new([5; 32])));
        assert_eq!(alice.agree(&bob.public()), bob.agree(&alice.public()));
    }

    #[test]
    fn keys_of_small_order_and_second_encodings_are_refused() {
        let secret = DhSecret::from_seed(&Secret::new([9; 32]));
        for low in [0u8, 1] {
            let mut point = [0; 32];
            point[0] = low;
            let public = DhPublic::from_bytes(point).expect("canonical");
            assert_eq!(secret.agree(&public), Err(DhError::SmallOrder));
        }
        for low in [0xed, 0xee, 0xff] {
            let mut point = [0xff; 32];
            point[0] = low;
            point[31] = 0x7f;
            assert_eq!(DhPublic::from_bytes(point), Err(DhError::NotCanonical));
        }
        let mut point = [0; 32];
        point[31] = 0x80;
        assert_eq!(DhPublic::from_bytes(point), Err(DhError::NotCanonical));
    }
}
