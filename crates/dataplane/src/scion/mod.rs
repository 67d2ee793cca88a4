//! The SCION router: `router` decides, `lanes` does the commonest packets sixteen at a time.

mod config;
mod flow_class;
mod lanes;
mod router;

pub use config::{Config, ConfigError, EpochKey, Interface, Keys, Link, Owner};
pub use router::{Router, SKEW};
