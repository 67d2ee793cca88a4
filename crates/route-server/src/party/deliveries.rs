//! Which objects a batch brings to whom: found once for all receivers, so that a receiver costs what it gets.

use std::collections::{BTreeMap, BTreeSet};

use super::sync::Listing;
use crate::frames::Deliver;
use crate::object::ExportMode;
use crate::object_table::{Effects, ObjectEntry, ObjectTable, Position};

/// Objects that a batch brings, each once. In both maps they are in the order of synchronisation, so that what a member has been
/// sent so far is a prefix of each.
#[derive(Default)]
pub(super) struct Deliveries {
    /// New ones, which are for every slot.
    added: BTreeMap<Position, Outgoing>,
    /// Others that columns opened, by the slots that have them from now on: the first one, and the one behind the last.
    widened: BTreeMap<(u32, u32), BTreeSet<Position>>,
}

/// What a batch brings to one slot.
#[derive(Default)]
pub(super) struct Brought {
    /// Slot and version of each object.
    pub objects: BTreeSet<(u32, u64)>,
    /// Those that are new, in order.
    pub new: Vec<Deliver>,
    /// Those that columns opened to the slot, in order: slot and version.
    pub widened: Vec<(u32, u64)>,
    /// Places that were looked at: no more than one of each map beyond what the slot gets.
    pub scanned: u64,
}

/// A new object as it leaves to all slots.
struct Outgoing {
    /// All but the share.
    deliver: Deliver,
    /// The slots that have a share.
    width: u32,
    /// This party's shares, 16 octets for each slot; `None` where Export-All computes them.
    row: Option<Vec<u8>>,
}

impl Outgoing {
    fn of(entry: &ObjectEntry) -> Self {
        let row = match entry.mode {
            ExportMode::Direct => Some(entry.row()),
            ExportMode::Mpc => None,
        };
        Self { deliver: entry.deliver([0; 16]), width: entry.width, row }
    }

    fn to(&self, slot: u32) -> Option<Deliver> {
        if slot >= self.width {
            return None;
        }
        let share = match &self.row {
            Some(row) => *row.get(slot as usize * 16..)?.first_chunk()?,
            None => [0; 16],
        };
        Some(Deliver { share, ..self.deliver.clone() })
    }
}

impl Deliveries {
    pub(super) fn of(table: &ObjectTable, effects: &Effects) -> Self {
        let placed = |slot, version| table.entry(slot, version).and_then(|entry| Some((entry.place()?, entry)));
        let added = effects.added.iter().filter_map(|(slot, version)| placed(*slot, *version));
        let added: BTreeMap<Position, Outgoing> = added.map(|(place, entry)| (place, Outgoing::of(entry))).collect();
        let mut widened: BTreeMap<(u32, u32), BTreeSet<Position>> = BTreeMap::new();
        for (slot, version, from, to) in &effects.widened {
            // One that is also new goes to every slot as it is.
            if let Some((place, _)) = placed(*slot, *version).filter(|(place, _)| !added.contains_key(place)) {
                widened.entry((*from, *to)).or_default().insert(place);
            }
        }
        Self { added, widened }
    }

    /// Whether columns opened objects to the slot.
    pub(super) fn widens(&self, slot: u32) -> bool {
        self.widened_for(slot).next().is_some()
    }

    /// What the slot gets of it. `objects` says whether their names are wanted.
    pub(super) fn to(&self, slot: u32, listing: &Listing, objects: bool) -> Brought {
        let mut brought = Brought::default();
        let mut taken = 0;
        for (place, outgoing) in self.added.iter().take_while(|(place, _)| listing.has(place)) {
            taken += 1;
            brought.new.extend(outgoing.to(slot));
            if objects {
                brought.objects.insert((place.1, place.2));
            }
        }
        brought.scanned += (taken + 1).min(self.added.len()) as u64;
        for places in self.widened_for(slot) {
            let before = brought.widened.len();
            let taken = places.iter().take_while(|place| listing.has(place));
            brought.widened.extend(taken.map(|(_, slot, version)| (*slot, *version)));
            brought.scanned += (brought.widened.len() - before + 1).min(places.len()) as u64;
        }
        if objects {
            brought.objects.extend(&brought.widened);
        }
        brought
    }

    /// Slots outside a column touch nothing of it: only columns that begin at or below the slot are looked at.
    fn widened_for(&self, slot: u32) -> impl Iterator<Item = &BTreeSet<Position>> {
        self.widened.range(..=(slot, u32::MAX)).filter(move |((_, to), _)| slot < *to).map(|(_, places)| places)
    }
}
