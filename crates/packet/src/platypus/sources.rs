//! Where a principal's packets may come from. Key servers record it and sign it with the list of revocations; routers look it
//! up for every packet.

use wayleave_core::Prefix;

use super::header::{DelegationId, Principal};

/// Prefixes of one payer at most.
pub const MAX_PREFIXES: usize = 16;

/// Entries of a list at most: one for each prefix, and one for a payer without any.
pub const MAX_SOURCES: usize = 131_072;

/// The source prefixes of a payer: a principal, or a delegation of its capabilities.
///
/// Without prefixes it names none: a principal then sends from any source, a delegation from where its principal may.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Sources {
    pub principal: Principal,
    /// The principal itself if `None`.
    pub delegation: Option<DelegationId>,
    /// Whether delegations may name prefixes outside the principal's. Of a delegation always false.
    pub delegates_any: bool,
    /// Ascending, each once, at most [`MAX_PREFIXES`].
    pub prefixes: Vec<Prefix>,
}

impl Sources {
    /// How many entries of a list it takes.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.prefixes.len().max(1)
    }

    /// Whether the fields are as their comments say.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.prefixes.len() <= MAX_PREFIXES
            && self.prefixes.is_sorted_by(|a, b| a < b)
            && !(self.delegates_any && self.delegation.is_some())
    }
}
