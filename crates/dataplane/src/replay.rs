//! Which packets came before: three Bloom filters, keyed, taking turns of 30 seconds by the clock alone (threat P14).
//!
//! A nonce is fresh for 30 seconds on either side, so what was put in must be known for 60 seconds: the turn in which it
//! came and the two after it hold it. All bits of an entry lie in one cache line.

use wayleave_core::UnixTime;
use wayleave_crypto::lanes::Aes128;
use wayleave_crypto::secret::Key128;
use wayleave_packet::platypus::verify::MAX_FRESHNESS;

/// Filters that take turns.
const TURNS: usize = 3;
/// Bits of memory for each packet: with eight bits set of each, all three filters full give one false positive in a
/// thousand packets or fewer.
const BITS_PER_PACKET: usize = 20;
/// Bits set for each packet.
const PROBES: u32 = 8;
/// Bits of one block, which is one cache line.
const BLOCK_BITS: usize = 512;

#[derive(Clone, Copy, Default)]
#[repr(align(64))]
struct Line([u64; BLOCK_BITS / 64]);

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
    filters: [Box<[Line]>; TURNS],
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
        let lines = (capacity * BITS_PER_PACKET).div_ceil(BLOCK_BITS).max(1);
        let filters = std::array::from_fn(|_| vec![Line::default(); lines].into_boxed_slice());
        Self { cipher: Aes128::new(key.expose()), filters, turn: 0, count: 0, capacity: capacity.max(1) }
    }

    /// Puts a packet in, by octets that no two packets share: its nonce and half of its binding.
    pub fn insert(&mut self, fingerprint: [u8; 16], now: UnixTime) -> Outcome {
        self.turn_to(now);
        let hash = u128::from_be_bytes(self.cipher.encrypt_one(&fingerprint));
        let lines = self.filters[0].len() as u128;
        let line = (((hash >> 96) * lines) >> 32) as usize;
        let mut mask = [0u64; BLOCK_BITS / 64];
        for probe in 0..PROBES {
            let bit = (hash >> (9 * probe)) as usize % BLOCK_BITS;
            mask[bit / 64] |= 1 << (bit % 64);
        }
        let holds = |filter: &[Line]| filter[line].0.iter().zip(mask).all(|(word, mask)| word & mask == mask);
        if self.filters.iter().any(|filter| holds(filter)) {
            return Outcome::Seen;
        }
        if self.count == self.capacity {
            return Outcome::Full;
        }
        self.count += 1;
        let current = (self.turn % TURNS as u64) as usize;
        for (word, mask) in self.filters[current][line].0.iter_mut().zip(mask) {
            *word |= mask;
        }
        Outcome::Fresh
    }

    /// Forgets everything, between two passes of a benchmark.
    pub(crate) fn clear(&mut self) {
        for filter in &mut self.filters {
            filter.fill(Line::default());
        }
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
        TURNS * self.filters[0].len() * size_of::<Line>()
    }

    /// Clears the filters whose turn has come again. A clock that goes back clears nothing.
    fn turn_to(&mut self, now: UnixTime) {
        let turn = now.secs() / u64::from(MAX_FRESHNESS);
        if turn <= self.turn {
            return;
        }
        let steps = (turn - self.turn).min(TURNS as u64);
        for step in 0..steps {
            self.filters[((turn - step) % TURNS as u64) as usize].fill(Line::default());
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

    fn fingerprint(number: u64) -> [u8; 16] {
        u128::from(number).to_be_bytes()
    }

    #[test]
    fn a_packet_is_known_for_sixty_seconds_and_gone_after_ninety() {
        for begin in 3_000..3_030 {
            let mut filter = filter(100);
            assert_eq!(filter.insert(fingerprint(1), at(begin)), Outcome::Fresh);
            for later in 0..=60 {
                assert_eq!(filter.insert(fingerprint(1), at(begin + later)), Outcome::Seen);
            }
            assert_eq!(filter.insert(fingerprint(1), at(begin + 90)), Outcome::Fresh);
            // A clock that goes back forgets nothing.
            assert_eq!(filter.insert(fingerprint(1), at(begin - 1_000)), Outcome::Seen);
        }
    }

    #[test]
    fn a_full_filter_takes_no_more_until_the_next_turn() {
        let mut filter = filter(10_000);
        let outcomes: Vec<Outcome> = (0..10_100).map(|n| filter.insert(fingerprint(n), at(3_000))).collect();
        assert!(outcomes[10_090..].iter().all(|outcome| *outcome != Outcome::Fresh));
        assert!((filter.load() - 1.0).abs() < f64::EPSILON);
        assert_eq!(filter.insert(fingerprint(77_777), at(3_030)), Outcome::Fresh);
    }

    /// PLA-09, at the design load: three full filters.
    #[test]
    fn of_a_thousand_new_packets_at_most_one_looks_old_at_full_load() {
        const CAPACITY: u64 = 60_000;
        let mut filter = filter(CAPACITY as usize);
        for turn in 0..3 {
            for number in 0..CAPACITY {
                filter.insert(fingerprint(turn * CAPACITY + number), at(3_000 + 30 * turn));
            }
        }
        let tries = 200_000u64;
        let false_positives =
            (0..tries).filter(|n| filter.insert(fingerprint(1 << 40 | n), at(3_060)) == Outcome::Seen).count() as u64;
        assert!(false_positives <= tries / 1_000, "{false_positives} of {tries}");
        assert!(filter.memory() <= 3 * (CAPACITY as usize * BITS_PER_PACKET / 8 + 64));
    }
}
