//! ICING: packets that prove consent to, and compliance with, their whole path.
//!
//! M. Miller: "PoComON: A POLicy-COMpliant Overlay Network", 2011, section 2 ("the paper"), with its symbols: proofs of
//! consent `PoC_j`, path authenticators `A_j`, proofs of provenance `PoP_ij`, verifiers `V_j`. [`header`] decodes and
//! encodes, [`mint`] is what consent servers and senders compute, [`verify`] is what a node checks, and [`proof`] is what both
//! compute proofs over. `docs/wire/icing.md` says where every bit lies.

pub mod header;
pub mod mint;
pub mod proof;
pub mod verify;
