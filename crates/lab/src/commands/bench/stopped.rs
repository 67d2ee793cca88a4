//! A benchmark that is stopped prints what it has measured until then.

use std::process::exit;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use wayleave_config::failure::{Failure, Outcome};
use wayleave_config::output::{print, print_json};
use wayleave_papers::report::{Report, so_far};

use super::{ALL, Bench, to_json, to_text};

/// Set when the results are printed as at every end.
static IS_OVER: AtomicBool = AtomicBool::new(false);

/// From here on nothing more is printed for a signal.
pub fn is_over() {
    IS_OVER.store(true, Ordering::Release);
}

/// From here on SIGINT and SIGTERM end the process with what was measured so far, marked as a part, and the exit code of the signal; a
/// second one ends it at once. Not where all is measured by a process inside namespaces, which tells its results at its end.
pub fn keep_what_is_measured(bench: &Bench) -> Outcome {
    const IN_NAMESPACES: [&str; 3] = ["forward-io", "overlay", "pocomon"];
    let name = bench.name.as_deref().unwrap_or_default();
    let known = ALL.iter().find(|(known, _)| *known == name && !IN_NAMESPACES.contains(known));
    let Some((name, _)) = known else { return Ok(()) };
    let (name, is_json) = (*name, bench.json);
    let failed = |error: std::io::Error| Failure::system("signals", &error);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().map_err(failed)?;
    let guard = runtime.enter();
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    drop(guard);
    std::thread::spawn(move || {
        let mut next = || {
            runtime.block_on(async {
                tokio::select! {
                    _ = interrupt.recv() => 2,
                    _ = terminate.recv() => 15,
                }
            })
        };
        let signal = next();
        if IS_OVER.load(Ordering::Acquire) {
            exit(128 + signal);
        }
        std::thread::spawn(move || {
            print_part(name, is_json);
            exit(128 + signal);
        });
        // Whoever reads may not read on.
        exit(128 + next());
    });
    Ok(())
}

fn print_part(name: &'static str, is_json: bool) {
    let mut report = Report::new(name, json!({ "stopped": true }));
    report.results = so_far();
    if report.results.is_empty() {
        eprintln!("{name}: stopped before anything was measured");
    } else if is_json {
        print_json(to_json(&report));
    } else {
        eprintln!("{name}: stopped; what was measured until then:");
        print(&to_text(&report));
    }
}
