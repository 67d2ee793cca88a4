//! Leaves: the next AS with its keys and what is required of it, as a hop signs them, alone or in the tree of a directory.
//!
//! The paper gives all neighbours one key; we name each neighbour and its own keys, so that one cannot sign as another.

use wayleave_core::Asn;
use wayleave_crypto::hash::hash;

use crate::SuiteId;

/// Keys that one leaf lists, at most.
pub const MAX_LEAF_KEYS: usize = 4;
/// Bytes of a key in a leaf: the key itself where it has this length, else its hash.
pub const LEAF_KEY_LEN: usize = 32;
/// Bytes of one key with its suite's number.
const ENTRY_LEN: usize = 1 + LEAF_KEY_LEN;
/// Levels of a directory's tree, at most: 65,536 slots.
pub const MAX_DEPTH: u8 = 16;
/// Bits of strength that one unit of the encoding stands for.
const STRENGTH_UNIT: u16 = 16;
/// Octets before the keys of a leaf that has some.
const HEAD_LEN: usize = 2;
/// The bit of the second octet that requires post-quantum suites of all hops that follow.
const POST_QUANTUM: u8 = 0x01;

/// A key as a leaf names it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LeafKey {
    /// The suite's number; it may be one that this verifier does not know.
    pub suite: u8,
    /// The key, or its hash where it is not 32 bytes long.
    pub key: [u8; LEAF_KEY_LEN],
}

impl LeafKey {
    /// The name of `public`, a key of `suite`.
    #[must_use]
    pub fn of(suite: SuiteId, public: &[u8]) -> Self {
        let key = public.try_into().unwrap_or_else(|_| hash("wayleave/attestation/key/v1", &[&[suite as u8], public]));
        Self { suite: suite as u8, key }
    }

    /// The first octets of the name, as people tell keys of one AS apart: 16 hexadecimal digits.
    #[must_use]
    pub fn id(&self) -> KeyId {
        let mut id = [0; 8];
        id.copy_from_slice(&self.key[..8]);
        KeyId(id)
    }
}

/// Which of an AS's keys it is, for people: see [`LeafKey::id`]. Nothing is decided by it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyId([u8; 8]);

impl std::fmt::Display for KeyId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|octet| write!(f, "{octet:02x}"))
    }
}

impl std::fmt::Debug for KeyId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl serde::Serialize for KeyId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The keys of the next AS and the least strength, as a hop signs them.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Leaf {
    octets: Vec<u8>,
}

/// Why a leaf cannot be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LeafError {
    /// Too many keys.
    #[error("a leaf lists at most {MAX_LEAF_KEYS} keys, not {0}")]
    TooManyKeys(usize),
    /// More than two keys of one suite, or one twice.
    #[error("a leaf lists at most two different keys of suite {0}")]
    OfSuite(u8),
    /// Not a multiple of 16 bits up to 240.
    #[error("a least strength of {0} bits cannot be encoded: only multiples of 16 up to 240")]
    Strength(u16),
}

impl Leaf {
    /// For a neighbour that signs with one of `keys`, at most two for each suite (an AS that changes keys has both for a while) and
    /// none weaker than `least_strength` bits (a multiple of 16).
    /// `granted` says that the issuer made the pairs and holds the private halves too (the paper's way).
    pub fn new(keys: &[LeafKey], least_strength: u16, granted: bool) -> Result<Self, LeafError> {
        if keys.len() > MAX_LEAF_KEYS {
            return Err(LeafError::TooManyKeys(keys.len()));
        }
        let units = least_strength / STRENGTH_UNIT;
        if !least_strength.is_multiple_of(STRENGTH_UNIT) || units > 15 {
            return Err(LeafError::Strength(least_strength));
        }
        let mut keys = keys.to_vec();
        keys.sort_unstable();
        let twice = keys.windows(2).find(|pair| pair[0] == pair[1]);
        let third = keys.windows(3).find(|three| three[0].suite == three[2].suite);
        if let Some(keys) = twice.or(third) {
            return Err(LeafError::OfSuite(keys[0].suite));
        }
        // Four keys at most fit three bits; units fit four.
        let head = (keys.len() as u8) << 5 | u8::from(granted) << 4 | units as u8;
        let mut octets = Vec::with_capacity(HEAD_LEN + keys.len() * ENTRY_LEN);
        octets.push(head);
        octets.extend((!keys.is_empty()).then_some(0));
        for key in keys {
            octets.push(key.suite);
            octets.extend_from_slice(&key.key);
        }
        Ok(Self { octets })
    }

    /// For a neighbour that does not attest: its name and no key.
    #[must_use]
    pub fn keyless() -> Self {
        Self { octets: vec![0] }
    }

    /// The leaf with the requirement that every hop from the neighbour's on is signed with a post-quantum suite. A leaf without
    /// keys requires nothing.
    #[must_use]
    pub fn requiring_post_quantum(mut self) -> Self {
        if let Some(flags) = self.octets.get_mut(1) {
            *flags |= POST_QUANTUM;
        }
        self
    }

    /// The leaf, borrowed.
    #[must_use]
    pub fn view(&self) -> LeafView<'_> {
        LeafView { octets: &self.octets }
    }
}

/// A leaf as it stands in an attribute; its octets are canonical.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LeafView<'a> {
    octets: &'a [u8],
}

impl<'a> LeafView<'a> {
    /// Reads a leaf and hands back the rest; `None` if it is cut short or not canonical.
    #[must_use]
    pub fn decode(octets: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let count = usize::from(octets.first()? >> 5);
        let head = if count > 0 { HEAD_LEN } else { 1 };
        let (leaf, rest) = octets.split_at_checked(head + count * ENTRY_LEN)?;
        // Without keys all other bits are zero; keys ascend, and at most two are of one suite.
        let canonical = match count {
            0 => leaf[0] == 0,
            1..=MAX_LEAF_KEYS => {
                let keys = leaf[HEAD_LEN..].as_chunks::<ENTRY_LEN>().0;
                let is_third = |three: &[[u8; ENTRY_LEN]]| three[0][0] == three[2][0];
                leaf[1] <= POST_QUANTUM && keys.is_sorted_by(|a, b| a < b) && !keys.windows(3).any(is_third)
            }
            _ => false,
        };
        canonical.then_some((Self { octets: leaf }, rest))
    }

    /// The canonical encoding.
    #[must_use]
    pub fn octets(self) -> &'a [u8] {
        self.octets
    }

    /// Whether the next AS has no key: it does not attest.
    #[must_use]
    pub fn is_keyless(self) -> bool {
        self.octets.len() == 1
    }

    /// Whether the issuer made the pairs.
    #[must_use]
    pub fn is_granted(self) -> bool {
        self.octets[0] & 0x10 != 0
    }

    /// Bits of strength below which a signature of the next AS is a downgrade.
    #[must_use]
    pub fn least_strength(self) -> u16 {
        u16::from(self.octets[0] & 0x0f) * STRENGTH_UNIT
    }

    /// Whether every hop from the next AS's on must be signed with a post-quantum suite.
    #[must_use]
    pub fn requires_post_quantum(self) -> bool {
        self.octets.get(1).is_some_and(|flags| flags & POST_QUANTUM != 0)
    }

    /// The first or second key of a suite.
    #[must_use]
    pub fn key(self, suite: u8, second: bool) -> Option<&'a [u8; LEAF_KEY_LEN]> {
        let mut of_suite = self.keys().filter(|(listed, _)| *listed == suite).map(|(_, key)| key);
        of_suite.nth(usize::from(second))
    }

    /// The keys with their suites' numbers.
    pub fn keys(self) -> impl Iterator<Item = (u8, &'a [u8; LEAF_KEY_LEN])> {
        self.octets
            .get(HEAD_LEN..)
            .unwrap_or_default()
            .chunks_exact(ENTRY_LEN)
            .filter_map(|entry| Some((entry[0], entry[1..].try_into().ok()?)))
    }

    /// The leaf, owned.
    #[must_use]
    pub fn to_leaf(self) -> Leaf {
        Leaf { octets: self.octets.to_vec() }
    }

    /// What stands for a neighbour in what a hop signs.
    #[must_use]
    pub fn commitment(self, next: Asn) -> [u8; 32] {
        hash("wayleave/attestation/neighbour/v2", &[&next.0.to_be_bytes(), self.octets])
    }

    /// Its hash in a directory.
    fn hash(self, next: Asn) -> [u8; 32] {
        hash("wayleave/attestation/slot/v2", &[&next.0.to_be_bytes(), self.octets])
    }

    /// The root of the directory in which this leaf is in slot `index` beside `siblings`, each 32 bytes, the lowest first.
    #[must_use]
    pub fn root(self, next: Asn, index: u16, siblings: &[u8]) -> [u8; 32] {
        let mut node = self.hash(next);
        for (level, sibling) in siblings.chunks_exact(32).enumerate() {
            node = if index >> level & 1 == 0 { parent(&node, sibling) } else { parent(sibling, &node) };
        }
        node
    }
}

fn parent(left: &[u8], right: &[u8]) -> [u8; 32] {
    hash("wayleave/attestation/directory-node/v2", &[left, right])
}

/// Why a directory's tree cannot be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TreeError {
    /// More slots than the format has room for.
    #[error("a directory has at most {most} slots, not {slots}", most = 1 << MAX_DEPTH)]
    Slots {
        /// Slots given.
        slots: usize,
    },
    /// An AS is listed twice.
    #[error("{0} is listed twice")]
    Twice(Asn),
}

/// The tree over all slots of an exchange's directory, in its order, whether a route is exported to them or not: each receiver
/// makes the same tree from the directory, so that no opening travels and exports do not show.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tree {
    depth: u8,
    /// Level by level, the leaves first.
    nodes: Vec<[u8; 32]>,
    /// By AS number: position and leaf.
    slots: Vec<Slot>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Slot {
    asn: Asn,
    index: u16,
    leaf: Leaf,
}

/// A slot's way from its leaf to the root.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Opening {
    pub leaf: Leaf,
    /// The position of the leaf.
    pub index: u16,
    /// The siblings of the nodes from the leaf to the root, the lowest first.
    pub siblings: Vec<u8>,
}

impl Tree {
    /// The tree over these slots, each an AS and its leaf.
    pub fn directory(slots: &[(Asn, Leaf)]) -> Result<Self, TreeError> {
        let depth = slots.len().max(2).next_power_of_two().trailing_zeros();
        // Sixteen levels at most.
        let depth = u8::try_from(depth).unwrap_or(u8::MAX);
        if depth > MAX_DEPTH {
            return Err(TreeError::Slots { slots: slots.len() });
        }
        let empty = hash("wayleave/attestation/empty-slot/v2", &[]);
        let mut nodes: Vec<[u8; 32]> = slots.iter().map(|(asn, leaf)| leaf.view().hash(*asn)).collect();
        nodes.resize(1 << depth, empty);
        // At most 65,536 slots.
        let slots = slots.iter().enumerate().map(|(index, (asn, leaf))| Slot {
            asn: *asn,
            index: index as u16,
            leaf: leaf.clone(),
        });
        let mut slots: Vec<Slot> = slots.collect();
        slots.sort_unstable_by_key(|slot| slot.asn);
        if let Some(pair) = slots.windows(2).find(|pair| pair[0].asn == pair[1].asn) {
            return Err(TreeError::Twice(pair[0].asn));
        }
        let mut level = 0;
        while nodes.len() < (2 << depth) - 1 {
            let end = nodes.len();
            for left in (level..end).step_by(2) {
                nodes.push(parent(&nodes[left], &nodes[left + 1]));
            }
            level = end;
        }
        Ok(Self { depth, nodes, slots })
    }

    /// What is signed.
    #[must_use]
    pub fn root(&self) -> [u8; 32] {
        // `directory` pushes the root last.
        self.nodes[self.nodes.len() - 1]
    }

    /// The ASes of the slots, by number.
    pub fn asns(&self) -> impl Iterator<Item = Asn> {
        self.slots.iter().map(|slot| slot.asn)
    }

    /// The leaf of `asn`.
    #[must_use]
    pub fn leaf(&self, asn: Asn) -> Option<LeafView<'_>> {
        self.slot(asn).map(|slot| slot.leaf.view())
    }

    fn slot(&self, asn: Asn) -> Option<&Slot> {
        let slot = self.slots.binary_search_by_key(&asn, |slot| slot.asn).ok()?;
        Some(&self.slots[slot])
    }

    /// The opening of `asn`'s leaf.
    #[must_use]
    pub fn opening(&self, asn: Asn) -> Option<Opening> {
        let slot = self.slot(asn)?;
        let mut siblings = Vec::with_capacity(usize::from(self.depth) * 32);
        let (mut base, mut position) = (0, usize::from(slot.index));
        for level in 0..self.depth {
            siblings.extend_from_slice(&self.nodes[base + (position ^ 1)]);
            base += 1 << (self.depth - level);
            position >>= 1;
        }
        Some(Opening { leaf: slot.leaf.clone(), index: slot.index, siblings })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn neighbours(count: u32) -> Vec<(Asn, Leaf)> {
        let leaf = |i: u32| Leaf::new(&[LeafKey { suite: 1, key: [i as u8; 32] }], 128, false).expect("a leaf");
        (1..=count).map(|i| (Asn(i), leaf(i))).collect()
    }

    #[test]
    fn every_opening_leads_to_the_root() {
        let tree = Tree::directory(&neighbours(37)).expect("a tree");
        for asn in tree.asns() {
            let opening = tree.opening(asn).expect("listed");
            let root = |asn| opening.leaf.view().root(asn, opening.index, &opening.siblings);
            assert_eq!(root(asn), tree.root());
            assert_ne!(root(Asn(asn.0 + 1)), tree.root());
        }
        assert_eq!(tree.opening(Asn(99)), None);
    }

    #[test]
    fn leaves_that_are_not_canonical_are_refused() {
        assert!(LeafView::decode(&[]).is_none());
        assert!(LeafView::decode(&[0x08]).is_none(), "a strength without keys");
        assert!(LeafView::decode(&[0xa0; 200]).is_none(), "five keys");
        let leaf = neighbours(1)[0].1.clone();
        let mut twice = leaf.view().octets().to_vec();
        twice[0] = twice[0] & 0x1f | 2 << 5;
        twice.extend_from_slice(&leaf.view().octets()[HEAD_LEN..]);
        assert!(LeafView::decode(&twice).is_none(), "one key twice");
    }
}
