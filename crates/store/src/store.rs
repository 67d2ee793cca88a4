//! The store itself: loading a state, following changes, making one, and adopting a database that was set back.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt;
use sqlx::any::AnyRow;
use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::postgres::PgListener;
use sqlx::{AnyConnection, Executor, Row as _, query};
use tokio::time::Instant;
use wayleave_control::capability::{
    BillingRecord, BillingSubject, Change, ChangeBody, ChangesEnd, Position, ProviderKey, Row, RowEffects, RowError,
    RowKey, RowKind, State, TIMES,
};
use wayleave_crypto::signed::Signed;

use crate::authentic::{ChangeParts, StoreKey, Total, adoption, is_mac};
use crate::database::{Database, Location, Transaction};
use crate::error::StoreError;
use crate::table::{Column, Table, columns, name_of, name_of_key, signed, table};
use crate::usage::SeenUsage;

/// The schema's versions, the latest last. One that was released never changes.
const MIGRATIONS: &[(i64, &str, &str)] = &[
    (1, "begin", include_str!("../migrations/1_begin.sql")),
    (2, "rates", include_str!("../migrations/2_rates.sql")),
    (3, "usage", include_str!("../migrations/3_usage.sql")),
    (4, "lessor", include_str!("../migrations/4_lessor.sql")),
    (5, "sources", include_str!("../migrations/5_sources.sql")),
    (6, "sale", include_str!("../migrations/6_sale.sql")),
    (7, "removed", include_str!("../migrations/7_removed.sql")),
    (8, "limits", include_str!("../migrations/8_limits.sql")),
    (9, "volumes", include_str!("../migrations/9_volumes.sql")),
];
/// How often a state is read again because a change came meanwhile.
const LOADS: usize = 16;
/// Changes that are read at a time.
const PORTION: i64 = 4_096;
/// Rows that are taken away by one statement, at most.
const REMOVED: usize = 500;
/// Revocations that have expired and are taken away with a change.
const PURGED: i64 = 64;
/// Times by which it is judged what has expired.
const SETTLING: usize = 256;
/// An adopted database goes on at least this far above what was seen: others may have seen more.
const ABOVE: u64 = 1 << 20;
/// The kind of a change by which an operator adopts a database that was set back.
const ADOPTION: &str = "adoption";
/// And by which the records of a file were brought over.
const IMPORT: &str = "import";
/// PostgreSQL tells who listens that there is a change.
const NOTIFY: &str = "NOTIFY wayleave_change";
const CHANNEL: &str = "wayleave_change";
/// SQLSTATE of PostgreSQL's `undefined_table`, and SQLite's result code for what a statement names and the schema lacks.
const NO_TABLE: [&str; 2] = ["42P01", "1"];
/// How soon it is listened again.
const RECONNECT: Duration = Duration::from_secs(1);
/// How long a server that starts waits for its database, and how soon it tries that again.
const PATIENCE: Duration = Duration::from_secs(30);
const RETRY: Duration = Duration::from_millis(200);

/// A provider's store.
#[derive(Clone, Debug)]
pub struct Store {
    pub(crate) database: Database,
    pub(crate) key: StoreKey,
    place: Location,
    pub(crate) usage: Arc<SeenUsage>,
}

/// Who makes a change, and why: for the audit trail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Note<'a> {
    pub actor: &'a str,
    pub reason: &'a str,
}

/// What became of a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Appended {
    /// It is durable.
    Done,
    /// Others came before it: nothing was written. Follow them, and decide again.
    Others,
}

/// Repeats what a database could not do now, as often as may help a server that starts: for half a minute with PostgreSQL, which may be
/// starting too, and not at all with a file. `waits` is called with the first reason.
///
/// # Errors
/// The last one.
pub async fn patiently<T, F: Future<Output = Result<T, StoreError>>>(
    place: &Location,
    mut step: impl FnMut() -> F,
    waits: impl FnOnce(&StoreError),
) -> Result<T, StoreError> {
    let (until, mut waits) = (Instant::now() + PATIENCE, Some(waits));
    loop {
        match step().await {
            Err(error) if error.is_passing() && matches!(place, Location::Postgres(_)) && Instant::now() < until => {
                waits.take().into_iter().for_each(|waits| waits(&error));
                tokio::time::sleep(RETRY).await;
            }
            outcome => return outcome,
        }
    }
}

/// A state, and where the changes end that made it.
pub struct Loaded {
    pub state: State,
    pub position: Position,
}

/// A change as the database has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recorded {
    pub position: Position,
    /// Unix second.
    pub issued: u64,
    pub actor: String,
    pub reason: String,
    /// None if it is an adoption or an import: after it the state is loaded anew.
    pub change: Option<Signed<Change>>,
}

/// When a row is taken away.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Removal {
    /// It has to be there.
    Needed,
    /// Another takes its place, that a key server takes for new: it may be a revocation that had expired, and nothing else.
    IfExpired,
}

/// A row with what authenticates it.
struct Authentic {
    row: Row,
    mac: [u8; 32],
}

/// The last change, and the sum over the rows that it left.
#[derive(Clone, Copy, Default)]
struct End {
    position: Position,
    total: Total,
}

impl Store {
    /// Connects to a database that has a store, and brings its tables to this version.
    ///
    /// # Errors
    /// If it cannot be used, or has none.
    pub async fn open(place: &Location, key: StoreKey) -> Result<Self, StoreError> {
        let database = Database::connect(place, false).await?;
        let has_store = query("SELECT number FROM head").fetch_optional(&database.pool).await;
        if let Err(sqlx::Error::Database(error)) = &has_store
            && error.code().is_some_and(|code| NO_TABLE.contains(&code.as_ref()))
        {
            return Err(StoreError::Schema(format!("{}; `wayleave cap init` makes one", error.message())));
        }
        has_store?;
        migrate(&database).await?;
        Ok(Self { database, key, place: place.clone(), usage: Arc::default() })
    }

    /// The same, for a server that starts: a database that cannot be used yet is waited for ([`patiently`]).
    ///
    /// # Errors
    /// If it still cannot be used, or has no store.
    pub async fn open_patiently(
        place: &Location,
        key: &StoreKey,
        waits: impl FnOnce(&StoreError),
    ) -> Result<Self, StoreError> {
        patiently(place, || Self::open(place, key.clone()), waits).await
    }

    /// Makes the tables of a store in a database that has none; a SQLite file is made. One that is there is left as it is.
    ///
    /// # Errors
    /// If that is not possible.
    pub async fn create(place: &Location, key: StoreKey) -> Result<Self, StoreError> {
        let database = Database::connect(place, true).await?;
        migrate(&database).await?;
        Ok(Self { database, key, place: place.clone(), usage: Arc::default() })
    }

    #[must_use]
    pub fn place(&self) -> &Location {
        &self.place
    }

    /// Closes all connections: whoever is the last of a SQLite file leaves everything in that one file.
    pub async fn close(&self) {
        self.database.pool.close().await;
    }

    /// Calls `hint` whenever somebody has changed a PostgreSQL database, for ever; of a SQLite file it never does. It is a hint: some may be
    /// lost.
    pub async fn listen(place: Location, hint: impl Fn()) {
        let Location::Postgres(uri) = place else { return };
        loop {
            if let Ok(mut listener) = PgListener::connect(&uri).await
                && listener.listen(CHANNEL).await.is_ok()
            {
                while listener.try_recv().await.is_ok() {
                    hint();
                }
            }
            tokio::time::sleep(RECONNECT).await;
        }
    }

    /// Where the changes end.
    ///
    /// # Errors
    /// If the database cannot be used, or its last change is not what a key server wrote.
    pub async fn position(&self) -> Result<Position, StoreError> {
        self.database.check_in_place()?;
        let mut connection = self.database.pool.acquire().await?;
        Ok(self.end(&mut connection).await?.position)
    }

    async fn end(&self, connection: &mut AnyConnection) -> Result<End, StoreError> {
        let head = query("SELECT number FROM head WHERE id = 1").fetch_one(&mut *connection).await?;
        let number: i64 = head.try_get(0)?;
        if number == 0 {
            return Ok(End::default());
        }
        let last = query(SELECT_CHANGE_AT).bind(number).fetch_optional(&mut *connection).await?;
        let last = last.ok_or(StoreError::Rows(number.unsigned_abs()))?;
        let (recorded, total) = self.recorded(&last)?;
        Ok(End { position: recorded.position, total })
    }

    /// Everything in the database, authenticated. It has to continue what was seen of it.
    ///
    /// # Errors
    /// Which row is wrong, or that rows are missing or came back.
    pub async fn load(&self, provider: &ProviderKey, seen: Option<&Position>) -> Result<Loaded, StoreError> {
        self.database.check_in_place()?;
        let mut connection = self.database.pool.acquire().await?;
        for _ in 0..LOADS {
            let end = self.end(&mut connection).await?;
            if let Some(seen) = seen {
                self.check_continues(&mut connection, seen, &end.position).await?;
            }
            let read = self.rows(&mut connection).await;
            let past = self.past(&mut connection, end.position).await;
            // What was read while a change came is of no one state.
            if self.end(&mut connection).await?.position != end.position {
                continue;
            }
            let (rows, total) = read?;
            if total != end.total {
                return Err(StoreError::Rows(end.position.number));
            }
            let (issued, times) = past?;
            let end_of = ChangesEnd { number: end.position.number, last: end.position.digest, issued, times };
            let state = State::from_rows::<RowError>(provider.clone(), &end_of, rows.into_iter().map(Ok));
            let state = state.map_err(|error| StoreError::State(error.to_string()))?;
            return Ok(Loaded { state, position: end.position });
        }
        Err(StoreError::Unavailable("changes come all the time".to_owned()))
    }

    /// All rows, and their sum.
    async fn rows(&self, connection: &mut AnyConnection) -> Result<(Vec<Row>, Total), StoreError> {
        let (mut rows, mut keys, mut total) = (Vec::new(), HashSet::new(), Total::default());
        for kind in RowKind::ALL {
            let select = format!("{} ORDER BY made, id", select(kind));
            let mut stream = query(&select).fetch(&mut *connection);
            while let Some(read) = stream.try_next().await? {
                let Authentic { row, mac } = self.authentic(kind, &read)?;
                total.add(&self.key.element(&mac));
                // Where the tables have no primary keys any more.
                if !keys.insert(row.key()) {
                    return Err(StoreError::Row { row: name_of_key(&row.key()), what: "it is there twice" });
                }
                rows.push(row);
            }
        }
        Ok((rows, total))
    }

    /// When the last changes were signed, which follow on each other, and the latest times, of earlier timelines too.
    async fn past(&self, connection: &mut AnyConnection, end: Position) -> Result<(Vec<u64>, Vec<u64>), StoreError> {
        let select = format!("{SELECT_CHANGE} WHERE number <= $1 ORDER BY number DESC LIMIT {TIMES}");
        let mut past = Vec::new();
        for read in query(&select).bind(signed(end.number)).fetch_all(&mut *connection).await? {
            past.push(self.recorded(&read)?.0);
        }
        past.reverse();
        for pair in past.windows(2) {
            check_follows(&pair[0].position, &pair[1])?;
        }
        let times = past[past.len().saturating_sub(SETTLING)..].iter().map(|recorded| recorded.issued).collect();
        // What is before an adoption is of another timeline.
        let own = past.iter().filter(|recorded| recorded.position.timeline == end.timeline);
        Ok((own.map(|recorded| recorded.issued).collect(), times))
    }

    /// The changes behind one, in order, 4,096 at most; none if it is the last; from the adoption on, if the database was adopted
    /// since. It has to continue what is held.
    ///
    /// # Errors
    /// If it does not, or cannot be used.
    pub async fn changes_after(&self, held: &Position) -> Result<Vec<Recorded>, StoreError> {
        self.database.check_in_place()?;
        let mut connection = self.database.pool.acquire().await?;
        let end = self.end(&mut connection).await?.position;
        if end == *held {
            return Ok(Vec::new());
        }
        self.check_has(&mut connection, held, &end).await?;
        // What others did on the timeline that an operator ended is in the state that was adopted.
        let is_behind_adoption = end.timeline > held.timeline;
        let (which, after) = if is_behind_adoption { ("timeline", held.timeline) } else { ("number", held.number) };
        let select = format!("{SELECT_CHANGE} WHERE {which} > $1 ORDER BY number LIMIT {PORTION}");
        let mut changes: Vec<Recorded> = Vec::new();
        for read in query(&select).bind(signed(after)).fetch_all(&mut *connection).await? {
            let (recorded, _) = self.recorded(&read)?;
            match changes.last() {
                Some(before) => check_follows(&before.position, &recorded)?,
                None if is_behind_adoption && recorded.change.is_some() => return Err(StoreError::Rows(end.number)),
                None if is_behind_adoption => {}
                None => check_follows(held, &recorded)?,
            }
            changes.push(recorded);
        }
        Ok(changes)
    }

    /// The changes behind a number, or the last ones, in order, `most` of them: of one principal, or all.
    ///
    /// # Errors
    /// If the database cannot be used, or one of them is not what a key server wrote.
    pub async fn trail(
        &self,
        after: Option<u64>,
        most: usize,
        principal: Option<u32>,
    ) -> Result<Vec<Recorded>, StoreError> {
        let mut connection = self.database.pool.acquire().await?;
        let (order, after) = after.map_or(("DESC", 0), |after| ("", after));
        let of = if principal.is_some() { " AND principal = $2" } else { "" };
        let select = format!("{SELECT_CHANGE} WHERE number > $1{of} ORDER BY number {order} LIMIT {most}");
        let mut select = query(&select).bind(signed(after));
        if let Some(principal) = principal {
            select = select.bind(i64::from(principal));
        }
        let mut changes = Vec::new();
        for read in select.fetch_all(&mut *connection).await? {
            changes.push(self.recorded(&read)?.0);
        }
        changes.sort_unstable_by_key(|recorded| recorded.position.number);
        Ok(changes)
    }

    /// Whether the database continues what was seen of it.
    ///
    /// # Errors
    /// If it was set back, or is another's.
    pub async fn check(&self, seen: &Position) -> Result<(), StoreError> {
        self.database.check_in_place()?;
        let mut connection = self.database.pool.acquire().await?;
        let end = self.end(&mut connection).await?.position;
        self.check_continues(&mut connection, seen, &end).await
    }

    /// Whether the database has what was seen, and all that led from there to its end.
    async fn check_continues(
        &self,
        connection: &mut AnyConnection,
        seen: &Position,
        end: &Position,
    ) -> Result<(), StoreError> {
        match self.check_has(connection, seen, end).await? {
            Some(from) => self.check_chain(connection, from, end).await,
            None => Ok(()),
        }
    }

    /// Whether the database has the change that somebody has seen, or was adopted above it since.
    ///
    /// # Errors
    /// If it cannot be used, or was changed by somebody else.
    pub async fn has(&self, seen: &Position) -> Result<bool, StoreError> {
        self.database.check_in_place()?;
        let mut connection = self.database.pool.acquire().await?;
        let end = self.end(&mut connection).await?.position;
        match self.check_has(&mut connection, seen, &end).await {
            Ok(_) => Ok(true),
            Err(StoreError::Behind { .. } | StoreError::Fork(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether the database has the change that was seen, or was adopted above it since. Returns from where on it is to be followed, if it
    /// goes on.
    async fn check_has(
        &self,
        connection: &mut AnyConnection,
        seen: &Position,
        end: &Position,
    ) -> Result<Option<Position>, StoreError> {
        let behind = StoreError::Behind { held: seen.number, got: end.number };
        if seen.number == 0 || seen == end {
            return Ok(None);
        }
        if end.timeline < seen.timeline || end.number < seen.number {
            return Err(behind);
        }
        if end.timeline > seen.timeline {
            // It was adopted above what was seen, or below.
            let select = format!("{SELECT_CHANGE} WHERE timeline > $1 ORDER BY number LIMIT 1");
            let first = query(&select).bind(signed(seen.timeline)).fetch_optional(&mut *connection).await?;
            let first = first.map(|read| self.recorded(&read)).transpose()?.map(|(recorded, _)| recorded);
            return match first {
                Some(first) if first.position.number > seen.number && first.change.is_none() => {
                    Ok(Some(first.position))
                }
                _ => Err(behind),
            };
        }
        let at = query(SELECT_CHANGE_AT).bind(signed(seen.number)).fetch_optional(&mut *connection).await?;
        let at = at.map(|read| self.recorded(&read)).transpose()?.map(|(recorded, _)| recorded.position);
        if at == Some(*seen) { Ok(Some(*seen)) } else { Err(StoreError::Fork(seen.number)) }
    }

    /// Whether each change up to the end follows on the one before: a change that was seen may have been put into another history.
    async fn check_chain(
        &self,
        connection: &mut AnyConnection,
        mut before: Position,
        end: &Position,
    ) -> Result<(), StoreError> {
        let select = format!("{SELECT_CHANGE} WHERE number > $1 ORDER BY number LIMIT {PORTION}");
        while before.number < end.number {
            let portion = query(&select).bind(signed(before.number)).fetch_all(&mut *connection).await?;
            if portion.is_empty() {
                return Err(StoreError::Rows(end.number));
            }
            for read in portion {
                let (recorded, _) = self.recorded(&read)?;
                check_follows(&before, &recorded)?;
                before = recorded.position;
            }
        }
        Ok(())
    }

    /// Makes a change durable, with what it does to the rows, if it is the next one. `held` is where the state ends for which it was
    /// decided; `settled` the Unix second at which the last changes had been signed ([`State::settled`]): revocations that had expired
    /// then are taken away.
    ///
    /// # Errors
    /// If it was not written; after [`StoreError::Unavailable`] it may have been: follow the changes to see.
    pub async fn append(
        &self,
        held: &Position,
        change: &Signed<Change>,
        effects: &RowEffects,
        (settled, note): (u64, Note<'_>),
    ) -> Result<Appended, StoreError> {
        let object = change.object();
        let position = Position { timeline: held.timeline, number: object.number, digest: change.digest() };
        self.database.check_in_place()?;
        let mut transaction = self.database.begin().await?;
        let Some(mut total) = self.lock(&mut transaction, held, position.number).await? else {
            transaction.roll_back().await?;
            return Ok(Appended::Others);
        };
        let needed = effects.gone.iter().cloned().map(|key| (key, Removal::Needed));
        self.remove_those_there(&mut transaction, &effects.expired, &mut total).await?;
        let made = effects.made.iter().map(|row| (row.key(), Removal::IfExpired));
        for (key, when) in needed.chain(made) {
            self.remove(&mut transaction, (&key, when, settled), &mut total).await?;
        }
        self.purge(&mut transaction, settled, &mut total).await?;
        for row in &effects.changed {
            let made = self.remove(&mut transaction, (&row.key(), Removal::Needed, settled), &mut total).await?;
            self.insert(&mut transaction, (position.number, made), row, &mut total).await?;
        }
        for row in &effects.made {
            self.insert(&mut transaction, (position.number, None), row, &mut total).await?;
        }
        let kind = kind(&object.body);
        let principal = principal_of(&object.body, effects);
        let written = Written { position, issued: object.issued, kind, principal, note, content: change.octets() };
        self.record(&mut transaction, &written, total).await?;
        if self.database.is_postgres() {
            transaction.execute(NOTIFY).await?;
        }
        transaction.commit().await?;
        // What was written to a file that has just been replaced is lost.
        self.database.check_in_place()?;
        Ok(Appended::Done)
    }

    /// Takes the place of the next change. Returns the sum over all rows; `None` if others came before.
    async fn lock(
        &self,
        transaction: &mut Transaction,
        held: &Position,
        number: u64,
    ) -> Result<Option<Total>, StoreError> {
        let take = query("UPDATE head SET number = $1 WHERE id = 1 AND number = $2");
        let taken = take.bind(signed(number)).bind(signed(held.number)).execute(&mut **transaction).await?;
        if taken.rows_affected() != 1 {
            let end = self.end(transaction).await?.position;
            self.check_has(transaction, held, &end).await?;
            return Ok(None);
        }
        if held.number == 0 {
            return Ok(Some(Total::default()));
        }
        let last = query(SELECT_CHANGE_AT).bind(signed(held.number)).fetch_optional(&mut **transaction).await?;
        let (last, total) = self.recorded(&last.ok_or(StoreError::Rows(held.number))?)?;
        if last.position == *held { Ok(Some(total)) } else { Err(StoreError::Fork(held.number)) }
    }

    /// Takes a row away. Returns which change made it, if it is there.
    async fn remove(
        &self,
        transaction: &mut Transaction,
        (key, when, settled): (&RowKey, Removal, u64),
        total: &mut Total,
    ) -> Result<Option<i64>, StoreError> {
        let select = format!("{} WHERE id = $1", select(key.kind));
        let read = query(&select).bind(key.id.clone()).fetch_optional(&mut **transaction).await?;
        let Some(read) = read else {
            let missing = || StoreError::Row { row: name_of_key(key), what: "it is missing" };
            return if when == Removal::Needed { Err(missing()) } else { Ok(None) };
        };
        let Authentic { row, mac } = self.authentic(key.kind, &read)?;
        let is_expired = matches!(&row, Row::Revocation(of) if of.expires_at().is_some_and(|second| second <= settled));
        if when == Removal::IfExpired && !is_expired {
            let what = "no key server knows of it: somebody brought it back";
            return Err(StoreError::Row { row: name_of_key(key), what });
        }
        total.subtract(&self.key.element(&mac));
        let delete = format!("DELETE FROM {} WHERE id = $1", table(key.kind).name);
        let deleted = query(&delete).bind(key.id.clone()).execute(&mut **transaction).await?;
        if deleted.rows_affected() != 1 {
            return Err(StoreError::Row { row: name_of_key(key), what: "it is there twice" });
        }
        Ok(Some(read.try_get("made")?))
    }

    /// Takes those of some rows away that are there, many at a time.
    async fn remove_those_there(
        &self,
        transaction: &mut Transaction,
        keys: &[RowKey],
        total: &mut Total,
    ) -> Result<(), StoreError> {
        for kind in RowKind::ALL {
            let ids: Vec<&Vec<u8>> = keys.iter().filter(|key| key.kind == kind).map(|key| &key.id).collect();
            for portion in ids.chunks(REMOVED) {
                let places: Vec<String> = (1..=portion.len()).map(|place| format!("${place}")).collect();
                let those = format!("WHERE id IN ({})", places.join(", "));
                let (select, delete) =
                    (format!("{} {those}", select(kind)), format!("DELETE FROM {} {those}", table(kind).name));
                let bound = |of| portion.iter().fold(query(of), |query, id| query.bind((*id).clone()));
                let there = bound(&select).fetch_all(&mut **transaction).await?;
                for read in &there {
                    total.subtract(&self.key.element(&self.authentic(kind, read)?.mac));
                }
                let deleted = bound(&delete).execute(&mut **transaction).await?;
                if deleted.rows_affected() != there.len() as u64 {
                    return Err(StoreError::Unavailable("rows went while they were taken away".to_owned()));
                }
            }
        }
        Ok(())
    }

    async fn purge(&self, transaction: &mut Transaction, settled: u64, total: &mut Total) -> Result<(), StoreError> {
        let kind = RowKind::Revocation;
        let select = format!("{} WHERE expires_at <= $1 LIMIT {PURGED}", select(kind));
        for read in query(&select).bind(signed(settled)).fetch_all(&mut **transaction).await? {
            let key = self.authentic(kind, &read)?.row.key();
            self.remove(transaction, (&key, Removal::Needed, settled), total).await?;
        }
        Ok(())
    }

    async fn insert(
        &self,
        transaction: &mut Transaction,
        (number, made): (u64, Option<i64>),
        row: &Row,
        total: &mut Total,
    ) -> Result<(), StoreError> {
        let Table { name, columns: names } = table(row.kind());
        let places: Vec<String> = (1..=names.len() + 5).map(|place| format!("${place}")).collect();
        let insert = format!(
            "INSERT INTO {name} (id, change, made, content, mac, {}) VALUES ({})",
            names.join(", "),
            places.join(", ")
        );
        let content = row.encode();
        let mac = self.key.row(number, &content);
        total.add(&self.key.element(&mac));
        let mut insert = query(&insert).bind(row.key().id).bind(signed(number)).bind(made.unwrap_or(signed(number)));
        insert = insert.bind(content).bind(mac.to_vec());
        for value in columns(row) {
            insert = match value {
                Column::Number(value) => insert.bind(value),
                Column::Text(value) => insert.bind(value),
            };
        }
        insert.execute(&mut **transaction).await?;
        Ok(())
    }

    async fn record(
        &self,
        transaction: &mut Transaction,
        written: &Written<'_>,
        total: Total,
    ) -> Result<(), StoreError> {
        let Written { position: Position { timeline, number, digest }, issued, kind, principal, note, content } =
            written;
        let parts = ChangeParts {
            number: *number,
            timeline: *timeline,
            issued: *issued,
            actor: note.actor,
            reason: note.reason,
            digest,
            content,
            principal: *principal,
            total,
        };
        let mac = self.key.change(&parts);
        let masked = self.key.mask(total, &mac);
        let insert = query(
            "INSERT INTO change (number, timeline, issued_at, kind, principal, actor, reason, digest, content, total, mac)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
        );
        let insert = insert.bind(signed(*number)).bind(signed(*timeline)).bind(signed(*issued)).bind(*kind);
        let insert = insert.bind(principal.map(i64::from)).bind(note.actor).bind(note.reason).bind(digest.to_vec());
        let insert = insert.bind(content.to_vec()).bind(masked.octets().to_vec());
        insert.bind(mac.to_vec()).execute(&mut **transaction).await?;
        Ok(())
    }

    /// What billing knows of a principal's account and grants.
    pub(crate) async fn billing_of(
        &self,
        connection: &mut AnyConnection,
        principal: u32,
    ) -> Result<Vec<(BillingSubject, BillingRecord)>, StoreError> {
        let select = format!("{} WHERE principal = $1 ORDER BY id", select(RowKind::Billing));
        let mut found = Vec::new();
        for read in query(&select).bind(i64::from(principal)).fetch_all(&mut *connection).await? {
            if let Row::Billing { of, record } = self.authentic(RowKind::Billing, &read)?.row {
                found.push((of, record));
            }
        }
        Ok(found)
    }

    /// A row, if a key server wrote it and its columns say what it says.
    fn authentic(&self, kind: RowKind, read: &AnyRow) -> Result<Authentic, StoreError> {
        let Table { columns: names, .. } = table(kind);
        let (id, change): (Vec<u8>, i64) = (read.try_get(0)?, read.try_get(1)?);
        let (content, mac): (Vec<u8>, Vec<u8>) = (read.try_get(2)?, read.try_get(3)?);
        let row = Row::decode(&content);
        let expected = row.as_ref().map(columns).unwrap_or_default();
        let mut shown = Vec::new();
        for (at, _) in names.iter().enumerate() {
            let is_text = matches!(expected.get(at), Some(Column::Text(_)));
            shown.push(if is_text {
                Column::Text(read.try_get(4 + at)?)
            } else {
                // Of a row that is none, and a column that is a text, nothing is shown.
                Column::Number(read.try_get(4 + at).unwrap_or_default())
            });
        }
        let refused = |what| StoreError::Row { row: name_of(kind, &shown), what };
        let change = u64::try_from(change).map_err(|_| refused("its change has a negative number"))?;
        let expected_mac = self.key.row(change, &content);
        if !is_mac(&mac, &expected_mac) {
            return Err(refused("its MAC is not that of its content and change"));
        }
        let row = row.map_err(|_| refused("a later version wrote it"))?;
        if row.key() != (RowKey { kind, id }) {
            return Err(refused("it is in the place of another"));
        }
        if shown != expected {
            return Err(refused("its columns do not say what its content says"));
        }
        Ok(Authentic { row, mac: expected_mac })
    }

    /// A change, if a key server wrote it, and the sum over the rows that it left.
    fn recorded(&self, read: &AnyRow) -> Result<(Recorded, Total), StoreError> {
        let numbers: [i64; 3] = [read.try_get(0)?, read.try_get(1)?, read.try_get(2)?];
        let refused = |what| StoreError::Row { row: format!("change {}", numbers[0]), what };
        let unsigned = |at: usize| u64::try_from(numbers[at]).map_err(|_| refused("it has a negative number"));
        let [number, timeline, issued] = [unsigned(0)?, unsigned(1)?, unsigned(2)?];
        let principal: Option<i64> = read.try_get(10)?;
        let principal = principal.map(u32::try_from).transpose().map_err(|_| refused("it is of no principal"))?;
        let (kind, actor, reason): (String, String, String) = (read.try_get(3)?, read.try_get(4)?, read.try_get(5)?);
        let octets: [Vec<u8>; 4] = [read.try_get(6)?, read.try_get(7)?, read.try_get(8)?, read.try_get(9)?];
        let [digest, content, total, mac] = octets;
        let digest = digest.try_into().map_err(|_| refused("it has no digest"))?;
        let total = total.try_into().map_err(|_| refused("it has no sum"))?;
        let total = self.key.mask(Total::from_octets(total), &mac);
        let (actor_of, reason_of) = (actor.as_str(), reason.as_str());
        let parts = ChangeParts {
            number,
            timeline,
            issued,
            actor: actor_of,
            reason: reason_of,
            digest: &digest,
            content: &content,
            principal,
            total,
        };
        if !is_mac(&mac, &self.key.change(&parts)) {
            return Err(refused("its MAC is not that of what it says"));
        }
        let change = if content.is_empty() {
            None
        } else {
            let change = Signed::<Change>::decode(&content).map_err(|_| refused("a later version wrote it"))?;
            if change.digest() != digest || change.object().number != number {
                return Err(refused("it is another change"));
            }
            Some(change)
        };
        let is_expected = match &change {
            Some(change) => kind == self::kind(&change.object().body),
            None => [ADOPTION, IMPORT].contains(&kind.as_str()),
        };
        if !is_expected {
            return Err(refused("its columns do not say what its content says"));
        }
        let position = Position { timeline, number, digest };
        Ok((Recorded { position, issued, actor, reason, change }, total))
    }

    /// Copies a SQLite file as it is at one moment to a new one. It needs no key.
    ///
    /// # Errors
    /// If it cannot be read, or the copy not be written.
    pub async fn copy(from: &Location, to: &Path) -> Result<(), StoreError> {
        let database = Database::connect(from, false).await?;
        // Nobody else reads it; SQLite writes into an empty file that is there.
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(to);
        made.map_err(|error| StoreError::Unavailable(format!("{}: {error}", to.display())))?;
        query("VACUUM INTO $1").bind(to.to_string_lossy().into_owned()).execute(&database.pool).await?;
        database.pool.close().await;
        Ok(())
    }

    /// Writes a state that was kept elsewhere, up to this change, to a store without a change.
    ///
    /// # Errors
    /// If it has changes already, or cannot be used.
    pub async fn import(
        &self,
        rows: &[Row],
        position: Position,
        (issued, note): (u64, Note<'_>),
    ) -> Result<(), StoreError> {
        if position.number == 0 {
            let is_empty = self.position().await?.number == 0;
            return if is_empty { Ok(()) } else { Err(StoreError::Imported) };
        }
        let mut transaction = self.database.begin().await?;
        let begins = self.lock(&mut transaction, &Position::default(), position.number).await?;
        let mut total = begins.ok_or(StoreError::Imported)?;
        for row in rows {
            self.insert(&mut transaction, (position.number, None), row, &mut total).await?;
        }
        let written = Written { position, issued, kind: IMPORT, principal: None, note, content: &[] };
        self.record(&mut transaction, &written, total).await?;
        transaction.commit().await?;
        Ok(())
    }

    /// Accepts a database that is behind what was seen, for all key servers: its state counts from here on, on a new timeline whose numbers
    /// lie above `seen` and above its own.
    ///
    /// # Errors
    /// If its rows are not those that its last change left.
    pub async fn adopt(
        &self,
        provider: &ProviderKey,
        (seen, issued): (Option<Position>, u64),
        note: Note<'_>,
    ) -> Result<Position, StoreError> {
        let held = self.load(provider, None).await?.position;
        let most = |of: fn(&Position) -> u64| of(&held).max(seen.as_ref().map_or(0, of));
        let timeline = most(|position| position.timeline) + 1;
        let number = (most(|position| position.number) / ABOVE + 2) * ABOVE;
        let position = Position { timeline, number, digest: adoption(&held.digest, timeline, number) };
        let mut transaction = self.database.begin().await?;
        let Some(total) = self.lock(&mut transaction, &held, number).await? else {
            return Err(StoreError::Unavailable("another change came meanwhile".to_owned()));
        };
        let written = Written { position, issued, kind: ADOPTION, principal: None, note, content: &[] };
        self.record(&mut transaction, &written, total).await?;
        if self.database.is_postgres() {
            transaction.execute(NOTIFY).await?;
        }
        transaction.commit().await?;
        Ok(position)
    }
}

/// A change as it is written.
struct Written<'a> {
    position: Position,
    issued: u64,
    kind: &'static str,
    principal: Option<u32>,
    note: Note<'a>,
    content: &'a [u8],
}

const SELECT_CHANGE: &str =
    "SELECT number, timeline, issued_at, kind, actor, reason, digest, content, total, mac, principal FROM change";
const SELECT_CHANGE_AT: &str = "SELECT number, timeline, issued_at, kind, actor, reason, digest, content, total, mac, principal FROM change WHERE number = $1";

fn select(kind: RowKind) -> String {
    let Table { name, columns } = table(kind);
    format!("SELECT id, change, content, mac, {}, made FROM {name}", columns.join(", "))
}

/// Whether a change follows on the one before.
fn check_follows(before: &Position, recorded: &Recorded) -> Result<(), StoreError> {
    let Position { timeline, number, digest } = recorded.position;
    let follows = match &recorded.change {
        // What was brought over begins.
        None if before.number == 0 => timeline == 0,
        Some(change) => {
            timeline == before.timeline && number == before.number + 1 && change.object().previous == before.digest
        }
        None => {
            timeline > before.timeline && number > before.number && adoption(&before.digest, timeline, number) == digest
        }
    };
    if follows { Ok(()) } else { Err(StoreError::Fork(number)) }
}

async fn migrate(database: &Database) -> Result<(), StoreError> {
    let each = MIGRATIONS.iter().map(|(version, name, sql)| {
        Migration::new(*version, Cow::Borrowed(*name), MigrationType::Simple, Cow::Borrowed(*sql), false)
    });
    let migrator = Migrator { migrations: Cow::Owned(each.collect()), ..Migrator::DEFAULT };
    migrator.run(&database.pool).await.map_err(|error| match error {
        sqlx::migrate::MigrateError::Execute(error) | sqlx::migrate::MigrateError::ExecuteMigration(error, _) => {
            error.into()
        }
        sqlx::migrate::MigrateError::VersionMissing(version) => {
            StoreError::Schema(format!("it has version {version} of the tables: update this program"))
        }
        other => StoreError::Schema(other.to_string()),
    })
}

fn principal_of(body: &ChangeBody, effects: &RowEffects) -> Option<u32> {
    let of_rows = effects.made.iter().chain(&effects.changed).map(|row| row.principal().number()).next();
    of_rows.or(match body {
        ChangeBody::Close { principal } => Some(principal.number()),
        ChangeBody::Withdraw(terms) | ChangeBody::WithdrawBranch(terms) => Some(terms.principal.number()),
        ChangeBody::Lift(revocation) => Some(revocation.principal.number()),
        ChangeBody::EndRate(payer) | ChangeBody::LimitDelegation { payer, .. } => Some(payer.principal.number()),
        ChangeBody::SetSources(sources) => Some(sources.principal.number()),
        ChangeBody::SetBilling { of, .. } => Some(of.principal.number()),
        ChangeBody::EndQuota { principal } => Some(principal.number()),
        ChangeBody::Several(bodies) => bodies.iter().find_map(|body| principal_of(body, &RowEffects::default())),
        _ => None,
    })
}

/// What a change does, for people.
fn kind(body: &ChangeBody) -> &'static str {
    match body {
        ChangeBody::Account { .. } => "account",
        ChangeBody::Close { .. } => "close",
        ChangeBody::Grant(_) => "grant",
        ChangeBody::Withdraw(_) => "withdraw",
        ChangeBody::Revoke(_) => "revoke",
        ChangeBody::Lift(_) => "lift",
        ChangeBody::Invite(_) => "invite",
        ChangeBody::Redeem { .. } => "redeem",
        ChangeBody::Uninvite(_) => "uninvite",
        ChangeBody::WithdrawBranch(_) => "withdraw-branch",
        ChangeBody::WithdrawDelegation { .. } => "withdraw-delegation",
        ChangeBody::SetRate { .. } => "set-rate",
        ChangeBody::EndRate(_) => "end-rate",
        ChangeBody::SetSources(_) => "set-sources",
        ChangeBody::SetBilling { .. } => "set-billing",
        ChangeBody::SetQuota { .. } => "set-quota",
        ChangeBody::EndQuota { .. } => "end-quota",
        ChangeBody::UseUpQuota { .. } => "use-up-quota",
        ChangeBody::LimitDelegation { .. } => "limit-delegation",
        ChangeBody::Several(_) => "several",
    }
}
