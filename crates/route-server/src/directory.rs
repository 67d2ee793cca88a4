//! The member set: the signed, numbered list of slots that both parties and every member agree on.
//!
//! A slot is one connection to the exchange. A later set only appends: a slot keeps its number, so that stored
//! policy rows stay valid at their width, and the only change that an existing slot may see is that it leaves. The
//! set also lists the keys with which members' ASes sign paths; those may change with any set.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use wayleave_core::Asn;
use wayleave_crypto::hash::hash;
use wayleave_crypto::sign::{Signature, SigningKey, VerifyingKey};

use crate::wire::{Malformed, Reader, Writer};

/// Label of the operator's signature.
const LABEL: &str = "wayleave/directory/member-set/v1";
/// The version of the encoding of a set in which nobody attests, and of one with keys.
const VERSION: u8 = 1;
const VERSION_WITH_KEYS: u8 = 2;

/// Slots of a set, former members included. Our limit: twice the 2,000 members up to which circuits are tested.
pub const MAX_SLOTS: usize = 4096;
/// Octets of the exchange's name.
pub const MAX_EXCHANGE_NAME: usize = 64;
/// Octets of a slot's name.
pub const MAX_SLOT_NAME: usize = 64;
/// Addresses of one slot.
pub const MAX_ADDRESSES: usize = 16;
/// Attestation keys of one AS, at most one for each suite.
pub const MAX_ATTEST_KEYS: usize = 4;
/// Octets of an encoded, signed set: enough for [`MAX_SLOTS`] slots of the largest size.
pub const MAX_ENCODED: usize = 1
    + 4
    + MAX_EXCHANGE_NAME
    + 8
    + 4
    + MAX_SLOTS * (1 + 4 + 4 + MAX_SLOT_NAME + 4 + MAX_ADDRESSES * 17 + 68)
    + 64
    + 4
    + MAX_SLOTS * (4 + 4 + MAX_ATTEST_KEYS * 33);
/// Octets of the smallest slot.
const LEAST_SLOT: usize = 1 + 4 + 4 + 4 + 68;
/// Octets of the smallest entry of attestation keys.
const LEAST_KEYS: usize = 4 + 4 + 33;
/// Octets of the smallest address.
const LEAST_ADDRESS: usize = 5;

/// A slot's number in the member set, from zero.
pub type SlotId = u32;

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
    /// Rises with each set.
    pub number: u64,
    /// Slots in the order in which they joined.
    pub slots: Vec<Slot>,
    /// The keys with which members' ASes sign paths, by ascending suite. An AS without an entry signs nothing.
    pub attest: BTreeMap<Asn, Vec<AttestKey>>,
}

/// A [`MemberSet`] and its operator's signature, not yet verified ([`SignedMemberSet::verify`]).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SignedMemberSet {
    set: MemberSet,
    signature: Signature,
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
    #[error("slot {0} was changed; mark it as left and append a new slot")]
    ChangedInPlace(SlotId),
}

/// Why bytes are not a signed member set.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DecodeError {
    /// The bytes are not fields of the encoding.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// The encoding's version is not ours.
    #[error("unknown version {0}")]
    Version(u8),
    /// The fields are well formed, but not a member set.
    #[error(transparent)]
    Set(#[from] SetError),
}

/// The signature is not the operator's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the member set is not signed by the exchange's key")]
pub struct NotSigned;

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
        let mut out = Writer::new();
        for (asn, keys) in self.neighbours() {
            write_keys(&mut out, asn, keys);
        }
        hash("wayleave/directory/neighbours/v1", &[&out.finish()])
    }

    /// The hash of the set's canonical encoding, which names it in headers and views.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        hash(LABEL, &[&self.encode()])
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

    /// Whether this set may replace `previous`: its number rises, and nothing that was there changed except that
    /// members left. An existing slot's keys, AS, name, addresses and limit never change in place.
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

    /// Signs the set with the operator's key.
    pub fn sign(self, key: &SigningKey) -> Result<SignedMemberSet, SetError> {
        self.check()?;
        let signature = key.sign(LABEL, &self.encode());
        Ok(SignedMemberSet { set: self, signature })
    }

    /// The canonical encoding, which the signature covers: version 8, exchange (counted), number 64, slots (counted) of
    /// active 8, AS 32, name (counted), addresses (counted) of family 8 (4 or 6) and octets, certificate 256, key 256,
    /// prefix limit 32; counts have 32 bits. Version 2 adds ASes (counted), ascending, of AS 32, keys (counted) of suite 8
    /// and key 256; there is at least one. Different sets never encode alike.
    fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.u8(if self.attest.is_empty() { VERSION } else { VERSION_WITH_KEYS });
        out.blob(self.exchange.as_bytes()).u64(self.number).list(&self.slots, |out, slot| slot.encode(out));
        if !self.attest.is_empty() {
            out.count(self.attest.len());
            self.attest.iter().for_each(|(asn, keys)| write_keys(&mut out, *asn, keys));
        }
        out.finish()
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let version = reader.u8()?;
        if version != VERSION && version != VERSION_WITH_KEYS {
            return Err(DecodeError::Version(version));
        }
        let exchange = text(reader, MAX_EXCHANGE_NAME)?;
        let number = reader.u64()?;
        let slots = reader.list(LEAST_SLOT, MAX_SLOTS, Slot::decode)?;
        let attest = if version == VERSION_WITH_KEYS { attest_keys(reader)? } else { BTreeMap::new() };
        let set = Self { exchange, number, slots, attest };
        set.check()?;
        Ok(set)
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

    fn check(&self, id: SlotId) -> Result<(), SetError> {
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
        let unchanged = Slot { active: before.active, ..self.clone() } == *before;
        if unchanged { Ok(()) } else { Err(SetError::ChangedInPlace(id)) }
    }

    fn encode(&self, out: &mut Writer) {
        out.bool(self.active).u32(self.asn.0).blob(self.name.as_bytes());
        out.list(&self.addresses, |out, address| {
            match address {
                IpAddr::V4(v4) => out.u8(4).bytes(&v4.octets()),
                IpAddr::V6(v6) => out.u8(6).bytes(&v6.octets()),
            };
        });
        out.bytes(&self.tls).bytes(&self.sign).u32(self.max_prefix);
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            active: reader.bool()?,
            asn: Asn(reader.u32()?),
            name: text(reader, MAX_SLOT_NAME)?,
            addresses: reader.list(LEAST_ADDRESS, MAX_ADDRESSES, address)?,
            tls: reader.array()?,
            sign: reader.array()?,
            max_prefix: reader.u32()?,
        })
    }
}

impl SignedMemberSet {
    /// The canonical encoding, then the 64-byte signature.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        [self.set.encode().as_slice(), &self.signature].concat()
    }

    /// Reads what [`SignedMemberSet::encode`] wrote, all of it. The signature is not checked here.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let set = MemberSet::decode(&mut reader)?;
        let signature = reader.array()?;
        reader.end()?;
        Ok(Self { set, signature })
    }

    /// The set, once the operator's signature over it holds.
    pub fn verify(&self, operator: &VerifyingKey) -> Result<&MemberSet, NotSigned> {
        operator.verify(LABEL, &self.set.encode(), &self.signature).map_err(|_| NotSigned)?;
        Ok(&self.set)
    }

    /// Reads a signed set and checks the operator's signature: `None` if either fails.
    #[must_use]
    pub fn open(bytes: &[u8], operator: &VerifyingKey) -> Option<MemberSet> {
        let signed = Self::decode(bytes).ok()?;
        signed.verify(operator).ok()?;
        Some(signed.set)
    }
}

/// Printable: no control characters, so that a name cannot break a log line or a terminal.
fn is_name(text: &str, most: usize) -> bool {
    (1..=most).contains(&text.len()) && !text.chars().any(char::is_control)
}

fn write_keys(out: &mut Writer, asn: Asn, keys: &[AttestKey]) {
    out.u32(asn.0).list(keys, |out, key| {
        out.u8(key.suite).bytes(&key.key);
    });
}

fn attest_keys(reader: &mut Reader<'_>) -> Result<BTreeMap<Asn, Vec<AttestKey>>, Malformed> {
    let entries = reader.list(LEAST_KEYS, MAX_SLOTS, |reader| {
        let asn = Asn(reader.u32()?);
        let keys = reader.list(33, MAX_ATTEST_KEYS, |reader| {
            Ok::<_, Malformed>(AttestKey { suite: reader.u8()?, key: reader.array()? })
        })?;
        Ok::<_, Malformed>((asn, keys))
    })?;
    if entries.is_empty() || !entries.is_sorted_by(|a, b| a.0 < b.0) {
        return Err(Malformed::Order("attestation keys"));
    }
    Ok(entries.into_iter().collect())
}

fn text(reader: &mut Reader<'_>, most: usize) -> Result<String, Malformed> {
    let text = std::str::from_utf8(reader.blob(most)?).map_err(|_| Malformed::Value("name"))?;
    Ok(text.to_owned())
}

fn address(reader: &mut Reader<'_>) -> Result<IpAddr, Malformed> {
    match reader.u8()? {
        4 => Ok(Ipv4Addr::from(reader.array::<4>()?).into()),
        6 => Ok(Ipv6Addr::from(reader.array::<16>()?).into()),
        _ => Err(Malformed::Value("address family")),
    }
}
