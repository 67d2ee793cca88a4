//! The signals that a daemon answers.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// What the system or an operator asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asked {
    /// SIGHUP: read the configuration again.
    Reload,
    /// SIGTERM or SIGINT: finish and leave.
    Stop,
}

/// Listens for signals.
#[derive(Debug)]
pub struct Signals {
    hang_up: Signal,
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// From now on these signals no longer end the process by themselves.
    pub fn listen() -> io::Result<Self> {
        Ok(Self {
            hang_up: signal(SignalKind::hangup())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// The next one.
    pub async fn next(&mut self) -> Asked {
        tokio::select! {
            _ = self.hang_up.recv() => Asked::Reload,
            _ = self.terminate.recv() => Asked::Stop,
            _ = self.interrupt.recv() => Asked::Stop,
        }
    }
}
