//! What a waypoint checks: one total function from a packet to a verdict, each rule a named check.
//!
//! The order is that of cost and of blame: rules about the packet's addresses, then its lifetime, then the MAC. What
//! depends on more than one packet (revocation, replay, rates and accounts) follows in the router. A vector
//! implementation names the check that each of its steps is, and tests hold the two together.

mod decapsulate;
#[cfg(test)]
mod forgery;
mod forward;
pub mod icmp;
mod martian;
mod verdict;

use std::net::IpAddr;

use subtle::ConstantTimeEq;
use wayleave_core::{Prefix, UnixTime};

use super::header::{Capability, Packet, Width, family};
use super::mint::{Head, WaypointKeys, epoch};

pub use decapsulate::{Layout, decapsulate, strip};
pub use forward::{Charge, Forward};
pub use martian::is_martian;
pub use verdict::{IcmpError, Reason, Verdict};

/// Seconds by which a nonce's time may lie behind a waypoint's clock, at least and at most as a policy sets it: what a replay
/// filter must remember.
pub const MIN_FRESHNESS: u32 = 2;
pub const MAX_FRESHNESS: u32 = 5;
/// Seconds by which a nonce's time may lie ahead of a waypoint's clock.
pub const MAX_AHEAD: u32 = 1;

/// One waypoint address and what is decided there. Several routers may share one.
#[derive(Clone, Debug)]
pub struct Waypoint {
    address: IpAddr,
    keys: WaypointKeys,
    policy: Policy,
    /// Octets of a binding that are compared: all, but for the test of forgeries.
    #[cfg(test)]
    compared: usize,
}

/// What a waypoint allows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Policy {
    /// Bindings of 64 bits are accepted.
    pub narrow: bool,
    /// Seconds that a nonce may be old: [`MIN_FRESHNESS`] to [`MAX_FRESHNESS`].
    pub freshness: u32,
    /// The outer source must be the original one at the first waypoint, and at every other the waypoint before, which is
    /// this one or one of `own`, `peers` and `link_peers`. A packet's list proves nothing by itself, since its sender wrote
    /// it.
    pub check_source: bool,
    /// Where the provider's other waypoints lie, whose packets come by IP. They check original sources as this one does.
    pub own: Vec<Prefix>,
    /// Where the waypoints of peers lie whose packets come by IP.
    pub peers: Vec<Prefix>,
    /// Waypoints, of the provider or of a peer, whose packets come over a link: its number, and where they lie.
    pub link_peers: Vec<(u16, Prefix)>,
    /// Networks of our own that no packet may be sent to through us, nor come from.
    pub refused: Vec<Prefix>,
    /// Waypoints within `refused` that a packet may go to next.
    pub waypoints: Vec<IpAddr>,
    /// Sources within `refused` that stamp their packets. Behind a peer's waypoint they are refused all the same.
    pub sources: Vec<Prefix>,
    /// Networks of the provider's customers, from which nothing comes behind a peer's waypoint.
    pub customers: Vec<Prefix>,
}

/// How a packet came to a waypoint. The driver knows it; nothing in the packet is trusted for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrival {
    /// By IP: whether the outer source is right, the network's edge has checked.
    Ip,
    /// Over the link of this number, whose other end writes the outer header.
    Link(u16),
}

/// Who has vouched for a packet's original source before this waypoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sender {
    /// Nobody: the packet comes from there.
    Origin,
    /// A waypoint of the provider, which refuses what this one refuses.
    Own,
    /// A waypoint of a peer, which knows its own customers and not this provider's.
    Peer,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            narrow: false,
            freshness: MAX_FRESHNESS,
            check_source: true,
            own: Vec::new(),
            peers: Vec::new(),
            link_peers: Vec::new(),
            refused: Vec::new(),
            waypoints: Vec::new(),
            sources: Vec::new(),
            customers: Vec::new(),
        }
    }
}

/// Decides on an IP packet for any of `waypoints`: that of its outer destination. This is the whole of what a router
/// does with a single packet; everything faster must decide the same.
#[must_use]
pub fn verify(waypoints: &[Waypoint], datagram: &[u8], arrival: Arrival, now: UnixTime) -> Verdict {
    let packet = match Packet::decode(datagram) {
        Ok(packet) => packet,
        Err(malformed) => return malformed.into(),
    };
    match find_waypoint(waypoints, &packet) {
        Ok(waypoint) => waypoint.verify(&packet, arrival, now),
        Err(reason) => reason.into(),
    }
}

/// The waypoint that a packet's outer destination names.
pub fn find_waypoint<'w>(waypoints: &'w [Waypoint], packet: &Packet<'_>) -> Result<&'w Waypoint, Reason> {
    let destination = packet.outer().destination;
    waypoints.iter().find(|waypoint| waypoint.address == destination).ok_or(Reason::NotForUs)
}

impl Waypoint {
    /// A waypoint at `address`. A freshness below [`MIN_FRESHNESS`] or beyond [`MAX_FRESHNESS`] is taken as that bound.
    #[must_use]
    pub fn new(address: IpAddr, keys: WaypointKeys, mut policy: Policy) -> Self {
        policy.freshness = policy.freshness.clamp(MIN_FRESHNESS, MAX_FRESHNESS);
        Self {
            address,
            keys,
            policy,
            #[cfg(test)]
            compared: 16,
        }
    }

    /// Where packets are sent to.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// The live keys.
    #[must_use]
    pub fn keys(&self) -> &WaypointKeys {
        &self.keys
    }

    /// What is allowed.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Decides on a packet.
    #[must_use]
    pub fn verify(&self, packet: &Packet<'_>, arrival: Arrival, now: UnixTime) -> Verdict {
        self.check(packet, arrival, now).map_or_else(Verdict::from, Verdict::Forward)
    }

    fn check(&self, packet: &Packet<'_>, arrival: Arrival, now: UnixTime) -> Result<Forward, Reason> {
        let (index, capability) = self.check_before_mac(packet, arrival, now)?;
        self.check_binding(packet, index, &capability)?;
        Ok(Forward::of(packet, index))
    }

    /// Whether `packet`, as another router quotes it whole, is one that this waypoint may have sent on: the capability that its
    /// pointer has just passed is this waypoint's, and would be accepted now. This costs as much as verifying a packet.
    #[must_use]
    pub fn may_have_sent(&self, packet: &Packet<'_>, now: UnixTime) -> bool {
        let Some(index) = packet.current().unwrap_or(packet.count()).checked_sub(1) else { return false };
        let capability = packet.capability(index);
        let before = waypoint_before(packet, index);
        let check = || {
            check_martians(packet, index)?;
            self.check_own_source(packet.original_source(), self.quoted_sender(before)?)?;
            self.check_own_networks(packet, index)?;
            self.check_width(&capability)?;
            check_prefix(packet, &capability)?;
            check_epoch(&capability, now)?;
            self.check_freshness(packet, now)?;
            self.check_binding(packet, index, &capability)
        };
        capability.waypoint == self.address && check().is_ok()
    }

    /// Whether an error that quotes a packet may go on to its original source: one that this waypoint would take packets from,
    /// behind the waypoint that the quotation names.
    #[must_use]
    pub fn may_relay(&self, error: &icmp::QuotedError<'_>) -> bool {
        let check = |before| self.check_own_source(error.source(), self.quoted_sender(before)?);
        error.waypoint_before().is_some_and(|before| check(before).is_ok())
    }

    /// Every rule that needs no key, in the order in which a packet that breaks several is refused: what makes its source
    /// doubtful first, since for that nobody is answered. Returns the current capability and its index.
    pub fn check_before_mac(
        &self,
        packet: &Packet<'_>,
        arrival: Arrival,
        now: UnixTime,
    ) -> Result<(usize, Capability), Reason> {
        let index = packet.current().ok_or(Reason::NothingLeft)?;
        let capability = packet.capability(index);
        self.check_waypoint(packet, &capability)?;
        let sender = self.check_source(packet, index, arrival)?;
        check_martians(packet, index)?;
        self.check_own_source(packet.original_source(), sender)?;
        self.check_own_networks(packet, index)?;
        self.check_width(&capability)?;
        check_prefix(packet, &capability)?;
        check_ttl(packet)?;
        check_epoch(&capability, now)?;
        self.check_freshness(packet, now)?;
        Ok((index, capability))
    }

    /// The packet was sent to this waypoint, and its current capability is for it.
    fn check_waypoint(&self, packet: &Packet<'_>, capability: &Capability) -> Result<(), Reason> {
        let is_ours = packet.outer().destination == self.address && capability.waypoint == self.address;
        if is_ours { Ok(()) } else { Err(Reason::NotForUs) }
    }

    /// The packet comes from its original source, or from the waypoint before this one, which is one that checks sources too.
    /// Where the policy leaves that out, nobody has vouched for what comes from a waypoint.
    fn check_source(&self, packet: &Packet<'_>, index: usize, arrival: Arrival) -> Result<Sender, Reason> {
        let (source, before) = (packet.outer().source, waypoint_before(packet, index));
        match before {
            None if !self.policy.check_source => Ok(Sender::Origin),
            Some(_) if !self.policy.check_source => Ok(Sender::Peer),
            None if source == packet.original_source() => Ok(Sender::Origin),
            Some(before) if source == before => self.check_waypoint_before(before, arrival),
            _ => Err(Reason::Source),
        }
    }

    /// The waypoint at `before`, from which the packet comes, is one that is known to be there. Over a link that is only what
    /// the link names: nobody else says that its other end wrote the right outer source.
    fn check_waypoint_before(&self, before: IpAddr, arrival: Arrival) -> Result<Sender, Reason> {
        let is_own = self.is_own_waypoint(before);
        let is_known = match arrival {
            Arrival::Ip => is_own || is_in(&self.policy.peers, before),
            Arrival::Link(link) => self.is_behind(before, |number| number == link),
        };
        match (is_known, is_own) {
            (true, true) => Ok(Sender::Own),
            (true, false) => Ok(Sender::Peer),
            (false, _) => Err(Reason::ForeignWaypoint),
        }
    }

    /// The same for a packet that is quoted, of which nobody knows how it had come here.
    fn quoted_sender(&self, before: Option<IpAddr>) -> Result<Sender, Reason> {
        match before {
            None => Ok(Sender::Origin),
            Some(before) if self.is_own_waypoint(before) => Ok(Sender::Own),
            Some(before) if is_in(&self.policy.peers, before) || self.is_behind(before, |_| true) => Ok(Sender::Peer),
            Some(_) => Err(Reason::ForeignWaypoint),
        }
    }

    /// Whether the provider runs the waypoint at `address`.
    fn is_own_waypoint(&self, address: IpAddr) -> bool {
        address == self.address || is_in(&self.policy.own, address)
    }

    /// Whether a link that `is_meant` names the waypoint at `address`.
    fn is_behind(&self, address: IpAddr, is_meant: impl Fn(u16) -> bool) -> bool {
        self.policy.link_peers.iter().any(|(link, network)| is_meant(*link) && contains(network, address))
    }

    /// The binding is as long as the policy asks.
    fn check_width(&self, capability: &Capability) -> Result<(), Reason> {
        let is_refused = capability.width == Width::Narrow && !self.policy.narrow;
        if is_refused { Err(Reason::NarrowBinding) } else { Ok(()) }
    }

    /// The original source lies in no network of our own, but for hosts that stamp their packets. A peer's waypoint has
    /// nothing to send on from these, nor from our customers.
    fn check_own_source(&self, source: IpAddr, sender: Sender) -> Result<(), Reason> {
        let is_refused = match sender {
            Sender::Origin | Sender::Own => self.is_refused_source(source),
            Sender::Peer => self.is_own(source) || is_in(&self.policy.customers, source),
        };
        if is_refused { Err(Reason::OwnSource) } else { Ok(()) }
    }

    /// Neither the final destination nor the next waypoint lies in a network that this waypoint must not open to
    /// outsiders. The outer destination says nothing here: it is this waypoint's own address.
    fn check_own_networks(&self, packet: &Packet<'_>, index: usize) -> Result<(), Reason> {
        let (next, last) = (next_destination(packet, index), packet.final_destination());
        let is_next_allowed = !self.is_own(next) || self.policy.waypoints.contains(&next);
        if self.is_own(last) || !is_next_allowed { Err(Reason::OwnNetwork) } else { Ok(()) }
    }

    /// The nonce's time is near now: at most [`MAX_AHEAD`] early, and at most the policy's freshness late.
    fn check_freshness(&self, packet: &Packet<'_>, now: UnixTime) -> Result<(), Reason> {
        let [a, b, c, d, ..] = packet.nonce();
        let stamped = u32::from_be_bytes([a, b, c, d]);
        // Seconds modulo 2^32: the distance is right across 2106 as well. It counts from the latest time that passes.
        let behind = (now.secs() as u32).wrapping_add(MAX_AHEAD).wrapping_sub(stamped);
        if behind > self.policy.freshness + MAX_AHEAD { Err(Reason::Stale) } else { Ok(()) }
    }

    /// The binding is the MAC of this packet under the capability's key, compared in constant time.
    fn check_binding(&self, packet: &Packet<'_>, index: usize, capability: &Capability) -> Result<(), Reason> {
        let key = self.keys.stamp_key(capability).ok_or(Reason::KeyGone)?;
        let expected = key.bind(Head::of(packet, index).blocks(), packet.payload());
        let presented = packet.binding(index);
        #[cfg(test)]
        let presented = &presented[..presented.len().min(self.compared)];
        if bool::from(expected[..presented.len()].ct_eq(presented)) { Ok(()) } else { Err(Reason::Binding) }
    }

    /// Whether an address lies in one of the policy's refused networks.
    #[must_use]
    #[inline(always)]
    pub fn is_own(&self, address: IpAddr) -> bool {
        is_in(&self.policy.refused, address)
    }

    /// Whether an original source, from which a packet comes, lies in one of the policy's refused networks, and is none that
    /// stamps its packets.
    #[must_use]
    #[inline(always)]
    pub fn is_refused_source(&self, address: IpAddr) -> bool {
        self.is_own(address) && !is_in(&self.policy.sources, address)
    }
}

/// No address that the packet came from or goes to is a martian.
fn check_martians(packet: &Packet<'_>, index: usize) -> Result<(), Reason> {
    if is_martian(packet.original_source()) {
        return Err(Reason::MartianSource);
    }
    let is_bad = is_martian(packet.final_destination()) || is_martian(next_destination(packet, index));
    if is_bad { Err(Reason::MartianDestination) } else { Ok(()) }
}

/// A delegated capability serves destinations in its prefix only.
fn check_prefix(packet: &Packet<'_>, capability: &Capability) -> Result<(), Reason> {
    match &capability.delegation {
        Some(delegation) if !contains(&delegation.prefix, packet.final_destination()) => Err(Reason::OutsidePrefix),
        _ => Ok(()),
    }
}

/// The packet may live for one more hop.
fn check_ttl(packet: &Packet<'_>) -> Result<(), Reason> {
    if packet.outer().ttl <= 1 { Err(Reason::TtlExceeded) } else { Ok(()) }
}

/// The capability's key epoch is the previous, current or next one.
fn check_epoch(capability: &Capability, now: UnixTime) -> Result<(), Reason> {
    let is_accepted = epoch::is_accepted(capability.interval, capability.epoch, now);
    if is_accepted { Ok(()) } else { Err(Reason::KeyEpoch) }
}

/// The waypoint whose capability is in front of that of `index`; none in front of the first.
fn waypoint_before(packet: &Packet<'_>, index: usize) -> Option<IpAddr> {
    index.checked_sub(1).map(|before| packet.waypoint(before))
}

/// Where the packet goes behind capability `index`: the next waypoint, or the final destination.
fn next_destination(packet: &Packet<'_>, index: usize) -> IpAddr {
    if index + 1 < packet.count() { packet.waypoint(index + 1) } else { packet.final_destination() }
}

/// Whether an address lies in one of these networks.
#[inline(always)]
fn is_in(networks: &[Prefix], address: IpAddr) -> bool {
    networks.iter().any(|prefix| contains(prefix, address))
}

/// Whether an address lies in a prefix.
fn contains(prefix: &Prefix, address: IpAddr) -> bool {
    prefix.afi() == family(address)
        && Prefix::truncated(address, prefix.afi().bits()).is_ok_and(|host| prefix.contains(&host))
}
