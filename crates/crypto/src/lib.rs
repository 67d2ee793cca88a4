//! Secrets, hashes, encryption and signatures: the one place for cryptographic primitives.
//!
//! Each use of a primitive has its own label, `wayleave/<subject>/<purpose>/v1`. Randomness comes in as arguments.

pub mod commit;
pub mod dh;
pub mod gf128;
pub mod hash;
pub mod kdf;
pub mod lanes;
pub mod prg;
pub mod seal;
pub mod secret;
pub mod sha256_lanes;
pub mod sha256_packets;
pub mod sign;
pub mod signed;
pub mod tccr;
pub mod transpose;
