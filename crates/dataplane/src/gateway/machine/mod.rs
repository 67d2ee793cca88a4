//! The gateway's machine: its configuration, what it is told, and its timers. Packets leave by `leaving` and `out`, and come in by
//! `arriving`; `work` is what is done without one. Threads share it (`thread`).

mod arriving;
mod leaving;
mod out;
mod thread;
mod work;

pub use thread::Gateway;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use wayleave_core::{IdentityKey, InnerPrefixes, InnerTraffic, Instant, Now, Prefix};
use wayleave_crypto::dh::DhPublic;
use wayleave_crypto::kdf;
use wayleave_crypto::lanes::CpuKernel;
use wayleave_crypto::secret::{Secret, Seed};
use wayleave_packet::Path;
use wayleave_packet::icing::header::{Handle, NodeId, PathHash, Version};
use wayleave_packet::icing::mint::NodeSecret;

use super::coalesce::Ready;
use super::counters::{Counters, Reason};
use super::errors::ErrorLimit;
use super::flows::FlowTable;
use super::inner::{IcmpError, Inner};
use super::keyed::Keyed;
use super::lane::Lane;
use super::peer::{Candidate, Peer, Traffic};
use super::policy::{PathPolicy, are_known, identities};
use crate::answers::AnswerLimit;
use crate::icing::{self, AgreedKeys, Stamper};
use crate::noise::{StaticKey, Window};
use out::Out;

/// Gateways of which anything is remembered at a time.
pub const LIMIT_PEERS: usize = 1024;
/// Interval of the machine's own work while anything is in use.
const TICK: Duration = Duration::from_millis(100);
/// A packet waits this long for a path, consents and a session.
const TIMEOUT: Duration = Duration::from_secs(3);
/// A handshake is begun anew after this long.
const HANDSHAKE: Duration = Duration::from_secs(1);
/// Microseconds by which the wall clock goes back at least if somebody sets it: nodes take packets that are a second ahead of their clocks.
const STEP: u64 = 500_000;
/// What sessions of gateways are, in the prologue of their handshakes.
const PROLOGUE: &str = "wayleave/gateway/v2";
/// By how many messages of a session one may come late. Threads of the sender take the numbers of some 40 packets at a time, and those of the
/// receiver take bursts of them in when each has its turn. What a session keeps of that are 8 KiB: 32 MiB if all peers that there may be have all
/// the sessions that they may have.
const WINDOW: Window = Window::of(1 << 16);
/// Handshakes that are answered in a second, of all members together, and at once.
const HANDSHAKES: (u32, u32) = (200, 100);
/// Outputs that may wait to be polled; what comes beyond is dropped and counted.
const LIMIT_OUTPUTS: usize = 1 << 14;

/// What a gateway is set up with.
pub struct Config {
    pub identity: IdentityKey,
    /// The realm's public key.
    pub realm: [u8; 32],
    /// The static key of its membership.
    pub noise: Secret<32>,
    /// How it verifies packets that come in, as the last node of their paths.
    pub receiver: icing::Config,
    /// The nodes to which it sends, each with the link that leads there.
    pub neighbours: Vec<(IdentityKey, u16)>,
    /// Path policies; the first one is for packets to addresses that are not those of names.
    pub policies: Vec<PathPolicy>,
    /// Where the addresses of names are, given or not: no member's, whatever its prefixes are.
    pub name_blocks: Vec<Prefix>,
    /// Whether all inner packets of this side are one process's, which bounds what it takes, and not hosts': then ICMP errors to it have no limit,
    /// which one application would use up for all.
    pub is_process: bool,
    /// Random, and new for each life of the process.
    pub seed: Seed,
}

/// Another gateway, by its membership.
#[derive(Clone, Debug)]
pub struct Member {
    pub identity: IdentityKey,
    pub noise: DhPublic,
    /// The node IDs that it has published: what proves it to be the sender of its packets.
    pub ids: Vec<NodeId>,
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

/// What a reload says of the realm and of this gateway: all of it holds from one packet to the next, since each part of it may be for another
/// realm than what the others were before.
pub struct Reload {
    /// Who is a member and who has which inner prefixes; sessions with others end.
    pub members: Vec<Member>,
    pub prefixes: InnerPrefixes,
    /// As [`Gateway::set_internet`], [`Gateway::set_admitted`] and [`Gateway::set_nodes`] take them.
    pub internet: Internet,
    pub admitted: Option<HashMap<IdentityKey, Vec<InnerTraffic>>>,
    pub nodes: BTreeSet<IdentityKey>,
    pub policies: Option<Vec<PathPolicy>>,
    /// How packets that come in are verified, and by which links neighbours are reached.
    pub receiver: icing::Policy,
    pub neighbours: Vec<(IdentityKey, u16)>,
    /// What all addresses of names stand for.
    pub names: Vec<(IpAddr, Name)>,
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
    /// The consents of every node on this path to packets of its version, or to those of the standard one if a node refuses that: answered by
    /// [`Gateway::set_proofs`] with the path's hash, which is that for the standard version.
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
    /// Until its state as a peer was made; that goes on with it.
    traffic: Traffic,
}

/// What the threads of a gateway share.
pub(in super::super) struct Machine {
    identity: IdentityKey,
    /// The realm's public key.
    realm: [u8; 32],
    noise: Arc<StaticKey>,
    secrets: Vec<NodeSecret>,
    /// The keys that these and other nodes have agreed on.
    agreed: Arc<AgreedKeys>,
    neighbours: Vec<(IdentityKey, u16)>,
    pub(in super::super) policies: Vec<PathPolicy>,
    members: BTreeMap<IdentityKey, Remote>,
    /// Which nodes paths may cross; any if nothing was said.
    nodes: Option<BTreeSet<IdentityKey>>,
    /// Whose each node ID is, and that member's number for the limit of handshakes.
    senders: HashMap<NodeId, (IdentityKey, usize)>,
    prefixes: InnerPrefixes,
    name_blocks: Vec<Prefix>,
    internet: Internet,
    /// What each member may begin, nothing if it is not there; everybody everything if nothing was said.
    admitted: Option<HashMap<IdentityKey, Vec<InnerTraffic>>>,
    /// Policy and node of each address of a name.
    names: HashMap<IpAddr, (usize, IdentityKey)>,
    pub(in super::super) peers: BTreeMap<IdentityKey, Peer>,
    pub(in super::super) flows: FlowTable,
    sessions: HashMap<u32, IdentityKey>,
    handshakes: AnswerLimit,
    begun: Begun,
    /// The Unix microsecond of this process's start, by the clock as it is now.
    started: u64,
    /// When timers were last looked at, by both clocks.
    looked_at: Option<Now>,
    /// The Unix microsecond in the last handshake that was begun.
    made: u64,
    /// None where this side is one process.
    errors: Option<ErrorLimit>,
    random: Random,
    out: Out,
    /// When the timers of each peer are due.
    due: BTreeSet<(Instant, IdentityKey)>,
}

/// Who has the addresses of the Internet, which lie in prefixes as wide as a default route (`internet`): nobody, unless this says so.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Internet {
    /// Those in a prefix of this gateway's: this machine lets members out.
    pub is_own: bool,
    /// Those in other members' prefixes: this side uses an exit.
    pub is_used: bool,
}

/// The handshakes that were begun lately: each by who sent it and by its ephemeral key, and by its packet, of which neither is ever used twice. As
/// many as the limit of handshakes lets come.
///
/// The proofs of a sealed packet cover the ends of its payload alone: whoever carries one can make any number of it that differ in the ephemeral
/// key, and all of them are one packet by handle and nonce.
#[derive(Default)]
struct Begun {
    known: HashSet<BegunBy>,
    by_time: VecDeque<(Instant, BegunBy)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum BegunBy {
    Ephemeral(IdentityKey, [u8; 32]),
    Packet(Handle, u64),
}

impl Begun {
    /// Hops take no packet that is older, nor as much ahead.
    const REMEMBERED: Duration = Duration::from_secs(icing::MAX_FRESHNESS as u64 + 2);

    /// What a handshake is known by.
    fn keys(sender: IdentityKey, noise: &[u8], packet: (Handle, u64)) -> impl Iterator<Item = BegunBy> {
        let ephemeral = noise.first_chunk().map(|ephemeral| BegunBy::Ephemeral(sender, *ephemeral));
        [BegunBy::Packet(packet.0, packet.1)].into_iter().chain(ephemeral)
    }

    fn is_new(&mut self, mut keys: impl Iterator<Item = BegunBy>, now: Instant) -> bool {
        while let Some((_, key)) = self.by_time.pop_front_if(|(at, _)| now.since(*at) > Self::REMEMBERED) {
            self.known.remove(&key);
        }
        keys.all(|key| !self.known.contains(&key))
    }

    fn note(&mut self, keys: impl Iterator<Item = BegunBy>, now: Instant) {
        for key in keys {
            if self.known.insert(key) {
                self.by_time.push_back((now, key));
            }
        }
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

impl Machine {
    /// A machine that knows nobody yet.
    fn new(config: Config, kernel: CpuKernel) -> Self {
        let (secrets, agreed) = (config.receiver.policy.secrets, config.receiver.policy.agreed);
        let started = config.receiver.started.0;
        let mut random = Random { seed: config.seed, next: 0 };
        let key = *random.secret().expose().first_chunk().expect("16 of 32");
        Self {
            identity: config.identity,
            realm: config.realm,
            noise: Arc::new(StaticKey(config.noise)),
            secrets,
            agreed,
            handshakes: AnswerLimit::new(HANDSHAKES.0, HANDSHAKES.1, 1),
            begun: Begun::default(),
            started,
            looked_at: None,
            made: 0,
            neighbours: config.neighbours,
            policies: config.policies,
            members: BTreeMap::new(),
            nodes: None,
            senders: HashMap::new(),
            prefixes: InnerPrefixes::default(),
            name_blocks: config.name_blocks,
            internet: Internet::default(),
            admitted: None,
            names: HashMap::new(),
            peers: BTreeMap::new(),
            flows: FlowTable::new(&Keyed(key)),
            sessions: HashMap::new(),
            errors: (!config.is_process).then(ErrorLimit::default),
            random,
            out: Out {
                queue: VecDeque::new(),
                stamper: Stamper::new(kernel),
                counters: Counters::default(),
                message: Vec::new(),
            },
            due: BTreeSet::new(),
        }
    }

    fn reseed(&mut self, entropy: &Seed) {
        self.random.seed = kdf::derive("wayleave/gateway/stir/v1", self.random.seed.expose(), entropy.expose());
    }

    /// Takes a reload; keys and neighbours stay if its receiver's policy contradicts itself.
    fn reload(&mut self, reload: Reload, is_sound: bool, now: Now) {
        let Reload { members, prefixes, internet, admitted, nodes, policies, neighbours, names, receiver } = reload;
        (self.internet, self.admitted) = (internet, admitted);
        self.set_realm(members, prefixes);
        if is_sound {
            (self.secrets, self.agreed, self.neighbours) = (receiver.secrets, receiver.agreed, neighbours);
        }
        self.set_nodes(nodes, policies, Some(names), now);
    }

    fn set_realm(&mut self, members: Vec<Member>, prefixes: InnerPrefixes) {
        let others: Vec<Member> = members.into_iter().filter(|member| member.identity != self.identity).collect();
        let of = |(number, member): (usize, &Member)| {
            let sender = (member.identity, number);
            member.ids.iter().map(move |id| (*id, sender)).collect::<Vec<_>>()
        };
        self.senders = others.iter().enumerate().flat_map(of).collect();
        self.handshakes.retune(HANDSHAKES.0, HANDSHAKES.1, others.len());
        let traffic: BTreeMap<IdentityKey, Traffic> = self.traffic().collect();
        let remote = |member: Member| {
            let Member { identity, noise, addresses, .. } = member;
            (identity, Remote { noise, addresses, traffic: traffic.get(&identity).copied().unwrap_or_default() })
        };
        let before = std::mem::replace(&mut self.members, others.into_iter().map(remote).collect());
        self.prefixes = prefixes;
        // A key that changed ends the sessions under the old one.
        let is_same = |identity: &IdentityKey, members: &BTreeMap<IdentityKey, Remote>| {
            let noise =
                |members: &BTreeMap<IdentityKey, Remote>| members.get(identity).map(|remote| remote.noise.to_bytes());
            noise(members).is_some() && noise(members) == noise(&before)
        };
        let Self { peers, members, sessions, due, .. } = self;
        peers.retain(|identity, _| is_same(identity, members));
        due.retain(|(_, identity)| peers.contains_key(identity));
        sessions.retain(|_, identity| peers.contains_key(identity));
    }

    fn set_nodes(
        &mut self,
        nodes: BTreeSet<IdentityKey>,
        policies: Option<Vec<PathPolicy>>,
        names: Option<Vec<(IpAddr, Name)>>,
        now: Now,
    ) {
        let left = self.peers.iter_mut().filter_map(|(peer, known)| known.leave_unknown(&nodes).then_some(*peer));
        let left: Vec<IdentityKey> = left.collect();
        self.nodes = Some(nodes);
        if let Some(policies) = policies {
            self.set_policies(policies, now);
        }
        // Before what waits is sent, which may be for them.
        if let Some(names) = names {
            self.set_names(names);
        }
        left.iter().for_each(|peer| self.work(peer, now));
    }

    fn set_policies(&mut self, policies: Vec<PathPolicy>, now: Now) {
        let has_same_names =
            policies.iter().map(|policy| &policy.name).eq(self.policies.iter().map(|policy| &policy.name));
        self.policies = policies;
        if has_same_names {
            let Self { peers, policies, .. } = self;
            let mut left = Vec::new();
            for (identity, peer) in peers {
                if peer.leave_forbidden(policies) {
                    left.push(*identity);
                }
            }
            left.iter().for_each(|peer| self.work(peer, now));
            return;
        }
        self.names.clear();
        // Routes know their policies by number.
        self.peers.values_mut().for_each(|peer| peer.routes.clear());
    }

    fn set_names(&mut self, names: impl IntoIterator<Item = (IpAddr, Name)>) {
        self.names.clear();
        self.add_names(names);
    }

    fn add_names(&mut self, names: impl IntoIterator<Item = (IpAddr, Name)>) {
        let place = |name: &Name| self.policies.iter().position(|policy| policy.name == name.policy);
        let known = names.into_iter().filter_map(|(address, name)| Some((address, (place(&name)?, name.node))));
        self.names.extend(known);
    }

    fn traffic(&self) -> impl Iterator<Item = (IdentityKey, Traffic)> {
        let of = |(identity, remote): (&IdentityKey, &Remote)| {
            (*identity, self.peers.get(identity).map_or(remote.traffic, |peer| peer.traffic))
        };
        self.members.iter().map(of)
    }

    fn deadline(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    fn set_paths(&mut self, peer: IdentityKey, paths: Result<Vec<Path>, String>, now: Now) {
        let Self { peers, identity, neighbours, nodes: known_nodes, .. } = self;
        let Some(known) = peers.get_mut(&peer) else { return };
        let is_known = |path: &Path| known_nodes.as_ref().is_none_or(|known| are_known(&identities(path), known));
        match paths {
            Ok(paths) if !paths.is_empty() && !paths.iter().any(is_known) => {
                let why = "every path crosses a node that is not known here yet, or is no member any more";
                known.fail_paths(why.to_owned(), now);
            }
            Ok(mut paths) => {
                paths.retain(is_known);
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

    fn set_proofs(&mut self, peer: IdentityKey, hash: PathHash, path: Result<Path, String>, now: Now) {
        let start = self.random.number();
        let Self { peers, secrets, agreed, .. } = self;
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
            // Forwarding waits for this: the realm's nodes cost no agreement here.
            let agreed = |other: &NodeId| agreed.get(&secret.id(), other).cloned();
            let sender = path.sender_with(path.version(), secret, agreed).map_err(|error| error.to_string())?;
            Ok((Lane::new(sender, path.expiry(), start, now), path))
        });
        match lane {
            Ok((lane, path)) => candidate.prove(lane, &path, now),
            Err(why) => candidate.refuse(why, now),
        }
        self.work(&peer, now);
    }

    fn link_closed(&mut self, link: u16, now: Now) {
        let mut affected = Vec::new();
        for (identity, peer) in &mut self.peers {
            let candidates = peer.candidates.iter_mut().filter(|candidate| candidate.link == link);
            let dead = candidates.map(|candidate| u64::from(candidate.die(now))).sum::<u64>();
            if dead > 0 {
                self.out.counters.dead += dead;
                self.out.push(Output::Event(Event::PathDied { peer: *identity }));
                affected.push(*identity);
            }
        }
        affected.iter().for_each(|identity| self.work(identity, now));
    }

    /// If the wall clock went back, what was counted by it begins anew: nodes drop packets whose nonces are ahead of their clocks, and nobody
    /// could begin a handshake until the time of this process's start had come again.
    fn look_at_clock(&mut self, now: Now) {
        let Some(last) = self.looked_at.replace(now) else { return };
        let expected = last.unix.0.saturating_add(now.instant.since(last.instant).as_micros() as u64);
        let back = expected.saturating_sub(now.unix.0);
        if back < STEP {
            return;
        }
        self.started = self.started.saturating_sub(back);
        let peers: Vec<IdentityKey> = self.peers.keys().copied().collect();
        peers.iter().for_each(|peer| self.bring_back(peer, now));
    }

    /// Begins the count of nonces anew on lanes where it is ahead of the clock: that went back, maybe while another thread had read it before.
    fn bring_back(&mut self, peer: &IdentityKey, now: Now) {
        let Self { peers, random, .. } = self;
        let candidates = peers.get_mut(peer).into_iter().flat_map(|peer| &mut peer.candidates);
        let ahead = candidates.flat_map(Candidate::lanes).filter(|lane| lane.is_ahead(now));
        ahead.for_each(|lane| lane.begin_again(random.number(), now));
    }

    fn handle_timeout(&mut self, now: Now) {
        let due: Vec<IdentityKey> =
            self.due.iter().take_while(|(at, _)| *at <= now.instant).map(|(_, peer)| *peer).collect();
        self.look_at_clock(now);
        if due.is_empty() {
            return;
        }
        for peer in due {
            self.out.counters.visits += 1;
            self.bring_back(&peer, now);
            self.work(&peer, now);
            let Some(known) = self.peers.get_mut(&peer) else { continue };
            for waiting in known.take_overdue(now.instant, TIMEOUT) {
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
                continue;
            }
            let due = known.deadline(now.instant).unwrap_or(now.instant + TICK);
            self.schedule(&peer, due);
        }
        self.flows.handle_timeout(now.instant);
    }

    /// Sets when the timers of a peer are due.
    fn schedule(&mut self, identity: &IdentityKey, at: Instant) {
        let Some(peer) = self.peers.get_mut(identity) else { return };
        if peer.due != at {
            self.due.remove(&(peer.due, *identity));
            self.due.insert((at, *identity));
            peer.due = at;
        }
    }

    /// A peer is in use: its timers are due soon.
    pub(super) fn wake(&mut self, identity: &IdentityKey, now: Now) {
        let soon = now.instant + TICK;
        if self.peers.get(identity).is_some_and(|peer| soon < peer.due) {
            self.schedule(identity, soon);
        }
    }

    fn end(&mut self, peer: &IdentityKey) {
        if let Some(known) = self.peers.remove(peer) {
            self.due.remove(&(known.due, *peer));
            if let Some(remote) = self.members.get_mut(peer) {
                remote.traffic = known.traffic;
            }
            for index in known
                .sessions
                .iter()
                .map(|known| known.index)
                .chain(known.starting.iter().map(|starting| starting.index))
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
            let traffic = self.members.get(&identity).map_or(Traffic::default(), |remote| remote.traffic);
            let due = now.instant + TICK;
            self.peers.insert(identity, Peer::new(traffic, due));
            self.due.insert((due, identity));
        }
        self.wake(&identity, now);
        self.peers.get_mut(&identity)
    }
}
