//! Routers as the laboratory controls them: announcements, learned routes, and the trait that every router implements.

use std::net::IpAddr;
use std::process::Command;

use wayleave_bgp::{Community, LargeCommunity};
use wayleave_core::{Asn, Prefix};

use crate::speaker::Routes;

/// A route that a member's router originates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announcement {
    pub prefix: Prefix,
    pub communities: Vec<Community>,
    pub large_communities: Vec<LargeCommunity>,
    /// ASes behind the router's own on the path, as of a customer's route. Speakers of ours alone announce such.
    pub behind: Vec<Asn>,
}

impl Announcement {
    /// A route without communities, for all members.
    #[must_use]
    pub fn of(prefix: Prefix) -> Self {
        Self { prefix, communities: Vec::new(), large_communities: Vec::new(), behind: Vec::new() }
    }

    /// Puts ASes behind the router's own.
    #[must_use]
    pub fn behind(mut self, asns: &[Asn]) -> Self {
        self.behind.extend(asns);
        self
    }

    /// Adds a standard community.
    #[must_use]
    pub fn with(mut self, community: Community) -> Self {
        self.communities.push(community);
        self
    }

    /// Adds a large community.
    #[must_use]
    pub fn with_large(mut self, community: LargeCommunity) -> Self {
        self.large_communities.push(community);
        self
    }
}

/// A route that a router has learned, as the router reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LearnedRoute {
    pub prefix: Prefix,
    /// The next hop; the global address if there is also a link-local one.
    pub next_hop: Option<IpAddr>,
    /// AS_PATH, leftmost first; an AS_SET in the order in which the router prints it.
    pub as_path: Vec<Asn>,
    pub communities: Vec<Community>,
    pub large_communities: Vec<LargeCommunity>,
    /// MULTI_EXIT_DISC, if the route has one.
    pub med: Option<u32>,
    pub best: bool,
}

impl LearnedRoute {
    /// The AS that the route was learned from: the leftmost.
    #[must_use]
    pub fn first_as(&self) -> Option<Asn> {
        self.as_path.first().copied()
    }
}

/// Why a router could not be controlled.
#[derive(Debug, thiserror::Error)]
pub enum RouterError {
    #[error("{router}: {error}")]
    System { router: String, error: std::io::Error },
    #[error("{router}: `{command}`: {answer}")]
    Refused { router: String, command: String, answer: String },
    /// Its output is not in the format of its version.
    #[error("{router}: unexpected output: {line}")]
    Answer {
        router: String,
        /// The first line that could not be parsed.
        line: String,
    },
}

/// A router: unmodified software, or the laboratory's own speaker.
pub trait Router {
    /// The member's name.
    fn name(&self) -> &str;

    /// Name and version, such as `BIRD 2.0.12`.
    fn software(&self) -> String;

    /// Starts it with the routes set so far.
    fn start(&mut self) -> Result<(), RouterError>;

    /// Kills it.
    fn kill(&mut self);

    /// Announces exactly these routes; withdraws all others that were announced.
    fn announce(&mut self, routes: &[Announcement]) -> Result<(), RouterError>;

    /// Routes of a customer to announce besides the own ones. A real router learns them from a customer's session instead,
    /// and does nothing here.
    fn pass_on(&mut self, _routes: Routes) {}

    /// Whether the session to the exchange is up.
    fn is_established(&mut self) -> Result<bool, RouterError>;

    /// The routes that it has learned, in order of prefixes.
    fn table(&mut self) -> Result<Vec<LearnedRoute>, RouterError>;

    /// The router's command that shows one prefix, and its output.
    fn show(&mut self, prefix: Prefix) -> Result<String, RouterError>;

    /// The last lines of its log.
    fn log_tail(&self) -> String;

    /// The ID of its process, if it is one of its own and runs.
    fn id(&self) -> Option<u32> {
        None
    }

    /// What its operator asks it with: the program's name, and the command to which a question is added.
    fn shell(&self) -> Option<(&'static str, Command)> {
        None
    }
}

/// A member's router and its session with the exchange.
#[derive(Debug, Clone)]
pub struct Peering {
    /// The member's name, used for files and logs.
    pub name: String,
    pub asn: Asn,
    /// Its address on the LAN; also its BGP identifier.
    pub address: std::net::Ipv4Addr,
    /// The exchange's AS number.
    pub peer_asn: Asn,
    /// The address of the member's proxy.
    pub peer_address: std::net::Ipv4Addr,
    /// A customer whose routes are announced to the exchange.
    pub customer: Option<Customer>,
}

/// A customer of a member.
#[derive(Debug, Clone)]
pub struct Customer {
    pub asn: Asn,
    pub address: std::net::Ipv4Addr,
    /// The member's address on that link.
    pub local_address: std::net::Ipv4Addr,
}
