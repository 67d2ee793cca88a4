//! Budgets: what one member may cost a party, so that none sets another's latency or memory.
//!
//! A member that obeys notices only that its credit comes more slowly ([`Pace`]), or that it is sent what it lacks later
//! ([`Turns`]). What comes without regard to that is refused by name. Budgets count octets, objects and requests, which any
//! observer of the links could count.

use std::time::Duration;

use wayleave_core::Instant;

/// Octets of blobs that party 1 stores for each prefix that a member may announce, and at least for a member.
const OCTETS_EACH: u64 = 4096;
const OCTETS_LEAST: u64 = 4 << 20;
/// How much may come at once, in time that it is worth.
const BURST: Duration = Duration::from_millis(250);
/// What comes when this much more has been spent is refused: more than a member that waits for credit can send.
const OVERSPENT: Duration = Duration::from_millis(1000);
/// How often a member may be sent what it lacks, and have choices with it, at once, when it has not been for long.
const TURNS_AT_ONCE: u32 = 16;

/// Octets of all members' objects together that wait at a party, where its operator sets nothing else.
pub const MAX_WAITING: usize = 256 << 20;

/// What each member may cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budget {
    /// Objects a second.
    pub objects: u32,
    /// Octets a second.
    pub octets: u32,
    /// How often it may be sent what it lacks, in an hour.
    pub syncs: u32,
    /// How often Select-Best chooses among what it is sent so, in an hour. Each time its order may be another one,
    /// and the results say something of the exchange's recommendation.
    pub choices: u32,
    /// Comparisons a second, of what changed just now, that are evaluated for it although its ranking was late.
    pub late: u32,
}

impl Default for Budget {
    /// A quarter of a million routes in little more than two minutes; everything each five seconds, with new choices eight times in an
    /// epoch of a quarter of an hour.
    fn default() -> Self {
        Self { objects: 2_000, octets: 32 << 20, syncs: 720, choices: 32, late: 2_000 }
    }
}

/// Prefixes that a member with this limit in the member set may announce, where the operator's setting allows no more than `most`. Sets
/// that were signed before every member had to have a limit state zero: then the setting counts.
pub(super) fn prefixes_allowed(max_prefix: u32, most: u32) -> u32 {
    if max_prefix == 0 { most } else { max_prefix.min(most) }
}

/// Octets of blobs that a member that may announce so many prefixes may have stored.
pub(crate) fn octets_stored(prefixes: u32) -> u64 {
    (u64::from(prefixes) * OCTETS_EACH).max(OCTETS_LEAST)
}

/// Until when what a member sent is paid for. It outlives links: whoever connects again has spent what it has spent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace(Instant);

impl Pace {
    pub(super) fn new(now: Instant) -> Self {
        Self(now)
    }

    /// Pays for a frame that costs so many octets of credit. Returns when as much may come again.
    pub(super) fn pay(&mut self, octets: u64, is_object: bool, budget: &Budget, now: Instant) -> Instant {
        let of_octets = Duration::from_nanos(octets * 1_000_000_000 / u64::from(budget.octets.max(1)));
        let of_objects = Duration::from_secs(u64::from(is_object)) / budget.objects.max(1);
        self.0 = self.0.max(now) + of_octets.max(of_objects);
        if self.0.since(now) > BURST { now + (self.0.since(now) - BURST) } else { now }
    }

    /// Whether more was sent than by waiting for credit.
    pub(super) fn is_overspent(&self, now: Instant) -> bool {
        self.0.since(now) > BURST + OVERSPENT
    }
}

/// When a member may again have what it may have some times at once, and then so many times an hour.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turns(Instant);

impl Turns {
    pub(super) fn new(now: Instant) -> Self {
        Self(now)
    }

    fn interval(per_hour: u32) -> Duration {
        Duration::from_secs(3600) / per_hour.max(1)
    }

    /// When the next one may be.
    pub(super) fn next(&self, per_hour: u32, now: Instant) -> Instant {
        let (ahead, at_once) = (self.0.since(now), Self::interval(per_hour) * (TURNS_AT_ONCE - 1));
        if ahead > at_once { now + (ahead - at_once) } else { now }
    }

    /// How many it may have at once.
    pub(super) fn left(&self, per_hour: u32, now: Instant) -> u32 {
        let interval = Self::interval(per_hour);
        let at_once = (interval * TURNS_AT_ONCE).saturating_sub(self.0.since(now));
        u32::try_from(at_once.as_nanos() / interval.as_nanos().max(1)).unwrap_or(u32::MAX)
    }

    /// It has one.
    pub(super) fn take(&mut self, per_hour: u32, now: Instant) {
        self.0 = self.0.max(now) + Self::interval(per_hour);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: Budget = Budget { objects: 100, octets: 1_000_000, syncs: 360, choices: 360, late: 1_000 };

    fn ms(ms: u64) -> Instant {
        Instant(1_000_000_000 + ms * 1_000_000)
    }

    #[test]
    fn what_comes_within_the_budget_is_granted_at_once_and_more_at_the_budgets_rate() {
        let mut pace = Pace::new(ms(0));
        let at: Vec<Instant> = (0..30).map(|_| pace.pay(100, true, &BUDGET, ms(0))).collect();
        assert!(at[..25].iter().all(|at| *at == ms(0)), "a burst of a quarter of a second");
        assert_eq!(at[25..], [ms(10), ms(20), ms(30), ms(40), ms(50)]);
        assert_eq!(pace.pay(500_000, false, &BUDGET, ms(300)), ms(550), "octets count too");
        assert!(!pace.is_overspent(ms(300)));
        pace.pay(1_000_000, true, &BUDGET, ms(300));
        assert!(pace.is_overspent(ms(300)) && !pace.is_overspent(ms(900)));
    }

    #[test]
    fn everything_is_sent_some_times_at_once_and_then_at_intervals() {
        let mut turns = Turns::new(ms(0));
        for taken in 0..TURNS_AT_ONCE {
            assert_eq!(turns.next(BUDGET.syncs, ms(0)), ms(0));
            assert_eq!(turns.left(BUDGET.syncs, ms(0)), TURNS_AT_ONCE - taken);
            turns.take(BUDGET.syncs, ms(0));
        }
        assert_eq!([0, 9_999, 10_000, 25_000].map(|at| turns.left(BUDGET.syncs, ms(at))), [0, 0, 1, 2]);
        assert_eq!(turns.next(BUDGET.syncs, ms(0)), ms(10_000));
        assert_eq!(turns.next(BUDGET.syncs, ms(10_000)), ms(10_000));
    }

    #[test]
    fn no_member_is_without_a_limit() {
        assert_eq!([0, 7, 900].map(|stated| prefixes_allowed(stated, 100)), [100, 7, 100]);
        assert_eq!((octets_stored(1), octets_stored(10_000)), (4 << 20, 40_960_000));
    }
}
