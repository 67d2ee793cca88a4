//! What routers reported: totals of their accounts, and statements of them.
//!
//! The rules are those of [`Ledger`], which is put together here from the records that a step touches, and knows no database. Each step is a
//! transaction that holds the one row of `usage_head`: several key servers take turns.

mod closing;
mod import;
mod months;
mod percentiles;
mod records;
mod reports;
mod rows;
mod statements;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use sqlx::{AnyConnection, Row as _, query};
use wayleave_control::capability::{AccountPeriods, ChargedAccount, Ledger, RouterNumber};

use self::rows::{number, optional, router_number};
use crate::database::Transaction;
use crate::error::StoreError;
use crate::store::Store;
use crate::table::signed;

pub use self::closing::Closing;
pub use self::records::{MANY_OF_PAYER, MAX_OF_PAYER};
pub use self::statements::{Details, StatementSums, UsageStatement};

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
}

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
