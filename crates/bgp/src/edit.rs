//! Changes to path attributes that leave every untouched attribute octet for octet in its place.

use std::net::Ipv4Addr;

use wayleave_core::Asn;

use crate::{
    AsPath, AsPathBuf, AttributeCode, AttributeFlags, Attributes, Community, ExtendedCommunity, Ipv6NextHop,
    LargeCommunity, Origin, RawAttribute,
};

/// Path attributes under change. A new attribute is put before the first with a greater code; a changed one stays where
/// it was and keeps its Partial bit.
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
    pub fn origin(&mut self, origin: Origin) -> &mut Self {
        self.set(AttributeCode::ORIGIN, AttributeFlags::WELL_KNOWN, &[origin.octet()])
    }

    /// Sets AS_PATH; one of more than 65,535 octets changes nothing.
    pub fn as_path(&mut self, path: AsPath<'_>) -> &mut Self {
        self.set(AttributeCode::AS_PATH, AttributeFlags::WELL_KNOWN, path.octets())
    }

    /// Puts `asn` in front of AS_PATH `times` times.
    pub fn prepend(&mut self, asn: Asn, times: usize) -> &mut Self {
        let path = self.value(AttributeCode::AS_PATH).and_then(|value| AsPath::decode(value).ok());
        let mut path = AsPathBuf::from(path.unwrap_or(AsPath::EMPTY));
        path.prepend(asn, times);
        self.as_path(path.as_path())
    }

    /// Sets NEXT_HOP.
    pub fn ipv4_next_hop(&mut self, address: Ipv4Addr) -> &mut Self {
        self.set(AttributeCode::NEXT_HOP, AttributeFlags::WELL_KNOWN, &address.octets())
    }

    /// Sets or removes the next hop of IPv6 routes.
    pub fn ipv6_next_hop(&mut self, next_hop: Option<Ipv6NextHop>) -> &mut Self {
        self.ipv6_next_hop = next_hop;
        self
    }

    /// Sets or removes MULTI_EXIT_DISC.
    pub fn med(&mut self, med: Option<u32>) -> &mut Self {
        self.number(AttributeCode::MULTI_EXIT_DISC, AttributeFlags::OPTIONAL_NON_TRANSITIVE, med)
    }

    /// Sets or removes LOCAL_PREF.
    pub fn local_pref(&mut self, preference: Option<u32>) -> &mut Self {
        self.number(AttributeCode::LOCAL_PREF, AttributeFlags::WELL_KNOWN, preference)
    }

    /// Sets or removes `ONLY_TO_CUSTOMER` (RFC 9234 section 5).
    pub fn only_to_customer(&mut self, asn: Option<Asn>) -> &mut Self {
        self.number(AttributeCode::ONLY_TO_CUSTOMER, AttributeFlags::OPTIONAL_TRANSITIVE, asn.map(|asn| asn.0))
    }

    fn number(&mut self, code: AttributeCode, flags: AttributeFlags, number: Option<u32>) -> &mut Self {
        match number {
            Some(number) => self.set(code, flags, &number.to_be_bytes()),
            None => self.remove(code),
        }
    }

    /// Sets COMMUNITIES; an empty list removes the attribute.
    pub fn communities(&mut self, communities: &[Community]) -> &mut Self {
        self.list(AttributeCode::COMMUNITIES, communities.iter().map(|community| community.0.to_be_bytes()))
    }

    /// Sets EXTENDED_COMMUNITIES; an empty list removes the attribute.
    pub fn extended_communities(&mut self, communities: &[ExtendedCommunity]) -> &mut Self {
        self.list(AttributeCode::EXTENDED_COMMUNITIES, communities.iter().map(|community| community.0))
    }

    /// Sets LARGE_COMMUNITIES; an empty list removes the attribute.
    pub fn large_communities(&mut self, communities: &[LargeCommunity]) -> &mut Self {
        self.list(AttributeCode::LARGE_COMMUNITIES, communities.iter().map(|community| community.octets()))
    }

    /// Keeps the communities for which `keep` holds; without any left the attribute goes.
    pub fn retain_communities(&mut self, keep: impl Fn(Community) -> bool) -> &mut Self {
        self.retain::<4>(AttributeCode::COMMUNITIES, |octets| keep(Community(u32::from_be_bytes(octets))))
    }

    /// Keeps the extended communities for which `keep` holds; without any left the attribute goes.
    pub fn retain_extended_communities(&mut self, keep: impl Fn(ExtendedCommunity) -> bool) -> &mut Self {
        self.retain::<8>(AttributeCode::EXTENDED_COMMUNITIES, |octets| keep(ExtendedCommunity(octets)))
    }

    /// Keeps the large communities for which `keep` holds; without any left the attribute goes.
    pub fn retain_large_communities(&mut self, keep: impl Fn(LargeCommunity) -> bool) -> &mut Self {
        self.retain::<12>(AttributeCode::LARGE_COMMUNITIES, |octets| keep(LargeCommunity::from_octets(octets)))
    }

    /// An attribute that did not change keeps its octets.
    fn retain<const N: usize>(&mut self, code: AttributeCode, keep: impl Fn([u8; N]) -> bool) -> &mut Self {
        let Some(value) = self.value(code) else { return self };
        let (elements, _) = value.as_chunks::<N>();
        let kept: Vec<[u8; N]> = elements.iter().copied().filter(|element| keep(*element)).collect();
        if kept.len() == elements.len() { self } else { self.list(code, kept.into_iter()) }
    }

    fn list<const N: usize>(&mut self, code: AttributeCode, elements: impl Iterator<Item = [u8; N]>) -> &mut Self {
        let value: Vec<u8> = elements.flatten().collect();
        if value.is_empty() { self.remove(code) } else { self.set(code, AttributeFlags::OPTIONAL_TRANSITIVE, &value) }
    }

    /// Sets any attribute. `value` is not checked; one of more than 65,535 octets changes nothing.
    pub fn set(&mut self, code: AttributeCode, flags: AttributeFlags, value: &[u8]) -> &mut Self {
        if value.len() > usize::from(u16::MAX) {
            return self;
        }
        match self.position(code) {
            Some((from, to, old)) => {
                let partial = old.0 & AttributeFlags::PARTIAL;
                self.splice(from, to, RawAttribute { flags: AttributeFlags(flags.0 | partial), code, value });
            }
            None => {
                let at = self.first_beyond(code);
                self.splice(at, at, RawAttribute { flags, code, value });
            }
        }
        self
    }

    pub fn remove(&mut self, code: AttributeCode) -> &mut Self {
        if let Some((from, to, _)) = self.position(code) {
            self.octets.drain(from..to);
        }
        self
    }

    /// The result.
    #[must_use]
    pub fn finish(&self) -> Attributes {
        Attributes::from_checked(&self.octets, self.ipv6_next_hop)
    }

    fn splice(&mut self, from: usize, to: usize, attribute: RawAttribute<'_>) {
        let mut octets = Vec::with_capacity(attribute.value.len() + 4);
        attribute.encode(&mut octets);
        self.octets.splice(from..to, octets);
    }

    fn value(&self, code: AttributeCode) -> Option<&[u8]> {
        self.frames().find(|(_, _, attribute)| attribute.code == code).map(|(_, _, attribute)| attribute.value)
    }

    /// Where the attribute `code` begins and ends, and its flags.
    fn position(&self, code: AttributeCode) -> Option<(usize, usize, AttributeFlags)> {
        self.frames().find(|(_, _, attribute)| attribute.code == code).map(|(from, to, found)| (from, to, found.flags))
    }

    /// Where the first attribute with a code beyond `code` begins.
    fn first_beyond(&self, code: AttributeCode) -> usize {
        let found = self.frames().find(|(_, _, attribute)| attribute.code > code);
        found.map_or(self.octets.len(), |(from, _, _)| from)
    }

    /// Each attribute with the places where it begins and ends.
    fn frames(&self) -> impl Iterator<Item = (usize, usize, RawAttribute<'_>)> {
        let mut rest = &self.octets[..];
        std::iter::from_fn(move || {
            let from = self.octets.len() - rest.len();
            let (attribute, after) = RawAttribute::decode(rest).ok()?;
            rest = after;
            Some((from, self.octets.len() - after.len(), attribute))
        })
    }
}
