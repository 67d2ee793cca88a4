//! The counters of all accounts in one table of fixed size, a cache line each.

use std::hash::{BuildHasher, Hasher};

use crate::lanes::prefetch;
use crate::tally::Total;

use super::mix_hasher::MixHasher;

/// Keys have 127 bits; this one marks a line that is in use.
const USED: u128 = 1 << 127;

/// An account's cache line, or a free one.
#[derive(Clone, Copy, Default, Debug)]
#[repr(align(64))]
struct AccountLine {
    key: u128,
    /// Since the last record in the journal, and one more if there were any: a key whose packets were all credited is still known
    /// to have changed.
    packets_and_one: u64,
    octets: u64,
    /// In the last record.
    recorded: Recorded,
}

/// A [`Total`] in halves, which needs no alignment of its own.
#[derive(Clone, Copy, Default, Debug)]
struct Recorded([u64; 4]);

impl Recorded {
    fn new(total: Total) -> Self {
        let halves = |number: u128| [(number >> 64) as u64, number as u64];
        let ([a, b], [c, d]) = (halves(total.packets), halves(total.octets));
        Self([a, b, c, d])
    }

    fn total(self) -> Total {
        let [a, b, c, d] = self.0.map(u128::from);
        Total { packets: a << 64 | b, octets: c << 64 | d }
    }
}

impl AccountLine {
    /// Whether this packet is the first one since the last record.
    #[inline(always)]
    fn add(&mut self, octets: u64) -> bool {
        let is_first = self.packets_and_one == 0;
        self.packets_and_one += 1 + u64::from(is_first);
        self.octets += octets;
        is_first
    }

    /// Packets since the last record.
    fn packets(&self) -> u64 {
        self.packets_and_one.saturating_sub(1)
    }

    fn total(&self) -> Total {
        let recorded = self.recorded.total();
        Total {
            packets: recorded.packets + u128::from(self.packets()),
            octets: recorded.octets + u128::from(self.octets),
        }
    }
}

/// Begins every hash with a secret seed, since principals choose their delegations' IDs and could make them collide.
#[derive(Clone, Debug)]
pub(super) struct SeededHash(MixHasher);

impl SeededHash {
    pub(super) fn new(seed: u64) -> Self {
        let mut mix = MixHasher::default();
        mix.write_u128(u128::from(seed));
        Self(mix)
    }
}

impl BuildHasher for SeededHash {
    type Hasher = MixHasher;

    #[inline(always)]
    fn build_hasher(&self) -> MixHasher {
        self.0
    }
}

/// Totals by key: a hash table with linear probing. Half of the lines stay free, so that a key is found in one line or the
/// next.
#[derive(Clone, Debug)]
pub(super) struct Totals {
    lines: Box<[AccountLine]>,
    hash: SeededHash,
    count: usize,
    most: usize,
}

impl Totals {
    /// A table of `most` keys, allocated at once; `seed` must be random.
    pub(super) fn new(most: usize, seed: u64) -> Self {
        let lines = (2 * most).next_power_of_two().max(2);
        Self {
            lines: vec![AccountLine::default(); lines].into_boxed_slice(),
            hash: SeededHash::new(seed),
            count: 0,
            most,
        }
    }

    /// Begins to fetch the line where the search for a key starts, and returns its index.
    #[inline(always)]
    pub(super) fn fetch(&self, key: u128) -> usize {
        let home = self.home(key);
        prefetch(&self.lines[home]);
        home
    }

    /// The total of a key; zero if it has no line.
    pub(super) fn total(&self, key: u128) -> Total {
        self.lines[self.find(key | USED)].total()
    }

    /// Keys that have a line.
    #[inline]
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Octets of memory.
    pub(super) fn memory(&self) -> usize {
        size_of_val(&*self.lines)
    }

    /// Whether another key fits.
    pub(super) fn has_capacity(&self) -> bool {
        self.count < self.most
    }

    #[inline(always)]
    pub(super) fn contains(&self, key: u128) -> bool {
        self.lines[self.find(key | USED)].key != 0
    }

    /// Whether nothing was added to a key since its last record.
    pub(super) fn is_recorded(&self, key: u128) -> bool {
        self.lines[self.find(key | USED)].packets_and_one == 0
    }

    /// Adds one packet to a key that has a line, and returns the line's index and whether the packet is the first one since the
    /// last record. `home` is what [`Totals::fetch`] returned.
    #[inline(always)]
    pub(super) fn add_known(&mut self, key: u128, home: usize, octets: u64) -> Option<(usize, bool)> {
        let index = self.find_from(home, key | USED);
        let line = &mut self.lines[index];
        (line.key != 0).then(|| (index, line.add(octets)))
    }

    /// The same for any key. The caller has checked [`Totals::has_capacity`].
    #[inline(always)]
    pub(super) fn add(&mut self, key: u128, octets: u64) -> (usize, bool) {
        let index = self.open(key);
        (index, self.lines[index].add(octets))
    }

    /// Takes back one packet that was added to the line at this index since its last record, and returns the key. `None`, and
    /// nothing is taken back, if no such packet can have been: what is recorded never becomes less.
    pub(super) fn credit(&mut self, index: usize, octets: u64) -> Option<u128> {
        let line = self.lines.get_mut(index).filter(|line| line.packets() > 0 && line.octets >= octets)?;
        line.packets_and_one -= 1;
        line.octets -= octets;
        Some(line.key & !USED)
    }

    /// The total of a key, which counts as recorded from now on.
    pub(super) fn record(&mut self, key: u128) -> Option<Total> {
        let index = self.find(key | USED);
        let line = &mut self.lines[index];
        if line.key == 0 {
            return None;
        }
        let total = line.total();
        (line.packets_and_one, line.octets, line.recorded) = (0, 0, Recorded::new(total));
        Some(total)
    }

    /// Sets a key's recorded total unless a larger one is known; returns whether it fits.
    pub(super) fn restore(&mut self, key: u128, total: Total) -> bool {
        if !self.has_capacity() && !self.contains(key) {
            return false;
        }
        let index = self.open(key);
        let line = &mut self.lines[index];
        if line.total().packets < total.packets {
            (line.packets_and_one, line.octets, line.recorded) = (0, 0, Recorded::new(total));
        }
        true
    }

    /// Frees the line of a key, and moves up the lines behind it that were displaced from their homes: a search ends at the
    /// first free line, so that none may lie between a key's home and its line.
    pub(super) fn remove(&mut self, key: u128) {
        let mut free = self.find(key | USED);
        if self.lines[free].key == 0 {
            return;
        }
        self.count -= 1;
        let last = self.lines.len() - 1;
        let mut index = (free + 1) & last;
        while self.lines[index].key != 0 {
            let home = self.home(self.lines[index].key);
            // The free line lies between this line's home and its index, counted around the table.
            if (index.wrapping_sub(home) & last) >= (index.wrapping_sub(free) & last) {
                self.lines[free] = self.lines[index];
                free = index;
            }
            index = (index + 1) & last;
        }
        self.lines[free] = AccountLine::default();
    }

    #[inline(always)]
    fn home(&self, key: u128) -> usize {
        self.hash.hash_one(key | USED) as usize & (self.lines.len() - 1)
    }

    /// The line of a key, or the free one where it would be.
    #[inline(always)]
    fn find(&self, key: u128) -> usize {
        self.find_from(self.home(key), key)
    }

    #[inline(always)]
    fn find_from(&self, home: usize, key: u128) -> usize {
        let last = self.lines.len() - 1;
        let mut index = home;
        while self.lines[index].key != key && self.lines[index].key != 0 {
            index = (index + 1) & last;
        }
        index
    }

    /// The index of a key's line, which it has from now on.
    #[inline(always)]
    fn open(&mut self, key: u128) -> usize {
        let index = self.find(key | USED);
        let line = &mut self.lines[index];
        if line.key == 0 {
            line.key = key | USED;
            self.count += 1;
        }
        index
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// Keys that are added, counted, credited, recorded and removed at random, compared with a map of the standard library.
    #[test]
    fn the_table_is_a_map() {
        let (mut table, mut map) = (Totals::new(50, 7), HashMap::<u128, Total>::new());
        // What was added since the last record, by key, and for how many keys the table said that there was a first packet.
        let (mut unrecorded, mut listed) = (HashMap::<u128, Vec<u64>>::new(), HashMap::<u128, u32>::new());
        let mut state = 1u64;
        for step in 0..100_000u64 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let key = u128::from(state >> 57) * 0x1_0001;
            match state >> 40 & 7 {
                0 => {
                    table.remove(key);
                    map.remove(&key);
                    unrecorded.remove(&key);
                    listed.remove(&key);
                }
                1 => {
                    assert_eq!(table.record(key), map.get(&key).copied(), "{step}");
                    unrecorded.remove(&key);
                    listed.remove(&key);
                }
                2 if table.contains(key) => {
                    let index = table.find(key | USED);
                    let added = unrecorded.get_mut(&key).and_then(Vec::pop);
                    // What was not added is not taken back.
                    let credited = table.credit(index, added.unwrap_or(1));
                    assert_eq!(credited, added.map(|_| key), "{step}");
                    let total = map.entry(key).or_default();
                    let octets = u128::from(added.unwrap_or_default());
                    *total =
                        Total { packets: total.packets - u128::from(added.is_some()), octets: total.octets - octets };
                }
                _ if table.has_capacity() || table.contains(key) => {
                    let (index, is_first) = table.add(key, step);
                    assert_eq!(table.lines[index].key, key | USED);
                    unrecorded.entry(key).or_default().push(step);
                    let times = listed.entry(key).or_default();
                    *times += u32::from(is_first);
                    assert_eq!(*times, 1, "listed once between two records: {step}");
                    let total = map.entry(key).or_default();
                    *total = Total { packets: total.packets + 1, octets: total.octets + u128::from(step) };
                }
                _ => assert!(map.len() == 50 && !map.contains_key(&key)),
            }
            assert_eq!(table.total(key), map.get(&key).copied().unwrap_or_default(), "{step}");
            let has_unrecorded = unrecorded.get(&key).is_some_and(|added| !added.is_empty());
            assert!(!has_unrecorded || !table.is_recorded(key), "{step}");
        }
        assert!(!map.is_empty());
    }
}
