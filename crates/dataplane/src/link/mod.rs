//! Sessions of the two ends of a link: neighbours prove themselves to each other from whatever address they have.
//!
//! Data are not wrapped: they carry proofs of their own. They count as a neighbour's when they come from the present address of its
//! session, and go to that address. The machine says nothing to strangers, bounds what it does for everybody, and believes an address
//! once it has answered (RFC 9000 section 8.2). `docs/wire/link.md` has every octet.

mod entry;
mod initiation_filter;
pub mod message;
mod reach;
mod size;
mod status;

use std::collections::hash_map::Entry as Vacancy;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use wayleave_core::{IdentityKey, Instant, Now, UnixTime};
use wayleave_crypto::dh::{DhPublic, DhSecret};
use wayleave_crypto::kdf;
use wayleave_crypto::secret::{Secret, Seed};

use crate::noise::{StaticKey, prologue};
use entry::Entry;
use initiation_filter::{InitiationFilter, Proof};
use message::{Message, Opening};

pub use entry::{DATA_PING, FLOWING, IDLE_PING, SESSION_LIFE, SILENT, UDP_RETRY};
pub use initiation_filter::{BURST_ALONE, COOKIE_LIFE};
pub use size::SIZES;
pub use status::{Clock, Counters, LinkStatus, State, Transport, Volume};

/// What sessions of links are, in the prologue of their handshakes.
const PROLOGUE: &str = "wayleave/link/v1";
/// An initiation may have been made this many microseconds ahead of our clock.
pub const MAX_AHEAD: u64 = 120_000_000;
/// Messages that may wait to be sent; what comes beyond is dropped.
const LIMIT_OUTPUTS: usize = 1 << 14;
const LIMIT_OCTETS: usize = 4 << 20;

/// Endpoints that are asked at a time, and how often they may be: each is a handshake's work.
const MOST_ASKED: usize = 64;
const ASKED_EACH: Duration = Duration::from_secs(3);

/// What the machine is set up with.
pub struct Config {
    pub identity: IdentityKey,
    /// The realm's public key.
    pub realm: [u8; 32],
    /// The static key of the node's membership.
    pub noise: Secret<32>,
    /// Random, and new for each life of the process.
    pub seed: Seed,
}

/// Where a neighbour is: the socket of the driver by which it is reached, and its address.
pub type At = (usize, SocketAddr);

/// A neighbour, by its membership and advert.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Peer {
    /// The link's number, which no other peer has.
    pub link: u16,
    pub identity: IdentityKey,
    pub noise: DhPublic,
    /// The sockets of the driver at which its packets may arrive.
    pub sockets: Vec<usize>,
    /// Where a session with it may begin; none if it can only come to us.
    pub endpoints: Vec<At>,
    /// The socket of the driver that carries datagrams over TLS, if it has one, and where a session by it may begin where UDP does not pass.
    pub tls: Option<usize>,
    pub tls_endpoints: Vec<SocketAddr>,
    /// Octets of the largest datagram that is worth a try.
    pub largest: u16,
}

/// A datagram that the driver is to send.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Datagram {
    pub socket: usize,
    pub to: SocketAddr,
    pub octets: Vec<u8>,
}

/// What all entries share.
struct Core {
    identity: IdentityKey,
    realm: [u8; 32],
    key: StaticKey,
    random: Random,
    /// What messages say that it is.
    time: UnixTime,
    outputs: VecDeque<Datagram>,
    /// The link of each session and handshake by our number of it.
    by_index: HashMap<u32, u16>,
    by_address: HashMap<At, u16>,
    /// Counts changes of `by_address`.
    moves: u64,
    /// Where neighbours say that they are.
    endpoints: HashSet<At>,
    waiting_octets: usize,
    /// The link that had the address which another one took last.
    displaced: Option<u16>,
    /// The link whose neighbour said last that it ends.
    closed: Option<u16>,
    counters: Counters,
}

impl Core {
    fn forget_address(&mut self, address: At, link: u16) {
        if self.by_address.get(&address) == Some(&link) {
            self.by_address.remove(&address);
            self.moves += 1;
        }
    }

    /// Returns the link that had the address.
    fn enter_address(&mut self, address: At, link: u16) -> Option<u16> {
        self.moves += 1;
        self.by_address.insert(address, link)
    }

    fn send(&mut self, (socket, to): At, octets: Vec<u8>) {
        if self.outputs.len() < LIMIT_OUTPUTS && self.waiting_octets < LIMIT_OCTETS {
            self.waiting_octets += octets.len();
            self.counters.sent += 1;
            self.outputs.push_back(Datagram { socket, to, octets });
        }
    }

    /// The prologue of a handshake with `responder`, whose initiation has this number.
    fn prologue(&self, responder: &IdentityKey, index: u32) -> Vec<u8> {
        let mut out = prologue(PROLOGUE, &self.realm, &[responder]);
        out.extend(message::initiation_head(index));
        out
    }

    fn fresh_index(&mut self, link: u16) -> u32 {
        loop {
            let index = self.random.number() as u32; // the lower half
            if let Vacancy::Vacant(free) = self.by_index.entry(index) {
                free.insert(link);
                return index;
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
        kdf::derive("wayleave/link/random/v1", self.seed.expose(), &self.next.to_be_bytes())
    }

    fn number(&mut self) -> u64 {
        u64::from_be_bytes(*self.secret().expose().first_chunk().expect("8 of 32"))
    }
}

/// The links of a node.
pub struct Links {
    core: Core,
    filter: InitiationFilter,
    entries: BTreeMap<u16, Entry>,
    by_identity: HashMap<IdentityKey, u16>,
    /// When something is due for each link.
    timers: BTreeSet<(Instant, u16)>,
    /// When endpoints were asked last.
    asked: Option<Instant>,
}

impl std::fmt::Debug for Links {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Links of {:?}: {}", self.core.identity, self.entries.len())
    }
}

impl Links {
    /// No links yet.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let public = DhSecret::from_seed(&config.noise).public();
        let mut random = Random { seed: config.seed, next: 0 };
        Self {
            filter: InitiationFilter::new(&public, random.secret()),
            core: Core {
                identity: config.identity,
                realm: config.realm,
                key: StaticKey(config.noise),
                random,
                time: UnixTime(0),
                outputs: VecDeque::new(),
                by_index: HashMap::new(),
                by_address: HashMap::new(),
                moves: 0,
                endpoints: HashSet::new(),
                waiting_octets: 0,
                displaced: None,
                closed: None,
                counters: Counters::default(),
            },
            entries: BTreeMap::new(),
            by_identity: HashMap::new(),
            timers: BTreeSet::new(),
            asked: None,
        }
    }

    /// Mixes in fresh entropy, so that a copy of the process draws other values.
    pub fn reseed(&mut self, entropy: &Seed) {
        let random = &mut self.core.random;
        random.seed = kdf::derive("wayleave/link/stir/v1", random.seed.expose(), entropy.expose());
    }

    /// Sets the neighbours. Who stays, with the same key, keeps its sessions and address, also under another number or socket.
    pub fn set_peers(&mut self, peers: Vec<Peer>, now: Now) {
        let mut before: HashMap<IdentityKey, Entry> = HashMap::new();
        for (_, entry) in std::mem::take(&mut self.entries) {
            before.insert(entry.peer.identity, entry);
        }
        self.core.by_index.clear();
        self.core.by_address.clear();
        self.core.moves += 1;
        self.core.endpoints.clear();
        self.by_identity.clear();
        self.timers.clear();
        for peer in peers {
            let (link, identity) = (peer.link, peer.identity);
            if identity == self.core.identity
                || self.entries.contains_key(&link)
                || self.by_identity.contains_key(&identity)
            {
                continue;
            }
            let kept = before.remove(&identity).filter(|entry| entry.peer.noise.to_bytes() == peer.noise.to_bytes());
            let mut entry = match kept {
                Some(mut entry) => {
                    entry.change(peer, now.instant);
                    entry
                }
                None => Entry::new(peer, self.core.identity, now.instant),
            };
            entry.register(&mut self.core);
            entry.timer = now.instant;
            self.timers.insert((entry.timer, link));
            self.by_identity.insert(identity, link);
            self.entries.insert(link, entry);
        }
    }

    /// The link by which a packet came that is no message of this protocol, if that is a neighbour's address.
    #[must_use]
    pub fn link_at(&self, from: At) -> Option<u16> {
        self.core.by_address.get(&from).copied()
    }

    /// Where packets for a link go, if its neighbour has an address.
    #[must_use]
    pub fn address(&self, link: u16) -> Option<At> {
        self.entries.get(&link)?.address
    }

    /// Where all neighbours are, and how often that has changed since the start.
    #[must_use]
    pub fn addresses(&self) -> (u64, &HashMap<At, u16>) {
        (self.core.moves, &self.core.by_address)
    }

    /// Octets of the largest datagram that is known to pass over a link.
    #[must_use]
    pub fn size(&self, link: u16) -> Option<u16> {
        self.entries.get(&link)?.size()
    }

    /// Notes packets that were sent over a link.
    pub fn note_sent(&mut self, link: u16, packets: u64, octets: u64, now: Instant) {
        if let Some(entry) = self.entries.get_mut(&link) {
            entry.sent.add(packets, octets);
            let due = entry.flows(now);
            sooner(&mut self.timers, entry, due);
        }
    }

    /// Notes packets that came over a link.
    pub fn note_received(&mut self, link: u16, packets: u64, octets: u64, now: Instant) {
        if let Some(entry) = self.entries.get_mut(&link) {
            entry.received.add(packets, octets);
            let due = entry.flows(now);
            sooner(&mut self.timers, entry, due);
        }
    }

    /// Takes a datagram for which [`message::is_message`] holds. Returns the link whose neighbour said by it that it ends.
    pub fn receive(&mut self, from: At, octets: &[u8], now: Now) -> Option<u16> {
        if octets.is_empty() {
            self.ended(from, now.instant);
            return None;
        }
        self.core.counters.received += 1;
        self.core.time = now.unix;
        let of_index = |core: &Core, index| core.by_index.get(&index).copied();
        let (link, is_taken) = match Message::decode(octets) {
            None => {
                self.core.counters.malformed += 1;
                return None;
            }
            Some(Message::Initiation { from: index, noise, proven, mac, cookie }) => {
                let proof = (proven, mac, cookie);
                if self.filter.admits(&mut self.core, from, index, proof, now.instant) {
                    self.initiated(from, index, noise, proof, now);
                }
                return None;
            }
            Some(Message::Response { to, noise }) => {
                let link = of_index(&self.core, to);
                (link, self.taken(link, from, |entry, core| entry.responded(core, from, (to, noise), now)))
            }
            Some(Message::Cookie { to, nonce, sealed }) => {
                let link = of_index(&self.core, to);
                (link, self.taken(link, from, |entry, _| entry.takes_cookie(from, (to, nonce, sealed), now)))
            }
            Some(Message::Sealed { to, number, sealed }) => {
                let link = of_index(&self.core, to);
                (link, self.taken(link, from, |entry, core| entry.opened(core, from, (to, number, sealed), now)))
            }
        };
        match link.filter(|_| is_taken) {
            None => self.core.counters.refused += 1,
            Some(link) => self.schedule(link, now.instant),
        }
        if let Some(other) = self.core.displaced.take().filter(|other| Some(*other) != link) {
            if let Some(entry) = self.entries.get_mut(&other) {
                entry.lose_address(now.instant);
            }
            self.schedule(other, now.instant);
        }
        self.core.closed.take()
    }

    /// The connection is over by which a neighbour was reached: it is begun with anew, at once.
    fn ended(&mut self, from: At, now: Instant) {
        let link = self.link_at(from);
        if let Some(entry) = link.and_then(|link| self.entries.get_mut(&link)) {
            entry.connection_ended(now);
        }
        link.iter().for_each(|link| self.schedule(*link, now));
    }

    fn taken(&mut self, link: Option<u16>, from: At, take: impl FnOnce(&mut Entry, &mut Core) -> bool) -> bool {
        let entry = link.and_then(|link| self.entries.get_mut(&link)).filter(|entry| entry.is_at(from.0));
        entry.is_some_and(|entry| take(entry, &mut self.core))
    }

    /// Looks anew when something is due for a link.
    fn schedule(&mut self, link: u16, now: Instant) {
        if let Some(entry) = self.entries.get_mut(&link) {
            self.timers.remove(&(entry.timer, link));
            entry.timer = entry.deadline(now);
            self.timers.insert((entry.timer, link));
        }
    }

    /// Takes an initiation that the filter has let in.
    fn initiated(&mut self, from: At, index: u32, noise: &[u8], proof: Proof<'_>, now: Now) {
        let core = &mut self.core;
        let prologue = core.prologue(&core.identity, index);
        let received = core.key.receive(&prologue, core.random.secret(), noise);
        let opened = received.ok().and_then(|(key, payload, answering)| {
            let opening = Opening::decode(&payload).ok()?;
            Some((key, opening, answering))
        });
        let Some((key, opening, answering)) = opened else {
            core.counters.refused += 1;
            return;
        };
        let entry = self.by_identity.get(&opening.identity).and_then(|link| self.entries.get_mut(link));
        let is_whose = |entry: &&mut Entry| entry.peer.noise.to_bytes() == key.to_bytes() && entry.is_at(from.0);
        let Some(entry) = entry.filter(is_whose) else {
            core.counters.strangers += 1;
            return;
        };
        if entry.answers_again(core, from, noise) {
            return;
        }
        let has_cookie = self.filter.has_cookie(core, from, proof, now.instant);
        if entry.is_fresh(opening.made, has_cookie, now) {
            entry.answer(core, (from, index, noise), answering, &opening, now);
            let link = entry.peer.link;
            self.schedule(link, now.instant);
        } else {
            // A wrong clock, or somebody repeats what was said: who receives at this address shows it.
            core.counters.stale += 1;
            self.filter.ask_cookie(core, from, index, proof.1);
        }
    }

    /// Does what is due by time.
    pub fn handle_timeout(&mut self, now: Now) {
        self.core.time = now.unix;
        while let Some((due, link)) = self.timers.first().copied().filter(|(due, _)| *due <= now.instant) {
            self.timers.remove(&(due, link));
            let Some(entry) = self.entries.get_mut(&link) else { continue };
            // What is due again at once is looked at in the next turn.
            entry.timer = entry.work(&mut self.core, now).max(Instant(now.instant.0.saturating_add(1)));
            self.timers.insert((entry.timer, link));
        }
    }

    /// When [`Links::handle_timeout`] is to be called next.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.timers.first().map_or(Instant(u64::MAX), |(due, _)| *due)
    }

    /// The next datagram to send.
    pub fn poll(&mut self) -> Option<Datagram> {
        let datagram = self.core.outputs.pop_front()?;
        self.core.waiting_octets -= datagram.octets.len();
        Some(datagram)
    }

    /// Asks neighbours, at all their endpoints of families by which they are not reached now, whether they answer there. Sessions stay as they
    /// are. [`LinkStatus::reached`] has what came of it, within three seconds.
    pub fn ask_endpoints(&mut self, now: Now) {
        if self.asked.is_some_and(|asked| now.instant.since(asked) < ASKED_EACH) {
            return;
        }
        self.asked = Some(now.instant);
        let mut most = MOST_ASKED;
        let links: Vec<u16> = self.entries.keys().copied().collect();
        for link in links {
            if let Some(entry) = self.entries.get_mut(&link) {
                most -= entry.ask_endpoints(&mut self.core, most, now);
            }
            self.schedule(link, now.instant);
        }
    }

    /// Tells all neighbours that this end goes.
    pub fn close(&mut self) {
        for entry in self.entries.values_mut() {
            entry.close(&mut self.core);
        }
    }

    /// Every link, by number.
    #[must_use]
    pub fn status(&self, now: Now) -> Vec<LinkStatus> {
        self.entries.values().map(|entry| entry.status(now)).collect()
    }

    #[must_use]
    pub fn counters(&self) -> Counters {
        self.core.counters
    }
}

/// Has a link looked at by then.
fn sooner(timers: &mut BTreeSet<(Instant, u16)>, entry: &mut Entry, due: Instant) {
    if due < entry.timer {
        timers.remove(&(entry.timer, entry.peer.link));
        entry.timer = due;
        timers.insert((due, entry.peer.link));
    }
}

#[cfg(test)]
mod tests {
    //! ICC, links: what other implementations may compare with, and an end that speaks other versions.

    use super::*;
    use crate::link::message::{Choice, Content, INITIATION, RESPONSE, VERSIONS};

    const REALM: [u8; 32] = [8; 32];

    fn secret(node: u8) -> Secret<32> {
        Secret::new([node; 32])
    }

    fn links(node: u8) -> Links {
        let (identity, noise) = (IdentityKey([node; 32]), secret(node));
        Links::new(Config { identity, realm: REALM, noise, seed: Secret::new([node + 10; 32]) })
    }

    fn address(node: u8) -> SocketAddr {
        ([192, 0, 2, node], 49_254).into()
    }

    fn peer(node: u8) -> Peer {
        let noise = DhSecret::from_seed(&secret(node)).public();
        let endpoints = vec![(0, address(node))];
        Peer {
            link: node.into(),
            identity: IdentityKey([node; 32]),
            noise,
            sockets: vec![0],
            endpoints,
            tls: None,
            tls_endpoints: Vec::new(),
            largest: 1_232,
        }
    }

    fn now(seconds: u64) -> Now {
        Now { instant: Instant(seconds * 1_000_000_000), unix: UnixTime(1_800_000_000_000_000 + seconds * 1_000_000) }
    }

    fn hex(octets: &[u8]) -> String {
        octets.iter().map(|octet| format!("{octet:02x}")).collect()
    }

    /// What one end says in a session to the other, by the kinds that need no answer to be looked at: the contents octet by octet as the
    /// page has them, and the messages.
    fn said(a: &mut Links, b: &mut Links) -> Vec<serde_json::Value> {
        let token = 0x0102_0304_0506_0708;
        let seen = |address: &str| Content::Seen { address: address.parse().expect("an address") };
        let contents = [
            (Content::Challenge { token }, 3, 0, token, None),
            (Content::Shown { token }, 4, 0, token, None),
            (seen("192.0.2.1:49254"), 6, 49_254, 0, Some(0xffff_c000_0201)),
            (seen("[2001:db8::1]:49254"), 6, 49_254, 0x2001_0db8_0000_0000, Some(1)),
            (Content::Close, 5, 0, 0, None),
        ];
        let said = contents.map(|(content, kind, number, value, behind): (_, u8, u32, u64, Option<u64>)| {
            let (front, time) = ([kind, 0, 0, 0], now(0).unix.0);
            let fields = [&front[..], &number.to_be_bytes(), &value.to_be_bytes(), &[0; 4], &time.to_be_bytes()];
            let plain = [fields.concat(), behind.map_or_else(Vec::new, |half| half.to_be_bytes().to_vec())].concat();
            a.entries.get_mut(&2).expect("the neighbour").say(&mut a.core, None, content, 0);
            let octets = a.poll().expect("what was said").octets;
            let Some(Message::Sealed { number, sealed, .. }) = Message::decode(&octets) else { panic!("{octets:?}") };
            let opened = b.entries.get_mut(&1).and_then(|entry| entry.content_of(number, sealed));
            assert_eq!(opened.expect("sealed for this end"), plain);
            serde_json::json!({ "kind": kind, "content": hex(&plain), "message": hex(&octets) })
        });
        said.to_vec()
    }

    /// `test-data/wire/link.json`.
    #[test]
    fn the_published_vectors_are_what_is_sent() {
        let (mut a, mut b) = (links(1), links(2));
        a.set_peers(vec![peer(2)], now(0));
        b.set_peers(vec![peer(1)], now(0));
        a.handle_timeout(now(0));
        let initiation = a.poll().expect("an initiation").octets;
        b.receive((0, address(1)), &initiation, now(0));
        let response = b.poll().expect("a response").octets;
        a.receive((0, address(2)), &response, now(0));
        let ping = a.poll().expect("a ping").octets;
        b.receive((0, address(1)), &ping, now(0));
        assert_eq!(b.status(now(0))[0].state, State::Up);
        let pings: Vec<_> = std::iter::from_fn(|| b.poll()).collect();
        let pong = &pings[1].octets;
        let (alone, cookie) = (BURST_ALONE + 5, [5; message::MAC]);
        for number in 0..alone {
            let mut other = initiation.clone();
            other[4..8].copy_from_slice(&number.to_be_bytes());
            let proven = other.len() - 2 * message::MAC;
            let first = initiation_filter::mac(&peer(2).noise, &other[..proven]);
            other[proven..proven + message::MAC].copy_from_slice(&first);
            b.receive((0, address(9)), &other, now(0));
        }
        let asked = b.poll().expect("a cookie").octets;
        while a.poll().is_some() {}
        let found = serde_json::json!({
            "said": said(&mut a, &mut b),
            "realm": hex(&REALM),
            "initiator": hex(&[1; 32]),
            "initiator_static_secret": hex(secret(1).expose()),
            "responder": hex(&[2; 32]),
            "responder_static_secret": hex(secret(2).expose()),
            "prologue": hex(&a.core.prologue(&IdentityKey([2; 32]), u32::from_be_bytes(*initiation[4..].first_chunk().expect("a number")))),
            "opening": hex(&Opening { identity: IdentityKey([1; 32]), made: now(0).unix.0, versions: VERSIONS }.encode()),
            "initiation": hex(&initiation),
            "mac_key": hex(&peer(2).noise.to_bytes()),
            "response": hex(&response),
            "ping": hex(&ping),
            "pong": hex(pong),
            "cookie_message": hex(&asked),
            "cookie": hex(&cookie),
            "mac_under_cookie": hex(&initiation_filter::cookie_mac(&cookie, b"proven", &[6; message::MAC])),
        });
        let text = include_str!("../../../../test-data/wire/link.json");
        let published: serde_json::Value = serde_json::from_str(text).unwrap();
        assert_eq!(found, published, "{found:#}");
    }

    #[test]
    fn who_speaks_no_common_version_is_told_and_asks_again_later() {
        // An end of a later version, by its handshake.
        let mut b = links(2);
        b.set_peers(vec![Peer { endpoints: Vec::new(), ..peer(1) }], now(0));
        let opening = Opening { identity: IdentityKey([1; 32]), made: now(0).unix.0, versions: (7, 9) };
        let prologue = links(1).core.prologue(&IdentityKey([2; 32]), 5);
        let begun = StaticKey(secret(1)).initiate(&peer(2).noise, &prologue, Secret::new([3; 32]), &opening.encode());
        let (mut started, first) = begun.unwrap();
        let mut octets = message::initiation(5, &first);
        let mac = initiation_filter::mac(&peer(2).noise, &octets);
        octets.extend(mac);
        octets.extend([0; message::MAC]);
        assert_eq!(octets.len(), INITIATION);
        b.receive((0, address(1)), &octets, now(0));
        let response = b.poll().expect("a response").octets;
        assert_eq!(response.len(), RESPONSE);
        let choice = Choice::decode(&started.read(&response[8..]).unwrap()).unwrap();
        assert_eq!((choice.chosen, choice.versions), (None, VERSIONS));
        let status = &b.status(now(0))[0];
        assert_eq!((status.state, status.other_versions), (State::Awaited, Some((7, 9))));
    }
}
