//! What a provider does with accounts and capabilities, for its commands and for its API alike.

pub mod billing;
pub mod invitations;
pub mod orders;
pub mod statements;
pub mod tree;

pub use crate::config::waypoints;
