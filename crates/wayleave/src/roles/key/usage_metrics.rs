//! What the key server's metrics show of what is sold: usage that routers report, by who pays, and statements.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wayleave_control::capability::Usage;
use wayleave_runtime::http::{Labels, Metric, Unit};
use wayleave_runtime::metrics;
use wayleave_store::UsageHead;

use crate::roles::payers::{PayerFigures, count, label, largest};

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

#[derive(Default)]
struct Seen {
    /// What this server has taken from routers since it started.
    reported: BTreeMap<Option<u32>, Usage>,
    head: UsageHead,
}

/// What the tasks of usage have seen, for the metrics.
#[derive(Clone, Default)]
pub struct UsageMetrics(Arc<Mutex<Seen>>);

impl UsageMetrics {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds what was new in a report.
    pub fn add(&self, more: &BTreeMap<u32, Usage>) {
        let reported = &mut self.seen().reported;
        for (principal, more) in more {
            let is_told_apart = reported.len() < MOST_PAYERS || reported.contains_key(&Some(*principal));
            reported.entry(Some(*principal).filter(|_| is_told_apart)).or_default().add(more);
        }
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
            (largest(seen.reported.clone()), seen.head)
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
        let rows = largest(usage_metrics.seen().reported.clone());
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
}
