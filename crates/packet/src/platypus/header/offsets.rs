//! Where each field of a Platypus header and of a capability lies, in octets: one table per family.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use wayleave_core::Afi;

/// IP protocol number of Platypus: for experiments (RFC 3692).
pub const PROTOCOL: u8 = 253;
/// UDP destination port of Platypus over UDP.
pub const UDP_PORT: u16 = 49_253;
/// Our limit on capabilities in one packet.
pub const MAX_CAPABILITIES: usize = 8;
/// Our limit on one waypoint's occurrences in one packet.
pub const MAX_SAME_WAYPOINT: usize = 2;
/// The version that is decoded and encoded.
pub const VERSION: u8 = 1;
/// Pointer and length count words of 32 bits.
pub const WORD: usize = 4;

/// Octet of version (upper half) and flags (lower half).
pub const VERSION_AND_FLAGS: usize = 0;
/// Octet of the capability list's length, in words.
pub const LENGTH: usize = 1;
/// Octet of the current capability's place in the list, in words.
pub const POINTER: usize = 2;
/// Octet of the encapsulated protocol.
pub const INNER_PROTOCOL: usize = 3;
/// First octet of the original source.
pub const SOURCE: usize = 4;

/// Header flag: something about a reply capability stands in front of the payload (paper, section 4.2).
pub const FLAG_REPLY: u8 = 0x8;
/// Header flag: every binding covers the whole list of capabilities.
pub const FLAG_SEALED: u8 = 0x4;
/// Header flag: addresses are of 128 bits.
pub const FLAG_IPV6: u8 = 0x2;

/// Offsets that depend on the family.
#[derive(Debug, PartialEq, Eq)]
pub struct Offsets {
    /// The family of every address.
    pub family: Afi,
    /// The final destination.
    pub destination: usize,
    /// The nonce, eight octets.
    pub nonce: usize,
    /// The first capability.
    pub capabilities: usize,
    /// Offsets within a capability.
    pub capability: CapabilityOffsets,
}

/// Offsets within a capability, whose first field is the waypoint's address.
#[derive(Debug, PartialEq, Eq)]
pub struct CapabilityOffsets {
    /// Resource principal, three octets.
    pub principal: usize,
    /// Flags ([`super::kind`]) and interval.
    pub kind: usize,
    /// The full number of the key epoch.
    pub epoch: usize,
    /// Constraining prefix of a delegated capability.
    pub prefix: usize,
    /// Its length.
    pub prefix_length: usize,
    /// Delegation ID, three octets.
    pub delegation_id: usize,
    /// The prefix length at which a sub-delegation begins; its ID follows.
    pub sub_length: usize,
}

/// IPv4.
pub static IPV4: Offsets = Offsets {
    family: Afi::Ipv4,
    destination: 8,
    nonce: 12,
    capabilities: 20,
    capability: CapabilityOffsets {
        principal: 4,
        kind: 7,
        epoch: 8,
        prefix: 12,
        prefix_length: 16,
        delegation_id: 17,
        sub_length: 20,
    },
};

/// IPv6.
pub static IPV6: Offsets = Offsets {
    family: Afi::Ipv6,
    destination: 20,
    nonce: 36,
    capabilities: 44,
    capability: CapabilityOffsets {
        principal: 16,
        kind: 19,
        epoch: 20,
        prefix: 24,
        prefix_length: 40,
        delegation_id: 41,
        sub_length: 44,
    },
};

/// The offsets of a family.
#[must_use]
pub fn of(family: Afi) -> &'static Offsets {
    match family {
        Afi::Ipv4 => &IPV4,
        Afi::Ipv6 => &IPV6,
    }
}

/// The address at `at`; the caller has checked the length.
pub(crate) fn address(octets: &[u8], at: usize, family: Afi) -> IpAddr {
    match family {
        Afi::Ipv4 => IpAddr::V4(Ipv4Addr::from(word(octets, at))),
        Afi::Ipv6 => {
            let mut out = [0; 16];
            out.copy_from_slice(&octets[at..at + 16]);
            IpAddr::V6(Ipv6Addr::from(out))
        }
    }
}

/// The 32 bits at `at`.
#[must_use]
#[inline]
pub fn word(octets: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([octets[at], octets[at + 1], octets[at + 2], octets[at + 3]])
}

/// The 16 bits at `at`.
#[must_use]
#[inline]
pub fn half(octets: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([octets[at], octets[at + 1]])
}

/// The three octets at `at`.
#[must_use]
#[inline]
pub fn three(octets: &[u8], at: usize) -> [u8; 3] {
    [octets[at], octets[at + 1], octets[at + 2]]
}

/// Octets of an address.
pub(crate) fn address_length(family: Afi) -> usize {
    usize::from(family.bits() / 8)
}
