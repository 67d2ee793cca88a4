//! `run consent`: a consent server. It is a node of the realm that forwards nothing: path servers know it as a member, and it
//! follows their records.

mod audit;
pub(super) mod io;
mod views;

use std::convert::Infallible;
use std::sync::Arc;

use tokio::sync::mpsc;
use tracing::{info, warn};
use wayleave_control::consent::{ConsentServer, ConsentServerConfig, ConsentServerInput, Policy};
use wayleave_control::database::MAX_MEMBERS;
use wayleave_control::frames::PROTOCOLS;
use wayleave_control::store::{Record, Store};
use wayleave_runtime::links::{Limits, Links, Listening};
use wayleave_runtime::node_tls::NodeIdentity;

use super::daemon::{Daemon, QUEUE, Role, Running, seed};
use super::link_driver::Driver;
use super::overlay::strangers::Ends;
use super::overlay::{Overlay, records};
use crate::config::Source;
use crate::config::consent::{ConsentFile, unknown_labels};
use crate::config::rs::{StatusSection, examples_left};
use crate::failure::{Failure, Outcome};
use audit::AuditLog;
use io::{ConsentIo, Event};
use views::ConsentView;

/// Octets that may wait for one sender.
const LINK_QUEUE: usize = 1 << 20;
/// Batches of records that wait for the server.
const TAP: usize = 65_536;

/// A running consent server.
pub struct ConsentRole {
    running: Running<Event>,
    overlay: Overlay,
    audit: Arc<AuditLog>,
    view: ConsentView,
    _listening: Listening,
}

/// The policy of the file; the operator is told of rules that what is not known decides.
fn policy(config: &ConsentFile, source: &Source) -> Outcome<Policy> {
    let (policy, _) = config.policy(source)?;
    unknown_labels(&policy).for_each(|message| warn!("{message}"));
    Ok(policy)
}

impl Role for ConsentRole {
    const NAME: &'static str = "consent";
    const LIVE: &'static [&'static str] = &["consent.policy", "consent.node"];
    type Config = ConsentFile;
    type View = ConsentView;
    type Event = Infallible;

    fn parse(source: &Source) -> Outcome<ConsentFile> {
        ConsentFile::parse(source)
    }

    fn status(config: &ConsentFile) -> Option<&StatusSection> {
        config.status.as_ref()
    }

    async fn start(config: ConsentFile, daemon: &Daemon) -> Outcome<Self> {
        if config.has_examples() {
            return Err(examples_left().into());
        }
        let Daemon { clock, source, events: log, .. } = daemon;
        let settings = config.overlay.get_ref().load(source)?;
        let (policy, nodes) = (policy(&config, source)?, config.nodes(source)?);
        let identity = NodeIdentity::from_seed(settings.identity.expose())?;
        let links = Links::new(Limits { queue: LINK_QUEUE, frame: 64 << 10, protocols: PROTOCOLS });
        let audit = AuditLog::open(&source.resolve(config.consent.audit.get_ref()), links.clone())?;
        let audit = Arc::new(audit);
        // The node keeps the records of both: what it has, the server begins with.
        let (tap, mut tapped) = mpsc::channel::<(Vec<Record>, bool)>(TAP);
        let overlay = Overlay::start_with(&settings, *clock, log, Some(tap)).await?;
        let known = match overlay.was_kept() {
            true => Store::Kept(records::all(overlay.handle().store())?),
            false => Store::Lost,
        };
        let server = ConsentServerConfig {
            identity: settings.signing_key(),
            realm: config.overlay.get_ref().realm(),
            capacity: MAX_MEMBERS,
            nodes,
            policy,
            store: known,
            requests: u32::try_from(*config.consent.requests_per_second.get_ref()).unwrap_or(u32::MAX),
            max_staleness: *config.overlay.get_ref().max_staleness_secs.get_ref(),
            seed: seed()?,
        };
        let machine = ConsentServer::new(server, clock.now().unix);
        let (events, inbox) = mpsc::channel(QUEUE);
        let at = config.consent.listen.get_ref().0;
        let listening = links.listen_nodes(at, &identity, events.clone()).await;
        let listening =
            listening.map_err(|error| Failure::system(format!("cannot listen for senders at {at}"), &error))?;
        info!(identity = %identity.identity(), listen = %listening.address, nodes = config.consent.node.len(), "listening for senders");
        let view = ConsentView::new(&overlay.handle(), &links, &events, &audit);
        let ends = Ends::default();
        let io =
            ConsentIo { audit: Arc::clone(&audit), log: log.clone(), last: None, links, events: events.clone(), ends };
        let running = Running::start(machine, Driver(io), *clock, (events.clone(), inbox));
        tokio::spawn(async move {
            while let Some((records, complete)) = tapped.recv().await {
                let input = ConsentServerInput::Records { records, complete };
                if events.send(Event::Input(input)).await.is_err() {
                    return;
                }
            }
        });
        Ok(Self { running, overlay, audit, view, _listening: listening })
    }

    fn view(&self) -> ConsentView {
        self.view.clone()
    }

    async fn reload(&mut self, config: ConsentFile, source: &Source) -> Outcome {
        let (policy, nodes) = (policy(&config, source)?, config.nodes(source)?);
        self.audit.reopen()?;
        for input in [ConsentServerInput::Nodes(nodes), ConsentServerInput::Policy(policy)] {
            let _ = self.running.events.send(Event::Input(input)).await;
        }
        Ok(())
    }

    async fn next(&mut self) -> Result<Infallible, Failure> {
        tokio::select! {
            failure = self.running.failed() => Err(failure),
            failure = self.overlay.failed() => Err(failure),
        }
    }

    async fn stop(self) {
        self.running.stop(Event::Stop).await;
        self.overlay.stop().await;
        self.audit.finish();
    }
}
