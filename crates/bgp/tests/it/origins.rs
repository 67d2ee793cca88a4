//! Origin validation against RFC 6811 written out plainly, and its examples.
//!
//! OPS, origins: validated ROA payloads of any content: a route is valid, invalid or not found as RFC 6811 section 2 says.

use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::collection::vec;
use proptest::prelude::*;
use wayleave_bgp::origins::{OriginState, Vrp, Vrps, origin};
use wayleave_bgp::{AsPathBuf, SegmentKind};
use wayleave_core::{Asn, Prefix};

fn p(text: &str) -> Prefix {
    text.parse().expect("a prefix")
}

fn vrp(prefix: &str, max_length: u8, asn: u32) -> Vrp {
    Vrp { prefix: p(prefix), max_length, asn: Asn(asn) }
}

#[derive(PartialEq, Eq, Debug)]
enum Plain {
    Valid,
    Invalid,
    NotFound,
}

/// RFC 6811 section 2, word by word.
fn plain(vrps: &[Vrp], prefix: &Prefix, origin: Option<Asn>) -> Plain {
    let covered: Vec<&Vrp> = vrps.iter().filter(|vrp| vrp.prefix.contains(prefix)).collect();
    let matches = |vrp: &&Vrp| prefix.len() <= vrp.max_length && origin == Some(vrp.asn) && vrp.asn != Asn(0);
    if covered.is_empty() {
        Plain::NotFound
    } else if covered.iter().any(matches) {
        Plain::Valid
    } else {
        Plain::Invalid
    }
}

/// Few bits vary, so that prefixes cover each other.
fn prefixes() -> impl Strategy<Value = Prefix> {
    let v4 = (0..8u32, 0..=32u8).prop_map(|(bits, length)| {
        let address = Ipv4Addr::from(0xc000_0200 | bits << 29 | bits << 5);
        Prefix::truncated(address.into(), length)
    });
    let v6 = (0..8u128, 0..=128u8).prop_map(|(bits, length)| {
        let address = Ipv6Addr::from(0x2001_0db8 << 96 | bits << 93 | bits << 61 | bits);
        Prefix::truncated(address.into(), length)
    });
    prop_oneof![v4, v6].prop_map(|prefix| prefix.expect("no longer than its family's"))
}

fn vrps() -> impl Strategy<Value = Vec<Vrp>> {
    let vrp = (prefixes(), 0..4u32, 0..=128u8).prop_map(|(prefix, asn, more)| {
        let max_length = prefix.len().saturating_add(more).min(prefix.afi().bits());
        Vrp { prefix, max_length, asn: Asn(asn) }
    });
    vec(vrp, 0..24)
}

proptest! {
    #[test]
    fn a_route_is_as_the_rfc_says(all in vrps(), prefix in prefixes(), origin in proptest::option::of(0..4u32)) {
        let (table, origin): (Vrps, _) = (all.iter().copied().collect(), origin.map(Asn));
        let found = table.state(&prefix, origin);
        let (state, named) = match found {
            OriginState::Valid(vrp) => (Plain::Valid, Some(vrp)),
            OriginState::Invalid(vrp) => (Plain::Invalid, Some(vrp)),
            OriginState::NotFound => (Plain::NotFound, None),
        };
        prop_assert_eq!(state, plain(&all, &prefix, origin));
        prop_assert!(named.is_none_or(|named| all.contains(&named) && named.prefix.contains(&prefix)));
        prop_assert_eq!(table.covers(&prefix), named.is_some());
    }

    #[test]
    fn nothing_changes_where_no_changed_vrp_covers(
        one in vrps(), more in vrps(), prefix in prefixes(), origin in proptest::option::of(0..4u32),
    ) {
        let half: Vec<Vrp> = one.iter().skip(one.len() / 2).chain(&more).copied().collect();
        let (before, after): (Vrps, Vrps) = (one.iter().copied().collect(), half.iter().copied().collect());
        let changed = before.difference(&after);
        prop_assert_eq!(&changed, &after.difference(&before));
        let is_changed = |vrp: &&Vrp| one.contains(vrp) != half.contains(vrp);
        let expected: Vrps = one.iter().chain(&half).filter(is_changed).copied().collect();
        prop_assert_eq!(&changed, &expected);
        let origin = origin.map(Asn);
        prop_assert!(changed.covers(&prefix) || before.state(&prefix, origin) == after.state(&prefix, origin));
        prop_assert!(before.difference(&before).is_empty());
    }
}

#[test]
fn an_invalid_route_has_the_vrp_that_explains_it_best() {
    let all = [vrp("10.0.0.0/8", 8, 1), vrp("10.1.0.0/16", 16, 2), vrp("10.1.0.0/16", 24, 0)];
    let table: Vrps = all.into_iter().collect();
    assert_eq!(table.state(&p("10.1.0.0/16"), Some(Asn(2))), OriginState::Valid(all[1]));
    // Its own VRP is too short, which says more than whose the other one is.
    assert_eq!(table.state(&p("10.1.2.0/24"), Some(Asn(1))), OriginState::Invalid(all[0]));
    assert_eq!(table.state(&p("10.2.0.0/16"), Some(Asn(3))), OriginState::Invalid(all[0]));
    // AS 0 authorises nobody, not even AS 0.
    assert_eq!(table.state(&p("10.1.2.0/24"), Some(Asn(0))), OriginState::Invalid(all[1]));
    assert_eq!(table.state(&p("11.0.0.0/8"), Some(Asn(1))), OriginState::NotFound);
    assert_eq!(all[1].to_string(), "10.1.0.0/16 of AS2, up to /16");
}

#[test]
fn a_path_that_ends_with_a_set_has_no_origin() {
    let mut path = AsPathBuf::from_sequence(&[Asn(1), Asn(2)]);
    assert_eq!(origin(&path.as_path()), Some(Asn(2)));
    path.push_segment(SegmentKind::Set, &[Asn(3)]);
    assert_eq!(origin(&path.as_path()), None);
    let table: Vrps = [vrp("10.0.0.0/8", 8, 3)].into_iter().collect();
    assert!(matches!(table.state(&p("10.0.0.0/8"), None), OriginState::Invalid(_)));
    assert_eq!(table.state(&p("11.0.0.0/8"), None), OriginState::NotFound);
}
