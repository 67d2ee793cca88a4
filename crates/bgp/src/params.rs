//! Parameters of a session that the codec needs.

use serde::{Deserialize, Serialize};
use wayleave_core::{Afi, Asn};

/// The families in which NLRI carries a path identifier (RFC 7911), in one direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash, Serialize, Deserialize)]
pub struct AddPath {
    pub ipv4: bool,
    pub ipv6: bool,
}

impl AddPath {
    /// Whether `afi` unicast carries path identifiers.
    #[must_use]
    pub fn has(self, afi: Afi) -> bool {
        match afi {
            Afi::Ipv4 => self.ipv4,
            Afi::Ipv6 => self.ipv6,
        }
    }
}

/// Parameters of a session that the codec needs: the outcome of the OPEN exchange and the kind of the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub struct SessionParams {
    pub local_asn: Asn,
    /// The peer's AS number, from OPEN (the capability's, if it has one).
    pub peer_asn: Asn,
    /// The peer is in another AS.
    pub external: bool,
    /// The peer is another member AS of our confederation (RFC 5065): confederation segments are expected.
    pub confederation: bool,
    /// Both ends speak four-octet AS numbers (RFC 6793).
    pub four_octet_as: bool,
    /// Both ends take messages of up to 65,535 octets (RFC 8654).
    pub extended_message: bool,
    /// IPv4 unicast is agreed (RFC 4760; without any multiprotocol capability it is).
    pub ipv4_unicast: bool,
    /// IPv6 unicast is agreed.
    pub ipv6_unicast: bool,
    /// Where the peer sends path identifiers to us.
    pub add_path_receive: AddPath,
    /// Where we send path identifiers to the peer.
    pub add_path_send: AddPath,
    /// The peer does not know what a long-lived stale route is, and so does not get any (RFC 9494 section 4.3).
    pub withholds_stale: bool,
    /// A route from an external peer must begin with the peer's own AS (RFC 4271 section 6.3); off towards a route
    /// server (RFC 7947 section 2.2.2.1).
    pub enforce_first_as: bool,
}

impl SessionParams {
    /// A typical session between `local_asn` and `peer_asn`: four-octet AS numbers, both families, messages of 4,096
    /// octets, no path identifiers, no check of the first AS.
    #[must_use]
    pub fn new(local_asn: Asn, peer_asn: Asn) -> Self {
        Self {
            local_asn,
            peer_asn,
            external: local_asn != peer_asn,
            confederation: false,
            four_octet_as: true,
            extended_message: false,
            ipv4_unicast: true,
            ipv6_unicast: true,
            add_path_receive: AddPath::default(),
            add_path_send: AddPath::default(),
            withholds_stale: false,
            enforce_first_as: false,
        }
    }

    /// Whether `afi` unicast is agreed.
    #[must_use]
    pub fn has_family(&self, afi: Afi) -> bool {
        match afi {
            Afi::Ipv4 => self.ipv4_unicast,
            Afi::Ipv6 => self.ipv6_unicast,
        }
    }

    /// The longest UPDATE, NOTIFICATION or ROUTE-REFRESH, in octets with the header (RFC 4271 section 4.1, RFC 8654
    /// section 4).
    #[must_use]
    pub fn max_message_len(&self) -> usize {
        if self.extended_message { 65_535 } else { 4_096 }
    }
}
