//! Plain TCP for BGP sessions: numbered connections, octets in and out, back-pressure, and protection by password and TTL.

mod options;
mod protection;
mod usable;
mod writer;

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};
use tracing::warn;

use self::writer::Writer;
use crate::log_limit::{Line, LogLimit};
use crate::starts::{self, PeerName};

pub use protection::{Hops, Password, Protection, ProtectionError};
pub use usable::Usable;

/// How long a connection may take to open.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Octets read at once.
const READ_BYTES: usize = 64 * 1024;
/// Octets in the queue above which a connection is blocked, and below which it is writable again. The queue itself has no
/// bound: a blocked session is given no further routes, so that it exceeds the mark by one batch of messages at most.
const HIGH_WATER: usize = 1 << 20;
const LOW_WATER: usize = 1 << 18;
/// Connections open at once; more are closed as they come.
const MAX_CONNECTIONS: usize = 1024;
/// Connections that the kernel may hold for a listener until they are accepted.
const BACKLOG: u32 = 1024;
/// How long a peer may read nothing of what is left after a close, and how long reading the rest may take in all. Then the
/// connection is given up, with what the peer has not read: the NOTIFICATION comes last.
const CLOSE_STALL: Duration = Duration::from_secs(3);
const CLOSE_LIMIT: Duration = Duration::from_secs(30);

/// What happened on TCP.
#[derive(Debug)]
pub enum TcpEvent {
    /// A peer connected to us.
    Accepted {
        /// The connection's number, never used twice.
        connection: u64,
        address: SocketAddr,
    },
    /// Another address than [`TcpOptions::peer`] had connected; that connection is closed.
    Refused { address: IpAddr },
    /// A connection requested with [`Sockets::connect`] is open.
    Connected {
        /// The caller's number of the attempt.
        attempt: u64,
        connection: u64,
    },
    /// A connection requested with [`Sockets::connect`] could not be opened.
    ConnectFailed {
        /// The caller's number of the attempt.
        attempt: u64,
        error: io::Error,
    },
    Bytes {
        connection: u64,
        /// At least one.
        bytes: Vec<u8>,
    },
    /// The peer closed the connection, or it was lost; not sent after [`Sockets::close`].
    Closed { connection: u64 },
    /// Most of the queue of a blocked connection has been sent.
    Writable { connection: u64 },
}

/// How connections are made.
#[derive(Clone, Debug, Default)]
pub struct TcpOptions {
    /// Only this address may connect. A listener with a password needs it.
    pub peer: Option<IpAddr>,
    /// The local address of connections that we open.
    pub bind: Option<IpAddr>,
    /// TTL of what we send, where `protection` does not set it.
    pub ttl: Option<u8>,
    /// The peer, as the log names it; for those that may be refused after a start.
    pub name: Option<PeerName>,
    /// In force from the first segment of each connection on.
    pub protection: Protection,
}

impl TcpOptions {
    fn refusal(&self) -> Option<&'static str> {
        self.name.as_ref().and_then(|name| starts::refusal(name))
    }
}

/// The TCP connections of one BGP speaker; all close when it is dropped.
#[derive(Debug)]
pub struct Sockets<E> {
    events: mpsc::Sender<E>,
    options: TcpOptions,
    shared: Arc<Shared>,
    attempt: Option<AbortHandle>,
    listeners: Vec<AbortHandle>,
}

/// Looks at the connections of one BGP speaker, also after its [`Sockets`] are gone.
#[derive(Clone, Debug)]
pub struct Connections(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    table: Mutex<ConnectionTable>,
    /// Connections whose octets are still being written, the closed ones included.
    writing: watch::Sender<usize>,
}

#[derive(Debug, Default)]
struct ConnectionTable {
    last: u64,
    open: HashMap<u64, OpenConnection>,
}

#[derive(Debug)]
struct OpenConnection {
    queue: mpsc::UnboundedSender<Vec<u8>>,
    waiting: Arc<AtomicUsize>,
    blocked: Arc<AtomicBool>,
    reader: AbortHandle,
    /// Never sent: its drop tells the writer that the connection was closed, also during a write.
    _open: oneshot::Sender<Infallible>,
}

impl<E: From<TcpEvent> + Send + 'static> Sockets<E> {
    /// No connections yet; `events` takes what happens to them.
    #[must_use]
    pub fn new(events: mpsc::Sender<E>, options: TcpOptions) -> Self {
        Self { events, options, shared: Arc::default(), attempt: None, listeners: Vec::new() }
    }

    /// Accepts connections at `address`, of [`TcpOptions::peer`] alone if it is set. Returns the address with the port that was bound.
    pub async fn listen(&mut self, address: SocketAddr) -> io::Result<SocketAddr> {
        let listener = listener(address, &self.options)?;
        let address = listener.local_addr()?;
        let (shared, events, options) = (Arc::clone(&self.shared), self.events.clone(), self.options.clone());
        let task = tokio::spawn(async move {
            let mut limit = LogLimit::default();
            loop {
                match listener.accept().await {
                    Ok((stream, from)) => {
                        let ip = from.ip().to_canonical();
                        if options.peer.is_some_and(|peer| peer.to_canonical() != ip) {
                            drop(stream);
                            let _ = events.send(TcpEvent::Refused { address: ip }.into()).await;
                            continue;
                        }
                        if let Some(why) = options.refusal() {
                            if let Some(Line { suppressed }) = limit.note(Instant::now()) {
                                warn!(suppressed, "BGP connection from {ip} closed: {why}");
                            }
                            continue;
                        }
                        if let Err(error) =
                            options.protection.protect_ttl(stream.as_fd(), address.is_ipv6(), options.ttl)
                        {
                            if let Some(Line { suppressed }) = limit.note(Instant::now()) {
                                warn!(%error, suppressed, "BGP connection from {ip} closed: {error}");
                            }
                            continue;
                        }
                        let event = |connection| TcpEvent::Accepted { connection, address: from };
                        shared.add(stream, &events, event);
                    }
                    Err(error) => {
                        if let Some(Line { suppressed }) = limit.note(Instant::now()) {
                            warn!(%error, suppressed, "cannot accept a BGP connection; trying again (too many open files?)");
                        }
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                }
            }
        });
        self.listeners.push(task.abort_handle());
        Ok(address)
    }

    /// Opens a connection, in place of an attempt that is still under way.
    pub fn connect(&mut self, attempt: u64, to: SocketAddr) {
        if let Some(earlier) = self.attempt.take() {
            earlier.abort();
        }
        let (shared, events, options) = (Arc::clone(&self.shared), self.events.clone(), self.options.clone());
        let task = tokio::spawn(async move {
            let opened = match options.refusal() {
                Some(why) => Ok(Err(io::Error::other(why))),
                None => timeout(CONNECT_TIMEOUT, open(to, &options)).await,
            };
            match opened.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
                Ok(stream) => {
                    let event = |connection| TcpEvent::Connected { attempt, connection };
                    shared.add(stream, &events, event);
                }
                Err(error) => {
                    let _ = events.send(TcpEvent::ConnectFailed { attempt, error }.into()).await;
                }
            }
        });
        self.attempt = Some(task.abort_handle());
    }

    /// Queues octets. Returns `false` if the connection is blocked now, until [`TcpEvent::Writable`].
    pub fn send(&self, connection: u64, bytes: Vec<u8>) -> bool {
        let table = self.shared.lock();
        let Some(open) = table.open.get(&connection) else { return true };
        // Counted before it is queued: the writer takes it off the count at once, which would fall below zero.
        let waiting = open.waiting.fetch_add(bytes.len(), Ordering::AcqRel) + bytes.len();
        let is_blocked = waiting > HIGH_WATER;
        if is_blocked {
            // Before they are queued: a writer that sent all of it in between would find nobody blocked, and say nothing of it.
            open.blocked.store(true, Ordering::Release);
        }
        let _ = open.queue.send(bytes); // fails only if the connection is ending
        !is_blocked
    }

    /// Closes a connection once the peer has read what is queued, or has stopped reading: [`Connections::gone`] waits for that.
    pub fn close(&self, connection: u64) {
        if let Some(open) = self.shared.lock().open.remove(&connection) {
            open.reader.abort();
        }
    }

    /// What looks at these connections.
    #[must_use]
    pub fn connections(&self) -> Connections {
        Connections(Arc::clone(&self.shared))
    }
}

impl Connections {
    /// Waits until all connections are closed, those included whose last octets the peer still reads.
    pub async fn gone(&self) {
        let _ = self.0.writing.subscribe().wait_for(|writing| *writing == 0).await; // the sender is here
    }
}

impl<E> Drop for Sockets<E> {
    fn drop(&mut self) {
        self.listeners.iter().chain(&self.attempt).for_each(AbortHandle::abort);
        self.shared.lock().open.drain().for_each(|(_, open)| open.reader.abort());
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, ConnectionTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a connection. Its reader reports it before the first octets.
    fn add<E: From<TcpEvent> + Send + 'static>(
        self: &Arc<Self>,
        stream: TcpStream,
        events: &mpsc::Sender<E>,
        event: impl FnOnce(u64) -> TcpEvent,
    ) {
        let _ = stream.set_nodelay(true);
        let stream = Arc::new(stream);
        let (queue, queued) = mpsc::unbounded_channel();
        let (open, closed) = oneshot::channel();
        let (waiting, blocked) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let mut table = self.lock();
        if *self.writing.borrow() >= MAX_CONNECTIONS {
            return;
        }
        table.last += 1;
        let connection = table.last;
        let begin = event(connection).into();
        let task = tokio::spawn(read(connection, begin, Arc::clone(&stream), Arc::clone(self), events.clone()));
        let writer = Writer { connection, waiting: Arc::clone(&waiting), blocked: Arc::clone(&blocked), stream };
        self.writing.send_modify(|writing| *writing += 1);
        let counted = Counted(Arc::clone(self));
        let events = events.clone();
        tokio::spawn(async move {
            writer.run(queued, closed, events).await;
            drop(counted);
        });
        let reader = task.abort_handle();
        table.open.insert(connection, OpenConnection { queue, waiting, blocked, reader, _open: open });
    }
}

/// A connection that counts as long as its octets are written.
struct Counted(Arc<Shared>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.writing.send_modify(|writing| *writing -= 1);
    }
}

/// A listener whose protection holds for the first segment that it gets.
fn listener(address: SocketAddr, options: &TcpOptions) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    options.protection.protect(socket.as_fd(), address.is_ipv6(), options.peer, options.ttl)?;
    socket.listen(BACKLOG)
}

async fn open(to: SocketAddr, options: &TcpOptions) -> io::Result<TcpStream> {
    let socket = if to.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    options.protection.protect(socket.as_fd(), to.is_ipv6(), Some(to.ip()), options.ttl)?;
    if let Some(address) = options.bind {
        socket.bind((address, 0).into())?;
    }
    socket.connect(to).await
}

async fn read<E: From<TcpEvent>>(
    connection: u64,
    begin: E,
    stream: Arc<TcpStream>,
    shared: Arc<Shared>,
    events: mpsc::Sender<E>,
) {
    if events.send(begin).await.is_err() {
        return;
    }
    let mut buffer = vec![0; READ_BYTES];
    while let Ok(n @ 1..) = writer::read(&stream, &mut buffer).await {
        let bytes = buffer[..n].to_vec();
        if events.send(TcpEvent::Bytes { connection, bytes }.into()).await.is_err() {
            return;
        }
    }
    drop(stream);
    shared.lock().open.remove(&connection);
    let _ = events.send(TcpEvent::Closed { connection }.into()).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn next(events: &mut mpsc::Receiver<TcpEvent>) -> TcpEvent {
        timeout(Duration::from_secs(10), events.recv()).await.expect("in time").expect("open")
    }

    async fn pair()
    -> (Sockets<TcpEvent>, mpsc::Receiver<TcpEvent>, u64, Sockets<TcpEvent>, mpsc::Receiver<TcpEvent>, u64) {
        let ((to_a, mut from_a), (to_b, mut from_b)) = (mpsc::channel(8), mpsc::channel(8));
        let mut a = Sockets::new(to_a, TcpOptions::default());
        let mut b = Sockets::new(to_b, TcpOptions { bind: Some([127, 0, 0, 1].into()), ..TcpOptions::default() });
        let address = a.listen("127.0.0.1:0".parse().expect("an address")).await.expect("listening");
        b.connect(7, address);
        let TcpEvent::Accepted { connection: at_a, address } = next(&mut from_a).await else { panic!("accepted") };
        let TcpEvent::Connected { attempt: 7, connection: at_b } = next(&mut from_b).await else { panic!("connected") };
        assert!(address.ip().is_loopback());
        (a, from_a, at_a, b, from_b, at_b)
    }

    #[tokio::test]
    async fn octets_arrive_also_those_sent_just_before_the_close() {
        let (a, mut from_a, at_a, b, mut from_b, at_b) = pair().await;
        assert!(a.send(at_a, b"hello".to_vec()));
        let TcpEvent::Bytes { bytes, .. } = next(&mut from_b).await else { panic!("octets") };
        assert_eq!(bytes, b"hello");
        tokio::time::sleep(Duration::from_millis(20)).await;
        b.send(at_b, b"bye".to_vec());
        b.close(at_b);
        let TcpEvent::Bytes { bytes, .. } = next(&mut from_a).await else { panic!("octets") };
        assert_eq!(bytes, b"bye");
        assert!(matches!(next(&mut from_a).await, TcpEvent::Closed { .. }));
    }

    #[tokio::test]
    async fn a_peer_that_does_not_read_blocks_the_connection_until_it_does() {
        let (a, _from_a, at_a, _b, mut from_b, _) = pair().await;
        let mut queued = 0;
        while a.send(at_a, vec![0; 1 << 16]) {
            queued += 1;
            assert!(queued < 10_000, "never blocked");
        }
        let mut from_a = _from_a;
        let drained = async { while !matches!(next(&mut from_b).await, TcpEvent::Closed { .. }) {} };
        tokio::select! {
            () = drained => panic!("closed"),
            event = next(&mut from_a) => assert!(matches!(event, TcpEvent::Writable { .. })),
        }
    }

    #[tokio::test]
    async fn a_failed_attempt_is_reported_with_its_number() {
        let (to, mut from) = mpsc::channel(8);
        let mut sockets = Sockets::new(to, TcpOptions::default());
        sockets.connect(3, "127.0.0.1:1".parse().expect("an address"));
        assert!(matches!(next(&mut from).await, TcpEvent::ConnectFailed { attempt: 3, .. }));
    }

    /// A peer by hand: a socket that reads when it likes, and the connection to it.
    async fn slow_peer() -> (Sockets<TcpEvent>, mpsc::Receiver<TcpEvent>, u64, std::net::TcpStream) {
        let (to, mut from) = mpsc::channel(8);
        let mut sockets = Sockets::new(to, TcpOptions::default());
        let address = sockets.listen("127.0.0.1:0".parse().expect("an address")).await.expect("listening");
        let peer = std::net::TcpStream::connect(address).expect("connected");
        let TcpEvent::Accepted { connection, .. } = next(&mut from).await else { panic!("accepted") };
        (sockets, from, connection, peer)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_is_queued_before_a_close_reaches_a_slow_peer_that_has_sent_octets_which_nobody_read() {
        use std::io::{Read as _, Write as _};
        let (sockets, from, connection, mut peer) = slow_peer().await;
        let mut queued = 0;
        while sockets.send(connection, vec![7; 1 << 16]) {
            queued += 1 << 16;
        }
        queued += 1 << 16;
        sockets.send(connection, b"NOTIFICATION".to_vec());
        // More than the queue of events takes: the rest lies in the socket when it is closed.
        let mut sender = peer.try_clone().expect("a socket");
        let sending = std::thread::spawn(move || {
            let sent = (0..64).try_for_each(|_| sender.write_all(&[1; READ_BYTES]));
            drop(sent); // may end early
        });
        while from.len() < 8 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let connections = sockets.connections();
        sockets.close(connection);
        drop((sockets, from));
        let reading = tokio::task::spawn_blocking(move || {
            let (mut received, mut buffer) = (Vec::new(), vec![0; 1 << 18]);
            // Longer in all than a closed connection was kept before.
            while let n @ 1.. = peer.read(&mut buffer).expect("no reset") {
                received.extend_from_slice(&buffer[..n]);
                std::thread::sleep(Duration::from_millis(400));
            }
            received
        });
        let received = reading.await.expect("read");
        assert_eq!(received.len(), queued + 12);
        assert!(received.ends_with(b"NOTIFICATION"));
        sending.join().expect("sent");
        timeout(Duration::from_secs(60), connections.gone()).await.expect("closed");
    }
}
