//! Which accounts may be opened, so that nobody's IDs take the place that another account needs.
//!
//! A principal's own accounts, its delegations' and its sub-delegations' share one table. Whoever holds a delegation makes
//! sub-delegation IDs without asking anybody, and whoever holds a principal's capability makes delegation IDs. So each kind
//! leaves to the kinds before it what is kept for them, and of the rest no principal has more accounts than are free.
//! What has no place counts one level higher ([`parent`]): a packet is refused only if its principal's own account has none.

use std::collections::HashMap;

use wayleave_packet::platypus::header::{DelegationId, Principal};
use wayleave_packet::platypus::verify::Charge;

/// A principal's own accounts that it may open as long as any line is free: one in each key epoch that is accepted, and one
/// more.
const FIRST: u32 = 4;
/// The parts of the table, one in so many, that are kept for principals' own accounts, for each principal's first delegation,
/// and for all accounts but those of sub-delegations.
const KEPT_FOR_OWN: usize = 4;
const KEPT_FOR_FIRST_DELEGATIONS: usize = 8;
const KEPT_FROM_SUB_DELEGATIONS: usize = 2;
/// The part of its principal's share that the sub-delegations of one delegation may have.
const PART_OF_DELEGATION: usize = 2;

/// How many accounts of each kind there are, of a principal or in the whole table.
#[derive(Clone, Copy, Debug, Default)]
struct AccountCounts {
    own: u32,
    delegations: u32,
    sub_delegations: u32,
}

/// How many accounts everybody has in a table.
#[derive(Clone, Debug)]
pub(super) struct AccountShares {
    all: AccountCounts,
    principals: HashMap<Principal, AccountCounts>,
    /// Principals that have accounts of delegations.
    delegating: usize,
    /// Accounts of sub-delegations, by delegation.
    sub_delegations: HashMap<(Principal, DelegationId), u32>,
    most: usize,
}

/// The account in which a packet counts whose own has no place: its delegation's, then its principal's.
pub(super) fn parent(charge: &Charge) -> Option<Charge> {
    let (id, sub) = charge.delegation?;
    Some(Charge { delegation: sub.map(|_| (id, None)), ..*charge })
}

impl AccountShares {
    /// For a table of `most` accounts.
    pub(super) fn new(most: usize) -> Self {
        Self {
            all: AccountCounts::default(),
            principals: HashMap::with_capacity(most),
            delegating: 0,
            sub_delegations: HashMap::with_capacity(most),
            most,
        }
    }

    /// Octets of memory.
    pub(super) fn memory(&self) -> usize {
        self.principals.capacity() * size_of::<(Principal, AccountCounts)>()
            + self.sub_delegations.capacity() * size_of::<((Principal, DelegationId), u32)>()
    }

    /// Whether `charge`, which has no account, may open one in a table with `free` lines.
    pub(super) fn may_open(&self, charge: &Charge, free: usize) -> bool {
        let held = self.principals.get(&charge.principal).copied().unwrap_or_default();
        // What is kept and not taken yet: whoever takes what is kept for it takes nothing from others.
        let left = |part: usize, taken: usize| (self.most / part).saturating_sub(taken);
        let (own, delegations) = (self.all.own as usize, self.all.delegations as usize);
        let left_for_own = left(KEPT_FOR_OWN, own);
        let left_for_both = left_for_own + left(KEPT_FOR_FIRST_DELEGATIONS, self.delegating);
        match charge.delegation {
            None => free > 0 && (held.own < FIRST || held.own as usize + left_for_both < free),
            Some((_, None)) if held.delegations == 0 => left_for_own < free,
            Some((_, None)) => held.delegations as usize + left_for_both < free,
            Some((id, Some(_))) => {
                let kept = left_for_both.max(left(KEPT_FROM_SUB_DELEGATIONS, own + delegations));
                let of_delegation = self.sub_delegations.get(&(charge.principal, id)).copied().unwrap_or(0) as usize;
                held.sub_delegations as usize + kept < free && of_delegation * PART_OF_DELEGATION + kept < free
            }
        }
    }

    /// Counts an account that was opened.
    pub(super) fn opened(&mut self, charge: &Charge) {
        let counts = self.principals.entry(charge.principal).or_default();
        *counts.of(charge) += 1;
        *self.all.of(charge) += 1;
        match charge.delegation {
            Some((id, Some(_))) => *self.sub_delegations.entry((charge.principal, id)).or_default() += 1,
            Some(_) => self.delegating += usize::from(counts.delegations == 1),
            None => {}
        }
    }

    /// Counts an account that was closed, which had been opened.
    pub(super) fn closed(&mut self, charge: &Charge) {
        let Some(counts) = self.principals.get_mut(&charge.principal) else { return };
        *counts.of(charge) -= 1;
        *self.all.of(charge) -= 1;
        let counts = *counts;
        if counts.own + counts.delegations + counts.sub_delegations == 0 {
            self.principals.remove(&charge.principal);
        }
        match charge.delegation {
            Some((id, Some(_))) => {
                let key = (charge.principal, id);
                if let Some(count) = self.sub_delegations.get_mut(&key) {
                    *count -= 1;
                    if *count == 0 {
                        self.sub_delegations.remove(&key);
                    }
                }
            }
            Some(_) => self.delegating -= usize::from(counts.delegations == 0),
            None => {}
        }
    }
}

impl AccountCounts {
    /// The number of accounts of the kind that `charge` has.
    fn of(&mut self, charge: &Charge) -> &mut u32 {
        match charge.delegation {
            None => &mut self.own,
            Some((_, None)) => &mut self.delegations,
            Some((_, Some(_))) => &mut self.sub_delegations,
        }
    }
}

#[cfg(test)]
mod tests {
    //! PLA, shares: a delegate with IDs without end, and random accounts of all kinds that open, count and close, beside a
    //! plain map: its principal's own account and each delegation's first are there; nothing is lost, nothing counts twice.

    use std::collections::HashSet;

    use wayleave_core::Instant;

    use super::super::account::{Accounts, ChargeOutcome, Total};
    use super::*;

    fn charge(principal: u32, delegation: Option<(u32, Option<u32>)>, epoch: u32) -> Charge {
        let id = |id| DelegationId::new(id).expect("24 bits");
        Charge {
            principal: Principal::new(principal).expect("24 bits"),
            delegation: delegation.map(|(first, sub)| (id(first), sub.map(id))),
            interval: None,
            epoch,
        }
    }

    #[test]
    fn a_delegate_with_ids_without_end_costs_its_principal_nothing() {
        for most in [64, 4_096] {
            let mut accounts = Accounts::new(most, 1);
            let sent = 2 * most as u32;
            for sub in 0..sent {
                let outcome = accounts.charge(&charge(7, Some((3, Some(sub))), 0), 10, Instant(0));
                assert_ne!(outcome, ChargeOutcome::TableFull, "{sub}");
            }
            // The main account of the next epoch, the other delegations' and some of their sub-delegations'.
            assert_eq!(accounts.charge(&charge(7, None, 1), 1, Instant(0)), ChargeOutcome::Charged);
            for id in 4..8 {
                assert_eq!(accounts.charge(&charge(7, Some((id, None)), 1), 1, Instant(0)), ChargeOutcome::Charged);
            }
            assert_eq!(accounts.charge(&charge(7, Some((4, Some(1))), 1), 1, Instant(0)), ChargeOutcome::Charged);
            // What had no account of its own is in the delegation's.
            let opened = (0..sent).filter(|sub| accounts.total(&charge(7, Some((3, Some(*sub))), 0)).packets > 0);
            let opened = opened.count() as u128;
            let rest = u128::from(sent) - opened;
            let expected = Total { packets: rest, octets: 10 * rest };
            assert_eq!(accounts.total(&charge(7, Some((3, None)), 0)), expected);
            assert_eq!(u128::from(accounts.folded()), rest);
            assert!(opened as usize >= most / 8 && (opened as usize) < most / 4, "{opened} of {most}");
        }
    }

    /// Whether an account may be opened, counted anew in a plain map of those that are open.
    fn may_open(open: &HashMap<Charge, Total>, most: usize, charge: &Charge) -> bool {
        let kind = |charge: &Charge| charge.delegation.map(|(_, sub)| sub.is_some());
        let count = |of: &dyn Fn(&Charge) -> bool| open.keys().filter(|other| of(other)).count();
        let free = most - open.len();
        let held = count(&|other| other.principal == charge.principal && kind(other) == kind(charge));
        let (own, delegations) = (count(&|other| kind(other).is_none()), count(&|other| kind(other) == Some(false)));
        let delegating: HashSet<Principal> =
            open.keys().filter(|other| kind(other) == Some(false)).map(|other| other.principal).collect();
        let left_for_own = (most / 4).saturating_sub(own);
        let left_for_both = left_for_own + (most / 8).saturating_sub(delegating.len());
        match charge.delegation {
            None => free > 0 && (held < 4 || held + left_for_both < free),
            Some((_, None)) => left_for_own < free && (held == 0 || held + left_for_both < free),
            Some((id, Some(_))) => {
                let is_beside = |other: &Charge| {
                    (other.principal, kind(other)) == (charge.principal, kind(charge))
                        && other.delegation.map(|(id, _)| id) == Some(id)
                };
                let kept = left_for_both.max((most / 2).saturating_sub(own + delegations));
                held + kept < free && 2 * count(&is_beside) + kept < free
            }
        }
    }

    #[test]
    fn accounts_are_a_plain_map_and_no_packet_is_lost_or_refused_for_others() {
        for (seed, most) in [(1u64, 40), (2, 64), (3, 100), (4, 256)] {
            let mut accounts = Accounts::new(most, seed);
            let mut open = HashMap::<Charge, Total>::new();
            // What is over: accounts that were closed, with all that they counted.
            let (mut closed, mut sent, mut folded) = (Total::default(), Total::default(), 0u64);
            let mut state = seed;
            let mut random = |bound: u64| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) % bound
            };
            let principals = most as u64 / 16;
            for step in 0..40_000u64 {
                let delegation = match random(8) {
                    0 => None,
                    1 => Some((random(1 << 24) as u32, None)),
                    2..4 => Some((random(3) as u32, None)),
                    4 => Some((random(3) as u32, Some(random(3) as u32))),
                    _ => Some((random(3) as u32, Some(random(1 << 24) as u32))),
                };
                // Three epochs at a time, and those before while they are not closed.
                let epoch = (step / 4_000 + random(3)) as u32;
                let own = charge(random(principals) as u32, delegation, epoch);
                let mut account = own;
                while !open.contains_key(&account) && !may_open(&open, most, &account) {
                    account = parent(&account).expect("a principal's own account always has a place");
                }
                let expected = if account == own { ChargeOutcome::Charged } else { ChargeOutcome::Folded };
                let octets = 20 + random(1_480);
                assert_eq!(accounts.charge(&own, octets, Instant(0)), expected, "{step}: {own:?}");
                folded += u64::from(expected == ChargeOutcome::Folded);
                let count = |total: &mut Total| {
                    *total = Total { packets: total.packets + 1, octets: total.octets + u128::from(octets) };
                };
                count(open.entry(account).or_default());
                count(&mut sent);
                // At the end of an epoch, those of the epoch before the last leave.
                if step % 4_000 == 3_999 {
                    drop(accounts.journal());
                    let over: Vec<Charge> =
                        open.keys().filter(|charge| u64::from(charge.epoch) <= step / 4_000).copied().collect();
                    for charge in over {
                        let total = open.remove(&charge).expect("open");
                        assert_eq!(accounts.total(&charge), total);
                        assert!(accounts.close(&charge));
                        closed =
                            Total { packets: closed.packets + total.packets, octets: closed.octets + total.octets };
                    }
                }
                if step % 500 == 0 {
                    let all = open.iter().map(|(charge, total)| {
                        assert_eq!(accounts.total(charge), *total);
                        *total
                    });
                    let sum = all.fold(closed, |sum, total| Total {
                        packets: sum.packets + total.packets,
                        octets: sum.octets + total.octets,
                    });
                    assert_eq!((sum, accounts.open().0), (sent, open.len()));
                }
            }
            assert_eq!(accounts.folded(), folded);
            assert!(folded > 1_000, "{folded}");
        }
    }

    #[test]
    fn what_is_folded_opens_its_own_account_when_there_is_room_again() {
        let mut accounts = Accounts::new(16, 1);
        let sub = |sub, epoch| charge(1, Some((1, Some(sub))), epoch);
        let mut last = 0;
        while accounts.charge(&sub(last, 0), 1, Instant(0)) == ChargeOutcome::Charged {
            last += 1;
        }
        drop(accounts.journal());
        assert!((0..last).all(|sub_id| accounts.close(&sub(sub_id, 0))));
        assert_eq!(accounts.charge(&sub(last, 0), 1, Instant(0)), ChargeOutcome::Charged);
    }
}
