//! What is known of origins: registered keys, who may originate what, and since when an AS attests.

pub mod object;
mod set;
mod view;

use wayleave_crypto::hash::hash;

pub use object::{
    Addition, MAX_MANIFEST_ENTRIES, MAX_OBJECT_LEN, Manifest, ManifestEntry, Object, ObjectError, Profile, ProfileKey,
    Record, Role, SignObjectError, Signed, Span, TRUST_ANCHOR, object_hash,
};
pub use set::{Anchor, AnchorError, FolderContents, ManifestAlarm, ObjectSet, Omitted, Refused, RetainedObject};
pub use view::{
    AttestedSince, MAX_AS_KEYS, MAX_TAGGED, OriginValidity, PrefixSet, RegisteredKey, Strictness, View, Vrp,
};

use crate::SuiteId;

/// Two octets by which a hop names a registered key of its AS. A profile has no two keys of one suite and tag; of router keys that
/// share them at most two count, and both are tried.
#[must_use]
pub fn key_tag(suite: SuiteId, public: &[u8]) -> [u8; 2] {
    let digest = hash("wayleave/attestation/key-tag/v1", &[&[suite as u8], public]);
    [digest[0], digest[1]]
}
