//! UPDATE: borrowed ([`UpdateView`]), owned ([`Update`]), and built from routes.

mod build;
mod view;

use std::collections::HashSet;
use std::net::IpAddr;

pub use build::{EncodeError, UpdateBuilder, encode_updates, end_of_rib};
pub use view::UpdateView;
use wayleave_core::{Afi, Asn, Prefix};

use crate::check::{self, CodeSet};
use crate::{
    Action, Aggregator, AttributeCode, Attributes, Fault, MessageError, Nlri, Problem, RawAttribute, RawNlri,
    SessionParams, as4, wire,
};

/// An UPDATE of IPv4 and IPv6 unicast routes after the rules of RFC 7606.
///
/// Withdrawals come first: a prefix that the message both withdraws and announces is only announced (RFC 4271
/// section 4.3).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Update {
    /// Routes that are no more, those included whose announcement was treated as a withdraw.
    pub withdrawn: Vec<Nlri>,
    /// Routes that now have `attributes`.
    pub announced: Vec<Nlri>,
    /// Of the announced routes; `None` if there is none.
    pub attributes: Option<Attributes>,
    /// The message marks the end of the initial routes of a family (RFC 4724 section 2).
    pub end_of_rib: Option<Afi>,
    /// Routes that were ignored because their prefixes are not unicast.
    pub ignored: Vec<Nlri>,
    /// What was wrong, in the order in which it was found; empty for a sound message. At most 64, the strongest among
    /// them.
    pub problems: Vec<Problem>,
}

impl Update {
    /// Decodes the body of an UPDATE, after its header. An error ends the session; everything milder is in
    /// [`Update::problems`].
    pub fn decode(body: &[u8], params: &SessionParams) -> Result<Self, MessageError> {
        let view = UpdateView::decode(body, params)?;
        let mut update = Update { end_of_rib: view.end_of_rib(), ..Update::default() };
        update.withdrawn = update.take_unicast(view.withdrawn());
        update.announced = update.take_unicast(view.announced());
        let mut attributes = None;
        if !update.announced.is_empty() {
            attributes = Some(attributes_of(&view, params));
        }
        // Problems of the view come first; ignored prefixes were noted while their fields were read.
        let ignored = std::mem::replace(&mut update.problems, view.into_problems());
        ignored.into_iter().for_each(|problem| problem.note(&mut update.problems));
        if update.action() >= Some(Action::TreatAsWithdraw) {
            update.withdrawn.append(&mut update.announced);
        } else {
            update.attributes = attributes;
            update.prefer_announcements();
        }
        Ok(update)
    }

    /// The prefixes of `nlri` with the bits beyond their lengths cleared; prefixes that are not unicast are
    /// returned apart (RFC 4271 section 6.3).
    fn take_unicast<'a>(&mut self, nlri: impl Iterator<Item = (Afi, RawNlri<'a>)>) -> Vec<Nlri> {
        let mut taken = Vec::with_capacity(nlri.size_hint().0);
        for nlri in nlri.filter_map(|(afi, nlri)| nlri.to_nlri(afi)) {
            if is_unicast(&nlri.prefix) {
                taken.push(nlri);
            } else {
                self.ignored.push(nlri);
                let problem = Problem { attribute: None, fault: Fault::NotUnicast, action: Action::IgnorePrefix };
                problem.note(&mut self.problems);
            }
        }
        taken
    }

    /// RFC 4271 section 4.3: what is both withdrawn and announced is only announced.
    fn prefer_announcements(&mut self) {
        if self.withdrawn.is_empty() || self.announced.is_empty() {
            return;
        }
        let announced: HashSet<Nlri> = self.announced.iter().copied().collect();
        self.withdrawn.retain(|nlri| !announced.contains(nlri));
    }

    /// The strongest consequence of the problems; at most [`Action::TreatAsWithdraw`], since what ends a session is an
    /// error of [`Update::decode`].
    #[must_use]
    pub fn action(&self) -> Option<Action> {
        self.problems.iter().map(|problem| problem.action).max()
    }
}

/// Neither multicast, reserved (classes D and E) nor link-local.
fn is_unicast(prefix: &Prefix) -> bool {
    let first = prefix.octets()[..2].try_into().map(u16::from_be_bytes).unwrap_or(0);
    match prefix.address() {
        IpAddr::V4(_) => prefix.len() < 3 || first >> 13 != 0b111,
        IpAddr::V6(_) => !(prefix.len() >= 8 && first >> 8 == 0xff || prefix.len() >= 10 && first >> 6 == 0xfe80 >> 6),
    }
}

/// The attributes of the announced routes in four-octet form, without what RFC 7606 discards and what other fields of
/// the result hold.
fn attributes_of(view: &UpdateView<'_>, params: &SessionParams) -> Attributes {
    let mut octets = Vec::new();
    let mut seen = CodeSet::default();
    let as4 = (!params.four_octet_as).then(|| As4::of(view, params));
    for attribute in view.attributes() {
        let is_first = seen.insert(attribute.code);
        if is_first && belongs(&attribute, view, params) {
            put_wide(&attribute, as4.as_ref(), &mut octets);
        }
    }
    let reach = view.mp_reach();
    let attributes = Attributes::from_checked(&octets, reach.and_then(|reach| reach.ipv6_next_hop()));
    // IPv4 routes may come in MP_REACH_NLRI; their next hop moves to NEXT_HOP, where readers expect it.
    match reach.and_then(|reach| reach.ipv4_next_hop()) {
        Some(next_hop) if !view.has_classical_routes() => attributes.edit().ipv4_next_hop(next_hop).finish(),
        _ => attributes,
    }
}

fn belongs(attribute: &RawAttribute<'_>, view: &UpdateView<'_>, params: &SessionParams) -> bool {
    match attribute.code {
        AttributeCode::MP_REACH_NLRI
        | AttributeCode::MP_UNREACH_NLRI
        | AttributeCode::AS4_PATH
        | AttributeCode::AS4_AGGREGATOR => false,
        // Without classical routes it is to be ignored (RFC 4760 section 3).
        AttributeCode::NEXT_HOP if !view.has_classical_routes() => false,
        _ => check::attribute(attribute, params).is_none(),
    }
}

/// What AS4_PATH and AS4_AGGREGATOR carry over a two-octet session; absent if it does not count.
struct As4<'a> {
    path: Option<&'a [u8]>,
    aggregator: Option<&'a [u8]>,
}

impl<'a> As4<'a> {
    fn of(view: &UpdateView<'a>, params: &SessionParams) -> Self {
        let value = |code| {
            let attribute = view.attributes().find(|attribute| attribute.code == code)?;
            check::attribute(&attribute, params).is_none().then_some(attribute.value)
        };
        if !as4::as4_counts(value(AttributeCode::AGGREGATOR)) {
            return Self { path: None, aggregator: None };
        }
        Self { path: value(AttributeCode::AS4_PATH), aggregator: value(AttributeCode::AS4_AGGREGATOR) }
    }
}

/// Appends a checked attribute, its AS numbers widened if `as4` is given.
fn put_wide(attribute: &RawAttribute<'_>, as4: Option<&As4<'_>>, out: &mut Vec<u8>) {
    let Some(as4) = as4 else { return attribute.encode(out) };
    match attribute.code {
        AttributeCode::AS_PATH => {
            let merged = as4::merge_paths(attribute.value, as4.path);
            RawAttribute { value: merged.as_path().octets(), ..*attribute }.encode(out);
        }
        AttributeCode::AGGREGATOR => {
            let narrow = wire::u16(attribute.value);
            let wide = as4.aggregator.and_then(wire::u32);
            let found = wide.or(narrow.map(|(asn, identifier)| (u32::from(asn), identifier)));
            let Some((asn, identifier)) = found else { return };
            let identifier = wire::exact_u32(identifier).unwrap_or(0).into();
            let value = as4::wide_aggregator(Aggregator { asn: Asn(asn), identifier });
            RawAttribute { value: &value, ..*attribute }.encode(out);
        }
        _ => attribute.encode(out),
    }
}
