//! A bounded map whose oldest entry is removed first.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// The entries inserted last, at most `most`.
pub(crate) struct RecentMap<K, V> {
    entries: HashMap<K, V>,
    oldest: VecDeque<K>,
    most: usize,
}

impl<K: Hash + Eq + Clone, V> RecentMap<K, V> {
    /// Allocates room for `most` entries, at least one.
    pub(crate) fn new(most: usize) -> Self {
        let most = most.max(1);
        Self { entries: HashMap::with_capacity(most), oldest: VecDeque::with_capacity(most), most }
    }

    pub(crate) fn get(&self, name: &K) -> Option<&V> {
        self.entries.get(name)
    }

    /// Inserts `value`, in place of the oldest entry if there is no room.
    pub(crate) fn insert(&mut self, name: K, value: V) {
        if self.entries.insert(name.clone(), value).is_some() {
            return;
        }
        if self.oldest.len() == self.most
            && let Some(oldest) = self.oldest.pop_front()
        {
            self.entries.remove(&oldest);
        }
        self.oldest.push_back(name);
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}
