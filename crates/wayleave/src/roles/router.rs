//! One BGP peer: the driver of a session and what is announced over it.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::sleep_until;
use tracing::{debug, info, warn};
use wayleave_bgp::rib::{AdjRibOut, AttributePool};
use wayleave_bgp::session::{Config, ConnectionId, Ended, Established, Input, Output, Session, Stop, StopReason};
use wayleave_bgp::{Attributes, Nlri, RefreshKind, Update, encode_updates};
use wayleave_core::{Afi, Machine, Prefix};
use wayleave_runtime::Clock;
use wayleave_runtime::bgp_tcp::{Sockets, TcpEvent, TcpOptions};

/// Routes that one batch of messages holds at most.
const BATCH: usize = 20_000;
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

/// What the peer did.
#[derive(Debug)]
pub enum PeerEvent {
    Up,
    Down,
    Update(Box<Update>),
    /// Of all agreed families.
    EndOfRib,
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
            session: Session::new(config, u64::from_be_bytes(seed)),
            out: AdjRibOut::new(),
            pool: AttributePool::new(),
            place,
            clock,
            sockets,
            events,
            view: view.clone(),
            established: None,
            awaited: Vec::new(),
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
    session: Session,
    out: AdjRibOut,
    pool: AttributePool,
    place: Place,
    clock: Clock,
    sockets: Sockets<TcpEvent>,
    events: mpsc::Sender<E>,
    view: PeerView,
    established: Option<Established>,
    /// Families whose End-of-RIB has not come.
    awaited: Vec<Afi>,
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
        self.handle(Input::Start).await;
        let mut sweep = tokio::time::interval(SWEEP);
        loop {
            let deadline = self.session.deadline();
            let due = deadline.map_or_else(tokio::time::Instant::now, |at| self.clock.at(at));
            let writable = self.session.is_writable();
            tokio::select! {
                event = tcp.recv() => match event {
                    Some(event) => self.tcp(event).await,
                    None => return,
                },
                command = told.recv() => match command {
                    Some(Command::Stop) | None => break,
                    Some(command) => self.told(command).await,
                },
                command = replayed.recv(), if writable => if let Some(command) = command { self.told(command).await },
                () = sleep_until(due), if deadline.is_some() => {
                    let now = self.clock.now();
                    self.session.handle_timeout(now);
                    self.act().await;
                }
                _ = sweep.tick() => self.pool.sweep(),
            }
            // Take along what is there already, so that routes share messages.
            while let Ok(command) = told.try_recv() {
                if matches!(command, Command::Stop) {
                    return self.stop().await;
                }
                self.told(command).await;
            }
            self.flush().await;
            self.show();
        }
        self.stop().await;
    }

    async fn stop(mut self) {
        let reason = StopReason::Shutdown("wayleave is stopping".to_owned());
        self.handle(Input::Stop(Stop { administrative: true, reason })).await;
        tokio::time::sleep(FAREWELL).await;
    }

    async fn handle(&mut self, input: Input) {
        self.session.handle(input, self.clock.now());
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
                self.handle(Input::Connected { connection: ConnectionId(connection), outgoing: false }).await;
            }
            TcpEvent::Connected { connection, .. } => {
                self.handle(Input::Connected { connection: ConnectionId(connection), outgoing: true }).await;
            }
            TcpEvent::ConnectFailed { attempt, error } => {
                self.last_end = format!("cannot connect: {error}");
                self.handle(Input::ConnectFailed { attempt }).await;
            }
            TcpEvent::Bytes { connection, bytes } => {
                self.handle(Input::Bytes { connection: ConnectionId(connection), bytes }).await;
            }
            TcpEvent::Closed { connection } => {
                self.handle(Input::Closed { connection: ConnectionId(connection) }).await;
            }
            TcpEvent::Writable { connection } => {
                self.handle(Input::Writable { connection: ConnectionId(connection) }).await;
            }
        }
    }

    async fn told(&mut self, command: Command) {
        match command {
            Command::Route { prefix, attributes: Some(attributes) } => {
                let attributes = self.pool.intern(attributes);
                self.out.announce(Nlri::new(prefix), attributes);
            }
            Command::Route { prefix, attributes: None } => self.out.withdraw(&Nlri::new(prefix)),
            Command::Once(update) => {
                let Some(established) = &self.established else { return };
                let params = &established.params;
                match encode_updates(update.attributes.as_ref(), &update.announced, &update.withdrawn, params) {
                    Ok(messages) => self.handle(Input::Send(messages)).await,
                    Err(error) => debug!(%error, "an UPDATE that this session cannot carry is left out"),
                }
            }
            Command::Stop => {}
        }
    }

    /// Does what the session wants done.
    async fn act(&mut self) {
        while let Some(output) = self.session.poll() {
            match output {
                Output::Connect { attempt } => match self.place.connect {
                    Some(to) => self.sockets.connect(attempt, to),
                    None => self.session.handle(Input::ConnectFailed { attempt }, self.clock.now()),
                },
                Output::Send { connection, bytes } => {
                    if !self.sockets.send(connection.0, bytes) {
                        self.session.handle(Input::Blocked { connection }, self.clock.now());
                    }
                }
                Output::Close { connection } => self.sockets.close(connection.0),
                Output::Up(established) => self.up(*established).await,
                Output::Down(ended) => self.down(&ended).await,
                Output::Failed(ended) => {
                    self.last_end = ended.cause.to_string();
                    self.note_failed(&ended);
                }
                Output::Update(update) => {
                    if !update.problems.is_empty() {
                        self.note_problems(&update);
                    }
                    self.tell(PeerEvent::Update(update)).await;
                }
                Output::RouteRefresh { afi, kind } => {
                    let marked = self.established.as_ref().is_some_and(|up| up.enhanced_route_refresh);
                    if kind == RefreshKind::Request {
                        self.out.refresh(afi, marked);
                    }
                }
                Output::EndOfRib(afi) => {
                    self.awaited.retain(|awaited| *awaited != afi);
                    if self.awaited.is_empty() {
                        self.tell(PeerEvent::EndOfRib).await;
                    }
                }
            }
        }
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
        self.malformed += 1;
        if self.malformed <= MALFORMED_SAID {
            let problems: Vec<String> = update.problems.iter().take(4).map(|problem| format!("{problem:?}")).collect();
            warn!(problems = problems.join(", "), "a malformed UPDATE; the session stays (RFC 7606)");
        }
        if self.malformed == MALFORMED_SAID {
            warn!("further malformed UPDATEs of this session are counted and not told");
        }
    }

    async fn up(&mut self, established: Established) {
        info!(peer = %established.peer_asn, id = %established.peer_id, "BGP session up");
        let params = &established.params;
        self.awaited = [Afi::Ipv4, Afi::Ipv6].into_iter().filter(|afi| params.has_family(*afi)).collect();
        self.out.session_up(established.params, established.end_of_rib);
        self.established = Some(established);
        self.malformed = 0;
        self.causes_said.clear();
        self.last_end.clear();
        self.tell(PeerEvent::Up).await;
    }

    async fn down(&mut self, ended: &Ended) {
        warn!(cause = %ended.cause, "BGP session down");
        self.last_end = ended.cause.to_string();
        self.out.session_down();
        self.established = None;
        self.tell(PeerEvent::Down).await;
    }

    async fn tell(&self, event: PeerEvent) {
        let _ = self.events.send(event.into()).await;
    }

    /// Sends routes as long as the peer takes them.
    async fn flush(&mut self) {
        while self.session.is_writable() && self.out.is_due() {
            let batch = self.out.next_batch(BATCH);
            for rejected in &batch.rejected {
                warn!(error = %rejected.error, routes = rejected.routes.len(), "routes that this session cannot carry");
            }
            self.handle(Input::Send(batch.messages)).await;
        }
    }

    fn show(&self) {
        let counters = self.session.counters();
        self.view.set(json!({
            "peer": "router",
            "up": self.established.is_some(),
            "state": self.session.state().to_string(),
            "asn": self.established.as_ref().map(|up| up.peer_asn.0),
            "router_id": self.established.as_ref().map(|up| up.peer_id.to_string()),
            "hold_time": self.established.as_ref().map(|up| up.hold_time.secs()),
            "announced": self.out.len(),
            "last_end": (!self.last_end.is_empty()).then_some(&self.last_end),
            "counters": counters,
        }));
    }
}
