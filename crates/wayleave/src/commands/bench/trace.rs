//! `bench exchange-trace`: a recorded table through two parties and all members, in one thread, against the oracle.

use std::fs::File;
use std::time::Duration;

use serde_json::json;
use wayleave_lab::bench::exchange_trace;
use wayleave_lab::trace;

use super::{Report, percentile, trace_file};
use crate::cli::Bench;
use crate::failure::{Failure, Outcome};

pub fn run(bench: &Bench) -> Outcome<Report> {
    let members = bench.members.unwrap_or(50).max(1);
    let most = bench.prefixes.unwrap_or(if bench.short { 1000 } else { 5000 });
    let tick = bench.tick.unwrap_or(0);
    let path = trace_file(bench.mrt.as_ref(), "routeviews.2013-12-01.updates.bz2")?;
    let unreadable = |error: std::io::Error| Failure::new(format!("{}: {error}", path.display()));
    let updates = trace::load(File::open(&path).map_err(unreadable)?, most).map_err(unreadable)?;
    if updates.is_empty() {
        return Err(Failure::new(format!("{} holds no UPDATE that announces or withdraws", path.display())).into());
    }
    let ran = exchange_trace(members, &updates, Duration::from_millis(tick), |_| {});
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let params = json!({
        "mrt": name, "members": members, "tick_ms": tick, "updates": ran.updates, "prefixes": ran.prefixes,
        "routes": ran.routes, "threads": 1, "links": "in memory",
    });
    let mut report = Report::new("exchange-trace", params);
    // What a prefix waits for: its whole UPDATE, through both parties and every member.
    let mean = ran.seconds.iter().sum::<f64>() / ran.seconds.len().max(1) as f64;
    report.summary("prefix_mean", "s", &ran.seconds, mean);
    report.add("prefix_p50", "s", &ran.seconds);
    report.summary("prefix_p99", "s", &ran.seconds, percentile(&ran.seconds, 99));
    // The same in processor time, which other programs on the machine do not lengthen.
    let cpu = &ran.cpu_seconds;
    report.summary("prefix_cpu_mean", "s", cpu, cpu.iter().sum::<f64>() / cpu.len().max(1) as f64);
    // The same with members on machines of their own: both parties, the announcer and the slowest receiver in turn.
    let critical = &ran.critical_seconds;
    let mean = critical.iter().sum::<f64>() / critical.len().max(1) as f64;
    report.summary("prefix_critical_mean", "s", critical, mean);
    report.add("prefix_critical_p50", "s", critical);
    let per_prefix = |time: Duration| time.as_secs_f64() / ran.prefixes.max(1) as f64;
    report.exact("stage.parties", "s", per_prefix(ran.stages[0]));
    report.exact("stage.members", "s", per_prefix(ran.stages[1]));
    // All processes' work, shared out over the prefixes, and over the UPDATEs that brought them.
    report.exact("prefix_work", "s", ran.elapsed.as_secs_f64() / ran.prefixes.max(1) as f64);
    report.exact("update_work", "s", ran.elapsed.as_secs_f64() / ran.updates.max(1) as f64);
    report.exact("oracle_mismatches", "count", ran.oracle_mismatches as f64);
    let seconds = ran.elapsed.as_secs_f64().max(f64::MIN_POSITIVE);
    report.exact("party_link", "bytes/s", ran.party_link_bytes as f64 / seconds);
    // Correlations made between UPDATEs, by both parties in turn: in none of the times above.
    report.exact("setup", "s", ran.setup.as_secs_f64());
    report.exact("prefix_setup", "s", per_prefix(ran.setup));
    Ok(report)
}
