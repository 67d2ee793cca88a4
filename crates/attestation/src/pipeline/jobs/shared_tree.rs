//! One signature for all neighbours of a large AS: the tree over their leaves, and what has been signed for its root.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use wayleave_core::Asn;
use wayleave_crypto::secret::Seed;

use crate::leaf::{Leaf, Tree};
use crate::sign::SignedHop;

/// Signed hops that are kept for the other neighbours, at most. Beyond, all are dropped: they are only a cache.
const MAX_SHARED_HOPS: usize = 65_536;

/// The neighbours that share signatures.
pub(crate) struct NeighbourTree {
    seed: Seed,
    /// The same however many neighbours there are, as long as they fit.
    depth: u8,
    /// The last leaf of each, also while its session is down, so that the tree stays the same.
    leaves: BTreeMap<Asn, Leaf>,
    shared: Option<SharedTree>,
}

/// A tree, and what was signed for its root.
#[derive(Clone)]
pub(crate) struct SharedTree {
    pub(crate) tree: Arc<Tree>,
    hops: Arc<Mutex<HashMap<[u8; 32], SharedHop>>>,
}

/// A hop, and when it is to be signed again, in seconds since 1970.
#[derive(Clone)]
pub(crate) struct SharedHop {
    pub(crate) hop: SignedHop,
    pub(crate) renew: u64,
}

impl NeighbourTree {
    /// For as many as `neighbours`; positions and padding follow from `seed`.
    pub(crate) fn new(seed: Seed, neighbours: usize) -> Self {
        let depth = match neighbours {
            0..=256 => 8,
            257..=4096 => 12,
            _ => 16,
        };
        Self { seed, depth, leaves: BTreeMap::new(), shared: None }
    }

    /// Sets the leaf that names a neighbour and its keys. A change of one makes another tree, and signatures over the last
    /// one are not used again.
    pub(crate) fn set_leaf(&mut self, asn: Asn, leaf: &Leaf) {
        if self.leaves.get(&asn) != Some(leaf) {
            self.leaves.insert(asn, leaf.clone());
            self.shared = None;
        }
    }

    /// The tree that has this leaf; `None` if it has none: another session with the same AS
    /// brought other keys.
    pub(crate) fn shared(&mut self, asn: Asn, leaf: &Leaf) -> Option<SharedTree> {
        if self.leaves.get(&asn) != Some(leaf) {
            return None;
        }
        if self.shared.is_none() {
            let leaves: Vec<(Asn, Leaf)> = self.leaves.iter().map(|(asn, leaf)| (*asn, leaf.clone())).collect();
            let tree = Tree::private(&self.seed, self.depth, &leaves).ok()?;
            self.shared = Some(SharedTree { tree: Arc::new(tree), hops: Arc::default() });
        }
        self.shared.clone()
    }

    /// Forgets what was signed, when keys or the time have changed.
    pub(crate) fn forget_signed(&mut self) {
        if let Some(shared) = &mut self.shared {
            shared.hops = Arc::default();
        }
    }
}

impl SharedTree {
    /// What was signed for `key`, if it need not be signed again at `now`.
    pub(crate) fn find(&self, key: &[u8; 32], now: u64) -> Option<SharedHop> {
        let hops = self.hops.lock().unwrap_or_else(PoisonError::into_inner);
        hops.get(key).filter(|hop| hop.renew > now).cloned()
    }

    /// Keeps what was signed for the other neighbours.
    pub(crate) fn keep(&self, key: [u8; 32], hop: SharedHop) {
        let mut hops = self.hops.lock().unwrap_or_else(PoisonError::into_inner);
        if hops.len() >= MAX_SHARED_HOPS {
            hops.clear();
        }
        hops.insert(key, hop);
    }
}

impl std::fmt::Debug for SharedTree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedTree").finish_non_exhaustive()
    }
}
