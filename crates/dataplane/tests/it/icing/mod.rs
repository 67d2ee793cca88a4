//! ICING from senders through routers to receivers.

mod flood;
mod limits;
mod model;
pub mod network;
mod provenance;
mod random;
mod reports;
mod sealed;
mod starve;
mod threads;
mod walk;
