//! Two gateways, forwarders, servers and hosts in virtual time: what is sent arrives later, and what is asked is answered later.

use std::collections::{BTreeMap, BTreeSet};

use wayleave_core::Now;
use wayleave_crypto::lanes::CpuKernel;
use wayleave_dataplane::frame::{Frame, Ingress};
use wayleave_dataplane::gateway::offload::Offload;
use wayleave_dataplane::gateway::{Gateway, Name, Output, PathPolicy};
use wayleave_dataplane::icing::{Action, Config, Router};
use wayleave_packet::Path;
use wayleave_packet::icing::header::PathHash;

use super::stream::Stream;
use super::world::{A, B, NODES, consented, identity, path_over, run_of};
use crate::common::Random;
use crate::icing::network::{self, LINK, TIME};

pub const MILLISECOND: u64 = 1_000;
pub const SECOND: u64 = 1_000_000;
/// Each gateway's thread looks at its timers about this often.
const WAKE: u64 = 20 * MILLISECOND;

/// What is under way.
enum Happening {
    Packet { from: usize, to: usize, octets: Vec<u8> },
    Paths { node: usize },
    Proofs { node: usize, hash: PathHash, path: Box<Path> },
    Wake { node: usize },
    Host { stream: usize },
}

pub struct Timed {
    pub gateways: BTreeMap<usize, Gateway>,
    routers: Vec<Router>,
    /// Paths from A to B; those back are the same reversed.
    pub orders: Vec<Vec<usize>>,
    /// Seconds for which consent is given.
    pub lasts: u32,
    pub micros: u64,
    down: BTreeSet<usize>,
    /// Seconds that an advert lasts; it is renewed when half of them are over.
    pub adverts: u64,
    /// When each node renews its advert, and when those that are down ended.
    phases: Vec<u64>,
    ended: BTreeMap<usize, u64>,
    /// From when on the path server knows each of the paths.
    pub listed: Vec<u64>,
    /// What each gateway's node remembers of the list, and since when: it is what is answered, and asked for anew beside.
    remembered: BTreeMap<usize, (u64, Vec<usize>)>,
    /// The least and the most that a link, the path server and the consent servers take.
    pub link: (u64, u64),
    pub list: (u64, u64),
    pub consent: (u64, u64),
    /// One packet in so many is lost on each link; none if zero.
    pub loses: usize,
    queue: BTreeMap<(u64, u64), Happening>,
    count: u64,
    pub random: Random,
    pub streams: Vec<Stream>,
}

impl Timed {
    pub fn new(orders: &[&[usize]], seed: u64) -> Self {
        let mut world = Self {
            gateways: [A, B].into_iter().map(|node| (node, run_of(node, 0))).collect(),
            routers: (0..NODES).map(|node| network::router_at(node, NODES, TIME)).collect(),
            orders: orders.iter().map(|order| order.to_vec()).collect(),
            lasts: 600,
            micros: u64::from(TIME) * SECOND,
            down: BTreeSet::new(),
            adverts: 3_600,
            phases: Vec::new(),
            ended: BTreeMap::new(),
            listed: vec![0; orders.len()],
            remembered: BTreeMap::new(),
            link: (200, 3 * MILLISECOND),
            list: (MILLISECOND, 200 * MILLISECOND),
            consent: (MILLISECOND, 200 * MILLISECOND),
            loses: 0,
            queue: BTreeMap::new(),
            count: 0,
            random: Random(seed),
            streams: Vec::new(),
        };
        world.micros += world.random.next() % SECOND;
        world.phases = (0..NODES).map(|_| world.random.next()).collect();
        for node in [A, B] {
            world.later((0, WAKE), Happening::Wake { node });
        }
        world
    }

    pub fn now(&self) -> Now {
        network::at_micros(self.micros)
    }

    pub fn gateway(&mut self, node: usize) -> &mut Gateway {
        self.gateways.get_mut(&node).unwrap()
    }

    /// Gives a gateway path policies, and each a name of the other gateway: that of the policy `n` has the address `198.18.1.n`.
    pub fn set_policies(&mut self, node: usize, policies: &[PathPolicy]) {
        let now = self.now();
        let gateway = self.gateway(node);
        gateway.set_policies(policies.to_vec(), now);
        let other = if node == A { B } else { A };
        let name = |(number, policy): (usize, &PathPolicy)| {
            let address = format!("198.18.1.{number}").parse().unwrap();
            (address, Name { policy: policy.name.clone(), node: identity(other) })
        };
        gateway.set_names(policies.iter().enumerate().map(name));
    }

    fn later(&mut self, (least, most): (u64, u64), happening: Happening) {
        let at = self.micros + least + self.random.next() % (most - least).max(1);
        self.count += 1;
        self.queue.insert((at, self.count), happening);
    }

    /// Kills a forwarder. Its advert lasts until it ends.
    pub fn kill(&mut self, node: usize) {
        self.ended.insert(node, self.advertised(node));
        self.down.insert(node);
    }

    /// Starts it again, as a process that knows nothing of before.
    pub fn revive(&mut self, node: usize) {
        self.down.remove(&node);
        self.ended.remove(&node);
        let config = Config { started: self.now().unix, ..network::config(node, NODES) };
        self.routers[node] = Router::new(config, CpuKernel::best()).unwrap();
    }

    /// The Unix second at which a node's newest advert ends.
    fn advertised(&self, node: usize) -> u64 {
        let (now, half) = (self.micros / SECOND, self.adverts / 2);
        let renewed = now - (now + self.phases[node] % half) % half;
        self.ended.get(&node).copied().unwrap_or(renewed + self.adverts)
    }

    fn expiry(&self, order: &[usize]) -> u64 {
        order.iter().map(|node| self.advertised(*node)).min().unwrap()
    }

    pub fn is_down(&self, node: usize) -> bool {
        self.down.contains(&node)
    }

    /// Lets time pass.
    pub fn run(&mut self, micros: u64) {
        let end = self.micros + micros;
        while let Some(entry) = self.queue.first_entry().filter(|entry| entry.key().0 <= end) {
            let ((at, _), happening) = entry.remove_entry();
            self.micros = self.micros.max(at);
            self.happen(happening);
        }
        self.micros = end;
    }

    fn happen(&mut self, happening: Happening) {
        let now = self.now();
        match happening {
            Happening::Packet { from, to, octets } => self.arrive(from, to, octets),
            Happening::Paths { node } => {
                let paths = self.paths(node);
                let peer = identity(if node == A { B } else { A });
                self.gateway(node).set_paths(peer, Ok(paths), now);
                self.perform(node);
            }
            Happening::Proofs { node, hash, path } => {
                let peer = identity(if node == A { B } else { A });
                let until = path.expiry().min(self.micros / SECOND + u64::from(self.lasts));
                let is_over = until <= self.micros / SECOND;
                let path =
                    if is_over { Err("the object has expired".to_owned()) } else { Ok(consented(*path, until as u32)) };
                self.gateway(node).set_proofs(peer, hash, path, now);
                self.perform(node);
            }
            Happening::Wake { node } => {
                self.gateway(node).handle_timeout(now);
                self.later((WAKE / 2, WAKE), Happening::Wake { node });
                self.perform(node);
            }
            Happening::Host { stream } => self.host(stream, None),
        }
    }

    fn arrive(&mut self, from: usize, to: usize, mut octets: Vec<u8>) {
        if self.is_down(to) || self.loses > 0 && self.random.one_in(self.loses) {
            return;
        }
        let now = self.now();
        if let Some(gateway) = self.gateways.get_mut(&to) {
            let mut frames = [Frame { octets: &mut octets, ingress: Ingress::External(LINK + from as u16) }];
            gateway.outer(&mut frames, now);
            return self.perform(to);
        }
        let (action, after) = network::process_at(&mut self.routers[to], &octets, LINK + from as u16, now);
        if let Action::Forward { link, .. } = action {
            let next = usize::from(link - LINK);
            self.later(self.link, Happening::Packet { from: to, to: next, octets: after });
        }
    }

    fn perform(&mut self, node: usize) {
        while let Some(output) = self.gateway(node).poll() {
            match output {
                Output::Wire { link, octets, size } => {
                    let to = usize::from(link - LINK);
                    for packet in octets.chunks(size) {
                        self.later(self.link, Happening::Packet { from: node, to, octets: packet.to_vec() });
                    }
                }
                Output::Inner(ready) => self.deliver(node, &ready.octets),
                Output::Event(_) => {}
                Output::NeedPaths { .. } => self.later(self.list, Happening::Paths { node }),
                Output::NeedProofs { hash, path, .. } => {
                    self.later(self.consent, Happening::Proofs { node, hash, path });
                }
            }
        }
    }

    fn paths(&mut self, node: usize) -> Vec<Path> {
        let (micros, nothing) = (self.micros, (0, Vec::new()));
        let is_there = |place: &usize| self.expiry(&self.orders[*place]) > micros / SECOND;
        let now: Vec<usize> =
            (0..self.orders.len()).filter(|place| self.listed[*place] <= micros).filter(is_there).collect();
        let (since, before) = self.remembered.get(&node).unwrap_or(&nothing).clone();
        let answer: Vec<usize> = if before.iter().any(is_there) { before } else { now.clone() };
        let answer: Vec<usize> = answer.into_iter().filter(is_there).collect();
        let of = |place: &usize| {
            let order = &self.orders[*place];
            let expiry = self.expiry(order);
            let order: Vec<usize> = if node == B { order.iter().rev().copied().collect() } else { order.clone() };
            path_over(&order, expiry, 1_472)
        };
        let paths = answer.iter().map(of).collect();
        if micros >= since + SECOND {
            self.remembered.insert(node, (micros, now));
        }
        paths
    }

    /// A host's packet, or its timer.
    fn host(&mut self, stream: usize, arrived: Option<(usize, &[u8])>) {
        let micros = self.micros;
        let Some(of) = self.streams.get_mut(stream) else { return };
        let packets = match arrived {
            Some((at, payload)) => of.take(at, payload, micros),
            None if of.alarm.is_none_or(|alarm| alarm > micros) => return,
            None => {
                of.alarm = None;
                of.turn(micros)
            }
        };
        let wake = of.wake().map(|wake| wake.max(micros + 1));
        if wake != of.alarm {
            of.alarm = wake;
            if let Some(wake) = wake {
                self.later((wake - micros, wake - micros), Happening::Host { stream });
            }
        }
        for (from, octets) in packets {
            let now = self.now();
            self.gateway(from).inner(&mut octets.clone(), &Offload::default(), now);
            self.perform(from);
        }
    }

    fn deliver(&mut self, node: usize, octets: &[u8]) {
        if let Some((stream, payload)) = Stream::payload(octets) {
            self.host(stream, Some((node, payload)));
        }
    }

    /// Lets a stream begin, or go on after a pause.
    pub fn begin(&mut self, stream: usize) {
        self.streams[stream].begin(self.micros);
        self.streams[stream].alarm = Some(self.micros);
        self.later((0, 1), Happening::Host { stream });
    }

    pub fn pause(&mut self, stream: usize) {
        self.streams[stream].pause();
    }
}
