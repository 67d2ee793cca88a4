//! ROUTE-REFRESH (RFC 2918) and its demarcations (RFC 7313).

use serde::{Deserialize, Serialize};
use wayleave_core::Afi;

/// The message subtype (RFC 7313 section 3.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub enum RefreshKind {
    /// Subtype 0: the peer requests all routes again.
    Request,
    /// Subtype 1: a refresh begins.
    Begin,
    /// Subtype 2: a refresh has ended.
    End,
    /// Any other subtype, to be ignored (RFC 7313 section 5).
    Other(u8),
}

impl RefreshKind {
    /// The octet on the wire.
    #[must_use]
    pub fn octet(self) -> u8 {
        match self {
            RefreshKind::Request => 0,
            RefreshKind::Begin => 1,
            RefreshKind::End => 2,
            RefreshKind::Other(octet) => octet,
        }
    }

    pub(crate) fn from_octet(octet: u8) -> Self {
        match octet {
            0 => RefreshKind::Request,
            1 => RefreshKind::Begin,
            2 => RefreshKind::End,
            other => RefreshKind::Other(other),
        }
    }
}

/// A ROUTE-REFRESH message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub struct RouteRefresh {
    /// Address family identifier; one that is unknown is to be ignored (RFC 2918 section 4).
    pub afi: u16,
    pub safi: u8,
    pub kind: RefreshKind,
}

impl RouteRefresh {
    /// Asks for all routes of `afi` unicast.
    #[must_use]
    pub fn request(afi: Afi) -> Self {
        Self { afi: afi.code(), safi: 1, kind: RefreshKind::Request }
    }

    /// The family, if it is one of ours.
    #[must_use]
    pub fn family(&self) -> Option<Afi> {
        match (self.afi, self.safi) {
            (1, 1) => Some(Afi::Ipv4),
            (2, 1) => Some(Afi::Ipv6),
            _ => None,
        }
    }
}
