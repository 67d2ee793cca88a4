//! The paper's own suites and what their messages share: for the lab and the benchmarks only.
//!
//! They are kept as published, weaknesses included; the tests that break them are in `tests/attacks_paper.rs`.

pub mod hors;
pub mod mt;
pub mod raw;
pub mod rsa;
pub mod world;
