//! `bench exchange-trace`.

use std::fs::File;
use std::time::Duration;

use wayleave_lab::bench::exchange_trace;
use wayleave_lab::trace;
use wayleave_papers::report::Report;
use wayleave_route_server::object::ExportMode;

use super::{file_name, trace_file, unreadable};
use crate::commands::bench::Bench;
use crate::commands::bench::arguments::BenchMode;
use crate::failure::{Failure, Outcome};

pub fn run(bench: &Bench) -> Outcome<Report> {
    let members = bench.members.unwrap_or(50).max(1);
    let most = bench.prefixes.unwrap_or(if bench.short { 1000 } else { 5000 });
    let tick = Duration::from_millis(bench.tick.unwrap_or(0));
    let path = trace_file(bench.mrt.as_ref(), "routeviews.2013-12-01.updates.bz2")?;
    let unreadable = unreadable(&path);
    let updates = trace::load(File::open(&path).map_err(&unreadable)?, most).map_err(&unreadable)?;
    if updates.is_empty() {
        return Err(Failure::new(format!("{} holds no UPDATE that announces or withdraws", path.display())).into());
    }
    let export = match bench.export {
        Some(BenchMode::Mpc) => ExportMode::Mpc,
        Some(BenchMode::Direct) | None => ExportMode::Direct,
    };
    let trace = exchange_trace(members, &updates, tick, export, |_| {});
    Ok(trace.report(&file_name(&path), members, tick, export))
}
