//! Where inner packets come from and go to: a TUN interface, or the stack of a proxy.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use wayleave_dataplane::gateway::Ready;
use wayleave_dataplane::gateway::offload::{HEADER, Kind, Offload, each_packet};
use wayleave_runtime::packets::stack::{Packet, StackPort};
use wayleave_runtime::packets::tun::Tun;

pub enum InnerSide {
    Tun { tun: Tun, scratch: Vec<u8> },
    Stack { port: StackPort, scratch: Vec<u8> },
}

impl InnerSide {
    /// Reads a packet behind its [`Offload`], as [`Tun::read`].
    ///
    /// # Errors
    /// What the system said.
    pub fn read(&self, out: &mut [u8]) -> io::Result<Option<usize>> {
        let port = match self {
            Self::Tun { tun, .. } => return tun.read(out),
            Self::Stack { port, .. } => port,
        };
        let Some(Packet { octets, segment }) = port.read() else { return Ok(None) };
        let kind = if octets.first().is_some_and(|first| first >> 4 == 4) { Kind::Tcp4 } else { Kind::Tcp6 };
        let offload = segment.map_or_else(Offload::default, |size| Offload { kind, size, ..Offload::default() });
        let length = HEADER + octets.len();
        out[..HEADER].copy_from_slice(&offload.encode());
        out[HEADER..length].copy_from_slice(&octets);
        Ok(Some(length))
    }

    /// Hands over a packet, or those for which it stands. Returns whether there was room for all of it.
    ///
    /// # Errors
    /// What the system said of this packet.
    pub fn write(&mut self, ready: &Ready) -> io::Result<bool> {
        match self {
            Self::Tun { tun, scratch } if ready.offload.kind == Kind::Udp && !tun.takes_datagrams() => {
                let mut has_room = Ok(true);
                each_packet(&ready.octets, &ready.offload, scratch, |packet| {
                    let taken = tun.write(&Offload::default().encode(), packet);
                    has_room = match (&has_room, taken) {
                        (Ok(before), Ok(taken)) => Ok(*before && taken),
                        (_, Err(error)) => Err(error),
                        (Err(_), Ok(_)) => return,
                    };
                });
                has_room
            }
            Self::Tun { tun, .. } => tun.write(&ready.offload.encode(), &ready.octets),
            Self::Stack { port, scratch } => {
                let mut has_room = true;
                each_packet(&ready.octets, &ready.offload, scratch, |packet| has_room &= port.write(packet));
                Ok(has_room)
            }
        }
    }
}

impl AsFd for InnerSide {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tun { tun, .. } => tun.as_fd(),
            Self::Stack { port, .. } => port.as_fd(),
        }
    }
}
