//! PLA-04: who holds a delegation reaches its prefix, and nothing else, at every prefix length.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use wayleave_core::{Afi, Prefix};
use wayleave_packet::platypus::header::Capability;
use wayleave_packet::platypus::mint::{DelegateError, DelegatedSecret, Hop, TemporalSecret};

use super::cases;
use super::random::Random;
use super::world::{self, NOW};

fn secret_of(capability: &Capability) -> TemporalSecret {
    let key = wayleave_crypto::secret::Key128::new(world::key_octets(capability.waypoint));
    wayleave_packet::platypus::mint::WaypointKey::new(&key).secret(
        capability.waypoint,
        capability.principal,
        capability.interval,
        capability.epoch,
    )
}

fn delegated(mut capability: Capability, held: &DelegatedSecret) -> Hop {
    capability.delegation = Some(held.delegation());
    Hop { capability, key: held.stamp_key() }
}

/// `address` with bit `i` (from the left, from 0 on) turned over.
fn flip(address: IpAddr, i: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => IpAddr::V4(Ipv4Addr::from(u32::from(v4) ^ 1 << (31 - i))),
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from(u128::from(v6) ^ 1 << (127 - i))),
    }
}

fn passes(hop: Hop, destination: IpAddr) -> bool {
    let source = world::source_address(if destination.is_ipv4() { Afi::Ipv4 } else { Afi::Ipv6 });
    let here = world::waypoint(hop.capability.waypoint);
    let datagram = world::stamp(&world::inner_to(source, destination, b"payload"), &world::route(&[hop]));
    world::process(&here, &datagram, NOW).is_ok()
}

#[test]
fn a_delegation_reaches_its_prefix_and_not_the_next_address_for_every_length() {
    for afi in [Afi::Ipv4, Afi::Ipv6] {
        let capability = world::capability(afi, 1);
        let destination = world::destination_address(afi);
        for length in 0..=afi.bits() {
            let prefix = Prefix::truncated(destination, length).expect("a length of the family");
            let held = secret_of(&capability).delegate(world::delegation_id(5), prefix).expect("of the family");
            assert!(passes(delegated(capability, &held), destination), "{prefix}");
            if length < afi.bits() {
                // The last bit is outside every longer prefix, and inside this one.
                assert!(passes(delegated(capability, &held), flip(destination, afi.bits() - 1)), "{prefix}");
            }
            if length > 8 {
                assert!(!passes(delegated(capability, &held), flip(destination, length - 1)), "{prefix}");
            }
        }
    }
}

/// Delegated in one step or in many, by the principal or by holders in between: one key.
#[test]
fn the_way_to_a_prefix_does_not_matter_but_the_numbers_on_it_do() {
    let mut random = Random::new(4);
    for _ in 0..cases(200) {
        let afi = if random.one_in(2) { Afi::Ipv4 } else { Afi::Ipv6 };
        let capability = world::capability(afi, 1);
        let destination = world::destination_address(afi);
        let prefix = |length| Prefix::truncated(destination, length).expect("a length of the family");
        let mut lengths: Vec<u8> = (0..3).map(|_| random.below(u64::from(afi.bits()) + 1) as u8).collect();
        lengths.sort_unstable();
        let secret = secret_of(&capability);
        let id = world::delegation_id(random.below(1 << 24) as u32);
        let direct = secret.delegate(id, prefix(lengths[2])).expect("of the family");
        let stepwise = secret.delegate(id, prefix(lengths[0])).expect("of the family");
        let stepwise = stepwise.narrow(prefix(lengths[1])).and_then(|held| held.narrow(prefix(lengths[2])));
        assert_eq!(stepwise.as_ref(), Ok(&direct));

        let handed_on = secret
            .delegate(id, prefix(lengths[0]))
            .and_then(|held| held.hand_on(world::delegation_id(77)))
            .and_then(|held| held.narrow(prefix(lengths[2])))
            .expect("it shrinks");
        assert_ne!(handed_on.stamp_key(), direct.stamp_key());
        assert!(passes(delegated(capability, &handed_on), destination));
        assert_eq!(handed_on.hand_on(world::delegation_id(78)), Err(DelegateError::HandedOnTwice));
        // Under another number, or the first holder's name, the same key is worth nothing.
        for sub in [None, Some(world::delegation_id(76))] {
            let mut hop = delegated(capability, &handed_on);
            let mut delegation = handed_on.delegation();
            delegation.sub = sub.and_then(|id| {
                delegation.sub.map(|mut held| {
                    held.id = id;
                    held
                })
            });
            hop.capability.delegation = Some(delegation);
            assert!(!passes(hop, destination));
        }
    }
}

#[test]
fn a_delegation_only_shrinks_and_stays_in_its_family() {
    let capability = world::capability(Afi::Ipv4, 1);
    let secret = secret_of(&capability);
    let prefix = |text: &str| text.parse::<Prefix>().expect("a prefix");
    let held = secret.delegate(world::delegation_id(1), prefix("203.0.112.0/22")).expect("of the family");
    for outside in ["203.0.112.0/21", "203.0.116.0/24", "0.0.0.0/0", "2001:db8::/32"] {
        assert!(matches!(held.narrow(prefix(outside)), Err(DelegateError::OutsidePrefix { .. })), "{outside}");
    }
    assert_eq!(secret.delegate(world::delegation_id(1), prefix("2001:db8::/32")), Err(DelegateError::Family));
}

/// A holder who claims a wider prefix, another prefix or no prefix at all has no key for it.
#[test]
fn a_holder_cannot_claim_what_was_not_delegated() {
    let capability = world::capability(Afi::Ipv4, 1);
    let destination = world::destination_address(Afi::Ipv4);
    let prefix = Prefix::truncated(destination, 24).expect("a length");
    let held = secret_of(&capability).delegate(world::delegation_id(1), prefix).expect("of the family");
    assert!(passes(delegated(capability, &held), destination));
    let mut claim = delegated(capability, &held);
    claim.capability.delegation = None;
    assert!(!passes(claim, destination));
    for length in 0..24 {
        let mut claim = delegated(capability, &held);
        let mut delegation = held.delegation();
        delegation.prefix = Prefix::truncated(destination, length).expect("a length");
        claim.capability.delegation = Some(delegation);
        assert!(!passes(claim, destination), "/{length}");
    }
}
