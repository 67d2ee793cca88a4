//! IP packets as they are, by raw sockets: the system routes them, and fills in only header fields that are zero.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, bind, socket_with};

use super::steering::{NOTHING, only_port};
use super::system::messages::Receiver;
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

/// A raw socket for IPv4 packets of one protocol to one address; it sends any IPv4 packet.
pub struct Ip {
    socket: OwnedFd,
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
    pub fn open(address: Ipv4Addr, protocol: u8) -> io::Result<Self> {
        let protocol =
            Protocol::from_raw(std::num::NonZeroU32::new(protocol.into()).ok_or(io::ErrorKind::InvalidInput)?);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::INET, SocketType::RAW, flags, Some(protocol))?;
        options::set(socket.as_fd(), libc::IPPROTO_IP, libc::IP_HDRINCL, 1)?;
        options::buffers(socket.as_fd(), BUFFERS)?;
        bind(&socket, &SocketAddr::new(IpAddr::V4(address), 0))?;
        Ok(Self { socket, receiver: Receiver::new(MESSAGES), batcher: Batcher::without_segments(), _port: None })
    }

    /// Receives UDP datagrams to `port` at `address` as whole IP packets: a UDP socket would hide their headers. Nobody else has the port
    /// meanwhile, and the system answers nobody that it is closed.
    ///
    /// # Errors
    /// As [`Ip::open`] and [`UdpSocket::bind`].
    pub fn open_datagrams(address: Ipv4Addr, port: u16) -> io::Result<Self> {
        let held = UdpSocket::bind((address, port))?;
        options::filter_by(held.as_fd(), &NOTHING)?;
        let opened = Self::open(address, UDP)?;
        options::filter_by(opened.socket.as_fd(), &only_port(held.local_addr()?.port()))?;
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
        let count = self.receiver.receive(self.socket.as_fd(), burst.memory(), MAX_LENGTH, MAX_LENGTH)?;
        for index in 0..count {
            let message = self.receiver.message(index);
            burst.split(index * MAX_LENGTH, message.length, 0, message.from);
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

#[cfg(test)]
mod tests {
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
}
