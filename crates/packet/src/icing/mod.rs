//! ICING: packets that prove consent to, and compliance with, their whole path.
//!
//! M. Miller: "PoComON: A POLicy-COMpliant Overlay Network", 2011, section 2 ("the paper"), with its symbols: proofs of
//! consent `PoC_j`, path authenticators `A_j`, proofs of provenance `PoP_ij`, verifiers `V_j`. [`header`] decodes and
//! encodes, [`mint`] is what consent servers and senders compute, [`verify`] is what a node checks. The wire is written
//! down bit by bit in `docs/wire/icing.md`.

pub mod header;
pub mod mint;
mod proof;
pub mod verify;
