//! Samples of five minutes, and the percentiles of the months that ended.

use std::collections::BTreeMap;

use sqlx::{AnyConnection, query};
use wayleave_control::capability::{MAX_PERCENTILES, Month, Percentile, SAMPLE_SECS, discarded_samples, samples};

use super::Step;
use super::rows::{MOST_OF_MONTH, number, optional};
use crate::error::StoreError;
use crate::table::signed;

impl Step {
    /// Adds what a router has counted after a Unix second, and reports at another, to samples.
    pub(super) async fn add_samples(
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

    /// Takes away `most` samples of months that are on statements, or were: nobody asks for them any more. Returns whether there were any.
    pub(super) async fn remove_old_samples(&mut self, most: usize) -> Result<bool, StoreError> {
        let delete = format!(
            "DELETE FROM usage_sample WHERE (principal, owner, begins_at) IN
             (SELECT principal, owner, begins_at FROM usage_sample WHERE begins_at < $1 LIMIT {most})"
        );
        let delete = query(&delete).bind(signed(Month::of(self.head.closed_before).begin()));
        Ok(delete.execute(&mut *self.transaction).await?.rows_affected() > 0)
    }
}

/// The months that ended in a time that is closed, of which there are samples.
pub(super) async fn months_ended(
    connection: &mut AnyConnection,
    (after, before): (u64, u64),
) -> Result<Vec<(u64, u64)>, StoreError> {
    let first = query("SELECT MIN(begins_at) FROM usage_sample").fetch_one(&mut *connection).await?;
    let Some(first) = optional(&first, 0)? else { return Ok(Vec::new()) };
    let months = std::iter::successors(Some(Month::of(after.max(first))), |month| Some(month.next()));
    let bounds = months.map(|month| (month.begin(), month.next().begin()));
    Ok(bounds.take_while(|(_, ends)| *ends <= before).take(MAX_PERCENTILES).collect())
}

/// The first `most` behind a principal that have samples in these months, which follow on each other.
pub(super) async fn sampled(
    connection: &mut AnyConnection,
    months: &[(u64, u64)],
    (behind, most): (i64, usize),
) -> Result<Vec<u32>, StoreError> {
    let (Some((begins, _)), Some((_, ends))) = (months.first(), months.last()) else { return Ok(Vec::new()) };
    // In the order of the key: by the index of `begins_at` all samples of the months would be read each time, which the sign prevents.
    let select = format!(
        "SELECT DISTINCT principal FROM usage_sample WHERE principal > $1 AND +begins_at >= $2 AND +begins_at < $3
         ORDER BY principal LIMIT {most}"
    );
    let select = query(&select).bind(behind).bind(signed(*begins)).bind(signed(*ends));
    select.fetch_all(&mut *connection).await?.iter().map(|read| number(read, 0)).collect()
}

/// The percentiles of one who pays, of the owners of its number one after the other.
pub(super) async fn percentiles_of(
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

/// Whether there are samples of months that ended before a Unix second until which all is on statements.
pub(super) async fn has_old_samples(connection: &mut AnyConnection, closed_before: u64) -> Result<bool, StoreError> {
    let select = query("SELECT begins_at FROM usage_sample WHERE begins_at < $1 LIMIT 1");
    let select = select.bind(signed(Month::of(closed_before).begin()));
    Ok(select.fetch_optional(&mut *connection).await?.is_some())
}
