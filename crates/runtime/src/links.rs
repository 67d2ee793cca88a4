//! Links: authenticated TLS connections that carry frames, as events in and commands out.
//!
//! Each link is one task. What a machine sends waits in a queue of bounded size; a peer that lets it fill is
//! disconnected with a reason. What a peer sends waits in the kernel while the machine is busy.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, BufWriter};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tracing::{debug, info, warn};

use crate::frames::{FrameError, MAX_FRAME, read_frame, write_frame};
use crate::identity::{Fingerprint, Identity};
use crate::refusals::Refusals;
use crate::tls::{Gate, Pin, Refusal, client_config, now_secs, refusal_of, server_config};

/// What opening a connection may take: TCP, TLS and the welcome together.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Handshakes that a listener has under way; further connections wait in the kernel.
const HANDSHAKES: usize = 256;
/// Of these, from one address: one host that opens connections and says nothing keeps nobody else out.
const HANDSHAKES_EACH: usize = 32;
/// A side that has sent nothing for so long sends a sign of life.
const KEEPALIVE: Duration = Duration::from_secs(5);
/// A peer that has sent nothing for so long is gone.
const IDLE: Duration = Duration::from_secs(20);
/// A frame that the peer does not take for so long means that it does not read.
const WRITE: Duration = Duration::from_secs(20);
/// How often a link's certificate is judged again, for its dates.
const REJUDGE: Duration = Duration::from_secs(60);
const BACKOFF_LEAST: Duration = Duration::from_millis(100);
const BACKOFF_MOST: Duration = Duration::from_secs(5);
/// A link that lasted so long resets the back-off.
const SETTLED: Duration = Duration::from_secs(10);
/// What a queued frame costs beyond its octets.
const FRAME_COST: usize = 64;

/// Octets of received frames that may wait for the machine, over all links. A link whose turn has not come waits, and
/// with it its peer; turns come in the order of arrival.
const INBOX: usize = 64 << 20;

/// What happened on a link. For each link: one `Up`, any number of `Frame`, one `Down`.
#[derive(Debug)]
pub enum LinkEvent {
    /// A peer is connected and authenticated.
    Up {
        /// A number that no other link of this process ever has.
        link: u64,
        /// Whose certificate it is.
        pin: Pin,
        /// Where it connects from, or where it was reached.
        address: SocketAddr,
    },
    /// A frame came in; never empty.
    Frame {
        /// On which link.
        link: u64,
        /// Its content.
        bytes: Vec<u8>,
        /// Its part of what may wait; given back when dropped.
        held: Held,
    },
    /// The link is gone.
    Down {
        /// Which.
        link: u64,
        /// Why, for people.
        reason: String,
    },
}

/// The part of the inbox that a received frame takes.
#[derive(Debug)]
pub struct Held {
    _permit: OwnedSemaphorePermit,
}

/// Limits of each link.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Longest frame accepted, in octets; no more than [`MAX_FRAME`].
    pub frame: u32,
    /// Octets that may wait for a peer.
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
    /// Links that came up.
    pub up: AtomicU64,
    /// Links closed because the peer read too slowly.
    pub too_slow: AtomicU64,
    /// Frames received, signs of life apart.
    pub frames_in: AtomicU64,
    /// Frames accepted for sending.
    pub frames_out: AtomicU64,
    /// Octets of received frames.
    pub bytes_in: AtomicU64,
    /// Octets of frames accepted for sending.
    pub bytes_out: AtomicU64,
    /// Connections refused for their certificate.
    pub refused: AtomicU64,
    /// Connections that failed before any certificate was judged.
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
    next: AtomicU64,
    inbox: Arc<Semaphore>,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    links: HashMap<u64, Handle>,
    /// One link per listener and certificate: a second one takes the first one's place.
    owners: HashMap<(u64, Fingerprint), u64>,
}

#[derive(Debug)]
struct Handle {
    queue: mpsc::UnboundedSender<Arc<[u8]>>,
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

    /// Queues a frame, which must not be empty. Does nothing if the link is gone: its `Down` is on the way.
    pub fn send(&self, link: u64, frame: Arc<[u8]>) {
        debug_assert!(!frame.is_empty(), "an empty frame is a sign of life");
        let table = self.table();
        let Some(handle) = table.links.get(&link) else { return };
        let cost = frame.len() + FRAME_COST;
        if handle.queued.fetch_add(cost, Ordering::Relaxed) + cost > self.0.limits.queue {
            count(&self.0.counters.too_slow, 1);
            handle.close.send_replace(Some(format!("reads too slowly: {} octets wait for it", self.0.limits.queue)));
            return;
        }
        count(&self.0.counters.frames_out, 1);
        count(&self.0.counters.bytes_out, frame.len() as u64);
        let _ = handle.queue.send(frame); // fails only if the link is ending
    }

    /// Closes a link; its `Down` follows with this reason.
    pub fn close(&self, link: u64, reason: &str) {
        if let Some(handle) = self.table().links.get(&link) {
            handle.close.send_replace(Some(reason.to_owned()));
        }
    }

    /// Listens at `address` for peers that `gate` lets pass. A peer that connects again takes its earlier link's place.
    pub async fn listen<E>(
        &self,
        address: SocketAddr,
        identity: &Identity,
        gate: Gate,
        events: mpsc::Sender<E>,
    ) -> io::Result<Listening>
    where
        E: From<LinkEvent> + Send + 'static,
    {
        let config = server_config(identity, &gate).map_err(io::Error::other)?;
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let port = self.0.next.fetch_add(1, Ordering::Relaxed);
        let port = Port { links: self.clone(), gate, events, id: port };
        let task = tokio::spawn(port.accept(listener, TlsAcceptor::from(config))).abort_handle();
        Ok(Listening { address, task })
    }

    /// Keeps one link to `address` (host and port), whose certificate `gate` must let pass: connects again with growing
    /// pauses whenever it is down.
    pub fn connect<E>(
        &self,
        address: String,
        identity: &Identity,
        gate: Gate,
        events: mpsc::Sender<E>,
    ) -> Result<Connecting, rustls::Error>
    where
        E: From<LinkEvent> + Send + 'static,
    {
        let config = client_config(identity, &gate)?;
        let id = self.0.next.fetch_add(1, Ordering::Relaxed);
        let port = Port { links: self.clone(), gate, events, id };
        let task = tokio::spawn(port.keep_connected(address, TlsConnector::from(config))).abort_handle();
        Ok(Connecting { task })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // Nothing that holds this lock can panic half-way through a change.
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One listener or connector, as its tasks see it.
struct Port<E> {
    links: Links,
    gate: Gate,
    events: mpsc::Sender<E>,
    id: u64,
}

impl<E> Clone for Port<E> {
    fn clone(&self) -> Self {
        Self { links: self.links.clone(), gate: self.gate.clone(), events: self.events.clone(), id: self.id }
    }
}

/// Why there is no link.
#[derive(Debug, thiserror::Error)]
enum OpenError {
    #[error("{0}")]
    Refused(Refusal),
    #[error("no answer within {} seconds", HANDSHAKE.as_secs())]
    Timeout,
    #[error("the other side does not accept us: {0}")]
    NotWelcome(FrameError),
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
        let mut sources: HashMap<IpAddr, Weak<Semaphore>> = HashMap::new();
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
            let source = known.unwrap_or_else(|| Arc::new(Semaphore::new(HANDSHAKES_EACH)));
            sources.insert(address.ip(), Arc::downgrade(&source));
            let Ok(of_source) = source.try_acquire_owned() else {
                count(&self.links.0.counters.failed, 1);
                debug!(%address, "too many handshakes from this address");
                continue;
            };
            let (port, acceptor) = (self.clone(), acceptor.clone());
            tasks.spawn(async move {
                let opened = timeout(HANDSHAKE, port.open_accepted(tcp, &acceptor)).await;
                drop((permit, of_source));
                match opened.unwrap_or(Err(OpenError::Timeout)) {
                    Ok((stream, certificate, pin)) => {
                        port.run(stream, certificate, pin, address).await;
                    }
                    Err(error) => port.note_failure(&error, &address),
                }
            });
        }
    }

    async fn open_accepted(
        &self,
        tcp: TcpStream,
        acceptor: &TlsAcceptor,
    ) -> Result<(tokio_rustls::server::TlsStream<TcpStream>, CertificateDer<'static>, Pin), OpenError> {
        tcp.set_nodelay(true)?;
        let mut stream = acceptor.accept(tcp).await?;
        let (certificate, pin) = self.judge(stream.get_ref().1.peer_certificates())?;
        write_frame(&mut stream, &Arc::from([])).await?; // the welcome
        stream.flush().await?;
        Ok((stream, certificate, pin))
    }

    async fn keep_connected(self, address: String, connector: TlsConnector) {
        let mut pause = BACKOFF_LEAST;
        let mut said = String::new();
        loop {
            match timeout(HANDSHAKE, self.open_connected(&address, &connector)).await.unwrap_or(Err(OpenError::Timeout))
            {
                Ok((stream, certificate, pin, peer)) => {
                    said.clear();
                    let began = tokio::time::Instant::now();
                    self.run(stream, certificate, pin, peer).await;
                    if began.elapsed() >= SETTLED {
                        pause = BACKOFF_LEAST;
                    }
                }
                Err(error) => {
                    // Said once, not with every attempt.
                    let text = error.to_string();
                    if text != said {
                        self.note_failure(&error, &address);
                        said = text;
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
    ) -> Result<(tokio_rustls::client::TlsStream<TcpStream>, CertificateDer<'static>, Pin, SocketAddr), OpenError> {
        let tcp = TcpStream::connect(address).await?;
        tcp.set_nodelay(true)?;
        let peer = tcp.peer_addr()?;
        // Only the pin counts; no name is sent, so any will do here.
        let name = ServerName::IpAddress(peer.ip().into());
        let mut stream = connector.connect(name, tcp).await?;
        let (certificate, pin) = self.judge(stream.get_ref().1.peer_certificates())?;
        match read_frame(&mut stream, 0).await {
            Ok(_) => Ok((stream, certificate, pin, peer)),
            Err(error) => Err(OpenError::NotWelcome(error)),
        }
    }

    /// Judges once more and says whose certificate it is: the table may have changed since the verifier looked.
    fn judge(&self, shown: Option<&[CertificateDer<'static>]>) -> Result<(CertificateDer<'static>, Pin), OpenError> {
        let missing = || io::Error::new(io::ErrorKind::InvalidData, "the peer showed no certificate");
        let certificate = shown.and_then(|chain| chain.first()).ok_or_else(missing)?.clone();
        let pin = self.gate.judge(&certificate, now_secs()).map_err(OpenError::Refused)?;
        Ok((certificate, pin))
    }

    fn note_failure(&self, error: &OpenError, address: &dyn std::fmt::Display) {
        if let OpenError::Refused(refusal @ Refusal { fingerprint, reason }) = error {
            self.gate.count_refusal();
            count(&self.links.0.counters.refused, 1);
            match self.links.0.refusals.note(refusal, tokio::time::Instant::now()) {
                Some(0) => warn!(%address, %fingerprint, %reason, "certificate refused"),
                Some(untold) => warn!(%address, %fingerprint, %reason, untold, "certificate refused again"),
                None => debug!(%address, %fingerprint, %reason, "certificate refused"),
            }
        } else {
            count(&self.links.0.counters.failed, 1);
            info!(%address, reason = %error, "no link");
        }
    }

    /// Carries one link from its `Up` to its `Down`.
    async fn run<S>(&self, stream: S, certificate: CertificateDer<'static>, pin: Pin, address: SocketAddr)
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let link = self.links.0.next.fetch_add(1, Ordering::Relaxed);
        let owner = (self.id, Fingerprint::of(&certificate));
        let (queue, waiting) = mpsc::unbounded_channel();
        let (close, mut closed) = watch::channel(None::<String>);
        let (_done, done) = watch::channel(());
        let queued = Arc::new(AtomicUsize::new(0));
        let handle = Handle { queue, queued: Arc::clone(&queued), close, done };
        self.take_place(owner, link, handle).await;
        let entry = Entry { links: &self.links, link, owner };

        count(&self.links.0.counters.up, 1);
        info!(link, peer = %pin.name, %address, "link up");
        let name = pin.name.clone();
        if self.events.send(LinkEvent::Up { link, pin: pin.clone(), address }.into()).await.is_err() {
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
        // Say farewell if the peer still listens; what was queued is not sent any more.
        let _ = timeout(Duration::from_millis(200), writer.shutdown()).await;
        info!(link, peer = %name, %reason, "link down");
        let _ = self.events.send(LinkEvent::Down { link, reason }.into()).await;
        drop(entry); // only now may another link of this peer come up
    }

    /// Enters the link in the table once no other link of its owner is left, so that the events of two never mix.
    async fn take_place(&self, owner: (u64, Fingerprint), link: u64, handle: Handle) {
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
                old.close.send_replace(Some("the peer connected anew".to_owned()));
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
                Err(_) => return format!("silent for {} seconds", IDLE.as_secs()),
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
            let held = Held { _permit: permit };
            if self.events.send(LinkEvent::Frame { link, bytes, held }.into()).await.is_err() {
                return "shutting down".to_owned();
            }
        }
    }

    /// Ends when the certificate may no longer pass: revoked, given to someone else, or expired.
    async fn watch_certificate(&self, certificate: &CertificateDer<'_>, pin: &Pin) -> String {
        let mut changes = self.gate.pins().changes();
        loop {
            let _ = timeout(REJUDGE, changes.changed()).await;
            match self.gate.judge(certificate, now_secs()) {
                Ok(now) if now == *pin => debug!(peer = %pin.name, "certificate judged again"),
                Ok(now) => return format!("its certificate now belongs to {}", now.name),
                Err(refusal) => return refusal.reason.to_string(),
            }
        }
    }
}

/// Takes the link out of the table, also when its task is aborted.
struct Entry<'a> {
    links: &'a Links,
    link: u64,
    owner: (u64, Fingerprint),
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        let mut table = self.links.table();
        table.links.remove(&self.link);
        if table.owners.get(&self.owner) == Some(&self.link) {
            table.owners.remove(&self.owner);
        }
    }
}

async fn write<W>(writer: &mut W, mut waiting: mpsc::UnboundedReceiver<Arc<[u8]>>, queued: &AtomicUsize) -> String
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
            Err(_) => return format!("took nothing for {} seconds", WRITE.as_secs()),
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
