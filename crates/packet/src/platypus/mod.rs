//! Platypus: source routes that carry proof of who pays and who agreed.
//!
//! B. Raghavan, A. C. Snoeren: "A System for Authenticated Policy-Compliant Routing", SIGCOMM 2004 ("the paper").
//! [`header`] decodes and encodes, [`mint`] is what key servers, principals and stampers compute, [`verify`] is what a
//! waypoint checks. The wire is written down bit by bit in `docs/wire/platypus.md`.

pub mod header;
pub mod mint;
pub mod revocation;
pub mod sources;
pub mod verify;
