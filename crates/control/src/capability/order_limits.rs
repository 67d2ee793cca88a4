//! What keeps the orders of one holder, and copies of them, from costing others anything: each order is looked at once, and orders of each
//! capability, of each principal, and of all together have a rate.

use std::collections::HashMap;
use std::time::Duration;

use wayleave_core::Instant;
use wayleave_packet::platypus::header::{Delegation, DelegationId, Principal};

use super::request::{Status, WINDOW};
use super::terms::Terms;
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
/// Past orders are kept in as many parts. One is emptied each [`WINDOW`], so that each order stays for twice that at least: it is good from
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

/// The orders that were looked at lately, and what was answered. Their number is bounded by their rate: 180,000 in three windows.
pub(super) struct PastOrders {
    parts: [HashMap<[u8; 16], Status>; PARTS],
    /// When the last part was begun.
    begun: Instant,
}

impl PastOrders {
    pub(super) fn new() -> Self {
        Self { parts: Default::default(), begun: Instant(0) }
    }

    /// What was answered to this order, which is good now by its own time.
    pub(super) fn answered(&self, digest: &[u8; 32]) -> Option<Status> {
        let short = shortened(digest);
        self.parts.iter().find_map(|part| part.get(&short)).copied()
    }

    /// Remembers an order for as long as it is good.
    pub(super) fn insert(&mut self, digest: &[u8; 32], status: Status, now: Instant) {
        let passed = now.since(self.begun).as_secs() / WINDOW;
        for _ in 0..passed.min(PARTS as u64) {
            self.parts.rotate_right(1);
            self.parts[0] = HashMap::new();
        }
        if passed > 0 {
            self.begun = now;
        }
        self.parts[0].insert(shortened(digest), status);
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
    fn an_order_stays_for_two_windows_and_goes_after_three() {
        let at = |second: u64| Instant(0) + Duration::from_secs(second);
        let other =
            |past: &mut PastOrders, second: u64| past.insert(&[second as u8; 32], Status::Done, at(1_000 + second));
        for start in [0, 299] {
            let mut past = PastOrders::new();
            past.insert(&[200; 32], Status::Done, at(1_000));
            other(&mut past, start);
            past.insert(&[201; 32], Status::Full, at(1_000 + start));
            for later in 1..=6 {
                other(&mut past, start + later * 100);
                assert_eq!(past.answered(&[201; 32]), Some(Status::Full), "{start} {later}");
            }
            past.insert(&[202; 32], Status::Done, at(1_000 + start + 3 * WINDOW + 1));
            assert_eq!(past.answered(&[201; 32]), None);
        }
    }
}
