//! A node's end of the control plane, for roles that are nodes: it keeps links to path and consent servers, publishes the node's
//! advert, and answers the role's questions (paths to a host, consents to a path, who is who).
//!
//! All decisions are those of [`wayleave_control::node`]; this is its I/O.

mod agreement;
pub mod entrusting;
pub mod freshness;
pub(super) mod io;
pub mod records;
pub mod refused_consents;
pub mod renewal;
mod resolver;
pub mod server_faults;
pub mod strangers;
mod views;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use wayleave_control::advert::Endpoint;
use wayleave_control::consent::{HopFailure, HopFault};
use wayleave_control::database::{MAX_MEMBERS, Refusal};
use wayleave_control::frames::{Host, MAX_FRAME, PROTOCOLS};
pub use wayleave_control::node::Realm;
use wayleave_control::node::{Node, NodeConfig, NodeInput, OwnId, PublisherConfig};
use wayleave_control::path::PathFailure;
use wayleave_control::realm::Freshness;
use wayleave_control::store::{Record, Store};
use wayleave_core::IdentityKey;
use wayleave_dataplane::icing::AgreedKeys;
use wayleave_packet::Path;
use wayleave_packet::icing::mint::TagMaster;
use wayleave_runtime::Clock;
use wayleave_runtime::links::{Limits, Links};
use wayleave_runtime::node_tls::NodeIdentity;
use wayleave_runtime::store::FileStore;

use super::Events;
use super::daemon::{QUEUE, Running, seed};
use super::link_driver::Driver;
use crate::config::links::{self, LinkPeer, OpenLinks, Resolution};
use crate::config::overlay::{OverlaySection, ServerEntry, Settings};
use crate::failure::{Failure, Outcome};
use entrusting::Entrusting;
use io::{Event, OverlayIo, Own};
use renewal::Renewal;
use resolver::Resolver;
use server_faults::ServerFaults;
pub use views::{MEMBER_COLUMNS, describe, member_rows, role_names};

/// Octets that may wait for one server.
const LINK_QUEUE: usize = 8 << 20;

/// The node, running.
pub struct Overlay {
    running: Running<Event>,
    handle: Handle,
    was_kept: bool,
    renewal: JoinHandle<()>,
}

/// What a role asks of its node. Clones are the same node.
#[derive(Clone)]
pub struct Handle {
    own: IdentityKey,
    events: mpsc::Sender<Event>,
    realm: watch::Receiver<Arc<Realm>>,
    ids: watch::Receiver<Arc<OwnIds>>,
    links: Links,
    store: Arc<FileStore>,
    /// Why the node's membership is not renewed, if that is so.
    problem: watch::Receiver<Option<String>>,
    /// What path servers say against this node.
    refusals: watch::Receiver<BTreeMap<IdentityKey, String>>,
    faults: ServerFaults,
    /// Whether the list of removed nodes is of today.
    freshness: watch::Receiver<Freshness>,
    path_servers: usize,
    /// The numbers of links to members that are served and not listed.
    open_links: Arc<Mutex<OpenLinks>>,
    resolver: Resolver,
    /// Gives the keys of the node's tags to its consent server, if it is to.
    entrusting: Option<Arc<Entrusting>>,
}

/// The node's own IDs, of the previous, the current and the next epoch, and the keys that it shares under them.
#[derive(Clone, Debug, Default)]
pub struct OwnIds {
    /// Ascending by epoch.
    pub ids: Vec<OwnId>,
    /// With the IDs of other members.
    pub agreed: Arc<AgreedKeys>,
}

/// There is no path to a host, and why by each path server.
#[derive(Clone, Debug)]
pub struct NoPath {
    pub host: Host,
    pub reasons: Vec<(IdentityKey, PathFailure)>,
}

impl fmt::Display for NoPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host: &dyn fmt::Display = match &self.host {
            Host::Name(name) => name,
            Host::Identity(identity) => identity,
            Host::Address(address) => address,
        };
        write!(f, "no path to {host}")?;
        if self.reasons.is_empty() {
            return f.write_str(": no path server was asked");
        }
        self.reasons.iter().try_for_each(|(server, reason)| write!(f, "; path server {server}: {reason}"))
    }
}

/// A path is not consented to, and why by each node of it that did not.
#[derive(Clone, Debug, Default)]
pub struct NoConsent {
    pub reasons: Vec<HopFailure>,
}

impl fmt::Display for NoConsent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.reasons.is_empty() {
            return f.write_str("no consent: the node's control plane has stopped");
        }
        f.write_str("no consent")?;
        self.reasons.iter().try_for_each(|reason| {
            write!(f, "; node {} of the path, by server {}: {}", reason.index, reason.server, reason.fault)
        })
    }
}

/// What an operator can do about a consent that is missing, where the reason itself does not say it.
fn to_do(fault: HopFault, node: &IdentityKey, name: &str) -> Option<String> {
    Some(match fault {
        HopFault::Silent | HopFault::Unreachable => {
            format!(
                "does it run, and can its port be reached from here? `consent` of {name}'s [overlay] says where it is"
            )
        }
        HopFault::Refused(Refusal::NotServed) => {
            format!("the server's operator adds [[consent.node]] with `identity = \"node:{node}\"` and its tag keys")
        }
        HopFault::Refused(Refusal::NoKey) => {
            format!("the server's operator gives it all tag keys of {name}: `tags` of its [[consent.node]]")
        }
        HopFault::Refused(Refusal::Policy) => {
            "the server's operator looks for the rule in its audit log, and changes the policy if it is to be allowed"
                .to_owned()
        }
        HopFault::NoServer => format!("{name}'s operator sets `consent` in its [overlay], or {name} does not run"),
        _ => return None,
    })
}

/// How the consents of a path stand.
#[derive(Clone, Debug)]
pub(super) enum LeaseState {
    Asking,
    Ready(Path),
    Gone(NoConsent),
}

/// The consents of one path, renewed ahead of their expiry for as long as this lives.
pub struct Lease {
    id: u64,
    state: watch::Receiver<LeaseState>,
    path: Path,
    events: mpsc::Sender<Event>,
}

impl Lease {
    /// The path with every consent; [`Path::expiry`] is the first one's end.
    #[must_use]
    pub fn path(&self) -> Path {
        match &*self.state.borrow() {
            LeaseState::Ready(path) => path.clone(),
            LeaseState::Asking | LeaseState::Gone(_) => self.path.clone(),
        }
    }

    /// Waits for later consents. Cancel safe.
    ///
    /// # Errors
    /// Why there are none any more; the last ones hold until they expire.
    pub async fn changed(&mut self) -> Result<Path, NoConsent> {
        loop {
            self.state.changed().await.map_err(|_| NoConsent::default())?;
            match &*self.state.borrow_and_update() {
                LeaseState::Ready(path) => {
                    self.path = path.clone();
                    return Ok(path.clone());
                }
                LeaseState::Gone(reasons) => return Err(reasons.clone()),
                LeaseState::Asking => {}
            }
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // If the queue is full, the driver finds at the next renewal that nobody listens.
        let _ = self.events.try_send(Event::Own(Own::Release(self.id)));
    }
}

impl Overlay {
    /// Opens the state and begins to connect.
    ///
    /// # Errors
    /// What is wrong with the state's file or a key.
    pub async fn start(settings: &Settings, clock: Clock, log: &Events) -> Outcome<Self> {
        Self::start_with(settings, clock, log, None).await
    }

    /// The same; records of path servers go to `tap` too, unverified, and whether a server has sent all.
    pub async fn start_with(
        settings: &Settings,
        clock: Clock,
        log: &Events,
        tap: Option<mpsc::Sender<(Vec<Record>, bool)>>,
    ) -> Outcome<Self> {
        let section = &settings.section;
        let state = records::open(&settings.state)?;
        if state.is_damaged {
            log.note(&serde_json::json!({ "event": "store-damaged" }));
        }
        let identity = NodeIdentity::from_seed(settings.identity.expose())?;
        let narrow = |number: &toml::Spanned<u64>| u32::try_from(*number.get_ref()).unwrap_or(u32::MAX);
        let publisher = PublisherConfig {
            identity: settings.signing_key(),
            membership: settings.membership.clone(),
            ids: settings.ids.clone(),
            epoch: narrow(&section.id_epoch_secs),
            lifetime: u8::try_from(*section.lifetime_minutes.get_ref()).unwrap_or(u8::MAX),
            last: None,
        };
        let was_kept = matches!(&state.store, Store::Kept(records) if !records.is_empty());
        let config = NodeConfig {
            publisher,
            servers: section.servers(),
            capacity: MAX_MEMBERS,
            max_staleness: *section.max_staleness_secs.get_ref(),
            store: state.store,
            seed: seed()?,
        };
        let (events, inbox) = mpsc::channel(QUEUE);
        let (realm_to, realm) = watch::channel(Arc::default());
        let (ids_to, ids) = watch::channel(Arc::default());
        let links = Links::new(Limits { queue: LINK_QUEUE, frame: MAX_FRAME as u32, protocols: PROTOCOLS });
        let own = settings.own();
        let (rolls_to, rolls) = watch::channel(Vec::new());
        let renewal = Renewal {
            operator: section.operator.as_ref().map(ServerEntry::server),
            identity: identity.clone(),
            membership: settings.membership.clone(),
            file: settings.membership_file.clone(),
            rolls,
            log: log.clone(),
        };
        let (renewed, mut later) = mpsc::channel(1);
        let (renewal, problem) = renewal.start(renewed);
        let to = events.clone();
        tokio::spawn(async move {
            while let Some(membership) = later.recv().await {
                if to.send(Event::Input(NodeInput::Membership(Box::new(membership)))).await.is_err() {
                    return; // the node has stopped
                }
            }
        });
        let links_shown = links.clone();
        let (refusals_to, refusals) = watch::channel(BTreeMap::new());
        let (freshness_to, freshness) = watch::channel(Freshness::default());
        let entrusting = match &section.consent {
            Some(server) if section.entrust => {
                let entrusting = Entrusting::start(&server.server(), &identity, settings.tags.clone(), log)?;
                Some(Arc::new(entrusting))
            }
            _ => None,
        };
        let handle = Handle {
            own,
            events: events.clone(),
            realm,
            ids,
            links: links_shown,
            store: state.file,
            problem,
            refusals,
            faults: ServerFaults::new(clock),
            freshness,
            path_servers: section.servers().len(),
            open_links: Arc::default(),
            resolver: Resolver::start(),
            entrusting,
        };
        tokio::spawn(agreement::agree(handle.realm(), ids_to.clone()));
        let mut io = OverlayIo {
            identity,
            links,
            store: Arc::clone(&handle.store),
            events: events.clone(),
            servers: HashMap::new(),
            by_link: HashMap::new(),
            finds: HashMap::new(),
            leases: HashMap::new(),
            next_lease: 1,
            section: section.clone(),
            realm: realm_to,
            ids: ids_to,
            refusals: refusals_to,
            faults: handle.faults.clone(),
            freshness: freshness_to,
            rolls: rolls_to,
            log: log.clone(),
            tap,
        };
        for server in section.servers() {
            io.connect(&server)?;
        }
        let machine = Node::new(config);
        // What does not depend on others' names is published at once.
        let profile = io.profile(&Realm::default());
        let running = Running::start(machine, Driver(io), clock, (events.clone(), inbox));
        let _ = events.send(Event::Input(NodeInput::Profile(profile))).await;
        Ok(Self { running, handle, was_kept, renewal })
    }

    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Whether the state had records of an earlier life.
    pub fn was_kept(&self) -> bool {
        self.was_kept
    }

    /// Waits until the node ends without being stopped, and returns why. Cancel safe.
    pub async fn failed(&mut self) -> Failure {
        self.running.failed().await
    }

    pub async fn stop(self) {
        self.renewal.abort();
        self.running.stop(Event::Stop).await;
    }
}

impl Handle {
    /// What is known of the realm: a snapshot, made anew a moment after something changed.
    pub fn realm(&self) -> watch::Receiver<Arc<Realm>> {
        self.realm.clone()
    }

    /// The node's own IDs with their secrets, and the keys that it shares under them.
    pub fn ids(&self) -> watch::Receiver<Arc<OwnIds>> {
        self.ids.clone()
    }

    /// The paths to a host, at most 16, the shortest first. What was found before is given at once.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn find_paths(&self, host: Host) -> Result<Vec<Path>, NoPath> {
        let (to, answer) = oneshot::channel();
        let stopped = || NoPath { host: host.clone(), reasons: Vec::new() };
        self.events.send(Event::Own(Own::Find(host.clone(), to))).await.map_err(|_| stopped())?;
        answer.await.map_err(|_| stopped())?
    }

    /// The consents of every node of `path`, each for so many seconds: all servers are asked at once. They are renewed as long as
    /// the lease lives.
    ///
    /// # Errors
    /// Who did not consent, and why.
    pub async fn consents(&self, path: Path, seconds: u32) -> Result<Lease, NoConsent> {
        let (to, answer) = oneshot::channel();
        let sent = self.events.send(Event::Own(Own::Obtain { path: path.clone(), seconds, to })).await;
        sent.map_err(|_| NoConsent::default())?;
        let (id, state) = answer.await.map_err(|_| NoConsent::default())?;
        let mut lease = Lease { id, state, path, events: self.events.clone() };
        let gone = match &*lease.state.borrow_and_update() {
            LeaseState::Asking => None,
            LeaseState::Ready(path) => {
                lease.path = path.clone();
                Some(Ok(()))
            }
            LeaseState::Gone(reasons) => Some(Err(reasons.clone())),
        };
        match gone {
            Some(Ok(())) => Ok(lease),
            Some(Err(reasons)) => Err(reasons),
            None => lease.changed().await.map(|_| lease),
        }
    }

    /// Takes the live keys of another configuration: neighbours, tags, MTU, consent server.
    pub async fn reload(&self, section: OverlaySection) {
        let _ = self.events.send(Event::Own(Own::Reload(Box::new(section)))).await;
    }

    /// What an operator has to see to.
    pub fn problems(&self) -> Vec<String> {
        // Several path servers may say the same.
        let refusals: BTreeSet<String> = self.refusals.borrow().values().cloned().collect();
        let open = self.open_links().problem().map(str::to_owned);
        let list = freshness::problem(*self.freshness.borrow());
        let keys = self.entrusting.as_ref().and_then(|entrusting| entrusting.problem());
        self.problem
            .borrow()
            .iter()
            .cloned()
            .chain(list)
            .chain(refusals)
            .chain(self.faults.problems())
            .chain(open)
            .chain(keys)
            .collect()
    }

    /// Of the servers those whose clock is another than this machine's.
    pub fn clock_problems(&self) -> Vec<String> {
        self.faults.clock_problems()
    }

    /// The keys of the node's tags are these from now on, for its consent server if it is to have them from here.
    pub fn set_tag_masters(&self, masters: Vec<(u32, TagMaster)>) {
        if let Some(entrusting) = &self.entrusting {
            entrusting.set(masters);
        }
    }

    /// The other ends of the node's links, by `section` and by what is known of the realm now.
    pub fn link_peers(&self, section: &OverlaySection) -> Vec<LinkPeer> {
        links::peers(self.own, section, &self.realm.borrow(), &mut self.open_links())
    }

    /// The addresses of a neighbour's endpoint that are known now, those of the family of `local` first. A name is resolved in the
    /// background, and has none at first; [`Handle::resolutions`] says when that changes.
    pub fn resolved(&self, endpoint: &Endpoint, local: SocketAddr) -> Vec<SocketAddr> {
        self.resolver.resolved(endpoint, local)
    }

    /// What is known of the addresses of a neighbour's endpoint.
    pub fn resolution(&self, endpoint: &Endpoint) -> Resolution {
        self.resolver.resolution(endpoint)
    }

    /// What a member is called: its first name, or its key.
    pub fn describe(&self, node: &IdentityKey) -> String {
        let realm = self.realm.borrow();
        let name = realm.nodes.get(node).and_then(|member| member.membership.grants.names.first());
        name.map_or_else(|| node.to_string(), ToString::to_string)
    }

    /// Why there is no path, for an operator: with names, and each reason once.
    pub fn no_path(&self, none: &NoPath) -> String {
        let host = match &none.host {
            Host::Name(name) => name.to_string(),
            Host::Identity(identity) => self.describe(identity),
            Host::Address(address) => address.to_string(),
        };
        let mut by_reason: Vec<(String, Vec<String>)> = Vec::new();
        for (server, reason) in &none.reasons {
            let (server, reason) = (self.describe(server), reason.to_string());
            match by_reason.iter_mut().find(|(known, _)| *known == reason) {
                Some((_, servers)) => servers.push(server),
                None => by_reason.push((reason, vec![server])),
            }
        }
        if by_reason.is_empty() {
            return format!("no path to {host}: no path server was asked");
        }
        let one = |(reason, servers): (String, Vec<String>)| {
            let s = if servers.len() == 1 { "" } else { "s" };
            format!("path server{s} {}: {reason}", servers.join(", "))
        };
        format!("no path to {host}; {}", by_reason.into_iter().map(one).collect::<Vec<_>>().join("; "))
    }

    /// Why there is no consent to a path over `nodes`, for an operator: which node, by which server and where, and what to do.
    pub fn no_consent(&self, none: &NoConsent, nodes: &[IdentityKey]) -> String {
        let realm = Arc::clone(&self.realm.borrow());
        let one = |reason: &HopFailure| {
            let Some(node) = nodes.get(reason.index).filter(|_| reason.index > 0) else {
                return reason.fault.to_string();
            };
            let member = realm.nodes.get(node);
            let server = member.and_then(|member| member.advert.as_ref()?.consent.as_ref());
            let name = match realm.nodes.contains_key(&reason.server) {
                true => format!("{} ({})", self.describe(&reason.server), reason.server),
                false => reason.server.to_string(),
            };
            let at = server.map_or(String::new(), |server| format!(" at {}", server.address));
            let called = self.describe(node);
            let by = format!("{called}, node {} of the path, by its consent server {name}{at}", reason.index);
            let todo = to_do(reason.fault, node, &called).map_or(String::new(), |what| format!(" ({what})"));
            format!("{by}: {}{todo}", reason.fault)
        };
        if none.reasons.is_empty() {
            return none.to_string();
        }
        format!("no consent; {}", none.reasons.iter().map(one).collect::<Vec<_>>().join("; "))
    }

    /// No session to the endpoint comes about: its name is resolved again.
    pub fn resolve_again(&self, endpoint: &Endpoint) {
        self.resolver.ask_again(endpoint);
    }

    /// Changes when some name has other addresses than before.
    pub fn resolutions(&self) -> watch::Receiver<()> {
        self.resolver.changes()
    }

    fn open_links(&self) -> MutexGuard<'_, OpenLinks> {
        self.open_links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// That the node was removed from the realm, if every path server says so: one alone may lie.
    pub fn removal(&self) -> Option<&'static str> {
        let refusals = self.refusals.borrow();
        let agree = refusals.values().filter(|said| *said == io::REMOVED).count();
        (agree > 0 && agree >= self.path_servers).then_some(io::REMOVED)
    }

    /// The node's state.
    pub fn store(&self) -> &Arc<FileStore> {
        &self.store
    }
}
