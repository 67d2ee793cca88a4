//! Limits, crowding and absence: who asks for too much or goes away harms itself, and others get their routes.

use std::time::Duration;

use crate::common::{Exchange, nlri, route};
use wayleave_bgp::Nlri;
use wayleave_lab::sim::{Node, PARTIES, Setup};
use wayleave_route_server::frames::PartyFrame;

fn prefixes(numbers: std::ops::Range<u8>) -> Vec<Nlri> {
    numbers.map(|n| nlri(&format!("20.{n}.0.0/16"))).collect()
}

#[test]
fn a_refusal_for_the_limit_leaves_no_older_wider_export_in_force() {
    let mut exchange = Exchange::new(Setup { max_prefix: 2, ..Setup::default() });
    let known = prefixes(0..2);
    exchange.announce(0, &known, &route(0, &[64500], &[]));
    exchange.check();
    assert!(exchange.sim.tables[&3].contains_key(&known[0].prefix));
    // One UPDATE hides a known prefix from member 3 and brings one too many: it is refused whole.
    let hidden = route(0, &[64500], &["64496:0:65003"]);
    exchange.sim.announce(0, &[known[0], nlri("20.9.0.0/16")], &hidden);
    assert!(exchange.sim.settle(crate::common::LIMIT));
    assert!(!exchange.sim.tables[&3].contains_key(&known[0].prefix), "hidden from 3, whatever else was refused");
}

#[test]
fn a_member_at_its_limit_swaps_prefixes_in_one_tick() {
    let tick = Duration::from_millis(50);
    let mut exchange = Exchange::new(Setup { max_prefix: 3, tick, ..Setup::default() });
    exchange.announce(0, &prefixes(0..3), &route(0, &[64500], &[]));
    exchange.check();
    exchange.withdraw(0, &prefixes(0..3));
    exchange.announce(0, &prefixes(10..13), &route(0, &[64501], &[]));
    exchange.check();
    assert!(exchange.sim.tables[&1].contains_key(&prefixes(10..11)[0].prefix));
}

#[test]
fn many_paths_of_one_member_do_not_crowd_out_another() {
    let mut exchange = Exchange::new(Setup::default());
    let prefix = nlri("20.0.0.0/16");
    let nobody = route(0, &[64500], &["64496:0:0"]);
    for path_id in 0..200 {
        exchange.announce(0, &[Nlri { path_id, ..prefix }], &nobody);
    }
    exchange.announce(1, &[prefix], &route(1, &[64500], &[]));
    exchange.check();
    assert!(exchange.sim.tables[&2].contains_key(&prefix.prefix));
}

#[test]
fn a_member_that_flaps_after_a_quiet_time_keeps_its_routes() {
    let stale = Duration::from_secs(120);
    let mut exchange = Exchange::new(Setup { stale, ..Setup::default() });
    exchange.announce(0, &prefixes(0..3), &route(0, &[64500], &[]));
    exchange.check();
    exchange.sim.pass(Duration::from_secs(1000));
    exchange.sim.kill(Node::Member(0));
    exchange.sim.pass(Duration::from_secs(60));
    assert!(exchange.sim.tables[&1].contains_key(&prefixes(0..1)[0].prefix), "within the stale time");
    exchange.sim.pass(Duration::from_secs(120));
    assert!(exchange.sim.tables[&1].is_empty(), "past it");
    exchange.sim.start(Node::Member(0));
    exchange.check();
}

#[test]
fn a_member_that_goes_while_it_joins_is_not_waited_for() {
    for steps in 0..60 {
        let stale = Duration::from_secs(60);
        let mut exchange = Exchange::new(Setup { stale, seed: 40 + steps, ..Setup::default() });
        exchange.announce(0, &prefixes(0..2), &route(0, &[64500], &[]));
        exchange.check();
        exchange.sim.kill(Node::Member(0));
        exchange.sim.start(Node::Member(0));
        for _ in 0..steps {
            exchange.sim.step(Duration::from_secs(1));
        }
        exchange.sim.kill(Node::Member(0));
        exchange.sim.pass(Duration::from_secs(200));
        assert!(exchange.sim.tables[&1].is_empty(), "after {steps} steps its routes are gone past the stale time");
        for party in PARTIES {
            let active: Vec<u32> = exchange.sim.party(party).expect("it runs").active().collect();
            assert_eq!(active, [1, 2, 3], "after {steps} steps");
        }
    }
}

/// Frames between the parties in which correlations are asked for ahead of need, and the longest message of the engine.
fn setup_seen(exchange: &mut Exchange) -> (usize, usize) {
    let recorded = exchange.sim.recording.take().expect("it records");
    let between = recorded.iter().filter(|frame| PARTIES.contains(&frame.from) && PARTIES.contains(&frame.to));
    let frames: Vec<PartyFrame> = between.map(|frame| PartyFrame::decode(&frame.bytes).expect("a frame")).collect();
    let refills = frames.iter().filter(|frame| matches!(frame, PartyFrame::Refill { .. })).count();
    let length = |frame: &PartyFrame| if let PartyFrame::Engine { bytes, .. } = frame { bytes.len() } else { 0 };
    (refills, frames.iter().map(length).max().unwrap_or(0))
}

#[test]
fn correlations_for_a_burst_are_made_after_a_pause_and_not_while_its_prefixes_wait() {
    let mut exchange = Exchange::new(Setup::default());
    exchange.sim.recording = Some(Vec::new());
    exchange.announce(0, &prefixes(0..1), &route(0, &[64500], &[]));
    exchange.announce(1, &prefixes(0..1), &route(1, &[64500, 64501], &[]));
    exchange.check();
    let (refills, longest) = setup_seen(&mut exchange);
    assert_eq!(refills, 0, "tables are right before any refill");
    assert!(longest > 0, "two routes met");
    exchange.sim.recording = Some(Vec::new());
    assert!(PARTIES.iter().any(|party| !exchange.sim.party(*party).expect("it runs").is_stocked()));
    exchange.sim.fill_pools();
    assert!(PARTIES.iter().all(|party| exchange.sim.party(*party).expect("it runs").is_stocked()));
    let (refills, setup_message) = setup_seen(&mut exchange);
    assert!(refills > 0);
    // A burst: 100 prefixes with two routes each.
    exchange.announce(0, &prefixes(1..101), &route(0, &[64500], &[]));
    exchange.check();
    exchange.sim.recording = Some(Vec::new());
    exchange.announce(1, &prefixes(1..101), &route(1, &[64500, 64501], &[]));
    exchange.check();
    let (refills, longest) = setup_seen(&mut exchange);
    assert_eq!(refills, 0);
    // 400 lanes open 34 rows of bits at once, and no more; correlations for them would be a message of 6,160 bytes.
    assert!(longest < 400 / 8 * 40 && longest < setup_message, "a message of {longest} bytes");
}
