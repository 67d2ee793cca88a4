//! A member that lacks something is sent that, whatever others announce and however slowly it takes it up.
//!
//! SIX, much in one place: one member's prefixes, 128 to an object, fill one gap between others' first prefixes: who comes back gets all.
//! SIX, what is lost and what is replaced: results of a new epoch that do not come, and one prefix of many that is another object's since: who
//! comes back has the right choice, and its router loses nothing meanwhile.
//! SIX, a tenth of the churn: a member takes up a tenth of what changes for a minute: then it is whole, with little more than it lacked.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::common::{Exchange, LIMIT, nlri, route};
use wayleave_bgp::Nlri;
use wayleave_lab::sim::{FrameAction, Node, PARTIES, Recorded, Setup, Sim};
use wayleave_route_server::credit;
use wayleave_route_server::frames::{Body, FromMember, ToMember};
use wayleave_route_server::object::{Handle, MAX_PREFIXES};

const TICK: Duration = Duration::from_millis(50);
/// Who comes back, or takes up little.
const AWAY: u32 = 2;

/// Of `prefixes` prefixes all but one in each object lie between two first prefixes, beside 6,000 others; then a member starts again.
fn in_one_gap(prefixes: usize) {
    let mut sim = Sim::new(Setup { members: 3, tick: TICK, seed: 5, ..Setup::default() });
    assert!(sim.settle(LIMIT));
    let in_gap = |number: usize| nlri(&format!("20.{}.{}.{}/32", number >> 16, number >> 8 & 0xff, number & 0xff));
    for object in 0..prefixes / MAX_PREFIXES {
        let first = nlri(&format!("15.{}.{}.0/24", object / 250, object % 250));
        let others = (1..MAX_PREFIXES).map(|place| in_gap(object * MAX_PREFIXES + place));
        let all: Vec<Nlri> = std::iter::once(first).chain(others).collect();
        sim.announce(0, &all, &route(0, &[64500], &[]));
    }
    for number in 0..6_000 {
        sim.announce(1, &[nlri(&format!("100.{}.{}.0/24", number / 250, number % 250))], &route(1, &[64500], &[]));
    }
    assert!(sim.settle(LIMIT));
    let all = prefixes / MAX_PREFIXES * MAX_PREFIXES + 6_000;
    assert_eq!(sim.tables[&AWAY].len(), all);
    let oversized = sim.party(PARTIES[0]).expect("it runs").counters().oversized_ticks;
    sim.kill(Node::Member(AWAY));
    sim.start(Node::Member(AWAY));
    sim.tables.entry(AWAY).or_default().clear();
    let begin = sim.now().instant;
    assert!(sim.settle(LIMIT));
    println!("{prefixes} prefixes in one gap: whole after {:?}", sim.now().instant - begin);
    assert_eq!(sim.tables[&AWAY].len(), all, "whoever comes back gets all");
    assert_eq!(sim.party(PARTIES[0]).expect("it runs").counters().oversized_ticks, oversized);
    let counters = sim.member(AWAY).expect("it runs").counters().clone();
    assert_eq!((counters.resyncs, counters.alarms), (0, 0));
}

#[test]
fn a_gap_full_of_prefixes_keeps_nothing_from_who_comes_back() {
    in_one_gap(110_000);
}

#[test]
#[ignore = "takes ten seconds; a smaller one is in every run"]
fn a_larger_gap_full_of_prefixes_keeps_nothing_from_who_comes_back() {
    in_one_gap(250_000);
}

/// Of ticks from party 1 to a member: objects with the octets of their blobs.
fn delivered(frames: &[Recorded], to: u32) -> Vec<(Handle, usize)> {
    let mut out = Vec::new();
    for frame in frames.iter().filter(|frame| (frame.from, frame.to) == (PARTIES[0], Node::Member(to))) {
        if let Ok(ToMember::Tick(tick)) = ToMember::decode(&frame.bytes) {
            out.extend(tick.deliver.iter().map(|deliver| match &deliver.body {
                Body::Blob(blob) => (deliver.handle, blob.len()),
                Body::Hash(_) => (deliver.handle, 0),
            }));
        }
    }
    out
}

#[test]
fn a_member_that_takes_up_a_tenth_of_the_churn_lacks_nothing_after_it_and_is_sent_little_more() {
    const PREFIXES: u32 = 1_200;
    const EACH_TICK: u32 = 10;
    let mut exchange = Exchange::new(Setup { members: 5, tick: TICK, seed: 900, ..Setup::default() });
    // Some 4 kB each.
    let communities: Vec<String> = (0..300).map(|i| format!("64999:{i}:1")).collect();
    let communities: Vec<&str> = communities.iter().map(String::as_str).collect();
    let prefix = |number: u32| nlri(&format!("20.{}.{}.0/24", number / 250, number % 250));
    let announce = |exchange: &mut Exchange, number: u32, tail: u32| {
        exchange.announce(0, &[prefix(number)], &route(0, &[tail], &communities));
    };
    for number in 0..PREFIXES {
        announce(&mut exchange, number, 64500);
        exchange.announce(1, &[prefix(number)], &route(1, &[64500, 64500, 64500], &[]));
    }
    exchange.check();
    // Of what it takes up it grants a tenth, beside the first window.
    exchange.sim.tamper = Some(Box::new(|from, _, bytes| match FromMember::decode(bytes) {
        Ok(FromMember::Credit { limit }) if from == Node::Member(AWAY) => {
            let limit = credit::TO_MEMBER + limit.saturating_sub(credit::TO_MEMBER) / 10;
            FrameAction::Change(FromMember::Credit { limit }.encode())
        }
        _ => FrameAction::Pass,
    }));
    exchange.sim.recording = Some(Vec::new());
    let ticks = 60_000 / 50;
    for tick in 0..ticks {
        for number in 0..EACH_TICK {
            announce(&mut exchange, (tick * EACH_TICK + number) * 7 % PREFIXES, 64501 + tick);
        }
        exchange.sim.pass(TICK);
    }
    let frames = exchange.sim.recording.replace(Vec::new()).expect("it records");
    let (all, had) = (delivered(&frames, 3), delivered(&frames, AWAY));
    assert!(had.len() < all.len() / 2, "{} of {} objects", had.len(), all.len());
    exchange.sim.tamper = None;
    exchange.check();
    let frames = exchange.sim.recording.take().expect("it records");
    // What lives of what it was not sent during the minute.
    let had: BTreeSet<Handle> = had.into_iter().map(|(handle, _)| handle).collect();
    let last: BTreeMap<Handle, usize> = all.iter().rev().take(PREFIXES as usize).copied().collect();
    let lacked: usize = last.iter().filter(|(handle, _)| !had.contains(handle)).map(|(_, octets)| octets).sum();
    let between = |frame: &&Recorded| {
        [(frame.from, frame.to), (frame.to, frame.from)].contains(&(PARTIES[0], Node::Member(AWAY)))
    };
    let octets: usize = frames.iter().filter(between).map(|frame| frame.bytes.len()).sum();
    println!("{lacked} octets lacked, {octets} octets on its link to party 1");
    assert!(octets <= 3 * lacked, "{octets} octets for {lacked}");
    let counters = exchange.sim.member(AWAY).expect("it runs").counters().clone();
    assert_eq!((counters.resyncs, counters.alarms), (0, 0), "names settled it, and nobody had to ask again");
}

#[test]
fn results_of_a_new_epoch_that_were_lost_are_computed_again() {
    let mut exchange = Exchange::new(Setup { members: 4, seed: 900, ..Setup::default() });
    for slot in [0, 1] {
        exchange.announce(slot, &[nlri("20.0.0.0/16")], &route(slot, &[64500], &[]));
    }
    exchange.recommend(&[(0, 20), (1, 10)].into());
    exchange.check();
    exchange.sim.tamper = Some(Box::new(|_, to, bytes| match ToMember::decode(bytes) {
        Ok(ToMember::Outcome { .. }) if to == Node::Member(AWAY) => FrameAction::Drop,
        _ => FrameAction::Pass,
    }));
    exchange.recommend(&[(0, 10), (1, 20)].into());
    exchange.sim.run_for(Duration::from_secs(2));
    exchange.sim.tamper = None;
    exchange.sim.cut_member(AWAY);
    exchange.check();
}

#[test]
fn one_prefix_of_many_that_is_replaced_while_a_member_is_away_is_not_withdrawn_first() {
    let mut exchange = Exchange::new(Setup { members: 3, seed: 900, ..Setup::default() });
    let all: Vec<Nlri> = (0..100).map(|number| nlri(&format!("20.0.{number}.0/24"))).collect();
    exchange.announce(0, &all, &route(0, &[64500], &[]));
    exchange.check();
    exchange.sim.cut_member(AWAY);
    for number in [7, 50] {
        exchange.announce(0, &all[number..=number], &route(0, &[64501], &[]));
    }
    exchange.sim.run_for(Duration::from_secs(1));
    let before = exchange.sim.router_changes.len();
    exchange.check();
    let changes: Vec<bool> = exchange.sim.router_changes[before..]
        .iter()
        .filter(|(slot, ..)| *slot == AWAY)
        .map(|(.., is_there)| *is_there)
        .collect();
    assert_eq!(changes, [true, true], "replaced, and nothing else");
}
