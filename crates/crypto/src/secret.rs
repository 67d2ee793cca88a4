//! Secrets that have no printable form, compare in constant time and are wiped when dropped.

use std::fmt;

use subtle::{Choice, ConstantTimeEq};
use zeroize::{Zeroize, ZeroizeOnDrop};

/// `N` secret bytes.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct Secret<const N: usize>([u8; N]);

/// A route key: 128 bits.
pub type Key128 = Secret<16>;
/// A seed of a generator: 256 bits.
pub type Seed = Secret<32>;

impl<const N: usize> Secret<N> {
    /// Takes the bytes in.
    #[must_use]
    pub fn new(bytes: [u8; N]) -> Self {
        Self(bytes)
    }

    /// The bytes, for arithmetic and for the wire; never for a log.
    #[must_use]
    pub fn expose(&self) -> &[u8; N] {
        &self.0
    }

    /// Bitwise exclusive or.
    #[must_use]
    pub fn xor(&self, other: &Self) -> Self {
        let mut out = self.clone();
        for (a, b) in out.0.iter_mut().zip(other.0) {
            *a ^= b;
        }
        out
    }
}

impl<const N: usize> ConstantTimeEq for Secret<N> {
    fn ct_eq(&self, other: &Self) -> Choice {
        self.0.ct_eq(&other.0)
    }
}

impl<const N: usize> PartialEq for Secret<N> {
    /// In constant time.
    fn eq(&self, other: &Self) -> bool {
        self.ct_eq(other).into()
    }
}

impl<const N: usize> Eq for Secret<N> {}

impl<const N: usize> fmt::Debug for Secret<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret<{N}>(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_prints_nothing_of_itself() {
        assert_eq!(format!("{:?}", Key128::new([0x41; 16])), "Secret<16>(..)");
    }

    #[test]
    fn xor_is_its_own_inverse() {
        let (a, b) = (Key128::new([7; 16]), Key128::new([9; 16]));
        assert_eq!(a.xor(&b).xor(&b), a);
    }
}
