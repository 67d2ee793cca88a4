//! Real traces through a simulated exchange: every router's table equals the plaintext route server's.

#![allow(clippy::disallowed_methods, reason = "a test reads its traces")]

mod common;

use std::fs::File;
use std::path::Path;

use common::Exchange;
use wayleave_lab::sim::Setup;
use wayleave_lab::trace::{self, TraceUpdate};

fn test_data(name: &str) -> File {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../test-data/bgp").join(name);
    File::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn load(name: &str, most_prefixes: usize) -> Vec<TraceUpdate> {
    trace::load(test_data(name), most_prefixes).expect("a readable trace")
}

/// Gives an UPDATE to a member, as its own.
fn give(exchange: &mut Exchange, slot: u32, update: &TraceUpdate) {
    if !update.withdrawn.is_empty() {
        exchange.withdraw(slot, &update.withdrawn);
    }
    if let Some(attributes) = update.attributes.as_ref().filter(|_| !update.announced.is_empty()) {
        exchange.announce(slot, &update.announced, &trace::as_member(attributes, slot));
    }
}

/// Replays a trace of many peers, each peer a member, with a random change of policy, recommendation or membership
/// now and then.
fn replay(name: &str, members: usize, burst: usize, most: usize) {
    let updates = load(name, usize::MAX);
    let updates = &updates[..most.min(updates.len())];
    let mut exchange = Exchange::new(Setup { members, seed: 7, ..Setup::default() });
    for (i, burst) in updates.chunks(burst).enumerate() {
        for update in burst {
            let slot = u32::try_from(update.peer % members).expect("few members");
            if exchange.sim.tables.contains_key(&slot) {
                give(&mut exchange, slot, update);
            }
        }
        if i % 10 == 9 {
            exchange.random_change(true);
        }
        assert!(exchange.sim.settle(common::LIMIT), "at burst {i}");
    }
    exchange.check();
    let routes: usize = exchange.sim.tables.values().map(std::collections::BTreeMap::len).sum();
    assert!(routes > members, "{routes} routes in {members} tables");
}

/// A full table, announced by several members: the first by its own path, others by a longer one.
fn table(members: usize, prefixes: usize) {
    let updates = load("ris.2015-10-23.first-50000-prefixes.updates.bz2", prefixes);
    let mut exchange = Exchange::new(Setup { members, seed: 8, ..Setup::default() });
    for (burst_number, burst) in updates.chunks(400).enumerate() {
        for (i, update) in burst.iter().enumerate() {
            for copy in 0..1 + i % 3 {
                let slot = u32::try_from((i * 7 + burst_number + copy * 11) % members).expect("few members");
                give(&mut exchange, slot, update);
            }
        }
        assert!(exchange.sim.settle(common::LIMIT), "at burst {burst_number}");
    }
    exchange.check();
}

#[test]
fn routeviews_2013_among_10_members() {
    replay("routeviews.2013-12-01.updates.bz2", 10, 500, usize::MAX);
}

#[test]
fn routeviews_2013_among_50_members() {
    replay("routeviews.2013-12-01.updates.bz2", 50, 1000, usize::MAX);
}

#[test]
fn ris_2015_table_among_10_members() {
    table(10, 50_000);
}

#[test]
fn ris_2015_table_among_50_members() {
    table(50, 50_000);
}
