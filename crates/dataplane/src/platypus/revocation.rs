//! Revoked capabilities and delegations: a signed list that only goes forward, looked up for every packet.
//!
//! An entry for one key epoch lives until two epochs later: the keys of the previous and the next epoch are accepted as
//! well, so one that left with its own epoch would come back (threat P10).

use std::collections::{BTreeMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

use wayleave_core::UnixTime;
use wayleave_crypto::sign::{Signature, SigningKey, VerifyingKey};
use wayleave_packet::platypus::header::{DelegationId, Interval, Principal};
use wayleave_packet::platypus::verify::Charge;

/// Entries of one router, at most.
pub const MAX_ENTRIES: usize = 4 << 20;
/// Octets of an entry in a list.
const ENTRY: usize = 15;
/// Octets in front of the entries: sequence number, seconds, kind.
const FRONT: usize = 17;
const LABEL: &str = "wayleave/platypus/revocations/v1";

/// What is revoked: a principal's capability with everything delegated from it, or one delegation with everything
/// handed on from it; in one key epoch or in all.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Revoked {
    /// Whose capability.
    pub principal: Principal,
    /// Which delegation, and which sub-delegation of it; all if none.
    pub delegation: Option<(DelegationId, Option<DelegationId>)>,
    /// In which key epoch of which length; in all if none.
    pub epoch: Option<(Interval, u32)>,
}

/// Why a list is not taken over. The sender erred, or somebody replayed an old list.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ListError {
    /// Not signed by the key server.
    #[error("the list's signature is wrong")]
    Signature,
    /// Lengths, kinds or intervals.
    #[error("malformed list")]
    Malformed,
    /// Not newer than what is held.
    #[error("list {got} is no newer than {held}")]
    Old {
        /// The sequence number held.
        held: u64,
        /// The list's.
        got: u64,
    },
    /// Additions to a list that is not held.
    #[error("list {got} adds to one that is not {held}")]
    Gap {
        /// The sequence number held.
        held: u64,
        /// The list's.
        got: u64,
    },
    /// More than [`MAX_ENTRIES`].
    #[error("too many entries")]
    TooMany,
}

/// Whether a list replaces the one before or adds to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// All entries there are.
    Whole,
    /// Entries beside those of the list one number before.
    Addition,
}

/// Encodes and signs a list: sequence number (8), Unix seconds (8), kind (1), entries of 15 octets; the signature comes
/// beside it.
#[must_use]
pub fn sign_list(
    key: &SigningKey,
    sequence: u64,
    now: UnixTime,
    kind: Kind,
    entries: &[Revoked],
) -> (Vec<u8>, Signature) {
    let mut out = Vec::with_capacity(FRONT + ENTRY * entries.len());
    out.extend(sequence.to_be_bytes());
    out.extend(now.secs().to_be_bytes());
    out.push(u8::from(kind == Kind::Addition));
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
    let signature = key.sign(LABEL, &out);
    (out, signature)
}

/// A multiplicative hash: entries come from the key server, and look-ups from packets whose MAC was right.
#[derive(Clone, Copy, Default)]
pub(super) struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, octets: &[u8]) {
        for octet in octets {
            self.write_u128(u128::from(*octet));
        }
    }

    fn write_u128(&mut self, number: u128) {
        let folded = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (number >> 64) as u64;
        self.0 = (self.0 ^ folded).wrapping_mul(0xd6e8_feb8_6659_fd93);
        self.0 ^= self.0 >> 32;
    }
}

/// The revocations that a router holds.
#[derive(Clone)]
pub struct Revocations {
    entries: HashSet<u128, BuildHasherDefault<Mix>>,
    /// One bit per principal that any entry names: most look-ups end here.
    principals: Box<[u64]>,
    /// Entries by the second at which they may go.
    leaving: BTreeMap<u64, Vec<u128>>,
    sequence: Option<u64>,
    issued: u64,
}

impl std::fmt::Debug for Revocations {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Revocations: {} entries, list {:?}", self.entries.len(), self.sequence)
    }
}

impl Default for Revocations {
    fn default() -> Self {
        Self {
            entries: HashSet::default(),
            principals: vec![0; 1 << 18].into_boxed_slice(),
            leaving: BTreeMap::new(),
            sequence: None,
            issued: 0,
        }
    }
}

impl Revocations {
    /// Takes over a list that `key` signed.
    pub fn apply(&mut self, list: &[u8], signature: &Signature, key: &VerifyingKey) -> Result<(), ListError> {
        key.verify(LABEL, list, signature).map_err(|_| ListError::Signature)?;
        let (front, octets) = list.split_first_chunk::<FRONT>().ok_or(ListError::Malformed)?;
        let number = |at: usize| u64::from_be_bytes(std::array::from_fn(|i| front[at + i]));
        let (got, issued, kind) = (number(0), number(8), front[16]);
        if kind > 1 || octets.len() % ENTRY != 0 {
            return Err(ListError::Malformed);
        }
        match (self.sequence, kind) {
            (Some(held), _) if got <= held => return Err(ListError::Old { held, got }),
            (Some(held), 1) if got != held + 1 => return Err(ListError::Gap { held, got }),
            (None, 1) => return Err(ListError::Gap { held: 0, got }),
            _ => {}
        }
        let before = if kind == 0 { 0 } else { self.entries.len() };
        if before + octets.len() / ENTRY > MAX_ENTRIES {
            return Err(ListError::TooMany);
        }
        let (entries, _) = octets.as_chunks::<ENTRY>();
        let entries: Vec<Revoked> = entries.iter().map(decode).collect::<Option<_>>().ok_or(ListError::Malformed)?;
        if kind == 0 {
            *self = Self::default();
        }
        self.entries.reserve(entries.len());
        for entry in &entries {
            self.insert(entry);
        }
        (self.sequence, self.issued) = (Some(got), issued);
        Ok(())
    }

    /// Whether a list has been taken over.
    #[must_use]
    pub fn is_loaded(&self) -> bool {
        self.sequence.is_some()
    }

    /// Seconds since the list was issued: the alarm if it grows.
    #[must_use]
    pub fn age(&self, now: UnixTime) -> u64 {
        now.secs().saturating_sub(self.issued)
    }

    /// Entries held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing is revoked.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether a capability, its delegation or its sub-delegation is revoked.
    #[must_use]
    #[inline]
    pub fn contains(&self, charge: &Charge) -> bool {
        !self.entries.is_empty() && self.names(charge)
    }

    fn names(&self, charge: &Charge) -> bool {
        let number = charge.principal.number() as usize;
        if self.principals[number / 64] & 1 << (number % 64) == 0 {
            return false;
        }
        let epoch = charge.interval.map(|interval| (interval, charge.epoch));
        let scopes = [None, charge.delegation.map(|(id, _)| (id, None)), charge.delegation];
        scopes.into_iter().any(|delegation| {
            [None, epoch]
                .into_iter()
                .any(|epoch| self.entries.contains(&pack(&Revoked { principal: charge.principal, delegation, epoch })))
        })
    }

    /// Drops entries of epochs whose keys nobody accepts any more.
    pub fn expire(&mut self, now: UnixTime) {
        while let Some(first) = self.leaving.first_entry() {
            if *first.key() > now.secs() {
                break;
            }
            for entry in first.remove() {
                self.entries.remove(&entry);
            }
        }
    }

    fn insert(&mut self, entry: &Revoked) {
        let packed = pack(entry);
        let number = entry.principal.number() as usize;
        self.principals[number / 64] |= 1 << (number % 64);
        if self.entries.insert(packed)
            && let Some((interval, epoch)) = entry.epoch
        {
            // Until the end of the second epoch after it.
            let leaves = (u64::from(epoch) + 3) << interval.exponent();
            self.leaving.entry(leaves).or_default().push(packed);
        }
    }
}

fn pack(entry: &Revoked) -> u128 {
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

fn decode(octets: &[u8; ENTRY]) -> Option<Revoked> {
    let number = |at: usize| u32::from_be_bytes([0, octets[at], octets[at + 1], octets[at + 2]]);
    let id = DelegationId::new(number(4))?;
    let sub = DelegationId::new(number(7))?;
    let delegation = match octets[3] {
        0 => None,
        1 => Some((id, None)),
        3 => Some((id, Some(sub))),
        _ => return None,
    };
    let epoch = u32::from_be_bytes([octets[11], octets[12], octets[13], octets[14]]);
    let epoch = if octets[10] == 0 { None } else { Some((Interval::new(octets[10])?, epoch)) };
    Some(Revoked { principal: Principal::new(number(0))?, delegation, epoch })
}
