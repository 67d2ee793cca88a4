//! A member that connects again gets what it lacks, and nothing else.
//!
//! SIX, older store: a party's store replaced by an older copy: both parties name it; what it brings back is dropped,
//! nothing is lost for good. Both stores replaced: what members took shows it.
//! SIX, who connects again: members that missed nothing, some objects or a result, a restarted party, digests that lie,
//! do not come or flood, a slice that lacks something: what differs is sent and nothing else; the offender is named and
//! nobody else notices.
//! SIX, who waits for rounds and places: as many members as are compared at a time leave one party, one without turns
//! does not answer: places are free again, and no party is kept busy.

use std::time::Duration;

use crate::common::{Exchange, in_both_modes, nlri, route};
use wayleave_lab::sim::bad::Forger;
use wayleave_lab::sim::{FrameAction, Node, PARTIES, Setup, Sim, Store};
use wayleave_route_server::digests::{Digest, Roots, Through};
use wayleave_route_server::frames::{FromMember, ToMember};
use wayleave_route_server::object::{ExportMode, Handle};
use wayleave_route_server::party::{OlderStore, PartyEvent};

/// What a member says that has had nothing.
const NEVER: Through = Through { objects: 0, results: 0 };

/// Who connects again.
const AWAY: u32 = 3;

/// Prefixes with a route of each of two members; `AWAY` may have half of them.
fn with_routes(members: usize, export: ExportMode, prefixes: u32) -> Exchange {
    let mut exchange = Exchange::new(Setup { members, seed: 900, export, ..Setup::default() });
    for prefix in 0..prefixes {
        announce(&mut exchange, prefix, 64500);
    }
    exchange.check();
    exchange.sim.recording = Some(Vec::new());
    exchange.sim.forget_events();
    exchange
}

fn announce(exchange: &mut Exchange, prefix: u32, tail: u32) {
    for slot in [0, 1] {
        let hidden: &[&str] = if prefix.is_multiple_of(2) { &["64496:0:65003"] } else { &[] };
        let prefix = nlri(&format!("20.{}.{}.0/24", prefix / 250, prefix % 250));
        exchange.announce(slot, &[prefix], &route(slot, &[tail], hidden));
    }
}

/// Of ticks from party 1 to a member since the recording began: objects, instances, rankings asked for, and octets of all frames.
fn sent(sim: &mut Sim, to: u32) -> (usize, usize, usize, usize) {
    let frames = sim.recording.replace(Vec::new()).expect("it records");
    let mut sum = (0, 0, 0, 0);
    for frame in frames.iter().filter(|frame| (frame.from, frame.to) == (PARTIES[0], Node::Member(to))) {
        sum.3 += frame.bytes.len();
        if let Ok(ToMember::Tick(tick)) = ToMember::decode(&frame.bytes) {
            sum.0 += tick.deliver.len();
            sum.1 += tick.instances.len();
            sum.2 += usize::from(tick.rank);
        }
    }
    sum
}

in_both_modes!(a_member_that_missed_nothing_is_sent_nothing_again);
fn a_member_that_missed_nothing_is_sent_nothing_again(export: ExportMode) {
    let mut exchange = with_routes(5, export, 60);
    let changes = exchange.sim.router_changes.len();
    exchange.sim.cut_member(AWAY);
    exchange.check();
    let (objects, instances, rankings, octets) = sent(&mut exchange.sim, AWAY);
    assert_eq!((objects, instances, rankings), (0, 0, 0));
    let set = exchange.sim.directory.encode().len();
    assert!(octets < set + 1_000, "{octets} octets, of which the member set takes {set}");
    assert_eq!(exchange.sim.router_changes.len(), changes, "its router notices nothing");
    // What changes from then on comes.
    announce(&mut exchange, 1, 64501);
    exchange.check();
    assert_eq!(sent(&mut exchange.sim, AWAY).0, 2);
}

in_both_modes!(a_member_that_missed_some_objects_is_sent_about_as_many);
fn a_member_that_missed_some_objects_is_sent_about_as_many(export: ExportMode) {
    let mut exchange = with_routes(5, export, 60);
    exchange.sim.cut_member(AWAY);
    for prefix in 0..4 {
        announce(&mut exchange, prefix, 64501);
    }
    exchange.withdraw(0, &[nlri("20.0.7.0/24")]);
    exchange.sim.run_for(Duration::from_secs(1));
    assert_eq!(sent(&mut exchange.sim, AWAY).0, 0);
    exchange.check();
    let (objects, instances, ..) = sent(&mut exchange.sim, AWAY);
    // Of 120 objects in 4096 buckets few share one.
    assert!((8..=12).contains(&objects), "{objects} objects");
    assert!((5..=9).contains(&instances), "{instances} instances");
    let counters = exchange.sim.member(AWAY).expect("it runs").counters().clone();
    assert_eq!((counters.resyncs, counters.alarms), (0, 0));
}

in_both_modes!(after_a_restart_of_a_party_members_that_hold_all_are_sent_a_small_part_of_it);
fn after_a_restart_of_a_party_members_that_hold_all_are_sent_a_small_part_of_it(export: ExportMode) {
    const MEMBERS: u32 = 30;
    for party in PARTIES {
        let mut exchange = with_routes(MEMBERS as usize, export, 100);
        exchange.sim.kill(Node::Member(AWAY));
        exchange.sim.start(Node::Member(AWAY));
        exchange.check();
        let (objects, .., full) = sent(&mut exchange.sim, AWAY);
        assert_eq!(objects, 200, "a new process gets everything");
        exchange.sim.kill(party);
        exchange.sim.start(party);
        exchange.check();
        let frames = exchange.sim.recording.take().expect("it records");
        let to_members = frames.iter().filter(|frame| frame.from == PARTIES[0] && matches!(frame.to, Node::Member(_)));
        let octets: usize = to_members.map(|frame| frame.bytes.len()).sum();
        assert!(
            octets * 10 < full * MEMBERS as usize,
            "{party:?}: {octets} octets for all, {full} for everything to one"
        );
        eprintln!("{party:?}: {octets} octets to {MEMBERS} members; everything takes {}", full * MEMBERS as usize);
    }
}

#[test]
fn results_that_were_lost_with_the_link_are_computed_again_and_no_others() {
    let mut exchange = with_routes(5, ExportMode::Direct, 20);
    // The results of one batch do not come.
    exchange.sim.tamper = Some(Box::new(|_, to, bytes| match ToMember::decode(bytes) {
        Ok(ToMember::Outcome { .. }) if to == Node::Member(AWAY) => FrameAction::Drop,
        _ => FrameAction::Pass,
    }));
    announce(&mut exchange, 1, 64501);
    exchange.sim.run_for(Duration::from_secs(1));
    exchange.sim.tamper = None;
    sent(&mut exchange.sim, AWAY);
    exchange.sim.cut_member(AWAY);
    exchange.check();
    let (objects, instances, rankings, _) = sent(&mut exchange.sim, AWAY);
    assert_eq!((objects, rankings), (0, 1));
    assert!((1..=2).contains(&instances), "{instances} instances");
}

#[test]
fn a_new_epoch_while_a_member_is_away_has_its_results_computed_again_without_its_objects() {
    let mut exchange = with_routes(5, ExportMode::Direct, 20);
    exchange.recommend(&[(0, 10), (1, 20)].into());
    exchange.check();
    exchange.sim.cut_member(AWAY);
    exchange.recommend(&[(0, 20), (1, 10)].into());
    exchange.sim.run_for(Duration::from_secs(1));
    sent(&mut exchange.sim, AWAY);
    exchange.check();
    let (objects, instances, ..) = sent(&mut exchange.sim, AWAY);
    assert_eq!(objects, 0);
    assert!(instances >= 20, "{instances} instances");
}

#[test]
fn a_slice_that_lacks_something_is_noticed_and_sent_again() {
    let mut exchange = with_routes(5, ExportMode::Direct, 20);
    exchange.sim.cut_member(AWAY);
    announce(&mut exchange, 1, 64501);
    exchange.sim.run_for(Duration::from_secs(1));
    let mut left = 2;
    exchange.sim.tamper = Some(Box::new(move |_, to, bytes| match ToMember::decode(bytes) {
        Ok(ToMember::Tick(mut tick)) if to == Node::Member(AWAY) && !tick.deliver.is_empty() && left > 0 => {
            left -= 1;
            tick.deliver.pop();
            FrameAction::Change(ToMember::Tick(tick).encode())
        }
        _ => FrameAction::Pass,
    }));
    exchange.check();
    assert_eq!(exchange.sim.member(AWAY).expect("it runs").counters().resyncs, 1);
}

#[test]
fn a_member_whose_digests_lie_harms_itself_alone_and_is_named_where_it_shows() {
    let mut exchange = with_routes(5, ExportMode::Direct, 20);
    let before = exchange.sim.tables.clone();
    exchange.sim.play_member(AWAY);
    let forger = Forger::new(900, AWAY);
    exchange.sim.run_for(Duration::from_millis(10));
    for party in PARTIES {
        forger.greet_one(&mut exchange.sim, party, [7; 16]);
    }
    let own: Digest = [3; 16];
    let roots = Roots { objects: [1; 16], instances: [2; 16] };
    exchange.sim.inject(
        Node::Member(AWAY),
        PARTIES[0],
        &FromMember::Holds { seq: 0, through: NEVER, epoch: 1, roots, own }.encode(),
    );
    exchange.sim.run_for(Duration::from_millis(10));
    // Buckets that it does not have.
    let lies: Vec<(u16, Digest)> = (0..4096).map(|bucket| (bucket, [9; 16])).collect();
    let buckets =
        FromMember::Buckets { seq: 0, through: NEVER, epoch: 1, objects: lies.clone(), instances: lies, own }.encode();
    exchange.sim.inject(Node::Member(AWAY), PARTIES[0], &buckets);
    exchange.sim.run_for(Duration::from_millis(10));
    // Of all of them it is asked what it holds there, and names what it does not.
    let frames = exchange.sim.recording.take().expect("it records");
    let question = frames.iter().find_map(|frame| match ToMember::decode(&frame.bytes) {
        Ok(ToMember::NameObjects { question, .. }) if frame.to == Node::Member(AWAY) => Some(question),
        _ => None,
    });
    exchange.sim.recording = Some(Vec::new());
    let question = question.expect("it is asked");
    let names =
        FromMember::ObjectNames { question, through: Handle([0xff; 32]), names: vec![([5; 8], 0); 100] }.encode();
    exchange.sim.inject(Node::Member(AWAY), PARTIES[0], &names);
    exchange.sim.run_for(Duration::from_millis(10));
    let (objects, ..) = sent(&mut exchange.sim, AWAY);
    assert_eq!(objects, 40, "who says nonsense gets everything");
    assert_eq!(exchange.sim.closed, []);
    // Again, and once more than it was asked for: one question, that for instances, is open.
    exchange.sim.inject(Node::Member(AWAY), PARTIES[0], &names);
    exchange.sim.inject(Node::Member(AWAY), PARTIES[0], &names);
    exchange.sim.run_for(Duration::from_millis(10));
    let named = |event: &(Node, PartyEvent)| matches!(&event.1, PartyEvent::BadFrame { slot: Some(AWAY), what } if what.contains("nobody asked"));
    assert!(exchange.sim.party_events.iter().any(named), "{:?}", exchange.sim.party_events);
    for slot in [0, 1, 2, 4] {
        assert_eq!(exchange.sim.tables[&slot], before[&slot]);
    }
}

#[test]
fn a_member_that_says_that_it_took_a_batch_to_come_is_named_and_cut_off() {
    let mut exchange = with_routes(5, ExportMode::Direct, 5);
    exchange.sim.play_member(AWAY);
    let forger = Forger::new(900, AWAY);
    exchange.sim.run_for(Duration::from_millis(10));
    forger.greet_one(&mut exchange.sim, PARTIES[0], [7; 16]);
    let roots = Roots { objects: [1; 16], instances: [2; 16] };
    let holds = FromMember::Holds { seq: u64::MAX, through: NEVER, epoch: 1, roots, own: [0; 16] };
    exchange.sim.inject(Node::Member(AWAY), PARTIES[0], &holds.encode());
    exchange.sim.run_for(Duration::from_millis(10));
    let named = |event: &(Node, PartyEvent)| matches!(&event.1, PartyEvent::BadFrame { slot: Some(AWAY), what } if what.contains("never made"));
    assert!(exchange.sim.party_events.iter().any(named), "{:?}", exchange.sim.party_events);
    assert_eq!(exchange.sim.closed.len(), 1, "{:?}", exchange.sim.closed);
}

#[test]
fn a_member_that_does_not_answer_is_asked_for_names_and_nobody_waits_for_it() {
    let mut exchange = with_routes(5, ExportMode::Direct, 20);
    exchange.sim.tamper = Some(Box::new(|from, _, bytes| match FromMember::decode(bytes) {
        Ok(FromMember::Buckets { .. }) if from == Node::Member(AWAY) => FrameAction::Drop,
        Ok(FromMember::Holds { seq, epoch, roots, own, .. }) if from == Node::Member(AWAY) => {
            FrameAction::Change(FromMember::Holds { seq, through: NEVER, epoch, roots, own }.encode())
        }
        _ => FrameAction::Pass,
    }));
    exchange.sim.cut_member(AWAY);
    announce(&mut exchange, 1, 64501);
    exchange.sim.run_for(Duration::from_secs(1));
    exchange.sim.connect_all();
    exchange.sim.run_for(Duration::from_secs(1));
    // It waits; others get what changes.
    announce(&mut exchange, 2, 64501);
    exchange.sim.run_for(Duration::from_secs(1));
    let prefix = nlri("20.0.2.0/24").prefix;
    let path = exchange.sim.tables[&4].get(&prefix).map(|attributes| attributes.as_path().to_string());
    assert!(path.as_ref().is_some_and(|path| path.contains("64501")), "{path:?} {}", exchange.describe());
    exchange.check();
    assert_eq!(sent(&mut exchange.sim, AWAY).0, 4, "what it lacks, after ten seconds");
    assert_eq!(exchange.sim.closed, []);
}

#[test]
fn a_member_that_has_had_its_turns_and_does_not_answer_keeps_no_party_busy() {
    let mut exchange = with_routes(5, ExportMode::Direct, 5);
    for _ in 0..40 {
        exchange.sim.inject(Node::Member(AWAY), PARTIES[0], &FromMember::holds_nothing().encode());
        exchange.sim.run_for(Duration::from_millis(20));
    }
    let deferred = |(_, event): &(Node, PartyEvent)| matches!(event, PartyEvent::Deferred { slot: AWAY, .. });
    assert!(exchange.sim.party_events.iter().any(deferred));
    // When its turn comes it is asked for more, since what it said is not so, and does not answer.
    exchange.sim.tamper = Some(Box::new(|from, _, bytes| match FromMember::decode(bytes) {
        Ok(FromMember::Buckets { .. }) if from == Node::Member(AWAY) => FrameAction::Drop,
        Ok(FromMember::Holds { seq, through, epoch, own, .. }) if from == Node::Member(AWAY) => {
            let roots = Roots { objects: [1; 16], instances: [2; 16] };
            FrameAction::Change(FromMember::Holds { seq, through, epoch, roots, own }.encode())
        }
        _ => FrameAction::Pass,
    }));
    exchange.sim.cut_member(AWAY);
    exchange.sim.connect_all();
    // A party that had something to do in the past would take steps without end.
    exchange.sim.run_for(Duration::from_secs(600));
    exchange.sim.tamper = None;
    exchange.check();
}

#[test]
fn members_that_left_one_party_keep_no_place_from_those_that_come_back() {
    let mut exchange = with_routes(20, ExportMode::Direct, 20);
    // As many as are compared at a time say what is not so, and are gone from party 2 when they are asked for more.
    let roots = Roots { objects: [1; 16], instances: [2; 16] };
    for slot in 4..20 {
        let (member, forger) = (Node::Member(slot), Forger::new(900, slot));
        exchange.sim.play_member(slot);
        exchange.sim.run_for(Duration::from_millis(10));
        for party in PARTIES {
            forger.greet_one(&mut exchange.sim, party, [7; 16]);
        }
        let holds = FromMember::Holds { seq: 0, through: NEVER, epoch: 1, roots, own: [3; 16] };
        exchange.sim.inject(member, PARTIES[0], &holds.encode());
    }
    exchange.sim.run_for(Duration::from_millis(100));
    let is_comparison =
        |frame: &wayleave_lab::sim::Recorded| matches!(ToMember::decode(&frame.bytes), Ok(ToMember::Compare));
    let frames = exchange.sim.recording.take().expect("it records");
    assert_eq!(frames.iter().filter(|frame| is_comparison(frame)).count(), 16);
    (4..20).for_each(|slot| exchange.sim.cut_between(Node::Member(slot), PARTIES[1]));
    exchange.sim.cut_member(AWAY);
    announce(&mut exchange, 1, 64501);
    exchange.sim.run_for(Duration::from_secs(1));
    for party in PARTIES {
        exchange.sim.connect(Node::Member(AWAY), party);
    }
    exchange.sim.run_for(Duration::from_secs(5));
    let path = exchange.sim.tables[&AWAY][&nlri("20.0.1.0/24").prefix].as_path().to_string();
    assert!(path.contains("64501"), "{path}");
}

#[test]
fn a_flood_of_digests_has_the_budget_of_requests_and_its_sender_is_named() {
    let mut exchange = with_routes(5, ExportMode::Direct, 5);
    let roots = Roots { objects: [1; 16], instances: [2; 16] };
    for _ in 0..40 {
        let holds = FromMember::Holds { seq: 0, through: NEVER, epoch: 1, roots, own: [0; 16] };
        exchange.sim.inject(Node::Member(AWAY), PARTIES[0], &holds.encode());
        exchange.sim.run_for(Duration::from_millis(20));
    }
    let begins = |frame: &&wayleave_lab::sim::Recorded| {
        frame.to == Node::Member(AWAY)
            && matches!(ToMember::decode(&frame.bytes), Ok(ToMember::Tick(tick)) if tick.slice.as_ref().is_some_and(|slice| slice.begins.is_some()))
    };
    let frames = exchange.sim.recording.take().expect("it records");
    let times = frames.iter().filter(|frame| frame.from == PARTIES[0]).filter(begins).count();
    assert!((10..=17).contains(&times), "{times} times");
    let deferred = |(_, event): &(Node, PartyEvent)| matches!(event, PartyEvent::Deferred { slot: AWAY, .. });
    assert!(exchange.sim.party_events.iter().any(deferred));
    exchange.check();
}

#[test]
fn a_party_with_an_older_store_is_named_by_both_and_loses_nobody_anything_for_good() {
    let modes = [ExportMode::Direct, ExportMode::Mpc];
    for (party, mode) in PARTIES.into_iter().flat_map(|party| modes.map(|mode| (party, mode))) {
        let mut exchange = with_routes(5, mode, 20);
        let older = exchange.sim.store(party).clone();
        for prefix in 10..30 {
            announce(&mut exchange, prefix, 64501);
        }
        exchange.withdraw(1, &[nlri("20.0.3.0/24")]);
        exchange.check();
        // A party that comes back with its own store is nothing to report.
        exchange.sim.kill(party);
        exchange.sim.start(party);
        exchange.check();
        let named = |exchange: &Exchange| -> Vec<(Node, OlderStore)> {
            let older = |(by, event): &(Node, PartyEvent)| match event {
                PartyEvent::OlderStore(older) => Some((*by, older.clone())),
                _ => None,
            };
            exchange.sim.party_events.iter().filter_map(older).collect()
        };
        assert_eq!(named(&exchange), []);
        exchange.sim.kill(party);
        *exchange.sim.store(party) = older;
        exchange.sim.start(party);
        exchange.check();
        let number = if party == PARTIES[0] { 1 } else { 2 };
        let by = named(&exchange);
        assert!(by.iter().all(|(_, older)| older.party == number && older.holds < older.agreed), "{by:?}");
        for by_party in PARTIES {
            assert_eq!(by.iter().filter(|(by, _)| *by == by_party).count(), 1, "{party:?}: {by:?}");
            let status = exchange.sim.party(by_party).expect("it runs").status();
            assert_eq!(status.older_store.map(|older| older.party), Some(number));
            assert_eq!(status.counters.older_stores, 1);
        }
        // Once both stores are alike again, a new session says nothing of it.
        exchange.sim.cut_parties();
        exchange.sim.connect_all();
        announce(&mut exchange, 31, 64501);
        exchange.check();
        assert_eq!(named(&exchange).len(), 2);
        let slots: Vec<u32> = exchange.sim.tables.keys().copied().collect();
        let alarms: u64 = slots.iter().map(|slot| exchange.sim.member(*slot).expect("runs").counters().alarms).sum();
        assert_eq!(alarms, 0, "{party:?}");
    }
}

in_both_modes!(older_copies_of_both_stores_are_noticed_by_what_members_hold);
fn older_copies_of_both_stores_are_noticed_by_what_members_hold(export: ExportMode) {
    let mut exchange = with_routes(5, export, 20);
    let older = PARTIES.map(|party| exchange.sim.store(party).clone());
    let at_both = |exchange: &mut Exchange, stores: Option<[Store; 2]>| {
        PARTIES.into_iter().for_each(|party| exchange.sim.kill(party));
        for (party, store) in PARTIES.into_iter().zip(stores.into_iter().flatten()) {
            *exchange.sim.store(party) = store;
        }
        PARTIES.into_iter().for_each(|party| exchange.sim.start(party));
        exchange.check();
    };
    let named = |exchange: &Exchange| {
        let is_older = |(_, event): &&(Node, PartyEvent)| matches!(event, PartyEvent::OlderStores { took, holds, .. } if took > holds);
        exchange.sim.party_events.iter().filter(is_older).map(|(by, _)| *by).collect::<Vec<Node>>()
    };
    for prefix in 10..30 {
        announce(&mut exchange, prefix, 64501);
    }
    exchange.withdraw(1, &[nlri("20.0.3.0/24")]);
    exchange.check();
    // Both with their own stores: nothing to report.
    at_both(&mut exchange, None);
    assert_eq!(named(&exchange), []);
    at_both(&mut exchange, Some(older));
    assert_eq!(named(&exchange), [PARTIES[0]], "once, though all members say so");
    assert!(exchange.sim.party_events.iter().all(|(_, event)| !matches!(event, PartyEvent::BadFrame { .. })));
}

in_both_modes!(members_newer_than_the_narrowest_row_come_back_without_a_pass_over_all_objects);
fn members_newer_than_the_narrowest_row_come_back_without_a_pass_over_all_objects(export: ExportMode) {
    const OBJECTS: u64 = 600;
    const MEMBERS: u32 = 50;
    let mut exchange = with_routes(3, export, 300);
    // An announcer that is away sends no columns: its rows stay as narrow as they are.
    exchange.sim.kill(Node::Member(0));
    let joined: Vec<u32> = (0..MEMBERS).map(|_| exchange.join()).collect();
    exchange.sim.run_for(Duration::from_secs(1));
    let hashed = |exchange: &Exchange| exchange.sim.party(PARTIES[0]).expect("it runs").hashed();
    let mut come_back = |slots: &[u32]| {
        let before = hashed(&exchange);
        for slot in slots {
            exchange.sim.cut_member(*slot);
            exchange.sim.connect(Node::Member(*slot), PARTIES[0]);
            exchange.sim.connect(Node::Member(*slot), PARTIES[1]);
            exchange.announce(1, &[nlri("20.0.1.0/24")], &route(1, &[64502 + slot], &[]));
            exchange.sim.run_for(Duration::from_secs(1));
        }
        hashed(&exchange) - before
    };
    // The first one of a class has its digests made.
    come_back(&joined[..1]);
    let all = come_back(&joined);
    // Of the objects and instances each has four changed buckets or fewer hashed again, with what else is in them; and the digests of all
    // buckets, eight in the time of an object.
    assert!(all < u64::from(MEMBERS) * (12 + OBJECTS / 16), "{all} hashes for {MEMBERS} members, {OBJECTS} objects");
    assert!(exchange.sim.tables[&joined[7]].len() > 250, "{}", exchange.sim.tables[&joined[7]].len());
    exchange.sim.start(Node::Member(0));
    exchange.check();
}

#[test]
fn what_changes_while_a_member_is_compared_is_all_that_it_is_sent() {
    const PREFIXES: u32 = 1_500;
    const ROUNDS: u32 = 40;
    let tick = Duration::from_millis(50);
    let mut exchange = Exchange::new(Setup { members: 5, tick, seed: 900, ..Setup::default() });
    for slot in [0, 1] {
        for prefix in 0..PREFIXES {
            exchange.announce(slot, &[churning(prefix)], &route(slot, &[64500], &[]));
        }
    }
    exchange.check();
    exchange.sim.recording = Some(Vec::new());
    // Two thousand changes a second while the member is away, comes back and is compared: more than half of the buckets.
    let mut changes = 0;
    for round in 0..ROUNDS {
        for _ in 0..100 {
            let prefix = churning(changes * 7 % PREFIXES);
            exchange.announce(0, &[prefix], &route(0, &[64501 + round], &[]));
            changes += 1;
        }
        match round {
            5 => exchange.sim.cut_member(AWAY),
            8 => exchange.sim.connect_all(),
            _ => {}
        }
        exchange.sim.pass(tick);
    }
    exchange.check();
    let (objects, ..) = sent(&mut exchange.sim, AWAY);
    let all = 2 * PREFIXES as usize;
    assert!(objects <= changes as usize, "{objects} objects for {changes} changes, of {all}");
    let counters = exchange.sim.member(AWAY).expect("it runs").counters().clone();
    assert_eq!((counters.resyncs, counters.alarms), (0, 0));
}

fn churning(prefix: u32) -> wayleave_bgp::Nlri {
    nlri(&format!("20.{}.{}.0/24", prefix / 250, prefix % 250))
}

#[test]
fn members_that_come_back_to_a_party_after_its_restart_are_sent_what_changed_since_and_no_more() {
    let tick = Duration::from_millis(50);
    for party in PARTIES {
        let mut exchange = Exchange::new(Setup { members: 5, tick, seed: 900, ..Setup::default() });
        for slot in [0, 1] {
            for prefix in 0..1_500 {
                exchange.announce(slot, &[churning(prefix)], &route(slot, &[64500], &[]));
            }
        }
        exchange.check();
        exchange.sim.kill(party);
        exchange.sim.kill(Node::Member(AWAY));
        exchange.sim.start(Node::Member(AWAY));
        exchange.sim.start(party);
        // One that keeps what it had stays away, and others change half of the buckets meanwhile.
        let pass = |exchange: &mut Exchange| {
            exchange.sim.connect_all();
            exchange.sim.cut_member(4);
            exchange.sim.run_for(tick);
        };
        (0..20).for_each(|_| pass(&mut exchange));
        exchange.sim.recording = Some(Vec::new());
        for prefix in 0..1_400 {
            exchange.announce(0, &[churning(prefix)], &route(0, &[64501], &[]));
            if prefix % 100 == 0 {
                pass(&mut exchange);
            }
        }
        (0..40).for_each(|_| pass(&mut exchange));
        // One for which ties fall to the slot that announced again.
        let key = exchange.sim.order_key(PARTIES[0]).expect("the parties have agreed on an order");
        let mut changed = (0..1_400).rev().map(churning);
        let prefix = changed.find(|nlri| key.number(0, nlri) < key.number(1, nlri)).expect("half of them").prefix;
        assert_eq!(exchange.sim.tables[&AWAY].get(&prefix), Some(&route(0, &[64501], &[])), "the others have them");
        assert_eq!(sent(&mut exchange.sim, 4).0, 0);
        exchange.check();
        let (objects, ..) = sent(&mut exchange.sim, 4);
        assert_eq!(objects, 1_400, "{party:?}");
    }
}

#[test]
fn after_a_new_epoch_only_prefixes_with_a_changed_value_are_evaluated_again_for_who_missed_it() {
    for relinks in [false, true] {
        let mut exchange = Exchange::new(Setup { members: 6, seed: 900, ..Setup::default() });
        for (slots, second) in [([0, 1], 20), ([1, 2], 30)] {
            for slot in slots {
                for prefix in 0..150 {
                    exchange.announce(slot, &[nlri(&format!("{second}.0.{prefix}.0/24"))], &route(slot, &[64500], &[]));
                }
            }
        }
        exchange.recommend(&[(0, 10), (1, 20), (2, 10)].into());
        exchange.check();
        // One has all results, and connects again after the epoch; another one misses its results.
        exchange.sim.recording = Some(Vec::new());
        exchange.recommend(&[(0, 30), (1, 20), (2, 10)].into());
        exchange.check();
        sent(&mut exchange.sim, AWAY);
        exchange.sim.cut_member(AWAY);
        exchange.check();
        let (objects, instances, ..) = sent(&mut exchange.sim, AWAY);
        assert_eq!((objects, instances), (0, 0), "it had all results");
        exchange.sim.cut_member(4);
        exchange.recommend(&[(0, 5), (1, 20), (2, 10)].into());
        exchange.sim.run_for(Duration::from_secs(1));
        if relinks {
            exchange.sim.cut_parties();
        }
        exchange.check();
        let frames = exchange.sim.recording.clone();
        let (objects, instances, ..) = sent(&mut exchange.sim, 4);
        assert_eq!(objects, 0);
        // After a new link between the parties whole buckets are evaluated again.
        let most = if relinks { 180 } else { 150 };
        assert!((150..=most).contains(&instances), "{instances} instances");
        exchange.sim.recording = frames;
        let (.., instances, _, _) = sent(&mut exchange.sim, AWAY);
        assert_eq!(instances, 150, "who was there is served once");
        exchange.sim.cut_parties();
        exchange.check();
        assert_eq!(sent(&mut exchange.sim, AWAY).1, 0);
    }
}

#[test]
fn results_of_a_slice_that_were_lost_with_the_link_are_computed_again() {
    let mut exchange = with_routes(5, ExportMode::Direct, 20);
    let lose_results = |_: Node, to: Node, bytes: &[u8]| match ToMember::decode(bytes) {
        Ok(ToMember::Outcome { .. }) if to == Node::Member(AWAY) => FrameAction::Drop,
        _ => FrameAction::Pass,
    };
    // It gets everything, and after that a change, and no results of either.
    exchange.sim.kill(Node::Member(AWAY));
    exchange.sim.tamper = Some(Box::new(lose_results));
    exchange.sim.start(Node::Member(AWAY));
    exchange.sim.run_for(Duration::from_secs(1));
    announce(&mut exchange, 1, 64501);
    exchange.sim.run_for(Duration::from_secs(1));
    exchange.sim.cut_member(AWAY);
    exchange.sim.connect_all();
    exchange.sim.run_for(Duration::from_secs(1));
    // What it is sent then is what was listed to it alone.
    exchange.sim.cut_member(AWAY);
    exchange.sim.tamper = None;
    exchange.check();
}

in_both_modes!(what_was_replaced_while_a_member_was_away_is_replaced_at_its_router_and_not_withdrawn_first);
fn what_was_replaced_while_a_member_was_away_is_replaced_at_its_router_and_not_withdrawn_first(export: ExportMode) {
    const PREFIXES: u32 = 40;
    let mut exchange = with_routes(3, export, PREFIXES);
    exchange.sim.cut_member(2);
    (0..PREFIXES).for_each(|prefix| announce(&mut exchange, prefix, 64501));
    exchange.sim.run_for(Duration::from_secs(1));
    let before = exchange.sim.router_changes.len();
    exchange.check();
    let changes: Vec<bool> = exchange.sim.router_changes[before..]
        .iter()
        .filter(|(slot, ..)| *slot == 2)
        .map(|(.., is_there)| *is_there)
        .collect();
    assert!(changes.len() >= PREFIXES as usize / 2 && changes.iter().all(|is_there| *is_there), "{changes:?}");
}
