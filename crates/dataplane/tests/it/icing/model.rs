//! ICING restated in plain code, by `docs/wire/icing.md` alone: what a node does with one packet, and what a sender sends.
//!
//! Hashes, MACs and key derivations are those of public crates, not of the code that is tested. Only X25519 and the rules of
//! node IDs are taken from there; the tests of `dh.rs` and of ICD-07 show those.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

use aes::cipher::{BlockCipherEncrypt, KeyInit};
use cmac::Mac;
use hkdf::Hkdf;
use sha2::{Digest, Sha256};
use wayleave_crypto::dh::{DhPublic, DhSecret};
use wayleave_crypto::secret::Secret;
use wayleave_dataplane::icing::{Action, Reason};
use wayleave_packet::icing::header::{NodeId, Part, Tag, Version};
use wayleave_packet::icing::mint::{Form, Nonce, encapsulate};

use super::network::{self, LINK, OPEN, TAGS, TIME};

pub type Block = [u8; 16];

fn aes(key: &Block, block: &[u8]) -> Block {
    let mut block: aes::Block = Block::try_from(block).unwrap().into();
    aes::Aes128::new(&(*key).into()).encrypt_block(&mut block);
    block.into()
}

fn cmac(key: &Block, message: &[u8]) -> Block {
    let mut mac = cmac::Cmac::<aes::Aes128>::new(&(*key).into());
    mac.update(message);
    mac.finalize().into_bytes().into()
}

fn sha256(message: &[u8]) -> [u8; 32] {
    Sha256::digest(message).into()
}

fn xor(a: &[u8], b: &[u8]) -> Block {
    std::array::from_fn(|n| a[n] ^ b[n])
}

fn word(octets: &[u8]) -> u32 {
    u32::from_be_bytes(octets[..4].try_into().unwrap())
}

fn half(octets: &[u8]) -> u16 {
    u16::from_be_bytes(octets[..2].try_into().unwrap())
}

/// Keys by a node's seed, another's ID and the version.
type Pairs = HashMap<([u8; 32], [u8; 32], u8), Option<Block>>;

thread_local! {
    /// Agreements that were computed before.
    static PAIRS: RefCell<Pairs> = RefCell::default();
}

/// The key that the owner of `seed` shares with `peer`.
pub fn pair(seed: &[u8; 32], peer: &[u8; 32], version: u8) -> Option<Block> {
    let known = |pairs: &RefCell<Pairs>| {
        *pairs.borrow_mut().entry((*seed, *peer, version)).or_insert_with(|| agree(seed, peer, version))
    };
    PAIRS.with(known)
}

fn agree(seed: &[u8; 32], peer: &[u8; 32], version: u8) -> Option<Block> {
    let secret = DhSecret::from_seed(&Secret::new(*seed));
    let shared = secret.agree(&DhPublic::from_bytes(*peer).ok()?).ok()?;
    let own = secret.public().to_bytes();
    let info = [&[version][..], &own.min(*peer), &own.max(*peer)].concat();
    let mut key = [0; 16];
    Hkdf::<Sha256>::new(Some(b"wayleave/icing/pair/v1"), shared.expose()).expand(&info, &mut key).unwrap();
    Some(key)
}

pub fn consent(master: &Block, path_hash: &[u8; 32], index: usize, tag: u32, expiry: u32) -> Block {
    let mut key = cmac(master, &[&b"It1r"[..], &(expiry >> 12).to_be_bytes()].concat());
    for level in 1..=32u8 {
        let mut block = b"It1s".to_vec();
        block.extend([level, (tag >> (32 - level)) as u8 & 1]);
        block.resize(16, 0);
        key = aes(&key, &block);
    }
    let message = [&b"Ic1p"[..], &[index as u8, 0, 0, 0], &expiry.to_be_bytes(), path_hash].concat();
    cmac(&key, &message)
}

/// The hash over nodes and tags, and the one over that and the expiries.
pub fn path_hashes(version: u8, path: &[u8]) -> ([u8; 32], [u8; 32]) {
    let hops: Vec<&[u8]> = path[32..].chunks(40).collect();
    let mut message = vec![b'I', b'p', b'1', b'h', version, hops.len() as u8 + 1];
    message.extend(&path[..32]);
    for hop in &hops {
        message.extend(&hop[..36]);
    }
    let path_hash = sha256(&message);
    let mut message = [&b"Ip1r"[..], &path_hash].concat();
    for hop in &hops {
        message.extend(&hop[36..]);
    }
    (path_hash, sha256(&message))
}

fn packet_hash(octets: &[u8], route: &[u8; 32], payload: &[u8]) -> [u8; 32] {
    let is_sealed = octets[0] >> 4 == 2;
    let label = if is_sealed { b"Ih2" } else { b"Ih1" };
    let head = [label, &octets[..2], &[0], &octets[4..6], &octets[8..16], route].concat();
    if is_sealed && octets[0] & 6 == 0 {
        return sha256(&[&head, &payload[..16], &payload[payload.len() - 16..]].concat());
    }
    sha256(&[&head, payload].concat())
}

/// What the sender's proofs for a node cover, by what they would be over `hash`: that, or for a sample another hash.
fn covered(octets: &[u8], hash: &[u8; 32], provenance: &Block, payload: &[u8]) -> Option<[u8; 32]> {
    let is_sample = octets[0] >> 4 == 2 && octets[0] & 6 == 0 && provenance[15].is_multiple_of(64);
    is_sample.then(|| sha256(&[&b"Is2"[..], hash, &sha256(payload)].concat()))
}

/// The hash of a packet with its path.
pub fn hash_of(octets: &[u8], route: &[u8; 32]) -> [u8; 32] {
    let count = usize::from(octets[2]);
    packet_hash(octets, route, &octets[64 + 64 * (count - 1)..])
}

pub fn pre_check(consent: &Block, route: &[u8; 32], nonce: &[u8]) -> Block {
    aes(consent, &[&[0xf0], &route[..7], nonce].concat())
}

pub fn tag(key: &Block, from: usize, to: usize, hash: &[u8; 32]) -> Block {
    let first = aes(key, &[&[(from << 4 | to) as u8], &hash[..15]].concat());
    aes(key, &xor(&first, &hash[15..31]))
}

/// Octets a second and octets at once of an account at each link; an account without a rate is of all payers without one.
pub type Limit = Option<(u64, u64)>;

/// One node of the mesh of `network`.
pub struct Model {
    node: usize,
    nodes: usize,
    version: u8,
    /// The first second whose stamps pass.
    from: u32,
    /// The accounts of `network::with_accounts`, and the packets that the filter is made for in a turn.
    accounts: Vec<Limit>,
    filter: u64,
    kept: HashMap<Vec<u8>, Vec<u8>>,
    seen: HashSet<[u8; 32]>,
    /// Octets times 10^6 that a link may still charge to an account, and when that was so in microseconds.
    credits: HashMap<(u16, usize), (u128, u64)>,
    /// Packets that are in a payer's partition, or in the pool (`None`), in a turn of four seconds.
    partitions: HashMap<(Option<(u16, usize)>, u64), u64>,
    /// Packets and octets of each account.
    pub totals: Vec<(u64, u64)>,
    pairs: HashMap<[u8; 32], Option<Block>>,
    consents: HashMap<Vec<u8>, Block>,
}

impl Model {
    /// A node that starts in second `started`.
    pub fn new(node: usize, nodes: usize, version: u8, (accounts, filter): (Vec<Limit>, u64), started: u32) -> Self {
        let (kept, seen, credits, partitions, pairs, consents) = Default::default();
        let (from, totals) = (started + 2, vec![(0, 0); accounts.len()]);
        Self { node, nodes, version, from, accounts, filter, kept, seen, credits, partitions, totals, pairs, consents }
    }

    /// The order of resources, as the design states it: look-up, rate, insertion, account. `now` in microseconds.
    fn admit(
        &mut self,
        hash: [u8; 32],
        seconds: u32,
        payer: (u16, Option<usize>),
        octets: u64,
        now: u64,
    ) -> Result<(), Reason> {
        let has_filter = self.version != 0;
        if has_filter && seconds < self.from {
            return Err(Reason::BeforeStart);
        }
        if has_filter && self.seen.contains(&hash) {
            return Err(Reason::Replayed);
        }
        let limit = payer.1.and_then(|account| self.accounts[account]);
        if let (Some((rate, depth)), Some(account)) = (limit, payer.1) {
            let full = u128::from(depth) * 1_000_000;
            let (credit, then) = self.credits.get(&(payer.0, account)).copied().unwrap_or((full, 0));
            let credit = (credit + u128::from(now - then) * u128::from(rate)).min(full);
            let needed = u128::from(octets) * 1_000_000;
            let is_over = credit < needed;
            self.credits.insert((payer.0, account), (if is_over { credit } else { credit - needed }, now));
            if is_over {
                return Err(Reason::Rate);
            }
        }
        if has_filter {
            let partition = limit.and(payer.1).map(|account| (payer.0, account));
            let most = self.partition(limit);
            let taken = self.partitions.entry((partition, now / 4_000_000)).or_default();
            if *taken >= most {
                return Err(Reason::ReplayFull);
            }
            *taken += 1;
            self.seen.insert(hash);
        }
        if let Some(account) = payer.1 {
            self.totals[account].0 += 1;
            self.totals[account].1 += octets;
        }
        Ok(())
    }

    /// The packets that a payer's partition has place for in a turn: five seconds at its rate and what it may send at once, in
    /// packets of 56 octets; cut in proportion if the partitions of all payers together need more than three quarters of the filter.
    /// The rest is the pool.
    fn partition(&self, limit: Limit) -> u64 {
        let need = |(rate, depth): (u64, u64)| (5 * rate + depth).div_ceil(56);
        // Each of the other nodes has a link, and the open one is another.
        let all: u64 = self.accounts.iter().flatten().map(|limit| need(*limit)).sum::<u64>() * self.nodes as u64;
        let most = self.filter - self.filter.div_ceil(4);
        let partition = |limit| {
            if all > most { (u128::from(need(limit)) * u128::from(most) / u128::from(all)) as u64 } else { need(limit) }
        };
        match limit {
            Some(limit) => partition(limit),
            None => {
                self.filter
                    - self.nodes as u64 * self.accounts.iter().flatten().map(|limit| partition(*limit)).sum::<u64>()
            }
        }
    }

    /// The account that a tag names: by its third octet, under the rules of `network::with_accounts`.
    fn account(&self, tag: u32) -> Option<usize> {
        let number = (tag >> 8 & 0xff) as usize;
        (tag >> 16 & 0xff == 0 && (1..=self.accounts.len()).contains(&number)).then(|| number - 1)
    }

    fn link_to(&self, id: &[u8]) -> Option<u16> {
        let other = (0..self.nodes).find(|other| network::id(*other).to_bytes() == id)?;
        (other != self.node).then_some(LINK + other as u16)
    }

    /// What happens to `packet`, which came in by link `from` at `now` in microseconds, and its octets afterwards.
    pub fn process(&mut self, packet: &[u8], from: u16, now: u64) -> (Action, Vec<u8>) {
        match self.decide(packet, from, now) {
            Ok((action, after)) => (action, after),
            Err(reason) => (Action::Drop(reason), packet.to_vec()),
        }
    }

    fn decide(&mut self, packet: &[u8], from: u16, micros: u64) -> Result<(Action, Vec<u8>), Reason> {
        let now = (micros / 1_000_000) as u32;
        let malformed = Err(Reason::Malformed);
        let version = packet.first().map_or(0, |first| first >> 4);
        if packet.len() < 32 || (if self.version == 0 { version != 0 } else { !matches!(version, 1 | 2) }) {
            return malformed;
        }
        let (flags, count, index) = (packet[0] & 15, usize::from(packet[2]), usize::from(packet[3]));
        if flags & 1 != 0 || flags & 6 == 6 || !(2..=16).contains(&count) || index == 0 || index >= count {
            return malformed;
        }
        let path_length = if flags & 8 == 0 { 32 + 40 * (count - 1) } else { 0 };
        let proofs = 32 + path_length;
        let body = proofs + 24 * (count - 1);
        if packet.len() != body + usize::from(half(&packet[4..])) {
            return malformed;
        }
        if version == 2 && (packet[1] != 99 || flags & 6 == 0 && half(&packet[4..]) < 32) {
            return malformed;
        }
        let handle = packet[16..32].to_vec();
        let path = match (self.kept.get(&handle), flags & 8 == 0) {
            (Some(kept), is_there) => {
                let is_same = kept.len() == 32 + 40 * (count - 1) && (!is_there || packet[32..proofs] == **kept);
                if !is_same {
                    return Err(Reason::Handle);
                }
                kept.clone()
            }
            (None, true) => packet[32..proofs].to_vec(),
            (None, false) => return Err(Reason::UnknownHandle),
        };
        let ids: Vec<[u8; 32]> = (0..count)
            .map(|n| if n == 0 { &path[..32] } else { &path[32 + 40 * (n - 1)..][..32] }.try_into().unwrap())
            .collect();
        let is_key = |id: &[u8; 32]| NodeId::from_bytes(*id).is_some() && pair(&[1; 32], id, 0).is_some();
        if !self.kept.contains_key(&handle) {
            let is_repeated = (0..count).any(|n| ids[..n].contains(&ids[n]));
            if is_repeated || !ids.iter().all(|id| self.pairs.get(id).is_some_and(Option::is_some) || is_key(id)) {
                return malformed;
            }
        }
        let (path_hash, route) = path_hashes(version, &path);
        if route[..16] != *handle {
            return Err(Reason::Handle);
        }
        if ids[index] != network::id(self.node).to_bytes() {
            return Err(Reason::NotForUs);
        }
        match self.link_to(&ids[index - 1]) {
            Some(link) if link != from => return Err(Reason::Ingress),
            None if from != OPEN => return Err(Reason::Ingress),
            _ => {}
        }
        let hop = &path[32 + 40 * (index - 1)..][..40];
        let (label, expiry) = (word(&hop[32..]), word(&hop[36..]));
        let action = self.action(label, ids.get(index + 1))?;
        if self.version == 1 {
            check_time(expiry, word(&packet[8..]), now)?;
        }
        let name = [&path_hash[..], &[index as u8], &label.to_be_bytes(), &expiry.to_be_bytes()].concat();
        let node = self.node;
        let granted = *self
            .consents
            .entry(name)
            .or_insert_with(|| consent(&network::master_octets(node), &path_hash, index, label, expiry));
        let proof = |n: usize| &packet[proofs + 24 * (n - 1)..][..24];
        if self.version == 1 && pre_check(&granted, &route, &packet[8..16])[..8] != proof(index)[..8] {
            return Err(Reason::Consent);
        }
        let hash = packet_hash(packet, &route, &packet[body..]);
        let mut tags = Vec::new();
        for (other, id) in ids.iter().enumerate() {
            let key = if other == index { Some(granted) } else { self.pair(id) };
            tags.push(tag(&key.ok_or(Reason::Node)?, other.min(index), other.max(index), &hash));
        }
        let sample = covered(packet, &hash, &tags[0], &packet[body..]);
        if let Some(hash) = sample {
            let key = self.pair(&ids[0]).ok_or(Reason::Node)?;
            (tags[0], tags[index]) = (tag(&key, 0, index, &hash), tag(&granted, index, index, &hash));
        }
        let verifier = tags[..=index].iter().fold([0; 16], |sum, tag| xor(&sum, tag));
        if verifier != proof(index)[8..] {
            return Err(if sample.is_some() { Reason::Sample } else { Reason::Verifier });
        }
        let payer = (from, self.account(label));
        self.admit(hash, word(&packet[8..]), payer, packet.len() as u64, micros)?;
        self.kept.insert(handle, path.clone());
        let mut after = packet.to_vec();
        for (other, tag) in tags.iter().enumerate().skip(index + 1) {
            let place = proofs + 24 * (other - 1) + 8;
            let sum = xor(&after[place..place + 16], tag);
            after[place..place + 16].copy_from_slice(&sum);
        }
        let held = half(&packet[6..]) | 1 << index;
        after[6..8].copy_from_slice(&held.to_be_bytes());
        after[3] += u8::from(index + 1 < count);
        Ok((action, after))
    }

    fn pair(&mut self, id: &[u8; 32]) -> Option<Block> {
        let (node, version) = (self.node, self.version);
        *self.pairs.entry(*id).or_insert_with(|| {
            let is_on_curve = NodeId::from_bytes(*id).is_some_and(|id| id.is_on_curve());
            pair(network::seed(node).expose(), id, version).filter(|_| is_on_curve)
        })
    }

    /// The action for a tag by the rules of `network`.
    fn action(&self, tag: u32, next: Option<&[u8; 32]>) -> Result<Action, Reason> {
        let link = || next.and_then(|id| self.link_to(id)).ok_or(Reason::NoRoute);
        match (tag >> 24, tag >> 16 & 0xff, next) {
            (first, _, _) if first != TAGS >> 24 => Err(Reason::UnknownTag),
            (_, 0x80.., None) => Ok(Action::Deliver { service: 7, queue: 2 }),
            (_, 0x80.., Some(_)) => Ok(Action::Service { service: 7, link: link()?, queue: 2 }),
            (_, 0x40, None) => Err(Reason::NoRoute),
            (_, 0x40, Some(_)) => Ok(Action::Forward { link: OPEN, queue: 3 }),
            (_, _, None) => Ok(Action::Deliver { service: 0, queue: 1 }),
            (_, _, Some(_)) => Ok(Action::Forward { link: link()?, queue: 1 }),
        }
    }
}

fn check_time(expiry: u32, seconds: u32, now: u32) -> Result<(), Reason> {
    let ahead = i64::from(expiry.wrapping_sub(now).cast_signed());
    match ahead {
        ..0 => return Err(Reason::Expired),
        8_193.. => return Err(Reason::Future),
        _ => {}
    }
    if (-5..=1).contains(&seconds.wrapping_sub(now).cast_signed()) { Ok(()) } else { Err(Reason::Stale) }
}

/// A node of a made-up path: one of `network`'s, or an ID alone.
#[derive(Clone, Copy)]
pub enum Who {
    Node(usize),
    Id([u8; 32]),
}

/// A path, and all that proofs on it need, nodes' secrets among it.
pub struct Crafted {
    pub version: u8,
    pub path: Vec<u8>,
    pub who: Vec<Who>,
    route: [u8; 32],
    consents: Vec<Block>,
    /// Between any two nodes of which one is `network`'s; zero otherwise.
    pairs: Vec<Vec<Block>>,
}

impl Crafted {
    /// A path over `hops`: who, tag, expiry; the sender's tag and expiry are not used.
    pub fn new(version: u8, hops: &[(Who, u32, u32)]) -> Self {
        let id = |who: &Who| match who {
            Who::Node(node) => network::id(*node).to_bytes(),
            Who::Id(id) => *id,
        };
        let mut path = Vec::new();
        for (index, (who, tag, expiry)) in hops.iter().enumerate() {
            path.extend(id(who));
            if index > 0 {
                path.extend(tag.to_be_bytes());
                path.extend(expiry.to_be_bytes());
            }
        }
        let (path_hash, route) = path_hashes(version, &path);
        let consents = hops.iter().enumerate().map(|(index, (who, tag, expiry))| match who {
            Who::Node(node) => consent(&network::master_octets(*node), &path_hash, index, *tag, *expiry),
            Who::Id(_) => [0; 16],
        });
        let shared = |a: &Who, b: &Who| match (a, b) {
            (Who::Node(node), other) | (other, Who::Node(node)) => {
                pair(network::seed(*node).expose(), &id(other), version.min(1)).unwrap_or_default()
            }
            _ => [0; 16],
        };
        let pairs = hops.iter().map(|(a, ..)| hops.iter().map(|(b, ..)| shared(a, b)).collect()).collect();
        let consents = consents.collect();
        Self { version, path, who: hops.iter().map(|(who, ..)| *who).collect(), route, consents, pairs }
    }

    /// A packet as it arrives at node `index`, after the nodes in front of it.
    pub fn packet(&self, index: usize, flags: u8, nonce: u64, payload: &[u8]) -> Vec<u8> {
        let count = self.who.len();
        let protocol = if self.version == 2 { 99 } else { 4 };
        let mut out = vec![self.version << 4 | flags, protocol, count as u8, index as u8];
        out.extend((payload.len() as u16).to_be_bytes());
        out.extend((((1u32 << index) - 2) as u16).to_be_bytes());
        out.extend(nonce.to_be_bytes());
        out.extend(&self.route[..16]);
        if flags & 8 == 0 {
            out.extend(&self.path);
        }
        // A payload that is too short for a seal is malformed, whatever its proofs are.
        let ends = if payload.len() < 16 { &[0; 32] } else { payload };
        let hash = packet_hash(&out, &self.route, if self.version == 2 && flags & 6 == 0 { ends } else { payload });
        for node in 1..count {
            out.extend(&pre_check(&self.consents[node], &self.route, &nonce.to_be_bytes())[..8]);
            let pair = &self.pairs[0][node];
            let of_sender = covered(&out, &hash, &tag(pair, 0, node, &hash), payload).unwrap_or(hash);
            let mut verifier = tag(&self.consents[node], node, node, &of_sender);
            verifier = xor(&verifier, &tag(pair, 0, node, &of_sender));
            for before in 1..index.min(node) {
                verifier = xor(&verifier, &tag(&self.pairs[before][node], before, node, &hash));
            }
            out.extend(verifier);
        }
        out.extend(payload);
        out
    }
}

#[test]
fn a_senders_packets_are_those_of_the_model() {
    for (version, order) in [1, 2]
        .into_iter()
        .flat_map(|version| [&[0, 1][..], &[3, 1, 2], &[0, 1, 2, 3, 4, 5, 6, 7]].map(|order| (version, order)))
    {
        let (of, protocol) = if version == 2 { (Version::Sealed, 99) } else { (Version::Standard, 4) };
        let sender = network::sender_of(of, order);
        let hops: Vec<(Who, u32, u32)> = order.iter().map(|n| (Who::Node(*n), TAGS, network::EXPIRY)).collect();
        let crafted = Crafted::new(version, &hops);
        for length in (0..200).chain([333]) {
            for (form, part, flags) in
                [(Form::Path, Part::Whole, 0), (Form::Handle, Part::First, 12), (Form::Path, Part::Second, 2)]
            {
                if version == 2 && part == Part::Whole && length < 32 {
                    continue;
                }
                let payload = vec![length as u8; length];
                let nonce = Nonce(u64::from(TIME) << 32 | length as u64);
                let mut out = Vec::new();
                encapsulate(&sender, (form, part), protocol, nonce, &payload, &mut out).unwrap();
                assert_eq!(out, crafted.packet(1, flags, nonce.0, &payload));
            }
        }
        let path = network::path(order);
        assert_eq!(crafted.route, path.route(of).0);
        let hash = path.hash(of);
        let granted = network::master(order[1]).consent(&hash, 1, Tag(TAGS), network::EXPIRY);
        assert_eq!(*granted.key().expose(), crafted.consents[1]);
    }
}
