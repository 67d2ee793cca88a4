//! A whole exchange in one thread and in virtual time: both parties, all members, their stores and their routers.
//!
//! The simulation runs the same machines as the daemons. The seed determines the run: it chooses the order of messages
//! between different pairs of processes; the order on one link is fixed. Any process can be killed at any step, with the
//! loss of everything that it has not made durable, and started again from its store.

pub mod attestation;
pub mod bad;
pub mod bgp;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use wayleave_attestation::member::MemberAttestationEvent;
use wayleave_attestation::pipeline::Job;
use wayleave_attestation::pki::View;
use wayleave_bgp::peer::PeerEvent;
use wayleave_bgp::{Attributes, Nlri, Update};
use wayleave_core::{Asn, Instant, Machine, Now, Prefix, UnixTime};
use wayleave_crypto::prg::Prg;
use wayleave_crypto::secret::Seed;
use wayleave_crypto::sign::{SigningKey, VerifyingKey};
use wayleave_member::{Input as MemberInput, MemberProxy, Output as MemberOutput};
use wayleave_route_server::directory::{Change as SetChange, Claim, Consent, Directory, MemberSet};
use wayleave_route_server::key_roles::KeyRole;
use wayleave_route_server::member::{MemberConfig, MemberEvent};
use wayleave_route_server::object::ExportMode;
use wayleave_route_server::party::{
    Change, LinkId, Party, PartyConfig, PartyEvent, PartyInput, PartyNumber, PartyOutput, PeerId, StartError,
    StoredRecord,
};
use wayleave_route_server::policy::{Policy, PolicyConfig};

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
    /// Prefixes that each member may announce.
    pub max_prefix: u32,
    /// Whether routers are BGP speakers with sessions; otherwise routes are given and taken directly.
    pub speakers: bool,
    /// Slots whose proxies sign and validate; the member set lists their keys.
    pub attesting: BTreeSet<u32>,
    /// Who multiplies policies and keys.
    pub export: ExportMode,
    /// Keys of parties and operators, as every process is configured with them.
    pub keys: Vec<(KeyRole, [u8; 32])>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            members: 4,
            tick: Duration::ZERO,
            stale: Duration::from_secs(3600),
            seed: 1,
            opted_out: BTreeSet::new(),
            max_prefix: 1_000_000,
            speakers: false,
            attesting: BTreeSet::new(),
            export: ExportMode::Direct,
            keys: Vec::new(),
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
    now: Now,
    /// Microseconds by which the wall clock was set forward.
    wall_ahead: u64,
    lives: u64,
    parties: BTreeMap<Node, Party>,
    members: BTreeMap<u32, MemberProxy>,
    /// What is known of the origins of routes.
    view: Arc<View>,
    /// Jobs that a test holds back, by member.
    held_jobs: BTreeMap<u32, Vec<Job>>,
    stores: BTreeMap<Node, Store>,
    policies: BTreeMap<u32, Policy>,
    /// What each member's router announces.
    pub routers: BTreeMap<u32, BTreeMap<Nlri, Attributes>>,
    /// What each member's router has learned.
    pub tables: BTreeMap<u32, BTreeMap<Prefix, Attributes>>,
    /// Every change of a router's table so far: slot, prefix, and whether there is a route afterwards.
    pub router_changes: Vec<(u32, Prefix, bool)>,
    links: BTreeMap<LinkId, (Node, Node)>,
    next_link: LinkId,
    queues: BTreeMap<(Node, Node), VecDeque<InFlight>>,
    inputs: VecDeque<(Node, Input)>,
    recommendation: BTreeMap<u32, u8>,
    ports: Option<bgp::Ports>,
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

/// The signing key of the member in `slot`.
#[must_use]
pub fn member_key(seed: u64, slot: u32) -> SigningKey {
    SigningKey::from_seed(&seed_of(seed, b"member", u64::from(slot)))
}

/// The AS number of the member in `slot`.
#[must_use]
pub fn member_asn(slot: u32) -> Asn {
    Asn(65_000 + slot)
}

/// The LAN address of the member in `slot`.
#[must_use]
pub fn member_address(slot: u32) -> std::net::Ipv4Addr {
    std::net::Ipv4Addr::from(0x0a00_0000 + 1 + slot)
}

/// Its IPv6 LAN address.
#[must_use]
pub fn member_address6(slot: u32) -> std::net::Ipv6Addr {
    std::net::Ipv6Addr::from(0x2001_0db8_u128 << 96 | u128::from(1 + slot))
}

fn seed_of(seed: u64, purpose: &[u8], number: u64) -> Seed {
    let parts: [&[u8]; 3] = [&seed.to_be_bytes(), purpose, &number.to_be_bytes()];
    Seed::new(wayleave_crypto::hash::hash("wayleave/lab/sim/v1", &parts))
}

/// The signing key of the operator of party 1 or 2.
#[must_use]
pub fn operator_key(seed: u64, party: PartyNumber) -> SigningKey {
    SigningKey::from_seed(&seed_of(seed, b"operator", u64::from(party == PartyNumber::Two)))
}

/// The keys of both operators, which only a laboratory has in one place.
#[must_use]
pub fn operator_keys(seed: u64) -> [SigningKey; 2] {
    [PartyNumber::One, PartyNumber::Two].map(|party| operator_key(seed, party))
}

/// What the member in `slot` signs about itself.
#[must_use]
pub fn claim_of(setup: &Setup, slot: u32) -> Claim {
    claim_as(setup, slot, member_asn(slot))
}

fn claim_as(setup: &Setup, slot: u32, asn: Asn) -> Claim {
    let key = member_key(setup.seed, slot).verifying_key().to_bytes();
    let attests = setup.attesting.contains(&slot);
    Claim {
        serial: 1,
        asn,
        name: format!("member-{slot}"),
        tls: wayleave_crypto::hash::sha256(&key),
        sign: key,
        attest: if attests { attestation::listed_keys(setup.seed, asn) } else { Vec::new() },
        addresses: vec![member_address(slot).into(), member_address6(slot).into()],
    }
}

/// `directory` with these members, as both operators sign it.
fn admit(directory: &Directory, setup: &Setup, slots: std::ops::Range<u32>) -> Directory {
    let request = |slot| claim_of(setup, slot).sign(EXCHANGE, &member_key(setup.seed, slot));
    let joins = slots.map(|slot| directory.requested(&request(slot), setup.max_prefix).expect("of this exchange"));
    let joins: Vec<SetChange> = joins.collect();
    if joins.is_empty() {
        return directory.clone();
    }
    let [one, two] = operator_keys(setup.seed);
    directory.signed_by_both(joins, [&one, &two]).expect("a sound set")
}

impl Sim {
    /// An exchange with all processes started and connected.
    ///
    /// # Panics
    /// If the member set would be invalid.
    #[must_use]
    pub fn new(setup: Setup) -> Self {
        let operators = operator_keys(setup.seed).map(|key| key.verifying_key().to_bytes());
        let directory = Directory::new(EXCHANGE, operators).expect("a name and two keys");
        let directory = admit(&directory, &setup, 0..u32::try_from(setup.members).expect("few members"));
        let choices = Prg::new(seed_of(setup.seed, b"order", 0).expose().first_chunk().expect("16 of 32"));
        let mut sim = Self {
            set: MemberSet::clone(directory.set()),
            directory,
            operators: operator_keys(setup.seed).map(|key| key.verifying_key()),
            files: BTreeMap::new(),
            exports: BTreeMap::new(),
            now: BEGIN,
            wall_ahead: 0,
            lives: 0,
            parties: BTreeMap::new(),
            members: BTreeMap::new(),
            view: Arc::new(View::new(0)),
            held_jobs: BTreeMap::new(),
            stores: BTreeMap::new(),
            policies: BTreeMap::new(),
            routers: BTreeMap::new(),
            tables: BTreeMap::new(),
            router_changes: Vec::new(),
            links: BTreeMap::new(),
            next_link: 1,
            queues: BTreeMap::new(),
            inputs: VecDeque::new(),
            recommendation: BTreeMap::new(),
            ports: setup.speakers.then(bgp::Ports::default),
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
                    match_wait: Duration::from_secs(2),
                    export: self.exports.get(&node).copied().unwrap_or(self.setup.export),
                };
                let file = self.files.get(&node).cloned().unwrap_or_else(|| self.directory.encode());
                let party = Party::new(config, &seed, &file, stored, self.now)?;
                self.parties.insert(node, party);
                if number == PartyNumber::One && !self.recommendation.is_empty() {
                    let given = PartyInput::Recommendation(self.recommendation.clone());
                    self.inputs.push_back((node, Input::Party(given)));
                }
            }
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
                    validates: false, // set with the attestation that `MemberProxy::new` gets
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
            }
            Node::Member(slot) => {
                self.members.remove(&slot);
                self.held_jobs.entry(slot).and_modify(Vec::clear);
                self.drop_router_session(slot);
            }
        }
        self.inputs.retain(|(to, _)| *to != node);
        let dead: Vec<LinkId> =
            self.links.iter().filter(|(_, (a, b))| *a == node || *b == node).map(|l| *l.0).collect();
        for link in dead {
            self.cut(link);
        }
    }

    /// Takes a link down; frames in flight are lost.
    fn cut(&mut self, link: LinkId) {
        let Some((a, b)) = self.links.remove(&link) else { return };
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
            Node::Member(slot) if self.members.contains_key(&slot) => {
                self.inputs.push_back((node, Input::Member(MemberInput::LinkDown { link })));
            }
            _ => {}
        }
    }

    /// Connects all running processes that should have a link and have none.
    pub fn connect_all(&mut self) {
        let mut pairs = vec![(PARTIES[0], PARTIES[1])];
        for slot in self.members.keys().filter(|slot| self.set.slots[**slot as usize].active) {
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
            Node::Member(slot) => self.members.contains_key(&slot),
        }
    }

    fn connect(&mut self, a: Node, b: Node) {
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
        let router = self.routers.entry(slot).or_default();
        for one in nlri {
            router.insert(*one, attributes.clone());
        }
        self.router_update(slot, Vec::new(), nlri.to_vec(), Some(attributes.clone()));
    }

    /// The router of `slot` withdraws.
    pub fn withdraw(&mut self, slot: u32, nlri: &[Nlri]) {
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

    /// The exchange gives a new recommendation.
    pub fn recommend(&mut self, recommendation: BTreeMap<u32, u8>) {
        self.recommendation.clone_from(&recommendation);
        self.inputs.push_back((PARTIES[0], Input::Party(PartyInput::Recommendation(recommendation))));
    }

    /// A member joins: both operators sign a longer set. Returns its slot.
    ///
    /// # Panics
    /// If the directory is full.
    pub fn join(&mut self) -> u32 {
        let slot = u32::try_from(self.set.slots.len()).expect("few members");
        self.publish(PARTIES[0], admit(&self.directory, &self.setup, slot..slot + 1));
        self.start(Node::Member(slot));
        slot
    }

    /// A further slot of the AS in slot `of` joins, for which that slot's key signed. Returns it.
    ///
    /// # Panics
    /// If the directory is full, or `of` may not sign.
    pub fn join_as(&mut self, of: u32) -> u32 {
        self.join_further(of, Some(Consent::Further))
    }

    /// A further slot of the AS in slot `of` joins, for which nobody signed. Returns it.
    ///
    /// # Panics
    /// If the directory is full.
    pub fn join_held_as(&mut self, of: u32) -> u32 {
        self.join_further(of, None)
    }

    fn join_further(&mut self, of: u32, consent: Option<Consent>) -> u32 {
        let slot = u32::try_from(self.set.slots.len()).expect("few members");
        let seed = self.setup.seed;
        let mut request = claim_as(&self.setup, slot, member_asn(of)).sign(EXCHANGE, &member_key(seed, slot));
        if let Some(consent) = consent {
            request = request.with_consent(consent, &member_key(seed, of));
        }
        let join = self.directory.requested(&request, self.setup.max_prefix).expect("of this exchange");
        self.change_set(vec![join]);
        self.start(Node::Member(slot));
        slot
    }

    /// A member leaves the exchange: one of the operators, in turn, removes it.
    ///
    /// # Panics
    /// If it has left before.
    pub fn leave(&mut self, slot: u32) {
        self.shut_router_for_good(slot);
        let party = PARTIES[slot as usize % 2];
        let Node::Party(number) = party else { return };
        let removed = self.directory.without(slot, &operator_key(self.setup.seed, number));
        self.publish(party, removed.expect("an active slot"));
        self.kill(Node::Member(slot));
        self.remove_port(slot);
        self.routers.remove(&slot);
        self.tables.remove(&slot);
    }

    /// Both parties' files get a newer directory, and one party reads its file again.
    pub fn publish(&mut self, party: Node, directory: Directory) {
        self.set = MemberSet::clone(directory.set());
        self.give_members(party, &directory.encode());
        self.directory = directory;
    }

    /// The key of slot `by` signs for a slot of its AS that is held.
    ///
    /// # Panics
    /// If it may not, or the other is not held.
    pub fn endorse(&mut self, slot: u32, by: u32) {
        let claim = self.directory.claim(slot).expect("a slot");
        let signature = Consent::Further.sign(EXCHANGE, claim, &member_key(self.setup.seed, by));
        self.change_set(vec![SetChange::Endorse { slot, by, signature }]);
    }

    /// The set lists other attestation keys of the member in `slot`, which does not have them.
    ///
    /// # Panics
    /// If the member has left.
    pub fn change_attest_keys(&mut self, slot: u32) {
        let (seed, before) = (self.setup.seed, self.directory.claim(slot).expect("a slot").clone());
        let attest = attestation::listed_keys(seed + 1, before.asn);
        let claim = Claim { serial: before.serial + 1, attest, ..before };
        let key = member_key(seed, slot);
        let request = claim.sign(EXCHANGE, &key).with_consent(Consent::Renewal, &key);
        let renewal = self.directory.requested(&request, 0).expect("of this exchange");
        self.change_set(vec![renewal]);
    }

    /// The operators let the member in `slot` announce one prefix more.
    ///
    /// # Panics
    /// If the member has left.
    pub fn change_limit(&mut self, slot: u32) {
        let before = self.set.active(slot).expect("it is active");
        let (addresses, max_prefix) = (before.addresses.clone(), before.max_prefix + 1);
        self.change_set(vec![SetChange::Amend { slot, addresses, max_prefix }]);
    }

    fn change_set(&mut self, changes: Vec<SetChange>) {
        let [one, two] = operator_keys(self.setup.seed);
        let next = self.directory.signed_by_both(changes, [&one, &two]).expect("a sound set");
        self.publish(PARTIES[0], next);
    }

    /// A number below `below`, from the simulation's seed.
    pub fn choose(&mut self, below: usize) -> usize {
        let mut bytes = [0; 16];
        self.choices.fill(self.chosen, &mut bytes);
        self.chosen += 1;
        let number = u64::from_le_bytes(*bytes.first_chunk().expect("8 of 16"));
        usize::try_from(number % below.max(1) as u64).expect("below a usize")
    }

    /// Sets both clocks. The wall clock follows the monotonic one without rounding errors that would add up.
    fn set_instant(&mut self, instant: Instant) {
        let passed = u64::try_from(instant.since(BEGIN.instant).as_micros()).expect("a short time");
        self.now = Now { instant, unix: UnixTime(BEGIN.unix.0 + passed + self.wall_ahead) };
    }

    /// Sets the wall clock of all processes forward.
    pub fn set_wall_clock_forward(&mut self, by: Duration) {
        self.wall_ahead += u64::try_from(by.as_micros()).expect("a short time");
        self.set_instant(self.now.instant);
    }

    /// Processes one input, or else one frame, or else the next timer. `false` if nothing is due within `horizon`.
    pub fn step(&mut self, horizon: Duration) -> bool {
        if let Some((node, input)) = self.inputs.pop_front() {
            self.deliver_input(node, input);
            return true;
        }
        self.queues.retain(|_, queue| !queue.is_empty());
        let waiting: Vec<(Node, Node)> = self.queues.keys().copied().collect();
        let arriving = self.ports.as_ref().map_or(0, bgp::Ports::ready);
        if waiting.len() + arriving > 0 {
            let pick = self.choose(waiting.len() + arriving);
            match waiting.get(pick).copied() {
                Some((from, to)) => {
                    let frame = self.queues.get_mut(&(from, to)).and_then(VecDeque::pop_front);
                    if let Some((link, bytes)) = frame {
                        self.carry(from, to, link, &bytes);
                    }
                }
                None => self.deliver_octets(pick - waiting.len()),
            }
            self.set_instant(self.now.instant + Duration::from_nanos(100));
            return true;
        }
        let of_process = self.next_deadline();
        let of_session = self.ports.as_ref().and_then(bgp::Ports::deadline);
        let Some(at) = of_process.map(|(at, _)| at).into_iter().chain(of_session).min() else { return false };
        if at > self.now.instant + horizon {
            return false;
        }
        if at > self.now.instant {
            self.set_instant(at);
        }
        match of_process {
            Some((due, node)) if due == at => self.timeout(node),
            _ => self.ports_timeout(),
        }
        true
    }

    fn next_deadline(&self) -> Option<(Instant, Node)> {
        let parties = self.parties.iter().filter_map(|(node, party)| Some((party.deadline()?, *node)));
        let members = self.members.iter().filter_map(|(slot, m)| Some((m.deadline()?, Node::Member(*slot))));
        parties.chain(members).min()
    }

    fn carry(&mut self, from: Node, to: Node, link: LinkId, bytes: &Arc<[u8]>) {
        let action = self.tamper.as_mut().map_or(FrameAction::Pass, |tamper| tamper(from, to, bytes));
        let bytes = match action {
            FrameAction::Pass => bytes.to_vec(),
            FrameAction::Change(bytes) => bytes,
            FrameAction::Drop => return,
        };
        let input = match to {
            Node::Party(_) => Input::Party(PartyInput::Frame { link, bytes }),
            Node::Member(_) => Input::Member(MemberInput::Frame { link, bytes }),
        };
        self.deliver_input(to, input);
    }

    fn deliver_input(&mut self, node: Node, input: Input) {
        let (now, fresh) = (self.now, self.fresh());
        let begin = std::time::Instant::now();
        match (node, input) {
            (Node::Party(_), Input::Party(input)) => {
                if let Some(party) = self.parties.get_mut(&node) {
                    party.stir(&fresh);
                    party.handle(input, now);
                }
            }
            (Node::Member(slot), Input::Member(input)) => {
                if let Some(member) = self.members.get_mut(&slot) {
                    member.stir(&fresh);
                    member.handle(input, now);
                }
            }
            _ => {}
        }
        if let Some(work) = &mut self.work {
            *work.entry(node).or_default() += begin.elapsed();
        }
        self.drain(node);
    }

    fn timeout(&mut self, node: Node) {
        let (now, fresh) = (self.now, self.fresh());
        match node {
            Node::Party(_) => {
                if let Some(party) = self.parties.get_mut(&node) {
                    party.stir(&fresh);
                    party.handle_timeout(now);
                }
            }
            Node::Member(slot) => {
                if let Some(member) = self.members.get_mut(&slot) {
                    member.stir(&fresh);
                    member.handle_timeout(now);
                }
            }
        }
        self.drain(node);
    }

    fn drain(&mut self, node: Node) {
        match node {
            Node::Party(_) => {
                while let Some(output) = self.parties.get_mut(&node).and_then(Machine::poll) {
                    self.party_output(node, output);
                }
            }
            Node::Member(slot) => {
                while let Some(output) = self.members.get_mut(&slot).and_then(Machine::poll) {
                    self.member_output(slot, output);
                }
                self.drain_port(slot);
            }
        }
    }

    fn party_output(&mut self, node: Node, output: PartyOutput) {
        match output {
            PartyOutput::Send { link, frame } => self.send(node, link, frame),
            PartyOutput::Close { link, reason } => self.close(node, link, reason),
            PartyOutput::Persist { id, changes } => {
                self.write(node, changes);
                self.inputs.push_back((node, Input::Party(PartyInput::Persisted(id))));
            }
            PartyOutput::Members(_) => {}
            PartyOutput::Event(event) => self.party_events.push((node, event)),
        }
    }

    fn member_output(&mut self, slot: u32, output: MemberOutput) {
        let node = Node::Member(slot);
        match output {
            MemberOutput::Send { link, frame } => self.send(node, link, frame),
            MemberOutput::Close { link, reason, .. } => self.close(node, link, reason),
            MemberOutput::Persist { id, changes } => {
                self.write(node, changes);
                self.inputs.push_back((node, Input::Member(MemberInput::Persisted(id))));
            }
            MemberOutput::Install { prefix, attributes } if self.ports.is_some() => {
                self.install(slot, prefix, attributes);
            }
            MemberOutput::Install { prefix, attributes } => {
                self.router_changes.push((slot, prefix, attributes.is_some()));
                let table = self.tables.entry(slot).or_default();
                match attributes {
                    Some(attributes) => table.insert(prefix, attributes),
                    None => table.remove(&prefix),
                };
            }
            MemberOutput::Event(event) => self.member_events.push((slot, event)),
            MemberOutput::Job(job) => match self.held_jobs.get_mut(&slot) {
                Some(held) => held.push(job),
                None => self.inputs.push_back((node, Input::Member(MemberInput::JobDone(job.run())))),
            },
            MemberOutput::PersistSlot { id, .. } => {
                self.inputs.push_back((node, Input::Member(MemberInput::SlotPersisted(id))));
            }
            MemberOutput::AttestationEvent(event) => self.attestation_events.push((slot, event)),
        }
    }

    fn write(&mut self, node: Node, changes: Vec<Change>) {
        let store = self.stores.entry(node).or_default();
        for change in changes {
            let key = (change.table.to_owned(), change.key);
            match change.value {
                Some(value) => store.insert(key, value),
                None => store.remove(&key),
            };
        }
    }

    fn send(&mut self, from: Node, link: LinkId, frame: Arc<[u8]>) {
        let Some((a, b)) = self.links.get(&link).copied() else { return };
        let to = if a == from { b } else { a };
        if let Some(recording) = &mut self.recording {
            recording.push(Recorded { from, to, at: self.now.instant, bytes: Arc::clone(&frame) });
        }
        self.queues.entry((from, to)).or_default().push_back((link, frame));
    }

    fn close(&mut self, node: Node, link: LinkId, reason: String) {
        let Some((a, b)) = self.links.remove(&link) else { return };
        let other = if a == node { b } else { a };
        self.closed.push((node, other, reason));
        for ends in [(a, b), (b, a)] {
            if let Some(queue) = self.queues.get_mut(&ends) {
                queue.retain(|(of, _)| *of != link);
            }
        }
        self.link_down(other, link);
    }

    /// Runs until no table can change any more, and reconnects closed links. `false` if that takes longer than `limit` of
    /// virtual time.
    pub fn settle(&mut self, limit: Duration) -> bool {
        let until = self.now.instant + limit;
        let mut reconnect_at = self.now.instant;
        loop {
            let idle = self.inputs.is_empty() && self.queues.values().all(VecDeque::is_empty);
            if idle && self.is_quiet() {
                return true;
            }
            if self.now.instant > until {
                return false;
            }
            if idle && self.now.instant >= reconnect_at {
                self.connect_all();
                reconnect_at = self.now.instant + Duration::from_millis(100);
                if !self.inputs.is_empty() {
                    continue;
                }
            }
            if !self.step(limit) {
                self.set_instant(self.now.instant + Duration::from_millis(100));
            }
        }
    }

    /// Runs for `span` of virtual time and reconnects closed links.
    pub fn pass(&mut self, span: Duration) {
        let until = self.now.instant + span;
        while self.now.instant < until {
            let left = until.since(self.now.instant);
            if !self.step(left) {
                self.set_instant(until);
            }
            if self.inputs.is_empty() && self.queues.values().all(VecDeque::is_empty) {
                self.connect_all();
            }
        }
    }

    /// Runs until the parties have filled their pools of correlations.
    pub fn fill_pools(&mut self) {
        let filling = |sim: &Self| {
            let short = |node| sim.parties.get(node).is_some_and(|party| !party.is_stocked());
            PARTIES.iter().any(short) || !sim.queues.values().all(VecDeque::is_empty) || !sim.inputs.is_empty()
        };
        while filling(self) && self.step(Duration::from_millis(10)) {}
    }

    /// Whether all processes are connected and have nothing left to do.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        let expected: Vec<u32> =
            self.members.keys().copied().filter(|slot| self.set.slots[*slot as usize].active).collect();
        let parties = PARTIES.iter().all(|node| {
            self.parties.get(node).is_some_and(|party| {
                party.is_at_rest()
                    && party.active().eq(expected.iter().copied())
                    && party.member_set() == self.set.number
            })
        });
        let members = expected.iter().all(|slot| self.members.get(slot).is_some_and(MemberProxy::is_at_rest));
        parties && members && self.ports.as_ref().is_none_or(bgp::Ports::is_quiet)
    }
}
