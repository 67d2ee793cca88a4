//! The exchange in virtual time against a plaintext route server.

use std::collections::BTreeMap;

use wayleave_bgp::Attributes;
use wayleave_core::Prefix;
use wayleave_lab::sim::{PARTIES, RS_ASN, Setup, Sim, member_asn};
use wayleave_route_server::object::ExportMode;
use wayleave_route_server::oracle::Oracle;
use wayleave_route_server::party::PartyEvent;
use wayleave_route_server::policy::validate::Martians;

use crate::common::{LIMIT, in_both_modes, nlri, route};

fn settle(sim: &mut Sim) {
    assert!(sim.settle(LIMIT), "the exchange did not come to rest");
}

fn compare(sim: &Sim, oracle: &Oracle) {
    for (slot, table) in &sim.tables {
        let expected: BTreeMap<Prefix, Attributes> =
            oracle.table(*slot).into_iter().map(|(prefix, (_, attributes))| (prefix, attributes)).collect();
        assert_eq!(table, &expected, "member {slot}");
    }
}

fn oracle(sim: &Sim) -> Oracle {
    let mut oracle = Oracle::new(sim.set.clone(), RS_ASN, BTreeMap::new()).with_martians(Martians::AllowDocumentation);
    oracle.set_order(sim.order_key(PARTIES[0]).expect("the parties have agreed on an order"));
    oracle
}

in_both_modes!(a_route_reaches_whom_it_may_and_nobody_else);
fn a_route_reaches_whom_it_may_and_nobody_else(export: ExportMode) {
    let mut sim = Sim::new(Setup { export, ..Setup::default() });
    settle(&mut sim);
    let mut oracle = oracle(&sim);
    let hidden_from_3 = route(0, &[64500], &["64496:0:65003"]);
    let prefix = nlri("192.0.2.0/24");
    sim.announce(0, &[prefix], &hidden_from_3);
    oracle.announce(0, &[prefix], &hidden_from_3);
    settle(&mut sim);
    assert!(sim.tables[&1].contains_key(&prefix.prefix));
    assert!(!sim.tables[&3].contains_key(&prefix.prefix));
    assert!(!sim.tables[&0].contains_key(&prefix.prefix));
    compare(&sim, &oracle);
    let is_usual =
        |event: &PartyEvent| matches!(event, PartyEvent::Agreed { .. } | PartyEvent::Order { is_drawn: true, .. });
    assert!(sim.party_events.iter().all(|(_, event)| is_usual(event)));
}

in_both_modes!(the_recommendation_breaks_ties_and_a_shorter_path_wins);
fn the_recommendation_breaks_ties_and_a_shorter_path_wins(export: ExportMode) {
    let mut sim = Sim::new(Setup { export, ..Setup::default() });
    settle(&mut sim);
    let mut oracle = oracle(&sim);
    let prefix = nlri("198.51.100.0/24");
    for slot in [0, 1] {
        let attributes = route(slot, &[64500], &[]);
        sim.announce(slot, &[prefix], &attributes);
        oracle.announce(slot, &[prefix], &attributes);
    }
    settle(&mut sim);
    compare(&sim, &oracle);
    let table = |sim: &Sim| sim.tables[&2][&prefix.prefix].as_path().first_asn();
    let (first, second) = if table(&sim) == Some(member_asn(0)) { (0, 1) } else { (1, 0) };
    assert_eq!(table(&sim), Some(member_asn(first)));
    let recommendation = BTreeMap::from([(first, 3), (second, 9)]);
    sim.recommend(recommendation.clone());
    oracle.recommend(recommendation);
    settle(&mut sim);
    assert_eq!(table(&sim), Some(member_asn(second)), "the recommendation moved the choice");
    compare(&sim, &oracle);
    let longer = route(second, &[64500, 64501], &[]);
    sim.announce(second, &[prefix], &longer);
    oracle.announce(second, &[prefix], &longer);
    settle(&mut sim);
    assert_eq!(table(&sim), Some(member_asn(first)), "the member's own ranking goes first");
    compare(&sim, &oracle);
    sim.withdraw(first, &[prefix]);
    oracle.withdraw(first, &[prefix]);
    settle(&mut sim);
    compare(&sim, &oracle);
}

in_both_modes!(a_member_that_leaves_while_a_party_is_down_is_gone_when_it_returns);
fn a_member_that_leaves_while_a_party_is_down_is_gone_when_it_returns(export: ExportMode) {
    for party in wayleave_lab::sim::PARTIES {
        let mut sim = Sim::new(Setup { export, ..Setup::default() });
        settle(&mut sim);
        let prefix = nlri("192.0.2.0/24");
        sim.announce(0, &[prefix], &route(0, &[64500], &[]));
        settle(&mut sim);
        assert!(sim.tables[&1].contains_key(&prefix.prefix));
        sim.kill(party);
        sim.leave(0);
        sim.start(party);
        settle(&mut sim);
        assert!(!sim.tables[&1].contains_key(&prefix.prefix), "{party:?}");
    }
}
