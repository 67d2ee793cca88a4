//! The Platypus router: what was revoked, repeated, unpaid or unanswerable.
//!
//! PLA-06: revoked, then one, two, three epochs later; a restart; old lists: never accepted again.
//! PLA, credit: packets of a burst that could not be sent: their payers' counters and journal are those of the others.
//! PLA-08: one packet many times, by one router and two: counted once by each.
//! PLA-11, sources: a list whose first waypoint is the sender's own: dropped under its own name, unless a peer runs it.
//! PLA-12: a flood of invalid packets: 100 ICMP errors a second, none longer than its cause.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use wayleave_core::{Instant, Now, Prefix, UnixTime};
use wayleave_crypto::lanes::CpuKernel;
use wayleave_crypto::secret::{Key128, Secret};
use wayleave_crypto::sign::SigningKey;
use wayleave_dataplane::frame::{BURST, Frame, Ingress};
use wayleave_dataplane::platypus::account::{ChargeLine, Payer, Total};
use wayleave_dataplane::platypus::revocation::{ListError, ListKind, Revocation, RevocationTable, sign_list};
use wayleave_dataplane::platypus::{Action, Config, ForeignWaypoint, Reason, ReplayPolicy, Router};
use wayleave_dataplane::replay::ReplayFilter;
use wayleave_packet::platypus::header::{
    Capability, Carriage, DelegationId, Interval, Marks, Packet, Principal, Width,
};
use wayleave_packet::platypus::mint::{Hop, Nonce, Route, WaypointKey, WaypointKeys, encapsulate, epoch};
use wayleave_packet::platypus::verify::{self, Arrival, Policy, Waypoint};

const NOW: u64 = 1_795_240_800;
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1));
const SOURCE: [u8; 4] = [192, 0, 2, 7];

fn now(secs: u64) -> Now {
    Now { instant: Instant(secs * 1_000_000_000), unix: UnixTime(secs * 1_000_000) }
}

fn interval() -> Interval {
    Interval::new(12).expect("in range")
}

fn current_epoch(secs: u64) -> u32 {
    epoch::epoch_at(interval(), now(secs).unix)
}

fn principal(number: u32) -> Principal {
    Principal::new(number).expect("24 bits")
}

fn id(number: u32) -> DelegationId {
    DelegationId::new(number).expect("24 bits")
}

fn keys() -> WaypointKeys {
    WaypointKeys::new(WaypointKey::new(&Key128::new([7; 16])))
}

fn waypoint() -> Waypoint {
    Waypoint::new(HERE, keys(), Policy::default())
}

fn router(repeated: ReplayPolicy) -> Router {
    let config = Config {
        waypoints: vec![waypoint()],
        repeated,
        replay: ReplayFilter::new(&Key128::new([3; 16]), 10_000, UnixTime(0)),
        need_revocations: false,
        answers_per_second: 100,
        accounts: 100,
        account_seed: 1,
        delegations: 16,
    };
    Router::new(config, CpuKernel::best())
}

/// A packet with a capability of `epoch`, stamped at `secs`, delegated under `delegation` and `sub`.
fn packet(epoch: u32, delegation: Option<(u32, Option<u32>)>, counter: u32, secs: u64) -> Vec<u8> {
    let mut capability = Capability {
        waypoint: HERE,
        principal: principal(7),
        interval: interval(),
        epoch,
        marks: Marks::default(),
        delegation: None,
        width: Width::Full,
    };
    if let Some((first, sub)) = delegation {
        let key = WaypointKey::new(&Key128::new([7; 16]));
        let prefix: Prefix = "203.0.113.0/24".parse().expect("a prefix");
        let held = key.secret(HERE, principal(7), interval(), epoch).delegate(id(first), prefix);
        let held = held.and_then(|held| sub.map_or(Ok(held.clone()), |sub| held.hand_on(id(sub)))).expect("sound");
        capability.delegation = Some(held.delegation());
    }
    let hops = [Hop { capability, key: keys().stamp_key(&capability).expect("one key for ever") }];
    let nonce = Nonce::new(now(secs).unix, counter);
    let route = Route { hops: &hops, nonce, sealed: false, reply_option: &[], carriage: Carriage::Ip };
    let mut inner = vec![0x45, 0, 0, 60, 0, 0, 0, 0, 64, 6, 0, 0];
    inner.extend(SOURCE);
    inner.extend([203, 0, 113, 9]);
    inner.resize(60, 0x5a);
    let mut out = Vec::new();
    encapsulate(&inner, &route, &mut out).expect("sound");
    out
}

fn process(router: &mut Router, datagram: &mut [u8], now: Now) -> (Action, Vec<u8>) {
    let mut frames = [Frame { octets: datagram, ingress: Ingress::Internal }];
    let actions = router.process(&mut frames, now);
    (actions[0], frames[0].octets.to_vec())
}

fn action(router: &mut Router, mut datagram: Vec<u8>, secs: u64) -> Action {
    process(router, &mut datagram, now(secs)).0
}

fn key_server() -> SigningKey {
    SigningKey::from_seed(&Secret::new([1; 32]))
}

fn apply(
    revocations: &mut RevocationTable,
    sequence: u64,
    kind: ListKind,
    entries: &[Revocation],
) -> Result<(), ListError> {
    let (list, signature) = sign_list(&key_server(), sequence, now(NOW).unix, kind, entries);
    revocations.apply(&list, &signature, &key_server().verifying_key())
}

/// What the holder of a capability sends to choose its packets' original source: the list's first waypoint is its own address,
/// with a binding that nobody checks, and the second one this, with a right binding over that source.
fn laundered(counter: u32) -> Vec<u8> {
    let attacker = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 66));
    let hops: Vec<Hop> = [attacker, HERE]
        .into_iter()
        .map(|waypoint| {
            let capability = Capability {
                waypoint,
                principal: principal(7),
                interval: interval(),
                epoch: current_epoch(NOW),
                marks: Marks::default(),
                delegation: None,
                width: Width::Full,
            };
            Hop { capability, key: keys().stamp_key(&capability).expect("one key for ever") }
        })
        .collect();
    let nonce = Nonce::new(now(NOW).unix, counter);
    let route = Route { hops: &hops, nonce, sealed: false, reply_option: &[], carriage: Carriage::Ip };
    let mut inner = vec![0x45, 0, 0, 60, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 5, 203, 0, 113, 9];
    inner.resize(60, 0x5a);
    let mut out = Vec::new();
    encapsulate(&inner, &route, &mut out).expect("sound");
    // IPv4 20, header 20 (pointer at 22), capabilities of 28 octets from 40 on.
    out[52..68].fill(0x5a);
    out[22] = 7;
    out.copy_within(40..44, 12);
    out.copy_within(68..72, 16);
    write_checksum(&mut out);
    out
}

/// A waypoint that principal 7's packets come from by IP.
fn foreign(waypoint: [u8; 4]) -> ForeignWaypoint {
    ForeignWaypoint { waypoint: waypoint.into(), arrival: Arrival::Ip, principal: principal(7) }
}

fn write_checksum(packet: &mut [u8]) {
    packet[10..12].fill(0);
    let mut sum: u32 = packet[..20].chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    packet[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}

/// PLA-11: among packets that pass, on every kernel and without lanes.
#[test]
fn a_list_whose_first_waypoint_is_the_senders_own_is_dropped_and_counted() {
    let config = |peers: Vec<Prefix>| Config {
        waypoints: vec![Waypoint::new(HERE, keys(), Policy { peers, ..Policy::default() })],
        repeated: ReplayPolicy::Drop,
        replay: ReplayFilter::new(&Key128::new([3; 16]), 10_000, UnixTime(0)),
        need_revocations: false,
        answers_per_second: 100,
        accounts: 100,
        account_seed: 1,
        delegations: 16,
    };
    let peers = || vec!["192.0.2.66/32".parse().expect("a prefix")];
    for peers in [Vec::new(), peers()] {
        let routers = CpuKernel::available().map(|kernel| Router::new(config(peers.clone()), kernel));
        for mut router in routers.chain([Router::without_lanes(config(peers.clone()))]) {
            let mut datagrams: Vec<Vec<u8>> = (0..32)
                .map(|n| if n % 2 == 0 { packet(current_epoch(NOW), None, n, NOW) } else { laundered(n) })
                .collect();
            let mut frames: Vec<Frame<'_>> =
                datagrams.iter_mut().map(|octets| Frame { octets, ingress: Ingress::Internal }).collect();
            let actions = router.process(&mut frames, now(NOW));
            let reason = Reason::Packet(verify::Reason::ForeignWaypoint);
            for (index, action) in actions[..32].iter().enumerate() {
                let is_dropped = index % 2 == 1 && peers.is_empty();
                assert_eq!(*action, if is_dropped { Action::Drop(reason) } else { Action::Route }, "{index}");
            }
            assert_eq!(router.counters().of(reason), if peers.is_empty() { 16 } else { 0 });
            // The operator is told which waypoint it was, once for all of them.
            let told = if peers.is_empty() { vec![foreign([192, 0, 2, 66])] } else { Vec::new() };
            assert_eq!(router.take_foreign_waypoints(), told);
            assert_eq!(router.take_foreign_waypoints(), []);
        }
    }
}

/// PLA-11, told: anybody writes addresses into packets that nobody pays for, from whom the operator would hear of waypoints that
/// are none, and of those that are no more.
#[test]
fn a_flood_of_forged_waypoints_leaves_the_operator_those_of_packets_that_would_pass() {
    let mut router = router(ReplayPolicy::Drop);
    let from = |waypoint: [u8; 4], counter: u32, is_forged: bool| {
        let mut octets = laundered(counter);
        octets[12..16].copy_from_slice(&waypoint);
        octets[40..44].copy_from_slice(&waypoint);
        write_checksum(&mut octets);
        let last = 68 + 12 + 15;
        octets[last] ^= u8::from(is_forged);
        octets
    };
    let reason = Reason::Packet(verify::Reason::ForeignWaypoint);
    for n in 0..1_000u32 {
        let waypoint = [192, 0, (n >> 8) as u8, n as u8];
        assert_eq!(action(&mut router, from(waypoint, n, true), NOW), Action::Drop(reason));
    }
    assert_eq!(router.counters().of(reason), 1_000, "all are counted");
    assert_eq!(router.take_foreign_waypoints(), []);
    // A second later, in which bindings are checked again.
    for n in 0..50 {
        action(&mut router, from([192, 0, 2, n], n.into(), true), NOW + 1);
    }
    for _ in 0..2 {
        action(&mut router, from([192, 0, 2, 66], 7, false), NOW + 1);
    }
    assert_eq!(router.take_foreign_waypoints(), [foreign([192, 0, 2, 66])]);
    // Nor does one holder of a capability, who writes any list in front of it, take the places of others.
    for n in 1..=20 {
        action(&mut router, from([192, 0, 2, n], n.into(), false), NOW + 2);
    }
    assert_eq!(router.take_foreign_waypoints(), [foreign([192, 0, 2, 1]), foreign([192, 0, 2, 2])]);
}

/// PLA-06: at once, and for as long as the key is accepted; for the epochs before and after as well as for its own.
#[test]
fn what_is_revoked_stays_revoked_until_its_key_expires() {
    let epoch = current_epoch(NOW);
    for revoked in epoch - 1..=epoch + 1 {
        let mut router = router(ReplayPolicy::Drop);
        assert_eq!(action(&mut router, packet(revoked, None, 1, NOW), NOW), Action::Route);
        let entry = Revocation { principal: principal(7), delegation: None, epoch: Some((interval(), revoked)) };
        assert_eq!(apply(router.revocations(), 1, ListKind::Whole, &[entry]), Ok(()));
        let mut counter = 1;
        for later in 0..4 * 4_096 / 64 {
            let secs = NOW + later * 64;
            router.revocations().expire(now(secs).unix);
            counter += 1;
            let found = action(&mut router, packet(revoked, None, counter, secs), secs);
            let is_accepted = epoch::is_accepted(interval(), revoked, now(secs).unix);
            let expected = if is_accepted { Reason::Revoked } else { Reason::Packet(verify::Reason::KeyEpoch) };
            assert!(matches!(found, Action::Drop(reason) | Action::Answer(reason) if reason == expected), "{found:?}");
        }
        assert!(router.revocations().is_empty());
    }
}

#[test]
fn a_revoked_delegation_takes_with_it_what_was_handed_on_from_it_and_nothing_else() {
    let epoch = current_epoch(NOW);
    let all = [None, Some((5, None)), Some((5, Some(6))), Some((5, Some(7))), Some((8, None))];
    for (delegation, passing) in [
        (None, [false; 5]),
        (Some((id(5), None)), [true, false, false, false, true]),
        (Some((id(5), Some(id(6)))), [true, true, false, true, true]),
    ] {
        for scope in [None, Some((interval(), epoch))] {
            let mut router = router(ReplayPolicy::Drop);
            let entry = Revocation { principal: principal(7), delegation, epoch: scope };
            assert_eq!(apply(router.revocations(), 1, ListKind::Whole, &[entry]), Ok(()));
            let found = all.map(|held| action(&mut router, packet(epoch, held, 1, NOW), NOW) == Action::Route);
            assert_eq!(found, passing, "{entry:?}");
        }
    }
}

/// PLA-06: old lists, gaps, other signers, a restart.
#[test]
fn lists_of_revocations_only_go_forward() {
    let entry = |n| Revocation { principal: principal(n), delegation: None, epoch: None };
    let mut revocations = RevocationTable::default();
    assert_eq!(apply(&mut revocations, 4, ListKind::Addition, &[entry(1)]), Err(ListError::Gap { held: 0, got: 4 }));
    assert_eq!(apply(&mut revocations, 5, ListKind::Whole, &[entry(1), entry(2)]), Ok(()));
    assert_eq!(apply(&mut revocations, 5, ListKind::Whole, &[]), Err(ListError::Old { held: 5, got: 5 }));
    assert_eq!(apply(&mut revocations, 4, ListKind::Whole, &[]), Err(ListError::Old { held: 5, got: 4 }));
    assert_eq!(apply(&mut revocations, 7, ListKind::Addition, &[]), Err(ListError::Gap { held: 5, got: 7 }));
    assert_eq!(apply(&mut revocations, 6, ListKind::Addition, &[entry(3)]), Ok(()));
    assert_eq!(revocations.len(), 3);
    let (mut list, signature) = sign_list(&key_server(), 9, now(NOW).unix, ListKind::Whole, &[]);
    list[0] ^= 1;
    let key = key_server().verifying_key();
    assert_eq!(revocations.apply(&list, &signature, &key), Err(ListError::Signature));
    let (list, signature) = sign_list(&key_server(), 9, now(NOW).unix, ListKind::Whole, &[entry(3)]);
    assert_eq!(revocations.apply(&list[..20], &signature, &key), Err(ListError::Signature));
    assert_eq!(revocations.apply(&list, &signature, &key), Ok(()));
    assert_eq!((revocations.len(), revocations.age(now(NOW + 77).unix)), (1, 77));

    // A router that has just started lets nothing pass before it has a list.
    let config = Config {
        waypoints: vec![waypoint()],
        repeated: ReplayPolicy::Drop,
        replay: ReplayFilter::new(&Key128::new([3; 16]), 100, UnixTime(0)),
        need_revocations: true,
        answers_per_second: 1,
        accounts: 10,
        account_seed: 1,
        delegations: 1,
    };
    let mut router = Router::new(config, CpuKernel::best());
    let epoch = current_epoch(NOW);
    assert_eq!(action(&mut router, packet(epoch, None, 1, NOW), NOW), Action::Drop(Reason::RevocationsUnknown));
    assert_eq!(apply(router.revocations(), 1, ListKind::Whole, &[]), Ok(()));
    assert_eq!(action(&mut router, packet(epoch, None, 1, NOW), NOW), Action::Route);
}

/// The paper's 1.4 million (section 7.4).
#[test]
fn a_router_holds_1_4_million_revocations() {
    let epoch = current_epoch(NOW);
    let entries: Vec<Revocation> = (0..1_400_000u32)
        .map(|n| Revocation {
            principal: principal(n % 1_000 * 2),
            delegation: Some((id(n / 1_000), None)),
            epoch: Some((interval(), epoch)),
        })
        .collect();
    let mut router = router(ReplayPolicy::Drop);
    assert_eq!(apply(router.revocations(), 1, ListKind::Whole, &entries), Ok(()));
    assert_eq!(router.revocations().len(), 1_400_000);
    assert_eq!(action(&mut router, packet(epoch, Some((5, None)), 1, NOW), NOW), Action::Route);
    let more =
        Revocation { principal: principal(7), delegation: Some((id(5), None)), epoch: Some((interval(), epoch)) };
    assert_eq!(apply(router.revocations(), 2, ListKind::Addition, &[more]), Ok(()));
    assert_eq!(action(&mut router, packet(epoch, Some((5, None)), 2, NOW), NOW), Action::Drop(Reason::Revoked));
    assert_eq!(action(&mut router, packet(epoch, Some((6, None)), 3, NOW), NOW), Action::Route);
}

/// PLA-08: one packet many times, by one router; and by a second one, whose filter is its own.
#[test]
fn a_packet_that_comes_again_is_counted_once() {
    let epoch = current_epoch(NOW);
    let sent = packet(epoch, None, 1, NOW);
    let charge = |router: &mut Router| {
        let journal = router.accounts().journal();
        journal.first().map_or(Total::default(), |(_, total)| *total)
    };
    for (repeated, routed, counted) in
        [(ReplayPolicy::Drop, 1, 1), (ReplayPolicy::CountOnce, 1_000, 1), (ReplayPolicy::Pass, 1_000, 1_000)]
    {
        let mut router = router(repeated);
        let found = (0..1_000).filter(|_| action(&mut router, sent.clone(), NOW) == Action::Route).count();
        assert_eq!(found, routed, "{repeated:?}");
        assert_eq!(charge(&mut router), Total { packets: counted, octets: counted * sent.len() as u128 });
    }
    let (mut one, mut two) = (router(ReplayPolicy::Drop), router(ReplayPolicy::Drop));
    assert_eq!(action(&mut one, sent.clone(), NOW), Action::Route);
    assert_eq!(action(&mut two, sent.clone(), NOW), Action::Route);
    // Until its nonce is stale, it is known; then it is stale.
    for later in 1..100 {
        let found = action(&mut one, sent.clone(), NOW + later);
        let stale = Reason::Packet(verify::Reason::Stale);
        let expected = if later <= 5 { Reason::Replayed } else { stale };
        assert!(matches!(found, Action::Drop(reason) | Action::Answer(reason) if reason == expected), "{found:?}");
    }
}

/// Two packets of a burst are not sent, one of them a copy that was not counted.
#[test]
fn a_payer_is_credited_with_what_was_counted_and_could_not_be_sent() {
    let epoch = current_epoch(NOW);
    let mut router = router(ReplayPolicy::CountOnce);
    let mut packets: Vec<Vec<u8>> = [1, 2, 3, 2].map(|counter| packet(epoch, None, counter, NOW)).to_vec();
    let length = packets[0].len() as u128;
    packets.push(packet(epoch - 5, None, 4, NOW));
    let mut frames: Vec<Frame<'_>> =
        packets.iter_mut().map(|octets| Frame { octets, ingress: Ingress::Internal }).collect();
    let actions = router.process(&mut frames, now(NOW));
    assert_eq!(actions[..4], [Action::Route; 4]);
    assert_ne!(actions[4], Action::Route);
    for unsent in [1, 3, 1] {
        router.credit(router.charged(unsent));
    }
    // The third one found another packet of that length to take back; the driver credits each packet once.
    let total = Total { packets: 1, octets: length };
    let (charge, recorded) = router.accounts().journal()[0];
    assert_eq!((charge.principal, recorded), (principal(7), total));
    router.credit(router.charged(0));
    assert_eq!(router.accounts().total(&charge), total, "what is recorded stays");
    let credited = |router: &Router| {
        router.payers().find(|(who, _)| *who == Some(principal(7))).map_or(Total::default(), |(_, of)| of.credited)
    };
    assert_eq!(credited(&router), Total { packets: 2, octets: 2 * length });
}

/// The answer has the place in its burst that a packet had which was charged before.
#[test]
fn nobody_is_credited_with_an_answer_that_could_not_be_sent() {
    let epoch = current_epoch(NOW);
    let mut router = router(ReplayPolicy::Drop);
    assert_eq!(action(&mut router, packet(epoch, None, 1, NOW), NOW), Action::Route);
    assert_ne!(router.charged(0), ChargeLine::default());
    let mut expired = packet(epoch, None, 2, NOW);
    expired[8] = 1;
    write_checksum(&mut expired);
    assert!(matches!(action(&mut router, expired, NOW), Action::Answer(_)));
    assert_eq!(router.charged(0), ChargeLine::default());
    router.credit(router.charged(0));
    assert!(router.payers().all(|(_, of)| of.credited == Total::default()));
}

#[test]
fn refusals_are_counted_for_whoever_pays_by_reason() {
    let mut router = router(ReplayPolicy::Drop);
    router.accounts().set_rate(Payer { principal: principal(7), delegation: None }, 100, 200, now(NOW).instant);
    let epoch = current_epoch(NOW);
    let sent = packet(epoch, None, 1, NOW);
    assert_eq!(action(&mut router, sent.clone(), NOW), Action::Route);
    assert_eq!(action(&mut router, sent, NOW), Action::Drop(Reason::Replayed));
    for counter in 2..5 {
        action(&mut router, packet(epoch, None, counter, NOW), NOW);
    }
    // A binding that is wrong names nobody.
    let mut forged = packet(epoch, None, 9, NOW);
    *forged.last_mut().expect("octets") ^= 1;
    action(&mut router, forged, NOW);
    let refused = |reason| {
        let of = |who| move |(principal, _): &(Option<Principal>, _)| *principal == who;
        let one = router.payers().find(of(Some(principal(7)))).map_or(0, |(_, counters)| counters.refused(reason));
        let others = router.payers().find(of(None)).map_or(0, |(_, counters)| counters.refused(reason));
        (one, others)
    };
    assert_eq!(refused(Reason::Replayed), (1, 0));
    assert_eq!(refused(Reason::Rate), (router.counters().of(Reason::Rate), 0));
    assert!(refused(Reason::Rate).0 >= 2);
    assert_eq!(refused(Reason::Packet(verify::Reason::Binding)), (0, 0));
}

#[test]
fn copies_within_one_burst_are_copies() {
    let sent = packet(current_epoch(NOW), None, 1, NOW);
    let mut copies = vec![sent; BURST];
    let mut frames: Vec<Frame<'_>> =
        copies.iter_mut().map(|octets| Frame { octets, ingress: Ingress::Internal }).collect();
    let mut router = router(ReplayPolicy::Drop);
    let actions = router.process(&mut frames, now(NOW));
    assert_eq!(actions[0], Action::Route);
    assert_eq!(actions[1..], [Action::Drop(Reason::Replayed); BURST - 1]);
    assert_eq!((router.counters().forwarded, router.counters().of(Reason::Replayed)), (1, 63));
}

#[test]
fn a_router_that_keeps_nothing_of_others_counts_every_packet_that_it_forwards() {
    for (size, epochs) in [(1, 1), (16, 1), (33, 1), (BURST, 1), (16, 2), (33, 2), (BURST, 2)] {
        let config = Config {
            waypoints: vec![waypoint()],
            repeated: ReplayPolicy::Pass,
            replay: ReplayFilter::new(&Key128::new([3; 16]), 1, UnixTime(0)),
            need_revocations: false,
            answers_per_second: 100,
            accounts: 0,
            account_seed: 1,
            delegations: 16,
        };
        let mut router = Router::new(config, CpuKernel::best());
        let mut sent: Vec<Vec<u8>> =
            (0..size as u32).map(|counter| packet(current_epoch(NOW) - counter % epochs, None, counter, NOW)).collect();
        let alone: Vec<_> = sent.iter().map(|octets| process(&mut router, &mut octets.clone(), now(NOW)).1).collect();
        let mut frames: Vec<Frame<'_>> =
            sent.iter_mut().map(|octets| Frame { octets, ingress: Ingress::Internal }).collect();
        let actions = router.process(&mut frames, now(NOW));
        assert_eq!(actions[..size], vec![Action::Route; size]);
        assert_eq!(router.counters().forwarded, 2 * size as u64);
        assert!(frames.iter().zip(&alone).all(|(frame, alone)| *frame.octets == **alone), "{size}");
        // One that is forged leaves the others as they were, in its own group of sixteen and in others.
        for forged in [0, size / 2, size - 1] {
            let mut sent: Vec<Vec<u8>> = (0..size as u32)
                .map(|counter| packet(current_epoch(NOW) - counter % epochs, None, counter, NOW))
                .collect();
            *sent[forged].last_mut().expect("octets") ^= 1;
            let mut frames: Vec<Frame<'_>> =
                sent.iter_mut().map(|octets| Frame { octets, ingress: Ingress::Internal }).collect();
            let actions = router.process(&mut frames, now(NOW));
            for (place, (frame, alone)) in frames.iter().zip(&alone).enumerate() {
                let is_routed = actions[place] == Action::Route;
                assert_eq!((is_routed, is_routed && *frame.octets == **alone), (place != forged, place != forged));
            }
        }
    }
}

/// PLA-12: a flood of invalid packets from a source that did not send them.
#[test]
fn at_most_a_hundred_errors_a_second_leave_and_none_is_longer_than_its_cause() {
    let mut router = router(ReplayPolicy::Drop);
    let mut invalid = packet(current_epoch(NOW), None, 1, NOW);
    let last = invalid.len() - 1;
    invalid[last] ^= 1;
    let mut answers = 0;
    for tick in 0..30_000u64 {
        let at = Now { instant: Instant(tick * 100_000), unix: now(NOW).unix };
        let mut octets = invalid.clone();
        let (action, answer) = process(&mut router, &mut octets, at);
        if let Action::Answer(reason) = action {
            answers += 1;
            assert_eq!(reason, Reason::Packet(verify::Reason::Binding));
            assert!(answer.len() <= invalid.len());
            assert_eq!((answer[9], &answer[16..20]), (1, &SOURCE[..]));
        }
    }
    // Three seconds, and what the bucket held at first.
    assert!((300..=400).contains(&answers), "{answers}");
    assert_eq!(router.counters().of(Reason::Packet(verify::Reason::Binding)), 30_000);
    assert_eq!(router.counters().answered + router.counters().unanswered, 30_000);
}

#[test]
fn a_principal_is_held_to_its_rate_and_others_are_not() {
    let mut router = router(ReplayPolicy::Drop);
    let payer = Payer { principal: principal(7), delegation: Some(id(5)) };
    let length = packet(current_epoch(NOW), Some((5, None)), 0, NOW).len() as u64;
    router.accounts().set_rate(payer, 10 * length, 10 * length, now(NOW).instant);
    let mut passed = [0; 2];
    for second in 0..3u64 {
        for n in 0..50u32 {
            let secs = NOW + second;
            for (index, held) in [Some((5, None)), None].into_iter().enumerate() {
                let sent = packet(current_epoch(secs), held, n, secs);
                passed[index] += u64::from(action(&mut router, sent, secs) == Action::Route);
            }
        }
    }
    assert_eq!(passed, [30, 150]);
    assert_eq!(router.counters().of(Reason::Rate), 120);
}

/// Two routers with one waypoint address; then it moves away from one.
#[test]
fn one_waypoint_may_stand_for_several_routers_and_move() {
    let (mut one, mut two) = (router(ReplayPolicy::Drop), router(ReplayPolicy::Drop));
    let epoch = current_epoch(NOW);
    for counter in 0..10 {
        let sent = packet(epoch, None, counter, NOW);
        let here = if counter % 2 == 0 { &mut one } else { &mut two };
        assert_eq!(action(here, sent, NOW), Action::Route);
    }
    one.set_waypoints(Vec::new());
    let not_ours = Action::Drop(Reason::Packet(verify::Reason::NotForUs));
    assert_eq!(action(&mut one, packet(epoch, None, 10, NOW), NOW), not_ours);
    assert_eq!(action(&mut two, packet(epoch, None, 10, NOW), NOW), Action::Route);
    one.set_waypoints(vec![waypoint()]);
    assert_eq!(action(&mut one, packet(epoch, None, 10, NOW), NOW), Action::Route);
}

/// Keys change at the beginning of an epoch; stampers that are one epoch early or late lose nothing.
#[test]
fn a_key_rotation_loses_no_packet() {
    let epoch = current_epoch(NOW);
    let change = epoch::epoch_begin(interval(), epoch + 1);
    let mut rotated = keys();
    rotated.rotate(WaypointKey::new(&Key128::new([8; 16])), change).expect("newer");
    let mut router = router(ReplayPolicy::Drop);
    router.set_waypoints(vec![Waypoint::new(HERE, rotated.clone(), Policy::default())]);
    let stamp = |epoch: u32, counter: u32, secs: u64| {
        let mut datagram = packet(epoch, None, counter, secs);
        let decoded = Packet::decode(&datagram).expect("sound");
        let capability = decoded.capability(0);
        // Again, with the key of this epoch.
        let hops = [Hop { capability, key: rotated.stamp_key(&capability).expect("held") }];
        let nonce = Nonce::new(now(secs).unix, counter);
        let route = Route { hops: &hops, nonce, sealed: false, reply_option: &[], carriage: Carriage::Ip };
        let mut inner = vec![0x45, 0, 0, 20, 0, 0, 0, 0, 64, 6, 0, 0];
        inner.extend(SOURCE);
        inner.extend([203, 0, 113, 9]);
        encapsulate(&inner, &route, &mut datagram).expect("sound");
        datagram
    };
    for (counter, secs) in (0..).zip((change - 4_096..change + 4_096).step_by(16)) {
        let off = [0, 1, -1][counter as usize % 3];
        let of = current_epoch(secs).wrapping_add_signed(off);
        assert_eq!(action(&mut router, stamp(of, counter, secs), secs), Action::Route, "{of} at {secs}");
    }
}

/// After a crash the journal's totals are at most a second too low and never too high.
#[test]
fn a_journal_written_every_second_loses_at_most_a_second() {
    let mut before = router(ReplayPolicy::Drop);
    let epoch = current_epoch(NOW);
    let (mut journal, mut sent) = (Vec::new(), Vec::new());
    for tick in 0..50u32 {
        let secs = NOW + u64::from(tick) / 10;
        assert_eq!(action(&mut before, packet(epoch, None, tick, secs), secs), Action::Route);
        sent.push(secs);
        if tick % 10 == 9 {
            journal.extend(before.accounts().journal());
        }
    }
    let last = NOW + 5;
    assert_eq!(action(&mut before, packet(epoch, None, 99, last), last), Action::Route);
    let mut after = router(ReplayPolicy::Drop);
    after.accounts().restore(journal.clone());
    let (charge, _) = journal[0];
    let lost = before.accounts().total(&charge).packets - after.accounts().total(&charge).packets;
    assert_eq!(lost, 1);
    assert!(Duration::from_secs(last - sent[49]) <= Duration::from_secs(1));
}
