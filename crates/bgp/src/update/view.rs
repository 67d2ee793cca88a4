//! A borrowed UPDATE: sections found and checked, nothing copied.

use std::net::Ipv4Addr;

use wayleave_core::Afi;

use crate::check::{self, CodeSet};
use crate::message::{MessageType, put_header, put_length};
use crate::notification::{code, update};
use crate::{
    Action, AttributeCode, AttributeIter, Fault, Ipv6NextHop, MessageError, NlriIter, Notification, Problem,
    RawAttribute, RawNlri, SessionParams, wire,
};

/// A multiprotocol attribute of a family that this codec reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Multiprotocol<'a> {
    pub(crate) afi: Afi,
    /// Of MP_REACH_NLRI; empty in MP_UNREACH_NLRI.
    next_hop: &'a [u8],
    nlri: &'a [u8],
    add_path: bool,
}

impl<'a> Multiprotocol<'a> {
    pub(crate) fn nlri(&self) -> NlriIter<'a> {
        NlriIter::new(self.nlri, self.afi, self.add_path)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.nlri.is_empty()
    }

    pub(crate) fn ipv4_next_hop(&self) -> Option<Ipv4Addr> {
        (self.afi == Afi::Ipv4).then(|| wire::exact_u32(self.next_hop).map(Ipv4Addr::from)).flatten()
    }

    pub(crate) fn ipv6_next_hop(&self) -> Option<Ipv6NextHop> {
        let next_hop = (self.afi == Afi::Ipv6).then(|| Ipv6NextHop::from_octets(self.next_hop)).flatten();
        next_hop.map(Ipv6NextHop::normalised)
    }
}

/// An UPDATE whose sections are found and whose contents are checked, borrowed from the message.
#[derive(Clone, Debug)]
pub struct UpdateView<'a> {
    withdrawn: &'a [u8],
    attributes: &'a [u8],
    announced: &'a [u8],
    mp_reach: Option<Multiprotocol<'a>>,
    mp_unreach: Option<Multiprotocol<'a>>,
    /// The message announces prefixes, of whatever family.
    reaches: bool,
    add_path: bool,
    problems: Vec<Problem>,
}

impl<'a> UpdateView<'a> {
    /// Decodes and checks the body of an UPDATE, after its header. An error ends the session; everything milder is in
    /// [`UpdateView::problems`].
    pub fn decode(body: &'a [u8], params: &SessionParams) -> Result<Self, MessageError> {
        let (withdrawn, rest) = section(body)?;
        let (attributes, announced) = section(rest)?;
        let add_path = params.add_path_receive.ipv4;
        let mut view = Self {
            withdrawn,
            attributes,
            announced,
            mp_reach: None,
            mp_unreach: None,
            reaches: !announced.is_empty(),
            add_path,
            problems: Vec::new(),
        };
        view.check_classical_nlri(params)?;
        let seen = view.check_attributes(params)?;
        view.check_mandatory(&seen, params);
        view.check_next_hops();
        view.check_missing_nlri()?;
        Ok(view)
    }

    /// RFC 7606 section 5.2: attributes without a route to carry them raise the doubt that the routes were not found.
    /// If more is wrong with them than a discard would mend, the session ends.
    fn check_missing_nlri(&self) -> Result<(), MessageError> {
        let is_grave = self.problems.iter().any(|problem| problem.action >= Action::TreatAsWithdraw);
        if is_grave && !self.reaches {
            return Err(Notification::new(code::UPDATE, update::MALFORMED_ATTRIBUTE_LIST).into());
        }
        Ok(())
    }

    /// RFC 7606 section 5.3: a field that cannot be split into prefixes ends the session.
    fn check_classical_nlri(&mut self, params: &SessionParams) -> Result<(), MessageError> {
        for nlri in self.withdrawn_ipv4().chain(self.announced_ipv4()) {
            if nlri.is_err() {
                return Err(Notification::new(code::UPDATE, update::INVALID_NETWORK_FIELD).into());
            }
        }
        let has_routes = !self.withdrawn.is_empty() || !self.announced.is_empty();
        if has_routes && !params.ipv4_unicast {
            self.report(None, Fault::Family { afi: 1, safi: 1 }, Action::IgnoreFamily);
            (self.withdrawn, self.announced) = (&[], &[]);
        }
        Ok(())
    }

    fn check_attributes(&mut self, params: &SessionParams) -> Result<CodeSet, MessageError> {
        let mut seen = CodeSet::default();
        let mut rest = self.attributes;
        while !rest.is_empty() {
            let attribute = match RawAttribute::decode(rest) {
                Ok((attribute, after)) => {
                    rest = after;
                    attribute
                }
                // RFC 7606 section 4: the total length still gives where the prefixes begin.
                Err(fault) => {
                    self.report(rest.get(1).map(|code| AttributeCode(*code)), fault, Action::TreatAsWithdraw);
                    break;
                }
            };
            let code = attribute.code;
            if !seen.insert(code) {
                self.check_repeated(code)?;
                continue;
            }
            if let Some((fault, action)) = check::attribute(&attribute, params) {
                self.report(Some(code), fault, action);
            }
            if code == AttributeCode::MP_REACH_NLRI {
                self.mp_reach = self.read_multiprotocol(&attribute, params)?;
            } else if code == AttributeCode::MP_UNREACH_NLRI {
                self.mp_unreach = self.read_multiprotocol(&attribute, params)?;
            }
        }
        Ok(seen)
    }

    /// RFC 7606 section 3 (g).
    fn check_repeated(&mut self, attribute: AttributeCode) -> Result<(), MessageError> {
        if matches!(attribute, AttributeCode::MP_REACH_NLRI | AttributeCode::MP_UNREACH_NLRI) {
            return Err(Notification::new(code::UPDATE, update::MALFORMED_ATTRIBUTE_LIST).into());
        }
        self.report(Some(attribute), Fault::Repeated, Action::DiscardAttribute);
        Ok(())
    }

    /// Reads MP_REACH_NLRI or MP_UNREACH_NLRI (RFC 4760 sections 3 and 4); what makes its prefixes unreadable ends the
    /// session (RFC 7606 sections 5.3 and 7.11). `None`: a family that was not agreed.
    fn read_multiprotocol(
        &mut self,
        attribute: &RawAttribute<'a>,
        params: &SessionParams,
    ) -> Result<Option<Multiprotocol<'a>>, MessageError> {
        let reset = || {
            let mut data = Vec::new();
            attribute.encode(&mut data);
            MessageError::from(Notification::with_data(code::UPDATE, update::OPTIONAL_ATTRIBUTE, data))
        };
        let &[a, b, safi, ref rest @ ..] = attribute.value else { return Err(reset()) };
        let (next_hop, nlri) = match attribute.code {
            AttributeCode::MP_REACH_NLRI => split_reach(rest).ok_or_else(reset)?,
            _ => (&[][..], rest),
        };
        self.reaches |= attribute.code == AttributeCode::MP_REACH_NLRI && !nlri.is_empty();
        let afi = u16::from_be_bytes([a, b]);
        let family = match (afi, safi) {
            (1, 1) => Some(Afi::Ipv4),
            (2, 1) => Some(Afi::Ipv6),
            _ => None,
        };
        let Some(family) = family.filter(|family| params.has_family(*family)) else {
            self.report(Some(attribute.code), Fault::Family { afi, safi }, Action::IgnoreFamily);
            return Ok(None);
        };
        let next_hop_fits = match (attribute.code, family) {
            (AttributeCode::MP_REACH_NLRI, Afi::Ipv4) => next_hop.len() == 4,
            (AttributeCode::MP_REACH_NLRI, Afi::Ipv6) => matches!(next_hop.len(), 16 | 32),
            _ => true,
        };
        let found = Multiprotocol { afi: family, next_hop, nlri, add_path: params.add_path_receive.has(family) };
        if !next_hop_fits || found.nlri().any(|nlri| nlri.is_err()) {
            return Err(reset());
        }
        Ok(Some(found))
    }

    /// RFC 7606 section 3 (d).
    fn check_mandatory(&mut self, seen: &CodeSet, params: &SessionParams) {
        let multiprotocol = self.mp_reach.is_some_and(|reach| !reach.is_empty());
        if self.announced.is_empty() && !multiprotocol {
            return;
        }
        let mandatory = [
            (AttributeCode::ORIGIN, true),
            (AttributeCode::AS_PATH, true),
            (AttributeCode::NEXT_HOP, !self.announced.is_empty()),
            // RFC 4271 section 5.1.5: required between internal peers.
            (AttributeCode::LOCAL_PREF, !params.external),
        ];
        for (code, is_required) in mandatory {
            if is_required && !seen.has(code) {
                self.report(Some(code), Fault::Missing, Action::TreatAsWithdraw);
            }
        }
    }

    /// RFC 4271 section 6.3: a next hop is the address of a host. NEXT_HOP counts only for the classical prefixes
    /// (RFC 4760 section 3).
    fn check_next_hops(&mut self) {
        if !self.announced.is_empty() {
            let classical = self.classical_next_hop();
            self.check_ipv4_next_hop(AttributeCode::NEXT_HOP, classical);
            let other = self.mp_reach.and_then(|reach| reach.ipv4_next_hop());
            if other.is_some() && other != classical {
                self.report(Some(AttributeCode::MP_REACH_NLRI), Fault::TwoNextHops, Action::TreatAsWithdraw);
            }
        }
        let Some(reach) = self.mp_reach else { return };
        self.check_ipv4_next_hop(AttributeCode::MP_REACH_NLRI, reach.ipv4_next_hop());
        if reach.ipv6_next_hop().is_some_and(|next_hop| !is_ipv6_host(&next_hop)) {
            self.report(Some(AttributeCode::MP_REACH_NLRI), Fault::NextHopAddress, Action::TreatAsWithdraw);
        }
    }

    fn check_ipv4_next_hop(&mut self, code: AttributeCode, next_hop: Option<Ipv4Addr>) {
        if next_hop.is_some_and(|address| !is_ipv4_host(address)) {
            self.report(Some(code), Fault::NextHopAddress, Action::TreatAsWithdraw);
        }
    }

    /// NEXT_HOP, if it is there and well-formed.
    fn classical_next_hop(&self) -> Option<Ipv4Addr> {
        let next_hop = self.attributes().find(|attribute| attribute.code == AttributeCode::NEXT_HOP)?;
        wire::exact_u32(next_hop.value).map(Ipv4Addr::from)
    }

    #[cold]
    fn report(&mut self, attribute: Option<AttributeCode>, fault: Fault, action: Action) {
        Problem { attribute, fault, action }.note(&mut self.problems);
    }

    /// What is wrong, in the order in which it was found; at most 64, the strongest among them.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    pub(crate) fn into_problems(self) -> Vec<Problem> {
        self.problems
    }

    /// The attributes in wire order, up to the first that is cut short; malformed ones are among them.
    pub fn attributes(&self) -> impl Iterator<Item = RawAttribute<'a>> + use<'a> {
        AttributeIter::new(self.attributes).map_while(Result::ok)
    }

    /// The prefixes of the field Withdrawn Routes.
    fn withdrawn_ipv4(&self) -> NlriIter<'a> {
        NlriIter::new(self.withdrawn, Afi::Ipv4, self.add_path)
    }

    /// The prefixes of the field Network Layer Reachability Information.
    fn announced_ipv4(&self) -> NlriIter<'a> {
        NlriIter::new(self.announced, Afi::Ipv4, self.add_path)
    }

    /// Every withdrawn prefix of the agreed families.
    pub fn withdrawn(&self) -> impl Iterator<Item = (Afi, RawNlri<'a>)> + use<'a> {
        both(self.withdrawn_ipv4(), self.mp_unreach)
    }

    /// Every announced prefix of the agreed families.
    pub fn announced(&self) -> impl Iterator<Item = (Afi, RawNlri<'a>)> + use<'a> {
        both(self.announced_ipv4(), self.mp_reach)
    }

    pub(crate) fn has_classical_routes(&self) -> bool {
        !self.announced.is_empty()
    }

    pub(crate) fn mp_reach(&self) -> Option<Multiprotocol<'a>> {
        self.mp_reach
    }

    /// The family whose initial routes end here (RFC 4724 section 2).
    #[must_use]
    pub fn end_of_rib(&self) -> Option<Afi> {
        if !self.withdrawn.is_empty() || !self.announced.is_empty() || !self.problems.is_empty() {
            return None;
        }
        if self.attributes.is_empty() {
            return Some(Afi::Ipv4);
        }
        let only = self.attributes().nth(1).is_none();
        self.mp_unreach.filter(|unreach| only && unreach.is_empty()).map(|unreach| unreach.afi)
    }

    /// Appends the whole message, header included, written again from its parts. What was decoded without a
    /// [`Action::TreatAsWithdraw`] or [`Action::IgnoreFamily`] comes out as it came in.
    #[inline]
    pub fn encode(&self, out: &mut Vec<u8>) {
        let message = put_header(MessageType::Update, out);
        put_nlri_section(self.withdrawn_ipv4(), out);
        let attributes = put_length(out);
        for attribute in self.attributes() {
            put_attribute(&attribute, self, out);
        }
        attributes.finish(out);
        self.announced_ipv4().map_while(Result::ok).for_each(|nlri| put_nlri(&nlri, out));
        message.finish(out);
    }
}

/// A section behind its length (RFC 4271 section 6.3).
#[inline]
fn section(octets: &[u8]) -> Result<(&[u8], &[u8]), MessageError> {
    wire::field_u16(octets).map_err(|_| Notification::new(code::UPDATE, update::MALFORMED_ATTRIBUTE_LIST).into())
}

/// The next hop and the prefixes of MP_REACH_NLRI, behind AFI and SAFI; a reserved octet lies between them.
#[inline]
fn split_reach(octets: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&length, rest) = octets.split_first()?;
    let (next_hop, rest) = rest.split_at_checked(usize::from(length))?;
    let (_reserved, nlri) = rest.split_first()?;
    Some((next_hop, nlri))
}

fn both<'a>(
    classical: NlriIter<'a>,
    multiprotocol: Option<Multiprotocol<'a>>,
) -> impl Iterator<Item = (Afi, RawNlri<'a>)> + use<'a> {
    let multiprotocol = multiprotocol
        .into_iter()
        .flat_map(|found| found.nlri().map_while(Result::ok).map(move |nlri| (found.afi, nlri)));
    classical.map_while(Result::ok).map(|nlri| (Afi::Ipv4, nlri)).chain(multiprotocol)
}

fn is_ipv4_host(address: Ipv4Addr) -> bool {
    let first = address.octets()[0];
    first != 0 && first != 127 && first < 224
}

fn is_ipv6_host(next_hop: &Ipv6NextHop) -> bool {
    let global = next_hop.global;
    !global.is_multicast() && !global.is_loopback() && !global.is_unspecified()
}

#[inline]
fn put_nlri(nlri: &RawNlri<'_>, out: &mut Vec<u8>) {
    if let Some(path_id) = nlri.path_id {
        out.extend_from_slice(&path_id.to_be_bytes());
    }
    out.push(nlri.length);
    out.extend_from_slice(nlri.octets);
}

#[inline]
fn put_nlri_section(nlri: NlriIter<'_>, out: &mut Vec<u8>) {
    let section = put_length(out);
    nlri.map_while(Result::ok).for_each(|nlri| put_nlri(&nlri, out));
    section.finish(out);
}

/// Writes an attribute from its parts, those of the multiprotocol attributes included.
#[inline]
fn put_attribute(attribute: &RawAttribute<'_>, view: &UpdateView<'_>, out: &mut Vec<u8>) {
    let found = match attribute.code {
        AttributeCode::MP_REACH_NLRI => view.mp_reach,
        AttributeCode::MP_UNREACH_NLRI => view.mp_unreach,
        _ => None,
    };
    match found {
        Some(found) => put_multiprotocol(attribute, &found, out),
        None => attribute.encode(out),
    }
}

fn put_multiprotocol(attribute: &RawAttribute<'_>, found: &Multiprotocol<'_>, out: &mut Vec<u8>) {
    attribute.encode_header(out);
    let [a, b] = found.afi.code().to_be_bytes();
    out.extend_from_slice(&[a, b, 1]);
    if attribute.code == AttributeCode::MP_REACH_NLRI {
        out.push(found.next_hop.len() as u8);
        out.extend_from_slice(found.next_hop);
        // The reserved octet, which receivers ignore (RFC 4760 section 3), is kept as it came.
        out.push(attribute.value[4 + found.next_hop.len()]);
    }
    found.nlri().map_while(Result::ok).for_each(|nlri| put_nlri(&nlri, out));
}
