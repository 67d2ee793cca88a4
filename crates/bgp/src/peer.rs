//! One BGP peer as a role sees it: its session, the routes that it shall have, and what it says.
//!
//! A driver owns the sockets and the clock, and hands both to the session in here; a daemon's driver does it with TCP,
//! the laboratory's with pipes in memory. Routes wait in the Adj-RIB-Out until [`Machine::poll`] finds nothing else to
//! do, so that what was handed in before it shares messages.

use std::collections::VecDeque;

use wayleave_core::{Afi, Instant, Machine, Now, Prefix};

use crate::rib::{AdjRibOut, AttributePool, RejectedRoutes};
use crate::session::{self, Config, ConnectionId, Counters, Ended, Established, Session, State};
use crate::{Attributes, EncodeError, Nlri, RefreshKind, Update, encode_updates};

/// Routes that one batch of messages holds at most.
const BATCH: usize = 20_000;

/// What a peer is told.
#[derive(Debug)]
pub enum Input {
    /// For its session.
    Session(session::Input),
    /// It shall have this route, or none for the prefix.
    Route {
        /// The prefix.
        prefix: Prefix,
        /// The route's attributes.
        attributes: Option<Attributes>,
    },
    /// Send this once, if the session stands; forget it otherwise.
    Once(Box<Update>),
}

/// What the peer did, for the protocol behind it.
#[derive(Debug)]
pub enum PeerEvent {
    /// Its session is up.
    Up,
    /// It is down: what the peer announced is gone.
    Down,
    /// An UPDATE, after RFC 7606.
    Update(Box<Update>),
    /// The peer has sent all routes of all agreed families.
    EndOfRib,
}

/// What a peer's driver shall do, and hear.
#[derive(Debug)]
pub enum Output {
    /// Open a connection, as in [`session::Output::Connect`].
    Connect {
        /// Which attempt.
        attempt: u64,
    },
    /// Send these octets.
    Send {
        /// Where.
        connection: ConnectionId,
        /// One whole message or more.
        bytes: Vec<u8>,
    },
    /// Close the connection, once what was sent is out.
    Close {
        /// Which.
        connection: ConnectionId,
    },
    /// Hand this on.
    Event(PeerEvent),
    /// The session is up; [`PeerEvent::Up`] follows.
    Established(Box<Established>),
    /// It is down; [`PeerEvent::Down`] follows.
    Ended(Ended),
    /// There was no session, and this is why.
    Failed(Ended),
    /// Routes that this session cannot carry.
    Rejected(RejectedRoutes),
    /// An UPDATE to be sent once that this session cannot carry.
    Unsendable(EncodeError),
}

/// The session with one peer and what is announced over it.
pub struct Peer {
    session: Session,
    out: AdjRibOut,
    pool: AttributePool,
    established: Option<Established>,
    /// Families whose End-of-RIB has not come.
    awaited: Vec<Afi>,
    outputs: VecDeque<Output>,
    now: Now,
}

impl Peer {
    /// A peer in Idle at `now`; `seed` feeds the jitter of its session's timers.
    #[must_use]
    pub fn new(config: Config, seed: u64, now: Now) -> Self {
        Self {
            session: Session::new(config, seed),
            out: AdjRibOut::new(),
            pool: AttributePool::new(),
            established: None,
            awaited: Vec::new(),
            outputs: VecDeque::new(),
            now,
        }
    }

    /// What both ends agreed on, while the session is up.
    #[must_use]
    pub fn established(&self) -> Option<&Established> {
        self.established.as_ref()
    }

    /// The session's state.
    #[must_use]
    pub fn state(&self) -> State {
        self.session.state()
    }

    /// What the session has counted.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        self.session.counters()
    }

    /// Whether the session is up and takes messages.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.session.is_writable()
    }

    /// The routes that the peer shall have.
    #[must_use]
    pub fn adj_rib_out(&self) -> &AdjRibOut {
        &self.out
    }

    /// Lets go of attributes that no route has any more; to be called now and then.
    pub fn sweep(&mut self) {
        self.pool.sweep();
    }

    fn once(&mut self, update: &Update) {
        let Some(established) = &self.established else { return };
        let params = &established.params;
        match encode_updates(update.attributes.as_ref(), &update.announced, &update.withdrawn, params) {
            Ok(messages) => self.session.handle(session::Input::Send(messages), self.now),
            Err(error) => self.outputs.push_back(Output::Unsendable(error)),
        }
    }

    fn on_session(&mut self, output: session::Output) {
        match output {
            session::Output::Connect { attempt } => self.outputs.push_back(Output::Connect { attempt }),
            session::Output::Send { connection, bytes } => {
                self.outputs.push_back(Output::Send { connection, bytes });
            }
            session::Output::Close { connection } => self.outputs.push_back(Output::Close { connection }),
            session::Output::Up(established) => self.on_up(established),
            session::Output::Down(ended) => self.on_down(ended),
            session::Output::Failed(ended) => self.outputs.push_back(Output::Failed(ended)),
            session::Output::Update(update) => self.tell(PeerEvent::Update(update)),
            session::Output::RouteRefresh { afi, kind } => {
                let marked = self.established.as_ref().is_some_and(|up| up.enhanced_route_refresh);
                if kind == RefreshKind::Request {
                    self.out.refresh(afi, marked);
                }
            }
            session::Output::EndOfRib(afi) => {
                self.awaited.retain(|awaited| *awaited != afi);
                if self.awaited.is_empty() {
                    self.tell(PeerEvent::EndOfRib);
                }
            }
        }
    }

    fn on_up(&mut self, established: Box<Established>) {
        let params = &established.params;
        self.awaited = [Afi::Ipv4, Afi::Ipv6].into_iter().filter(|afi| params.has_family(*afi)).collect();
        self.out.session_up(established.params, established.end_of_rib);
        self.established = Some((*established).clone());
        self.outputs.push_back(Output::Established(established));
        self.tell(PeerEvent::Up);
    }

    fn on_down(&mut self, ended: Ended) {
        self.out.session_down();
        self.established = None;
        self.outputs.push_back(Output::Ended(ended));
        self.tell(PeerEvent::Down);
    }

    fn tell(&mut self, event: PeerEvent) {
        self.outputs.push_back(Output::Event(event));
    }

    /// Gives the session the next batch of routes, if one is due and the peer takes it.
    fn flush(&mut self) -> bool {
        if !self.session.is_writable() || !self.out.is_due() {
            return false;
        }
        let batch = self.out.next_batch(BATCH);
        self.outputs.extend(batch.rejected.into_iter().map(Output::Rejected));
        self.session.handle(session::Input::Send(batch.messages), self.now);
        true
    }
}

impl Machine for Peer {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, input: Input, now: Now) {
        self.now = now;
        match input {
            Input::Session(input) => self.session.handle(input, now),
            Input::Route { prefix, attributes: Some(attributes) } => {
                let attributes = self.pool.intern(attributes);
                self.out.announce(Nlri::new(prefix), attributes);
            }
            Input::Route { prefix, attributes: None } => self.out.withdraw(&Nlri::new(prefix)),
            Input::Once(update) => self.once(&update),
        }
    }

    fn handle_timeout(&mut self, now: Now) {
        self.now = now;
        self.session.handle_timeout(now);
    }

    fn poll(&mut self) -> Option<Output> {
        loop {
            if let Some(output) = self.outputs.pop_front() {
                return Some(output);
            }
            match self.session.poll() {
                Some(output) => self.on_session(output),
                None if self.flush() => {}
                None => return None,
            }
        }
    }

    fn deadline(&self) -> Option<Instant> {
        self.session.deadline()
    }
}
