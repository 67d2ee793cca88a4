//! ICING from senders through routers to receivers.

mod flood;
mod forgery;
mod limits;
mod model;
mod provenance;
mod random;
mod reports;
mod walk;
mod world;
