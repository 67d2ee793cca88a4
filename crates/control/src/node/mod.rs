//! A node's side of the control plane as one machine: it publishes the node's advert, follows what path servers know, finds
//! paths and obtains consent to them.

mod publisher;
mod snapshot;
mod untimely;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use wayleave_core::{IdentityKey, Instant, Machine, Now};
use wayleave_crypto::secret::Seed;
use wayleave_crypto::signed::Signed;
use wayleave_packet::Path;
use wayleave_packet::icing::header::Version;

use crate::advert::{Advert, Relationship};
use crate::consent::{
    ConsentClient, ConsentClientConfig, ConsentClientInput, ConsentClientOutput, HopFailure, HopFault,
};
use crate::database::{Database, Refusal};
use crate::frames::{Body, Frame, Host};
use crate::labels::Labels;
use crate::path::{
    PathClient, PathClientConfig, PathClientInput, PathClientOutput, PathFailure, Subscription, SubscriptionInput,
    SubscriptionOutput, build,
};
use crate::realm::{Freshness, FreshnessWatch, KeyRoll, Membership, Server};
use crate::store::{Record, Store};
use crate::topology::{PartialPath, Step};
use publisher::{Outcome, Publisher, Wish};
use untimely::Untimely;

pub use publisher::{MIN_EPOCH, OwnId, Profile, PublisherConfig};
pub use snapshot::{Member, Realm};

/// Snapshots of what is known are at least this far apart.
const SNAPSHOT: Duration = Duration::from_millis(200);
/// A snapshot is made at least this often, since memberships end without a word.
const SNAPSHOT_MOST: Duration = Duration::from_secs(10);
/// A subscription that was refused is tried again after this.
const RESUBSCRIBE: Duration = Duration::from_secs(1);
/// A node that was removed asks whether it still is.
const REMOVED: Duration = Duration::from_secs(60);

/// What a node needs to know.
pub struct NodeConfig {
    /// The node's identity, membership, IDs, and the advert that it stored last.
    pub publisher: PublisherConfig,
    /// Path servers, in the order in which they are asked.
    pub servers: Vec<Server>,
    /// Members to remember, at most.
    pub capacity: usize,
    /// By how many seconds the next list of removed nodes may be overdue before the node says that it is no longer safe.
    pub max_staleness: u64,
    pub store: Store,
    /// Uniformly random, and used for nothing else.
    pub seed: Seed,
}

/// What a node is given.
#[derive(Debug)]
pub enum NodeInput {
    /// A link to this server is up.
    Connected(IdentityKey),
    Disconnected(IdentityKey),
    /// A server that something was sent to cannot be reached.
    Unreachable(IdentityKey),
    Frame {
        from: IdentityKey,
        octets: Vec<u8>,
    },
    /// The records with this number are durable.
    Persisted(u64),
    /// What the node tells of itself.
    Profile(Profile),
    /// Somebody wants to send to this host.
    Find(Host),
    /// What was found for this host is not used again.
    Forget(Host),
    /// A path is to be sent on: `id` names it; consent is asked for so many seconds.
    Obtain {
        id: u64,
        path: Path,
        seconds: u32,
    },
    /// A path is not used any longer.
    Release {
        id: u64,
    },
    /// The node's later membership; an older one, or another node's, is ignored.
    Membership(Box<Signed<Membership>>),
}

/// What a node asks of its driver, and reports.
#[derive(Clone, Debug)]
pub enum NodeOutput {
    Send {
        to: Server,
        octets: Vec<u8>,
    },
    /// Store these, all or none, and answer with [`NodeInput::Persisted`].
    Persist {
        id: u64,
        records: Vec<Record>,
    },
    /// The paths to a host, the shortest first, with marks where a node does not read packets for sealed payloads
    /// ([`Path::unread_by`]).
    Paths {
        host: Host,
        paths: Vec<Path>,
    },
    NoPath {
        host: Host,
        reasons: Vec<(IdentityKey, PathFailure)>,
    },
    /// Every node consented; the same again, with later consents, ahead of expiry.
    Ready {
        id: u64,
        path: Path,
    },
    /// Not every node consented, or a renewal failed until the consents expired: the path is gone.
    NoConsent {
        id: u64,
        reasons: Vec<HopFailure>,
    },
    /// The node's own IDs: of the previous, the current and the next epoch.
    Ids(Vec<OwnId>),
    /// What is known now.
    Realm(Arc<Realm>),
    /// Records that a path server sent, unverified; `complete` if it has sent all.
    Records {
        records: Vec<Record>,
        complete: bool,
    },
    Event(NodeEvent),
}

/// What the operator reads in the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NodeEvent {
    /// A path server has the advert with this sequence.
    Registered { server: IdentityKey, sequence: u64 },
    /// A path server refused it.
    NotRegistered { server: IdentityKey, refusal: Refusal },
    /// A path server says that the realm's operator removed this node.
    Removed { server: IdentityKey },
    /// A path server claimed what does not hold.
    Disbelieved { server: IdentityKey, failure: PathFailure },
    /// Two objects with one number, both signed as they must be: two processes use one key, or its holder tells others differently.
    Conflict { known: Box<Record>, other: Box<Record> },
    /// The consents of a path were not renewed; they last until they expire.
    Delayed { id: u64, reasons: Vec<HopFailure> },
    /// The list of removed nodes is overdue or too old, or no longer so.
    List(Freshness),
    /// The realm's key rolls, or has rolled.
    KeyRoll(KeyRoll),
    /// The store was damaged: it counts as lost.
    StoreDamaged,
}

/// What a node has asked so far, and how it stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NodeStatus {
    /// The sequence of the own advert that is durable, and how many path servers have it.
    pub sequence: u64,
    pub registered: usize,
    /// Path servers to which links are up.
    pub connected: usize,
    pub members: usize,
    pub path_requests: u64,
    pub consent_requests: u64,
    /// Paths with consents, or for which they are being obtained.
    pub leases: usize,
}

/// The node as a machine.
pub struct Node {
    own: IdentityKey,
    servers: Vec<Server>,
    publisher: Publisher,
    subscription: Subscription,
    paths: PathClient,
    consents: ConsentClient,
    /// The paths in use, for extending them, with their version of the topology.
    leases: BTreeMap<u64, Path>,
    extended: u64,
    freshness: FreshnessWatch,
    partials: Vec<PartialPath>,
    up: BTreeSet<IdentityKey>,
    /// Path servers that took a subscription, and those that are asked again.
    subscribed: BTreeSet<IdentityKey>,
    /// Those of them that have sent all that they know.
    complete: BTreeSet<IdentityKey>,
    resubscribe: BTreeMap<IdentityKey, Instant>,
    /// What path servers told that is not of this time.
    untimely: Untimely,
    realm: Arc<Realm>,
    /// The version of the database that the snapshot has.
    snapshot: Option<u64>,
    snapshot_at: Instant,
    own_persist: Option<u64>,
    next: u64,
    /// When this was last called, for deadlines by the wall clock.
    now: Now,
    outputs: VecDeque<NodeOutput>,
}

impl Node {
    #[must_use]
    pub fn new(mut config: NodeConfig) -> Self {
        let membership = config.publisher.membership.object();
        let (own, realm) = (membership.identity, membership.realm);
        if let Store::Kept(records) = &config.store {
            let last = records.iter().rev().find_map(|record| match record {
                Record::Advert(advert) if advert.object().identity == own => Some(advert.clone()),
                _ => None,
            });
            config.publisher.last = config.publisher.last.or(last);
        }
        let identity = config.publisher.identity.clone();
        let paths = PathClient::new(PathClientConfig {
            own,
            realm,
            capacity: config.capacity,
            servers: config.servers.clone(),
            store: config.store,
        });
        Self {
            own,
            publisher: Publisher::new(config.publisher, &config.servers),
            servers: config.servers,
            subscription: Subscription::default(),
            paths,
            consents: ConsentClient::new(ConsentClientConfig { identity, realm, seed: config.seed }),
            leases: BTreeMap::new(),
            extended: 0,
            freshness: FreshnessWatch::new(config.max_staleness),
            partials: Vec::new(),
            up: BTreeSet::new(),
            subscribed: BTreeSet::new(),
            complete: BTreeSet::new(),
            resubscribe: BTreeMap::new(),
            untimely: Untimely::new(config.capacity),
            realm: Arc::default(),
            snapshot: None,
            snapshot_at: Instant(0),
            own_persist: None,
            next: 0,
            now: Now::default(),
            outputs: VecDeque::new(),
        }
    }

    /// Fresh entropy of the system; the driver gives it before every input.
    pub fn reseed(&mut self, fresh: &Seed) {
        self.consents.reseed(fresh);
    }

    /// What it knows.
    #[must_use]
    pub fn database(&self) -> &Database {
        self.paths.database()
    }

    /// The own membership.
    #[must_use]
    pub fn membership(&self) -> &Signed<Membership> {
        self.publisher.membership()
    }

    #[must_use]
    pub fn status(&self) -> NodeStatus {
        let (sequence, registered) = self.publisher.state();
        NodeStatus {
            sequence,
            registered,
            connected: self.servers.iter().filter(|server| self.up.contains(&server.identity)).count(),
            members: self.database().len(),
            path_requests: self.paths.requests(),
            consent_requests: self.consents.requests(),
            leases: self.leases.len(),
        }
    }

    fn is_path_server(&self, identity: &IdentityKey) -> bool {
        self.servers.iter().any(|server| server.identity == *identity)
    }

    fn persist(&mut self, records: Vec<Record>) -> u64 {
        let id = self.next;
        self.next += 1;
        self.outputs.push_back(NodeOutput::Persist { id, records });
        id
    }

    fn connected(&mut self, server: IdentityKey, now: Now) {
        self.up.insert(server);
        self.publisher.connected(server, now);
        if self.is_path_server(&server) {
            // The server knows us by our registration, which is under way.
            self.resubscribe.insert(server, now.instant + RESUBSCRIBE);
        }
    }

    fn disconnected(&mut self, server: IdentityKey, now: Now) {
        self.up.remove(&server);
        self.subscribed.remove(&server);
        self.set_complete(server, false, now);
        self.resubscribe.remove(&server);
        self.publisher.disconnected(server);
        self.unreachable(server, now);
    }

    /// While a server that has sent all is followed, paths are searched here.
    fn set_complete(&mut self, server: IdentityKey, is_complete: bool, now: Now) {
        let has_changed = if is_complete { self.complete.insert(server) } else { self.complete.remove(&server) };
        if has_changed {
            self.paths.handle(PathClientInput::Following(!self.complete.is_empty()), now);
        }
    }

    /// What was asked of it will not be answered.
    fn unreachable(&mut self, server: IdentityKey, now: Now) {
        if self.is_path_server(&server) {
            self.paths.handle(PathClientInput::Unreachable(server), now);
        }
        self.consents.handle(ConsentClientInput::Unreachable(server), now);
    }

    fn subscribe(&mut self, server: IdentityKey, now: Now) {
        if self.up.contains(&server) && self.subscribed.insert(server) {
            self.resubscribe.remove(&server);
            self.subscription.handle(SubscriptionInput::Connected(server), now);
        }
    }

    fn frame(&mut self, from: IdentityKey, octets: Vec<u8>, now: Now) {
        if !self.is_path_server(&from) {
            return self.consents.handle(ConsentClientInput::Frame { from, octets }, now);
        }
        let Ok(frame) = Frame::decode(&octets) else {
            return self.paths.handle(PathClientInput::Frame { from, octets }, now);
        };
        match self.publisher.answer(from, &frame, now) {
            Outcome::Registered(sequence) => {
                self.outputs.push_back(NodeOutput::Event(NodeEvent::Registered { server: from, sequence }));
                return self.subscribe(from, now);
            }
            Outcome::Refused(refusal) => {
                self.outputs.push_back(NodeOutput::Event(NodeEvent::NotRegistered { server: from, refusal }));
                // Our membership may have been taken all the same.
                return self.subscribe(from, now);
            }
            Outcome::None => {}
        }
        match frame.body {
            Body::Records { instance, version, complete, records } => {
                let input = SubscriptionInput::Records { from, instance, version, complete, records };
                self.subscription.handle(input, now);
            }
            // Nobody else asks with this number.
            Body::Refused(refusal) if frame.request == 0 => {
                if refusal == Refusal::Revoked {
                    self.outputs.push_back(NodeOutput::Event(NodeEvent::Removed { server: from }));
                }
                if self.subscribed.remove(&from) {
                    self.set_complete(from, false, now);
                    // A removal is not mended in a second.
                    let pause = if refusal == Refusal::Revoked { REMOVED } else { RESUBSCRIBE };
                    self.resubscribe.insert(from, now.instant + pause);
                }
            }
            _ => self.paths.handle(PathClientInput::Frame { from, octets }, now),
        }
    }

    /// Links that are not public: others know paths that begin with them from us alone.
    fn set_profile(&mut self, profile: Profile, now: Now) {
        self.publisher.set_profile(profile);
        let step = |relationship| match relationship {
            Relationship::Provider => Step::Up,
            Relationship::Peer => Step::Across,
            Relationship::Customer => Step::Down,
        };
        let private = self.publisher.links().iter().filter(|link| !link.public);
        let partial = |link: &crate::advert::Link| PartialPath {
            nodes: vec![self.own, link.neighbour],
            steps: vec![step(link.relationship)],
        };
        let partials: Vec<PartialPath> = private.map(partial).collect();
        if partials != self.partials {
            self.partials = partials.clone();
            self.paths.handle(PathClientInput::Partials(partials), now);
        }
    }

    fn obtain(&mut self, id: u64, path: Path, seconds: u32, now: Now) {
        let Some(servers) = self.paths.consent_servers(&path, now) else {
            let unix = now.unix.secs();
            let mut reasons = Vec::new();
            for (index, (node, ..)) in path.nodes().enumerate().skip(1) {
                if self.database().advert(&node, unix).is_none_or(|advert| advert.consent.is_none()) {
                    reasons.push(HopFailure { index, server: node, fault: HopFault::NoServer });
                }
            }
            return self.outputs.push_back(NodeOutput::NoConsent { id, reasons });
        };
        self.leases.insert(id, path.clone());
        self.consents.handle(ConsentClientInput::Obtain { id, path, servers, seconds }, now);
    }

    /// Gives paths in use the later expiry that renewed adverts allow.
    fn extend(&mut self, now: Now) {
        let version = self.database().topology_version();
        if version == self.extended {
            return;
        }
        self.extended = version;
        let unix = now.unix.secs();
        let mut longer = Vec::new();
        for (id, path) in &self.leases {
            let nodes: Vec<IdentityKey> = path.nodes().map(|(identity, ..)| identity).collect();
            let built = build(self.database(), &Labels::default(), &self.partials, &nodes, unix);
            let built = built.ok().filter(|built| built.expiry() > path.expiry() && built.nodes().eq(path.nodes()));
            longer.extend(built.map(|built| (*id, built)));
        }
        for (id, path) in longer {
            self.leases.insert(id, path.clone());
            self.consents.handle(ConsentClientInput::Extend { id, path }, now);
        }
    }

    fn snapshot(&mut self, now: Now) {
        let version = self.database().version();
        let age = now.instant.since(self.snapshot_at);
        let is_due = match self.snapshot {
            None => true,
            Some(known) => known != version && age >= SNAPSHOT || age >= SNAPSHOT_MOST,
        };
        if !is_due {
            return;
        }
        self.snapshot_at = now.instant;
        let realm = Realm::of(self.database(), &self.realm, now.unix.secs());
        if self.snapshot.is_none() || realm != *self.realm {
            self.realm = Arc::new(realm);
            self.outputs.push_back(NodeOutput::Realm(Arc::clone(&self.realm)));
        }
        self.snapshot = Some(version);
        self.extend(now);
    }

    /// What follows from an input: the parts hand on to each other, and the outputs of all come out.
    fn settle(&mut self, now: Now) {
        self.now = now;
        let due = self.untimely.take(now.unix.secs());
        if !due.is_empty() {
            self.take_records(due, now);
        }
        self.publish(now);
        loop {
            let mut is_idle = true;
            while let Some(output) = self.subscription.poll() {
                is_idle = false;
                self.on_subscription(output, now);
            }
            while let Some(output) = self.paths.poll() {
                is_idle = false;
                self.on_paths(output);
            }
            while let Some(output) = self.consents.poll() {
                is_idle = false;
                self.on_consents(output);
            }
            if is_idle {
                break;
            }
        }
        self.snapshot(now);
        if let Some(found) = self.freshness.look(self.paths.database().revocations(), now.unix.secs()) {
            self.outputs.push_back(NodeOutput::Event(NodeEvent::List(found)));
        }
        for roll in self.freshness.new_rolls(self.paths.database().revocations()) {
            self.outputs.push_back(NodeOutput::Event(NodeEvent::KeyRoll(roll)));
        }
        while let Some(output) = self.consents.poll() {
            self.on_consents(output);
        }
    }

    fn publish(&mut self, now: Now) {
        for wish in self.publisher.work(now) {
            match wish {
                Wish::Persist(advert) => self.own_persist = Some(self.persist(vec![Record::Advert(*advert)])),
                Wish::Send { to, octets } => self.send(to, octets),
                Wish::Ids(ids) => {
                    let membership = self.publisher.membership().clone();
                    let secrets = ids.iter().map(|id| (id.secret.clone(), id.signed)).collect();
                    self.consents.handle(ConsentClientInput::Node { membership, ids: secrets }, now);
                    self.outputs.push_back(NodeOutput::Ids(ids));
                }
            }
        }
    }

    fn set_membership(&mut self, membership: Signed<Membership>, now: Now) {
        if !self.publisher.set_membership(membership) {
            return;
        }
        let membership = self.publisher.membership().clone();
        let ids = self.publisher.ids().iter().map(|id| (id.secret.clone(), id.signed)).collect();
        self.consents.handle(ConsentClientInput::Node { membership, ids }, now);
    }

    fn send(&mut self, to: IdentityKey, octets: Vec<u8>) {
        if let Some(server) = self.servers.iter().find(|server| server.identity == to) {
            self.outputs.push_back(NodeOutput::Send { to: server.clone(), octets });
        }
    }

    fn on_subscription(&mut self, output: SubscriptionOutput, now: Now) {
        match output {
            SubscriptionOutput::Send { to, octets } => self.send(to, octets),
            SubscriptionOutput::Records(records) => {
                records.iter().for_each(|record| self.untimely.note(record, now.unix.secs()));
                self.take_records(records, now);
            }
            SubscriptionOutput::Complete(from) => {
                self.set_complete(from, true, now);
                self.outputs.push_back(NodeOutput::Records { records: Vec::new(), complete: true });
            }
        }
    }

    fn take_records(&mut self, records: Vec<Record>, now: Now) {
        self.outputs.push_back(NodeOutput::Records { records: records.clone(), complete: false });
        self.paths.handle(PathClientInput::Records(records), now);
    }

    /// Marks the nodes behind the sender whose adverts do not say that they read packets for sealed payloads: programs of before drop these.
    fn mark_unread(&self, path: &mut Path) {
        let unix = self.now.unix.secs();
        let nodes: Vec<IdentityKey> = path.nodes().map(|(identity, ..)| identity).collect();
        for (index, node) in nodes.iter().enumerate().skip(1) {
            if self.database().advert(node, unix).is_none_or(|advert| !advert.reads(Version::Sealed)) {
                path.add_unread_by(index);
            }
        }
    }

    fn on_paths(&mut self, output: PathClientOutput) {
        self.outputs.push_back(match output {
            PathClientOutput::Send { to, octets } => NodeOutput::Send { to, octets },
            PathClientOutput::Paths { host, mut paths } => {
                paths.iter_mut().for_each(|path| self.mark_unread(path));
                NodeOutput::Paths { host, paths }
            }
            PathClientOutput::Failed { host, reasons } => NodeOutput::NoPath { host, reasons },
            PathClientOutput::Persist(mut records) => {
                // The own advert is stored by the publisher, before anybody else has it.
                records.retain(|record| !is_advert_of(record, &self.own));
                if records.is_empty() {
                    return;
                }
                self.persist(records);
                return;
            }
            PathClientOutput::Conflict { known, other } => NodeOutput::Event(NodeEvent::Conflict { known, other }),
            PathClientOutput::Disbelieved { server, failure } => {
                NodeOutput::Event(NodeEvent::Disbelieved { server, failure })
            }
        });
    }

    fn on_consents(&mut self, output: ConsentClientOutput) {
        self.outputs.push_back(match output {
            ConsentClientOutput::Send { to, octets } => NodeOutput::Send { to, octets },
            ConsentClientOutput::Ready { id, path } => NodeOutput::Ready { id, path },
            ConsentClientOutput::Failed { id, reasons } => {
                self.leases.remove(&id);
                NodeOutput::NoConsent { id, reasons }
            }
            ConsentClientOutput::Delayed { id, reasons } => NodeOutput::Event(NodeEvent::Delayed { id, reasons }),
        });
    }
}

fn is_advert_of(record: &Record, own: &IdentityKey) -> bool {
    let is_own = |advert: &Signed<Advert>| advert.object().identity == *own;
    matches!(record, Record::Advert(advert) if is_own(advert))
}

impl Machine for Node {
    type Input = NodeInput;
    type Output = NodeOutput;

    fn handle(&mut self, input: NodeInput, now: Now) {
        match input {
            NodeInput::Connected(server) => self.connected(server, now),
            NodeInput::Disconnected(server) => self.disconnected(server, now),
            NodeInput::Unreachable(server) => self.unreachable(server, now),
            NodeInput::Frame { from, octets } => self.frame(from, octets, now),
            NodeInput::Persisted(id) => {
                if self.own_persist == Some(id) {
                    self.own_persist = None;
                    self.publisher.persisted(now);
                }
            }
            NodeInput::Profile(profile) => self.set_profile(profile, now),
            NodeInput::Find(host) => self.paths.handle(PathClientInput::Find(host), now),
            NodeInput::Forget(host) => self.paths.handle(PathClientInput::Forget(host), now),
            NodeInput::Obtain { id, path, seconds } => self.obtain(id, path, seconds, now),
            NodeInput::Membership(membership) => self.set_membership(*membership, now),
            NodeInput::Release { id } => {
                self.leases.remove(&id);
                self.consents.handle(ConsentClientInput::Release { id }, now);
            }
        }
        self.settle(now);
    }

    fn handle_timeout(&mut self, now: Now) {
        self.paths.handle_timeout(now);
        self.consents.handle_timeout(now);
        let due: Vec<IdentityKey> =
            self.resubscribe.iter().filter(|(_, at)| **at <= now.instant).map(|(server, _)| *server).collect();
        due.into_iter().for_each(|server| self.subscribe(server, now));
        self.settle(now);
    }

    fn poll(&mut self) -> Option<NodeOutput> {
        self.outputs.pop_front()
    }

    fn deadline(&self) -> Option<Instant> {
        let is_behind = self.snapshot.is_none_or(|known| known != self.database().version());
        let snapshot = self.snapshot_at + if is_behind { SNAPSHOT } else { SNAPSHOT_MOST };
        let parts = [self.publisher.deadline(self.now), self.paths.deadline(), self.consents.deadline()];
        let resubscribe = self.resubscribe.values().copied();
        parts.into_iter().flatten().chain(resubscribe).chain([snapshot]).min()
    }
}
