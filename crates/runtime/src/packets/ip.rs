//! IP packets as they are, by raw sockets: the system routes them, and fills in only header fields that are zero.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, bind, socket_with};

use super::system::messages::Receiver;
use super::system::options;
use super::udp::Batcher;
use super::{Burst, Outgoing, Port};

/// Bytes that the system may queue on a socket.
const BUFFERS: i32 = 8 << 20;
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
        Ok(Self { socket, receiver: Receiver::new(MESSAGES), batcher: Batcher::without_segments() })
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
