//! A socket that systemd opened and hands over (`sd_listen_fds(3)`): it stays open between two runs of the role, so that nobody else takes its
//! address, and who connects meanwhile waits.

#![allow(
    unsafe_code,
    reason = "a descriptor that the process was started with, for which the standard library has no safe call"
)]

use std::io;
use std::net::TcpListener;
use std::os::fd::BorrowedFd;

use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use rustix::net::{SocketType, sockopt};

/// The first descriptor that is handed over (`SD_LISTEN_FDS_START`).
const FIRST: i32 = 3;

/// The socket that this process was handed over; `None` if it was handed over none.
///
/// # Errors
/// If it was handed over several, or one that takes no connections.
pub fn listener() -> io::Result<Option<TcpListener>> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u32>().ok();
    // What is set for another process, such as one that started this one, is not for this one.
    if number("LISTEN_PID") != Some(std::process::id()) {
        return Ok(None);
    }
    match number("LISTEN_FDS") {
        None | Some(0) => return Ok(None),
        Some(1) => {}
        Some(many) => return Err(io::Error::other(format!("it is {many} sockets, expected one"))),
    }
    // SAFETY: it is open for as long as the process runs, since nobody here owns it: what is used is a duplicate.
    let handed_over = unsafe { BorrowedFd::borrow_raw(FIRST) };
    // Programs that this one starts have no use for it.
    fcntl_setfd(handed_over, FdFlags::CLOEXEC)?;
    let is_stream = sockopt::socket_type(handed_over)? == SocketType::STREAM;
    if !is_stream || !sockopt::socket_acceptconn(handed_over)? {
        return Err(io::Error::other("it takes no connections, expected a stream socket that listens"));
    }
    let listener = TcpListener::from(fcntl_dupfd_cloexec(handed_over, FIRST)?);
    listener.local_addr().map_err(|_| io::Error::other("it has no address of IPv4 or IPv6"))?;
    listener.set_nonblocking(true)?;
    Ok(Some(listener))
}

#[cfg(test)]
mod tests {
    #[test]
    fn nothing_is_taken_that_is_for_another_process() {
        // This process was started without, or for another one.
        assert!(super::listener().is_ok_and(|listener| listener.is_none()));
    }
}
