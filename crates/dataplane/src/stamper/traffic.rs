//! What a stamper reads of a packet before it stamps it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use wayleave_packet::platypus::header::offsets::{PROTOCOL, UDP_PORT, WORD};
use wayleave_packet::platypus::header::{IPV4_HEADER, IPV6_HEADER, Packet};

use super::LeaveReason;
use crate::platypus::outer;

const TCP: u8 = 6;
const UDP: u8 = 17;
const DNS: u16 = 53;
/// Hop-by-hop options, routing, destination options: headers that say how long they are, with what follows behind.
const PASSED_OVER: [u8; 3] = [0, 43, 60];
/// Extension headers in a row that are passed over; a packet with more is left unchanged.
const MOST_EXTENSIONS: usize = 8;

/// An IP packet that may be stamped.
pub(super) struct Traffic {
    pub(super) source: IpAddr,
    /// Its final destination.
    pub(super) destination: IpAddr,
    /// Octets of it, by its own header.
    pub(super) length: usize,
    /// If it carries capabilities already: how many.
    pub(super) stamped: Option<usize>,
}

impl Traffic {
    /// Reads the front of `octets`.
    pub(super) fn read(octets: &[u8]) -> Result<Self, LeaveReason> {
        let (source, destination, protocol, header, length) = headers(octets).ok_or(LeaveReason::Malformed)?;
        let payload = octets.get(header..length).ok_or(LeaveReason::Malformed)?;
        if is_header(protocol, payload) {
            return Self::read_stamped(octets);
        }
        if is_dns(protocol, payload)? {
            return Err(LeaveReason::Dns);
        }
        Ok(Self { source, destination, length, stamped: None })
    }

    fn read_stamped(octets: &[u8]) -> Result<Self, LeaveReason> {
        let packet = Packet::decode(octets).map_err(|_| LeaveReason::Malformed)?;
        let mut payload = packet.payload();
        if packet.has_reply_option() {
            let words = payload.get(1).ok_or(LeaveReason::Malformed)?;
            payload = payload.get(usize::from(*words) * WORD..).ok_or(LeaveReason::Malformed)?;
        }
        if is_dns(packet.inner_protocol(), payload)? {
            return Err(LeaveReason::Dns);
        }
        if packet.is_sealed() {
            return Err(LeaveReason::Sealed);
        }
        packet.current().ok_or(LeaveReason::NothingLeft)?;
        Ok(Self {
            source: packet.original_source(),
            destination: packet.final_destination(),
            length: packet.datagram().len(),
            stamped: Some(packet.count()),
        })
    }
}

/// Whether a packet says that it carries a header.
pub(super) fn has_header(octets: &[u8]) -> bool {
    headers(octets).is_some_and(|(_, _, protocol, header, length)| {
        let payload = octets.get(header..length).unwrap_or_default();
        is_header(protocol, payload)
    })
}

fn is_header(protocol: u8, payload: &[u8]) -> bool {
    protocol == PROTOCOL || protocol == UDP && port(payload, 2) == Some(UDP_PORT)
}

/// The final destination of any IP packet, also of one that cannot be stamped.
pub(super) fn destination(octets: &[u8]) -> Option<IpAddr> {
    let stamped = Packet::decode(octets).map(|packet| packet.final_destination());
    stamped.ok().or_else(|| outer::destination(octets))
}

/// Addresses, protocol, octets of the header and of the whole packet.
fn headers(octets: &[u8]) -> Option<(IpAddr, IpAddr, u8, usize, usize)> {
    let half = |at: usize| Some(usize::from(u16::from_be_bytes(*octets.get(at..)?.first_chunk()?)));
    let v4 = |at: usize| Some(IpAddr::V4(Ipv4Addr::from(*octets.get(at..)?.first_chunk::<4>()?)));
    let v6 = |at: usize| Some(IpAddr::V6(Ipv6Addr::from(*octets.get(at..)?.first_chunk::<16>()?)));
    match octets.first()? {
        // Options and fragments are not stamped.
        0x45 if half(6)? & 0xbfff == 0 => Some((v4(12)?, v4(16)?, octets[9], IPV4_HEADER, half(2)?)),
        first if first >> 4 == 6 => Some((v6(8)?, v6(24)?, octets[6], IPV6_HEADER, IPV6_HEADER + half(4)?)),
        _ => None,
    }
}

fn port(payload: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*payload.get(at..)?.first_chunk()?))
}

/// Whether a payload is to or from a name server. A packet whose ports cannot be read is left unchanged.
fn is_dns(mut protocol: u8, mut payload: &[u8]) -> Result<bool, LeaveReason> {
    for _ in 0..MOST_EXTENSIONS {
        if !PASSED_OVER.contains(&protocol) {
            break;
        }
        let &[next, length, ..] = payload else { return Err(LeaveReason::Malformed) };
        // RFC 8200 section 4.2: units of eight octets, the first not counted.
        payload = payload.get(8 * (usize::from(length) + 1)..).ok_or(LeaveReason::Malformed)?;
        protocol = next;
    }
    match protocol {
        TCP | UDP => {
            let (from, to) = (port(payload, 0), port(payload, 2));
            Ok(from.ok_or(LeaveReason::Malformed)? == DNS || to.ok_or(LeaveReason::Malformed)? == DNS)
        }
        // A fragment, or one header too many.
        44 => Err(LeaveReason::Malformed),
        protocol if PASSED_OVER.contains(&protocol) => Err(LeaveReason::Malformed),
        _ => Ok(false),
    }
}
