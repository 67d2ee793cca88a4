//! Verified packets. Each format has three parts of one shape: `header` decodes and encodes, `mint` is what the control plane
//! and senders compute, and `verify` has a named check for each rule by which a hop accepts a packet.
//!
//! [`Path`] is what the control plane hands to gateways and stampers: it knows all three.
//!
//! This crate is the specification in code: scalar, total, and without state. How bursts of packets are processed fast is
//! the data plane's. `docs/wire/` says where every bit of a format lies, and `test-data/wire/` has test vectors.

pub mod icing;
mod path;
pub mod platypus;
pub mod scion;

pub use path::{Format, Hop, HopId, Label, MAX_LABELS, Path, PathError};
