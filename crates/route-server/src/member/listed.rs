//! The instances that the parties listed, also those of which this member may open nothing: with the objects that came, all that
//! it says that it holds when it connects again.
//!
//! What it says follows from what came and what did not (objects, lists, results), never from what could be opened, from a ranking
//! or from a result.

use std::collections::HashMap;
use std::collections::hash_map::{Entry, RandomState};
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

use crate::digests::{self, BucketDigests, BucketSet, InstanceHash, bucket_of};
use crate::frames::{Candidate, Instance, MAX_CANDIDATES, MAX_NAMES, Seq};
use crate::object::Handle;

/// An instance as it was listed last.
struct ListedInstance {
    candidates: Instance,
    /// Whether each of the candidates had come by then, and none of them went since though the instance stayed.
    is_whole: bool,
    /// Whether one of the candidates is dead: at the end of the tick it is no more, unless it was listed anew.
    is_dying: bool,
    /// Whether party 1 was told of it as it is, and it was not listed since.
    is_named: bool,
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

/// Leaves the first of what a member names in one frame, ascending. Returns the hash through which these are all.
pub(super) fn first_by<T>(all: &mut Vec<T>, hash_of: impl Fn(&T) -> [u8; 32]) -> [u8; 32] {
    let is_cut = all.len() > MAX_NAMES;
    if is_cut {
        all.select_nth_unstable_by_key(MAX_NAMES - 1, &hash_of);
        all.truncate(MAX_NAMES);
    }
    all.sort_unstable_by_key(&hash_of);
    all.last().filter(|_| is_cut).map_or([0xff; 32], hash_of)
}

/// The numbers of the instances of candidates, those of an object together: as a rule it has many prefixes, as an UPDATE has, and an entry
/// of a map for each of them takes several times the memory, and the time to get it.
#[derive(Default)]
struct Numbers(HashMap<Handle, Vec<(u16, u32)>, Keyed>);

impl Numbers {
    fn get(&self, (handle, index): &Candidate) -> Option<usize> {
        let of_object = self.0.get(handle)?;
        let place = place_of(of_object, *index).ok()?;
        Some(of_object[place].1 as usize)
    }

    /// Returns the number that it had.
    fn insert(&mut self, (handle, index): Candidate, number: usize) -> Option<usize> {
        let number = u32::try_from(number).expect("no memory holds as many instances");
        let of_object = self.0.entry(handle).or_default();
        match place_of(of_object, index) {
            Ok(place) => Some(std::mem::replace(&mut of_object[place].1, number) as usize),
            Err(place) => {
                of_object.insert(place, (index, number));
                None
            }
        }
    }

    fn remove(&mut self, (handle, index): &Candidate) {
        let Entry::Occupied(mut of_object) = self.0.entry(*handle) else { return };
        if let Ok(place) = place_of(of_object.get(), *index) {
            of_object.get_mut().remove(place);
        }
        if of_object.get().is_empty() {
            of_object.remove();
        }
    }

    /// Those of an object's prefixes.
    fn of(&self, handle: &Handle) -> impl Iterator<Item = usize> {
        self.0.get(handle).into_iter().flatten().map(|(_, number)| *number as usize)
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }
}

fn place_of(of_object: &[(u16, u32)], index: u16) -> Result<usize, usize> {
    of_object.binary_search_by_key(&index, |(index, _)| *index)
}

/// All instances, by their candidates: a candidate is in one at most. Most are listed again with one candidate changed, and keep their
/// number then.
#[derive(Default)]
pub(super) struct Instances {
    listed: Vec<Option<ListedInstance>>,
    /// Numbers in `listed` that are free.
    free: Vec<usize>,
    of_candidate: Numbers,
    /// The hash of each that was asked for: most are replaced before that.
    hashes: Vec<Option<InstanceHash>>,
    /// How many are not whole.
    partial: usize,
    /// How many have so many candidates that there may be more which do not compete.
    full: usize,
    /// Instances with a dead candidate, until the end of the tick, which perhaps lists them anew.
    dying: Vec<usize>,
}

impl Instances {
    /// The parties list an instance in which only routes of this member's own AS changed: what was chosen, if it was, stays. `changed`: of
    /// a member that may lack lists, the objects that may be of that change; another candidate that was not listed before is one that
    /// came in a list which it lacks, and nothing was chosen with it.
    pub(super) fn list_own_change(
        &mut self,
        epoch: u64,
        candidates: &Instance,
        (is_whole, changed): (bool, Option<&[Handle]>),
    ) -> usize {
        let before = self.number_of(candidates).and_then(|number| self.listed[number].as_ref());
        let had_no_choice = before.is_none_or(|listed| listed.candidates.len() < 2);
        let is_other = |candidate: &&Candidate| changed.is_some_and(|changed| !changed.contains(&candidate.0));
        let is_before = |candidate: &Candidate| before.is_some_and(|listed| listed.candidates.contains(candidate));
        let evaluated = if candidates.iter().filter(is_other).any(|candidate| !is_before(candidate)) {
            None
        } else if had_no_choice {
            Some(epoch)
        } else {
            before.filter(|listed| listed.is_whole).and_then(|listed| listed.evaluated)
        };
        // A result that is on its way is one for these candidates, too; where none comes, they lack one since that batch.
        let (awaited, since) = before.map_or((0, 0), |listed| (listed.seq, listed.since));
        let number = self.list((awaited, since, epoch), candidates, (is_whole, false));
        if let Some(listed) = &mut self.listed[number] {
            listed.evaluated = evaluated;
        }
        number
    }

    /// The parties list an instance; it replaces those that have a candidate of it. `since`: the first batch that may have listed it to
    /// others. `ranks`: whether Select-Best chooses. Returns its number for [`Self::evaluated`].
    pub(super) fn list(
        &mut self,
        (seq, since, epoch): (Seq, Seq, u64),
        candidates: &Instance,
        (is_whole, ranks): (bool, bool),
    ) -> usize {
        let before = self.number_of(candidates);
        if let Some((number, known)) = before.and_then(|number| Some((number, self.listed[number].as_mut()?)))
            && known.candidates == *candidates
            && !known.is_dying
        {
            // What was chosen among candidates of which some had not come is not chosen among all of them. It may be listed again since
            // a value among it changed: then what was chosen in an earlier epoch does not count either.
            let since = if known.is_done(true) { since } else { known.since.min(since) };
            known.evaluated = known.evaluated.filter(|chosen| known.is_whole && !ranks && *chosen == epoch);
            self.partial = self.partial + usize::from(!is_whole) - usize::from(!known.is_whole);
            (known.is_whole, known.is_named, known.seq, known.since) = (is_whole, false, seq, since);
            return number;
        }
        let number = before.or_else(|| self.free.pop()).unwrap_or(self.listed.len());
        if number == self.listed.len() {
            self.listed.push(None);
        }
        let before = self.listed[number].take();
        self.full = self.full + usize::from(is_full(candidates))
            - usize::from(before.as_ref().is_some_and(|before| is_full(&before.candidates)));
        let (was, is) = changed(before.as_ref().map_or(&[], |before| &before.candidates[..]), candidates);
        // A party may name a candidate twice.
        was.iter().filter(|was| !candidates.contains(was)).for_each(|was| self.of_candidate.remove(was));
        for candidate in is {
            if let Some(other) = self.of_candidate.insert(*candidate, number) {
                self.forget(other);
                // It was among what has just been forgotten.
                self.of_candidate.insert(*candidate, number);
            }
        }
        self.partial =
            self.partial + usize::from(!is_whole) - usize::from(before.as_ref().is_some_and(|before| !before.is_whole));
        let (candidates, is_dying, is_named, evaluated) = (Arc::clone(candidates), false, false, None);
        let listed = ListedInstance { candidates, is_whole, is_dying, is_named, seq, since, evaluated };
        self.listed[number] = Some(listed);
        self.forget_hash(number);
        number
    }

    /// The instance with one of these candidates, if there is one: the one of the first that is in any.
    fn number_of(&self, candidates: &Instance) -> Option<usize> {
        candidates.iter().find_map(|candidate| self.of_candidate.get(candidate))
    }

    /// A candidate is dead: its instance is no more.
    pub(super) fn died(&mut self, candidate: &Candidate) {
        let Some(number) = self.of_candidate.get(candidate) else { return };
        if let Some(listed) = self.listed[number].as_mut().filter(|listed| !listed.is_dying) {
            listed.is_dying = true;
            self.dying.push(number);
        }
    }

    /// An object has gone. If it comes again, it was not among those from which was chosen.
    pub(super) fn lost(&mut self, handle: &Handle) {
        for number in self.of_candidate.of(handle) {
            if let Some(listed) = self.listed[number].as_mut().filter(|listed| !listed.is_dying) {
                self.partial += usize::from(listed.is_whole);
                listed.is_whole = false;
            }
        }
    }

    /// The tick has ended: what was not listed anew is gone.
    pub(super) fn settle(&mut self) {
        for number in std::mem::take(&mut self.dying) {
            if self.listed[number].as_ref().is_some_and(|listed| listed.is_dying) {
                self.forget(number);
            }
        }
    }

    /// Of the instances in some buckets the first ones from a hash on, ascending, each with its first candidate and whether it need not be
    /// listed again; and the hash through which these are all.
    pub(super) fn name(
        &mut self,
        (buckets, from): (&BucketSet, &InstanceHash),
        select_best: bool,
    ) -> (InstanceHash, Vec<(InstanceHash, Candidate, bool)>) {
        let mut all = Vec::new();
        for number in 0..self.listed.len() {
            let Some(hash) = self.hash(number).filter(|hash| hash >= from && buckets.has(bucket_of(hash))) else {
                continue;
            };
            let Some(listed) = &self.listed[number] else { continue };
            let first = *listed.candidates.first().expect("no instance is without a candidate");
            all.push((hash, first, listed.is_done(select_best), number));
        }
        let through = first_by(&mut all, |(hash, ..)| *hash);
        for (.., number) in &all {
            if let Some(listed) = &mut self.listed[*number] {
                listed.is_named = true;
            }
        }
        (through, all.into_iter().map(|(hash, first, is_done, _)| (hash, first, is_done)).collect())
    }

    /// What was named is gone, unless it was listed since.
    pub(super) fn gone(&mut self, hash: &InstanceHash, first: &Candidate) {
        let Some(number) = self.of_candidate.get(first) else { return };
        let is_named = self.listed[number].as_ref().is_some_and(|listed| listed.is_named);
        if is_named && self.hash(number) == Some(*hash) {
            self.forget(number);
        }
    }

    fn forget(&mut self, number: usize) {
        let Some(listed) = self.listed[number].take() else { return };
        self.partial -= usize::from(!listed.is_whole);
        self.full -= usize::from(is_full(&listed.candidates));
        self.forget_hash(number);
        for candidate in listed.candidates.iter() {
            self.of_candidate.remove(candidate);
        }
        self.free.push(number);
    }

    /// The hash of an instance, if there is one of that number.
    pub(super) fn hash(&mut self, number: usize) -> Option<InstanceHash> {
        let listed = self.listed.get(number)?.as_ref()?;
        if self.hashes.len() <= number {
            self.hashes.resize(self.listed.len(), None);
        }
        Some(*self.hashes[number].get_or_insert_with(|| digests::instance(&listed.candidates)))
    }

    fn forget_hash(&mut self, number: usize) {
        if let Some(hash) = self.hashes.get_mut(number) {
            *hash = None;
        }
    }

    /// Whether a candidate is in an instance.
    pub(super) fn lists(&self, candidate: &Candidate) -> bool {
        self.of_candidate.get(candidate).is_some()
    }

    /// Whether there may be routes that do not compete.
    pub(super) fn are_some_full(&self) -> bool {
        self.full > 0
    }

    /// Whether these are the candidates of an instance.
    pub(super) fn has(&self, candidates: &Instance) -> bool {
        let number = candidates.first().and_then(|candidate| self.of_candidate.get(candidate));
        let listed = number.and_then(|number| self.listed[number].as_ref());
        listed.is_some_and(|listed| listed.candidates == *candidates && !listed.is_dying)
    }

    /// The result of a batch is there, whatever it is: for an instance, or for what routes of this member's own AS made of it since.
    pub(super) fn evaluated(&mut self, (number, candidates): (usize, &Instance), seq: Seq, epoch: u64) {
        // As a rule it has the number that it was listed with.
        let is_same = |listed: &ListedInstance| Arc::ptr_eq(&listed.candidates, candidates);
        let same = self.listed.get(number).and_then(Option::as_ref).filter(|listed| is_same(listed));
        let number = if same.is_some() { Some(number) } else { self.number_of(candidates) };
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
        self.listed.iter().flatten()
    }

    /// Digests of all.
    pub(super) fn all(&mut self) -> BucketDigests {
        let mut hashes: Vec<InstanceHash> = (0..self.listed.len()).filter_map(|number| self.hash(number)).collect();
        hashes.sort_unstable();
        digests::by_bucket(&hashes, |hash| hash, |bucket| digests::of_instances(bucket.iter()))
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
    pub(super) fn done(&mut self, select_best: bool) -> BucketDigests {
        let mut all = Vec::with_capacity(self.listed.len() - self.free.len());
        for number in 0..self.listed.len() {
            let Some(hash) = self.hash(number) else { continue };
            let is_done = self.listed[number].as_ref().is_some_and(|listed| listed.is_done(select_best));
            all.push((hash, is_done));
        }
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

    /// Whether one is not whole.
    pub(super) fn are_partial(&self) -> bool {
        self.partial > 0
    }

    /// Whether all candidates of an instance have come since it was listed without some of them.
    pub(super) fn is_overtaken(&self, has: impl Fn(&Candidate) -> bool) -> bool {
        self.each().any(|listed| !listed.is_whole && listed.candidates.iter().all(&has))
    }
}

/// Whether there may be more candidates, which do not compete.
pub(super) fn is_full(candidates: &[Candidate]) -> bool {
    candidates.len() >= MAX_CANDIDATES
}

/// What two lists of candidates have between their common beginning and their common end: as a rule one candidate changed.
fn changed<'a>(was: &'a [Candidate], is: &'a [Candidate]) -> (&'a [Candidate], &'a [Candidate]) {
    let first = was.iter().zip(is).take_while(|(was, is)| was == is).count();
    let (was, is) = (&was[first..], &is[first..]);
    let last = was.iter().rev().zip(is.iter().rev()).take_while(|(was, is)| was == is).count();
    (&was[..was.len() - last], &is[..is.len() - last])
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
    //! SIX, lists that err: any lists of objects, and objects that go: what is left is what a plain list would have.

    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    /// What a plain list of instances would have.
    #[derive(Default)]
    struct Plain(BTreeMap<InstanceHash, (Instance, Option<u64>, bool)>);

    impl Plain {
        fn list(&mut self, candidates: &Instance, (is_whole, ranks): (bool, bool)) {
            let hash = digests::instance(candidates);
            self.0
                .retain(|of, (other, ..)| *of == hash || !other.iter().any(|candidate| candidates.contains(candidate)));
            let (_, evaluated, was_whole) = self.0.entry(hash).or_insert((Arc::clone(candidates), None, true));
            *evaluated = evaluated.filter(|_| !ranks && *was_whole);
            *was_whole = is_whole;
        }
    }

    #[test]
    fn what_is_named_in_one_frame_is_the_first_of_all() {
        let hash = |number: usize| {
            let mut hash = [0; 32];
            hash[..8].copy_from_slice(&(number as u64).to_be_bytes());
            hash
        };
        let mut few: Vec<usize> = vec![5, 3, 4];
        assert_eq!((first_by(&mut few, |number| hash(*number)), few), ([0xff; 32], vec![3, 4, 5]));
        let mut many: Vec<usize> = (0..MAX_NAMES + 7).rev().collect();
        let through = first_by(&mut many, |number| hash(*number));
        assert_eq!((through, many.len(), many[0]), (hash(MAX_NAMES - 1), MAX_NAMES, 0));
        let mut as_many: Vec<usize> = (0..MAX_NAMES).rev().collect();
        assert_eq!(first_by(&mut as_many, |number| hash(*number)), [0xff; 32]);
    }

    /// Of a member that lacks lists, what came before an own change and was never listed to it was chosen among by nobody.
    #[test]
    fn an_own_change_does_not_count_as_a_choice_with_what_was_never_listed() {
        let (own, one, two) = ((Handle([1; 32]), 0), (Handle([2; 32]), 0), (Handle([3; 32]), 0));
        for (changed, counts) in [(None, true), (Some(&[own.0][..]), false), (Some(&[own.0, two.0][..]), true)] {
            let mut instances = Instances::default();
            instances.list((1, 1, 1), &Instance::from(vec![one]), (true, false));
            let number = instances.list_own_change(1, &Instance::from(vec![own, one, two]), (true, changed));
            assert_eq!(instances.listed[number].as_ref().map(|listed| listed.evaluated.is_some()), Some(counts));
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
                plain.0.retain(|_, (candidates, ..)| !candidates.contains(&dead));
            }
            for _ in 0..below(3) {
                let (first, count) = (below(40), 1 + below(6));
                let mut list: Vec<Candidate> = (first..first + count).map(candidate).collect();
                if below(10) == 0 {
                    // As only a party that errs names them.
                    list.push(candidate(first));
                }
                let list = Instance::from(list);
                let how = (below(2) == 0, below(2) == 0);
                let number = instances.list((seq, seq, 5), &list, how);
                plain.list(&list, how);
                if below(2) == 0 {
                    instances.evaluated((number, &list), seq, 5);
                    plain.0.entry(digests::instance(&list)).and_modify(|entry| entry.1 = Some(5));
                }
                assert!(instances.has(&list));
            }
            instances.settle();
            if below(10) == 0 {
                let gone = candidate(below(40));
                instances.lost(&gone.0);
                let is_gone = |list: &Instance| list.iter().any(|candidate| candidate.0 == gone.0);
                plain.0.values_mut().filter(|(list, ..)| is_gone(list)).for_each(|(_, _, is_whole)| *is_whole = false);
            }
            // What is named of the first half of all buckets is gone but for two that are listed again.
            if below(200) == 0 {
                let mut half = BucketSet::Nothing;
                half.extend(0..2048);
                let (through, named) = instances.name((&half, &[0; 32]), true);
                assert_eq!((through, named.len()), ([0xff; 32], plain.0.keys().filter(|hash| hash[0] < 0x80).count()));
                let again: Vec<Instance> = plain.0.values().map(|(list, ..)| Arc::clone(list)).take(2).collect();
                for list in &again {
                    instances.list((seq, seq, 5), list, (true, false));
                    plain.list(list, (true, false));
                }
                named.iter().for_each(|(hash, first, _)| instances.gone(hash, first));
                plain.0.retain(|hash, (list, ..)| hash[0] >= 0x80 || again.contains(list));
            }
            let as_plain = |of: &ListedInstance| (Arc::clone(&of.candidates), of.evaluated, of.is_whole);
            let kept: BTreeMap<InstanceHash, _> = (0..instances.listed.len())
                .filter_map(|number| Some((instances.hash(number)?, as_plain(instances.listed[number].as_ref()?))))
                .collect();
            assert_eq!(kept, plain.0);
            let candidates: BTreeSet<Candidate> = kept.values().flat_map(|(list, ..)| list.iter().copied()).collect();
            assert_eq!(instances.of_candidate.len(), candidates.len());
            assert_eq!(instances.partial, instances.each().filter(|listed| !listed.is_whole).count());
            assert_eq!(instances.listed.len(), instances.free.len() + kept.len());
        }
    }
}
