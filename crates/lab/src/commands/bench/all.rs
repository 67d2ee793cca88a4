//! `bench --all FOLDER`: every benchmark in turn, each in a process of its own, and a page of their results and plots.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio, exit};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;

use super::{ALL, Bench, DRAWN, unreadable};
use crate::commands::signals;
use wayleave_config::failure::{Failure, Outcome};
use wayleave_config::output::print;

/// A run of a benchmark: the file that it gives, the benchmark and more arguments, and whether it draws.
pub(super) struct Run {
    pub(super) file: String,
    pub(super) arguments: Vec<String>,
    draws: bool,
}

impl Run {
    /// One that draws nothing.
    pub(super) fn of(file: &str, arguments: impl IntoIterator<Item = String>) -> Self {
        Self { file: file.to_owned(), arguments: arguments.into_iter().collect(), draws: false }
    }
}

/// All runs, in the order of the list. A recorded trace is not drawn, and a generated one is.
fn runs() -> Vec<Run> {
    let mut runs = Vec::new();
    for (name, _) in ALL {
        let draws = DRAWN.contains(&name);
        let run = Run::of(name, [name.to_owned()]);
        if name == "exchange-trace" {
            runs.push(run);
            let generated = Run::of(&format!("{name}-generated"), [name, "--generated"].map(str::to_owned));
            runs.push(Run { draws, ..generated });
        } else {
            runs.push(Run { draws, ..run });
        }
    }
    runs
}

/// What a run gave: the name of its file, its report, and the name of its plot if it drew one.
pub(super) type Done = (String, Value, Option<String>);

/// What was played: all that was measured, whether a run failed, and the signal that ended it, if one did.
pub(super) struct Played {
    pub(super) done: Vec<Done>,
    outcome: Outcome,
    signal: Option<i32>,
}

impl Played {
    /// The outcome; after a signal the end of the process, with its exit code.
    pub(super) fn end(self) -> Outcome {
        match self.signal {
            Some(signal) => exit(128 + signal),
            None => self.outcome,
        }
    }
}

/// The run that is at work, and the signal that came.
#[derive(Default)]
struct AtWork {
    run: Option<Pid>,
    signal: Option<i32>,
}

impl AtWork {
    /// The run prints what it has measured for a signal.
    fn pass_on(&self) {
        if let (Some(run), Some(signal)) = (self.run, self.signal) {
            // It may have ended by now.
            let _ = kill_process(run, if signal == 2 { Signal::INT } else { Signal::TERM });
        }
    }
}

/// SIGINT and SIGTERM for whoever runs one benchmark after another: the one at work is told, and no other is begun. A second signal ends
/// both at once.
#[derive(Clone, Default)]
struct Stop(Arc<Mutex<AtWork>>);

impl Stop {
    fn listen() -> Outcome<Self> {
        let stop = Self::default();
        let (shared, mut next) = (stop.clone(), signals::listen()?);
        thread::spawn(move || {
            let signal = next();
            shared.change(|at_work| {
                at_work.signal = Some(signal);
                at_work.pass_on();
            });
            let signal = next();
            if let Some(run) = shared.change(|at_work| at_work.run) {
                let _ = kill_process_group(run, Signal::KILL);
            }
            exit(128 + signal);
        });
        Ok(stop)
    }

    fn change<T>(&self, change: impl FnOnce(&mut AtWork) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// This run is at work, or none.
    fn is_at_work(&self, run: Option<Pid>) {
        self.change(|at_work| {
            at_work.run = run;
            at_work.pass_on();
        });
    }

    fn signal(&self) -> Option<i32> {
        self.change(|at_work| at_work.signal)
    }
}

/// Runs all, writes `NAME.json`, `NAME.svg` and `index.html` to the folder, and prints each result as it comes.
///
/// # Errors
/// If one failed, or a file cannot be written.
pub fn run(bench: &Bench, folder: &Path) -> Outcome {
    play(bench, folder, &runs(), true)?.end()
}

/// Plays `runs` one after another, and prints each report if `is_printed`. One that fails does not keep the others from running,
/// and is in the outcome. After a signal no more is run, and what the last one had measured is kept as all else.
///
/// # Errors
/// If a file cannot be written.
pub(super) fn play(bench: &Bench, folder: &Path, runs: &[Run], is_printed: bool) -> Outcome<Played> {
    std::fs::create_dir_all(folder).map_err(unreadable(folder))?;
    let program = std::env::current_exe().map_err(|error| Failure::new(format!("this program's file: {error}")))?;
    let (mut done, mut failed, stop) = (Vec::new(), Vec::new(), Stop::listen()?);
    for (number, run) in (1..).zip(runs) {
        if stop.signal().is_some() {
            break;
        }
        eprintln!("{} ({number} of {})", run.arguments.join(" "), runs.len());
        let begin = Instant::now();
        let mut command = Command::new(&program);
        command.arg("bench").args(&run.arguments).arg("--json").stdout(Stdio::piped());
        // A terminal's Ctrl-C comes to this process alone, which passes it on: a second one would end the run at once.
        command.process_group(0).stdin(Stdio::null());
        if bench.short {
            command.arg("--short");
        }
        if let Some(repetitions) = bench.repetitions {
            command.args(["--repetitions", &repetitions.to_string()]);
        }
        let plot = format!("{}.svg", run.file);
        if run.draws {
            command.arg("--plot").arg(folder.join(&plot));
        }
        let failure = |error: std::io::Error| Failure::new(format!("{}: {error}", program.display()));
        let child = command.spawn().map_err(failure)?;
        stop.is_at_work(Some(Pid::from_child(&child)));
        let output = child.wait_with_output();
        stop.is_at_work(None);
        let output = output.map_err(failure)?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let is_kept = output.status.success() || stop.signal().is_some();
        let has_results = |report: &Value| report["results"].as_array().is_some_and(|results| !results.is_empty());
        let report = serde_json::from_str::<Value>(&text).ok().filter(|report| is_kept && has_results(report));
        let Some(report) = report else {
            if stop.signal().is_none() {
                eprintln!("{} failed: its message is above, and the others go on", run.file);
                failed.push(run.file.as_str());
            }
            continue;
        };
        if is_printed {
            print(&text);
        }
        eprintln!("{} s", begin.elapsed().as_secs());
        let file = folder.join(format!("{}.json", run.file));
        std::fs::write(&file, &text).map_err(unreadable(&file))?;
        let is_drawn = run.draws && output.status.success();
        done.push((run.file.clone(), report, is_drawn.then_some(plot)));
        // Also if a later one takes hours, or the machine is needed for something else.
        let file = folder.join("index.html");
        std::fs::write(&file, page(&done)).map_err(unreadable(&file))?;
    }
    let outcome = match failed[..] {
        [] => Ok(()),
        _ => Err(Failure::new(format!("failed: {}; their own messages are above", failed.join(", "))).into()),
    };
    let signal = stop.signal();
    if signal.is_some() {
        eprintln!("stopped: {} of {} were measured, the last one in part", done.len(), runs.len());
    }
    Ok(Played { done, outcome, signal })
}

/// A page of results, each with its parameters and its plot.
fn page(all: &[Done]) -> String {
    let mut out = String::from(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Wayleave: benchmarks</title>\n<style>\
         body { font-family: sans-serif; margin: 2em auto; max-width: 75em; padding: 0 1em; }\
         table { border-collapse: collapse; } td, th { padding: 0.1em 1em 0.1em 0; text-align: left; }\
         td + td { font-variant-numeric: tabular-nums; } img { max-width: 100%; } dt { float: left; margin-right: 0.5em; }\
         </style></head><body>\n<h1>Benchmarks</h1>\n<ul>\n",
    );
    for (name, ..) in all {
        let name = escaped(name);
        out += &format!("<li><a href=\"#{name}\">{name}</a></li>\n");
    }
    out += "</ul>\n";
    for (name, report, plot) in all {
        let name = escaped(name);
        out += &format!("<h2 id=\"{name}\">{name}</h2>\n");
        for key in ["git", "cpu", "build"] {
            out += &format!("<p>{key}: {}</p>\n", escaped(&words(&report[key])));
        }
        out += "<details><summary>parameters</summary><dl>\n";
        for (key, value) in report["params"].as_object().into_iter().flatten() {
            out += &format!("<dt>{}</dt><dd>{}</dd>\n", escaped(key), escaped(&words(value)));
        }
        out += "</dl></details>\n";
        if let Some(plot) = plot {
            out += &format!("<p><img src=\"{}\" alt=\"plot of {name}\"></p>\n", escaped(plot));
        }
        out += "<table><tr><th>result</th><th>value</th><th>unit</th><th>n</th><th>min</th><th>max</th></tr>\n";
        for result in report["results"].as_array().into_iter().flatten() {
            out += "<tr>";
            for key in ["name", "value", "unit", "n", "min", "max"] {
                out += &format!("<td>{}</td>", escaped(&words(&result[key])));
            }
            out += "</tr>\n";
        }
        out += "</table>\n";
    }
    out + "</body></html>\n"
}

/// A value as text, strings without quotes.
pub(super) fn words(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn escaped(words: &str) -> String {
    words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_page_has_every_result_and_plot_and_no_markup_of_its_parameters() {
        let result = json!({ "name": "online", "value": 0.5, "unit": "s", "n": 3, "min": 0.4, "max": 0.6 });
        let report = json!({ "git": "1a2b", "cpu": "a <b>", "params": { "links": "a & b" }, "results": [result] });
        let page = page(&[
            ("select-best".to_owned(), report.clone(), Some("select-best.svg".to_owned())),
            ("bgp-codec".to_owned(), report, None),
        ]);
        assert_eq!(page.matches("<td>online</td><td>0.5</td><td>s</td><td>3</td><td>0.4</td><td>0.6</td>").count(), 2);
        assert_eq!(page.matches("<img src=\"select-best.svg\"").count(), 1);
        assert!(page.contains("a &lt;b&gt;") && page.contains("a &amp; b") && !page.contains("<b>"));
    }

    #[test]
    fn every_benchmark_runs_and_each_plot_is_drawn() {
        let runs = runs();
        assert!(ALL.iter().all(|(name, _)| runs.iter().any(|run| run.arguments[0] == *name)));
        assert!(DRAWN.iter().all(|name| runs.iter().any(|run| run.arguments[0] == *name && run.draws)));
    }
}
