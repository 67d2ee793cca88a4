//! Peers that stop, stay away, or break the engine: others get their results, and what was lost comes back.
//!
//! SIX-16: epochs and batch numbers at their ends: no wrap.
//! SIX, absence: members that never rank, stay away, leave, parties that stay away: dropped, stale, gone; back when
//! they return.
//! SIX, back in time: a member is back before its going is in a batch, and while its routes expire: one turn; all its
//! routes are there.
//! MPC-07: wrong messages between the parties, and a stop in every stage: the link ends, and the next link is right.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::common::{Exchange, LIMIT, in_both_modes, nlri, route};
use wayleave_core::Instant;
use wayleave_lab::sim::bad::{Forger, once};
use wayleave_lab::sim::costs::{Costs, Wire};
use wayleave_lab::sim::{FrameAction, Node, PARTIES, Recorded, Setup, Sim};
use wayleave_route_server::frames::{EngineStream, FromMember, PartyFrame};
use wayleave_route_server::member::{MemberEvent, Suspect};
use wayleave_route_server::object::ExportMode;
use wayleave_route_server::party::PartyEvent;

/// The kind of a tick's frame.
const TICK_FRAME: u8 = 3;

fn exchange(members: usize, seed: u64, export: ExportMode) -> Exchange {
    Exchange::new(Setup { members, seed, export, ..Setup::default() })
}

/// Two routes to one prefix, so that there is something to choose.
fn announce_two(exchange: &mut Exchange, tail: u32) {
    for slot in [1, 2] {
        exchange.announce(slot, &[nlri("20.0.0.0/16")], &route(slot, &[tail], &[]));
    }
}

/// What becomes of one message of the engine.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Engine {
    Short,
    Long,
    Empty,
    Gone,
    Twice,
    WrongStep,
    FromThePast,
    Flipped,
}

impl Engine {
    const ALL: [Self; 8] = [
        Self::Short,
        Self::Long,
        Self::Empty,
        Self::Gone,
        Self::Twice,
        Self::WrongStep,
        Self::FromThePast,
        Self::Flipped,
    ];

    fn apply(self, (stream, step): (EngineStream, u64), bytes: &[u8]) -> Option<PartyFrame> {
        let mut bytes = bytes.to_vec();
        match self {
            Self::Short => drop(bytes.pop()),
            Self::Long => bytes.push(0),
            Self::Empty => bytes.clear(),
            Self::Gone => return None,
            Self::Twice | Self::WrongStep | Self::FromThePast => {}
            Self::Flipped => {
                if let Some(last) = bytes.last_mut() {
                    *last ^= 1;
                }
            }
        }
        let step = match self {
            Self::WrongStep => step + 1,
            Self::FromThePast => step.wrapping_sub(1),
            _ => step,
        };
        Some(PartyFrame::Engine { stream, step, bytes })
    }
}

in_both_modes!(a_wrong_engine_message_ends_the_link_and_the_next_link_is_right);
fn a_wrong_engine_message_ends_the_link_and_the_next_link_is_right(export: ExportMode) {
    for sender in PARTIES {
        for how in Engine::ALL {
            for nth in [0, 1, 3, 8] {
                let name = format!("message {nth} from {sender:?}: {how:?}");
                let mut exchange = exchange(4, 800, export);
                let mut count = 0;
                exchange.sim.tamper = Some(once(move |from, to, bytes| {
                    let is_between = matches!(to, Node::Party(_)) && from == sender;
                    let Ok(PartyFrame::Engine { stream, step, bytes }) = PartyFrame::decode(bytes) else { return None };
                    count += usize::from(is_between);
                    (is_between && count == nth + 1).then(|| match how.apply((stream, step), &bytes) {
                        Some(frame) => FrameAction::Change(frame.encode()),
                        None => FrameAction::Drop,
                    })
                }));
                announce_two(&mut exchange, 64500);
                if how == Engine::Twice {
                    exchange.sim.run_for(Duration::from_millis(1));
                    let message =
                        PartyFrame::Engine { stream: EngineStream::Setup, step: nth as u64, bytes: vec![1; 8] };
                    let to = if sender == PARTIES[0] { PARTIES[1] } else { PARTIES[0] };
                    exchange.sim.inject(sender, to, &message.encode());
                }
                if how == Engine::Flipped {
                    // Which of two equals was chosen may have changed, and nothing else.
                    assert!(exchange.sim.settle(LIMIT), "{name}");
                    assert!(exchange.sim.tables[&0].contains_key(&nlri("20.0.0.0/16").prefix), "{name}");
                    // A correlation that it made wrong may lie in the pool, which a new link empties.
                    exchange.sim.cut_all();
                } else {
                    exchange.check();
                }
                let between =
                    exchange.sim.closed.iter().any(|(a, b, _)| matches!((a, b), (Node::Party(_), Node::Party(_))));
                assert!(between || how == Engine::Flipped, "{name}: the link stayed");
                announce_two(&mut exchange, 64501);
                exchange.check();
            }
        }
    }
}

in_both_modes!(a_party_that_stops_in_any_stage_is_dropped_and_the_next_link_is_right);
fn a_party_that_stops_in_any_stage_is_dropped_and_the_next_link_is_right(export: ExportMode) {
    // Each type of frame between the parties in turn is the last one that arrives.
    for kind in 1..=15 {
        let mut exchange = exchange(4, 810, export);
        announce_two(&mut exchange, 64500);
        exchange.check();
        let stopped = std::rc::Rc::new(std::cell::Cell::new(false));
        let stop = std::rc::Rc::clone(&stopped);
        exchange.sim.tamper = Some(Box::new(move |from, to, bytes| {
            let is_between = matches!((from, to), (Node::Party(_), Node::Party(_)));
            if is_between && bytes.first() == Some(&kind) {
                stop.set(true);
            }
            if is_between && stop.get() { FrameAction::Drop } else { FrameAction::Pass }
        }));
        announce_two(&mut exchange, 64501);
        exchange.sim.run_for(Duration::from_secs(3));
        exchange.sim.cut_all();
        exchange.sim.connect_all();
        exchange.sim.run_for(Duration::from_secs(60));
        for slot in [0, 3] {
            let table = &exchange.sim.tables[&slot];
            assert!(table.contains_key(&nlri("20.0.0.0/16").prefix), "type {kind}: what was delivered stays");
        }
        exchange.sim.tamper = None;
        // A link on which nothing arrives is closed by its ends' keepalives, also if neither party awaits an answer.
        exchange.sim.cut_parties();
        exchange.check();
    }
}

in_both_modes!(a_member_that_never_ranks_is_dropped_and_others_get_their_results);
fn a_member_that_never_ranks_is_dropped_and_others_get_their_results(export: ExportMode) {
    #[derive(Clone, Copy, Debug)]
    enum Answers {
        Nobody,
        OnlyPartyOne,
        OnlyPartyTwo,
        WithTwoIds,
    }
    for answers in [Answers::Nobody, Answers::OnlyPartyOne, Answers::OnlyPartyTwo, Answers::WithTwoIds] {
        let mut exchange = exchange(4, 820, export);
        exchange.sim.tamper = Some(Box::new(move |from, _, bytes| match (from, answers, FromMember::decode(bytes)) {
            (Node::Member(0), Answers::Nobody, Ok(FromMember::RankOne { .. } | FromMember::RankTwo { .. }))
            | (Node::Member(0), Answers::OnlyPartyOne, Ok(FromMember::RankTwo { .. }))
            | (Node::Member(0), Answers::OnlyPartyTwo, Ok(FromMember::RankOne { .. })) => FrameAction::Drop,
            (Node::Member(0), Answers::WithTwoIds, Ok(FromMember::RankTwo { seq, share, .. })) => {
                FrameAction::Change(FromMember::RankTwo { seq, row: [1; 16], share }.encode())
            }
            _ => FrameAction::Pass,
        }));
        announce_two(&mut exchange, 64500);
        exchange.sim.run_for(Duration::from_secs(2));
        for slot in [1, 2, 3] {
            let outcomes = exchange.sim.member(slot).expect("runs").status().counters.outcomes;
            assert!(outcomes >= 1, "{answers:?}: member {slot} has no result");
        }
        exchange.sim.run_for(Duration::from_secs(20));
        let dropped = exchange.sim.closed.iter().filter(|(by, of, _)| (*by, *of) == (PARTIES[0], Node::Member(0)));
        assert_eq!(dropped.count(), 1, "{answers:?}: {:?}", exchange.sim.closed);
        let missed = exchange.sim.party_events.iter().filter(|(_, e)| *e == PartyEvent::MissedRanking { slot: 0 });
        assert_eq!(missed.count(), 3, "{answers:?}");
        let others = exchange
            .sim
            .party_events
            .iter()
            .any(|(_, e)| matches!(e, PartyEvent::MissedRanking { slot } if *slot != 0));
        assert!(!others, "{answers:?}");
        // Without it there is nobody to wait for.
        exchange.announce(1, &[nlri("20.0.0.0/16")], &route(1, &[64500, 64501], &[]));
        exchange.sim.run_for(Duration::from_millis(10));
        let best = exchange.sim.tables[&3][&nlri("20.0.0.0/16").prefix].as_path().first_asn();
        assert_eq!(best.map(|asn| asn.0), Some(65002), "{answers:?}");
        exchange.sim.tamper = None;
        exchange.check();
    }
}

in_both_modes!(routes_of_a_member_that_stays_away_die_and_come_back_with_it);
fn routes_of_a_member_that_stays_away_die_and_come_back_with_it(export: ExportMode) {
    let stale = Duration::from_secs(60);
    let mut exchange = Exchange::new(Setup { members: 4, seed: 830, stale, export, ..Setup::default() });
    announce_two(&mut exchange, 64500);
    exchange.announce(1, &[nlri("20.1.0.0/16")], &route(1, &[64500], &[]));
    exchange.check();
    exchange.sim.kill(Node::Member(1));
    exchange.sim.run_for(stale - Duration::from_secs(2));
    let has = |sim: &Sim| sim.tables[&0].contains_key(&nlri("20.1.0.0/16").prefix);
    assert!(has(&exchange.sim), "its routes are kept for a while");
    exchange.sim.run_for(Duration::from_secs(5));
    assert!(!has(&exchange.sim), "then they die");
    let best = exchange.sim.tables[&0][&nlri("20.0.0.0/16").prefix].as_path().first_asn();
    assert_eq!(best.map(|asn| asn.0), Some(65002), "and others take their place");
    assert!(exchange.sim.party_events.iter().any(|(_, event)| *event == PartyEvent::Expired { slot: 1 }));
    exchange.sim.start(Node::Member(1));
    exchange.check();
    assert!(has(&exchange.sim), "they come back");
}

in_both_modes!(a_member_that_goes_at_any_moment_is_forgotten_in_time);
fn a_member_that_goes_at_any_moment_is_forgotten_in_time(export: ExportMode) {
    let stale = Duration::from_secs(60);
    for steps in 0..60 {
        let mut exchange = Exchange::new(Setup { members: 3, seed: 840, stale, export, ..Setup::default() });
        exchange.announce(1, &[nlri("20.1.0.0/16")], &route(1, &[64500], &[]));
        exchange.check();
        exchange.announce(1, &[nlri("20.2.0.0/16")], &route(1, &[64500], &[]));
        for _ in 0..steps {
            exchange.sim.step(Duration::from_secs(1));
        }
        exchange.sim.kill(Node::Member(1));
        exchange.sim.run_for(stale + Duration::from_secs(10));
        assert!(exchange.sim.tables[&0].is_empty(), "gone after {steps} steps: {:?}", exchange.sim.tables[&0]);
        exchange.sim.start(Node::Member(1));
        exchange.check();
    }
}

in_both_modes!(when_the_parties_stay_away_routes_are_withdrawn_and_come_back_with_them);
fn when_the_parties_stay_away_routes_are_withdrawn_and_come_back_with_them(export: ExportMode) {
    for away in [&PARTIES[..], &PARTIES[..1], &PARTIES[1..]] {
        let mut exchange = exchange(4, 850, export);
        announce_two(&mut exchange, 64500);
        exchange.check();
        away.iter().for_each(|party| exchange.sim.kill(*party));
        exchange.sim.run_for(Duration::from_secs(3500));
        assert!(!exchange.sim.tables[&0].is_empty(), "kept while there is hope");
        exchange.sim.run_for(Duration::from_secs(200));
        assert!(exchange.sim.tables.values().all(BTreeMap::is_empty), "withdrawn after an hour");
        let stale = |slot| move |(of, e): &&(u32, MemberEvent)| *of == slot && matches!(e, MemberEvent::Stale { .. });
        for slot in 0..4 {
            assert_eq!(exchange.sim.member_events.iter().filter(|e| stale(slot)(e)).count(), 1, "member {slot}");
        }
        away.iter().for_each(|party| exchange.sim.start(*party));
        exchange.check();
        assert!(!exchange.sim.tables[&0].is_empty());
    }
}

in_both_modes!(a_leavers_routes_are_gone_everywhere_and_its_slot_is_refused);
fn a_leavers_routes_are_gone_everywhere_and_its_slot_is_refused(export: ExportMode) {
    let mut exchange = exchange(4, 860, export);
    announce_two(&mut exchange, 64500);
    exchange.check();
    exchange.leave(1);
    exchange.check();
    assert!(
        PARTIES.iter().all(|party| exchange
            .sim
            .party(*party)
            .expect("runs")
            .routes(99, false)
            .iter()
            .all(|r| r.slot != 1))
    );
    let newcomer = exchange.join();
    exchange.check();
    assert!(exchange.sim.tables[&newcomer].contains_key(&nlri("20.0.0.0/16").prefix));
    // A leaver whose link a driver let in by mistake is served nothing.
    exchange.sim.play_member(1);
    let mut forger = Forger::new(860, 1);
    forger.greet(&mut exchange.sim, false);
    let draft = forger.draft(&exchange.sim, &[nlri("20.7.0.0/16")], &route(1, &[64500], &[]));
    let object = forger.seal(&draft);
    exchange.sim.recording = Some(Vec::new());
    forger.submit(&mut exchange.sim, &object);
    exchange.sim.run_for(Duration::from_secs(5));
    let ticks = exchange.sim.recording.take().unwrap_or_default();
    assert!(!ticks.iter().any(|frame| frame.to == Node::Member(1) && frame.bytes.first() == Some(&3)), "a tick");
    assert!(!exchange.sim.tables[&0].contains_key(&nlri("20.7.0.0/16").prefix));
}

in_both_modes!(the_highest_epoch_of_the_other_party_wraps_nothing);
fn the_highest_epoch_of_the_other_party_wraps_nothing(export: ExportMode) {
    for epoch in [u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
        let mut exchange = exchange(3, 870, export);
        exchange.announce(1, &[nlri("20.0.0.0/16")], &route(1, &[64500], &[]));
        exchange.check();
        exchange.sim.tamper = Some(once(move |from, _, bytes| match (from == PARTIES[1], PartyFrame::decode(bytes)) {
            (
                true,
                Ok(PartyFrame::Hello {
                    versions,
                    exchange,
                    party,
                    nonce,
                    seq,
                    set,
                    tick_ms,
                    export,
                    max_blob,
                    applied,
                    clock,
                    order,
                    commitment,
                    has_order,
                    later,
                    ..
                }),
            ) => {
                let (stored, agreed) = (0, 0);
                let hello = PartyFrame::Hello {
                    versions,
                    exchange,
                    party,
                    nonce,
                    epoch,
                    seq,
                    set,
                    tick_ms,
                    export,
                    max_blob,
                    stored,
                    agreed,
                    applied,
                    clock,
                    order,
                    commitment,
                    has_order,
                    later,
                };
                Some(FrameAction::Change(hello.encode()))
            }
            _ => None,
        }));
        exchange.sim.cut_all();
        exchange.check();
        for recommended in 1..4 {
            exchange.recommend(&BTreeMap::from([(1, recommended)]));
            exchange.check();
            exchange.announce(2, &[nlri("20.0.0.0/16")], &route(2, &[64500 + u32::from(recommended)], &[]));
            exchange.check();
        }
    }
}

in_both_modes!(a_route_of_a_lower_class_is_no_result);
fn a_route_of_a_lower_class_is_no_result(export: ExportMode) {
    let mut exchange = exchange(4, 880, export);
    // Party 1 turns the index of the result over: the longer path, which the member ranked behind.
    exchange.sim.tamper = Some(once(|from, to, bytes| {
        let is_outcome = from == PARTIES[0] && to == Node::Member(3) && bytes.first() == Some(&4);
        is_outcome.then(|| {
            let mut bytes = bytes.to_vec();
            *bytes.last_mut().expect("it has bytes") ^= 1;
            FrameAction::Change(bytes)
        })
    }));
    exchange.announce(1, &[nlri("20.0.0.0/16")], &route(1, &[64500], &[]));
    exchange.announce(2, &[nlri("20.0.0.0/16")], &route(2, &[64500, 64501], &[]));
    assert!(exchange.sim.settle(LIMIT));
    let alarms: Vec<_> = exchange.sim.alarms(3).collect();
    assert_eq!(alarms.len(), 1, "{alarms:?}");
    assert_eq!(alarms[0].suspects, [Suspect::Party(1), Suspect::Party(2)]);
    exchange.compare();
}

in_both_modes!(a_link_that_stands_still_for_a_while_is_nobodys_fault);
fn a_link_that_stands_still_for_a_while_is_nobodys_fault(export: ExportMode) {
    /// What party 2 sends to this member comes so much later.
    const LATE: Duration = Duration::from_secs(17);
    let (slow, tick) = (Wire { delay: LATE, ..Wire::LAN }, Duration::from_millis(50));
    let wires = [((PARTIES[1], Node::Member(2)), slow)].into();
    let costs = Some(Costs { wires, ..Costs::default() });
    let mut sim = Sim::new(Setup { members: 3, tick, costs, export, ..Setup::default() });
    assert!(sim.settle(LIMIT));
    sim.forget_events();
    sim.recording = Some(Vec::new());
    let prefix = nlri("20.0.0.0/16");
    for change in 0..330 {
        sim.announce(0, &[prefix], &route(0, &[64500 + change], &[]));
        sim.pass(Duration::from_millis(60));
    }
    let recorded = sim.recording.take().expect("it records");
    let is_tick = |frame: &&Recorded| {
        (frame.from, frame.to) == (PARTIES[0], Node::Member(2)) && frame.bytes.first() == Some(&TICK_FRAME)
    };
    let ticks: Vec<Instant> = recorded.iter().filter(is_tick).map(|frame| frame.at).collect();
    let most = ticks.iter().map(|from| ticks.iter().filter(|at| from <= at && **at < *from + LATE).count()).max();
    assert!(most > Some(256), "{most:?} ticks wait for their other half");
    assert!(sim.settle(LIMIT));
    assert_eq!(sim.alarms(2).count(), 0);
    assert_eq!(sim.closed, []);
    assert_eq!(sim.tables[&2], sim.tables[&1]);
}

#[test]
fn a_party_whose_ticks_do_not_come_ends_the_session_before_they_fill_the_memory_and_nobody_is_blamed() {
    let tick = Duration::from_millis(50);
    let mut sim = Sim::new(Setup { members: 3, tick, max_blob: 1 << 17, ..Setup::default() });
    assert!(sim.settle(LIMIT));
    sim.tamper = Some(Box::new(|from, to, bytes| {
        let is_lost = (from, to) == (PARTIES[1], Node::Member(2)) && bytes.first() == Some(&TICK_FRAME);
        if is_lost { FrameAction::Drop } else { FrameAction::Pass }
    }));
    let large: Vec<String> = (0..4_000).map(|n| format!("64999:{n}:1")).collect();
    let large: Vec<&str> = large.iter().map(String::as_str).collect();
    let mut sent = 0;
    while sim.closed.is_empty() && sent < 1_000 {
        sim.announce(0, &[nlri("20.0.0.0/16")], &route(0, &[64500 + sent], &large));
        sim.run_for(Duration::from_millis(60));
        sent += 1;
    }
    // 64 KiB each, and 24 MiB at most.
    assert!((300..=420).contains(&sent), "{sent} routes");
    let [(.., late), (.., other)] = &sim.closed[..] else { panic!("both its links: {:?}", sim.closed) };
    assert!(
        late.contains("party 2 has not sent") && other.contains("the link to the other party is down"),
        "{late}; {other}"
    );
    assert_eq!(sim.alarms(2).count(), 0);
    sim.tamper = None;
    assert!(sim.settle(LIMIT));
    assert_eq!(sim.tables[&2], sim.tables[&1]);
}

in_both_modes!(a_member_that_is_back_while_its_routes_expire_has_all_of_them);
fn a_member_that_is_back_while_its_routes_expire_has_all_of_them(export: ExportMode) {
    let (stale, tick) = (Duration::from_secs(60), Duration::from_millis(50));
    // A batch takes longer than a tick, so that what becomes due meanwhile is all in the next one.
    let between_parties = Wire { delay: Duration::from_millis(40), ..Wire::LAN };
    for late in (0..400).step_by(10).map(Duration::from_millis) {
        let costs = Some(Costs { between_parties, ..Costs::default() });
        let mut exchange =
            Exchange::new(Setup { members: 3, seed: 845, stale, tick, export, costs, ..Setup::default() });
        for prefix in 0..3 {
            exchange.announce(1, &[nlri(&format!("20.{prefix}.0.0/16"))], &route(1, &[64500], &[]));
        }
        exchange.check();
        exchange.sim.cut_member(1);
        exchange.sim.run_for(stale - Duration::from_millis(120) + late);
        exchange.announce(0, &[nlri("20.9.0.0/16")], &route(0, &[64500], &[]));
        exchange.sim.run_for(Duration::from_millis(30));
        exchange.check();
        assert_eq!(exchange.sim.tables[&0].len(), 3, "back after {late:?}");
    }
}

in_both_modes!(a_member_that_is_back_before_its_going_is_in_a_batch_pays_for_one_turn);
fn a_member_that_is_back_before_its_going_is_in_a_batch_pays_for_one_turn(export: ExportMode) {
    let tick = Duration::from_millis(50);
    for late in (0..55).step_by(5) {
        let mut exchange = Exchange::new(Setup { members: 3, seed: 846, tick, export, ..Setup::default() });
        announce_two(&mut exchange, 64500);
        exchange.check();
        let left = |exchange: &mut Exchange| {
            exchange.sim.member(2).expect("it runs").status().budget.expect("it is told").resyncs_left
        };
        let before = left(&mut exchange);
        // What changes has just had its batch, what is sent again has not had one for long.
        exchange.announce(0, &[nlri("20.9.0.0/16")], &route(0, &[64510], &[]));
        exchange.sim.run_for(Duration::from_millis(late));
        exchange.sim.cut_member(2);
        exchange.sim.connect_all();
        exchange.announce(0, &[nlri("20.8.0.0/16")], &route(0, &[64510], &[]));
        exchange.check();
        // Welcomes say what is left before the turn that they lead to: the first one, this one, and none more.
        exchange.sim.cut_member(2);
        exchange.check();
        assert_eq!(left(&mut exchange), before - 2, "after {late} ms");
    }
}
