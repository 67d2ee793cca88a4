//! The sending end of a connection: the queue, and a close that the peer notices.
//!
//! A socket that is closed while octets of the peer lie in it unread is reset: the kernel then throws away what the peer has
//! not read yet, the NOTIFICATION first of all. So a closed connection is read until the peer has closed it too.

use std::convert::Infallible;
use std::io;
use std::os::fd::AsFd;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use rustix::net::{Shutdown, shutdown};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep};
use tracing::info;

use super::{CLOSE_LIMIT, CLOSE_STALL, LOW_WATER, READ_BYTES, TcpEvent, options};

/// How often the progress of a closed connection is looked at.
const CLOSE_CHECK: Duration = Duration::from_millis(100);

pub(super) struct Writer {
    pub(super) connection: u64,
    pub(super) waiting: Arc<AtomicUsize>,
    pub(super) blocked: Arc<AtomicBool>,
    pub(super) stream: Arc<TcpStream>,
}

impl Writer {
    /// Writes the queue. While the connection is open there is no timeout here: the session's own timers decide. Once it is
    /// closed, the peer may read the rest for as long as it makes progress, within [`CLOSE_LIMIT`].
    pub(super) async fn run<E: From<TcpEvent> + Send + 'static>(
        self,
        queued: mpsc::UnboundedReceiver<Vec<u8>>,
        mut closed: oneshot::Receiver<Infallible>,
        events: mpsc::Sender<E>,
    ) {
        let mut writing = pin!(self.write(queued, events));
        let written = tokio::select! {
            written = &mut writing => Some(written),
            _ = &mut closed => None,
        };
        let rest = async {
            let (written, ()) = match written {
                Some(Ok(())) => (Ok(()), self.discard().await),
                Some(Err(error)) => (Err(error), ()), // the reader fails too and reports it
                None => tokio::join!(writing, self.discard()),
            };
            written.is_err()
        };
        let has_failed = tokio::select! {
            has_failed = rest => has_failed,
            () = self.stalled() => true,
        };
        let left = self.left();
        if has_failed && left > 0 {
            let peer = self.stream.peer_addr().map_or_else(|_| "the peer".to_owned(), |address| address.to_string());
            info!(octets = left, "BGP connection with {peer} closed: the last {left} octets were not read there");
        }
    }

    async fn write<E: From<TcpEvent> + Send + 'static>(
        &self,
        mut queued: mpsc::UnboundedReceiver<Vec<u8>>,
        events: mpsc::Sender<E>,
    ) -> io::Result<()> {
        while let Some(bytes) = queued.recv().await {
            let left = self.write_all(&bytes).await?;
            if left <= LOW_WATER && self.blocked.swap(false, Ordering::AcqRel) {
                // Whoever takes events may have stopped: it must not hold up what is left to write.
                let (event, events) = (TcpEvent::Writable { connection: self.connection }, events.clone());
                tokio::spawn(async move { drop(events.send(event.into()).await) });
            }
        }
        Ok(shutdown(self.stream.as_fd(), Shutdown::Write)?)
    }

    /// Writes all octets; returns how many wait behind them.
    async fn write_all(&self, mut bytes: &[u8]) -> io::Result<usize> {
        loop {
            self.stream.writable().await?;
            match self.stream.try_write(bytes) {
                Ok(written) => {
                    bytes = &bytes[written..];
                    let left = self.waiting.fetch_sub(written, Ordering::AcqRel) - written;
                    if bytes.is_empty() {
                        return Ok(left);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads until the peer has closed the connection.
    async fn discard(&self) {
        let mut buffer = vec![0; READ_BYTES];
        while let Ok(1..) = read(&self.stream, &mut buffer).await {}
    }

    /// Returns when the peer has taken nothing for [`CLOSE_STALL`], or not all within [`CLOSE_LIMIT`].
    async fn stalled(&self) {
        let begin = Instant::now();
        let (mut last, mut since) = (self.left(), begin);
        while since.elapsed() < CLOSE_STALL && begin.elapsed() < CLOSE_LIMIT {
            sleep(CLOSE_CHECK).await;
            let left = self.left();
            if left < last {
                (last, since) = (left, Instant::now());
            }
        }
    }

    /// Octets that the peer's TCP has not acknowledged.
    fn left(&self) -> usize {
        self.waiting.load(Ordering::Acquire) + options::unacknowledged(self.stream.as_fd()).unwrap_or(0)
    }
}

/// Reads some octets; 0 at the end.
pub(super) async fn read(stream: &TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        stream.readable().await?;
        match stream.try_read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            read => return read,
        }
    }
}
