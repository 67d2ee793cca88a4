//! The consent server (the paper, section 3.4): it has the tag keys of its own provider, a policy, and no other secrets.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use wayleave_core::{IdentityKey, Instant, Machine, Now, UnixTime};
use wayleave_crypto::secret::Seed;
use wayleave_crypto::sign::SigningKey;
use wayleave_crypto::signed::Signed;
use wayleave_packet::icing::header::{NodeId, PathHash, Tag, Version};
use wayleave_packet::icing::mint::{EpochKey, TagBranch, TagMaster, tag_epoch};

use super::TagKeys;
use super::policy::{Policy, Question, Subject};
use super::request::ConsentRequest;
use super::sealing::{ConsentAnswer, SealingKey, seal};
use crate::budget::Budget;
use crate::clients::Clients;
use crate::database::{Change, Database, Refusal};
use crate::frames::{Body, Frame, FrameOctets};
use crate::labels::Labels;
use crate::realm::{Freshness, FreshnessWatch, Membership, RealmKey};
use crate::rng::Rng;
use crate::store::{Record, Store};

/// A request's time may differ from the server's by this many seconds.
pub const MAX_SKEW: u64 = 30;
/// Requests of one identity within the time that they are remembered, at a rate of [`REQUESTS`]; proportionally more at higher rates.
/// More are refused.
pub const MAX_NONCES: usize = 4096;
/// Identities whose requests are remembered: no more than members.
const MAX_SENDERS: usize = crate::database::MAX_MEMBERS;
/// Node IDs by which one identity asked, which nobody else may ask by.
const MAX_CLAIMS: usize = 4;
/// Links at a time.
const MAX_LINKS: usize = 65_536;
/// Requests of one identity in a second, unless the configuration says otherwise, and how many seconds' worth at once: each takes three
/// signatures at most.
pub const REQUESTS: u32 = 100;
const AT_ONCE: u32 = 4;
/// An ephemeral key seals answers to one ID for less than this. The server's tag keys give the same proofs, so that an ephemeral key in its
/// memory reveals nothing that these do not.
const SEALING_KEY_LIFETIME: Duration = Duration::from_secs(1);
/// Memberships of identities of which none is known yet, in a second and at once, by all of them together: whoever makes identities
/// could have a signature verified for each, and members' own are known from path servers.
const UNKNOWN: (u32, u32) = (100, 200);

/// What a consent server needs to know.
pub struct ConsentServerConfig {
    pub identity: SigningKey,
    pub realm: RealmKey,
    /// Members to remember, at most.
    pub capacity: usize,
    /// The nodes that it consents for, with their keys.
    pub nodes: BTreeMap<IdentityKey, TagKeys>,
    pub policy: Policy,
    /// Unless it was kept, nothing is answered before a path server has sent what it knows.
    pub store: Store,
    /// Requests of one identity in a second: [`REQUESTS`], or another number.
    pub requests: u32,
    /// By how many seconds the next list of removed nodes may be overdue before nobody gets consent any more.
    pub max_staleness: u64,
    /// Uniformly random, and used for nothing else.
    pub seed: Seed,
}

/// What a consent server is given.
#[derive(Clone, Debug)]
pub enum ConsentServerInput {
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
        octets: FrameOctets,
    },
    /// Records of a path server, unverified; `complete` if these were all.
    Records {
        records: Vec<Record>,
        complete: bool,
    },
    /// The verified labels of nodes are these.
    Labels(Labels),
    /// The operator changed the policy.
    Policy(Policy),
    /// The operator changed the nodes that are consented for, or their keys.
    Nodes(BTreeMap<IdentityKey, TagKeys>),
    /// A prefix of a node's tags for an epoch was delegated to this server.
    Delegate {
        node: IdentityKey,
        branch: TagBranch,
    },
}

/// What a consent server asks of its driver, and reports.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ConsentServerOutput {
    Send {
        link: u64,
        octets: Vec<u8>,
    },
    /// Close this link: its identity has newer ones.
    Close {
        link: u64,
    },
    /// Store these. Nothing waits for it: what was not stored is learned again before anything is answered.
    Persist(Vec<Record>),
    /// For the audit log.
    Audit(Audit),
    Event(ConsentServerEvent),
}

/// What the operator reads in the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ConsentServerEvent {
    /// Requests are answered from now on.
    Ready,
    /// A record of a path server was not taken in.
    RecordRefused(Refusal),
    /// The store was damaged: it counts as lost.
    StoreDamaged,
    /// There is no room for another delegated prefix, or the node is not served.
    NotDelegated(IdentityKey),
    /// The node has given its keys: it is consented for from now on.
    Entrusted(IdentityKey),
}

/// One decision.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Audit {
    /// The Unix second.
    pub time: u64,
    /// Who asked: the link's identity, which signed the request if the decision got that far.
    pub sender: IdentityKey,
    /// The node that was to consent, if the server serves it.
    pub node: Option<IdentityKey>,
    pub path: Option<PathHash>,
    pub tag: Option<Tag>,
    /// Of the packets that were to be sent.
    pub packets: Option<Version>,
    pub decision: Decision,
}

/// What was decided.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Decision {
    /// Consent until this Unix second, by this rule.
    Consented { expiry: u32, rule: String },
    /// None, and by which rule if one decided.
    Refused { refusal: Refusal, rule: Option<String> },
}

/// The consent server as a machine.
pub struct ConsentServer {
    identity: SigningKey,
    own: IdentityKey,
    nodes: BTreeMap<IdentityKey, TagKeys>,
    policy: Policy,
    database: Database,
    labels: Labels,
    /// The identity at the other end of each.
    links: BTreeMap<u64, IdentityKey>,
    clients: Clients<1>,
    unknown: Budget,
    requests: u32,
    freshness: FreshnessWatch,
    /// Of each identity the requests that came, with the Unix second until which each is remembered.
    nonces: BTreeMap<IdentityKey, Remembered>,
    /// Who asked by which node ID, until the ID's last second; and the IDs of each who asked, the latest last.
    claims: BTreeMap<NodeId, Claim>,
    claimed: BTreeMap<IdentityKey, Vec<NodeId>>,
    /// Of the last answer, with the time when it was made.
    sealing: Option<(SealingKey, Instant)>,
    /// The Unix second of the start: until then requests may have been answered in another life.
    started: u64,
    is_ready: bool,
    /// Requests consented to, and refused.
    decided: (u64, u64),
    rng: Rng,
    outputs: VecDeque<ConsentServerOutput>,
}

/// An ID by which an identity asked.
#[derive(Clone, Copy)]
struct Claim {
    by: IdentityKey,
    /// The verified epoch key, and its octets: the same octets need not be verified again.
    key: EpochKey,
    signed: [u8; EpochKey::LENGTH],
}

impl Claim {
    /// The ID's last second.
    fn until(&self) -> u64 {
        self.key.not_after.into()
    }
}

/// The requests of one identity that came, until each is too old to come again.
#[derive(Default)]
struct Remembered {
    by_time: BTreeSet<(u64, [u8; 16])>,
    nonces: BTreeSet<[u8; 16]>,
}

impl Remembered {
    fn insert(&mut self, until: u64, nonce: [u8; 16]) {
        self.by_time.insert((until, nonce));
        self.nonces.insert(nonce);
    }

    fn forget(&mut self, unix: u64) {
        while let Some((until, nonce)) = self.by_time.first().copied()
            && until < unix
        {
            self.by_time.pop_first();
            self.nonces.remove(&nonce);
        }
    }
}

impl ConsentServer {
    /// A server that starts at `now`.
    #[must_use]
    pub fn new(config: ConsentServerConfig, now: UnixTime) -> Self {
        let mut database = Database::new(config.realm, config.capacity);
        let mut outputs = VecDeque::new();
        let mut is_ready = false;
        if let Store::Kept(records) = &config.store {
            is_ready = database.restore(records).is_ok();
            let event = if is_ready { ConsentServerEvent::Ready } else { ConsentServerEvent::StoreDamaged };
            if !is_ready {
                database = Database::new(config.realm, config.capacity);
            }
            outputs.push_back(ConsentServerOutput::Event(event));
        }
        Self {
            own: IdentityKey(config.identity.verifying_key().to_bytes()),
            identity: config.identity,
            nodes: config.nodes,
            policy: config.policy,
            database,
            labels: Labels::default(),
            links: BTreeMap::new(),
            clients: Clients::new([Budget::new(config.requests, config.requests.saturating_mul(AT_ONCE))]),
            unknown: Budget::new(UNKNOWN.0, UNKNOWN.1),
            requests: config.requests,
            freshness: FreshnessWatch::since(now.secs(), config.max_staleness),
            nonces: BTreeMap::new(),
            claims: BTreeMap::new(),
            claimed: BTreeMap::new(),
            sealing: None,
            started: now.secs(),
            is_ready,
            decided: (0, 0),
            rng: Rng::new(config.seed),
            outputs,
        }
    }

    /// Fresh entropy of the system; the driver gives it before every input.
    pub fn reseed(&mut self, fresh: &Seed) {
        self.rng.reseed(fresh);
    }

    /// What it knows.
    #[must_use]
    pub fn database(&self) -> &Database {
        &self.database
    }

    /// Requests consented to, and refused.
    #[must_use]
    pub fn decided(&self) -> (u64, u64) {
        self.decided
    }

    /// The nodes that it consents for.
    pub fn nodes(&self) -> impl Iterator<Item = IdentityKey> {
        self.nodes.keys().copied()
    }

    /// Links at the moment.
    #[must_use]
    pub fn links(&self) -> usize {
        self.links.len()
    }

    /// Whether requests are answered.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.is_ready
    }

    fn frame(&mut self, link: u64, octets: &[u8], now: Now) {
        let Some(peer) = self.links.get(&link).copied() else { return };
        let mut audit = Audit {
            time: now.unix.secs(),
            sender: peer,
            node: None,
            path: None,
            tag: None,
            packets: None,
            decision: refused(Refusal::Malformed),
        };
        let has_budget = self.clients.take(&peer, 0, now.instant);
        let decoded = Frame::decode(octets);
        if let Ok(Frame { request, body: Body::Entrust { masters } }) = decoded {
            let current = tag_epoch(now.unix.secs() as u32);
            let given = if has_budget { self.entrust(peer, masters, current) } else { Err(Refusal::TooOften) };
            let body = match given {
                Ok(()) => Body::Entrusted,
                Err(refusal) => Body::Refused(refusal),
            };
            let octets = Frame { request, body }.encode();
            return self.outputs.push_back(ConsentServerOutput::Send { link, octets });
        }
        let (request, answer) = match decoded {
            Ok(Frame { request, .. }) if !has_budget => (request, Err(Refusal::TooOften)),
            Ok(Frame { request, body: Body::Consent { membership, request: signed } }) => {
                (request, self.consent(peer, &membership, &signed, &mut audit, now))
            }
            Ok(Frame { request, .. }) => (request, Err(Refusal::Malformed)),
            Err(_) => (Frame::request_of(octets), Err(Refusal::Malformed)),
        };
        let body = match answer {
            Ok(answer) => {
                self.decided.0 += 1;
                Body::Consented(answer)
            }
            Err(refusal) => {
                self.decided.1 += 1;
                let rule = match &audit.decision {
                    Decision::Refused { rule, .. } => rule.clone(),
                    Decision::Consented { .. } => None,
                };
                audit.decision = Decision::Refused { refusal, rule };
                Body::Refused(refusal)
            }
        };
        self.outputs.push_back(ConsentServerOutput::Audit(audit));
        let octets = Frame { request, body }.encode();
        self.outputs.push_back(ConsentServerOutput::Send { link, octets });
    }

    /// Takes the keys of a node that gives them itself: nobody but the node can, since the link has proved who it is.
    fn entrust(&mut self, node: IdentityKey, masters: Vec<(u32, TagMaster)>, current: u32) -> Result<(), Refusal> {
        if self.database.is_revoked(&node) {
            return Err(Refusal::Revoked);
        }
        let keys = self.nodes.get_mut(&node).ok_or(Refusal::NotServed)?;
        let were_awaited = keys.are_awaited();
        if !keys.entrust(masters, current) {
            return Err(Refusal::NotServed);
        }
        if were_awaited {
            self.outputs.push_back(ConsentServerOutput::Event(ConsentServerEvent::Entrusted(node)));
        }
        Ok(())
    }

    /// Nodes that are to give their keys themselves, and have not yet.
    pub fn awaited(&self) -> impl Iterator<Item = IdentityKey> {
        self.nodes.iter().filter(|(_, keys)| keys.are_awaited()).map(|(node, _)| *node)
    }

    /// Checks a request, cheap things first, and consents.
    fn consent(
        &mut self,
        peer: IdentityKey,
        membership: &Signed<Membership>,
        signed: &Signed<ConsentRequest>,
        audit: &mut Audit,
        now: Now,
    ) -> Result<Signed<ConsentAnswer>, Refusal> {
        if !self.is_ready {
            return Err(Refusal::Recovering);
        }
        let request = signed.object();
        let unix = now.unix.secs();
        if self.is_stale(unix) {
            return Err(Refusal::StaleList);
        }
        let realm = self.database.realm();
        if request.realm != realm || membership.object().realm != realm {
            return Err(Refusal::Realm);
        }
        if request.server != self.own {
            return Err(Refusal::NotServed);
        }
        if request.sender != peer || membership.object().identity != peer {
            return Err(Refusal::NotOwn);
        }
        if request.time.abs_diff(unix) > MAX_SKEW || request.time <= self.started {
            return Err(Refusal::Stale);
        }
        let index = usize::from(request.index);
        let id = request.path.node(index).ok_or(Refusal::Malformed)?;
        let node = self.database.claimant(id, unix).filter(|node| self.nodes.contains_key(node));
        let node = node.ok_or(Refusal::NotServed)?;
        audit.node = Some(node);
        (audit.tag, audit.packets) = (request.tag(), Some(request.packets));
        self.check_nonce(&request.sender, &request.nonce, unix)?;
        if self.database.last_membership(&peer).is_none() && !self.unknown.take(now.instant) {
            return Err(Refusal::TooOften);
        }
        // The membership may be newer than what path servers have sent; an older one than is known is refused.
        self.database.check_membership(membership, unix)?;
        if !membership.object().holds(unix) || self.database.is_revoked(&peer) {
            return Err(if self.database.is_revoked(&peer) { Refusal::Revoked } else { Refusal::Expired });
        }
        // Before the signature, which the link's own end made: each request is verified and decided once, whatever comes of it.
        self.remember_nonce(request, unix);
        let claim = self.claims.get(&request.path.sender);
        let known = claim.filter(|claim| claim.by == peer && claim.signed == request.epoch_key).map(|claim| claim.key);
        let (_, key) = ConsentRequest::verify_with(signed, known, now.unix).map_err(|_| Refusal::Signature)?;
        self.check_claim(&request.path.sender, Claim { by: peer, signed: request.epoch_key, key }, unix)?;
        let hash = request.path.hash(request.packets).map_err(|_| Refusal::Malformed)?;
        audit.path = Some(hash);
        let expiry = self.decide(membership.object(), request, audit, unix)?;
        // As long as the sender may use the ID, and is a member.
        let last = u64::from(request.expiry.min(expiry)).min(key.not_after.into()).min(membership.object().not_after);
        let last = u32::try_from(last).ok().filter(|last| u64::from(*last) >= unix).ok_or(Refusal::Expired)?;
        let tag = request.tag().ok_or(Refusal::Malformed)?;
        let keys = self.nodes.get(&node).ok_or(Refusal::NotServed)?;
        let (expiry, consent) = keys.consent(&hash, index, tag, last, unix as u32).ok_or(Refusal::NoKey)?;
        if let Decision::Consented { expiry: noted, .. } = &mut audit.decision {
            *noted = expiry;
        }
        let server = self.own;
        let sealing = self.sealing_key(&request.path.sender, now.instant).ok_or(Refusal::Malformed)?;
        let (request, ephemeral) = (signed.digest(), *sealing.ephemeral());
        let answer = ConsentAnswer { realm, server, request, expiry, ephemeral, sealed: [0; 64] };
        let answer = seal(answer, sealing, &consent).ok_or(Refusal::Malformed)?;
        Signed::sign(&answer, &self.identity).map_err(|_| Refusal::Malformed)
    }

    /// The key for answers to `id`: that of the last answer, if that was to the same ID a moment ago. A path's nodes are asked at once,
    /// and one server may consent for many of them.
    fn sealing_key(&mut self, id: &NodeId, now: Instant) -> Option<&SealingKey> {
        let is_usable = |(key, made): &(SealingKey, Instant)| key.id() == id && now.since(*made) < SEALING_KEY_LIFETIME;
        if !self.sealing.as_ref().is_some_and(is_usable) {
            let seed: Seed = self.rng.secret();
            self.sealing = SealingKey::new(id, &seed).map(|key| (key, now));
        }
        self.sealing.as_ref().map(|(key, _)| key)
    }

    /// Whether the list of removed nodes is too old: whoever asks may be on a later one.
    fn is_stale(&mut self, unix: u64) -> bool {
        self.freshness.look(self.database.revocations(), unix);
        matches!(self.freshness.last(), Freshness::Stale(_))
    }

    fn decide(
        &self,
        sender: &Membership,
        request: &ConsentRequest,
        audit: &mut Audit,
        unix: u64,
    ) -> Result<u32, Refusal> {
        let index = usize::from(request.index);
        let subject = |id: &NodeId| {
            let identity = self.database.claimant(id, unix)?;
            let membership = self.database.membership(&identity, unix).ok()?;
            Some(Subject { identity: Some(identity), names: names(membership) })
        };
        // The sender's ID is proved by the request, and needs no advert.
        let own = Subject { identity: Some(sender.identity), names: names(sender) };
        let others: Option<Vec<Subject>> = (0..=request.path.hops.len())
            .filter(|at| *at != index)
            .map(|at| if at == 0 { Some(own.clone()) } else { request.path.node(at).and_then(subject) })
            .collect();
        // Whatever the policy says: nobody speaks for such an ID, and every node would try to agree on a key with it.
        let others = others.ok_or(Refusal::NoAdvert)?;
        let question = Question {
            sender: &own,
            realm: request.realm.0,
            tag: Some(request.tag().ok_or(Refusal::Malformed)?),
            packets: Some(request.packets),
            minute: (unix / 60 % 1440) as u16,
            // Without the consenting node itself, the one behind it has its index.
            before: &others[index - 1],
            after: others.get(index),
            others: &others,
            labels: &self.labels,
        };
        let (rule, seconds) = self.policy.decide(&question);
        let rule = rule.map(str::to_owned);
        let Some(seconds) = seconds else {
            // The sender need not guess whether to ask for the other profile.
            let other = Question { packets: Some(Version::Standard), ..question };
            let is_for_profile = request.packets == Version::Sealed && self.policy.decide(&other).1.is_some();
            let refusal = if is_for_profile { Refusal::Profile } else { Refusal::Policy };
            audit.decision = Decision::Refused { refusal, rule };
            return Err(refusal);
        };
        audit.decision = Decision::Consented { expiry: 0, rule: rule.unwrap_or_default() };
        u32::try_from(unix.saturating_add(seconds.into())).map_err(|_| Refusal::Future)
    }

    fn check_nonce(&mut self, sender: &IdentityKey, nonce: &[u8; 16], unix: u64) -> Result<(), Refusal> {
        let most = MAX_NONCES * (self.requests.max(REQUESTS) / REQUESTS) as usize;
        let Some(known) = self.nonces.get_mut(sender) else { return Ok(()) };
        known.forget(unix);
        if known.nonces.contains(nonce) {
            return Err(Refusal::Replayed);
        }
        if known.nonces.len() >= most { Err(Refusal::TooOften) } else { Ok(()) }
    }

    fn remember_nonce(&mut self, request: &ConsentRequest, unix: u64) {
        if self.nonces.len() >= MAX_SENDERS {
            self.nonces.retain(|_, known| known.by_time.last().is_some_and(|(until, _)| *until >= unix));
        }
        // Until its time is out of the window, it would be taken again.
        self.nonces.entry(request.sender).or_default().insert(request.time + MAX_SKEW, request.nonce);
    }

    /// The ID is nobody else's: neither by an advert nor by a request. The claim is noted.
    fn check_claim(&mut self, id: &NodeId, claim: Claim, unix: u64) -> Result<(), Refusal> {
        let by = claim.by;
        let advertised = self.database.claimant(id, unix);
        let requested = self.claims.get(id).filter(|claim| claim.until() >= unix).map(|claim| claim.by);
        if let Some(other) = advertised.or(requested).filter(|other| *other != by) {
            return Err(Refusal::IdClaimed(other));
        }
        if self.claimed.len() >= MAX_SENDERS {
            let claims = &self.claims;
            let is_live =
                |ids: &Vec<NodeId>| ids.iter().any(|id| claims.get(id).is_some_and(|claim| claim.until() >= unix));
            self.claimed.retain(|_, ids| is_live(ids));
            let claimed = &self.claimed;
            self.claims.retain(|_, claim| claimed.contains_key(&claim.by));
        }
        if self.claims.get(id).is_some_and(|other| other.by != by) {
            // That claim has ended, or the ID's advert has come meanwhile. It leaves the list of who made it too, whose oldest entry takes its
            // claim along when the list is full: by then that would be this one.
            self.forget_claim(id);
        }
        let ids = self.claimed.entry(by).or_default();
        if !ids.contains(id) {
            ids.push(*id);
            if ids.len() > MAX_CLAIMS {
                let oldest = ids.remove(0);
                self.claims.remove(&oldest);
            }
        }
        self.claims.insert(*id, claim);
        Ok(())
    }

    fn forget_claim(&mut self, id: &NodeId) {
        if let Some(Claim { by, .. }) = self.claims.remove(id)
            && let Some(ids) = self.claimed.get_mut(&by)
        {
            ids.retain(|other| other != id);
        }
    }

    fn records(&mut self, records: Vec<Record>, complete: bool, now: Now) {
        let mut kept = Vec::new();
        for record in records {
            match self.database.apply(record.clone(), now.unix.secs()) {
                Ok(Change::New) => kept.push(record),
                Ok(Change::Same) | Err(Refusal::Older(_)) => {}
                Err(refusal) => {
                    let event = ConsentServerEvent::RecordRefused(refusal);
                    self.outputs.push_back(ConsentServerOutput::Event(event));
                }
            }
        }
        if !kept.is_empty() {
            self.outputs.push_back(ConsentServerOutput::Persist(kept));
        }
        if complete && !self.is_ready {
            self.is_ready = true;
            self.outputs.push_back(ConsentServerOutput::Event(ConsentServerEvent::Ready));
        }
    }
}

fn refused(refusal: Refusal) -> Decision {
    Decision::Refused { refusal, rule: None }
}

fn names(membership: &Membership) -> Vec<String> {
    membership.grants.names.iter().map(|name| name.as_str().to_owned()).collect()
}

impl Machine for ConsentServer {
    type Input = ConsentServerInput;
    type Output = ConsentServerOutput;

    fn handle(&mut self, input: ConsentServerInput, now: Now) {
        // The clock was ahead at the start, and is right now: nobody would get consent until that second has come.
        self.started = self.started.min(now.unix.secs());
        match input {
            ConsentServerInput::Connected { link, peer } if self.links.len() < MAX_LINKS => {
                self.links.insert(link, peer);
                if let Some(oldest) = self.clients.connected(link, peer, now.instant) {
                    self.links.remove(&oldest);
                    self.outputs.push_back(ConsentServerOutput::Close { link: oldest });
                }
            }
            ConsentServerInput::Connected { link, .. } => {
                let octets = Frame { request: 0, body: Body::Refused(Refusal::Busy) }.encode();
                self.outputs.push_back(ConsentServerOutput::Send { link, octets });
            }
            ConsentServerInput::Disconnected { link } => {
                if let Some(peer) = self.links.remove(&link) {
                    self.clients.disconnected(link, &peer);
                }
            }
            ConsentServerInput::Frame { link, octets } => self.frame(link, &octets, now),
            ConsentServerInput::Records { records, complete } => self.records(records, complete, now),
            ConsentServerInput::Labels(labels) => self.labels = labels,
            ConsentServerInput::Policy(policy) => self.policy = policy,
            ConsentServerInput::Nodes(nodes) => {
                let before = std::mem::replace(&mut self.nodes, nodes);
                for (node, keys) in before {
                    self.nodes.entry(node).and_modify(|now| now.keep(keys));
                }
                // A node that has given its keys does not know that they are gone: it gives them anew by another link.
                let awaited: BTreeSet<IdentityKey> = self.awaited().collect();
                let links = self.links.iter().filter(|(_, peer)| awaited.contains(peer)).map(|(link, _)| *link);
                let links: Vec<u64> = links.collect();
                self.outputs.extend(links.into_iter().map(|link| ConsentServerOutput::Close { link }));
            }
            ConsentServerInput::Delegate { node, branch } => {
                let current = tag_epoch(now.unix.secs() as u32);
                let is_there = self.nodes.get_mut(&node).is_some_and(|keys| keys.delegate(branch, current));
                if !is_there {
                    let event = ConsentServerEvent::NotDelegated(node);
                    self.outputs.push_back(ConsentServerOutput::Event(event));
                }
            }
        }
    }

    fn handle_timeout(&mut self, _: Now) {}

    fn poll(&mut self) -> Option<ConsentServerOutput> {
        self.outputs.pop_front()
    }

    fn deadline(&self) -> Option<Instant> {
        None
    }
}
