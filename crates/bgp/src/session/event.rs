//! What goes into a session and what comes out of it.

use std::fmt;
use std::net::Ipv4Addr;
use std::ops::AddAssign;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use wayleave_core::{Afi, Asn};

use super::{HoldTime, State};
use crate::{Capability, MessageType, Notification, RefreshKind, SessionParams, Update};

/// A TCP connection, numbered by the driver; a number is never used again within one session.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct ConnectionId(pub u64);

/// What the world tells a session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Input {
    /// Leave Idle (RFC 4271 Events 1, 3, 4, 5). Forgets earlier failures. Without effect in any other state.
    Start,
    /// Go to Idle (Events 2 and 8).
    Stop(Stop),
    /// A TCP connection stands: one that [`Output::Connect`] asked for (Event 17), or one that the peer opened and that
    /// the listener judged to be this peer's (Event 16; see [`super::Responder`]).
    Connected {
        /// Its number from now on.
        connection: ConnectionId,
        /// We opened it.
        outgoing: bool,
    },
    /// The attempt that [`Output::Connect`] asked for came to nothing (Event 18).
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
    Closed {
        /// Which.
        connection: ConnectionId,
    },
    /// Send these messages, each whole, built for the [`SessionParams`] of the present session by
    /// [`crate::encode_updates`] or [`crate::rib::AdjRibOut`]. Dropped (and counted) unless Established.
    Send(Vec<Vec<u8>>),
    /// Send End-of-RIB (RFC 4724 section 2) if the family is agreed.
    SendEndOfRib(Afi),
    /// Send ROUTE-REFRESH if the family and the capability are agreed: ask for all routes (RFC 2918), or mark the begin
    /// and end of our own answer (RFC 7313; only if agreed).
    Refresh {
        /// The family.
        afi: Afi,
        /// What to ask or mark.
        kind: RefreshKind,
    },
    /// The connection takes no more octets: the driver holds all it is willing to hold. From now on
    /// [`super::Session::is_writable`] is false, KEEPALIVEs are held back, and the send hold timer runs (RFC 9687).
    Blocked {
        /// Which.
        connection: ConnectionId,
    },
    /// The connection takes octets again.
    Writable {
        /// Which.
        connection: ConnectionId,
    },
}

/// How to stop.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stop {
    /// Stay in Idle until [`Input::Start`] (ManualStop, Event 2). Otherwise start again after the idle hold time
    /// (AutomaticStop, Event 8).
    pub administrative: bool,
    /// What the peer is told.
    pub reason: StopReason,
}

/// What the peer is told when we stop: the subcode of a cease (RFC 4486).
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
    MaximumPrefixes {
        /// The family.
        afi: Afi,
        /// The limit.
        limit: u32,
    },
    /// We are short of something.
    OutOfResources,
    /// Whoever stands behind us ended it with these words, which are passed on.
    PassedOn(Notification),
}

/// What a session wants done, and what it reports.
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
        /// Where.
        connection: ConnectionId,
        /// One whole message or more.
        bytes: Vec<u8>,
    },
    /// Close the connection, once what was sent on it is out (but wait no longer than a few seconds for that). The
    /// session has forgotten the number.
    Close {
        /// Which.
        connection: ConnectionId,
    },
    /// The session is Established. Send the whole Adj-RIB-Out, then End-of-RIB.
    Up(Box<Established>),
    /// An Established session ended. Comes exactly once for each `Up`.
    Down(Ended),
    /// A connection ended before it was Established, or an attempt to connect failed.
    Failed(Ended),
    /// An UPDATE, after RFC 7606: apply the withdrawn routes, then the announced. End-of-RIB comes as
    /// [`Output::EndOfRib`] instead.
    Update(Box<Update>),
    /// The peer asks for all routes of a family, or marks its own answer.
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
    /// The peer's BGP identifier.
    pub peer_id: Ipv4Addr,
    /// The peer's AS.
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
    /// [`super::Config::transparent`], for whoever builds our routes.
    pub transparent: bool,
    /// Every capability that the peer stated.
    pub peer_capabilities: Vec<Capability>,
}

/// Routes to keep, marked stale, after a session ended without a NOTIFICATION (RFC 4724 section 4.2).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Retain {
    /// Families the peer asked it for.
    pub families: Vec<Afi>,
    /// How long, from the moment of the loss, until a new session must stand.
    pub restart_time: Duration,
}

/// Why a connection, a session or an attempt ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ended {
    /// The connection; `None` for an attempt that never became one.
    pub connection: Option<ConnectionId>,
    /// Where the connection stood.
    pub state: State,
    /// What happened.
    pub cause: Cause,
    /// Keep the peer's routes as stale; `None`: they go at once. Only on [`Output::Down`].
    pub retain: Option<Retain>,
}

/// What ended a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Cause {
    /// We were told to stop, and told the peer this.
    Stopped(Notification),
    /// The peer broke the protocol, and was told this.
    PeerErred(Notification),
    /// The peer ended it and said this.
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

/// Who is to blame, and so who can mend it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Erred {
    /// Nobody: asked for, or part of the protocol.
    Nobody,
    /// The peer, or its configuration against ours.
    Peer,
    /// By the peer's account, we.
    We,
    /// The network between.
    Network,
}

impl Cause {
    /// Who is to blame.
    #[must_use]
    pub fn erred(&self) -> Erred {
        match self {
            Cause::Stopped(_) | Cause::Collision | Cause::PeerRestarted => Erred::Nobody,
            Cause::PeerErred(_) => Erred::Peer,
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
            Cause::Stopped(notification) | Cause::PeerErred(notification) | Cause::PeerEnded(notification) => {
                Some(notification)
            }
            _ => None,
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Stopped(notification) => write!(f, "stopped by us: {notification}"),
            Cause::PeerErred(notification) => write!(f, "the peer erred: {notification}"),
            Cause::PeerEnded(notification) => write!(f, "ended by the peer: {notification}"),
            Cause::HoldTimerExpired => f.write_str("the peer was silent for the hold time"),
            Cause::SendHoldTimerExpired => f.write_str("the peer read nothing for the send hold time"),
            Cause::ConnectionLost => f.write_str("the connection was lost"),
            Cause::ConnectFailed => f.write_str("no connection to the peer"),
            Cause::Collision => f.write_str("the other connection with the peer was kept"),
            Cause::PeerRestarted => f.write_str("the peer restarted and connected again"),
        }
    }
}

/// Messages by type.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct MessageCounts {
    /// OPEN.
    pub open: u64,
    /// UPDATE.
    pub update: u64,
    /// NOTIFICATION.
    pub notification: u64,
    /// KEEPALIVE.
    pub keepalive: u64,
    /// ROUTE-REFRESH.
    pub route_refresh: u64,
}

impl AddAssign for MessageCounts {
    fn add_assign(&mut self, other: Self) {
        let Self { open, update, notification, keepalive, route_refresh } = other;
        self.open += open;
        self.update += update;
        self.notification += notification;
        self.keepalive += keepalive;
        self.route_refresh += route_refresh;
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

/// What a session has counted since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Counters {
    /// Messages received whole.
    pub received: MessageCounts,
    /// Messages sent.
    pub sent: MessageCounts,
    /// Octets received.
    pub octets_received: u64,
    /// Octets sent.
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

impl AddAssign for Counters {
    fn add_assign(&mut self, other: Self) {
        let Self {
            received,
            sent,
            octets_received,
            octets_sent,
            established,
            connects,
            refused,
            collisions,
            peer_errors,
            malformed_updates,
            treated_as_withdraw,
            attributes_discarded,
            refreshes_ignored,
            dropped,
        } = other;
        self.received += received;
        self.sent += sent;
        self.octets_received += octets_received;
        self.octets_sent += octets_sent;
        self.established += established;
        self.connects += connects;
        self.refused += refused;
        self.collisions += collisions;
        self.peer_errors += peer_errors;
        self.malformed_updates += malformed_updates;
        self.treated_as_withdraw += treated_as_withdraw;
        self.attributes_discarded += attributes_discarded;
        self.refreshes_ignored += refreshes_ignored;
        self.dropped += dropped;
    }
}
