//! Waypoints with keys, principals with capabilities, hosts with packets.

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use wayleave_core::{Afi, Prefix, UnixTime};
use wayleave_crypto::lanes::{CpuKernel, LANES};
use wayleave_crypto::secret::Key128;
use wayleave_packet::platypus::burst::Verifier;
use wayleave_packet::platypus::header::{
    Capability, Carriage, Delegation, DelegationId, Interval, Packet, Principal, SubDelegation, Version, Width,
};
use wayleave_packet::platypus::mint::{self, Hop, Nonce, Route, StampKey, WaypointKey, WaypointKeys, epoch};
use wayleave_packet::platypus::verify::{Policy, Reason, Verdict, Waypoint};

use super::random::Random;

/// 2026-11-21 06:00 UTC.
pub(crate) const NOW: u64 = 1_795_240_800;

pub(crate) fn at(secs: u64) -> UnixTime {
    UnixTime(secs * 1_000_000)
}

pub(crate) fn waypoint_address(afi: Afi, number: u8) -> IpAddr {
    match afi {
        Afi::Ipv4 => IpAddr::V4(Ipv4Addr::new(198, 51, 100, number)),
        Afi::Ipv6 => IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, u16::from(number))),
    }
}

pub(crate) fn source_address(afi: Afi) -> IpAddr {
    match afi {
        Afi::Ipv4 => IpAddr::V4(Ipv4Addr::new(192, 0, 2, 77)),
        Afi::Ipv6 => IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 2, 0, 0, 0, 0, 77)),
    }
}

pub(crate) fn destination_address(afi: Afi) -> IpAddr {
    match afi {
        Afi::Ipv4 => IpAddr::V4(Ipv4Addr::new(203, 0, 113, 9)),
        Afi::Ipv6 => IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 3, 0, 0, 0, 0, 9)),
    }
}

/// The octets of the key of a waypoint.
pub(crate) fn key_octets(address: IpAddr) -> [u8; 16] {
    let mut key = *b"key of waypoint.";
    match address {
        IpAddr::V4(v4) => key[12..].copy_from_slice(&v4.octets()),
        IpAddr::V6(v6) => key.copy_from_slice(&v6.octets()),
    }
    key
}

pub(crate) fn keys_of(address: IpAddr) -> WaypointKeys {
    WaypointKeys::new(WaypointKey::new(&Key128::new(key_octets(address))))
}

pub(crate) fn waypoint(address: IpAddr) -> Waypoint {
    Waypoint::new(address, keys_of(address), Policy { narrow: true, ..Policy::default() })
}

pub(crate) fn principal(number: u32) -> Principal {
    Principal::new(number).expect("24 bits")
}

pub(crate) fn delegation_id(number: u32) -> DelegationId {
    DelegationId::new(number).expect("24 bits")
}

pub(crate) fn interval(n: u8) -> Interval {
    Interval::new(n).expect("in range")
}

/// A capability of the current epoch for waypoint `number`, without a delegation.
pub(crate) fn capability(afi: Afi, number: u8) -> Capability {
    let interval = interval(12);
    Capability {
        waypoint: waypoint_address(afi, number),
        principal: principal(7_000),
        interval,
        epoch: epoch::epoch_at(interval, at(NOW)),
        delegation: None,
        width: Width::Full,
    }
}

pub(crate) fn hop(capability: Capability) -> Hop {
    let key: StampKey = keys_of(capability.waypoint).stamp_key(&capability).expect("one key for ever");
    Hop { capability, key }
}

pub(crate) fn nonce(counter: u32) -> Nonce {
    Nonce::new(at(NOW), counter)
}

pub(crate) fn route(hops: &[Hop]) -> Route<'_> {
    Route { hops, nonce: nonce(1), sealed: false, reply_option: &[], carriage: Carriage::Ip }
}

/// An IP packet from the source to the destination, of protocol 6.
pub(crate) fn inner(afi: Afi, payload: &[u8]) -> Vec<u8> {
    inner_to(source_address(afi), destination_address(afi), payload)
}

pub(crate) fn inner_to(source: IpAddr, destination: IpAddr, payload: &[u8]) -> Vec<u8> {
    let mut packet = match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let mut header = vec![0x45, 0, 0, 0, 0x12, 0x34, 0x40, 0, 0x33, 6, 0, 0];
            let length = u16::try_from(20 + payload.len()).expect("fits an IPv4 packet");
            header[2..4].copy_from_slice(&length.to_be_bytes());
            header.extend(source.octets());
            header.extend(destination.octets());
            write_checksum(&mut header);
            header
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let mut header = vec![0x60, 0, 0, 0, 0, 0, 6, 0x33];
            let length = u16::try_from(payload.len()).expect("fits an IPv6 packet");
            header[4..6].copy_from_slice(&length.to_be_bytes());
            header.extend(source.octets());
            header.extend(destination.octets());
            header
        }
        _ => panic!("one family"),
    };
    packet.extend_from_slice(payload);
    packet
}

/// RFC 1071 over an IPv4 header of twenty octets.
pub(crate) fn write_checksum(header: &mut [u8]) {
    header[10..12].fill(0);
    let mut sum: u32 = header[..20].chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    header[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}

pub(crate) fn stamp(inner: &[u8], route: &Route<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    mint::encapsulate(inner, route, &mut out).expect("a sound route");
    out
}

pub(crate) fn decode(datagram: &[u8]) -> Packet<'_> {
    Packet::decode(datagram, Version::Standard).expect("a sound packet")
}

/// What `here` makes of `datagram`: the packet it sends on, or the verdict. It is the same by itself and beside its likes.
pub(crate) fn process(here: &Waypoint, datagram: &[u8], now: u64) -> Result<Vec<u8>, Verdict> {
    process_beside(here, datagram, now, true)
}

/// The same, with or without its likes.
pub(crate) fn process_beside(here: &Waypoint, datagram: &[u8], now: u64, has_likes: bool) -> Result<Vec<u8>, Verdict> {
    thread_local! {
        static VERIFIER: RefCell<Verifier> = RefCell::new(Verifier::new(CpuKernel::best(), 1));
    }
    // By itself, and as often as it takes for packets to be decided beside each other.
    let mut in_a_burst = [Verdict::default(); LANES];
    let mut by_itself = [Verdict::default()];
    VERIFIER.with_borrow_mut(|verifier| {
        for verdicts in [&mut by_itself[..], &mut in_a_burst].into_iter().take(1 + usize::from(has_likes)) {
            verifier.forget();
            verifier.verify(std::slice::from_ref(here), &[datagram; LANES][..verdicts.len()], at(now), verdicts);
        }
    });
    let packet = Packet::decode(datagram, Version::Standard).map_err(Verdict::from);
    let alone = packet.as_ref().map_or_else(|refused| *refused, |packet| here.verify(packet, at(now)));
    // A burst's packets are for several waypoints: one for none of them is looked at no further.
    let is_for_another = packet.as_ref().is_ok_and(|packet| packet.outer().destination != here.address());
    let expected = if is_for_another { Reason::NotForUs.into() } else { alone };
    assert_eq!(by_itself[0], expected, "{datagram:02x?}");
    assert!(!has_likes || in_a_burst.iter().all(|found| *found == expected), "{datagram:02x?}");
    let packet = packet?;
    match alone {
        Verdict::Forward(forward) => {
            let mut out = packet.datagram().to_vec();
            forward.apply(&mut out);
            Ok(out)
        }
        other => Err(other),
    }
}

/// A random capability for a destination: mostly sound and current.
pub(crate) fn random_capability(random: &mut Random, afi: Afi, destination: IpAddr, now: u64) -> Capability {
    let interval = interval(4 + random.below(21) as u8);
    let current = epoch::epoch_at(interval, at(now));
    let epoch = match random.below(40) {
        0 => current + 2,
        1 => current - 2,
        2..8 => current + 1,
        8..14 => current - 1,
        _ => current,
    };
    let delegation = random.one_in(3).then(|| {
        let length = random.below(u64::from(afi.bits()) + 1) as u8;
        let sub = random.one_in(2).then(|| SubDelegation {
            at: random.below(u64::from(length) + 1) as u8,
            id: delegation_id(random.below(1 << 24) as u32),
        });
        let inside = if random.one_in(20) { source_address(afi) } else { destination };
        Delegation {
            prefix: Prefix::truncated(inside, length).expect("within the family's bits"),
            id: delegation_id(random.below(1 << 24) as u32),
            sub,
        }
    });
    Capability {
        waypoint: waypoint_address(afi, 1 + random.below(200) as u8),
        principal: principal(random.below(1 << 24) as u32),
        interval,
        epoch,
        delegation,
        width: if random.one_in(4) { Width::Narrow } else { Width::Full },
    }
}
