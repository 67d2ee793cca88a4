//! Usage on its way from routers to the key server, and what the server adds up from it: bills are written from the sums.
//!
//! Platypus, section 4.3, leaves open how the waypoints of a provider account together. Here every router reports the *totals* of
//! its accounts and never differences, so that a report may be repeated, lost or cut off: the server keeps the greatest total of
//! each account of each journal. A [`JournalId`] names a router's memory of totals. It is made with the first of them; a router
//! that has lost its totals has lost the identity too, and counts from zero under another one. Only totals that are durable at the
//! router are reported: what a crash takes from the router, the server has not seen, and a sum is never above what was forwarded.
//!
//! A router whose memory was put back (an old backup) reports less than the server has. The server says so, and the router goes on
//! under a new identity from where its totals stand: what it counted in between is lost to the bill, and nothing is billed twice.
//!
//! Totals are not kept for ever. The server closes the time before some second: totals of key epochs that had ended by then are folded
//! into sums of whole months. A router confirms up to which second it has reported everything: of closed time that it has confirmed
//! nothing is taken again, and what it reports of other closed time is on the next statement, as late. So a total that is reported late,
//! or again, is on no bill twice. A router forgets totals that the server has, long after their epoch.

use std::collections::{BTreeMap, BTreeSet};

mod account_period;
mod folding;

pub use account_period::{AccountPeriods, Reopening};
pub use folding::{Calendar, Fold};

/// Entries of one report, at most.
pub const MAX_ENTRIES: usize = 512;
/// Journals of one router, at most: each was begun by a loss of its memory.
pub const MAX_JOURNALS: usize = 64;

/// A router of the provider, by its number in the key server's configuration.
pub type RouterNumber = u16;

wayleave_core::wire! {
    /// A router's memory of totals: 16 random octets.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
    pub struct JournalId(pub [u8; 16]);

    /// What an account has sent.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
    pub struct Usage {
        pub packets: u128,
        /// Octets of IP packets, headers included.
        pub octets: u128,
    }
}

impl JournalId {
    /// At the beginning of what sums are kept under; routers' own are random.
    const SUMS: [u8; 8] = [0xff; 8];

    /// Under which the sums of a statement are kept.
    #[must_use]
    pub fn of_statement(number: u64) -> Self {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&Self::SUMS);
        id[8..].copy_from_slice(&number.to_be_bytes());
        Self(id)
    }

    /// The number of the statement, if sums are kept under it.
    #[must_use]
    pub fn statement(&self) -> Option<u64> {
        let [.., a, b, c, d, e, f, g, h] = self.0;
        self.is_of_sums().then_some(u64::from_be_bytes([a, b, c, d, e, f, g, h]))
    }

    /// Whether sums are kept under it.
    #[must_use]
    pub fn is_of_sums(&self) -> bool {
        self.0.starts_with(&Self::SUMS)
    }
}

impl Usage {
    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self { packets: self.packets.saturating_add(other.packets), octets: self.octets.saturating_add(other.octets) }
    }

    /// What lies above `other`; zero where nothing does.
    fn above(self, other: Self) -> Self {
        Self { packets: self.packets.saturating_sub(other.packets), octets: self.octets.saturating_sub(other.octets) }
    }

    fn greatest(self, other: Self) -> Self {
        Self { packets: self.packets.max(other.packets), octets: self.octets.max(other.octets) }
    }

    /// Neither count is below `other`'s.
    fn covers(self, other: Self) -> bool {
        self.packets >= other.packets && self.octets >= other.octets
    }
}

/// What a router reports: totals of some of its accounts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UsageReport<A> {
    pub journal: JournalId,
    /// Counts the reports of one link from 1.
    pub number: u64,
    /// At most [`MAX_ENTRIES`].
    pub entries: Vec<(A, Usage)>,
}

wayleave_core::wire! {
    /// What the server answers once a report's totals are durable with it.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct UsageAnswer {
        /// The report's number.
        pub number: u64,
        /// The server had greater totals of this journal: the router's memory was put back.
        pub is_behind: bool,
    }
}

/// A router's side: which totals the server does not have yet.
#[derive(Clone, Debug)]
pub struct Reporter<A> {
    journal: JournalId,
    /// What totals were when the journal began; zero for accounts that are not here.
    base: BTreeMap<A, Usage>,
    /// The latest durable totals.
    totals: BTreeMap<A, Usage>,
    /// Accounts whose total the server has not acknowledged.
    unknown: BTreeSet<A>,
    /// The report that waits for its answer.
    pending: Option<UsageReport<A>>,
    number: u64,
    /// Accounts for which the server has no room: their totals wait for [`Reporter::try_again`].
    untaken: BTreeSet<A>,
    /// The journal took the place of one that was behind, and no server has had a report of it.
    is_fresh: bool,
}

impl<A: Copy + Ord> Reporter<A> {
    /// Reports what `journal` holds above `base`; both are kept together with the totals.
    #[must_use]
    pub fn new(journal: JournalId, base: BTreeMap<A, Usage>) -> Self {
        let (totals, unknown, untaken) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        Self { journal, base, totals, unknown, pending: None, number: 0, untaken, is_fresh: false }
    }

    /// The journal that is reported.
    #[must_use]
    pub fn journal(&self) -> JournalId {
        self.journal
    }

    /// The total of `account` is durable.
    pub fn durable(&mut self, account: A, total: Usage) {
        if self.totals.get(&account) != Some(&total) {
            self.totals.insert(account, total);
            self.unknown.insert(account);
        }
    }

    /// A link to the server is up, or another server is reported to: all totals are reported again, since the server may have been put back
    /// too. Numbers go on: a late answer is to none of the reports that follow.
    pub fn connected(&mut self) {
        self.pending = None;
        self.unknown.extend(self.totals.keys());
        self.untaken.clear();
    }

    /// The server has no room for these entries of the report that waits for its answer, by their places in it: they are reported again
    /// after [`Self::try_again`], and others meanwhile.
    pub fn untaken(&mut self, number: u64, places: &[u16]) {
        let Some(report) = self.pending.as_ref().filter(|pending| pending.number == number) else { return };
        let accounts = places.iter().filter_map(|place| report.entries.get(usize::from(*place)));
        self.untaken.extend(accounts.map(|(account, _)| *account));
    }

    /// Whether the server had no room for an account when it was last reported.
    #[must_use]
    pub fn is_untaken(&self, account: &A) -> bool {
        self.untaken.contains(account)
    }

    /// What the server had no room for is reported again.
    pub fn try_again(&mut self) {
        self.untaken.clear();
    }

    /// The report that waits for its answer. Repeated as it is, an answer to any copy of it counts: where answers are always late,
    /// one to a report of another number would never be the one that is waited for.
    #[must_use]
    pub fn pending(&self) -> Option<&UsageReport<A>> {
        self.pending.as_ref()
    }

    /// The last report was refused: the same totals may be reported again, under another number.
    pub fn refused(&mut self) {
        self.pending = None;
    }

    /// The next report, unless one waits for its answer or there is nothing to say. The first one of a journal that took the place of
    /// another has no entries if there are none: the server hears of the journal.
    pub fn report(&mut self) -> Option<UsageReport<A>> {
        if self.pending.is_some() || !self.is_fresh && self.unknown.len() == self.untaken.len() {
            return None;
        }
        self.number += 1;
        let entry = |account: &A| {
            let base = self.base.get(account).copied().unwrap_or_default();
            (*account, self.totals.get(account).copied().unwrap_or_default().above(base))
        };
        let entries = self.unknown.difference(&self.untaken).take(MAX_ENTRIES).map(entry).collect();
        let report = UsageReport { journal: self.journal, number: self.number, entries };
        self.pending = Some(report.clone());
        Some(report)
    }

    /// Takes an answer over. Returns whether the router must go on under a new identity: [`Self::begin`].
    pub fn answered(&mut self, answer: UsageAnswer) -> bool {
        let Some(report) = self.pending.take_if(|pending| pending.number == answer.number) else { return false };
        if answer.is_behind {
            return true;
        }
        self.is_fresh = false;
        for (account, reported) in report.entries {
            let base = self.base.get(&account).copied().unwrap_or_default();
            let total = self.totals.get(&account).copied().unwrap_or_default();
            if total.above(base) == reported && !self.untaken.contains(&account) {
                self.unknown.remove(&account);
            }
        }
        false
    }

    /// Goes on under a new identity from where the totals stand. The new base is to be durable before the next report.
    pub fn begin(&mut self, journal: JournalId) -> &BTreeMap<A, Usage> {
        self.journal = journal;
        self.base = self.totals.clone();
        self.unknown.clear();
        self.untaken.clear();
        self.pending = None;
        self.is_fresh = true;
        &self.base
    }

    /// Whether an account to which nothing more is charged may leave: the server has its total, and no answer is awaited about it.
    #[must_use]
    pub fn is_forgettable(&self, account: &A) -> bool {
        let is_pending =
            self.pending.as_ref().is_some_and(|report| report.entries.iter().any(|(other, _)| other == account));
        !is_pending && self.totals.contains_key(account) && self.is_known(account)
    }

    /// Forgets such an account, once the store has taken the removal of its total and of its base. Before, the account has to stay:
    /// the base of a new identity would lack it, and a total that the store still has would be reported in full under that identity.
    pub fn forget(&mut self, account: &A) {
        self.base.remove(account);
        self.totals.remove(account);
        self.unknown.remove(account);
        self.untaken.remove(account);
    }

    /// The accounts whose totals are held here.
    pub fn accounts(&self) -> impl Iterator<Item = &A> {
        self.totals.keys()
    }

    /// Whether the server has an account's total: then it may be forgotten once nothing more is charged to it.
    #[must_use]
    pub fn is_known(&self, account: &A) -> bool {
        !self.unknown.contains(account)
    }

    /// Accounts whose totals the server does not have.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.unknown.len()
    }

    /// Those accounts.
    pub fn unknown(&self) -> impl Iterator<Item = &A> {
        self.unknown.iter()
    }
}

wayleave_core::wire! {
    /// Why a report is not taken.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
    pub enum UsageRefusal: "a refusal" {
        #[error("more than {MAX_ENTRIES} accounts in one report")]
        1 = TooLong,
        #[error("more than {MAX_JOURNALS} journals: the router has lost its memory too often")]
        2 = TooManyJournals,
        #[error("more accounts than the server keeps")]
        3 = LedgerFull, // by servers of earlier versions
        #[error("the server's database has rows that it cannot read")]
        4 = Unreadable,
    }
}

/// One total of the ledger, as it is stored: the greatest that was reported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UsageRecord<A> {
    pub router: RouterNumber,
    pub journal: JournalId,
    pub account: A,
    pub total: Usage,
}

/// What a report did to the ledger.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Accepted<A> {
    /// To be durable before the answer goes out, at once with what is removed. Of an account that is here twice, the last counts.
    pub changed: Vec<UsageRecord<A>>,
    /// Totals of closed time that are in sums now.
    pub removed: Vec<(RouterNumber, JournalId, A)>,
    /// Some totals are below those that the ledger has, or the journal is another router's: the router's memory is a copy.
    pub is_behind: bool,
    /// Some of it is of closed time.
    pub is_late: bool,
    /// Totals that are on no statement: of time that was closed before the ledger knew the router.
    pub too_late: u64,
    /// Places of entries that are not taken: who pays for them has as many records as one may have.
    pub untaken: Vec<u16>,
    /// What is new, by who pays.
    pub more: BTreeMap<u32, Usage>,
}

/// What became of a report.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ReportOutcome {
    /// As in [`Accepted`].
    pub is_behind: bool,
    pub is_late: bool,
    pub too_late: u64,
    pub untaken: Vec<u16>,
    pub more: BTreeMap<u32, Usage>,
}

impl<A> From<Accepted<A>> for ReportOutcome {
    fn from(Accepted { is_behind, is_late, too_late, untaken, more, .. }: Accepted<A>) -> Self {
        Self { is_behind, is_late, too_late, untaken, more }
    }
}

impl<A> Accepted<A> {
    fn add(&mut self, payer: u32, more: Usage) {
        let sum = self.more.entry(payer).or_default();
        *sum = sum.plus(more);
    }
}

impl<A> Default for Accepted<A> {
    fn default() -> Self {
        Self {
            changed: Vec::new(),
            removed: Vec::new(),
            is_behind: false,
            is_late: false,
            too_late: 0,
            untaken: Vec::new(),
            more: BTreeMap::new(),
        }
    }
}

/// A part of what a ledger has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UsagePage<A> {
    /// By account and router, over all of a router's journals.
    pub totals: BTreeMap<(A, RouterNumber), Usage>,
    /// The account after which others may follow.
    pub next: Option<A>,
    /// How many totals have been added to sums so far: pages between which it rose may have a total twice, or not at all.
    pub moved: u64,
}

/// Totals of one journal of a router.
#[derive(Clone, Debug)]
struct Journal<A> {
    totals: BTreeMap<A, Usage>,
    /// How much of totals of closed time is in sums, by the accounts that say so: no usage of its own.
    folded: BTreeMap<A, Usage>,
}

impl<A> Default for Journal<A> {
    fn default() -> Self {
        Self { totals: BTreeMap::new(), folded: BTreeMap::new() }
    }
}

impl<A: Copy + Ord> Journal<A> {
    fn of(&mut self, is_folded: bool) -> &mut BTreeMap<A, Usage> {
        if is_folded { &mut self.folded } else { &mut self.totals }
    }

    fn get(&self, account: &A) -> Option<Usage> {
        self.totals.get(account).or_else(|| self.folded.get(account)).copied()
    }

    fn is_empty(&self) -> bool {
        self.totals.is_empty() && self.folded.is_empty()
    }
}

/// The key server's side: the greatest total of each account of each journal of each router. What takes a report, or folds, decides by the
/// records that these touch: a store may put the ledger together from those alone.
#[derive(Clone, Debug)]
pub struct Ledger<A> {
    journals: BTreeMap<RouterNumber, BTreeMap<JournalId, Journal<A>>>,
    /// Records of each payer that are no sums, and how many one may have.
    counts: BTreeMap<u32, usize>,
    limit: usize,
    calendar: Option<Calendar<A>>,
    /// Unix seconds: the time before is closed.
    closed: u64,
    /// The number of the statement with which it was; the next one has what comes late.
    statement: u64,
    /// The Unix second up to which a router has reported everything.
    confirmed: BTreeMap<RouterNumber, u64>,
    account_periods: AccountPeriods,
    /// Where folding goes on; `None` if all that is closed is folded.
    folding: Option<(RouterNumber, JournalId, Option<A>)>,
    /// Totals that were added to sums.
    moved: u64,
}

impl<A: Copy + Ord> Ledger<A> {
    /// A ledger that keeps at most `limit` records for each who pays, without sums. Of those beyond a tenth of that, sums are of whoever
    /// pays alone, without delegations: holders make as many IDs of these as they please.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self {
            journals: BTreeMap::new(),
            counts: BTreeMap::new(),
            limit,
            calendar: None,
            closed: 0,
            statement: 0,
            moved: 0,
            confirmed: BTreeMap::new(),
            account_periods: AccountPeriods::default(),
            folding: None,
        }
    }

    /// The same with owners of numbers one after the other: what began before a reopening goes into other sums.
    #[must_use]
    pub fn with_periods(mut self, account_periods: AccountPeriods) -> Self {
        self.account_periods = account_periods;
        self
    }

    /// Takes a stored confirmation in, before any report.
    pub fn restore_confirmed(&mut self, router: RouterNumber, second: u64) {
        self.confirmed.insert(router, second);
    }

    /// A router has this journal.
    pub fn restore_journal(&mut self, router: RouterNumber, journal: JournalId) {
        self.journals.entry(router).or_default().entry(journal).or_default();
    }

    /// How many records that are no sums a payer has, of which some may not be here.
    pub fn restore_count(&mut self, payer: u32, records: usize) {
        self.counts.insert(payer, records);
    }

    /// Takes a stored total in, before any report.
    pub fn restore(&mut self, record: &UsageRecord<A>) {
        self.put(record);
    }

    fn payer(&self, account: &A) -> u32 {
        self.calendar.map_or(0, |calendar| (calendar.payer)(account))
    }

    fn put(&mut self, record: &UsageRecord<A>) {
        let (is_folded, payer) = (self.is_folded(&record.account), self.payer(&record.account));
        let journal = self.journals.entry(record.router).or_default().entry(record.journal).or_default();
        let before = journal.of(is_folded).insert(record.account, record.total);
        let is_counted = before.is_none() && !record.journal.is_of_sums();
        *self.counts.entry(payer).or_default() += usize::from(is_counted);
    }

    /// Whether sums of a payer are without delegations.
    fn is_coarse(&self, payer: u32) -> bool {
        self.counts.get(&payer).is_some_and(|count| *count > self.limit / 10)
    }

    fn held(&self, router: RouterNumber, journal: JournalId, account: &A) -> Option<Usage> {
        self.journals.get(&router)?.get(&journal)?.get(account)
    }

    /// Takes a report of `router` over. What is of closed time comes late at the Unix second `now`. An entry whose payer has no room is not
    /// taken; what needs none is, also of such a payer.
    ///
    /// # Errors
    /// Why all of it is refused.
    pub fn take(
        &mut self,
        router: RouterNumber,
        report: &UsageReport<A>,
        now: u64,
    ) -> Result<Accepted<A>, UsageRefusal> {
        if report.entries.len() > MAX_ENTRIES {
            return Err(UsageRefusal::TooLong);
        }
        let entries = (0_u16..).zip(&report.entries); // at most MAX_ENTRIES
        let (done, entries): (Vec<_>, Vec<_>) = entries.partition(|(_, (account, _))| self.is_final(router, account));
        let is_lost =
            |(account, total): &(A, Usage)| *total != Usage::default() && self.is_of_stranger(router, account);
        let too_late = done.iter().filter(|(_, entry)| is_lost(entry)).count() as u64;
        let mut taken = Accepted { too_late, ..Accepted::default() };
        if entries.is_empty() {
            return Ok(taken);
        }
        let journals = self.journals.get(&router);
        let is_known = journals.is_some_and(|journals| journals.contains_key(&report.journal));
        // Under a journal of sums it would change a statement, perhaps one that is complete.
        if report.journal.is_of_sums() || !is_known && self.is_of_another(router, report.journal) {
            return Ok(Accepted { is_behind: true, ..taken });
        }
        let count = journals.map_or(0, |journals| journals.keys().filter(|journal| !journal.is_of_sums()).count());
        if !is_known && count >= MAX_JOURNALS {
            return Err(UsageRefusal::TooManyJournals);
        }
        let since = self.late_since(now);
        let of = (router, report.journal);
        for (place, (account, total)) in entries {
            // All that was counted was credited.
            if *total == Usage::default() && self.is_fresh(of, account) {
                continue;
            }
            let held = self.counts.get(&self.payer(account)).copied().unwrap_or(0);
            if held >= self.limit && self.is_fresh(of, account) {
                taken.untaken.push(place);
                continue;
            }
            match self.calendar_of_late(account) {
                Some(calendar) => self.take_late(calendar, of, (*account, *total), since, &mut taken),
                None => self.take_total(of, (*account, *total), &mut taken),
            }
        }
        Ok(taken)
    }

    /// Which records decide about a report, beside those of the ledger's head: a store has no need to read others.
    #[must_use]
    pub fn read_by(
        &self,
        router: RouterNumber,
        report: &UsageReport<A>,
        now: u64,
    ) -> BTreeSet<(RouterNumber, JournalId, A)> {
        let since = self.late_since(now);
        let mut read = BTreeSet::new();
        for (account, _) in &report.entries {
            read.insert((router, report.journal, *account));
            if let Some(calendar) = self.calendar_of_late(account) {
                let late = (calendar.late)(account, self.account_period(calendar, account), since);
                let late = [late, (calendar.coarse)(&late)].map(|late| (self.late_journal(), late));
                let folded = (report.journal, (calendar.folded)(account));
                let all = self.sums_of(account).into_iter().chain(late).chain([folded]);
                read.extend(all.map(|(journal, account)| (router, journal, account)));
            }
        }
        read
    }

    /// Whether the ledger has nothing yet of an account of a report: it needs one record more.
    fn is_fresh(&self, (router, journal): (RouterNumber, JournalId), account: &A) -> bool {
        let folded = self.calendar_of_late(account).map(|calendar| (calendar.folded)(account));
        let is_held = |account: &A| self.held(router, journal, account).is_some();
        !is_held(account) && !folded.is_some_and(|folded| is_held(&folded))
    }

    fn take_total(
        &mut self,
        (router, journal): (RouterNumber, JournalId),
        (account, total): (A, Usage),
        taken: &mut Accepted<A>,
    ) {
        let known = self.held(router, journal, &account);
        let greatest = known.unwrap_or_default().greatest(total);
        taken.is_behind |= !total.covers(known.unwrap_or_default());
        if known != Some(greatest) {
            taken.add(self.payer(&account), greatest.above(known.unwrap_or_default()));
            self.set(UsageRecord { router, journal, account, total: greatest }, taken);
        }
    }

    /// Whether another router has this journal: a router's state was copied to a second one, or a router got another number. Its totals
    /// are on the first one's bill.
    fn is_of_another(&self, router: RouterNumber, journal: JournalId) -> bool {
        self.journals.iter().any(|(other, journals)| *other != router && journals.contains_key(&journal))
    }

    /// What each router reported for each account, over all of its journals.
    #[must_use]
    pub fn by_router(&self) -> BTreeMap<(A, RouterNumber), Usage> {
        let mut sums = BTreeMap::new();
        for (router, journals) in &self.journals {
            for (account, total) in journals.values().flat_map(|journal| &journal.totals) {
                let sum: &mut Usage = sums.entry((*account, *router)).or_default();
                *sum = sum.plus(*total);
            }
        }
        sums
    }

    /// The sum of each account over all routers.
    #[must_use]
    pub fn sums(&self) -> BTreeMap<A, Usage> {
        let mut sums = BTreeMap::new();
        for ((account, _), total) in self.by_router() {
            let sum: &mut Usage = sums.entry(account).or_default();
            *sum = sum.plus(total);
        }
        sums
    }
}
