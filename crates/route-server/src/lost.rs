//! Objects that were lost: when the link between the parties came up, one party alone had them, and neither knows that they were withdrawn
//! or replaced. Its store is new or an older copy, or it stopped between the two writes of a batch.
//!
//! They count for nothing: no object is a candidate, is delivered, or is in what members are to have. Members are told which they are, so
//! that a router keeps what it has of them until their announcer has said what became of each prefix, which ends it at once, or until they
//! have been lost for as long as an announcer may be away ([`Step::Forget`](crate::frames::Step::Forget)).
//!
//! Both parties know the same ones, and keep them durably: a party that loses its store again learns them from the other, with the time at
//! which they were *first* lost.

use std::collections::{BTreeMap, BTreeSet};

use wayleave_bgp::Nlri;

use crate::frames::{Candidate, LostEntry, LostObject, LostPrefix, OwnObject};
use crate::object::Handle;

/// Prefixes that may be lost of one slot, and lost objects of one prefix: our own limits. An announcer that both parties serve comes to neither.
const MAX_PREFIXES_OF_SLOT: usize = 1 << 20;
const MAX_VERSIONS: usize = 4;

/// All of them, by slot and version.
#[derive(Clone, Default, Debug)]
pub(crate) struct LostObjects {
    all: BTreeMap<(u32, u64), LostObject>,
    by_handle: BTreeMap<Handle, (u32, u64)>,
    /// Which were announced for a prefix: as a rule one.
    by_route: BTreeMap<(u32, Nlri), BTreeSet<u64>>,
    /// Since when, slot and version.
    by_age: BTreeSet<(u64, u32, u64)>,
    prefixes_of: BTreeMap<u32, usize>,
}

/// A prefix of an object that is not lost any more.
pub(crate) struct EndedPrefix {
    pub version: u64,
    pub handle: Handle,
    /// Index of the prefix.
    pub index: u16,
    /// The first slot for which it was lost.
    pub from: u32,
}

impl LostObjects {
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn get(&self, slot: u32, version: u64) -> Option<&LostObject> {
        self.all.get(&(slot, version))
    }

    /// All by slot and version.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &LostObject> {
        self.all.values()
    }

    /// Those behind a slot and version.
    pub(crate) fn after(&self, key: Option<(u32, u64)>) -> impl Iterator<Item = &LostObject> {
        let from = key.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
        self.all.range((from, std::ops::Bound::Unbounded)).map(|(_, object)| object)
    }

    /// Those of a slot from a version on.
    pub(crate) fn of(&self, slot: u32, version: u64) -> impl Iterator<Item = &LostObject> {
        self.all.range((slot, version)..=(slot, u64::MAX)).map(|(_, object)| object)
    }

    /// When the first of them was lost, in microseconds of Unix time.
    pub(crate) fn oldest(&self) -> Option<u64> {
        self.by_age.first().map(|(since, ..)| *since)
    }

    /// Those that have been lost since this time or before, the first ones first.
    pub(crate) fn by_age(&self, until: u64) -> impl Iterator<Item = &LostObject> {
        let keys = self.by_age.range(..=(until, u32::MAX, u64::MAX));
        keys.filter_map(|(_, slot, version)| self.all.get(&(*slot, *version)))
    }

    /// Takes the one that was lost first.
    pub(crate) fn take_oldest(&mut self) -> Option<LostObject> {
        let (_, slot, version) = *self.by_age.first()?;
        self.remove((slot, version))
    }

    /// The slot was removed: what is lost of it is forgotten before all else.
    pub(crate) fn end_slot(&mut self, slot: u32) {
        let versions: Vec<u64> = self.of(slot, 0).map(|object| object.version).collect();
        for version in versions {
            if let Some(object) = self.remove((slot, version)) {
                self.add(LostObject { since: 0, ..object });
            }
        }
    }

    /// Those from a handle on, ascending.
    pub(crate) fn by_handle(&self, from: Handle) -> impl Iterator<Item = &LostObject> {
        self.by_handle.range(from..).filter_map(|(_, key)| self.all.get(key))
    }

    /// Adds an object, or what else is lost of it. It has been lost since it was first.
    pub(crate) fn add(&mut self, mut object: LostObject) {
        if object.prefixes.is_empty() {
            return;
        }
        let key = (object.slot, object.version);
        if let Some(known) = self.remove(key) {
            let mut prefixes: BTreeMap<u16, LostPrefix> = known.prefixes.iter().map(|lost| (lost.0, *lost)).collect();
            for lost @ (index, from, _) in object.prefixes {
                let before = prefixes.entry(index).or_insert(lost);
                before.1 = before.1.min(from);
            }
            object.prefixes = prefixes.into_values().collect();
            object.since = object.since.min(known.since);
        }
        let left = MAX_PREFIXES_OF_SLOT.saturating_sub(self.prefixes_of.get(&object.slot).copied().unwrap_or(0));
        object.prefixes.truncate(left);
        if object.prefixes.is_empty() {
            return;
        }
        *self.prefixes_of.entry(object.slot).or_default() += object.prefixes.len();
        for (.., nlri) in &object.prefixes {
            self.by_route.entry((object.slot, *nlri)).or_default().insert(object.version);
        }
        self.by_handle.insert(object.handle, key);
        self.by_age.insert((object.since, key.0, key.1));
        self.all.insert(key, object);
    }

    pub(crate) fn remove(&mut self, key: (u32, u64)) -> Option<LostObject> {
        let object = self.all.remove(&key)?;
        self.by_handle.remove(&object.handle);
        self.by_age.remove(&(object.since, key.0, key.1));
        self.count_off(key.0, object.prefixes.len());
        for (.., nlri) in &object.prefixes {
            self.forget_route(key, nlri);
        }
        Some(object)
    }

    fn count_off(&mut self, slot: u32, prefixes: usize) {
        if let Some(count) = self.prefixes_of.get_mut(&slot) {
            *count = count.saturating_sub(prefixes);
            if *count == 0 {
                self.prefixes_of.remove(&slot);
            }
        }
    }

    /// What is lost of each object as it should be: the prefixes of which `is_lost` holds, and of one route the latest versions alone.
    /// Returns the objects of which that was not all.
    pub(crate) fn retain(&mut self, is_lost: impl Fn(&LostObject, &LostPrefix) -> bool) -> Vec<(u32, u64)> {
        let mut surplus: BTreeSet<(u32, u64, Nlri)> = BTreeSet::new();
        for ((slot, nlri), versions) in self.by_route.iter().filter(|(_, versions)| versions.len() > MAX_VERSIONS) {
            let first = versions.len() - MAX_VERSIONS;
            surplus.extend(versions.iter().take(first).map(|version| (*slot, *version, *nlri)));
        }
        let is_kept = |object: &LostObject, lost: &LostPrefix| {
            is_lost(object, lost) && !surplus.contains(&(object.slot, object.version, lost.2))
        };
        let others = self.iter().filter(|object| !object.prefixes.iter().all(|lost| is_kept(object, lost)));
        let others: Vec<LostObject> = others.cloned().collect();
        let settle = |mut object: LostObject| {
            let key = (object.slot, object.version);
            self.remove(key);
            let all = std::mem::take(&mut object.prefixes);
            object.prefixes = all.into_iter().filter(|lost| is_kept(&object, lost)).collect();
            self.add(object);
            key
        };
        others.into_iter().map(settle).collect()
    }

    fn forget_route(&mut self, (slot, version): (u32, u64), nlri: &Nlri) {
        if let Some(versions) = self.by_route.get_mut(&(slot, *nlri)) {
            versions.remove(&version);
            if versions.is_empty() {
                self.by_route.remove(&(slot, *nlri));
            }
        }
    }

    /// The announcer said what became of its route to a prefix.
    pub(crate) fn end(&mut self, slot: u32, nlri: &Nlri) -> Vec<EndedPrefix> {
        let mut ended = Vec::new();
        for version in self.by_route.remove(&(slot, *nlri)).unwrap_or_default() {
            let Some(object) = self.all.get_mut(&(slot, version)) else { continue };
            let handle = object.handle;
            let before = object.prefixes.len();
            let of_route = object.prefixes.iter().filter(|(.., lost)| lost == nlri);
            ended.extend(of_route.map(|(index, from, _)| EndedPrefix { version, handle, index: *index, from: *from }));
            object.prefixes.retain(|(.., lost)| lost != nlri);
            let (left, is_over) = (object.prefixes.len(), object.prefixes.is_empty());
            self.count_off(slot, before - left);
            if is_over {
                self.remove((slot, version));
            }
        }
        ended
    }
}

impl LostObject {
    /// Its prefixes that were lost, as candidates, each with the first slot for which it was.
    pub(crate) fn candidates(&self) -> impl Iterator<Item = (Candidate, u32)> {
        self.prefixes.iter().map(|(index, from, _)| ((self.handle, *index), *from))
    }

    /// Whether the member in a slot may have had something that was lost.
    pub(crate) fn concerns(&self, slot: u32) -> bool {
        self.prefixes.iter().any(|(_, from, _)| *from <= slot)
    }

    /// As the member in a slot is told of it, for so many seconds.
    pub(crate) fn as_told(&self, slot: u32, seconds: u32) -> LostEntry {
        let indices = self.prefixes.iter().filter(|(_, from, _)| *from <= slot).map(|(index, ..)| *index);
        (self.handle, seconds, indices.collect())
    }

    /// As its announcer is told of it: nobody has it.
    pub(crate) fn as_own(&self) -> OwnObject {
        let live = self.prefixes.iter().map(|(.., nlri)| *nlri).collect();
        OwnObject { version: self.version, width: 0, live, outside: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    //! SIX, lost objects: any that are added and end leave what a plain list would have.

    use super::*;

    fn nlri(number: u32) -> Nlri {
        let [_, b, c, d] = number.to_be_bytes();
        Nlri::new(format!("20.{b}.{c}.{d}/32").parse().expect("a prefix"))
    }

    #[test]
    fn any_that_are_added_and_end_leave_what_a_plain_list_would_have() {
        let mut random = 11u64;
        let mut below = |bound: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % bound
        };
        let (mut lost, mut plain) = (LostObjects::default(), BTreeMap::<(u32, u64, u16), (Nlri, u64)>::new());
        for round in 1..5_000 {
            let (slot, version) = (below(3) as u32, below(20));
            if below(2) == 0 {
                // An object has the same prefixes whenever it is named.
                let at = (0..below(4)).map(|_| below(5) as u16);
                let prefixes: BTreeMap<u16, Nlri> =
                    at.map(|at| (at, nlri(version as u32 * 3 + u32::from(at)))).collect();
                let mut octets = [0; 32];
                (octets[0], octets[1]) = (slot as u8, version as u8);
                let since = below(round);
                for (index, nlri) in &prefixes {
                    plain.entry((slot, version, *index)).or_insert((*nlri, since));
                }
                let known: Vec<u64> =
                    plain.range((slot, version, 0)..=(slot, version, u16::MAX)).map(|(_, (_, since))| *since).collect();
                let first = known.into_iter().chain([since]).min().unwrap_or(since);
                if !prefixes.is_empty() {
                    let of_object = plain.range_mut((slot, version, 0)..=(slot, version, u16::MAX));
                    of_object.for_each(|(_, (_, since))| *since = first);
                }
                let prefixes = prefixes.into_iter().map(|(index, nlri)| (index, 0, nlri)).collect();
                lost.add(LostObject { slot, version, handle: Handle(octets), since, prefixes });
            } else {
                let route = nlri(below(64) as u32);
                let ended = lost.end(slot, &route);
                let before = plain.len();
                plain.retain(|(of, ..), (nlri, _)| (*of, *nlri) != (slot, route));
                assert_eq!(before - plain.len(), ended.len());
            }
            // Those of even places live again, and of one route the latest versions alone are kept.
            if below(50) == 0 {
                let lives = |index: u16| index.is_multiple_of(2);
                let mut versions: BTreeMap<(u32, Nlri), Vec<u64>> = BTreeMap::new();
                for ((slot, version, _), (nlri, _)) in &plain {
                    versions.entry((*slot, *nlri)).or_default().push(*version);
                }
                let is_kept = |(slot, version, index): &(u32, u64, u16), nlri: &Nlri| {
                    let of_route = &versions[&(*slot, *nlri)];
                    !lives(*index) && of_route.iter().rev().take(MAX_VERSIONS).any(|latest| latest == version)
                };
                let before: BTreeSet<(u32, u64)> = plain.keys().map(|(slot, version, _)| (*slot, *version)).collect();
                let whole = plain.clone();
                plain.retain(|key, (nlri, _)| is_kept(key, nlri));
                let changed: BTreeSet<(u32, u64)> = lost.retain(|_, (index, ..)| !lives(*index)).into_iter().collect();
                let of = |all: &BTreeMap<(u32, u64, u16), (Nlri, u64)>, (slot, version): (u32, u64)| {
                    all.range((slot, version, 0)..=(slot, version, u16::MAX)).count()
                };
                let expected = before.into_iter().filter(|key| of(&whole, *key) != of(&plain, *key));
                assert_eq!(changed, expected.collect());
            }
            let of = |object: &LostObject| {
                let key = (object.slot, object.version, object.since);
                object
                    .prefixes
                    .iter()
                    .map(move |(index, _, nlri)| ((key.0, key.1, *index), (*nlri, key.2)))
                    .collect::<Vec<_>>()
            };
            assert_eq!(lost.iter().flat_map(of).collect::<BTreeMap<_, _>>(), plain);
            assert_eq!(lost.by_handle(Handle([0; 32])).count(), lost.len());
            assert_eq!(lost.by_age(u64::MAX).count(), lost.len());
            assert_eq!(lost.oldest(), plain.values().map(|(_, since)| *since).min());
            assert_eq!(lost.prefixes_of.values().sum::<usize>(), plain.len());
            assert_eq!(lost.by_route.values().map(BTreeSet::len).sum::<usize>(), plain.len());
        }
    }
}
