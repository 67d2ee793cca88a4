//! Notifications to systemd (`sd_notify`): ready, reloading, stopping, alive. Without systemd they do nothing.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use tracing::debug;

/// How long to wait for a systemd that does not read.
const PATIENCE: Duration = Duration::from_secs(1);

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
    // Another one of these follows.
    let patience = if notice == Notice::Alive { Duration::ZERO } else { PATIENCE };
    if let Err(error) = send(&path, &text, patience) {
        debug!(%error, "systemd was not notified");
    }
}

/// Sends a text to the socket at `path`. A reader that does not read is waited for so long: what the daemon does is more than that
/// somebody hears of it.
fn send(path: &OsStr, text: &str, patience: Duration) -> io::Result<()> {
    // A leading `@` stands for the abstract namespace.
    let address = match path.as_encoded_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(path),
    };
    let socket = UnixDatagram::unbound()?;
    match patience {
        Duration::ZERO => socket.set_nonblocking(true)?,
        patience => socket.set_write_timeout(Some(patience))?,
    }
    socket.send_to_addr(text.as_bytes(), &address?).map(|_| ())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_does_not_read_holds_nothing_up() {
        let path = std::env::temp_dir().join(format!("wayleave-notify-{}", std::process::id()));
        let reader = UnixDatagram::bind(&path).expect("a socket");
        // More than the kernel keeps for a reader, whatever net.unix.max_dgram_qlen is.
        let taken = (0..100_000).take_while(|_| send(path.as_os_str(), "READY=1", Duration::ZERO).is_ok()).count();
        assert!((1..100_000).contains(&taken));
        assert!(send(path.as_os_str(), "READY=1", Duration::from_millis(1)).is_err());
        let mut buffer = [0; 16];
        assert_eq!(reader.recv(&mut buffer).expect("the first one"), "READY=1".len());
        send(path.as_os_str(), "READY=1", PATIENCE).expect("there is room");
        std::fs::remove_file(path).expect("removed");
    }
}
