//! Accounts: counters per principal, delegation and key epoch, and rates that a principal may not exceed.
//!
//! A packet of a sub-delegation that has no place in the table counts in its delegation, and one of such a delegation in its
//! principal (`AccountShares`). So only a principal's own account is ever refused, and only if those of all principals, in all
//! key epochs that can have one at once, are more than a quarter of the lines. An account leaves five minutes after its key
//! epoch is over, once its record is durable: short epochs have many at once.
//!
//! What was accepted, counted, and then not sent is credited (`Accounts::credit`) before the next record of the journal: a
//! recorded total only grows.
//!
//! The journal holds totals, not differences, so that a record read twice counts once. The driver writes it every few
//! milliseconds: after a crash a total is too low by what was counted since, and never too high.

use std::collections::HashMap;

use wayleave_core::Instant;
use wayleave_packet::platypus::header::{DelegationId, Principal};
use wayleave_packet::platypus::verify::Charge;

use super::account_shares::{AccountShares, parent};
pub use super::account_shares::{LINES_OF_REGISTERED, most_registered};
use super::revocation::{pack_fields, packed_principal};
use super::totals::Totals;
use crate::replay::Partition;
pub use crate::tally::Total;

/// Whether a packet was charged to its account.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChargeOutcome {
    Charged,
    /// The packet was charged to the account of its delegation, or to its principal's own, since its own has no place.
    Folded,
    /// The packet exceeds a rate.
    OverRate,
    /// The table has no free entry for the principal's own account.
    TableFull,
}

/// Where a packet was counted, and with how many octets: what `Accounts::credit` takes back. It is good until an account is closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ChargeLine {
    line: u32,
    /// No counted packet is without octets: zero says that nothing was counted.
    octets: u32,
}

impl ChargeLine {
    #[inline(always)]
    fn new(line: usize, octets: u64) -> Self {
        // A table has far fewer lines, and a packet fewer octets.
        Self { line: line as u32, octets: octets as u32 }
    }

    pub(super) fn octets(self) -> u64 {
        self.octets.into()
    }
}

/// Whom a rate limits: a principal with all delegations, or one delegation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Payer {
    pub principal: Principal,
    /// `None` stands for all of the principal's delegations.
    pub delegation: Option<DelegationId>,
}

/// A token bucket for this router's share of a rate.
#[derive(Clone, Debug)]
struct Bucket {
    /// Octets a second.
    rate: u64,
    /// Octets a second beyond the rate, and until when: a lease, which ends by itself.
    lease: (u64, Instant),
    /// Octets at most at once.
    depth: u64,
    /// Octets times 10^9.
    credit: u128,
    last: Instant,
    /// Octets that arrived since the shares were last computed, whether they passed or not.
    demand: u64,
    /// The payer's place in the replay filter, if it has one of its own.
    partition: Option<Partition>,
    refused: Refused,
}

/// Packets of a payer that were dropped for want of its own resources.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Refused {
    /// It sent more than its rate.
    pub rate: u64,
    /// Its partition in the replay filter was full.
    pub partition: u64,
}

/// A payer's rate and partition here, and what it was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PayerState {
    /// `None` stands for all payers without a partition of their own.
    pub payer: Option<Payer>,
    pub partition: Partition,
    /// Octets a second that it may send here, with what is leased; zero if it has no rate.
    pub rate: u64,
    pub refused: Refused,
}

const NANOS: u128 = 1_000_000_000;

impl Bucket {
    fn refill(&mut self, now: Instant) {
        let until = |end: u64| u128::from(end.saturating_sub(self.last.0));
        let (leased, ends) = self.lease;
        let credit = until(now.0) * u128::from(self.rate) + until(now.0.min(ends.0)) * u128::from(leased);
        self.credit = (self.credit + credit).min(u128::from(self.depth) * NANOS);
        self.last = self.last.max(now);
    }

    fn has(&mut self, octets: u64, now: Instant) -> bool {
        self.refill(now);
        self.demand = self.demand.saturating_add(octets);
        self.credit >= u128::from(octets) * NANOS
    }

    /// Whether a packet that was seen before may pass again. It leaves half of the bucket alone, so that whoever repeats a
    /// payer's packets takes nothing that the payer's own packets need.
    fn has_for_repeated(&mut self, octets: u64, now: Instant) -> bool {
        self.refill(now);
        self.credit >= u128::from(octets.saturating_add(self.depth / 2)) * NANOS
    }

    fn take(&mut self, octets: u64) {
        self.credit -= u128::from(octets) * NANOS;
    }
}

/// An account's key in the table, and the line where the search for it begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct AccountKey {
    packed: u128,
    home: usize,
}

fn pack(charge: &Charge) -> u128 {
    let n = charge.interval.map_or(0, |interval| interval.exponent());
    pack_fields(charge.principal, charge.delegation, n, charge.epoch)
}

/// One router's accounts.
#[derive(Clone, Debug)]
pub struct Accounts {
    totals: Totals,
    changed: Vec<Charge>,
    buckets: HashMap<Payer, Bucket>,
    /// The place in the replay filter of all payers without one of their own, and what they were refused.
    pool: Partition,
    pool_refused: Refused,
    shares: AccountShares,
    /// Packets that were charged to another account than their own.
    folded: u64,
    most: usize,
}

impl Accounts {
    /// A table of `most` accounts, allocated at once. `seed` must be random.
    #[must_use]
    pub fn new(most: usize, seed: u64) -> Self {
        Self {
            totals: Totals::new(most, seed),
            changed: Vec::with_capacity(most),
            buckets: HashMap::new(),
            pool: Partition::pool(u32::MAX),
            pool_refused: Refused::default(),
            shares: AccountShares::new(most, seed),
            folded: 0,
            most,
        }
    }

    /// How many accounts a table has room for that begins with `restored` ones: where `accounts` are configured, half of these
    /// for new ones at least, so that nobody's own account is without a line because others' were restored. One that was
    /// restored without a line would begin at zero, and its next record would replace the greater total.
    #[must_use]
    pub fn capacity(accounts: usize, restored: usize) -> usize {
        accounts.max(restored.saturating_add(accounts / 2))
    }

    /// Accounts that are open, and those that there is room for.
    #[must_use]
    pub fn open(&self) -> (usize, usize) {
        (self.totals.count(), self.most)
    }

    /// Octets of memory that the table takes, whatever is in it.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.totals.memory() + self.changed.capacity() * size_of::<Charge>() + self.shares.memory()
    }

    /// Packets that were charged to their delegation's or principal's account, since their own had no place.
    #[must_use]
    pub fn folded(&self) -> u64 {
        self.folded
    }

    /// Sets the partition in the replay filter of all payers without a partition of their own.
    pub fn set_pool(&mut self, pool: Partition) {
        self.pool = pool;
    }

    /// Gives a payer that has a rate its partition in the replay filter.
    pub fn set_partition(&mut self, payer: &Payer, partition: Partition) {
        self.buckets.entry(*payer).and_modify(|bucket| bucket.partition = Some(partition));
    }

    /// The pool first, then all payers with a rate, in no order.
    pub fn payers(&self, now: Instant) -> impl Iterator<Item = PayerState> {
        let of = move |(payer, bucket): (&Payer, &Bucket)| PayerState {
            payer: Some(*payer),
            partition: bucket.partition.unwrap_or(self.pool),
            rate: bucket.rate + if now < bucket.lease.1 { bucket.lease.0 } else { 0 },
            refused: bucket.refused,
        };
        let pool = PayerState { payer: None, partition: self.pool, rate: 0, refused: self.pool_refused };
        std::iter::once(pool).chain(self.buckets.iter().map(of))
    }

    /// Limits `payer` to `rate` octets a second here, and `depth` octets at once. A payer without a rate has no limit. A delegation
    /// with one is registered: accounts are kept for it ([`most_registered`]).
    pub fn set_rate(&mut self, payer: Payer, rate: u64, depth: u64, now: Instant) {
        let bucket = self.buckets.entry(payer).or_insert_with(|| Bucket {
            rate,
            lease: (0, Instant(0)),
            depth,
            credit: u128::from(depth) * NANOS,
            last: now,
            demand: 0,
            partition: None,
            refused: Refused::default(),
        });
        bucket.refill(now);
        (bucket.rate, bucket.depth) = (rate, depth);
        bucket.credit = bucket.credit.min(u128::from(depth) * NANOS);
        if let Some(id) = payer.delegation {
            self.shares.register(payer.principal, id);
        }
    }

    /// Lets `payer`, which has a rate, send `share` octets a second beyond it until `ends`: nobody has to take a lease back.
    pub fn set_lease(&mut self, payer: &Payer, share: u64, ends: Instant, now: Instant) {
        if let Some(bucket) = self.buckets.get_mut(payer) {
            bucket.refill(now);
            bucket.lease = (share, ends);
        }
    }

    /// Removes the rates of all other payers.
    pub fn retain_rates(&mut self, is_kept: impl Fn(&Payer) -> bool) {
        self.buckets.retain(|payer, _| is_kept(payer));
        let Self { buckets, shares, .. } = self;
        shares.retain_registered(|principal, id| buckets.contains_key(&Payer { principal, delegation: Some(id) }));
    }

    /// Octets of `payer` that arrived here since this was last called: what [`shares`] divides a rate by.
    pub fn take_demand(&mut self, payer: &Payer) -> u64 {
        self.buckets.get_mut(payer).map_or(0, |bucket| std::mem::take(&mut bucket.demand))
    }

    /// The key of an account that is charged soon; begins to fetch its line.
    #[inline(always)]
    pub(super) fn look_up(&self, charge: &Charge) -> AccountKey {
        let packed = pack(charge);
        AccountKey { packed, home: self.totals.fetch(packed) }
    }

    /// Charges a packet of `octets` octets to its account, unless a rate forbids it.
    #[inline]
    pub fn charge(&mut self, charge: &Charge, octets: u64, now: Instant) -> ChargeOutcome {
        match self.claim(|| *charge, octets, now) {
            Some(_) => self.add(self.look_up(charge), || *charge, octets).0,
            None => ChargeOutcome::OverRate,
        }
    }

    /// Takes a packet of `octets` octets from the rates of its payers, and returns the partition in the replay filter that it may
    /// have; `None` if a rate forbids it, and then nothing is taken.
    #[inline(always)]
    pub(super) fn claim(&mut self, charge: impl Fn() -> Charge, octets: u64, now: Instant) -> Option<Partition> {
        if self.buckets.is_empty() { Some(self.pool) } else { self.claim_from(&charge(), octets, now) }
    }

    #[inline(never)]
    fn claim_from(&mut self, charge: &Charge, octets: u64, now: Instant) -> Option<Partition> {
        let mut partition = None;
        let mut is_within = true;
        // The delegation first: what its own rate forbids is no demand on its principal's, or else a delegation's flood at one
        // thread would draw its principal's rate there, away from all its other packets.
        for bucket in payers(charge).into_iter().flatten().rev() {
            let Some(bucket) = self.buckets.get_mut(&bucket).filter(|_| is_within) else { continue };
            is_within = bucket.has(octets, now);
            bucket.refused.rate += u64::from(!is_within);
            // The principal's own partition, or that of its delegation if only this has a rate.
            partition = bucket.partition.or(partition);
        }
        is_within.then(|| {
            self.take(charge, octets);
            partition.unwrap_or(self.pool)
        })
    }

    /// Takes a packet that was seen before from the rates of its payers, from the half that repeated packets may have; `false`
    /// if a rate forbids it.
    #[cold]
    pub(super) fn claim_repeated(&mut self, charge: &Charge, octets: u64, now: Instant) -> bool {
        let mut is_within = true;
        for bucket in payers(charge).into_iter().flatten() {
            let Some(bucket) = self.buckets.get_mut(&bucket) else { continue };
            let has = bucket.has_for_repeated(octets, now);
            bucket.refused.rate += u64::from(!has);
            is_within &= has;
        }
        if is_within {
            self.take(charge, octets);
        }
        is_within
    }

    fn take(&mut self, charge: &Charge, octets: u64) {
        for payer in payers(charge).into_iter().flatten() {
            self.buckets.get_mut(&payer).into_iter().for_each(|bucket| bucket.take(octets));
        }
    }

    /// Notes that the partition of a packet's payer in the replay filter was full.
    #[cold]
    pub(super) fn note_full(&mut self, charge: &Charge) {
        let own = payers(charge)
            .into_iter()
            .flatten()
            .find(|payer| self.buckets.get(payer).is_some_and(|bucket| bucket.partition.is_some()));
        match own.and_then(|payer| self.buckets.get_mut(&payer)) {
            Some(bucket) => bucket.refused.partition += 1,
            None => self.pool_refused.partition += 1,
        }
    }

    /// Counts a packet of `octets` octets in the account whose key `look_up` returned for `charge`. An account that exists needs
    /// no more than its own cache line; everything else is out of line.
    #[inline(always)]
    pub(super) fn add(
        &mut self,
        key: AccountKey,
        charge: impl Fn() -> Charge,
        octets: u64,
    ) -> (ChargeOutcome, ChargeLine) {
        match self.totals.add_known(key.packed, key.home, octets) {
            Some((line, is_first)) => {
                if is_first {
                    self.changed.push(charge());
                }
                (ChargeOutcome::Charged, ChargeLine::new(line, octets))
            }
            None => self.add_new(&charge(), octets),
        }
    }

    /// The same for an account that does not exist: it is opened, or the packet counts in the first of those above it that
    /// exists or may be opened.
    #[inline(never)]
    fn add_new(&mut self, charge: &Charge, octets: u64) -> (ChargeOutcome, ChargeLine) {
        let mut account = *charge;
        while !self.totals.contains(pack(&account)) {
            if self.shares.may_open(&account, self.most - self.totals.count()) {
                self.shares.opened(&account);
                break;
            }
            match parent(&account) {
                Some(parent) => account = parent,
                None => return (ChargeOutcome::TableFull, ChargeLine::default()),
            }
        }
        let (line, is_first) = self.totals.add(pack(&account), octets);
        if is_first {
            self.changed.push(account);
        }
        let is_own = account == *charge;
        self.folded += u64::from(!is_own);
        (if is_own { ChargeOutcome::Charged } else { ChargeOutcome::Folded }, ChargeLine::new(line, octets))
    }

    /// Takes back what a packet was counted with that was not sent, and returns whose it was. `None`, and nothing is taken back, if
    /// nothing was counted, or if a record of the journal has it: what is recorded never becomes less. The rate's tokens
    /// stay taken: they bound what arrives, whatever becomes of it.
    #[cold]
    pub(super) fn credit(&mut self, charged: ChargeLine) -> Option<Principal> {
        let ChargeLine { line, octets } = charged;
        let key = if octets == 0 { None } else { self.totals.credit(line as usize, octets.into()) };
        key.and_then(packed_principal)
    }

    /// What an account has sent.
    #[must_use]
    pub fn total(&self, charge: &Charge) -> Total {
        self.totals.total(pack(charge))
    }

    /// Totals that changed since this was last called: the next records of the journal.
    pub fn journal(&mut self) -> Vec<(Charge, Total)> {
        let Self { totals, changed, .. } = self;
        // The list keeps its memory: this is called every few milliseconds.
        changed.drain(..).filter_map(|charge| Some((charge, totals.record(pack(&charge))?))).collect()
    }

    /// Restores accounts from the journal's records, in any order: an account's largest total is its last one. The table must
    /// have an entry for each account ([`Accounts::capacity`]).
    pub fn restore(&mut self, records: impl IntoIterator<Item = (Charge, Total)>) {
        for (charge, total) in records {
            let is_new = !self.totals.contains(pack(&charge));
            if self.totals.restore(pack(&charge), total) && is_new {
                self.shares.opened(&charge);
            }
        }
    }

    /// Removes the account of an epoch that is over, and returns whether it is gone: an account that was charged since its
    /// last record stays until the next one. That record must be durable.
    pub fn close(&mut self, charge: &Charge) -> bool {
        let key = pack(charge);
        if !self.totals.contains(key) {
            return true;
        }
        if !self.totals.is_recorded(key) {
            return false;
        }
        self.totals.remove(key);
        self.shares.closed(charge);
        true
    }
}

/// The principal, and its delegation.
fn payers(charge: &Charge) -> [Option<Payer>; 2] {
    let payer = |delegation| Payer { principal: charge.principal, delegation };
    [Some(payer(None)), charge.delegation.map(|(id, _)| payer(Some(id)))]
}

/// Divides `rate` among routers by the demand at each (paper, section 7.2): no router gets more than its demand while
/// another lacks, and what exceeds all demands is divided evenly. The shares' sum is at most `rate`.
#[must_use]
pub fn shares(rate: u64, demands: &[u64]) -> Vec<u64> {
    let mut out = vec![0; demands.len()];
    let mut order: Vec<usize> = (0..demands.len()).collect();
    order.sort_unstable_by_key(|index| demands[*index]);
    let mut left = rate;
    for (done, index) in order.into_iter().enumerate() {
        let fair = left / (demands.len() - done) as u64;
        out[index] = demands[index].min(fair);
        left -= out[index];
    }
    let spare = left.checked_div(demands.len() as u64).unwrap_or(0);
    out.iter_mut().for_each(|share| *share += spare);
    out
}

#[cfg(test)]
mod tests {
    //! PLA, credit: packets that were counted and not sent, credited once, twice, after the journal has them, and with what was
    //! never counted: no total below what was sent, none below its last record.
    //! PLA-09, tokens: repeated packets where they pass: half of what may be sent at once is left.
    //! PLA, accounts: a principal with delegations without end, up to the lines of the table: others have room.
    //! PLA, rates: a reload with the same, a greater and no rate: it gives no credit.
    //! PLA, rates of delegations: a delegation far above its own rate: it draws nothing of its principal's rate to its
    //! thread; each limit counts what it refuses.

    use super::*;

    fn charge(principal: u32, delegation: Option<u32>, epoch: u32) -> Charge {
        Charge {
            principal: Principal::new(principal).expect("24 bits"),
            delegation: delegation.map(|id| (DelegationId::new(id).expect("24 bits"), None)),
            interval: None,
            epoch,
        }
    }

    fn seconds(secs: u64) -> Instant {
        Instant(secs * 1_000_000_000)
    }

    #[test]
    fn a_journal_read_twice_or_out_of_order_counts_once() {
        let mut accounts = Accounts::new(10, 1);
        let mut journal = Vec::new();
        for packet in 0..100u64 {
            accounts.charge(&charge(1 + packet as u32 % 3, None, 7), 100 + packet, Instant(0));
            if packet % 10 == 9 {
                journal.extend(accounts.journal());
            }
        }
        assert!(accounts.journal().is_empty());
        let mut restored = Accounts::new(10, 1);
        restored.restore(journal.iter().copied());
        restored.restore(journal.iter().rev().copied());
        for principal in 1..=3 {
            assert_eq!(restored.total(&charge(principal, None, 7)), accounts.total(&charge(principal, None, 7)));
        }
        // What came after the last record is lost, and nothing is too much.
        accounts.charge(&charge(1, None, 7), 5, Instant(0));
        assert_eq!(accounts.total(&charge(1, None, 7)).octets, restored.total(&charge(1, None, 7)).octets + 5);
    }

    fn counted(accounts: &mut Accounts, charge: &Charge, octets: u64) -> ChargeLine {
        accounts.add(accounts.look_up(charge), || *charge, octets).1
    }

    #[test]
    fn what_was_not_sent_is_credited_before_the_next_record_and_never_after_it() {
        let mut accounts = Accounts::new(10, 1);
        let (one, other) = (charge(1, None, 7), charge(2, Some(5), 7));
        let first = counted(&mut accounts, &one, 100);
        let second = counted(&mut accounts, &one, 40);
        let others = counted(&mut accounts, &other, 70);
        assert_eq!(accounts.credit(first), Some(one.principal));
        assert_eq!(accounts.total(&one), Total { packets: 1, octets: 40 });
        // There is no such packet any more, nor one that counts nothing.
        assert_eq!((accounts.credit(first), accounts.credit(ChargeLine::default())), (None, None));
        assert_eq!(accounts.credit(ChargeLine { line: u32::MAX, octets: 1 }), None);
        assert_eq!(accounts.journal().len(), 2);
        assert_eq!([second, others].map(|charged| accounts.credit(charged)), [None, None]);
        assert_eq!(accounts.total(&one), Total { packets: 1, octets: 40 });
        assert_eq!(accounts.total(&other), Total { packets: 1, octets: 70 });
    }

    #[test]
    fn an_account_whose_packets_are_all_credited_is_written_once_and_can_be_closed() {
        let mut accounts = Accounts::new(10, 1);
        let of = charge(1, None, 7);
        for _ in 0..100 {
            let charged = counted(&mut accounts, &of, 100);
            assert_eq!(accounts.credit(charged), Some(of.principal));
        }
        assert!(accounts.changed.len() == 1 && accounts.changed.capacity() == 10);
        assert!(!accounts.close(&of), "its record is not durable");
        assert_eq!(accounts.journal(), [(of, Total::default())]);
        assert!(accounts.close(&of));
    }

    #[test]
    fn a_packet_is_credited_where_it_was_counted() {
        let mut accounts = Accounts::new(16, 1);
        // Some of these have no place of their own.
        let counted: Vec<ChargeLine> = (0..8).map(|id| counted(&mut accounts, &charge(1, Some(id), 0), 10)).collect();
        assert_eq!(accounts.folded(), 2);
        assert_eq!(accounts.total(&charge(1, None, 0)), Total { packets: 2, octets: 20 });
        assert!(counted.into_iter().all(|charged| accounts.credit(charged) == Principal::new(1)));
        assert!(accounts.journal().into_iter().all(|(_, total)| total == Total::default()));
    }

    #[test]
    fn a_delegation_is_limited_by_its_own_rate_and_by_its_principals() {
        let mut accounts = Accounts::new(10, 1);
        let payer = |id: Option<u32>| Payer {
            principal: Principal::new(1).expect("24 bits"),
            delegation: id.map(|id| DelegationId::new(id).expect("24 bits")),
        };
        accounts.set_rate(payer(None), 1_000, 1_000, seconds(0));
        accounts.set_rate(payer(Some(5)), 100, 100, seconds(0));
        let mut passed = [0u64; 2];
        for tenth in 0..1_000 {
            let now = Instant(tenth * 100_000_000);
            for (index, delegation) in [Some(5), None].into_iter().enumerate() {
                let outcome = accounts.charge(&charge(1, delegation, 0), 50, now);
                passed[index] += u64::from(outcome == ChargeOutcome::Charged) * 50;
            }
        }
        // 100 seconds, and what the buckets held at first.
        assert!((9_900..=10_100).contains(&passed[0]), "{passed:?}");
        assert!(passed[0] + passed[1] <= 101_000, "{passed:?}");
        assert_eq!(accounts.take_demand(&payer(Some(5))), 50_000);
    }

    #[test]
    fn what_a_delegations_own_rate_forbids_is_no_demand_on_its_principals() {
        let mut accounts = Accounts::new(10, 1);
        let payer = |id: Option<u32>| Payer {
            principal: Principal::new(1).expect("24 bits"),
            delegation: id.map(|id| DelegationId::new(id).expect("24 bits")),
        };
        accounts.set_rate(payer(None), 1_000, 1_000, seconds(0));
        accounts.set_rate(payer(Some(5)), 10, 100, seconds(0));
        let flood = (0..1_000).filter(|_| accounts.claim(|| charge(1, Some(5), 0), 50, seconds(0)).is_some());
        assert_eq!(flood.count(), 2);
        let demand = [Some(5), None].map(|id| accounts.take_demand(&payer(id)));
        assert_eq!(demand, [50_000, 100]);
        // So another thread, with 900 octets of the principal's own, keeps its rate.
        assert!(shares(1_000, &[demand[1], 900])[1] >= 900);
        let refused = |id| {
            accounts.payers(seconds(0)).find(|state| state.payer == Some(payer(id))).map(|state| state.refused.rate)
        };
        assert_eq!((refused(Some(5)), refused(None)), (Some(998), Some(0)), "each counts what it refuses");
    }

    #[test]
    fn a_lease_ends_by_itself_also_if_nobody_looks() {
        let mut accounts = Accounts::new(10, 1);
        let payer = Payer { principal: Principal::new(1).expect("24 bits"), delegation: None };
        accounts.set_rate(payer, 10, 2_000, seconds(0));
        let passed = |accounts: &mut Accounts, at: u64| {
            (0..1_000).filter(|_| accounts.claim(|| charge(1, None, 0), 10, seconds(at)).is_some()).count()
        };
        assert_eq!(passed(&mut accounts, 0), 200, "what the bucket holds at first");
        accounts.set_lease(&payer, 90, seconds(10), seconds(0));
        let rate = |at| accounts.payers(at).find(|state| state.payer == Some(payer)).map(|state| state.rate);
        assert_eq!((rate(seconds(9)), rate(seconds(10))), (Some(100), Some(10)));
        assert_eq!(passed(&mut accounts, 10), 100, "ten seconds at 100 octets");
        assert_eq!(passed(&mut accounts, 20), 10, "ten at 10");
        // A lease that is over when the next packet comes counts to its end and no further.
        accounts.set_lease(&payer, 90, seconds(25), seconds(20));
        assert_eq!(passed(&mut accounts, 120), 145, "5 s of 90 and 100 s of 10");
        // Another share takes the place of the one before at once.
        accounts.set_lease(&payer, 90, seconds(140), seconds(120));
        accounts.set_lease(&payer, 0, seconds(140), seconds(125));
        assert_eq!(passed(&mut accounts, 130), 55, "5 s of 100 and 5 s of 10");
    }

    #[test]
    fn another_rate_keeps_the_level_and_what_has_no_rate_any_more_has_no_limit() {
        let mut accounts = Accounts::new(10, 1);
        let payer = |principal| Payer { principal: Principal::new(principal).expect("24 bits"), delegation: None };
        let passed = |accounts: &mut Accounts, now| {
            (0..1_000).filter(|_| accounts.charge(&charge(1, None, 0), 10, now) == ChargeOutcome::Charged).count()
        };
        accounts.set_rate(payer(1), 100, 1_000, seconds(0));
        assert_eq!(passed(&mut accounts, seconds(0)), 100);
        accounts.set_rate(payer(1), 200, 2_000, seconds(0));
        assert_eq!(passed(&mut accounts, seconds(0)), 0);
        assert_eq!(passed(&mut accounts, seconds(1)), 20);
        accounts.retain_rates(|kept| *kept == payer(2));
        assert_eq!(passed(&mut accounts, seconds(1)), 1_000);
    }

    #[test]
    fn no_account_is_opened_beyond_the_limit() {
        let mut accounts = Accounts::new(2, 1);
        let outcomes: Vec<ChargeOutcome> =
            [1, 2, 3, 1].map(|n| accounts.charge(&charge(n, None, 0), 1, Instant(0))).to_vec();
        assert_eq!(
            outcomes,
            [ChargeOutcome::Charged, ChargeOutcome::Charged, ChargeOutcome::TableFull, ChargeOutcome::Charged]
        );
    }

    #[test]
    fn a_principal_with_many_delegations_leaves_room_for_others_and_closed_accounts_make_room() {
        let mut accounts = Accounts::new(16, 1);
        let outcomes = |accounts: &mut Accounts, epoch| -> Vec<ChargeOutcome> {
            (0..8).map(|id| accounts.charge(&charge(1, Some(id), epoch), 1, Instant(0))).collect()
        };
        let mut six = [ChargeOutcome::Charged; 8];
        six[6..].fill(ChargeOutcome::Folded);
        assert_eq!(outcomes(&mut accounts, 0), six);
        assert_eq!(accounts.charge(&charge(2, None, 0), 1, Instant(0)), ChargeOutcome::Charged);
        assert!((0..6).all(|id| !accounts.close(&charge(1, Some(id), 0))), "nothing is recorded yet");
        let journal = accounts.journal();
        assert!((0..6).all(|id| accounts.close(&charge(1, Some(id), 0))));
        assert_eq!(outcomes(&mut accounts, 1)[..5], six[..5]);
        // What is restored counts as well.
        let mut restored = Accounts::new(16, 2);
        restored.restore(journal);
        assert_eq!(restored.charge(&charge(1, Some(9), 0), 1, Instant(0)), ChargeOutcome::Folded);
    }

    /// Forty that open accounts without end, one after another and in turn; then all others there may be.
    #[test]
    fn principals_with_endless_delegations_lock_no_new_one_out_of_the_table() {
        for most in [64, 256, 4_096] {
            let (greedy, others) = (most / 32, most / 32);
            let mut accounts = Accounts::new(most, 1);
            let mut charged = |principal: usize, delegation: Option<u32>, epoch: u32| {
                let charge = charge(principal as u32, delegation, epoch);
                accounts.charge(&charge, 1, Instant(0)) == ChargeOutcome::Charged
            };
            for round in 0..most as u32 {
                (0..greedy).for_each(|principal| {
                    charged(principal, Some(round), 0);
                    charged(0, Some(most as u32 + round), 1);
                });
            }
            for other in greedy..greedy + others {
                assert!(
                    (0..3).all(|epoch| charged(other, None, epoch)) && charged(other, Some(7), 0),
                    "{other} of {most}"
                );
            }
            let (open, capacity) = accounts.open();
            assert!(open <= capacity && accounts.memory() <= 256 * most.next_power_of_two(), "{}", accounts.memory());
        }
    }

    /// Payers' partitions are those of their rates; a delegation with a rate has a partition of its own if its principal has none.
    #[test]
    fn a_packet_goes_to_the_room_of_its_principal_then_of_its_delegation_then_to_the_pool() {
        let mut accounts = Accounts::new(16, 1);
        let payer = |principal, id: Option<u32>| Payer {
            principal: Principal::new(principal).expect("24 bits"),
            delegation: id.map(|id| DelegationId::new(id).expect("24 bits")),
        };
        let partitions = crate::replay::Partitions::divide(1_000, &[10, 20, 30]);
        accounts.set_pool(partitions.pool);
        for (payer, partition) in
            [payer(1, None), payer(1, Some(5)), payer(2, Some(5))].into_iter().zip(&partitions.each)
        {
            accounts.set_rate(payer, 1_000, 1_000, Instant(0));
            accounts.set_partition(&payer, *partition);
        }
        let mut partition = |principal, delegation| accounts.claim(|| charge(principal, delegation, 0), 1, Instant(0));
        assert_eq!(partition(1, None), Some(partitions.each[0]));
        assert_eq!(partition(1, Some(5)), Some(partitions.each[0]));
        assert_eq!(partition(2, Some(5)), Some(partitions.each[2]));
        assert_eq!(partition(2, Some(6)), Some(partitions.pool));
        assert_eq!(partition(3, None), Some(partitions.pool));
        assert_eq!(accounts.payers(Instant(0)).count(), 4);
    }

    #[test]
    fn repeated_packets_take_no_more_than_half_of_what_may_be_sent_at_once() {
        let mut accounts = Accounts::new(16, 1);
        let payer = Payer { principal: Principal::new(1).expect("24 bits"), delegation: None };
        accounts.set_rate(payer, 1_000, 1_000, seconds(0));
        let mut total = 0;
        for tenth in 0..100u64 {
            let now = Instant(tenth * 100_000_000);
            total += (0..100).filter(|_| accounts.claim_repeated(&charge(1, None, 0), 10, now)).count();
            // Half of the bucket is there for what is new.
            if tenth % 10 == 0 {
                let fresh = (0..50).filter(|_| accounts.claim(|| charge(1, None, 0), 10, now).is_some()).count();
                assert_eq!(fresh, 50, "{tenth}");
                total += fresh;
            }
        }
        assert!(total * 10 <= 1_000 + 10 * 1_000, "{total}");
    }

    #[test]
    fn a_rate_is_divided_by_demand() {
        assert_eq!(shares(100, &[10, 200, 200]), [10, 45, 45]);
        assert_eq!(shares(100, &[0, 0]), [50, 50]);
        assert_eq!(shares(100, &[10, 20]), [45, 55]);
        assert_eq!(shares(100, &[]), Vec::<u64>::new());
        for seed in 0..1_000u64 {
            let demands: Vec<u64> = (0..seed % 7).map(|i| (seed * 7_919 + i * 104_729) % 1_000).collect();
            assert!(shares(seed, &demands).iter().sum::<u64>() <= seed);
        }
    }
}
