//! Hiding and binding commitments: SHA-256 of a label, a random opening and the value.

use subtle::ConstantTimeEq;

use crate::hash::hash;

/// A commitment. Whoever lacks the 32-byte opening cannot test a guess of the value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Commitment(pub [u8; 32]);

/// Commits to `value`; `opening` must be uniformly random and used once.
#[must_use]
pub fn commit(label: &str, opening: &[u8; 32], value: &[u8]) -> Commitment {
    Commitment(hash(label, &[opening, value]))
}

impl Commitment {
    /// Whether `opening` and `value` are what was committed to; in constant time.
    #[must_use]
    pub fn opens_to(&self, label: &str, opening: &[u8; 32], value: &[u8]) -> bool {
        commit(label, opening, value).0.ct_eq(&self.0).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opens_to_its_own_value_only() {
        let c = commit("share/v1", &[1; 32], b"value");
        assert!(c.opens_to("share/v1", &[1; 32], b"value"));
        assert!(!c.opens_to("share/v1", &[2; 32], b"value"));
        assert!(!c.opens_to("share/v1", &[1; 32], b"valuf"));
        assert!(!c.opens_to("other/v1", &[1; 32], b"value"));
    }
}
