//! Waypoints with keys, principals with capabilities, hosts with packets.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use wayleave_core::{Afi, Prefix, UnixTime};
use wayleave_crypto::secret::Key128;
use wayleave_packet::platypus::header::{
    Capability, Carriage, Delegation, DelegationId, Interval, Marks, Packet, Principal, SubDelegation, Width,
};
use wayleave_packet::platypus::mint::{self, Hop, Nonce, Route, StampKey, WaypointKey, WaypointKeys, epoch};
use wayleave_packet::platypus::verify::{Arrival, Policy, Verdict, Waypoint};

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
    Waypoint::new(address, keys_of(address), Policy { narrow: true, peers: peers(), ..Policy::default() })
}

/// The networks of all waypoints here.
pub(crate) fn peers() -> Vec<Prefix> {
    let network = |afi, length| Prefix::truncated(waypoint_address(afi, 0), length).expect("within the family's bits");
    vec![network(Afi::Ipv4, 24), network(Afi::Ipv6, 64)]
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
        marks: Marks::default(),
        delegation: None,
        width: Width::Full,
    }
}

/// For packets from [`source_address`], which a capability for replies asks for.
pub(crate) fn hop(capability: Capability) -> Hop {
    let source = source_address(if capability.waypoint.is_ipv4() { Afi::Ipv4 } else { Afi::Ipv6 });
    let key: Option<StampKey> = keys_of(capability.waypoint).stamp_key_from(&capability, source);
    let key = key.expect("one key for ever");
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
    Packet::decode(datagram).expect("a sound packet")
}

/// What `here` makes of `datagram`, which came by IP: the packet it sends on, or the verdict.
pub(crate) fn process(here: &Waypoint, datagram: &[u8], now: u64) -> Result<Vec<u8>, Verdict> {
    process_from(here, datagram, Arrival::Ip, now)
}

/// The same for a packet that came as `arrival` says.
pub(crate) fn process_from(here: &Waypoint, datagram: &[u8], arrival: Arrival, now: u64) -> Result<Vec<u8>, Verdict> {
    let packet = Packet::decode(datagram)?;
    match here.verify(&packet, arrival, at(now)) {
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
        let length = if random.one_in(4) { afi.bits() } else { random.below(u64::from(afi.bits()) + 1) as u8 };
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
    let marks = if random.one_in(4) { Marks::BOUND } else { Marks::NONE };
    let is_of_host = delegation.is_some_and(|delegation: Delegation| delegation.prefix.len() == afi.bits());
    let marks = if is_of_host && !random.one_in(3) { marks.with_reply() } else { marks };
    Capability {
        waypoint: waypoint_address(afi, 1 + random.below(200) as u8),
        principal: principal(random.below(1 << 24) as u32),
        interval,
        epoch,
        marks,
        delegation,
        width: if random.one_in(4) { Width::Narrow } else { Width::Full },
    }
}

/// A random packet, stamped for one to eight waypoints, and their addresses in order.
pub(crate) fn random_packet(random: &mut Random, now: u64) -> (Vec<u8>, Vec<IpAddr>) {
    let afi = if random.one_in(2) { Afi::Ipv4 } else { Afi::Ipv6 };
    let count = 1 + random.below(8);
    let mut hops: Vec<Hop> = Vec::new();
    while (hops.len() as u64) < count {
        let capability = random_capability(random, afi, destination_address(afi), now);
        if hops.iter().filter(|hop| hop.capability.waypoint == capability.waypoint).count() < 2 {
            hops.push(hop(capability));
        }
    }
    let mut payload = vec![0; if random.one_in(50) { random.below(9_000) } else { random.below(200) } as usize];
    random.fill(&mut payload);
    let route = Route {
        hops: &hops,
        nonce: Nonce::new(at(now - 15 + random.below(30)), random.next() as u32),
        sealed: random.one_in(3),
        reply_option: if random.one_in(9) { &[1, 2, 0, 0, 9, 9, 9, 9] } else { &[] },
        carriage: if random.one_in(2) { Carriage::Udp } else { Carriage::Ip },
    };
    let datagram = stamp(&inner(afi, &payload), &route);
    (datagram, hops.iter().map(|hop| hop.capability.waypoint).collect())
}

/// One to three small changes; the IPv4 checksum is mended half of the time.
pub(crate) fn mutate(random: &mut Random, datagram: &[u8]) -> Vec<u8> {
    let mut out = datagram.to_vec();
    for _ in 0..=random.below(3) {
        // Headers are hit as often as everything else.
        let most = if random.one_in(2) { out.len().min(120) } else { out.len() };
        if most == 0 {
            break;
        }
        let at = random.below(most as u64) as usize;
        match random.below(8) {
            0..3 => out[at] ^= 1 << random.below(8),
            3 => out[at] = random.next() as u8,
            4 => out.truncate(at),
            5 => out.extend_from_within(at..),
            6 => {
                let to = random.below(most as u64) as usize;
                out.swap(at, to);
            }
            _ => out[at] = out[at].wrapping_add(1),
        }
    }
    if random.one_in(2) && out.len() >= 20 && out[0] >> 4 == 4 {
        write_checksum(&mut out);
    }
    out
}
