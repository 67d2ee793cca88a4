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

    /// Hands over a packet, or those for which it stands. Returns how many were taken, how many found no room, and how many were refused.
    pub fn write(&mut self, ready: &Ready) -> Written {
        let mut written = Written::default();
        let is_several = ready.offload.kind == Kind::Udp;
        match self {
            Self::Tun { tun, scratch } => {
                if !is_several || tun.takes_datagrams() {
                    let result = tun.write(&ready.offload.encode(), &ready.octets);
                    if result.is_ok() || !is_several {
                        let count = if is_several { ready.count() } else { 1 };
                        written.note(result, count as u64);
                        return written;
                    }
                }
                // The system knows no packet that stands for several datagrams, or refuses this one.
                let plain = Offload::default().encode();
                each_packet(&ready.octets, &ready.offload, scratch, |packet| {
                    written.note(tun.write(&plain, packet), 1)
                });
            }
            Self::Stack { port, scratch } => {
                let mut has_room = true;
                each_packet(&ready.octets, &ready.offload, scratch, |packet| match is_several {
                    true => written.note(Ok(port.write(packet)), 1),
                    false => has_room &= port.write(packet),
                });
                if !is_several {
                    written.note(Ok(has_room), 1);
                }
            }
        }
        written
    }
}

/// What became of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Written {
    pub taken: u64,
    pub no_room: u64,
    pub refused: u64,
}

impl Written {
    fn note(&mut self, result: io::Result<bool>, count: u64) {
        *match result {
            Ok(true) => &mut self.taken,
            Ok(false) => &mut self.no_room,
            Err(_) => &mut self.refused,
        } += count;
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
