//! The configuration of BFD sessions of a SCION router.

use serde::Deserialize;
use toml::Spanned;

use super::{default_true, unplaced};
use crate::Fault;
use crate::rs::range;

/// `[scion.bfd]`: intervals in milliseconds.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BfdSection {
    /// Desired minimum transmit interval.
    #[serde(default = "default_interval")]
    pub transmit_ms: Spanned<u64>,
    /// Required minimum receive interval.
    #[serde(default = "default_interval")]
    pub receive_ms: Spanned<u64>,
    /// Detection multiplier: lost packets in a row after which the session is down.
    #[serde(default = "default_multiplier")]
    pub multiplier: Spanned<u64>,
    /// Sessions also with the AS's other routers.
    #[serde(default = "default_true")]
    pub siblings: bool,
}

fn default_interval() -> Spanned<u64> {
    unplaced(200)
}

fn default_multiplier() -> Spanned<u64> {
    unplaced(3)
}

impl BfdSection {
    pub(super) fn faults(&self, faults: &mut Vec<Fault>) {
        faults.extend(range(&self.transmit_ms, 10, 60_000, "milliseconds"));
        faults.extend(range(&self.receive_ms, 10, 60_000, "milliseconds"));
        faults.extend(range(&self.multiplier, 1, 255, "packets"));
    }
}
