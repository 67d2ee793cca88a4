//! What changed with the latest batches, so that a member that says through which batch it has everything is sent what came after
//! it, and nothing else: what changes while the two compare digests would otherwise look as if it differed, with all that shares
//! its buckets.
//!
//! Both parties keep the same: it begins when they agree on what they store, and follows from the batches since.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use wayleave_core::Prefix;

use crate::digests::Through;
use crate::frames::{Candidate, Seq};
use crate::object::Handle;
use crate::object_table::Effects;

/// Changes that are kept, of some 40 bytes each: our own limit, of a minute at a thousand changes of routes a second.
const MAX_CHANGES: usize = 1 << 18;
/// Dead candidates and objects that one tick may name to a member that was away: our own limit, of about a megabyte.
const MAX_DEAD: usize = 1 << 14;

/// What one batch changed.
struct BatchChanges {
    seq: Seq,
    added: Vec<(u32, u64)>,
    dead: Vec<Candidate>,
    gone: Vec<Handle>,
    /// Prefixes that were listed to all who are up to date.
    listed: Vec<Prefix>,
}

impl BatchChanges {
    fn len(&self) -> usize {
        self.added.len() + self.dead.len() + self.gone.len() + self.listed.len() + 1
    }
}

/// The changes of the latest batches.
#[derive(Default)]
pub(super) struct RecentChanges {
    batches: VecDeque<BatchChanges>,
    changes: usize,
    /// The changes of all later batches are here.
    after: Seq,
    /// When the parties agreed on what they store.
    agreed: Seq,
    /// The last batch that opened objects to a slot that is newer than these.
    opened: BTreeMap<u32, Seq>,
}

/// What changed after a batch.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(super) struct Since {
    /// Objects that were new, ascending, also those that are gone again.
    pub added: Vec<(u32, u64)>,
    /// Prefixes that were listed, in order.
    pub listed: Vec<Prefix>,
}

impl RecentChanges {
    /// The parties agreed on what they store, as of the batch `seq`.
    pub(super) fn begin(&mut self, seq: Seq) {
        *self = Self { after: seq, agreed: seq, ..Self::default() };
    }

    /// The batch as of which the parties agreed.
    pub(super) fn agreed(&self) -> Seq {
        self.agreed
    }

    /// Notes what a batch changed.
    pub(super) fn note(&mut self, seq: Seq, effects: &Effects) {
        for (.., from, to) in &effects.widened {
            self.opened.extend((*from..*to).map(|slot| (slot, seq)));
        }
        let batch = BatchChanges {
            seq,
            added: effects.added.clone(),
            dead: effects.dead.clone(),
            gone: effects.removed.iter().map(|(.., handle)| *handle).collect(),
            listed: effects.touched.union(&effects.relisted).copied().collect(),
        };
        self.changes += batch.len();
        self.batches.push_back(batch);
        while self.changes > MAX_CHANGES
            && let Some(oldest) = self.batches.pop_front()
        {
            self.changes -= oldest.len();
            self.after = oldest.seq;
        }
    }

    fn batches_after(&self, seq: Seq) -> impl Iterator<Item = &BatchChanges> {
        self.batches.range(self.batches.partition_point(|batch| batch.seq <= seq)..)
    }

    /// Whether all that changed for the member in `slot` after the batch `seq` is here, and little enough died to say it at once.
    pub(super) fn covers(&self, slot: u32, seq: Seq) -> bool {
        let opened = self.opened.get(&slot).copied().unwrap_or(0);
        let dead = || self.batches_after(seq).map(|batch| batch.dead.len() + batch.gone.len()).sum::<usize>();
        seq >= self.after && seq >= opened && dead() <= MAX_DEAD
    }

    /// Whether a batch after `seq` changed anything.
    pub(super) fn is_any_after(&self, seq: Seq) -> bool {
        self.batches_after(seq).any(|batch| batch.len() > 1)
    }

    /// What changed for whom has everything through some batches.
    pub(super) fn since(&self, through: Through) -> Since {
        let (objects, lists) = (self.batches_after(through.objects), self.batches_after(through.results));
        let added: BTreeSet<(u32, u64)> = objects.flat_map(|batch| &batch.added).copied().collect();
        let listed: BTreeSet<Prefix> = lists.flat_map(|batch| &batch.listed).copied().collect();
        Since { added: added.into_iter().collect(), listed: listed.into_iter().collect() }
    }

    /// What died after a batch: candidates, and objects.
    pub(super) fn dead_since(&self, seq: Seq) -> (Vec<Candidate>, Vec<Handle>) {
        let dead = self.batches_after(seq).flat_map(|batch| &batch.dead).copied().collect();
        let gone = self.batches_after(seq).flat_map(|batch| &batch.gone).copied().collect();
        (dead, gone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effects(slot: u32, version: u64, dead: usize) -> Effects {
        let dead = vec![(Handle([7; 32]), 0); dead];
        Effects { added: vec![(slot, version)], dead, ..Effects::default() }
    }

    #[test]
    fn what_is_forgotten_is_not_covered() {
        let mut recent = RecentChanges::default();
        recent.begin(100);
        (1..=10).for_each(|n| recent.note(100 + n, &effects(1, n, MAX_CHANGES / 20)));
        assert!(!recent.covers(0, 99) && recent.covers(0, 109) && recent.covers(0, 110));
        assert!(!recent.covers(0, 100), "too much died");
        assert_eq!(recent.since(Through { objects: 108, results: 107 }).added, [(1, 9), (1, 10)]);
        (11..=40).for_each(|n| recent.note(100 + n, &effects(1, n, MAX_CHANGES / 20)));
        assert!(!recent.covers(0, 110) && recent.after > 110 && recent.changes <= MAX_CHANGES);
        assert!(recent.covers(0, 140) && !recent.is_any_after(140));
    }

    #[test]
    fn columns_open_what_no_member_that_was_away_is_told_of_here() {
        let mut recent = RecentChanges::default();
        recent.begin(100);
        recent.note(101, &Effects { widened: vec![(0, 1, 4, 6)], ..Effects::default() });
        assert!(recent.covers(3, 100) && !recent.covers(4, 100) && !recent.covers(5, 100) && recent.covers(5, 101));
    }
}
