//! The routes of the own router that are not announced, and why.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use wayleave_bgp::Nlri;
use wayleave_core::Prefix;

use super::announce::Bar;
use crate::frames::Refusal;

/// Why routes are barred; those that may get room again are found without a look at the others.
#[derive(Default)]
pub(super) struct Barred {
    all: BTreeMap<Nlri, Bar>,
    /// Those over a limit of prefixes.
    over_limit: BTreeSet<Nlri>,
    /// Those refused for their octets.
    refused_stored: BTreeSet<Nlri>,
}

impl Barred {
    pub(super) fn insert(&mut self, nlri: Nlri, bar: Bar) {
        self.remove(&nlri);
        match bar {
            Bar::OverLimit(_) | Bar::MaxPrefixes { .. } | Bar::Refused(Refusal::MaxPrefix) => {
                self.over_limit.insert(nlri)
            }
            Bar::Refused(Refusal::Stored) => self.refused_stored.insert(nlri),
            _ => false,
        };
        self.all.insert(nlri, bar);
    }

    pub(super) fn remove(&mut self, nlri: &Nlri) {
        if self.all.remove(nlri).is_some() {
            self.over_limit.remove(nlri);
            self.refused_stored.remove(nlri);
        }
    }

    pub(super) fn contains(&self, nlri: &Nlri) -> bool {
        self.all.contains_key(nlri)
    }

    pub(super) fn get(&self, nlri: &Nlri) -> Option<&Bar> {
        self.all.get(nlri)
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Nlri, &Bar)> {
        self.all.iter()
    }

    /// Those over a limit of prefixes, in order.
    pub(super) fn over_limit(&self) -> impl Iterator<Item = Nlri> {
        self.over_limit.iter().copied()
    }

    /// Whether it was refused for its octets.
    pub(super) fn is_refused_stored(&self, nlri: &Nlri) -> bool {
        self.refused_stored.contains(nlri)
    }

    /// Those refused for their octets, in turn: first those after `last`, then the others.
    pub(super) fn refused_stored_after(&self, last: Option<Nlri>) -> impl Iterator<Item = Nlri> {
        let after = last.map_or(Bound::Unbounded, Bound::Excluded);
        let rest = last.into_iter().flat_map(|last| self.refused_stored.range(..=last));
        self.refused_stored.range((after, Bound::Unbounded)).chain(rest).copied()
    }

    /// Those of a prefix that has too many paths.
    pub(super) fn surplus_paths(&self, prefix: Prefix) -> Vec<Nlri> {
        let of_prefix = self.all.range(Nlri { prefix, path_id: 0 }..=Nlri { prefix, path_id: u32::MAX });
        of_prefix.filter(|(_, bar)| **bar == Bar::SurplusPath).map(|(nlri, _)| *nlri).collect()
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Empties it.
    pub(super) fn take(&mut self) -> impl Iterator<Item = Nlri> + use<> {
        std::mem::take(self).all.into_keys()
    }
}
