//! `bench exchange-trace`.

use std::collections::BTreeMap;
use std::fs::File;
use std::time::Duration;

use serde_json::json;
use wayleave_lab::bench::{exchange_trace as replay, parties_trace};
use wayleave_lab::trace;
use wayleave_papers::bench::exchange_trace::{self, MEMBERS};
use wayleave_papers::plot::exchange::figure_10;
use wayleave_papers::report::Report;
use wayleave_route_server::object::ExportMode;

use super::{draw, file_name, trace_file, unreadable};
use crate::commands::bench::{Bench, BenchMode, BenchSinks};
use wayleave_config::failure::{Failure, Outcome};

/// Prefixes of the generated table, and events, in the long and in the short form.
const GENERATED: (usize, usize) = (5_000, 5_000);
const GENERATED_SHORT: (usize, usize) = (300, 300);
/// What the trace is generated from.
const SEED: u64 = 2_017;

pub fn run(bench: &Bench) -> Outcome<Report> {
    if bench.generated {
        return generated(bench);
    }
    if bench.plot.is_some() {
        return Err(Failure::usage("`exchange-trace` draws no plot of a recorded trace").help("--generated").into());
    }
    let members = bench.members.unwrap_or(50).max(1);
    let most = bench.prefixes.unwrap_or(if bench.short { 1000 } else { 5000 });
    let tick = Duration::from_millis(bench.tick.unwrap_or(0));
    let path = trace_file(bench.mrt.as_ref(), "routeviews.2013-12-01.updates.bz2")?;
    let unreadable = unreadable(&path);
    let updates = trace::load(File::open(&path).map_err(&unreadable)?, most).map_err(&unreadable)?;
    if updates.is_empty() {
        return Err(Failure::new(format!("{} holds no UPDATE that announces or withdraws", path.display())).into());
    }
    let export = export(bench);
    let trace = replay(members, &updates, tick, export, |_| {});
    Ok(trace.report(&file_name(&path), members, tick, export))
}

fn export(bench: &Bench) -> ExportMode {
    match bench.export.or(bench.mode) {
        Some(BenchMode::Mpc) => ExportMode::Mpc,
        Some(BenchMode::Direct) | None => ExportMode::Direct,
    }
}

fn generated(bench: &Bench) -> Outcome<Report> {
    let usual = if bench.short { GENERATED_SHORT } else { GENERATED };
    let members = bench.members.unwrap_or(if bench.short { 100 } else { MEMBERS }).max(2);
    let prefixes = bench.prefixes.unwrap_or(usual.0).max(1);
    let events = bench.prefixes.unwrap_or(usual.1).max(1);
    let selects = bench.sinks != Some(BenchSinks::OptOut);
    let trace = exchange_trace::generate(members, prefixes, events, SEED);
    let export = export(bench);
    let measured = parties_trace::run(&trace, members, export, selects, |_| {});
    let measured = measured.map_err(|error| Failure::new(error.to_string()))?;
    draw(bench, || figure_10([&measured.export, &measured.select]))?;
    let params = BTreeMap::from([
        ("trace", json!("generated with the published moments")),
        ("seed", json!(SEED)),
        ("members", json!(members)),
        ("table_prefixes", json!(prefixes)),
        ("export", json!(export.to_string())),
        ("tick_ms", json!(0)),
        ("sinks_select_best", json!(selects)),
        ("threads", json!(1)),
        ("links", json!("in memory")),
        ("measured", json!("both parties' processor time, one after the other")),
    ]);
    Ok(measured.report(&params))
}
