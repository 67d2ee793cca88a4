//! `bench exchange-join` and `bench exchange-restart`: parties as processes of their own.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use wayleave_lab::bench::exchange::party::{self, PartyArguments};
use wayleave_lab::bench::exchange::{ExchangeError, Plan};
use wayleave_lab::bench::exchange_join::{self, Size};
use wayleave_lab::bench::exchange_restart;
use wayleave_papers::plot::exchange as plots;
use wayleave_papers::report::Report;
use wayleave_route_server::object::ExportMode;

use super::draw;
use crate::commands::bench::{Bench, BenchMode, BenchSinks};
use wayleave_config::STATE_TABLES;
use wayleave_config::failure::{Failure, Outcome};

/// Of how many prefixes of a hundred the table of the paper had more than one route: "for more than half of the IP prefixes there exists a
/// single available route" (section 7.1).
const CONTESTED: usize = 45;
/// The longest that a stage may take.
pub(super) const LIMIT: Duration = Duration::from_secs(3600);

pub fn join(bench: &Bench) -> Outcome<Report> {
    let (size, plan, _folder) = prepared(bench, (600, 250_000), (20, 2_000), 1)?;
    let measured = exchange_join::run(plan.clone(), size).map_err(failed)?;
    let report = measured.report(&size, &plan);
    draw(bench, || plots::join(&report))?;
    Ok(report)
}

pub fn restart(bench: &Bench) -> Outcome<Report> {
    let (size, plan, _folder) = prepared(bench, (750, 250_000), (20, 2_000), 0)?;
    let measured = exchange_restart::run(plan.clone(), size).map_err(failed)?;
    Ok(measured.report(&size, &plan))
}

/// Runs one party of these, in its own process.
pub fn party(words: &[String]) -> Outcome {
    let arguments = PartyArguments::from_words(words).ok_or_else(|| Failure::usage("these words start no party"))?;
    Ok(party::run(&arguments, &STATE_TABLES).map_err(|error| Failure::new(format!("party: {error}")))?)
}

pub(super) fn failed(error: ExchangeError) -> Failure {
    Failure::new(error.to_string())
}

/// A folder that goes with the benchmark.
pub(super) struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed is in the system's folder for such files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The members and prefixes that were asked for, or those of the long or of the short form.
fn prepared(
    bench: &Bench,
    long: (usize, usize),
    short: (usize, usize),
    joining: usize,
) -> Outcome<(Size, Plan, Folder)> {
    let usual = if bench.short { short } else { long };
    let size = Size {
        members: bench.members.unwrap_or(usual.0).max(4),
        prefixes: bench.prefixes.unwrap_or(usual.1).max(1),
        per_update: bench.per_update.unwrap_or(1).max(1),
        contested: bench.contested.unwrap_or(CONTESTED),
        sinks_select: bench.sinks != Some(BenchSinks::OptOut),
        sinks_keep: bench.sinks != Some(BenchSinks::Forget),
    };
    let (plan, folder) = plan(bench, size.members + joining)?;
    Ok((size, plan, folder))
}

/// A folder in `base` that was not there before. Processes of two namespaces may have one number, and one that was killed leaves its folder:
/// a party does not start on the store of another exchange.
fn new_folder(base: &Path) -> io::Result<PathBuf> {
    std::fs::create_dir_all(base)?;
    let name = |number: u32| base.join(format!("wayleave-bench-{}-{number}", std::process::id()));
    let made = (0..u32::MAX).map(name).find_map(|path| match std::fs::create_dir(&path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => None,
        made => Some(made.map(|()| path)),
    });
    made.unwrap_or_else(|| Err(io::ErrorKind::AlreadyExists.into()))
}

/// What an exchange with so many slots is made of, and where its stores are.
pub(super) fn plan(bench: &Bench, slots: usize) -> Outcome<(Plan, Folder)> {
    let base = std::env::var_os("TMPDIR").map_or_else(std::env::temp_dir, PathBuf::from);
    let folder = Folder(new_folder(&base).map_err(super::unreadable(&base))?);
    let program = std::env::current_exe().map_err(|error| Failure::new(format!("this program's file: {error}")))?;
    let words = ["bench", "party", "--party"].map(OsString::from);
    let plan = Plan {
        program: [program.into_os_string()].into_iter().chain(words).collect(),
        folder: folder.0.clone(),
        slots,
        tick: Duration::from_millis(bench.tick.unwrap_or(50)),
        export: match bench.export.or(bench.mode) {
            Some(BenchMode::Mpc) => ExportMode::Mpc,
            Some(BenchMode::Direct) | None => ExportMode::Direct,
        },
        limit: LIMIT,
    };
    Ok((plan, folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_runs_have_one_folder_whatever_their_processes_numbers() {
        // A second process with this one's number, as in another namespace, is the same as this one again.
        let folders = [(); 2].map(|()| Folder(new_folder(&std::env::temp_dir()).expect("a folder")));
        assert_ne!(folders[0].0, folders[1].0);
        assert!(folders.iter().all(|folder| folder.0.is_dir()));
    }
}
