//! The ledger closes what is long over: totals of ended key epochs become sums of months, which bills need no finer.
//!
//! First the second up to which time is closed is made durable. Then totals leave part by part, each part with the sums that it went
//! into in one batch. Wherever that is cut off, every packet is in a total or in a sum, and not in both.
//!
//! A router *confirms* up to which second the server has all that it counted. Of closed time that it has confirmed, nothing is taken from
//! it any more. Of closed time that it has not, the ledger keeps how much of each total is in sums; what exceeds that comes late, and
//! goes into a sum of its own on the next statement, whose time is the day on which it came. A router that was not known when time was closed is owed nothing
//! of it: its totals may be those of another router, whose number it took over. They are counted as too late.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::{Accepted, JournalId, Ledger, RouterNumber, Usage, UsageRecord};

const DAY_SECS: u64 = 86_400;

/// What the ledger has to know of its accounts' time.
#[derive(Debug)]
pub struct Calendar<A> {
    /// The number of whoever pays.
    pub payer: fn(&A) -> u32,
    /// The Unix second at which the account's key epoch begins, and that from which on nothing more is charged to it; `None` if there
    /// is none.
    pub begins_at: fn(&A) -> Option<u64>,
    pub ended_at: fn(&A) -> Option<u64>,
    /// The account of the same payer that has the sum of the month, for this owner of the payer's number.
    pub sum: fn(&A, u8) -> A,
    /// That which has the sum of what came late, by the Unix second at which that day began.
    pub late: fn(&A, u8, u64) -> A,
    /// The same sum without delegations.
    pub coarse: fn(&A) -> A,
    /// That which says how much of the account is in sums, and the way back.
    pub folded: fn(&A) -> A,
    pub unfolded: fn(&A) -> Option<A>,
    /// Whether an account is one of these, which no router has.
    pub is_own: fn(&A) -> bool,
}

impl<A> Clone for Calendar<A> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A> Copy for Calendar<A> {}

/// What changes at once when totals are folded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fold<A> {
    /// Sums, as they are now, and how much of totals is in them.
    pub changed: Vec<UsageRecord<A>>,
    /// Totals that leave.
    pub removed: Vec<(RouterNumber, JournalId, A)>,
}

/// What folding does with a total.
#[derive(Clone, Copy)]
enum Folding {
    /// It goes into the sum of its month; `is_owed`: the router may report more of it.
    Sum { is_owed: bool },
    /// How much of it is in sums matters no more.
    Drop,
}

impl<A: Copy + Ord> Ledger<A> {
    /// The same ledger with accounts that end. What is closed already is closed up to this Unix second, with the statement of this number.
    #[must_use]
    pub fn with_calendar(mut self, calendar: Calendar<A>, (closed, statement): (u64, u64)) -> Self {
        (self.calendar, self.closed, self.statement) = (Some(calendar), closed, statement);
        self.folding = Some(Self::beginning());
        self
    }

    fn beginning() -> (RouterNumber, JournalId, Option<A>) {
        (RouterNumber::MIN, JournalId([0; 16]), None)
    }

    /// The Unix second up to which time is closed; zero if none is.
    #[must_use]
    pub fn closed(&self) -> u64 {
        self.closed
    }

    /// The number of the last statement.
    #[must_use]
    pub fn statement(&self) -> u64 {
        self.statement
    }

    /// How many totals have been added to sums so far.
    #[must_use]
    pub fn moved(&self) -> u64 {
        self.moved
    }

    /// How many records that are no sums each payer has.
    #[must_use]
    pub fn counts(&self) -> &BTreeMap<u32, usize> {
        &self.counts
    }

    /// All records, sums among them.
    #[must_use]
    pub fn len(&self) -> usize {
        let journals = self.journals.values().flat_map(BTreeMap::values);
        journals.map(|journal| journal.totals.len() + journal.folded.len()).sum()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Up to which Unix second each router has confirmed that all it counted is here.
    #[must_use]
    pub fn confirmed(&self) -> &BTreeMap<RouterNumber, u64> {
        &self.confirmed
    }

    /// Takes a router's confirmation over; never back. Returns whether it is new, which has to be durable.
    pub fn confirm(&mut self, router: RouterNumber, second: u64) -> bool {
        let before = self.settled(router);
        if self.confirmed.get(&router).is_some_and(|confirmed| second <= *confirmed) {
            return false;
        }
        // What the router owed of closed time is complete.
        if before < self.closed {
            self.folding = Some(Self::beginning());
        }
        self.confirmed.insert(router, second.max(before));
        true
    }

    /// Up to which Unix second nothing more comes of a router. One that was not known when time was closed owes none of it.
    fn settled(&self, router: RouterNumber) -> u64 {
        self.confirmed.get(&router).copied().unwrap_or(self.closed)
    }

    pub(super) fn has_ended(&self, account: &A, second: u64) -> bool {
        let ended = self.calendar.and_then(|calendar| (calendar.ended_at)(account));
        ended.is_some_and(|end| end <= second)
    }

    /// Whether nothing of the account is taken from a router any more: its time is closed and confirmed, or it is one of the ledger's
    /// own, which no router has.
    pub(super) fn is_final(&self, router: RouterNumber, account: &A) -> bool {
        self.calendar.is_some_and(|calendar| {
            (calendar.is_own)(account) || self.has_ended(account, self.closed.min(self.settled(router)))
        })
    }

    /// Whether the router was not known when the account's time was closed: nothing that it has of that time was ever taken.
    pub(super) fn is_of_stranger(&self, router: RouterNumber, account: &A) -> bool {
        let is_own = self.calendar.is_some_and(|calendar| (calendar.is_own)(account));
        !is_own && !self.confirmed.contains_key(&router)
    }

    /// The calendar, if the account's time is closed.
    pub(super) fn calendar_of_late(&self, account: &A) -> Option<Calendar<A>> {
        self.calendar.filter(|_| self.has_ended(account, self.closed))
    }

    /// The time of what comes late now: the day, or the closing if this clock is behind it.
    pub(super) fn late_since(&self, now: u64) -> u64 {
        self.closed.max(now / DAY_SECS * DAY_SECS)
    }

    /// Closes the time up to this Unix second, with the next statement; never back. What was closed before has to be folded, or is on this
    /// one. `routers` are those that there are: what they have not confirmed, they may report late. Returns whether that is new, which has
    /// to be durable, with [`Self::confirmed`], before anything that [`Self::fold`] returns.
    pub fn close(&mut self, second: u64, routers: impl IntoIterator<Item = RouterNumber>) -> bool {
        if self.calendar.is_none() || second <= self.closed {
            return false;
        }
        for router in routers.into_iter().chain(self.journals.keys().copied()) {
            self.confirmed.entry(router).or_insert(self.closed);
        }
        (self.closed, self.statement) = (second, self.statement + 1);
        self.folding = Some(Self::beginning());
        true
    }

    /// Whether an account is no usage of its own, but says how much of one is in sums.
    pub(super) fn is_folded(&self, account: &A) -> bool {
        self.calendar.is_some_and(|calendar| (calendar.unfolded)(account).is_some())
    }

    /// The sums into which a record may go when it is folded.
    #[must_use]
    pub fn sums_of(&self, account: &A) -> Vec<(JournalId, A)> {
        let Some(calendar) = self.calendar else { return Vec::new() };
        let sum = (calendar.sum)(account, self.account_period(calendar, account));
        [sum, (calendar.coarse)(&sum)].map(|sum| (JournalId::of_statement(self.statement), sum)).into()
    }

    /// Under which sums of what comes late are kept.
    pub(super) fn late_journal(&self) -> JournalId {
        JournalId::of_statement(self.statement + 1)
    }

    /// A sum, without delegations if the payer has too many records.
    fn as_fine_as_may_be(&self, calendar: Calendar<A>, sum: A) -> A {
        if self.is_coarse((calendar.payer)(&sum)) { (calendar.coarse)(&sum) } else { sum }
    }

    fn folding_of(&self, calendar: Calendar<A>, router: RouterNumber, account: &A) -> Option<Folding> {
        let settled = self.settled(router);
        if let Some(account) = (calendar.unfolded)(account) {
            return self.has_ended(&account, settled).then_some(Folding::Drop);
        }
        let is_due = !(calendar.is_own)(account) && self.has_ended(account, self.closed);
        is_due.then(|| Folding::Sum { is_owed: !self.has_ended(account, settled) })
    }

    /// Folds what is closed, as far as at most `most` further totals are looked at. Returns what changes, to be stored at once;
    /// `None` if all of it is folded.
    pub fn fold(&mut self, most: usize) -> Option<Fold<A>> {
        let (calendar, cursor) = (self.calendar?, self.folding?);
        let mut left = most.max(1);
        let mut found: Vec<(UsageRecord<A>, Folding)> = Vec::new();
        let mut next = None;
        'all: for (router, journals) in self.journals.range(cursor.0..) {
            for (journal, accounts) in journals {
                let is_first = *router == cursor.0;
                if is_first && *journal < cursor.1 {
                    continue;
                }
                let after = cursor.2.filter(|_| is_first && *journal == cursor.1);
                let from = |is_of: bool| after.filter(|_| is_of).map_or(Bound::Unbounded, Bound::Excluded);
                // Totals come first: whoever is among what is folded is through with them.
                let is_through = after.is_some_and(|after| self.is_folded(&after));
                let totals = (!is_through).then(|| accounts.totals.range((from(true), Bound::Unbounded)));
                let folded = accounts.folded.range((from(is_through), Bound::Unbounded));
                for (account, total) in totals.into_iter().flatten().chain(folded) {
                    if left == 0 {
                        break 'all;
                    }
                    left -= 1;
                    next = Some((*router, *journal, Some(*account)));
                    let record = UsageRecord { router: *router, journal: *journal, account: *account, total: *total };
                    found.extend(self.folding_of(calendar, *router, account).map(|folding| (record, folding)));
                }
            }
        }
        self.folding = next.filter(|_| left == 0);
        let mut taken = Accepted::default();
        for (record, folding) in found {
            match folding {
                Folding::Sum { is_owed } => self.move_into_sum(calendar, &record, is_owed, &mut taken),
                Folding::Drop => self.remove(record.router, record.journal, &record.account, &mut taken),
            }
        }
        Some(Fold { changed: taken.changed, removed: taken.removed })
    }

    /// Who had the payer's number when the account's key epoch began.
    pub(super) fn account_period(&self, calendar: Calendar<A>, account: &A) -> u8 {
        self.account_periods.at((calendar.payer)(account), (calendar.begins_at)(account).unwrap_or(0))
    }

    fn move_into_sum(
        &mut self,
        calendar: Calendar<A>,
        record: &UsageRecord<A>,
        is_owed: bool,
        taken: &mut Accepted<A>,
    ) {
        let UsageRecord { router, journal, account, total } = *record;
        let sum = (calendar.sum)(&account, self.account_period(calendar, &account));
        let sum = self.as_fine_as_may_be(calendar, sum);
        self.remove(router, journal, &account, taken);
        self.add_to_sum(router, (JournalId::of_statement(self.statement), sum), total, taken);
        if is_owed {
            self.set(UsageRecord { router, journal, account: (calendar.folded)(&account), total }, taken);
        }
    }

    /// Takes a total of closed time that its router has not confirmed: what is in no sum yet comes late, at `since`.
    pub(super) fn take_late(
        &mut self,
        calendar: Calendar<A>,
        (router, journal): (RouterNumber, JournalId),
        (account, total): (A, Usage),
        since: u64,
        taken: &mut Accepted<A>,
    ) {
        if let Some(total) = self.held(router, journal, &account) {
            self.move_into_sum(calendar, &UsageRecord { router, journal, account, total }, true, taken);
        }
        let folded = (calendar.folded)(&account);
        let known = self.held(router, journal, &folded);
        let before = known.unwrap_or_default();
        let greatest = before.greatest(total);
        taken.is_behind |= !total.covers(before);
        if known == Some(greatest) {
            return;
        }
        self.set(UsageRecord { router, journal, account: folded, total: greatest }, taken);
        let more = greatest.above(before);
        if more != Usage::default() {
            taken.is_late = true;
            taken.add(self.payer(&account), more);
            let late = (calendar.late)(&account, self.account_period(calendar, &account), since);
            let late = (self.late_journal(), self.as_fine_as_may_be(calendar, late));
            self.add_to_sum(router, late, more, taken);
        }
    }

    fn add_to_sum(
        &mut self,
        router: RouterNumber,
        (journal, account): (JournalId, A),
        more: Usage,
        taken: &mut Accepted<A>,
    ) {
        self.moved += 1;
        let total = self.held(router, journal, &account).unwrap_or_default().plus(more);
        self.set(UsageRecord { router, journal, account, total }, taken);
    }

    /// Sets a total, which is to be stored.
    pub(super) fn set(&mut self, record: UsageRecord<A>, taken: &mut Accepted<A>) {
        self.put(&record);
        taken.changed.push(record);
    }

    fn remove(&mut self, router: RouterNumber, journal: JournalId, account: &A, taken: &mut Accepted<A>) {
        let (is_folded, payer) = (self.is_folded(account), self.payer(account));
        let Some(journals) = self.journals.get_mut(&router) else { return };
        if let Some(accounts) = journals.get_mut(&journal) {
            let was_counted = accounts.of(is_folded).remove(account).is_some() && !journal.is_of_sums();
            // A count that somebody made too small in a store wraps into none.
            self.counts.entry(payer).and_modify(|count| *count = count.saturating_sub(usize::from(was_counted)));
            // A router that has lost its memory often has room for new ones again.
            if accounts.is_empty() {
                journals.remove(&journal);
            }
        }
        taken.removed.push((router, journal, *account));
    }
}
