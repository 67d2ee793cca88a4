//! A route that is withdrawn, replaced or hidden at once after it was announced: for how long those who were permitted to have it
//! see it, also when a process is killed in between. The bounds are the contract of `docs/protocol.md`, "Withdrawals".

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use wayleave_bgp::{Attributes, Nlri};
use wayleave_core::Instant;
use wayleave_lab::sim::costs::Costs;
use wayleave_lab::sim::{Node, PARTIES, Setup, Sim};
use wayleave_route_server::frames::{PartyFrame, Step};
use wayleave_route_server::object::ExportMode;

use crate::common::{LIMIT, in_both_modes, nlri, route};

const ANNOUNCER: u32 = 0;
const RECEIVERS: std::ops::Range<u32> = 1..4;
const TICK: Duration = Duration::from_millis(50);
/// Two batches, each of which waits for its tick, for the rankings of the batch before, and for both parties.
const BOUND: Duration = Duration::from_millis(2 * 50 + 2 * 50 + 20);

fn prefix() -> Nlri {
    nlri("192.0.2.0/24")
}

/// Four members at rest, one of which announces a worse route to the prefix.
fn exchange(export: ExportMode, seed: u64) -> Sim {
    let mut sim = Sim::new(Setup { tick: TICK, seed, export, costs: Some(Costs::default()), ..Setup::default() });
    assert!(sim.settle(LIMIT));
    sim.announce(3, &[prefix()], &worse());
    assert!(sim.settle(LIMIT));
    sim
}

fn worse() -> Attributes {
    route(3, &[64500, 64501, 64502, 64503], &[])
}

/// What is seen of one version.
#[derive(Default)]
struct Watch {
    /// When each receiver last had it.
    last: BTreeMap<u32, Instant>,
    /// Receivers that had it and then had not.
    lost: BTreeMap<u32, Instant>,
}

impl Watch {
    /// Looks at every table. A version that a receiver has lost may not come back.
    fn look(&mut self, sim: &Sim, version: &Attributes) {
        let now = sim.now().instant;
        for slot in RECEIVERS {
            let has = sim.tables.get(&slot).and_then(|table| table.get(&prefix().prefix)) == Some(version);
            match (has, self.last.contains_key(&slot)) {
                (true, _) => {
                    assert!(!self.lost.contains_key(&slot), "member {slot} has the version again");
                    self.last.insert(slot, now);
                }
                (false, true) => {
                    self.lost.entry(slot).or_insert(now);
                }
                (false, false) => {}
            }
        }
    }

    /// Looks after each step, for so long.
    fn run(&mut self, sim: &mut Sim, version: &Attributes, time: Duration) {
        let until = sim.now().instant + time;
        while sim.now().instant < until {
            if !sim.step(until.since(sim.now().instant)) {
                break;
            }
            self.look(sim, version);
        }
    }

    /// For how long after `end` somebody had it.
    fn seen_after(&self, end: Instant) -> Duration {
        self.last.values().map(|at| at.since(end)).max().unwrap_or_default()
    }
}

/// How a version ends.
#[derive(Clone, Copy, Debug)]
enum End {
    Withdrawn,
    Replaced,
    HiddenFromAll,
}

impl End {
    const ALL: [Self; 3] = [Self::Withdrawn, Self::Replaced, Self::HiddenFromAll];

    fn apply(self, sim: &mut Sim) {
        match self {
            Self::Withdrawn => sim.withdraw(ANNOUNCER, &[prefix()]),
            Self::Replaced => sim.announce(ANNOUNCER, &[prefix()], &route(ANNOUNCER, &[64999], &[])),
            Self::HiddenFromAll => {
                sim.announce(ANNOUNCER, &[prefix()], &route(ANNOUNCER, &[64999], &["64496:0:0"]));
            }
        }
    }
}

/// Batches with objects of the announcer, as party 1 proposed them since the simulation records.
fn batches_of_announcer(sim: &mut Sim) -> BTreeSet<u64> {
    let recorded = sim.recording.take().expect("it records");
    let proposals = recorded.iter().filter(|frame| (frame.from, frame.to) == (PARTIES[0], PARTIES[1]));
    let of_announcer = |step: &Step| matches!(step, Step::Object { slot: ANNOUNCER, .. });
    proposals
        .filter_map(|frame| match PartyFrame::decode(&frame.bytes) {
            Ok(PartyFrame::Propose { seq, steps }) if steps.iter().any(of_announcer) => Some(seq),
            _ => None,
        })
        .collect()
}

in_both_modes!(what_ends_at_once_is_seen_for_a_batch_at_most_and_in_one_batch_by_nobody);
fn what_ends_at_once_is_seen_for_a_batch_at_most_and_in_one_batch_by_nobody(export: ExportMode) {
    let (mut seen, mut unseen) = (0, 0);
    for end in End::ALL {
        // The same instant, then later and later within two ticks.
        for (run, later) in (0..24).zip([0u64, 0, 1, 2, 5, 10, 20, 40, 60, 80, 100].into_iter().cycle()) {
            let mut sim = exchange(export, run);
            let version = route(ANNOUNCER, &[64600], &[]);
            let (mut watch, phase) = (Watch::default(), sim.choose(100));
            sim.run_for(Duration::from_millis(phase as u64));
            sim.recording = Some(Vec::new());
            sim.announce(ANNOUNCER, &[prefix()], &version);
            watch.run(&mut sim, &version, Duration::from_millis(later));
            let ended = sim.now().instant;
            end.apply(&mut sim);
            watch.run(&mut sim, &version, Duration::from_secs(3));
            let after = watch.seen_after(ended);
            assert!(after <= BOUND, "{end:?} after {later} ms: seen for {after:?} beyond its end");
            if batches_of_announcer(&mut sim).len() < 2 {
                assert!(watch.last.is_empty(), "{end:?} after {later} ms: seen though it ended in its batch");
                unseen += 1;
            }
            seen += usize::from(!after.is_zero());
            assert!(sim.settle(LIMIT));
            watch.look(&sim, &version);
            assert!(watch.last.keys().all(|slot| watch.lost.contains_key(slot)), "{end:?}: nobody has it in the end");
        }
    }
    assert!(seen > 10, "some of them were delivered before they ended: {seen}");
    assert!(unseen > 10, "some of them ended in the batch with which they came: {unseen}");
}

in_both_modes!(what_ends_while_a_process_is_killed_goes_once_all_are_connected_again_and_stays_away);
fn what_ends_while_a_process_is_killed_goes_once_all_are_connected_again_and_stays_away(export: ExportMode) {
    let nodes = [PARTIES[0], PARTIES[1], Node::Member(ANNOUNCER)];
    let down = Duration::from_millis(700);
    for end in End::ALL {
        for node in nodes {
            // At moments all over the two batches.
            for at in (0..120u64).step_by(if export == ExportMode::Direct { 10 } else { 30 }) {
                let mut sim = exchange(export, at);
                let version = route(ANNOUNCER, &[64600], &[]);
                let mut watch = Watch::default();
                sim.announce(ANNOUNCER, &[prefix()], &version);
                watch.run(&mut sim, &version, Duration::from_millis(at));
                end.apply(&mut sim);
                watch.run(&mut sim, &version, Duration::from_millis(at / 10));
                sim.kill(node);
                watch.run(&mut sim, &version, down);
                sim.start(node);
                let back = sim.now().instant;
                // As processes do, whoever lost a link connects again.
                for _ in 0..60 {
                    sim.connect_all();
                    watch.run(&mut sim, &version, Duration::from_millis(50));
                }
                let after = watch.seen_after(back);
                // Beside the two batches: links, everything again, and the announcer's router's table.
                let bound = BOUND + Duration::from_millis(400);
                assert!(
                    after <= bound,
                    "{end:?}, {node:?} killed after {at} ms: seen for {after:?} after all were back"
                );
                assert!(sim.settle(LIMIT));
                watch.look(&sim, &version);
                assert!(watch.last.keys().all(|slot| watch.lost.contains_key(slot)), "{end:?}, {node:?}, {at}");
            }
        }
    }
}
