//! Platypus: round trips, a waypoint compared with a plain model, and attacks.

mod attacks;
mod delegation;
mod icmp;
mod model;
mod random;
mod reply;
mod round_trip;
mod vectors;
pub(crate) mod world;

/// How many random cases a test makes: `WAYLEAVE_PLATYPUS_CASES`, or `default`.
fn cases(default: u64) -> u64 {
    std::env::var("WAYLEAVE_PLATYPUS_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// How many packets the waypoint and its model are given.
fn packets(default: u64) -> u64 {
    std::env::var("WAYLEAVE_PLATYPUS_PACKETS").ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}
