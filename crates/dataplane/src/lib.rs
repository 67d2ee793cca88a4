//! Verified forwarding: the routers of all formats, the stamper, the gateway, and what they share.
//!
//! A router is a plain function over a burst of packets in place, which returns an action for each. It neither allocates nor
//! locks, and takes no branch on a secret. For each format, `router` decides what happens to a packet that
//! [`wayleave_packet`] verifies, and `lanes` is its vector path: an optimisation that could be deleted.

pub mod answers;
pub mod bfd;
pub mod frame;
pub mod gateway;
pub mod icing;
pub mod lanes;
pub mod limit;
pub mod link;
mod noise;
pub mod platypus;
pub mod replay;
pub mod scion;
pub mod stamper;
pub mod tally;
