//! The two ends of a pair, how each is reached, and a pair's inputs and outputs.

use std::sync::Arc;

use wayleave_bgp::peer::TcpRequest;
use wayleave_bgp::rib::{MaxPrefixes, RejectedRoutes};
use wayleave_bgp::session::{self, Ended, Established, PeerAsn};
use wayleave_bgp::{Attributes, Capability, Nlri, Problem};
use wayleave_core::Afi;

/// One end of a pair.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Side {
    /// The network whose proxy this is.
    Inside,
    /// Its neighbour.
    Outside,
}

impl Side {
    /// Both.
    pub const BOTH: [Side; 2] = [Side::Inside, Side::Outside];

    /// The other one.
    #[must_use]
    pub fn other(self) -> Side {
        match self {
            Side::Inside => Side::Outside,
            Side::Outside => Side::Inside,
        }
    }

    /// Its name in the log and in status pages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Side::Inside => "inside",
            Side::Outside => "outside",
        }
    }

    pub(super) fn index(self) -> usize {
        self as usize
    }
}

/// How one end is reached and whom it expects.
#[derive(Clone, Debug)]
pub struct EndConfig {
    /// The AS whose OPEN is accepted.
    pub peer_asn: PeerAsn,
    /// The peer may connect.
    pub listens: bool,
    /// We may connect to the peer.
    pub connects: bool,
    /// Prefixes that it may announce.
    pub limits: MaxPrefixes,
    /// AS_PATH of what it announces must begin with its AS (RFC 4271 section 6.3). Without this it could leave itself
    /// out, and pass on a chain that was made for somebody else; only a transparent route server may (RFC 7947).
    pub first_as: bool,
}

/// The configuration of a pair.
#[derive(Clone, Debug)]
pub struct PairConfig {
    /// Inside, then outside.
    pub ends: [EndConfig; 2],
    /// Capabilities of our OPEN beyond those of the other end's, inside and outside.
    pub more: [Vec<Capability>; 2],
    /// Octets that the routes of both ends may take, with their attributes and what is made of them; the session whose route
    /// goes beyond is stopped.
    pub most_memory: usize,
}

/// Connections are numbered by side; a number is never used again.
#[derive(Debug)]
pub enum Input {
    Start,
    /// End both sessions, with this text to both operators, and stay down.
    Stop(String),
    /// Of one side's connections: `Connected`, `ConnectFailed`, `Bytes`, `Closed`, `Blocked` or `Writable`.
    Wire(Side, session::Input),
}

#[derive(Debug)]
pub enum Output {
    /// For the driver of this side's connections.
    Tcp { side: Side, request: TcpRequest },
    /// A route was announced or withdrawn: [`super::SessionPair::route`] passes it on.
    Route {
        from: Side,
        nlri: Nlri,
        /// As it came; `None`: it is withdrawn.
        attributes: Option<Arc<Attributes>>,
    },
    /// This side has sent all routes of a family: [`super::SessionPair::end_of_rib`] passes it on, behind the routes.
    EndOfRib { from: Side, afi: Afi },
    /// For the log, counters, and whoever validates and signs routes.
    Event(PairEvent),
}

#[derive(Debug)]
pub enum PairEvent {
    /// This side's session is up.
    Up(Side, Box<Established>),
    /// It is down, and all its routes are gone; the other side follows.
    Down(Side, Ended),
    /// It did not come up.
    Failed(Side, Ended),
    /// An UPDATE was malformed; the session stays (RFC 7606). The first of the routes that are withdrawn or ignored for it.
    Malformed(Side, Vec<Problem>, Vec<Nlri>),
    /// Routes that this side's session cannot carry.
    Rejected(Side, RejectedRoutes),
    /// A prefix beyond the limit was not accepted.
    OverLimit(Side, Nlri),
    /// The routes take more memory than the pair may: the session of this side is stopped.
    OutOfMemory(Side),
}
