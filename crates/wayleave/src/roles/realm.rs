//! `run realm`: the operator's side of a realm. It answers joins, and hands the list of removed nodes to path servers.
//!
//! It is a process of its own since it has the realm's key: no path server has one, and where nobody joins it need not run.

pub(super) mod io;
mod submission;
mod views;

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;

use tokio::sync::mpsc;
use tracing::{info, warn};
use wayleave_control::frames::PROTOCOLS;
use wayleave_runtime::clock::unix_now;
use wayleave_runtime::links::{Limits, Links, Listening};
use wayleave_runtime::node_tls::NodeIdentity;

use super::daemon::{Daemon, QUEUE, Role, Running};
use super::link_driver::Driver;
use crate::config::Source;
use crate::config::realm::RealmFile;
use crate::config::rs::StatusSection;
use crate::failure::{Failure, Outcome};
use io::{Event, Follow, RealmIo, Refusals};
use views::RealmView;

/// Octets of a joining node's frame, and what may wait for a server.
const MAX_JOIN: u32 = 64 << 10;
const LINK_QUEUE: usize = 4 << 20;

/// A running operator's side.
pub struct RealmRole {
    running: Running<Event>,
    view: RealmView,
    _listening: Listening,
}

impl Role for RealmRole {
    const NAME: &'static str = "realm";
    const LIVE: &'static [&'static str] = &[];
    type Config = RealmFile;
    type View = RealmView;
    type Event = Infallible;

    fn parse(source: &Source) -> Outcome<RealmFile> {
        RealmFile::parse(source)
    }

    fn status(config: &RealmFile) -> Option<&StatusSection> {
        config.status.as_ref()
    }

    async fn start(config: RealmFile, daemon: &Daemon) -> Outcome<Self> {
        let Daemon { clock, source, events: log, .. } = daemon;
        let identity = NodeIdentity::from_seed(config.identity(source)?.expose())?;
        let (registrar, ledger) = config.registrar(source)?;
        let (events, inbox) = mpsc::channel(QUEUE);
        let links = Links::new(Limits { frame: MAX_JOIN, queue: LINK_QUEUE, protocols: PROTOCOLS });
        let at = config.realm.listen.get_ref().0;
        let listening = links.listen_nodes(at, &identity, events.clone()).await;
        let listening =
            listening.map_err(|error| Failure::system(format!("cannot listen for nodes at {at}"), &error))?;
        info!(realm = %registrar.realm(), identity = %identity.identity(), listen = %listening.address, "listening for nodes that join");
        if !registrar.has_realm_key(unix_now().secs()) {
            warn!(
                "the realm's key is not here, or has rolled: nobody is admitted or renewed, and lists of removed nodes are signed with the list key"
            );
        }
        let refusals = Refusals::new(*clock);
        let view = RealmView::new(&registrar, identity.identity(), &events, &links, &refusals);
        let mut io = RealmIo {
            identity,
            links,
            ledger,
            events: events.clone(),
            config,
            source: source.clone(),
            nodes: HashMap::new(),
            servers: BTreeMap::new(),
            refusals,
            opening: None,
            handed: Vec::new(),
            log: log.clone(),
            clock: *clock,
            unread: Vec::new(),
            is_due: false,
        };
        io.follow(&registrar)?;
        let running = Running::start(registrar, Driver(io), *clock, (events.clone(), inbox));
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(io::FOLLOW).await;
                if events.send(Event::Own(Follow)).await.is_err() {
                    return;
                }
            }
        });
        Ok(Self { running, view, _listening: listening })
    }

    fn view(&self) -> RealmView {
        self.view.clone()
    }

    async fn reload(&mut self, _: RealmFile, _: &Source) -> Outcome {
        Ok(())
    }

    async fn next(&mut self) -> Result<Infallible, Failure> {
        Err(self.running.failed().await)
    }

    async fn stop(self) {
        self.running.stop(Event::Stop).await;
    }
}
