//! The status page of a process: metrics, health, readiness and JSON views.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, PoisonError, RwLock};

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Extension, Path, Query, Request};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::{StreamExt as _, stream};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::{self, Registry};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use tokio::net::TcpListener;
use tokio::sync::{broadcast, mpsc, watch};
use tokio::task::AbortHandle;
use zeroize::Zeroizing;

use crate::identity::to_hex;
use crate::process_metrics::{self, Build, Detail};

/// A server-sent event: its name, and its value as JSON text, which all readers share.
pub type Told = (&'static str, Arc<str>);

/// What lets a browser read pages that are not for everybody. Clones are the same token.
#[derive(Clone)]
pub struct Token(Arc<RwLock<Zeroizing<String>>>);

impl Token {
    /// A token of letters and digits.
    #[must_use]
    pub fn new(text: String) -> Self {
        Self(Arc::new(RwLock::new(Zeroizing::new(text))))
    }

    /// Puts another in its place: the cookies of the one before are worth nothing.
    pub fn replace(&self, text: String) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Zeroizing::new(text);
    }

    /// Whether this is the token, in a time that does not depend on where they differ.
    #[must_use]
    pub fn is(&self, given: &[u8]) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).as_bytes().ct_eq(given).into()
    }

    /// What a browser keeps of it for the pages at a port: who finds the cookie has not found the token.
    fn cookie(&self, port: u16) -> String {
        let token = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let hash = Sha256::new().chain_update(b"wayleave console cookie").chain_update(port.to_be_bytes());
        to_hex(&hash.chain_update(token.as_bytes()).finalize())
    }
}

/// How the octets of a file are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Encoding {
    Plain,
    /// RFC 1952; every browser reads it.
    Gzip,
}

/// What the name of the cookie begins with. The port follows, since a browser gives cookies to all ports of a host.
const COOKIE: &str = "wayleave-";

type Answer<T> = Pin<Box<dyn Future<Output = T> + Send>>;
/// The parameters of a request, `?name=value`.
pub type Parameters = BTreeMap<String, String>;

/// The answer where there is no such page.
pub const NO_SUCH_PAGE: &str = "this role has no such page";

/// Why a view has no answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ViewError {
    /// The request is wrong.
    Request(String),
    /// There is no such thing.
    NotFound(String),
    /// What it needs cannot be read now.
    Failed(String),
    /// The process is starting or stopping.
    Unavailable,
}

/// What a page of a tree answers with.
#[derive(Debug)]
pub enum Reply {
    Json(Value),
    /// The parts of a JSON text, in order: a page that is too large to be made at once. Where its maker ends before the text does, what
    /// comes is no JSON.
    Parts(mpsc::Receiver<String>),
}

wayleave_core::named! {
    /// What a metric counts or measures, always in base units. The list is closed, so that names follow one rule:
    /// `wayleave_<role>_<thing>_<unit>`, with `_total` for counters.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub enum Unit {
        Alarms = "alarms",
        Attestations = "attestations",
        Batches = "batches",
        Bursts = "bursts",
        Bytes = "bytes",
        Calls = "calls",
        Changes = "changes",
        Connections = "connections",
        Evaluations = "evaluations",
        Events = "events",
        Files = "files",
        Frames = "frames",
        Keys = "keys",
        Links = "links",
        Members = "members",
        Messages = "messages",
        Networks = "networks",
        /// A sequence number or an identifier.
        Number = "number",
        Objects = "objects",
        Outcomes = "outcomes",
        Packets = "packets",
        Pairs = "pairs",
        Prefixes = "prefixes",
        Rankings = "rankings",
        /// A share between 0 and 1.
        Ratio = "ratio",
        /// Shares of a table or filter, each for one payer.
        Rooms = "rooms",
        Rounds = "rounds",
        Routes = "routes",
        Seconds = "seconds",
        Sessions = "sessions",
        Signatures = "signatures",
        /// 1 if the thing is up, otherwise 0.
        Up = "up",
        Updates = "updates",
    }
}

/// Names and values of a sample's labels. Values may hold any characters: they are escaped where they are written.
pub type Labels = Vec<(&'static str, String)>;

/// The kind and value of a metric.
#[derive(Clone, PartialEq, Debug)]
enum Sample {
    /// Only rises; its name ends in `_total`.
    Counter(u64),
    /// One count for each set of labels.
    Counters(Vec<(Labels, u64)>),
    /// Rises and falls.
    Gauge(f64),
    /// One value for each set of labels.
    Gauges(Vec<(Labels, f64)>),
}

/// One metric of a role. Its name follows from its thing and its unit, see [`Unit`].
#[derive(Clone, PartialEq, Debug)]
pub struct Metric {
    thing: String,
    unit: Unit,
    help: &'static str,
    sample: Sample,
}

impl Metric {
    /// A count since the start. `thing` is words of `a-z0-9` joined by `_` or `-`, as in `link_received`; `help` is one
    /// sentence without a full stop.
    #[must_use]
    pub fn counter(thing: &str, unit: Unit, help: &'static str, value: u64) -> Self {
        Self::new(thing, unit, help, Sample::Counter(value))
    }

    /// Counts since the start, told apart by labels; without any the metric is not on the page.
    #[must_use]
    pub fn counters(thing: &str, unit: Unit, help: &'static str, values: Vec<(Labels, u64)>) -> Self {
        Self::new(thing, unit, help, Sample::Counters(values))
    }

    /// A value of this moment.
    #[must_use]
    pub fn gauge(thing: &str, unit: Unit, help: &'static str, value: f64) -> Self {
        Self::new(thing, unit, help, Sample::Gauge(value))
    }

    /// Values of this moment, told apart by labels; without any the metric is not on the page.
    #[must_use]
    pub fn gauges(thing: &str, unit: Unit, help: &'static str, values: Vec<(Labels, f64)>) -> Self {
        Self::new(thing, unit, help, Sample::Gauges(values))
    }

    /// Whether something is up.
    #[must_use]
    pub fn up(thing: &str, help: &'static str, is_up: bool) -> Self {
        Self::new(thing, Unit::Up, help, Sample::Gauge(f64::from(is_up)))
    }

    /// The same with one more label at each sample, before the others.
    #[must_use]
    pub fn labelled(self, name: &'static str, value: &str) -> Self {
        fn all<T>(samples: Vec<(Labels, T)>, label: &(&'static str, String)) -> Vec<(Labels, T)> {
            let with = |(labels, value): (Labels, T)| ([label.clone()].into_iter().chain(labels).collect(), value);
            samples.into_iter().map(with).collect()
        }
        let label = (name, value.to_owned());
        let sample = match self.sample {
            Sample::Counter(value) => Sample::Counters(vec![(vec![label], value)]),
            Sample::Counters(values) => Sample::Counters(all(values, &label)),
            Sample::Gauge(value) => Sample::Gauges(vec![(vec![label], value)]),
            Sample::Gauges(values) => Sample::Gauges(all(values, &label)),
        };
        Self { sample, ..self }
    }

    /// One metric of each name, with the samples of all that have it: they have labels, and differ in them.
    #[must_use]
    pub fn joined(metrics: impl IntoIterator<Item = Self>) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        for metric in metrics {
            let same = |other: &&mut Self| other.thing == metric.thing && other.unit == metric.unit;
            match (all.iter_mut().find(same).map(|other| &mut other.sample), &metric.sample) {
                (Some(Sample::Counters(values)), Sample::Counters(more)) => values.extend(more.iter().cloned()),
                (Some(Sample::Gauges(values)), Sample::Gauges(more)) => values.extend(more.iter().cloned()),
                _ => all.push(metric),
            }
        }
        all
    }

    /// The name of its samples on the page of `role`.
    #[must_use]
    pub fn name(&self, role: &str) -> String {
        let total = if matches!(self.sample, Sample::Counter(_) | Sample::Counters(_)) { "_total" } else { "" };
        format!("wayleave_{role}_{}_{}{total}", self.thing, self.unit.name())
    }

    fn new(thing: &str, unit: Unit, help: &'static str, sample: Sample) -> Self {
        let is_word = |word: &str| {
            !word.is_empty() && word.bytes().all(|octet| octet.is_ascii_lowercase() || octet.is_ascii_digit())
        };
        let thing = thing.replace('-', "_");
        debug_assert!(thing.split('_').all(is_word) && !thing.ends_with("total"), "{thing}: not the name of a thing");
        Self { thing, unit, help, sample }
    }
}

/// What a row of [`metrics!`](crate::metrics) may have as its value, as the metric of its kind has it.
pub trait Reading<T> {
    fn reading(self) -> T;
}

impl<T> Reading<T> for T {
    fn reading(self) -> T {
        self
    }
}

impl Reading<f64> for bool {
    fn reading(self) -> f64 {
        f64::from(self)
    }
}

impl Reading<f64> for u32 {
    fn reading(self) -> f64 {
        f64::from(self)
    }
}

impl Reading<f64> for u64 {
    fn reading(self) -> f64 {
        self as f64
    }
}

impl Reading<f64> for usize {
    fn reading(self) -> f64 {
        self as f64
    }
}

/// Metrics as rows: kind, thing, unit, help and value of each. The kind is a function of [`Metric`](crate::http::Metric):
/// `gauge`, `counter`, `gauges` or `counters`; the last two have labels. A gauge takes any number, and with the unit `Up` a
/// `bool`. The rows are a `Vec<Metric>`; those under a condition are a `metrics!` of their own that extends it.
///
/// ```
/// use wayleave_runtime::metrics;
///
/// let (connected, received, cache) = (vec!["alpha", "beta"], 7_u64, Some(3_usize));
/// let mut all = metrics! {
///     gauge "connected" Members "Members connected to both parties" = connected.len();
///     gauge "audit" Up "Whether the audit log can be written" = true;
///     counter "link_received" Bytes "Received in frames" = received;
/// };
/// if let Some(prefixes) = cache {
///     all.extend(metrics! { gauge "cache" Prefixes "Prefixes that the cache knows" = prefixes; });
/// }
/// assert_eq!(all.len(), 4);
/// ```
#[macro_export]
macro_rules! metrics {
    ($($kind:ident $thing:literal $unit:ident $help:literal = $value:expr;)*) => {
        vec![$($crate::http::Metric::$kind($thing, $crate::http::Unit::$unit, $help, $crate::http::Reading::reading($value))),*]
    };
}

/// The pages of a process. Build them, then [`Pages::serve`] them.
pub struct Pages {
    role: &'static str,
    router: Router,
    ready: watch::Receiver<Result<(), String>>,
    token: Option<Token>,
}

impl Pages {
    /// Pages of `role` (part of every metric's name). `ready` holds whether the process is ready, and if not, why.
    #[must_use]
    pub fn new(role: &'static str, ready: watch::Receiver<Result<(), String>>) -> Self {
        Self { role, router: Router::new(), ready, token: None }
    }

    /// Adds a JSON view at `path`.
    #[must_use]
    pub fn view<F, T>(mut self, path: &str, view: F) -> Self
    where
        F: Fn(Parameters) -> T + Send + Sync + 'static,
        T: Future<Output = Result<Value, ViewError>> + Send + 'static,
    {
        let view: Arc<dyn Fn(Parameters) -> Answer<Result<Value, ViewError>> + Send + Sync> =
            Arc::new(move |parameters| Box::pin(view(parameters)));
        let handler = move |Query(parameters): Query<Parameters>| {
            let view = Arc::clone(&view);
            async move { answer(view(parameters).await) }
        };
        self.router = self.router.route(path, get(handler));
        self
    }

    /// Adds all pages below `path`: `page` gets what follows it in the request's path, and the parameters.
    #[must_use]
    pub fn tree<F, T>(mut self, path: &str, page: F) -> Self
    where
        F: Fn(String, Parameters) -> T + Send + Sync + 'static,
        T: Future<Output = Result<Reply, ViewError>> + Send + 'static,
    {
        let page = Arc::new(page);
        let handler = move |Path(rest): Path<String>, Query(parameters): Query<Parameters>| {
            let page = Arc::clone(&page);
            async move {
                match page(rest, parameters).await {
                    Ok(Reply::Json(value)) => answer(Ok(value)),
                    Ok(Reply::Parts(parts)) => in_parts(parts),
                    Err(error) => answer(Err(error)),
                }
            }
        };
        self.router = self.router.route(&format!("{path}/{{*rest}}"), get(handler));
        self
    }

    /// Adds something that is done at a POST to `path`. A page in a browser, which names its origin, has nothing done.
    #[must_use]
    pub fn order<F, T>(mut self, path: &str, order: F) -> Self
    where
        F: Fn() -> T + Send + Sync + 'static,
        T: Future<Output = Result<Value, ViewError>> + Send + 'static,
    {
        let order = Arc::new(order);
        let handler = move |headers: HeaderMap| {
            let order = Arc::clone(&order);
            async move { if headers.contains_key(header::ORIGIN) { foreign_page() } else { answer(order().await) } }
        };
        self.router = self.router.route(path, post(handler));
        self
    }

    /// Adds something that is done at a POST to `path` with parameters and changes what the role does. Who asks from another machine,
    /// through a proxy that says so, or by a page in a browser, has nothing done.
    #[must_use]
    pub fn local_order<F, T>(mut self, path: &str, order: F) -> Self
    where
        F: Fn(Parameters) -> T + Send + Sync + 'static,
        T: Future<Output = Result<Value, ViewError>> + Send + 'static,
    {
        let order = Arc::new(order);
        let handler = move |Extension(FromHere(is_from_here)): Extension<FromHere>,
                            headers: HeaderMap,
                            Query(parameters): Query<Parameters>| {
            let order = Arc::clone(&order);
            async move {
                match (is_from_here, headers.contains_key(header::ORIGIN)) {
                    (_, true) => foreign_page(),
                    (false, _) => foreign_machine(),
                    (true, false) if is_forwarded(&headers) => forwarded(),
                    (true, false) => answer(order(parameters).await),
                }
            }
        };
        self.router = self.router.route(path, post(handler));
        self
    }

    /// Adds a page of HTML at `path`. It may hold style, links and text, and no script.
    #[must_use]
    pub fn html<F, T>(mut self, path: &str, page: F) -> Self
    where
        F: Fn() -> T + Send + Sync + 'static,
        T: Future<Output = Result<String, ViewError>> + Send + 'static,
    {
        let page = Arc::new(page);
        let handler = move || {
            let page = Arc::clone(&page);
            async move {
                match page().await {
                    Ok(text) => html(StatusCode::OK, text),
                    Err(error) => answer(Err(error)),
                }
            }
        };
        self.router = self.router.route(path, get(handler));
        self
    }

    /// Adds a file that a program was built with. A page of HTML may load scripts, styles and pictures of its own place, and nothing
    /// else; its scripts may ask that place.
    #[must_use]
    pub fn file(mut self, path: &str, kind: &'static str, encoding: Encoding, octets: &'static [u8]) -> Self {
        let tag = format!("\"{}\"", to_hex(&Sha256::digest(octets)));
        let handler = move |headers: HeaderMap| {
            let is_known = headers.get(header::IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes());
            let of_file = [
                (header::CONTENT_TYPE, kind),
                (header::CONTENT_SECURITY_POLICY, OF_APPLICATION),
                (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
                (header::REFERRER_POLICY, "no-referrer"),
                (header::CACHE_CONTROL, "no-cache"),
            ];
            let tag = [(header::ETAG, tag.clone())];
            async move {
                match (is_known, encoding) {
                    (true, _) => (StatusCode::NOT_MODIFIED, of_file, tag).into_response(),
                    (false, Encoding::Plain) => (of_file, tag, octets).into_response(),
                    (false, Encoding::Gzip) => {
                        (of_file, tag, [(header::CONTENT_ENCODING, "gzip")], octets).into_response()
                    }
                }
            }
        };
        self.router = self.router.route(path, get(handler));
        self
    }

    /// Adds server-sent events at `path`: what `begin` returns first, and then what comes by its channel. Each is the name of an event
    /// and its value, as JSON text. A reader that is too slow for the channel is told to begin anew, as the end of the stream does.
    #[must_use]
    pub fn stream<F, T>(mut self, path: &str, begin: F) -> Self
    where
        F: Fn() -> T + Send + Sync + 'static,
        T: Future<Output = (Vec<Told>, broadcast::Receiver<Told>)> + Send + 'static,
    {
        let begin = Arc::new(begin);
        let handler = move || {
            let begin = Arc::clone(&begin);
            async move {
                let (first, later) = begin().await;
                let next = |mut later: broadcast::Receiver<Told>| async move {
                    // A reader that missed one reconnects, and is told all again.
                    later.recv().await.ok().map(|told| (told, later))
                };
                let told = stream::iter(first).chain(stream::unfold(later, next));
                let sent = told.map(|(name, value)| Ok::<_, Infallible>(Event::default().event(name).data(&*value)));
                Sse::new(sent).keep_alive(KeepAlive::default())
            }
        };
        self.router = self.router.route(path, get(handler));
        self
    }

    /// Lets nobody read any page but `/healthz` and `/readyz` without the token: as a cookie, or once as `/?token=TOKEN`, which sets it.
    #[must_use]
    pub fn guarded_by(mut self, token: Token) -> Self {
        self.token = Some(token);
        self
    }

    /// Adds `/metrics`, computed for each request: the role's own, then the build and what the process takes of its machine.
    #[must_use]
    pub fn metrics<F, T>(mut self, (build, detail): (Build, Detail), metrics: F) -> Self
    where
        F: Fn() -> T + Send + Sync + 'static,
        T: Future<Output = Option<Vec<Metric>>> + Send + 'static,
    {
        let (metrics, role) = (Arc::new(metrics), self.role);
        let handler = move || {
            let metrics = Arc::clone(&metrics);
            async move {
                match metrics().await {
                    Some(metrics) => (
                        [(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")],
                        with_process(&open_metrics(role, &metrics), build, detail),
                    )
                        .into_response(),
                    None => StatusCode::SERVICE_UNAVAILABLE.into_response(),
                }
            }
        };
        self.router = self.router.route("/metrics", get(handler));
        self
    }

    /// Serves the pages at `address` until the result is dropped.
    pub async fn serve(self, address: SocketAddr) -> io::Result<Serving> {
        let ready = self.ready;
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let router = match self.token {
            Some(token) => guarded(self.router, token, address.port()),
            None => self.router,
        };
        let router = router.route("/healthz", get(|| async { "ok\n" })).route(
            "/readyz",
            get(move || {
                let state = ready.borrow().clone();
                async move {
                    match state {
                        Ok(()) => (StatusCode::OK, "ready\n".to_owned()),
                        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
                    }
                }
            }),
        );
        let router = router.fallback(|request: Request| async move { no_such_page(request.uri().path()) });
        let router = router.layer(from_fn(move |mut request: Request, next: Next| async move {
            let peer = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(peer)| peer.ip());
            request.extensions_mut().insert(FromHere(peer.is_some_and(|peer| is_here(peer, address.ip()))));
            if !is_addressed_to(&request, address.ip()) {
                foreign_host()
            } else if is_of_foreign_page(&request) {
                foreign_page()
            } else {
                next.run(request).await
            }
        }));
        let service = router.into_make_service_with_connect_info::<SocketAddr>();
        let task = tokio::spawn(async move { axum::serve(listener, service).await }).abort_handle();
        Ok(Serving { address, task })
    }
}

/// Pages that are being served.
#[derive(Debug)]
pub struct Serving {
    /// Where.
    pub address: SocketAddr,
    task: AbortHandle,
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Whether a request comes from this machine.
#[derive(Clone, Copy)]
struct FromHere(bool);

/// Whether an address is this machine's: loopback, or where the pages listen.
fn is_here(peer: IpAddr, listens: IpAddr) -> bool {
    let peer = peer.to_canonical();
    peer.is_loopback() || peer == listens.to_canonical()
}

fn foreign_machine() -> Response {
    let why = "only a program on the role's own machine may ask for this; ask there, at `localhost` or the address in [status] listen";
    (StatusCode::FORBIDDEN, axum::Json(json!({ "error": why }))).into_response()
}

/// What a proxy on this machine adds to requests that it has from others.
const FORWARDED: [&str; 4] = ["forwarded", "x-forwarded-for", "x-real-ip", "via"];

fn is_forwarded(headers: &HeaderMap) -> bool {
    FORWARDED.iter().any(|name| headers.contains_key(*name))
}

fn forwarded() -> Response {
    let why =
        "the request came through a proxy, which may have it from anybody; ask without one, on the role's own machine";
    (StatusCode::FORBIDDEN, axum::Json(json!({ "error": why }))).into_response()
}

/// Whether a page of another site has a browser ask for what only programs read.
fn is_of_foreign_page(request: &Request) -> bool {
    let site = request.headers().get("sec-fetch-site").map(HeaderValue::as_bytes);
    request.uri().path().starts_with("/api/") && site == Some(&b"cross-site"[..])
}

/// Whether the request names this page as its operator does: by loopback, or by the address where it listens. Any other
/// name comes from a browser that a foreign page directed here (DNS rebinding). A request without a host comes from no
/// browser.
fn is_addressed_to(request: &Request, listens: IpAddr) -> bool {
    let Some(host) = request.headers().get(header::HOST) else { return true };
    let authority = host.to_str().ok().and_then(|text| text.parse::<Authority>().ok());
    let Some(authority) = authority else { return false };
    let name = authority.host().trim_start_matches('[').trim_end_matches(']');
    match name.parse::<IpAddr>().map(|ip| ip.to_canonical()) {
        Ok(ip) => ip.is_loopback() || listens.is_unspecified() || ip == listens.to_canonical(),
        Err(_) => name.eq_ignore_ascii_case("localhost"),
    }
}

fn foreign_host() -> Response {
    let why = "the request names another host; use `localhost` or the address in [status] listen";
    (StatusCode::FORBIDDEN, axum::Json(json!({ "error": why }))).into_response()
}

fn foreign_page() -> Response {
    let why = "a page in a browser may not ask for this";
    (StatusCode::FORBIDDEN, axum::Json(json!({ "error": why }))).into_response()
}

/// Lets requests through that have the token. One in the address becomes a cookie, and leaves the address.
fn guarded(router: Router, token: Token, port: u16) -> Router {
    router.layer(from_fn(move |request: Request, next: Next| {
        let token = token.clone();
        async move {
            let is_front = request.uri().path() == "/";
            match query_of(&request, "token").filter(|_| is_front) {
                Some(given) if token.is(given.as_bytes()) => {
                    let cookie = format!("{COOKIE}{port}={}; HttpOnly; SameSite=Strict; Path=/", token.cookie(port));
                    (StatusCode::SEE_OTHER, [(header::SET_COOKIE, cookie), (header::LOCATION, "/".to_owned())])
                        .into_response()
                }
                Some(_) => (StatusCode::SEE_OTHER, [(header::LOCATION, "/")]).into_response(),
                None if is_given(&request, &token, port) => next.run(request).await,
                None if is_front => html(StatusCode::UNAUTHORIZED, WITHOUT_TOKEN.to_owned()),
                None => (StatusCode::UNAUTHORIZED, axum::Json(json!({ "error": OPEN_ONCE }))).into_response(),
            }
        }
    }))
}

/// What to do without a token, for programs and for people.
const OPEN_ONCE: &str =
    "open the page once as http://ADDRESS/?token=TOKEN, with the token of the file that the configuration names";
const WITHOUT_TOKEN: &str = "<!doctype html>\n<html lang=en>\n<meta charset=utf-8>\n<title>A token is needed</title>\n<h1>A token is needed</h1>\n\
    <p>This browser has no token for this page, or one that is not in force. Open the page once as <code>http://ADDRESS/?token=TOKEN</code>, with the token of the \
    file that <code>token</code> in the configuration names; the browser keeps a cookie. If a link of another page has just led here with the right token, \
    <a href=\"/\">open the page again</a>.</p>\n</html>\n";

/// Whether a request has the token's cookie.
fn is_given(request: &Request, token: &Token, port: u16) -> bool {
    let (name, expected) = (format!("{COOKIE}{port}="), token.cookie(port));
    let cookies = request.headers().get_all(header::COOKIE).into_iter().filter_map(|value| value.to_str().ok());
    let all = cookies.flat_map(|value| value.split(';'));
    let own = all.filter_map(|cookie| cookie.trim().strip_prefix(&name));
    own.fold(false, |is_given, value| is_given | bool::from(expected.as_bytes().ct_eq(value.as_bytes())))
}

/// A parameter of letters and digits.
fn query_of<'a>(request: &'a Request, name: &str) -> Option<&'a str> {
    request.uri().query()?.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
}

fn answer(result: Result<Value, ViewError>) -> Response {
    match result {
        Ok(value) => axum::Json(value).into_response(),
        Err(ViewError::Request(why)) => (StatusCode::BAD_REQUEST, axum::Json(json!({ "error": why }))).into_response(),
        Err(ViewError::NotFound(why)) => (StatusCode::NOT_FOUND, axum::Json(json!({ "error": why }))).into_response(),
        Err(ViewError::Failed(why)) => {
            (StatusCode::SERVICE_UNAVAILABLE, axum::Json(json!({ "error": why }))).into_response()
        }
        Err(ViewError::Unavailable) => {
            (StatusCode::SERVICE_UNAVAILABLE, axum::Json(json!({ "error": "starting or stopping" }))).into_response()
        }
    }
}

/// A JSON text of which the next part is asked for when the one before has left.
fn in_parts(parts: mpsc::Receiver<String>) -> Response {
    let next = |mut parts: mpsc::Receiver<String>| async move {
        let part = parts.recv().await?;
        Some((Ok::<_, Infallible>(part), parts))
    };
    let body = Body::from_stream(stream::unfold(parts, next));
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// What the page of an application may do: load what it consists of, and ask the place that it comes from. The one style by its hash
/// is what cytoscape adds for its own container.
const OF_APPLICATION: &str = "default-src 'none'; script-src 'self'; \
                              style-src 'self' 'sha256-pgvDUBa4IjFA2yuSJ2cqcyxmNYJMborsd0ORcRv9vw8='; img-src 'self' data:; \
                              connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// What a page of HTML may do: show itself, and be left by its links.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

fn html(status: StatusCode, text: String) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    (status, headers, text).into_response()
}

/// JSON for programs, and a page for everybody else.
fn no_such_page(path: &str) -> Response {
    if path.starts_with("/api") {
        return answer(Err(ViewError::NotFound(NO_SUCH_PAGE.into())));
    }
    let text = format!(
        "<!doctype html>\n<html lang=en>\n<meta charset=utf-8>\n<title>Not found</title>\n<p>{NO_SUCH_PAGE}: <a href=\"/\">what it has</a>.</p>\n</html>\n"
    );
    html(StatusCode::NOT_FOUND, text)
}

/// The text form of OpenMetrics.
fn open_metrics(role: &str, metrics: &[Metric]) -> String {
    let mut registry = Registry::with_prefix(format!("wayleave_{role}"));
    for Metric { thing, unit, help, sample } in metrics {
        let unit = registry::Unit::Other(unit.name().to_owned());
        match sample {
            Sample::Counter(value) => registry.register_with_unit(thing, *help, unit, ConstCounter::new(*value)),
            Sample::Gauge(value) => registry.register_with_unit(thing, *help, unit, ConstGauge::new(*value)),
            Sample::Gauges(values) if values.is_empty() => {}
            Sample::Counters(values) if values.is_empty() => {}
            Sample::Counters(values) => {
                let family = Family::<Labels, Counter>::default();
                for (labels, value) in values {
                    family.get_or_create(labels).inc_by(*value);
                }
                registry.register_with_unit(thing, *help, unit, family);
            }
            Sample::Gauges(values) => {
                let family = Family::<Labels, Gauge<f64, AtomicU64>>::default();
                for (labels, value) in values {
                    family.get_or_create(labels).set(*value);
                }
                registry.register_with_unit(thing, *help, unit, family);
            }
        }
    }
    let mut text = String::new();
    encode(&mut text, &registry).expect("writing to a string does not fail");
    text
}

/// The end of a page in the text form of OpenMetrics.
const END: &str = "# EOF\n";

/// A page with the lines of the process before its end.
fn with_process(page: &str, build: Build, detail: Detail) -> String {
    format!("{}{}{END}", page.strip_suffix(END).unwrap_or(page), process_metrics::lines(build, detail))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    async fn fetch(address: SocketAddr, path: &str) -> String {
        fetch_by(address, path, "localhost").await
    }

    async fn fetch_by(address: SocketAddr, path: &str, host: &str) -> String {
        let mut stream = tokio::net::TcpStream::connect(address).await.expect("connected");
        let request = format!("GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("asked");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("answered");
        answer
    }

    #[test]
    fn whatever_a_label_holds_stays_within_its_quotes() {
        let labels = |member: &str| vec![("slot", "7".to_owned()), ("member", member.to_owned())];
        let hostile = "a\"} 1\nwayleave_rs_connected_members 0\\";
        let values = vec![(labels("alpha"), 1.0), (labels(hostile), 2.0)];
        let page = open_metrics("rs", &[Metric::gauges("reported", Unit::Members, "Members", values)]);
        assert!(page.contains("\nwayleave_rs_reported_members{slot=\"7\",member=\"alpha\"} 1"), "{page}");
        let names = [
            Metric::gauges("reported", Unit::Members, "Members", Vec::new()),
            Metric::counter("reported", Unit::Members, "Members", 1),
        ];
        let names = names.map(|metric| metric.name("rs"));
        assert_eq!(names, ["wayleave_rs_reported_members", "wayleave_rs_reported_members_total"]);
        let escaped = r#"{slot="7",member="a\"} 1\nwayleave_rs_connected_members 0\\"} 2"#;
        assert!(page.contains(escaped), "{page}");
        assert!(!page.lines().any(|line| line.starts_with("wayleave_rs_connected")), "{page}");
        let none = open_metrics("rs", &[Metric::gauges("reported", Unit::Members, "Members", Vec::new())]);
        assert_eq!(none, "# EOF\n");
    }

    #[test]
    fn rows_are_the_calls_that_they_stand_for() {
        let labelled = || vec![(vec![("slot", "7".to_owned())], 1.0)];
        let rows = metrics! {
            gauge "connected" Members "Members" = [1, 2, 3].len();
            gauge "stored" Objects "Objects" = 4_u64;
            gauge "allowed" Prefixes "Prefixes" = 5_u32;
            gauge "left" Ratio "Share" = 0.5;
            gauge "router" Up "Whether it is up" = true;
            counter "sent" Bytes "Sent" = 6;
            gauges "reported" Members "Members" = labelled();
        };
        let calls = [
            Metric::gauge("connected", Unit::Members, "Members", 3.0),
            Metric::gauge("stored", Unit::Objects, "Objects", 4.0),
            Metric::gauge("allowed", Unit::Prefixes, "Prefixes", 5.0),
            Metric::gauge("left", Unit::Ratio, "Share", 0.5),
            Metric::up("router", "Whether it is up", true),
            Metric::counter("sent", Unit::Bytes, "Sent", 6),
            Metric::gauges("reported", Unit::Members, "Members", labelled()),
        ];
        assert_eq!(rows, calls);
    }

    #[tokio::test]
    async fn an_order_is_carried_out_for_a_post_and_not_for_a_page_in_a_browser() {
        let (_ready, state) = watch::channel(Ok(()));
        let count = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&count);
        let pages = Pages::new("rs", state).order("/api/v1/links/ask", move || {
            let done = counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            async move { Ok(json!({ "done": done })) }
        });
        let serving = pages.serve("127.0.0.1:0".parse().expect("an address")).await.expect("serving");
        for (method, origin, status, done) in [
            ("GET", "", "405", 0),
            ("POST", "Origin: http://evil.example\r\n", "403", 0),
            ("POST", "Origin: null\r\n", "403", 0),
            ("POST", "", "200", 1),
        ] {
            let mut stream = tokio::net::TcpStream::connect(serving.address).await.expect("connected");
            let head =
                format!("{method} /api/v1/links/ask HTTP/1.0\r\nHost: localhost\r\n{origin}Content-Length: 0\r\n\r\n");
            stream.write_all(head.as_bytes()).await.expect("asked");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.expect("answered");
            assert!(answer.starts_with(&format!("HTTP/1.0 {status}")), "{method} {origin}: {answer}");
            assert_eq!(count.load(std::sync::atomic::Ordering::Relaxed), done, "{method} {origin}");
        }
    }

    #[tokio::test]
    async fn an_order_that_changes_a_role_is_given_on_its_own_machine_alone() {
        let (_ready, state) = watch::channel(Ok(()));
        let pages = Pages::new("member", state)
            .local_order("/api/v1/session/disable", |parameters| async move { Ok(json!({ "got": parameters })) });
        let serving = pages.serve("127.0.0.1:0".parse().expect("an address")).await.expect("serving");
        let path = "/api/v1/session/disable?message=back%20at%204%2C%20%C3%A4+%26";
        for (method, origin, status) in [
            ("GET", "", "405"),
            ("POST", "Origin: http://evil.example\r\n", "403"),
            ("POST", "X-Forwarded-For: 192.0.2.7\r\n", "403"),
            ("POST", "Forwarded: for=192.0.2.7\r\n", "403"),
            ("POST", "x-real-ip: 192.0.2.7\r\n", "403"),
            ("POST", "Via: 1.1 proxy\r\n", "403"),
            ("POST", "", "200"),
        ] {
            let mut stream = tokio::net::TcpStream::connect(serving.address).await.expect("connected");
            let head = format!("{method} {path} HTTP/1.0\r\nHost: localhost\r\n{origin}Content-Length: 0\r\n\r\n");
            stream.write_all(head.as_bytes()).await.expect("asked");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.expect("answered");
            assert!(answer.starts_with(&format!("HTTP/1.0 {status}")), "{method} {origin}: {answer}");
            assert_eq!(answer.contains("\"message\":\"back at 4, ä &\""), status == "200", "{answer}");
        }
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        for (peer, listens, is_local) in [
            ("127.0.0.1", "0.0.0.0", true),
            ("::ffff:127.0.0.1", "::", true),
            ("192.0.2.7", "192.0.2.7", true),
            ("::ffff:192.0.2.7", "192.0.2.7", true),
            ("192.0.2.8", "192.0.2.7", false),
            ("192.0.2.8", "0.0.0.0", false),
            ("2001:db8::1", "::", false),
        ] {
            assert_eq!(is_here(ip(peer), ip(listens)), is_local, "{peer} at {listens}");
        }
    }

    #[tokio::test]
    async fn a_browser_on_another_sites_page_is_given_nothing_below_api() {
        let (_ready, state) = watch::channel(Ok(()));
        let pages = Pages::new("member", state).view("/api/v1/routes", |_| async { Ok(json!({})) });
        let serving = pages.serve("127.0.0.1:0".parse().expect("an address")).await.expect("serving");
        for (site, status) in [("cross-site", "403"), ("same-origin", "200"), ("none", "200")] {
            let mut stream = tokio::net::TcpStream::connect(serving.address).await.expect("connected");
            let head = format!("GET /api/v1/routes HTTP/1.0\r\nHost: localhost\r\nSec-Fetch-Site: {site}\r\n\r\n");
            stream.write_all(head.as_bytes()).await.expect("asked");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.expect("answered");
            assert!(answer.starts_with(&format!("HTTP/1.0 {status}")), "{site}: {answer}");
        }
    }

    #[tokio::test]
    async fn a_guarded_page_is_for_who_has_the_token_alone() {
        let (_ready, state) = watch::channel(Ok(()));
        let token = Token::new("secret7".into());
        let pages = Pages::new("console", state)
            .file("/", "text/html; charset=utf-8", Encoding::Plain, b"<p>page")
            .view("/api/v1/sources", |_| async { Ok(json!([])) })
            .guarded_by(token.clone());
        let serving = pages.serve("127.0.0.1:0".parse().expect("an address")).await.expect("serving");
        let at = serving.address;
        let ask = async |path: &str, cookie: &str| {
            let mut stream = tokio::net::TcpStream::connect(at).await.expect("connected");
            let request = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\nCookie: {cookie}\r\n\r\n");
            stream.write_all(request.as_bytes()).await.expect("asked");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.expect("answered");
            answer
        };
        let (name, value) = (format!("wayleave-{}", at.port()), token.cookie(at.port()));
        assert!(!value.contains("secret7") && value != token.cookie(1), "a cookie of this port");
        let own = format!("{name}={value}");
        for (path, cookie, status) in [
            ("/", String::new(), "401"),
            ("/api/v1/sources", String::new(), "401"),
            ("/nowhere", String::new(), "404"),
            ("/healthz", String::new(), "200"),
            ("/?token=secret8", String::new(), "303"),
            ("/?token=secret77", own.clone(), "303"),
            ("/?token=secret7", String::new(), "303"),
            ("/?token=secret7", own.clone(), "303"),
            ("/api/v1/sources?token=secret7", String::new(), "401"),
            ("/", format!("other=1; {own}"), "200"),
            ("/", format!("{name}=secret7"), "401"),
            ("/", format!("wayleave={value}"), "401"),
            ("/", format!("x{own}"), "401"),
            ("/", own[..own.len() - 1].to_owned(), "401"),
        ] {
            let answer = ask(path, &cookie).await;
            assert!(answer.starts_with(&format!("HTTP/1.0 {status}")), "{path} {cookie}: {answer}");
            let set = format!("set-cookie: {own}; HttpOnly; SameSite=Strict; Path=/\r\n");
            assert_eq!(answer.contains(&set), path == "/?token=secret7", "{path} {cookie}: {answer}");
            assert_eq!(answer.contains("\r\nlocation: /\r\n"), status == "303", "it leaves the address: {answer}");
        }
        let page = ask("/", "").await;
        assert!(page.contains("text/html") && page.contains("/?token=TOKEN"), "{page}");
        // A token that was replaced is worth nothing, nor are its cookies.
        token.replace("another".into());
        assert!(ask("/", &own).await.starts_with("HTTP/1.0 401"));
        assert!(!ask("/?token=secret7", "").await.contains("set-cookie"));
        assert!(ask("/?token=another", "").await.contains("set-cookie"));
    }

    #[tokio::test]
    async fn a_stream_begins_with_all_there_is_and_ends_for_who_is_too_slow() {
        let (_ready, state) = watch::channel(Ok(()));
        let (to, _) = broadcast::channel(2);
        let from = to.clone();
        let pages = Pages::new("console", state).stream("/api/v1/stream", move || {
            let later = from.subscribe();
            async move { (vec![("sources", json!({ "all": "<b>\n" }).to_string().into())], later) }
        });
        let serving = pages.serve("127.0.0.1:0".parse().expect("an address")).await.expect("serving");
        let mut stream = tokio::net::TcpStream::connect(serving.address).await.expect("connected");
        stream.write_all(b"GET /api/v1/stream HTTP/1.0\r\nHost: localhost\r\n\r\n").await.expect("asked");
        let mut read = Vec::new();
        let first = "event: sources\ndata: {\"all\":\"<b>\\n\"}\n\n";
        while !String::from_utf8_lossy(&read).ends_with(first) {
            assert_ne!(stream.read_buf(&mut read).await.expect("told"), 0, "{}", String::from_utf8_lossy(&read));
        }
        assert!(String::from_utf8_lossy(&read).contains("content-type: text/event-stream"));
        assert_eq!(to.send(("line", "1".into())).ok(), Some(1));
        while !String::from_utf8_lossy(&read).ends_with("event: line\ndata: 1\n\n") {
            assert_ne!(stream.read_buf(&mut read).await.expect("told"), 0);
        }
        // The task that reads has no turn between these.
        for more in 0..4 {
            assert_eq!(to.send(("line", more.to_string().into())).ok(), Some(1));
        }
        read.clear();
        stream.read_to_end(&mut read).await.expect("the end of it");
    }

    #[tokio::test]
    async fn a_tree_of_pages_answers_at_once_or_in_parts() {
        let (_ready, state) = watch::channel(Ok(()));
        let pages = Pages::new("member", state).tree("/glass", |rest, parameters| async move {
            if rest == "none" {
                return Err(ViewError::NotFound("no such page".to_owned()));
            }
            if !parameters.contains_key("parts") {
                return Ok(Reply::Json(json!({ "path": rest })));
            }
            let (to, parts) = mpsc::channel(1);
            tokio::spawn(async move {
                for part in ["[1", ",2", ",3]"] {
                    to.send(part.to_owned()).await.expect("read");
                }
            });
            Ok(Reply::Parts(parts))
        });
        let serving = pages.serve("127.0.0.1:0".parse().expect("an address")).await.expect("serving");
        let at = serving.address;
        let answer = fetch(at, "/glass/route/net/10.0.0.0%2F8").await;
        assert!(answer.ends_with("{\"path\":\"route/net/10.0.0.0/8\"}"), "{answer}");
        let answer = fetch(at, "/glass/all?parts=1").await;
        assert!(answer.contains("application/json") && answer.ends_with("[1,2,3]"), "{answer}");
        assert!(fetch(at, "/glass/none").await.starts_with("HTTP/1.0 404"));
        assert!(fetch(at, "/glass").await.starts_with("HTTP/1.0 404"));
    }

    #[tokio::test]
    async fn a_name_that_somebody_else_points_here_is_refused() {
        let (_ready, state) = watch::channel(Ok(()));
        let serving = Pages::new("rs", state).serve("127.0.0.1:0".parse().expect("an address")).await.expect("serving");
        let at = serving.address;
        for host in ["localhost", "LocalHost:8481", "127.0.0.1", &at.to_string(), "[::1]:8481", "127.1.2.3:1"] {
            let answer = fetch_by(at, "/healthz", host).await;
            assert!(answer.starts_with("HTTP/1.0 200"), "{host}: {answer}");
        }
        for host in ["evil.example", "evil.example:8481", "localhost.evil.example", "192.0.2.1", "", "a b"] {
            let answer = fetch_by(at, "/healthz", host).await;
            assert!(answer.starts_with("HTTP/1.0 403"), "{host}: {answer}");
        }
    }

    #[tokio::test]
    async fn pages_show_views_metrics_and_readiness() {
        let (ready, state) = watch::channel(Err("party 2 is not there".to_owned()));
        let pages = Pages::new("rs", state)
            .view("/api/v1/echo", |parameters| async move {
                let word = parameters.get("word").ok_or(ViewError::Request("no word".into()))?;
                Ok(json!({ "word": word }))
            })
            .html("/", || async { Ok("<p>here</p>".to_owned()) })
            .metrics((Build { version: "1.2.3", commit: "abc" }, Detail::Coarse), || async {
                Some(vec![Metric::counter("link_received", Unit::Bytes, "Received over links", 3)])
            });
        let serving = pages.serve("127.0.0.1:0".parse().expect("an address")).await.expect("serving");
        let at = serving.address;
        assert!(fetch(at, "/api/v1/echo?word=hi").await.ends_with("{\"word\":\"hi\"}"));
        assert!(fetch(at, "/api/v1/echo").await.starts_with("HTTP/1.0 400"));
        assert!(fetch(at, "/api/v1/nothing").await.ends_with("{\"error\":\"this role has no such page\"}"));
        let answer = fetch(at, "/nothing").await;
        assert!(
            answer.starts_with("HTTP/1.0 404") && answer.contains("text/html") && answer.contains("href=\"/\""),
            "{answer}"
        );
        let answer = fetch(at, "/").await;
        assert!(answer.contains("default-src 'none'") && answer.ends_with("<p>here</p>"), "{answer}");
        let page = fetch(at, "/metrics").await;
        assert!(page.contains("wayleave_rs_link_received_bytes_total 3"), "{page}");
        assert!(page.contains("\nwayleave_build_info{version=\"1.2.3\",commit=\"abc\"} 1\n"), "{page}");
        assert!(page.contains("\nprocess_start_time_seconds ") && page.ends_with("\n# EOF\n"), "{page}");
        assert_eq!(page.matches("# EOF").count(), 1, "{page}");
        assert!(fetch(at, "/healthz").await.starts_with("HTTP/1.0 200"));
        let answer = fetch(at, "/readyz").await;
        assert!(answer.starts_with("HTTP/1.0 503") && answer.contains("party 2 is not there"), "{answer}");
        assert!(ready.send_replace(Ok(())).is_err());
        assert!(fetch(at, "/readyz").await.starts_with("HTTP/1.0 200"));
    }
}
