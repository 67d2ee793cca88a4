//! ICING packets over three nodes: on the path that all consented to, and off it.
//!
//! ICD-06: the same flood at running nodes: few agreements, and no good packet is lost.

use std::net::UdpSocket;
use std::time::Duration;

use wayleave_crypto::kdf;
use wayleave_crypto::secret::Seed;
use wayleave_lab::netns::NetworkNamespace;
use wayleave_packet::icing::header::{Hop, NodeId, Packet, Part, Path, Tag, Version};
use wayleave_packet::icing::mint::{Consent, Form, NodeSecret, Nonce, Sender, TagMaster, encapsulate};
use wayleave_runtime::clock::unix_now;

use super::common::{Folder, Router, eventually, free};

/// Longest wait for one packet.
const WAIT: Duration = Duration::from_secs(5);
const TAG: Tag = Tag(0x4900_0001);
const SERVICE: u16 = 7;

/// The key of node `node` in its file; node 0 sends and has none.
pub(crate) fn key(node: usize) -> [u8; 16] {
    [node as u8 + 1; 16]
}

pub(crate) fn seed(node: usize) -> Seed {
    kdf::derive("wayleave/icing/file/v1", &key(node), b"")
}

pub(crate) fn secret(node: usize) -> NodeSecret {
    NodeSecret::from_seed(&seed(node))
}

pub(crate) fn hex(node: &NodeId) -> String {
    node.to_bytes().iter().map(|octet| format!("{octet:02x}")).collect()
}

pub(crate) fn path(order: &[usize]) -> Path {
    path_with(order, TAG)
}

/// The same with one tag at every node.
pub(crate) fn path_with(order: &[usize], tag: Tag) -> Path {
    let expiry = unix_now().secs() as u32 + 600;
    let hops: Vec<Hop> = order[1..].iter().map(|node| Hop { node: secret(*node).id(), tag, expiry }).collect();
    Path::new(secret(order[0]).id(), &hops).expect("a path")
}

/// A sender on `path` over `order`, with every node's consent.
pub(crate) fn sender(order: &[usize], path: &Path) -> Sender {
    let consents: Vec<Consent> = (1..)
        .zip(&order[1..])
        .map(|(index, node)| {
            let hop = path.hop(index);
            TagMaster::derive(&seed(*node), 0).consent(&path.hash(Version::Standard), index, hop.tag, hop.expiry)
        })
        .collect();
    Sender::new(Version::Standard, path, &secret(order[0]), &consents).expect("a sender")
}

pub(crate) fn packet(sender: &Sender, counter: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let nonce = Nonce::new(unix_now(), counter);
    encapsulate(sender, (Form::Path, Part::Whole), 4, nonce, payload, &mut out).expect("a packet");
    out
}

/// A socket that plays a sender or a service.
pub(crate) fn socket() -> (UdpSocket, String) {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    socket.set_read_timeout(Some(WAIT)).expect("a timeout");
    let address = socket.local_addr().expect("bound").to_string();
    (socket, address)
}

/// A link: number, own end, other end, and the node behind it, if that is not senders.
pub(crate) fn link(id: u16, local: &str, remote: &str, node: Option<usize>) -> String {
    let behind = match node {
        Some(node) => format!("nodes = [\"{}\"]", hex(&secret(node).id())),
        None => "open = true".to_owned(),
    };
    format!("[[link]]\nid = {id}\nlocal = \"{local}\"\nremote = \"{remote}\"\n{behind}\n")
}

/// Nodes 1, 2 and 3 in a chain. Senders are before node 1, and before node 2.
struct Chain {
    nodes: Vec<Router>,
    service: UdpSocket,
    /// Socket and node's address, before nodes 1 and 2.
    before: [(UdpSocket, String); 2],
    _folder: Folder,
}

impl Chain {
    fn start(name: &str, workers: usize) -> Self {
        let folder = Folder::new(name);
        (1..4).for_each(|node| folder.keys(&format!("{node}.key"), "icing", &[(0, key(node))]));
        let [entry, side, inside] = [free(), free(), free()];
        let [ab, ba, bc, cb] = [free(), free(), free(), free()];
        let ((first, first_at), (second, second_at), (service, service_at)) = (socket(), socket(), socket());
        let head = |node: usize, more: &str| {
            format!(
                "[forwarding]\nformat = \"icing\"\nkeys = \"{node}.key\"\nworkers = {workers}\n[icing]\nagreements_per_second = 20\n{more}"
            )
        };
        let next = "tags = [{ prefix = \"49000000/8\" }]\n";
        let last = format!(
            "internal = \"{inside}\"\ntags = [{{ prefix = \"49000000/8\", service = {SERVICE} }}]\n\
             services = [{{ id = {SERVICE}, address = \"{service_at}\" }}]\n"
        );
        let configs = [
            head(1, next) + &link(1, &entry, &first_at, None) + &link(2, &ab, &ba, Some(2)),
            head(2, next)
                + &link(1, &ba, &ab, Some(1))
                + &link(2, &bc, &cb, Some(3))
                + &link(3, &side, &second_at, None),
            head(3, &last) + &link(1, &cb, &bc, Some(2)),
        ];
        let start = |(index, config): (usize, &String)| {
            Router::start(&folder, &format!("node{}", index + 1), NetworkNamespace::Own, config)
        };
        let nodes = configs.iter().enumerate().map(start).collect();
        Self { nodes, service, before: [(first, entry), (second, side)], _folder: folder }
    }

    /// Sends a packet to node 1 or node 2 from the senders' side.
    fn send(&self, place: usize, octets: &[u8]) {
        let (socket, to) = &self.before[place];
        socket.send_to(octets, to).expect("sent");
    }

    fn delivered(&self) -> Vec<u8> {
        let mut octets = [0; 4096];
        let (length, _) = self.service.recv_from(&mut octets).expect("a packet in time");
        octets[..length].to_vec()
    }

    fn reason(&self, node: usize, reason: &str) -> u64 {
        self.nodes[node - 1].count("reasons", reason)
    }
}

#[test]
fn packets_pass_three_nodes_on_the_consented_path_and_are_dropped_where_they_leave_it() {
    for workers in [1, 3] {
        passes_and_is_dropped(&Chain::start(&format!("icing-{workers}"), workers));
    }
}

fn passes_and_is_dropped(chain: &Chain) {
    let (path, order) = (path(&[0, 1, 2, 3]), [0, 1, 2, 3]);
    let honest = sender(&order, &path);
    for counter in 0..50u32 {
        let payload = vec![counter as u8; counter as usize * 20];
        chain.send(0, &packet(&honest, counter, &payload));
        let arrived = chain.delivered();
        let arrived = Packet::decode(&arrived, Version::Standard).expect("sound");
        assert_eq!((arrived.payload(), arrived.is_last(), arrived.held()), (&payload[..], true, 0b1110));
    }
    // The same packet again.
    let again = packet(&honest, 100, b"once");
    chain.send(0, &again);
    chain.delivered();
    chain.send(0, &again);
    eventually("a repeated packet ends at node 1", || chain.reason(1, "replayed") == 1);
    // One octet of the payload changed.
    let mut changed = packet(&honest, 101, b"changed");
    *changed.last_mut().expect("a payload") ^= 1;
    chain.send(0, &changed);
    eventually("a changed packet ends at node 1", || chain.reason(1, "verifier") == 1);
    // Around node 1: as if it had passed there, and over a path of which it is no part, but without consent.
    let mut around = packet(&honest, 102, b"around");
    around[3] = 2;
    chain.send(1, &around);
    eventually("a packet that went around node 1 ends at node 2", || chain.reason(2, "ingress") == 1);
    let short = self::path(&[0, 2, 3]);
    let mut stolen = packet(&sender(&[0, 2, 3], &short), 103, b"short");
    chain.send(1, &stolen);
    assert_eq!(Packet::decode(&chain.delivered(), Version::Standard).expect("sound").payload(), b"short");
    // With another node's consent in place of its own.
    let consents = [0, 1].map(|_| TagMaster::derive(&seed(9), 0));
    let consents: Vec<Consent> = (1..)
        .zip(&consents)
        .map(|(index, master)| master.consent(&short.hash(Version::Standard), index, TAG, short.hop(index).expiry))
        .collect();
    let forged = Sender::new(Version::Standard, &short, &secret(0), &consents).expect("a sender");
    stolen = packet(&forged, 104, b"forged");
    chain.send(1, &stolen);
    eventually("a forged consent ends at node 2", || chain.reason(2, "consent") == 1);
    assert_eq!(chain.nodes[2].count("decided", "delivered"), 52);
    assert_eq!(chain.nodes[2].status()["reasons"], serde_json::json!({}));
}

/// ICD-06: node IDs that nobody has seen cost no agreement without a consent, and few with one; a good flow passes.
#[test]
fn a_flood_of_unknown_nodes_costs_few_agreements_and_no_good_packet() {
    let chain = Chain::start("icing-flood", 2);
    let path = path(&[0, 1, 2, 3]);
    let good = sender(&[0, 1, 2, 3], &path);
    chain.send(0, &packet(&good, 0, b"first"));
    chain.delivered();
    let before = chain.nodes[1].count("decided", "agreements");
    let rounds = 100u32;
    for number in 0..rounds {
        // A path of unknown senders, without node 2's consent; each fourth one has stolen it.
        let unknown = 10 + number as usize;
        let strange = self::path(&[unknown, 2, 3]);
        let consent = |index: usize, node: usize| {
            let (hash, hop) = (strange.hash(Version::Standard), strange.hop(index));
            TagMaster::derive(&seed(node), 0).consent(&hash, index, hop.tag, hop.expiry)
        };
        let own = if number % 4 == 0 { 2 } else { 200 };
        let consents = [consent(1, own), consent(2, 3)];
        let flood = Sender::new(Version::Standard, &strange, &secret(unknown), &consents).expect("a sender");
        chain.send(1, &packet(&flood, number, b"flood"));
        chain.send(0, &packet(&good, 1 + number, b"good"));
        while Packet::decode(&chain.delivered(), Version::Standard).expect("sound").payload() != b"good" {}
    }
    let node = &chain.nodes[1];
    eventually("all are counted", || chain.reason(2, "consent") == u64::from(rounds - rounds / 4));
    let agreements = node.count("decided", "agreements") - before;
    // Another thread than that of the good packets may not have heard yet of the key with node 3.
    let threads = node.status()["by_thread"].as_array().map_or(1, Vec::len) as u64;
    let most = u64::from(rounds / 4) + threads - 1;
    assert!(agreements <= most, "{agreements} agreements: {}", node.status());
    assert_eq!(chain.reason(2, "verifier"), 0, "{}", node.status());
}
