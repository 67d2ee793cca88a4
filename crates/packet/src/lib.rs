//! Verified packets: for each format its header, what is minted into it, and what a hop verifies.
//!
//! Every format is written down bit by bit in `docs/wire/`, with vectors in `test-data/wire/`.

pub mod icing;
pub mod platypus;
pub mod scion;
