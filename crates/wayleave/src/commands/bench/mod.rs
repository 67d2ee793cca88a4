//! `bench`: measures, by one contract: stable result names, medians of repetitions, one JSON object on one line.

mod attest;
mod circuits;
mod codec;
mod direct;
mod forward;
mod forward_io;
mod forward_plot;
mod plot;
mod trace;

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::cli::{Bench, BenchMode};
use crate::failure::{Failure, Outcome};
use crate::output::{print, print_json, table};

/// All benchmarks, and what they measure.
const ALL: [(&str, &str); 10] = [
    ("bgp-codec", "decode and re-encode the UPDATEs of a trace"),
    ("export-all", "one route to all members: direct, or the circuit of the paper"),
    ("select-best", "the best route of each member, both parties over loopback TCP"),
    ("exchange-trace", "a recorded table through a whole exchange in one thread"),
    ("forward", "verify and rewrite packets in memory, beside no processing and beside IPv4 lookup"),
    ("forward-io", "a router between namespaces by every backend, beside the kernel's IP forwarding"),
    ("stamp", "put headers and bindings in front of packets in memory"),
    ("attest-ops", "every suite and baseline of attestation: sign, verify, generate, sizes, a whole UPDATE"),
    ("attest-trace", "delay of attested UPDATEs under the paper's workloads, a recorded trace or a table"),
    ("attest-memory", "bytes of signatures of the paper's three tables"),
];

pub fn run(bench: &Bench) -> Outcome {
    if bench.list {
        if bench.json {
            print_json(json!({ "benchmarks": ALL.map(|(name, what)| json!({ "name": name, "measures": what })) }));
        } else {
            print(&ALL.map(|(name, _)| format!("{name}\n")).concat());
        }
        return Ok(());
    }
    const PARTS: [&str; 3] = ["forward", "stamp", "forward-io"];
    if let Some(name) = bench.name.as_deref().filter(|name| !bench.only.is_empty() && !PARTS.contains(name)) {
        return Err(Failure::usage(format!("`{name}` takes no --only")).help(PARTS.join(" ")).into());
    }
    let mut report = match bench.name.as_deref() {
        Some("bgp-codec") => codec::run(bench)?,
        Some("export-all") if bench.mode == Some(BenchMode::Mpc) => circuits::export_all(bench)?,
        Some("export-all") => direct::run(bench),
        Some("select-best") => circuits::select_best(bench)?,
        Some("exchange-trace") => trace::run(bench)?,
        Some("forward") => forward::run(bench)?,
        Some("forward-io") => match forward_io::run(bench)? {
            Some(report) => report,
            // Printed inside.
            None => return Ok(()),
        },
        Some("stamp") => forward::stamp(bench)?,
        Some("attest-ops") => attest::ops(bench)?,
        Some("attest-trace") => attest::trace(bench)?,
        Some("attest-memory") => attest::memory(bench)?,
        other => {
            let name = other.unwrap_or_default();
            let known = ALL.map(|(name, what)| format!("{name}: {what}")).join("\n");
            return Err(Failure::usage(format!("no benchmark `{name}`")).help(known).into());
        }
    };
    if !bench.only.is_empty() {
        report.params.insert("only".to_owned(), json!(bench.only));
    }
    if bench.json {
        print_json(report.to_json());
    } else {
        print(&report.to_text());
    }
    Ok(())
}

/// Refuses an `--only` that no result's name begins with.
fn check_wanted(bench: &Bench, names: impl Iterator<Item = String>) -> Outcome<()> {
    let names: Vec<String> = names.collect();
    match bench.only.iter().find(|begin| !names.iter().any(|name| name.starts_with(begin.as_str()))) {
        Some(begin) => {
            Err(Failure::usage(format!("no result's name begins with `{begin}`")).help(names.join(" ")).into())
        }
        None => Ok(()),
    }
}

/// What a benchmark found.
struct Report {
    name: &'static str,
    params: Map<String, Value>,
    results: Vec<Measured>,
}

/// One result: all repetitions of one measure.
struct Measured {
    name: Cow<'static, str>,
    unit: &'static str,
    /// The median of the samples, unless it is some other summary of them.
    value: f64,
    n: usize,
    min: f64,
    max: f64,
}

impl Report {
    fn new(name: &'static str, params: Value) -> Self {
        let params = match params {
            Value::Object(params) => params,
            _ => Map::new(),
        };
        Self { name, params, results: Vec::new() }
    }

    /// Adds the median of `samples`.
    fn add(&mut self, name: impl Into<Cow<'static, str>>, unit: &'static str, samples: &[f64]) {
        self.summary(name, unit, samples, median(samples));
    }

    /// Adds another summary of `samples`.
    fn summary(&mut self, name: impl Into<Cow<'static, str>>, unit: &'static str, samples: &[f64], value: f64) {
        let min = samples.iter().copied().fold(f64::INFINITY, f64::min);
        let max = samples.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        self.results.push(Measured { name: name.into(), unit, value, n: samples.len(), min, max });
    }

    /// Adds a value that comes from `n` counted things in one run.
    fn counted(&mut self, name: impl Into<Cow<'static, str>>, unit: &'static str, value: f64, n: usize) {
        self.results.push(Measured { name: name.into(), unit, value, n, min: value, max: value });
    }

    /// The value of a result that was added.
    fn value(&self, name: &str) -> Option<f64> {
        self.results.iter().find(|result| result.name == name).map(|result| result.value)
    }

    /// Adds a value that is the same in every repetition.
    fn exact(&mut self, name: impl Into<Cow<'static, str>>, unit: &'static str, value: f64) {
        self.add(name, unit, &[value]);
    }

    fn to_json(&self) -> Value {
        let results: Vec<Value> = self
            .results
            .iter()
            .map(|r| json!({ "name": r.name, "value": r.value, "unit": r.unit, "n": r.n, "min": r.min, "max": r.max }))
            .collect();
        json!({
            "bench": self.name,
            "version": 1,
            "git": env!("WAYLEAVE_GIT"),
            "cpu": cpu(),
            "params": self.params,
            "results": results,
        })
    }

    fn to_text(&self) -> String {
        let number = |value: f64| match value.abs() {
            v if v == 0.0 || (v >= 100.0 && v.fract() == 0.0) => format!("{value:.0}"),
            v if v >= 1000.0 => format!("{value:.0}"),
            v if v >= 0.1 => format!("{value:.3}"),
            _ => format!("{value:.3e}"),
        };
        let rows = self.results.iter().map(|r| {
            vec![r.name.to_string(), number(r.value), r.unit.to_owned(), r.n.to_string(), number(r.min), number(r.max)]
        });
        let params: Vec<String> = self.params.iter().map(|(name, value)| format!("{name} {value}")).collect();
        let rows: Vec<Vec<String>> = rows.collect();
        format!(
            "{} ({})\n{}",
            self.name,
            params.join(", "),
            table(&["RESULT", "VALUE", "UNIT", "N", "MIN", "MAX"], &rows)
        )
    }
}

/// Draws into the file that was asked for, if one was.
fn draw(bench: &Bench, plot: impl FnOnce() -> plot::Plot) -> Outcome<()> {
    let Some(path) = &bench.plot else { return Ok(()) };
    std::fs::write(path, plot().to_svg()).map_err(|error| Failure::new(format!("{}: {error}", path.display())).into())
}

/// The middle sample, or the mean of the two in the middle; zero without samples.
fn median(samples: &[f64]) -> f64 {
    let sorted = sorted(samples);
    let at = |place: usize| sorted.get(place).copied().unwrap_or(0.0);
    f64::midpoint(at(sorted.len().saturating_sub(1) / 2), at(sorted.len() / 2))
}

/// The least sample that at least `percent` of all do not exceed; zero without samples.
fn percentile(samples: &[f64], percent: usize) -> f64 {
    let sorted = sorted(samples);
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
}

fn mean(samples: &[f64]) -> f64 {
    samples.iter().sum::<f64>() / samples.len().max(1) as f64
}

fn sorted(samples: &[f64]) -> Vec<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

fn seconds(times: &[Duration]) -> Vec<f64> {
    times.iter().map(Duration::as_secs_f64).collect()
}

/// The processor's name, as the kernel says it.
fn cpu() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("model name"));
    let name = line.and_then(|line| line.split_once(':')).map(|(_, name)| name.trim().to_owned());
    name.unwrap_or_else(|| "unknown".to_owned())
}

/// The trace given, or else the one that comes with the sources.
fn trace_file(given: Option<&PathBuf>, default: &str) -> Outcome<PathBuf> {
    if let Some(path) = given {
        return Ok(path.clone());
    }
    let file = Path::new("test-data/bgp").join(default);
    let program = std::env::current_exe().unwrap_or_default();
    let near = program.ancestors().map(|folder| folder.join(&file)).find(|path| path.exists());
    let found = near.or_else(|| file.exists().then(|| file.clone()));
    let missing = || Failure::new(format!("{} is not here", file.display())).help("say --mrt FILE");
    Ok(found.ok_or_else(missing)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_lies_between_the_two_in_the_middle() {
        assert_eq!(median(&[4.0, 1.0, 2.0, 100.0]), 3.0);
        assert_eq!(median(&[4.0, 1.0, 2.0]), 2.0);
        assert_eq!((median(&[5.0]), median(&[])), (5.0, 0.0));
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!((percentile(&hundred, 99), percentile(&hundred, 100), percentile(&[7.0], 99)), (99.0, 100.0, 7.0));
    }
}
