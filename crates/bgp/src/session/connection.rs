//! One TCP connection of a session: its stage, its timers, and the octets that are no whole message yet.

use std::time::Duration;

use wayleave_core::Instant;

use super::negotiate::Negotiated;
use super::{ConnectionId, State};
use crate::{Message, MessageError, MessageType, Open, SessionParams, frame};

/// Octets that may wait unread behind an OPEN that is deferred: no honest peer sends anything more before ours.
const MAX_OCTETS_WHILE_DEFERRED: usize = 4_096;

/// A buffer that grew for one long message is given back above this many octets.
const MAX_OCTETS_KEPT: usize = 8_192;

/// How far a connection has come.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Stage {
    /// Our OPEN waits (RFC 4271 section 8.1.1, `DelayOpen`); the RFC counts this to Connect or Active.
    OpenDelayed,
    OpenSent,
    OpenConfirm,
    Established,
}

/// What reading gave.
pub(super) enum ReadResult {
    Message(Message),
    /// A message that is not allowed in this stage.
    Unexpected(MessageType),
    Error(MessageError),
    /// Nothing to do until more octets come.
    Starved,
    /// More octets wait behind an OPEN that is deferred than an honest peer sends.
    Flooded,
}

/// An OPEN that waits for the outcome of the other connection (RFC 4271 section 6.8).
pub(super) struct DeferredOpen {
    pub(super) open: Open,
    pub(super) until: Instant,
}

pub(super) struct Connection {
    pub(super) id: ConnectionId,
    pub(super) outgoing: bool,
    pub(super) stage: Stage,
    /// Until the peer's OPEN is accepted, bounds only.
    pub(super) params: SessionParams,
    pub(super) negotiated: Option<Box<Negotiated>>,
    pub(super) deferred: Option<DeferredOpen>,
    pub(super) delay_open: Option<Instant>,
    pub(super) hold: Option<Instant>,
    pub(super) keepalive: Option<Instant>,
    pub(super) send_hold: Option<Instant>,
    /// The driver takes no more octets.
    pub(super) blocked: bool,
    /// A KEEPALIVE fell due while `blocked`.
    pub(super) keepalive_owed: bool,
    /// Octets not yet read: less than one message, but while an OPEN is deferred.
    buffer: Vec<u8>,
    /// Of these, already read.
    consumed: usize,
}

impl Connection {
    pub(super) fn new(id: ConnectionId, outgoing: bool, params: SessionParams) -> Self {
        Self {
            id,
            outgoing,
            stage: Stage::OpenDelayed,
            params,
            negotiated: None,
            deferred: None,
            delay_open: None,
            hold: None,
            keepalive: None,
            send_hold: None,
            blocked: false,
            keepalive_owed: false,
            buffer: Vec::new(),
            consumed: 0,
        }
    }

    pub(super) fn state(&self) -> State {
        match self.stage {
            Stage::OpenDelayed if self.outgoing => State::Connect,
            Stage::OpenDelayed => State::Active,
            Stage::OpenSent => State::OpenSent,
            Stage::OpenConfirm => State::OpenConfirm,
            Stage::Established => State::Established,
        }
    }

    /// The agreed hold time; `None` if the timers do not run.
    pub(super) fn hold_span(&self) -> Option<Duration> {
        self.negotiated.as_ref().and_then(|negotiated| negotiated.hold_time.span())
    }

    /// When the first of its timers is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let deferred = self.deferred.as_ref().map(|deferred| deferred.until);
        [self.delay_open, self.hold, self.keepalive, self.send_hold, deferred].into_iter().flatten().min()
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Octets held.
    pub(super) fn buffered(&self) -> usize {
        self.buffer.capacity()
    }

    /// The next message, if it is whole.
    pub(super) fn read(&mut self) -> ReadResult {
        if self.deferred.is_some() {
            let waiting = self.buffer.len() - self.consumed;
            return if waiting > MAX_OCTETS_WHILE_DEFERRED { ReadResult::Flooded } else { ReadResult::Starved };
        }
        let (kind, octets) = match frame(&self.buffer[self.consumed..], &self.params) {
            Ok((frame, _)) => (frame.kind, frame.octets),
            Err(MessageError::Incomplete { .. }) => {
                self.compact();
                return ReadResult::Starved;
            }
            Err(error) => return ReadResult::Error(error),
        };
        // Checked before the body is decoded: a message that is not allowed here is not worth decoding.
        if !self.expects(kind) {
            return ReadResult::Unexpected(kind);
        }
        let length = octets.len();
        match Message::decode(octets, &self.params) {
            Ok((message, _)) => {
                self.consumed += length;
                ReadResult::Message(message)
            }
            Err(error) => ReadResult::Error(error),
        }
    }

    /// Whether a message of this kind is allowed in this stage.
    fn expects(&self, kind: MessageType) -> bool {
        match (self.stage, kind) {
            (_, MessageType::Notification) => true,
            (Stage::OpenDelayed | Stage::OpenSent, kind) => kind == MessageType::Open,
            (Stage::OpenConfirm, kind) => kind == MessageType::Keepalive,
            (Stage::Established, kind) => kind != MessageType::Open,
        }
    }

    fn compact(&mut self) {
        self.buffer.drain(..self.consumed);
        self.consumed = 0;
        if self.buffer.len() < MAX_OCTETS_KEPT && self.buffer.capacity() > MAX_OCTETS_KEPT {
            self.buffer.shrink_to(MAX_OCTETS_KEPT);
        }
    }
}
