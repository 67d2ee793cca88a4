//! Leaves: the next AS with its keys and the least strength, as a hop signs them, alone or under a Merkle tree.
//!
//! The paper gives all neighbours one key; we name each neighbour and its own keys, so that one cannot sign as another.

use wayleave_core::Asn;
use wayleave_crypto::hash::hash;
use wayleave_crypto::secret::Seed;

use crate::SuiteId;

/// Keys that one leaf lists, at most.
pub const MAX_LEAF_KEYS: usize = 4;
/// Bytes of a key in a leaf: the key itself where it has this length, else its hash.
pub const LEAF_KEY_LEN: usize = 32;
/// Bytes of one key with its suite's number.
const ENTRY_LEN: usize = 1 + LEAF_KEY_LEN;
/// Levels of a tree, at most: 65,536 neighbours.
pub const MAX_DEPTH: u8 = 16;
/// Bytes that hide a leaf of a private tree from whoever sees its neighbour's opening.
pub const SALT_LEN: usize = 16;
/// Bits of strength that one unit of the encoding stands for.
const STRENGTH_UNIT: u16 = 16;

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
    /// Two keys of one suite.
    #[error("a leaf lists two keys of suite {0}")]
    Twice(u8),
    /// Not a multiple of 16 bits up to 240.
    #[error("a least strength of {0} bits cannot be encoded: only multiples of 16 up to 240")]
    Strength(u16),
}

impl Leaf {
    /// For a neighbour that signs with one of `keys`, at most one for each suite and none weaker than `least_strength` bits (a multiple of 16).
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
        if let Some(pair) = keys.windows(2).find(|pair| pair[0].suite == pair[1].suite) {
            return Err(LeafError::Twice(pair[0].suite));
        }
        // Four keys at most fit three bits; units fit four.
        let head = (keys.len() as u8) << 5 | u8::from(granted) << 4 | units as u8;
        let mut octets = Vec::with_capacity(1 + keys.len() * ENTRY_LEN);
        octets.push(head);
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
        let (leaf, rest) = octets.split_at_checked(1 + count * ENTRY_LEN)?;
        // Without keys all other bits are zero; with keys their suites ascend.
        let canonical = match count {
            0 => leaf[0] == 0,
            1..=MAX_LEAF_KEYS => leaf[1..].chunks_exact(ENTRY_LEN).is_sorted_by(|a, b| a[0] < b[0]),
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

    /// The keys with their suites' numbers.
    pub fn keys(self) -> impl Iterator<Item = (u8, &'a [u8; LEAF_KEY_LEN])> {
        self.octets[1..].chunks_exact(ENTRY_LEN).filter_map(|entry| Some((entry[0], entry[1..].try_into().ok()?)))
    }

    /// The leaf, owned.
    #[must_use]
    pub fn to_leaf(self) -> Leaf {
        Leaf { octets: self.octets.to_vec() }
    }

    /// What a hop signs that has this one neighbour in its leaf, and no tree.
    #[must_use]
    pub fn direct_commitment(self, next: Asn) -> [u8; 32] {
        hash("wayleave/attestation/direct/v1", &[&next.0.to_be_bytes(), self.octets])
    }

    /// Its hash in a tree.
    #[must_use]
    fn hash(self, next: Asn, salt: &[u8; SALT_LEN]) -> [u8; 32] {
        hash("wayleave/attestation/leaf/v1", &[salt, &next.0.to_be_bytes(), self.octets])
    }

    /// The root of the tree in which this leaf stands at `index` beside `siblings`, each 32 bytes, the lowest first.
    #[must_use]
    pub fn root(self, next: Asn, salt: &[u8; SALT_LEN], index: u16, siblings: &[u8]) -> [u8; 32] {
        let mut node = self.hash(next, salt);
        for (level, sibling) in siblings.chunks_exact(32).enumerate() {
            node = if index >> level & 1 == 0 { parent(&node, sibling) } else { parent(sibling, &node) };
        }
        node
    }
}

fn parent(left: &[u8], right: &[u8]) -> [u8; 32] {
    hash("wayleave/attestation/node/v1", &[left, right])
}

/// Why a tree cannot be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TreeError {
    /// More neighbours than leaves.
    #[error("{neighbours} neighbours do not fit a tree of {places} leaves")]
    Full {
        /// Neighbours given.
        neighbours: usize,
        /// Leaves of the tree.
        places: usize,
    },
    /// No level, or more than sixteen.
    #[error("a tree has 1 to {MAX_DEPTH} levels, not {0}")]
    Depth(u8),
    /// An AS is listed twice.
    #[error("{0} is listed twice")]
    Twice(Asn),
}

/// All neighbours of an AS under one root, which one signature serves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tree {
    depth: u8,
    /// Level by level, the leaves first.
    nodes: Vec<[u8; 32]>,
    /// By AS number: position and leaf.
    slots: Vec<Slot>,
    is_directory: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Slot {
    asn: Asn,
    place: u16,
    salt: [u8; SALT_LEN],
    leaf: Leaf,
}

/// A neighbour's way from its leaf to the root.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Opening {
    pub leaf: Leaf,
    /// The position of the leaf.
    pub index: u16,
    /// Hides the leaf from whoever sees another opening.
    pub salt: [u8; SALT_LEN],
    /// The siblings of the nodes from the leaf to the root, the lowest first.
    pub siblings: Vec<u8>,
}

impl Tree {
    /// A tree of `2^depth` leaves that shows a neighbour nothing of the others: positions, salts and padding follow from
    /// `seed`. Keep `depth` constant for the AS, so that the number of neighbours does not show.
    pub fn private(seed: &Seed, depth: u8, neighbours: &[(Asn, Leaf)]) -> Result<Self, TreeError> {
        let places = places(depth)?;
        if neighbours.len() > places {
            return Err(TreeError::Full { neighbours: neighbours.len(), places });
        }
        let draw = |use_: &str, number: u32| hash(use_, &[seed.expose(), &number.to_be_bytes()]);
        let mut taken = vec![false; places];
        let mut slots = Vec::with_capacity(neighbours.len());
        for (asn, leaf) in sorted(neighbours)? {
            let drawn = draw("wayleave/attestation/place/v1", asn.0);
            let start =
                u64::from_be_bytes([drawn[0], drawn[1], drawn[2], drawn[3], drawn[4], drawn[5], drawn[6], drawn[7]]);
            let start = (start % places as u64) as usize;
            // There is a free place: neighbours are at most as many as places.
            let place = (0..places).map(|step| (start + step) % places).find(|&place| !taken[place]).unwrap_or(start);
            taken[place] = true;
            let mut salt = [0; SALT_LEN];
            salt.copy_from_slice(&draw("wayleave/attestation/salt/v1", asn.0)[..SALT_LEN]);
            slots.push(Slot { asn, place: place as u16, salt, leaf });
        }
        let padding = |place: usize| draw("wayleave/attestation/padding/v1", place as u32);
        Ok(Self::build(depth, slots, padding, false))
    }

    /// The tree over all slots of an exchange's directory, in its order, whether the route is exported to them or not:
    /// each receiver makes the same tree from the directory, so that no opening travels and exports do not show.
    pub fn directory(slots: &[(Asn, Leaf)]) -> Result<Self, TreeError> {
        let depth = slots.len().max(2).next_power_of_two().trailing_zeros();
        let depth = u8::try_from(depth).unwrap_or(u8::MAX);
        places(depth)?;
        sorted(slots)?;
        let slots = slots.iter().enumerate().map(|(place, (asn, leaf))| Slot {
            asn: *asn,
            place: place as u16,
            salt: [0; SALT_LEN],
            leaf: leaf.clone(),
        });
        let mut slots: Vec<Slot> = slots.collect();
        slots.sort_unstable_by_key(|slot| slot.asn);
        let empty = hash("wayleave/attestation/empty-slot/v1", &[]);
        Ok(Self::build(depth, slots, |_| empty, true))
    }

    fn build(depth: u8, slots: Vec<Slot>, padding: impl Fn(usize) -> [u8; 32], is_directory: bool) -> Self {
        let places = 1usize << depth;
        let mut nodes: Vec<[u8; 32]> = (0..places).map(padding).collect();
        for slot in &slots {
            nodes[usize::from(slot.place)] = slot.leaf.view().hash(slot.asn, &slot.salt);
        }
        let mut level = 0;
        while nodes.len() < 2 * places - 1 {
            let end = nodes.len();
            for left in (level..end).step_by(2) {
                nodes.push(parent(&nodes[left], &nodes[left + 1]));
            }
            level = end;
        }
        Self { depth, nodes, slots, is_directory }
    }

    /// What is signed.
    #[must_use]
    pub fn root(&self) -> [u8; 32] {
        // `build` pushes the root last.
        self.nodes[self.nodes.len() - 1]
    }

    /// Whether receivers know every leaf.
    #[must_use]
    pub fn is_directory(&self) -> bool {
        self.is_directory
    }

    /// The neighbours, by AS number.
    pub fn neighbours(&self) -> impl Iterator<Item = Asn> {
        self.slots.iter().map(|slot| slot.asn)
    }

    /// Octets of the longest opening of a leaf in it, the leaf included.
    #[must_use]
    pub fn longest_opening(&self) -> usize {
        let longest = self.slots.iter().map(|slot| slot.leaf.view().octets().len()).max().unwrap_or(0);
        longest + SALT_LEN + 1 + 2 + usize::from(self.depth) * 32
    }

    /// The leaf of `asn`.
    #[must_use]
    pub fn leaf(&self, asn: Asn) -> Option<LeafView<'_>> {
        let slot = self.slots.binary_search_by_key(&asn, |slot| slot.asn).ok()?;
        Some(self.slots[slot].leaf.view())
    }

    /// The opening of `asn`'s leaf.
    #[must_use]
    pub fn opening(&self, asn: Asn) -> Option<Opening> {
        let slot = &self.slots[self.slots.binary_search_by_key(&asn, |slot| slot.asn).ok()?];
        let mut siblings = Vec::with_capacity(usize::from(self.depth) * 32);
        let (mut base, mut place) = (0, usize::from(slot.place));
        for level in 0..self.depth {
            siblings.extend_from_slice(&self.nodes[base + (place ^ 1)]);
            base += 1 << (self.depth - level);
            place >>= 1;
        }
        Some(Opening { leaf: slot.leaf.clone(), index: slot.place, salt: slot.salt, siblings })
    }
}

fn places(depth: u8) -> Result<usize, TreeError> {
    if (1..=MAX_DEPTH).contains(&depth) { Ok(1 << depth) } else { Err(TreeError::Depth(depth)) }
}

fn sorted(neighbours: &[(Asn, Leaf)]) -> Result<Vec<(Asn, Leaf)>, TreeError> {
    let mut sorted = neighbours.to_vec();
    sorted.sort_unstable_by_key(|(asn, _)| *asn);
    match sorted.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        Some(pair) => Err(TreeError::Twice(pair[0].0)),
        None => Ok(sorted),
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
        let private = Tree::private(&Seed::new([1; 32]), 6, &neighbours(40)).expect("a tree");
        let directory = Tree::directory(&neighbours(37)).expect("a tree");
        for tree in [private, directory] {
            for asn in tree.neighbours() {
                let opening = tree.opening(asn).expect("listed");
                let root = |asn| opening.leaf.view().root(asn, &opening.salt, opening.index, &opening.siblings);
                assert_eq!(root(asn), tree.root());
                assert_ne!(root(Asn(asn.0 + 1)), tree.root());
            }
            assert_eq!(tree.opening(Asn(99)), None);
        }
    }

    #[test]
    fn a_tree_has_its_size_whatever_the_number_of_neighbours() {
        let seed = Seed::new([2; 32]);
        let size = |count| {
            let tree = Tree::private(&seed, 8, &neighbours(count)).expect("a tree");
            tree.opening(Asn(1)).map(|opening| opening.siblings.len())
        };
        assert_eq!(size(1), size(200));
    }

    #[test]
    fn leaves_that_are_not_canonical_are_refused() {
        assert!(LeafView::decode(&[]).is_none());
        assert!(LeafView::decode(&[0x08]).is_none(), "a strength without keys");
        assert!(LeafView::decode(&[0xa0; 200]).is_none(), "five keys");
        let leaf = neighbours(1)[0].1.clone();
        let mut twice = leaf.view().octets().to_vec();
        twice[0] = twice[0] & 0x1f | 2 << 5;
        twice.extend_from_slice(&leaf.view().octets()[1..]);
        assert!(LeafView::decode(&twice).is_none(), "one key twice");
    }
}
