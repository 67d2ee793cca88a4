//! Packets in and out, a burst at a time: one trait with two verbs is all that stands between a router and the system.

mod burst;
pub mod ethernet;
pub mod ip;
pub mod memory;
mod system;
pub mod udp;
pub mod xdp;

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub use burst::{Burst, MOST};

/// A packet of a burst on its way out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outgoing {
    /// Its place in the burst.
    pub packet: u32,
    /// Where to; a port that knows only one place takes no notice.
    pub to: SocketAddr,
}

/// A way in and out for packets: a socket, a queue of a network card, a ring in memory.
///
/// Neither verb waits; the descriptor becomes readable when there is something to receive.
pub trait Port: AsFd + Send {
    /// Empties `burst` and takes in what has come, at most one burst. Returns how many packets that are; zero if none
    /// wait.
    ///
    /// # Errors
    /// What the system said. The port may be used again.
    fn receive(&mut self, burst: &mut Burst) -> io::Result<usize>;

    /// Sends these packets of `burst`, in order. Returns how many the system took; there was no room for the others.
    ///
    /// # Errors
    /// What the system said of the first that it did not take for another reason than want of room.
    fn send(&mut self, burst: &Burst, out: &[Outgoing]) -> io::Result<usize>;

    /// Opens anew what the system has taken away, a network interface that was removed and is there again; returns whether
    /// there was such a thing. To be called now and then, not for every burst.
    ///
    /// # Errors
    /// What the system said: the interface is not there now.
    fn renew(&mut self) -> io::Result<bool> {
        Ok(false)
    }
}

/// Waits until one of `ports` has something to receive, at most `timeout`.
///
/// # Errors
/// What the system said; not an interruption by a signal.
pub fn wait<'a>(ports: impl Iterator<Item = &'a dyn Port>, timeout: Duration) -> io::Result<()> {
    let mut waiting: Vec<PollFd<'a>> =
        ports.map(|port| PollFd::from_borrowed_fd(port.as_fd(), PollFlags::IN)).collect();
    let timeout = Timespec { tv_sec: timeout.as_secs().cast_signed(), tv_nsec: timeout.subsec_nanos().into() };
    match poll(&mut waiting, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
