//! `bench exchange-stress`: the parties alone, by the number of workers.

use serde_json::json;
use wayleave_lab::bench::circuits::CircuitError;
use wayleave_lab::bench::exchange_stress::{Job, rate};
use wayleave_mpc::circuits::SelectBest;
use wayleave_papers::bench::circuits::Workload;
use wayleave_papers::plot::exchange::figure_11;
use wayleave_papers::report::Report;

use super::draw;
use crate::commands::bench::{Bench, BenchMode, BenchOutput};
use wayleave_config::failure::{Failure, Outcome};

/// Seed of the inputs.
const SEED: [u8; 16] = [11; 16];
/// Routes of a prefix, and the numbers of workers of the figure that two cores can tell apart.
const ROUTES: [usize; 5] = [2, 4, 8, 16, 32];
const WORKERS: [usize; 4] = [1, 2, 4, 8];

pub fn run(bench: &Bench) -> Outcome<Report> {
    let members = bench.members.unwrap_or(750).max(1);
    let routes: Vec<usize> = match bench.routes {
        Some(routes) => vec![routes],
        None if bench.short => vec![2, 8],
        None => ROUTES.to_vec(),
    };
    let workers: Vec<usize> = match bench.threads {
        Some(workers) => vec![workers.max(1)],
        None if bench.short => vec![1, 2],
        None => WORKERS.to_vec(),
    };
    // Of each worker; a prefix of many routes takes as much longer.
    let times = bench.repetitions.unwrap_or(if bench.short { 16 } else { 128 }).max(1);
    let (mode, output) = (bench.mode.or(bench.export), bench.output);
    let mode_name = if mode == Some(BenchMode::Mpc) { "mpc" } else { "direct" };
    let output_name = if output == Some(BenchOutput::Key) { "key" } else { "index" };
    let params = json!({
        "members": members, "routes": routes, "workers": workers, "times": times, "export": mode_name,
        "output": output_name, "links": "loopback TCP", "members_take_part": false,
        "cores": std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
    });
    let mut report = Report::new("exchange-stress", params);
    let grouped = |mut workload: Workload| {
        workload.group = bench.group.unwrap_or(workload.group);
        Box::new(workload)
    };
    let direct = Job::Direct { members };
    if mode == Some(BenchMode::Mpc) {
        let workload = grouped(Workload::export_all(members, SEED));
        measured(&mut report, "export_all", "routes/s", &Job::Filled(workload.clone()), &workers, 32 * times)?;
        let [online, setup] = workload.bytes();
        let sustained = Job::Sustained(workload);
        measured(&mut report, "export_all.sustained", "routes/s", &sustained, &workers, 32 * times)?;
        add_bandwidth(&mut report, "export_all", online + setup);
    } else {
        measured(&mut report, "export_all", "routes/s", &direct, &workers, 32 * times)?;
    }
    for routes in &routes {
        let shape =
            if output == Some(BenchOutput::Key) { SelectBest::paper(*routes) } else { SelectBest::standard(*routes) };
        let workload = Workload::select_best(shape, members, SEED).map_err(|error| Failure::from_error(&error))?;
        let (workload, times) = (grouped(workload), (times * 8 / routes.max(&1)).clamp(4, times.max(4)));
        let name = format!("select_best.{routes}");
        measured(&mut report, &name, "prefixes/s", &Job::Filled(workload.clone()), &workers, times)?;
        let [online, setup] = workload.bytes();
        let sustained = Job::Sustained(workload);
        measured(&mut report, &format!("{name}.sustained"), "prefixes/s", &sustained, &workers, times)?;
        add_bandwidth(&mut report, &name, online + setup);
    }
    draw(bench, || figure_11(&report, &workers, &routes))?;
    Ok(report)
}

/// What the parties send each other at the best rate with setup, `bytes` for each evaluation.
fn add_bandwidth(report: &mut Report, name: &str, bytes: f64) {
    if let Some(rate) = report.value(&format!("{name}.sustained")) {
        report.exact(format!("bandwidth.{name}"), "bit/s", 8.0 * bytes * rate);
    }
}

/// Measures a job by each number of workers. The result `name` is that of the best one.
fn measured(
    report: &mut Report,
    name: &str,
    unit: &'static str,
    job: &Job,
    workers: &[usize],
    times: usize,
) -> Outcome<()> {
    let mut rates = Vec::new();
    for number in workers {
        let rate = rate(job, *number, times).map_err(|error: CircuitError| Failure::from_error(&error))?;
        report.counted(format!("{name}.workers.{number}"), unit, rate, number * times);
        rates.push(rate);
    }
    let best = rates.iter().copied().fold(0.0, f64::max);
    report.summary(name.to_owned(), unit, &rates, best);
    Ok(())
}
