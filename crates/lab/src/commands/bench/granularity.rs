//! `bench waypoint-granularity`: Platypus' Figure 5 over generated latencies.

use serde_json::json;
use wayleave_papers::bench::granularity::{CLUSTERINGS, CLUSTERS, Latencies, PAIRS, POINTS, PROVIDERS};
use wayleave_papers::report::Report;

use super::{deviation, draw};
use crate::commands::bench::Bench;
use wayleave_config::failure::Outcome;

/// What latencies and first clusters are drawn from.
const SEED: u64 = 2_004;

pub fn run(bench: &Bench) -> Outcome<Report> {
    let clusterings = bench.repetitions.unwrap_or(if bench.short { 3 } else { CLUSTERINGS });
    let mut report = Report::new(
        "waypoint-granularity",
        json!({ "latencies": "generated", "seed": SEED, "clusterings": clusterings }),
    );
    for (number, provider) in PROVIDERS.iter().enumerate() {
        let latencies = Latencies::draw(provider, SEED + number as u64);
        let pair_name = |(from, to): (usize, usize)| format!("{}.{}-{}", provider.name, POINTS[from].0, POINTS[to].0);
        for pair in PAIRS {
            report.exact(format!("{}.optimal", pair_name(pair)), "s", latencies.optimal(pair));
        }
        for clusters in CLUSTERS {
            let seeds = (0..clusterings as u64).map(|run| SEED ^ run << 32 ^ (clusters as u64) << 8);
            let centres: Vec<Vec<usize>> = seeds.map(|seed| latencies.centres(clusters, seed)).collect();
            let mut over = Vec::new();
            for pair in PAIRS {
                let optimal = latencies.optimal(pair);
                let samples: Vec<f64> =
                    centres.iter().map(|centres| latencies.through_centres(centres, pair)).collect();
                over.extend(samples.iter().map(|latency| latency / optimal));
                report.add(format!("{}.latency.{clusters}", pair_name(pair)), "s", &samples);
                report.counted(
                    format!("{}.deviation.{clusters}", pair_name(pair)),
                    "s",
                    deviation(&samples),
                    samples.len(),
                );
            }
            report.add(format!("{}.over-optimal.{clusters}", provider.name), "ratio", &over);
        }
    }
    draw(bench, || wayleave_papers::plot::granularity::granularity(&report))?;
    Ok(report)
}
