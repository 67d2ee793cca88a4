//! Real traces through a simulated exchange whose routers are BGP speakers: what each has in its Adj-RIB-In equals what a
//! plaintext route server would have given it.
//!
//! SIX-01: two recorded traces among 10 and 50 members whose routers are BGP speakers, with sessions that end and come
//! back: tables equal the plaintext reference.

#![allow(clippy::disallowed_methods, reason = "a test reads its traces")]

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use crate::common::{Exchange, LIMIT, in_both_modes, nlri, route};
use wayleave_core::Afi;
use wayleave_lab::sim::Setup;
use wayleave_lab::trace::{self, TraceUpdate};
use wayleave_route_server::object::ExportMode;

fn load(name: &str, most_prefixes: usize) -> Vec<TraceUpdate> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../test-data/bgp").join(name);
    let file = File::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    trace::load(file, most_prefixes).expect("a readable trace")
}

fn exchange(members: usize, seed: u64, export: ExportMode) -> Exchange {
    Exchange::new(Setup { members, seed, export, speakers: true, ..Setup::default() })
}

/// The router of `slot` sends an UPDATE of a trace as its own.
fn give(exchange: &mut Exchange, slot: u32, update: &TraceUpdate) {
    let attributes = update.attributes.as_ref().filter(|_| !update.announced.is_empty());
    let attributes = attributes.map(|attributes| trace::as_member(attributes, slot));
    exchange.sim.update(slot, &update.withdrawn, &update.announced, attributes.as_ref());
    exchange.oracle.withdraw(slot, &update.withdrawn);
    if let Some(attributes) = &attributes {
        exchange.oracle.announce(slot, &update.announced, attributes);
    }
}

/// A session of a random router ends in one of the ways in which sessions end, and comes back by itself.
fn flap(exchange: &mut Exchange) {
    let slots: Vec<u32> = exchange.sim.tables.keys().copied().collect();
    let slot = slots[exchange.sim.choose(slots.len())];
    match exchange.sim.choose(3) {
        0 => exchange.sim.cut_router(slot),
        1 => exchange.sim.reset_router(slot),
        _ => {
            exchange.sim.mute_router(slot, true);
            exchange.sim.pass(Duration::from_secs(95));
            assert!(!exchange.sim.is_router_up(slot), "the hold time of {slot} has passed");
            exchange.sim.mute_router(slot, false);
        }
    }
}

/// UPDATEs that all routers have sent.
fn sent(exchange: &Exchange) -> u64 {
    exchange.sim.tables.keys().filter_map(|slot| exchange.sim.router_counters(*slot)).map(|c| c.sent.update).sum()
}

/// Sessions that routers have had beyond their first.
fn flaps(exchange: &Exchange) -> u64 {
    let counters = exchange.sim.tables.keys().filter_map(|slot| exchange.sim.router_counters(*slot));
    counters.map(|counters| counters.established - 1).sum()
}

/// The part of a trace that `members` replay. Work grows with members times UPDATEs: a third of it is enough for ten, beyond that a tenth to
/// see what many members change, in mode `mpc` a part of that, and `make soak` (`WAYLEAVE_SIM_FACTOR`) replays all of it.
fn part_of(mut updates: Vec<TraceUpdate>, members: usize, export: ExportMode) -> Vec<TraceUpdate> {
    let parts = match export {
        ExportMode::Direct if members > 10 => 10,
        ExportMode::Direct => 3,
        ExportMode::Mpc if members > 10 => 32,
        ExportMode::Mpc => 12,
    };
    if crate::common::factor() == 1 {
        updates.truncate(updates.len() / parts);
    }
    updates
}

/// Replays a trace of many peers, each peer a member, with a random change of policy, recommendation, membership or
/// session now and then.
fn replay(members: usize, burst: usize, export: ExportMode) {
    let updates = load("routeviews.2013-12-01.updates.bz2", usize::MAX);
    assert_eq!(updates.len(), 44_834, "of the trace's 45,062 UPDATEs, those that name a prefix");
    let updates = part_of(updates, members, export);
    let mut exchange = exchange(members, 7, export);
    let (mut given, mut flapped) = (0, false);
    for (i, burst) in updates.chunks(burst).enumerate() {
        for update in burst {
            let slot = u32::try_from(update.peer % members).expect("few members");
            if exchange.sim.tables.contains_key(&slot) {
                give(&mut exchange, slot, update);
                given += 1;
            }
        }
        match i % 10 {
            4 => {
                flap(&mut exchange);
                flapped = true;
            }
            9 => exchange.random_change(true),
            _ => {}
        }
        assert!(exchange.sim.settle(LIMIT), "at burst {i}: {}", exchange.describe());
    }
    exchange.check();
    assert!(!flapped || flaps(&exchange) > 0, "no session ever ended");
    let routes: usize = exchange.sim.tables.keys().map(|slot| exchange.sim.table(*slot).len()).sum();
    eprintln!("{given} UPDATEs given, {} sent, {} flaps, {routes} routes learned", sent(&exchange), flaps(&exchange));
    assert!(routes > members, "{routes} routes in {members} tables");
}

/// A full table, announced by several members: the first by its own path, others by a longer one. Halfway a session
/// ends, and at the end a member joins and one leaves.
fn table(members: usize, export: ExportMode) {
    let updates = part_of(load("ris.2015-10-23.first-50000-prefixes.updates.bz2", 50_000), members, export);
    let prefixes: usize = updates.iter().map(|update| update.announced.len()).sum();
    let mut exchange = exchange(members, 8, export);
    for (burst_number, burst) in updates.chunks(400).enumerate() {
        for (i, update) in burst.iter().enumerate() {
            for copy in 0..1 + i % 3 {
                let slot = u32::try_from((i * 7 + burst_number + copy * 11) % members).expect("few members");
                give(&mut exchange, slot, update);
            }
        }
        if burst_number == updates.len() / 400 / 2 {
            exchange.sim.cut_router(3);
        }
        assert!(exchange.sim.settle(LIMIT), "at burst {burst_number}: {}", exchange.describe());
    }
    exchange.check();
    let joiner = exchange.join();
    leave(&mut exchange, 1);
    exchange.check();
    let learned = exchange.sim.table(joiner).len();
    assert!(learned > prefixes * 4 / 5, "{learned} routes of {prefixes} prefixes for the member that joined");
}

/// A member's router is shut, and then the member leaves.
fn leave(exchange: &mut Exchange, slot: u32) {
    exchange.sim.shut_router(slot);
    exchange.oracle.withdraw_all(slot);
    assert!(exchange.sim.settle(LIMIT), "{}", exchange.describe());
    assert!(!exchange.sim.is_router_up(slot));
    assert!(exchange.sim.table(slot).is_empty());
    exchange.leave(slot);
}

in_both_modes!(routers_learn_the_right_tables_through_kills_and_ended_sessions);
fn routers_learn_the_right_tables_through_kills_and_ended_sessions(export: ExportMode) {
    for seed in 900..900 + 2 * crate::common::factor() as u64 {
        let mut exchange = exchange(5, seed, export);
        for round in 0..24 {
            exchange.random_change(true);
            match round % 6 {
                2 => flap(&mut exchange),
                5 => {
                    exchange.kill_one();
                }
                _ => {}
            }
            if round % 3 == 2 {
                exchange.check();
            }
        }
        exchange.check();
    }
}

in_both_modes!(a_silent_routers_routes_are_gone_after_the_hold_time_and_back_with_it);
fn a_silent_routers_routes_are_gone_after_the_hold_time_and_back_with_it(export: ExportMode) {
    let mut exchange = exchange(4, 910, export);
    for slot in 0..4 {
        exchange.announce(slot, &[nlri("20.1.0.0/16")], &route(slot, &[64_510], &[]));
        exchange.announce(slot, &[nlri(&format!("20.{}.0.0/16", 10 + slot))], &route(slot, &[], &[]));
    }
    exchange.check();
    let before = exchange.oracle.clone();
    exchange.sim.mute_router(2, true);
    exchange.sim.pass(Duration::from_secs(60));
    exchange.compare();
    exchange.sim.pass(Duration::from_secs(40));
    assert!(!exchange.sim.is_router_up(2) && exchange.sim.table(2).is_empty());
    exchange.oracle.withdraw_all(2);
    assert!(exchange.sim.settle(LIMIT), "{}", exchange.describe());
    for slot in [0, 1, 3] {
        assert_eq!(exchange.sim.table(slot).len(), 3, "the common prefix, and those of the two others");
    }
    exchange.sim.mute_router(2, false);
    exchange.oracle = before;
    exchange.check();
    assert_eq!(exchange.sim.router_counters(2).expect("a router").established, 2);
}

in_both_modes!(a_router_that_asks_for_its_routes_again_gets_each);
fn a_router_that_asks_for_its_routes_again_gets_each(export: ExportMode) {
    let mut exchange = exchange(3, 920, export);
    for slot in 0..3 {
        let prefixes: Vec<_> = (0..50).map(|n| nlri(&format!("20.{slot}.{n}.0/24"))).collect();
        exchange.announce(slot, &prefixes, &route(slot, &[], &[]));
    }
    exchange.check();
    let received = |exchange: &Exchange| exchange.sim.router_counters(0).expect("a router").received;
    let before = received(&exchange);
    exchange.sim.refresh_router(0, Afi::Ipv4);
    exchange.check();
    let after = received(&exchange);
    assert!(after.update >= before.update + 2, "one UPDATE for each other member: {before:?} {after:?}");
    assert_eq!(after.route_refresh, before.route_refresh + 2, "this router marks begin and end");
}

#[test]
fn keepalives_hold_idle_sessions_for_an_hour() {
    let mut exchange = exchange(3, 930, ExportMode::Direct);
    exchange.announce(0, &[nlri("20.1.0.0/16")], &route(0, &[], &[]));
    exchange.check();
    exchange.sim.pass(Duration::from_secs(3600));
    exchange.compare();
    for slot in 0..3 {
        let counters = exchange.sim.router_counters(slot).expect("a router");
        assert_eq!(counters.established, 1);
        assert!(counters.received.keepalive >= 3600 / 30, "{counters:?}");
    }
}

// Those of fifty routers take longest, and begin first by their names: others run beside them.

in_both_modes!(ten_routers_replay_routeviews_2013);
fn ten_routers_replay_routeviews_2013(export: ExportMode) {
    replay(10, 500, export);
}

in_both_modes!(fifty_routers_replay_routeviews_2013);
fn fifty_routers_replay_routeviews_2013(export: ExportMode) {
    replay(50, 1000, export);
}

in_both_modes!(ten_routers_learn_a_table_of_ris_2015);
fn ten_routers_learn_a_table_of_ris_2015(export: ExportMode) {
    table(10, export);
}

in_both_modes!(fifty_routers_learn_a_table_of_ris_2015);
fn fifty_routers_learn_a_table_of_ris_2015(export: ExportMode) {
    table(50, export);
}
