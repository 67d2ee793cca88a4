//! A member whose router gets several routes to a prefix (ADD-PATH, RFC 7911): the chosen one first, then the next by its own ranking, each
//! under an identifier that stays, whatever comes and goes, and also when the proxy starts anew.

use std::collections::BTreeMap;

use crate::common::{LIMIT, in_both_modes, nlri, policy, route};
use wayleave_bgp::origins::Vrp;
use wayleave_core::{Asn, Prefix};
use wayleave_lab::sim::{Node, Setup, Sim};
use wayleave_route_server::object::ExportMode;

const PREFIX: &str = "20.1.0.0/16";

/// The identifiers of the routes that the router of slot 4 has, the best first, and the ASes of each path.
fn paths(sim: &Sim) -> Vec<(u32, usize)> {
    let prefix: Prefix = PREFIX.parse().expect("a prefix");
    let has = sim.path_tables.get(&4).and_then(|table| table.get(&prefix));
    has.into_iter().flatten().map(|(id, attributes)| (*id, attributes.as_path().length())).collect()
}

fn rest(sim: &mut Sim) {
    assert!(sim.settle(LIMIT), "the exchange did not come to rest");
    let prefix: Prefix = PREFIX.parse().expect("a prefix");
    let chosen = sim.tables[&4].get(&prefix).map(|attributes| attributes.as_path().length());
    assert_eq!(paths(sim).first().map(|(_, length)| *length), chosen, "the chosen one is the first");
}

in_both_modes!(a_router_with_add_path_gets_the_chosen_route_and_the_next_under_identifiers_that_stay);
fn a_router_with_add_path_gets_the_chosen_route_and_the_next_under_identifiers_that_stay(export: ExportMode) {
    let paths_of = BTreeMap::from([(4, 3)]);
    let mut sim = Sim::new(Setup { members: 5, seed: 71, export, paths: paths_of, ..Setup::default() });
    let announce = |sim: &mut Sim, slot: u32, tail: &[u32], communities: &[&str]| {
        sim.announce(slot, &[nlri(PREFIX)], &route(slot, tail, communities));
        rest(sim);
    };
    announce(&mut sim, 0, &[64500, 64501], &[]);
    assert_eq!(paths(&sim), [(1, 3)]);
    announce(&mut sim, 2, &[64500], &[]);
    assert_eq!(paths(&sim), [(3, 2), (1, 3)]);
    // Not for this member; then for it, and the best.
    announce(&mut sim, 1, &[], &["64496:0:65004"]);
    assert_eq!(paths(&sim), [(3, 2), (1, 3)]);
    announce(&mut sim, 1, &[], &[]);
    assert_eq!(paths(&sim), [(2, 1), (3, 2), (1, 3)]);
    // One too many: the worst goes.
    announce(&mut sim, 3, &[64500, 64501], &[]);
    assert_eq!((paths(&sim).len(), paths(&sim)[..2].to_vec()), (3, vec![(2, 1), (3, 2)]));
    announce(&mut sim, 3, &[64500, 64501, 64502], &[]);
    assert_eq!(paths(&sim), [(2, 1), (3, 2), (1, 3)]);
    // What changes keeps its identifier.
    announce(&mut sim, 1, &[64500, 64501, 64502, 64503], &[]);
    assert_eq!(paths(&sim), [(3, 2), (1, 3), (4, 4)]);
    sim.withdraw(2, &[nlri(PREFIX)]);
    rest(&mut sim);
    assert_eq!(paths(&sim), [(1, 3), (4, 4), (2, 5)]);
    sim.set_policy(4, policy("[[rule]]\ndirection = \"import\"\npeer = [\"65003\"]\nreject = true\n"));
    rest(&mut sim);
    assert_eq!(paths(&sim), [(1, 3), (2, 5)]);
    sim.kill(Node::Member(4));
    sim.path_tables.clear();
    sim.start(Node::Member(4));
    rest(&mut sim);
    assert_eq!(paths(&sim), [(1, 3), (2, 5)], "the same after a restart");
    for slot in [0, 1, 3] {
        sim.withdraw(slot, &[nlri(PREFIX)]);
    }
    rest(&mut sim);
    assert_eq!(paths(&sim), []);
}

in_both_modes!(a_further_path_that_becomes_invalid_leaves_the_router);
fn a_further_path_that_becomes_invalid_leaves_the_router(export: ExportMode) {
    let paths_of = BTreeMap::from([(4, 3)]);
    let mut sim = Sim::new(Setup { members: 5, seed: 72, export, paths: paths_of, ..Setup::default() });
    for (slot, tail) in [(0, &[64_500, 64_501][..]), (2, &[64_502])] {
        sim.announce(slot, &[nlri(PREFIX)], &route(slot, tail, &[]));
    }
    rest(&mut sim);
    assert_eq!(paths(&sim), [(3, 2), (1, 3)]);
    // Its receiver alone has heard of it: the announcer's proxy would have withdrawn it.
    let vrp = |asn| Vrp { prefix: PREFIX.parse().expect("a prefix"), max_length: 16, asn: Asn(asn) };
    sim.set_origins(4, [vrp(64_502)]);
    rest(&mut sim);
    assert_eq!(paths(&sim), [(3, 2)]);
    sim.set_origins(4, [vrp(64_502), vrp(64_501)]);
    rest(&mut sim);
    assert_eq!(paths(&sim), [(3, 2), (1, 3)], "under its own identifier");
}
