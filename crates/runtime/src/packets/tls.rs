//! Datagrams over TLS on TCP, where UDP does not pass: a port as others, whose addresses are those of connections.
//!
//! TLS carries, and proves nothing: the listening side shows a certificate of its own making, and the connecting side takes any. Who is at
//! the other end shows by what is carried. Until then a connection has a slot for a few seconds, and loses it to others where too many come
//! ([`crate::connection_slots`]). Each datagram stands behind its length in two octets; `docs/wire/link.md` has the format.
//!
//! An empty datagram is none that came: it says that the connection ended which this side opened to that address.
//!
//! Nobody waits for a peer: what finds no room in the queue of its connection is dropped, as by a network. A peer that sends more than is
//! taken waits itself, by TCP.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme, version};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{sleep, timeout};
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};
use wayleave_core::stream::{BadLength, LENGTH, LONGEST, first_datagram};

use super::system::options;
use super::{Burst, Outgoing, Port};
use crate::api_tls::{ApiKey, ShownKey};
use crate::connection_slots::{ConnectionSlots, SlotHandle, SlotLimits};
use crate::https::Pace;
use crate::identity::{DEFAULT_VALIDITY, Identity};
use crate::peer_check::{PeerCheck, Verifier};
use crate::routes::connect;

/// Octets that wait for a connection, and of one connection for the thread that receives.
const OUTBOX: usize = 256 << 10;
const INBOX: usize = 64 << 10;
/// What a datagram counts there at least: its entry takes memory as well.
const LEAST_SHARE: usize = 256;
/// Datagrams of all connections that wait for that thread, and beyond how many those of who has not proved himself are dropped.
const MOST_ARRIVED: usize = 65_536;
const MOST_UNPROVEN: usize = 1_024;
/// Datagrams that one call receives, at most.
const TURN: usize = 64;
/// Connections that others opened, and of these from one network of whoever has not proved himself.
const LIMITS: SlotLimits = SlotLimits { connections: 4_608, of_source: 256, of_client: 1 };
/// TLS handshakes of one network in a second.
const HANDSHAKES: u32 = 64;
/// Connections that this side opens.
const MOST_OPENED: usize = 1_024;
/// TCP and TLS handshake together.
const OPENING: Duration = Duration::from_secs(10);
/// By then whoever connects has proved himself.
const PROOF: Duration = Duration::from_secs(10);
/// A connection is over by which nothing comes, or nothing is sent but handshakes, for three idle pings.
const SILENT: Duration = Duration::from_secs(80);
/// Octets that the system takes of a connection before it has sent what is in front of them.
const NOT_SENT: libc::c_int = 64 << 10;
/// A peer that takes nothing for so long is gone.
const WRITE: Duration = Duration::from_secs(10);
/// What waits when the port ends has so long to leave.
const LAST: Duration = Duration::from_millis(500);

/// What the port has to know of what it carries.
#[derive(Clone, Copy)]
pub struct Kinds {
    /// The datagram begins what is said to an address: a connection is opened for it.
    pub begins: fn(&[u8]) -> bool,
    /// Whoever is sent this datagram has proved himself.
    pub proves: fn(&[u8]) -> bool,
}

/// Why nothing is received by a connection any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum Ended {
    #[error("the other end closed it")]
    Closed,
    /// What had come of a last datagram is dropped: the next connection begins with a datagram of its own.
    #[error("it was cut off within a datagram, of which {0} octets had come: they are dropped")]
    Cut(usize),
    #[error("nothing came for {} seconds", SILENT.as_secs())]
    Silent,
    #[error("{0}")]
    BadLength(#[from] BadLength),
}

/// The port.
pub struct Tls {
    shared: Arc<Shared>,
    runtime: Handle,
    connector: TlsConnector,
    life: Option<Life>,
    /// Ends once every task has ended.
    ended: mpsc::Receiver<Infallible>,
    /// Of the last [`Port::send`], the packets that no connection took, by their indices in the burst.
    unsent: Vec<u32>,
}

/// Tasks go on while the port holds its part of this, and it waits for them while they hold theirs.
struct Life {
    goes_on: watch::Sender<()>,
    works: mpsc::Sender<Infallible>,
}

/// A task's part of a [`Life`].
#[derive(Clone)]
struct Task {
    goes_on: watch::Receiver<()>,
    _works: mpsc::Sender<Infallible>,
}

impl Task {
    /// Resolves when the port ends.
    async fn over(&mut self) {
        while self.goes_on.changed().await.is_ok() {}
    }
}

impl Life {
    fn task(&self) -> Task {
        Task { goes_on: self.goes_on.subscribe(), _works: self.works.clone() }
    }
}

struct Shared {
    kinds: Kinds,
    connections: Mutex<HashMap<SocketAddr, Arc<Connection>>>,
    arrived: Mutex<VecDeque<(SocketAddr, Vec<u8>, OwnedSemaphorePermit)>>,
    /// Datagrams in `arrived`.
    waiting: AtomicUsize,
    /// Readable while there are any.
    is_ready: OwnedFd,
}

/// A connection, or one that is being opened.
struct Connection {
    address: SocketAddr,
    /// Whether this side opened it.
    is_own: bool,
    leaving: Mutex<Vec<u8>>,
    has_leaving: Notify,
    /// Something was sent to it lately that is for who has proved himself; and ever.
    is_proven: AtomicBool,
    is_known: AtomicBool,
    /// Of one that the other side opened.
    slot: Option<SlotHandle>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Connection {
    fn new(address: SocketAddr, slot: Option<SlotHandle>) -> Self {
        Self {
            address,
            is_own: slot.is_none(),
            leaving: Mutex::default(),
            has_leaving: Notify::new(),
            is_proven: AtomicBool::new(slot.is_none()),
            is_known: AtomicBool::new(false),
            slot,
        }
    }

    /// Puts a datagram behind others, if there is room.
    fn put(&self, octets: &[u8]) -> bool {
        let mut leaving = locked(&self.leaving);
        let Some(length) = u16::try_from(octets.len()).ok().filter(|length| usize::from(*length) <= LONGEST) else {
            return false;
        };
        if length == 0 || leaving.len() + LENGTH + octets.len() > OUTBOX {
            return false;
        }
        leaving.extend(length.to_be_bytes());
        leaving.extend(octets);
        drop(leaving);
        self.has_leaving.notify_one();
        true
    }

    fn prove(&self) {
        self.is_proven.store(true, Ordering::Relaxed);
        if !self.is_known.swap(true, Ordering::Relaxed)
            && let Some(slot) = &self.slot
        {
            slot.set_client(Some(&self.address.to_string()));
        }
    }
}

/// Opens the port; with `listen`, connections are taken there. Within a runtime of tokio.
///
/// # Errors
/// What the system said: the address is in use, or not one of this machine.
pub fn open(listen: Option<SocketAddr>, kinds: Kinds) -> io::Result<Tls> {
    let runtime = Handle::try_current().map_err(io::Error::other)?;
    let (works, ended) = mpsc::channel();
    let life = Life { goes_on: watch::Sender::new(()), works };
    let shared = Arc::new(Shared {
        kinds,
        connections: Mutex::default(),
        arrived: Mutex::default(),
        waiting: AtomicUsize::new(0),
        is_ready: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
    });
    if let Some(listen) = listen {
        let listener = std::net::TcpListener::bind(listen)?;
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        let identity = Identity::generate("link", DEFAULT_VALIDITY).map_err(io::Error::other)?;
        let key = ShownKey::new(ApiKey::of_identity(&identity).map_err(io::Error::other)?);
        let acceptor = TlsAcceptor::from(key.server_config().map_err(io::Error::other)?);
        runtime.spawn(accept(listener, acceptor, Arc::clone(&shared), life.task()));
    }
    let connector = TlsConnector::from(Arc::new(client_config().map_err(io::Error::other)?));
    Ok(Tls { shared, runtime, connector, life: Some(life), ended, unsent: Vec::new() })
}

/// Takes connections, each of which gets a slot, if need be that of somebody who has not proved himself.
async fn accept(listener: TcpListener, acceptor: TlsAcceptor, shared: Arc<Shared>, mut life: Task) {
    let (slots, pace) = (ConnectionSlots::new(LIMITS), Pace::default());
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = life.over() => return,
        };
        let Ok((stream, from)) = accepted else {
            // Out of descriptors: some connection ends soon.
            sleep(Duration::from_millis(100)).await;
            continue;
        };
        let from = SocketAddr::new(from.ip().to_canonical(), from.port());
        let Some((slot, mut eviction)) = slots.take(from.ip()) else { continue };
        let wait = pace.take(from.ip(), HANDSHAKES, tokio::time::Instant::now());
        let (acceptor, shared, pace, mut life) = (acceptor.clone(), Arc::clone(&shared), pace.clone(), life.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = sleep(wait) => {}
                _ = &mut eviction => return pace.return_budget(from.ip(), HANDSHAKES),
                () = life.over() => return,
            }
            set_up(&stream);
            let stream = tokio::select! {
                stream = timeout(OPENING, acceptor.accept(stream)) => stream,
                _ = &mut eviction => return,
                () = life.over() => return,
            };
            let Ok(Ok(stream)) = stream else { return };
            let connection = Arc::new(Connection::new(from, Some(slot.handle())));
            locked(&shared.connections).insert(from, Arc::clone(&connection));
            tokio::select! {
                () = serve(stream, &connection, &shared, life) => {}
                _ = &mut eviction => {}
            }
            shared.end(&connection);
        });
    }
}

/// Opens a connection, and carries what waits for it and what comes.
async fn dial(connector: TlsConnector, connection: Arc<Connection>, shared: Arc<Shared>, mut life: Task) {
    let to = connection.address;
    let stream = tokio::select! {
        stream = timeout(OPENING, handshake(&connector, to)) => stream,
        () = life.over() => return,
    };
    match stream {
        Ok(Ok(stream)) => serve(stream, &connection, &shared, life).await,
        Ok(Err(error)) => tracing::debug!(%to, "no TLS connection for links: {error}"),
        Err(_) => tracing::debug!(%to, "no TLS connection for links within {} seconds", OPENING.as_secs()),
    }
    shared.end(&connection);
    if let Ok(permit) = Arc::new(Semaphore::new(1)).acquire_owned().await {
        shared.arrive(to, Vec::new(), permit, true);
    }
}

/// Whether a server over TLS answers there, and after how long.
///
/// # Errors
/// Why not: what the system or TLS said, or that `limit` is over.
pub async fn probe(to: SocketAddr, limit: Duration) -> io::Result<Duration> {
    let connector = TlsConnector::from(Arc::new(client_config().map_err(io::Error::other)?));
    let begin = tokio::time::Instant::now();
    let mut stream = timeout(limit, handshake(&connector, to)).await??;
    let after = begin.elapsed();
    let _ = timeout(LAST, stream.shutdown()).await;
    Ok(after)
}

/// What waits waits where it may be dropped, and not in the system behind what is older. Without that it works as well.
fn set_up(stream: &TcpStream) {
    let _ = stream.set_nodelay(true);
    let _ = options::set(stream.as_fd(), libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, NOT_SENT);
}

async fn handshake(connector: &TlsConnector, to: SocketAddr) -> io::Result<TlsStream<TcpStream>> {
    let stream = connect(&to.to_string()).await?;
    set_up(&stream);
    connector.connect(ServerName::IpAddress(to.ip().into()), stream).await
}

/// Carries datagrams until the connection is over.
async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin, connection: &Connection, shared: &Shared, mut life: Task) {
    let (mut from, mut to) = tokio::io::split(stream);
    // Who has moved to another connection is sent nothing by this one any more, and it ends: a member cannot gather them.
    let proof = async {
        sleep(PROOF).await;
        while connection.is_proven.swap(false, Ordering::Relaxed) {
            sleep(SILENT).await;
        }
    };
    let mut rest = Rest::default();
    let is_over = tokio::select! {
        ended = receive(&mut from, connection, shared) => {
            tracing::debug!(from = %connection.address, "a TLS connection of links is over: {ended}");
            true
        }
        () = send(&mut to, connection, &mut rest) => true,
        () = proof => true,
        () = life.over() => false,
    };
    if !is_over {
        // What was put last, such as that this end stops.
        let last = std::mem::take(&mut *locked(&connection.leaving));
        let leaves = async {
            to.write_all(&rest.octets[rest.sent..]).await?;
            to.write_all(&last).await?;
            to.shutdown().await
        };
        let _ = timeout(LAST, leaves).await;
    }
}

/// Hands over what comes, until the stream ends, errs or is silent. A sender waits while too much of what it sent waits here.
async fn receive(from: &mut (impl AsyncRead + Unpin), connection: &Connection, shared: &Shared) -> Ended {
    let inbox = Arc::new(Semaphore::new(INBOX));
    let mut octets = vec![0; LENGTH + LONGEST].into_boxed_slice();
    let mut end = 0;
    loop {
        match timeout(SILENT, from.read(&mut octets[end..])).await {
            Ok(Ok(count)) if count > 0 => end += count,
            Ok(_) if end == 0 => return Ended::Closed,
            Ok(_) => return Ended::Cut(end),
            Err(_) => return Ended::Silent,
        }
        let mut begin = 0;
        loop {
            let datagram = match first_datagram(&octets[begin..end]) {
                Ok(Some(datagram)) => datagram.to_vec(),
                Ok(None) => break,
                Err(error) => return error.into(),
            };
            begin += LENGTH + datagram.len();
            let share = datagram.len().max(LEAST_SHARE) as u32; // at most LONGEST
            let Ok(permit) = Arc::clone(&inbox).acquire_many_owned(share).await else {
                return Ended::Closed; // the semaphore is this function's, and is not closed
            };
            let is_proven = connection.is_own || connection.is_known.load(Ordering::Relaxed);
            shared.arrive(connection.address, datagram, permit, is_proven);
        }
        octets.copy_within(begin..end, 0);
        end -= begin;
    }
}

/// What is on its way out: whoever stops sends the rest first, or the peer would read something else into what follows.
#[derive(Default)]
struct Rest {
    octets: Vec<u8>,
    sent: usize,
}

/// Sends what is put, until the peer takes nothing any more.
async fn send(to: &mut (impl AsyncWrite + Unpin), connection: &Connection, rest: &mut Rest) {
    loop {
        *rest = Rest { octets: std::mem::take(&mut *locked(&connection.leaving)), sent: 0 };
        if rest.octets.is_empty() {
            connection.has_leaving.notified().await;
            continue;
        }
        // Slow is not gone: some of it leaves within the time.
        while rest.sent < rest.octets.len() {
            let Ok(Ok(count @ 1..)) = timeout(WRITE, to.write(&rest.octets[rest.sent..])).await else { return };
            rest.sent += count;
        }
        if !matches!(timeout(WRITE, to.flush()).await, Ok(Ok(()))) {
            return;
        }
    }
}

impl Shared {
    /// Leaves a datagram to the thread that receives, unless too many wait: of those who have not proved themselves far fewer.
    fn arrive(&self, from: SocketAddr, datagram: Vec<u8>, permit: OwnedSemaphorePermit, is_proven: bool) {
        let mut arrived = locked(&self.arrived);
        if arrived.len() >= if is_proven { MOST_ARRIVED } else { MOST_UNPROVEN } {
            return;
        }
        arrived.push_back((from, datagram, permit));
        self.waiting.store(arrived.len(), Ordering::Release);
        // Under the lock: else the thread might have taken it, and find the descriptor ready with nothing behind it.
        let _ = rustix::io::write(&self.is_ready, &1u64.to_ne_bytes());
    }

    /// Removes a connection, if no later one has taken its place.
    fn end(&self, connection: &Arc<Connection>) {
        let mut connections = locked(&self.connections);
        if connections.get(&connection.address).is_some_and(|known| Arc::ptr_eq(known, connection)) {
            connections.remove(&connection.address);
        }
    }
}

impl Tls {
    /// The connection to an address; one is opened if this datagram begins what is said there.
    fn connection(&self, to: SocketAddr, octets: &[u8]) -> Option<Arc<Connection>> {
        let mut connections = locked(&self.shared.connections);
        if let Some(connection) = connections.get(&to) {
            return Some(Arc::clone(connection));
        }
        let life = self.life.as_ref().filter(|_| (self.shared.kinds.begins)(octets))?;
        if connections.values().filter(|connection| connection.is_own).count() >= MOST_OPENED {
            return None;
        }
        let connection = Arc::new(Connection::new(to, None));
        connections.insert(to, Arc::clone(&connection));
        let (connector, shared) = (self.connector.clone(), Arc::clone(&self.shared));
        self.runtime.spawn(dial(connector, Arc::clone(&connection), shared, life.task()));
        Some(connection)
    }
}

impl AsFd for Tls {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.is_ready.as_fd()
    }
}

impl Port for Tls {
    fn receive(&mut self, burst: &mut Burst) -> io::Result<usize> {
        burst.clear();
        if self.shared.waiting.load(Ordering::Acquire) == 0 {
            return Ok(0);
        }
        let mut arrived = locked(&self.shared.arrived);
        while burst.len() < TURN
            && let Some((from, octets, _)) = arrived.pop_front()
        {
            burst.push(&octets, from); // a burst has room for so many
        }
        self.shared.waiting.store(arrived.len(), Ordering::Release);
        if arrived.is_empty() {
            let _ = rustix::io::read(&self.shared.is_ready, &mut [0; 8]); // there may be nothing to read
        }
        Ok(burst.len())
    }

    fn send(&mut self, burst: &Burst, out: &[Outgoing]) -> io::Result<usize> {
        self.unsent.clear();
        for run in out.chunk_by(|a, b| a.to == b.to) {
            let octets = |outgoing: &Outgoing| burst.octets(outgoing.packet as usize);
            let Some(connection) = run.first().and_then(|first| self.connection(first.to, octets(first))) else {
                self.unsent.extend(run.iter().map(|outgoing| outgoing.packet));
                continue;
            };
            for outgoing in run {
                if (self.shared.kinds.proves)(octets(outgoing)) {
                    connection.prove();
                }
                if !connection.put(octets(outgoing)) {
                    self.unsent.push(outgoing.packet);
                }
            }
        }
        Ok(out.len() - self.unsent.len())
    }

    fn unsent(&self) -> Option<&[u32]> {
        Some(&self.unsent)
    }
}

impl Drop for Tls {
    /// Waits a moment until what was put last has left.
    fn drop(&mut self) {
        self.life = None;
        let _ = self.ended.recv_timeout(LAST);
    }
}

/// Takes whoever holds the key that he shows: who is meant shows by what is carried.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl PeerCheck for Anybody {
    const SHOWS_RAW_KEY: bool = false;

    fn verify(&self, _: &CertificateDer<'_>, _: UnixTime) -> Result<(), rustls::Error> {
        Ok(())
    }

    fn verify_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, shown, signature, &self.0.signature_verification_algorithms)
    }

    fn schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

fn client_config() -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Verifier(Anybody(provider))))
        .with_no_client_auth();
    config.resumption = rustls::client::Resumption::disabled();
    config.enable_early_data = false;
    Ok(config)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    /// `1…` begins, `2…` is for who has proved himself.
    const KINDS: Kinds = Kinds { begins: |octets| octets[0] == 1, proves: |octets| octets[0] == 2 };

    fn here() -> SocketAddr {
        std::net::TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port")
    }

    fn say(port: &mut Tls, to: SocketAddr, octets: &[u8]) -> bool {
        let mut burst = Burst::default();
        assert!(burst.push(octets, to));
        port.send(&burst, &[Outgoing { packet: 0, to }]).expect("sent") == 1
    }

    /// What comes next, from whom.
    async fn hear(port: &mut Tls) -> (SocketAddr, Vec<u8>) {
        let mut burst = Burst::default();
        let heard = timeout(Duration::from_secs(20), async {
            while port.receive(&mut burst).expect("received") == 0 {
                tokio::task::yield_now().await;
            }
        });
        heard.await.expect("a datagram comes");
        assert_eq!(burst.len(), 1);
        (burst.from(0), burst.octets(0).to_vec())
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn datagrams_pass_both_ways_and_only_what_begins_opens_a_connection() {
        let at = here();
        let (mut a, mut b) = (open(None, KINDS).expect("a port"), open(Some(at), KINDS).expect("a port"));
        assert!(!say(&mut a, at, &[3, 3]), "it begins nothing");
        assert!(say(&mut a, at, &[1; 178]));
        let (from, octets) = hear(&mut b).await;
        assert_eq!(octets, [1; 178]);
        for octets in [vec![2; 52], vec![9; LONGEST]] {
            assert!(say(&mut b, from, &octets) && say(&mut a, at, &octets));
            assert_eq!(hear(&mut a).await, (at, octets.clone()));
            assert_eq!(hear(&mut b).await, (from, octets));
        }
        assert!(!say(&mut a, at, &[9; LONGEST + 1]), "too long");
        // What was put last leaves although the port ends, and then nobody is there.
        assert!(say(&mut a, at, &[5; 52]));
        tokio::task::spawn_blocking(move || drop(a)).await.expect("it ends");
        assert_eq!(hear(&mut b).await, (from, vec![5; 52]));
        while say(&mut b, from, &[9]) {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn who_opened_a_connection_is_told_that_it_ended() {
        let at = here();
        let (mut a, mut b) = (open(None, KINDS).expect("a port"), open(Some(at), KINDS).expect("a port"));
        assert!(say(&mut a, at, &[1]));
        hear(&mut b).await;
        tokio::task::spawn_blocking(move || drop(b)).await.expect("it ends");
        assert_eq!(hear(&mut a).await, (at, Vec::new()));
        assert!(!say(&mut a, at, &[2]), "there is none");
        assert!(say(&mut a, at, &[1]), "another is opened");
        assert_eq!(hear(&mut a).await, (at, Vec::new()), "nobody is there");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn of_a_connection_that_is_cut_within_a_datagram_whole_ones_count_and_the_next_one_goes_on() {
        let key = ShownKey::new(
            ApiKey::of_identity(&Identity::generate("link", DEFAULT_VALIDITY).expect("made")).expect("a key"),
        );
        let acceptor = TlsAcceptor::from(key.server_config().expect("a configuration"));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let at = listener.local_addr().expect("an address");
        // Each connection breaks off within the length, or within the datagram, with TLS's own goodbye or without.
        let server = tokio::spawn(async move {
            for (cut, says_goodbye) in [(1, true), (1, false), (2, true), (2, false), (5, true), (5, false)] {
                let (stream, _) = listener.accept().await.expect("accepted");
                let mut stream = acceptor.accept(stream).await.expect("TLS");
                stream.read_exact(&mut [0; 3]).await.expect("what begins");
                stream.write_all(&[0, 2, 7, 7]).await.expect("written");
                stream.write_all(&[0, 4, 8, 8, 8, 8][..cut]).await.expect("written");
                stream.flush().await.expect("flushed");
                if says_goodbye {
                    let _ = stream.shutdown().await; // the other end may have gone
                }
            }
        });
        let mut a = open(None, KINDS).expect("a port");
        for _ in 0..6 {
            assert!(say(&mut a, at, &[1]), "a connection is opened");
            let (mut heard, mut burst) = (Vec::new(), Burst::default());
            let until_over = timeout(Duration::from_secs(20), async {
                while heard.last() != Some(&Vec::new()) {
                    let count = a.receive(&mut burst).expect("received");
                    heard.extend((0..count).map(|packet| burst.octets(packet).to_vec()));
                    tokio::task::yield_now().await;
                }
            });
            until_over.await.expect("it is over");
            assert_eq!(heard, [vec![7, 7], Vec::new()], "half a datagram is none");
        }
        server.await.expect("it ends");
    }

    #[tokio::test]
    async fn a_stream_that_ends_within_a_datagram_is_told_from_one_that_ends_behind_one() {
        let stream = [0, 2, 7, 7, 0, 1, 9];
        for length in 0..=stream.len() {
            let port = open(None, KINDS).expect("a port");
            let connection = Connection::new(here(), None);
            let ended = receive(&mut &stream[..length], &connection, &port.shared).await;
            let (whole, rest) = match length {
                0..4 => (0, length),
                4..7 => (1, length - 4),
                _ => (2, 0),
            };
            assert_eq!(ended, if rest == 0 { Ended::Closed } else { Ended::Cut(rest) }, "{length} octets");
            assert_eq!(locked(&port.shared.arrived).len(), whole);
        }
        let text = Ended::Cut(3).to_string();
        assert_eq!(text, "it was cut off within a datagram, of which 3 octets had come: they are dropped");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_peer_that_takes_nothing_costs_a_queue_and_others_nothing() {
        let at = here();
        let (mut slow, mut good) = (open(None, KINDS).expect("a port"), open(None, KINDS).expect("a port"));
        let mut b = open(Some(at), KINDS).expect("a port");
        assert!(say(&mut slow, at, &[1]));
        let (of_slow, _) = hear(&mut b).await;
        assert!(say(&mut good, at, &[1]));
        let (of_good, _) = hear(&mut b).await;
        // Nobody reads at `slow`: its inbox, the system's buffers and its queue here fill, and then it loses datagrams.
        let mut accepted = 0;
        while say(&mut b, of_slow, &[9; LONGEST]) || accepted < 4_000 {
            accepted += 1;
            tokio::task::yield_now().await;
            assert!(accepted < 100_000, "a queue without an end");
        }
        assert!(say(&mut b, of_good, &[2, 4]));
        assert_eq!(hear(&mut good).await, (at, vec![2, 4]));
        assert!(say(&mut good, at, &[2, 5]));
        assert_eq!(hear(&mut b).await, (of_good, vec![2, 5]));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn strangers_with_a_thousand_connections_that_say_little_keep_nobody_out() {
        let at = here();
        let mut b = open(Some(at), KINDS).expect("a port");
        let mut member = open(None, KINDS).expect("a port");
        assert!(say(&mut member, at, &[1]));
        let (of_member, _) = hear(&mut b).await;
        assert!(say(&mut b, of_member, &[2]), "it has proved itself");
        hear(&mut member).await;
        let strangers: Vec<std::net::TcpStream> = (0..1_000)
            .map(|number| {
                let mut stream = std::net::TcpStream::connect(at).expect("connected");
                if number % 2 == 1 {
                    let _ = stream.write_all(&[22]); // it may have been closed
                }
                stream
            })
            .collect();
        assert!(say(&mut member, at, &[2, 1]));
        assert_eq!(hear(&mut b).await, (of_member, vec![2, 1]));
        let mut other = open(None, KINDS).expect("a port");
        assert!(say(&mut other, at, &[1, 2]));
        assert_eq!(hear(&mut b).await.1, [1, 2]);
        drop(strangers);
    }
}
