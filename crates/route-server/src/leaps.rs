//! Numbers that one frame names and that count for good from then on. None may be so high that what is left of them could be used up: a
//! frame that names such a one is refused, and its sender is named.
//!
//! Versions count a member's objects, batches are numbered from the microseconds since 1970 at which a store began, epochs follow each
//! other by a quarter of an hour. Honest ones are below the time, and rise more slowly than it: so the time is their bound, with as much
//! beyond it as clocks may be wrong. Whoever leaps to the bound burns nothing, since the bound goes on.

use wayleave_core::UnixTime;

/// 1 January 2026, in seconds: a machine whose clock is behind that, as one without a battery at its start, judges nobody by it.
const EARLIEST: u64 = 1_767_225_600;
/// How far clocks may be wrong: some nine years.
const WRONG: u64 = 1 << 28;

fn latest(now: UnixTime) -> u64 {
    now.secs().max(EARLIEST) + WRONG
}

/// Whether a version, or the number of a batch, is one that no honest peer can have come to.
pub(crate) fn is_leap(number: u64, now: UnixTime) -> bool {
    number / 1_000_000 > latest(now)
}

/// The same of an epoch.
pub(crate) fn is_epoch_leap(epoch: u64, now: UnixTime) -> bool {
    epoch > latest(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_clock_has_reached_is_a_leap_and_what_a_wrong_one_reached_is_none() {
        const YEAR: u64 = 31_557_600;
        for now in [0, EARLIEST + YEAR] {
            let (is, now) = (now.max(EARLIEST), UnixTime(now * 1_000_000));
            for (years, leaps) in [(0, false), (8, false), (10, true), (500_000, true)] {
                let at = is + years * YEAR;
                assert_eq!((is_leap(at * 1_000_000, now), is_epoch_leap(at, now)), (leaps, leaps), "{years} years");
            }
        }
        assert!(is_leap(u64::MAX, UnixTime(0)) && is_epoch_leap(u64::MAX, UnixTime(0)));
        assert!(!is_leap(u64::MAX, UnixTime(u64::MAX)), "a clock at its end judges nobody");
    }
}
