//! The exchange in virtual time, real routers in network namespaces, and the dependencies between the crates.

mod common;

mod attribute_propagation;
mod bench_stopped;
mod crate_graph;
mod exchange;
mod exchange_attacks;
mod exchange_attested;
mod exchange_attested_days;
mod exchange_copies;
mod exchange_export;
mod exchange_flips;
mod exchange_frames;
mod exchange_full;
mod exchange_hostile;
mod exchange_lack;
mod exchange_leakage;
mod exchange_leaps;
mod exchange_limits;
mod exchange_links;
mod exchange_members;
mod exchange_new_members;
mod exchange_random;
mod exchange_recommendation;
mod exchange_rounds;
mod exchange_set_changes;
mod exchange_setup;
mod exchange_size;
mod exchange_slow;
mod exchange_speakers;
mod exchange_sync;
mod exchange_upgrade;
mod exchange_withdrawn;
mod layout;
mod real_routers;
mod site_routers;
