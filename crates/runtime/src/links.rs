//! Links: authenticated TLS connections that carry frames.
//!
//! Each link is one task. Frames to a peer wait in a queue that is bounded in octets and in frames. A sender never waits:
//! machines send from their loop, and a loop that waited for one slow peer would keep all others from being served (and two
//! parties that wait for each other would never go on). So the link of a peer that lets its queue fill is closed, with the
//! reason in the log; the protocol above starts over when the peer connects again. The route server's protocol gives credit and
//! queues less than this bound, so that it is for peers that grant what they have not read. Received frames do make the peer wait:
//! they stay in the kernel while the machine is busy.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use rustls::AlertDescription;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, BufWriter};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tracing::{debug, info, warn};
use wayleave_core::IdentityKey;
use zeroize::Zeroizing;

use crate::connection_slots::{Eviction, source_prefix};
use crate::frames::{FrameError, MAX_FRAME, from_io, read_frame, read_frame_moving, write_frame, write_frame_moving};
use crate::identity::{Fingerprint, Identity};
use crate::log_limit::{Line, LogLimit};
use crate::node_tls::{self, NodeIdentity, NodeVerifier};
use crate::refusals::Refusals;
use crate::starts::{self, PeerName};
use crate::tls::{
    Pin, PinVerifier, Refusal, Role, anonymous_config, client_config, now_secs, refusal_of, server_config,
};

/// The longest time for opening a connection: TCP, TLS and the welcome frame together.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Concurrent handshakes of a listener; further connections wait in the kernel.
const HANDSHAKES: usize = 256;
/// Of these, from one address, so that one host with silent connections does not keep others out.
const HANDSHAKES_EACH: usize = 32;
/// Of these, from one network ([`source_prefix`]) before its oldest gives way to the next connection, so that one network with many
/// addresses does not keep others out.
const HANDSHAKES_OF_NETWORK: usize = 64;
/// After these times a handshake gives way: one of a network with too many, and any. They are far longer than one takes, so that where many
/// nodes come back at once those that were begun come to their end.
const HANDSHAKE_LATE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(1));
/// While all handshakes are in use: the time after which it is looked again for one that is late.
const HANDSHAKES_CHECK: Duration = Duration::from_millis(100);
/// A side that has sent nothing for this long sends an empty frame (keepalive).
const KEEPALIVE: Duration = Duration::from_secs(5);
/// A peer that has sent nothing for this long is considered down.
const IDLE: Duration = Duration::from_secs(20);
/// The longest time in which nothing of a frame can be written; after that the peer is considered not to read.
const WRITE: Duration = Duration::from_secs(20);
/// How often a link's certificate is verified again, for its dates.
const REVERIFY: Duration = Duration::from_secs(60);
const BACKOFF_LEAST: Duration = Duration::from_millis(100);
const BACKOFF_MOST: Duration = Duration::from_secs(5);
/// After a refusal, of either end's certificate or by the protocol above: only an operator can help.
const REFUSED_LEAST: Duration = Duration::from_secs(5);
const REFUSED_MOST: Duration = Duration::from_secs(60);
/// How long a link that is being closed may take to send what is queued, and its peer to read it.
const LAST_FRAMES: Duration = Duration::from_millis(500);
/// A link that was up for this long resets the back-off.
const STABLE: Duration = Duration::from_secs(10);
/// Links of a listener that accepts every node, and of these from one address: each costs memory before anybody knows who it is.
const NODE_LINKS: usize = 16_384;
const NODE_LINKS_EACH: usize = 1_024;
/// What a queued frame counts for beyond its octets, so that many short frames are bounded too.
const FRAME_COST: usize = 64;

/// Octets of the first frame of the side that listens: its wall clock, in seconds since 1970.
const WELCOME: u32 = 8;

/// Octets of received frames that may wait for the machine, over all links. A link waits for its share in the order of
/// arrival, and its peer waits with it.
const INBOX: usize = 64 << 20;
/// Received frames of one link that may wait for the machine: what others have sent then waits for the work of so many at most, however
/// many a peer may send at once.
const INBOX_FRAMES: usize = 64;

/// Why a link ended in whose place another one of the same peer came.
pub const REPLACED: &str = "the peer connected again";

/// An event of a link. For each link: one `Up`, any number of `Frame`, one `Down`.
#[derive(Debug)]
pub enum LinkEvent {
    /// A peer is connected and authenticated.
    Up {
        /// Unique within this process.
        link: u64,
        pin: Pin,
        /// The peer's address.
        address: SocketAddr,
        /// At the end that connects: the peer's wall clock, in seconds since 1970, as it said when the link came up.
        peer_clock: Option<u64>,
        /// Keying material of the TLS session (RFC 8446 section 7.5), the same at both ends.
        exporter: Exporter,
    },
    /// A frame came in; never empty.
    Frame {
        link: u64,
        bytes: Vec<u8>,
        /// Its share of the inbox, released on drop.
        permit: InboxPermit,
    },
    /// The link is gone.
    Down { link: u64, reason: String },
    /// A connector cannot open its link, for another reason than at its last attempt. It goes on trying.
    Failed {
        /// Whom it wants to reach.
        pin: Pin,
        failure: ConnectFailure,
    },
}

impl LinkEvent {
    /// The peer whose input this is.
    #[must_use]
    pub fn source(&self) -> Option<&PeerName> {
        match self {
            Self::Frame { permit, .. } => Some(&permit.peer),
            Self::Up { .. } | Self::Down { .. } | Self::Failed { .. } => None,
        }
    }
}

/// A peer as the log names it, over restarts of both ends. A node's certificate is new with each start, its key is not.
fn peer_name(pin: &Pin, certificate: &CertificateDer<'_>) -> PeerName {
    match pin.role {
        Role::Node(_) => pin.name.as_str().into(),
        role => format!("{} ({role}, {})", pin.name, Fingerprint::of(certificate)).into(),
    }
}

/// Why there is no link.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConnectFailure {
    /// We do not accept the peer's certificate.
    #[error("{0}")]
    Refused(Refusal),
    /// The peer does not accept our certificate.
    #[error("the peer does not accept our certificate ({0})")]
    NotAccepted(String),
    /// The peer accepted our certificate once, and removed it.
    #[error("the peer has removed our certificate (TLS alert certificate_revoked)")]
    Removed,
    #[error("no answer within {} seconds", HANDSHAKE.as_secs())]
    Timeout,
    /// The peer closed the connection before it said that the link is up.
    #[error("the peer closed the connection: {0}")]
    Closed(String),
    /// Both ends say which protocols they speak, and have none in common.
    #[error(
        "the peer speaks none of the protocols that this program does: one of the two programs is older, and has to be upgraded"
    )]
    NoProtocol,
    /// The system's reason, such as a name that is not known or a refused connection.
    #[error("{0}")]
    System(String),
}

impl ConnectFailure {
    /// Whether only an operator can help, so that trying again soon is of no use.
    fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused(_) | Self::NotAccepted(_) | Self::Removed | Self::NoProtocol)
    }
}

/// What a peer said when it accepted a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Probed {
    /// Its wall clock, in seconds since 1970; unknown without a certificate of ours.
    pub peer_clock: Option<u64>,
}

/// Tries to open a link to `address` (host and port) whose certificate `verifier` must accept, and closes it. With `identity` the
/// peer sees a link that comes up and goes, in the place of one that it has; without one it is not told who asks, and ends the
/// connection once its own certificate has been seen.
///
/// # Errors
/// Why there would be no link.
pub async fn probe(
    address: &str,
    identity: Option<&Identity>,
    verifier: &PinVerifier,
) -> Result<Probed, ConnectFailure> {
    let system = |error: &dyn fmt::Display| ConnectFailure::System(error.to_string());
    let config = match identity {
        Some(identity) => client_config(identity, &verifier.clone().not_own(identity)),
        None => anonymous_config(verifier),
    };
    let connector = TlsConnector::from(config.map_err(|error| system(&error))?);
    let open = async {
        let (stream, _) = dial(address, &connector).await?;
        match identity {
            Some(_) => Ok(Probed { peer_clock: Some(welcome(stream).await?.1) }),
            None => Ok(Probed { peer_clock: None }),
        }
    };
    timeout(HANDSHAKE, open).await.unwrap_or(Err(ConnectFailure::Timeout))
}

/// TCP and TLS; the verifier of `connector` has accepted the peer's certificate.
async fn dial(
    address: &str,
    connector: &TlsConnector,
) -> Result<(tokio_rustls::client::TlsStream<TcpStream>, SocketAddr), ConnectFailure> {
    let tcp = crate::routes::connect(address).await?;
    tcp.set_nodelay(true)?;
    let address = tcp.peer_addr()?;
    // Only the pin matters. No name is sent, so any name will do here.
    let name = ServerName::IpAddress(address.ip().into());
    Ok((connector.connect(name, tcp).await?, address))
}

/// Waits for the first frame of the side that listens: it has accepted our certificate, and says what its clock shows.
async fn welcome<S: AsyncRead + Unpin>(mut stream: S) -> Result<(S, u64), ConnectFailure> {
    let first = read_frame(&mut stream, WELCOME).await.map_err(|error| match error {
        FrameError::Io(error) => ConnectFailure::from(error),
        other => ConnectFailure::Closed(other.to_string()),
    })?;
    let seconds =
        first.try_into().map_err(|_| ConnectFailure::Closed("its first frame is of another version".into()))?;
    Ok((stream, u64::from_be_bytes(seconds)))
}

/// Keying material that a TLS session exports; it has no printable form.
#[derive(Clone)]
pub struct Exporter(pub Zeroizing<[u8; 32]>);

impl fmt::Debug for Exporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Exporter(..)")
    }
}

/// The peer of a link that is up.
struct Authenticated {
    name: PeerName,
    certificate: CertificateDer<'static>,
    pin: Pin,
    exporter: Exporter,
}

/// Exports a session's keying material under our label (RFC 5705 section 4: labels of our own begin with EXPERIMENTAL).
fn exporter<T>(connection: &rustls::ConnectionCommon<T>) -> io::Result<Exporter> {
    let exported = connection.export_keying_material([0; 32], b"EXPERIMENTAL wayleave link", None);
    exported.map(|octets| Exporter(Zeroizing::new(octets))).map_err(io::Error::other)
}

/// The share of the inbox that a received frame takes.
#[derive(Debug)]
pub struct InboxPermit {
    /// Whose frame it is.
    peer: PeerName,
    _octets: OwnedSemaphorePermit,
    _frame: OwnedSemaphorePermit,
}

/// Limits of each link.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Longest frame accepted, in octets; no more than [`MAX_FRAME`].
    pub frame: u32,
    /// Octets that may wait for a peer, each frame with `FRAME_COST` on top.
    pub queue: usize,
    /// Between nodes: what both ends must have one of in common, the preferred first (ALPN, RFC 7301). A peer that says none is of a
    /// release before, and is told so by the machine behind.
    pub protocols: &'static [&'static str],
}

impl Default for Limits {
    fn default() -> Self {
        Self { frame: MAX_FRAME, queue: 64 << 20, protocols: &[] }
    }
}

/// Counts since the start, over all links.
#[derive(Debug, Default)]
pub struct Counters {
    pub up: AtomicU64,
    /// Links closed because the peer read too slowly.
    pub too_slow: AtomicU64,
    /// Frames received, without keepalives.
    pub frames_in: AtomicU64,
    /// Frames accepted for sending.
    pub frames_out: AtomicU64,
    pub bytes_in: AtomicU64,
    pub bytes_out: AtomicU64,
    /// Connections refused for their certificate.
    pub refused: AtomicU64,
    /// Connections that failed before any certificate was checked.
    pub failed: AtomicU64,
}

fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

/// The links of a process. Cheap to clone; all clones are the same links.
#[derive(Clone, Debug)]
pub struct Links(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limits: Limits,
    counters: Counters,
    refusals: Refusals,
    /// The log of connections that failed otherwise.
    failures: Mutex<LogLimit>,
    next: AtomicU64,
    inbox: Arc<Semaphore>,
    table: Mutex<LinkTable>,
}

#[derive(Debug, Default)]
struct LinkTable {
    links: HashMap<u64, LinkHandle>,
    /// The links of each listener and certificate, the oldest first: one that comes beyond their number replaces the oldest.
    owners: HashMap<(u64, Fingerprint), Vec<u64>>,
    /// The last link of each connector, and whether its peer refused what was said on it.
    connectors: HashMap<u64, (u64, bool)>,
}

#[derive(Debug)]
struct LinkHandle {
    queue: mpsc::Sender<Vec<u8>>,
    /// Octets in the queue, `FRAME_COST` for each frame included.
    queued: Arc<AtomicUsize>,
    close: watch::Sender<Option<Ending>>,
    /// Closes when the link's `Down` has been delivered.
    done: watch::Receiver<()>,
}

/// How and why a link ends.
#[derive(Clone, Debug)]
struct Ending {
    reason: String,
    /// Whether what is queued goes out first.
    flushes: bool,
}

impl Ending {
    fn of(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), flushes: false }
    }
}

/// The last connection to a listener that one of the two ends refused for the certificate of the other, as long as none has
/// been accepted since. Clones are views of the same.
#[derive(Clone, Debug, Default)]
pub struct LastRefusal(Arc<Mutex<Option<(SocketAddr, ConnectFailure)>>>);

impl LastRefusal {
    /// Who connected, and what was wrong.
    #[must_use]
    pub fn get(&self) -> Option<(SocketAddr, ConnectFailure)> {
        self.lock().clone()
    }

    fn set(&self, last: Option<(SocketAddr, ConnectFailure)>) {
        *self.lock() = last;
    }

    fn lock(&self) -> MutexGuard<'_, Option<(SocketAddr, ConnectFailure)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running listener; it stops when dropped.
#[derive(Debug)]
pub struct Listening {
    /// Where it listens.
    pub address: SocketAddr,
    /// Why a peer may be missing that does connect.
    pub refusal: LastRefusal,
    task: AbortHandle,
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A running connector; it stops when dropped.
#[derive(Debug)]
pub struct Connecting {
    task: AbortHandle,
}

impl Drop for Connecting {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Links {
    /// No links yet.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        let shared = Shared {
            limits,
            counters: Counters::default(),
            refusals: Refusals::default(),
            failures: Mutex::default(),
            next: AtomicU64::new(1),
            inbox: Arc::new(Semaphore::new(INBOX)),
            table: Mutex::default(),
        };
        Self(Arc::new(shared))
    }

    /// Counts over all links.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.0.counters
    }

    /// Queues a frame, which must not be empty. Never waits: a link whose queue is full is closed. Does nothing if the link
    /// is down already.
    pub fn send(&self, link: u64, frame: Vec<u8>) {
        debug_assert!(!frame.is_empty(), "an empty frame is a keepalive");
        let table = self.table();
        let Some(handle) = table.links.get(&link) else { return };
        let (cost, octets) = (frame.len() + FRAME_COST, frame.len() as u64);
        // Counted before it is queued: whoever writes it takes it off the count at once, which would fall below zero.
        let has_capacity = handle.queued.fetch_add(cost, Ordering::Relaxed) + cost <= self.0.limits.queue;
        // The queue has room for as many frames as the octets allow, so it is full only when they are used up too.
        if !has_capacity || matches!(handle.queue.try_send(frame), Err(TrySendError::Full(_))) {
            count(&self.0.counters.too_slow, 1);
            let reason = format!("the peer reads too slowly: more than {} octets wait for it", self.0.limits.queue);
            handle.close.send_replace(Some(Ending::of(reason)));
            return;
        }
        count(&self.0.counters.frames_out, 1);
        count(&self.0.counters.bytes_out, octets);
    }

    /// Closes a link once what is queued has been sent, or the peer does not read it; its `Down` follows with this reason.
    pub fn close(&self, link: u64, reason: &str) {
        self.end(link, Ending { flushes: true, ..Ending::of(reason) });
    }

    /// The same, after the peer has refused what was said to it: a connector then waits longer before it tries again, also if
    /// the peer has closed the link by now.
    pub fn close_refused(&self, link: u64, reason: &str) {
        if let Some((_, is_refused)) = self.table().connectors.values_mut().find(|(last, _)| *last == link) {
            *is_refused = true;
        }
        self.close(link, reason);
    }

    fn end(&self, link: u64, ending: Ending) {
        if let Some(handle) = self.table().links.get(&link) {
            handle.close.send_replace(Some(ending));
        }
    }

    /// Listens at `address` for peers that `verifier` accepts. A peer that connects again replaces its earlier link.
    pub async fn listen<E>(
        &self,
        address: SocketAddr,
        identity: &Identity,
        verifier: PinVerifier,
        events: mpsc::Sender<E>,
    ) -> io::Result<Listening>
    where
        E: From<LinkEvent> + Send + 'static,
    {
        let verifier = verifier.not_own(identity);
        let config = server_config(identity, &verifier).map_err(io::Error::other)?;
        self.bind(address, TlsAcceptor::from(config), Peers::Pinned(verifier), events).await
    }

    /// Listens at `address` for any node of any realm; what it may do is for the machine behind to say. A node has two
    /// links at a time: a third one replaces the oldest.
    pub async fn listen_nodes<E>(
        &self,
        address: SocketAddr,
        own: &NodeIdentity,
        events: mpsc::Sender<E>,
    ) -> io::Result<Listening>
    where
        E: From<LinkEvent> + Send + 'static,
    {
        let verifier = NodeVerifier::new(own, None);
        let config = node_tls::server_config(own, &verifier, self.0.limits.protocols).map_err(io::Error::other)?;
        self.bind(address, TlsAcceptor::from(config), Peers::Nodes(verifier), events).await
    }

    async fn bind<E>(
        &self,
        address: SocketAddr,
        acceptor: TlsAcceptor,
        peers: Peers,
        events: mpsc::Sender<E>,
    ) -> io::Result<Listening>
    where
        E: From<LinkEvent> + Send + 'static,
    {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let port = self.0.next.fetch_add(1, Ordering::Relaxed);
        let refusal = LastRefusal::default();
        let port = Port { links: self.clone(), peers, events, id: port, refusal: refusal.clone() };
        let task = tokio::spawn(port.accept(listener, acceptor)).abort_handle();
        Ok(Listening { address, refusal, task })
    }

    /// Keeps one link to `address` (host and port), whose certificate `verifier` must accept: connects again with growing
    /// pauses whenever the link is down.
    pub fn connect<E>(
        &self,
        address: String,
        identity: &Identity,
        verifier: PinVerifier,
        events: mpsc::Sender<E>,
    ) -> Result<Connecting, rustls::Error>
    where
        E: From<LinkEvent> + Send + 'static,
    {
        let verifier = verifier.not_own(identity);
        let config = client_config(identity, &verifier)?;
        Ok(self.keep(address, TlsConnector::from(config), Peers::Pinned(verifier), events))
    }

    /// Keeps one link to the node `expected` at `address` (host and port).
    pub fn connect_node<E>(
        &self,
        address: String,
        own: &NodeIdentity,
        expected: IdentityKey,
        events: mpsc::Sender<E>,
    ) -> Result<Connecting, rustls::Error>
    where
        E: From<LinkEvent> + Send + 'static,
    {
        let verifier = NodeVerifier::new(own, Some(expected));
        let config = node_tls::client_config(own, &verifier, self.0.limits.protocols)?;
        Ok(self.keep(address, TlsConnector::from(config), Peers::Nodes(verifier), events))
    }

    fn keep<E>(&self, address: String, connector: TlsConnector, peers: Peers, events: mpsc::Sender<E>) -> Connecting
    where
        E: From<LinkEvent> + Send + 'static,
    {
        let id = self.0.next.fetch_add(1, Ordering::Relaxed);
        let port = Port { links: self.clone(), peers, events, id, refusal: LastRefusal::default() };
        Connecting { task: tokio::spawn(port.keep_connected(address, connector)).abort_handle() }
    }

    fn table(&self) -> MutexGuard<'_, LinkTable> {
        // Nothing that holds this lock can panic half-way through a change.
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Who may be at the other end of a port's links.
#[derive(Clone)]
enum Peers {
    Pinned(PinVerifier),
    Nodes(NodeVerifier),
}

impl Peers {
    /// Links of one peer at a listener, at a time. A node has two: one for what it asks, and one by which it gives its server the keys of its tags.
    fn links_each(&self) -> usize {
        match self {
            Self::Pinned(_) => 1,
            Self::Nodes(_) => 2,
        }
    }

    fn check(&self, shown: &CertificateDer<'_>) -> Result<Pin, Refusal> {
        match self {
            Self::Pinned(verifier) => verifier.check(shown, now_secs()),
            Self::Nodes(verifier) => verifier.check(shown),
        }
    }

    fn removed_peer(&self, error: &io::Error) -> Option<Refusal> {
        match self {
            Self::Pinned(verifier) => verifier.removed_peer(error),
            Self::Nodes(_) => None,
        }
    }

    fn count_refusal(&self) {
        match self {
            Self::Pinned(verifier) => verifier.count_refusal(),
            Self::Nodes(verifier) => verifier.count_refusal(),
        }
    }

    /// The one who is expected: the role is told why a link to it does not come up.
    fn only_pin(&self) -> Option<Pin> {
        match self {
            Self::Pinned(verifier) => verifier.pins().only(),
            Self::Nodes(verifier) => verifier.expected(),
        }
    }

    /// Links of a listener, in all and from one address.
    fn limits(&self) -> (usize, usize) {
        match self {
            // The pins are the limit: each has one link.
            Self::Pinned(_) => (Semaphore::MAX_PERMITS, Semaphore::MAX_PERMITS),
            Self::Nodes(_) => (NODE_LINKS, NODE_LINKS_EACH),
        }
    }
}

/// One listener or connector; each of its tasks has a clone.
struct Port<E> {
    links: Links,
    peers: Peers,
    events: mpsc::Sender<E>,
    id: u64,
    /// Of a listener.
    refusal: LastRefusal,
}

impl<E> Clone for Port<E> {
    fn clone(&self) -> Self {
        let (links, peers, events) = (self.links.clone(), self.peers.clone(), self.events.clone());
        Self { links, peers, events, id: self.id, refusal: self.refusal.clone() }
    }
}

/// What one address may have open at a listener.
struct Source {
    handshakes: Arc<Semaphore>,
    links: Arc<Semaphore>,
}

impl Source {
    fn new(links: usize) -> Self {
        Self { handshakes: Arc::new(Semaphore::new(HANDSHAKES_EACH)), links: Arc::new(Semaphore::new(links)) }
    }
}

/// The handshakes of a listener, the oldest first: when each began, from what network, and what ends it when it is dropped.
#[derive(Default)]
struct Handshakes(VecDeque<(tokio::time::Instant, u128, oneshot::Sender<()>)>);

impl Handshakes {
    fn begin(&mut self, from: IpAddr) -> Eviction {
        self.0.retain(|(.., end)| !end.is_closed());
        let (end, eviction) = oneshot::channel();
        self.0.push_back((tokio::time::Instant::now(), source_prefix(from.to_canonical()), end));
        eviction
    }

    /// Ends the oldest one of the network that has most of them if these are too many, otherwise the oldest of all, if it is late.
    fn end_one(&mut self) {
        self.0.retain(|(.., end)| !end.is_closed());
        let mut networks: HashMap<u128, usize> = HashMap::new();
        self.0.iter().for_each(|(_, network, _)| *networks.entry(*network).or_default() += 1);
        // Of networks with the same number the one with the oldest.
        let largest = self.0.iter().rev().map(|(_, network, _)| *network).max_by_key(|network| networks[network]);
        let largest = largest.filter(|network| networks[network] > HANDSHAKES_OF_NETWORK);
        let oldest = self.0.iter().position(|(_, network, _)| Some(*network) == largest);
        let is_late = |place: usize, after| self.0.get(place).is_some_and(|(began, ..)| began.elapsed() >= after);
        let of_network = oldest.filter(|place| is_late(*place, HANDSHAKE_LATE.0));
        if let Some(place) = of_network.or(is_late(0, HANDSHAKE_LATE.1).then_some(0)) {
            self.0.remove(place);
        }
    }
}

impl From<io::Error> for ConnectFailure {
    fn from(error: io::Error) -> Self {
        if let Some(refusal) = refusal_of(&error) {
            return Self::Refused(refusal);
        }
        let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        match tls {
            Some(rustls::Error::AlertReceived(AlertDescription::CertificateRevoked)) => Self::Removed,
            Some(
                rustls::Error::NoApplicationProtocol
                | rustls::Error::AlertReceived(AlertDescription::NoApplicationProtocol),
            ) => Self::NoProtocol,
            // Every alert that a peer sends after our hello is about us, and with pinned keys about our certificate.
            Some(rustls::Error::AlertReceived(alert)) => Self::NotAccepted(format!("TLS alert {alert:?}")),
            _ => Self::System(error.to_string()),
        }
    }
}

impl<E: From<LinkEvent> + Send + 'static> Port<E> {
    async fn accept(self, listener: TcpListener, acceptor: TlsAcceptor) {
        let handshakes = Arc::new(Semaphore::new(HANDSHAKES));
        let (most, most_each) = self.peers.limits();
        let places = Arc::new(Semaphore::new(most));
        let mut sources: HashMap<IpAddr, Weak<Source>> = HashMap::new();
        let mut under_way = Handshakes::default();
        // When the listener is dropped, its links end with it.
        let mut tasks = JoinSet::new();
        loop {
            while tasks.try_join_next().is_some() {}
            // Before the connection is accepted: while all are in use, more wait in the kernel and take no descriptor here.
            let permit = loop {
                if handshakes.available_permits() == 0 {
                    under_way.end_one();
                }
                match timeout(HANDSHAKES_CHECK, Arc::clone(&handshakes).acquire_owned()).await {
                    Ok(Ok(permit)) => break permit,
                    Ok(Err(_)) => return,
                    Err(_) => {}
                }
            };
            let (tcp, address) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(BACKOFF_LEAST).await;
                    continue;
                }
            };
            sources.retain(|_, source| source.strong_count() > 0);
            let known = sources.get(&address.ip()).and_then(Weak::upgrade);
            let source = known.unwrap_or_else(|| Arc::new(Source::new(most_each)));
            sources.insert(address.ip(), Arc::downgrade(&source));
            let Ok(of_source) = Arc::clone(&source.handshakes).try_acquire_owned() else {
                count(&self.links.0.counters.failed, 1);
                debug!(%address, "too many handshakes from this address");
                continue;
            };
            let place = Arc::clone(&places).try_acquire_owned();
            let (Ok(place), Ok(place_of_source)) = (place, Arc::clone(&source.links).try_acquire_owned()) else {
                count(&self.links.0.counters.failed, 1);
                debug!(%address, "too many links, in all or from this address");
                continue;
            };
            let (port, acceptor, eviction) = (self.clone(), acceptor.clone(), under_way.begin(address.ip()));
            tasks.spawn(async move {
                let _held = (place, place_of_source, source);
                let opened = tokio::select! {
                    opened = timeout(HANDSHAKE, port.open_accepted(tcp, &acceptor)) => opened,
                    _ = eviction => {
                        count(&port.links.0.counters.failed, 1);
                        return debug!(%address, "a handshake gave way to another connection");
                    }
                };
                drop((permit, of_source));
                match opened.unwrap_or(Err(ConnectFailure::Timeout)) {
                    Ok((stream, peer)) => {
                        port.refusal.set(None);
                        port.run(stream, peer, address, None).await;
                    }
                    Err(error) => {
                        port.log_failure(&error, &address);
                        if error.is_refusal() {
                            port.refusal.set(Some((address, error)));
                        }
                    }
                }
            });
        }
    }

    async fn open_accepted(
        &self,
        tcp: TcpStream,
        acceptor: &TlsAcceptor,
    ) -> Result<(tokio_rustls::server::TlsStream<TcpStream>, Authenticated), ConnectFailure> {
        tcp.set_nodelay(true)?;
        let mut stream = acceptor.accept(tcp).await.map_err(|error| match self.peers.removed_peer(&error) {
            Some(refusal) => ConnectFailure::Refused(refusal),
            None => error.into(),
        })?;
        let peer = self.check(stream.get_ref().1)?;
        // The welcome: the peer's certificate was accepted (see frames.rs).
        write_frame(&mut stream, &now_secs().to_be_bytes()).await?;
        stream.flush().await?;
        Ok((stream, peer))
    }

    async fn keep_connected(self, address: String, connector: TlsConnector) {
        let mut pause = BACKOFF_LEAST;
        let mut reported = None;
        loop {
            let opened = timeout(HANDSHAKE, self.open_connected(&address, &connector)).await;
            let is_refused = match opened.unwrap_or(Err(ConnectFailure::Timeout)) {
                Ok((stream, peer, address, peer_clock)) => {
                    reported = None;
                    let began = tokio::time::Instant::now();
                    self.run(stream, peer, address, Some(peer_clock)).await;
                    if began.elapsed() >= STABLE {
                        pause = BACKOFF_LEAST;
                    }
                    // A peer that refuses says why and closes the link: whoever reads it may be later than its end.
                    tokio::time::sleep(jittered(BACKOFF_LEAST)).await;
                    self.links.table().connectors.remove(&self.id).is_some_and(|(_, is_refused)| is_refused)
                }
                Err(failure) => {
                    let is_refusal = failure.is_refusal();
                    // A role has words of its own for a pinned peer.
                    match &self.peers {
                        Peers::Pinned(_) => self.count_failure(&failure),
                        Peers::Nodes(_) => self.log_failure(&failure, &address),
                    }
                    // Reported once, not with every attempt.
                    if let Some(pin) = self.peers.only_pin().filter(|_| reported.as_ref() != Some(&failure)) {
                        debug!(%address, reason = %failure, "no link: cannot connect");
                        reported = Some(failure.clone());
                        let _ = self.events.send(LinkEvent::Failed { pin, failure }.into()).await;
                    }
                    is_refusal
                }
            };
            if self.events.is_closed() {
                return;
            }
            if is_refused {
                pause = pause.max(REFUSED_LEAST);
            }
            tokio::time::sleep(jittered(pause)).await;
            pause = (pause * 2).min(if is_refused { REFUSED_MOST } else { BACKOFF_MOST });
        }
    }

    async fn open_connected(
        &self,
        address: &str,
        connector: &TlsConnector,
    ) -> Result<(tokio_rustls::client::TlsStream<TcpStream>, Authenticated, SocketAddr, u64), ConnectFailure> {
        let (stream, address) = dial(address, connector).await?;
        let peer = self.check(stream.get_ref().1)?;
        let (stream, peer_clock) = welcome(stream).await?;
        Ok((stream, peer, address, peer_clock))
    }

    /// Checks once more and returns the peer: the table of pins may have changed since the handshake.
    fn check<T>(&self, session: &rustls::ConnectionCommon<T>) -> Result<Authenticated, ConnectFailure> {
        let shown = session.peer_certificates();
        let missing = || io::Error::new(io::ErrorKind::InvalidData, "the peer sent no certificate");
        let certificate = shown.and_then(|chain| chain.first()).ok_or_else(missing)?.clone();
        let pin = self.peers.check(&certificate).map_err(ConnectFailure::Refused)?;
        let name = peer_name(&pin, &certificate);
        if let Some(why) = starts::refusal(&name) {
            return Err(ConnectFailure::System(format!("{name}: {why}")));
        }
        Ok(Authenticated { name, certificate, pin, exporter: exporter(session)? })
    }

    fn count_failure(&self, failure: &ConnectFailure) {
        if let ConnectFailure::Refused(_) = failure {
            self.peers.count_refusal();
            count(&self.links.0.counters.refused, 1);
        } else {
            count(&self.links.0.counters.failed, 1);
        }
    }

    fn log_failure(&self, error: &ConnectFailure, address: &dyn std::fmt::Display) {
        self.count_failure(error);
        if let ConnectFailure::Refused(refusal @ Refusal { fingerprint, reason }) = error {
            match self.links.0.refusals.note(refusal, tokio::time::Instant::now()) {
                Some(0) => warn!(%address, %fingerprint, %reason, "connection refused: certificate not accepted"),
                Some(suppressed) => {
                    warn!(%address, %fingerprint, %reason, suppressed, "connection refused again: certificate not accepted");
                }
                None => debug!(%address, %fingerprint, %reason, "connection refused: certificate not accepted"),
            }
        } else {
            let mut failures = self.links.0.failures.lock().unwrap_or_else(PoisonError::into_inner);
            match failures.note(tokio::time::Instant::now()) {
                Some(Line { suppressed }) => info!(%address, reason = %error, suppressed, "no link: cannot connect"),
                None => debug!(%address, reason = %error, "no link: cannot connect"),
            }
        }
    }

    /// Carries one link from its `Up` to its `Down`.
    async fn run<S>(&self, stream: S, peer: Authenticated, address: SocketAddr, peer_clock: Option<u64>)
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let Authenticated { name: source, certificate, pin, exporter } = peer;
        let link = self.links.0.next.fetch_add(1, Ordering::Relaxed);
        let owner = (self.id, Fingerprint::of(&certificate));
        let (queue, waiting) = mpsc::channel((self.links.0.limits.queue / FRAME_COST).max(1));
        let (close, mut closed) = watch::channel(None::<Ending>);
        let (_done, done) = watch::channel(());
        let queued = Arc::new(AtomicUsize::new(0));
        let handle = LinkHandle { queue, queued: Arc::clone(&queued), close, done };
        self.register(owner, link, handle).await;
        let registration = Registration { links: &self.links, link, owner };

        count(&self.links.0.counters.up, 1);
        info!(link, peer = %pin.name, %address, "link up");
        let name = pin.name.clone();
        // Before `Up` is sent: whoever gets that may refuse the peer at once, and `close_refused` looks the link up here.
        if peer_clock.is_some() {
            self.links.table().connectors.insert(self.id, (link, false));
        }
        let up = LinkEvent::Up { link, pin: pin.clone(), address, peer_clock, exporter };
        if self.events.send(up.into()).await.is_err() {
            return;
        }
        let (mut reader, writer) = tokio::io::split(stream);
        let mut writer = BufWriter::with_capacity(64 * 1024, writer);
        let ending = tokio::select! {
            reason = self.read(link, &source, &mut reader) => Ending::of(reason),
            reason = write(&mut writer, waiting, &queued) => Ending::of(reason),
            reason = self.watch_certificate(&certificate, &pin, closed.clone()) => Ending::of(reason),
            ending = closing(&mut closed, &queued) => ending,
        };
        // Close TLS if the peer still reads.
        let _ = timeout(Duration::from_millis(200), writer.shutdown()).await;
        if ending.flushes {
            // Octets that nobody read would make the system reset the connection, and the last frame would be lost.
            let _ = timeout(LAST_FRAMES, tokio::io::copy(&mut reader, &mut tokio::io::sink())).await;
        }
        info!(link, peer = %name, reason = %ending.reason, "link down");
        let _ = self.events.send(LinkEvent::Down { link, reason: ending.reason }.into()).await;
        drop(registration); // only now may another link of this peer come up
    }

    /// Enters the link in the table once no more other links of its owner are left than it may have beside it, so that the events of one that is
    /// replaced never mix with those of this one.
    async fn register(&self, owner: (u64, Fingerprint), link: u64, handle: LinkHandle) {
        loop {
            let mut done = {
                let mut table = self.links.table();
                let LinkTable { links, owners, .. } = &mut *table;
                let all = owners.entry(owner).or_default();
                all.retain(|old| links.contains_key(old));
                if all.len() < self.peers.links_each() {
                    all.push(link);
                    links.insert(link, handle);
                    return;
                }
                let Some(old) = all.first().and_then(|old| links.get(old)) else { continue };
                old.close.send_replace(Some(Ending::of(REPLACED)));
                old.done.clone()
            };
            let _ = done.changed().await; // ends with an error when the old link's task is over
        }
    }

    async fn read<R: AsyncRead + Unpin>(&self, link: u64, peer: &PeerName, reader: &mut R) -> String {
        let frames = Arc::new(Semaphore::new(INBOX_FRAMES));
        loop {
            let bytes = match read_frame_moving(reader, self.links.0.limits.frame, IDLE).await {
                Ok(bytes) => bytes,
                Err(error) => return error.to_string(),
            };
            if bytes.is_empty() {
                continue;
            }
            count(&self.links.0.counters.frames_in, 1);
            count(&self.links.0.counters.bytes_in, bytes.len() as u64);
            let size = u32::try_from(bytes.len()).unwrap_or(MAX_FRAME);
            // Its own places first: whoever waits for them keeps no octets from others.
            let Ok(frame) = Arc::clone(&frames).acquire_owned().await else { return "shutting down".to_owned() };
            let Ok(octets) = Arc::clone(&self.links.0.inbox).acquire_many_owned(size).await else {
                return "shutting down".to_owned();
            };
            let permit = InboxPermit { peer: Arc::clone(peer), _octets: octets, _frame: frame };
            if self.events.send(LinkEvent::Frame { link, bytes, permit }.into()).await.is_err() {
                return "shutting down".to_owned();
            }
        }
    }

    /// Ends when the certificate may no longer pass: revoked, given to someone else, or expired.
    async fn watch_certificate(
        &self,
        certificate: &CertificateDer<'_>,
        pin: &Pin,
        closed: watch::Receiver<Option<Ending>>,
    ) -> String {
        // A node's key has no dates.
        let Peers::Pinned(verifier) = &self.peers else { return std::future::pending().await };
        let mut changes = verifier.pins().changes();
        loop {
            let _ = timeout(REVERIFY, changes.changed()).await;
            match verifier.check(certificate, now_secs()) {
                Ok(now) if now == *pin => debug!(peer = %pin.name, "certificate verified again"),
                Ok(now) => return format!("the peer's certificate now belongs to {}", now.name),
                // It is being told why, which has a limit of its own.
                Err(_) if closed.borrow().as_ref().is_some_and(|ending| ending.flushes) => {
                    return std::future::pending().await;
                }
                Err(refusal) => return refusal.reason.to_string(),
            }
        }
    }
}

/// Waits until the link is to be closed, and then until nothing is queued, if that is wanted.
async fn closing(closed: &mut watch::Receiver<Option<Ending>>, queued: &AtomicUsize) -> Ending {
    let ending = match closed.wait_for(Option::is_some).await {
        Ok(ending) => ending.clone().unwrap_or_else(|| Ending::of("closed")),
        Err(_) => Ending::of("closed"),
    };
    let sent = async {
        while ending.flushes && queued.load(Ordering::Relaxed) > 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let _ = timeout(LAST_FRAMES, sent).await;
    ending
}

/// Removes the link from the table on drop, also when its task is aborted.
struct Registration<'a> {
    links: &'a Links,
    link: u64,
    owner: (u64, Fingerprint),
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        let mut table = self.links.table();
        table.links.remove(&self.link);
        if let Some(all) = table.owners.get_mut(&self.owner) {
            all.retain(|link| *link != self.link);
            if all.is_empty() {
                table.owners.remove(&self.owner);
            }
        }
    }
}

async fn write<W>(writer: &mut W, mut waiting: mpsc::Receiver<Vec<u8>>, queued: &AtomicUsize) -> String
where
    W: AsyncWrite + Unpin,
{
    loop {
        let frame = match timeout(KEEPALIVE, waiting.recv()).await {
            Ok(Some(frame)) => Some(frame),
            Ok(None) => return std::future::pending().await, // closing
            Err(_) => None,
        };
        let sent = async {
            match &frame {
                Some(frame) => write_frame_moving(writer, frame, WRITE).await?,
                None => write_frame_moving(writer, &[], WRITE).await?,
            }
            if waiting.is_empty() { timeout(WRITE, writer.flush()).await? } else { Ok(()) }
        };
        match sent.await {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                return format!("the peer read nothing for {} seconds", WRITE.as_secs());
            }
            // Whoever reads and whoever writes say the same of a peer that closed.
            Err(error) => return from_io(error).to_string(),
        }
        // Only now, written and flushed if nothing waits behind it: `closing` takes a count of zero for "all was sent".
        if let Some(frame) = frame {
            queued.fetch_sub(frame.len() + FRAME_COST, Ordering::Relaxed);
        }
    }
}

/// Between half and all of `pause`, so that peers of one failed party do not return at the same moment.
fn jittered(pause: Duration) -> Duration {
    let part = f64::from(getrandom::u32().unwrap_or(u32::MAX / 2)) / f64::from(u32::MAX);
    pause.mul_f64(0.5 + part / 2.0)
}

#[cfg(test)]
mod tests {
    //! ICC, insiders: whoever has many addresses holds all handshakes of a listener; the oldest of them give way to who comes next.

    use super::*;

    fn address(network: u8, host: u8) -> IpAddr {
        IpAddr::from([192, 0, network, host])
    }

    fn ended(all: &mut [Eviction]) -> Vec<usize> {
        let has_ended = |(place, eviction): (usize, &mut Eviction)| {
            matches!(eviction.try_recv(), Err(oneshot::error::TryRecvError::Closed)).then_some(place)
        };
        all.iter_mut().enumerate().filter_map(has_ended).collect()
    }

    #[tokio::test]
    async fn a_peer_that_closed_is_told_alike_by_what_reads_and_by_what_writes() {
        let (ours, theirs) = tokio::io::duplex(64);
        drop(theirs);
        let (queue, waiting) = mpsc::channel(1);
        queue.send(vec![0]).await.expect("there is room");
        let queued = AtomicUsize::new(1 + FRAME_COST);
        let mut writer = BufWriter::new(ours);
        assert_eq!(write(&mut writer, waiting, &queued).await, FrameError::Closed.to_string());
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_handshake_of_a_network_with_many_gives_way_and_no_other() {
        let mut handshakes = Handshakes::default();
        let mut alone = [handshakes.begin(address(1, 1))];
        let mut many: Vec<Eviction> =
            (0..=HANDSHAKES_OF_NETWORK).map(|number| handshakes.begin(address(2, number as u8))).collect();
        handshakes.end_one();
        assert_eq!((ended(&mut alone), ended(&mut many)), (vec![], vec![]), "all have just begun");
        tokio::time::advance(HANDSHAKE_LATE.0).await;
        handshakes.end_one();
        assert_eq!((ended(&mut alone), ended(&mut many)), (vec![], vec![0]));
        // It has no more than its part now.
        handshakes.end_one();
        assert_eq!((ended(&mut alone), ended(&mut many)), (vec![], vec![0]));
    }

    #[tokio::test(start_paused = true)]
    async fn where_many_come_back_at_once_only_a_late_handshake_gives_way() {
        let mut handshakes = Handshakes::default();
        let mut all: Vec<Eviction> = (0..=255).map(|network| handshakes.begin(address(network, 1))).collect();
        handshakes.end_one();
        assert_eq!(ended(&mut all), Vec::<usize>::new());
        tokio::time::advance(HANDSHAKE_LATE.1).await;
        // The first one has come to its end.
        drop(all.remove(0));
        handshakes.end_one();
        assert_eq!(ended(&mut all), [0]);
        handshakes.end_one();
        assert_eq!(ended(&mut all), [0, 1]);
    }

    #[tokio::test(start_paused = true)]
    async fn late_handshakes_of_small_networks_give_way_where_the_largest_is_always_in_time() {
        let mut handshakes = Handshakes::default();
        let mut silent: Vec<Eviction> = (0..HANDSHAKES_OF_NETWORK).map(|_| handshakes.begin(address(1, 1))).collect();
        tokio::time::advance(HANDSHAKE_LATE.1).await;
        let mut renewed: Vec<Eviction> = (0..=HANDSHAKES_OF_NETWORK).map(|_| handshakes.begin(address(2, 1))).collect();
        handshakes.end_one();
        assert_eq!((ended(&mut silent), ended(&mut renewed)), (vec![0], vec![]));
    }
}
