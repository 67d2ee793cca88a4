//! The private route server of an exchange: two parties that learn neither policies nor routes, and their members.
//!
//! [`party::Party`] is one of the two parties, [`member::Member`] is the route server's half of a member's proxy (the
//! crate `member` adds attestation); both are pure
//! [`Machine`](wayleave_core::Machine)s that speak the frames of [`frames`] about the objects of [`object`]. The paper is
//! SIXPACK (CoNEXT 2017); what differs from it is in `docs/departures.md`.

pub mod codecs;
pub mod competition;
pub mod credit;
pub mod data;
pub mod digests;
pub mod directory;
pub mod frames;
pub mod key_roles;
mod leaps;
mod lost;
pub mod member;
pub mod object;
mod object_buckets;
pub mod object_table;
pub mod oracle;
pub mod order;
pub mod party;
pub mod policy;
pub mod rng;
mod schedule;
pub mod shadow;
pub mod versions;
