//! Nothing that one frame says is for ever: numbers near their ends, and clocks that were wrong.
//!
//! SIX, leaps: a party that names a batch, an epoch or a version near 2^64, to the other party or to a member: it is
//! named and its link closed, nothing of it is kept, and no slot is burnt. A member that says it took a batch years ahead:
//! nobody is stopped, and nobody else named.
//! SIX, clocks: both stores are new after both clocks were years ahead: members that took later batches are served,
//! and nobody innocent is named.

use std::time::Duration;

use crate::common::{Exchange, LIMIT, in_both_modes, nlri, route};
use wayleave_lab::sim::bad::Forger;
use wayleave_lab::sim::{FrameAction, Node, PARTIES, Setup};
use wayleave_route_server::digests::{Roots, Through};
use wayleave_route_server::frames::{FromMember, PartyFrame, ToMember};
use wayleave_route_server::member::MemberEvent;
use wayleave_route_server::object::ExportMode;
use wayleave_route_server::party::PartyEvent;

const NEAR_THE_END: u64 = u64::MAX - 2;
const YEAR: Duration = Duration::from_secs(31_557_600);

fn with_routes(export: ExportMode) -> Exchange {
    let mut exchange = Exchange::new(Setup { members: 4, seed: 77, export, ..Setup::default() });
    announce(&mut exchange, 0..8);
    exchange.check();
    exchange.sim.forget_events();
    exchange
}

fn announce(exchange: &mut Exchange, prefixes: std::ops::Range<u32>) {
    for prefix in prefixes {
        let slot = prefix % 3;
        exchange.announce(slot, &[nlri(&format!("20.0.{prefix}.0/24"))], &route(slot, &[64500], &[]));
    }
}

/// Puts a number near 2^64 into one frame of `from`, and leaves all others as they are.
fn leap(exchange: &mut Exchange, from: Node, mut change: impl FnMut(&[u8]) -> Option<Vec<u8>> + 'static) {
    let mut is_done = false;
    exchange.sim.tamper = Some(Box::new(move |sender, _, bytes| {
        let changed = (sender == from && !is_done).then(|| change(bytes)).flatten();
        is_done |= changed.is_some();
        changed.map_or(FrameAction::Pass, FrameAction::Change)
    }));
}

fn of_party(number: Number) -> impl FnMut(&[u8]) -> Option<Vec<u8>> + 'static {
    move |bytes| {
        let mut frame = PartyFrame::decode(bytes).ok()?;
        *number(&mut frame)? = NEAR_THE_END;
        Some(frame.encode())
    }
}

/// What becomes of a frame; `None` if it passes as it is.
type Change = fn(&[u8]) -> Option<Vec<u8>>;

/// The number of a frame that leaps.
type Number = fn(&mut PartyFrame) -> Option<&mut u64>;

fn stored(frame: &mut PartyFrame) -> Option<&mut u64> {
    if let PartyFrame::Hello { stored, .. } = frame { Some(stored) } else { None }
}

fn hello_seq(frame: &mut PartyFrame) -> Option<&mut u64> {
    if let PartyFrame::Hello { seq, .. } = frame { Some(seq) } else { None }
}

fn hello_epoch(frame: &mut PartyFrame) -> Option<&mut u64> {
    if let PartyFrame::Hello { epoch, .. } = frame { Some(epoch) } else { None }
}

fn version(frame: &mut PartyFrame) -> Option<&mut u64> {
    let (PartyFrame::Inventory { high_water, .. } | PartyFrame::Reconciled { high_water, .. }) = frame else {
        return None;
    };
    high_water.push((3, 0));
    high_water.last_mut().map(|(_, version)| version)
}

fn reconciled_epoch(frame: &mut PartyFrame) -> Option<&mut u64> {
    if let PartyFrame::Reconciled { epoch, .. } = frame { Some(epoch) } else { None }
}

fn proposed(frame: &mut PartyFrame) -> Option<&mut u64> {
    if let PartyFrame::Propose { seq, .. } = frame { Some(seq) } else { None }
}

in_both_modes!(a_party_that_leaps_is_named_by_the_other_and_nothing_of_it_is_kept);
fn a_party_that_leaps_is_named_by_the_other_and_nothing_of_it_is_kept(export: ExportMode) {
    let [one, two] = PARTIES;
    let leaps: [(Node, Number); 9] = [
        (one, stored),
        (one, hello_seq),
        (two, hello_seq),
        (one, hello_epoch),
        (two, hello_epoch),
        (two, version),
        (one, version),
        (one, reconciled_epoch),
        (one, proposed),
    ];
    for (case, (from, change)) in leaps.into_iter().enumerate() {
        let mut exchange = with_routes(export);
        leap(&mut exchange, from, of_party(change));
        exchange.sim.cut_parties();
        exchange.sim.connect_all();
        announce(&mut exchange, 8..10);
        assert!(exchange.sim.settle(LIMIT) || !exchange.sim.closed.is_empty(), "case {case}");
        let other = if from == one { two } else { one };
        let named = |(by, event): &&(Node, PartyEvent)| {
            *by == other && matches!(event, PartyEvent::BadFrame { slot: None, .. })
        };
        assert_eq!(exchange.sim.party_events.iter().filter(named).count(), 1, "case {case}");
        exchange.sim.tamper = None;
        exchange.sim.connect_all();
        // All members can still announce, also the one whose version was to be burnt; and so it is after a restart.
        for restarts in [false, true] {
            if restarts {
                PARTIES.into_iter().for_each(|party| exchange.sim.kill(party));
                PARTIES.into_iter().for_each(|party| exchange.sim.start(party));
            }
            let slot = 3;
            let prefix = nlri(&format!("20.1.{}.0/24", u8::from(restarts)));
            exchange.announce(slot, &[prefix], &route(slot, &[64500], &[]));
            exchange.check();
            for party in PARTIES {
                let status = exchange.sim.party(party).expect("it runs").status();
                assert!(status.epoch < 1_000 && status.batch < NEAR_THE_END / 2, "case {case}: {status:?}");
            }
        }
    }
}

#[test]
fn versions_of_slots_that_there_are_not_and_a_tick_of_a_day_are_refused() {
    let slots = |bytes: &[u8]| {
        let mut frame = PartyFrame::decode(bytes).ok()?;
        let PartyFrame::Inventory { high_water, .. } = &mut frame else { return None };
        *high_water = (0..4_096).map(|slot| (1_000_000 + slot, 1)).collect();
        Some(frame.encode())
    };
    let tick = |bytes: &[u8]| {
        let mut frame = PartyFrame::decode(bytes).ok()?;
        let PartyFrame::Hello { tick_ms, .. } = &mut frame else { return None };
        *tick_ms = 86_400_000;
        Some(frame.encode())
    };
    let cases: [Change; 2] = [slots, tick];
    for (case, change) in cases.into_iter().enumerate() {
        let mut exchange = with_routes(ExportMode::Direct);
        leap(&mut exchange, PARTIES[1], change);
        exchange.sim.cut_parties();
        exchange.sim.connect_all();
        exchange.sim.run_for(Duration::from_secs(1));
        let named = |(by, event): &&(Node, PartyEvent)| {
            *by == PARTIES[0] && matches!(event, PartyEvent::BadFrame { slot: None, .. })
        };
        assert_eq!(exchange.sim.party_events.iter().filter(named).count(), 1, "case {case}");
        // The link comes up with the next session, and stays.
        exchange.sim.connect_all();
        announce(&mut exchange, 8..10);
        exchange.check();
        assert_eq!(exchange.sim.party_events.iter().filter(named).count(), 1, "case {case}");
    }
}

in_both_modes!(what_a_member_says_that_it_took_stops_nobody);
fn what_a_member_says_that_it_took_stops_nobody(export: ExportMode) {
    const LIAR: u32 = 3;
    let mut exchange = with_routes(export);
    let now = exchange.sim.now().unix.secs();
    // Up to the last microsecond of what party 1 takes, and again; party 2 judges what follows from it by its own clock.
    for years in [1, 2, 2] {
        exchange.sim.play_member(LIAR);
        let forger = Forger::new(77, LIAR);
        exchange.sim.run_for(Duration::from_millis(10));
        for party in PARTIES {
            forger.greet_one(&mut exchange.sim, party, [7; 16]);
        }
        let seq = (now.max(1_767_225_600) + years * YEAR.as_secs()) * 1_000_000 + 999_999;
        let (roots, through) = (Roots { objects: [1; 16], instances: [2; 16] }, Through { objects: 0, results: 0 });
        let holds = FromMember::Holds { seq, through, epoch: 1, roots, own: [0; 16] };
        exchange.sim.inject(Node::Member(LIAR), PARTIES[0], &holds.encode());
        exchange.sim.run_for(Duration::from_secs(2));
        announce(&mut exchange, 8..10);
        exchange.withdraw(0, &[nlri("20.0.9.0/24")]);
        exchange.sim.run_for(Duration::from_secs(5));
        let named = |(_, event): &&(Node, PartyEvent)| matches!(event, PartyEvent::BadFrame { slot, .. } if *slot != Some(LIAR));
        let named: Vec<_> = exchange.sim.party_events.iter().filter(named).collect();
        assert!(named.is_empty(), "{years}: {named:?}");
        assert!(!exchange.sim.party_events.iter().any(|(_, event)| matches!(event, PartyEvent::PeerPartyDown)));
        // The honest software comes back in this slot.
        exchange.sim.start(Node::Member(LIAR));
        exchange.sim.cut_member(LIAR);
        exchange.sim.connect_all();
        exchange.check();
    }
}

in_both_modes!(a_party_that_names_a_version_or_an_epoch_near_the_end_to_a_member_is_named_and_burns_nothing);
fn a_party_that_names_a_version_or_an_epoch_near_the_end_to_a_member_is_named_and_burns_nothing(export: ExportMode) {
    for (case, party) in PARTIES.into_iter().chain(PARTIES).enumerate() {
        let mut exchange = with_routes(export);
        leap(&mut exchange, party, move |bytes| {
            let mut frame = ToMember::decode(bytes).ok()?;
            let ToMember::Welcome { high_water, epoch, .. } = &mut frame else { return None };
            *(if case < 2 { high_water } else { epoch }) = NEAR_THE_END;
            Some(frame.encode())
        });
        exchange.sim.cut_member(1);
        exchange.sim.connect_all();
        exchange.sim.run_for(Duration::from_secs(1));
        let number = if party == PARTIES[0] { "party 1" } else { "party 2" };
        let named = |(slot, event): &&(u32, MemberEvent)| *slot == 1 && format!("{event:?}").contains("near the end");
        let told = exchange.sim.member_events.iter().filter(named).count();
        assert!(told >= 1, "case {case}, {number}: {:?}", exchange.sim.member_events);
        exchange.sim.tamper = None;
        for restarts in [false, true] {
            if restarts {
                exchange.sim.kill(Node::Member(1));
                exchange.sim.start(Node::Member(1));
            }
            exchange.sim.connect_all();
            let prefix = nlri(&format!("20.1.{}.0/24", u8::from(restarts)));
            exchange.announce(1, &[prefix], &route(1, &[64500], &[]));
            exchange.check();
        }
    }
}

in_both_modes!(members_that_took_later_batches_than_new_stores_know_are_served_and_nobody_is_named);
fn members_that_took_later_batches_than_new_stores_know_are_served_and_nobody_is_named(export: ExportMode) {
    let mut exchange = Exchange::new(Setup { members: 4, seed: 78, export, ..Setup::default() });
    let restart = |exchange: &mut Exchange, wipe: bool| {
        PARTIES.into_iter().for_each(|party| exchange.sim.kill(party));
        for party in PARTIES.into_iter().filter(|_| wipe) {
            exchange.sim.store(party).clear();
        }
        PARTIES.into_iter().for_each(|party| exchange.sim.start(party));
        exchange.sim.connect_all();
    };
    exchange.sim.set_wall_clock_forward(3 * YEAR);
    restart(&mut exchange, false);
    announce(&mut exchange, 0..8);
    exchange.check();
    let batch = |exchange: &Exchange| exchange.sim.party(PARTIES[0]).expect("it runs").status().batch;
    let ahead = batch(&exchange);
    exchange.sim.forget_events();
    exchange.sim.set_wall_clock_right();
    restart(&mut exchange, true);
    assert!(batch(&exchange) < ahead, "the new stores begin below what members took");
    announce(&mut exchange, 8..12);
    exchange.withdraw(0, &[nlri("20.0.3.0/24")]);
    exchange.check();
    assert!(batch(&exchange) > ahead);
    let named = |(_, event): &&(Node, PartyEvent)| matches!(event, PartyEvent::BadFrame { .. });
    let named: Vec<_> = exchange.sim.party_events.iter().filter(named).collect();
    assert!(named.is_empty(), "{named:?}");
    // One that comes back later took batches of both kinds, and is sent what it lacks.
    exchange.sim.cut_member(2);
    announce(&mut exchange, 12..14);
    exchange.sim.run_for(Duration::from_secs(1));
    exchange.sim.connect_all();
    exchange.check();
}
