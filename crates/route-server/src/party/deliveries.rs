//! Which objects a batch brings to whom: found once for all receivers, so that a receiver costs what it gets.

use std::collections::{BTreeMap, BTreeSet};

use super::sync::Listing;
use crate::object_table::{Effects, ObjectTable, Place};

/// Objects that a batch brings, each once. In both sets they are in the order of synchronisation, so that what a member has been
/// sent so far is a prefix of each.
#[derive(Default)]
pub(super) struct Deliveries {
    /// New ones, which are for every slot.
    added: BTreeSet<Place>,
    /// Others that columns opened, by the slots that have them from now on: the first one, and the one behind the last.
    widened: BTreeMap<(u32, u32), BTreeSet<Place>>,
}

impl Deliveries {
    pub(super) fn of(table: &ObjectTable, effects: &Effects) -> Self {
        let place = |slot, version| table.entry(slot, version).and_then(|entry| entry.place());
        let added: BTreeSet<Place> =
            effects.added.iter().filter_map(|(slot, version)| place(*slot, *version)).collect();
        let mut widened: BTreeMap<(u32, u32), BTreeSet<Place>> = BTreeMap::new();
        for (slot, version, from, to) in &effects.widened {
            // One that is also new goes to every slot as it is.
            if let Some(place) = place(*slot, *version).filter(|place| !added.contains(place)) {
                widened.entry((*from, *to)).or_default().insert(place);
            }
        }
        Self { added, widened }
    }

    /// Whether columns opened objects to the slot.
    pub(super) fn widens(&self, slot: u32) -> bool {
        self.widened_for(slot).next().is_some()
    }

    /// What the slot gets of it, and how many places were scanned for that: no more than one of each set beyond what it gets.
    pub(super) fn to(&self, slot: u32, listing: &Listing) -> (Vec<Place>, u64) {
        let (mut places, mut scanned) = (Vec::new(), 0);
        for set in std::iter::once(&self.added).chain(self.widened_for(slot)) {
            let before = places.len();
            places.extend(set.iter().take_while(|place| listing.has(place)).copied());
            let taken = places.len() - before;
            scanned += (taken + 1).min(set.len()) as u64;
        }
        (places, scanned)
    }

    /// Slots outside a column touch nothing of it: only columns that begin at or below the slot are looked at.
    fn widened_for(&self, slot: u32) -> impl Iterator<Item = &BTreeSet<Place>> {
        self.widened.range(..=(slot, u32::MAX)).filter(move |((_, to), _)| slot < *to).map(|(_, places)| places)
    }
}
