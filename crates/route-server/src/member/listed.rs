//! The instances that the parties listed, also those of which this member may open nothing: with the objects that came, all that
//! it says that it holds when it connects again.
//!
//! What it says follows from what came and what did not (objects, lists, results), never from what could be opened, from a ranking
//! or from a result.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

use crate::digests::{self, BucketDigests, InstanceHash, Listed};
use crate::frames::{Candidate, Instance, Seq};

/// An instance as it was listed last.
struct ListedInstance {
    hash: InstanceHash,
    candidates: Instance,
    /// Whether each of the candidates had come by then.
    is_whole: bool,
    /// The batch whose results are awaited, or were.
    seq: Seq,
    /// The first batch that may have listed what has no result yet: to others, if this member was sent it later.
    since: Seq,
    /// The epoch in which Select-Best chose, once the result is there.
    evaluated: Option<u64>,
}

impl ListedInstance {
    /// Whether it need not be listed again. `select_best`: whether the member takes part.
    fn is_done(&self, select_best: bool) -> bool {
        self.is_whole && (!select_best || self.candidates.len() < 2 || self.evaluated.is_some())
    }
}

/// All instances by their hashes, and by their candidates: a candidate is in one at most. Most are listed again with one candidate
/// changed, and keep their number then.
#[derive(Default)]
pub(super) struct Instances {
    listed: Vec<Option<ListedInstance>>,
    /// Numbers in `listed` that are free.
    free: Vec<usize>,
    by_hash: HashMap<InstanceHash, usize, Keyed>,
    of_candidate: HashMap<Candidate, usize, Keyed>,
    /// Instances with a dead candidate, until the end of the tick, which perhaps lists them anew.
    dying: Vec<usize>,
}

impl Instances {
    /// The parties list an instance in which only routes of this member's own AS changed: what was chosen, if it was, stays.
    pub(super) fn list_own_change(&mut self, epoch: u64, candidates: &Instance, is_whole: bool) -> InstanceHash {
        let before = candidates.iter().find_map(|candidate| self.of_candidate.get(candidate));
        let before = before.and_then(|number| self.listed[*number].as_ref());
        let had_no_choice = before.is_none_or(|listed| listed.candidates.len() < 2);
        let evaluated = if had_no_choice {
            Some(epoch)
        } else {
            before.filter(|listed| listed.is_whole).and_then(|listed| listed.evaluated)
        };
        // A result that is on its way is one for these candidates, too; where none comes, they lack one since that batch.
        let (awaited, since) = before.map_or((0, 0), |listed| (listed.seq, listed.since));
        let hash = self.list((awaited, since, epoch), candidates, (is_whole, false));
        if let Some(listed) = self.by_hash.get(&hash).and_then(|number| self.listed[*number].as_mut()) {
            listed.evaluated = evaluated;
        }
        hash
    }

    /// The parties list an instance; it replaces those that have a candidate of it. `since`: the first batch that may have listed it to
    /// others. `ranks`: whether Select-Best chooses.
    pub(super) fn list(
        &mut self,
        (seq, since, epoch): (Seq, Seq, u64),
        candidates: &Instance,
        (is_whole, ranks): (bool, bool),
    ) -> InstanceHash {
        let hash = digests::instance(candidates);
        if let Some(known) = self.by_hash.get(&hash).and_then(|number| self.listed[*number].as_mut()) {
            // What was chosen among candidates of which some had not come is not chosen among all of them. It may be listed again since
            // a value among it changed: then what was chosen in an earlier epoch does not count either.
            let since = if known.is_done(true) { since } else { known.since.min(since) };
            known.evaluated = known.evaluated.filter(|chosen| known.is_whole && !ranks && *chosen == epoch);
            (known.is_whole, known.seq, known.since) = (is_whole, seq, since);
            return hash;
        }
        let before = candidates.iter().find_map(|candidate| self.of_candidate.get(candidate)).copied();
        let number = before.or_else(|| self.free.pop()).unwrap_or(self.listed.len());
        if number == self.listed.len() {
            self.listed.push(None);
        }
        for candidate in candidates.iter() {
            if let Some(other) = self.of_candidate.insert(*candidate, number)
                && other != number
            {
                self.forget(other);
                // It was among what has just been forgotten.
                self.of_candidate.insert(*candidate, number);
            }
        }
        let listed = ListedInstance { hash, candidates: Arc::clone(candidates), is_whole, seq, since, evaluated: None };
        if let Some(before) = self.listed[number].replace(listed) {
            self.by_hash.remove(&before.hash);
            for candidate in before.candidates.iter().filter(|candidate| !candidates.contains(candidate)) {
                self.of_candidate.remove(candidate);
            }
        }
        self.by_hash.insert(hash, number);
        hash
    }

    /// A candidate is dead: its instance is no more.
    pub(super) fn died(&mut self, candidate: &Candidate) {
        let Some(number) = self.of_candidate.get(candidate).copied() else { return };
        if let Some(listed) = &self.listed[number]
            && self.by_hash.remove(&listed.hash).is_some()
        {
            self.dying.push(number);
        }
    }

    /// The tick has ended: what was not listed anew is gone.
    pub(super) fn settle(&mut self) {
        for number in std::mem::take(&mut self.dying) {
            let is_listed = |listed: &ListedInstance| self.by_hash.contains_key(&listed.hash);
            if self.listed[number].as_ref().is_some_and(|listed| !is_listed(listed)) {
                self.forget(number);
            }
        }
    }

    pub(super) fn remove(&mut self, hash: &InstanceHash) {
        if let Some(number) = self.by_hash.get(hash).copied() {
            self.forget(number);
        }
    }

    fn forget(&mut self, number: usize) {
        let Some(listed) = self.listed[number].take() else { return };
        self.by_hash.remove(&listed.hash);
        for candidate in listed.candidates.iter() {
            self.of_candidate.remove(candidate);
        }
        self.free.push(number);
    }

    /// Whether these are the candidates of an instance.
    pub(super) fn has(&self, candidates: &Instance) -> bool {
        let number = candidates.first().and_then(|candidate| self.of_candidate.get(candidate));
        let listed = number.and_then(|number| self.listed[*number].as_ref());
        listed.is_some_and(|listed| listed.candidates == *candidates && self.by_hash.contains_key(&listed.hash))
    }

    /// The result of a batch is there, whatever it is: for an instance, or for what routes of this member's own AS made of it since.
    pub(super) fn evaluated(&mut self, (hash, candidates): (&InstanceHash, &Instance), seq: Seq, epoch: u64) {
        let since = || candidates.iter().find_map(|candidate| self.of_candidate.get(candidate));
        let number = self.by_hash.get(hash).or_else(since).copied();
        let listed = number.and_then(|number| self.listed[number].as_mut());
        if let Some(listed) = listed.filter(|listed| listed.seq == seq) {
            listed.evaluated = Some(epoch);
        }
    }

    /// Results so far, and those on their way, follow from rules that count no more.
    pub(super) fn forget_results(&mut self) {
        for listed in self.listed.iter_mut().flatten() {
            (listed.seq, listed.since, listed.evaluated) = (0, 0, None);
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    fn each(&self) -> impl Iterator<Item = &ListedInstance> {
        self.by_hash.values().filter_map(|number| self.listed[*number].as_ref())
    }

    /// Those in some buckets.
    pub(super) fn in_buckets(&self, buckets: &Listed) -> BTreeSet<InstanceHash> {
        self.by_hash.keys().filter(|hash| buckets.has(digests::bucket_of(hash))).copied().collect()
    }

    /// Digests of all.
    pub(super) fn all(&self) -> BucketDigests {
        in_buckets(self.by_hash.keys().copied().collect())
    }

    /// The first of the epochs in which Select-Best chose, if it did.
    pub(super) fn first_epoch(&self) -> Option<u64> {
        self.each().filter(|listed| listed.candidates.len() > 1).filter_map(|listed| listed.evaluated).min()
    }

    /// The last batch before the first that listed an instance which is to be listed again.
    pub(super) fn done_through(&self, select_best: bool) -> Seq {
        let open = self.each().filter(|listed| !listed.is_done(select_best));
        open.map(|listed| listed.since.saturating_sub(1)).min().unwrap_or(Seq::MAX)
    }

    /// Digests of all, such that the buckets differ from the parties' in which one is to be listed again: Select-Best has
    /// something to choose, and no result came.
    pub(super) fn done(&self, select_best: bool) -> BucketDigests {
        let mut all: Vec<(InstanceHash, bool)> =
            self.each().map(|listed| (listed.hash, listed.is_done(select_best))).collect();
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
        self.each().any(|listed| !listed.is_whole && listed.candidates.iter().all(&has))
    }
}

fn in_buckets(mut hashes: Vec<InstanceHash>) -> BucketDigests {
    hashes.sort_unstable();
    digests::by_bucket(&hashes, |hash| hash, |bucket| digests::of_instances(bucket.iter()))
}

/// Hashes keys that begin with 32 octets of a hash: eight of them, multiplied by a factor that nobody knows. The announcers of
/// objects choose them among many, so that the octets themselves would not do.
#[derive(Clone)]
pub(super) struct Keyed(u64);

impl Default for Keyed {
    fn default() -> Self {
        Self(RandomState::new().hash_one(0u8) | 1)
    }
}

impl BuildHasher for Keyed {
    type Hasher = KeyedHasher;

    fn build_hasher(&self) -> KeyedHasher {
        KeyedHasher { factor: self.0, state: 0 }
    }
}

pub(super) struct KeyedHasher {
    factor: u64,
    state: u64,
}

impl KeyedHasher {
    fn fold(&mut self, value: u64) {
        let product = u128::from(self.state ^ value) * u128::from(self.factor);
        self.state = product as u64 ^ (product >> 64) as u64;
    }
}

impl Hasher for KeyedHasher {
    fn write(&mut self, octets: &[u8]) {
        self.fold(octets.first_chunk().map_or(octets.len() as u64, |first| u64::from_le_bytes(*first)));
    }

    fn write_u16(&mut self, value: u16) {
        self.fold(value.into());
    }

    /// Lengths say nothing here.
    fn write_usize(&mut self, _: usize) {}

    fn finish(&self) -> u64 {
        self.state
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::object::Handle;

    /// What a plain list of instances would have.
    #[derive(Default)]
    struct Plain(BTreeMap<InstanceHash, (Instance, Option<u64>)>);

    impl Plain {
        fn list(&mut self, candidates: &Instance, ranks: bool) {
            let hash = digests::instance(candidates);
            self.0
                .retain(|of, (other, _)| *of == hash || !other.iter().any(|candidate| candidates.contains(candidate)));
            let entry = self.0.entry(hash).or_insert((Arc::clone(candidates), None));
            entry.1 = entry.1.filter(|_| !ranks);
        }
    }

    #[test]
    fn any_lists_and_deaths_leave_what_a_plain_list_would() {
        let mut random = 7u64;
        let mut below = |bound: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % bound
        };
        let candidate = |number: u64| (Handle([number as u8; 32]), (number % 3) as u16);
        let (mut instances, mut plain) = (Instances::default(), Plain::default());
        for seq in 0..20_000 {
            for _ in 0..below(3) {
                let dead = candidate(below(40));
                instances.died(&dead);
                plain.0.retain(|_, (candidates, _)| !candidates.contains(&dead));
            }
            for _ in 0..below(3) {
                let (first, count) = (below(40), 1 + below(6));
                let list: Instance = (first..first + count).map(candidate).collect::<Vec<_>>().into();
                let ranks = below(2) == 0;
                let hash = instances.list((seq, seq, 5), &list, (true, ranks));
                plain.list(&list, ranks);
                if below(2) == 0 {
                    instances.evaluated((&hash, &list), seq, 5);
                    plain.0.entry(hash).and_modify(|entry| entry.1 = Some(5));
                }
                assert!(instances.has(&list));
            }
            instances.settle();
            if below(20) == 0
                && let Some(hash) = plain.0.keys().next().copied()
            {
                instances.remove(&hash);
                plain.0.remove(&hash);
            }
            let kept: BTreeMap<InstanceHash, (Instance, Option<u64>)> =
                instances.each().map(|of| (of.hash, (Arc::clone(&of.candidates), of.evaluated))).collect();
            assert_eq!(kept, plain.0);
            let candidates: usize = kept.values().map(|(candidates, _)| candidates.len()).sum();
            assert_eq!(instances.of_candidate.len(), candidates);
            assert_eq!(instances.listed.len(), instances.free.len() + kept.len());
        }
    }
}
