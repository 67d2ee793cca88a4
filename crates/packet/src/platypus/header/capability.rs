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
    /// The shortest: with it, epoch numbers fit the bits beside [`Marks`] until the year 2514.
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

/// What the two upper bits of the epoch's word say. Numbers of epochs leave them free ([`Marks::EPOCH`]).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Marks(u8);

impl Marks {
    pub const NONE: Self = Self(0);
    /// Routers must know from where the principal may send. It is part of the secret `s`, so that no holder can leave it out.
    pub const BOUND: Self = Self(0b10);
    /// The capability is delegated for replies: its stamping key serves one original source.
    pub const REPLY: Self = Self(0b01);
    /// The bits of the word in which the number of the epoch stands.
    pub const EPOCH: u32 = u32::MAX >> 2;

    /// Whether there is none.
    #[must_use]
    #[inline(always)]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Whether [`Marks::BOUND`] is there.
    #[must_use]
    #[inline(always)]
    pub const fn is_bound(self) -> bool {
        self.0 & Self::BOUND.0 != 0
    }

    /// Whether [`Marks::REPLY`] is there.
    #[must_use]
    #[inline(always)]
    pub const fn is_reply(self) -> bool {
        self.0 & Self::REPLY.0 != 0
    }

    /// These and [`Marks::REPLY`].
    #[must_use]
    pub const fn with_reply(self) -> Self {
        Self(self.0 | Self::REPLY.0)
    }

    /// The marks of an epoch's word.
    #[must_use]
    #[inline(always)]
    pub const fn of_word(word: u32) -> Self {
        Self((word >> 30) as u8)
    }

    const fn word(self) -> u32 {
        (self.0 as u32) << 30
    }
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
    /// What stands beside it.
    pub marks: Marks,
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
        out.push(&self.epoch_word().to_be_bytes());
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

    /// The epoch and the marks as they travel.
    #[must_use]
    pub fn epoch_word(&self) -> u32 {
        self.epoch & Marks::EPOCH | self.marks.word()
    }

    /// The part of [`Capability::epoch_word`] from which the secret `s` is made.
    #[must_use]
    pub fn secret_epoch(&self) -> u32 {
        self.epoch_word() & !Marks::REPLY.word()
    }

    /// Whether every part is of one family, a sub-delegation begins within the prefix and what is for replies is delegated to one host.
    #[must_use]
    pub fn is_consistent(&self) -> bool {
        let Some(delegation) = self.delegation else { return !self.marks.is_reply() };
        delegation.prefix.afi() == family(self.waypoint)
            && delegation.sub.is_none_or(|sub| sub.at <= delegation.prefix.len())
            && (!self.marks.is_reply() || delegation.prefix.len() == delegation.prefix.afi().bits())
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
        let word = offsets::word(octets, table.capability.epoch);
        Self {
            waypoint: offsets::address(octets, 0, table.family),
            principal: Principal::from_octets(offsets::three(octets, table.capability.principal)),
            interval: Interval(kind & kind::INTERVAL),
            epoch: word & Marks::EPOCH,
            marks: Marks::of_word(word),
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
    let is_reply = Marks::of_word(offsets::word(octets, at.epoch)).is_reply();
    if kind & kind::DELEGATED != 0 {
        let length = octets[at.prefix_length];
        Prefix::new(offsets::address(octets, at.prefix, table.family), length)
            .map_err(|_| Malformed::Prefix(length))?;
        if kind & kind::SUB_DELEGATED != 0 && octets[at.sub_length] > length {
            return Err(Malformed::SubDelegationBeyondPrefix);
        }
        if is_reply && length != table.family.bits() {
            return Err(Malformed::ReplyPrefix(length));
        }
    } else if is_reply {
        return Err(Malformed::ReplyUndelegated);
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
