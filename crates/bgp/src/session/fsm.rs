//! The transitions of RFC 4271 section 8.2.2; events are named by their numbers there.

use std::time::Duration;

use wayleave_core::{Afi, Instant};

use super::collision::CollisionOutcome;
use super::connection::{Connection, ReadResult, Stage};
use super::{Cause, ConnectionId, Ended, Established, Output, Session, Stop, StopReason, negotiate};
use crate::notification::{Notification, cease, code, finite_state_machine, open as open_error};
use crate::{Action, Message, MessageType, Open, RefreshKind, RouteRefresh, SessionParams, Update, end_of_rib};

/// Hold time until the peer's OPEN is known: "a large value", four minutes (RFC 4271 section 8.2.2).
const OPEN_HOLD: Duration = Duration::from_secs(240);

/// KEEPALIVEs per hold time (RFC 4271 section 10).
const KEEPALIVES_PER_HOLD_TIME: u32 = 3;

/// Least send hold time (RFC 9687 section 4.2: the greater of eight minutes and twice the hold time).
const SEND_HOLD: Duration = Duration::from_secs(480);

/// The error code of RFC 9687.
const SEND_HOLD_TIMER_EXPIRED: u8 = 8;

/// Doublings of the idle hold time, at most.
const MAX_DOUBLINGS: u32 = 16;

// Start, stop and the connections.
impl Session {
    /// Events 1, 3, 4, 5.
    pub(super) fn on_start(&mut self, now: Instant) {
        if !self.running {
            self.failures = 0;
            self.leave_idle(now);
        }
    }

    /// Events 2 and 8.
    pub(super) fn on_stop(&mut self, stop: &Stop, now: Instant) {
        let was_running = self.running;
        let notification = cease(&stop.reason);
        self.connections.iter_mut().for_each(|connection| connection.deferred = None);
        let ids: Vec<ConnectionId> = self.connections.iter().map(|connection| connection.id).collect();
        for id in ids {
            self.send_notification(id, &notification);
            self.end(id, Cause::Stopped(notification.clone()), now);
        }
        if stop.administrative {
            self.enter_idle();
        } else if was_running && self.running {
            self.idle_hold(now);
        }
    }

    /// Events 16 and 17.
    pub(super) fn on_connected(&mut self, id: ConnectionId, outgoing: bool, now: Instant) {
        if self.connections.iter().any(|connection| connection.id == id) {
            return;
        }
        let is_expected = !outgoing || self.connecting.take().is_some();
        if !self.running || !is_expected {
            return self.refuse(id, None);
        }
        let Some(replaced) = self.make_room(outgoing) else {
            return self.refuse(id, Some(cease::CONNECTION_COLLISION));
        };
        if outgoing {
            self.connect_retry = None;
        }
        self.connections.push(Connection::new(id, outgoing, negotiate::params_before_open(&self.config)));
        if let Some((old, cause)) = replaced {
            self.end(old, cause, now);
        }
        match self.config.delay_open {
            Some(span) => self.with(id, |connection| connection.delay_open = Some(now + span)),
            None => self.send_open(id, now),
        }
    }

    /// Whether there may be a further connection, and which one it replaces; `None` if it is one too many.
    fn make_room(&self, outgoing: bool) -> Option<Option<(ConnectionId, Cause)>> {
        if let Some(established) = self.established() {
            // RFC 4724 section 4.2: who keeps its routes through a restart takes a new connection for a restart.
            let restarts = established.negotiated.as_ref().is_some_and(|negotiated| negotiated.retain.is_some());
            return (restarts && !outgoing).then_some(Some((established.id, Cause::PeerRestarted)));
        }
        match self.connections.iter().find(|connection| connection.outgoing == outgoing) {
            None => Some(None),
            // A second connection of the peer's: it has forgotten the first if it has sent nothing there yet.
            Some(old) if old.stage <= Stage::OpenSent && old.deferred.is_none() => {
                Some(Some((old.id, Cause::ConnectionLost)))
            }
            Some(_) => None,
        }
    }

    fn refuse(&mut self, id: ConnectionId, subcode: Option<u8>) {
        self.counters.refused += 1;
        if let Some(subcode) = subcode {
            self.counters.sent.add(MessageType::Notification);
            let message = Message::Notification(Notification::new(code::CEASE, subcode));
            self.push_message(id, &message, &negotiate::params_before_open(&self.config));
        }
        self.outputs.push_back(Output::Close { connection: id });
    }

    /// Event 18, without a connection.
    pub(super) fn on_connect_failed(&mut self, attempt: u64, now: Instant) {
        if self.connecting != Some(attempt) {
            return;
        }
        self.connecting = None;
        self.connect_retry = Some(now + self.jitter.apply(self.config.connect_retry));
        self.report_connect_failed();
    }

    /// Event 18.
    pub(super) fn on_closed(&mut self, id: ConnectionId, now: Instant) {
        self.end(id, Cause::ConnectionLost, now);
    }

    fn report_connect_failed(&mut self) {
        let state = self.state();
        self.outputs.push_back(Output::Failed(Ended {
            connection: None,
            state,
            cause: Cause::ConnectFailed,
            retain: None,
        }));
    }

    fn leave_idle(&mut self, now: Instant) {
        self.running = true;
        self.idle_hold = None;
        if !self.config.passive {
            self.connect(now);
        }
    }

    fn connect(&mut self, now: Instant) {
        self.attempt += 1;
        self.counters.connects += 1;
        self.connecting = Some(self.attempt);
        self.connect_retry = Some(now + self.jitter.apply(self.config.connect_retry));
        self.outputs.push_back(Output::Connect { attempt: self.attempt });
    }

    fn enter_idle(&mut self) {
        self.running = false;
        self.connecting = None;
        self.connect_retry = None;
        self.idle_hold = None;
        self.failures = 0;
    }

    /// To Idle for a while, the longer the more often (`DampPeerOscillations`).
    fn idle_hold(&mut self, now: Instant) {
        let failures = self.failures.saturating_add(1);
        self.enter_idle();
        let doubled = self.config.idle_hold.saturating_mul(1 << (failures - 1).min(MAX_DOUBLINGS));
        self.idle_hold = Some(now + self.jitter.apply(doubled.min(self.config.idle_hold_most)));
        self.failures = failures;
    }

    /// Forgets a connection, reports it, and moves on to whatever state is left.
    pub(super) fn end(&mut self, id: ConnectionId, cause: Cause, now: Instant) {
        let Some(at) = self.connections.iter().position(|connection| connection.id == id) else { return };
        let connection = self.connections.swap_remove(at);
        self.outputs.push_back(Output::Close { connection: id });
        let mut ended = Ended { connection: Some(id), state: connection.state(), cause, retain: None };
        let lost = matches!(ended.cause, Cause::ConnectionLost | Cause::PeerRestarted);
        if connection.stage == Stage::Established {
            let retain = connection.negotiated.and_then(|negotiated| negotiated.retain);
            ended.retain = retain.filter(|retain| ended.cause.is_graceful(retain.notifications));
            let stood = self.established_at.take().map(|since| now.since(since));
            if stood.is_some_and(|stood| stood >= self.config.idle_hold_most) {
                self.failures = 0;
            }
            self.outputs.push_back(Output::Down(ended));
        } else {
            self.outputs.push_back(Output::Failed(ended));
        }
        match self.connections.first().map(|connection| connection.id) {
            Some(other) => self.resume_deferred_open(other, now),
            // Lost before the peer's OPEN: OpenSent goes to Active, not to Idle.
            None if lost && connection.stage <= Stage::OpenSent => {
                let retry = now + self.jitter.apply(self.config.connect_retry);
                self.connect_retry = self.connect_retry.or((!self.config.passive).then_some(retry));
            }
            None => self.idle_hold(now),
        }
    }

    /// Continues with an OPEN that was deferred.
    fn resume_deferred_open(&mut self, id: ConnectionId, now: Instant) {
        let Some(deferred) = self.connection(id).and_then(|connection| connection.deferred.take()) else { return };
        self.on_open(id, &deferred.open, false, now);
        self.read(id, now);
    }
}

// Messages of the peer.
impl Session {
    pub(super) fn on_bytes(&mut self, id: ConnectionId, bytes: &[u8], now: Instant) {
        let Some(connection) = self.connection(id) else { return };
        connection.push(bytes);
        self.counters.octets_received += bytes.len() as u64;
        self.read(id, now);
    }

    fn read(&mut self, id: ConnectionId, now: Instant) {
        while let Some(connection) = self.connection(id) {
            match connection.read() {
                ReadResult::Message(message) => self.on_message(id, message, now),
                ReadResult::Unexpected(kind) => self.on_unexpected(id, kind, now),
                // Events 21 and 22, and 28 where RFC 7606 leaves no milder way.
                ReadResult::Error(error) => {
                    let unspecific = || Notification::new(code::MESSAGE_HEADER, 0);
                    self.fail(id, error.notification().cloned().unwrap_or_else(unspecific), now);
                }
                ReadResult::Flooded => self.fail(id, Notification::new(code::CEASE, cease::OUT_OF_RESOURCES), now),
                ReadResult::Starved => return,
            }
        }
    }

    fn on_message(&mut self, id: ConnectionId, message: Message, now: Instant) {
        self.counters.received.add(message.kind());
        match message {
            Message::Open(open) => self.on_open(id, &open, true, now),
            Message::Keepalive => self.on_keepalive(id, now),
            Message::Update(update) => self.on_update(id, update, now),
            Message::RouteRefresh(refresh) => self.on_route_refresh(id, &refresh),
            // Events 24 and 25.
            Message::Notification(notification) => self.end(id, Cause::PeerEnded(notification), now),
        }
    }

    /// Event 19, or 20 while our own OPEN is delayed.
    fn on_open(&mut self, id: ConnectionId, open: &Open, patient: bool, now: Instant) {
        let negotiated = match negotiate::negotiate(&self.config, open) {
            Ok(negotiated) => negotiated,
            Err(notification) => {
                let unexpected = !self.config.peer_asn.accepts(open.asn);
                let cause = match negotiate::role_mismatch(&self.config, open) {
                    _ if unexpected => Cause::UnexpectedAs { announced: open.asn, notification },
                    Some((stated, expected)) if notification.subcode == open_error::ROLE_MISMATCH => {
                        Cause::RoleMismatch { stated, expected, notification }
                    }
                    _ => Cause::PeerErred(notification),
                };
                return self.fail_with(id, cause, now);
            }
        };
        if self.connection(id).is_some_and(|connection| connection.stage == Stage::OpenDelayed) {
            self.send_open(id, now);
        }
        match self.resolve_collision(id, open, &negotiated, patient, now) {
            CollisionOutcome::Yields => {}
            CollisionOutcome::Proceeds => self.confirm(id, negotiated, now),
        }
    }

    fn confirm(&mut self, id: ConnectionId, negotiated: negotiate::Negotiated, now: Instant) {
        self.with(id, |connection| {
            connection.params = negotiated.params;
            connection.negotiated = Some(Box::new(negotiated));
            connection.stage = Stage::OpenConfirm;
        });
        self.restart_hold(id, now);
        self.send_keepalive(id, now);
    }

    /// Event 26.
    fn on_keepalive(&mut self, id: ConnectionId, now: Instant) {
        self.restart_hold(id, now);
        if self.connection(id).is_some_and(|connection| connection.stage == Stage::OpenConfirm) {
            self.establish(id, now);
        }
    }

    fn establish(&mut self, id: ConnectionId, now: Instant) {
        let transparent = self.config.transparent;
        let Some(connection) = self.connection(id) else { return };
        let Some(negotiated) = connection.negotiated.as_deref().cloned() else { return };
        connection.stage = Stage::Established;
        self.connecting = None;
        self.connect_retry = None;
        self.established_at = Some(now);
        self.counters.established += 1;
        if let Some(other) = self.connections.iter().find(|connection| connection.id != id).map(|other| other.id) {
            self.close_loser(other, now);
        }
        self.outputs.push_back(Output::Up(Box::new(Established {
            connection: id,
            params: negotiated.params,
            peer_id: negotiated.peer_id,
            peer_asn: negotiated.params.peer_asn,
            hold_time: negotiated.hold_time,
            route_refresh: negotiated.route_refresh,
            enhanced_route_refresh: negotiated.enhanced_route_refresh,
            end_of_rib: negotiated.end_of_rib,
            retain: negotiated.retain,
            peer_restarted: negotiated.peer_restarted,
            forwarding_kept: negotiated.forwarding_kept,
            transparent,
            peer_capabilities: negotiated.peer_capabilities,
        })));
    }

    /// Event 27, after RFC 7606.
    fn on_update(&mut self, id: ConnectionId, update: Update, now: Instant) {
        self.restart_hold(id, now);
        if let Some(action) = update.action() {
            self.counters.malformed_updates += 1;
            match action {
                Action::TreatAsWithdraw => self.counters.treated_as_withdraw += 1,
                Action::DiscardAttribute => self.counters.attributes_discarded += 1,
                _ => {}
            }
        }
        self.outputs.push_back(match update.end_of_rib {
            Some(afi) if update.problems.is_empty() => Output::EndOfRib(afi),
            _ => Output::Update(Box::new(update)),
        });
    }

    fn on_route_refresh(&mut self, id: ConnectionId, refresh: &RouteRefresh) {
        let Some(negotiated) = self.connection(id).and_then(|connection| connection.negotiated.as_deref()) else {
            return;
        };
        let afi = refresh.family().filter(|&afi| negotiated.params.has_family(afi));
        let understood = match refresh.kind {
            RefreshKind::Request => negotiated.route_refresh,
            RefreshKind::Begin | RefreshKind::End => negotiated.enhanced_route_refresh,
            RefreshKind::Other(_) => false,
        };
        match afi.filter(|_| understood) {
            Some(afi) => self.outputs.push_back(Output::RouteRefresh { afi, kind: refresh.kind }),
            None => self.counters.refreshes_ignored += 1,
        }
    }

    /// A message out of its place (RFC 4271 section 6.5; RFC 6608: the data is its type).
    fn on_unexpected(&mut self, id: ConnectionId, kind: MessageType, now: Instant) {
        let Some(connection) = self.connection(id) else { return };
        let subcode = match connection.stage {
            Stage::OpenDelayed => finite_state_machine::UNSPECIFIED,
            Stage::OpenSent => finite_state_machine::IN_OPEN_SENT,
            Stage::OpenConfirm => finite_state_machine::IN_OPEN_CONFIRM,
            Stage::Established => finite_state_machine::IN_ESTABLISHED,
        };
        self.fail(id, Notification::with_data(code::FINITE_STATE_MACHINE, subcode, [kind.octet()]), now);
    }

    /// Ends a connection whose peer erred.
    fn fail(&mut self, id: ConnectionId, notification: Notification, now: Instant) {
        self.fail_with(id, Cause::PeerErred(notification), now);
    }

    fn fail_with(&mut self, id: ConnectionId, cause: Cause, now: Instant) {
        self.counters.peer_errors += 1;
        if let Some(notification) = cause.notification() {
            self.send_notification(id, notification);
        }
        self.end(id, cause, now);
    }
}

// Our messages.
impl Session {
    pub(super) fn on_send(&mut self, messages: Vec<Vec<u8>>, now: Instant) {
        let Some(id) = self.established().map(|connection| connection.id) else {
            self.counters.dropped += messages.len() as u64;
            return;
        };
        if messages.is_empty() {
            return;
        }
        for bytes in messages {
            let kind = bytes.get(18).copied().and_then(MessageType::from_octet).unwrap_or(MessageType::Update);
            self.counters.sent.add(kind);
            self.push_bytes(id, bytes);
        }
        self.restart_keepalive(id, now);
    }

    pub(super) fn on_send_end_of_rib(&mut self, afi: Afi, now: Instant) {
        if self.established().is_some_and(|connection| connection.params.has_family(afi)) {
            self.on_send(vec![end_of_rib(afi)], now);
        }
    }

    pub(super) fn on_send_refresh(&mut self, afi: Afi, kind: RefreshKind) {
        let Some(connection) = self.established() else { return };
        let agreed = connection.negotiated.as_ref().is_some_and(|negotiated| match kind {
            RefreshKind::Request => negotiated.route_refresh,
            _ => negotiated.enhanced_route_refresh,
        });
        let (id, params) = (connection.id, connection.params);
        if agreed && params.has_family(afi) {
            self.counters.sent.add(MessageType::RouteRefresh);
            let refresh = RouteRefresh { kind, ..RouteRefresh::request(afi) };
            self.push_message(id, &Message::RouteRefresh(refresh), &params);
        }
    }

    pub(super) fn on_blocked(&mut self, id: ConnectionId, now: Instant) {
        self.with(id, |connection| {
            let span = connection.hold_span();
            connection.blocked = true;
            connection.send_hold =
                connection.send_hold.or_else(|| span.map(|hold_time| now + SEND_HOLD.max(hold_time * 2)));
        });
    }

    pub(super) fn on_writable(&mut self, id: ConnectionId, now: Instant) {
        let Some(connection) = self.connection(id) else { return };
        connection.blocked = false;
        connection.send_hold = None;
        if std::mem::take(&mut connection.keepalive_owed) {
            self.send_keepalive(id, now);
        }
    }

    fn send_open(&mut self, id: ConnectionId, now: Instant) {
        let open = negotiate::our_open(&self.config);
        self.with(id, |connection| {
            connection.stage = Stage::OpenSent;
            connection.delay_open = None;
            connection.hold = Some(now + OPEN_HOLD);
        });
        self.send(id, &Message::Open(open));
    }

    fn send_keepalive(&mut self, id: ConnectionId, now: Instant) {
        self.restart_keepalive(id, now);
        let Some(connection) = self.connection(id) else { return };
        match connection.blocked {
            true => connection.keepalive_owed = true,
            false => self.send(id, &Message::Keepalive),
        }
    }

    pub(super) fn send_notification(&mut self, id: ConnectionId, notification: &Notification) {
        self.send(id, &Message::Notification(notification.clone()));
    }

    fn send(&mut self, id: ConnectionId, message: &Message) {
        let Some(params) = self.connection(id).map(|connection| connection.params) else { return };
        self.counters.sent.add(message.kind());
        self.push_message(id, message, &params);
    }

    fn push_message(&mut self, id: ConnectionId, message: &Message, params: &SessionParams) {
        // Only an UPDATE can be too long, or NOTIFICATION data: then its code alone goes out.
        let bytes = message.encode(params).or_else(|error| match message {
            Message::Notification(long) => {
                Message::Notification(Notification::new(long.code, long.subcode)).encode(params)
            }
            _ => Err(error),
        });
        if let Ok(bytes) = bytes {
            self.push_bytes(id, bytes);
        }
    }

    fn push_bytes(&mut self, id: ConnectionId, bytes: Vec<u8>) {
        self.counters.octets_sent += bytes.len() as u64;
        self.outputs.push_back(Output::Send { connection: id, bytes });
    }
}

// Timers.
impl Session {
    pub(super) fn on_timeout(&mut self, now: Instant) {
        let due = |timer: Option<Instant>| timer.is_some_and(|at| at <= now);
        if due(self.idle_hold) {
            // Event 13.
            self.leave_idle(now);
        }
        if due(self.connect_retry) {
            self.on_connect_retry_expired(now);
        }
        let ids: Vec<ConnectionId> = self.connections.iter().map(|connection| connection.id).collect();
        for id in ids {
            self.on_connection_timeout(id, now);
        }
    }

    /// Event 9.
    fn on_connect_retry_expired(&mut self, now: Instant) {
        self.connect_retry = None;
        if self.connecting.take().is_some() {
            self.report_connect_failed();
        }
        // A connection of the peer's that has not come to OpenConfirm may stay silent for ever; ours may be answered.
        let needless = |connection: &Connection| connection.outgoing || connection.stage >= Stage::OpenConfirm;
        if self.running && !self.config.passive && !self.connections.iter().any(needless) {
            self.connect(now);
        }
    }

    fn on_connection_timeout(&mut self, id: ConnectionId, now: Instant) {
        let due = |timer: Option<Instant>| timer.is_some_and(|at| at <= now);
        let Some(connection) = self.connection(id) else { return };
        if due(connection.hold) {
            // Event 10.
            self.send_notification(id, &Notification::new(code::HOLD_TIMER_EXPIRED, 0));
            return self.end(id, Cause::HoldTimerExpired, now);
        }
        if due(connection.send_hold) {
            self.send_notification(id, &Notification::new(SEND_HOLD_TIMER_EXPIRED, 0));
            return self.end(id, Cause::SendHoldTimerExpired, now);
        }
        if due(connection.delay_open) {
            // Event 12.
            return self.send_open(id, now);
        }
        if due(connection.keepalive) {
            // Event 11.
            self.send_keepalive(id, now);
        }
        let deferred =
            self.connection(id).and_then(|connection| connection.deferred.as_ref().map(|deferred| deferred.until));
        if due(deferred) {
            self.resume_deferred_open(id, now);
        }
    }

    fn restart_hold(&mut self, id: ConnectionId, now: Instant) {
        self.with(id, |connection| connection.hold = connection.hold_span().map(|span| now + span));
    }

    fn restart_keepalive(&mut self, id: ConnectionId, now: Instant) {
        let Some(span) = self.connection(id).and_then(|connection| connection.hold_span()) else { return };
        let interval = self.jitter.apply(span / KEEPALIVES_PER_HOLD_TIME);
        self.with(id, |connection| connection.keepalive = Some(now + interval));
    }

    fn with(&mut self, id: ConnectionId, change: impl FnOnce(&mut Connection)) {
        if let Some(connection) = self.connection(id) {
            change(connection);
        }
    }
}

fn cease(reason: &StopReason) -> Notification {
    match reason {
        StopReason::Shutdown(text) => Notification::shutdown(cease::ADMINISTRATIVE_SHUTDOWN, text),
        StopReason::Reset(text) => Notification::shutdown(cease::ADMINISTRATIVE_RESET, text),
        StopReason::Deconfigured => Notification::new(code::CEASE, cease::PEER_DECONFIGURED),
        StopReason::ConfigurationChange => Notification::new(code::CEASE, cease::OTHER_CONFIGURATION_CHANGE),
        StopReason::MaximumPrefixes { afi, limit } => {
            // RFC 4486 section 4: AFI, SAFI, limit.
            let mut data = afi.code().to_be_bytes().to_vec();
            data.push(1);
            data.extend_from_slice(&limit.to_be_bytes());
            Notification::with_data(code::CEASE, cease::MAXIMUM_PREFIXES, data)
        }
        StopReason::OutOfResources => Notification::new(code::CEASE, cease::OUT_OF_RESOURCES),
        StopReason::PassedOn(notification) => notification.clone(),
    }
}
