//! Frames that cannot be, at every state of every kind of link: a clean end, no panic, and nobody else is touched.
//!
//! SIX, credit: frames beyond credit, credit for what was not sent, credit that is no more than before, a member that
//! takes up nothing for a minute: the link is closed, its sender named with the reason; others have everything.
//! SIX, another's cursor: a hello for another slot, or one that is none, in every state of a link: closed; the event
//! names the slot that the certificate has.
//! SIX-09: oversize, truncated, repeated, reordered, random frames in every state: a clear error, others undisturbed.
//! SIX, lists that err: a tick that lists a prefix without candidates or names a candidate twice: refused.
//! SIX, who connects again: digests that nobody asked for, of a batch to come, at any time: their sender's link ends,
//! and nothing breaks for good.

use std::time::Duration;

use crate::common::{Exchange, LIMIT, nlri, route};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use wayleave_core::wire::Malformed;
use wayleave_lab::sim::bad::Forger;
use wayleave_lab::sim::{EXCHANGE, FrameAction, Node, PARTIES, Recorded, Setup};
use wayleave_route_server::credit;
use wayleave_route_server::digests::{Roots, Through};
use wayleave_route_server::frames::{
    BudgetLeft, Candidate, EngineStream, FromMember, PartyFrame, Refusal, SessionId, Tick, ToMember,
};
use wayleave_route_server::member::{Alarm, MemberEvent, Suspect};
use wayleave_route_server::object::{ExportMode, Handle};
use wayleave_route_server::party::PartyEvent;
use wayleave_route_server::versions::{FIRST, FORMATS, VERSIONS, Versions};

/// A range that no build has, and one that is none.
const NONE_OF_OURS: Versions = Versions { least: 900, highest: 901 };
const CROSSED: Versions = Versions { least: 8, highest: 7 };
const BAD: u32 = 0;
const SEED: u64 = 700;

/// What a frame of a member comes to, once the member has said hello. Before that, its link is closed for anything else.
#[derive(Clone, Copy, PartialEq, Debug)]
enum After {
    Closed,
    Refused,
    Ignored,
}

/// How far a link has come.
#[derive(Clone, Copy, PartialEq, Debug)]
enum State {
    BeforeHello,
    HelloOnOneLink,
    Synced,
    RankingAwaited,
}

const STATES: [State; 4] = [State::BeforeHello, State::HelloOnOneLink, State::Synced, State::RankingAwaited];

fn bad_frames(exchange: &Exchange, forger: &mut Forger, party: usize) -> Vec<(&'static str, Vec<u8>, After)> {
    let session: SessionId = [9; 16];
    let hello = forger.hello(session, true);
    let draft = forger.draft(&exchange.sim, &[nlri("20.9.0.0/16")], &route(BAD, &[64500], &[]));
    let object = forger.seal(&draft);
    let submission = [object.to_one(), object.to_two()][party].clone();
    let other_submission = [object.to_two(), object.to_one()][party].clone();
    let mut too_large = draft.clone();
    too_large.excess = 262_144 - 512;
    let too_large = forger.seal(&too_large).to_one();
    let rank_two = FromMember::RankTwo { seq: u64::MAX, row: [0; 16], share: vec![1; 3] }.encode();
    let rank_one =
        FromMember::RankOne { seq: u64::MAX, row: [0; 16], seed: wayleave_crypto::secret::Seed::new([0; 32]) }.encode();
    let ranks = [rank_one, rank_two];
    let other = |exchange: &str, slot, versions| {
        let (exchange, later) = (exchange.to_owned(), Vec::new());
        FromMember::Hello { versions, exchange, slot, session, select_best: true, formats: FORMATS, later }.encode()
    };
    let begins = |told| FromMember::Begin { version: FIRST, told }.encode();
    let mut flipped_bool = hello.clone();
    // Behind it are the range of formats and the count of what later versions add.
    let at = flipped_bool.len() - 9;
    flipped_bool[at] = 2;
    let roots = Roots { objects: [0; 16], instances: [0; 16] };
    let buckets = FromMember::Buckets {
        seq: 0,
        through: Through { objects: 0, results: 0 },
        epoch: 1,
        objects: vec![(1, [0; 16])],
        instances: Vec::new(),
        own: [0; 16],
    };
    vec![
        ("nothing", vec![], After::Closed),
        ("type 0", vec![0], After::Closed),
        ("type 255 and zeros", [vec![255], vec![0; 1 << 20]].concat(), After::Closed),
        ("a second hello", hello.clone(), After::Closed),
        ("half a hello", hello[..hello.len() / 2].to_vec(), After::Closed),
        ("a hello and a byte", [hello.clone(), vec![0]].concat(), After::Closed),
        ("a boolean of 2", flipped_bool, After::Closed),
        ("a hello for another slot", other(EXCHANGE, 1, VERSIONS), After::Closed),
        ("a hello for a slot that is none", other(EXCHANGE, u32::MAX, VERSIONS), After::Closed),
        ("a hello for another exchange", other("other-ix", BAD, VERSIONS), After::Closed),
        ("a hello of another version", other(EXCHANGE, BAD, NONE_OF_OURS), After::Closed),
        ("a hello whose least version is above its highest", other(EXCHANGE, BAD, CROSSED), After::Closed),
        ("a hello of version 6", [&[1, 0, 6, 0, 0, 0, 6][..], b"sim-ix", &[0; 21]].concat(), After::Closed),
        ("the same of an exchange without a name", [&[1, 0, 6, 0, 0, 0, 0][..], &[0; 21]].concat(), After::Closed),
        ("a session that has begun", begins([VERSIONS; 2]), After::Closed),
        ("a range of versions that ends before it begins", begins([CROSSED; 2]), After::Closed),
        ("half an object", submission[..submission.len() / 2].to_vec(), After::Closed),
        ("an object and a byte", [submission.clone(), vec![0]].concat(), After::Closed),
        ("an object with a count of 2^32 - 1", [vec![submission[0]], vec![255; 600]].concat(), After::Closed),
        ("a blob larger than any", too_large, After::Closed),
        ("the other party's object", other_submission, After::Closed),
        ("the other party's ranking", ranks[1 - party].clone(), After::Closed),
        ("a ranking of a batch to come", ranks[party].clone(), After::Ignored),
        ("a party's tick", ToMember::Tick(Box::default()).encode(), After::Closed),
        ("a party's go", PartyFrame::Go { seq: 1 }.encode(), After::Closed),
        ("an object without its part", header_only(&submission), After::Refused),
        (
            "everything again",
            FromMember::holds_nothing().encode(),
            if party == 0 { After::Ignored } else { After::Closed },
        ),
        (
            "names that nobody asked for",
            FromMember::ObjectNames { question: 1, through: Handle([0xff; 32]), names: Vec::new() }.encode(),
            After::Closed,
        ),
        (
            "a position to come",
            FromMember::Holds {
                seq: u64::MAX,
                through: Through { objects: 0, results: 0 },
                epoch: 1,
                roots,
                own: [0; 16],
            }
            .encode(),
            After::Closed,
        ),
        ("buckets that nobody asked for", buckets.encode(), After::Closed),
        ("a frame beyond its credit", beyond(credit::FROM_MEMBER), After::Closed),
        ("credit for what was not sent", FromMember::Credit { limit: u64::MAX }.encode(), After::Closed),
        ("credit that it gave before", FromMember::Credit { limit: 0 }.encode(), After::Closed),
    ]
}

/// A frame for which a window has no credit, whatever is in it.
fn beyond(window: u64) -> Vec<u8> {
    vec![255; usize::try_from(window - credit::FRAME_COST).expect("it fits") + 1]
}

fn header_only(submission: &[u8]) -> Vec<u8> {
    match FromMember::decode(submission).expect("a frame of ours") {
        FromMember::SubmitOne { header, .. } => FromMember::SubmitOne { header, body: None }.encode(),
        FromMember::SubmitTwo { header, .. } => FromMember::SubmitTwo { header, share: None }.encode(),
        _ => panic!("no object"),
    }
}

/// An exchange whose other members have routes, and a bad member whose link to `party` is in `state`.
fn bring_to(state: State, party: Node) -> (Exchange, Forger) {
    let mut exchange = Exchange::new(Setup { members: 3, seed: SEED, ..Setup::default() });
    exchange.announce(1, &[nlri("20.0.0.0/16")], &route(1, &[64500], &[]));
    exchange.check();
    exchange.sim.play_member(BAD);
    let mut forger = Forger::new(SEED, BAD);
    match state {
        State::BeforeHello => {}
        State::HelloOnOneLink => {
            forger.greet_one(&mut exchange.sim, party, [1; 16]);
        }
        State::Synced | State::RankingAwaited => {
            forger.greet(&mut exchange.sim, true);
        }
    }
    exchange.sim.run_for(Duration::from_millis(10));
    if state == State::RankingAwaited {
        exchange.announce(2, &[nlri("20.0.0.0/16")], &route(2, &[64500], &[]));
        exchange.sim.run_for(Duration::from_millis(10));
        assert_eq!(exchange.sim.party(party).map(|p| p.status().rounds), Some(1));
    }
    exchange.sim.forget_events();
    (exchange, forger)
}

#[test]
fn a_members_bad_frame_ends_its_own_link_in_every_state() {
    for (p, party) in PARTIES.into_iter().enumerate() {
        for state in STATES {
            let (exchange, mut forger) = bring_to(state, party);
            for number in 0..bad_frames(&exchange, &mut forger, p).len() {
                let (mut exchange, mut forger) = bring_to(state, party);
                let (name, bytes, after) = bad_frames(&exchange, &mut forger, p).swap_remove(number);
                let name = format!("{name}, {state:?}, {party:?}");
                let before = exchange.sim.tables.clone();
                exchange.sim.inject(Node::Member(BAD), party, &bytes);
                exchange.sim.run_for(Duration::from_millis(5));
                let closed: Vec<_> = exchange.sim.closed.iter().map(|(by, of, _)| (*by, *of)).collect();
                let is_hello = state == State::BeforeHello && name.starts_with("a second hello");
                let expected = match (state, after) {
                    (State::BeforeHello, _) if is_hello => After::Ignored,
                    (State::BeforeHello, _) => After::Closed,
                    (_, after) => after,
                };
                let expected_closed = if expected == After::Closed { vec![(party, Node::Member(BAD))] } else { vec![] };
                assert_eq!(closed, expected_closed, "{name}");
                let bad =
                    |(_, event): &(Node, PartyEvent)| matches!(event, PartyEvent::BadFrame { slot: Some(BAD), .. });
                assert_eq!(exchange.sim.party_events.iter().any(bad), expected == After::Closed, "{name}");
                let refused = |(_, event): &(Node, PartyEvent)| matches!(event, PartyEvent::Refused { slot: BAD, .. });
                assert_eq!(exchange.sim.party_events.iter().any(refused), expected == After::Refused, "{name}");
                // A round that waited for the bad member's ranking ends without it; nothing else changes.
                let ends_round = state == State::RankingAwaited && expected == After::Closed;
                for slot in [1, 2] {
                    assert!(ends_round || exchange.sim.tables[&slot] == before[&slot], "{name}: member {slot}");
                }
                exchange.announce(2, &[nlri("20.3.0.0/16")], &route(2, &[64500], &[]));
                exchange.sim.run_for(Duration::from_secs(12));
                assert!(exchange.sim.tables[&1].contains_key(&nlri("20.3.0.0/16").prefix), "{name}: others are served");
                exchange.sim.start(Node::Member(BAD));
                exchange.sim.cut_all();
                exchange.check();
            }
        }
    }
}

/// Frames for a member that cannot be, whatever the state.
fn bad_for_a_member() -> Vec<(&'static str, Vec<u8>)> {
    let tick = |tick: Tick| ToMember::Tick(Box::new(tick)).encode();
    let part = |bytes: Vec<u8>, last| ToMember::Part { last, bytes }.encode();
    let welcome = |versions, session| {
        let set = [].into();
        let export = ExportMode::Direct;
        let budget = BudgetLeft::default();
        ToMember::Welcome {
            versions,
            session,
            epoch: 1,
            high_water: 0,
            tick_ms: 0,
            export,
            max_blob: 8192,
            budget,
            format: FORMATS.highest,
            set,
            later: Vec::new(),
        }
        .encode()
    };
    vec![
        ("nothing", vec![]),
        ("type 0", vec![0]),
        ("type 255 and zeros", [vec![255], vec![0; 1 << 20]].concat()),
        ("a tick and a byte", [tick(Tick::default()), vec![0]].concat()),
        ("half a tick", tick(Tick { seq: 1 << 60, ..Tick::default() })[..20].to_vec()),
        ("a tick with a count of 2^32 - 1", [vec![3], vec![1; 41], vec![255; 400]].concat()),
        ("a welcome to another session", welcome(VERSIONS, [0; 16])),
        ("a welcome of another version", welcome(NONE_OF_OURS, [0; 16])),
        ("a renewal that nobody signed", ToMember::Renew { epoch: u64::MAX, set: vec![1; 99].into() }.encode()),
        ("a refusal without a reason", vec![5, 0, 0, 0, 0, 0, 0, 0, 1, 0]),
        ("a part within a part", part(part(vec![6], true), true)),
        ("a part that is no frame", part(vec![9, 9, 9], true)),
        ("a member's hello", Forger::new(SEED, BAD).hello([0; 16], true)),
        ("a member's resync", FromMember::holds_nothing().encode()),
        ("a frame beyond its credit", beyond(credit::TO_MEMBER)),
        ("credit for what was not sent", ToMember::Credit { limit: u64::MAX }.encode()),
        ("credit that it gave before", ToMember::Credit { limit: 0 }.encode()),
        ("credit in a part", part(ToMember::Credit { limit: u64::MAX }.encode(), true)),
    ]
}

#[test]
fn a_partys_bad_frame_ends_the_members_link_and_its_routes_stay() {
    for (name, bytes) in bad_for_a_member() {
        for (party, is_welcomed) in [(PARTIES[0], true), (PARTIES[1], true), (PARTIES[0], false), (PARTIES[1], false)] {
            let name = format!("{name} from {party:?}, welcomed: {is_welcomed}");
            let mut exchange = Exchange::new(Setup { members: 3, seed: SEED, ..Setup::default() });
            for slot in [0, 1] {
                exchange.announce(slot, &[nlri("20.0.0.0/16")], &route(slot, &[64500], &[]));
            }
            exchange.check();
            if !is_welcomed {
                exchange.sim.tamper = Some(Box::new(move |from, to, _| {
                    if (from, to) == (party, Node::Member(2)) { FrameAction::Drop } else { FrameAction::Pass }
                }));
                exchange.sim.cut_all();
                exchange.sim.connect_all();
                exchange.sim.run_for(Duration::from_millis(100));
                exchange.sim.tamper = None;
            }
            exchange.sim.forget_events();
            let before = exchange.sim.tables.clone();
            exchange.sim.inject(party, Node::Member(2), &bytes);
            exchange.sim.run_for(Duration::from_millis(100));
            let by_member = |(by, of, _): &(Node, Node, String)| (*by, *of) == (Node::Member(2), party);
            assert!(exchange.sim.closed.iter().any(by_member), "{name}: {:?}", exchange.sim.closed);
            assert!(exchange.sim.alarms(2).count() >= 1, "{name}");
            assert_eq!(exchange.sim.tables, before, "{name}: nothing is withdrawn in haste");
            exchange.check();
        }
    }
}

#[test]
fn ticks_to_come_are_forgotten_with_the_session() {
    let mut exchange = Exchange::new(Setup { members: 3, seed: SEED, ..Setup::default() });
    // What they may take up is in `exchange_links`.
    for i in 0..200 {
        let tick = Tick { seq: u64::MAX - i, ..Tick::default() };
        exchange.sim.inject(PARTIES[0], Node::Member(2), &ToMember::Tick(Box::new(tick)).encode());
    }
    exchange.sim.run_for(Duration::from_millis(100));
    exchange.sim.cut_member(2);
    exchange.announce(0, &[nlri("20.0.0.0/16")], &route(0, &[64500], &[]));
    exchange.check();
}

#[test]
fn an_outcome_before_the_ranking_left_is_no_outcome() {
    let tick = Duration::from_millis(50);
    let mut exchange = Exchange::new(Setup { members: 3, tick, seed: SEED, ..Setup::default() });
    for slot in [0, 1] {
        exchange.announce(slot, &[nlri("20.0.0.0/16")], &route(slot, &[64500], &[]));
    }
    // Each tick is followed by both parties' outcome, long before the ranking may leave.
    let mut sent = 0;
    exchange.sim.recording = Some(Vec::new());
    for _ in 0..2000 {
        exchange.sim.step(Duration::from_secs(1));
        let recorded = exchange.sim.recording.replace(Vec::new()).unwrap_or_default();
        for frame in recorded.iter().filter(|frame| frame.from == PARTIES[1] && frame.to == Node::Member(2)) {
            if let Ok(ToMember::Tick(tick)) = ToMember::decode(&frame.bytes)
                && tick.rank
            {
                for party in PARTIES {
                    let outcome = ToMember::Outcome { seq: tick.seq, first: 0, share: vec![0x80] };
                    exchange.sim.inject(party, Node::Member(2), &outcome.encode());
                    sent += 1;
                }
            }
        }
    }
    assert!(sent > 0);
    exchange.check();
    let by_a_party = |alarm: &Alarm| matches!(alarm.suspects[..], [Suspect::Party(_)]);
    let alarms = exchange
        .sim
        .member_events
        .iter()
        .filter(|(slot, event)| *slot == 2 && matches!(event, MemberEvent::Alarm(alarm) if by_a_party(alarm)));
    assert!(alarms.count() > 0, "the party that answers what it cannot know is named");
}

#[test]
fn a_refusal_of_nothing_delays_the_first_announcement_and_no_more() {
    let mut exchange = Exchange::new(Setup { members: 3, seed: SEED, ..Setup::default() });
    for party in PARTIES {
        let refused = ToMember::Refused { version: 77, reason: Refusal::Busy };
        exchange.sim.inject(party, Node::Member(1), &refused.encode());
    }
    exchange.sim.run_for(Duration::from_millis(1));
    exchange.announce(1, &[nlri("20.0.0.0/16")], &route(1, &[64500], &[]));
    exchange.check();
}

/// Frames that party 2 may get from one who plays party 1, or the other way round.
fn bad_between(to: Node) -> Vec<(&'static str, Vec<u8>)> {
    let from_number = if to == PARTIES[0] { 2 } else { 1 };
    let hello = |versions, exchange: &str, party, seq| {
        let exchange = exchange.to_owned();
        let set = [].into();
        let (epoch, export) = (1, ExportMode::Direct);
        let (nonce, tick_ms, max_blob) = ([3; 16], 0, 8192);
        let (stored, agreed, applied, clock) = (0, 0, 0, 0);
        PartyFrame::Hello {
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
            order: 1,
            commitment: [4; 32],
            has_order: None,
            later: Vec::new(),
        }
        .encode()
    };
    let good = hello(VERSIONS, EXCHANGE, from_number, 0);
    let engine = |stream, step| PartyFrame::Engine { stream, step, bytes: vec![] }.encode();
    let refill = |demand| PartyFrame::Refill { demand }.encode();
    vec![
        ("nothing", vec![]),
        ("type 0", vec![0]),
        ("type 255 and zeros", [vec![255], vec![0; 1 << 20]].concat()),
        ("half a hello", good[..good.len() / 2].to_vec()),
        ("a hello and a byte", [good, vec![0]].concat()),
        ("a hello of another version", hello(NONE_OF_OURS, EXCHANGE, from_number, 0)),
        ("a hello whose least version is above its highest", hello(CROSSED, EXCHANGE, from_number, 0)),
        ("a hello of another exchange", hello(VERSIONS, "other-ix", from_number, 0)),
        ("a hello of the same party", hello(VERSIONS, EXCHANGE, 3 - from_number, 0)),
        ("a hello of a third party", hello(VERSIONS, EXCHANGE, 3, 0)),
        ("a hello with the highest batch", hello(VERSIONS, EXCHANGE, from_number, u64::MAX)),
        ("an inventory with a count of 2^32 - 1", [vec![2], vec![255; 600]].concat()),
        ("a go for nothing", PartyFrame::Go { seq: 7 }.encode()),
        ("an acceptance of nothing", PartyFrame::Accept { seq: 7, view: [0; 32] }.encode()),
        ("a rejection of nothing", PartyFrame::Reject { seq: 7, missing: vec![(1, 1)] }.encode()),
        ("a batch of the past", PartyFrame::Propose { seq: 0, steps: vec![] }.encode()),
        ("the highest batch", PartyFrame::Propose { seq: u64::MAX, steps: vec![] }.encode()),
        ("an evaluation of nothing", PartyFrame::Evaluate { seq: 7, rows: vec![(0, [0; 16])], late: vec![] }.encode()),
        ("an engine message of step 2^64 - 1", engine(EngineStream::Evaluation, u64::MAX)),
        ("a setup message of step 2^64 - 1", engine(EngineStream::Setup, u64::MAX)),
        ("a refill of 2^64 - 1", refill(vec![(1, u64::MAX)])),
        ("a refill of no width", refill(vec![(3, 128)])),
        ("a refill of nothing", refill(vec![])),
        ("a refill of zero", refill(vec![(1, 0)])),
        ("a refill that is no multiple", refill(vec![(1, 100)])),
        ("a refill of more than may wait", refill(vec![(1, 128); 64])),
        ("part of a conclusion with nothing in it", PartyFrame::Reconciling { drop: vec![], differ: vec![] }.encode()),
        (
            "a conclusion over more than there was",
            PartyFrame::Reconciling { drop: vec![(0, 1, false); 1 << 17], differ: vec![] }.encode(),
        ),
        (
            "a second conclusion",
            PartyFrame::Reconciled {
                epoch: 0,
                set: [].into(),
                drop: vec![],
                differ: vec![],
                high_water: vec![],
                view: [0; 32],
            }
            .encode(),
        ),
        // One that can be decoded is shorter, and what it takes up is granted again at once.
        ("a frame longer than its credit", beyond(credit::BETWEEN_PARTIES)),
        ("credit for what was not sent", PartyFrame::Credit { limit: u64::MAX }.encode()),
        ("credit that it gave before", PartyFrame::Credit { limit: 0 }.encode()),
    ]
}

#[test]
fn who_sends_beyond_its_credit_or_grants_what_is_not_so_is_named_with_the_reason() {
    let beyond = |window| (beyond(window), "a frame beyond the credit that it was given");
    let grants = |encode: fn(u64) -> Vec<u8>| {
        let more = (encode(u64::MAX), "a grant of credit for more than was sent");
        vec![more, (encode(0), "a grant of credit that is no step")]
    };
    let of_member =
        || [vec![beyond(credit::FROM_MEMBER)], grants(|limit| FromMember::Credit { limit }.encode())].concat();
    let to_member = || [vec![beyond(credit::TO_MEMBER)], grants(|limit| ToMember::Credit { limit }.encode())].concat();
    let between = || grants(|limit| PartyFrame::Credit { limit }.encode());
    let ([one, two], bad, honest) = (PARTIES, Node::Member(BAD), Node::Member(2));
    for (from, to, frames) in [
        (bad, one, of_member()),
        (bad, two, of_member()),
        (one, honest, to_member()),
        (two, honest, to_member()),
        (one, two, between()),
        (two, one, between()),
    ] {
        for (bytes, what) in frames {
            let (mut exchange, _) = bring_to(State::Synced, one);
            exchange.sim.inject(from, to, &bytes);
            exchange.sim.run_for(Duration::from_millis(100));
            let closed = exchange.sim.closed.iter().map(|(by, of, why)| (*by, *of, why.as_str())).collect::<Vec<_>>();
            assert_eq!(closed.first(), Some(&(to, from, what)), "{from:?} to {to:?}");
            let slot = (from == bad).then_some(BAD);
            let named: Vec<_> =
                exchange.sim.party_events.iter().filter(|(_, e)| matches!(e, PartyEvent::BadFrame { .. })).collect();
            if to == honest {
                let suspect = Suspect::Party(if from == one { 1 } else { 2 });
                let mut alarms = exchange.sim.alarms(2);
                assert!(alarms.any(|alarm| alarm.what.contains(what) && alarm.suspects == [suspect.clone()]), "{what}");
            } else {
                assert_eq!(named, [&(to, PartyEvent::BadFrame { slot, what: what.to_owned() })], "{from:?} to {to:?}");
            }
        }
    }
}

#[test]
fn a_member_that_takes_up_nothing_for_a_minute_loses_its_link_and_is_named() {
    let (mut exchange, _) = bring_to(State::Synced, PARTIES[0]);
    let begin = exchange.sim.now().instant;
    // Of more than two steps of credit it gives none back.
    for prefix in 0..600 {
        let prefix = nlri(&format!("30.{}.{}.0/24", prefix / 256, prefix % 256));
        exchange.sim.announce(1, &[prefix], &route(1, &[64500], &[]));
        exchange.sim.run_for(Duration::from_millis(5));
    }
    let end = exchange.sim.now().instant;
    let stalled = |exchange: &Exchange| -> Vec<(Node, PartyEvent)> {
        let is_stalled = |(_, event): &&(Node, PartyEvent)| matches!(event, PartyEvent::Stalled { .. });
        exchange.sim.party_events.iter().filter(is_stalled).cloned().collect()
    };
    exchange.sim.run_for((begin + credit::STALLED).since(end) - Duration::from_secs(1));
    assert_eq!(stalled(&exchange), []);
    assert!(exchange.sim.has_link(PARTIES[0], Node::Member(BAD)), "{:?}", exchange.sim.closed);
    let last = (end + credit::STALLED).since(exchange.sim.now().instant) + Duration::from_secs(1);
    exchange.sim.run_for(last);
    assert_eq!(stalled(&exchange), [(PARTIES[0], PartyEvent::Stalled { slot: Some(BAD) })]);
    let reason = "it reads nothing of what is sent to it".to_owned();
    assert!(exchange.sim.closed.contains(&(PARTIES[0], Node::Member(BAD), reason)), "{:?}", exchange.sim.closed);
    assert_eq!(exchange.sim.tables[&2].len(), 601, "others have had everything meanwhile");
}

#[test]
fn the_other_partys_bad_frame_ends_the_link_and_all_recovers() {
    for to in PARTIES {
        let from = if to == PARTIES[0] { PARTIES[1] } else { PARTIES[0] };
        for (name, bytes) in bad_between(to) {
            for before_hello in [false, true] {
                let name = format!("{name} to {to:?}, before hello: {before_hello}");
                let mut exchange = Exchange::new(Setup { members: 3, seed: SEED, ..Setup::default() });
                for slot in [0, 1] {
                    exchange.announce(slot, &[nlri("20.0.0.0/16")], &route(slot, &[64500], &["64496:0:65002"]));
                }
                exchange.check();
                if before_hello {
                    exchange.sim.play_party(from);
                }
                exchange.sim.run_for(Duration::from_millis(10));
                exchange.sim.forget_events();
                let before = exchange.sim.tables.clone();
                exchange.sim.inject(from, to, &bytes);
                exchange.sim.run_for(Duration::from_millis(10));
                let by_party = |(by, of, _): &(Node, Node, String)| (*by, *of) == (to, from);
                assert!(exchange.sim.closed.iter().any(by_party), "{name}: {:?}", exchange.sim.closed);
                assert_eq!(exchange.sim.tables, before, "{name}");
                if before_hello {
                    exchange.sim.start(from);
                }
                exchange.announce(0, &[nlri("20.3.0.0/16")], &route(0, &[64500], &[]));
                exchange.check();
            }
        }
    }
}

/// Frames of every type, as honest processes send them.
fn corpus() -> Vec<Recorded> {
    let mut exchange = Exchange::of(wayleave_lab::sim::Sim::new(Setup { members: 3, seed: SEED, ..Setup::default() }));
    exchange.sim.recording = Some(Vec::new());
    exchange.check();
    for slot in [0, 1] {
        exchange.announce(slot, &[nlri("20.0.0.0/16"), nlri("20.1.0.0/16")], &route(slot, &[64500], &[]));
    }
    exchange.check();
    exchange.recommend(&std::collections::BTreeMap::from([(0, 3), (1, 9)]));
    exchange.withdraw(0, &[nlri("20.1.0.0/16")]);
    exchange.check();
    exchange.join();
    exchange.check();
    exchange.sim.recording.take().unwrap_or_default()
}

/// What is done to a real frame.
#[derive(Clone, Debug)]
enum Mutation {
    None,
    Truncate(prop::sample::Index),
    Extend(Vec<u8>),
    Set(prop::sample::Index, u8),
    Splice(prop::sample::Index, Vec<u8>),
    Replace(Vec<u8>),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..40);
    prop_oneof![
        Just(Mutation::None),
        any::<prop::sample::Index>().prop_map(Mutation::Truncate),
        bytes().prop_map(Mutation::Extend),
        (any::<prop::sample::Index>(), any::<u8>()).prop_map(|(at, to)| Mutation::Set(at, to)),
        (any::<prop::sample::Index>(), bytes()).prop_map(|(at, bytes)| Mutation::Splice(at, bytes)),
        bytes().prop_map(Mutation::Replace),
    ]
}

impl Mutation {
    fn apply(&self, bytes: &[u8]) -> Vec<u8> {
        let mut out = bytes.to_vec();
        match self {
            Self::None => {}
            Self::Truncate(at) => out.truncate(at.index(bytes.len().max(1))),
            Self::Extend(more) => out.extend_from_slice(more),
            Self::Set(at, to) if !out.is_empty() => out[at.index(bytes.len())] = *to,
            Self::Splice(at, put) if !out.is_empty() => {
                let at = at.index(bytes.len());
                let end = (at + put.len()).min(out.len());
                out.splice(at..end, put.iter().copied());
            }
            Self::Set(..) | Self::Splice(..) => {}
            Self::Replace(other) => out.clone_from(other),
        }
        out
    }
}

thread_local! {
    static CORPUS: Vec<Recorded> = corpus();
}

proptest! {
    #[test]
    fn any_bytes_decode_or_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        drop(FromMember::decode(&bytes));
        drop(ToMember::decode(&bytes));
        drop(PartyFrame::decode(&bytes));
    }

    #[test]
    fn mutated_frames_decode_or_are_refused(which in any::<prop::sample::Index>(), how in mutation()) {
        CORPUS.with(|corpus| {
            let bytes = how.apply(&which.get(corpus).bytes);
            if let Ok(frame) = FromMember::decode(&bytes) {
                prop_assert_eq!(frame.encode(), bytes.clone());
            }
            if let Ok(frame) = ToMember::decode(&bytes) {
                prop_assert_eq!(frame.encode(), bytes.clone());
            }
            if let Ok(frame) = PartyFrame::decode(&bytes) {
                prop_assert_eq!(frame.encode(), bytes);
            }
            Ok::<(), TestCaseError>(())
        })?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 4, ..ProptestConfig::default() })]

    /// Real frames, some mutated, at any time on the links on which such frames travel.
    #[test]
    fn foreign_frames_at_any_time_break_nothing_for_good(
        seed in 0_u64..1000,
        script in prop::collection::vec((any::<prop::sample::Index>(), mutation(), 0_usize..60), 1..25),
    ) {
        let mut exchange = Exchange::new(Setup { members: 3, seed, ..Setup::default() });
        CORPUS.with(|corpus| {
            for (i, (which, how, steps)) in script.iter().enumerate() {
                let frame = which.get(corpus);
                exchange.sim.inject(frame.from, frame.to, &how.apply(&frame.bytes));
                let slot = u32::try_from(i % 3).expect("few");
                exchange.announce(slot, &[nlri(&format!("20.{}.0.0/16", i % 4))], &route(slot, &[64500], &["64496:0:65001"]));
                for _ in 0..*steps {
                    exchange.sim.step(Duration::from_secs(1));
                    let forbidden = exchange.sim.tables[&1].iter().any(|(_, route)| route.as_path().first_asn().is_some_and(|asn| asn.0 != 65001));
                    prop_assert!(!forbidden, "member 1 has a route that is hidden from it");
                }
                exchange.sim.connect_all();
            }
            Ok::<(), TestCaseError>(())
        })?;
        exchange.sim.cut_all();
        let frames = || CORPUS.with(|corpus| script.iter().map(|(which, ..)| which.get(corpus).shape()).collect::<Vec<_>>());
        prop_assert!(exchange.sim.settle(LIMIT), "does not come to rest after {:?}: {}", frames(), exchange.describe());
        exchange.compare();
    }
}

#[test]
fn a_tick_lists_no_prefix_without_candidates() {
    let tick = |candidates: Vec<Candidate>| {
        let tick = Tick { instances: vec![candidates.into()], ..Tick::default() };
        ToMember::decode(&ToMember::Tick(Box::new(tick)).encode())
    };
    assert!(tick(vec![(Handle([1; 32]), 0)]).is_ok());
    // By its count: fewer octets are left than one candidate has; or by itself, where more follows.
    assert!(matches!(tick(Vec::new()), Err(Malformed::TooMany { .. } | Malformed::Value(_))));
}
