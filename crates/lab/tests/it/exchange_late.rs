//! A member whose rankings come late costs the others no time: rounds wait for the public time at which rankings leave and one allowance.
//!
//! SIX, late rankings: one of fifty members ranks ten milliseconds before the last moment: the others' median and an announcer's
//! rate change by less than a tenth.
//! SIX, late rankings of several members and rounds: evaluated together, once a tick at most, each once and for its member alone, also
//! beside failures; over the budget, at the last moment or for ever: said, and the member's own order decides.
//! SIX, second rankings: before the round begins and after: refused by name.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use wayleave_bgp::Nlri;
use wayleave_crypto::secret::Seed;
use wayleave_lab::sim::costs::{Costs, Wire};
use wayleave_lab::sim::{FrameAction, Node, PARTIES, Setup, Sim};
use wayleave_route_server::frames::{FromMember, Miss, PartyFrame, ToMember};
use wayleave_route_server::member::MemberEvent;
use wayleave_route_server::object::ExportMode;
use wayleave_route_server::party::{Budget, PartyEvent, PartyStatus};

use crate::common::{Exchange, LIMIT, asn, in_both_modes, nlri, route};

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
    assert!(sim.settle(LIMIT));
    assert_eq!(sim.tables[&LATE], sim.tables[&4], "it has its results later");
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

/// Six members, of which those in `late` rank so much later, and pairs of routes to each of ten prefixes.
fn small(setup: Setup, late: &[u32], delay: Duration) -> Exchange {
    let mut exchange = Exchange::new(Setup { members: 6, tick: TICK, costs: Some(Costs::default()), ..setup });
    for slot in [0, 1] {
        for i in 0..10 {
            exchange.announce(slot, &[prefix(i)], &route(slot, &[64500], &[]));
        }
    }
    exchange.check();
    // So many rounds that the parties know how long one takes.
    for change in 0..20 {
        exchange.announce(0, &[prefix(change % 10)], &route(0, &[64500, 64600 + change], &[]));
        exchange.sim.run_for(3 * TICK);
    }
    exchange.check();
    for (party, slot) in PARTIES.into_iter().flat_map(|party| late.iter().map(move |slot| (party, *slot))) {
        let wires = &mut exchange.sim.costs().expect("it has costs").wires;
        wires.insert((Node::Member(slot), party), Wire { delay, ..Wire::LAN });
    }
    exchange.sim.forget_events();
    exchange
}

fn prefix(number: u32) -> Nlri {
    nlri(&format!("22.{number}.0.0/16"))
}

fn status(sim: &Sim) -> PartyStatus {
    sim.party(PARTIES[0]).expect("it runs").status()
}

/// A change with each tick.
fn change(exchange: &mut Exchange, changes: u32) {
    for change in 0..changes {
        exchange.announce(0, &[prefix(change % 10)], &route(0, &[64500, 64700 + change], &[]));
        exchange.sim.run_for(TICK);
    }
}

fn between_parties(sim: &Sim) -> impl Iterator<Item = (wayleave_core::Instant, PartyFrame)> + '_ {
    let recorded = sim.recording.iter().flatten();
    let of_one = recorded.filter(|frame| (frame.from, frame.to) == (PARTIES[0], PARTIES[1]));
    of_one.filter_map(|frame| Some((frame.at, PartyFrame::decode(&frame.bytes).ok()?)))
}

in_both_modes!(late_rankings_are_evaluated_together_each_once_and_for_its_member_alone);
fn late_rankings_are_evaluated_together_each_once_and_for_its_member_alone(export: ExportMode) {
    let late = [3, 4, 5];
    let mut exchange = small(Setup { export, ..Setup::default() }, &late, Duration::from_millis(180));
    exchange.sim.recording = Some(Vec::new());
    change(&mut exchange, 40);
    exchange.check();
    let (mut named, mut times, mut together) = (BTreeSet::new(), Vec::new(), BTreeSet::new());
    for (at, frame) in between_parties(&exchange.sim) {
        let PartyFrame::Late { rows, .. } = frame else { continue };
        times.push(at);
        together.insert((rows.len(), rows.iter().map(|(seq, ..)| *seq).collect::<BTreeSet<u64>>().len()));
        for (seq, slot, _) in rows {
            assert!(late.contains(&slot) && named.insert((seq, slot)), "{seq} of {slot} is evaluated once");
        }
    }
    assert!(times.windows(2).all(|two| two[1] - two[0] >= TICK), "once a tick at most");
    assert!(together.iter().any(|(rows, _)| *rows >= 3), "rankings, and batches, of each: {together:?}");
    assert!(named.len() >= 3 * 30, "{}", named.len());
    // Each party sends each member one octet for each prefix of each of its rounds.
    let mut results: BTreeMap<(Node, u32, u64), usize> = BTreeMap::new();
    let mut asked: BTreeMap<(u32, u64), usize> = BTreeMap::new();
    for frame in exchange.sim.recording.iter().flatten() {
        match (frame.from, frame.to, ToMember::decode(&frame.bytes)) {
            (Node::Party(_), Node::Member(slot), Ok(ToMember::Outcome { seq, share, .. })) => {
                *results.entry((frame.from, slot, seq)).or_default() += share.len();
            }
            (Node::Party(_), Node::Member(slot), Ok(ToMember::Tick(tick))) if tick.rank => {
                let multi = tick.instances.iter().filter(|instance| instance.len() > 1).count();
                asked.insert((slot, tick.seq), multi);
            }
            (.., Ok(ToMember::Missed { seq, why })) => panic!("{seq} is missed: {why}"),
            _ => {}
        }
    }
    for ((slot, seq), multi) in &asked {
        for party in PARTIES {
            assert_eq!(results.get(&(party, *slot, *seq)), Some(multi), "{seq} for {slot} from {party:?}");
        }
    }
    assert_eq!(results.len(), 2 * asked.len(), "no results of other rounds");
    assert_eq!(status(&exchange.sim).late, late);
    assert!(status(&exchange.sim).on_probation.is_empty());
    assert_eq!(exchange.sim.alarms(3).count(), 0);
    assert_eq!(status(&exchange.sim).counters.late_rankings, named.len() as u64);
}

in_both_modes!(who_is_late_for_more_than_its_budget_has_its_own_order_and_is_told_so);
fn who_is_late_for_more_than_its_budget_has_its_own_order_and_is_told_so(export: ExportMode) {
    let budget = Budget { late: 1, ..Budget::default() };
    let mut exchange = small(Setup { export, budget, ..Setup::default() }, &[LATE], Duration::from_millis(180));
    change(&mut exchange, 40);
    exchange.check();
    let is_told = |(slot, event): &&(u32, MemberEvent)| {
        *slot == LATE && matches!(event, MemberEvent::RankingMissed { why: Miss::Budget, .. })
    };
    let told = exchange.sim.member_events.iter().filter(is_told).count();
    assert!(told >= 20, "{told}");
    let events = exchange.sim.party_events.iter().filter(|(_, e)| *e == PartyEvent::LateRankings { slot: LATE });
    assert_eq!(events.count(), 1, "its operator is told once a minute");
    let status = status(&exchange.sim);
    assert_eq!((status.over_budget, status.late), (vec![LATE], vec![LATE]));
    assert_eq!(status.counters.late_refused, told as u64);
    assert!(
        status.counters.late_rankings <= 12,
        "what it had at once, and a second: {}",
        status.counters.late_rankings
    );
    assert!(exchange.sim.closed.is_empty(), "it keeps its links");
}

in_both_modes!(late_rankings_that_never_come_leave_nothing_behind);
fn late_rankings_that_never_come_leave_nothing_behind(export: ExportMode) {
    let mut exchange = small(Setup { export, ..Setup::default() }, &[], Duration::ZERO);
    exchange.sim.tamper = Some(Box::new(|from, _, bytes| {
        let ranks = matches!(FromMember::decode(bytes), Ok(FromMember::RankOne { .. } | FromMember::RankTwo { .. }));
        if from == Node::Member(LATE) && ranks { FrameAction::Drop } else { FrameAction::Pass }
    }));
    exchange.sim.recording = Some(Vec::new());
    change(&mut exchange, 10);
    exchange.sim.run_for(Duration::from_secs(5));
    let (mut begun, mut ended) = (BTreeSet::new(), BTreeSet::new());
    for (_, frame) in between_parties(&exchange.sim) {
        match frame {
            PartyFrame::Evaluate { seq, late, .. } if !late.is_empty() => assert!(begun.insert(seq)),
            PartyFrame::Late { ended: of, .. } => ended.extend(of),
            _ => {}
        }
    }
    assert!(!begun.is_empty() && begun == ended, "{begun:?} and {ended:?}");
    assert!(PARTIES.iter().all(|party| exchange.sim.party(*party).expect("it runs").is_at_rest()));
    assert_eq!(status(&exchange.sim).on_probation, [LATE]);
    exchange.check();
}

in_both_modes!(tables_equal_the_reference_while_members_are_late_and_processes_fail);
fn tables_equal_the_reference_while_members_are_late_and_processes_fail(export: ExportMode) {
    for seed in 0..3 {
        let setup = Setup { export, seed, ..Setup::default() };
        let mut exchange = small(setup, &[2, 4], Duration::from_millis(120));
        for round in 0..12 {
            exchange.random_change(false);
            exchange.sim.run_for(TICK);
            let (node, wait) = (exchange.sim.choose(8), exchange.sim.choose(300) as u64);
            exchange.sim.run_for(Duration::from_millis(wait));
            match (round % 4, node) {
                (3, 0) => exchange.sim.cut_parties(),
                (3, of @ 1..=5) => exchange.sim.cut_member(u32::try_from(of).expect("few")),
                (3, _) => {
                    exchange.kill_one();
                }
                _ => {}
            }
        }
        exchange.check();
        assert!((0..6).all(|slot| exchange.sim.alarms(slot).next().is_none()));
    }
}

in_both_modes!(a_second_ranking_for_one_round_is_refused_by_name);
fn a_second_ranking_for_one_round_is_refused_by_name(export: ExportMode) {
    // Before the round has begun, and after it has begun without the member.
    for (slot, wait) in [(2, 5), (LATE, 150)] {
        let mut exchange = small(Setup { export, ..Setup::default() }, &[], Duration::ZERO);
        // Its own ones do not come.
        exchange.sim.tamper = Some(Box::new(|from, _, bytes| match FromMember::decode(bytes) {
            Ok(FromMember::RankOne { row, .. } | FromMember::RankTwo { row, .. })
                if from == Node::Member(LATE) && !matches!(row, [1, ..] | [2, ..]) =>
            {
                FrameAction::Drop
            }
            _ => FrameAction::Pass,
        }));
        let batch = status(&exchange.sim).batch;
        exchange.announce(0, &[prefix(0)], &route(0, &[64500, 64999], &[]));
        while status(&exchange.sim).batch == batch || status(&exchange.sim).rounds == 0 {
            assert!(exchange.sim.step(LIMIT));
        }
        exchange.sim.run_for(Duration::from_millis(wait));
        let seq = status(&exchange.sim).batch;
        let rank = |row: u8| FromMember::RankOne { seq, row: [row; 16], seed: Seed::new([row; 32]) };
        for row in [1, 2] {
            exchange.sim.inject(Node::Member(slot), PARTIES[0], &rank(row).encode());
            exchange.sim.run_for(Duration::from_millis(1));
        }
        exchange.sim.tamper = None;
        let refused = exchange.sim.closed.iter().filter(|(by, of, why)| {
            (*by, *of) == (PARTIES[0], Node::Member(slot)) && why == "a second ranking for one batch"
        });
        assert_eq!(refused.count(), 1, "slot {slot}: {:?}", exchange.sim.closed);
        exchange.check();
    }
}

#[test]
fn a_round_waits_for_as_long_as_the_operator_says() {
    for (allowance, is_late) in
        [(None, true), (Some(Duration::from_millis(100)), true), (Some(Duration::from_millis(400)), false)]
    {
        let setup = Setup { rank_allowance: allowance, ..Setup::default() };
        let mut exchange = small(setup, &[LATE], Duration::from_millis(300));
        exchange.sim.recording = Some(Vec::new());
        change(&mut exchange, 5);
        exchange.check();
        let late = between_parties(&exchange.sim).any(|(_, frame)| matches!(frame, PartyFrame::Late { .. }));
        assert_eq!(late, is_late, "{allowance:?}");
        let shown = status(&exchange.sim).rank_allowance_ms;
        match allowance {
            Some(allowance) => assert!((shown - allowance.as_secs_f64() * 1_000.0).abs() < 0.001),
            None => assert!(shown < 10.0, "{shown} ms"),
        }
    }
}
