//! A member that turns hostile, and somebody on the links between nodes. Each attack dies at a node, and with a counter, that the
//! test names.
//!
//! ICC, gateway attacks: replays, skipped nodes, changed octets and garbage between running nodes: each dies at the
//! node, and by the reason, that the test names.
//! ICD-02, 03, 05, by process: bogus, ended, another sender's and another path's consents; another's name; nodes
//! skipped in front of, and behind, a node that proved itself; swapped nodes; octets changed: each dies at the node,
//! and by the reason, that the test names.
//! ICD-04, by process: two nodes around an honest one, with their real keys, pass a captured packet around it: the
//! receiving gateway refuses it (`verifier`).
//! ICD-08, by process: packets captured on two links and sent again, at once and after the window; stamps from the
//! future: `replayed` or `stale` at the node where they come in.
//! ICC-07, by process: a gateway whose tables lie about its own addresses and the other's: `inner-source`,
//! `inner-martian`, `inner-destination`, `inner-nested` at the receiving gateway; nothing comes out.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::net::{SocketAddrV4, UdpSocket};
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use wayleave_control::consent::{ConsentRequest, RequestedPath, open};
use wayleave_control::database::Refusal;
use wayleave_control::frames::{Body, Host};
use wayleave_control::realm::Membership;
use wayleave_crypto::kdf;
use wayleave_crypto::secret::{Key128, Seed};
use wayleave_crypto::sign::SigningKey;
use wayleave_crypto::signed::Signed;
use wayleave_dataplane::link::{Config as LinkConfig, Links, Peer as LinkPeer};
use wayleave_lab::netns::{self, NetworkNamespace};
use wayleave_lab::wire::{Capture, Datagram, Forger};
use wayleave_packet::Path;
use wayleave_packet::icing::header::{NodeId, Packet, Part, Version};
use wayleave_packet::icing::mint::{Consent, EpochKey, Form, NodeSecret, Nonce, Sender, encapsulate};
use wayleave_packet::icing::verify::PathKeys;
use wayleave_runtime::Clock;
use wayleave_runtime::clock::unix_now;
use wayleave_runtime::identity::to_hex;

use super::attacks::{Wire, key, membership, seed};
use super::world::{HERE, Plan, World, address, port};
use crate::common::{eventually, text};

/// Seconds of an epoch of node IDs.
const EPOCH: u64 = 86_400;
/// The hostile member's number.
pub(super) const M: u8 = 66;
/// The protocol of what is sealed between gateways.
const SEALED: u8 = 99;

/// The number of a node.
fn number(name: &str) -> u8 {
    super::world::NODES.iter().find(|node| node.0 == name).map_or(M, |node| node.2)
}

/// The question for paths to a host.
pub(super) fn search(host: &str) -> Body {
    Body::FindHost { host: Host::Name(host.parse().expect("a name")), partials: Vec::new() }
}

/// The secret of a node's ID of now.
fn node_secret(folder: &FilePath, name: &str) -> NodeSecret {
    NodeSecret::derive(&seed(&folder.join(name).join("ids.key")), (unix_now().secs() / EPOCH) as u32)
}

/// Who consents for a node: the server's name, and where it is.
pub(super) fn server_of(name: &str) -> (&'static str, String) {
    match name {
        "w1" | "w2" | "w3" => ("west", format!("{HERE}:7201")),
        "e" => ("east", format!("{HERE}:7202")),
        _ => ("ends", format!("{HERE}:7200")),
    }
}

/// A member's keys in other hands.
pub(super) struct Thief {
    /// The realm's folder, and who everybody in it is.
    folder: PathBuf,
    identities: BTreeMap<String, String>,
    name: &'static str,
    pub(super) identity: Seed,
    pub(super) secret: NodeSecret,
    nonce: Cell<u64>,
}

impl Thief {
    fn of(world: &World, name: &'static str) -> Self {
        Self::new(&world.realm.folder.0, &world.identities, name)
    }

    pub(super) fn new(folder: &FilePath, identities: &BTreeMap<String, String>, name: &'static str) -> Self {
        let (identity, secret) = (seed(&folder.join(name).join("identity.key")), node_secret(folder, name));
        let (folder, identities) = (folder.to_path_buf(), identities.clone());
        Self { folder, identities, name, identity, secret, nonce: Cell::new(unix_now().secs() << 8) }
    }

    pub(super) fn who(&self, name: &str) -> &str {
        &self.identities[name]
    }

    pub(super) fn membership(&self) -> Signed<Membership> {
        membership(&self.folder, self.name)
    }

    fn name_of(&self, identity: &wayleave_core::IdentityKey) -> &str {
        let text = identity.to_string();
        self.identities
            .iter()
            .find(|(_, known)| known.trim_start_matches("node:") == text)
            .map_or("?", |(name, _)| name)
    }

    /// The paths to `host` that the path server finds.
    fn paths(&self, host: &str) -> Vec<Path> {
        let mut wire = self.wire("paths", &format!("{HERE}:7100"));
        match wire.ask(search(host)) {
            Body::Paths { paths, .. } => paths,
            other => panic!("{other:?}"),
        }
    }

    /// A link to a server.
    pub(super) fn wire(&self, server: &str, at: &str) -> Wire {
        Wire::open(at, &self.identities[server], &self.identity)
    }

    /// The path over these nodes.
    pub(super) fn path(&self, host: &str, nodes: &[&str]) -> Path {
        self.path_of(&self.paths(host), nodes)
    }

    /// Of these paths the one over these nodes.
    pub(super) fn path_of(&self, all: &[Path], nodes: &[&str]) -> Path {
        let over = |path: &Path| -> Vec<String> {
            path.nodes().map(|(identity, ..)| self.name_of(&identity).to_owned()).collect()
        };
        all.iter().find(|path| over(path) == nodes).unwrap_or_else(|| panic!("{nodes:?} of {all:?}")).clone()
    }

    /// What node `index` of a path answers to a request for its consent; `change` changes the request before it is signed.
    fn request(
        &self,
        path: &Path,
        index: usize,
        seconds: u32,
        change: impl FnOnce(&mut ConsentRequest),
    ) -> Result<(u32, Consent), Refusal> {
        let (server, at) = self.server(path, index);
        self.consent(self.wire(server, &at).ask(self.question(path, index, seconds, change)))
    }

    /// Who consents for node `index` of a path.
    pub(super) fn server(&self, path: &Path, index: usize) -> (&'static str, String) {
        let (identity, ..) = path.nodes().nth(index).expect("a node");
        server_of(self.name_of(&identity))
    }

    /// The question of [`Self::request`].
    pub(super) fn question(
        &self,
        path: &Path,
        index: usize,
        seconds: u32,
        change: impl FnOnce(&mut ConsentRequest),
    ) -> Body {
        let own = SigningKey::from_seed(&self.identity);
        let membership = self.membership();
        let nodes: Vec<_> = path.nodes().collect();
        let (server, _) = self.server(path, index);
        let now = unix_now().secs();
        self.nonce.set(self.nonce.get() + 1);
        let mut nonce = [0; 16];
        nonce[..8].copy_from_slice(&self.nonce.get().to_be_bytes());
        nonce[8..].copy_from_slice(&unix_now().0.to_be_bytes());
        let epoch_key = EpochKey {
            epoch: (now / EPOCH) as u32,
            not_before: now as u32 - 60,
            not_after: now as u32 + 3_600,
            node: nodes[0].1,
        };
        let mut request = ConsentRequest {
            realm: membership.object().realm,
            server: key(&self.identities[server]),
            sender: membership.object().identity,
            nonce,
            time: now,
            path: RequestedPath {
                sender: nodes[0].1,
                hops: nodes[1..].iter().map(|(_, id, tag)| (*id, *tag)).collect(),
            },
            index: index as u8,
            expiry: now as u32 + seconds,
            epoch_key: epoch_key.sign(&own),
            packets: path.version(),
        };
        change(&mut request);
        let request = Signed::sign(&request, &own).expect("well formed");
        Body::Consent { membership, request }
    }

    /// The consent in the answer to [`Self::question`].
    pub(super) fn consent(&self, answer: Body) -> Result<(u32, Consent), Refusal> {
        match answer {
            Body::Consented(answer) => {
                let answer = answer.object();
                Ok((answer.expiry, open(answer, &self.secret).expect("sealed to the sender's ID")))
            }
            Body::Refused(refusal) => Err(refusal),
            other => panic!("{other:?}"),
        }
    }

    /// The path with the consents of all its nodes, which end together: also when a second ends between two requests.
    pub(super) fn consented(&self, path: &Path, seconds: u32) -> Path {
        let mut path = path.clone();
        let count = path.nodes().len();
        let end = unix_now().secs() as u32 + seconds;
        for index in 1..count {
            let consented = self.request(&path, index, seconds, |request| request.expiry = end);
            let (expiry, consent) = consented.expect("consented");
            assert_eq!(expiry, end, "a consent ends when it was asked to");
            path.add_consent(index, expiry, consent).expect("a node of the path");
        }
        path
    }

    pub(super) fn sender(&self, path: &Path) -> Sender {
        path.sender(Version::Standard, &self.secret).expect("a sender")
    }

    pub(super) fn packet(&self, sender: &Sender, payload: &[u8]) -> Vec<u8> {
        self.nonce.set(self.nonce.get() + 1);
        let nonce = Nonce::new(unix_now(), self.nonce.get() as u32);
        let mut out = Vec::new();
        encapsulate(sender, (Form::Path, Part::Whole), SEALED, nonce, payload, &mut out).expect("a packet");
        out
    }
}

/// m's end of its link to w1: it proves itself, as long as this lives.
pub(super) struct End(Arc<AtomicBool>, Option<std::thread::JoinHandle<()>>);

impl End {
    pub(super) fn start(realm: &FilePath, host: &UdpSocket) -> Self {
        let socket = host.try_clone().expect("a clone");
        socket.set_read_timeout(Some(Duration::from_millis(20))).expect("a timeout");
        let (m, w1) = (membership(realm, "m"), membership(realm, "w1"));
        let (m, w1) = (m.object(), w1.object());
        let noise = seed(&realm.join("m/noise.key"));
        let config = LinkConfig { identity: m.identity, realm: m.realm.0, noise, seed: Seed::new([7; 32]) };
        let mut links = Links::new(config);
        let (clock, there) = (Clock::start(), port(11, M).parse().expect("an address"));
        let (identity, noise) = (w1.identity, w1.noise);
        let peer = LinkPeer {
            link: 11,
            identity,
            noise,
            sockets: vec![0],
            endpoints: vec![(0, there)],
            tls: None,
            tls_endpoints: Vec::new(),
            largest: 1_400,
        };
        links.set_peers(vec![peer], clock.now());
        let (ends, is_up) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (of_thread, up) = (Arc::clone(&ends), Arc::clone(&is_up));
        let thread = std::thread::spawn(move || {
            let mut octets = [0; 2_000];
            while !of_thread.load(Ordering::Relaxed) {
                if let Ok((length, from)) = socket.recv_from(&mut octets) {
                    links.receive((0, from), &octets[..length], clock.now());
                }
                links.handle_timeout(clock.now());
                while let Some(datagram) = links.poll() {
                    let _ = socket.send_to(&datagram.octets, datagram.to);
                }
                up.store(links.address(11).is_some(), Ordering::Relaxed);
            }
        });
        eventually("w1 lets m prove itself", || is_up.load(Ordering::Relaxed));
        Self(ends, Some(thread))
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        let _ = self.1.take().map(std::thread::JoinHandle::join);
    }
}

/// What a node has counted under a name.
fn counted(world: &World, node: &str, reason: &str) -> u64 {
    let status = world.nodes[node].show("status", &[]);
    let groups = ["reasons", "refused", "dropped"].map(|group| status[group][reason].as_u64().unwrap_or(0));
    groups.iter().sum()
}

/// How often an attack is played when its packet came too late.
const ATTEMPTS: usize = 5;

/// What `attack` sends is counted at `node` under `reason`, and only there. On a busy machine the five seconds of a packet's stamp may
/// have passed before it comes; it is counted as stale then, and the attack begins anew, with a packet of its own.
fn dies(world: &World, what: &str, node: &str, reason: &str, mut attack: impl FnMut()) {
    dies_made(world, what, node, reason, || (), |()| attack());
}

/// Like [`dies`], of an attack with what `make` has taken from honest packets, which may come to their end.
fn dies_made<T>(
    world: &World,
    what: &str,
    node: &str,
    reason: &str,
    mut make: impl FnMut() -> T,
    mut attack: impl FnMut(&T),
) {
    for _ in 0..ATTEMPTS {
        let made = make();
        let before = [reason, "stale"].map(|reason| counted(world, node, reason));
        let delivered = counted(world, "b", "malformed");
        attack(&made);
        let begin = Instant::now();
        let mut is_late = false;
        while counted(world, node, reason) == before[0] && !is_late {
            is_late = reason != "stale" && counted(world, node, "stale") > before[1];
            assert!(
                begin.elapsed() < Duration::from_secs(60),
                "{what} does not die at {node} by {reason}: {}",
                world.statuses()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(counted(world, "b", "malformed"), delivered, "{what} was delivered");
        if !is_late {
            return;
        }
    }
    panic!("{what}: {ATTEMPTS} packets came to {node} more than five seconds after they were stamped");
}

/// A packet with one bit changed: of the octet at a place, or of the last.
fn with_other(mut packet: Vec<u8>, place: Option<usize>) -> Vec<u8> {
    let place = place.unwrap_or(packet.len() - 1);
    packet[place] ^= 1;
    packet
}

/// Where `node` receives what `from` sends, and the address from which it expects it.
fn link(from: u8, to: u8) -> (SocketAddrV4, SocketAddrV4) {
    (port(from, to).parse().expect("an address"), port(to, from).parse().expect("an address"))
}

fn is_datagram(frame: &[u8]) -> bool {
    Datagram::of(frame).is_some()
}

/// A hostile world: m is a member behind w1, and somebody is on every link.
struct Scene {
    world: World,
    capture: Capture,
    forger: Forger,
}

impl Scene {
    fn new(name: &str) -> Self {
        let plan = Plan { more: &[("m", "gateway", M, 0)], links: &[("m", "w1", "provider")], ..Plan::default() };
        let mut world = World::with(name, &plan).settled();
        // m was honest until now: others know it.
        eventually("m is known", || world.nodes["m"].ask(&["ping", "fast.b.overlay"]).status.success());
        world.node("m").kill();
        let capture = Capture::start(&NetworkNamespace::Own, is_datagram).expect("a packet socket");
        let forger = Forger::new(&NetworkNamespace::Own).expect("a raw socket");
        Self { world, capture, forger }
    }

    /// Sends what `from` would send to `to`, under its address.
    fn forge(&self, from: &str, to: &str, payload: &[u8]) {
        let (from, to) = link(number(from), number(to));
        self.forger.send(&Datagram { from, to, payload: payload.to_vec() }).expect("sent");
    }

    /// An honest packet that came to its receiver: as m sent it, and as it was on each of these links.
    fn honest<const LINKS: usize>(
        &self,
        m: &Thief,
        sender: &Sender,
        send: impl Fn(&[u8]),
        links: [(&str, &str); LINKS],
    ) -> (Vec<u8>, [Vec<u8>; LINKS]) {
        let delivered = || counted(&self.world, "b", "malformed");
        let mut tries = 0;
        loop {
            tries += 1;
            let end = format!("honest {}", m.nonce.get());
            let (packet, before, begin) = (m.packet(sender, end.as_bytes()), delivered(), Instant::now());
            send(&packet);
            while delivered() == before && begin.elapsed() < Duration::from_secs(20) {
                std::thread::sleep(Duration::from_millis(20));
            }
            let on_wire = |(from, to)| {
                let link = link(number(from), number(to));
                let all = self.capture.datagrams();
                let is_it = |it: &&Datagram| (it.from, it.to) == link && it.payload.ends_with(end.as_bytes());
                all.iter().find(is_it).map(|it| it.payload.clone())
            };
            let seen = links.map(on_wire);
            if delivered() > before && seen.iter().all(Option::is_some) {
                return (packet, seen.map(Option::unwrap_or_default));
            }
            assert!(tries < ATTEMPTS, "an honest packet does not come to b: {}", self.world.statuses());
        }
    }
}

#[test]
fn packets_off_their_consented_path_die_at_the_next_honest_node_by_name() {
    let test = "overlay::hostile::packets_off_their_consented_path_die_at_the_next_honest_node_by_name";
    if netns::enter_for_test(test).is_none() {
        return;
    }
    let scene = Scene::new("hostile");
    let world = &scene.world;
    let (m, a) = (Thief::of(world, "m"), Thief::of(world, "a"));
    let host = world.places["m"].within(|| UdpSocket::bind(port(M, 11))).expect("in its place").expect("m's end");
    let _end = End::start(&world.realm.folder.0, &host);
    let send = |octets: &[u8]| {
        host.send_to(octets, port(11, M)).expect("sent");
    };
    let (short, long) = (m.path("b", &["m", "w1", "w3", "b"]), m.path("b", &["m", "w1", "w2", "w3", "b"]));
    let (short, long) = (m.consented(&short, 300), m.consented(&long, 300));
    let (on_short, on_long) = (m.sender(&short), m.sender(&long));

    // With every consent it comes to the end: what is not a message dies there.
    for sender in [&on_short, &on_long] {
        scene.honest(&m, sender, send, []);
    }

    // Consents: made up, another sender's, for another path, ended.
    let bogus = || Consent::new(Key128::new([7; 16]));
    for (index, node) in [(1, "w1"), (2, "w3")] {
        let mut path = short.clone();
        path.add_consent(index, unix_now().secs() as u32 + 60, bogus()).expect("a node");
        dies(world, "a bogus consent", node, "consent", || send(&m.packet(&m.sender(&path), b"x")));
    }
    let of_a = a.consented(&a.path("b", &["a", "w1", "w3", "b"]), 300);
    let swap = |path: &Path, with: &Path| {
        // The other path's consents on this path.
        let (path, with) = (path.icing_path().expect("whole"), with.sender(Version::Standard, &a.secret));
        (path, with.expect("a sender"))
    };
    let (route, theirs) = swap(&short, &of_a);
    let stolen: Vec<Consent> = (1..4).map(|index| Consent::new(Key128::new(*theirs.keys(index)[0]))).collect();
    let forged = Sender::new(Version::Standard, &route, &m.secret, &stolen).expect("a sender");
    dies(world, "another sender's consents", "w1", "consent", || send(&m.packet(&forged, b"x")));
    let of_long: Vec<Consent> = (1..4).map(|index| Consent::new(Key128::new(*on_long.keys(index)[0]))).collect();
    let forged = Sender::new(Version::Standard, &route, &m.secret, &of_long).expect("a sender");
    dies(world, "consents to another path", "w1", "consent", || send(&m.packet(&forged, b"x")));
    // a's path, name and consents without a's key: from m's link, and from a's own.
    let in_name = wayleave_packet::icing::header::Path::new(a.secret.id(), of_a.icing_path().expect("whole").hops());
    let in_name = in_name.expect("a path");
    dies(world, "a's packets by m's link", "w1", "ingress", || send(&m.packet(&theirs, b"x")));
    dies(world, "a's packet with another payload", "w1", "verifier", || {
        scene.forge("a", "w1", &with_other(m.packet(&theirs, b"x"), None));
    });
    assert_eq!(in_name.count(), 4);
    let ended = m.consented(&short, 10);
    eventually("a consent ends", || unix_now().secs() > ended.expiry() + 1);
    dies(world, "a consent that has ended", "w1", "expired", || send(&m.packet(&m.sender(&ended), b"x")));

    // The path: nodes skipped, and swapped.
    let skips = || {
        let (_, [mut marked]) = scene.honest(&m, &on_long, send, [("w1", "w2")]);
        marked[3] = 3;
        marked
    };
    dies_made(world, "w2 skipped, as if from w1", "w3", "ingress", skips, |skips| scene.forge("w1", "w3", skips));
    dies_made(world, "w2 skipped, as if from w2", "w3", "verifier", skips, |skips| scene.forge("w2", "w3", skips));
    dies(world, "w1 skipped", "w2", "verifier", || {
        let mut early = m.packet(&on_long, b"skips w1");
        early[3] = 2;
        scene.forge("w1", "w2", &early);
    });
    let nodes: Vec<_> = long.icing_path().expect("whole").hops().to_vec();
    let swapped = [nodes[0], nodes[2], nodes[1], nodes[3]];
    let swapped = wayleave_packet::icing::header::Path::new(m.secret.id(), &swapped).expect("a path");
    let all: Vec<Consent> = (1..5).map(|index| Consent::new(Key128::new(*on_long.keys(index)[0]))).collect();
    let forged = Sender::new(Version::Standard, &swapped, &m.secret, &all).expect("a sender");
    dies(world, "w2 and w3 swapped", "w1", "consent", || send(&m.packet(&forged, b"x")));
    // w1 and w3 collude around w2: w3 adds what it can to what w1 marked. b misses w2 (ICD-04).
    let w3 = node_secret(&world.realm.folder.0, "w3");
    let path = long.icing_path().expect("whole");
    assert_eq!(*path.node(3), w3.id(), "w3's key");
    let mut keys = PathKeys::new(path.route(Version::Standard), 3, 5, &all[2]);
    for other in [0, 1, 2, 4] {
        keys.set_pair(other, &w3.pair(path.node(other), Version::Standard).expect("a key"));
    }
    let shortcut = || {
        let mut shortcut = skips();
        let tags = keys.proof_tags(&Packet::decode(&shortcut, Version::Standard).expect("a packet"));
        tags.advance(&mut shortcut);
        assert_eq!(shortcut[3], 4);
        shortcut
    };
    dies_made(world, "a shortcut around w2 by two who collude", "b", "verifier", shortcut, |shortcut| {
        scene.forge("w3", "b", shortcut);
    });

    // On the link between two nodes: octets changed, packets repeated (ICD-08).
    for (what, place, reason) in
        [("payload", None, "verifier"), ("handle", Some(20), "handle"), ("nonce", Some(15), "consent")]
    {
        let changed = || {
            let (_, [seen]) = scene.honest(&m, &on_short, send, [("w1", "w3")]);
            with_other(seen, place)
        };
        dies_made(world, &format!("another {what}"), "w3", reason, changed, |seen| scene.forge("w1", "w3", seen));
    }
    // The receiver leaves that to its sessions, and these packets are of none.
    let again = || scene.honest(&m, &on_short, send, [("w1", "w3")]);
    dies_made(world, "a packet again at the first node", "w1", "replayed", again, |(sent, _)| send(sent));
    dies_made(world, "a packet again at the second node", "w3", "replayed", again, |(_, [seen])| {
        scene.forge("w1", "w3", seen);
    });
    // Beyond the window of five seconds; and at a node that has forgotten all, since it was started anew.
    let (old, _) = again();
    std::thread::sleep(Duration::from_secs(6));
    dies(world, "a packet again after the window", "w1", "stale", || send(&old));
    let mut ahead = Vec::new();
    let late = Nonce::new(wayleave_core::UnixTime(unix_now().0 + 60_000_000), 1);
    encapsulate(&on_short, (Form::Path, Part::Whole), SEALED, late, b"x", &mut ahead).expect("a packet");
    dies(world, "a stamp from the future", "w1", "stale", || send(&ahead));
    dies(world, "garbage", "w1", "malformed", || send(&[0x5a; 300]));

    // An ID that another has: of the consent servers, and of the path server (`attacks`).
    let mut claimed = of_a.clone();
    claimed = Path::icing(claimed.hops().to_vec(), claimed.expiry(), claimed.mtu()).expect("a path");
    let refused = m.request(&claimed, 1, 60, |_| ());
    assert_eq!(refused.err(), Some(Refusal::IdClaimed(key(&world.identities["a"]))));
    // A consent server of another provider has no key for the node.
    let refused = m.request(&short, 1, 60, |request| request.index = 3);
    assert_eq!(refused.err(), Some(Refusal::NotServed));

    // The operator removes m: nobody consents, and its neighbour takes nothing of it, whatever it proves.
    let fresh = m.sender(&m.consented(&short, 300));
    world.realm.folder.ok(&["realm", "revoke", "m", "--config", "realm/realm.toml"]);
    eventually("no server consents to a removed member", || {
        m.request(&short, 1, 60, |_| ()).err() == Some(Refusal::Revoked)
    });
    // Its address is no neighbour's any more.
    let strangers = || world.nodes["w1"].count("strangers");
    let before = strangers();
    eventually("w1 knows it no more", || {
        send(&m.packet(&fresh, b"x"));
        strangers() > before
    });
    let (before, delivered) = (strangers(), counted(world, "b", "malformed"));
    for _ in 0..10 {
        send(&m.packet(&fresh, b"x"));
    }
    // More, if one that was sent above came after the count.
    eventually("w1 takes nothing of it", || strangers() >= before + 10);
    assert_eq!(counted(world, "b", "malformed"), delivered);
}

/// The configuration of m as a gateway that lies to itself: paths, proofs and keys are real, members and prefixes are not.
fn lie(world: &World, m: &Thief, path: &Path, own: &[&str], of_b: &[&str]) {
    let secret = |file: &str| {
        let text = fs::read_to_string(world.path(file)).expect("a key file");
        let line = text.lines().find_map(|line| line.strip_prefix("secret = \"")).expect("a secret");
        line.trim_end_matches('"').to_owned()
    };
    let noise = |name: &str| {
        let object = membership(&world.realm.folder.0, name).object().clone();
        to_hex(&object.noise.to_bytes())
    };
    let id = |id: &NodeId| to_hex(&id.to_bytes());
    let epoch = (unix_now().secs() / EPOCH) as u32;
    let ids = seed(&world.path("m/ids.key"));
    let node: Seed = kdf::derive("wayleave/icing/node/v1", ids.expose(), &epoch.to_be_bytes());
    let sender = m.sender(path);
    let nodes: Vec<_> = path.nodes().collect();
    let (w1, first) = (world.identities["w1"].clone(), id(&nodes[1].1));
    let file = json!({
        "identity": world.identities["m"], "noise": secret("m/noise.key"), "node": to_hex(node.expose()),
        "tags": secret("m/tags.key"), "tag": 0x8000_0000u32,
        "realm": to_hex(&membership(&world.realm.folder.0, "m").object().realm.0),
        "links": [{
            "id": 11, "identity": w1, "node": first, "noise": noise("w1"), "local": port(M, 11), "remote": port(11, M),
        }],
        "members": [
            { "name": "m", "identity": world.identities["m"], "noise": noise("m"), "prefixes": own },
            { "name": "b", "identity": world.identities["b"], "noise": noise("b"), "prefixes": of_b },
        ],
        "paths": [{
            "nodes": nodes.iter().map(|(identity, node, tag)| json!({
                "identity": identity.to_string(), "node": id(node), "tag": tag.0,
            })).collect::<Vec<Value>>(),
            "mtu": path.mtu(), "expiry": path.expiry(),
            "consents": (1..nodes.len()).map(|index| to_hex(sender.keys(index)[0])).collect::<Vec<_>>(),
        }],
    });
    fs::write(world.path("m/lies.json"), file.to_string()).expect("written");
    world.realm.edit("m/gateway.toml", |text| match text.split_once("[overlay]") {
        None => text,
        Some((head, _)) => {
            format!("{head}[laboratory]\nfile = \"lies.json\"\n[status]\nlisten = \"127.0.0.1:8492\"\n")
        }
    });
}

/// ICC-07: a gateway that lies about whose addresses it has and where others are.
#[test]
fn inner_packets_that_their_sender_may_not_send_die_at_the_receiving_gateway_by_name() {
    let test = "overlay::hostile::inner_packets_that_their_sender_may_not_send_die_at_the_receiving_gateway_by_name";
    if netns::enter_for_test(test).is_none() {
        return;
    }
    let mut scene = Scene::new("inner");
    let ip = |arguments: &str| {
        let status = std::process::Command::new("ip").args(arguments.split(' ')).status();
        assert!(status.expect("ip runs").success(), "{arguments}");
    };
    {
        let m = Thief::of(&scene.world, "m");
        let path = m.consented(&m.path("b", &["m", "w1", "w3", "b"]), 250);
        // All consents end together.
        lie(&scene.world, &m, &path, &["10.0.66.0/24", "10.0.1.0/24", "203.0.113.0/24"], &["10.0.2.0/24"]);
    }
    scene.world.node("m").resume();
    for address in ["10.0.66.1", "10.0.1.77", "203.0.113.7"] {
        ip(&format!("-n n-m addr add {address}/32 dev lo"));
    }
    let world = &scene.world;
    let received = || world.nodes["b"].count("received");
    let socket = |from: &str| {
        let mut socket = None;
        eventually(&format!("m has the address {from}: {}", world.logs()), || {
            socket = world.places["m"].within(|| UdpSocket::bind((from, 4_000))).expect("in its place").ok();
            socket.is_some()
        });
        socket.expect("just bound")
    };
    let behind = world.places["b"].within(|| UdpSocket::bind("0.0.0.0:9")).expect("in its place").expect("b's end");
    behind.set_read_timeout(Some(Duration::from_secs(1))).expect("a timeout");
    let mut octets = [0; 2_000];
    // Its own address is taken; so its session stands.
    let own = socket("10.0.66.1");
    eventually(&format!("m sends to b: {}", world.logs()), || {
        own.send_to(b"own", "10.0.2.1:9").is_ok() && behind.recv(&mut octets).is_ok()
    });
    while behind.recv(&mut octets).is_ok() {}
    let before = received();
    for from in ["10.0.1.77", "203.0.113.7"] {
        let socket = socket(from);
        dies(world, &format!("the source {from}"), "b", "inner-source", || {
            socket.send_to(b"spoofed", "10.0.2.1:9").expect("sent");
        });
    }
    // One of our own packets in another, and that in a third.
    let m = Thief::of(world, "m");
    let tunnel = {
        let path = m.consented(&m.path("b", &["m", "w1", "w3", "b"]), 60);
        let sender = m.sender(&path);
        let inside = |inner: &[u8]| {
            let mut out = Vec::new();
            encapsulate(&sender, (Form::Handle, Part::Whole), 4, Nonce(7), inner, &mut out).expect("a packet");
            out
        };
        // IPv4 and UDP around a tunnel, without checksums of UDP.
        let mut ip =
            vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 66, 1, 10, 0, 2, 1, 0, 9, 0xc0, 0x66, 0, 0, 0, 0];
        let core = inside(&ipv4_udp(b"x"));
        let total = (ip.len() + core.len()) as u16;
        ip[2..4].copy_from_slice(&total.to_be_bytes());
        ip[24..26].copy_from_slice(&((8 + core.len()) as u16).to_be_bytes());
        ip.extend(core);
        let sum = checksum(&ip[..20]);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        inside(&ip)
    };
    dies(world, "a tunnel in a tunnel in a tunnel", "b", "inner-nested", || {
        own.send_to(&tunnel, "10.0.2.1:49254").expect("sent");
    });
    // Where it says that b is: loopback, another's network, a's.
    for (of_b, reason) in [
        ("127.0.0.1/32", "inner-martian"),
        ("10.0.1.1/32", "inner-destination"),
        ("192.0.2.250/32", "inner-destination"),
    ] {
        let path = m.consented(&m.path("b", &["m", "w1", "w3", "b"]), 250);
        lie(world, &m, &path, &["10.0.66.0/24"], &[of_b]);
        let reloads = || world.nodes["m"].log().matches("configuration reloaded").count();
        let count = reloads();
        world.nodes["m"].signal("-HUP");
        eventually("the lie is believed", || reloads() > count);
        let name = world.nodes["m"].json(&["show", "names"]);
        assert!(name["names"].is_array(), "{name}");
        // By a name: its address stands for what m believes of b.
        let resolved = dig(world, "m", "fast.b.overlay").expect("a name");
        dies(world, &format!("the destination {of_b}"), "b", reason, || {
            // Its sessions may begin anew.
            for _ in 0..10 {
                let _ = own.send_to(b"to whom", (resolved.as_str(), 9));
                std::thread::sleep(Duration::from_millis(100));
            }
        });
    }
    while let Ok(length) = behind.recv(&mut octets) {
        assert_eq!(&octets[..length], b"own", "only what its sender may send came out");
    }
    eprintln!("b let {} packets of m out before, {} in all", before, received());
    assert!(text(&world.nodes["b"].ask(&["show", "status", "--all"]).stdout).contains("inner"), "b says so");
    assert_eq!(address(2), "192.0.2.2");
}

fn checksum(octets: &[u8]) -> u16 {
    let mut sum: u32 = octets.chunks(2).map(|two| u32::from(two[0]) << 8 | u32::from(*two.get(1).unwrap_or(&0))).sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

fn ipv4_udp(payload: &[u8]) -> Vec<u8> {
    let mut ip = vec![0x45, 0, 0, (28 + payload.len()) as u8, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 66, 1, 10, 0, 2, 1];
    let sum = checksum(&ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    ip.extend([0, 9, 0, 9, 0, (8 + payload.len()) as u8, 0, 0]);
    ip.extend(payload);
    ip
}

/// The IPv4 address of a name, as the node's own server of names has it; none if there is no such name.
pub(super) fn dig(world: &World, node: &str, name: &str) -> Option<String> {
    let socket = world.places[node].within(|| UdpSocket::bind("127.0.0.1:0")).expect("in its place").expect("a port");
    socket.set_read_timeout(Some(Duration::from_secs(2))).expect("a timeout");
    let mut query = vec![0, 9, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        query.push(label.len() as u8);
        query.extend(label.as_bytes());
    }
    query.extend([0, 0, 1, 0, 1]);
    let mut answer = [0; 512];
    let mut length = 0;
    eventually("a name is answered", || {
        socket.send_to(&query, "127.0.0.1:53").expect("sent");
        length = socket.recv(&mut answer).unwrap_or(0);
        length >= query.len()
    });
    // No error, and one answer.
    let is_there = answer[3] & 15 == 0 && answer[7] == 1;
    let last: [u8; 4] = *answer[..length].last_chunk().expect("as long as the question");
    is_there.then(|| last.map(|octet| octet.to_string()).join("."))
}
