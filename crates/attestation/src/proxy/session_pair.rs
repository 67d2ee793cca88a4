//! Two BGP sessions, each of which passes for the far end of the other: what comes in at one goes out at the other, and
//! they end together.
//!
//! A connection waits, read and not answered (`open_timeout`), until the OPENs of both ends are known. Then each
//! end gets a [`bgp::peer`](wayleave_bgp::peer) whose OPEN is the other end's, rewritten (`open_rewrite`).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use wayleave_bgp::notification::{cease, code};
use wayleave_bgp::peer::{self, Begin, Peer, PeerEvent, TcpRequest};
use wayleave_bgp::rib::{AdjRibIn, AdjRibOut, Announced, AttributePool};
use wayleave_bgp::session::{
    self, Cause, ConnectionId, Counters, Ended, Established, PeerAsn, State, Stop, StopReason,
};
use wayleave_bgp::{Attributes, Capability, Message, Nlri, Notification, Open, RefreshKind, SessionParams, Update};
use wayleave_core::{Afi, Asn, Instant, Machine, Now};

use super::open_rewrite::config_towards;
use super::open_timeout::{Received, WaitingConnection};
pub use super::side::{EndConfig, Input, Output, PairConfig, PairEvent, Side};

/// Between two attempts to connect.
const CONNECT_RETRY: Duration = Duration::from_secs(5);
/// The delay after a failure, doubled by each further one, and the longest. Two sessions end for each failure: a peer
/// that comes and goes must not make the other's routes come and go as fast.
const RETRY_DELAY: Duration = Duration::from_secs(1);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(60);
/// Connections of one end that wait for the other end, at most.
const MAX_WAITING: usize = 4;
/// Routes of a malformed UPDATE that are named: one more than a line of the log has.
const MAX_NAMED: usize = 5;
/// How long a refresh may take before routes that it did not name are withdrawn (RFC 7313 section 4).
const REFRESH_TIMEOUT: Duration = Duration::from_secs(600);

/// Octets of a route besides its attributes: its places in the tables of both directions, in the queues and in the schedule.
pub(super) const ROUTE_OCTETS: usize = 512;

struct End {
    config: EndConfig,
    /// Connections without a session yet.
    waiting: Vec<WaitingConnection>,
    /// The attempt to connect that is under way.
    connecting: Option<u64>,
    attempt: u64,
    /// No attempt before.
    connect_at: Instant,
    peer: Peer,
    /// The session's connection, read along until its OPEN has come.
    connection: Option<WaitingConnection>,
    rib_in: AdjRibIn,
    /// What ended its last session or attempt, until it is up again.
    last_end: Option<LastEnd>,
}

/// What ended the last session of one side, or the last attempt at one.
#[derive(Clone, Debug)]
pub struct LastEnd {
    /// When the side failed first since it was last up or waited for the other.
    pub at: Instant,
    pub cause: Cause,
    /// The AS in which the peer must expect its neighbour here, if it is known.
    pub presented: Option<Asn>,
}

impl End {
    fn new(config: EndConfig, now: Now) -> Self {
        let limits = config.limits;
        Self {
            config,
            waiting: Vec::new(),
            connecting: None,
            attempt: 0,
            connect_at: Instant(0),
            peer: Peer::relay(now),
            connection: None,
            rib_in: AdjRibIn::new(limits),
            last_end: None,
        }
    }

    /// The peer's OPEN, once it has come.
    fn open(&self) -> Option<&Open> {
        self.connection.iter().chain(&self.waiting).find_map(|connection| connection.open.as_ref())
    }

    /// The connection that gets our OPEN: one whose OPEN has come, or the only one; of several that are silent, the
    /// first after a while, since a proxy at the other end may wait for our OPEN as we do for its.
    fn chosen(&self, now: Instant) -> Option<usize> {
        let opened = self.waiting.iter().position(|connection| connection.open.is_some());
        opened.or(match self.waiting.as_slice() {
            [] => None,
            [_] => Some(0),
            [first, ..] => (first.turn_until() <= now).then_some(0),
        })
    }

    /// Whether no connection is there or under way.
    fn is_idle(&self) -> bool {
        !self.peer.has_session() && self.waiting.is_empty() && self.connecting.is_none()
    }
}

/// Two sessions; between them stands whoever validates and signs routes.
pub struct SessionPair {
    ends: [End; 2],
    more: [Vec<Capability>; 2],
    pool: AttributePool,
    most_memory: usize,
    running: bool,
    /// The first session of the two has ended, and the second follows.
    falling: bool,
    failures: u32,
    up_since: Option<Instant>,
    seed: u64,
    outputs: VecDeque<Output>,
    now: Now,
}

impl SessionPair {
    /// A pair at rest; `seed` feeds the jitter of its sessions' timers.
    #[must_use]
    pub fn new(config: PairConfig, seed: u64, now: Now) -> Self {
        Self {
            ends: config.ends.map(|config| End::new(config, now)),
            more: config.more,
            pool: AttributePool::new(),
            most_memory: config.most_memory,
            running: false,
            falling: false,
            failures: 0,
            up_since: None,
            seed,
            outputs: VecDeque::new(),
            now,
        }
    }

    /// What both ends of this side's session agreed on, while it is up.
    #[must_use]
    pub fn established(&self, side: Side) -> Option<&Established> {
        self.end(side).peer.established()
    }

    /// The state of this side's session.
    #[must_use]
    pub fn state(&self, side: Side) -> State {
        let end = self.end(side);
        match end.peer.has_session() {
            true => end.peer.state(),
            false if !self.running => State::Idle,
            false if end.connecting.is_some() => State::Connect,
            false => State::Active,
        }
    }

    /// Whether this side's OPEN has come and waits for the other side's.
    #[must_use]
    pub fn waits(&self, side: Side) -> bool {
        let end = self.end(side);
        !end.peer.has_session() && end.open().is_some()
    }

    /// Whether this side's peer has connected and sent no OPEN yet.
    #[must_use]
    pub fn is_silent(&self, side: Side) -> bool {
        let end = self.end(side);
        !end.peer.has_session() && !end.waiting.is_empty() && end.open().is_none()
    }

    /// What this side's sessions have counted since the pair was made.
    #[must_use]
    pub fn counters(&self, side: Side) -> Counters {
        self.end(side).peer.counters()
    }

    /// What ended this side's last session, or the last attempt at one, until it is up again.
    #[must_use]
    pub fn last_end(&self, side: Side) -> Option<&LastEnd> {
        self.end(side).last_end.as_ref()
    }

    /// The routes that this side announces.
    #[must_use]
    pub fn rib_in(&self, side: Side) -> &AdjRibIn {
        &self.end(side).rib_in
    }

    /// The routes that this side is to have.
    #[must_use]
    pub fn rib_out(&self, side: Side) -> &AdjRibOut {
        self.end(side).peer.adj_rib_out()
    }

    /// Sets the capabilities that our OPEN towards this side has beyond the other end's, from the next session on.
    pub fn set_more(&mut self, side: Side, more: Vec<Capability>) {
        self.more[side.index()] = more;
    }

    /// Whether a session takes routes and has some to send: [`Machine::poll`] has more outputs.
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.ends.iter().any(|end| end.peer.is_due())
    }

    /// Frees attributes that no route has any more; to be called now and then.
    pub fn sweep(&mut self) {
        self.pool.sweep();
    }

    /// `to` is to have this route, or none for this prefix and path identifier.
    pub fn route(&mut self, to: Side, nlri: Nlri, attributes: Option<Arc<Attributes>>) {
        self.peer(to, peer::Input::Path { nlri, attributes });
    }

    /// As [`SessionPair::route`], with equal attributes kept once.
    pub fn route_with(&mut self, to: Side, nlri: Nlri, attributes: Attributes) {
        let attributes = self.intern(attributes);
        self.route(to, nlri, Some(attributes));
    }

    /// Equal attributes, kept once.
    pub fn intern(&mut self, attributes: Attributes) -> Arc<Attributes> {
        self.pool.intern(attributes)
    }

    /// As [`SessionPair::intern`], of attributes that have an allocation already.
    pub fn intern_shared(&mut self, attributes: Arc<Attributes>) -> Arc<Attributes> {
        self.pool.intern_shared(attributes)
    }

    /// Octets that the routes take with their attributes, and at most.
    #[must_use]
    pub fn memory(&self) -> [usize; 2] {
        [self.routes() * ROUTE_OCTETS + self.pool.octets(), self.most_memory]
    }

    fn routes(&self) -> usize {
        self.ends.iter().map(|end| end.rib_in.len()).sum()
    }

    /// Whether a further route might take more than the pair may.
    fn is_full(&self) -> bool {
        (self.routes() + 1) * ROUTE_OCTETS + self.pool.octets_before_sweep() > self.most_memory
    }

    /// Sends End-of-RIB of a family to `to`, behind all its routes.
    pub fn end_of_rib(&mut self, to: Side, afi: Afi) {
        self.peer(to, peer::Input::EndOfRib(afi));
    }

    fn end(&self, side: Side) -> &End {
        &self.ends[side.index()]
    }

    fn end_mut(&mut self, side: Side) -> &mut End {
        &mut self.ends[side.index()]
    }

    fn peer(&mut self, side: Side, input: peer::Input) {
        let now = self.now;
        self.end_mut(side).peer.handle(input, now);
    }

    fn stop_session(&mut self, side: Side, reason: StopReason) {
        let stop = session::Input::Stop(Stop { administrative: true, reason });
        self.peer(side, peer::Input::Session(stop));
    }

    fn notify(&mut self, event: PairEvent) {
        match &event {
            PairEvent::Up(side, _) => self.end_mut(*side).last_end = None,
            PairEvent::Down(side, ended) | PairEvent::Failed(side, ended) => {
                let other = self.end(side.other());
                let configured = match other.config.peer_asn {
                    PeerAsn::Exactly(asn) => Some(asn),
                    PeerAsn::Any => None,
                };
                let presented = other.open().map(|open| open.asn).or(configured);
                let before = self.last_end(*side).filter(|end| !matches!(end.cause, Cause::Stopped(_)));
                let at = before.map_or(self.now.instant, |end| end.at);
                let cause = ended.cause.clone();
                self.end_mut(*side).last_end = Some(LastEnd { at, cause, presented });
            }
            _ => {}
        }
        self.outputs.push_back(Output::Event(event));
    }

    fn tcp(&mut self, side: Side, request: TcpRequest) {
        self.outputs.push_back(Output::Tcp { side, request });
    }
}

// Connections that wait for the other end's OPEN.
impl SessionPair {
    fn on_wire(&mut self, side: Side, input: session::Input) {
        let (now, running) = (self.now, self.running);
        let end = self.end_mut(side);
        match input {
            session::Input::Connected { connection, outgoing } => {
                let is_expected = !outgoing || end.connecting.take().is_some();
                if !running || !is_expected || end.peer.has_session() || end.waiting.len() >= MAX_WAITING {
                    return self.refuse(side, connection, cease::CONNECTION_COLLISION);
                }
                let waiting = end.waiting.len() as u64;
                let jitter = Duration::from_millis(self.seed.wrapping_add(waiting) % 4_000);
                self.end_mut(side).waiting.push(WaitingConnection::new(connection, now.instant, jitter));
            }
            session::Input::ConnectFailed { attempt } => {
                if end.connecting == Some(attempt) {
                    end.connecting = None;
                    end.connect_at = now.instant + CONNECT_RETRY;
                    let ended =
                        Ended { connection: None, state: State::Connect, cause: Cause::ConnectFailed, retain: None };
                    self.notify(PairEvent::Failed(side, ended));
                }
            }
            session::Input::Bytes { connection, bytes } if end.waiting.iter().any(|c| c.connection == connection) => {
                self.receive(side, connection, &bytes);
            }
            session::Input::Closed { connection } if end.waiting.iter().any(|c| c.connection == connection) => {
                end.waiting.retain(|waiting| waiting.connection != connection);
                end.connect_at = end.connect_at.max(now.instant + CONNECT_RETRY);
                self.on_gone(side);
            }
            other => {
                if let (session::Input::Bytes { connection, bytes }, Some(known)) = (&other, &mut end.connection)
                    && known.connection == *connection
                    && known.open.is_none()
                {
                    // Only to learn the OPEN: the session itself answers what is wrong with it.
                    let _ = known.receive(bytes, end.config.peer_asn, now.instant);
                }
                self.peer(side, peer::Input::Session(other));
            }
        }
    }

    fn receive(&mut self, side: Side, connection: ConnectionId, bytes: &[u8]) {
        let now = self.now.instant;
        let end = self.end_mut(side);
        let expected = end.config.peer_asn;
        let Some(at) = end.waiting.iter().position(|waiting| waiting.connection == connection) else { return };
        match end.waiting[at].receive(bytes, expected, now) {
            Received::Nothing => {}
            Received::Open => {
                // Only one connection ever gets our OPEN, so that none collides: the one whose OPEN came first.
                let kept = end.waiting.swap_remove(at);
                let others = std::mem::replace(&mut end.waiting, vec![kept]);
                self.refuse_all(side, others);
                // It is back and waits: what ended its last session keeps the pair down no longer.
                let other = self.end(side.other());
                if !other.peer.has_session() && other.waiting.is_empty() {
                    self.end_mut(side).last_end = None;
                }
            }
            Received::Wrong(notification) => {
                end.waiting.remove(at);
                end.connect_at = end.connect_at.max(now + CONNECT_RETRY);
                self.dismiss(side, connection, notification.clone());
                self.on_gone(side);
                let cause = Cause::PeerErred(notification);
                let ended = Ended { connection: Some(connection), state: State::Active, cause, retain: None };
                self.notify(PairEvent::Failed(side, ended));
            }
        }
    }

    fn refuse_all(&mut self, side: Side, connections: Vec<WaitingConnection>) {
        for waiting in connections {
            self.refuse(side, waiting.connection, cease::CONNECTION_COLLISION);
        }
    }

    /// A waiting connection is gone. The other end may have got its OPEN already.
    fn on_gone(&mut self, side: Side) {
        let end = self.end(side);
        if !end.peer.has_session() && end.open().is_none() && self.end(side.other()).peer.has_session() {
            self.fall(side, &Cause::ConnectionLost);
        }
    }

    fn refuse(&mut self, side: Side, connection: ConnectionId, subcode: u8) {
        self.dismiss(side, connection, Notification::new(code::CEASE, subcode));
    }

    fn dismiss(&mut self, side: Side, connection: ConnectionId, notification: Notification) {
        let params = SessionParams::new(Asn(0), Asn(0));
        if let Ok(bytes) = Message::Notification(notification).encode(&params) {
            self.tcp(side, TcpRequest::Send { connection, bytes });
        }
        self.tcp(side, TcpRequest::Close { connection });
    }

    /// Begins the session of an end where a connection waits and the other end's OPEN is known.
    fn begin_sessions(&mut self) -> bool {
        let mut has_begun = false;
        for side in Side::BOTH {
            let Some(open) = self.end(side.other()).open().cloned() else { continue };
            let now = self.now;
            let end = self.end_mut(side);
            if end.peer.has_session() {
                continue;
            }
            let Some(chosen) = end.chosen(now.instant) else { continue };
            let chosen = end.waiting.swap_remove(chosen);
            let others = std::mem::take(&mut end.waiting);
            let peer_asn = chosen.open.as_ref().map_or(end.config.peer_asn, |open| PeerAsn::Exactly(open.asn));
            self.refuse_all(side, others);
            let mut config = config_towards(peer_asn, &open, self.more[side.index()].clone());
            config.enforce_first_as = self.end(side).config.first_as;
            self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (connection, received) = (chosen.connection, chosen.octets.clone());
            let begin = Begin { config, seed: self.seed, connection, received };
            self.peer(side, peer::Input::Begin(Box::new(begin)));
            let end = self.end_mut(side);
            (end.connection, end.connecting) = (Some(chosen), None);
            self.falling = false;
            has_begun = true;
        }
        has_begun
    }

    /// Whether this side's peer is to be connected to: the other side waits for it, or both wait for us to begin.
    fn should_connect(&self, side: Side) -> bool {
        let (end, other) = (self.end(side), self.end(side.other()));
        let is_wanted = other.open().is_some() || (!other.peer.has_session() && other.config.connects);
        self.running && end.config.connects && is_wanted && end.is_idle()
    }

    fn connect(&mut self) {
        for side in Side::BOTH {
            if self.should_connect(side) && self.end(side).connect_at <= self.now.instant {
                let end = self.end_mut(side);
                end.attempt += 1;
                let attempt = end.attempt;
                end.connecting = Some(attempt);
                self.tcp(side, TcpRequest::Connect { attempt });
            }
        }
    }

    /// Closes connections that have waited too long.
    fn expire_waiting(&mut self) {
        let now = self.now.instant;
        for side in Side::BOTH {
            let end = self.end_mut(side);
            let (late, kept): (Vec<WaitingConnection>, Vec<WaitingConnection>) =
                std::mem::take(&mut end.waiting).into_iter().partition(|waiting| waiting.until() <= now);
            end.waiting = kept;
            for waiting in late {
                self.end_mut(side).connect_at = now + CONNECT_RETRY;
                self.tcp(side, TcpRequest::Close { connection: waiting.connection });
                self.on_gone(side);
            }
        }
    }
}

// The sessions.
impl SessionPair {
    fn on_peer(&mut self, side: Side, output: peer::Output) {
        match output {
            peer::Output::Tcp(request) => self.tcp(side, request),
            peer::Output::Established(established) => self.on_up(side, established),
            peer::Output::Ended(ended) => {
                self.fall(side, &ended.cause);
                self.notify(PairEvent::Down(side, ended));
            }
            peer::Output::Failed(ended) => {
                self.fall(side, &ended.cause);
                self.notify(PairEvent::Failed(side, ended));
            }
            peer::Output::Rejected(rejected) => self.notify(PairEvent::Rejected(side, rejected)),
            peer::Output::Event(PeerEvent::Update(update)) => self.on_update(side, *update),
            peer::Output::RouteRefresh { afi, kind } => self.on_refresh(side, afi, kind),
            peer::Output::EndOfRib(afi) => {
                let gone = self.end_mut(side).rib_in.purge_stale(afi);
                self.withdraw(side, gone.into_iter().map(|(nlri, _)| nlri));
                self.outputs.push_back(Output::EndOfRib { from: side, afi });
            }
            // Known from the outputs above, or only of UPDATEs that a pair does not send.
            peer::Output::Event(PeerEvent::Up | PeerEvent::Down | PeerEvent::EndOfRib | PeerEvent::Stale(_))
            | peer::Output::Unsendable(_) => {}
        }
    }

    fn on_up(&mut self, side: Side, established: Box<Established>) {
        if Side::BOTH.iter().all(|side| self.established(*side).is_some()) {
            self.up_since = Some(self.now.instant);
        }
        self.notify(PairEvent::Up(side, established));
    }

    /// One side is gone: the other side gets the reason and ends too.
    fn fall(&mut self, side: Side, cause: &Cause) {
        let gone = self.end_mut(side).rib_in.clear();
        self.withdraw(side, gone.into_iter().map(|(nlri, _)| nlri));
        let reason = match cause {
            Cause::PeerEnded(notification) => StopReason::PassedOn(notification.clone()),
            cause => StopReason::Reset(format!("the session beyond ended: {cause}")),
        };
        self.stop_session(side.other(), reason);
        if std::mem::replace(&mut self.falling, true) {
            return;
        }
        let now = self.now.instant;
        if let Some(since) = self.up_since.take()
            && now.since(since) >= MAX_RETRY_DELAY
        {
            self.failures = 0;
        }
        let delay = RETRY_DELAY.saturating_mul(1 << self.failures.min(6)).min(MAX_RETRY_DELAY);
        self.failures = self.failures.saturating_add(1);
        for end in &mut self.ends {
            end.connect_at = end.connect_at.max(now + delay);
        }
    }

    fn withdraw(&mut self, from: Side, routes: impl Iterator<Item = Nlri>) {
        self.outputs.extend(routes.map(|nlri| Output::Route { from, nlri, attributes: None }));
    }

    fn on_update(&mut self, side: Side, update: Update) {
        if !update.problems.is_empty() {
            let routes = update.withdrawn.iter().chain(&update.ignored).take(MAX_NAMED).copied().collect();
            self.notify(PairEvent::Malformed(side, update.problems, routes));
        }
        for nlri in update.withdrawn {
            if self.end_mut(side).rib_in.withdraw(&nlri).is_some() {
                self.withdraw(side, std::iter::once(nlri));
            }
        }
        let Some(attributes) = update.attributes else { return };
        let attributes = self.pool.intern(attributes);
        for nlri in update.announced {
            if self.is_full() {
                return self.out_of_memory(side);
            }
            self.on_announced(side, nlri, &attributes);
        }
    }

    /// Stops the session of this side, once: UPDATEs that came before its end may follow.
    fn out_of_memory(&mut self, side: Side) {
        if self.established(side).is_some() {
            self.notify(PairEvent::OutOfMemory(side));
            self.stop_session(side, StopReason::OutOfResources);
        }
    }

    fn on_announced(&mut self, side: Side, nlri: Nlri, attributes: &Arc<Attributes>) {
        match self.end_mut(side).rib_in.announce(nlri, Arc::clone(attributes)) {
            Announced::Unchanged => {}
            Announced::New | Announced::Replaced | Announced::NewWithWarning { .. } => {
                self.outputs.push_back(Output::Route { from: side, nlri, attributes: Some(Arc::clone(attributes)) });
            }
            Announced::Refused { .. } => self.notify(PairEvent::OverLimit(side, nlri)),
            Announced::StopSession { afi, limit } => {
                self.stop_session(side, StopReason::MaximumPrefixes { afi, limit });
            }
        }
    }

    /// A request for all routes goes on to the other end; what we have of its routes the peer sends at once. The marks
    /// of an answer are the answering end's, and routes that it did not name are withdrawn.
    fn on_refresh(&mut self, side: Side, afi: Afi, kind: RefreshKind) {
        let now = self.now.instant;
        let gone = match kind {
            RefreshKind::Request => {
                return self.peer(side.other(), peer::Input::Session(session::Input::Refresh { afi, kind }));
            }
            RefreshKind::Begin => self.end_mut(side).rib_in.mark_stale(afi, now + REFRESH_TIMEOUT),
            RefreshKind::End => self.end_mut(side).rib_in.purge_stale(afi),
            RefreshKind::Other(_) => return,
        };
        self.withdraw(side, gone.into_iter().map(|(nlri, _)| nlri));
    }

    /// The next output of either peer.
    fn next_of_peers(&mut self) -> Option<(Side, peer::Output)> {
        for side in Side::BOTH {
            let end = self.end_mut(side);
            if let Some(output) = end.peer.poll() {
                return Some((side, output));
            }
            if !end.peer.has_session() {
                end.connection = None;
            }
        }
        None
    }

    fn stop(&mut self, text: &str) {
        self.running = false;
        for side in Side::BOTH {
            let end = self.end_mut(side);
            end.connecting = None;
            let waiting = std::mem::take(&mut end.waiting);
            self.stop_session(side, StopReason::Shutdown(text.to_owned()));
            for waiting in waiting {
                self.tcp(side, TcpRequest::Close { connection: waiting.connection });
            }
        }
    }
}

impl Machine for SessionPair {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, input: Input, now: Now) {
        self.now = now;
        match input {
            Input::Start => self.running = true,
            Input::Stop(text) => self.stop(&text),
            Input::Wire(side, input) => self.on_wire(side, input),
        }
    }

    fn handle_timeout(&mut self, now: Now) {
        self.now = now;
        self.expire_waiting();
        for side in Side::BOTH {
            let end = self.end_mut(side);
            end.peer.handle_timeout(now);
            let gone = end.rib_in.purge_expired(now.instant);
            self.withdraw(side, gone.into_iter().map(|(nlri, _)| nlri));
        }
    }

    fn poll(&mut self) -> Option<Output> {
        loop {
            if let Some(output) = self.outputs.pop_front() {
                return Some(output);
            }
            if let Some((side, output)) = self.next_of_peers() {
                self.on_peer(side, output);
                continue;
            }
            let has_begun = self.begin_sessions();
            self.connect();
            if !has_begun && self.outputs.is_empty() {
                return None;
            }
        }
    }

    fn deadline(&self) -> Option<Instant> {
        let sessions = self.ends.iter().filter_map(|end| end.peer.deadline());
        let waiting = self.ends.iter().flat_map(|end| end.waiting.iter().map(WaitingConnection::until));
        let turns = self.ends.iter().filter(|end| end.waiting.len() > 1);
        let turns = turns.filter_map(|end| Some(end.waiting.first()?.turn_until()));
        let turns = turns.filter(|until| *until > self.now.instant);
        let stale = self.ends.iter().filter_map(|end| end.rib_in.deadline());
        let connects = Side::BOTH.into_iter().filter(|side| self.should_connect(*side));
        let connects = connects.map(|side| self.end(side).connect_at);
        sessions.chain(waiting).chain(turns).chain(stale).chain(connects).min()
    }
}
