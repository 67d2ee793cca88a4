//! `bench exchange-trace`.

use std::collections::BTreeMap;
use std::fs::File;
use std::time::Duration;

use serde_json::json;
use wayleave_lab::bench::exchange_trace as replay;
use wayleave_lab::bench::parties_trace::{self, PartiesTrace};
use wayleave_lab::trace;
use wayleave_mpc::circuits::SelectBest;
use wayleave_papers::bench::circuits::Workload;
use wayleave_papers::bench::exchange_trace::{self, MEMBERS, Trace};
use wayleave_papers::plot::exchange::{bandwidth, figure_10};
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
    let mut report = trace.report(&file_name(&path), members, tick, export);
    // In the time of the recording, which the replay does not wait for.
    let times = || updates.iter().map(|update| update.time.secs());
    let duration = 1 + times().max().unwrap_or(0) - times().min().unwrap_or(0);
    let rate = |bytes: u64| 8.0 * bytes as f64 / duration as f64;
    report.params.insert("duration_s".to_owned(), json!(duration));
    report.exact("bandwidth.parties", "bit/s", rate(trace.party_link_bytes));
    report.exact("bandwidth.member", "bit/s", rate(trace.member_link_bytes) / members as f64);
    report.exact("bandwidth.member_submits", "bit/s", rate(trace.submitted_bytes) / members as f64);
    Ok(report)
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
    let measure = |selects| {
        let measured = parties_trace::run(&trace, members, export, selects, |_| {});
        measured.map_err(|error| Failure::new(error.to_string()))
    };
    let measured = measure(selects)?;
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
    let mut report = measured.report(&params);
    report.exact("bandwidth.parties", "bit/s", party_bandwidth(&measured, &trace));
    if bench.bandwidth {
        // Export-All alone is what is left where no member takes part in Select-Best.
        let alone = party_bandwidth(&measure(false)?, &trace);
        let both = if selects { party_bandwidth(&measured, &trace) } else { party_bandwidth(&measure(true)?, &trace) };
        for (name, value) in [("export_all", alone), ("select_best", both - alone), ("both", both)] {
            report.exact(format!("bandwidth.{name}"), "bit/s", value);
        }
        for (name, bytes) in ["export_all", "select_best"].into_iter().zip(circuit_bytes(&trace, members)?) {
            let [online, setup] = bytes.map(|bytes| 8.0 * bytes / duration(&trace));
            report.exact(format!("bandwidth.{name}.circuits_online"), "bit/s", online);
            report.exact(format!("bandwidth.{name}.circuits"), "bit/s", online + setup);
        }
        draw(bench, || bandwidth(&report, members == MEMBERS && export == ExportMode::Mpc))?;
    } else {
        draw(bench, || figure_10(&report, [&measured.export, &measured.select]))?;
    }
    Ok(report)
}

/// Bits a second that the parties send each other in the trace's own time.
fn party_bandwidth(measured: &PartiesTrace, trace: &Trace) -> f64 {
    8.0 * measured.party_link as f64 / duration(trace)
}

/// Seconds.
fn duration(trace: &Trace) -> f64 {
    trace.events.last().map_or(1.0, |event| (event.second + 1) as f64)
}

/// What the paper's circuits alone send over the trace, online and for setup: Export-All for each announced route, and Select-Best
/// with key output for each change of a prefix with several routes.
fn circuit_bytes(trace: &Trace, members: usize) -> Outcome<[[f64; 2]; 2]> {
    let (mut sums, mut of_routes) = ([[0.0; 2]; 2], BTreeMap::new());
    let mut add = |sum: usize, bytes: [f64; 2]| sums[sum].iter_mut().zip(bytes).for_each(|(sum, bytes)| *sum += bytes);
    let export_all = Workload::export_all(members, [0; 16]).bytes();
    for event in &trace.events {
        event.announced.iter().for_each(|_| add(0, export_all));
        for number in event.announced.iter().chain(&event.withdrawn) {
            let routes = trace.table[*number].len();
            if routes < 2 {
                continue;
            }
            let bytes = match of_routes.get(&routes) {
                Some(bytes) => *bytes,
                None => {
                    let workload = Workload::select_best(SelectBest::paper(routes), members, [0; 16]);
                    workload.map_err(|error| Failure::from_error(&error))?.bytes()
                }
            };
            of_routes.insert(routes, bytes);
            add(1, bytes);
        }
    }
    Ok(sums)
}

#[cfg(test)]
mod tests {
    use wayleave_papers::bench::exchange_trace::Event;

    use super::*;

    #[test]
    fn circuits_send_for_each_announced_route_and_for_each_change_among_several() {
        let event = |announced, withdrawn| Event { second: 1, member: 0, announced, withdrawn, length: 1 };
        let events = vec![event(vec![0, 1], vec![]), event(vec![1], vec![1, 2])];
        // Prefix 0 has one route, prefix 1 two and prefix 2 three.
        let trace = Trace { table: vec![vec![0], vec![0, 1], vec![0, 1, 2]], events };
        let Ok([export_all, select_best]) = circuit_bytes(&trace, 10) else { panic!("within limits") };
        let of = |routes| Workload::select_best(SelectBest::paper(routes), 10, [0; 16]).expect("within limits").bytes();
        for kind in 0..2 {
            assert_eq!(export_all[kind], 3.0 * Workload::export_all(10, [0; 16]).bytes()[kind]);
            assert_eq!(select_best[kind], 3.0 * of(2)[kind] + of(3)[kind]);
        }
        assert_eq!(duration(&trace), 2.0);
    }
}
