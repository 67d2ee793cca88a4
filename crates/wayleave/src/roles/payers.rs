//! Payers in metrics: the largest ones by name, and all others together, so that there are few series whatever the number of payers.

use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Payers that are told apart, at most.
pub const SHOWN: usize = 20;

/// What is known of a payer.
pub trait PayerFigures: Default {
    /// Octets by which payers are ranked.
    fn octets(&self) -> u128;

    /// Adds what is known of another one.
    fn add(&mut self, other: &Self);
}

/// The principals with most octets, in this order; behind them, under `None`, all others, with those that were under `None` before.
pub fn largest<T: PayerFigures>(mut rows: BTreeMap<Option<u32>, T>) -> Vec<(Option<u32>, T)> {
    let mut others = rows.remove(&None).unwrap_or_default();
    let mut rows: Vec<(Option<u32>, T)> = rows.into_iter().collect();
    rows.sort_by_key(|(_, row)| Reverse(row.octets()));
    rows.drain(SHOWN.min(rows.len())..).for_each(|(_, row)| others.add(&row));
    rows.push((None, others));
    rows
}

/// The label `principal`, which is `other` for the others.
pub fn label(principal: Option<u32>) -> (&'static str, String) {
    ("principal", principal.map_or_else(|| "other".to_owned(), |number| number.to_string()))
}

/// A total as a counter has it.
pub fn count(total: u128) -> u64 {
    u64::try_from(total).unwrap_or(u64::MAX)
}
