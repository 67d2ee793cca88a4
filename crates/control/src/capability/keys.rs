//! The keys of accounts and capabilities, and how one follows from another.
//!
//! A provider's key makes an account's, which makes the master key (`c_k`, paper section 4.1) of each capability, which makes
//! that of each delegation. So a key server keeps one secret and derives the rest, and a holder of a delegation can ask for
//! nothing else. Each step is AES-128-CMAC over a label of 16 octets and an injective encoding; a master key has four uses, each
//! under its own label: handles, answers, requests, reports.

use std::fmt;
use std::net::IpAddr;

use subtle::ConstantTimeEq;
use wayleave_crypto::kdf;
use wayleave_crypto::lanes::{Block, CpuKernel, Parts, cmac_each};
use wayleave_crypto::secret::{Key128, Seed};
use wayleave_packet::platypus::header::{Capability, Delegation, Principal};

use super::invitation::InvitationId;
use super::terms::Terms;
use super::zone::Zone;

const MASTER: &Block = b"wl-cap-master-v1";
const DELEGATE: &Block = b"wl-cap-delega-v1";
const HANDLE: &Block = b"wl-cap-handle-v1";
const ANSWER: &Block = b"wl-cap-answer-v1";
const REQUEST: &Block = b"wl-cap-reques-v1";
const ACKNOWLEDGEMENT: &Block = b"wl-cap-acknow-v1";
const REPORT: &Block = b"wl-cap-report-v1";

/// The MAC of a label and octets under `key`.
fn prf(key: &Key128, label: &Block, octets: &[u8]) -> Block {
    let mut tag = [[0; 16]];
    let message = [Parts { head: std::slice::from_ref(label), tail: octets }];
    cmac_each(CpuKernel::PORTABLE, std::slice::from_ref(key.expose()), &message, &mut tag);
    tag[0]
}

/// What a provider's key servers derive all accounts from.
#[derive(Clone, Debug)]
pub struct ProviderKey(Seed);

impl ProviderKey {
    /// From a secret that nothing else uses.
    #[must_use]
    pub fn new(secret: Seed) -> Self {
        Self(secret)
    }

    /// The key of a principal's account. A higher generation replaces all keys of the account.
    #[must_use]
    pub fn account(&self, principal: Principal, generation: u32) -> AccountKey {
        let mut context = [0; 8];
        context[..4].copy_from_slice(&principal.number().to_be_bytes());
        context[4..].copy_from_slice(&generation.to_be_bytes());
        AccountKey(kdf::derive("wayleave/capability/account/v1", self.0.expose(), &context))
    }

    /// What DNS cookies are made with: the same at all key servers of a provider.
    pub(super) fn cookie_key(&self) -> Key128 {
        kdf::derive("wayleave/capability/cookie/v1", self.0.expose(), b"")
    }

    /// What authenticates the rows of the database in which accounts, grants and revocations lie: nothing else follows from it.
    #[must_use]
    pub fn store_key(&self) -> Seed {
        kdf::derive("wayleave/capability/store/v1", self.0.expose(), b"")
    }

    /// The ID of the invitation of a request that may be repeated, which `key` names. All key servers of a provider derive the same, and
    /// the same one-time key, so that none has to remember either.
    pub(super) fn invitation_id(&self, key: &[u8; 32]) -> InvitationId {
        let id = kdf::derive("wayleave/capability/invitation-id/v1", self.0.expose(), key);
        InvitationId(*id.expose())
    }

    /// Its one-time key: `content` is all of the request. An invitation is forgotten after its last second alone, so that what the same
    /// request makes then ends later and has another key: the first line does not become good again.
    pub(super) fn invitation_key(&self, key: &[u8; 32], content: &[u8; 32], not_after: u64) -> Seed {
        let context = [&key[..], content, &not_after.to_be_bytes()].concat();
        kdf::derive("wayleave/capability/invitation/v1", self.0.expose(), &context)
    }

    /// What places source prefixes in the table of response rate limiting.
    pub(super) fn rate_limit_key(&self) -> Key128 {
        kdf::derive("wayleave/capability/rate-limit/v1", self.0.expose(), b"")
    }
}

/// What the master keys of one account's capabilities are derived from. It stays with the provider.
#[derive(Clone, Debug)]
pub struct AccountKey(Key128);

impl AccountKey {
    /// The master key of a capability or of a delegation of it: the same for whoever derived it step by step.
    #[must_use]
    pub fn master(&self, terms: &Terms) -> MasterKey {
        let root = Terms { delegation: None, ..*terms };
        let root = MasterKey(Key128::new(prf(&self.0, MASTER, &context(&root.capability(0)))));
        match terms.delegation {
            None => root,
            Some(Delegation { sub: None, .. }) => root.delegate(terms),
            Some(delegation) => match terms.parent() {
                Some(parent) => root.delegate(&parent).delegate(terms),
                // The sub-delegation begins within the prefix: `Terms` were checked.
                None => root.delegate(&Terms { delegation: Some(Delegation { sub: None, ..delegation }), ..*terms }),
            },
        }
    }
}

/// `c_k`: what the holder of a capability shares with the key server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MasterKey(Key128);

impl MasterKey {
    /// From the octets of a credential.
    #[must_use]
    pub fn new(key: Key128) -> Self {
        Self(key)
    }

    /// The octets, to be handed to the holder.
    #[must_use]
    pub fn expose(&self) -> &[u8; 16] {
        self.0.expose()
    }

    /// The master key of a delegation; `terms` are the delegation's own.
    #[must_use]
    pub fn delegate(&self, terms: &Terms) -> Self {
        Self(Key128::new(prf(&self.0, DELEGATE, &context(&terms.capability(0)))))
    }

    /// What names the capability in questions about its epoch.
    #[must_use]
    pub fn handle(&self, capability: &Capability) -> Handle {
        Handle(prf(&self.0, HANDLE, &context(capability)))
    }

    /// The key that seals the answer about a capability and its epoch from a zone.
    pub(super) fn answer(&self, associated: &[u8]) -> Key128 {
        Key128::new(prf(&self.0, ANSWER, associated))
    }

    /// The MAC of a request to the server.
    pub(super) fn request_tag(&self, octets: &[u8]) -> Block {
        prf(&self.0, REQUEST, octets)
    }

    /// The MAC of the server's acknowledgement.
    pub(super) fn acknowledgement_tag(&self, octets: &[u8]) -> Block {
        prf(&self.0, ACKNOWLEDGEMENT, octets)
    }

    /// The key that seals what a request with this digest asks for.
    pub(super) fn report(&self, digest: &[u8; 32]) -> Key128 {
        Key128::new(prf(&self.0, REPORT, digest))
    }
}

/// Names a capability in one key epoch, blinded: without the master key, handles of different epochs cannot be linked.
#[derive(Clone, Copy)]
pub struct Handle(pub [u8; 16]);

impl PartialEq for Handle {
    /// In constant time.
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for Handle {}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|octet| write!(f, "{octet:02x}"))
    }
}

/// A capability, its epoch included: family (4 or 6), length, octets on the wire.
fn context(capability: &Capability) -> Vec<u8> {
    context_with(capability, 0)
}

/// The same, with room for so many further octets.
fn context_with(capability: &Capability, more: usize) -> Vec<u8> {
    let octets = capability.octets();
    let octets = octets.as_slice();
    let family = if matches!(capability.waypoint, IpAddr::V4(_)) { 4 } else { 6 };
    let mut out = Vec::with_capacity(2 + octets.len() + more);
    out.extend_from_slice(&[family, octets.len() as u8]); // at most 48
    out.extend_from_slice(octets);
    out
}

/// What an answer is bound to: the capability with its epoch, and the zone with its length.
pub(super) fn associated(capability: &Capability, zone: &Zone) -> Vec<u8> {
    let mut out = context_with(capability, 1 + zone.as_str().len());
    out.push(zone.as_str().len() as u8); // at most `MAX_ZONE`
    out.extend_from_slice(zone.as_str().as_bytes());
    out
}
