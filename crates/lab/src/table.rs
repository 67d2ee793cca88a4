//! A router's table as data, whichever router it was read from.

use std::net::IpAddr;

use wayleave_bgp::{Community, LargeCommunity};
use wayleave_core::{Asn, Prefix};

use crate::speaker::Routes;

/// A route that a member's router originates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announcement {
    /// The prefix.
    pub prefix: Prefix,
    /// Standard communities to attach.
    pub communities: Vec<Community>,
    /// Large communities to attach.
    pub large_communities: Vec<LargeCommunity>,
}

impl Announcement {
    /// A route without communities: everyone may have it.
    #[must_use]
    pub fn of(prefix: Prefix) -> Self {
        Self { prefix, communities: Vec::new(), large_communities: Vec::new() }
    }

    /// The same with a standard community more.
    #[must_use]
    pub fn with(mut self, community: Community) -> Self {
        self.communities.push(community);
        self
    }

    /// The same with a large community more.
    #[must_use]
    pub fn with_large(mut self, community: LargeCommunity) -> Self {
        self.large_communities.push(community);
        self
    }
}

/// A route that a router learned from the exchange, as the router itself tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LearnedRoute {
    /// The prefix.
    pub prefix: Prefix,
    /// Where packets would go; the global address, if the router also knows a link-local one.
    pub next_hop: Option<IpAddr>,
    /// AS_PATH, leftmost first; the members of a set in the order shown.
    pub as_path: Vec<Asn>,
    /// Standard communities.
    pub communities: Vec<Community>,
    /// Large communities.
    pub large_communities: Vec<LargeCommunity>,
    /// MULTI_EXIT_DISC, if the route has one.
    pub med: Option<u32>,
    /// Whether the router uses it.
    pub best: bool,
}

impl LearnedRoute {
    /// The AS that the route was learned from: the leftmost.
    #[must_use]
    pub fn first_as(&self) -> Option<Asn> {
        self.as_path.first().copied()
    }
}

/// Why a router did not do or say what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum RouterError {
    /// Its files could not be written, or its programs not started.
    #[error("{router}: {error}")]
    System {
        /// The member's name.
        router: String,
        /// Why.
        error: std::io::Error,
    },
    /// It refused a command.
    #[error("{router}: `{command}`: {answer}")]
    Refused {
        /// The member's name.
        router: String,
        /// What it was asked.
        command: String,
        /// What it said.
        answer: String,
    },
    /// What it printed is not what its version should print.
    #[error("{router}: cannot read its answer: {line}")]
    Answer {
        /// The member's name.
        router: String,
        /// The first line that makes no sense.
        line: String,
    },
}

/// A member's router: unmodified software, or a speaker that stands for it.
pub trait Router {
    /// The member's name.
    fn name(&self) -> &str;

    /// What it is: `BIRD 2.0.12`.
    fn software(&self) -> String;

    /// Starts it with the routes set so far.
    fn start(&mut self) -> Result<(), RouterError>;

    /// Ends it at once.
    fn kill(&mut self);

    /// Announces exactly these routes from now on; what was announced and is not among them is withdrawn.
    fn announce(&mut self, routes: &[Announcement]) -> Result<(), RouterError>;

    /// Routes to announce besides its own, where nothing stands behind it that could bring them. A real router has a
    /// customer for that, and does nothing here.
    fn pass_on(&mut self, _routes: Routes) {}

    /// Whether the session to the exchange is up.
    fn is_established(&mut self) -> Result<bool, RouterError>;

    /// What it learned from the exchange, in order of prefixes.
    fn table(&mut self) -> Result<Vec<LearnedRoute>, RouterError>;

    /// The command a person would type to see that table, and one prefix's answer, as the router prints it.
    fn show(&mut self, prefix: Prefix) -> Result<String, RouterError>;

    /// The last lines of its log.
    fn log_tail(&self) -> String;
}

/// Who a member's router is and with whom it speaks.
#[derive(Debug, Clone)]
pub struct Peering {
    /// The member's name, used for files and logs.
    pub name: String,
    /// Its AS number.
    pub asn: Asn,
    /// Its address on the LAN, also its router id.
    pub address: std::net::Ipv4Addr,
    /// The other side's AS number (the exchange).
    pub peer_asn: Asn,
    /// The other side's address (the member's proxy).
    pub peer_address: std::net::Ipv4Addr,
    /// A neighbour behind the exchange session, whose routes are passed on to the exchange.
    pub customer: Option<Customer>,
}

/// A neighbour of a member, not at the exchange.
#[derive(Debug, Clone)]
pub struct Customer {
    /// Its AS number.
    pub asn: Asn,
    /// Its address.
    pub address: std::net::Ipv4Addr,
    /// Ours on that link.
    pub local_address: std::net::Ipv4Addr,
}
