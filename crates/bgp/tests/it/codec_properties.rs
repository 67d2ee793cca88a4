//! What holds for every UPDATE and for any octets at all.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::collection::{btree_set, vec};
use proptest::option;
use proptest::prelude::*;
use wayleave_bgp::{
    AddPath, AsPathBuf, AttributeCode, AttributeFlags, Attributes, Community, ExtendedCommunity, Ipv6NextHop,
    LargeCommunity, Message, Nlri, Open, Origin, SegmentKind, SessionParams, Update, UpdateView, encode_updates, frame,
};
use wayleave_core::{Afi, Asn, Prefix};

fn session() -> impl Strategy<Value = SessionParams> {
    (any::<[bool; 7]>(), any::<bool>()).prop_map(|([external, wide, long, a, b, c, d], confederation)| {
        let mut params = SessionParams::new(Asn(64_496), if external { Asn(64_497) } else { Asn(64_496) });
        params.four_octet_as = wide;
        params.extended_message = long;
        params.confederation = external && confederation;
        params.add_path_receive = AddPath { ipv4: a, ipv6: b };
        params.add_path_send = AddPath { ipv4: c, ipv6: d };
        params
    })
}

/// A session that reads what it writes.
fn mirror() -> impl Strategy<Value = SessionParams> {
    session().prop_map(|params| SessionParams { add_path_receive: params.add_path_send, ..params })
}

/// A unicast prefix, as the codec accepts it.
fn nlri() -> impl Strategy<Value = Nlri> {
    let ipv4 = (0u32..0xe000_0000, 0u8..=32).prop_map(|(bits, length)| (IpAddr::V4(Ipv4Addr::from(bits)), length));
    let ipv6 = (0u128..0xfe << 120, 0u8..=128).prop_map(|(bits, length)| (IpAddr::V6(Ipv6Addr::from(bits)), length));
    (prop_oneof![ipv4, ipv6], any::<u32>()).prop_map(|((address, length), path_id)| Nlri {
        prefix: Prefix::truncated(address, length).expect("a length of its family"),
        path_id,
    })
}

fn path() -> impl Strategy<Value = AsPathBuf> {
    let asn = prop_oneof![1u32..65_536, 1u32..=u32::MAX].prop_map(Asn);
    let kind = prop_oneof![4 => Just(SegmentKind::Sequence), 1 => Just(SegmentKind::Set)];
    vec((kind, vec(asn, 1..6)), 0..4).prop_map(|segments| {
        let mut path = AsPathBuf::new();
        segments.iter().for_each(|(kind, asns)| path.push_segment(*kind, asns));
        path
    })
}

prop_compose! {
    fn attributes()(
        origin in 0u8..3,
        path in path(),
        next_hop in 0x0100_0000u32..0x7f00_0000,
        global in 1u128 << 125..1 << 126,
        link_local in option::of(any::<u64>()),
        med in option::of(any::<u32>()),
        communities in vec(any::<u32>().prop_map(Community), 0..5),
        extended in vec(any::<[u8; 8]>().prop_map(ExtendedCommunity), 0..3),
        large in vec(any::<[u8; 12]>().prop_map(LargeCommunity::from_octets), 0..3),
        unknown in vec((41u8..127, any::<bool>(), vec(any::<u8>(), 0..300)), 0..3),
    ) -> Attributes {
        let link_local = link_local.map(|low| Ipv6Addr::from(0xfe80 << 112 | u128::from(low)));
        let mut editor = Attributes::builder();
        editor.origin(Origin::from_octet(origin).expect("one of three")).as_path(path.as_path());
        editor.ipv4_next_hop(Ipv4Addr::from(next_hop));
        editor.ipv6_next_hop(Some(Ipv6NextHop { global: Ipv6Addr::from(global), link_local }));
        editor.med(med).local_pref(Some(100)).communities(&communities).extended_communities(&extended);
        editor.large_communities(&large);
        for (code, is_transitive, value) in unknown {
            let flags = [AttributeFlags::OPTIONAL_NON_TRANSITIVE, AttributeFlags::OPTIONAL_TRANSITIVE];
            editor.set(AttributeCode(code), flags[usize::from(is_transitive)], &value);
        }
        editor.finish()
    }
}

/// Routes as a session carries them: without path identifiers where it has none.
fn carried(routes: &[Nlri], params: &SessionParams) -> Vec<Nlri> {
    let mut carried: Vec<Nlri> = routes
        .iter()
        .map(|nlri| match params.add_path_send.has(nlri.prefix.afi()) {
            true => *nlri,
            false => Nlri::new(nlri.prefix),
        })
        .collect();
    carried.sort_by_key(|nlri| nlri.prefix.afi());
    carried
}

fn read(message: &[u8], params: &SessionParams) -> Update {
    match Message::decode(message, params) {
        Ok((Message::Update(update), [])) => update,
        other => panic!("{other:?}"),
    }
}

/// What any peer may see of `attributes`.
fn outside(attributes: &Attributes, has_ipv4: bool, params: &SessionParams) -> Attributes {
    let mut editor = attributes.edit();
    if params.external && !params.confederation {
        editor.local_pref(None);
    }
    if !has_ipv4 {
        editor.remove(AttributeCode::NEXT_HOP);
    }
    editor.finish()
}

/// AS paths are equal as paths: neighbouring sequences may have become one.
fn flat(attributes: &Attributes) -> (Vec<(u8, Vec<Asn>)>, Attributes) {
    let mut segments: Vec<(u8, Vec<Asn>)> = Vec::new();
    for segment in attributes.as_path().segments() {
        match segments.last_mut() {
            Some((2, last)) if segment.kind == SegmentKind::Sequence => last.extend(segment.asns()),
            _ => segments.push((segment.kind.octet(), segment.asns().collect())),
        }
    }
    let mut editor = attributes.edit();
    editor.remove(AttributeCode::AS_PATH);
    (segments, editor.finish())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn what_is_built_is_read_and_written_again_octet_for_octet(
        params in mirror(),
        attributes in attributes(),
        announced in btree_set(nlri(), 0..40),
        withdrawn in btree_set(nlri(), 0..40),
    ) {
        let announced: Vec<Nlri> = announced.into_iter().collect();
        let withdrawn: Vec<Nlri> = withdrawn.into_iter().collect();
        let messages = encode_updates(Some(&attributes), &announced, &withdrawn, &params).expect("fits");
        let mut back = Update::default();
        for octets in &messages {
            let (found, rest) = frame(octets, &params).expect("a sound header");
            prop_assert!(rest.is_empty());
            let view = UpdateView::decode(found.body(), &params).expect("a sound body");
            let mut written = Vec::new();
            view.encode(&mut written);
            prop_assert_eq!(&written, octets);
            let update = read(octets, &params);
            prop_assert_eq!(&update.problems, &[]);
            if let Some(found) = &update.attributes {
                let has_ipv4 = update.announced[0].prefix.afi() == Afi::Ipv4;
                let mut expected = outside(&attributes, has_ipv4, &params);
                if has_ipv4 {
                    expected = { let mut editor = expected.edit(); editor.ipv6_next_hop(None); editor.finish() };
                }
                if params.four_octet_as {
                    prop_assert_eq!(found, &expected);
                } else {
                    prop_assert_eq!(flat(found), flat(&expected));
                }
            }
            // One message again, to the octet, if nothing had to be put together from two-octet numbers.
            if params.four_octet_as {
                prop_assert_eq!(&update.encode(&params).expect("it came in one"), octets);
            }
            back.announced.extend(update.announced);
            back.withdrawn.extend(update.withdrawn);
        }
        prop_assert_eq!(back.announced, carried(&announced, &params));
        prop_assert_eq!(back.withdrawn, carried(&withdrawn, &params));
    }

    #[test]
    fn the_portable_form_comes_back(attributes in attributes()) {
        prop_assert_eq!(Attributes::decode(&attributes.encode()), Ok(attributes.clone()));
        prop_assert_eq!(attributes.edit().finish(), attributes);
    }

    #[test]
    fn unknown_attributes_are_sent_on_as_they_came(attributes in attributes()) {
        let onward = attributes.to_forward();
        let known = |code: AttributeCode| code.0 < 41;
        let mut expected = Vec::new();
        for mut attribute in attributes.iter() {
            if known(attribute.code) || attribute.flags.is_transitive() {
                attribute.flags.0 |= if known(attribute.code) { 0 } else { AttributeFlags::PARTIAL };
                attribute.encode(&mut expected);
            }
        }
        prop_assert_eq!(onward.as_octets(), expected);
    }

    #[test]
    fn any_octets_are_read_or_refused(params in session(), octets in vec(any::<u8>(), 0..400)) {
        let _ = Update::decode(&octets, &params);
        let _ = Open::decode(&octets);
        let _ = Attributes::decode(&octets);
        let _ = Message::decode(&octets, &params);
    }

    /// Octets that are nearly an UPDATE: whatever is accepted is sound to the next reader.
    #[test]
    fn a_damaged_update_is_refused_or_repaired(
        params in mirror(),
        attributes in attributes(),
        announced in btree_set(nlri(), 1..10),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let announced: Vec<Nlri> = announced.into_iter().collect();
        for octets in encode_updates(Some(&attributes), &announced, &[], &params).expect("fits") {
            let mut body = octets[19..].to_vec();
            for (at, octet) in &damage {
                let at = at.index(body.len());
                body[at] = *octet;
            }
            let Ok(update) = Update::decode(&body, &params) else { continue };
            let messages = encode_updates(
                update.attributes.as_ref().map(Attributes::to_forward).as_ref(),
                &update.announced,
                &update.withdrawn,
                &params,
            );
            for octets in messages.into_iter().flatten() {
                let onward = read(&octets, &params);
                prop_assert_eq!(&onward.problems, &[]);
            }
        }
    }
}
