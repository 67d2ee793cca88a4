//! Rounds beside batches: no update of a route waits for what is evaluated slowly, or again.
//!
//! SIX, who waits for rounds and places: large rounds, rankings of a batch that party 2 does not have yet, a link that
//! is replaced while its round goes on: others are served, the parties keep their link, nothing comes before a welcome.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::common::{Exchange, LIMIT, asn, in_both_modes, nlri, route};
use wayleave_bgp::Nlri;
use wayleave_lab::sim::costs::{Costs, MEASURED, Operations, Wire};
use wayleave_lab::sim::{Node, PARTIES, Setup, Sim};
use wayleave_route_server::frames::ToMember;
use wayleave_route_server::object::{ExportMode, MAX_PREFIXES};
use wayleave_route_server::party::{Counters, PartyEvent};

const TICK: Duration = Duration::from_millis(50);

/// The prefix whose route changes while something else goes on: slots 0 and 1 announce it.
const LIVE: &str = "21.0.0.0/16";

fn prefixes(second: u32, count: u32) -> Vec<Nlri> {
    (0..count).map(|i| nlri(&format!("{second}.{}.{}.0/24", i / 256, i % 256))).collect()
}

fn counters(sim: &Sim) -> Counters {
    sim.party(PARTIES[0]).expect("it runs").counters().clone()
}

fn open_rounds(sim: &Sim) -> usize {
    PARTIES.iter().filter_map(|party| sim.party(*party)).map(|party| party.status().rounds).max().unwrap_or(0)
}

/// Virtual time until a change of the route of slot 0 to [`LIVE`] is at member 2. Each second one moves the choice to slot 1.
fn latency(exchange: &mut Exchange, change: u32) -> Duration {
    let (begin, prefix) = (exchange.sim.now().instant, nlri(LIVE));
    let is_long = change.is_multiple_of(2);
    exchange.announce(0, &[prefix], &route(0, if is_long { &[64500, 64501, 64502] } else { &[] }, &[]));
    let wanted = asn(u32::from(is_long));
    while exchange.sim.tables[&2].get(&prefix.prefix).and_then(|a| a.as_path().first_asn()) != Some(wanted) {
        assert!(exchange.sim.step(LIMIT), "the route arrives");
        exchange.sim.connect_all();
    }
    exchange.sim.now().instant - begin
}

fn values(of: &[(u32, u8)]) -> BTreeMap<u32, u8> {
    of.iter().copied().collect()
}

in_both_modes!(only_prefixes_with_a_candidate_whose_value_changed_are_evaluated_again);
fn only_prefixes_with_a_candidate_whose_value_changed_are_evaluated_again(export: ExportMode) {
    let mut exchange = Exchange::new(Setup { members: 4, export, ..Setup::default() });
    for (slot, second) in [(0, 20), (1, 20), (2, 30), (3, 30), (1, 40)] {
        exchange.announce(slot, &prefixes(second, 10), &route(slot, &[64500], &[]));
    }
    exchange.check();
    // The first one concerns all that has something to choose.
    let mut before = counters(&exchange.sim);
    let mut evaluated_again = |exchange: &mut Exchange, recommendation: &[(u32, u8)]| {
        exchange.recommend(&values(recommendation));
        exchange.check();
        let after = counters(&exchange.sim);
        let done = (after.listed - before.listed, after.lanes - before.lanes);
        before = after;
        done
    };
    assert_eq!(evaluated_again(&mut exchange, &[(0, 1), (1, 2), (2, 1), (3, 2)]), (2 * 20 * 4, 20 * 4));
    assert_eq!(evaluated_again(&mut exchange, &[(0, 1), (1, 0), (2, 1), (3, 2)]), (2 * 10 * 4, 10 * 4));
    assert_eq!(
        evaluated_again(&mut exchange, &[(0, 1), (2, 1), (3, 0)]),
        (2 * 10 * 4, 10 * 4),
        "a value of 0 is no value"
    );
    assert_eq!(evaluated_again(&mut exchange, &[(0, 1), (2, 1)]), (0, 0));
    assert_eq!(evaluated_again(&mut exchange, &[(0, 0), (2, 5)]), (2 * 20 * 4, 20 * 4));
}

in_both_modes!(values_that_change_again_while_prefixes_are_evaluated_add_to_what_is_left);
fn values_that_change_again_while_prefixes_are_evaluated_add_to_what_is_left(export: ExportMode) {
    for seed in 0..3 {
        let mut exchange = Exchange::new(Setup { members: 4, tick: TICK, seed, export, ..Setup::default() });
        for (slot, second) in [(0, 20), (1, 20), (2, 30), (3, 30), (0, 40), (3, 40)] {
            exchange.announce(slot, &prefixes(second, 800), &route(slot, &[64500], &[]));
        }
        exchange.recommend(&values(&[(0, 1), (1, 2), (2, 1), (3, 2)]));
        exchange.check();
        let batches = counters(&exchange.sim).batches;
        for (change, wait) in
            [(values(&[(0, 3), (1, 2), (2, 1), (3, 2)]), 1), (values(&[(0, 3), (1, 4), (2, 3), (3, 2)]), 1)]
        {
            exchange.recommend(&change);
            let until = counters(&exchange.sim).batches + wait;
            while counters(&exchange.sim).batches < until {
                assert!(exchange.sim.step(LIMIT));
            }
        }
        exchange.recommend(&values(&[(0, 3), (1, 4), (2, 3), (3, 5)]));
        exchange.check();
        assert!(counters(&exchange.sim).batches > batches + 3, "it takes more than one batch");
    }
}

#[test]
fn a_recommendation_counts_for_its_epoch_however_often_it_changes() {
    let epoch = Duration::from_secs(900);
    let mut exchange = Exchange::new(Setup { members: 3, tick: TICK, epoch, ..Setup::default() });
    for slot in [0, 1] {
        exchange.announce(slot, &prefixes(20, 1), &route(slot, &[64500], &[]));
    }
    exchange.recommend(&values(&[(1, 5)]));
    exchange.check();
    let table = |exchange: &Exchange| exchange.sim.tables[&2][&prefixes(20, 1)[0].prefix].as_path().first_asn();
    assert_eq!(table(&exchange), Some(asn(1)));
    for value in [6, 7, 8] {
        exchange.recommend(&values(&[(0, value)]));
        exchange.sim.pass(Duration::from_secs(60));
        assert_eq!(table(&exchange), Some(asn(1)), "still the one of this epoch");
    }
    let later = |(_, event): &&(Node, PartyEvent)| matches!(event, PartyEvent::EpochLater { .. });
    assert_eq!(exchange.sim.party_events.iter().filter(later).count(), 3, "its operator is told");
    let epochs = exchange.sim.party(PARTIES[0]).expect("it runs").status().epoch;
    exchange.sim.pass(epoch);
    exchange.check();
    assert_eq!(table(&exchange), Some(asn(0)));
    assert_eq!(exchange.sim.party(PARTIES[0]).expect("it runs").status().epoch, epochs + 1, "one for all changes");
}

#[test]
fn the_latest_recommendation_counts_whenever_the_parties_lose_their_link() {
    let mut exchange = Exchange::new(Setup { members: 3, ..Setup::default() });
    for slot in [0, 1] {
        exchange.announce(slot, &prefixes(20, 3), &route(slot, &[64500], &[]));
    }
    exchange.check();
    for steps in 0..30u8 {
        exchange.recommend(&values(&[(steps.into(), 1), (0, 10 + steps)]));
        for _ in 0..steps {
            exchange.sim.step(LIMIT);
        }
        exchange.recommend(&values(&[(1, 10 + steps)]));
        for _ in 0..steps % 3 {
            exchange.sim.step(LIMIT);
        }
        exchange.sim.cut_parties();
        exchange.check();
    }
}

/// An exchange in which comparing takes its time.
fn slow_to_compare(members: usize, comparator: u64) -> Exchange {
    let operations = Operations { comparator, ..MEASURED };
    let between_parties = Wire { bytes_per_second: 1_250_000_000, ..Wire::LAN };
    let costs = Costs { operations, between_parties, ..Costs::default() };
    let mut exchange = Exchange::new(Setup { members, tick: TICK, costs: Some(costs), ..Setup::default() });
    exchange.announce(1, &[nlri(LIVE)], &route(1, &[64500], &[]));
    exchange.announce(0, &[nlri(LIVE)], &route(0, &[], &[]));
    exchange
}

#[test]
fn a_changed_recommendation_delays_no_update() {
    let mut exchange = slow_to_compare(8, 2_000);
    for slot in [2, 3] {
        for second in [30, 40, 50, 60, 70] {
            exchange.announce(slot, &prefixes(second, 1_000), &route(slot, &[64500], &[]));
        }
    }
    exchange.recommend(&values(&[(2, 1)]));
    exchange.check();
    let quiet = (0..20).map(|change| latency(&mut exchange, change)).max().expect("some");
    exchange.check();
    exchange.recommend(&values(&[(2, 1), (3, 2)]));
    let lanes = counters(&exchange.sim).lanes;
    let (mut during, mut change) = (Vec::new(), 20);
    while counters(&exchange.sim).lanes < lanes + 5_000 * 8 {
        during.push(latency(&mut exchange, change));
        change += 1;
    }
    exchange.check();
    assert!(during.len() >= 3, "it takes a while: {during:?}");
    let slowest = during.iter().max().expect("some");
    assert!(*slowest < 2 * quiet, "{during:?}, and at most {quiet:?} before");
}

#[test]
fn a_round_with_many_prefixes_delays_no_other() {
    let mut exchange = slow_to_compare(20, 2_000);
    for slot in [2, 3, 4] {
        exchange.announce(slot, &prefixes(30, 4_000), &route(slot, &[64500], &[]));
    }
    exchange.check();
    let before = counters(&exchange.sim);
    exchange.announce(5, &prefixes(30, 4_000), &route(5, &[64500], &[]));
    while counters(&exchange.sim).comparators == before.comparators {
        assert!(exchange.sim.step(LIMIT));
    }
    for change in 0..2 {
        latency(&mut exchange, change);
    }
    let after = counters(&exchange.sim);
    assert!(after.lanes - before.lanes < 4_000 * 20, "the other changes were there before it ended");
    exchange.check();
}

/// What a round of 4,000 prefixes among 16 members takes, and changes of another prefix beside it.
struct ChangesBesideRounds {
    /// The longest of such changes, and how many there were.
    slowest: Duration,
    changes: u32,
    /// Until the round has ended, and messages of the engine of party 1 for each round.
    took: Duration,
    messages: u64,
}

fn beside_large_rounds(exchange: &mut Exchange, rounds: u32, first: &mut u32) -> ChangesBesideRounds {
    const PREFIXES: u32 = 4_000;
    let mut out = ChangesBesideRounds { slowest: Duration::ZERO, changes: 0, took: Duration::ZERO, messages: 0 };
    let messages = counters(&exchange.sim).engine_messages;
    for round in 0..rounds {
        let (begin, before) = (exchange.sim.now().instant, counters(&exchange.sim));
        exchange.announce(5, &prefixes(30, PREFIXES), &route(5, &[64500 + round], &[]));
        while counters(&exchange.sim).rounds == before.rounds {
            assert!(exchange.sim.step(LIMIT));
            if counters(&exchange.sim).comparators > before.comparators {
                break;
            }
        }
        while counters(&exchange.sim).lanes - before.lanes < u64::from(PREFIXES) * 16 {
            out.slowest = out.slowest.max(latency(exchange, *first));
            (*first, out.changes) = (*first + 1, out.changes + 1);
        }
        out.took += exchange.sim.now().instant - begin;
    }
    out.messages = (counters(&exchange.sim).engine_messages - messages) / u64::from(rounds);
    out.took /= rounds;
    out
}

#[test]
fn a_change_beside_a_large_round_takes_less_than_twice_its_time_and_a_tick() {
    let costs = Some(Costs::default());
    let mut exchange = Exchange::new(Setup { members: 16, tick: TICK, costs, ..Setup::default() });
    exchange.announce(1, &[nlri(LIVE)], &route(1, &[64500], &[]));
    exchange.announce(0, &[nlri(LIVE)], &route(0, &[], &[]));
    for slot in [2, 3, 4] {
        exchange.announce(slot, &prefixes(30, 4_000), &route(slot, &[64500], &[]));
    }
    exchange.check();
    let quiet = (0..40).map(|change| latency(&mut exchange, change)).max().expect("some");
    let mut change = 40;
    let ChangesBesideRounds { slowest, changes, took, messages } = beside_large_rounds(&mut exchange, 6, &mut change);
    println!("quiet {quiet:?}, beside {slowest:?} of {changes}; a round takes {took:?} and {messages} messages");
    exchange.check();
    assert!(changes >= 12, "{changes} changes");
    // What comes while a batch is made waits for the tick after the next.
    assert!(slowest < 2 * quiet + TICK, "{slowest:?} beside large rounds, {quiet:?} without");
}

#[test]
fn a_member_that_comes_back_while_its_round_goes_on_gets_nothing_of_it_before_its_welcome() {
    let mut exchange = slow_to_compare(8, 20_000);
    for slot in [2, 3] {
        exchange.announce(slot, &prefixes(30, 600), &route(slot, &[64500], &[]));
    }
    exchange.check();
    for cut in 0..8 {
        exchange.announce(2, &prefixes(30, 600), &route(2, &[64502 + cut], &[]));
        let lanes = counters(&exchange.sim).comparators;
        while counters(&exchange.sim).comparators == lanes {
            assert!(exchange.sim.step(LIMIT));
        }
        exchange.sim.cut_member(6);
        // Only once both links are up does it say who it is, and its results come meanwhile.
        exchange.sim.connect(Node::Member(6), PARTIES[0]);
        exchange.sim.run_for(Duration::from_millis(200));
        exchange.sim.connect(Node::Member(6), PARTIES[1]);
        exchange.check();
    }
    assert_eq!(exchange.sim.alarms(6).collect::<Vec<_>>(), Vec::<&wayleave_route_server::member::Alarm>::new());
    assert_eq!(exchange.sim.closed.iter().find(|(.., why)| why.contains("before the welcome")), None);
}

#[test]
fn what_changes_without_end_keeps_nobody_from_being_served() {
    let mut exchange = slow_to_compare(8, 40_000);
    let others = prefixes(40, 300);
    for (slot, prefixes) in [(2, &prefixes(30, 600)), (3, &prefixes(30, 600)), (4, &others), (5, &others)] {
        exchange.announce(slot, prefixes, &route(slot, &[64500], &[]));
    }
    exchange.check();
    // More changes than the parties can compare in the time, and a member comes back.
    let (mut turns, mut changes) = (0, 0);
    let others_of_6 =
        |exchange: &Exchange| others.iter().filter(|nlri| exchange.sim.tables[&6].contains_key(&nlri.prefix)).count();
    for _ in 0..20 {
        changes += 1;
        exchange.announce(2, &prefixes(30, 600), &route(2, if changes % 2 == 0 { &[] } else { &[64501] }, &[]));
        exchange.sim.pass(TICK);
    }
    exchange.sim.kill(Node::Member(6));
    exchange.sim.start(Node::Member(6));
    assert_eq!(others_of_6(&exchange), 0);
    while others_of_6(&exchange) < others.len() {
        exchange.announce(2, &prefixes(30, 600), &route(2, if turns % 2 == 0 { &[] } else { &[64501] }, &[]));
        exchange.sim.pass(TICK);
        turns += 1;
        assert!(turns < 400, "{} routes", others_of_6(&exchange));
    }
    exchange.check();
}

#[test]
fn a_party_comes_back_while_routes_change() {
    let mut exchange = slow_to_compare(8, 2_000);
    for slot in [2, 3] {
        exchange.announce(slot, &prefixes(30, 3_000), &route(slot, &[64500], &[]));
    }
    exchange.check();
    for party in PARTIES {
        exchange.sim.kill(party);
        exchange.sim.start(party);
        for change in 0..6 {
            latency(&mut exchange, change);
        }
        exchange.check();
    }
}

in_both_modes!(tables_equal_the_reference_with_many_rounds_open);
fn tables_equal_the_reference_with_many_rounds_open(export: ExportMode) {
    let mut most = 0;
    for seed in 0..12 {
        let tick = if seed % 2 == 0 { Duration::ZERO } else { Duration::from_millis(5) };
        let mut exchange = Exchange::new(Setup { members: 5, seed, tick, export, ..Setup::default() });
        for round in 0..80 {
            exchange.random_change(round % 8 == 0);
            for _ in 0..exchange.sim.choose(25) {
                exchange.sim.step(Duration::from_secs(5));
            }
            most = most.max(open_rounds(&exchange.sim));
            if round % 27 == 26 {
                exchange.kill_one();
            }
        }
        assert!(exchange.sim.settle(LIMIT));
        exchange.check();
    }
    assert!(most >= 3, "{most} rounds at a time");
}

#[test]
fn a_batch_changes_no_more_than_its_quota_for_those_who_rank() {
    const MEMBERS: usize = 40;
    const PREFIXES: usize = 8_000;
    // As the parties state it: comparators in all lanes, here one a prefix for each member that ranks, that are open because of one
    // announcer.
    const QUOTA: usize = 1 << 15;
    let sinks = (3..MEMBERS as u32).collect();
    let tick = Duration::from_secs(1);
    let mut sim = Sim::new(Setup { members: MEMBERS, tick, sinks, ..Setup::default() });
    assert!(sim.settle(LIMIT));
    let all = prefixes(20, PREFIXES as u32);
    for slot in [0, 1] {
        sim.announce(slot, &all, &route(slot, &[64500], &[]));
        sim.recording = Some(Vec::new());
        assert!(sim.settle(LIMIT));
    }
    let frames = sim.recording.take().expect("it records");
    let to_one = frames.iter().filter(|frame| frame.from == PARTIES[0] && frame.to == Node::Member(2));
    let mut whole = Vec::new();
    let mut listed = Vec::new();
    for frame in to_one {
        let tick = match ToMember::decode(&frame.bytes) {
            Ok(ToMember::Tick(tick)) => tick,
            Ok(ToMember::Part { last, bytes }) => {
                whole.extend(bytes);
                match last.then(|| ToMember::decode(&std::mem::take(&mut whole))) {
                    Some(Ok(ToMember::Tick(tick))) => tick,
                    _ => continue,
                }
            }
            _ => continue,
        };
        listed.push(tick.instances.iter().filter(|instance| instance.len() > 1).count());
    }
    assert_eq!(listed.iter().sum::<usize>(), PREFIXES);
    let most = listed.iter().max().copied().unwrap_or(0) * MEMBERS;
    assert!(most > QUOTA - MAX_PREFIXES * MEMBERS && most <= QUOTA, "{most} of {QUOTA}: {listed:?}");
}
