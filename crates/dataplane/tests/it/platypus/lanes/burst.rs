//! The vector path beside `verify`, on bursts of random packets.

use std::net::IpAddr;

use wayleave_core::{Afi, Prefix};
use wayleave_crypto::lanes::{BURST, CpuKernel};
use wayleave_dataplane::platypus::lanes::Verifier;
use wayleave_packet::platypus::header::{Packet, Version, Width};
use wayleave_packet::platypus::verify::{Policy, Reason, Verdict, Waypoint};

use super::random::Random;
use super::world::{NOW, mutate};
use super::{packets, world};

/// The verdicts of a burst are those of its packets one by one, on every kernel, whatever stands beside them.
#[test]
fn a_burst_in_lanes_equals_its_packets_one_by_one() {
    let mut random = Random::new(3);
    for kernel in CpuKernel::available() {
        let mut verifier = Verifier::new(kernel, 8);
        for _ in 0..packets(200_000) / 200 {
            let mut datagrams = Vec::new();
            let mut waypoints: Vec<Waypoint> = Vec::new();
            for _ in 0..random.below(BURST as u64 + 1) {
                let (datagram, address) = if random.one_in(2) {
                    common_packet(&mut random)
                } else {
                    let (datagram, addresses) = world::random_packet(&mut random, world::NOW);
                    (datagram, addresses[0])
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
            let mut found = [Verdict::default(); BURST];
            // Up to where nonces are too old, and a little beyond.
            let now = world::NOW + if random.one_in(3) { random.below(40) } else { 0 };
            verifier.verify(&waypoints, &slices, world::at(now), &mut found);
            for (datagram, found) in slices.iter().zip(found) {
                assert_eq!(found, one_by_one(&waypoints, datagram, now), "{datagram:02x?}");
            }
        }
    }
}

/// A packet of the shape that most packets have.
fn common_packet(random: &mut Random) -> (Vec<u8>, IpAddr) {
    let mut capability = world::capability(Afi::Ipv4, 1 + random.below(3) as u8);
    if random.one_in(4) {
        capability.width = Width::Narrow;
    }
    let mut payload = vec![0; random.below(100) as usize];
    random.fill(&mut payload);
    let hops = [world::hop(capability)];
    (world::stamp(&world::inner(Afi::Ipv4, &payload), &world::route(&hops)), capability.waypoint)
}

pub(crate) fn one_by_one(waypoints: &[Waypoint], datagram: &[u8], now: u64) -> Verdict {
    match Packet::decode(datagram, Version::Standard) {
        Err(malformed) => malformed.into(),
        Ok(packet) => {
            let here = waypoints.iter().find(|here| here.address() == packet.outer().destination);
            here.map_or(Reason::NotForUs.into(), |here| here.verify(&packet, world::at(now)))
        }
    }
}

/// A waypoint that allows more than others, or less.
fn random_waypoint(random: &mut Random, address: IpAddr) -> Waypoint {
    let refused = random.one_in(6).then(|| {
        let prefix = Prefix::truncated(world::destination_address(Afi::Ipv4), 24 + random.below(9) as u8);
        prefix.expect("within the family's bits")
    });
    let policy = Policy {
        narrow: !random.one_in(3),
        freshness: if random.one_in(3) { random.below(30) as u32 } else { 30 },
        check_source: !random.one_in(3),
        refused: refused.into_iter().collect(),
        waypoints: Vec::new(),
    };
    Waypoint::new(address, world::keys_of(address), policy)
}

/// Behind an IPv6 header of 40 octets lie up to 65,535: the packet is longer than 16 bits say.
#[test]
fn the_longest_ipv6_packets_pass_in_a_burst_too() {
    let hops = [world::hop(world::capability(Afi::Ipv6, 1))];
    let here = [world::waypoint(hops[0].capability.waypoint)];
    let mut verifier = Verifier::new(CpuKernel::PORTABLE, 1);
    for total in [65_535, 65_536, 65_575] {
        let payload = vec![0x5a; total - 40 - 44 - 40];
        let datagram = world::stamp(&world::inner(Afi::Ipv6, &payload), &world::route(&hops));
        assert_eq!(datagram.len(), total);
        let mut verdicts = [Verdict::default()];
        verifier.verify(&here, &[&datagram], world::at(NOW), &mut verdicts);
        assert_eq!(verdicts[0], here[0].verify(&world::decode(&datagram), world::at(NOW)));
        assert!(matches!(verdicts[0], Verdict::Forward(_)), "{total} octets: {:?}", verdicts[0]);
    }
}
