//! UPDATEs: what is read, what is refused and why, what is sent on.
//!
//! BGP-02 to 07: duplicates, unknown attributes, attributes seen in the wild, AS paths, prefixes: RFC 7606 and
//! RFC 4271.

use std::net::{Ipv4Addr, Ipv6Addr};

use wayleave_bgp::{
    Action, AsPathBuf, AttributeCode, AttributeFlags, Attributes, AttributesError, Community, EncodeError, Fault,
    Ipv6NextHop, LargeCommunity, Message, MessageError, NextHop, Nlri, NlriIter, Origin, Problem, RawAttribute,
    SegmentKind, SessionParams, Update, UpdateBuilder, UpdateView, encode_updates, end_of_rib,
};
use wayleave_core::{Afi, Asn, Prefix};

const ORIGIN: &[u8] = &[0x40, 1, 1, 0];
const AS_PATH: &[u8] = &[0x40, 2, 6, 2, 1, 0, 0, 0xfb, 0xf1];
const NEXT_HOP: &[u8] = &[0x40, 3, 4, 192, 0, 2, 1];
/// 203.0.113.0/24.
const NLRI: &[u8] = &[24, 203, 0, 113];

fn params() -> SessionParams {
    SessionParams::new(Asn(64_496), Asn(64_497))
}

fn prefix(text: &str) -> Prefix {
    text.parse().unwrap()
}

fn nlri(text: &str) -> Nlri {
    Nlri::new(prefix(text))
}

fn body(withdrawn: &[u8], attributes: &[&[u8]], announced: &[u8]) -> Vec<u8> {
    let attributes = attributes.concat();
    let mut body = (withdrawn.len() as u16).to_be_bytes().to_vec();
    body.extend_from_slice(withdrawn);
    body.extend_from_slice(&(attributes.len() as u16).to_be_bytes());
    body.extend_from_slice(&attributes);
    body.extend_from_slice(announced);
    body
}

/// A sound IPv4 route with further attributes.
fn with(attributes: &[&[u8]]) -> Vec<u8> {
    body(&[], &[&[ORIGIN, AS_PATH, NEXT_HOP][..], attributes].concat(), NLRI)
}

fn attribute(flags: u8, code: u8, value: &[u8]) -> Vec<u8> {
    let mut octets = Vec::new();
    RawAttribute { flags: AttributeFlags(flags), code: AttributeCode(code), value }.encode(&mut octets);
    octets
}

fn decode(body: &[u8]) -> Update {
    Update::decode(body, &params()).expect("the session stays up")
}

fn problem(attribute: AttributeCode, fault: Fault, action: Action) -> Problem {
    Problem { attribute: Some(attribute), fault, action }
}

fn reset(body: &[u8]) -> (u8, u8) {
    match Update::decode(body, &params()) {
        Err(MessageError::Peer(sent)) => (sent.code, sent.subcode),
        other => panic!("{other:?}"),
    }
}

/// MP_REACH_NLRI of IPv6 unicast through 2001:db8::1.
fn reach(nlri: &[u8]) -> Vec<u8> {
    let mut value = vec![0, 2, 1, 16];
    value.extend_from_slice(&Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).octets());
    value.push(0);
    value.extend_from_slice(nlri);
    attribute(0x80, 14, &value)
}

#[test]
fn a_well_formed_update_is_decoded_with_all_its_attributes() {
    let med = attribute(0x80, 4, &[0, 0, 0, 50]);
    let aggregator = attribute(0xc0, 7, &[0, 1, 0x11, 0x70, 192, 0, 2, 9]);
    let communities = attribute(0xc0, 8, &[0xfb, 0xf0, 0, 1, 0xff, 0xff, 0xff, 0x01]);
    let extended = attribute(0xc0, 16, &[0, 2, 0xfb, 0xf0, 0, 0, 0, 7]);
    let large = attribute(0xc0, 32, &[0, 0, 0xfb, 0xf0, 0, 0, 0, 1, 0, 0, 0, 2]);
    let customer = attribute(0xc0, 35, &[0, 0, 0xfb, 0xf1]);
    let all = [&med[..], &aggregator, &communities, &extended, &large, &customer];
    let update = decode(&with(&all));
    assert_eq!((update.problems.as_slice(), update.announced.as_slice()), (&[][..], &[nlri("203.0.113.0/24")][..]));
    let attributes = update.attributes.unwrap();
    assert_eq!(attributes.as_octets(), [ORIGIN, AS_PATH, NEXT_HOP, &all.concat()].concat());
    assert_eq!(attributes.origin(), Some(Origin::Igp));
    assert_eq!(attributes.as_path().to_string(), "64497");
    assert_eq!(attributes.next_hop(Afi::Ipv4), Some(NextHop::V4(Ipv4Addr::new(192, 0, 2, 1))));
    assert_eq!((attributes.next_hop(Afi::Ipv6), attributes.local_pref()), (None, None));
    assert_eq!(attributes.med(), Some(50));
    assert_eq!(attributes.aggregator().map(|found| found.asn), Some(Asn(70_000)));
    assert!(attributes.communities().eq([Community::new(64_496, 1), Community::NO_EXPORT]));
    assert!(attributes.extended_communities().map(|found| found.to_string()).eq(["rt:64496:7".to_owned()]));
    assert!(attributes.large_communities().eq([LargeCommunity::new(64_496, 1, 2)]));
    assert_eq!(attributes.only_to_customer(), Some(Asn(64_497)));
    assert!(!attributes.atomic_aggregate() && attributes.cluster_list().len() == 0);
}

#[test]
fn ipv6_routes_come_with_the_next_hop_of_their_attribute() {
    let update = decode(&body(&[], &[&reach(&[32, 0x20, 1, 0xd, 0xb8]), ORIGIN, AS_PATH], &[]));
    assert_eq!(update.announced, [nlri("2001:db8::/32")]);
    let attributes = update.attributes.unwrap();
    assert_eq!(attributes.as_octets(), [ORIGIN, AS_PATH].concat());
    let global = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
    assert_eq!(attributes.next_hop(Afi::Ipv6), Some(NextHop::V6(Ipv6NextHop { global, link_local: None })));
}

#[test]
fn ipv4_routes_in_mp_reach_are_like_any_other() {
    let value = [&[0, 1, 1, 4, 192, 0, 2, 7, 0][..], NLRI].concat();
    let update = decode(&body(&[], &[&attribute(0x80, 14, &value), ORIGIN, AS_PATH], &[]));
    assert_eq!(update.announced, [nlri("203.0.113.0/24")]);
    assert_eq!(update.attributes.unwrap().ipv4_next_hop(), Some(Ipv4Addr::new(192, 0, 2, 7)));
    // Two next hops for one family fit no set of attributes.
    let update = decode(&body(&[], &[&attribute(0x80, 14, &value), ORIGIN, AS_PATH, NEXT_HOP], &[8, 10]));
    assert_eq!(update.problems, [problem(AttributeCode::MP_REACH_NLRI, Fault::TwoNextHops, Action::TreatAsWithdraw)]);
    assert_eq!(update.withdrawn, [nlri("10.0.0.0/8"), nlri("203.0.113.0/24")]);
}

// BGP-02.

#[test]
fn of_a_repeated_attribute_the_first_counts() {
    for repeated in [attribute(0x40, 1, &[2]), attribute(0x40, 3, &[192, 0, 2, 99]), attribute(0xc0, 8, &[1, 2, 3])] {
        let own = attribute(0xc0, 8, &[0, 1, 0, 2]);
        let update = decode(&with(&[&own, &repeated]));
        let code = AttributeCode(repeated[1]);
        assert_eq!(update.problems, [problem(code, Fault::Repeated, Action::DiscardAttribute)]);
        assert_eq!(update.attributes.unwrap().as_octets(), [ORIGIN, AS_PATH, NEXT_HOP, &own].concat());
    }
    let unknown = attribute(0xc0, 99, &[1]);
    let update = decode(&with(&[&unknown, &unknown]));
    assert_eq!(update.problems, [problem(AttributeCode(99), Fault::Repeated, Action::DiscardAttribute)]);
}

#[test]
fn a_repeated_multiprotocol_attribute_ends_the_session() {
    let unreach = attribute(0x80, 15, &[0, 2, 1]);
    assert_eq!(reset(&body(&[], &[&reach(&[]), &reach(&[])], &[])), (3, 1));
    assert_eq!(reset(&body(&[], &[&unreach, &unreach], &[])), (3, 1));
}

#[test]
fn octets_behind_the_attributes_are_prefixes() {
    // What stands behind the attributes' length is a prefix of 64 bits: too long for IPv4.
    let mut octets = with(&[]);
    octets.extend_from_slice(&attribute(0x40, 5, &[0, 0, 0, 1]));
    assert_eq!(reset(&octets), (3, 10));
}

// BGP-03.

#[test]
fn an_update_with_only_unknown_attributes_announces_nothing() {
    let unknown = attribute(0xc0, 99, &[1, 2, 3]);
    let update = decode(&body(&[], &[&unknown], &[]));
    assert_eq!(update, Update::default());
    let update = decode(&body(&[], &[&unknown], NLRI));
    assert_eq!(update.action(), Some(Action::TreatAsWithdraw));
    assert_eq!((update.withdrawn, update.announced), (vec![nlri("203.0.113.0/24")], vec![]));
    assert_eq!(decode(&body(&[], &[], &[])).end_of_rib, Some(Afi::Ipv4));
}

/// RFC 7606 section 5.2: the routes may be there and not have been found.
#[test]
fn attributes_malformed_beyond_a_discard_and_without_a_route_end_the_session() {
    let origin = attribute(0x40, 1, &[9]);
    let cut = &[0xc0, 99, 200, 1][..];
    let unreach = attribute(0x80, 15, &[0, 2, 1, 32, 0x20, 1, 0xd, 0xb8]);
    assert_eq!(reset(&body(&[], &[&origin], &[])), (3, 1));
    assert_eq!(reset(&body(&[8, 10], &[&origin], &[])), (3, 1));
    assert_eq!(reset(&body(&[], &[&unreach, &origin], &[])), (3, 1));
    assert_eq!(reset(&body(&[], &[&reach(&[]), &origin], &[])), (3, 1));
    assert_eq!(reset(&body(&[], &[cut], &[])), (3, 1));
    // What a discard mends does not.
    let aggregator = attribute(0xc0, 7, &[]);
    let update = decode(&body(&[8, 10], &[&aggregator], &[]));
    assert_eq!((update.action(), update.withdrawn.len()), (Some(Action::DiscardAttribute), 1));
    // Nor does any fault beside a route, even of a family that was not agreed.
    let update = decode(&body(&[], &[&reach(&[32, 0x20, 1, 0xd, 0xb8]), &origin], &[]));
    assert_eq!((update.action(), update.withdrawn.len()), (Some(Action::TreatAsWithdraw), 1));
    let only_ipv4 = SessionParams { ipv6_unicast: false, ..params() };
    let octets = body(&[], &[&reach(&[32, 0x20, 1, 0xd, 0xb8]), &origin], &[]);
    assert!(Update::decode(&octets, &only_ipv4).unwrap().withdrawn.is_empty());
    let only_ipv6 = SessionParams { ipv4_unicast: false, ..params() };
    assert!(Update::decode(&body(&[], &[&origin], NLRI), &only_ipv6).unwrap().withdrawn.is_empty());
}

// BGP-04.

#[test]
fn an_unknown_transitive_attribute_is_sent_on_as_it_came_but_partial() {
    let transitive = attribute(0xc0, 99, &[1, 2, 3]);
    let local = attribute(0x80, 98, &[4]);
    let attributes = decode(&with(&[&local, &transitive])).attributes.unwrap();
    assert_eq!(attributes.get(AttributeCode(98)).map(|found| found.value), Some(&[4][..]));
    let onward = attributes.to_forward();
    let expected = [ORIGIN, AS_PATH, NEXT_HOP, &attribute(0xe0, 99, &[1, 2, 3])].concat();
    assert_eq!(onward.as_octets(), expected);
    assert_eq!(onward.to_forward(), onward);
    // The bits without a meaning are zero when sent.
    let attributes = decode(&with(&[&attribute(0xcf, 99, &[1])])).attributes.unwrap();
    assert_eq!(attributes.to_forward().get(AttributeCode(99)).map(|found| found.flags.0), Some(0xe0));
}

// BGP-05 stands in `test-data/bgp/bad`; here: nothing of it is sent on.

#[test]
fn nothing_malformed_is_kept() {
    let label = attribute(0xc0, 28, &[0xff; 9]);
    let link_state = attribute(0x80, 29, &[0xff; 9]);
    let update = decode(&with(&[&label, &link_state]));
    assert_eq!(update.problems, [problem(AttributeCode::ENTROPY_LABEL, Fault::Length(9), Action::DiscardAttribute)]);
    assert_eq!(update.attributes.unwrap().to_forward().as_octets(), [ORIGIN, AS_PATH, NEXT_HOP].concat());
    for (code, value) in [(35, &[1, 2, 3][..]), (128, &[0, 0, 0]), (128, &[0, 0, 0, 1, 0x80, 14, 0]), (32, &[0; 11])] {
        let update = decode(&with(&[&attribute(0xc0, code, value)]));
        assert_eq!((update.action(), update.attributes), (Some(Action::TreatAsWithdraw), None), "{code} {value:?}");
    }
    // Twice the same attribute within ATTR_SET.
    let set = attribute(0xc0, 128, &[0, 0, 0xfb, 0xf1, 0x40, 1, 1, 0, 0x40, 1, 1, 0]);
    assert_eq!(
        decode(&with(&[&set])).problems,
        [problem(AttributeCode::ATTR_SET, Fault::Contained, Action::TreatAsWithdraw)]
    );
    let set = attribute(0xc0, 128, &[0, 0, 0xfb, 0xf1, 0x40, 1, 1, 0, 0x40, 5, 4, 0, 0, 0, 1]);
    assert_eq!(decode(&with(&[&set])).problems, []);
}

// BGP-06.

#[test]
fn paths_of_any_number_of_ases_are_read_and_counted() {
    for count in [0u32, 1, 255, 256, 1_000] {
        let asns: Vec<Asn> = (1..=count).map(|asn| Asn(asn + 100_000)).collect();
        let path = AsPathBuf::from_sequence(&asns);
        let value = attribute(0x40, 2, path.as_path().octets());
        let update = decode(&body(&[], &[ORIGIN, &value, NEXT_HOP], NLRI));
        assert_eq!(update.problems, []);
        let attributes = update.attributes.unwrap();
        assert_eq!(attributes.as_path().length(), asns.len());
        assert!(attributes.as_path().asns().eq(asns.iter().copied()));
        assert_eq!(attributes.as_path().first_asn(), asns.first().copied());
        assert_eq!(attributes.as_path().origin_asn(), asns.last().copied());
        assert!(!attributes.as_path().contains(Asn(1)));
    }
}

#[test]
fn a_set_counts_one_and_a_confederation_nothing() {
    let mut path = AsPathBuf::new();
    path.push_segment(SegmentKind::ConfedSequence, &[Asn(65_001), Asn(65_002)]);
    path.push_segment(SegmentKind::Sequence, &[Asn(64_497), Asn(64_498)]);
    path.push_segment(SegmentKind::Set, &[Asn(1), Asn(2), Asn(3)]);
    assert_eq!(path.as_path().to_string(), "(65001 65002) 64497 64498 {1 2 3}");
    assert_eq!(path.as_path().length(), 3);
    assert_eq!((path.as_path().first_asn(), path.as_path().origin_asn()), (Some(Asn(64_497)), None));
    // Within the confederation it is read; from outside it is not.
    let value = attribute(0x40, 2, path.as_path().octets());
    let octets = body(&[], &[ORIGIN, &value, NEXT_HOP], NLRI);
    let within = SessionParams { confederation: true, ..params() };
    assert_eq!(Update::decode(&octets, &within).unwrap().problems, []);
    assert_eq!(
        decode(&octets).problems,
        [problem(AttributeCode::AS_PATH, Fault::ConfederationSegment, Action::TreatAsWithdraw)]
    );
}

#[test]
fn the_first_as_must_be_the_peers_where_enforced() {
    let strict = SessionParams { enforce_first_as: true, ..params() };
    assert_eq!(Update::decode(&with(&[]), &strict).unwrap().problems, []);
    let other = SessionParams { peer_asn: Asn(64_499), ..strict };
    assert_eq!(
        Update::decode(&with(&[]), &other).unwrap().problems,
        [problem(AttributeCode::AS_PATH, Fault::FirstAs, Action::TreatAsWithdraw)]
    );
}

#[test]
fn on_a_two_octet_session_the_first_as_may_be_as_trans() {
    let mut strict = SessionParams { enforce_first_as: true, four_octet_as: false, ..params() };
    strict.peer_asn = Asn(70_000);
    let as_path = attribute(0x40, 2, &[2, 1, 0x5b, 0xa0]);
    let octets = body(&[], &[ORIGIN, &as_path, NEXT_HOP], NLRI);
    assert_eq!(Update::decode(&octets, &strict).unwrap().problems, []);
}

#[test]
fn a_path_that_outgrows_its_attribute_in_four_octets_is_no_path() {
    let narrow = SessionParams { four_octet_as: false, extended_message: true, ..params() };
    let sequences = |count: usize, width: usize| {
        let sequence = [&[2, 255][..], &[1].repeat(255 * width)].concat();
        sequence.repeat(count)
    };
    let longest = body(&[], &[ORIGIN, &attribute(0x40, 2, &sequences(63, 2)), NEXT_HOP], NLRI);
    let update = Update::decode(&longest, &narrow).unwrap();
    assert_eq!(update.attributes.unwrap().as_path().length(), 63 * 255);
    let longer = body(&[], &[ORIGIN, &attribute(0x40, 2, &sequences(65, 2)), NEXT_HOP], NLRI);
    let expected = problem(AttributeCode::AS_PATH, Fault::Length(65 * 512), Action::TreatAsWithdraw);
    assert_eq!(Update::decode(&longer, &narrow).unwrap().problems, [expected]);
    // Together the two attributes make a path that fits no attribute: the one that always does counts.
    let sets = [&[1, 255][..], &[1].repeat(255 * 4)].concat().repeat(30);
    let both = [&attribute(0x40, 2, &sequences(63, 2))[..], &attribute(0xc0, 17, &sets)];
    let octets = body(&[], &[ORIGIN, both[0], NEXT_HOP, both[1]], NLRI);
    let update = Update::decode(&octets, &narrow).unwrap();
    assert_eq!(update.attributes.unwrap().as_path().length(), 63 * 255);
}

#[test]
fn as4_path_has_no_confederation_segment() {
    let mut path = AsPathBuf::new();
    path.push_segment(SegmentKind::ConfedSequence, &[Asn(70_002)]);
    path.push_segment(SegmentKind::Sequence, &[Asn(70_000)]);
    let within = SessionParams { four_octet_as: false, confederation: true, ..params() };
    let mut editor = attributes().edit();
    let attributes = editor.as_path(path.as_path()).local_pref(Some(1)).finish();
    let messages = encode_updates(Some(&attributes), &[nlri("203.0.113.0/24")], &[], &within).unwrap();
    let expected = attribute(0xc0, 17, &[2, 1, 0, 1, 0x11, 0x70]);
    assert!(messages[0].windows(expected.len()).any(|octets| octets == expected));
    let Ok((Message::Update(update), [])) = Message::decode(&messages[0], &within) else { panic!("an UPDATE") };
    assert_eq!(update.attributes.unwrap().as_path().to_string(), "(23456) 70000");
}

#[test]
fn on_a_two_octet_session_the_path_is_put_together_from_both_attributes() {
    let narrow = SessionParams { four_octet_as: false, ..params() };
    // 64497 23456 23456 and 70000 70001.
    let as_path = attribute(0x40, 2, &[2, 3, 0xfb, 0xf1, 0x5b, 0xa0, 0x5b, 0xa0]);
    let as4_path = attribute(0xc0, 17, &[2, 2, 0, 1, 0x11, 0x70, 0, 1, 0x11, 0x71]);
    let aggregator = attribute(0xc0, 7, &[0x5b, 0xa0, 192, 0, 2, 9]);
    let as4_aggregator = attribute(0xc0, 18, &[0, 1, 0x11, 0x71, 192, 0, 2, 9]);
    let octets = body(&[], &[ORIGIN, &as_path, NEXT_HOP, &aggregator, &as4_path, &as4_aggregator], NLRI);
    let update = Update::decode(&octets, &narrow).unwrap();
    let attributes = update.attributes.clone().unwrap();
    assert_eq!(attributes.as_path().to_string(), "64497 70000 70001");
    assert_eq!(attributes.aggregator().unwrap().asn, Asn(70_001));
    assert_eq!(attributes.get(AttributeCode::AS4_PATH), None);
    // Sent over such a session the numbers part again: all that fit nowhere are in the AS4 attributes.
    let sent = update.encode(&narrow).unwrap();
    let Ok((Message::Update(again), [])) = Message::decode(&sent, &narrow) else { panic!("an UPDATE") };
    assert_eq!(again, update);
    // An aggregator that a two-octet number names outranks both.
    let aggregator = attribute(0xc0, 7, &[0xfb, 0xf2, 192, 0, 2, 9]);
    let octets = body(&[], &[ORIGIN, &as_path, NEXT_HOP, &aggregator, &as4_path, &as4_aggregator], NLRI);
    let attributes = Update::decode(&octets, &narrow).unwrap().attributes.unwrap();
    assert_eq!(attributes.as_path().to_string(), "64497 23456 23456");
    assert_eq!(attributes.aggregator().unwrap().asn, Asn(64_498));
}

#[test]
fn two_ases_behind_as_trans_stay_two() {
    let narrow = SessionParams { four_octet_as: false, ..params() };
    let as_path = attribute(0x40, 2, &[2, 1, 0x5b, 0xa0]);
    let of = |last: u8| {
        let as4_path = attribute(0xc0, 17, &[2, 1, 0, 1, 0x11, last]);
        let octets = body(&[], &[ORIGIN, &as_path, NEXT_HOP, &as4_path], NLRI);
        Update::decode(&octets, &narrow).unwrap().attributes.unwrap()
    };
    assert_ne!(of(0x70), of(0x71));
    assert_eq!(of(0x70).as_path().first_asn(), Some(Asn(70_000)));
}

#[test]
fn a_malformed_as4_path_is_dropped_alone() {
    let narrow = SessionParams { four_octet_as: false, ..params() };
    let as_path = attribute(0x40, 2, &[2, 1, 0x5b, 0xa0]);
    for value in [&[][..], &[2], &[2, 0], &[2, 2, 0, 1, 0x11, 0x70], &[9, 1, 0, 1, 0x11, 0x70], &[2, 1, 0, 0, 0, 0]] {
        let octets = body(&[], &[ORIGIN, &as_path, NEXT_HOP, &attribute(0xc0, 17, value)], NLRI);
        let update = Update::decode(&octets, &narrow).unwrap();
        assert_eq!(update.action(), Some(Action::DiscardAttribute), "{value:?}");
        assert_eq!(update.attributes.unwrap().as_path().to_string(), "23456");
    }
}

#[test]
fn a_next_hop_is_the_address_of_a_host() {
    for address in [[0, 0, 0, 0], [127, 0, 0, 1], [224, 0, 0, 5], [255, 255, 255, 255]] {
        let update = decode(&body(&[], &[ORIGIN, AS_PATH, &attribute(0x40, 3, &address)], NLRI));
        let expected = problem(AttributeCode::NEXT_HOP, Fault::NextHopAddress, Action::TreatAsWithdraw);
        assert_eq!(update.problems, [expected], "{address:?}");
        let value = [&[0, 1, 1, 4][..], &address, &[0], NLRI].concat();
        let update = decode(&body(&[], &[&attribute(0x80, 14, &value), ORIGIN, AS_PATH], &[]));
        assert_eq!(update.problems[0].attribute, Some(AttributeCode::MP_REACH_NLRI), "{address:?}");
    }
    let link_local = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1).octets();
    for (text, next, is_host) in [
        ("ff02::1", &[][..], false),
        ("::1", &[], false),
        ("::", &[], false),
        ("::", &link_local[..], true),
        ("fe80::1", &[], true),
        ("2001:db8::1", &link_local, true),
    ] {
        let address: Ipv6Addr = text.parse().unwrap();
        let next_hop = [&address.octets()[..], next].concat();
        let value = [&[0, 2, 1, next_hop.len() as u8][..], &next_hop, &[0, 32, 0x20, 1, 0xd, 0xb8]].concat();
        let update = decode(&body(&[], &[&attribute(0x80, 14, &value), ORIGIN, AS_PATH], &[]));
        assert_eq!(update.problems.is_empty(), is_host, "{text} {next:?}");
    }
}

#[test]
fn of_an_ipv6_next_hop_of_32_octets_only_a_link_local_second_half_counts() {
    let address = |text: &str| text.parse::<Ipv6Addr>().unwrap();
    let (global, link_local) = (address("2001:db8::1"), address("fe80::1"));
    let with = |global, link_local| Some(Ipv6NextHop { global, link_local });
    for (first, second, expected) in [
        ("2001:db8::1", "fe80::1", with(global, Some(link_local))),
        // RFC 2545 section 3: an empty or odd second half is none.
        ("2001:db8::1", "::", with(global, None)),
        ("2001:db8::1", "2001:db8::2", with(global, None)),
        ("2001:db8::1", "ff02::1", with(global, None)),
        // Without a global address the link-local one is the next hop.
        ("::", "fe80::1", with(link_local, Some(link_local))),
        ("fe80::1", "fe80::1", with(link_local, Some(link_local))),
        ("::", "::", None),
        ("::", "2001:db8::2", None),
    ] {
        let next_hop = [address(first).octets(), address(second).octets()].concat();
        let value = [&[0, 2, 1, 32][..], &next_hop, &[0, 32, 0x20, 1, 0xd, 0xb8]].concat();
        let update = decode(&body(&[], &[&attribute(0x80, 14, &value), ORIGIN, AS_PATH], &[]));
        let found = update.attributes.as_ref().and_then(|attributes| attributes.ipv6_next_hop());
        assert_eq!(found, expected, "{first} {second}: {:?}", update.problems);
    }
}

#[test]
fn next_hop_means_nothing_beside_ipv6_routes_alone() {
    let nowhere = attribute(0x40, 3, &[0, 0, 0, 0]);
    let update = decode(&body(&[], &[&reach(&[32, 0x20, 1, 0xd, 0xb8]), ORIGIN, AS_PATH, &nowhere], &[]));
    assert_eq!(update.problems, []);
    assert_eq!(update.attributes.unwrap().as_octets(), [ORIGIN, AS_PATH].concat());
}

#[test]
fn only_an_empty_update_ends_a_rib() {
    let unreach = attribute(0x80, 15, &[0, 2, 1]);
    let withdrawing = attribute(0x80, 15, &[0, 2, 1, 32, 0x20, 1, 0xd, 0xb8]);
    assert_eq!(decode(&body(&[], &[&unreach], &[])).end_of_rib, Some(Afi::Ipv6));
    for attributes in [&[&unreach[..], ORIGIN][..], &[&withdrawing], &[ORIGIN]] {
        assert_eq!(decode(&body(&[], attributes, &[])).end_of_rib, None, "{attributes:?}");
    }
    assert_eq!(decode(&body(&[8, 10], &[], &[])).end_of_rib, None);
    // Routes of a family that was not agreed are no mark either.
    let only_ipv6 = SessionParams { ipv4_unicast: false, ..params() };
    assert_eq!(Update::decode(&body(&[8, 10], &[], &[]), &only_ipv6).unwrap().end_of_rib, None);
}

// BGP-07.

#[test]
fn prefixes_are_read_up_to_the_first_that_is_wrong() {
    let read: Vec<_> = NlriIter::new(&[8, 10, 33, 8, 11], Afi::Ipv4, false).collect();
    assert!(matches!(read[..], [Ok(_), Err(Fault::PrefixLength(33))]));
}

#[test]
fn bits_beyond_the_length_of_a_prefix_do_not_count() {
    let octets = body(&[], &[ORIGIN, AS_PATH, NEXT_HOP], &[20, 10, 1, 0xff, 20, 10, 1, 0xf0, 0]);
    let update = decode(&octets);
    // A repeated prefix is the same route twice.
    assert_eq!(update.announced, [nlri("10.1.240.0/20"), nlri("10.1.240.0/20"), nlri("0.0.0.0/0")]);
    // The borrowed form still writes the octets that came.
    let mut written = Vec::new();
    UpdateView::decode(&octets, &params()).unwrap().encode(&mut written);
    assert_eq!(written[19..], octets);
}

#[test]
fn prefixes_that_are_not_unicast_are_ignored_alone() {
    let octets = body(&[4, 0xe0], &[ORIGIN, AS_PATH, NEXT_HOP], &[8, 224, 24, 203, 0, 113, 4, 240, 3, 0xe0]);
    let update = decode(&octets);
    assert_eq!(update.announced, [nlri("203.0.113.0/24")]);
    assert_eq!(update.ignored, [nlri("224.0.0.0/4"), nlri("224.0.0.0/8"), nlri("240.0.0.0/4"), nlri("224.0.0.0/3")]);
    assert_eq!((update.action(), update.problems.len()), (Some(Action::IgnorePrefix), 4));
    let octets = body(&[], &[&reach(&[8, 0xff, 10, 0xfe, 0x80, 32, 0x20, 1, 0xd, 0xb8, 0]), ORIGIN, AS_PATH], &[]);
    let update = decode(&octets);
    assert_eq!(update.announced, [nlri("2001:db8::/32"), nlri("::/0")]);
    assert_eq!(update.ignored, [nlri("ff00::/8"), nlri("fe80::/10")]);
}

#[test]
fn prefixes_that_are_too_long_end_the_session() {
    assert_eq!(reset(&body(&[], &[ORIGIN, AS_PATH, NEXT_HOP], &[33, 1, 2, 3, 4, 5])), (3, 10));
    assert_eq!(reset(&body(&[33, 1, 2, 3, 4, 5], &[], &[])), (3, 10));
    assert_eq!(reset(&body(&[], &[&reach(&[129; 18]), ORIGIN, AS_PATH], &[])), (3, 9));
    let mut unreach = vec![0, 2, 1, 129];
    unreach.extend([0; 17]);
    assert_eq!(reset(&body(&[], &[&attribute(0x80, 15, &unreach)], &[])), (3, 9));
}

#[test]
fn what_is_withdrawn_and_announced_is_announced() {
    let withdrawn = [NLRI, &[8, 10][..]].concat();
    let update = decode(&body(&withdrawn, &[ORIGIN, AS_PATH, NEXT_HOP], NLRI));
    assert_eq!(update.withdrawn, [nlri("10.0.0.0/8")]);
    assert_eq!(update.announced, [nlri("203.0.113.0/24")]);
}

#[test]
fn path_identifiers_are_read_and_written_where_agreed() {
    let mut with_paths = params();
    with_paths.add_path_receive.ipv4 = true;
    with_paths.add_path_send.ipv4 = true;
    let two = [[&[0, 0, 0, 1][..], NLRI].concat(), [&[0, 0, 0, 2][..], NLRI].concat()].concat();
    let update = Update::decode(&body(&[], &[ORIGIN, AS_PATH, NEXT_HOP], &two), &with_paths).unwrap();
    assert_eq!(update.announced.iter().map(|nlri| nlri.path_id).collect::<Vec<_>>(), [1, 2]);
    let sent = update.encode(&with_paths).unwrap();
    assert_eq!(sent[19..], body(&[], &[ORIGIN, AS_PATH, NEXT_HOP], &two));
    assert_eq!(reset(&body(&[], &[ORIGIN, AS_PATH, NEXT_HOP], &two[..9])), (3, 10));
}

#[test]
fn families_that_were_not_agreed_are_ignored() {
    let octets = body(&[], &[&reach(&[32, 0x20, 1, 0xd, 0xb8]), ORIGIN, AS_PATH, NEXT_HOP], NLRI);
    let only_ipv4 = SessionParams { ipv6_unicast: false, ..params() };
    let update = Update::decode(&octets, &only_ipv4).unwrap();
    assert_eq!(update.announced, [nlri("203.0.113.0/24")]);
    assert_eq!(update.attributes.unwrap().ipv6_next_hop(), None);
    let only_ipv6 = SessionParams { ipv4_unicast: false, ..params() };
    let update = Update::decode(&octets, &only_ipv6).unwrap();
    assert_eq!(update.announced, [nlri("2001:db8::/32")]);
    assert_eq!(update.action(), Some(Action::IgnoreFamily));
}

#[test]
fn an_internal_route_needs_a_local_preference() {
    let internal = SessionParams::new(Asn(64_497), Asn(64_497));
    let update = Update::decode(&with(&[]), &internal).unwrap();
    assert_eq!(update.problems, [problem(AttributeCode::LOCAL_PREF, Fault::Missing, Action::TreatAsWithdraw)]);
    let update = Update::decode(&with(&[&attribute(0x40, 5, &[0, 0, 0, 7])]), &internal).unwrap();
    assert_eq!(update.attributes.unwrap().local_pref(), Some(7));
}

#[test]
fn of_a_thousand_problems_a_few_are_reported_and_the_strongest_acts() {
    let unknown = attribute(0xc0, 99, &[]);
    let mut attributes = vec![&unknown[..]; 900];
    let update = decode(&with(&attributes));
    assert_eq!((update.problems.len(), update.action()), (64, Some(Action::DiscardAttribute)));
    let bad = attribute(0xc0, 8, &[1]);
    attributes.push(&bad);
    let update = decode(&with(&attributes));
    assert_eq!((update.problems.len(), update.action()), (64, Some(Action::TreatAsWithdraw)));
}

// Building.

fn attributes() -> Attributes {
    let global = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
    let mut editor = Attributes::builder();
    editor.origin(Origin::Igp).as_path(AsPathBuf::from_sequence(&[Asn(64_497)]).as_path());
    editor.ipv4_next_hop(Ipv4Addr::new(192, 0, 2, 1)).ipv6_next_hop(Some(Ipv6NextHop { global, link_local: None }));
    editor.finish()
}

#[test]
fn the_marks_of_an_end_of_rib_are_those_of_rfc_4724() {
    assert_eq!(end_of_rib(Afi::Ipv4)[16..], [0, 23, 2, 0, 0, 0, 0]);
    assert_eq!(end_of_rib(Afi::Ipv6)[16..], [0, 29, 2, 0, 0, 0, 6, 0x80, 15, 3, 0, 2, 1]);
    for afi in [Afi::Ipv4, Afi::Ipv6] {
        let octets = end_of_rib(afi);
        let Ok((Message::Update(update), [])) = Message::decode(&octets, &params()) else { panic!("an UPDATE") };
        assert_eq!(update.end_of_rib, Some(afi));
        assert_eq!(update.encode(&params()).unwrap(), octets);
    }
}

#[test]
fn a_route_is_built_octet_for_octet() {
    let mut builder = UpdateBuilder::new();
    builder.attributes(attributes()).announce(prefix("203.0.113.0/24")).withdraw(prefix("10.0.0.0/8"));
    let messages = builder.encode(&params()).unwrap();
    assert_eq!(messages.len(), 2);
    assert_eq!(messages[0][19..], body(&[8, 10], &[], &[]));
    assert_eq!(messages[1][19..], with(&[]));
}

#[test]
fn many_routes_are_split_over_full_messages() {
    for extended_message in [false, true] {
        let params = SessionParams { extended_message, ..params() };
        let ipv4 = (0..40_000u32).map(|i| prefix(&format!("10.{}.{}.0/24", i >> 8, i & 255)).into());
        let ipv6 = (0..40_000u32).map(|i| prefix(&format!("2001:db8:{i:x}::/48")).into());
        let routes: Vec<Nlri> = ipv4.chain(ipv6).collect();
        for (announced, withdrawn) in [(&routes[..], &[][..]), (&[], &routes)] {
            let messages = encode_updates(Some(&attributes()), announced, withdrawn, &params).unwrap();
            let mut back = Vec::new();
            for octets in &messages {
                assert!(octets.len() <= params.max_message_len());
                let Ok((Message::Update(update), [])) = Message::decode(octets, &params) else { panic!("an UPDATE") };
                assert_eq!(update.problems, []);
                back.extend(update.announced);
                back.extend(update.withdrawn);
            }
            assert_eq!(back, routes);
            let fewest = (160_000 + 280_000) / params.max_message_len() + 2;
            assert!(messages.len() <= fewest + fewest / 20 + 1, "{} messages", messages.len());
        }
    }
}

#[test]
fn attributes_that_leave_no_room_for_a_prefix_are_an_error() {
    let mut editor = attributes().edit();
    editor.set(AttributeCode(99), AttributeFlags::OPTIONAL_TRANSITIVE, &[7; 4_060]);
    let error = encode_updates(Some(&editor.finish()), &[nlri("10.0.0.0/8")], &[], &params());
    assert!(matches!(error, Err(EncodeError::TooLong { most: 4_096, .. })));
    let extended = SessionParams { extended_message: true, ..params() };
    assert!(encode_updates(Some(&editor.finish()), &[nlri("10.0.0.0/8")], &[], &extended).is_ok());
    assert_eq!(encode_updates(None, &[nlri("10.0.0.0/8")], &[], &params()), Err(EncodeError::NoAttributes));
    let mut editor = attributes().edit();
    editor.ipv6_next_hop(None);
    let error = encode_updates(Some(&editor.finish()), &[nlri("2001:db8::/32")], &[], &params());
    assert_eq!(error, Err(EncodeError::NoNextHop(Afi::Ipv6)));
    let only_ipv4 = SessionParams { ipv6_unicast: false, ..params() };
    let error = encode_updates(Some(&attributes()), &[nlri("2001:db8::/32")], &[], &only_ipv4);
    assert_eq!(error, Err(EncodeError::Family(Afi::Ipv6)));
}

#[test]
fn one_message_holds_both_families_and_comes_back() {
    let update = Update {
        withdrawn: vec![nlri("10.0.0.0/8"), nlri("2001:db8:2::/48")],
        announced: vec![nlri("203.0.113.0/24"), nlri("2001:db8:1::/48")],
        attributes: Some(attributes()),
        ..Update::default()
    };
    let octets = update.encode(&params()).unwrap();
    assert_eq!(Message::decode(&octets, &params()), Ok((Message::Update(update), &[][..])));
}

#[test]
fn what_is_internal_does_not_leave() {
    let mut editor = attributes().edit();
    editor.local_pref(Some(200));
    editor.set(AttributeCode::ORIGINATOR_ID, AttributeFlags::OPTIONAL_NON_TRANSITIVE, &[1, 2, 3, 4]);
    editor.set(AttributeCode::CLUSTER_LIST, AttributeFlags::OPTIONAL_NON_TRANSITIVE, &[1, 2, 3, 4]);
    let messages = encode_updates(Some(&editor.finish()), &[nlri("203.0.113.0/24")], &[], &params()).unwrap();
    assert_eq!(messages[0][19..], with(&[]));
}

// Editing.

#[test]
fn an_edit_leaves_every_other_attribute_as_it_was() {
    // Out of order, with an extended length that is not needed.
    let odd = [&[0xf0, 99, 0, 2, 1, 2][..], ORIGIN, NEXT_HOP, AS_PATH, &[0xc0, 8, 8, 0, 1, 0, 1, 0, 1, 0, 2]].concat();
    let attributes = Attributes::from_octets(&odd, None).unwrap();
    assert_eq!(attributes.edit().finish(), attributes);
    let mut editor = attributes.edit();
    editor.retain_communities(|community| community != Community::new(1, 1)).med(Some(5));
    let edited = editor.finish();
    let expected =
        [&[0x80, 4, 4, 0, 0, 0, 5][..], &[0xf0, 99, 0, 2, 1, 2], ORIGIN, NEXT_HOP, AS_PATH, &[0xc0, 8, 4, 0, 1, 0, 2]];
    assert_eq!(edited.as_octets(), expected.concat());
    let mut editor = edited.edit();
    editor.retain_communities(|_| false).med(None).remove(AttributeCode(99));
    assert_eq!(editor.finish().as_octets(), [ORIGIN, NEXT_HOP, AS_PATH].concat());
}

#[test]
fn a_changed_attribute_stays_partial_and_a_value_too_long_changes_nothing() {
    let partial = [ORIGIN, &[0xe0, 8, 8, 0, 1, 0, 1, 0, 1, 0, 2]].concat();
    let mut editor = Attributes::from_octets(&partial, None).unwrap().edit();
    editor.retain_communities(|community| community != Community::new(1, 1));
    let changed = [ORIGIN, &[0xe0, 8, 4, 0, 1, 0, 2]].concat();
    assert_eq!(editor.finish().as_octets(), changed);
    editor.set(AttributeCode(8), AttributeFlags::OPTIONAL_TRANSITIVE, &[0; 65_536]);
    assert_eq!(editor.finish().as_octets(), changed);
}

#[test]
fn prepending_grows_the_first_sequence_to_255() {
    let mut editor = attributes().edit();
    editor.prepend(Asn(64_500), 300);
    let edited = editor.finish();
    let lengths: Vec<usize> = edited.as_path().segments().map(|segment| segment.len()).collect();
    assert_eq!(lengths, [46, 255]);
    assert_eq!((edited.as_path().first_asn(), edited.as_path().length()), (Some(Asn(64_500)), 301));
}

#[test]
fn the_portable_form_is_checked_when_it_is_read() {
    let attributes = attributes();
    let octets = attributes.encode();
    assert_eq!(Attributes::decode(&octets), Ok(attributes));
    assert_eq!(Attributes::decode(&[]), Err(AttributesError::NextHop));
    assert_eq!(Attributes::decode(&[15, 0, 0]), Err(AttributesError::NextHop));
    let long = [attribute(0xc0, 98, &[0; 40_000]), attribute(0xc0, 99, &[0; 40_000])].concat();
    assert_eq!(Attributes::from_octets(&long, None), Err(AttributesError::TooLong(80_008)));
    for bad in [&[0x40, 1, 1, 3][..], &[0x40, 1, 2, 0], &[0x40, 1, 1, 0, 0x40, 1, 1, 0], &[0x80, 14, 3, 0, 2, 1]] {
        assert!(Attributes::decode(&[&[0][..], bad].concat()).is_err(), "{bad:?}");
    }
}
