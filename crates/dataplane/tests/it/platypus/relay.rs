//! ICMP errors of ordinary routers: relayed to the original source if they show that their sender has seen a packet which this
//! router sent on, and dropped otherwise. Also how much a router answers with, and to whom.
//!
//! PLA-12, relayed errors: ICMP errors that quote what was sent, cut at every length; forged ones; those of who paid for the packet
//! and writes another source; whole packets at a router without a filter: relayed to the source if they show what came from
//! there; dropped and counted; bindings checked within a limit.
//! FWD, limit of answers: a flood at one link: the others have their answers.
//! FWD, amplification: random and mutated packets: no answer is longer than its cause.

use std::net::{IpAddr, Ipv4Addr};

use wayleave_core::{Instant, Now, Prefix, UnixTime};
use wayleave_crypto::lanes::CpuKernel;
use wayleave_crypto::secret::{Key128, Secret};
use wayleave_crypto::sign::SigningKey;
use wayleave_dataplane::frame::{Frame, Ingress};
use wayleave_dataplane::platypus::revocation::{Sources, sign_whole};
use wayleave_dataplane::platypus::{Action, Config, Reason, ReplayPolicy, Router};
use wayleave_dataplane::replay::ReplayFilter;
use wayleave_packet::platypus::header::{Capability, Carriage, Interval, Marks, Principal, Width};
use wayleave_packet::platypus::mint::{Hop, Nonce, Route, WaypointKey, WaypointKeys, encapsulate, epoch};
use wayleave_packet::platypus::verify::{self, Policy, Waypoint};

use crate::common::Random;

const NOW: u64 = 1_795_240_800;
const HERE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
const SOURCE: [u8; 4] = [192, 0, 2, 7];
/// An ordinary router on the way.
const MIDDLE: [u8; 4] = [192, 0, 2, 99];
/// Octets in front of the binding: IP header, Platypus header of one capability, and the capability.
const BINDING: usize = 20 + 20 + 12;

fn at(nanos: u64) -> Now {
    Now { instant: Instant(NOW * 1_000_000_000 + nanos), unix: UnixTime(NOW * 1_000_000 + nanos / 1_000) }
}

fn keys() -> WaypointKeys {
    WaypointKeys::new(WaypointKey::new(&Key128::new([7; 16])))
}

fn router(repeated: ReplayPolicy, answers_per_second: u32) -> Router {
    router_with(repeated, answers_per_second, Policy::default())
}

fn router_with(repeated: ReplayPolicy, answers_per_second: u32, policy: Policy) -> Router {
    let config = Config {
        waypoints: vec![Waypoint::new(HERE.into(), keys(), policy)],
        repeated,
        replay: ReplayFilter::new(&Key128::new([3; 16]), 10_000, UnixTime(0)),
        need_revocations: false,
        answers_per_second,
        accounts: 100,
        account_seed: 1,
        delegations: 16,
    };
    Router::new(config, CpuKernel::best())
}

/// A stamped packet with `payload` octets behind its inner header.
fn stamped(counter: u32, payload: usize, carriage: Carriage) -> Vec<u8> {
    stamped_by(SOURCE, &[HERE], counter, payload, carriage)
}

/// The same from another source, by several waypoints with one key.
fn stamped_by(source: [u8; 4], path: &[Ipv4Addr], counter: u32, payload: usize, carriage: Carriage) -> Vec<u8> {
    let interval = Interval::new(12).expect("in range");
    let hop = |waypoint: &Ipv4Addr| {
        let capability = Capability {
            waypoint: IpAddr::V4(*waypoint),
            principal: Principal::new(7).expect("24 bits"),
            interval,
            epoch: epoch::epoch_at(interval, at(0).unix),
            marks: Marks::default(),
            delegation: None,
            width: Width::Full,
        };
        Hop { capability, key: keys().stamp_key(&capability).expect("one key") }
    };
    let hops: Vec<Hop> = path.iter().map(hop).collect();
    let nonce = Nonce::new(at(0).unix, counter);
    let route = Route { hops: &hops, nonce, sealed: false, reply_option: &[], carriage };
    let total = (20 + payload) as u16;
    let mut inner = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0];
    inner[2..4].copy_from_slice(&total.to_be_bytes());
    inner.extend(source);
    inner.extend([203, 0, 113, 9]);
    inner.resize(20 + payload, 0x5a);
    let mut out = Vec::new();
    encapsulate(&inner, &route, &mut out).expect("sound");
    out
}

fn process(router: &mut Router, packet: &[u8], now: Now) -> (Action, Vec<u8>) {
    let mut octets = packet.to_vec();
    let mut frames = [Frame { octets: &mut octets, ingress: Ingress::Internal }];
    let action = router.process(&mut frames, now)[0];
    (action, frames[0].octets.to_vec())
}

/// What the router sends on.
fn sent(router: &mut Router, packet: &[u8]) -> Vec<u8> {
    let (action, octets) = process(router, packet, at(0));
    assert_eq!(action, Action::Route);
    octets
}

/// An ICMP error to the waypoint that quotes these octets.
fn error(kind: [u8; 2], quoted: &[u8]) -> Vec<u8> {
    let total = (20 + 8 + quoted.len()) as u16;
    let mut out = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, 1, 0, 0];
    out[2..4].copy_from_slice(&total.to_be_bytes());
    out.extend(MIDDLE);
    out.extend(HERE.octets());
    out.extend([kind[0], kind[1], 0, 0, 0, 0, 0, 0]);
    out.extend(quoted);
    out
}

const TOO_BIG: [u8; 2] = [3, 4];

/// Makes the checksum of an IPv4 header right.
fn write_checksum(packet: &mut [u8]) {
    packet[10..12].fill(0);
    let sum: u32 = packet[..20].chunks(2).map(|two| u32::from(two[0]) << 8 | u32::from(two[1])).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
}

#[test]
fn an_error_that_quotes_what_was_sent_is_relayed_as_long_as_the_filter_remembers_it() {
    for repeated in [ReplayPolicy::Drop, ReplayPolicy::CountOnce] {
        for carriage in [Carriage::Ip, Carriage::Udp] {
            let mut router = router(repeated, 1_000);
            let udp = if carriage == Carriage::Udp { 8 } else { 0 };
            let sent = sent(&mut router, &stamped(1, 1_400, carriage));
            for length in 0..sent.len().min(548) {
                let (action, relayed) = process(&mut router, &error(TOO_BIG, &sent[..length]), at(1));
                // Half of the binding is enough. A quote that ends before the original source is no such error at all.
                let expected = match length {
                    _ if length >= BINDING + udp + 8 => Action::Answer(Reason::Relayed),
                    _ if length >= 20 + udp + 8 => Action::Drop(Reason::Unrelated),
                    _ => Action::Drop(Reason::Packet(verify::Reason::Malformed)),
                };
                assert_eq!(action, expected, "{length}");
                if expected == Action::Answer(Reason::Relayed) {
                    assert_eq!((relayed[9], &relayed[16..20]), (1, &SOURCE[..]));
                    assert!(relayed.len() <= 20 + 8 + length, "{} for {length}", relayed.len());
                }
            }
            // Longer than any error takes.
            let late = at(200_000_000_000);
            let (action, _) = process(&mut router, &error(TOO_BIG, &sent[..548]), late);
            assert_eq!(action, Action::Drop(Reason::Unrelated));
        }
    }
}

#[test]
fn forged_errors_are_dropped_and_counted_whatever_they_quote() {
    let mut router = router(ReplayPolicy::Drop, 1_000);
    let known = sent(&mut router, &stamped(1, 600, Carriage::Ip));
    let mut random = Random(5);
    let mut forged = 0;
    let mut expect_dropped = |router: &mut Router, quoted: &[u8]| {
        let packet = error(TOO_BIG, quoted);
        let (action, octets) = process(router, &packet, at(1));
        assert_eq!((action, &octets), (Action::Drop(Reason::Unrelated), &packet), "{quoted:02x?}");
        forged += 1;
    };
    // Nonces and bindings at random, of connections of any source that the forger wants to harm.
    for _ in 0..1_000 {
        let mut quoted = known.clone();
        for octet in &mut quoted[20 + 12..20 + 20] {
            *octet = random.next() as u8;
        }
        for octet in &mut quoted[BINDING..BINDING + 16] {
            *octet = random.next() as u8;
        }
        quoted[20 + 4..20 + 8].copy_from_slice(&random.next().to_be_bytes()[..4]);
        quoted[20 + 4] = 100;
        expect_dropped(&mut router, &quoted[..548]);
        // The whole of a short packet, whose binding is checked.
        let mut short = quoted[..20 + 20 + 28 + 8].to_vec();
        let length = short.len() as u16;
        short[2..4].copy_from_slice(&length.to_be_bytes());
        write_checksum(&mut short);
        expect_dropped(&mut router, &short);
    }
    // Each bit of what was sent that tells the packet from others.
    for bit in (8 * (20 + 12)..8 * (20 + 20)).chain(8 * BINDING..8 * (BINDING + 8)) {
        let mut quoted = known.clone();
        quoted[bit / 8] ^= 0x80 >> (bit % 8);
        expect_dropped(&mut router, &quoted[..548]);
    }
    // A packet that the waypoint has not let pass yet: its pointer is at the waypoint's capability.
    let mut early = stamped(2, 600, Carriage::Ip);
    early[12..16].copy_from_slice(&HERE.octets());
    expect_dropped(&mut router, &early[..548]);
    let counters = router.counters();
    assert_eq!((counters.of(Reason::Unrelated), counters.answered), (forged, 0));
    // Errors about what was sent go through all the while.
    let mut relay = || process(&mut router, &error(TOO_BIG, &known[..548]), at(2)).0;
    assert_eq!(relay(), Action::Answer(Reason::Relayed));
    // Beyond the limit they are counted as what they are, and not as malformed packets.
    let beyond = Action::Drop(Reason::RelayLimit);
    assert!(
        (0..5_000)
            .map(|_| relay())
            .skip_while(|action| *action == Action::Answer(Reason::Relayed))
            .all(|action| action == beyond)
    );
    assert_eq!(relay(), beyond);
}

/// Who sends a packet knows its nonce and binding, and may quote it with any source, or stamp another that it never sends: what has
/// come from a source is what the filter remembers.
#[test]
fn an_error_goes_to_nobody_but_the_source_that_its_packet_came_from() {
    for repeated in [ReplayPolicy::Drop, ReplayPolicy::CountOnce] {
        let mut router = router(repeated, 1_000);
        for payload in [100, 1_400] {
            let known = sent(&mut router, &stamped(payload as u32, payload, Carriage::Ip));
            let victim = [192, 0, 2, 8];
            let mut quoted = known.clone();
            quoted[20 + 4..20 + 8].copy_from_slice(&victim);
            // The same nonce and a binding that is right for this source.
            let never_sent = stamped_by(victim, &[HERE], payload as u32, payload, Carriage::Ip);
            let mut passed = never_sent.clone();
            self::router(ReplayPolicy::Pass, 1)
                .process(&mut [Frame { octets: &mut passed, ingress: Ingress::Internal }], at(0));
            assert_eq!(passed[22], 7, "its pointer is behind the capability");
            for quoted in [quoted, never_sent, passed] {
                let (action, _) = process(&mut router, &error(TOO_BIG, &quoted), at(1));
                assert!(matches!(action, Action::Drop(_)), "{action:?}");
            }
            let (action, relayed) = process(&mut router, &error(TOO_BIG, &known), at(1));
            assert_eq!((action, &relayed[16..20]), (Action::Answer(Reason::Relayed), &SOURCE[..]));
        }
    }
}

/// Without a filter a payer may write a right binding over any source: errors go to its own alone.
#[test]
fn no_error_goes_to_a_source_that_the_payer_may_not_use() {
    let key = SigningKey::from_seed(&Secret::new([1; 32]));
    let principal = Principal::new(7).expect("24 bits");
    let prefixes = vec!["192.0.2.8/32".parse().expect("a prefix")];
    let sources = [Sources { principal, delegation: None, delegates_any: false, prefixes }];
    let (list, signature) = sign_whole(&key, 1, at(0).unix, &[], &sources);
    for (source, expected) in
        [([192, 0, 2, 8], Action::Answer(Reason::Relayed)), ([192, 0, 2, 9], Action::Drop(Reason::Unrelated))]
    {
        let mut router = router(ReplayPolicy::Pass, 1_000);
        let sent = sent(&mut router, &stamped_by(source, &[HERE], 1, 100, Carriage::Ip));
        assert_eq!(process(&mut router, &error(TOO_BIG, &sent), at(0)).0, Action::Answer(Reason::Relayed));
        router.revocations().apply(&list, &signature, &key.verifying_key()).expect("the first one");
        assert_eq!(process(&mut router, &error(TOO_BIG, &sent), at(1)).0, expected);
    }
}

/// Where no filter is in use, a whole packet with a right binding shows no source. An error goes to none that packets would be
/// refused from.
#[test]
fn no_error_goes_to_a_source_that_is_refused() {
    let peer = Ipv4Addr::new(198, 51, 100, 2);
    let network = |text: &str| text.parse::<Prefix>().expect("a prefix");
    let policy = || Policy {
        peers: vec![network("198.51.100.2/32")],
        refused: vec![network("10.0.0.0/8")],
        sources: vec![network("10.1.0.0/16")],
        customers: vec![network("203.0.113.0/24")],
        ..Policy::default()
    };
    // As a peer in front sends it on: outer addresses, and the pointer behind its capability.
    let arriving = |mut packet: Vec<u8>, path: &[Ipv4Addr]| {
        if path.len() > 1 {
            packet[12..16].copy_from_slice(&peer.octets());
            packet[16..20].copy_from_slice(&HERE.octets());
            packet[22] = 7;
            write_checksum(&mut packet);
        }
        packet
    };
    let unrelated = Action::Drop(Reason::Unrelated);
    for (source, is_refused_at) in
        [([10, 0, 0, 5], [true, true]), ([10, 1, 0, 5], [false, true]), ([203, 0, 113, 5], [false, true])]
    {
        for (path, is_refused) in [&[HERE][..], &[peer, HERE]].into_iter().zip(is_refused_at) {
            // What a router without such networks has sent on: behind a peer's waypoint, too.
            let peers = vec![network("198.51.100.2/32")];
            let mut open = router_with(ReplayPolicy::Pass, 1_000, Policy { peers, ..Policy::default() });
            let whole = sent(&mut open, &arriving(stamped_by(source, path, 1, 100, Carriage::Ip), path));
            let expected = if is_refused { unrelated } else { Action::Answer(Reason::Relayed) };
            for (repeated, expected) in [(ReplayPolicy::Pass, expected), (ReplayPolicy::Drop, unrelated)] {
                let mut here = router_with(repeated, 1_000, policy());
                let (action, _) = process(&mut here, &error(TOO_BIG, &whole), at(1));
                assert_eq!(action, expected, "{source:?} by {path:?}");
            }
        }
    }
}

/// Where no filter is in use, the whole packet with its binding shows that the error is about a packet that may pass here.
#[test]
fn a_whole_packet_with_its_binding_is_relayed_by_a_router_without_a_filter() {
    let (mut first, mut second) = (router(ReplayPolicy::Pass, 1_000), router(ReplayPolicy::Pass, 1_000));
    let mut whole = sent(&mut first, &stamped(1, 100, Carriage::Ip));
    assert_eq!(process(&mut second, &error(TOO_BIG, &whole), at(1)).0, Action::Answer(Reason::Relayed));
    for cut in [1, 50, 108] {
        let quoted = &whole[..whole.len() - cut];
        assert_eq!(process(&mut second, &error(TOO_BIG, quoted), at(1)).0, Action::Drop(Reason::Unrelated));
    }
    // A binding that is not that of the packet, a nonce of another time.
    for at_octet in [BINDING + 15, 20 + 12, 20 + 9, 100] {
        whole[at_octet] ^= 1;
        assert_eq!(process(&mut second, &error(TOO_BIG, &whole), at(1)).0, Action::Drop(Reason::Unrelated));
        whole[at_octet] ^= 1;
    }
    let hour = at(3_600_000_000_000);
    assert_eq!(process(&mut second, &error(TOO_BIG, &whole), hour).0, Action::Drop(Reason::Unrelated));
}

#[test]
fn bindings_of_quotes_are_checked_within_the_limit() {
    let mut router = router(ReplayPolicy::Pass, 100);
    let right = sent(&mut router, &stamped(2, 100, Carriage::Ip));
    let mut forged = right.clone();
    forged[BINDING] ^= 1;
    for _ in 0..99 {
        assert_eq!(process(&mut router, &error(TOO_BIG, &forged), at(1)).0, Action::Drop(Reason::Unrelated));
    }
    assert_eq!(process(&mut router, &error(TOO_BIG, &right), at(1)).0, Action::Answer(Reason::Relayed));
    assert_eq!(process(&mut router, &error(TOO_BIG, &right), at(1)).0, Action::Drop(Reason::Unrelated));
}

#[test]
fn relayed_errors_are_within_the_limit_of_answers() {
    let mut router = router(ReplayPolicy::Drop, 100);
    let known = sent(&mut router, &stamped(1, 600, Carriage::Ip));
    let actions = (0..1_000).map(|_| process(&mut router, &error(TOO_BIG, &known[..548]), at(1)).0);
    assert_eq!(actions.filter(|action| *action == Action::Answer(Reason::Relayed)).count(), 100);
}

/// What comes by one link leaves the others their part of the answers.
#[test]
fn a_flood_at_one_link_leaves_the_others_their_answers() {
    let mut router = router(ReplayPolicy::Drop, 100).with_places(4);
    let mut wrong = stamped(1, 600, Carriage::Ip);
    wrong[BINDING] ^= 1;
    let mut answered = |link: u16| {
        let mut octets = wrong.clone();
        let ingress = if link == 0 { Ingress::Internal } else { Ingress::External(link) };
        let mut frames = [Frame { octets: &mut octets, ingress }];
        matches!(router.process(&mut frames, at(1))[0], Action::Answer(_))
    };
    assert_eq!((0..1_000).filter(|_| answered(2)).count(), 50 + 12);
    for link in [0, 1, 3] {
        assert_eq!((0..1_000).filter(|_| answered(link)).count(), 12, "{link}");
    }
}

/// With every kind of packet: no answer is longer than what it answers, none goes to a martian, and none answers an error.
#[test]
fn no_answer_is_longer_than_its_cause_whatever_the_packet() {
    let mut router = router(ReplayPolicy::Drop, 1_000_000);
    let mut random = Random(17);
    let mut answers = 0;
    for number in 0..40_000u32 {
        let carriage = if random.one_in(3) { Carriage::Udp } else { Carriage::Ip };
        let mut packet = stamped(number, random.below(1_200), carriage);
        if random.one_in(3) {
            let (action, octets) = process(&mut router, &packet, at(0));
            if action == Action::Route {
                let most = octets.len().min(1 + random.below(600));
                packet = error([random.pick(&[3, 11, 12, 0, 5, 8]), random.below(16) as u8], &octets[..most]);
            }
        }
        for _ in 0..random.below(4) {
            let place = random.below(packet.len().min(100));
            let odd = random.next() as u8;
            packet[place] = random.pick(&[0, 127, 224, 255, odd]);
        }
        if packet[0] == 0x45 {
            write_checksum(&mut packet);
        }
        let (action, answer) = process(&mut router, &packet, at(0));
        let Action::Answer(reason) = action else { continue };
        answers += 1;
        assert!(answer.len() <= packet.len(), "{} octets for {}", answer.len(), packet.len());
        assert!(!matches!(answer[16], 0 | 127 | 224..), "to {:?}", &answer[16..20]);
        if packet[9] == 1 {
            assert_eq!(reason, Reason::Relayed, "an error is passed on, and never answered");
        }
    }
    assert!(answers > 1_000, "{answers}");
}
