//! Announcers choose whether slots that join get their routes, and nobody but the announcer can tell.
//!
//! SIX-11, new members: a slot that joins is served, held, released, held by a reload; a further slot for which nobody
//! signed gets its signature: equal messages in equal order, dummies for everything and routes after the release;
//! announcers are told once over all restarts, and of a second slot of an AS.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::common::{LIMIT, in_both_modes, nlri, policy, route};
use wayleave_lab::sim::bad::Shape;
use wayleave_lab::sim::{Node, Setup, Sim};
use wayleave_route_server::member::MemberEvent;
use wayleave_route_server::object::ExportMode;
use wayleave_route_server::policy::{NewMembers, Policy};

const MEMBERS: u32 = 3;
const PREFIXES: u32 = 70;

fn rest(sim: &mut Sim) {
    assert!(sim.settle(LIMIT), "the exchange did not come to rest");
}

fn holding(released: &[u32]) -> Policy {
    let released = released.iter().copied().collect();
    policy("").with_new_members(NewMembers { held_from: Some(MEMBERS), released })
}

/// Member 0 announces under this policy, one more member joins, and member 0's policy is loaded once more.
fn play(export: ExportMode, first: Policy, later: Policy) -> (Sim, Vec<Shape>, [usize; 2]) {
    let mut sim = Sim::new(Setup { members: MEMBERS as usize, seed: 71, export, ..Setup::default() });
    sim.set_policy(0, first);
    for prefix in 0..PREFIXES {
        sim.announce(0, &[nlri(&format!("20.{prefix}.0.0/16"))], &route(0, &[64500], &[]));
    }
    rest(&mut sim);
    sim.recording = Some(Vec::new());
    let newcomer = sim.join();
    rest(&mut sim);
    sim.announce(0, &[nlri("21.0.0.0/16")], &route(0, &[64500], &[]));
    rest(&mut sim);
    let before = sim.tables[&newcomer].len();
    sim.set_policy(0, later);
    rest(&mut sim);
    let after = sim.tables[&newcomer].len();
    let shapes = sim.recording.take().expect("it records").iter().map(|frame| frame.shape()).collect();
    (sim, shapes, [before, after])
}

in_both_modes!(a_held_slot_gets_dummies_for_everything_and_routes_once_it_is_released);
fn a_held_slot_gets_dummies_for_everything_and_routes_once_it_is_released(export: ExportMode) {
    let (mut sim, _, routes) = play(export, holding(&[]), holding(&[MEMBERS]));
    assert_eq!(routes, [0, PREFIXES as usize + 1]);
    let counters = sim.member(MEMBERS).expect("it runs").status().counters;
    // Each object came twice: with a dummy, and after the release with its key.
    assert_eq!((counters.delivered, counters.opened), (2 * (u64::from(PREFIXES) + 1), u64::from(PREFIXES) + 1));
    assert_eq!(sim.alarms(MEMBERS).count(), 0);
    assert!(sim.tables[&1].len() == PREFIXES as usize + 1, "others had them all the time");
}

in_both_modes!(neither_party_can_tell_that_a_slot_is_held_or_released);
fn neither_party_can_tell_that_a_slot_is_held_or_released(export: ExportMode) {
    let (_, served, routes) = play(export, policy(""), policy(""));
    assert_eq!(routes, [PREFIXES as usize + 1; 2]);
    for (first, later) in
        [(holding(&[]), holding(&[])), (holding(&[]), holding(&[MEMBERS])), (policy(""), holding(&[]))]
    {
        let (_, shapes, routes) = play(export, first, later);
        assert!(routes.contains(&0));
        let differs = served.iter().zip(&shapes).position(|(a, b)| a != b);
        assert_eq!(differs.map(|at| (served[at], shapes[at])), None);
        assert_eq!(served.len(), shapes.len());
    }
}

/// Member 0 announces, a further slot of member 1's AS joins for which nobody signed, member 0 loads a policy once more, and
/// member 1 signs for the slot. Returns what the new slot has after each.
fn play_marked(export: ExportMode, later: Policy, by: u32) -> (Sim, Vec<Shape>, [usize; 3]) {
    let mut sim = Sim::new(Setup { members: MEMBERS as usize, seed: 73, export, ..Setup::default() });
    for prefix in 0..PREFIXES {
        sim.announce(0, &[nlri(&format!("20.{prefix}.0.0/16"))], &route(0, &[64500], &[]));
    }
    rest(&mut sim);
    sim.recording = Some(Vec::new());
    let newcomer = if by == 0 { sim.join_as(1) } else { sim.join_held_as(1) };
    rest(&mut sim);
    let mut routes = [sim.tables[&newcomer].len(), 0, 0];
    sim.set_policy(0, later);
    rest(&mut sim);
    routes[1] = sim.tables[&newcomer].len();
    if by > 0 {
        sim.endorse(newcomer, by);
        rest(&mut sim);
    }
    routes[2] = sim.tables[&newcomer].len();
    let shapes = sim.recording.take().expect("it records").iter().map(|frame| frame.shape()).collect();
    (sim, shapes, routes)
}

in_both_modes!(a_further_slot_for_which_nobody_signed_gets_dummies_from_everybody_until_it_is_released_or_signed_for);
fn a_further_slot_for_which_nobody_signed_gets_dummies_from_everybody_until_it_is_released_or_signed_for(
    export: ExportMode,
) {
    let all = PREFIXES as usize;
    let (sim, _, routes) = play_marked(export, policy(""), 1);
    assert_eq!(routes, [0, 0, all]);
    assert!(new_members(&sim).contains(&(0, MEMBERS, Some(1), true)));
    let (_, _, routes) = play_marked(export, holding(&[MEMBERS]), 1);
    assert_eq!(routes, [0, all, all]);
    // Whoever holds new members decides by itself, whatever the AS's other key signed.
    let (_, _, routes) = play_marked(export, holding(&[]), 1);
    assert_eq!(routes, [0, 0, 0]);
    let (_, _, routes) = play_marked(export, policy(""), 0);
    assert_eq!(routes, [all; 3], "what the present slot signed for is served");
}

in_both_modes!(neither_party_can_tell_who_released_a_slot_before_it_was_signed_for);
fn neither_party_can_tell_who_released_a_slot_before_it_was_signed_for(export: ExportMode) {
    let (_, first, _) = play_marked(export, policy(""), 1);
    for later in [holding(&[MEMBERS]), holding(&[])] {
        let (_, shapes, _) = play_marked(export, later, 1);
        let differs = first.iter().zip(&shapes).position(|(a, b)| a != b);
        assert_eq!(differs.map(|at| (first[at], shapes[at])), None);
        assert_eq!(first.len(), shapes.len());
    }
}

#[test]
fn every_announcer_is_told_of_new_slots_once_over_all_restarts_and_of_a_second_slot_of_an_as() {
    let mut sim = Sim::new(Setup { members: MEMBERS as usize, seed: 72, ..Setup::default() });
    sim.set_policy(0, holding(&[]));
    rest(&mut sim);
    assert!(new_members(&sim).is_empty(), "those that were there are not reported");
    sim.join();
    rest(&mut sim);
    sim.join_as(1);
    rest(&mut sim);
    let expected = BTreeSet::from([
        (0, 3, None, true),
        (0, 4, Some(1), true),
        (1, 3, None, false),
        (1, 4, Some(1), false),
        (2, 3, None, false),
        (2, 4, Some(1), false),
        (3, 4, Some(1), false),
    ]);
    assert_eq!(new_members(&sim), expected);
    assert_eq!(sim.member(0).expect("it runs").status().held, [3, 4]);
    sim.forget_events();
    for slot in 0..3 {
        sim.kill(Node::Member(slot));
        sim.start(Node::Member(slot));
    }
    sim.pass(Duration::from_secs(1));
    assert_eq!(
        new_members(&sim),
        BTreeSet::from([(0, 3, None, true), (0, 4, Some(1), true)]),
        "what is held is said at start"
    );
}

/// Announcer, new slot, earlier slot of its AS, whether it is held.
fn new_members(sim: &Sim) -> BTreeSet<(u32, u32, Option<u32>, bool)> {
    let of = |(member, event): &(u32, MemberEvent)| match event {
        MemberEvent::NewMember { slot, earlier, held, .. } => Some((*member, *slot, *earlier, *held)),
        _ => None,
    };
    sim.member_events.iter().filter_map(of).collect()
}
