//! The BGP session state machine (RFC 4271 section 8), without a socket, a clock or randomness of its own.
//!
//! One [`Session`] is one peer. The RFC runs one machine per connection and joins them by collision detection; here one
//! `Session` holds both connections that a peer may have for a moment, the one we opened and the one it opened, and
//! [`Session::state`] is that of the more advanced one. Two are never Established.
//!
//! A driver owns the sockets. It connects on request, hands in what it reads, writes what comes out, and calls
//! [`Machine::handle_timeout`] at [`Machine::deadline`]. A listener asks a [`Responder`] which session an incoming connection belongs to.
//!
//! Where the RFC leaves a choice: a NOTIFICATION goes out even before an OPEN (`SendNOTIFICATIONwithoutOPEN`); a failed
//! attempt to connect leads to Active, where the peer can still reach us, not to Idle; every fall to Idle is damped
//! (`DampPeerOscillations`), with doubling rests; KEEPALIVE, connect and idle-hold timers have jitter, hold timers none.

mod collision;
mod config;
mod connection;
mod event;
mod fsm;
mod jitter;
mod negotiate;
mod responder;

use std::collections::VecDeque;
use std::fmt;

pub use config::{AddPathOffer, Config, GracefulRestartOffer, HoldTime, HoldTimeError, Keeps, Offer, PeerAsn, Role};
use connection::{Connection, Stage};
pub use event::{
    Cause, ConnectionId, Counters, Ended, Erred, Established, Input, MessageCounts, Output, Retain, Stop, StopReason,
};
use jitter::Jitter;
pub use responder::{Accept, Refusal, Responder};
use serde::{Deserialize, Serialize};
use wayleave_core::{Instant, Machine, Now};

/// The states of RFC 4271 section 8.2.2.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum State {
    /// At rest: no connection is made or taken.
    Idle,
    /// A connection is being made.
    Connect,
    /// The peer may connect.
    Active,
    /// Our OPEN is out.
    OpenSent,
    /// Both OPENs are accepted; the peer's KEEPALIVE is awaited.
    OpenConfirm,
    /// Routes are exchanged.
    Established,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The session with one BGP peer, over at most two connections.
pub struct Session {
    config: Config,
    jitter: Jitter,
    /// Not in Idle.
    running: bool,
    /// At most one that we opened and one that the peer opened.
    connections: Vec<Connection>,
    /// The attempt to connect that is under way.
    connecting: Option<u64>,
    attempt: u64,
    connect_retry: Option<Instant>,
    idle_hold: Option<Instant>,
    /// Falls to Idle since the last session that was up for long.
    failures: u32,
    established_at: Option<Instant>,
    outputs: VecDeque<Output>,
    counters: Counters,
}

impl Session {
    /// A session in Idle; `seed` feeds the jitter of its timers, and should differ between sessions.
    #[must_use]
    pub fn new(config: Config, seed: u64) -> Self {
        Self {
            config,
            jitter: Jitter::new(seed),
            running: false,
            connections: Vec::with_capacity(2),
            connecting: None,
            attempt: 0,
            connect_retry: None,
            idle_hold: None,
            failures: 0,
            established_at: None,
            outputs: VecDeque::new(),
            counters: Counters::default(),
        }
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Replaces the configuration. Connections and timers keep the old one; stop and start to apply it at once.
    pub fn set_config(&mut self, config: Config) {
        self.config = config;
    }

    /// The state of the connection that has come furthest.
    #[must_use]
    pub fn state(&self) -> State {
        match self.connections.iter().max_by_key(|connection| connection.stage) {
            Some(connection) => connection.state(),
            None if !self.running => State::Idle,
            None if self.connecting.is_some() => State::Connect,
            None => State::Active,
        }
    }

    /// Established, and the driver takes octets: the moment to hand in more UPDATEs. While this is false, leave routes
    /// in the Adj-RIB-Out, where only the last state of each prefix is kept.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.established().is_some_and(|connection| !connection.blocked)
    }

    /// What it has counted.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// When the present session became Established.
    #[must_use]
    pub fn established_at(&self) -> Option<Instant> {
        self.established_at
    }

    /// Octets that its buffers hold, for tests and metrics: at most a message and what one input brought.
    #[must_use]
    pub fn buffered(&self) -> usize {
        self.connections.iter().map(Connection::buffered).sum()
    }

    fn established(&self) -> Option<&Connection> {
        self.connections.iter().find(|connection| connection.stage == Stage::Established)
    }

    fn connection(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.connections.iter_mut().find(|connection| connection.id == id)
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("peer", &self.config.peer_asn).field("state", &self.state()).finish()
    }
}

impl Machine for Session {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, input: Input, now: Now) {
        let now = now.instant;
        match input {
            Input::Start => self.on_start(now),
            Input::Stop(stop) => self.on_stop(&stop, now),
            Input::Connected { connection, outgoing } => self.on_connected(connection, outgoing, now),
            Input::ConnectFailed { attempt } => self.on_connect_failed(attempt, now),
            Input::Bytes { connection, bytes } => self.on_bytes(connection, &bytes, now),
            Input::Closed { connection } => self.on_closed(connection, now),
            Input::Send(messages) => self.on_send(messages, now),
            Input::SendEndOfRib(afi) => self.on_send_end_of_rib(afi, now),
            Input::Refresh { afi, kind } => self.on_send_refresh(afi, kind),
            Input::Blocked { connection } => self.on_blocked(connection, now),
            Input::Writable { connection } => self.on_writable(connection, now),
        }
    }

    fn handle_timeout(&mut self, now: Now) {
        self.on_timeout(now.instant);
    }

    fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn deadline(&self) -> Option<Instant> {
        let connections = self.connections.iter().filter_map(Connection::deadline);
        connections.chain(self.connect_retry).chain(self.idle_hold).min()
    }
}
