//! What an earlier version kept in a file.

use std::collections::BTreeMap;

use sqlx::query;
use wayleave_control::capability::{AccountPeriods, ChargedAccount, UsageRecord};

use super::KnownRouters;
use super::records::Records;
use crate::error::StoreError;
use crate::store::Store;

impl Store {
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
}
