//! The checks of an IP packet that came in an ICING packet, before the receiver lets it out (threats I10, X3).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::super::super::platypus::header::offsets::{PROTOCOL as PLATYPUS, UDP_PORT as PLATYPUS_PORT};
use super::super::super::platypus::verify::is_martian;
use super::super::header::{UDP_PORT, Version};
use super::Packet;

/// Verified formats within each other, this one counted.
pub const MAX_DEPTH: usize = 2;
const UDP: u8 = 17;
/// IPv4 in IP, and IPv6 in IP.
const IP_IN_IP: [u8; 2] = [4, 41];
/// IPv6 extension headers: hop-by-hop, routing, fragment, authentication, destination options, mobility, HIP, shim6.
const EXTENSIONS: [u8; 8] = [0, 43, 44, 51, 60, 135, 139, 140];

/// Why an inner packet is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InnerError {
    /// Not a whole IP packet of the protocol and length that the header says, without options or extension headers, or one
    /// around such.
    #[error("not a plain IP packet of the length and protocol that the header says")]
    NotIp,
    /// Its source is not one that the sender may use.
    #[error("the sender may not use this source")]
    Source,
    /// Its destination is not that of a host: loopback, multicast, link-local, reserved.
    #[error("the destination is not that of a host (martian)")]
    Martian,
    /// Its destination is not one that may be reached from here.
    #[error("the destination is not allowed")]
    Destination,
    /// Verified formats are nested deeper than [`MAX_DEPTH`].
    #[error("verified formats are nested deeper than two")]
    Nested,
}

/// The inner packet's source and destination, if the source is the sender's own, the destination may be reached from here, and
/// neither is a martian. `protocol` is the outer packet's.
///
/// # Errors
/// The first reason against it.
pub fn check_inner(
    protocol: u8,
    inner: &[u8],
    is_source: impl FnOnce(IpAddr) -> bool,
    is_destination: impl FnOnce(IpAddr) -> bool,
) -> Result<(IpAddr, IpAddr), InnerError> {
    let Ip { source, destination, .. } = Ip::decode(protocol, inner)?;
    if is_martian(source) || !is_source(source) {
        return Err(InnerError::Source);
    }
    if is_martian(destination) {
        return Err(InnerError::Martian);
    }
    if !is_destination(destination) {
        return Err(InnerError::Destination);
    }
    if depth(protocol, inner)? > MAX_DEPTH {
        return Err(InnerError::Nested);
    }
    Ok((source, destination))
}

struct Ip<'a> {
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    payload: &'a [u8],
}

impl<'a> Ip<'a> {
    /// An IP packet without options that fills `octets`.
    fn decode(protocol: u8, octets: &'a [u8]) -> Result<Self, InnerError> {
        match (protocol, octets.first().map(|first| first >> 4)) {
            (4, Some(4)) => Self::decode_v4(octets),
            (41, Some(6)) => Self::decode_v6(octets),
            _ => None,
        }
        .ok_or(InnerError::NotIp)
    }

    fn decode_v4(octets: &'a [u8]) -> Option<Self> {
        let (header, payload) = octets.split_first_chunk::<20>()?;
        let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
        let address = |at: usize| IpAddr::V4(Ipv4Addr::new(header[at], header[at + 1], header[at + 2], header[at + 3]));
        // Any bit of the fragment field but "don't fragment".
        let is_fragment = u16::from_be_bytes([header[6], header[7]]) & 0xbfff != 0;
        (header[0] == 0x45 && length == octets.len() && !is_fragment).then(|| Self {
            source: address(12),
            destination: address(16),
            protocol: header[9],
            payload,
        })
    }

    fn decode_v6(octets: &'a [u8]) -> Option<Self> {
        let (header, payload) = octets.split_first_chunk::<40>()?;
        let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
        let address = |at: usize| Some(IpAddr::V6(Ipv6Addr::from(*header[at..].first_chunk::<16>()?)));
        (length == payload.len() && !EXTENSIONS.contains(&header[6])).then_some(())?;
        Some(Self { source: address(8)?, destination: address(24)?, protocol: header[6], payload })
    }
}

/// How many verified formats are nested, this one counted; counting ends beyond the limit.
fn depth(mut protocol: u8, mut octets: &[u8]) -> Result<usize, InnerError> {
    let mut depth = 1;
    // Every turn takes a header off.
    while depth <= MAX_DEPTH && IP_IN_IP.contains(&protocol) {
        // A packet that cannot be decoded might hide another.
        let ip = Ip::decode(protocol, octets)?;
        (protocol, octets) = match ip.protocol {
            PLATYPUS => return Ok(depth + 1),
            UDP => match icing_inside(ip.payload) {
                Some(Some(packet)) => {
                    depth += 1;
                    (packet.protocol(), packet.payload())
                }
                Some(None) => return Ok(depth + 1),
                None => break,
            },
            other => (other, ip.payload),
        };
    }
    Ok(depth)
}

/// The ICING packet in a UDP datagram to a verified format's port: `None` if the port is another's, `Some(None)` if there is
/// no ICING packet that can be decoded.
fn icing_inside(datagram: &[u8]) -> Option<Option<Packet<'_>>> {
    let (udp, payload) = datagram.split_first_chunk::<8>()?;
    match u16::from_be_bytes([udp[2], udp[3]]) {
        PLATYPUS_PORT => Some(None),
        UDP_PORT => Some(Packet::decode(payload, Version::Standard).ok()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use wayleave_core::{IdentityKey, InnerPrefixes, Prefix};

    use super::*;

    fn prefix(text: &str) -> Prefix {
        let (address, length) = text.split_once('/').expect("a prefix");
        Prefix::new(address.parse().expect("an address"), length.parse().expect("a length")).expect("no bits beyond")
    }

    fn ip(source: &str, destination: &str, protocol: u8, payload: &[u8]) -> (u8, Vec<u8>) {
        let (source, destination): (IpAddr, IpAddr) =
            (source.parse().expect("an address"), destination.parse().expect("an address"));
        let mut out = Vec::new();
        match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                out.extend([0x45, 0]);
                out.extend((20 + payload.len() as u16).to_be_bytes());
                out.extend([0, 0, 0, 0, 64, protocol, 0, 0]);
                out.extend(source.octets());
                out.extend(destination.octets());
                out.extend(payload);
                (4, out)
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                out.extend([0x60, 0, 0, 0]);
                out.extend((payload.len() as u16).to_be_bytes());
                out.extend([protocol, 64]);
                out.extend(source.octets());
                out.extend(destination.octets());
                out.extend(payload);
                (41, out)
            }
            _ => unreachable!("one family"),
        }
    }

    fn check((protocol, inner): &(u8, Vec<u8>)) -> Result<(), InnerError> {
        let lies_in = |prefixes: [&str; 2]| {
            let mut table = InnerPrefixes::default();
            for text in prefixes {
                table.insert(prefix(text), IdentityKey([1; 32]));
            }
            move |address| table.owner(address).is_some()
        };
        let (sources, destinations) = (["192.0.2.0/24", "2001:db8:1::/48"], ["0.0.0.0/0", "2001:db8::/32"]);
        check_inner(*protocol, inner, lies_in(sources), lies_in(destinations)).map(|_| ())
    }

    #[test]
    fn an_inner_packet_comes_from_its_senders_prefixes_and_goes_to_a_host() {
        let from = |source: &str, destination: &str| check(&ip(source, destination, 6, b"segment"));
        assert_eq!(from("192.0.2.1", "203.0.113.9"), Ok(()));
        assert_eq!(from("2001:db8:1::1", "2001:db8:2::1"), Ok(()));
        for source in ["192.0.3.1", "127.0.0.1", "0.0.0.0", "10.0.0.1"] {
            assert_eq!(from(source, "203.0.113.9"), Err(InnerError::Source), "{source}");
        }
        assert_eq!(from("2001:db8:2::1", "2001:db8:2::1"), Err(InnerError::Source));
        for destination in ["127.0.0.1", "0.0.0.0", "224.0.0.1", "255.255.255.255", "169.254.1.1"] {
            assert_eq!(from("192.0.2.1", destination), Err(InnerError::Martian), "{destination}");
        }
        for destination in ["::1", "fe80::1", "::ffff:127.0.0.1", "ff02::1"] {
            assert_eq!(from("2001:db8:1::1", destination), Err(InnerError::Martian), "{destination}");
        }
        assert_eq!(from("2001:db8:1::1", "2001:db9::1"), Err(InnerError::Destination));
    }

    #[test]
    fn an_inner_packet_fills_the_payload_and_is_of_the_protocol_that_the_header_says() {
        let (protocol, inner) = ip("192.0.2.1", "203.0.113.9", 6, b"segment");
        for length in 0..inner.len() {
            assert_eq!(check(&(protocol, inner[..length].to_vec())), Err(InnerError::NotIp), "{length}");
        }
        assert_eq!(check(&(protocol, [&inner[..], b"x"].concat())), Err(InnerError::NotIp));
        assert_eq!(check(&(41, inner.clone())), Err(InnerError::NotIp));
        assert_eq!(check(&(6, inner.clone())), Err(InnerError::NotIp));
        let mut with_options = inner;
        with_options[0] = 0x46;
        assert_eq!(check(&(protocol, with_options)), Err(InnerError::NotIp));
    }

    /// An ICING packet over UDP around `inner`; its path and proofs are not checked.
    fn icing((protocol, inner): &(u8, Vec<u8>)) -> Vec<u8> {
        let mut packet = vec![0x18, *protocol, 2, 1];
        packet.extend((inner.len() as u16).to_be_bytes());
        packet.resize(32 + 24, 0);
        packet.extend(inner);
        let mut udp = [[0, 0], UDP_PORT.to_be_bytes(), [0, 0], [0, 0]].concat();
        udp.extend(packet);
        udp
    }

    /// Threat X3.
    #[test]
    fn two_verified_formats_may_lie_within_each_other_and_no_third() {
        let v4 = |protocol, payload: &[u8]| ip("192.0.2.1", "203.0.113.9", protocol, payload);
        let plain = v4(6, b"segment");
        let two = v4(UDP, &icing(&plain));
        assert_eq!(check(&plain), Ok(()));
        assert_eq!(check(&two), Ok(()));
        assert_eq!(check(&v4(UDP, &icing(&two))), Err(InnerError::Nested));
        let platypus = v4(PLATYPUS, b"header and payload");
        assert_eq!(check(&platypus), Ok(()));
        assert_eq!(check(&v4(UDP, &icing(&platypus))), Err(InnerError::Nested));
        // Neither does a fragment or an extension header hide one.
        let three = v4(UDP, &icing(&two));
        let mut fragment = three.clone();
        fragment.1[6] = 0x20;
        assert_eq!(check(&fragment), Err(InnerError::NotIp));
        let extended =
            ip("2001:db8:1::1", "2001:db8:2::1", 60, &[&[UDP, 0, 1, 4, 0, 0, 0, 0], &icing(&two)[..]].concat());
        assert_eq!(check(&extended), Err(InnerError::NotIp));
        let mut inside = two.clone();
        inside.1[6] = 0x20;
        assert_eq!(check(&v4(UDP, &icing(&inside))), Err(InnerError::NotIp));
        // A tunnel in between hides none.
        assert_eq!(check(&v4(UDP, &icing(&v4(4, &platypus.1)))), Err(InnerError::Nested));
        assert_eq!(check(&v4(4, &v4(4, &v4(4, &plain.1).1).1)), Ok(()));
    }
}
