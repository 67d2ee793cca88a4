//! In which buckets something changed with the latest batches: whoever has everything through one of them has all but these as it is to be.
//!
//! Both parties keep the same: it begins when they agree on what they store, and follows from the batches since.

use std::collections::VecDeque;

use crate::digests::{BucketSet, Through};
use crate::frames::Seq;

/// Changes that are kept, of two octets each: our own limit, of some minutes at a thousand changes of routes a second.
const MAX_CHANGES: usize = 1 << 20;

/// The buckets in which one batch changed something.
struct BatchChanges {
    seq: Seq,
    objects: Vec<u16>,
    instances: Vec<u16>,
}

impl BatchChanges {
    fn len(&self) -> usize {
        self.objects.len() + self.instances.len() + 1
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

    /// Notes the buckets of objects, and of instances, in which a batch changed something, or listed it again.
    pub(super) fn note(&mut self, seq: Seq, changed: [Vec<u16>; 2]) {
        let [objects, instances] = changed.map(|mut buckets| {
            buckets.sort_unstable();
            buckets.dedup();
            buckets
        });
        let batch = BatchChanges { seq, objects, instances };
        self.changes += batch.len();
        self.batches.push_back(batch);
        while self.changes > MAX_CHANGES
            && let Some(oldest) = self.batches.pop_front()
        {
            self.changes -= oldest.len();
            self.after = oldest.seq;
        }
    }

    /// Whether all that changed after the batch `seq` is here.
    pub(super) fn covers(&self, seq: Seq) -> bool {
        seq >= self.after
    }

    /// The buckets of objects and of instances that changed for whom has everything through some batches.
    pub(super) fn after(&self, through: Through) -> [BucketSet; 2] {
        let after = |seq: Seq| self.batches.range(self.batches.partition_point(|batch| batch.seq <= seq)..);
        let [mut objects, mut instances] = [BucketSet::Nothing, BucketSet::Nothing];
        objects.extend(after(through.objects).flat_map(|batch| batch.objects.iter().copied()));
        instances.extend(after(through.results).flat_map(|batch| batch.instances.iter().copied()));
        [objects, instances]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digests::BUCKETS;

    #[test]
    fn what_is_forgotten_is_not_covered() {
        let mut recent = RecentChanges::default();
        recent.begin(100);
        let all: Vec<u16> = (0..BUCKETS).collect();
        recent.note(101, [vec![7, 3, 7], vec![9]]);
        recent.note(102, [vec![4], Vec::new()]);
        let of = |buckets: &[u16]| {
            let mut set = BucketSet::Nothing;
            set.extend(buckets.iter().copied());
            set
        };
        assert!(!recent.covers(99) && recent.covers(100));
        assert_eq!(recent.after(Through { objects: 101, results: 100 }), [of(&[4]), of(&[9])]);
        assert_eq!(recent.after(Through { objects: 100, results: 100 }), [of(&[3, 4, 7]), of(&[9])]);
        (103..=400).for_each(|seq| recent.note(seq, [all.clone(), Vec::new()]));
        assert!(!recent.covers(101) && recent.covers(400) && recent.changes <= MAX_CHANGES);
        assert_eq!(recent.after(Through { objects: 400, results: 400 }), [BucketSet::Nothing, BucketSet::Nothing]);
    }
}
