//! The gateway's machine.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use wayleave_core::{Afi, IdentityKey, InnerPrefixes, Instant, Now, Prefix};
use wayleave_crypto::dh::DhPublic;
use wayleave_crypto::kdf;
use wayleave_crypto::lanes::CpuKernel;
use wayleave_crypto::secret::{Secret, Seed};
use wayleave_packet::Path;
use wayleave_packet::icing::header::{Handle, Packet, Part, PathHash, Version};
use wayleave_packet::icing::mint::{Form, Front, Joiner, NodeSecret, Nonce, cut};
use wayleave_packet::icing::verify::{InnerError, check_inner};
use wayleave_packet::platypus::verify::is_martian;

use super::coalesce::{Coalescer, Ready};
use super::counters::{Counters, Reason};
use super::inner::{self, End, IcmpError, Inner};
use super::message::{Content, DATA, Message, SEALED, opening, read_opening};
use super::noise::{OpenError, StaticKey, TAG};
use super::offload::{Offload, Segments};
use super::peer::{Candidate, Class, Flow, FlowKey, Keyed, Known, Lane, Peer, RouteState, Starting, reversed};
use super::policy::{PathPolicy, identities};
use crate::answers::AnswerLimit;
use crate::frame::{BURST, Frame, Ingress};
use crate::icing::{self, Action, ConfigError, Router, Stamp, Stamper};
use crate::limit::TokenBucket;

/// Gateways of which anything is remembered at a time.
pub const LIMIT_PEERS: usize = 1024;
/// Interval of the machine's own work while anything is in use.
const TICK: Duration = Duration::from_millis(100);
/// A packet waits this long for a path, consents and a session.
const PATIENCE: Duration = Duration::from_secs(3);
/// A handshake is begun anew after this long.
const HANDSHAKE: Duration = Duration::from_secs(1);
/// Handshakes that are answered in a second, by all links together, and at once.
const HANDSHAKES: (u32, u32) = (200, 100);
/// ICMP errors in a second, and at once.
const ERRORS: (u32, u32) = (100, 50);
/// Outputs that may wait to be polled; what comes beyond is dropped and counted.
const LIMIT_OUTPUTS: usize = 1 << 14;

/// What a gateway is set up with.
pub struct Config {
    pub identity: IdentityKey,
    /// The static key of its membership.
    pub noise: Secret<32>,
    /// How it verifies packets that come in, as the last node of their paths.
    pub receiver: icing::Config,
    /// The nodes to which it sends, each with the link that leads there.
    pub neighbours: Vec<(IdentityKey, u16)>,
    /// Path policies; the first one is for packets to addresses that are not those of names.
    pub policies: Vec<PathPolicy>,
    /// Random, and new for each life of the process.
    pub seed: Seed,
}

/// Another gateway, by its membership.
#[derive(Clone, Debug)]
pub struct Member {
    pub identity: IdentityKey,
    pub noise: DhPublic,
    /// Its own address of each family: where packets to its names go.
    pub addresses: Vec<IpAddr>,
}

/// What the address of a name stands for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Name {
    /// The policy's name.
    pub policy: String,
    pub node: IdentityKey,
}

/// What the machine asks of its driver.
#[derive(Debug)]
pub enum Output {
    /// ICING packets to the neighbour behind this link: of `size` octets each but the last, which may be shorter.
    Wire { link: u16, octets: Vec<u8>, size: usize },
    /// A packet for the TUN interface.
    Inner(Ready),
    /// The paths to this gateway: answered by [`Gateway::set_paths`].
    NeedPaths { peer: IdentityKey },
    /// The consents of every node on this path: answered by [`Gateway::set_proofs`] with the path's hash.
    NeedProofs { peer: IdentityKey, hash: PathHash, path: Box<Path> },
    /// What an operator may want to know.
    Event(Event),
}

/// What happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    SessionBegan {
        peer: IdentityKey,
    },
    /// Probes on a path stay unanswered.
    PathDied {
        peer: IdentityKey,
    },
    /// Flows went over to another path.
    PathChanged {
        peer: IdentityKey,
    },
}

struct Remote {
    noise: DhPublic,
    addresses: Vec<IpAddr>,
    sources: Vec<Prefix>,
}

/// Where outputs go, and what they are made with.
struct Out {
    queue: VecDeque<Output>,
    stamper: Stamper,
    counters: Counters,
    segment: Vec<u8>,
    message: Vec<u8>,
}

/// A gateway.
pub struct Gateway {
    identity: IdentityKey,
    noise: StaticKey,
    router: Router,
    secrets: Vec<NodeSecret>,
    /// The links of the receiver, for the limit of handshakes.
    links: Vec<u16>,
    neighbours: Vec<(IdentityKey, u16)>,
    policies: Vec<PathPolicy>,
    members: BTreeMap<IdentityKey, Remote>,
    by_noise: HashMap<[u8; 32], IdentityKey>,
    prefixes: InnerPrefixes,
    own: Vec<Prefix>,
    /// Policy and node of each address of a name.
    names: HashMap<IpAddr, (usize, IdentityKey)>,
    peers: BTreeMap<IdentityKey, Peer>,
    sessions: HashMap<u32, IdentityKey>,
    joiner: Joiner,
    joined: Vec<u8>,
    opened: Vec<u8>,
    handshakes: AnswerLimit,
    errors: TokenBucket,
    random: Random,
    out: Out,
    tick: Option<Instant>,
}

impl std::fmt::Debug for Gateway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Gateway {:?} with {} peers", self.identity, self.peers.len())
    }
}

struct Random {
    seed: Seed,
    next: u64,
}

impl Random {
    fn secret(&mut self) -> Secret<32> {
        self.next += 1;
        kdf::derive("wayleave/gateway/random/v1", self.seed.expose(), &self.next.to_be_bytes())
    }

    fn number(&mut self) -> u32 {
        u32::from_be_bytes(*self.secret().expose().first_chunk().expect("4 of 32"))
    }
}

/// What a packet on its way out needs, once its destination is known.
struct Destination {
    peer: IdentityKey,
    class: Class,
    /// The address in the place of a name's.
    real: Option<IpAddr>,
}

impl Gateway {
    /// A gateway that knows nobody yet.
    ///
    /// # Errors
    /// If the receiver's configuration contradicts itself.
    pub fn new(config: Config, kernel: CpuKernel) -> Result<Self, ConfigError> {
        let secrets = config.receiver.policy.secrets.clone();
        let links: Vec<u16> = config.receiver.policy.links.iter().map(|link| link.id).collect();
        let router = Router::new(config.receiver, kernel)?;
        Ok(Self {
            identity: config.identity,
            noise: StaticKey(config.noise),
            router,
            secrets,
            handshakes: AnswerLimit::new(HANDSHAKES.0, HANDSHAKES.1, links.len()),
            links,
            neighbours: config.neighbours,
            policies: config.policies,
            members: BTreeMap::new(),
            by_noise: HashMap::new(),
            prefixes: InnerPrefixes::default(),
            own: Vec::new(),
            names: HashMap::new(),
            peers: BTreeMap::new(),
            sessions: HashMap::new(),
            joiner: Joiner::default(),
            joined: Vec::new(),
            opened: Vec::new(),
            errors: TokenBucket::new(ERRORS.0, ERRORS.1),
            random: Random { seed: config.seed, next: 0 },
            out: Out {
                queue: VecDeque::new(),
                stamper: Stamper::new(kernel),
                counters: Counters::default(),
                segment: Vec::new(),
                message: Vec::new(),
            },
            tick: None,
        })
    }

    /// Mixes in fresh entropy, so that a copy of the process draws other values.
    pub fn stir(&mut self, entropy: &Seed) {
        self.random.seed = kdf::derive("wayleave/gateway/stir/v1", self.random.seed.expose(), entropy.expose());
    }

    /// Sets who is a member and who has which inner prefixes; sessions with others end.
    pub fn set_realm(&mut self, members: Vec<Member>, prefixes: InnerPrefixes) {
        let of = |identity: &IdentityKey| -> Vec<Prefix> {
            prefixes.iter().filter(|(_, owner)| *owner == identity).map(|(prefix, _)| *prefix).collect()
        };
        self.own = of(&self.identity);
        self.by_noise = members.iter().map(|member| (member.noise.to_bytes(), member.identity)).collect();
        let remote = |member: Member| {
            let sources = of(&member.identity);
            (member.identity, Remote { noise: member.noise, addresses: member.addresses, sources })
        };
        let others = members.into_iter().filter(|member| member.identity != self.identity);
        let before = std::mem::replace(&mut self.members, others.map(remote).collect());
        self.prefixes = prefixes;
        // A key that changed ends the sessions under the old one.
        let is_same = |identity: &IdentityKey, members: &BTreeMap<IdentityKey, Remote>| {
            let noise =
                |members: &BTreeMap<IdentityKey, Remote>| members.get(identity).map(|remote| remote.noise.to_bytes());
            noise(members).is_some() && noise(members) == noise(&before)
        };
        let Self { peers, members, sessions, .. } = self;
        peers.retain(|identity, _| is_same(identity, members));
        sessions.retain(|_, identity| peers.contains_key(identity));
    }

    /// Sets how packets that come in are verified, and by which links neighbours are reached.
    ///
    /// # Errors
    /// If the policy contradicts itself; nothing has changed then.
    pub fn set_receiver(
        &mut self,
        policy: icing::Policy,
        neighbours: Vec<(IdentityKey, u16)>,
    ) -> Result<(), ConfigError> {
        let secrets = policy.secrets.clone();
        let links = policy.links.iter().map(|link| link.id).collect();
        self.router.set_policy(policy)?;
        (self.secrets, self.links, self.neighbours) = (secrets, links, neighbours);
        self.handshakes.retune(HANDSHAKES.0, HANDSHAKES.1, self.links.len());
        Ok(())
    }

    /// Sets the path policies. Routes are chosen anew; names are to be set again.
    pub fn set_policies(&mut self, policies: Vec<PathPolicy>) {
        self.policies = policies;
        self.names.clear();
        for peer in self.peers.values_mut() {
            peer.routes.clear();
            peer.flows.clear();
        }
    }

    /// The path policies.
    #[must_use]
    pub fn policies(&self) -> &[PathPolicy] {
        &self.policies
    }

    /// Sets what the addresses of names stand for; names under policies that there are not are left out.
    pub fn set_names(&mut self, names: impl IntoIterator<Item = (IpAddr, Name)>) {
        let place = |name: &Name| self.policies.iter().position(|policy| policy.name == name.policy);
        let known = names.into_iter().filter_map(|(address, name)| Some((address, (place(&name)?, name.node))));
        self.names = known.collect();
    }

    /// What was counted.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.out.counters
    }

    pub(super) fn peers(&self) -> &BTreeMap<IdentityKey, Peer> {
        &self.peers
    }

    /// The next output.
    pub fn poll(&mut self) -> Option<Output> {
        self.out.queue.pop_front()
    }

    /// When [`Gateway::handle_timeout`] is due.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.tick
    }

    /// Takes the paths to a gateway, or why there are none.
    pub fn set_paths(&mut self, peer: IdentityKey, paths: Result<Vec<Path>, String>, now: Now) {
        let Self { peers, identity, neighbours, .. } = self;
        let Some(known) = peers.get_mut(&peer) else { return };
        match paths {
            Ok(paths) => {
                let candidates = paths.into_iter().filter_map(|path| {
                    let nodes: Arc<[IdentityKey]> = identities(&path).into();
                    let is_ours = nodes.first() == Some(identity) && nodes.last() == Some(&peer);
                    let next = nodes.get(1).filter(|_| is_ours)?;
                    let (_, link) = neighbours.iter().find(|(neighbour, _)| neighbour == next)?;
                    let hash = path.consent_hash(Version::Standard).ok()?;
                    Some(Candidate::new(path, hash, nodes, *link))
                });
                known.set_paths(candidates.collect(), now);
            }
            Err(why) => known.fail_paths(why, now),
        }
        self.work(&peer, now);
    }

    /// Takes a path with the consents of all nodes, or why there are none, for the path of `hash`.
    pub fn set_proofs(&mut self, peer: IdentityKey, hash: PathHash, path: Result<Path, String>, now: Now) {
        let start = self.random.number();
        let Self { peers, secrets, .. } = self;
        let Some(candidate) =
            peers.get_mut(&peer).and_then(|known| known.candidates.iter_mut().find(|c| c.hash == hash))
        else {
            return;
        };
        let lane = path.and_then(|path| {
            let first = path.nodes().next().map(|(_, id, _)| id);
            let secret = secrets.iter().find(|secret| Some(secret.id()) == first);
            let secret = secret.ok_or("the path begins at a node ID that is no longer in use")?;
            if path.consent_hash(Version::Standard).ok() != Some(hash) {
                return Err("the consents are for another path".to_owned());
            }
            let sender = path.sender(Version::Standard, secret).map_err(|error| error.to_string())?;
            Ok(Lane::new(sender, path.expiry(), start, now))
        });
        match lane {
            Ok(lane) => candidate.prove(lane, now),
            Err(why) => candidate.refuse(why, now),
        }
        self.work(&peer, now);
    }

    /// Lets timers that are due fire.
    pub fn handle_timeout(&mut self, now: Now) {
        if self.tick.is_none_or(|tick| now.instant < tick) {
            return;
        }
        for peer in self.peers.keys().copied().collect::<Vec<_>>() {
            self.work(&peer, now);
            let Some(known) = self.peers.get_mut(&peer) else { continue };
            for waiting in known.take_overdue(now.instant, PATIENCE) {
                self.out.counters.drop(Reason::Waited);
                if let Some(inner) = Inner::decode(&waiting.octets) {
                    self.answer(&inner, &waiting.octets, IcmpError::Unreachable, now);
                }
            }
            let Some(known) = self.peers.get_mut(&peer) else { continue };
            for index in known.forget(now.instant) {
                self.sessions.remove(&index);
            }
            if known.is_idle(now.instant) {
                self.end(&peer);
            }
        }
        self.tick = (!self.peers.is_empty()).then(|| now.instant + TICK);
    }

    fn end(&mut self, peer: &IdentityKey) {
        if let Some(known) = self.peers.remove(peer) {
            for index in
                known.sessions.iter().map(|known| known.index).chain(known.starting.map(|starting| starting.index))
            {
                self.sessions.remove(&index);
            }
        }
    }

    /// A peer's state, made if there is none and there is room.
    fn peer(&mut self, identity: IdentityKey, now: Now) -> Option<&mut Peer> {
        if !self.peers.contains_key(&identity) {
            if self.peers.len() >= LIMIT_PEERS {
                return None;
            }
            let secret = self.random.secret();
            let key = *secret.expose().first_chunk().expect("16 of 32");
            self.peers.insert(identity, Peer::new(Keyed(key)));
            self.tick.get_or_insert(now.instant + TICK);
        }
        self.peers.get_mut(&identity)
    }

    /// Takes an inner packet from the TUN interface. Addresses in it may be rewritten.
    pub fn inner(&mut self, octets: &mut [u8], offload: &Offload, now: Now) {
        let Some(inner) = Inner::decode(octets) else { return self.out.counters.drop(Reason::NotIp) };
        if is_martian(inner.destination) {
            return self.out.counters.drop(Reason::Martian);
        }
        if !contains(&self.own, inner.source) {
            return self.out.counters.drop(Reason::OwnSource);
        }
        let destination = match self.resolve(&inner, now) {
            Ok(destination) => destination,
            Err(reason) => {
                self.out.counters.drop(reason);
                return self.answer(&inner, octets, IcmpError::Unreachable, now);
            }
        };
        let policies = std::mem::take(&mut self.policies);
        let Some(peer) = self.peers.get_mut(&destination.peer) else { return };
        let route = peer.route(&destination.class, now.instant);
        (peer.routes[route].used, peer.routes[route].data) = (now.instant, Some(now.instant));
        let state = peer.state(route, &policies, now);
        let is_ready = state == RouteState::Ready && peer.session(now.instant).is_some();
        self.policies = policies;
        if is_ready {
            return self.send(&destination, route, inner, octets, offload, now);
        }
        let error = match state {
            RouteState::NoPath(_) => Reason::NoPath,
            RouteState::NoConsent(_) => Reason::NoConsent,
            RouteState::Ready | RouteState::Asking => {
                let has_room =
                    self.peers.get_mut(&destination.peer).is_some_and(|peer| peer.wait(octets, *offload, now.instant));
                if !has_room {
                    self.out.counters.drop(Reason::QueueFull);
                }
                return self.work(&destination.peer, now);
            }
        };
        self.out.counters.drop(error);
        self.answer(&inner, octets, IcmpError::Prohibited, now);
    }

    /// Keeps a path to `node` by the policy at `policy` for a while, as if a packet had been sent there, and probes it at once.
    pub fn want(&mut self, node: IdentityKey, policy: usize, now: Now) {
        if !self.members.contains_key(&node) || policy >= self.policies.len() {
            return;
        }
        let Some(peer) = self.peer(node, now) else { return };
        let route = peer.route(&Class { policy, mirror: None }, now.instant);
        (peer.routes[route].used, peer.routes[route].data) = (now.instant, Some(now.instant));
        for candidate in &mut peer.candidates {
            candidate.lanes().for_each(Lane::probe_now);
        }
        self.work(&node, now);
    }

    /// To whom a packet goes, and by which class of paths. Makes its flow known.
    fn resolve(&mut self, inner: &Inner, now: Now) -> Result<Destination, Reason> {
        let (identity, policy, real) = match self.names.get(&inner.destination) {
            Some((policy, node)) => {
                let is_v4 = inner.destination.is_ipv4();
                let remote = self.members.get(node).ok_or(Reason::NoMember)?;
                let real = remote.addresses.iter().find(|address| address.is_ipv4() == is_v4);
                (*node, *policy, Some(*real.ok_or(Reason::NoMember)?))
            }
            None => {
                let owner = self.prefixes.owner(inner.destination).filter(|owner| *owner != self.identity);
                let owner = owner.filter(|owner| self.members.contains_key(owner)).ok_or(Reason::NoMember)?;
                (owner, 0, None)
            }
        };
        let key = FlowKey {
            local: inner.source,
            remote: real.unwrap_or(inner.destination),
            protocol: inner.protocol,
            ports: inner.ports,
        };
        let name = real.map(|_| inner.destination);
        let peer = self.peer(identity, now).ok_or(Reason::QueueFull)?;
        if let Some(flow) = peer.flows.get_mut(&key) {
            if flow.name != name {
                return Err(Reason::FlowConflict);
            }
            flow.last = now.instant;
            return Ok(Destination { peer: identity, class: flow.class.clone(), real });
        }
        let class = Class { policy, mirror: None };
        if peer.has_room_for_flow(now.instant) {
            let flow = Flow { class: class.clone(), name, is_own: true, handle: Handle([0; 16]), last: now.instant };
            peer.flows.insert(key, flow);
        } else if real.is_some() {
            return Err(Reason::FlowsFull);
        }
        Ok(Destination { peer: identity, class, real })
    }

    /// Sends a packet, or the segments that it stands for, on a route that is ready.
    fn send(
        &mut self,
        destination: &Destination,
        route: usize,
        mut inner: Inner,
        octets: &mut [u8],
        offload: &Offload,
        now: Now,
    ) {
        let Self { peers, out, .. } = self;
        let Some(peer) = peers.get_mut(&destination.peer) else { return };
        let Some(place) = peer.usable(route, now) else { return };
        let mtu = usize::from(peer.candidates[place].path.mtu());
        let Some(lane) = &peer.candidates[place].lane else { return };
        let room = room(lane, mtu, Form::Handle);
        let lengths = Segments::new(octets, inner, offload).map(|segments| segments.lengths());
        let Some((length, _)) = lengths else { return out.counters.drop(Reason::NotIp) };
        if length > room && !(inner::must_pass(&inner, octets) && length <= 2 * room) {
            out.counters.drop(Reason::TooBig);
            return self.answer(&inner, octets, IcmpError::TooBig(room), now);
        }
        if let Some(real) = destination.real {
            inner::rewrite(&mut inner, octets, End::Destination, real);
        }
        out.counters.clamped += u64::from(inner::clamp_mss(&inner, octets, room));
        let Some(segments) = Segments::new(octets, inner, offload) else { return };
        let Peer { sessions, candidates, .. } = peer;
        let Some(known) = current(sessions, now) else { return };
        let candidate = &mut candidates[place];
        let Some(lane) = &mut candidate.lane else { return };
        if out.segments(lane, known, candidate.link, mtu, &segments, now).is_err() {
            return out.counters.drop(Reason::NotSent);
        }
        out.counters.sent += segments.count() as u64;
        out.counters.sent_octets += octets.len() as u64;
    }

    /// Tells the source of an inner packet what became of it, within the limit.
    fn answer(&mut self, inner: &Inner, octets: &[u8], error: IcmpError, now: Now) {
        if self.errors.ready(now.instant)
            && let Some(octets) = inner::icmp_error(inner, octets, error)
        {
            self.errors.take(now.instant);
            self.out.push(Output::Inner(Ready { octets, offload: Offload::default() }));
        }
    }

    /// All that may be done for a peer now: questions, probes, handshakes, and what waits.
    fn work(&mut self, identity: &IdentityKey, now: Now) {
        let Self { peers, out, policies, members, random, noise, sessions, .. } = self;
        let Some(peer) = peers.get_mut(identity) else { return };
        let (changed, dead) = peer.choose(policies, now);
        out.counters.dead += dead;
        out.counters.failovers += changed;
        if dead > 0 {
            out.push(Output::Event(Event::PathDied { peer: *identity }));
        }
        if changed > 0 {
            out.push(Output::Event(Event::PathChanged { peer: *identity }));
        }
        let is_live = peer.routes.iter().any(|route| route.is_live(now.instant));
        let is_kept = is_live || peer.routes.iter().any(|route| route.is_kept(now.instant)) || peer.response.is_some();
        if !is_kept {
            return;
        }
        if peer.asks_paths(now) {
            out.counters.path_requests += 1;
            out.push(Output::NeedPaths { peer: *identity });
        }
        for place in peer.in_use(|route| route.is_kept(now.instant)) {
            let candidate = &mut peer.candidates[place];
            if candidate.asks_now(now) {
                out.counters.proof_requests += 1;
                let path = Box::new(candidate.path.clone());
                out.push(Output::NeedProofs { peer: *identity, hash: candidate.hash, path });
            }
        }
        // A response goes by the first path that there is.
        if let Some((message, class, since)) = peer.response.take() {
            let route = peer.route(&class, now.instant);
            match peer.usable(route, now) {
                Some(place) => out.control(&mut peer.candidates[place], &message, now),
                None if now.instant.since(since) < PATIENCE => peer.response = Some((message, class, since)),
                None => {}
            }
        }
        let begins = is_live
            && peer.wants_session(now.instant)
            && peer.starting.as_ref().is_none_or(|starting| now.instant.since(starting.at) >= HANDSHAKE);
        let route = peer.routes.iter().position(|route| route.is_live(now.instant));
        if let (true, Some(remote)) = (begins, members.get(identity))
            && let Some(place) = route.and_then(|route| peer.usable(route, now))
        {
            let payload = opening(now.unix.0, &peer.candidates[place].nodes);
            let index = fresh_index(random, sessions);
            if let Ok((started, first)) = noise.initiate(&remote.noise, random.secret(), &payload) {
                if let Some(before) = peer.starting.replace(Starting { index, started, at: now.instant }) {
                    sessions.remove(&before.index);
                }
                sessions.insert(index, *identity);
                out.control(&mut peer.candidates[place], &Message::initiation(index, &first), now);
            }
        }
        for place in peer.in_use(|route| route.is_live(now.instant)) {
            let Peer { sessions, candidates, .. } = &mut *peer;
            let Some(known) = current(sessions, now) else { break };
            out.probe(&mut candidates[place], known, now);
        }
        self.flush(identity, now);
    }

    /// Sends what waits, if it can be sent.
    fn flush(&mut self, identity: &IdentityKey, now: Now) {
        let Some(peer) = self.peers.get_mut(identity) else { return };
        if peer.waiting.is_empty() || peer.session(now.instant).is_none() {
            // What nobody consents to waits no longer.
            let has_hope = peer.routes.iter().enumerate().any(|(route, of)| {
                of.is_live(now.instant)
                    && matches!(peer.state(route, &self.policies, now), RouteState::Ready | RouteState::Asking)
            });
            if has_hope || peer.waiting.is_empty() {
                return;
            }
        }
        // What cannot be sent yet waits again, in its order.
        for mut packet in peer.take_waiting() {
            self.inner_again(&mut packet.octets, &packet.offload, packet.since, now);
        }
    }

    /// [`Gateway::inner`] for a packet that has waited.
    fn inner_again(&mut self, octets: &mut [u8], offload: &Offload, since: Instant, now: Now) {
        let Some(inner) = Inner::decode(octets) else { return };
        let Ok(destination) = self.resolve(&inner, now) else { return self.out.counters.drop(Reason::NoMember) };
        let Some(peer) = self.peers.get_mut(&destination.peer) else { return };
        let route = peer.route(&destination.class, now.instant);
        let state = peer.state(route, &self.policies, now);
        match state {
            RouteState::Ready if peer.session(now.instant).is_some() => {
                self.send(&destination, route, inner, octets, offload, now);
            }
            RouteState::Ready | RouteState::Asking => {
                if !peer.wait(octets, *offload, since) {
                    self.out.counters.drop(Reason::QueueFull);
                }
            }
            RouteState::NoPath(_) | RouteState::NoConsent(_) => {
                let is_path = matches!(state, RouteState::NoPath(_));
                self.out.counters.drop(if is_path { Reason::NoPath } else { Reason::NoConsent });
                self.answer(&inner, octets, IcmpError::Prohibited, now);
            }
        }
    }

    /// Takes at most [`BURST`] ICING packets.
    pub fn outer(&mut self, frames: &mut [Frame<'_>], now: Now) {
        let actions = self.router.process(frames, now);
        let mut coalescer = Coalescer::default();
        for (frame, action) in frames.iter().zip(actions).take(BURST) {
            match action {
                Action::Deliver { service: 0, .. } => {}
                Action::Drop(reason) => {
                    self.out.counters.refuse(reason);
                    continue;
                }
                _ => {
                    self.out.counters.drop(Reason::NotForwarder);
                    continue;
                }
            }
            let Ok(packet) = Packet::decode(frame.octets, Version::Standard) else { continue };
            if let Err(reason) = self.take(&packet, frame.ingress, &mut coalescer, now) {
                self.out.counters.drop(reason);
            }
        }
        let queue = &mut self.out;
        coalescer.flush(&mut |ready| queue.push(Output::Inner(ready)));
    }

    /// Takes a verified packet.
    fn take(
        &mut self,
        packet: &Packet<'_>,
        ingress: Ingress,
        coalescer: &mut Coalescer,
        now: Now,
    ) -> Result<(), Reason> {
        if packet.protocol() != SEALED {
            return Err(Reason::NotSealed);
        }
        let from = (packet.handle(), packet.held());
        if packet.part() == Part::Whole {
            return self.message(packet.payload(), from, ingress, coalescer, now);
        }
        let mut joined = std::mem::take(&mut self.joined);
        let (handle, nonce) = (packet.handle(), packet.nonce());
        let is_whole = self.joiner.join(handle, nonce, packet.part(), packet.payload(), now.instant, &mut joined);
        let result = if is_whole { self.message(&joined, from, ingress, coalescer, now) } else { Ok(()) };
        self.joined = joined;
        result
    }

    fn message(
        &mut self,
        octets: &[u8],
        from: (Handle, u16),
        ingress: Ingress,
        coalescer: &mut Coalescer,
        now: Now,
    ) -> Result<(), Reason> {
        match Message::decode(octets).ok_or(Reason::Malformed)? {
            Message::Initiation { from: index, noise } => self.initiated(index, noise, (from.0, ingress), now),
            Message::Response { to, from, noise } => self.responded(to, from, noise, now),
            Message::Data { to, number, sealed } => {
                let mut opened = std::mem::take(&mut self.opened);
                opened.resize(opened.len().max(sealed.len()), 0);
                let result = self.data(to, number, (sealed, &mut opened), from, coalescer, now);
                self.opened = opened;
                result
            }
        }
    }

    /// Answers the first message of a handshake.
    fn initiated(
        &mut self,
        to: u32,
        noise: &[u8],
        (handle, ingress): (Handle, Ingress),
        now: Now,
    ) -> Result<(), Reason> {
        let Ingress::External(link) = ingress else { return Err(Reason::Busy) };
        let place = self.links.iter().position(|id| *id == link).unwrap_or(usize::MAX);
        if !self.handshakes.take(place, now.instant) {
            return Err(Reason::Busy);
        }
        let (key, payload, answering) = self.noise.receive(self.random.secret(), noise).map_err(|_| Reason::Seal)?;
        let identity = *self.by_noise.get(&key.to_bytes()).ok_or(Reason::Stranger)?;
        if !self.members.contains_key(&identity) {
            return Err(Reason::Stranger);
        }
        let (made, nodes) = read_opening(&payload).ok_or(Reason::Malformed)?;
        let is_ours = nodes.first() == Some(&identity) && nodes.last() == Some(&self.identity);
        let peer = self.peer(identity, now).ok_or(Reason::Busy)?;
        if made <= peer.opened {
            return Err(Reason::Stranger);
        }
        peer.opened = made;
        let index = fresh_index(&mut self.random, &self.sessions);
        let (session, second) = answering.respond(now.instant).map_err(|_| Reason::Seal)?;
        let Some(peer) = self.peers.get_mut(&identity) else { return Err(Reason::Busy) };
        let ended = peer.add_session(Known { index, to, session, is_confirmed: false }, now.instant);
        for index in ended {
            self.sessions.remove(&index);
        }
        self.sessions.insert(index, identity);
        let class = Class { policy: 0, mirror: is_ours.then(|| reversed(&peer.hear(handle, &nodes, now.instant))) };
        let route = peer.route(&class, now.instant);
        peer.routes[route].heard = Some(now.instant);
        peer.response = Some((Message::response(to, index, &second), class, now.instant));
        self.work(&identity, now);
        Ok(())
    }

    /// Takes the second message of a handshake.
    fn responded(&mut self, index: u32, to: u32, noise: &[u8], now: Now) -> Result<(), Reason> {
        let identity = *self.sessions.get(&index).ok_or(Reason::UnknownSession)?;
        let peer = self.peers.get_mut(&identity).ok_or(Reason::UnknownSession)?;
        let starting = peer.starting.take_if(|starting| starting.index == index).ok_or(Reason::UnknownSession)?;
        // A response that does not open ends the handshake; the next one has other keys.
        let session = starting.started.finish(noise, now.instant).map_err(|_| Reason::Seal);
        let session = session.inspect_err(|_| {
            self.sessions.remove(&index);
        })?;
        for ended in peer.add_session(Known { index, to, session, is_confirmed: true }, now.instant) {
            self.sessions.remove(&ended);
        }
        self.out.counters.sessions += 1;
        self.out.push(Output::Event(Event::SessionBegan { peer: identity }));
        // The probe tells the peer that the session is there.
        for candidate in &mut peer.candidates {
            candidate.lanes().for_each(Lane::probe_now);
        }
        self.work(&identity, now);
        Ok(())
    }

    /// Takes a sealed message.
    fn data(
        &mut self,
        index: u32,
        number: u64,
        (sealed, opened): (&[u8], &mut [u8]),
        (handle, held): (Handle, u16),
        coalescer: &mut Coalescer,
        now: Now,
    ) -> Result<(), Reason> {
        let identity = *self.sessions.get(&index).ok_or(Reason::UnknownSession)?;
        let peer = self.peers.get_mut(&identity).ok_or(Reason::UnknownSession)?;
        let known = peer.sessions.iter_mut().find(|known| known.index == index).ok_or(Reason::UnknownSession)?;
        let plain = known.session.open(number, sealed, opened).map_err(|error| match error {
            OpenError::Seal => Reason::Seal,
            OpenError::Replayed => Reason::Replayed,
        })?;
        if !known.is_confirmed {
            known.is_confirmed = true;
            self.out.counters.sessions += 1;
            self.out.push(Output::Event(Event::SessionBegan { peer: identity }));
            self.flush(&identity, now);
        }
        if let Some(4 | 6) = plain.first().map(|first| first >> 4) {
            return self.deliver(&identity, plain, handle, coalescer, now);
        }
        match Content::decode(plain).ok_or(Reason::Malformed)? {
            Content::Packet(_) => {}
            Content::Probe { number, nodes } => self.probed(&identity, number, &nodes, (handle, held), now),
            Content::Answer { number, held, handle } => {
                let Some(peer) = self.peers.get_mut(&identity) else { return Ok(()) };
                let mut candidates = peer.candidates.iter_mut();
                if candidates.any(|candidate| candidate.answered(handle, number, held, now.instant)) {
                    self.out.counters.answers += 1;
                }
            }
        }
        Ok(())
    }

    /// Answers a probe by active and spare path: whichever of them is dead, the other is heard.
    fn probed(
        &mut self,
        identity: &IdentityKey,
        number: u32,
        nodes: &[IdentityKey],
        (handle, held): (Handle, u16),
        now: Now,
    ) {
        let is_ours = nodes.first() == Some(identity) && nodes.last() == Some(&self.identity);
        let Some(peer) = self.peers.get_mut(identity) else { return };
        let mirror = is_ours.then(|| reversed(&peer.hear(handle, nodes, now.instant)));
        let class = Class { policy: 0, mirror };
        let route = peer.route(&class, now.instant);
        (peer.routes[route].used, peer.routes[route].heard) = (now.instant, Some(now.instant));
        self.work(identity, now);
        let Self { peers, out, .. } = self;
        let Some(peer) = peers.get_mut(identity) else { return };
        let content = Content::Answer { number, held, handle }.encode();
        for place in peer.in_use(|route| route.class == class) {
            let Peer { sessions, candidates, .. } = &mut *peer;
            let Some(known) = current(sessions, now) else { return };
            out.sealed(&mut candidates[place], known, &content, now);
        }
    }

    /// Hands an inner packet to the system if its sender may send it.
    fn deliver(
        &mut self,
        identity: &IdentityKey,
        octets: &mut [u8],
        handle: Handle,
        coalescer: &mut Coalescer,
        now: Now,
    ) -> Result<(), Reason> {
        let remote = self.members.get(identity).ok_or(Reason::Stranger)?;
        let protocol = if octets[0] >> 4 == 4 { 4 } else { 41 };
        check_inner(protocol, octets, &remote.sources, &self.own).map_err(|error| match error {
            InnerError::NotIp => Reason::InnerNotIp,
            InnerError::Source => Reason::InnerSource,
            InnerError::Martian => Reason::InnerMartian,
            InnerError::Destination => Reason::InnerDestination,
            InnerError::Nested => Reason::InnerNested,
        })?;
        let mut inner = Inner::decode(octets).ok_or(Reason::InnerNotIp)?;
        let (source_port, destination_port) = inner.ports;
        let key = FlowKey {
            local: inner.destination,
            remote: inner.source,
            protocol: inner.protocol,
            ports: (destination_port, source_port),
        };
        let peer = self.peers.get_mut(identity).ok_or(Reason::UnknownSession)?;
        let known = peer.flows.get(&key).map(|flow| (flow.is_own, flow.handle == handle, flow.class.mirror.is_some()));
        // A flow that the peer began, or moved to another path, is answered over the same nodes, once it has said which.
        let mirror = match known {
            Some((true, ..) | (false, true, true)) => None,
            _ => peer.mirror(&handle),
        };
        let is_settled = match known {
            Some((is_own, is_same, _)) => is_own || is_same && mirror.is_none(),
            None => false,
        };
        let name = match peer.flows.get_mut(&key).filter(|_| is_settled) {
            Some(flow) => {
                flow.last = now.instant;
                flow.name
            }
            None => {
                let class = Class { policy: 0, mirror };
                if known.is_some() || peer.has_room_for_flow(now.instant) {
                    let flow = Flow { class, name: None, is_own: false, handle, last: now.instant };
                    peer.flows.insert(key, flow);
                }
                None
            }
        };
        let length = octets.len() as u64;
        if let Some(name) = name {
            inner::rewrite(&mut inner, octets, End::Source, name);
        }
        if inner::is_syn(&inner, octets)
            && let Some(room) = peer.least_room(now)
        {
            self.out.counters.clamped += u64::from(inner::clamp_mss(&inner, octets, room));
        }
        self.out.counters.received += 1;
        self.out.counters.received_octets += length;
        let out = &mut self.out;
        coalescer.push(octets, inner, &mut |ready| out.push(Output::Inner(ready)));
        Ok(())
    }
}

/// Whether one of `prefixes` holds `address`.
fn contains(prefixes: &[Prefix], address: IpAddr) -> bool {
    let bits = if address.is_ipv4() { Afi::Ipv4 } else { Afi::Ipv6 }.bits();
    Prefix::new(address, bits).is_ok_and(|host| prefixes.iter().any(|prefix| prefix.contains(&host)))
}

/// Octets of the longest inner packet in a packet of `mtu` octets.
pub(super) fn room(lane: &Lane, mtu: usize, form: Form) -> usize {
    mtu.saturating_sub(lane.sender.header_length(form) + DATA + TAG)
}

fn current(sessions: &mut [Known], now: Now) -> Option<&mut Known> {
    sessions.iter_mut().rev().find(|known| known.is_good(now.instant))
}

/// A number that no session has.
fn fresh_index(random: &mut Random, sessions: &HashMap<u32, IdentityKey>) -> u32 {
    loop {
        let index = random.number();
        if !sessions.contains_key(&index) {
            return index;
        }
    }
}

impl Out {
    fn push(&mut self, output: Output) {
        if self.queue.len() < LIMIT_OUTPUTS {
            self.queue.push_back(output);
        } else {
            self.counters.drop(Reason::NotSent);
        }
    }

    /// Sends each of `segments`, sealed.
    fn segments(
        &mut self,
        lane: &mut Lane,
        known: &mut Known,
        link: u16,
        mtu: usize,
        segments: &Segments<'_>,
        now: Now,
    ) -> Result<(), ()> {
        let form = lane.form();
        let header = lane.sender.header_length(form);
        let around = header + DATA + TAG;
        let (length, last) = segments.lengths();
        let mut segment = std::mem::take(&mut self.segment);
        let count = segments.count();
        let result = if around + length > mtu {
            // The path itself takes the room until every node holds it; or the packet must pass.
            (0..count).try_for_each(|index| {
                segments.write(index, &mut segment);
                self.seal(known, &segment)?;
                let message = std::mem::take(&mut self.message);
                self.message(lane, link, mtu, (form, &message), now);
                self.message = message;
                Ok(())
            })
        } else {
            let size = around + length;
            let mut octets = vec![0; (count - 1) * size + around + last];
            let sealed = octets.chunks_mut(size).enumerate().try_for_each(|(index, packet)| {
                segments.write(index, &mut segment);
                let number = known.session.seal(&segment, &mut packet[header + DATA..]).map_err(|_| ())?;
                packet[header..header + DATA].copy_from_slice(&Message::data(known.to, number));
                Ok(())
            });
            sealed.and_then(|()| {
                let front = |nonce| Front { form, part: Part::Whole, protocol: SEALED, nonce };
                let nonces: Vec<Nonce> = (0..count).map(|_| lane.nonce(now)).collect();
                let sender = &lane.sender;
                let mut stamps: Vec<Stamp<'_>> = octets
                    .chunks_mut(size)
                    .zip(nonces)
                    .map(|(octets, nonce)| Stamp { sender, front: front(nonce), octets })
                    .collect();
                stamps.chunks_mut(BURST).try_for_each(|burst| self.stamper.stamp(burst).map_err(|_| ()))?;
                self.push(Output::Wire { link, octets, size });
                Ok(())
            })
        };
        self.segment = segment;
        result
    }

    /// Seals `plain` as a message into `self.message`.
    fn seal(&mut self, known: &mut Known, plain: &[u8]) -> Result<(), ()> {
        self.message.clear();
        self.message.resize(DATA + plain.len() + TAG, 0);
        let number = known.session.seal(plain, &mut self.message[DATA..]).map_err(|_| ())?;
        self.message[..DATA].copy_from_slice(&Message::data(known.to, number));
        Ok(())
    }

    /// Sends a message of which nothing is sealed here, with the path.
    fn control(&mut self, candidate: &mut Candidate, message: &[u8], now: Now) {
        let (link, mtu) = (candidate.link, usize::from(candidate.path.mtu()));
        if let Some(lane) = &mut candidate.lane {
            self.message(lane, link, mtu, (Form::Path, message), now);
        }
    }

    /// Sends a sealed content, with the path.
    fn sealed(&mut self, candidate: &mut Candidate, known: &mut Known, content: &[u8], now: Now) {
        if self.seal(known, content).is_ok() {
            let message = std::mem::take(&mut self.message);
            self.control(candidate, &message, now);
            self.message = message;
        }
    }

    /// Probes a path if that is due, by the proofs in use and by the next ones.
    fn probe(&mut self, candidate: &mut Candidate, known: &mut Known, now: Now) {
        let (link, mtu) = (candidate.link, usize::from(candidate.path.mtu()));
        let nodes = candidate.nodes.to_vec();
        for lane in candidate.lanes() {
            let Some(number) = lane.next_probe(now.instant) else { continue };
            let content = Content::Probe { number, nodes: nodes.clone() }.encode();
            if self.seal(known, &content).is_ok() {
                self.counters.probes += 1;
                let message = std::mem::take(&mut self.message);
                self.message(lane, link, mtu, (Form::Path, &message), now);
                self.message = message;
            }
        }
    }

    /// Sends one message in one packet, or in two if it does not fit.
    fn message(&mut self, lane: &mut Lane, link: u16, mtu: usize, (form, message): (Form, &[u8]), now: Now) {
        let room = mtu.saturating_sub(lane.sender.header_length(form));
        if message.len() <= room {
            let nonce = lane.nonce(now);
            return self.packet(lane, link, Front { form, part: Part::Whole, protocol: SEALED, nonce }, message);
        }
        let Some((first, second)) = cut(message, room) else { return self.counters.drop(Reason::NotSent) };
        self.counters.split += 1;
        let (nonce, next) = lane.two_nonces(now);
        self.packet(lane, link, Front { form, part: Part::First, protocol: SEALED, nonce }, first);
        self.packet(lane, link, Front { form, part: Part::Second, protocol: SEALED, nonce: next }, second);
    }

    fn packet(&mut self, lane: &Lane, link: u16, front: Front, payload: &[u8]) {
        let header = lane.sender.header_length(front.form);
        let mut octets = vec![0; header + payload.len()];
        octets[header..].copy_from_slice(payload);
        let stamped = self.stamper.stamp(&mut [Stamp { sender: &lane.sender, front, octets: &mut octets }]);
        match stamped {
            Ok(()) => {
                let size = octets.len();
                self.push(Output::Wire { link, octets, size });
            }
            Err(_) => self.counters.drop(Reason::NotSent),
        }
    }
}
