//! A whole exchange in one thread and in virtual time: both parties, all members, their stores and their routers.
//!
//! The simulation runs the same machines as the daemons. The seed determines the run: it chooses the order of messages
//! between different pairs of processes; the order on one link is fixed. Any process can be killed at any step, with the
//! loss of everything that it has not made durable, and started again from its store.

pub mod attestation;
pub mod bad;
pub mod bgp;
pub mod costs;
mod events;
mod keys;
mod members;
mod sinks;
mod timed;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use wayleave_attestation::member::MemberAttestationEvent;
use wayleave_attestation::pipeline::Job;
use wayleave_attestation::pki::View;
use wayleave_bgp::origins::{Vrp, Vrps};
use wayleave_bgp::peer::PeerEvent;
use wayleave_bgp::rpki::Records;
use wayleave_bgp::{Attributes, Nlri, Update};
use wayleave_core::{Asn, Instant, Now, Prefix, UnixTime};
use wayleave_crypto::prg::Prg;
use wayleave_crypto::secret::Seed;
use wayleave_crypto::sign::VerifyingKey;
use wayleave_member::{Input as MemberInput, MemberProxy};
use wayleave_route_server::directory::{Directory, MemberSet};
use wayleave_route_server::key_roles::KeyRole;
use wayleave_route_server::member::{MemberConfig, MemberEvent};
use wayleave_route_server::object::{ExportMode, MAX_BLOB_DEFAULT};
use wayleave_route_server::order::OrderKey;
use wayleave_route_server::party::{
    Budget, LinkId, MAX_WAITING, Party, PartyConfig, PartyEvent, PartyInput, PartyNumber, PeerId, SetupJob, StartError,
    StoredRecord, stored_order,
};
use wayleave_route_server::policy::{Policy, PolicyConfig};
use wayleave_route_server::versions::Speaks;

use crate::sink::Sink;
use costs::Costs;
use keys::seed_of;
pub use keys::{
    claim_of, directory_of, member_address, member_address6, member_asn, member_key, operator_key, operator_keys,
};
use timed::World;

/// The exchange's name in every simulation.
pub const EXCHANGE: &str = "sim-ix";
/// The AS number of its route server.
pub const RS_ASN: Asn = Asn(64496);

/// The time at which every simulation begins.
const BEGIN: Now = Now { instant: Instant(1_000_000_000), unix: UnixTime(1_700_000_000_000_000) };

/// A process of the simulation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Node {
    Party(PartyNumber),
    /// The member in this slot.
    Member(u32),
}

/// Both parties.
pub const PARTIES: [Node; 2] = [Node::Party(PartyNumber::One), Node::Party(PartyNumber::Two)];

/// A recorded frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recorded {
    pub from: Node,
    pub to: Node,
    pub at: Instant,
    pub bytes: Arc<[u8]>,
}

/// Decides what happens to each frame: sender, receiver, bytes.
pub type Tamper = Box<dyn FnMut(Node, Node, &[u8]) -> FrameAction>;

/// What happens to a frame on its way.
pub enum FrameAction {
    Pass,
    Change(Vec<u8>),
    Drop,
}

/// The configuration of a simulation.
#[derive(Clone, Debug)]
pub struct Setup {
    pub members: usize,
    pub tick: Duration,
    /// How long routes of an absent member are kept.
    pub stale: Duration,
    /// Determines keys, randomness and the order of events.
    pub seed: u64,
    pub opted_out: BTreeSet<u32>,
    /// Slots of members whose session with their router has a role (RFC 9234).
    pub with_role: BTreeSet<u32>,
    /// How many routes to a prefix the routers of these slots get (RFC 7911); one where it is not said.
    pub paths: BTreeMap<u32, u8>,
    /// Prefixes that each member may announce.
    pub max_prefix: u32,
    /// Whether routers are BGP speakers with sessions; otherwise routes are given and taken directly.
    pub speakers: bool,
    /// Slots whose proxies sign and validate; the member set lists their keys.
    pub attesting: BTreeSet<u32>,
    /// Who multiplies policies and keys.
    pub export: ExportMode,
    /// Octets of the largest blob that both parties take.
    pub max_blob: u32,
    /// Octets of all members' objects together that may wait at a party.
    pub max_waiting: usize,
    /// What each member may cost the parties.
    pub budget: Budget,
    /// How much later than by the schedule rankings may come; by default as links answer.
    pub rank_allowance: Option<Duration>,
    /// How long a recommendation counts at least.
    pub epoch: Duration,
    /// Keys of parties and operators, as every process is configured with them.
    pub keys: Vec<(KeyRole, [u8; 32])>,
    /// Slots of members that take and discard what they are sent ([`crate::sink`]).
    pub sinks: BTreeSet<u32>,
    /// What work and links cost in virtual time; without them frames arrive in random order, and work takes none.
    pub costs: Option<Costs>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            members: 4,
            tick: Duration::ZERO,
            stale: Duration::from_secs(3600),
            seed: 1,
            opted_out: BTreeSet::new(),
            with_role: BTreeSet::new(),
            paths: BTreeMap::new(),
            max_prefix: 1_000_000,
            speakers: false,
            attesting: BTreeSet::new(),
            export: ExportMode::Direct,
            max_blob: MAX_BLOB_DEFAULT,
            max_waiting: MAX_WAITING,
            budget: Budget::default(),
            rank_allowance: None,
            epoch: Duration::ZERO,
            keys: Vec::new(),
            sinks: BTreeSet::new(),
            costs: None,
        }
    }
}

enum Input {
    Party(PartyInput),
    Member(MemberInput),
}

/// A frame on its way, and the link that it is on.
type InFlight = (LinkId, Arc<[u8]>);

/// What the system gives processes as entropy.
#[derive(Default)]
struct Entropy {
    /// Tells apart runs that were copied from one.
    branch: u64,
    given: u64,
    /// Whether it always gives the same, as to a process that is resumed again and again after it asked.
    frozen: bool,
}

/// What a process has made durable.
pub type Store = BTreeMap<(String, Vec<u8>), Vec<u8>>;

/// A running simulation.
pub struct Sim {
    setup: Setup,
    /// The newest member set.
    pub set: MemberSet,
    /// The sets so far, as both parties' files have them.
    pub directory: Directory,
    /// The operators that every configuration names, from the next start of a process on.
    pub operators: [VerifyingKey; 2],
    /// A party's own file, where it differs.
    pub files: BTreeMap<Node, Vec<u8>>,
    /// A party's own mode of export from its next start on, where it differs.
    pub exports: BTreeMap<Node, ExportMode>,
    /// A party's own number of the order of candidates from its next start on, where it is not 1.
    pub orders: BTreeMap<Node, u32>,
    /// What a process speaks from its next start on, where it is not the default.
    pub speaks: BTreeMap<Node, Speaks>,
    now: Now,
    /// Microseconds by which the wall clock was set forward.
    wall_ahead: u64,
    lives: u64,
    parties: BTreeMap<Node, Party>,
    members: BTreeMap<u32, MemberProxy>,
    /// Those that take and discard, each with its links to both parties that it knows to be up.
    sinks: BTreeMap<u32, (Sink, [Option<LinkId>; 2])>,
    /// What is known of the origins of routes.
    view: Arc<View>,
    /// Jobs that a test holds back, by member.
    held_jobs: BTreeMap<u32, Vec<Job>>,
    /// Jobs of setup that a test holds back, if it does.
    held_setup: Option<Vec<(Node, SetupJob)>>,
    stores: BTreeMap<Node, Store>,
    policies: BTreeMap<u32, Policy>,
    /// What each member's router announces.
    pub routers: BTreeMap<u32, BTreeMap<Nlri, Attributes>>,
    /// What each member's router has learned.
    pub tables: BTreeMap<u32, BTreeMap<Prefix, Attributes>>,
    /// What the routers of [`Setup::paths`] have: of each prefix the routes by path identifier, the best first.
    pub path_tables: BTreeMap<u32, BTreeMap<Prefix, Vec<(u32, Attributes)>>>,
    /// Every change of a router's table so far: slot, prefix, and whether there is a route afterwards.
    pub router_changes: Vec<(u32, Prefix, bool)>,
    links: BTreeMap<LinkId, (Node, Node)>,
    next_link: LinkId,
    queues: BTreeMap<(Node, Node), VecDeque<InFlight>>,
    inputs: VecDeque<(Node, Input)>,
    recommendation: BTreeMap<u32, u8>,
    ports: Option<bgp::Ports>,
    world: Option<World>,
    choices: Prg,
    chosen: u64,
    entropy: Entropy,
    /// Processor time of each process, if measured.
    pub work: Option<BTreeMap<Node, Duration>>,
    /// Frames so far, if recording.
    pub recording: Option<Vec<Recorded>>,
    /// What happens to frames on their way.
    pub tamper: Option<Tamper>,
    pub party_events: Vec<(Node, PartyEvent)>,
    pub member_events: Vec<(u32, MemberEvent)>,
    pub attestation_events: Vec<(u32, MemberAttestationEvent)>,
    /// Links closed by a process, and why.
    pub closed: Vec<(Node, Node, String)>,
}

impl Sim {
    /// An exchange with all processes started and connected.
    ///
    /// # Panics
    /// If the member set would be invalid.
    #[must_use]
    pub fn new(setup: Setup) -> Self {
        let directory = directory_of(&setup);
        let choices = Prg::new(seed_of(setup.seed, b"order", 0).expose().first_chunk().expect("16 of 32"));
        let mut sim = Self {
            set: MemberSet::clone(directory.set()),
            directory,
            operators: operator_keys(setup.seed).map(|key| key.verifying_key()),
            files: BTreeMap::new(),
            exports: BTreeMap::new(),
            orders: BTreeMap::new(),
            speaks: BTreeMap::new(),
            now: BEGIN,
            wall_ahead: 0,
            lives: 0,
            parties: BTreeMap::new(),
            members: BTreeMap::new(),
            sinks: BTreeMap::new(),
            view: Arc::new(View::new(0)),
            held_jobs: BTreeMap::new(),
            held_setup: None,
            stores: BTreeMap::new(),
            policies: BTreeMap::new(),
            routers: BTreeMap::new(),
            tables: BTreeMap::new(),
            path_tables: BTreeMap::new(),
            router_changes: Vec::new(),
            links: BTreeMap::new(),
            next_link: 1,
            queues: BTreeMap::new(),
            inputs: VecDeque::new(),
            recommendation: BTreeMap::new(),
            ports: setup.speakers.then(bgp::Ports::default),
            world: setup.costs.clone().map(World::new),
            choices,
            chosen: 0,
            entropy: Entropy::default(),
            work: None,
            recording: None,
            tamper: None,
            party_events: Vec::new(),
            member_events: Vec::new(),
            attestation_events: Vec::new(),
            closed: Vec::new(),
            setup,
        };
        for party in PARTIES {
            sim.start(party);
        }
        for slot in 0..u32::try_from(sim.setup.members).expect("few members") {
            sim.start(Node::Member(slot));
        }
        sim
    }

    /// Who multiplies policies and keys.
    #[must_use]
    pub fn export(&self) -> ExportMode {
        self.setup.export
    }

    /// The virtual time.
    #[must_use]
    pub fn now(&self) -> Now {
        self.now
    }

    /// A party, while it runs.
    #[must_use]
    pub fn party(&self, node: Node) -> Option<&Party> {
        self.parties.get(&node)
    }

    /// The proxy of a member, while it runs.
    pub fn member(&mut self, slot: u32) -> Option<&mut MemberProxy> {
        self.members.get_mut(&slot)
    }

    /// Starts a process from its store and connects it to all running ones.
    ///
    /// # Panics
    /// If a party refuses its own store.
    pub fn start(&mut self, node: Node) {
        self.try_start(node).expect("a sound start");
    }

    /// The same, where a party may refuse to start with the file that it has.
    ///
    /// # Errors
    /// Why the party does not start.
    pub fn try_start(&mut self, node: Node) -> Result<(), StartError> {
        self.lives += 1;
        let seed = seed_of(self.setup.seed, b"life", self.lives);
        let stored: Vec<StoredRecord> = self
            .stores
            .entry(node)
            .or_default()
            .iter()
            .map(|((table, key), value)| StoredRecord { table: table.clone(), key: key.clone(), value: value.clone() })
            .collect();
        match node {
            Node::Party(number) => {
                let config = PartyConfig {
                    number,
                    exchange: EXCHANGE.to_owned(),
                    operators: self.operators,
                    keys: self.setup.keys.clone(),
                    tick: self.setup.tick,
                    stale: self.setup.stale,
                    rank_wait: Duration::from_secs(1),
                    rank_allowance: self.setup.rank_allowance,
                    match_wait: Duration::from_secs(2),
                    export: self.exports.get(&node).copied().unwrap_or(self.setup.export),
                    order: self.orders.get(&node).copied().unwrap_or(1),
                    max_blob: self.setup.max_blob,
                    max_prefix_limit: 1_000_000,
                    max_waiting: self.setup.max_waiting,
                    budget: self.setup.budget,
                    epoch: self.setup.epoch,
                    speaks: self.speaks.get(&node).copied().unwrap_or_default(),
                };
                let file = self.files.get(&node).cloned().unwrap_or_else(|| self.directory.encode());
                let party = Party::new(config, &seed, &file, stored, self.now)?;
                self.parties.insert(node, party);
                if number == PartyNumber::One && !self.recommendation.is_empty() {
                    let given = PartyInput::Recommendation(self.recommendation.clone());
                    self.inputs.push_back((node, Input::Party(given)));
                }
            }
            Node::Member(slot) if self.setup.sinks.contains(&slot) => self.start_sink(slot),
            Node::Member(slot) => {
                let config = MemberConfig {
                    exchange: EXCHANGE.to_owned(),
                    rs_asn: RS_ASN,
                    operators: self.operators,
                    slot,
                    keys: self.setup.keys.clone(),
                    select_best: !self.setup.opted_out.contains(&slot),
                    stale: Duration::from_secs(3600),
                    settle: Duration::from_secs(5),
                    lab: true,
                    accept_as_set: false,
                    paths: self.setup.paths.get(&slot).copied().unwrap_or(1),
                    has_role: self.setup.with_role.contains(&slot),
                    validates: false, // set with the attestation that `MemberProxy::new` gets
                    speaks: self.speaks.get(&node).copied().unwrap_or_default(),
                };
                let policy = Box::new(self.policy(slot));
                let key = member_key(self.setup.seed, slot);
                let attestation = self.attestation(slot);
                let proxy = MemberProxy::new(config, policy, key, &seed, &stored, attestation, self.now);
                self.members.insert(slot, proxy);
                self.tables.insert(slot, BTreeMap::new());
                self.router_up(slot);
            }
        }
        self.connect_all();
        Ok(())
    }

    /// The key by which a party numbers candidates, if its store has one.
    pub fn order_key(&self, party: Node) -> Option<OrderKey> {
        let records = self.stores.get(&party)?.iter().map(|((table, key), value)| StoredRecord {
            table: table.clone(),
            key: key.clone(),
            value: value.clone(),
        });
        records.filter_map(|record| stored_order(&record)).map(|(_, key)| key).next()
    }

    /// What a process has made durable, to be copied and put back as a backup is.
    pub fn store(&mut self, node: Node) -> &mut Store {
        self.stores.entry(node).or_default()
    }

    /// Gives a party a directory, as its operator does by a reload.
    pub fn give_members(&mut self, party: Node, directory: &[u8]) {
        self.inputs.push_back((party, Input::Party(PartyInput::Members(directory.to_vec()))));
    }

    /// From here on this run is a copy of one that went the same way so far: the system gives other entropy, and new links are
    /// other TLS sessions.
    pub fn diverge(&mut self, branch: u64) {
        self.entropy.branch = branch;
    }

    /// From here on the system gives the same entropy again and again.
    pub fn freeze_entropy(&mut self) {
        self.entropy.frozen = true;
    }

    fn fresh(&mut self) -> Seed {
        let Entropy { branch, given, frozen } = &mut self.entropy;
        *given += u64::from(!*frozen);
        seed_of(self.setup.seed, b"entropy", *branch << 48 | *given)
    }

    fn policy(&self, slot: u32) -> Policy {
        self.policies
            .get(&slot)
            .cloned()
            .unwrap_or_else(|| Policy::compile(&PolicyConfig::default()).expect("the default policy is one"))
    }

    fn router_up(&mut self, slot: u32) {
        if self.ports.is_some() {
            return self.start_router_session(slot);
        }
        self.router_event(slot, PeerEvent::Up);
        let routes = self.routers.entry(slot).or_default().clone();
        for (nlri, attributes) in routes {
            let update = Update { announced: vec![nlri], attributes: Some(attributes), ..Update::default() };
            self.router_event(slot, PeerEvent::Update(Box::new(update)));
        }
        self.router_event(slot, PeerEvent::EndOfRib);
    }

    /// Gives the member in `slot` what came over the session with its router.
    fn router_event(&mut self, slot: u32, event: PeerEvent) {
        self.inputs.push_back((Node::Member(slot), Input::Member(MemberInput::Router(event))));
    }

    /// Kills a process: its links and everything that it has not made durable are lost.
    pub fn kill(&mut self, node: Node) {
        match node {
            Node::Party(_) => {
                self.parties.remove(&node);
                if let Some(held) = &mut self.held_setup {
                    held.retain(|(of, _)| *of != node);
                }
            }
            Node::Member(slot) => {
                self.members.remove(&slot);
                self.sinks.remove(&slot);
                self.held_jobs.entry(slot).and_modify(Vec::clear);
                self.drop_router_session(slot);
            }
        }
        self.inputs.retain(|(to, _)| *to != node);
        if let Some(world) = &mut self.world {
            world.kill(node);
        }
        let dead: Vec<LinkId> =
            self.links.iter().filter(|(_, (a, b))| *a == node || *b == node).map(|l| *l.0).collect();
        for link in dead {
            self.cut(link);
        }
    }

    /// Takes a link down; frames in flight are lost.
    fn cut(&mut self, link: LinkId) {
        let Some((a, b)) = self.links.remove(&link) else { return };
        if let Some(world) = &mut self.world {
            world.cut(link, (a, b));
        }
        for ends in [(a, b), (b, a)] {
            if let Some(queue) = self.queues.get_mut(&ends) {
                queue.retain(|(of, _)| *of != link);
            }
        }
        for end in [a, b] {
            self.link_down(end, link);
        }
    }

    fn link_down(&mut self, node: Node, link: LinkId) {
        match node {
            Node::Party(_) if self.parties.contains_key(&node) => {
                self.inputs.push_back((node, Input::Party(PartyInput::LinkDown { link })));
            }
            Node::Member(slot) if self.members.contains_key(&slot) || self.sinks.contains_key(&slot) => {
                self.inputs.push_back((node, Input::Member(MemberInput::LinkDown { link })));
            }
            _ => {}
        }
    }

    /// Connects all running processes that should have a link and have none.
    pub fn connect_all(&mut self) {
        let mut pairs = vec![(PARTIES[0], PARTIES[1])];
        let slots = self.members.keys().chain(self.sinks.keys());
        for slot in slots.filter(|slot| self.set.slots[**slot as usize].active) {
            pairs.extend(PARTIES.map(|party| (Node::Member(*slot), party)));
        }
        let connected: BTreeSet<(Node, Node)> = self.links.values().copied().collect();
        for (a, b) in pairs {
            if !connected.contains(&(a, b)) && self.runs(a) && self.runs(b) {
                self.connect(a, b);
            }
        }
    }

    fn runs(&self, node: Node) -> bool {
        match node {
            Node::Party(_) => self.parties.contains_key(&node),
            Node::Member(slot) => self.members.contains_key(&slot) || self.sinks.contains_key(&slot),
        }
    }

    /// Brings a link between two processes up.
    pub fn connect(&mut self, a: Node, b: Node) {
        let link = self.next_link;
        self.next_link += 1;
        self.links.insert(link, (a, b));
        let exporter = seed_of(self.setup.seed, b"exporter", self.entropy.branch << 48 | link);
        for (end, other) in [(a, b), (b, a)] {
            let input = match (end, other) {
                (Node::Party(_), Node::Party(_)) => {
                    Input::Party(PartyInput::LinkUp { link, peer: PeerId::Party, exporter: exporter.clone() })
                }
                (Node::Party(_), Node::Member(slot)) => {
                    Input::Party(PartyInput::LinkUp { link, peer: PeerId::Member(slot), exporter: exporter.clone() })
                }
                (Node::Member(_), Node::Party(party)) => {
                    Input::Member(MemberInput::LinkUp { link, party, exporter: exporter.clone() })
                }
                (Node::Member(_), Node::Member(_)) => continue,
            };
            self.inputs.push_back((end, input));
        }
    }

    /// The router of `slot` announces.
    pub fn announce(&mut self, slot: u32, nlri: &[Nlri], attributes: &Attributes) {
        if self.sinks.contains_key(&slot) {
            return self.announce_by_sink(slot, nlri, attributes);
        }
        let router = self.routers.entry(slot).or_default();
        for one in nlri {
            router.insert(*one, attributes.clone());
        }
        self.router_update(slot, Vec::new(), nlri.to_vec(), Some(attributes.clone()));
    }

    /// The router of `slot` withdraws.
    pub fn withdraw(&mut self, slot: u32, nlri: &[Nlri]) {
        if self.sinks.contains_key(&slot) {
            return self.withdraw_by_sink(slot, nlri);
        }
        let router = self.routers.entry(slot).or_default();
        for one in nlri {
            router.remove(one);
        }
        self.router_update(slot, nlri.to_vec(), Vec::new(), None);
    }

    fn router_update(&mut self, slot: u32, withdrawn: Vec<Nlri>, announced: Vec<Nlri>, attributes: Option<Attributes>) {
        if self.ports.is_some() {
            return self.send_router_update(slot, withdrawn, announced, attributes);
        }
        if self.members.contains_key(&slot) {
            let update = Update { withdrawn, announced, attributes, ..Update::default() };
            self.router_event(slot, PeerEvent::Update(Box::new(update)));
        }
    }

    /// The member in `slot` gets a new policy.
    pub fn set_policy(&mut self, slot: u32, policy: Policy) {
        self.policies.insert(slot, policy.clone());
        if self.members.contains_key(&slot) {
            let input = Input::Member(MemberInput::Policy(Box::new(policy)));
            self.inputs.push_back((Node::Member(slot), input));
        }
    }

    /// The RPKI says this of origins to the member in `slot`, from now on.
    pub fn set_origins(&mut self, slot: u32, vrps: impl IntoIterator<Item = Vrp>) {
        let origins = Some(Records::from(vrps.into_iter().collect::<Vrps>()));
        self.inputs.push_back((Node::Member(slot), Input::Member(MemberInput::Origins(origins))));
    }

    /// The exchange gives a new recommendation.
    pub fn recommend(&mut self, recommendation: BTreeMap<u32, u8>) {
        self.recommendation.clone_from(&recommendation);
        self.inputs.push_back((PARTIES[0], Input::Party(PartyInput::Recommendation(recommendation))));
    }
}
