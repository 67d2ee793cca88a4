//! `bench`: measures, by one contract: stable result names, medians of repetitions, one JSON object on one line.

mod all;
mod arguments;
mod attest;
mod chain;
mod circuits;
mod codec;
mod exchange;
mod forward;
mod forward_io;
mod granularity;
mod headline;
mod key_server;
mod key_server_loopback;
mod other_overlays;
mod overlay;
mod paper_node;
mod papers;
mod peers;
mod pocomon;
mod stopped;
mod stress;
mod trace;
mod traffic;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use wayleave_bgp::mrt;
use wayleave_lab::console::experiments::Experiment;
use wayleave_lab::netns::{self, Rung};
use wayleave_lab::trace::recorded;
use wayleave_papers::plot::Plot;
use wayleave_papers::report::{Report, mean};

use arguments::selects;
pub use arguments::{AttestWorkload, Bench, BenchMode, BenchOutput, BenchServer, BenchSinks};
use wayleave_config::failure::{Failure, Outcome};
use wayleave_config::output::{print, print_json, table};

/// All benchmarks, and what they measure.
const ALL: [(&str, &str); 18] = [
    ("bgp-codec", "decode and re-encode the UPDATEs of a trace"),
    ("export-all", "one route to all members: direct, or the circuit of the paper"),
    ("select-best", "the best route of each member, both parties over loopback TCP"),
    ("exchange-trace", "a recorded or a generated trace through a whole exchange in one thread"),
    ("exchange-stress", "the parties alone: routes and prefixes a second, by the number of workers"),
    ("exchange-join", "a member announces a full table to all others, and a further member joins it"),
    ("exchange-restart", "each party is killed and returns: the first update, all members, memory"),
    ("exchange-peers", "the exchange beside BIRD and OpenBGPD: sessions, a table, a reload, a return, memory"),
    ("forward", "verify and rewrite packets in memory, beside no processing and beside IPv4 lookup"),
    (
        "forward-io",
        "a router between namespaces by every backend, beside the kernel's IP forwarding; forwarded against offered load",
    ),
    ("stamp", "put headers and bindings in front of packets in memory"),
    ("overlay", "two gateways over three forwarders and over none, beside WireGuard and an overlay that does nothing"),
    ("pocomon", "the PoComON paper's chain of five nodes: throughput of intervals of 50 packets"),
    (
        "key-server",
        "answers of a key server in memory and over loopback, beside its static record; memory of a principal",
    ),
    (
        "waypoint-granularity",
        "one-way latency through the best cluster of a provider's routers, by the number of clusters",
    ),
    ("attest-ops", "every suite and baseline of attestation: sign, verify, generate, sizes, a whole UPDATE"),
    ("attest-trace", "delay of attested UPDATEs under the paper's workloads, a recorded trace or a table"),
    ("attest-memory", "bytes of signatures of the paper's three tables"),
];

/// Those that `--plot` can draw.
const DRAWN: [&str; 13] = [
    "select-best",
    "exchange-trace",
    "exchange-stress",
    "exchange-join",
    "forward",
    "forward-io",
    "stamp",
    "overlay",
    "pocomon",
    "waypoint-granularity",
    "attest-ops",
    "attest-trace",
    "attest-memory",
];

pub fn run(bench: &Bench) -> Outcome {
    if !bench.party.is_empty() {
        return exchange::party(&bench.party);
    }
    if bench.list {
        list(bench.json);
        return Ok(());
    }
    if let (None, Some(id)) = (&bench.name, &bench.paper) {
        return run(&papers::Exhibit::named(id)?.bench(bench)?);
    }
    if let Some(folder) = &bench.all {
        return all::run(bench, folder);
    }
    if let Some(folder) = &bench.headline {
        return headline::run(bench, folder);
    }
    const PARTS: [&str; 5] = ["forward", "stamp", "forward-io", "overlay", "pocomon"];
    if let Some(name) = bench.name.as_deref().filter(|name| !bench.only.is_empty() && !PARTS.contains(name)) {
        return Err(Failure::usage(format!("`{name}` takes no --only")).help(PARTS.join(" ")).into());
    }
    let has_no_plot =
        |name: &&str| bench.plot.is_some() && ALL.iter().any(|all| all.0 == *name) && !DRAWN.contains(name);
    if let Some(name) = bench.name.as_deref().filter(has_no_plot) {
        return Err(Failure::usage(format!("`{name}` draws no plot")).help(DRAWN.join(" ")).into());
    }
    let is_known = ALL.iter().any(|all| Some(all.0) == bench.name.as_deref());
    if cfg!(debug_assertions) && is_known && netns::inside().is_none() {
        eprintln!("this is a debug build, which is slower: figures come from that of `make release`");
    }
    let _progress = Progress::start(bench.name.clone().unwrap_or_default());
    stopped::keep_what_is_measured(bench)?;
    let mut report = match bench.name.as_deref() {
        Some("bgp-codec") => codec::run(bench)?,
        Some("export-all") => circuits::export_all(bench)?,
        Some("select-best") => circuits::select_best(bench)?,
        Some("exchange-trace") => trace::run(bench)?,
        Some("exchange-stress") => stress::run(bench)?,
        Some("exchange-join") => exchange::join(bench)?,
        Some("exchange-restart") => exchange::restart(bench)?,
        Some("forward") => forward::run(bench)?,
        Some(name @ ("exchange-peers" | "forward-io" | "overlay" | "pocomon")) => {
            let outcome = match name {
                "exchange-peers" => peers::run(bench),
                "overlay" => overlay::run(bench),
                "pocomon" => pocomon::run(bench),
                _ => forward_io::run(bench),
            };
            match outcome? {
                Some(report) => report,
                // Printed inside.
                None => return Ok(()),
            }
        }
        Some("stamp") => forward::stamp(bench)?,
        Some("key-server") => key_server::run(bench)?,
        Some("waypoint-granularity") => granularity::run(bench)?,
        Some("attest-ops") => attest::ops(bench)?,
        Some("attest-trace") => attest::trace(bench)?,
        Some("attest-memory") => attest::memory(bench)?,
        other => {
            let known = ALL.map(|(name, what)| format!("{name}: {what}")).join("\n");
            let why = other.map_or("no benchmark is named".to_owned(), |name| format!("no benchmark `{name}`"));
            let help = format!("{known}\n`--list` also has the tables and figures of the papers, which `--paper` runs");
            return Err(Failure::usage(why).help(help).into());
        }
    };
    stopped::is_over();
    if !bench.only.is_empty() {
        report.params.insert("only".to_owned(), json!(bench.only));
    }
    if let Some(id) = &bench.paper {
        report.params.insert("paper".to_owned(), json!(id));
    }
    if bench.json {
        print_json(to_json(&report));
    } else if bench.paper.is_none() {
        print(&to_text(&report));
    }
    Ok(())
}

/// The tables and figures of papers, for a console that runs them.
pub fn experiments() -> Vec<Experiment> {
    papers::ALL.iter().map(|one| Experiment { id: one.id, shows: one.about, takes: one.takes }).collect()
}

/// Prints the benchmarks, and the tables and figures of papers.
fn list(as_json: bool) {
    if as_json {
        let exhibits: Vec<Value> =
            papers::ALL.iter().map(|one| json!({ "id": one.id, "shows": one.about, "takes": one.takes })).collect();
        return print_json(json!({
            "benchmarks": ALL.map(|(name, what)| json!({ "name": name, "measures": what })),
            "papers": exhibits,
        }));
    }
    let benchmarks = ALL.map(|(name, what)| vec![name.to_owned(), what.to_owned()]);
    let exhibits: Vec<Vec<String>> =
        papers::ALL.iter().map(|one| vec![one.id.to_owned(), one.takes.to_owned(), one.about.to_owned()]).collect();
    print(&table(&["BENCHMARK", "MEASURES"], &benchmarks));
    print("\n");
    print(&table(&["--paper", "--short TAKES", "SHOWS"], &exhibits));
    print("\nabout, with `make release` on two cores; without --short some ten times as long\n");
}

/// Says on standard error, while it lives, that a benchmark is at work.
struct Progress(Arc<(Mutex<bool>, Condvar)>);

impl Progress {
    /// The first words come after this long, and the next after so long each.
    const SILENT: Duration = Duration::from_secs(2);
    const EVERY: Duration = Duration::from_secs(10);

    fn start(name: String) -> Self {
        let progress = Self(Arc::default());
        // Inside namespaces the process outside says so.
        if netns::inside().is_some() {
            return progress;
        }
        let (shared, begin) = (Arc::clone(&progress.0), Instant::now());
        std::thread::spawn(move || {
            let (ended, changed) = &*shared;
            let mut wait = Self::SILENT;
            let Ok(mut is_over) = ended.lock() else { return };
            loop {
                let Ok((guard, timeout)) = changed.wait_timeout_while(is_over, wait, |over| !*over) else { return };
                is_over = guard;
                if !timeout.timed_out() {
                    return;
                }
                eprintln!("{name}: {} s so far", begin.elapsed().as_secs());
                wait = Self::EVERY;
            }
        });
        progress
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Ok(mut is_over) = self.0.0.lock() {
            *is_over = true;
        }
        self.0.1.notify_all();
    }
}

/// The rung, inside namespaces. Outside, this runs this program again inside, with `more` arguments, and returns `None` once it
/// has measured and printed there.
fn enter(more: impl IntoIterator<Item = String>) -> Outcome<Option<Rung>> {
    if let Some(rung) = netns::inside() {
        return Ok(Some(rung));
    }
    let detection = netns::detect();
    if detection.rung == Rung::Simulated {
        let why: Vec<&str> = detection.refused.iter().map(|(_, why)| why.as_str()).collect();
        return Err(Failure::new(format!("network namespaces cannot be created: {}", why.join("; "))).into());
    }
    let arguments = std::env::args_os().skip(1).chain(more.into_iter().map(OsString::from));
    stopped::begins_inside();
    let ended = netns::enter(detection.rung, arguments, None);
    stopped::has_ended_inside();
    let ended = ended.map_err(|error| Failure::new(format!("network namespaces: {error}")))?;
    if ended.success() {
        Ok(None)
    } else {
        Err(Failure::new("the benchmark failed inside its namespaces; its own message is above").into())
    }
}

/// Refuses an `--only` that no result's name begins with.
fn check_only(bench: &Bench, names: impl Iterator<Item = String>) -> Outcome<()> {
    let names: Vec<String> = names.collect();
    match bench.only.iter().find(|begin| !names.iter().any(|name| selects(begin, name))) {
        Some(begin) => {
            Err(Failure::usage(format!("no result's name begins with `{begin}`")).help(names.join(" ")).into())
        }
        None => Ok(()),
    }
}

/// The JSON contract, which every benchmark keeps.
fn to_json(report: &Report) -> Value {
    let results: Vec<Value> = report
        .results
        .iter()
        .map(|r| json!({ "name": r.name, "value": r.value, "unit": r.unit, "n": r.n, "min": r.min, "max": r.max }))
        .collect();
    json!({
        "bench": report.name,
        "version": 1,
        "git": env!("WAYLEAVE_GIT"),
        "cpu": cpu(),
        "build": BUILD,
        "params": report.params,
        "results": results,
    })
}

fn to_text(report: &Report) -> String {
    let number = |value: f64| match value.abs() {
        v if v == 0.0 || (v >= 100.0 && v.fract() == 0.0) => format!("{value:.0}"),
        v if v >= 1000.0 => format!("{value:.0}"),
        v if v >= 0.1 => format!("{value:.3}"),
        _ => format!("{value:.3e}"),
    };
    let rows = report.results.iter().map(|r| {
        vec![r.name.to_string(), number(r.value), r.unit.to_owned(), r.n.to_string(), number(r.min), number(r.max)]
    });
    let params: Vec<String> = report.params.iter().map(|(name, value)| format!("{name} {value}")).collect();
    let rows: Vec<Vec<String>> = rows.collect();
    format!(
        "{} ({})\n{}{}",
        report.name,
        params.join(", "),
        table(&["RESULT", "VALUE", "UNIT", "N", "MIN", "MAX"], &rows),
        measured_by()
    )
}

/// How this program was built.
const BUILD: &str = if cfg!(debug_assertions) { "debug" } else { "release" };

/// The line below figures: of which program and machine they are.
fn measured_by() -> String {
    let than = if cfg!(debug_assertions) { ", which is slower than `make release` builds it" } else { "" };
    format!("measured with {}, a {BUILD} build{than}, on {}\n", env!("WAYLEAVE_GIT"), cpu())
}

/// Prints the plot as text, with the published figures, and writes it to the file of `--plot`, if that was given.
fn draw(bench: &Bench, plot: impl FnOnce() -> Plot) -> Outcome<()> {
    if bench.json && bench.plot.is_none() {
        return Ok(());
    }
    let plot = plot();
    if !bench.json {
        let exhibit = bench.paper.as_deref().map(papers::Exhibit::named).transpose()?;
        print(&plot.to_text_of(|title| exhibit.is_none_or(|one| one.has(title))));
        // Otherwise the table of results follows, which ends with it.
        print(&exhibit.map_or("\n".to_owned(), |_| measured_by()));
    }
    if let Some(path) = &bench.plot {
        std::fs::write(path, plot.to_svg()).map_err(unreadable(path))?;
        eprintln!("wrote {}", path.display());
    }
    Ok(())
}

/// The processor's model name.
fn cpu() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("model name"));
    let name = line.and_then(|line| line.split_once(':')).map(|(_, name)| name.trim().to_owned());
    name.unwrap_or_else(|| "unknown".to_owned())
}

/// The trace of `--mrt`, or else the one that comes with the sources.
fn trace_file(given: Option<&PathBuf>, default: &str) -> Outcome<PathBuf> {
    if let Some(path) = given {
        return Ok(path.clone());
    }
    let missing = || {
        let places = "test-data/bgp and share/wayleave/bgp, of this folder and of those above the program";
        Failure::new(format!("the recorded trace {default} is in none of {places}"))
            .help("run it in a clone of the sources, or say --mrt FILE")
    };
    Ok(recorded(default).ok_or_else(missing)?)
}

/// The standard deviation of all of these, which are not a sample of more.
fn deviation(values: &[f64]) -> f64 {
    let middle = mean(values);
    (values.iter().map(|value| (value - middle).powi(2)).sum::<f64>() / values.len().max(1) as f64).sqrt()
}

/// A clock that starts now.
fn clock() -> impl FnMut() -> Duration {
    let start = Instant::now();
    move || start.elapsed()
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn unreadable(path: &Path) -> impl Fn(io::Error) -> Failure {
    move |error| Failure::new(format!("{}: {error}", path.display()))
}

/// The MRT file, decompressed as its first octets say.
fn open(path: &Path) -> Outcome<impl Read + use<>> {
    let file = BufReader::new(File::open(path).map_err(unreadable(path))?);
    Ok(mrt::decompress(file).map_err(unreadable(path))?)
}
