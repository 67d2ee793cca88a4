//! Drivers: what stands between the pure machines and the world (sockets, TLS, files, clocks, signals).
//!
//! A machine never waits and never asks; a driver here waits for it. No protocol of Wayleave is decided in this crate.
#![allow(clippy::disallowed_methods, reason = "this crate is where clocks, files, sockets and threads live")]

pub mod bgp_tcp;
pub mod clock;
pub mod drive;
pub mod frames;
pub mod http;
pub mod huge_pages;
pub mod identity;
pub mod links;
pub mod logs;
pub mod packets;
mod refusals;
pub mod rpki;
pub mod signals;
pub mod store;
pub mod systemd;
pub mod tls;

pub use clock::Clock;
