//! The ICING router: `router` decides what happens to a packet; paths on which it verified one are kept in a table.

mod account;
mod action;
mod config;
mod known_path;
mod report;
mod router;
mod table;

pub use account::Total;
pub use action::{Action, Counters, Reason};
pub use config::{Account, Config, ConfigError, Link, MAX_KEYS, Meaning, Output, Policy, TagRule};
pub use report::{Count, Loss, REPORTED, Report, WINDOW, closed, locate};
pub use router::{MAX_CONSENT, Router};
