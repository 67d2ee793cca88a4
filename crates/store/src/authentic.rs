//! What the key servers' secret vouches for.
//!
//! Each MAC is HKDF-SHA256 (RFC 5869) as a pseudorandom function, under a label of its own. The sum over all rows is that, modulo 2^256, of a
//! further MAC of each row's MAC, which the database never shows. With a change it is written under a mask that follows from the change's
//! MAC, which covers the sum: so a mask is never used for two sums, and nobody without the key can find other rows with the same sum.

use std::fmt;

use subtle::ConstantTimeEq;
use wayleave_crypto::hash::hash;
use wayleave_crypto::kdf::derive;
use wayleave_crypto::secret::Seed;

const ROW: &str = "wayleave/store/row/v1";
const ELEMENT: &str = "wayleave/store/element/v1";
const MASK: &str = "wayleave/store/mask/v1";
const CHANGE: &str = "wayleave/store/change/v1";
const STATEMENT: &str = "wayleave/store/statement/v1";
const PART: &str = "wayleave/store/statement-part/v1";
const REMOVAL: &str = "wayleave/store/statement-removal/v1";
const ADOPTION: &str = "wayleave/store/adoption/v1";

/// The key of all MACs of a store.
#[derive(Clone)]
pub struct StoreKey(Seed);

impl fmt::Debug for StoreKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StoreKey(..)")
    }
}

/// A sum over rows.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Total([u8; 32]);

impl Total {
    /// Adds a row, modulo 2^256.
    pub(crate) fn add(&mut self, element: &[u8; 32]) {
        let mut carry = 0;
        for (octet, other) in self.0.iter_mut().zip(element) {
            let sum = u16::from(*octet) + u16::from(*other) + carry;
            (*octet, carry) = (sum as u8, sum >> 8);
        }
    }

    /// Takes a row away.
    pub(crate) fn subtract(&mut self, element: &[u8; 32]) {
        let mut borrow = 0;
        for (octet, other) in self.0.iter_mut().zip(element) {
            let difference = 0x100 + u16::from(*octet) - u16::from(*other) - borrow;
            (*octet, borrow) = (difference as u8, 1 - (difference >> 8));
        }
    }
}

/// What of a change is authenticated.
pub(crate) struct ChangeParts<'a> {
    pub number: u64,
    pub timeline: u64,
    pub issued: u64,
    pub actor: &'a str,
    pub reason: &'a str,
    pub digest: &'a [u8; 32],
    pub content: &'a [u8],
    pub principal: Option<u32>,
    /// Over all rows after it.
    pub total: Total,
}

impl StoreKey {
    /// From a secret that nothing else uses.
    #[must_use]
    pub fn new(secret: Seed) -> Self {
        Self(secret)
    }

    fn mac(&self, label: &str, parts: &[&[u8]]) -> [u8; 32] {
        let mut context = Vec::with_capacity(parts.iter().map(|part| part.len() + 4).sum());
        for part in parts {
            context.extend_from_slice(&u32::try_from(part.len()).unwrap_or(u32::MAX).to_be_bytes());
            context.extend_from_slice(part);
        }
        *derive::<32>(label, self.0.expose(), &context).expose()
    }

    /// The MAC of a row that this change wrote.
    pub(crate) fn row(&self, change: u64, content: &[u8]) -> [u8; 32] {
        self.mac(ROW, &[&change.to_be_bytes(), content])
    }

    /// The MAC of a statement that is complete: of what it says, of its parts, and of the one before.
    pub(crate) fn statement(&self, content: &[u8], parts: &[u8], before: &[u8]) -> [u8; 32] {
        self.mac(STATEMENT, &[content, parts, before])
    }

    /// The MAC of what of a statement is of one who pays: sums, and the details, which earlier versions had not.
    pub(crate) fn part(&self, statement: u64, principal: u32, sums: &[u8], details: Option<&[u8]>) -> [u8; 32] {
        let (statement, principal) = (statement.to_be_bytes(), principal.to_be_bytes());
        let parts: [&[u8]; 4] = [&statement, &principal, sums, details.unwrap_or_default()];
        self.mac(PART, if details.is_some() { &parts } else { &parts[..3] })
    }

    /// The MAC of that the sums of a statement were taken away at this Unix second.
    pub(crate) fn removal(&self, statement: u64, at: u64) -> [u8; 32] {
        self.mac(REMOVAL, &[&statement.to_be_bytes(), &at.to_be_bytes()])
    }

    /// What a row adds to the sum.
    pub(crate) fn element(&self, row_mac: &[u8; 32]) -> [u8; 32] {
        self.mac(ELEMENT, &[row_mac])
    }

    /// A sum as it is written with the change that has this MAC, or the sum of what was written.
    pub(crate) fn mask(&self, total: Total, change_mac: &[u8]) -> Total {
        let mask = self.mac(MASK, &[change_mac]);
        let mut masked = total;
        masked.0.iter_mut().zip(mask).for_each(|(octet, of_mask)| *octet ^= of_mask);
        masked
    }

    pub(crate) fn change(&self, parts: &ChangeParts<'_>) -> [u8; 32] {
        let numbers = [parts.number, parts.timeline, parts.issued].map(u64::to_be_bytes);
        let [number, timeline, issued] = &numbers;
        let texts = [parts.actor.as_bytes(), parts.reason.as_bytes()];
        let principal = parts.principal.map_or(Vec::new(), |principal| principal.to_be_bytes().to_vec());
        let total = parts.total.octets();
        self.mac(
            CHANGE,
            &[number, timeline, issued, &principal, texts[0], texts[1], parts.digest, parts.content, total],
        )
    }
}

impl Total {
    pub(crate) fn octets(&self) -> &[u8; 32] {
        &self.0
    }

    pub(crate) fn from_octets(octets: [u8; 32]) -> Self {
        Self(octets)
    }
}

/// Whether a MAC is this one.
pub(crate) fn is_mac(read: &[u8], expected: &[u8; 32]) -> bool {
    read.ct_eq(expected).into()
}

/// The digest of an adoption, which continues that of the change before.
pub(crate) fn adoption(previous: &[u8; 32], timeline: u64, number: u64) -> [u8; 32] {
    hash(ADOPTION, &[previous, &timeline.to_be_bytes(), &number.to_be_bytes()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_is_modulo_two_to_the_256_and_what_was_added_can_be_taken_away() {
        let (one, most) = (
            {
                let mut one = [0; 32];
                one[0] = 1;
                one
            },
            [0xff; 32],
        );
        let mut total = Total::default();
        total.add(&most);
        total.add(&one);
        assert!(total == Total::default());
        total.subtract(&one);
        assert_eq!(total.octets(), &most);
        // Twice is not never.
        let mut twice = Total::default();
        (0..2).for_each(|_| twice.add(&most));
        assert!(twice != Total::default());
        let key = StoreKey::new(Seed::new([1; 32]));
        assert!(key.mask(key.mask(twice, &[7; 32]), &[7; 32]) == twice && key.mask(twice, &[8; 32]) != twice);
    }
}
