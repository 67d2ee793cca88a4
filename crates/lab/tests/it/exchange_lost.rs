//! What one party alone has when their link comes up is lost, and not withdrawn, unless either knows better: routers keep what they have of
//! it until its announcer has said what became of it, or for as long as an announcer may be away.
//!
//! SIX, loss: a party's store is lost, or is an older copy, or a party stops between the two writes of a batch: no router loses a route, what
//! was withdrawn does not stay, and nothing that members say tells what they could open.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use wayleave_bgp::Nlri;
use wayleave_core::Prefix;
use wayleave_lab::sim::costs::Costs;
use wayleave_lab::sim::{FrameAction, Node, PARTIES, Setup, Sim};
use wayleave_route_server::object::ExportMode;
use wayleave_route_server::party::PartyEvent;

use crate::common::{Exchange, LIMIT, in_both_modes, nlri, policy, route};

const STALE: Duration = Duration::from_secs(120);

fn at(number: u32) -> Nlri {
    nlri(&format!("20.{}.{}.0/24", number / 250, number % 250))
}

/// Whether a member's router has a route to it.
fn has(sim: &Sim, slot: u32, number: u32) -> bool {
    sim.tables.get(&slot).is_some_and(|table| table.contains_key(&at(number).prefix))
}

fn setup(export: ExportMode, seed: u64) -> Setup {
    Setup { members: 4, tick: Duration::from_millis(50), seed, stale: STALE, export, ..Setup::default() }
}

/// A party comes back without what it had stored.
fn wipe(sim: &mut Sim, party: Node) {
    sim.kill(party);
    sim.store(party).clear();
    sim.start(party);
}

/// The prefixes that routers lost since this was last asked.
fn losses(sim: &mut Sim) -> BTreeSet<(u32, Prefix)> {
    let changes = std::mem::take(&mut sim.router_changes);
    changes.into_iter().filter(|(.., is_there)| !is_there).map(|(slot, prefix, _)| (slot, prefix)).collect()
}

fn lost_objects(sim: &Sim) -> Vec<usize> {
    let agreed = |(_, event): &(Node, PartyEvent)| match event {
        PartyEvent::Agreed { lost, .. } => Some(*lost),
        _ => None,
    };
    sim.party_events.iter().filter_map(agreed).collect()
}

/// 50 members with routes that differ in who may have them; of half of the prefixes there are two.
fn with_50_members(seed: u64, export: ExportMode) -> Exchange {
    let costs = Some(Costs::default());
    let mut exchange = Exchange::new(Setup { members: 50, costs, ..setup(export, seed) });
    for slot in 0..50u32 {
        for number in [slot * 2, slot * 2 + 1, (slot + 1) % 50 * 2] {
            let hide = format!("64496:0:{}", 65_000 + (slot + number) % 50);
            exchange.announce(slot, &[at(number)], &route(slot, &[64500, 64501 + slot % 3], &[&hide]));
        }
    }
    exchange.check();
    exchange
}

in_both_modes!(with_50_members_no_router_loses_a_route_when_a_party_loses_its_store);
fn with_50_members_no_router_loses_a_route_when_a_party_loses_its_store(export: ExportMode) {
    let mut exchange = with_50_members(1_000, export);
    for party in [PARTIES[1], PARTIES[0]] {
        losses(&mut exchange.sim);
        exchange.sim.party_events.clear();
        wipe(&mut exchange.sim, party);
        exchange.check();
        assert_eq!(losses(&mut exchange.sim), BTreeSet::new(), "{party:?}");
        assert!(lost_objects(&exchange.sim).contains(&150), "{:?}", exchange.sim.party_events);
    }
}

in_both_modes!(with_an_older_copy_of_a_store_no_router_loses_a_route_and_what_was_withdrawn_stays_so);
fn with_an_older_copy_of_a_store_no_router_loses_a_route_and_what_was_withdrawn_stays_so(export: ExportMode) {
    for (seed, party) in (1_010..).zip(PARTIES) {
        let mut exchange = Exchange::new(setup(export, seed));
        for number in 0..8 {
            exchange.announce(number % 2, &[at(number)], &route(number % 2, &[64500], &[]));
        }
        exchange.check();
        let older = exchange.sim.store(party).clone();
        exchange.announce(0, &[at(9)], &route(0, &[64500], &[]));
        exchange.announce(1, &[at(1)], &route(1, &[64599], &[]));
        exchange.withdraw(0, &[at(0)]);
        exchange.check();
        losses(&mut exchange.sim);
        exchange.sim.kill(party);
        *exchange.sim.store(party) = older;
        // Its announcer is away, and says nothing of what it withdrew.
        exchange.sim.kill(Node::Member(0));
        exchange.sim.start(party);
        exchange.sim.pass(Duration::from_secs(10));
        assert_eq!(losses(&mut exchange.sim), BTreeSet::new(), "{party:?}");
        assert!(!has(&exchange.sim, 2, 0), "it was withdrawn");
        exchange.sim.start(Node::Member(0));
        exchange.check();
    }
}

/// How long after the loss the routes of an announcer that never returns are gone, with so many losses more meanwhile.
fn kept_for(export: ExportMode, losses_more: u32) -> Duration {
    let mut sim = Sim::new(setup(export, 1_020));
    sim.announce(0, &[at(0)], &route(0, &[64500], &["64496:0:65002"]));
    sim.announce(1, &[at(1)], &route(1, &[64500], &[]));
    assert!(sim.settle(LIMIT));
    sim.kill(Node::Member(0));
    let lost = sim.now().instant;
    wipe(&mut sim, PARTIES[1]);
    for party in (0..losses_more).map(|number| PARTIES[number as usize % 2]) {
        sim.pass(STALE / (losses_more + 1) - Duration::from_secs(1));
        wipe(&mut sim, party);
    }
    while has(&sim, 1, 0) {
        assert!(sim.tables[&1].len() + sim.tables[&3].len() > 0 && sim.now().instant.since(lost) < 2 * STALE);
        sim.pass(Duration::from_millis(100));
    }
    let after = sim.now().instant.since(lost);
    assert!(!has(&sim, 2, 0), "it was never exported to it");
    sim.pass(Duration::from_secs(1));
    assert!(!has(&sim, 3, 0));
    assert!(has(&sim, 3, 1), "that of the announcer that is there stays");
    after
}

in_both_modes!(what_an_announcer_leaves_that_never_returns_goes_after_the_stale_time_however_often_it_is_lost_again);
fn what_an_announcer_leaves_that_never_returns_goes_after_the_stale_time_however_often_it_is_lost_again(
    export: ExportMode,
) {
    for losses_more in [0, 1, 5] {
        let after = kept_for(export, losses_more);
        let bounds = STALE - Duration::from_secs(1)..STALE + Duration::from_secs(5);
        assert!(bounds.contains(&after), "{losses_more} losses more: gone after {after:?}");
    }
}

in_both_modes!(what_an_announcer_withdrew_while_it_was_away_goes_once_it_is_back);
fn what_an_announcer_withdrew_while_it_was_away_goes_once_it_is_back(export: ExportMode) {
    for (seed, party) in (1_030..).zip(PARTIES) {
        let mut exchange = Exchange::new(setup(export, seed));
        exchange.announce(0, &[at(0), at(1)], &route(0, &[64500], &[]));
        exchange.announce(0, &[at(2)], &route(0, &[64500], &[]));
        exchange.check();
        exchange.sim.kill(Node::Member(0));
        wipe(&mut exchange.sim, party);
        losses(&mut exchange.sim);
        exchange.sim.pass(Duration::from_secs(20));
        exchange.withdraw(0, &[at(0)]);
        assert_eq!(losses(&mut exchange.sim), BTreeSet::new());
        exchange.sim.start(Node::Member(0));
        exchange.check();
        let expected: BTreeSet<(u32, Prefix)> = (1..4).map(|slot| (slot, at(0).prefix)).collect();
        assert_eq!(losses(&mut exchange.sim), expected);
    }
}

in_both_modes!(what_is_hidden_from_a_member_when_it_comes_again_goes_from_its_router_at_once);
fn what_is_hidden_from_a_member_when_it_comes_again_goes_from_its_router_at_once(export: ExportMode) {
    let mut exchange = Exchange::new(setup(export, 1_040));
    exchange.announce(0, &[at(0)], &route(0, &[64500], &[]));
    exchange.check();
    exchange.sim.kill(PARTIES[1]);
    exchange.sim.store(PARTIES[1]).clear();
    let hides = policy("[[rule]]\ndirection = \"export\"\nhide_from = [\"65002\"]\n");
    exchange.set_policy(0, &hides);
    exchange.sim.start(PARTIES[1]);
    exchange.check();
    assert!(has(&exchange.sim, 1, 0) && !has(&exchange.sim, 2, 0));
}

in_both_modes!(what_a_removed_announcer_left_goes_at_once);
fn what_a_removed_announcer_left_goes_at_once(export: ExportMode) {
    for (seed, party) in (1_050..).zip(PARTIES) {
        let mut exchange = Exchange::new(setup(export, seed));
        exchange.announce(0, &[at(0)], &route(0, &[64500], &[]));
        exchange.check();
        exchange.sim.kill(Node::Member(0));
        wipe(&mut exchange.sim, party);
        exchange.sim.pass(Duration::from_secs(5));
        assert!((1..4).all(|slot| has(&exchange.sim, slot, 0)));
        exchange.leave(0);
        exchange.sim.pass(Duration::from_secs(1));
        assert!((1..4).all(|slot| !has(&exchange.sim, slot, 0)), "{party:?}");
    }
}

in_both_modes!(who_joins_after_the_loss_gets_nothing_of_it);
fn who_joins_after_the_loss_gets_nothing_of_it(export: ExportMode) {
    let mut exchange = Exchange::new(setup(export, 1_060));
    exchange.announce(0, &[at(0)], &route(0, &[64500], &[]));
    exchange.check();
    exchange.sim.kill(Node::Member(0));
    wipe(&mut exchange.sim, PARTIES[0]);
    exchange.sim.pass(Duration::from_secs(5));
    let joined = exchange.join();
    // And one that starts anew, whose router has nothing of it any more.
    exchange.sim.kill(Node::Member(2));
    exchange.sim.start(Node::Member(2));
    exchange.sim.pass(Duration::from_secs(5));
    assert_eq!([1, 2, 3, joined].map(|slot| has(&exchange.sim, slot, 0)), [true, false, true, false]);
}

/// No router loses a route, whatever befalls the parties after any number of steps around a batch that replaces one. Returns how often
/// something was lost between them.
fn lost_anywhere_in_a_batch(export: ExportMode, seed: u64, befalls: impl Fn(&mut Sim, Node)) -> usize {
    let run = |steps: u64| {
        let party = PARTIES[steps as usize % 2];
        let mut exchange = Exchange::new(Setup { members: 3, ..setup(export, seed + steps) });
        exchange.announce(0, &[at(0), at(1)], &route(0, &[64500], &[]));
        exchange.announce(1, &[at(1)], &route(1, &[64500, 64501], &[]));
        exchange.check();
        losses(&mut exchange.sim);
        exchange.sim.party_events.clear();
        exchange.announce(0, &[at(0)], &route(0, &[64599], &[]));
        exchange.announce(0, &[at(2)], &route(0, &[64598], &[]));
        for _ in 0..steps / 2 {
            exchange.sim.step(Duration::from_millis(100));
        }
        befalls(&mut exchange.sim, party);
        exchange.check();
        assert_eq!(losses(&mut exchange.sim), BTreeSet::new(), "{party:?} after {steps} steps");
        lost_objects(&exchange.sim).iter().any(|lost| *lost > 0)
    };
    (0..60).filter(|steps| run(*steps)).count()
}

in_both_modes!(a_party_that_stops_anywhere_in_a_batch_takes_no_route_from_a_router);
fn a_party_that_stops_anywhere_in_a_batch_takes_no_route_from_a_router(export: ExportMode) {
    let lost = lost_anywhere_in_a_batch(export, 1_070, |sim, party| {
        sim.kill(party);
        sim.start(party);
    });
    assert!(lost > 0, "some of them stopped between the two writes");
}

// The members' links stay.
in_both_modes!(a_link_between_the_parties_that_fails_anywhere_in_a_batch_takes_no_route_from_a_router);
fn a_link_between_the_parties_that_fails_anywhere_in_a_batch_takes_no_route_from_a_router(export: ExportMode) {
    let lost = lost_anywhere_in_a_batch(export, 1_300, |sim, _| sim.cut_parties());
    assert!(lost > 0, "some of them failed between the two writes");
}

// As with the machine, what it was about to do is gone.
in_both_modes!(a_party_that_loses_its_store_anywhere_in_a_batch_takes_no_route_from_a_router);
fn a_party_that_loses_its_store_anywhere_in_a_batch_takes_no_route_from_a_router(export: ExportMode) {
    assert_eq!(lost_anywhere_in_a_batch(export, 1_400, wipe), 60);
}

in_both_modes!(a_column_that_one_party_alone_has_is_lost_to_the_slots_that_it_opened);
fn a_column_that_one_party_alone_has_is_lost_to_the_slots_that_it_opened(export: ExportMode) {
    for (seed, party) in (1_500..).zip(PARTIES) {
        let mut exchange = Exchange::new(setup(export, seed));
        for number in 0..3 {
            exchange.announce(0, &[at(2 * number), at(2 * number + 1)], &route(0, &[64500], &[]));
        }
        exchange.check();
        let older = exchange.sim.store(party).clone();
        let joined = exchange.join();
        exchange.check();
        losses(&mut exchange.sim);
        exchange.sim.kill(Node::Member(0));
        exchange.sim.kill(party);
        *exchange.sim.store(party) = older;
        exchange.sim.start(party);
        exchange.sim.pass(Duration::from_secs(10));
        assert_eq!(losses(&mut exchange.sim), BTreeSet::new(), "{party:?}");
        assert!(lost_objects(&exchange.sim).contains(&3));
        // The party starts again with what it knows of it now.
        exchange.sim.kill(party);
        exchange.sim.start(party);
        exchange.sim.pass(Duration::from_secs(10));
        assert_eq!(losses(&mut exchange.sim), BTreeSet::new(), "{party:?}");
        exchange.sim.start(Node::Member(0));
        exchange.check();
        assert_eq!(losses(&mut exchange.sim), BTreeSet::new(), "{party:?}");
        assert!((0..6).all(|number| has(&exchange.sim, joined, number)));
    }
}

in_both_modes!(whoever_hears_of_a_loss_late_keeps_its_routes_no_longer_than_others);
fn whoever_hears_of_a_loss_late_keeps_its_routes_no_longer_than_others(export: ExportMode) {
    /// The stale timer of the simulation's members.
    const OWN: Duration = Duration::from_secs(3600);
    let mut sim = Sim::new(Setup { stale: 10 * OWN, ..setup(export, 1_520) });
    sim.announce(0, &[at(0)], &route(0, &[64500], &[]));
    assert!(sim.settle(LIMIT));
    sim.kill(Node::Member(0));
    sim.tamper = Some(Box::new(|from, to, _| match [from, to].contains(&Node::Member(2)) {
        true => FrameAction::Drop,
        false => FrameAction::Pass,
    }));
    wipe(&mut sim, PARTIES[1]);
    sim.pass(OWN - Duration::from_secs(60));
    sim.tamper = None;
    sim.cut_member(2);
    sim.pass(Duration::from_secs(50));
    assert!(sim.member(2).is_some_and(|member| member.status().kept == 1), "it has heard of it");
    let kept = at(0).prefix;
    let found = sim.member(2).and_then(|member| member.longest_match(kept.address()));
    assert_eq!(found, Some(kept), "what is kept is found by an address");
    assert!((1..4).all(|slot| has(&sim, slot, 0)));
    sim.pass(Duration::from_secs(20));
    assert!((1..4).all(|slot| !has(&sim, slot, 0)), "all count from when it was lost");
}

// As one without a battery, before it has the time from the network.
in_both_modes!(a_clock_that_is_behind_at_a_start_ends_nothing_that_is_lost);
fn a_clock_that_is_behind_at_a_start_ends_nothing_that_is_lost(export: ExportMode) {
    let mut exchange = Exchange::new(setup(export, 1_510));
    exchange.announce(0, &[at(0)], &route(0, &[64500], &[]));
    exchange.check();
    exchange.sim.set_wall_clock_forward(100 * STALE);
    exchange.sim.pass(Duration::from_secs(1));
    exchange.sim.kill(Node::Member(0));
    wipe(&mut exchange.sim, PARTIES[0]);
    exchange.sim.pass(Duration::from_secs(1));
    // It starts with a clock that is hours behind, which is right a while later.
    exchange.sim.set_wall_clock_right();
    wipe(&mut exchange.sim, PARTIES[1]);
    exchange.sim.pass(Duration::from_secs(1));
    exchange.sim.set_wall_clock_forward(100 * STALE);
    exchange.sim.pass(STALE / 2);
    assert!(has(&exchange.sim, 1, 0));
    exchange.sim.pass(STALE);
    assert!(!has(&exchange.sim, 1, 0));
}

in_both_modes!(a_withdrawal_that_one_party_alone_stored_stays_one);
fn a_withdrawal_that_one_party_alone_stored_stays_one(export: ExportMode) {
    for steps in 0..40u64 {
        let party = PARTIES[steps as usize % 2];
        let mut exchange = Exchange::new(Setup { members: 3, ..setup(export, 1_140 + steps) });
        exchange.announce(0, &[at(0)], &route(0, &[64500], &[]));
        exchange.check();
        exchange.withdraw(0, &[at(0)]);
        for _ in 0..steps / 2 {
            exchange.sim.step(Duration::from_millis(100));
        }
        exchange.sim.kill(party);
        exchange.sim.start(party);
        exchange.check();
    }
}

#[test]
fn a_change_of_the_mode_of_export_takes_no_route_from_a_router() {
    let mut exchange = with_50_members(1_200, ExportMode::Direct);
    for export in [ExportMode::Mpc, ExportMode::Direct] {
        losses(&mut exchange.sim);
        PARTIES.iter().for_each(|party| exchange.sim.kill(*party));
        for party in PARTIES {
            exchange.sim.exports.insert(party, export);
            exchange.sim.start(party);
        }
        exchange.check();
        assert_eq!(losses(&mut exchange.sim), BTreeSet::new(), "to {export:?}");
    }
}

/// What the receiver in slot 2 sends while a party loses its store, with the announcer away, and what is in its router then.
fn said_after_a_loss(export: ExportMode, hides: bool) -> (BTreeMap<Node, Vec<(u8, usize)>>, usize) {
    let costs = Some(Costs::default());
    let mut sim = Sim::new(Setup { costs, ..setup(export, 1_210) });
    for number in 0..40 {
        let communities: &[&str] = if hides { &["64496:0:65002"] } else { &["64496:0:64999"] };
        sim.announce(number % 2, &[at(number)], &route(number % 2, &[64500], communities));
        sim.announce(1, &[at(number)], &route(1, &[64500, 64501], communities));
    }
    assert!(sim.settle(LIMIT));
    sim.recording = Some(Vec::new());
    sim.kill(Node::Member(0));
    wipe(&mut sim, PARTIES[1]);
    sim.pass(Duration::from_secs(10));
    let at_loss = sim.tables[&2].len();
    wipe(&mut sim, PARTIES[0]);
    sim.pass(STALE + Duration::from_secs(10));
    sim.start(Node::Member(0));
    assert!(sim.settle(LIMIT));
    let mut links: BTreeMap<Node, Vec<(u8, usize)>> = BTreeMap::new();
    for frame in sim.recording.take().expect("it records") {
        let shape = frame.shape();
        if shape.from == Node::Member(2) {
            links.entry(shape.to).or_default().push((shape.kind, shape.len));
        }
    }
    (links, at_loss)
}

in_both_modes!(what_a_member_says_after_a_loss_does_not_tell_whether_it_opened_what_was_lost);
fn what_a_member_says_after_a_loss_does_not_tell_whether_it_opened_what_was_lost(export: ExportMode) {
    let [(opened, kept), (sealed, none)] = [false, true].map(|hides| said_after_a_loss(export, hides));
    assert_eq!((kept, none), (40, 0));
    assert!(opened.values().all(|frames| frames.len() > 5));
    assert_eq!(opened, sealed);
}
