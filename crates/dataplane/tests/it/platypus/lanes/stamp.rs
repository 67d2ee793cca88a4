//! The stamper's vector path compared with the plain mint.

use wayleave_core::Afi;
use wayleave_crypto::lanes::{BURST, CpuKernel};
use wayleave_dataplane::stamper::lanes::{BurstStamper, PreparedCapability, StampInput};
use wayleave_packet::platypus::mint::{self, Hop, Route};

use super::random::Random;
use super::world::NOW;
use super::{cases, world};

/// In place and in lanes, on every kernel, next to packets that cannot be stamped.
#[test]
fn a_burst_is_stamped_as_its_packets_one_by_one() {
    let mut random = Random::new(5);
    for kernel in CpuKernel::available() {
        for _ in 0..cases(100) {
            let count = random.below(BURST as u64 + 1) as usize;
            // Half of the time payloads are of as many blocks each, and all can be stamped.
            let blocks = random.one_in(2).then(|| 16 * random.below(19));
            let inners: Vec<Vec<u8>> = (0..count)
                .map(|_| {
                    let length = match blocks {
                        Some(octets) => octets.saturating_sub(random.below(16)),
                        None => random.below(300),
                    };
                    let mut payload = vec![0; length as usize];
                    random.fill(&mut payload);
                    let mut inner = world::inner(Afi::Ipv4, &payload);
                    if blocks.is_none() && random.one_in(8) {
                        let at = random.below(inner.len() as u64) as usize;
                        inner[at] ^= 1 << random.below(8);
                    }
                    inner
                })
                .collect();
            let destination = world::destination_address(Afi::Ipv4);
            let hops: Vec<Hop> = (0..count)
                .map(|_| world::hop(world::random_capability(&mut random, Afi::Ipv4, destination, NOW)))
                .collect();
            let ready: Vec<PreparedCapability> =
                hops.iter().map(|hop| PreparedCapability::new(hop).expect("of IPv4")).collect();
            let mut buffers: Vec<Vec<u8>> = inners.iter().map(|inner| [&[0; 64][..], inner].concat()).collect();
            let mut packets: Vec<StampInput<'_>> = buffers
                .iter_mut()
                .zip(&ready)
                .zip(0..)
                .map(|((buffer, capability), counter)| StampInput {
                    buffer,
                    begin: 64,
                    capability,
                    nonce: world::nonce(counter),
                })
                .collect();
            let mut outcomes = [const { Ok(0) }; BURST];
            BurstStamper::new(kernel).stamp(&mut packets, &mut outcomes);
            for (counter, ((inner, hop), outcome)) in (0..).zip(inners.iter().zip(&hops).zip(outcomes)) {
                let hops = std::slice::from_ref(hop);
                let route = Route { nonce: world::nonce(counter), ..world::route(hops) };
                let mut expected = Vec::new();
                let one_by_one = mint::encapsulate(inner, &route, &mut expected);
                let buffer = &buffers[counter as usize];
                match (one_by_one, outcome) {
                    (Ok(()), Ok(begin)) => assert_eq!(buffer[begin..][..expected.len()], expected),
                    (Err(_), Err(_)) => assert_eq!(buffer[64..], inner[..]),
                    (one_by_one, outcome) => panic!("{one_by_one:?}, {outcome:?}: {inner:02x?}"),
                }
            }
        }
    }
}
