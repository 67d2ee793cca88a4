//! Drivers: the I/O of the pure machines (sockets, TLS, files, clocks, signals).
//!
//! A machine does no I/O and never waits; a driver does both for it. No protocol of Wayleave is decided in this crate.
#![allow(clippy::disallowed_methods, reason = "this crate does the I/O: clocks, files, sockets and threads")]

pub mod api_tls;
pub mod bgp_tcp;
pub mod clock;
pub mod connection_slots;
pub mod drive;
pub mod ending;
pub mod faults;
pub mod folder_watch;
pub mod frames;
pub mod http;
pub mod https;
pub mod huge_pages;
pub mod identity;
pub mod inherited;
pub mod kernel_clock;
pub mod links;
pub mod log_limit;
pub mod logs;
pub mod node_tls;
pub mod packets;
mod peer_check;
pub mod process_metrics;
mod refusals;
pub mod resolved;
pub mod routes;
pub mod rpki;
pub mod signals;
pub mod starts;
pub mod store;
pub mod systemd;
pub mod tls;

pub use clock::Clock;
