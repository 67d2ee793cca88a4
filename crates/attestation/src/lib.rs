//! Attestation of AS paths (KC-x): chains of keys, the suites that sign them, validation, and the machines that attest
//! in BGP.
//!
//! The origin signs with a key that a trust anchor vouches for; each hop authorises the key of the next; a verifier
//! needs only the origin's key, and that of an AS that re-anchors after a gap (paper section III).
//!
//! Pure: no clock, socket, file, thread or randomness of its own. Seeds come in as arguments.

pub mod burst;
pub mod cache;
pub mod chain;
mod clock;
pub mod clock_doubt;
mod conclude;
pub mod grant;
pub mod hash;
pub mod leaf;
pub mod member;
pub mod path;
pub mod pipeline;
pub mod pki;
pub mod proxy;
pub mod report;
pub mod sign;
pub mod suite;
pub mod validate;

pub use suite::{Claim, KeyRefused, SignError, Suite, SuiteId, SuiteKey};
