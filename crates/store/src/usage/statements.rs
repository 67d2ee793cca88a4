//! Statements: completed with their MACs, read, and their sums taken away.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::TryStreamExt;
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row as _, query};
use wayleave_control::capability::{
    ChargedAccount, MAX_PERCENTILES, MAX_PRICE_TAGS, Month, Percentile, PriceTag, RouterNumber, Usage,
};
use wayleave_core::wire::{List16, decode, encode};

use super::head;
use super::percentiles::{months_ended, percentiles_of, sampled};
use super::rows::{WRITTEN, account_of, number, places, router_number, usage};
use crate::authentic::is_mac;
use crate::error::StoreError;
use crate::store::Store;
use crate::table::signed;

/// Parts that are written at once, at most, if they have percentiles: thousands of samples are read for each, and others that write to a
/// SQLite file wait for five seconds and no longer.
const SAMPLED: usize = 16;

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

impl Store {
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

    /// Writes the next parts of a statement that is added up: of those who pay in order, until they have `most` sums together, and of one at
    /// least. Without any that is left, writes its MAC. Returns whether it is complete.
    pub(super) async fn complete(
        &self,
        connection: &mut AnyConnection,
        of: u64,
        most: usize,
    ) -> Result<bool, StoreError> {
        let statement = statement_row(connection, of).await?.map(|(statement, _)| statement);
        let closed = statement.map_or((0, 0), |statement| (statement.closed_after, statement.closed_before));
        let months = months_ended(connection, closed).await?;
        let payers = payers_left(connection, of, &months, most).await?;
        let Some(bounds) = payers.first().zip(payers.last()).map(|(first, last)| (*first, *last)) else {
            self.authenticate(connection, of).await?;
            return Ok(true);
        };
        let select = "SELECT DISTINCT principal FROM billing WHERE principal BETWEEN $1 AND $2";
        let select = query(select).bind(i64::from(bounds.0)).bind(i64::from(bounds.1));
        let billed = select.fetch_all(&mut *connection).await?;
        let billed = billed.iter().map(|read| number(read, 0)).collect::<Result<BTreeSet<u32>, _>>()?;
        let mut sums = self.parts(connection, of, bounds).await?;
        let mut parts: Vec<(u32, Vec<u8>, [u8; 32])> = Vec::new();
        for principal in payers {
            // Who has no line of this time has a percentile of it all the same: what was reported then may be on another statement.
            let part = sums.remove(&principal).unwrap_or_else(|| Part { begins: closed.0, ..Part::default() });
            let prices = match billed.contains(&principal) {
                true => self.prices_of(connection, principal, (part.begins, closed.1)).await?,
                false => Vec::new(),
            };
            let percentiles = percentiles_of(connection, principal, &months).await?;
            let details = encode(&PartDetails { prices, percentiles });
            let mac = self.key.part(of, principal, &part.octets, Some(&details));
            parts.push((principal, details, mac));
        }
        for portion in parts.chunks(WRITTEN) {
            let tuples: Vec<String> = (0..portion.len()).map(|row| format!("({})", places(row * 4 + 1, 4))).collect();
            let insert =
                format!("INSERT INTO usage_part (statement, principal, details, mac) VALUES {}", tuples.join(", "));
            let insert = portion.iter().fold(query(&insert), |insert, (principal, details, mac)| {
                insert.bind(signed(of)).bind(i64::from(*principal)).bind(details.clone()).bind(mac.to_vec())
            });
            insert.execute(&mut *connection).await?;
        }
        Ok(false)
    }

    /// Writes the MAC of a statement that has all its parts.
    async fn authenticate(&self, connection: &mut AnyConnection, of: u64) -> Result<(), StoreError> {
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
        // Whoever sets one more is refused. Where an earlier program set more, one customer's tags hold up nobody's statement.
        tags.truncate(MAX_PRICE_TAGS);
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

    /// The sums of a statement, by who pays, from one of them to another.
    async fn parts(
        &self,
        connection: &mut AnyConnection,
        of: u64,
        (first, last): (u32, u32),
    ) -> Result<BTreeMap<u32, Part>, StoreError> {
        let select = "SELECT account, router, packets, octets FROM usage_record
                      WHERE statement = $1 AND principal BETWEEN $2 AND $3 ORDER BY account, router";
        let select = query(select).bind(signed(of)).bind(i64::from(first)).bind(i64::from(last));
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
        let bounds = principal.map_or((0, u32::MAX), |principal| (principal, principal));
        let select =
            "SELECT principal, mac, details FROM usage_part WHERE statement = $1 AND principal BETWEEN $2 AND $3";
        let select = query(select).bind(signed(of)).bind(i64::from(bounds.0)).bind(i64::from(bounds.1));
        let mut written = BTreeMap::new();
        for read in select.fetch_all(&mut *connection).await? {
            let (mac, details): (Vec<u8>, Option<Vec<u8>>) = (read.try_get(1)?, read.try_get(2)?);
            written.insert(number::<u32>(&read, 0)?, (mac, details));
        }
        let not_as_written = || bad_statement(of, "its sums, price tags or percentiles are not those of its MAC");
        let mut parts = self.parts(connection, of, bounds).await?;
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
}

const SELECT_STATEMENT: &str =
    "SELECT number, closed_after, closed_before, made_at, actor, reason, routers, mac FROM usage_statement";

/// Who has a part of a statement that is not written yet, in order: the first ones, who have `most` sums together unless it is only one.
async fn payers_left(
    connection: &mut AnyConnection,
    of: u64,
    months: &[(u64, u64)],
    most: usize,
) -> Result<Vec<u32>, StoreError> {
    let payers = if months.is_empty() { most } else { most.min(SAMPLED) };
    let last = query("SELECT MAX(principal) FROM usage_part WHERE statement = $1").bind(signed(of));
    let last: Option<i64> = last.fetch_one(&mut *connection).await?.try_get(0)?;
    let select = format!(
        "SELECT principal, COUNT(*) FROM usage_record WHERE statement = $1 AND principal > $2
         GROUP BY principal ORDER BY principal LIMIT {payers}"
    );
    let select = query(&select).bind(signed(of)).bind(last.unwrap_or(-1));
    let mut left: BTreeMap<u32, usize> = BTreeMap::new();
    for read in select.fetch_all(&mut *connection).await? {
        left.insert(number(&read, 0)?, number(&read, 1)?);
    }
    for principal in sampled(connection, months, (last.unwrap_or(-1), payers)).await? {
        left.entry(principal).or_default();
    }
    let mut sums = 0;
    let is_within = |(_, of): &(u32, usize)| {
        let is_first = sums == 0;
        sums += of;
        is_first || sums <= most
    };
    Ok(left.into_iter().take(payers).take_while(is_within).map(|(principal, _)| principal).collect())
}

/// A statement and its MAC, as the database has them.
pub(super) async fn statement_row(
    connection: &mut AnyConnection,
    of: u64,
) -> Result<Option<(UsageStatement, Option<Vec<u8>>)>, StoreError> {
    let select = format!("{SELECT_STATEMENT} WHERE number = $1");
    let read = query(&select).bind(signed(of)).fetch_optional(&mut *connection).await?;
    read.as_ref().map(statement).transpose()
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

pub(super) fn bad_statement(number: u64, what: &'static str) -> StoreError {
    StoreError::Row { row: format!("statement {number}"), what }
}
