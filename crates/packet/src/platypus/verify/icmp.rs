//! ICMP errors to the original source: a waypoint's own, and those of ordinary routers, which reach the waypoint because
//! its address is the outer source (paper, section 5.4). None is longer than what provoked it.

use std::net::IpAddr;

use wayleave_core::Afi;

use super::super::header::offsets::{self, MAX_CAPABILITIES, PROTOCOL, UDP_PORT, WORD};
use super::super::header::{
    Carriage, IPV4_HEADER, IPV6_HEADER, Packet, UDP_HEADER, family, lengths, ones_complement_sum, udp, v4, v6,
    write_ipv4_checksum,
};
use super::IcmpError;
use super::martian::is_martian;

/// Octets of an ICMP header.
const ICMP_HEADER: usize = 8;
/// Octets of the payload that a quotation needs, so that the source finds its connection (RFC 792).
const QUOTED_PAYLOAD: usize = 8;
/// Longest ICMPv4 error (RFC 1812 section 4.3.2.3) and ICMPv6 error (RFC 4443 section 2.4).
const LONGEST: [usize; 2] = [576, 1280];
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
const TTL: u8 = 64;

mod type4 {
    pub(super) const UNREACHABLE: u8 = 3;
    pub(super) const TIME_EXCEEDED: u8 = 11;
    pub(super) const PARAMETER_PROBLEM: u8 = 12;
    pub(super) const TOO_BIG_CODE: u8 = 4;
    pub(super) const PROHIBITED_CODE: u8 = 13;
}

mod type6 {
    pub(super) const UNREACHABLE: u8 = 1;
    pub(super) const TOO_BIG: u8 = 2;
    pub(super) const TIME_EXCEEDED: u8 = 3;
    pub(super) const PARAMETER_PROBLEM: u8 = 4;
    pub(super) const PROHIBITED_CODE: u8 = 1;
}

/// The error about a refused packet, from the waypoint at `here` to the original source. It quotes the packet as that
/// source sent it. `None` if the source is a martian or the error would be longer than the packet.
#[must_use]
pub fn error(packet: &Packet<'_>, error: IcmpError, here: IpAddr) -> Option<Vec<u8>> {
    let afi = packet.family();
    if packet.outer().carriage == Carriage::Socket || is_martian(packet.original_source()) || family(here) != afi {
        return None;
    }
    let ip = &packet.datagram()[..ip_header(afi)];
    let quote = Quote {
        ip,
        source: packet.original_source(),
        destination: packet.final_destination(),
        protocol: packet.inner_protocol(),
        payload: packet.payload(),
        payload_length: packet.payload().len(),
    };
    let (kind, code) = match (afi, error) {
        (Afi::Ipv4, IcmpError::TimeExceeded) => (type4::TIME_EXCEEDED, 0),
        (Afi::Ipv4, IcmpError::Prohibited) => (type4::UNREACHABLE, type4::PROHIBITED_CODE),
        (Afi::Ipv6, IcmpError::TimeExceeded) => (type6::TIME_EXCEEDED, 0),
        (Afi::Ipv6, IcmpError::Prohibited) => (type6::UNREACHABLE, type6::PROHIBITED_CODE),
    };
    write(here, [kind, code, 0, 0, 0, 0, 0, 0], &quote, packet.datagram().len())
}

/// An ICMP error that an ordinary router sent to a waypoint, about a packet that the waypoint is said to have sent on. Nothing
/// shows yet that it did: anybody may send such an error.
#[derive(Clone, Copy, Debug)]
pub struct QuotedError<'a> {
    /// Octets of the whole error.
    length: usize,
    here: IpAddr,
    icmp: [u8; ICMP_HEADER],
    /// What the error quotes, from its IP header on.
    quoted: &'a [u8],
    /// What it quotes of the Platypus header and what follows; at least up to the original source.
    behind: &'a [u8],
    source: IpAddr,
}

/// Reads an ICMP error to the waypoint at `here` about a Platypus packet from there. `None` if it is no such error, or does
/// not quote the original source.
#[must_use]
pub fn quoted(datagram: &[u8], here: IpAddr) -> Option<QuotedError<'_>> {
    let afi = family(here);
    let length = ip_header(afi);
    let (header, rest) = datagram.split_at_checked(length)?;
    let (total, protocol, destination) = fields(header, afi)?;
    if protocol != icmp_protocol(afi) || destination != here || total != datagram.len() {
        return None;
    }
    let (&icmp, quoted) = rest.split_first_chunk::<ICMP_HEADER>()?;
    if !is_relayed(icmp[0], afi) {
        return None;
    }
    let (quoted_ip, mut behind) = quoted.split_at_checked(length)?;
    let (_, quoted_protocol, _) = fields(quoted_ip, afi)?;
    let source_at = if afi == Afi::Ipv4 { v4::SOURCE } else { v6::SOURCE };
    if offsets::address(quoted_ip, source_at, afi) != here {
        return None;
    }
    if quoted_protocol == udp::PROTOCOL {
        let (udp_header, platypus) = behind.split_at_checked(UDP_HEADER)?;
        if offsets::half(udp_header, udp::DESTINATION_PORT) != UDP_PORT {
            return None;
        }
        behind = platypus;
    } else if quoted_protocol != PROTOCOL {
        return None;
    }
    let table = offsets::of(afi);
    if behind.len() < table.destination {
        return None;
    }
    let source = offsets::address(behind, offsets::SOURCE, afi);
    if is_martian(source) {
        return None;
    }
    Some(QuotedError { length: datagram.len(), here, icmp, quoted, behind, source })
}

impl<'a> QuotedError<'a> {
    /// What [`Forward::fingerprint`](super::Forward::fingerprint) gave when the waypoint sent the packet on: its nonce, and the
    /// first half of the binding of the capability that the pointer has just passed, which is this waypoint's. Nobody can
    /// guess it who has not seen the packet. `None` if the quote ends before that. Its source is not among them.
    #[must_use]
    pub fn fingerprint(&self) -> Option<[u8; 16]> {
        let table = offsets::of(family(self.here));
        let at = self.passed()?;
        let (bare, _) = lengths(self.behind[at + table.capability.kind], table).ok()?;
        let mut out = [0; 16];
        out[..8].copy_from_slice(&self.behind[table.nonce..table.nonce + 8]);
        out[8..].copy_from_slice(self.behind.get(at + bare..at + bare + 8)?);
        Some(out)
    }

    /// Where the capability begins that the pointer has just passed, which is this waypoint's.
    fn passed(&self) -> Option<usize> {
        let table = offsets::of(family(self.here));
        let pointer = table.capabilities + usize::from(*self.behind.get(offsets::POINTER)?) * WORD;
        let mut at = table.capabilities;
        for _ in 0..MAX_CAPABILITIES {
            let (_, whole) = lengths(*self.behind.get(at + table.capability.kind)?, table).ok()?;
            if at + whole == pointer {
                let is_ours = offsets::address(self.behind, at, table.family) == self.here;
                return is_ours.then_some(at);
            }
            at += whole;
        }
        None
    }

    /// What [`Forward::original_source`](super::Forward::original_source) gave, if the quotation is right.
    #[must_use]
    pub fn origin(&self) -> [u8; 16] {
        let mut out = [0; 16];
        let size = if family(self.here) == Afi::Ipv6 { 16 } else { 4 };
        out[..size].copy_from_slice(&self.behind[offsets::SOURCE..offsets::SOURCE + size]);
        out
    }

    /// The packet, if the error quotes the whole of it.
    #[must_use]
    pub fn packet(&self) -> Option<Packet<'a>> {
        Packet::decode(self.quoted).ok()
    }

    /// The error for the original source, which is no longer than this one. `None` if that would say nothing.
    #[must_use]
    pub fn relayed(&self) -> Option<Vec<u8>> {
        relay(self)
    }
}

/// Translates an error into one for the original source, with the quotation undone as far as it goes.
fn relay(error: &QuotedError<'_>) -> Option<Vec<u8>> {
    let QuotedError { here, icmp, quoted, behind, source, .. } = *error;
    let afi = family(here);
    let length = ip_header(afi);
    let table = offsets::of(afi);
    let (quoted_ip, _) = quoted.split_at_checked(length)?;
    let (quoted_total, _, _) = fields(quoted_ip, afi)?;
    let overhead = quoted.len() - behind.len();
    let platypus = table.capabilities + usize::from(behind[offsets::LENGTH]) * WORD;
    let added = overhead - length + platypus;
    let icmp = shrink_mtu(icmp, afi, added);
    let inner = (behind.len() > platypus).then(|| Quote {
        ip: quoted_ip,
        source,
        destination: offsets::address(behind, table.destination, afi),
        protocol: behind[offsets::INNER_PROTOCOL],
        payload: &behind[platypus..],
        payload_length: quoted_total.saturating_sub(length + added),
    });
    let translated = inner.and_then(|quote| write(here, icmp, &quote, error.length));
    translated.or_else(|| relay_as_it_is(here, source, icmp, quoted))
}

/// An IP packet as its source sent it, as far as an error quotes it.
struct Quote<'a> {
    ip: &'a [u8],
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    payload: &'a [u8],
    payload_length: usize,
}

/// Writes an error whose quotation is cut so that the whole takes at most `most` octets.
fn write(here: IpAddr, icmp: [u8; ICMP_HEADER], quote: &Quote<'_>, most: usize) -> Option<Vec<u8>> {
    let afi = family(here);
    let ip = ip_header(afi);
    let most = most.min(LONGEST[usize::from(afi == Afi::Ipv6)]);
    let capacity = most.checked_sub(2 * ip + ICMP_HEADER)?;
    let payload = &quote.payload[..quote.payload.len().min(capacity)];
    if payload.len() < QUOTED_PAYLOAD.min(quote.payload_length) {
        return None;
    }
    let mut inner = quote.ip.to_vec();
    write_ip(&mut inner, quote.source, quote.destination, quote.protocol, ip + quote.payload_length);
    inner.extend_from_slice(payload);
    Some(wrap(here, quote.source, icmp, &inner))
}

/// Relays the quotation unchanged, since it is too short to show the inner packet.
fn relay_as_it_is(here: IpAddr, source: IpAddr, icmp: [u8; ICMP_HEADER], quoted: &[u8]) -> Option<Vec<u8>> {
    let afi = family(here);
    let most = LONGEST[usize::from(afi == Afi::Ipv6)] - ip_header(afi) - ICMP_HEADER;
    Some(wrap(here, source, icmp, &quoted[..quoted.len().min(most)]))
}

/// IP and ICMP headers around a quotation.
fn wrap(here: IpAddr, to: IpAddr, icmp: [u8; ICMP_HEADER], quoted: &[u8]) -> Vec<u8> {
    let afi = family(here);
    let ip = ip_header(afi);
    let mut out = vec![0; ip];
    out[0] = if afi == Afi::Ipv4 { 0x45 } else { 0x60 };
    out[if afi == Afi::Ipv4 { v4::TTL } else { v6::HOP_LIMIT }] = TTL;
    write_ip(&mut out, here, to, icmp_protocol(afi), ip + ICMP_HEADER + quoted.len());
    out.extend_from_slice(&icmp);
    out.extend_from_slice(quoted);
    out[ip + 2..ip + 4].fill(0);
    let mut summed = Vec::new();
    if afi == Afi::Ipv6 {
        // The pseudo-header of RFC 8200 section 8.1.
        summed.extend_from_slice(&out[v6::SOURCE..v6::SOURCE + 32]);
        summed.extend_from_slice(&((out.len() - ip) as u32).to_be_bytes());
        summed.extend_from_slice(&[0, 0, 0, ICMPV6]);
    }
    summed.extend_from_slice(&out[ip..]);
    let checksum = !ones_complement_sum(&summed);
    out[ip + 2..ip + 4].copy_from_slice(&checksum.to_be_bytes());
    out
}

/// Fills in addresses, protocol and total length of an IP header.
fn write_ip(header: &mut [u8], source: IpAddr, destination: IpAddr, protocol: u8, total: usize) {
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            header[v4::TOTAL_LENGTH..v4::TOTAL_LENGTH + 2].copy_from_slice(&(total as u16).to_be_bytes());
            header[v4::PROTOCOL] = protocol;
            header[v4::SOURCE..v4::SOURCE + 4].copy_from_slice(&source.octets());
            header[v4::DESTINATION..v4::DESTINATION + 4].copy_from_slice(&destination.octets());
            write_ipv4_checksum(header);
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let length = (total - IPV6_HEADER) as u16;
            header[v6::PAYLOAD_LENGTH..v6::PAYLOAD_LENGTH + 2].copy_from_slice(&length.to_be_bytes());
            header[v6::NEXT_HEADER] = protocol;
            header[v6::SOURCE..v6::SOURCE + 16].copy_from_slice(&source.octets());
            header[v6::DESTINATION..v6::DESTINATION + 16].copy_from_slice(&destination.octets());
        }
        _ => {}
    }
}

/// Total length, protocol and destination of an IP header without options.
fn fields(header: &[u8], afi: Afi) -> Option<(usize, u8, IpAddr)> {
    match afi {
        Afi::Ipv4 => (header[0] == 0x45).then(|| {
            let total = usize::from(offsets::half(header, v4::TOTAL_LENGTH));
            (total, header[v4::PROTOCOL], offsets::address(header, v4::DESTINATION, afi))
        }),
        Afi::Ipv6 => (header[0] >> 4 == 6).then(|| {
            let total = IPV6_HEADER + usize::from(offsets::half(header, v6::PAYLOAD_LENGTH));
            (total, header[v6::NEXT_HEADER], offsets::address(header, v6::DESTINATION, afi))
        }),
    }
}

/// Errors only: no replies, redirects or requests.
fn is_relayed(kind: u8, afi: Afi) -> bool {
    match afi {
        Afi::Ipv4 => [type4::UNREACHABLE, type4::TIME_EXCEEDED, type4::PARAMETER_PROBLEM].contains(&kind),
        Afi::Ipv6 => {
            [type6::UNREACHABLE, type6::TOO_BIG, type6::TIME_EXCEEDED, type6::PARAMETER_PROBLEM].contains(&kind)
        }
    }
}

/// The original source does not know of the Platypus header, so that an MTU is reported without the octets that it takes. Of IPv6 that may be
/// less than 1,280 octets, to which no source shortens its packets (RFC 8200 section 5): every link on the way needs these and the header.
fn shrink_mtu(mut icmp: [u8; ICMP_HEADER], afi: Afi, added: usize) -> [u8; ICMP_HEADER] {
    match (afi, icmp[0], icmp[1]) {
        (Afi::Ipv4, type4::UNREACHABLE, type4::TOO_BIG_CODE) => {
            let mtu = offsets::half(&icmp, 6).saturating_sub(added as u16);
            icmp[6..8].copy_from_slice(&mtu.to_be_bytes());
        }
        (Afi::Ipv6, type6::TOO_BIG, _) => {
            let mtu = offsets::word(&icmp, 4).saturating_sub(added as u32);
            icmp[4..8].copy_from_slice(&mtu.to_be_bytes());
        }
        _ => {}
    }
    icmp
}

fn ip_header(afi: Afi) -> usize {
    if afi == Afi::Ipv4 { IPV4_HEADER } else { IPV6_HEADER }
}

fn icmp_protocol(afi: Afi) -> u8 {
    if afi == Afi::Ipv4 { ICMP } else { ICMPV6 }
}
