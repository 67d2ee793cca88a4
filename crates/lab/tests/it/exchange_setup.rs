//! The parties' setup goes on beside everything else, and what it makes belongs to one link.
//!
//! SIX, setup: live updates during a large refill, with costs; setup that stands still; a link that goes in the middle
//! of a job: p99 below twice its quiet value; what the pool holds is used.

use std::collections::BTreeMap;
use std::time::Duration;

use wayleave_bgp::Nlri;
use wayleave_lab::sim::costs::Costs;
use wayleave_lab::sim::{Node, PARTIES, Setup, Sim};

use crate::common::{Exchange, LIMIT, in_both_modes, nlri, route};
use wayleave_route_server::object::ExportMode;

const MEMBERS: u32 = 20;
/// Members that announce the widest prefix.
const WIDE: u32 = 16;

fn is_stocked(sim: &Sim) -> bool {
    PARTIES.iter().all(|party| sim.party(*party).expect("it runs").is_stocked())
}

fn correlations(sim: &Sim) -> u64 {
    sim.party(PARTIES[0]).expect("it runs").counters().correlations
}

/// The prefix to which a member and the next one have routes.
fn contested(slot: u32) -> Nlri {
    nlri(&format!("21.{}.0.0/16", slot / 2))
}

/// Virtual time until a change of the `number`th route has reached another member.
fn latency(sim: &mut Sim, number: u32) -> Duration {
    let from = (number * 2) % MEMBERS;
    let (begin, wanted) = (sim.now().instant, route(from, &[64600 + number], &[]));
    sim.announce(from, &[contested(from)], &wanted);
    while sim.tables[&((from + 7) % MEMBERS)].get(&contested(from).prefix) != Some(&wanted) {
        assert!(sim.step(LIMIT), "the route arrives");
    }
    sim.now().instant - begin
}

/// An exchange at rest with a full pool, in which pairs of members have routes to one prefix; the one of the even slot is better.
fn exchange() -> Sim {
    let setup = Setup { members: MEMBERS as usize, costs: Some(Costs::default()), ..Setup::default() };
    let mut sim = Sim::new(setup);
    assert!(sim.settle(LIMIT));
    for slot in 0..MEMBERS {
        let tail: &[u32] = if slot.is_multiple_of(2) { &[64500] } else { &[64500, 64501, 64502] };
        sim.announce(slot, &[contested(slot)], &route(slot, tail, &[]));
    }
    assert!(sim.settle(LIMIT));
    sim.fill_pools();
    assert!(sim.settle(LIMIT));
    sim
}

#[test]
fn live_updates_while_a_large_refill_is_made_take_less_than_twice_as_long() {
    let mut sim = exchange();
    let pause = |sim: &mut Sim| {
        let pause = Duration::from_micros(500 + sim.choose(3_000) as u64);
        sim.pass(pause);
    };
    let mut quiet = Vec::new();
    for number in 0..100 {
        quiet.push(latency(&mut sim, number));
        pause(&mut sim);
    }
    assert!(sim.settle(LIMIT));
    sim.fill_pools();
    // A prefix with sixteen routes: the pool is to hold what 128 such prefixes need, which is many times as much as before.
    for slot in 0..WIDE {
        sim.announce(slot, &[nlri("22.0.0.0/16")], &route(slot, &[64500], &[]));
    }
    while !sim.tables[&(MEMBERS - 1)].contains_key(&nlri("22.0.0.0/16").prefix) || is_stocked(&sim) {
        assert!(sim.step(LIMIT));
    }
    sim.pass(Duration::from_millis(30));
    let mut during = Vec::new();
    while !is_stocked(&sim) {
        let number = 100 + u32::try_from(during.len()).expect("few");
        during.push(latency(&mut sim, number));
        pause(&mut sim);
    }
    let p99 = |latencies: &mut Vec<Duration>| {
        latencies.sort_unstable();
        latencies[latencies.len() * 99 / 100]
    };
    assert!(during.len() >= 20, "the refill takes a while: {}", during.len());
    let (before, during) = (p99(&mut quiet), p99(&mut during));
    eprintln!("p99 {during:?} during a refill, {before:?} before");
    assert!(during < 2 * before, "{during:?}, and {before:?} before");
}

#[test]
fn what_the_pool_holds_is_used_while_setup_stands_still() {
    let mut sim = exchange();
    sim.hold_setup();
    for slot in 0..WIDE {
        sim.announce(slot, &[nlri("22.0.0.0/16")], &route(slot, &[64500], &[]));
    }
    sim.pass(Duration::from_millis(500));
    assert!(!is_stocked(&sim), "a refill stands still");
    assert!(sim.release_setup() > 0);
    assert!(sim.settle(LIMIT));
    assert!(sim.tables[&(MEMBERS - 1)].contains_key(&nlri("22.0.0.0/16").prefix));
    sim.fill_pools();
    // From here on the pool is full for rounds that are as wide.
    sim.hold_setup();
    let before = correlations(&sim);
    for number in 0..30 {
        latency(&mut sim, number);
    }
    sim.pass(Duration::from_millis(500));
    assert!(correlations(&sim) > before, "more was ordered, and nothing of it is made");
    latency(&mut sim, 30);
    assert!(sim.release_setup() > 0);
    assert!(sim.settle(LIMIT));
}

in_both_modes!(correlations_of_a_link_that_has_gone_are_never_used);
fn correlations_of_a_link_that_has_gone_are_never_used(export: ExportMode) {
    // The link goes at different moments of setup, with a job out at one party or both.
    for moment in 0..12u64 {
        let mut exchange = Exchange::new(Setup { seed: 900 + moment, export, ..Setup::default() });
        let announce = |exchange: &mut Exchange, tail: u32| {
            for slot in [0, 1] {
                exchange.announce(slot, &[nlri("20.0.0.0/16")], &route(slot, &[tail], &[]));
            }
        };
        announce(&mut exchange, 64500);
        exchange.sim.run_for(Duration::from_micros(moment));
        exchange.sim.hold_setup();
        exchange.sim.run_for(Duration::from_millis(10));
        exchange.sim.cut_parties();
        exchange.sim.pass(Duration::from_millis(10));
        exchange.sim.release_setup();
        exchange.check();
        announce(&mut exchange, 64501);
        exchange.check();
        let closed: BTreeMap<(Node, Node), &String> =
            exchange.sim.closed.iter().map(|(by, of, why)| ((*by, *of), why)).collect();
        assert!(closed.is_empty(), "moment {moment}: {closed:?}");
    }
}
