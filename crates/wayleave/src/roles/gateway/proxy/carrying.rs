//! Octets of applications and of far ends, both ways, until both have said all, or until nothing more can be expected: whatever one end does,
//! or does not do, a connection does not hold its place for ever.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};
use wayleave_dataplane::gateway::proxy::Protocol;
use wayleave_runtime::packets::stack::{Connection, IDLE};

/// Once the application has ended its side, so long may pass between two pieces of what the far end says or takes.
const HALF_CLOSED: Duration = Duration::from_secs(120);
/// And the whole answer to a request may take so long.
const ANSWERED: Duration = Duration::from_secs(600);
/// Octets that are on their way through the proxy in each direction of a connection, beside the buffers of both its ends.
const COPIED: usize = 64 << 10;
/// How often it is looked at whether anything can still be expected.
const LOOK: Duration = Duration::from_secs(5);

/// Carries octets both ways until both ends have said all.
pub async fn tunnel(
    stream: &mut TcpStream,
    mut connection: Connection,
    protocol: Protocol,
    early: &[u8],
) -> io::Result<()> {
    stream.write_all(protocol.success()).await?;
    let watch = Watch::new(HALF_CLOSED);
    let descriptor = stream.as_fd().try_clone_to_owned()?;
    let both = async {
        let (mut from_application, mut to_application) = stream.split();
        let (mut from_far, mut to_far) = tokio::io::split(&mut connection);
        let up = async {
            watch.carry(&mut (early.chain(&mut from_application)), &mut to_far).await?;
            to_far.shutdown().await
        };
        let down = async {
            watch.carry(&mut from_far, &mut to_application).await?;
            to_application.shutdown().await
        };
        tokio::try_join!(up, down).map(|_| ())
    };
    tokio::select! {
        ended = both => ended,
        ended = watch.end(descriptor.as_fd()) => ended,
    }
}

/// Carries one request and its answer, which ends with the connection: what the application sends behind its request is for nobody.
pub async fn forward(
    stream: &mut TcpStream,
    mut connection: Connection,
    head: Vec<u8>,
    body: u64,
    early: &[u8],
) -> io::Result<()> {
    let watch = Watch::new(ANSWERED);
    let descriptor = stream.as_fd().try_clone_to_owned()?;
    let (mut from_application, mut to_application) = stream.split();
    let (mut answer, mut request) = tokio::io::split(&mut connection);
    let up = async {
        request.write_all(&head).await?;
        let mut octets = early.chain(&mut from_application);
        let sent = watch.carry(&mut (&mut octets).take(body), &mut request).await?;
        if sent == body {
            // A FIN now would tell some servers that nobody waits for the answer.
            watch.carry(&mut octets, &mut tokio::io::sink()).await?;
        }
        request.shutdown().await?;
        sleep(ANSWERED).await;
        Ok::<(), io::Error>(())
    };
    let down = async { watch.carry(&mut answer, &mut to_application).await.map(|_| ()) };
    tokio::select! {
        ended = up => ended,
        ended = down => ended,
        ended = watch.end(descriptor.as_fd()) => ended,
    }
}

/// When octets last went, either way.
struct Watch {
    last: Mutex<Instant>,
    /// How long nothing may go at all, and once the application has ended.
    idle: Duration,
    patience: Duration,
    /// How often that is looked at.
    look: Duration,
}

impl Watch {
    fn new(patience: Duration) -> Self {
        Self { last: Mutex::new(Instant::now()), idle: IDLE, patience, look: LOOK }
    }

    fn note(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Copies all that `from` says; returns how much that was.
    async fn carry(&self, from: &mut (impl AsyncRead + Unpin), to: &mut (impl AsyncWrite + Unpin)) -> io::Result<u64> {
        let (mut octets, mut total) = (vec![0; COPIED], 0);
        loop {
            let length = from.read(&mut octets).await?;
            if length == 0 {
                return Ok(total);
            }
            let mut rest = &octets[..length];
            while !rest.is_empty() {
                self.note();
                let taken = to.write(rest).await?;
                if taken == 0 {
                    return Err(io::ErrorKind::WriteZero.into());
                }
                rest = &rest[taken..];
            }
            self.note();
            total += length as u64;
        }
    }

    /// Ends when nothing more can be expected: nothing has gone for longer than a gateway remembers a connection, or for some time after the
    /// application has ended, whether that was read or not.
    async fn end(&self, application: BorrowedFd<'_>) -> io::Result<()> {
        loop {
            sleep(self.look).await;
            let silent = self.last.lock().unwrap_or_else(PoisonError::into_inner).elapsed();
            if silent >= self.idle || silent >= self.patience && has_ended(application) {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }
}

/// Whether the other end of a connection has ended its side, or all of it.
fn has_ended(stream: BorrowedFd<'_>) -> bool {
    let mut ends = [PollFd::from_borrowed_fd(stream, PollFlags::RDHUP)];
    poll(&mut ends, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|count| count > 0)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::net::TcpListener;

    use super::*;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a listener");
        let near = TcpStream::connect(listener.local_addr().expect("bound")).await.expect("connected");
        (near, listener.accept().await.expect("accepted").0)
    }

    #[tokio::test]
    async fn a_connection_that_moves_nothing_ends_once_the_application_has_and_otherwise_when_it_is_forgotten() {
        const SHORT: Duration = Duration::from_millis(20);
        let watch = || Watch { look: SHORT / 4, ..Watch::new(SHORT) };
        let (application, own) = pair().await;
        let forgotten = Watch { idle: SHORT, ..watch() };
        assert!(forgotten.end(own.as_fd()).await.is_err(), "both are there, and say nothing");
        let there = watch();
        tokio::select! {
            _ = there.end(own.as_fd()) => unreachable!("the application is there"),
            () = sleep(SHORT * 5) => {}
        }
        // It ends, and what it has sent is not read: somebody at the far end takes nothing.
        application.writable().await.expect("writable");
        application.try_write(b"never read").expect("sent");
        drop(application);
        while !has_ended(own.as_fd()) {
            tokio::task::yield_now().await;
        }
        assert!(watch().end(own.as_fd()).await.is_err());
        let patient = Watch { patience: IDLE, ..watch() };
        tokio::select! {
            _ = patient.end(own.as_fd()) => unreachable!("octets may still go"),
            () = sleep(SHORT * 5) => {}
        }
    }
}
