//! Version numbers of the member's objects, each used once over all restarts of the process.

use crate::party::{Change, META, PersistId, StoredRecord};

/// Store key of the highest version that may have been used.
const VERSION_KEY: &[u8] = b"version";
/// Versions that one write of the store reserves.
const RESERVE: u64 = 4096;

/// A version is used only below what the store has reserved, so that a process that starts again from its store uses none twice.
pub(super) struct Versions {
    next: u64,
    /// Versions below this may be used: the store has reserved them.
    reserved: u64,
    writing: Option<(PersistId, u64)>,
}

impl Versions {
    /// With what the store held.
    pub(super) fn new(stored: &[StoredRecord]) -> Self {
        let record = stored.iter().find(|record| record.key == VERSION_KEY);
        let used = record.and_then(|record| record.value.as_slice().try_into().ok()).map_or(0, u64::from_be_bytes);
        Self { next: used.saturating_add(1), reserved: 0, writing: None }
    }

    /// A party has seen `version`: lower ones and itself cannot be used.
    pub(super) fn seen(&mut self, version: u64) {
        self.next = self.next.max(version.saturating_add(1));
    }

    /// Whether no version is left. The slot can then announce nothing more.
    pub(super) fn are_spent(&self) -> bool {
        self.next == u64::MAX
    }

    /// Whether a version is available; if not, the store is reserving more.
    pub(super) fn has_reserved(&self) -> bool {
        self.next < self.reserved
    }

    /// The write that reserves more versions, if it is time for one: early, so that flushes do not wait for the store.
    pub(super) fn reserve(&mut self, last_persist: &mut PersistId) -> Option<(PersistId, Change)> {
        let left = self.reserved.saturating_sub(self.next);
        if left >= RESERVE / 2 || self.writing.is_some() || self.are_spent() {
            return None;
        }
        *last_persist += 1;
        let until = self.next.saturating_add(RESERVE);
        self.writing = Some((*last_persist, until));
        let value = Some(until.to_be_bytes().to_vec());
        Some((*last_persist, Change { table: META, key: VERSION_KEY.to_vec(), value }))
    }

    pub(super) fn durable(&mut self, id: PersistId) {
        if let Some((_, until)) = self.writing.take_if(|(writing, _)| *writing == id) {
            self.reserved = until;
        }
    }

    pub(super) fn take(&mut self) -> Option<u64> {
        if !self.has_reserved() {
            return None;
        }
        self.next += 1;
        Some(self.next - 1)
    }
}
