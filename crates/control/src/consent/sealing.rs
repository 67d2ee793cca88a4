//! The answer to a request: a proof of consent sealed to the sender's node ID, signed by the server.

use wayleave_core::IdentityKey;
use wayleave_core::wire::Writer;
use wayleave_crypto::dh::{DhPublic, DhSecret};
use wayleave_crypto::kdf;
use wayleave_crypto::seal::{self, NotSealedWithThis, OVERHEAD};
use wayleave_crypto::secret::{Key128, Secret, Seed};
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
        /// Made for answers to this ID, within a second ([`SealingKey`]).
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

/// What an ephemeral key and a node's ID agree on: known to whoever made the ephemeral key, and to the node. Answers that are sealed with
/// the same one have keys of their own, by the requests that they answer.
pub struct SealingKey {
    id: NodeId,
    ephemeral: DhPublic,
    shared: Secret<32>,
}

impl SealingKey {
    /// To seal to the node with `id`; `seed` is uniformly random and used for this alone. `None` if the ID is of small order, which a
    /// [`NodeId`] is not.
    #[must_use]
    pub fn new(id: &NodeId, seed: &Seed) -> Option<Self> {
        let ephemeral = DhSecret::from_seed(seed);
        let shared = ephemeral.agree(id.public()).ok()?;
        Some(Self { id: *id, ephemeral: ephemeral.public(), shared })
    }

    /// To open what was sealed with `ephemeral` to the ID of `secret`.
    ///
    /// # Errors
    /// If the ephemeral key is of small order.
    pub fn of(ephemeral: &DhPublic, secret: &NodeSecret) -> Result<Self, NotSealedWithThis> {
        let shared = secret.agree(ephemeral).map_err(|_| NotSealedWithThis)?;
        Ok(Self { id: secret.id(), ephemeral: *ephemeral, shared })
    }

    /// Whose it is.
    #[must_use]
    pub fn id(&self) -> &NodeId {
        &self.id
    }

    /// The ephemeral key.
    #[must_use]
    pub fn ephemeral(&self) -> &DhPublic {
        &self.ephemeral
    }

    fn key(&self, context: &[u8]) -> Key128 {
        kdf::derive(KEY_LABEL, self.shared.expose(), context)
    }
}

/// Seals `consent`. The fields `ephemeral` and `sealed` of `answer` are filled in.
#[must_use]
pub fn seal(mut answer: ConsentAnswer, key: &SealingKey, consent: &Consent) -> Option<ConsentAnswer> {
    answer.ephemeral = key.ephemeral;
    let context = answer.context(&key.id);
    answer.sealed = seal::seal(SEAL_LABEL, &key.key(&context), &context, consent.key().expose()).try_into().ok()?;
    Some(answer)
}

/// Opens what was sealed to the ID of `secret`.
///
/// # Errors
/// If it was sealed to another ID, or for another request, server, realm or expiry.
pub fn open(answer: &ConsentAnswer, secret: &NodeSecret) -> Result<Consent, NotSealedWithThis> {
    open_with(answer, &SealingKey::of(&answer.ephemeral, secret)?)
}

/// The same, with the key of the answer's ephemeral key and the own ID.
///
/// # Errors
/// As [`open`], and if it was sealed with another ephemeral key.
pub(super) fn open_with(answer: &ConsentAnswer, key: &SealingKey) -> Result<Consent, NotSealedWithThis> {
    let context = answer.context(&key.id);
    let plain = seal::open(SEAL_LABEL, &key.key(&context), &context, &answer.sealed)?;
    Ok(Consent::new(Key128::new(plain.try_into().map_err(|_| NotSealedWithThis)?)))
}

impl Object for ConsentAnswer {
    const LABEL: &'static str = "wayleave/control/consent-answer/v1";
    const MAX: usize = 1 + 32 + 32 + 32 + 4 + 32 + SEALED + SIGNATURE;
}
