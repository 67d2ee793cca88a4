//! From a handle to the grant that it names: one table for each key epoch that may be asked for.
//!
//! A handle is blinded by its epoch, so that every epoch has a table of its own: a fingerprint and a slot for each grant, eight
//! octets. The next epoch's is made ahead, a part at a time.

use wayleave_packet::platypus::header::Interval;

use super::keys::Handle;
use super::state::State;

/// Slots of grants with other epochs that cost as much as one handle: they are only looked at.
const LOOKED_AT: u32 = 32;
/// No grant.
const EMPTY: (u32, u32) = (0, u32::MAX);

/// The handles of one key epoch.
pub(super) struct EpochIndex {
    pub(super) interval: Interval,
    pub(super) epoch: u32,
    /// Open addressing: fingerprint and slot.
    table: Vec<(u32, u32)>,
    taken: usize,
    /// Slots below this are in the table.
    done: u32,
}

impl EpochIndex {
    pub(super) fn new(interval: Interval, epoch: u32, grants: usize) -> Self {
        Self { interval, epoch, table: vec![EMPTY; size(grants)], taken: 0, done: 0 }
    }

    /// Whether every grant is in it.
    pub(super) fn is_complete(&self, state: &State) -> bool {
        self.done >= state.slots()
    }

    /// Takes in further slots, by work for at most `most` handles; returns how much work it was.
    pub(super) fn advance(&mut self, state: &State, most: u32) -> u32 {
        let end = state.slots();
        let (mut handles, mut others) = (0, 0);
        while self.done < end && handles + others / LOOKED_AT < most {
            match state.interval_of(self.done) {
                Some(interval) if interval == self.interval => {
                    self.insert(state, self.done);
                    handles += 1;
                }
                _ => others += 1,
            }
            self.done += 1;
        }
        handles + others / LOOKED_AT
    }

    /// Takes in a slot whose grant is new or has another key.
    pub(super) fn refresh(&mut self, state: &State, slot: u32) {
        if slot < self.done {
            self.insert(state, slot);
        } else if slot == self.done {
            self.advance(state, 1);
        }
    }

    fn insert(&mut self, state: &State, slot: u32) {
        let (Some(grant), Some(key)) = (state.grant(slot), state.key(slot)) else { return };
        if grant.terms.interval != self.interval {
            return;
        }
        // A handle of a key that was replaced stays until the epoch ends; it matches nothing.
        if (self.taken + 1) * 4 > self.table.len() * 3 {
            let larger = vec![EMPTY; self.table.len() * 2];
            let old = std::mem::replace(&mut self.table, larger);
            // Fingerprints alone place entries, so that a table grows without a key.
            old.into_iter().filter(|entry| *entry != EMPTY).for_each(|entry| self.put(entry));
        }
        let handle = key.handle(&grant.terms.capability(self.epoch));
        self.put((fingerprint(&handle), slot));
        self.taken += 1;
    }

    fn put(&mut self, entry: (u32, u32)) {
        let mask = self.table.len() - 1;
        let mut at = entry.0 as usize & mask;
        while self.table[at] != EMPTY && self.table[at] != entry {
            at = (at + 1) & mask;
        }
        self.table[at] = entry;
    }

    /// The slot whose grant has this handle.
    pub(super) fn find(&self, state: &State, handle: &Handle) -> Option<u32> {
        let mask = self.table.len() - 1;
        let wanted = fingerprint(handle);
        let mut at = wanted as usize & mask;
        while self.table[at] != EMPTY {
            let (found, slot) = self.table[at];
            if found == wanted
                && let (Some(grant), Some(key)) = (state.grant(slot), state.key(slot))
                && grant.terms.interval == self.interval
                && key.handle(&grant.terms.capability(self.epoch)) == *handle
            {
                return Some(slot);
            }
            at = (at + 1) & mask;
        }
        None
    }

    /// Octets of memory.
    pub(super) fn memory(&self) -> usize {
        self.table.capacity() * size_of::<(u32, u32)>()
    }
}

fn size(grants: usize) -> usize {
    (grants.max(16) * 4 / 3 + 1).next_power_of_two()
}

fn fingerprint(handle: &Handle) -> u32 {
    u32::from_be_bytes([handle.0[0], handle.0[1], handle.0[2], handle.0[3]])
}
