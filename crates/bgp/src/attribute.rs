//! One path attribute as encoded on the wire: flags, code, value.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Fault, wire};

/// The type code of a path attribute (RFC 4271 section 4.3 and the IANA registry).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AttributeCode(pub u8);

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $code:literal;)*) => {
        impl AttributeCode {
            $($(#[$doc])* pub const $name: AttributeCode = AttributeCode($code);)*

            /// The registered name of a code that this codec knows.
            #[must_use]
            pub fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($code => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

codes! {
    /// RFC 4271 section 5.1.1.
    ORIGIN = 1;
    /// RFC 4271 section 5.1.2.
    AS_PATH = 2;
    /// RFC 4271 section 5.1.3.
    NEXT_HOP = 3;
    /// RFC 4271 section 5.1.4.
    MULTI_EXIT_DISC = 4;
    /// RFC 4271 section 5.1.5.
    LOCAL_PREF = 5;
    /// RFC 4271 section 5.1.6.
    ATOMIC_AGGREGATE = 6;
    /// RFC 4271 section 5.1.7.
    AGGREGATOR = 7;
    /// RFC 1997.
    COMMUNITIES = 8;
    /// RFC 4456.
    ORIGINATOR_ID = 9;
    /// RFC 4456.
    CLUSTER_LIST = 10;
    /// RFC 4760.
    MP_REACH_NLRI = 14;
    /// RFC 4760.
    MP_UNREACH_NLRI = 15;
    /// RFC 4360.
    EXTENDED_COMMUNITIES = 16;
    /// RFC 6793.
    AS4_PATH = 17;
    /// RFC 6793.
    AS4_AGGREGATOR = 18;
    /// RFC 6514.
    PMSI_TUNNEL = 22;
    /// RFC 9012.
    TUNNEL_ENCAPSULATION = 23;
    /// RFC 5543.
    TRAFFIC_ENGINEERING = 24;
    /// RFC 5701.
    IPV6_EXTENDED_COMMUNITIES = 25;
    /// RFC 7311.
    AIGP = 26;
    /// RFC 6790, deprecated by RFC 7447.
    ENTROPY_LABEL = 28;
    /// RFC 9552.
    BGP_LS = 29;
    /// RFC 8092.
    LARGE_COMMUNITIES = 32;
    /// RFC 9234.
    ONLY_TO_CUSTOMER = 35;
    /// RFC 8669.
    PREFIX_SID = 40;
    /// RFC 6368.
    ATTR_SET = 128;
}

impl fmt::Display for AttributeCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} ({})", self.0),
            None => write!(f, "attribute {}", self.0),
        }
    }
}

impl fmt::Debug for AttributeCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The flags octet of a path attribute (RFC 4271 section 4.3).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct AttributeFlags(pub u8);

impl AttributeFlags {
    /// Set: optional; clear: well-known.
    pub const OPTIONAL: u8 = 0x80;
    /// Set: passed on even by speakers that do not recognise it.
    pub const TRANSITIVE: u8 = 0x40;
    /// Set: a speaker on the path did not recognise it.
    pub const PARTIAL: u8 = 0x20;
    /// Set: the length takes two octets.
    pub const EXTENDED_LENGTH: u8 = 0x10;
    /// Zero when sent, ignored when received.
    pub const UNUSED: u8 = 0x0f;

    /// Well-known.
    pub const WELL_KNOWN: AttributeFlags = AttributeFlags(Self::TRANSITIVE);
    /// Optional, transitive.
    pub const OPTIONAL_TRANSITIVE: AttributeFlags = AttributeFlags(Self::OPTIONAL | Self::TRANSITIVE);
    /// Optional, not transitive.
    pub const OPTIONAL_NON_TRANSITIVE: AttributeFlags = AttributeFlags(Self::OPTIONAL);

    /// Whether the Optional bit is set.
    #[must_use]
    pub fn is_optional(self) -> bool {
        self.0 & Self::OPTIONAL != 0
    }

    /// Whether the Transitive bit is set.
    #[must_use]
    pub fn is_transitive(self) -> bool {
        self.0 & Self::TRANSITIVE != 0
    }

    /// Whether the Partial bit is set.
    #[must_use]
    pub fn is_partial(self) -> bool {
        self.0 & Self::PARTIAL != 0
    }

    /// Whether the length takes two octets.
    #[must_use]
    pub fn is_extended(self) -> bool {
        self.0 & Self::EXTENDED_LENGTH != 0
    }
}

impl fmt::Debug for AttributeFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#04x}", self.0)
    }
}

wayleave_core::numbered! {
    /// ORIGIN's three values (RFC 4271 section 5.1.1), best first.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Origin {
        /// Interior to the originating AS.
        Igp = 0,
        /// Learned by EGP.
        Egp = 1,
        /// By other means.
        Incomplete = 2,
    }
}

/// A path attribute whose header has been decoded; its value is not checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RawAttribute<'a> {
    /// As received, with the bits that carry no meaning.
    pub flags: AttributeFlags,
    pub code: AttributeCode,
    /// The value, at most 65,535 octets.
    pub value: &'a [u8],
}

impl<'a> RawAttribute<'a> {
    /// Reads one attribute and hands back the rest.
    #[inline]
    pub fn decode(octets: &'a [u8]) -> Result<(Self, &'a [u8]), Fault> {
        let &[flags, code, ref rest @ ..] = octets else {
            return Err(Fault::AttributeOverrun { excess: 3 - octets.len() });
        };
        let flags = AttributeFlags(flags);
        let (length, rest) = if flags.is_extended() {
            let Some((length, rest)) = wire::u16(rest) else {
                return Err(Fault::AttributeOverrun { excess: 2 - rest.len() });
            };
            (usize::from(length), rest)
        } else {
            let Some((&length, rest)) = rest.split_first() else { return Err(Fault::AttributeOverrun { excess: 1 }) };
            (usize::from(length), rest)
        };
        match rest.split_at_checked(length) {
            Some((value, rest)) => Ok((Self { flags, code: AttributeCode(code), value }, rest)),
            None => Err(Fault::AttributeOverrun { excess: length - rest.len() }),
        }
    }

    /// Appends the attribute in wire form. The Extended Length bit is added if the value needs it, and kept as it was
    /// otherwise, so that what was decoded is written as it came. The value must not exceed 65,535 octets.
    #[inline]
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.encode_header(out);
        out.extend_from_slice(self.value);
    }

    /// Appends flags, code and length.
    #[inline]
    pub(crate) fn encode_header(&self, out: &mut Vec<u8>) {
        let length = u16::try_from(self.value.len()).expect("an attribute's value is at most 65,535 octets");
        match u8::try_from(length) {
            Ok(short) if !self.flags.is_extended() => out.extend_from_slice(&[self.flags.0, self.code.0, short]),
            _ => {
                let [high, low] = length.to_be_bytes();
                let flags = self.flags.0 | AttributeFlags::EXTENDED_LENGTH;
                out.extend_from_slice(&[flags, self.code.0, high, low]);
            }
        }
    }
}

/// Reads attributes until the octets end or one is cut short; after a fault it yields nothing more.
#[derive(Clone, Debug)]
pub struct AttributeIter<'a> {
    rest: &'a [u8],
}

impl<'a> AttributeIter<'a> {
    /// Over the path attributes field.
    #[must_use]
    pub fn new(octets: &'a [u8]) -> Self {
        Self { rest: octets }
    }
}

impl<'a> Iterator for AttributeIter<'a> {
    type Item = Result<RawAttribute<'a>, Fault>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        match RawAttribute::decode(self.rest) {
            Ok((attribute, rest)) => {
                self.rest = rest;
                Some(Ok(attribute))
            }
            Err(fault) => {
                self.rest = &[];
                Some(Err(fault))
            }
        }
    }
}
