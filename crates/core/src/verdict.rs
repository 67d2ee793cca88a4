//! What a validator concluded about a route, without saying who it was or how.

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
    /// What was claimed held once, and has expired.
    Expired,
    /// Something claimed is false, or something that must be there is missing.
    Invalid,
}

/// A [`VerdictKind`] and how long it holds.
///
/// The route server takes it as an input of local ranking and does not know who made it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Verdict {
    /// The conclusion.
    pub kind: VerdictKind,
    /// The moment at which it must be looked at again; `None` if nothing in it expires.
    pub until: Option<UnixTime>,
}
