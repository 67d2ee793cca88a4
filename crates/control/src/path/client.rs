//! The client of path servers: it searches what it holds, asks for what it does not, believes signatures alone, remembers, and asks
//! again ahead of expiry.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use wayleave_core::{IdentityKey, Instant, Machine, Now};
use wayleave_crypto::hash::hash;
use wayleave_packet::Path;

use super::{PathFault, build};
use crate::database::{Change, Database, Refusal};
use crate::frames::{Body, Frame, Host};
use crate::labels::Labels;
use crate::realm::{RealmKey, Server};
use crate::store::{Record, Store};
use crate::topology::{Current, MAX_PATHS, MAX_STEPS, PartialPath};

/// Hosts whose paths are remembered.
pub const MAX_HOSTS: usize = 4096;
/// A server that has not answered by then is asked no longer.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Paths in use are asked for again this many seconds before the first of them expires, or halfway if that is later.
pub const RENEW_AHEAD: u64 = 60;
/// A server that was silent, babbled or could not be reached is asked last for so long.
const SUSPICION: Duration = Duration::from_secs(30);
/// This long after an advert came a server has made its graph anew, and its other clients have the advert.
const SETTLE: Duration = Duration::from_secs(1);
/// After all servers failed, none is asked before this.
const PAUSE: Duration = Duration::from_secs(1);

/// What a client needs to know.
#[derive(Clone, Debug)]
pub struct PathClientConfig {
    pub own: IdentityKey,
    pub realm: RealmKey,
    /// Members to remember, at most.
    pub capacity: usize,
    /// In the order in which they are asked.
    pub servers: Vec<Server>,
    /// What was known before: objects that are older are not believed.
    pub store: Store,
}

/// What a client is given.
#[derive(Clone, Debug)]
pub enum PathClientInput {
    /// Somebody wants to send to this host.
    Find(Host),
    /// What was found for this host is not used again: the next one who wants to send makes the client ask.
    Forget(Host),
    /// A server that was sent to answers, or sends records.
    Frame { from: IdentityKey, octets: Vec<u8> },
    /// A server cannot be reached.
    Unreachable(IdentityKey),
    /// The client's own links that are not public, and what it may use besides.
    Partials(Vec<PartialPath>),
    /// The verified labels of nodes are these.
    Labels(Labels),
    /// Records that a subscription brought, unverified.
    Records(Vec<Record>),
    /// Whether a path server that is followed has sent all that it knows, and is connected: then paths are searched here.
    Following(bool),
}

/// What a client asks of its driver, and reports.
#[derive(Clone, Debug)]
pub enum PathClientOutput {
    Send {
        to: Server,
        octets: Vec<u8>,
    },
    /// The paths to a host, the shortest first, rebuilt from what their nodes signed.
    Paths {
        host: Host,
        paths: Vec<Path>,
    },
    /// There is none, and why from each server.
    Failed {
        host: Host,
        reasons: Vec<(IdentityKey, PathFailure)>,
    },
    /// Two records with one number, both signed as they must be: the one that is known, and another.
    Conflict {
        known: Box<Record>,
        other: Box<Record>,
    },
    /// Store these.
    Persist(Vec<Record>),
    /// A server claimed a path or record that does not hold; the rest of its answer is used.
    Disbelieved {
        server: IdentityKey,
        failure: PathFailure,
    },
}

/// Why a server's answer is not used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PathFailure {
    #[error("no answer within two seconds")]
    Silent,
    #[error("the server cannot be reached")]
    Unreachable,
    #[error("the server refused: {0}")]
    Refused(Refusal),
    #[error("the server's answer is malformed, or of another kind")]
    Malformed,
    #[error("the answer's path leads from another node, or to another host")]
    Ends,
    #[error("the answer's path does not hold: {0}")]
    Path(PathFault),
    #[error("the answer's record does not hold: {0}")]
    Record(Refusal),
    #[error("the server knows no path")]
    None,
}

struct Flight {
    request: u32,
    /// The server, by its number in the configuration.
    server: usize,
    deadline: Instant,
}

#[derive(Default)]
struct Entry {
    paths: Vec<Path>,
    /// Servers by their numbers, in the order of this round, those that were asked already left out.
    order: VecDeque<usize>,
    flight: Option<Flight>,
    /// Servers that failed in this round.
    reasons: Vec<(IdentityKey, PathFailure)>,
    /// Whether somebody waits for the answer.
    is_awaited: bool,
    /// Whether it was asked for since the last renewal.
    is_used: bool,
    renew_at: Option<Instant>,
    last_use: Instant,
    /// When servers were asked last.
    searched: Instant,
}

/// The client as a machine.
pub struct PathClient {
    own: IdentityKey,
    servers: Vec<Server>,
    database: Database,
    labels: Labels,
    partials: Vec<PartialPath>,
    is_following: bool,
    current: Current,
    /// By a record's key the digest of the one that was told of as a conflict: once is enough.
    conflicts: BTreeMap<Vec<u8>, [u8; 32]>,
    hosts: BTreeMap<Host, Entry>,
    /// Servers that failed, by their numbers, until when they are asked last.
    suspects: BTreeMap<usize, Instant>,
    /// The version of the graph, and when it changed last.
    graph: (u64, Instant),
    next: u32,
    /// Requests that were sent: a flow that uses what is remembered adds none.
    requests: u64,
    outputs: VecDeque<PathClientOutput>,
}

impl PathClient {
    #[must_use]
    pub fn new(config: PathClientConfig) -> Self {
        let mut database = Database::new(config.realm, config.capacity);
        if let Store::Kept(records) = &config.store
            && database.restore(records).is_err()
        {
            database = Database::new(config.realm, config.capacity);
        }
        let database_graph = database.graph_version();
        Self {
            own: config.own,
            servers: config.servers,
            database,
            labels: Labels::default(),
            partials: Vec::new(),
            is_following: false,
            current: Current::default(),
            conflicts: BTreeMap::new(),
            hosts: BTreeMap::new(),
            suspects: BTreeMap::new(),
            graph: (database_graph, Instant(0)),
            next: 1,
            requests: 0,
            outputs: VecDeque::new(),
        }
    }

    /// Requests that were sent so far.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// What it knows: whose inner addresses are whose, and who consents for which node.
    #[must_use]
    pub fn database(&self) -> &Database {
        &self.database
    }

    /// The consent servers of a path's nodes behind the sender, in order; `None` if one has none.
    #[must_use]
    pub fn consent_servers(&self, path: &Path, now: Now) -> Option<Vec<Server>> {
        let server = |identity| self.database.advert(&identity, now.unix.secs())?.consent.clone();
        path.nodes().skip(1).map(|(identity, _, _)| server(identity)).collect()
    }

    /// The paths to a host by what is held here: no server chooses which of them there are.
    fn search(&mut self, host: &Host, now: Now) -> Vec<Path> {
        let unix = now.unix.secs();
        let Some(target) = self.target(host, unix) else { return Vec::new() };
        let topology = self.current.topology(&self.database, &self.own, now);
        if !topology.has(&self.own) {
            return Vec::new();
        }
        let checked = |partial: &PartialPath| Some((partial.clone(), topology.check_partial(partial, &self.own).ok()?));
        let partials: Vec<_> = self.partials.iter().filter_map(checked).collect();
        let found = topology.search(&self.own, &partials, &[target], MAX_STEPS);
        let built = |nodes: &Vec<IdentityKey>| build(&self.database, &self.labels, &self.partials, nodes, unix).ok();
        found.paths.iter().filter_map(built).collect()
    }

    fn find(&mut self, host: Host, now: Now) {
        let paths = if self.is_following { self.search(&host, now) } else { Vec::new() };
        self.make_room(&host);
        let entry = self.hosts.entry(host.clone()).or_default();
        if !paths.is_empty() {
            // Remembered for when nobody is followed.
            (entry.paths, entry.searched, entry.last_use) = (paths.clone(), now.instant, now.instant);
            return self.outputs.push_back(PathClientOutput::Paths { host, paths });
        }
        entry.is_used = true;
        entry.last_use = now.instant;
        let unix = now.unix.secs();
        // What is remembered is made again from the newest adverts: a node that was removed or departed since, or whose ID is
        // another by now, is on no path of before.
        let again = |path: &Path| {
            let nodes: Vec<IdentityKey> = path.nodes().map(|(identity, _, _)| identity).collect();
            build(&self.database, &self.labels, &self.partials, &nodes, unix).ok()
        };
        entry.paths = entry.paths.iter().filter_map(again).collect();
        if !entry.paths.is_empty() {
            let paths = entry.paths.clone();
            // Since then links came, of which the server may not have known: they are asked for beside, for the next time.
            let is_old = entry.searched < self.graph.1 + SETTLE && now.instant.since(entry.searched) >= SETTLE;
            let is_idle = entry.flight.is_none();
            self.outputs.push_back(PathClientOutput::Paths { host: host.clone(), paths });
            if is_old && is_idle {
                self.begin(&host, now);
            }
            return;
        }
        entry.is_awaited = true;
        if entry.flight.is_none() {
            if !entry.reasons.is_empty() && entry.renew_at.is_some_and(|at| at > now.instant) {
                // Every server failed a moment ago.
                entry.is_awaited = false;
                let reasons = entry.reasons.clone();
                return self.outputs.push_back(PathClientOutput::Failed { host, reasons });
            }
            self.begin(&host, now);
        }
    }

    /// Asks the first server, and the next ones if it fails.
    fn begin(&mut self, host: &Host, now: Now) {
        self.suspects.retain(|_, until| *until > now.instant);
        let mut order: VecDeque<usize> = (0..self.servers.len()).collect();
        order.make_contiguous().sort_by_key(|server| self.suspects.contains_key(server));
        let Some(entry) = self.hosts.get_mut(host) else { return };
        entry.order = order;
        entry.searched = now.instant;
        entry.reasons.clear();
        self.ask(host, now);
    }

    /// Makes room for `host` by forgetting the one that was not used for longest.
    fn make_room(&mut self, host: &Host) {
        if self.hosts.len() >= MAX_HOSTS && !self.hosts.contains_key(host) {
            let idle = self.hosts.iter().min_by_key(|(_, entry)| (entry.is_awaited, entry.last_use));
            if let Some(idle) = idle.map(|(host, _)| host.clone()) {
                self.hosts.remove(&idle);
            }
        }
    }

    /// Asks the next server and, if there are no more, searches what is held, or gives up for now.
    fn ask(&mut self, host: &Host, now: Now) {
        let Some(entry) = self.hosts.get_mut(host) else { return };
        let next = entry.order.pop_front();
        let Some((server, to)) = next.and_then(|server| Some((server, self.servers.get(server)?))) else {
            entry.flight = None;
            entry.renew_at = Some(now.instant + PAUSE);
            if std::mem::take(&mut entry.is_awaited) {
                let (host, reasons) = (host.clone(), entry.reasons.clone());
                // What is held may be old, and is better than nothing.
                let paths = self.search(&host, now);
                self.outputs.push_back(match paths.is_empty() {
                    true => PathClientOutput::Failed { host, reasons },
                    false => PathClientOutput::Paths { host, paths },
                });
            }
            return;
        };
        let request = self.next;
        self.next = self.next.checked_add(1).unwrap_or(1);
        self.requests += 1;
        entry.flight = Some(Flight { request, server, deadline: now.instant + REQUEST_TIMEOUT });
        entry.is_used = false;
        let partials = self.partials.iter().take(MAX_PATHS).cloned().collect();
        let body = Body::FindHost { host: host.clone(), partials };
        self.outputs.push_back(PathClientOutput::Send { to: to.clone(), octets: Frame { request, body }.encode() });
    }

    /// The server that a host's paths are awaited from failed: the next one is asked.
    fn fail(&mut self, host: &Host, failure: PathFailure, now: Now) {
        let Some(entry) = self.hosts.get_mut(host) else { return };
        let Some(flight) = entry.flight.take() else { return };
        if let Some(server) = self.servers.get(flight.server) {
            entry.reasons.push((server.identity, failure));
        }
        if matches!(failure, PathFailure::Silent | PathFailure::Unreachable | PathFailure::Malformed) {
            self.suspects.insert(flight.server, now.instant + SUSPICION);
        }
        self.ask(host, now);
    }

    fn frame(&mut self, from: IdentityKey, octets: &[u8], now: Now) {
        let frame = Frame::decode(octets);
        let request = frame.as_ref().map_or(0, |frame| frame.request);
        // A malformed frame is the answer to whatever was asked of its sender.
        let is_answer = |entry: &Entry| {
            let flight = entry.flight.as_ref();
            flight.is_some_and(|flight| {
                self.servers.get(flight.server).is_some_and(|server| server.identity == from)
                    && (frame.is_err() || flight.request == request)
            })
        };
        let host = self.hosts.iter().find(|(_, entry)| is_answer(entry)).map(|(host, _)| host.clone());
        // An answer that came too late, or that nobody asked for.
        let Some(host) = host else { return };
        match frame.map(|frame| frame.body) {
            Ok(Body::Paths { paths, records, .. }) => {
                self.records(Some(from), records, now);
                self.paths(&host, from, &paths, now);
            }
            Ok(Body::Refused(refusal)) => self.fail(&host, PathFailure::Refused(refusal), now),
            _ => self.fail(&host, PathFailure::Malformed, now),
        }
    }

    fn paths(&mut self, host: &Host, from: IdentityKey, claimed: &[Path], now: Now) {
        let unix = now.unix.secs();
        let mut paths = Vec::new();
        let mut failure = PathFailure::None;
        for path in claimed {
            let nodes: Vec<IdentityKey> = path.nodes().map(|(identity, _, _)| identity).collect();
            let built = match self.leads_to(&nodes, host, unix) {
                true => build(&self.database, &self.labels, &self.partials, &nodes, unix).map_err(PathFailure::Path),
                false => Err(PathFailure::Ends),
            };
            match built {
                Ok(path) => paths.push(path),
                Err(error) => {
                    failure = error;
                    self.outputs.push_back(PathClientOutput::Disbelieved { server: from, failure });
                }
            }
        }
        if paths.is_empty() {
            return self.fail(host, failure, now);
        }
        let Some(entry) = self.hosts.get_mut(host) else { return };
        let first = paths.iter().map(Path::expiry).min().unwrap_or(unix);
        let left = first.saturating_sub(unix);
        let pause = left.saturating_sub(RENEW_AHEAD).max(left / 2).max(1);
        entry.paths = paths.clone();
        entry.flight = None;
        entry.reasons.clear();
        entry.renew_at = Some(now.instant + Duration::from_secs(pause));
        if std::mem::take(&mut entry.is_awaited) {
            self.outputs.push_back(PathClientOutput::Paths { host: host.clone(), paths });
        }
    }

    /// Whether nodes lead from here to the host, by what its membership says.
    fn leads_to(&self, nodes: &[IdentityKey], host: &Host, unix: u64) -> bool {
        let (Some(first), Some(last)) = (nodes.first(), nodes.last()) else { return false };
        *first == self.own && Some(*last) == self.target(host, unix)
    }

    fn target(&self, host: &Host, unix: u64) -> Option<IdentityKey> {
        match host {
            Host::Name(name) => self.database.named(name, unix),
            Host::Identity(identity) => Some(*identity),
            Host::Address(address) => self.database.owner(*address, unix),
        }
    }

    /// Tells of a record that contradicts one that is known, if its signer made both; says whether it did.
    fn conflict(&mut self, other: &Record) -> bool {
        let Some(known) = self.database.counterpart(other) else { return false };
        let digest = hash("wayleave/control/conflict/v1", &[&other.encode()]);
        if self.conflicts.insert(known.key(), digest) != Some(digest) {
            let (known, other) = (Box::new(known), Box::new(other.clone()));
            self.outputs.push_back(PathClientOutput::Conflict { known, other });
        }
        true
    }

    fn records(&mut self, from: Option<IdentityKey>, records: Vec<Record>, now: Now) {
        let mut kept = Vec::new();
        for record in records {
            match self.database.apply(record.clone(), now.unix.secs()) {
                Ok(Change::New) => kept.push(record),
                Ok(Change::Same) | Err(Refusal::Older(_)) => {}
                Err(Refusal::Conflict) if self.conflict(&record) => {}
                Err(refusal) => {
                    let failure = PathFailure::Record(refusal);
                    let event = from.map(|server| PathClientOutput::Disbelieved { server, failure });
                    self.outputs.extend(event);
                }
            }
        }
        let graph = self.database.graph_version();
        if graph != self.graph.0 {
            // What came with an answer its server knew when it searched.
            let at = if from.is_none() { now.instant } else { self.graph.1 };
            self.graph = (graph, at);
        }
        if !kept.is_empty() {
            self.outputs.push_back(PathClientOutput::Persist(kept));
        }
    }
}

impl Machine for PathClient {
    type Input = PathClientInput;
    type Output = PathClientOutput;

    fn handle(&mut self, input: PathClientInput, now: Now) {
        match input {
            PathClientInput::Find(host) => self.find(host, now),
            PathClientInput::Forget(host) => {
                // Whoever waits for an answer still gets it.
                self.hosts.entry(host).and_modify(|entry| entry.paths.clear());
            }
            PathClientInput::Frame { from, octets } => self.frame(from, &octets, now),
            PathClientInput::Unreachable(identity) => {
                let servers = &self.servers;
                let is_waiting = |entry: &Entry| {
                    let flight = entry.flight.as_ref();
                    flight
                        .and_then(|flight| servers.get(flight.server))
                        .is_some_and(|server| server.identity == identity)
                };
                let hosts: Vec<Host> =
                    self.hosts.iter().filter(|(_, entry)| is_waiting(entry)).map(|(host, _)| host.clone()).collect();
                hosts.iter().for_each(|host| self.fail(host, PathFailure::Unreachable, now));
            }
            PathClientInput::Partials(partials) => self.partials = partials,
            PathClientInput::Labels(labels) => self.labels = labels,
            PathClientInput::Records(records) => self.records(None, records, now),
            PathClientInput::Following(is_following) => self.is_following = is_following,
        }
    }

    fn handle_timeout(&mut self, now: Now) {
        let is_silent = |entry: &Entry| entry.flight.as_ref().is_some_and(|flight| flight.deadline <= now.instant);
        let silent: Vec<Host> =
            self.hosts.iter().filter(|(_, entry)| is_silent(entry)).map(|(host, _)| host.clone()).collect();
        silent.iter().for_each(|host| self.fail(host, PathFailure::Silent, now));
        let is_due = |entry: &Entry| entry.flight.is_none() && entry.renew_at.is_some_and(|at| at <= now.instant);
        let due: Vec<Host> =
            self.hosts.iter().filter(|(_, entry)| is_due(entry)).map(|(host, _)| host.clone()).collect();
        for host in due {
            let Some(entry) = self.hosts.get_mut(&host) else { continue };
            entry.renew_at = None;
            // What nobody used since is not asked for again.
            if entry.is_used && !entry.paths.is_empty() {
                self.begin(&host, now);
            }
        }
    }

    fn poll(&mut self) -> Option<PathClientOutput> {
        self.outputs.pop_front()
    }

    fn deadline(&self) -> Option<Instant> {
        let flights = self.hosts.values().filter_map(|entry| entry.flight.as_ref().map(|flight| flight.deadline));
        let renewals = self.hosts.values().filter(|entry| entry.flight.is_none()).filter_map(|entry| entry.renew_at);
        flights.chain(renewals).min()
    }
}
