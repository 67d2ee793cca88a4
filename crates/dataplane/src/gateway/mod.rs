//! The gateway: inner IP packets in, sealed and stamped ICING packets out, and back.
//!
//! `machine` ties the parts together: `inner`, `offload` and `coalesce` know IP packets as a TUN interface hands them over,
//! `policy` and `peer` choose paths and keep what is known of other gateways, `message` is what two gateways say
//! to each other (`docs/wire/gateway.md`). The machine asks for paths and proofs by its outputs and never waits for them.
//! Replies are packets of the answering gateway's own, over a path of its own with consents of its own.

mod coalesce;
mod counters;
mod errors;
mod flows;
mod inner;
pub mod internet;
mod keyed;
mod lane;
mod machine;
pub mod message;
pub mod offload;
mod peer;
mod policy;
pub mod proxy;
mod quality;
pub mod socks_datagram;
mod status;

pub use coalesce::Ready;
pub use counters::{Counters, Reason};
pub use flows::{FlowChange, LIMIT_FLOWS};
pub use lane::{PROBE, PROBE_IN_DOUBT};
pub use machine::{Config, Event, Gateway, Internet, LIMIT_PEERS, Member, Name, Output, Reload};
pub use peer::{
    LIMIT_PATHS, LIMIT_ROUTES, LIMIT_SESSIONS, LIMIT_WAITING, LIMIT_WAITING_OCTETS, LIVE, RouteState, Traffic,
    Unsealed, Volume,
};
pub use policy::{Choices, Order, PathPolicy};
pub use quality::{MOST_UNANSWERED, RETRIED};
pub use status::{PathStatus, PeerStatus, RouteStatus};
