//! The integration tests of the crate, in one binary.
#![allow(clippy::disallowed_methods, reason = "tests read their counts from the environment and their data from files")]

mod common;

mod capability;
mod capability_ends;
mod channel_vectors;
mod consent;
mod consent_client;
mod database;
mod folding;
mod frames;
mod holder;
mod insider;
mod invitations;
mod join;
mod leases;
mod lists;
mod node;
mod objects;
mod path_client;
mod path_server;
mod plain_question;
mod policy;
mod router_channel;
mod router_servers;
mod rows;
mod search;
mod tenure;
mod usage;
mod vectors;
