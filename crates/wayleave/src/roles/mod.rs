//! Roles: each reads its configuration, builds its machine and hands it to a driver.

pub mod attest;
mod attested;
pub mod bgp_peer;
mod events;
pub mod member;
mod origins;
mod router;
pub mod rs;
mod stored;

use std::time::Duration;

use tokio::sync::watch;
use tracing::warn;
use wayleave_crypto::secret::{Secret, Seed};
use wayleave_runtime::http::{Parameters, ViewError};
use wayleave_runtime::logs;

use crate::cli::{LogFormat, RoleName, Run};
use crate::config::Source;
use crate::failure::{Failure, Outcome};

pub use events::Events;

/// Events of a role that may wait for its machine.
const QUEUE: usize = 1024;
/// How often a role looks whether it is ready.
const READY_EVERY: Duration = Duration::from_millis(200);

/// Routes that a view shows unless asked for more.
const ROUTES_SHOWN: usize = 1000;

/// Runs a role until it is told to stop.
pub fn run(command: &Run) -> Outcome {
    let format = match command.log_format {
        LogFormat::Text => logs::Format::Text,
        LogFormat::Json => logs::Format::Json,
    };
    logs::start(format, command.log.as_deref())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().worker_threads(2).build();
    let runtime = runtime.map_err(|error| Failure::new(format!("no threads: {error}")))?;
    runtime.block_on(async {
        match command.role {
            RoleName::Rs => rs::run(&command.config).await,
            RoleName::Member => member::run(&command.config).await,
            RoleName::Attest => attest::run(&command.config).await,
            RoleName::Router => router::run(&command.config).await,
        }
    })
}

/// Fresh randomness for a machine.
fn seed() -> Outcome<Seed> {
    let mut seed = [0u8; 32];
    getrandom::fill(&mut seed).map_err(|error| Failure::new(format!("the system gave no randomness: {error}")))?;
    Ok(Secret::new(seed))
}

/// How many routes a view is asked for.
fn most_of(parameters: &Parameters) -> Result<usize, ViewError> {
    let Some(text) = parameters.get("most") else { return Ok(ROUTES_SHOWN) };
    text.parse().map_err(|_| ViewError::Request("`most` is no number".to_owned()))
}

/// Names what differs from the configuration that the role started with and that a reload, which takes in `live`, leaves
/// as it is.
fn warn_of_restart(started: &Source, now: &Source, live: &[&str]) {
    let keys = started.changed(now, live);
    if !keys.is_empty() {
        warn!(keys = keys.join(", "), "reload: these changed and count after a restart only");
    }
}

/// Whether a role does its work, and if not, why.
type Ready = watch::Sender<Result<(), String>>;

fn not_ready_yet() -> (Ready, watch::Receiver<Result<(), String>>) {
    watch::channel(Err("starting".to_owned()))
}
