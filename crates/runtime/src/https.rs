//! The server of an API: HTTP/1.1 over TLS 1.3, with limits on everything that a stranger can take.
//!
//! A connection has a place among all and among those of its source prefix, a time for its handshake, and a life; a request has
//! a longest body. What requests mean is the handler's.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::connect_info::Connected;
use axum::extract::{ConnectInfo, Request};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use axum::serve::{IncomingStream, Listener};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::AbortHandle;
use tokio::time::{Instant, Sleep, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use zeroize::Zeroizing;

/// What strangers can take.
#[derive(Clone, Copy, Debug)]
pub struct HttpsLimits {
    /// Connections at a time, of all sources, and of one source prefix (IPv4 /24, IPv6 /56).
    pub connections: usize,
    pub of_source: usize,
    /// New connections of one source prefix in a second, of which so many may come at once; those beyond wait.
    pub new_per_second: u32,
    /// For the handshake.
    pub handshake: Duration,
    /// For a connection from its handshake to its end.
    pub life: Duration,
    /// Octets of a request's body.
    pub body: usize,
}

/// A request.
#[derive(Debug)]
pub struct ApiRequest {
    pub from: IpAddr,
    pub method: String,
    /// Without the query.
    pub path: String,
    pub query: String,
    /// What stands in `Authorization`.
    pub authorization: Option<Zeroizing<String>>,
    pub accept: String,
    /// `None` if it is longer than the limit, or ended in the middle.
    pub body: Option<Zeroizing<Vec<u8>>>,
}

/// An answer.
#[derive(Debug)]
pub struct ApiAnswer {
    pub status: u16,
    pub content_type: &'static str,
    pub headers: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
}

/// An API that is being served.
#[derive(Debug)]
pub struct ApiServing {
    /// Where.
    pub address: SocketAddr,
    tasks: [AbortHandle; 2],
}

impl Drop for ApiServing {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

/// Serves an API at `address` until the result is dropped.
///
/// # Errors
/// If nothing can listen there.
pub async fn serve_api<F, T>(
    address: SocketAddr,
    config: Arc<ServerConfig>,
    limits: HttpsLimits,
    handler: F,
) -> io::Result<ApiServing>
where
    F: Fn(ApiRequest) -> T + Clone + Send + Sync + 'static,
    T: Future<Output = ApiAnswer> + Send + 'static,
{
    let listener = TcpListener::bind(address).await?;
    let address = listener.local_addr()?;
    let (to, ready) = mpsc::channel(1);
    let accepting = tokio::spawn(accept(listener, TlsAcceptor::from(config), limits, to)).abort_handle();
    let router = Router::new().fallback(move |ConnectInfo(Peer(peer)): ConnectInfo<Peer>, request: Request| {
        let handler = handler.clone();
        async move { response(handler(read(peer.ip().to_canonical(), request, limits.body).await).await) }
    });
    let service = router.into_make_service_with_connect_info::<Peer>();
    let serving = tokio::spawn(async move { axum::serve(Ready { ready, address }, service).await }).abort_handle();
    Ok(ApiServing { address, tasks: [accepting, serving] })
}

/// Accepts connections and has their handshakes done, each in a task of its own.
async fn accept(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    limits: HttpsLimits,
    to: mpsc::Sender<(Conn, SocketAddr)>,
) {
    let room = Arc::new(Semaphore::new(limits.connections));
    let sources = Sources::default();
    loop {
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
        let Ok((stream, from)) = listener.accept().await else {
            // Out of descriptors: some connection ends soon.
            sleep(Duration::from_millis(100)).await;
            continue;
        };
        let Some((place, wait)) = sources.take(from.ip().to_canonical(), limits, Instant::now()) else { continue };
        let (acceptor, to) = (acceptor.clone(), to.clone());
        tokio::spawn(async move {
            sleep(wait).await;
            let Ok(Ok(stream)) = timeout(limits.handshake, acceptor.accept(stream)).await else { return };
            let end = Box::pin(sleep(limits.life));
            let _ = to.send((Conn { stream, end, _place: place, _permit: permit }, from)).await; // fails if it has stopped
        });
    }
}

/// Connections by source prefix: a handshake costs the server more than it costs a stranger, so that they are paced.
#[derive(Clone, Default)]
struct Sources(Arc<Mutex<HashMap<u128, Source>>>);

/// Prefixes that are remembered before those that say nothing are dropped.
const SWEEP: usize = 8_192;

/// What one source prefix has.
struct Source {
    connections: usize,
    /// When it could have all new connections at once again.
    full_at: Instant,
}

/// A connection's place among those of its source.
struct ConnectionSlot {
    sources: Sources,
    prefix: u128,
}

impl Sources {
    /// A place, and how long its handshake waits; `None` if the source has all of its places.
    fn take(&self, from: IpAddr, limits: HttpsLimits, now: Instant) -> Option<(ConnectionSlot, Duration)> {
        let prefix = match from {
            IpAddr::V4(v4) => 1 << 127 | u128::from(v4.to_bits() >> 8),
            IpAddr::V6(v6) => v6.to_bits() >> 72,
        };
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= SWEEP {
            all.retain(|_, source| source.connections > 0 || source.full_at > now);
        }
        let source = all.entry(prefix).or_insert(Source { connections: 0, full_at: now });
        if source.connections >= limits.of_source {
            return None;
        }
        source.connections += 1;
        source.full_at = source.full_at.max(now) + Duration::from_secs(1) / limits.new_per_second.max(1);
        let wait = source.full_at.duration_since(now).saturating_sub(Duration::from_secs(1));
        drop(all);
        Some((ConnectionSlot { sources: self.clone(), prefix }, wait))
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut all = self.sources.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(self.prefix).and_modify(|source| source.connections = source.connections.saturating_sub(1));
    }
}

/// A connection, which ends when its life is over.
struct Conn {
    stream: TlsStream<TcpStream>,
    end: Pin<Box<Sleep>>,
    _place: ConnectionSlot,
    _permit: OwnedSemaphorePermit,
}

impl Conn {
    fn poll_end(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        match self.end.as_mut().poll(context) {
            Poll::Ready(()) => Err(io::ErrorKind::TimedOut.into()),
            Poll::Pending => Ok(()),
        }
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

/// Where a connection comes from.
#[derive(Clone, Copy, Debug)]
struct Peer(SocketAddr);

impl Connected<IncomingStream<'_, Ready>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Ready>) -> Self {
        Self(*stream.remote_addr())
    }
}

async fn read(from: IpAddr, request: Request, most: usize) -> ApiRequest {
    let (parts, body) = request.into_parts();
    let text = |name: HeaderName| parts.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    ApiRequest {
        from,
        method: parts.method.as_str().to_owned(),
        path: parts.uri.path().to_owned(),
        query: parts.uri.query().unwrap_or_default().to_owned(),
        authorization: text(header::AUTHORIZATION).map(Zeroizing::new),
        accept: text(header::ACCEPT).unwrap_or_default(),
        body: to_bytes(body, most).await.ok().map(|body| Zeroizing::new(body.to_vec())),
    }
}

fn response(answer: ApiAnswer) -> Response {
    let mut response = Response::new(Body::from(answer.body));
    *response.status_mut() = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(answer.content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    for (name, value) in answer.headers {
        if let Ok(value) = HeaderValue::from_str(&value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: HttpsLimits = HttpsLimits {
        connections: 100,
        of_source: 10,
        new_per_second: 20,
        handshake: Duration::from_secs(1),
        life: Duration::from_secs(1),
        body: 1,
    };

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[tokio::test]
    async fn a_source_has_its_places_and_its_pace_and_no_others() {
        let (sources, now) = (Sources::default(), Instant::now());
        let take = |from: &str, now| sources.take(address(from), LIMITS, now);
        let places: Vec<_> = (0..10).filter_map(|_| take("192.0.2.1", now)).collect();
        assert!(places.len() == 10 && places.iter().all(|(_, wait)| wait.is_zero()));
        assert!(take("192.0.2.254", now).is_none(), "the same /24");
        assert!(take("192.0.3.1", now).is_some() && take("2001:db8::1", now).is_some(), "others");
        drop(places);
        // One after another: a burst of a second's, and then the rate.
        let waits: Vec<Duration> = (0..30).filter_map(|_| take("192.0.2.1", now)).map(|(_, wait)| wait).collect();
        assert_eq!(waits.iter().filter(|wait| wait.is_zero()).count(), 10);
        assert_eq!(waits.last(), Some(&Duration::from_secs(1)));
        let later = now + Duration::from_secs(3);
        assert!(take("192.0.2.1", later).is_some_and(|(_, wait)| wait.is_zero()));
    }

    #[tokio::test]
    async fn endless_sources_take_bounded_memory() {
        let (sources, now) = (Sources::default(), Instant::now());
        for number in 0..4 * SWEEP as u32 {
            let from = IpAddr::V4((number << 8).into());
            let later = now + Duration::from_millis(u64::from(number));
            assert!(sources.take(from, LIMITS, later).is_some());
        }
        assert!(sources.0.lock().expect("no panic").len() <= SWEEP);
    }
}
