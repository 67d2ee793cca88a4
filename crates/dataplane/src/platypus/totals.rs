//! The counters of all accounts in one table of fixed size, a cache line each.

use std::hash::{BuildHasher, Hasher};

use wayleave_crypto::lanes::prefetch;

use super::account::Total;
use super::revocation::Mix;

/// A name is of 127 bits; this one says that there is one.
const TAKEN: u128 = 1 << 127;

/// An account, or room for one.
#[derive(Clone, Copy, Default, Debug)]
#[repr(align(64))]
struct Line {
    name: u128,
    /// Since the last record in the journal.
    packets: u64,
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

impl Line {
    /// Whether this packet is the first one since the last record.
    #[inline(always)]
    fn add(&mut self, octets: u64) -> bool {
        let is_first = self.packets == 0;
        self.packets += 1;
        self.octets += octets;
        is_first
    }

    fn total(&self) -> Total {
        let recorded = self.recorded.total();
        Total {
            packets: recorded.packets + u128::from(self.packets),
            octets: recorded.octets + u128::from(self.octets),
        }
    }
}

/// Begins every hash with what nobody outside knows: principals choose their delegations' IDs.
#[derive(Clone, Debug)]
struct Seeded(Mix);

impl Seeded {
    fn new(seed: u64) -> Self {
        let mut mix = Mix::default();
        mix.write_u128(u128::from(seed));
        Self(mix)
    }
}

impl BuildHasher for Seeded {
    type Hasher = Mix;

    #[inline(always)]
    fn build_hasher(&self) -> Mix {
        self.0
    }
}

/// Totals by name. Half of the lines stay free, so that a name is found in one line or the next.
#[derive(Clone, Debug)]
pub(super) struct Totals {
    lines: Box<[Line]>,
    hash: Seeded,
    count: usize,
    most: usize,
}

impl Totals {
    /// Room for `most` names, taken at once; `seed` must be random.
    pub(super) fn new(most: usize, seed: u64) -> Self {
        let lines = (2 * most).next_power_of_two().max(2);
        Self { lines: vec![Line::default(); lines].into_boxed_slice(), hash: Seeded::new(seed), count: 0, most }
    }

    /// Begins to fetch the line where a name is looked for first, and returns its place.
    #[inline(always)]
    pub(super) fn fetch(&self, name: u128) -> usize {
        let home = self.home(name);
        prefetch(&self.lines[home]);
        home
    }

    /// The total of a name; zero if it has no line.
    pub(super) fn total(&self, name: u128) -> Total {
        self.lines[self.find(name | TAKEN)].total()
    }

    /// Whether there is room for another name.
    pub(super) fn has_room(&self) -> bool {
        self.count < self.most
    }

    /// Whether there is a line for `name`.
    #[inline(always)]
    pub(super) fn contains(&self, name: u128) -> bool {
        self.lines[self.find(name | TAKEN)].name != 0
    }

    /// Whether nothing was added to a name since its last record.
    pub(super) fn is_recorded(&self, name: u128) -> bool {
        self.lines[self.find(name | TAKEN)].packets == 0
    }

    /// Adds one packet to a name that has a line, and returns whether it is the first one since the last record; `home` is
    /// what [`Totals::fetch`] gave.
    #[inline(always)]
    pub(super) fn add_known(&mut self, name: u128, home: usize, octets: u64) -> Option<bool> {
        let place = self.find_from(home, name | TAKEN);
        let line = &mut self.lines[place];
        (line.name != 0).then(|| line.add(octets))
    }

    /// Adds one packet, and returns whether it is the first one since the last record. There is room.
    #[inline(always)]
    pub(super) fn add(&mut self, name: u128, octets: u64) -> bool {
        self.open(name).add(octets)
    }

    /// The total of a name, which counts as recorded from now on.
    pub(super) fn record(&mut self, name: u128) -> Option<Total> {
        let place = self.find(name | TAKEN);
        let line = &mut self.lines[place];
        if line.name == 0 {
            return None;
        }
        let total = line.total();
        (line.packets, line.octets, line.recorded) = (0, 0, Recorded::new(total));
        Some(total)
    }

    /// Sets what was recorded of a name unless more is known, and returns whether there was room for it.
    pub(super) fn restore(&mut self, name: u128, total: Total) -> bool {
        if !self.has_room() && !self.contains(name) {
            return false;
        }
        let line = self.open(name);
        if line.total().packets < total.packets {
            (line.packets, line.octets, line.recorded) = (0, 0, Recorded::new(total));
        }
        true
    }

    /// Frees the line of a name, and moves up those behind it that belong nearer to their homes.
    pub(super) fn remove(&mut self, name: u128) {
        let mut free = self.find(name | TAKEN);
        if self.lines[free].name == 0 {
            return;
        }
        self.count -= 1;
        let last = self.lines.len() - 1;
        let mut place = (free + 1) & last;
        while self.lines[place].name != 0 {
            let home = self.home(self.lines[place].name);
            // Going round from its home, this line passes the free one before it comes here.
            if (place.wrapping_sub(home) & last) >= (place.wrapping_sub(free) & last) {
                self.lines[free] = self.lines[place];
                free = place;
            }
            place = (place + 1) & last;
        }
        self.lines[free] = Line::default();
    }

    #[inline(always)]
    fn home(&self, name: u128) -> usize {
        self.hash.hash_one(name | TAKEN) as usize & (self.lines.len() - 1)
    }

    /// The line of a name, or the free one where it would be.
    #[inline(always)]
    fn find(&self, name: u128) -> usize {
        self.find_from(self.home(name), name)
    }

    #[inline(always)]
    fn find_from(&self, home: usize, name: u128) -> usize {
        let last = self.lines.len() - 1;
        let mut place = home;
        while self.lines[place].name != name && self.lines[place].name != 0 {
            place = (place + 1) & last;
        }
        place
    }

    #[inline(always)]
    fn open(&mut self, name: u128) -> &mut Line {
        let place = self.find(name | TAKEN);
        let line = &mut self.lines[place];
        if line.name == 0 {
            line.name = name | TAKEN;
            self.count += 1;
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// Names that are opened, counted, recorded and closed at random, beside a map from the standard library.
    #[test]
    fn the_table_is_a_map() {
        let (mut table, mut map) = (Totals::new(50, 7), HashMap::<u128, Total>::new());
        let mut state = 1u64;
        for step in 0..100_000u64 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let name = u128::from(state >> 57) * 0x1_0001;
            match state >> 40 & 7 {
                0 => {
                    table.remove(name);
                    map.remove(&name);
                }
                1 => assert_eq!(table.record(name), map.get(&name).copied(), "{step}"),
                _ if table.has_room() || table.contains(name) => {
                    table.add(name, step);
                    let total = map.entry(name).or_default();
                    *total = Total { packets: total.packets + 1, octets: total.octets + u128::from(step) };
                }
                _ => assert!(map.len() == 50 && !map.contains_key(&name)),
            }
            assert_eq!(table.total(name), map.get(&name).copied().unwrap_or_default(), "{step}");
        }
        assert!(!map.is_empty());
    }
}
