//! What communities change in a route: for all receivers at the announcer, for one at its own proxy or not at all.

use crate::common::{RS, policy, prefix, set, with_communities};
use wayleave_bgp::{Attributes, Community};
use wayleave_core::Asn;
use wayleave_route_server::policy::communities::{CommunityReason, Controls};
use wayleave_route_server::policy::treatments::{Treatment, Treatments, prepend, prepended, received};
use wayleave_route_server::policy::{Decision, Exported, PerPeer, export_decisions, export_set, sealed_for};

const OWN: u32 = 64_497;

fn path(attributes: &Attributes) -> Vec<u32> {
    attributes.as_path().asns().map(|asn| asn.0).collect()
}

/// The route as the member of `receiver` has it, through both proxies.
fn at(receiver: u32, communities: &[&str], per_peer: PerPeer) -> Attributes {
    let route = prepended(with_communities(&[OWN, 65_000], 0, communities), RS);
    let (route, times) = received(sealed_for(&route, RS, per_peer), RS, Asn(receiver));
    prepend(route, times)
}

#[test]
fn what_goes_to_all_is_done_before_the_route_is_sealed() {
    for (communities, hops) in [
        (&["65501:64496"][..], 1),
        (&["64496:102:0"], 2),
        (&["rt:65503:64496"], 3),
        (&["64496:101:0", "65503:64496"], 3),
        (&["65501:64500"], 0),
    ] {
        let route = at(64_500, communities, PerPeer::Private);
        assert_eq!(path(&route), [vec![OWN; hops], vec![OWN, 65_000]].concat(), "{communities:?}");
        assert_eq!(route, at(64_501, communities, PerPeer::Readable), "{communities:?}");
    }
    for (community, added) in [("64496:65281:0", Community::NO_EXPORT), ("65282:64496", Community::NO_ADVERTISE)] {
        let route = at(64_500, &["64511:1", community], PerPeer::Private);
        assert_eq!(route.communities().collect::<Vec<_>>(), [Community::new(64_511, 1), added]);
        let members = set(&[OWN, 64_500]);
        let own = with_communities(&[OWN], 0, &[community]);
        let export = export_set(prefix("198.51.100.0/24"), &own, 0, &members, RS, &policy(""));
        assert_eq!(export.count(), 1, "it is added for receivers, and does not keep the route from them");
    }
}

#[test]
fn what_goes_to_one_peer_is_not_in_the_object_unless_its_announcer_lets_all_read_it() {
    let communities = ["64496:103:64500", "65281:64501", "64496:101:0", "0:64502", "64496:9:9", "64511:1"];
    let route = prepended(with_communities(&[OWN], 0, &communities), RS);
    let private = sealed_for(&route, RS, PerPeer::Private);
    assert_eq!(private, with_communities(&[OWN, OWN], 0, &["64511:1"]));
    for receiver in [64_500, 64_501] {
        assert_eq!(
            at(receiver, &communities, PerPeer::Private),
            with_communities(&[OWN, OWN, 65_000], 0, &["64511:1"])
        );
    }
    let readable = sealed_for(&route, RS, PerPeer::Readable);
    assert_eq!(
        readable,
        with_communities(&[OWN, OWN], 0, &["64496:103:64500", "65281:64501", "64496:101:0", "64511:1"])
    );
    let three = with_communities(&[OWN, OWN, OWN, OWN, 65_000], 0, &["64511:1"]);
    assert_eq!(at(64_500, &communities, PerPeer::Readable), three, "the larger number, and not the sum");
    let export = with_communities(&[OWN, OWN, 65_000], 0, &["64511:1", "no-export"]);
    assert_eq!(at(64_501, &communities, PerPeer::Readable), export);
    assert_eq!(at(64_503, &communities, PerPeer::Readable), with_communities(&[OWN, OWN, 65_000], 0, &["64511:1"]));
}

#[test]
fn who_was_to_have_no_export_alone_does_not_get_the_route_without_it() {
    let members = set(&[OWN, 64_500, 64_501]);
    let own = with_communities(&[OWN], 0, &["64496:65281:64500", "64496:103:64501"]);
    let decide = |text: &str| {
        let decided = export_decisions(prefix("198.51.100.0/24"), &own, 0, &members, RS, &policy(text));
        decided.into_iter().map(|(_, decision)| decision).collect::<Vec<_>>()
    };
    let by = |because| Decision::Policy(Exported::Communities(because));
    let open = by(CommunityReason::Unrestricted);
    assert_eq!(decide(""), [by(CommunityReason::Restricted), open]);
    assert_eq!(decide("communities = { per_peer = 'readable' }"), [open, open]);
    assert!(decide("")[0].to_string().contains("per_peer"), "it says what to do");
    // A rule overrides who may have it, and not that nobody gets it without what is meant for him.
    let ignore = "rule = [{ direction = 'export', announce = 'all', ignore_communities = true }]";
    let by_rule = Decision::Policy(Exported::PermittedByRule(0));
    assert_eq!(decide(ignore), [by(CommunityReason::Restricted), by_rule]);
    assert_eq!(decide(&format!("communities = {{ per_peer = 'readable' }}\n{ignore}")), [by_rule, by_rule]);
    let twice = with_communities(&[OWN], 0, &["65281:64496", "64496:65281:64500"]);
    let export = export_set(prefix("198.51.100.0/24"), &twice, 0, &members, RS, &policy(""));
    assert_eq!(export.count(), 2, "what all get need not be done for one");
    assert_eq!(Controls::read(&own, RS).decide(Asn(64_500)), CommunityReason::Unrestricted);
}

#[test]
fn a_receiver_has_none_of_the_exchanges_communities_whatever_the_announcers_proxy_sealed() {
    let hostile = with_communities(
        &[OWN],
        0,
        &["0:64500", "64496:64501", "64496:0:64500", "64496:1101:8", "rt:64496:7", "ro:0:5", "65511:64501", "64511:1"],
    );
    let (route, times) = received(hostile, RS, Asn(64_500));
    assert_eq!((route, times), (with_communities(&[OWN], 0, &["64511:1"]), 0));
    let untouched = with_communities(&[OWN], 0, &["64511:1"]);
    assert_eq!(received(untouched.clone(), RS, Asn(64_500)), (untouched, 0));
}

#[test]
fn treatments_are_said_in_words() {
    let words =
        |communities: &[&str]| Treatments::read(&with_communities(&[OWN], 0, communities), RS).to_all().to_string();
    assert_eq!(words(&["64496:102:0", "65281:64496"]), "the path is prepended twice, NO_EXPORT is added");
    assert_eq!(words(&["64496:102:64500"]), "");
    assert_eq!(Treatments::read(&with_communities(&[OWN], 0, &["64496:3:0"]), RS).to_all(), Treatment::default());
    let empty = with_communities(&[], 0, &["64496:103:0"]);
    assert_eq!(prepended(empty.clone(), RS), empty, "a path without a first AS is left as it is, to be refused");
}
