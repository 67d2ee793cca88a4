//! What a capability says: the waypoint, who pays, and for which destinations.

use std::fmt;
use std::net::IpAddr;

use wayleave_core::Prefix;
use wayleave_core::wire::{Malformed, Reader, Wire, Writer};
use wayleave_crypto::hash::hash;
use wayleave_packet::platypus::header::{
    Capability, Delegation, DelegationId, Interval, Marks, Principal, SubDelegation, Width,
};

/// What a capability says, in every key epoch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Terms {
    /// Where packets pass: an address of a router, a POP or an AS.
    pub waypoint: IpAddr,
    /// Who pays.
    pub principal: Principal,
    /// How long a key epoch lasts.
    pub interval: Interval,
    /// Octets of the binding.
    pub width: Width,
    /// Present if it is for some destinations only.
    pub delegation: Option<Delegation>,
}

impl Terms {
    /// Octets of the longest encoding.
    pub(super) const MAX: usize = 17 + 3 + 1 + 1 + 18 + 3 + 1 + 4;

    /// The capability in one key epoch.
    #[must_use]
    pub fn capability(&self, epoch: u32) -> Capability {
        let Self { waypoint, principal, interval, width, delegation } = *self;
        Capability { waypoint, principal, interval, epoch, marks: Marks::default(), delegation, width }
    }

    /// The terms of what this was delegated from; `None` if it is no delegation.
    #[must_use]
    pub fn parent(&self) -> Option<Self> {
        let delegation = self.delegation?;
        let delegation = match delegation.sub {
            None => None,
            Some(sub) => {
                let prefix = Prefix::truncated(delegation.prefix.address(), sub.at).ok()?;
                Some(Delegation { prefix, id: delegation.id, sub: None })
            }
        };
        Some(Self { delegation, ..*self })
    }

    /// The terms that this was delegated from, the nearest first.
    pub fn ancestors(&self) -> impl Iterator<Item = Self> {
        std::iter::successors(self.parent(), Self::parent)
    }

    /// Whether this was delegated from `other`, at once or over another.
    #[must_use]
    pub fn is_below(&self, other: &Self) -> bool {
        self.ancestors().any(|terms| terms == *other)
    }

    /// Names these terms and no others.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        let mut out = Writer::new();
        self.write(&mut out);
        hash("wayleave/capability/terms/v1", &[&out.finish()])
    }
}

impl Wire for Terms {
    const LEAST: usize = 5 + 3 + 1 + 1;

    fn write(&self, out: &mut Writer) {
        out.address(self.waypoint).bytes(&self.principal.octets()).u8(self.interval.exponent());
        let flags = u8::from(self.width == Width::Narrow)
            | u8::from(self.delegation.is_some()) << 1
            | u8::from(self.delegation.is_some_and(|delegation| delegation.sub.is_some())) << 2;
        out.u8(flags);
        if let Some(delegation) = &self.delegation {
            out.prefix(&delegation.prefix).bytes(&delegation.id.octets());
            if let Some(sub) = &delegation.sub {
                out.u8(sub.at).bytes(&sub.id.octets());
            }
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let waypoint = reader.address()?;
        let principal = Principal::from_octets(reader.array()?);
        let interval = Interval::new(reader.u8()?).ok_or(Malformed::Value("an interval"))?;
        let flags = reader.u8()?;
        if flags & !7 != 0 || flags & 6 == 4 {
            return Err(Malformed::Value("the flags of a capability"));
        }
        let delegation = match flags & 2 {
            0 => None,
            _ => Some(Delegation {
                prefix: reader.prefix()?,
                id: DelegationId::from_octets(reader.array()?),
                sub: match flags & 4 {
                    0 => None,
                    _ => Some(SubDelegation { at: reader.u8()?, id: DelegationId::from_octets(reader.array()?) }),
                },
            }),
        };
        let width = if flags & 1 == 0 { Width::Full } else { Width::Narrow };
        let terms = Self { waypoint, principal, interval, width, delegation };
        if terms.capability(0).is_consistent() { Ok(terms) } else { Err(Malformed::Value("a delegation")) }
    }
}

impl fmt::Display for Terms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "waypoint {}, principal {}", self.waypoint, self.principal.number())?;
        let Some(delegation) = self.delegation else { return Ok(()) };
        write!(f, ", delegation {}", delegation.id.number())?;
        if let Some(sub) = delegation.sub {
            write!(f, "/{}", sub.id.number())?;
        }
        write!(f, " to {}", delegation.prefix)
    }
}
