//! ICING from senders through routers to receivers.
#![allow(unreachable_pub, reason = "one test binary of several files")]

mod flood;
mod forgery;
mod limits;
mod model;
mod provenance;
mod random;
mod reports;
mod walk;
mod world;
