//! PLA-05, PLA-10 and PLA-11: what breaks the published protocol does not break ours; what no packet may hold.

use std::net::{IpAddr, Ipv4Addr};

use wayleave_core::{Afi, Prefix};
use wayleave_crypto::secret::Key128;
use wayleave_packet::platypus::header::{Capability, Delegation, Malformed, Packet, Version};
use wayleave_packet::platypus::mint::{self, Hop, StampKey, TemporalSecret, WaypointKey};
use wayleave_packet::platypus::paper::{
    self, Algorithm, Kind, PaperCapability, PaperDelegation, PaperPrefix, PaperRouter, XorDelegated,
};
use wayleave_packet::platypus::verify::{IcmpError, Policy, Reason, Verdict, Waypoint};

use super::world::{self, NOW};

/// Key IDs change every 4,096 seconds.
const N: u8 = 12;
const WAYPOINT: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);

fn paper_key() -> Key128 {
    Key128::new(world::key_octets(IpAddr::V4(WAYPOINT)))
}

fn paper_router(algorithm: Algorithm) -> PaperRouter {
    PaperRouter::new(WAYPOINT, paper_key(), N, algorithm, 16)
}

fn paper_secret(algorithm: Algorithm, time: u32) -> Key128 {
    paper::secret(algorithm, &paper_key(), WAYPOINT, world::principal(7), time)
}

fn paper_capability(key_id: u8, delegation: Option<PaperDelegation>) -> PaperCapability {
    PaperCapability { waypoint: WAYPOINT, principal: world::principal(7), key_id, delegation }
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
    let inner = world::inner_to(world::source_address(Afi::Ipv4), IpAddr::from(to), b"twenty octets of TCP");
    let datagram = paper::encapsulate(&inner, &[(capability, key.clone())], algorithm).expect("sound");
    let packet = Packet::decode(&datagram, Version::Paper).expect("sound");
    matches!(router.process(&packet, world::at(now)), Verdict::Forward(_))
}

fn paper_delegation(address: [u8; 4], length: u8, id: u32, kind: Kind) -> PaperDelegation {
    PaperDelegation {
        prefix: PaperPrefix { address: Ipv4Addr::from(address), length },
        id: world::delegation_id(id),
        kind,
    }
}

/// Nothing that a router can be told makes it take the paper's protocol, with its UMAC and exclusive-or delegation.
#[test]
fn a_waypoint_takes_no_packet_of_the_papers_protocol_under_any_policy() {
    for algorithm in [Algorithm::Umac, Algorithm::Cmac] {
        let key_id = paper::key_id(N, NOW);
        let key = paper_secret(algorithm, paper::get_time(N, key_id, NOW));
        let exclusive_or = paper_delegation([203, 0, 113, 0], 24, 7, Kind::Xor);
        for delegation in [None, Some(exclusive_or)] {
            let inner = world::inner(Afi::Ipv4, b"twenty octets of TCP");
            let capability = paper_capability(key_id, delegation);
            let datagram = paper::encapsulate(&inner, &[(capability, key.clone())], algorithm).expect("sound");
            assert!(Packet::decode(&datagram, Version::Paper).is_ok());
            assert!(Packet::decode(&datagram, Version::Standard).is_err());
            for (narrow, check_source) in [(false, false), (false, true), (true, false), (true, true)] {
                let address = IpAddr::V4(WAYPOINT);
                let policy = Policy { narrow, check_source, ..Policy::default() };
                let here = Waypoint::new(address, world::keys_of(address), policy);
                assert_eq!(world::process(&here, &datagram, NOW), Err(Reason::Malformed.into()));
            }
        }
    }
}

/// The minimum packet of the paper has 68 octets, and the original source lies in the header's first 64 bits.
#[test]
fn the_published_protocol_works_as_published() {
    for algorithm in [Algorithm::Umac, Algorithm::Cmac] {
        let mut router = paper_router(algorithm);
        let time = paper::get_time(N, paper::key_id(N, NOW), NOW);
        let capability = paper_capability(paper::key_id(N, NOW), None);
        let key = paper_secret(algorithm, time);
        let inner = world::inner(Afi::Ipv4, b"twenty octets of TCP");
        let mut datagram = paper::encapsulate(&inner, &[(capability, key.clone())], algorithm).expect("sound");
        assert_eq!(datagram.len(), 68);
        let packet = Packet::decode(&datagram, Version::Paper).expect("sound");
        let Verdict::Forward(forward) = router.process(&packet, world::at(NOW)) else { panic!("it passes") };
        forward.apply(&mut datagram);
        let packet = Packet::decode(&datagram, Version::Paper).expect("sound");
        assert_eq!(packet.original_source(), world::source_address(Afi::Ipv4));
        assert_eq!(packet.outer().source, IpAddr::V4(WAYPOINT));
        assert_eq!(packet.outer().destination, world::destination_address(Afi::Ipv4));
        assert_eq!(packet.current(), None);
        for delegation in [
            paper_delegation([203, 0, 113, 0], 24, 5, Kind::Chaining),
            paper_delegation([203, 0, 113, 0], 24, 5, Kind::Xor),
        ] {
            let capability = paper_capability(capability.key_id, Some(delegation));
            let key = paper::stamp_key(&key, &capability);
            let to = [203, 0, 113, 9];
            let mut both = paper_router(algorithm).with_xor();
            assert!(paper_passes_by(&mut both, algorithm, capability, &key, to, NOW));
            let chaining = delegation.kind == Kind::Chaining;
            assert_eq!(paper_passes_by(&mut router, algorithm, capability, &key, to, NOW), chaining);
            assert!(!paper_passes_by(&mut both, algorithm, capability, &key, [203, 0, 112, 9], NOW));
        }
    }
}

/// A standard waypoint at the same address with the same key.
fn standard() -> (Waypoint, Capability, TemporalSecret) {
    let capability = world::capability(Afi::Ipv4, 1);
    (world::waypoint(capability.waypoint), capability, secret_of(&capability))
}

fn secret_of(capability: &Capability) -> TemporalSecret {
    let key = WaypointKey::new(&Key128::new(world::key_octets(capability.waypoint)));
    key.secret(capability.waypoint, capability.principal, capability.interval, capability.epoch)
}

fn standard_passes(here: &Waypoint, hop: Hop, to: [u8; 4], now: u64) -> bool {
    let route = mint::Route { nonce: mint::Nonce::new(world::at(now), 1), ..world::route(std::slice::from_ref(&hop)) };
    let inner = world::inner_to(world::source_address(Afi::Ipv4), IpAddr::from(to), b"payload");
    world::process(here, &world::stamp(&inner, &route), now).is_ok()
}

/// P1: at an epoch whose number ends in 0, the previous key ID stands for an epoch to come, and is refused; with the
/// comparison mended, a secret of fifteen epochs ago passes at an epoch that ends in 15.
#[test]
fn break_1_a_key_id_that_wraps_stands_for_the_wrong_epoch() {
    let wrap: u64 = (NOW >> N & !0xf) + 16;
    // Right after the wrap, who still stamps with the previous epoch's secret is not served.
    let now = wrap << N;
    let previous = paper_secret(Algorithm::Cmac, wrap as u32 - 1);
    let capability = paper_capability(15, None);
    assert!(!paper_passes(&mut paper_router(Algorithm::Cmac), capability, &previous, [203, 0, 113, 9], now));
    let mut mended = paper_router(Algorithm::Cmac).with_modular_id_check();
    assert!(!paper_passes(&mut mended, capability, &previous, [203, 0, 113, 9], now));
    // At the epoch before the next wrap, the secret of fifteen epochs ago passes as the next one.
    let last = wrap + 15;
    let expired = paper_secret(Algorithm::Cmac, wrap as u32);
    assert!(paper_passes(&mut mended, paper_capability(0, None), &expired, [203, 0, 113, 9], last << N));

    // Ours: the previous epoch passes beside every wrap, and what is fifteen or sixteen epochs old passes nowhere.
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

/// P6: one holder changes the delegation ID, so that tracking and revocation by ID are gone.
#[test]
fn break_2_a_holder_of_an_xor_delegation_changes_its_number() {
    let (id, forged) = (world::delegation_id(5), world::delegation_id(6));
    let time = paper::get_time(N, paper::key_id(N, NOW), NOW);
    let s = paper_secret(Algorithm::Cmac, time);
    let delegation = paper_delegation([203, 0, 113, 0], 24, 5, Kind::Xor);
    let held = XorDelegated::begin(&s, id).step(0, &delegation.prefix);
    let other = held.d.xor(&paper::h(&id.octets())).xor(&paper::h(&forged.octets()));
    let capability = paper_capability(paper::key_id(N, NOW), Some(PaperDelegation { id: forged, ..delegation }));
    assert!(paper_passes(&mut paper_router(Algorithm::Cmac).with_xor(), capability, &other, [203, 0, 113, 9], NOW));

    let (here, mut capability, secret) = standard();
    let prefix: Prefix = "203.0.113.0/24".parse().expect("a prefix");
    let held = secret.delegate(id, prefix).expect("of the family");
    let difference = paper::h(&id.octets()).xor(&paper::h(&forged.octets()));
    for key in [held.stamp_key(), StampKey::new(Key128::new(*held.stamp_key().expose()).xor(&difference))] {
        capability.delegation = Some(Delegation { prefix, id: forged, sub: None });
        assert!(!standard_passes(&here, Hop { capability, key }, [203, 0, 113, 9], NOW));
    }
}

/// P6: the holder of any /8 lifts a stranger's /24 to the stranger's whole /8.
#[test]
fn break_3_two_holders_of_xor_delegations_widen_a_prefix() {
    let id = world::delegation_id(5);
    let time = paper::get_time(N, paper::key_id(N, NOW), NOW);
    let s = paper_secret(Algorithm::Cmac, time);
    let mine = PaperPrefix { address: Ipv4Addr::new(10, 0, 0, 0), length: 8 };
    let colluder = XorDelegated::begin(&s, world::delegation_id(99)).step(0, &mine);
    let theirs = PaperPrefix { address: Ipv4Addr::new(203, 0, 113, 0), length: 24 };
    let stranger = XorDelegated::begin(&s, id).step(0, &theirs);
    // The colluder's s_8 is everybody's: it gives the stranger's bits 9 to 24, which come off again.
    let bits = XorDelegated { d: Key128::new([0; 16]), s: colluder.s }.step(8, &theirs).d;
    let lifted = stranger.d.xor(&bits);
    let delegation = paper_delegation([203, 0, 0, 0], 8, 5, Kind::Xor);
    let capability = paper_capability(paper::key_id(N, NOW), Some(delegation));
    assert!(paper_passes(&mut paper_router(Algorithm::Cmac).with_xor(), capability, &lifted, [203, 77, 1, 2], NOW));

    let (here, mut capability, secret) = standard();
    let held = |text: &str| secret.delegate(id, text.parse().expect("a prefix")).expect("of the family");
    let (colluder, stranger) = (held("10.0.0.0/8"), held("203.0.113.0/24"));
    let wide: Prefix = "203.0.0.0/8".parse().expect("a prefix");
    // What the colluder can compute about the stranger's bits: steps from his own secret.
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

/// P6: three quarters of a prefix give the fourth.
#[test]
fn break_4_three_quarters_of_an_xor_delegation_give_the_fourth() {
    let id = world::delegation_id(5);
    let time = paper::get_time(N, paper::key_id(N, NOW), NOW);
    let s = paper_secret(Algorithm::Cmac, time);
    let quarter = |third: u8| PaperPrefix { address: Ipv4Addr::new(203, 0, third, 0), length: 18 };
    let d = |third| XorDelegated::begin(&s, id).step(0, &quarter(third)).d;
    let fourth = d(0).xor(&d(64)).xor(&d(128));
    let delegation = paper_delegation([203, 0, 192, 0], 18, 5, Kind::Xor);
    let capability = paper_capability(paper::key_id(N, NOW), Some(delegation));
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

/// P7: who was delegated the empty prefix by chaining computes `s`, and is the principal.
#[test]
fn break_5_chaining_to_the_empty_prefix_gives_the_secret_away() {
    let id = world::delegation_id(5);
    let time = paper::get_time(N, paper::key_id(N, NOW), NOW);
    let s = paper_secret(Algorithm::Cmac, time);
    let handed_over = paper::chain_begin(&s, id);
    let stolen = handed_over.xor(&paper::h(&id.octets()));
    let capability = paper_capability(paper::key_id(N, NOW), None);
    assert!(paper_passes(&mut paper_router(Algorithm::Cmac), capability, &stolen, [203, 0, 113, 9], NOW));

    let (here, mut capability, secret) = standard();
    let held = secret.delegate(id, "0.0.0.0/0".parse().expect("a prefix")).expect("of the family");
    let undone = Key128::new(*held.expose()).xor(&paper::h(&id.octets()));
    for key in [held.stamp_key(), StampKey::new(Key128::new(*held.expose())), StampKey::new(undone)] {
        assert!(!standard_passes(&here, Hop { capability, key }, [203, 0, 113, 9], NOW));
    }
    capability.delegation = Some(held.delegation());
    assert!(standard_passes(&here, Hop { capability, key: held.stamp_key() }, [203, 0, 113, 9], NOW));
}

/// P3: the published binding leaves the encapsulated protocol open; ours does not.
#[test]
fn the_encapsulated_protocol_is_bound_since_version_1() {
    let time = paper::get_time(N, paper::key_id(N, NOW), NOW);
    let key = paper_secret(Algorithm::Cmac, time);
    let capability = paper_capability(paper::key_id(N, NOW), None);
    let inner = world::inner(Afi::Ipv4, b"twenty octets of TCP");
    let mut datagram = paper::encapsulate(&inner, &[(capability, key)], Algorithm::Cmac).expect("sound");
    datagram[23] = 17;
    let packet = Packet::decode(&datagram, Version::Paper).expect("sound");
    assert!(matches!(paper_router(Algorithm::Cmac).process(&packet, world::at(NOW)), Verdict::Forward(_)));

    let (here, capability, secret) = standard();
    let hops = [Hop { capability, key: secret.stamp_key() }];
    let mut datagram = world::stamp(&inner, &world::route(&hops));
    datagram[23] = 17;
    let outcome = world::process(&here, &datagram, NOW);
    assert_eq!(outcome, Err(Verdict::Answer(IcmpError::Prohibited, Reason::Binding)));
}

/// PLA-10. The packet: IPv4 20, header 20 (list length at 21, pointer at 22), capabilities of 28 octets from 40 on.
#[test]
fn pointers_and_lengths_that_lie_are_refused() {
    let hops: Vec<Hop> = (1..=3).map(|n| world::hop(world::capability(Afi::Ipv4, n))).collect();
    let datagram = world::stamp(&world::inner(Afi::Ipv4, &[0xff; 1_100]), &world::route(&hops));
    let with = |at: usize, octet: u8| {
        let mut changed = datagram.clone();
        changed[at] = octet;
        Packet::decode(&changed, Version::Standard).map(|packet| packet.current()).err()
    };
    for pointer in 0..=255u8 {
        let expected = match pointer {
            0 | 7 | 14 | 21 => None,
            1..=20 => Some(Malformed::PointerMisaligned),
            _ => Some(Malformed::PointerBeyond),
        };
        assert_eq!(with(22, pointer), expected, "{pointer}");
    }
    for words in (0..=255u8).filter(|words| ![0, 7, 14, 21].contains(words)) {
        assert!(with(21, words).is_some(), "{words}");
    }
    for length in 0..datagram.len() {
        assert!(Packet::decode(&datagram[..length], Version::Standard).is_err(), "{length}");
    }
    for (at, octet, expected) in [
        (0, 0x46, Malformed::Options),
        (6, 0x20, Malformed::Fragment),
        (7, 0x01, Malformed::Fragment),
        (20, 0x00, Malformed::Version(0)),
        (20, 0x11, Malformed::Flags(1)),
        (20, 0x12, Malformed::Family),
        (47, 3, Malformed::Interval(3)),
        (47, 25, Malformed::Interval(25)),
        (47, 0x4c, Malformed::SubDelegationAlone),
    ] {
        let mut changed = datagram.clone();
        changed[at] = octet;
        world::write_checksum(&mut changed);
        assert_eq!(Packet::decode(&changed, Version::Standard).err(), Some(expected), "{at}: {octet:#x}");
    }
    assert_eq!(with(10, datagram[10] ^ 1), Some(Malformed::Checksum));
    assert_eq!(with(9, 6), Some(Malformed::Checksum));
}

/// PLA-10: a pointer into the bytes of a delegation that look like a capability.
#[test]
fn a_pointer_into_delegation_bytes_is_misaligned() {
    let mut capability = world::capability(Afi::Ipv4, 1);
    let prefix = Prefix::truncated(world::destination_address(Afi::Ipv4), 24).expect("a length");
    capability.delegation = Some(Delegation { prefix, id: world::delegation_id(1), sub: None });
    let hops = [world::hop(capability)];
    let mut datagram = world::stamp(&world::inner(Afi::Ipv4, b"payload"), &world::route(&hops));
    for pointer in 1..9 {
        datagram[22] = pointer;
        assert_eq!(Packet::decode(&datagram, Version::Standard).err(), Some(Malformed::PointerMisaligned));
    }
}

/// PLA-10: loops, and one capability too many.
#[test]
fn a_waypoint_may_occur_twice_and_a_packet_has_at_most_eight() {
    let hops =
        |numbers: &[u8]| -> Vec<Hop> { numbers.iter().map(|n| world::hop(world::capability(Afi::Ipv4, *n))).collect() };
    let stamp =
        |hops: &[Hop]| mint::encapsulate(&world::inner(Afi::Ipv4, b"payload"), &world::route(hops), &mut Vec::new());
    assert_eq!(stamp(&hops(&[1, 2, 1, 2, 3, 4, 5, 6])), Ok(()));
    assert_eq!(stamp(&hops(&[1, 2, 1, 2, 1])), Err(mint::MintError::Outcome(Malformed::WaypointLoop)));
    assert_eq!(stamp(&hops(&[1, 2, 3, 4, 5, 6, 7, 8, 9])), Err(mint::MintError::Count(9)));
    assert_eq!(stamp(&[]), Err(mint::MintError::Count(0)));
    // Nine capabilities on the wire: those of eight, and one more spliced in.
    let eight = world::stamp(&world::inner(Afi::Ipv4, b"payload"), &world::route(&hops(&[1, 2, 3, 4, 5, 6, 7, 8])));
    let mut nine = eight.clone();
    nine.splice(40..40, eight[40..68].to_vec());
    nine[21] += 7;
    let length = (nine.len() as u16).to_be_bytes();
    nine[2..4].copy_from_slice(&length);
    world::write_checksum(&mut nine);
    assert_eq!(Packet::decode(&nine, Version::Standard).err(), Some(Malformed::TooManyCapabilities));
}

/// PLA-11: where a waypoint sends nothing to.
#[test]
fn martians_and_networks_of_our_own_are_not_reached_through_a_waypoint() {
    let refused: Vec<Prefix> =
        ["198.51.100.0/24", "2001:db8:1::/48"].iter().map(|text| text.parse().expect("a prefix")).collect();
    let verdict = |hops: &[Hop], to: IpAddr| {
        let afi = if to.is_ipv4() { Afi::Ipv4 } else { Afi::Ipv6 };
        let first = hops[0].capability.waypoint;
        let waypoints = vec![world::waypoint_address(afi, 2)];
        let policy = Policy { refused: refused.clone(), waypoints, ..Policy::default() };
        let here = Waypoint::new(first, world::keys_of(first), policy);
        let inner = world::inner_to(world::source_address(afi), to, b"payload");
        let datagram = world::stamp(&inner, &world::route(hops));
        here.verify(&world::decode(&datagram), world::at(NOW))
    };
    let hop = |afi, n| world::hop(world::capability(afi, n));
    for text in ["127.0.0.1", "0.1.2.3", "224.0.0.5", "255.255.255.255", "169.254.1.1", "240.0.0.1"] {
        let to: IpAddr = text.parse().expect("an address");
        assert_eq!(verdict(&[hop(Afi::Ipv4, 1)], to), Verdict::Drop(Reason::MartianDestination), "{text}");
    }
    for text in ["::1", "::", "fe80::1", "ff02::1", "::ffff:10.0.0.1", "2002:7f00:1::1", "64:ff9b::7f00:1"] {
        let to: IpAddr = text.parse().expect("an address");
        assert_eq!(verdict(&[hop(Afi::Ipv6, 1)], to), Verdict::Drop(Reason::MartianDestination), "{text}");
    }
    let own = Verdict::Answer(IcmpError::Prohibited, Reason::OwnNetwork);
    assert_eq!(verdict(&[hop(Afi::Ipv4, 1)], world::waypoint_address(Afi::Ipv4, 2)), own);
    assert_eq!(verdict(&[hop(Afi::Ipv6, 1)], world::waypoint_address(Afi::Ipv6, 2)), own);
    // Next waypoints: one of ours that is named, one that is not.
    let destination = world::destination_address(Afi::Ipv4);
    assert!(matches!(verdict(&[hop(Afi::Ipv4, 1), hop(Afi::Ipv4, 2)], destination), Verdict::Forward(_)));
    assert_eq!(verdict(&[hop(Afi::Ipv4, 1), hop(Afi::Ipv4, 3)], destination), own);
}

#[test]
fn a_packet_from_elsewhere_than_it_says_is_refused() {
    let hops: Vec<Hop> = (1..=2).map(|n| world::hop(world::capability(Afi::Ipv4, n))).collect();
    let datagram = world::stamp(&world::inner(Afi::Ipv4, b"payload"), &world::route(&hops));
    let first = world::waypoint(hops[0].capability.waypoint);
    let second = world::waypoint(hops[1].capability.waypoint);
    let mut elsewhere = datagram.clone();
    elsewhere[15] ^= 1;
    world::write_checksum(&mut elsewhere);
    assert_eq!(world::process(&first, &elsewhere, NOW), Err(Verdict::Drop(Reason::Source)));
    // Straight to the second waypoint, with the pointer moved: the first waypoint is missed.
    let mut skipping = datagram;
    skipping[22] = 7;
    skipping[19] = 2;
    world::write_checksum(&mut skipping);
    assert_eq!(world::process(&second, &skipping, NOW), Err(Verdict::Drop(Reason::Source)));
    assert_eq!(world::process(&first, &skipping, NOW), Err(Verdict::Drop(Reason::NotForUs)));
}

#[test]
fn bindings_of_64_bits_pass_where_the_policy_says_so() {
    let mut capability = world::capability(Afi::Ipv4, 1);
    capability.width = wayleave_packet::platypus::header::Width::Narrow;
    let datagram = world::stamp(&world::inner(Afi::Ipv4, &[0; 4]), &world::route(&[world::hop(capability)]));
    assert_eq!(datagram.len(), 64);
    let strict = Waypoint::new(capability.waypoint, world::keys_of(capability.waypoint), Policy::default());
    let refused = Verdict::Answer(IcmpError::Prohibited, Reason::NarrowBinding);
    assert_eq!(world::process(&strict, &datagram, NOW), Err(refused));
    assert!(world::process(&world::waypoint(capability.waypoint), &datagram, NOW).is_ok());
}
