//! The wire of "Source-Based Path Selection: The Data Plane Perspective" (CFI 2015): opaque fields of eight octets.
//!
//! Paper profile, for the benchmark and the tests that show its weakness: a 32-bit MAC without expiry, a pointer and a
//! direction that nothing protects. The paper's figure gives no bits of the common part; ours are in
//! `docs/wire/scion-2015.md`.

mod header;
mod mint;
mod verify;

pub use header::{FIXED_LEN, HEADER_MAX, Header, HeaderError, Layout, MAX_FIELDS, OPAQUE_LEN, OpaqueField};
pub use mint::{HalfPath, OpaqueKey, join};
pub use verify::{Step, mac_input, step};
