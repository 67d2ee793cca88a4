//! `bench select-best` and `bench export-all`.

use std::time::Duration;

use serde_json::{Value, json};
use wayleave_lab::bench::circuits;
use wayleave_mpc::circuits::SelectBest;
use wayleave_papers::bench::circuits::Workload;
use wayleave_papers::bench::direct;
use wayleave_papers::plot::exchange::{SCALING_MEMBERS, SCALING_ROUTES, TABLE_1_ROUTES, scaling, table_1};
use wayleave_papers::report::{Measurement, Report};

use super::{clock, draw};
use crate::commands::bench::{Bench, BenchMode, BenchOutput};
use wayleave_config::failure::{Failure, Outcome};

/// Seed of both parties' inputs.
const SEED: [u8; 16] = [7; 16];

pub fn select_best(bench: &Bench) -> Outcome<Report> {
    if bench.scaling {
        return scales(bench);
    }
    let (members, routes) = (bench.members.unwrap_or(750), bench.routes.unwrap_or(32));
    let mut report = select_best_of(bench, members, routes)?;
    if bench.plot.is_some() || bench.paper.is_some() {
        // Table 1 is of 750 members and these numbers of routes.
        let mut rows = vec![mpc_export(bench, members)?];
        for routes in TABLE_1_ROUTES {
            let row = select_best_of(bench, members, routes)?;
            for name in ["online", "setup", "bytes_online", "bytes_setup"] {
                let result = row.results.iter().find(|result| result.name == name);
                report.results.extend(
                    result.map(|result| Measurement { name: format!("{name}.{routes}").into(), ..result.clone() }),
                );
            }
            rows.push(row);
        }
        draw(bench, || table_1(&rows.iter().collect::<Vec<_>>()))?;
    }
    Ok(report)
}

/// By the number of members and by the number of routes, each with the other as in Table 1.
fn scales(bench: &Bench) -> Outcome<Report> {
    let output = if bench.output == Some(BenchOutput::Key) { "key" } else { "index" };
    let mut report = Report::new("select-best", json!({ "scaling": true, "output": output }));
    let by_members = SCALING_MEMBERS.map(|members| (format!("members.{members}"), members, 32));
    let by_routes = SCALING_ROUTES.map(|routes| (format!("routes.{routes}"), 750, routes));
    for (size, members, routes) in by_members.into_iter().chain(by_routes) {
        let row = select_best_of(bench, members, routes)?;
        for result in row.results.iter().filter(|result| SCALED.contains(&result.name.as_ref())) {
            report.results.push(Measurement { name: format!("{}.{size}", result.name).into(), ..result.clone() });
        }
    }
    draw(bench, || scaling(&report))?;
    Ok(report)
}

/// What is reported of each size.
const SCALED: [&str; 6] = ["online", "setup", "bytes_online", "bytes_setup", "rounds", "memory"];

fn select_best_of(bench: &Bench, members: usize, routes: usize) -> Outcome<Report> {
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
    mpc_export(bench, members)
}

fn mpc_export(bench: &Bench, members: usize) -> Outcome<Report> {
    let workload = Workload::export_all(members, SEED);
    measure("export-all", json!({ "members": members, "mode": "mpc" }), workload, bench)
}

fn measure(name: &'static str, mut params: Value, mut workload: Workload, bench: &Bench) -> Outcome<Report> {
    workload.group = bench.group.unwrap_or(workload.group);
    params["group"] = json!(workload.group.get());
    let repetitions = bench.repetitions.unwrap_or(if bench.short { 11 } else { 51 }).max(1);
    let delay = bench.delay_us.map(Duration::from_micros);
    if let Some(delay) = bench.delay_us {
        params["delay_us"] = json!(delay);
    }
    Ok(circuits::measure(name, params, &workload, repetitions, delay).map_err(Failure::new)?)
}
