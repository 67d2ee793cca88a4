//! The wire of "Source-Based Path Selection: The Data Plane Perspective" (CFI 2015): opaque fields of eight octets.
//!
//! Kept for the benchmark and for the tests that show its weaknesses: a 32-bit MAC without expiry, and a pointer and a
//! direction that nothing protects. The paper does not give the bits of the common header; ours are in
//! `docs/wire/scion-2015.md`.

mod header;
mod lanes;
mod mint;
mod switch;
mod verify;

pub use header::{FIXED_LEN, HEADER_MAX, Header, HeaderError, Layout, MAX_FIELDS, OPAQUE_LEN, OpaqueField};
pub use mint::{HalfPath, OpaqueKey, join};
pub use switch::Switch;
pub use verify::{Step, mac_input, step};
