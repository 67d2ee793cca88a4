//! What a change of the member set costs: nothing is announced or signed again that it does not concern.
//!
//! SIX, set changes: a removal, a further slot of an AS, a new AS, other attestation keys, a limit: only what is
//! concerned is announced and signed again; routes stay valid, over restarts too.

use crate::common::attested::{announcer, p, rest, setup, started, verdicts};
use crate::common::{nlri, route};
use wayleave_core::VerdictKind;
use wayleave_lab::sim::{Node, PARTIES, Sim, member_asn};
use wayleave_route_server::frames::FromMember;
use wayleave_route_server::object::Kind;

const ROUTES: usize = 25;

/// Members 1 to 4 attest; member 1 has some routes, signed and announced.
fn exchange() -> Sim {
    let mut sim = started(setup(5, &[1, 2, 3, 4, 5, 6]));
    for i in 0..ROUTES {
        sim.announce(1, &[nlri(&format!("20.1.{i}.0/24"))], &route(1, &[], &[]));
    }
    rest(&mut sim);
    sim
}

/// What a change costs member 1: objects announced, columns, signatures made.
fn cost(sim: &mut Sim, change: impl FnOnce(&mut Sim)) -> [usize; 3] {
    let signed =
        |sim: &mut Sim| sim.member(1).expect("it runs").attestation_status().expect("it attests").counts.originated;
    let before = signed(sim);
    sim.recording = Some(Vec::new());
    change(sim);
    rest(sim);
    let (mut objects, mut columns) = (0, 0);
    for frame in sim.recording.take().expect("it records") {
        if (frame.from, frame.to) == (Node::Member(1), PARTIES[0])
            && let Ok(FromMember::SubmitOne { header, .. }) = FromMember::decode(&frame.bytes)
        {
            match header.description.kind {
                Kind::Announce { .. } => objects += 1,
                Kind::Column { .. } => columns += 1,
                Kind::Withdraw { .. } => panic!("nothing is withdrawn"),
            }
        }
    }
    [objects, columns, (signed(sim) - before) as usize]
}

fn assert_valid(sim: &mut Sim, slots: &[u32]) {
    for slot in slots {
        assert_eq!(announcer(sim, *slot, "20.1.7.0/24"), Some(member_asn(1)), "member {slot}");
        assert_eq!(verdicts(sim, *slot, "20.1.7.0/24")[&1], Some(VerdictKind::Valid), "member {slot}");
    }
}

#[test]
fn a_removal_costs_no_announcement_and_no_signature_and_routes_stay_valid_over_restarts() {
    let mut sim = exchange();
    assert_eq!(cost(&mut sim, |sim| sim.leave(3)), [0, 0, 0]);
    assert_valid(&mut sim, &[2, 4]);
    // Whoever was not there, or forgot all but its store, knows the set that they were signed for.
    for slot in [2, 4] {
        sim.kill(Node::Member(slot));
        sim.start(Node::Member(slot));
    }
    rest(&mut sim);
    assert_valid(&mut sim, &[2, 4]);
    assert!(sim.table(2).contains_key(&p("20.1.7.0/24")));
}

#[test]
fn a_further_slot_of_an_as_costs_one_column() {
    let mut sim = exchange();
    assert_eq!(cost(&mut sim, |sim| assert_eq!(sim.join_as(2), 5)), [0, 1, 0]);
    assert_valid(&mut sim, &[2, 3]);
}

#[test]
fn a_new_as_costs_one_column_and_each_route_one_signature_and_one_announcement() {
    let mut sim = exchange();
    assert_eq!(cost(&mut sim, |sim| assert_eq!(sim.join(), 5)), [ROUTES, 1, ROUTES]);
    assert_valid(&mut sim, &[2, 3, 4, 5]);
}

#[test]
fn other_attestation_keys_of_one_member_cost_each_route_one_signature_and_one_announcement() {
    let mut sim = exchange();
    let change = |sim: &mut Sim| sim.change_attest_keys(4);
    assert_eq!(cost(&mut sim, change), [ROUTES, 0, ROUTES]);
    assert_valid(&mut sim, &[2, 3]);
}

#[test]
fn a_set_that_changes_what_no_route_depends_on_costs_nothing() {
    let mut sim = exchange();
    assert_eq!(cost(&mut sim, |sim| sim.change_limit(2)), [0, 0, 0]);
    assert_valid(&mut sim, &[2, 3, 4]);
}
