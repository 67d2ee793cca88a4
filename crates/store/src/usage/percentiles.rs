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

/// Who has samples in these months, which follow on each other.
pub(super) async fn sampled(connection: &mut AnyConnection, months: &[(u64, u64)]) -> Result<Vec<u32>, StoreError> {
    let (Some((begins, _)), Some((_, ends))) = (months.first(), months.last()) else { return Ok(Vec::new()) };
    let select = "SELECT DISTINCT principal FROM usage_sample WHERE begins_at >= $1 AND begins_at < $2";
    let found = query(select).bind(signed(*begins)).bind(signed(*ends)).fetch_all(&mut *connection).await?;
    found.iter().map(|read| number(read, 0)).collect()
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
