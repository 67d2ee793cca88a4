//! A benchmark that measures inside network namespaces and is stopped.
//!
//! OPS, benchmarks, stopped: a benchmark in namespaces is stopped, and a run of several: what was measured until then.
#![allow(clippy::disallowed_methods, reason = "a test starts the program")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;
use wayleave_lab::netns::{self, Rung};

/// `forward-io` in a process group of its own, as a shell starts it.
fn start() -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wayleave-lab"));
    // The first result is there after some two seconds; the others take half a minute.
    command.args(["bench", "forward-io", "--short", "--repetitions", "1", "--json"]);
    command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs")
}

/// What it printed, once it was sent a signal by `send` after so many words of progress, and its exit code.
fn stopped(words: usize, send: impl FnOnce(Pid)) -> (String, Option<i32>) {
    let mut child = start();
    let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines().map_while(Result::ok);
    assert!(lines.by_ref().filter(|line| line.contains("s so far")).nth(words - 1).is_some());
    send(Pid::from_child(&child));
    lines.for_each(drop);
    let output = child.wait_with_output().expect("it ends");
    (String::from_utf8_lossy(&output.stdout).into_owned(), output.status.code())
}

/// Ctrl-C goes to all processes of the terminal's group, SIGTERM to the one that was called: either way the process inside the
/// namespaces prints, and the one outside ends by the signal. On a slow machine nothing may be measured yet; then it has more time.
#[test]
fn a_benchmark_inside_namespaces_that_is_stopped_prints_what_it_has_measured() {
    if netns::detect().rung == Rung::Simulated {
        return netns::skipped("network namespaces are not available");
    }
    let to_group = |process: Pid| kill_process_group(process, Signal::INT).expect("sent");
    let to_one = |process: Pid| kill_process(process, Signal::TERM).expect("sent");
    for (send, code) in [(&to_group as &dyn Fn(Pid), 130), (&to_one, 143)] {
        let tries = (2..4).map(|words| stopped(words, send));
        let printed = tries.into_iter().find_map(|(printed, ended)| {
            assert_eq!(ended, Some(code), "{printed}");
            (!printed.is_empty()).then_some(printed)
        });
        let report: Value = serde_json::from_str(&printed.expect("a result within 20 seconds")).expect("one object");
        assert_eq!((&report["bench"], &report["params"]["stopped"]), (&"forward-io".into(), &true.into()), "{report}");
        let first = &report["results"][0];
        assert!(first["name"] == "kernel-ip" && first["value"].as_f64().is_some_and(|value| value > 0.0), "{report}");
    }
}

/// Stops a run of several while `attest-ops`, its second, is at work, after so many words of progress of that; the folder that it wrote,
/// and its exit code.
fn stopped_headline(words: usize) -> (PathBuf, Option<i32>) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("headline-stopped-{words}"));
    let _ = fs::remove_dir_all(&folder);
    let mut command = Command::new(env!("CARGO_BIN_EXE_wayleave-lab"));
    // So many take the first one some ten seconds, and the second one much longer.
    command.args(["bench", "--short", "--repetitions", "100", "--headline"]).arg(&folder);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it runs");
    let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines().map_while(Result::ok);
    let is_word = |line: &String| line.starts_with("attest-ops: ") && line.contains("s so far");
    assert!(lines.by_ref().filter(is_word).nth(words - 1).is_some(), "attest-ops is at work for so long");
    kill_process(Pid::from_child(&child), Signal::TERM).expect("sent");
    lines.for_each(drop);
    (folder, child.wait().expect("it ends").code())
}

#[test]
fn a_run_of_several_that_is_stopped_keeps_what_was_measured_and_the_part_of_the_one_at_work() {
    let read = |folder: &Path, file: &str| fs::read_to_string(folder.join(file)).unwrap_or_default();
    let part = (1..4).find_map(|words| {
        let (folder, ended) = stopped_headline(words);
        assert_eq!(ended, Some(143));
        // What was whole before is there, and the table of it; nothing was begun after it.
        let report: Value = serde_json::from_str(&read(&folder, "select-best.json")).expect("a report");
        assert!(report["params"]["stopped"].is_null() && report["results"][0]["value"].is_number(), "{report}");
        assert!(!folder.join("exchange-trace.json").exists());
        let table = read(&folder, "headline.md");
        assert!(table.contains("online") && table.contains("not measured"), "{table}");
        // On a slow machine nothing may be measured yet; then it has more time.
        let part: Value = serde_json::from_str(&read(&folder, "attest-ops.json")).ok()?;
        assert!(table.contains("Stopped while `attest-ops` was measured"), "{table}");
        Some(part)
    });
    let part = part.expect("a result of attest-ops");
    assert_eq!(part["params"]["stopped"], true, "{part}");
    assert!(part["results"][0]["value"].is_number(), "{part}");
}
