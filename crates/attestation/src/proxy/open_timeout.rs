//! Connections that wait, read and not answered, until the OPENs of both ends of a pair are known; and for how long.

use std::time::Duration;

use wayleave_bgp::notification::{code, finite_state_machine, header, open};
use wayleave_bgp::session::{ConnectionId, PeerAsn};
use wayleave_bgp::{Message, MessageError, Notification, Open, SessionParams};
use wayleave_core::{Asn, Instant};

/// How long the first of several silent connections waits for another one to send its OPEN.
const TURN_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a connection waits for the other end: less than the four minutes that its peer waits for our OPEN (RFC 4271
/// section 8.2.2).
const OPEN_TIMEOUT: Duration = Duration::from_secs(200);
/// Octets that a connection may send before it gets our OPEN: an OPEN of its own, and no honest peer sends more.
const MAX_OCTETS: usize = 4_096;

/// A connection without a session, and what was read on it.
#[derive(Debug)]
pub(super) struct WaitingConnection {
    pub(super) connection: ConnectionId,
    pub(super) octets: Vec<u8>,
    pub(super) open: Option<Open>,
    until: Instant,
    turn_until: Instant,
}

/// What received octets came to.
pub(super) enum Received {
    /// Not yet an OPEN, or nothing new.
    Nothing,
    /// The OPEN of the expected peer.
    Open,
    /// Not the expected peer: it gets this, and the connection is closed.
    Wrong(Notification),
}

impl WaitingConnection {
    /// `jitter` spreads the turns of two proxies that connect to each other.
    pub(super) fn new(connection: ConnectionId, now: Instant, jitter: Duration) -> Self {
        let turn_until = now + TURN_TIMEOUT + jitter;
        Self { connection, octets: Vec::new(), open: None, until: now + OPEN_TIMEOUT, turn_until }
    }

    /// Until when another connection may send its OPEN before this one gets ours.
    pub(super) fn turn_until(&self) -> Instant {
        self.turn_until
    }

    /// When it is closed.
    pub(super) fn until(&self) -> Instant {
        self.until
    }

    /// Takes octets in; `expected` says which AS may send an OPEN.
    pub(super) fn receive(&mut self, bytes: &[u8], expected: PeerAsn, now: Instant) -> Received {
        self.octets.extend_from_slice(bytes);
        if self.octets.len() > MAX_OCTETS {
            return Received::Wrong(Notification::new(code::MESSAGE_HEADER, header::BAD_LENGTH));
        }
        if self.open.is_some() {
            return Received::Nothing;
        }
        match Message::decode(&self.octets, &SessionParams::new(Asn(0), Asn(0))) {
            Err(MessageError::Incomplete { .. }) => Received::Nothing,
            Err(MessageError::Peer(notification)) => Received::Wrong(notification),
            Ok((Message::Open(open), _)) if expected.accepts(open.asn) => {
                self.open = Some(open);
                self.until = now + OPEN_TIMEOUT;
                Received::Open
            }
            Ok((Message::Open(_), _)) => Received::Wrong(Notification::new(code::OPEN, open::BAD_PEER_AS)),
            Ok((message, _)) => {
                let subcode = finite_state_machine::IN_OPEN_SENT;
                let data = [message.kind().octet()];
                Received::Wrong(Notification::with_data(code::FINITE_STATE_MACHINE, subcode, data))
            }
        }
    }
}
