//! The vector path compared with `verify` on bursts of random packets.
//!
//! PLA, longest: IPv6 packets of 65,535 to 65,575 octets in a burst: as for the packet alone.
//! PLA, lanes: bursts of random and mutated packets, every flipped bit next to its original: for each packet what
//! `verify` decides for it alone.
//! PLA-11, lanes: a peer's packets at their first waypoint among others of the same flow: refused.

use std::net::IpAddr;

use wayleave_core::{Afi, Prefix};
use wayleave_crypto::lanes::{CpuKernel, LANES};
use wayleave_dataplane::frame::BURST;
use wayleave_dataplane::platypus::lanes::BurstVerifier;
use wayleave_packet::platypus::header::{Delegation, Marks, Width};
use wayleave_packet::platypus::mint::Route;
use wayleave_packet::platypus::verify::{Arrival, Link, Policy, Waypoint};

use super::random::Random;
use super::world::{NOW, mutate};
use super::{in_lanes, in_lanes_from, one_by_one, one_by_one_from, packets, world};

/// On every kernel, whatever other packets are in the burst.
#[test]
fn a_burst_in_lanes_equals_its_packets_one_by_one() {
    let mut random = Random::new(3);
    for kernel in CpuKernel::available() {
        let mut verifier = BurstVerifier::new(kernel, 8);
        for _ in 0..packets(200_000) / 200 {
            let mut datagrams = Vec::new();
            let mut waypoints: Vec<Waypoint> = Vec::new();
            for _ in 0..random.below(BURST as u64 + 1) {
                let (datagram, address) = if random.one_in(2) {
                    simple_packet(&mut random)
                } else {
                    let (mut datagram, addresses) = world::random_packet(&mut random, world::NOW);
                    let mut address = addresses[0];
                    // Now and then at its second waypoint.
                    if let Some(second) = addresses.get(1).filter(|_| random.one_in(2))
                        && let Ok(next) = world::process(&world::waypoint(address), &datagram, world::NOW)
                    {
                        (datagram, address) = (next, *second);
                    }
                    (datagram, address)
                };
                // Often one that has much in common with the one before.
                let like =
                    datagrams.last().filter(|_| random.one_in(2)).map(|like: &Vec<u8>| mutate(&mut random, like));
                let mut other =
                    |datagram: Vec<u8>| if random.one_in(3) { mutate(&mut random, &datagram) } else { datagram };
                datagrams.push(like.unwrap_or_else(|| other(datagram)));
                if waypoints.iter().all(|here| here.address() != address) && !random.one_in(9) {
                    waypoints.push(random_waypoint(&mut random, address));
                }
            }
            let slices: Vec<&[u8]> = datagrams.iter().map(Vec::as_slice).collect();
            // Up to where nonces are too old, and a little beyond.
            let now = world::at(world::NOW + if random.one_in(3) { random.below(8) } else { 0 });
            let arrivals: Vec<Arrival> = slices.iter().map(|_| random_arrival(&mut random)).collect();
            let found = in_lanes_from(&mut verifier, &waypoints, &slices, &|index| arrivals[index], now);
            for ((datagram, arrival), found) in slices.iter().zip(&arrivals).zip(found) {
                let expected = one_by_one_from(&waypoints, datagram, *arrival, now);
                assert_eq!(found, expected, "{datagram:02x?}, {arrival:?}");
            }
        }
    }
}

/// A simple packet.
fn simple_packet(random: &mut Random) -> (Vec<u8>, IpAddr) {
    let mut capability = world::capability(Afi::Ipv4, 1 + random.below(3) as u8);
    if random.one_in(4) {
        capability.width = Width::Narrow;
    }
    if random.one_in(8) {
        capability.marks = Marks::BOUND;
    }
    let mut payload = vec![0; random.below(100) as usize];
    random.fill(&mut payload);
    let hops = [world::hop(capability)];
    (world::stamp(&world::inner(Afi::Ipv4, &payload), &world::route(&hops)), capability.waypoint)
}

/// By IP, or over one of two links.
fn random_arrival(random: &mut Random) -> Arrival {
    match random.below(4) {
        link @ 1..=2 => Arrival::Link(link as u16),
        _ => Arrival::Ip,
    }
}

/// With waypoints behind it or not, and sources from which paths may begin.
fn random_link(random: &mut Random, sources: Prefix) -> Link {
    let waypoints = |random: &mut Random| if random.one_in(2) { world::peers() } else { Vec::new() };
    let sources = match random.below(4) {
        0 => Some(Vec::new()),
        1 => Some(vec![sources]),
        _ => None,
    };
    Link { own: waypoints(random), peers: waypoints(random), sources }
}

/// A waypoint that allows more than others, or less.
fn random_waypoint(random: &mut Random, address: IpAddr) -> Waypoint {
    let network = |random: &mut Random, address: IpAddr| {
        Prefix::truncated(address, 24 + random.below(9) as u8).expect("within the family's bits")
    };
    let (destination, source) = (world::destination_address(Afi::Ipv4), world::source_address(Afi::Ipv4));
    let mut refused = Vec::new();
    for address in [destination, source] {
        if random.one_in(6) {
            refused.push(network(random, address));
        }
    }
    let sources = random.one_in(2).then(|| network(random, source));
    let mut links = Vec::new();
    for _ in 0..2 {
        let sources = network(random, source);
        links.push(random_link(random, sources));
    }
    let policy = Policy {
        narrow: !random.one_in(3),
        freshness: if random.one_in(3) { random.below(7) as u32 } else { 5 },
        check_source: !random.one_in(3),
        own: if random.one_in(4) { world::peers() } else { Vec::new() },
        peers: if random.one_in(4) { Vec::new() } else { world::peers() },
        links,
        refused,
        waypoints: Vec::new(),
        sources: sources.into_iter().collect(),
        customers: if random.one_in(4) { vec![network(random, source)] } else { Vec::new() },
    };
    Waypoint::new(address, world::keys_of(address), policy)
}

/// Bursts of one flow, of which one in sixteen comes over the link of a peer, which has left its waypoint out of the list.
#[test]
fn packets_of_one_flow_are_judged_each_by_the_way_that_it_came() {
    let hops = [world::hop(world::capability(Afi::Ipv4, 1))];
    let address = hops[0].capability.waypoint;
    let of_peer = Link { peers: world::peers(), ..Link::default() };
    let policy = Policy { links: vec![of_peer, Link::default()], ..Policy::default() };
    let here = [Waypoint::new(address, world::keys_of(address), policy)];
    let packet = |counter| {
        let route = Route { nonce: world::nonce(counter), ..world::route(&hops) };
        world::stamp(&world::inner(Afi::Ipv4, b"payload"), &route)
    };
    let datagrams: Vec<Vec<u8>> = (0..BURST as u32).map(packet).collect();
    let slices: Vec<&[u8]> = datagrams.iter().map(Vec::as_slice).collect();
    for kernel in CpuKernel::available() {
        let mut verifier = BurstVerifier::new(kernel, 8);
        for one in 0..LANES {
            let arrival = |index: usize| match index {
                index if index % LANES == one => Arrival::Link(1),
                index if index % 5 == 0 => Arrival::Link(2),
                _ => Arrival::Ip,
            };
            let found = in_lanes_from(&mut verifier, &here, &slices, &arrival, world::at(NOW));
            for (index, found) in found.into_iter().enumerate() {
                assert_eq!(found.is_err(), arrival(index) == Arrival::Link(1), "{index}");
                assert_eq!(found, one_by_one_from(&here, slices[index], arrival(index), world::at(NOW)));
            }
        }
    }
}

/// An IPv6 header of 40 octets and up to 65,535 behind it: the packet is longer than 16 bits say.
#[test]
fn the_longest_ipv6_packets_pass_in_a_burst_too() {
    let hops = [world::hop(world::capability(Afi::Ipv6, 1))];
    let here = [world::waypoint(hops[0].capability.waypoint)];
    let mut verifier = BurstVerifier::new(CpuKernel::PORTABLE, 1);
    for total in [65_535, 65_536, 65_575] {
        let payload = vec![0x5a; total - 40 - 44 - 40];
        let datagram = world::stamp(&world::inner(Afi::Ipv6, &payload), &world::route(&hops));
        assert_eq!(datagram.len(), total);
        let found = in_lanes(&mut verifier, &here, &[&datagram], world::at(NOW));
        assert_eq!(found[0], one_by_one(&here, &datagram, world::at(NOW)));
        assert!(found[0].is_ok(), "{total} octets");
    }
}

/// Next to its original, with which it has nearly everything in common, in a group of three and in one of sixteen.
#[test]
fn every_flipped_bit_has_the_same_effects_in_lanes() {
    for (afi, width, delegated) in [
        (Afi::Ipv4, Width::Full, false),
        (Afi::Ipv4, Width::Narrow, false),
        (Afi::Ipv4, Width::Full, true),
        (Afi::Ipv6, Width::Full, false),
    ] {
        let mut capability = world::capability(afi, 1);
        capability.width = width;
        if delegated {
            let prefix = Prefix::truncated(world::destination_address(afi), 20).expect("a length");
            capability.delegation = Some(Delegation { prefix, id: world::delegation_id(0xab_cdef), sub: None });
        }
        let hops = [world::hop(capability)];
        let here = [world::waypoint(capability.waypoint)];
        let datagram = world::stamp(&world::inner(afi, b"thirty-three octets of a payload."), &world::route(&hops));
        let sound = one_by_one(&here, &datagram, world::at(NOW));
        assert!(sound.is_ok());
        let mut verifier = BurstVerifier::new(CpuKernel::best(), 1);
        for bit in 0..datagram.len() * 8 {
            let mut flipped = datagram.clone();
            flipped[bit / 8] ^= 0x80 >> (bit % 8);
            if afi == Afi::Ipv4 && !(80..96).contains(&bit) {
                world::write_checksum(&mut flipped);
            }
            let alone = one_by_one(&here, &flipped, world::at(NOW));
            for size in [3, LANES] {
                let mut burst = vec![&datagram[..]; size];
                burst[size / 2] = &flipped;
                let found = in_lanes(&mut verifier, &here, &burst, world::at(NOW));
                for (index, found) in found.iter().enumerate() {
                    assert_eq!(found, if index == size / 2 { &alone } else { &sound }, "bit {bit}, packet {index}");
                }
            }
        }
    }
}
