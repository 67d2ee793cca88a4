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
use tokio::time::{Sleep, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use zeroize::Zeroizing;

/// What strangers can take.
#[derive(Clone, Copy, Debug)]
pub struct HttpsLimits {
    /// Connections at a time, of all sources, and of one source prefix (IPv4 /24, IPv6 /56).
    pub connections: usize,
    pub of_source: usize,
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
        let Some(place) = sources.take(from.ip().to_canonical(), limits.of_source) else { continue };
        let (acceptor, to) = (acceptor.clone(), to.clone());
        tokio::spawn(async move {
            let Ok(Ok(stream)) = timeout(limits.handshake, acceptor.accept(stream)).await else { return };
            let end = Box::pin(sleep(limits.life));
            let _ = to.send((Conn { stream, end, _place: place, _permit: permit }, from)).await; // fails if it has stopped
        });
    }
}

/// Connections by source prefix.
#[derive(Clone, Default)]
struct Sources(Arc<Mutex<HashMap<u128, usize>>>);

/// A connection's place among those of its source.
struct Place {
    sources: Sources,
    prefix: u128,
}

impl Sources {
    fn take(&self, from: IpAddr, most: usize) -> Option<Place> {
        let prefix = match from {
            IpAddr::V4(v4) => 1 << 127 | u128::from(v4.to_bits() >> 8),
            IpAddr::V6(v6) => v6.to_bits() >> 72,
        };
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = all.entry(prefix).or_default();
        if *count >= most {
            return None;
        }
        *count += 1;
        drop(all);
        Some(Place { sources: self.clone(), prefix })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut all = self.sources.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = all.get_mut(&self.prefix) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.prefix);
            }
        }
    }
}

/// A connection, which ends when its life is over.
struct Conn {
    stream: TlsStream<TcpStream>,
    end: Pin<Box<Sleep>>,
    _place: Place,
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
