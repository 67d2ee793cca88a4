//! The ICING router and stamper: `router` decides what happens to a packet, `lanes` is its vector path.
//!
//! A node keeps the paths on which it verified a packet (`cache`, `known_path`), each with the keys that it shares with
//! the other nodes.

mod account;
mod action;
mod agreed;
mod cache;
mod config;
#[cfg(test)]
mod forgery;
mod known_path;
mod lanes;
mod learned;
pub mod record;
mod report;
mod router;
mod stamper;

pub use account::{ChargeLine, PayerState, Refused, Total};
pub use action::{Action, Counters, Reason};
pub use agreed::AgreedKeys;
pub use config::{Account, Config, ConfigError, Link, MAX_KEYS, Meaning, Output, Policy, TagRule};
pub use report::{Count, Loss, REPORTED, Replaced, Report, Spoiled, WINDOW, Wrong, closed, locate, wrong};
pub use router::{Router, Shared};
pub use stamper::{Stamp, Stamper};
pub use wayleave_packet::icing::verify::{MAX_CONSENT, MAX_FRESHNESS, MIN_FRESHNESS};
