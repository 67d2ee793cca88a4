//! The instances that the parties listed, also those of which this member may open nothing: with the objects that came, all that
//! it says that it holds when it connects again.
//!
//! What it says follows from what came and what did not (objects, lists, results), never from what could be opened, from a ranking
//! or from a result.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crate::digests::{self, BucketDigests, InstanceHash, Listed};
use crate::frames::{Candidate, Instance, Seq};

/// An instance as it was listed last.
struct ListedInstance {
    candidates: Instance,
    /// Whether each of the candidates had come by then.
    is_whole: bool,
    /// The batch whose results are awaited, or were.
    seq: Seq,
    /// The epoch in which Select-Best chose, once the result is there.
    evaluated: Option<u64>,
}

/// All instances by their hashes, and by their candidates: a candidate is in one at most.
#[derive(Default)]
pub(super) struct Instances {
    by_hash: HashMap<InstanceHash, ListedInstance>,
    of_candidate: HashMap<Candidate, InstanceHash>,
}

impl Instances {
    /// The parties list an instance; it replaces those that have a candidate of it. `ranks`: whether Select-Best chooses.
    pub(super) fn list(&mut self, seq: Seq, candidates: &Instance, (is_whole, ranks): (bool, bool)) -> InstanceHash {
        let hash = digests::instance(candidates);
        let before: BTreeSet<InstanceHash> =
            candidates.iter().filter_map(|candidate| self.of_candidate.get(candidate)).copied().collect();
        before.iter().filter(|other| **other != hash).for_each(|other| self.remove(other));
        let known = self.by_hash.get(&hash);
        // What was chosen among candidates of which some had not come is not chosen among all of them.
        let evaluated = known.filter(|known| known.is_whole && !ranks).and_then(|known| known.evaluated);
        self.of_candidate.extend(candidates.iter().map(|candidate| (*candidate, hash)));
        let listed = ListedInstance { candidates: Arc::clone(candidates), is_whole, seq, evaluated };
        self.by_hash.insert(hash, listed);
        hash
    }

    /// A candidate is dead: its instance is no more.
    pub(super) fn died(&mut self, candidate: &Candidate) {
        if let Some(hash) = self.of_candidate.get(candidate).copied() {
            self.remove(&hash);
        }
    }

    pub(super) fn remove(&mut self, hash: &InstanceHash) {
        let Some(listed) = self.by_hash.remove(hash) else { return };
        listed.candidates.iter().for_each(|candidate| {
            self.of_candidate.remove(candidate);
        });
    }

    /// Whether these are the candidates of an instance.
    pub(super) fn has(&self, candidates: &Instance) -> bool {
        let hash = candidates.first().and_then(|candidate| self.of_candidate.get(candidate));
        hash.and_then(|hash| self.by_hash.get(hash)).is_some_and(|listed| listed.candidates == *candidates)
    }

    /// The result of a batch is there, whatever it is.
    pub(super) fn evaluated(&mut self, hash: &InstanceHash, seq: Seq, epoch: u64) {
        if let Some(listed) = self.by_hash.get_mut(hash).filter(|listed| listed.seq == seq) {
            listed.evaluated = Some(epoch);
        }
    }

    /// Results so far, and those on their way, follow from rules that count no more.
    pub(super) fn forget_results(&mut self) {
        for listed in self.by_hash.values_mut() {
            (listed.seq, listed.evaluated) = (0, None);
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Those in some buckets.
    pub(super) fn in_buckets(&self, buckets: &Listed) -> BTreeSet<InstanceHash> {
        self.by_hash.keys().filter(|hash| buckets.has(digests::bucket_of(hash))).copied().collect()
    }

    /// Digests of all.
    pub(super) fn all(&self) -> BucketDigests {
        in_buckets(self.by_hash.keys().copied().collect())
    }

    /// Digests of all, such that the buckets differ from the parties' in which one is to be listed again: Select-Best has
    /// something to choose, and no result came in this epoch.
    pub(super) fn done(&self, select_best: bool, epoch: u64) -> BucketDigests {
        let is_done = |listed: &ListedInstance| {
            listed.is_whole && (!select_best || listed.candidates.len() < 2 || listed.evaluated == Some(epoch))
        };
        let mut all: Vec<(InstanceHash, bool)> =
            self.by_hash.iter().map(|(hash, listed)| (*hash, is_done(listed))).collect();
        all.sort_unstable();
        digests::by_bucket(
            &all,
            |(hash, _)| hash,
            |bucket| {
                // The opposite of a hash is none that the parties have: and it is there, also where they have nothing any more.
                let content: Vec<InstanceHash> = bucket
                    .iter()
                    .map(|(hash, is_done)| if *is_done { *hash } else { hash.map(|octet| !octet) })
                    .collect();
                digests::of_instances(content.iter())
            },
        )
    }

    /// Whether all candidates of an instance have come since it was listed without some of them.
    pub(super) fn is_overtaken(&self, has: impl Fn(&Candidate) -> bool) -> bool {
        self.by_hash.values().any(|listed| !listed.is_whole && listed.candidates.iter().all(&has))
    }
}

fn in_buckets(mut hashes: Vec<InstanceHash>) -> BucketDigests {
    hashes.sort_unstable();
    digests::by_bucket(&hashes, |hash| hash, |bucket| digests::of_instances(bucket.iter()))
}
