//! One hostile member among twenty honest ones, where work and links cost time: it costs them less than their latency was before,
//! parties' memory is bounded, and who it is shows in their status. Half of the changes that are measured are of a route that
//! Select-Best has to choose, and they come at random moments of the tick.
//!
//! SIX-08: hostile members in virtual time: who is slow, flaps or announces without end waits for its own rounds, and
//! others do not.
//! SIX, who waits for rounds and places: one announcer changes or withdraws more than can be compared: others are
//! served.
//! SIX, rounds that follow from what goes: a path of 128 prefixes is withdrawn with each tick, 2,560 contested routes
//! expire: few rounds open, p99 below twice its quiet value.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::OnceLock;
use std::time::Duration;

use wayleave_bgp::Nlri;
use wayleave_lab::sim::bad::Forger;
use wayleave_lab::sim::costs::{Costs, Wire};
use wayleave_lab::sim::{FrameAction, Node, PARTIES, Setup, Sim};
use wayleave_route_server::credit;
use wayleave_route_server::digests::{Digest, Through};
use wayleave_route_server::frames::{FromMember, PartyFrame, Refusal, SessionId, Step, ToMember};
use wayleave_route_server::member::MemberEvent;
use wayleave_route_server::object::{ExportMode, MAX_PREFIXES};
use wayleave_route_server::party::{Budget, PartyEvent, PartyStatus};

use crate::common::{LIMIT, asn, in_both_modes, nlri, policy, route};

const HONEST: u32 = 20;
const BAD: u32 = HONEST;
const TICK: Duration = Duration::from_millis(50);
/// Changes whose latency is measured, and how far apart they are at most.
const CHANGES: u32 = 400;
const MOST_PAUSE: usize = 120;
/// Prefixes that a member may announce, and octets of blobs that party 1 then stores of it: the least that the budget gives.
const MAX_PREFIX: u32 = 600;
const OCTETS_STORED: usize = 4 << 20;
/// Rounds that a party has open at a time at most.
const MOST_ROUNDS: usize = 32;

/// An exchange at rest, in which every honest member has a route, and pairs of them have one to the same prefix.
fn exchange(export: ExportMode, costs: Costs) -> Sim {
    exchange_with(Setup { costs: Some(costs), export, ..Setup::default() })
}

fn exchange_with(setup: Setup) -> Sim {
    let members = HONEST as usize + 1;
    let max_prefix = if setup.max_prefix == Setup::default().max_prefix { MAX_PREFIX } else { setup.max_prefix };
    let mut sim = Sim::new(Setup { members, tick: TICK, max_prefix, ..setup });
    assert!(sim.settle(LIMIT));
    for slot in 0..HONEST {
        sim.announce(slot, &[nlri(&format!("20.{slot}.0.0/16"))], &route(slot, &[64500], &[]));
        sim.announce(slot, &[contested(slot)], &route(slot, &[64500, 64501, 64502], &[]));
    }
    assert!(sim.settle(LIMIT));
    sim.forget_events();
    sim
}

/// The prefix to which a member and the next one have routes.
fn contested(slot: u32) -> Nlri {
    nlri(&format!("21.{}.0.0/16", slot / 2))
}

/// What is seen of an exchange while somebody attacks.
struct Watched {
    /// Latencies of changes of honest members at other honest members, ascending.
    latencies: Vec<Duration>,
    /// The most octets of objects of one member that waited at a party.
    octets_waiting: usize,
    /// The most rounds that a party had open.
    rounds: usize,
}

impl Watched {
    /// The 99th percentile.
    fn p99(&self) -> Duration {
        self.latencies[self.latencies.len() * 99 / 100]
    }

    fn look(&mut self, sim: &Sim) {
        for party in PARTIES {
            let status = sim.party(party).expect("it runs").status();
            self.octets_waiting = self.octets_waiting.max(status.octets_waiting);
            self.rounds = self.rounds.max(status.rounds);
        }
    }
}

/// Watches changes of honest members' routes; `act` is what the hostile one does before each.
fn watch(sim: &mut Sim, act: impl FnMut(&mut Sim, u32)) -> Watched {
    watch_changes(sim, CHANGES, act)
}

/// The same with so many changes.
fn watch_changes(sim: &mut Sim, changes: u32, mut act: impl FnMut(&mut Sim, u32)) -> Watched {
    let mut watched = Watched { latencies: Vec::new(), octets_waiting: 0, rounds: 0 };
    for change in 0..changes {
        act(sim, change);
        // Each even slot has the shorter path to its contested prefix, always.
        let (from, prefix) = match change % (2 * HONEST) {
            from @ 0..HONEST => (from, nlri(&format!("20.{from}.0.0/16"))),
            beyond => ((beyond - HONEST) & !1, contested(beyond - HONEST)),
        };
        let to = (from + 7) % HONEST;
        let (begin, wanted) = (sim.now().instant, route(from, &[64600 + change], &[]));
        sim.announce(from, &[prefix], &wanted);
        let mut steps = 0;
        while sim.tables[&to].get(&prefix.prefix) != Some(&wanted) {
            steps += 1;
            if steps % 64 == 0 {
                watched.look(sim);
            }
            assert!(
                sim.step(LIMIT),
                "the route arrives: {:?}; {:?}",
                sim.closed,
                sim.party_events.iter().rev().take(9).collect::<Vec<_>>()
            );
        }
        watched.latencies.push(sim.now().instant - begin);
        watched.look(sim);
        let pause = Duration::from_millis(sim.choose(MOST_PAUSE) as u64);
        sim.pass(pause);
    }
    watched.latencies.sort_unstable();
    watched
}

/// The 99th percentile when nobody attacks: measured once.
fn quiet(export: ExportMode) -> Duration {
    static QUIET: [OnceLock<Duration>; 2] = [OnceLock::new(), OnceLock::new()];
    let measure = || watch(&mut exchange(export, Costs::default()), |_, _| {}).p99();
    *QUIET[usize::from(export == ExportMode::Mpc)].get_or_init(measure)
}

fn status(sim: &Sim) -> PartyStatus {
    sim.party(PARTIES[0]).expect("it runs").status()
}

/// Whether what honest members see is bounded by what they see when nobody attacks, and the parties' memory is: what waits on
/// links and at the parties, what is stored of the hostile member, and rounds.
fn assert_unharmed(name: &str, sim: &Sim, attacked: &Watched) {
    assert_bounded_by(quiet(sim.export()), name, sim, attacked);
}

fn assert_bounded_by(before: Duration, name: &str, sim: &Sim, attacked: &Watched) {
    let during = attacked.p99();
    let (export, stored) = (sim.export(), stored_of_bad(sim));
    eprintln!(
        "{name}, {export}: p99 {during:?}, quiet {before:?}; at most {} octets wait and {} rounds are open, {stored} octets are stored",
        attacked.octets_waiting, attacked.rounds
    );
    assert!(during < 2 * before, "{name}: {during:?}, {before:?} when quiet");
    for party in PARTIES {
        for slot in 0..=BAD {
            let most = sim.most_outstanding(party, Node::Member(slot));
            assert!(most as u64 <= credit::TO_MEMBER / 2, "{name}: {most} octets for slot {slot}");
        }
        let most = sim.most_outstanding(party, if party == PARTIES[0] { PARTIES[1] } else { PARTIES[0] });
        assert!(most as u64 <= credit::BETWEEN_PARTIES, "{name}: {most} octets between the parties");
    }
    assert!(attacked.octets_waiting as u64 <= credit::FROM_MEMBER, "{name}: {} octets wait", attacked.octets_waiting);
    assert!(attacked.rounds <= MOST_ROUNDS, "{name}: {} rounds", attacked.rounds);
    assert!(stored <= OCTETS_STORED, "{name}: {stored} octets are stored");
    let of_honest = |(by, of, _): &&(Node, Node, String)| ![*by, *of].contains(&Node::Member(BAD));
    assert_eq!(sim.closed.iter().find(of_honest), None, "{name}: honest members keep their links");
}

/// Octets of the blobs that party 1 stores of the hostile member.
fn stored_of_bad(sim: &Sim) -> usize {
    let stored = sim.party(PARTIES[0]).expect("it runs").routes(usize::MAX, false);
    stored.iter().filter(|route| route.slot == BAD).filter_map(|route| route.blob_bytes).sum()
}

/// The hostile member, played by the test, connected and greeted.
fn played(sim: &mut Sim) -> (Forger, SessionId) {
    sim.play_member(BAD);
    sim.run_for(Duration::from_millis(10));
    let mut forger = Forger::new(1, BAD);
    let session = forger.greet(sim, true);
    sim.run_for(Duration::from_millis(300));
    (forger, session)
}

/// Connects again if the parties have closed its links.
fn come_back(sim: &mut Sim, forger: &mut Forger) -> bool {
    let is_up = PARTIES.iter().all(|party| sim.has_link(Node::Member(BAD), *party));
    if !is_up {
        sim.play_member(BAD);
        sim.run_for(Duration::from_millis(1));
        for party in PARTIES {
            forger.greet_one(sim, party, [9; 16]);
        }
    }
    !is_up
}

fn named(sim: &Sim, what: impl Fn(&PartyEvent) -> bool) -> usize {
    sim.party_events.iter().filter(|(_, event)| what(event)).count()
}

in_both_modes!(a_mute_member_is_named_and_delays_two_rounds);
fn a_mute_member_is_named_and_delays_two_rounds(export: ExportMode) {
    let mut sim = exchange(export, Costs::default());
    played(&mut sim);
    let attacked = watch(&mut sim, |_, _| {});
    assert_eq!(status(&sim).on_probation, [BAD]);
    assert_unharmed("mute", &sim, &attacked);
}

in_both_modes!(a_member_that_ranks_in_time_only_now_and_then_is_waited_for_no_more);
fn a_member_that_ranks_in_time_only_now_and_then_is_waited_for_no_more(export: ExportMode) {
    let mut sim = exchange(export, Costs::default());
    // Each second ranking, which would never be two missed ones in a row.
    sim.tamper = Some(Box::new(|from, _, bytes| {
        let seq = match FromMember::decode(bytes) {
            Ok(FromMember::RankOne { seq, .. } | FromMember::RankTwo { seq, .. }) if from == Node::Member(BAD) => seq,
            _ => return FrameAction::Pass,
        };
        if seq.is_multiple_of(2) { FrameAction::Drop } else { FrameAction::Pass }
    }));
    let attacked = watch(&mut sim, |_, _| {});
    assert!(named(&sim, |event| *event == PartyEvent::Probation { slot: BAD, begins: true }) > 0);
    assert_unharmed("now and then", &sim, &attacked);
}

in_both_modes!(a_slow_reader_is_paused_and_named_and_nobody_waits_for_it);
fn a_slow_reader_is_paused_and_named_and_nobody_waits_for_it(export: ExportMode) {
    let slow = Wire { bytes_per_second: 3_000, ..Wire::LAN };
    let wires = PARTIES.map(|party| ((party, Node::Member(BAD)), slow)).into();
    let mut sim = exchange(export, Costs { wires, ..Costs::default() });
    // It ranks late at first.
    for change in 0..30 {
        sim.announce(0, &[contested(0)], &route(0, &[64600 + change], &[]));
        sim.pass(Duration::from_millis(100));
    }
    assert_eq!(status(&sim).on_probation, [BAD]);
    // Much at once: large routes of the others, of which it reads none in time.
    let filling: Vec<String> = (0..300).map(|n| format!("64999:{n}:1")).collect();
    let filling: Vec<&str> = filling.iter().map(String::as_str).collect();
    for i in 0..1_200u32 {
        sim.announce(
            i % HONEST,
            &[nlri(&format!("30.{}.{}.0/24", i / 250, i % 250))],
            &route(i % HONEST, &[64500], &filling),
        );
    }
    sim.pass(Duration::from_secs(20));
    assert_eq!(sim.tables[&1].len(), sim.tables[&2].len());
    assert!(sim.tables[&1].len() > 1_100, "{}", sim.tables[&1].len());
    assert_eq!(status(&sim).behind, [BAD]);
    assert!(named(&sim, |event| *event == PartyEvent::Behind { slot: BAD, begins: true }) > 0);
    let attacked = watch(&mut sim, |_, _| {});
    assert_eq!(status(&sim).behind, [BAD], "it was behind all the time");
    assert_eq!(named(&sim, |event| *event == PartyEvent::Behind { slot: BAD, begins: false }), 0);
    assert_unharmed("slow reader", &sim, &attacked);
}

in_both_modes!(padded_blobs_are_taken_within_the_budget_and_the_rest_is_refused_by_name);
fn padded_blobs_are_taken_within_the_budget_and_the_rest_is_refused_by_name(export: ExportMode) {
    let mut sim = exchange(export, Costs::default());
    let (mut forger, _) = played(&mut sim);
    let large: Vec<String> = (0..550).map(|n| format!("64999:{n}:1")).collect();
    let large: Vec<&str> = large.iter().map(String::as_str).collect();
    let attributes = route(BAD, &[64500], &large);
    let attacked = watch(&mut sim, |sim, change| {
        come_back(sim, &mut forger);
        for i in 0..8 {
            let prefix = nlri(&format!("{}.{}.{i}.0/24", 40 + change / 256, change % 256));
            let draft = forger.draft(sim, &[prefix], &attributes);
            let object = forger.seal(&draft);
            forger.submit(sim, &object);
        }
    });
    assert_eq!(stored_of_bad(&sim), OCTETS_STORED, "all that it may have, fewer routes than it may announce");
    // Party 1, which has the blobs, refuses them; party 2 drops its halves.
    let refused = |of: Node| {
        let events = sim.party_events.iter().filter(move |(by, _)| *by == of);
        events.filter_map(|(_, event)| match event {
            PartyEvent::Refused { slot, reason, .. } => Some((*slot, *reason)),
            _ => None,
        })
    };
    let offered = 8 * CHANGES as usize;
    assert!(refused(PARTIES[0]).all(|refused| refused == (BAD, Refusal::Stored)), "with the reason");
    assert_eq!(refused(PARTIES[0]).count(), offered - OCTETS_STORED / 8192, "the rest is refused");
    assert_eq!(refused(PARTIES[1]).count(), 0, "it was party 1 that refused it, and named who erred");
    assert_eq!(status(&sim).over_budget, [BAD]);
    assert_unharmed("padded blobs", &sim, &attacked);
}

in_both_modes!(who_asks_for_everything_without_end_gets_it_at_intervals_and_is_named);
fn who_asks_for_everything_without_end_gets_it_at_intervals_and_is_named(export: ExportMode) {
    let mut sim = exchange(export, Costs::default());
    played(&mut sim);
    let attacked = watch(&mut sim, |sim, _| {
        for _ in 0..20 {
            sim.inject(Node::Member(BAD), PARTIES[0], &FromMember::holds_nothing().encode());
        }
    });
    assert_eq!(status(&sim).over_budget, [BAD]);
    assert!(named(&sim, |event| matches!(event, PartyEvent::Deferred { slot: BAD, .. })) > 0);
    assert_unharmed("resynchronisations", &sim, &attacked);
}

in_both_modes!(a_flapping_member_gets_everything_at_intervals_and_is_named);
fn a_flapping_member_gets_everything_at_intervals_and_is_named(export: ExportMode) {
    let mut sim = exchange(export, Costs::default());
    let attacked = watch(&mut sim, |sim, change| {
        if change.is_multiple_of(2) {
            sim.kill(Node::Member(BAD));
            sim.start(Node::Member(BAD));
        }
    });
    assert_eq!(status(&sim).over_budget, [BAD]);
    assert_unharmed("flapping", &sim, &attacked);
    assert!(sim.settle(LIMIT), "it is served once it stays");
    assert_eq!(sim.tables[&BAD].len(), sim.tables[&1].len() + 1);
}

in_both_modes!(wrong_ranking_frames_cost_their_sender_its_link);
fn wrong_ranking_frames_cost_their_sender_its_link(export: ExportMode) {
    let mut sim = exchange(export, Costs::default());
    let (mut forger, _) = played(&mut sim);
    let mut links = 0;
    let attacked = watch(&mut sim, |sim, change| {
        links += u32::from(come_back(sim, &mut forger));
        let batch = status(sim).batch;
        for seq in batch..batch + 4 {
            let share = vec![1; change as usize];
            let rank = FromMember::RankTwo { seq, row: [1; 16], share };
            sim.inject(Node::Member(BAD), PARTIES[1], &rank.encode());
            let rank = FromMember::RankOne { seq, row: [1; 16], seed: wayleave_crypto::secret::Seed::new([1; 32]) };
            sim.inject(Node::Member(BAD), PARTIES[0], &rank.encode());
        }
    });
    assert!(named(&sim, |event| matches!(event, PartyEvent::BadFrame { slot: Some(BAD), .. })) > 0);
    let two = sim.party(PARTIES[1]).expect("it runs");
    assert_eq!(two.status().misbehaving, [BAD], "which has the lengths of rankings");
    let later = wayleave_core::Instant(u64::MAX);
    assert_eq!(two.status_at(later).misbehaving, [0; 0], "by the clock alone, though nothing reaches the party");
    assert_unharmed("wrong rankings", &sim, &attacked);
}

in_both_modes!(rankings_of_batches_that_party_2_does_not_have_yet_disturb_nobody);
fn rankings_of_batches_that_party_2_does_not_have_yet_disturb_nobody(export: ExportMode) {
    // Party 1 has the round for a while before party 2 does.
    let between_parties = Wire { delay: Duration::from_millis(10), ..Wire::LAN };
    let costs = Costs { between_parties, ..Costs::default() };
    let before = watch(&mut exchange(export, costs.clone()), |_, _| {}).p99();
    let mut sim = exchange(export, costs);
    let (mut forger, _) = played(&mut sim);
    let mut last = 0;
    let attacked = watch(&mut sim, |sim, _| {
        for _ in 0..20 {
            come_back(sim, &mut forger);
            // As soon as party 2 has applied it.
            let seq = sim.party(PARTIES[1]).expect("it runs").status().batch;
            if std::mem::replace(&mut last, seq) != seq {
                let two = FromMember::RankTwo { seq, row: [1; 16], share: vec![1; 4] };
                sim.inject(Node::Member(BAD), PARTIES[1], &two.encode());
                sim.run_for(Duration::from_millis(8));
                let one = FromMember::RankOne { seq, row: [1; 16], seed: wayleave_crypto::secret::Seed::new([1; 32]) };
                sim.inject(Node::Member(BAD), PARTIES[0], &one.encode());
            }
            sim.run_for(Duration::from_millis(1));
        }
    });
    assert_bounded_by(before, "rankings before their batch", &sim, &attacked);
}

in_both_modes!(a_hundred_thousand_updates_a_second_are_refused_before_they_cost_much);
fn a_hundred_thousand_updates_a_second_are_refused_before_they_cost_much(export: ExportMode) {
    const RATE: u128 = 100_000;
    let mut sim = exchange(export, Costs::default());
    let (mut forger, _) = played(&mut sim);
    let prefix = nlri("50.0.0.0/16");
    // Valid withdrawals, which are the shortest objects, made once: a version that is past is refused last.
    let objects: Vec<[Vec<u8>; 2]> = (0..20_000)
        .map(|_| {
            let object = forger.withdraw(&sim, &[prefix]);
            [object.to_one(), object.to_two()]
        })
        .collect();
    let (mut sent, mut refused, started) = (0usize, 0, sim.now().instant);
    let mut last = started;
    let attacked = watch(&mut sim, |sim, _| {
        come_back(sim, &mut forger);
        // As many as are due by now, on links that are up.
        let due = (sim.now().instant - started).as_nanos() * RATE / 1_000_000_000;
        while (sent as u128) < due {
            let object = &objects[sent % objects.len()];
            for (party, frame) in PARTIES.into_iter().zip(object) {
                refused += usize::from(!sim.inject(Node::Member(BAD), party, frame));
            }
            sent += 1;
        }
        last = sim.now().instant;
    });
    let rate = sent as u128 * 1_000 / (last - started).as_millis();
    assert!(rate >= RATE - 1 && refused == 0, "{rate} a second, {refused} on links that were down");
    let over = |event: &PartyEvent| matches!(event, PartyEvent::Refused { slot: BAD, reason: Refusal::Budget, .. });
    assert!(named(&sim, over) > 1_000, "refused before their signatures are checked: {}", named(&sim, over));
    let checked = sim.party(PARTIES[0]).expect("it runs").counters().objects;
    let most = 2_000 * (sim.now().instant - started).as_secs() + 2 * 2_000;
    assert!(checked < most, "{checked} were checked, at most {most} are within the budget");
    assert_eq!(status(&sim).over_budget, [BAD]);
    assert_unharmed("updates", &sim, &attacked);
}

in_both_modes!(who_asks_often_has_select_best_choose_for_it_no_more_than_its_budget_says);
fn who_asks_often_has_select_best_choose_for_it_no_more_than_its_budget_says(export: ExportMode) {
    let mut sim = exchange(export, Costs::default());
    let lanes = |sim: &Sim| sim.party(PARTIES[0]).expect("it runs").counters().lanes;
    let table = sim.tables[&BAD].clone();
    let (begin, before) = (sim.now().instant, lanes(&sim));
    for _ in 0..200 {
        sim.inject(Node::Member(BAD), PARTIES[0], &FromMember::holds_nothing().encode());
        sim.pass(Duration::from_secs(5));
        assert!(sim.settle(LIMIT));
    }
    let hours = (sim.now().instant - begin).as_secs_f64() / 3600.0;
    // Each time all ten contested prefixes: sixteen times at once, and then 32 times an hour.
    let times = (lanes(&sim) - before) as f64 / f64::from(HONEST / 2);
    assert!(times >= 16.0 && times <= 17.0 + 32.0 * hours, "{times} times in {hours} hours");
    assert!(named(&sim, |event| matches!(event, PartyEvent::OwnOrder { slot: BAD, .. })) > 100);
    assert!(sim.member_events.iter().any(|(slot, event)| {
        *slot == BAD && matches!(event, MemberEvent::OwnOrder { seconds } if *seconds <= 113)
    }));
    assert_eq!(status(&sim).over_budget, [BAD]);
    assert_eq!(sim.tables[&BAD], table, "what was chosen before stays");
    // Where routes change it takes part as before.
    let before = lanes(&sim);
    sim.announce(0, &[contested(0)], &route(0, &[64999], &[]));
    assert!(sim.settle(LIMIT));
    assert_eq!(lanes(&sim) - before, u64::from(HONEST) + 1);
}

in_both_modes!(what_the_parties_cost_each_other_is_no_members_budget);
fn what_the_parties_cost_each_other_is_no_members_budget(export: ExportMode) {
    let mut sim = exchange(export, Costs::default());
    for _ in 0..40 {
        sim.cut_parties();
        assert!(sim.settle(LIMIT));
    }
    let over = |event: &PartyEvent| matches!(event, PartyEvent::Deferred { .. } | PartyEvent::OwnOrder { .. });
    assert_eq!(named(&sim, over), 0);
    assert!(status(&sim).over_budget.is_empty());
}

in_both_modes!(a_member_that_waits_for_its_turn_keeps_its_routes);
fn a_member_that_waits_for_its_turn_keeps_its_routes(export: ExportMode) {
    let budget = Budget { syncs: 1, ..Budget::default() };
    let stale = Duration::from_secs(120);
    let mut sim = Sim::new(Setup { members: 3, tick: TICK, budget, stale, export, ..Setup::default() });
    assert!(sim.settle(LIMIT));
    sim.announce(0, &[nlri("20.0.0.0/16")], &route(0, &[64500], &[]));
    assert!(sim.settle(LIMIT));
    for _ in 0..20 {
        sim.kill(Node::Member(0));
        sim.start(Node::Member(0));
        sim.pass(Duration::from_secs(1));
    }
    assert!(named(&sim, |event| matches!(event, PartyEvent::Deferred { slot: 0, .. })) > 0);
    let deferred = sim.member(0).expect("it runs").status().deferred;
    assert!(deferred.is_some_and(|seconds| (3_000..=3_600).contains(&seconds)), "{deferred:?}");
    sim.pass(Duration::from_secs(300));
    assert!(sim.tables[&1].contains_key(&nlri("20.0.0.0/16").prefix), "it is there, and the parties let it wait");
    sim.pass(Duration::from_secs(3_600));
    assert!(sim.settle(LIMIT));
    assert!(sim.tables[&1].contains_key(&nlri("20.0.0.0/16").prefix));
    assert_eq!(sim.member(0).expect("it runs").status().deferred, None);
}

in_both_modes!(what_waits_for_its_other_half_is_bounded_in_octets);
fn what_waits_for_its_other_half_is_bounded_in_octets(export: ExportMode) {
    let budget = Budget { objects: 1_000_000, octets: 2_000_000_000, ..Budget::default() };
    let mut sim = Sim::new(Setup { members: 3, tick: TICK, budget, max_blob: 1 << 17, export, ..Setup::default() });
    assert!(sim.settle(LIMIT));
    sim.play_member(2);
    sim.run_for(Duration::from_millis(10));
    let mut forger = Forger::new(1, 2);
    forger.greet(&mut sim, true);
    sim.run_for(Duration::from_millis(300));
    let large: Vec<String> = (0..4_000).map(|n| format!("64999:{n}:1")).collect();
    let large: Vec<&str> = large.iter().map(String::as_str).collect();
    let attributes = route(2, &[64500], &large);
    // Never to party 2, 64 KiB each.
    let mut most = 0;
    for i in 0..800u32 {
        let draft = forger.draft(&sim, &[nlri(&format!("40.{}.{}.0/24", i / 250, i % 250))], &attributes);
        let object = forger.seal(&draft);
        assert_eq!(object.one.as_ref().map(|(_, blob)| blob.len()), Some(1 << 16));
        assert!(sim.inject(Node::Member(2), PARTIES[0], &object.to_one()), "{:?}", sim.closed);
        sim.run_for(Duration::from_millis(1));
        most = most.max(status(&sim).octets_waiting);
    }
    assert!((32 << 20..33 << 20).contains(&most), "{most}");
    let busy = |event: &PartyEvent| matches!(event, PartyEvent::Refused { slot: 2, reason: Refusal::Busy, .. });
    assert!(named(&sim, busy) > 200, "{}", named(&sim, busy));
}

/// Announcers of one prefix, which the exchange recommends the more the higher their numbers are: opposite to a member's own order.
const ANNOUNCERS: u32 = 40;

/// Has the exchange recommend the announcers of a prefix so. Returns them, the best first.
fn recommend_against_own_order(sim: &mut Sim, prefix: Nlri) -> Vec<u32> {
    assert!(sim.settle(LIMIT));
    let key = sim.order_key(PARTIES[0]).expect("the parties have agreed on an order");
    let mut slots: Vec<u32> = (1..=ANNOUNCERS).collect();
    slots.sort_by_key(|slot| std::cmp::Reverse(key.number(*slot, &prefix)));
    sim.recommend(slots.iter().rev().zip(1..).map(|(slot, value)| (*slot, value)).collect());
    assert!(sim.settle(LIMIT));
    slots
}

/// How many places of the order of the recommendation a member (slot 0) finds within an epoch that rejects each winner in turn, and
/// changes a route of its own each time; `asks`: whether it asks for everything as well; `ranks_all`: whether it ranks also what the
/// parties say that it need not.
fn places_found(asks: bool, ranks_all: bool) -> u32 {
    let members = ANNOUNCERS as usize + 1;
    let mut sim = Sim::new(Setup { members, tick: TICK, ..Setup::default() });
    let prefix = nlri("192.0.2.0/24");
    let best = recommend_against_own_order(&mut sim, prefix);
    for slot in 1..=ANNOUNCERS {
        sim.announce(slot, &[prefix], &route(slot, &[64500], &[]));
    }
    assert!(sim.settle(LIMIT));
    sim.tamper = Some(Box::new(move |from, to, bytes| match (from, to) {
        (Node::Member(0), _) if !asks && matches!(FromMember::decode(bytes), Ok(FromMember::Holds { .. })) => {
            FrameAction::Drop
        }
        (_, Node::Member(0)) if ranks_all => match ToMember::decode(bytes) {
            Ok(ToMember::Tick(mut tick)) if !tick.unranked.is_empty() => {
                tick.unranked.clear();
                FrameAction::Change(ToMember::Tick(tick).encode())
            }
            _ => FrameAction::Pass,
        },
        _ => FrameAction::Pass,
    }));
    let (begin, mut found, mut step) = (sim.now().instant, 0, 0);
    while sim.now().instant - begin < Duration::from_secs(900) && found < ANNOUNCERS {
        let winner = sim.tables[&0].get(&prefix.prefix).and_then(|route| route.as_path().first_asn());
        if winner == Some(asn(best[found as usize])) {
            found += 1;
            let rejected: Vec<String> =
                best[..found as usize].iter().map(|slot| format!("\"{}\"", asn(*slot).0)).collect();
            let rejected = rejected.join(", ");
            sim.set_policy(
                0,
                policy(&format!("[[rule]]\ndirection = \"import\"\npeer = [{rejected}]\nreject = true\n")),
            );
        } else if asks {
            sim.inject(Node::Member(0), PARTIES[0], &FromMember::holds_nothing().encode());
        }
        step += 1;
        sim.announce(0, &[prefix], &route(0, &[64500 + step], &[]));
        sim.pass(Duration::from_secs(20));
    }
    found
}

#[test]
fn a_route_of_its_own_buys_no_member_a_choice_and_the_recommendations_order_stays_within_its_budget() {
    for ranks_all in [false, true] {
        assert_eq!(places_found(false, ranks_all), 1, "what was chosen when the others announced");
    }
    let most = 1 + 16 + Budget::default().choices / 4;
    let found = places_found(true, false);
    assert!((10..=most).contains(&found), "{found} places, at most {most}");
}

/// How many places of that order the same member finds while it is being sent something for as long as it likes: it takes up two slices
/// and grants no credit for more. `lies`: it says that a part of what it holds is missing, so that it is sent that; otherwise it asks for
/// everything.
fn places_found_while_sent(lies: bool) -> u32 {
    /// Routes of 8 KiB, of which 64 are a slice.
    const LARGE: u32 = 400;
    let members = ANNOUNCERS as usize + 1;
    let mut sim = Sim::new(Setup { members, tick: TICK, ..Setup::default() });
    let prefix = nlri("192.0.2.0/24");
    let best = recommend_against_own_order(&mut sim, prefix);
    let filling: Vec<String> = (0..550).map(|n| format!("64999:{n}:1")).collect();
    let filling: Vec<&str> = filling.iter().map(String::as_str).collect();
    for i in 0..LARGE {
        sim.announce(1, &[nlri(&format!("30.{}.{}.0/24", i / 250, i % 250))], &route(1, &[64500], &filling));
    }
    for slot in 1..=ANNOUNCERS {
        sim.announce(slot, &[prefix], &route(slot, &[64500], &[]));
    }
    assert!(sim.settle(LIMIT));
    let is_held = Rc::new(Cell::new(true));
    let (holds, mut requested) = (Rc::clone(&is_held), BTreeSet::new());
    sim.tamper = Some(Box::new(move |from, to, bytes| {
        if from != Node::Member(0) {
            return FrameAction::Pass;
        }
        let other = |digest: &mut Digest| digest[0] ^= 1;
        match FromMember::decode(bytes) {
            Ok(FromMember::Credit { .. }) if holds.get() => FrameAction::Drop,
            // Its own reloads ask, too.
            Ok(FromMember::Holds { .. }) if !requested.insert(to) => FrameAction::Drop,
            Ok(FromMember::Holds { seq, epoch, mut roots, own, .. }) if lies => {
                other(&mut roots.objects);
                let through = Through { objects: 0, results: 0 };
                FrameAction::Change(FromMember::Holds { seq, through, epoch, roots, own }.encode())
            }
            Ok(FromMember::Buckets { seq, epoch, mut objects, mut instances, own, .. }) if lies => {
                let part = objects.len() * 2 / 5;
                objects.iter_mut().take(part).for_each(|(_, digest)| other(digest));
                instances.iter_mut().for_each(|(_, digest)| other(digest));
                let through = Through { objects: 0, results: 0 };
                FrameAction::Change(FromMember::Buckets { seq, through, epoch, objects, instances, own }.encode())
            }
            Ok(FromMember::ObjectNames { question, through, mut names }) if lies => {
                names.truncate(names.len() * 3 / 5);
                FrameAction::Change(FromMember::ObjectNames { question, through, names }.encode())
            }
            Ok(FromMember::InstanceNames { question, through, .. }) if lies => {
                let (names, open) = (Vec::new(), Vec::new());
                FrameAction::Change(FromMember::InstanceNames { question, through, names, open }.encode())
            }
            _ => FrameAction::Pass,
        }
    }));
    if lies {
        sim.cut_member(0);
    } else {
        sim.inject(Node::Member(0), PARTIES[0], &FromMember::holds_nothing().encode());
    }
    sim.pass(Duration::from_secs(1));
    let find = |sim: &mut Sim, found: &mut u32, step: u32| {
        let winner = sim.tables[&0].get(&prefix.prefix).and_then(|route| route.as_path().first_asn());
        if winner == Some(asn(best[*found as usize])) {
            *found += 1;
            let rejected: Vec<String> =
                best[..*found as usize].iter().map(|slot| format!("\"{}\"", asn(*slot).0)).collect();
            let rejected = rejected.join(", ");
            sim.set_policy(
                0,
                policy(&format!("[[rule]]\ndirection = \"import\"\npeer = [{rejected}]\nreject = true\n")),
            );
        }
        sim.announce(0, &[prefix], &route(0, &[64500 + step], &[]));
        sim.pass(Duration::from_millis(300));
    };
    let mut found = 0;
    (0..60).for_each(|step| find(&mut sim, &mut found, step));
    // It was being sent something all the time.
    let sent = sim.party(PARTIES[0]).expect("it runs").counters().delivered;
    sim.pass(Duration::from_secs(2));
    assert_eq!(sim.party(PARTIES[0]).expect("it runs").counters().delivered, sent);
    is_held.set(false);
    (60..120).for_each(|step| find(&mut sim, &mut found, step));
    assert!(sim.party(PARTIES[0]).expect("it runs").counters().delivered > sent + 50, "the rest came");
    assert!(sim.closed.iter().all(|(_, _, why)| !why.contains("reads nothing of what")), "{:?}", sim.closed);
    found
}

#[test]
fn whoever_lets_what_it_is_sent_wait_has_one_choice_and_not_one_with_each_change_of_its_own_routes() {
    let [everything, part] = [false, true].map(places_found_while_sent);
    assert!(everything <= 2 && part <= 2, "{everything} and {part} places");
}

/// Frames that party 2 has sent to party 1 since the recording began.
fn said_by_two(sim: &Sim) -> impl Iterator<Item = PartyFrame> + '_ {
    let recorded = sim.recording.iter().flatten();
    let of_two = recorded.filter(|frame| (frame.from, frame.to) == (PARTIES[1], PARTIES[0]));
    of_two.filter_map(|frame| PartyFrame::decode(&frame.bytes).ok())
}

in_both_modes!(a_flood_of_rankings_of_rounds_that_are_past_costs_the_parties_link_one_frame_each);
fn a_flood_of_rankings_of_rounds_that_are_past_costs_the_parties_link_one_frame_each(export: ExportMode) {
    let mut sim = exchange(export, Costs::default());
    played(&mut sim);
    // It has missed some by now, and nobody waits for it.
    watch(&mut sim, |_, _| {});
    assert_eq!(status(&sim).on_probation, [BAD]);
    sim.recording = Some(Vec::new());
    let (first, mut sent) = (status(&sim).batch.saturating_sub(300), 0);
    let attacked = watch(&mut sim, |sim, _| {
        // Of all rounds that have ended, and of batches that never were.
        let last = status(sim).batch.saturating_sub(20);
        for seq in (first..last).rev().step_by(7).take(60) {
            let rank = FromMember::RankTwo { seq, row: [1; 16], share: vec![1; 4] };
            sent += u32::from(sim.inject(Node::Member(BAD), PARTIES[1], &rank.encode()));
        }
    });
    assert!(sent > 10_000, "{sent}");
    let mut said: BTreeMap<u64, usize> = BTreeMap::new();
    for frame in said_by_two(&sim) {
        if let PartyFrame::Ranked { seq, slot: BAD, .. } = frame {
            *said.entry(seq).or_default() += 1;
        }
    }
    assert!(!said.is_empty() && said.values().all(|times| *times == 1), "{said:?}");
    let most = 256 + CHANGES as usize;
    assert!(said.len() <= most, "{} batches: the last ones, and a round for each change", said.len());
    assert_unharmed("late rankings", &sim, &attacked);
}

in_both_modes!(frames_that_bring_no_object_have_a_budget_too);
fn frames_that_bring_no_object_have_a_budget_too(export: ExportMode) {
    let mut sim = exchange(export, Costs::default());
    played(&mut sim);
    // Party 2 does nothing about them.
    let late = FromMember::RankTwo { seq: 1, row: [1; 16], share: vec![1; 4] };
    let flood = |sim: &mut Sim, each_ms: usize| {
        for _ in 0..2_000 {
            for _ in 0..each_ms {
                sim.inject(Node::Member(BAD), PARTIES[1], &late.encode());
            }
            sim.run_for(Duration::from_millis(1));
        }
        sim.has_link(Node::Member(BAD), PARTIES[1])
    };
    assert!(flood(&mut sim, 10), "ten thousand a second are within the budget");
    assert!(!flood(&mut sim, 100), "a hundred thousand are not");
    let of_two = sim.party(PARTIES[1]).expect("it runs").status();
    assert_eq!(of_two.over_budget, [BAD]);
}

/// Whether party 1 has sent a proposal with an object of the slot since the recording began.
fn proposes(sim: &Sim, slot: u32) -> bool {
    sim.recording.iter().flatten().filter(|frame| frame.to == PARTIES[1]).any(|frame| {
        let is_of_slot = |step: &Step| matches!(step, Step::Object { slot: of, .. } if *of == slot);
        matches!(PartyFrame::decode(&frame.bytes), Ok(PartyFrame::Propose { steps, .. }) if steps.iter().any(is_of_slot))
    })
}

in_both_modes!(a_link_that_goes_once_its_objects_are_proposed_costs_nobody_a_batch);
fn a_link_that_goes_once_its_objects_are_proposed_costs_nobody_a_batch(export: ExportMode) {
    let between_parties = Wire { delay: Duration::from_millis(10), ..Wire::LAN };
    let mut sim = exchange(export, Costs { between_parties, ..Costs::default() });
    let (mut forger, _) = played(&mut sim);
    for round in 0..10u8 {
        sim.recording = Some(Vec::new());
        let prefix = nlri(&format!("40.{round}.0.0/16"));
        let draft = forger.draft(&sim, &[prefix], &route(BAD, &[64500], &[]));
        let object = forger.seal(&draft);
        forger.submit(&mut sim, &object);
        while !proposes(&sim, BAD) {
            assert!(sim.step(LIMIT), "it is proposed");
        }
        // Party 2 sees the end of the link before it has the proposal.
        sim.cut_between(Node::Member(BAD), PARTIES[1]);
        sim.run_for(Duration::from_secs(1));
        assert_eq!(said_by_two(&sim).filter(|frame| matches!(frame, PartyFrame::Reject { .. })).count(), 0, "{round}");
        assert!(sim.tables[&1].contains_key(&prefix.prefix), "{round}: both had it");
        assert!(come_back(&mut sim, &mut forger));
        sim.run_for(Duration::from_secs(1));
    }
    assert!(PARTIES.iter().all(|party| sim.party(*party).expect("it runs").status().octets_waiting == 0));
}

in_both_modes!(a_batch_that_comes_to_nothing_gives_back_what_was_paid_and_no_choice);
fn a_batch_that_comes_to_nothing_gives_back_what_was_paid_and_no_choice(export: ExportMode) {
    const PLAYED: u32 = HONEST - 1;
    // A batch takes longer than a tick, so that what comes meanwhile is all in the next one.
    let between_parties = Wire { delay: Duration::from_millis(40), ..Wire::LAN };
    let budget = Budget { syncs: 1_000_000, ..Budget::default() };
    let mut sim = exchange_with(Setup {
        costs: Some(Costs { between_parties, ..Costs::default() }),
        export,
        budget,
        ..Setup::default()
    });
    sim.play_member(PLAYED);
    sim.run_for(Duration::from_millis(10));
    let mut forger = Forger::new(1, PLAYED);
    forger.greet(&mut sim, false);
    sim.run_for(Duration::from_secs(3));
    // Party 2 does not have the object of a batch that begins to serve the member.
    let rejected = Rc::new(Cell::new(0u32));
    let counted = Rc::clone(&rejected);
    sim.tamper = Some(Box::new(move |_, to, bytes| match PartyFrame::decode(bytes) {
        Ok(PartyFrame::Propose { seq, mut steps }) if to == PARTIES[1] => {
            let serves = steps.iter().any(|step| matches!(step, Step::Sync { slot: BAD, .. }));
            let digests = steps.iter_mut().filter_map(|step| match step {
                Step::Object { slot: PLAYED, digest, .. } => Some(digest),
                _ => None,
            });
            let changed = digests.map(|digest| digest[0] ^= 1).count();
            if !serves || changed == 0 {
                return FrameAction::Pass;
            }
            counted.set(counted.get() + 1);
            FrameAction::Change(PartyFrame::Propose { seq, steps }.encode())
        }
        _ => FrameAction::Pass,
    }));
    let lanes = |sim: &Sim| sim.party(PARTIES[0]).expect("it runs").counters().lanes;
    let before = lanes(&sim);
    for _ in 0..40 {
        for _ in 0..4 {
            let object = forger.withdraw(&sim, &[nlri("50.0.0.0/16")]);
            forger.submit(&mut sim, &object);
            sim.inject(Node::Member(BAD), PARTIES[0], &FromMember::holds_nothing().encode());
            sim.run_for(Duration::from_millis(60));
        }
        sim.run_for(Duration::from_secs(5));
    }
    assert!(rejected.get() >= 20, "{} batches came to nothing", rejected.get());
    // Each time all ten contested prefixes: sixteen times at once, and then 32 times an hour.
    let times = (lanes(&sim) - before) / u64::from(HONEST / 2);
    assert!((14..=19).contains(&times), "{times} times, {} batches came to nothing", rejected.get());
    assert!(named(&sim, |event| matches!(event, PartyEvent::OwnOrder { slot: BAD, .. })) > 10);
}

/// Each object brings many paths of a prefix to which there was no route: alone each of them would not have to be ranked.
#[test]
fn paths_that_come_together_to_a_new_prefix_are_counted_together() {
    let setup = Setup { costs: Some(Costs::default()), sinks: [BAD].into(), max_prefix: 900_000, ..Setup::default() };
    let mut sim = exchange_with(setup);
    sim.fill_pools();
    let quiet = watch_changes(&mut sim, 40, |_, _| {}).p99();
    let (mut last, mut again) = (sim.now().instant, 0u32);
    let attacked = watch_changes(&mut sim, 40, |sim, _| {
        while sim.now().instant - last >= TICK {
            last = last + TICK;
            for _ in 0..8 {
                let prefixes =
                    (0..32).map(|i| 32 * again + i).map(|i| nlri(&format!("22.{}.{}.0/24", i / 256, i % 256)));
                let paths = |prefix| (0..4).map(move |path_id| Nlri { path_id, ..prefix });
                sim.announce(BAD, &prefixes.flat_map(paths).collect::<Vec<_>>(), &route(BAD, &[64500], &[]));
                again += 1;
            }
        }
    });
    let during = attacked.p99();
    eprintln!("{again} objects: p99 {during:?}, quiet {quiet:?}, {} rounds at most", attacked.rounds);
    assert!(again > 300, "{again} objects");
    assert!(during < 2 * quiet, "{during:?}, {quiet:?} when quiet");
    assert!(attacked.rounds <= MOST_ROUNDS / 4, "{} rounds", attacked.rounds);
}

#[test]
fn who_announces_again_what_must_be_ranked_waits_for_its_own_rounds_and_others_do_not() {
    // Honest announcers of each prefix, path identifiers of the hostile one, prefixes, of which all are announced again with each tick:
    // 8 routes a prefix, and 24 that compete.
    for (honest, paths, prefixes) in [(7, 1, 256u32), (20, 12, 48)] {
        let setup = Setup { costs: Some(Costs::default()), sinks: [BAD].into(), ..Setup::default() };
        let mut sim = exchange_with(setup);
        let of =
            |path_id| (0..prefixes).map(move |i| Nlri { path_id, ..nlri(&format!("22.{}.{}.0/24", i / 256, i % 256)) });
        for slot in 0..honest {
            sim.announce(slot, &of(0).collect::<Vec<_>>(), &route(slot, &[64500, 64501], &[]));
        }
        for path_id in 0..paths {
            for part in of(path_id).collect::<Vec<_>>().chunks(MAX_PREFIXES) {
                sim.announce(BAD, part, &route(BAD, &[64500, 64501], &[]));
            }
        }
        assert!(sim.settle(LIMIT));
        sim.fill_pools();
        sim.forget_events();
        let quiet = watch_changes(&mut sim, 100, |_, _| {}).p99();
        let counters = |sim: &Sim| sim.party(PARTIES[0]).expect("it runs").counters().clone();
        let before = counters(&sim);
        let (mut last, mut again) = (sim.now().instant, 0);
        let attacked = watch_changes(&mut sim, 100, |sim, _| {
            while sim.now().instant - last >= TICK {
                (last, again) = (last + TICK, again + 1);
                for part in of(0).collect::<Vec<_>>().chunks(MAX_PREFIXES) {
                    sim.announce(BAD, part, &route(BAD, &[64500, 64501 + again % 2], &[]));
                }
            }
        });
        assert!(again > 100, "{again} times");
        let refused = |event: &PartyEvent| matches!(event, PartyEvent::Refused { reason: Refusal::Budget, .. });
        assert_eq!(named(&sim, refused), 0, "it is within its budget");
        let (routes, during) = (honest + paths, attacked.p99());
        let batches = counters(&sim).batches - before.batches;
        eprintln!("{routes} routes to rank: p99 {during:?}, quiet {quiet:?}, {} rounds at most", attacked.rounds);
        assert!(during < 2 * quiet, "{routes} routes: {during:?}, {quiet:?} when quiet");
        assert!(attacked.rounds <= MOST_ROUNDS / 4, "{} rounds", attacked.rounds);
        assert!(batches > 100, "{batches} batches");
    }
}

/// Each object takes a path of many prefixes away, so that what is left of each has to be ranked again.
#[test]
fn who_withdraws_what_must_be_ranked_waits_for_its_own_rounds_and_others_do_not() {
    const PREFIXES: u32 = 128;
    const PATHS: u32 = 40;
    let setup = Setup { costs: Some(Costs::default()), sinks: [BAD].into(), max_prefix: 900_000, ..Setup::default() };
    let mut sim = exchange_with(setup);
    let of = |path_id| (0..PREFIXES).map(move |i| Nlri { path_id, ..nlri(&format!("22.0.{i}.0/24")) });
    for slot in 0..12 {
        sim.announce(slot, &of(0).collect::<Vec<_>>(), &route(slot, &[64500, 64501], &[]));
    }
    for path_id in 0..PATHS {
        sim.announce(BAD, &of(path_id).collect::<Vec<_>>(), &route(BAD, &[64500, 64501], &[]));
    }
    assert!(sim.settle(LIMIT));
    sim.fill_pools();
    sim.forget_events();
    let quiet = watch_changes(&mut sim, 40, |_, _| {}).p99();
    let (mut last, mut gone) = (sim.now().instant, 0);
    let attacked = watch_changes(&mut sim, 40, |sim, _| {
        while sim.now().instant - last >= TICK && gone < PATHS {
            last = last + TICK;
            sim.withdraw(BAD, &of(gone).collect::<Vec<_>>());
            gone += 1;
        }
    });
    let during = attacked.p99();
    eprintln!("{gone} paths went: p99 {during:?}, quiet {quiet:?}, {} rounds at most", attacked.rounds);
    let left = status(&sim).budgets.iter().find(|of| of.slot == BAD).map_or(0, |of| of.prefixes);
    let withdrawn = (PATHS * PREFIXES) as usize - left;
    assert!(gone == PATHS && withdrawn >= 8 * PREFIXES as usize, "{withdrawn} routes are gone");
    assert!(during < 2 * quiet, "{during:?}, {quiet:?} when quiet");
    assert!(attacked.rounds <= MOST_ROUNDS / 4, "{} rounds", attacked.rounds);
}

/// Routes of a member that stays away go in parts, and the rounds that follow from them keep nobody waiting.
#[test]
#[ignore = "takes half a minute"]
fn routes_that_expire_and_must_be_ranked_again_keep_nobody_waiting() {
    const OBJECTS: u32 = 20;
    let setup = Setup { costs: Some(Costs::default()), max_prefix: 900_000, ..Setup::default() };
    let stale = Duration::from_secs(30);
    let mut sim = exchange_with(Setup { sinks: [BAD].into(), stale, ..setup });
    let of = |object: u32| (0..128).map(move |i| nlri(&format!("22.{object}.{i}.0/24"))).collect::<Vec<_>>();
    for object in 0..OBJECTS {
        for slot in (0..16).chain([BAD]) {
            sim.announce(slot, &of(object), &route(slot, &[64500, 64501], &[]));
        }
    }
    assert!(sim.settle(LIMIT));
    sim.fill_pools();
    sim.forget_events();
    let quiet = watch_changes(&mut sim, 40, |_, _| {}).p99();
    sim.kill(Node::Member(BAD));
    sim.pass(stale - Duration::from_millis(500));
    let attacked = watch_changes(&mut sim, 40, |_, _| {});
    let during = attacked.p99();
    eprintln!("p99 {during:?}, quiet {quiet:?}, {} rounds at most", attacked.rounds);
    assert!(sim.party_events.iter().any(|(_, event)| *event == PartyEvent::Expired { slot: BAD }));
    assert!(during < 2 * quiet, "{during:?}, {quiet:?} when quiet");
    assert!(attacked.rounds <= 4, "{} rounds", attacked.rounds);
}
