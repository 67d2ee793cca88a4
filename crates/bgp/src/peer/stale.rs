//! The routes of a peer whose session was lost, while they are kept: for its restart (RFC 4724 section 4.2), then as long-lived stale
//! ones (RFC 9494 section 4.2).
//!
//! The routes themselves are with whoever gets [`Stale`]; here are the times alone.

use std::time::Duration;

use wayleave_core::{Afi, Instant};

use crate::session::{Keeps, Retain};

/// Once the session is up again, how long End-of-RIB is awaited: our own limit, as RFC 4724 section 4.2 lets us have one.
const MOST_INITIAL: Duration = Duration::from_secs(360);

/// What becomes of a peer's routes after a loss of its session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Stale {
    /// The session is lost: routes of these families are stale from now on, but those that were so already are gone, as are
    /// those of other families.
    Kept(Vec<Afi>),
    /// The stale routes of a family are long-lived ones from now on: LLGR_STALE is added, and those with NO_LLGR are gone (RFC 9494
    /// section 4.2).
    LongLived(Afi),
    /// The stale routes of a family are gone.
    Gone(Afi),
}

/// The stale routes of one family.
#[derive(Clone, Copy, Debug)]
struct StaleFamily {
    afi: Afi,
    /// The end of the present time: for the restart, as long-lived stale ones, or for End-of-RIB.
    until: Instant,
    /// How long they stay as long-lived stale ones after that; zero if not at all.
    long_lived: Duration,
    is_long_lived: bool,
}

/// The times of all families.
#[derive(Clone, Debug, Default)]
pub(super) struct StaleTimers(Vec<StaleFamily>);

impl StaleTimers {
    /// The session was lost, and the peer asked that its routes are kept. Returns what to report: [`Stale::Kept`], then
    /// [`Stale::LongLived`] of families that have no time for a restart.
    pub(super) fn lost(&mut self, retain: &Retain, most: Keeps, now: Instant) -> Vec<Stale> {
        let long_lived = |afi: Afi| {
            let asked = retain.long_lived.iter().find(|(of, _)| *of == afi).map(|(_, time)| *time);
            asked.unwrap_or_default().min(most.long_lived)
        };
        let restarts = |afi: Afi| match retain.families.contains(&afi) {
            true => retain.restart_time.min(most.restart),
            false => Duration::ZERO,
        };
        self.0 = [Afi::Ipv4, Afi::Ipv6]
            .into_iter()
            .map(|afi| (afi, restarts(afi), long_lived(afi)))
            .filter(|(_, restart, long_lived)| *restart + *long_lived > Duration::ZERO)
            .map(|(afi, restart, long_lived)| StaleFamily {
                afi,
                until: now + restart,
                long_lived,
                is_long_lived: false,
            })
            .collect();
        let kept = Stale::Kept(self.0.iter().map(|family| family.afi).collect());
        [vec![kept], self.handle_timeout(now)].concat()
    }

    /// The session is up again. Stale routes of families whose forwarding state was not kept are gone (RFC 4724 section 4.2); the
    /// others wait for End-of-RIB.
    pub(super) fn session_up(&mut self, forwarding_kept: &[Afi], now: Instant) -> Vec<Stale> {
        let (stay, go): (Vec<_>, Vec<_>) =
            self.0.iter().copied().partition(|family| forwarding_kept.contains(&family.afi));
        let wait = |family| StaleFamily { until: now + MOST_INITIAL, long_lived: Duration::ZERO, ..family };
        self.0 = stay.into_iter().map(wait).collect();
        go.into_iter().map(|family| Stale::Gone(family.afi)).collect()
    }

    /// Nothing is stale any more.
    pub(super) fn forget(&mut self) {
        self.0.clear();
    }

    /// Nothing is kept any longer.
    pub(super) fn end(&mut self) -> Vec<Stale> {
        std::mem::take(&mut self.0).into_iter().map(|family| Stale::Gone(family.afi)).collect()
    }

    /// What is over by `now`.
    pub(super) fn handle_timeout(&mut self, now: Instant) -> Vec<Stale> {
        let mut over = Vec::new();
        self.0.retain_mut(|family| {
            if family.until > now {
                return true;
            }
            let long_lived = std::mem::take(&mut family.long_lived);
            if long_lived.is_zero() {
                over.push(Stale::Gone(family.afi));
                return false;
            }
            (family.until, family.is_long_lived) = (family.until + long_lived, true);
            over.push(Stale::LongLived(family.afi));
            true
        });
        over
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.0.iter().map(|family| family.until).min()
    }

    pub(super) fn until(&self) -> impl Iterator<Item = (Afi, Instant, bool)> {
        self.0.iter().map(|family| (family.afi, family.until, family.is_long_lived))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Instant = Instant(1_000_000_000);
    const MOST: Keeps = Keeps { restart: Duration::from_secs(100), long_lived: Duration::from_secs(1_000) };

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn retain(families: &[Afi], restart: u64, long_lived: &[(Afi, u64)]) -> Retain {
        let long_lived = long_lived.iter().map(|(afi, seconds)| (*afi, secs(*seconds))).collect();
        Retain { families: families.to_vec(), restart_time: secs(restart), long_lived, notifications: false }
    }

    #[test]
    fn routes_are_stale_then_long_lived_then_gone_and_no_longer_than_we_keep_them() {
        let mut timers = StaleTimers::default();
        let asked = retain(&[Afi::Ipv4, Afi::Ipv6], 4_095, &[(Afi::Ipv4, 50_000)]);
        assert_eq!(timers.lost(&asked, MOST, T), [Stale::Kept(vec![Afi::Ipv4, Afi::Ipv6])]);
        assert_eq!(timers.deadline(), Some(T + secs(100)));
        assert_eq!(timers.handle_timeout(T + secs(99)), []);
        assert_eq!(timers.handle_timeout(T + secs(100)), [Stale::LongLived(Afi::Ipv4), Stale::Gone(Afi::Ipv6)]);
        assert_eq!(timers.until().collect::<Vec<_>>(), [(Afi::Ipv4, T + secs(1_100), true)]);
        assert_eq!(timers.handle_timeout(T + secs(1_100)), [Stale::Gone(Afi::Ipv4)]);
        assert_eq!((timers.deadline(), timers.handle_timeout(T + secs(9_000))), (None, vec![]));
    }

    #[test]
    fn a_family_without_a_time_for_its_restart_is_long_lived_at_once() {
        let mut timers = StaleTimers::default();
        let asked = retain(&[], 120, &[(Afi::Ipv6, 30)]);
        assert_eq!(timers.lost(&asked, MOST, T), [Stale::Kept(vec![Afi::Ipv6]), Stale::LongLived(Afi::Ipv6)]);
        let none = Keeps { long_lived: Duration::ZERO, ..MOST };
        assert_eq!(timers.lost(&asked, none, T), [Stale::Kept(vec![])], "what the peer asks for is not given");
    }

    #[test]
    fn a_session_that_returns_keeps_what_was_forwarded_until_end_of_rib_or_six_minutes() {
        let mut timers = StaleTimers::default();
        timers.lost(&retain(&[Afi::Ipv4, Afi::Ipv6], 60, &[(Afi::Ipv4, 500)]), MOST, T);
        assert_eq!(timers.session_up(&[Afi::Ipv4], T + secs(10)), [Stale::Gone(Afi::Ipv6)]);
        assert_eq!(timers.handle_timeout(T + secs(369)), []);
        assert_eq!(timers.handle_timeout(T + secs(370)), [Stale::Gone(Afi::Ipv4)], "not long-lived: it is up");
        timers.lost(&retain(&[Afi::Ipv4], 60, &[]), MOST, T);
        timers.forget();
        assert_eq!(timers.deadline(), None);
    }
}
