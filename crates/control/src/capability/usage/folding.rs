//! The ledger closes what is long over: totals of ended key epochs become sums of months, which bills need no finer.
//!
//! First the second up to which time is closed is made durable; from then on nothing of it is taken, whoever reports it. Then totals
//! leave part by part, each part with the sums that it went into in one batch. Wherever that is cut off, every packet is in a total
//! or in a sum, and not in both.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::{JournalId, Ledger, RouterNumber, Usage, UsageRecord};

/// The journal under which sums are kept; routers' own are random.
pub(super) const SUMS: JournalId = JournalId([0xff; 16]);

/// What the ledger has to know of its accounts' time.
#[derive(Debug)]
pub struct Calendar<A> {
    /// The Unix second from which on nothing more is charged to an account; `None` if there is none.
    pub ended_at: fn(&A) -> Option<u64>,
    /// The account of the same payer that has the sum of the month.
    pub sum: fn(&A) -> A,
    /// Whether an account is such a one.
    pub is_sum: fn(&A) -> bool,
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
    /// Sums, as they are now.
    pub sums: Vec<UsageRecord<A>>,
    /// Totals that leave.
    pub removed: Vec<(RouterNumber, JournalId, A)>,
}

/// The later one of a second, and of that at which an account ends.
pub(super) fn later<A>(calendar: Option<Calendar<A>>, latest: Option<u64>, account: &A) -> Option<u64> {
    latest.max(calendar.and_then(|calendar| (calendar.ended_at)(account)))
}

impl<A: Copy + Ord> Ledger<A> {
    /// The same ledger with accounts that end. What is closed already is closed up to this Unix second.
    #[must_use]
    pub fn with_calendar(mut self, calendar: Calendar<A>, closed: u64) -> Self {
        (self.calendar, self.closed) = (Some(calendar), closed);
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

    /// Totals and sums.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether nothing of the account is taken any more: its time is closed, or it is a sum, which no router has.
    pub(super) fn is_closed(&self, account: &A) -> bool {
        self.calendar.is_some_and(|calendar| {
            (calendar.is_sum)(account) || (calendar.ended_at)(account).is_some_and(|end| end <= self.closed)
        })
    }

    /// Closes the time up to this Unix second; never back. Returns whether that is news, which has to be durable before anything
    /// that [`Self::fold`] returns.
    pub fn close(&mut self, second: u64) -> bool {
        if self.calendar.is_none() || second <= self.closed {
            return false;
        }
        self.closed = second;
        self.folding = Some(Self::beginning());
        true
    }

    /// The greatest second at which an account of the ledger has ended or ends: a clock that does not depend on this machine's.
    #[must_use]
    pub fn latest(&self) -> Option<u64> {
        self.latest
    }

    pub(super) fn note(&mut self, account: &A) {
        self.latest = later(self.calendar, self.latest, account);
    }

    /// Folds what is closed, as far as at most `most` further totals are looked at. Returns what changes, to be stored at once;
    /// `None` if all of it is folded.
    pub fn fold(&mut self, most: usize) -> Option<Fold<A>> {
        let (calendar, cursor) = (self.calendar?, self.folding?);
        let mut left = most.max(1);
        let mut found: Vec<(RouterNumber, JournalId, A, Usage)> = Vec::new();
        let mut next = None;
        'all: for (router, journals) in self.journals.range(cursor.0..) {
            for (journal, accounts) in journals {
                let is_first = *router == cursor.0;
                if is_first && *journal < cursor.1 {
                    continue;
                }
                let after = cursor.2.filter(|_| is_first && *journal == cursor.1);
                let from = after.map_or(Bound::Unbounded, Bound::Excluded);
                for (account, total) in accounts.range((from, Bound::Unbounded)) {
                    if left == 0 {
                        break 'all;
                    }
                    left -= 1;
                    next = Some((*router, *journal, Some(*account)));
                    if !(calendar.is_sum)(account) && (calendar.ended_at)(account).is_some_and(|end| end <= self.closed)
                    {
                        found.push((*router, *journal, *account, *total));
                    }
                }
            }
        }
        self.folding = next.filter(|_| left == 0);
        Some(self.move_into_sums(calendar, found))
    }

    fn move_into_sums(&mut self, calendar: Calendar<A>, found: Vec<(RouterNumber, JournalId, A, Usage)>) -> Fold<A> {
        let mut sums: BTreeMap<(RouterNumber, A), Usage> = BTreeMap::new();
        let mut removed = Vec::new();
        for (router, journal, account, total) in found {
            let Some(journals) = self.journals.get_mut(&router) else { continue };
            if let Some(accounts) = journals.get_mut(&journal) {
                accounts.remove(&account);
                // A router that has lost its memory often has room for new ones again.
                if accounts.is_empty() {
                    journals.remove(&journal);
                }
            }
            self.count -= 1;
            let of_month = journals.entry(SUMS).or_default();
            let before = of_month.len();
            let sum = of_month.entry((calendar.sum)(&account)).or_default();
            *sum = sum.plus(total);
            sums.insert((router, (calendar.sum)(&account)), *sum);
            self.count += of_month.len() - before;
            removed.push((router, journal, account));
        }
        let sums =
            sums.into_iter().map(|((router, account), total)| UsageRecord { router, journal: SUMS, account, total });
        Fold { sums: sums.collect(), removed }
    }
}
