//! The driver of the BGP session with a member's router: TCP, the clock, the log and the view,
//! around [`wayleave_bgp::peer`]. `run attest` drives its peers inside its machine.

mod describe;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{sleep_until, timeout};
use tracing::{debug, info, warn};
pub use wayleave_bgp::peer::PeerEvent;
use wayleave_bgp::peer::{self, Input, Output, Stale, TcpRequest};
use wayleave_bgp::rib::RejectedRoutes;
use wayleave_bgp::session::{self, Cause, Config, Ended, Erred, PeerAsn, Role, Stop, StopReason};
use wayleave_bgp::{Attributes, EncodeError, Nlri, RefreshKind, Update};
use wayleave_core::{Afi, Instant, Machine, Prefix};
use wayleave_runtime::Clock;
use wayleave_runtime::bgp_tcp::TcpEvent;
use wayleave_runtime::clock::unix_now;
use wayleave_runtime::http::ViewError;
use wayleave_runtime::log_limit::{Line, LogLimit};
use wayleave_runtime::starts::{Handling, PeerName};

pub use self::describe::describe_malformed;
use self::describe::{RouterLabel, SHUTDOWN_TEXT, describe_end, describe_fault, describe_role};
use super::bmp::{Monitored, RunningStation, Station, StationAt};
pub use super::peer_tcp::Endpoint;
use super::peer_tcp::{PeerTcp, SHUTDOWN_TIME, TcpInput};

/// TCP events that may wait; then connections wait.
const TCP_QUEUE: usize = 256;
/// Malformed UPDATEs of one session that are logged.
const LOGGED_MALFORMED: u32 = 10;
/// Causes of failed attempts that are logged between two sessions.
const LOGGED_CAUSES: usize = 16;
/// How long the router has to connect or to be reached before its absence is reported.
const ROUTER_PATIENCE: Duration = Duration::from_secs(20);
/// Routes that the session cannot carry and that are remembered for `why`.
const MOST_REJECTED: usize = 10_000;
/// Octets of a shutdown communication (RFC 9003 section 2).
const MOST_MESSAGE: usize = 255;
/// Orders that may wait.
const ORDERS: usize = 8;
/// How often unused attributes are freed.
const SWEEP: Duration = Duration::from_secs(60);

/// Routes on their way to a peer: the latest for each prefix, in the order in which prefixes were set.
///
/// The machine that sets routes must not wait for the peer's task, since that task waits for the machine when it has an
/// event for it. So this queue never refuses a route. Its bound is the number of prefixes: a route replaces the one that
/// waits for the same prefix, which the peer need not hear of any more.
#[derive(Clone, Debug, Default)]
pub struct RouteQueue(Arc<(Mutex<WaitingRoutes>, Notify)>);

#[derive(Debug, Default)]
struct WaitingRoutes {
    order: Vec<Prefix>,
    /// By path identifier, the best first; none: the prefix is withdrawn.
    routes: HashMap<Prefix, Vec<(u32, Attributes)>>,
}

impl RouteQueue {
    /// The peer is to have this route, or none for the prefix.
    pub fn set(&self, prefix: Prefix, attributes: Option<Attributes>) {
        self.set_paths(prefix, attributes.map(|attributes| (0, attributes)).into_iter().collect());
    }

    /// The peer is to have these routes to the prefix, by path identifier, the best first, and no others.
    pub fn set_paths(&self, prefix: Prefix, paths: Vec<(u32, Attributes)>) {
        let (waiting, changed) = &*self.0;
        let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.routes.insert(prefix, paths).is_none() {
            waiting.order.push(prefix);
        }
        changed.notify_one();
    }

    /// Waits until something was set. Cancel safe.
    async fn changed(&self) {
        self.0.1.notified().await;
    }

    /// Takes all that wait.
    fn take(&self) -> impl Iterator<Item = (Prefix, Vec<(u32, Attributes)>)> + use<> {
        let waiting = std::mem::take(&mut *self.0.0.lock().unwrap_or_else(PoisonError::into_inner));
        let WaitingRoutes { order, mut routes } = waiting;
        order.into_iter().filter_map(move |prefix| routes.remove_entry(&prefix))
    }
}

/// The peer's state for views.
#[derive(Clone, Debug, Default)]
pub struct PeerView(Arc<Mutex<Value>>, Arc<Mutex<BTreeMap<Nlri, EncodeError>>>);

impl PeerView {
    /// The state as JSON.
    pub fn json(&self) -> Value {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Why the session cannot carry this route to the prefix, if it cannot. Without ADD-PATH there is one alone, which has no identifier.
    pub fn rejected(&self, prefix: Prefix, path_id: u32) -> Option<EncodeError> {
        let all = self.1.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(&Nlri { prefix, path_id }).or_else(|| all.get(&Nlri::new(prefix))).copied()
    }

    /// The session cannot carry these routes.
    fn reject(&self, rejected: &RejectedRoutes) {
        let mut all = self.1.lock().unwrap_or_else(PoisonError::into_inner);
        for nlri in &rejected.routes {
            if all.len() < MOST_REJECTED || all.contains_key(nlri) {
                all.insert(*nlri, rejected.error);
            }
        }
    }

    /// Another route to the prefix is due, or all of them are.
    fn retry(&self, prefix: Option<&Prefix>) {
        let mut all = self.1.lock().unwrap_or_else(PoisonError::into_inner);
        match prefix {
            Some(prefix) => {
                let of_prefix = all.range(Nlri::new(*prefix)..=Nlri { prefix: *prefix, path_id: u32::MAX });
                let of_prefix: Vec<Nlri> = of_prefix.map(|(nlri, _)| *nlri).collect();
                for nlri in of_prefix {
                    all.remove(&nlri);
                }
            }
            None => all.clear(),
        }
    }

    fn set(&self, value: Value) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = value;
    }
}

/// What the member's operator orders for the session with the router.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Order {
    /// End it with this text (RFC 9003), and have none until it is enabled.
    Disable(String),
    Enable,
    /// Ask the router for all its routes (RFC 2918).
    Refresh,
    /// End it. It begins again as after a failure.
    Clear,
}

/// An order, and where to say what came of it, or why it is not carried out.
type Ordered = (Order, oneshot::Sender<Result<Value, String>>);

/// Gives orders to a running driver.
#[derive(Clone, Debug)]
pub struct PeerOrders(mpsc::Sender<Ordered>);

impl PeerOrders {
    /// Waits until the order is carried out.
    pub async fn give(&self, order: Order) -> Result<Value, ViewError> {
        if let Order::Disable(text) = &order {
            check_message(text).map_err(ViewError::Request)?;
        }
        let (done, outcome) = oneshot::channel();
        self.0.send((order, done)).await.map_err(|_| ViewError::Unavailable)?;
        outcome.await.map_err(|_| ViewError::Unavailable)?.map_err(ViewError::Request)
    }
}

/// What is wrong with a text for the router's operator (RFC 9003 section 2).
pub fn check_message(text: &str) -> Result<(), String> {
    if text.len() > MOST_MESSAGE {
        return Err(format!(
            "the message has {} octets of UTF-8, expected {MOST_MESSAGE} at most (RFC 9003)",
            text.len()
        ));
    }
    match text.chars().find(|letter| letter.is_control()) {
        Some(control) => Err(format!("the message has the control character {control:?}, expected one line of text")),
        None => Ok(()),
    }
}

/// A running driver.
pub struct Peer {
    pub routes: RouteQueue,
    pub view: PeerView,
    pub orders: PeerOrders,
    /// Where it listens, if it does.
    pub address: Option<SocketAddr>,
    /// The router, as the log names it.
    pub name: PeerName,
    /// The BMP station that hears of the session.
    station: Option<RunningStation>,
    stop: oneshot::Sender<()>,
    task: tokio::task::JoinHandle<()>,
}

impl Peer {
    /// Starts the driver of a session with `config`; the peer's events go to `events`, and wait there. A station hears of the session.
    pub async fn start<E>(
        config: Config,
        mut endpoint: Endpoint,
        clock: Clock,
        events: mpsc::Sender<E>,
        station: Option<StationAt>,
    ) -> std::io::Result<Self>
    where
        E: From<PeerEvent> + Send + 'static,
    {
        let (to, tcp) = mpsc::channel(TCP_QUEUE);
        let address_of_router = endpoint.options.peer.or(endpoint.connect.map(|address| address.ip()));
        let name: PeerName = match address_of_router {
            Some(address) => format!("the router {address}").into(),
            None => "the router".into(),
        };
        endpoint.options.name = Some(PeerName::clone(&name));
        let router = RouterLabel { address: address_of_router };
        let monitored_at = endpoint.clone();
        let connections = PeerTcp::open(endpoint, to).await?;
        let (address, protection) = (connections.address, connections.protection());
        let awaited_at = address.map(|address| address.to_string());
        info!(protection, "protection of the session with the router: {protection}");
        let routes = RouteQueue::default();
        let (stop, stopped) = oneshot::channel();
        let (give_orders, orders) = mpsc::channel(ORDERS);
        let view = PeerView::default();
        let mut seed = [0u8; 8];
        getrandom::fill(&mut seed).map_err(std::io::Error::other)?;
        let station = station.map(RunningStation::start);
        let monitored = |running: &RunningStation| Monitored::new(running.station.clone(), &monitored_at);
        let driver = Driver {
            router,
            expected: config.peer_asn,
            monitored: station.as_ref().map(monitored),
            peer: peer::Peer::new(config, u64::from_be_bytes(seed), clock.now()),
            connections,
            clock,
            events,
            routes: routes.clone(),
            view: view.clone(),
            protection,
            disabled: None,
            last_end: String::new(),
            problem: None,
            last_notification: None,
            awaited_at,
            connect_error: None,
            malformed: 0,
            logged_causes: BTreeSet::new(),
            strangers: LogLimit::default(),
            up_since: None,
            stranger: None,
        };
        let task = tokio::spawn(driver.run(tcp, orders, stopped));
        Ok(Self { routes, view, orders: PeerOrders(give_orders), address, name, station, stop, task })
    }

    /// The BMP station that hears of the session, if there is one.
    pub fn station(&self) -> Option<&Station> {
        self.station.as_ref().map(|running| &running.station)
    }

    /// Ends the session with a NOTIFICATION.
    pub async fn stop(self) {
        let _ = self.stop.send(()); // fails if the driver has ended
        let _ = self.task.await;
        // Behind the driver, so that the station hears of the session's end.
        if let Some(station) = self.station {
            station.stop().await;
        }
    }
}

struct Driver<E> {
    router: RouterLabel,
    /// What a BMP station hears of the session.
    monitored: Option<Monitored>,
    expected: PeerAsn,
    peer: peer::Peer,
    connections: PeerTcp,
    clock: Clock,
    events: mpsc::Sender<E>,
    routes: RouteQueue,
    view: PeerView,
    /// For the view.
    protection: String,
    /// The operator's text, while the session is disabled.
    disabled: Option<String>,
    last_end: String,
    /// Why there is no session, and what to do, while there is none.
    problem: Option<String>,
    /// What the last NOTIFICATION meant with which a session ended, until there is one again.
    last_notification: Option<String>,
    /// Where the router is to connect, if it is.
    awaited_at: Option<String>,
    /// Why the latest attempt to connect failed, until the session has reported it.
    connect_error: Option<String>,
    malformed: u32,
    logged_causes: BTreeSet<String>,
    /// The log of connections from elsewhere.
    strangers: LogLimit,
    /// Since when there is a session, in seconds since 1970.
    up_since: Option<u64>,
    /// Where the last one of those came from, until there is a session.
    stranger: Option<IpAddr>,
}

impl<E: From<PeerEvent>> Driver<E> {
    async fn run(
        mut self,
        mut tcp: mpsc::Receiver<TcpEvent>,
        mut orders: mpsc::Receiver<Ordered>,
        mut stopped: oneshot::Receiver<()>,
    ) {
        self.handle(session::Input::Start).await;
        let mut sweep = tokio::time::interval(SWEEP);
        let missed = tokio::time::sleep(ROUTER_PATIENCE);
        tokio::pin!(missed);
        let mut has_been_missed = false;
        loop {
            let deadline = self.peer.deadline();
            let due = deadline.map_or_else(tokio::time::Instant::now, |at| self.clock.at(at));
            tokio::select! {
                event = tcp.recv() => match event {
                    Some(event) => self.tcp(event).await,
                    None => return,
                },
                _ = &mut stopped => break, // also when the handle was dropped
                Some((order, done)) = orders.recv() => {
                    let outcome = self.order(order).await;
                    // Before the answer, so that who asks next sees what came of it.
                    self.publish();
                    let _ = done.send(outcome); // fails if nobody waits any more
                }
                () = self.routes.changed() => {}
                () = sleep_until(due), if deadline.is_some() => self.peer.handle_timeout(self.clock.now()),
                _ = sweep.tick() => self.peer.sweep(),
                () = &mut missed, if !has_been_missed => {
                    has_been_missed = true;
                    self.miss_router();
                }
            }
            // All that wait at once, so that routes share messages.
            for (prefix, paths) in self.routes.take() {
                self.view.retry(Some(&prefix));
                self.input(Input::Paths { prefix, paths });
            }
            self.act().await;
            self.publish();
        }
        self.stop_session(true, StopReason::Shutdown(SHUTDOWN_TEXT.to_owned())).await;
        let _ = timeout(SHUTDOWN_TIME, self.connections.connections().gone()).await; // who does not read by then is left
    }

    fn input(&mut self, input: Input) {
        self.peer.handle(input, self.clock.now());
    }

    async fn handle(&mut self, input: session::Input) {
        self.peer.handle(Input::Session(input), self.clock.now());
        self.act().await;
    }

    /// Carries out an order. `Err` is why it is not carried out, and what to do.
    async fn order(&mut self, order: Order) -> Result<Value, String> {
        let was_up = self.peer.established().is_some();
        match order {
            Order::Disable(text) => {
                info!("the session with the router is disabled by its operator: {text:?}");
                self.disabled = Some(text.clone());
                self.stop_session(true, StopReason::Shutdown(text)).await;
            }
            Order::Enable => {
                if self.disabled.take().is_none() {
                    return Err("the session with the router is not disabled".to_owned());
                }
                info!("the session with the router is enabled by its operator");
                (self.problem, self.last_notification) = (None, None);
                self.handle(session::Input::Start).await;
            }
            Order::Refresh | Order::Clear if self.disabled.is_some() => {
                return Err(
                    "the session with the router is disabled; `wayleave session enable` takes it up again".to_owned()
                );
            }
            Order::Refresh => return self.refresh().await,
            Order::Clear => {
                info!("the session with the router is cleared by its operator");
                self.stop_session(false, StopReason::Reset("cleared by the operator of the proxy".to_owned())).await;
            }
        }
        Ok(json!({ "was_up": was_up, "state": self.peer.state().to_string(), "disabled": self.disabled }))
    }

    async fn stop_session(&mut self, administrative: bool, reason: StopReason) {
        self.handle(session::Input::Stop(Stop { administrative, reason })).await;
    }

    /// Asks the router for all its routes.
    async fn refresh(&mut self) -> Result<Value, String> {
        let Some(up) = self.peer.established() else {
            return Err("there is no session with the router; it sends all its routes when there is one".to_owned());
        };
        if !up.route_refresh {
            return Err(
                "the router does not take requests for its routes (ROUTE-REFRESH, RFC 2918); after `wayleave session clear` it sends all of them"
                    .to_owned(),
            );
        }
        let families: Vec<Afi> = [Afi::Ipv4, Afi::Ipv6].into_iter().filter(|afi| up.params.has_family(*afi)).collect();
        info!("all routes of the router are asked for by the operator");
        for afi in &families {
            self.handle(session::Input::Refresh { afi: *afi, kind: RefreshKind::Request }).await;
        }
        Ok(json!({ "families": families }))
    }

    async fn tcp(&mut self, event: TcpEvent) {
        let source = self.connections.source(&event).cloned();
        self.monitor(|monitored| monitored.tcp(&event));
        match self.connections.translate(event) {
            TcpInput::Session(input) => {
                let handling = source.as_ref().map(Handling::begin);
                self.input(Input::Session(input));
                drop(handling);
                self.act().await;
            }
            TcpInput::ConnectFailed(input, why) => {
                self.connect_error = Some(format!("cannot connect: {why}"));
                self.handle(input).await;
            }
            TcpInput::Refused(ip) => {
                self.stranger = Some(ip);
                if let Some(Line { suppressed }) = self.strangers.note(tokio::time::Instant::now()) {
                    warn!(address = %ip, suppressed, "BGP connection from {ip} refused: [router] `address` (with a password also `connect`) names another router");
                }
            }
        }
    }

    /// Tells the station, if there is one.
    fn monitor(&self, what: impl FnOnce(&Monitored)) {
        if let Some(monitored) = &self.monitored {
            what(monitored);
        }
    }

    /// Performs the peer's outputs.
    async fn act(&mut self) {
        while let Some(output) = self.peer.poll() {
            match output {
                Output::Tcp(request) => {
                    self.monitor(|monitored| match &request {
                        TcpRequest::Send { connection, bytes } => monitored.sent(*connection, bytes),
                        TcpRequest::Close { connection } => monitored.closed(*connection),
                        TcpRequest::Connect { .. } => {}
                    });
                    if let Some(input) = self.connections.perform(request) {
                        self.input(Input::Session(input));
                    }
                }
                Output::Event(event) => {
                    match &event {
                        PeerEvent::Update(update) => {
                            self.log_problems(update);
                            self.monitor(|monitored| monitored.update(update));
                        }
                        PeerEvent::Stale(stale) => log_stale(stale),
                        _ => {}
                    }
                    let _ = self.events.send(event.into()).await;
                }
                Output::Established(established) => {
                    self.monitor(|monitored| monitored.established(&established));
                    info!(peer = %established.peer_asn, id = %established.peer_id, "BGP session with the router up");
                    self.up_since = Some(unix_now().secs());
                    self.malformed = 0;
                    self.logged_causes.clear();
                    self.last_end.clear();
                    self.problem = None;
                    self.stranger = None;
                    self.last_notification = None;
                    self.view.retry(None);
                }
                Output::Ended(ended) => {
                    self.monitor(|monitored| monitored.ended(&ended.cause));
                    self.log_ended(&ended);
                }
                Output::Failed(ended) => {
                    let reason = self.connect_error.take().filter(|_| matches!(ended.cause, Cause::ConnectFailed));
                    self.last_end = reason.unwrap_or_else(|| ended.cause.to_string());
                    self.log_failed(&ended);
                }
                Output::Rejected(rejected) => {
                    self.view.reject(&rejected);
                    let first = rejected.routes.first().map(|nlri| nlri.prefix.to_string()).unwrap_or_default();
                    warn!(
                        routes = rejected.routes.len(),
                        "routes not announced to {}, the first to {first}: {}; `wayleave why` says what to do",
                        self.router,
                        rejected.error
                    );
                }
                Output::Unsendable(error) => {
                    debug!(%error, "UPDATE not sent: this session cannot carry it");
                }
                Output::EndOfRib(afi) => self.monitor(|monitored| monitored.end_of_rib(afi)),
                Output::RouteRefresh { .. } => {}
            }
        }
    }

    /// Logs why a session ended.
    fn log_ended(&mut self, ended: &Ended) {
        self.last_end = ended.cause.to_string();
        let words = self.describe(ended);
        warn!(cause = %ended.cause, "BGP session with the router down: {words}");
        if let Some(kept) = describe_kept(self.peer.stale(), self.clock.now().instant) {
            info!("the router's routes stay announced: {kept}");
        }
        self.problem = Some(down(&words));
        let is_notified = matches!(ended.cause, Cause::PeerEnded(_) | Cause::PeerErred(_) | Cause::RoleMismatch { .. });
        self.last_notification = is_notified.then_some(words);
    }

    /// What the end of a session, or of an attempt, means, and what to do.
    fn describe(&self, ended: &Ended) -> String {
        let (router, cause) = (&self.router, &self.last_end);
        if let (Cause::UnexpectedAs { announced, .. }, PeerAsn::Exactly(asn)) = (&ended.cause, self.expected) {
            return format!(
                "{router} says {announced}, and [router] asn is {}: correct the one that is wrong (the exchange \
                 knows this member by the AS of its slot)",
                asn.0
            );
        }
        let what = match &ended.cause {
            Cause::RoleMismatch { stated, .. } => describe_role(stated.is_some(), router),
            Cause::ConnectFailed => {
                let at =
                    router.address.map(|address| format!(" ([router] `connect` has {address})")).unwrap_or_default();
                format!("is BGP configured there, for this proxy's address?{at}")
            }
            Cause::PeerErred(notification) => describe_fault(notification, router),
            Cause::PeerEnded(notification) => describe_end(notification, router),
            Cause::HoldTimerExpired | Cause::SendHoldTimerExpired | Cause::ConnectionLost => {
                format!("look at {router}, and at the way to it; the session is tried again")
            }
            _ => return cause.clone(),
        };
        format!("{cause}; {what}")
    }

    /// The router has not been heard of since the start.
    fn miss_router(&mut self) {
        if self.peer.established().is_some() || self.problem.is_some() || self.disabled.is_some() {
            return;
        }
        let Some(at) = &self.awaited_at else { return };
        let words = format!(
            "{} has not opened a BGP session with {at}: see whether this proxy is its neighbour there, with the right address \
             and port, and whether a firewall is on the way",
            self.router
        );
        warn!("{words}");
        self.problem = Some(words);
    }

    /// Logs why there is no session, each cause once until there is one: routers try again and again.
    fn log_failed(&mut self, ended: &Ended) {
        if matches!(ended.cause, Cause::ConnectFailed) && self.connections.is_passive() {
            return;
        }
        let cause = self.last_end.clone();
        let words = self.describe(ended);
        let is_new = self.logged_causes.len() < LOGGED_CAUSES && self.logged_causes.insert(cause.clone());
        if !is_new {
            debug!("no BGP session with the router: {cause}");
        } else if matches!(ended.cause.erred(), Erred::Nobody) {
            info!("no BGP session with the router: {words}");
            return;
        } else {
            warn!("no BGP session with the router: {words}");
        }
        self.problem = Some(match &self.last_notification {
            // That nobody listens or answers where there was a session says less than how it ended.
            Some(last) if ended.cause.erred() == Erred::Network => format!("{}; at present: {cause}", down(last)),
            _ => format!("no BGP session with the router: {words}"),
        });
    }

    /// Logs what was wrong with the first few malformed UPDATEs of a session; the rest is only counted.
    fn log_problems(&mut self, update: &Update) {
        if update.problems.is_empty() {
            return;
        }
        self.malformed += 1;
        if self.malformed <= LOGGED_MALFORMED {
            let what = describe_malformed(&update.problems, update.withdrawn.iter().chain(&update.ignored));
            warn!("malformed UPDATE from {}: {what}; the session stays up (RFC 7606)", self.router);
        }
        if self.malformed == LOGGED_MALFORMED {
            warn!("further malformed UPDATEs of this session are counted and not logged");
        }
    }

    /// That there is no session, before anything is known of why.
    fn missing(&self) -> String {
        match &self.awaited_at {
            Some(at) => down(&format!("{} has not connected to {at} yet", self.router)),
            None => down(&format!("this proxy has not reached {} yet", self.router)),
        }
    }

    /// Why there is no session, also that somebody else was refused, who may be the router at another address.
    fn problem(&self) -> Option<String> {
        let Some(stranger) = self.stranger.filter(|_| self.peer.established().is_none()) else {
            return self.problem.clone();
        };
        let problem = self.problem.clone().unwrap_or_else(|| self.missing());
        Some(format!(
            "{problem}; a BGP connection from {stranger} was refused: [router] `address` (with a password also `connect`) names another router"
        ))
    }

    /// Until when which of the router's routes are kept, in seconds since 1970.
    fn stale(&self) -> Vec<Value> {
        let (now, unix) = (self.clock.now().instant, unix_now().secs());
        let shown = |(afi, until, is_long_lived): (Afi, Instant, bool)| json!({ "family": afi, "until": unix + until.since(now).as_secs(), "long_lived": is_long_lived });
        self.peer.stale().map(shown).collect()
    }

    /// Publishes the state for views.
    fn publish(&self) {
        let up = self.peer.established();
        let disabled = self.disabled.as_deref().map(describe_disabled);
        let counters = self.peer.counters();
        self.view.set(json!({
            "peer": "router",
            "up": up.is_some(),
            "state": self.peer.state().to_string(),
            "asn": up.map(|up| up.peer_asn.0),
            "router_id": up.map(|up| up.peer_id.to_string()),
            "protection": self.protection,
            "hold_time": up.map(|up| up.hold_time.secs()),
            "role": up.and_then(|up| up.peer_role()).map(Role::name),
            "add_path": up.map(|up| up.params.add_path_send),
            "stale": self.stale(),
            "extended_messages": up.map(|up| up.params.extended_message),
            "disabled": self.disabled,
            "announced": self.peer.adj_rib_out().len(),
            "problem": disabled.or_else(|| self.problem()),
            "missing": up.is_none().then(|| self.missing()),
            "last_end": (!self.last_end.is_empty()).then_some(&self.last_end),
            "refused_lines_not_logged": self.strangers.suppressed(),
            "up_since": up.and(self.up_since),
            "octets_received": counters.octets_received,
            "octets_sent": counters.octets_sent,
            "counters": counters,
        }));
    }
}

/// That the operator has disabled the session.
fn describe_disabled(text: &str) -> String {
    let text = if text.is_empty() { String::new() } else { format!(": {text:?}") };
    format!(
        "the BGP session with the router is disabled by its operator{text}; `wayleave session enable` takes it up again"
    )
}

/// Says what became of routes that were kept.
fn log_stale(stale: &Stale) {
    match stale {
        Stale::Kept(_) => {} // told with the end of the session
        Stale::LongLived(afi) => info!(
            "the router's {afi} routes stay announced as long-lived stale ones, with LLGR_STALE (RFC 9494); those with NO_LLGR are withdrawn"
        ),
        Stale::Gone(afi) => info!("the router's {afi} routes that it has not announced again are withdrawn"),
    }
}

/// For how long routes of a session that was lost stay, if any do.
fn describe_kept(stale: impl Iterator<Item = (Afi, Instant, bool)>, now: Instant) -> Option<String> {
    let words: Vec<String> = stale
        .map(|(afi, until, is_long_lived)| {
            let what = if is_long_lived {
                "long-lived stale ones (RFC 9494)"
            } else {
                "stale ones while it may restart (RFC 4724)"
            };
            format!("{afi} for {} s, as {what}", until.since(now).as_secs())
        })
        .collect();
    (!words.is_empty()).then(|| words.join(", "))
}

/// That a session has ended, and what that means.
fn down(words: &str) -> String {
    format!("the BGP session with the router is down: {words}")
}

#[cfg(test)]
mod tests {
    use wayleave_bgp::Notification;
    use wayleave_runtime::bgp_tcp::TcpOptions;

    use super::*;

    /// A driver that connects to an address where nobody listens; what it tells the machine goes nowhere.
    async fn driver() -> Driver<PeerEvent> {
        let (to, _tcp) = mpsc::channel(1);
        let (events, _inbox) = mpsc::channel::<PeerEvent>(1);
        let connect = Some("127.0.0.1:1".parse().expect("an address"));
        let endpoint = Endpoint { listen: None, connect, options: TcpOptions::default() };
        let config = wayleave_member::router_session(
            wayleave_core::Asn(64_496),
            [192, 0, 2, 101].into(),
            wayleave_core::Asn(64_497),
        );
        let clock = Clock::start();
        Driver {
            router: RouterLabel { address: Some([192, 0, 2, 1].into()) },
            monitored: None,
            expected: config.peer_asn,
            peer: peer::Peer::new(config, 0, clock.now()),
            connections: PeerTcp::open(endpoint, to).await.expect("nothing is opened yet"),
            clock,
            events,
            routes: RouteQueue::default(),
            view: PeerView::default(),
            protection: String::new(),
            disabled: None,
            last_end: String::new(),
            problem: None,
            last_notification: None,
            awaited_at: None,
            connect_error: None,
            malformed: 0,
            logged_causes: BTreeSet::new(),
            strangers: LogLimit::default(),
            up_since: None,
            stranger: None,
        }
    }

    /// Ticket 2 of the guide, where the proxy connects to the router: the next attempt finds nobody who listens.
    #[tokio::test]
    async fn why_a_session_ended_stays_beside_why_the_next_attempt_fails() {
        let mut driver = driver().await;
        assert_eq!(driver.problem(), None);
        assert!(driver.missing().ends_with("this proxy has not reached the router at 192.0.2.1 yet"));
        driver.awaited_at = Some("192.0.2.101:179".to_owned());
        driver.stranger = Some([192, 0, 2, 2].into());
        let problem = driver.problem().expect("a problem");
        assert!(problem.contains("the router at 192.0.2.1 has not connected to 192.0.2.101:179 yet"), "{problem}");
        assert!(problem.contains("from 192.0.2.2 was refused: [router] `address`"), "{problem}");
        (driver.awaited_at, driver.stranger) = (None, None);
        let failed =
            Ended { connection: None, state: session::State::Connect, cause: Cause::ConnectFailed, retain: None };
        let fail = |driver: &mut Driver<_>| {
            driver.last_end = "cannot connect: Connection refused (os error 111)".to_owned();
            driver.log_failed(&failed);
            driver.problem.take().expect("a problem")
        };
        let problem = fail(&mut driver);
        assert!(problem.contains("Connection refused") && problem.contains("is BGP configured there"), "{problem}");
        let shutdown = Notification { code: 6, subcode: 2, data: Vec::new() };
        let state = session::State::Established;
        driver.log_ended(&Ended { connection: None, state, cause: Cause::PeerEnded(shutdown), retain: None });
        let problem = fail(&mut driver);
        assert!(
            problem.starts_with("the BGP session with the router is down: the peer ended the session: "),
            "{problem}"
        );
        assert!(problem.contains("whoever runs the router at 192.0.2.1 did that"), "{problem}");
        assert!(problem.ends_with("; at present: cannot connect: Connection refused (os error 111)"), "{problem}");
    }

    #[tokio::test]
    async fn a_session_that_is_disabled_stays_so_until_it_is_enabled_and_says_by_whom_and_why() {
        let mut driver = driver().await;
        driver.order(Order::Disable("back at \"4\"".to_owned())).await.expect("carried out");
        driver.miss_router();
        driver.publish();
        let shown = driver.view.json();
        let words = "the BGP session with the router is disabled by its operator: \"back at \\\"4\\\"\"; `wayleave session \
                     enable` takes it up again";
        assert_eq!((&shown["problem"], &shown["disabled"]), (&json!(words), &json!("back at \"4\"")), "{shown:#}");
        for order in [Order::Refresh, Order::Clear] {
            let why = driver.order(order).await.expect_err("it is disabled");
            assert!(why.contains("`wayleave session enable`"), "{why}");
        }
        let done = driver.order(Order::Enable).await.expect("carried out");
        assert_eq!((&done["was_up"], &done["disabled"]), (&json!(false), &Value::Null));
        driver.publish();
        assert_eq!((&driver.view.json()["problem"], &driver.view.json()["disabled"]), (&Value::Null, &Value::Null));
        assert!(driver.order(Order::Enable).await.expect_err("it is not disabled").contains("not disabled"));
        assert!(driver.order(Order::Refresh).await.expect_err("it is down").contains("no session"));
        let done = driver.order(Order::Clear).await.expect("nothing to be done");
        assert_eq!(done["was_up"], false);
        driver.order(Order::Disable(String::new())).await.expect("carried out");
        driver.publish();
        let shown = driver.view.json();
        assert!(shown["problem"].as_str().is_some_and(|said| said.contains("by its operator; ")), "{shown:#}");
    }

    #[test]
    fn a_text_for_the_routers_operator_is_one_line_of_255_octets_at_most() {
        assert_eq!(check_message(&"ä".repeat(127)), Ok(()));
        assert!(check_message(&"ä".repeat(128)).expect_err("too long").contains("256 octets"));
        assert!(check_message("a\nb").expect_err("two lines").contains("control character '\\n'"));
    }

    #[tokio::test]
    async fn a_router_of_another_role_is_told_which_it_has_and_what_to_set() {
        let driver = driver().await;
        let words = |stated: Option<u8>| {
            let notification = wayleave_bgp::Notification::new(2, 11);
            let cause = Cause::RoleMismatch { stated, expected: Role::RouteServerClient, notification };
            driver.describe(&Ended { connection: None, state: session::State::OpenSent, cause, retain: None })
        };
        assert!(words(Some(4)).contains("say so there (BIRD: `local role rs_client;`"), "{}", words(Some(4)));
        assert!(words(None).contains("take `strict_role` out of [router]"), "{}", words(None));
    }

    #[test]
    fn the_latest_route_of_a_prefix_takes_the_place_of_the_one_that_waits() {
        let queue = RouteQueue::default();
        let prefix = |text: &str| text.parse::<Prefix>().expect("a prefix");
        let (a, b) = (prefix("192.0.2.0/25"), prefix("192.0.2.128/25"));
        let mut attributes = wayleave_bgp::AttributesEditor::default();
        attributes.local_pref(Some(7));
        let attributes = attributes.finish();
        queue.set(a, Some(attributes.clone()));
        queue.set(b, None);
        queue.set(a, None);
        queue.set(b, Some(attributes.clone()));
        assert_eq!(queue.take().collect::<Vec<_>>(), [(a, vec![]), (b, vec![(0, attributes.clone())])]);
        let paths = vec![(2, attributes.clone()), (1, attributes)];
        queue.set(a, None);
        queue.set_paths(a, paths.clone());
        assert_eq!(queue.take().collect::<Vec<_>>(), [(a, paths)]);
        assert_eq!(queue.take().count(), 0);
    }

    #[test]
    fn a_route_that_the_session_cannot_carry_is_known_until_another_one_is_due() {
        let view = PeerView::default();
        let prefix = |text: &str| text.parse::<Prefix>().expect("a prefix");
        let (a, b) = (prefix("192.0.2.0/25"), prefix("192.0.2.128/25"));
        let error = wayleave_bgp::EncodeError::TooLong { need: 5_000, most: 4_096 };
        let attributes = Arc::new(wayleave_bgp::AttributesEditor::default().finish());
        let rejected = |prefix, path_id| RejectedRoutes {
            routes: vec![Nlri { prefix, path_id }],
            attributes: attributes.clone(),
            error,
        };
        view.reject(&rejected(a, 0));
        view.reject(&rejected(b, 3));
        assert!(
            view.rejected(a, 2)
                .is_some_and(|why| why.to_string().contains("5000 octets exceeds the session's limit of 4096"))
        );
        view.retry(Some(&a));
        assert_eq!((view.rejected(a, 2), view.rejected(b, 3).is_some()), (None, true));
        assert_eq!(view.rejected(b, 2), None, "with several paths one of them is concerned");
        view.retry(None);
        assert_eq!(view.rejected(b, 3), None);
    }
}
