//! Granted keys in the proxy (the paper's way, section III-A): an AS makes its neighbour's key pair and hands the private
//! half over in the session, if both operators say that the session is protected.
//!
//! A grant is in an optional non-transitive attribute of each UPDATE whose last hop names the key. A router that does
//! not know it drops it (RFC 4271 section 5); a proxy removes it from every route that it receives, on either side.

use wayleave_bgp::{AttributeCode, AttributeFlags, Attributes};
use wayleave_core::Asn;
use wayleave_crypto::hash::hash;
use wayleave_crypto::kdf;
use wayleave_crypto::secret::Seed;
use zeroize::Zeroizing;

use crate::SuiteId;
use crate::grant::{Grant, GrantError};
use crate::leaf::Leaf;
use crate::sign::{KeyPair, KeyRing};
use crate::suite;

/// The attribute that carries a grant; the same in all networks that grant. Not 254, which is an internal attribute of BIRD's:
/// it withdraws a route that comes with it.
pub const HANDOVER: AttributeCode = AttributeCode(214);
/// Keys of one neighbour that are held at once, since routes that came with an earlier one may still go out; and grants
/// that are read in one session, since each costs a check.
const MAX_GRANTS: usize = 4;

/// Whether keys are handed over on the outside session of a pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Handover {
    /// We make the neighbour's key pair if it asks for one.
    pub grants: bool,
    /// We ask the neighbour to make ours.
    pub takes: bool,
    /// Nobody else reads the session: it runs within IPsec, MACsec, a tunnel of that kind, or one machine. Without that
    /// nothing is handed over either way.
    pub is_protected: bool,
}

impl Handover {
    pub(super) fn may_grant(self) -> bool {
        self.grants && self.is_protected
    }

    pub(super) fn may_take(self) -> bool {
        self.takes && self.is_protected
    }
}

/// A key that we made for the neighbour: the leaf that names it, and the grant that hands it over.
pub(super) struct GrantedKey {
    pub(super) leaf: Leaf,
    handed: Zeroizing<Vec<u8>>,
}

impl GrantedKey {
    /// The neighbour's key, the same for each of its sessions as long as `secret` is the same.
    pub(super) fn make(secret: &Seed, issuer: Asn, holder: Asn, least_strength: u16) -> Option<Self> {
        let id = SuiteId::KcEd25519;
        let seed = kdf::derive("wayleave/attestation/granted/v1", secret.expose(), &holder.0.to_be_bytes());
        let pair = KeyPair { suite: id, key: suite::of(id)?.generate(&seed), registered: false };
        let leaf = Leaf::new(&[pair.leaf_key()], least_strength, true).ok()?;
        Some(Self { leaf, handed: Grant::new(issuer, holder, &pair)?.encode() })
    }

    /// The route with the grant beside its attestation.
    pub(super) fn add_to(&self, attributes: &Attributes) -> Attributes {
        let mut edit = attributes.edit();
        edit.remove(HANDOVER).set(HANDOVER, AttributeFlags::OPTIONAL_NON_TRANSITIVE, &self.handed);
        edit.finish()
    }
}

impl std::fmt::Debug for GrantedKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GrantedKey").finish_non_exhaustive()
    }
}

/// The route without a grant, and the grant; `None` if it has none.
pub(super) fn without_grant(attributes: &Attributes) -> Option<(Attributes, Zeroizing<Vec<u8>>)> {
    let grant = Zeroizing::new(attributes.get(HANDOVER)?.value.to_vec());
    let mut edit = attributes.edit();
    edit.remove(HANDOVER);
    Some((edit.finish(), grant))
}

/// The pairs that a neighbour has made for us.
#[derive(Default)]
pub(super) struct ReceivedGrants {
    /// What was read in this session: most UPDATEs bring the same.
    seen: Vec<[u8; 32]>,
    /// Whether one was refused in this session, which is reported once.
    is_refused: bool,
    /// Good ones that are not in the ring yet.
    waiting: Vec<KeyPair>,
    /// Their places in the ring, and which is the oldest.
    places: Vec<usize>,
    oldest: usize,
}

impl ReceivedGrants {
    /// A session of the neighbour begins.
    pub(super) fn begin_session(&mut self) {
        self.seen.clear();
        self.is_refused = false;
    }

    /// Reads a grant of `issuer` if it is another than before. Of a session so many are read, and one refusal is an error.
    pub(super) fn read(&mut self, grant: &[u8], (issuer, own): (Asn, Asn), lab: bool) -> Result<(), GrantError> {
        let digest = hash("wayleave/attestation/handover/v1", &[grant]);
        if self.seen.contains(&digest) {
            return Ok(());
        }
        let read = if self.seen.len() < MAX_GRANTS {
            self.seen.push(digest);
            Grant::decode(grant, issuer, own, lab)
        } else {
            Err(GrantError::TooMany)
        };
        match read {
            Ok(pair) => self.waiting.push(pair),
            Err(error) if !std::mem::replace(&mut self.is_refused, true) => return Err(error),
            Err(_) => {}
        }
        Ok(())
    }

    /// So many keys were put first in the ring.
    pub(super) fn shift(&mut self, by: usize) {
        self.places.iter_mut().for_each(|place| *place += by);
    }

    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Puts those that wait into the ring.
    pub(super) fn add_to(&mut self, ring: &mut KeyRing) {
        for pair in std::mem::take(&mut self.waiting) {
            let named = pair.leaf_key();
            if ring.pairs.iter().any(|held| held.leaf_key() == named) {
                continue;
            }
            if self.places.len() < MAX_GRANTS {
                self.places.push(ring.pairs.len());
                ring.pairs.push(pair);
            } else {
                ring.pairs[self.places[self.oldest]] = pair;
                self.oldest = (self.oldest + 1) % MAX_GRANTS;
            }
        }
    }
}
