//! The member sets of the exchange: the tree over each set's members, for which routes are signed.

use std::collections::BTreeSet;
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
}

/// What a new set changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SetChange {
    /// Nothing: it is not newer than the newest.
    Old,
    /// Its number; members and keys are the same.
    Number,
    /// Its members or keys: routes must be signed again.
    Members,
}

/// The last sets, the newest last.
#[derive(Default)]
pub(super) struct Directories(Vec<Directory>);

impl Directories {
    pub(super) fn newest(&self) -> Option<&Directory> {
        self.0.last()
    }

    pub(super) fn tree(&self, set: u64) -> Option<&Arc<Tree>> {
        self.0.iter().find(|directory| directory.set == set).map(|directory| &directory.tree)
    }

    /// Adds a set, and drops those of which no route is there. `live` are the sets of the routes that are.
    pub(super) fn insert(
        &mut self,
        set: u64,
        digest: [u8; 32],
        neighbours: &[(Asn, Vec<LeafKey>)],
        live: &BTreeSet<u64>,
    ) -> SetChange {
        let newest = self.0.last();
        if newest.is_some_and(|newest| newest.set >= set) {
            return SetChange::Old;
        }
        let same = newest.filter(|newest| newest.digest == digest).map(|newest| Arc::clone(&newest.tree));
        let change = if same.is_some() { SetChange::Number } else { SetChange::Members };
        // The member set bounds members, keys and suites, and names each AS once: always a tree.
        let Some(tree) = same.or_else(|| tree(neighbours).map(Arc::new)) else { return SetChange::Old };
        self.0.push(Directory { set, digest, tree });
        // Routes of the last two sets may still be on their way.
        let recent = self.0.len().saturating_sub(2);
        let mut index = 0;
        self.0.retain(|directory| {
            index += 1;
            index > recent || live.contains(&directory.set)
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
