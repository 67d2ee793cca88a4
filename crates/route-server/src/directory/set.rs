//! The member set in force: the list of slots, as policies and parties use it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::RangeInclusive;

use wayleave_core::Asn;
use wayleave_core::wire::{Malformed, Reader, Writer};
use wayleave_crypto::hash::hash;
use wayleave_crypto::sign::VerifyingKey;

use super::{DataRules, MAX_ADDRESSES, MAX_ATTEST_KEYS, MAX_EXCHANGE_NAME, MAX_SLOT_NAME, MAX_SLOTS, Profile, SlotId};

/// One connection to the exchange.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Slot {
    /// Whether the member is still there. The slot and keys of a member that left cannot be used again.
    pub active: bool,
    /// The member's AS. Several slots may have the same one.
    pub asn: Asn,
    /// Unique among active slots.
    pub name: String,
    /// Addresses on the exchange's network that a NEXT_HOP of this slot may have.
    pub addresses: Vec<IpAddr>,
    /// SHA-256 fingerprint of the certificate by which it proves itself in TLS.
    pub tls: [u8; 32],
    /// The Ed25519 public key that signs its route objects.
    pub sign: [u8; 32],
    /// Prefixes that the member may announce at a time; 0: no limit.
    pub max_prefix: u32,
    /// Whether the AS has, or had, another slot whose key did not sign for this one. Announcers may hold such a slot: they
    /// send it dummies until their operator releases it.
    pub held: bool,
}

/// A key with which a member's AS signs paths.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct AttestKey {
    /// The suite's number.
    pub suite: u8,
    /// The key, or its hash where it is not 32 octets long.
    pub key: [u8; 32],
}

/// The list of slots of an exchange, and its number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemberSet {
    pub exchange: String,
    /// Rises with each change: signed sets so far, and slots whose members have left.
    pub number: u64,
    /// Slots in the order in which they joined.
    pub slots: Vec<Slot>,
    /// The keys with which members' ASes sign paths, by ascending suite. An AS without an entry signs nothing.
    pub attest: BTreeMap<Asn, Vec<AttestKey>>,
    /// What every route must be. `None`: the operators have signed none, and the checks that every proxy makes are all.
    pub profile: Option<Profile>,
    /// Who signs data of this exchange, and what is refused by them. `None`: it has none.
    pub data: Option<DataRules>,
}

/// Why a list of slots is not a member set, or not one that may follow another. The operator erred.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SetError {
    /// The exchange's name is empty, too long, or has characters that do not print.
    #[error("the exchange's name must be 1 to {MAX_EXCHANGE_NAME} octets of printable text")]
    ExchangeName,
    /// More slots than [`MAX_SLOTS`].
    #[error("{0} slots; the limit is {MAX_SLOTS}")]
    TooManySlots(usize),
    /// A slot's name is empty, too long, or has characters that do not print.
    #[error("slot {0}: the name must be 1 to {MAX_SLOT_NAME} octets of printable text")]
    SlotName(SlotId),
    /// A slot's AS number is reserved.
    #[error("slot {0}: {1} is reserved and cannot announce routes")]
    Asn(SlotId, Asn),
    /// A slot has no address, or more than [`MAX_ADDRESSES`].
    #[error("slot {0}: {1} addresses; 1 to {MAX_ADDRESSES} are allowed")]
    AddressCount(SlotId, usize),
    /// Two active slots have one name.
    #[error("slot {0}: another active slot has the same name")]
    NameTaken(SlotId),
    /// Another slot has the certificate or key, perhaps one whose member left: a frame's sender would be ambiguous.
    #[error("slot {0}: another slot has the same certificate or key")]
    KeyTaken(SlotId),
    /// Active slots of different ASes claim one address, or a slot lists one twice.
    #[error("slot {0}: another slot has the address {1}")]
    AddressTaken(SlotId, IpAddr),
    /// An AS lists no attestation key, more than [`MAX_ATTEST_KEYS`], two of one suite, or has no slot.
    #[error(
        "{0}: attestation keys are 1 to {MAX_ATTEST_KEYS}, of different suites in ascending order, of a member's AS"
    )]
    AttestKeys(Asn),
    /// The later set belongs to another exchange.
    #[error("the set belongs to another exchange")]
    OtherExchange,
    /// The number did not rise.
    #[error("set number {number} does not follow {previous}")]
    NumberNotRising {
        /// The later set's number.
        number: u64,
        /// The earlier set's number.
        previous: u64,
    },
    /// The later set has fewer slots.
    #[error("the set has {have} slots, the one before had {before}")]
    SlotsRemoved {
        /// Slots in the later set.
        have: usize,
        /// Slots in the earlier set.
        before: usize,
    },
    #[error("slot {0}: the member has left; a member that returns gets a new slot")]
    Revived(SlotId),
    #[error("slot {0}: its AS or its name was changed; remove it and add a new slot")]
    ChangedInPlace(SlotId),
    #[error("there is no active slot {0}")]
    NoSlot(SlotId),
    /// The holder of the slot's key did not sign the slot.
    #[error("slot {0}: its holder did not sign it (exchange, AS, name, keys and addresses) with its own key")]
    NotClaimed(SlotId),
    /// The present key of the slot did not sign the new keys.
    #[error("slot {0}: the present key did not sign the new ones")]
    NotRenewed(SlotId),
    /// The claim is not newer than the one in force: an old one shown again.
    #[error("slot {0}: the member signed something newer than this")]
    OldClaim(SlotId),
    /// The endorsement is not by a present slot of the AS (or by a former one, if none is present).
    #[error("slot {0}: no key of a present slot of {1} signed for it")]
    NotEndorsed(SlotId, Asn),
    /// The AS has, or had, a slot, so that this one must be endorsed or held.
    #[error("slot {0}: {1} has, or had, another slot; expected that slot's signature, or the slot marked as held")]
    MustBeHeld(SlotId, Asn),
    /// The slot is the first of its AS, or is held no more.
    #[error("slot {0}: it is the first of {1}, or not held; expected no mark and no endorsement")]
    NeedsNoMark(SlotId, Asn),
    /// A key is an operator's and a member's, or both operators'.
    #[error("a key is used in two roles: the operators' keys and each member's keys must all be different")]
    KeyInTwoRoles,
    /// The holder of an operator's new key did not prove that it has it.
    #[error("the new key of operator {0} did not sign its own roll-over")]
    OperatorProof(u8),
    /// Bytes that are no Ed25519 public key.
    #[error("a public key is not one")]
    NotAKey,
    /// A profile that no exchange can mean.
    #[error("the profile: {0}")]
    Profile(Malformed),
    /// A set that changes nothing.
    #[error("the set changes nothing")]
    Empty,
}

/// The signing keys of a set's slots, decoded once; `None` where the bytes are no key.
#[must_use]
pub fn keys(set: &MemberSet) -> Vec<Option<VerifyingKey>> {
    set.slots.iter().map(|slot| VerifyingKey::from_bytes(&slot.sign).ok()).collect()
}

impl MemberSet {
    /// The slot with this number.
    #[must_use]
    pub fn slot(&self, id: SlotId) -> Option<&Slot> {
        self.slots.get(id as usize)
    }

    /// The slot with this number, if its member is active.
    #[must_use]
    pub fn active(&self, id: SlotId) -> Option<&Slot> {
        self.slot(id).filter(|slot| slot.active)
    }

    /// Every slot with its number, former members included, in order.
    pub fn iter(&self) -> impl Iterator<Item = (SlotId, &Slot)> {
        (0..).zip(&self.slots)
    }

    /// Active slots of an AS.
    pub fn slots_of(&self, asn: Asn) -> impl Iterator<Item = SlotId> {
        self.iter().filter(move |(_, slot)| slot.active && slot.asn == asn).map(|(id, _)| id)
    }

    /// The active slot whose certificate has this fingerprint.
    #[must_use]
    pub fn slot_by_tls(&self, fingerprint: &[u8; 32]) -> Option<SlotId> {
        self.iter().find(|(_, slot)| slot.active && slot.tls == *fingerprint).map(|(id, _)| id)
    }

    /// The active slot of this name.
    #[must_use]
    pub fn slot_by_name(&self, name: &str) -> Option<SlotId> {
        self.iter().find(|(_, slot)| slot.active && slot.name == name).map(|(id, _)| id)
    }

    /// The ASes of the active slots in the order of their first slots, each with its attestation keys: an announcer
    /// signs for all of these, whichever of them may have the route.
    pub fn neighbours(&self) -> impl Iterator<Item = (Asn, &[AttestKey])> {
        let mut seen = BTreeSet::new();
        let active = self.slots.iter().filter(|slot| slot.active).map(|slot| slot.asn);
        active
            .filter(move |asn| seen.insert(*asn))
            .map(|asn| (asn, self.attest.get(&asn).map_or(&[][..], Vec::as_slice)))
    }

    /// A digest of the list of neighbours.
    #[must_use]
    pub fn neighbours_digest(&self) -> [u8; 32] {
        digest(self.neighbours())
    }

    /// Whether the list is a member set by itself.
    pub fn check(&self) -> Result<(), SetError> {
        if !is_name(&self.exchange, MAX_EXCHANGE_NAME) {
            return Err(SetError::ExchangeName);
        }
        if self.slots.len() > MAX_SLOTS {
            return Err(SetError::TooManySlots(self.slots.len()));
        }
        self.iter().try_for_each(|(id, slot)| slot.check(id))?;
        self.check_names()?;
        self.check_attest_keys()?;
        self.check_keys()?;
        self.check_addresses()
    }

    /// Whether this set may come after `previous`, as far as the lists tell: its number rises, no slot is lost or revived,
    /// and each keeps its AS and name. Who signed what is the [`Directory`](super::Directory)'s to check.
    pub fn may_follow(&self, previous: &MemberSet) -> Result<(), SetError> {
        self.check()?;
        if self.exchange != previous.exchange {
            return Err(SetError::OtherExchange);
        }
        if self.number <= previous.number {
            return Err(SetError::NumberNotRising { number: self.number, previous: previous.number });
        }
        if self.slots.len() < previous.slots.len() {
            return Err(SetError::SlotsRemoved { have: self.slots.len(), before: previous.slots.len() });
        }
        self.iter().zip(&previous.slots).try_for_each(|((id, slot), before)| slot.may_follow(id, before))
    }

    fn check_names(&self) -> Result<(), SetError> {
        let mut names = BTreeSet::new();
        for (id, slot) in self.iter().filter(|(_, slot)| slot.active) {
            if !names.insert(slot.name.as_str()) {
                return Err(SetError::NameTaken(id));
            }
        }
        Ok(())
    }

    fn check_keys(&self) -> Result<(), SetError> {
        let (mut tls, mut sign) = (BTreeSet::new(), BTreeSet::new());
        for (id, slot) in self.iter() {
            if !tls.insert(slot.tls) || !sign.insert(slot.sign) {
                return Err(SetError::KeyTaken(id));
            }
        }
        Ok(())
    }

    fn check_attest_keys(&self) -> Result<(), SetError> {
        let asns: BTreeSet<Asn> = self.slots.iter().map(|slot| slot.asn).collect();
        let is_sound = |(asn, keys): &(&Asn, &Vec<AttestKey>)| {
            (1..=MAX_ATTEST_KEYS).contains(&keys.len())
                && keys.is_sorted_by(|a, b| a.suite < b.suite)
                && asns.contains(asn)
        };
        match self.attest.iter().find(|entry| !is_sound(entry)) {
            Some((asn, _)) => Err(SetError::AttestKeys(*asn)),
            None => Ok(()),
        }
    }

    fn check_addresses(&self) -> Result<(), SetError> {
        let mut owners = BTreeMap::new();
        for (id, slot) in self.iter().filter(|(_, slot)| slot.active) {
            for address in &slot.addresses {
                match owners.insert(*address, (id, slot.asn)) {
                    Some((owner, asn)) if owner == id || asn != slot.asn => {
                        return Err(SetError::AddressTaken(id, *address));
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

impl Slot {
    /// Whether a NEXT_HOP may have this address.
    #[must_use]
    pub fn owns(&self, next_hop: IpAddr) -> bool {
        self.addresses.contains(&next_hop)
    }

    pub(super) fn check(&self, id: SlotId) -> Result<(), SetError> {
        if !is_name(&self.name, MAX_SLOT_NAME) {
            return Err(SetError::SlotName(id));
        }
        if !self.asn.is_routable() {
            return Err(SetError::Asn(id, self.asn));
        }
        if !(1..=MAX_ADDRESSES).contains(&self.addresses.len()) {
            return Err(SetError::AddressCount(id, self.addresses.len()));
        }
        Ok(())
    }

    fn may_follow(&self, id: SlotId, before: &Slot) -> Result<(), SetError> {
        if self.active && !before.active {
            return Err(SetError::Revived(id));
        }
        let same = self.asn == before.asn && self.name == before.name;
        if same { Ok(()) } else { Err(SetError::ChangedInPlace(id)) }
    }
}

/// Characters that do not print and reorder, join or break what does: general categories Cf, Zl and Zp of Unicode 16.
const INVISIBLE: [RangeInclusive<char>; 20] = [
    '\u{ad}'..='\u{ad}',
    '\u{600}'..='\u{605}',
    '\u{61c}'..='\u{61c}',
    '\u{6dd}'..='\u{6dd}',
    '\u{70f}'..='\u{70f}',
    '\u{890}'..='\u{891}',
    '\u{8e2}'..='\u{8e2}',
    '\u{180e}'..='\u{180e}',
    '\u{200b}'..='\u{200f}',
    '\u{2028}'..='\u{202e}',
    '\u{2060}'..='\u{206f}',
    '\u{feff}'..='\u{feff}',
    '\u{fff9}'..='\u{fffb}',
    '\u{110bd}'..='\u{110bd}',
    '\u{110cd}'..='\u{110cd}',
    '\u{13430}'..='\u{1343f}',
    '\u{1bca0}'..='\u{1bca3}',
    '\u{1d173}'..='\u{1d17a}',
    '\u{e0001}'..='\u{e0001}',
    '\u{e0020}'..='\u{e007f}',
];

/// Printable: nothing that breaks a log line or a terminal, or reorders the line that an operator compares.
pub(super) fn is_name(text: &str, most: usize) -> bool {
    let prints = |c: char| !c.is_control() && !INVISIBLE.iter().any(|range| range.contains(&c));
    (1..=most).contains(&text.len()) && text.chars().all(prints)
}

/// The neighbours of a member set ([`MemberSet::neighbours`]) without the rest of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Neighbours(Vec<(Asn, Vec<AttestKey>)>);

impl Neighbours {
    #[must_use]
    pub fn of(set: &MemberSet) -> Self {
        Self(set.neighbours().map(|(asn, keys)| (asn, keys.to_vec())).collect())
    }

    /// ASes and their attestation keys, in the set's order.
    pub fn iter(&self) -> impl Iterator<Item = (Asn, &[AttestKey])> {
        self.0.iter().map(|(asn, keys)| (*asn, keys.as_slice()))
    }

    /// [`MemberSet::neighbours_digest`] of the set.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        digest(self.iter())
    }

    /// The encoding: ASes (counted) of AS 32 and keys (counted) of suite 8 and key 256; counts have 32 bits.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.list32(&self.0, |out, (asn, keys)| write_keys(out, *asn, keys));
        out.finish()
    }

    /// Reads what [`Neighbours::encode`] wrote, all of it.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let ases = reader.list32(8, MAX_SLOTS, |reader| {
            let asn = Asn(reader.u32()?);
            let key =
                |reader: &mut Reader<'_>| Ok::<_, Malformed>(AttestKey { suite: reader.u8()?, key: reader.array()? });
            Ok::<_, Malformed>((asn, reader.list32(33, MAX_ATTEST_KEYS, key)?))
        })?;
        reader.end()?;
        Ok(Self(ases))
    }
}

fn digest<'a>(neighbours: impl Iterator<Item = (Asn, &'a [AttestKey])>) -> [u8; 32] {
    let mut out = Writer::new();
    neighbours.for_each(|(asn, keys)| write_keys(&mut out, asn, keys));
    hash("wayleave/directory/neighbours/v1", &[&out.finish()])
}

pub(super) fn write_keys(out: &mut Writer, asn: Asn, keys: &[AttestKey]) {
    out.u32(asn.0).list32(keys, |out, key| {
        out.u8(key.suite).bytes(&key.key);
    });
}
