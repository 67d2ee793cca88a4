//! Where a packet that has reached its AS goes: the address and UDP port of the host or service that its header names.

use std::net::{IpAddr, SocketAddr};

use wayleave_packet::platypus::verify::is_martian;
use wayleave_packet::scion::{Layout, Service, next_header};

/// Octets in front of the host addresses: the common header, and both ISD-AS numbers.
const ADDRESSES: usize = 12 + 16;
/// The octet with type and length of the destination address in its upper half.
const ADDRESS_TYPES: usize = 9;
/// SCMP messages of types above this are requests (even) and replies (odd); those below are errors.
const INFORMATIONAL: u8 = 128;

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

impl LocalDelivery {
    /// Returns where the destination that the header names is reached; `None` if it cannot be.
    ///
    /// A martian address is refused: the operating system would send such a packet to this machine itself, or to many.
    /// Only a router that is itself on loopback reaches hosts there.
    #[must_use]
    pub fn locate(&self, octets: &[u8]) -> Option<SocketAddr> {
        let layout = Layout::decode(octets).ok()?;
        let kind = octets[ADDRESS_TYPES] >> 4;
        let length = 4 * (usize::from(kind & 3) + 1);
        let host = octets.get(ADDRESSES..ADDRESSES + length)?;
        match (kind, host) {
            (0, &[a, b, c, d]) => self.host([a, b, c, d].into(), octets, &layout),
            (3, host) => self.host(<[u8; 16]>::try_from(host).ok()?.into(), octets, &layout),
            (4, &[a, b, ..]) => match Service(u16::from_be_bytes([a, b]) & !Service::MULTICAST) {
                Service::DISCOVERY => self.discovery,
                Service::CONTROL => self.control,
                _ => None,
            },
            _ => None,
        }
    }

    fn host(&self, host: IpAddr, octets: &[u8], layout: &Layout) -> Option<SocketAddr> {
        let is_refused = is_martian(host) && !(self.is_on_loopback && host.is_loopback());
        (!is_refused).then(|| SocketAddr::new(host, self.port(octets, layout)))
    }

    /// UDP goes to its own port if that is one of end hosts. Echo and traceroute replies go to the port of the host that
    /// sent the request, which is their identifier. Everything else goes to the shared port.
    fn port(&self, octets: &[u8], layout: &Layout) -> u16 {
        let payload = &octets[layout.header_len..];
        let number = |at: usize| payload.get(at..at + 2).map(|two| u16::from_be_bytes([two[0], two[1]]));
        let named = match layout.next_header {
            next_header::UDP => number(2),
            next_header::SCMP if payload.first().is_some_and(|kind| *kind > INFORMATIONAL && kind % 2 == 1) => {
                number(4)
            }
            _ => None,
        };
        let [first, last] = self.end_host_ports;
        named.filter(|port| (first..=last).contains(port)).unwrap_or(self.shared_port)
    }
}

#[cfg(test)]
mod tests {
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
        // An echo reply, and an error.
        assert_eq!(port(next_header::SCMP, vec![129, 0, 0, 0, 0x7d, 0, 0, 1]), Some(32_000));
        assert_eq!(port(next_header::SCMP, vec![1, 0, 0, 0, 0x7d, 0, 0, 1]), Some(30_041));
        let service = |service| to(HostAddress::Service(service), next_header::UDP, udp(1));
        assert_eq!(service(Service::CONTROL), Some(([10, 0, 0, 9], 30_252).into()));
        assert_eq!(service(Service::DISCOVERY), None);
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
