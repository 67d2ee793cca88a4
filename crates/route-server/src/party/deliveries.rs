//! Which objects a batch brings to whom: found once for all receivers, so that a receiver costs what it gets.

use std::collections::BTreeMap;

use crate::frames::{Candidate, Deliver};
use crate::object::{ExportMode, Handle};
use crate::object_table::{Effects, ObjectEntry, ObjectTable};

/// Objects that a batch brings, each once, by their handles.
#[derive(Default)]
pub(super) struct Deliveries {
    /// New ones, which are for every slot.
    added: BTreeMap<Handle, Outgoing>,
    /// Others that columns opened, by the slots that have them from now on: the first one, and the one behind the last.
    widened: BTreeMap<(u32, u32), BTreeMap<Handle, (u32, u64)>>,
    /// Prefixes of objects that died, and objects without a live one. By handles, as all that it names: the order in which it applied them is
    /// that of slots.
    dead: Vec<Candidate>,
    gone: Vec<Handle>,
}

/// What a batch brings to one slot.
#[derive(Default)]
pub(super) struct Brought {
    /// Those that are new, in order.
    pub new: Vec<Deliver>,
    /// Those that columns opened to the slot, in order: slot and version.
    pub widened: Vec<(u32, u64)>,
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
        let added = effects.added.iter().filter_map(|(slot, version)| table.entry(*slot, *version));
        let added: BTreeMap<Handle, Outgoing> = added.map(|entry| (entry.handle, Outgoing::of(entry))).collect();
        let mut widened: BTreeMap<(u32, u32), BTreeMap<Handle, (u32, u64)>> = BTreeMap::new();
        for (slot, version, from, to) in &effects.widened {
            // One that is also new goes to every slot as it is.
            let entry = table.entry(*slot, *version).filter(|entry| !added.contains_key(&entry.handle));
            if let Some(entry) = entry {
                widened.entry((*from, *to)).or_default().insert(entry.handle, (*slot, *version));
            }
        }
        let (mut dead, mut gone): (Vec<Candidate>, Vec<Handle>) =
            (effects.dead.clone(), effects.removed.iter().map(|(.., handle)| *handle).collect());
        dead.sort_unstable();
        gone.sort_unstable();
        Self { added, widened, dead, gone }
    }

    /// Whether columns opened objects to the slot.
    pub(super) fn widens(&self, slot: u32) -> bool {
        self.widened_for(slot).next().is_some()
    }

    /// What the slot gets of it.
    pub(super) fn to(&self, slot: u32) -> Brought {
        let new = self.added.values().filter_map(|outgoing| outgoing.to(slot)).collect();
        let widened: BTreeMap<&Handle, &(u32, u64)> = self.widened_for(slot).flatten().collect();
        Brought { new, widened: widened.into_values().copied().collect() }
    }

    pub(super) fn dead(&self) -> &[Candidate] {
        &self.dead
    }

    pub(super) fn gone(&self) -> &[Handle] {
        &self.gone
    }

    /// Whether the slot gets the object anyway.
    pub(super) fn has(&self, slot: u32, handle: &Handle) -> bool {
        self.added.contains_key(handle) || self.widened_for(slot).any(|objects| objects.contains_key(handle))
    }

    /// Slots outside a column touch nothing of it: only columns that begin at or below the slot are looked at.
    fn widened_for(&self, slot: u32) -> impl Iterator<Item = &BTreeMap<Handle, (u32, u64)>> {
        self.widened.range(..=(slot, u32::MAX)).filter(move |((_, to), _)| slot < *to).map(|(_, objects)| objects)
    }
}
