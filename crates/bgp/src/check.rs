//! The rules for each path attribute: what is malformed, and what follows (RFC 7606 section 7 and the RFCs it names).

use wayleave_core::Asn;

use crate::as_path::{SegmentIter, leftmost};
use crate::{Action, AttributeCode, AttributeFlags, AttributeIter, Fault, Origin, RawAttribute, SessionParams, wire};

type Finding = Option<(Fault, Action)>;

/// Optional and Transitive bits.
const KIND: u8 = AttributeFlags::OPTIONAL | AttributeFlags::TRANSITIVE;
const WELL_KNOWN: u8 = AttributeFlags::TRANSITIVE;
const TRANSITIVE: u8 = KIND;
const NON_TRANSITIVE: u8 = AttributeFlags::OPTIONAL;

/// The Optional and Transitive bits that an attribute's definition gives; `None` for codes that we do not recognise.
#[inline]
pub(crate) fn defined_flags(code: AttributeCode) -> Option<u8> {
    match code {
        AttributeCode::ORIGIN
        | AttributeCode::AS_PATH
        | AttributeCode::NEXT_HOP
        | AttributeCode::LOCAL_PREF
        | AttributeCode::ATOMIC_AGGREGATE => Some(WELL_KNOWN),
        AttributeCode::MULTI_EXIT_DISC
        | AttributeCode::ORIGINATOR_ID
        | AttributeCode::CLUSTER_LIST
        | AttributeCode::MP_REACH_NLRI
        | AttributeCode::MP_UNREACH_NLRI => Some(NON_TRANSITIVE),
        AttributeCode::AGGREGATOR
        | AttributeCode::COMMUNITIES
        | AttributeCode::EXTENDED_COMMUNITIES
        | AttributeCode::AS4_PATH
        | AttributeCode::AS4_AGGREGATOR
        | AttributeCode::IPV6_EXTENDED_COMMUNITIES
        | AttributeCode::LARGE_COMMUNITIES
        | AttributeCode::ONLY_TO_CUSTOMER
        | AttributeCode::ATTR_SET => Some(TRANSITIVE),
        _ => None,
    }
}

/// Checks one attribute by itself; MP_REACH_NLRI and MP_UNREACH_NLRI by their flags only.
#[inline]
pub(crate) fn attribute(attribute: &RawAttribute<'_>, params: &SessionParams) -> Finding {
    discarded_unread(attribute, params).or_else(|| flags(attribute)).or_else(|| value(attribute, params))
}

/// Attributes that this kind of peer must not send: they are dropped before their form is checked.
#[inline]
fn discarded_unread(attribute: &RawAttribute<'_>, params: &SessionParams) -> Finding {
    match attribute.code {
        // RFC 7606 sections 7.5, 7.9, 7.10.
        AttributeCode::LOCAL_PREF | AttributeCode::ORIGINATOR_ID | AttributeCode::CLUSTER_LIST
            if is_foreign(params) =>
        {
            Some((Fault::NotFromExternal, Action::DiscardAttribute))
        }
        // RFC 6793 section 6.
        AttributeCode::AS4_PATH | AttributeCode::AS4_AGGREGATOR if params.four_octet_as => {
            Some((Fault::NotOnFourOctetSession, Action::DiscardAttribute))
        }
        _ => None,
    }
}

/// RFC 7606 section 3 (c); unknown attributes must be optional (RFC 4271 section 6.3).
#[inline]
fn flags(attribute: &RawAttribute<'_>) -> Finding {
    let flags = attribute.flags.0;
    match defined_flags(attribute.code) {
        Some(defined) if flags & KIND == defined => None,
        // RFC 6793 section 6: a malformed AS4 attribute is dropped, no more.
        Some(_) if matches!(attribute.code, AttributeCode::AS4_PATH | AttributeCode::AS4_AGGREGATOR) => {
            Some((Fault::Flags(flags), Action::DiscardAttribute))
        }
        Some(_) => Some((Fault::Flags(flags), Action::TreatAsWithdraw)),
        None if attribute.flags.is_optional() => None,
        None => Some((Fault::UnknownWellKnown, Action::TreatAsWithdraw)),
    }
}

#[inline]
fn value(attribute: &RawAttribute<'_>, params: &SessionParams) -> Finding {
    let value = attribute.value;
    match attribute.code {
        AttributeCode::ORIGIN => origin(value),
        AttributeCode::AS_PATH => as_path(value, params).map(|fault| (fault, Action::TreatAsWithdraw)),
        AttributeCode::NEXT_HOP
        | AttributeCode::MULTI_EXIT_DISC
        | AttributeCode::LOCAL_PREF
        | AttributeCode::ORIGINATOR_ID
        // RFC 9234 section 5.
        | AttributeCode::ONLY_TO_CUSTOMER => exactly(4, value, Action::TreatAsWithdraw),
        AttributeCode::ATOMIC_AGGREGATE => exactly(0, value, Action::DiscardAttribute),
        AttributeCode::AGGREGATOR => aggregator(value, params.four_octet_as),
        AttributeCode::COMMUNITIES | AttributeCode::CLUSTER_LIST => multiple_of(4, value),
        AttributeCode::EXTENDED_COMMUNITIES => multiple_of(8, value),
        AttributeCode::IPV6_EXTENDED_COMMUNITIES => multiple_of(20, value),
        AttributeCode::LARGE_COMMUNITIES => multiple_of(12, value),
        AttributeCode::AS4_PATH => as4_path(value).map(|fault| (fault, Action::DiscardAttribute)),
        AttributeCode::AS4_AGGREGATOR => aggregator(value, true),
        AttributeCode::ATTR_SET => attr_set(value).map(|fault| (fault, Action::TreatAsWithdraw)),
        // Deprecated by RFC 7447; it never had a value (RFC 6790), so one that has is corrupt and goes no further.
        AttributeCode::ENTROPY_LABEL => exactly(0, value, Action::DiscardAttribute),
        _ => None,
    }
}

/// Whether the peer is outside our AS and our confederation.
#[inline]
pub(crate) fn is_foreign(params: &SessionParams) -> bool {
    params.external && !params.confederation
}

fn exactly(length: usize, value: &[u8], action: Action) -> Finding {
    (value.len() != length).then_some((Fault::Length(value.len()), action))
}

/// A list of at least one element of `size` octets.
fn multiple_of(size: usize, value: &[u8]) -> Finding {
    let wrong = value.is_empty() || !value.len().is_multiple_of(size);
    wrong.then_some((Fault::Length(value.len()), Action::TreatAsWithdraw))
}

fn origin(value: &[u8]) -> Finding {
    match value {
        [octet] if Origin::from_octet(*octet).is_some() => None,
        [octet] => Some((Fault::OriginValue(*octet), Action::TreatAsWithdraw)),
        _ => Some((Fault::Length(value.len()), Action::TreatAsWithdraw)),
    }
}

/// RFC 7606 section 7.2, RFC 7607 on AS 0, RFC 5065 section 5 on confederations.
#[inline]
fn as_path(value: &[u8], params: &SessionParams) -> Option<Fault> {
    // Our limit: in four-octet form it must still be an attribute.
    if !params.four_octet_as && value.len() > usize::from(u16::MAX) / 2 {
        return Some(Fault::Length(value.len()));
    }
    for segment in SegmentIter::new(value, params.four_octet_as) {
        let segment = match segment {
            Ok(segment) => segment,
            Err(fault) => return Some(fault),
        };
        if segment.kind.is_confederation() && is_foreign(params) {
            return Some(Fault::ConfederationSegment);
        }
        if segment.asns().any(|asn| asn == Asn(0)) {
            return Some(Fault::AsZero);
        }
    }
    let wrong_first = params.enforce_first_as
        && is_foreign(params)
        && leftmost(value, params.four_octet_as) != Some(expected_first(params));
    wrong_first.then_some(Fault::FirstAs)
}

/// The peer's AS as it appears in AS_PATH on this session.
fn expected_first(params: &SessionParams) -> Asn {
    if params.four_octet_as { params.peer_asn } else { Asn(u32::from(params.peer_asn.two_octets())) }
}

/// RFC 6793 section 6. Confederation segments are dropped later, not faults.
fn as4_path(value: &[u8]) -> Option<Fault> {
    if value.is_empty() {
        return Some(Fault::Length(0));
    }
    for segment in SegmentIter::new(value, true) {
        match segment {
            Ok(segment) if segment.asns().any(|asn| asn == Asn(0)) => return Some(Fault::AsZero),
            Ok(_) => {}
            Err(fault) => return Some(fault),
        }
    }
    None
}

/// RFC 7606 section 7.7, RFC 7607 on AS 0.
fn aggregator(value: &[u8], four_octet: bool) -> Finding {
    let width = if four_octet { 4 } else { 2 };
    if value.len() != width + 4 {
        return Some((Fault::Length(value.len()), Action::DiscardAttribute));
    }
    let zero = value[..width].iter().all(|octet| *octet == 0);
    zero.then_some((Fault::AsZero, Action::DiscardAttribute))
}

/// RFC 6368 section 5: the origin AS, then attributes as within that AS. They may not nest or carry next hops.
fn attr_set(value: &[u8]) -> Option<Fault> {
    let Some((_, contained)) = wire::u32(value) else { return Some(Fault::Length(value.len())) };
    let within = SessionParams::new(Asn(0), Asn(0));
    let mut seen = CodeSet::default();
    for contained in AttributeIter::new(contained) {
        let Ok(contained) = contained else { return Some(Fault::Contained) };
        let misplaced = matches!(
            contained.code,
            AttributeCode::NEXT_HOP
                | AttributeCode::MP_REACH_NLRI
                | AttributeCode::MP_UNREACH_NLRI
                | AttributeCode::ATTR_SET
        );
        if misplaced || !seen.insert(contained.code) || attribute(&contained, &within).is_some() {
            return Some(Fault::Contained);
        }
    }
    None
}

/// The codes met so far.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct CodeSet([u64; 4]);

impl CodeSet {
    /// Whether `code` is new.
    #[inline]
    pub(crate) fn insert(&mut self, code: AttributeCode) -> bool {
        let (word, bit) = (usize::from(code.0 >> 6), 1u64 << (code.0 & 63));
        let new = self.0[word] & bit == 0;
        self.0[word] |= bit;
        new
    }

    #[inline]
    pub(crate) fn has(&self, code: AttributeCode) -> bool {
        self.0[usize::from(code.0 >> 6)] & (1u64 << (code.0 & 63)) != 0
    }
}
