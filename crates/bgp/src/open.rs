//! OPEN and its capabilities (RFC 4271 section 4.2, RFC 5492, RFC 9072).

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};
use wayleave_core::{Afi, Asn};

use crate::MessageError;

/// Which way path identifiers may go (RFC 7911 section 4), seen from the sender of the capability.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub enum AddPathMode {
    /// 1: it can receive them.
    Receive,
    /// 2: it can send them.
    Send,
    /// 3: both.
    Both,
    /// Any other value, to be ignored.
    Other(u8),
}

/// One family of an ADD-PATH capability.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub struct AddPathEntry {
    /// Address family identifier.
    pub afi: u16,
    /// Subsequent address family identifier.
    pub safi: u8,
    /// Which way.
    pub mode: AddPathMode,
}

/// One family of a graceful restart capability (RFC 4724 section 3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub struct GracefulRestartFamily {
    /// Address family identifier.
    pub afi: u16,
    /// Subsequent address family identifier.
    pub safi: u8,
    /// Bit 0x80: forwarding state was kept.
    pub flags: u8,
}

/// One capability of an OPEN.
#[derive(Clone, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub enum Capability {
    /// Code 1 (RFC 4760).
    Multiprotocol {
        /// Address family identifier.
        afi: u16,
        /// Subsequent address family identifier.
        safi: u8,
    },
    /// Code 2 (RFC 2918).
    RouteRefresh,
    /// Code 6 (RFC 8654).
    ExtendedMessage,
    /// Code 9 (RFC 9234): 0 provider, 1 route server, 2 its client, 3 customer, 4 peer.
    Role(u8),
    /// Code 64 (RFC 4724).
    GracefulRestart {
        /// The upper four bits: 8 restarted, 4 notifications too (RFC 8538).
        flags: u8,
        /// Seconds, 0 to 4,095.
        restart_time: u16,
        /// The families whose routes survive.
        families: Vec<GracefulRestartFamily>,
    },
    /// Code 65 (RFC 6793).
    FourOctetAs(Asn),
    /// Code 69 (RFC 7911).
    AddPath(Vec<AddPathEntry>),
    /// Code 70 (RFC 7313).
    EnhancedRouteRefresh,
    /// Any other, kept as it came.
    Unknown {
        /// Its code.
        code: u8,
        /// Its value, at most 255 octets.
        value: Vec<u8>,
    },
}

impl Capability {
    /// Multiprotocol extensions for `afi` unicast.
    #[must_use]
    pub fn unicast(afi: Afi) -> Self {
        Capability::Multiprotocol { afi: afi.code(), safi: 1 }
    }
}

/// An OPEN message.
#[derive(Clone, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub struct Open {
    /// The sender's AS: the one of the four-octet capability, if there is one, else of the two-octet field.
    pub asn: Asn,
    /// Seconds: 0, or at least 3.
    pub hold_time: u16,
    /// The sender's identifier, not zero (RFC 6286).
    pub identifier: Ipv4Addr,
    /// In wire order, repetitions included.
    pub capabilities: Vec<Capability>,
}

impl Open {
    /// Decodes the message's body, after the header.
    pub fn decode(_body: &[u8]) -> Result<Self, MessageError> {
        todo!()
    }

    /// Appends the body, after the header; capabilities in one parameter each, in RFC 9072 form if they exceed 255 octets.
    pub fn encode_body(&self, _out: &mut Vec<u8>) {
        todo!()
    }

    /// Whether the sender speaks `afi` unicast: it says so, or it names no family at all and `afi` is IPv4.
    #[must_use]
    pub fn has_family(&self, afi: Afi) -> bool {
        let mut families = self.capabilities.iter().filter_map(|capability| match capability {
            Capability::Multiprotocol { afi, safi } => Some((*afi, *safi)),
            _ => None,
        });
        match families.next() {
            None => afi == Afi::Ipv4,
            Some(first) => std::iter::once(first).chain(families).any(|family| family == (afi.code(), 1)),
        }
    }

    /// Whether the sender speaks four-octet AS numbers.
    #[must_use]
    pub fn has_four_octet_as(&self) -> bool {
        self.capabilities.iter().any(|capability| matches!(capability, Capability::FourOctetAs(_)))
    }

    /// Whether `capability` is among the sender's.
    #[must_use]
    pub fn has(&self, capability: &Capability) -> bool {
        self.capabilities.contains(capability)
    }

    /// Which way the sender takes path identifiers for `afi` unicast; the last entry counts (RFC 7911 section 4).
    #[must_use]
    pub fn add_path(&self, afi: Afi) -> Option<AddPathMode> {
        self.capabilities
            .iter()
            .filter_map(|capability| match capability {
                Capability::AddPath(entries) => Some(entries),
                _ => None,
            })
            .flatten()
            .rfind(|entry| (entry.afi, entry.safi) == (afi.code(), 1))
            .map(|entry| entry.mode)
    }
}
