//! The two parties, and shares that cannot be confused with the other party's.

use std::fmt;
use std::marker::PhantomData;

use crate::rows::BitRows;

/// Which of the two parties one is: the exchange is party 1, the neutral organisation party 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// The exchange.
    Party1,
    /// The neutral organisation.
    Party2,
}

impl Role {
    /// The other party.
    #[must_use]
    pub fn peer(self) -> Self {
        match self {
            Self::Party1 => Self::Party2,
            Self::Party2 => Self::Party1,
        }
    }

    /// 1 or 2, as on the wire.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::Party1 => 1,
            Self::Party2 => 2,
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "party {}", self.number())
    }
}

/// A party as a type: [`Party1`] or [`Party2`].
pub trait Party: sealed::Sealed {
    const ROLE: Role;
}

/// The exchange, as a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Party1 {}
/// The neutral organisation, as a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Party2 {}

impl Party for Party1 {
    const ROLE: Role = Role::Party1;
}
impl Party for Party2 {
    const ROLE: Role = Role::Party2;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Party1 {}
    impl Sealed for super::Party2 {}
}

/// Party `P`'s XOR share of a matrix: alone it is uniformly random.
#[derive(Clone, PartialEq, Eq)]
pub struct Share<P: Party> {
    rows: BitRows,
    party: PhantomData<P>,
}

impl<P: Party> Share<P> {
    /// Declares that `rows` belong to party `P`; to be called where its bytes are decoded or its evaluation ends.
    #[must_use]
    pub fn new(rows: BitRows) -> Self {
        Self { rows, party: PhantomData }
    }

    /// The bits, for party `P`'s evaluation or for its wire.
    #[must_use]
    pub fn rows(&self) -> &BitRows {
        &self.rows
    }
}

impl<P: Party> fmt::Debug for Share<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Share<{}>({:?})", P::ROLE, self.rows)
    }
}

/// Splits `secret` into the shares `mask` and `secret xor mask`, or `None` if the shapes differ.
///
/// `mask` must be uniformly random and never used again.
#[must_use]
pub fn split(secret: &BitRows, mask: BitRows) -> Option<(Share<Party1>, Share<Party2>)> {
    let second = secret.xor(&mask)?;
    Some((Share::new(mask), Share::new(second)))
}

/// Reveals the secret of two shares, or `None` if their shapes differ; only the member who owns it holds both.
#[must_use]
pub fn reveal(one: &Share<Party1>, two: &Share<Party2>) -> Option<BitRows> {
    one.rows.xor(&two.rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_split_secret_is_revealed_by_both_shares() {
        let (mut secret, mut mask) = (BitRows::zero(3, 70), BitRows::zero(3, 70));
        secret.set_number(0, 3, 69, 5);
        mask.set_number(0, 3, 69, 6);
        let (one, two) = split(&secret, mask).unwrap();
        assert_eq!(one.rows().number(0, 3, 69), 6);
        assert_eq!(two.rows().number(0, 3, 69), 3);
        assert!(reveal(&one, &two).unwrap() == secret);
    }

    #[test]
    fn shapes_must_agree() {
        assert!(split(&BitRows::zero(3, 4), BitRows::zero(3, 5)).is_none());
        assert!(reveal(&Share::new(BitRows::zero(1, 2)), &Share::new(BitRows::zero(2, 2))).is_none());
    }
}
