//! The realm's list of nodes that were removed before their memberships expire.

use wayleave_core::IdentityKey;
use wayleave_core::wire::{List16, Malformed, check_ascending};
use wayleave_crypto::signed::{Object, SIGNATURE};

use super::RealmKey;

/// Entries of a list.
pub const MAX_REVOKED: usize = 16_384;

wayleave_core::wire! {
    /// Who was removed. Signed by the realm's key.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub struct RevocationList: Self::check {
        pub realm: RealmKey,
        /// Rises with each list; a list with a lower number never replaces one with a higher.
        pub number: u64,
        /// The Unix second at which it was made.
        pub issued: u64,
        /// The identities, ascending. A removed identity is never admitted again; a node that returns makes a new one.
        pub revoked: Vec<IdentityKey> as List16<MAX_REVOKED>,
    }
}

impl RevocationList {
    fn check(&self) -> Result<(), Malformed> {
        check_ascending(&self.revoked, "the revoked identities")
    }

    /// Whether `identity` was removed.
    #[must_use]
    pub fn has(&self, identity: &IdentityKey) -> bool {
        self.revoked.binary_search(identity).is_ok()
    }
}

impl Object for RevocationList {
    const LABEL: &'static str = "wayleave/control/revocations/v1";
    const MAX: usize = 1 + 32 + 16 + 2 + MAX_REVOKED * 32 + SIGNATURE;
}
