//! Stamping keys of the delegations that verified a packet last: a table of fixed size in which a key lies in one place.

use wayleave_crypto::lanes::Block;

/// Octets of the longest capability without its binding.
const LONGEST: usize = 48;

/// A capability's octets, and how many they are: those of two families are never equal.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Name([u8; LONGEST], usize);

/// A delegation and its key.
#[derive(Clone)]
struct Entry {
    name: Name,
    key: Block,
}

impl Drop for Entry {
    fn drop(&mut self) {
        zeroize::Zeroize::zeroize(&mut self.key);
    }
}

/// At most as many keys as it was made for. Two delegations whose names lie in the same place take turns there: whoever
/// makes names fall together makes his own packets slow, and nobody else's for longer than that.
pub(crate) struct Delegations {
    entries: Box<[Option<Entry>]>,
}

impl Delegations {
    /// Room for `most` entries, rounded up to a power of two, taken at once.
    pub(crate) fn new(most: usize) -> Self {
        Self { entries: vec![None; most.max(1).next_power_of_two()].into_boxed_slice() }
    }

    /// Writes the key of the capability whose octets are `name` to `key`, if it is here.
    pub(crate) fn find(&self, name: &[u8], key: &mut Block) -> bool {
        let name = Name::new(name);
        match &self.entries[self.place(&name)] {
            Some(entry) if entry.name == name => {
                *key = entry.key;
                true
            }
            _ => false,
        }
    }

    /// Puts a key in, and out what was in its place.
    pub(crate) fn insert(&mut self, name: &[u8], key: &Block) {
        let name = Name::new(name);
        self.entries[self.place(&name)] = Some(Entry { name, key: *key });
    }

    pub(crate) fn clear(&mut self) {
        self.entries.fill(None);
    }

    fn place(&self, name: &Name) -> usize {
        let (words, _) = name.0.as_chunks::<8>();
        let mix = |hash: u64, word: &[u8; 8]| {
            let hash = (hash ^ u64::from_le_bytes(*word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            hash ^ hash >> 32
        };
        words.iter().fold(0, mix) as usize & (self.entries.len() - 1)
    }
}

impl Name {
    fn new(octets: &[u8]) -> Self {
        let mut padded = [0; LONGEST];
        padded[..octets.len()].copy_from_slice(octets);
        Self(padded, octets.len())
    }
}
