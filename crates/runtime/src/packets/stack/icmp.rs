//! What ICMP errors say of packets of the stack's own.

use std::net::{IpAddr, SocketAddr};

use super::{ConnectError, LEAST_MTU};

/// What an ICMP error says of a TCP segment or a datagram of ours.
pub(super) struct IcmpError {
    pub(super) is_datagram: bool,
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    pub(super) consequence: Consequence,
}

/// What follows for the connection, or for the socket.
pub(super) enum Consequence {
    TooBig(usize),
    Fails(ConnectError),
}

/// Reads an ICMP error about a TCP segment or a datagram. Any router on the way may say it: the gateway has seen to it that who sent the error is
/// the member to whom the segment went.
pub(super) fn read_icmp_error(packet: &[u8]) -> Option<IcmpError> {
    let (is_v4, _, protocol, body) = read_ip(packet)?;
    let (head, quoted) = body.split_at_checked(8)?;
    let word = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]) as usize;
    let consequence = match (is_v4, protocol, head[0], head[1]) {
        (true, 1, 3, 4) => Consequence::TooBig((word(4) & 0xffff).max(LEAST_MTU[0])),
        (true, 1, 3, 9 | 10 | 13) | (false, 58, 1, 1 | 5 | 6) => Consequence::Fails(ConnectError::Prohibited),
        (true, 1, 3, _) | (false, 58, 1, _) => Consequence::Fails(ConnectError::Unreachable),
        (false, 58, 2, _) => Consequence::TooBig(word(4).max(LEAST_MTU[1])),
        _ => return None,
    };
    // Quotations end anywhere behind the ports.
    let (is_same, source, protocol, segment) = read_ip(quoted)?;
    let is_datagram = match protocol {
        6 => false,
        17 => true,
        _ => return None,
    };
    let destination = read_destination(quoted)?;
    let [a, b, c, d] = *segment.first_chunk::<4>()?;
    let (from_port, to_port) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
    (is_same == is_v4).then_some(IcmpError {
        is_datagram,
        from: SocketAddr::new(source, from_port),
        to: SocketAddr::new(destination, to_port),
        consequence,
    })
}

/// Of an IP packet without options: whether it is IPv4, its source, its protocol, and what is behind its header.
pub(super) fn read_ip(packet: &[u8]) -> Option<(bool, IpAddr, u8, &[u8])> {
    match packet.first()? {
        0x45 => {
            let source: [u8; 4] = *packet.get(12..)?.first_chunk()?;
            Some((true, source.into(), packet[9], packet.get(20..)?))
        }
        first if first >> 4 == 6 => {
            let source: [u8; 16] = *packet.get(8..)?.first_chunk()?;
            Some((false, source.into(), packet[6], packet.get(40..)?))
        }
        _ => None,
    }
}

pub(super) fn read_destination(packet: &[u8]) -> Option<IpAddr> {
    match packet.first()? >> 4 {
        4 => packet.get(16..)?.first_chunk::<4>().map(|octets| (*octets).into()),
        _ => packet.get(24..)?.first_chunk::<16>().map(|octets| (*octets).into()),
    }
}
