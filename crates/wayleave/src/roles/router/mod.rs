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

use wayleave_runtime::huge_pages;

use super::daemon::{self, Options};
use crate::config::Source;
use crate::config::router::{FormatName, RouterFile};
use crate::failure::Outcome;
pub use settings::random;
use supervisor::Supervisor;
#[cfg(test)]
pub use view::metric_names;

/// Runs the router until SIGTERM.
pub async fn run(path: &Path, options: Options) -> Outcome {
    huge_pages::enable();
    let file = RouterFile::parse(&Source::read(path)?)?;
    // The one place that lists the formats.
    match file.forwarding.format {
        FormatName::Scion => daemon::run::<Supervisor<scion::Scion>>(path, options).await,
        FormatName::Platypus => daemon::run::<Supervisor<platypus::Platypus>>(path, options).await,
        FormatName::Icing => daemon::run::<Supervisor<icing::Icing>>(path, options).await,
    }
}
