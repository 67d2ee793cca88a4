//! What a revocation names. Key servers record revocations and sign lists of them; routers look them up for every packet.

use super::header::{DelegationId, Interval, Principal};

/// A revoked capability of a principal with everything delegated from it, or a revoked delegation with everything handed on
/// from it; in one key epoch or in all.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Revocation {
    pub principal: Principal,
    /// The delegation and the sub-delegation of it; all if `None`.
    pub delegation: Option<(DelegationId, Option<DelegationId>)>,
    /// The key epoch and its length; all epochs if `None`.
    pub epoch: Option<(Interval, u32)>,
}

impl Revocation {
    /// The second at which the entry may be dropped: the end of the second epoch after its own. Without an epoch it stays.
    #[must_use]
    pub fn expires_at(&self) -> Option<u64> {
        self.epoch.map(|(interval, epoch)| (u64::from(epoch) + 3) << interval.exponent())
    }
}
