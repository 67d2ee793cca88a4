//! The integration tests of the crate, in one binary: the helpers are compiled once, and the crate is linked once.

mod common;

mod aggregates;
mod attacks;
mod bounds;
mod burst;
mod chain_model;
mod chains;
mod ed25519_rule;
mod encoding;
mod hbs_vectors;
mod hybrid;
mod manifests;
mod member_attestation;
mod memory;
mod mutations;
mod object_vectors;
mod parsers;
mod pki;
mod proxy_attest;
mod proxy_burst;
mod proxy_counts;
mod proxy_egress;
mod proxy_faults;
mod proxy_faulty_key;
mod proxy_granted;
mod proxy_pair;
mod proxy_sizes;
mod rollout;
mod suite_p256;
mod suite_rsa;
mod vectors;
mod verification;
