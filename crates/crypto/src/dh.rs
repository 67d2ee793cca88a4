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

/// The canonical u-coordinates of points of order 1, 2, 4 and 8 on the curve, or 4 on the twist: 0, 1, -1 and the two of
/// order 8.
const SMALL_ORDER: [[u8; 32]; 5] = [
    [0; 32],
    {
        let mut one = [0; 32];
        one[0] = 1;
        one
    },
    {
        let mut minus_one = [0xff; 32];
        minus_one[0] = 0xec;
        minus_one[31] = 0x7f;
        minus_one
    },
    [
        0xe0, 0xeb, 0x7a, 0x7c, 0x3b, 0x41, 0xb8, 0xae, 0x16, 0x56, 0xe3, 0xfa, 0xf1, 0x9f, 0xc4, 0x6a, 0xda, 0x09,
        0x8d, 0xeb, 0x9c, 0x32, 0xb1, 0xfd, 0x86, 0x62, 0x05, 0x16, 0x5f, 0x49, 0xb8, 0x00,
    ],
    [
        0x5f, 0x9c, 0x95, 0xbc, 0xa3, 0x50, 0x8c, 0x24, 0xb1, 0xd0, 0xb1, 0x55, 0x9c, 0x83, 0xef, 0x5b, 0x04, 0x44,
        0x5c, 0xc4, 0x58, 0x1c, 0x8e, 0x86, 0xd8, 0x22, 0x4e, 0xdd, 0xd0, 0x9f, 0x11, 0x57,
    ],
];

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

    /// Whether this is the u-coordinate of a point of Curve25519 itself, not of its twist. X25519 takes both; where a key is
    /// also a name, the twist's are none. Costs about as much as a third of an agreement.
    #[must_use]
    pub fn is_on_curve(&self) -> bool {
        MontgomeryPoint(self.0).to_edwards(0).is_some()
    }

    /// Whether this is one of the u-coordinates of points whose order divides eight, on the curve or its twist.
    #[must_use]
    pub fn is_small_order(&self) -> bool {
        SMALL_ORDER.contains(&self.0)
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
    //! ICD-07: public keys of small order and second encodings: refused.

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
    fn exactly_the_listed_coordinates_are_of_small_order_and_two_in_four_numbers_are_on_the_curve() {
        let secret = DhSecret::from_seed(&Secret::new([9; 32]));
        for point in SMALL_ORDER {
            let public = DhPublic::from_bytes(point).expect("canonical");
            assert!(public.is_small_order());
            assert_eq!(secret.agree(&public), Err(DhError::SmallOrder));
        }
        let mut on_curve = 0;
        for number in 2..=255 {
            let mut octets = [0; 32];
            octets[0] = number;
            let public = DhPublic::from_bytes(octets).expect("canonical");
            assert!(!public.is_small_order() && secret.agree(&public).is_ok());
            on_curve += usize::from(public.is_on_curve());
        }
        assert!((90..164).contains(&on_curve), "{on_curve}");
        assert!(secret.public().is_on_curve());
        // u = 2 is on the twist, 9 is the base point.
        assert!(
            !DhPublic::from_bytes({
                let mut two = [0; 32];
                two[0] = 2;
                two
            })
            .expect("canonical")
            .is_on_curve()
        );
        assert!(
            DhPublic::from_bytes({
                let mut nine = [0; 32];
                nine[0] = 9;
                nine
            })
            .expect("canonical")
            .is_on_curve()
        );
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
