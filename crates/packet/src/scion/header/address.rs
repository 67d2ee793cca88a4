//! ISD-AS numbers and the host addresses of the SCION address header.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use thiserror::Error;

/// An isolation domain (16 bits) and an AS in it (48 bits).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct IsdAs(pub u64);

/// A text that is not an ISD-AS.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("an ISD-AS is like 1-64512 or 1-ff00:0:110")]
pub struct ParseIsdAsError;

impl IsdAs {
    /// From `isd` and the low 48 bits of `asn`.
    #[must_use]
    pub fn new(isd: u16, asn: u64) -> Self {
        Self(u64::from(isd) << 48 | (asn & 0xffff_ffff_ffff))
    }

    /// The isolation domain; zero is a wildcard.
    #[must_use]
    pub fn isd(self) -> u16 {
        (self.0 >> 48) as u16
    }

    /// The AS number, 48 bits.
    #[must_use]
    pub fn asn(self) -> u64 {
        self.0 & 0xffff_ffff_ffff
    }
}

impl fmt::Display for IsdAs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let asn = self.asn();
        if u32::try_from(asn).is_ok() {
            return write!(f, "{}-{asn}", self.isd());
        }
        write!(f, "{}-{:x}:{:x}:{:x}", self.isd(), asn >> 32, (asn >> 16) & 0xffff, asn & 0xffff)
    }
}

impl fmt::Debug for IsdAs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for IsdAs {
    type Err = ParseIsdAsError;

    fn from_str(text: &str) -> Result<Self, ParseIsdAsError> {
        let (isd, asn) = text.split_once('-').ok_or(ParseIsdAsError)?;
        let isd = isd.parse().map_err(|_| ParseIsdAsError)?;
        if let Ok(asn) = asn.parse::<u32>() {
            return Ok(Self::new(isd, asn.into()));
        }
        let mut groups = asn.split(':').map(|group| u16::from_str_radix(group, 16));
        let mut asn = 0;
        for _ in 0..3 {
            asn = asn << 16 | u64::from(groups.next().ok_or(ParseIsdAsError)?.map_err(|_| ParseIsdAsError)?);
        }
        if groups.next().is_some() {
            return Err(ParseIsdAsError);
        }
        Ok(Self::new(isd, asn))
    }
}

/// A service address (SVC): the control plane's anycast names.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Service(pub u16);

impl Service {
    /// Discovery service.
    pub const DISCOVERY: Self = Self(1);
    /// Control service.
    pub const CONTROL: Self = Self(2);
    /// This bit asks for all instances rather than for one.
    pub const MULTICAST: u16 = 0x8000;
}

/// A host within an AS; type and length on the wire are two bits each.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum HostAddress {
    /// Type 0, length 0.
    V4(Ipv4Addr),
    /// Type 0, length 3.
    V6(Ipv6Addr),
    /// Type 1, length 0: the number and two zero octets.
    Service(Service),
    /// Any other type, opaque to routers that only pass it on: type, and 4, 8, 12 or 16 octets.
    Other {
        /// The two bits of type.
        kind: u8,
        /// The two bits of length: octets are `4 * (length + 1)`.
        length: u8,
        /// The octets, from the front.
        octets: [u8; 16],
    },
}

impl HostAddress {
    /// Reads an address of type and length `nibble` from the front of `octets`, which must be long enough.
    pub(super) fn read(nibble: u8, octets: &[u8]) -> Option<Self> {
        let length = 4 * usize::from((nibble & 3) + 1);
        let octets = octets.get(..length)?;
        Some(match (nibble, octets) {
            (0, &[a, b, c, d]) => Self::V4(Ipv4Addr::new(a, b, c, d)),
            (4, &[a, b, 0, 0]) => Self::Service(Service(u16::from_be_bytes([a, b]))),
            _ => match <[u8; 16]>::try_from(octets) {
                Ok(all) if nibble == 3 => Self::V6(Ipv6Addr::from(all)),
                _ => {
                    let mut all = [0; 16];
                    all[..length].copy_from_slice(octets);
                    Self::Other { kind: nibble >> 2 & 3, length: nibble & 3, octets: all }
                }
            },
        })
    }

    /// Type and length as the common header has them, four bits.
    #[must_use]
    pub fn nibble(&self) -> u8 {
        match self {
            Self::V4(_) => 0,
            Self::V6(_) => 3,
            Self::Service(_) => 4,
            Self::Other { kind, length, .. } => (kind & 3) << 2 | (length & 3),
        }
    }

    /// Octets on the wire.
    #[must_use]
    pub fn wire_len(&self) -> usize {
        4 * usize::from((self.nibble() & 3) + 1)
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::V4(address) => out.extend(address.octets()),
            Self::V6(address) => out.extend(address.octets()),
            Self::Service(service) => {
                out.extend(service.0.to_be_bytes());
                out.extend([0, 0]);
            }
            Self::Other { octets, .. } => out.extend(&octets[..self.wire_len()]),
        }
    }
}
