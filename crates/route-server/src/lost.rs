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

use crate::frames::{Candidate, LostObject, OwnObject};
use crate::object::Handle;

/// All of them, by slot and version.
#[derive(Clone, Default, Debug)]
pub(crate) struct LostObjects {
    all: BTreeMap<(u32, u64), LostObject>,
    by_handle: BTreeMap<Handle, (u32, u64)>,
    /// Which were announced for a prefix: as a rule one.
    by_route: BTreeMap<(u32, Nlri), BTreeSet<u64>>,
    /// Since when, slot and version.
    by_age: BTreeSet<(u64, u32, u64)>,
}

/// A prefix of an object that is not lost any more.
pub(crate) struct Ended {
    pub version: u64,
    pub handle: Handle,
    /// Whether it is lost for all slots: what ends is dead then, and otherwise only not lost any more.
    pub is_whole: bool,
    /// Index of the prefix.
    pub index: u16,
}

impl LostObjects {
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
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
            let prefixes: BTreeMap<u16, Nlri> = known.prefixes.iter().chain(&object.prefixes).copied().collect();
            object.prefixes = prefixes.into_iter().collect();
            (object.since, object.from) = (object.since.min(known.since), object.from.min(known.from));
        }
        for (_, nlri) in &object.prefixes {
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
        for (_, nlri) in &object.prefixes {
            self.forget_route(key, nlri);
        }
        Some(object)
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
    pub(crate) fn end(&mut self, slot: u32, nlri: &Nlri) -> Vec<Ended> {
        let mut ended = Vec::new();
        for version in self.by_route.remove(&(slot, *nlri)).unwrap_or_default() {
            let Some(object) = self.all.get_mut(&(slot, version)) else { continue };
            let Some(place) = object.prefixes.iter().position(|(_, lost)| lost == nlri) else { continue };
            let (index, _) = object.prefixes.remove(place);
            let (handle, is_whole) = (object.handle, object.from == 0);
            if object.prefixes.is_empty() {
                self.remove((slot, version));
            }
            ended.push(Ended { version, handle, is_whole, index });
        }
        ended
    }
}

impl LostObject {
    /// Its prefixes that were lost, as candidates.
    pub(crate) fn candidates(&self) -> impl Iterator<Item = Candidate> {
        self.prefixes.iter().map(|(index, _)| (self.handle, *index))
    }

    /// As members are told of it.
    pub(crate) fn as_told(&self) -> (Handle, Vec<u16>) {
        (self.handle, self.prefixes.iter().map(|(index, _)| *index).collect())
    }

    /// As its announcer is told of it: nobody has it.
    pub(crate) fn as_own(&self) -> OwnObject {
        let live = self.prefixes.iter().map(|(_, nlri)| *nlri).collect();
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
                let prefixes: BTreeMap<u16, Nlri> = (0..below(4))
                    .map(|_| below(5) as u16)
                    .map(|at| (at, nlri(version as u32 * 3 + u32::from(at))))
                    .collect();
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
                let (handle, prefixes) = (Handle(octets), prefixes.into_iter().collect());
                lost.add(LostObject { slot, version, handle, from: 0, since, prefixes });
            } else {
                let route = nlri(below(64) as u32);
                let ended = lost.end(slot, &route);
                let before = plain.len();
                plain.retain(|(of, ..), (nlri, _)| (*of, *nlri) != (slot, route));
                assert_eq!(before - plain.len(), ended.len());
            }
            let of = |object: &LostObject| {
                let key = (object.slot, object.version, object.since);
                object
                    .prefixes
                    .iter()
                    .map(move |(index, nlri)| ((key.0, key.1, *index), (*nlri, key.2)))
                    .collect::<Vec<_>>()
            };
            assert_eq!(lost.iter().flat_map(of).collect::<BTreeMap<_, _>>(), plain);
            assert_eq!(lost.by_handle(Handle([0; 32])).count(), lost.len());
            assert_eq!(lost.by_age(u64::MAX).count(), lost.len());
            assert_eq!(lost.oldest(), plain.values().map(|(_, since)| *since).min());
            assert_eq!(lost.by_route.values().map(BTreeSet::len).sum::<usize>(), plain.len());
        }
    }
}
