//! Tag keys and proofs of consent (paper, section 2.5).
//!
//! Tag keys are the leaves of a tree over the bits of tags, one tree for each epoch (Goldreich, Goldwasser and Micali, 1986).
//! The holder of an inner node computes the keys of all tags under it, in this epoch, and no others. So a prefix of tags can be
//! delegated.

use std::fmt;

use wayleave_crypto::kdf;
use wayleave_crypto::lanes::{Aes128, Block, CmacKey, CpuKernel};
use wayleave_crypto::secret::{Key128, Seed};

use super::super::header::{PathHash, Tag};

/// Levels of the tree: bits of a tag.
pub const MAX_DEPTH: u8 = 32;
/// An epoch of tag keys lasts `2^12` seconds; a consent belongs to the epoch in which it expires.
pub const TAG_EPOCH: u32 = 12;

/// The epoch of tag keys in which a consent with this expiry was made.
#[must_use]
pub fn tag_epoch(expiry: u32) -> u32 {
    expiry >> TAG_EPOCH
}

/// What a node and its consent server share: the root of every epoch's tree.
#[derive(Clone)]
pub struct TagMaster(Key128);

impl fmt::Debug for TagMaster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TagMaster(..)")
    }
}

impl TagMaster {
    #[must_use]
    pub fn new(key: Key128) -> Self {
        Self(key)
    }

    /// The key of version `version` of a node's `seed`.
    #[must_use]
    pub fn derive(seed: &Seed, version: u32) -> Self {
        Self(kdf::derive("wayleave/icing/tags/v1", seed.expose(), &version.to_be_bytes()))
    }

    /// The secret, to be handed to the node's consent server.
    #[must_use]
    pub fn key(&self) -> &Key128 {
        &self.0
    }

    /// The root of the tree of `epoch`.
    #[must_use]
    pub fn root(&self, epoch: u32) -> TagBranch {
        let mut message = *b"It1r\0\0\0\0";
        message[4..].copy_from_slice(&epoch.to_be_bytes());
        let key = CmacKey::with_kernel(self.0.expose(), CpuKernel::PORTABLE).tag(&message);
        TagBranch { key: Key128::new(key), epoch, bits: 0, depth: 0 }
    }

    /// The consent to a path whose hash is `path`, for node `index` under `tag` until `expiry`.
    #[must_use]
    pub fn consent(&self, path: &PathHash, index: usize, tag: Tag, expiry: u32) -> Consent {
        self.root(tag_epoch(expiry)).make(path, index, tag, expiry)
    }
}

/// A node of one epoch's tree: the right to consent under every tag that begins with its bits.
#[derive(Clone)]
pub struct TagBranch {
    key: Key128,
    epoch: u32,
    /// The tags' first bits, from the left; the others are zero.
    bits: u32,
    depth: u8,
}

impl fmt::Debug for TagBranch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TagBranch({:#x}/{}, epoch {})", self.bits, self.depth, self.epoch)
    }
}

impl TagBranch {
    /// A branch that was handed over; `None` if there are more bits than the depth says or it exceeds [`MAX_DEPTH`].
    #[must_use]
    pub fn from_parts(key: Key128, epoch: u32, bits: u32, depth: u8) -> Option<Self> {
        let is_prefix = depth <= MAX_DEPTH && bits.trailing_zeros() >= u32::from(MAX_DEPTH - depth);
        is_prefix.then_some(Self { key, epoch, bits, depth })
    }

    /// The secret, to be handed to a delegate.
    #[must_use]
    pub fn key(&self) -> &Key128 {
        &self.key
    }

    /// Epoch, first bits of the tags, and how many bits those are.
    #[must_use]
    pub fn scope(&self) -> (u32, u32, u8) {
        (self.epoch, self.bits, self.depth)
    }

    /// Whether `tag` begins with this branch's bits.
    #[must_use]
    pub fn covers(&self, tag: Tag) -> bool {
        self.depth == 0 || (tag.0 ^ self.bits) >> (MAX_DEPTH - self.depth) == 0
    }

    /// The branch of the first `depth` bits of `tag`; `None` if it does not lie under this one.
    #[must_use]
    pub fn descend(&self, tag: Tag, depth: u8) -> Option<Self> {
        if depth < self.depth || depth > MAX_DEPTH || !self.covers(tag) {
            return None;
        }
        let mut key = *self.key.expose();
        for level in self.depth + 1..=depth {
            let bit = (tag.0 >> (MAX_DEPTH - level)) as u8 & 1;
            let mut block: Block = *b"It1s\0\0\0\0\0\0\0\0\0\0\0\0";
            (block[4], block[5]) = (level, bit);
            key = Aes128::with_kernel(&key, CpuKernel::PORTABLE).encrypt_one(&block);
        }
        let bits = if depth == 0 { 0 } else { tag.0 & (u32::MAX << (MAX_DEPTH - depth)) };
        Some(Self { key: Key128::new(key), epoch: self.epoch, bits, depth })
    }

    /// The consent to a path whose hash is `path`, for node `index` under `tag` until `expiry`; `None` if the tag does not
    /// lie under this branch or the expiry lies in another epoch.
    #[must_use]
    pub fn consent(&self, path: &PathHash, index: usize, tag: Tag, expiry: u32) -> Option<Consent> {
        (tag_epoch(expiry) == self.epoch && self.covers(tag)).then(|| self.make(path, index, tag, expiry))
    }

    fn make(&self, path: &PathHash, index: usize, tag: Tag, expiry: u32) -> Consent {
        let leaf = self.descend(tag, MAX_DEPTH).expect("the tag lies under this branch");
        let mut message = [0; 44];
        message[..4].copy_from_slice(b"Ic1p");
        // At most 15.
        message[4] = index as u8;
        message[8..12].copy_from_slice(&expiry.to_be_bytes());
        message[12..].copy_from_slice(&path.0);
        Consent(Key128::new(CmacKey::with_kernel(leaf.key.expose(), CpuKernel::PORTABLE).tag(&message)))
    }
}

/// `PoC_j`: node `j` consents to a path until an expiry (paper, section 2.5). It is a key: its holder can send.
#[derive(Clone, PartialEq, Eq)]
pub struct Consent(Key128);

impl fmt::Debug for Consent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Consent(..)")
    }
}

impl Consent {
    /// A consent that a consent server sent.
    #[must_use]
    pub fn new(key: Key128) -> Self {
        Self(key)
    }

    /// The key, to be sent to the sender.
    #[must_use]
    pub fn key(&self) -> &Key128 {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: PathHash = PathHash([3; 32]);

    fn master() -> TagMaster {
        TagMaster::new(Key128::new([7; 16]))
    }

    #[test]
    fn a_delegate_of_a_prefix_makes_the_nodes_own_consents_under_it_and_none_beside() {
        let expiry = 1_800_000_000;
        let tag = Tag(0xdead_beef);
        for depth in 0..=MAX_DEPTH {
            let branch = master().root(tag_epoch(expiry)).descend(tag, depth).unwrap();
            let (epoch, bits, depth) = branch.scope();
            let branch = TagBranch::from_parts(branch.key().clone(), epoch, bits, depth).unwrap();
            assert_eq!(branch.consent(&PATH, 3, tag, expiry), Some(master().consent(&PATH, 3, tag, expiry)));
            if depth > 0 {
                let beside = Tag(tag.0 ^ 1 << (MAX_DEPTH - depth));
                assert_eq!(branch.consent(&PATH, 3, beside, expiry), None);
                assert!(branch.descend(beside, MAX_DEPTH).is_none());
            }
            // Another epoch's trees are others.
            assert_eq!(branch.consent(&PATH, 3, tag, expiry + (1 << TAG_EPOCH)), None);
        }
        let other = master().root(tag_epoch(expiry) + 1).descend(tag, 32).unwrap();
        assert_ne!(other.key(), master().root(tag_epoch(expiry)).descend(tag, 32).unwrap().key());
    }

    #[test]
    fn a_branch_with_bits_beyond_its_depth_is_none() {
        let key = || Key128::new([1; 16]);
        assert!(TagBranch::from_parts(key(), 1, 0x8000_0000, 1).is_some());
        assert!(TagBranch::from_parts(key(), 1, 0x4000_0000, 1).is_none());
        assert!(TagBranch::from_parts(key(), 1, 1, 32).is_some());
        assert!(TagBranch::from_parts(key(), 1, 1, 31).is_none());
        assert!(TagBranch::from_parts(key(), 1, 0, 0).is_some());
        assert!(TagBranch::from_parts(key(), 1, 0, 33).is_none());
    }
}
