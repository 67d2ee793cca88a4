//! An exchange in which work and links cost time: it survives long rounds, large tables and slow links.

use std::time::{Duration, Instant};

use crate::common::{Exchange, LIMIT, nlri, route};
use wayleave_bgp::Attributes;
use wayleave_core::Prefix;
use wayleave_lab::sim::costs::{Costs, MEASURED, Operations, Wire};
use wayleave_lab::sim::{Node, PARTIES, Setup, Sim, member_key};
use wayleave_route_server::member::MemberEvent;
use wayleave_route_server::object::{self, Description, ExportMode, Fresh, Kind};

const TICK: Duration = Duration::from_millis(50);

fn with_costs(members: usize, costs: Costs) -> Exchange {
    Exchange::new(Setup { members, tick: TICK, costs: Some(costs), ..Setup::default() })
}

/// A route whose attributes take about `octets`: large communities of other systems, which nobody removes.
fn long_route(slot: u32, octets: usize) -> Attributes {
    let communities: Vec<String> = (0..octets / 12).map(|i| format!("64999:{i}:1")).collect();
    let communities: Vec<&str> = communities.iter().map(String::as_str).collect();
    route(slot, &[64500], &communities)
}

fn first_as(sim: &Sim, slot: u32, prefix: Prefix) -> Option<u32> {
    sim.tables[&slot].get(&prefix).and_then(|attributes| attributes.as_path().first_asn()).map(|asn| asn.0)
}

#[test]
fn work_and_links_take_their_time() {
    // A second for each octet's worth of a megabit, and half a second of delay.
    let far = Wire { bytes_per_second: 125_000, delay: Duration::from_millis(500), ..Wire::LAN };
    let latency = |costs: Costs| {
        let mut exchange = with_costs(3, costs);
        let begin = exchange.sim.now().instant;
        exchange.announce(0, &[nlri("20.0.0.0/16")], &route(0, &[64500], &[]));
        while first_as(&exchange.sim, 1, nlri("20.0.0.0/16").prefix).is_none() {
            assert!(exchange.sim.step(LIMIT));
        }
        let took = exchange.sim.now().instant - begin;
        exchange.check();
        took
    };
    let near = latency(Costs::default());
    assert!(near > Duration::from_millis(1) && near < Duration::from_millis(200), "{near:?}");
    // To the parties, between them and back: a delay each.
    let away = latency(Costs { between_parties: far, to_members: far, ..Costs::default() });
    assert!(away > near + 4 * far.delay && away < near + 10 * far.delay, "{away:?}");
    let slow_member = Costs { slower: [(Node::Member(0), 10_000)].into(), ..Costs::default() };
    let slow = latency(slow_member);
    assert!(slow > near + Duration::from_nanos(MEASURED.announced * 5_000), "{slow:?}");
}

#[test]
fn a_round_longer_than_ten_seconds_ends_and_nobody_asks_again() {
    // The parties are far from each other, over a line that others use too.
    let between = Wire { bytes_per_second: 20_000, delay: Duration::from_millis(150), ..Wire::LAN };
    let mut exchange = with_costs(10, Costs { between_parties: between, ..Costs::default() });
    // Prefixes with two to five routes, so that there are several evaluations.
    for prefix in 0..30 {
        for slot in 0..2 + prefix % 4 {
            let attributes = route(slot, &[64500], &[]);
            exchange.announce(slot, &[nlri(&format!("20.{prefix}.0.0/16"))], &attributes);
        }
    }
    exchange.check();
    exchange.sim.forget_events();
    let rounds = |exchange: &Exchange| exchange.sim.party(PARTIES[0]).expect("it runs").counters().rounds;
    let resyncs = |exchange: &mut Exchange| -> u64 {
        (0..10).map(|slot| exchange.sim.member(slot).expect("it runs").counters().resyncs).sum()
    };
    let (rounds_before, resyncs_before) = (rounds(&exchange), resyncs(&mut exchange));
    // Party 1 restarts: every member gets everything again, and all prefixes are evaluated for all.
    let begin = exchange.sim.now().instant;
    exchange.sim.kill(PARTIES[0]);
    exchange.sim.start(PARTIES[0]);
    exchange.check();
    let took = exchange.sim.now().instant - begin;
    assert!(took > Duration::from_secs(10), "the test's round is long: {took:?}");
    let overdue = exchange.sim.member_events.iter().filter(|(_, e)| matches!(e, MemberEvent::OutcomeOverdue { .. }));
    assert_eq!(overdue.count(), 0, "nobody gave up");
    assert_eq!(resyncs(&mut exchange), resyncs_before, "nobody asks again");
    let rounds = rounds(&exchange) - rounds_before.min(rounds(&exchange));
    assert!(rounds <= 12, "{rounds} rounds in {took:?}");
}

/// Nanoseconds of `work`, the median of five turns.
#[expect(clippy::disallowed_methods, reason = "a measurement")]
fn nanoseconds(times: u32, mut work: impl FnMut()) -> u64 {
    let mut turns: Vec<u64> = (0..5)
        .map(|_| {
            let begin = Instant::now();
            (0..times).for_each(|_| work());
            u64::try_from(begin.elapsed().as_nanos()).expect("short") / u64::from(times)
        })
        .collect();
    turns.sort_unstable();
    turns[2]
}

#[test]
#[ignore = "a measurement"]
fn operations_cost_what_the_table_says() {
    use std::hint::black_box;
    let key = member_key(1, 0);
    let prefixes = vec![nlri("20.0.0.0/16")];
    let description =
        Description { slot: 0, set: 1, epoch: 1, version: 1, salt: [7; 32], kind: Kind::Announce { prefixes } };
    let fresh = Fresh { key: [1; 16], seed: [2; 32], openings: [[3; 32], [4; 32]] };
    let (inside, row) = (long_route(0, 200).encode(), vec![true; 750]);
    let make =
        || object::announce(ExportMode::Direct, "sim-ix", description.clone(), (&inside, &[0; 32]), &row, &fresh, &key);
    let sealed = make();
    let handle = description.handle("sim-ix");
    let shares = |slot: u32| {
        let at = slot as usize * 16;
        [sealed.one.key_share(None, slot), *sealed.two.row[at..].first_chunk().expect("a share")]
    };
    let [one, two] = shares(3);
    let blob = &sealed.blob;
    let open = |one: &[u8; 16]| object::open("sim-ix", 1, &handle, [one, &two], blob).is_ok();
    assert!(open(&one));
    let opened = nanoseconds(2_000, || {
        black_box(open(&one));
    });
    let announced = nanoseconds(500, || {
        black_box(make());
    });
    let checked = nanoseconds(500, || {
        black_box(sealed.header.is_signed_by("sim-ix", &key.verifying_key()) && sealed.two.matches(&sealed.header));
    });
    let delivery = nanoseconds(20_000, || {
        black_box(sealed.one.key_share(None, 3));
    });
    let Operations { announced: a, opened: o, checked: c, delivery: d, .. } = MEASURED;
    eprintln!(
        "announced {announced} ({a}), opened without a signature {opened} ({o}), checked {checked} ({c}), delivery {delivery} ({d})"
    );
}
