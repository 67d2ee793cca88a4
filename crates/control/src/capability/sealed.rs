//! Sealed secrets that were answered lately, so that whoever asks again costs no more than a static record.
//!
//! An answer is sealed alike each time, and holders ask from many hosts through many resolvers. The table is of a fixed size; an
//! answer takes the place of another whose handle begins alike.

use std::collections::BTreeSet;

use wayleave_packet::platypus::header::Interval;

use super::answer::SEALED;
use super::keys::{Handle, MasterKey};
use super::name::LookupName;
use super::state::State;

/// Answers that are kept, at most: 2 MB.
const ENTRIES: usize = 1 << 14;

struct Entry {
    interval: Interval,
    epoch: u32,
    handle: Handle,
    /// The grant that the handle named, and its key then: another grant, or another generation, has another.
    slot: u32,
    key: MasterKey,
    sealed: [u8; SEALED],
}

/// The answers.
pub(super) struct SealedSecrets(Vec<Option<Entry>>);

impl SealedSecrets {
    pub(super) fn new() -> Self {
        Self(Vec::new())
    }

    /// The slot of the grant that is asked for, and the answer with its secret.
    pub(super) fn find(&self, name: &LookupName, state: &State) -> Option<(u32, &[u8; SEALED])> {
        let entry = self.0.get(place(name))?.as_ref()?;
        let is_it = entry.handle == name.handle
            && (entry.interval, entry.epoch) == (name.interval, name.epoch)
            && state.key(entry.slot) == Some(&entry.key);
        is_it.then_some((entry.slot, &entry.sealed))
    }

    /// Keeps the answer to `name`, which is the handle of the grant in `slot` under `key`.
    pub(super) fn keep(&mut self, name: &LookupName, slot: u32, key: &MasterKey, sealed: &[u8; SEALED]) {
        if self.0.is_empty() {
            self.0.resize_with(ENTRIES, || None);
        }
        let LookupName { interval, epoch, handle } = *name;
        self.0[place(name)] = Some(Entry { interval, epoch, handle, slot, key: key.clone(), sealed: *sealed });
    }

    /// Forgets those of some grants: they were made for sources that have changed.
    pub(super) fn forget(&mut self, slots: &BTreeSet<u32>) {
        for place in &mut self.0 {
            place.take_if(|entry| slots.contains(&entry.slot));
        }
    }

    /// Forgets all: they were made with keys of waypoints that have changed.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// Handles are uniformly random to all but their holders, who gain nothing by choosing a place.
fn place(name: &LookupName) -> usize {
    usize::from(u16::from_be_bytes([name.handle.0[4], name.handle.0[5]])) % ENTRIES
}
