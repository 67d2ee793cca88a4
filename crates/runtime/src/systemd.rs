//! Notifications to systemd (`sd_notify`): ready, reloading, stopping, alive. Without systemd they do nothing.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use tracing::debug;

/// A state of the daemon that systemd follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notice<'a> {
    /// Start or reload is complete.
    Ready,
    /// The configuration is being read again; the number is the monotonic clock in microseconds.
    Reloading(u64),
    /// Shutdown has begun.
    Stopping,
    /// The daemon does its work; due within [`watchdog`].
    Alive,
    /// A line for `systemctl status`.
    Status(&'a str),
}

/// Notifies systemd, if it started this process.
pub fn notify(notice: Notice<'_>) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let text = match notice {
        Notice::Ready => "READY=1".to_owned(),
        Notice::Reloading(at) => format!("RELOADING=1\nMONOTONIC_USEC={at}"),
        Notice::Stopping => "STOPPING=1".to_owned(),
        Notice::Alive => "WATCHDOG=1".to_owned(),
        Notice::Status(line) => format!("STATUS={}", line.replace('\n', " ")),
    };
    let bytes = path.as_encoded_bytes();
    // A leading `@` stands for the abstract namespace.
    let address = match bytes.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&path),
    };
    let send = |address: SocketAddr| {
        let socket = UnixDatagram::unbound()?;
        // Another one of these follows: the daemon does not wait for a systemd that does not read.
        socket.set_nonblocking(notice == Notice::Alive)?;
        socket.send_to_addr(text.as_bytes(), &address)
    };
    if let Err(error) = address.and_then(send) {
        debug!(%error, "systemd was not notified");
    }
}

/// How long the process may be silent before systemd ends it (`WatchdogSec`); `None` if it may be so for ever.
#[must_use]
pub fn watchdog() -> Option<Duration> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    // Set for another process, such as one that started this one.
    if number("WATCHDOG_PID").is_some_and(|process| process != u64::from(std::process::id())) {
        return None;
    }
    number("WATCHDOG_USEC").filter(|micros| *micros > 0).map(Duration::from_micros)
}

/// The monotonic clock as systemd expects it in [`Notice::Reloading`], in microseconds.
#[must_use]
pub fn monotonic_micros() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let part = |value: i64| u64::try_from(value).unwrap_or_default();
    part(now.tv_sec) * 1_000_000 + part(now.tv_nsec) / 1_000
}
