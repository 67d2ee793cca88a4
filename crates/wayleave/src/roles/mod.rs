//! Roles: what `wayleave run ROLE` starts. `daemon` has what all roles share; each role adds its machine, its inputs and its
//! outputs.

mod attest;
mod attestation;
pub mod bgp_peer;
mod bmp;
mod consent;
mod console;
mod daemon;
#[cfg(test)]
mod dashboards;
mod dns_tcp;
mod events;
mod gateway;
pub mod key;
mod link_driver;
pub mod link_faults;
mod link_threads;
pub mod links;
#[cfg(test)]
mod log_lines;
mod member;
mod origins;
pub mod overlay;
mod parts;
mod path;
mod payers;
pub mod peer_tcp;
mod realm;
mod router;
mod rs;
mod settings;
mod stamper;
mod stamping;
mod state;
mod worker_thread;

use std::path::Path;
use std::time::Duration;

use clap::ValueEnum;
use wayleave_runtime::{ending, faults};

use crate::failure::{Failure, Outcome};

pub use daemon::Options;
use daemon::Role;
pub use events::Events;
/// How a gateway learns whom it hears and how it verifies, for benchmarks that are the ends of paths themselves.
pub use member::{party_endpoints, party_verifier};
pub use overlay::{records, role_names};
pub use rs::{peer_endpoint, peer_verifier};
/// What `wayleave stamp` says to a stamper.
pub use stamper::registration;

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum RoleName {
    /// A party of the route server.
    #[value(alias = "route-server")]
    Rs,
    /// A member's proxy.
    Member,
    /// An attesting proxy between BGP speakers and their neighbours.
    Attest,
    /// A router that verifies every packet: SCION, Platypus, ICING.
    Router,
    /// The operator's side of an overlay's realm: it admits nodes.
    Realm,
    /// A path server of an overlay.
    Path,
    /// A consent server of an overlay.
    Consent,
    /// A gateway of an overlay: IP packets in and out, sealed.
    Gateway,
    /// A stamper at a host: Platypus capabilities on packets by user, control group, socket mark or destination.
    Stamper,
    /// A key server: secrets of Platypus capabilities, by DNS.
    Key,
    /// A console: what these roles say, in a browser.
    Console,
}

impl RoleName {
    /// As on the command line, in configurations' checks and in metrics.
    pub fn name(self) -> &'static str {
        match self {
            RoleName::Rs => rs::Rs::NAME,
            RoleName::Member => member::MemberRole::NAME,
            RoleName::Attest => attest::Attest::NAME,
            RoleName::Router => "router",
            RoleName::Realm => realm::RealmRole::NAME,
            RoleName::Path => path::PathRole::NAME,
            RoleName::Consent => consent::ConsentRole::NAME,
            RoleName::Gateway => gateway::GatewayRole::NAME,
            RoleName::Stamper => stamper::StamperRole::NAME,
            RoleName::Key => key::KeyRole::NAME,
            RoleName::Console => console::ConsoleRole::NAME,
        }
    }
}

/// How long work on other threads may take to end once the role has stopped, or failed.
const LAST_WORK: [Duration; 2] = [Duration::from_secs(10), Duration::from_millis(500)];

/// Runs a role until SIGTERM, or until it fails. A panic of any thread or task ends the process.
pub fn run(role: RoleName, configuration: &Path, options: Options) -> Outcome {
    if options.proxy.is_some() && role != RoleName::Gateway {
        return Err(Failure::new("`--proxy` is for a gateway").into());
    }
    ending::end_on_panic();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().worker_threads(2).build();
    let runtime = runtime.map_err(|error| Failure::new(format!("cannot start threads: {error}")))?;
    let outcome = runtime.block_on(async {
        faults::start();
        match role {
            RoleName::Rs => daemon::run::<rs::Rs>(configuration, options).await,
            RoleName::Member => daemon::run::<member::MemberRole>(configuration, options).await,
            RoleName::Attest => daemon::run::<attest::Attest>(configuration, options).await,
            RoleName::Router => router::run(configuration, options).await,
            RoleName::Realm => daemon::run::<realm::RealmRole>(configuration, options).await,
            RoleName::Path => daemon::run::<path::PathRole>(configuration, options).await,
            RoleName::Consent => daemon::run::<consent::ConsentRole>(configuration, options).await,
            RoleName::Gateway => daemon::run::<gateway::GatewayRole>(configuration, options).await,
            RoleName::Stamper => daemon::run::<stamper::StamperRole>(configuration, options).await,
            RoleName::Key => daemon::run::<key::KeyRole>(configuration, options).await,
            RoleName::Console => daemon::run::<console::ConsoleRole>(configuration, options).await,
        }
    });
    ending::is_over();
    // A thread that does not end, such as a machine that nobody stopped, must not keep the process and its locks.
    runtime.shutdown_timeout(LAST_WORK[usize::from(outcome.is_err())]);
    outcome
}
