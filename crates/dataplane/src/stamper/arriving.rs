//! What a host takes the header off. A host that did so for everybody would let anybody send it packets from any address, behind its
//! filters (as with tunnels that end without a look at the sender, RFC 6169 section 3.1): so a waypoint that the host knows must have
//! sent the packet, and no address of its own networks may come from outside.

use std::net::IpAddr;

use wayleave_core::Prefix;
use wayleave_packet::platypus::header::Packet;
use wayleave_packet::platypus::verify::{Layout, is_martian};

/// Why a packet that arrives keeps its header, and goes nowhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ArrivalRefusal {
    #[error("it is for another host, or has waypoints left")]
    Elsewhere,
    /// Its sender is not the last waypoint that it names, or none that this host takes packets from.
    #[error("no waypoint of this host's sent it")]
    Stranger,
    /// The original source is this host's, of its own networks, or nobody's.
    #[error("its original source cannot be outside")]
    Source,
}

/// Whose packets a host takes the header off.
#[derive(Clone, Debug)]
pub struct Arriving {
    addresses: Vec<IpAddr>,
    /// In order, each once.
    waypoints: Vec<IpAddr>,
    from: Vec<Prefix>,
    inside: Vec<Prefix>,
}

impl Arriving {
    /// At the host with these addresses, from waypoints in these networks; never with an original source of the networks `inside`.
    #[must_use]
    pub fn new(addresses: Vec<IpAddr>, from: Vec<Prefix>, inside: Vec<Prefix>) -> Self {
        Self { addresses, waypoints: Vec::new(), from, inside }
    }

    /// Whether this is an address of the host.
    #[must_use]
    pub fn is_own(&self, address: IpAddr) -> bool {
        self.addresses.contains(&address)
    }

    /// The waypoints of the host's own routes may send too, from now on.
    pub fn set_waypoints(&mut self, waypoints: impl Iterator<Item = IpAddr>) {
        self.waypoints = waypoints.collect();
        self.waypoints.sort_unstable();
        self.waypoints.dedup();
    }

    /// Where the inner packet lies, if its header is taken off.
    ///
    /// # Errors
    /// Why it is not.
    pub fn layout(&self, packet: &Packet<'_>) -> Result<Layout, ArrivalRefusal> {
        let outer = packet.outer();
        if packet.final_destination() != outer.destination || !self.is_own(outer.destination) {
            return Err(ArrivalRefusal::Elsewhere);
        }
        let layout = Layout::of(packet).ok_or(ArrivalRefusal::Elsewhere)?;
        // Behind the last one, which the sender wrote and a waypoint put there as its own.
        let last = packet.count().checked_sub(1).map(|last| packet.waypoint(last));
        let is_known =
            |waypoint: IpAddr| self.waypoints.binary_search(&waypoint).is_ok() || is_within(waypoint, &self.from);
        if last != Some(outer.source) || !is_known(outer.source) {
            return Err(ArrivalRefusal::Stranger);
        }
        let source = packet.original_source();
        if self.is_own(source) || is_within(source, &self.inside) || is_martian(source) {
            return Err(ArrivalRefusal::Source);
        }
        Ok(layout)
    }
}

fn is_within(address: IpAddr, networks: &[Prefix]) -> bool {
    networks
        .iter()
        .any(|network| Prefix::truncated(address, network.afi().bits()).is_ok_and(|host| network.contains(&host)))
}
