//! A realm from nothing, by processes: its operator, path and consent servers, nodes that forward.

mod attacks;
mod gateways;
mod harness;
mod join;
mod paths;
mod secrets;
