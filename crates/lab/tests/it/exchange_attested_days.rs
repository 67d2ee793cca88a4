//! Members that attest, over days: what is signed again ahead of expiry, and what lapses when nobody signs it again.
//!
//! KCX-15: three days in virtual time with all up, with a signer that stays away, with a customer that does not renew:
//! all is signed again ahead of expiry; what nobody signs again lapses at its second and not before; a replaced route
//! stays two minutes at most.

use std::time::Duration;

use crate::common::attested::{
    CUSTOMER, LEGACY, amiss, announcer, customers_route, five, own, p, rest, setup, started, value, verdicts,
};
use crate::common::{nlri, route};
use wayleave_attestation::chain::Attestation;
use wayleave_attestation::member::MemberAttestationEvent;
use wayleave_attestation::pipeline::RouteEvent;
use wayleave_attestation::pipeline::policy::VerdictClass;
use wayleave_core::VerdictKind;
use wayleave_lab::sim::{Node, Setup, Sim, member_asn};

const DAY: Duration = Duration::from_secs(24 * 3600);
/// Seconds by which the clocks of these members may be wrong.
const UNCERTAINTY: u64 = 600;
/// A prefix of the customer, behind the member in slot 1.
const BEHIND: &str = "30.1.0.0/16";

/// Lets time pass and looks after each step.
fn pass(sim: &mut Sim, span: Duration, mut look: impl FnMut(&Sim)) {
    let until = sim.now().instant + span;
    while sim.now().instant < until {
        let left = until.since(sim.now().instant);
        if !sim.step(left) {
            sim.pass(left);
        }
        look(sim);
    }
}

fn unix(sim: &Sim) -> u64 {
    sim.now().unix.secs()
}

fn has(sim: &Sim, slot: u32, prefix: &str) -> bool {
    sim.tables[&slot].contains_key(&p(prefix))
}

/// When the hop in this place of what the member in `slot` has ends, in seconds since 1970.
fn ends(sim: &Sim, slot: u32, prefix: &str, place: usize) -> u64 {
    let value = value(&sim.table(slot)[&p(prefix)]).expect("attested");
    let attestation = Attestation::decode(&value).expect("well formed");
    let base_time = attestation.head().base_time;
    attestation.hops().nth(place).expect("a hop").not_after(base_time)
}

#[test]
fn over_three_days_nothing_lapses_while_all_are_up() {
    let mut sim = five();
    for slot in 1..5 {
        sim.announce(slot, &[nlri(&own(slot))], &route(slot, &[], &[]));
    }
    rest(&mut sim);
    for _ in 0..3 {
        pass(&mut sim, DAY, |sim| {
            for slot in 0..5 {
                let others = (1..5).filter(|owner| *owner != slot);
                assert!(others.clone().all(|owner| has(sim, slot, &own(owner))), "member {slot} at {}", unix(sim));
            }
        });
        for (slot, owner) in [(2, 1), (3, 2), (4, 3), (1, 4)] {
            assert_eq!(verdicts(&mut sim, slot, &own(owner))[&owner], Some(VerdictKind::Valid));
        }
    }
    // What lapses is told, so nothing did, nor was anything else amiss.
    assert!(amiss(&sim).is_empty(), "{:?}", amiss(&sim));
    for slot in 1..5 {
        // Each time between half and three quarters of a day after the last.
        let renewed =
            sim.member(slot).and_then(|member| member.attestation_status()).expect("it attests").counts.renewed;
        assert!((4..=6).contains(&renewed), "member {slot} signed again {renewed} times");
    }
}

#[test]
fn what_a_member_signed_that_stays_away_lapses_at_its_time_and_not_before() {
    let mut sim = started(Setup { stale: 30 * DAY, ..setup(5, &[1, 2, 3, 4]) });
    sim.announce(1, &[nlri(&own(1))], &route(1, &[], &[]));
    rest(&mut sim);
    let lapses = ends(&sim, 3, &own(1), 0) + UNCERTAINTY + 1;
    sim.kill(Node::Member(1));
    let left = Duration::from_secs(lapses - unix(&sim) + 60);
    pass(&mut sim, left, |sim| {
        for slot in 2..5 {
            let is_there = has(sim, slot, &own(1));
            assert!(is_there || unix(sim) >= lapses, "member {slot}, {} s early", lapses - unix(sim));
            assert!(!is_there || unix(sim) <= lapses, "member {slot}, {} s late", unix(sim) - lapses);
        }
    });
    assert_eq!(verdicts(&mut sim, 3, &own(1))[&1], Some(VerdictKind::Expired));
    assert_eq!(announcer(&sim, LEGACY, &own(1)), Some(member_asn(1)), "it looks at nothing");
    let suspects = sim.attestation_events.iter();
    let suspects = suspects.filter(|(_, event)| {
        matches!(
            event,
            MemberAttestationEvent::Route { event: RouteEvent::Verdict { class: VerdictClass::Expired, .. }, .. }
        )
    });
    assert_eq!(suspects.count(), 3, "each member that validates is told once");
    sim.start(Node::Member(1));
    rest(&mut sim);
    assert_eq!(verdicts(&mut sim, 3, &own(1))[&1], Some(VerdictKind::Valid), "it is back");
}

#[test]
fn a_customers_chain_that_ends_is_withdrawn_at_its_time_and_announced_again_when_it_is_renewed() {
    let mut sim = five();
    sim.announce(1, &[nlri(BEHIND)], &customers_route(1, BEHIND, unix(&sim)));
    rest(&mut sim);
    let lapses = ends(&sim, 3, BEHIND, 0) + UNCERTAINTY + 1;
    let left = Duration::from_secs(lapses - unix(&sim) + 60);
    pass(&mut sim, left, |sim| {
        for slot in [LEGACY, 2, 3, 4] {
            let is_there = has(sim, slot, BEHIND);
            assert!(is_there || unix(sim) >= lapses, "member {slot}, {} s early", lapses - unix(sim));
            assert!(!is_there || unix(sim) <= lapses + 1, "member {slot}, {} s late", unix(sim) - lapses);
        }
    });
    // The member's own hop was signed again, that of the customer is not its to sign.
    assert!(sim.member(1).and_then(|member| member.attestation_status()).expect("it attests").counts.renewed >= 2);
    let refused = |(slot, event): &(u32, MemberAttestationEvent)| {
        *slot == 1
            && matches!(
                event,
                MemberAttestationEvent::Route { event: RouteEvent::Refused { class: VerdictClass::Expired, .. }, .. }
            )
    };
    assert_eq!(sim.attestation_events.iter().filter(|event| refused(event)).count(), 1);
    sim.announce(1, &[nlri(BEHIND)], &customers_route(1, BEHIND, unix(&sim)));
    rest(&mut sim);
    assert_eq!(verdicts(&mut sim, 3, BEHIND)[&1], Some(VerdictKind::Valid));
    assert!(sim.table(LEGACY)[&p(BEHIND)].as_path().asns().any(|asn| asn.0 == CUSTOMER));
}

#[test]
fn a_replaced_route_stays_two_minutes_while_its_successor_is_validated_however_often_it_is_replaced() {
    let mut sim = five();
    sim.announce(1, &[nlri(&own(1))], &route(1, &[], &[]));
    rest(&mut sim);
    sim.hold_jobs(&[3]);
    let first = sim.table(3)[&p(&own(1))].clone();
    let begin = sim.now().instant;
    for prepends in 1..=6 {
        sim.announce(1, &[nlri(&own(1))], &route(1, &vec![member_asn(1).0; prepends], &[]));
        pass(&mut sim, Duration::from_secs(25), |sim| {
            let waited = sim.now().instant.since(begin).as_secs();
            let table = &sim.tables[&3];
            match table.get(&p(&own(1))) {
                Some(route) => assert!(*route == first && waited < 122, "after {waited} s"),
                None => assert!(waited >= 120, "after {waited} s"),
            }
        });
        assert_eq!(sim.table(4)[&p(&own(1))].as_path().asns().count(), 1 + prepends, "nobody else waits");
    }
    assert_eq!(announcer(&sim, 3, &own(1)), None);
    sim.release_jobs();
    rest(&mut sim);
    assert_eq!(sim.table(3)[&p(&own(1))].as_path().asns().count(), 7);
}
