//! Links: authenticated TLS connections that carry frames.
//!
//! Each link is one task. Frames to a peer wait in a queue that is bounded in octets and in frames. A sender never waits:
//! machines send from their loop, and a loop that waited for one slow peer would keep all others from being served (and two
//! parties that wait for each other would never go on). So the link of a peer that lets its queue fill is closed, with the
//! reason in the log; the protocol above starts over when the peer connects again. Received frames do make the peer wait:
//! they stay in the kernel while the machine is busy.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, BufWriter};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tracing::{debug, info, warn};
use wayleave_core::IdentityKey;
use zeroize::Zeroizing;

use crate::frames::{FrameError, MAX_FRAME, read_frame, write_frame};
use crate::identity::{Fingerprint, Identity};
use crate::log_limit::{Line, LogLimit};
use crate::node_tls::{self, NodeIdentity, NodeVerifier};
use crate::refusals::Refusals;
use crate::tls::{Pin, PinVerifier, Refusal, client_config, now_secs, refusal_of, server_config};

/// The longest time for opening a connection: TCP, TLS and the welcome frame together.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Concurrent handshakes of a listener; further connections wait in the kernel.
const HANDSHAKES: usize = 256;
/// Of these, from one address, so that one host with silent connections does not keep others out.
const HANDSHAKES_EACH: usize = 32;
/// A side that has sent nothing for this long sends an empty frame (keepalive).
const KEEPALIVE: Duration = Duration::from_secs(5);
/// A peer that has sent nothing for this long is considered down.
const IDLE: Duration = Duration::from_secs(20);
/// The longest time for writing one frame; after that the peer is considered not to read.
const WRITE: Duration = Duration::from_secs(20);
/// How often a link's certificate is verified again, for its dates.
const REVERIFY: Duration = Duration::from_secs(60);
const BACKOFF_LEAST: Duration = Duration::from_millis(100);
const BACKOFF_MOST: Duration = Duration::from_secs(5);
/// A link that was up for this long resets the back-off.
const STABLE: Duration = Duration::from_secs(10);
/// Links of a listener that accepts every node, and of these from one address: each costs memory before anybody knows who it is.
const NODE_LINKS: usize = 16_384;
const NODE_LINKS_EACH: usize = 1_024;
/// What a queued frame counts for beyond its octets, so that many short frames are bounded too.
const FRAME_COST: usize = 64;

/// Octets of received frames that may wait for the machine, over all links. A link waits for its share in the order of
/// arrival, and its peer waits with it.
const INBOX: usize = 64 << 20;

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
    _permit: OwnedSemaphorePermit,
}

/// Limits of each link.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Longest frame accepted, in octets; no more than [`MAX_FRAME`].
    pub frame: u32,
    /// Octets that may wait for a peer, each frame with `FRAME_COST` on top.
    pub queue: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { frame: MAX_FRAME, queue: 64 << 20 }
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
    /// One link per listener and certificate: a second one replaces the first.
    owners: HashMap<(u64, Fingerprint), u64>,
}

#[derive(Debug)]
struct LinkHandle {
    queue: mpsc::Sender<Arc<[u8]>>,
    /// Octets in the queue, `FRAME_COST` for each frame included.
    queued: Arc<AtomicUsize>,
    close: watch::Sender<Option<String>>,
    /// Closes when the link's `Down` has been delivered.
    done: watch::Receiver<()>,
}

/// A running listener; it stops when dropped.
#[derive(Debug)]
pub struct Listening {
    /// Where it listens.
    pub address: SocketAddr,
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
    pub fn send(&self, link: u64, frame: Arc<[u8]>) {
        debug_assert!(!frame.is_empty(), "an empty frame is a keepalive");
        let table = self.table();
        let Some(handle) = table.links.get(&link) else { return };
        let (cost, octets) = (frame.len() + FRAME_COST, frame.len() as u64);
        let has_room = handle.queued.fetch_add(cost, Ordering::Relaxed) + cost <= self.0.limits.queue;
        // The queue has room for as many frames as the octets allow, so it is full only when they are used up too.
        if !has_room || matches!(handle.queue.try_send(frame), Err(TrySendError::Full(_))) {
            count(&self.0.counters.too_slow, 1);
            let reason = format!("the peer reads too slowly: more than {} octets wait for it", self.0.limits.queue);
            handle.close.send_replace(Some(reason));
            return;
        }
        count(&self.0.counters.frames_out, 1);
        count(&self.0.counters.bytes_out, octets);
    }

    /// Closes a link; its `Down` follows with this reason.
    pub fn close(&self, link: u64, reason: &str) {
        if let Some(handle) = self.table().links.get(&link) {
            handle.close.send_replace(Some(reason.to_owned()));
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

    /// Listens at `address` for any node of any realm; what it may do is for the machine behind to say. A node that connects
    /// again replaces its earlier link.
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
        let config = node_tls::server_config(own, &verifier).map_err(io::Error::other)?;
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
        let port = Port { links: self.clone(), peers, events, id: port };
        let task = tokio::spawn(port.accept(listener, acceptor)).abort_handle();
        Ok(Listening { address, task })
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
        let config = node_tls::client_config(own, &verifier)?;
        Ok(self.keep(address, TlsConnector::from(config), Peers::Nodes(verifier), events))
    }

    fn keep<E>(&self, address: String, connector: TlsConnector, peers: Peers, events: mpsc::Sender<E>) -> Connecting
    where
        E: From<LinkEvent> + Send + 'static,
    {
        let id = self.0.next.fetch_add(1, Ordering::Relaxed);
        let port = Port { links: self.clone(), peers, events, id };
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
    fn check(&self, shown: &CertificateDer<'_>) -> Result<Pin, Refusal> {
        match self {
            Self::Pinned(verifier) => verifier.check(shown, now_secs()),
            Self::Nodes(verifier) => verifier.check(shown),
        }
    }

    fn count_refusal(&self) {
        match self {
            Self::Pinned(verifier) => verifier.count_refusal(),
            Self::Nodes(verifier) => verifier.count_refusal(),
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
}

impl<E> Clone for Port<E> {
    fn clone(&self) -> Self {
        Self { links: self.links.clone(), peers: self.peers.clone(), events: self.events.clone(), id: self.id }
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

/// Why there is no link.
#[derive(Debug, thiserror::Error)]
enum OpenError {
    #[error("{0}")]
    Refused(Refusal),
    #[error("no answer within {} seconds", HANDSHAKE.as_secs())]
    Timeout,
    #[error("the peer refused our certificate or closed the connection: {0}")]
    NotAccepted(FrameError),
    #[error(transparent)]
    Io(io::Error),
}

impl From<io::Error> for OpenError {
    fn from(error: io::Error) -> Self {
        refusal_of(&error).map_or(OpenError::Io(error), OpenError::Refused)
    }
}

impl<E: From<LinkEvent> + Send + 'static> Port<E> {
    async fn accept(self, listener: TcpListener, acceptor: TlsAcceptor) {
        let handshakes = Arc::new(Semaphore::new(HANDSHAKES));
        let (most, most_each) = self.peers.limits();
        let places = Arc::new(Semaphore::new(most));
        let mut sources: HashMap<IpAddr, Weak<Source>> = HashMap::new();
        // When the listener is dropped, its links end with it.
        let mut tasks = JoinSet::new();
        loop {
            while tasks.try_join_next().is_some() {}
            let Ok(permit) = Arc::clone(&handshakes).acquire_owned().await else { return };
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
            let (port, acceptor) = (self.clone(), acceptor.clone());
            tasks.spawn(async move {
                let _held = (place, place_of_source, source);
                let opened = timeout(HANDSHAKE, port.open_accepted(tcp, &acceptor)).await;
                drop((permit, of_source));
                match opened.unwrap_or(Err(OpenError::Timeout)) {
                    Ok((stream, peer)) => {
                        port.run(stream, peer, address).await;
                    }
                    Err(error) => port.log_failure(&error, &address),
                }
            });
        }
    }

    async fn open_accepted(
        &self,
        tcp: TcpStream,
        acceptor: &TlsAcceptor,
    ) -> Result<(tokio_rustls::server::TlsStream<TcpStream>, Authenticated), OpenError> {
        tcp.set_nodelay(true)?;
        let mut stream = acceptor.accept(tcp).await?;
        let peer = self.check(stream.get_ref().1)?;
        write_frame(&mut stream, &Arc::from([])).await?; // the welcome: our certificate was accepted (see frames.rs)
        stream.flush().await?;
        Ok((stream, peer))
    }

    async fn keep_connected(self, address: String, connector: TlsConnector) {
        let mut pause = BACKOFF_LEAST;
        let mut logged = String::new();
        loop {
            match timeout(HANDSHAKE, self.open_connected(&address, &connector)).await.unwrap_or(Err(OpenError::Timeout))
            {
                Ok((stream, peer, address)) => {
                    logged.clear();
                    let began = tokio::time::Instant::now();
                    self.run(stream, peer, address).await;
                    if began.elapsed() >= STABLE {
                        pause = BACKOFF_LEAST;
                    }
                }
                Err(error) => {
                    // Logged once, not with every attempt.
                    let text = error.to_string();
                    if text != logged {
                        self.log_failure(&error, &address);
                        logged = text;
                    }
                }
            }
            if self.events.is_closed() {
                return;
            }
            tokio::time::sleep(jittered(pause)).await;
            pause = (pause * 2).min(BACKOFF_MOST);
        }
    }

    async fn open_connected(
        &self,
        address: &str,
        connector: &TlsConnector,
    ) -> Result<(tokio_rustls::client::TlsStream<TcpStream>, Authenticated, SocketAddr), OpenError> {
        let tcp = TcpStream::connect(address).await?;
        tcp.set_nodelay(true)?;
        let address = tcp.peer_addr()?;
        // Only the pin matters. No name is sent, so any name will do here.
        let name = ServerName::IpAddress(address.ip().into());
        let mut stream = connector.connect(name, tcp).await?;
        let peer = self.check(stream.get_ref().1)?;
        match read_frame(&mut stream, 0).await {
            Ok(_) => Ok((stream, peer, address)),
            Err(error) => Err(OpenError::NotAccepted(error)),
        }
    }

    /// Checks once more and returns the peer: the table of pins may have changed since the handshake.
    fn check<T>(&self, session: &rustls::ConnectionCommon<T>) -> Result<Authenticated, OpenError> {
        let shown = session.peer_certificates();
        let missing = || io::Error::new(io::ErrorKind::InvalidData, "the peer sent no certificate");
        let certificate = shown.and_then(|chain| chain.first()).ok_or_else(missing)?.clone();
        let pin = self.peers.check(&certificate).map_err(OpenError::Refused)?;
        Ok(Authenticated { certificate, pin, exporter: exporter(session)? })
    }

    fn log_failure(&self, error: &OpenError, address: &dyn std::fmt::Display) {
        if let OpenError::Refused(refusal @ Refusal { fingerprint, reason }) = error {
            self.peers.count_refusal();
            count(&self.links.0.counters.refused, 1);
            match self.links.0.refusals.note(refusal, tokio::time::Instant::now()) {
                Some(0) => warn!(%address, %fingerprint, %reason, "connection refused: certificate not accepted"),
                Some(suppressed) => {
                    warn!(%address, %fingerprint, %reason, suppressed, "connection refused again: certificate not accepted");
                }
                None => debug!(%address, %fingerprint, %reason, "connection refused: certificate not accepted"),
            }
        } else {
            count(&self.links.0.counters.failed, 1);
            let mut failures = self.links.0.failures.lock().unwrap_or_else(PoisonError::into_inner);
            match failures.note(tokio::time::Instant::now()) {
                Some(Line { suppressed }) => info!(%address, reason = %error, suppressed, "no link: cannot connect"),
                None => debug!(%address, reason = %error, "no link: cannot connect"),
            }
        }
    }

    /// Carries one link from its `Up` to its `Down`.
    async fn run<S>(&self, stream: S, peer: Authenticated, address: SocketAddr)
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let Authenticated { certificate, pin, exporter } = peer;
        let link = self.links.0.next.fetch_add(1, Ordering::Relaxed);
        let owner = (self.id, Fingerprint::of(&certificate));
        let (queue, waiting) = mpsc::channel((self.links.0.limits.queue / FRAME_COST).max(1));
        let (close, mut closed) = watch::channel(None::<String>);
        let (_done, done) = watch::channel(());
        let queued = Arc::new(AtomicUsize::new(0));
        let handle = LinkHandle { queue, queued: Arc::clone(&queued), close, done };
        self.register(owner, link, handle).await;
        let registration = Registration { links: &self.links, link, owner };

        count(&self.links.0.counters.up, 1);
        info!(link, peer = %pin.name, %address, "link up");
        let name = pin.name.clone();
        if self.events.send(LinkEvent::Up { link, pin: pin.clone(), address, exporter }.into()).await.is_err() {
            return;
        }
        let (mut reader, writer) = tokio::io::split(stream);
        let mut writer = BufWriter::with_capacity(64 * 1024, writer);
        let reason = tokio::select! {
            reason = self.read(link, &mut reader) => reason,
            reason = write(&mut writer, waiting, &queued) => reason,
            reason = self.watch_certificate(&certificate, &pin) => reason,
            reason = closed.wait_for(Option::is_some) => {
                reason.ok().and_then(|reason| reason.clone()).unwrap_or_else(|| "closed".to_owned())
            }
        };
        // Close TLS if the peer still reads; what is queued is not sent any more.
        let _ = timeout(Duration::from_millis(200), writer.shutdown()).await;
        info!(link, peer = %name, %reason, "link down");
        let _ = self.events.send(LinkEvent::Down { link, reason }.into()).await;
        drop(registration); // only now may another link of this peer come up
    }

    /// Enters the link in the table once no other link of its owner is left, so that the events of the two never mix.
    async fn register(&self, owner: (u64, Fingerprint), link: u64, handle: LinkHandle) {
        loop {
            let mut done = {
                let mut table = self.links.table();
                let Some(old) = table.owners.get(&owner).copied() else {
                    table.owners.insert(owner, link);
                    table.links.insert(link, handle);
                    return;
                };
                let Some(old) = table.links.get(&old) else {
                    table.owners.remove(&owner);
                    continue;
                };
                old.close.send_replace(Some("the peer connected again".to_owned()));
                old.done.clone()
            };
            let _ = done.changed().await; // ends with an error when the old link's task is over
        }
    }

    async fn read<R: AsyncRead + Unpin>(&self, link: u64, reader: &mut R) -> String {
        loop {
            let bytes = match timeout(IDLE, read_frame(reader, self.links.0.limits.frame)).await {
                Ok(Ok(bytes)) => bytes,
                Ok(Err(error)) => return error.to_string(),
                Err(_) => return format!("the peer sent nothing for {} seconds", IDLE.as_secs()),
            };
            if bytes.is_empty() {
                continue;
            }
            count(&self.links.0.counters.frames_in, 1);
            count(&self.links.0.counters.bytes_in, bytes.len() as u64);
            let size = u32::try_from(bytes.len()).unwrap_or(MAX_FRAME);
            let Ok(permit) = Arc::clone(&self.links.0.inbox).acquire_many_owned(size).await else {
                return "shutting down".to_owned();
            };
            let permit = InboxPermit { _permit: permit };
            if self.events.send(LinkEvent::Frame { link, bytes, permit }.into()).await.is_err() {
                return "shutting down".to_owned();
            }
        }
    }

    /// Ends when the certificate may no longer pass: revoked, given to someone else, or expired.
    async fn watch_certificate(&self, certificate: &CertificateDer<'_>, pin: &Pin) -> String {
        // A node's key has no dates.
        let Peers::Pinned(verifier) = &self.peers else { return std::future::pending().await };
        let mut changes = verifier.pins().changes();
        loop {
            let _ = timeout(REVERIFY, changes.changed()).await;
            match verifier.check(certificate, now_secs()) {
                Ok(now) if now == *pin => debug!(peer = %pin.name, "certificate verified again"),
                Ok(now) => return format!("the peer's certificate now belongs to {}", now.name),
                Err(refusal) => return refusal.reason.to_string(),
            }
        }
    }
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
        if table.owners.get(&self.owner) == Some(&self.link) {
            table.owners.remove(&self.owner);
        }
    }
}

async fn write<W>(writer: &mut W, mut waiting: mpsc::Receiver<Arc<[u8]>>, queued: &AtomicUsize) -> String
where
    W: AsyncWrite + Unpin,
{
    loop {
        let frame = match timeout(KEEPALIVE, waiting.recv()).await {
            Ok(Some(frame)) => Some(frame),
            Ok(None) => return std::future::pending().await, // closing
            Err(_) => None,
        };
        let sent = timeout(WRITE, async {
            match &frame {
                Some(frame) => write_frame(writer, frame).await?,
                None => write_frame(writer, &Arc::from([])).await?,
            }
            if waiting.is_empty() { writer.flush().await } else { Ok(()) }
        });
        match sent.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return error.to_string(),
            Err(_) => return format!("the peer read nothing for {} seconds", WRITE.as_secs()),
        }
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
