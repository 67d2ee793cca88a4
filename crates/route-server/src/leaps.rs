//! Numbers that one frame names and that count for good from then on. None may be so high that what is left of them could be used up: a
//! frame that names such a one is refused, and its sender is named.
//!
//! Versions count a member's objects, batches are numbered from the microseconds since 1970 at which a store began, epochs follow each
//! other by a quarter of an hour. Honest ones are below the time, and rise more slowly than it: so the time is their bound, with as much
//! beyond it as clocks may be wrong. Whoever leaps to the bound burns nothing, since the bound goes on.
//!
//! Who takes a number passes it on, in its name, to others whose clocks are not its own. They allow more than it did ([`Heard`]), so that
//! nobody is named for what it was told within bounds.

use wayleave_core::UnixTime;

/// 1 January 2026, in seconds: a machine whose clock is behind that, as one without a battery at its start, judges nobody by it.
const EARLIEST: u64 = 1_767_225_600;
/// How far beyond the time a number may be that was passed on twice, in seconds: some nine years.
const WRONG: u64 = 1 << 28;

/// How a number came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Heard {
    /// From its origin: what a member took, at party 1; what the peer party has seen of versions and epochs.
    First,
    /// From a party that may have been told: the peer party's last batch, what party 1 concluded, what a member is told.
    Relayed,
    /// From whoever counts on from that: a proposal's number, a version of an object.
    Used,
}

fn latest(heard: Heard, now: UnixTime) -> u64 {
    let beyond = match heard {
        Heard::First => WRONG / 4,
        Heard::Relayed => WRONG / 2,
        Heard::Used => WRONG,
    };
    now.secs().max(EARLIEST) + beyond
}

/// Whether a version, or the number of a batch, is one that no honest peer can have come to.
pub(crate) fn is_leap(number: u64, heard: Heard, now: UnixTime) -> bool {
    number / 1_000_000 > latest(heard, now)
}

/// The same of an epoch.
pub(crate) fn is_epoch_leap(epoch: u64, heard: Heard, now: UnixTime) -> bool {
    epoch > latest(heard, now)
}

#[cfg(test)]
mod tests {
    use super::*;

    const YEAR: u64 = 31_557_600;

    #[test]
    fn what_no_clock_has_reached_is_a_leap_and_what_a_wrong_one_reached_is_none() {
        for now in [0, EARLIEST + YEAR] {
            let (is, now) = (now.max(EARLIEST), UnixTime(now * 1_000_000));
            for (years, leaps) in
                [(0, [false; 3]), (3, [true, false, false]), (8, [true, true, false]), (10, [true; 3])]
            {
                let at = is + years * YEAR;
                let found = [Heard::First, Heard::Relayed, Heard::Used].map(|heard| {
                    assert_eq!(is_leap(at * 1_000_000, heard, now), is_epoch_leap(at, heard, now));
                    is_epoch_leap(at, heard, now)
                });
                assert_eq!(found, leaps, "{years} years");
            }
        }
        let ever = [Heard::First, Heard::Relayed, Heard::Used];
        assert!(ever.iter().all(|heard| is_leap(u64::MAX, *heard, UnixTime(0))));
        assert!(!is_leap(u64::MAX, Heard::First, UnixTime(u64::MAX)), "a clock at its end judges nobody");
    }

    #[test]
    fn what_was_taken_within_bounds_is_taken_from_whoever_passes_it_on_though_clocks_differ_by_two_years() {
        let highest = |heard, now: u64| (now + latest(heard, UnixTime(0)) - EARLIEST) * 1_000_000 + 999_999;
        let later = EARLIEST + 2 * YEAR;
        for (first, then) in [(Heard::First, Heard::Relayed), (Heard::Relayed, Heard::Used)] {
            assert!(!is_leap(highest(first, later), first, UnixTime(later * 1_000_000)));
            assert!(!is_leap(highest(first, later) + 1, then, UnixTime(EARLIEST * 1_000_000)));
        }
    }
}
