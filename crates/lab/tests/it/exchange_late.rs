//! A member whose rankings come late costs the others no time: rounds wait for the public time at which rankings leave and one allowance.
//!
//! SIX, late rankings: one of fifty members ranks ten milliseconds before the last moment: the others' median and an announcer's
//! rate change by less than a tenth; its results come to it alone.

use std::time::Duration;

use wayleave_bgp::Nlri;
use wayleave_lab::sim::costs::{Costs, Wire};
use wayleave_lab::sim::{Node, PARTIES, Setup, Sim};

use crate::common::{LIMIT, asn, nlri, route};

const MEMBERS: u32 = 50;
/// The member whose rankings come late. Those above it take and discard.
const LATE: u32 = 5;
const TICK: Duration = Duration::from_millis(50);
/// How much later than by its schedule a ranking comes: the parties take it for a second after that.
const DELAY: Duration = Duration::from_millis(990);
/// The prefix whose route changes: slots 0 and 1 announce it.
const LIVE: &str = "21.0.0.0/16";
const CHANGES: u32 = 60;
/// Contested prefixes that are announced in one go.
const TABLE: u32 = 3_000;

fn exchange(seed: u64) -> Sim {
    let costs = Some(Costs::default());
    let sinks = (LATE + 1..MEMBERS).collect();
    let mut sim = Sim::new(Setup { members: MEMBERS as usize, tick: TICK, seed, costs, sinks, ..Setup::default() });
    assert!(sim.settle(LIMIT));
    for slot in [0, 1] {
        sim.announce(slot, &[nlri(LIVE)], &route(slot, &[64500], &[]));
    }
    assert!(sim.settle(LIMIT));
    sim
}

/// From now on everything that the late member sends takes longer.
fn delay(sim: &mut Sim) {
    for party in PARTIES {
        let wires = &mut sim.costs().expect("it has costs").wires;
        wires.insert((Node::Member(LATE), party), Wire { delay: DELAY, ..Wire::LAN });
    }
}

fn first_as(sim: &Sim, slot: u32, nlri: &Nlri) -> Option<u32> {
    sim.tables[&slot].get(&nlri.prefix).and_then(|attributes| attributes.as_path().first_asn()).map(|asn| asn.0)
}

/// Virtual time until a change of the route of slot 0 to [`LIVE`] is at member 2. Each second one moves the choice to slot 1.
fn latency(sim: &mut Sim, change: u32) -> Duration {
    let (begin, prefix) = (sim.now().instant, nlri(LIVE));
    let is_long = change.is_multiple_of(2);
    sim.announce(0, &[prefix], &route(0, if is_long { &[64500, 64501, 64502] } else { &[] }, &[]));
    let wanted = asn(u32::from(is_long)).0;
    while first_as(sim, 2, &prefix) != Some(wanted) {
        assert!(sim.step(LIMIT), "the route arrives");
    }
    sim.now().instant - begin
}

/// The median of the latencies of changes at random moments.
fn median(sim: &mut Sim) -> Duration {
    let mut all: Vec<Duration> = Vec::new();
    for change in 0..CHANGES {
        all.push(latency(sim, change));
        let pause = Duration::from_millis(sim.choose(120) as u64);
        sim.pass(pause);
    }
    all.sort_unstable();
    all[all.len() / 2]
}

/// Routes a second at which an announcer's routes to prefixes that another one has, too, come to member 2.
fn rate(sim: &mut Sim) -> f64 {
    let table: Vec<Nlri> = (0..TABLE).map(|i| nlri(&format!("30.{}.{}.0/24", i / 256, i % 256))).collect();
    for prefix in &table {
        sim.announce(1, &[*prefix], &route(1, &[64500, 64501], &[]));
    }
    while table.iter().any(|prefix| first_as(sim, 2, prefix).is_none()) {
        sim.pass(TICK);
    }
    sim.pass(Duration::from_secs(3));
    let begin = sim.now().instant;
    for prefix in &table {
        sim.announce(0, &[*prefix], &route(0, &[], &[]));
    }
    while table.iter().any(|prefix| first_as(sim, 2, prefix) != Some(asn(0).0)) {
        sim.pass(Duration::from_millis(10));
        assert!(sim.now().instant - begin < Duration::from_secs(120), "the routes arrive");
    }
    f64::from(TABLE) / (sim.now().instant - begin).as_secs_f64()
}

#[test]
fn one_member_that_ranks_just_before_the_deadline_changes_nobodys_latency() {
    let mut sim = exchange(3);
    // What the parties measure of links is of the last hour.
    median(&mut sim);
    let before = median(&mut sim);
    delay(&mut sim);
    let after = median(&mut sim);
    println!("p50 of the others: {before:?} without, {after:?} with one late member");
    assert!(after < before + before / 10, "{after:?} with one late member, {before:?} without");
}

#[test]
fn one_member_that_ranks_just_before_the_deadline_changes_no_announcers_rate() {
    let play = |is_late: bool| {
        let mut sim = exchange(3);
        median(&mut sim);
        if is_late {
            delay(&mut sim);
        }
        rate(&mut sim)
    };
    let (before, after) = (play(false), play(true));
    println!("rate of an announcer: {before:.0} routes a second without, {after:.0} with one late member");
    assert!(after > before * 0.9, "{after:.0} routes a second with one late member, {before:.0} without");
}
