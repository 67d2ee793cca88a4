//! What routers reported: totals of their accounts, and statements of them.
//!
//! The rules are those of [`Ledger`], which is put together here from the records that a step touches, and knows no database. Each step is a
//! transaction that holds the one row of `usage_head`: several key servers take turns.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::TryStreamExt;
use sqlx::any::{AnyArguments, AnyRow};
use sqlx::query::Query;
use sqlx::{Any, AnyConnection, Row as _, query};
use wayleave_control::capability::{
    AccountPeriods, ChargedAccount, Fold, JournalId, Ledger, MAX_PERCENTILES, MAX_PRICE_TAGS, Month, Percentile,
    PriceTag, RatePayer, ReportOutcome, RouterNumber, SAMPLE_SECS, Usage, UsageChange, UsagePage, UsageRecord,
    UsageRefusal, UsageReport, discarded_samples, samples,
};
use wayleave_core::UnixTime;
use wayleave_core::wire::{List16, decode, encode};
use wayleave_packet::platypus::header::{DelegationId, Principal};

use crate::authentic::is_mac;
use crate::database::Transaction;
use crate::error::StoreError;
use crate::store::{Note, Store};
use crate::table::signed;

/// Records of one who pays, at most, without sums. Key epochs of an hour at ten routers make 84,000 in the 400 days after which time is closed
/// by itself; from a tenth of this on sums are without delegations.
pub const MAX_OF_PAYER: usize = 1 << 20;
/// From how many on the operator should close time.
pub const MANY_OF_PAYER: usize = MAX_OF_PAYER / 10 * 7;
/// What an SQL statement names, at most.
const NAMED: usize = 500;
/// Rows that it writes, at most.
const WRITTEN: usize = 200;
/// How long others that write to a SQLite file have, at least, between two parts that are added up: they wait without a queue.
const PAUSE: Duration = Duration::from_millis(150);
/// Octets of a month, at most: what is beyond a quota for ever.
const MOST_OF_MONTH: i64 = 1 << 62;
/// In the place of a delegation: all that a principal pays.
const WHOLE: i64 = -1;
/// Seconds for which the sums of months are kept.
const MONTHS_KEPT: u64 = 800 * 86_400;
/// The columns of a record.
const COLUMNS: usize = 12;

type Key = (RouterNumber, JournalId, ChargedAccount);
type BoundQuery<'q> = Query<'q, Any, AnyArguments<'q>>;

/// What this process has seen of usage.
#[derive(Debug, Default)]
pub(crate) struct SeenUsage {
    steps: AtomicU64,
    is_set_back: AtomicBool,
}

/// Where statements end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct UsageHead {
    /// The number of the last one; zero if there is none.
    pub statement: u64,
    /// The Unix second before which time is closed.
    pub closed_before: u64,
    /// Whether all of that time is in sums.
    pub is_complete: bool,
    /// How many totals have been added to sums.
    pub moved: u64,
    /// How often usage was changed.
    pub steps: u64,
}

/// What is known of routers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KnownRouters {
    /// Up to which Unix second each has reported everything.
    pub confirmed: BTreeMap<RouterNumber, u64>,
    /// Those that have a list of revocations of another database, and its number.
    pub ahead: BTreeMap<RouterNumber, u64>,
}

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

/// A statement: the sums of the time that it closed, and of what came late for earlier ones.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UsageStatement {
    pub number: u64,
    /// The Unix seconds between which the key epochs had ended that it closed.
    pub closed_after: u64,
    pub closed_before: u64,
    /// The Unix second at which it was made, by whom, and why.
    pub made_at: u64,
    pub actor: String,
    pub reason: String,
    /// Up to which Unix second each router had confirmed then that all it counted is reported; none if it never had.
    pub routers: BTreeMap<RouterNumber, Option<u64>>,
    /// Whether all of it is added up; until then its sums grow.
    pub is_complete: bool,
}

/// Records as they are in the database.
type Records = BTreeMap<Key, Usage>;

impl Store {
    /// Where statements end.
    ///
    /// # Errors
    /// If the database cannot be used.
    pub async fn usage_head(&self) -> Result<UsageHead, StoreError> {
        self.database.check_in_place()?;
        let mut connection = self.database.pool.acquire().await?;
        let before = self.usage.steps.load(Ordering::Acquire);
        let head = head(&mut connection).await?;
        self.note_steps(before, head.steps);
        Ok(head)
    }

    /// What is known of routers.
    ///
    /// # Errors
    /// If the database cannot be used.
    pub async fn known_routers(&self) -> Result<KnownRouters, StoreError> {
        let mut connection = self.database.pool.acquire().await?;
        known_routers(&mut connection).await
    }

    /// Routers that have reported usage of time before a Unix second that is on no statement.
    ///
    /// # Errors
    /// If the database cannot be used.
    pub async fn routers_to_close(&self, before: u64) -> Result<BTreeSet<RouterNumber>, StoreError> {
        let mut connection = self.database.pool.acquire().await?;
        with_totals(&mut connection, before).await
    }

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

    /// Whether usage that this process has seen is no longer there, since this was last asked.
    #[must_use]
    pub fn take_set_back(&self) -> bool {
        self.usage.is_set_back.swap(false, Ordering::AcqRel)
    }

    /// Notes what was read of the head after this many steps had been seen.
    fn note_steps(&self, before: u64, steps: u64) {
        if steps < before {
            self.usage.is_set_back.store(true, Ordering::Release);
            self.usage.steps.store(steps, Ordering::Release);
        } else {
            self.usage.steps.fetch_max(steps, Ordering::AcqRel);
        }
    }

    async fn begin_usage(&self) -> Result<Step, StoreError> {
        self.database.check_in_place()?;
        let before = self.usage.steps.load(Ordering::Acquire);
        let mut transaction = self.database.begin().await?;
        // Others wait here: what is read next is what this one goes on from.
        query("UPDATE usage_head SET moved = moved WHERE id = 1").execute(&mut *transaction).await?;
        let head = head(&mut transaction).await?;
        self.note_steps(before, head.steps);
        Ok(Step { transaction, head })
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

    /// Adds all that is closed to sums, a part of `most` totals after the other.
    ///
    /// # Errors
    /// If the rest was not written, or that is not known.
    pub async fn fold_all_usage(&self, most: usize, periods: &AccountPeriods) -> Result<(), StoreError> {
        loop {
            let begun = tokio::time::Instant::now();
            if !self.fold_usage(most, periods).await? {
                return Ok(());
            }
            if !self.database.is_postgres() {
                tokio::time::sleep(begun.elapsed().max(PAUSE)).await;
            }
        }
    }

    /// Adds a part of what is closed to sums, of at most `most` totals, and takes away what says how much of them is there once nobody may
    /// report it again. Returns whether more is left.
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
        let is_left = !due.is_empty();
        if is_left {
            step.fold(&due, periods).await?;
        } else if !step.head.is_complete {
            // What was brought over from a file may be closed without a statement.
            if step.head.statement > 0 {
                self.complete(&mut step.transaction, step.head.statement).await?;
            }
            step.head.is_complete = true;
        }
        step.commit(self).await?;
        Ok(is_left)
    }

    /// Writes the MACs of a statement that is added up.
    async fn complete(&self, connection: &mut AnyConnection, of: u64) -> Result<(), StoreError> {
        let statement = statement_row(connection, of).await?.map(|(statement, _)| statement);
        let closed = statement.map_or((0, 0), |statement| (statement.closed_after, statement.closed_before));
        let select = query("SELECT DISTINCT principal FROM billing").fetch_all(&mut *connection).await?;
        let billed = select.iter().map(|read| number(read, 0)).collect::<Result<BTreeSet<u32>, _>>()?;
        let months = months_ended(connection, closed).await?;
        let mut parts: Vec<(u32, Vec<u8>, [u8; 32])> = Vec::new();
        let mut sums = self.parts(connection, of, None).await?;
        // Who has no line of this time has a percentile of it all the same: what was reported then may be on another statement.
        for principal in sampled(connection, &months).await? {
            sums.entry(principal).or_insert_with(|| Part { begins: closed.0, ..Part::default() });
        }
        for (principal, part) in sums {
            let prices = match billed.contains(&principal) {
                true => self.prices_of(connection, principal, (part.begins, closed.1)).await?,
                false => Vec::new(),
            };
            let percentiles = percentiles_of(connection, principal, &months).await?;
            let details = encode(&PartDetails { prices, percentiles });
            let mac = self.key.part(of, principal, &part.octets, Some(&details));
            parts.push((principal, details, mac));
        }
        let done = query("DELETE FROM usage_sample WHERE begins_at < $1").bind(signed(Month::of(closed.1).begin()));
        done.execute(&mut *connection).await?;
        for portion in parts.chunks(WRITTEN) {
            let tuples: Vec<String> = (0..portion.len()).map(|row| format!("({})", places(row * 4 + 1, 4))).collect();
            let insert =
                format!("INSERT INTO usage_part (statement, principal, details, mac) VALUES {}", tuples.join(", "));
            let insert = portion.iter().fold(query(&insert), |insert, (principal, details, mac)| {
                insert.bind(signed(of)).bind(i64::from(*principal)).bind(details.clone()).bind(mac.to_vec())
            });
            insert.execute(&mut *connection).await?;
        }
        let mac = self.statement_mac(connection, of).await?;
        let set = query("UPDATE usage_statement SET mac = $1 WHERE number = $2 AND mac IS NULL").bind(mac.to_vec());
        let set = set.bind(signed(of)).execute(&mut *connection).await?;
        // Somebody made it incomplete again, to have other sums authenticated.
        if set.rows_affected() == 1 { Ok(()) } else { Err(bad_statement(of, "it was complete before")) }
    }

    /// The price tags of one who pays that were in force in a time.
    async fn prices_of(
        &self,
        connection: &mut AnyConnection,
        principal: u32,
        (from, before): (u64, u64),
    ) -> Result<Vec<PriceTag>, StoreError> {
        let mut tags = Vec::new();
        for (of, record) in self.billing_of(connection, principal).await? {
            tags.extend(record.prices_within(of.grant, from, before));
        }
        // That of the account comes first.
        tags.sort_by_key(|tag| tag.grant.is_some());
        // Whoever sets one more is refused.
        if tags.len() > MAX_PRICE_TAGS {
            return Err(bad(&format!("`billing` of principal {principal}"), "it has more price tags than a statement"));
        }
        Ok(tags)
    }

    /// The MAC of a complete statement, by what the database says and the MACs of its parts.
    async fn statement_mac(&self, connection: &mut AnyConnection, of: u64) -> Result<[u8; 32], StoreError> {
        let missing = |number| bad_statement(number, "it is missing");
        let (statement, _) = statement_row(connection, of).await?.ok_or_else(|| missing(of))?;
        let before = match of {
            1 => Vec::new(),
            _ => {
                let (_, mac) = statement_row(connection, of - 1).await?.ok_or_else(|| missing(of - 1))?;
                mac.ok_or_else(|| bad_statement(of - 1, "it has no MAC, and later ones have"))?
            }
        };
        let select = "SELECT principal, mac FROM usage_part WHERE statement = $1 ORDER BY principal";
        let mut parts = Vec::new();
        for read in query(select).bind(signed(of)).fetch_all(&mut *connection).await? {
            let (principal, mac): (u32, Vec<u8>) = (number(&read, 0)?, read.try_get(1)?);
            parts.extend_from_slice(&principal.to_be_bytes());
            parts.extend_from_slice(&(mac.len() as u64).to_be_bytes());
            parts.extend_from_slice(&mac);
        }
        Ok(self.key.statement(&statement.octets(), &parts, &before))
    }

    /// A statement, if it is as a key server wrote it; none if there is none with this number.
    async fn authentic_statement(
        &self,
        connection: &mut AnyConnection,
        of: u64,
    ) -> Result<Option<UsageStatement>, StoreError> {
        let Some((statement, mac)) = statement_row(connection, of).await? else {
            let head = head(connection).await?;
            return if (1..=head.statement).contains(&of) { Err(bad_statement(of, "it is missing")) } else { Ok(None) };
        };
        match mac {
            Some(mac) if is_mac(&mac, &self.statement_mac(connection, of).await?) => Ok(Some(statement)),
            Some(_) => Err(bad_statement(of, "its MAC is not that of what it says and of its parts")),
            None => {
                let head = head(connection).await?;
                let is_open = (head.statement, head.is_complete) == (of, false);
                if is_open { Ok(Some(statement)) } else { Err(bad_statement(of, "it has no MAC")) }
            }
        }
    }

    /// The sums of a statement, by who pays, or of one of them.
    async fn parts(
        &self,
        connection: &mut AnyConnection,
        of: u64,
        only: Option<u32>,
    ) -> Result<BTreeMap<u32, Part>, StoreError> {
        let which = if only.is_some() { " AND principal = $2" } else { "" };
        let select = format!(
            "SELECT account, router, packets, octets FROM usage_record WHERE statement = $1{which} ORDER BY account, router"
        );
        let mut select = query(&select).bind(signed(of));
        if let Some(only) = only {
            select = select.bind(i64::from(only));
        }
        let mut parts: BTreeMap<u32, Part> = BTreeMap::new();
        let mut rows = select.fetch(&mut *connection);
        while let Some(read) = rows.try_next().await? {
            let (account, router, total) = (account_of(&read, 0)?, router_number(&read, 1)?, usage(&read, 2)?);
            let part = parts.entry(account.principal()).or_default();
            let begins = account.month().map(Month::begin).or(account.late_since()).unwrap_or(0);
            part.begins = if part.sums.is_empty() { begins } else { part.begins.min(begins) };
            part.octets.extend_from_slice(&account.0);
            part.octets.extend_from_slice(&router.to_be_bytes());
            part.octets.extend_from_slice(&total.packets.to_be_bytes());
            part.octets.extend_from_slice(&total.octets.to_be_bytes());
            part.sums.push(((account, router), total));
        }
        Ok(parts)
    }

    async fn has_unfolded(&self) -> Result<bool, StoreError> {
        self.database.check_in_place()?;
        let mut connection = self.database.pool.acquire().await?;
        if !head(&mut connection).await?.is_complete {
            return Ok(true);
        }
        Ok(!due_folded(&mut connection, 1).await?.is_empty())
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

    /// Who has many records: more than seven tenths of what one may have.
    ///
    /// # Errors
    /// If the database cannot be used.
    pub async fn heavy_payers(&self) -> Result<Vec<(u32, u64)>, StoreError> {
        let mut connection = self.database.pool.acquire().await?;
        let select = "SELECT principal, records FROM usage_payer WHERE records > $1 ORDER BY principal LIMIT 100";
        let rows = query(select).bind(signed(MANY_OF_PAYER as u64)).fetch_all(&mut *connection).await?;
        rows.iter().map(|read| Ok((number(read, 0)?, number(read, 1)?))).collect()
    }

    /// Octets of key epochs that began in the month which begins at a Unix second, of those of some payers who sent any, and of delegations
    /// while they are limited: of the present
    /// owners of their numbers. What came late for closed time is not in it.
    ///
    /// # Errors
    /// If the database cannot be used.
    pub async fn month_usage(
        &self,
        begins: u64,
        payers: &BTreeSet<RatePayer>,
        periods: &AccountPeriods,
    ) -> Result<BTreeMap<RatePayer, u64>, StoreError> {
        let mut connection = self.database.pool.acquire().await?;
        let principals: BTreeSet<u32> = payers.iter().map(|payer| payer.principal.number()).collect();
        let principals: Vec<u32> = principals.into_iter().collect();
        let mut found = BTreeMap::new();
        for portion in principals.chunks(NAMED) {
            let select = format!(
                "SELECT principal, delegation, owner, octets FROM usage_month WHERE begins_at = $1 AND principal IN ({})",
                places(2, portion.len())
            );
            let select = query(&select).bind(signed(begins));
            let select = portion.iter().fold(select, |select, principal| select.bind(i64::from(*principal)));
            for read in select.fetch_all(&mut *connection).await? {
                let (principal, owner): (u32, u8) = (number(&read, 0)?, number(&read, 2)?);
                let delegation = u32::try_from(read.try_get::<i64, _>(1)?).ok().and_then(DelegationId::new);
                let payer = Principal::new(principal).map(|principal| RatePayer { principal, delegation });
                if let Some(payer) = payer.filter(|of| owner == periods.latest(principal) && payers.contains(of)) {
                    found.insert(payer, number(&read, 3)?);
                }
            }
        }
        Ok(found)
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

    /// The statements behind a number, in order, `most` of them.
    ///
    /// # Errors
    /// If the database cannot be used, or one of them is not as a key server wrote it.
    pub async fn statements(&self, after: u64, most: usize) -> Result<Vec<UsageStatement>, StoreError> {
        self.database.check_in_place()?;
        let mut transaction = self.database.begin_to_read().await?;
        let statements = self.statements_in(&mut transaction, after, most).await;
        transaction.roll_back().await?;
        statements
    }

    async fn statements_in(
        &self,
        connection: &mut AnyConnection,
        after: u64,
        most: usize,
    ) -> Result<Vec<UsageStatement>, StoreError> {
        let last = head(connection).await?.statement.min(after.saturating_add(most as u64));
        let mut statements = Vec::new();
        for number in after.saturating_add(1)..=last {
            statements.extend(self.authentic_statement(connection, number).await?);
        }
        Ok(statements)
    }

    /// A statement with its sums, by account and router, of one principal or of all; without sums while it is not complete; none if there is
    /// none with this number.
    ///
    /// # Errors
    /// If the database cannot be used, or it is not as a key server wrote it.
    pub async fn statement(&self, of: u64, principal: Option<u32>) -> Result<Option<StatementSums>, StoreError> {
        self.database.check_in_place()?;
        let mut transaction = self.database.begin_to_read().await?;
        let statement = self.statement_in(&mut transaction, of, principal).await;
        transaction.roll_back().await?;
        statement
    }

    async fn statement_in(
        &self,
        connection: &mut AnyConnection,
        of: u64,
        principal: Option<u32>,
    ) -> Result<Option<StatementSums>, StoreError> {
        let Some(statement) = self.authentic_statement(connection, of).await? else { return Ok(None) };
        let (mut sums, mut all) = (BTreeMap::new(), Details::default());
        if !statement.is_complete {
            return Ok(Some((statement, sums, all)));
        }
        if self.is_removed(connection, of).await? {
            return Err(StoreError::Removed(of));
        }
        let which = if principal.is_some() { " AND principal = $2" } else { "" };
        let select = format!("SELECT principal, mac, details FROM usage_part WHERE statement = $1{which}");
        let mut select = query(&select).bind(signed(of));
        if let Some(principal) = principal {
            select = select.bind(i64::from(principal));
        }
        let mut written = BTreeMap::new();
        for read in select.fetch_all(&mut *connection).await? {
            let (mac, details): (Vec<u8>, Option<Vec<u8>>) = (read.try_get(1)?, read.try_get(2)?);
            written.insert(number::<u32>(&read, 0)?, (mac, details));
        }
        let not_as_written = || bad_statement(of, "its sums, price tags or percentiles are not those of its MAC");
        let mut parts = self.parts(connection, of, principal).await?;
        for (principal, (mac, details)) in written {
            let part = parts.remove(&principal).unwrap_or_default();
            if !is_mac(&mac, &self.key.part(of, principal, &part.octets, details.as_deref())) {
                return Err(not_as_written());
            }
            sums.extend(part.sums);
            let details = details.map_or_else(|| Ok(PartDetails::default()), |details| decode(&details));
            let PartDetails { prices, percentiles } =
                details.map_err(|_| bad_statement(of, "a later version wrote it"))?;
            all.prices.extend(Some((principal, prices)).filter(|(_, prices)| !prices.is_empty()));
            all.percentiles.extend(Some((principal, percentiles)).filter(|(_, of)| !of.is_empty()));
        }
        if parts.is_empty() { Ok(Some((statement, sums, all))) } else { Err(not_as_written()) }
    }

    /// Whether the sums of a complete statement were taken away.
    async fn is_removed(&self, connection: &mut AnyConnection, of: u64) -> Result<bool, StoreError> {
        let select = query("SELECT removed FROM usage_statement WHERE number = $1").bind(signed(of));
        let mark: Option<Vec<u8>> = select.fetch_one(&mut *connection).await?.try_get(0)?;
        let Some(mark) = mark else { return Ok(false) };
        let at = mark.split_first_chunk::<8>().map(|(at, mac)| (u64::from_be_bytes(*at), mac));
        if at.is_some_and(|(at, mac)| is_mac(mac, &self.key.removal(of, at))) {
            return Ok(true);
        }
        Err(bad_statement(of, "no key server took its sums away"))
    }

    /// Takes away the sums of the complete statements up to this one, at the Unix second `at`: whoever asks has them elsewhere. Their rows
    /// and the MACs of their parts stay, so that later statements are what they were. Returns the numbers of those that had sums.
    ///
    /// # Errors
    /// If nothing was taken away, or that is not known; or one of them is not as a key server wrote it.
    pub async fn remove_sums(&self, through: u64, at: u64) -> Result<Vec<u64>, StoreError> {
        let mut step = self.begin_usage().await?;
        let complete = step.head.statement - u64::from(!step.head.is_complete && step.head.statement > 0);
        let mut removed = Vec::new();
        for of in 1..=through.min(complete) {
            // What somebody changed stays, to be looked at.
            match self.statement_in(&mut step.transaction, of, None).await {
                Err(StoreError::Removed(_)) => continue,
                found => found?,
            };
            query("DELETE FROM usage_record WHERE statement = $1")
                .bind(signed(of))
                .execute(&mut *step.transaction)
                .await?;
            let mark = [&at.to_be_bytes()[..], &self.key.removal(of, at)].concat();
            let set = query("UPDATE usage_statement SET removed = $1 WHERE number = $2").bind(mark).bind(signed(of));
            set.execute(&mut *step.transaction).await?;
            // Pages of usage that were begun have what is gone now.
            step.head.moved += 1;
            removed.push(of);
        }
        if removed.is_empty() {
            step.transaction.roll_back().await?;
            return Ok(removed);
        }
        step.commit(self).await?;
        Ok(removed)
    }

    /// Brings in what an earlier version kept in a file, in the place of what there is if it `replaces` that: records, up to when time is closed, what routers
    /// confirmed, and which have a list of another database. What routers have reported since they report again at their next connection.
    ///
    /// # Errors
    /// If there is a statement already, or usage that it does not replace; or the database cannot be used.
    pub async fn import_usage(
        &self,
        records: &[UsageRecord<ChargedAccount>],
        closed_before: u64,
        (known, replaces): (&KnownRouters, bool),
    ) -> Result<(), StoreError> {
        let mut step = self.begin_usage().await?;
        if step.head.statement > 0 {
            return Err(StoreError::Stated);
        }
        let any = query("SELECT router FROM usage_record LIMIT 1").fetch_optional(&mut *step.transaction).await?;
        if any.is_some() && !replaces {
            return Err(StoreError::Used);
        }
        // Who runs takes it for a database that was set back, and has routers report again.
        step.head.steps = 0;
        for table in ["usage_record", "usage_journal", "usage_payer", "usage_router", "usage_month", "usage_sample"] {
            query(&format!("DELETE FROM {table}")).execute(&mut *step.transaction).await?;
        }
        (step.head.closed_before, step.head.is_complete) = (closed_before, closed_before == 0);
        for (router, through) in &known.confirmed {
            step.set_confirmed(*router, *through).await?;
        }
        for (router, list) in &known.ahead {
            step.set_ahead(*router, Some(*list)).await?;
        }
        let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
        for record in records {
            *counts.entry(record.account.principal()).or_default() += usize::from(!record.journal.is_of_sums());
        }
        // There were no quotas: whose they are matters from the next reports on.
        step.add_to_months(&Records::new(), records, &AccountPeriods::default()).await?;
        step.write(&Records::new(), records.to_vec(), &[], &counts).await?;
        step.commit(self).await
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
}

/// A statement, its sums by account and router, and what else it has, by who pays.
pub type StatementSums = (UsageStatement, BTreeMap<(ChargedAccount, RouterNumber), Usage>, Details);

/// What a statement has beside its sums, by who pays.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Details {
    /// Price tags that were in force in its time.
    pub prices: BTreeMap<u32, Vec<PriceTag>>,
    /// Of the months that ended in its time.
    pub percentiles: BTreeMap<u32, Vec<Percentile>>,
}

/// What of a statement is of one who pays.
#[derive(Default)]
struct Part {
    /// That its MAC covers.
    octets: Vec<u8>,
    sums: Vec<((ChargedAccount, RouterNumber), Usage)>,
    /// The Unix second at which the first month of it begins.
    begins: u64,
}

wayleave_core::wire! {
    /// What a part has beside its sums.
    #[derive(Clone, PartialEq, Eq, Debug, Default)]
    struct PartDetails {
        prices: Vec<PriceTag> as List16<MAX_PRICE_TAGS>,
        percentiles: Vec<Percentile> as List16<MAX_PERCENTILES>,
    }
}

impl UsageStatement {
    /// What of it a MAC covers beside its parts.
    fn octets(&self) -> Vec<u8> {
        let mut octets = Vec::new();
        for value in [self.number, self.closed_after, self.closed_before, self.made_at] {
            octets.extend_from_slice(&value.to_be_bytes());
        }
        for text in [&self.actor, &self.reason] {
            octets.extend_from_slice(&(text.len() as u64).to_be_bytes());
            octets.extend_from_slice(text.as_bytes());
        }
        for (router, confirmed) in &self.routers {
            octets.extend_from_slice(&router.to_be_bytes());
            octets.extend_from_slice(&confirmed.unwrap_or(0).to_be_bytes());
        }
        octets
    }
}

/// A transaction that holds the head.
struct Step {
    transaction: Transaction,
    head: UsageHead,
}

impl Step {
    async fn commit(mut self, store: &Store) -> Result<(), StoreError> {
        let UsageHead { statement, closed_before, is_complete, moved, steps } = self.head;
        let set = "UPDATE usage_head SET statement = $1, closed_before = $2, is_complete = $3, moved = $4, steps = $5 WHERE id = 1";
        let set = query(set).bind(signed(statement)).bind(signed(closed_before)).bind(i64::from(is_complete));
        set.bind(signed(moved)).bind(signed(steps + 1)).execute(&mut *self.transaction).await?;
        self.transaction.commit().await?;
        store.usage.steps.fetch_max(steps + 1, Ordering::AcqRel);
        // What was written to a file that has just been replaced is lost.
        store.database.check_in_place()
    }

    /// A ledger that knows nothing but the head and what routers confirmed.
    async fn ledger(&mut self, periods: &AccountPeriods) -> Result<Ledger<ChargedAccount>, StoreError> {
        let closed = (self.head.closed_before, self.head.statement);
        let mut ledger = Ledger::new(MAX_OF_PAYER).with_calendar(ChargedAccount::CALENDAR, closed);
        for (router, second) in known_routers(&mut self.transaction).await?.confirmed {
            ledger.restore_confirmed(router, second);
        }
        Ok(ledger.with_periods(periods.clone()))
    }

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

    /// Adds what is new of totals to the months in which their key epochs begin. Returns how much that is of each payer, by the owner of its
    /// number.
    async fn add_to_months(
        &mut self,
        found: &Records,
        changed: &[UsageRecord<ChargedAccount>],
        periods: &AccountPeriods,
    ) -> Result<BTreeMap<(u32, u8), u64>, StoreError> {
        // Of one that is here twice the last counts.
        let last: Records = changed.iter().map(|of| ((of.router, of.journal, of.account), of.total)).collect();
        let limited = self.limited(last.keys().map(|(.., account)| account.principal()).collect()).await?;
        let mut months: BTreeMap<(u32, i64, u64, u8), u128> = BTreeMap::new();
        for (key, total) in last {
            let (account, principal) = (key.2, key.2.principal());
            let of_epoch = account.begins_at().map(|begins| (Month::of(begins), periods.at(principal, begins)));
            let Some((month, owner)) = of_epoch.or(account.month().zip(account.account_period())) else { continue };
            let held = found.get(&key).map_or(0, |held| held.octets);
            let delegation = account.delegation().map(i64::from).filter(|id| limited.contains(&(principal, *id)));
            for of in [Some(WHOLE), delegation].into_iter().flatten() {
                *months.entry((principal, of, month.begin(), owner)).or_default() += total.octets.saturating_sub(held);
            }
        }
        let mut new: BTreeMap<(u32, u8), u64> = BTreeMap::new();
        for ((principal, of, begins, owner), octets) in months.into_iter().filter(|(_, octets)| *octets > 0) {
            if of == WHOLE {
                let sum = new.entry((principal, owner)).or_default();
                *sum = sum.saturating_add(u64::try_from(octets).unwrap_or(u64::MAX));
            }
            let add = format!(
                "INSERT INTO usage_month (principal, delegation, begins_at, owner, octets) VALUES ($1, $2, $3, $4, $5)
                 ON CONFLICT (principal, delegation, begins_at, owner) DO UPDATE SET octets =
                 CASE WHEN usage_month.octets > {MOST_OF_MONTH} - excluded.octets THEN {MOST_OF_MONTH}
                 ELSE usage_month.octets + excluded.octets END"
            );
            let add = query(&add).bind(i64::from(principal)).bind(of).bind(signed(begins)).bind(i64::from(owner));
            add.bind(counted(octets).min(MOST_OF_MONTH)).execute(&mut *self.transaction).await?;
        }
        Ok(new)
    }

    /// Delegations of these principals that are limited by volume: of others no sums are kept, since whoever has a capability makes as many
    /// as it likes.
    async fn limited(&mut self, principals: BTreeSet<u32>) -> Result<BTreeSet<(u32, i64)>, StoreError> {
        let principals: Vec<u32> = principals.into_iter().collect();
        let mut found = BTreeSet::new();
        for portion in principals.chunks(NAMED) {
            let of = places(1, portion.len());
            let select = format!("SELECT principal, delegation FROM delegation_volume WHERE principal IN ({of})");
            let select = portion.iter().fold(query(&select), |select, principal| select.bind(i64::from(*principal)));
            for read in select.fetch_all(&mut *self.transaction).await? {
                found.insert((number(&read, 0)?, read.try_get(1)?));
            }
        }
        Ok(found)
    }

    /// Adds what a router has counted after a Unix second, and reports at another, to samples.
    async fn add_samples(
        &mut self,
        new: &BTreeMap<(u32, u8), u64>,
        counted: (Option<u64>, u64),
    ) -> Result<(), StoreError> {
        let add = format!(
            "INSERT INTO usage_sample (principal, owner, begins_at, octets, is_rough) VALUES ($1, $2, $3, $4, $5)
             ON CONFLICT (principal, owner, begins_at) DO UPDATE SET octets =
             CASE WHEN usage_sample.octets > {MOST_OF_MONTH} - excluded.octets THEN {MOST_OF_MONTH}
             ELSE usage_sample.octets + excluded.octets END,
             is_rough = CASE WHEN excluded.is_rough > usage_sample.is_rough THEN excluded.is_rough
             ELSE usage_sample.is_rough END"
        );
        for ((principal, owner), octets) in new {
            let (samples, is_rough) = samples(*octets, counted);
            for (begins, octets) in samples {
                let add = query(&add).bind(i64::from(*principal)).bind(i64::from(*owner)).bind(signed(begins));
                let add = add.bind(signed(octets).min(MOST_OF_MONTH)).bind(i64::from(is_rough));
                add.execute(&mut *self.transaction).await?;
            }
        }
        Ok(())
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

    async fn set_ahead(&mut self, router: RouterNumber, has: Option<u64>) -> Result<(), StoreError> {
        let ahead = "INSERT INTO usage_router (router, list_ahead) VALUES ($1, $2)
                     ON CONFLICT (router) DO UPDATE SET list_ahead = excluded.list_ahead";
        query(ahead).bind(i64::from(router)).bind(has.map(signed)).execute(&mut *self.transaction).await?;
        Ok(())
    }

    async fn set_confirmed(&mut self, router: RouterNumber, through: u64) -> Result<(), StoreError> {
        let set = "INSERT INTO usage_router (router, confirmed_through) VALUES ($1, $2)
                   ON CONFLICT (router) DO UPDATE SET confirmed_through = excluded.confirmed_through";
        query(set).bind(i64::from(router)).bind(signed(through)).execute(&mut *self.transaction).await?;
        Ok(())
    }

    /// Those of some records that there are.
    async fn find(&mut self, keys: &BTreeSet<Key>) -> Result<Records, StoreError> {
        let mut of: BTreeMap<(RouterNumber, JournalId), Vec<ChargedAccount>> = BTreeMap::new();
        for (router, journal, account) in keys {
            of.entry((*router, *journal)).or_default().push(*account);
        }
        let mut found = Records::new();
        for ((router, journal), accounts) in of {
            for portion in accounts.chunks(NAMED) {
                let select = format!(
                    "SELECT account, packets, octets FROM usage_record WHERE router = $1 AND journal = $2 AND account IN ({})",
                    places(3, portion.len())
                );
                let select = named(&select, (router, journal), portion);
                for read in select.fetch_all(&mut *self.transaction).await? {
                    let account = account_of(&read, 0)?;
                    let total = usage(&read, 1).map_err(|_| bad_record(router, account))?;
                    found.insert((router, journal, account), total);
                }
            }
        }
        Ok(found)
    }

    /// How many records those have who pay for some accounts.
    async fn restore_counts(
        &mut self,
        ledger: &mut Ledger<ChargedAccount>,
        accounts: impl Iterator<Item = &ChargedAccount>,
    ) -> Result<(), StoreError> {
        let payers: Vec<u32> = accounts.map(ChargedAccount::principal).collect::<BTreeSet<_>>().into_iter().collect();
        for portion in payers.chunks(NAMED) {
            portion.iter().for_each(|payer| ledger.restore_count(*payer, 0));
            let select =
                format!("SELECT principal, records FROM usage_payer WHERE principal IN ({})", places(1, portion.len()));
            let select = portion.iter().fold(query(&select), |query, payer| query.bind(i64::from(*payer)));
            for read in select.fetch_all(&mut *self.transaction).await? {
                ledger
                    .restore_count(number(&read, 0)?, usize::try_from(number::<u64>(&read, 1)?).unwrap_or(usize::MAX));
            }
        }
        Ok(())
    }

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

    /// Writes records, and takes others away. `found` are those of them that were there; `counts`, how many each payer has afterwards.
    async fn write(
        &mut self,
        found: &Records,
        changed: Vec<UsageRecord<ChargedAccount>>,
        removed: &[Key],
        counts: &BTreeMap<u32, usize>,
    ) -> Result<(), StoreError> {
        if changed.is_empty() && removed.is_empty() {
            return Ok(());
        }
        // Of one that is here twice the last counts.
        let changed: Records = changed
            .into_iter()
            .map(|UsageRecord { router, journal, account, total }| ((router, journal, account), total))
            .collect();
        let rows: Vec<(&Key, &Usage)> = changed.iter().collect();
        for portion in rows.chunks(WRITTEN) {
            self.upsert(portion).await?;
        }
        let mut of: BTreeMap<(RouterNumber, JournalId), Vec<ChargedAccount>> = BTreeMap::new();
        for (router, journal, account) in removed {
            of.entry((*router, *journal)).or_default().push(*account);
        }
        for ((router, journal), accounts) in &of {
            for portion in accounts.chunks(NAMED) {
                let delete = format!(
                    "DELETE FROM usage_record WHERE router = $1 AND journal = $2 AND account IN ({})",
                    places(3, portion.len())
                );
                named(&delete, (*router, *journal), portion).execute(&mut *self.transaction).await?;
            }
        }
        // A router that has lost its memory often has room for new ones once nothing is kept of the old ones.
        let mut journals: BTreeMap<(RouterNumber, JournalId), i64> = BTreeMap::new();
        let came = changed.keys().filter(|key| !found.contains_key(key)).map(|key| (key, 1));
        let went =
            removed.iter().filter(|key| found.contains_key(key) || changed.contains_key(key)).map(|key| (key, -1));
        // Sums are under journals of their own, which are no router's.
        for ((router, journal, _), more) in came.chain(went).filter(|((_, journal, _), _)| !journal.is_of_sums()) {
            *journals.entry((*router, *journal)).or_default() += more;
        }
        for ((router, journal), more) in journals {
            let add = "INSERT INTO usage_journal (journal, router, records) VALUES ($1, $2, $3)
                       ON CONFLICT (journal) DO UPDATE SET records = usage_journal.records + excluded.records";
            let add = query(add).bind(journal.0.to_vec()).bind(i64::from(router)).bind(more);
            add.execute(&mut *self.transaction).await?;
        }
        query("DELETE FROM usage_journal WHERE records <= 0").execute(&mut *self.transaction).await?;
        let payers: BTreeSet<u32> = changed.keys().chain(removed).map(|(_, _, account)| account.principal()).collect();
        for payer in payers {
            let set = "INSERT INTO usage_payer (principal, records) VALUES ($1, $2)
                       ON CONFLICT (principal) DO UPDATE SET records = excluded.records";
            let records = counts.get(&payer).copied().unwrap_or(0) as u64;
            query(set).bind(i64::from(payer)).bind(signed(records)).execute(&mut *self.transaction).await?;
        }
        Ok(())
    }

    async fn upsert(&mut self, rows: &[(&Key, &Usage)]) -> Result<(), StoreError> {
        let tuples: Vec<String> =
            (0..rows.len()).map(|row| format!("({})", places(row * COLUMNS + 1, COLUMNS))).collect();
        let insert = format!(
            "INSERT INTO usage_record (router, journal, account, kind, principal, delegation, sub_delegation, begins_at, ends_at, \
             statement, packets, octets) VALUES {} ON CONFLICT (router, journal, account) DO UPDATE SET packets = excluded.packets, \
             octets = excluded.octets",
            tuples.join(", ")
        );
        let mut insert = query(&insert);
        for ((router, journal, account), Usage { packets, octets }) in rows {
            let plain = account.unfolded();
            let of = plain.unwrap_or(*account);
            let kind = match (plain, account.month(), account.late_since()) {
                (Some(_), ..) => 1,
                (_, Some(_), _) => 2,
                (_, _, Some(_)) => 3,
                _ => 0,
            };
            let month = account.month().map(|month| (month.begin(), month.next().begin())).unzip();
            let begins = of.begins_at().or(month.0).or(account.late_since());
            let ends = of.ended_at().filter(|_| kind < 2);
            insert = insert.bind(i64::from(*router)).bind(journal.0.to_vec()).bind(account.0.to_vec()).bind(kind);
            insert = insert.bind(i64::from(account.principal()));
            insert = insert.bind(account.delegation().map(i64::from)).bind(account.sub_delegation().map(i64::from));
            insert = insert.bind(begins.map(signed)).bind(ends.map(signed)).bind(journal.statement().map(signed));
            insert = insert.bind(counted(*packets)).bind(counted(*octets));
        }
        insert.execute(&mut *self.transaction).await?;
        Ok(())
    }
}

const SELECT_STATEMENT: &str =
    "SELECT number, closed_after, closed_before, made_at, actor, reason, routers, mac FROM usage_statement";

async fn head(connection: &mut AnyConnection) -> Result<UsageHead, StoreError> {
    let select = "SELECT statement, closed_before, is_complete, moved, steps FROM usage_head WHERE id = 1";
    let read = query(select).fetch_one(&mut *connection).await?;
    let is_complete: i64 = read.try_get(2)?;
    Ok(UsageHead {
        statement: number(&read, 0)?,
        closed_before: number(&read, 1)?,
        is_complete: is_complete != 0,
        moved: number(&read, 3)?,
        steps: number(&read, 4)?,
    })
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

/// A statement and its MAC, as the database has them.
async fn statement_row(
    connection: &mut AnyConnection,
    of: u64,
) -> Result<Option<(UsageStatement, Option<Vec<u8>>)>, StoreError> {
    let select = format!("{SELECT_STATEMENT} WHERE number = $1");
    let read = query(&select).bind(signed(of)).fetch_optional(&mut *connection).await?;
    read.as_ref().map(statement).transpose()
}

/// The months that ended in a time that is closed, of which there are samples.
async fn months_ended(
    connection: &mut AnyConnection,
    (after, before): (u64, u64),
) -> Result<Vec<(u64, u64)>, StoreError> {
    let first = query("SELECT MIN(begins_at) FROM usage_sample").fetch_one(&mut *connection).await?;
    let Some(first) = optional(&first, 0)? else { return Ok(Vec::new()) };
    let months = std::iter::successors(Some(Month::of(after.max(first))), |month| Some(month.next()));
    let bounds = months.map(|month| (month.begin(), month.next().begin()));
    Ok(bounds.take_while(|(_, ends)| *ends <= before).take(MAX_PERCENTILES).collect())
}

/// Who has samples in these months, which follow on each other.
async fn sampled(connection: &mut AnyConnection, months: &[(u64, u64)]) -> Result<Vec<u32>, StoreError> {
    let (Some((begins, _)), Some((_, ends))) = (months.first(), months.last()) else { return Ok(Vec::new()) };
    let select = "SELECT DISTINCT principal FROM usage_sample WHERE begins_at >= $1 AND begins_at < $2";
    let found = query(select).bind(signed(*begins)).bind(signed(*ends)).fetch_all(&mut *connection).await?;
    found.iter().map(|read| number(read, 0)).collect()
}

/// The percentiles of one who pays, of the owners of its number one after the other.
async fn percentiles_of(
    connection: &mut AnyConnection,
    principal: u32,
    months: &[(u64, u64)],
) -> Result<Vec<Percentile>, StoreError> {
    let within = "principal = $1 AND begins_at >= $2 AND begins_at < $3";
    let select = format!(
        "SELECT owner, CAST(SUM(is_rough) AS BIGINT) FROM usage_sample WHERE {within} GROUP BY owner ORDER BY owner"
    );
    let rank =
        format!("SELECT octets FROM usage_sample WHERE {within} AND owner = $4 ORDER BY octets DESC LIMIT 1 OFFSET $5");
    let mut found = Vec::new();
    for (begins, ends) in months.iter().copied() {
        let of = query(&select).bind(i64::from(principal)).bind(signed(begins)).bind(signed(ends));
        for read in of.fetch_all(&mut *connection).await? {
            let owner: u8 = number(&read, 0)?;
            let of = query(&rank).bind(i64::from(principal)).bind(signed(begins)).bind(signed(ends));
            let of = of.bind(i64::from(owner)).bind(signed(discarded_samples((begins, ends))));
            let octets: u64 = match of.fetch_optional(&mut *connection).await? {
                Some(read) => number(&read, 0)?,
                None => 0, // fewer samples than do not count
            };
            let octets_per_second = octets / SAMPLE_SECS;
            found.push(Percentile { owner, begins, ends, octets_per_second, rough: number(&read, 1)? });
        }
    }
    found.truncate(MAX_PERCENTILES);
    Ok(found)
}

async fn known_routers(connection: &mut AnyConnection) -> Result<KnownRouters, StoreError> {
    let mut known = KnownRouters::default();
    let select = "SELECT router, confirmed_through, list_ahead FROM usage_router";
    for read in query(select).fetch_all(&mut *connection).await? {
        let router = router_number(&read, 0)?;
        known.confirmed.extend(optional(&read, 1)?.map(|second| (router, second)));
        known.ahead.extend(optional(&read, 2)?.map(|list| (router, list)));
    }
    Ok(known)
}

/// A statement, and its MAC.
fn statement(read: &AnyRow) -> Result<(UsageStatement, Option<Vec<u8>>), StoreError> {
    let (routers, mac): (String, Option<Vec<u8>>) = (read.try_get(6)?, read.try_get(7)?);
    let number: u64 = number(read, 0)?;
    let refused = || StoreError::Row { row: format!("statement {number}"), what: "it names routers in another form" };
    let routers: BTreeMap<RouterNumber, Option<u64>> = serde_json::from_str(&routers).map_err(|_| refused())?;
    let statement = UsageStatement {
        number,
        closed_after: self::number(read, 1)?,
        closed_before: self::number(read, 2)?,
        made_at: self::number(read, 3)?,
        actor: read.try_get(4)?,
        reason: read.try_get(5)?,
        routers,
        is_complete: mac.is_some(),
    };
    Ok((statement, mac))
}

fn restore(ledger: &mut Ledger<ChargedAccount>, found: &Records) {
    for ((router, journal, account), total) in found {
        ledger.restore(&UsageRecord { router: *router, journal: *journal, account: *account, total: *total });
    }
}

/// The report with totals that a column holds.
fn held(report: &UsageReport<ChargedAccount>) -> UsageReport<ChargedAccount> {
    let most = |value: u128| value.min(i64::MAX as u128);
    let entry = |(account, Usage { packets, octets }): &(ChargedAccount, Usage)| {
        (*account, Usage { packets: most(*packets), octets: most(*octets) })
    };
    UsageReport { entries: report.entries.iter().map(entry).collect(), ..*report }
}

/// A count as a column holds it: one beyond 2^63 - 1 is that.
fn counted(count: u128) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Placeholders for so many values from a number on.
fn places(first: usize, count: usize) -> String {
    let all: Vec<String> = (first..first + count).map(|place| format!("${place}")).collect();
    all.join(", ")
}

/// Binds a journal and accounts of it.
fn named<'q>(
    sql: &'q str,
    (router, journal): (RouterNumber, JournalId),
    accounts: &[ChargedAccount],
) -> BoundQuery<'q> {
    let query = query(sql).bind(i64::from(router)).bind(journal.0.to_vec());
    accounts.iter().fold(query, |query, account| query.bind(account.0.to_vec()))
}

fn record(read: &AnyRow) -> Result<(Key, Usage), StoreError> {
    let (router, journal, account) = (router_number(read, 0)?, journal_of(read, 1)?, account_of(read, 2)?);
    let total = usage(read, 3).map_err(|_| bad_record(router, account))?;
    Ok(((router, journal, account), total))
}

/// A row that no key server wrote so.
fn bad(of: &str, what: &'static str) -> StoreError {
    StoreError::Row { row: format!("a row of table {of}"), what }
}

fn bad_record(router: RouterNumber, account: ChargedAccount) -> StoreError {
    let id: String = account.0.iter().map(|octet| format!("{octet:02x}")).collect();
    bad(&format!("`usage_record` with router {router} and account {id}"), "it has no count")
}

fn bad_statement(number: u64, what: &'static str) -> StoreError {
    StoreError::Row { row: format!("statement {number}"), what }
}

/// The number in a column of a table whose name begins with `usage`.
fn number<T: TryFrom<i64>>(read: &AnyRow, at: usize) -> Result<T, StoreError> {
    let value: i64 = read.try_get(at)?;
    T::try_from(value).map_err(|_| bad("`usage_…`", "it has a number that is out of range"))
}

fn optional(read: &AnyRow, at: usize) -> Result<Option<u64>, StoreError> {
    let value: Option<i64> = read.try_get(at)?;
    let number =
        |value| u64::try_from(value).map_err(|_| bad("`usage_router`", "it has a number that is out of range"));
    value.map(number).transpose()
}

fn router_number(read: &AnyRow, at: usize) -> Result<RouterNumber, StoreError> {
    number(read, at)
}

fn journal_of(read: &AnyRow, at: usize) -> Result<JournalId, StoreError> {
    let octets: Vec<u8> = read.try_get(at)?;
    Ok(JournalId(octets.try_into().map_err(|_| bad("`usage_journal`", "it has no journal's identity"))?))
}

fn account_of(read: &AnyRow, at: usize) -> Result<ChargedAccount, StoreError> {
    let octets: Vec<u8> = read.try_get(at)?;
    Ok(ChargedAccount(octets.try_into().map_err(|_| bad("`usage_record`", "it has no account"))?))
}

fn usage(read: &AnyRow, at: usize) -> Result<Usage, StoreError> {
    let [packets, octets]: [u64; 2] = [number(read, at)?, number(read, at + 1)?];
    Ok(Usage { packets: packets.into(), octets: octets.into() })
}
