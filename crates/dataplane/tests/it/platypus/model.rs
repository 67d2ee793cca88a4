//! The Platypus router compared with its state in plain code: revocations in a list, packets seen in a map, accounts in
//! another. What a packet alone decides is [`Waypoint::verify`], whose own model is among the tests of `packet`, but for its
//! sources, which are judged here anew: a router has several addresses, and packets come by IP and over links.
//!
//! PLA, credit: some of the packets that are forwarded are not sent: what was counted for them is taken back, and no more.
//! PLA, without lanes: a router with the vector path and one without, with revocations, source prefixes, replays, rates, partitions, accounts
//! and restarts: equal actions, octets, counters and journals.
//! PLA, state: the order of resources of a router (revocations, sources, repeats, rates, partitions, accounts) over restarts, on
//! random, mutated and malformed packets in bursts (more by `WAYLEAVE_PLATYPUS_PACKETS`): equal to the same state in
//! plain code.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use wayleave_core::{Instant, Now, Prefix, UnixTime};
use wayleave_crypto::lanes::CpuKernel;
use wayleave_crypto::secret::{Key128, Secret};
use wayleave_crypto::sign::SigningKey;
use wayleave_dataplane::frame::{BURST, Frame, Ingress};
use wayleave_dataplane::platypus::account::{Payer, Total};
use wayleave_dataplane::platypus::revocation::{Revocation, Sources, sign_whole};
use wayleave_dataplane::platypus::{Action, Config, Reason, ReplayPolicy, Router};
use wayleave_dataplane::replay::{Partitions, ReplayFilter};
use wayleave_packet::platypus::header::{
    Capability, Carriage, DelegationId, Interval, Marks, Packet, Principal, Width,
};
use wayleave_packet::platypus::mint::{Hop, Nonce, Route, WaypointKey, WaypointKeys, encapsulate, epoch};
use wayleave_packet::platypus::verify::{self, Arrival, Charge, Link, Policy, Verdict, Waypoint, icmp};

/// Unix seconds at which the test begins; its clock goes on by a fraction of a second with every burst.
const BEGIN: u64 = 1_795_240_800;
const NANOS: u128 = 1_000_000_000;
const ANSWERS: u32 = 200;
/// Where packets come in: by IP, and over two links.
const PLACES: usize = 3;
/// Accounts: fewer than there are payers and epochs.
const ACCOUNTS: usize = 12;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 ^ self.0 >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 8
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

fn addresses() -> [IpAddr; 3] {
    let v4 = |last| IpAddr::V4(Ipv4Addr::new(198, 51, 100, last));
    [v4(1), v4(2), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1))]
}

fn keys() -> WaypointKeys {
    WaypointKeys::new(WaypointKey::new(&Key128::new([7; 16])))
}

/// The waypoint of a peer, which is known by IP and over the first link.
const PEER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 9);
/// The waypoint of another router of the provider's, which is known by IP and over the second link.
const OTHER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 8);
/// One that nobody here knows.
const STRANGER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);

fn waypoints() -> Vec<Waypoint> {
    let network = |text: &str| text.parse::<Prefix>().expect("a prefix");
    let host = |address: IpAddr| {
        Prefix::truncated(address, if address.is_ipv4() { 32 } else { 128 }).expect("within the family's bits")
    };
    let policy = || Policy {
        narrow: true,
        own: addresses().into_iter().chain([OTHER.into()]).map(host).collect(),
        peers: vec![host(PEER.into())],
        links: vec![
            Link { peers: vec![host(PEER.into())], sources: Some(vec![network("192.0.2.128/25")]), ..Link::default() },
            Link { own: vec![host(OTHER.into())], ..Link::default() },
        ],
        refused: vec![network("192.0.2.128/25")],
        sources: vec![network("192.0.2.128/26")],
        customers: vec![network("203.0.113.64/26")],
        ..Policy::default()
    };
    addresses().map(|address| Waypoint::new(address, keys(), policy())).to_vec()
}

/// The same waypoints, which take packets from whoever sends them.
fn waypoints_without_sources() -> Vec<Waypoint> {
    let policy = || Policy { narrow: true, check_source: false, ..Policy::default() };
    addresses().map(|address| Waypoint::new(address, keys(), policy())).to_vec()
}

/// A source of each kind: a stranger's, that of a host of ours that stamps, of one that does not, of a customer.
const SOURCES: [[u8; 4]; 4] = [[192, 0, 2, 7], [192, 0, 2, 130], [192, 0, 2, 200], [203, 0, 113, 70]];

/// Where a packet came in: mostly by IP, else over one of two links.
fn ingress(random: &mut Random) -> Ingress {
    match random.below(8) {
        0 => Ingress::External(1),
        1 => Ingress::External(2),
        _ => Ingress::Internal,
    }
}

fn interval() -> Interval {
    Interval::new(4).expect("in range")
}

fn principal(number: u64) -> Principal {
    Principal::new(number as u32).expect("24 bits")
}

fn id(number: u64) -> DelegationId {
    DelegationId::new(number as u32).expect("24 bits")
}

/// A packet for one to three of the waypoints, of a few principals and delegations; sometimes from another waypoint.
fn packet(random: &mut Random, now: Now) -> Vec<u8> {
    let is_ipv6 = random.below(4) == 0;
    let before = [PEER, PEER, OTHER, STRANGER].get(random.below(8) as usize).filter(|_| !is_ipv6).copied();
    let count = if is_ipv6 { 1 } else { 1 + random.below(3) };
    let source = if is_ipv6 {
        IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 5, 0, 0, 0, 0, 1))
    } else {
        SOURCES[if random.below(3) == 0 { random.below(4) as usize } else { 0 }].into()
    };
    let hops: Vec<Hop> = (0..count + u64::from(before.is_some()))
        .map(|index| {
            let own = addresses()[if is_ipv6 { 2 } else { (index % 2) as usize }];
            let waypoint = before.filter(|_| index == 0).map_or(own, IpAddr::V4);
            let epoch = (u64::from(epoch::epoch_at(interval(), now.unix)) + random.below(4) - 1) as u32;
            let mut capability = Capability {
                waypoint,
                principal: principal(1 + random.below(4)),
                interval: interval(),
                epoch,
                marks: if random.below(6) == 0 { Marks::BOUND } else { Marks::NONE },
                delegation: None,
                width: if random.below(4) == 0 { Width::Narrow } else { Width::Full },
            };
            if random.below(3) == 0 {
                // For replies it is one host's.
                let is_reply = random.below(4) == 0;
                let prefix: Prefix = match (is_ipv6, is_reply) {
                    (true, true) => "2001:db8:9::1/128",
                    (true, false) => "2001:db8:9::/48",
                    (false, true) => "203.0.113.9/32",
                    (false, false) => "203.0.113.0/24",
                }
                .parse()
                .expect("a prefix");
                let key = WaypointKey::new(&Key128::new([7; 16]));
                let secret = key.secret(waypoint, capability.principal, interval(), epoch);
                let mut held = secret.delegate(id(5 + random.below(2)), prefix).expect("of the family");
                if random.below(2) == 0 {
                    held = held.hand_on(id(7)).expect("once");
                }
                capability.delegation = Some(held.delegation());
                if is_reply {
                    capability.marks = capability.marks.with_reply();
                }
            }
            Hop { capability, key: keys().stamp_key_from(&capability, source).expect("one key for ever") }
        })
        .collect();
    let payload = 8 + random.below(120) as usize;
    let mut inner = match source {
        IpAddr::V6(source) => {
            let mut inner = vec![0x60, 0, 0, 0, 0, payload as u8, 17, 64];
            inner.extend(source.octets());
            inner.extend(Ipv6Addr::new(0x2001, 0xdb8, 9, 0, 0, 0, 0, 1).octets());
            inner
        }
        IpAddr::V4(source) => {
            let mut inner = vec![0x45, 0, 0, 20 + payload as u8, 0, 0, 0, 0, 64, 17, 0, 0];
            inner.extend(source.octets());
            inner.extend([203, 0, 113, 9]);
            inner
        }
    };
    inner.resize(inner.len() + payload, 0x5a);
    let route = Route {
        hops: &hops,
        nonce: Nonce::new(now.unix, random.next() as u32),
        sealed: random.below(4) == 0,
        reply_option: &[],
        carriage: if random.below(3) == 0 { Carriage::Udp } else { Carriage::Ip },
    };
    let mut out = Vec::new();
    encapsulate(&inner, &route, &mut out).expect("sound");
    if let Some(before) = before {
        let policy = Policy { narrow: true, ..Policy::default() };
        let there = Waypoint::new(before.into(), keys(), policy);
        let packet = Packet::decode(&out).expect("sound");
        // What has a key epoch that is not accepted stays as it is.
        if let Verdict::Forward(forward) = there.verify(&packet, Arrival::Ip, now.unix) {
            forward.apply(&mut out);
        }
    }
    out
}

/// A burst of packets of the commonest shape, by sixteens, with payloads of as many blocks: of a few principals, to one
/// waypoint in one epoch or to two in two; now and then with one that is a copy of another, or is not right.
fn run(random: &mut Random, now: Now) -> Vec<Vec<u8>> {
    let (spread, spoilt) = (1 + random.below(2), random.below(3));
    let (width, blocks) = (if random.below(2) == 0 { Width::Narrow } else { Width::Full }, 1 + random.below(4));
    let mut packets: Vec<Vec<u8>> = Vec::new();
    for _ in 0..16 * (1 + random.below(4)) {
        let capability = Capability {
            waypoint: addresses()[random.below(spread) as usize],
            principal: principal(1 + random.below(4)),
            interval: interval(),
            epoch: epoch::epoch_at(interval(), now.unix) - random.below(spread) as u32,
            marks: Marks::default(),
            delegation: None,
            width,
        };
        let hops = [Hop { capability, key: keys().stamp_key(&capability).expect("one key for ever") }];
        let length = (20 + 16 * blocks - random.below(16)) as u8;
        let mut inner = vec![0x45, 0, 0, length, 0, 0, 0, 0, 64, 17, 0, 0];
        inner.extend(SOURCES[if random.below(20) == 0 { random.below(4) as usize } else { 0 }]);
        inner.extend([203, 0, 113, 9]);
        inner.resize(length.into(), 0x5a);
        let nonce = Nonce::new(now.unix, random.next() as u32);
        let route = Route { hops: &hops, nonce, sealed: false, reply_option: &[], carriage: Carriage::Ip };
        let mut out = Vec::new();
        encapsulate(&inner, &route, &mut out).expect("sound");
        match random.below(40 * spread) {
            0 if spoilt == 1 => mutate(random, &mut out),
            0 if spoilt == 2 && !packets.is_empty() => {
                out.clone_from(&packets[random.below(packets.len() as u64) as usize]);
            }
            _ => {}
        }
        packets.push(out);
    }
    packets
}

/// Packets in a turn for which the pool has place, and the filter.
const POOL: u64 = (1 << 21) - 12 - 3;

/// A payer's rate and partition.
struct Rate {
    payer: Payer,
    /// Octets a second, and at once.
    octets: u64,
    /// Octets times 10^9 that it may still send, and when that was so.
    credit: u128,
    then: u64,
    /// Packets in a turn for which its partition has place.
    partition: u64,
}

/// The state of a router, in plain code.
struct Model {
    waypoints: Vec<Waypoint>,
    repeated: ReplayPolicy,
    /// The first second whose stamps pass.
    from: u64,
    revoked: Vec<Revocation>,
    sources: Vec<Sources>,
    /// What was seen, and in which turn of four seconds.
    seen: HashMap<[u8; 16], u64>,
    /// Packets that are in a partition in a turn. The pool is the last one.
    partitions: HashMap<(usize, u64), u64>,
    /// Packets that were accepted, by what they said of their payer, and the accounts that the router's journal tells of: which
    /// of those has a packet is the router's to choose, within `check_accounts`.
    accepted: BTreeMap<String, (Charge, Total)>,
    recorded: BTreeMap<String, (Charge, Total)>,
    /// For each packet of this burst, what it said of its payer if it was counted.
    counted: Vec<Option<String>>,
    /// What was counted and not sent, by principal, since the last start.
    credited: BTreeMap<Principal, Total>,
    /// How often a packet counted one level higher than it said.
    folded: u64,
    rates: Vec<Rate>,
    /// Nanoseconds of credit for answers, and when that was so: of each place where packets come in, and of all.
    answers: [(u64, u64); PLACES + 1],
}

impl Model {
    /// What becomes of a packet; `is_full` says whether the router had no account for it, which may be so only in a full table.
    fn process(&mut self, datagram: &[u8], ingress: Ingress, is_full: bool, now: Now) -> (Action, Vec<u8>) {
        self.counted.push(None);
        match self.verdict(datagram, ingress, now) {
            Verdict::Forward(forward) => {
                let (charge, fingerprint) = identify(datagram);
                let mut out = datagram.to_vec();
                match self.check(&charge, fingerprint, datagram, is_full, now) {
                    Ok(()) => {
                        forward.apply(&mut out);
                        (Action::Route, out)
                    }
                    Err(reason) => (Action::Drop(reason), out),
                }
            }
            Verdict::Answer(error, reason) => {
                let reason = Reason::Packet(reason);
                let may = self.may_answer(ingress, now);
                let packet = Packet::decode(datagram).ok().filter(|_| may);
                match packet.and_then(|packet| icmp::error(&packet, error, packet.outer().destination)) {
                    Some(answer) => (Action::Answer(reason), answer),
                    _ => (Action::Drop(reason), datagram.to_vec()),
                }
            }
            // None of the packets here is an ICMP error; `relay.rs` has those.
            Verdict::Drop(reason) => (Action::Drop(Reason::Packet(reason)), datagram.to_vec()),
        }
    }

    /// What the packet alone decides: its sources by the rules here, and all else by `verify`.
    fn verdict(&self, datagram: &[u8], ingress: Ingress, now: Now) -> Verdict {
        use verify::Reason;
        let packet = match Packet::decode(datagram) {
            Ok(packet) => packet,
            Err(malformed) => return malformed.into(),
        };
        let here = self.waypoints.iter().find(|here| here.address() == packet.outer().destination);
        let Some(here) = here else { return Reason::NotForUs.into() };
        let verdict = here.verify(&packet, Arrival::Ip, now.unix);
        let is_earlier = |reason| matches!(reason, Reason::NothingLeft | Reason::NotForUs);
        let is_martian = |reason| matches!(reason, Reason::MartianSource | Reason::MartianDestination);
        match (verdict, source_fault(datagram, ingress)) {
            (Verdict::Drop(reason), _) if is_earlier(reason) => verdict,
            (Verdict::Drop(reason), Some(Reason::OwnSource)) if is_martian(reason) => verdict,
            (_, Some(reason)) => Verdict::Drop(reason),
            (_, None) => verdict,
        }
    }

    /// The order of resources, as the design states it: revocation, sources, look-up, rate, insertion, account.
    fn check(
        &mut self,
        charge: &Charge,
        fingerprint: [u8; 16],
        datagram: &[u8],
        is_full: bool,
        now: Now,
    ) -> Result<(), Reason> {
        let octets = datagram.len() as u64;
        if self.revoked.iter().any(|entry| is_named(entry, charge)) {
            return Err(Reason::Revoked);
        }
        may_send(&self.sources, charge, datagram)?;
        let turn = now.instant.0 / 4_000_000_000;
        let has_filter = self.repeated != ReplayPolicy::Pass;
        if has_filter
            && u64::from(u32::from_be_bytes([fingerprint[0], fingerprint[1], fingerprint[2], fingerprint[3]]))
                < self.from
        {
            return Err(Reason::BeforeStart);
        }
        let is_known = has_filter && self.seen.get(&fingerprint).is_some_and(|then| turn - then < 3);
        if is_known && self.repeated == ReplayPolicy::Drop {
            return Err(Reason::Replayed);
        }
        let is_paid_by = |payer: &Payer| {
            payer.principal == charge.principal
                && (payer.delegation.is_none() || payer.delegation == charge.delegation.map(|(id, _)| id))
        };
        let mut is_over = false;
        for rate in self.rates.iter_mut().filter(|rate| is_paid_by(&rate.payer)) {
            let elapsed = u128::from(now.instant.0 - rate.then);
            rate.credit = (rate.credit + elapsed * u128::from(rate.octets)).min(u128::from(rate.octets) * NANOS);
            rate.then = now.instant.0;
            // A repeated packet leaves half of what may be sent at once to new ones.
            let kept = if is_known { rate.octets / 2 } else { 0 };
            is_over |= rate.credit < u128::from(octets + kept) * NANOS;
        }
        if is_over {
            return Err(Reason::Rate);
        }
        let paying = self.rates.iter_mut().filter(|rate| is_paid_by(&rate.payer));
        paying.for_each(|rate| rate.credit -= u128::from(octets) * NANOS);
        if is_known {
            return Ok(());
        }
        if has_filter {
            // The principal's partition before the delegation's, which stands behind it.
            let partition = self.rates.iter().position(|rate| is_paid_by(&rate.payer)).unwrap_or(self.rates.len());
            let most = self.rates.get(partition).map_or(POOL, |rate| rate.partition);
            let taken = self.partitions.entry((partition, turn)).or_default();
            if *taken >= most {
                return Err(Reason::ReplayFull);
            }
            *taken += 1;
            self.seen.insert(fingerprint, turn);
        }
        if is_full {
            return Err(Reason::AccountsFull);
        }
        let name = format!("{charge:?}");
        let (_, total) = self.accepted.entry(name.clone()).or_insert((*charge, Total::default()));
        total.packets += 1;
        total.octets += u128::from(octets);
        self.counted.pop();
        self.counted.push(Some(name));
        Ok(())
    }

    /// The packet at this place of the burst was not sent.
    fn credit(&mut self, place: usize, octets: usize) {
        let Some(name) = self.counted[place].take() else { return };
        let (charge, total) = self.accepted.get_mut(&name).expect("it was counted");
        total.packets -= 1;
        total.octets -= octets as u128;
        let credited = self.credited.entry(charge.principal).or_default();
        *credited = credited.plus(Total { packets: 1, octets: octets as u128 });
    }

    /// Every accepted packet is in one account: its own, its delegation's or its principal's, of its key epoch.
    fn check_accounts(&mut self, router: &mut Router) {
        for (charge, total) in router.accounts().journal() {
            self.recorded.insert(format!("{charge:?}"), (charge, total));
        }
        assert_eq!(router.accounts().open().0, self.recorded.len());
        let sum = |of: &BTreeMap<String, (Charge, Total)>, is_meant: &dyn Fn(&Charge) -> bool| {
            let all = of.values().filter(|(charge, _)| is_meant(charge));
            all.fold((0, 0), |(packets, octets), (_, total)| (packets + total.packets, octets + total.octets))
        };
        for (charge, total) in self.recorded.values().chain(self.accepted.values()) {
            let is_payers = |other: &Charge| (other.principal, other.epoch) == (charge.principal, charge.epoch);
            assert_eq!(sum(&self.recorded, &is_payers), sum(&self.accepted, &is_payers), "{charge:?}");
            let (recorded, accepted) = match charge.delegation {
                // What is the principal's own is in no account but this.
                None => (sum(&self.accepted, &|other| other == charge), sum(&self.recorded, &|other| other == charge)),
                Some((id, None)) => {
                    let is_of = |other: &Charge| is_payers(other) && other.delegation.is_some_and(|(of, _)| of == id);
                    (sum(&self.recorded, &is_of), sum(&self.accepted, &is_of))
                }
                Some(_) => {
                    (sum(&self.recorded, &|other| other == charge), sum(&self.accepted, &|other| other == charge))
                }
            };
            assert!(recorded.0 <= accepted.0 && recorded.1 <= accepted.1, "{charge:?}: {total:?}");
        }
        for (charge, total) in self.recorded.values() {
            assert_eq!(router.accounts().total(charge), *total, "{charge:?}");
        }
        let credited = router.payers().filter(|(_, of)| of.credited != Total::default());
        let credited: BTreeMap<Principal, Total> =
            credited.filter_map(|(principal, of)| Some((principal?, of.credited))).collect();
        assert_eq!(credited, self.credited);
    }

    /// Half of the limit is for all, and the other half is divided among the places where packets come in.
    fn may_answer(&mut self, ingress: Ingress, now: Now) -> bool {
        let place = if let Ingress::External(link) = ingress { link.into() } else { 0 };
        [(place, 2 * PLACES as u32), (PLACES, 2)].into_iter().any(|(place, parts)| {
            let (cost, burst) = (NANOS as u64 * u64::from(parts) / u64::from(ANSWERS), u64::from(ANSWERS / parts));
            let (credit, then) = self.answers[place];
            let credit = (credit + now.instant.0 - then).min(cost * burst);
            self.answers[place] = (credit - if credit >= cost { cost } else { 0 }, now.instant.0);
            credit >= cost
        })
    }
}

/// What is wrong with the sources of a packet that could be decoded, and that is for a waypoint here: at the first waypoint the
/// outer source is the original one; later it is a waypoint that the provider or a configured peer runs, and never just an
/// address that the sender wrote, into the list or at the other end of a link. Over a peer's link paths begin from what it names.
/// Read from the octets as `docs/wire/platypus.md` lays them out.
fn source_fault(datagram: &[u8], ingress: Ingress) -> Option<verify::Reason> {
    let is_ipv4 = datagram[0] >> 4 == 4;
    let (ip_length, size, protocol) = if is_ipv4 { (20, 4, datagram[9]) } else { (40, 16, datagram[6]) };
    let platypus = &datagram[if protocol == 17 { ip_length + 8 } else { ip_length }..];
    let outer = if is_ipv4 { &datagram[12..16] } else { &datagram[8..24] };
    let original = &platypus[4..4 + size];
    // The addresses of the capabilities that begin in front of the current one.
    let (list, current) = (&platypus[12 + 2 * size..], 4 * usize::from(platypus[2]));
    let (mut at, mut visited) = (0, Vec::new());
    while at < current {
        visited.push(&list[at..at + size]);
        let kind = list[at + size + 3];
        let delegated = if kind & 0x80 != 0 { size + 4 } else { 0 } + if kind & 0x40 != 0 { 4 } else { 0 };
        at += size + 8 + delegated + if kind & 0x20 != 0 { 8 } else { 16 };
    }
    let before = visited.last().copied();
    if outer != before.unwrap_or(original) {
        return Some(verify::Reason::Source);
    }
    let is = |octets: &[u8], address: IpAddr| match address {
        IpAddr::V4(v4) => octets == v4.octets(),
        IpAddr::V6(v6) => octets == v6.octets(),
    };
    let is_the_providers =
        |octets: &[u8]| is(octets, OTHER.into()) || addresses().into_iter().any(|address| is(octets, address));
    // Ours is 192.0.2.128/25, of which the lower half stamps; customers are 203.0.113.64/26.
    let is_ours = is_ipv4 && original[..3] == [192, 0, 2] && original[3] >= 128;
    let is_stamping = is_ours && original[3] < 192;
    let is_customer = is_ipv4 && original[..3] == [203, 0, 113] && (64..128).contains(&original[3]);
    match (before, ingress) {
        (None, Ingress::External(1)) if !is_ours => return Some(verify::Reason::LinkSource),
        (None, _) => {}
        (Some(before), Ingress::External(1)) if is(before, PEER.into()) => {}
        (Some(before), Ingress::External(2)) if is(before, OTHER.into()) => {}
        (Some(before), Ingress::Internal) if is(before, PEER.into()) || is_the_providers(before) => {}
        _ => return Some(verify::Reason::ForeignWaypoint),
    }
    let by_a_peer = !visited.into_iter().all(is_the_providers);
    let is_refused = if by_a_peer { is_ours || is_customer } else { is_ours && !is_stamping };
    is_refused.then_some(verify::Reason::OwnSource)
}

/// Whom a sound packet is charged to, and the octets that tell it from all others (nonce and the first half of the binding),
/// read from the octets as `docs/wire/platypus.md` lays them out.
fn identify(datagram: &[u8]) -> (Charge, [u8; 16]) {
    let number = |octets: &[u8]| octets.iter().fold(0, |number, octet| number << 8 | u64::from(*octet));
    let (ip_length, size, protocol) = if datagram[0] >> 4 == 4 { (20, 4, datagram[9]) } else { (40, 16, datagram[6]) };
    let platypus = &datagram[if protocol == 17 { ip_length + 8 } else { ip_length }..];
    // One word, two addresses, and the nonce in front of the list.
    let nonce = &platypus[4 + 2 * size..12 + 2 * size];
    let capability = &platypus[12 + 2 * size + 4 * usize::from(platypus[2])..];
    // Address, principal, kind, epoch; prefix, its length, delegation ID; length of the first prefix, sub-delegation ID.
    let kind = capability[size + 3];
    let (is_delegated, is_handed_on) = (kind & 0x80 != 0, kind & 0x40 != 0);
    let sub = is_handed_on.then(|| id(number(&capability[2 * size + 13..2 * size + 16])));
    let charge = Charge {
        principal: principal(number(&capability[size..size + 3])),
        delegation: is_delegated.then(|| (id(number(&capability[2 * size + 9..2 * size + 12])), sub)),
        interval: Interval::new(kind & 0x1f),
        // Below the marks.
        epoch: number(&capability[size + 4..size + 8]) as u32 & 0x3fff_ffff,
    };
    let binding = size + 8 + if is_delegated { size + 4 } else { 0 } + if is_handed_on { 4 } else { 0 };
    let mut fingerprint = [0; 16];
    fingerprint[..8].copy_from_slice(nonce);
    fingerprint[8..].copy_from_slice(&capability[binding..binding + 8]);
    (charge, fingerprint)
}

/// Whether a payer may send what was verified, by prefixes compared bit by bit.
fn may_send(sources: &[Sources], charge: &Charge, datagram: &[u8]) -> Result<(), Reason> {
    let (ip_length, size, protocol) = if datagram[0] >> 4 == 4 { (20, 4, datagram[9]) } else { (40, 16, datagram[6]) };
    let platypus = &datagram[if protocol == 17 { ip_length + 8 } else { ip_length }..];
    let marks = platypus[12 + 2 * size + 4 * usize::from(platypus[2])..][size + 4];
    let (is_bound, is_reply) = (marks & 0x80 != 0, marks & 0x40 != 0);
    let end = if is_reply { &platypus[4 + size..4 + 2 * size] } else { &platypus[4..4 + size] };
    let of = |delegation: Option<DelegationId>| {
        sources.iter().find(|of| of.principal == charge.principal && of.delegation == delegation)
    };
    let (own, delegated) = (of(None), charge.delegation.and_then(|(id, _)| of(Some(id))));
    if own.is_none() && delegated.is_none() && is_bound {
        return Err(Reason::SourcesUnknown);
    }
    let has = |of: &Sources| {
        of.prefixes.iter().any(|prefix| {
            let network = prefix.octets();
            let is_equal = |bit: usize| (network[bit / 8] ^ end[bit / 8]) & 0x80 >> (bit % 8) == 0;
            (prefix.address().is_ipv4() == (size == 4)) && (0..usize::from(prefix.len())).all(is_equal)
        })
    };
    let is_own = own.is_none_or(|own| own.prefixes.is_empty() || has(own));
    let may = match delegated {
        Some(named) if !named.prefixes.is_empty() => has(named) && (is_own || own.is_some_and(|own| own.delegates_any)),
        _ => is_own,
    };
    if may { Ok(()) } else { Err(Reason::Sources) }
}

fn is_named(entry: &Revocation, charge: &Charge) -> bool {
    entry.principal == charge.principal
        && entry.epoch.is_none_or(|(interval, epoch)| Some(interval) == charge.interval && epoch == charge.epoch)
        && match (entry.delegation, charge.delegation) {
            (None, _) => true,
            (Some((id, None)), Some((held, _))) => id == held,
            (entry, held) => entry == held,
        }
}

fn mutate(random: &mut Random, datagram: &mut Vec<u8>) {
    for _ in 0..=random.below(3) {
        let near = if random.below(2) == 0 { datagram.len().min(100) } else { datagram.len() };
        let at = random.below(near.max(1) as u64) as usize;
        match random.below(6) {
            0..4 if at < datagram.len() => datagram[at] ^= 1 << random.below(8),
            4 => datagram.truncate(at),
            _ => datagram.extend_from_within(at.min(datagram.len())..),
        }
    }
    // A right checksum half of the time, so that more than the checksum is tried.
    if random.below(2) == 0 && datagram.len() >= 20 {
        datagram[10..12].fill(0);
        let mut sum: u32 = datagram[..20].chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        datagram[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    }
}

fn revocations(random: &mut Random, now: Now) -> Vec<Revocation> {
    let epoch = u64::from(epoch::epoch_at(interval(), now.unix));
    (0..random.below(6))
        .map(|_| Revocation {
            principal: principal(1 + random.below(4)),
            delegation: match random.below(3) {
                0 => None,
                1 => Some((id(5 + random.below(2)), None)),
                _ => Some((id(5 + random.below(2)), Some(id(7)))),
            },
            epoch: (random.below(3) != 0).then(|| (interval(), (epoch + random.below(3) - 1) as u32)),
        })
        .collect()
}

/// Of principals and delegations that packets are of: around their sources and, for replies, destinations.
fn sources(random: &mut Random) -> Vec<Sources> {
    let networks = ["0.0.0.0/0", "192.0.2.0/26", "192.0.2.0/24", "203.0.113.0/24", "2001:db8:5::/48", "2001:db8::/32"];
    let mut all = Vec::new();
    for number in 1..=4 {
        for delegation in [None, Some(id(5)), Some(id(6))] {
            if random.below(3) == 0 {
                let delegates_any = delegation.is_none() && random.below(2) == 0;
                let chosen = networks.iter().filter(|_| random.below(3) == 0);
                let mut prefixes: Vec<Prefix> = chosen.map(|text| text.parse().expect("a prefix")).collect();
                prefixes.sort_unstable();
                all.push(Sources { principal: principal(number), delegation, delegates_any, prefixes });
            }
        }
    }
    all
}

/// Closes the accounts of epochs that are over, and forgets packets that are long stale.
fn close(router: &mut Router, model: &mut Model, now: Now) {
    // Only what is recorded can be closed.
    model.check_accounts(router);
    let current = epoch::epoch_at(interval(), now.unix);
    let is_over = |charge: &Charge| charge.epoch + 1 < current;
    for (charge, _) in model.recorded.values().filter(|(charge, _)| is_over(charge)) {
        assert!(router.accounts().close(charge), "it was recorded");
    }
    model.recorded.retain(|_, (charge, _)| !is_over(charge));
    model.accepted.retain(|_, (charge, _)| !is_over(charge));
    let this = now.instant.0 / 4_000_000_000;
    model.seen.retain(|_, turn| this - *turn < 4);
    model.partitions.retain(|(_, turn), _| this - *turn < 2);
}

fn config(repeated: ReplayPolicy, accounts: usize, started: UnixTime) -> Config {
    Config {
        waypoints: waypoints(),
        repeated,
        // Far more than there are packets, so that no packet looks like another.
        replay: ReplayFilter::new(&Key128::new([3; 16]), 1 << 21, started),
        need_revocations: false,
        answers_per_second: ANSWERS,
        accounts,
        account_seed: 1,
        delegations: 8,
    }
}

/// A router that starts at `now`, and its model. Rates and partitions are those of a principal and of another one's delegation.
fn pair(repeated: ReplayPolicy, is_rated: bool, now: Now) -> (Router, Model) {
    let mut router = Router::new(config(repeated, ACCOUNTS, now.unix), CpuKernel::best()).with_places(PLACES);
    let mut rates = Vec::new();
    let limits = [
        (Payer { principal: principal(1), delegation: None }, 4_000, 12),
        (Payer { principal: principal(2), delegation: Some(id(5)) }, 900, 3),
    ];
    if is_rated {
        let divided = Partitions::divide(1 << 21, &limits.map(|(.., partition)| partition));
        router.accounts().set_pool(divided.pool);
        for ((payer, octets, partition), own) in limits.into_iter().zip(divided.each) {
            router.accounts().set_rate(payer, octets, octets, now.instant);
            router.accounts().set_partition(&payer, own);
            rates.push(Rate { payer, octets, credit: u128::from(octets) * NANOS, then: now.instant.0, partition });
        }
    }
    let answers = [(NANOS as u64, now.instant.0); PLACES + 1];
    let (revoked, sources, seen, partitions) = (Vec::new(), Vec::new(), HashMap::new(), HashMap::new());
    let (accepted, recorded) = (BTreeMap::new(), BTreeMap::new());
    let from = now.unix.secs() + 2;
    (
        router,
        Model {
            waypoints: waypoints_without_sources(),
            repeated,
            from,
            revoked,
            sources,
            seen,
            partitions,
            accepted,
            recorded,
            counted: Vec::new(),
            credited: BTreeMap::new(),
            folded: 0,
            rates,
            answers,
        },
    )
}

/// Both begin anew, with the totals that a journal has kept and the revocations of a list.
fn restart((router, model): (&mut Router, &mut Model), list: u64, now: Now) {
    let key = SigningKey::from_seed(&Secret::new([1; 32]));
    model.check_accounts(router);
    let mut after = pair(model.repeated, !model.rates.is_empty(), now);
    after.0.accounts().restore(model.recorded.values().copied());
    let (octets, signature) = sign_whole(&key, list, now.unix, &model.revoked, &model.sources);
    after.0.revocations().apply(&octets, &signature, &key.verifying_key()).expect("the first one");
    after.1.accepted = std::mem::take(&mut model.accepted);
    after.1.recorded = std::mem::take(&mut model.recorded);
    after.1.folded = model.folded + router.accounts().folded();
    after.1.revoked = std::mem::take(&mut model.revoked);
    after.1.sources = std::mem::take(&mut model.sources);
    (*router, *model) = after;
}

/// `WAYLEAVE_PLATYPUS_PACKETS` packets, 260,000 if not set, for each of three ways to treat what comes again, and for one
/// without rates.
#[test]
#[allow(clippy::disallowed_methods, reason = "a test's length is told by its environment")]
fn the_router_equals_the_model_with_revocation_replay_and_accounting() {
    let cases = std::env::var("WAYLEAVE_PLATYPUS_PACKETS").ok().and_then(|text| text.parse().ok()).unwrap_or(260_000);
    let key = SigningKey::from_seed(&Secret::new([1; 32]));
    let ways = [
        (ReplayPolicy::Drop, true),
        (ReplayPolicy::CountOnce, true),
        (ReplayPolicy::Pass, true),
        (ReplayPolicy::Drop, false),
    ];
    for (repeated, is_rated) in ways {
        let mut random = Random(11);
        let start = Now { instant: Instant(0), unix: UnixTime((BEGIN - 60) * 1_000_000) };
        let (mut router, mut model) = pair(repeated, is_rated, start);
        let mut accepted = HashSet::new();
        let mut pool: Vec<Vec<u8>> = Vec::new();
        let mut met = HashMap::<String, u64>::new();
        let mut done = 0u64;
        for burst in 0u64.. {
            if done >= cases {
                break;
            }
            let now = Now { instant: Instant(burst * 40_000_000), unix: UnixTime(BEGIN * 1_000_000 + burst * 40_000) };
            if burst % 50 == 49 {
                let entries = revocations(&mut random, now);
                let sources = sources(&mut random);
                let (list, signature) = sign_whole(&key, burst, now.unix, &entries, &sources);
                router.revocations().apply(&list, &signature, &key.verifying_key()).expect("newer");
                (model.revoked, model.sources) = (entries, sources);
                close(&mut router, &mut model, now);
            }
            // Twelve seconds and more, or some bursts after another start.
            if burst % 400 == 300 || random.below(500) == 0 {
                restart((&mut router, &mut model), burst, now);
            }
            pool.extend((0..6).map(|_| packet(&mut random, now)));
            pool.drain(..pool.len().saturating_sub(400));
            let mut datagrams: Vec<Vec<u8>> = if burst % 4 == 0 { run(&mut random, now) } else { Vec::new() };
            let count = if datagrams.is_empty() { 1 + random.below(BURST as u64) } else { 0 };
            for _ in 0..count {
                // Now and then one that has much in common with the one before.
                let like = datagrams.last().filter(|_| random.below(5) == 0).cloned();
                let is_like = like.is_some();
                let mut datagram = like.unwrap_or_else(|| pool[random.below(pool.len() as u64) as usize].clone());
                if is_like || random.below(4) == 0 {
                    mutate(&mut random, &mut datagram);
                }
                datagrams.push(datagram);
            }
            let came: Vec<Ingress> = datagrams.iter().map(|_| ingress(&mut random)).collect();
            let sent = datagrams.clone();
            let packets = datagrams.iter_mut().zip(&came);
            let mut frames: Vec<Frame<'_>> =
                packets.map(|(octets, ingress)| Frame { octets, ingress: *ingress }).collect();
            let actions = router.process(&mut frames, now);
            let full = Action::Drop(Reason::AccountsFull);
            let packets = sent.iter().zip(&came).zip(actions);
            model.counted.clear();
            let expected: Vec<(Action, Vec<u8>)> = packets
                .map(|((datagram, ingress), action)| model.process(datagram, *ingress, action == full, now))
                .collect();
            // Only a table that is full refuses a packet, and only one whose principal has no account of its own.
            for datagram in sent.iter().zip(actions).filter(|(_, action)| *action == full).map(|(datagram, _)| datagram)
            {
                let own = Charge { delegation: None, ..identify(datagram).0 };
                assert_eq!(router.accounts().open(), (ACCOUNTS, ACCOUNTS));
                assert_eq!(router.accounts().total(&own), Total::default(), "{own:?}");
            }
            for (place, (action, octets)) in expected.iter().enumerate() {
                assert_eq!((actions[place], &*frames[place].octets), (*action, &octets[..]), "{:02x?}", sent[place]);
                *met.entry(format!("{action:?}")).or_default() += 1;
                if *action == Action::Route && repeated == ReplayPolicy::Drop {
                    assert!(accepted.insert(identify(&sent[place]).1), "twice, over all restarts");
                }
                // What was sent on comes to the next waypoint, which may be one of ours.
                if *action == Action::Route && random.below(3) == 0 {
                    pool.push(octets.clone());
                }
                // Or could not be sent, for want of room or of a route.
                if *action == Action::Route && random.below(8) == 0 {
                    router.credit(router.charged(place));
                    model.credit(place, sent[place].len());
                }
            }
            done += expected.len() as u64;
        }
        model.check_accounts(&mut router);
        let folded = model.folded + router.accounts().folded();
        assert!(folded > cases / 10_000, "{folded}");
        let mut all = vec!["Route", "Drop(Revoked)", "Drop(AccountsFull)", "Answer(Packet(Binding))"];
        all.extend(["Drop(Packet(Source))", "Drop(Packet(ForeignWaypoint))", "Drop(Packet(OwnSource))"]);
        all.extend(["Drop(Packet(LinkSource))", "Drop(Sources)", "Drop(SourcesUnknown)"]);
        all.extend(is_rated.then_some("Drop(Rate)"));
        all.extend((repeated == ReplayPolicy::Drop).then_some("Drop(Replayed)"));
        all.extend((repeated != ReplayPolicy::Pass).then_some("Drop(BeforeStart)"));
        all.extend((repeated != ReplayPolicy::Pass && is_rated).then_some("Drop(ReplayFull)"));
        for what in all {
            assert!(met.get(what).is_some_and(|count| *count > cases / 10_000), "{what} of {met:?}");
        }
    }
}

/// Two routers with the same state, one of them without the vector path, on the same bursts: actions, octets, counters and
/// accounts.
#[test]
fn the_router_does_the_same_with_and_without_lanes() {
    let key = SigningKey::from_seed(&Secret::new([1; 32]));
    for (repeated, accounts) in
        [(ReplayPolicy::Drop, ACCOUNTS), (ReplayPolicy::CountOnce, ACCOUNTS), (ReplayPolicy::Pass, 0)]
    {
        let mut random = Random(23);
        let both = |now: Now| {
            let config = || config(repeated, accounts, now.unix);
            let both = [Router::new(config(), CpuKernel::best()), Router::without_lanes(config())];
            let mut both = both.map(|router| router.with_places(PLACES));
            let payers = [(1, None), (2, Some(id(5))), (3, None)];
            let partitions = Partitions::divide(1 << 21, &[400, 5, 50]);
            for router in &mut both {
                router.accounts().set_pool(partitions.pool);
                for ((number, delegation), partition) in payers.into_iter().zip(&partitions.each) {
                    let payer = Payer { principal: principal(number), delegation };
                    router.accounts().set_rate(payer, 40_000, 40_000, now.instant);
                    router.accounts().set_partition(&payer, *partition);
                }
            }
            both
        };
        let [mut fast, mut plain] = both(Now { instant: Instant(0), unix: UnixTime((BEGIN - 9) * 1_000_000) });
        let mut full = 0;
        let mut routed = 0;
        for burst in 0u64..600 {
            let now = Now { instant: Instant(burst * 40_000_000), unix: UnixTime(BEGIN * 1_000_000 + burst * 40_000) };
            if burst % 250 == 200 {
                assert_eq!(fast.counters(), plain.counters());
                full += plain.counters().of(Reason::ReplayFull);
                let journals = [fast.accounts().journal(), plain.accounts().journal()];
                assert_eq!(journals[0], journals[1]);
                [fast, plain] = both(now);
            }
            if burst % 50 == 49 {
                // Without accounts and revocations, but for sources nothing but the packet decides.
                let entries = if accounts > 0 { revocations(&mut random, now) } else { Vec::new() };
                let sources = if burst % 100 == 99 { sources(&mut random) } else { Vec::new() };
                let (list, signature) = sign_whole(&key, burst, now.unix, &entries, &sources);
                for router in [&mut fast, &mut plain] {
                    router.revocations().apply(&list, &signature, &key.verifying_key()).expect("newer");
                }
            }
            let mut datagrams = if burst % 2 == 0 {
                run(&mut random, now)
            } else {
                (0..random.below(BURST as u64 + 1)).map(|_| packet(&mut random, now)).collect()
            };
            for datagram in &mut datagrams {
                if random.below(16) == 0 {
                    mutate(&mut random, datagram);
                }
            }
            let came: Vec<Ingress> = datagrams.iter().map(|_| ingress(&mut random)).collect();
            let [(actions, octets), (plain_actions, plain_octets)] = [&mut fast, &mut plain].map(|router| {
                let mut datagrams = datagrams.clone();
                let packets = datagrams.iter_mut().zip(&came);
                let mut frames: Vec<Frame<'_>> =
                    packets.map(|(octets, ingress)| Frame { octets, ingress: *ingress }).collect();
                let actions = router.process(&mut frames, now);
                (actions, frames.iter().map(|frame| frame.octets.to_vec()).collect::<Vec<_>>())
            });
            assert_eq!((actions, octets), (plain_actions, plain_octets), "{repeated:?}, burst {burst}");
            for place in (0..datagrams.len()).filter(|place| actions[*place] == Action::Route) {
                assert_eq!(fast.charged(place), plain.charged(place), "{repeated:?}, burst {burst}");
                if random.below(8) == 0 {
                    [&mut fast, &mut plain].into_iter().for_each(|router| router.credit(router.charged(place)));
                }
            }
            routed += actions.iter().filter(|action| **action == Action::Route).count();
        }
        assert_eq!(fast.counters(), plain.counters());
        assert_eq!(fast.accounts().journal(), plain.accounts().journal());
        let payers = [&fast, &plain].map(|router| {
            let counters = router.payers().map(|(principal, of)| (principal, *of));
            counters.collect::<BTreeMap<_, _>>()
        });
        assert_eq!(payers[0], payers[1]);
        assert!(routed > 3_000, "{routed} packets were forwarded");
        assert_eq!(full > 0, repeated != ReplayPolicy::Pass, "{full}");
    }
}
