//! How a packet leaves a waypoint: the next destination, the waypoint's own source, one hop less to live.

use std::net::IpAddr;
use std::ops::Range;

use wayleave_core::Afi;

use super::super::header::offsets::{self, POINTER, PROTOCOL};
use super::super::header::{
    Capability, Carriage, DelegationId, IPV4_HEADER, IPV6_HEADER, Interval, Packet, Principal, udp, v4, v6,
    write_ipv4_checksum,
};
use super::super::mint::reply::option_length;

/// A decision to forward: what to write, where to send, whom to charge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Forward {
    /// The new outer source: the waypoint.
    pub source: IpAddr,
    /// The new outer destination: the next waypoint, or the final destination.
    pub destination: IpAddr,
    /// Whether no capability is left.
    pub is_last: bool,
    /// The new TTL or hop limit.
    pub ttl: u8,
    /// Whom this packet is charged to.
    pub charge: Charge,
    carriage: Carriage,
    header: u16,
    pointer: u8,
    /// Where nonce and binding lie.
    nonce: u16,
    binding: u16,
    /// Version 0: the original source, to be written where the header had none.
    original_source: Option<IpAddr>,
}

/// Who pays for a packet, and under which delegation and key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Charge {
    /// The principal.
    pub principal: Principal,
    /// The delegation, and the sub-delegation within it.
    pub delegation: Option<(DelegationId, Option<DelegationId>)>,
    /// How long a key epoch lasts; `None` in version 0.
    pub interval: Option<Interval>,
    /// The full epoch; the key ID in version 0.
    pub epoch: u32,
}

impl Forward {
    /// The decision for capability `index`, which has been verified.
    pub(in super::super) fn of(packet: &Packet<'_>, index: usize, capability: &Capability, here: IpAddr) -> Self {
        let charge = Charge {
            principal: capability.principal,
            delegation: capability.delegation.map(|held| (held.id, held.sub.map(|sub| sub.id))),
            interval: Some(capability.interval),
            epoch: capability.epoch,
        };
        Self::charged(packet, index, charge, here)
    }

    /// The decision for an IPv4 packet over IP with one capability, whose list has `pointer` words.
    #[inline(always)]
    pub(in super::super) fn lean(here: IpAddr, last: IpAddr, ttl: u8, charge: Charge, pointer: u8) -> Self {
        Self {
            source: here,
            destination: last,
            is_last: true,
            ttl,
            charge,
            carriage: Carriage::Ip,
            header: IPV4_HEADER as u16,
            pointer,
            nonce: (IPV4_HEADER + offsets::IPV4.nonce) as u16,
            binding: (IPV4_HEADER + offsets::IPV4.capabilities + offsets::IPV4.capability.prefix) as u16,
            original_source: None,
        }
    }

    pub(in super::super) fn charged(packet: &Packet<'_>, index: usize, charge: Charge, here: IpAddr) -> Self {
        let is_last = index + 1 == packet.count();
        let source = packet.original_source();
        Self {
            source: here,
            destination: if is_last { packet.final_destination() } else { packet.waypoint(index + 1) },
            is_last,
            ttl: packet.outer().ttl.saturating_sub(1),
            charge,
            carriage: packet.outer().carriage,
            // At most 40 + 8.
            header: packet.outer().length as u16,
            pointer: packet.pointer_to(index + 1),
            // The header ends below 40 + 8 + 44 + 255 * 4 octets.
            nonce: (packet.outer().length + packet.table().nonce) as u16,
            binding: packet.binding_range(index).start as u16,
            original_source: (source != packet.real_source()).then(|| packet.real_source()),
        }
    }

    /// Octets that no two packets share: the nonce and half of the binding just verified. `datagram` is what was verified.
    #[must_use]
    pub fn fingerprint(&self, datagram: &[u8]) -> [u8; 16] {
        let mut out = [0; 16];
        let (nonce, binding) = (usize::from(self.nonce), usize::from(self.binding));
        out[..8].copy_from_slice(&datagram[nonce..nonce + 8]);
        out[8..].copy_from_slice(&datagram[binding..binding + 8]);
        out
    }

    /// Rewrites the packet in place. `datagram` is what was verified.
    pub fn apply(&self, datagram: &mut [u8]) {
        let header = usize::from(self.header);
        datagram[header + POINTER] = self.pointer;
        if let Some(source) = self.original_source {
            write_address(datagram, header + offsets::SOURCE, source);
        }
        match (self.carriage, self.destination) {
            (Carriage::Socket, _) => {}
            (_, IpAddr::V4(_)) => {
                write_address(datagram, v4::SOURCE, self.source);
                write_address(datagram, v4::DESTINATION, self.destination);
                datagram[v4::TTL] = self.ttl;
                write_ipv4_checksum(datagram);
            }
            (_, IpAddr::V6(_)) => {
                write_address(datagram, v6::SOURCE, self.source);
                write_address(datagram, v6::DESTINATION, self.destination);
                datagram[v6::HOP_LIMIT] = self.ttl;
            }
        }
        if self.carriage == Carriage::Udp {
            let checksum = header - super::super::header::UDP_HEADER + udp::CHECKSUM;
            datagram[checksum..checksum + 2].fill(0);
        }
    }
}

/// Takes the Platypus header off an IP packet that has passed its last waypoint: writes the inner IP header right in
/// front of the payload (behind a reply option, if there is one), and returns where the inner packet lies. `datagram` is
/// what the layout was made of.
pub fn strip(datagram: &mut [u8], layout: &Layout) -> Option<Range<usize>> {
    let Layout { family, payload, end, protocol, source, destination } = *layout;
    match family {
        Afi::Ipv4 => {
            let start = payload.checked_sub(IPV4_HEADER)?;
            datagram.copy_within(..IPV4_HEADER, start);
            let inner = &mut datagram[start..end];
            let length = u16::try_from(inner.len()).ok()?;
            inner[v4::TOTAL_LENGTH..v4::TOTAL_LENGTH + 2].copy_from_slice(&length.to_be_bytes());
            inner[v4::PROTOCOL] = protocol;
            write_address(inner, v4::SOURCE, source);
            write_address(inner, v4::DESTINATION, destination);
            write_ipv4_checksum(inner);
            Some(start..end)
        }
        Afi::Ipv6 => {
            let start = payload.checked_sub(IPV6_HEADER)?;
            datagram.copy_within(..IPV6_HEADER, start);
            let inner = &mut datagram[start..end];
            let length = u16::try_from(inner.len() - IPV6_HEADER).ok()?;
            inner[v6::PAYLOAD_LENGTH..v6::PAYLOAD_LENGTH + 2].copy_from_slice(&length.to_be_bytes());
            inner[v6::NEXT_HEADER] = protocol;
            write_address(inner, v6::SOURCE, source);
            write_address(inner, v6::DESTINATION, destination);
            Some(start..end)
        }
    }
}

/// What [`strip`] needs to know of a packet, which it cannot borrow while it writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    family: Afi,
    payload: usize,
    end: usize,
    protocol: u8,
    source: IpAddr,
    destination: IpAddr,
}

impl Layout {
    /// `None` if a waypoint is left, if the reply option is malformed, if the packet came through a socket, or if another
    /// Platypus packet is inside.
    #[must_use]
    pub fn of(packet: &Packet<'_>) -> Option<Self> {
        let option = if packet.has_reply_option() { option_length(packet.payload())? } else { 0 };
        let is_strippable = packet.current().is_none()
            && packet.outer().carriage != Carriage::Socket
            && packet.inner_protocol() != PROTOCOL;
        is_strippable.then(|| Self {
            family: packet.family(),
            payload: packet.payload_offset() + option,
            end: packet.datagram().len(),
            protocol: packet.inner_protocol(),
            source: packet.real_source(),
            destination: packet.final_destination(),
        })
    }
}

/// The inner IP packet of a packet that has passed its last waypoint, as a copy; see [`strip`].
#[must_use]
pub fn decapsulate(packet: &Packet<'_>) -> Option<Vec<u8>> {
    let layout = Layout::of(packet)?;
    let mut datagram = packet.datagram().to_vec();
    let range = strip(&mut datagram, &layout)?;
    Some(datagram[range].to_vec())
}

fn write_address(octets: &mut [u8], at: usize, address: IpAddr) {
    match address {
        IpAddr::V4(v4) => octets[at..at + 4].copy_from_slice(&v4.octets()),
        IpAddr::V6(v6) => octets[at..at + 16].copy_from_slice(&v6.octets()),
    }
}
