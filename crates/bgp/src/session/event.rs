//! What goes into a session and what comes out of it.

use std::fmt;
use std::net::Ipv4Addr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use wayleave_core::{Afi, Asn};

use super::negotiate::stated_roles;
use super::{HoldTime, Role, State};
use crate::{Capability, MessageType, Notification, RefreshKind, SessionParams, Update};

/// A TCP connection, numbered by the driver; a number is never used again within one session.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct ConnectionId(pub u64);

/// What a driver and the protocol behind the session hand in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Input {
    /// Leave Idle (RFC 4271 Events 1, 3, 4, 5). Forgets earlier failures. Without effect in any other state.
    Start,
    /// Go to Idle (Events 2 and 8).
    Stop(Stop),
    /// A TCP connection is open: one that [`Output::Connect`] requested (Event 17), or one that the peer opened and that
    /// the listener judged to be this peer's (Event 16; see [`super::Responder`]).
    Connected {
        connection: ConnectionId,
        /// We opened it.
        outgoing: bool,
    },
    /// The attempt that [`Output::Connect`] requested failed (Event 18).
    ConnectFailed {
        /// Which attempt; an older one is ignored.
        attempt: u64,
    },
    /// Octets from the peer, in order, cut anywhere.
    Bytes {
        /// Where they came in; unknown numbers are ignored.
        connection: ConnectionId,
        /// One or more octets. What a driver reads at once, some 64 KiB at most, bounds what one input can cause.
        bytes: Vec<u8>,
    },
    /// The connection is gone: closed by the peer, reset, or in error (Event 18).
    Closed { connection: ConnectionId },
    /// Send these messages, each whole, built for the [`SessionParams`] of the present session by
    /// [`crate::encode_updates`] or [`crate::rib::AdjRibOut`]. Dropped (and counted) unless Established.
    Send(Vec<Vec<u8>>),
    /// Send End-of-RIB (RFC 4724 section 2) if the family is agreed.
    SendEndOfRib(Afi),
    /// Send ROUTE-REFRESH if the family and the capability are agreed: request all routes (RFC 2918), or mark the begin
    /// and end of our own answer (RFC 7313; only if agreed).
    Refresh { afi: Afi, kind: RefreshKind },
    /// The connection takes no more octets: the driver holds all it is willing to hold. From now on
    /// [`super::Session::is_writable`] is false, KEEPALIVEs are held back, and the send hold timer runs (RFC 9687).
    Blocked { connection: ConnectionId },
    /// The connection takes octets again.
    Writable { connection: ConnectionId },
}

/// How to stop.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stop {
    /// Stay in Idle until [`Input::Start`] (ManualStop, Event 2). Otherwise start again after the idle hold time
    /// (AutomaticStop, Event 8).
    pub administrative: bool,
    pub reason: StopReason,
}

/// Why we stop, as the NOTIFICATION tells the peer: the subcode of a cease (RFC 4486).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StopReason {
    /// Administrative shutdown, with a text for the peer's operator (RFC 9003).
    Shutdown(String),
    /// Administrative reset, with a text.
    Reset(String),
    /// The peer is no longer configured.
    Deconfigured,
    /// Our configuration of the peer changed.
    ConfigurationChange,
    /// It announced more prefixes of this family than this limit.
    MaximumPrefixes { afi: Afi, limit: u32 },
    /// We lack memory or another resource.
    OutOfResources,
    /// The session that this one relays ended with this NOTIFICATION, which is passed on.
    PassedOn(Notification),
}

/// What a session asks of its driver, and what it reports.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output {
    /// Open a TCP connection to the peer, and give up an attempt that is still under way. Answer with
    /// [`Input::Connected`] or [`Input::ConnectFailed`].
    Connect {
        /// Rises by one with each attempt.
        attempt: u64,
    },
    /// Send these octets.
    Send {
        connection: ConnectionId,
        /// One whole message or more.
        bytes: Vec<u8>,
    },
    /// Close the connection, once what was sent on it is out (but wait no longer than a few seconds for that). The
    /// session has forgotten the number.
    Close { connection: ConnectionId },
    /// The session is Established. Send the whole Adj-RIB-Out, then End-of-RIB.
    Up(Box<Established>),
    /// An Established session ended. Comes exactly once for each `Up`.
    Down(Ended),
    /// A connection ended before it was Established, or an attempt to connect failed.
    Failed(Ended),
    /// An UPDATE, after RFC 7606: apply the withdrawn routes, then the announced. End-of-RIB comes as
    /// [`Output::EndOfRib`] instead.
    Update(Box<Update>),
    /// The peer requests all routes of a family, or marks its own answer.
    RouteRefresh {
        /// The family, an agreed one.
        afi: Afi,
        /// `Begin` and `End` come only if agreed (RFC 7313).
        kind: RefreshKind,
    },
    /// The peer has sent all routes of a family (RFC 4724 section 2).
    EndOfRib(Afi),
}

/// What both ends agreed on, at the moment the session came up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Established {
    /// The connection it runs on.
    pub connection: ConnectionId,
    /// What the codec must know.
    pub params: SessionParams,
    pub peer_id: Ipv4Addr,
    pub peer_asn: Asn,
    /// The smaller of both offers.
    pub hold_time: HoldTime,
    /// Both ends speak ROUTE-REFRESH.
    pub route_refresh: bool,
    /// Both ends mark the begin and end of a refresh (RFC 7313).
    pub enhanced_route_refresh: bool,
    /// The peer sends End-of-RIB.
    pub end_of_rib: bool,
    /// What to keep if the connection is lost (RFC 4724); `None` if the peer keeps nothing through a restart.
    pub retain: Option<Retain>,
    /// The peer has just restarted and waits for our routes (RFC 4724, Restart State).
    pub peer_restarted: bool,
    /// The peer keeps forwarding state for these families; routes of others must go at once (RFC 4724 section 4.2).
    pub forwarding_kept: Vec<Afi>,
    /// [`super::Config::transparent`], for the code that builds our routes.
    pub transparent: bool,
    /// Every capability that the peer stated.
    pub peer_capabilities: Vec<Capability>,
}

impl Established {
    /// The role that the peer states (RFC 9234), if it states one.
    #[must_use]
    pub fn peer_role(&self) -> Option<Role> {
        stated_roles(&self.peer_capabilities).next().and_then(Role::from_octet)
    }
}

/// Routes to keep, marked stale, after a session ended without a NOTIFICATION (RFC 4724 section 4.2), or with one (RFC 8538).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Retain {
    /// Families for which the peer requested it.
    pub families: Vec<Afi>,
    /// Time from the loss until a new session must be up.
    pub restart_time: Duration,
    /// Families whose routes stay for so long beyond that, as long-lived stale ones (RFC 9494). One that is not in `families` is so from
    /// the loss on.
    pub long_lived: Vec<(Afi, Duration)>,
    /// Both ends keep routes over a NOTIFICATION too, unless it is a Hard Reset (RFC 8538).
    pub notifications: bool,
}

/// Why a connection, a session or an attempt ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ended {
    /// The connection; `None` for an attempt that never became one.
    pub connection: Option<ConnectionId>,
    /// State of the connection when it ended.
    pub state: State,
    pub cause: Cause,
    /// Keep the peer's routes as stale; `None`: they go at once. Only on [`Output::Down`].
    pub retain: Option<Retain>,
}

/// What ended a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Cause {
    /// We stopped it, with this NOTIFICATION.
    Stopped(Notification),
    /// The peer broke the protocol and was sent this NOTIFICATION.
    PeerErred(Notification),
    /// The peer's OPEN has an AS number that we do not expect; it was sent this NOTIFICATION.
    UnexpectedAs { announced: Asn, notification: Notification },
    /// The peer's OPEN states a role that does not fit ours, or none though we require one (RFC 9234 section 4.2); it was sent
    /// this NOTIFICATION.
    RoleMismatch {
        /// `None` if it states none.
        stated: Option<u8>,
        /// The role that it should have.
        expected: Role,
        notification: Notification,
    },
    /// The peer ended it with this NOTIFICATION.
    PeerEnded(Notification),
    /// Nothing came within the hold time (Event 10).
    HoldTimerExpired,
    /// The peer took nothing within the send hold time (RFC 9687).
    SendHoldTimerExpired,
    /// The connection was lost (Event 18).
    ConnectionLost,
    /// The connection could not be opened (Event 18), or not in time (Event 9).
    ConnectFailed,
    /// The other connection with this peer was kept (RFC 4271 section 6.8).
    Collision,
    /// The peer opened a new connection after a restart (RFC 4724 section 4.2).
    PeerRestarted,
}

/// Who erred, and so who can mend it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Erred {
    /// Nobody: requested, or part of the protocol.
    Nobody,
    /// The peer, or its configuration against ours.
    Peer,
    /// By the peer's account, we.
    We,
    /// The network between.
    Network,
}

impl Cause {
    /// Whether an end of this kind leaves the peer's routes stale, not gone, if it restarts gracefully: the connection was lost (RFC 4724
    /// section 4.2), or with `notifications` a NOTIFICATION was sent or received that is no Hard Reset (RFC 8538 section 4). What we
    /// stopped by ourselves is gone.
    #[must_use]
    pub fn is_graceful(&self, notifications: bool) -> bool {
        match self {
            Cause::ConnectionLost | Cause::PeerRestarted => true,
            Cause::HoldTimerExpired | Cause::SendHoldTimerExpired | Cause::PeerErred(_) => notifications,
            Cause::PeerEnded(notification) => notifications && !notification.is_hard_reset(),
            _ => false,
        }
    }

    /// Who erred.
    #[must_use]
    pub fn erred(&self) -> Erred {
        match self {
            Cause::Stopped(_) | Cause::Collision | Cause::PeerRestarted => Erred::Nobody,
            Cause::PeerErred(_) | Cause::UnexpectedAs { .. } | Cause::RoleMismatch { .. } => Erred::Peer,
            Cause::PeerEnded(notification) if notification.code == crate::notification::code::CEASE => Erred::Nobody,
            Cause::PeerEnded(_) => Erred::We,
            Cause::HoldTimerExpired | Cause::SendHoldTimerExpired => Erred::Peer,
            Cause::ConnectionLost | Cause::ConnectFailed => Erred::Network,
        }
    }

    /// The NOTIFICATION that went with it, sent or received.
    #[must_use]
    pub fn notification(&self) -> Option<&Notification> {
        match self {
            Cause::Stopped(notification)
            | Cause::PeerErred(notification)
            | Cause::UnexpectedAs { notification, .. }
            | Cause::RoleMismatch { notification, .. }
            | Cause::PeerEnded(notification) => Some(notification),
            _ => None,
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Stopped(notification) => write!(f, "we ended the session: {notification}"),
            Cause::PeerErred(notification) => write!(f, "protocol error of the peer: {notification}"),
            Cause::UnexpectedAs { announced, .. } => {
                write!(f, "the peer's OPEN says {announced}, another AS is configured")
            }
            Cause::RoleMismatch { stated, expected, .. } => {
                match stated.map(|stated| Role::from_octet(stated).map(Role::name).ok_or(stated)) {
                    Some(Ok(name)) => write!(f, "the peer's OPEN states the role {name}")?,
                    Some(Err(number)) => write!(f, "the peer's OPEN states the role {number}, which is not defined")?,
                    None => f.write_str("the peer's OPEN states no role")?,
                }
                write!(f, ", {} is expected (RFC 9234)", expected.name())
            }
            Cause::PeerEnded(notification) => write!(f, "the peer ended the session: {notification}"),
            Cause::HoldTimerExpired => f.write_str("hold timer expired: nothing received from the peer"),
            Cause::SendHoldTimerExpired => f.write_str("send hold timer expired: the peer reads nothing (RFC 9687)"),
            Cause::ConnectionLost => f.write_str("TCP connection lost"),
            Cause::ConnectFailed => f.write_str("TCP connection to the peer failed"),
            Cause::Collision => f.write_str("connection collision: the other connection with the peer is kept"),
            Cause::PeerRestarted => f.write_str("the peer restarted and connected again"),
        }
    }
}

wayleave_core::counters! {
    /// Messages by type.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
    pub struct MessageCounts {
        pub open: u64,
        pub update: u64,
        pub notification: u64,
        pub keepalive: u64,
        pub route_refresh: u64,
    }
}

impl MessageCounts {
    pub(super) fn add(&mut self, kind: MessageType) {
        *match kind {
            MessageType::Open => &mut self.open,
            MessageType::Update => &mut self.update,
            MessageType::Notification => &mut self.notification,
            MessageType::Keepalive => &mut self.keepalive,
            MessageType::RouteRefresh => &mut self.route_refresh,
        } += 1;
    }
}

wayleave_core::counters! {
    /// What a session has counted since its construction.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
    pub struct Counters {
        /// Messages received whole.
        pub received: MessageCounts,
        pub sent: MessageCounts,
        pub octets_received: u64,
        pub octets_sent: u64,
        /// Times the session was Established.
        pub established: u64,
        /// Attempts to connect.
        pub connects: u64,
        /// Connections refused at once: in Idle, or one too many.
        pub refused: u64,
        /// Connections closed by collision resolution.
        pub collisions: u64,
        /// NOTIFICATIONs sent because the peer erred.
        pub peer_errors: u64,
        /// UPDATEs with a fault that did not end the session (RFC 7606).
        pub malformed_updates: u64,
        /// Of those: their routes were withdrawn.
        pub treated_as_withdraw: u64,
        /// Of those: at worst an attribute was discarded.
        pub attributes_discarded: u64,
        /// ROUTE-REFRESH of a family or kind that was not agreed, ignored.
        pub refreshes_ignored: u64,
        /// Messages given to send while not Established, dropped.
        pub dropped: u64,
    }
}
