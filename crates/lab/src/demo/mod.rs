//! The demonstration: a whole exchange with real routers, played step by step; also the end-to-end test.
//!
//! Real processes of the one binary, real BGP routers where namespaces can be made, and the fault of a killed party.
//! Every step looks at the routers' own tables.

mod attested;
pub mod expect;
mod explore;
pub mod files;
pub mod forge;
pub mod http;
pub mod internet;
pub mod layout;
pub mod report;
mod steps;
pub mod world;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use self::layout::Layout;
use self::report::Report;
use self::steps::STEPS;
use self::world::World;
use crate::netns::{self, Rung};
use crate::routers::{Routers, default_cache, locate_or_fetch};

/// How the demonstration is played.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The rung to use; the highest that works here if not given.
    pub rung: Option<Rung>,
    /// Never ask: without it a person at a terminal may look around before all ends.
    pub headless: bool,
    /// End at the first step that does not hold.
    pub assert: bool,
    /// Objects to the standard output, words to the standard error.
    pub json: bool,
    /// How many prefixes of a recorded table one member announces; [`DEFAULT_PREFIXES`] if not given.
    pub prefixes: Option<usize>,
    /// A recorded table (MRT, also compressed); the one that comes with the sources if not given.
    pub table: Option<PathBuf>,
    /// Leave configurations, state and logs in this folder (else they vanish).
    pub keep: Option<PathBuf>,
}

/// Prefixes of the recorded table unless told otherwise.
pub const DEFAULT_PREFIXES: usize = 1_000;

/// Plays the demonstration with the running program as the binary of all roles. `arguments` are those with which this
/// very demonstration was asked for, since on the upper rungs the program runs itself again inside its namespaces.
///
/// Call it on the main thread: when the thread that calls it ends, so does everything that it started.
pub fn run(options: &Options, arguments: &[OsString]) -> ExitCode {
    match netns::inside() {
        Some(rung) => play(options, rung),
        None => choose_and_play(options, arguments),
    }
}

fn choose_and_play(options: &Options, arguments: &[OsString]) -> ExitCode {
    let rung = choose(options.rung);
    if rung == Rung::Simulated {
        return play(options, rung);
    }
    match netns::enter(rung, arguments) {
        Ok(status) => ExitCode::from(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1)),
        Err(error) => {
            eprintln!("cannot enter the {rung} rung: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The rung to play on; says which, and why none higher. What was asked for is not second-guessed.
fn choose(wanted: Option<Rung>) -> Rung {
    if let Some(rung) = wanted {
        eprintln!("rung: {rung}, as asked");
        return rung;
    }
    let detection = netns::detect();
    for (rung, reason) in &detection.refused {
        eprintln!("the {rung} rung does not work here: {reason}");
    }
    if detection.rung != Rung::Simulated
        && let Err(error) = locate_or_fetch(&default_cache(), &mut |line| eprintln!("{line}"))
    {
        eprintln!("real routers cannot be had: {error}");
        eprintln!("rung: simulated (speakers of our own stand for the routers)");
        return Rung::Simulated;
    }
    eprintln!("rung: {} ({})", detection.rung, meaning(detection.rung));
    detection.rung
}

fn meaning(rung: Rung) -> &'static str {
    match rung {
        Rung::Root => "real routers in namespaces; nothing is left behind",
        Rung::Rootless => "real routers in namespaces, without root; nothing is left behind",
        Rung::Simulated => "real processes on loopback; speakers of our own stand for the routers",
    }
}

fn play(options: &Options, rung: Rung) -> ExitCode {
    let mut report = Report::new(options.json, STEPS.len());
    let folder = StateFolder::new(options.keep.as_deref());
    let mut world = match prepare(rung, &folder) {
        Ok(world) => world,
        Err(error) => {
            report.say(&format!("cannot prepare: {error}"));
            let _ = report.finish(&rung.to_string());
            return ExitCode::FAILURE;
        }
    };
    for step in STEPS {
        if step.is_last && !options.headless && !options.json {
            explore::look_around(&mut world);
        }
        let held = report.step(step.name, |facts| (step.play)(&mut world, options, facts));
        if !held {
            for dead in world.dead() {
                report.say(&format!("    not running: {dead}"));
            }
        }
        if !held && options.assert {
            break;
        }
    }
    drop(world);
    folder.keep_if_asked(&report);
    if report.finish(&rung.to_string()) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn prepare(rung: Rung, folder: &StateFolder) -> Result<World, String> {
    let binary = std::env::current_exe().map_err(|error| error.to_string())?;
    if rung == Rung::Simulated {
        let layout = Layout::simulated(&folder.path).map_err(|error| error.to_string())?;
        return World::new(layout, &binary, None);
    }
    let routers: Routers =
        locate_or_fetch(&default_cache(), &mut |line| eprintln!("{line}")).map_err(|error| error.to_string())?;
    let layout = Layout::real(rung).map_err(|error| error.to_string())?;
    World::new(layout, &binary, Some(&routers))
}

/// Where the recorded table that comes with the sources lies.
fn default_table() -> PathBuf {
    let file = Path::new("test-data/bgp/ris.2015-10-23.first-50000-prefixes.updates.bz2");
    let program = std::env::current_exe().unwrap_or_default();
    let beside = program.ancestors().map(|folder| folder.join(file)).find(|path| path.exists());
    beside.unwrap_or_else(|| file.to_path_buf())
}

/// The folder for configurations, keys, state and logs; gone with its owner.
struct StateFolder {
    path: PathBuf,
    keep: Option<PathBuf>,
    /// Inside namespaces it lies on a private tmpfs, which the kernel takes away.
    remove: bool,
}

impl StateFolder {
    fn new(keep: Option<&Path>) -> Self {
        let keep = keep.map(Path::to_path_buf);
        if netns::inside().is_some() {
            return Self { path: PathBuf::from("/run/lab"), keep, remove: false };
        }
        let path = std::env::temp_dir().join(format!("wayleave-demo-{}", std::process::id()));
        // If it cannot be made, writing the configurations says why.
        let _ = std::fs::create_dir_all(&path);
        Self { path, keep, remove: true }
    }

    fn keep_if_asked(&self, report: &Report) {
        let Some(keep) = &self.keep else { return };
        let made = std::fs::create_dir_all(keep);
        let copied =
            made.and_then(|()| Command::new("cp").arg("-r").arg("--").arg(self.path.join(".")).arg(keep).status());
        match copied {
            Ok(status) if status.success() => report.say(&format!("state and logs are in {}", keep.display())),
            _ => report.say(&format!("state and logs could not be copied to {}", keep.display())),
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
