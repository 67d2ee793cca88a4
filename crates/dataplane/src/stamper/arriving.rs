//! What a host takes the header off. A host that did so for everybody would let anybody send it packets from any address, behind its
//! filters (as with tunnels that end without a look at the sender, RFC 6169 section 3.1): so a waypoint that the host knows must have
//! sent the packet, and no address of its own networks may come from outside.

use std::collections::BTreeSet;
use std::net::IpAddr;

use wayleave_core::Prefix;
use wayleave_packet::platypus::header::Packet;
use wayleave_packet::platypus::verify::{Layout, is_martian};

use super::replies::NO_NEXT_HEADER;

/// Why a packet that arrives keeps its header, and goes nowhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ArrivalRefusal {
    #[error("it is for another host, or has waypoints left")]
    Elsewhere,
    /// Its sender is not the last waypoint that it names, or none that this host takes packets from; or it names none, and its sender is not
    /// its original source.
    #[error("no waypoint of this host's sent it")]
    Stranger,
    /// The original source is this host's, of its own networks, or nobody's.
    #[error("its original source cannot be outside")]
    Source,
}

/// Whose packets a host takes the header off.
#[derive(Clone, Debug)]
pub struct Arriving {
    /// Where packets with a header arrive.
    addresses: Vec<IpAddr>,
    /// All addresses of the machine, on whatever interface.
    local: BTreeSet<IpAddr>,
    /// In order, each once.
    waypoints: Vec<IpAddr>,
    from: Vec<Prefix>,
    inside: Vec<Prefix>,
}

impl Arriving {
    /// At these addresses of the host, from waypoints in these networks; never with an original source of the networks `inside`.
    #[must_use]
    pub fn new(addresses: Vec<IpAddr>, from: Vec<Prefix>, inside: Vec<Prefix>) -> Self {
        Self { addresses, local: BTreeSet::new(), waypoints: Vec::new(), from, inside }
    }

    /// Whether packets with a header arrive at this address.
    fn arrives_at(&self, address: IpAddr) -> bool {
        self.addresses.contains(&address)
    }

    /// The machine has these addresses from now on, beside those at which packets arrive: nothing comes from them.
    pub fn set_local(&mut self, local: BTreeSet<IpAddr>) {
        self.local = local;
    }

    /// These waypoints may send too, from now on.
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
        if packet.final_destination() != outer.destination || !self.arrives_at(outer.destination) {
            return Err(ArrivalRefusal::Elsewhere);
        }
        let layout = Layout::of(packet).ok_or(ArrivalRefusal::Elsewhere)?;
        // Behind the last one, which the sender wrote and a waypoint put there as its own.
        let is_known =
            |waypoint: IpAddr| self.waypoints.binary_search(&waypoint).is_ok() || is_within(waypoint, &self.from);
        if last_waypoint(packet) != Some(outer.source) || !is_known(outer.source) {
            return Err(ArrivalRefusal::Stranger);
        }
        if is_within(packet.original_source(), &self.inside) {
            return Err(ArrivalRefusal::Source);
        }
        self.check_source(packet)?;
        Ok(layout)
    }

    /// Whether a packet for this host carries a reply option and nothing else.
    #[must_use]
    pub fn is_option(&self, packet: &Packet<'_>) -> bool {
        let to = packet.final_destination();
        let is_ours = to == packet.outer().destination && self.arrives_at(to);
        is_ours && packet.current().is_none() && packet.has_reply_option() && packet.inner_protocol() == NO_NEXT_HEADER
    }

    /// Whether a packet with a reply option comes from where it says: from its original source, or by the last waypoint of its list. It need
    /// be none that this host knows, since a client's route is the client's choice: so whoever can be answered can name any other source. What
    /// follows from that is one message of the same length to that source, within the limits of replies, and no capability.
    ///
    /// # Errors
    /// Why it does not.
    pub fn check_option(&self, packet: &Packet<'_>) -> Result<(), ArrivalRefusal> {
        let sender = last_waypoint(packet).unwrap_or(packet.original_source());
        if packet.outer().source != sender {
            return Err(ArrivalRefusal::Stranger);
        }
        self.check_source(packet)
    }

    /// The original source may be another host's.
    fn check_source(&self, packet: &Packet<'_>) -> Result<(), ArrivalRefusal> {
        let source = packet.original_source();
        let is_own = self.arrives_at(source) || self.local.contains(&source);
        if is_own || is_martian(source) { Err(ArrivalRefusal::Source) } else { Ok(()) }
    }
}

fn last_waypoint(packet: &Packet<'_>) -> Option<IpAddr> {
    packet.count().checked_sub(1).map(|last| packet.waypoint(last))
}

fn is_within(address: IpAddr, networks: &[Prefix]) -> bool {
    networks
        .iter()
        .any(|network| Prefix::truncated(address, network.afi().bits()).is_ok_and(|host| network.contains(&host)))
}
