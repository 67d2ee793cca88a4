//! What members of an exchange share: the work of looking at what changed, and the memory in which objects wait.
//!
//! SIX, frames that change nothing: a thousand rankings for which nobody waits: batches and rounds are not looked at for them.
//! SIX, waiting memory: three hostile members fill it: they are refused, honest ones are not, and their routes arrive.

use std::time::Duration;

use wayleave_crypto::secret::Seed;
use wayleave_lab::sim::bad::Forger;
use wayleave_lab::sim::{Node, PARTIES, Setup, Sim};
use wayleave_route_server::frames::{FromMember, Refusal};
use wayleave_route_server::party::{Budget, PartyEvent};

use crate::common::{LIMIT, nlri, route};

const TICK: Duration = Duration::from_millis(50);

/// Members that the test plays, from this slot on, with sessions that have begun.
fn play(sim: &mut Sim, slots: std::ops::Range<u32>) -> Vec<(u32, Forger)> {
    slots.clone().for_each(|slot| sim.play_member(slot));
    sim.run_for(Duration::from_millis(10));
    let mut forgers: Vec<(u32, Forger)> = slots.map(|slot| (slot, Forger::new(1, slot))).collect();
    forgers.iter_mut().for_each(|(_, forger)| _ = forger.greet(sim, true));
    sim.run_for(Duration::from_millis(300));
    forgers
}

#[test]
fn frames_that_change_nothing_are_answered_for_and_nothing_else_is_looked_at() {
    const FRAMES: u64 = 1_000;
    let mut sim = Sim::new(Setup { members: 3, tick: TICK, ..Setup::default() });
    assert!(sim.settle(LIMIT));
    play(&mut sim, 2..3);
    let advanced = |sim: &Sim| PARTIES.map(|party| sim.party(party).expect("it runs").counters().advanced);
    let before = advanced(&sim);
    for frame in 0..FRAMES {
        let (seq, row) = (frame % 3, [1; 16]);
        let one = FromMember::RankOne { seq, row, seed: Seed::new([1; 32]) };
        let two = FromMember::RankTwo { seq, row, share: Vec::new() };
        for (party, frame) in PARTIES.into_iter().zip([one, two]) {
            assert!(sim.inject(Node::Member(2), party, &frame.encode()), "{:?}", sim.closed);
        }
        sim.run_for(Duration::from_micros(100));
    }
    assert!(sim.closed.is_empty(), "the link stays: {:?}", sim.closed);
    let looked = [0, 1].map(|party| advanced(&sim)[party] - before[party]);
    eprintln!("{FRAMES} useless frames: batches and rounds are looked at {looked:?} times");
    assert!(looked.iter().all(|looked| *looked < FRAMES / 10), "{looked:?}");
}

#[test]
fn all_members_objects_wait_in_one_memory_and_who_has_the_most_is_refused() {
    const HONEST: u32 = 3;
    const MOST: usize = 40 << 20;
    let budget = Budget { objects: 1_000_000, octets: 2_000_000_000, ..Budget::default() };
    let setup = Setup { members: 6, tick: TICK, budget, max_blob: 1 << 17, max_waiting: MOST, ..Setup::default() };
    let mut sim = Sim::new(setup);
    assert!(sim.settle(LIMIT));
    let mut forgers = play(&mut sim, HONEST..6);
    let large: Vec<String> = (0..4_000).map(|n| format!("64999:{n}:1")).collect();
    let large: Vec<&str> = large.iter().map(String::as_str).collect();
    // Never to party 2, 64 KiB each.
    let (mut most, mut announced) = (0, Vec::new());
    for i in 0..300u32 {
        for (slot, forger) in &mut forgers {
            let prefix = nlri(&format!("{}.{}.{}.0/24", 40 + *slot, i / 250, i % 250));
            let draft = forger.draft(&sim, &[prefix], &route(*slot, &[64500], &large));
            let object = forger.seal(&draft);
            assert!(sim.inject(Node::Member(*slot), PARTIES[0], &object.to_one()), "{:?}", sim.closed);
        }
        if i % 30 == 29 {
            let of = i / 30 % HONEST;
            let prefix = nlri(&format!("20.{of}.{}.0/24", i % 250));
            sim.announce(of, &[prefix], &route(of, &[64500], &[]));
            announced.push((of, prefix));
        }
        sim.run_for(Duration::from_millis(1));
        most = most.max(sim.party(PARTIES[0]).expect("it runs").status().octets_waiting_in_all);
    }
    let refused = |of: u32| {
        let of = |event: &PartyEvent| matches!(event, PartyEvent::Refused { slot, reason: Refusal::Busy, .. } if *slot == of);
        sim.party_events.iter().filter(|(_, event)| of(event)).count()
    };
    let refused: Vec<usize> = (0..6).map(refused).collect();
    eprintln!("at most {most} octets wait where {MOST} may; refused, by slot: {refused:?}");
    assert!((MOST / 2..=MOST).contains(&most), "{most}");
    assert!(refused[..3].iter().all(|refused| *refused == 0), "{refused:?}");
    assert!(refused[3..].iter().all(|refused| *refused > 100), "{refused:?}");
    sim.run_for(Duration::from_millis(500));
    for (of, prefix) in announced {
        assert!(sim.tables[&((of + 1) % HONEST)].contains_key(&prefix.prefix), "{of}: {prefix:?}");
    }
}
