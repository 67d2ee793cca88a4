//! Revoked capabilities and delegations, and the source prefixes of payers: a signed list whose sequence number only rises, looked
//! up for every packet.
//!
//! An entry for one key epoch stays until two epochs later: the keys of the previous and the next epoch are accepted as
//! well, so that a capability would be valid again if its entry expired with its own epoch (threat P10).

use std::collections::{BTreeMap, HashSet};
use std::hash::BuildHasherDefault;
use std::net::IpAddr;
use std::sync::Arc;

use wayleave_core::{Afi, Prefix, UnixTime};
use wayleave_crypto::sign::{Signature, SigningKey, VerifyingKey};
use wayleave_packet::platypus::header::{DelegationId, Interval, Principal};
pub use wayleave_packet::platypus::revocation::Revocation;
pub use wayleave_packet::platypus::sources::{MAX_SOURCES, Sources};
use wayleave_packet::platypus::verify::Charge;

use super::mix_hasher::MixHasher;
use super::sources::SourceTable;

/// Our limit on the entries of one router.
pub const MAX_ENTRIES: usize = 4 << 20;
/// Octets of a revocation in a list.
const ENTRY: usize = 15;
/// Octets of a source prefix in a list.
const SOURCE: usize = 25;
/// Octets of the longest list.
pub const MAX_LIST: usize = FRONT + 4 + ENTRY * MAX_ENTRIES + SOURCE * MAX_SOURCES;
/// Octets in front of the entries: sequence number, seconds, kind.
const FRONT: usize = 17;
/// Kinds of lists.
const WHOLE: u8 = 0;
const ADDITION: u8 = 1;
const WHOLE_WITH_SOURCES: u8 = 2;
/// Flags of a payer.
const DELEGATES_ANY: u8 = 1;
const OF_DELEGATION: u8 = 2;
const LABEL: &str = "wayleave/platypus/revocations/v1";

/// Why a list is refused; the list in use stays. The sender erred, or somebody replayed an old list.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ListError {
    #[error("revocation list refused: its signature does not match the key")]
    Signature,
    /// Lengths, kinds or intervals.
    #[error("revocation list refused: it is malformed")]
    Malformed,
    /// `held` and `got` are sequence numbers.
    #[error("revocation list {got} refused: list {held} is in use, which is as new or newer")]
    Old { held: u64, got: u64 },
    #[error("revocation list {got} refused: it adds to list {}, and list {held} is in use; load a whole list", .got.saturating_sub(1))]
    Gap { held: u64, got: u64 },
    #[error("revocation list refused: more than {MAX_ENTRIES} entries or {MAX_SOURCES} source prefixes")]
    TooMany,
}

/// Whether a list replaces the one before or adds to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ListKind {
    /// The list has all entries, and all source prefixes.
    Whole,
    /// The entries are added to those of the list with the preceding sequence number, whose source prefixes stay.
    Addition,
}

/// Encodes and signs a list: sequence number (8), Unix seconds (8), kind (1), entries of 15 octets. The signature is
/// detached.
#[must_use]
pub fn sign_list(
    key: &SigningKey,
    sequence: u64,
    now: UnixTime,
    kind: ListKind,
    entries: &[Revocation],
) -> (Vec<u8>, Signature) {
    let kind = if kind == ListKind::Whole { WHOLE } else { ADDITION };
    let mut out = front(sequence, now, kind, ENTRY * entries.len());
    write_entries(&mut out, entries);
    let signature = key.sign(LABEL, &out);
    (out, signature)
}

/// Encodes and signs a whole list with source prefixes, of each payer once: sequence number (8), Unix seconds (8), kind (1), the
/// number of revocations (4), these, and entries of 25 octets for source prefixes. Without any it is a list as [`sign_list`] makes.
#[must_use]
pub fn sign_whole(
    key: &SigningKey,
    sequence: u64,
    now: UnixTime,
    entries: &[Revocation],
    sources: &[Sources],
) -> (Vec<u8>, Signature) {
    if sources.is_empty() {
        return sign_list(key, sequence, now, ListKind::Whole, entries);
    }
    let mut prefixes: Vec<[u8; SOURCE]> = sources.iter().flat_map(encode_sources).collect();
    prefixes.sort_unstable();
    let capacity = 4 + ENTRY * entries.len() + SOURCE * prefixes.len();
    let mut out = front(sequence, now, WHOLE_WITH_SOURCES, capacity);
    out.extend((entries.len() as u32).to_be_bytes());
    write_entries(&mut out, entries);
    out.extend_from_slice(prefixes.as_flattened());
    let signature = key.sign(LABEL, &out);
    (out, signature)
}

/// The octets in front, with room for `more`.
fn front(sequence: u64, now: UnixTime, kind: u8, more: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(FRONT + more);
    out.extend(sequence.to_be_bytes());
    out.extend(now.secs().to_be_bytes());
    out.push(kind);
    out
}

fn write_entries(out: &mut Vec<u8>, entries: &[Revocation]) {
    for entry in entries {
        let (id, sub) = entry.delegation.map_or((None, None), |(id, sub)| (Some(id), sub));
        let (n, epoch) = entry.epoch.map_or((0, 0), |(interval, epoch)| (interval.exponent(), epoch));
        out.extend(entry.principal.octets());
        out.push(u8::from(id.is_some()) | u8::from(sub.is_some()) << 1);
        out.extend(id.unwrap_or_default().octets());
        out.extend(sub.unwrap_or_default().octets());
        out.push(n);
        out.extend(epoch.to_be_bytes());
    }
}

/// One entry for each prefix, or one without a prefix: principal (3), flags (1), delegation (3), family (1: zero without a prefix, 4
/// or 6), address (16, zero-padded), prefix length (1).
fn encode_sources(of: &Sources) -> Vec<[u8; SOURCE]> {
    let entry = |prefix: Option<&Prefix>| {
        let mut out = [0; SOURCE];
        out[..3].copy_from_slice(&of.principal.octets());
        out[3] = (u8::from(of.delegates_any) * DELEGATES_ANY) | (u8::from(of.delegation.is_some()) * OF_DELEGATION);
        out[4..7].copy_from_slice(&of.delegation.unwrap_or_default().octets());
        if let Some(prefix) = prefix {
            out[7] = if prefix.afi() == Afi::Ipv4 { 4 } else { 6 };
            out[8..24].copy_from_slice(&prefix.octets());
            out[24] = prefix.len();
        }
        out
    };
    if of.prefixes.is_empty() {
        vec![entry(None)]
    } else {
        of.prefixes.iter().map(|prefix| entry(Some(prefix))).collect()
    }
}

/// A list whose signature was right.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RevocationList {
    /// Rises with every list.
    pub sequence: u64,
    /// When it was signed, in Unix seconds.
    pub issued: u64,
    pub kind: ListKind,
    /// At most [`MAX_ENTRIES`].
    pub entries: Vec<Revocation>,
    /// In ascending order of payers, of each at most one; of an addition none. They take at most [`MAX_SOURCES`] entries.
    pub sources: Vec<Sources>,
}

impl RevocationList {
    /// Reads a list that `key` signed.
    ///
    /// # Errors
    /// [`ListError::Signature`], [`ListError::Malformed`] or [`ListError::TooMany`].
    pub fn open(list: &[u8], signature: &Signature, key: &VerifyingKey) -> Result<Self, ListError> {
        key.verify(LABEL, list, signature).map_err(|_| ListError::Signature)?;
        let (front, octets) = list.split_first_chunk::<FRONT>().ok_or(ListError::Malformed)?;
        let number = |at: usize| u64::from_be_bytes(std::array::from_fn(|i| front[at + i]));
        let (kind, (entries, sources)) = match front[16] {
            WHOLE => (ListKind::Whole, (octets, None)),
            ADDITION => (ListKind::Addition, (octets, None)),
            WHOLE_WITH_SOURCES => (ListKind::Whole, split(octets).ok_or(ListError::Malformed)?),
            _ => return Err(ListError::Malformed),
        };
        let (entries, []) = entries.as_chunks::<ENTRY>() else { return Err(ListError::Malformed) };
        let (sources, []) = sources.unwrap_or_default().as_chunks::<SOURCE>() else { return Err(ListError::Malformed) };
        if entries.len() > MAX_ENTRIES || sources.len() > MAX_SOURCES {
            return Err(ListError::TooMany);
        }
        let entries = entries.iter().map(decode).collect::<Option<_>>().ok_or(ListError::Malformed)?;
        let sources = decode_sources(sources).ok_or(ListError::Malformed)?;
        Ok(Self { sequence: number(0), issued: number(8), kind, entries, sources })
    }
}

/// The revocations of a list with source prefixes, and these, of which there are some: without any it is of another kind.
fn split(octets: &[u8]) -> Option<(&[u8], Option<&[u8]>)> {
    let (count, rest) = octets.split_first_chunk::<4>()?;
    let (entries, sources) = rest.split_at_checked((u32::from_be_bytes(*count) as usize).checked_mul(ENTRY)?)?;
    (!sources.is_empty()).then_some((entries, Some(sources)))
}

/// Reads entries that ascend strictly: those of a payer stand side by side, and there is one encoding.
fn decode_sources(entries: &[[u8; SOURCE]]) -> Option<Vec<Sources>> {
    if !entries.is_sorted_by(|a, b| a < b) {
        return None;
    }
    let payer = |entry: &[u8; SOURCE]| {
        let id = || [entry[4], entry[5], entry[6]];
        ([entry[0], entry[1], entry[2]], (entry[3] & OF_DELEGATION != 0).then(id))
    };
    let read = |of: &[[u8; SOURCE]]| {
        let first = of.first()?;
        let (principal, delegation) = payer(first);
        let is_alike = |entry: &[u8; SOURCE]| entry[..7] == first[..7];
        let is_known =
            first[3] & !(DELEGATES_ANY | OF_DELEGATION) == 0 && (delegation.is_some() || first[4..7] == [0; 3]);
        let prefixes = if of.len() == 1 && first[7..] == [0; SOURCE - 7] {
            Some(Vec::new())
        } else {
            of.iter().map(decode_prefix).collect()
        };
        let sources = Sources {
            principal: Principal::from_octets(principal),
            delegation: delegation.map(DelegationId::from_octets),
            delegates_any: first[3] & DELEGATES_ANY != 0,
            prefixes: prefixes?,
        };
        (is_known && of.iter().all(is_alike) && sources.is_sound()).then_some(sources)
    };
    entries.chunk_by(|a, b| payer(a) == payer(b)).map(read).collect()
}

fn decode_prefix(entry: &[u8; SOURCE]) -> Option<Prefix> {
    let octets: [u8; 16] = std::array::from_fn(|i| entry[8 + i]);
    let address = match (entry[7], octets) {
        (4, [a, b, c, d, rest @ ..]) if rest == [0; 12] => IpAddr::from([a, b, c, d]),
        (6, octets) => IpAddr::from(octets),
        _ => return None,
    };
    Prefix::new(address, entry[24]).ok()
}

/// The revocations in use at a router, and the source prefixes of the same list.
#[derive(Clone)]
pub struct RevocationTable {
    entries: HashSet<u128, BuildHasherDefault<MixHasher>>,
    /// One bit per principal that any entry names: most look-ups end here.
    principals: Box<[u64]>,
    /// Entries by the second at which they may be dropped.
    expiring: BTreeMap<u64, Vec<u128>>,
    /// One for all threads: nobody changes it.
    sources: Arc<SourceTable>,
    sequence: Option<u64>,
    issued: u64,
}

impl std::fmt::Debug for RevocationTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RevocationTable: {} entries, list {:?}", self.entries.len(), self.sequence)
    }
}

impl Default for RevocationTable {
    fn default() -> Self {
        Self {
            entries: HashSet::default(),
            principals: vec![0; 1 << 18].into_boxed_slice(),
            expiring: BTreeMap::new(),
            sources: Arc::default(),
            sequence: None,
            issued: 0,
        }
    }
}

impl RevocationTable {
    /// Applies a list that `key` signed.
    pub fn apply(&mut self, list: &[u8], signature: &Signature, key: &VerifyingKey) -> Result<(), ListError> {
        let RevocationList { sequence: got, issued, kind, entries, sources } =
            RevocationList::open(list, signature, key)?;
        match (self.sequence, kind) {
            (Some(held), _) if got <= held => return Err(ListError::Old { held, got }),
            (Some(held), ListKind::Addition) if got != held + 1 => return Err(ListError::Gap { held, got }),
            (None, ListKind::Addition) => return Err(ListError::Gap { held: 0, got }),
            _ => {}
        }
        let before = if kind == ListKind::Whole { 0 } else { self.entries.len() };
        if before + entries.len() > MAX_ENTRIES {
            return Err(ListError::TooMany);
        }
        if kind == ListKind::Whole {
            *self = Self { sources: Arc::new(SourceTable::new(&sources)), ..Self::default() };
        }
        self.entries.reserve(entries.len());
        for entry in &entries {
            self.insert(entry);
        }
        (self.sequence, self.issued) = (Some(got), issued);
        Ok(())
    }

    /// Whether a list has been applied since the start.
    #[must_use]
    pub fn is_loaded(&self) -> bool {
        self.sequence.is_some()
    }

    /// Seconds since the list was issued, for an alarm.
    #[must_use]
    pub fn age(&self, now: UnixTime) -> u64 {
        now.secs().saturating_sub(self.issued)
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing is revoked.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// From where payers may send.
    #[must_use]
    #[inline]
    pub fn sources(&self) -> &SourceTable {
        &self.sources
    }

    /// Whether a capability, its delegation or its sub-delegation is revoked.
    #[must_use]
    #[inline]
    pub fn contains(&self, charge: &Charge) -> bool {
        !self.entries.is_empty() && self.has_entry_for(charge)
    }

    fn has_entry_for(&self, charge: &Charge) -> bool {
        let number = charge.principal.number() as usize;
        if self.principals[number / 64] & 1 << (number % 64) == 0 {
            return false;
        }
        let epoch = charge.interval.map(|interval| (interval, charge.epoch));
        let scopes = [None, charge.delegation.map(|(id, _)| (id, None)), charge.delegation];
        scopes.into_iter().any(|delegation| {
            [None, epoch].into_iter().any(|epoch| {
                self.entries.contains(&pack(&Revocation { principal: charge.principal, delegation, epoch }))
            })
        })
    }

    /// Drops entries of epochs whose keys nobody accepts any more.
    pub fn expire(&mut self, now: UnixTime) {
        while let Some(first) = self.expiring.first_entry() {
            if *first.key() > now.secs() {
                break;
            }
            for entry in first.remove() {
                self.entries.remove(&entry);
            }
        }
    }

    fn insert(&mut self, entry: &Revocation) {
        let packed = pack(entry);
        let number = entry.principal.number() as usize;
        self.principals[number / 64] |= 1 << (number % 64);
        if self.entries.insert(packed)
            && let Some(second) = entry.expires_at()
        {
            self.expiring.entry(second).or_default().push(packed);
        }
    }
}

fn pack(entry: &Revocation) -> u128 {
    let (n, epoch) = entry.epoch.map_or((0, 0), |(interval, epoch)| (interval.exponent(), epoch));
    pack_fields(entry.principal, entry.delegation, n, epoch)
}

/// Principal, kind of scope, both delegation IDs, interval, epoch: 24 + 2 + 24 + 24 + 5 + 32 bits.
pub(super) fn pack_fields(
    principal: Principal,
    delegation: Option<(DelegationId, Option<DelegationId>)>,
    n: u8,
    epoch: u32,
) -> u128 {
    let (id, sub) = delegation.map_or((None, None), |(id, sub)| (Some(id), sub));
    let scope = u128::from(id.is_some()) + u128::from(sub.is_some());
    let mut packed = u128::from(principal.number());
    for (bits, field) in [
        (2, scope),
        (24, u128::from(id.unwrap_or_default().number())),
        (24, u128::from(sub.unwrap_or_default().number())),
        (5, u128::from(n)),
        (32, u128::from(epoch)),
    ] {
        packed = packed << bits | field;
    }
    packed
}

/// The principal of what [`pack_fields`] has packed.
pub(super) fn packed_principal(packed: u128) -> Option<Principal> {
    u32::try_from(packed >> (2 + 24 + 24 + 5 + 32)).ok().and_then(Principal::new)
}

/// An entry; fields that it does not have are zero.
fn decode(octets: &[u8; ENTRY]) -> Option<Revocation> {
    let number = |at: usize| u32::from_be_bytes([0, octets[at], octets[at + 1], octets[at + 2]]);
    let id = DelegationId::new(number(4))?;
    let sub = DelegationId::new(number(7))?;
    let none = DelegationId::default();
    let delegation = match octets[3] {
        0 if (id, sub) == (none, none) => None,
        1 if sub == none => Some((id, None)),
        3 => Some((id, Some(sub))),
        _ => return None,
    };
    let epoch = u32::from_be_bytes([octets[11], octets[12], octets[13], octets[14]]);
    let epoch = match (octets[10], epoch) {
        (0, 0) => None,
        (n, epoch) => Some((Interval::new(n)?, epoch)),
    };
    Some(Revocation { principal: Principal::new(number(0))?, delegation, epoch })
}
