//! The verdict of a validator about a route, whatever the validator and its method.

use serde::{Deserialize, Serialize};

use crate::UnixTime;

/// The conclusion of a check of a route's origin or path.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VerdictKind {
    /// Every part that can be proved is proved.
    Valid,
    /// A part is proved, and between the proved parts is a gap.
    Gap,
    /// Nothing was claimed, and nothing had to be.
    #[default]
    Unattested,
    /// The claims were true and have expired.
    Expired,
    /// A claim is false, or a required one is missing.
    Invalid,
}

/// A [`VerdictKind`] and how long it holds.
///
/// The route server takes it as an input of local ranking and does not know who made it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Verdict {
    pub kind: VerdictKind,
    /// When the route must be validated again; `None` if nothing in the verdict expires.
    pub until: Option<UnixTime>,
}
