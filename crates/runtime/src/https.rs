//! The server of an API: HTTP/1.1 over TLS 1.3, with limits on everything that a stranger can take.
//!
//! A connection has a slot ([`ConnectionSlots`]), a time for its handshake, another until its client is known, and a life; a
//! request has a longest body. What requests mean, and whose they are, is for the routes.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::connect_info::Connected;
use axum::extract::{ConnectInfo, Request};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::serve::{IncomingStream, Listener};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep, sleep, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::connection_slots::{ConnectionSlot, ConnectionSlots, Eviction, SlotHandle, source_prefix};

/// What strangers can take.
#[derive(Clone, Copy, Debug)]
pub struct HttpsLimits {
    /// New connections of one source prefix in a second, of which so many may come at once; those beyond wait.
    pub new_per_second: u32,
    /// For the handshake.
    pub handshake: Duration,
    /// For a connection from its handshake to its end, while its client is not known.
    pub stranger_life: Duration,
    /// The same for a client that is known.
    pub life: Duration,
    /// Octets of a request's body.
    pub body: usize,
}

/// Marks a request whose body is longer than the limit, or ended in the middle: it comes without one.
#[derive(Clone, Copy, Debug)]
pub struct BodyRefused;

/// An API that is being served.
#[derive(Debug)]
pub struct ApiServing {
    /// Where.
    pub address: SocketAddr,
    /// They run for as long as this is there.
    tasks: JoinSet<()>,
}

impl ApiServing {
    /// Waits until it is served no more, although this was not dropped: a bug, which is in the lines above. Cancel safe.
    pub async fn ended(&mut self) {
        let _ = self.tasks.join_next().await; // a panic has been printed already
    }
}

/// Serves an API at `address` until the result is dropped. Requests reach the routes with their body read, and with
/// `ConnectInfo<Peer>`. `client` says whose an `Authorization` is, if it is somebody's: the connection keeps its slot.
///
/// # Errors
/// If nothing can listen there.
pub async fn serve_api(
    address: SocketAddr,
    config: Arc<ServerConfig>,
    (slots, limits): (ConnectionSlots, HttpsLimits),
    (client, routes): (impl Fn(&str) -> Option<String> + Clone + Send + Sync + 'static, Router),
) -> io::Result<ApiServing> {
    let listener = TcpListener::bind(address).await?;
    let address = listener.local_addr()?;
    let (to, ready) = mpsc::channel(1);
    let mut tasks = JoinSet::new();
    tasks.spawn(accept(listener, TlsAcceptor::from(config), (slots, limits), to));
    let serve = move |ConnectInfo(peer): ConnectInfo<Peer>, request: Request, next: Next| {
        let client = authorization(request.headers()).and_then(&client);
        peer.slot.set_client(client.as_deref());
        serve(peer.slot, request, limits.body, next)
    };
    let service = routes.layer(from_fn(serve)).into_make_service_with_connect_info::<Peer>();
    tasks.spawn(async move {
        let _ = axum::serve(Ready { ready, address }, service).await; // whoever waits for the end is told
    });
    Ok(ApiServing { address, tasks })
}

/// Serves one request. Its connection keeps its slot while the request is carried out, though not while its body comes in: how
/// long that takes is the client's choice.
async fn serve(slot: SlotHandle, request: Request, most: usize, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let body = to_bytes(body, most).await.unwrap_or_else(|_| {
        parts.extensions.insert(BodyRefused);
        Bytes::new()
    });
    slot.begin_request();
    let mut response = next.run(Request::from_parts(parts, Body::from(body))).await;
    slot.end_request();
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// What stands in `Authorization`.
pub fn authorization(headers: &HeaderMap) -> Option<&str> {
    headers.get(header::AUTHORIZATION)?.to_str().ok()
}

/// Accepts connections and has their handshakes done, each in a task of its own.
async fn accept(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    (slots, limits): (ConnectionSlots, HttpsLimits),
    to: mpsc::Sender<(Conn, SocketAddr)>,
) {
    let pace = Pace::default();
    loop {
        let Ok((stream, from)) = listener.accept().await else {
            // Out of descriptors: some connection ends soon.
            sleep(Duration::from_millis(100)).await;
            continue;
        };
        let from_ip = from.ip().to_canonical();
        let Some((slot, mut eviction)) = slots.take(from_ip) else { continue };
        let (acceptor, to, pace) = (acceptor.clone(), to.clone(), pace.clone());
        let wait = pace.take(from_ip, limits.new_per_second, Instant::now());
        tokio::spawn(async move {
            tokio::select! {
                () = sleep(wait) => {}
                _ = &mut eviction => return pace.return_budget(from_ip, limits.new_per_second),
            }
            let handshake = timeout(limits.handshake, acceptor.accept(stream));
            let stream = tokio::select! {
                done = handshake => done,
                _ = &mut eviction => return,
            };
            let Ok(Ok(stream)) = stream else { return };
            let now = Instant::now();
            let end = Box::pin(sleep_until(now + limits.stranger_life));
            let conn = Conn { stream, end, known_end: Some(now + limits.life), eviction, slot };
            let _ = to.send((conn, from)).await; // fails if it has stopped
        });
    }
}

/// New connections by source prefix: a handshake costs the server more than it costs a stranger, so that they are paced. For each
/// prefix, when it could have all new connections at once again.
#[derive(Clone, Default)]
pub(crate) struct Pace(Arc<Mutex<HashMap<u128, Instant>>>);

/// Prefixes that are remembered before those that say nothing are dropped.
const SWEEP: usize = 8_192;

impl Pace {
    /// How long a handshake waits.
    pub(crate) fn take(&self, from: IpAddr, per_second: u32, now: Instant) -> Duration {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= SWEEP {
            all.retain(|_, full_at| *full_at > now);
        }
        let full_at = all.entry(source_prefix(from)).or_insert(now);
        *full_at = (*full_at).max(now) + step(per_second);
        full_at.duration_since(now).saturating_sub(Duration::from_secs(1))
    }

    /// Takes back a handshake that was not begun, so that those that are waiting bound how long the next one waits.
    pub(crate) fn return_budget(&self, from: IpAddr, per_second: u32) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(source_prefix(from)).and_modify(|full_at| *full_at -= step(per_second));
    }
}

fn step(per_second: u32) -> Duration {
    Duration::from_secs(1) / per_second.max(1)
}

/// A connection, which ends when its life is over, or when another needs its slot.
struct Conn {
    stream: TlsStream<TcpStream>,
    end: Pin<Box<Sleep>>,
    /// When it ends instead if its client is known by `end`.
    known_end: Option<Instant>,
    eviction: Eviction,
    slot: ConnectionSlot,
}

impl Conn {
    fn poll_end(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if Pin::new(&mut self.eviction).poll(context).is_ready() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        while self.end.as_mut().poll(context).is_ready() {
            let is_kept = self.slot.handle().is_kept();
            let Some(known_end) = self.known_end.take().filter(|_| is_kept) else {
                return Err(io::ErrorKind::TimedOut.into());
            };
            self.end.as_mut().reset(known_end);
        }
        Ok(())
    }
}

impl AsyncRead for Conn {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.poll_end(context)?;
        Pin::new(&mut self.stream).poll_read(context, to)
    }
}

impl AsyncWrite for Conn {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, octets: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_end(context)?;
        Pin::new(&mut self.stream).poll_write(context, octets)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_end(context)?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_end(context)?;
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Connections whose handshake is done.
struct Ready {
    ready: mpsc::Receiver<(Conn, SocketAddr)>,
    address: SocketAddr,
}

impl Listener for Ready {
    type Io = Conn;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Conn, SocketAddr) {
        match self.ready.recv().await {
            Some(next) => next,
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }
}

/// Where a connection comes from, and its slot.
#[derive(Clone, Debug)]
pub struct Peer {
    address: SocketAddr,
    slot: SlotHandle,
}

impl Peer {
    /// Whoever connected from this address, and the slot of the connection.
    pub fn new(address: SocketAddr, slot: SlotHandle) -> Self {
        Self { address, slot }
    }

    /// The address of whoever connected.
    pub fn source(&self) -> IpAddr {
        self.address.ip().to_canonical()
    }
}

impl Connected<IncomingStream<'_, Ready>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Ready>) -> Self {
        Self::new(*stream.remote_addr(), stream.io().slot.handle())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// New connections of a source in a second.
    const RATE: u32 = 20;

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[tokio::test]
    async fn a_source_has_its_pace_and_those_that_go_before_their_turn_give_it_back() {
        let (pace, now) = (Pace::default(), Instant::now());
        let take = |from: &str, now| pace.take(address(from), RATE, now);
        // One after another: a burst of a second's, and then the rate.
        let waits: Vec<Duration> = (0..40).map(|_| take("192.0.2.1", now)).collect();
        assert_eq!(waits.iter().filter(|wait| wait.is_zero()).count(), 20);
        assert_eq!(waits.last(), Some(&Duration::from_secs(1)));
        assert!(take("192.0.3.1", now).is_zero() && take("2001:db8::1", now).is_zero(), "others");
        assert!(take("192.0.2.254", now + Duration::from_secs(3)).is_zero());
        let (pace, mut last) = (Pace::default(), Duration::ZERO);
        for _ in 0..1_000 {
            last = pace.take(address("192.0.2.1"), RATE, now);
            if !last.is_zero() {
                pace.return_budget(address("192.0.2.1"), RATE);
            }
        }
        assert_eq!(last, Duration::from_secs(1) / RATE, "as long as the first that had to wait");
    }

    #[tokio::test]
    async fn endless_sources_take_bounded_memory() {
        let (pace, now) = (Pace::default(), Instant::now());
        for number in 0..4 * SWEEP as u32 {
            let from = IpAddr::V4((number << 8).into());
            pace.take(from, RATE, now + Duration::from_millis(u64::from(number)));
        }
        assert!(pace.0.lock().expect("no panic").len() <= SWEEP);
    }

    #[tokio::test]
    async fn an_api_ends_when_one_of_its_tasks_does_and_not_before() {
        let mut tasks = JoinSet::new();
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        tasks.spawn(std::future::pending());
        tasks.spawn(async move {
            let _ = ended.await;
            panic!("a bug");
        });
        let mut serving = ApiServing { address: ([127, 0, 0, 1], 1).into(), tasks };
        assert!(timeout(Duration::from_millis(5), serving.ended()).await.is_err(), "both run");
        drop(end);
        serving.ended().await;
    }
}
