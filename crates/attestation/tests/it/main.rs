//! The integration tests of the crate, in one binary: the helpers are compiled once, and the crate is linked once.

mod common;

mod aggregates;
mod attacks;
mod bounds;
mod burst;
mod chains;
mod ed25519_rule;
mod encoding;
mod hbs_vectors;
mod member_attestation;
mod memory;
mod mutations;
mod parsers;
mod pki;
mod proxy_attest;
mod proxy_counts;
mod proxy_faults;
mod proxy_granted;
mod proxy_pair;
mod proxy_shared_tree;
mod proxy_sizes;
mod suite_p256;
mod suite_rsa;
mod vectors;
mod verification;
