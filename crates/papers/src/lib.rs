//! What only reproduces the publications: paper suites and baselines, SCION of 2015, workloads, published points, plots.
//!
//! `wayleave-lab bench`, the laboratory's paper profiles and tests use it; no product crate depends on it.

pub mod baseline;
pub mod bench;
pub mod dir24;
mod ipv4;
pub mod kc_x;
pub mod platypus;
pub mod plot;
pub mod report;
pub mod scheme;
pub mod scion_2015;
pub mod standard;
