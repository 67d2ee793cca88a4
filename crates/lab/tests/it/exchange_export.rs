//! Who multiplies policies and keys: both parties do the same, a change of mode loses and resurrects nothing, and what a party that
//! deviates can do in each.
//!
//! SIX-13: `export = "mpc"`: a change of mode loses no route and brings none back; parties that differ compute nothing
//! and name both settings; one bit a slot on the wire. The tests with `in_both_modes!` repeat oracle, faults, attacks,
//! flips, copies and leakage in this mode.
//! SIX-14: a party changes its share of a policy: noticed in mode `direct`; the policy changes in mode `mpc`.

use std::time::Duration;

use crate::common::{Exchange, in_both_modes, nlri, policy, route};
use wayleave_lab::sim::{Node, PARTIES, Setup};
use wayleave_route_server::object::ExportMode;
use wayleave_route_server::party::PartyEvent;

#[test]
fn parties_with_different_modes_compute_nothing_and_say_what_to_set() {
    let mut exchange = Exchange::new(Setup { seed: 950, ..Setup::default() });
    exchange.sim.kill(PARTIES[1]);
    exchange.sim.exports.insert(PARTIES[1], ExportMode::Mpc);
    exchange.sim.start(PARTIES[1]);
    exchange.announce(0, &[nlri("20.0.0.0/16")], &route(0, &[64500], &[]));
    exchange.sim.run_for(Duration::from_secs(5));
    assert!(exchange.sim.tables.values().all(|table| table.is_empty()), "nothing is delivered");
    // Whoever reads the other's hello first says so, and ends the link.
    let says = |(by, event): &(Node, PartyEvent)| {
        let own = if *by == PARTIES[0] { "direct" } else { "mpc" };
        let what_to_set = format!("this party has `export = \"{own}\"`; set the same in both configurations");
        matches!(event, PartyEvent::BadFrame { slot: None, what } if what.contains(&what_to_set))
    };
    assert!(exchange.sim.party_events.iter().any(says), "{:?}", exchange.sim.party_events);
}

/// Both parties stop, and start again with `export`.
fn switch(exchange: &mut Exchange, export: ExportMode) {
    for party in PARTIES {
        exchange.sim.kill(party);
        exchange.sim.exports.insert(party, export);
    }
    for party in PARTIES {
        exchange.sim.start(party);
    }
}

#[test]
fn a_change_of_mode_loses_no_route_and_brings_none_back() {
    let mut exchange = Exchange::new(Setup { seed: 951, ..Setup::default() });
    let [kept, gone] = ["20.0.0.0/16", "20.1.0.0/16"].map(nlri);
    exchange.announce(0, &[kept], &route(0, &[64500], &["64496:0:65003"]));
    exchange.announce(1, &[kept, gone], &route(1, &[64500], &[]));
    exchange.check();
    switch(&mut exchange, ExportMode::Mpc);
    exchange.check();
    let removed = |(_, event): &(Node, PartyEvent)| matches!(event, PartyEvent::OtherExport { objects: 2 });
    assert_eq!(exchange.sim.party_events.iter().filter(|event| removed(event)).count(), 2);
    exchange.withdraw(1, &[gone]);
    exchange.check();
    switch(&mut exchange, ExportMode::Direct);
    exchange.check();
    exchange.join();
    exchange.check();
}

/// What shares an UPDATE with it waits for its turn; a route that another UPDATE brought again has none.
#[test]
fn a_route_that_changed_and_returned_during_a_reload_gets_the_new_policy() {
    let mut exchange = Exchange::new(Setup { seed: 952, tick: Duration::from_millis(50), ..Setup::default() });
    // More objects than are announced again at a time.
    let all: Vec<_> = (0..200).map(|i| nlri(&format!("20.{i}.0.0/16"))).collect();
    exchange.set_policy(0, &policy("[[rule]]\ndirection = \"export\"\nhide_from = [\"65001\"]\n"));
    let before = route(0, &[64500], &[]);
    for prefix in &all {
        exchange.announce(0, &[*prefix], &before);
    }
    exchange.check();
    exchange.set_policy(0, &policy(""));
    exchange.sim.run_for(Duration::from_millis(60));
    // Before the next objects leave, the last one changes and is as before.
    let last = all[199];
    exchange.announce(0, &[nlri("21.0.0.0/16")], &before);
    exchange.sim.run_for(Duration::from_millis(1));
    exchange.announce(0, &[last], &route(0, &[64500, 64501], &[]));
    exchange.announce(0, &[last], &before);
    exchange.check();
}

in_both_modes!(a_column_opens_earlier_routes_to_new_slots_only_as_the_policy_says);
fn a_column_opens_earlier_routes_to_new_slots_only_as_the_policy_says(export: ExportMode) {
    let mut exchange = Exchange::new(Setup { members: 7, seed: 952, export, ..Setup::default() });
    for i in 0..6u32 {
        let hide = format!("64496:0:{}", 65_007 + i % 4);
        exchange.announce(i, &[nlri(&format!("20.{i}.0.0/16"))], &route(i, &[64500], &[&hide]));
    }
    exchange.check();
    for joined in 0..4 {
        exchange.join();
        exchange.check();
        if joined == 1 {
            switch(&mut exchange, export);
            exchange.check();
        }
    }
    assert_eq!(exchange.sim.tables[&10].len(), 5, "one of six routes is hidden from the last slot");
}

/// The table of a member after party 2 changed one bit of what it stores for the member's slot of a route, hidden from it.
fn after_a_changed_share(export: ExportMode) -> (bool, usize) {
    const VICTIM: u32 = 2;
    let mut exchange = Exchange::new(Setup { seed: 953, export, ..Setup::default() });
    let prefix = nlri("20.0.0.0/16");
    exchange.announce(0, &[prefix], &route(0, &[64500], &["64496:0:65002"]));
    exchange.check();
    exchange.sim.kill(Node::Member(VICTIM));
    exchange.sim.kill(PARTIES[1]);
    let store = exchange.sim.store(PARTIES[1]);
    let object = store.iter_mut().find(|((table, _), _)| table == "objects").expect("it is stored").1;
    // The row is at the end: 16 octets for each of four slots, or one bit for each in one octet.
    let (from_end, bit) = match export {
        ExportMode::Direct => (16 * (4 - VICTIM as usize), 0),
        ExportMode::Mpc => (1, VICTIM),
    };
    let at = object.len() - from_end;
    object[at] ^= 1 << bit;
    exchange.sim.start(PARTIES[1]);
    exchange.sim.start(Node::Member(VICTIM));
    assert!(exchange.sim.settle(crate::common::LIMIT));
    (exchange.sim.tables[&VICTIM].contains_key(&prefix.prefix), exchange.sim.alarms(VICTIM).count())
}

#[test]
fn a_party_that_changes_its_share_of_a_policy_is_noticed_in_mode_direct_and_changes_the_policy_in_mode_mpc() {
    assert_eq!(after_a_changed_share(ExportMode::Direct), (false, 1));
    // The paper's parties follow the protocol. Whoever runs this mode has to trust that each of them does.
    assert_eq!(after_a_changed_share(ExportMode::Mpc), (true, 0));
}

#[test]
fn the_parties_multiply_each_route_once_for_each_who_gets_it() {
    let mut exchange = Exchange::new(Setup { members: 5, seed: 954, export: ExportMode::Mpc, ..Setup::default() });
    let exports =
        |exchange: &Exchange| PARTIES.map(|party| exchange.sim.party(party).expect("runs").counters().exports);
    for i in 0..3 {
        exchange.announce(i, &[nlri(&format!("20.{i}.0.0/16"))], &route(i, &[64500], &[]));
    }
    exchange.check();
    assert_eq!(exports(&exchange), [15, 15]);
    exchange.withdraw(0, &[nlri("20.0.0.0/16")]);
    exchange.check();
    assert_eq!(exports(&exchange), [15, 15], "a withdrawal needs none");
    exchange.sim.kill(Node::Member(4));
    exchange.sim.start(Node::Member(4));
    exchange.check();
    assert_eq!(exports(&exchange), [17, 17], "whoever comes back gets its own shares anew");
}

fn a_member_that_reaches_one_party_alone_says_nothing_to_it_though_its_policy_changes(export: ExportMode) {
    let mut exchange = Exchange::new(Setup { seed: 957, export, ..Setup::default() });
    let prefix = nlri("20.0.0.0/16");
    exchange.announce(0, &[prefix], &route(0, &[64500], &[]));
    exchange.check();
    // As when party 2 has a new key that the member does not know yet: only the link to party 1 comes up again.
    exchange.sim.kill(PARTIES[1]);
    exchange.sim.kill(Node::Member(0));
    exchange.sim.start(Node::Member(0));
    exchange.sim.run_for(Duration::from_secs(1));
    exchange.sim.forget_events();
    exchange.sim.set_policy(0, policy("[[rule]]\ndirection = \"import\"\nclass = 250\n"));
    exchange.sim.run_for(Duration::from_secs(1));
    let accuses = |(_, event): &&(Node, PartyEvent)| matches!(event, PartyEvent::BadFrame { .. });
    let accused: Vec<_> = exchange.sim.party_events.iter().filter(accuses).collect();
    assert!(accused.is_empty(), "{accused:?}");
    exchange.sim.start(PARTIES[1]);
    exchange.announce(0, &[prefix], &route(0, &[64500], &[]));
    exchange.check();
    assert!(exchange.sim.tables[&3].contains_key(&prefix.prefix));
}

in_both_modes!(a_member_that_reaches_one_party_alone_says_nothing_to_it_though_its_policy_changes);
