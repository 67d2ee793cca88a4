//! Stamping keys of the delegations that verified a packet last, so that a delegation's chain of MACs is not computed for
//! every packet: a table of fixed size.

use wayleave_crypto::lanes::Block;

/// Octets of the longest capability without its binding.
const LONGEST: usize = 48;

/// A capability's octets, zero-padded, and how many they are: those of two families are never equal.
#[derive(Clone, Copy, PartialEq, Eq)]
struct CapabilityName([u8; LONGEST], usize);

#[derive(Clone)]
struct DelegationKey {
    name: CapabilityName,
    key: Block,
}

impl Drop for DelegationKey {
    fn drop(&mut self) {
        zeroize::Zeroize::zeroize(&mut self.key);
    }
}

/// At most as many keys as it was made for, each in the one slot that its name hashes to. Two delegations of one slot
/// replace each other: a sender who makes names collide slows down the other delegation of that slot and no more, since
/// only packets that were verified write here.
pub(super) struct DelegationKeys {
    slots: Box<[Option<DelegationKey>]>,
}

impl DelegationKeys {
    /// A table of `most` slots, rounded up to a power of two and allocated at once.
    pub(super) fn new(most: usize) -> Self {
        Self { slots: vec![None; most.max(1).next_power_of_two()].into_boxed_slice() }
    }

    /// Writes the key of the capability whose octets are `name` to `key`, if it is known.
    pub(super) fn find(&self, name: &[u8], key: &mut Block) -> bool {
        let name = CapabilityName::new(name);
        match &self.slots[self.slot(&name)] {
            Some(entry) if entry.name == name => {
                *key = entry.key;
                true
            }
            _ => false,
        }
    }

    /// Puts a key in; what was in its slot leaves.
    pub(super) fn insert(&mut self, name: &[u8], key: &Block) {
        let name = CapabilityName::new(name);
        self.slots[self.slot(&name)] = Some(DelegationKey { name, key: *key });
    }

    pub(super) fn clear(&mut self) {
        self.slots.fill(None);
    }

    fn slot(&self, name: &CapabilityName) -> usize {
        let (words, _) = name.0.as_chunks::<8>();
        let mix = |hash: u64, word: &[u8; 8]| {
            let hash = (hash ^ u64::from_le_bytes(*word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            hash ^ hash >> 32
        };
        words.iter().fold(0, mix) as usize & (self.slots.len() - 1)
    }
}

impl CapabilityName {
    fn new(octets: &[u8]) -> Self {
        let mut padded = [0; LONGEST];
        padded[..octets.len()].copy_from_slice(octets);
        Self(padded, octets.len())
    }
}
