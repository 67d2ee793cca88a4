//! The driver of one BGP peer: TCP, the clock, the log and the view, around [`wayleave_bgp::peer`].

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::sleep_until;
use tracing::{debug, info, warn};
pub use wayleave_bgp::peer::PeerEvent;
use wayleave_bgp::peer::{self, Input, Output, TcpRequest};
use wayleave_bgp::session::{self, Config, ConnectionId, Ended, Stop, StopReason};
use wayleave_bgp::{Attributes, Update};
use wayleave_core::{Machine, Prefix};
use wayleave_runtime::Clock;
use wayleave_runtime::bgp_tcp::{Sockets, TcpEvent, TcpOptions};

/// TCP events that may wait.
const QUEUE: usize = 256;
/// How long a stop may take.
const FAREWELL: Duration = Duration::from_millis(300);
/// Malformed UPDATEs of one session that are told in the log.
const MALFORMED_SAID: u32 = 10;
/// Causes for want of a session that are told in the log.
const CAUSES_SAID: usize = 16;
/// How often unused attributes are let go.
const SWEEP: Duration = Duration::from_secs(60);

/// Where the peer is.
#[derive(Clone, Debug)]
pub struct Place {
    /// Wait for it here.
    pub listen: Option<SocketAddr>,
    /// Connect to it there.
    pub connect: Option<SocketAddr>,
    /// Nobody else may connect.
    pub only: Option<IpAddr>,
    pub options: TcpOptions,
}

/// What the peer's driver is told.
#[derive(Debug)]
pub enum Command {
    /// The peer is to have this route, or none for the prefix.
    Route { prefix: Prefix, attributes: Option<Attributes> },
    /// Send this once, if the session stands; forget it otherwise.
    Once(Box<Update>),
    /// End the session and the driver.
    Stop,
}

/// What a view shows of the peer.
#[derive(Clone, Debug, Default)]
pub struct PeerView(Arc<Mutex<Value>>);

impl PeerView {
    /// The state as JSON.
    pub fn show(&self) -> Value {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, value: Value) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = value;
    }
}

/// A running driver.
pub struct Peer {
    /// Routes; never waits.
    pub commands: mpsc::UnboundedSender<Command>,
    /// UPDATEs that are sent once; waits while the peer reads slower than they come.
    pub replay: mpsc::Sender<Command>,
    pub view: PeerView,
    /// Where it listens, if it does.
    pub address: Option<SocketAddr>,
    task: tokio::task::JoinHandle<()>,
}

impl Peer {
    /// Starts the driver of a session with `config`; what the peer does goes to `events`.
    pub async fn start<E>(config: Config, place: Place, clock: Clock, events: mpsc::Sender<E>) -> std::io::Result<Self>
    where
        E: From<PeerEvent> + Send + 'static,
    {
        let (to, tcp) = mpsc::channel(QUEUE);
        let mut sockets = Sockets::new(to, place.options);
        let address = match place.listen {
            Some(address) => Some(sockets.listen(address).await?),
            None => None,
        };
        let (commands, told) = mpsc::unbounded_channel();
        let (replay, replayed) = mpsc::channel(64);
        let view = PeerView::default();
        let mut seed = [0u8; 8];
        getrandom::fill(&mut seed).map_err(std::io::Error::other)?;
        let driver = Driver {
            peer: peer::Peer::new(config, u64::from_be_bytes(seed), clock.now()),
            place,
            clock,
            sockets,
            events,
            view: view.clone(),
            last_end: String::new(),
            malformed: 0,
            causes_said: BTreeSet::new(),
        };
        let task = tokio::spawn(driver.run(tcp, told, replayed));
        Ok(Self { commands, replay, view, address, task })
    }

    /// Ends the session with a farewell to the peer.
    pub async fn stop(self) {
        let _ = self.commands.send(Command::Stop);
        let _ = self.task.await;
    }
}

struct Driver<E> {
    peer: peer::Peer,
    place: Place,
    clock: Clock,
    sockets: Sockets<TcpEvent>,
    events: mpsc::Sender<E>,
    view: PeerView,
    last_end: String,
    malformed: u32,
    causes_said: BTreeSet<String>,
}

impl<E: From<PeerEvent>> Driver<E> {
    async fn run(
        mut self,
        mut tcp: mpsc::Receiver<TcpEvent>,
        mut told: mpsc::UnboundedReceiver<Command>,
        mut replayed: mpsc::Receiver<Command>,
    ) {
        self.handle(session::Input::Start).await;
        let mut sweep = tokio::time::interval(SWEEP);
        loop {
            let deadline = self.peer.deadline();
            let due = deadline.map_or_else(tokio::time::Instant::now, |at| self.clock.at(at));
            let writable = self.peer.is_writable();
            tokio::select! {
                event = tcp.recv() => match event {
                    Some(event) => self.tcp(event).await,
                    None => return,
                },
                command = told.recv() => match command {
                    Some(Command::Stop) | None => break,
                    Some(command) => self.told(command),
                },
                command = replayed.recv(), if writable => if let Some(command) = command { self.told(command) },
                () = sleep_until(due), if deadline.is_some() => self.peer.handle_timeout(self.clock.now()),
                _ = sweep.tick() => self.peer.sweep(),
            }
            // Take along what is there already, so that routes share messages.
            while let Ok(command) = told.try_recv() {
                if matches!(command, Command::Stop) {
                    return self.stop().await;
                }
                self.told(command);
            }
            self.act().await;
            self.show();
        }
        self.stop().await;
    }

    async fn stop(mut self) {
        let reason = StopReason::Shutdown("wayleave is stopping".to_owned());
        self.handle(session::Input::Stop(Stop { administrative: true, reason })).await;
        tokio::time::sleep(FAREWELL).await;
    }

    async fn handle(&mut self, input: session::Input) {
        self.peer.handle(Input::Session(input), self.clock.now());
        self.act().await;
    }

    async fn tcp(&mut self, event: TcpEvent) {
        match event {
            TcpEvent::Accepted { connection, address } => {
                let ip = address.ip().to_canonical();
                if self.place.only.is_some_and(|only| only != ip) {
                    warn!(%address, "a BGP connection from an address that is not the router's, refused");
                    self.sockets.close(connection);
                    return;
                }
                debug!(%address, "the router connected");
                self.handle(session::Input::Connected { connection: ConnectionId(connection), outgoing: false }).await;
            }
            TcpEvent::Connected { connection, .. } => {
                self.handle(session::Input::Connected { connection: ConnectionId(connection), outgoing: true }).await;
            }
            TcpEvent::ConnectFailed { attempt, error } => {
                self.last_end = format!("cannot connect: {error}");
                self.handle(session::Input::ConnectFailed { attempt }).await;
            }
            TcpEvent::Bytes { connection, bytes } => {
                self.handle(session::Input::Bytes { connection: ConnectionId(connection), bytes }).await;
            }
            TcpEvent::Closed { connection } => {
                self.handle(session::Input::Closed { connection: ConnectionId(connection) }).await;
            }
            TcpEvent::Writable { connection } => {
                self.handle(session::Input::Writable { connection: ConnectionId(connection) }).await;
            }
        }
    }

    fn told(&mut self, command: Command) {
        let input = match command {
            Command::Route { prefix, attributes } => Input::Route { prefix, attributes },
            Command::Once(update) => Input::Once(update),
            Command::Stop => return,
        };
        self.peer.handle(input, self.clock.now());
    }

    /// Does what the peer wants done.
    async fn act(&mut self) {
        while let Some(output) = self.peer.poll() {
            match output {
                Output::Tcp(request) => self.request(request),
                Output::Event(event) => {
                    if let PeerEvent::Update(update) = &event {
                        self.note_problems(update);
                    }
                    let _ = self.events.send(event.into()).await;
                }
                Output::Established(established) => {
                    info!(peer = %established.peer_asn, id = %established.peer_id, "BGP session up");
                    self.malformed = 0;
                    self.causes_said.clear();
                    self.last_end.clear();
                }
                Output::Ended(ended) => {
                    warn!(cause = %ended.cause, "BGP session down");
                    self.last_end = ended.cause.to_string();
                }
                Output::Failed(ended) => {
                    self.last_end = ended.cause.to_string();
                    self.note_failed(&ended);
                }
                Output::Rejected(rejected) => {
                    warn!(error = %rejected.error, routes = rejected.routes.len(), "routes that this session cannot carry");
                }
                Output::Unsendable(error) => {
                    debug!(%error, "an UPDATE that this session cannot carry is left out");
                }
                Output::EndOfRib(_) | Output::RouteRefresh { .. } => {}
            }
        }
    }

    fn request(&mut self, request: TcpRequest) {
        match request {
            TcpRequest::Connect { attempt } => match self.place.connect {
                Some(to) => self.sockets.connect(attempt, to),
                None => self.session(session::Input::ConnectFailed { attempt }),
            },
            TcpRequest::Send { connection, bytes } => {
                if !self.sockets.send(connection.0, bytes) {
                    self.session(session::Input::Blocked { connection });
                }
            }
            TcpRequest::Close { connection } => self.sockets.close(connection.0),
        }
    }

    fn session(&mut self, input: session::Input) {
        self.peer.handle(Input::Session(input), self.clock.now());
    }

    /// Says why there is no session, each cause once until there is one: a router tries again and again.
    fn note_failed(&mut self, ended: &Ended) {
        let is_new = self.causes_said.len() < CAUSES_SAID && self.causes_said.insert(ended.cause.to_string());
        if is_new {
            info!(cause = %ended.cause, "no BGP session");
        } else {
            debug!(cause = %ended.cause, "no BGP session");
        }
    }

    /// Says what was wrong with the first few malformed UPDATEs of a session; the rest is only counted.
    fn note_problems(&mut self, update: &Update) {
        if update.problems.is_empty() {
            return;
        }
        self.malformed += 1;
        if self.malformed <= MALFORMED_SAID {
            let problems: Vec<String> = update.problems.iter().take(4).map(|problem| format!("{problem:?}")).collect();
            warn!(problems = problems.join(", "), "a malformed UPDATE; the session stays (RFC 7606)");
        }
        if self.malformed == MALFORMED_SAID {
            warn!("further malformed UPDATEs of this session are counted and not told");
        }
    }

    fn show(&self) {
        let up = self.peer.established();
        self.view.set(json!({
            "peer": "router",
            "up": up.is_some(),
            "state": self.peer.state().to_string(),
            "asn": up.map(|up| up.peer_asn.0),
            "router_id": up.map(|up| up.peer_id.to_string()),
            "hold_time": up.map(|up| up.hold_time.secs()),
            "announced": self.peer.adj_rib_out().len(),
            "last_end": (!self.last_end.is_empty()).then_some(&self.last_end),
            "counters": self.peer.counters(),
        }));
    }
}
