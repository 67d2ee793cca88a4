//! Changes to path attributes that leave every untouched attribute octet for octet in its place.

use std::net::Ipv4Addr;

use wayleave_core::Asn;

use crate::{
    AsPath, AttributeCode, AttributeFlags, Attributes, Community, ExtendedCommunity, Ipv6NextHop, LargeCommunity,
    Origin,
};

/// Path attributes under change. A new attribute is put before the first with a greater code; a changed one stays where
/// it was.
#[derive(Clone, Debug, Default)]
pub struct AttributesEditor {
    octets: Vec<u8>,
    ipv6_next_hop: Option<Ipv6NextHop>,
}

impl AttributesEditor {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn from_attributes(attributes: &Attributes) -> Self {
        Self { octets: attributes.as_octets().to_vec(), ipv6_next_hop: attributes.ipv6_next_hop() }
    }

    /// Sets ORIGIN.
    pub fn origin(&mut self, _origin: Origin) -> &mut Self {
        todo!()
    }

    /// Sets AS_PATH.
    pub fn as_path(&mut self, _path: AsPath<'_>) -> &mut Self {
        todo!()
    }

    /// Puts `asn` in front of AS_PATH `times` times.
    pub fn prepend(&mut self, _asn: Asn, _times: usize) -> &mut Self {
        todo!()
    }

    /// Sets NEXT_HOP.
    pub fn ipv4_next_hop(&mut self, _address: Ipv4Addr) -> &mut Self {
        todo!()
    }

    /// Sets or removes the next hop of IPv6 routes.
    pub fn ipv6_next_hop(&mut self, next_hop: Option<Ipv6NextHop>) -> &mut Self {
        self.ipv6_next_hop = next_hop;
        self
    }

    /// Sets or removes MULTI_EXIT_DISC.
    pub fn med(&mut self, _med: Option<u32>) -> &mut Self {
        todo!()
    }

    /// Sets or removes LOCAL_PREF.
    pub fn local_pref(&mut self, _preference: Option<u32>) -> &mut Self {
        todo!()
    }

    /// Sets COMMUNITIES; an empty list removes the attribute.
    pub fn communities(&mut self, _communities: &[Community]) -> &mut Self {
        todo!()
    }

    /// Sets EXTENDED_COMMUNITIES; an empty list removes the attribute.
    pub fn extended_communities(&mut self, _communities: &[ExtendedCommunity]) -> &mut Self {
        todo!()
    }

    /// Sets LARGE_COMMUNITIES; an empty list removes the attribute.
    pub fn large_communities(&mut self, _communities: &[LargeCommunity]) -> &mut Self {
        todo!()
    }

    /// Keeps the communities for which `keep` holds; without any left the attribute goes.
    pub fn retain_communities(&mut self, _keep: impl Fn(Community) -> bool) -> &mut Self {
        todo!()
    }

    /// Keeps the extended communities for which `keep` holds; without any left the attribute goes.
    pub fn retain_extended_communities(&mut self, _keep: impl Fn(ExtendedCommunity) -> bool) -> &mut Self {
        todo!()
    }

    /// Keeps the large communities for which `keep` holds; without any left the attribute goes.
    pub fn retain_large_communities(&mut self, _keep: impl Fn(LargeCommunity) -> bool) -> &mut Self {
        todo!()
    }

    /// Sets any attribute. The caller answers for `value`; at most 65,535 octets.
    pub fn set(&mut self, _code: AttributeCode, _flags: AttributeFlags, _value: &[u8]) -> &mut Self {
        todo!()
    }

    /// Removes an attribute.
    pub fn remove(&mut self, _code: AttributeCode) -> &mut Self {
        todo!()
    }

    /// The result.
    #[must_use]
    pub fn finish(&self) -> Attributes {
        Attributes::from_checked(&self.octets, self.ipv6_next_hop)
    }
}
