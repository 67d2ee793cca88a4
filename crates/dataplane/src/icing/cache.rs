//! A bounded cache: every key has a set of four slots, of which the one used longest ago is overwritten first.

/// Slots of a set.
const WAYS: usize = 4;

pub(super) trait CacheKey: Copy + Eq {
    /// Eight octets that differ between most keys: the set follows from them.
    fn word(&self) -> u64;
}

pub(super) struct Cache<K, V> {
    keys: Vec<Option<K>>,
    values: Vec<Option<V>>,
    /// When each slot was used last, counted in uses of the cache.
    used: Vec<u64>,
    uses: u64,
    /// Odd and secret, so that a sender cannot choose keys that share a set.
    multiplier: u64,
    shift: u32,
}

impl<K: CacheKey, V> Cache<K, V> {
    /// A cache for at least `capacity` entries, whose memory is allocated now.
    pub(super) fn new(capacity: usize, seed: u64) -> Self {
        let sets = capacity.div_ceil(WAYS).next_power_of_two();
        let slots = sets * WAYS;
        let mut values = Vec::new();
        values.resize_with(slots, || None);
        let multiplier = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let shift = 64 - sets.trailing_zeros();
        Self { keys: vec![None; slots], values, used: vec![0; slots], uses: 0, multiplier, shift }
    }

    fn slots(&self, key: &K) -> std::ops::Range<usize> {
        // A shift by 64 means that there is one set.
        let set = key.word().wrapping_mul(self.multiplier).checked_shr(self.shift).unwrap_or(0) as usize;
        set * WAYS..set * WAYS + WAYS
    }

    /// The slot of `key`, if it is there.
    #[inline]
    pub(super) fn find(&self, key: &K) -> Option<usize> {
        self.slots(key).find(|slot| self.keys[*slot].as_ref() == Some(key))
    }

    #[inline]
    pub(super) fn at(&self, slot: usize) -> Option<&V> {
        self.values[slot].as_ref()
    }

    /// The value in a slot, which is thereby used.
    #[inline]
    pub(super) fn at_mut(&mut self, slot: usize) -> Option<&mut V> {
        self.uses += 1;
        self.used[slot] = self.uses;
        self.values[slot].as_mut()
    }

    /// The value of `key`, which is thereby used.
    pub(super) fn get(&mut self, key: &K) -> Option<&V> {
        let slot = self.find(key)?;
        self.at_mut(slot).map(|value| &*value)
    }

    /// Inserts a value into the slot that the key has, into a free one, or into the one used longest ago. Returns the slot.
    pub(super) fn insert(&mut self, key: K, value: V) -> usize {
        let free = || self.slots(&key).find(|slot| self.keys[*slot].is_none());
        let oldest = || self.slots(&key).min_by_key(|slot| self.used[*slot]).unwrap_or_default();
        let slot = self.find(&key).or_else(free).unwrap_or_else(oldest);
        self.uses += 1;
        self.keys[slot] = Some(key);
        self.values[slot] = Some(value);
        self.used[slot] = self.uses;
        slot
    }

    /// Removes the entries for which `keep`, which may change them, returns false.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(&K, &mut V) -> bool) {
        for (key, value) in self.keys.iter_mut().zip(&mut self.values) {
            if let (Some(present), Some(entry)) = (key.as_ref(), value.as_mut())
                && !keep(present, entry)
            {
                (*key, *value) = (None, None);
            }
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.keys.iter().zip(&self.values).filter_map(|(key, value)| Some((key.as_ref()?, value.as_ref()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl CacheKey for u64 {
        fn word(&self) -> u64 {
            *self
        }
    }

    #[test]
    fn the_entry_used_longest_ago_is_overwritten_first() {
        let mut cache = Cache::new(4, 7);
        for n in 1..=4u64 {
            cache.insert(n, n * 10);
        }
        assert_eq!(cache.get(&1), Some(&10));
        cache.insert(5, 50);
        assert_eq!(cache.get(&2), None);
        assert_eq!([1, 3, 4, 5].map(|n: u64| cache.get(&n).copied()), [Some(10), Some(30), Some(40), Some(50)]);
        cache.insert(3, 33);
        assert_eq!(cache.get(&3), Some(&33));
        assert_eq!(cache.iter().count(), 4);
        cache.retain(|key, value| {
            *value += 1;
            *key != 4
        });
        assert_eq!(cache.get(&4), None);
        assert_eq!(cache.get(&5), Some(&51));
    }

    #[test]
    fn a_cache_holds_no_more_entries_than_its_capacity_in_whole_sets() {
        let mut cache = Cache::new(1_000, 99);
        for n in 0..100_000u64 {
            cache.insert(n.wrapping_mul(0x1234_5678_9abc_def1), n);
        }
        assert_eq!(cache.iter().count(), 1_024);
    }
}
