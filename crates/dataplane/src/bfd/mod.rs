//! Bidirectional Forwarding Detection in asynchronous mode (RFC 5880): whether the router at the other end of a link lives.
//!
//! What carries the control packets is the driver's affair; SCION routers send them in SCION packets (`docs/wire/scion.md`).

mod packet;
mod session;

pub use packet::{ControlPacket, Diagnostic, Malformed, State};
pub use session::{Config, Output, Session};
