//! A member's proxy as one machine: the route server's member and, where it is configured, the attestation of paths.
//!
//! `wayleave run member` and the laboratory's simulation run this machine; neither connects the two halves itself.

mod machine;
mod router;
mod why;

pub use machine::{AttestationConfig, Input, MemberProxy, Output};
pub use router::router_session;
pub use why::{Chain, Why, WhyRoute};
