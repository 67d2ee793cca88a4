//! Invitations, and how a node joins with one.
//!
//! The operator's side signs a one-time public key together with what the node will be. Whoever has the one-time secret signs
//! the node's own keys with it, and gets a membership for them.

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use subtle::ConstantTimeEq;
use wayleave_core::wire::{List16, Malformed, Reader, Writer};
use wayleave_core::{IdentityKey, UnixTime};
use wayleave_crypto::dh::{DhPublic, DhSecret};
use wayleave_crypto::kdf;
use wayleave_crypto::secret::{Secret, Seed};
use wayleave_crypto::sign::{SigningKey, VerifyingKey};
use wayleave_crypto::signed::{Object, SIGNATURE, Signed};

use super::MAX_MEMBERSHIP;
use super::key_roll::{self, Behind, OfRealm, Rolls};
use super::membership::Membership;
use super::{Grants, MAX_ADDRESS, MAX_NAME, MAX_NAMES, MAX_PREFIXES, RealmKey, Server};
use crate::codecs::NoiseKeyCodec;

/// Servers that an invitation names: where to join, and then where paths are had.
pub const MAX_SERVERS: usize = 8;
/// In front of every token.
const PREFIX: &str = "wayleave-join-v2.";
/// In front of tokens of the version before, whose realm asks for no proof of the Noise key.
const PREFIX_BEFORE: &str = "wayleave-join-v1.";
/// Under which an identity states that it joins.
const POSSESSION: &str = "wayleave/control/join-identity/v1";
/// From the realm's seed and a one-time key: the X25519 key of an invitation.
const EXCHANGE: &str = "wayleave/control/join-exchange/v1";
/// From what the Noise key and an invitation's X25519 key agree on: the proof that the node has the Noise key.
const NOISE_PROOF: &str = "wayleave/control/join-noise/v1";

wayleave_core::wire! {
    /// What a node will be once it has joined. Signed by the realm's key.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub struct Invitation: Self::check {
        pub realm: RealmKey,
        /// The one-time key, which signs the join request.
        pub key: [u8; 32],
        /// The realm's X25519 key for this invitation alone: the node proves to it that it has its Noise key.
        pub exchange: DhPublic as NoiseKeyCodec,
        pub grants: Grants,
        /// The Unix second at which it was made.
        pub issued: u64,
        /// The last Unix second at which it can be used.
        pub not_after: u64,
        /// Seconds that the membership lasts.
        pub membership: u64,
        /// The operator's side first, then the path servers.
        pub servers: Vec<Server> as List16<MAX_SERVERS>,
        /// Up to the key of the realm that signed it.
        pub rolls: Rolls as Behind,
    }
}

impl Object for Invitation {
    const LABEL: &'static str = "wayleave/control/invitation/v2";
    const MAX: usize = 1
        + 96
        + 2
        + 2
        + MAX_NAMES * (1 + MAX_NAME)
        + 2
        + MAX_PREFIXES * 18
        + 24
        + 2
        + MAX_SERVERS * (33 + MAX_ADDRESS)
        + Rolls::MAX
        + SIGNATURE;
    const VERSION: u8 = 2;

    fn version(&self) -> u8 {
        key_roll::version(&self.rolls)
    }

    fn read_version(version: u8, from: &mut Reader<'_>) -> Result<Self, Malformed> {
        key_roll::read_version(version, from)
    }
}

impl OfRealm for Invitation {
    fn realm(&self) -> RealmKey {
        self.realm
    }

    fn rolls(&self) -> &Rolls {
        &self.rolls
    }

    fn made(&self) -> u64 {
        self.issued
    }
}

impl Invitation {
    fn check(&self) -> Result<(), Malformed> {
        let is_valid = self.issued <= self.not_after
            && (1..=MAX_MEMBERSHIP).contains(&self.membership)
            && !self.servers.is_empty();
        if is_valid { Ok(()) } else { Err(Malformed::Value("the validity or the servers")) }
    }
}

/// The realm's secret for the invitation with this one-time key. It follows from the realm's own, so that nothing is to be stored.
pub(super) fn exchange(realm: &SigningKey, one_time: &[u8; 32]) -> DhSecret {
    DhSecret::from_seed(&kdf::derive(EXCHANGE, realm.seed().expose(), one_time))
}

/// An invitation with its one-time secret: one line of text. Whoever has it can join.
#[derive(Clone)]
pub struct Token {
    invitation: Signed<Invitation>,
    secret: Seed,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token for {:?}", self.invitation.object().grants.names)
    }
}

/// Why a text is not a token that can be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TokenError {
    #[error("the token is cut off or has been changed: paste the whole line that `wayleave realm invite` printed")]
    Text,
    #[error(
        "the token is of a version before this one: the realm's operator upgrades, and invites anew with `wayleave realm invite`"
    )]
    Before,
    #[error("the token's invitation is malformed: {0}")]
    Malformed(#[from] Malformed),
    #[error("the token's invitation is not signed by the realm that it names")]
    Signature,
    #[error("the token's secret does not belong to its invitation")]
    Secret,
}

impl Token {
    /// Signs an invitation whose one-time key comes from `secret`.
    ///
    /// # Errors
    /// If the invitation would be refused: the caller erred.
    pub(super) fn sign(invitation: &Invitation, secret: Seed, realm: &SigningKey) -> Result<Self, Malformed> {
        Ok(Self { invitation: Signed::sign(invitation, realm)?, secret })
    }

    /// The token of an invitation that the operator's side made for this one-time secret.
    ///
    /// # Errors
    /// If the realm that it names did not sign it, or it is for another secret.
    pub fn of(invitation: Signed<Invitation>, secret: Seed) -> Result<Self, TokenError> {
        key_roll::verify(&invitation, &invitation.object().realm).map_err(|_| TokenError::Signature)?;
        let key = SigningKey::from_seed(&secret).verifying_key().to_bytes();
        if key == invitation.object().key { Ok(Self { invitation, secret }) } else { Err(TokenError::Secret) }
    }

    /// What the node will be.
    #[must_use]
    pub fn invitation(&self) -> &Invitation {
        self.invitation.object()
    }

    /// The line of text; it is a secret.
    #[must_use]
    pub fn expose(&self) -> String {
        let mut octets = self.secret.expose().to_vec();
        octets.extend_from_slice(self.invitation.octets());
        format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(octets))
    }

    /// What a node sends to the operator's side.
    ///
    /// # Errors
    /// If the invitation's X25519 key is none: the operator's side erred.
    pub fn join(&self, keys: &NodeKeys) -> Result<Signed<JoinRequest>, Malformed> {
        let identity = IdentityKey(keys.identity.verifying_key().to_bytes());
        let mut request = JoinRequest {
            invitation: self.invitation.clone(),
            identity,
            noise: keys.noise.public(),
            possession: [0; SIGNATURE],
            noise_proof: [0; 32],
        };
        request.possession = keys.identity.sign(POSSESSION, &request.claim());
        request.noise_proof = *request.proof(&keys.noise, &self.invitation.object().exchange)?.expose();
        Signed::sign(&request, &SigningKey::from_seed(&self.secret))
    }

    /// The membership that the operator's side answered with: it is for these keys, and what was promised.
    ///
    /// # Errors
    /// If it is not: the operator's side erred, or somebody else answered.
    pub fn accept(&self, keys: &NodeKeys, octets: &[u8], now: UnixTime) -> Result<Signed<Membership>, JoinError> {
        let invitation = self.invitation.object();
        let signed = Signed::<Membership>::decode(octets).map_err(JoinError::Malformed)?;
        let membership = key_roll::verify(&signed, &invitation.realm).map_err(|_| JoinError::Realm)?;
        let identity = IdentityKey(keys.identity.verifying_key().to_bytes());
        if membership.identity != identity || membership.noise != keys.noise.public() {
            return Err(JoinError::Identity);
        }
        if membership.grants != invitation.grants {
            return Err(JoinError::Grants);
        }
        if !membership.holds(now.secs()) { Err(JoinError::Expired) } else { Ok(signed) }
    }
}

impl FromStr for Token {
    type Err = TokenError;

    /// Reads the line, and verifies that the realm named in it signed the invitation. Whether that is the right realm only
    /// the reader knows.
    fn from_str(text: &str) -> Result<Self, TokenError> {
        let text = text.trim();
        if text.starts_with(PREFIX_BEFORE) {
            return Err(TokenError::Before);
        }
        let text = text.strip_prefix(PREFIX).ok_or(TokenError::Text)?;
        if text.len() > 2 * Invitation::MAX {
            return Err(TokenError::Text);
        }
        let octets = URL_SAFE_NO_PAD.decode(text).map_err(|_| TokenError::Text)?;
        let (secret, rest) = octets.split_first_chunk::<32>().ok_or(TokenError::Text)?;
        Self::of(Signed::decode(rest)?, Seed::new(*secret))
    }
}

/// The keys that a node makes for itself.
#[derive(Clone, Debug)]
pub struct NodeKeys {
    pub identity: SigningKey,
    pub noise: DhSecret,
}

wayleave_core::wire! {
    /// A node's own keys under an invitation. Signed by the one-time key; the identity signed too, and the Noise key's holder agreed on
    /// the proof, so that nobody joins with another's.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub struct JoinRequest {
        pub invitation: Signed<Invitation>,
        pub identity: IdentityKey,
        pub noise: DhPublic as NoiseKeyCodec,
        possession: [u8; SIGNATURE],
        noise_proof: [u8; 32],
    }
}

impl JoinRequest {
    /// What the identity signs: it joins this realm by this invitation with this Noise key.
    fn claim(&self) -> Vec<u8> {
        let mut out = Writer::new();
        let invitation = self.invitation.object();
        out.bytes(&invitation.realm.0).bytes(&invitation.key).identity(&self.identity).bytes(&self.noise.to_bytes());
        out.finish()
    }

    /// What whoever has the Noise key or the invitation's X25519 key alone can make, over the same claim: `own` is the secret of one, `other`
    /// the public half of the other one.
    fn proof(&self, own: &DhSecret, other: &DhPublic) -> Result<Secret<32>, Malformed> {
        let shared = own.agree(other).map_err(|_| Malformed::Value("an X25519 key"))?;
        Ok(kdf::derive(NOISE_PROOF, shared.expose(), &self.claim()))
    }

    /// Every signature holds: on the invitation that of the realm, whose key of the invitation's time is `key`, the one-time key's on the request, the identity's; and so does the proof of the
    /// Noise key.
    ///
    /// # Errors
    /// The first that does not.
    pub fn verify<'a>(signed: &'a Signed<Self>, realm: &RealmKey, key: &SigningKey) -> Result<&'a Self, JoinError> {
        let request = signed.object();
        let invitation = key_roll::verify(&request.invitation, realm).map_err(|_| JoinError::Realm)?;
        if invitation.rolls.last_key(realm) != Ok(RealmKey(key.verifying_key().to_bytes())) {
            // Signed before the realm's key rolled.
            return Err(JoinError::Expired);
        }
        signed.verify(&invitation.key).map_err(|_| JoinError::OneTimeKey)?;
        let identity = VerifyingKey::from_bytes(&request.identity.0).map_err(|_| JoinError::Identity)?;
        identity.verify(POSSESSION, &request.claim(), &request.possession).map_err(|_| JoinError::Identity)?;
        let proof =
            request.proof(&exchange(key, &invitation.key), &request.noise).map_err(|_| JoinError::NoiseProof)?;
        if !bool::from(proof.expose().ct_eq(&request.noise_proof)) {
            return Err(JoinError::NoiseProof);
        }
        Ok(request)
    }
}

impl Object for JoinRequest {
    const LABEL: &'static str = "wayleave/control/join/v2";
    const MAX: usize = 1 + 4 + Invitation::MAX + 64 + SIGNATURE + 32 + SIGNATURE;
}

/// Why a node was not admitted or not renewed, or does not believe that it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum JoinError {
    #[error("malformed: {0}")]
    Malformed(Malformed),
    #[error("the invitation or membership is not signed by this realm's key")]
    Realm,
    #[error("the request is not signed by the invitation's one-time key")]
    OneTimeKey,
    #[error("the request is not signed by the identity that joins, or the membership is for another")]
    Identity,
    #[error("the membership grants something else than the invitation promised")]
    Grants,
    #[error("the invitation or membership has expired, or the clock is wrong; ask the operator for a new one")]
    Expired,
    #[error("the token was used by another node; ask the operator for a new one")]
    Used,
    #[error("the operator withdrew the invitation")]
    Withdrawn,
    #[error("the identity was revoked; make new keys")]
    Revoked,
    #[error("another member has one of the names or prefixes; ask the operator for another invitation")]
    Taken,
    #[error("the identity is a member already, by another invitation")]
    Member,
    #[error("the operator's records of used tokens were lost after this invitation was made; ask for a new one")]
    RecordsLost,
    #[error("too many nodes are joining; try again")]
    Busy,
    #[error("the identity is no member; ask the operator for an invitation")]
    NotMember,
    #[error("the operator renews memberships by hand; ask for a later one before this one ends")]
    ByHand,
    #[error("another member has the Noise key; make new keys, and do not copy a node's folder")]
    NoiseTaken,
    #[error("the request is not proven by the Noise key that it names")]
    NoiseProof,
    #[error("the realm's key is kept off line: the operator admits and renews where it is, and says when")]
    OffLine,
}

impl JoinError {
    const ALL: [Self; 17] = [
        Self::Realm,
        Self::OneTimeKey,
        Self::Identity,
        Self::Grants,
        Self::Expired,
        Self::Used,
        Self::Withdrawn,
        Self::Revoked,
        Self::Taken,
        Self::Member,
        Self::RecordsLost,
        Self::Busy,
        Self::NotMember,
        Self::ByHand,
        Self::NoiseTaken,
        Self::NoiseProof,
        Self::OffLine,
    ];

    const MALFORMED: u8 = 255;

    /// The number on the wire, never zero.
    #[must_use]
    pub fn code(self) -> u8 {
        Self::ALL.iter().position(|error| *error == self).map_or(Self::MALFORMED, |index| index as u8 + 1)
    }

    /// The reason with this number.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        if code == Self::MALFORMED {
            return Some(Self::Malformed(Malformed::Value("the join request")));
        }
        Self::ALL.get(usize::from(code).checked_sub(1)?).copied()
    }
}
