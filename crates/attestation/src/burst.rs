//! One signature for a burst of hops: a Merkle tree over what each of them says, whose root is signed.
//!
//! A leaf is the whole content of one hop for one neighbour, so that no opening fits another route, prefix or neighbour. Salts
//! hide what the siblings in an opening stand for, and every tree has the same depth: a hop shows nothing of who else was given
//! which route.

use wayleave_crypto::hash::hash;
use wayleave_crypto::secret::Seed;

/// Bytes that hide a leaf from whoever sees a neighbour's opening.
pub const SALT_LEN: usize = 16;
/// Levels of a tree, at most.
pub const MAX_DEPTH: u8 = 8;
/// Hops that one signature serves, at most.
pub const MAX_BURST: usize = 1 << MAX_DEPTH;

const LABEL: &[u8] = b"wayleave/attestation/burst/v2";

/// The way from one hop's content to the root that is signed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BurstOpening<'a> {
    /// What hides the content from whoever sees only its hash.
    pub salt: &'a [u8; SALT_LEN],
    /// The position of the leaf.
    pub index: u8,
    /// The siblings of the nodes from the leaf to the root, 32 bytes each, the lowest first.
    pub siblings: &'a [u8],
}

impl BurstOpening<'_> {
    /// Appends what the signature of a hop with this `content` is over. Its first field is a label of its own: no content of a
    /// hop is the message of a burst.
    pub fn encode_signed(&self, version: u8, suite: u8, content: &[u8], out: &mut Vec<u8>) {
        let mut node = leaf(self.salt, content);
        for (level, sibling) in self.siblings.chunks_exact(32).enumerate() {
            node = if self.index >> level & 1 == 0 { parent(&node, sibling) } else { parent(sibling, &node) };
        }
        encode_message(version, suite, &node, out);
    }

    /// Octets of its encoding.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        SALT_LEN + 2 + self.siblings.len()
    }
}

fn encode_message(version: u8, suite: u8, root: &[u8; 32], out: &mut Vec<u8>) {
    out.extend_from_slice(&(LABEL.len() as u16).to_be_bytes());
    out.extend_from_slice(LABEL);
    out.extend_from_slice(&[version, suite]);
    out.extend_from_slice(root);
}

fn leaf(salt: &[u8; SALT_LEN], content: &[u8]) -> [u8; 32] {
    hash("wayleave/attestation/burst-leaf/v2", &[salt, content])
}

fn parent(left: &[u8], right: &[u8]) -> [u8; 32] {
    hash("wayleave/attestation/burst-node/v2", &[left, right])
}

/// The tree over a burst.
pub(crate) struct BurstTree {
    /// Level by level, the leaves first.
    nodes: Vec<[u8; 32]>,
    salts: Vec<[u8; SALT_LEN]>,
    /// By content, as given: the position of its leaf.
    positions: Vec<u8>,
}

/// A hop's opening, owned.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct OwnedOpening {
    salt: [u8; SALT_LEN],
    index: u8,
    siblings: Vec<u8>,
}

impl OwnedOpening {
    /// One of zeros, as long as any.
    pub(crate) fn longest() -> Self {
        Self { salt: [0; SALT_LEN], index: 0, siblings: vec![0; 32 * usize::from(MAX_DEPTH)] }
    }

    pub(crate) fn view(&self) -> BurstOpening<'_> {
        BurstOpening { salt: &self.salt, index: self.index, siblings: &self.siblings }
    }
}

impl BurstTree {
    /// The tree over at most [`MAX_BURST`] contents. Salts and padding follow from `seed`, which must be secret; positions follow
    /// from the salted leaves, so that they show no order.
    pub(crate) fn new(seed: &Seed, contents: &[Vec<u8>]) -> Self {
        debug_assert!(contents.len() <= MAX_BURST, "a burst is cut before");
        let salt = |content: &Vec<u8>| {
            let mut salt = [0; SALT_LEN];
            salt.copy_from_slice(&hash("wayleave/attestation/burst-salt/v2", &[seed.expose(), content])[..SALT_LEN]);
            salt
        };
        let salts: Vec<[u8; SALT_LEN]> = contents.iter().map(salt).collect();
        let leaves: Vec<[u8; 32]> = contents.iter().zip(&salts).map(|(content, salt)| leaf(salt, content)).collect();
        let first = leaves.first().copied().unwrap_or_default();
        let padding = |number: usize| {
            hash("wayleave/attestation/burst-padding/v2", &[seed.expose(), &first, &(number as u16).to_be_bytes()])
        };
        let mut nodes: Vec<[u8; 32]> = leaves.iter().copied().chain((leaves.len()..MAX_BURST).map(padding)).collect();
        nodes.sort_unstable();
        // Each leaf is among the nodes, of which there are at most 256.
        let positions = leaves.iter().map(|leaf| nodes.binary_search(leaf).unwrap_or(0) as u8).collect();
        let mut level = 0;
        while nodes.len() < 2 * MAX_BURST - 1 {
            let end = nodes.len();
            for left in (level..end).step_by(2) {
                nodes.push(parent(&nodes[left], &nodes[left + 1]));
            }
            level = end;
        }
        Self { nodes, salts, positions }
    }

    /// Appends what is signed.
    pub(crate) fn encode_signed(&self, version: u8, suite: u8, out: &mut Vec<u8>) {
        // `new` pushes the root last.
        encode_message(version, suite, &self.nodes[self.nodes.len() - 1], out);
    }

    /// The opening of the content at `number`, in the order in which they were given.
    pub(crate) fn opening(&self, number: usize) -> OwnedOpening {
        let index = self.positions[number];
        let mut siblings = Vec::with_capacity(32 * usize::from(MAX_DEPTH));
        let (mut base, mut position) = (0, usize::from(index));
        for level in 0..MAX_DEPTH {
            siblings.extend_from_slice(&self.nodes[base + (position ^ 1)]);
            base += 1 << (MAX_DEPTH - level);
            position >>= 1;
        }
        OwnedOpening { salt: self.salts[number], index, siblings }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_opening_leads_to_what_is_signed_and_from_its_own_content_alone() {
        for count in [1, 2, 33, 255, 256u16] {
            let contents: Vec<Vec<u8>> = (0..count).map(|number| number.to_be_bytes().to_vec()).collect();
            let tree = BurstTree::new(&Seed::new([7; 32]), &contents);
            let (mut signed, mut from_opening) = (Vec::new(), Vec::new());
            tree.encode_signed(2, 1, &mut signed);
            for (number, content) in contents.iter().enumerate() {
                let opening = tree.opening(number);
                from_opening.clear();
                opening.view().encode_signed(2, 1, content, &mut from_opening);
                assert_eq!(from_opening, signed);
                from_opening.clear();
                opening.view().encode_signed(2, 1, b"another", &mut from_opening);
                assert_ne!(from_opening, signed);
            }
        }
    }

    #[test]
    fn an_opening_has_one_length_whatever_the_burst() {
        let lengths = [1usize, 40, 256].map(|count| {
            let contents: Vec<Vec<u8>> = (0..count).map(|number| number.to_be_bytes().to_vec()).collect();
            BurstTree::new(&Seed::new([7; 32]), &contents).opening(0).view().encoded_len()
        });
        assert_eq!(lengths, [OwnedOpening::longest().view().encoded_len(); 3]);
    }
}
