//! The path attributes of a route, kept octet for octet in their order.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use wayleave_core::{Afi, Asn};

use crate::check::{self, CodeSet};
use crate::{
    Action, AsPath, AttributeCode, AttributeFlags, AttributeIter, AttributesEditor, Community, ExtendedCommunity,
    Fault, LargeCommunity, Origin, Problem, RawAttribute, SessionParams, wire,
};

/// The next hop of IPv6 routes, from MP_REACH_NLRI (RFC 2545 section 3).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct Ipv6NextHop {
    pub global: Ipv6Addr,
    /// The link-local address, where both ends share a link.
    pub link_local: Option<Ipv6Addr>,
}

impl Ipv6NextHop {
    /// As the routers of others mean it: a second address that is not link-local does not count (RFC 2545 section 3), and where
    /// the first one is unspecified the link-local one is the next hop, which is then written twice as other speakers do.
    #[must_use]
    pub fn normalised(self) -> Self {
        let link_local = self.link_local.filter(Ipv6Addr::is_unicast_link_local);
        match link_local {
            Some(address) if self.global.is_unspecified() => Self { global: address, link_local },
            _ => Self { link_local, ..self },
        }
    }

    /// From 16 octets, or 32 with a link-local address (RFC 2545 section 3).
    #[must_use]
    pub fn from_octets(octets: &[u8]) -> Option<Self> {
        let (global, rest) = octets.split_first_chunk::<16>()?;
        let link_local = match rest {
            [] => None,
            rest => Some(Ipv6Addr::from(<[u8; 16]>::try_from(rest).ok()?)),
        };
        Some(Self { global: Ipv6Addr::from(*global), link_local })
    }

    /// 16 octets, or 32 with a link-local address.
    #[must_use]
    pub fn octets(&self) -> Vec<u8> {
        let mut octets = self.global.octets().to_vec();
        octets.extend(self.link_local.iter().flat_map(|address| address.octets()));
        octets
    }
}

/// The next hop of a route.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum NextHop {
    /// For IPv4 routes.
    V4(Ipv4Addr),
    /// For IPv6 routes.
    V6(Ipv6NextHop),
}

/// The AS and router that aggregated the route (RFC 4271 section 5.1.7).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Aggregator {
    pub asn: Asn,
    pub identifier: Ipv4Addr,
}

/// Why octets are not the attributes of a route.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AttributesError {
    /// The first fault, by the rules of RFC 7606.
    #[error("{0}")]
    Fault(Problem),
    /// The next hop before the attributes is cut short or has an impossible length.
    #[error("the next hop has an impossible length")]
    NextHop,
    /// MP_REACH_NLRI or MP_UNREACH_NLRI, which belong to a message, not to a route.
    #[error("multiprotocol attributes do not belong to a route")]
    Multiprotocol,
    /// The attributes exceed 65,535 octets.
    #[error("{0} octets of attributes exceed the limit of 65535")]
    TooLong(usize),
}

/// Path attributes: every one of a route except MP_REACH_NLRI and MP_UNREACH_NLRI, octet for octet in their order,
/// unknown ones included, with AS numbers of four octets; and the next hop of IPv6 routes, which MP_REACH_NLRI carried.
///
/// All attributes are well-formed (RFC 7606 was applied when they were decoded). A clone shares its octets; two are equal
/// if their octets are.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Attributes {
    octets: Arc<[u8]>,
    ipv6_next_hop: Option<Ipv6NextHop>,
}

impl Attributes {
    /// The caller has checked `octets`.
    pub(crate) fn from_checked(octets: &[u8], ipv6_next_hop: Option<Ipv6NextHop>) -> Self {
        Self { octets: octets.into(), ipv6_next_hop }
    }

    /// From attributes with four-octet AS numbers, such as a RIB dump's or our own, checked by the rules of RFC 7606 as
    /// from an internal peer: any fault is an error. MP_REACH_NLRI and MP_UNREACH_NLRI are not allowed.
    pub fn from_octets(octets: &[u8], ipv6_next_hop: Option<Ipv6NextHop>) -> Result<Self, AttributesError> {
        if octets.len() > usize::from(u16::MAX) {
            return Err(AttributesError::TooLong(octets.len()));
        }
        let params = SessionParams::new(Asn(0), Asn(0));
        let mut seen = CodeSet::default();
        for attribute in AttributeIter::new(octets) {
            let fault = |attribute, fault| {
                AttributesError::Fault(Problem { attribute, fault, action: Action::TreatAsWithdraw })
            };
            let attribute = attribute.map_err(|found| fault(None, found))?;
            let code = attribute.code;
            if matches!(code, AttributeCode::MP_REACH_NLRI | AttributeCode::MP_UNREACH_NLRI) {
                return Err(AttributesError::Multiprotocol);
            }
            if !seen.insert(code) {
                return Err(fault(Some(code), Fault::Repeated));
            }
            if let Some((found, _)) = check::attribute(&attribute, &params) {
                return Err(fault(Some(code), found));
            }
        }
        Ok(Self::from_checked(octets, ipv6_next_hop))
    }

    /// Starts an edit from nothing.
    #[must_use]
    pub fn builder() -> AttributesEditor {
        AttributesEditor::new()
    }

    /// Starts an edit; untouched attributes stay octet for octet in their order.
    #[must_use]
    pub fn edit(&self) -> AttributesEditor {
        AttributesEditor::from_attributes(self)
    }

    /// The attributes as they may be passed to another AS (RFC 4271 section 5): unknown non-transitive attributes are
    /// dropped, unknown transitive ones get the Partial bit; all others stay as they are.
    #[must_use]
    pub fn to_forward(&self) -> Self {
        let is_unknown = |attribute: &RawAttribute<'_>| check::defined_flags(attribute.code).is_none();
        if !self.iter().any(|attribute| is_unknown(&attribute)) {
            return self.clone();
        }
        let mut octets = Vec::with_capacity(self.octets.len());
        for mut attribute in self.iter() {
            if is_unknown(&attribute) {
                if !attribute.flags.is_transitive() {
                    continue;
                }
                // The bits without a meaning are zero when sent (RFC 4271 section 4.3).
                attribute.flags.0 = attribute.flags.0 & !AttributeFlags::UNUSED | AttributeFlags::PARTIAL;
            }
            attribute.encode(&mut octets);
        }
        Self::from_checked(&octets, self.ipv6_next_hop)
    }

    /// A portable form that [`Attributes::decode`] reads: the length of the IPv6 next hop (0, 16 or 32 octets), the next
    /// hop, the attributes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let next_hop = self.ipv6_next_hop.map(|next_hop| next_hop.octets()).unwrap_or_default();
        let mut out = Vec::with_capacity(1 + next_hop.len() + self.octets.len());
        out.push(next_hop.len() as u8);
        out.extend_from_slice(&next_hop);
        out.extend_from_slice(&self.octets);
        out
    }

    /// Reads the form of [`Attributes::encode`], checking all of it as [`Attributes::from_octets`] does.
    pub fn decode(octets: &[u8]) -> Result<Self, AttributesError> {
        let (&length, rest) = octets.split_first().ok_or(AttributesError::NextHop)?;
        let (next_hop, rest) = rest.split_at_checked(usize::from(length)).ok_or(AttributesError::NextHop)?;
        let next_hop = match next_hop {
            [] => None,
            octets => Some(Ipv6NextHop::from_octets(octets).ok_or(AttributesError::NextHop)?),
        };
        Self::from_octets(rest, next_hop)
    }

    /// The attributes in wire form.
    #[must_use]
    pub fn as_octets(&self) -> &[u8] {
        &self.octets
    }

    /// The attributes in their order.
    pub fn iter(&self) -> impl Iterator<Item = RawAttribute<'_>> {
        AttributeIter::new(&self.octets).map_while(Result::ok)
    }

    /// The attribute `code`, if it is there.
    #[must_use]
    pub fn get(&self, code: AttributeCode) -> Option<RawAttribute<'_>> {
        self.iter().find(|attribute| attribute.code == code)
    }

    fn value(&self, code: AttributeCode) -> Option<&[u8]> {
        self.get(code).map(|attribute| attribute.value)
    }

    fn number(&self, code: AttributeCode) -> Option<u32> {
        wire::exact_u32(self.value(code)?)
    }

    /// ORIGIN.
    #[must_use]
    pub fn origin(&self) -> Option<Origin> {
        Origin::from_octet(*self.value(AttributeCode::ORIGIN)?.first()?)
    }

    /// AS_PATH; empty if the attribute is absent.
    #[must_use]
    pub fn as_path(&self) -> AsPath<'_> {
        self.value(AttributeCode::AS_PATH).and_then(|value| AsPath::decode(value).ok()).unwrap_or(AsPath::EMPTY)
    }

    /// The next hop of routes of `afi`.
    #[must_use]
    pub fn next_hop(&self, afi: Afi) -> Option<NextHop> {
        match afi {
            Afi::Ipv4 => self.ipv4_next_hop().map(NextHop::V4),
            Afi::Ipv6 => self.ipv6_next_hop.map(NextHop::V6),
        }
    }

    /// NEXT_HOP.
    #[must_use]
    pub fn ipv4_next_hop(&self) -> Option<Ipv4Addr> {
        self.number(AttributeCode::NEXT_HOP).map(Ipv4Addr::from)
    }

    /// The next hop that came in MP_REACH_NLRI.
    #[must_use]
    pub fn ipv6_next_hop(&self) -> Option<Ipv6NextHop> {
        self.ipv6_next_hop
    }

    /// MULTI_EXIT_DISC.
    #[must_use]
    pub fn med(&self) -> Option<u32> {
        self.number(AttributeCode::MULTI_EXIT_DISC)
    }

    /// LOCAL_PREF.
    #[must_use]
    pub fn local_pref(&self) -> Option<u32> {
        self.number(AttributeCode::LOCAL_PREF)
    }

    /// Whether ATOMIC_AGGREGATE is there.
    #[must_use]
    pub fn atomic_aggregate(&self) -> bool {
        self.get(AttributeCode::ATOMIC_AGGREGATE).is_some()
    }

    /// AGGREGATOR.
    #[must_use]
    pub fn aggregator(&self) -> Option<Aggregator> {
        let (asn, identifier) = wire::u32(self.value(AttributeCode::AGGREGATOR)?)?;
        Some(Aggregator { asn: Asn(asn), identifier: wire::exact_u32(identifier)?.into() })
    }

    /// COMMUNITIES in wire order.
    pub fn communities(&self) -> impl Iterator<Item = Community> {
        elements::<4>(self.value(AttributeCode::COMMUNITIES)).map(|octets| Community(u32::from_be_bytes(octets)))
    }

    /// EXTENDED_COMMUNITIES in wire order.
    pub fn extended_communities(&self) -> impl Iterator<Item = ExtendedCommunity> {
        elements::<8>(self.value(AttributeCode::EXTENDED_COMMUNITIES)).map(ExtendedCommunity)
    }

    /// LARGE_COMMUNITIES in wire order.
    pub fn large_communities(&self) -> impl Iterator<Item = LargeCommunity> {
        elements::<12>(self.value(AttributeCode::LARGE_COMMUNITIES)).map(LargeCommunity::from_octets)
    }

    /// ORIGINATOR_ID.
    #[must_use]
    pub fn originator_id(&self) -> Option<Ipv4Addr> {
        self.number(AttributeCode::ORIGINATOR_ID).map(Ipv4Addr::from)
    }

    /// CLUSTER_LIST in wire order, last traversed first.
    pub fn cluster_list(&self) -> impl ExactSizeIterator<Item = Ipv4Addr> {
        elements::<4>(self.value(AttributeCode::CLUSTER_LIST)).map(Ipv4Addr::from)
    }

    /// ONLY_TO_CUSTOMER (RFC 9234).
    #[must_use]
    pub fn only_to_customer(&self) -> Option<Asn> {
        self.number(AttributeCode::ONLY_TO_CUSTOMER).map(Asn)
    }
}

/// A list of elements of `N` octets each; empty if there is none.
fn elements<const N: usize>(value: Option<&[u8]>) -> impl ExactSizeIterator<Item = [u8; N]> {
    value.unwrap_or(&[]).chunks_exact(N).map(|chunk| {
        let mut octets = [0; N];
        octets.copy_from_slice(chunk);
        octets
    })
}

impl fmt::Debug for Attributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut map = f.debug_map();
        for attribute in self.iter() {
            map.entry(&attribute.code, &format_args!("{:?} {:02x?}", attribute.flags, attribute.value));
        }
        if let Some(next_hop) = self.ipv6_next_hop {
            map.entry(&"IPv6 next hop", &next_hop);
        }
        map.finish()
    }
}
