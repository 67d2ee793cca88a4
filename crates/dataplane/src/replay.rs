//! The replay filter: a keyed Bloom filter for each of three periods of 32 seconds, rotated by the clock alone (threat P14).
//!
//! A nonce is fresh for 30 seconds on either side, so that a packet must be remembered for 60 seconds: the period in which
//! it came and the two after it remember it for 64 at least. The four seconds beyond are for a thread that decides by a
//! clock which it read before another thread began a period. All bits of a packet, for all periods, lie in one cache line,
//! next to the period up to which the line is cleared: no period begins with a walk over the whole filter.
//!
//! Threads share a filter: each has a [`ReplayFilter`] of its own, and all of them one memory. Of copies of a packet that
//! several threads insert at the same time, at most one is fresh. A filter with one thread takes no locks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use wayleave_core::UnixTime;
use wayleave_crypto::lanes::Aes128;

use crate::lanes::prefetch;
use wayleave_crypto::secret::Key128;
use wayleave_packet::platypus::verify::MAX_FRESHNESS;

/// Periods that are remembered.
const PERIODS: u64 = 3;
/// Seconds of a period.
const PERIOD: u64 = MAX_FRESHNESS as u64 + 2;
/// Positions for each packet of a period: with seven of them marked, three full periods give one false positive in a
/// thousand packets or fewer.
const POSITIONS_PER_PACKET: usize = 26;
/// Words of a line that hold positions.
const WORDS: usize = 7;
/// Positions in a word, each with a bit for every period.
const POSITIONS: usize = 21;
/// The first period's bits of a word.
const FIRST: u64 = 0x1249_2492_4924_9249;
/// Stands for a line's period while a thread has the line locked; that thread knows the period.
const LOCKED: u64 = 1 << 63;
/// How often a thread tries to lock a line, and how often it looks at the line between two tries. A lock is held for some
/// tens of instructions, so that a longer wait means that its holder has lost its core.
const TRIES: usize = 64;
/// Packets that a thread may insert before it goes back to the shared counter, at most.
const QUOTA: u64 = 64;
/// The capacity is divided into at least so many quotas: what threads have taken and do not use is lost for the period.
const QUOTAS: u64 = 1 << 12;

/// One cache line, in which a packet has one position in each word of `positions`: one fetch tests all periods.
#[derive(Default)]
#[repr(align(64))]
struct CacheLine {
    /// The period up to which the positions are cleared, or [`LOCKED`].
    period: AtomicU64,
    positions: [AtomicU64; WORDS],
}

/// Whether the filter knows a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplayOutcome {
    /// The packet was inserted.
    Fresh,
    /// The packet, or one with the same bits, was inserted before.
    Repeated,
    /// The filter has taken as many packets in this period as it is made for.
    Full,
}

/// One thread's handle on a filter.
pub struct ReplayFilter {
    shared: Arc<SharedFilter>,
    /// The latest period that this thread has seen.
    period: u64,
    /// Packets of this period that the thread may insert without going back to the shared counter.
    quota: u64,
    /// Whether this period's capacity is used up.
    is_full: bool,
}

/// By how many bits a packet's position is shifted in each word: three bits for each of 21 positions. Each follows from
/// eleven bits of the hash; none of the bits that choose the line is among them.
#[derive(Clone, Copy)]
struct Shifts {
    /// Four shifts in each, sixteen bits apart, so that one multiplication scales four of them.
    lanes: [u64; 2],
}

impl Shifts {
    #[inline(always)]
    fn new(hash: u128) -> Self {
        const ELEVEN: u64 = 0x07ff_07ff_07ff_07ff;
        const FIVE: u64 = 0x001f_001f_001f_001f;
        let scaled = |eleven: u64| 3 * (((eleven & ELEVEN) * POSITIONS as u64) >> 11 & FIVE);
        let (low, high) = (hash as u64, (hash >> 64) as u64 & 0xffff_ffff);
        // The seventh shift takes the bits that the six others do not use.
        let last = high >> 11 & 0x1f | high >> 22 & 0x3e0 | low >> 5 & 0x400;
        Self { lanes: [scaled(low), scaled(high | last << 32)] }
    }

    #[inline(always)]
    fn of(self, word: usize) -> u32 {
        (self.lanes[word / 4] >> (16 * (word % 4))) as u32 & 63
    }
}

/// What the threads share.
struct SharedFilter {
    cipher: Aes128,
    lines: Box<[CacheLine]>,
    /// The latest period in the upper half, and in the lower half how much of its capacity has been handed out.
    taken: AtomicU64,
    capacity: u64,
}

/// Bits of [`SharedFilter::taken`] below the period.
const COUNT_BITS: u32 = 32;

impl std::fmt::Debug for ReplayFilter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ReplayFilter of {} packets a period", self.shared.capacity)
    }
}

impl ReplayFilter {
    /// A filter for `capacity` packets in each period, fewer than 2^32. `key` must be random and known to this router alone,
    /// so that nobody can compute which packets share their bits.
    #[must_use]
    pub fn new(key: &Key128, capacity: usize) -> Self {
        let capacity = capacity.clamp(1, u32::MAX as usize);
        let lines = (capacity * POSITIONS_PER_PACKET).div_ceil(WORDS * POSITIONS);
        let lines = (0..lines).map(|_| CacheLine::default()).collect();
        let cipher = Aes128::new(key.expose());
        let shared = SharedFilter { cipher, lines, taken: AtomicU64::new(0), capacity: capacity as u64 };
        Self { shared: Arc::new(shared), period: 0, quota: 0, is_full: false }
    }

    /// The same filter for another thread.
    #[must_use]
    pub fn share(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), period: 0, quota: 0, is_full: false }
    }

    /// Inserts a packet, by octets that no two packets share.
    pub fn insert(&mut self, fingerprint: [u8; 16], now: UnixTime) -> ReplayOutcome {
        let mut hash = [fingerprint];
        self.shared.cipher.encrypt(&mut hash);
        self.put(hash[0], now)
    }

    /// Encrypts octets that no two packets share into the hashes that [`ReplayFilter::put`] takes, and begins to fetch their
    /// lines: first for a whole burst, so that the fetches overlap, and then each packet is inserted.
    pub fn look_up(&self, fingerprints: &mut [[u8; 16]]) {
        self.shared.cipher.encrypt(fingerprints);
        for hash in fingerprints {
            prefetch(self.shared.line(u128::from_be_bytes(*hash)));
        }
    }

    /// Whether the filter remembers a packet, by octets that no two packets share. Nothing is inserted.
    #[must_use]
    pub fn knows(&mut self, fingerprint: [u8; 16], now: UnixTime) -> bool {
        let mut hash = [fingerprint];
        self.shared.cipher.encrypt(&mut hash);
        self.period = self.period.max(now.secs() / PERIOD);
        let hash = u128::from_be_bytes(hash[0]);
        let line = self.shared.line(hash);
        let guard = if self.is_alone() { Some(line.guard_alone()) } else { line.lock() };
        let Some(mut guard) = guard else { return false };
        guard.advance_to(self.period);
        let shifts = Shifts::new(hash);
        let words = guard.line.positions.iter().enumerate();
        let periods = words.fold(!0, |bits, (index, word)| bits & word.load(Ordering::Relaxed) >> shifts.of(index));
        periods & ((1 << PERIODS) - 1) != 0
    }

    /// Inserts a packet by its hash from [`ReplayFilter::look_up`].
    #[inline(always)]
    pub fn put(&mut self, hash: [u8; 16], now: UnixTime) -> ReplayOutcome {
        let period = now.secs() / PERIOD;
        // A clock that goes back clears nothing, and uses no capacity of periods that are over.
        if period > self.period {
            (self.period, self.quota, self.is_full) = (period, 0, false);
        }
        let hash = u128::from_be_bytes(hash);
        let line = self.shared.line(hash);
        // A thread that has the line locked is about to finish, or the system has taken its core away. This thread cannot
        // wait for that: a fresh packet that is taken for a repeated one does less harm than a repeated one that passes.
        let guard = if self.is_alone() { Some(line.guard_alone()) } else { line.lock() };
        let Some(mut guard) = guard else { return ReplayOutcome::Repeated };
        guard.advance_to(self.period);
        let shifts = Shifts::new(hash);
        let mut periods = !0;
        for (index, word) in guard.line.positions.iter().enumerate() {
            periods &= word.load(Ordering::Relaxed) >> shifts.of(index);
        }
        if periods & ((1 << PERIODS) - 1) != 0 {
            return ReplayOutcome::Repeated;
        }
        if self.quota == 0 && !self.is_full {
            self.quota = self.shared.take_quota(self.period);
            self.is_full = self.quota == 0;
        }
        if self.is_full {
            return ReplayOutcome::Full;
        }
        self.quota -= 1;
        let bit = 1 << (guard.period % PERIODS);
        for (index, word) in guard.line.positions.iter().enumerate() {
            word.store(word.load(Ordering::Relaxed) | bit << shifts.of(index), Ordering::Relaxed);
        }
        ReplayOutcome::Fresh
    }

    /// Whether no other thread has a handle: only from this one could another be made.
    #[inline(always)]
    fn is_alone(&self) -> bool {
        if Arc::strong_count(&self.shared) != 1 {
            return false;
        }
        // Orders the writes of a thread that has dropped its handle before this thread's reads.
        fence(Ordering::Acquire);
        true
    }

    /// Forgets everything, between two passes of a benchmark.
    pub(crate) fn clear(&mut self) {
        let shared = Arc::get_mut(&mut self.shared).expect("a benchmark has one thread");
        shared.lines.iter_mut().flat_map(|line| &mut line.positions).for_each(|word| *word.get_mut() = 0);
        *shared.taken.get_mut() = 0;
        (self.quota, self.is_full) = (0, false);
    }

    /// The part of this period's capacity that all threads have taken: at 1, packets are refused.
    #[must_use]
    pub fn load(&self, now: UnixTime) -> f64 {
        let taken = self.shared.taken.load(Ordering::Relaxed);
        let count = if taken >> COUNT_BITS >= now.secs() / PERIOD { taken & ((1 << COUNT_BITS) - 1) } else { 0 };
        count as f64 / self.shared.capacity as f64
    }

    /// Octets of memory.
    #[must_use]
    pub fn memory(&self) -> usize {
        size_of_val(&*self.shared.lines)
    }
}

impl SharedFilter {
    #[inline(always)]
    fn line(&self, hash: u128) -> &CacheLine {
        &self.lines[(((hash >> 96) as u64 * self.lines.len() as u64) >> 32) as usize]
    }

    /// Takes a quota of `period`, or of the latest period if that one is over; zero if the capacity is used up.
    #[cold]
    fn take_quota(&self, period: u64) -> u64 {
        let quota = |taken: u64| {
            let (of, count) = (taken >> COUNT_BITS, taken & ((1 << COUNT_BITS) - 1));
            let count = if period > of { 0 } else { count };
            let quota = (self.capacity / QUOTAS).clamp(1, QUOTA).min(self.capacity - count);
            (quota, period.max(of) << COUNT_BITS | (count + quota))
        };
        let mut taken = self.taken.load(Ordering::Relaxed);
        loop {
            let (quota, after) = quota(taken);
            match self.taken.compare_exchange_weak(taken, after, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return quota,
                Err(other) => taken = other,
            }
        }
    }
}

/// A line that this thread alone reads and writes, until the guard is dropped.
struct LineGuard<'a> {
    line: &'a CacheLine,
    period: u64,
}

impl CacheLine {
    /// Without a lock, where there is no other thread.
    #[inline(always)]
    fn guard_alone(&self) -> LineGuard<'_> {
        LineGuard { line: self, period: self.period.load(Ordering::Relaxed) }
    }

    /// `None` if another thread has the line locked for too long.
    #[inline(always)]
    fn lock(&self) -> Option<LineGuard<'_>> {
        for _ in 0..TRIES {
            let period = self.period.swap(LOCKED, Ordering::Acquire);
            if period & LOCKED == 0 {
                return Some(LineGuard { line: self, period });
            }
            // Reading alone leaves the cache line with the thread that has it locked; another swap would take it away.
            for _ in 0..TRIES {
                if self.period.load(Ordering::Relaxed) & LOCKED == 0 {
                    break;
                }
                std::hint::spin_loop();
            }
        }
        None
    }
}

impl LineGuard<'_> {
    /// Clears the bits of periods that are over, to use them for new ones.
    #[inline(always)]
    fn advance_to(&mut self, period: u64) {
        if period > self.period {
            self.clear_until(period);
        }
    }

    #[cold]
    fn clear_until(&mut self, period: u64) {
        let steps = (period - self.period).min(PERIODS);
        let cleared = (0..steps).fold(0, |bits, step| bits | FIRST << ((period - step) % PERIODS));
        for word in &self.line.positions {
            word.store(word.load(Ordering::Relaxed) & !cleared, Ordering::Relaxed);
        }
        self.period = period;
    }
}

impl Drop for LineGuard<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.line.period.store(self.period, Ordering::Release);
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

    fn insert(filter: &mut ReplayFilter, number: u64, now: UnixTime) -> ReplayOutcome {
        filter.insert(u128::from(number).to_be_bytes(), now)
    }

    #[test]
    fn a_packet_is_known_for_sixty_four_seconds_and_gone_after_three_periods() {
        for begin in 3_200..3_200 + PERIOD {
            let mut filter = filter(100);
            assert_eq!(insert(&mut filter, 1, at(begin)), ReplayOutcome::Fresh);
            for later in 0..=64 {
                assert_eq!(insert(&mut filter, 1, at(begin + later)), ReplayOutcome::Repeated);
            }
            assert_eq!(insert(&mut filter, 1, at(begin + 96)), ReplayOutcome::Fresh);
            // A clock that goes back forgets nothing.
            assert_eq!(insert(&mut filter, 1, at(begin - 1_000)), ReplayOutcome::Repeated);
        }
    }

    /// The nonce is 30 seconds ahead of the first copy, and 30 seconds behind the last one that is fresh.
    #[test]
    fn a_thread_whose_clock_is_one_period_late_knows_what_others_inserted() {
        for begin in 3_200..3_200 + PERIOD {
            let (mut first, number) = (filter(100), 1);
            let (mut ahead, mut behind) = (first.share(), first.share());
            assert_eq!(insert(&mut first, number, at(begin)), ReplayOutcome::Fresh);
            insert(&mut behind, 2, at(begin + 60));
            // One that is four seconds ahead has begun the next period in every line.
            for other in 10..90 {
                insert(&mut ahead, other, at(begin + 63));
            }
            assert_eq!(insert(&mut behind, number, at(begin + 60)), ReplayOutcome::Repeated);
        }
    }

    #[test]
    fn a_full_filter_takes_no_more_until_the_next_period() {
        let mut filter = filter(10_000);
        let outcomes: Vec<ReplayOutcome> = (0..10_100).map(|n| insert(&mut filter, n, at(3_200))).collect();
        assert!(outcomes[10_090..].iter().all(|outcome| *outcome != ReplayOutcome::Fresh));
        assert!((filter.load(at(3_200)) - 1.0).abs() < f64::EPSILON);
        assert!(filter.load(at(3_232)).abs() < f64::EPSILON);
        assert_eq!(insert(&mut filter, 77_777, at(3_232)), ReplayOutcome::Fresh);
    }

    /// Copies of a packet that come in two ways may reach two threads.
    #[test]
    fn of_copies_that_threads_insert_at_once_one_is_fresh() {
        const PACKETS: u64 = 100_000;
        let whole = filter(3 * PACKETS as usize);
        let fresh = |mut filter: ReplayFilter| {
            // The clock goes on meanwhile, one period; who is ahead is chance.
            let outcome = |n| insert(&mut filter, n, at(3_200 + PERIOD * u64::from(n > PACKETS / 2)));
            (0..PACKETS).map(outcome).map(|outcome| u8::from(outcome == ReplayOutcome::Fresh)).collect::<Vec<u8>>()
        };
        let counts = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| whole.share()).map(|one| scope.spawn(|| fresh(one))).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect::<Vec<_>>()
        });
        let times: Vec<u8> = (0..PACKETS as usize).map(|n| counts.iter().map(|of| of[n]).sum()).collect();
        assert!(times.iter().all(|times| *times <= 1));
        // A thread that loses its core inside a line makes others take a packet for an old one, as rarely as that.
        let lost = times.iter().filter(|times| **times == 0).count();
        assert!(lost <= PACKETS as usize / 100, "{lost}");
    }

    #[test]
    fn a_thread_that_is_alone_again_knows_what_it_and_another_inserted() {
        let mut first = filter(1_000);
        let outcomes = |of: &mut ReplayFilter, range: std::ops::Range<u64>, what| {
            range.for_each(|number| assert_eq!(insert(of, number, at(3_200)), what, "{number}"));
        };
        outcomes(&mut first, 0..100, ReplayOutcome::Fresh);
        let mut second = first.share();
        outcomes(&mut second, 0..100, ReplayOutcome::Repeated);
        outcomes(&mut second, 100..200, ReplayOutcome::Fresh);
        outcomes(&mut first, 100..200, ReplayOutcome::Repeated);
        drop(second);
        outcomes(&mut first, 0..200, ReplayOutcome::Repeated);
        outcomes(&mut first, 200..300, ReplayOutcome::Fresh);
    }

    /// Eleven bits for each of seven positions, and none of those that choose the line.
    #[test]
    fn each_bit_of_a_hash_moves_one_position_or_chooses_the_line() {
        let shifts = |hash| (0..WORDS).map(|word| Shifts::new(hash).of(word)).collect::<Vec<u32>>();
        let mut bits = [0; WORDS];
        for bit in 0..128 {
            // Beside all others set, a bit moves its position if it does at all.
            let (with, without) = (shifts(u128::MAX), shifts(u128::MAX ^ 1 << bit));
            let one = shifts(1 << bit);
            let moved: Vec<usize> = (0..WORDS).filter(|word| with[*word] != without[*word]).collect();
            assert!(moved.len() <= 1 && one.iter().chain(&with).all(|shift| *shift <= 60 && shift % 3 == 0));
            if bit >= 96 {
                assert!(moved.is_empty() && one == shifts(0), "{bit}");
            }
            moved.into_iter().for_each(|word| bits[word] += 1);
        }
        // The lowest bits of a position's eleven matter only together with some of the others.
        assert!(bits.iter().all(|count| (4..=11).contains(count)), "{bits:?}");
    }

    /// All that threads take together is within the capacity.
    #[test]
    fn a_full_filter_is_full_for_every_thread() {
        for capacity in [1, 50, 1_000, 100_000] {
            let mut filters = vec![filter(capacity)];
            (1..4).for_each(|_| filters.push(filters[0].share()));
            let tries = 4 * capacity as u64;
            let fresh = (0..tries)
                .filter(|n| insert(&mut filters[*n as usize % 4], *n, at(3_200)) == ReplayOutcome::Fresh)
                .count();
            assert!((capacity - capacity / 500..=capacity).contains(&fresh), "{fresh} of {capacity}");
            assert_eq!(insert(&mut filters[1], 1 << 40, at(3_232)), ReplayOutcome::Fresh);
            assert_eq!(insert(&mut filters[0], 1 << 40, at(3_232)), ReplayOutcome::Repeated);
        }
    }

    /// PLA-09, at the design load: three full filters.
    #[test]
    fn of_a_thousand_new_packets_at_most_one_looks_old_at_full_load() {
        const CAPACITY: u64 = 60_000;
        let mut filter = filter(CAPACITY as usize);
        for period in 0..3 {
            for number in 0..CAPACITY {
                insert(&mut filter, period * CAPACITY + number, at(3_200 + PERIOD * period));
            }
        }
        let tries = 200_000u64;
        let false_positives = (0..tries)
            .filter(|n| insert(&mut filter, 1 << 40 | n, at(3_264)) == ReplayOutcome::Repeated)
            .count() as u64;
        assert!(false_positives <= tries / 1_000, "{false_positives} of {tries}");
        // Less than twelve octets for each packet of a period, for all periods together.
        assert!(filter.memory() <= CAPACITY as usize * 12);
    }
}
