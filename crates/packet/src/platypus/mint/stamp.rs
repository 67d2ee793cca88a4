//! Stamping: a Platypus header and bound capabilities are put between an IP header and its payload.

use std::net::IpAddr;

use wayleave_core::{Afi, UnixTime};

use super::super::header::offsets::{self, MAX_CAPABILITIES, PROTOCOL, UDP_PORT, WORD};
use super::super::header::{
    Capability, Carriage, IPV4_HEADER, IPV6_HEADER, Malformed, Packet, UDP_HEADER, family, udp, v4, v6,
    write_ipv4_checksum,
};
use super::keys::StampKey;
use super::mask::Head;

/// Unique to a packet under one stamping key: when it was stamped, and a count.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Nonce {
    /// Unix seconds modulo 2^32.
    pub seconds: u32,
    /// Never the same twice in one second.
    pub counter: u32,
}

impl Nonce {
    /// The nonce of the `counter`-th packet of this second.
    #[must_use]
    pub fn new(now: UnixTime, counter: u32) -> Self {
        Self { seconds: now.secs() as u32, counter }
    }

    /// Eight octets: seconds, counter.
    #[must_use]
    pub fn octets(self) -> [u8; 8] {
        (u64::from(self.seconds) << 32 | u64::from(self.counter)).to_be_bytes()
    }
}

/// A capability and the key that binds packets to it.
#[derive(Clone, Debug)]
pub struct Hop {
    /// What stands in the packet.
    pub capability: Capability,
    /// What makes its binding.
    pub key: StampKey,
}

/// How a packet is stamped.
#[derive(Clone, Copy, Debug)]
pub struct Route<'a> {
    /// The waypoints in order; none only with a reply option, whose packet then goes straight to its destination.
    pub hops: &'a [Hop],
    /// Different for every packet.
    pub nonce: Nonce,
    /// Every binding covers all capabilities; nobody can add one later.
    pub sealed: bool,
    /// What stands in front of the payload; empty, or an option of [`super::reply`].
    pub reply_option: &'a [u8],
    /// IP or UDP.
    pub carriage: Carriage,
}

/// Why a packet cannot be stamped. Our caller erred.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MintError {
    /// The inner packet is not one that can be stamped: truncated, with IP options, a fragment.
    #[error("the inner packet cannot be stamped: {0}")]
    Inner(Malformed),
    #[error("capability {0} is inconsistent or of another address family than the packet")]
    Capability(usize),
    #[error("{0} capabilities; a packet carries 1 to {MAX_CAPABILITIES}")]
    Count(usize),
    #[error("the stamped packet would have {0} octets, more than an IP packet can have")]
    TooLong(usize),
    #[error("the packet is sealed; no capability can be added")]
    Sealed,
    #[error("the packet has passed all its waypoints; no capability can be added")]
    NothingLeft,
    /// A waypoint would occur more than twice.
    #[error("the stamped packet would be malformed: {0}")]
    Outcome(Malformed),
}

/// The inner packet's header, as far as stamping needs it.
struct Inner<'a> {
    header: &'a [u8],
    payload: &'a [u8],
    protocol: u8,
    source: IpAddr,
    destination: IpAddr,
}

impl<'a> Inner<'a> {
    fn decode(octets: &'a [u8]) -> Result<Self, Malformed> {
        let first = *octets.first().ok_or(Malformed::Truncated { need: 1, have: 0 })?;
        let (length, total, protocol, at) = match first >> 4 {
            4 => {
                require(octets, IPV4_HEADER)?;
                if first & 0xf != 5 {
                    return Err(Malformed::Options);
                }
                if offsets::half(octets, v4::FRAGMENT) & v4::FRAGMENTED != 0 {
                    return Err(Malformed::Fragment);
                }
                let total = usize::from(offsets::half(octets, v4::TOTAL_LENGTH));
                (IPV4_HEADER, total.max(IPV4_HEADER), octets[v4::PROTOCOL], (v4::SOURCE, v4::DESTINATION, Afi::Ipv4))
            }
            6 => {
                require(octets, IPV6_HEADER)?;
                let next = octets[v6::NEXT_HEADER];
                if next == v6::FRAGMENT_HEADER {
                    return Err(Malformed::Fragment);
                }
                let total = IPV6_HEADER + usize::from(offsets::half(octets, v6::PAYLOAD_LENGTH));
                (IPV6_HEADER, total, next, (v6::SOURCE, v6::DESTINATION, Afi::Ipv6))
            }
            _ => return Err(Malformed::NotIp),
        };
        require(octets, total)?;
        Ok(Self {
            header: &octets[..length],
            payload: &octets[length..total],
            protocol,
            source: offsets::address(octets, at.0, at.2),
            destination: offsets::address(octets, at.1, at.2),
        })
    }
}

fn require(octets: &[u8], need: usize) -> Result<(), Malformed> {
    if octets.len() < need { Err(Malformed::Truncated { need, have: octets.len() }) } else { Ok(()) }
}

/// Stamps the IP packet `inner` and appends the outcome to `out`, which must be empty. The outer header keeps the
/// inner one's source, traffic class, identification and TTL; its destination is the first waypoint.
pub fn encapsulate(inner: &[u8], route: &Route<'_>, out: &mut Vec<u8>) -> Result<(), MintError> {
    let inner = Inner::decode(inner).map_err(MintError::Inner)?;
    let count = route.hops.len();
    if count == 0 && route.reply_option.is_empty() || count > MAX_CAPABILITIES {
        return Err(MintError::Count(count));
    }
    let afi = family(inner.source);
    let sound = |hop: &Hop| hop.capability.is_consistent() && family(hop.capability.waypoint) == afi;
    if let Some(index) = route.hops.iter().position(|hop| !sound(hop)) {
        return Err(MintError::Capability(index));
    }
    let list: usize = route.hops.iter().map(|hop| hop.capability.wire_length()).sum();

    out.clear();
    out.extend_from_slice(inner.header);
    if route.carriage == Carriage::Udp {
        out.extend_from_slice(&[0; UDP_HEADER]);
    }
    let mut flags = 0;
    for (is_set, flag) in [
        (!route.reply_option.is_empty(), offsets::FLAG_REPLY),
        (route.sealed, offsets::FLAG_SEALED),
        (afi == Afi::Ipv6, offsets::FLAG_IPV6),
    ] {
        flags |= if is_set { flag } else { 0 };
    }
    out.extend_from_slice(&[offsets::VERSION << 4 | flags, (list / WORD) as u8, 0, inner.protocol]);
    push_address(out, inner.source);
    push_address(out, inner.destination);
    out.extend_from_slice(&route.nonce.octets());
    for hop in route.hops {
        out.extend_from_slice(hop.capability.octets().as_slice());
        out.extend_from_slice(&[0; 16][..hop.capability.width.octets()]);
    }
    out.extend_from_slice(route.reply_option);
    out.extend_from_slice(inner.payload);
    let first = route.hops.first().map_or(inner.destination, |hop| hop.capability.waypoint);
    write_outer(out, route.carriage, first)?;
    for (index, hop) in route.hops.iter().enumerate() {
        bind(out, index, &hop.key)?;
    }
    Ok(())
}

/// Where a stamper in the network puts its capability.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Position {
    /// In front of the current one: the packet goes there next.
    Next,
    /// Behind the last one.
    Last,
}

/// Adds a capability to a packet that is already stamped and not sealed.
pub fn append(datagram: &mut Vec<u8>, hop: &Hop, position: Position) -> Result<(), MintError> {
    let packet = Packet::decode(datagram).map_err(MintError::Inner)?;
    if packet.is_sealed() {
        return Err(MintError::Sealed);
    }
    let current = packet.current().ok_or(MintError::NothingLeft)?;
    if packet.count() == MAX_CAPABILITIES {
        return Err(MintError::Count(MAX_CAPABILITIES + 1));
    }
    if !hop.capability.is_consistent() || family(hop.capability.waypoint) != packet.family() {
        return Err(MintError::Capability(packet.count()));
    }
    let index = if position == Position::Next { current } else { packet.count() };
    let start = packet.outer().length;
    let carriage = packet.outer().carriage;
    let at = start + packet.table().capabilities + usize::from(packet.pointer_to(index)) * WORD;
    let destination = if position == Position::Next { hop.capability.waypoint } else { packet.outer().destination };
    datagram.truncate(packet.datagram().len());

    let octets = hop.capability.octets();
    // At most eight capabilities of 64 octets: 128 words.
    datagram[start + offsets::LENGTH] += (hop.capability.wire_length() / WORD) as u8;
    let open = std::iter::repeat_n(0, hop.capability.width.octets());
    datagram.splice(at..at, octets.as_slice().iter().copied().chain(open));
    write_outer(datagram, carriage, destination)?;
    bind(datagram, index, &hop.key)?;
    // The same capability further back stands in the list a second time from now on, which its binding must say.
    let packet = Packet::decode(datagram).map_err(MintError::Outcome)?;
    let is_same = |other: &usize| packet.capability_octets(*other) == packet.capability_octets(index);
    match (index + 1..packet.count()).find(is_same) {
        Some(other) => bind(datagram, other, &hop.key),
        None => Ok(()),
    }
}

/// Computes and writes the binding of capability `index`.
fn bind(datagram: &mut [u8], index: usize, key: &StampKey) -> Result<(), MintError> {
    let packet = Packet::decode(datagram).map_err(MintError::Outcome)?;
    let binding = key.bind(Head::of(&packet, index).blocks(), packet.payload());
    let at = packet.binding_range(index);
    let width = at.len();
    datagram[at].copy_from_slice(&binding[..width]);
    Ok(())
}

/// Writes length, protocol and destination of the outer headers.
fn write_outer(datagram: &mut [u8], carriage: Carriage, destination: IpAddr) -> Result<(), MintError> {
    let total = datagram.len();
    let protocol = if carriage == Carriage::Udp { udp::PROTOCOL } else { PROTOCOL };
    let header = match destination {
        IpAddr::V4(address) => {
            let length = u16::try_from(total).map_err(|_| MintError::TooLong(total))?;
            datagram[v4::TOTAL_LENGTH..v4::TOTAL_LENGTH + 2].copy_from_slice(&length.to_be_bytes());
            datagram[v4::PROTOCOL] = protocol;
            datagram[v4::DESTINATION..v4::DESTINATION + 4].copy_from_slice(&address.octets());
            write_ipv4_checksum(datagram);
            IPV4_HEADER
        }
        IpAddr::V6(address) => {
            let length = u16::try_from(total - IPV6_HEADER).map_err(|_| MintError::TooLong(total))?;
            datagram[v6::PAYLOAD_LENGTH..v6::PAYLOAD_LENGTH + 2].copy_from_slice(&length.to_be_bytes());
            datagram[v6::NEXT_HEADER] = protocol;
            datagram[v6::DESTINATION..v6::DESTINATION + 16].copy_from_slice(&address.octets());
            IPV6_HEADER
        }
    };
    if carriage == Carriage::Udp {
        let length = (total - header) as u16;
        let udp_header = &mut datagram[header..header + UDP_HEADER];
        udp_header[..2].copy_from_slice(&UDP_PORT.to_be_bytes());
        udp_header[udp::DESTINATION_PORT..udp::DESTINATION_PORT + 2].copy_from_slice(&UDP_PORT.to_be_bytes());
        udp_header[udp::LENGTH..udp::LENGTH + 2].copy_from_slice(&length.to_be_bytes());
        udp_header[udp::CHECKSUM..udp::CHECKSUM + 2].fill(0);
    }
    Ok(())
}

fn push_address(out: &mut Vec<u8>, address: IpAddr) {
    match address {
        IpAddr::V4(v4) => out.extend_from_slice(&v4.octets()),
        IpAddr::V6(v6) => out.extend_from_slice(&v6.octets()),
    }
}
