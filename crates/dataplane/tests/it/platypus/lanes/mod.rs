//! The vector paths of Platypus: their results are those of the plain code in `packet`.

mod alike;
mod burst;
#[path = "../../../../../packet/tests/it/platypus/random.rs"]
mod random;
mod stamp;
#[allow(dead_code, reason = "shared with the tests of packet, which use all of it")]
#[path = "../../../../../packet/tests/it/platypus/world.rs"]
mod world;

use crate::common::times;

/// How many random cases a test makes: `WAYLEAVE_PLATYPUS_CASES`, or `default`.
fn cases(default: u64) -> u64 {
    times("WAYLEAVE_PLATYPUS_CASES", default as usize) as u64
}

/// How many packets the waypoint and its model are given.
fn packets(default: u64) -> u64 {
    times("WAYLEAVE_PLATYPUS_PACKETS", default as usize) as u64
}
