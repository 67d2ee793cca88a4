//! Removes the Platypus header behind the last waypoint, so that the inner packet continues.

use std::net::IpAddr;
use std::ops::Range;

use wayleave_core::Afi;

use super::super::header::offsets::PROTOCOL;
use super::super::header::{Carriage, IPV4_HEADER, IPV6_HEADER, Packet, v4, v6, write_ipv4_checksum};
use super::super::mint::reply::option_length;

/// Removes the Platypus header of an IP packet that has passed its last waypoint: writes the inner IP header in front of
/// the payload (behind a reply option, if there is one), and returns where the inner packet lies. `datagram` is the one
/// that the layout was made from.
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

/// What [`strip`] needs of a packet: it writes to the datagram, and so cannot borrow the packet.
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
    /// `None` if a waypoint remains, if the reply option is malformed, if the packet came through a socket, or if the inner
    /// packet is a Platypus packet too.
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
            source: packet.original_source(),
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
