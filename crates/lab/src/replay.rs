//! A BGP session on which recorded UPDATEs are replayed.
//!
//! What is counted as sent was taken by TCP, and at the end the peer has read all of it, or the end is an error.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use wayleave_bgp::Update;
use wayleave_bgp::peer::{Input, Output, Peer};
use wayleave_bgp::session::{Config, PeerAsn};
use wayleave_core::{Asn, Machine};

use crate::peer_tcp::{Clock, TcpEvent, TcpPeer};

/// How long the peer may read nothing: as long as its hold time usually is.
const READER: Duration = Duration::from_secs(90);
/// Longest wait for an event before timers are looked at.
const LOOK: Duration = Duration::from_millis(200);

/// Who speaks, and to whom.
#[derive(Clone, Debug)]
pub struct Speaker {
    pub asn: Asn,
    pub router_id: Ipv4Addr,
    /// The peer's AS; any, if not given.
    pub peer_asn: Option<Asn>,
    pub connect: SocketAddr,
    /// The local address to connect from.
    pub bind: Option<IpAddr>,
}

/// Why a replay ended before its end.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The peer, or its host, ended the session.
    #[error("the peer ended the session: {0}")]
    Ended(String),
    /// The peer took the last octets, and never closed its half of the connection.
    #[error("the peer did not read to the end within {} s", READER.as_secs())]
    Unread,
}

/// What happens to a replay from outside.
enum Event {
    Tcp(TcpEvent),
    Stop,
}

impl From<TcpEvent> for Event {
    fn from(event: TcpEvent) -> Self {
        Self::Tcp(event)
    }
}

/// Ends a replay from another thread.
#[derive(Clone)]
pub struct StopHandle(Sender<Event>);

impl StopHandle {
    /// Asks the replay to stop.
    pub fn stop(&self) {
        let _ = self.0.send(Event::Stop); // fails if it has ended
    }
}

/// A session that sends what it is given.
pub struct Replay {
    peer: TcpPeer<Event>,
    clock: Clock,
    inbox: Receiver<Event>,
    events: Sender<Event>,
    is_established: bool,
    is_stopped: bool,
    ended: Option<String>,
    /// Why the last attempt to connect failed.
    failure: Option<String>,
}

impl Replay {
    /// Begins to connect, and tries again every second.
    #[must_use]
    pub fn start(speaker: &Speaker) -> Self {
        let (events, inbox) = channel();
        let expected = speaker.peer_asn.map_or(PeerAsn::Any, PeerAsn::Exactly);
        let mut config = Config::new(speaker.asn, speaker.router_id, expected);
        config.connect_retry = Duration::from_secs(1);
        let clock = Clock::start();
        let peer = Peer::new(config, u64::from(u32::from(speaker.router_id)), clock.now());
        let peer = TcpPeer::new(peer, 0, speaker.connect, clock, events.clone());
        let mut peer = peer.bind(speaker.bind).wait_for_reader(READER);
        peer.start();
        let mut replay =
            Self { peer, clock, inbox, events, is_established: false, is_stopped: false, ended: None, failure: None };
        replay.act();
        replay
    }

    /// Stops it from another thread, such as one that waits for signals.
    #[must_use]
    pub fn stop_handle(&self) -> StopHandle {
        StopHandle(self.events.clone())
    }

    /// Whether the session is up.
    #[must_use]
    pub fn is_established(&self) -> bool {
        self.is_established && self.ended.is_none()
    }

    /// Whether it was asked to stop.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// Why the last attempt to connect failed, once for each time.
    pub fn take_failure(&mut self) -> Option<String> {
        self.failure.take()
    }

    /// Sends an UPDATE if the session is up; returns once TCP has taken it.
    ///
    /// # Errors
    /// If the session has ended.
    pub fn send(&mut self, update: Update) -> Result<(), ReplayError> {
        self.peer.handle(Input::Once(Box::new(update)));
        self.run(Duration::ZERO)
    }

    /// Serves the session for so long, or until it is asked to stop.
    ///
    /// # Errors
    /// If the session has ended.
    pub fn run(&mut self, time: Duration) -> Result<(), ReplayError> {
        let begin = Instant::now();
        loop {
            self.act();
            if let Some(why) = &self.ended {
                return Err(ReplayError::Ended(why.clone()));
            }
            let left = time.saturating_sub(begin.elapsed());
            if !self.step(left.min(LOOK)) && left.is_zero() || self.is_stopped {
                return Ok(());
            }
        }
    }

    /// Takes one event, waiting for it at most so long; whether there was one.
    fn step(&mut self, wait: Duration) -> bool {
        let event = self.inbox.recv_timeout(wait).ok();
        let has_come = event.is_some();
        match event {
            Some(Event::Stop) => self.is_stopped = true,
            Some(Event::Tcp(event)) => self.peer.on_tcp(event),
            None => {}
        }
        self.peer.peer.handle_timeout(self.clock.now());
        has_come
    }

    fn act(&mut self) {
        while let Some(output) = self.peer.poll() {
            match output {
                Output::Established(_) => self.is_established = true,
                Output::Ended(ended) => self.ended = Some(ended.cause.to_string()),
                Output::Failed(ended) => self.failure = Some(ended.cause.to_string()),
                // The peer's routes are read and dropped.
                _ => {}
            }
        }
        if let Some(error) = self.peer.take_failure() {
            self.failure = Some(error.to_string());
        }
    }

    /// Ends the session with a NOTIFICATION, and waits until the peer has read to the end: it closes its half then.
    ///
    /// # Errors
    /// If the session had ended before, or the peer does not read.
    pub fn close(mut self) -> Result<(), ReplayError> {
        if let Some(why) = self.ended.take() {
            return Err(ReplayError::Ended(why));
        }
        self.peer.stop();
        self.act();
        let begin = Instant::now();
        while self.peer.has_connections() {
            if begin.elapsed() > READER {
                self.peer.abandon();
                return Err(ReplayError::Unread);
            }
            self.step(LOOK);
            self.act();
        }
        Ok(())
    }
}
