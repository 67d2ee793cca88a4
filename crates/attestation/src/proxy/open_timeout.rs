//! Where a connection waits, heard and not answered, until its peer has sent its OPEN and the other end is there too.

use std::time::Duration;

use wayleave_bgp::notification::{code, finite_state_machine, header, open};
use wayleave_bgp::session::{ConnectionId, PeerAsn};
use wayleave_bgp::{Message, MessageError, Notification, Open, SessionParams};
use wayleave_core::{Asn, Instant};

/// How long of several silent callers the first may be passed over.
const TURN_PATIENCE: Duration = Duration::from_secs(1);
/// How long a caller waits for the other end: less than the four minutes that it waits for our OPEN (RFC 4271 section
/// 8.2.2).
const MEETING_PATIENCE: Duration = Duration::from_secs(200);
/// Octets that are kept: an OPEN, and no honest peer sends more before ours.
const MOST_OCTETS: usize = 4_096;

/// A connection at the door.
#[derive(Debug)]
pub(super) struct Caller {
    pub(super) connection: ConnectionId,
    pub(super) octets: Vec<u8>,
    pub(super) open: Option<Open>,
    until: Instant,
    patient_until: Instant,
}

/// What a caller's octets came to.
pub(super) enum Heard {
    /// Not yet an OPEN, or nothing new.
    Nothing,
    /// An OPEN that is welcome.
    Open,
    /// Not a peer: tell it so and close.
    Wrong(Notification),
}

impl Caller {
    /// `jitter` spreads the end of the patience of two proxies that call each other.
    pub(super) fn new(connection: ConnectionId, now: Instant, jitter: Duration) -> Self {
        let patient_until = now + TURN_PATIENCE + jitter;
        Self { connection, octets: Vec::new(), open: None, until: now + MEETING_PATIENCE, patient_until }
    }

    /// Until when another caller may speak before this one.
    pub(super) fn patient_until(&self) -> Instant {
        self.patient_until
    }

    /// When it has waited long enough.
    pub(super) fn until(&self) -> Instant {
        self.until
    }

    /// Takes octets in; `expected` says whose OPEN is welcome.
    pub(super) fn hear(&mut self, bytes: &[u8], expected: PeerAsn, now: Instant) -> Heard {
        self.octets.extend_from_slice(bytes);
        if self.octets.len() > MOST_OCTETS {
            return Heard::Wrong(Notification::new(code::MESSAGE_HEADER, header::BAD_LENGTH));
        }
        if self.open.is_some() {
            return Heard::Nothing;
        }
        match Message::decode(&self.octets, &SessionParams::new(Asn(0), Asn(0))) {
            Err(MessageError::Incomplete { .. }) => Heard::Nothing,
            Err(MessageError::Peer(notification)) => Heard::Wrong(notification),
            Ok((Message::Open(open), _)) if expected.accepts(open.asn) => {
                self.open = Some(open);
                self.until = now + MEETING_PATIENCE;
                Heard::Open
            }
            Ok((Message::Open(_), _)) => Heard::Wrong(Notification::new(code::OPEN, open::BAD_PEER_AS)),
            Ok((message, _)) => {
                let subcode = finite_state_machine::IN_OPEN_SENT;
                let data = [message.kind().octet()];
                Heard::Wrong(Notification::with_data(code::FINITE_STATE_MACHINE, subcode, data))
            }
        }
    }
}
