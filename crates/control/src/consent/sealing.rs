//! The answer to a request: a proof of consent sealed to the sender's node ID, signed by the server.

use wayleave_core::IdentityKey;
use wayleave_core::wire::Writer;
use wayleave_crypto::dh::{DhPublic, DhSecret};
use wayleave_crypto::kdf;
use wayleave_crypto::seal::{self, NotSealedWithThis, OVERHEAD};
use wayleave_crypto::secret::{Key128, Seed};
use wayleave_crypto::signed::{Object, SIGNATURE};
use wayleave_packet::icing::header::NodeId;
use wayleave_packet::icing::mint::{Consent, NodeSecret};

use crate::codecs::DhPublicCodec;
use crate::realm::RealmKey;

const KEY_LABEL: &str = "wayleave/control/consent-key/v1";
const SEAL_LABEL: &str = "wayleave/control/consent-seal/v1";
/// Octets of a sealed proof.
const SEALED: usize = 16 + OVERHEAD;

wayleave_core::wire! {
    /// A consent, for the holder of the path's first node ID alone. Signed by the server.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub struct ConsentAnswer {
        pub realm: RealmKey,
        pub server: IdentityKey,
        /// The request that it answers, by [`wayleave_crypto::signed::Signed::digest`].
        pub request: [u8; 32],
        /// The last Unix second of the consent; it may be earlier than was asked.
        pub expiry: u32,
        /// Made for this answer.
        pub ephemeral: DhPublic as DhPublicCodec,
        pub sealed: [u8; SEALED],
    }
}

impl ConsentAnswer {
    /// What the sealed proof is bound to.
    fn context(&self, id: &NodeId) -> Vec<u8> {
        let mut out = Writer::new();
        out.bytes(&self.ephemeral.to_bytes()).bytes(&id.to_bytes()).bytes(&self.realm.0).identity(&self.server);
        out.bytes(&self.request).u32(self.expiry);
        out.finish()
    }
}

/// Seals `consent` to the node with `id`; `seed` is uniformly random and used for this alone. The fields `ephemeral` and `sealed`
/// of `answer` are filled in. `None` if the ID is of small order, which a [`NodeId`] is not.
#[must_use]
pub fn seal(mut answer: ConsentAnswer, id: &NodeId, consent: &Consent, seed: &Seed) -> Option<ConsentAnswer> {
    let ephemeral = DhSecret::from_seed(seed);
    answer.ephemeral = ephemeral.public();
    let shared = ephemeral.agree(id.public()).ok()?;
    let context = answer.context(id);
    let key: Key128 = kdf::derive(KEY_LABEL, shared.expose(), &context);
    answer.sealed = seal::seal(SEAL_LABEL, &key, &context, consent.key().expose()).try_into().ok()?;
    Some(answer)
}

/// Opens what was sealed to the ID of `secret`.
///
/// # Errors
/// If it was sealed to another ID, or for another request, server, realm or expiry.
pub fn open(answer: &ConsentAnswer, secret: &NodeSecret) -> Result<Consent, NotSealedWithThis> {
    let context = answer.context(&secret.id());
    let key: Key128 = secret.shared(KEY_LABEL, &answer.ephemeral, &context).map_err(|_| NotSealedWithThis)?;
    let plain = seal::open(SEAL_LABEL, &key, &context, &answer.sealed)?;
    Ok(Consent::new(Key128::new(plain.try_into().map_err(|_| NotSealedWithThis)?)))
}

impl Object for ConsentAnswer {
    const LABEL: &'static str = "wayleave/control/consent-answer/v1";
    const MAX: usize = 1 + 32 + 32 + 32 + 4 + 32 + SEALED + SIGNATURE;
}
