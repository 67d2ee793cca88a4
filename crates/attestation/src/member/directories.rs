//! The member sets of the exchange: the tree over each set's members, for which routes are signed.
//!
//! A hop stays valid under the set that it was signed for. Sets are named by the digest of their members and keys, so that
//! sets that differ in something else are one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use wayleave_core::Asn;

use crate::leaf::{Leaf, LeafKey, Tree};
use crate::sign::endorse;

/// Bits of strength below which no member may sign after another. Every member makes the same tree, so nothing of its own
/// configuration may enter it.
const LEAST_STRENGTH: u16 = 112;
/// Sets that are kept while routes of them may still be there, at most.
const MAX_SETS: usize = 64;

/// The members under one set.
pub(super) struct Directory {
    set: u64,
    /// Tells its members and keys from another set's.
    pub(super) digest: [u8; 32],
    pub(super) tree: Arc<Tree>,
    leaves: BTreeMap<Asn, Vec<LeafKey>>,
}

/// What a new set changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SetChange {
    /// Nothing: it is not newer than the newest.
    Old,
    /// Its number; members and keys are the same.
    Number,
    /// Members left. What was signed for those that stay and for them still holds for those that stay.
    Left,
    /// New members or other keys: for these no route is signed yet.
    Leaves,
}

/// The last sets, the newest last.
#[derive(Default)]
pub(super) struct Directories(Vec<Directory>);

impl Directories {
    pub(super) fn newest(&self) -> Option<&Directory> {
        self.0.last()
    }

    pub(super) fn tree(&self, digest: &[u8; 32]) -> Option<&Arc<Tree>> {
        self.0.iter().find(|directory| directory.digest == *digest).map(|directory| &directory.tree)
    }

    /// Adds a set, and drops those of which no route is there. `live` are the sets of the routes that are.
    pub(super) fn insert(
        &mut self,
        set: u64,
        digest: [u8; 32],
        neighbours: &[(Asn, Vec<LeafKey>)],
        live: &BTreeSet<[u8; 32]>,
    ) -> SetChange {
        if let Some(newest) = self.0.last_mut() {
            if newest.set >= set {
                return SetChange::Old;
            }
            if newest.digest == digest {
                newest.set = set;
                return SetChange::Number;
            }
        }
        let leaves: BTreeMap<Asn, Vec<LeafKey>> = neighbours.iter().cloned().collect();
        let had = |asn: &Asn, keys: &Vec<LeafKey>| self.0.last().is_some_and(|last| last.leaves.get(asn) == Some(keys));
        let change = if leaves.iter().all(|(asn, keys)| had(asn, keys)) { SetChange::Left } else { SetChange::Leaves };
        // The member set bounds members, keys and suites, and names each AS once: always a tree.
        let Some(tree) = tree(neighbours).map(Arc::new) else { return SetChange::Old };
        self.0.retain(|directory| directory.digest != digest);
        self.0.push(Directory { set, digest, tree, leaves });
        // Routes of the last two sets may still be on their way.
        let recent = self.0.len().saturating_sub(2);
        let mut index = 0;
        self.0.retain(|directory| {
            index += 1;
            index > recent || live.contains(&directory.digest)
        });
        if self.0.len() > MAX_SETS {
            self.0.remove(0);
        }
        change
    }
}

/// The tree of all members: those without keys, or with none that may be used, stand in it without a key.
fn tree(neighbours: &[(Asn, Vec<LeafKey>)]) -> Option<Tree> {
    let leaf = |keys: &[LeafKey]| endorse(keys, LEAST_STRENGTH).unwrap_or_else(|_| Leaf::keyless());
    let slots: Vec<(Asn, Leaf)> = neighbours.iter().map(|(asn, keys)| (*asn, leaf(keys))).collect();
    Tree::directory(&slots).ok()
}
