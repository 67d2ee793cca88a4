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
use martian::embedded_v4;
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
    /// Where all waypoints of the provider lie, by whatever way their packets come.
    own: Vec<Prefix>,
    /// Whether some link restricts where paths begin that come over it.
    judges_origins: bool,
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
    /// this one or one of `own`, `peers` and `links`. A packet's list proves nothing by itself, since its sender wrote it.
    pub check_source: bool,
    /// Where the provider's other waypoints lie, whose packets come by IP. They check original sources as this one does.
    pub own: Vec<Prefix>,
    /// Where the waypoints of peers lie whose packets come by IP.
    pub peers: Vec<Prefix>,
    /// What is behind links, from that of number 1 on.
    pub links: Vec<Link>,
    /// Networks of our own that no packet may be sent to through us, nor come from.
    pub refused: Vec<Prefix>,
    /// Waypoints within `refused` that a packet may go to next.
    pub waypoints: Vec<IpAddr>,
    /// Sources within `refused` that stamp their packets. Behind a peer's waypoint they are refused all the same.
    pub sources: Vec<Prefix>,
    /// Networks of the provider's customers, from which nothing comes behind a peer's waypoint.
    pub customers: Vec<Prefix>,
}

/// What is behind a link, whose other end writes outer headers as it likes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Link {
    /// Where waypoints of the provider lie.
    pub own: Vec<Prefix>,
    /// Where waypoints of peers lie.
    pub peers: Vec<Prefix>,
    /// Original sources of packets whose path begins here. `None` allows any, but none beside `peers`: a peer could otherwise
    /// leave its waypoint out of the list, and be no peer.
    pub sources: Option<Vec<Prefix>>,
}

impl Link {
    /// Whether a packet that comes over this link, and goes on to somebody else, has an outer source which it may have: as at a
    /// waypoint of one's own, its original source at the begin of its path, and later a waypoint that the link names. Whoever is
    /// told by IP that a packet comes from one of the provider's waypoints cannot know that a neighbour wrote that.
    #[must_use]
    pub fn may_pass(&self, packet: &Packet<'_>) -> bool {
        let source = packet.outer().source;
        match waypoint_before(packet, packet.current().unwrap_or(packet.count())) {
            None => source == packet.original_source() && self.may_begin(source),
            Some(before) => source == before && self.names(before),
        }
    }

    fn names(&self, waypoint: IpAddr) -> bool {
        is_in(&self.own, waypoint) || is_in(&self.peers, waypoint)
    }

    fn may_begin(&self, source: IpAddr) -> bool {
        self.sources.as_ref().map_or(self.peers.is_empty(), |sources| is_in(sources, source))
    }
}

/// How a packet came to a waypoint. The driver knows it; nothing in the packet is trusted for it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Arrival {
    /// By IP: whether the outer source is right, the network's edge has checked.
    Ip,
    /// Over the link of this number, whose other end writes the outer header.
    Link(u16),
}

/// Where a packet comes from, as far as its original source is judged by that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sender {
    /// Its original source, by waypoints of the provider alone if by any.
    Origin,
    /// A waypoint of a peer, which knows its own customers and not this provider's; perhaps by waypoints of the provider,
    /// which may know other customers than this one.
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
            links: Vec::new(),
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
        let own = policy.own.iter().chain(policy.links.iter().flat_map(|link| &link.own)).copied().collect();
        let judges = |link: &Link| link.sources.is_some() || !link.peers.is_empty();
        Self {
            address,
            keys,
            own,
            judges_origins: policy.check_source && policy.links.iter().any(judges),
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
        let passed = packet.current().unwrap_or(packet.count()).checked_sub(1);
        passed.is_some_and(|index| {
            let is_known = |before| self.is_own_waypoint(before) || self.is_peer_waypoint(before);
            waypoint_before(packet, index).is_none_or(is_known)
                && self.is_authentic(packet, index, self.sender(packet, index), now)
        })
    }

    /// Whether `packet`, which was refused since nobody here names the waypoint that it comes from, would pass if that was the
    /// provider's. This costs as much as verifying a packet.
    #[must_use]
    pub fn would_pass(&self, packet: &Packet<'_>, now: UnixTime) -> bool {
        packet.current().is_some_and(|index| self.is_authentic(packet, index, Sender::Origin, now))
    }

    fn is_authentic(&self, packet: &Packet<'_>, index: usize, sender: Sender, now: UnixTime) -> bool {
        let capability = packet.capability(index);
        let check = || {
            self.check_addresses(packet, index, &capability, sender)?;
            self.check_time(packet, &capability, now)?;
            self.check_binding(packet, index, &capability)
        };
        capability.waypoint == self.address && check().is_ok()
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
        self.check_source(packet, index, arrival)?;
        self.check_addresses(packet, index, &capability, self.sender(packet, index))?;
        check_ttl(packet)?;
        self.check_time(packet, &capability, now)?;
        Ok((index, capability))
    }

    /// What a packet from `sender` may hold of addresses, and of kinds of capabilities.
    fn check_addresses(
        &self,
        packet: &Packet<'_>,
        index: usize,
        capability: &Capability,
        sender: Sender,
    ) -> Result<(), Reason> {
        check_martians(packet, index)?;
        self.check_own_source(packet.original_source(), sender)?;
        self.check_own_networks(packet, index)?;
        self.check_width(capability)?;
        check_prefix(packet, capability)
    }

    /// The capability's key and the packet's stamp are of now.
    fn check_time(&self, packet: &Packet<'_>, capability: &Capability, now: UnixTime) -> Result<(), Reason> {
        check_epoch(capability, now)?;
        self.check_freshness(packet, now)
    }

    /// The packet was sent to this waypoint, and its current capability is for it.
    fn check_waypoint(&self, packet: &Packet<'_>, capability: &Capability) -> Result<(), Reason> {
        let is_ours = packet.outer().destination == self.address && capability.waypoint == self.address;
        if is_ours { Ok(()) } else { Err(Reason::NotForUs) }
    }

    /// The packet comes from its original source, which may send by that way, or from the waypoint before this one, which is known
    /// to be there.
    fn check_source(&self, packet: &Packet<'_>, index: usize, arrival: Arrival) -> Result<(), Reason> {
        let source = packet.outer().source;
        match waypoint_before(packet, index) {
            _ if !self.policy.check_source => Ok(()),
            None if source != packet.original_source() => Err(Reason::Source),
            Some(before) if source != before => Err(Reason::Source),
            None if !self.may_begin(source, arrival) => Err(Reason::LinkSource),
            Some(before) if !self.is_known(before, arrival) => Err(Reason::ForeignWaypoint),
            _ => Ok(()),
        }
    }

    /// Whether [`Waypoint::may_begin`] is ever false.
    #[must_use]
    pub fn judges_origins(&self) -> bool {
        self.judges_origins
    }

    /// Whether a packet from `source` may begin its path here. By IP any may: what its address proves, the network's edge has
    /// checked.
    #[must_use]
    pub fn may_begin(&self, source: IpAddr, arrival: Arrival) -> bool {
        !self.judges_origins || arrival == Arrival::Ip || self.link(arrival).is_some_and(|link| link.may_begin(source))
    }

    /// Whether a waypoint at `before` is known to be where a packet came from. Over a link that is only what the link names:
    /// nobody else says that its other end wrote the right outer source.
    fn is_known(&self, before: IpAddr, arrival: Arrival) -> bool {
        match (arrival, self.link(arrival)) {
            (Arrival::Ip, _) => {
                before == self.address || is_in(&self.policy.own, before) || is_in(&self.policy.peers, before)
            }
            (Arrival::Link(_), link) => link.is_some_and(|link| link.names(before)),
        }
    }

    /// What is behind the link that a packet came over, if it came over one that the policy knows.
    fn link(&self, arrival: Arrival) -> Option<&Link> {
        let Arrival::Link(number) = arrival else { return None };
        self.policy.links.get(usize::from(number).checked_sub(1)?)
    }

    /// Where a packet at `index`, whose waypoint before has been checked, comes from: the provider's waypoints have checked
    /// theirs in the same way, so that one of a peer's in front of them is still to be seen. Where the policy leaves that check
    /// out, nobody has vouched for what comes from a waypoint.
    fn sender(&self, packet: &Packet<'_>, index: usize) -> Sender {
        let is_own = |before: usize| self.policy.check_source && self.is_own_waypoint(packet.waypoint(before));
        if (0..index).all(is_own) { Sender::Origin } else { Sender::Peer }
    }

    /// Whether the provider runs the waypoint at `address`.
    fn is_own_waypoint(&self, address: IpAddr) -> bool {
        address == self.address || is_in(&self.own, address)
    }

    /// Whether a peer runs the waypoint at `address`.
    fn is_peer_waypoint(&self, address: IpAddr) -> bool {
        is_in(&self.policy.peers, address) || self.policy.links.iter().any(|link| is_in(&link.peers, address))
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
            Sender::Origin => self.is_refused_source(source),
            Sender::Peer => self.is_own(source) || leads_into(&self.policy.customers, source),
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
        let key = self.keys.stamp_key_from(capability, packet.original_source()).ok_or(Reason::KeyGone)?;
        let expected = key.bind(Head::of(packet, index).blocks(), packet.payload());
        let presented = packet.binding(index);
        #[cfg(test)]
        let presented = &presented[..presented.len().min(self.compared)];
        if bool::from(expected[..presented.len()].ct_eq(presented)) { Ok(()) } else { Err(Reason::Binding) }
    }

    /// Whether an address lies in one of the policy's refused networks, or stands for an IPv4 address that does.
    #[must_use]
    #[inline(always)]
    pub fn is_own(&self, address: IpAddr) -> bool {
        leads_into(&self.policy.refused, address)
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

/// Whether an address lies in one of these networks, or stands for an IPv4 address that does: a translator or a 6to4 relay further on leads
/// packets there.
#[inline(always)]
fn leads_into(networks: &[Prefix], address: IpAddr) -> bool {
    let is_around = |v6| embedded_v4(v6).is_some_and(|v4| is_in(networks, v4.into()));
    is_in(networks, address) || matches!(address, IpAddr::V6(v6) if is_around(v6))
}

/// Whether an address lies in a prefix.
fn contains(prefix: &Prefix, address: IpAddr) -> bool {
    prefix.afi() == family(address)
        && Prefix::truncated(address, prefix.afi().bits()).is_ok_and(|host| prefix.contains(&host))
}
