//! Terms: hashes and signatures as free constructors. Two terms are equal only if they were made in the same way, so no hash collides,
//! and a signature can be had only from who holds the key.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::world::{Asn, Path, PrefixSet};

/// A term, by its number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(super) struct Id(u32);

/// The zeros before the first hop, and whatever a mutant of the format leaves out.
pub(super) const NOTHING: Id = Id(0);

/// Who can sign.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Key {
    /// An AS's own key.
    Of(Asn),
    /// A key that the adversary made and names as that of an honest AS.
    Adversary,
}

/// The keys that a hop names for the next AS.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Leaf {
    Keyless,
    Key(Key),
}

/// Which key signs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Signer {
    Chained,
    Registered,
    AfterGap,
}

/// A position in a tree. Only the leaf that stands there leads to the root.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Opening {
    pub(super) tree: Id,
    pub(super) position: u8,
}

/// A random value that only its maker and the receiver of the leaf know.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Salt(pub(super) u32);

/// How the next AS and the signature are bound to each other.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Shape {
    /// The content is signed, with the neighbour in it.
    Direct,
    /// Version 2: the root of a burst's tree is signed, and the content with the neighbour in it is a leaf.
    Burst(Salt, Opening),
    /// The content is signed, with the root of the directory's tree in it.
    Directory(Opening),
    /// Version 1: the content is signed, with the root of the tree of all neighbours in it.
    Neighbours(Salt, Opening),
}

/// What a hop signs. A field that a mutant leaves out is `None`, as is one that the version has not.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Content {
    pub(super) version: Option<u8>,
    pub(super) index: Option<u8>,
    pub(super) signer: Option<Signer>,
    pub(super) is_root: Option<bool>,
    pub(super) prepend: Option<u8>,
    pub(super) asn: Option<Asn>,
    /// Not-before and not-after: whether they have passed when the verifier looks.
    pub(super) expired: Option<bool>,
    pub(super) bitmap: Option<PrefixSet>,
    pub(super) previous: Id,
    pub(super) commitment: Id,
    pub(super) list: Option<PrefixSet>,
    pub(super) skipped: Option<Path>,
}

/// A hop as it stands in the value: neither its AS nor the skipped ASes are there, only their number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct HopOctets {
    pub(super) signer: Signer,
    pub(super) skipped: u8,
    pub(super) prepend: u8,
    pub(super) expired: bool,
    pub(super) bitmap: PrefixSet,
    pub(super) leaf: Leaf,
    pub(super) shape: Shape,
    pub(super) signature: Id,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Term {
    Nothing,
    Direct {
        next: Option<Asn>,
        leaf: Option<Leaf>,
    },
    Slot {
        next: Option<Asn>,
        leaf: Leaf,
    },
    /// Version 1's leaf of the tree of all neighbours.
    Neighbour {
        salt: Salt,
        next: Asn,
        leaf: Leaf,
    },
    BurstLeaf {
        salt: Salt,
        content: Id,
    },
    /// A Merkle tree, whose inner nodes have a label of their own.
    Tree(Vec<Id>),
    /// What one signature over a burst covers.
    Burst {
        version: Option<u8>,
        root: Id,
    },
    Content(Content),
    Chain {
        content: Id,
        octets: Option<HopOctets>,
    },
    Signature {
        key: Key,
        message: Id,
    },
}

/// All terms of a search.
pub(super) struct Terms {
    ids: Map<Term, Id>,
    terms: Vec<Term>,
}

impl Terms {
    pub(super) fn new() -> Self {
        let mut terms = Self { ids: Map::default(), terms: Vec::new() };
        terms.id(Term::Nothing);
        terms
    }

    pub(super) fn id(&mut self, term: Term) -> Id {
        if let Some(id) = self.ids.get(&term) {
            return *id;
        }
        let id = Id(self.terms.len() as u32);
        self.terms.push(term.clone());
        self.ids.insert(term, id);
        id
    }

    /// The root to which `opening` leads from `leaf`; `None` for any root that nobody ever signs.
    pub(super) fn root(&self, opening: Opening, leaf: Id) -> Option<Id> {
        match &self.terms[opening.tree.0 as usize] {
            Term::Tree(leaves) if leaves.get(usize::from(opening.position)) == Some(&leaf) => Some(opening.tree),
            _ => None,
        }
    }
}

pub(super) type Map<K, V> = HashMap<K, V, BuildHasherDefault<WordHasher>>;

/// A fast hash for short keys of our own making.
#[derive(Default)]
pub(super) struct WordHasher(u64);

impl Hasher for WordHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, word: u8) {
        self.write_u64(u64::from(word));
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn write_isize(&mut self, word: isize) {
        self.write_u64(word as u64);
    }
}
