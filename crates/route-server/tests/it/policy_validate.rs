//! Validation: which routes nobody may use, whatever their policy.

use crate::common::{attributes, lan4, lan6, prefix, slot};
use wayleave_bgp::origins::{Vrp, Vrps};
use wayleave_bgp::{AsPathBuf, Attributes, SegmentKind};
use wayleave_core::{Afi, Asn};
use wayleave_route_server::data::{Data, MemberLists, PrefixList, PrefixRange};
use wayleave_route_server::directory::{DataRules, Profile, Slot};
use wayleave_route_server::member::Cause;
use wayleave_route_server::policy::validate::{
    DataInForce, Invalid, Known, Martians, RouteRules, validate, validate_for, validate_known, validate_origin,
    validate_own_known,
};

const ROUTED: &str = "8.8.8.0/24";

fn check(prefix_text: &str, attributes: &Attributes) -> Result<(), Invalid> {
    validate(prefix(prefix_text), attributes, &slot(0, 64497), Martians::Refuse)
}

#[test]
fn a_route_of_the_announcer_is_valid_in_both_families() {
    assert_eq!(check(ROUTED, &attributes(&[64497, 1], 0).finish()), Ok(()));
    assert_eq!(check("2600::/32", &attributes(&[64497], 0).finish()), Ok(()));
}

#[test]
fn the_first_as_is_the_announcers() {
    let announcer = Asn(64497);
    let error = |found| Err(Invalid::FirstAs { found, announcer });
    assert_eq!(check(ROUTED, &attributes(&[64498, 64497], 0).finish()), error(Some(Asn(64498))));
    assert_eq!(check(ROUTED, &attributes(&[], 0).finish()), error(None));
    let mut path = AsPathBuf::new();
    path.push_segment(SegmentKind::Set, &[announcer]);
    let mut editor = attributes(&[], 0);
    editor.as_path(path.as_path());
    let rules = RouteRules { accept_as_set: true, ..RouteRules::default() };
    assert_eq!(validate(prefix(ROUTED), &editor.finish(), &slot(0, 64497), rules), error(None));
    let words = error(None).expect_err("an error").to_string();
    assert_eq!(words, "the AS path is empty, or begins with a set, the announcer is AS64497");
}

#[test]
fn a_path_with_an_as_set_is_refused_unless_the_member_takes_them() {
    let mut path = AsPathBuf::from_sequence(&[Asn(64497)]);
    path.push_segment(SegmentKind::Set, &[Asn(65001), Asn(65002)]);
    let mut editor = attributes(&[], 0);
    editor.as_path(path.as_path());
    let route = editor.finish();
    assert_eq!(check(ROUTED, &route), Err(Invalid::AsSet));
    let rules = RouteRules { accept_as_set: true, ..RouteRules::default() };
    assert_eq!(validate(prefix(ROUTED), &route, &slot(0, 64497), rules), Ok(()));
}

/// They count as no hop and are passed over in search of the first AS (RFC 5065 section 5.3).
#[test]
fn a_segment_of_a_confederation_is_refused_whatever_the_member_takes() {
    let inside = vec![Asn(65001); 80];
    for kind in [SegmentKind::ConfedSequence, SegmentKind::ConfedSet] {
        for is_first in [true, false] {
            let mut path = if is_first { AsPathBuf::new() } else { AsPathBuf::from_sequence(&[Asn(64497)]) };
            path.push_segment(kind, &inside);
            if is_first {
                path.push_segment(SegmentKind::Sequence, &[Asn(64497)]);
            }
            let mut editor = attributes(&[], 0);
            editor.as_path(path.as_path());
            for accept_as_set in [true, false] {
                let rules = RouteRules { accept_as_set, ..RouteRules::default() };
                let checked = validate(prefix(ROUTED), &editor.finish(), &slot(0, 64497), rules);
                assert_eq!(checked, Err(Invalid::Confederation), "{kind:?}");
            }
        }
    }
}

/// RFC 9234 section 5: of what a route server has from its client.
#[test]
fn a_route_with_otc_is_a_leak_whoever_set_it_and_only_the_own_session_may_ignore_it() {
    for of in [64497, 64496, 1] {
        let route = attributes(&[64497, 1], 0).only_to_customer(Some(Asn(of))).finish();
        assert_eq!(check(ROUTED, &route), Err(Invalid::Leak(Asn(of))));
        let receiver = validate_for(Asn(64500), prefix(ROUTED), &route, &slot(0, 64497), RouteRules::default());
        assert_eq!(receiver, Err(Invalid::Leak(Asn(of))));
        let own = RouteRules { ignore_otc: true, ..RouteRules::default() };
        assert_eq!(validate(prefix(ROUTED), &route, &slot(0, 64497), own), Ok(()));
    }
    let without = attributes(&[64497], 0).only_to_customer(Some(Asn(1))).only_to_customer(None).finish();
    assert_eq!(check(ROUTED, &without), Ok(()));
}

#[test]
fn the_next_hop_is_the_announcers() {
    assert_eq!(check(ROUTED, &attributes(&[64497], 1).finish()), Err(Invalid::NextHop(lan4(1))));
    assert_eq!(check("2600::/32", &attributes(&[64497], 1).finish()), Err(Invalid::NextHop(lan6(1))));
    let mut without = attributes(&[64497], 0);
    without.ipv6_next_hop(None);
    assert_eq!(check("2600::/32", &without.finish()), Err(Invalid::NoNextHop(Afi::Ipv6)));
}

#[test]
fn a_link_local_next_hop_must_be_listed() {
    let link_local = "fe80::1".parse().expect("an address");
    let mut editor = attributes(&[64497], 0);
    let mut next_hop = editor.finish().ipv6_next_hop().expect("one");
    next_hop.link_local = Some(link_local);
    editor.ipv6_next_hop(Some(next_hop));
    let mut announcer = slot(0, 64497);
    let check = |announcer: &Slot| validate(prefix("2600::/32"), &editor.finish(), announcer, Martians::Refuse);
    assert_eq!(check(&announcer), Err(Invalid::NextHop(link_local.into())));
    announcer.addresses.push(link_local.into());
    assert_eq!(check(&announcer), Ok(()));
}

#[test]
fn the_receivers_as_on_the_path_is_a_loop() {
    let route = attributes(&[64497, 64500, 1], 0).finish();
    let check = |receiver| validate_for(Asn(receiver), prefix(ROUTED), &route, &slot(0, 64497), Martians::Refuse);
    assert_eq!(check(64501), Ok(()));
    assert_eq!(check(64500), Err(Invalid::Loop(Asn(64500))));
    assert_eq!(check(64497), Err(Invalid::Loop(Asn(64497))), "another slot of the announcer's AS");
}

#[test]
fn martians_are_refused() {
    let refused = [
        "0.0.0.0/8",
        "10.0.0.0/8",
        "10.1.2.0/24",
        "100.64.0.0/10",
        "100.127.255.0/24",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "172.31.0.0/16",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.168.1.0/24",
        "198.18.0.0/15",
        "198.51.100.0/25",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "239.1.1.0/24",
        "240.0.0.0/4",
        "255.255.255.255/32",
        "::/128",
        "::1/128",
        "::ffff:0:0/96",
        "64:ff9b:1::/48",
        "100::/64",
        "2001:2::/48",
        "2001:10::/28",
        "2001:db8::/32",
        "2001:db8:1::/48",
        "3ffe::/16",
        "3fff::/20",
        "5f00::/16",
        "fc00::/7",
        "fd00::/8",
        "fe80::/10",
        "fec0::/10",
        "ff02::/16",
    ];
    for text in refused {
        assert!(Martians::Refuse.block_of(&prefix(text)).is_some(), "{text}");
    }
    let routed = [
        "1.1.1.0/24",
        "8.0.0.0/7",
        "100.0.0.0/10",
        "100.128.0.0/9",
        "172.32.0.0/11",
        "172.0.0.0/8",
        "192.0.1.0/24",
        "192.88.99.0/24",
        "198.20.0.0/16",
        "203.0.112.0/24",
        "223.255.255.0/24",
        "2000::/3",
        "2001:4860::/32",
        "2001:200::/32",
        "2001::/32",
        "2002::/16",
        "2400::/12",
        "2a00::/12",
        "64:ff9b::/96",
        "2001:4:112::/48",
    ];
    for text in routed {
        assert_eq!(Martians::Refuse.block_of(&prefix(text)), None, "{text}");
    }
}

#[test]
fn a_lab_may_use_documentation_prefixes_and_no_other_martians() {
    let lab = Martians::AllowDocumentation;
    for text in ["192.0.2.0/24", "198.51.100.0/24", "203.0.113.128/25", "2001:db8::/32", "2001:db8:5::/48", "3fff::/20"]
    {
        assert_eq!(lab.block_of(&prefix(text)), None, "{text}");
    }
    for text in ["10.0.0.0/8", "192.168.0.0/16", "198.18.0.0/15", "fc00::/7", "3ffe::/16", "2001:2::/48", "ff00::/8"] {
        assert!(lab.block_of(&prefix(text)).is_some(), "{text}");
    }
}

#[test]
fn the_default_route_is_refused() {
    let route = attributes(&[64497], 0).finish();
    assert_eq!(check("0.0.0.0/0", &route), Err(Invalid::DefaultRoute(prefix("0.0.0.0/0"))));
    assert_eq!(check("::/0", &route), Err(Invalid::DefaultRoute(prefix("::/0"))));
}

#[test]
fn a_route_whose_origin_is_invalid_is_refused_and_one_of_which_nothing_is_known_is_not() {
    let vrp = Vrp { prefix: prefix("8.8.0.0/16"), max_length: 24, asn: Asn(1) };
    let vrps: Vrps = [vrp].into_iter().collect();
    let check = |at: &str, path: &[u32], vrps| {
        validate_origin(prefix(at), &attributes(path, 0).finish(), vrps, RouteRules::default())
    };
    let invalid = |at: &str, origin| Err(Invalid::Origin { prefix: prefix(at), origin, vrp });
    assert_eq!(check(ROUTED, &[64497, 1], Some(&vrps)), Ok(()));
    assert_eq!(check(ROUTED, &[64497, 2], Some(&vrps)), invalid(ROUTED, Some(Asn(2))));
    assert_eq!(check(ROUTED, &[1, 64497], Some(&vrps)), invalid(ROUTED, Some(Asn(64497))), "the last AS");
    assert_eq!(check("8.8.8.0/25", &[64497, 1], Some(&vrps)), invalid("8.8.8.0/25", Some(Asn(1))));
    assert_eq!(check("9.9.9.0/24", &[64497, 2], Some(&vrps)), Ok(()), "not found");
    assert_eq!(check(ROUTED, &[64497, 2], None), Ok(()), "no data");
    let mut path = AsPathBuf::from_sequence(&[Asn(64497)]);
    path.push_segment(SegmentKind::Set, &[Asn(1)]);
    let mut editor = attributes(&[], 0);
    editor.as_path(path.as_path());
    assert_eq!(
        validate_origin(prefix(ROUTED), &editor.finish(), Some(&vrps), RouteRules::default()),
        invalid(ROUTED, None)
    );
    let words = invalid(ROUTED, None).expect_err("invalid").to_string();
    let begins =
        "RPKI-invalid: a path that ends with a set may not originate 8.8.8.0/24; the RPKI has 8.8.0.0/16 of AS1";
    assert!(words.starts_with(begins), "{words}");
}

/// What is said of a route for which several reasons hold: the first of this table. It is arouteserver's order: hygiene, next hop, path,
/// transit, then the origin by the registries, the RPKI, and the prefix by the registries.
#[test]
fn of_several_reasons_the_first_in_order_is_said() {
    const RECEIVER: Asn = Asn(200_002);
    let own = slot(0, 200_001);
    let path = |asns: &[u32], sets: &[SegmentKind]| {
        let mut path = AsPathBuf::from_sequence(&asns.iter().copied().map(Asn).collect::<Vec<_>>());
        sets.iter().for_each(|kind| path.push_segment(*kind, &[Asn(200_099)]));
        path
    };
    const CONFED: SegmentKind = SegmentKind::ConfedSet;
    let long: Vec<u32> = [&[200_001, 64_512, 3356][..], &[200_009; 40]].concat();
    let wrong = [&[200_005][..], &long].concat();
    let no_bogon = [&[200_001, 3356][..], &[200_009; 40]].concat();
    let no_transit = [&[200_001][..], &[200_009; 40], &[200_002]].concat();
    let short = vec![200_001, 200_002, 200_010];
    let origin = vec![200_001, 200_002, 200_009];
    // A row: the prefix, the path, the sets behind it, whether the next hop is the announcer's and there is no OTC, and the cause.
    /// Prefix, path, its sets, whether the next hop is the own one, whether there is no OTC, and what is said.
    type Row<'a> = (&'a str, &'a [u32], &'a [SegmentKind], bool, bool, Option<Cause>);
    let rows: Vec<Row<'_>> = vec![
        ("0.0.0.0/0", &wrong, &[SegmentKind::Set, CONFED], false, false, Some(Cause::DefaultRoute)),
        ("10.0.0.0/30", &wrong, &[SegmentKind::Set, CONFED], false, false, Some(Cause::BogonPrefix)),
        ("9.9.9.9/32", &wrong, &[SegmentKind::Set, CONFED], false, false, Some(Cause::BogonPrefix)),
        ("8.8.8.8/32", &wrong, &[SegmentKind::Set, CONFED], false, false, Some(Cause::PrefixLength)),
        ("8.8.8.0/24", &wrong, &[SegmentKind::Set, CONFED], false, false, Some(Cause::AsSet)),
        ("8.8.8.0/24", &wrong, &[CONFED], false, false, Some(Cause::Confederation)),
        ("8.8.8.0/24", &wrong, &[], false, false, Some(Cause::FirstAs)),
        ("8.8.8.0/24", &long, &[], false, false, Some(Cause::NextHop)),
        ("8.8.8.0/24", &long, &[], true, false, Some(Cause::BogonAsn)),
        ("8.8.8.0/24", &no_bogon, &[], true, false, Some(Cause::TransitFree)),
        ("8.8.8.0/24", &no_transit, &[], true, false, Some(Cause::PathLength)),
        ("8.8.8.0/24", &short, &[], true, false, Some(Cause::RouteLeak)),
        ("8.8.8.0/24", &short, &[], true, true, Some(Cause::IrrOrigin)),
        ("8.8.8.0/24", &origin, &[], true, true, Some(Cause::Loop)),
        ("8.8.8.0/24", &[200_001, 200_009], &[], true, true, Some(Cause::RpkiInvalid)),
        // Valid by the RPKI, and not in the list of prefixes; then not known there either.
        ("8.8.9.0/24", &[200_001, 200_009], &[], true, true, None),
        ("8.8.10.0/24", &[200_001, 200_009], &[], true, true, Some(Cause::IrrPrefix)),
        ("8.8.11.0/24", &[200_001, 200_009], &[], true, true, None),
    ];
    let vrps: Vrps = [("8.8.8.0/24", 200_010), ("8.8.9.0/24", 200_009)]
        .map(|(at, asn)| Vrp { prefix: prefix(at), max_length: 24, asn: Asn(asn) })
        .into_iter()
        .collect();
    let range = |text: &str, most| PrefixRange { prefix: prefix(text), least: prefix(text).len(), most };
    let lists = MemberLists {
        origins: Some([Asn(200_009)].into()),
        prefixes: PrefixList::of([range("8.8.11.0/24", 24)]).ok(),
        max_prefixes: [0; 2],
    };
    let bogons = PrefixList::of([range("9.9.0.0/16", 32)]).expect("a range");
    let data = Data { bogons, members: [(own.asn, lists)].into(), ..Data::default() };
    let rules = DataRules { rpki_before_irr: true, ..DataRules::default() };
    let profile = Profile { transit_free: vec![Asn(3356)], ..Profile::default() };
    let in_force = DataInForce { rules: &rules, data: &data };
    let rules = RouteRules { profile: Some(&profile), data: Some(in_force), ..RouteRules::default() };
    for (at, asns, sets, is_own_hop, has_no_otc, expected) in rows {
        let mut editor = attributes(&[], if is_own_hop { 0 } else { 7 });
        editor.as_path(path(asns, sets).as_path());
        if !has_no_otc {
            editor.only_to_customer(Some(Asn(200_009)));
        }
        let route = editor.finish();
        let found = validate_for(RECEIVER, prefix(at), &route, &own, rules)
            .and_then(|()| validate_known(prefix(at), &route, &own, Known { vrps: Some(&vrps), aspas: None }, rules));
        assert_eq!(found.as_ref().err().map(Cause::of), expected, "{at} {asns:?}: {found:?}");
    }
    // The announcer that knows nothing of origins cannot know what receivers take.
    let mut editor = attributes(&[], 0);
    editor.as_path(path(&[200_001, 200_009], &[]).as_path());
    let (route, at, nothing) = (editor.finish(), prefix("8.8.9.0/24"), Known::default());
    assert!(matches!(validate_known(at, &route, &own, nothing, rules), Err(Invalid::IrrPrefix { .. })));
    assert_eq!(validate_own_known(at, &route, &own, nothing, rules), Ok(()));
    let strict = DataRules::default();
    let rules = RouteRules { data: Some(DataInForce { rules: &strict, data: &data }), ..rules };
    assert!(matches!(validate_own_known(at, &route, &own, nothing, rules), Err(Invalid::IrrPrefix { .. })));
}
