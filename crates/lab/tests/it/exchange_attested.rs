//! Members that attest: what they sign for all at once, what becomes of forged and stripped routes, and what shows.
//!
//! KCX-15: members' own routes, a customer's chain, a hijack, a stripped and a pasted attestation, a member without
//! keys, joins, leaves, changed records, late verdicts: valid, gap, unattested, invalid by rule; tables equal the
//! plaintext reference with the same verdicts; equal messages whoever may have a route.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::common::attested::{
    ATTRIBUTE, CUSTOMER, LEGACY, SEED, amiss, announcer, customers_route, five, own, p, rest, setup, started, value,
    verdicts, with_value,
};
use crate::common::{nlri, policy, route};
use wayleave_attestation::chain::{Attestation, Next};
use wayleave_attestation::pipeline::policy::VerdictClass;
use wayleave_attestation::pki::{View, Vrp};
use wayleave_bgp::Attributes;
use wayleave_core::{Prefix, VerdictKind};
use wayleave_lab::sim::attestation::{attest_ring, registered_key};
use wayleave_lab::sim::bad::Shape;
use wayleave_lab::sim::{Node, PARTIES, RS_ASN, Setup, Sim, member_asn};
use wayleave_route_server::oracle::{Offer, Oracle};
use wayleave_route_server::policy::validate::Martians;

fn without_value(route: &Attributes) -> Attributes {
    let mut edit = route.edit();
    edit.remove(ATTRIBUTE);
    edit.finish()
}

#[test]
fn what_a_member_originates_is_valid_at_members_that_attest_and_passes_those_that_do_not() {
    let mut sim = five();
    sim.announce(1, &[nlri(&own(1))], &route(1, &[], &[]));
    rest(&mut sim);
    for slot in 2..5 {
        assert_eq!(announcer(&sim, slot, &own(1)), Some(member_asn(1)));
        assert_eq!(verdicts(&mut sim, slot, &own(1)), BTreeMap::from([(1, Some(VerdictKind::Valid))]));
        // The receiver's own opening stands in it, so that its router's other sessions can extend it.
        let value = value(&sim.table(slot)[&p(&own(1))]).expect("attested");
        let attestation = Attestation::decode(&value).expect("well formed");
        let leaf = attestation.last_hop().expect("a hop").next.leaf().expect("opened");
        let key = attest_ring(SEED, member_asn(slot)).pairs[0].leaf_key();
        assert!(leaf.keys().any(|(suite, named)| suite == key.suite && *named == key.key));
    }
    // A member without attestation hands on what it got, which is for nobody in particular.
    let legacy = value(&sim.table(LEGACY)[&p(&own(1))]).expect("attested");
    let attestation = Attestation::decode(&legacy).expect("well formed");
    assert!(matches!(attestation.last_hop().expect("a hop").next, Next::Directory));
    assert_eq!(verdicts(&mut sim, LEGACY, &own(1)), BTreeMap::from([(1, None)]));
}

#[test]
fn forged_hijacked_stripped_and_pasted_routes_lose_against_proved_ones_that_are_longer() {
    let mut sim = five();
    sim.announce(1, &[nlri(&own(1))], &route(1, &[member_asn(1).0; 3], &[]));
    sim.announce(2, &[nlri(&own(2))], &route(2, &[], &[]));
    // A hijack; a route whose origin always attests, without its attestation; and one with another prefix's.
    sim.announce(LEGACY, &[nlri(&own(1))], &route(LEGACY, &[], &[]));
    sim.announce(LEGACY, &[nlri(&own(2))], &route(LEGACY, &[member_asn(2).0], &[]));
    rest(&mut sim);
    for slot in [3, 4] {
        assert_eq!(announcer(&sim, slot, &own(1)), Some(member_asn(1)));
        let found = verdicts(&mut sim, slot, &own(1));
        assert_eq!(found[&LEGACY], Some(VerdictKind::Invalid));
        assert_eq!(found[&1], Some(VerdictKind::Valid));
        assert_eq!(announcer(&sim, slot, &own(2)), Some(member_asn(2)));
    }
    assert_eq!(announcer(&sim, LEGACY, &own(2)), Some(member_asn(2)), "it believes the shortest");
    sim.withdraw(2, &[nlri(&own(2))]);
    let stolen = value(&sim.table(LEGACY)[&p(&own(1))]).expect("attested");
    let pasted = with_value(&route(LEGACY, &[member_asn(1).0; 4], &[]), &stolen);
    sim.announce(LEGACY, &[nlri("20.1.7.0/24")], &pasted);
    rest(&mut sim);
    for slot in [3, 4] {
        for prefix in [own(2).as_str(), "20.1.7.0/24"] {
            assert_eq!(verdicts(&mut sim, slot, prefix)[&LEGACY], Some(VerdictKind::Invalid), "{prefix}");
            assert_eq!(announcer(&sim, slot, prefix), None, "{prefix}");
        }
    }
    assert!(announcer(&sim, LEGACY, "20.1.7.0/24").is_none() && sim.attestation_events.len() >= 4);
}

#[test]
fn a_legacy_member_that_passes_a_chain_on_leaves_a_gap_and_claims_nothing_of_its_own() {
    let mut sim = five();
    sim.announce(LEGACY, &[nlri(&own(LEGACY))], &route(LEGACY, &[], &[]));
    sim.announce(1, &[nlri(&own(1))], &route(1, &[], &[]));
    rest(&mut sim);
    assert_eq!(verdicts(&mut sim, 3, &own(LEGACY))[&LEGACY], Some(VerdictKind::Unattested));
    assert_eq!(announcer(&sim, 3, &own(LEGACY)), Some(member_asn(LEGACY)));
    let passed = value(&sim.table(LEGACY)[&p(&own(1))]).expect("attested");
    sim.withdraw(1, &[nlri(&own(1))]);
    sim.announce(LEGACY, &[nlri(&own(1))], &with_value(&route(LEGACY, &[member_asn(1).0], &[]), &passed));
    rest(&mut sim);
    assert_eq!(verdicts(&mut sim, 3, &own(1))[&LEGACY], Some(VerdictKind::Gap));
}

#[test]
fn a_customers_chain_is_extended_for_all_members_and_a_false_one_is_not_announced() {
    let mut sim = five();
    let now = sim.now().unix.secs();
    sim.announce(1, &[nlri("30.1.0.0/16")], &customers_route(1, "30.1.0.0/16", now));
    let pasted = customers_route(1, "30.2.0.0/16", now);
    sim.announce(1, &[nlri("30.3.0.0/16")], &pasted);
    rest(&mut sim);
    assert_eq!(verdicts(&mut sim, 3, "30.1.0.0/16")[&1], Some(VerdictKind::Valid));
    let why = sim.member(3).expect("it runs").why(p("30.1.0.0/16"));
    let explained = sim.member(3).expect("it runs").explain(&why.routes[0].route.handle.0, p("30.1.0.0/16"));
    let explained = explained.expect("known");
    let hops: Vec<(u32, bool)> = explained.hops.iter().map(|hop| (hop.asn.0, hop.proved)).collect();
    assert_eq!((hops.as_slice(), explained.class), (&[(CUSTOMER, true), (65_001, true)][..], VerdictClass::Valid));
    for slot in [LEGACY, 2, 3, 4] {
        assert_eq!(announcer(&sim, slot, "30.3.0.0/16"), None, "member {slot}");
    }
    let sent = sim.member(1).expect("it runs").sent(p("30.3.0.0/16"));
    assert!(sent[0].outcome.contains("not announced"), "{}", sent[0].outcome);
}

#[test]
fn whoever_joins_gets_routes_that_are_signed_for_it_too() {
    let mut attesting = setup(4, &[1, 2, 3, 4, 5]);
    attesting.seed = SEED;
    let mut sim = started(attesting);
    sim.announce(1, &[nlri(&own(1))], &route(1, &[], &[]));
    rest(&mut sim);
    let before = value(&sim.table(2)[&p(&own(1))]).expect("attested");
    for expected in [4, 5] {
        assert_eq!(sim.join(), expected);
        rest(&mut sim);
        for slot in 2..=expected {
            assert_eq!(verdicts(&mut sim, slot, &own(1))[&1], Some(VerdictKind::Valid), "member {slot}");
        }
    }
    assert_ne!(value(&sim.table(2)[&p(&own(1))]), Some(before), "it was signed again");
    sim.leave(3);
    rest(&mut sim);
    for slot in [2, 4, 5] {
        assert_eq!(verdicts(&mut sim, slot, &own(1))[&1], Some(VerdictKind::Valid), "member {slot}");
    }
    // No route was ever lost over it, nor an invalid one seen.
    assert!(amiss(&sim).is_empty(), "{:?}", amiss(&sim));
}

#[test]
fn verdicts_are_looked_at_again_when_records_change() {
    let mut sim = started(setup(4, &[1, 2, 3]));
    for slot in [1, 2] {
        sim.announce(slot, &[nlri(&own(slot))], &route(slot, &[], &[]));
    }
    rest(&mut sim);
    let mut other = View::new(2);
    for asn in (1..4).map(member_asn) {
        other.add_key(asn, registered_key(SEED, asn));
    }
    other.add_vrp(Vrp { prefix: p("20.0.0.0/8"), max_length: 24, asn: member_asn(2) });
    sim.set_view(other);
    rest(&mut sim);
    assert_eq!(announcer(&sim, 3, &own(1)), None, "it is another's now");
    assert_eq!(announcer(&sim, 3, &own(2)), Some(member_asn(2)));
    sim.set_view({
        let mut view = View::new(3);
        for asn in (1..4).map(member_asn) {
            view.add_key(asn, registered_key(SEED, asn));
        }
        view.add_vrp(Vrp { prefix: p(&own(1)), max_length: 24, asn: member_asn(1) });
        view.add_vrp(Vrp { prefix: p(&own(2)), max_length: 24, asn: member_asn(2) });
        view
    });
    rest(&mut sim);
    assert_eq!(announcer(&sim, 3, &own(1)), Some(member_asn(1)));
}

#[test]
fn a_verdict_that_comes_late_changes_the_choice_and_sends_nothing() {
    let mut sim = five();
    sim.announce(LEGACY, &[nlri(&own(1))], &route(LEGACY, &[member_asn(1).0], &[]));
    rest(&mut sim);
    assert_eq!(announcer(&sim, 3, &own(1)), Some(member_asn(LEGACY)), "nothing else is there");
    // The announcer signs at once, receivers come to it late.
    sim.announce(1, &[nlri(&own(1))], &route(1, &[], &[]));
    while sim.member(1).expect("it runs").sent(p(&own(1))).is_empty()
        || sim.member(1).expect("it runs").sent(p(&own(1)))[0].octets == 0
    {
        sim.step(Duration::from_secs(1));
    }
    sim.hold_jobs(&[1, 2, 3, 4]);
    for _ in 0..3_000 {
        sim.step(Duration::from_millis(200));
    }
    assert_eq!(announcer(&sim, 3, &own(1)), Some(member_asn(LEGACY)), "what is not validated is not used");
    assert!(sim.member(3).expect("it runs").status().validating > 0);
    sim.recording = Some(Vec::new());
    sim.release_jobs();
    rest(&mut sim);
    assert_eq!(announcer(&sim, 3, &own(1)), Some(member_asn(1)));
    let said: Vec<Shape> = sim.recording.take().expect("it records").iter().map(|frame| frame.shape()).collect();
    let from_members = said.iter().filter(|shape| matches!(shape.from, Node::Member(_)));
    assert_eq!(from_members.count(), 0, "{said:?}");
}

#[test]
fn what_could_not_become_best_is_not_validated() {
    let mut sim = five();
    sim.announce(1, &[nlri(&own(1))], &route(1, &[], &[]));
    rest(&mut sim);
    sim.announce(LEGACY, &[nlri(&own(1))], &route(LEGACY, &[64_511, 64_512, 64_513], &[]));
    rest(&mut sim);
    assert_eq!(verdicts(&mut sim, 3, &own(1)), BTreeMap::from([(LEGACY, None), (1, Some(VerdictKind::Valid))]));
    // It could once the better one is gone.
    sim.withdraw(1, &[nlri(&own(1))]);
    rest(&mut sim);
    assert_eq!(verdicts(&mut sim, 3, &own(1)), BTreeMap::from([(LEGACY, Some(VerdictKind::Invalid))]));
    // With a rule by which a verdict lifts a route, it could at any time.
    sim.set_policy(4, policy("[[rule]]\ndirection = \"import\"\nverdict = \"gap\"\nclass = 250\n"));
    sim.announce(1, &[nlri(&own(1))], &route(1, &[], &[]));
    rest(&mut sim);
    assert_eq!(verdicts(&mut sim, 3, &own(1))[&1], Some(VerdictKind::Valid));
    assert_eq!(verdicts(&mut sim, 4, &own(1))[&LEGACY], Some(VerdictKind::Invalid));
}

/// All that the parties see while members announce, and whether the routes came.
fn seen(communities: &[&str], later_rules: &str, seed: u64) -> (Vec<Shape>, usize) {
    let mut sim = started(Setup { seed, ..setup(6, &[1, 2, 3, 4, 5]) });
    sim.recording = Some(Vec::new());
    for slot in 1..5 {
        sim.announce(slot, &[nlri(&own(slot))], &route(slot, &[], communities));
        sim.announce(slot, &[nlri(&own(slot)), nlri(&format!("20.{slot}.1.0/24"))], &route(slot, &[], communities));
    }
    rest(&mut sim);
    let came = (0..6).map(|slot| sim.table(slot).len()).sum();
    for slot in 0..6 {
        sim.set_policy(slot, policy(later_rules));
    }
    rest(&mut sim);
    sim.join();
    rest(&mut sim);
    for node in [Node::Member(2), PARTIES[0]] {
        sim.kill(node);
        for _ in 0..10 {
            sim.step(Duration::from_secs(1));
        }
        sim.start(node);
        rest(&mut sim);
    }
    (sim.recording.take().expect("it records").iter().map(|frame| frame.shape()).collect(), came)
}

#[test]
fn an_attested_route_looks_the_same_whether_one_may_have_it_or_all() {
    // The later rules concern every route.
    let hide = "[[rule]]\ndirection = \"export\"\nhide_from = [\"65005\", \"65000\"]\n";
    let other = "[[rule]]\ndirection = \"export\"\nignore_communities = true\nannounce = [\"65005\"]\n";
    let (all, came) = seen(&[], hide, 51);
    let (one, came_to_one) = seen(&["64496:0:0", "64496:1:65000"], other, 51);
    assert!(came > came_to_one && came_to_one > 0, "{came} and {came_to_one}");
    assert_eq!(all, one);
    let (none, _) = seen(&["64496:0:0"], other, 51);
    assert_eq!(all, none);
}

/// What is announced, and what every member that attests must find of it.
fn random_route(sim: &mut Sim, slot: u32) -> (String, Attributes, VerdictKind) {
    let owner = u32::try_from(sim.choose(5)).expect("few");
    let prefix = own(owner);
    let prepends = sim.choose(3);
    match sim.choose(4) {
        // Its own prefix, signed where it attests.
        0 | 1 => {
            let verdict = if slot == LEGACY { VerdictKind::Unattested } else { VerdictKind::Valid };
            (own(slot), route(slot, &vec![member_asn(slot).0; prepends], &[]), verdict)
        }
        // A path that ends at the owner, without an attestation.
        2 if owner != slot => {
            let verdict = if owner == 2 { VerdictKind::Invalid } else { VerdictKind::Unattested };
            let tail: Vec<u32> = std::iter::repeat_n(64_510, prepends).chain([member_asn(owner).0]).collect();
            (prefix, route(slot, &tail, &[]), verdict)
        }
        // A path that ends at somebody else.
        _ => (prefix, route(slot, &vec![64_511; 1 + prepends], &[]), VerdictKind::Invalid),
    }
}

#[test]
fn tables_equal_the_reference_with_the_same_verdicts() {
    for seed in 0..6 * crate::common::factor() as u64 {
        let tick = if seed % 2 == 0 { Duration::from_millis(50) } else { Duration::ZERO };
        let mut sim = started(Setup { seed, tick, ..setup(5, &[1, 2, 3, 4]) });
        let martians = Martians::AllowDocumentation;
        let mut oracle = Oracle::new(sim.set.clone(), RS_ASN, BTreeMap::new()).with_martians(martians);
        oracle.set_order(sim.order_key(PARTIES[0]).expect("the parties have agreed on an order"));
        let rules = [
            "",
            "[[rule]]\ndirection = \"import\"\nverdict = \"valid\"\nlocal_pref = 200\n",
            "[[rule]]\ndirection = \"import\"\nverdict = [\"unattested\"]\nclass = 20\n",
            "[[rule]]\ndirection = \"import\"\nverdict = \"unattested\"\nreject = true\n",
        ];
        for slot in 1..5u32 {
            let rules = policy(rules[(slot as usize + seed as usize) % 4]);
            sim.set_policy(slot, rules.clone());
            oracle.set_policy(slot, rules);
        }
        for _ in 0..40 {
            let slot = u32::try_from(sim.choose(5)).expect("few");
            let (prefix, attributes, verdict) = random_route(&mut sim, slot);
            if sim.choose(4) == 0 {
                sim.withdraw(slot, &[nlri(&prefix)]);
                oracle.withdraw(slot, &[nlri(&prefix)]);
            } else {
                sim.announce(slot, &[nlri(&prefix)], &attributes);
                let passes = slot == LEGACY || verdict != VerdictKind::Invalid;
                // What its own proxy finds false is not announced; of its own routes it finds nothing.
                let is_own = attributes.as_path().asns().all(|asn| asn == member_asn(slot));
                if passes || is_own {
                    oracle.announce_with_verdict(slot, &[nlri(&prefix)], &attributes, verdict);
                } else {
                    oracle.withdraw(slot, &[nlri(&prefix)]);
                }
            }
            let steps = sim.choose(60);
            for _ in 0..steps {
                sim.step(Duration::from_secs(5));
            }
        }
        rest(&mut sim);
        for slot in 1..5 {
            let have: BTreeMap<Prefix, Attributes> =
                sim.table(slot).iter().map(|(prefix, route)| (*prefix, without_value(route))).collect();
            let expected: BTreeMap<Prefix, Attributes> =
                oracle.table(slot).into_iter().map(|(prefix, (_, route))| (prefix, route)).collect();
            assert_eq!(have.keys().collect::<BTreeSet<_>>(), expected.keys().collect(), "seed {seed}, member {slot}");
            if !tick.is_zero() {
                assert_eq!(have, expected, "seed {seed}, member {slot}");
                continue;
            }
            // Without a tick a ranking leaves before validation has a result, so that a route that was validated late
            // loses to one of its own class. Any route of the best class is right then.
            for (prefix, route) in &have {
                let offers = oracle.offers(slot, *prefix);
                let best = offers.iter().map(|offer| offer.class).max();
                let is_best = |offer: &Offer| Some(offer.class) == best && offer.attributes == *route;
                assert!(offers.iter().any(is_best), "seed {seed}, member {slot}, {prefix}: {route:?}");
            }
        }
    }
}
