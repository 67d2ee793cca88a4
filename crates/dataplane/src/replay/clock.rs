//! The wall clock as the filter sees it, next to the monotonic clock: where stamps begin to be accepted, and when it jumped.
//!
//! The filter's turns follow the monotonic clock, which never jumps. Stamps are compared with the wall clock. If that goes
//! ahead, no stamp becomes fresh that was not remembered. If it goes back, stamps become fresh again that were accepted long
//! ago: they are refused up to the latest that may have been accepted, but never for more than a window, since a clock that was
//! hours ahead would otherwise stop the router for hours. A jump is an alarm in any case.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use wayleave_core::{Now, UnixTime};

use super::{MAX_AHEAD, MAX_FRESHNESS};

/// Microseconds by which the wall clock may leave the monotonic one before that counts as a jump. The filter remembers a
/// second more than it must; half of it is for this.
const JUMP: u64 = 500_000;
/// Microseconds that are not followed.
const STEADY: u64 = 100_000;
/// A time service corrects a clock by one part in so many at most (`adjtime` by half of that).
const SLEW: u64 = 1_000;
/// The clocks were not compared yet.
const UNKNOWN: i64 = i64::MIN;

/// How the wall clock jumped since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ClockJumps {
    pub ahead: u64,
    pub back: u64,
    /// The last jump in microseconds: above zero if it was ahead.
    pub last: i64,
}

/// When a router that starts at `now` begins, if its predecessor accepted packets until `last` by the same clock: then, where
/// the clock went back between them. Like after a jump back, fresh packets are not refused for longer than a window.
#[must_use]
pub fn begins(now: UnixTime, last: Option<UnixTime>) -> UnixTime {
    let latest = UnixTime(now.0.saturating_add(MAX_FRESHNESS * 1_000_000));
    last.map_or(now, |last| now.max(last.min(latest)))
}

/// What all threads know of the wall clock. Each field is right by itself; no decision depends on two of them together.
pub(super) struct WatchedClock {
    /// Microseconds from the monotonic clock to the wall clock.
    offset: AtomicI64,
    /// The monotonic time, in nanoseconds, at which `offset` changed last.
    changed: AtomicU64,
    /// The first Unix second whose stamps are accepted.
    accepts_from: AtomicU64,
    ahead: AtomicU64,
    back: AtomicU64,
    last: AtomicI64,
}

impl WatchedClock {
    /// Of a router that starts at `started`. Whoever ran before it accepted stamps up to [`MAX_AHEAD`] beyond that.
    pub(super) fn new(started: UnixTime) -> Self {
        Self {
            offset: AtomicI64::new(UNKNOWN),
            changed: AtomicU64::new(0),
            accepts_from: AtomicU64::new(started.secs().saturating_add(MAX_AHEAD + 1)),
            ahead: AtomicU64::new(0),
            back: AtomicU64::new(0),
            last: AtomicI64::new(0),
        }
    }

    #[inline(always)]
    pub(super) fn observe(&self, now: Now) {
        let offset = now.unix.0.cast_signed().wrapping_sub((now.instant.0 / 1_000).cast_signed());
        let known = self.offset.load(Ordering::Relaxed);
        let moved = offset.wrapping_sub(known);
        if moved.unsigned_abs() > STEADY {
            self.follow(now, known, moved);
        }
    }

    #[cold]
    fn follow(&self, now: Now, known: i64, moved: i64) {
        let exchange =
            |offset| self.offset.compare_exchange(known, offset, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if known == UNKNOWN {
            exchange(known.wrapping_add(moved));
            self.changed.fetch_max(now.instant.0, Ordering::Relaxed);
            return;
        }
        let changed = self.changed.load(Ordering::Relaxed);
        // Another thread may have read its clocks earlier than the one that saw the jump.
        let Some(elapsed) = now.instant.0.checked_sub(changed).filter(|elapsed| *elapsed > 0) else { return };
        let slewed = (elapsed / 1_000 / SLEW).cast_signed();
        let rest = moved.unsigned_abs().saturating_sub(slewed.unsigned_abs());
        if rest <= JUMP {
            // Followed no faster than clocks are corrected, so that many small steps back are together a jump.
            let step = moved.clamp(-slewed, slewed);
            if step != 0 && exchange(known.wrapping_add(step)) {
                self.changed.fetch_max(now.instant.0, Ordering::Relaxed);
            }
            return;
        }
        if !exchange(known.wrapping_add(moved)) {
            return;
        }
        self.changed.fetch_max(now.instant.0, Ordering::Relaxed);
        self.last.store(moved, Ordering::Relaxed);
        if moved > 0 {
            self.ahead.fetch_add(1, Ordering::Relaxed);
            // Older stamps are stale by now. It stays near the clock, however far that went.
            self.accepts_from.fetch_max(now.unix.secs().saturating_sub(MAX_FRESHNESS), Ordering::Relaxed);
            return;
        }
        self.back.fetch_add(1, Ordering::Relaxed);
        let before = UnixTime(now.unix.0.saturating_add(moved.unsigned_abs()));
        // What was refused before this jump is refused still.
        let refused = self.accepts_from().saturating_sub(1).max(before.secs() + MAX_AHEAD);
        let latest = refused.min(now.unix.secs() + MAX_FRESHNESS + MAX_AHEAD);
        self.accepts_from.store(latest + 1, Ordering::Relaxed);
    }

    #[inline(always)]
    pub(super) fn is_from_before(&self, stamped: u32) -> bool {
        let from = self.accepts_from.load(Ordering::Relaxed) as u32;
        // Fresh stamps are seconds away from the clock, so that the sign of their difference is right modulo 2^32.
        stamped.wrapping_sub(from).cast_signed() < 0
    }

    pub(super) fn accepts_from(&self) -> u64 {
        self.accepts_from.load(Ordering::Relaxed)
    }

    pub(super) fn jumps(&self) -> ClockJumps {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        ClockJumps { ahead: of(&self.ahead), back: of(&self.back), last: self.last.load(Ordering::Relaxed) }
    }
}

#[cfg(test)]
mod tests {
    //! PLA-09, restart: steps, corrections, threads that read their clocks late: each jump is told once; stamps are
    //! refused for a window at most.
    //! PLA, restart and clock: a router that starts again with a clock that went back by up to forty seconds: no stamp
    //! that may have passed is fresh, and none is refused for longer than a window.

    use wayleave_core::Instant;

    use super::*;

    const BEGIN: u64 = 1_800_000_000;

    /// Micros of monotonic time, and of the wall clock since [`BEGIN`].
    fn now(micros: u64, unix: i64) -> Now {
        let unix = (BEGIN as i64 * 1_000_000 + unix) as u64;
        Now { instant: Instant(micros * 1_000), unix: UnixTime(unix) }
    }

    fn clock() -> WatchedClock {
        let clock = WatchedClock::new(now(0, 0).unix);
        clock.observe(now(5_000_000, 0));
        clock
    }

    #[test]
    fn stamps_up_to_a_second_after_the_start_are_refused() {
        let clock = clock();
        let is_refused: Vec<bool> = (0..4).map(|second| clock.is_from_before((BEGIN + second) as u32)).collect();
        assert_eq!(is_refused, [true, true, false, false]);
        // Around the end of 32 bits.
        let clock = WatchedClock::new(UnixTime(((1 << 32) - 2) * 1_000_000));
        assert!(clock.is_from_before(u32::MAX) && !clock.is_from_before(0) && !clock.is_from_before(7));
    }

    #[test]
    fn a_clock_that_jumps_is_noted_once_and_one_that_is_corrected_slowly_is_not() {
        let clock = clock();
        for second in 0..1_000 {
            // 400 parts in a million, faster and slower.
            let slewed = (second as i64 % 500 - 250).abs() * 400;
            clock
                .observe(now(6_000_000 + second * 1_000_000, second as i64 * 1_000_000 + 1_000_000 + slewed - 100_000));
        }
        assert_eq!(clock.jumps(), ClockJumps::default());
        for thread in 0..4 {
            clock.observe(now(2_000_000_000 + thread, 3_600_000_000 + 1_995_000_000 + thread as i64));
            // One whose clocks were read before the jump.
            clock.observe(now(1_999_999_999, 1_994_999_999));
        }
        assert_eq!((clock.jumps().ahead, clock.jumps().back), (1, 0));
        assert!((3_599..=3_601).contains(&(clock.jumps().last / 1_000_000)));
    }

    /// Every second in which the predecessor may have accepted a stamp is refused, as far as it is fresh after the start.
    #[test]
    fn a_clock_that_goes_back_while_a_router_starts_again_makes_no_stamp_fresh_twice() {
        let at = |secs: u64| UnixTime((BEGIN + secs) * 1_000_000);
        for last in 0..40 {
            for now in 0..40 {
                let clock = WatchedClock::new(begins(at(now), Some(at(last))));
                for stamped in now.saturating_sub(MAX_FRESHNESS)..=now + MAX_AHEAD {
                    let may_have_passed = stamped <= last.max(now) + MAX_AHEAD;
                    assert!(
                        !may_have_passed || clock.is_from_before((BEGIN + stamped) as u32),
                        "{last} {now} {stamped}"
                    );
                }
                assert!(clock.accepts_from() <= BEGIN + now + MAX_FRESHNESS + MAX_AHEAD + 1);
            }
        }
        assert_eq!(begins(at(7), None), at(7));
    }

    #[test]
    fn many_small_steps_back_are_together_a_jump() {
        let clock = clock();
        for step in 1..=10u64 {
            clock.observe(now(5_000_000 + step * 1_000_000, step as i64 * 1_000_000 - step as i64 * 200_000));
        }
        assert!(clock.jumps().back >= 3, "{:?}", clock.jumps());
    }

    #[test]
    fn after_a_jump_back_stamps_are_refused_that_were_accepted_before_and_for_a_window_at_most() {
        for (back, accepted) in [(1, 3), (3, 5), (5, 7), (6, 7), (3_600, 7), (86_400 * 365, 7)] {
            let clock = clock();
            let jumped = now(105_000_000, 100_000_000 - back * 1_000_000);
            clock.observe(now(105_000_000 - 1, 100_000_000 - 1));
            clock.observe(jumped);
            assert_eq!(clock.jumps().back, 1);
            assert_eq!(clock.accepts_from(), jumped.unix.secs() + accepted, "{back}");
        }
        // Ahead, nothing is refused that is fresh.
        let clock = clock();
        clock.observe(now(105_000_000, 200_000_000));
        assert!(clock.accepts_from() <= BEGIN + 200 - MAX_FRESHNESS);
    }
}
