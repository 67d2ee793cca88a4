//! Route objects and policies, and what receivers of both make of them.
#![allow(clippy::disallowed_methods, reason = "tests write their vectors if the environment says so")]

mod common;

mod directory;
mod frame_vectors;
mod key_roles;
mod objects;
mod policy_communities;
mod policy_directory;
mod policy_forward;
mod policy_oracle;
mod policy_ranking;
mod policy_rules;
mod policy_treatments;
mod policy_validate;
mod profile;
mod rejections;
mod stores;
mod two_pairs;
mod vectors;
