//! What one member that is slow, silent or gone costs the others.
//!
//! SIX, lists that err: objects that come after they were listed, or went and come again: taken as a plain list would;
//! what was chosen without such an object does not count.
//! SIX, slow members: one that never ranks, or goes in the middle of a round: two rounds wait, no more; it is named and
//! not waited for.
//! SIX, make before break: the installed route goes while Select-Best runs among others: the next best takes its place;
//! no withdrawal.
//! SIX, size: a member announces a table: at most two decisions about each route.
//! SIX, after the ranking: the preferred route comes when Select-Best chooses no more: it is installed.
//! SIX, after the ranking: so does one whose list gives way, before it is looked at, to one in which the own route alone changed.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use wayleave_bgp::Nlri;
use wayleave_lab::sim::costs::Costs;
use wayleave_lab::sim::{FrameAction, Node, PARTIES, Setup, Sim};
use wayleave_route_server::frames::{FromMember, ToMember};
use wayleave_route_server::member::MemberEvent;
use wayleave_route_server::object::ExportMode;
use wayleave_route_server::party::{Budget, PartyEvent};

use crate::common::{LIMIT, asn, in_both_modes, nlri, policy, route};

/// The member that misbehaves, and those that announce and receive.
const BAD: u32 = 3;
const TICK: Duration = Duration::from_millis(50);

/// Four members in rounds of [`TICK`], two of which announce the same prefix.
fn exchange(export: ExportMode) -> Sim {
    let mut sim = Sim::new(Setup { tick: TICK, export, ..Setup::default() });
    assert!(sim.settle(LIMIT));
    for slot in [0, 1] {
        sim.announce(slot, &[nlri("192.0.2.0/24")], &route(slot, &[64500], &[]));
    }
    assert!(sim.settle(LIMIT));
    sim
}

/// Parties that do not get the bad member's rankings.
type Silent = Arc<Mutex<BTreeSet<Node>>>;

/// Holds back the bad member's rankings for the parties in the set.
fn silence(sim: &mut Sim) -> Silent {
    let silent: Silent = Arc::default();
    let parties = Arc::clone(&silent);
    sim.tamper = Some(Box::new(move |from, to, bytes| {
        let is_ranking =
            matches!(FromMember::decode(bytes), Ok(FromMember::RankOne { .. } | FromMember::RankTwo { .. }));
        let is_held = from == Node::Member(BAD) && parties.lock().expect("one thread").contains(&to);
        if is_held && is_ranking { FrameAction::Drop } else { FrameAction::Pass }
    }));
    silent
}

/// Virtual time until a change of one route by member 0 has reached member 2.
fn latency(sim: &mut Sim, change: u32) -> Duration {
    let (begin, prefix) = (sim.now().instant, nlri("192.0.2.0/24"));
    // Shorter than the other route at each second change, so that the choice moves.
    let tail: &[u32] = if change.is_multiple_of(2) { &[64500, 64501, 64502] } else { &[] };
    sim.announce(0, &[prefix], &route(0, tail, &[]));
    let wanted = u32::from(change.is_multiple_of(2));
    while sim.tables[&2].get(&prefix.prefix).and_then(|a| a.as_path().first_asn()) != Some(asn(wanted)) {
        assert!(sim.step(LIMIT), "the route arrives");
    }
    let took = sim.now().instant - begin;
    assert!(sim.settle(LIMIT));
    took
}

in_both_modes!(a_member_that_does_not_rank_delays_two_rounds_and_no_more);
fn a_member_that_does_not_rank_delays_two_rounds_and_no_more(export: ExportMode) {
    let mut sim = exchange(export);
    let quiet = (1..5).map(|change| latency(&mut sim, change)).max().expect("four");
    let silent = silence(&mut sim);
    silent.lock().expect("one thread").extend(PARTIES);
    let slow: Vec<Duration> = (5..13).map(|change| latency(&mut sim, change)).collect();
    let waited = slow.iter().filter(|took| **took > 2 * quiet).count();
    assert!(waited <= 2, "{quiet:?} before, then {slow:?}");
    let on_probation = |sim: &Sim| sim.party(PARTIES[0]).expect("it runs").status().on_probation;
    assert_eq!(on_probation(&sim), [BAD]);
    assert!(sim.party_events.iter().any(|(_, e)| *e == PartyEvent::Probation { slot: BAD, begins: true }));
    // It is served: its own order decides at once, which here is what Select-Best would choose.
    assert_eq!(sim.tables[&BAD], sim.tables[&2]);
    assert!(sim.closed.is_empty(), "no link was closed: {:?}", sim.closed);

    // Rankings for one party alone are no rankings.
    silent.lock().expect("one thread").remove(&PARTIES[0]);
    for change in 13..25 {
        latency(&mut sim, change);
        sim.pass(Duration::from_secs(5));
    }
    assert_eq!(on_probation(&sim), [BAD]);
    // In time again for a while.
    silent.lock().expect("one thread").clear();
    for change in 25..37 {
        assert!(latency(&mut sim, change) <= 2 * quiet);
        sim.pass(Duration::from_secs(5));
    }
    assert!(on_probation(&sim).is_empty());
    assert_eq!(sim.tables[&BAD], sim.tables[&2]);
}

in_both_modes!(a_member_that_goes_in_the_middle_of_a_round_is_not_waited_for);
fn a_member_that_goes_in_the_middle_of_a_round_is_not_waited_for(export: ExportMode) {
    let mut sim = exchange(export);
    let quiet = (1..5).map(|change| latency(&mut sim, change)).max().expect("four");
    let silent = silence(&mut sim);
    silent.lock().expect("one thread").extend(PARTIES);
    // It gets its tick, ranks into the void, and is gone before anybody could know.
    let prefix = nlri("192.0.2.0/24");
    let (begin, ticks) = (sim.now().instant, sim.party(PARTIES[0]).expect("it runs").counters().batches);
    sim.announce(0, &[prefix], &route(0, &[], &[]));
    while sim.party(PARTIES[0]).expect("it runs").counters().batches == ticks {
        assert!(sim.step(LIMIT));
    }
    sim.kill(Node::Member(BAD));
    while sim.tables[&2].get(&prefix.prefix).and_then(|a| a.as_path().first_asn()) != Some(asn(0)) {
        assert!(sim.step(LIMIT), "the route arrives");
    }
    let took = sim.now().instant - begin;
    assert!(took <= 2 * quiet, "{took:?}, and {quiet:?} before");
}

in_both_modes!(while_select_best_runs_the_next_best_route_takes_the_place_of_one_that_went);
fn while_select_best_runs_the_next_best_route_takes_the_place_of_one_that_went(export: ExportMode) {
    let mut sim = exchange(export);
    sim.announce(2, &[nlri("192.0.2.0/24")], &route(2, &[64500, 64501], &[]));
    assert!(sim.settle(LIMIT));
    let prefix = nlri("192.0.2.0/24");
    let before = sim.router_changes.len();
    sim.withdraw(0, &[prefix]);
    assert!(sim.settle(LIMIT));
    let changes: Vec<(u32, bool)> =
        sim.router_changes[before..].iter().map(|(slot, _, is_there)| (*slot, *is_there)).collect();
    assert!(changes.iter().filter(|(slot, _)| *slot >= 2).all(|(_, is_there)| *is_there), "{changes:?}");
    assert!(changes.iter().any(|(slot, _)| *slot == BAD));
    // The last one that goes leaves nothing.
    for slot in [1, 2] {
        sim.withdraw(slot, &[prefix]);
    }
    assert!(sim.settle(LIMIT));
    assert!(!sim.tables[&BAD].contains_key(&prefix.prefix));
}

in_both_modes!(a_table_is_announced_with_few_decisions_about_each_route);
fn a_table_is_announced_with_few_decisions_about_each_route(export: ExportMode) {
    let mut sim = Sim::new(Setup { members: 3, tick: TICK, export, ..Setup::default() });
    assert!(sim.settle(LIMIT));
    let routes = 2_000u32;
    for number in 0..routes {
        let prefix = nlri(&format!("20.{}.{}.0/24", number / 256, number % 256));
        sim.announce(0, &[prefix], &route(0, &[64500], &[]));
    }
    assert!(sim.settle(LIMIT));
    assert_eq!(sim.tables[&1].len(), routes as usize);
    let decisions = sim.member(0).expect("it runs").status().counters.export_decisions;
    assert!(decisions <= 2 * u64::from(routes), "{decisions} decisions for {routes} routes");
}

in_both_modes!(a_prefix_that_had_no_route_waits_for_the_result_and_routers_see_one_change);
fn a_prefix_that_had_no_route_waits_for_the_result_and_routers_see_one_change(export: ExportMode) {
    let mut sim = exchange(export);
    // The member's own order would take the lower slot.
    sim.recommend([(0, 1), (1, 9)].into());
    assert!(sim.settle(LIMIT));
    // Whatever comes just after a batch goes into the next one together.
    sim.announce(2, &[nlri("198.51.100.0/24")], &route(2, &[64500], &[]));
    while !sim.tables[&BAD].contains_key(&nlri("198.51.100.0/24").prefix) {
        assert!(sim.step(LIMIT));
    }
    let (begin, before, new) = (sim.now().instant, sim.router_changes.len(), nlri("203.0.113.0/24"));
    for slot in [0, 1] {
        sim.announce(slot, &[new], &route(slot, &[64500], &[]));
    }
    while !sim.tables[&2].contains_key(&new.prefix) {
        assert!(sim.step(LIMIT));
    }
    // The rest of a tick until the batch, and a tick until rankings leave.
    assert!(sim.now().instant - begin <= 2 * TICK + TICK / 10);
    assert!(sim.settle(LIMIT));
    let mut changes: Vec<(u32, bool)> = sim.router_changes[before..]
        .iter()
        .filter(|(_, prefix, _)| *prefix == new.prefix)
        .map(|(slot, _, is_there)| (*slot, *is_there))
        .collect();
    changes.sort_unstable();
    assert_eq!(changes, [(0, true), (1, true), (2, true), (BAD, true)]);
    for slot in [2, BAD] {
        assert_eq!(sim.tables[&slot][&new.prefix].as_path().first_asn(), Some(asn(1)));
    }
}

in_both_modes!(what_is_open_when_the_parties_go_is_decided_once_and_moves_no_route_without_need);
fn what_is_open_when_the_parties_go_is_decided_once_and_moves_no_route_without_need(export: ExportMode) {
    let known = nlri("192.0.2.0/24");
    // Before and after the members have looked at what the parties list.
    for looked_at in [false, true] {
        let mut sim = exchange(export);
        let first =
            |sim: &Sim, prefix: Nlri| sim.tables[&BAD].get(&prefix.prefix).and_then(|a| a.as_path().first_asn());
        // The member's own order would take slot 0.
        let key = sim.order_key(PARTIES[0]).expect("the parties have agreed on an order");
        let mut others = (0..250).map(|number| nlri(&format!("20.0.{number}.0/24")));
        let new = others.find(|nlri| key.number(0, nlri) < key.number(1, nlri)).expect("half of them");
        sim.recommend([(0, 1), (1, 9)].into());
        assert!(sim.settle(LIMIT));
        assert_eq!(first(&sim, known), Some(asn(1)));
        // Whatever comes just after a batch goes into the next one together.
        sim.announce(2, &[nlri("198.51.100.0/24")], &route(2, &[64500, 64501], &[]));
        while !sim.tables[&BAD].contains_key(&nlri("198.51.100.0/24").prefix) {
            assert!(sim.step(LIMIT));
        }
        let ticks = |sim: &mut Sim| sim.member(BAD).expect("it runs").counters().ticks;
        let before = (ticks(&mut sim), sim.router_changes.len());
        sim.announce(2, &[known], &route(2, &[64500], &[]));
        for slot in [0, 1] {
            sim.announce(slot, &[new], &route(slot, &[64500], &[]));
        }
        let awaiting = |sim: &mut Sim| sim.member(BAD).expect("it runs").status().awaiting;
        while if looked_at { awaiting(&mut sim) < 2 } else { ticks(&mut sim) == before.0 } {
            assert!(sim.step(LIMIT), "the candidates come");
        }
        PARTIES.into_iter().for_each(|party| sim.kill(party));
        sim.run_for(Duration::from_secs(20));
        let changes = |sim: &Sim, prefix: Nlri| {
            let of =
                sim.router_changes[before.1..].iter().filter(|change| (change.0, change.1) == (BAD, prefix.prefix));
            of.map(|(.., is_there)| *is_there).collect::<Vec<bool>>()
        };
        let decided = (first(&sim, new), changes(&sim, new));
        assert_eq!(decided, (Some(asn(0)), vec![true]), "{looked_at}: by its own order");
        assert_eq!((first(&sim, known), changes(&sim, known)), (Some(asn(1)), vec![]), "{looked_at}");
        assert_eq!(sim.member(BAD).expect("it runs").status().awaiting, 0, "no result comes");
        // It is chosen again once the parties are there.
        PARTIES.into_iter().for_each(|party| sim.start(party));
        assert!(sim.settle(LIMIT));
        assert_eq!([known, new].map(|prefix| first(&sim, prefix)), [Some(asn(1)); 2]);
        assert_eq!(changes(&sim, known), Vec::<bool>::new(), "{looked_at}");
        assert!(changes(&sim, new).iter().all(|is_there| *is_there));
    }
}

in_both_modes!(a_route_that_new_rules_refuse_goes_at_once_also_while_a_result_is_awaited);
fn a_route_that_new_rules_refuse_goes_at_once_also_while_a_result_is_awaited(export: ExportMode) {
    let mut sim = exchange(export);
    let prefix = nlri("192.0.2.0/24");
    let first = |sim: &Sim| sim.tables[&2][&prefix.prefix].as_path().first_asn();
    assert_eq!(first(&sim), Some(asn(0)));
    let silent = silence(&mut sim);
    silent.lock().expect("one thread").extend(PARTIES);
    sim.announce(1, &[prefix], &route(1, &[64500, 64501], &[]));
    while sim.member(2).expect("it runs").status().awaiting == 0 {
        assert!(sim.step(LIMIT), "the candidates come");
    }
    sim.set_policy(2, policy(&format!("[[rule]]\ndirection = \"import\"\npeer = [\"{}\"]\nreject = true\n", asn(0).0)));
    sim.run_for(Duration::from_millis(20));
    assert_eq!(sim.member(2).expect("it runs").status().awaiting, 1, "the round goes on");
    assert_eq!(first(&sim), Some(asn(1)));
    silent.lock().expect("one thread").clear();
    assert!(sim.settle(LIMIT));
    assert_eq!(first(&sim), Some(asn(1)));
}

/// Member 2 asks so often, by this policy again and again, that Select-Best chooses for it no more.
fn use_up_choices(sim: &mut Sim, rules: &str) {
    let own_order = |sim: &Sim| {
        sim.member_events.iter().any(|(slot, event)| *slot == 2 && matches!(event, MemberEvent::OwnOrder { .. }))
    };
    let mut reloads = 0;
    while !own_order(sim) {
        reloads += 1;
        assert!(reloads < 40, "its budget ends");
        sim.set_policy(2, policy(rules));
        assert!(sim.settle(LIMIT));
    }
}

in_both_modes!(where_select_best_chooses_no_more_the_latest_rules_decide);
fn where_select_best_chooses_no_more_the_latest_rules_decide(export: ExportMode) {
    let budget = Budget { choices: 1, ..Budget::default() };
    let mut sim = Sim::new(Setup { tick: TICK, export, budget, ..Setup::default() });
    assert!(sim.settle(LIMIT));
    let prefix = nlri("192.0.2.0/24");
    for slot in [0, 1] {
        sim.announce(slot, &[prefix], &route(slot, &[64500], &[]));
    }
    assert!(sim.settle(LIMIT));
    use_up_choices(&mut sim, "");
    let first = |sim: &Sim| sim.tables[&2][&prefix.prefix].as_path().first_asn();
    assert_eq!(first(&sim), Some(asn(0)));
    let prefers = format!("[[rule]]\ndirection = \"import\"\npeer = [\"{}\"]\nclass = 200\n", asn(1).0);
    sim.set_policy(2, policy(&prefers));
    assert!(sim.settle(LIMIT));
    assert_eq!(first(&sim), Some(asn(1)));
}

in_both_modes!(a_route_that_came_after_the_ranking_counts_where_select_best_chooses_no_more);
fn a_route_that_came_after_the_ranking_counts_where_select_best_chooses_no_more(export: ExportMode) {
    let budget = Budget { choices: 1, ..Budget::default() };
    let mut sim = Sim::new(Setup { tick: TICK, export, budget, ..Setup::default() });
    assert!(sim.settle(LIMIT));
    let (prefix, other) = (nlri("192.0.2.0/24"), nlri("198.51.100.0/24"));
    let prefers = format!("[[rule]]\ndirection = \"import\"\npeer = [\"{}\"]\nclass = 200\n", asn(1).0);
    sim.set_policy(2, policy(&prefers));
    for slot in [0, 1] {
        sim.announce(slot, &[other], &route(slot, &[64500], &[]));
    }
    for slot in [0, 3] {
        sim.announce(slot, &[prefix], &route(slot, &[64500], &[]));
    }
    assert!(sim.settle(LIMIT));
    use_up_choices(&mut sim, &prefers);
    // The route that it prefers is lost on its way; the list that names it is not, so that it ranks without it.
    sim.tamper = Some(Box::new(|_, to, bytes| match ToMember::decode(bytes) {
        Ok(ToMember::Tick(mut tick)) if to == Node::Member(2) && !tick.deliver.is_empty() => {
            tick.deliver.clear();
            FrameAction::Change(ToMember::Tick(tick).encode())
        }
        _ => FrameAction::Pass,
    }));
    sim.announce(1, &[prefix], &route(1, &[64500], &[]));
    assert!(sim.settle(LIMIT));
    sim.tamper = None;
    let first = |sim: &Sim| sim.tables[&2][&prefix.prefix].as_path().first_asn();
    assert_eq!(first(&sim), Some(asn(0)), "chosen among the others");
    // What it lacks is sent when it connects again; the list is as it was.
    sim.cut_member(2);
    assert!(sim.settle(LIMIT));
    assert_eq!(first(&sim), Some(asn(1)));
}

/// All members announce their tables at once, in orders of their own, to proxies that are so many times slower than usual. Returns for how
/// many prefixes a member's router has a longer path than it could.
fn worse_after_tables_at_once(slower: u32, seed: u64) -> usize {
    const PREFIXES: usize = 400;
    let mut costs = Costs::default();
    costs.slower.extend((0..8).map(|slot| (Node::Member(slot), slower)));
    let mut sim = Sim::new(Setup { members: 8, tick: TICK, seed, costs: Some(costs), ..Setup::default() });
    assert!(sim.settle(LIMIT));
    let nlri = |i: usize| nlri(&format!("21.{}.{}.0/24", i / 256, i % 256));
    // Each has three quarters of the prefixes.
    let has = |slot: u32, prefix: usize| !(prefix + slot as usize).is_multiple_of(4);
    let length = |slot: u32, prefix: usize| 1 + (prefix * 5 + slot as usize * 3) % 4;
    for step in 0..PREFIXES {
        for slot in 0..8 {
            let prefix = (step * 7 + slot as usize * 131) % PREFIXES;
            if has(slot, prefix) {
                sim.announce(slot, &[nlri(prefix)], &route(slot, &[64500; 4][..length(slot, prefix)], &[]));
            }
        }
        if step.is_multiple_of(8) {
            sim.run_for(Duration::from_millis(5));
        }
    }
    assert!(sim.settle(LIMIT));
    let is_worse = |(slot, prefix): &(u32, usize)| {
        let others = (0..8).filter(|other| other != slot && has(*other, *prefix));
        let best = others.map(|other| 1 + length(other, *prefix)).min();
        sim.tables[slot].get(&nlri(*prefix).prefix).map(|attributes| attributes.as_path().length()) != best
    };
    let all = (0..8).flat_map(|slot| (0..PREFIXES).map(move |prefix| (slot, prefix)));
    all.filter(is_worse).count()
}

#[test]
fn a_better_route_is_chosen_also_if_the_own_route_changes_before_it_is_looked_at() {
    for seed in [1, 2, 3] {
        let worse = worse_after_tables_at_once(4, seed);
        assert_eq!(worse, 0, "longer paths than there are, seed {seed}");
    }
}
