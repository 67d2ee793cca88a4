//! What the attesting proxy and a route-server member's proxy share: pending routes, validation and signing jobs, keys, and
//! policy by verdict class.

mod counts;
pub mod explain;
pub(crate) mod jobs;
pub(crate) mod keys;
pub(crate) mod pending;
pub mod policy;
pub(crate) mod shared_tree;

pub use counts::Counts;
pub use jobs::{Done, Job};
pub use keys::SignaturesLeft;
