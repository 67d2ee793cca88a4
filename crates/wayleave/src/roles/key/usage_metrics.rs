//! What the key server's metrics show of what is sold: usage that routers report, by who pays, and statements.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wayleave_control::capability::Usage;
use wayleave_runtime::http::{Labels, Metric, Unit};
use wayleave_runtime::metrics;
use wayleave_store::UsageHead;

use crate::roles::payers::{PayerFigures, SHOWN, count, label};

/// Principals of which it is remembered what was reported, at most: what others sent is among the others'.
const MOST_PAYERS: usize = 1 << 16;

impl PayerFigures for Usage {
    fn octets(&self) -> u128 {
        self.octets
    }

    fn add(&mut self, other: &Self) {
        *self = self.plus(*other);
    }
}

/// What this server has taken from routers since it started. No series of it falls: who comes among the largest payers begins at zero,
/// and what it sent before stays with the others.
#[derive(Default)]
struct Reported {
    totals: BTreeMap<u32, Usage>,
    /// The largest payers, each since it is one.
    shown: BTreeMap<u32, Usage>,
    others: Usage,
}

impl Reported {
    fn add(&mut self, principal: u32, more: &Usage) {
        if self.totals.len() >= MOST_PAYERS && !self.totals.contains_key(&principal) {
            return self.others.add(more);
        }
        let total = self.totals.entry(principal).or_default();
        total.add(more);
        let octets = total.octets;
        if self.shown.len() < SHOWN || self.shown.contains_key(&principal) {
            return self.shown.entry(principal).or_default().add(more);
        }
        self.others.add(more);
        let of = |principal: &u32| self.totals.get(principal).map_or(0, |total| total.octets);
        let least = self.shown.keys().copied().min_by_key(of).filter(|least| of(least) < octets);
        if let Some(gone) = least.and_then(|least| self.shown.remove(&least)) {
            self.others.add(&gone);
            self.shown.insert(principal, Usage::default());
        }
    }

    /// The largest first, and all others behind them.
    fn rows(&self) -> Vec<(Option<u32>, Usage)> {
        let mut rows: Vec<_> = self.shown.iter().map(|(principal, usage)| (Some(*principal), *usage)).collect();
        rows.sort_by_key(|(_, usage)| Reverse(usage.octets));
        rows.push((None, self.others));
        rows
    }
}

#[derive(Default)]
struct UsageSnapshot {
    reported: Reported,
    head: UsageHead,
}

/// What the tasks of usage have seen, for the metrics.
#[derive(Clone, Default)]
pub struct UsageMetrics(Arc<Mutex<UsageSnapshot>>);

impl UsageMetrics {
    fn seen(&self) -> MutexGuard<'_, UsageSnapshot> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds what was new in a report.
    pub fn add(&self, more: &BTreeMap<u32, Usage>) {
        let mut seen = self.seen();
        more.iter().for_each(|(principal, more)| seen.reported.add(*principal, more));
    }

    /// Sets where statements end.
    pub fn set_head(&self, head: UsageHead) {
        self.seen().head = head;
    }

    /// `rates` are those of principals, in octets a second; `confirmed` has for each router, by its name, up to which Unix second it
    /// has reported everything.
    pub fn metrics(&self, rates: &BTreeMap<u32, u64>, confirmed: &BTreeMap<String, u64>) -> Vec<Metric> {
        let (rows, head) = {
            let seen = self.seen();
            (seen.reported.rows(), seen.head)
        };
        let each = |of: fn(&Usage) -> u128| -> Vec<(Labels, u64)> {
            rows.iter().map(|(principal, usage)| (vec![label(*principal)], count(of(usage)))).collect()
        };
        let rate = |(principal, _): &(Option<u32>, Usage)| {
            let rate = rates.get(&(*principal)?)?;
            Some((vec![label(*principal)], *rate as f64))
        };
        let through = confirmed.iter().map(|(router, second)| (vec![("router", router.clone())], *second as f64));
        let owing = confirmed.values().filter(|second| **second < head.closed_before).count();
        let usage = "Usage of a payer that routers reported and this server took";
        let mut all = metrics! {
            gauge "statement" Number "Number of the last statement" = head.statement;
            gauge "statement_complete" Up "Whether the last statement is added up" = head.is_complete;
            gauge "closed_before" Seconds "Unix time before which usage is on statements" = head.closed_before;
            gauge "owing" Links "Routers that may still report usage of time that is on statements" = owing;
        };
        all.extend([
            Metric::counters("payer_usage", Unit::Bytes, usage, each(|usage| usage.octets)),
            Metric::counters("payer_usage", Unit::Packets, usage, each(|usage| usage.packets)),
            Metric::gauges(
                "payer_rate",
                Unit::Bytes,
                "Octets a second that a payer bought over all routers",
                rows.iter().filter_map(rate).collect(),
            ),
            Metric::gauges(
                "router_confirmed",
                Unit::Seconds,
                "Unix time up to which a router has reported everything",
                through.collect(),
            ),
        ]);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_reports_bring_is_added_up_by_payer_and_gaps_are_counted() {
        let usage_metrics = UsageMetrics::default();
        let usage = |packets| Usage { packets, octets: 100 * packets };
        usage_metrics.add(&BTreeMap::from([(7, usage(1)), (8, usage(9))]));
        usage_metrics.add(&BTreeMap::from([(7, usage(2))]));
        let rows = usage_metrics.seen().reported.rows();
        assert_eq!(rows, [(Some(8), usage(9)), (Some(7), usage(3)), (None, usage(0))]);
        usage_metrics.set_head(UsageHead {
            statement: 2,
            closed_before: 1_000,
            is_complete: true,
            ..UsageHead::default()
        });
        let confirmed = BTreeMap::from([("a".to_owned(), 1_000), ("b".to_owned(), 999), ("c".to_owned(), 0)]);
        let metrics = usage_metrics.metrics(&BTreeMap::from([(7, 500), (9, 1)]), &confirmed);
        let is_there = |metric: Metric| assert!(metrics.contains(&metric), "{metrics:?}");
        let help = "Routers that may still report usage of time that is on statements";
        is_there(Metric::gauge("owing", Unit::Links, help, 2.0));
        let help = "Octets a second that a payer bought over all routers";
        is_there(Metric::gauges("payer_rate", Unit::Bytes, help, vec![(vec![label(Some(7))], 500.0)]));
    }

    #[test]
    fn a_payer_that_comes_among_the_largest_takes_nothing_from_the_others() {
        let mut reported = Reported::default();
        let usage = |octets| Usage { packets: 1, octets };
        let others = |reported: &Reported| reported.rows().last().map(|(_, usage)| usage.octets);
        (1..=SHOWN as u32).for_each(|principal| reported.add(principal, &usage(100 + u128::from(principal))));
        reported.add(50, &usage(60));
        assert_eq!(others(&reported), Some(60));
        // It is larger than the least now, which goes to the others.
        reported.add(50, &usage(60));
        assert_eq!(others(&reported), Some(60 + 60 + 101));
        reported.add(50, &usage(7));
        let rows = reported.rows();
        assert_eq!((rows.len(), others(&reported)), (SHOWN + 1, Some(221)));
        assert!(rows.contains(&(Some(50), usage(7))) && !rows.iter().any(|(principal, _)| *principal == Some(1)));
        // Nothing is lost, and nothing counts twice.
        let all: u128 = rows.iter().map(|(_, usage)| usage.octets).sum();
        assert_eq!(all, (101..=100 + SHOWN as u128).sum::<u128>() + 127);
    }
}
