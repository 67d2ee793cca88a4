//! Configuration of a session: our identity, the expected peer, the offered capabilities, the timers.

use std::net::Ipv4Addr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use wayleave_core::{Afi, Asn};

use crate::Capability;

/// Hold time offered in OPEN: zero, or at least three seconds (RFC 4271 section 4.2).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(try_from = "u16", into = "u16")]
pub struct HoldTime(u16);

/// A hold time of one or two seconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a hold time of {0} s is neither zero nor at least three seconds")]
pub struct HoldTimeError(pub u16);

impl HoldTime {
    /// No KEEPALIVEs and no hold timer.
    pub const ZERO: HoldTime = HoldTime(0);
    /// 90 seconds, as RFC 4271 section 10 suggests.
    pub const DEFAULT: HoldTime = HoldTime(90);

    /// `None` for one or two seconds.
    #[must_use]
    pub fn from_secs(secs: u16) -> Option<Self> {
        (secs == 0 || secs >= 3).then_some(Self(secs))
    }

    #[must_use]
    pub fn secs(self) -> u16 {
        self.0
    }

    /// The span, or `None` if the hold timer does not run.
    #[must_use]
    pub fn span(self) -> Option<Duration> {
        (self.0 > 0).then(|| Duration::from_secs(u64::from(self.0)))
    }
}

impl Default for HoldTime {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl TryFrom<u16> for HoldTime {
    type Error = HoldTimeError;

    fn try_from(secs: u16) -> Result<Self, HoldTimeError> {
        Self::from_secs(secs).ok_or(HoldTimeError(secs))
    }
}

impl From<HoldTime> for u16 {
    fn from(hold_time: HoldTime) -> u16 {
        hold_time.0
    }
}

/// Whose OPEN is accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum PeerAsn {
    /// This AS only.
    Exactly(Asn),
    /// Any AS but 0 and `AS_TRANS`.
    Any,
}

impl PeerAsn {
    /// Whether a peer with AS number `asn` is accepted.
    #[must_use]
    pub fn accepts(self, asn: Asn) -> bool {
        match self {
            PeerAsn::Exactly(expected) => expected == asn && asn != Asn(0),
            PeerAsn::Any => asn != Asn(0) && asn != Asn::TRANS,
        }
    }
}

wayleave_core::numbered! {
    /// Our role towards the peer (RFC 9234 section 4.1).
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Role {
        /// We sell transit to the peer.
        Provider = 0,
        /// We are a route server, the peer a client.
        RouteServer = 1,
        /// The peer is a route server.
        RouteServerClient = 2,
        /// We buy transit from the peer.
        Customer = 3,
        /// Equals.
        Peer = 4,
    }
}

impl Role {
    /// Its name, as configurations of routers have it (RFC 9234 section 3).
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Role::Provider => "provider",
            Role::RouteServer => "rs",
            Role::RouteServerClient => "rs-client",
            Role::Customer => "customer",
            Role::Peer => "peer",
        }
    }

    /// What the peer must be if we are this (RFC 9234 section 4.2, table 2).
    #[must_use]
    pub fn counterpart(self) -> Role {
        match self {
            Role::Provider => Role::Customer,
            Role::RouteServer => Role::RouteServerClient,
            Role::RouteServerClient => Role::RouteServer,
            Role::Customer => Role::Provider,
            Role::Peer => Role::Peer,
        }
    }
}

/// Our offer of ADD-PATH in one family (RFC 7911 section 4).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct AddPathOffer {
    /// We can take several paths of a prefix.
    pub receive: bool,
    /// We can send several paths of a prefix.
    pub send: bool,
}

/// Graceful restart as we offer it (RFC 4724). Without families it promises End-of-RIB only.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct GracefulRestartOffer {
    /// How long the peer should keep our routes after the connection is lost, in seconds, at most 4,095.
    pub restart_time: u16,
    /// We have just restarted (the Restart State bit): the peer need not wait for our End-of-RIB before it sends its own.
    pub restarted: bool,
    /// Families whose routes the peer should keep.
    pub families: Vec<Afi>,
    /// Whether routes are kept over a NOTIFICATION too, unless it is a Hard Reset (RFC 8538).
    #[serde(default)]
    pub notifications: bool,
}

/// The capabilities that our OPEN offers (RFC 5492).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Offer {
    pub ipv4_unicast: bool,
    pub ipv6_unicast: bool,
    pub four_octet_as: bool,
    pub route_refresh: bool,
    /// Marks around a refresh (RFC 7313).
    pub enhanced_route_refresh: bool,
    /// Messages of up to 65,535 octets (RFC 8654).
    pub extended_message: bool,
    pub add_path_ipv4: AddPathOffer,
    pub add_path_ipv6: AddPathOffer,
    /// Graceful restart (RFC 4724).
    pub graceful_restart: Option<GracefulRestartOffer>,
    /// We keep the peer's routes for as long as it asks for and know what a long-lived stale route is (RFC 9494); we ask for nothing.
    #[serde(default)]
    pub long_lived: bool,
    /// Further capabilities, such as one of private use (RFC 8810); they come last.
    #[serde(default)]
    pub more: Vec<Capability>,
}

impl Offer {
    /// Our offer for ADD-PATH in `afi`.
    #[must_use]
    pub fn add_path(&self, afi: Afi) -> AddPathOffer {
        match afi {
            Afi::Ipv4 => self.add_path_ipv4,
            Afi::Ipv6 => self.add_path_ipv6,
        }
    }
}

impl Default for Offer {
    /// Both families, everything that costs nothing, no ADD-PATH, End-of-RIB.
    fn default() -> Self {
        Self {
            ipv4_unicast: true,
            ipv6_unicast: true,
            four_octet_as: true,
            route_refresh: true,
            enhanced_route_refresh: true,
            extended_message: true,
            add_path_ipv4: AddPathOffer::default(),
            add_path_ipv6: AddPathOffer::default(),
            graceful_restart: Some(GracefulRestartOffer::default()),
            long_lived: false,
            more: Vec::new(),
        }
    }
}

/// For how long at most the routes of a peer that restarts are kept, whatever it asks for (RFC 4724 section 4.2, RFC 9494 section 4.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Keeps {
    pub restart: Duration,
    /// As long-lived stale ones.
    pub long_lived: Duration,
}

/// The configuration of one session.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Config {
    pub local_asn: Asn,
    /// Our BGP identifier; not zero (RFC 6286).
    pub router_id: Ipv4Addr,
    pub peer_asn: PeerAsn,
    pub hold_time: HoldTime,
    /// Wait for the peer to connect, and never connect.
    pub passive: bool,
    pub offer: Offer,
    /// Our role (RFC 9234), if we state one.
    pub role: Option<Role>,
    /// Refuse a peer that states no role (RFC 9234 section 4.2, strict mode). Only with `role`.
    pub strict_role: bool,
    /// Keep the peer's routes through its restarts ([`crate::peer::PeerEvent::Stale`]); if not, whoever drives the session decides by
    /// [`Ended::retain`](super::Ended::retain).
    #[serde(default)]
    pub keeps: Option<Keeps>,
    /// Give a peer that does not know long-lived stale routes none (RFC 9494 section 4.3), whatever we offer ourselves.
    #[serde(default)]
    pub withholds_stale: bool,
    /// We pass routes on as a route server does (RFC 7947): no AS prepended, NEXT_HOP and MED kept. The session itself
    /// changes no route either way; it hands this on in [`Established`](super::Established) to the code that builds them.
    pub transparent: bool,
    /// A route must begin with the peer's AS; off towards a route server (RFC 7947 section 2.2.2.1).
    pub enforce_first_as: bool,
    /// The peer is another member AS of our confederation (RFC 5065).
    pub confederation: bool,
    /// Between two attempts to connect (`ConnectRetryTime`; RFC 4271 section 10 suggests 120 s, jitter applies).
    pub connect_retry: Duration,
    /// Rest in Idle after the first failure (`IdleHoldTime`); doubled by each further one.
    pub idle_hold: Duration,
    /// The longest rest in Idle. After a session that was up for this long, rests start again from `idle_hold`.
    pub idle_hold_most: Duration,
    /// Wait this long for the peer's OPEN before ours goes out (`DelayOpenTime`).
    pub delay_open: Option<Duration>,
}

impl Config {
    /// An active session between `local_asn` and `peer_asn` with every default.
    #[must_use]
    pub fn new(local_asn: Asn, router_id: Ipv4Addr, peer_asn: PeerAsn) -> Self {
        Self {
            local_asn,
            router_id,
            peer_asn,
            hold_time: HoldTime::DEFAULT,
            passive: false,
            offer: Offer::default(),
            role: None,
            strict_role: false,
            keeps: None,
            withholds_stale: false,
            transparent: false,
            enforce_first_as: false,
            confederation: false,
            connect_retry: Duration::from_secs(5),
            idle_hold: Duration::from_secs(1),
            idle_hold_most: Duration::from_secs(120),
            delay_open: None,
        }
    }
}
