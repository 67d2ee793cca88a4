//! A realm from nothing, by processes: its operator, path and consent servers, nodes that forward.

pub(crate) mod applications;
mod attacks;
mod blocked;
mod clocks;
mod exit;
mod failover;
mod gateways;
pub(crate) mod harness;
mod hostile;
mod insider;
mod join;
mod kills;
mod lists;
pub(crate) mod nat;
mod netcheck;
mod paths;
mod relay;
mod secrets;
mod servers;
mod versions;
mod world;
