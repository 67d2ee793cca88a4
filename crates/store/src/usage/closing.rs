//! Time is closed, and what it has is added to sums.

use std::collections::BTreeSet;
use std::time::Duration;

use sqlx::{AnyConnection, query};
use wayleave_control::capability::{AccountPeriods, Fold, Month, RouterNumber};

use super::percentiles::has_old_samples;
use super::records::{Records, restore};
use super::rows::{Key, bad, bad_record, optional, record, router_number};
use super::statements::{UsageStatement, statement_row};
use super::{Step, UsageHead, head, known_routers};
use crate::error::StoreError;
use crate::store::{Note, Store};
use crate::table::signed;

/// How long others that write to a SQLite file have, at least, between two parts that are added up: they wait without a queue.
const PAUSE: Duration = Duration::from_millis(150);

/// Seconds for which the sums of months are kept.
const MONTHS_KEPT: u64 = 800 * 86_400;

/// What became of a closing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Closing {
    /// Time is closed with this statement.
    Done(UsageStatement),
    /// It was closed up to that very second with this one.
    Same(UsageStatement),
    /// It was closed further than that already, up to this Unix second.
    Before(u64),
    /// The statement with this number is still being added up.
    Incomplete(u64),
}

impl Store {
    /// Routers that have reported usage of time before a Unix second that is on no statement.
    ///
    /// # Errors
    /// If the database cannot be used.
    pub async fn routers_to_close(&self, before: u64) -> Result<BTreeSet<RouterNumber>, StoreError> {
        let mut connection = self.database.pool.acquire().await?;
        with_totals(&mut connection, before).await
    }

    /// Closes the time before a Unix second with the next statement. `routers` are those that there are: what they have not confirmed they
    /// may report late.
    ///
    /// # Errors
    /// If the database cannot be used.
    pub async fn close_usage(
        &self,
        before: u64,
        routers: &BTreeSet<RouterNumber>,
        (made_at, note): (u64, Note<'_>),
    ) -> Result<Closing, StoreError> {
        let mut step = self.begin_usage().await?;
        let UsageHead { statement, closed_before, is_complete, .. } = step.head;
        if before <= closed_before {
            let last = statement_row(&mut step.transaction, statement).await?.map(|(statement, _)| statement);
            step.transaction.roll_back().await?;
            return Ok(match last {
                Some(last) if before == closed_before => Closing::Same(last),
                _ => Closing::Before(closed_before),
            });
        }
        if !is_complete {
            step.transaction.roll_back().await?;
            return Ok(Closing::Incomplete(statement));
        }
        let known = known_routers(&mut step.transaction).await?;
        let with_totals = with_totals(&mut step.transaction, before).await?;
        let all: BTreeSet<RouterNumber> = routers.union(&with_totals).copied().collect();
        // What these have not confirmed they still owe; another router that takes over a number later owes nothing.
        for router in all.iter().filter(|router| !known.confirmed.contains_key(router)) {
            step.set_confirmed(*router, closed_before).await?;
        }
        let confirmed: serde_json::Map<String, serde_json::Value> = all
            .iter()
            .map(|router| (router.to_string(), known.confirmed.get(router).copied().filter(|at| *at > 0).into()))
            .collect();
        let number = statement + 1;
        let insert =
            "INSERT INTO usage_statement (number, closed_after, closed_before, made_at, actor, reason, routers)
                      VALUES ($1, $2, $3, $4, $5, $6, $7)";
        let insert = query(insert).bind(signed(number)).bind(signed(closed_before)).bind(signed(before));
        let insert = insert.bind(signed(made_at)).bind(note.actor).bind(note.reason);
        let routers = serde_json::Value::Object(confirmed).to_string();
        insert.bind(routers).execute(&mut *step.transaction).await?;
        let kept =
            query("DELETE FROM usage_month WHERE begins_at < $1").bind(signed(before.saturating_sub(MONTHS_KEPT)));
        kept.execute(&mut *step.transaction).await?;
        let made = statement_row(&mut step.transaction, number).await?;
        let (made, _) = made.ok_or_else(|| bad("`usage_statement`", "it is missing"))?;
        step.head = UsageHead { statement: number, closed_before: before, is_complete: false, ..step.head };
        step.commit(self).await?;
        Ok(Closing::Done(made))
    }

    /// Closes months that ended more than so many seconds before both the last end that routers reported and `now`: one clock that is wrong
    /// closes nothing that has not ended. Without `routers`, as [`Store::close_usage`].
    ///
    /// # Errors
    /// If the database cannot be used.
    pub async fn close_old_usage(
        &self,
        kept_secs: u64,
        routers: &BTreeSet<RouterNumber>,
        (now, note): (u64, Note<'_>),
    ) -> Result<(), StoreError> {
        let Some((first, latest)) = self.ends_of_usage().await? else { return Ok(()) };
        let latest = latest.min(now);
        let old = Month::of(latest.saturating_sub(kept_secs)).begin();
        let head = self.usage_head().await?;
        if latest > kept_secs && first <= old && old > head.closed_before && head.is_complete {
            self.close_usage(old, routers, (now, note)).await?;
        }
        Ok(())
    }

    /// The first and the last Unix second at which an account that is in no sum has ended or ends: a clock that does not depend on this
    /// machine's.
    async fn ends_of_usage(&self) -> Result<Option<(u64, u64)>, StoreError> {
        let mut connection = self.database.pool.acquire().await?;
        let mut ends = [None; 2];
        for (end, which) in ends.iter_mut().zip(["MIN", "MAX"]) {
            let select = format!("SELECT {which}(ends_at) FROM usage_record WHERE kind = 0");
            *end = optional(&query(&select).fetch_one(&mut *connection).await?, 0)?;
        }
        Ok(ends[0].zip(ends[1]))
    }

    /// Adds all that is closed to sums, a part of `most` totals after the other.
    ///
    /// # Errors
    /// If the rest was not written, or that is not known.
    pub async fn fold_all_usage(&self, most: usize, periods: &AccountPeriods) -> Result<(), StoreError> {
        while self.fold_usage_for(Duration::MAX, most, periods).await? {}
        Ok(())
    }

    /// As [`Store::fold_all_usage`], but begins no part once this time has passed. Returns whether more may be left.
    ///
    /// # Errors
    /// If the rest was not written, or that is not known.
    pub async fn fold_usage_for(
        &self,
        time: Duration,
        most: usize,
        periods: &AccountPeriods,
    ) -> Result<bool, StoreError> {
        let all = tokio::time::Instant::now();
        loop {
            let begun = tokio::time::Instant::now();
            if !self.fold_usage(most, periods).await? {
                return Ok(false);
            }
            if !self.database.is_postgres() {
                tokio::time::sleep(begun.elapsed().max(PAUSE)).await;
            }
            if all.elapsed() >= time {
                return Ok(true);
            }
        }
    }

    /// Does a part of what is left to do of closed time: of `most` totals that are added to sums, then of a statement's parts of `most` sums,
    /// then of `most` rows of what nobody may report or ask for again. Another process may go on where this one stopped. Returns whether
    /// more may be left.
    ///
    /// # Errors
    /// If nothing was written, or that is not known.
    pub async fn fold_usage(&self, most: usize, periods: &AccountPeriods) -> Result<bool, StoreError> {
        // Nobody else waits for who finds nothing.
        if !self.has_unfolded().await? {
            return Ok(false);
        }
        let mut step = self.begin_usage().await?;
        let due = step.due(most).await?;
        let mut is_left = true;
        if !due.is_empty() {
            step.fold(&due, periods).await?;
        } else if step.head.is_complete {
            is_left = step.remove_old_samples(most).await?;
        } else {
            // What was brought over from a file may be closed without a statement.
            step.head.is_complete = match step.head.statement {
                0 => true,
                of => self.complete(&mut step.transaction, of, most).await?,
            };
        }
        step.commit(self).await?;
        Ok(is_left)
    }

    async fn has_unfolded(&self) -> Result<bool, StoreError> {
        self.database.check_in_place()?;
        let mut connection = self.database.pool.acquire().await?;
        let head = head(&mut connection).await?;
        Ok(!head.is_complete
            || !due_folded(&mut connection, 1).await?.is_empty()
            || has_old_samples(&mut connection, head.closed_before).await?)
    }
}

impl Step {
    /// Totals of closed time; without any, what says how much of such ones is in sums and matters no more.
    async fn due(&mut self, most: usize) -> Result<Records, StoreError> {
        let select = format!(
            "SELECT router, journal, account, packets, octets FROM usage_record WHERE kind = 0 AND ends_at <= $1 LIMIT {most}"
        );
        let closed = signed(self.head.closed_before);
        let totals = query(&select).bind(closed).fetch_all(&mut *self.transaction).await?;
        if totals.is_empty() && self.head.is_complete {
            return due_folded(&mut self.transaction, most).await;
        }
        totals.iter().map(record).collect()
    }

    async fn fold(&mut self, due: &Records, periods: &AccountPeriods) -> Result<(), StoreError> {
        let mut ledger = self.ledger(periods).await?;
        let totals = due.keys().filter(|(.., account)| account.unfolded().is_none());
        let sums = totals.flat_map(|(router, _, account)| {
            ledger.sums_of(account).into_iter().map(|(journal, sum)| (*router, journal, sum))
        });
        let sums: BTreeSet<Key> = sums.collect();
        let mut found = self.find(&sums).await?;
        found.extend(due.iter().map(|(key, total)| (*key, *total)));
        restore(&mut ledger, &found);
        self.restore_counts(&mut ledger, found.keys().map(|(_, _, account)| account)).await?;
        let Fold { changed, removed } =
            ledger.fold(usize::MAX).unwrap_or(Fold { changed: Vec::new(), removed: Vec::new() });
        // Its columns say that it is due, and it is not: it would be due for ever.
        if removed.is_empty()
            && let Some((router, _, account)) = due.keys().next()
        {
            return Err(bad_record(*router, *account));
        }
        self.head.moved += ledger.moved();
        self.write(&found, changed, &removed, ledger.counts()).await
    }
}

/// Some of what says how much of totals is in sums that their routers have confirmed: it matters no more.
async fn due_folded(connection: &mut AnyConnection, most: usize) -> Result<Records, StoreError> {
    let mut due = Records::new();
    for (router, through) in known_routers(connection).await?.confirmed {
        let select = format!(
            "SELECT router, journal, account, packets, octets FROM usage_record WHERE kind = 1 AND router = $1 AND ends_at <= $2 LIMIT {}",
            most - due.len()
        );
        let rows = query(&select).bind(i64::from(router)).bind(signed(through)).fetch_all(&mut *connection).await?;
        for read in &rows {
            let (key, total) = record(read)?;
            due.insert(key, total);
        }
        if due.len() >= most {
            break;
        }
    }
    Ok(due)
}

/// Routers of which there are totals that ended before a Unix second, or at it.
async fn with_totals(connection: &mut AnyConnection, before: u64) -> Result<BTreeSet<RouterNumber>, StoreError> {
    let mut found = BTreeSet::new();
    for read in query("SELECT DISTINCT router FROM usage_journal").fetch_all(&mut *connection).await? {
        let router = router_number(&read, 0)?;
        let select = "SELECT router FROM usage_record WHERE kind = 0 AND router = $1 AND ends_at <= $2 LIMIT 1";
        let one = query(select).bind(i64::from(router)).bind(signed(before)).fetch_optional(&mut *connection).await?;
        found.extend(one.map(|_| router));
    }
    Ok(found)
}
