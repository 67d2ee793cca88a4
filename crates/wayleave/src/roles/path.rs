//! `run path`: a path server.

pub(super) mod io;
mod views;

use std::convert::Infallible;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tracing::{info, warn};
use wayleave_control::frames::{MAX_FRAME, PROTOCOLS};
use wayleave_control::path::{PathServer, PathServerConfig};
use wayleave_control::store::Store;
use wayleave_runtime::links::{Connecting, Limits, Links, Listening};
use wayleave_runtime::node_tls::NodeIdentity;

use super::daemon::{Daemon, QUEUE, Role, Running};
use super::link_driver::Driver;
use super::overlay::records;
use super::overlay::renewal::Renewal;
use super::overlay::server_faults::ServerFaults;
use super::overlay::strangers::Ends;
use crate::config::Source;
use crate::config::overlay::ServerEntry;
use crate::config::path::PathFile;
use crate::config::rs::{StatusSection, examples_left};
use crate::failure::{Failure, Outcome};
use crate::key_files::membership;
use crate::key_files::node::{self, KeyKind};
use io::{Event, PathIo};
use views::PathView;

/// Octets that may wait for one node: a few answers. Whoever reads more slowly is cut off, and asks again.
const LINK_QUEUE: usize = 4 << 20;

/// A running path server.
pub struct PathRole {
    running: Running<Event>,
    view: PathView,
    _listening: Listening,
    _peers: Vec<Connecting>,
    renewal: Option<JoinHandle<()>>,
}

impl Role for PathRole {
    const NAME: &'static str = "path";
    const LIVE: &'static [&'static str] = &[];
    type Config = PathFile;
    type View = PathView;
    type Event = Infallible;

    fn parse(source: &Source) -> Outcome<PathFile> {
        PathFile::parse(source)
    }

    fn status(config: &PathFile) -> Option<&StatusSection> {
        config.status.as_ref()
    }

    async fn start(config: PathFile, daemon: &Daemon) -> Outcome<Self> {
        if config.has_examples() {
            return Err(examples_left().into());
        }
        let Daemon { clock, source, events: log, .. } = daemon;
        let path = &config.path;
        let seed = node::load(KeyKind::Identity, &source.resolve(path.identity.get_ref()))?;
        let identity = NodeIdentity::from_seed(seed.expose())?;
        drop(seed);
        let mut state = records::open(&source.resolve(path.state.get_ref()))?;
        let peers = config.peers();
        if state.store == Store::Lost && peers.is_empty() {
            warn!(
                "the state was lost and there is no other path server to ask: what nodes published before is taken again from \
                 them, and removed nodes are known only once the realm's operator has handed the list in"
            );
            state.store = Store::New;
        }
        let mut instance = [0; 8];
        getrandom::fill(&mut instance)
            .map_err(|error| Failure::new(format!("the system gave no randomness: {error}")))?;
        let machine = PathServer::new(PathServerConfig {
            realm: config.realm(),
            capacity: usize::try_from(*path.members.get_ref()).unwrap_or(usize::MAX),
            peers: peers.iter().map(|peer| peer.identity).collect(),
            store: state.store,
            requests: u32::try_from(*path.requests_per_second.get_ref()).unwrap_or(u32::MAX),
            max_staleness: *path.max_staleness_secs.get_ref(),
            instance: u64::from_be_bytes(instance),
        });
        let (events, inbox) = mpsc::channel(QUEUE);
        let links = Links::new(Limits { queue: LINK_QUEUE, frame: MAX_FRAME as u32, protocols: PROTOCOLS });
        let at = path.listen.get_ref().0;
        let listening = links.listen_nodes(at, &identity, events.clone()).await;
        let listening =
            listening.map_err(|error| Failure::system(format!("cannot listen for nodes at {at}"), &error))?;
        let mut connecting = Vec::new();
        for peer in &peers {
            connecting.push(links.connect_node(peer.address.clone(), &identity, peer.identity, events.clone())?);
        }
        info!(identity = %identity.identity(), realm = %config.realm(), listen = %listening.address, "listening for nodes");
        let (rolls_to, rolls) = watch::channel(Vec::new());
        let (renewal, problem) = match &path.membership {
            None => (None, None),
            Some(named) => {
                let file = source.resolve(named.get_ref());
                let renewal = Renewal {
                    operator: path.operator.as_ref().map(ServerEntry::server),
                    identity: identity.clone(),
                    membership: membership::load(&file)?,
                    file,
                    rolls,
                    log: log.clone(),
                };
                // Nobody but the file needs it: the operator's records say who is a path server.
                let (renewed, mut later) = mpsc::channel(1);
                tokio::spawn(async move { while later.recv().await.is_some() {} });
                let (task, problem) = renewal.start(renewed);
                (Some(task), Some(problem))
            }
        };
        let faults = ServerFaults::new(*clock);
        let view = PathView::new(&config, identity.identity(), &links, &state.file, &events, (problem, &faults));
        let io = PathIo {
            links,
            store: state.file,
            events: events.clone(),
            ends: Ends::default(),
            rolls: rolls_to,
            log: log.clone(),
            faults,
        };
        let running = Running::start(machine, Driver(io), *clock, (events, inbox));
        Ok(Self { running, view, _listening: listening, _peers: connecting, renewal })
    }

    fn view(&self) -> PathView {
        self.view.clone()
    }

    async fn reload(&mut self, _: PathFile, _: &Source) -> Outcome {
        Ok(())
    }

    async fn next(&mut self) -> Result<Infallible, Failure> {
        Err(self.running.failed().await)
    }

    async fn stop(self) {
        if let Some(renewal) = self.renewal {
            renewal.abort();
        }
        self.running.stop(Event::Stop).await;
    }
}
