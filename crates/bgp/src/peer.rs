//! One BGP peer: its session and the routes that it is to have. Every role and the laboratory drive this machine.
//!
//! The driver owns sockets and clock. A daemon's driver does [`TcpRequest`]s with TCP, the laboratory's with pipes in
//! memory. Routes wait in the Adj-RIB-Out until [`Machine::poll`] finds nothing else to do, so that routes handed in
//! before it share messages.
//!
//! [`Peer::new`] has a session of its own. The session of a [`Peer::relay`] repeats the OPEN of another peer, which is
//! not known before that one has connected: [`Input::Begin`] starts one session, each with a configuration of its own.

use std::collections::VecDeque;
use std::sync::Arc;

use wayleave_core::{Afi, Instant, Machine, Now, Prefix};

use crate::rib::{AdjRibOut, AttributePool, RejectedRoutes};
use crate::session::{self, Config, ConnectionId, Counters, Ended, Established, Session, State};
use crate::{Attributes, EncodeError, Nlri, RefreshKind, Update, encode_updates};

mod stale;

pub use stale::Stale;
use stale::StaleTimers;

/// Routes in one batch of messages, at most. A larger batch packs better; a smaller one keeps less memory in flight.
const BATCH: usize = 20_000;

const FAMILIES: [Afi; 2] = [Afi::Ipv4, Afi::Ipv6];

/// What a peer's driver and the protocol behind it hand in.
#[derive(Debug)]
pub enum Input {
    /// For the session; ignored by a relay that has none.
    Session(session::Input),
    /// Starts the session of a [`Peer::relay`] on a connection that stands. With a session already, or without being a
    /// relay, the connection is closed.
    Begin(Box<Begin>),
    /// The peer is to have this route, or none for the prefix. Equal attributes are kept once.
    Route { prefix: Prefix, attributes: Option<Attributes> },
    /// The peer is to have these routes to the prefix, by path identifier, the best first, and no others (RFC 7911); without ADD-PATH
    /// it gets the first. Equal attributes are kept once.
    Paths { prefix: Prefix, paths: Vec<(u32, Attributes)> },
    /// As [`Input::Route`], by prefix and path identifier, with attributes that the caller shares between peers.
    Path { nlri: Nlri, attributes: Option<Arc<Attributes>> },
    /// Send this UPDATE once if the session is up; drop it otherwise.
    Once(Box<Update>),
    /// Send End-of-RIB once all routes that are due have been sent; dropped when the session ends. Only a relay needs
    /// it: a session of [`Peer::new`] sends End-of-RIB after its initial table.
    EndOfRib(Afi),
}

/// How the session of a [`Peer::relay`] begins.
#[derive(Debug)]
pub struct Begin {
    /// Towards the peer; passive, since the connection stands already.
    pub config: Config,
    /// For the jitter of its timers.
    pub seed: u64,
    /// The connection, whichever side opened it.
    pub connection: ConnectionId,
    /// What the peer has sent on it so far: most often its OPEN.
    pub received: Vec<u8>,
}

/// What the driver is to do with TCP connections.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TcpRequest {
    /// Open a connection, as in [`session::Output::Connect`]; `attempt` rises by one each time.
    Connect { attempt: u64 },
    /// Send one whole message or more. A driver that cannot take more answers with [`session::Input::Blocked`].
    Send { connection: ConnectionId, bytes: Vec<u8> },
    /// Close the connection once what was sent is out.
    Close { connection: ConnectionId },
}

/// What the peer did, for the protocol behind it.
#[derive(Debug)]
pub enum PeerEvent {
    /// The session is up.
    Up,
    /// The session is down: what the peer announced is gone.
    Down,
    /// An UPDATE, after RFC 7606.
    Update(Box<Update>),
    /// The peer has sent all routes of all agreed families. What is stale then is gone.
    EndOfRib,
    /// What becomes of the peer's routes after a loss of the session. Only with [`Config::keeps`].
    Stale(Stale),
}

/// What a peer asks of its driver, and reports.
#[derive(Debug)]
pub enum Output {
    Tcp(TcpRequest),
    /// For the protocol behind the peer.
    Event(PeerEvent),
    /// The session is up; [`PeerEvent::Up`] follows.
    Established(Box<Established>),
    /// The session went down; [`PeerEvent::Down`] follows.
    Ended(Ended),
    /// A connection, or an attempt to connect, ended before the session was up.
    Failed(Ended),
    /// Routes that this session cannot carry.
    Rejected(RejectedRoutes),
    /// An [`Input::Once`] that this session cannot carry.
    Unsendable(EncodeError),
    /// The peer has sent all routes of this family; [`PeerEvent::EndOfRib`] follows the last agreed family's.
    EndOfRib(Afi),
    /// The peer asked for all routes of the family, which are due again from here on, or marked the begin or end of its
    /// answer to such a request (RFC 7313).
    RouteRefresh {
        afi: Afi,
        kind: RefreshKind,
    },
}

/// The session with one peer and what is announced over it.
pub struct Peer {
    /// `None` only in a relay, between two sessions.
    session: Option<Session>,
    is_relay: bool,
    /// Of a relay's sessions that are over.
    past: Counters,
    out: AdjRibOut,
    pool: AttributePool,
    established: Option<Established>,
    /// Families whose End-of-RIB has not come.
    awaited: Vec<Afi>,
    /// Of what the peer announced before it was lost.
    stale: StaleTimers,
    /// Families whose End-of-RIB [`Input::EndOfRib`] wants sent, IPv4 then IPv6.
    owed_end_of_rib: [bool; 2],
    outputs: VecDeque<Output>,
    now: Now,
}

impl Peer {
    /// A peer in Idle at `now`; `seed` feeds the jitter of its session's timers.
    #[must_use]
    pub fn new(config: Config, seed: u64, now: Now) -> Self {
        Self::with(Some(Session::new(config, seed)), now)
    }

    /// A peer without a session until [`Input::Begin`]. It never connects by itself, an ended session is not restarted,
    /// and End-of-RIB is sent only as [`Input::EndOfRib`] says. Routes and counters outlive its sessions.
    #[must_use]
    pub fn relay(now: Now) -> Self {
        Self::with(None, now)
    }

    fn with(session: Option<Session>, now: Now) -> Self {
        Self {
            is_relay: session.is_none(),
            session,
            past: Counters::default(),
            out: AdjRibOut::new(),
            pool: AttributePool::new(),
            established: None,
            awaited: Vec::new(),
            stale: StaleTimers::default(),
            owed_end_of_rib: [false; 2],
            outputs: VecDeque::new(),
            now,
        }
    }

    /// What both ends agreed on, while the session is up.
    #[must_use]
    pub fn established(&self) -> Option<&Established> {
        self.established.as_ref()
    }

    /// The session's state; Idle in a relay that has none.
    #[must_use]
    pub fn state(&self) -> State {
        self.session.as_ref().map_or(State::Idle, Session::state)
    }

    /// Whether there is a session, in whatever state: always, but in a relay.
    #[must_use]
    pub fn has_session(&self) -> bool {
        self.session.is_some()
    }

    /// What its sessions have counted.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let mut counters = self.past;
        if let Some(session) = &self.session {
            counters += *session.counters();
        }
        counters
    }

    /// Whether the session is up and takes messages.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.session.as_ref().is_some_and(Session::is_writable)
    }

    /// Whether the session takes messages and there are routes or marks to send: [`Machine::poll`] has more outputs.
    #[must_use]
    pub fn is_due(&self) -> bool {
        let owes = self.out.is_due() || self.owed_end_of_rib != [false; 2];
        owes && self.established.is_some() && self.is_writable()
    }

    /// The routes that the peer is to have.
    #[must_use]
    pub fn adj_rib_out(&self) -> &AdjRibOut {
        &self.out
    }

    /// Frees attributes that no route has any more; to be called now and then.
    pub fn sweep(&mut self) {
        self.pool.sweep();
    }

    fn session(&mut self, input: session::Input) {
        if let Some(session) = &mut self.session {
            session.handle(input, self.now);
        }
    }

    fn begin(&mut self, begin: Begin) {
        let Begin { config, seed, connection, received } = begin;
        if !self.is_relay || self.session.is_some() {
            return self.outputs.push_back(Output::Tcp(TcpRequest::Close { connection }));
        }
        self.session = Some(Session::new(config, seed));
        self.session(session::Input::Start);
        self.session(session::Input::Connected { connection, outgoing: false });
        if !received.is_empty() {
            self.session(session::Input::Bytes { connection, bytes: received });
        }
    }

    fn once(&mut self, update: &Update) {
        let Some(established) = &self.established else { return };
        let params = &established.params;
        match encode_updates(update.attributes.as_ref(), &update.announced, &update.withdrawn, params) {
            Ok(messages) => self.session(session::Input::Send(messages)),
            Err(error) => self.outputs.push_back(Output::Unsendable(error)),
        }
    }

    fn on_session(&mut self, output: session::Output) {
        match output {
            session::Output::Connect { attempt } => self.tcp(TcpRequest::Connect { attempt }),
            session::Output::Send { connection, bytes } => self.tcp(TcpRequest::Send { connection, bytes }),
            session::Output::Close { connection } => self.tcp(TcpRequest::Close { connection }),
            session::Output::Up(established) => self.on_up(established),
            session::Output::Down(ended) => self.on_down(ended),
            session::Output::Failed(ended) => {
                self.owed_end_of_rib = [false; 2];
                self.outputs.push_back(Output::Failed(ended));
            }
            session::Output::Update(update) => self.report(PeerEvent::Update(update)),
            session::Output::RouteRefresh { afi, kind } => self.on_refresh(afi, kind),
            session::Output::EndOfRib(afi) => {
                self.outputs.push_back(Output::EndOfRib(afi));
                self.awaited.retain(|awaited| *awaited != afi);
                if self.awaited.is_empty() {
                    self.stale.forget();
                    self.report(PeerEvent::EndOfRib);
                }
            }
        }
    }

    fn on_up(&mut self, established: Box<Established>) {
        let params = &established.params;
        self.awaited = FAMILIES.into_iter().filter(|afi| params.has_family(*afi)).collect();
        let initial_end_of_rib = established.end_of_rib && !self.is_relay;
        self.out.session_up(established.params, initial_end_of_rib);
        self.established = Some((*established).clone());
        let gone = self.stale.session_up(&established.forwarding_kept, self.now.instant);
        self.outputs.push_back(Output::Established(established));
        self.report_stale(gone);
        self.report(PeerEvent::Up);
    }

    fn on_down(&mut self, ended: Ended) {
        self.out.session_down();
        self.owed_end_of_rib = [false; 2];
        self.established = None;
        let keeps = self.session.as_ref().and_then(|session| session.config().keeps);
        let kept =
            keeps.zip(ended.retain.as_ref()).map(|(most, retain)| self.stale.lost(retain, most, self.now.instant));
        self.outputs.push_back(Output::Ended(ended));
        match kept {
            Some(kept) => self.report_stale(kept),
            None => {
                self.stale.forget();
                self.report(PeerEvent::Down);
            }
        }
    }

    /// Until when routes of a session that was lost are kept, of each family, and whether they are long-lived stale ones.
    pub fn stale(&self) -> impl Iterator<Item = (Afi, Instant, bool)> {
        self.stale.until()
    }

    fn report_stale(&mut self, all: Vec<Stale>) {
        all.into_iter().for_each(|stale| self.report(PeerEvent::Stale(stale)));
    }

    fn on_refresh(&mut self, afi: Afi, kind: RefreshKind) {
        if kind == RefreshKind::Request {
            let marked = self.established.as_ref().is_some_and(|up| up.enhanced_route_refresh);
            self.out.refresh(afi, marked);
        }
        self.outputs.push_back(Output::RouteRefresh { afi, kind });
    }

    fn tcp(&mut self, request: TcpRequest) {
        self.outputs.push_back(Output::Tcp(request));
    }

    fn report(&mut self, event: PeerEvent) {
        self.outputs.push_back(Output::Event(event));
    }

    /// Gives the session the next batch of routes, then the End-of-RIB marks, if the peer takes them.
    fn flush(&mut self) -> bool {
        if !self.is_due() {
            return false;
        }
        if self.out.is_due() {
            let batch = self.out.next_batch(BATCH);
            self.outputs.extend(batch.rejected.into_iter().map(Output::Rejected));
            self.session(session::Input::Send(batch.messages));
            return true;
        }
        let end_of_rib = self.established.as_ref().is_some_and(|up| up.end_of_rib);
        let owed = std::mem::take(&mut self.owed_end_of_rib);
        for (afi, _) in FAMILIES.into_iter().zip(owed).filter(|(_, owed)| *owed && end_of_rib) {
            self.session(session::Input::SendEndOfRib(afi));
        }
        true
    }

    /// Drops a relay's session that is over: it is not restarted, and the next one has another configuration.
    fn drop_ended(&mut self) {
        let is_over = matches!(self.state(), State::Idle | State::Connect | State::Active);
        if let Some(session) = self.session.take_if(|_| self.is_relay && is_over) {
            self.past += *session.counters();
        }
    }
}

impl Machine for Peer {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, input: Input, now: Now) {
        self.now = now;
        match input {
            Input::Session(input) => {
                let ends = matches!(&input, session::Input::Stop(stop) if stop.administrative);
                self.session(input);
                if ends && self.established.is_none() {
                    // Who disables a session whose peer is away keeps nothing of it either.
                    let gone = self.stale.end();
                    self.report_stale(gone);
                }
            }
            Input::Begin(begin) => self.begin(*begin),
            Input::Route { prefix, attributes: Some(attributes) } => {
                let attributes = self.pool.intern(attributes);
                self.out.announce(Nlri::new(prefix), attributes);
            }
            Input::Route { prefix, attributes: None } => self.out.withdraw(&Nlri::new(prefix)),
            Input::Paths { prefix, paths } => {
                let intern = |(path_id, attributes)| (path_id, self.pool.intern(attributes));
                let paths: Vec<(u32, Arc<Attributes>)> = paths.into_iter().map(intern).collect();
                self.out.set_paths(prefix, &paths);
            }
            Input::Path { nlri, attributes: Some(attributes) } => self.out.announce(nlri, attributes),
            Input::Path { nlri, attributes: None } => self.out.withdraw(&nlri),
            Input::Once(update) => self.once(&update),
            Input::EndOfRib(afi) => self.owed_end_of_rib[usize::from(afi == Afi::Ipv6)] = true,
        }
    }

    fn handle_timeout(&mut self, now: Now) {
        self.now = now;
        if let Some(session) = &mut self.session {
            session.handle_timeout(now);
        }
        let over = self.stale.handle_timeout(now.instant);
        self.report_stale(over);
    }

    fn poll(&mut self) -> Option<Output> {
        loop {
            if let Some(output) = self.outputs.pop_front() {
                return Some(output);
            }
            match self.session.as_mut().and_then(Machine::poll) {
                Some(output) => self.on_session(output),
                None if self.flush() => {}
                None => {
                    self.drop_ended();
                    return None;
                }
            }
        }
    }

    fn deadline(&self) -> Option<Instant> {
        self.session.as_ref().and_then(Machine::deadline).into_iter().chain(self.stale.deadline()).min()
    }
}
