//! Values in the rows of these tables.

use sqlx::any::{AnyArguments, AnyRow};
use sqlx::query::Query;
use sqlx::{Any, Row as _, query};
use wayleave_control::capability::{ChargedAccount, JournalId, RouterNumber, Usage};

use crate::error::StoreError;

/// What an SQL statement names, at most.
pub(super) const NAMED: usize = 500;

/// Rows that it writes, at most.
pub(super) const WRITTEN: usize = 200;

/// Octets of a month, at most: what is beyond a quota for ever.
pub(super) const MOST_OF_MONTH: i64 = 1 << 62;

pub(super) type Key = (RouterNumber, JournalId, ChargedAccount);

pub(super) type BoundQuery<'q> = Query<'q, Any, AnyArguments<'q>>;

/// A count as a column holds it: one beyond 2^63 - 1 is that.
pub(super) fn counted(count: u128) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Placeholders for so many values from a number on.
pub(super) fn places(first: usize, count: usize) -> String {
    let all: Vec<String> = (first..first + count).map(|place| format!("${place}")).collect();
    all.join(", ")
}

/// Binds a journal and accounts of it.
pub(super) fn named<'q>(
    sql: &'q str,
    (router, journal): (RouterNumber, JournalId),
    accounts: &[ChargedAccount],
) -> BoundQuery<'q> {
    let query = query(sql).bind(i64::from(router)).bind(journal.0.to_vec());
    accounts.iter().fold(query, |query, account| query.bind(account.0.to_vec()))
}

pub(super) fn record(read: &AnyRow) -> Result<(Key, Usage), StoreError> {
    let (router, journal, account) = (router_number(read, 0)?, journal_of(read, 1)?, account_of(read, 2)?);
    let total = usage(read, 3).map_err(|_| bad_record(router, account))?;
    Ok(((router, journal, account), total))
}

/// A row that no key server wrote so.
pub(super) fn bad(of: &str, what: &'static str) -> StoreError {
    StoreError::Row { row: format!("a row of table {of}"), what }
}

pub(super) fn bad_record(router: RouterNumber, account: ChargedAccount) -> StoreError {
    let id: String = account.0.iter().map(|octet| format!("{octet:02x}")).collect();
    bad(&format!("`usage_record` with router {router} and account {id}"), "it has no count")
}

/// The number in a column of a table whose name begins with `usage`.
pub(super) fn number<T: TryFrom<i64>>(read: &AnyRow, at: usize) -> Result<T, StoreError> {
    let value: i64 = read.try_get(at)?;
    T::try_from(value).map_err(|_| bad("`usage_…`", "it has a number that is out of range"))
}

pub(super) fn optional(read: &AnyRow, at: usize) -> Result<Option<u64>, StoreError> {
    let value: Option<i64> = read.try_get(at)?;
    let number =
        |value| u64::try_from(value).map_err(|_| bad("`usage_router`", "it has a number that is out of range"));
    value.map(number).transpose()
}

pub(super) fn router_number(read: &AnyRow, at: usize) -> Result<RouterNumber, StoreError> {
    number(read, at)
}

pub(super) fn journal_of(read: &AnyRow, at: usize) -> Result<JournalId, StoreError> {
    let octets: Vec<u8> = read.try_get(at)?;
    Ok(JournalId(octets.try_into().map_err(|_| bad("`usage_journal`", "it has no journal's identity"))?))
}

pub(super) fn account_of(read: &AnyRow, at: usize) -> Result<ChargedAccount, StoreError> {
    let octets: Vec<u8> = read.try_get(at)?;
    Ok(ChargedAccount(octets.try_into().map_err(|_| bad("`usage_record`", "it has no account"))?))
}

pub(super) fn usage(read: &AnyRow, at: usize) -> Result<Usage, StoreError> {
    let [packets, octets]: [u64; 2] = [number(read, at)?, number(read, at + 1)?];
    Ok(Usage { packets: packets.into(), octets: octets.into() })
}
