//! ICMP errors go to the original source, quote what it sent, and are no longer than what provoked them.
//!
//! PLA-12: errors about invalid packets: none is longer than its cause, nor sent to a martian.
//! PLA-14: an error of a router with a smaller MTU behind a waypoint: relayed to the source, with the MTU less the
//! stamps.

use std::net::IpAddr;

use wayleave_core::Afi;
use wayleave_packet::platypus::header::Carriage;
use wayleave_packet::platypus::mint::{Hop, Route};
use wayleave_packet::platypus::verify::{IcmpError, icmp};

use super::world::{self, NOW};

fn relay(datagram: &[u8], here: IpAddr) -> Option<Vec<u8>> {
    icmp::quoted(datagram, here)?.relayed()
}

fn ones_complement_is_right(octets: &[u8]) -> bool {
    let mut sum: u64 =
        octets.chunks(2).map(|pair| u64::from(pair[0]) << 8 | pair.get(1).map_or(0, |b| u64::from(*b))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum == 0xffff
}

fn check_checksums(error: &[u8]) {
    if error[0] >> 4 == 4 {
        assert!(ones_complement_is_right(&error[..20]) && ones_complement_is_right(&error[20..]));
    } else {
        let mut summed = error[8..40].to_vec();
        summed.extend(((error.len() - 40) as u32).to_be_bytes());
        summed.extend([0, 0, 0, 58]);
        summed.extend_from_slice(&error[40..]);
        assert!(ones_complement_is_right(&summed));
    }
}

fn header_length(afi: Afi) -> usize {
    if afi == Afi::Ipv4 { 20 } else { 40 }
}

/// Where the error goes, its type and code, and the quotation.
fn parts(error: &[u8], afi: Afi) -> (Vec<u8>, (u8, u8), &[u8]) {
    check_checksums(error);
    let ip = header_length(afi);
    let to = if afi == Afi::Ipv4 { &error[16..20] } else { &error[24..40] };
    (to.to_vec(), (error[ip], error[ip + 1]), &error[ip + 8..])
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

#[test]
fn a_waypoints_error_quotes_the_packet_as_the_source_sent_it() {
    for (afi, time_exceeded, prohibited) in [(Afi::Ipv4, (11, 0), (3, 13)), (Afi::Ipv6, (3, 0), (1, 1))] {
        for carriage in [Carriage::Ip, Carriage::Udp] {
            let hops = [world::hop(world::capability(afi, 1))];
            let inner = world::inner(afi, b"the first octets of a payload, and more");
            let datagram = world::stamp(&inner, &Route { carriage, ..world::route(&hops) });
            let packet = world::decode(&datagram);
            let here = hops[0].capability.waypoint;
            for (error, code) in [(IcmpError::TimeExceeded, time_exceeded), (IcmpError::Prohibited, prohibited)] {
                let answer = icmp::error(&packet, error, here).expect("there is room");
                assert!(answer.len() <= datagram.len());
                let (to, found, quoted) = parts(&answer, afi);
                assert_eq!((to, found), (octets(world::source_address(afi)), code));
                assert_eq!(quoted, &inner[..quoted.len()]);
                assert!(quoted.len() >= header_length(afi) + 8);
            }
        }
    }
}

#[test]
fn no_error_is_longer_than_its_cause_nor_sent_to_a_martian() {
    let hops = [world::hop(world::capability(Afi::Ipv4, 1))];
    let here = hops[0].capability.waypoint;
    for length in 0..2_000 {
        let datagram = world::stamp(&world::inner(Afi::Ipv4, &vec![1; length]), &world::route(&hops));
        let answer = icmp::error(&world::decode(&datagram), IcmpError::Prohibited, here).expect("48 octets are added");
        assert!(answer.len() <= datagram.len().min(576));
    }
    let to_all = world::inner_to("224.0.0.1".parse().expect("an address"), world::destination_address(Afi::Ipv4), b"p");
    let datagram = world::stamp(&to_all, &world::route(&hops));
    assert_eq!(icmp::error(&world::decode(&datagram), IcmpError::Prohibited, here), None);
}

/// A router behind the waypoint found the packet too big: the source learns a size that leaves room for our header.
#[test]
fn an_ordinary_routers_error_is_relayed_to_the_original_source() {
    for afi in [Afi::Ipv4, Afi::Ipv6] {
        for carriage in [Carriage::Ip, Carriage::Udp] {
            let hops: Vec<Hop> = (1..=2).map(|n| world::hop(world::capability(afi, n))).collect();
            let inner = world::inner(afi, &[0x5a; 700]);
            let stamped = world::stamp(&inner, &Route { carriage, ..world::route(&hops) });
            let here = world::waypoint(hops[0].capability.waypoint);
            let sent = world::process(&here, &stamped, NOW).expect("it passes");
            let router = world::waypoint_address(afi, 200);
            let (mtu, kind): (u32, [u8; 2]) = (1_000, if afi == Afi::Ipv4 { [3, 4] } else { [2, 0] });
            let added = (sent.len() - inner.len()) as u32;
            for quoted in [28, 60, 400, sent.len()] {
                let mut icmp = vec![kind[0], kind[1], 0, 0];
                icmp.extend(mtu.to_be_bytes());
                icmp.extend_from_slice(&sent[..quoted]);
                let mut error = world::inner_to(router, here.address(), &icmp);
                error[if afi == Afi::Ipv4 { 9 } else { 6 }] = if afi == Afi::Ipv4 { 1 } else { 58 };
                let relayed = relay(&error, here.address());
                let address = if afi == Afi::Ipv4 { 4 } else { 16 };
                let needs = header_length(afi) + if carriage == Carriage::Udp { 8 } else { 0 } + 4 + address;
                if quoted < needs {
                    assert_eq!(relayed, None, "{quoted} of {needs}");
                    continue;
                }
                let relayed = relayed.expect("it quotes the original source");
                assert!(relayed.len() <= error.len());
                let (to, code, quote) = parts(&relayed, afi);
                assert_eq!((to, code), (octets(world::source_address(afi)), kind.into()));
                let at = header_length(afi) + 4;
                let reported = u32::from_be_bytes(relayed[at..at + 4].try_into().expect("four octets"));
                assert_eq!(reported, mtu - added);
                if quoted >= 400 {
                    // But for the hops that it had to live, it is what the source sent.
                    let mut expected = inner.clone();
                    expected[if afi == Afi::Ipv4 { 8 } else { 7 }] -= 1;
                    if afi == Afi::Ipv4 {
                        world::write_checksum(&mut expected);
                    }
                    assert_eq!(quote, &expected[..quote.len()]);
                }
            }
        }
    }
}

#[test]
fn what_is_no_error_about_our_packets_is_not_relayed() {
    let hops = [world::hop(world::capability(Afi::Ipv4, 1))];
    let here = world::waypoint(hops[0].capability.waypoint);
    let stamped = world::stamp(&world::inner(Afi::Ipv4, b"payload"), &world::route(&hops));
    let sent = world::process(&here, &stamped, NOW).expect("it passes");
    let error = |kind: u8, quoted: &[u8]| {
        let mut icmp = vec![kind, 0, 0, 0, 0, 0, 0, 0];
        icmp.extend_from_slice(quoted);
        let mut error = world::inner_to(world::waypoint_address(Afi::Ipv4, 200), here.address(), &icmp);
        error[9] = 1;
        error
    };
    assert!(relay(&error(11, &sent), here.address()).is_some());
    // An echo, an answer, a redirect; somebody else's packet; not to us.
    for kind in [0, 5, 8] {
        assert_eq!(relay(&error(kind, &sent), here.address()), None);
    }
    assert_eq!(relay(&error(11, &stamped), here.address()), None);
    assert_eq!(relay(&error(11, &sent), world::waypoint_address(Afi::Ipv4, 9)), None);
    for length in 0..error(11, &sent).len() {
        assert_eq!(relay(&error(11, &sent)[..length], here.address()), None);
    }
}
