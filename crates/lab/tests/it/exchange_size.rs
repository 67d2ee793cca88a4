//! An exchange in which work and links cost time: it survives long rounds, large tables and slow links.
//!
//! SIX, long rounds: work and links cost virtual time; a party returns where a round takes longer than ten seconds:
//! results come in parts; nobody gives up or asks again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{Exchange, LIMIT, asn, in_both_modes, nlri, route};
use wayleave_bgp::{Attributes, Nlri};
use wayleave_core::Prefix;
use wayleave_lab::sim::bad::Forger;
use wayleave_lab::sim::costs::{Costs, MEASURED, Operations, Wire};
use wayleave_lab::sim::{Node, PARTIES, Recorded, Setup, Sim, member_key};
use wayleave_route_server::credit;
use wayleave_route_server::frames::{FromMember, PartyFrame, Refusal, Tick, ToMember};
use wayleave_route_server::member::MemberEvent;
use wayleave_route_server::object::{self, Description, ExportMode, Format, Fresh, Handle, Header, Kind, MAX_PREFIXES};
use wayleave_route_server::object_table::{ObjectEntry, ObjectTable, Part};
use wayleave_route_server::party::{Budget, PartyEvent};

const TICK: Duration = Duration::from_millis(50);

fn with_costs(members: usize, export: ExportMode, costs: Costs) -> Exchange {
    Exchange::new(Setup { members, tick: TICK, export, costs: Some(costs), ..Setup::default() })
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

in_both_modes!(work_and_links_take_their_time);
fn work_and_links_take_their_time(export: ExportMode) {
    // A second for each octet's worth of a megabit, and half a second of delay.
    let far = Wire { bytes_per_second: 125_000, delay: Duration::from_millis(500), ..Wire::LAN };
    let latency = |costs: Costs| {
        let mut exchange = with_costs(3, export, costs);
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

in_both_modes!(a_round_longer_than_ten_seconds_ends_and_nobody_asks_again);
fn a_round_longer_than_ten_seconds_ends_and_nobody_asks_again(export: ExportMode) {
    // The parties are far from each other, over a line that others use too.
    let between = Wire { bytes_per_second: 20_000, delay: Duration::from_millis(150), ..Wire::LAN };
    let mut exchange = with_costs(10, export, Costs { between_parties: between, ..Costs::default() });
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
    // Every member gets everything again, and all prefixes are evaluated for all.
    let begin = exchange.sim.now().instant;
    for slot in 0..10 {
        exchange.sim.inject(Node::Member(slot), PARTIES[0], &FromMember::holds_nothing().encode());
    }
    exchange.check();
    let took = exchange.sim.now().instant - begin;
    assert!(took > Duration::from_secs(10), "the test's round is long: {took:?}");
    let overdue = exchange.sim.member_events.iter().filter(|(_, e)| matches!(e, MemberEvent::OutcomeOverdue { .. }));
    assert_eq!(overdue.count(), 0, "nobody gave up");
    assert_eq!(resyncs(&mut exchange), resyncs_before, "nobody asks again");
    let rounds = rounds(&exchange) - rounds_before.min(rounds(&exchange));
    assert!(rounds <= 12, "{rounds} rounds in {took:?}");
}

/// Routes of one member that fill the largest BGP message, and how many octets the parties store of each.
const LARGE: usize = 65_000;
const LARGE_ROUTES: usize = 600;

/// Prefixes of the member that announces large routes.
fn large_prefixes() -> impl Iterator<Item = wayleave_bgp::Nlri> {
    (0..LARGE_ROUTES).map(|i| nlri(&format!("30.{}.{}.0/24", i / 256, i % 256)))
}

/// Links that hold what the protocol gives credit for, and no more.
fn tight(wire: Wire) -> Wire {
    let most = credit::TO_MEMBER.max(credit::BETWEEN_PARTIES);
    Wire { buffer: usize::try_from(most).expect("some megabytes"), ..wire }
}

fn small_routes(exchange: &mut Exchange, slots: std::ops::Range<u32>) {
    for slot in slots {
        for i in 0..3 {
            exchange.announce(slot, &[nlri(&format!("20.{i}.0.0/16"))], &route(slot, &[64500], &[]));
        }
    }
}

/// The most octets that any link to a member held, and any between the parties.
fn most_on_the_way(sim: &Sim) -> (usize, usize) {
    let slots: Vec<u32> = sim.tables.keys().copied().collect();
    let to = |slot: &u32| PARTIES.map(|party| sim.most_outstanding(party, Node::Member(*slot)));
    let to_members = slots.iter().flat_map(to).max().unwrap_or(0);
    let between = [sim.most_outstanding(PARTIES[0], PARTIES[1]), sim.most_outstanding(PARTIES[1], PARTIES[0])];
    (to_members, between[0].max(between[1]))
}

in_both_modes!(routes_larger_than_agreed_are_not_announced_and_their_member_is_told);
fn routes_larger_than_agreed_are_not_announced_and_their_member_is_told(export: ExportMode) {
    let mut exchange = with_costs(4, export, Costs { to_members: tight(Wire::LAN), ..Costs::default() });
    small_routes(&mut exchange, 1..4);
    let large = long_route(0, LARGE);
    for prefix in large_prefixes() {
        // Not at the oracle: nobody gets them.
        exchange.sim.announce(0, &[prefix], &large);
    }
    exchange.check();
    let status = exchange.sim.member(0).expect("it runs").status();
    assert_eq!(status.not_announced, LARGE_ROUTES);
    assert!(status.withheld[0].why.contains("at most 8192"), "{:?}", status.withheld[0]);
    exchange.join();
    exchange.sim.kill(Node::Member(2));
    exchange.sim.start(Node::Member(2));
    exchange.check();
    assert_eq!(closed(&exchange.sim, 4), []);
}

/// Links that were closed, but for those of a slot that joined, which connects before the parties know it.
fn closed(sim: &Sim, joined: u32) -> Vec<(Node, Node, String)> {
    let is_other = |(by, of, _): &&(Node, Node, String)| ![*by, *of].contains(&Node::Member(joined));
    sim.closed.iter().filter(is_other).cloned().collect()
}

in_both_modes!(a_member_that_sends_larger_blobs_all_the_same_is_refused_by_name);
fn a_member_that_sends_larger_blobs_all_the_same_is_refused_by_name(export: ExportMode) {
    let mut exchange = with_costs(4, export, Costs::default());
    small_routes(&mut exchange, 1..4);
    exchange.check();
    exchange.sim.play_member(0);
    let mut forger = Forger::new(1, 0);
    exchange.sim.run_for(Duration::from_millis(10));
    forger.greet(&mut exchange.sim, false);
    exchange.sim.run_for(Duration::from_secs(1));
    for octets in [4_000, 6_000, 9_000, LARGE] {
        let draft = forger.draft(&exchange.sim, &[nlri("30.0.0.0/24")], &long_route(0, octets));
        let object = forger.seal(&draft);
        forger.submit(&mut exchange.sim, &object);
        exchange.sim.run_for(Duration::from_secs(3));
    }
    let too_large = |event: &&(Node, PartyEvent)| {
        matches!(event, (_, PartyEvent::Refused { slot: 0, reason: Refusal::BlobSize, .. }))
    };
    assert_eq!(exchange.sim.party_events.iter().filter(too_large).count(), 2, "{:?}", exchange.sim.party_events);
    assert_eq!(reported_mismatches(&exchange.sim), 0, "party 1 said what was wrong: {:?}", exchange.sim.party_events);
    let held = exchange.sim.party(PARTIES[0]).expect("it runs").routes(100, false);
    assert!(held.iter().any(|route| route.slot == 0), "what fits is taken");
    assert!(held.iter().all(|route| route.blob_bytes <= Some(8192)));
}

/// How often a party said that the parties have different halves of an object, to its operator or to the member.
fn reported_mismatches(sim: &Sim) -> usize {
    let is_mismatch = |event: &&(Node, PartyEvent)| {
        matches!(event.1, PartyEvent::Mismatch { .. } | PartyEvent::Refused { reason: Refusal::Mismatch, .. })
    };
    sim.party_events.iter().filter(is_mismatch).count()
}

in_both_modes!(what_party_1_refuses_by_name_is_no_mismatch);
fn what_party_1_refuses_by_name_is_no_mismatch(export: ExportMode) {
    let mut exchange = Exchange::new(Setup { tick: TICK, max_prefix: 2, export, ..Setup::default() });
    exchange.sim.play_member(0);
    let mut forger = Forger::new(1, 0);
    exchange.sim.run_for(Duration::from_millis(10));
    forger.greet(&mut exchange.sim, false);
    exchange.sim.run_for(Duration::from_secs(1));
    // What its blob says, its signature, and how many it has: party 2 sees the first of these only in party 1's answer.
    for (number, wanted) in [None, None, Some(Refusal::MaxPrefix), Some(Refusal::Proof)].into_iter().enumerate() {
        let prefix = nlri(&format!("30.{number}.0.0/24"));
        let mut draft = forger.draft(&exchange.sim, &[prefix], &route(0, &[64500], &[]));
        draft.other_blob = wanted == Some(Refusal::Proof);
        let object = forger.seal(&draft);
        exchange.sim.forget_events();
        forger.submit(&mut exchange.sim, &object);
        exchange.sim.run_for(Duration::from_secs(6));
        let refused = exchange.sim.party_events.iter().filter_map(|(_, event)| match event {
            PartyEvent::Refused { reason, .. } => Some(*reason),
            _ => None,
        });
        assert_eq!(refused.collect::<Vec<_>>(), wanted.into_iter().collect::<Vec<_>>(), "{number}");
        assert_eq!(reported_mismatches(&exchange.sim), 0, "{number}: {:?}", exchange.sim.party_events);
        let waits = PARTIES.map(|party| exchange.sim.party(party).expect("it runs").status().octets_waiting);
        assert_eq!(waits, [0, 0], "{number}");
    }
}

#[test]
fn busy_announcers_put_no_member_behind() {
    const ROUTES: u32 = 1_600;
    let budget = Budget { objects: 10_000, ..Budget::default() };
    // Parties on faster machines than those that were measured.
    let operations = Operations { checked: 10_000, kib: 300, ..MEASURED };
    let costs = Some(Costs { operations, ..Costs::default() });
    let mut exchange = Exchange::new(Setup { members: 7, tick: TICK, budget, costs, ..Setup::default() });
    exchange.sim.forget_events();
    // Each an object of its own, for members 5 and 6 alone.
    let tags: Vec<String> = (0..30).map(|i| format!("64999:{i}:1")).collect();
    for slot in 0..5 {
        let open_to = ["64496:0:0".to_owned(), format!("64496:1:{}", asn(5).0), format!("64496:1:{}", asn(6).0)];
        let communities: Vec<&str> = tags.iter().chain(&open_to).map(String::as_str).collect();
        for i in 0..ROUTES {
            let prefix = nlri(&format!("{}.{}.{}.0/24", 20 + slot, i / 256, i % 256));
            exchange.announce(slot, &[prefix], &route(slot, &[64500], &communities));
        }
    }
    let begin = exchange.sim.now().instant;
    exchange.check();
    let took = exchange.sim.now().instant - begin;
    let behind = |(_, event): &&(Node, PartyEvent)| matches!(event, PartyEvent::Behind { .. });
    assert_eq!(exchange.sim.party_events.iter().filter(behind).count(), 0, "{:?}", exchange.sim.party_events);
    let resyncs: u64 = (0..7).map(|slot| exchange.sim.member(slot).expect("it runs").counters().resyncs).sum();
    assert_eq!((resyncs, exchange.sim.tables[&6].len()), (0, 5 * ROUTES as usize));
    println!("{} objects in {took:?}", 5 * ROUTES);
    // By the schedule that members keep, with a quarter of the time to spare.
    assert!(took < Duration::from_micros(u64::from(5 * ROUTES) * 200), "{took:?}");
}

/// An exchange whose operators agreed to blobs of 64 KiB, with one member that announces as much as it can.
fn with_large_routes(members: usize, export: ExportMode, costs: Costs) -> Exchange {
    let setup = Setup { members, tick: TICK, max_blob: 65_536, export, costs: Some(costs), ..Setup::default() };
    let mut exchange = Exchange::new(setup);
    let large = long_route(0, LARGE);
    for prefix in large_prefixes() {
        exchange.announce(0, &[prefix], &large);
    }
    small_routes(&mut exchange, 1..4);
    exchange.check();
    exchange
}

in_both_modes!(where_large_routes_are_agreed_members_join_and_return_all_the_same);
fn where_large_routes_are_agreed_members_join_and_return_all_the_same(export: ExportMode) {
    let costs = Costs { to_members: tight(Wire::LAN), between_parties: tight(Wire::LAN), ..Costs::default() };
    let mut exchange = with_large_routes(4, export, costs);
    let stored: usize = {
        let party = exchange.sim.party(PARTIES[0]).expect("it runs");
        party.routes(usize::MAX, false).iter().filter_map(|route| route.blob_bytes).sum()
    };
    assert!(stored > 3 * usize::try_from(credit::TO_MEMBER).expect("fits"), "{stored} octets");
    exchange.join();
    exchange.check();
    exchange.sim.kill(Node::Member(2));
    exchange.sim.start(Node::Member(2));
    exchange.check();
    assert_eq!(closed(&exchange.sim, 4), []);
    exchange.sim.forget_events();
    // All at once.
    exchange.sim.kill(PARTIES[0]);
    exchange.sim.start(PARTIES[0]);
    exchange.check();
    let slow = exchange.sim.closed.iter().filter(|(.., why)| why.contains("slow") || why.contains("reads nothing"));
    assert_eq!(slow.count(), 0, "{:?}", exchange.sim.closed);
    let (to_members, _) = most_on_the_way(&exchange.sim);
    assert!(to_members as u64 <= credit::TO_MEMBER / 2, "{to_members} octets on the way to a member");
}

in_both_modes!(everything_reaches_a_member_behind_a_slow_link_and_nobody_waits_for_it);
fn everything_reaches_a_member_behind_a_slow_link_and_nobody_waits_for_it(export: ExportMode) {
    const SLOW: u32 = 4;
    let far = Wire { bytes_per_second: 2_000_000, delay: Duration::from_millis(40), ..tight(Wire::LAN) };
    let wires = PARTIES.map(|party| ((party, Node::Member(SLOW)), far)).into();
    let mut exchange = with_large_routes(5, export, Costs { to_members: tight(Wire::LAN), wires, ..Costs::default() });
    exchange.sim.forget_events();
    exchange.sim.kill(Node::Member(SLOW));
    exchange.sim.pass(Duration::from_secs(1));
    exchange.sim.start(Node::Member(SLOW));
    let begin = exchange.sim.now().instant;
    // Meanwhile others change their routes.
    let mut latencies = Vec::new();
    for change in 0..20u32 {
        let (announced, prefix) = (exchange.sim.now().instant, nlri("21.0.0.0/16"));
        let wanted = route(1, &[64500 + change], &[]);
        exchange.announce(1, &[prefix], &wanted);
        while exchange.sim.tables[&2].get(&prefix.prefix) != Some(&wanted) {
            assert!(exchange.sim.step(LIMIT));
        }
        latencies.push(exchange.sim.now().instant - announced);
        exchange.sim.pass(Duration::from_millis(200));
    }
    assert!(exchange.sim.tables[&SLOW].len() < LARGE_ROUTES, "it is still being sent everything");
    let status = exchange.sim.party(PARTIES[0]).expect("it runs").status();
    assert_eq!((status.synchronising, status.behind), (vec![SLOW], vec![]));
    exchange.check();
    let took = exchange.sim.now().instant - begin;
    assert!(took > Duration::from_secs(15), "the link is slow: {took:?}");
    assert_eq!(exchange.sim.tables[&SLOW].len(), LARGE_ROUTES + 4);
    assert_eq!(exchange.sim.closed, [], "no link is closed for being slow");
    let (to_members, _) = most_on_the_way(&exchange.sim);
    assert!(to_members as u64 <= credit::TO_MEMBER / 2, "{to_members} octets on the way to a member");
    latencies.sort_unstable();
    assert!(latencies[15] < Duration::from_millis(150), "{latencies:?}");
}

in_both_modes!(few_members_are_sent_everything_at_a_time_and_the_others_are_told_to_wait);
fn few_members_are_sent_everything_at_a_time_and_the_others_are_told_to_wait(export: ExportMode) {
    let mut exchange = with_costs(30, export, Costs::default());
    // A slice is not enough for everything.
    let attributes = |slot: u32| long_route(slot, 1_500);
    for i in 0..400 {
        let slot = i % 30;
        exchange.announce(slot, &[nlri(&format!("20.{}.{}.0/24", i / 250, i % 250))], &attributes(slot));
    }
    exchange.check();
    exchange.sim.forget_events();
    for slot in 0..30 {
        exchange.sim.inject(Node::Member(slot), PARTIES[0], &FromMember::holds_nothing().encode());
    }
    let mut most = 0;
    while most == 0 || !exchange.sim.is_quiet() {
        assert!(exchange.sim.step(LIMIT));
        exchange.sim.connect_all();
        most = most.max(exchange.sim.party(PARTIES[0]).expect("it runs").status().synchronising.len());
    }
    exchange.check();
    // Eight with each batch; while some of them have not taken up their slice, others begin.
    assert!((1..=12).contains(&most), "{most} at a time");
    let notified: BTreeSet<u32> = exchange
        .sim
        .member_events
        .iter()
        .filter(|(_, event)| matches!(event, MemberEvent::Queued { .. }))
        .map(|(slot, _)| *slot)
        .collect();
    assert!(notified.len() >= 20, "{notified:?}");
}

in_both_modes!(a_join_costs_what_it_delivers);
fn a_join_costs_what_it_delivers(export: ExportMode) {
    const MEMBERS: u32 = 60;
    const OBJECTS: u32 = 1_000;
    // Two announce; all others but one take and discard.
    let (members, sinks) = (MEMBERS as usize, (3..MEMBERS).collect());
    let mut exchange = Exchange::new(Setup { members, sinks, tick: TICK, export, ..Setup::default() });
    for i in 0..OBJECTS {
        exchange.announce(i % 2, &[nlri(&format!("20.{}.{}.0/24", i / 250, i % 250))], &route(i % 2, &[64500], &[]));
    }
    exchange.check();
    let counters = |exchange: &Exchange| PARTIES.map(|p| exchange.sim.party(p).expect("it runs").counters().clone());
    let before = counters(&exchange);
    exchange.join();
    exchange.check();
    for (before, after) in before.into_iter().zip(counters(&exchange)) {
        let (scanned, delivered) = (after.scanned - before.scanned, after.delivered - before.delivered);
        assert!(delivered >= u64::from(OBJECTS), "each object is opened to the new slot: {delivered}");
        // Nothing for those who had all before.
        assert!(
            scanned <= delivered + u64::from(OBJECTS + MEMBERS),
            "{scanned} were looked at for {delivered} deliveries"
        );
    }
}

in_both_modes!(what_the_parties_do_takes_its_time_whether_or_not_something_comes_of_it);
fn what_the_parties_do_takes_its_time_whether_or_not_something_comes_of_it(export: ExportMode) {
    let with = |operations: Operations| with_costs(4, export, Costs { operations, ..Costs::default() });
    // From a change at member 1 to its arrival at member 2.
    let latency = |exchange: &mut Exchange| {
        let (begin, prefix) = (exchange.sim.now().instant, nlri("21.0.0.0/16"));
        exchange.announce(1, &[prefix], &route(1, &[64500], &[]));
        while first_as(&exchange.sim, 2, prefix.prefix).is_none() {
            assert!(exchange.sim.step(LIMIT));
        }
        exchange.sim.now().instant - begin
    };
    let usual = latency(&mut with(MEASURED));
    // Policy and key are multiplied for each of four receivers by the parties, if they do that.
    let second = 1_000_000_000;
    let slow = latency(&mut with(Operations { exported: second, ..MEASURED }));
    match export {
        ExportMode::Direct => assert_eq!(slow, usual),
        ExportMode::Mpc => assert!(slow >= 4 * Duration::from_secs(1), "{slow:?}, {usual:?}"),
    }
    // Signatures of objects that are refused for them.
    let mut exchange = with(Operations { checked: second / 10, ..MEASURED });
    exchange.sim.play_member(3);
    exchange.sim.run_for(Duration::from_millis(10));
    let mut forger = Forger::new(1, 3);
    forger.greet(&mut exchange.sim, false);
    exchange.sim.run_for(Duration::from_secs(1));
    for _ in 0..50 {
        let mut draft = forger.draft(&exchange.sim, &[nlri("30.0.0.0/24")], &route(3, &[64500], &[]));
        draft.header_signer = 2;
        let object = forger.seal(&draft);
        forger.submit(&mut exchange.sim, &object);
    }
    let slow = latency(&mut exchange);
    let refused = exchange.sim.party(PARTIES[0]).expect("it runs").counters().refused;
    assert!(refused == 50 && slow >= Duration::from_secs(5), "{refused} refused, {slow:?}");
    // What members hold is compared when they come back.
    let return_of = |operations| {
        let mut exchange = with(operations);
        for i in 0..50 {
            exchange.announce(1, &[nlri(&format!("20.{i}.0.0/16"))], &route(1, &[64500], &[]));
        }
        exchange.check();
        let begin = exchange.sim.now().instant;
        exchange.sim.cut_member(2);
        exchange.check();
        exchange.sim.now().instant - begin
    };
    let (usual, slow) = (return_of(MEASURED), return_of(Operations { hashed: second / 10, ..MEASURED }));
    assert!(slow >= usual + Duration::from_secs(5), "{slow:?}, {usual:?}");
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

/// Nanoseconds of party 2's work for each object and receiver, and how many there were, with correlations at hand.
fn work_for_deliveries(export: ExportMode) -> (u64, u64) {
    const MEMBERS: u32 = 100;
    let setup =
        Setup { members: MEMBERS as usize, tick: TICK, sinks: (1..MEMBERS).collect(), export, ..Setup::default() };
    let mut sim = Sim::new(setup);
    assert!(sim.settle(LIMIT));
    sim.fill_pools();
    sim.hold_setup();
    sim.work = Some(std::collections::BTreeMap::new());
    for i in 0..100 {
        sim.announce(0, &[nlri(&format!("20.{i}.0.0/16"))], &route(0, &[64500], &[]));
    }
    sim.run_for(Duration::from_secs(2));
    let work = sim.work.take().unwrap_or_default()[&PARTIES[1]];
    let counters = sim.party(PARTIES[1]).expect("it runs").counters();
    (u64::try_from(work.as_nanos()).expect("short") / counters.delivered, counters.exports)
}

/// Nanoseconds for each object that is hashed, of a table of so many.
#[expect(clippy::disallowed_methods, reason = "a measurement")]
fn work_for_digests(header: &Arc<Header>, objects: u64) -> u64 {
    let mut table = ObjectTable::new();
    for version in 0..objects {
        let mut handle = Handle([0; 32]);
        handle.0[..8].copy_from_slice(&(version.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_be_bytes());
        let mut header = Header::clone(header);
        header.description.version = version + 1;
        let (header, part) = (Arc::new(header), Part::Two { row: Vec::new() });
        let (mode, dead) = (ExportMode::Direct, BTreeSet::new());
        table.restore(ObjectEntry { header, digest: [0; 32], handle, mode, width: 4, dead, part, since: Vec::new() });
    }
    let begin = Instant::now();
    table.roots(0);
    u64::try_from(begin.elapsed().as_nanos()).expect("short") / table.hashed()
}

#[test]
#[ignore = "a measurement"]
fn operations_cost_what_the_table_says() {
    use std::hint::black_box;
    let key = member_key(1, 0);
    let prefixes = vec![nlri("20.0.0.0/16")];
    let description = Description {
        format: Format::default(),
        slot: 0,
        set: 1,
        epoch: 1,
        version: 1,
        salt: [7; 32],
        kind: Kind::Announce { prefixes },
    };
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
    let places: BTreeSet<u64> = (0..10_000).collect();
    let scanned = nanoseconds(100, || {
        black_box(places.iter().take_while(|place| **place < 9_999).copied().collect::<Vec<_>>());
    }) / 10_000;
    // Party 2 only copies in mode `direct`.
    let (([copied, _], [multiplied, lanes]), hashed) = (
        (work_for_deliveries(ExportMode::Direct).into(), work_for_deliveries(ExportMode::Mpc).into()),
        work_for_digests(&Arc::new(sealed.header.clone()), 50_000),
    );
    assert!(lanes > 5_000, "{lanes} lanes");
    let exported = multiplied.saturating_sub(copied);
    let Operations { announced: a, opened: o, checked: c, delivery: d, .. } = MEASURED;
    let Operations { scanned: s, exported: e, hashed: h, .. } = MEASURED;
    eprintln!(
        "announced {announced} ({a}), opened without a signature {opened} ({o}), checked {checked} ({c}), delivery {delivery} ({d}), \
         scanned {scanned} ({s}), exported {exported} ({e}), hashed {hashed} ({h})"
    );
}

/// The ticks that party 1 sent to a member, in order.
fn ticks_to(frames: &[Recorded], slot: u32) -> Vec<Tick> {
    let (mut ticks, mut whole) = (Vec::new(), Vec::new());
    for frame in frames.iter().filter(|frame| (frame.from, frame.to) == (PARTIES[0], Node::Member(slot))) {
        match ToMember::decode(&frame.bytes) {
            Ok(ToMember::Tick(tick)) => ticks.push(*tick),
            Ok(ToMember::Part { last, bytes }) => {
                whole.extend(bytes);
                if let Some(Ok(ToMember::Tick(tick))) = last.then(|| ToMember::decode(&std::mem::take(&mut whole))) {
                    ticks.push(*tick);
                }
            }
            _ => {}
        }
    }
    ticks
}

/// The prefixes of a full object.
fn full_object(first: u32, object: u32) -> Vec<Nlri> {
    let (first, second, third) = (first + object / 512, object % 512 / 2, object % 2 * 128);
    (third..third + 128).map(|third| nlri(&format!("{first}.{second}.{third}.0/24"))).collect()
}

#[test]
fn a_member_with_many_routes_is_removed_in_parts_and_its_routes_end_at_once() {
    const OBJECTS: u32 = 800;
    const LEAVER: u32 = 0;
    let setup =
        Setup { members: 5, tick: TICK, sinks: [LEAVER, 1].into(), opted_out: (0..5).collect(), ..Setup::default() };
    let mut sim = Sim::new(setup);
    assert!(sim.settle(LIMIT));
    for slot in [LEAVER, 1] {
        for object in 0..OBJECTS {
            // The leaver's are the better ones.
            let tail: &[u32] = if slot == LEAVER { &[] } else { &[64500] };
            sim.announce(slot, &full_object(30, object), &route(slot, tail, &[]));
        }
    }
    assert!(sim.settle(LIMIT));
    let prefixes = OBJECTS as usize * MAX_PREFIXES;
    let of_leaver = |sim: &Sim| {
        let table = sim.tables[&2].values();
        table.filter(|attributes| attributes.as_path().first_asn() == Some(asn(LEAVER))).count()
    };
    assert_eq!(of_leaver(&sim), prefixes);
    let resyncs = sim.member(2).expect("it runs").counters().resyncs;
    sim.forget_events();
    sim.recording = Some(Vec::new());
    sim.leave(LEAVER);
    let gone = |ticks: &[Tick]| ticks.iter().map(|tick| tick.gone.len()).collect::<Vec<_>>();
    let recorded = |sim: &Sim, slot| ticks_to(sim.recording.as_deref().unwrap_or_default(), slot);
    while gone(&recorded(&sim, 2)).iter().sum::<usize>() == 0 {
        sim.pass(TICK);
    }
    // While they are told so: a member comes back, and another announces.
    sim.cut_member(3);
    sim.connect_all();
    let other = nlri("20.0.0.0/16");
    sim.announce(4, &[other], &route(4, &[64500], &[]));
    let before = recorded(&sim, 2).len();
    while !sim.tables[&2].contains_key(&other.prefix) || of_leaver(&sim) > 0 {
        sim.pass(TICK);
    }
    let ticks = recorded(&sim, 2);
    assert!(ticks.len() - before <= 12, "{} ticks until then", ticks.len() - before);
    assert!(gone(&ticks).iter().sum::<usize>() < OBJECTS as usize, "which is before all are named as dead");
    assert!(sim.settle(LIMIT));
    let all: BTreeSet<Handle> = recorded(&sim, 2).iter().flat_map(|tick| tick.gone.clone()).collect();
    assert_eq!(all.len(), OBJECTS as usize);
    for slot in [2, 3, 4] {
        let ticks = recorded(&sim, slot);
        let most = gone(&ticks).into_iter().max();
        assert!(most < Some(OBJECTS as usize / 10), "slot {slot}: {most:?} in one tick");
        for tick in ticks {
            let delivered = tick.deliver.iter().filter(|deliver| all.contains(&deliver.handle)).count();
            let listed = tick.instances.iter().flat_map(|instance| instance.iter());
            assert_eq!((delivered, listed.filter(|(handle, _)| all.contains(handle)).count()), (0, 0), "slot {slot}");
            assert!(slot == 3 || tick.slice.is_none(), "slot {slot} is sent nothing again");
        }
        assert_eq!(sim.tables[&slot].len(), prefixes + usize::from(slot != 4));
        assert_eq!(sim.alarms(slot).count(), 0);
    }
    assert_eq!(of_leaver(&sim), 0);
    assert_eq!(sim.member(2).expect("it runs").counters().resyncs, resyncs);
    assert!(!sim.party_events.iter().any(|(_, event)| matches!(event, PartyEvent::Behind { .. })));
}

#[test]
fn routes_of_many_members_that_are_away_expire_in_parts_of_one_size() {
    const AWAY: u32 = 12;
    const OBJECTS: u32 = 60;
    let setup = Setup {
        members: AWAY as usize + 1,
        tick: TICK,
        sinks: (0..AWAY).collect(),
        opted_out: (0..=AWAY).collect(),
        ..Setup::default()
    };
    let mut sim = Sim::new(Setup { stale: Duration::from_secs(30), ..setup });
    assert!(sim.settle(LIMIT));
    for slot in 0..AWAY {
        for object in 0..OBJECTS {
            sim.announce(slot, &full_object(30 + slot, object), &route(slot, &[], &[]));
        }
    }
    assert!(sim.settle(LIMIT));
    sim.recording = Some(Vec::new());
    (0..AWAY).for_each(|slot| sim.kill(Node::Member(slot)));
    while !sim.tables[&AWAY].is_empty() {
        sim.pass(Duration::from_secs(1));
    }
    let gone: Vec<usize> =
        ticks_to(&sim.recording.take().expect("it records"), AWAY).iter().map(|t| t.gone.len()).collect();
    assert_eq!(gone.iter().sum::<usize>(), (AWAY * OBJECTS) as usize);
    // Each is counted with 102 octets a prefix: two names of candidates, and the list of what was there.
    let most = gone.iter().max().copied().unwrap_or(0);
    assert!(most > 10 && most <= (512 << 10) / (32 + MAX_PREFIXES * 102) + 1, "{most} in one batch");
}

#[test]
fn a_batch_has_room_for_so_many_octets_of_all_announcers_together() {
    const ANNOUNCERS: u32 = 200;
    let setup = Setup {
        members: ANNOUNCERS as usize + 1,
        tick: Duration::from_secs(1),
        sinks: (0..ANNOUNCERS).collect(),
        ..Setup::default()
    };
    let mut sim = Sim::new(Setup { opted_out: (0..=ANNOUNCERS).collect(), ..setup });
    assert!(sim.settle(LIMIT));
    sim.recording = Some(Vec::new());
    for slot in 0..ANNOUNCERS {
        sim.announce(slot, &full_object(30, slot), &long_route(slot, 5_000));
    }
    assert!(sim.settle(LIMIT));
    let frames = sim.recording.take().expect("it records");
    let delivered: Vec<usize> = ticks_to(&frames, ANNOUNCERS).iter().map(|tick| tick.deliver.len()).collect();
    assert_eq!(delivered.iter().sum::<usize>(), ANNOUNCERS as usize, "everybody's turn comes");
    // A blob, and a name and a place in a list for each prefix.
    let most = (1 << 20) / (8_192 + MAX_PREFIXES * 68) + 1;
    assert!(delivered.iter().all(|objects| *objects <= most), "{delivered:?}, at most {most}");
}

#[test]
fn what_follows_from_the_inventories_goes_out_in_parts_however_much_it_is() {
    const OBJECTS: usize = 17_000;
    let mut sim =
        Sim::new(Setup { members: 3, sinks: [0, 1, 2].into(), opted_out: [0, 1, 2].into(), ..Setup::default() });
    assert!(sim.settle(LIMIT));
    let older = sim.store(PARTIES[0]).clone();
    for object in 0..OBJECTS {
        let prefix = nlri(&format!("30.{}.{}.0/24", object / 250, object % 250));
        sim.announce(0, &[prefix], &route(0, &[], &[]));
        if object % 1_000 == 0 {
            assert!(sim.settle(LIMIT));
        }
    }
    assert!(sim.settle(LIMIT));
    let stored = |sim: &Sim| PARTIES.map(|party| sim.party(party).expect("it runs").routes(usize::MAX, false).len());
    assert_eq!(stored(&sim), [OBJECTS; 2]);
    sim.kill(PARTIES[0]);
    *sim.store(PARTIES[0]) = older;
    sim.recording = Some(Vec::new());
    sim.start(PARTIES[0]);
    assert!(sim.settle(LIMIT));
    let frames = sim.recording.take().expect("it records");
    let to_two = frames.iter().filter(|frame| (frame.from, frame.to) == (PARTIES[0], PARTIES[1]));
    let rows = |frame: &Recorded| match PartyFrame::decode(&frame.bytes) {
        Ok(PartyFrame::Reconciling { drop, differ } | PartyFrame::Reconciled { drop, differ, .. }) => {
            Some(drop.len() + differ.len())
        }
        _ => None,
    };
    let rows: Vec<usize> = to_two.filter_map(rows).collect();
    assert_eq!(rows, [16_384, OBJECTS - 16_384]);
    assert_eq!(stored(&sim), [0; 2], "sinks announce nothing again");
}
