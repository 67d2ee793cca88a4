//! IP prefixes in canonical form: no host bit is set.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Address family of a prefix (RFC 4760, `AFI`); the `SAFI` is always unicast.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Afi {
    /// AFI 1.
    Ipv4,
    /// AFI 2.
    Ipv6,
}

impl fmt::Display for Afi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ipv4 => "IPv4",
            Self::Ipv6 => "IPv6",
        })
    }
}

impl Afi {
    /// The number on the wire.
    #[must_use]
    pub fn code(self) -> u16 {
        match self {
            Afi::Ipv4 => 1,
            Afi::Ipv6 => 2,
        }
    }

    /// Bits of an address.
    #[must_use]
    pub fn bits(self) -> u8 {
        match self {
            Afi::Ipv4 => 32,
            Afi::Ipv6 => 128,
        }
    }
}

/// Why something is not a prefix.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PrefixError {
    /// The length exceeds the family's address size.
    #[error("prefix length {length} exceeds {most} bits")]
    TooLong {
        /// The length given, in bits.
        length: u8,
        most: u8,
    },
    /// A bit beyond the length is set.
    #[error("a bit beyond the prefix length is set")]
    HostBits,
}

/// An IPv4 or IPv6 prefix. Two equal prefixes have one representation: bits beyond the length are zero.
///
/// Ordered by family, then address, then length.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    afi: Afi,
    /// The address, left-aligned: an IPv4 address is in the upper 32 bits.
    bits: u128,
    length: u8,
}

impl Prefix {
    /// A prefix whose address has no bit set beyond `length`.
    pub fn new(address: IpAddr, length: u8) -> Result<Self, PrefixError> {
        let prefix = Self::truncated(address, length)?;
        if prefix.address() == address { Ok(prefix) } else { Err(PrefixError::HostBits) }
    }

    /// A prefix from an address whose bits beyond `length` are ignored (RFC 4271 section 4.3: trailing bits are
    /// irrelevant).
    pub fn truncated(address: IpAddr, length: u8) -> Result<Self, PrefixError> {
        let (afi, bits) = match address {
            IpAddr::V4(v4) => (Afi::Ipv4, u128::from(u32::from(v4)) << 96),
            IpAddr::V6(v6) => (Afi::Ipv6, u128::from(v6)),
        };
        if length > afi.bits() {
            return Err(PrefixError::TooLong { length, most: afi.bits() });
        }
        Ok(Self { afi, bits: bits & mask(length), length })
    }

    /// From the left-aligned octets that NLRI carries: `octets` holds at least `(length + 7) / 8` octets; bits beyond
    /// `length` are ignored.
    pub fn from_nlri(afi: Afi, length: u8, octets: &[u8]) -> Result<Self, PrefixError> {
        if length > afi.bits() {
            return Err(PrefixError::TooLong { length, most: afi.bits() });
        }
        let mut raw = [0u8; 16];
        let n = usize::from(length).div_ceil(8).min(octets.len());
        raw[..n].copy_from_slice(&octets[..n]);
        Ok(Self { afi, bits: u128::from_be_bytes(raw) & mask(length), length })
    }

    /// The family.
    #[must_use]
    pub fn afi(&self) -> Afi {
        self.afi
    }

    /// The length in bits.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a length in bits, not a collection's")]
    pub fn len(&self) -> u8 {
        self.length
    }

    /// The network address.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        match self.afi {
            // An IPv4 address is in the upper 32 bits.
            Afi::Ipv4 => IpAddr::V4(Ipv4Addr::from((self.bits >> 96) as u32)),
            Afi::Ipv6 => IpAddr::V6(Ipv6Addr::from(self.bits)),
        }
    }

    /// The left-aligned octets; NLRI carries the first `(len + 7) / 8` of them.
    #[must_use]
    pub fn octets(&self) -> [u8; 16] {
        self.bits.to_be_bytes()
    }

    /// Whether `other` lies in this prefix (or is it).
    #[must_use]
    pub fn contains(&self, other: &Prefix) -> bool {
        self.afi == other.afi && self.length <= other.length && other.bits & mask(self.length) == self.bits
    }
}

/// The upper `length` bits set.
fn mask(length: u8) -> u128 {
    match length {
        0 => 0,
        n => u128::MAX << (128 - u32::from(n)),
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address(), self.length)
    }
}

impl fmt::Debug for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not a prefix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParsePrefixError {
    /// Not of the form `address/length`.
    #[error("`{0}` is not a prefix of the form ADDRESS/LENGTH")]
    Form(String),
    /// Of that form, but not a prefix.
    #[error("`{0}`: {1}")]
    Value(String, PrefixError),
    /// Of that form, with a bit set beyond the length; and the prefix without it.
    #[error("`{text}`: {error}, expected {prefix}", error = PrefixError::HostBits)]
    HostBits { text: String, prefix: Prefix },
}

impl FromStr for Prefix {
    type Err = ParsePrefixError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let form = || ParsePrefixError::Form(text.to_owned());
        let (address, length) = text.split_once('/').ok_or_else(form)?;
        let address = address.parse().map_err(|_| form())?;
        let length = length.parse().map_err(|_| form())?;
        Prefix::new(address, length).map_err(|error| match (error, Prefix::truncated(address, length)) {
            (PrefixError::HostBits, Ok(prefix)) => ParsePrefixError::HostBits { text: text.to_owned(), prefix },
            _ => ParsePrefixError::Value(text.to_owned(), error),
        })
    }
}

impl Serialize for Prefix {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Prefix {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn p(text: &str) -> Prefix {
        text.parse().expect("a prefix")
    }

    #[test]
    fn prints_as_it_was_read() {
        for text in ["0.0.0.0/0", "192.0.2.0/24", "192.0.2.1/32", "::/0", "2001:db8::/32", "2001:db8::1/128"] {
            assert_eq!(p(text).to_string(), text);
        }
    }

    #[test]
    fn refuses_host_bits_and_long_lengths() {
        assert!("192.0.2.1/24".parse::<Prefix>().is_err());
        assert!("192.0.2.0/33".parse::<Prefix>().is_err());
        assert!("2001:db8::/129".parse::<Prefix>().is_err());
        assert!("192.0.2.0".parse::<Prefix>().is_err());
    }

    #[test]
    fn nlri_bits_beyond_the_length_are_ignored() {
        assert_eq!(Prefix::from_nlri(Afi::Ipv4, 20, &[10, 1, 0xff]), Ok(p("10.1.240.0/20")));
        assert_eq!(Prefix::from_nlri(Afi::Ipv4, 0, &[]), Ok(p("0.0.0.0/0")));
        assert_eq!(Prefix::from_nlri(Afi::Ipv4, 33, &[0; 5]), Err(PrefixError::TooLong { length: 33, most: 32 }));
    }

    #[test]
    fn contains_itself_and_longer_ones_of_its_family() {
        assert!(p("10.0.0.0/8").contains(&p("10.1.0.0/16")));
        assert!(p("10.0.0.0/8").contains(&p("10.0.0.0/8")));
        assert!(!p("10.1.0.0/16").contains(&p("10.0.0.0/8")));
        assert!(!p("0.0.0.0/0").contains(&p("::/0")));
    }
}
