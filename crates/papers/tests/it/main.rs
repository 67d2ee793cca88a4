//! The tests of paper suites, baselines and benchmarks, in one binary.

mod allocations;
mod attacks_paper;
mod attacks_trees;
mod baselines;
mod bgpsec;
mod expiry;
mod kc_x_chains;
mod paper_rsa;
mod paths;
mod platypus;
mod random;
mod scion_2015;
mod vectors;
