//! The path server (the paper, section 3.3): it keeps what nodes advertise and finds paths. It has no key.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use wayleave_core::{IdentityKey, Instant, Machine, Now};
use wayleave_crypto::signed::Signed;

use super::build;
use crate::advert::Advert;
use crate::budget::Budget;
use crate::clients::Clients;
use crate::database::{Change, Database, Refusal};
use crate::frames::{Body, Frame, Host, MAX_ANSWER, MAX_RECORDS};
use crate::labels::Labels;
use crate::realm::{Freshness, FreshnessWatch, KeyRoll, Membership, RealmKey, Roles};
use crate::store::{Record, Store};
use crate::topology::{Current, MAX_PATHS, MAX_STEPS, PartialPath};

/// Links at a time.
pub const MAX_LINKS: usize = 65_536;
/// What one identity has handed in and is not durable yet: with a bound for all together one could use up the others' room.
const MAX_PENDING: u32 = 2;
/// What one identity may ask for in a second, unless the configuration says otherwise, and how many seconds' worth at once. Each takes
/// a search or some signatures.
pub const REQUESTS: u32 = 20;
const AT_ONCE: u32 = 5;
/// Adverts of one identity in a second, and at once: each is stored, and sent to all subscribers.
const REGISTRATIONS: (u32, u32) = (2, 10);
/// Lists of removed nodes that one key signs in a second, and at once: each is stored, and sent to all subscribers. An operator who removes
/// many nodes one by one waits a little; who has stolen a list key fills no disk.
const LISTS: (u32, u32) = (2, 60);
/// Keys that sign lists and are remembered; whoever has more of them has the realm's key.
const MAX_LIST_SIGNERS: usize = 64;
/// The budgets of an identity.
const ASKS: usize = 0;
const REGISTERS: usize = 1;
/// It is looked at least this often whether the list of removed nodes is of today.
const LOOK: Duration = Duration::from_secs(10);
/// Subscribers learn of changes this often.
const NOTIFY: Duration = Duration::from_millis(200);

/// What a path server needs to know.
#[derive(Clone, Debug)]
pub struct PathServerConfig {
    pub realm: RealmKey,
    /// Members to remember, at most.
    pub capacity: usize,
    /// Other path servers: whatever they have of others is taken, and they are asked when the store was lost.
    pub peers: Vec<IdentityKey>,
    pub store: Store,
    /// What one identity may ask for in a second: [`REQUESTS`], or another number.
    pub requests: u32,
    /// By how many seconds the next list of removed nodes may be overdue before the server says that it is no longer safe.
    pub max_staleness: u64,
    /// Tells this life of the server from others; random.
    pub instance: u64,
}

/// What a path server is given.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PathServerInput {
    /// A link is up, whose other end proved this identity.
    Connected {
        link: u64,
        peer: IdentityKey,
    },
    Disconnected {
        link: u64,
    },
    Frame {
        link: u64,
        octets: Vec<u8>,
    },
    /// The records with this number are durable.
    Persisted(u64),
    /// The verified labels of nodes are these.
    Labels(Labels),
}

/// What a path server asks of its driver, and reports.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PathServerOutput {
    Send {
        link: u64,
        octets: Vec<u8>,
    },
    /// Close this link: its identity has newer ones.
    Close {
        link: u64,
    },
    /// Store these, all or none, and answer with [`PathServerInput::Persisted`].
    Persist {
        id: u64,
        records: Vec<Record>,
    },
    Event(PathServerEvent),
}

/// What the operator reads in the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PathServerEvent {
    Registered(IdentityKey, u64),
    Refused {
        peer: IdentityKey,
        refusal: Refusal,
    },
    /// The records that were lost are back, from this peer.
    Recovered(IdentityKey),
    /// The list of removed nodes is overdue or too old, or no longer so.
    List(Freshness),
    /// The realm's key rolls, or has rolled.
    KeyRoll(KeyRoll),
    /// The store was damaged: it counts as lost.
    StoreDamaged,
}

/// Counts of what was asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Statistics {
    pub registrations: u64,
    pub queries: u64,
    pub refused: u64,
    /// Links that searches looked at.
    pub search_steps: u64,
}

struct Link {
    peer: IdentityKey,
    /// The version up to which the other end has the records, if it subscribed.
    sent: Option<u64>,
    /// The version at which it was sent the list of removed nodes alone.
    listed: u64,
    /// It registered with a membership by a key of the realm whose time is over.
    is_of_old_key: bool,
}

struct Pending {
    /// Who handed it in, unless it came from another server.
    by: Option<IdentityKey>,
    link: Option<(u64, u32)>,
    records: Vec<Record>,
}

/// The path server as a machine.
pub struct PathServer {
    config: PathServerConfig,
    database: Database,
    labels: Labels,
    current: Current,
    links: BTreeMap<u64, Link>,
    clients: Clients<2>,
    pending: BTreeMap<u64, Pending>,
    pending_of: BTreeMap<IdentityKey, u32>,
    /// What each key may sign that signs lists.
    list_budgets: BTreeMap<[u8; 32], Budget>,
    next: u64,
    /// The store was lost, and no peer has sent everything yet.
    is_recovering: bool,
    notify_at: Option<Instant>,
    freshness: FreshnessWatch,
    look_at: Instant,
    statistics: Statistics,
    outputs: VecDeque<PathServerOutput>,
}

impl PathServer {
    #[must_use]
    pub fn new(mut config: PathServerConfig) -> Self {
        let mut database = Database::new(config.realm, config.capacity);
        let mut outputs = VecDeque::new();
        let mut is_recovering = config.store == Store::Lost;
        if let Store::Kept(records) = std::mem::replace(&mut config.store, Store::New)
            && database.restore(&records).is_err()
        {
            database = Database::new(config.realm, config.capacity);
            is_recovering = true;
            outputs.push_back(PathServerOutput::Event(PathServerEvent::StoreDamaged));
        }
        let asks = Budget::new(config.requests, config.requests.saturating_mul(AT_ONCE));
        Self {
            freshness: FreshnessWatch::new(config.max_staleness),
            look_at: Instant(0),
            config,
            database,
            labels: Labels::default(),
            current: Current::default(),
            links: BTreeMap::new(),
            clients: Clients::new([asks, Budget::new(REGISTRATIONS.0, REGISTRATIONS.1)]),
            pending: BTreeMap::new(),
            pending_of: BTreeMap::new(),
            list_budgets: BTreeMap::new(),
            next: 0,
            is_recovering,
            notify_at: None,
            statistics: Statistics::default(),
            outputs,
        }
    }

    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// Whether `peer` is a member at the Unix second `now`, or another path server.
    #[must_use]
    pub fn knows(&self, peer: &IdentityKey, now: u64) -> bool {
        self.config.peers.contains(peer) || self.database.membership(peer, now).is_ok()
    }

    /// Links at the moment.
    #[must_use]
    pub fn links(&self) -> usize {
        self.links.len()
    }

    /// The records were lost, and nothing is answered yet.
    #[must_use]
    pub fn is_recovering(&self) -> bool {
        self.is_recovering
    }

    /// What it knows.
    #[must_use]
    pub fn database(&self) -> &Database {
        &self.database
    }

    /// Whether the list of removed nodes is of today.
    #[must_use]
    pub fn freshness(&self) -> Freshness {
        self.freshness.last()
    }

    fn look(&mut self, now: Now) {
        self.look_at = now.instant + LOOK;
        if let Some(found) = self.freshness.look(self.database.revocations(), now.unix.secs()) {
            self.outputs.push_back(PathServerOutput::Event(PathServerEvent::List(found)));
        }
        for roll in self.freshness.new_rolls(self.database.revocations()) {
            self.outputs.push_back(PathServerOutput::Event(PathServerEvent::KeyRoll(roll)));
        }
    }

    fn send(&mut self, link: u64, request: u32, body: Body) {
        let octets = Frame { request, body }.encode();
        self.outputs.push_back(PathServerOutput::Send { link, octets });
    }

    fn refuse(&mut self, link: u64, request: u32, peer: IdentityKey, refusal: Refusal) {
        self.statistics.refused += 1;
        self.send(link, request, Body::Refused(refusal));
        self.outputs.push_back(PathServerOutput::Event(PathServerEvent::Refused { peer, refusal }));
    }

    fn frame(&mut self, link: u64, octets: &[u8], now: Now) {
        let Some(peer) = self.links.get(&link).map(|state| state.peer) else { return };
        let is_server = self.config.peers.contains(&peer);
        let frame = match Frame::decode(octets) {
            Ok(frame) => frame,
            Err(_) => return self.refuse(link, Frame::request_of(octets), peer, Refusal::Malformed),
        };
        let request = frame.request;
        // What another server sends is the answer to our own subscription.
        if !is_server && !self.clients.take(&peer, ASKS, now.instant) {
            return self.refuse(link, request, peer, Refusal::TooOften);
        }
        let done = match frame.body {
            Body::Register { membership, advert } => self.register(link, request, peer, membership, advert, now),
            Body::SubmitRevocations(list) => self.submit_revocations(link, request, peer, list, now),
            // The list is no secret, and the operator's side has to know what others signed.
            Body::FindRevocations => {
                self.send(link, request, Body::Revocations(self.database.revocations().cloned()));
                Ok(())
            }
            Body::Subscribe { instance, since } => self.subscribe(link, peer, instance, since, now),
            Body::Records { complete, records, .. } if is_server => {
                self.records(peer, complete, records, now);
                Ok(())
            }
            Body::FindHost { host, partials } => self.find_host(link, request, peer, &host, partials, now),
            Body::FindPathServer { partials } => {
                let servers = self.database.members(now.unix.secs());
                let servers = servers.filter(|member| member.grants.roles.has(Roles::PATH_SERVER));
                let targets: Vec<IdentityKey> = servers.map(|member| member.identity).collect();
                self.find(link, request, peer, &targets, partials, now)
            }
            _ => Err(Refusal::Malformed),
        };
        if let Err(refusal) = done {
            self.refuse(link, request, peer, refusal);
        }
    }

    fn register(
        &mut self,
        link: u64,
        request: u32,
        peer: IdentityKey,
        membership: Signed<Membership>,
        advert: Signed<Advert>,
        now: Now,
    ) -> Result<(), Refusal> {
        let identity = advert.object().identity;
        if identity != peer || membership.object().identity != peer {
            return Err(Refusal::NotOwn);
        }
        if self.is_recovering {
            return Err(Refusal::Recovering);
        }
        if !self.clients.take(&peer, REGISTERS, now.instant) {
            return Err(Refusal::TooOften);
        }
        self.check_pending(&peer)?;
        self.statistics.registrations += 1;
        let now = now.unix.secs();
        // The membership is taken in at once: the advert is checked against it. What is not durable yet is not answered.
        let mut records = Vec::new();
        let taken = self.database.apply_membership(membership.clone(), now);
        if let Some(state) = self.links.get_mut(&link) {
            state.is_of_old_key = taken == Err(Refusal::RealmKey);
        }
        if taken? == Change::New {
            records.push(Record::Membership(membership));
        }
        let checked = self.database.check_advert(&advert, now);
        if checked == Ok(Change::New) {
            records.push(Record::Advert(advert.clone()));
        }
        if records.is_empty() && checked.is_ok() {
            self.send(link, request, Body::Registered { number: advert.object().sequence });
        } else if !records.is_empty() {
            // A refused advert's membership holds all the same.
            self.persist(Some(peer), checked.is_ok().then_some((link, request)), records);
        }
        checked.map(|_| ())
    }

    fn check_pending(&self, of: &IdentityKey) -> Result<(), Refusal> {
        let count = self.pending_of.get(of).copied().unwrap_or(0);
        if count < MAX_PENDING { Ok(()) } else { Err(Refusal::Busy) }
    }

    fn submit_revocations(
        &mut self,
        link: u64,
        request: u32,
        peer: IdentityKey,
        list: Signed<crate::realm::RevocationList>,
        now: Now,
    ) -> Result<(), Refusal> {
        self.check_pending(&peer)?;
        if self.database.check_revocations(&list, now.unix.secs())? == Change::New {
            self.take_list_budget(&list, now)?;
            self.persist(Some(peer), Some((link, request)), vec![Record::Revocations(list)]);
        } else {
            self.send(link, request, Body::Registered { number: list.object().number });
        }
        Ok(())
    }

    /// After the signature: before it anybody would use up what belongs to the key that a list names.
    fn take_list_budget(&mut self, list: &Signed<crate::realm::RevocationList>, now: Now) -> Result<(), Refusal> {
        let signer = list.object().signer(&self.config.realm).map_err(|_| Refusal::Signature)?;
        if self.list_budgets.len() >= MAX_LIST_SIGNERS {
            self.list_budgets.retain(|_, budget| !budget.is_full(now.instant));
        }
        let budget = self.list_budgets.entry(signer).or_insert_with(|| Budget::new(LISTS.0, LISTS.1));
        if budget.take(now.instant) { Ok(()) } else { Err(Refusal::TooOften) }
    }

    fn persist(&mut self, by: Option<IdentityKey>, link: Option<(u64, u32)>, records: Vec<Record>) {
        let id = self.next;
        self.next += 1;
        if let Some(by) = by {
            *self.pending_of.entry(by).or_default() += 1;
        }
        self.pending.insert(id, Pending { by, link, records: records.clone() });
        self.outputs.push_back(PathServerOutput::Persist { id, records });
    }

    fn persisted(&mut self, id: u64, now: Now) {
        let Some(Pending { by, link, records }) = self.pending.remove(&id) else { return };
        if let Some(by) = by
            && let std::collections::btree_map::Entry::Occupied(mut count) = self.pending_of.entry(by)
        {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        let mut outcome = Ok(0);
        let (mut registered, mut again) = (None, None);
        for record in records {
            let known = self.known(&record);
            let number = match &record {
                Record::Membership(membership) => membership.object().number,
                Record::Advert(advert) => {
                    registered = Some((advert.object().identity, advert.object().sequence));
                    advert.object().sequence
                }
                Record::Revocations(list) => list.object().number,
                _ => continue,
            };
            // Something newer may have come meanwhile; then this one is refused.
            outcome = self.database.apply(record, now.unix.secs()).map(|_| number);
            if outcome.is_err() {
                // The store has it in the place of the newer one, which goes there again.
                again = known;
                break;
            }
        }
        if let Some(known) = again {
            self.persist(None, None, vec![known]);
        }
        self.notify_at.get_or_insert(now.instant + NOTIFY);
        if let (Ok(_), Some((identity, sequence))) = (&outcome, registered) {
            self.outputs.push_back(PathServerOutput::Event(PathServerEvent::Registered(identity, sequence)));
        }
        let Some((link, request)) = link else { return };
        let Some(peer) = self.links.get(&link).map(|state| state.peer) else { return };
        match outcome {
            Ok(number) => self.send(link, request, Body::Registered { number }),
            Err(refusal) => self.refuse(link, request, peer, refusal),
        }
    }

    /// What is known in the place of a record.
    fn known(&self, record: &Record) -> Option<Record> {
        match record {
            Record::Revocations(_) => self.database.revocations().cloned().map(Record::Revocations),
            Record::Membership(membership) => self.of_kind(&membership.object().identity, record),
            Record::Advert(advert) => self.of_kind(&advert.object().identity, record),
            _ => None,
        }
    }

    fn of_kind(&self, of: &IdentityKey, record: &Record) -> Option<Record> {
        self.database.records(of).find(|known| std::mem::discriminant(known) == std::mem::discriminant(record))
    }

    fn subscribe(&mut self, link: u64, peer: IdentityKey, instance: u64, since: u64, now: Now) -> Result<(), Refusal> {
        if self.is_recovering {
            return Err(Refusal::Recovering);
        }
        // Adverts have links that are not public: they are for members alone.
        if let Some(refusal) = self.not_a_reader(link, &peer, now).filter(|refusal| *refusal != Refusal::RealmKey) {
            return Err(refusal);
        }
        // Versions of another life mean nothing.
        let since = if instance == self.config.instance { since.min(self.database.version()) } else { 0 };
        if let Some(state) = self.links.get_mut(&link) {
            state.sent = Some(since);
        }
        self.notify(now, Some(link));
        Ok(())
    }

    /// Why a node may not know what others advertise, if so. One that this server never knew is told as others are that its membership is by a key
    /// whose time is over.
    fn not_a_reader(&self, link: u64, peer: &IdentityKey, now: Now) -> Option<Refusal> {
        let is_server = self.config.peers.contains(peer);
        let is_of_old_key = self.links.get(&link).is_some_and(|state| state.is_of_old_key);
        let refusal = self.database.membership(peer, now.unix.secs()).err().filter(|_| !is_server)?;
        Some(if refusal == Refusal::NotMember && is_of_old_key { Refusal::RealmKey } else { refusal })
    }

    /// Sends subscribers what changed: to one of them, also if nothing did, or to all.
    fn notify(&mut self, now: Now, only: Option<u64>) {
        let links: Vec<u64> =
            self.links.iter().filter(|(_, state)| state.sent.is_some()).map(|(link, _)| *link).collect();
        let upto = self.database.version();
        let mut is_more = false;
        for link in links.into_iter().filter(|link| only.is_none_or(|only| only == *link)) {
            let Some(since) = self.links.get(&link).and_then(|state| state.sent) else { continue };
            if since >= upto && only.is_none() {
                continue;
            }
            let Some(peer) = self.links.get(&link).map(|state| state.peer) else { continue };
            let refusal = self.not_a_reader(link, &peer, now);
            if refusal == Some(Refusal::RealmKey) {
                // By the list it learns that it needs another membership; with that it gets the rest.
                let listed = self.links.get(&link).map_or(0, |state| state.listed);
                if only.is_none() && !self.database.changed_since(listed).0 {
                    continue;
                }
                if let Some(state) = self.links.get_mut(&link) {
                    state.listed = upto;
                }
                let records = self.database.revocations().cloned().map(Record::Revocations).into_iter().collect();
                let instance = self.config.instance;
                self.send(link, 0, Body::Records { instance, version: since, complete: false, records });
                continue;
            }
            if let Some(refusal) = refusal {
                // It was a member when it subscribed: it is told why it learns no more.
                if let Some(state) = self.links.get_mut(&link) {
                    state.sent = None;
                }
                self.refuse(link, 0, peer, refusal);
                continue;
            }
            let (has_list, changed) = self.database.changed_since(since);
            let mut records: Vec<Record> = Vec::new();
            // The list goes first, so that nobody takes a removed node in.
            records.extend(self.database.revocations().filter(|_| has_list).cloned().map(Record::Revocations));
            let (mut octets, mut version, mut is_last) = (0, since, true);
            for (changed_at, identity) in changed {
                if octets > MAX_ANSWER || records.len() + 2 > MAX_RECORDS {
                    is_last = false;
                    break;
                }
                let node: Vec<Record> = self.database.records(&identity).collect();
                octets += node.iter().map(|record| record.encode().len()).sum::<usize>();
                records.extend(node);
                version = changed_at;
            }
            let version = if is_last { upto } else { version };
            if let Some(state) = self.links.get_mut(&link) {
                state.sent = Some(version);
            }
            is_more |= !is_last;
            let instance = self.config.instance;
            self.send(link, 0, Body::Records { instance, version, complete: is_last, records });
        }
        if is_more {
            self.notify_at.get_or_insert(now.instant + NOTIFY);
        }
    }

    fn records(&mut self, peer: IdentityKey, complete: bool, records: Vec<Record>, now: Now) {
        let mut kept = Vec::new();
        for record in records {
            match self.database.apply(record.clone(), now.unix.secs()) {
                Ok(Change::New) => kept.push(record),
                Ok(Change::Same) | Err(Refusal::Older(_)) => {}
                Err(refusal) => {
                    self.outputs.push_back(PathServerOutput::Event(PathServerEvent::Refused { peer, refusal }));
                }
            }
        }
        if !kept.is_empty() {
            self.persist(None, None, kept);
            self.notify_at.get_or_insert(now.instant + NOTIFY);
        }
        if complete && self.is_recovering {
            self.is_recovering = false;
            self.outputs.push_back(PathServerOutput::Event(PathServerEvent::Recovered(peer)));
        }
    }

    fn find_host(
        &mut self,
        link: u64,
        request: u32,
        peer: IdentityKey,
        host: &Host,
        partials: Vec<PartialPath>,
        now: Now,
    ) -> Result<(), Refusal> {
        let unix = now.unix.secs();
        if self.is_recovering {
            return Err(Refusal::Recovering);
        }
        let target = match host {
            Host::Name(name) => self.database.named(name, unix),
            Host::Identity(identity) => Some(*identity).filter(|node| self.database.membership(node, unix).is_ok()),
            Host::Address(address) => self.database.owner(*address, unix),
        };
        self.find(link, request, peer, &[target.ok_or(Refusal::NoSuchHost)?], partials, now)
    }

    fn find(
        &mut self,
        link: u64,
        request: u32,
        peer: IdentityKey,
        targets: &[IdentityKey],
        partials: Vec<PartialPath>,
        now: Now,
    ) -> Result<(), Refusal> {
        if self.is_recovering {
            return Err(Refusal::Recovering);
        }
        self.statistics.queries += 1;
        let unix = now.unix.secs();
        self.database.membership(&peer, unix)?;
        let topology = self.current.topology(&self.database, &peer, now);
        if !topology.has(&peer) {
            return Err(Refusal::NoAdvert);
        }
        let mut checked = Vec::with_capacity(partials.len());
        for partial in partials {
            let phase = topology.check_partial(&partial, &peer).map_err(|_| Refusal::PartialPath)?;
            checked.push((partial, phase));
        }
        let found = topology.search(&peer, &checked, targets, MAX_STEPS);
        self.statistics.search_steps += found.steps as u64;
        let partials: Vec<PartialPath> = checked.into_iter().map(|(partial, _)| partial).collect();
        let mut known = std::collections::BTreeSet::new();
        let (mut paths, mut records, mut octets) = (Vec::new(), Vec::new(), 0);
        // The list first: whoever takes the others in must know it.
        records.extend(self.database.revocations().cloned().map(Record::Revocations));
        for nodes in found.paths.iter().take(MAX_PATHS) {
            let Ok(path) = build(&self.database, &self.labels, &partials, nodes, unix) else { continue };
            let new: Vec<IdentityKey> = nodes.iter().filter(|node| !known.contains(*node)).copied().collect();
            let new_records: Vec<Record> = new.iter().flat_map(|node| self.database.records(node)).collect();
            octets += new_records.iter().map(|record| record.encode().len()).sum::<usize>();
            if octets > MAX_ANSWER && !paths.is_empty() {
                break;
            }
            known.extend(new);
            records.extend(new_records);
            paths.push(path);
        }
        self.send(link, request, Body::Paths { is_cut: found.is_cut, paths, records });
        Ok(())
    }
}

impl Machine for PathServer {
    type Input = PathServerInput;
    type Output = PathServerOutput;

    fn handle(&mut self, input: PathServerInput, now: Now) {
        match input {
            PathServerInput::Connected { link, peer } => {
                if self.links.len() >= MAX_LINKS {
                    return self.refuse(link, 0, peer, Refusal::Busy);
                }
                self.links.insert(link, Link { peer, sent: None, listed: 0, is_of_old_key: false });
                if let Some(oldest) = self.clients.connected(link, peer, now.instant) {
                    self.links.remove(&oldest);
                    self.outputs.push_back(PathServerOutput::Close { link: oldest });
                }
                if self.config.peers.contains(&peer) {
                    self.send(link, 0, Body::Subscribe { instance: 0, since: 0 });
                }
            }
            PathServerInput::Disconnected { link } => {
                if let Some(state) = self.links.remove(&link) {
                    self.clients.disconnected(link, &state.peer);
                }
            }
            PathServerInput::Frame { link, octets } => self.frame(link, &octets, now),
            PathServerInput::Persisted(id) => self.persisted(id, now),
            PathServerInput::Labels(labels) => self.labels = labels,
        }
        self.look(now);
    }

    fn handle_timeout(&mut self, now: Now) {
        if self.notify_at.is_some_and(|at| at <= now.instant) {
            self.notify_at = None;
            self.notify(now, None);
        }
        if self.look_at <= now.instant {
            self.look(now);
        }
    }

    fn poll(&mut self) -> Option<PathServerOutput> {
        self.outputs.pop_front()
    }

    fn deadline(&self) -> Option<Instant> {
        self.notify_at.into_iter().chain([self.look_at]).min()
    }
}
