//! The exchange's recommendation changes: only what it concerns is evaluated again, behind what members change meanwhile.

use std::collections::BTreeMap;
use std::time::Duration;

use wayleave_lab::sim::costs::Costs;
use wayleave_lab::sim::{PARTIES, Setup};
use wayleave_route_server::object::ExportMode;
use wayleave_route_server::party::PartyEvent;

use crate::common::{Exchange, LIMIT, in_both_modes, nlri, route};

const TICK: Duration = Duration::from_millis(50);

/// Candidates that party 1 has listed to members.
fn listed(exchange: &mut Exchange) -> u64 {
    exchange.sim.party(PARTIES[0]).expect("it runs").counters().listed
}

/// Two slots announce routes of equal length to so many prefixes of a network.
fn contest(exchange: &mut Exchange, slots: [u32; 2], network: u8, prefixes: u32) {
    for slot in slots {
        for i in 0..prefixes {
            let prefix = nlri(&format!("{network}.{}.{}.0/24", i / 256, i % 256));
            exchange.announce(slot, &[prefix], &route(slot, &[64500], &[]));
        }
    }
}

in_both_modes!(only_what_a_changed_value_concerns_is_evaluated_again);
fn only_what_a_changed_value_concerns_is_evaluated_again(export: ExportMode) {
    const MEMBERS: usize = 6;
    let mut exchange = Exchange::new(Setup { members: MEMBERS, export, ..Setup::default() });
    contest(&mut exchange, [0, 1], 20, 12);
    contest(&mut exchange, [2, 3], 30, 7);
    for i in 0..5 {
        exchange.announce(4, &[nlri(&format!("40.{i}.0.0/16"))], &route(4, &[64500], &[]));
    }
    exchange.recommend(&BTreeMap::from([(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]));
    exchange.check();
    for (recommended, prefixes) in [
        (BTreeMap::from([(0, 9), (1, 2), (2, 3), (3, 4), (4, 5)]), 12),
        (BTreeMap::from([(0, 9), (1, 2), (2, 3), (4, 5)]), 7),
        // Nobody competes with it.
        (BTreeMap::from([(0, 9), (1, 2), (2, 3), (4, 6)]), 0),
        (BTreeMap::from([(0, 1), (1, 2), (2, 5), (4, 6)]), 19),
    ] {
        let before = listed(&mut exchange);
        exchange.recommend(&recommended);
        exchange.check();
        assert_eq!(listed(&mut exchange) - before, 2 * prefixes * MEMBERS as u64, "{recommended:?}");
    }
}

#[test]
fn a_change_during_the_walk_of_an_earlier_one_loses_nothing_of_it() {
    let setup = Setup { members: 5, tick: TICK, costs: Some(Costs::default()), ..Setup::default() };
    let mut exchange = Exchange::new(setup);
    contest(&mut exchange, [0, 1], 20, 300);
    contest(&mut exchange, [2, 3], 30, 300);
    exchange.recommend(&BTreeMap::from([(0, 1), (1, 2), (2, 3), (3, 4)]));
    exchange.check();
    for step in 0..6u8 {
        // The first walk is at its beginning, in its middle, at its end.
        exchange.recommend(&BTreeMap::from([(0, 20 + step), (1, 2), (2, 3), (3, 4)]));
        exchange.sim.pass(Duration::from_millis(u64::from(step) * 120));
        exchange.recommend(&BTreeMap::from([(0, 20 + step), (1, 2), (2, 30 + step), (3, 4)]));
        exchange.sim.pass(Duration::from_millis(60));
        exchange.recommend(&BTreeMap::from([(0, 1), (1, 2), (2, 3), (3, 4)]));
        exchange.check();
    }
}

#[test]
fn a_changed_recommendation_waits_until_its_epoch_is_over() {
    const EPOCH: Duration = Duration::from_secs(900);
    let setup = Setup { members: 4, tick: TICK, shortest_epoch: EPOCH, ..Setup::default() };
    let mut exchange = Exchange::new(setup);
    contest(&mut exchange, [0, 1], 20, 3);
    let prefix = nlri("20.0.0.0/24").prefix;
    let chosen = |exchange: &Exchange| exchange.sim.tables[&3][&prefix].as_path().first_asn();
    // The one that is given first counts once this process has run for an epoch, since members are there.
    exchange.sim.recommend(BTreeMap::from([(0, 1), (1, 2)]));
    exchange.sim.pass(EPOCH + Duration::from_secs(5));
    exchange.oracle.recommend(BTreeMap::from([(0, 1), (1, 2)]));
    exchange.check();
    let first = chosen(&exchange);
    exchange.sim.forget_events();
    exchange.sim.recommend(BTreeMap::from([(0, 7), (1, 2)]));
    exchange.sim.pass(EPOCH / 2);
    assert_eq!(chosen(&exchange), first, "the epoch goes on");
    let waits = |event: &PartyEvent| matches!(event, PartyEvent::RecommendationWaits { seconds: 880..=901 });
    assert!(exchange.sim.party_events.iter().any(|(_, event)| waits(event)), "{:?}", exchange.sim.party_events);
    // Changed back, and again: the last one counts.
    exchange.sim.recommend(BTreeMap::from([(0, 1), (1, 2)]));
    exchange.sim.recommend(BTreeMap::from([(0, 8), (1, 2)]));
    exchange.sim.pass(EPOCH);
    exchange.oracle.recommend(BTreeMap::from([(0, 8), (1, 2)]));
    exchange.check();
    assert_ne!(chosen(&exchange), first);
}

#[test]
fn a_party_that_starts_with_its_recommendation_evaluates_nothing_twice() {
    let mut exchange = Exchange::new(Setup { members: 4, tick: TICK, ..Setup::default() });
    exchange.recommend(&BTreeMap::from([(0, 1), (1, 2)]));
    contest(&mut exchange, [0, 1], 20, 40);
    exchange.check();
    let epoch = exchange.sim.party(PARTIES[0]).expect("it runs").status().epoch;
    exchange.sim.kill(PARTIES[0]);
    exchange.sim.start(PARTIES[0]);
    exchange.check();
    let status = exchange.sim.party(PARTIES[0]).expect("it runs").status();
    assert_eq!(status.epoch, epoch, "it begins no epoch");
    assert_eq!(status.counters.listed, 2 * 40 * 4, "each prefix once for each member");
}

/// The 99th percentile of the times that changes of one route take from a router to another.
fn p99(exchange: &mut Exchange, changes: u32, until: impl Fn(&mut Exchange) -> bool) -> (Duration, u32) {
    let (mut latencies, mut change) = (Vec::new(), 0);
    while change < changes || !until(exchange) {
        change += 1;
        let (announced, prefix) = (exchange.sim.now().instant, nlri("50.0.0.0/16"));
        let wanted = route(4, &[64500 + change], &[]);
        exchange.announce(4, &[prefix], &wanted);
        while exchange.sim.tables[&5].get(&prefix.prefix) != Some(&wanted) {
            assert!(exchange.sim.step(LIMIT));
        }
        latencies.push(exchange.sim.now().instant - announced);
        exchange.sim.pass(Duration::from_millis(u64::from(change % 7) * 13));
    }
    latencies.sort_unstable();
    (latencies[latencies.len() * 99 / 100], change)
}

#[test]
fn a_changed_recommendation_of_many_prefixes_delays_no_live_update() {
    const PREFIXES: u32 = 4_000;
    let setup = Setup { members: 12, tick: TICK, costs: Some(Costs::default()), ..Setup::default() };
    let mut exchange = Exchange::new(setup);
    contest(&mut exchange, [0, 1], 20, PREFIXES);
    exchange.recommend(&BTreeMap::from([(0, 1), (1, 2)]));
    exchange.check();
    let (quiet, _) = p99(&mut exchange, 60, |_| true);
    exchange.recommend(&BTreeMap::from([(0, 3), (1, 2)]));
    let begin = exchange.sim.now().instant;
    let is_done = |exchange: &mut Exchange| {
        let prefix = nlri(&format!("20.{}.{}.0/24", (PREFIXES - 1) / 256, (PREFIXES - 1) % 256)).prefix;
        exchange.sim.tables[&5][&prefix].as_path().first_asn() == Some(crate::common::asn(0))
    };
    let (during, changes) = p99(&mut exchange, 60, is_done);
    let took = exchange.sim.now().instant - begin;
    println!("quiet {quiet:?}, during {during:?}, {changes} changes in {took:?}");
    assert!(during < 2 * quiet, "{during:?} while prefixes are evaluated again, {quiet:?} before");
    assert!(took < Duration::from_secs(60), "{took:?} for {PREFIXES} prefixes");
    exchange.check();
}
