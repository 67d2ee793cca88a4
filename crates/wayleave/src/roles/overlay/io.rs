//! The I/O of a node's end of the control plane: links to servers, the store, those who wait for answers, the log.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use wayleave_control::frames::Host;
use wayleave_control::node::{Node, NodeEvent, NodeInput, NodeOutput, Profile, Realm};
use wayleave_control::realm::{Freshness, KeyRoll, Server};
use wayleave_control::store::Record;
use wayleave_core::IdentityKey;
use wayleave_packet::Path;
use wayleave_runtime::drive::Step;
use wayleave_runtime::identity::to_hex;
use wayleave_runtime::links::{Connecting, LinkEvent, Links};
use wayleave_runtime::node_tls::NodeIdentity;
use wayleave_runtime::store::FileStore;
use wayleave_runtime::tls::Role;

use super::server_faults::ServerFaults;
use super::{LeaseState, NoConsent, NoPath, OwnIds, freshness, records};
use crate::config::overlay::OverlaySection;
use crate::failure::Failure;
use crate::roles::daemon::fresh;
use crate::roles::events::{EventLine, Events, event, shown};
use crate::roles::link_driver::{self, LinkIo, when_durable};

/// Servers to which links are kept, at most: beyond, the one that was not asked for longest is left.
const MAX_SERVERS: usize = 256;
/// Frames that wait for a link to come up.
const MAX_WAITING: usize = 256;
/// A server to which no link is up after this cannot be reached; what waits for it is answered so.
const UNREACHABLE: Duration = Duration::from_secs(1);
/// Roles' questions that wait for an answer.
const MAX_FINDS: usize = 4096;

/// What somebody who wants to send is told.
type PathOutcome = Result<Vec<Path>, NoPath>;

/// What reaches the machine's loop.
pub type Event = link_driver::Event<Node, Own>;

pub enum Own {
    Find(Host, oneshot::Sender<PathOutcome>),
    Obtain {
        path: Path,
        seconds: u32,
        to: oneshot::Sender<(u64, watch::Receiver<LeaseState>)>,
    },
    Release(u64),
    Reload(Box<OverlaySection>),
    /// Time to see whether this server could be reached.
    Check(IdentityKey),
}

/// The link to one server.
pub struct Connection {
    server: Server,
    link: Option<u64>,
    /// Since when there is none.
    down_since: Instant,
    last_use: Instant,
    waiting: VecDeque<Vec<u8>>,
    /// A path server, which is kept whether it is asked or not.
    is_kept: bool,
    _connecting: Connecting,
}

/// What a removed node's operator reads.
pub const REMOVED: &str = "this node was removed from the realm: nobody finds a path to it or over it; if that is a mistake, ask the realm's operator for an invitation";

pub struct OverlayIo {
    pub identity: NodeIdentity,
    pub links: Links,
    pub store: Arc<FileStore>,
    pub events: mpsc::Sender<Event>,
    pub servers: HashMap<IdentityKey, Connection>,
    pub by_link: HashMap<u64, IdentityKey>,
    pub finds: HashMap<Host, Vec<oneshot::Sender<PathOutcome>>>,
    pub leases: HashMap<u64, watch::Sender<LeaseState>>,
    pub next_lease: u64,
    pub section: OverlaySection,
    pub realm: watch::Sender<Arc<Realm>>,
    pub ids: watch::Sender<Arc<OwnIds>>,
    /// What path servers say against this node.
    pub refusals: watch::Sender<BTreeMap<IdentityKey, String>>,
    /// To which servers there is no link, and why.
    pub faults: ServerFaults,
    /// Whether the list of removed nodes is of today.
    pub freshness: watch::Sender<Freshness>,
    /// The last roll of the realm's key, after which the node may need another membership.
    pub rolls: watch::Sender<Vec<KeyRoll>>,
    pub log: Events,
    /// Records of path servers go here too.
    pub tap: Option<mpsc::Sender<(Vec<Record>, bool)>>,
}

impl OverlayIo {
    /// Keeps a link to a server from now on.
    pub fn connect(&mut self, server: &Server) -> Result<(), Failure> {
        let is_known = self.servers.get(&server.identity).is_some_and(|known| known.server == *server);
        if is_known {
            return Ok(());
        }
        if self.servers.len() >= MAX_SERVERS {
            let idle = self.servers.iter().filter(|(_, known)| !known.is_kept);
            let idle = idle.min_by_key(|(_, known)| known.last_use).map(|(identity, _)| *identity);
            if let Some(idle) = idle {
                self.leave(&idle);
            }
        }
        self.leave(&server.identity);
        let (address, own) = (server.address.clone(), &self.identity);
        let connecting = self.links.connect_node(address, own, server.identity, self.events.clone());
        let connecting = connecting.map_err(|error| Failure::from_error(&error))?;
        let is_kept = self.section.servers().iter().any(|kept| kept.identity == server.identity);
        let now = Instant::now();
        let connection = Connection {
            server: server.clone(),
            link: None,
            down_since: now,
            last_use: now,
            waiting: VecDeque::new(),
            is_kept,
            _connecting: connecting,
        };
        self.servers.insert(server.identity, connection);
        Ok(())
    }

    fn leave(&mut self, identity: &IdentityKey) {
        self.faults.forget(identity);
        if let Some(link) = self.servers.remove(identity).and_then(|known| known.link) {
            self.links.close(link, "another server took its place");
            self.by_link.remove(&link);
        }
    }

    fn send(&mut self, to: &Server, octets: Vec<u8>, feedback: &mut VecDeque<NodeInput>) -> Result<(), Failure> {
        self.connect(to)?;
        let Some(connection) = self.servers.get_mut(&to.identity) else { return Ok(()) };
        connection.last_use = Instant::now();
        if let Some(link) = connection.link {
            self.links.send(link, octets);
            return Ok(());
        }
        if connection.down_since.elapsed() >= UNREACHABLE || connection.waiting.len() >= MAX_WAITING {
            feedback.push_back(NodeInput::Unreachable(to.identity));
            return Ok(());
        }
        if connection.waiting.is_empty() {
            let (events, identity) = (self.events.clone(), to.identity);
            let left = UNREACHABLE.saturating_sub(connection.down_since.elapsed());
            tokio::spawn(async move {
                tokio::time::sleep(left).await;
                let _ = events.send(Event::Own(Own::Check(identity))).await; // fails if the node has stopped
            });
        }
        connection.waiting.push_back(octets);
        Ok(())
    }

    /// What the configuration says of the node, with those neighbours that are members.
    pub fn profile(&self, realm: &Realm) -> Profile {
        self.section.profile(self.identity.identity(), realm)
    }

    fn note(&self, event: &NodeEvent) {
        if let NodeEvent::List(found) = event {
            self.freshness.send_replace(*found);
        }
        if let NodeEvent::KeyRoll(roll) = event {
            self.rolls.send_modify(|rolls| rolls.push(roll.clone()));
        }
        let has_changed = self.refusals.send_if_modified(|refusals| match event {
            NodeEvent::Registered { server, .. } => refusals.remove(server).is_some(),
            NodeEvent::NotRegistered { server, refusal } => {
                let said = format!("path server {server} refused this node's advert: {refusal}");
                refusals.insert(*server, said.clone()) != Some(said)
            }
            NodeEvent::Removed { server } => {
                refusals.insert(*server, REMOVED.to_owned()).is_none_or(|before| before != REMOVED)
            }
            _ => false,
        });
        if matches!(event, NodeEvent::Removed { .. }) && !has_changed {
            return;
        }
        self.log.report(line(event));
    }
}

/// What the operator is told.
pub fn line(event: &NodeEvent) -> EventLine {
    match event {
        NodeEvent::Removed { server } => event!(WARN "removed" by 0, { server = shown(server) } "{REMOVED}"),
        NodeEvent::Registered { server, sequence } => {
            event!(INFO "registered" by 0, { server = shown(server), sequence }
            "path server has this node's advert")
        }
        NodeEvent::NotRegistered { server, refusal } => {
            event!(WARN "not-registered" by 0, { server = shown(server); why = shown(refusal) }
                "path server refused this node's advert: {refusal}; others find no path over it there")
        }
        NodeEvent::Disbelieved { server, failure } => {
            event!(WARN "disbelieved" by 0, { server = shown(server); why = shown(failure) }
                "a claim of the path server is not used: {failure}")
        }
        NodeEvent::Conflict { known, other } => {
            // One node that does it again and again does not keep the operator from being told of the realm's key.
            let (signer, cause) = match &**known {
                Record::Advert(advert) => (format!("node {}", advert.object().identity), 0),
                _ => ("the realm's key".to_owned(), 1),
            };
            event!(ERROR "conflicting-objects" by cause,
                { signer = shown(&signer); known = to_hex(&known.encode()), other = to_hex(&other.encode()) }
                "{signer} signed two objects with one number: two processes use its key or a copy of its state, or its holder tells \
                 others differently; `show events` has both")
        }
        NodeEvent::Delayed { reasons, .. } => {
            let why = NoConsent { reasons: reasons.clone() };
            event!(WARN "consent-delayed" by 0, {; why = shown(&why) }
                "consents were not renewed and last until they expire: {why}")
        }
        NodeEvent::List(found) => freshness::line(*found),
        NodeEvent::KeyRoll(roll) => freshness::roll_line(roll),
        NodeEvent::StoreDamaged => event!(ERROR "store-damaged" by 0, {}
            "the state has records that this realm did not sign: it counts as lost, and is asked of path servers"),
    }
}

impl LinkIo<Node> for OverlayIo {
    type Own = Own;

    fn link(&mut self, event: LinkEvent) -> Option<NodeInput> {
        let servers = &self.servers;
        self.faults.note(&event, |server| servers.get(server).is_some_and(|known| known.is_kept));
        match event {
            LinkEvent::Up { link, pin, .. } => {
                let Role::Node(identity) = pin.role else { return None };
                let connection = self.servers.get_mut(&identity)?;
                connection.link = Some(link);
                self.by_link.insert(link, identity);
                for octets in connection.waiting.drain(..) {
                    self.links.send(link, octets);
                }
                Some(NodeInput::Connected(identity))
            }
            LinkEvent::Frame { link, bytes, .. } => {
                Some(NodeInput::Frame { from: *self.by_link.get(&link)?, octets: bytes })
            }
            LinkEvent::Down { link, .. } => {
                let identity = self.by_link.remove(&link)?;
                let connection = self.servers.get_mut(&identity).filter(|known| known.link == Some(link))?;
                connection.link = None;
                connection.down_since = Instant::now();
                Some(NodeInput::Disconnected(identity))
            }
            LinkEvent::Failed { .. } => None,
        }
    }

    fn own(&mut self, own: Own) -> Step<Node> {
        Step::Input(match own {
            Own::Find(host, to) => {
                self.finds.retain(|_, waiting| {
                    waiting.retain(|to| !to.is_closed());
                    !waiting.is_empty()
                });
                if self.finds.values().map(Vec::len).sum::<usize>() >= MAX_FINDS {
                    return Step::Ignore; // dropping the sender answers
                }
                self.finds.entry(host.clone()).or_default().push(to);
                NodeInput::Find(host)
            }
            Own::Obtain { path, seconds, to } => {
                let id = self.next_lease;
                self.next_lease += 1;
                let (state_to, state) = watch::channel(LeaseState::Asking);
                if to.send((id, state)).is_err() {
                    return Step::Ignore; // whoever asked has gone
                }
                self.leases.insert(id, state_to);
                NodeInput::Obtain { id, path, seconds }
            }
            Own::Release(id) => {
                self.leases.remove(&id);
                NodeInput::Release { id }
            }
            Own::Reload(section) => {
                self.section = *section;
                NodeInput::Profile(self.profile(&Arc::clone(&self.realm.borrow())))
            }
            Own::Check(identity) => match self.servers.get_mut(&identity) {
                Some(connection) if connection.link.is_none() && !connection.waiting.is_empty() => {
                    connection.waiting.clear();
                    NodeInput::Unreachable(identity)
                }
                _ => return Step::Ignore,
            },
        })
    }

    fn before(&mut self, machine: &mut Node) -> Result<(), Failure> {
        machine.reseed(&fresh()?);
        Ok(())
    }

    fn perform(&mut self, output: NodeOutput, feedback: &mut VecDeque<NodeInput>) -> Result<(), Failure> {
        match output {
            NodeOutput::Send { to, octets } => self.send(&to, octets, feedback)?,
            NodeOutput::Persist { id, records } => {
                records::submit(&self.store, &records, when_durable(&self.events, NodeInput::Persisted(id)))?;
            }
            NodeOutput::Paths { host, paths } => {
                for to in self.finds.remove(&host).into_iter().flatten() {
                    let _ = to.send(Ok(paths.clone())); // whoever asked has gone
                }
            }
            NodeOutput::NoPath { host, reasons } => {
                for to in self.finds.remove(&host).into_iter().flatten() {
                    let _ = to.send(Err(NoPath { host: host.clone(), reasons: reasons.clone() }));
                }
            }
            NodeOutput::Ready { id, path } => match self.leases.get(&id) {
                Some(state) if !state.is_closed() => {
                    state.send_replace(LeaseState::Ready(path));
                }
                _ => {
                    self.leases.remove(&id);
                    feedback.push_back(NodeInput::Release { id });
                }
            },
            NodeOutput::NoConsent { id, reasons } => {
                if let Some(state) = self.leases.remove(&id) {
                    state.send_replace(LeaseState::Gone(NoConsent { reasons }));
                }
            }
            NodeOutput::Ids(ids) => {
                self.ids.send_modify(|own| *own = Arc::new(OwnIds { ids, agreed: Arc::clone(&own.agreed) }));
            }
            NodeOutput::Realm(realm) => {
                feedback.push_back(NodeInput::Profile(self.profile(&realm)));
                self.realm.send_replace(realm);
            }
            NodeOutput::Records { records, complete } => {
                if let Some(tap) = &self.tap {
                    // A server that cannot keep up gets them again from its own subscription after a restart.
                    if tap.try_send((records, complete)).is_err() {
                        return Err(Failure::new("the consent server does not keep up with the path servers' records"));
                    }
                }
            }
            NodeOutput::Event(event) => self.note(&event),
        }
        Ok(())
    }
}
