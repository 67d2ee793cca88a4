//! What the verification of wrong signatures may cost: a peer that sends many of them is verified alone, with what the
//! others leave.
//!
//! A few wrong signatures are nobody's garbage: a router that does not attest passes on what others made. Beyond that, a
//! peer is *suspect*. Its bursts are small, and begin only while nobody else has routes to be verified, or within a budget
//! that all suspects share in turn. So garbage costs the others at most that budget, however much of it comes; and a suspect
//! peer, which may be innocent, gets all that is left. Costs are counted in units of work, not in seconds: a slow machine
//! comes to the same decisions.

use std::collections::BTreeMap;
use std::time::Duration;

use wayleave_core::Instant;

use crate::validate::VerificationWork;

/// Units of a burst, by an estimate from its octets.
pub(crate) const BURST_UNITS: u64 = 4_096;
/// Likewise of a suspect peer: others do not wait long for its end.
const SUSPECT_UNITS: u64 = 64;
/// Units that a peer's wrong signatures may cost at once, and again in each second, before it is suspect. It is suspect
/// until the whole allowance is there again.
const WRONG_UNITS: i64 = 128;
const WRONG_UNITS_PER_SECOND: i64 = 8;
/// Units at once, and in each second, that suspect peers get though others wait: about a tenth of a thread.
const SUSPECTS_UNITS: i64 = 512;
const SUSPECTS_UNITS_PER_SECOND: i64 = 4_096;
/// Octets of an attestation to a unit of work. Hops with short signatures cost about so much; long ones are cheaper.
const OCTETS_PER_UNIT: usize = 64;

/// The work of an attestation with so many octets, before it has been read.
pub(crate) fn estimated_units(octets: usize) -> u64 {
    1 + (octets / OCTETS_PER_UNIT) as u64
}

/// Units that come back with time. Levels are in millionths of a unit, so that nothing is rounded.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    level: i64,
    most: i64,
    per_second: i64,
    at: Instant,
}

impl Bucket {
    fn full(units: i64, per_second: i64, now: Instant) -> Self {
        let most = units * 1_000_000;
        Self { level: most, most, per_second, at: now }
    }

    fn refill(&mut self, now: Instant) {
        // Whole microseconds; the rest counts the next time.
        let passed = u64::try_from(now.since(self.at).as_micros()).unwrap_or(u64::MAX);
        let come = i64::try_from(passed).unwrap_or(i64::MAX).saturating_mul(self.per_second);
        self.level = self.level.saturating_add(come).min(self.most);
        self.at = self.at + Duration::from_micros(passed);
    }

    /// Takes units, also more than there are: what was begun is paid for.
    fn take(&mut self, units: u64) {
        let units = i64::try_from(units).unwrap_or(i64::MAX).saturating_mul(1_000_000);
        self.level = self.level.saturating_sub(units);
    }

    fn is_full(&self) -> bool {
        self.level >= self.most
    }

    /// When the next unit is there.
    fn ready_at(&self) -> Instant {
        let lacking = 1_i64.saturating_sub(self.level).max(0);
        let micros = lacking.unsigned_abs().div_ceil(self.per_second.unsigned_abs());
        self.at + Duration::from_micros(micros)
    }
}

/// The budgets of a machine's peers.
#[derive(Debug)]
pub(crate) struct VerificationBudget<P> {
    /// What is left for wrong signatures, of each peer that sent some lately, and whether it is suspect.
    peers: BTreeMap<P, (Bucket, bool)>,
    suspects: Bucket,
}

impl<P: Ord + Copy> VerificationBudget<P> {
    pub(crate) fn new(now: Instant) -> Self {
        let suspects = Bucket::full(SUSPECTS_UNITS, SUSPECTS_UNITS_PER_SECOND, now);
        Self { peers: BTreeMap::new(), suspects }
    }

    /// Forgets peers that are as good as new; to be called before the budget is asked.
    pub(crate) fn advance(&mut self, now: Instant) {
        self.suspects.refill(now);
        self.peers.retain(|_, (wrong, _)| {
            wrong.refill(now);
            !wrong.is_full()
        });
    }

    pub(crate) fn is_suspect(&self, peer: P) -> bool {
        self.peers.get(&peer).is_some_and(|(_, is_suspect)| *is_suspect)
    }

    /// Units of the next burst of `peer`; `None` if it must wait. `others_wait`: others that are not suspect have routes that
    /// wait or are being verified.
    pub(crate) fn burst_units(&self, peer: P, others_wait: bool) -> Option<u64> {
        match self.is_suspect(peer) {
            false => Some(BURST_UNITS),
            true => (!others_wait || self.suspects.level > 0).then_some(SUSPECT_UNITS),
        }
    }

    /// A burst of `peer` is done.
    pub(crate) fn charge(&mut self, peer: P, work: &VerificationWork, now: Instant) {
        self.advance(now);
        if self.is_suspect(peer) {
            self.suspects.take(work.units);
        }
        if work.wrong > 0 {
            let fresh = || (Bucket::full(WRONG_UNITS, WRONG_UNITS_PER_SECOND, now), false);
            let (wrong, is_suspect) = self.peers.entry(peer).or_insert_with(fresh);
            // However much garbage there was, the peer is suspect for no longer than the allowance takes to come back.
            wrong.take(work.wrong);
            wrong.level = wrong.level.max(0);
            *is_suspect |= wrong.level == 0;
        }
    }

    /// When a suspect peer that must wait now may begin, at the latest.
    pub(crate) fn ready_at(&self) -> Instant {
        self.suspects.ready_at()
    }

    /// Peers that are suspect.
    pub(crate) fn suspects(&self) -> usize {
        self.peers.values().filter(|(_, is_suspect)| *is_suspect).count()
    }
}

#[cfg(test)]
mod tests {
    //! KCX-33: a peer with many wrong signatures: suspect until its allowance is back, and others come first.

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn wrong(units: u64) -> VerificationWork {
        VerificationWork { verified: units, units, wrong: units }
    }

    #[test]
    fn a_peer_is_suspect_after_many_wrong_signatures_until_its_allowance_is_back() {
        let mut budget = VerificationBudget::new(Instant(0));
        budget.charge(1, &wrong(100), Instant(0));
        assert!(!budget.is_suspect(1), "a few are nobody's fault");
        budget.charge(1, &wrong(100_000), Instant(SECOND));
        assert!(budget.is_suspect(1) && !budget.is_suspect(2));
        budget.advance(Instant(16 * SECOND));
        assert!(budget.is_suspect(1));
        budget.advance(Instant(17 * SECOND));
        assert!(!budget.is_suspect(1));
        assert!(budget.peers.is_empty(), "nothing is kept of peers that send nothing wrong");
    }

    #[test]
    fn suspects_wait_for_others_beyond_their_budget_and_say_until_when() {
        let mut budget = VerificationBudget::new(Instant(0));
        budget.charge(1, &wrong(1_000), Instant(0));
        assert_eq!(budget.burst_units(1, true), Some(SUSPECT_UNITS));
        budget.charge(1, &wrong(5_120), Instant(0));
        assert_eq!((budget.burst_units(1, true), budget.burst_units(1, false)), (None, Some(SUSPECT_UNITS)));
        assert_eq!(budget.burst_units(2, true), Some(BURST_UNITS));
        let ready = budget.ready_at();
        assert!((SECOND..=2 * SECOND).contains(&ready.0), "{ready:?}");
        budget.advance(Instant(ready.0 - 1_000));
        assert_eq!(budget.burst_units(1, true), None);
        budget.advance(ready);
        assert_eq!(budget.burst_units(1, true), Some(SUSPECT_UNITS));
    }
}
