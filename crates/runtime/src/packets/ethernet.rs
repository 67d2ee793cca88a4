//! Packets straight over Ethernet, by packet sockets: a socket has one neighbour on one network interface, and receives what
//! that one sends to this machine's own address there.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::system::link::{self, LinkAddress};
use super::system::messages::{Receiver, Sender};
use super::system::{interfaces, options};
use super::udp::is_out_of_buffers;
use super::{Burst, Outgoing, Port};

/// Bytes that the system may queue on a socket.
const BUFFERS: i32 = 8 << 20;
/// Messages received at a time.
const MESSAGES: usize = 64;
/// Octets of a packet, at most: a jumbo frame. An odd number of cache lines, so that packets do not compete for the same
/// sets of a cache.
const MAX_LENGTH: usize = 9_280;
/// Stands for the neighbour in a burst, since it has no IP address.
pub const NEIGHBOR: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// Where a socket is bound, and its neighbour.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Endpoint {
    /// The network interface, as in `eth0`.
    pub interface: String,
    /// The neighbour's Ethernet address.
    pub neighbor: [u8; 6],
    /// What frames carry, by their Ethertype.
    pub ether_type: u16,
}

/// A packet socket for one neighbour.
pub struct Ethernet {
    socket: OwnedFd,
    receiver: Receiver,
    sender: Sender,
    to: LinkAddress,
    lost: u64,
    endpoint: Endpoint,
    /// The interface's number and its own address when the socket was opened.
    here: (u32, [u8; 6]),
}

impl std::fmt::Debug for Ethernet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ethernet {:?}, {:?}", self.socket, self.to)
    }
}

impl Ethernet {
    /// Receives frames of the neighbour to this interface's own address, not those to groups or to others.
    ///
    /// # Errors
    /// What the system said: packet sockets need CAP_NET_RAW, and the interface must be an Ethernet.
    pub fn open(endpoint: &Endpoint) -> io::Result<Self> {
        // Without a protocol, nothing comes in before the filter is attached and the socket is bound.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::PACKET, SocketType::DGRAM, flags, None)?;
        let here = interfaces::ethernet_address(socket.as_fd(), &endpoint.interface)?;
        options::filter_by(socket.as_fd(), &filter(here, endpoint.neighbor))?;
        options::buffers(socket.as_fd(), BUFFERS)?;
        let index = interfaces::index(&endpoint.interface)?;
        let to = LinkAddress::new(index, endpoint.ether_type, endpoint.neighbor);
        link::bind(socket.as_fd(), &to)?;
        let (receiver, sender) = (Receiver::new(MESSAGES), Sender::default());
        Ok(Self { socket, receiver, sender, to, lost: 0, endpoint: endpoint.clone(), here: (index, here) })
    }

    /// Packets that were longer than a jumbo frame; they are lost.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }
}

impl AsFd for Ethernet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Port for Ethernet {
    fn receive(&mut self, burst: &mut Burst) -> io::Result<usize> {
        burst.clear();
        let count = self.receiver.receive(self.socket.as_fd(), burst.memory(), MAX_LENGTH, MAX_LENGTH)?;
        for index in 0..count {
            let message = self.receiver.message(index);
            if message.is_cut {
                self.lost += 1;
                continue;
            }
            burst.split(index * MAX_LENGTH, message.length, 0, NEIGHBOR);
        }
        Ok(burst.len())
    }

    fn send(&mut self, burst: &Burst, out: &[Outgoing]) -> io::Result<usize> {
        self.sender.clear();
        for next in out {
            self.sender.begin_on_link(&self.to);
            self.sender.append(burst.octets(next.packet as usize));
        }
        let (mut first, mut sent, mut failed) = (0, 0, None);
        while first < out.len() {
            match self.sender.send(self.socket.as_fd(), burst.all(), first) {
                Ok(count) => (first, sent) = (first + count, sent + count),
                Err(error) if is_out_of_buffers(&error) => break,
                // This one cannot be sent; perhaps it is longer than the link's MTU. The others may.
                Err(error) => {
                    failed.get_or_insert(error);
                    first += 1;
                }
            }
        }
        match failed {
            Some(error) if sent == 0 => Err(error),
            _ => Ok(sent),
        }
    }

    /// A socket stays bound to the interface of its time, and its filter to that interface's address, even when another
    /// interface of that name has come.
    fn renew(&mut self) -> io::Result<bool> {
        let name = &self.endpoint.interface;
        let here = (interfaces::index(name)?, interfaces::ethernet_address(self.socket.as_fd(), name)?);
        if here == self.here && link::bound(self.socket.as_fd())? == Some(here.0) {
            return Ok(false);
        }
        *self = Self { lost: self.lost, ..Self::open(&self.endpoint)? };
        Ok(true)
    }
}

/// Classic BPF: frames from `there` to `here` pass as a whole, all others are dropped.
fn filter(here: [u8; 6], there: [u8; 6]) -> Vec<[u32; 2]> {
    const LOAD_WORD: u32 = 0x20 << 16;
    const LOAD_HALF: u32 = 0x28 << 16;
    const EQUAL: u32 = 0x15 << 16;
    const RETURN: u32 = 0x06 << 16;
    /// Offsets from the beginning of the frame (SKF_LL_OFF).
    const FRAME: u32 = (-0x20_0000_i32).cast_unsigned();
    let word = |of: [u8; 6]| u32::from_be_bytes([of[0], of[1], of[2], of[3]]);
    let half = |of: [u8; 6]| u32::from(u16::from_be_bytes([of[4], of[5]]));
    vec![
        [LOAD_WORD, FRAME],
        [EQUAL | 7, word(here)],
        [LOAD_HALF, FRAME + 4],
        [EQUAL | 5, half(here)],
        [LOAD_WORD, FRAME + 6],
        [EQUAL | 3, word(there)],
        [LOAD_HALF, FRAME + 10],
        [EQUAL | 1, half(there)],
        [RETURN, u32::MAX],
        [RETURN, 0],
    ]
}
