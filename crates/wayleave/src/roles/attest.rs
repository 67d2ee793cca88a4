//! `run attest`: the attesting proxy between BGP speakers and their neighbours.

mod config;
pub(super) mod io;
mod views;

use std::convert::Infallible;
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::time::timeout;
use tracing::info;
use wayleave_attestation::proxy::{Input, Proxy, session_pair};
use wayleave_core::Machine;
use wayleave_runtime::bgp_tcp::Connections;
use wayleave_runtime::store::FileStore;

use super::attestation;
use super::daemon::{Daemon, QUEUE, Role, Running, seed};
use super::origins::{OriginSources, Origins};
use super::peer_tcp::{PeerTcp, SHUTDOWN_TIME};
use crate::config::Source;
use crate::config::attest::AttestFile;
use crate::config::rs::StatusSection;
use crate::failure::{Failure, Outcome};
use io::{Event, ProxyIo};
use views::ProxyView;

/// A running attesting proxy.
pub struct Attest {
    running: Running<Event>,
    view: ProxyView,
    origins: Origins,
    pairs: usize,
    connections: Vec<Connections>,
    store: Arc<FileStore>,
    /// Whether the machine is told of the clock, which few-time keys need.
    watches_clock: bool,
}

impl Role for Attest {
    const NAME: &'static str = "attest";
    const LIVE: &'static [&'static str] = &["policy", "keys.objects", "keys.signing", "rpki"];
    type Config = AttestFile;
    type View = ProxyView;
    type Event = Infallible;

    fn parse(source: &Source) -> Outcome<AttestFile> {
        AttestFile::parse(source)
    }

    fn status(file: &AttestFile) -> Option<&StatusSection> {
        file.status.as_ref()
    }

    async fn start(file: AttestFile, daemon: &Daemon) -> Outcome<Self> {
        let Daemon { clock, source, events: log, .. } = daemon;
        let (clock, asn) = (*clock, *file.attest.asn.get_ref());
        let store = Arc::new(FileStore::open(&source.resolve(file.attest.state.get_ref()))?);
        let last_time = attestation::check_clock(&store, clock)?;
        // An anchor that has expired, or files that cannot be read, end the start here.
        let origins = Origins::follow(origin_sources(&file, source), Arc::clone(&store)).await?;
        let ring = file.keys.ring(asn, source)?;
        let seen = attestation::slots_seen(&store)?;
        let has_few_time_keys = attestation::has_few_time_keys(&ring);
        let mut random = [0u8; 8];
        getrandom::fill(&mut random)
            .map_err(|error| Failure::new(format!("the system gave no randomness: {error}")))?;
        let random = u64::from_be_bytes(random);
        let mut machine = Proxy::new(config::machine(&file), ring, &seen, random, clock.now());
        machine.hold_secret(seed()?);
        machine.handle(Input::View(Arc::clone(&origins.views.borrow())), clock.now());

        let (events, inbox) = mpsc::channel(QUEUE);
        let sockets = io::listen(&file, source, &events).await?;
        let pairs = file.pair.len();
        let connections = sockets.iter().flatten().map(PeerTcp::connections).collect();
        for pair in 0..pairs {
            machine.handle(Input::Pair(pair, session_pair::Input::Start), clock.now());
        }
        let protections = sockets.iter().map(|ends| [ends[0].protection(), ends[1].protection()]).collect();
        let view = ProxyView::new(&events, &store, origins.summary(), protections);
        attestation::follow(&origins, events.clone(), Input::View);
        if has_few_time_keys {
            attestation::watch_clock(file.keys.is_clock_kept_otherwise(), events.clone(), Input::ClockSynchronised);
        }
        tokio::spawn(attestation::maintain(events.clone(), Proxy::sweep, (Arc::clone(&store), clock), last_time));
        let kept = Arc::clone(&store);
        let io = ProxyIo::new(&file, sockets, (store, log.clone()), &events);
        let running = Running::start(machine, io, clock, (events, inbox));
        info!(%asn, pairs, "proxying {pairs} pairs of sessions");
        Ok(Self { running, view, origins, pairs, connections, store: kept, watches_clock: has_few_time_keys })
    }

    fn view(&self) -> ProxyView {
        self.view.clone()
    }

    /// Applies the policy, new signing keys, and what is known of origins.
    async fn reload(&mut self, file: AttestFile, source: &Source) -> Outcome {
        let ring = file.keys.ring(*file.attest.asn.get_ref(), source)?;
        if attestation::has_few_time_keys(&ring) && !self.watches_clock {
            let events = self.running.events.clone();
            attestation::watch_clock(file.keys.is_clock_kept_otherwise(), events, Input::ClockSynchronised);
            self.watches_clock = true;
        }
        let seen = attestation::slots_seen(&self.store)?;
        let _ = self.running.events.send(Event::Input(Input::Keys(ring, seen))).await;
        let _ = self.running.events.send(Event::Input(Input::Policy(file.policy.policy()))).await;
        self.origins.follow_other(origin_sources(&file, source));
        Ok(())
    }

    async fn next(&mut self) -> Result<Infallible, Failure> {
        Err(self.running.failed().await)
    }

    async fn stop(self) {
        for pair in 0..self.pairs {
            let stop = session_pair::Input::Stop("wayleave is stopping".to_owned());
            let _ = self.running.events.send(Event::Input(Input::Pair(pair, stop))).await;
        }
        // The machine closes them behind its NOTIFICATIONs.
        let gone = async {
            for connections in &self.connections {
                connections.gone().await;
            }
        };
        let _ = timeout(SHUTDOWN_TIME, gone).await; // who does not read by then is left
        self.running.stop(Event::Stop).await;
    }
}

/// Where the proxy finds what is known of origins.
fn origin_sources(file: &AttestFile, source: &Source) -> OriginSources {
    OriginSources { keys: file.keys.clone(), rpki: file.rpki.clone(), source: source.clone() }
}
