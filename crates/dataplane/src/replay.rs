//! The replay filter: a keyed Bloom filter for each of three turns of four seconds, rotated by the monotonic clock alone
//! (threat P14).
//!
//! A packet is fresh from one second before its stamp to five after it, in whole seconds, so that it must be remembered for
//! seven: the turn in which it came and the two after it remember it for eight at least. The second beyond is for a thread that
//! decides by a clock which it read before another thread began a turn, and for corrections of the wall clock (`clock`).
//! All bits of a packet, for all turns, lie in one cache line, next to the turn up to which the line is cleared: no turn begins
//! with a walk over the whole filter.
//!
//! What a packet takes is counted in the partition of its payer ([`Partition`]): who sends more than its share finds its own partition full,
//! and nobody else's.
//!
//! Threads share a filter: each has a [`ReplayFilter`] of its own, and all of them one memory. Of copies of a packet that
//! several threads insert at the same time, at most one is fresh. A filter with one thread takes no locks.

mod clock;
mod partitions;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use wayleave_core::{Instant, Now, UnixTime};
use wayleave_crypto::lanes::Aes128;

use crate::frame::BURST;
use crate::lanes::prefetch;
use wayleave_crypto::secret::Key128;
use wayleave_packet::{icing, platypus};

use clock::WatchedClock;
pub use clock::{ClockJumps, begins};
pub use partitions::{MOST_PARTITIONS, Partition, Partitions, packets_of};

/// Turns that are remembered.
const TURNS: u64 = 3;
/// Seconds of a turn.
pub const TURN: u64 = 4;
const TURN_NANOS: u64 = TURN * 1_000_000_000;
/// Seconds by which a stamp may lie behind and ahead of a router's clock, in any format.
const MAX_FRESHNESS: u64 = platypus::verify::MAX_FRESHNESS as u64;
const MAX_AHEAD: u64 = platypus::verify::MAX_AHEAD as u64;
const _: () = {
    assert!(MAX_FRESHNESS == icing::verify::MAX_FRESHNESS as u64 && MAX_AHEAD == icing::verify::MAX_AHEAD as u64);
    // From the first microsecond in which a stamp is fresh to the last one, and a second beyond.
    assert!((TURNS - 1) * TURN > MAX_AHEAD + MAX_FRESHNESS + 1);
};
/// Positions for each packet of a turn: with seven of them marked, three full turns give one false positive in a thousand
/// packets or fewer.
const POSITIONS_PER_PACKET: usize = 26;
/// Words of a line that hold positions.
const WORDS: usize = 7;
/// Positions in a word, each with a bit for every turn.
const POSITIONS: usize = 21;
/// The first turn's bits of a word.
const FIRST: u64 = 0x1249_2492_4924_9249;
/// Stands for a line's turn while a thread has the line locked; that thread knows the turn.
const LOCKED: u64 = 1 << 63;
/// How often a thread tries to lock a line, and how often it looks at the line between two tries. A lock is held for some
/// tens of instructions, so that a longer wait means that its holder has lost its core.
const TRIES: usize = 64;
/// Packets that a thread may insert before it goes back to a partition's shared counter, at most.
const QUOTA: u64 = 64;
/// A partition is divided into at least so many quotas: what threads have taken and do not use is lost for the turn.
const QUOTAS: u64 = 1 << 12;

/// One cache line, in which a packet has one position in each word of `positions`: one fetch tests all turns.
#[derive(Default)]
#[repr(align(64))]
struct CacheLine {
    /// The turn up to which the positions are cleared, or [`LOCKED`].
    turn: AtomicU64,
    positions: [AtomicU64; WORDS],
}

/// What became of a packet at the filter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplayOutcome {
    /// The packet was inserted.
    Fresh,
    /// The packet, or one with the same bits, was inserted before.
    Repeated,
    /// The packet is new, and its payer may not send it now. It was not inserted.
    Unpaid,
    /// The packet is new, and its payer's partition is used up in this turn.
    Full,
}

/// One thread's handle on a filter.
pub struct ReplayFilter {
    shared: Arc<SharedFilter>,
    /// The latest turn that this thread has seen.
    turn: u64,
    /// For each partition, what this thread may insert without going back to the shared counter.
    quotas: Box<[Quota]>,
}

/// What a thread holds of a partition.
#[derive(Clone, Copy, Default)]
struct Quota {
    /// The lower half of the turn that the rest is for.
    turn: u32,
    left: u16,
    /// Whether the partition is used up in this turn.
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
    /// For each partition the latest turn in the upper half, and in the lower half how many packets of it have been handed out.
    taken: Box<[AtomicU64]>,
    capacity: usize,
    clock: WatchedClock,
}

/// Bits of an entry of [`SharedFilter::taken`] below the turn.
const COUNT_BITS: u32 = 32;

impl std::fmt::Debug for ReplayFilter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ReplayFilter of {} packets a turn", self.shared.capacity)
    }
}

impl ReplayFilter {
    /// A filter for `capacity` packets in each turn of [`TURN`] seconds, fewer than 2^32, of a router that starts at `started`.
    /// `key` must be random and known to this router alone, so that nobody can compute which packets share their bits.
    #[must_use]
    pub fn new(key: &Key128, capacity: usize, started: UnixTime) -> Self {
        let capacity = capacity.clamp(1, u32::MAX as usize);
        let lines = (0..lines_of(capacity)).map(|_| CacheLine::default()).collect();
        let cipher = Aes128::new(key.expose());
        let taken = (0..=MOST_PARTITIONS).map(|_| AtomicU64::new(0)).collect();
        let clock = WatchedClock::new(started);
        Self::of(Arc::new(SharedFilter { cipher, lines, taken, capacity, clock }))
    }

    /// The same filter for another thread.
    #[must_use]
    pub fn share(&self) -> Self {
        Self::of(Arc::clone(&self.shared))
    }

    fn of(shared: Arc<SharedFilter>) -> Self {
        Self { shared, turn: 0, quotas: vec![Quota::default(); MOST_PARTITIONS + 1].into_boxed_slice() }
    }

    /// Packets that the filter is made for in a turn.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.shared.capacity
    }

    /// Encrypts octets that no two packets share into the hashes that [`ReplayFilter::admit`] takes, and begins to fetch
    /// their lines: first for a whole burst, so that the fetches overlap, and then each packet is admitted.
    #[inline]
    pub fn look_up(&self, fingerprints: &mut [[u8; 16]]) {
        self.shared.cipher.encrypt(fingerprints);
        for hash in fingerprints {
            prefetch(self.shared.line(u128::from_be_bytes(*hash)));
        }
    }

    /// The same, where hashes are to be those of the packets with these `origins` only: CBC-MACs of both blocks. Who knows all of a
    /// packet still cannot say what another origin and other octets must be that have its hash.
    #[inline]
    pub fn look_up_with(&self, origins: &mut [[u8; 16]], fingerprints: &mut [[u8; 16]]) {
        self.chain(origins, fingerprints);
        self.look_up(fingerprints);
    }

    #[inline]
    fn chain(&self, origins: &mut [[u8; 16]], fingerprints: &mut [[u8; 16]]) {
        self.shared.cipher.encrypt(origins);
        for (fingerprint, origin) in fingerprints.iter_mut().zip(origins) {
            *fingerprint = (u128::from_ne_bytes(*fingerprint) ^ u128::from_ne_bytes(*origin)).to_ne_bytes();
        }
    }

    /// Whether the filter remembers a packet, by its origin and octets that no two packets share. Nothing is inserted.
    #[must_use]
    pub fn knows(&mut self, origin: [u8; 16], fingerprint: [u8; 16], now: Instant) -> bool {
        let mut hash = [fingerprint];
        self.chain(&mut [origin], &mut hash);
        self.shared.cipher.encrypt(&mut hash);
        self.turn = self.turn.max(now.0 / TURN_NANOS);
        let hash = u128::from_be_bytes(hash[0]);
        let line = self.shared.line(hash);
        let guard = if self.is_alone() { Some(line.guard_alone()) } else { line.lock() };
        let Some(mut guard) = guard else { return false };
        guard.advance_to(self.turn);
        let shifts = Shifts::new(hash);
        let words = guard.line.positions.iter().enumerate();
        let turns = words.fold(!0, |bits, (index, word)| bits & word.load(Ordering::Relaxed) >> shifts.of(index));
        turns & ((1 << TURNS) - 1) != 0
    }

    /// Looks a packet up by its hash from [`ReplayFilter::look_up`]. If it is new, `claim` is asked for its payer's partition, which
    /// is none if the payer may not send it now; then the packet is inserted, if that partition has place.
    #[inline(always)]
    pub fn admit(&mut self, hash: [u8; 16], now: Instant, claim: impl FnOnce() -> Option<Partition>) -> ReplayOutcome {
        self.turn = self.turn.max(now.0 / TURN_NANOS);
        let hash = u128::from_be_bytes(hash);
        let line = self.shared.line(hash);
        // A thread that has the line locked is about to finish, or the system has taken its core away. This thread cannot
        // wait for that: a fresh packet that is taken for a repeated one does less harm than a repeated one that passes.
        let guard = if self.is_alone() { Some(line.guard_alone()) } else { line.lock() };
        let Some(mut guard) = guard else { return ReplayOutcome::Repeated };
        guard.advance_to(self.turn);
        let shifts = Shifts::new(hash);
        let mut turns = !0;
        for (index, word) in guard.line.positions.iter().enumerate() {
            turns &= word.load(Ordering::Relaxed) >> shifts.of(index);
        }
        if turns & ((1 << TURNS) - 1) != 0 {
            return ReplayOutcome::Repeated;
        }
        let Some(partition) = claim() else { return ReplayOutcome::Unpaid };
        if !take_place(&mut self.quotas, &self.shared, partition, self.turn) {
            return ReplayOutcome::Full;
        }
        let bit = 1 << (guard.turn % TURNS);
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

    /// Compares both clocks with what they were: once for every burst, and once a second where no packets come.
    #[inline(always)]
    pub fn observe(&self, now: Now) {
        self.shared.clock.observe(now);
    }

    /// Whether a packet may have been accepted before this router started, or before its clock went back: then it is refused,
    /// since nobody remembers it. `stamped` are the seconds of its stamp modulo 2^32.
    #[inline(always)]
    #[must_use]
    pub fn is_from_before(&self, stamped: u32) -> bool {
        self.shared.clock.is_from_before(stamped)
    }

    /// The first second whose stamps are accepted.
    #[must_use]
    pub fn accepts_from(&self) -> u64 {
        self.shared.clock.accepts_from()
    }

    /// How the wall clock jumped since the start.
    #[must_use]
    pub fn clock_jumps(&self) -> ClockJumps {
        self.shared.clock.jumps()
    }

    /// Packets that all threads have taken of a partition in this turn.
    #[must_use]
    pub fn taken(&self, partition: Partition, now: Instant) -> u64 {
        self.shared.taken[partition.slot()].load(Ordering::Relaxed).of_turn(now)
    }

    /// The part of the filter that is taken in this turn, in all partitions together.
    #[must_use]
    pub fn load(&self, now: Instant) -> f64 {
        let taken: u64 = self.shared.taken.iter().map(|taken| taken.load(Ordering::Relaxed).of_turn(now)).sum();
        taken as f64 / self.shared.capacity as f64
    }

    /// Octets of memory that all threads share.
    #[must_use]
    pub fn memory(&self) -> usize {
        size_of_val(&*self.shared.lines) + size_of_val(&*self.shared.taken)
    }

    /// Admits `count` packets that are nobody's, whose numbers begin with `first`: what a benchmark has come between two passes.
    pub(crate) fn fill(&mut self, first: u64, count: u64, now: Instant) {
        let partition = Partition::pool(u32::MAX);
        let mut number = u128::from(first) << 64;
        let mut left = count as usize;
        while left > 0 {
            let mut hashes = [[0; 16]; BURST];
            let hashes = &mut hashes[..left.min(BURST)];
            for hash in hashes.iter_mut() {
                *hash = number.to_be_bytes();
                number += 1 << 64;
            }
            self.look_up(hashes);
            for hash in hashes.iter() {
                self.admit(*hash, now, || Some(partition));
            }
            left -= hashes.len();
        }
    }
}

fn lines_of(capacity: usize) -> usize {
    (capacity * POSITIONS_PER_PACKET).div_ceil(WORDS * POSITIONS)
}

/// Octets of a filter for `capacity` packets a turn, all its threads together.
#[must_use]
pub fn memory_of(capacity: usize) -> usize {
    lines_of(capacity) * size_of::<CacheLine>() + (MOST_PARTITIONS + 1) * size_of::<AtomicU64>()
}

/// Takes one place of a partition for this turn; `false` if the partition is full.
#[inline(always)]
fn take_place(quotas: &mut [Quota], shared: &SharedFilter, partition: Partition, turn: u64) -> bool {
    let quota = &mut quotas[partition.slot()];
    if quota.turn != turn as u32 || quota.left == 0 && !quota.is_full {
        let left = shared.take_quota(partition, turn);
        *quota = Quota { turn: turn as u32, left: left as u16, is_full: left == 0 };
    }
    let has_place = quota.left > 0;
    quota.left -= u16::from(has_place);
    has_place
}

/// Reads an entry of [`SharedFilter::taken`].
trait TurnCount {
    fn of_turn(self, now: Instant) -> u64;
}

impl TurnCount for u64 {
    fn of_turn(self, now: Instant) -> u64 {
        if self >> COUNT_BITS >= now.0 / TURN_NANOS { self & ((1 << COUNT_BITS) - 1) } else { 0 }
    }
}

impl SharedFilter {
    #[inline(always)]
    fn line(&self, hash: u128) -> &CacheLine {
        &self.lines[(((hash >> 96) as u64 * self.lines.len() as u64) >> 32) as usize]
    }

    /// Takes a quota of `turn`, or of the latest turn if that one is over; zero if the partition is used up.
    #[cold]
    fn take_quota(&self, partition: Partition, turn: u64) -> u64 {
        let limit = u64::from(partition.limit());
        let quota = |taken: u64| {
            let (of, count) = (taken >> COUNT_BITS, taken & ((1 << COUNT_BITS) - 1));
            let count = if turn > of { 0 } else { count };
            // A partition may have become smaller within a turn.
            let quota = (limit / QUOTAS).clamp(1, QUOTA).min(limit.saturating_sub(count));
            (quota, turn.max(of) << COUNT_BITS | (count + quota))
        };
        let shared = &self.taken[partition.slot()];
        let mut taken = shared.load(Ordering::Relaxed);
        loop {
            let (quota, after) = quota(taken);
            match shared.compare_exchange_weak(taken, after, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return quota,
                Err(other) => taken = other,
            }
        }
    }
}

/// A line that this thread alone reads and writes, until the guard is dropped.
struct LineGuard<'a> {
    line: &'a CacheLine,
    turn: u64,
}

impl CacheLine {
    /// Without a lock, where there is no other thread.
    #[inline(always)]
    fn guard_alone(&self) -> LineGuard<'_> {
        LineGuard { line: self, turn: self.turn.load(Ordering::Relaxed) }
    }

    /// `None` if another thread has the line locked for too long.
    #[inline(always)]
    fn lock(&self) -> Option<LineGuard<'_>> {
        for _ in 0..TRIES {
            let turn = self.turn.swap(LOCKED, Ordering::Acquire);
            if turn & LOCKED == 0 {
                return Some(LineGuard { line: self, turn });
            }
            // Reading alone leaves the cache line with the thread that has it locked; another swap would take it away.
            for _ in 0..TRIES {
                if self.turn.load(Ordering::Relaxed) & LOCKED == 0 {
                    break;
                }
                std::hint::spin_loop();
            }
        }
        None
    }
}

impl LineGuard<'_> {
    /// Clears the bits of turns that are over, to use them for new ones.
    #[inline(always)]
    fn advance_to(&mut self, turn: u64) {
        if turn > self.turn {
            self.clear_until(turn);
        }
    }

    #[cold]
    fn clear_until(&mut self, turn: u64) {
        let steps = (turn - self.turn).min(TURNS);
        let cleared = (0..steps).fold(0, |bits, step| bits | FIRST << ((turn - step) % TURNS));
        for word in &self.line.positions {
            word.store(word.load(Ordering::Relaxed) & !cleared, Ordering::Relaxed);
        }
        self.turn = turn;
    }
}

impl Drop for LineGuard<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.line.turn.store(self.turn, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    //! PLA-09: replay filters full; one payer's partition full, by one thread and four: one false positive in a thousand at
    //! most; beyond, closed; all other partitions as they are.

    use super::*;

    fn at(secs: u64) -> Instant {
        Instant(secs * 1_000_000_000)
    }

    fn filter(capacity: usize) -> ReplayFilter {
        ReplayFilter::new(&Key128::new([5; 16]), capacity, UnixTime(0))
    }

    fn insert_into(filter: &mut ReplayFilter, partition: Partition, number: u64, now: Instant) -> ReplayOutcome {
        let mut hash = [u128::from(number).to_be_bytes()];
        filter.look_up(&mut hash);
        filter.admit(hash[0], now, || Some(partition))
    }

    fn insert(filter: &mut ReplayFilter, number: u64, now: Instant) -> ReplayOutcome {
        let partition = Partition::pool(filter.capacity() as u32);
        insert_into(filter, partition, number, now)
    }

    #[test]
    fn a_packet_is_known_for_eight_seconds_and_gone_after_three_turns() {
        for begin in 3_200..3_200 + TURN {
            let mut filter = filter(100);
            assert_eq!(insert(&mut filter, 1, at(begin)), ReplayOutcome::Fresh);
            for later in 0..=8 {
                assert_eq!(insert(&mut filter, 1, at(begin + later)), ReplayOutcome::Repeated);
            }
            assert_eq!(insert(&mut filter, 1, at(begin + 12)), ReplayOutcome::Fresh);
        }
    }

    /// The stamp is a second ahead of the first copy, and nearly six seconds behind the last one that is fresh.
    #[test]
    fn a_thread_whose_clock_is_one_turn_late_knows_what_others_inserted() {
        for begin in 3_200..3_200 + TURN {
            let (mut first, number) = (filter(100), 1);
            let (mut ahead, mut behind) = (first.share(), first.share());
            assert_eq!(insert(&mut first, number, at(begin)), ReplayOutcome::Fresh);
            insert(&mut behind, 2, at(begin + 7));
            // One that is a second ahead has begun the next turn in every line.
            for other in 10..90 {
                insert(&mut ahead, other, at(begin + 8));
            }
            assert_eq!(insert(&mut behind, number, at(begin + 7)), ReplayOutcome::Repeated);
        }
    }

    #[test]
    fn a_full_room_takes_no_more_until_the_next_turn() {
        let mut filter = filter(10_000);
        let outcomes: Vec<ReplayOutcome> = (0..10_100).map(|n| insert(&mut filter, n, at(3_200))).collect();
        assert!(outcomes[10_090..].iter().all(|outcome| *outcome != ReplayOutcome::Fresh));
        assert!((filter.load(at(3_200)) - 1.0).abs() < f64::EPSILON);
        assert!(filter.load(at(3_204)).abs() < f64::EPSILON);
        assert_eq!(insert(&mut filter, 77_777, at(3_204)), ReplayOutcome::Fresh);
    }

    /// By one thread and by four.
    #[test]
    fn a_full_room_leaves_all_other_rooms_as_they_are() {
        for threads in [1, 4] {
            let partitions = Partitions::divide(10_000, &[100, 2_000]);
            let mut filters = vec![filter(10_000)];
            (1..threads).for_each(|_| filters.push(filters[0].share()));
            let mut fresh = |partition: Partition, numbers: std::ops::Range<u64>| {
                let mut one = |n: &u64| insert_into(&mut filters[*n as usize % threads], partition, *n, at(3_200));
                numbers.filter(|n| one(n) == ReplayOutcome::Fresh).count() as u64
            };
            assert_eq!(fresh(partitions.each[0], 0..5_000), 100);
            assert!(fresh(partitions.pool, 5_000..40_000) >= u64::from(partitions.pool.limit()) * 99 / 100);
            assert!(fresh(partitions.each[1], 40_000..42_000) >= 1_998);
            assert_eq!(filters[0].taken(partitions.each[0], at(3_200)), 100);
            assert_eq!(filters[0].taken(partitions.each[0], at(3_204)), 0);
        }
    }

    #[test]
    fn what_is_repeated_or_not_paid_for_takes_no_place() {
        let mut filter = filter(1_000);
        let partitions = Partitions::divide(1_000, &[2]);
        let mut admit = |number: u64, is_paid: bool| {
            let mut hash = [u128::from(number).to_be_bytes()];
            filter.look_up(&mut hash);
            let mut is_claimed = false;
            let claim = || {
                is_claimed = true;
                is_paid.then_some(partitions.each[0])
            };
            (filter.admit(hash[0], at(7), claim), is_claimed)
        };
        for number in 10..100 {
            assert_eq!(admit(number, false), (ReplayOutcome::Unpaid, true));
        }
        assert_eq!(admit(10, true), (ReplayOutcome::Fresh, true));
        for _ in 0..100 {
            // The payer is not even asked.
            assert_eq!(admit(10, true), (ReplayOutcome::Repeated, false));
        }
        assert_eq!(admit(11, true), (ReplayOutcome::Fresh, true));
        assert_eq!(admit(12, true), (ReplayOutcome::Full, true));
    }

    /// Copies of a packet that come in two ways may reach two threads.
    #[test]
    fn of_copies_that_threads_insert_at_once_one_is_fresh() {
        const PACKETS: u64 = 100_000;
        let whole = filter(3 * PACKETS as usize);
        let fresh = |mut filter: ReplayFilter| {
            // The clock goes on meanwhile, one turn; who is ahead is chance.
            let outcome = |n| insert(&mut filter, n, at(3_200 + TURN * u64::from(n > PACKETS / 2)));
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
            assert_eq!(insert(&mut filters[1], 1 << 40, at(3_204)), ReplayOutcome::Fresh);
            assert_eq!(insert(&mut filters[0], 1 << 40, at(3_204)), ReplayOutcome::Repeated);
        }
    }

    /// PLA-09, at the design load: three full filters.
    #[test]
    fn of_a_thousand_new_packets_at_most_one_looks_old_at_full_load() {
        const CAPACITY: u64 = 60_000;
        let mut filter = filter(CAPACITY as usize);
        for turn in 0..3 {
            for number in 0..CAPACITY {
                insert(&mut filter, turn * CAPACITY + number, at(3_200 + TURN * turn));
            }
        }
        let tries = 200_000u64;
        let false_positives = (0..tries)
            .filter(|n| insert(&mut filter, 1 << 40 | n, at(3_208)) == ReplayOutcome::Repeated)
            .count() as u64;
        assert!(false_positives <= tries / 1_000, "{false_positives} of {tries}");
        // Less than twelve octets for each packet of a turn, for all turns together.
        assert!(filter.memory() <= CAPACITY as usize * 12);
    }
}
