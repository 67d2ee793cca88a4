//! What payers sent and what became of it, by principal: the largest ones, and all others together.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use wayleave_runtime::http::{Labels, Metric, Unit};

use super::counters::{Named, PayerCounts};
use super::journal::Total;
use crate::roles::payers::{PayerFigures, count, label, largest};

/// What a payer sent since the process started; accounts that were restored are among what was accepted.
#[derive(Clone, Default)]
struct PayerRow {
    accepted: Total,
    counts: PayerCounts,
}

impl PayerFigures for PayerRow {
    fn octets(&self) -> u128 {
        self.accepted.octets
    }

    fn add(&mut self, other: &Self) {
        self.accepted = self.accepted.plus(other.accepted);
        self.counts.add(&other.counts);
    }
}

/// The payers with most accepted octets, and all others.
pub struct PayerRows(Vec<(Option<u32>, PayerRow)>);

impl PayerRows {
    /// From what was accepted of each principal, and what threads counted beside that.
    pub fn new(accepted: BTreeMap<u32, Total>, counts: &BTreeMap<Option<u32>, PayerCounts>) -> Self {
        let mut rows: BTreeMap<Option<u32>, PayerRow> = BTreeMap::new();
        for (principal, accepted) in accepted {
            rows.entry(Some(principal)).or_default().accepted = accepted;
        }
        for (principal, counts) in counts {
            rows.entry(*principal).or_default().counts.add(counts);
        }
        Self(largest(rows))
    }

    /// A row for each in the status view; `principal` is null for the others.
    pub fn json(&self) -> Value {
        let total = |total: &Total| json!({ "packets": total.packets.to_string(), "octets": total.octets.to_string() });
        let row = |(principal, row): &(Option<u32>, PayerRow)| {
            let refused: Named =
                row.counts.refused.iter().filter(|(_, n)| **n > 0).map(|(name, n)| (*name, *n)).collect();
            json!({
                "principal": principal,
                "accepted": total(&row.accepted),
                "credited": total(&row.counts.credited),
                "refused": refused,
                "rate": row.counts.rate,
            })
        };
        self.0.iter().map(row).collect()
    }

    /// What was credited to all of them.
    pub fn credited(&self) -> Total {
        self.0.iter().fold(Total::default(), |sum, (_, row)| sum.plus(row.counts.credited))
    }

    pub fn metrics(&self) -> Vec<Metric> {
        let each = |of: fn(&PayerRow) -> u128| -> Vec<(Labels, u64)> {
            self.0.iter().map(|(principal, row)| (vec![label(*principal)], count(of(row)))).collect()
        };
        let refused = self.0.iter().flat_map(|(principal, row)| {
            let labels = |reason: &str| vec![label(*principal), ("reason", reason.to_owned())];
            row.counts.refused.iter().map(move |(reason, count)| (labels(reason), *count))
        });
        let rates = self.0.iter().filter_map(|(principal, row)| {
            let rate = row.counts.rate?;
            principal.is_some().then(|| (vec![label(*principal)], rate as f64))
        });
        let accepted = "Accepted from a payer and counted, less what was credited";
        let credited = "Credited to a payer, since it was accepted and could not be sent";
        vec![
            Metric::counters("payer_accepted", Unit::Bytes, accepted, each(|row| row.accepted.octets)),
            Metric::counters("payer_accepted", Unit::Packets, accepted, each(|row| row.accepted.packets)),
            Metric::counters("payer_credited", Unit::Bytes, credited, each(|row| row.counts.credited.octets)),
            Metric::counters("payer_credited", Unit::Packets, credited, each(|row| row.counts.credited.packets)),
            Metric::counters("payer_refused", Unit::Packets, "Refused to a payer, by reason", refused.collect()),
            Metric::gauges(
                "payer_rate",
                Unit::Bytes,
                "Octets a second that a payer may send here now",
                rates.collect(),
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roles::payers::SHOWN;

    #[test]
    fn the_largest_payers_have_rows_and_all_others_have_one() {
        let accepted = (0..100u32).map(|n| (n, Total { packets: 1, octets: u128::from(n) })).collect();
        let one = PayerCounts {
            credited: Total { packets: 2, octets: 200 },
            refused: Named::from([("rate", 3), ("revoked", 0)]),
            rate: Some(5),
        };
        let counts =
            BTreeMap::from([(Some(99), one.clone()), (Some(3), one.clone()), (Some(500), one.clone()), (None, one)]);
        let rows = PayerRows::new(accepted, &counts);
        let json = rows.json();
        assert_eq!(json.as_array().map(Vec::len), Some(SHOWN + 1));
        let row = |principal: Value, accepted: [&str; 2], credited: [&str; 2], refused: u64| {
            let total = |[packets, octets]: [&str; 2]| json!({ "packets": packets, "octets": octets });
            let (accepted, credited) = (total(accepted), total(credited));
            json!({ "principal": principal, "accepted": accepted, "credited": credited, "refused": { "rate": refused } })
        };
        let without_rate = |index: usize| {
            let mut row = json[index].clone();
            row.as_object_mut().and_then(|row| row.remove("rate"));
            row
        };
        assert_eq!(without_rate(0), row(json!(99), ["1", "99"], ["2", "200"], 3));
        assert_eq!((&json[0]["rate"], &json[1]["rate"]), (&json!(5), &Value::Null));
        // 0 to 79, the third of which had a place of its own, 500, and those beyond.
        assert_eq!(without_rate(SHOWN), row(Value::Null, ["80", "3160"], ["6", "600"], 9));
        assert_eq!(rows.credited(), Total { packets: 8, octets: 800 });
    }
}
