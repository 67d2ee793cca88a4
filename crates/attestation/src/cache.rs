//! Signatures that were verified and are right, by a hash of all that this follows from.
//!
//! Whether a signature is right depends on the suite, the key, the message and the signature alone: never on what the PKI
//! lists, on rules or on the time. So nothing that changes there empties the cache. Which key must have signed, and whether
//! it may, is decided anew for each route.

use std::collections::HashSet;

use wayleave_crypto::hash::hash;

use crate::suite::{Claim, SuiteId};

/// What one signature is called.
pub(crate) type SignatureHash = [u8; 32];

/// Octets of a table of hashes for each of its buckets: the hash and its control octet. The standard library's table has a
/// power of two of them, and fills seven of eight.
const BUCKET: usize = size_of::<SignatureHash>() + 1;

/// Right signatures in two generations: a signature that is used goes into the younger one, and the older one is dropped
/// whole when the younger one is full. So the longest unused go first, at no cost for each use.
#[derive(Debug)]
pub struct VerifiedSignatures {
    /// Entries of one generation, at most.
    most: usize,
    younger: HashSet<SignatureHash>,
    older: HashSet<SignatureHash>,
    pub counts: CacheCounts,
}

/// How a cache was used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheCounts {
    /// Signatures that were known to be right.
    pub hits: u64,
    /// Signatures looked for in vain.
    pub misses: u64,
    /// Entries dropped to make room.
    pub evicted: u64,
}

impl VerifiedSignatures {
    /// A cache of at most so many octets; of none if they do not suffice for a few entries.
    #[must_use]
    pub fn new(octets: usize) -> Self {
        let buckets = octets / 2 / BUCKET;
        // The greatest power of two that fits; tables of fewer than eight buckets are filled otherwise.
        let buckets = if buckets < 8 { 0 } else { 1 << buckets.ilog2() };
        Self { most: buckets / 8 * 7, younger: HashSet::new(), older: HashSet::new(), counts: CacheCounts::default() }
    }

    /// How many signatures it has, those in both generations twice.
    #[must_use]
    pub fn len(&self) -> usize {
        self.younger.len() + self.older.len()
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Octets that it takes now.
    #[must_use]
    pub fn octets(&self) -> usize {
        table_octets(&self.younger) + table_octets(&self.older)
    }

    /// Octets that it takes at most.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.most / 7 * 8 * BUCKET * 2
    }

    /// Drops what was not used since the last call but one; to be called now and then, so that an idle cache gives its
    /// memory back.
    pub fn age(&mut self) {
        self.older = std::mem::take(&mut self.younger);
    }

    pub(crate) fn contains(&mut self, signature: &SignatureHash) -> bool {
        let is_known = self.younger.contains(signature) || {
            let is_older = self.older.contains(signature);
            if is_older {
                self.insert(*signature);
            }
            is_older
        };
        *(if is_known { &mut self.counts.hits } else { &mut self.counts.misses }) += 1;
        is_known
    }

    /// Whether it has the signature; that counts as no use.
    pub(crate) fn has(&self, signature: &SignatureHash) -> bool {
        self.younger.contains(signature) || self.older.contains(signature)
    }

    /// Adds a signature that was verified and is right.
    pub(crate) fn insert(&mut self, signature: SignatureHash) {
        if self.most == 0 {
            return;
        }
        if self.younger.len() >= self.most && !self.younger.contains(&signature) {
            self.counts.evicted += self.older.len() as u64;
            self.age();
        }
        self.younger.insert(signature);
    }
}

/// Where validation looks up which signatures are right, and notes them.
pub(crate) trait KnownSignatures {
    fn contains(&mut self, signature: &SignatureHash) -> bool;
    /// Adds a signature that was verified and is right.
    fn insert(&mut self, signature: SignatureHash);
}

impl KnownSignatures for VerifiedSignatures {
    fn contains(&mut self, signature: &SignatureHash) -> bool {
        self.contains(signature)
    }

    fn insert(&mut self, signature: SignatureHash) {
        self.insert(signature);
    }
}

/// Everything from which it follows that a signature is right.
pub(crate) fn signature_hash(suite: SuiteId, claim: &Claim<'_>) -> SignatureHash {
    hash("wayleave/attestation/verified/v1", &[&[suite as u8], claim.public, claim.message, claim.signature])
}

fn table_octets(table: &HashSet<SignatureHash>) -> usize {
    match table.capacity() {
        0 => 0,
        capacity => (capacity / 7 * 8).max(capacity + 1).next_power_of_two() * BUCKET,
    }
}

#[cfg(test)]
mod tests {
    //! KCX-32: a cache too small for what is used: it keeps within its octets, and gives them back.

    use super::*;

    fn name(number: u32) -> SignatureHash {
        hash("test/signature", &[&number.to_be_bytes()])
    }

    #[test]
    fn the_cache_keeps_what_is_used_and_stays_within_its_octets() {
        let mut known = VerifiedSignatures::new(100_000);
        assert!(known.limit() <= 100_000);
        for number in 0..50_000 {
            known.insert(name(number));
            assert!(known.contains(&name(0)), "used all the time, and dropped after {number} others");
            assert!(known.octets() <= known.limit(), "{} octets after {number}", known.octets());
        }
        assert!(known.len() > known.most && known.counts.evicted > 0);
        assert!(known.contains(&name(49_999)) && !known.contains(&name(10)));
    }

    #[test]
    fn an_idle_cache_gives_its_memory_back() {
        let mut known = VerifiedSignatures::new(1 << 20);
        (0..5_000).for_each(|number| known.insert(name(number)));
        known.age();
        assert!(known.contains(&name(7)), "one age is not enough");
        known.age();
        assert!(known.contains(&name(7)) && !known.contains(&name(8)));
        known.age();
        known.age();
        assert_eq!((known.len(), known.octets()), (0, 0));
    }

    #[test]
    fn a_cache_without_room_keeps_nothing() {
        let mut known = VerifiedSignatures::new(10);
        known.insert(name(1));
        assert!(!known.contains(&name(1)));
        assert_eq!((known.limit(), known.octets()), (0, 0));
    }
}
