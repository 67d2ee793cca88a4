//! The realm's list of nodes that were removed before their memberships expire.

use wayleave_core::IdentityKey;

use super::RealmKey;
use crate::signed::{Object, SIGNATURE};
use crate::wire::{Malformed, Reader, Writer, check_ascending};

/// Entries of a list.
pub const MAX_REVOKED: usize = 16_384;

/// Who was removed. Signed by the realm's key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RevocationList {
    pub realm: RealmKey,
    /// Rises with each list; a list with a lower number never replaces one with a higher.
    pub number: u64,
    /// The Unix second at which it was made.
    pub issued: u64,
    /// The identities, ascending. A removed identity is never admitted again; a node that returns makes a new one.
    pub revoked: Vec<IdentityKey>,
}

impl RevocationList {
    /// Whether `identity` was removed.
    #[must_use]
    pub fn has(&self, identity: &IdentityKey) -> bool {
        self.revoked.binary_search(identity).is_ok()
    }
}

impl Object for RevocationList {
    const LABEL: &'static str = "wayleave/control/revocations/v1";
    const MAX: usize = 1 + 32 + 16 + 2 + MAX_REVOKED * 32 + SIGNATURE;

    fn write(&self, out: &mut Writer) {
        out.bytes(&self.realm.0).u64(self.number).u64(self.issued);
        out.list(&self.revoked, |out, identity| {
            out.identity(identity);
        });
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let list = Self {
            realm: RealmKey(reader.array()?),
            number: reader.u64()?,
            issued: reader.u64()?,
            revoked: reader.list(32, MAX_REVOKED, Reader::identity)?,
        };
        check_ascending(&list.revoked, "the revoked identities")?;
        Ok(list)
    }
}
