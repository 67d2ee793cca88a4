//! `bench select-best` and `bench export-all`.

use serde_json::{Value, json};
use wayleave_lab::bench::circuits;
use wayleave_mpc::circuits::SelectBest;
use wayleave_papers::bench::circuits::Workload;
use wayleave_papers::bench::direct;
use wayleave_papers::report::Report;

use super::clock;
use crate::commands::bench::{Bench, BenchMode, BenchOutput};
use crate::failure::{Failure, Outcome};

/// Seed of both parties' inputs.
const SEED: [u8; 16] = [7; 16];

pub fn select_best(bench: &Bench) -> Outcome<Report> {
    let (members, routes) = (bench.members.unwrap_or(750), bench.routes.unwrap_or(32));
    let (shape, output) = match bench.output {
        Some(BenchOutput::Key) => (SelectBest::paper(routes), "key"),
        _ => (SelectBest::standard(routes), "index"),
    };
    let workload = Workload::select_best(shape, members, SEED).map_err(|error| Failure::from_error(&error))?;
    measure("select-best", json!({ "members": members, "routes": routes, "output": output }), workload, bench)
}

pub fn export_all(bench: &Bench) -> Outcome<Report> {
    let members = bench.members.unwrap_or(750);
    if bench.mode != Some(BenchMode::Mpc) {
        let repetitions = bench.repetitions.unwrap_or(if bench.short { 200 } else { 1000 }).max(1);
        return Ok(direct::run(members, repetitions, &mut clock()));
    }
    let workload = Workload::export_all(members, SEED);
    measure("export-all", json!({ "members": members, "mode": "mpc" }), workload, bench)
}

fn measure(name: &'static str, mut params: Value, mut workload: Workload, bench: &Bench) -> Outcome<Report> {
    workload.group = bench.group.unwrap_or(workload.group);
    params["group"] = json!(workload.group.get());
    let repetitions = bench.repetitions.unwrap_or(if bench.short { 11 } else { 51 }).max(1);
    Ok(circuits::measure(name, params, &workload, repetitions).map_err(Failure::new)?)
}
