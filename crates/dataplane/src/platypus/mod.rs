//! Platypus: the router, its state beyond single packets, and the vector path.

pub mod account;
mod account_shares;
mod delivery;
mod foreign;
pub mod journal;
pub mod lanes;
mod mix_hasher;
pub mod outer;
mod payers;
pub mod record;
pub mod revocation;
mod router;
pub mod sources;
mod totals;

pub use foreign::{ForeignWaypoint, MOST_OF_PRINCIPAL};
pub use payers::{MOST_PAYERS, PayerCounters};
pub use router::{Action, Config, Counters, Forwarding, Reason, ReplayPolicy, Router};
