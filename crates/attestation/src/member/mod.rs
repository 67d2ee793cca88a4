//! Attestation beside a member of a route server: what the member's router announces is signed for all members at once,
//! what other members announce is validated when the member asks for it.
//!
//! At an exchange one sealed route serves all members, and nothing in it may depend on who can open it. So the hop is
//! signed over a tree of all members in the order of their directory, exported or not, and each receiver computes its
//! own opening.

mod directories;
mod event;
mod machine;
mod received;
mod status;

pub use event::{Finding, Input, MOST_MEMORY, MemberAttestationConfig, MemberAttestationEvent, Output, RouteId};
pub use machine::MemberAttestation;
pub use status::{Explained, SentRoute, Status};
