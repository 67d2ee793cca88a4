//! Files of keys, capabilities and signed lists, as commands write and roles read them.

pub mod attestation;
pub mod capability;
pub mod database;
pub mod forwarding;
pub mod ledger;
pub mod member_set;
pub mod membership;
pub mod node;
pub mod old_records;
pub mod password;
pub mod private;
pub mod realm_lists;
pub mod revocation;
pub mod router_keys;
pub mod signed_steps;

use wayleave_crypto::secret::Secret;
use wayleave_crypto::sign::SigningKey;
use wayleave_runtime::identity::Identity;

/// The key that signs for an identity.
pub fn signing_key(identity: &Identity) -> SigningKey {
    SigningKey::from_seed(&Secret::new(*identity.signing_seed()))
}
