//! The router, the stamper and the gateway: verified forwarding over bursts of packets.
//!
//! A forwarding path is a plain function over a burst: packets in place, an action for each. It neither allocates nor
//! locks, and takes no branch on a secret.

pub mod bfd;
pub mod counters;
pub mod frame;
pub mod icing;
pub mod limit;
pub mod platypus;
pub mod replay;
pub mod scion;
pub mod stamper;
