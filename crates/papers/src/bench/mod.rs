//! The work of the benchmarks. It has no clock of its own: the caller's closure returns the time.

pub mod attestation;
pub mod circuits;
pub mod codec;
pub mod direct;
pub mod exchange_trace;
pub mod forward;
pub mod granularity;
pub mod icing;
pub mod measures;
pub mod platypus;
pub mod slots;
pub mod sustained;
