//! Speakers, proxies and the wires between them, in memory and without time of their own.
#![allow(unreachable_pub, dead_code, reason = "each test uses its part of the net")]

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use wayleave_attestation::chain::TYPE_CODE;
use wayleave_attestation::pipeline::policy::Policy;
use wayleave_attestation::pipeline::{Job, PipelineConfig, Reserve};
use wayleave_attestation::pki::{AttestedSince, RegisteredKey, Strictness, View, Vrp};
use wayleave_attestation::proxy::handover::Handover;
use wayleave_attestation::proxy::session_pair::{self, Side};
use wayleave_attestation::proxy::{EndConfig, Event, Input, Output, PairOptions, Proxy, ProxyConfig};
use wayleave_attestation::sign::{KeyPair, KeyRing};
use wayleave_attestation::suite::{self, SuiteId};
use wayleave_attestation::validate::Rules;
use wayleave_bgp::peer::{self, Peer, PeerEvent, TcpRequest};
use wayleave_bgp::rib::MaxPrefixes;
use wayleave_bgp::session::{self, Config, ConnectionId, Ended, PeerAsn, Stop, StopReason};
use wayleave_bgp::{AttributeCode, Attributes, Origin, Update};
use wayleave_core::{Asn, Instant, Machine, Now, Prefix, UnixTime};
use wayleave_crypto::secret::Secret;

pub use super::network::p;

/// The attribute's type code in these tests.
pub const ATTRIBUTE: AttributeCode = AttributeCode(TYPE_CODE);
/// When these tests begin, in seconds since 1970.
pub const START: u64 = 1_800_000_000;

/// One end of a link.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum At {
    /// A speaker's session, by place.
    Speaker(usize, usize),
    /// A proxy's pair and side.
    Proxy(usize, usize, Side),
}

/// A speaker that passes routes on as a router does.
pub struct Speaker {
    pub asn: Asn,
    pub id: u8,
    pub peers: Vec<Peer>,
    /// By session and prefix, as they came.
    pub learned: BTreeMap<(usize, Prefix), Attributes>,
    pub own: BTreeMap<Prefix, Attributes>,
    pub ups: Vec<session::Established>,
    pub ends: Vec<Ended>,
    pub failed: Vec<Ended>,
    pub ends_of_rib: usize,
    pub updates: Vec<(usize, Update)>,
    /// Takes this attribute off what it passes on.
    pub strips: bool,
    /// It passes nothing on.
    pub is_end: bool,
    /// It takes no further word of routes.
    pub is_deaf: bool,
    /// Sessions within the AS: no prepending.
    pub internal: Vec<bool>,
}

struct Wire {
    ends: [At; 2],
    ids: [ConnectionId; 2],
    to: [VecDeque<u8>; 2],
    closed: [bool; 2],
    notified: [bool; 2],
}

/// All of it.
pub struct Net {
    pub speakers: Vec<Speaker>,
    pub proxies: Vec<Proxy>,
    pub now: Now,
    pub events: Vec<(usize, Event)>,
    /// What went over each link, either way, by the end that sent it.
    pub seen: BTreeMap<At, Vec<u8>>,
    /// Slots of few-time keys become durable at once.
    pub durable: bool,
    /// Those that were to become so: proxy, id, key and slot.
    pub persists: Vec<(usize, u64, Vec<u8>, u64)>,
    /// Jobs that are not done yet, by proxy.
    jobs: VecDeque<(usize, Job)>,
    links: Vec<(At, At)>,
    wires: Vec<Wire>,
    next: u64,
    /// Octets delivered at once.
    pub chunk: usize,
    /// Jobs that wait for [`Net::run_job`], where they are not run at once.
    pub pool: Option<VecDeque<(usize, Job)>>,
}

impl Net {
    pub fn new() -> Self {
        Self {
            speakers: Vec::new(),
            proxies: Vec::new(),
            now: Now { instant: Instant(1_000_000_000), unix: UnixTime(START * 1_000_000) },
            events: Vec::new(),
            seen: BTreeMap::new(),
            jobs: VecDeque::new(),
            durable: true,
            persists: Vec::new(),
            links: Vec::new(),
            wires: Vec::new(),
            next: 1,
            chunk: usize::MAX,
            pool: None,
        }
    }

    /// Adds a speaker without sessions.
    pub fn speaker(&mut self, asn: u32) -> usize {
        let id = self.speakers.len() as u8 + 1;
        self.speakers.push(Speaker {
            asn: Asn(asn),
            id,
            peers: Vec::new(),
            learned: BTreeMap::new(),
            own: BTreeMap::new(),
            ups: Vec::new(),
            ends: Vec::new(),
            failed: Vec::new(),
            ends_of_rib: 0,
            updates: Vec::new(),
            strips: false,
            is_end: false,
            is_deaf: false,
            internal: Vec::new(),
        });
        self.speakers.len() - 1
    }

    /// Adds a session of a speaker's that does not begin by itself; its place.
    pub fn session(&mut self, speaker: usize, change: impl FnOnce(&mut Config)) -> At {
        let of = &mut self.speakers[speaker];
        let mut config = Config::new(of.asn, [192, 0, 2, of.id].into(), PeerAsn::Any);
        config.passive = true;
        change(&mut config);
        of.internal.push(config.peer_asn == PeerAsn::Exactly(of.asn));
        let place = of.peers.len();
        of.peers.push(Peer::new(config, of.id.into(), self.now));
        At::Speaker(speaker, place)
    }

    /// Adds a proxy with so many pairs.
    pub fn proxy(&mut self, config: ProxyConfig, ring: KeyRing) -> usize {
        let proxy = Proxy::new(config, ring, &HashMap::new(), self.proxies.len() as u64, self.now);
        self.proxies.push(proxy);
        self.proxies.len() - 1
    }

    /// Joins two ends; the first one connects.
    pub fn link(&mut self, a: At, b: At) {
        self.links.push((a, b));
    }

    /// All begin, and all that follows happens.
    pub fn start(&mut self) {
        for speaker in 0..self.speakers.len() {
            for place in 0..self.speakers[speaker].peers.len() {
                self.give(At::Speaker(speaker, place), session::Input::Start);
            }
        }
        for proxy in 0..self.proxies.len() {
            self.tell(proxy, Input::ClockSynchronised(true));
            for place in 0..self.proxies[proxy].pairs() {
                self.tell(proxy, Input::Pair(place, session_pair::Input::Start));
            }
        }
        for link in 0..self.links.len() {
            self.call(link);
        }
        self.settle();
    }

    /// A connection by the link's first end, unless a proxy makes its own.
    fn call(&mut self, link: usize) {
        let (from, _) = self.links[link];
        if matches!(from, At::Speaker(..)) {
            self.connect(link);
        }
    }

    fn connect(&mut self, link: usize) {
        let (from, to) = self.links[link];
        let ids = [ConnectionId(self.next), ConnectionId(self.next + 1)];
        self.next += 2;
        let wire = Wire { ends: [from, to], ids, to: Default::default(), closed: [false; 2], notified: [false; 2] };
        self.wires.push(wire);
        let outgoing = matches!(from, At::Proxy(..));
        self.give(from, session::Input::Connected { connection: ids[0], outgoing });
        self.give(to, session::Input::Connected { connection: ids[1], outgoing: false });
    }

    pub fn give(&mut self, at: At, input: session::Input) {
        match at {
            At::Speaker(speaker, place) => {
                self.speakers[speaker].peers[place].handle(peer::Input::Session(input), self.now);
                self.drain_speaker(speaker);
            }
            At::Proxy(proxy, place, side) => {
                self.tell(proxy, Input::Pair(place, session_pair::Input::Wire(side, input)));
            }
        }
    }

    pub fn tell(&mut self, proxy: usize, input: Input) {
        self.proxies[proxy].handle(input, self.now);
        self.drain_proxy(proxy);
    }

    /// Delivers until nothing is on the way. Jobs take longer than that: one is done each time when nothing else is left.
    pub fn settle(&mut self) {
        for _ in 0..1_000_000 {
            if !self.deliver() && !self.finish_job() {
                return;
            }
        }
        panic!("it never settles");
    }

    /// Does the first job that waits. Returns whether there was one.
    fn finish_job(&mut self) -> bool {
        let Some((proxy, job)) = self.jobs.pop_front() else { return false };
        self.tell(proxy, Input::JobDone(job.run()));
        true
    }

    /// Time passes.
    pub fn wait(&mut self, span: Duration) {
        let end = self.now.instant + span;
        loop {
            let speakers = self.speakers.iter().flat_map(|speaker| speaker.peers.iter().filter_map(Peer::deadline));
            let proxies = self.proxies.iter().filter_map(Proxy::deadline);
            let next = speakers.chain(proxies).min().filter(|next| *next <= end);
            let Some(next) = next else { break };
            self.set_instant(next.max(self.now.instant));
            self.fire();
        }
        self.set_instant(end);
        self.fire();
    }

    fn set_instant(&mut self, instant: Instant) {
        let passed = instant.since(self.now.instant);
        self.now.instant = instant;
        self.now.unix.0 += passed.as_micros() as u64;
    }

    pub fn fire(&mut self) {
        for speaker in 0..self.speakers.len() {
            for place in 0..self.speakers[speaker].peers.len() {
                self.speakers[speaker].peers[place].handle_timeout(self.now);
            }
            self.drain_speaker(speaker);
        }
        for proxy in 0..self.proxies.len() {
            self.proxies[proxy].handle_timeout(self.now);
            self.drain_proxy(proxy);
        }
        self.settle();
    }

    /// The speaker announces a route of its own, or changes it.
    pub fn announce(&mut self, speaker: usize, prefix: &str) {
        self.announce_with(speaker, prefix, |_| ());
    }

    /// Announces many prefixes before anything is delivered.
    pub fn announce_all(&mut self, speaker: usize, prefixes: &[String]) {
        for prefix in prefixes {
            let mut edit = Attributes::builder();
            edit.origin(Origin::Igp).ipv4_next_hop([192, 0, 2, self.speakers[speaker].id].into());
            self.speakers[speaker].own.insert(p(prefix), edit.finish());
            self.tell_all(speaker, p(prefix));
        }
        self.settle();
    }

    pub fn announce_with(
        &mut self,
        speaker: usize,
        prefix: &str,
        change: impl FnOnce(&mut wayleave_bgp::AttributesEditor),
    ) {
        let mut edit = Attributes::builder();
        edit.origin(Origin::Igp).ipv4_next_hop([192, 0, 2, self.speakers[speaker].id].into());
        change(&mut edit);
        self.speakers[speaker].own.insert(p(prefix), edit.finish());
        self.tell_all(speaker, p(prefix));
        self.settle();
    }

    pub fn withdraw(&mut self, speaker: usize, prefix: &str) {
        self.speakers[speaker].own.remove(&p(prefix));
        self.tell_all(speaker, p(prefix));
        self.settle();
    }

    /// What the speaker has of a prefix.
    pub fn has(&self, speaker: usize, prefix: &str) -> Option<&Attributes> {
        let mut routes = self.speakers[speaker].learned.iter().filter(|((_, of), _)| *of == p(prefix));
        routes.next().map(|(_, attributes)| attributes)
    }

    /// The speaker's session is shut, with a word.
    pub fn shut(&mut self, at: At, text: &str) {
        let reason = StopReason::Shutdown(text.to_owned());
        self.give(at, session::Input::Stop(Stop { administrative: true, reason }));
        self.settle();
    }

    fn tell_all(&mut self, speaker: usize, prefix: Prefix) {
        let of = &mut self.speakers[speaker];
        // The own route first, then that of the first session that has one: a router has one best.
        let best = match of.own.get(&prefix) {
            Some(own) => Some((usize::MAX, own.clone())),
            None => {
                let mut routes = of.learned.iter().filter(|((_, of), _)| *of == prefix);
                routes.next().map(|((from, _), attributes)| (*from, attributes.clone()))
            }
        };
        for place in 0..of.peers.len() {
            let passed = match &best {
                Some((from, _)) if *from == place || (of.is_end && *from != usize::MAX) => None,
                Some((from, attributes)) => {
                    let internal = of.internal[place];
                    // What came from within the AS does not go to others within it.
                    let held = internal && *from != usize::MAX && of.internal[*from];
                    let mut edit = attributes.to_forward().edit();
                    if *from == usize::MAX {
                        edit = attributes.edit();
                    }
                    if of.strips {
                        edit.remove(ATTRIBUTE);
                    }
                    if internal {
                        edit.local_pref(Some(100));
                    } else {
                        edit.prepend(of.asn, 1).local_pref(None).ipv4_next_hop([192, 0, 2, of.id].into());
                    }
                    (!held).then(|| edit.finish())
                }
                None => None,
            };
            of.peers[place].handle(peer::Input::Route { prefix, attributes: passed }, self.now);
        }
        self.drain_speaker(speaker);
    }

    fn drain_speaker(&mut self, speaker: usize) {
        loop {
            let of = &mut self.speakers[speaker];
            let next = of.peers.iter_mut().enumerate().find_map(|(place, peer)| Some((place, peer.poll()?)));
            let Some((place, output)) = next else { return };
            let at = At::Speaker(speaker, place);
            match output {
                peer::Output::Tcp(request) => self.request(at, request),
                peer::Output::EndOfRib(_)
                | peer::Output::RouteRefresh { .. }
                | peer::Output::Rejected(_)
                | peer::Output::Unsendable(_) => {}
                peer::Output::Established(up) => of.ups.push(*up),
                peer::Output::Ended(ended) => of.ends.push(ended),
                peer::Output::Failed(ended) => of.failed.push(ended),
                peer::Output::Event(event) => self.on_peer(speaker, place, event),
            }
        }
    }

    fn on_peer(&mut self, speaker: usize, place: usize, event: PeerEvent) {
        let of = &mut self.speakers[speaker];
        let mut changed = Vec::new();
        match event {
            PeerEvent::Up | PeerEvent::Stale(_) => {}
            PeerEvent::EndOfRib => of.ends_of_rib += 1,
            PeerEvent::Down => {
                changed = of.learned.keys().filter(|(from, _)| *from == place).map(|(_, prefix)| *prefix).collect();
                of.learned.retain(|(from, _), _| *from != place);
            }
            PeerEvent::Update(_) if of.is_deaf => {}
            PeerEvent::Update(update) => {
                for nlri in &update.withdrawn {
                    of.learned.remove(&(place, nlri.prefix));
                    changed.push(nlri.prefix);
                }
                for nlri in &update.announced {
                    let attributes = update.attributes.clone().expect("announced with attributes");
                    // A router drops what has passed it.
                    if attributes.as_path().asns().any(|asn| asn == of.asn) {
                        continue;
                    }
                    of.learned.insert((place, nlri.prefix), attributes);
                    changed.push(nlri.prefix);
                }
                of.updates.push((place, *update));
            }
        }
        changed.into_iter().for_each(|prefix| self.tell_all(speaker, prefix));
    }

    /// Does what a driver does with connections.
    fn request(&mut self, at: At, request: TcpRequest) {
        match request {
            // Speakers are connected when the net starts.
            TcpRequest::Connect { .. } if matches!(at, At::Speaker(..)) => {}
            TcpRequest::Connect { .. } => {
                let link = self.links.iter().position(|(from, _)| *from == at).expect("a link that it may open");
                self.connect(link);
            }
            TcpRequest::Send { connection, bytes } => self.send(at, connection, &bytes),
            TcpRequest::Close { connection } => self.close(at, connection),
        }
    }

    fn drain_proxy(&mut self, proxy: usize) {
        while let Some(output) = self.proxies[proxy].poll() {
            match output {
                Output::Tcp { pair, side, request } => self.request(At::Proxy(proxy, pair, side), request),
                Output::Job(job) if self.pool.is_some() => {
                    self.pool.as_mut().expect("a pool").push_back((proxy, job));
                }
                Output::Job(job) => self.jobs.push_back((proxy, job)),
                Output::Persist(Reserve { id, public, slot }) => {
                    self.persists.push((proxy, id, public, slot));
                    if self.durable {
                        self.proxies[proxy].handle(Input::Persisted(id), self.now);
                    }
                }
                Output::Event(event) => self.events.push((proxy, event)),
            }
        }
    }

    /// Runs the job of the pool that waits longest; returns whether there was one.
    pub fn run_job(&mut self) -> bool {
        let Some((proxy, job)) = self.pool.as_mut().and_then(VecDeque::pop_front) else { return false };
        self.tell(proxy, Input::JobDone(job.run()));
        true
    }

    fn send(&mut self, at: At, connection: ConnectionId, bytes: &[u8]) {
        self.seen.entry(at).or_default().extend_from_slice(bytes);
        for wire in &mut self.wires {
            for side in [0, 1] {
                if wire.ends[side] == at && wire.ids[side] == connection && !wire.closed[1 - side] {
                    wire.to[1 - side].extend(bytes);
                }
            }
        }
    }

    fn close(&mut self, at: At, connection: ConnectionId) {
        for wire in &mut self.wires {
            for side in [0, 1] {
                if wire.ends[side] == at && wire.ids[side] == connection {
                    wire.closed[side] = true;
                }
            }
        }
    }

    fn deliver(&mut self) -> bool {
        for at in 0..self.wires.len() {
            for side in [0, 1] {
                let wire = &mut self.wires[at];
                if wire.closed[side] {
                    continue;
                }
                let (end, connection) = (wire.ends[side], wire.ids[side]);
                let count = wire.to[side].len().min(self.chunk);
                if count > 0 {
                    let bytes: Vec<u8> = wire.to[side].drain(..count).collect();
                    self.give(end, session::Input::Bytes { connection, bytes });
                    return true;
                }
                if wire.closed[1 - side] && !wire.notified[side] {
                    wire.notified[side] = true;
                    wire.closed[side] = true;
                    self.give(end, session::Input::Closed { connection });
                    return true;
                }
            }
        }
        self.wires.retain(|wire| wire.closed != [true; 2]);
        false
    }

    /// Octets go out as if `at` had sent them.
    pub fn inject(&mut self, at: At, octets: &[u8]) {
        let wires = self.wires.iter().flat_map(|wire| [0, 1].map(|side| (wire.ends[side], wire.ids[side])));
        let open: Vec<ConnectionId> = wires.filter(|(end, _)| *end == at).map(|(_, id)| id).collect();
        let connection = *open.last().expect("a connection");
        self.send(at, connection, octets);
        self.settle();
    }

    /// Cuts whatever connection `at` has.
    pub fn cut(&mut self, at: At) {
        for place in 0..self.wires.len() {
            let wire = &mut self.wires[place];
            if wire.ends.contains(&at) {
                wire.closed = [true; 2];
                let (ends, ids) = (wire.ends, wire.ids);
                for side in [0, 1] {
                    self.give(ends[side], session::Input::Closed { connection: ids[side] });
                }
            }
        }
        self.settle();
    }

    /// Speakers call again where nobody is connected.
    pub fn reconnect(&mut self) {
        for link in 0..self.links.len() {
            let (from, _) = self.links[link];
            let is_open = self.wires.iter().any(|wire| wire.ends.contains(&from) && wire.closed == [false; 2]);
            if matches!(from, At::Speaker(..)) && !is_open {
                self.give(from, session::Input::Start);
                self.call(link);
            }
        }
        self.settle();
    }
}

/// A proxy's configuration with defaults for `pairs` pairs; the outside end of each connects if `connects`.
pub fn config(asn: u32, pairs: usize, connects: bool) -> ProxyConfig {
    let end = |peer_asn, connects: bool| EndConfig {
        peer_asn,
        listens: !connects,
        connects,
        limits: MaxPrefixes::NONE,
        first_as: peer_asn == PeerAsn::Any,
    };
    let options = |place: usize| PairOptions {
        name: format!("pair {place}"),
        ends: [end(PeerAsn::Exactly(Asn(asn)), false), end(PeerAsn::Any, connects)],
        max_octets: 2_800,
        max_octets_extended: 60_000,
        most_memory: 1 << 30,
        handover: Handover::default(),
    };
    ProxyConfig {
        pipeline: PipelineConfig {
            asn: Asn(asn),
            attribute: ATTRIBUTE,
            rules: Rules::default(),
            uncertainty: 600,
            lifetime: 24 * 60,
            policy: Policy::default(),
            own: None,
            announces_unauthorised: false,
        },
        capability: 240,
        least_strength: 112,
        require_post_quantum: false,
        pairs: (0..pairs).map(options).collect(),
    }
}

/// The keys of an AS: the same for the same AS.
pub fn ring(asn: u32, suites: &[SuiteId]) -> KeyRing {
    let pair = |id: &SuiteId| KeyPair {
        suite: *id,
        key: suite::of(*id).expect("known").generate(&seed(asn, *id)),
        registered: false,
    };
    KeyRing { pairs: suites.iter().map(pair).collect() }
}

pub fn seed(asn: u32, suite: SuiteId) -> Secret<32> {
    let mut seed = [suite as u8; 32];
    seed[..4].copy_from_slice(&asn.to_be_bytes());
    Secret::new(seed)
}

/// A view in which these ASes registered their keys and may originate these prefixes.
pub fn view(generation: u64, registered: &[u32], owned: &[(u32, &str)]) -> View {
    let mut view = View::new(generation);
    for asn in registered {
        for pair in ring(*asn, &[SuiteId::KcEd25519]).pairs {
            let key = RegisteredKey {
                suite: pair.suite,
                public: pair.key.public().to_vec(),
                not_before: START - 3600,
                not_after: START + 400 * 86_400,
            };
            view.add_key(Asn(*asn), key);
        }
    }
    for (asn, prefix) in owned {
        view.add_vrp(Vrp { prefix: p(prefix), max_length: 32, asn: Asn(*asn) });
    }
    view
}

pub fn attested(view: &mut View, asn: u32, strictness: Strictness) {
    let since = AttestedSince { since: START - 3600, strictness, not_after: START + 400 * 86_400 };
    view.set_attested_since(Asn(asn), since);
}

pub fn shared(view: View) -> Input {
    Input::View(Arc::new(view))
}

/// An UPDATE of these attributes and this NLRI, as a bad peer may put it together.
pub fn update(attributes: &[u8], nlri: &[u8]) -> Vec<u8> {
    let length = |length: usize| u16::try_from(length).expect("short").to_be_bytes();
    let mut octets = vec![0xff; 16];
    octets.extend_from_slice(&length(23 + attributes.len() + nlri.len()));
    octets.extend_from_slice(&[2, 0, 0]);
    octets.extend_from_slice(&length(attributes.len()));
    octets.extend_from_slice(attributes);
    octets.extend_from_slice(nlri);
    octets
}
