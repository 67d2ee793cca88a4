//! What was stamped passes, what was changed does not.
//!
//! PLA-01: stamp and verify, IPv4 and IPv6, one to eight waypoints, payload lengths up to the largest datagram (in
//! steps; each with `WAYLEAVE_PLATYPUS_CASES=65536`): a packet comes out as it went in.
//! PLA-02: every bit of packets flipped, both families, over IP and UDP, plain, delegated, sealed: dropped, unless the
//! bit is on the list of excluded ones.

use wayleave_core::{Afi, Prefix};
use wayleave_packet::platypus::header::{Carriage, Delegation, Packet, SubDelegation, Width};
use wayleave_packet::platypus::mint::{self, Hop, MintError, Position, Route};
use wayleave_packet::platypus::verify::{Arrival, Policy, Reason, Verdict, Waypoint, decapsulate};

use super::random::Random;
use super::world::{self, NOW};
use super::{cases, model};

/// PLA-01: families, one to eight waypoints; what comes out is what went in, with as many hops less to live.
#[test]
fn a_packet_passes_its_waypoints_and_comes_out_as_it_went_in() {
    let mut random = Random::new(2);
    for case in 0..cases(2_000) {
        let afi = if case % 2 == 0 { Afi::Ipv4 } else { Afi::Ipv6 };
        let count = 1 + case / 2 % 8;
        let hops: Vec<Hop> = (0..count).map(|n| world::hop(world::capability(afi, n as u8 / 2 + 1))).collect();
        let mut payload = vec![0; random.below(1_500) as usize];
        random.fill(&mut payload);
        let inner = world::inner(afi, &payload);
        let carriage = if random.one_in(2) { Carriage::Udp } else { Carriage::Ip };
        let route = Route { sealed: random.one_in(2), carriage, ..world::route(&hops) };
        let mut datagram = world::stamp(&inner, &route);
        for (index, hop) in hops.iter().enumerate() {
            let here = world::waypoint(hop.capability.waypoint);
            assert_eq!(world::decode(&datagram).current(), Some(index));
            datagram = world::process(&here, &datagram, NOW).expect("it passes");
            assert_eq!(world::decode(&datagram).outer().source, here.address());
        }
        assert_eq!(world::decode(&datagram).outer().destination, world::destination_address(afi));
        let mut expected = inner;
        let ttl = if afi == Afi::Ipv4 { 8 } else { 7 };
        expected[ttl] -= count as u8;
        if afi == Afi::Ipv4 {
            world::write_checksum(&mut expected);
        }
        assert_eq!(decapsulate(&world::decode(&datagram)), Some(expected));
    }
}

/// PLA-01: every payload length that fits, in steps by default and each with `WAYLEAVE_PLATYPUS_CASES=65536`.
#[test]
fn every_payload_length_passes() {
    let step = (65_536 / cases(300).clamp(1, 65_536)) as usize;
    for afi in [Afi::Ipv4, Afi::Ipv6] {
        let hops = [world::hop(world::capability(afi, 1))];
        let here = world::waypoint(hops[0].capability.waypoint);
        let model = model::Here::new(here.address(), world::key_octets(here.address()));
        let most = if afi == Afi::Ipv4 { 65_535 - 20 - 20 - 28 } else { 65_535 - 44 - 40 };
        let payload: Vec<u8> = (0..most + 1).map(|i: usize| ((i * 7) >> 3) as u8).collect();
        for length in (0..=260).chain((261..most).step_by(step)).chain([most]) {
            let datagram = world::stamp(&world::inner(afi, &payload[..length]), &world::route(&hops));
            let sent = world::process(&here, &datagram, NOW).expect("it passes");
            if length < 300 || length == most {
                assert_eq!(model::process(&model, &datagram, NOW), Some(sent));
            }
        }
        let mut out = Vec::new();
        let outcome = mint::encapsulate(&world::inner(afi, &payload), &world::route(&hops), &mut out);
        assert!(matches!(outcome, Err(MintError::TooLong(_))));
    }
}

/// Bits of a stamped packet that no check depends on: what routers change on the way, and what only IP knows.
fn is_excluded(afi: Afi, carriage: Carriage, bit: usize) -> bool {
    let octet = bit / 8;
    let ip = match afi {
        // Traffic class; identification; don't fragment; time to live.
        Afi::Ipv4 => matches!(octet, 1 | 4 | 5 | 8) || bit == 6 * 8 + 1,
        // Traffic class and flow label; hop limit.
        Afi::Ipv6 => (4..32).contains(&bit) || octet == 7,
    };
    let start = if afi == Afi::Ipv4 { 20 } else { 40 };
    // Source port and checksum of UDP.
    ip || carriage == Carriage::Udp && [0, 1, 6, 7].map(|at| start + at).contains(&octet)
}

/// PLA-02: every bit, for both families and carriages, plain, delegated and sealed.
#[test]
fn every_flipped_bit_is_noticed_unless_it_is_excluded() {
    for case in 0..24 {
        let afi = if case % 2 == 0 { Afi::Ipv4 } else { Afi::Ipv6 };
        let carriage = if case / 2 % 2 == 0 { Carriage::Ip } else { Carriage::Udp };
        let mut capability = world::capability(afi, 1);
        if case / 4 % 3 > 0 {
            let prefix = Prefix::truncated(world::destination_address(afi), 20).expect("a length");
            let sub = (case / 4 % 3 == 2).then(|| SubDelegation { at: 13, id: world::delegation_id(0x0c_0ffe) });
            capability.delegation = Some(Delegation { prefix, id: world::delegation_id(0xab_cdef), sub });
        }
        capability.width = if case % 3 == 0 { Width::Narrow } else { Width::Full };
        let sealed = case / 12 == 1;
        // Behind a sealed list's first waypoint the others' octets count as well.
        let hops: Vec<Hop> =
            std::iter::once(capability).chain(sealed.then(|| world::capability(afi, 2))).map(world::hop).collect();
        let route = Route { carriage, sealed, ..world::route(&hops) };
        let datagram = world::stamp(&world::inner(afi, b"thirty-three octets of a payload."), &route);
        let here = world::waypoint(capability.waypoint);
        world::process(&here, &datagram, NOW).expect("it passes as it is");
        let binding_of_another = sealed.then(|| {
            let packet = world::decode(&datagram);
            packet.payload_offset() - 16..packet.payload_offset()
        });
        for bit in 0..datagram.len() * 8 {
            let mut flipped = datagram.clone();
            flipped[bit / 8] ^= 0x80 >> (bit % 8);
            if afi == Afi::Ipv4 && !(80..96).contains(&bit) {
                world::write_checksum(&mut flipped);
            }
            let passes = world::process(&here, &flipped, NOW).is_ok();
            let excluded = is_excluded(afi, carriage, bit)
                || binding_of_another.as_ref().is_some_and(|range| range.contains(&(bit / 8)));
            assert_eq!(passes, excluded, "case {case}, bit {bit} (octet {})", bit / 8);
        }
    }
}

#[test]
fn time_to_live_ends_at_a_waypoint() {
    let hops = [world::hop(world::capability(Afi::Ipv4, 1))];
    let mut datagram = world::stamp(&world::inner(Afi::Ipv4, b"payload"), &world::route(&hops));
    let here = world::waypoint(hops[0].capability.waypoint);
    for (ttl, passes) in [(0, false), (1, false), (2, true), (255, true)] {
        datagram[8] = ttl;
        world::write_checksum(&mut datagram);
        assert_eq!(world::process(&here, &datagram, NOW).is_ok(), passes, "{ttl}");
    }
}

#[test]
fn a_nonce_is_fresh_for_five_seconds_and_at_most_one_ahead_across_2106_too() {
    let hops = |now| {
        let mut capability = world::capability(Afi::Ipv4, 1);
        capability.epoch = mint::epoch::epoch_at(capability.interval, world::at(now));
        [world::hop(capability)]
    };
    for now in [NOW, (1 << 31) - 3, (1 << 32) - 3, (1 << 32) + 12] {
        for (stamped, passes) in [(now, true), (now - 5, true), (now + 1, true), (now - 6, false), (now + 2, false)] {
            let hops = hops(now);
            let route = Route { nonce: mint::Nonce::new(world::at(stamped), 9), ..world::route(&hops) };
            let datagram = world::stamp(&world::inner(Afi::Ipv4, b"payload"), &route);
            let here = world::waypoint(hops[0].capability.waypoint);
            assert_eq!(world::process(&here, &datagram, now).is_ok(), passes, "{stamped} at {now}");
        }
    }
}

#[test]
fn a_stamper_in_the_network_adds_a_waypoint_in_front_or_behind() {
    for afi in [Afi::Ipv4, Afi::Ipv6] {
        for position in [Position::Next, Position::Last] {
            let hops: Vec<Hop> = (1..=2).map(|n| world::hop(world::capability(afi, n))).collect();
            let added = world::hop(world::capability(afi, 3));
            let mut datagram = world::stamp(&world::inner(afi, b"payload"), &world::route(&hops));
            datagram = world::process(&world::waypoint(hops[0].capability.waypoint), &datagram, NOW).expect("passes");
            mint::append(&mut datagram, &added, position).expect("not sealed");
            let rest = match position {
                Position::Next => [&added, &hops[1]],
                Position::Last => [&hops[1], &added],
            };
            for hop in rest {
                let here = world::waypoint(hop.capability.waypoint);
                datagram = world::process(&here, &datagram, NOW).expect("it passes");
            }
            assert_eq!(world::decode(&datagram).current(), None);
        }
    }
}

#[test]
fn a_sealed_list_takes_no_more_and_misses_none() {
    let hops: Vec<Hop> = (1..=3).map(|n| world::hop(world::capability(Afi::Ipv4, n))).collect();
    let route = Route { sealed: true, ..world::route(&hops) };
    let sealed = world::stamp(&world::inner(Afi::Ipv4, b"payload"), &route);
    let mut more = sealed.clone();
    assert_eq!(mint::append(&mut more, &hops[0], Position::Last), Err(MintError::Sealed));

    // Without its second waypoint: an unsealed packet passes the third one, a sealed one does not.
    for (datagram, passes) in
        [(world::stamp(&world::inner(Afi::Ipv4, b"payload"), &world::route(&hops)), true), (sealed, false)]
    {
        let mut datagram =
            world::process(&world::waypoint(hops[0].capability.waypoint), &datagram, NOW).expect("it passes");
        let second = 20 + 20 + 28;
        datagram.drain(second..second + 28);
        datagram[21] -= 7;
        let length = (datagram.len() as u16).to_be_bytes();
        datagram[2..4].copy_from_slice(&length);
        datagram[16..20].copy_from_slice(&[198, 51, 100, 3]);
        world::write_checksum(&mut datagram);
        let third = world::waypoint(hops[2].capability.waypoint);
        assert_eq!(world::process(&third, &datagram, NOW).is_ok(), passes);
    }
}

#[test]
fn a_key_version_serves_the_epochs_that_begin_in_its_time() {
    let capability = world::capability(Afi::Ipv4, 1);
    let begin = mint::epoch::epoch_begin(capability.interval, capability.epoch);
    let old = world::hop(capability);
    let mut keys = world::keys_of(capability.waypoint);
    let new = mint::WaypointKey::new(&wayleave_crypto::secret::Key128::new([9; 16]));
    keys.rotate(new, begin + 1).expect("newer than the first");
    assert!(keys.rotate(mint::WaypointKey::new(&wayleave_crypto::secret::Key128::new([8; 16])), begin).is_err());
    let here = Waypoint::new(capability.waypoint, keys.clone(), Policy::default());

    // The current epoch began before the change: the old key. The next one begins after it: the new key only.
    let datagram = world::stamp(&world::inner(Afi::Ipv4, b"payload"), &world::route(std::slice::from_ref(&old)));
    assert!(world::process(&here, &datagram, NOW).is_ok());
    let mut next = capability;
    next.epoch += 1;
    for (key, passes) in [(world::hop(next).key, false), (keys.stamp_key(&next).expect("held"), true)] {
        let hops = [Hop { capability: next, key }];
        let datagram = world::stamp(&world::inner(Afi::Ipv4, b"payload"), &world::route(&hops));
        assert_eq!(world::process(&here, &datagram, NOW).is_ok(), passes);
    }
    // A third version pushes the first one out.
    keys.rotate(mint::WaypointKey::new(&wayleave_crypto::secret::Key128::new([7; 16])), begin + 9_000).expect("newer");
    let here = Waypoint::new(capability.waypoint, keys, Policy::default());
    let gone = world::process(&here, &datagram, NOW);
    assert!(matches!(gone, Err(Verdict::Answer(_, Reason::KeyGone))), "{gone:?}");
}

#[test]
fn a_packet_from_a_socket_is_the_same_packet() {
    let hops = [world::hop(world::capability(Afi::Ipv6, 1))];
    let route = Route { carriage: Carriage::Udp, ..world::route(&hops) };
    let datagram = world::stamp(&world::inner(Afi::Ipv6, b"payload"), &route);
    let here = world::waypoint(hops[0].capability.waypoint);
    let mut body = datagram[48..].to_vec();
    let source = world::source_address(Afi::Ipv6);
    let packet = Packet::decode_datagram(&body, source, here.address(), 64).expect("sound");
    let Verdict::Forward(forward) = here.verify(&packet, Arrival::Ip, world::at(NOW)) else { panic!("it passes") };
    assert_eq!((forward.source(&body), forward.ttl, forward.is_last), (here.address(), 63, true));
    forward.apply(&mut body);
    assert_eq!(body, world::process(&here, &datagram, NOW).expect("it passes")[48..]);
}
