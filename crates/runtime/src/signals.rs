//! The signals that a daemon answers.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// A request by signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    /// SIGHUP: read the configuration again.
    Reload,
    /// SIGTERM or SIGINT: shut down.
    Stop,
}

/// The signals of this process.
#[derive(Debug)]
pub struct Signals {
    hang_up: Signal,
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Starts to listen. From now on these signals no longer end the process by themselves.
    pub fn listen() -> io::Result<Self> {
        Ok(Self {
            hang_up: signal(SignalKind::hangup())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next request. Cancel safe.
    pub async fn next(&mut self) -> Request {
        tokio::select! {
            _ = self.hang_up.recv() => Request::Reload,
            _ = self.terminate.recv() => Request::Stop,
            _ = self.interrupt.recv() => Request::Stop,
        }
    }
}
