//! Communities: standard (RFC 1997), extended (RFC 4360), large (RFC 8092), and their text.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The text is not a community of the expected kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a community of the form {form}")]
pub struct ParseCommunityError {
    text: String,
    form: &'static str,
}

/// A standard community: four octets, written `64496:100`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Community(pub u32);

const WELL_KNOWN: [(&str, Community); 8] = [
    ("graceful-shutdown", Community::GRACEFUL_SHUTDOWN),
    ("accept-own", Community::ACCEPT_OWN),
    ("llgr-stale", Community::LLGR_STALE),
    ("no-llgr", Community::NO_LLGR),
    ("blackhole", Community::BLACKHOLE),
    ("no-export", Community::NO_EXPORT),
    ("no-advertise", Community::NO_ADVERTISE),
    ("no-export-subconfed", Community::NO_EXPORT_SUBCONFED),
];

impl Community {
    /// RFC 8326.
    pub const GRACEFUL_SHUTDOWN: Community = Community(0xffff_0000);
    /// RFC 7611.
    pub const ACCEPT_OWN: Community = Community(0xffff_0001);
    /// RFC 9494.
    pub const LLGR_STALE: Community = Community(0xffff_0006);
    /// RFC 9494.
    pub const NO_LLGR: Community = Community(0xffff_0007);
    /// RFC 7999.
    pub const BLACKHOLE: Community = Community(0xffff_029a);
    /// RFC 1997.
    pub const NO_EXPORT: Community = Community(0xffff_ff01);
    /// RFC 1997.
    pub const NO_ADVERTISE: Community = Community(0xffff_ff02);
    /// RFC 1997.
    pub const NO_EXPORT_SUBCONFED: Community = Community(0xffff_ff03);

    /// `upper:lower`.
    #[must_use]
    pub fn new(upper: u16, lower: u16) -> Self {
        Community(u32::from(upper) << 16 | u32::from(lower))
    }

    /// The two octets before the colon, by convention an AS number.
    #[must_use]
    pub fn upper(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// The two octets behind the colon.
    #[must_use]
    pub fn lower(self) -> u16 {
        self.0 as u16
    }

    /// The registered name, such as `no-export`.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        WELL_KNOWN.iter().find(|(_, community)| *community == self).map(|(name, _)| *name)
    }
}

impl fmt::Display for Community {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.upper(), self.lower())
    }
}

/// Takes `64496:100` and the well-known names.
impl FromStr for Community {
    type Err = ParseCommunityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some((_, community)) = WELL_KNOWN.iter().find(|(name, _)| *name == text) {
            return Ok(*community);
        }
        let [upper, lower] = numbers(text, "16-bit:16-bit")?;
        Ok(Community::new(upper, lower))
    }
}

/// A large community: three numbers of four octets, written `64496:1:2`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LargeCommunity {
    /// The global administrator, an AS number.
    pub global: u32,
    /// The first local data part.
    pub local1: u32,
    /// The second local data part.
    pub local2: u32,
}

impl LargeCommunity {
    /// `global:local1:local2`.
    #[must_use]
    pub fn new(global: u32, local1: u32, local2: u32) -> Self {
        Self { global, local1, local2 }
    }

    /// The twelve octets on the wire.
    #[must_use]
    pub fn octets(self) -> [u8; 12] {
        let mut octets = [0; 12];
        octets[..4].copy_from_slice(&self.global.to_be_bytes());
        octets[4..8].copy_from_slice(&self.local1.to_be_bytes());
        octets[8..].copy_from_slice(&self.local2.to_be_bytes());
        octets
    }

    /// From the twelve octets on the wire.
    #[must_use]
    pub fn from_octets(octets: [u8; 12]) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l] = octets;
        Self::new(u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]), u32::from_be_bytes([i, j, k, l]))
    }
}

impl fmt::Display for LargeCommunity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.global, self.local1, self.local2)
    }
}

impl FromStr for LargeCommunity {
    type Err = ParseCommunityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let [global, local1, local2] = numbers(text, "32-bit:32-bit:32-bit")?;
        Ok(Self { global, local1, local2 })
    }
}

/// An extended community: eight octets, written `rt:64496:100`, `ro:64496:100` or `raw:0123456789abcdef`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExtendedCommunity(pub [u8; 8]);

impl ExtendedCommunity {
    /// A route target of a two-octet AS (RFC 4360 section 4).
    #[must_use]
    pub fn route_target(asn: u16, value: u32) -> Self {
        Self::two_octet_as(2, asn, value)
    }

    /// A route target of a four-octet AS (RFC 5668).
    #[must_use]
    pub fn route_target_as4(asn: u32, value: u16) -> Self {
        Self::four_octet_as(2, asn, value)
    }

    fn two_octet_as(subtype: u8, asn: u16, value: u32) -> Self {
        let [a, b] = asn.to_be_bytes();
        let [c, d, e, f] = value.to_be_bytes();
        Self([0x00, subtype, a, b, c, d, e, f])
    }

    fn four_octet_as(subtype: u8, asn: u32, value: u16) -> Self {
        let [a, b, c, d] = asn.to_be_bytes();
        let [e, f] = value.to_be_bytes();
        Self([0x02, subtype, a, b, c, d, e, f])
    }

    /// Whether it is passed on to another AS (RFC 4360 section 2: the T bit is clear).
    #[must_use]
    pub fn is_transitive(self) -> bool {
        self.0[0] & 0x40 == 0
    }
}

impl fmt::Display for ExtendedCommunity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |subtype| if subtype == 2 { "rt" } else { "ro" };
        match self.0 {
            [0x00, subtype @ 2..=3, a, b, c, d, e, g] => {
                let (asn, value) = (u16::from_be_bytes([a, b]), u32::from_be_bytes([c, d, e, g]));
                write!(f, "{}:{asn}:{value}", name(subtype))
            }
            // A four-octet AS number that would fit two octets keeps the raw form, so that the text names one value.
            [0x02, subtype @ 2..=3, a, b, c, d, e, g] if (a, b) != (0, 0) => {
                let (asn, value) = (u32::from_be_bytes([a, b, c, d]), u16::from_be_bytes([e, g]));
                write!(f, "{}:{asn}:{value}", name(subtype))
            }
            octets => write!(f, "raw:{:016x}", u64::from_be_bytes(octets)),
        }
    }
}

impl FromStr for ExtendedCommunity {
    type Err = ParseCommunityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let form = "rt:ASN:value, ro:ASN:value or raw:16 hexadecimal digits";
        let error = || ParseCommunityError { text: text.to_owned(), form };
        let (kind, rest) = text.split_once(':').ok_or_else(error)?;
        let subtype = match kind {
            "rt" => 2,
            "ro" => 3,
            "raw" if rest.len() == 16 && rest.bytes().all(|digit| digit.is_ascii_hexdigit()) => {
                let value = u64::from_str_radix(rest, 16).map_err(|_| error())?;
                return Ok(Self(value.to_be_bytes()));
            }
            _ => return Err(error()),
        };
        let [asn, value] = numbers::<u32, 2>(rest, form).map_err(|_| error())?;
        match (u16::try_from(asn), u16::try_from(value)) {
            (Ok(asn), _) => Ok(Self::two_octet_as(subtype, asn, value)),
            (Err(_), Ok(value)) => Ok(Self::four_octet_as(subtype, asn, value)),
            _ => Err(error()),
        }
    }
}

/// Exactly `N` numbers with colons between them, in digits only.
fn numbers<T: FromStr + Copy + Default, const N: usize>(
    text: &str,
    form: &'static str,
) -> Result<[T; N], ParseCommunityError> {
    let error = || ParseCommunityError { text: text.to_owned(), form };
    let mut out = [T::default(); N];
    let mut parts = text.split(':');
    for slot in &mut out {
        let part = parts.next().filter(|part| part.bytes().all(|digit| digit.is_ascii_digit())).ok_or_else(error)?;
        *slot = part.parse().map_err(|_| error())?;
    }
    if parts.next().is_some() { Err(error()) } else { Ok(out) }
}

macro_rules! as_text {
    ($($name:ident)*) => {$(
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }
    )*};
}

as_text!(Community LargeCommunity ExtendedCommunity);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn standard_communities_read_as_they_print() {
        for text in ["64496:100", "0:0", "65535:65535", "65535:666"] {
            assert_eq!(text.parse::<Community>().unwrap().to_string(), text);
        }
        assert_eq!("no-export".parse(), Ok(Community::NO_EXPORT));
        assert_eq!(Community::BLACKHOLE.name(), Some("blackhole"));
        for text in ["64496", "64496:65536", "64496:1:2", "+1:2", ":", "1: 2"] {
            assert!(text.parse::<Community>().is_err(), "{text}");
        }
    }

    #[test]
    fn large_communities_read_as_they_print() {
        let community = LargeCommunity::new(4_200_000_000, 1, u32::MAX);
        assert_eq!(community.to_string(), "4200000000:1:4294967295");
        assert_eq!(community.to_string().parse(), Ok(community));
        assert_eq!(LargeCommunity::from_octets(community.octets()), community);
        assert!("1:2".parse::<LargeCommunity>().is_err());
    }

    #[test]
    fn extended_communities_read_as_they_print() {
        for text in ["rt:64496:100000", "ro:4200000000:7", "raw:430c000000000000", "raw:0202000000010001"] {
            assert_eq!(text.parse::<ExtendedCommunity>().unwrap().to_string(), text);
        }
        for text in ["rt:4200000000:70000", "raw:12", "soo:1:2", "rt:1"] {
            assert!(text.parse::<ExtendedCommunity>().is_err(), "{text}");
        }
    }
}
