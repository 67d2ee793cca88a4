//! Bursts of simple packets with payloads of equal numbers of blocks: sixteen at a time are decided at once, each as if it
//! were alone.
//!
//! PLA, lanes: bursts of simple packets of up to eight flow classes, one of them spoiled in each of twelve ways at each
//! index: for each packet what `verify` decides for it alone.

use std::net::IpAddr;

use wayleave_core::{Afi, Prefix};
use wayleave_crypto::lanes::{CpuKernel, LANES};
use wayleave_dataplane::frame::BURST;
use wayleave_dataplane::platypus::lanes::BurstVerifier;
use wayleave_packet::platypus::header::Width;
use wayleave_packet::platypus::mint::Route;
use wayleave_packet::platypus::verify::{Policy, Reason, Waypoint};

use super::random::Random;
use super::world::mutate;
use super::{cases, in_lanes, one_by_one, world};

/// Where the binding of a simple packet begins.
const BINDING: usize = 52;

/// What is wrong with a packet.
#[derive(Clone, Copy, Debug)]
enum Defect {
    FirstHalf,
    SecondHalf,
    Payload,
    Ttl,
    Nonce,
    TooLong,
    Cut,
    Checksum,
    Martian,
    Refused,
    Source,
    Anything,
}

const DEFECTS: [Defect; 12] = [
    Defect::FirstHalf,
    Defect::SecondHalf,
    Defect::Payload,
    Defect::Ttl,
    Defect::Nonce,
    Defect::TooLong,
    Defect::Cut,
    Defect::Checksum,
    Defect::Martian,
    Defect::Refused,
    Defect::Source,
    Defect::Anything,
];

/// For one of `kinds` sorts: two waypoints, two epochs, two widths, the narrow one first if `is_narrow`.
fn packet(random: &mut Random, (kinds, is_narrow): (u64, bool), blocks: usize, to: IpAddr, counter: u32) -> Vec<u8> {
    let kind = random.below(kinds) ^ u64::from(is_narrow) << 2;
    let mut capability = world::capability(Afi::Ipv4, 1 + (kind & 1) as u8);
    capability.epoch -= (kind >> 1 & 1) as u32;
    capability.width = if kind >> 2 & 1 == 0 { Width::Full } else { Width::Narrow };
    let mut payload = vec![0; (16 * blocks).saturating_sub(random.below(16) as usize)];
    random.fill(&mut payload);
    let hops = [world::hop(capability)];
    let inner = world::inner_to(world::source_address(Afi::Ipv4), to, &payload);
    world::stamp(&inner, &Route { nonce: world::nonce(counter), ..world::route(&hops) })
}

fn spoil(random: &mut Random, defect: Defect, packet: &mut Vec<u8>) {
    let bit = 1 << random.below(8);
    match defect {
        Defect::FirstHalf => packet[BINDING + random.below(8) as usize] ^= bit,
        Defect::SecondHalf => {
            let last = packet.len() - 1;
            packet[(BINDING + 8 + random.below(8) as usize).min(last)] ^= bit;
        }
        Defect::Payload => *packet.last_mut().expect("octets") ^= bit,
        Defect::Ttl => packet[8] = 1,
        Defect::Nonce => packet[35] ^= 0x40,
        Defect::TooLong => packet[2] += 1,
        Defect::Cut => packet.truncate(random.below(packet.len() as u64) as usize),
        Defect::Checksum => packet[10] ^= bit,
        Defect::Martian => packet[24] = 127,
        Defect::Refused => packet[28..32].copy_from_slice(&[198, 18, 0, 1]),
        // As the sender's own packet would come, outer source and all.
        Defect::Source => {
            packet[12..16].copy_from_slice(&[198, 18, 0, 1]);
            packet[24..28].copy_from_slice(&[198, 18, 0, 1]);
        }
        Defect::Anything => *packet = mutate(random, packet),
    }
    if matches!(defect, Defect::Ttl | Defect::TooLong | Defect::Source) {
        world::write_checksum(packet);
    }
}

#[test]
fn packets_in_lanes_are_decided_each_as_if_it_were_alone() {
    let mut random = Random::new(17);
    let refused: Prefix = "198.18.0.0/15".parse().expect("a prefix");
    let waypoints = [1, 2].map(|number| {
        let address = world::waypoint_address(Afi::Ipv4, number);
        let policy = Policy { narrow: true, refused: vec![refused], ..Policy::default() };
        Waypoint::new(address, world::keys_of(address), policy)
    });
    let now = world::at(world::NOW);
    let (mut passed, mut forged) = (0, 0);
    for kernel in CpuKernel::available() {
        let mut verifier = BurstVerifier::new(kernel, 8);
        for round in 0..cases(40) {
            let (blocks, kinds) = ([0, 1, 2, 5, 23][round as usize % 5], (1 << random.below(4), random.below(2) == 0));
            let count = LANES / 2 + 1 + random.below((BURST - LANES / 2) as u64) as usize;
            let to = world::destination_address(Afi::Ipv4);
            let sound: Vec<Vec<u8>> = (0..count as u32).map(|n| packet(&mut random, kinds, blocks, to, n)).collect();
            for index in 0..count {
                for defect in DEFECTS {
                    let mut datagrams: Vec<&[u8]> = sound.iter().map(Vec::as_slice).collect();
                    let mut bad = sound[index].clone();
                    spoil(&mut random, defect, &mut bad);
                    datagrams[index] = &bad;
                    let found = in_lanes(&mut verifier, &waypoints, &datagrams, now);
                    let expected = one_by_one(&waypoints, &bad, now);
                    assert_eq!(found[index], expected, "{kernel:?}, {defect:?} at {index} of {count}: {bad:02x?}");
                    forged += u32::from(found[index] == Err(Reason::Binding.into()));
                    let mut others = found.iter().enumerate().filter(|(other, _)| *other != index);
                    assert!(others.all(|(_, other)| other.is_ok()), "{kernel:?}, {defect:?}");
                    passed += count - 1;
                }
            }
            // And what those that pass are rewritten to.
            let datagrams: Vec<&[u8]> = sound.iter().map(Vec::as_slice).collect();
            for (datagram, found) in datagrams.iter().zip(in_lanes(&mut verifier, &waypoints, &datagrams, now)) {
                assert_eq!(found, one_by_one(&waypoints, datagram, now), "{kernel:?}");
            }
        }
    }
    assert!(passed > 100_000 && forged > 1_000, "{passed} passed, {forged} forged");
}
