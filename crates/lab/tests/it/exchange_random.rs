//! Random changes, joins, leaves and kills against the plaintext route server.

#![allow(clippy::disallowed_methods, reason = "a test may read the environment")]

use std::time::Duration;

use crate::common::{Exchange, in_both_modes};
use wayleave_lab::sim::{PARTIES, Setup};
use wayleave_route_server::object::ExportMode;

/// `count` seeds from `first`; `make soak` asks for more of them by WAYLEAVE_SIM_FACTOR.
fn seeds(first: u64, count: u64) -> std::ops::Range<u64> {
    let factor = std::env::var("WAYLEAVE_SIM_FACTOR").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    first..first + count * factor
}

fn dbg(exchange: &mut Exchange) {
    use wayleave_lab::sim::Node;
    use wayleave_route_server::frames::*;
    assert!(exchange.sim.settle(Duration::from_secs(3600)));
    let want = exchange.oracle.table(1);
    let have = exchange.sim.table(1).clone();
    let bad: Vec<_> = want.iter().filter(|(p, (_, a))| have.get(*p) != Some(a)).map(|(p, _)| *p).collect();
    let Some(bad) = bad.first().copied() else { return };
    let node = Node::Member(1);
    let sh = |h: &wayleave_route_server::object::Handle| format!("{:02x}{:02x}", h.0[0], h.0[1]);
    let sc = |c: &[Candidate]| c.iter().map(|(h, i)| format!("{}.{i}", sh(h))).collect::<Vec<_>>().join(",");
    for f in exchange.sim.recording.take().unwrap() {
        if f.from == PARTIES[0] && f.to == node {
            match ToMember::decode(&f.bytes) {
                Ok(ToMember::Tick(t)) => eprintln!(
                    "tick {} rank {} slice {:?} dead {} gone {:?} deliver {:?} inst {:?}",
                    t.seq,
                    t.rank,
                    t.slice.as_ref().map(|s| (
                        s.begins.as_ref().map(|d| (
                            format!("{:?}", d.since),
                            d.is_nothing(),
                            *d == wayleave_route_server::digests::Differs::EVERYTHING
                        )),
                        s.ends.is_some()
                    )),
                    sc(&t.dead),
                    t.gone.iter().map(sh).collect::<Vec<_>>(),
                    t.deliver.iter().map(|d| (sh(&d.handle), d.dead.clone())).collect::<Vec<_>>(),
                    t.instances.iter().map(|i| sc(i)).collect::<Vec<_>>()
                ),
                Ok(ToMember::Welcome { epoch, .. }) => eprintln!("welcome {epoch}"),
                Ok(ToMember::Outcome { seq, first, share }) => eprintln!("outcome {seq} {first} {}", share.len()),
                Ok(o) => eprintln!("p1 {}", format!("{o:?}").chars().take(60).collect::<String>()),
                _ => {}
            }
        }
        if f.from == node && f.to == PARTIES[0] {
            match FromMember::decode(&f.bytes) {
                Ok(FromMember::Holds { seq, through, epoch, .. }) => {
                    eprintln!("  holds {seq} {through:?} epoch {epoch}")
                }
                Ok(FromMember::Buckets { seq, through, epoch, .. }) => {
                    eprintln!("  buckets {seq} {through:?} epoch {epoch}")
                }
                Ok(FromMember::Credit { .. }) => {}
                Ok(_) => eprintln!("  m kind {}", f.bytes[0]),
                _ => {}
            }
        }
    }
    eprintln!("BAD {bad}: {:?}", exchange.sim.member(1).map(|m| format!("{:?}", m.why(bad))));
    eprintln!("{}", exchange.describe());
    let evs: Vec<_> = exchange.sim.member_events.iter().filter(|(s, _)| *s == 1).rev().take(20).collect();
    eprintln!("EV {evs:?}");
    let evs: Vec<_> = exchange.sim.party_events.iter().rev().take(30).collect();
    eprintln!("PEV {evs:?}");
}

in_both_modes!(tables_equal_the_reference_after_random_changes);
fn tables_equal_the_reference_after_random_changes(export: ExportMode) {
    for seed in seeds(0, 20) {
        let mut exchange = Exchange::new(Setup { members: 5, seed, export, ..Setup::default() });
        for _ in 0..40 {
            exchange.random_change(false);
            let steps = exchange.sim.choose(60);
            for _ in 0..steps {
                exchange.sim.step(Duration::from_secs(5));
            }
            if exchange.sim.choose(4) == 0 {
                exchange.check();
            }
        }
        exchange.check();
    }
}

in_both_modes!(tables_equal_the_reference_while_members_join_and_leave);
fn tables_equal_the_reference_while_members_join_and_leave(export: ExportMode) {
    for seed in seeds(100_000, 20) {
        let mut exchange = Exchange::new(Setup { members: 4, seed, export, ..Setup::default() });
        for _ in 0..40 {
            exchange.random_change(true);
            let steps = exchange.sim.choose(60);
            for _ in 0..steps {
                exchange.sim.step(Duration::from_secs(5));
            }
        }
        exchange.check();
    }
}

in_both_modes!(a_tick_longer_than_zero_changes_no_table);
fn a_tick_longer_than_zero_changes_no_table(export: ExportMode) {
    for seed in seeds(200_000, 6) {
        let tick = Duration::from_millis(50);
        let mut exchange = Exchange::new(Setup { members: 5, seed, tick, export, ..Setup::default() });
        for _ in 0..40 {
            exchange.random_change(true);
            let steps = exchange.sim.choose(100);
            for _ in 0..steps {
                exchange.sim.step(Duration::from_secs(5));
            }
        }
        exchange.check();
    }
}

in_both_modes!(lost_links_and_older_stores_lose_resurrect_and_forbid_nothing);
fn lost_links_and_older_stores_lose_resurrect_and_forbid_nothing(export: ExportMode) {
    for seed in seeds(400_000, 10) {
        eprintln!("seed {seed}"); // shown if the test fails
        let tick = Duration::from_millis(if seed % 2 == 0 { 0 } else { 50 });
        let mut exchange = Exchange::new(Setup { members: 5, seed, tick, export, ..Setup::default() });
        if std::env::var("DBG").is_ok_and(|v| v != seed.to_string()) {
            continue;
        }
        exchange.sim.recording = Some(Vec::new());
        let mut older = PARTIES.map(|party| exchange.sim.store(party).clone());
        for round in 0..40 {
            exchange.random_change(round % 4 == 0);
            let slots: Vec<u32> = exchange.sim.tables.keys().copied().collect();
            match exchange.sim.choose(8) {
                0..=3 => {
                    let slot = slots[exchange.sim.choose(slots.len())];
                    exchange.sim.cut_member(slot);
                }
                4 => drop(exchange.kill_one()),
                5 => exchange.sim.cut_parties(),
                6 => {
                    let number = exchange.sim.choose(2);
                    older[number] = exchange.sim.store(PARTIES[number]).clone();
                }
                _ => {
                    let number = exchange.sim.choose(2);
                    exchange.sim.kill(PARTIES[number]);
                    *exchange.sim.store(PARTIES[number]) = older[number].clone();
                    exchange.sim.start(PARTIES[number]);
                }
            }
            let steps = exchange.sim.choose(120);
            for _ in 0..steps {
                exchange.sim.step(Duration::from_secs(5));
            }
            if exchange.sim.choose(3) == 0 {
                exchange.sim.connect_all();
            }
            if round % 5 == 4 {
                dbg(&mut exchange);
                exchange.check();
                exchange.sim.recording = Some(Vec::new());
            }
        }
        exchange.check();
    }
}

in_both_modes!(kills_lose_resurrect_and_forbid_nothing);
fn kills_lose_resurrect_and_forbid_nothing(export: ExportMode) {
    for seed in seeds(300_000, 10) {
        eprintln!("seed {seed}"); // shown if the test fails
        let mut exchange = Exchange::new(Setup { members: 5, seed, export, ..Setup::default() });
        for round in 0..30 {
            exchange.random_change(round % 3 == 0);
            let steps = exchange.sim.choose(80);
            for _ in 0..steps {
                exchange.sim.step(Duration::from_secs(5));
            }
            exchange.kill_one();
            if round % 5 == 4 {
                exchange.check();
            }
        }
        exchange.check();
    }
}
