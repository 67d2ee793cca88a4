//! Which packets came before: a Bloom filter for each of three turns of 32 seconds, keyed, by the clock alone (threat P14).
//!
//! A nonce is fresh for 30 seconds on either side, so what was put in must be known for 60 seconds: the turn in which it
//! came and the two after it hold it for 64 at least. The four seconds beyond are for a thread that decides by a clock
//! which it read before another thread began a turn. All bits of an entry, for all turns, lie in one cache line, with the
//! turn up to which the line is cleared: no turn begins with a walk over the whole filter.
//!
//! Threads share a filter: each has a [`ReplayFilter`] of its own, and all of them one memory. Of copies of a packet that
//! several threads put in at the same time, one at most is fresh. Where there is one thread, it holds no line.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use wayleave_core::UnixTime;
use wayleave_crypto::lanes::{Aes128, prefetch};
use wayleave_crypto::secret::Key128;
use wayleave_packet::platypus::verify::MAX_FRESHNESS;

/// Turns that are remembered.
const TURNS: u64 = 3;
/// Seconds of a turn.
const TURN: u64 = MAX_FRESHNESS as u64 + 2;
/// Places for each packet of a turn: with seven of them marked, three full turns give one false positive in a thousand
/// packets or fewer.
const PLACES_PER_PACKET: usize = 26;
/// Words of a line that hold places.
const WORDS: usize = 7;
/// Places in a word, each with a bit for every turn.
const PLACES: usize = 21;
/// The first turn's bits of a word.
const FIRST: u64 = 0x1249_2492_4924_9249;
/// In place of a line's turn, which the thread at it knows.
const HELD: u64 = 1 << 63;
/// How often a thread looks whether another has done with a line, and how often it tries to hold it afterwards.
const LOOKS: usize = 64;
/// Packets for which a thread takes room at a time, at most.
const SHARE: u64 = 64;
/// Such takings that make up the whole room, at least: what threads have taken and do not use is lost for the turn.
const SHARES: u64 = 1 << 12;

/// One cache line, in which a packet has one place in each word of `places`: one fetch tests all turns.
#[derive(Default)]
#[repr(align(64))]
struct Line {
    /// The turn up to which the places are cleared; [`HELD`] while a thread is at it.
    turn: AtomicU64,
    places: [AtomicU64; WORDS],
}

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

/// One thread's hold on a filter.
pub struct ReplayFilter {
    memory: Arc<Memory>,
    /// The last turn that this thread met.
    turn: u64,
    /// Packets of this turn for which the thread has room taken.
    room: u64,
    /// There is no room left in this turn.
    is_full: bool,
}

/// By how many bits a packet's place is shifted in each word: three bits for each of 21 places. Each follows from eleven bits
/// of the hash; none of the bits that choose the line is among them.
#[derive(Clone, Copy)]
struct Shifts {
    /// Four in each, sixteen bits apart.
    lanes: [u64; 2],
}

impl Shifts {
    #[inline(always)]
    fn new(hash: u128) -> Self {
        const ELEVEN: u64 = 0x07ff_07ff_07ff_07ff;
        const FIVE: u64 = 0x001f_001f_001f_001f;
        let scaled = |eleven: u64| 3 * (((eleven & ELEVEN) * PLACES as u64) >> 11 & FIVE);
        let (low, high) = (hash as u64, (hash >> 64) as u64 & 0xffff_ffff);
        // What the others have left over.
        let last = high >> 11 & 0x1f | high >> 22 & 0x3e0 | low >> 5 & 0x400;
        Self { lanes: [scaled(low), scaled(high | last << 32)] }
    }

    #[inline(always)]
    fn of(self, word: usize) -> u32 {
        (self.lanes[word / 4] >> (16 * (word % 4))) as u32 & 63
    }
}

/// What the threads share.
struct Memory {
    cipher: Aes128,
    lines: Box<[Line]>,
    /// A turn above the number of packets for which room is taken in it.
    taken: AtomicU64,
    capacity: u64,
}

/// Bits of [`Memory::taken`] below the turn.
const COUNT_BITS: u32 = 32;

impl std::fmt::Debug for ReplayFilter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ReplayFilter of {} packets a turn", self.memory.capacity)
    }
}

impl ReplayFilter {
    /// A filter for `capacity` packets in each turn, fewer than 2^32; `key` must be random and of this router alone, so that
    /// nobody computes which packets share their bits.
    #[must_use]
    pub fn new(key: &Key128, capacity: usize) -> Self {
        let capacity = capacity.clamp(1, u32::MAX as usize);
        let lines = (capacity * PLACES_PER_PACKET).div_ceil(WORDS * PLACES);
        let lines = (0..lines).map(|_| Line::default()).collect();
        let cipher = Aes128::new(key.expose());
        let memory = Memory { cipher, lines, taken: AtomicU64::new(0), capacity: capacity as u64 };
        Self { memory: Arc::new(memory), turn: 0, room: 0, is_full: false }
    }

    /// The same filter for another thread.
    #[must_use]
    pub fn share(&self) -> Self {
        Self { memory: Arc::clone(&self.memory), turn: 0, room: 0, is_full: false }
    }

    /// Puts a packet in, by octets that no two packets share.
    pub fn insert(&mut self, fingerprint: [u8; 16], now: UnixTime) -> Outcome {
        let mut hash = [fingerprint];
        self.memory.cipher.encrypt(&mut hash);
        self.put(hash[0], now)
    }

    /// Turns octets that no two packets share into what [`ReplayFilter::put`] takes, and begins to fetch where they lie:
    /// first for a whole burst, then each is put in.
    pub fn look_up(&self, fingerprints: &mut [[u8; 16]]) {
        self.memory.cipher.encrypt(fingerprints);
        for hash in fingerprints {
            prefetch(self.memory.line(u128::from_be_bytes(*hash)));
        }
    }

    /// Puts a packet in, by what [`ReplayFilter::look_up`] made of it.
    #[inline(always)]
    pub fn put(&mut self, hash: [u8; 16], now: UnixTime) -> Outcome {
        let turn = now.secs() / TURN;
        // A clock that goes back clears nothing, and takes no room of turns that are over.
        if turn > self.turn {
            (self.turn, self.room, self.is_full) = (turn, 0, false);
        }
        let hash = u128::from_be_bytes(hash);
        let line = self.memory.line(hash);
        // A thread that holds the line is about to be done, or the system has taken its core from it. This one cannot wait
        // for that; one packet more that looks like an old one does less harm than a repeated one that passes.
        let held = if self.is_alone() { Some(line.hold_alone()) } else { line.hold() };
        let Some(mut line) = held else { return Outcome::Seen };
        line.turn_to(self.turn);
        let shifts = Shifts::new(hash);
        let mut turns = !0;
        for (index, word) in line.line.places.iter().enumerate() {
            turns &= word.load(Ordering::Relaxed) >> shifts.of(index);
        }
        if turns & ((1 << TURNS) - 1) != 0 {
            return Outcome::Seen;
        }
        if self.room == 0 && !self.is_full {
            self.room = self.memory.take(self.turn);
            self.is_full = self.room == 0;
        }
        if self.is_full {
            return Outcome::Full;
        }
        self.room -= 1;
        let bit = 1 << (line.turn % TURNS);
        for (index, word) in line.line.places.iter().enumerate() {
            word.store(word.load(Ordering::Relaxed) | bit << shifts.of(index), Ordering::Relaxed);
        }
        Outcome::Fresh
    }

    /// Whether no other thread has a hold on the filter: only through this one could another be made.
    #[inline(always)]
    fn is_alone(&self) -> bool {
        if Arc::strong_count(&self.memory) != 1 {
            return false;
        }
        // What a thread that is gone has written comes before what this one reads.
        fence(Ordering::Acquire);
        true
    }

    /// Forgets everything, between two passes of a benchmark.
    pub(crate) fn clear(&mut self) {
        let memory = Arc::get_mut(&mut self.memory).expect("a benchmark has one thread");
        memory.lines.iter_mut().flat_map(|line| &mut line.places).for_each(|word| *word.get_mut() = 0);
        *memory.taken.get_mut() = 0;
        (self.room, self.is_full) = (0, false);
    }

    /// Share of the room of `now`'s turn that is taken, by all threads: 1 is the alarm.
    #[must_use]
    pub fn load(&self, now: UnixTime) -> f64 {
        let taken = self.memory.taken.load(Ordering::Relaxed);
        let count = if taken >> COUNT_BITS >= now.secs() / TURN { taken & ((1 << COUNT_BITS) - 1) } else { 0 };
        count as f64 / self.memory.capacity as f64
    }

    /// Octets of memory.
    #[must_use]
    pub fn memory(&self) -> usize {
        size_of_val(&*self.memory.lines)
    }
}

impl Memory {
    #[inline(always)]
    fn line(&self, hash: u128) -> &Line {
        &self.lines[(((hash >> 96) as u64 * self.lines.len() as u64) >> 32) as usize]
    }

    /// Takes room for some packets of `turn`, or of the latest turn if that one is over; none if all is taken.
    #[cold]
    fn take(&self, turn: u64) -> u64 {
        let room = |taken: u64| {
            let (of, count) = (taken >> COUNT_BITS, taken & ((1 << COUNT_BITS) - 1));
            let count = if turn > of { 0 } else { count };
            let room = (self.capacity / SHARES).clamp(1, SHARE).min(self.capacity - count);
            (room, turn.max(of) << COUNT_BITS | (count + room))
        };
        let mut taken = self.taken.load(Ordering::Relaxed);
        loop {
            let (room, after) = room(taken);
            match self.taken.compare_exchange_weak(taken, after, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return room,
                Err(other) => taken = other,
            }
        }
    }
}

/// A line that this thread alone reads and writes, until this is dropped.
struct Held<'a> {
    line: &'a Line,
    turn: u64,
}

impl Line {
    /// Where no other thread can be.
    #[inline(always)]
    fn hold_alone(&self) -> Held<'_> {
        Held { line: self, turn: self.turn.load(Ordering::Relaxed) }
    }

    /// `None` if another thread holds it and does not let go.
    #[inline(always)]
    fn hold(&self) -> Option<Held<'_>> {
        for _ in 0..LOOKS {
            let turn = self.turn.swap(HELD, Ordering::Acquire);
            if turn & HELD == 0 {
                return Some(Held { line: self, turn });
            }
            // Looked at without writing, the line stays with the thread that holds it.
            for _ in 0..LOOKS {
                if self.turn.load(Ordering::Relaxed) & HELD == 0 {
                    break;
                }
                std::hint::spin_loop();
            }
        }
        None
    }
}

impl Held<'_> {
    /// Clears the turns that have come again.
    #[inline(always)]
    fn turn_to(&mut self, turn: u64) {
        if turn > self.turn {
            self.enter(turn);
        }
    }

    #[cold]
    fn enter(&mut self, turn: u64) {
        let steps = (turn - self.turn).min(TURNS);
        let cleared = (0..steps).fold(0, |bits, step| bits | FIRST << ((turn - step) % TURNS));
        for word in &self.line.places {
            word.store(word.load(Ordering::Relaxed) & !cleared, Ordering::Relaxed);
        }
        self.turn = turn;
    }
}

impl Drop for Held<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.line.turn.store(self.turn, Ordering::Release);
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
    fn a_packet_is_known_for_sixty_four_seconds_and_gone_after_three_turns() {
        for begin in 3_200..3_200 + TURN {
            let mut filter = filter(100);
            assert_eq!(insert(&mut filter, 1, at(begin)), Outcome::Fresh);
            for later in 0..=64 {
                assert_eq!(insert(&mut filter, 1, at(begin + later)), Outcome::Seen);
            }
            assert_eq!(insert(&mut filter, 1, at(begin + 96)), Outcome::Fresh);
            // A clock that goes back forgets nothing.
            assert_eq!(insert(&mut filter, 1, at(begin - 1_000)), Outcome::Seen);
        }
    }

    /// The nonce is 30 seconds ahead of the first copy, and 30 seconds behind the last one that is fresh.
    #[test]
    fn a_thread_with_a_clock_of_the_last_turn_meets_what_others_put_in() {
        for begin in 3_200..3_200 + TURN {
            let (mut first, number) = (filter(100), 1);
            let (mut ahead, mut behind) = (first.share(), first.share());
            assert_eq!(insert(&mut first, number, at(begin)), Outcome::Fresh);
            insert(&mut behind, 2, at(begin + 60));
            // One that is four seconds ahead has begun the next turn in every line.
            for other in 10..90 {
                insert(&mut ahead, other, at(begin + 63));
            }
            assert_eq!(insert(&mut behind, number, at(begin + 60)), Outcome::Seen);
        }
    }

    #[test]
    fn a_full_filter_takes_no_more_until_the_next_turn() {
        let mut filter = filter(10_000);
        let outcomes: Vec<Outcome> = (0..10_100).map(|n| insert(&mut filter, n, at(3_200))).collect();
        assert!(outcomes[10_090..].iter().all(|outcome| *outcome != Outcome::Fresh));
        assert!((filter.load(at(3_200)) - 1.0).abs() < f64::EPSILON);
        assert!(filter.load(at(3_232)).abs() < f64::EPSILON);
        assert_eq!(insert(&mut filter, 77_777, at(3_232)), Outcome::Fresh);
    }

    /// Copies of a packet that come in two ways may reach two threads.
    #[test]
    fn of_copies_that_threads_put_in_at_once_one_is_fresh() {
        const PACKETS: u64 = 100_000;
        let whole = filter(3 * PACKETS as usize);
        let fresh = |mut filter: ReplayFilter| {
            // The clock goes on meanwhile, one turn; who is ahead is chance.
            let outcome = |n| insert(&mut filter, n, at(3_200 + TURN * u64::from(n > PACKETS / 2)));
            (0..PACKETS).map(outcome).map(|outcome| u8::from(outcome == Outcome::Fresh)).collect::<Vec<u8>>()
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
    fn a_thread_that_is_alone_again_meets_what_it_and_another_put_in() {
        let mut first = filter(1_000);
        let outcomes = |of: &mut ReplayFilter, range: std::ops::Range<u64>, what| {
            range.for_each(|number| assert_eq!(insert(of, number, at(3_200)), what, "{number}"));
        };
        outcomes(&mut first, 0..100, Outcome::Fresh);
        let mut second = first.share();
        outcomes(&mut second, 0..100, Outcome::Seen);
        outcomes(&mut second, 100..200, Outcome::Fresh);
        outcomes(&mut first, 100..200, Outcome::Seen);
        drop(second);
        outcomes(&mut first, 0..200, Outcome::Seen);
        outcomes(&mut first, 200..300, Outcome::Fresh);
    }

    /// Eleven bits for each of seven places, and none of those that choose the line.
    #[test]
    fn each_bit_of_a_hash_moves_one_place_or_chooses_the_line() {
        let shifts = |hash| (0..WORDS).map(|word| Shifts::new(hash).of(word)).collect::<Vec<u32>>();
        let mut bits = [0; WORDS];
        for bit in 0..128 {
            // Beside all others set, a bit moves its place if it does at all.
            let (with, without) = (shifts(u128::MAX), shifts(u128::MAX ^ 1 << bit));
            let one = shifts(1 << bit);
            let moved: Vec<usize> = (0..WORDS).filter(|word| with[*word] != without[*word]).collect();
            assert!(moved.len() <= 1 && one.iter().chain(&with).all(|shift| *shift <= 60 && shift % 3 == 0));
            if bit >= 96 {
                assert!(moved.is_empty() && one == shifts(0), "{bit}");
            }
            moved.into_iter().for_each(|word| bits[word] += 1);
        }
        // The lowest bits of a place's eleven matter only beside some of the others.
        assert!(bits.iter().all(|count| (4..=11).contains(count)), "{bits:?}");
    }

    /// All that threads take together is within the capacity.
    #[test]
    fn a_full_filter_is_full_for_every_thread() {
        for capacity in [1, 50, 1_000, 100_000] {
            let mut filters = vec![filter(capacity)];
            (1..4).for_each(|_| filters.push(filters[0].share()));
            let tries = 4 * capacity as u64;
            let fresh =
                (0..tries).filter(|n| insert(&mut filters[*n as usize % 4], *n, at(3_200)) == Outcome::Fresh).count();
            assert!((capacity - capacity / 500..=capacity).contains(&fresh), "{fresh} of {capacity}");
            assert_eq!(insert(&mut filters[1], 1 << 40, at(3_232)), Outcome::Fresh);
            assert_eq!(insert(&mut filters[0], 1 << 40, at(3_232)), Outcome::Seen);
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
        let false_positives =
            (0..tries).filter(|n| insert(&mut filter, 1 << 40 | n, at(3_264)) == Outcome::Seen).count() as u64;
        assert!(false_positives <= tries / 1_000, "{false_positives} of {tries}");
        // Less than twelve octets for each packet of a turn, for all turns together.
        assert!(filter.memory() <= CAPACITY as usize * 12);
    }
}
