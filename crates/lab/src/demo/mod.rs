//! The demonstration: an exchange with real routers, step by step; also the end-to-end test.
//!
//! It runs processes of the `wayleave` binary, real BGP routers where network namespaces are available, and kills
//! processes. Every step checks the routers' own tables.

mod attested;
mod browser;
pub mod exchange;
pub mod expect;
mod explore;
pub mod forge;
pub mod http;
pub mod internet;
pub mod layout;
pub mod overlay;
mod paid;
pub mod report;
mod session;
mod steps;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use self::exchange::DemoExchange;
use self::layout::Layout;
use self::report::{Report, Status};
use self::steps::STEPS;
use crate::netns::{self, Rung};
use crate::packages::{self, Missing, Use};
use crate::product;
use crate::routers::{Routers, default_cache, locate_or_fetch};
use crate::trace;

/// How the demonstration runs.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The rung to use; the highest that works here if not given.
    pub rung: Option<Rung>,
    /// Never prompt. Otherwise an operator at a terminal may explore the network before it is taken down.
    pub headless: bool,
    /// Stop at the first step that fails; a step of this rung that is skipped is a failure, too.
    pub assert: bool,
    /// Write JSON to the standard output and text to the standard error.
    pub json: bool,
    /// How many prefixes of a recorded table one member announces; [`DEFAULT_PREFIXES`] if not given.
    pub prefixes: Option<usize>,
    /// A recorded table (MRT, also compressed); the one that comes with the sources if not given.
    pub table: Option<PathBuf>,
    /// Keep configurations, state and logs in this folder.
    pub keep: Option<PathBuf>,
    /// The key server of the paid transit has a PostgreSQL database, which is fetched; else a SQLite file.
    pub postgresql: bool,
}

/// Prefixes of the recorded table by default.
pub const DEFAULT_PREFIXES: usize = 1_000;

/// Runs the demonstration with the product's program. `arguments` are those of this process: on
/// the upper rungs the program runs itself again inside its namespaces.
///
/// Call it on the main thread: the processes that it starts end with the thread that calls it.
pub fn run(options: &Options, arguments: &[OsString]) -> ExitCode {
    match netns::inside() {
        Some(rung) => run_steps(options, rung),
        None => choose_and_run(options, arguments),
    }
}

fn choose_and_run(options: &Options, arguments: &[OsString]) -> ExitCode {
    let rung = match choose(options.rung) {
        Ok(rung) => rung,
        Err(reason) => {
            eprintln!("{reason}");
            return ExitCode::FAILURE;
        }
    };
    if rung == Rung::Simulated {
        return run_steps(options, rung);
    }
    // Whoever looks is outside of the namespaces, and the console within.
    let outside = match options.headless || options.json {
        true => None,
        false => browser::outside().map_err(|error| eprintln!("no console: {error}")).ok(),
    };
    let environment = outside.as_ref().map(browser::Outside::environment);
    match netns::enter(rung, arguments, environment) {
        Ok(status) => ExitCode::from(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1)),
        Err(error) => {
            eprintln!("cannot enter the namespaces of rung {rung}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The rung to run on, reported with the reason why no higher one works. A rung that was given is not questioned. All that is
/// fetched is fetched here: in the namespaces there is no way to a mirror.
fn choose(wanted: Option<Rung>) -> Result<Rung, String> {
    let rung = wanted.unwrap_or_else(|| {
        let detection = netns::detect();
        for (rung, reason) in &detection.refused {
            eprintln!("rung {rung} is not available: {reason}");
        }
        detection.rung
    });
    let missing = if rung == Rung::Simulated { Vec::new() } else { fetch() };
    let rung = rung_with(rung, wanted.is_some(), missing.iter().any(Missing::is_router))?;
    eprintln!("rung: {rung} ({})", meaning(rung));
    Ok(rung)
}

/// Fetches what the steps need, and names what is not to be had.
fn fetch() -> Vec<Missing> {
    let mut say = |line: &str| eprintln!("{line}");
    let missing = packages::fetch_all(Use::Demo, &default_cache(), &mut say, &mut |_, _| ());
    for one in &missing {
        eprintln!("not to be had: {one}");
    }
    missing
}

/// The rung that can be played where real routers may be missing.
fn rung_with(rung: Rung, given: bool, routers_are_missing: bool) -> Result<Rung, String> {
    match (rung, given) {
        (Rung::Simulated, _) => Ok(rung),
        _ if !routers_are_missing => Ok(rung),
        (_, true) => Err(format!("rung {rung} was asked for and needs BIRD and FRR; rung simulated does without")),
        (_, false) => Ok(Rung::Simulated),
    }
}

fn meaning(rung: Rung) -> &'static str {
    match rung {
        Rung::Root => "real routers in network namespaces; nothing is left behind",
        Rung::Rootless => "real routers in network namespaces, without root; nothing is left behind",
        Rung::Simulated => "real processes on loopback; the laboratory's own BGP speakers take the routers' part",
    }
}

fn run_steps(options: &Options, rung: Rung) -> ExitCode {
    let mut report = Report::new(options.json, STEPS.iter().map(|step| step.name).collect());
    let folder = StateFolder::new(options.keep.as_deref());
    let mut exchange = match prepare(rung, &folder) {
        Ok(exchange) => exchange,
        Err(error) => {
            report.print_line(&format!("preparation failed: {error}"));
            let _ = report.finish(&rung.to_string(), options.assert);
            return ExitCode::FAILURE;
        }
    };
    let _console = browser::start(options, &exchange, &report);
    for step in STEPS {
        if step.is_last && !options.headless && !options.json {
            explore::explore(&mut exchange);
        }
        if !step.rungs.contains(&rung) {
            report.leave_out(&rung.to_string());
            continue;
        }
        if report.step(|facts| (step.play)(&mut exchange, options, facts)) == Status::Failed {
            for exited in exchange.exited() {
                report.print_line(&format!("    not running: {exited}"));
            }
            if options.assert {
                break;
            }
        }
    }
    drop(exchange);
    folder.copy_if_kept(&report);
    if report.finish(&rung.to_string(), options.assert) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn prepare(rung: Rung, folder: &StateFolder) -> Result<DemoExchange, String> {
    let binary = product::program().map_err(|error| format!("{error}; {}", product::REMEDY))?;
    if rung == Rung::Simulated {
        let layout = Layout::simulated(&folder.path).map_err(|error| error.to_string())?;
        return DemoExchange::new(layout, &binary, None);
    }
    let routers: Routers =
        locate_or_fetch(&default_cache(), &mut |line| eprintln!("{line}")).map_err(|error| error.to_string())?;
    let layout = Layout::real(rung).map_err(|error| error.to_string())?;
    DemoExchange::new(layout, &binary, Some(&routers))
}

/// The recorded table that comes with the sources.
fn default_table() -> PathBuf {
    let name = "ris.2015-10-23.first-50000-prefixes.updates.bz2";
    trace::recorded(name).unwrap_or_else(|| PathBuf::from(name))
}

/// The folder for configurations, keys, state and logs; removed on drop.
struct StateFolder {
    path: PathBuf,
    keep: Option<PathBuf>,
    /// Inside namespaces it is on a private tmpfs, which the kernel removes.
    remove: bool,
}

impl StateFolder {
    fn new(keep: Option<&Path>) -> Self {
        let keep = keep.map(Path::to_path_buf);
        if netns::inside().is_some() {
            return Self { path: PathBuf::from("/run/lab"), keep, remove: false };
        }
        let path = std::env::temp_dir().join(format!("wayleave-demo-{}", std::process::id()));
        // If this fails, writing the configurations reports it.
        let _ = std::fs::create_dir_all(&path);
        Self { path, keep, remove: true }
    }

    fn copy_if_kept(&self, report: &Report) {
        let Some(keep) = &self.keep else { return };
        let made = std::fs::create_dir_all(keep);
        let copied =
            made.and_then(|()| Command::new("cp").arg("-r").arg("--").arg(self.path.join(".")).arg(keep).status());
        match copied {
            Ok(status) if status.success() => report.print_line(&format!("state and logs are in {}", keep.display())),
            _ => report.print_line(&format!("state and logs could not be copied to {}", keep.display())),
        }
    }
}

impl Drop for StateFolder {
    fn drop(&mut self) {
        if self.remove {
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_real_routers_the_simulated_rung_is_played_unless_another_was_asked_for() {
        assert_eq!(rung_with(Rung::Root, false, false), Ok(Rung::Root));
        assert_eq!(rung_with(Rung::Root, false, true), Ok(Rung::Simulated));
        assert_eq!(rung_with(Rung::Simulated, true, true), Ok(Rung::Simulated));
        let refused = rung_with(Rung::Rootless, true, true).expect_err("it was asked for");
        assert!(refused.contains("rung rootless was asked for and needs BIRD and FRR"), "{refused}");
    }
}
