//! The IP header (and UDP header) around a Platypus packet.

use std::net::IpAddr;

use wayleave_core::Afi;

use super::Malformed;
use super::offsets::{self, PROTOCOL, UDP_PORT};

/// Octets of an IPv4 header without options.
pub const IPV4_HEADER: usize = 20;
/// Octets of an IPv6 header.
pub const IPV6_HEADER: usize = 40;
/// Octets of a UDP header.
pub const UDP_HEADER: usize = 8;

/// Offsets in an IPv4 header.
pub mod v4 {
    pub const VERSION_AND_LENGTH: usize = 0;
    pub const TOTAL_LENGTH: usize = 2;
    pub const IDENTIFICATION: usize = 4;
    pub const FRAGMENT: usize = 6;
    pub const TTL: usize = 8;
    pub const PROTOCOL: usize = 9;
    pub const CHECKSUM: usize = 10;
    pub const SOURCE: usize = 12;
    pub const DESTINATION: usize = 16;
    /// Every bit of the fragment field but "don't fragment".
    pub const FRAGMENTED: u16 = 0xbfff;
}

pub(crate) mod v6 {
    pub(crate) const PAYLOAD_LENGTH: usize = 4;
    pub(crate) const NEXT_HEADER: usize = 6;
    pub(crate) const HOP_LIMIT: usize = 7;
    pub(crate) const SOURCE: usize = 8;
    pub(crate) const DESTINATION: usize = 24;
    pub(crate) const FRAGMENT_HEADER: u8 = 44;
    /// Hop-by-hop, routing, authentication, destination options, mobility, HIP, shim6 (IANA's list of extension headers).
    pub(crate) const EXTENSIONS: [u8; 7] = [0, 43, 51, 60, 135, 139, 140];
}

pub(crate) mod udp {
    pub(crate) const DESTINATION_PORT: usize = 2;
    pub(crate) const LENGTH: usize = 4;
    pub(crate) const CHECKSUM: usize = 6;
    pub(crate) const PROTOCOL: u8 = 17;
}

/// What carries the Platypus header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Carriage {
    /// IP, protocol number [`PROTOCOL`].
    Ip,
    /// UDP to port [`UDP_PORT`].
    Udp,
    /// A socket that hides IP and UDP headers; the caller passes their fields.
    Socket,
}

/// What the headers in front of the Platypus header say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outer {
    /// Source address: the host that stamped the packet, or the waypoint that sent it on.
    pub source: IpAddr,
    /// Destination address: the waypoint of the current capability.
    pub destination: IpAddr,
    /// IPv4 time to live or IPv6 hop limit.
    pub ttl: u8,
    /// What carries the Platypus header.
    pub carriage: Carriage,
    /// Octets in front of the Platypus header.
    pub length: usize,
}

impl Outer {
    /// Reads the headers at the front of `octets` and cuts `octets` to the length that IP gives.
    pub fn decode(octets: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let first = *octets.first().ok_or(Malformed::Truncated { need: 1, have: 0 })?;
        let (mut outer, protocol, datagram) = match first >> 4 {
            4 => decode_ipv4(octets)?,
            6 => decode_ipv6(octets)?,
            _ => return Err(Malformed::NotIp),
        };
        match protocol {
            PROTOCOL => {}
            udp::PROTOCOL => {
                check_udp(&datagram[outer.length..])?;
                outer.length += UDP_HEADER;
                outer.carriage = Carriage::Udp;
            }
            _ => return Err(Malformed::NotPlatypus),
        }
        Ok((outer, datagram))
    }

    /// The family of the addresses.
    #[must_use]
    pub fn family(&self) -> Afi {
        super::capability::family(self.source)
    }
}

fn decode_ipv4(octets: &[u8]) -> Result<(Outer, u8, &[u8]), Malformed> {
    if octets.len() < IPV4_HEADER {
        return Err(Malformed::Truncated { need: IPV4_HEADER, have: octets.len() });
    }
    match octets[v4::VERSION_AND_LENGTH] & 0xf {
        5 => {}
        6.. => return Err(Malformed::Options),
        _ => return Err(Malformed::NotIp),
    }
    let total = usize::from(offsets::half(octets, v4::TOTAL_LENGTH));
    if total < IPV4_HEADER || total > octets.len() {
        return Err(Malformed::Truncated { need: total.max(IPV4_HEADER), have: octets.len() });
    }
    if offsets::half(octets, v4::FRAGMENT) & v4::FRAGMENTED != 0 {
        return Err(Malformed::Fragment);
    }
    if !octets.first_chunk().is_some_and(ipv4_header_is_right) {
        return Err(Malformed::Checksum);
    }
    let outer = Outer {
        source: offsets::address(octets, v4::SOURCE, Afi::Ipv4),
        destination: offsets::address(octets, v4::DESTINATION, Afi::Ipv4),
        ttl: octets[v4::TTL],
        carriage: Carriage::Ip,
        length: IPV4_HEADER,
    };
    Ok((outer, octets[v4::PROTOCOL], &octets[..total]))
}

fn decode_ipv6(octets: &[u8]) -> Result<(Outer, u8, &[u8]), Malformed> {
    if octets.len() < IPV6_HEADER {
        return Err(Malformed::Truncated { need: IPV6_HEADER, have: octets.len() });
    }
    let total = IPV6_HEADER + usize::from(offsets::half(octets, v6::PAYLOAD_LENGTH));
    if total > octets.len() {
        return Err(Malformed::Truncated { need: total, have: octets.len() });
    }
    let next = octets[v6::NEXT_HEADER];
    if next == v6::FRAGMENT_HEADER {
        return Err(Malformed::Fragment);
    }
    if v6::EXTENSIONS.contains(&next) {
        return Err(Malformed::Options);
    }
    let outer = Outer {
        source: offsets::address(octets, v6::SOURCE, Afi::Ipv6),
        destination: offsets::address(octets, v6::DESTINATION, Afi::Ipv6),
        ttl: octets[v6::HOP_LIMIT],
        carriage: Carriage::Ip,
        length: IPV6_HEADER,
    };
    Ok((outer, next, &octets[..total]))
}

/// The UDP checksum is not checked: the binding covers what it would, and a waypoint that rewrites sends zero
/// (RFC 6935).
fn check_udp(octets: &[u8]) -> Result<(), Malformed> {
    if octets.len() < UDP_HEADER {
        return Err(Malformed::Truncated { need: UDP_HEADER, have: octets.len() });
    }
    if offsets::half(octets, udp::DESTINATION_PORT) != UDP_PORT {
        return Err(Malformed::NotPlatypus);
    }
    let length = usize::from(offsets::half(octets, udp::LENGTH));
    if length != octets.len() {
        return Err(Malformed::Truncated { need: length, have: octets.len() });
    }
    Ok(())
}

/// The ones' complement sum of 16-bit words, folded (RFC 1071); an odd last octet is padded with zero.
pub(crate) fn ones_complement_sum(octets: &[u8]) -> u16 {
    let mut sum = 0u64;
    let mut pairs = octets.chunks_exact(2);
    for pair in &mut pairs {
        sum += u64::from(u16::from_be_bytes([pair[0], pair[1]]));
    }
    if let [last] = pairs.remainder() {
        sum += u64::from(*last) << 8;
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// The ones' complement sum over an IPv4 header of twenty octets, in this machine's byte order: the sum of swapped words is
/// the swapped sum (RFC 1071 section 2), and a correct header's sum is all ones either way.
#[inline(always)]
pub(crate) fn ipv4_header_sum(header: &[u8; IPV4_HEADER]) -> u16 {
    let (words, _) = header.as_chunks::<4>();
    fold_checksum(words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum())
}

/// Whether the checksum of an IPv4 header of twenty octets is correct. Ones' complement counts modulo 0xffff, so the sum of
/// all words, if they are not all zero, is then a multiple of it.
#[inline(always)]
fn ipv4_header_is_right(header: &[u8; IPV4_HEADER]) -> bool {
    let (words, _) = header.as_chunks::<4>();
    let sum: u64 = words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum();
    sum != 0 && sum.is_multiple_of(0xffff)
}

/// The ones' complement sum of sixteen bits of what `sum` is the sum of, at most 65,536 words of 32 bits.
#[inline(always)]
#[must_use]
pub fn fold_checksum(sum: u64) -> u16 {
    // Adding a word to itself with its halves swapped leaves the end-around carry in the upper half.
    let sum = (sum.wrapping_add(sum.rotate_left(32)) >> 32) as u32;
    (sum.wrapping_add(sum.rotate_left(16)) >> 16) as u16
}

/// Writes the checksum of the IPv4 header at the front of `octets`.
#[inline]
pub(crate) fn write_ipv4_checksum(octets: &mut [u8]) {
    let Some(header) = octets.first_chunk_mut() else { return };
    header[v4::CHECKSUM..v4::CHECKSUM + 2].fill(0);
    let checksum = !ipv4_header_sum(header);
    header[v4::CHECKSUM..v4::CHECKSUM + 2].copy_from_slice(&checksum.to_ne_bytes());
}

/// Writes TTL, addresses and checksum of the IPv4 header at the front of `octets`. The new header is built in a copy and
/// written once: reading words back that were just written in parts would stall the processor.
#[inline(always)]
pub(crate) fn rewrite_ipv4(octets: &mut [u8], ttl: u8, source: [u8; 4], destination: [u8; 4]) {
    let Some(header) = octets.first_chunk_mut::<IPV4_HEADER>() else { return };
    let mut new = *header;
    new[v4::TTL] = ttl;
    new[v4::CHECKSUM..v4::CHECKSUM + 2].fill(0);
    new[v4::SOURCE..v4::DESTINATION].copy_from_slice(&source);
    new[v4::DESTINATION..].copy_from_slice(&destination);
    let checksum = !ipv4_header_sum(&new);
    new[v4::CHECKSUM..v4::CHECKSUM + 2].copy_from_slice(&checksum.to_ne_bytes());
    header[v4::TTL..].copy_from_slice(&new[v4::TTL..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_sixteen_bit_words() {
        let plain = |sum: u64| {
            let mut sum = u128::from(sum);
            while sum > 0xffff {
                sum = (sum & 0xffff) + (sum >> 16);
            }
            sum as u16
        };
        for base in [0, 1 << 16, 0xffff, 7 * 0xffff, 1 << 32, 0xffff_ffff, 5 << 32, u64::MAX] {
            (0..70_000).for_each(|less| {
                let sum = base.wrapping_sub(less);
                assert_eq!(fold_checksum(sum), plain(sum), "{sum:x}");
            });
        }
        let mut state = 1u64;
        for _ in 0..100_000 {
            let mut header = [0u8; IPV4_HEADER];
            for half in header.as_chunks_mut::<4>().0 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                *half = ((state >> 33) as u32).to_be_bytes();
            }
            assert_eq!(ipv4_header_is_right(&header), ones_complement_sum(&header) == 0xffff);
            write_ipv4_checksum(&mut header);
            assert!(ipv4_header_is_right(&header) && ones_complement_sum(&header) == 0xffff);
        }
        assert!(!ipv4_header_is_right(&[0; IPV4_HEADER]));
        assert!(ipv4_header_is_right(&[0xff; IPV4_HEADER]));
    }
}
