//! Version 0 works as published; the attacks that break it fail against version 1.
//!
//! PLA-05: the five published breaks: they succeed against the paper's protocol, fail against ours.
//! PLA-05, in use: packets of the paper's version (UMAC or CMAC, exclusive-or delegation) at a waypoint of ours, under
//! each policy: refused as malformed.

use std::net::{IpAddr, Ipv4Addr};

use wayleave_core::{Prefix, UnixTime};
use wayleave_crypto::secret::Key128;
use wayleave_packet::platypus::header::{
    Capability, Carriage, Delegation, DelegationId, Interval, Marks, Packet, Principal, Width,
};
use wayleave_packet::platypus::mint::{
    self, Hop, Nonce, Route, StampKey, TemporalSecret, WaypointKey, WaypointKeys, epoch,
};
use wayleave_packet::platypus::verify::{self, Arrival, IcmpError, Policy, Reason, Verdict, Waypoint};
use wayleave_papers::platypus::{
    self, Algorithm, DelegationKind, PaperCapability, PaperDelegation, PaperPacket, PaperPrefix, PaperRouter, XorKeys,
};

/// 2026-11-21 06:00 UTC.
pub(crate) const NOW: u64 = 1_795_240_800;
/// Key IDs change every 4,096 seconds.
const N: u8 = 12;
pub(crate) const WAYPOINT: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
const SOURCE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 77);
const DESTINATION: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 9);

pub(crate) fn at(secs: u64) -> UnixTime {
    UnixTime(secs * 1_000_000)
}

/// The waypoint's key, the same for both versions.
pub(crate) fn key() -> Key128 {
    let mut key = *b"key of waypoint.";
    key[12..].copy_from_slice(&WAYPOINT.octets());
    Key128::new(key)
}

fn keys() -> WaypointKeys {
    WaypointKeys::new(WaypointKey::new(&key()))
}

fn waypoint() -> Waypoint {
    Waypoint::new(IpAddr::V4(WAYPOINT), keys(), Policy { narrow: true, ..Policy::default() })
}

pub(crate) fn principal(number: u32) -> Principal {
    Principal::new(number).expect("24 bits")
}

pub(crate) fn delegation_id(number: u32) -> DelegationId {
    DelegationId::new(number).expect("24 bits")
}

/// A standard capability of the current epoch, without a delegation.
fn capability() -> Capability {
    let interval = Interval::new(N).expect("in range");
    Capability {
        waypoint: IpAddr::V4(WAYPOINT),
        principal: principal(7_000),
        interval,
        epoch: epoch::epoch_at(interval, at(NOW)),
        marks: Marks::default(),
        delegation: None,
        width: Width::Full,
    }
}

fn route(hops: &[Hop]) -> Route<'_> {
    Route { hops, nonce: Nonce::new(at(NOW), 1), sealed: false, reply_option: &[], carriage: Carriage::Ip }
}

/// An IPv4 packet of protocol 6.
pub(crate) fn inner(payload: &[u8]) -> Vec<u8> {
    inner_to(DESTINATION, payload)
}

fn inner_to(destination: Ipv4Addr, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 0, 0x12, 0x34, 0x40, 0, 0x33, 6, 0, 0];
    let length = u16::try_from(20 + payload.len()).expect("fits an IPv4 packet");
    packet[2..4].copy_from_slice(&length.to_be_bytes());
    packet.extend(SOURCE.octets());
    packet.extend(destination.octets());
    let mut sum: u32 = packet.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    packet[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    packet.extend_from_slice(payload);
    packet
}

fn stamp(inner: &[u8], route: &Route<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    mint::encapsulate(inner, route, &mut out).expect("a sound route");
    out
}

fn verdict(here: &Waypoint, datagram: &[u8], now: u64) -> Verdict {
    here.verify(&Packet::decode(datagram).expect("a sound packet"), Arrival::Ip, at(now))
}

fn paper_router(algorithm: Algorithm) -> PaperRouter {
    PaperRouter::new(WAYPOINT, key(), N, algorithm, 16)
}

fn paper_secret(algorithm: Algorithm, time: u32) -> Key128 {
    platypus::secret(algorithm, &key(), WAYPOINT, principal(7), time)
}

fn paper_capability(key_id: u8, delegation: Option<PaperDelegation>) -> PaperCapability {
    PaperCapability { waypoint: WAYPOINT, principal: principal(7), key_id, delegation }
}

/// Whether a packet to `destination` with this capability and stamping key passes the published router.
fn paper_passes(router: &mut PaperRouter, capability: PaperCapability, key: &Key128, to: [u8; 4], now: u64) -> bool {
    paper_passes_by(router, Algorithm::Cmac, capability, key, to, now)
}

fn paper_passes_by(
    router: &mut PaperRouter,
    algorithm: Algorithm,
    capability: PaperCapability,
    key: &Key128,
    to: [u8; 4],
    now: u64,
) -> bool {
    let inner = inner_to(Ipv4Addr::from(to), b"twenty octets of TCP");
    let datagram = platypus::encapsulate(&inner, &[(capability, key.clone())], algorithm).expect("sound");
    let packet = PaperPacket::decode(&datagram).expect("sound");
    router.process(&packet, at(now)).is_ok()
}

fn paper_delegation(address: [u8; 4], length: u8, id: u32, kind: DelegationKind) -> PaperDelegation {
    PaperDelegation { prefix: PaperPrefix { address: Ipv4Addr::from(address), length }, id: delegation_id(id), kind }
}

/// No policy makes a waypoint accept version 0, with its UMAC and its delegation by exclusive or.
#[test]
fn a_waypoint_takes_no_packet_of_the_papers_protocol_under_any_policy() {
    for algorithm in [Algorithm::Umac, Algorithm::Cmac] {
        let key_id = platypus::key_id(N, NOW);
        let key = paper_secret(algorithm, platypus::get_time(N, key_id, NOW));
        let exclusive_or = paper_delegation([203, 0, 113, 0], 24, 7, DelegationKind::Xor);
        for delegation in [None, Some(exclusive_or)] {
            let inner = inner(b"twenty octets of TCP");
            let capability = paper_capability(key_id, delegation);
            let datagram = platypus::encapsulate(&inner, &[(capability, key.clone())], algorithm).expect("sound");
            assert!(PaperPacket::decode(&datagram).is_ok());
            assert!(Packet::decode(&datagram).is_err());
            for (narrow, check_source) in [(false, false), (false, true), (true, false), (true, true)] {
                let address = IpAddr::V4(WAYPOINT);
                let policy = Policy { narrow, check_source, ..Policy::default() };
                let here = [Waypoint::new(address, keys(), policy)];
                assert_eq!(verify::verify(&here, &datagram, Arrival::Ip, at(NOW)), Reason::Malformed.into());
            }
        }
    }
}

/// The minimum packet of the paper has 68 octets, and the original source lies in the header's first 64 bits.
#[test]
fn the_published_protocol_works_as_published() {
    for algorithm in [Algorithm::Umac, Algorithm::Cmac] {
        let mut router = paper_router(algorithm);
        let time = platypus::get_time(N, platypus::key_id(N, NOW), NOW);
        let capability = paper_capability(platypus::key_id(N, NOW), None);
        let key = paper_secret(algorithm, time);
        let inner = inner(b"twenty octets of TCP");
        let datagram = platypus::encapsulate(&inner, &[(capability, key.clone())], algorithm).expect("sound");
        assert_eq!(datagram.len(), 68);
        let packet = PaperPacket::decode(&datagram).expect("sound");
        let datagram = router.process(&packet, at(NOW)).expect("it passes");
        let packet = PaperPacket::decode(&datagram).expect("sound");
        assert_eq!(packet.original_source(), SOURCE);
        assert_eq!(packet.outer_source(), WAYPOINT);
        assert_eq!(packet.outer_destination(), DESTINATION);
        assert_eq!(packet.current(), None);
        for delegation in [
            paper_delegation([203, 0, 113, 0], 24, 5, DelegationKind::Chaining),
            paper_delegation([203, 0, 113, 0], 24, 5, DelegationKind::Xor),
        ] {
            let capability = paper_capability(capability.key_id, Some(delegation));
            let key = platypus::stamp_key(&key, &capability);
            let to = [203, 0, 113, 9];
            let mut both = paper_router(algorithm).with_xor();
            assert!(paper_passes_by(&mut both, algorithm, capability, &key, to, NOW));
            let chaining = delegation.kind == DelegationKind::Chaining;
            assert_eq!(paper_passes_by(&mut router, algorithm, capability, &key, to, NOW), chaining);
            assert!(!paper_passes_by(&mut both, algorithm, capability, &key, [203, 0, 112, 9], NOW));
        }
    }
}

/// A standard waypoint at the same address with the same key.
fn standard() -> (Waypoint, Capability, TemporalSecret) {
    let capability = capability();
    (waypoint(), capability, secret_of(&capability))
}

fn secret_of(capability: &Capability) -> TemporalSecret {
    let key = WaypointKey::new(&key());
    key.secret(capability.waypoint, capability.principal, capability.interval, capability.epoch)
}

fn standard_passes(here: &Waypoint, hop: Hop, to: [u8; 4], now: u64) -> bool {
    let route = mint::Route { nonce: mint::Nonce::new(at(now), 1), ..route(std::slice::from_ref(&hop)) };
    let inner = inner_to(Ipv4Addr::from(to), b"payload");
    matches!(verdict(here, &stamp(&inner, &route), now), Verdict::Forward(_))
}

/// P1: in an epoch whose number ends in 0, the previous key ID stands for a future epoch and is refused. With a corrected
/// comparison, a secret of fifteen epochs ago passes in an epoch that ends in 15.
#[test]
fn break_1_a_key_id_that_wraps_stands_for_the_wrong_epoch() {
    let wrap: u64 = (NOW >> N & !0xf) + 16;
    // Right after the wrap, packets stamped with the previous epoch's secret are refused.
    let now = wrap << N;
    let previous = paper_secret(Algorithm::Cmac, wrap as u32 - 1);
    let capability = paper_capability(15, None);
    assert!(!paper_passes(&mut paper_router(Algorithm::Cmac), capability, &previous, [203, 0, 113, 9], now));
    let mut mended = paper_router(Algorithm::Cmac).with_modular_id_check();
    assert!(!paper_passes(&mut mended, capability, &previous, [203, 0, 113, 9], now));
    // In the epoch before the next wrap, the secret of fifteen epochs ago passes as that of the next epoch.
    let last = wrap + 15;
    let expired = paper_secret(Algorithm::Cmac, wrap as u32);
    assert!(paper_passes(&mut mended, paper_capability(0, None), &expired, [203, 0, 113, 9], last << N));

    // Version 1: the previous epoch passes around every wrap; fifteen or sixteen epochs later it never passes.
    for (stamped, now, passes) in [
        (wrap - 1, wrap, true),
        (wrap + 16, last, true),
        (wrap, last, false),
        (wrap, wrap + 16, false),
        (wrap - 1, last, false),
    ] {
        let (here, mut capability, _) = standard();
        capability.epoch = stamped as u32;
        let key = secret_of(&capability).stamp_key();
        assert_eq!(standard_passes(&here, Hop { capability, key }, [203, 0, 113, 9], now << N), passes);
    }
}

/// P6: one holder changes the delegation ID, which defeats tracking and revocation by ID.
#[test]
fn break_2_a_holder_of_an_xor_delegation_changes_its_number() {
    let (id, forged) = (delegation_id(5), delegation_id(6));
    let time = platypus::get_time(N, platypus::key_id(N, NOW), NOW);
    let s = paper_secret(Algorithm::Cmac, time);
    let delegation = paper_delegation([203, 0, 113, 0], 24, 5, DelegationKind::Xor);
    let held = XorKeys::begin(&s, id).step(0, &delegation.prefix);
    let other = held.d.xor(&platypus::h(&id.octets())).xor(&platypus::h(&forged.octets()));
    let capability = paper_capability(platypus::key_id(N, NOW), Some(PaperDelegation { id: forged, ..delegation }));
    assert!(paper_passes(&mut paper_router(Algorithm::Cmac).with_xor(), capability, &other, [203, 0, 113, 9], NOW));

    let (here, mut capability, secret) = standard();
    let prefix: Prefix = "203.0.113.0/24".parse().expect("a prefix");
    let held = secret.delegate(id, prefix).expect("of the family");
    let difference = platypus::h(&id.octets()).xor(&platypus::h(&forged.octets()));
    for key in [held.stamp_key(), StampKey::new(Key128::new(*held.stamp_key().expose()).xor(&difference))] {
        capability.delegation = Some(Delegation { prefix, id: forged, sub: None });
        assert!(!standard_passes(&here, Hop { capability, key }, [203, 0, 113, 9], NOW));
    }
}

/// P6: the holder of any /8 widens another holder's /24 to that holder's whole /8.
#[test]
fn break_3_two_holders_of_xor_delegations_widen_a_prefix() {
    let id = delegation_id(5);
    let time = platypus::get_time(N, platypus::key_id(N, NOW), NOW);
    let s = paper_secret(Algorithm::Cmac, time);
    let mine = PaperPrefix { address: Ipv4Addr::new(10, 0, 0, 0), length: 8 };
    let colluder = XorKeys::begin(&s, delegation_id(99)).step(0, &mine);
    let theirs = PaperPrefix { address: Ipv4Addr::new(203, 0, 113, 0), length: 24 };
    let stranger = XorKeys::begin(&s, id).step(0, &theirs);
    // s_8 is the same for all holders: it gives the terms of bits 9 to 24, which the colluder removes.
    let bits = XorKeys { d: Key128::new([0; 16]), s: colluder.s }.step(8, &theirs).d;
    let lifted = stranger.d.xor(&bits);
    let delegation = paper_delegation([203, 0, 0, 0], 8, 5, DelegationKind::Xor);
    let capability = paper_capability(platypus::key_id(N, NOW), Some(delegation));
    assert!(paper_passes(&mut paper_router(Algorithm::Cmac).with_xor(), capability, &lifted, [203, 77, 1, 2], NOW));

    let (here, mut capability, secret) = standard();
    let held = |text: &str| secret.delegate(id, text.parse().expect("a prefix")).expect("of the family");
    let (colluder, stranger) = (held("10.0.0.0/8"), held("203.0.113.0/24"));
    let wide: Prefix = "203.0.0.0/8".parse().expect("a prefix");
    // The colluder can compute steps for the other holder's bits from its own secret.
    let along = colluder.narrow("10.0.113.0/24".parse().expect("a prefix")).expect("within");
    let xor = |a: &[u8; 16], b: &[u8; 16]| Key128::new(std::array::from_fn(|i| a[i] ^ b[i]));
    for key in [
        colluder.stamp_key(),
        stranger.stamp_key(),
        StampKey::new(xor(stranger.stamp_key().expose(), along.stamp_key().expose())),
        StampKey::new(xor(stranger.expose(), along.expose())),
        StampKey::new(xor(stranger.expose(), colluder.expose())),
    ] {
        capability.delegation = Some(Delegation { prefix: wide, id, sub: None });
        assert!(!standard_passes(&here, Hop { capability, key }, [203, 77, 1, 2], NOW));
    }
}

/// P6: the keys of three quarters of a prefix give that of the fourth.
#[test]
fn break_4_three_quarters_of_an_xor_delegation_give_the_fourth() {
    let id = delegation_id(5);
    let time = platypus::get_time(N, platypus::key_id(N, NOW), NOW);
    let s = paper_secret(Algorithm::Cmac, time);
    let quarter = |third: u8| PaperPrefix { address: Ipv4Addr::new(203, 0, third, 0), length: 18 };
    let d = |third| XorKeys::begin(&s, id).step(0, &quarter(third)).d;
    let fourth = d(0).xor(&d(64)).xor(&d(128));
    let delegation = paper_delegation([203, 0, 192, 0], 18, 5, DelegationKind::Xor);
    let capability = paper_capability(platypus::key_id(N, NOW), Some(delegation));
    assert!(paper_passes(&mut paper_router(Algorithm::Cmac).with_xor(), capability, &fourth, [203, 0, 200, 1], NOW));

    let (here, mut capability, secret) = standard();
    let quarter = |third: u8| Prefix::truncated(IpAddr::from([203, 0, third, 0]), 18).expect("a length");
    let held = |third| secret.delegate(id, quarter(third)).expect("of the family");
    let keys: Vec<[u8; 16]> = [0, 64, 128].map(|third| *held(third).stamp_key().expose()).to_vec();
    let secrets: Vec<[u8; 16]> = [0, 64, 128].map(|third| *held(third).expose()).to_vec();
    for parts in [keys, secrets] {
        let key = StampKey::new(Key128::new(std::array::from_fn(|i| parts[0][i] ^ parts[1][i] ^ parts[2][i])));
        capability.delegation = Some(Delegation { prefix: quarter(192), id, sub: None });
        assert!(!standard_passes(&here, Hop { capability, key }, [203, 0, 200, 1], NOW));
    }
}

/// P7: the holder of the empty prefix under chaining computes `s` and can act as the principal.
#[test]
fn break_5_chaining_to_the_empty_prefix_gives_the_secret_away() {
    let id = delegation_id(5);
    let time = platypus::get_time(N, platypus::key_id(N, NOW), NOW);
    let s = paper_secret(Algorithm::Cmac, time);
    let handed_over = platypus::chain_begin(&s, id);
    let stolen = handed_over.xor(&platypus::h(&id.octets()));
    let capability = paper_capability(platypus::key_id(N, NOW), None);
    assert!(paper_passes(&mut paper_router(Algorithm::Cmac), capability, &stolen, [203, 0, 113, 9], NOW));

    let (here, mut capability, secret) = standard();
    let held = secret.delegate(id, "0.0.0.0/0".parse().expect("a prefix")).expect("of the family");
    let undone = Key128::new(*held.expose()).xor(&platypus::h(&id.octets()));
    for key in [held.stamp_key(), StampKey::new(Key128::new(*held.expose())), StampKey::new(undone)] {
        assert!(!standard_passes(&here, Hop { capability, key }, [203, 0, 113, 9], NOW));
    }
    capability.delegation = Some(held.delegation());
    assert!(standard_passes(&here, Hop { capability, key: held.stamp_key() }, [203, 0, 113, 9], NOW));
}

/// P3: the published binding does not cover the encapsulated protocol; that of version 1 does.
#[test]
fn the_encapsulated_protocol_is_bound_since_version_1() {
    let time = platypus::get_time(N, platypus::key_id(N, NOW), NOW);
    let key = paper_secret(Algorithm::Cmac, time);
    let capability = paper_capability(platypus::key_id(N, NOW), None);
    let inner = inner(b"twenty octets of TCP");
    let mut datagram = platypus::encapsulate(&inner, &[(capability, key)], Algorithm::Cmac).expect("sound");
    datagram[23] = 17;
    let packet = PaperPacket::decode(&datagram).expect("sound");
    assert!(paper_router(Algorithm::Cmac).process(&packet, at(NOW)).is_ok());

    let (here, capability, secret) = standard();
    let hops = [Hop { capability, key: secret.stamp_key() }];
    let mut datagram = stamp(&inner, &route(&hops));
    datagram[23] = 17;
    let refused = Verdict::Answer(IcmpError::Prohibited, Reason::Binding);
    assert_eq!(verdict(&here, &datagram, NOW), refused);
}
