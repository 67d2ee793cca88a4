//! Signed objects: an AS's profile, its record, what it adds to its profile itself, and the list of what a publisher has
//! published; one encoding each.
//!
//! An object is version (1), kind (1), body and signature, of the trust anchor or (an [`Addition`], and the manifest of an AS) of
//! the AS's identity key. Version 1 has a signature of Ed25519 (64), by the one rule of [`crate::suite::ed25519`]; version 2 has
//! another one after it, of SLH-DSA-SHA2-128s (7,856), over the same octets. Integers are big-endian; lists begin with their
//! count.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};
use wayleave_core::wire::{Malformed, Reader};
use wayleave_core::{Afi, Asn, Prefix};
use wayleave_crypto::hash::hash;

use super::{AttestedSince, Strictness, key_tag};
use crate::suite::ed25519::{self, Ed25519};
use crate::suite::slh_dsa::{self, SlhDsa};
use crate::suite::{SignError, Suite, SuiteId, SuiteKey};

/// The version of an object that an Ed25519 key signed alone.
const CLASSICAL: u8 = 1;
/// The version of an object that an SLH-DSA key signed too.
const HYBRID: u8 = 2;
/// Keys of a profile or an addition, at most.
pub const MAX_KEYS: usize = 64;
/// Bytes of one key, at most: an RSA modulus of 16,384 bits is beyond every suite.
pub const MAX_KEY_LEN: usize = 1024;
/// Prefixes of a record, at most.
pub const MAX_RECORD_PREFIXES: usize = 4096;
/// Objects that a manifest lists, at most.
pub const MAX_MANIFEST_ENTRIES: usize = 200_000;
/// Octets of an entry of a manifest.
const MANIFEST_ENTRY_LEN: usize = 1 + 4 + 8 + 8 + 32;
/// Octets of an object, at most: a manifest with as many entries as it may have.
pub const MAX_OBJECT_LEN: usize =
    2 + 4 + 3 * 8 + 4 + MAX_MANIFEST_ENTRIES * MANIFEST_ENTRY_LEN + ed25519::SIGNATURE_LEN + slh_dsa::SIGNATURE_LEN;
/// The publisher of the trust anchor's manifest: AS 0, which is nobody's (RFC 7607).
pub const TRUST_ANCHOR: Asn = Asn(0);
const LABEL: &[u8] = b"wayleave/pki/object/v1";

/// What a key of an AS is for. No key serves two roles.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Role {
    /// Signs hops of attestations.
    Attest = 1,
    /// Signs the AS's own additions to its profile.
    Identity = 2,
    /// Speaks for a member of an exchange.
    ExchangeMember = 3,
    /// Signs beacons and path segments.
    Scion = 4,
    /// Mints proofs of consent.
    Icing = 5,
    /// Derives capabilities.
    Platypus = 6,
}

impl Role {
    /// Every role.
    pub const ALL: [Self; 6] =
        [Self::Attest, Self::Identity, Self::ExchangeMember, Self::Scion, Self::Icing, Self::Platypus];

    fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|role| *role as u8 == byte)
    }
}

/// From when until when an object holds, and which of an AS's is the latest.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Span {
    /// Higher in each later object of the same kind and AS.
    pub sequence: u64,
    /// Seconds since 1970.
    pub not_before: u64,
    /// Seconds since 1970; after `not_before`.
    pub not_after: u64,
}

impl Span {
    /// Whether `now`, in seconds since 1970, lies within.
    #[must_use]
    pub fn holds(&self, now: u64) -> bool {
        (self.not_before..=self.not_after).contains(&now)
    }
}

/// A public key and what it is for.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ProfileKey {
    pub role: Role,
    /// Its suite; a key agreement or symmetric commitment of another role is listed under the suite of its signatures.
    pub suite: SuiteId,
    pub public: Vec<u8>,
}

/// Every key of an AS, by role; signed by the trust anchor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Profile {
    pub asn: Asn,
    pub span: Span,
    /// Its keys, ascending by role, suite and key; no public key twice.
    pub keys: Vec<ProfileKey>,
}

/// Keys for attestations that an AS adds to its profile: the trees of few-time suites, which are replaced often.
/// Signed by the identity key of the profile.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Addition {
    pub asn: Asn,
    pub span: Span,
    /// The keys, ascending, all of role [`Role::Attest`].
    pub keys: Vec<ProfileKey>,
}

/// What an AS may originate, and since when it attests; signed by the trust anchor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    pub asn: Asn,
    pub span: Span,
    /// Since when its routes carry attestations, and what a missing one means.
    pub attested_since: Option<(u64, Strictness)>,
    /// The prefixes it may originate, each with the longest length, ascending.
    pub prefixes: Vec<(Prefix, u8)>,
}

impl Record {
    /// What the record says of attestations, as a view holds it.
    #[must_use]
    pub fn attested(&self) -> Option<AttestedSince> {
        let (since, strictness) = self.attested_since?;
        Some(AttestedSince { since, strictness, not_after: self.span.not_after })
    }
}

/// What a publisher has published: a numbered list, by which a reader sees what a folder withholds. Signed by the publisher: the
/// trust anchor for profiles and records, an AS's identity key for its additions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Manifest {
    /// [`TRUST_ANCHOR`], or the AS.
    pub publisher: Asn,
    /// The sequence is the manifest's number, higher than the sequences of all that it lists; it holds from this update to
    /// the next.
    pub span: Span,
    /// Ascending.
    pub entries: Vec<ManifestEntry>,
}

/// An object as a manifest names it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ManifestEntry {
    /// The number of its kind, not of a manifest.
    pub kind: u8,
    pub asn: Asn,
    pub sequence: u64,
    /// Until when it holds, in seconds since 1970: nobody misses it later.
    pub not_after: u64,
    /// [`object_hash`] of all its octets.
    pub hash: [u8; 32],
}

impl ManifestEntry {
    /// The entry of `object`, which has these octets; `None` for a manifest.
    #[must_use]
    pub fn of(object: &Object, octets: &[u8]) -> Option<Self> {
        let Span { sequence, not_after, .. } = *object.span();
        let is_manifest = matches!(object, Object::Manifest(_));
        let entry = Self { kind: object.kind(), asn: object.asn(), sequence, not_after, hash: object_hash(octets) };
        (!is_manifest).then_some(entry)
    }

    /// The name of its kind.
    #[must_use]
    pub fn kind_name(&self) -> &'static str {
        kind_name(self.kind)
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.kind);
        out.extend_from_slice(&self.asn.0.to_be_bytes());
        out.extend_from_slice(&self.sequence.to_be_bytes());
        out.extend_from_slice(&self.not_after.to_be_bytes());
        out.extend_from_slice(&self.hash);
    }
}

/// What stands for an object's octets, signatures included, in a manifest.
#[must_use]
pub fn object_hash(octets: &[u8]) -> [u8; 32] {
    hash("wayleave/pki/object-hash/v1", &[octets])
}

fn kind_name(kind: u8) -> &'static str {
    match kind {
        1 => "profile",
        2 => "record",
        3 => "addition",
        _ => "manifest",
    }
}

/// An object of one of the four kinds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Object {
    /// Kind 1.
    Profile(Profile),
    /// Kind 2.
    Record(Record),
    /// Kind 3.
    Addition(Addition),
    /// Kind 4.
    Manifest(Manifest),
}

/// What is wrong with an object's octets or fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ObjectError {
    /// They end too early, or do not end with the signature.
    #[error("the object has a wrong length")]
    Length,
    /// Another version, or no kind of this one.
    #[error("version {0}, kind {1} of objects is not known")]
    Kind(u8, u8),
    /// A field has a value that it may not have.
    #[error("{0} has a value that is not allowed")]
    Field(&'static str),
    /// A list does not ascend, or has an entry twice.
    #[error("{0} do not ascend")]
    Order(&'static str),
    /// A public key is listed twice.
    #[error("a key is listed twice: no key serves two roles")]
    KeyTwice,
    /// Two keys for attestations share suite and tag: a verifier would have to try both for each hop.
    #[error("two keys of {} share the tag {:02x}{:02x}; make another key", .0.name(), .1[0], .1[1])]
    TagTwice(SuiteId, [u8; 2]),
}

impl Object {
    /// The AS it is about; of a manifest the publisher.
    #[must_use]
    pub fn asn(&self) -> Asn {
        match self {
            Self::Profile(Profile { asn, .. })
            | Self::Record(Record { asn, .. })
            | Self::Addition(Addition { asn, .. })
            | Self::Manifest(Manifest { publisher: asn, .. }) => *asn,
        }
    }

    /// When it holds.
    #[must_use]
    pub fn span(&self) -> &Span {
        match self {
            Self::Profile(Profile { span, .. })
            | Self::Record(Record { span, .. })
            | Self::Addition(Addition { span, .. })
            | Self::Manifest(Manifest { span, .. }) => span,
        }
    }

    /// Its kind's number.
    #[must_use]
    pub fn kind(&self) -> u8 {
        match self {
            Self::Profile(_) => 1,
            Self::Record(_) => 2,
            Self::Addition(_) => 3,
            Self::Manifest(_) => 4,
        }
    }

    /// Its kind's name.
    #[must_use]
    pub fn kind_name(&self) -> &'static str {
        kind_name(self.kind())
    }

    /// Signs it with an Ed25519 key. Lists are brought into order; what [`Signed::decode`] would refuse is refused here.
    pub fn sign(self, key: &mut dyn SuiteKey) -> Result<Vec<u8>, SignObjectError> {
        self.sign_by(key, None)
    }

    /// Signs it with an Ed25519 key and an SLH-DSA key, each over the same octets.
    pub fn sign_hybrid(
        self,
        classical: &mut dyn SuiteKey,
        post_quantum: &mut dyn SuiteKey,
    ) -> Result<Vec<u8>, SignObjectError> {
        self.sign_by(classical, Some(post_quantum))
    }

    fn sign_by(
        mut self,
        classical: &mut dyn SuiteKey,
        post_quantum: Option<&mut dyn SuiteKey>,
    ) -> Result<Vec<u8>, SignObjectError> {
        self.sort();
        let version = if post_quantum.is_some() { HYBRID } else { CLASSICAL };
        let mut octets = vec![version, self.kind()];
        self.encode_body(&mut octets);
        let end = octets.len();
        octets.resize(end + signatures_len(version), 0);
        Signed::decode(&octets)?;
        octets.truncate(end);
        let message = message(&octets);
        octets.extend_from_slice(&classical.sign(&message)?);
        if let Some(post_quantum) = post_quantum {
            octets.extend_from_slice(&post_quantum.sign(&message)?);
        }
        Ok(octets)
    }

    fn sort(&mut self) {
        match self {
            Self::Profile(Profile { keys, .. }) | Self::Addition(Addition { keys, .. }) => keys.sort_unstable(),
            Self::Record(Record { prefixes, .. }) => prefixes.sort_unstable(),
            Self::Manifest(Manifest { entries, .. }) => entries.sort_unstable(),
        }
    }

    fn encode_body(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.asn().0.to_be_bytes());
        let span = self.span();
        [span.sequence, span.not_before, span.not_after]
            .iter()
            .for_each(|number| out.extend_from_slice(&number.to_be_bytes()));
        match self {
            Self::Profile(Profile { keys, .. }) | Self::Addition(Addition { keys, .. }) => encode_keys(keys, out),
            Self::Record(record) => encode_record(record, out),
            Self::Manifest(Manifest { entries, .. }) => {
                // `Signed::decode`, which `sign` calls, refuses more than fits.
                out.extend_from_slice(&(entries.len() as u32).to_be_bytes());
                entries.iter().for_each(|entry| entry.encode(out));
            }
        }
    }
}

/// Octets of the signatures of an object of this version.
fn signatures_len(version: u8) -> usize {
    ed25519::SIGNATURE_LEN + if version == HYBRID { slh_dsa::SIGNATURE_LEN } else { 0 }
}

fn encode_keys(keys: &[ProfileKey], out: &mut Vec<u8>) {
    // `Signed::decode`, which `sign` calls, refuses more than fits.
    out.extend_from_slice(&(keys.len() as u16).to_be_bytes());
    for key in keys {
        out.extend_from_slice(&[key.role as u8, key.suite as u8]);
        out.extend_from_slice(&(key.public.len() as u16).to_be_bytes());
        out.extend_from_slice(&key.public);
    }
}

fn encode_record(record: &Record, out: &mut Vec<u8>) {
    let (number, since) = match record.attested_since {
        None => (0, 0),
        Some((since, Strictness::Prefer)) => (1, since),
        Some((since, Strictness::Strict)) => (2, since),
        Some((since, Strictness::PostQuantum)) => (3, since),
    };
    out.push(number);
    out.extend_from_slice(&u64::to_be_bytes(since));
    out.extend_from_slice(&(record.prefixes.len() as u16).to_be_bytes());
    for (prefix, longest) in &record.prefixes {
        // AFI 1 or 2.
        out.extend_from_slice(&[prefix.afi().code() as u8, prefix.len(), *longest]);
        out.extend_from_slice(&prefix.octets()[..usize::from(prefix.len()).div_ceil(8)]);
    }
}

/// Why an object was not signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SignObjectError {
    /// It would be refused.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// The key did not sign.
    #[error(transparent)]
    Sign(#[from] SignError),
}

/// An object with its signature, which has not been checked.
#[derive(Clone, PartialEq, Eq)]
pub struct Signed<'a> {
    /// What is claimed.
    pub object: Object,
    covered: &'a [u8],
    /// Of Ed25519.
    classical: &'a [u8],
    /// Of SLH-DSA; `None` in version 1.
    post_quantum: Option<&'a [u8]>,
}

impl fmt::Debug for Signed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signed").field("object", &self.object).finish_non_exhaustive()
    }
}

impl<'a> Signed<'a> {
    /// Reads an object; its octets must be used up.
    pub fn decode(octets: &'a [u8]) -> Result<Self, ObjectError> {
        let (&version, &kind) = octets.first().zip(octets.get(1)).ok_or(ObjectError::Length)?;
        if ![CLASSICAL, HYBRID].contains(&version) || !(1..=4).contains(&kind) {
            return Err(ObjectError::Kind(version, kind));
        }
        let end = octets.len().checked_sub(signatures_len(version)).ok_or(ObjectError::Length)?;
        let (covered, signatures) = octets.split_at(end);
        let (classical, post_quantum) = signatures.split_at(ed25519::SIGNATURE_LEN);
        let post_quantum = (version == HYBRID).then_some(post_quantum);
        let mut from = Reader::new(covered.get(2..).ok_or(ObjectError::Length)?);
        let asn = Asn(from.u32()?);
        let span = Span { sequence: from.u64()?, not_before: from.u64()?, not_after: from.u64()? };
        if span.not_before >= span.not_after {
            return Err(ObjectError::Field("the span"));
        }
        let object = match kind {
            1 => Object::Profile(Profile { asn, span, keys: read_keys(&mut from)? }),
            2 => Object::Record(read_record(&mut from, asn, span)?),
            4 => Object::Manifest(read_manifest(&mut from, asn, span)?),
            _ => {
                let keys = read_keys(&mut from)?;
                if keys.iter().any(|key| key.role != Role::Attest) {
                    return Err(ObjectError::Field("the role of an added key"));
                }
                Object::Addition(Addition { asn, span, keys })
            }
        };
        from.end()?;
        Ok(Self { object, covered, classical, post_quantum })
    }

    /// Whether `public`, an Ed25519 key, signed it. Nothing is said of another signature.
    #[must_use]
    pub fn verify(&self, public: &[u8]) -> bool {
        Ed25519.verify(public, &message(self.covered), self.classical)
    }

    /// Whether the Ed25519 key `classical` signed it and the SLH-DSA key `post_quantum` too.
    #[must_use]
    pub fn verify_hybrid(&self, classical: &[u8], post_quantum: &[u8]) -> bool {
        // The cheaper one first.
        self.verify(classical)
            && self.post_quantum.is_some_and(|signature| SlhDsa.verify(post_quantum, &message(self.covered), signature))
    }

    /// Whether it has a signature of SLH-DSA, right or wrong.
    #[must_use]
    pub fn is_hybrid(&self) -> bool {
        self.post_quantum.is_some()
    }
}

fn message(covered: &[u8]) -> Vec<u8> {
    let mut message = Vec::with_capacity(2 + LABEL.len() + covered.len());
    message.extend_from_slice(&(LABEL.len() as u16).to_be_bytes());
    message.extend_from_slice(LABEL);
    message.extend_from_slice(covered);
    message
}

impl From<Malformed> for ObjectError {
    fn from(_: Malformed) -> Self {
        Self::Length
    }
}

fn read_count(from: &mut Reader<'_>, most: usize, what: &'static str) -> Result<usize, ObjectError> {
    let count = usize::from(from.u16()?);
    if count > most { Err(ObjectError::Field(what)) } else { Ok(count) }
}

fn read_manifest(from: &mut Reader<'_>, publisher: Asn, span: Span) -> Result<Manifest, ObjectError> {
    let count = from.u32()? as usize;
    if count > MAX_MANIFEST_ENTRIES {
        return Err(ObjectError::Field("the number of entries"));
    }
    if from.rest().len() != count * MANIFEST_ENTRY_LEN {
        return Err(ObjectError::Length);
    }
    let mut entries: Vec<ManifestEntry> = Vec::with_capacity(count);
    for _ in 0..count {
        let (kind, asn) = (from.u8()?, Asn(from.u32()?));
        let entry = ManifestEntry { kind, asn, sequence: from.u64()?, not_after: from.u64()?, hash: from.array()? };
        // A publisher lists what it signs itself.
        let is_own = if publisher == TRUST_ANCHOR { matches!(kind, 1 | 2) } else { kind == 3 && asn == publisher };
        if !is_own {
            return Err(ObjectError::Field("the kind or AS of an entry"));
        }
        if entry.sequence >= span.sequence {
            return Err(ObjectError::Field("the number, not above the sequences of the entries,"));
        }
        let name = |entry: &ManifestEntry| (entry.kind, entry.asn, entry.sequence);
        if entries.last().is_some_and(|last| name(last) >= name(&entry)) {
            return Err(ObjectError::Order("the entries"));
        }
        entries.push(entry);
    }
    Ok(Manifest { publisher, span, entries })
}

fn read_keys(from: &mut Reader<'_>) -> Result<Vec<ProfileKey>, ObjectError> {
    let count = read_count(from, MAX_KEYS, "the number of keys")?;
    let mut keys: Vec<ProfileKey> = Vec::with_capacity(count);
    let mut publics = BTreeSet::new();
    let mut last = None;
    for _ in 0..count {
        let (role, suite) = (from.u8()?, from.u8()?);
        let length = read_count(from, MAX_KEY_LEN, "the length of a key")?;
        let public = from.bytes(length)?;
        if last.is_some_and(|last| last > (role, suite, public)) {
            return Err(ObjectError::Order("the keys"));
        }
        if !publics.insert(public) {
            return Err(ObjectError::KeyTwice);
        }
        last = Some((role, suite, public));
        // A later version may know the role or suite: its keys must not take the others from the AS.
        if let (Some(role), Some(suite)) = (Role::from_byte(role), SuiteId::from_byte(suite)) {
            keys.push(ProfileKey { role, suite, public: public.to_vec() });
        }
    }
    let mut tags = BTreeSet::new();
    for key in keys.iter().filter(|key| key.role == Role::Attest) {
        let tag = key_tag(key.suite, &key.public);
        if !tags.insert((key.suite, tag)) {
            return Err(ObjectError::TagTwice(key.suite, tag));
        }
    }
    Ok(keys)
}

fn read_record(from: &mut Reader<'_>, asn: Asn, span: Span) -> Result<Record, ObjectError> {
    let attested_since = match (from.u8()?, from.u64()?) {
        (0, 0) => None,
        (1, since) => Some((since, Strictness::Prefer)),
        (2, since) => Some((since, Strictness::Strict)),
        (3, since) => Some((since, Strictness::PostQuantum)),
        _ => return Err(ObjectError::Field("attested since")),
    };
    let count = read_count(from, MAX_RECORD_PREFIXES, "the number of prefixes")?;
    let mut prefixes: Vec<(Prefix, u8)> = Vec::with_capacity(count);
    for _ in 0..count {
        let afi = match from.u8()? {
            1 => Afi::Ipv4,
            2 => Afi::Ipv6,
            _ => return Err(ObjectError::Field("an address family")),
        };
        let (length, longest) = (from.u8()?, from.u8()?);
        if length > longest || longest > afi.bits() {
            return Err(ObjectError::Field("a prefix length"));
        }
        let octets = from.bytes(usize::from(length).div_ceil(8))?;
        let prefix = Prefix::from_nlri(afi, length, octets).map_err(|_| ObjectError::Field("a prefix length"))?;
        if prefix.octets()[..octets.len()] != *octets {
            return Err(ObjectError::Field("a bit beyond a prefix length"));
        }
        if prefixes.last().is_some_and(|last| *last >= (prefix, longest)) {
            return Err(ObjectError::Order("the prefixes"));
        }
        prefixes.push((prefix, longest));
    }
    Ok(Record { asn, span, attested_since, prefixes })
}
