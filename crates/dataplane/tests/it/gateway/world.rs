//! Two gateways, the forwarders between them, and what stands for path and consent servers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use wayleave_core::{IdentityKey, InnerPrefixes, Now, Prefix, UnixTime};
use wayleave_crypto::dh::DhSecret;
use wayleave_crypto::lanes::CpuKernel;
use wayleave_crypto::secret::Secret;
use wayleave_dataplane::frame::{BURST, Frame, Ingress};
use wayleave_dataplane::gateway::offload::Offload;
use wayleave_dataplane::gateway::{Config, Event, Gateway, Member, Name, Output, PathPolicy, Ready};
use wayleave_dataplane::icing::{Action, Reason, Router};
use wayleave_packet::icing::header::{Tag, Version};
use wayleave_packet::{Hop, HopId, Path};

use crate::icing::network::{self, LINK, TAGS, TIME};

pub const A: usize = 0;
pub const B: usize = 1;
/// Gateway and forwarders, and what is neither.
pub const NODES: usize = 10;

pub fn identity(node: usize) -> IdentityKey {
    IdentityKey([node as u8 + 1; 32])
}

pub fn noise(node: usize) -> Secret<32> {
    Secret::new([0x40 + node as u8; 32])
}

pub fn prefixes(node: usize) -> [Prefix; 2] {
    [format!("10.0.{node}.0/24"), format!("fd00:{node}::/64")].map(|text| text.parse().unwrap())
}

pub fn addresses(node: usize) -> [IpAddr; 2] {
    [format!("10.0.{node}.1"), format!("fd00:{node}::1")].map(|text| text.parse().unwrap())
}

/// A packet on its way, before the forwarder at `place` of its path.
pub type Tamper = Box<dyn FnMut(usize, usize, &mut Vec<u8>) -> bool>;

pub struct World {
    pub gateways: BTreeMap<usize, Gateway>,
    pub routers: Vec<Router>,
    /// Paths from A to B; those back are the same reversed.
    pub orders: Vec<Vec<usize>>,
    pub mtu: u16,
    /// Seconds for which consent is given.
    pub lasts: u32,
    pub micros: u64,
    /// By how many microseconds the wall clock was set ahead, or back.
    pub ahead: i64,
    /// Forwarders that do nothing.
    pub down: BTreeSet<usize>,
    /// Nodes that are stopped while time passes: a machine that sleeps.
    pub asleep: BTreeSet<usize>,
    /// Nodes that give no consent.
    pub refusing: BTreeSet<usize>,
    /// Nodes that give none for packets whose proofs leave sealed payloads out.
    pub checking: BTreeSet<usize>,
    /// Forwarders of the version before, which has no such packets.
    pub old: BTreeSet<usize>,
    pub has_path_server: bool,
    /// Called with sender, node and packet in front of each node; false drops it.
    pub tamper: Tamper,
    /// What each gateway handed to its system.
    pub inner: BTreeMap<usize, Vec<Ready>>,
    pub events: Vec<(usize, Event)>,
    /// Packets that passed each forwarder, and drops with their reason.
    pub passed: BTreeMap<usize, u64>,
    pub drops: Vec<(usize, Reason)>,
    /// All packets as they left a gateway.
    pub sent: Vec<(usize, u16, Vec<u8>)>,
}

pub fn policies() -> Vec<PathPolicy> {
    let policy = |name: &str| PathPolicy { name: name.to_owned(), ..PathPolicy::default() };
    vec![
        policy("default"),
        PathPolicy { avoid: vec![identity(2)], ..policy("clean") },
        PathPolicy { require: vec![identity(9)], ..policy("none") },
    ]
}

impl World {
    pub fn new(orders: &[&[usize]]) -> Self {
        let gateways = [A, B].into_iter().map(|node| (node, gateway(node))).collect();
        Self {
            gateways,
            routers: (0..NODES).map(|node| network::router_at(node, NODES, TIME)).collect(),
            orders: orders.iter().map(|order| order.to_vec()).collect(),
            mtu: 1_472,
            lasts: 600,
            micros: u64::from(TIME) * 1_000_000,
            ahead: 0,
            down: BTreeSet::new(),
            asleep: BTreeSet::new(),
            refusing: BTreeSet::new(),
            checking: BTreeSet::new(),
            old: BTreeSet::new(),
            has_path_server: true,
            tamper: Box::new(|_, _, _| true),
            inner: BTreeMap::new(),
            events: Vec::new(),
            passed: BTreeMap::new(),
            drops: Vec::new(),
            sent: Vec::new(),
        }
    }

    pub fn now(&self) -> Now {
        let Now { instant, unix } = network::at_micros(self.micros);
        Now { instant, unix: UnixTime(unix.0.wrapping_add_signed(self.ahead)) }
    }

    pub fn gateway(&mut self, node: usize) -> &mut Gateway {
        self.gateways.get_mut(&node).unwrap()
    }

    /// A system hands a packet to its gateway.
    pub fn send(&mut self, node: usize, octets: &[u8], offload: &Offload) {
        let now = self.now();
        self.gateway(node).inner(&mut octets.to_vec(), offload, now);
        self.settle();
    }

    pub fn send_plain(&mut self, node: usize, octets: &[u8]) {
        self.send(node, octets, &Offload::default());
    }

    /// What the system behind `node` got, since the last call.
    pub fn received(&mut self, node: usize) -> Vec<Vec<u8>> {
        self.inner.remove(&node).unwrap_or_default().into_iter().map(|ready| ready.octets).collect()
    }

    /// Lets time pass.
    pub fn run(&mut self, span: Duration) {
        let end = self.micros + span.as_micros() as u64;
        while self.micros < end {
            self.micros += 50_000;
            let now = self.now();
            for node in self.awake() {
                self.gateway(node).handle_timeout(now);
            }
            self.settle();
        }
    }

    fn awake(&self) -> Vec<usize> {
        self.gateways.keys().copied().filter(|node| !self.asleep.contains(node)).collect()
    }

    /// Performs outputs until there are none.
    pub fn settle(&mut self) {
        let mut turns = 0;
        loop {
            turns += 1;
            assert!(turns < 100, "gateways go on for ever");
            let mut arrived: BTreeMap<usize, Vec<(u16, Vec<u8>)>> = BTreeMap::new();
            let mut is_quiet = true;
            for node in self.awake() {
                while let Some(output) = self.gateway(node).poll() {
                    is_quiet = false;
                    self.perform(node, output, &mut arrived);
                }
            }
            for (node, mut packets) in arrived {
                let now = self.now();
                for burst in packets.chunks_mut(BURST) {
                    let mut frames: Vec<Frame<'_>> = burst
                        .iter_mut()
                        .map(|(link, octets)| Frame { octets, ingress: Ingress::External(*link) })
                        .collect();
                    self.gateways.get_mut(&node).unwrap().outer(&mut frames, now);
                }
            }
            if is_quiet {
                return;
            }
        }
    }

    fn perform(&mut self, node: usize, output: Output, arrived: &mut BTreeMap<usize, Vec<(u16, Vec<u8>)>>) {
        let now = self.now();
        match output {
            Output::Wire { link, octets, size } => {
                for packet in octets.chunks(size) {
                    assert!(packet.len() <= usize::from(self.mtu), "{} octets", packet.len());
                    self.sent.push((node, link, packet.to_vec()));
                    self.carry(node, link, packet.to_vec(), arrived);
                }
            }
            Output::Inner(ready) => self.inner.entry(node).or_default().push(ready),
            Output::Event(event) => self.events.push((node, event)),
            Output::NeedPaths { peer } => {
                let paths =
                    if self.has_path_server { Ok(self.paths(node)) } else { Err("the path server is away".to_owned()) };
                self.gateway(node).set_paths(peer, paths, now);
            }
            Output::NeedProofs { peer, hash, path } => {
                let path = self.consent(*path);
                self.gateway(node).set_proofs(peer, hash, path, now);
            }
        }
    }

    /// Carries a packet from `node` over one link after the other.
    pub fn carry(
        &mut self,
        node: usize,
        link: u16,
        packet: Vec<u8>,
        arrived: &mut BTreeMap<usize, Vec<(u16, Vec<u8>)>>,
    ) {
        let (mut from, mut to, mut octets) = (node, usize::from(link - LINK), packet);
        loop {
            if !(self.tamper)(node, to, &mut octets) || self.down.contains(&to) || self.asleep.contains(&to) {
                return;
            }
            if self.gateways.contains_key(&to) {
                arrived.entry(to).or_default().push((LINK + from as u16, octets));
                return;
            }
            if self.old.contains(&to) && octets[0] >> 4 != 1 {
                return self.drops.push((to, Reason::Malformed));
            }
            let now = self.now();
            let (action, after) = network::process_at(&mut self.routers[to], &octets, LINK + from as u16, now);
            match action {
                Action::Forward { link, .. } => {
                    *self.passed.entry(to).or_default() += 1;
                    (from, to, octets) = (to, usize::from(link - LINK), after);
                }
                Action::Drop(reason) => return self.drops.push((to, reason)),
                _ => panic!("{action:?} at a forwarder"),
            }
        }
    }

    /// Puts a packet in front of a node, as if it came from another.
    pub fn inject(&mut self, from: usize, to: usize, octets: &[u8]) {
        let mut arrived = BTreeMap::new();
        if self.gateways.contains_key(&to) {
            let now = self.now();
            let mut octets = octets.to_vec();
            let mut frames = [Frame { octets: &mut octets, ingress: Ingress::External(LINK + from as u16) }];
            self.gateway(to).outer(&mut frames, now);
        } else {
            self.carry(from, LINK + to as u16, octets.to_vec(), &mut arrived);
        }
        for (node, packets) in arrived {
            for (link, octets) in packets {
                self.inject(usize::from(link - LINK), node, &octets);
            }
        }
        self.settle();
    }

    fn paths(&self, node: usize) -> Vec<Path> {
        let expiry = self.now().unix.secs() + 300;
        let orders = self.orders.iter().map(|order| {
            let mut order = order.clone();
            if node == B {
                order.reverse();
            }
            order
        });
        let paths = orders.map(|order| (path_over(&order, expiry, self.mtu), order));
        // As adverts say.
        let marked = paths.map(|(mut path, order)| {
            let old = (1..order.len()).filter(|index| self.old.contains(&order[*index]));
            old.for_each(|index| path.add_unread_by(index));
            path
        });
        marked.collect()
    }

    fn consent(&self, mut path: Path) -> Result<Path, String> {
        let nodes: Vec<usize> = path.nodes().map(|(id, ..)| usize::from(id.0[0]) - 1).collect();
        // As the client of consent servers does: it asks again for packets that all nodes allow.
        if let Some(index) = (1..nodes.len()).find(|index| self.checking.contains(&nodes[*index]))
            && path.version() == Version::Sealed
        {
            path.set_version(Version::Standard);
            path.add_unsealed_by(index);
        }
        if let Some(node) = nodes[1..].iter().find(|node| self.refusing.contains(node)) {
            return Err(format!("node {node} refuses"));
        }
        Ok(consented(path, self.now().unix.secs() as u32 + self.lasts))
    }
}

/// The path over these nodes, as a path server knows it.
pub fn path_over(order: &[usize], expiry: u64, mtu: u16) -> Path {
    let hop = |node: &usize| Hop {
        at: HopId::Node { identity: identity(*node), id: network::id(*node), tag: Tag(TAGS) },
        ingress: 0,
        egress: 0,
    };
    Path::icing(order.iter().map(hop).collect(), expiry, mtu).unwrap()
}

/// The path with every node's consent until then.
pub fn consented(mut path: Path, until: u32) -> Path {
    let hash = path.consent_hash(path.version()).unwrap();
    let nodes: Vec<_> = path.nodes().collect();
    for (index, (id, _, tag)) in nodes.into_iter().enumerate().skip(1) {
        let node = usize::from(id.0[0]) - 1;
        path.add_consent(index, until, network::master(node).consent(&hash, index, tag, until)).unwrap();
    }
    path
}

pub fn gateway(node: usize) -> Gateway {
    run_of(node, 0)
}

/// A process of the gateway, which shares nothing with those before it but its keys.
pub fn run_of(node: usize, run: u8) -> Gateway {
    with_blocks(node, run, &["198.18.0.0/15", "fd77::/64"])
}

fn receiver(node: usize) -> wayleave_dataplane::icing::Config {
    let started = network::at(TIME - 100).unix;
    wayleave_dataplane::icing::Config { started, replay_capacity: 0, ..network::config(node, NODES) }
}

/// Another thread of the gateway of `node`.
pub fn thread_of(gateway: &mut Gateway, node: usize) -> Gateway {
    gateway.another(receiver(node), CpuKernel::best()).unwrap()
}

/// The same, with the addresses of names in these prefixes.
pub fn with_blocks(node: usize, run: u8, blocks: &[&str]) -> Gateway {
    made(node, run, blocks, false)
}

/// The gateway of a process whose own packets are all that there are.
pub fn process_of(node: usize) -> Gateway {
    made(node, 0, &["198.18.0.0/15", "fd77::/64"], true)
}

fn made(node: usize, run: u8, blocks: &[&str], is_process: bool) -> Gateway {
    let config = Config {
        identity: identity(node),
        realm: [0x7e; 32],
        noise: noise(node),
        receiver: receiver(node),
        neighbours: (0..NODES)
            .filter(|other| *other != node)
            .map(|other| (identity(other), LINK + other as u16))
            .collect(),
        policies: policies(),
        name_blocks: blocks.iter().map(|block| block.parse().unwrap()).collect(),
        is_process,
        seed: Secret::new([0x70 + node as u8 + 16 * run; 32]),
    };
    let mut gateway = Gateway::new(config, CpuKernel::best()).unwrap();
    let mut table = InnerPrefixes::default();
    for member in [A, B, 8] {
        for prefix in prefixes(member) {
            table.insert(prefix, identity(member));
        }
    }
    let member = |node: usize| Member {
        identity: identity(node),
        noise: DhSecret::from_seed(&noise(node)).public(),
        ids: vec![network::id(node)],
        addresses: addresses(node).to_vec(),
    };
    gateway.set_realm([A, B, 8].map(member).to_vec(), table);
    let other = if node == A { B } else { A };
    let name = |policy: &str| Name { policy: policy.to_owned(), node: identity(other) };
    let names = [("198.18.0.1", "default"), ("fd77::1", "default"), ("198.18.0.2", "clean"), ("198.18.0.3", "none")];
    gateway.set_names(names.map(|(address, policy)| (address.parse().unwrap(), name(policy))));
    gateway
}

/// A UDP datagram with right checksums.
pub fn udp(from: &str, to: &str, ports: (u16, u16), payload: &[u8]) -> Vec<u8> {
    let length = 8 + payload.len() as u16;
    let mut transport = [ports.0.to_be_bytes(), ports.1.to_be_bytes(), length.to_be_bytes(), [0, 0]].concat();
    transport.extend(payload);
    ip(from, to, 17, 6, &transport)
}

/// A TCP segment with right checksums.
pub fn tcp(
    from: &str,
    to: &str,
    ports: (u16, u16),
    sequence: u32,
    flags: u8,
    options: &[u8],
    payload: &[u8],
) -> Vec<u8> {
    let mut transport = [ports.0.to_be_bytes(), ports.1.to_be_bytes()].concat();
    transport.extend(sequence.to_be_bytes());
    transport.extend([0, 0, 0, 9, (5 + options.len() as u8 / 4) << 4, flags, 1, 0, 0, 0, 0, 0]);
    transport.extend(options);
    transport.extend(payload);
    ip(from, to, 6, 16, &transport)
}

/// An IP packet around a transport packet whose checksum lies at `at`.
pub fn ip(from: &str, to: &str, protocol: u8, at: usize, transport: &[u8]) -> Vec<u8> {
    let (from, to): (IpAddr, IpAddr) = (from.parse().unwrap(), to.parse().unwrap());
    let mut out = Vec::new();
    let mut pseudo = Vec::new();
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            out.extend([0x45, 0]);
            out.extend((20 + transport.len() as u16).to_be_bytes());
            out.extend([0, 1, 0x40, 0, 64, protocol, 0, 0]);
            out.extend(from.octets());
            out.extend(to.octets());
            let sum = !checksum(&[&out]);
            out[10..12].copy_from_slice(&sum.to_be_bytes());
            pseudo.extend(&out[12..20]);
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            out.extend([0x60, 0, 0, 0]);
            out.extend((transport.len() as u16).to_be_bytes());
            out.extend([protocol, 64]);
            out.extend(from.octets());
            out.extend(to.octets());
            pseudo.extend(&out[8..40]);
        }
        _ => panic!("two families"),
    }
    pseudo.extend(u32::from(protocol).to_be_bytes());
    pseudo.extend((transport.len() as u32).to_be_bytes());
    let mut transport = transport.to_vec();
    if at > 0 {
        let sum = !checksum(&[&pseudo, &transport]);
        transport[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }
    out.extend(transport);
    out
}

/// RFC 1071, word by word.
pub fn checksum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0u32;
    for part in parts {
        for pair in part.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
            sum = (sum & 0xffff) + (sum >> 16);
        }
    }
    sum as u16
}
