//! Members that are sent everything hold up nothing that changes meanwhile.
//!
//! SIX, slices in mode `mpc`: eight members that come back with nothing, with a link of 10 ms between the parties: the others' median and
//! ninth decile stay below twice what they are without.

use std::time::Duration;

use wayleave_bgp::Nlri;
use wayleave_lab::sim::costs::{Costs, Wire};
use wayleave_lab::sim::{Node, Setup, Sim};
use wayleave_route_server::object::ExportMode;

use crate::common::{LIMIT, asn, nlri, route};

const MEMBERS: u32 = 20;
/// The members that come back: they take and discard.
const BACK: std::ops::Range<u32> = 10..18;
const TICK: Duration = Duration::from_millis(50);
/// The prefix whose route changes: slots 0 and 1 announce it.
const LIVE: &str = "21.0.0.0/16";
/// Prefixes that whoever comes back is sent.
const TABLE: u32 = 20_000;

fn exchange() -> Sim {
    let between_parties = Wire { delay: Duration::from_millis(10), ..Wire::LAN };
    let costs = Some(Costs { between_parties, ..Costs::default() });
    let sinks = (3..MEMBERS).collect();
    let setup = Setup {
        members: MEMBERS as usize,
        tick: TICK,
        seed: 5,
        costs,
        sinks,
        export: ExportMode::Mpc,
        ..Setup::default()
    };
    let mut sim = Sim::new(setup);
    assert!(sim.settle(LIMIT));
    for i in 0..TABLE {
        let prefix = nlri(&format!("30.{}.{}.0/24", i / 256, i % 256));
        sim.announce(1, &[prefix], &route(1, &[64500, 64600 + i % 1000], &[]));
    }
    for slot in [0, 1] {
        sim.announce(slot, &[nlri(LIVE)], &route(slot, &[64500], &[]));
    }
    assert!(sim.settle(LIMIT));
    sim
}

fn first_as(sim: &Sim, nlri: &Nlri) -> Option<u32> {
    sim.tables[&2].get(&nlri.prefix).and_then(|attributes| attributes.as_path().first_asn()).map(|asn| asn.0)
}

/// Virtual time until a change of the route of slot 0 to [`LIVE`] is at member 2. Each second one moves the choice to slot 1.
fn latency(sim: &mut Sim, change: u32) -> Duration {
    let (begin, prefix) = (sim.now().instant, nlri(LIVE));
    let is_long = change.is_multiple_of(2);
    sim.announce(0, &[prefix], &route(0, if is_long { &[64500, 64501, 64502] } else { &[] }, &[]));
    let wanted = asn(u32::from(is_long)).0;
    while first_as(sim, &prefix) != Some(wanted) {
        assert!(sim.step(LIMIT), "the route arrives");
    }
    sim.now().instant - begin
}

/// The median and the ninth decile.
fn deciles(mut all: Vec<Duration>) -> [Duration; 2] {
    all.sort_unstable();
    [5, 9].map(|decile| all[all.len() * decile / 10])
}

#[test]
fn members_that_are_sent_everything_hold_up_nothing_that_changes() {
    let mut sim = exchange();
    let measure = |sim: &mut Sim, change: u32| {
        let latency = latency(sim, change);
        let pause = Duration::from_millis(sim.choose(20) as u64);
        sim.pass(pause);
        latency
    };
    let quiet = deciles((0..40).map(|change| measure(&mut sim, change)).collect());
    for slot in BACK {
        sim.kill(Node::Member(slot));
    }
    assert!(sim.settle(LIMIT));
    for slot in BACK {
        sim.start(Node::Member(slot));
    }
    sim.connect_all();
    let taken: Vec<u64> = BACK.map(|slot| sim.taken(slot).deliveries).collect();
    let begin = sim.now().instant;
    let is_whole =
        |sim: &Sim| BACK.zip(&taken).all(|(slot, before)| sim.taken(slot).deliveries >= before + u64::from(TABLE));
    let mut beside = Vec::new();
    while !is_whole(&sim) {
        beside.push(measure(&mut sim, beside.len() as u32));
    }
    println!(
        "quiet: {quiet:?}; while eight members are sent everything, {:?}: {:?} of {}",
        sim.now().instant - begin,
        deciles(beside.clone()),
        beside.len()
    );
    assert!(beside.len() >= 6, "{} changes", beside.len());
    assert!(deciles(beside).iter().zip(quiet).all(|(beside, quiet)| *beside < 2 * quiet));
}
