//! Benchmarks that need threads, sockets or the simulator; what they run is in `wayleave-papers`.

pub mod circuits;
pub mod exchange;
pub mod exchange_join;
pub mod exchange_peers;
pub mod exchange_restart;
pub mod exchange_stress;
pub mod exchange_trace;
pub mod forward;
pub mod parties_trace;

pub use exchange_trace::exchange_trace;
