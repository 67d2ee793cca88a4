//! Two sessions that pass for each other's far ends: what comes in at one goes out at the other, and they fall together.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use wayleave_bgp::notification::{cease, code};
use wayleave_bgp::rib::{AdjRibIn, AdjRibOut, Announced, AttributePool};
use wayleave_bgp::session::StopReason;
use wayleave_bgp::session::{self, Cause, ConnectionId, Counters, Ended, Established, PeerAsn, Session, State, Stop};
use wayleave_bgp::{Attributes, Capability, Message, Nlri, Notification, Open, RefreshKind, SessionParams, Update};
use wayleave_core::{Afi, Asn, Instant, Machine, Now};

use super::open_rewrite::config_towards;
use super::open_timeout::{Caller, Heard};
pub use super::side::{EndConfig, Input, Output, PairConfig, PairEvent, Side};

/// Routes that one batch of messages holds at most.
const BATCH: usize = 20_000;
/// Between two attempts to connect.
const CONNECT_RETRY: Duration = Duration::from_secs(5);
/// The first rest after a failure, doubled by each further one, and the longest.
const REST: Duration = Duration::from_secs(1);
const MOST_REST: Duration = Duration::from_secs(60);
/// Connections that wait at one door.
const MOST_CALLERS: usize = 4;
/// How long a refresh may take before what it did not name goes (RFC 7313 section 4).
const REFRESH_PATIENCE: Duration = Duration::from_secs(600);

const FAMILIES: [Afi; 2] = [Afi::Ipv4, Afi::Ipv6];

struct End {
    config: EndConfig,
    callers: Vec<Caller>,
    /// The attempt to connect that is under way.
    connecting: Option<u64>,
    attempt: u64,
    /// No attempt before.
    connect_at: Instant,
    session: Option<Session>,
    /// The session's connection, heard along until its OPEN has come.
    heard: Option<Caller>,
    established: Option<Established>,
    rib_in: AdjRibIn,
    out: AdjRibOut,
    /// Families whose end is still to be told to this side, IPv4 then IPv6.
    end_of_rib: [bool; 2],
    /// Of sessions that are over.
    past: Counters,
}

impl End {
    fn new(config: EndConfig) -> Self {
        let limits = config.limits;
        Self {
            config,
            callers: Vec::new(),
            connecting: None,
            attempt: 0,
            connect_at: Instant(0),
            session: None,
            heard: None,
            established: None,
            rib_in: AdjRibIn::new(limits),
            out: AdjRibOut::new(),
            end_of_rib: [false; 2],
            past: Counters::default(),
        }
    }

    /// What the peer said of itself.
    fn open(&self) -> Option<&Open> {
        self.heard.iter().chain(&self.callers).find_map(|caller| caller.open.as_ref())
    }

    /// The caller that gets our OPEN: one that has spoken, or the only one; of several that are silent, the first after
    /// a while, since a proxy at the other end may wait for us as we do for it.
    fn chosen(&self, now: Instant) -> Option<usize> {
        let spoken = self.callers.iter().position(|caller| caller.open.is_some());
        spoken.or(match self.callers.as_slice() {
            [] => None,
            [_] => Some(0),
            [first, ..] => (first.patient_until() <= now).then_some(0),
        })
    }
}

/// Two sessions, and between them a gap that only whoever judges routes bridges.
pub struct SessionPair {
    ends: [End; 2],
    more: [Vec<Capability>; 2],
    pool: AttributePool,
    running: bool,
    /// The first session of the two has ended, and the second follows.
    falling: bool,
    failures: u32,
    up_since: Option<Instant>,
    seed: u64,
    outputs: VecDeque<Output>,
    now: Now,
}

// What others see.
impl SessionPair {
    /// A pair at rest; `seed` feeds the jitter of its sessions' timers.
    #[must_use]
    pub fn new(config: PairConfig, seed: u64, now: Now) -> Self {
        Self {
            ends: config.ends.map(End::new),
            more: config.more,
            pool: AttributePool::new(),
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
        self.end(side).established.as_ref()
    }

    /// The state of this side's session.
    #[must_use]
    pub fn state(&self, side: Side) -> State {
        let end = self.end(side);
        match &end.session {
            Some(session) => session.state(),
            None if !self.running => State::Idle,
            None if end.connecting.is_some() => State::Connect,
            None => State::Active,
        }
    }

    /// Whether this side's peer has called and waits for the other side.
    #[must_use]
    pub fn waits(&self, side: Side) -> bool {
        let end = self.end(side);
        end.session.is_none() && end.open().is_some()
    }

    /// What this side's sessions have counted since the pair was made.
    #[must_use]
    pub fn counters(&self, side: Side) -> Counters {
        let end = self.end(side);
        let mut counters = end.past;
        if let Some(session) = &end.session {
            add(&mut counters, session.counters());
        }
        counters
    }

    /// What this side announces.
    #[must_use]
    pub fn rib_in(&self, side: Side) -> &AdjRibIn {
        &self.end(side).rib_in
    }

    /// What this side shall have.
    #[must_use]
    pub fn rib_out(&self, side: Side) -> &AdjRibOut {
        &self.end(side).out
    }

    /// What our OPEN towards this side says beyond the other end's, from the next session on.
    pub fn set_more(&mut self, side: Side, more: Vec<Capability>) {
        self.more[side.index()] = more;
    }

    /// Whether a session takes routes and has some to send: [`Machine::poll`] will say more.
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.ends.iter().any(|end| {
            let writable = end.session.as_ref().is_some_and(Session::is_writable) && end.established.is_some();
            writable && (end.out.is_due() || end.end_of_rib != [false; 2])
        })
    }

    /// Lets go of attributes that no route has any more; to be called now and then.
    pub fn sweep(&mut self) {
        self.pool.sweep();
    }

    /// `to` shall have this route, or none with this key.
    pub fn route(&mut self, to: Side, nlri: Nlri, attributes: Option<Arc<Attributes>>) {
        let out = &mut self.end_mut(to).out;
        match attributes {
            Some(attributes) => out.announce(nlri, attributes),
            None => out.withdraw(&nlri),
        }
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

    /// `to` shall hear, once all routes are out, that these were all of the family.
    pub fn end_of_rib(&mut self, to: Side, afi: Afi) {
        let place = usize::from(afi == Afi::Ipv6);
        self.end_mut(to).end_of_rib[place] = true;
    }

    fn end(&self, side: Side) -> &End {
        &self.ends[side.index()]
    }

    fn end_mut(&mut self, side: Side) -> &mut End {
        &mut self.ends[side.index()]
    }

    fn tell(&mut self, event: PairEvent) {
        self.outputs.push_back(Output::Event(event));
    }
}

// The doors.
impl SessionPair {
    fn on_wire(&mut self, side: Side, input: session::Input) {
        let (now, running) = (self.now, self.running);
        let end = self.end_mut(side);
        match input {
            session::Input::Connected { connection, outgoing } => {
                let asked_for = !outgoing || end.connecting.take().is_some();
                if !running || !asked_for || end.session.is_some() || end.callers.len() >= MOST_CALLERS {
                    return self.refuse(side, connection, cease::CONNECTION_COLLISION);
                }
                let callers = end.callers.len() as u64;
                let jitter = Duration::from_millis(self.seed.wrapping_add(callers) % 4_000);
                self.end_mut(side).callers.push(Caller::new(connection, now.instant, jitter));
            }
            session::Input::ConnectFailed { attempt } => {
                if end.connecting == Some(attempt) {
                    end.connecting = None;
                    end.connect_at = now.instant + CONNECT_RETRY;
                    let ended =
                        Ended { connection: None, state: State::Connect, cause: Cause::ConnectFailed, retain: None };
                    self.tell(PairEvent::Failed(side, ended));
                }
            }
            session::Input::Bytes { connection, bytes } if end.callers.iter().any(|c| c.connection == connection) => {
                self.hear(side, connection, &bytes);
            }
            session::Input::Closed { connection } if end.callers.iter().any(|c| c.connection == connection) => {
                end.callers.retain(|caller| caller.connection != connection);
                end.connect_at = end.connect_at.max(now.instant + CONNECT_RETRY);
                self.left(side);
            }
            other => {
                if let (session::Input::Bytes { connection, bytes }, Some(heard)) = (&other, &mut end.heard)
                    && heard.connection == *connection
                    && heard.open.is_none()
                {
                    // What is wrong with it the session says.
                    let _ = heard.hear(bytes, end.config.peer_asn, now.instant);
                }
                if let Some(session) = &mut end.session {
                    session.handle(other, now);
                }
            }
        }
    }

    fn hear(&mut self, side: Side, connection: ConnectionId, bytes: &[u8]) {
        let now = self.now.instant;
        let end = self.end_mut(side);
        let expected = end.config.peer_asn;
        let Some(at) = end.callers.iter().position(|caller| caller.connection == connection) else { return };
        match end.callers[at].hear(bytes, expected, now) {
            Heard::Nothing => {}
            Heard::Open => {
                // Whoever spoke first is kept: only one connection ever gets our OPEN, so that none collides.
                let kept = end.callers.swap_remove(at);
                let others = std::mem::replace(&mut end.callers, vec![kept]);
                self.refuse_all(side, others);
            }
            Heard::Wrong(notification) => {
                end.callers.remove(at);
                end.connect_at = end.connect_at.max(now + CONNECT_RETRY);
                self.dismiss(side, connection, notification.clone());
                self.left(side);
                let cause = Cause::PeerErred(notification);
                let ended = Ended { connection: Some(connection), state: State::Active, cause, retain: None };
                self.tell(PairEvent::Failed(side, ended));
            }
        }
    }

    fn refuse_all(&mut self, side: Side, callers: Vec<Caller>) {
        for caller in callers {
            self.refuse(side, caller.connection, cease::CONNECTION_COLLISION);
        }
    }

    /// A caller has left. The other end may have been told of it already.
    fn left(&mut self, side: Side) {
        let end = self.end(side);
        if end.session.is_none() && end.open().is_none() && self.end(side.other()).session.is_some() {
            self.fall(side, &Cause::ConnectionLost);
        }
    }

    fn refuse(&mut self, side: Side, connection: ConnectionId, subcode: u8) {
        self.dismiss(side, connection, Notification::new(code::CEASE, subcode));
    }

    fn dismiss(&mut self, side: Side, connection: ConnectionId, notification: Notification) {
        let params = SessionParams::new(Asn(0), Asn(0));
        if let Ok(bytes) = Message::Notification(notification).encode(&params) {
            self.outputs.push_back(Output::Send { side, connection, bytes });
        }
        self.outputs.push_back(Output::Close { side, connection });
    }

    /// What one end has said of itself is said to the other, once that one is there too.
    fn meet(&mut self) -> bool {
        let mut met = false;
        for side in Side::BOTH {
            let Some(open) = self.end(side.other()).open().cloned() else { continue };
            let now = self.now;
            let end = self.end_mut(side);
            if end.session.is_some() {
                continue;
            }
            let Some(chosen) = end.chosen(now.instant) else { continue };
            let caller = end.callers.swap_remove(chosen);
            let others = std::mem::take(&mut end.callers);
            let peer_asn = caller.open.as_ref().map_or(end.config.peer_asn, |open| PeerAsn::Exactly(open.asn));
            self.refuse_all(side, others);
            let mut config = config_towards(peer_asn, &open, self.more[side.index()].clone());
            config.enforce_first_as = self.end(side).config.first_as;
            self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let mut session = Session::new(config, self.seed);
            let connection = caller.connection;
            session.handle(session::Input::Start, now);
            session.handle(session::Input::Connected { connection, outgoing: false }, now);
            if !caller.octets.is_empty() {
                session.handle(session::Input::Bytes { connection, bytes: caller.octets.clone() }, now);
            }
            let end = self.end_mut(side);
            (end.session, end.heard, end.connecting) = (Some(session), Some(caller), None);
            self.falling = false;
            met = true;
        }
        met
    }

    /// Connects where we shall and somebody waits, or nobody else would begin.
    fn dial(&mut self) {
        for side in Side::BOTH {
            let other = self.end(side.other());
            let wanted = other.open().is_some() || (other.session.is_none() && other.config.connects);
            let now = self.now.instant;
            let running = self.running;
            let end = self.end_mut(side);
            let idle = end.session.is_none() && end.callers.is_empty() && end.connecting.is_none();
            if running && end.config.connects && wanted && idle && end.connect_at <= now {
                end.attempt += 1;
                let attempt = end.attempt;
                end.connecting = Some(attempt);
                self.outputs.push_back(Output::Connect { side, attempt });
            }
        }
    }

    /// Shows the door to whoever has waited too long.
    fn expire_callers(&mut self) {
        let now = self.now.instant;
        for side in Side::BOTH {
            let end = self.end_mut(side);
            let (late, kept): (Vec<Caller>, Vec<Caller>) =
                std::mem::take(&mut end.callers).into_iter().partition(|caller| caller.until() <= now);
            end.callers = kept;
            for caller in late {
                self.end_mut(side).connect_at = now + CONNECT_RETRY;
                self.outputs.push_back(Output::Close { side, connection: caller.connection });
                self.left(side);
            }
        }
    }
}

// The sessions.
impl SessionPair {
    fn on_session(&mut self, side: Side, output: session::Output) {
        match output {
            // A passive session never asks.
            session::Output::Connect { .. } => {}
            session::Output::Send { connection, bytes } => {
                self.outputs.push_back(Output::Send { side, connection, bytes })
            }
            session::Output::Close { connection } => self.outputs.push_back(Output::Close { side, connection }),
            session::Output::Up(established) => self.on_up(side, established),
            session::Output::Down(ended) => {
                self.fall(side, &ended.cause);
                self.tell(PairEvent::Down(side, ended));
            }
            session::Output::Failed(ended) => {
                self.fall(side, &ended.cause);
                self.tell(PairEvent::Failed(side, ended));
            }
            session::Output::Update(update) => self.on_update(side, *update),
            session::Output::RouteRefresh { afi, kind } => self.on_refresh(side, afi, kind),
            session::Output::EndOfRib(afi) => {
                let gone = self.end_mut(side).rib_in.purge_stale(afi);
                self.gone(side, gone.into_iter().map(|(nlri, _)| nlri));
                self.outputs.push_back(Output::EndOfRib { from: side, afi });
            }
        }
    }

    fn on_up(&mut self, side: Side, established: Box<Established>) {
        let now = self.now.instant;
        let end = self.end_mut(side);
        // The end of the routes is the other end's to tell.
        end.out.session_up(established.params, false);
        end.established = Some((*established).clone());
        if self.ends.iter().all(|end| end.established.is_some()) {
            self.up_since = Some(now);
        }
        self.tell(PairEvent::Up(side, established));
    }

    /// One side is gone: the other is told the same and goes too.
    fn fall(&mut self, side: Side, cause: &Cause) {
        self.clear(side);
        let reason = match cause {
            Cause::PeerEnded(notification) => StopReason::PassedOn(notification.clone()),
            cause => StopReason::Reset(format!("the session beyond ended: {cause}")),
        };
        let now = self.now;
        let other = self.end_mut(side.other());
        if let Some(session) = &mut other.session {
            session.handle(session::Input::Stop(Stop { administrative: true, reason }), now);
        }
        if std::mem::replace(&mut self.falling, true) {
            return;
        }
        if let Some(since) = self.up_since.take()
            && now.instant.since(since) >= MOST_REST
        {
            self.failures = 0;
        }
        let rest = REST.saturating_mul(1 << self.failures.min(6)).min(MOST_REST);
        self.failures = self.failures.saturating_add(1);
        for end in &mut self.ends {
            end.connect_at = end.connect_at.max(now.instant + rest);
        }
    }

    /// Forgets a side's session and withdraws its routes.
    fn clear(&mut self, side: Side) {
        let end = self.end_mut(side);
        end.established = None;
        end.out.session_down();
        end.end_of_rib = [false; 2];
        let gone = end.rib_in.clear();
        // Its session is dropped once it has nothing more to say.
        self.gone(side, gone.into_iter().map(|(nlri, _)| nlri));
    }

    fn gone(&mut self, from: Side, routes: impl Iterator<Item = Nlri>) {
        self.outputs.extend(routes.map(|nlri| Output::Route { from, nlri, attributes: None }));
    }

    fn on_update(&mut self, side: Side, update: Update) {
        if !update.problems.is_empty() {
            self.tell(PairEvent::Malformed(side, update.problems));
        }
        for nlri in update.withdrawn {
            if self.end_mut(side).rib_in.withdraw(&nlri).is_some() {
                self.gone(side, std::iter::once(nlri));
            }
        }
        let Some(attributes) = update.attributes else { return };
        let attributes = self.pool.intern(attributes);
        for nlri in update.announced {
            self.on_announced(side, nlri, &attributes);
        }
    }

    fn on_announced(&mut self, side: Side, nlri: Nlri, attributes: &Arc<Attributes>) {
        let now = self.now;
        let end = self.end_mut(side);
        match end.rib_in.announce(nlri, Arc::clone(attributes)) {
            Announced::Unchanged => {}
            Announced::New | Announced::Replaced | Announced::NewWithWarning { .. } => {
                self.outputs.push_back(Output::Route { from: side, nlri, attributes: Some(Arc::clone(attributes)) });
            }
            Announced::Refused { .. } => self.tell(PairEvent::OverLimit(side, nlri)),
            Announced::StopSession { afi, limit } => {
                let reason = StopReason::MaximumPrefixes { afi, limit };
                if let Some(session) = &mut end.session {
                    session.handle(session::Input::Stop(Stop { administrative: true, reason }), now);
                }
            }
        }
    }

    /// A refresh is asked of the other end too; what we have goes out again at once. The marks of an answer are the
    /// answering end's, and what it no longer names goes.
    fn on_refresh(&mut self, side: Side, afi: Afi, kind: RefreshKind) {
        let now = self.now;
        match kind {
            RefreshKind::Request => {
                let end = self.end_mut(side);
                let marked = end.established.as_ref().is_some_and(|up| up.enhanced_route_refresh);
                end.out.refresh(afi, marked);
                if let Some(session) = &mut self.end_mut(side.other()).session {
                    session.handle(session::Input::Refresh { afi, kind }, now);
                }
            }
            RefreshKind::Begin => {
                let gone = self.end_mut(side).rib_in.mark_stale(afi, now.instant + REFRESH_PATIENCE);
                self.gone(side, gone.into_iter().map(|(nlri, _)| nlri));
            }
            RefreshKind::End => {
                let gone = self.end_mut(side).rib_in.purge_stale(afi);
                self.gone(side, gone.into_iter().map(|(nlri, _)| nlri));
            }
            RefreshKind::Other(_) => {}
        }
    }

    /// Gives a session the next batch of routes, if one is due and its peer takes it; then the ends that are owed.
    fn flush(&mut self, side: Side) -> bool {
        let now = self.now;
        let end = self.end_mut(side);
        let Some(session) = end.session.as_mut().filter(|session| session.is_writable()) else { return false };
        let Some(established) = &end.established else { return false };
        if end.out.is_due() {
            let batch = end.out.next_batch(BATCH);
            session.handle(session::Input::Send(batch.messages), now);
            for rejected in batch.rejected {
                self.tell(PairEvent::Rejected(side, rejected));
            }
            return true;
        }
        let owed = std::mem::take(&mut end.end_of_rib);
        for (afi, _) in FAMILIES.into_iter().zip(owed).filter(|(_, owed)| *owed && established.end_of_rib) {
            session.handle(session::Input::SendEndOfRib(afi), now);
        }
        owed != [false; 2]
    }

    /// The next word of either session.
    fn next_of_sessions(&mut self) -> Option<(Side, session::Output)> {
        for side in Side::BOTH {
            let end = self.end_mut(side);
            let Some(session) = &mut end.session else { continue };
            if let Some(output) = session.poll() {
                return Some((side, output));
            }
            // An ended session has said all.
            if matches!(session.state(), State::Idle | State::Active | State::Connect) {
                let counters = *session.counters();
                add(&mut end.past, &counters);
                (end.session, end.heard) = (None, None);
            }
        }
        None
    }

    fn stop(&mut self, text: &str) {
        self.running = false;
        let now = self.now;
        for side in Side::BOTH {
            let end = self.end_mut(side);
            end.connecting = None;
            let callers = std::mem::take(&mut end.callers);
            if let Some(session) = &mut end.session {
                let reason = StopReason::Shutdown(text.to_owned());
                session.handle(session::Input::Stop(Stop { administrative: true, reason }), now);
            }
            for caller in callers {
                self.outputs.push_back(Output::Close { side, connection: caller.connection });
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
        self.expire_callers();
        for side in Side::BOTH {
            let end = self.end_mut(side);
            if let Some(session) = &mut end.session {
                session.handle_timeout(now);
            }
            let gone = end.rib_in.purge_expired(now.instant);
            self.gone(side, gone.into_iter().map(|(nlri, _)| nlri));
        }
    }

    fn poll(&mut self) -> Option<Output> {
        loop {
            if let Some(output) = self.outputs.pop_front() {
                return Some(output);
            }
            if let Some((side, output)) = self.next_of_sessions() {
                self.on_session(side, output);
                continue;
            }
            let met = self.meet();
            self.dial();
            let flushed = Side::BOTH.map(|side| self.flush(side));
            if !met && flushed == [false; 2] && self.outputs.is_empty() {
                return None;
            }
        }
    }

    fn deadline(&self) -> Option<Instant> {
        let sessions = self.ends.iter().filter_map(|end| end.session.as_ref()?.deadline());
        let callers = self.ends.iter().flat_map(|end| end.callers.iter().map(Caller::until));
        let patience = self.ends.iter().filter(|end| end.callers.len() > 1);
        let patience = patience.filter_map(|end| Some(end.callers.first()?.patient_until()));
        let patience = patience.filter(|until| *until > self.now.instant);
        let stale = self.ends.iter().filter_map(|end| end.rib_in.deadline());
        let dials = Side::BOTH.into_iter().filter_map(|side| {
            let (end, other) = (self.end(side), self.end(side.other()));
            let wanted = other.open().is_some() || (other.session.is_none() && other.config.connects);
            let idle = end.session.is_none() && end.callers.is_empty() && end.connecting.is_none();
            (self.running && end.config.connects && wanted && idle).then_some(end.connect_at)
        });
        sessions.chain(callers).chain(patience).chain(stale).chain(dials).min()
    }
}

/// Adds what a session counted.
fn add(sum: &mut Counters, counters: &Counters) {
    for (sum, part) in [(&mut sum.received, &counters.received), (&mut sum.sent, &counters.sent)] {
        sum.open += part.open;
        sum.update += part.update;
        sum.notification += part.notification;
        sum.keepalive += part.keepalive;
        sum.route_refresh += part.route_refresh;
    }
    sum.octets_received += counters.octets_received;
    sum.octets_sent += counters.octets_sent;
    sum.established += counters.established;
    sum.peer_errors += counters.peer_errors;
    sum.malformed_updates += counters.malformed_updates;
    sum.treated_as_withdraw += counters.treated_as_withdraw;
    sum.attributes_discarded += counters.attributes_discarded;
    sum.refreshes_ignored += counters.refreshes_ignored;
    sum.dropped += counters.dropped;
}
