//! The SCION router: `router` decides what happens to a packet, `lanes` is its vector path.

mod action;
mod config;
pub mod delivery;
mod flow_class;
#[cfg(test)]
mod forgery;
mod lanes;
mod router;
pub mod steering;

pub use action::{Action, Counters, Reason};
pub use config::{Config, ConfigError, EpochKey, Interface, Keys, Owner};
pub use router::Router;
pub use wayleave_packet::scion::Link;
pub use wayleave_packet::scion::verify::MAX_CLOCK_SKEW;
