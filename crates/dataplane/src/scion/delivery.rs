//! Where a packet that has reached its AS goes: the address and UDP port of the host or service that its header names.

use std::net::{IpAddr, SocketAddr};

use wayleave_packet::platypus::verify::is_martian;
use wayleave_packet::scion::{Extensions, HostAddress, Layout, Service, next_header};

use super::action::Reason;

/// The octet with the header's length, in units of four octets.
const HEADER_LEN: usize = 5;
/// Octets in front of the host addresses: the common header, and both ISD-AS numbers.
pub(super) const ADDRESSES: usize = 12 + 16;
/// The octet with type and length of the destination address in its upper half.
pub(super) const ADDRESS_TYPES: usize = 9;
/// SCMP messages of types from this on are requests (even) and replies (odd); those below are errors.
pub(super) const INFORMATIONAL: u8 = 128;

/// How hosts and services of this AS are reached.
#[derive(Clone, Debug)]
pub struct LocalDelivery {
    /// The discovery service.
    pub discovery: Option<SocketAddr>,
    /// The control service.
    pub control: Option<SocketAddr>,
    /// UDP ports at which end hosts are reached directly, first and last.
    pub end_host_ports: [u16; 2],
    /// The port for all other packets.
    pub shared_port: u16,
    /// Whether hosts are on this router's own machine.
    pub is_on_loopback: bool,
}

/// What a header names as its destination.
enum Destination {
    Host(IpAddr),
    Service(SocketAddr),
}

impl LocalDelivery {
    /// Returns where the destination that the header names is reached; `None` if it cannot be.
    #[must_use]
    pub fn locate(&self, octets: &[u8]) -> Option<SocketAddr> {
        let layout = Layout::decode(octets).ok()?;
        Some(match self.destination(octets).ok()? {
            Destination::Host(host) => SocketAddr::new(host, self.port(octets, &layout)),
            Destination::Service(address) => address,
        })
    }

    /// Whether the destination that the header names can be reached. The header has been decoded.
    pub(super) fn check(&self, octets: &[u8]) -> Result<(), Reason> {
        self.destination(octets).map(|_| ())
    }

    fn destination(&self, octets: &[u8]) -> Result<Destination, Reason> {
        let kind = octets.get(ADDRESS_TYPES).ok_or(Reason::Malformed)? >> 4;
        let length = 4 * (usize::from(kind & 3) + 1);
        let host = octets.get(ADDRESSES..ADDRESSES + length).ok_or(Reason::Malformed)?;
        let host = match (kind, host) {
            (0, &[a, b, c, d]) => IpAddr::from([a, b, c, d]),
            (3, host) => <[u8; 16]>::try_from(host).map_err(|_| Reason::Malformed)?.into(),
            (4, &[a, b, ..]) => {
                let service = match Service(u16::from_be_bytes([a, b]) & !Service::MULTICAST) {
                    Service::DISCOVERY => self.discovery,
                    Service::CONTROL => self.control,
                    _ => None,
                };
                return service.map(Destination::Service).ok_or(Reason::UnknownService);
            }
            _ => return Err(Reason::HostAddress),
        };
        if self.is_single(host) { Ok(Destination::Host(host)) } else { Err(Reason::HostAddress) }
    }

    /// Whether an address is that of one host, and not of this machine itself or of many: the operating system would send a
    /// packet to a martian there. Only a router that is itself on loopback reaches hosts there.
    fn is_single(&self, host: IpAddr) -> bool {
        !is_martian(host) || self.is_on_loopback && host.is_loopback()
    }

    /// Whether a sender may be answered: "a packet whose source address does not uniquely identify a single node" is not
    /// (draft-dekater-scion-controlplane, processing rules of SCMP). A service is several nodes, and what a type of address
    /// that we do not know stands for is unknown.
    pub(super) fn may_be_answered(&self, sender: HostAddress) -> bool {
        match sender {
            HostAddress::V4(v4) => self.is_single(v4.into()),
            HostAddress::V6(v6) => self.is_single(v6.into()),
            HostAddress::Service(_) | HostAddress::Other { .. } => false,
        }
    }

    /// UDP goes to its own port if that is one of end hosts. Echo and traceroute replies go to the port of the host that
    /// sent the request, which is their identifier, and errors to the port that sent what they quote. Everything else goes
    /// to the shared port.
    fn port(&self, octets: &[u8], layout: &Layout) -> u16 {
        let inner = Extensions::decode(layout.next_header, &octets[layout.header_len..]).ok();
        let named = inner.and_then(|inner| match inner.next_header {
            next_header::UDP => number(inner.rest, 2),
            next_header::SCMP => match *inner.rest.first()? {
                kind if kind < INFORMATIONAL => quoted_port(inner.rest),
                kind if kind % 2 == 1 => number(inner.rest, 4),
                _ => None,
            },
            _ => None,
        });
        let [first, last] = self.end_host_ports;
        named.filter(|port| (first..=last).contains(port)).unwrap_or(self.shared_port)
    }
}

/// The 16 bits at `at`.
fn number(octets: &[u8], at: usize) -> Option<u16> {
    octets.get(at..at + 2).map(|two| u16::from_be_bytes([two[0], two[1]]))
}

/// The port of the process that sent the packet which an SCMP error quotes: the source port of UDP, or the identifier of an
/// echo or traceroute request. The quote may be cut anywhere.
fn quoted_port(message: &[u8]) -> Option<u16> {
    // Behind type, code, checksum and what the type adds (`scmp::Message::wire_len`).
    let quote = message.get(
        match *message.first()? {
            5 => 20,
            6 => 28,
            _ => 8,
        }..,
    )?;
    let header_len = 4 * usize::from(*quote.get(HEADER_LEN)?);
    if header_len < ADDRESSES {
        return None;
    }
    let inner = Extensions::decode(quote[4], quote.get(header_len..)?).ok()?;
    match (inner.next_header, inner.rest) {
        (next_header::UDP, rest) => number(rest, 0),
        (next_header::SCMP, [128 | 130, rest @ ..]) => number(rest, 3),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    //! SCI-05, SCMP, quotes: an error goes to the port that sent what it quotes.

    use wayleave_packet::scion::{Header, HostAddress, IsdAs, OneHopPath, Packet, Path};

    use super::*;

    fn delivery() -> LocalDelivery {
        LocalDelivery {
            discovery: None,
            control: Some(([10, 0, 0, 9], 30_252).into()),
            end_host_ports: [31_000, 32_767],
            shared_port: 30_041,
            is_on_loopback: false,
        }
    }

    fn to(host: HostAddress, next_header: u8, payload: Vec<u8>) -> Option<SocketAddr> {
        let hop = OneHopPath { info: Default::default(), first: Default::default(), second: Default::default() };
        let (dst, src) = (IsdAs::new(1, 1), IsdAs::new(1, 2));
        let src_host = HostAddress::V4([10, 0, 0, 1].into());
        let path = Path::OneHop(hop);
        let header = Header { traffic_class: 0, flow_id: 1, next_header, dst, src, dst_host: host, src_host, path };
        delivery().locate(&Packet { header, payload }.encode())
    }

    #[test]
    fn a_host_gets_packets_at_its_own_port_and_a_service_where_it_is() {
        let host = HostAddress::V4([10, 0, 0, 7].into());
        let udp = |port: u16| [&[0x80, 0][..], &port.to_be_bytes(), &[0, 8, 0, 0]].concat();
        let port = |next, payload| to(host, next, payload).map(|address| address.port());
        assert_eq!(to(host, next_header::UDP, udp(31_500)), Some(([10, 0, 0, 7], 31_500).into()));
        assert_eq!(port(next_header::UDP, udp(53)), Some(30_041));
        assert_eq!(port(next_header::UDP, vec![1]), Some(30_041));
        // An echo reply, and behind an extension header too.
        assert_eq!(port(next_header::SCMP, vec![129, 0, 0, 0, 0x7d, 0, 0, 1]), Some(32_000));
        let extended = [vec![next_header::UDP, 0, 0, 0], udp(31_500)].concat();
        assert_eq!(port(next_header::END_TO_END, extended), Some(31_500));
        let service = |service| to(HostAddress::Service(service), next_header::UDP, udp(1));
        assert_eq!(service(Service::CONTROL), Some(([10, 0, 0, 9], 30_252).into()));
        assert_eq!(service(Service::DISCOVERY), None);
    }

    /// What a host here has sent from UDP port 31,700, or as a request with that identifier.
    fn sent(next_header: u8, payload: Vec<u8>) -> Vec<u8> {
        let path = Path::OneHop(OneHopPath {
            info: Default::default(),
            first: Default::default(),
            second: Default::default(),
        });
        let host = |last: u8| HostAddress::V4([10, 0, 0, last].into());
        let (dst, src) = (IsdAs::new(1, 2), IsdAs::new(1, 1));
        let (dst_host, src_host) = (host(1), host(7));
        let header = Header { traffic_class: 0, flow_id: 1, next_header, dst, src, dst_host, src_host, path };
        Packet { header, payload }.encode()
    }

    #[test]
    fn an_error_goes_to_the_port_that_sent_what_it_quotes() {
        let host = HostAddress::V4([10, 0, 0, 7].into());
        let [high, low] = 31_700u16.to_be_bytes();
        let udp = sent(next_header::UDP, vec![high, low, 0, 53, 0, 9, 0, 0, 1]);
        let behind = sent(next_header::HOP_BY_HOP, vec![next_header::UDP, 0, 0, 0, high, low, 0, 53, 0, 9, 0, 0, 1]);
        let echo = sent(next_header::SCMP, vec![128, 0, 0, 0, high, low, 0, 1]);
        let traceroute = sent(next_header::SCMP, [vec![130, 0, 0, 0, high, low, 0, 1], vec![0; 16]].concat());
        for message in [1u8, 2, 4, 5, 6, 100] {
            let front =
                [vec![message, 0, 0, 0], vec![0; [4, 4, 4, 4, 4, 16, 24][usize::from(message) % 100 % 7]]].concat();
            let port =
                |quote: &[u8]| to(host, next_header::SCMP, [&front, quote].concat()).map(|address| address.port());
            for quote in [&udp, &behind, &echo, &traceroute] {
                assert_eq!(port(quote), Some(31_700), "{message} {quote:?}");
            }
            // Cut as short as it may be, and shorter: the port is missing.
            let header = udp.len() - 9;
            assert_eq!(port(&udp[..header + 2]), Some(31_700));
            for length in 0..header + 2 {
                assert_eq!(port(&udp[..length]), Some(30_041), "{message} {length}");
            }
            // What no host sends, and ports that are not those of end hosts.
            let error = sent(next_header::SCMP, vec![4, 0, 0, 0, high, low, 0, 1]);
            let other = sent(next_header::UDP, vec![0, 53, high, low, 0, 9, 0, 0, 1]);
            assert_eq!((port(&error), port(&other)), (Some(30_041), Some(30_041)));
        }
    }

    #[test]
    fn martians_are_no_hosts_of_this_as() {
        let udp = vec![0x80, 0, 0x7b, 0x0c, 0, 8, 0, 0];
        for host in ["127.0.0.1", "0.0.0.0", "224.0.0.1", "255.255.255.255", "169.254.1.1"] {
            assert_eq!(to(HostAddress::V4(host.parse().expect("IPv4")), next_header::UDP, udp.clone()), None, "{host}");
        }
        for host in ["::1", "::ffff:127.0.0.1", "ff02::1", "fe80::1"] {
            assert_eq!(to(HostAddress::V6(host.parse().expect("IPv6")), next_header::UDP, udp.clone()), None, "{host}");
        }
    }
}
