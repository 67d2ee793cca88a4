//! Random changes, joins, leaves and kills against the plaintext route server.

#![allow(clippy::disallowed_methods, reason = "a test may read the environment")]

use std::time::Duration;

use crate::common::Exchange;
use wayleave_lab::sim::Setup;

/// `count` seeds from `first`; `make soak` asks for more of them by WAYLEAVE_SIM_FACTOR.
fn seeds(first: u64, count: u64) -> std::ops::Range<u64> {
    let factor = std::env::var("WAYLEAVE_SIM_FACTOR").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    first..first + count * factor
}

#[test]
fn tables_equal_the_reference_after_random_changes() {
    for seed in seeds(0, 20) {
        let mut exchange = Exchange::new(Setup { members: 5, seed, ..Setup::default() });
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

#[test]
fn tables_equal_the_reference_while_members_join_and_leave() {
    for seed in seeds(100_000, 20) {
        let mut exchange = Exchange::new(Setup { members: 4, seed, ..Setup::default() });
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

#[test]
fn a_tick_longer_than_zero_changes_no_table() {
    for seed in seeds(200_000, 6) {
        let tick = Duration::from_millis(50);
        let mut exchange = Exchange::new(Setup { members: 5, seed, tick, ..Setup::default() });
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

#[test]
fn kills_lose_resurrect_and_forbid_nothing() {
    for seed in seeds(300_000, 10) {
        eprintln!("seed {seed}"); // shown if the test fails
        let mut exchange = Exchange::new(Setup { members: 5, seed, ..Setup::default() });
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
