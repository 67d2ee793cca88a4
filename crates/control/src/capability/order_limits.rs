//! What keeps the orders of one holder, and copies of them, from costing others anything: each order is carried out once, and orders of
//! each capability, of each principal, and of all together have a rate.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use wayleave_core::Instant;
use wayleave_packet::platypus::header::{Delegation, DelegationId, Principal};

use super::credential::Terms;
use super::request::WINDOW;
use crate::budget::Budget;

/// Orders in a second, and at once: each is written to the disk.
const ALL: (u32, u32) = (200, 400);
/// Those of a principal's own capabilities, and of all that it delegated together.
const PRINCIPAL: (u32, u32) = (10, 60);
const DELEGATES: (u32, u32) = (10, 60);
/// Those of one delegation, of all that was delegated from it together, and of one of these.
const DELEGATION: (u32, u32) = (2, 20);
const SUB_DELEGATES: (u32, u32) = (2, 20);
const SUB_DELEGATION: (u32, u32) = (1, 10);
/// Budgets that are kept, at most; those that are full need not be.
const BUDGETS: usize = 65_536;
/// Not more often are they looked through.
const SWEEP: Duration = Duration::from_secs(1);
/// Digests are kept in as many parts. One is emptied each [`WINDOW`], so that each digest stays for twice that at least: an order is good from
/// one window before the time in it until one after.
const PARTS: usize = 3;

/// Whose orders have a budget of their own.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Orderer {
    Principal(Principal),
    DelegatesOf(Principal),
    Delegation(Principal, DelegationId),
    SubDelegatesOf(Principal, DelegationId),
    SubDelegation(Principal, DelegationId, DelegationId),
}

/// The rates.
pub(super) struct OrderBudgets {
    all: Budget,
    own: HashMap<Orderer, Budget>,
    /// When they were looked through last.
    swept: Instant,
}

impl OrderBudgets {
    pub(super) fn new() -> Self {
        Self { all: Budget::new(ALL.0, ALL.1), own: HashMap::new(), swept: Instant(0) }
    }

    /// Whether one more order of the holder of these terms may be looked at now. The holder's own room comes before that which it shares, so
    /// that who is over uses up none of it.
    pub(super) fn take(&mut self, terms: &Terms, now: Instant) -> bool {
        let principal = terms.principal;
        let mut may = |orderer, limits| self.take_own(orderer, limits, now);
        let may = match terms.delegation {
            None => may(Orderer::Principal(principal), PRINCIPAL),
            Some(Delegation { id, sub, .. }) => {
                let own = match sub {
                    None => may(Orderer::Delegation(principal, id), DELEGATION),
                    Some(sub) => {
                        may(Orderer::SubDelegation(principal, id, sub.id), SUB_DELEGATION)
                            && may(Orderer::SubDelegatesOf(principal, id), SUB_DELEGATES)
                    }
                };
                own && may(Orderer::DelegatesOf(principal), DELEGATES)
            }
        };
        may && self.all.take(now)
    }

    fn take_own(&mut self, orderer: Orderer, (rate, depth): (u32, u32), now: Instant) -> bool {
        if self.own.len() >= BUDGETS && !self.own.contains_key(&orderer) {
            if now.since(self.swept) >= SWEEP {
                self.own.retain(|_, budget| !budget.is_full(now));
                self.swept = now;
            }
            if self.own.len() >= BUDGETS {
                return false;
            }
        }
        self.own.entry(orderer).or_insert_with(|| Budget::new(rate, depth)).take(now)
    }
}

/// The orders that were carried out lately. Their number is bounded by their rate: 180,000 in three windows.
pub(super) struct OrdersDone {
    parts: [HashSet<[u8; 16]>; PARTS],
    /// When the last part was begun.
    begun: Instant,
}

impl OrdersDone {
    pub(super) fn new() -> Self {
        Self { parts: Default::default(), begun: Instant(0) }
    }

    /// Whether this order, which is good now by its own time, was carried out.
    pub(super) fn contains(&self, digest: &[u8; 32]) -> bool {
        let short = shortened(digest);
        self.parts.iter().any(|part| part.contains(&short))
    }

    /// Remembers an order for as long as it is good.
    pub(super) fn insert(&mut self, digest: &[u8; 32], now: Instant) {
        let passed = now.since(self.begun).as_secs() / WINDOW;
        for _ in 0..passed.min(PARTS as u64) {
            self.parts.rotate_right(1);
            self.parts[0] = HashSet::new();
        }
        if passed > 0 {
            self.begun = now;
        }
        self.parts[0].insert(shortened(digest));
    }
}

/// Orders are under MAC: nobody but a holder makes two that begin alike, and loses the second by it.
fn shortened(digest: &[u8; 32]) -> [u8; 16] {
    std::array::from_fn(|at| digest[at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_stays_for_two_windows_and_goes_after_three() {
        let at = |second: u64| Instant(0) + Duration::from_secs(second);
        let other = |done: &mut OrdersDone, second: u64| done.insert(&[second as u8; 32], at(1_000 + second));
        for start in [0, 299] {
            let mut done = OrdersDone::new();
            done.insert(&[200; 32], at(1_000));
            other(&mut done, start);
            done.insert(&[201; 32], at(1_000 + start));
            for later in 1..=6 {
                other(&mut done, start + later * 100);
                assert!(done.contains(&[201; 32]), "{start} {later}");
            }
            done.insert(&[202; 32], at(1_000 + start + 3 * WINDOW + 1));
            assert!(!done.contains(&[201; 32]));
        }
    }
}
