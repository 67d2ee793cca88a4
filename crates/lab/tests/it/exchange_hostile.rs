//! One hostile member among twenty honest ones, where work and links cost time: it costs them less than their latency was before,
//! parties' memory is bounded, and who it is shows in their status. Half of the changes that are measured are of a route that
//! Select-Best has to choose, and they come at random moments of the tick.

use std::sync::OnceLock;
use std::time::Duration;

use wayleave_bgp::Nlri;
use wayleave_lab::sim::bad::Forger;
use wayleave_lab::sim::costs::{Costs, Wire};
use wayleave_lab::sim::{FrameAction, Node, PARTIES, Setup, Sim};
use wayleave_route_server::credit;
use wayleave_route_server::frames::{FromMember, Refusal, SessionId, ToMember};
use wayleave_route_server::member::MemberEvent;
use wayleave_route_server::party::{Budget, PartyEvent, PartyStatus};

use crate::common::{LIMIT, asn, nlri, policy, route};

const HONEST: u32 = 20;
const BAD: u32 = HONEST;
const TICK: Duration = Duration::from_millis(50);
/// Changes whose latency is measured, and how far apart they are at most.
const CHANGES: u32 = 400;
const MOST_PAUSE: usize = 120;

/// An exchange at rest, in which every honest member has a route, and pairs of them have one to the same prefix.
fn exchange(costs: Costs) -> Sim {
    let setup = Setup { members: HONEST as usize + 1, tick: TICK, costs: Some(costs), ..Setup::default() };
    let mut sim = Sim::new(setup);
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

/// Latencies of changes of honest members at other honest members, ascending; `act` is what the hostile one does before each.
fn latencies(sim: &mut Sim, mut act: impl FnMut(&mut Sim, u32)) -> Vec<Duration> {
    let mut latencies = Vec::new();
    for change in 0..CHANGES {
        act(sim, change);
        // Each even slot has the shorter path to its contested prefix, always.
        let (from, prefix) = match change % (2 * HONEST) {
            from @ 0..HONEST => (from, nlri(&format!("20.{from}.0.0/16"))),
            beyond => ((beyond - HONEST) & !1, contested(beyond - HONEST)),
        };
        let to = (from + 7) % HONEST;
        let (begin, wanted) = (sim.now().instant, route(from, &[64600 + change], &[]));
        sim.announce(from, &[prefix], &wanted);
        while sim.tables[&to].get(&prefix.prefix) != Some(&wanted) {
            assert!(
                sim.step(LIMIT),
                "the route arrives: {:?}; {:?}",
                sim.closed,
                sim.party_events.iter().rev().take(9).collect::<Vec<_>>()
            );
        }
        latencies.push(sim.now().instant - begin);
        let pause = Duration::from_millis(sim.choose(MOST_PAUSE) as u64);
        sim.pass(pause);
    }
    latencies.sort_unstable();
    latencies
}

/// The same when nobody attacks: measured once.
fn quiet() -> Duration {
    static QUIET: OnceLock<Duration> = OnceLock::new();
    *QUIET.get_or_init(|| p99(&latencies(&mut exchange(Costs::default()), |_, _| {})))
}

/// The 99th percentile.
fn p99(sorted: &[Duration]) -> Duration {
    sorted[sorted.len() * 99 / 100]
}

fn status(sim: &Sim) -> PartyStatus {
    sim.party(PARTIES[0]).expect("it runs").status()
}

/// Whether what honest members see is bounded by what they see when nobody attacks, and no link holds more than its credit.
fn assert_unharmed(name: &str, sim: &mut Sim, attacked: &[Duration]) {
    let (before, during) = (quiet(), p99(attacked));
    eprintln!("{name}: p99 {during:?}, quiet {before:?}; median {:?}", attacked[attacked.len() / 2]);
    assert!(during < 2 * before, "{name}: {during:?}, {before:?} when quiet");
    for party in PARTIES {
        for slot in 0..=BAD {
            let most = sim.most_outstanding(party, Node::Member(slot));
            assert!(most as u64 <= credit::TO_MEMBER / 2, "{name}: {most} octets for slot {slot}");
        }
        let most = sim.most_outstanding(party, if party == PARTIES[0] { PARTIES[1] } else { PARTIES[0] });
        assert!(most as u64 <= credit::BETWEEN_PARTIES, "{name}: {most} octets between the parties");
    }
    let of_honest = |(by, of, _): &&(Node, Node, String)| ![*by, *of].contains(&Node::Member(BAD));
    assert_eq!(sim.closed.iter().find(of_honest), None, "{name}: honest members keep their links");
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
    let hello = forger.hello([9; 16], true);
    let is_up = PARTIES.iter().all(|party| sim.has_link(Node::Member(BAD), *party));
    if !is_up {
        sim.play_member(BAD);
        sim.run_for(Duration::from_millis(1));
        for party in PARTIES {
            sim.inject(Node::Member(BAD), party, &hello);
        }
    }
    !is_up
}

fn named(sim: &Sim, what: impl Fn(&PartyEvent) -> bool) -> usize {
    sim.party_events.iter().filter(|(_, event)| what(event)).count()
}

#[test]
fn a_mute_member_is_named_and_delays_two_rounds() {
    let mut sim = exchange(Costs::default());
    played(&mut sim);
    let attacked = latencies(&mut sim, |_, _| {});
    assert_eq!(status(&sim).on_probation, [BAD]);
    assert_unharmed("mute", &mut sim, &attacked);
}

#[test]
fn a_member_that_ranks_in_time_only_now_and_then_is_waited_for_no_more() {
    let mut sim = exchange(Costs::default());
    // Each second ranking, which would never be two missed ones in a row.
    sim.tamper = Some(Box::new(|from, _, bytes| {
        let seq = match FromMember::decode(bytes) {
            Ok(FromMember::RankOne { seq, .. } | FromMember::RankTwo { seq, .. }) if from == Node::Member(BAD) => seq,
            _ => return FrameAction::Pass,
        };
        if seq.is_multiple_of(2) { FrameAction::Drop } else { FrameAction::Pass }
    }));
    let attacked = latencies(&mut sim, |_, _| {});
    assert!(named(&sim, |event| *event == PartyEvent::Probation { slot: BAD, begins: true }) > 0);
    assert_unharmed("now and then", &mut sim, &attacked);
}

#[test]
fn a_slow_reader_is_paused_and_named_and_nobody_waits_for_it() {
    let slow = Wire { bytes_per_second: 3_000, ..Wire::LAN };
    let wires = PARTIES.map(|party| ((party, Node::Member(BAD)), slow)).into();
    let mut sim = exchange(Costs { wires, ..Costs::default() });
    let attacked = latencies(&mut sim, |_, _| {});
    assert_unharmed("slow reader", &mut sim, &attacked);
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
}

#[test]
fn padded_blobs_are_taken_within_the_budget_and_delay_nobody() {
    let mut sim = exchange(Costs::default());
    let (mut forger, _) = played(&mut sim);
    let large: Vec<String> = (0..550).map(|n| format!("64999:{n}:1")).collect();
    let large: Vec<&str> = large.iter().map(String::as_str).collect();
    let attributes = route(BAD, &[64500], &large);
    let attacked = latencies(&mut sim, |sim, change| {
        come_back(sim, &mut forger);
        for i in 0..8 {
            let prefix = nlri(&format!("{}.{}.{i}.0/24", 40 + change / 256, change % 256));
            let draft = forger.draft(sim, &[prefix], &attributes);
            let object = forger.seal(&draft);
            forger.submit(sim, &object);
        }
    });
    let stored = sim.party(PARTIES[0]).expect("it runs").routes(usize::MAX, false);
    assert!(stored.iter().filter(|route| route.slot == BAD).count() > 500, "they are within its limits");
    assert_unharmed("padded blobs", &mut sim, &attacked);
}

#[test]
fn who_asks_for_everything_without_end_gets_it_at_intervals_and_is_named() {
    let mut sim = exchange(Costs::default());
    played(&mut sim);
    let attacked = latencies(&mut sim, |sim, _| {
        for _ in 0..20 {
            for party in PARTIES {
                sim.inject(Node::Member(BAD), party, &FromMember::Resync.encode());
            }
        }
    });
    assert_eq!(status(&sim).over_budget, [BAD]);
    assert!(named(&sim, |event| matches!(event, PartyEvent::Deferred { slot: BAD, .. })) > 0);
    assert_unharmed("resynchronisations", &mut sim, &attacked);
}

#[test]
fn a_flapping_member_gets_everything_at_intervals_and_is_named() {
    let mut sim = exchange(Costs::default());
    let attacked = latencies(&mut sim, |sim, change| {
        if change.is_multiple_of(2) {
            sim.kill(Node::Member(BAD));
            sim.start(Node::Member(BAD));
        }
    });
    assert_eq!(status(&sim).over_budget, [BAD]);
    assert_unharmed("flapping", &mut sim, &attacked);
    assert!(sim.settle(LIMIT), "it is served once it stays");
    assert_eq!(sim.tables[&BAD].len(), sim.tables[&1].len() + 1);
}

#[test]
fn wrong_ranking_frames_cost_their_sender_its_link() {
    let mut sim = exchange(Costs::default());
    let (mut forger, _) = played(&mut sim);
    let mut links = 0;
    let attacked = latencies(&mut sim, |sim, change| {
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
    let of_two = sim.party(PARTIES[1]).expect("it runs").status();
    assert_eq!(of_two.misbehaving, [BAD], "which has the lengths of rankings");
    assert_unharmed("wrong rankings", &mut sim, &attacked);
}

#[test]
fn rankings_of_batches_that_party_2_does_not_have_yet_disturb_nobody() {
    // Party 1 has the round for a while before party 2 does.
    let between_parties = Wire { delay: Duration::from_millis(10), ..Wire::LAN };
    let mut sim = exchange(Costs { between_parties, ..Costs::default() });
    let (mut forger, _) = played(&mut sim);
    let mut last = 0;
    latencies(&mut sim, |sim, _| {
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
    let of_others = |(by, of, _): &&(Node, Node, String)| ![*by, *of].contains(&Node::Member(BAD));
    assert_eq!(sim.closed.iter().find(of_others), None);
}

#[test]
fn a_hundred_thousand_updates_a_second_are_refused_before_they_cost_much() {
    let mut sim = exchange(Costs::default());
    let (mut forger, _) = played(&mut sim);
    let prefix = nlri("50.0.0.0/16");
    // Valid withdrawals, which are the shortest objects, made once: a version that is past is refused last.
    let objects: Vec<[Vec<u8>; 2]> = (0..20_000)
        .map(|_| {
            let object = forger.withdraw(&sim, &[prefix]);
            [object.to_one(), object.to_two()]
        })
        .collect();
    let (mut sent, started) = (0usize, sim.now().instant);
    let attacked = latencies(&mut sim, |sim, _| {
        come_back(sim, &mut forger);
        for _ in 0..10_000 {
            let object = &objects[sent % objects.len()];
            let mut is_up = true;
            for (party, frame) in PARTIES.into_iter().zip(object) {
                is_up &= sim.inject(Node::Member(BAD), party, frame);
            }
            if !is_up {
                break;
            }
            sent += 1;
        }
    });
    assert!(sent > 100_000, "{sent} sent");
    let over = |event: &PartyEvent| matches!(event, PartyEvent::Refused { slot: BAD, reason: Refusal::Budget, .. });
    assert!(named(&sim, over) > 1_000, "refused before their signatures are checked: {}", named(&sim, over));
    let checked = sim.party(PARTIES[0]).expect("it runs").counters().objects;
    let most = 2_000 * (sim.now().instant - started).as_secs() + 2 * 2_000;
    assert!(checked < most, "{checked} were checked, at most {most} are within the budget");
    assert_eq!(status(&sim).over_budget, [BAD]);
    assert_unharmed("updates", &mut sim, &attacked);
}

#[test]
fn who_asks_often_has_select_best_choose_for_it_no_more_than_its_budget_says() {
    let mut sim = exchange(Costs::default());
    let lanes = |sim: &Sim| sim.party(PARTIES[0]).expect("it runs").counters().lanes;
    let table = sim.tables[&BAD].clone();
    let (begin, before) = (sim.now().instant, lanes(&sim));
    for _ in 0..200 {
        for party in PARTIES {
            sim.inject(Node::Member(BAD), party, &FromMember::Resync.encode());
        }
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

#[test]
fn what_the_parties_cost_each_other_is_no_members_budget() {
    let mut sim = exchange(Costs::default());
    for _ in 0..40 {
        sim.cut_parties();
        assert!(sim.settle(LIMIT));
    }
    let over = |event: &PartyEvent| matches!(event, PartyEvent::Deferred { .. } | PartyEvent::OwnOrder { .. });
    assert_eq!(named(&sim, over), 0);
    assert!(status(&sim).over_budget.is_empty());
}

#[test]
fn a_member_that_waits_for_its_turn_keeps_its_routes() {
    let budget = Budget { syncs: 1, ..Budget::default() };
    let stale = Duration::from_secs(120);
    let mut sim = Sim::new(Setup { members: 3, tick: TICK, budget, stale, ..Setup::default() });
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

#[test]
fn what_waits_for_its_other_half_is_bounded_in_octets() {
    let budget = Budget { objects: 1_000_000, octets: 2_000_000_000, ..Budget::default() };
    let mut sim = Sim::new(Setup { members: 3, tick: TICK, budget, max_blob: 1 << 17, ..Setup::default() });
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

/// Announcers of one prefix, which the exchange recommends the more the higher their slots are: opposite to a member's own order.
const ANNOUNCERS: u32 = 40;

/// How many places of the order of the recommendation a member (slot 0) finds within an epoch that rejects each winner in turn, and
/// changes a route of its own each time; `asks`: whether it asks for everything as well; `ranks_all`: whether it ranks also what the
/// parties say that it need not.
fn places_found(asks: bool, ranks_all: bool) -> u32 {
    let members = ANNOUNCERS as usize + 1;
    let mut sim = Sim::new(Setup { members, tick: TICK, ..Setup::default() });
    let prefix = nlri("192.0.2.0/24");
    sim.recommend((1..=ANNOUNCERS).map(|slot| (slot, u8::try_from(slot).expect("few"))).collect());
    assert!(sim.settle(LIMIT));
    for slot in 1..=ANNOUNCERS {
        sim.announce(slot, &[prefix], &route(slot, &[64500], &[]));
    }
    assert!(sim.settle(LIMIT));
    sim.tamper = Some(Box::new(move |from, to, bytes| match (from, to) {
        (Node::Member(0), _) if !asks && matches!(FromMember::decode(bytes), Ok(FromMember::Resync)) => {
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
        if winner == Some(asn(ANNOUNCERS - found)) {
            found += 1;
            let rejected: Vec<String> = (0..found).map(|n| format!("\"{}\"", asn(ANNOUNCERS - n).0)).collect();
            let rejected = rejected.join(", ");
            sim.set_policy(
                0,
                policy(&format!("[[rule]]\ndirection = \"import\"\npeer = [{rejected}]\nreject = true\n")),
            );
        } else if asks {
            for party in PARTIES {
                sim.inject(Node::Member(0), party, &FromMember::Resync.encode());
            }
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
