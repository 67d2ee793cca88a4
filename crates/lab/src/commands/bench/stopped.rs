//! A benchmark that is stopped prints what it has measured until then.

use std::fs;
use std::process::exit;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, setsid};
use serde_json::json;
use wayleave_config::failure::Outcome;
use wayleave_config::output::{print, print_json};
use wayleave_lab::netns;
use wayleave_papers::plot;
use wayleave_papers::report::{Report, so_far};

use super::papers::Exhibit;
use super::{ALL, Bench, measured_by, to_json, to_text};
use crate::commands::signals;

/// Those that measure in a process inside namespaces, which this one starts and waits for.
pub const IN_NAMESPACES: [&str; 4] = ["exchange-peers", "forward-io", "overlay", "pocomon"];

/// Set when the results are printed as at every end.
static IS_OVER: AtomicBool = AtomicBool::new(false);
/// Outside of the namespaces: whether the process inside may have measured something, and the signal that came, or zero.
static HAS_BEGUN: AtomicBool = AtomicBool::new(false);
static CAME: AtomicI32 = AtomicI32::new(0);
/// See [`measures_here`].
static MEASURES_HERE: AtomicBool = AtomicBool::new(false);
/// A signal is passed on so often: one that comes before the process inside listens is lost.
const AGAIN: Duration = Duration::from_millis(100);

/// Which process of a benchmark this is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BenchProcess {
    /// The only one.
    Alone,
    /// The one that was called, of a benchmark that measures inside namespaces.
    Outside,
    /// The one that measures there.
    Inside,
}

/// What is measured needs no namespaces this time, and is measured in this process.
pub fn measures_here() {
    MEASURES_HERE.store(true, Ordering::Release);
}

/// From here on nothing more is printed for a signal.
pub fn is_over() {
    IS_OVER.store(true, Ordering::Release);
}

/// From here on the process inside the namespaces measures, and is passed the signals of this one.
pub fn begins_inside() {
    HAS_BEGUN.store(true, Ordering::Release);
}

/// The process inside has ended: ends this one too if that was by a signal, with its exit code.
pub fn has_ended_inside() {
    match CAME.load(Ordering::Acquire) {
        0 => {}
        signal => exit(128 + signal),
    }
}

/// From here on SIGINT and SIGTERM end the process with what was measured so far, marked as a part, and the exit code of the signal; a
/// second one ends it at once. Where a process inside namespaces measures, it is that one which prints.
pub fn keep_what_is_measured(bench: &Bench) -> Outcome {
    let name = bench.name.as_deref().unwrap_or_default();
    let Some((name, _)) = ALL.iter().find(|(known, _)| *known == name) else { return Ok(()) };
    let place = match (IN_NAMESPACES.contains(name), netns::inside()) {
        (false, _) => BenchProcess::Alone,
        (true, None) => BenchProcess::Outside,
        (true, Some(_)) => BenchProcess::Inside,
    };
    if place == BenchProcess::Inside {
        // A terminal's Ctrl-C goes to all processes of its session. Those inside, the routers among them, go on until the one outside
        // passes it on.
        let _ = setsid();
    }
    let (name, is_json, paper) = (*name, bench.json, bench.paper.clone());
    let mut next = signals::listen()?;
    thread::spawn(move || {
        let signal = next();
        let is_outside = place == BenchProcess::Outside && !MEASURES_HERE.load(Ordering::Acquire);
        let place = if is_outside || place == BenchProcess::Inside { place } else { BenchProcess::Alone };
        if place == BenchProcess::Outside {
            pass_on(name, signal);
        } else if !IS_OVER.load(Ordering::Acquire) {
            thread::spawn(move || {
                print_part(name, is_json, paper.as_deref());
                exit(128 + signal);
            });
        } else if place == BenchProcess::Alone {
            exit(128 + signal);
        }
        // Inside, the same signal comes again and again; a second one ends the process outside, and so this one.
        if place == BenchProcess::Inside {
            return;
        }
        // Whoever reads may not read on.
        exit(128 + next());
    });
    Ok(())
}

/// Passes the signal on to the process inside, on a thread of its own, until that has ended.
fn pass_on(name: &'static str, signal: i32) {
    CAME.store(signal, Ordering::Release);
    let kind = if signal == 2 { Signal::INT } else { Signal::TERM };
    let own = [rustix::process::getpid()];
    let send = move |to: Vec<Pid>| {
        for process in to {
            // It may have ended by now.
            let _ = kill_process(process, kind);
        }
    };
    if !HAS_BEGUN.load(Ordering::Acquire) {
        eprintln!("{name}: stopped before anything was measured");
        // What is fetched or built meanwhile.
        send(children(&own));
        exit(128 + signal);
    }
    thread::spawn(move || {
        loop {
            // The child is `unshare`, and its child the process inside.
            send(children(&children(&own)));
            thread::sleep(AGAIN);
        }
    });
}

/// The processes whose parent is one of these.
fn children(parents: &[Pid]) -> Vec<Pid> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_child = |process: &i32| {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        parent(&stat).and_then(Pid::from_raw).is_some_and(|parent| parents.contains(&parent))
    };
    processes.filter(is_child).filter_map(Pid::from_raw).collect()
}

/// The parent in a line of `/proc/PID/stat` (proc(5)): the second field after the name, which stands in brackets and may have any in it.
fn parent(stat: &str) -> Option<i32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// What there is of a table or figure beside the published figures; `None` of one that is drawn from samples, which no report has.
fn beside_published(report: &Report, paper: &str) -> Option<String> {
    let exhibit = Exhibit::named(paper).ok()?;
    let plot = match report.name {
        "attest-ops" => plot::attestation::ops(report),
        "attest-memory" => plot::attestation::memory(report),
        "forward" => plot::forward::forward(report),
        "forward-io" => plot::forward::forward_io(report),
        "stamp" => plot::forward::stamp(report),
        "exchange-join" => plot::exchange::join(report),
        "waypoint-granularity" => plot::granularity::granularity(report),
        "overlay" => plot::overlay::overlay(report),
        _ => return None,
    };
    Some(plot.to_text_of(|title| exhibit.has(title)) + &measured_by())
}

fn print_part(name: &'static str, is_json: bool, paper: Option<&str>) {
    let mut report = Report::new(name, json!({ "stopped": true }));
    report.results = so_far();
    if report.results.is_empty() {
        eprintln!("{name}: stopped before anything was measured");
    }
    if is_json {
        print_json(to_json(&report));
    } else if !report.results.is_empty() {
        eprintln!("{name}: stopped; what was measured until then:");
        let text = paper.and_then(|paper| beside_published(&report, paper));
        print(&text.unwrap_or_else(|| to_text(&report)));
    }
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;

    #[test]
    fn what_was_measured_of_a_table_stands_beside_what_is_published() {
        let mut report = Report::new("attest-ops", json!({ "stopped": true }));
        for what in ["sign", "verify", "update", "verification", "equation_1"] {
            report.exact(format!("{what}.s-bgp"), "s", 4e-5);
        }
        let text = beside_published(&report, "kc-x/table-3").expect("it is drawn from a report");
        let has = |words: &str| text.contains(words);
        assert!(has("KC-x, Table III") && has("s-bgp") && has("published") && has("40.0 µs"), "{text}");
        assert!(!has("Table I:") && !has("Figure 4"), "{text}");
        assert!(beside_published(&report, "kc-x/table-9").is_none());
    }

    #[test]
    fn a_parent_is_found_behind_any_name() {
        assert_eq!(parent("71 (unshare) S 70 71 71 0 -1"), Some(70));
        assert_eq!(parent("71 (a) S 1 (b) R) R 70 71"), Some(70));
        assert_eq!(parent("71 (cut"), None);
    }

    #[test]
    fn children_and_their_children_are_found() {
        let mut child = std::process::Command::new("sh");
        // The shell stays, since a command follows the one that it waits for. It would say that this one was killed.
        let mut child = child.args(["-c", "sleep 60; true"]).stderr(Stdio::null()).spawn().expect("a shell");
        let shell = Pid::from_child(&child);
        assert!(children(&[rustix::process::getpid()]).contains(&shell));
        let found = (0..500).find_map(|_| {
            thread::sleep(Duration::from_millis(10));
            children(&[shell]).first().copied()
        });
        assert!(!children(&[rustix::process::getpid()]).contains(&found.expect("the shell's own child")));
        kill_process(found.expect("as above"), Signal::KILL).expect("its parent waits for it");
        child.wait().expect("it ends");
    }

    #[test]
    fn what_measures_inside_namespaces_is_a_benchmark() {
        assert!(IN_NAMESPACES.iter().all(|name| ALL.iter().any(|(known, _)| known == name)));
    }

    #[test]
    fn every_benchmark_that_enters_namespaces_is_known_as_one() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/commands/bench");
        let sources = fs::read_dir(folder).expect("the sources").map(|entry| entry.expect("an entry").path());
        let enters = |source: &str| source.contains(" enter(");
        let entering = sources.filter(|path| !path.ends_with("stopped.rs") && !path.ends_with("mod.rs"));
        let entering = entering.filter(|path| enters(&fs::read_to_string(path).expect("a source")));
        let named = |path: std::path::PathBuf| {
            let stem = path.file_stem().and_then(|stem| stem.to_str()).expect("a name").replace('_', "-");
            let own = IN_NAMESPACES.into_iter().find(|name| *name == stem || name.ends_with(&format!("-{stem}")));
            own.unwrap_or_else(|| panic!("{stem} is not among {IN_NAMESPACES:?}"))
        };
        let entering: std::collections::BTreeSet<&str> = entering.map(named).collect();
        assert_eq!(entering, IN_NAMESPACES.into());
    }
}
