//! Roles: each reads its configuration, builds its machine and hands it to a driver.

mod attest;
mod attestation;
pub mod bgp_peer;
mod daemon;
mod events;
mod member;
mod origins;
mod router;
mod rs;
mod state;

use tokio::sync::watch;
use tracing::warn;
use wayleave_runtime::http::{Parameters, ViewError};
use wayleave_runtime::logs;

use crate::cli::{LogFormat, RoleName, Run};
use crate::config::Source;
use crate::failure::{Failure, Outcome};

pub use events::Events;

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
            RoleName::Rs => daemon::run::<rs::Rs>(&command.config).await,
            RoleName::Member => daemon::run::<member::MemberRole>(&command.config).await,
            RoleName::Attest => daemon::run::<attest::Attest>(&command.config).await,
            RoleName::Router => router::run(&command.config).await,
        }
    })
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
