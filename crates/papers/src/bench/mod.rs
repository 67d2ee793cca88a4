//! What the benchmarks run, without a clock of its own: the caller's closure says what time it is.

pub mod attestation;
pub mod circuits;
pub mod codec;
pub mod direct;
pub mod forward;
pub mod icing;
pub mod measures;
pub mod platypus;
pub mod slots;
