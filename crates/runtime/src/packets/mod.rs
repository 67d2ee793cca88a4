//! Packets in and out, a burst at a time: one trait with two verbs is the whole boundary between a router and the system.

mod burst;
pub mod ethernet;
pub mod ip;
pub mod memory;
pub mod requests;
pub mod stack;
pub mod steering;
mod system;
pub mod tls;
pub mod tun;
pub mod udp;
pub mod xdp;

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub use burst::{Burst, MAX_PACKETS};

/// A packet of a burst on its way out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outgoing {
    /// Its index in the burst.
    pub packet: u32,
    /// The destination; a port with only one neighbour ignores it.
    pub to: SocketAddr,
}

/// Receives and sends packets: a socket, a queue of a network card, a ring in memory.
///
/// Neither verb blocks; the descriptor becomes readable when there is something to receive.
pub trait Port: AsFd + Send {
    /// Empties `burst` and receives at most one burst of packets. Returns how many; zero if none waits.
    ///
    /// # Errors
    /// What the system said. The port may be used again.
    fn receive(&mut self, burst: &mut Burst) -> io::Result<usize>;

    /// Sends these packets of `burst`, in order. Returns how many the system accepted; it had no room for the others.
    ///
    /// # Errors
    /// What the system said of the first packet that it refused for another reason than want of room.
    fn send(&mut self, burst: &Burst, out: &[Outgoing]) -> io::Result<usize>;

    /// The indices in the burst of the packets that the last [`Port::send`] was given and the system did not take, also if it failed: what
    /// was taken before that may leave still. `None` if they are those behind as many as it took, and all of a send that failed.
    fn unsent(&self) -> Option<&[u32]> {
        None
    }

    /// Sends packets of `size` octets each but the last, which may be shorter, from where they lie one behind the other. Returns how many
    /// the system accepted; `None` if it has to be done by [`Port::send`], and then nothing was sent.
    ///
    /// # Errors
    /// As [`Port::send`].
    fn send_run(&mut self, _octets: &[u8], _size: usize, _to: SocketAddr) -> Option<io::Result<usize>> {
        None
    }

    /// Reopens the port if its network interface was removed and is there again; returns whether it was. Meant to be called
    /// about once a second, not for every burst.
    ///
    /// # Errors
    /// What the system said: the interface is not there now.
    fn renew(&mut self) -> io::Result<bool> {
        Ok(false)
    }
}

/// Marks what a socket sends from here on, for the system's rules of routing (`SO_MARK`).
pub(crate) fn set_mark(socket: BorrowedFd<'_>, mark: u32) -> io::Result<()> {
    system::options::set(socket, libc::SOL_SOCKET, libc::SO_MARK, mark.cast_signed())
}

/// Whether an interface has no link layer, as TUN and WireGuard have none; `socket` is any socket.
pub(crate) fn has_no_link_layer(socket: BorrowedFd<'_>, name: &str) -> bool {
    system::interfaces::has_no_link_layer(socket, name).unwrap_or_default()
}

/// Waits until one of `ports` has something to receive, at most `timeout`.
///
/// # Errors
/// As [`wait_for`].
pub fn wait<'a>(ports: impl Iterator<Item = &'a dyn Port>, timeout: Duration) -> io::Result<()> {
    wait_for(ports.map(AsFd::as_fd), timeout)
}

/// Waits until one of these descriptors is readable, at most `timeout`.
///
/// # Errors
/// What the system said; not an interruption by a signal.
pub fn wait_for<'a>(descriptors: impl Iterator<Item = BorrowedFd<'a>>, timeout: Duration) -> io::Result<()> {
    let mut waiting: Vec<PollFd<'a>> = descriptors.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    let timeout = Timespec { tv_sec: timeout.as_secs().cast_signed(), tv_nsec: timeout.subsec_nanos().into() };
    match poll(&mut waiting, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
