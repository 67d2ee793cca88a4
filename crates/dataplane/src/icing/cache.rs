//! A bounded cache: every key has a set of four slots, which owners share.
//!
//! An owner is whoever caused an entry: a link, or a payer. Whoever has most slots of a full set loses the one of them that was
//! used longest ago; if it is the owner of the new entry, among others, it loses its own. So no owner, however many entries it
//! causes, takes a slot from one that has as many of the set as it has itself, or fewer.

/// Slots of a set.
const WAYS: usize = 4;

/// Whoever causes an entry: the number of a link, and beside it that of an account where that matters.
pub(super) type Owner = (u16, Option<u16>);

pub(super) trait CacheKey: Copy + Eq {
    /// Eight octets that differ between most keys: the set follows from them.
    fn word(&self) -> u64;
}

pub(super) struct Cache<K, V> {
    keys: Vec<Option<K>>,
    values: Vec<Option<V>>,
    owners: Vec<Owner>,
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
        let owners = vec![(0, None); slots];
        Self { keys: vec![None; slots], values, owners, used: vec![0; slots], uses: 0, multiplier, shift }
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

    /// Inserts a value of `owner` into the slot that the key has, into a free one, or into one whose owner has most of the set.
    /// Returns the slot.
    pub(super) fn insert(&mut self, key: K, value: V, owner: Owner) -> usize {
        let free = || self.slots(&key).find(|slot| self.keys[*slot].is_none());
        let slot = self.find(&key).or_else(free).unwrap_or_else(|| self.victim(self.slots(&key), owner));
        self.uses += 1;
        self.owners[slot] = owner;
        self.keys[slot] = Some(key);
        self.values[slot] = Some(value);
        self.used[slot] = self.uses;
        slot
    }

    /// The slot of a full set that a new entry of `owner` takes.
    fn victim(&self, set: std::ops::Range<usize>, owner: Owner) -> usize {
        let count = |of: Owner| self.owners[set.clone()].iter().filter(|other| **other == of).count();
        let most = set.clone().map(|slot| count(self.owners[slot])).max().unwrap_or_default();
        let has_most = count(owner) == most;
        let loses = |slot: &usize| {
            let of = self.owners[*slot];
            if has_most { of == owner } else { count(of) == most }
        };
        set.clone().filter(loses).min_by_key(|slot| self.used[*slot]).unwrap_or(set.start)
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
    //! ICD-08, paths: of a set of four nobody loses a place to one that has as many.

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
            cache.insert(n, n * 10, (0, None));
        }
        assert_eq!(cache.get(&1), Some(&10));
        cache.insert(5, 50, (0, None));
        assert_eq!(cache.get(&2), None);
        assert_eq!([1, 3, 4, 5].map(|n: u64| cache.get(&n).copied()), [Some(10), Some(30), Some(40), Some(50)]);
        cache.insert(3, 33, (0, None));
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
            cache.insert(n.wrapping_mul(0x1234_5678_9abc_def1), n, (n as u16 % 5, None));
        }
        assert_eq!(cache.iter().count(), 1_024);
    }

    #[test]
    fn an_owner_with_endless_entries_takes_no_slot_of_one_that_has_no_more_than_it() {
        let mut cache = Cache::new(4, 7);
        let (quiet, busy, other) = ((1, None), (2, Some(3)), (2, None));
        cache.insert(1u64, 1, quiet);
        cache.insert(2, 2, other);
        (10..1_000).for_each(|n| {
            let _ = cache.insert(n, n, busy);
        });
        assert_eq!([1, 2, 998, 999].map(|n| cache.get(&n).copied()), [1, 2, 998, 999].map(Some));
        // One that holds the whole set gives up half of it to whoever comes, and no more.
        let mut cache = Cache::new(4, 7);
        (1..5u64).for_each(|n| {
            let _ = cache.insert(n, n, quiet);
        });
        (10..1_000).for_each(|n| {
            let _ = cache.insert(n, n, busy);
        });
        assert_eq!([3, 4, 998, 999].map(|n| cache.get(&n).copied()), [3, 4, 998, 999].map(Some));
        // Entries that are used keep their places among those of one owner.
        let _ = cache.get(&3);
        cache.insert(5, 5, quiet);
        assert_eq!([3, 5, 998, 999].map(|n| cache.get(&n).copied()), [3, 5, 998, 999].map(Some));
    }
}
