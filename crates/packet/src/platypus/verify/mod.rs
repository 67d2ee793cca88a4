//! What a waypoint checks, as one total function from a packet to a verdict, and how it rewrites what it forwards.
//!
//! Order: ingress and destination rules, expiry, then the MAC. Revocation, replay and accounting follow in the router,
//! which knows more packets than one.

#[cfg(test)]
mod forgery;
pub mod icmp;
mod martian;
mod rewrite;

use std::net::IpAddr;

use subtle::ConstantTimeEq;
use wayleave_core::{Prefix, UnixTime};

use super::header::{Capability, Malformed, Packet, Width, family};
use super::mint::{Head, WaypointKeys, epoch};

pub use martian::is_martian;
pub use rewrite::{Charge, Forward, Layout, decapsulate, strip};

/// The longest that a nonce may be off, in seconds: what a replay filter must remember.
pub const MAX_FRESHNESS: u32 = 30;

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
    /// Seconds that a nonce may be off, at most [`MAX_FRESHNESS`].
    pub freshness: u32,
    /// The outer source must be the original one at the first waypoint, and the waypoint before at every other.
    pub check_source: bool,
    /// Networks of our own that no packet may be sent to through us.
    pub refused: Vec<Prefix>,
    /// Waypoints within `refused` that a packet may go to next.
    pub waypoints: Vec<IpAddr>,
}

impl Default for Policy {
    fn default() -> Self {
        Self { narrow: false, freshness: MAX_FRESHNESS, check_source: true, refused: Vec::new(), waypoints: Vec::new() }
    }
}

/// Why a packet does not pass. The sender erred, or the waypoint's policy forbids it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Reason {
    /// It was not decoded.
    Malformed,
    /// Its outer destination or its current capability is not this waypoint's.
    NotForUs,
    /// No capability is left.
    NothingLeft,
    /// Its outer source is neither the original source nor the waypoint before.
    Source,
    /// The original source is a martian.
    MartianSource,
    /// The final destination or the next waypoint is a martian.
    MartianDestination,
    /// The final destination or the next waypoint lies in a network of our own.
    OwnNetwork,
    /// The final destination lies outside the delegated prefix.
    OutsidePrefix,
    /// The binding is of 64 bits, and the policy asks for 128.
    NarrowBinding,
    /// Time to live exceeded.
    TtlExceeded,
    /// The key epoch is neither the previous, current nor next one.
    KeyEpoch,
    /// The key of this epoch is not held any more.
    KeyGone,
    /// The nonce's time is too far off.
    Stale,
    /// The binding is wrong.
    Binding,
    /// This router does not do delegation by exclusive or.
    XorDelegation,
}

impl Reason {
    /// Every reason, in the order of its number.
    pub const ALL: [Self; 15] = [
        Self::Malformed,
        Self::NotForUs,
        Self::NothingLeft,
        Self::Source,
        Self::MartianSource,
        Self::MartianDestination,
        Self::OwnNetwork,
        Self::OutsidePrefix,
        Self::NarrowBinding,
        Self::TtlExceeded,
        Self::KeyEpoch,
        Self::KeyGone,
        Self::Stale,
        Self::Binding,
        Self::XorDelegation,
    ];

    /// A name for counters.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::NotForUs => "not-for-us",
            Self::NothingLeft => "nothing-left",
            Self::Source => "source",
            Self::MartianSource => "martian-source",
            Self::MartianDestination => "martian-destination",
            Self::OwnNetwork => "own-network",
            Self::OutsidePrefix => "outside-prefix",
            Self::NarrowBinding => "narrow-binding",
            Self::TtlExceeded => "ttl-exceeded",
            Self::KeyEpoch => "key-epoch",
            Self::KeyGone => "key-gone",
            Self::Stale => "stale",
            Self::Binding => "binding",
            Self::XorDelegation => "xor-delegation",
        }
    }

    /// The ICMP error that the original source may be told of, under the router's rate limit.
    fn answer(self) -> Option<IcmpError> {
        match self {
            Self::TtlExceeded => Some(IcmpError::TimeExceeded),
            Self::OwnNetwork
            | Self::OutsidePrefix
            | Self::NarrowBinding
            | Self::KeyEpoch
            | Self::KeyGone
            | Self::Stale
            | Self::Binding
            | Self::XorDelegation => Some(IcmpError::Prohibited),
            _ => None,
        }
    }
}

/// An ICMP error that a waypoint may send to the original source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IcmpError {
    /// Time exceeded in transit.
    TimeExceeded,
    /// Destination unreachable: administratively prohibited.
    Prohibited,
}

/// What becomes of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Rewritten and sent on, once revocation, replay and accounting agree.
    Forward(Forward),
    /// Dropped; the original source may be told.
    Answer(IcmpError, Reason),
    /// Dropped.
    Drop(Reason),
}

impl Default for Verdict {
    fn default() -> Self {
        Self::Drop(Reason::Malformed)
    }
}

impl From<Malformed> for Verdict {
    fn from(_: Malformed) -> Self {
        Self::Drop(Reason::Malformed)
    }
}

impl From<Reason> for Verdict {
    fn from(reason: Reason) -> Self {
        reason.answer().map_or(Self::Drop(reason), |error| Self::Answer(error, reason))
    }
}

impl Waypoint {
    /// A waypoint at `address`. A freshness beyond [`MAX_FRESHNESS`] is cut to it.
    #[must_use]
    pub fn new(address: IpAddr, keys: WaypointKeys, mut policy: Policy) -> Self {
        policy.freshness = policy.freshness.min(MAX_FRESHNESS);
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

    /// The live keys, to rotate them.
    pub fn keys_mut(&mut self) -> &mut WaypointKeys {
        &mut self.keys
    }

    /// What is allowed.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Decides on a packet of version 1.
    #[must_use]
    pub fn verify(&self, packet: &Packet<'_>, now: UnixTime) -> Verdict {
        self.check(packet, now).map_or_else(Verdict::from, Verdict::Forward)
    }

    fn check(&self, packet: &Packet<'_>, now: UnixTime) -> Result<Forward, Reason> {
        let (index, capability) = self.check_before_mac(packet, now)?;
        self.check_binding(packet, index, &capability)?;
        Ok(Forward::of(packet, index))
    }

    /// Everything that needs no key.
    pub fn check_before_mac(&self, packet: &Packet<'_>, now: UnixTime) -> Result<(usize, Capability), Reason> {
        let (index, capability) = self.check_ingress(packet)?;
        self.check_addresses(packet, index, &capability)?;
        self.check_expiry(packet, &capability, now)?;
        Ok((index, capability))
    }

    fn check_ingress(&self, packet: &Packet<'_>) -> Result<(usize, Capability), Reason> {
        let index = packet.current().ok_or(Reason::NothingLeft)?;
        let capability = packet.capability(index).ok_or(Reason::Malformed)?;
        if packet.outer().destination != self.address || capability.waypoint != self.address {
            return Err(Reason::NotForUs);
        }
        let before = match index {
            0 => packet.original_source(),
            _ => packet.waypoint(index - 1),
        };
        if self.policy.check_source && packet.outer().source != before {
            return Err(Reason::Source);
        }
        if capability.width == Width::Narrow && !self.policy.narrow {
            return Err(Reason::NarrowBinding);
        }
        Ok((index, capability))
    }

    /// The final destination is the one in the header: the outer one is ours.
    fn check_addresses(&self, packet: &Packet<'_>, index: usize, capability: &Capability) -> Result<(), Reason> {
        if is_martian(packet.original_source()) {
            return Err(Reason::MartianSource);
        }
        let last = packet.final_destination();
        let next = if index + 1 < packet.count() { packet.waypoint(index + 1) } else { last };
        if is_martian(last) || is_martian(next) {
            return Err(Reason::MartianDestination);
        }
        if self.is_own(last) || (self.is_own(next) && !self.policy.waypoints.contains(&next)) {
            return Err(Reason::OwnNetwork);
        }
        match &capability.delegation {
            Some(delegation) if !contains(&delegation.prefix, last) => Err(Reason::OutsidePrefix),
            _ => Ok(()),
        }
    }

    fn check_expiry(&self, packet: &Packet<'_>, capability: &Capability, now: UnixTime) -> Result<(), Reason> {
        if packet.outer().ttl <= 1 {
            return Err(Reason::TtlExceeded);
        }
        if !epoch::is_accepted(capability.interval, capability.epoch, now) {
            return Err(Reason::KeyEpoch);
        }
        let [a, b, c, d, ..] = packet.nonce();
        let stamped = u32::from_be_bytes([a, b, c, d]);
        // Seconds modulo 2^32: the distance is right across 2106 as well.
        let off = stamped.wrapping_sub(now.secs() as u32).cast_signed().unsigned_abs();
        if off > self.policy.freshness { Err(Reason::Stale) } else { Ok(()) }
    }

    fn check_binding(&self, packet: &Packet<'_>, index: usize, capability: &Capability) -> Result<(), Reason> {
        let key = self.keys.stamp_key(capability).ok_or(Reason::KeyGone)?;
        let expected = key.bind(Head::of(packet, index).blocks(), packet.payload());
        let presented = packet.binding(index);
        #[cfg(test)]
        let presented = &presented[..presented.len().min(self.compared)];
        if bool::from(expected[..presented.len()].ct_eq(presented)) { Ok(()) } else { Err(Reason::Binding) }
    }

    #[inline(always)]
    #[must_use]
    pub fn is_own(&self, address: IpAddr) -> bool {
        self.policy.refused.iter().any(|prefix| contains(prefix, address))
    }
}

/// Whether an address lies in a prefix.
fn contains(prefix: &Prefix, address: IpAddr) -> bool {
    prefix.afi() == family(address)
        && Prefix::truncated(address, prefix.afi().bits()).is_ok_and(|host| prefix.contains(&host))
}
