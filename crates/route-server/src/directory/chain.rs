//! The history of member sets: steps that both operators signed, each with the hash of the one before, and removals.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use wayleave_core::Asn;
use wayleave_core::wire::{Malformed, Reader, Wire, Writer};
use wayleave_crypto::hash::hash;
use wayleave_crypto::sign::{Signature, SigningKey, VerifyingKey};

use super::claim::{is_signed, read_addresses, text, write_addresses};
use super::removal::{LENGTH as REMOVAL, Removal};
use super::set::is_name;
use super::{
    AttestKey, Claim, Consent, DataRules, MAX_ENCODED, MAX_EXCHANGE_NAME, MAX_SLOTS, MemberSet, Profile, Request,
    SetError, Slot, SlotId,
};
use crate::key_roles::KeyRole;

const LABEL_ORIGIN: &str = "wayleave/directory/origin/v2";
const LABEL_STEP: &str = "wayleave/directory/step/v2";
const LABEL_ROLL: &str = "wayleave/directory/operator/v2";
const LABEL_ID: &str = "wayleave/directory/in-force/v2";
/// Version of the encoding. 1 was a set signed by one operator.
const VERSION: u8 = 2;
/// Steps of a directory: our own limit, beyond what [`MAX_ENCODED`] holds of useful ones.
const MAX_STEPS: usize = 1 << 15;
/// Changes of one step: enough to admit all members at once.
const MAX_CHANGES: usize = MAX_SLOTS;
/// Changes of all steps: our own limit, above what [`MAX_ENCODED`] holds of useful ones. The smallest change has few octets,
/// and what it decodes to a hundred times as many.
const MAX_ALL_CHANGES: usize = 1 << 16;
/// Octets that steps leave free, so that whoever is a member can be removed.
const ROOM_FOR_REMOVALS: usize = MAX_SLOTS * REMOVAL;
/// Octets of the smallest step, with its signatures, and of the smallest change.
const LEAST_STEP: usize = 8 + 32 + 4 + LEAST_CHANGE + 128;
const LEAST_CHANGE: usize = 5;

/// How a new slot stands to the earlier slots of its AS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Registration {
    /// There are none.
    First,
    /// The key of the slot `by` consents ([`Consent::Further`]).
    Endorsed { by: SlotId, signature: Signature },
    /// None of them consents: announcers may hold the slot.
    Held,
}

/// One change of the member set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// A new slot, after all others.
    Join { claim: Claim, signature: Signature, registration: Registration, max_prefix: u32 },
    /// New keys, certificate or addresses of a slot; its present key consents ([`Consent::Renewal`]).
    Renew { slot: SlotId, claim: Claim, signature: Signature, consent: Signature },
    /// Other addresses and another limit, which the operators set.
    Amend { slot: SlotId, addresses: Vec<IpAddr>, max_prefix: u32 },
    /// A slot that is held gets the consent of an earlier slot of its AS.
    Endorse { slot: SlotId, by: SlotId, signature: Signature },
    /// The slot's member has left: both operators confirm what a [`Removal`] said.
    Left { slot: SlotId },
    /// The operator of `party` (1 or 2) has a new key, which proves itself by `proof`.
    Operator { party: u8, key: [u8; 32], proof: Signature },
    /// What every route must be from now on, in the place of what an earlier step said.
    Profile(Profile),
    /// Who signs data from now on, and what is refused by them; `None`: the exchange has none.
    Data(Option<DataRules>),
}

/// A member set as a change of the one before.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    /// 1 for the first set; one more than the step before.
    pub number: u64,
    /// The hash of the step before; of the directory's origin for the first.
    pub previous: [u8; 32],
    pub changes: Vec<Change>,
}

/// A step with the signatures of party 1's and party 2's operators.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SignedStep {
    pub step: Step,
    pub signatures: [Signature; 2],
}

/// Names what is in force: equal only if every signed set and every removal is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SetId {
    /// [`MemberSet::number`].
    pub number: u64,
    pub hash: [u8; 32],
}

/// Whom a configuration trusts: the exchange, and the operators of both parties.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trust {
    pub exchange: String,
    /// Public keys of party 1's and party 2's operators, at any time of the directory.
    pub operators: [[u8; 32]; 2],
}

/// What another copy of the directory is to the one in force.
#[derive(Clone, Debug)]
pub enum Succession {
    /// It says the same.
    Same,
    /// It ends before ours, or lacks removals; the set that it shows.
    Older(SetId),
    /// It goes on from ours. The directory has all that either copy had; the set is the one that the copy shows.
    Newer(Box<Directory>, SetId),
}

/// Why bytes are not a directory, or not one that may follow. Numbers are those of steps.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ChainError {
    #[error(transparent)]
    Malformed(#[from] Malformed),
    #[error("version {0} is unknown; this is version {VERSION}")]
    Version(u8),
    #[error("set {number}: {error}")]
    Set { number: u64, error: SetError },
    #[error("the directory: {0}")]
    Origin(SetError),
    #[error("set {expected} was expected, not {found}")]
    Number { expected: u64, found: u64 },
    #[error("set {0} names another set as the one before it")]
    Previous(u64),
    #[error("set {number} is not signed by the operator of party {party}")]
    NotSigned { number: u64, party: u8 },
    #[error("the removal of slot {0} is not signed by an operator")]
    Removal(SlotId),
    #[error("the set is of the exchange `{0}`")]
    OtherExchange(String),
    #[error("the set begins with other operators' keys")]
    OtherOperators,
    #[error("set {0} is not the one that was in force: the operators signed two sets of one number")]
    Diverges(u64),
    #[error("more than {MAX_ENCODED} octets; the exchange must begin a new directory")]
    Full,
}

/// The history of an exchange's member sets, all of it checked.
#[derive(Clone, Debug)]
pub struct Directory {
    exchange: String,
    steps: Vec<Arc<SignedStep>>,
    /// The hash of the origin, then of each step.
    heads: Vec<[u8; 32]>,
    /// The operators' keys after each of `heads`.
    operators: Vec<[[u8; 32]; 2]>,
    /// How many slots had left, by the steps alone, and how many there were, after each of `heads`.
    left: Vec<u64>,
    slots: Vec<usize>,
    /// Changes of all steps.
    changes: usize,
    state: State,
    removals: BTreeMap<SlotId, Removal>,
    set: Arc<MemberSet>,
}

/// What the steps so far come to; removals are not in it.
#[derive(Clone, Debug, Default)]
struct State {
    slots: Vec<Slot>,
    claims: Vec<Claim>,
    /// The signing keys that each slot had before its present one.
    past: Vec<Vec<[u8; 32]>>,
    /// Every certificate and signing key that a slot ever had.
    spent: BTreeSet<[u8; 32]>,
    /// Every key that an operator ever had.
    operators_spent: BTreeSet<[u8; 32]>,
    /// Every key with which an operator's machine ever signed data, and that operator's party.
    machines_spent: BTreeMap<[u8; 32], u8>,
    /// How many slots have left.
    left: u64,
    profile: Option<Profile>,
    data: Option<DataRules>,
    index: Index,
}

/// Where a state has what a change must not have too: a history is read in time that grows with its length, not with its
/// square.
#[derive(Clone, Debug, Default)]
struct Index {
    /// All slots of an AS.
    of_as: BTreeMap<Asn, Vec<SlotId>>,
    /// The active slot of a name, and the active slots that have an address.
    names: BTreeMap<String, SlotId>,
    addresses: BTreeMap<IpAddr, Vec<SlotId>>,
    /// Every attestation key that a claim ever listed, replaced ones and those of former members among them.
    attest: BTreeSet<[u8; 32]>,
}

impl Index {
    fn list(&mut self, id: SlotId, slot: &Slot) {
        self.names.insert(slot.name.clone(), id);
        slot.addresses.iter().for_each(|address| self.addresses.entry(*address).or_default().push(id));
    }

    fn unlist(&mut self, id: SlotId, slot: &Slot) {
        self.names.remove(&slot.name);
        slot.addresses.iter().for_each(|address| remove(&mut self.addresses, address, id));
    }

    fn list_claim(&mut self, claim: &Claim) {
        self.attest.extend(claim.attest.iter().map(|key| key.key));
    }
}

/// Removes one mention of a slot.
fn remove<K: Ord>(lists: &mut BTreeMap<K, Vec<SlotId>>, key: &K, id: SlotId) {
    let Some(list) = lists.get_mut(key) else { return };
    if let Some(at) = list.iter().position(|listed| *listed == id) {
        list.swap_remove(at);
    }
    if list.is_empty() {
        lists.remove(key);
    }
}

impl PartialEq for Directory {
    fn eq(&self, other: &Self) -> bool {
        self.heads == other.heads && self.removals == other.removals
    }
}

impl Directory {
    /// A directory without a member. Both operators' keys are part of it, so that everyone who names them agrees on it.
    pub fn new(exchange: &str, operators: [[u8; 32]; 2]) -> Result<Self, ChainError> {
        if !is_name(exchange, MAX_EXCHANGE_NAME) {
            return Err(ChainError::Origin(SetError::ExchangeName));
        }
        if operators.iter().any(|key| VerifyingKey::from_bytes(key).is_err()) {
            return Err(ChainError::Origin(SetError::NotAKey));
        }
        if operators[0] == operators[1] {
            return Err(ChainError::Origin(SetError::KeyInTwoRoles));
        }
        let origin = hash(LABEL_ORIGIN, &[exchange.as_bytes(), &operators[0], &operators[1]]);
        let state = State { operators_spent: BTreeSet::from(operators), ..State::default() };
        let mut directory = Self {
            exchange: exchange.to_owned(),
            steps: Vec::new(),
            heads: vec![origin],
            operators: vec![operators],
            left: vec![0],
            slots: vec![0],
            changes: 0,
            set: Arc::new(state.set(exchange, &BTreeMap::new(), 0)),
            state,
            removals: BTreeMap::new(),
        };
        directory.renew();
        Ok(directory)
    }

    /// The set in force.
    #[must_use]
    pub fn set(&self) -> &Arc<MemberSet> {
        &self.set
    }

    /// Names what is in force.
    #[must_use]
    pub fn id(&self) -> SetId {
        self.id_at(self.steps.len(), self.removals.keys().copied())
    }

    /// The hash with which the history begins, over the exchange's name and both operators' first keys.
    #[must_use]
    pub fn origin(&self) -> [u8; 32] {
        self.heads[0]
    }

    /// The operators' present keys.
    #[must_use]
    pub fn operators(&self) -> [[u8; 32]; 2] {
        self.operators[self.operators.len() - 1]
    }

    /// The party, 1 or 2, whose operator now has this key.
    #[must_use]
    pub fn party_of(&self, operator: &[u8; 32]) -> Option<u8> {
        (1..).zip(self.operators()).find(|(_, key)| key == operator).map(|(party, _)| party)
    }

    /// What both operators signed, in order.
    #[must_use]
    pub fn steps(&self) -> &[Arc<SignedStep>] {
        &self.steps
    }

    /// Removals that no signed set confirms yet.
    pub fn removals(&self) -> impl Iterator<Item = &Removal> {
        self.removals.values()
    }

    /// Active slots whose AS has, or had, an earlier one: each is an event at every announcer.
    pub fn further_slots(&self) -> impl Iterator<Item = (SlotId, &Slot)> {
        let mut seen = BTreeSet::new();
        self.set.iter().filter(move |(_, slot)| !seen.insert(slot.asn)).filter(|(_, slot)| slot.active)
    }

    /// What the holder of a slot last signed about it.
    #[must_use]
    pub fn claim(&self, slot: SlotId) -> Option<&Claim> {
        self.state.claims.get(slot as usize)
    }

    /// By slot, the keys with which its routes may be signed: the present one, then those that it had before. Both parties
    /// take objects under the present key only, so what they deliver under an earlier one was announced while that one was in
    /// force.
    #[must_use]
    pub fn signing_keys(&self) -> Vec<Vec<VerifyingKey>> {
        let keys = |(slot, past): (&Slot, &Vec<[u8; 32]>)| {
            let all = std::iter::once(&slot.sign).chain(past.iter().rev());
            all.filter_map(|key| VerifyingKey::from_bytes(key).ok()).collect()
        };
        self.state.slots.iter().zip(&self.state.past).map(keys).collect()
    }

    /// Whether the configuration's exchange is this one, and its operators are, or once were, this one's.
    pub fn check(&self, trust: &Trust) -> Result<(), ChainError> {
        if self.exchange != trust.exchange {
            return Err(ChainError::OtherExchange(self.exchange.clone()));
        }
        if self.operators.contains(&trust.operators) { Ok(()) } else { Err(ChainError::OtherOperators) }
    }

    /// Reads a directory of a trusted exchange and checks all of it.
    pub fn open(bytes: &[u8], trust: &Trust) -> Result<Self, ChainError> {
        let directory = Self::decode(bytes)?;
        directory.check(trust)?;
        Ok(directory)
    }

    /// The encoding: version 8, exchange (counted), the operators' first keys 2 * 256, steps (counted), removals (counted),
    /// ascending by slot. A step is number 64, previous 256, changes (counted), signatures 2 * 512; counts have 32 bits.
    /// Different directories never encode alike.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.u8(VERSION).blob(self.exchange.as_bytes()).bytes(&self.operators[0][0]).bytes(&self.operators[0][1]);
        out.list32(&self.steps, |out, signed| {
            signed.step.write(out);
            out.bytes(&signed.signatures[0]).bytes(&signed.signatures[1]);
        });
        out.count32(self.removals.len());
        self.removals.values().for_each(|removal| removal.write(&mut out));
        out.finish()
    }

    /// Reads what [`Directory::encode`] wrote, all of it, and checks every step and signature. Whether its operators are to
    /// be trusted is another question ([`Directory::check`]).
    pub fn decode(bytes: &[u8]) -> Result<Self, ChainError> {
        let raw = Raw::read(bytes)?;
        let mut directory = Self::new(&raw.exchange, raw.operators)?;
        for signed in raw.steps {
            directory.append(signed)?;
        }
        for removal in raw.removals {
            directory.insert(removal)?;
        }
        directory.renew();
        Ok(directory)
    }

    /// What another copy is to this one. Only what goes beyond this one is checked, since the rest is equal to it.
    pub fn succeed(&self, bytes: &[u8]) -> Result<Succession, ChainError> {
        let raw = Raw::read(bytes)?;
        if raw.exchange != self.exchange {
            return Err(ChainError::OtherExchange(raw.exchange));
        }
        if raw.operators != self.operators[0] {
            return Err(ChainError::OtherOperators);
        }
        let ours = self.heads[1..].iter().zip(&raw.steps);
        if let Some((_, theirs)) = ours.clone().find(|(head, theirs)| **head != theirs.step.digest()) {
            return Err(ChainError::Diverges(theirs.step.number));
        }
        let (count, mut next) = (raw.steps.len(), self.clone());
        for signed in raw.steps.into_iter().skip(self.steps.len()) {
            next.append(signed)?;
        }
        let shown = next.id_at(count, raw.removals.iter().map(|removal| removal.slot));
        for removal in raw.removals {
            next.insert(removal)?;
        }
        next.renew();
        Ok(if next.id() != self.id() {
            Succession::Newer(Box::new(next), shown)
        } else if shown == self.id() {
            Succession::Same
        } else {
            Succession::Older(shown)
        })
    }

    /// The next step with these changes. Removals that are not confirmed yet come first.
    #[must_use]
    pub fn propose(&self, changes: Vec<Change>) -> Step {
        let confirmed = self.removals.keys().map(|slot| Change::Left { slot: *slot });
        Step {
            number: self.steps.len() as u64 + 1,
            previous: self.heads[self.heads.len() - 1],
            changes: confirmed.chain(changes).collect(),
        }
    }

    /// Whether an operator may sign the step as the next one; signatures of operators are not asked for. A slot that was
    /// removed here is as one that has left, whether or not the step confirms it: it has no say, and nothing of it changes.
    pub fn check_step(&self, step: &Step) -> Result<(), ChainError> {
        self.check_place(step)?;
        self.state.clone().apply_step(&self.exchange, step, &mut self.operators())?;
        let mut state = self.state.clone();
        self.removals.keys().for_each(|slot| state.leave(*slot));
        let confirms = |change: &&Change| matches!(change, Change::Left { slot } if self.removals.contains_key(slot));
        let changes: Vec<Change> = step.changes.iter().filter(|change| !confirms(change)).cloned().collect();
        if self.removals.is_empty() || changes.is_empty() {
            return Ok(());
        }
        state.apply_step(&self.exchange, &Step { changes, ..step.clone() }, &mut self.operators())
    }

    /// The directory with one more step.
    pub fn with(&self, signed: SignedStep) -> Result<Self, ChainError> {
        let mut next = self.clone();
        next.append(signed)?;
        next.renew();
        let steps = next.encode().len() - next.removals.len() * REMOVAL;
        if steps + ROOM_FOR_REMOVALS > MAX_ENCODED { Err(ChainError::Full) } else { Ok(next) }
    }

    /// The next step, signed by both operators, whose keys are in one place: of a laboratory or a trial.
    pub fn signed_by_both(&self, changes: Vec<Change>, operators: [&SigningKey; 2]) -> Result<Self, ChainError> {
        let step = self.propose(changes);
        let signatures = operators.map(|key| step.sign(key));
        self.with(SignedStep { step, signatures })
    }

    /// The directory without the member of a slot. `key` is an operator's.
    pub fn without(&self, slot: SlotId, key: &SigningKey) -> Result<Self, ChainError> {
        let number = self.steps.len() as u64;
        let party = self.party_of(&key.verifying_key().to_bytes()).ok_or(ChainError::Removal(slot))?;
        let error = ChainError::Set { number, error: SetError::NoSlot(slot) };
        let asn = self.set.active(slot).ok_or(error)?.asn;
        let mut next = self.clone();
        next.insert(Removal::sign(&self.origin(), number, slot, asn, party, key))?;
        next.renew();
        Ok(next)
    }

    /// The change that a member's request asks for, if it is of this exchange and its signatures hold.
    pub fn requested(&self, request: &Request, max_prefix: u32) -> Result<Change, ChainError> {
        let Request { exchange, claim, signature, consent } = request;
        if *exchange != self.exchange {
            return Err(ChainError::OtherExchange(exchange.clone()));
        }
        let (claim, signature) = (claim.clone(), *signature);
        let slot_of = |key: &[u8; 32]| self.state.slots.iter().rposition(|slot| slot.sign == *key);
        let slot_of = |key: &[u8; 32]| slot_of(key).and_then(|slot| SlotId::try_from(slot).ok());
        let refused = |error| ChainError::Set { number: self.steps.len() as u64 + 1, error };
        let next = SlotId::try_from(self.state.slots.len()).unwrap_or(SlotId::MAX);
        match consent {
            Some((Consent::Renewal, key, consent)) => {
                let slot = slot_of(key).ok_or(refused(SetError::NotRenewed(next)))?;
                Ok(Change::Renew { slot, claim, signature, consent: *consent })
            }
            Some((Consent::Further, key, consent)) => {
                let by = slot_of(key).ok_or(refused(SetError::NotEndorsed(next, claim.asn)))?;
                let held = self.state.claims.iter().position(|known| *known == claim);
                Ok(match held.and_then(|slot| SlotId::try_from(slot).ok()) {
                    // It is there, and was held: now a key of the AS that had been lost has signed for it.
                    Some(slot) => Change::Endorse { slot, by, signature: *consent },
                    None => {
                        let registration = Registration::Endorsed { by, signature: *consent };
                        Change::Join { claim, signature, registration, max_prefix }
                    }
                })
            }
            None => {
                let is_first = self.state.slots.iter().all(|slot| slot.asn != claim.asn);
                let registration = if is_first { Registration::First } else { Registration::Held };
                Ok(Change::Join { claim, signature, registration, max_prefix })
            }
        }
    }

    /// What the holder of a slot last signed about it, for a further slot's key of its AS to consent to.
    #[must_use]
    pub fn request_of(&self, slot: SlotId) -> Option<Request> {
        let claimed = self.claim(slot)?;
        let changes = self.steps.iter().rev().flat_map(|signed| signed.step.changes.iter().rev());
        let signature = changes.into_iter().find_map(|change| match change {
            Change::Join { claim, signature, .. } | Change::Renew { claim, signature, .. } if claim == claimed => {
                Some(*signature)
            }
            _ => None,
        })?;
        Some(Request { exchange: self.exchange.clone(), claim: claimed.clone(), signature, consent: None })
    }

    /// Every key of the history and its role, those that were replaced and those of former members among them.
    pub fn keys_ever(&self) -> impl Iterator<Item = (KeyRole, [u8; 32])> {
        let operators = self.operators.iter().flat_map(|keys| [1, 2].map(KeyRole::Operator).into_iter().zip(*keys));
        let mut next: SlotId = 0;
        let claims = self.steps.iter().flat_map(|signed| &signed.step.changes).filter_map(move |change| match change {
            Change::Join { claim, .. } => {
                next += 1;
                Some((next - 1, claim))
            }
            Change::Renew { slot, claim, .. } => Some((*slot, claim)),
            _ => None,
        });
        let of_claim = |(slot, claim): (SlotId, &Claim)| {
            let asn = claim.asn;
            let attest: Vec<_> = claim.attest.iter().map(|key| (KeyRole::Attestation(asn), key.key)).collect();
            [(KeyRole::SlotCertificate(slot), claim.tls), (KeyRole::SlotSigning(slot), claim.sign)]
                .into_iter()
                .chain(attest)
        };
        let machines = self.steps.iter().flat_map(|signed| &signed.step.changes).filter_map(|change| match change {
            Change::Data(Some(data)) => Some([1, 2].map(KeyRole::Machine).into_iter().zip(data.keys)),
            _ => None,
        });
        operators.chain(machines.flatten()).chain(claims.flat_map(of_claim))
    }

    fn id_at(&self, steps: usize, removed: impl Iterator<Item = SlotId>) -> SetId {
        let mut out = Writer::new();
        out.bytes(&self.heads[steps]);
        let slots: BTreeSet<SlotId> = removed.collect();
        // Whoever a signed set says has left needs no removal.
        let left = |slot: &SlotId| self.state.slots.get(*slot as usize).is_some_and(|slot| !slot.active);
        let open: Vec<SlotId> = slots.into_iter().filter(|slot| steps < self.steps.len() || !left(slot)).collect();
        out.list32(&open, |out, slot| {
            out.u32(*slot);
        });
        let number = steps as u64 + self.left[steps] + open.len() as u64;
        SetId { number, hash: hash(LABEL_ID, &[&out.finish()]) }
    }

    /// What is in force follows from the steps and the removals.
    fn renew(&mut self) {
        let slots = &self.state.slots;
        self.removals.retain(|slot, _| slots.get(*slot as usize).is_some_and(|slot| slot.active));
        let number = self.steps.len() as u64 + self.left[self.steps.len()] + self.removals.len() as u64;
        self.set = Arc::new(self.state.set(&self.exchange, &self.removals, number));
    }

    /// Whether the step names this directory's last one.
    fn check_place(&self, step: &Step) -> Result<(), ChainError> {
        let expected = self.steps.len() as u64 + 1;
        if step.number != expected {
            return Err(ChainError::Number { expected, found: step.number });
        }
        if step.previous != self.heads[self.heads.len() - 1] {
            return Err(ChainError::Previous(step.number));
        }
        Ok(())
    }

    /// Adds a step. A directory that refuses one is left as it is by then, and every caller drops it: to keep a copy for each
    /// step would take time that grows with the square of the history.
    fn append(&mut self, signed: SignedStep) -> Result<(), ChainError> {
        let step = &signed.step;
        let changes = self.changes.saturating_add(step.changes.len());
        if self.steps.len() >= MAX_STEPS || changes > MAX_ALL_CHANGES {
            return Err(ChainError::Full);
        }
        self.check_place(step)?;
        let before = self.operators();
        // The operators' signatures first: only they can make others verify what members signed.
        let bytes = step.encode();
        for (party, (operator, signature)) in (1..).zip(before.iter().zip(&signed.signatures)) {
            if !is_signed(LABEL_STEP, &bytes, operator, signature) {
                return Err(ChainError::NotSigned { number: step.number, party });
            }
        }
        let mut operators = before;
        self.state.apply_step(&self.exchange, step, &mut operators)?;
        self.changes = changes;
        self.heads.push(step.digest());
        self.operators.push(operators);
        self.left.push(self.state.left);
        self.slots.push(self.state.slots.len());
        self.steps.push(Arc::new(signed));
        Ok(())
    }

    fn insert(&mut self, removal: Removal) -> Result<(), ChainError> {
        let refused = ChainError::Removal(removal.slot);
        let under = usize::try_from(removal.under).unwrap_or(usize::MAX);
        let operator = self.operators.get(under).map(|keys| keys[usize::from(removal.party == 2)]);
        let is_known = self.state.slots.get(removal.slot as usize).is_some_and(|slot| slot.asn == removal.asn);
        // A key that was replaced ends no slot that came after it.
        let was_there = self.slots.get(under).is_some_and(|slots| (removal.slot as usize) < *slots);
        if !is_known || !was_there || !operator.is_some_and(|operator| removal.is_signed(&self.origin(), &operator)) {
            return Err(refused);
        }
        // Where both operators removed one slot, every copy keeps the same one of the two.
        let order = |removal: &Removal| (removal.party, removal.under, removal.signature);
        let kept = self.removals.entry(removal.slot).or_insert(removal);
        if order(&removal) < order(kept) {
            *kept = removal;
        }
        Ok(())
    }
}

impl State {
    /// The set in force with these removals.
    fn set(&self, exchange: &str, removals: &BTreeMap<SlotId, Removal>, number: u64) -> MemberSet {
        let mut slots = self.slots.clone();
        for slot in removals.keys() {
            if let Some(slot) = slots.get_mut(*slot as usize) {
                slot.active = false;
            }
        }
        let mut attest: BTreeMap<Asn, Vec<AttestKey>> = BTreeMap::new();
        // No key of the AS signed for a slot that is held, so that one does not say what the AS signs with.
        let says = |slot: &Slot, claim: &Claim| slot.active && !slot.held && !claim.attest.is_empty();
        let listed = slots.iter().zip(&self.claims).filter(|(slot, claim)| says(slot, claim));
        for (slot, claim) in listed {
            attest.entry(slot.asn).or_insert_with(|| claim.attest.clone());
        }
        let (profile, data) = (self.profile.clone(), self.data.clone());
        MemberSet { exchange: exchange.to_owned(), number, slots, attest, profile, data }
    }

    fn apply_step(&mut self, exchange: &str, step: &Step, operators: &mut [[u8; 32]; 2]) -> Result<(), ChainError> {
        let failed = |error| ChainError::Set { number: step.number, error };
        if step.changes.is_empty() {
            return Err(failed(SetError::Empty));
        }
        step.changes.iter().try_for_each(|change| self.apply(exchange, change, step, operators).map_err(failed))
    }

    fn apply(
        &mut self,
        exchange: &str,
        change: &Change,
        step: &Step,
        operators: &mut [[u8; 32]; 2],
    ) -> Result<(), SetError> {
        match change {
            Change::Join { claim, signature, registration, max_prefix } => {
                let id = SlotId::try_from(self.slots.len()).unwrap_or(SlotId::MAX);
                if self.slots.len() >= MAX_SLOTS {
                    return Err(SetError::TooManySlots(self.slots.len() + 1));
                }
                if !claim.is_signed(exchange, signature) {
                    return Err(SetError::NotClaimed(id));
                }
                let is_first = !self.index.of_as.contains_key(&claim.asn);
                match registration {
                    Registration::First if !is_first => return Err(SetError::MustBeHeld(id, claim.asn)),
                    Registration::First => {}
                    _ if is_first => return Err(SetError::NeedsNoMark(id, claim.asn)),
                    Registration::Held => {}
                    Registration::Endorsed { by, signature } => self.endorsed(exchange, id, claim, *by, signature)?,
                }
                let held = *registration == Registration::Held;
                let slot = Slot { active: true, ..slot_of(claim, claim.addresses.clone(), *max_prefix, held) };
                self.check_keys(id, claim, None)?;
                self.check_slot(id, &slot)?;
                self.spent.extend([claim.tls, claim.sign]);
                self.index.of_as.entry(claim.asn).or_default().push(id);
                self.index.list(id, &slot);
                self.index.list_claim(claim);
                self.slots.push(slot);
                self.claims.push(claim.clone());
                self.past.push(Vec::new());
            }
            Change::Renew { slot: id, claim, signature, consent } => {
                let before = self.active(*id)?.clone();
                if !claim.is_signed(exchange, signature) {
                    return Err(SetError::NotClaimed(*id));
                }
                if !Consent::Renewal.holds(exchange, claim, &before.sign, consent) {
                    return Err(SetError::NotRenewed(*id));
                }
                if claim.asn != before.asn || claim.name != before.name {
                    return Err(SetError::ChangedInPlace(*id));
                }
                if claim.serial <= self.claims[*id as usize].serial {
                    return Err(SetError::OldClaim(*id));
                }
                let slot = slot_of(claim, claim.addresses.clone(), before.max_prefix, before.held);
                self.check_keys(*id, claim, Some(&before))?;
                self.check_slot(*id, &slot)?;
                self.spent.extend([claim.tls, claim.sign]);
                if slot.sign != before.sign {
                    self.past[*id as usize].push(before.sign);
                }
                self.index.list_claim(claim);
                self.replace(*id, slot);
                self.claims[*id as usize] = claim.clone();
            }
            Change::Amend { slot: id, addresses, max_prefix } => {
                let before = self.active(*id)?;
                let slot = Slot { addresses: addresses.clone(), max_prefix: *max_prefix, ..before.clone() };
                if slot == *before {
                    return Err(SetError::Empty);
                }
                self.check_slot(*id, &slot)?;
                self.replace(*id, slot);
            }
            Change::Endorse { slot: id, by, signature } => {
                let slot = self.active(*id)?;
                if !slot.held {
                    return Err(SetError::NeedsNoMark(*id, slot.asn));
                }
                self.endorsed(exchange, *id, &self.claims[*id as usize], *by, signature)?;
                self.slots[*id as usize].held = false;
            }
            Change::Left { slot: id } => {
                self.active(*id)?;
                self.leave(*id);
            }
            Change::Operator { party, key, proof } => {
                let index = usize::from(*party == 2);
                let others = [operators[1 - index], *key];
                if VerifyingKey::from_bytes(key).is_err() {
                    return Err(SetError::NotAKey);
                }
                let is_members = self.spent.contains(key) || self.index.attest.contains(key);
                let is_machines = self.machines_spent.contains_key(key);
                if others[0] == *key || is_members || is_machines || self.operators_spent.contains(key) {
                    return Err(SetError::KeyInTwoRoles);
                }
                if !is_signed(LABEL_ROLL, &roll_bytes(step, *party, key), key, proof) {
                    return Err(SetError::OperatorProof(*party));
                }
                self.operators_spent.insert(*key);
                operators[index] = *key;
            }
            Change::Profile(profile) => {
                profile.check().map_err(SetError::Profile)?;
                if self.profile.as_ref() == Some(profile) {
                    return Err(SetError::Empty);
                }
                self.profile = Some(profile.clone());
            }
            Change::Data(data) => {
                data.as_ref().map_or(Ok(()), DataRules::check).map_err(SetError::Profile)?;
                if self.data == *data {
                    return Err(SetError::Empty);
                }
                for (party, key) in data.iter().flat_map(|rules| [1, 2].into_iter().zip(rules.keys)) {
                    let is_members = self.spent.contains(&key) || self.index.attest.contains(&key);
                    let is_others = *self.machines_spent.entry(key).or_insert(party) != party;
                    if is_members || is_others || self.operators_spent.contains(&key) {
                        return Err(SetError::KeyInTwoRoles);
                    }
                }
                self.data.clone_from(data);
            }
        }
        Ok(())
    }

    /// Ends an active slot.
    fn leave(&mut self, id: SlotId) {
        if let Some(slot) = self.slots.get_mut(id as usize).filter(|slot| slot.active) {
            slot.active = false;
            self.left += 1;
            self.index.unlist(id, slot);
        }
    }

    /// Puts another state of an active slot in its place.
    fn replace(&mut self, id: SlotId, slot: Slot) {
        let before = std::mem::replace(&mut self.slots[id as usize], slot);
        self.index.unlist(id, &before);
        self.index.list(id, &self.slots[id as usize]);
    }

    fn active(&self, id: SlotId) -> Result<&Slot, SetError> {
        self.slots.get(id as usize).filter(|slot| slot.active).ok_or(SetError::NoSlot(id))
    }

    /// Whether the key of the slot `by` consents to `claim` for the slot `id` of its AS. A slot that is held has no say, and a
    /// slot that has left none while another is there.
    fn endorsed(
        &self,
        exchange: &str,
        id: SlotId,
        claim: &Claim,
        by: SlotId,
        signature: &Signature,
    ) -> Result<(), SetError> {
        let of_as = |slot: &&Slot| slot.asn == claim.asn && !slot.held;
        let ids = self.index.of_as.get(&claim.asn).into_iter().flatten();
        let is_any_present = ids.filter_map(|id| self.slots.get(*id as usize)).filter(of_as).any(|slot| slot.active);
        let signer = self.slots.get(by as usize).filter(of_as).filter(|slot| slot.active || !is_any_present);
        let holds = |slot: &Slot| Consent::Further.holds(exchange, claim, &slot.sign, signature);
        if by != id && signer.is_some_and(holds) { Ok(()) } else { Err(SetError::NotEndorsed(id, claim.asn)) }
    }

    /// Keys of the claim are new, but for those that the slot had just before, and none has another role. Claims of two ASes
    /// may list one attestation key: nobody proves that it has one, so whoever listed another's key first could keep that
    /// one out, and gains nothing by it, since only the key's holder can sign with it.
    fn check_keys(&self, id: SlotId, claim: &Claim, before: Option<&Slot>) -> Result<(), SetError> {
        if VerifyingKey::from_bytes(&claim.sign).is_err() {
            return Err(SetError::NotAKey);
        }
        let is_old = |key: &[u8; 32], own: Option<[u8; 32]>| self.spent.contains(key) && own != Some(*key);
        if is_old(&claim.tls, before.map(|slot| slot.tls)) || is_old(&claim.sign, before.map(|slot| slot.sign)) {
            return Err(SetError::KeyTaken(id));
        }
        let own = [claim.tls, claim.sign];
        let attest = || claim.attest.iter().map(|key| key.key);
        let is_operators = |key: &[u8; 32]| self.operators_spent.contains(key) || self.machines_spent.contains_key(key);
        let in_two = attest().chain(own).any(|key| is_operators(&key))
            || claim.tls == claim.sign
            || attest().any(|key| own.contains(&key) || self.spent.contains(&key))
            || own.iter().any(|key| self.index.attest.contains(key));
        if in_two { Err(SetError::KeyInTwoRoles) } else { Ok(()) }
    }

    /// Name and addresses beside those of the other active slots.
    fn check_slot(&self, id: SlotId, slot: &Slot) -> Result<(), SetError> {
        slot.check(id)?;
        let mut own = BTreeSet::new();
        if let Some(twice) = slot.addresses.iter().find(|address| !own.insert(**address)) {
            return Err(SetError::AddressTaken(id, *twice));
        }
        if self.index.names.get(&slot.name).is_some_and(|other| *other != id) {
            return Err(SetError::NameTaken(id));
        }
        let is_others =
            |other: &SlotId| *other != id && self.slots.get(*other as usize).is_some_and(|other| other.asn != slot.asn);
        for address in &slot.addresses {
            if self.index.addresses.get(address).is_some_and(|owners| owners.iter().any(is_others)) {
                return Err(SetError::AddressTaken(id, *address));
            }
        }
        Ok(())
    }
}

fn slot_of(claim: &Claim, addresses: Vec<IpAddr>, max_prefix: u32, held: bool) -> Slot {
    Slot {
        active: true,
        asn: claim.asn,
        name: claim.name.clone(),
        addresses,
        tls: claim.tls,
        sign: claim.sign,
        max_prefix,
        held,
    }
}

fn roll_bytes(step: &Step, party: u8, key: &[u8; 32]) -> Vec<u8> {
    let mut out = Writer::new();
    out.u64(step.number).bytes(&step.previous).u8(party).bytes(key);
    out.finish()
}

impl Change {
    /// An operator's new key, for the step that comes after `directory`.
    #[must_use]
    pub fn operator(directory: &Directory, party: u8, key: &SigningKey) -> Self {
        let (step, public) = (directory.propose(Vec::new()), key.verifying_key().to_bytes());
        Self::Operator { party, key: public, proof: key.sign(LABEL_ROLL, &roll_bytes(&step, party, &public)) }
    }

    fn write(&self, out: &mut Writer) {
        match self {
            Self::Join { claim, signature, registration, max_prefix } => {
                out.u8(1);
                claim.write(out);
                out.bytes(signature);
                match registration {
                    Registration::First => out.u8(0),
                    Registration::Endorsed { by, signature } => out.u8(1).u32(*by).bytes(signature),
                    Registration::Held => out.u8(2),
                };
                out.u32(*max_prefix);
            }
            Self::Renew { slot, claim, signature, consent } => {
                out.u8(2).u32(*slot);
                claim.write(out);
                out.bytes(signature).bytes(consent);
            }
            Self::Amend { slot, addresses, max_prefix } => {
                out.u8(3).u32(*slot);
                write_addresses(out, addresses);
                out.u32(*max_prefix);
            }
            Self::Endorse { slot, by, signature } => {
                out.u8(4).u32(*slot).u32(*by).bytes(signature);
            }
            Self::Left { slot } => {
                out.u8(5).u32(*slot);
            }
            Self::Operator { party, key, proof } => {
                out.u8(6).u8(*party).bytes(key).bytes(proof);
            }
            Self::Profile(profile) => {
                out.u8(7);
                profile.write(out);
            }
            Self::Data(data) => {
                out.u8(8);
                data.write(out);
                // As long as the smallest change is, also without keys.
                out.bytes(if data.is_some() { &[] } else { &[0; 3] });
            }
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(match reader.u8()? {
            1 => Self::Join {
                claim: Claim::read(reader)?,
                signature: reader.array()?,
                registration: match reader.u8()? {
                    0 => Registration::First,
                    1 => Registration::Endorsed { by: reader.u32()?, signature: reader.array()? },
                    2 => Registration::Held,
                    _ => return Err(Malformed::Value("the registration of a slot")),
                },
                max_prefix: reader.u32()?,
            },
            2 => Self::Renew {
                slot: reader.u32()?,
                claim: Claim::read(reader)?,
                signature: reader.array()?,
                consent: reader.array()?,
            },
            3 => Self::Amend { slot: reader.u32()?, addresses: read_addresses(reader)?, max_prefix: reader.u32()? },
            4 => Self::Endorse { slot: reader.u32()?, by: reader.u32()?, signature: reader.array()? },
            5 => Self::Left { slot: reader.u32()? },
            6 => Self::Operator {
                party: match reader.u8()? {
                    party @ 1..=2 => party,
                    _ => return Err(Malformed::Value("the number of a party")),
                },
                key: reader.array()?,
                proof: reader.array()?,
            },
            7 => Self::Profile(Profile::read(reader)?),
            8 => Self::Data(match Option::<DataRules>::read(reader)? {
                None if reader.array::<3>()? != [0; 3] => return Err(Malformed::Value("the end of data")),
                data => data,
            }),
            _ => return Err(Malformed::Value("the kind of a change")),
        })
    }
}

impl Step {
    /// An operator's signature.
    #[must_use]
    pub fn sign(&self, key: &SigningKey) -> Signature {
        key.sign(LABEL_STEP, &self.encode())
    }

    /// Whether the operator with this key signed the step.
    #[must_use]
    pub fn is_signed(&self, operator: &[u8; 32], signature: &Signature) -> bool {
        is_signed(LABEL_STEP, &self.encode(), operator, signature)
    }

    /// The hash by which the next step names this one.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        hash(LABEL_STEP, &[&self.encode()])
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        self.write(&mut out);
        out.finish()
    }

    pub(super) fn write(&self, out: &mut Writer) {
        out.u64(self.number).bytes(&self.previous).list32(&self.changes, |out, change| change.write(out));
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            number: reader.u64()?,
            previous: reader.array()?,
            changes: reader.list32(LEAST_CHANGE, MAX_CHANGES, Change::read)?,
        })
    }
}

/// A directory as it was sent, not checked.
struct Raw {
    exchange: String,
    operators: [[u8; 32]; 2],
    steps: Vec<SignedStep>,
    removals: Vec<Removal>,
}

impl Raw {
    fn read(bytes: &[u8]) -> Result<Self, ChainError> {
        if bytes.len() > MAX_ENCODED {
            return Err(ChainError::Full);
        }
        let mut reader = Reader::new(bytes);
        let version = reader.u8()?;
        if version != VERSION {
            return Err(ChainError::Version(version));
        }
        let exchange = text(&mut reader, MAX_EXCHANGE_NAME)?;
        let operators = [reader.array()?, reader.array()?];
        let mut changes = 0;
        let steps = reader.list32(LEAST_STEP, MAX_STEPS, |reader| {
            let step = Step::read(reader)?;
            changes += step.changes.len();
            if changes > MAX_ALL_CHANGES {
                return Err(Malformed::TooMany { count: changes, most: MAX_ALL_CHANGES });
            }
            Ok::<_, Malformed>(SignedStep { step, signatures: [reader.array()?, reader.array()?] })
        })?;
        let removals = reader.list32(REMOVAL, MAX_SLOTS, Removal::read)?;
        reader.end()?;
        if !removals.is_sorted_by(|a, b| a.slot < b.slot) {
            return Err(Malformed::Order("removals").into());
        }
        Ok(Self { exchange, operators, steps, removals })
    }
}
