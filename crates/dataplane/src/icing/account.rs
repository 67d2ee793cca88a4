//! Who sends how much: totals of each account that tags name, and the rate at which each link may charge it.
//!
//! Tags are chosen by whoever holds a consent, so that senders behind several links may name one account. A payer is therefore
//! an account at a link: what comes in by one link takes nothing from what comes in by another.
//!
//! The journal holds totals, not differences, so that a record read twice counts once. What was accepted, counted, and then not sent is
//! credited (`Accounts::credit`) before the next record: a record never becomes less.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use wayleave_core::Instant;
use wayleave_packet::icing::header::header_length;

use super::config::Account;
use crate::replay::{Partition, Partitions, packets_of};

/// Ticks in a second, and in a nanosecond: a tick is what rates count in.
const TICKS: u64 = 8_000_000_000;
const TICKS_PER_NANO: u64 = 8;
/// Nodes of the shortest path.
const FEWEST: usize = 2;

/// What an account has sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Total {
    pub packets: u64,
    /// Of whole packets, headers included.
    pub octets: u64,
}

/// Packets of a payer that were dropped for want of its own resources.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Refused {
    /// It sent more than its rate.
    pub rate: u64,
    /// Its partition in the replay filter was full.
    pub partition: u64,
}

/// A payer's partition, and what it was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PayerState {
    /// Link and account; `None` stands for all payers without a partition of their own.
    pub payer: Option<(u16, u16)>,
    pub partition: Partition,
    pub refused: Refused,
}

/// Where a packet was counted, by the account's index in the policy, and with how many octets: what `Accounts::credit` takes back. It is
/// good until another policy is set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ChargeLine {
    account: u16,
    /// Zero if it was not counted.
    octets: u32,
}

#[derive(Clone, Debug)]
struct AccountState {
    limit: Account,
    total: Total,
    /// The total in the journal's last record.
    recorded: Total,
    /// Where its payers begin, one for each link, if it has a rate.
    payers: Option<usize>,
}

/// An account at a link.
#[derive(Clone, Debug)]
struct Payer {
    /// The numbers of link and account.
    name: (u16, u16),
    rate: u64,
    /// The time, in ticks, for which its bucket may be ahead of the clock.
    burst: u64,
    bucket: Arc<Bucket>,
    partition: Partition,
    refused: Refused,
}

/// The tick at which what a payer has sent will have been paid for at its rate.
type Bucket = AtomicU64;

/// The buckets of payers, which all threads of a node share: a neighbour that moves from one thread to another finds what it has used.
#[derive(Clone, Debug, Default)]
pub(super) struct Buckets(Arc<Mutex<ByPayer>>);

/// By the numbers of link and account.
type ByPayer = HashMap<(u16, u16), Arc<Bucket>>;

impl Buckets {
    fn of(&self, name: (u16, u16)) -> Arc<Bucket> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(all.entry(name).or_default())
    }

    /// Forgets those of payers that no thread has any more.
    fn prune(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|_, bucket| Arc::strong_count(bucket) > 1);
    }
}

/// One core's accounts.
#[derive(Clone, Debug)]
pub(super) struct Accounts {
    /// Those of the policy in its order, and then those that the policy no longer has.
    accounts: Vec<AccountState>,
    /// The numbers of the policy's links, ascending, each with its place in the policy.
    links: Vec<(u16, usize)>,
    payers: Vec<Payer>,
    buckets: Buckets,
    pool: Partition,
    pool_refused: Refused,
}

impl Default for Accounts {
    fn default() -> Self {
        let (accounts, links, payers) = (Vec::new(), Vec::new(), Vec::new());
        let (buckets, pool) = (Buckets::default(), Partition::pool(u32::MAX));
        Self { accounts, links, payers, buckets, pool, pool_refused: Refused::default() }
    }
}

impl Accounts {
    /// What other threads' accounts share with these.
    pub(super) fn buckets(&self) -> &Buckets {
        &self.buckets
    }

    /// Shares the buckets of another thread, from the next [`Accounts::set`] on.
    pub(super) fn share(&mut self, buckets: Buckets) {
        self.buckets = buckets;
        self.payers.clear();
    }

    /// Sets the policy's accounts and the numbers of its links, and divides a replay filter of `capacity` packets a turn among
    /// payers with a rate. Totals, also restored ones, stay with the numbers of their accounts, and what payers have used of
    /// their rates with them.
    pub(super) fn set(&mut self, limits: &[Account], links: Vec<u16>, capacity: usize) {
        let mut before = std::mem::take(&mut self.accounts);
        let payers = std::mem::take(&mut self.payers).into_iter();
        let mut payers_before: HashMap<(u16, u16), Payer> = payers.map(|payer| (payer.name, payer)).collect();
        for limit in limits {
            let index = before.iter().position(|state| state.limit.id == limit.id);
            let mut state = index.map_or_else(|| AccountState::new(*limit), |index| before.swap_remove(index));
            (state.limit, state.payers) = (*limit, (limit.rate > 0).then_some(self.payers.len()));
            self.accounts.push(state);
            for link in links.iter().filter(|_| limit.rate > 0) {
                let name = (*link, limit.id);
                let mut payer = payers_before.remove(&name).unwrap_or_else(|| Payer::new(name, self.buckets.of(name)));
                (payer.rate, payer.burst) = (limit.rate, limit.burst());
                self.payers.push(payer);
            }
        }
        self.accounts.append(&mut before);
        drop(payers_before);
        self.buckets.prune();
        self.links = links.into_iter().zip(0..).collect();
        self.links.sort_unstable();
        let least = header_length(FEWEST, false);
        let rated = limits.iter().filter(|limit| limit.rate > 0);
        let needs = rated.flat_map(|limit| {
            let need = packets_of(limit.rate, limit.depth, least);
            std::iter::repeat_n(need, self.links.len())
        });
        let partitions = Partitions::divide(capacity, &needs.collect::<Vec<_>>());
        self.pool = partitions.pool;
        self.payers.iter_mut().zip(partitions.each).for_each(|(payer, partition)| payer.partition = partition);
    }

    /// Takes over a record of the journal, unless the account's total is greater already.
    pub(super) fn restore(&mut self, id: u16, total: Total) {
        let index = self.accounts.iter().position(|state| state.limit.id == id);
        let index = index.unwrap_or_else(|| {
            self.accounts.push(AccountState::new(Account { id, rate: 0, depth: 0 }));
            self.accounts.len() - 1
        });
        let state = &mut self.accounts[index];
        if state.total.packets < total.packets {
            (state.total, state.recorded) = (total, total);
        }
    }

    /// The totals that have changed since the last call, by the accounts' numbers: the journal's next records.
    pub(super) fn journal(&mut self) -> Vec<(u16, Total)> {
        let changed = self.accounts.iter_mut().filter(|state| state.total != state.recorded);
        changed
            .map(|state| {
                state.recorded = state.total;
                (state.limit.id, state.total)
            })
            .collect()
    }

    /// The payer of a packet that came in by `link` and is charged to the account at this index of the policy, if that has a
    /// rate.
    #[inline(always)]
    fn payer(&mut self, link: u16, account: Option<u16>) -> Option<&mut Payer> {
        let first = self.accounts.get(usize::from(account?))?.payers?;
        let place = self.links.binary_search_by_key(&link, |(id, _)| *id).ok()?;
        self.payers.get_mut(first + self.links[place].1)
    }

    /// Takes a packet from its payer's rate, and returns the partition in the replay filter that it may have; `None` if the rate
    /// forbids it, and then nothing is taken.
    #[inline(always)]
    pub(super) fn claim(&mut self, link: u16, account: Option<u16>, octets: usize, now: Instant) -> Option<Partition> {
        let pool = self.pool;
        let Some(payer) = self.payer(link, account) else { return Some(pool) };
        let now = now.0.saturating_mul(TICKS_PER_NANO);
        // A packet has 65,535 octets at most.
        let cost = (octets as u64).saturating_mul(TICKS).div_ceil(payer.rate.max(1));
        let latest = now.saturating_add(payer.burst);
        if payer.bucket.load(Ordering::Relaxed) > latest {
            // It was used under another rate or depth: no more is owed than what this one takes to pay.
            payer.bucket.fetch_min(latest, Ordering::Relaxed);
        }
        let pay = |paid: u64| Some(paid.max(now).saturating_add(cost)).filter(|paid| *paid <= latest);
        match payer.bucket.fetch_update(Ordering::Relaxed, Ordering::Relaxed, pay) {
            Ok(_) => Some(payer.partition),
            Err(_) => {
                payer.refused.rate += 1;
                None
            }
        }
    }

    /// Notes that the partition of a packet's payer in the replay filter was full.
    #[cold]
    pub(super) fn note_full(&mut self, link: u16, account: Option<u16>) {
        match self.payer(link, account) {
            Some(payer) => payer.refused.partition += 1,
            None => self.pool_refused.partition += 1,
        }
    }

    /// Counts one packet in the account at this index of the policy.
    #[inline(always)]
    pub(super) fn add(&mut self, account: Option<u16>, octets: usize) -> ChargeLine {
        let Some(account) = account else { return ChargeLine::default() };
        // The policy was checked: there is such an account.
        let Some(state) = self.accounts.get_mut(usize::from(account)) else { return ChargeLine::default() };
        state.total.packets += 1;
        state.total.octets += octets as u64;
        ChargeLine { account, octets: octets as u32 } // a packet has 65,535 octets at most
    }

    /// Takes back what a packet was counted with that was not sent; nothing, if nothing was counted, or if a record of the journal has it:
    /// what is recorded never becomes less. What it took of its payer's rate stays taken: that bounds what arrives, whatever becomes of it.
    #[cold]
    pub(super) fn credit(&mut self, ChargeLine { account, octets }: ChargeLine) {
        let Some(state) = self.accounts.get_mut(usize::from(account)).filter(|_| octets > 0) else { return };
        let less = |total: Total| {
            let packets = total.packets.checked_sub(1)?;
            Some(Total { packets, octets: total.octets.checked_sub(octets.into())? })
        };
        let is_recorded =
            |total: &Total| total.packets < state.recorded.packets || total.octets < state.recorded.octets;
        if let Some(total) = less(state.total).filter(|total| !is_recorded(total)) {
            state.total = total;
        }
    }

    pub(super) fn total(&self, id: u16) -> Option<Total> {
        self.accounts.iter().find(|state| state.limit.id == id).map(|state| state.total)
    }

    /// The pool first, then every payer with a rate.
    pub(super) fn payers(&self) -> impl Iterator<Item = PayerState> {
        let of =
            |payer: &Payer| PayerState { payer: Some(payer.name), partition: payer.partition, refused: payer.refused };
        let pool = PayerState { payer: None, partition: self.pool, refused: self.pool_refused };
        std::iter::once(pool).chain(self.payers.iter().map(of))
    }
}

impl AccountState {
    fn new(limit: Account) -> Self {
        Self { limit, total: Total::default(), recorded: Total::default(), payers: None }
    }
}

impl Payer {
    fn new(name: (u16, u16), bucket: Arc<Bucket>) -> Self {
        Self { name, rate: 0, burst: 0, bucket, partition: Partition::pool(0), refused: Refused::default() }
    }
}

impl Account {
    /// The time in which its depth is paid for, in ticks.
    fn burst(&self) -> u64 {
        let ticks = (u128::from(self.depth) * u128::from(TICKS)).div_ceil(u128::from(self.rate.max(1)));
        u64::try_from(ticks).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    //! ICD-08, starve: an account has its rate at each link, and what is used stays used at a reload.
    //! ICD, accounts: records of a journal, in any order and twice: each counts once; packets that were counted and not sent: credited
    //! once, and never what the journal has.

    use super::*;

    const LINK: u16 = 5;

    fn account(id: u16) -> Account {
        Account { id, rate: 0, depth: 0 }
    }

    fn set(accounts: &mut Accounts, limits: &[Account]) {
        accounts.set(limits, vec![LINK, LINK + 1], 1_000);
    }

    #[test]
    fn totals_stay_with_their_accounts_when_a_policy_drops_or_reorders_them() {
        let mut accounts = Accounts::default();
        set(&mut accounts, &[account(7), account(9)]);
        accounts.add(Some(0), 100);
        accounts.add(Some(1), 50);
        set(&mut accounts, &[account(9)]);
        accounts.add(Some(0), 5);
        set(&mut accounts, &[account(8), account(7), account(9)]);
        accounts.add(Some(1), 1);
        let total = |packets, octets| Some(Total { packets, octets });
        assert_eq!([7, 8, 9, 10].map(|id| accounts.total(id)), [total(2, 101), total(0, 0), total(2, 55), None]);
    }

    #[test]
    fn an_account_has_its_rate_at_each_link_and_what_is_used_stays_used_at_a_reload() {
        let mut accounts = Accounts::default();
        let limit = |id| Account { id, rate: 100, depth: 1_000 };
        set(&mut accounts, &[limit(7), account(9)]);
        let passed = |accounts: &mut Accounts, link, account| {
            (0..100).filter(|_| accounts.claim(link, account, 100, Instant(0)).is_some()).count()
        };
        assert_eq!(passed(&mut accounts, LINK, Some(0)), 10);
        set(&mut accounts, &[limit(8), limit(7)]);
        assert_eq!(passed(&mut accounts, LINK, Some(1)), 0);
        assert_eq!(passed(&mut accounts, LINK + 1, Some(1)), 10);
        assert_eq!(passed(&mut accounts, LINK, Some(0)), 10);
        assert_eq!(passed(&mut accounts, LINK, None), 100);
        let states: Vec<PayerState> = accounts.payers().collect();
        assert_eq!(
            states.iter().map(|state| state.payer).collect::<Vec<_>>()[1..3],
            [Some((LINK, 8)), Some((LINK + 1, 8))]
        );
        assert_eq!((states[1].partition.limit(), states[1].refused.rate), (27, 90));
    }

    #[test]
    fn a_link_that_moves_to_another_thread_has_no_more_than_its_rate() {
        let mut threads = [Accounts::default(), Accounts::default()];
        let buckets = threads[0].buckets().clone();
        threads[1].share(buckets);
        let limit = Account { id: 7, rate: 1_000, depth: 1_000 };
        threads.iter_mut().for_each(|accounts| set(accounts, &[limit]));
        let mut passed = 0;
        for tenth in 0..100u64 {
            // It moves each second, and sends ten times what it may.
            let accounts = &mut threads[(tenth / 10 % 2) as usize];
            let claim = |accounts: &mut Accounts| accounts.claim(LINK, Some(0), 100, Instant(tenth * 100_000_000));
            passed += (0..10).filter(|_| claim(accounts).is_some()).count();
        }
        // Ten seconds at its rate, and its depth once.
        assert_eq!(passed, 10 + 99);
        // What a policy no longer has is forgotten once no thread has it.
        set(&mut threads[0], &[]);
        set(&mut threads[0], &[limit]);
        assert!(threads[0].claim(LINK, Some(0), 1_000, Instant(9_900_000_000)).is_none());
        threads.iter_mut().for_each(|accounts| set(accounts, &[]));
        set(&mut threads[0], &[limit]);
        assert!(threads[0].claim(LINK, Some(0), 1_000, Instant(9_900_000_000)).is_some());
    }

    #[test]
    fn another_rate_holds_at_once_and_the_longest_packet_that_may_pass_passes() {
        let mut accounts = Accounts::default();
        let limit = |rate, depth| Account { id: 7, rate, depth };
        set(&mut accounts, &[limit(100, 10_000_000)]);
        assert!(accounts.claim(LINK, Some(0), 10_000_000, Instant(0)).is_some());
        // Ten million octets are paid for in ten seconds now, and not in a hundred thousand.
        set(&mut accounts, &[limit(1_000_000, 10_000_000)]);
        assert!(accounts.claim(LINK, Some(0), 1_000, Instant(500_000)).is_none());
        assert!(accounts.claim(LINK, Some(0), 1_000_000, Instant(1_001_000_000)).is_some());
        assert!(accounts.claim(LINK, Some(0), 2_000, Instant(1_001_500_000)).is_none());
        for rate in [7_000_000, 3, 999_999_937] {
            let mut accounts = Accounts::default();
            set(&mut accounts, &[limit(rate, 1_500)]);
            assert!(accounts.claim(LINK, Some(0), 1_500, Instant(5)).is_some(), "{rate}");
        }
    }

    #[test]
    fn what_was_not_sent_is_credited_before_the_next_record_and_never_after_it() {
        let mut accounts = Accounts::default();
        set(&mut accounts, &[account(1), account(2)]);
        let total = |packets, octets| Some(Total { packets, octets });
        let lines = [100, 50, 7].map(|octets| accounts.add(Some(1), octets));
        accounts.credit(lines[1]);
        assert_eq!([1, 2].map(|id| accounts.total(id)), [total(0, 0), total(2, 107)]);
        assert_eq!(accounts.journal(), [(2, Total { packets: 2, octets: 107 })]);
        // The record has it, whatever was counted since.
        accounts.credit(lines[0]);
        assert_eq!(accounts.total(2), total(2, 107));
        let last = accounts.add(Some(1), 30);
        accounts.credit(lines[0]);
        assert_eq!(accounts.total(2), total(3, 137));
        accounts.credit(last);
        assert!(accounts.journal().is_empty(), "all that was counted since was credited");
        // Packets of nobody, and an account that there is not.
        let uncounted = accounts.add(None, 30);
        [uncounted, ChargeLine { account: 9, octets: 30 }].into_iter().for_each(|line| accounts.credit(line));
        assert_eq!([1, 2].map(|id| accounts.total(id)), [total(0, 0), total(2, 107)]);
    }

    #[test]
    fn a_journal_has_each_change_once_and_its_records_count_once_in_any_order() {
        let mut accounts = Accounts::default();
        set(&mut accounts, &[account(1), account(2)]);
        let mut records = Vec::new();
        for packet in 0..20 {
            accounts.add(Some(packet % 2), 10 + usize::from(packet));
            records.extend(accounts.journal());
            assert!(accounts.journal().is_empty());
        }
        assert_eq!(records.len(), 20);
        let mut again = Accounts::default();
        set(&mut again, &[account(2)]);
        for (id, total) in records.iter().rev().chain(&records) {
            again.restore(*id, *total);
        }
        set(&mut again, &[account(1), account(2)]);
        assert_eq!([1, 2].map(|id| again.total(id)), [1, 2].map(|id| accounts.total(id)));
        assert!(again.journal().is_empty());
    }
}
