//! Bidirectional Forwarding Detection in asynchronous mode (RFC 5880): whether the router at the other end of a link is up.
//!
//! The driver carries the control packets; SCION routers send them in SCION packets (`docs/wire/scion.md`).

mod packet;
mod session;

pub use packet::{ControlPacket, Diagnostic, Malformed, State};
pub use session::{Config, Output, Session};
