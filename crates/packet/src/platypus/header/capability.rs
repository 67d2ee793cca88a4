//! A capability as a value, and its octets.

use std::net::IpAddr;

use wayleave_core::{Afi, Prefix};

use super::Malformed;
use super::offsets::{self, Offsets};

/// Declares a number of 24 bits.
macro_rules! number24 {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
        pub struct $name(u32);

        impl $name {
            /// `None` if `number` needs more than 24 bits.
            #[must_use]
            pub const fn new(number: u32) -> Option<Self> {
                if number < 1 << 24 { Some(Self(number)) } else { None }
            }

            /// The number.
            #[must_use]
            pub const fn number(self) -> u32 {
                self.0
            }

            /// The three octets on the wire.
            #[must_use]
            pub const fn octets(self) -> [u8; 3] {
                let [_, a, b, c] = self.0.to_be_bytes();
                [a, b, c]
            }

            /// Reads the three octets on the wire.
            #[must_use]
            pub const fn from_octets(octets: [u8; 3]) -> Self {
                Self(u32::from_be_bytes([0, octets[0], octets[1], octets[2]]))
            }
        }
    };
}

number24! {
    /// The resource principal: who pays, as the AS that issued the capability numbers its customers (24 bits).
    Principal
}
number24! {
    /// Tells one delegation of a capability from another (24 bits); the principal chooses it.
    DelegationId
}

/// `n`: a key epoch lasts `2^n` seconds. From 16 seconds to 194 days.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Interval(u8);

impl Interval {
    /// The shortest: with it, epoch numbers fit 32 bits until the year 4147.
    pub const SHORTEST: Self = Self(4);
    /// The longest.
    pub const LONGEST: Self = Self(24);

    /// `None` outside the range 4 to 24.
    #[must_use]
    pub const fn new(n: u8) -> Option<Self> {
        if n >= Self::SHORTEST.0 && n <= Self::LONGEST.0 { Some(Self(n)) } else { None }
    }

    /// The exponent `n`.
    #[must_use]
    pub const fn exponent(self) -> u8 {
        self.0
    }
}

/// How many octets of the binding travel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Width {
    /// 128 bits.
    Full,
    /// 64 bits, where the waypoint's policy allows it.
    Narrow,
}

impl Width {
    /// Octets.
    #[must_use]
    pub const fn octets(self) -> usize {
        match self {
            Width::Full => 16,
            Width::Narrow => 8,
        }
    }
}

/// The part of a capability that says to whom it was delegated (paper, section 4.3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Delegation {
    /// Final destinations that the holder may reach.
    pub prefix: Prefix,
    /// Which delegation this is.
    pub id: DelegationId,
    /// Who it was handed on to, if the holder numbers those.
    pub sub: Option<SubDelegation>,
}

/// A delegation that its holder handed on under a number of their own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SubDelegation {
    /// The prefix length of the first delegation, at which the second begins.
    pub at: u8,
    /// Which one.
    pub id: DelegationId,
}

/// A capability: the right to pass `waypoint` at the cost of `principal` during a key epoch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Capability {
    /// Where the packet must pass.
    pub waypoint: IpAddr,
    /// Who pays.
    pub principal: Principal,
    /// How long a key epoch lasts.
    pub interval: Interval,
    /// The full number of the key epoch: Unix seconds shifted right by the interval's exponent.
    pub epoch: u32,
    /// Present if the holder is not the principal.
    pub delegation: Option<Delegation>,
    /// Octets of the binding.
    pub width: Width,
}

/// Flags in the octet after the principal: the upper three bits, above the interval's exponent.
pub mod kind {
    /// The capability is delegated.
    pub const DELEGATED: u8 = 0x80;
    /// The delegation was handed on under a number of its holder.
    pub const SUB_DELEGATED: u8 = 0x40;
    /// The binding has 64 bits.
    pub const NARROW: u8 = 0x20;
    /// The interval's exponent.
    pub const INTERVAL: u8 = 0x1f;
}

/// A capability's octets without the binding: at most 16 + 4 + 4 + 16 + 4 + 4.
#[derive(Clone, Copy)]
pub struct CapabilityOctets {
    octets: [u8; 48],
    length: usize,
}

impl CapabilityOctets {
    /// The octets.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.octets[..self.length]
    }

    fn push(&mut self, octets: &[u8]) {
        self.octets[self.length..][..octets.len()].copy_from_slice(octets);
        self.length += octets.len();
    }

    fn push_address(&mut self, address: IpAddr) {
        match address {
            IpAddr::V4(v4) => self.push(&v4.octets()),
            IpAddr::V6(v6) => self.push(&v6.octets()),
        }
    }
}

impl Capability {
    /// The octets on the wire, without the binding. The prefix, if any, is of the waypoint's family.
    #[must_use]
    pub fn octets(&self) -> CapabilityOctets {
        let mut out = CapabilityOctets { octets: [0; 48], length: 0 };
        out.push_address(self.waypoint);
        out.push(&self.principal.octets());
        out.push(&[self.kind()]);
        out.push(&self.epoch.to_be_bytes());
        if let Some(delegation) = &self.delegation {
            out.push_address(delegation.prefix.address());
            out.push(&[delegation.prefix.len()]);
            out.push(&delegation.id.octets());
            if let Some(sub) = &delegation.sub {
                out.push(&[sub.at]);
                out.push(&sub.id.octets());
            }
        }
        out
    }

    /// Octets on the wire, with the binding.
    #[must_use]
    pub fn wire_length(&self) -> usize {
        self.octets().length + self.width.octets()
    }

    /// Whether every part is of one family and a sub-delegation begins within the prefix.
    #[must_use]
    pub fn is_consistent(&self) -> bool {
        self.delegation.is_none_or(|delegation| {
            delegation.prefix.afi() == family(self.waypoint)
                && delegation.sub.is_none_or(|sub| sub.at <= delegation.prefix.len())
        })
    }

    fn kind(&self) -> u8 {
        let mut kind = self.interval.exponent();
        if let Some(delegation) = &self.delegation {
            kind |= kind::DELEGATED;
            if delegation.sub.is_some() {
                kind |= kind::SUB_DELEGATED;
            }
        }
        if self.width == Width::Narrow {
            kind |= kind::NARROW;
        }
        kind
    }

    /// Reads a capability that [`checked_length`] has passed.
    pub(crate) fn read(octets: &[u8], table: &Offsets) -> Self {
        let kind = octets[table.capability.kind];
        Self {
            waypoint: offsets::address(octets, 0, table.family),
            principal: Principal::from_octets(offsets::three(octets, table.capability.principal)),
            interval: Interval(kind & kind::INTERVAL),
            epoch: offsets::word(octets, table.capability.epoch),
            delegation: (kind & kind::DELEGATED != 0).then(|| read_delegation(octets, table, kind)),
            width: width(kind),
        }
    }
}

/// The family of an address.
pub(crate) fn family(address: IpAddr) -> Afi {
    if address.is_ipv4() { Afi::Ipv4 } else { Afi::Ipv6 }
}

/// Octets of a capability at the front of `octets`, without and with its binding, if it is sound and
/// whole.
pub(crate) fn checked_length(octets: &[u8], table: &Offsets) -> Result<(usize, usize), Malformed> {
    let at = &table.capability;
    let kind = *octets.get(at.kind).ok_or(Malformed::ListLength)?;
    if Interval::new(kind & kind::INTERVAL).is_none() {
        return Err(Malformed::Interval(kind & kind::INTERVAL));
    }
    let (bare, whole) = lengths(kind, table)?;
    if octets.len() < whole {
        return Err(Malformed::ListLength);
    }
    if kind & kind::DELEGATED != 0 {
        let length = octets[at.prefix_length];
        Prefix::new(offsets::address(octets, at.prefix, table.family), length)
            .map_err(|_| Malformed::Prefix(length))?;
        if kind & kind::SUB_DELEGATED != 0 && octets[at.sub_length] > length {
            return Err(Malformed::SubDelegationBeyondPrefix);
        }
    }
    Ok((bare, whole))
}

/// Octets of a capability of this kind without its binding, and with it.
pub(crate) fn lengths(kind: u8, table: &Offsets) -> Result<(usize, usize), Malformed> {
    let at = &table.capability;
    let bare = match kind & (kind::DELEGATED | kind::SUB_DELEGATED) {
        0 => at.prefix,
        kind::SUB_DELEGATED => return Err(Malformed::SubDelegationAlone),
        kind::DELEGATED => at.sub_length,
        _ => at.sub_length + 4,
    };
    Ok((bare, bare + width(kind).octets()))
}

fn width(kind: u8) -> Width {
    if kind & kind::NARROW == 0 { Width::Full } else { Width::Narrow }
}

fn read_delegation(octets: &[u8], table: &Offsets, kind: u8) -> Delegation {
    let at = &table.capability;
    let address = offsets::address(octets, at.prefix, table.family);
    Delegation {
        // `checked_length` saw that the length fits the family.
        prefix: Prefix::truncated(address, octets[at.prefix_length]).expect("checked when the packet was decoded"),
        id: DelegationId::from_octets(offsets::three(octets, at.delegation_id)),
        sub: (kind & kind::SUB_DELEGATED != 0).then(|| SubDelegation {
            at: octets[at.sub_length],
            id: DelegationId::from_octets(offsets::three(octets, at.sub_length + 1)),
        }),
    }
}
