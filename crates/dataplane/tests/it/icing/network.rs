//! What the tests of ICING share: nodes in a full mesh, paths over them, packets on their way.

use std::sync::{Arc, LazyLock};

use wayleave_core::{Instant, Now, UnixTime};
use wayleave_crypto::lanes::CpuKernel;
use wayleave_crypto::secret::{Key128, Seed};
use wayleave_dataplane::frame::{Frame, Ingress};
use wayleave_dataplane::icing::{Account, Action, Config, Link, Meaning, Output, Policy, Reason, Router, TagRule};
use wayleave_packet::icing::header::{Hop, NodeId, Part, Path, SEALED, Tag, Version};
use wayleave_packet::icing::mint::{Consent, Form, NodeSecret, Nonce, Sender, TagMaster, encapsulate};

pub use crate::common::{Random, times};

/// Unix seconds at which packets are valid unless a test says otherwise.
pub const TIME: u32 = 1_800_000_000;
/// When consents end unless a test says otherwise.
pub const EXPIRY: u32 = TIME + 600;
/// The tags that mean something everywhere have this first octet.
pub const TAGS: u32 = 0x4900_0000;
/// A link to a node has the node's number plus this one.
pub const LINK: u16 = 100;
/// A link from which any sender may come.
pub const OPEN: u16 = 99;

pub fn seed(node: usize) -> Seed {
    Seed::new([node as u8 + 1; 32])
}

pub fn secret(node: usize) -> NodeSecret {
    SECRETS[node].clone()
}

/// Those of all nodes of every test.
static SECRETS: LazyLock<Vec<NodeSecret>> =
    LazyLock::new(|| (0..32).map(|node| NodeSecret::from_seed(&seed(node))).collect());

pub fn id(node: usize) -> NodeId {
    SECRETS[node].id()
}

pub fn master_octets(node: usize) -> [u8; 16] {
    [0x80 | node as u8; 16]
}

pub fn master(node: usize) -> TagMaster {
    TagMaster::new(Key128::new(master_octets(node)))
}

pub fn at(secs: u32) -> Now {
    at_micros(u64::from(secs) * 1_000_000)
}

pub fn at_micros(micros: u64) -> Now {
    Now { instant: Instant(micros * 1_000), unix: UnixTime(micros) }
}

/// The policy of node `node` in a mesh of `count` nodes.
pub fn policy(node: usize, count: usize) -> Policy {
    let link = |other: usize| Link { id: LINK + other as u16, nodes: vec![id(other)], is_open: false };
    let mut links: Vec<Link> = (0..count).filter(|other| *other != node).map(link).collect();
    links.push(Link { id: OPEN, nodes: Vec::new(), is_open: true });
    let rule = |bits: u32, depth: u8, queue: u8, output: Output| TagRule {
        bits,
        depth,
        meaning: Meaning { queue, output, account: None },
    };
    let rules = vec![
        rule(TAGS, 8, 1, Output::Next),
        rule(TAGS | 0x0080_0000, 9, 2, Output::Service(7)),
        rule(TAGS | 0x0040_0000, 16, 3, Output::Link(OPEN)),
    ];
    let (secrets, masters) = (vec![secret(node)], vec![(0, master(node))]);
    Policy { secrets, masters, links, rules, accounts: Vec::new(), agreed: Arc::default() }
}

/// The same with accounts, each at tags of its own: those with its number, counted from 1, in their third octet.
pub fn with_accounts(policy: Policy, accounts: &[Option<(u64, u64)>]) -> Policy {
    let rule = |number: usize| TagRule {
        bits: TAGS | (number as u32 + 1) << 8,
        depth: 24,
        meaning: Meaning { queue: 1, output: Output::Next, account: Some(number as u16) },
    };
    let account = |(number, limit): (usize, &Option<(u64, u64)>)| {
        let (rate, depth) = limit.unwrap_or_default();
        Account { id: 10 + number as u16, rate, depth }
    };
    Policy {
        rules: policy.rules.iter().copied().chain((0..accounts.len()).map(rule)).collect(),
        accounts: accounts.iter().enumerate().map(account).collect(),
        ..policy
    }
}

pub fn config(node: usize, count: usize) -> Config {
    Config {
        version: Version::Standard,
        policy: policy(node, count),
        agreements_per_second: 1_000_000_000,
        paths: 1 << 12,
        peers: 1 << 10,
        freshness: 5,
        replay_capacity: 1 << 20,
        started: UnixTime(0),
        replay_key: Key128::new([node as u8; 16]),
        seed: 77,
    }
}

pub fn router(node: usize, count: usize) -> Router {
    Router::new(config(node, count), CpuKernel::best()).unwrap()
}

/// A router that started so long before `secs` that everything fresh is accepted.
pub fn router_at(node: usize, count: usize, secs: u32) -> Router {
    let started = at(secs.saturating_sub(100)).unix;
    Router::new(Config { started, ..config(node, count) }, CpuKernel::best()).unwrap()
}

pub fn mesh(count: usize) -> Vec<Router> {
    (0..count).map(|node| router(node, count)).collect()
}

/// The path over the nodes `order`, the first of which sends.
pub fn path_with(order: &[usize], tag: Tag, expiry: u32) -> Path {
    let hops: Vec<Hop> = order[1..].iter().map(|node| Hop { node: id(*node), tag, expiry }).collect();
    Path::new(id(order[0]), &hops).unwrap()
}

pub fn path(order: &[usize]) -> Path {
    path_with(order, Tag(TAGS), EXPIRY)
}

/// Every node's consent to `path`, which is over `order`.
pub fn consents(order: &[usize], path: &Path, version: Version) -> Vec<Consent> {
    let consent = |(index, node): (usize, &usize)| {
        let hop = path.hop(index);
        master(*node).consent(&path.hash(version), index, hop.tag, hop.expiry)
    };
    order.iter().enumerate().skip(1).map(consent).collect()
}

pub fn sender(order: &[usize]) -> Sender {
    sender_of(Version::Standard, order)
}

/// A sender of packets of `version`.
pub fn sender_of(version: Version, order: &[usize]) -> Sender {
    let path = path(order);
    let consents = consents(order, &path, version);
    Sender::new(version, &path, &secret(order[0]), &consents).unwrap()
}

/// A packet that the sender makes at `secs` with `payload`.
pub fn packet_at(sender: &Sender, form: Form, counter: u32, secs: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let nonce = Nonce::new(at(secs).unix, counter);
    let protocol = if sender.version() == Version::Sealed { SEALED } else { 4 };
    encapsulate(sender, (form, Part::Whole), protocol, nonce, payload, &mut out).unwrap();
    out
}

pub fn packet(sender: &Sender, form: Form, counter: u32, payload: &[u8]) -> Vec<u8> {
    packet_at(sender, form, counter, TIME, payload)
}

/// What `router` does with one packet, and the packet afterwards.
pub fn process_at(router: &mut Router, octets: &[u8], from: u16, now: Now) -> (Action, Vec<u8>) {
    let mut octets = octets.to_vec();
    let mut frames = [Frame { octets: &mut octets, ingress: Ingress::External(from) }];
    let action = router.process(&mut frames, now)[0];
    (action, octets)
}

pub fn process(router: &mut Router, octets: &[u8], from: u16) -> (Action, Vec<u8>) {
    process_at(router, octets, from, at(TIME))
}

/// Carries a packet over the rest of `order` from node `index` on. Returns the octets as delivered, or where and why the packet
/// was dropped.
pub fn carry(routers: &mut [Router], order: &[usize], index: usize, octets: &[u8]) -> Result<Vec<u8>, (usize, Reason)> {
    let mut octets = octets.to_vec();
    for place in index..order.len() {
        let from = LINK + order[place - 1] as u16;
        let (action, next) = process(&mut routers[order[place]], &octets, from);
        match action {
            Action::Forward { link, .. } => assert_eq!(link, LINK + order[place + 1] as u16),
            Action::Deliver { .. } => assert_eq!(place + 1, order.len()),
            Action::Service { .. } => panic!("no service"),
            Action::Drop(reason) => return Err((place, reason)),
        }
        octets = next;
    }
    Ok(octets)
}
