//! Communities at the route server: what each form means, which goes first, what is removed.

use crate::common::{RS, attributes, policy, prefix, set, set_communities, with_communities};
use proptest::prelude::*;
use wayleave_bgp::{Attributes, Community, ExtendedCommunity, LargeCommunity};
use wayleave_core::Asn;
use wayleave_route_server::policy::communities::{
    CommunityReason, Control, Controls, of_extended, of_large, of_standard, strip,
};
use wayleave_route_server::policy::{Policy, export_set, sealed_attributes};

/// A member with a four-octet AS number.
const WIDE: u32 = 4_200_000_001;

fn decide(rs: Asn, communities: &[&str], receiver: u32) -> CommunityReason {
    Controls::read(&with_communities(&[64497], 0, communities), rs).decide(Asn(receiver))
}

#[test]
fn every_form_means_what_the_table_says() {
    use Control::{All, Allow, Deny, None as Nobody};
    let peer = Asn(64500);
    let standard = |text: &str| of_standard(text.parse().expect("a community"), RS);
    assert_eq!(standard("0:64500"), Some(Deny(peer)));
    assert_eq!(standard("64496:64500"), Some(Allow(peer)));
    assert_eq!(standard("0:64496"), Some(Nobody));
    assert_eq!(standard("64496:64496"), Some(All));
    for other in ["64497:64500", "65535:65281", "no-export", "64500:64496", "64500:0"] {
        assert_eq!(standard(other), None, "{other}");
    }
    let large = |text: &str| of_large(text.parse().expect("a community"), RS);
    assert_eq!(large("64496:0:64500"), Some(Deny(peer)));
    assert_eq!(large("64496:1:64500"), Some(Allow(peer)));
    assert_eq!(large("64496:0:0"), Some(Nobody));
    assert_eq!(large("64496:1:0"), Some(All));
    assert_eq!(large("64496:0:4200000001"), Some(Deny(Asn(WIDE))));
    for other in ["64497:0:64500", "0:64496:64500", "64497:101:64500"] {
        assert_eq!(large(other), None, "{other}");
    }
    for own in ["64496:2:64500", "64496:1101:5", "64496:1000:1", "64496:104:0"] {
        assert_eq!(large(own), Some(Control::Unknown), "{own}");
    }
    let extended = |text: &str| of_extended(text.parse().expect("a community"), RS);
    for kind in ["rt", "ro"] {
        assert_eq!(extended(&format!("{kind}:0:64500")), Some(Deny(peer)));
        assert_eq!(extended(&format!("{kind}:64496:64500")), Some(Allow(peer)));
        assert_eq!(extended(&format!("{kind}:0:64496")), Some(Nobody));
        assert_eq!(extended(&format!("{kind}:64496:0")), Some(Nobody));
        assert_eq!(extended(&format!("{kind}:64496:64496")), Some(All));
        assert_eq!(extended(&format!("{kind}:0:4200000001")), Some(Deny(Asn(WIDE))));
        assert_eq!(extended(&format!("{kind}:64496:4200000001")), Some(Allow(Asn(WIDE))));
        assert_eq!(extended(&format!("{kind}:64497:64500")), None);
    }
    for (number, times) in [(1u32, 1u8), (2, 2), (3, 3)] {
        let (all, one) = (Some(Control::Prepend(times, None)), Some(Control::Prepend(times, Some(peer))));
        assert_eq!(
            [standard(&format!("{}:64496", 65_500 + number)), large(&format!("64496:{}:0", 100 + number))],
            [all; 2]
        );
        assert_eq!(
            [standard(&format!("{}:64500", 65_510 + number)), large(&format!("64496:{}:64500", 100 + number))],
            [one; 2]
        );
        assert_eq!(extended(&format!("rt:{}:64496", 65_500 + number)), all);
        assert_eq!(extended(&format!("ro:{}:64500", 65_510 + number)), one);
        assert_eq!(standard(&format!("{}:64500", 65_500 + number)), None, "of another route server");
    }
    for (number, control) in [(65_281, Control::NoExport as fn(Option<Asn>) -> Control), (65_282, Control::NoAdvertise)]
    {
        for (all, one) in [
            (standard(&format!("{number}:64496")), standard(&format!("{number}:64500"))),
            (large(&format!("64496:{number}:0")), large(&format!("64496:{number}:64500"))),
            (extended(&format!("rt:{number}:64496")), extended(&format!("rt:{number}:64500"))),
        ] {
            assert_eq!((all, one), (Some(control(None)), Some(control(Some(peer)))), "{number}");
        }
    }
    assert_eq!(extended("raw:4002fbf00000fbf4"), None, "a non-transitive one is not for us");
    assert_eq!(extended("raw:0300fbf00000fbf4"), None, "nor is another type");
}

#[test]
fn a_four_octet_route_server_is_named_by_large_and_extended_forms_only() {
    let rs = Asn(4_200_000_000);
    let (low, high) = ((rs.0 & 0xffff) as u16, (rs.0 >> 16) as u16);
    assert_eq!(of_standard(Community::new(low, 64500), rs), None);
    assert_eq!(of_standard(Community::new(high, low), rs), None);
    assert_eq!(of_standard(Community::new(23456, 64500), rs), None);
    assert_eq!(of_standard(Community::new(0, 64500), rs), Some(Control::Deny(Asn(64500))));
    assert_eq!(of_large(LargeCommunity::new(rs.0, 1, WIDE), rs), Some(Control::Allow(Asn(WIDE))));
    assert_eq!(of_extended(ExtendedCommunity::route_target_as4(rs.0, 64500), rs), Some(Control::Allow(Asn(64500))));
    assert_eq!(of_extended(ExtendedCommunity::route_target_as4(rs.0, 0), rs), Some(Control::None));
    assert_eq!(of_extended(ExtendedCommunity::route_target_as4(0, 64500), rs), Some(Control::Deny(Asn(64500))));
    assert_eq!(of_extended(ExtendedCommunity::route_target(0, rs.0), rs), Some(Control::None));
}

#[test]
fn precedence_is_deny_then_allow_then_nobody_then_everybody() {
    let table: [(&[&str], u32, CommunityReason); 17] = [
        (&[], 64500, CommunityReason::Unrestricted),
        (&["64511:1", "no-export"], 64500, CommunityReason::Unrestricted),
        (&["0:64500"], 64500, CommunityReason::Denied),
        (&["0:64500"], 64501, CommunityReason::Unrestricted),
        (&["64496:64500"], 64500, CommunityReason::Allowed),
        (&["64496:64500"], 64501, CommunityReason::OnlyOthers),
        (&["0:64496"], 64500, CommunityReason::ToNobody),
        (&["64496:64496"], 64500, CommunityReason::ToEverybody),
        (&["0:64496", "64496:64500"], 64500, CommunityReason::Allowed),
        (&["0:64496", "64496:64500"], 64501, CommunityReason::ToNobody),
        (&["64496:64496", "0:64500"], 64500, CommunityReason::Denied),
        (&["64496:64496", "64496:64500"], 64501, CommunityReason::ToEverybody),
        (&["64496:64496", "0:64496"], 64500, CommunityReason::ToNobody),
        (&["0:64500", "64496:64500"], 64500, CommunityReason::Denied),
        (&["64496:64500", "64496:0:64500"], 64500, CommunityReason::Denied),
        (&["0:64496", "64496:1:64500"], 64500, CommunityReason::Allowed),
        (&["64496:64500", "64496:64496", "no-advertise"], 64500, CommunityReason::NoAdvertise),
    ];
    for (communities, receiver, because) in table {
        assert_eq!(decide(RS, communities, receiver), because, "{communities:?} to {receiver}");
    }
}

#[test]
fn the_kinds_of_communities_are_read_together() {
    assert_eq!(decide(RS, &["64496:0:0", "rt:64496:4200000001"], WIDE), CommunityReason::Allowed);
    assert_eq!(decide(RS, &["64496:0:0", "rt:64496:4200000001"], 64500), CommunityReason::ToNobody);
    assert_eq!(decide(RS, &["64496:1:4200000001", "ro:0:4200000001"], WIDE), CommunityReason::Denied);
}

#[test]
fn no_export_belongs_to_the_receiver_and_stays() {
    let route = with_communities(&[64497], 0, &["no-export", "65535:65284", "0:64500"]);
    assert_eq!(Controls::read(&route, RS).decide(Asn(64501)), CommunityReason::Unrestricted);
    let left: Vec<_> = strip(&route, RS).communities().collect();
    assert_eq!(left, [Community::NO_EXPORT, Community::new(65535, 65284)]);
}

#[test]
fn a_policy_that_names_an_as_covers_all_its_slots_and_no_dead_one() {
    let mut members = set(&[64497, 64500, 64501, 64500, 64500]);
    members.slots[3].active = false;
    let export = |communities: &[&str]| {
        let route = with_communities(&[64497], 0, communities);
        export_set(prefix("198.51.100.0/24"), &route, 0, &members, RS, &Policy::default())
    };
    assert_eq!(export(&[]).iter().collect::<Vec<_>>(), [1, 2, 4]);
    assert_eq!(export(&["0:64500"]).iter().collect::<Vec<_>>(), [2]);
    assert_eq!(export(&["64496:64500"]).iter().collect::<Vec<_>>(), [1, 4]);
    assert_eq!(export(&["0:64496"]).count(), 0);
    assert_eq!(export(&["64496:64497"]).count(), 0, "never the announcer's own slot");
}

#[test]
fn the_matrix_is_not_symmetric() {
    // P[receiver][route]: alpha hides from delta, delta announces to alpha only.
    let members = set(&[64497, 64498, 64500]);
    let column = |place: u8, communities: &[&str]| {
        let asn = members.slots[usize::from(place)].asn.0;
        let route = with_communities(&[asn], place, communities);
        export_set(prefix("198.51.100.0/24"), &route, place.into(), &members, RS, &Policy::default()).to_bools()
    };
    let columns = [column(0, &["0:64500"]), column(1, &[]), column(2, &["64496:1:64497"])];
    let matrix: Vec<Vec<bool>> =
        (0..3).map(|receiver| columns.iter().map(|column| column[receiver]).collect()).collect();
    assert_eq!(matrix, [[false, true, true], [true, false, false], [false, true, false]]);
}

#[test]
fn a_slot_that_does_not_exist_exports_to_nobody() {
    let members = set(&[64497, 64500]);
    let route = with_communities(&[64497], 0, &[]);
    assert_eq!(export_set(prefix("198.51.100.0/24"), &route, 9, &members, RS, &Policy::default()).count(), 0);
}

#[test]
fn export_sets_reach_past_one_word() {
    let mut members = set(&(0..200).map(|i| 60000 + i).collect::<Vec<u32>>());
    members.slots[130].active = false;
    let route = with_communities(&[60070], 70, &["0:60063", "0:60064", "0:60199"]);
    let export = export_set(prefix("198.51.100.0/24"), &route, 70, &members, RS, &Policy::default());
    let hidden: Vec<u32> = (0..200).filter(|slot| !export.contains(*slot)).collect();
    assert_eq!(hidden, [63, 64, 70, 130, 199]);
    assert_eq!((export.width(), export.count(), export.words().len()), (200, 195, 4));
    assert!(!export.contains(200) && !export.contains(u32::MAX));
}

#[test]
fn stripping_leaves_all_else_octet_for_octet() {
    let kept = ["64511:1", "no-export", "65501:64500", "64511:0:1", "rt:64511:5", "raw:430c000000000000"];
    let control = ["0:64500", "64496:64501", "64496:0:64502", "64496:1:0", "rt:0:64503", "ro:64496:64504", "64496:7:7"];
    let all: Vec<&str> = control.iter().chain(&kept).copied().collect();
    let mut editor = attributes(&[64497, 64511], 0);
    editor.med(Some(7));
    let mut with = editor.clone();
    set_communities(&mut with, &all);
    let mut without = editor;
    set_communities(&mut without, &kept);
    assert_eq!(strip(&with.finish(), RS), without.finish());
}

#[test]
fn stripping_what_is_all_control_removes_the_attribute() {
    let route = with_communities(&[64497], 0, &["0:64500", "64496:0:64502", "rt:0:64503"]);
    assert_eq!(strip(&route, RS), attributes(&[64497], 0).finish());
}

#[test]
fn a_route_without_control_is_stripped_of_nothing() {
    let route = with_communities(&[64497], 0, &["64511:1", "64511:64496:1", "rt:64511:64496"]);
    assert_eq!(strip(&route, RS).as_octets(), route.as_octets());
}

#[test]
fn a_sealed_route_has_no_link_local_next_hop() {
    let mut editor = attributes(&[64497], 0);
    let mut next_hop = editor.finish().ipv6_next_hop().expect("one");
    next_hop.link_local = Some("fe80::1".parse().expect("an address"));
    editor.ipv6_next_hop(Some(next_hop));
    assert_eq!(sealed_attributes(&editor.finish(), RS), attributes(&[64497], 0).finish());
}

fn any_control() -> impl Strategy<Value = String> {
    let peer = prop_oneof![Just(64497u32), Just(64500), Just(64501), Just(RS.0), Just(0), Just(64511)];
    (0..7u8, peer).prop_map(|(form, peer)| match form {
        0 => format!("0:{peer}"),
        1 => format!("64496:{peer}"),
        2 => format!("64496:0:{peer}"),
        3 => format!("64496:1:{peer}"),
        4 => format!("rt:0:{peer}"),
        5 => format!("ro:64496:{peer}"),
        _ => format!("64511:{peer}"),
    })
}

fn build(communities: &[String]) -> Attributes {
    with_communities(&[64497], 0, &communities.iter().map(String::as_str).collect::<Vec<_>>())
}

proptest! {
    #[test]
    fn order_and_repeats_change_nothing(
        communities in prop::collection::vec(any_control(), 0..8), at in any::<prop::sample::Index>()
    ) {
        let mut other: Vec<String> = communities.iter().rev().cloned().collect();
        if !other.is_empty() {
            other.push(other[at.index(other.len())].clone());
        }
        prop_assert_eq!(Controls::read(&build(&communities), RS), Controls::read(&build(&other), RS));
    }

    #[test]
    fn a_deny_by_name_always_holds(communities in prop::collection::vec(any_control(), 0..8)) {
        for deny in ["0:64500", "64496:0:64500", "rt:0:64500"] {
            let with: Vec<String> = communities.iter().cloned().chain([deny.to_owned()]).collect();
            prop_assert!(!Controls::read(&build(&with), RS).decide(Asn(64500)).permits());
        }
    }

    #[test]
    fn what_is_stripped_says_nothing_of_who_may_have_the_route(
        communities in prop::collection::vec(any_control(), 0..8)
    ) {
        let kept: Vec<String> = communities.iter().filter(|text| text.starts_with("64511:")).cloned().collect();
        let stripped = strip(&build(&communities), RS);
        prop_assert_eq!(&stripped, &build(&kept));
        prop_assert_eq!(Controls::read(&stripped, RS), Controls::default());
        prop_assert_eq!(strip(&stripped, RS), stripped);
    }
}

#[test]
fn communities_and_rules_must_both_permit() {
    let members = set(&[64497, 64498, 64499, 64500]);
    let export = |communities: &[&str], rules: &str| {
        let route = with_communities(&[64497], 0, communities);
        let export = export_set(prefix("198.51.100.0/24"), &route, 0, &members, RS, &policy(rules));
        export.iter().collect::<Vec<_>>()
    };
    let hide = "rule = [{ direction = 'export', hide_from = 64498 }]";
    let only = "rule = [{ direction = 'export', announce = [64498, 64499] }]";
    let ignore = "rule = [{ direction = 'export', announce = [64498, 64499], ignore_communities = true }]";
    assert_eq!(export(&[], hide), [2, 3]);
    assert_eq!(export(&["0:64499"], hide), [3]);
    assert_eq!(export(&["64496:64498"], hide), [0u32; 0]);
    assert_eq!(export(&["0:64499"], only), [1]);
    assert_eq!(export(&["0:64499"], ignore), [1, 2]);
    assert_eq!(export(&["no-advertise"], ignore), [0u32; 0], "no rule overrides NO_ADVERTISE");
}
