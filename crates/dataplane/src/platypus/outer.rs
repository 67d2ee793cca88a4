//! What routing needs to know of a packet's outer IP header.

use std::net::{IpAddr, Ipv4Addr};

use wayleave_packet::platypus::header::{IPV4_HEADER, IPV6_HEADER};

/// ICMP errors that another router may send about a packet that a waypoint sent on (RFC 792): destination unreachable, time
/// exceeded, parameter problem.
const ICMP_ERRORS: [u8; 3] = [3, 11, 12];
/// The same of ICMPv6: types up to here (RFC 4443 section 2.1).
const ICMPV6_ERRORS: u8 = 127;

/// Returns the destination of an IP packet.
#[must_use]
pub fn destination(octets: &[u8]) -> Option<IpAddr> {
    address(octets, 16, 24)
}

/// Returns the source of an IP packet.
#[must_use]
pub fn source(octets: &[u8]) -> Option<IpAddr> {
    address(octets, 12, 8)
}

/// The address at the one offset in an IPv4 header, and at the other in an IPv6 header.
#[inline]
fn address(octets: &[u8], in_ipv4: usize, in_ipv6: usize) -> Option<IpAddr> {
    match octets.first()? >> 4 {
        4 => Some(IpAddr::V4(Ipv4Addr::from(*octets.get(in_ipv4..)?.first_chunk::<4>()?))),
        6 => Some(IpAddr::from(*octets.get(in_ipv6..)?.first_chunk::<16>()?)),
        _ => None,
    }
}

/// Whether an ICMP packet, in IPv4 without options or directly behind the IPv6 header, is an error of another router.
#[must_use]
pub fn is_icmp_error(octets: &[u8]) -> bool {
    match octets.first().map(|first| first >> 4) {
        Some(6) => octets.get(IPV6_HEADER).is_some_and(|kind| *kind <= ICMPV6_ERRORS),
        _ => octets.get(IPV4_HEADER).is_some_and(|kind| ICMP_ERRORS.contains(kind)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_both_families_are_told_from_other_messages() {
        let of = |first: u8, header: usize, kind: u8| {
            let mut octets = vec![0; header + 8];
            (octets[0], octets[header]) = (first, kind);
            is_icmp_error(&octets)
        };
        assert!([3, 11, 12].iter().all(|kind| of(0x45, IPV4_HEADER, *kind)));
        assert!([0, 5, 8, 128].iter().all(|kind| !of(0x45, IPV4_HEADER, *kind)));
        assert!([1, 2, 3, 4].iter().all(|kind| of(0x60, IPV6_HEADER, *kind)));
        // Echo, neighbour discovery.
        assert!([128, 129, 133, 135, 136].iter().all(|kind| !of(0x60, IPV6_HEADER, *kind)));
        assert!(!is_icmp_error(&[0x60; IPV6_HEADER]) && !is_icmp_error(&[]));
    }
}
