//! `run router`: the verifying router. Threads forward; the rest of the process reaches them between two bursts.
//!
//! A packet's way: `worker` receives a burst, `batch` gathers 64 packets of it, the format's `process` decides (`format`, and
//! the folder of each format), `output` queues what leaves. `supervisor` and `threads` are the process around that.

mod batch;
mod counters;
mod format;
mod icing;
mod journal;
mod output;
mod payers;
pub(super) mod platypus;
mod ports;
pub(super) mod scion;
mod settings;
pub(super) mod supervisor;
mod tally;
#[cfg(test)]
mod testing;
mod threads;
mod view;
mod worker;

use std::path::Path;

use tracing::warn;
use wayleave_runtime::huge_pages;

use super::daemon::{self, Options};
use crate::config::Source;
use crate::config::router::{FormatName, RouterFile};
use crate::failure::Outcome;
pub use settings::random;
use supervisor::Supervisor;
#[cfg(test)]
pub use view::metric_names;

/// Logs what this router does otherwise than the one whose folder it was given, if that was not so `before`.
fn log_differences(source: &Source, before: Option<&Source>) {
    let known: Vec<String> = before.iter().flat_map(|before| before.differences()).map(|one| one.to_string()).collect();
    for difference in source.differences().iter().map(ToString::to_string).filter(|one| !known.contains(one)) {
        warn!("{difference}");
    }
}

/// Runs the router until SIGTERM.
pub async fn run(path: &Path, options: Options) -> Outcome {
    huge_pages::enable();
    let source = Source::read(path)?;
    let file = RouterFile::parse(&source)?;
    log_differences(&source, None);
    // The one place that lists the formats.
    match file.forwarding.format {
        FormatName::Scion => daemon::run::<Supervisor<scion::Scion>>(path, options).await,
        FormatName::Platypus => daemon::run::<Supervisor<platypus::Platypus>>(path, options).await,
        FormatName::Icing => daemon::run::<Supervisor<icing::Icing>>(path, options).await,
    }
}
