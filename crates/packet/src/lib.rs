//! Verified packets: Platypus, SCION and ICING headers, minting and verification.

pub mod platypus;
