//! Which routes of a prefix compete, in which order, and which announcers must be told that theirs do not.
//!
//! Of each slot the paths with the lowest identifiers compete, as its proxy announces them. Were it those with the lowest numbers, a slot with
//! many paths would stand before others. Where there are too many for one evaluation, every slot's first path comes before any slot's second, so
//! that few slots with many paths do not displace others; among equals one half of the number decides, and the other half decides the
//! order of those that compete. So where a candidate stands tells neither whose it is nor that others had to give way.

use std::collections::{BTreeMap, BTreeSet};

use wayleave_bgp::Nlri;
use wayleave_core::Prefix;

use crate::frames::{MAX_PATHS, Seq};
use crate::order::Number;

/// A live route: the object's version, the prefix's index in it, and the candidate's number.
#[derive(Clone, Copy)]
pub(crate) struct Route {
    pub version: u64,
    pub index: u16,
    pub number: Number,
}

/// The live routes of a prefix by slot and path identifier.
pub(crate) type Routes = BTreeMap<(u32, u32), Route>;
/// A route of a prefix with its slot and path identifier.
type Competitor<'a> = (&'a (u32, u32), &'a Route);

/// Of each slot the first [`MAX_PATHS`] routes, each with its place among those of its slot.
pub(crate) fn first_paths(routes: &Routes) -> impl Iterator<Item = (usize, Competitor<'_>)> {
    let (mut last, mut nth) = (None, 0);
    let numbered = routes.iter().map(move |(key, route)| {
        nth = if last == Some(key.0) { nth + 1 } else { 0 };
        last = Some(key.0);
        (nth, (key, route))
    });
    numbered.filter(|(nth, _)| *nth < MAX_PATHS)
}

/// The routes that compete, in the order of their numbers: `most` at most, and none of slots that have ended.
pub(crate) fn competing(routes: &Routes, has_ended: impl Fn(u32) -> bool, most: usize) -> Vec<Competitor<'_>> {
    let mut all: Vec<(usize, Competitor<'_>)> = first_paths(routes).filter(|(_, (key, _))| !has_ended(key.0)).collect();
    if all.len() > most {
        all.sort_unstable_by_key(|(nth, (key, route))| (*nth, route.number.precedence(), **key));
        all.truncate(most);
    }
    let mut all: Vec<Competitor<'_>> = all.into_iter().map(|(_, competitor)| competitor).collect();
    all.sort_unstable_by_key(|(key, route)| (route.number, **key));
    all
}

/// What an announcer is told with a batch: which of its routes compete no more, and which do again, or are no more.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CompetitionChange {
    pub outside: Vec<Nlri>,
    pub inside: Vec<Nlri>,
}

/// The live routes that do not compete. Only prefixes with more routes than one evaluation takes have any.
#[derive(Default)]
pub(crate) struct NonCompetingRoutes {
    of_prefix: BTreeMap<Prefix, BTreeSet<(u32, u32)>>,
    of_slot: BTreeMap<u32, BTreeSet<Nlri>>,
    /// Slots whose routes changed so since this was last asked: whether each is outside now.
    changed: BTreeMap<u32, BTreeMap<Nlri, bool>>,
    /// The last batch that changed those of each slot.
    since: BTreeMap<u32, Seq>,
}

impl NonCompetingRoutes {
    /// These routes of a prefix do not compete, as of a batch, and all others do. Returns the slots that this changes.
    pub(crate) fn set(&mut self, prefix: Prefix, now: BTreeSet<(u32, u32)>, seq: Seq) -> Vec<u32> {
        let before = match now.is_empty() {
            true => self.of_prefix.remove(&prefix),
            false => self.of_prefix.insert(prefix, now.clone()),
        };
        let before = before.unwrap_or_default();
        let mut slots = Vec::new();
        for (slot, path_id) in before.symmetric_difference(&now) {
            let (nlri, is_outside) = (Nlri { path_id: *path_id, prefix }, now.contains(&(*slot, *path_id)));
            let of_slot = self.of_slot.entry(*slot).or_default();
            if is_outside {
                of_slot.insert(nlri)
            } else {
                of_slot.remove(&nlri)
            };
            if of_slot.is_empty() {
                self.of_slot.remove(slot);
            }
            self.changed.entry(*slot).or_default().insert(nlri, is_outside);
            self.since.insert(*slot, seq);
            slots.push(*slot);
        }
        slots
    }

    /// Whether a route of a slot is outside.
    pub(crate) fn has(&self, slot: u32, nlri: &Nlri) -> bool {
        self.of_slot.get(&slot).is_some_and(|of_slot| of_slot.contains(nlri))
    }

    /// The last batch that changed which of a slot's routes compete.
    pub(crate) fn since(&self, slot: u32) -> Seq {
        self.since.get(&slot).copied().unwrap_or(0)
    }

    /// What changed since this was last asked, by slot.
    pub(crate) fn take_changed(&mut self) -> BTreeMap<u32, CompetitionChange> {
        let told = |routes: BTreeMap<Nlri, bool>| {
            let (outside, inside): (Vec<_>, Vec<_>) = routes.into_iter().partition(|(_, is_outside)| *is_outside);
            let names = |routes: Vec<(Nlri, bool)>| routes.into_iter().map(|(nlri, _)| nlri).collect();
            CompetitionChange { outside: names(outside), inside: names(inside) }
        };
        std::mem::take(&mut self.changed).into_iter().map(|(slot, routes)| (slot, told(routes))).collect()
    }
}
