//! Which packets came before: a Bloom filter for each of three turns of 30 seconds, keyed, by the clock alone (threat P14).
//!
//! A nonce is fresh for 30 seconds on either side, so what was put in must be known for 60 seconds: the turn in which it
//! came and the two after it hold it. All bits of an entry, for all turns, lie in one cache line.

use wayleave_core::UnixTime;
use wayleave_crypto::lanes::{Aes128, prefetch};
use wayleave_crypto::secret::Key128;
use wayleave_packet::platypus::verify::MAX_FRESHNESS;

/// Turns that are remembered.
const TURNS: u64 = 3;
/// Places for each packet of a turn: with eight of them marked, three full turns give one false positive in a thousand
/// packets or fewer.
const PLACES_PER_PACKET: usize = 26;
/// Words of a line.
const WORDS: usize = 8;
/// Places in a word, each with a bit for every turn.
const PLACES: usize = 21;
/// The first turn's bits of a word.
const FIRST: u64 = 0x1249_2492_4924_9249;

/// One cache line, in which a packet has one place in each word: one fetch tests all turns.
#[derive(Clone, Copy, Default)]
#[repr(align(64))]
struct Line([u64; WORDS]);

/// Whether a packet came before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// No; now it has.
    Fresh,
    /// Yes, or one that looks like it.
    Seen,
    /// This turn's filter has taken as many as it is made for.
    Full,
}

/// One router's filter.
pub struct ReplayFilter {
    cipher: Aes128,
    lines: Box<[Line]>,
    turn: u64,
    /// Packets put in during this turn.
    count: usize,
    capacity: usize,
}

impl std::fmt::Debug for ReplayFilter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ReplayFilter of {} packets a turn, {} in this one", self.capacity, self.count)
    }
}

impl ReplayFilter {
    /// A filter for `capacity` packets in each turn; `key` must be random and of this router alone, so that nobody
    /// computes which packets share their bits.
    #[must_use]
    pub fn new(key: &Key128, capacity: usize) -> Self {
        let lines = (capacity * PLACES_PER_PACKET).div_ceil(WORDS * PLACES).max(1);
        let lines = vec![Line::default(); lines].into_boxed_slice();
        Self { cipher: Aes128::new(key.expose()), lines, turn: 0, count: 0, capacity: capacity.max(1) }
    }

    /// Puts a packet in, by octets that no two packets share.
    pub fn insert(&mut self, fingerprint: [u8; 16], now: UnixTime) -> Outcome {
        let mut hash = [fingerprint];
        self.cipher.encrypt(&mut hash);
        self.put(hash[0], now)
    }

    /// Turns octets that no two packets share into what [`ReplayFilter::put`] takes, and begins to fetch where they lie:
    /// first for a whole burst, then each is put in.
    pub fn look_up(&self, fingerprints: &mut [[u8; 16]]) {
        self.cipher.encrypt(fingerprints);
        for hash in fingerprints {
            prefetch(&self.lines[self.line(u128::from_be_bytes(*hash))]);
        }
    }

    /// Puts a packet in, by what [`ReplayFilter::look_up`] made of it.
    #[inline]
    pub fn put(&mut self, hash: [u8; 16], now: UnixTime) -> Outcome {
        self.turn_to(now);
        let hash = u128::from_be_bytes(hash);
        let line = self.line(hash);
        let words = &mut self.lines[line].0;
        let mut places = [0u32; WORDS];
        let mut turns = !0;
        for (index, (place, word)) in places.iter_mut().zip(words.iter()).enumerate() {
            let twelve = (hash >> (12 * index)) as usize % 4_096;
            *place = 3 * ((twelve * PLACES) >> 12) as u32;
            turns &= word >> *place;
        }
        if turns & ((1 << TURNS) - 1) != 0 {
            return Outcome::Seen;
        }
        if self.count == self.capacity {
            return Outcome::Full;
        }
        self.count += 1;
        for (word, place) in words.iter_mut().zip(places) {
            *word |= 1 << (u64::from(place) + self.turn % TURNS);
        }
        Outcome::Fresh
    }

    #[inline(always)]
    fn line(&self, hash: u128) -> usize {
        (((hash >> 96) as u64 * self.lines.len() as u64) >> 32) as usize
    }

    /// Forgets everything, between two passes of a benchmark.
    pub(crate) fn clear(&mut self) {
        self.lines.fill(Line::default());
        self.count = 0;
    }

    /// Share of this turn's room that is taken: 1 is the alarm.
    #[must_use]
    pub fn load(&self) -> f64 {
        self.count as f64 / self.capacity as f64
    }

    /// Octets of memory.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.lines.len() * size_of::<Line>()
    }

    /// Clears the turns that have come again. A clock that goes back clears nothing.
    #[inline]
    fn turn_to(&mut self, now: UnixTime) {
        let turn = now.secs() / u64::from(MAX_FRESHNESS);
        if turn > self.turn {
            self.enter(turn);
        }
    }

    #[cold]
    fn enter(&mut self, turn: u64) {
        let steps = (turn - self.turn).min(TURNS);
        let cleared = (0..steps).fold(0, |bits, step| bits | FIRST << ((turn - step) % TURNS));
        for line in &mut self.lines {
            line.0.iter_mut().for_each(|word| *word &= !cleared);
        }
        self.turn = turn;
        self.count = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: u64) -> UnixTime {
        UnixTime(secs * 1_000_000)
    }

    fn filter(capacity: usize) -> ReplayFilter {
        ReplayFilter::new(&Key128::new([5; 16]), capacity)
    }

    fn insert(filter: &mut ReplayFilter, number: u64, now: UnixTime) -> Outcome {
        filter.insert(u128::from(number).to_be_bytes(), now)
    }

    #[test]
    fn a_packet_is_known_for_sixty_seconds_and_gone_after_ninety() {
        for begin in 3_000..3_030 {
            let mut filter = filter(100);
            assert_eq!(insert(&mut filter, 1, at(begin)), Outcome::Fresh);
            for later in 0..=60 {
                assert_eq!(insert(&mut filter, 1, at(begin + later)), Outcome::Seen);
            }
            assert_eq!(insert(&mut filter, 1, at(begin + 90)), Outcome::Fresh);
            // A clock that goes back forgets nothing.
            assert_eq!(insert(&mut filter, 1, at(begin - 1_000)), Outcome::Seen);
        }
    }

    #[test]
    fn a_full_filter_takes_no_more_until_the_next_turn() {
        let mut filter = filter(10_000);
        let outcomes: Vec<Outcome> = (0..10_100).map(|n| insert(&mut filter, n, at(3_000))).collect();
        assert!(outcomes[10_090..].iter().all(|outcome| *outcome != Outcome::Fresh));
        assert!((filter.load() - 1.0).abs() < f64::EPSILON);
        assert_eq!(insert(&mut filter, 77_777, at(3_030)), Outcome::Fresh);
    }

    /// PLA-09, at the design load: three full filters.
    #[test]
    fn of_a_thousand_new_packets_at_most_one_looks_old_at_full_load() {
        const CAPACITY: u64 = 60_000;
        let mut filter = filter(CAPACITY as usize);
        for turn in 0..3 {
            for number in 0..CAPACITY {
                insert(&mut filter, turn * CAPACITY + number, at(3_000 + 30 * turn));
            }
        }
        let tries = 200_000u64;
        let false_positives =
            (0..tries).filter(|n| insert(&mut filter, 1 << 40 | n, at(3_060)) == Outcome::Seen).count() as u64;
        assert!(false_positives <= tries / 1_000, "{false_positives} of {tries}");
        // Ten octets for each packet of a turn, for all turns together.
        assert!(filter.memory() <= CAPACITY as usize * 10);
    }
}
