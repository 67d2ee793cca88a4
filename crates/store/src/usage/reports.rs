//! What routers report and confirm, and the totals of it.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::Ordering;

use futures_util::TryStreamExt;
use sqlx::{AnyConnection, query};
use wayleave_control::capability::{
    AccountPeriods, ChargedAccount, ReportOutcome, RouterNumber, Usage, UsageChange, UsagePage, UsageRefusal,
    UsageReport,
};
use wayleave_core::UnixTime;

use super::records::restore;
use super::rows::{account_of, journal_of, router_number, usage};
use super::{Step, head};
use crate::error::StoreError;
use crate::store::Store;

impl Store {
    /// Carries out what routers said, in this order and all at once. `periods` are those of the state. Returns what became of each.
    ///
    /// # Errors
    /// If nothing was written, or that is not known: the same may be carried out again.
    pub async fn change_usage(
        &self,
        changes: &[UsageChange],
        periods: &AccountPeriods,
    ) -> Result<Vec<Result<ReportOutcome, UsageRefusal>>, StoreError> {
        let mut step = self.begin_usage().await?;
        let mut outcomes = Vec::with_capacity(changes.len());
        for change in changes {
            outcomes.push(match change {
                UsageChange::Report { router, report, received } => {
                    step.take(*router, report, *received, periods).await?
                }
                // What a router confirmed of a database that was set back since, it may have to report again.
                UsageChange::Confirm { .. } if self.usage.is_set_back.load(Ordering::Acquire) => {
                    Ok(ReportOutcome::default())
                }
                UsageChange::Confirm { router, through } => step.confirm(*router, *through).await?,
                UsageChange::Ahead { router, has } => {
                    step.set_ahead(*router, *has).await?;
                    Ok(ReportOutcome::default())
                }
            });
        }
        step.commit(self).await?;
        Ok(outcomes)
    }

    /// What each router reported for the first `most` accounts from `first` to `last`, at one moment; and the last of these, if others may
    /// follow.
    ///
    /// # Errors
    /// If the database cannot be used.
    pub async fn usage_page(
        &self,
        first: Bound<ChargedAccount>,
        last: Option<ChargedAccount>,
        most: usize,
    ) -> Result<UsagePage<ChargedAccount>, StoreError> {
        self.database.check_in_place()?;
        let mut transaction = self.database.begin_to_read().await?;
        let page = page(&mut transaction, first, last, most).await;
        transaction.roll_back().await?;
        page
    }
}

impl Step {
    async fn take(
        &mut self,
        router: RouterNumber,
        report: &UsageReport<ChargedAccount>,
        received: UnixTime,
        periods: &AccountPeriods,
    ) -> Result<Result<ReportOutcome, UsageRefusal>, StoreError> {
        let report = &held(report);
        let now = received.secs();
        let mut ledger = self.ledger(periods).await?;
        let journals = query("SELECT journal, router FROM usage_journal WHERE router = $1 OR journal = $2");
        let journals = journals.bind(i64::from(router)).bind(report.journal.0.to_vec());
        for read in journals.fetch_all(&mut *self.transaction).await? {
            ledger.restore_journal(router_number(&read, 1)?, journal_of(&read, 0)?);
        }
        let found = self.find(&ledger.read_by(router, report, now)).await?;
        restore(&mut ledger, &found);
        // After the records, which are counted where they are restored.
        self.restore_counts(&mut ledger, report.entries.iter().map(|(account, _)| account)).await?;
        let mut accepted = match ledger.take(router, report, now) {
            Ok(accepted) => accepted,
            Err(why) => return Ok(Err(why)),
        };
        let (changed, removed) = (std::mem::take(&mut accepted.changed), std::mem::take(&mut accepted.removed));
        self.head.moved += ledger.moved();
        // What goes into a sum now was counted when it was reported first; what comes late is of no month.
        let reported: Vec<_> = changed.iter().copied().filter(|of| !of.account.is_own()).collect();
        let new = self.add_to_months(&found, &reported, periods).await?;
        let counted = (ledger.confirmed().get(&router).copied().filter(|second| *second > 0), now);
        self.add_samples(&new, counted).await?;
        self.write(&found, changed, &removed, ledger.counts()).await?;
        Ok(Ok(accepted.into()))
    }

    async fn confirm(
        &mut self,
        router: RouterNumber,
        through: u64,
    ) -> Result<Result<ReportOutcome, UsageRefusal>, StoreError> {
        let mut ledger = self.ledger(&AccountPeriods::default()).await?;
        if ledger.confirm(router, through)
            && let Some(through) = ledger.confirmed().get(&router)
        {
            self.set_confirmed(router, *through).await?;
        }
        Ok(Ok(ReportOutcome::default()))
    }
}

async fn page(
    connection: &mut AnyConnection,
    first: Bound<ChargedAccount>,
    last: Option<ChargedAccount>,
    most: usize,
) -> Result<UsagePage<ChargedAccount>, StoreError> {
    let moved = head(connection).await?.moved;
    let (begin, first) = match first {
        Bound::Unbounded => (">=", Vec::new()),
        Bound::Included(account) => (">=", account.0.to_vec()),
        Bound::Excluded(account) => (">", account.0.to_vec()),
    };
    let last = last.map_or(vec![0xff; ChargedAccount::LENGTH], |account| account.0.to_vec());
    let within = format!("kind <> 1 AND account {begin} $1 AND account <= $2");
    let select = format!("SELECT DISTINCT account FROM usage_record WHERE {within} ORDER BY account LIMIT {most}");
    let accounts = query(&select).bind(first.clone()).bind(last).fetch_all(&mut *connection).await?;
    let mut totals = BTreeMap::new();
    let Some(greatest) = accounts.last().map(|read| account_of(read, 0)).transpose()? else {
        return Ok(UsagePage { totals, next: None, moved });
    };
    let select = format!("SELECT router, account, packets, octets FROM usage_record WHERE {within}");
    let mut rows = query(&select).bind(first).bind(greatest.0.to_vec()).fetch(&mut *connection);
    while let Some(read) = rows.try_next().await? {
        let sum: &mut Usage = totals.entry((account_of(&read, 1)?, router_number(&read, 0)?)).or_default();
        *sum = sum.plus(usage(&read, 2)?);
    }
    Ok(UsagePage { totals, next: (accounts.len() >= most).then_some(greatest), moved })
}

/// The report with totals that a column holds.
fn held(report: &UsageReport<ChargedAccount>) -> UsageReport<ChargedAccount> {
    let most = |value: u128| value.min(i64::MAX as u128);
    let entry = |(account, Usage { packets, octets }): &(ChargedAccount, Usage)| {
        (*account, Usage { packets: most(*packets), octets: most(*octets) })
    };
    UsageReport { entries: report.entries.iter().map(entry).collect(), ..*report }
}
