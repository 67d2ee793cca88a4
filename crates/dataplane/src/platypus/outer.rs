//! What routing needs to know of a packet's outer IP header.

use std::net::{IpAddr, Ipv4Addr};

use wayleave_packet::platypus::header::IPV4_HEADER;

/// ICMP errors that another router may send about a packet that a waypoint sent on (RFC 792): destination unreachable, time
/// exceeded, parameter problem.
const ICMP_ERRORS: [u8; 3] = [3, 11, 12];

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

/// Whether an ICMP packet in IPv4 without options is an error of another router.
#[must_use]
pub fn is_icmp_error(octets: &[u8]) -> bool {
    octets.get(IPV4_HEADER).is_some_and(|kind| ICMP_ERRORS.contains(kind))
}
