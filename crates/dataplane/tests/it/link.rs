//! ICC, links: neighbours prove themselves from whatever address they have; nobody else is told anything, and nobody is sent what it
//! did not ask for.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use wayleave_core::{IdentityKey, Instant, Now, UnixTime};
use wayleave_crypto::dh::{DhPublic, DhSecret};
use wayleave_crypto::secret::Secret;
use wayleave_dataplane::link::message::{self, COOKIE, INITIATION, LEAST, RESPONSE};
use wayleave_dataplane::link::{
    BURST_ALONE, Clock, Config, Counters, Datagram, FLOWING, IDLE_PING, LinkStatus, Links, Peer, SILENT, State,
    Transport, UDP_RETRY,
};

const REALM: [u8; 32] = [0x7e; 32];
const DELAY: Duration = Duration::from_millis(10);
const UNIX: u64 = 1_900_000_000_000_000;
/// Octets of a message that tells its receiver where it is seen.
const SEEN: usize = LEAST + 8;
/// A node's number of a link is the other node's number and this.
const LINK: u16 = 1;

fn noise(node: u16) -> Secret<32> {
    let mut octets = [0x40; 32];
    octets[..2].copy_from_slice(&node.to_be_bytes());
    Secret::new(octets)
}

fn public(node: u16) -> DhPublic {
    DhSecret::from_seed(&noise(node)).public()
}

fn identity(node: u16) -> IdentityKey {
    let mut octets = [9; 32];
    octets[..2].copy_from_slice(&node.to_be_bytes());
    IdentityKey(octets)
}

fn at(host: u32, port: u16) -> SocketAddr {
    (std::net::Ipv4Addr::from(0x0a00_0000 + host), port).into()
}

/// A peer as `links` of another node know it.
fn peer(node: u16, endpoints: Vec<SocketAddr>) -> Peer {
    let endpoints = endpoints.into_iter().map(|address| (0, address)).collect();
    let (link, identity, noise) = (node + LINK, identity(node), public(node));
    Peer { link, identity, noise, sockets: vec![0], endpoints, tls: None, tls_endpoints: Vec::new(), largest: 1_400 }
}

struct Node {
    links: Links,
    /// Its address, as others see it.
    address: SocketAddr,
    /// Behind a NAT: those to which it has sent from this address.
    open_to: Option<BTreeSet<SocketAddr>>,
    clock_micros: i64,
}

/// What is put in front of a message.
type Injector = fn(&[u8]) -> Option<Vec<u8>>;

/// Nodes, and the network between them.
#[derive(Default)]
struct World {
    nodes: Vec<Node>,
    nanos: u64,
    sequence: u64,
    flying: BTreeMap<(u64, u64), (SocketAddr, SocketAddr, Vec<u8>)>,
    /// Octets that went to each address, and messages that nobody has.
    sent_to: BTreeMap<SocketAddr, usize>,
    /// All that was sent, with its source and destination.
    record: Vec<(SocketAddr, SocketAddr, Vec<u8>)>,
    is_recording: bool,
    /// Datagrams longer than this are lost.
    largest: Option<usize>,
    /// Messages are lost.
    is_cut: bool,
    /// UDP is lost; what nodes say by their second socket goes on.
    has_no_udp: bool,
    /// Nodes whose machine sleeps: time passes for them, and they do nothing.
    asleep: BTreeSet<usize>,
    /// How long messages fly.
    delay: Option<Duration>,
    /// Somebody who copies what node 1 sends, faster, with this source, and keeps what comes back.
    racer: Option<SocketAddr>,
    /// Called with each message before it leaves; returns what is put in front of it.
    injector: Option<Injector>,
}

impl World {
    fn now(&self, node: usize) -> Now {
        let micros = UNIX.saturating_add(self.nanos / 1_000).saturating_add_signed(self.nodes[node].clock_micros);
        Now { instant: Instant(self.nanos), unix: UnixTime(micros) }
    }

    fn add(&mut self, address: SocketAddr, is_hidden: bool) -> usize {
        let number = self.nodes.len() as u16;
        let config = Config {
            identity: identity(number),
            realm: REALM,
            noise: noise(number),
            seed: Secret::new([number as u8 ^ 0x31; 32]),
        };
        let open_to = is_hidden.then(BTreeSet::new);
        self.nodes.push(Node { links: Links::new(config), address, open_to, clock_micros: 0 });
        usize::from(number)
    }

    /// The node begins anew, with nothing that it knew.
    fn restart(&mut self, node: usize, peers: Vec<Peer>) {
        let number = node as u16;
        let config = Config {
            identity: identity(number),
            realm: REALM,
            noise: noise(number),
            seed: Secret::new([number as u8 ^ 0x77; 32]),
        };
        self.nodes[node].links = Links::new(config);
        self.set(node, peers);
    }

    fn set(&mut self, node: usize, peers: Vec<Peer>) {
        let now = self.now(node);
        self.nodes[node].links.set_peers(peers, now);
    }

    fn links(&self, node: usize) -> &Links {
        &self.nodes[node].links
    }

    fn status(&self, node: usize, of: usize) -> LinkStatus {
        let link = of as u16 + LINK;
        let all = self.links(node).status(self.now(node));
        all.into_iter().find(|status| status.link == link).expect("a link")
    }

    fn is_up(&self, node: usize, of: usize) -> bool {
        self.status(node, of).state == State::Up
    }

    fn counters(&self, node: usize) -> Counters {
        self.links(node).counters()
    }

    fn ask(&mut self, node: usize) {
        let now = self.now(node);
        self.nodes[node].links.ask_endpoints(now);
    }

    fn fly(&mut self, from: SocketAddr, to: SocketAddr, octets: Vec<u8>) {
        *self.sent_to.entry(to).or_default() += octets.len();
        if self.is_recording {
            self.record.push((from, to, octets.clone()));
        }
        if self.is_cut || self.largest.is_some_and(|largest| octets.len() > largest) {
            return;
        }
        let delay = self.delay.unwrap_or(DELAY).as_nanos() as u64;
        if let Some(injected) = self.injector.and_then(|inject| inject(&octets)) {
            self.sequence += 1;
            self.flying.insert((self.nanos + delay / 2, self.sequence), (from, to, injected));
        }
        if let Some(racer) = self.racer.filter(|_| from == self.nodes[1].address) {
            self.sequence += 1;
            self.flying.insert((self.nanos + delay / 2, self.sequence), (racer, to, octets.clone()));
        }
        self.sequence += 1;
        self.flying.insert((self.nanos + delay, self.sequence), (from, to, octets));
    }

    /// Lets every machine do what is due, and takes what it sends.
    fn turn(&mut self) {
        for node in (0..self.nodes.len()).filter(|node| !self.asleep.contains(node)).collect::<Vec<_>>() {
            let now = self.now(node);
            self.nodes[node].links.handle_timeout(now);
            while let Some(Datagram { socket, to, octets }) = self.nodes[node].links.poll() {
                assert!(message::is_message(&octets));
                let Node { address, open_to, .. } = &mut self.nodes[node];
                let from = by(socket, *address);
                open_to.iter_mut().for_each(|open_to| _ = open_to.insert(to));
                self.fly(from, to, octets);
            }
        }
    }

    /// Hands a datagram to whoever has its destination, and answers whether somebody took it.
    fn deliver(&mut self, from: SocketAddr, to: SocketAddr, octets: &[u8]) -> bool {
        let socket = usize::from(to.ip() != by(0, to).ip());
        if self.has_no_udp && socket == 0 {
            return false;
        }
        let is_there = |node: &Node| {
            by(socket, node.address) == to && node.open_to.as_ref().is_none_or(|open_to| open_to.contains(&from))
        };
        let Some(node) = self.nodes.iter().position(is_there) else { return false };
        if self.asleep.contains(&node) {
            return false;
        }
        let now = self.now(node);
        self.nodes[node].links.receive((socket, from), octets, now);
        true
    }

    fn run(&mut self, time: Duration) {
        let until = self.nanos + time.as_nanos() as u64;
        loop {
            self.turn();
            let flying = self.flying.first_key_value().map(|((due, _), _)| *due);
            let awake = self.nodes.iter().enumerate().filter(|(node, _)| !self.asleep.contains(node));
            let due = awake.map(|(_, node)| node.links.deadline().0).min().unwrap_or(u64::MAX);
            let next = flying.unwrap_or(u64::MAX).min(due).max(self.nanos + 1);
            if next >= until {
                self.nanos = until;
                break;
            }
            self.nanos = next;
            while let Some(entry) = self.flying.first_entry().filter(|entry| entry.key().0 <= self.nanos) {
                let (from, to, octets) = entry.remove();
                self.deliver(from, to, &octets);
            }
        }
        self.turn();
    }

    /// One data packet from a node to another; returns whether it arrived and counted.
    fn data(&mut self, from: usize, to: usize) -> bool {
        let (link, back) = (to as u16 + LINK, from as u16 + LINK);
        let instant = Instant(self.nanos);
        let Some((socket, there)) = self.links(from).address(link) else { return false };
        self.nodes[from].links.note_sent(link, 1, 1_000, instant);
        let source = by(socket, self.nodes[from].address);
        self.nodes[from].open_to.iter_mut().for_each(|open_to| _ = open_to.insert(there));
        let Node { address, open_to, links, .. } = &mut self.nodes[to];
        let passes = socket == 1 || !self.has_no_udp;
        let arrives =
            passes && by(socket, *address) == there && open_to.as_ref().is_none_or(|open_to| open_to.contains(&source));
        if !arrives || links.link_at((socket, source)) != Some(back) {
            return false;
        }
        links.note_received(back, 1, 1_000, instant);
        true
    }

    /// Data each way every 10 ms; returns how many of each did not arrive.
    fn carry(&mut self, (a, b): (usize, usize), time: Duration) -> (usize, usize) {
        let mut lost = (0, 0);
        for _ in 0..time.as_millis() / 10 {
            lost.0 += usize::from(!self.data(a, b));
            lost.1 += usize::from(!self.data(b, a));
            self.run(Duration::from_millis(10));
        }
        lost
    }

    /// The NAT of a node forgets it: from now on it is seen at another port, and nobody's packets reach it.
    fn rebind(&mut self, node: usize, port: u16) {
        let Node { address, open_to, .. } = &mut self.nodes[node];
        address.set_port(port);
        open_to.iter_mut().for_each(BTreeSet::clear);
    }
}

/// An address as seen by a node's socket: those of connections, of socket 1, are apart from those of UDP.
fn by(socket: usize, address: SocketAddr) -> SocketAddr {
    let SocketAddr::V4(v4) = address else { return address };
    let host = v4.ip().to_bits() & 0x00ff_ffff | if socket == 1 { 0x0b00_0000 } else { 0x0a00_0000 };
    (std::net::Ipv4Addr::from(host), address.port()).into()
}

/// [`hidden`], where the forwarder can be reached over TLS too.
fn hidden_with_tls() -> World {
    let mut world = hidden();
    let tls = |peer: Peer, tls_endpoints| Peer { tls: Some(1), tls_endpoints, ..peer };
    world.set(0, vec![tls(peer(1, Vec::new()), Vec::new())]);
    world.set(1, vec![tls(peer(0, vec![at(1, 1)]), vec![by(1, at(1, 1))])]);
    world
}

/// A forwarder with a public address (0), and a gateway behind a NAT (1), which alone knows where the other is.
fn hidden() -> World {
    let mut world = World::default();
    world.add(at(1, 1), false);
    world.add(at(2, 5_000), true);
    world.set(0, vec![peer(1, Vec::new())]);
    world.set(1, vec![peer(0, vec![at(1, 1)])]);
    world
}

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

#[test]
fn two_neighbours_prove_themselves_to_each_other_by_one_handshake() {
    let mut world = World::default();
    world.add(at(1, 1), false);
    world.add(at(2, 2), false);
    world.set(0, vec![peer(1, vec![at(2, 2)])]);
    world.set(1, vec![peer(0, vec![at(1, 1)])]);
    assert_eq!((world.links(0).link_at((0, at(2, 2))), world.links(0).address(1 + LINK)), (None, None));
    world.is_recording = true;
    world.run(secs(1));
    let initiations = world.record.iter().filter(|(_, _, octets)| octets.len() == INITIATION).count();
    assert_eq!(initiations, 1);
    assert_eq!(world.links(0).link_at((0, at(2, 2))), Some(1 + LINK));
    assert_eq!(world.links(1).link_at((0, at(1, 1))), Some(LINK));
    assert_eq!(world.links(0).address(1 + LINK), Some((0, at(2, 2))));
    let status = world.status(0, 1);
    assert_eq!((status.state, status.size), (State::Up, Some(1_400)));
    assert_eq!(world.status(1, 0).round_trip, Some(2 * DELAY));
}

#[test]
fn each_end_is_told_where_it_is_seen_and_how_the_clocks_differ() {
    let mut world = hidden();
    world.nodes[0].clock_micros = 5_000_000;
    world.run(secs(2));
    assert_eq!((world.status(0, 1).seen, world.status(1, 0).seen), (Some(at(1, 1)), Some(at(2, 5_000))));
    let ahead = [world.status(0, 1), world.status(1, 0)].map(|status| status.clock.map_or(0, |clock| clock.ahead));
    assert!((-5_020_000..=-4_980_000).contains(&ahead[0]) && (4_980_000..=5_020_000).contains(&ahead[1]), "{ahead:?}");
    world.carry((0, 1), secs(3));
    world.rebind(1, 5_001);
    world.carry((0, 1), secs(3));
    assert_eq!(world.status(1, 0).seen, Some(at(2, 5_001)));
}

#[test]
fn where_a_neighbour_is_seen_it_is_told_again_though_the_first_word_is_lost() {
    let mut world = hidden();
    for _ in 0..1_000 {
        world.run(Duration::from_millis(1));
        world.flying.retain(|_, (_, _, octets)| octets.len() != SEEN);
    }
    assert!(world.is_up(0, 1) && world.is_up(1, 0));
    assert_eq!((world.status(0, 1).seen, world.status(1, 0).seen), (None, None));
    world.run(secs(5));
    assert_eq!((world.status(0, 1).seen, world.status(1, 0).seen), (Some(at(1, 1)), Some(at(2, 5_000))));
    world.is_recording = true;
    world.run(secs(60));
    assert!(world.record.iter().all(|(_, _, octets)| octets.len() != SEEN), "three times, and no more");
}

#[test]
fn endpoints_are_asked_without_a_session_and_nothing_changes_at_the_neighbour() {
    let mut world = hidden();
    let v6: SocketAddr = "[2001:db8::1]:1".parse().expect("an address");
    world.set(1, vec![peer(0, vec![at(1, 1), v6])]);
    world.is_cut = true;
    world.ask(1);
    world.run(Duration::from_millis(1_500));
    assert_eq!(world.status(1, 0).reached, [(at(1, 1), None), (v6, None)]);
    world.is_cut = false;
    world.run(secs(1));
    assert_eq!(world.status(1, 0).reached, [(at(1, 1), Some(2 * DELAY)), (v6, None)], "it is asked three times");
    assert_eq!((world.counters(0).stale, world.counters(0).cookies), (1, 1));
    world.run(secs(8));
    assert!(world.is_up(1, 0));
    // While the link is up, only the other family is asked, and the session stays.
    let before = world.status(0, 1);
    world.is_recording = true;
    (0..100).for_each(|_| world.ask(1));
    world.run(secs(4));
    assert_eq!(world.status(1, 0).reached, [(v6, None)]);
    let asked: Vec<SocketAddr> =
        world.record.iter().filter(|asked| asked.2.len() == INITIATION).map(|asked| asked.1).collect();
    assert_eq!(asked, [v6; 3]);
    let after = world.status(0, 1);
    assert_eq!((after.begun, after.handshake, after.state), (before.begun, before.handshake, State::Up));
}

#[test]
fn a_gateway_behind_a_nat_is_reached_for_hours_while_nothing_flows() {
    let mut world = hidden();
    assert_eq!(world.status(0, 1).state, State::Awaited);
    world.run(secs(1));
    assert!(world.is_up(0, 1) && world.is_up(1, 0));
    let before = world.counters(1).sent;
    for _ in 0..4 * 60 {
        world.run(secs(60));
        assert!(world.is_up(0, 1) && world.is_up(1, 0), "at {} s", world.nanos / 1_000_000_000);
        assert!(world.data(0, 1) && world.data(1, 0));
    }
    // A ping each 25 s, of which some came sooner by data; a handshake each 120 s; answers to the other end's.
    let hours = 4 * 3_600;
    let sent = world.counters(1).sent - before;
    assert!((hours / IDLE_PING.as_secs()..hours / 2).contains(&sent), "{sent}");
    assert_eq!((world.status(0, 1).begun, world.status(0, 1).moved), (1, 0));
}

#[test]
fn strangers_get_silence() {
    let mut world = hidden();
    world.run(secs(1));
    let stranger = at(99, 99);
    let before = world.sent_to.get(&stranger).copied();
    // An initiation under another's key, one by no member, garbage of every length, and every message of the two with octets changed.
    let mut third = World::default();
    third.add(at(50, 1), false);
    third.add(at(51, 1), false);
    third.add(at(52, 1), false);
    third.set(2, vec![peer(0, vec![at(1, 1)]), Peer { noise: public(77), ..peer(1, vec![at(1, 1)]) }]);
    third.is_recording = true;
    third.run(secs(5));
    let mut messages: Vec<Vec<u8>> = third.record.into_iter().map(|(_, _, octets)| octets).collect();
    assert!(messages.len() >= 4);
    messages.extend((0..2_000usize).map(|length| vec![0xf1 + (length % 4) as u8; length / 8]));
    world.is_recording = true;
    world.carry((0, 1), secs(200));
    for (_, _, octets) in world.record.clone() {
        // But the MAC under a cookie, which nobody has asked for.
        let last = octets.len() - if octets.len() == INITIATION { 17 } else { 1 };
        for place in [0, 1, 4, 9, 40, octets.len() - 40, last] {
            let mut other = octets.clone();
            other[place] ^= 4;
            messages.push(other);
        }
    }
    for octets in &messages {
        world.deliver(stranger, at(1, 1), octets);
    }
    world.run(secs(1));
    assert_eq!(world.sent_to.get(&stranger).copied(), before);
    assert!(world.is_up(0, 1));
}

#[test]
fn what_is_repeated_or_comes_late_from_elsewhere_moves_nothing() {
    let mut world = hidden();
    world.is_recording = true;
    world.run(secs(1));
    world.carry((0, 1), secs(300));
    let (record, thief) = (world.record.clone(), at(66, 6));
    let (address, handshake) = (world.links(0).address(1 + LINK), world.status(0, 1).handshake);
    for (_, to, octets) in record.iter().chain(record.iter().rev()) {
        world.deliver(thief, *to, octets);
        world.turn();
    }
    world.run(secs(2));
    // A cookie for an initiation, which is shorter; a challenge for the newest message.
    let repeated: usize = 2 * record.iter().map(|(_, _, octets)| octets.len()).sum::<usize>();
    let to_thief = world.sent_to.get(&thief).copied().unwrap_or(0);
    assert!(to_thief < repeated / 20, "{to_thief} of {repeated}");
    assert_eq!(world.links(0).address(1 + LINK), address);
    assert_eq!(world.status(0, 1).handshake, handshake);
    assert!(world.counters(0).stale >= 2, "initiations");
    // One that was held back, and comes after a later one.
    world.is_cut = true;
    world.carry((0, 1), Duration::from_millis(1_100));
    let held = world.record.iter().rev().find(|(from, _, octets)| from.port() == 5_000 && octets.len() == LEAST);
    let held = held.expect("a ping").2.clone();
    world.is_cut = false;
    assert_eq!(world.carry((0, 1), secs(3)), (0, 0));
    world.deliver(thief, at(1, 1), &held);
    world.run(secs(1));
    assert_eq!(world.sent_to.get(&thief).copied().unwrap_or(0), to_thief);
}

#[test]
fn a_victim_whose_address_is_written_on_messages_gets_no_more_than_they_had() {
    let mut world = hidden();
    world.run(secs(1));
    world.carry((0, 1), secs(2));
    // Somebody on the way catches messages, and passes them on with another source.
    let (victim, mut forwarded) = (at(80, 80), 0);
    for _ in 0..30 {
        world.is_recording = true;
        world.is_cut = true;
        world.carry((0, 1), secs(1));
        world.is_cut = false;
        let caught: Vec<_> = std::mem::take(&mut world.record);
        for (from, to, octets) in caught {
            if from.port() == 5_000 {
                forwarded += octets.len();
                world.deliver(victim, to, &octets);
            }
        }
        world.run(Duration::from_millis(30));
        assert_ne!(world.links(0).address(1 + LINK), Some((0, victim)));
    }
    let sent = world.sent_to.get(&victim).copied().unwrap_or(0);
    assert!(sent > 0 && sent <= forwarded, "{sent} of {forwarded}");
}

#[test]
fn a_nat_that_changes_its_port_costs_a_second_of_data_at_most() {
    for one_way in [false, true] {
        let mut world = hidden();
        world.run(secs(1));
        assert_eq!(world.carry((0, 1), secs(3)), (0, 0));
        world.rebind(1, 5_001);
        let mut lost = (0, 0);
        for _ in 0..500 {
            // Data to the gateway alone: it sends nothing of its own but what the session says.
            lost.0 += usize::from(!world.data(0, 1));
            lost.1 += usize::from(!one_way && !world.data(1, 0));
            world.run(Duration::from_millis(10));
        }
        assert!(lost.0 <= 110 && lost.1 <= 110, "{lost:?} of 500 each, {one_way}");
        assert_eq!(world.carry((0, 1), secs(5)), (0, 0));
        assert_eq!((world.status(0, 1).begun, world.status(0, 1).moved), (1, 1));
        assert_eq!(world.links(0).address(1 + LINK), Some((0, at(2, 5_001))));
    }
}

#[test]
fn two_members_behind_one_address_are_told_apart() {
    let mut world = World::default();
    world.add(at(1, 1), false);
    world.add(at(2, 5_000), true);
    world.add(at(2, 6_000), true);
    world.set(0, vec![peer(1, Vec::new()), peer(2, Vec::new())]);
    for gateway in [1, 2] {
        world.set(gateway, vec![peer(0, vec![at(1, 1)])]);
    }
    world.run(secs(1));
    assert!(world.data(1, 0) && world.data(2, 0) && world.data(0, 1) && world.data(0, 2));
    // The ports change places: each is where the other was.
    world.rebind(1, 6_000);
    world.rebind(2, 5_000);
    world.carry((1, 0), secs(1));
    world.carry((2, 0), secs(3));
    assert_eq!((world.carry((1, 0), secs(1)), world.carry((2, 0), secs(1))), ((0, 0), (0, 0)));
    assert_eq!(world.links(0).address(1 + LINK), Some((0, at(2, 6_000))));
    assert_eq!(world.links(0).address(2 + LINK), Some((0, at(2, 5_000))));
}

#[test]
fn a_flood_of_initiations_costs_cookies_and_keeps_nobody_out() {
    let mut world = hidden();
    // Valid but for who sends them: a removed member, who knows our key, from a thousand addresses.
    let mut flood = World::default();
    flood.add(at(50, 1), false);
    flood.add(at(51, 1), false);
    flood.add(at(52, 1), false);
    flood.set(2, vec![peer(0, vec![at(1, 1)])]);
    flood.is_recording = true;
    flood.is_cut = true;
    for _ in 0..3_000 {
        flood.run(secs(9));
    }
    let initiations: Vec<Vec<u8>> = flood.record.iter().map(|(_, _, octets)| octets.clone()).collect();
    assert!(initiations.len() >= 3_000);
    let step = Duration::from_micros(500);
    for (number, octets) in initiations.iter().enumerate() {
        let source = at(10_000 + number as u32 % 1_000, 7);
        world.deliver(source, at(1, 1), octets);
        world.run(step);
    }
    let counters = world.counters(0);
    // Each second gives 50 more without a cookie.
    let answered = counters.strangers;
    assert!(answered <= u64::from(BURST_ALONE) * 3, "{answered} computed");
    assert!(counters.cookies >= 2_000, "{}", counters.cookies);
    assert!(world.is_up(0, 1) && world.is_up(1, 0), "through the flood");
    let to_flood = world.sent_to.iter().filter(|(to, _)| to.port() == 7).map(|(_, octets)| octets).sum::<usize>();
    assert!(to_flood <= initiations.len() * COOKIE && COOKIE < INITIATION);
    const { assert!(RESPONSE < INITIATION) };
}

#[test]
fn a_cookie_is_for_one_address_and_port() {
    // A responder that is busy; an initiator whose messages are sent from another port, with the cookie of the first one.
    let mut world = hidden();
    let mut busy = World::default();
    busy.add(at(50, 1), false);
    busy.add(at(51, 1), false);
    busy.add(at(52, 1), false);
    busy.set(2, vec![peer(0, vec![at(1, 1)])]);
    busy.is_recording = true;
    busy.is_cut = true;
    busy.run(secs(9 * 70));
    world.run(Duration::from_millis(199));
    world.is_cut = true;
    for (_, _, octets) in &busy.record {
        world.deliver(at(60, 6), at(1, 1), octets);
    }
    world.is_recording = true;
    world.is_cut = false;
    // The cookie comes, and the initiation with it is caught.
    world.run(Duration::from_millis(25));
    assert!(world.counters(0).cookies > 0);
    world.is_cut = true;
    world.run(secs(2));
    let (_, _, second) =
        world.record.iter().rev().find(|(_, _, octets)| octets.len() == INITIATION).expect("another").clone();
    assert_ne!(second[INITIATION - 16..], [0; 16], "with a cookie");
    for (_, _, octets) in &busy.record {
        world.deliver(at(60, 6), at(1, 1), octets);
    }
    let (before, is_up) = (world.counters(0).cookies, world.is_up(0, 1));
    world.deliver(at(2, 5_001), at(1, 1), &second);
    assert_eq!(
        (world.counters(0).cookies, is_up),
        (before + 1, false),
        "another port is asked for a cookie of its own"
    );
    world.is_cut = false;
    let sent = |world: &World, to| {
        world.record.iter().filter(|(_, there, octets)| *there == to && octets.len() == RESPONSE).count()
    };
    world.deliver(at(2, 5_000), at(1, 1), &second);
    world.turn();
    assert_eq!((sent(&world, at(2, 5_000)), sent(&world, at(2, 5_001))), (1, 0));
}

#[test]
fn a_forwarder_that_restarts_is_found_again_within_seconds() {
    let mut world = hidden();
    world.run(secs(1));
    world.carry((0, 1), secs(30));
    world.restart(0, vec![peer(1, Vec::new())]);
    let lost = world.carry((0, 1), secs(10));
    assert!(lost.0 <= 500 && lost.1 <= 500, "{lost:?} of 1,000 each");
    assert_eq!(world.carry((0, 1), secs(10)), (0, 0));
    // One that remembers where it was begins by itself.
    world.run(FLOWING + secs(60));
    world.restart(0, vec![peer(1, vec![at(2, 5_000)])]);
    world.run(secs(1));
    assert!(world.is_up(0, 1));
    assert_eq!(world.carry((0, 1), secs(2)), (0, 0));
}

#[test]
fn who_has_gone_is_down_and_who_says_so_is_down_at_once() {
    let mut world = hidden();
    world.run(secs(1));
    world.carry((0, 1), secs(3));
    world.is_cut = true;
    world.run(SILENT + secs(10));
    assert!(!world.is_up(0, 1) && !world.is_up(1, 0));
    assert_eq!(world.links(0).address(1 + LINK), None, "nothing goes where nobody answers");
    world.is_cut = false;
    world.run(secs(10));
    assert!(world.is_up(0, 1) && world.is_up(1, 0));
    world.nodes[1].links.close();
    world.run(Duration::from_millis(50));
    assert_eq!(world.status(0, 1).state, State::Stopped);
    world.restart(1, vec![peer(0, vec![at(1, 1)])]);
    world.run(secs(1));
    assert!(world.is_up(0, 1), "it has come back");
}

/// The neighbour has begun a session, and its first message in that is still to come; of the session before it knows nothing any more, or
/// takes it for an earlier life's.
#[test]
fn who_says_that_it_goes_is_heard_while_a_session_begins_too() {
    for is_new_life in [true, false] {
        let mut world = hidden();
        world.run(secs(1));
        world.is_recording = true;
        if is_new_life {
            world.restart(1, vec![peer(0, vec![at(1, 1)])]);
        }
        // By itself it begins another one after some minutes.
        let is_answered = |world: &World| world.record.iter().any(|(_, _, octets)| octets.len() == RESPONSE);
        for _ in 0..1_000_000 {
            if is_answered(&world) {
                break;
            }
            world.run(Duration::from_millis(1));
        }
        assert!(is_answered(&world));
        world.nodes[0].links.close();
        world.turn();
        world.asleep.insert(0);
        world.run(secs(1));
        assert_eq!(world.status(1, 0).state, State::Stopped, "{is_new_life}");
    }
}

#[test]
fn where_udp_does_not_pass_a_link_goes_over_tls_and_back_when_it_does() {
    let transports = |world: &World| [world.status(0, 1).transport, world.status(1, 0).transport];
    let both = |transport| [Some(transport); 2];
    let mut world = hidden_with_tls();
    world.run(secs(1));
    assert_eq!(transports(&world), both(Transport::Udp));
    world.run(secs(3_600));
    assert_eq!((transports(&world), world.status(0, 1).moved), (both(Transport::Udp), 0));
    // It is cut under data: three pings, a try, and then TLS.
    world.has_no_udp = true;
    let lost = world.carry((0, 1), secs(10));
    assert!(lost.0 < 800 && lost.1 < 800, "{lost:?} of 1,000 each");
    assert_eq!(transports(&world), both(Transport::Tls));
    assert_eq!(world.carry((0, 1), secs(300)), (0, 0), "renewed, and UDP tried, beside the data");
    assert_eq!((transports(&world), world.status(1, 0).size), (both(Transport::Tls), Some(1_400)));
    world.has_no_udp = false;
    let lost = world.carry((0, 1), UDP_RETRY + secs(2));
    assert!(lost.0 <= 5 && lost.1 <= 5, "{lost:?}: what flies while both go over");
    assert_eq!(transports(&world), both(Transport::Udp));
    // The connection ends: another is begun by at once, though nothing flows.
    let mut idle = hidden_with_tls();
    idle.has_no_udp = true;
    idle.run(secs(60));
    let before = idle.status(1, 0).handshake;
    let now = idle.now(1);
    idle.nodes[1].links.receive((1, by(1, at(1, 1))), &[], now);
    idle.run(secs(1));
    assert!(idle.status(1, 0).handshake > before && transports(&idle) == both(Transport::Tls));
    // One that begins without UDP, and one whose UDP comes and goes: it is asked ever later.
    let mut world = hidden_with_tls();
    world.has_no_udp = true;
    world.run(secs(6));
    assert_eq!(transports(&world), both(Transport::Tls));
    for _ in 0..200 {
        world.has_no_udp = world.status(1, 0).transport == Some(Transport::Udp);
        world.run(secs(10));
    }
    assert!((2..12).contains(&(world.status(1, 0).moved / 2)), "{}", world.status(1, 0).moved);
}

#[test]
fn the_largest_datagram_that_passes_is_found_and_found_anew() {
    let mut world = hidden();
    world.set(1, vec![Peer { largest: 1_500, ..peer(0, vec![at(1, 1)]) }]);
    world.set(0, vec![Peer { largest: 1_500, ..peer(1, Vec::new()) }]);
    world.largest = Some(1_440);
    world.run(secs(6));
    assert_eq!((world.status(0, 1).size, world.status(1, 0).size), (Some(1_432), Some(1_432)));
    assert_eq!(world.carry((0, 1), secs(2)), (0, 0));
    // A tunnel on the way: large pings of data are lost, small ones are not.
    world.largest = Some(1_300);
    world.carry((0, 1), secs(30));
    assert_eq!((world.status(0, 1).size, world.status(1, 0).size), (Some(1_252), Some(1_252)));
    assert!(world.is_up(0, 1) && world.is_up(1, 0));
    world.largest = None;
    world.run(secs(700));
    assert_eq!(world.status(0, 1).size, Some(1_500), "looked for anew after a while");
}

#[test]
fn loss_of_data_is_measured_at_their_sender() {
    let mut world = hidden();
    world.run(secs(1));
    for number in 0..3_000u32 {
        if number % 10 == 0 {
            // Sent, and lost.
            let instant = Instant(world.nanos);
            world.nodes[0].links.note_sent(1 + LINK, 1, 1_000, instant);
        } else {
            assert!(world.data(0, 1));
        }
        world.run(Duration::from_millis(10));
    }
    let loss = world.status(0, 1).loss.expect("measured");
    assert!((90_000..110_000).contains(&loss), "{loss} of a million");
    let (sent, received) = (world.status(0, 1).sent.packets, world.status(1, 0).received.packets);
    assert_eq!((sent, received), (3_000, 2_700));
    assert!(world.status(1, 0).loss.is_none_or(|loss| loss == 0));
}

#[test]
fn a_clock_that_was_far_ahead_keeps_nobody_out_afterwards() {
    let mut world = hidden();
    world.nodes[1].clock_micros = 3_600_000_000;
    world.run(secs(20));
    // A cookie shows what the clock does not.
    assert!(world.is_up(0, 1) && world.counters(0).stale > 0 && world.counters(0).cookies > 0);
    world.nodes[1].clock_micros = 60_000_000;
    world.restart(1, vec![peer(0, vec![at(1, 1)])]);
    world.run(secs(10));
    assert!(world.is_up(0, 1));
    world.nodes[1].clock_micros = 0;
    world.carry((0, 1), secs(400));
    assert!(world.is_up(0, 1) && world.is_up(1, 0), "set right");
}

#[test]
fn peers_that_come_go_and_change_their_number_keep_what_they_proved() {
    let mut world = hidden();
    world.run(secs(1));
    let renumbered = Peer { link: 700, ..peer(1, Vec::new()) };
    world.set(0, vec![renumbered.clone(), peer(5, Vec::new())]);
    assert_eq!(world.links(0).link_at((0, at(2, 5_000))), Some(700));
    world.set(0, vec![peer(5, Vec::new())]);
    assert_eq!(world.links(0).link_at((0, at(2, 5_000))), None);
    world.carry((1, 0), secs(2));
    assert_eq!(world.links(0).link_at((0, at(2, 5_000))), None);
    // Another key is another neighbour.
    world.set(0, vec![Peer { noise: public(9), ..renumbered.clone() }]);
    world.run(secs(60));
    assert_eq!(world.links(0).link_at((0, at(2, 5_000))), None);
    world.set(0, vec![renumbered]);
    world.run(secs(60));
    assert_eq!(world.links(0).link_at((0, at(2, 5_000))), Some(700));
}

#[test]
fn a_thousand_gateways_come_to_one_forwarder_and_it_says_little() {
    let mut world = World::default();
    world.add(at(1, 1), false);
    let gateways: Vec<usize> = (1..=1_000).map(|host| world.add(at(1 + host, 5_000), true)).collect();
    let peers = |from: u16| (from..=1_000).map(|node| peer(node, Vec::new())).collect::<Vec<_>>();
    world.set(0, peers(1));
    for gateway in &gateways {
        world.set(*gateway, vec![peer(0, vec![at(1, 1)])]);
    }
    world.run(secs(20));
    let up = gateways.iter().filter(|gateway| world.is_up(0, **gateway)).count();
    assert_eq!(up, 1_000);
    let before = world.counters(0).sent;
    world.run(secs(60));
    // A ping and an answer for each 25 s of each, and what looks for the largest size at the beginning.
    assert!(world.counters(0).sent - before < 1_000 * 10, "{}", world.counters(0).sent - before);
    // Half of them leave, and nobody else notices.
    world.set(0, peers(501));
    world.run(secs(60));
    assert!((501..=1_000).all(|gateway| world.is_up(0, gateway)));
    assert!(world.data(0, 1_000) && !world.data(1, 0));
}

// What a hostile reader found.

#[test]
fn who_puts_changed_copies_in_front_of_a_handshake_does_not_end_it() {
    // The number in front of the sealed part, in responses and in initiations (with the MAC made anew: the key is known to members).
    for kind in [RESPONSE, INITIATION] {
        let mut world = hidden();
        world.injector = Some(match kind {
            RESPONSE => |octets| {
                let mut other = (octets.len() == RESPONSE).then(|| octets.to_vec())?;
                other[8] ^= 1;
                Some(other)
            },
            _ => |octets| {
                let mut other = (octets.len() == INITIATION).then(|| octets.to_vec())?;
                other[7] ^= 1;
                let (rest, _) = other.split_at(INITIATION - 32);
                let key = wayleave_crypto::kdf::derive::<16>("wayleave/link/mac/v1", &public(0).to_bytes(), rest);
                other[INITIATION - 32..INITIATION - 16].copy_from_slice(key.expose());
                Some(other)
            },
        });
        for _ in 0..5 {
            world.run(secs(60));
            assert!(world.is_up(0, 1) && world.is_up(1, 0));
        }
    }
}

#[test]
fn forged_cookies_neither_end_a_handshake_nor_hurry_it() {
    let mut world = hidden();
    // A member that is busy, with the key of node 0, answers each initiation with a cookie of its own.
    let mut forger = World::default();
    forger.add(at(1, 1), false);
    forger.set(0, vec![peer(1, Vec::new())]);
    let mut busy = World::default();
    (0..3).for_each(|host| _ = busy.add(at(50 + host, 1), false));
    busy.set(2, vec![peer(0, vec![at(1, 1)])]);
    (busy.is_recording, busy.is_cut) = (true, true);
    busy.run(secs(9 * 70));
    for (_, _, octets) in &busy.record {
        forger.deliver(at(60, 6), at(1, 1), octets);
    }
    forger.turn();
    world.is_recording = true;
    let mut seen = 0;
    for _ in 0..20_000 {
        world.run(Duration::from_micros(500));
        while let Some((from, _, octets)) = world.record.get(seen).cloned() {
            seen += 1;
            if octets.len() == INITIATION && from.port() == 5_000 {
                forger.deliver(from, at(1, 1), &octets);
                forger.is_recording = true;
                forger.turn();
                for (_, to, cookie) in std::mem::take(&mut forger.record) {
                    assert_eq!(cookie.len(), COOKIE);
                    assert!(world.deliver(at(1, 1), to, &cookie));
                }
                forger.flying.clear();
            }
        }
    }
    let initiations = world.record.iter().filter(|(_, _, octets)| octets.len() == INITIATION).count();
    assert!(world.is_up(0, 1) && world.is_up(1, 0));
    assert!(initiations < 10, "{initiations}");
}

#[test]
fn who_copies_everything_faster_keeps_nobody_out() {
    let mut world = hidden();
    world.racer = Some(at(66, 6));
    world.run(secs(10));
    assert!(world.is_up(0, 1) && world.is_up(1, 0));
    assert_eq!(world.links(0).address(1 + LINK), Some((0, at(2, 5_000))));
    assert_eq!(world.carry((0, 1), secs(5)), (0, 0));
    // Its NAT takes another port.
    world.rebind(1, 5_001);
    world.carry((0, 1), secs(5));
    assert_eq!(world.links(0).address(1 + LINK), Some((0, at(2, 5_001))));
    assert_eq!(world.carry((0, 1), secs(5)), (0, 0));
    let (to_racer, copied) = (world.sent_to[&at(66, 6)], world.sent_to[&at(1, 1)]);
    assert!(to_racer <= copied, "{to_racer} of {copied}");
}

#[test]
fn what_is_nobodys_message_wakes_nothing() {
    let mut world = hidden();
    world.run(secs(5));
    let deadline = world.links(0).deadline();
    world.deliver(at(9, 9), at(1, 1), &[0xf0]);
    world.deliver(at(9, 9), at(1, 1), &[0xf1; INITIATION]);
    let mut sealed = vec![0; LEAST];
    sealed[0] = 0xf4;
    world.deliver(at(9, 9), at(1, 1), &sealed);
    assert_eq!(world.links(0).deadline(), deadline);
    assert_eq!((world.counters(0).malformed, world.counters(0).strangers, world.counters(0).refused), (2, 0, 1));
}

#[test]
fn a_challenge_from_elsewhere_is_answered_with_no_more_than_itself() {
    let mut world = World::default();
    world.add(at(1, 1), false);
    world.add(at(2, 2), false);
    world.set(0, vec![peer(1, vec![at(2, 2)])]);
    world.set(1, vec![peer(0, vec![at(1, 1)])]);
    world.run(secs(1));
    world.rebind(1, 3);
    world.is_recording = true;
    world.carry((1, 0), Duration::from_millis(1_100));
    world.run(secs(1));
    // Whatever went from 0 to the new address is caught, and comes to 1 from a victim first.
    let victim = at(80, 80);
    for (from, to, octets) in world.record.clone() {
        if from == at(1, 1) && to == at(2, 3) {
            let before = world.sent_to.get(&victim).copied().unwrap_or(0);
            world.deliver(victim, to, &octets);
            world.turn();
            assert!(world.sent_to.get(&victim).copied().unwrap_or(0) - before <= octets.len());
        }
    }
}

#[test]
fn a_gateway_that_restarts_with_the_clock_of_yesterday_comes_in() {
    for offset in [-3_600_000_000, -86_400_000_000] {
        let mut world = hidden();
        world.run(secs(1));
        world.nodes[1].clock_micros = offset;
        world.restart(1, vec![peer(0, vec![at(1, 1)])]);
        world.run(secs(30));
        assert!(world.is_up(0, 1) && world.is_up(1, 0), "{offset}");
    }
    // Initiations of an hour in which the clock was ahead do not keep their sender out when they are repeated.
    let mut world = hidden();
    world.is_recording = true;
    world.nodes[1].clock_micros = 119_000_000;
    world.run(secs(1));
    world.nodes[1].clock_micros = 0;
    world.restart(0, vec![peer(1, Vec::new())]);
    let record = world.record.clone();
    for (_, _, octets) in record.iter().filter(|(_, _, octets)| octets.len() == INITIATION) {
        world.deliver(at(66, 6), at(1, 1), octets);
    }
    world.carry((0, 1), secs(30));
    assert!(world.is_up(0, 1) && world.is_up(1, 0));
}

/// A lid is closed and opened again; both clocks have gone on meanwhile.
#[test]
fn after_a_sleep_of_either_end_or_of_both_the_link_carries_again_within_seconds() {
    for asleep in [&[0][..], &[1], &[0, 1]] {
        for length in [secs(40), secs(600), secs(2 * 86_400)] {
            let mut world = hidden();
            world.run(secs(1));
            assert_eq!(world.carry((0, 1), secs(5)), (0, 0));
            world.asleep.extend(asleep);
            world.run(length);
            world.asleep.clear();
            world.carry((0, 1), secs(10));
            assert!(world.is_up(0, 1) && world.is_up(1, 0), "{asleep:?} for {length:?}");
            assert_eq!(world.carry((0, 1), secs(10)), (0, 0), "{asleep:?} for {length:?}");
        }
    }
}

#[test]
fn a_link_that_goes_to_another_socket_or_loses_its_address_begins_at_once() {
    let mut world = hidden();
    world.run(secs(5));
    let other = Peer { sockets: vec![1], endpoints: vec![(1, at(1, 1))], ..peer(0, Vec::new()) };
    let now = world.now(1);
    world.nodes[1].links.set_peers(vec![other], now);
    world.nodes[1].links.handle_timeout(now);
    let sent = std::iter::from_fn(|| world.nodes[1].links.poll()).map(|sent| (sent.socket, sent.octets.len()));
    assert!(sent.collect::<Vec<_>>().contains(&(1, INITIATION)));
}

#[test]
fn the_size_is_never_that_of_another_path_nor_forgotten_after_a_bad_start() {
    let mut world = hidden();
    world.largest = Some(200);
    world.run(secs(5));
    assert_eq!(world.status(0, 1).size, None);
    world.largest = None;
    world.run(secs(60));
    assert_eq!(world.status(0, 1).size, Some(1_400));
    world.largest = Some(1_300);
    world.rebind(1, 5_001);
    world.carry((0, 1), secs(2));
    assert!(world.status(0, 1).moved == 1 && world.status(0, 1).size.is_none_or(|size| size <= 1_252));
    world.set(0, vec![Peer { largest: 1_240, ..peer(1, Vec::new()) }]);
    assert!(world.status(0, 1).size.is_none_or(|size| size <= 1_240));
}

#[test]
fn a_neighbour_that_moves_without_end_costs_little() {
    let mut world = hidden();
    for gateway in [0, 1] {
        let endpoints = if gateway == 1 { vec![at(1, 1)] } else { Vec::new() };
        world.set(gateway, vec![Peer { largest: 9_000, ..peer(1 - gateway as u16, endpoints) }]);
    }
    world.run(secs(20));
    let before: usize = world.sent_to.values().sum();
    for port in 0..100 {
        world.rebind(1, 6_000 + port);
        world.carry((0, 1), Duration::from_millis(100));
    }
    let sent = world.sent_to.values().sum::<usize>() - before;
    assert!(sent < 300_000, "{sent} octets in 10 s");
}

#[test]
fn a_round_trip_longer_than_a_second_is_measured_and_no_reason_to_begin_anew() {
    let mut world = hidden();
    world.delay = Some(Duration::from_millis(600));
    world.is_recording = true;
    world.carry((0, 1), secs(300));
    let initiations = world.record.iter().filter(|(_, _, octets)| octets.len() == INITIATION).count();
    assert!(initiations < 10, "{initiations}");
    assert!(world.status(1, 0).round_trip.is_some_and(|span| span >= Duration::from_millis(1_200)));
}

#[test]
fn what_comes_behind_a_ping_that_left_after_it_is_not_lost() {
    let mut world = hidden();
    world.run(secs(1));
    let (mut late, mut random) = (0, crate::common::Random(3));
    for _ in 0..20_000 {
        let instant = Instant(world.nanos);
        world.nodes[0].links.note_sent(1 + LINK, 1, 1_000, instant);
        // Up to 64 packets are still on their way.
        late += 1;
        if random.below(64) == 0 {
            world.nodes[1].links.note_received(LINK, late, 1_000, instant);
            late = 0;
        }
        world.run(Duration::from_millis(1));
    }
    assert!(world.status(0, 1).loss.is_some_and(|loss| loss < 10_000), "{:?}", world.status(0, 1).loss);
}

#[test]
fn a_cookie_that_comes_when_the_endpoints_have_changed_is_taken() {
    let mut world = hidden();
    world.run(secs(1));
    world.restart(1, vec![peer(0, vec![at(1, 1)])]);
    world.nodes[1].clock_micros = -3_600_000_000;
    world.turn();
    world.run(Duration::from_millis(215));
    world.set(1, vec![peer(0, vec![at(1, 1), at(1, 2)])]);
    world.run(secs(30));
    assert!(world.is_up(0, 1) && world.is_up(1, 0));
}

#[test]
fn of_two_handshakes_that_cross_both_ends_use_the_same() {
    let mut world = World::default();
    world.add(at(1, 1), false);
    world.add(at(2, 2), false);
    // The one that waits a fifth of a second begins as much earlier.
    world.set(1, vec![peer(0, vec![at(1, 1)])]);
    world.run(Duration::from_millis(200));
    world.set(0, vec![peer(1, vec![at(2, 2)])]);
    world.run(secs(3));
    assert!(world.is_up(0, 1) && world.is_up(1, 0));
    world.nodes[0].links.close();
    world.run(Duration::from_millis(50));
    assert!(!world.is_up(1, 0));
}

#[test]
fn each_end_sees_how_far_the_others_clock_is_from_its_own() {
    let mut world = hidden();
    world.nodes[1].clock_micros = -7_500_000;
    world.run(secs(2));
    let clock = |world: &World, node: usize, of: usize| world.status(node, of).clock.expect("a clock");
    let round_trip = DELAY.as_micros() as u64 * 2;
    assert_eq!(clock(&world, 0, 1), Clock { ahead: -7_500_000, within: round_trip / 2 });
    assert_eq!(clock(&world, 1, 0), Clock { ahead: 7_500_000, within: round_trip / 2 });
    // A clock that is set shows within a ping, though the session goes on.
    world.nodes[1].clock_micros = 90_000_000;
    world.carry((0, 1), secs(3));
    assert_eq!(clock(&world, 0, 1).ahead, 90_000_000);
    // As far as clocks can be apart.
    world.nodes[1].clock_micros = i64::MAX;
    world.carry((0, 1), secs(3));
    assert_eq!(clock(&world, 0, 1).ahead, i64::MAX);
    // What was said long ago says nothing.
    world.is_cut = true;
    world.carry((0, 1), secs(65));
    assert_eq!(world.status(0, 1).clock, None);
    world.is_cut = false;
    world.run(secs(60));
    assert!(world.is_up(0, 1) && world.is_up(1, 0));
}
