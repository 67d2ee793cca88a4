//! The exchange's recommendation, or the member set, changes while members change their routes: neither waits for the other, and
//! nothing is lost.

use std::collections::BTreeMap;
use std::time::Duration;

use wayleave_attestation::pki::{View, Vrp};
use wayleave_lab::sim::attestation::registered_key;
use wayleave_lab::sim::costs::Costs;
use wayleave_lab::sim::{Setup, Sim, member_asn};
use wayleave_route_server::object::ExportMode;

use crate::common::attested::{SEED, p, setup};
use crate::common::{Exchange, LIMIT, in_both_modes, nlri, route};

const TICK: Duration = Duration::from_millis(50);

/// Two slots announce routes of equal length to so many prefixes of a network.
fn contest(exchange: &mut Exchange, slots: [u32; 2], network: u8, prefixes: u32) {
    for slot in slots {
        for i in 0..prefixes {
            let prefix = nlri(&format!("{network}.{}.{}.0/24", i / 256, i % 256));
            exchange.announce(slot, &[prefix], &route(slot, &[64500], &[]));
        }
    }
}

in_both_modes!(a_change_during_the_walk_of_an_earlier_one_loses_nothing_of_it);
fn a_change_during_the_walk_of_an_earlier_one_loses_nothing_of_it(export: ExportMode) {
    let setup = Setup { members: 5, tick: TICK, export, costs: Some(Costs::default()), ..Setup::default() };
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

/// The 99th percentile of the times that changes of one route take from a router to another, and the longest of them.
fn p99(exchange: &mut Exchange, changes: u32, until: impl Fn(&mut Exchange) -> bool) -> (Duration, Duration, u32) {
    let (mut latencies, mut change) = (Vec::new(), 0);
    while change < changes || !until(exchange) {
        change += 1;
        assert!(change < 2_000, "it does not end");
        let (announced, prefix) = (exchange.sim.now().instant, nlri("50.0.0.0/16"));
        let wanted = route(4, &[64500 + change % 500], &[]);
        exchange.announce(4, &[prefix], &wanted);
        while exchange.sim.tables[&5].get(&prefix.prefix) != Some(&wanted) {
            assert!(exchange.sim.step(LIMIT), "the route arrives: {:?}", exchange.sim.closed);
        }
        latencies.push(exchange.sim.now().instant - announced);
        exchange.sim.pass(Duration::from_millis(u64::from(change % 7) * 13));
    }
    latencies.sort_unstable();
    (latencies[latencies.len() * 99 / 100], latencies[latencies.len() - 1], change)
}

in_both_modes!(a_changed_recommendation_of_many_prefixes_delays_no_live_update);
fn a_changed_recommendation_of_many_prefixes_delays_no_live_update(export: ExportMode) {
    const PREFIXES: u32 = 4_000;
    let setup = Setup { members: 12, tick: TICK, export, costs: Some(Costs::default()), ..Setup::default() };
    let mut exchange = Exchange::new(setup);
    contest(&mut exchange, [0, 1], 20, PREFIXES);
    exchange.recommend(&BTreeMap::from([(0, 1), (1, 2)]));
    exchange.check();
    let (quiet, ..) = p99(&mut exchange, 60, |_| true);
    exchange.recommend(&BTreeMap::from([(0, 3), (1, 2)]));
    let begin = exchange.sim.now().instant;
    let is_done = |exchange: &mut Exchange| {
        let prefix = nlri(&format!("20.{}.{}.0/24", (PREFIXES - 1) / 256, (PREFIXES - 1) % 256)).prefix;
        exchange.sim.tables[&5][&prefix].as_path().first_asn() == Some(crate::common::asn(0))
    };
    let (during, _, changes) = p99(&mut exchange, 60, is_done);
    let took = exchange.sim.now().instant - begin;
    println!("quiet {quiet:?}, during {during:?}, {changes} changes in {took:?}");
    assert!(during < 2 * quiet, "{during:?} while prefixes are evaluated again, {quiet:?} before");
    assert!(took < Duration::from_secs(60), "{took:?} for {PREFIXES} prefixes");
    exchange.check();
}

/// An exchange in which member 1 announced so many routes that it attests. Members 2 and 3 check them, 4 and 5 change routes.
fn attested(export: ExportMode, routes: u32) -> Exchange {
    let setup = Setup { export, costs: Some(Costs::default()), ..setup(7, &[1, 2, 3]) };
    let mut view = View::new(1);
    view.add_vrp(Vrp { prefix: p("20.0.0.0/8"), max_length: 24, asn: member_asn(1) });
    for asn in (1..8).map(member_asn) {
        view.add_key(asn, registered_key(SEED, asn));
    }
    let mut exchange = Exchange::of(Sim::new(setup));
    exchange.sim.set_view(view);
    assert!(exchange.sim.settle(LIMIT));
    for i in 0..routes {
        exchange.sim.announce(1, &[nlri(&format!("20.{}.{}.0/24", i / 256, i % 256))], &route(1, &[], &[]));
    }
    assert!(exchange.sim.settle(LIMIT));
    exchange
}

in_both_modes!(a_slot_that_is_added_or_has_other_keys_delays_no_live_update);
fn a_slot_that_is_added_or_has_other_keys_delays_no_live_update(export: ExportMode) {
    const ROUTES: u32 = 3_000;
    let changes: [fn(&mut Sim); 2] = [
        |sim| {
            sim.join();
            sim.pass(Duration::from_millis(200));
        },
        |sim| sim.change_attest_keys(3),
    ];
    let mut exchange = attested(export, ROUTES);
    let announced = |exchange: &mut Exchange| exchange.sim.member(1).expect("it runs").counters().announcements;
    let signed = exchange.sim.member(1).expect("it runs").attestation_status().expect("it attests").counts.originated;
    assert_eq!(signed, u64::from(ROUTES));
    for change in changes {
        let (quiet, ..) = p99(&mut exchange, 60, |_| true);
        let before = announced(&mut exchange);
        change(&mut exchange.sim);
        // Each route has a signature and an announcement more.
        let is_done = |exchange: &mut Exchange| announced(exchange) >= before + u64::from(ROUTES);
        let (during, longest, changes) = p99(&mut exchange, 60, is_done);
        eprintln!(
            "{export}: quiet {quiet:?}, {during:?} and {longest:?} of {changes} changes while {ROUTES} routes are signed again"
        );
        assert!(during < 2 * quiet, "{during:?} while routes are signed again, {quiet:?} before");
        assert!(longest < 2 * quiet, "one change took {longest:?} while routes are signed again, {quiet:?} before");
        assert!(exchange.sim.settle(LIMIT));
        assert_eq!(announced(&mut exchange), before + u64::from(ROUTES));
    }
    let (set, newcomer) = (exchange.sim.set.slots.len(), exchange.sim.tables[&7].len());
    assert_eq!((set, newcomer), (8, ROUTES as usize + 1));
}
