//! Bursts of packets of the commonest shape whose payloads have as many blocks: they are decided sixteen at a time, each as
//! if it were alone.

use std::net::IpAddr;

use wayleave_core::{Afi, Prefix};
use wayleave_crypto::lanes::{BURST, CpuKernel, LANES};
use wayleave_dataplane::platypus::lanes::Verifier;
use wayleave_packet::platypus::header::Width;
use wayleave_packet::platypus::mint::Route;
use wayleave_packet::platypus::verify::{Policy, Reason, Verdict, Waypoint};

use super::burst::one_by_one;
use super::random::Random;
use super::world::mutate;
use super::{cases, world};

/// Where the binding of such a packet begins, behind the outer header and everything else.
const BINDING: usize = 52;

/// What is wrong with a packet.
#[derive(Clone, Copy, Debug)]
enum Wrong {
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
    Anything,
}

const WRONGS: [Wrong; 11] = [
    Wrong::FirstHalf,
    Wrong::SecondHalf,
    Wrong::Payload,
    Wrong::Ttl,
    Wrong::Nonce,
    Wrong::TooLong,
    Wrong::Cut,
    Wrong::Checksum,
    Wrong::Martian,
    Wrong::Refused,
    Wrong::Anything,
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

fn spoil(random: &mut Random, wrong: Wrong, packet: &mut Vec<u8>) {
    let bit = 1 << random.below(8);
    match wrong {
        Wrong::FirstHalf => packet[BINDING + random.below(8) as usize] ^= bit,
        Wrong::SecondHalf => {
            let last = packet.len() - 1;
            packet[(BINDING + 8 + random.below(8) as usize).min(last)] ^= bit;
        }
        Wrong::Payload => *packet.last_mut().expect("octets") ^= bit,
        Wrong::Ttl => packet[8] = 1,
        Wrong::Nonce => packet[35] ^= 0x40,
        Wrong::TooLong => packet[2] += 1,
        Wrong::Cut => packet.truncate(random.below(packet.len() as u64) as usize),
        Wrong::Checksum => packet[10] ^= bit,
        Wrong::Martian => packet[24] = 127,
        Wrong::Refused => packet[28..32].copy_from_slice(&[198, 18, 0, 1]),
        Wrong::Anything => *packet = mutate(random, packet),
    }
    if matches!(wrong, Wrong::Ttl | Wrong::TooLong) {
        world::write_checksum(packet);
    }
}

#[test]
fn packets_beside_each_other_are_decided_each_as_if_it_were_alone() {
    let mut random = Random::new(17);
    let refused: Prefix = "198.18.0.0/15".parse().expect("a prefix");
    let waypoints = [1, 2].map(|number| {
        let address = world::waypoint_address(Afi::Ipv4, number);
        let policy = Policy { narrow: true, refused: vec![refused], ..Policy::default() };
        Waypoint::new(address, world::keys_of(address), policy)
    });
    let (mut passed, mut forged) = (0, 0);
    for kernel in CpuKernel::available() {
        let mut verifier = Verifier::new(kernel, 8);
        for round in 0..cases(40) {
            let (blocks, kinds) = ([0, 1, 2, 5, 23][round as usize % 5], (1 << random.below(4), random.below(2) == 0));
            let count = LANES / 2 + 1 + random.below((BURST - LANES / 2) as u64) as usize;
            let to = world::destination_address(Afi::Ipv4);
            let sound: Vec<Vec<u8>> = (0..count as u32).map(|n| packet(&mut random, kinds, blocks, to, n)).collect();
            for place in 0..count {
                for wrong in WRONGS {
                    let mut datagrams: Vec<&[u8]> = sound.iter().map(Vec::as_slice).collect();
                    let mut bad = sound[place].clone();
                    spoil(&mut random, wrong, &mut bad);
                    datagrams[place] = &bad;
                    let mut found = [Verdict::default(); BURST];
                    verifier.verify(&waypoints, &datagrams, world::at(world::NOW), &mut found);
                    let expected = one_by_one(&waypoints, &bad, world::NOW);
                    assert_eq!(found[place], expected, "{kernel:?}, {wrong:?} at {place} of {count}: {bad:02x?}");
                    forged += u32::from(found[place] == Reason::Binding.into());
                    let is_other = |verdict: &Verdict| !matches!(verdict, Verdict::Forward(_));
                    let others = found[..count].iter().enumerate().filter(|(at, _)| *at != place);
                    assert!(!others.into_iter().any(|(_, verdict)| is_other(verdict)), "{kernel:?}, {wrong:?}");
                    passed += count - 1;
                }
            }
            // And what those that pass are rewritten to.
            let datagrams: Vec<&[u8]> = sound.iter().map(Vec::as_slice).collect();
            let mut found = [Verdict::default(); BURST];
            verifier.verify(&waypoints, &datagrams, world::at(world::NOW), &mut found);
            for (datagram, found) in datagrams.iter().zip(found) {
                assert_eq!(found, one_by_one(&waypoints, datagram, world::NOW), "{kernel:?}");
            }
        }
    }
    assert!(passed > 100_000 && forged > 1_000, "{passed} passed, {forged} forged");
}
