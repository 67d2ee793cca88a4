//! Which accounts may be opened, so that nobody's IDs take the place that another account needs.
//!
//! A principal's own accounts, its delegations' and its sub-delegations' share one table. Whoever holds a delegation makes
//! sub-delegation IDs without asking anybody, and whoever holds a principal's capability makes delegation IDs. So each kind
//! leaves to the kinds before it what is kept for them, and of the rest no principal has more accounts than are free.
//! What has no place counts one level higher ([`parent`]): a packet is refused only if its principal's own account has none.
//!
//! What everybody has whatever others do:
//! - a principal its own accounts, while those of all principals fit into a quarter of the table: of as many key epochs as can
//!   have one at once ([`super::record::live_epochs`]), which are 4 for each of its intervals from 512 s on and 22 of one of
//!   16 s. Beyond that its first four, while a line is free;
//! - each delegation that the operator has registered, by a rate of its own, its first four accounts; at most as many are as a
//!   thirty-second of the table has lines ([`most_registered`]);
//! - each of as many principals as an eighth of the table has lines, an account of its first delegation;
//! - one principal beside others' sub-delegations, those of its delegations up to a sixteenth of the table, and of several
//!   such none more than there are left;
//! - everybody else what is free: a delegation alone in the table has its sub-delegations' up to an eighth of it at least.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use wayleave_packet::platypus::header::{DelegationId, Principal};
use wayleave_packet::platypus::verify::Charge;

use super::totals::SeededHash;

/// A principal's own accounts that it may open as long as any line is free, and a registered delegation's that are kept for it: one
/// in each key epoch that is accepted, and one more.
const FIRST: u32 = 4;
/// The parts of the table, one in so many, that are kept for principals' own accounts, for registered delegations, for each
/// principal's first delegation, and for all accounts but those of sub-delegations.
const KEPT_FOR_OWN: usize = 4;
const KEPT_FOR_REGISTERED: usize = 8;
const KEPT_FOR_FIRST_DELEGATIONS: usize = 8;
/// Lines of a table for each delegation that can be registered.
pub const LINES_OF_REGISTERED: usize = KEPT_FOR_REGISTERED * FIRST as usize;
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
    principals: HashMap<Principal, AccountCounts, SeededHash>,
    /// Principals that have accounts of delegations.
    delegating: usize,
    delegations: HashMap<(Principal, DelegationId), DelegationCounts, SeededHash>,
    registered: HashSet<(Principal, DelegationId), SeededHash>,
    /// Accounts that registered delegations have of those that are kept for them.
    registered_held: usize,
    most: usize,
}

/// How many accounts a delegation has, and how many its sub-delegations.
#[derive(Clone, Copy, Debug, Default)]
struct DelegationCounts {
    own: u32,
    sub_delegations: u32,
}

/// How many delegations may be registered for a table of `most` accounts: all beyond are as if they were not.
#[must_use]
pub fn most_registered(most: usize) -> usize {
    most / LINES_OF_REGISTERED
}

/// The account in which a packet counts whose own has no place: its delegation's, then its principal's.
pub(super) fn parent(charge: &Charge) -> Option<Charge> {
    let (id, sub) = charge.delegation?;
    Some(Charge { delegation: sub.map(|_| (id, None)), ..*charge })
}

impl AccountShares {
    /// For a table of `most` accounts; `seed` must be random.
    pub(super) fn new(most: usize, seed: u64) -> Self {
        let hash = SeededHash::new(seed);
        Self {
            all: AccountCounts::default(),
            principals: HashMap::with_capacity_and_hasher(most, hash.clone()),
            delegating: 0,
            delegations: HashMap::with_capacity_and_hasher(most, hash.clone()),
            registered: HashSet::with_capacity_and_hasher(most_registered(most), hash),
            registered_held: 0,
            most,
        }
    }

    /// Octets of memory.
    pub(super) fn memory(&self) -> usize {
        self.principals.capacity() * size_of::<(Principal, AccountCounts)>()
            + self.delegations.capacity() * size_of::<((Principal, DelegationId), DelegationCounts)>()
            + self.registered.capacity() * size_of::<(Principal, DelegationId)>()
    }

    /// Keeps accounts for a delegation, if fewer than [`most_registered`] have some.
    pub(super) fn register(&mut self, principal: Principal, id: DelegationId) {
        if self.registered.len() < most_registered(self.most) && self.registered.insert((principal, id)) {
            self.registered_held += self.kept_and_held(&(principal, id));
        }
    }

    /// Keeps accounts for none but these any more.
    pub(super) fn retain_registered(&mut self, is_kept: impl Fn(Principal, DelegationId) -> bool) {
        self.registered.retain(|(principal, id)| is_kept(*principal, *id));
        self.registered_held = self.registered.iter().map(|delegation| self.kept_and_held(delegation)).sum();
    }

    fn kept_and_held(&self, delegation: &(Principal, DelegationId)) -> usize {
        self.delegations.get(delegation).map_or(0, |counts| counts.own.min(FIRST) as usize)
    }

    /// Whether `charge`, which has no account, may open one in a table with `free` lines.
    pub(super) fn may_open(&self, charge: &Charge, free: usize) -> bool {
        let held = || self.principals.get(&charge.principal).copied().unwrap_or_default();
        // What is kept and not taken yet: whoever takes what is kept for it takes nothing from others.
        let left = |part: usize, taken: usize| (self.most / part).saturating_sub(taken);
        let (own, delegations) = (self.all.own as usize, self.all.delegations as usize);
        let left_for_own = left(KEPT_FOR_OWN, own);
        let left_for_registered = (self.registered.len() * FIRST as usize).saturating_sub(self.registered_held);
        let left_for_first = left(KEPT_FOR_FIRST_DELEGATIONS, self.delegating);
        let left_for_all = left_for_own + left_for_registered + left_for_first;
        match charge.delegation {
            None => {
                let held = held().own;
                free > 0 && (held < FIRST || held as usize + left_for_all < free)
            }
            Some((id, None)) => {
                let delegation = (charge.principal, id);
                let is_kept =
                    || self.registered.contains(&delegation) && self.kept_and_held(&delegation) < FIRST as usize;
                let held = held().delegations as usize;
                // A first delegation takes what is kept for such ones, and beyond that only what nobody is kept.
                let is_first_kept = held == 0 && left_for_first > 0;
                if is_first_kept || is_kept() { left_for_own < free } else { held + left_for_all < free }
            }
            Some((id, Some(_))) => {
                // What is kept for registered delegations is not in that half.
                let others = own + delegations - self.registered_held;
                let kept = left_for_all.max(left(KEPT_FROM_SUB_DELEGATIONS, others) + left_for_registered);
                // A table that is full for all of them is told without a look-up: such packets come without end.
                let of_principal = || held().sub_delegations as usize;
                let counts = || self.delegations.get(&(charge.principal, id)).copied().unwrap_or_default();
                let of_delegation = || counts().sub_delegations as usize;
                kept < free && of_principal() + kept < free && of_delegation() * PART_OF_DELEGATION + kept < free
            }
        }
    }

    /// Counts an account that was opened.
    pub(super) fn opened(&mut self, charge: &Charge) {
        let counts = self.principals.entry(charge.principal).or_default();
        *counts.of(charge) += 1;
        *self.all.of(charge) += 1;
        let Some((id, sub)) = charge.delegation else { return };
        let delegation = (charge.principal, id);
        let of_delegation = self.delegations.entry(delegation).or_default();
        if sub.is_some() {
            of_delegation.sub_delegations += 1;
            return;
        }
        of_delegation.own += 1;
        self.delegating += usize::from(counts.delegations == 1);
        let is_kept = of_delegation.own <= FIRST && self.registered.contains(&delegation);
        self.registered_held += usize::from(is_kept);
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
        let Some((id, sub)) = charge.delegation else { return };
        let delegation = (charge.principal, id);
        let Entry::Occupied(mut of_delegation) = self.delegations.entry(delegation) else { return };
        if sub.is_some() {
            of_delegation.get_mut().sub_delegations -= 1;
        } else {
            of_delegation.get_mut().own -= 1;
            self.delegating -= usize::from(counts.delegations == 0);
            let was_kept = of_delegation.get().own < FIRST && self.registered.contains(&delegation);
            self.registered_held -= usize::from(was_kept);
        }
        let DelegationCounts { own, sub_delegations } = of_delegation.get();
        if own + sub_delegations == 0 {
            of_delegation.remove();
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
    //! PLA, shares: a delegate with IDs without end, and random accounts of all kinds that open, count and close: its
    //! principal's own account and each delegation's first are there; nothing is lost, nothing counts twice, and nobody has more
    //! than the shares that the module's documentation names.

    use wayleave_core::{Instant, UnixTime};
    use wayleave_packet::platypus::header::Interval;

    use std::ops::Range;

    use super::super::account::{Accounts, ChargeOutcome, Payer, Total};
    use super::super::record::{MARGIN_SECS, is_over, live_epochs};
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

    /// What the accounts of a charge and those above it have counted.
    fn chain(accounts: &Accounts, charge: &Charge) -> Vec<(Charge, Total)> {
        let all = std::iter::successors(Some(*charge), parent);
        all.map(|account| (account, accounts.total(&account))).collect()
    }

    /// Random accounts of all kinds. Where a packet counts is observed, and must be as the module's documentation says.
    #[test]
    fn no_packet_is_lost_or_refused_for_others_and_nobody_has_more_than_its_share() {
        for (seed, most) in [(1u64, 40), (2, 64), (3, 100), (4, 256)] {
            let mut accounts = Accounts::new(most, seed);
            let mut open = HashMap::<Charge, Total>::new();
            let (mut sent, mut closed, mut folded, mut most_subs) = (Total::default(), Total::default(), 0u64, 0);
            let add = |sum: Total, more: Total| Total {
                packets: sum.packets + more.packets,
                octets: sum.octets + more.octets,
            };
            let mut state = seed;
            let mut random = |bound: u64| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) % bound
            };
            // Four accounts of each principal's own at once are a quarter of the table.
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
                let (octets, before) = (20 + random(1_480), chain(&accounts, &own));
                let is_first_delegation = matches!(delegation, Some((_, None)))
                    && !open.keys().any(|other| other.principal == own.principal && is_of_delegation(other));
                let outcome = accounts.charge(&own, octets, Instant(0));
                // Exactly one account of the chain has the packet.
                let packet = Total { packets: 1, octets: octets.into() };
                let after = chain(&accounts, &own);
                let changed: Vec<usize> = (0..after.len()).filter(|at| before[*at] != after[*at]).collect();
                assert_eq!(changed.len(), 1, "{step}: {own:?}");
                let (at, (account, total)) = (changed[0], after[changed[0]]);
                assert_eq!(total, add(before[at].1, packet));
                let expected = if at == 0 { ChargeOutcome::Charged } else { ChargeOutcome::Folded };
                assert_eq!(outcome, expected);
                // None of those below was open, and a principal's first delegation has an account.
                assert!(before[..at].iter().all(|(account, _)| !open.contains_key(account)));
                assert!(!is_first_delegation || at == 0, "{step}: {own:?}");
                open.insert(account, total);
                sent = add(sent, packet);
                folded += u64::from(at > 0);
                if step % 500 == 0 {
                    let sum = open.values().fold(closed, |sum, total| add(sum, *total));
                    assert_eq!((sum, accounts.open().0), (sent, open.len()));
                    let subs = |of: &dyn Fn(&Charge) -> bool| {
                        open.keys().filter(|open| is_of_sub_delegation(open) && of(open)).count()
                    };
                    most_subs = most_subs.max(subs(&|_| true));
                    assert!(subs(&|_| true) <= most / 2);
                    for principal in 0..principals {
                        let of_principal = |open: &Charge| u64::from(open.principal.number()) == principal;
                        assert!(subs(&of_principal) <= most / 4);
                    }
                }
                // At the end of an epoch, those of the epoch before the last leave.
                if step % 4_000 == 3_999 {
                    drop(accounts.journal());
                    let is_over = |charge: &Charge| u64::from(charge.epoch) <= step / 4_000;
                    for (charge, total) in open.extract_if(|charge, _| is_over(charge)) {
                        assert_eq!(accounts.total(&charge), total);
                        assert!(accounts.close(&charge));
                        closed = add(closed, total);
                    }
                }
            }
            assert_eq!(accounts.folded(), folded);
            assert!(folded > 1_000 && most_subs > most / 8, "{folded}, {most_subs}");
        }
    }

    fn is_of_delegation(charge: &Charge) -> bool {
        matches!(charge.delegation, Some((_, None)))
    }

    fn is_of_sub_delegation(charge: &Charge) -> bool {
        matches!(charge.delegation, Some((_, Some(_))))
    }

    /// While they fit into a quarter of the table, beside sub-delegations and delegations without end.
    #[test]
    fn own_accounts_have_places_in_every_key_epoch_at_every_interval() {
        for n in 4..=12 {
            let interval = Interval::new(n).expect("in range");
            let most = 4 * 3 * live_epochs(interval) as usize;
            let mut accounts = Accounts::new(most, 1);
            let mut open: Vec<Charge> = Vec::new();
            for step in 0..4 * u64::from(live_epochs(interval)) {
                let now = UnixTime(((1_000 + step) << n) * 1_000_000);
                let until = UnixTime(now.0.saturating_sub(MARGIN_SECS * 1_000_000));
                drop(accounts.journal());
                open.retain(|account| !is_over(account, until) || !accounts.close(account));
                for epoch in [0, 1, 2].map(|late| 999 + step as u32 + late) {
                    let at = |charge: Charge| Charge { interval: Some(interval), ..charge };
                    let flood = (0..2 * most as u32).flat_map(|sub| {
                        let id = step as u32 * 100_000 + sub;
                        [charge(1, Some((1, Some(id))), epoch), charge(1 + sub % 3, Some((id, None)), epoch)]
                    });
                    let own = (1..=3).map(|principal| charge(principal, None, epoch));
                    for account in flood.chain(own).map(at) {
                        let outcome = accounts.charge(&account, 1, Instant(0));
                        let is_own = account.delegation.is_none();
                        assert!(!is_own || outcome == ChargeOutcome::Charged, "{n}, {step}: {account:?}");
                        assert_ne!(outcome, ChargeOutcome::TableFull);
                        for (account, total) in chain(&accounts, &account) {
                            if total.packets == 1 && !open.contains(&account) {
                                open.push(account);
                            }
                        }
                    }
                }
            }
        }
    }

    /// As many as can be registered: of one delegate with sub-delegation IDs without end, its principal with delegation IDs without
    /// end, and other principals with both, in as many key epochs as can have accounts.
    #[test]
    fn each_registered_delegation_has_its_accounts_whatever_ids_others_make() {
        for most in [64usize, 256, 4_096] {
            let registered = 0..most_registered(most) as u32;
            assert_eq!(registered.len(), most / 32);
            let mut accounts = Accounts::new(most, 1);
            // The last ones are registered behind the flood, with accounts or without.
            let register = |accounts: &mut Accounts, ids: Range<u32>| {
                for id in ids {
                    let delegation = DelegationId::new(1_000 + id);
                    let payer = Payer { principal: Principal::new(7).expect("24 bits"), delegation };
                    accounts.set_rate(payer, 1_000_000, 1_000_000, Instant(0));
                }
            };
            register(&mut accounts, registered.clone());
            for epoch in 0..4 {
                for n in 0..2 * most as u32 {
                    let (other, id) = (8 + n % 2, 100_000 + n);
                    for flood in [
                        charge(7, Some((1_000, Some(id))), epoch),
                        charge(7, Some((id, None)), epoch),
                        charge(7, Some((id, Some(id))), epoch),
                        charge(other, Some((id, None)), epoch),
                        charge(other, Some((1, Some(id))), epoch),
                    ] {
                        assert_ne!(accounts.charge(&flood, 0, Instant(0)), ChargeOutcome::TableFull);
                    }
                }
                for id in registered.clone().map(|id| 1_000 + id) {
                    let own = charge(7, Some((id, None)), epoch);
                    assert_eq!(accounts.charge(&own, 1, Instant(0)), ChargeOutcome::Charged, "{id} of {most}, {epoch}");
                }
                for principal in [7, 8, 100] {
                    let own = charge(principal, None, epoch);
                    assert_eq!(accounts.charge(&own, 1, Instant(0)), ChargeOutcome::Charged, "{principal} of {most}");
                }
            }
            // Those of an epoch that is over make room for the next one's.
            drop(accounts.journal());
            let first = registered.clone().map(|id| charge(7, Some((1_000 + id, None)), 0)).collect::<Vec<_>>();
            assert!(first.iter().all(|own| accounts.close(own)));
            for own in first {
                let next = Charge { epoch: 4, ..own };
                assert_eq!(accounts.charge(&next, 1, Instant(0)), ChargeOutcome::Charged);
            }
            // What is registered no more leaves its room to those that are.
            accounts.retain_rates(|_| false);
            drop(accounts.journal());
            assert!(registered.clone().all(|id| accounts.close(&charge(7, Some((1_000 + id, None)), 4))));
            let taken = accounts.open().0;
            for n in 0..most as u32 {
                accounts.charge(&charge(9, Some((n, None)), 9), 1, Instant(0));
            }
            assert!(accounts.open().0 > taken);
        }
    }

    /// Many principals, each with its first delegation, and then the ones that the operator has registered.
    #[test]
    fn first_delegations_beyond_what_is_kept_for_them_leave_registered_ones_theirs() {
        for most in [64usize, 256, 4_096] {
            let registered = 0..most_registered(most) as u32;
            let mut accounts = Accounts::new(most, 1);
            for id in registered.clone() {
                let payer =
                    Payer { principal: Principal::new(7).expect("24 bits"), delegation: DelegationId::new(1_000 + id) };
                accounts.set_rate(payer, 1_000_000, 1_000_000, Instant(0));
            }
            for epoch in 0..4 {
                accounts.charge(&charge(7, None, epoch), 1, Instant(0));
            }
            // Their own accounts, and that of 7, are half of the table, and more than are kept for such ones.
            for principal in 100..100 + most as u32 / 2 - 4 {
                accounts.charge(&charge(principal, Some((1, None)), 0), 1, Instant(0));
            }
            for (id, epoch) in registered.flat_map(|id| (0..4).map(move |epoch| (id, epoch))) {
                let own = charge(7, Some((1_000 + id, None)), epoch);
                assert_eq!(accounts.charge(&own, 1, Instant(0)), ChargeOutcome::Charged, "{id} of {most}, {epoch}");
            }
        }
    }

    /// Whatever others' sub-delegations take, one principal's delegations have a sixteenth of the table, and alone more.
    #[test]
    fn delegations_have_a_sixteenth_of_the_table_beside_others_sub_delegations() {
        let tables = [(64u32, 0), (64, 1), (64, 4), (256, 15), (4_096, 0), (4_096, 1), (4_096, 15), (4_096, 250)];
        for (most, others) in tables {
            let mut accounts = Accounts::new(most as usize, 1);
            for n in 0..others * most {
                let account = charge(2 + n % others, Some((1, Some(n))), 0);
                assert_ne!(accounts.charge(&account, 1, Instant(0)), ChargeOutcome::TableFull);
            }
            let of_reseller =
                |id: &u32| accounts.charge(&charge(1, Some((*id, None)), 0), 1, Instant(0)) == ChargeOutcome::Charged;
            let has = (0..most).filter(of_reseller).count() as u32;
            let least = if others == 0 { most / 4 } else { most / 16 };
            assert!(has >= least, "{has} of {most} beside {others}");
        }
    }

    #[test]
    fn what_was_restored_leaves_lines_for_everybodys_own_accounts() {
        let configured = 64;
        for restored in [0u32, 1, 64, 65, 1_000] {
            let records = (0..restored).map(|n| (charge(1, Some((1, Some(n))), 0), Total { packets: 1, octets: 20 }));
            let mut accounts = Accounts::new(Accounts::capacity(configured, restored as usize), 1);
            accounts.restore(records);
            assert_eq!(accounts.open().0, restored as usize);
            for sub in 0..1_000 {
                accounts.charge(&charge(1, Some((2, Some(sub))), 1), 1, Instant(0));
            }
            for principal in 0..configured as u32 / 16 {
                for epoch in 0..4 {
                    let outcome = accounts.charge(&charge(principal, None, epoch), 1, Instant(0));
                    assert_eq!(outcome, ChargeOutcome::Charged, "{principal} beside {restored}");
                }
            }
        }
        // A table that is restored again and again does not grow for ever.
        let mut capacity = configured;
        for _ in 0..100 {
            let mut accounts = Accounts::new(capacity, 1);
            for n in 0..4 * capacity as u32 {
                accounts.charge(&charge(1 + n % 4, Some((n, None)), 0), 1, Instant(0));
                accounts.charge(&charge(1 + n % 4, Some((1, Some(n))), 0), 1, Instant(0));
            }
            capacity = Accounts::capacity(configured, accounts.open().0);
        }
        assert!(capacity <= 2 * configured, "{capacity}");
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
