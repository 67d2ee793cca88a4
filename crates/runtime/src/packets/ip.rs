//! IP packets as they are, by raw sockets: the system routes them, and fills in only header fields of IPv4 that are zero.
//!
//! A raw socket of IPv6 sends the header that it is given (`IPV6_HDRINCL`) and receives what is behind it (RFC 3542 section 3): the header is
//! written again of what the system says of it.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, bind, socket_with};

use super::steering::{NOTHING, only_port, only_port_v6, only_protocol};
use super::system::messages::{HeaderFields, Receiver};
use super::system::options;
use super::udp::Batcher;
use super::{Burst, Outgoing, Port};

/// Bytes that the system may queue on a socket.
const BUFFERS: i32 = 8 << 20;
/// The protocol number of UDP.
const UDP: u8 = 17;
/// Messages received at a time.
const MESSAGES: usize = 16;
/// Bytes for the greatest IP packet: an odd number of cache lines, so that packets do not compete for the same sets of a
/// cache.
const MAX_LENGTH: usize = 65_536 + 192;
/// Octets of an IPv6 header.
const IPV6_HEADER: usize = 40;

/// A raw socket for IP packets of one protocol to one address; it sends any IP packet of the address's family.
///
/// What has extension headers of IPv6 is not received.
pub struct Ip {
    socket: OwnedFd,
    address: IpAddr,
    protocol: u8,
    receiver: Receiver,
    batcher: Batcher,
    /// Holds the port whose datagrams come by the raw socket.
    _port: Option<UdpSocket>,
}

impl std::fmt::Debug for Ip {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ip {:?}", self.socket)
    }
}

impl Ip {
    /// Receives packets of `protocol` to `address`.
    ///
    /// # Errors
    /// What the system said: raw sockets need CAP_NET_RAW, and the address must be one of this machine.
    pub fn open(address: impl Into<IpAddr>, protocol: u8) -> io::Result<Self> {
        let address = address.into();
        let of_kind =
            Protocol::from_raw(std::num::NonZeroU32::new(protocol.into()).ok_or(io::ErrorKind::InvalidInput)?);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = socket_with(family, SocketType::RAW, flags, Some(of_kind))?;
        if address.is_ipv4() {
            options::set(socket.as_fd(), libc::IPPROTO_IP, libc::IP_HDRINCL, 1)?;
        } else {
            for option in [libc::IPV6_HDRINCL, libc::IPV6_RECVHOPLIMIT, libc::IPV6_FLOWINFO] {
                options::set(socket.as_fd(), libc::IPPROTO_IPV6, option, 1)?;
            }
            options::filter_by(socket.as_fd(), &only_protocol(protocol))?;
        }
        options::buffers(socket.as_fd(), BUFFERS)?;
        bind(&socket, &SocketAddr::new(address, 0))?;
        let (receiver, batcher) = (Receiver::new(MESSAGES), Batcher::without_segments());
        Ok(Self { socket, address, protocol, receiver, batcher, _port: None })
    }

    /// Receives UDP datagrams to `port` at `address` as whole IP packets: a UDP socket would hide their headers. Nobody else has the port
    /// meanwhile, and the system answers nobody that it is closed.
    ///
    /// # Errors
    /// As [`Ip::open`] and [`UdpSocket::bind`].
    pub fn open_datagrams(address: impl Into<IpAddr>, port: u16) -> io::Result<Self> {
        let address = address.into();
        let held = UdpSocket::bind((address, port))?;
        options::filter_by(held.as_fd(), &NOTHING)?;
        let opened = Self::open(address, UDP)?;
        let port = held.local_addr()?.port();
        match address {
            IpAddr::V4(_) => options::filter_by(opened.socket.as_fd(), &only_port(port))?,
            IpAddr::V6(_) => options::filter_by(opened.socket.as_fd(), &only_port_v6(port))?,
        }
        Ok(Self { _port: Some(held), ..opened })
    }

    /// Marks what is sent from here on, for the system's rules of routing (`SO_MARK`).
    ///
    /// # Errors
    /// What the system said: this needs CAP_NET_ADMIN.
    pub fn set_mark(&self, mark: u32) -> io::Result<()> {
        super::set_mark(self.socket.as_fd(), mark)
    }
}

impl AsFd for Ip {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Port for Ip {
    fn receive(&mut self, burst: &mut Burst) -> io::Result<usize> {
        burst.clear();
        // What the system receives without its header lies behind the place for it.
        let (ahead, own) = match self.address {
            IpAddr::V4(_) => (0, None),
            IpAddr::V6(own) => (IPV6_HEADER, Some(own)),
        };
        let memory = burst.memory().get_mut(ahead..).unwrap_or_default();
        let count = self.receiver.receive(self.socket.as_fd(), memory, MAX_LENGTH, MAX_LENGTH - ahead)?;
        for index in 0..count {
            let message = self.receiver.message(index);
            if let (Some(own), IpAddr::V6(from)) = (own, message.from.ip()) {
                let header = header(self.receiver.header_fields(index), message.length, self.protocol, [from, own]);
                burst.memory()[index * MAX_LENGTH..][..IPV6_HEADER].copy_from_slice(&header);
            }
        }
        for index in 0..count {
            let message = self.receiver.message(index);
            burst.split(index * MAX_LENGTH, ahead + message.length, 0, message.from);
        }
        Ok(burst.len())
    }

    fn send(&mut self, burst: &Burst, out: &[Outgoing]) -> io::Result<usize> {
        self.batcher.send(self.socket.as_fd(), burst, out)
    }

    fn unsent(&self) -> Option<&[u32]> {
        Some(self.batcher.unsent())
    }
}

/// The IPv6 header of a packet of which this is known (RFC 8200 section 3).
fn header(fields: HeaderFields, payload: usize, protocol: u8, ends: [Ipv6Addr; 2]) -> [u8; IPV6_HEADER] {
    let mut out = [0; IPV6_HEADER];
    out[..4].copy_from_slice(&(6 << 28 | fields.flow & 0x0fff_ffff).to_be_bytes());
    // A longer one is none that decoders take: they compare it with what is there.
    out[4..6].copy_from_slice(&u16::try_from(payload).unwrap_or(u16::MAX).to_be_bytes());
    (out[6], out[7]) = (protocol, fields.hop_limit);
    for (end, address) in out[8..].chunks_exact_mut(16).zip(ends) {
        end.copy_from_slice(&address.octets());
    }
    out
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn datagrams_to_one_port_come_as_whole_packets_and_no_others() {
        let here = Ipv4Addr::LOCALHOST;
        let mut ip = match Ip::open_datagrams(here, 0) {
            // Who may open no raw socket.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return,
            opened => opened.expect("opened"),
        };
        let port = ip._port.as_ref().map(|held| held.local_addr().expect("bound").port()).expect("held");
        assert!(UdpSocket::bind((here, port)).is_err(), "nobody else has it");
        let [other, sender] = [(); 2].map(|()| UdpSocket::bind((here, 0)).expect("a socket"));
        for (to, octets) in [(other.local_addr().expect("bound").port(), b"other"), (port, b"first"), (port, b"again")]
        {
            sender.send_to(octets, (here, to)).expect("sent");
        }
        let (mut burst, mut received) = (Burst::default(), Vec::new());
        let begin = Instant::now();
        while received.len() < 2 && begin.elapsed() < Duration::from_secs(10) {
            let count = ip.receive(&mut burst).expect("received");
            received.extend((0..count).map(|number| burst.octets(number).to_vec()));
        }
        let whole = |packet: &Vec<u8>| (packet[0], packet[9], packet.len(), packet[28..].to_vec());
        let expected = [b"first", b"again"].map(|octets| (0x45, UDP, 33, octets.to_vec()));
        assert_eq!(received.iter().map(whole).collect::<Vec<_>>(), expected);
        // The port is not closed: the sender is not told so.
        sender.connect((here, port)).expect("connected");
        sender.send(b"more").expect("sent");
        std::thread::sleep(Duration::from_millis(20));
        sender.send(b"more").expect("no error came");
    }

    /// A socket of IPv6; none for whom no raw socket is allowed, and on a system without IPv6.
    fn opened(ip: io::Result<Ip>) -> Option<Ip> {
        match ip {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => None,
            Err(error) if [Some(libc::EAFNOSUPPORT), Some(libc::EADDRNOTAVAIL)].contains(&error.raw_os_error()) => None,
            ip => Some(ip.expect("opened")),
        }
    }

    /// All that waits, `count` packets at least.
    fn received(ip: &mut Ip, count: usize) -> Vec<Vec<u8>> {
        let (mut burst, mut all) = (Burst::default(), Vec::new());
        let begin = Instant::now();
        while all.len() < count && begin.elapsed() < Duration::from_secs(10) {
            let came = ip.receive(&mut burst).expect("received");
            all.extend((0..came).map(|number| burst.octets(number).to_vec()));
        }
        all
    }

    fn send(ip: &mut Ip, packets: &[Vec<u8>]) {
        let (mut burst, to) = (Burst::default(), SocketAddr::new(Ipv6Addr::LOCALHOST.into(), 0));
        assert!(packets.iter().all(|packet| burst.push(packet, to)));
        let out: Vec<Outgoing> = (0..packets.len()).map(|packet| Outgoing { packet: packet as u32, to }).collect();
        assert_eq!(ip.send(&burst, &out).expect("sent"), packets.len());
    }

    #[test]
    fn packets_of_ipv6_come_with_the_header_that_they_were_sent_with() {
        const PROTOCOL: u8 = 253;
        let here = Ipv6Addr::LOCALHOST;
        let Some(mut ip) = opened(Ip::open(here, PROTOCOL)) else { return };
        let packet = |flow: u32, hop_limit: u8, length: usize| {
            let fields = HeaderFields { flow, hop_limit };
            [&header(fields, length, PROTOCOL, [here; 2])[..], &vec![0x5a; length]].concat()
        };
        // Traffic class and flow label; none; lengths up to what the interface takes.
        let packets = [packet(0x0b8_12345, 61, 4), packet(0, 1, 0), packet(1, 255, 60_000)];
        // A destination option in front: nobody could tell where the header begins.
        let mut extended = packet(0, 64, 16);
        extended[6] = 60;
        extended[40..48].copy_from_slice(&[PROTOCOL, 0, 1, 4, 0, 0, 0, 0]);
        send(&mut ip, &[extended]);
        send(&mut ip, &packets);
        assert_eq!(received(&mut ip, packets.len()), packets);
    }

    #[test]
    fn datagrams_of_ipv6_to_one_port_come_as_whole_packets_and_no_others() {
        let here = Ipv6Addr::LOCALHOST;
        let Some(mut ip) = opened(Ip::open_datagrams(here, 0)) else { return };
        let port = ip._port.as_ref().map(|held| held.local_addr().expect("bound").port()).expect("held");
        assert!(UdpSocket::bind((here, port)).is_err(), "nobody else has it");
        let [other, sender] = [(); 2].map(|()| UdpSocket::bind((here, 0)).expect("a socket"));
        for (to, octets) in [(other.local_addr().expect("bound").port(), b"other"), (port, b"first"), (port, b"again")]
        {
            sender.send_to(octets, (here, to)).expect("sent");
        }
        let whole = |packet: &Vec<u8>| (packet[0] & 0xf0, packet[6], packet.len(), packet[48..].to_vec());
        let expected = [b"first", b"again"].map(|octets| (0x60, UDP, 53, octets.to_vec()));
        let received = received(&mut ip, 2);
        assert_eq!(received.iter().map(whole).collect::<Vec<_>>(), expected);
    }
}
