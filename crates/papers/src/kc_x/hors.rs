//! HORS signatures over a hash tree, as KC-MT and SPV use them (section IV-B and figure 2).
//!
//! A signature discloses `m` of `n` private values, selected by the message's hash, and the nodes from which a verifier
//! computes the root: private values of 16 bytes in the order of their leaves, then nodes of 8 bytes, level by level.

use std::fmt;
use std::ops::Deref;

use crate::kc_x::mmo::{Digest, Mmo, Node, Value, Values, cut, join, values};

/// `n = 2^height` leaves, of which a signature discloses `m`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Levels above the leaves.
    pub height: u32,
    /// Values of a signature; fewer for the rare hash that selects fewer leaves.
    pub m: usize,
}

/// KC-MT's tree: n = 512, m = 3 (section V-A1).
pub const KC_MT: Shape = Shape { height: 9, m: 3 };
/// SPV's tree: n = 256, m = 6.
pub const SPV: Shape = Shape { height: 8, m: 6 };

impl Shape {
    /// The number of leaves.
    #[must_use]
    pub fn leaves(self) -> usize {
        1 << self.height
    }

    /// The leaves that a message's hash selects: the first `m` different ones among its groups of `height` bits, sorted.
    /// They are different, since the paper counts on `n` choose `m` signatures.
    #[must_use]
    pub fn chosen(self, digest: &Digest) -> LeafIndices {
        let bits = u128::from_be_bytes(*digest);
        let mut out = LeafIndices::default();
        for group in 1..=128 / self.height {
            if out.len == self.m {
                break;
            }
            let leaf = (bits >> (128 - group * self.height)) as usize & (self.leaves() - 1);
            if !out.contains(&leaf) {
                out.push(leaf);
            }
        }
        out.indices[..out.len].sort_unstable();
        out
    }

    /// Bytes of a signature that discloses the `chosen` leaves.
    #[must_use]
    pub fn signature_len(self, chosen: &LeafIndices) -> usize {
        // The path from a leaf to the root needs a sibling node at each level. Two paths need one each until they meet, none
        // where they meet, since there each is the sibling of the other, and one between them above.
        let met = |pair: &[usize]| (usize::BITS - (pair[0] ^ pair[1]).leading_zeros()) as usize;
        let nodes = chosen.windows(2).map(|pair| met(pair) as isize - 2).sum::<isize>() + self.height as isize;
        size_of::<Value>() * chosen.len + size_of::<Node>() * nodes.max(0).cast_unsigned()
    }
}

/// Leaves of a signature, at most.
const MOST: usize = 8;

/// Indices of nodes in one level of a tree, sorted, each once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LeafIndices {
    indices: [usize; MOST],
    len: usize,
}

impl LeafIndices {
    fn push(&mut self, index: usize) {
        self.indices[self.len] = index;
        self.len += 1;
    }

    /// The indices of the parents.
    fn parents(&self) -> Self {
        let mut out = Self::default();
        for index in self.iter().map(|index| index / 2) {
            if out.last() != Some(&index) {
                out.push(index);
            }
        }
        out
    }
}

impl Deref for LeafIndices {
    type Target = [usize];

    fn deref(&self) -> &[usize] {
        &self.indices[..self.len]
    }
}

/// A tree with all its inner nodes, which are kept so that later signatures need no hash.
#[derive(Clone)]
pub struct Tree {
    shape: Shape,
    values: Values,
    /// Leaves first, then level by level up to the root.
    nodes: Vec<Node>,
}

impl Tree {
    /// The tree of a seed (the paper's t^-).
    #[must_use]
    pub fn new(mmo: &Mmo, shape: Shape, seed: &[u8; 16]) -> Self {
        let mut secrets = Values(vec![[0; 16]; shape.leaves()]);
        values(seed, 0, &mut secrets.0);
        let nodes = mmo.leaves(&secrets.0);
        Self::over(mmo, shape, secrets, nodes)
    }

    /// The tree over these private values and leaves.
    #[must_use]
    pub fn over(mmo: &Mmo, shape: Shape, values: Values, leaves: Vec<Node>) -> Self {
        let mut nodes = leaves;
        nodes.reserve_exact(shape.leaves());
        let mut below = 0;
        for _ in 0..shape.height {
            let parents = mmo.parents(&nodes[below..]);
            below = nodes.len();
            nodes.extend(parents);
        }
        Self { shape, values, nodes }
    }

    /// The root: the paper's t^+.
    #[must_use]
    pub fn root(&self) -> Node {
        *self.nodes.last().expect("a tree has at least one leaf")
    }

    /// Appends the signature of the message with hash `digest`.
    pub fn sign(&self, digest: &Digest, out: &mut Vec<u8>) {
        let chosen = self.shape.chosen(digest);
        for &leaf in chosen.iter() {
            out.extend_from_slice(&self.values.0[leaf]);
        }
        let (mut level, mut start) = (chosen, 0);
        for height in 0..self.shape.height {
            for index in level.iter() {
                if !level.contains(&(index ^ 1)) {
                    out.extend_from_slice(&self.nodes[start + (index ^ 1)]);
                }
            }
            start += self.shape.leaves() >> height;
            level = level.parents();
        }
    }
}

impl fmt::Debug for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tree(..)")
    }
}

/// A signature whose root is to be computed.
#[derive(Clone, Copy, Debug)]
pub struct HorsSignature<'a> {
    /// The leaves that the message's hash selects.
    pub chosen: LeafIndices,
    /// Their private values, in the same order.
    pub values: &'a [Value],
    /// Sibling nodes up to the root, level by level.
    pub path: &'a [Node],
}

impl<'a> HorsSignature<'a> {
    /// Splits a signature of the message with hash `digest`; `None` if its length is wrong.
    #[must_use]
    pub fn new(shape: Shape, digest: &Digest, signature: &'a [u8]) -> Option<Self> {
        let chosen = shape.chosen(digest);
        if signature.len() != shape.signature_len(&chosen) {
            return None;
        }
        let (values, path) = signature.split_at(size_of::<Value>() * chosen.len);
        Some(Self { chosen, values: values.as_chunks().0, path: path.as_chunks().0 })
    }
}

/// The root of each signature. All signatures are computed together, level by level, so that the AES units stay busy.
#[must_use]
pub fn roots(mmo: &Mmo, shape: Shape, claims: &[HorsSignature<'_>]) -> Vec<Node> {
    let mut level: Vec<(usize, usize, Node)> = Vec::with_capacity(claims.len() * shape.m);
    let mut blocks: Vec<Value> = Vec::with_capacity(claims.len() * shape.m);
    for (number, claim) in claims.iter().enumerate() {
        level.extend(claim.chosen.iter().map(|index| (number, *index, Node::default())));
        blocks.extend_from_slice(claim.values);
    }
    mmo.hash_blocks(&mut blocks);
    for (entry, block) in level.iter_mut().zip(&blocks) {
        entry.2 = cut(block);
    }
    let mut paths: Vec<std::slice::Iter<'_, Node>> = claims.iter().map(|claim| claim.path.iter()).collect();
    for _ in 0..shape.height {
        blocks.clear();
        let (mut read, mut write) = (0, 0);
        while let Some(&(number, index, node)) = level.get(read) {
            let sibling = level.get(read + 1).filter(|next| (next.0, next.1) == (number, index ^ 1)).map(|next| next.2);
            read += 1 + usize::from(sibling.is_some());
            let sibling = sibling.unwrap_or_else(|| paths[number].next().copied().unwrap_or_default());
            blocks.push(if index & 1 == 0 { join(node, sibling) } else { join(sibling, node) });
            level[write] = (number, index >> 1, node);
            write += 1;
        }
        level.truncate(write);
        mmo.hash_blocks(&mut blocks);
        for (entry, block) in level.iter_mut().zip(&blocks) {
            entry.2 = cut(block);
        }
    }
    level.into_iter().map(|(_, _, root)| root).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kc_x::mmo::message;

    fn digest(number: u64) -> Digest {
        message(&number.to_be_bytes())
    }

    fn root_of(shape: Shape, digest: &Digest, signature: &[u8]) -> Node {
        let claimed = HorsSignature::new(shape, digest, signature).expect("the length is right");
        roots(&Mmo::default(), shape, &[claimed])[0]
    }

    #[test]
    fn a_signature_leads_to_the_root_and_a_changed_one_does_not() {
        for shape in [KC_MT, SPV] {
            let tree = Tree::new(&Mmo::default(), shape, &[5; 16]);
            for number in 0..200 {
                let (digest, mut signature) = (digest(number), Vec::new());
                tree.sign(&digest, &mut signature);
                assert_eq!(signature.len(), shape.signature_len(&shape.chosen(&digest)));
                assert_eq!(root_of(shape, &digest, &signature), tree.root());
                let octet = number as usize % signature.len();
                signature[octet] ^= 1;
                assert_ne!(root_of(shape, &digest, &signature), tree.root());
            }
        }
    }

    #[test]
    fn a_hash_that_names_one_leaf_only_is_signed_with_it() {
        let digest = [0; 16];
        assert_eq!(KC_MT.chosen(&digest)[..], [0]);
        let tree = Tree::new(&Mmo::default(), KC_MT, &[5; 16]);
        let mut signature = Vec::new();
        tree.sign(&digest, &mut signature);
        assert_eq!(signature.len(), 16 + 9 * 8);
        assert_eq!(root_of(KC_MT, &digest, &signature), tree.root());
    }

    #[test]
    fn signatures_have_the_published_average_sizes() {
        // With KC-MT's serial number of 2 bytes 213, as published; with SPV's 4 nodes of 8 bytes 354, published 353.
        let mean = |shape: Shape| {
            let sizes = (0..20_000).map(|number| shape.signature_len(&shape.chosen(&digest(number))));
            (sizes.sum::<usize>() + 10_000) / 20_000
        };
        assert_eq!((mean(KC_MT), mean(SPV)), (211, 322));
    }
}
