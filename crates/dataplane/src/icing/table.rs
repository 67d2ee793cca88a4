//! A bounded table: four places for each name, of which the one used longest ago is given away first.

const WAYS: usize = 4;

/// What something is found by.
pub(super) trait Name: Copy + Eq {
    /// Eight of its octets that differ between names.
    fn word(&self) -> u64;
}

pub(super) struct Table<K, V> {
    names: Vec<Option<K>>,
    values: Vec<Option<V>>,
    /// When each place was used last, in uses of the table.
    used: Vec<u64>,
    uses: u64,
    /// Odd and secret: which names share places cannot be foreseen.
    multiplier: u64,
    shift: u32,
}

impl<K: Name, V> Table<K, V> {
    /// Room for at least `most` entries, taken at once.
    pub(super) fn new(most: usize, seed: u64) -> Self {
        let sets = most.div_ceil(WAYS).next_power_of_two();
        let places = sets * WAYS;
        let mut values = Vec::new();
        values.resize_with(places, || None);
        let multiplier = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let shift = 64 - sets.trailing_zeros();
        Self { names: vec![None; places], values, used: vec![0; places], uses: 0, multiplier, shift }
    }

    fn places(&self, name: &K) -> std::ops::Range<usize> {
        // A shift by 64 leaves the one set of a table that has no more.
        let set = name.word().wrapping_mul(self.multiplier).checked_shr(self.shift).unwrap_or(0) as usize;
        set * WAYS..set * WAYS + WAYS
    }

    /// The place of `name`.
    #[inline]
    pub(super) fn find(&self, name: &K) -> Option<usize> {
        self.places(name).find(|place| self.names[*place].as_ref() == Some(name))
    }

    /// The name and value at an occupied place.
    #[inline]
    pub(super) fn at(&self, place: usize) -> Option<&V> {
        self.values[place].as_ref()
    }

    /// The value at an occupied place, which is used now.
    #[inline]
    pub(super) fn at_mut(&mut self, place: usize) -> Option<&mut V> {
        self.uses += 1;
        self.used[place] = self.uses;
        self.values[place].as_mut()
    }

    /// The value of `name`, which is used now.
    pub(super) fn get(&mut self, name: &K) -> Option<&V> {
        let place = self.find(name)?;
        self.at_mut(place).map(|value| &*value)
    }

    /// Puts `value` in, in place of the one of this name, or in a free place, or of the one used longest ago.
    pub(super) fn insert(&mut self, name: K, value: V) -> usize {
        let free = || self.places(&name).find(|place| self.names[*place].is_none());
        let oldest = || self.places(&name).min_by_key(|place| self.used[*place]).unwrap_or_default();
        let place = self.find(&name).or_else(free).unwrap_or_else(oldest);
        self.uses += 1;
        self.names[place] = Some(name);
        self.values[place] = Some(value);
        self.used[place] = self.uses;
        place
    }

    /// Keeps only entries that `keep` wants, which it may change.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(&K, &mut V) -> bool) {
        for (name, value) in self.names.iter_mut().zip(&mut self.values) {
            if let (Some(key), Some(held)) = (name.as_ref(), value.as_mut())
                && !keep(key, held)
            {
                (*name, *value) = (None, None);
            }
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.names.iter().zip(&self.values).filter_map(|(name, value)| Some((name.as_ref()?, value.as_ref()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Name for u64 {
        fn word(&self) -> u64 {
            *self
        }
    }

    #[test]
    fn what_is_used_stays_and_what_was_used_longest_ago_goes() {
        let mut table = Table::new(4, 7);
        for n in 1..=4u64 {
            table.insert(n, n * 10);
        }
        assert_eq!(table.get(&1), Some(&10));
        table.insert(5, 50);
        assert_eq!(table.get(&2), None);
        assert_eq!([1, 3, 4, 5].map(|n: u64| table.get(&n).copied()), [Some(10), Some(30), Some(40), Some(50)]);
        table.insert(3, 33);
        assert_eq!(table.get(&3), Some(&33));
        assert_eq!(table.iter().count(), 4);
        table.retain(|name, value| {
            *value += 1;
            *name != 4
        });
        assert_eq!(table.get(&4), None);
        assert_eq!(table.get(&5), Some(&51));
    }

    #[test]
    fn a_table_holds_no_more_than_its_room() {
        let mut table = Table::new(1_000, 99);
        for n in 0..100_000u64 {
            table.insert(n.wrapping_mul(0x1234_5678_9abc_def1), n);
        }
        assert_eq!(table.iter().count(), 1_024);
    }
}
