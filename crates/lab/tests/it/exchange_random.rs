//! Random changes, joins, leaves and kills against the plaintext route server.
//!
//! SIX-01: random announcements, withdrawals, changes of policy, joins and leaves: each router's table equals a
//! plaintext route server's.
//! SIX-02: kills, lost links and older stores at random moments of virtual time: nothing is lost, resurrected or
//! forbidden.
//! SIX, who connects again: random changes with lost links, kills and older stores: every table is right, nothing comes
//! back.

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
                exchange.check();
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
