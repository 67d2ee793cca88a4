//! Delivery to ordinary hosts: behind its last waypoint a packet is what its sender gave to the stamper, one hop older.

use std::net::IpAddr;

use wayleave_core::{Instant, Now, Prefix, UnixTime};
use wayleave_crypto::lanes::CpuKernel;
use wayleave_crypto::secret::Key128;
use wayleave_dataplane::frame::{BURST, Frame, Ingress};
use wayleave_dataplane::platypus::{Action, Config, Counters, Reason, ReplayPolicy, Router};
use wayleave_dataplane::replay::ReplayFilter;
use wayleave_packet::platypus::header::{Capability, Carriage, Interval, Marks, Principal, Width};
use wayleave_packet::platypus::mint::{Hop, Nonce, Route, WaypointKey, WaypointKeys, encapsulate, epoch};
use wayleave_packet::platypus::verify::{Policy, Waypoint};

use crate::common::{Random, times};

const NOW: u64 = 1_795_240_800;
const TCP: u8 = 6;

fn now() -> Now {
    Now { instant: Instant(NOW * 1_000_000_000), unix: UnixTime(NOW * 1_000_000) }
}

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn prefix(text: &str) -> Prefix {
    text.parse().expect("a prefix")
}

fn waypoint(v4: bool, number: u8) -> IpAddr {
    address(&if v4 { format!("198.51.100.{number}") } else { format!("2001:db8:1::{number:x}") })
}

fn keys(number: u8) -> WaypointKeys {
    WaypointKeys::new(WaypointKey::new(&Key128::new([number; 16])))
}

fn hop(v4: bool, number: u8, principal: u32) -> Hop {
    let interval = Interval::new(12).expect("in range");
    let capability = Capability {
        waypoint: waypoint(v4, number),
        principal: Principal::new(principal).expect("24 bits"),
        interval,
        epoch: epoch::epoch_at(interval, now().unix),
        marks: Marks::default(),
        delegation: None,
        width: Width::Full,
    };
    Hop { key: keys(number).stamp_key(&capability).expect("one key for ever"), capability }
}

/// A router that is waypoint `number`, in both families.
fn router(number: u8, ordinary: &[&str], repeated: ReplayPolicy) -> Router {
    let peers = ["198.51.100.0/24", "2001:db8:1::/64"].map(prefix);
    let policy = || Policy { peers: peers.to_vec(), ..Policy::default() };
    let here = |v4| Waypoint::new(waypoint(v4, number), keys(number), policy());
    let config = Config {
        waypoints: vec![here(true), here(false)],
        repeated,
        replay: ReplayFilter::new(&Key128::new([3; 16]), 100_000, UnixTime(0)),
        need_revocations: false,
        answers_per_second: 0,
        accounts: if repeated == ReplayPolicy::Pass { 0 } else { 100 },
        account_seed: 1,
        delegations: 16,
    };
    let mut router = Router::new(config, CpuKernel::best());
    router.set_ordinary(ordinary.iter().map(|text| prefix(text)).collect());
    router
}

fn process(router: &mut Router, packets: &mut [Vec<u8>]) -> Vec<(Action, Vec<u8>)> {
    let mut out = Vec::new();
    for burst in packets.chunks_mut(BURST) {
        let mut frames: Vec<Frame<'_>> =
            burst.iter_mut().map(|octets| Frame { octets, ingress: Ingress::Internal }).collect();
        let actions = router.process(&mut frames, now());
        out.extend(actions.into_iter().zip(&frames).map(|(action, frame)| (action, frame.octets.to_vec())));
    }
    out
}

/// RFC 1071, word by word.
fn checksum(octets: &[u8]) -> u16 {
    let mut sum = 0u32;
    for pair in octets.chunks(2) {
        sum += u32::from(u16::from_be_bytes([pair[0], pair[1]]));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// An IP packet, field by field.
#[derive(Clone)]
struct Plain {
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    class: u8,
    id: u16,
    dont_fragment: bool,
    ttl: u8,
    payload: Vec<u8>,
}

impl Plain {
    fn random(random: &mut Random, v4: bool) -> Self {
        let length = if random.one_in(4) { random.below(1_400) } else { random.below(80) };
        Self {
            source: address(if v4 { "192.0.2.7" } else { "2001:db8:2::7" }),
            destination: address(if v4 { "203.0.113.9" } else { "2001:db8:3::9" }),
            protocol: random.pick(&[1, TCP, 17, 47, 58, 132]),
            class: random.next() as u8,
            id: random.next() as u16,
            dont_fragment: random.one_in(2),
            ttl: 20 + random.below(200) as u8,
            payload: random.octets(length),
        }
    }

    fn octets(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match (self.source, self.destination) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                out.extend([0x45, self.class]);
                out.extend((20 + self.payload.len() as u16).to_be_bytes());
                out.extend(self.id.to_be_bytes());
                out.extend([if self.dont_fragment { 0x40 } else { 0 }, 0, self.ttl, self.protocol, 0, 0]);
                out.extend(from.octets());
                out.extend(to.octets());
                let sum = checksum(&out).to_be_bytes();
                out[10..12].copy_from_slice(&sum);
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                out.extend((6 << 28 | u32::from(self.class) << 20 | u32::from(self.id)).to_be_bytes());
                out.extend((self.payload.len() as u16).to_be_bytes());
                out.extend([self.protocol, self.ttl]);
                out.extend(from.octets());
                out.extend(to.octets());
            }
            _ => unreachable!("one family"),
        }
        out.extend(&self.payload);
        out
    }

    fn older(&self, hops: u8) -> Vec<u8> {
        Self { ttl: self.ttl - hops, ..self.clone() }.octets()
    }

    fn stamped(&self, hops: &[Hop], counter: u32, (sealed, carriage): (bool, Carriage)) -> Vec<u8> {
        let route = Route { hops, nonce: Nonce::new(now().unix, counter), sealed, reply_option: &[], carriage };
        let mut out = Vec::new();
        encapsulate(&self.octets(), &route, &mut out).expect("sound");
        out
    }
}

/// The octets that leave the last waypoint of one packet, written out by hand.
#[test]
fn a_known_packet_leaves_its_last_waypoint_as_it_was_sent() {
    let plain = Plain {
        source: address("192.0.2.7"),
        destination: address("203.0.113.9"),
        protocol: 17,
        class: 0xb8,
        id: 0x1234,
        dont_fragment: true,
        ttl: 64,
        payload: vec![0x13, 0x88, 0x00, 0x35, 0x00, 0x0b, 0x00, 0x00, b'a', b'b', b'c'],
    };
    let mut packets = [plain.stamped(&[hop(true, 1, 7)], 1, (false, Carriage::Ip))];
    let mut router = router(1, &["203.0.113.0/24"], ReplayPolicy::Drop);
    let [(action, octets)] = process(&mut router, &mut packets).try_into().expect("one");
    #[rustfmt::skip]
    let expected = [
        // 0x45b8 + 0x001f + 0x1234 + 0x4000 + 0x3f11 + 0xc000 + 0x0207 + 0xcb00 + 0x7109 = 0x2d52c; 0xd52e; not: 0x2ad1
        0x45, 0xb8, 0x00, 0x1f, 0x12, 0x34, 0x40, 0x00, 0x3f, 0x11, 0x2a, 0xd1,
        192, 0, 2, 7, 203, 0, 113, 9,
        0x13, 0x88, 0x00, 0x35, 0x00, 0x0b, 0x00, 0x00, b'a', b'b', b'c',
    ];
    assert_eq!((action, &octets[..]), (Action::Route, &expected[..]));
    assert_eq!((router.counters().forwarded, router.counters().decapsulated), (1, 1));
}

/// Packets through one to three waypoints, in both families and both carriages: at each waypoint but the last they stay stamped,
/// whatever the network of their destination; the last one gives the sender's packet back, older by the waypoints passed.
#[test]
fn whatever_was_stamped_arrives_as_it_was_sent_but_for_the_hops() {
    for repeated in [ReplayPolicy::Pass, ReplayPolicy::Drop] {
        let mut routers: Vec<Router> =
            (1..=3).map(|number| router(number, &["203.0.113.0/24", "2001:db8:3::/64"], repeated)).collect();
        let mut random = Random(21);
        let (mut passed, mut left) = (0, 0);
        for round in 0..times("WAYLEAVE_PLATYPUS_DELIVERIES", 300) as u32 {
            let v4 = random.one_in(2);
            let count = 1 + random.below(3) as u8;
            let hops: Vec<Hop> = (1..=count).map(|number| hop(v4, number, 7 + u32::from(number))).collect();
            let how = (random.one_in(2), random.pick(&[Carriage::Ip, Carriage::Udp]));
            // Bursts of equal and of different packets: the fast path and the other.
            let sent: Vec<Plain> = match random.one_in(2) {
                true => vec![Plain::random(&mut random, v4); BURST],
                false => (0..40).map(|_| Plain::random(&mut random, v4)).collect(),
            };
            let stamp = |(number, plain): (usize, &Plain)| plain.stamped(&hops, round * 64 + number as u32, how);
            let mut packets: Vec<Vec<u8>> = sent.iter().enumerate().map(stamp).collect();
            for number in 1..=count {
                let before: Vec<usize> = packets.iter().map(Vec::len).collect();
                let done = process(&mut routers[usize::from(number) - 1], &mut packets);
                packets.clear();
                for ((action, octets), length) in done.into_iter().zip(before) {
                    assert_eq!(action, Action::Route);
                    assert!(number == count || octets.len() == length, "it stays stamped");
                    packets.push(octets);
                }
            }
            for (plain, octets) in sent.iter().zip(&packets) {
                assert_eq!(octets, &plain.older(count));
            }
            (passed, left) = (passed + sent.len() * usize::from(count), left + sent.len());
        }
        let sum = |of: fn(&Counters) -> u64| routers.iter().map(|router| of(router.counters())).sum::<u64>();
        assert_eq!((sum(|all| all.forwarded), sum(|all| all.decapsulated)), (passed as u64, left as u64));
    }
}

#[test]
fn the_header_stays_for_other_networks_and_on_what_is_refused() {
    let mut random = Random(22);
    let mut router = router(1, &["203.0.113.0/25", "2001:db8:4::/64"], ReplayPolicy::Drop);
    for (v4, destination, is_ordinary) in
        [(true, "203.0.113.127", true), (true, "203.0.113.128", false), (false, "2001:db8:3::9", false)]
    {
        let plain = Plain { destination: address(destination), ..Plain::random(&mut random, v4) };
        let stamped = plain.stamped(&[hop(v4, 1, 7)], 1, (false, Carriage::Ip));
        let [(action, octets)] = process(&mut router, &mut [stamped.clone()]).try_into().expect("one");
        assert_eq!(action, Action::Route);
        assert_eq!(octets.len() == stamped.len(), !is_ordinary, "{destination}");
        // Twice the same, or with another payload: dropped, and as long as before.
        let mut other = stamped.clone();
        *other.last_mut().expect("a payload") ^= 1;
        for (packet, why) in [(stamped.clone(), Some(Reason::Replayed)), (other, None)] {
            let length = packet.len();
            let [(action, octets)] = process(&mut router, &mut [packet]).try_into().expect("one");
            assert!(matches!(action, Action::Drop(reason) if why.is_none_or(|why| why == reason)), "{action:?}");
            assert_eq!(octets.len(), length);
        }
    }
    assert_eq!((router.counters().forwarded, router.counters().decapsulated), (3, 1));
    // Stamped within stamped: nobody takes the inner header for the host's.
    let inner = Plain { protocol: 253, ..Plain::random(&mut random, true) };
    let stamped = inner.stamped(&[hop(true, 1, 7)], 9, (false, Carriage::Ip));
    let length = stamped.len();
    let [(action, octets)] = process(&mut router, &mut [stamped]).try_into().expect("one");
    assert_eq!((action, octets.len()), (Action::Route, length));
}
