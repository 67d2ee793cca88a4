//! Route leaks by OTC, and routes that are taken away soon, at proxies whose sessions have a role and at those without.
//!
//! SIX, route leaks: a route with OTC (RFC 9234) of a router whose proxy has a role, and of one whose proxy looks at nothing: the first
//! is not announced, with why; the second is installed by no honest member, and each says why; routers of proxies with a role get OTC.
//! SIX, routes that their announcer makes longer for one receiver: communities in the object, or not at all; a hostile proxy that leaves the
//! exchange's communities in what it seals: no router of others sees one.
//! SIX, routes taken away soon: GRACEFUL_SHUTDOWN (RFC 8326) comes and goes: a receiver moves to the other route and back.

use std::collections::BTreeSet;

use wayleave_bgp::{Attributes, Community};
use wayleave_core::{Asn, Prefix};
use wayleave_lab::sim::{RS_ASN, Setup, Sim, member_asn};
use wayleave_route_server::member::MemberEvent;
use wayleave_route_server::object::ExportMode;

use crate::common::{LIMIT, in_both_modes, nlri, policy, route};

/// The AS that the routes with OTC came from.
const PROVIDER: u32 = 64_510;

fn exchange(export: ExportMode, with_role: &[u32]) -> Sim {
    let with_role: BTreeSet<u32> = with_role.iter().copied().collect();
    Sim::new(Setup { members: 3, seed: 83, export, with_role, ..Setup::default() })
}

fn rest(sim: &mut Sim) {
    assert!(sim.settle(LIMIT), "the exchange did not come to rest");
}

fn leak(slot: u32) -> Attributes {
    route(slot, &[PROVIDER], &[]).edit().only_to_customer(Some(Asn(PROVIDER))).finish()
}

fn prefix(text: &str) -> Prefix {
    text.parse().expect("a prefix")
}

/// What a member says of its router's route, and of the first other one, to a prefix.
fn outcomes(sim: &mut Sim, slot: u32, of: &str) -> [Option<String>; 2] {
    let why = serde_json::to_value(sim.member(slot).expect("it runs").why(prefix(of))).expect("JSON");
    ["own", "routes"].map(|kind| why[kind][0]["outcome"].as_str().map(str::to_owned))
}

in_both_modes!(a_route_with_otc_is_installed_by_nobody_whatever_the_announcers_proxy_checks);
fn a_route_with_otc_is_installed_by_nobody_whatever_the_announcers_proxy_checks(export: ExportMode) {
    let mut sim = exchange(export, &[0, 2]);
    sim.announce(0, &[nlri("20.0.0.0/16")], &leak(0));
    sim.announce(0, &[nlri("20.1.0.0/16")], &route(0, &[], &[]));
    // The hostile one: its proxy has no role, and announces whatever it is given.
    sim.announce(1, &[nlri("21.0.0.0/16")], &leak(1));
    sim.announce(1, &[nlri("21.1.0.0/16")], &route(1, &[], &[]));
    rest(&mut sim);
    let is_told = |(slot, event): &(u32, MemberEvent)| matches!(event, MemberEvent::NotAnnounced { prefix, why } if *slot == 0 && prefix == "20.0.0.0/16" && why.contains("OTC"));
    assert!(sim.member_events.iter().any(is_told), "{:?}", sim.member_events);
    let [own, _] = outcomes(&mut sim, 0, "20.0.0.0/16");
    let own = own.expect("its own route");
    assert!(own.starts_with("not announced, since no receiver would use it: it carries OTC of AS64510"), "{own}");
    let [own, _] = outcomes(&mut sim, 1, "21.0.0.0/16");
    assert!(own.expect("its own route").starts_with("announced, but every receiver refuses it"));
    for receiver in 0..3 {
        for leaked in ["20.0.0.0/16", "21.0.0.0/16"] {
            assert!(!sim.tables[&receiver].contains_key(&prefix(leaked)), "{leaked} at {receiver}");
        }
        assert_eq!(sim.alarms(receiver).count(), 0, "a leak is no misbehaviour of the protocol");
    }
    for receiver in [0, 2] {
        let [_, received] = outcomes(&mut sim, receiver, "21.0.0.0/16");
        let received = received.expect("a route");
        assert!(received.starts_with("not used: it carries OTC of AS64510"), "{received}");
    }
    // As a route server to its client (RFC 9234 section 5), but not where the session has no role.
    let with_otc = |route: Attributes| route.edit().only_to_customer(Some(RS_ASN)).finish();
    assert_eq!(sim.tables[&2][&prefix("20.1.0.0/16")], with_otc(route(0, &[], &[])));
    assert_eq!(sim.tables[&0][&prefix("21.1.0.0/16")], with_otc(route(1, &[], &[])));
    assert_eq!(sim.tables[&1][&prefix("20.1.0.0/16")], route(0, &[], &[]));
    // The router has the route from a customer now.
    sim.announce(0, &[nlri("20.0.0.0/16")], &route(0, &[64_520], &[]));
    rest(&mut sim);
    assert!(sim.tables[&1].contains_key(&prefix("20.0.0.0/16")));
    // And again from its provider: what was announced goes.
    sim.announce(0, &[nlri("20.0.0.0/16")], &leak(0));
    rest(&mut sim);
    assert!(!sim.tables[&1].contains_key(&prefix("20.0.0.0/16")));
}

in_both_modes!(a_receiver_moves_away_from_a_route_with_graceful_shutdown_and_back);
fn a_receiver_moves_away_from_a_route_with_graceful_shutdown_and_back(export: ExportMode) {
    let mut sim = exchange(export, &[]);
    let contested = nlri("20.0.0.0/16");
    let (short, long) = (route(0, &[], &[]), route(1, &[64_500, 64_501], &[]));
    let going = short.edit().communities(&[Community::GRACEFUL_SHUTDOWN]).finish();
    sim.announce(0, &[contested], &short);
    sim.announce(1, &[contested], &long);
    rest(&mut sim);
    assert_eq!(sim.tables[&2][&contested.prefix], short);
    sim.announce(0, &[contested], &going);
    rest(&mut sim);
    assert_eq!(sim.tables[&2][&contested.prefix], long);
    let why = serde_json::to_value(sim.member(2).expect("it runs").why(contested.prefix)).expect("JSON");
    let said = |of: &str| {
        let mut routes = why["routes"].as_array().into_iter().flatten();
        routes.any(|route| route["outcome"].as_str().is_some_and(|outcome| outcome.contains(of)))
    };
    assert!(said("it carries GRACEFUL_SHUTDOWN (65535:0)") && said("installed"), "{why:#}");
    // A member that has its own view of it.
    sim.set_policy(2, policy("ranking = { graceful_shutdown = false }"));
    rest(&mut sim);
    assert_eq!(sim.tables[&2][&contested.prefix], going);
    sim.set_policy(2, policy(""));
    rest(&mut sim);
    assert_eq!(sim.tables[&2][&contested.prefix], long);
    // Without another one it is used.
    sim.withdraw(1, &[contested]);
    rest(&mut sim);
    assert_eq!(sim.tables[&2][&contested.prefix], going);
    sim.announce(1, &[contested], &long);
    sim.announce(0, &[contested], &short);
    rest(&mut sim);
    assert_eq!(sim.tables[&2][&contested.prefix], short);
}

in_both_modes!(a_receiver_prepends_only_what_its_announcer_lets_it_read);
fn a_receiver_prepends_only_what_its_announcer_lets_it_read(export: ExportMode) {
    let mut sim = exchange(export, &[]);
    let contested = nlri("20.0.0.0/16");
    let rs = RS_ASN.0;
    let asked = [format!("{rs}:103:{}", member_asn(2).0), format!("{rs}:65281:{}", member_asn(2).0)];
    let (plain, long) = (route(0, &[], &[]), route(1, &[64_500, 64_501], &[]));
    let with = |asked: &str| route(0, &[], &[asked]);
    sim.announce(0, &[contested], &with(&asked[0]));
    sim.announce(1, &[contested], &long);
    rest(&mut sim);
    // In private: the route as it is, and nothing of what was asked.
    assert_eq!(sim.tables[&2][&contested.prefix], plain);
    sim.announce(0, &[contested], &with(&asked[1]));
    rest(&mut sim);
    assert_eq!(sim.tables[&2][&contested.prefix], long, "no NO_EXPORT, no route");
    assert_eq!(sim.tables[&1][&contested.prefix], plain, "to others it goes");
    // What is readable, the receiver named does, and no router sees the communities.
    sim.set_policy(0, policy("communities = { per_peer = 'readable' }"));
    rest(&mut sim);
    let no_export = plain.edit().communities(&[Community::NO_EXPORT]).finish();
    assert_eq!(sim.tables[&2][&contested.prefix], no_export);
    assert_eq!(sim.tables[&1][&contested.prefix], plain);
    sim.announce(0, &[contested], &with(&asked[0]));
    rest(&mut sim);
    assert_eq!(sim.tables[&2][&contested.prefix], long, "with three hops more it loses");
    sim.withdraw(1, &[contested]);
    rest(&mut sim);
    assert_eq!(sim.tables[&2][&contested.prefix], plain.edit().prepend(member_asn(0), 3).finish());
    assert_eq!(sim.tables[&1][&contested.prefix], plain);
    let exports = sim.member(0).expect("it runs").exports(contested.prefix);
    let to =
        |asn: Asn| exports[0].receivers.iter().find(|to| to.member.asn == Some(asn.0)).expect("a member").why.clone();
    assert!(to(member_asn(2)).ends_with("; by communities the path is prepended three times"), "{}", to(member_asn(2)));
    assert!(!to(member_asn(1)).contains("communities the path"), "{}", to(member_asn(1)));
}
