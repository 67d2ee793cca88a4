//! Signing: originate an attestation, extend a received one, and serve a burst of hops by one signature.

use std::collections::BTreeMap;
use std::fmt;

use wayleave_core::{Afi, Asn, Prefix};
use wayleave_crypto::secret::Seed;

use crate::burst::{BurstTree, MAX_BURST, OwnedOpening};
use crate::chain::{
    self, Attestation, DecodeError, Exports, Head, Hop, MAX_HOPS, MAX_PREFIXES, Next, Reader, SignedInput, Signer,
};
use crate::leaf::{KeyId, LEAF_KEY_LEN, Leaf, LeafKey, LeafView, Tree};
use crate::path::Path;
use crate::pki::key_tag;
use crate::suite::{Claim, SignError, Suite, SuiteId, SuiteKey};

/// Minutes that a hop holds unless configured otherwise: 24 hours.
pub const DEFAULT_LIFETIME: u16 = 24 * 60;
/// Neighbours up to which each hop gets a signature of its own; beyond, one signature serves a burst of hops.
pub const MAX_DIRECT: usize = 32;

/// A private key and its suite.
pub struct KeyPair {
    pub suite: SuiteId,
    /// The private key.
    pub key: Box<dyn SuiteKey>,
    /// Whether the PKI lists it for the AS.
    pub registered: bool,
}

impl KeyPair {
    /// How a leaf names it.
    #[must_use]
    pub fn leaf_key(&self) -> LeafKey {
        LeafKey::of(self.suite, self.key.public())
    }
}

/// The keys with which an AS signs, the preferred first.
#[derive(Default)]
pub struct KeyRing {
    /// The keys.
    pub pairs: Vec<KeyPair>,
}

impl fmt::Debug for KeyRing {
    /// Public parts only.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.pairs.iter().map(|pair| pair.leaf_key().id())).finish()
    }
}

/// The signing AS, as its hop describes it.
#[derive(Clone, Copy, Debug)]
pub struct Speaker {
    pub asn: Asn,
    /// How many times it puts its number into AS_PATH: 1 to 255.
    pub prepend: u8,
    /// Seconds since 1970 from which the hop holds. A later hop's is rounded down to whole minutes after the origin's.
    pub not_before: u64,
    /// Minutes that it holds.
    pub lifetime: u16,
}

/// What an origin announces.
#[derive(Clone, Copy, Debug)]
pub struct Origination<'a> {
    /// One to 32 prefixes of one family, in any order.
    pub prefixes: &'a [Prefix],
    /// Higher than in any earlier attestation of these prefixes.
    pub sequence: u64,
}

/// Whom a signed hop serves.
#[derive(Clone, Copy, Debug)]
pub enum Recipient<'a> {
    Neighbour(Asn, LeafView<'a>),
    /// All slots of a directory.
    Directory(&'a Tree),
}

impl Recipient<'_> {
    fn commitment(&self) -> [u8; 32] {
        match self {
            Recipient::Neighbour(asn, leaf) => leaf.commitment(*asn),
            Recipient::Directory(tree) => tree.root(),
        }
    }
}

/// Why no attestation was made. All are errors of the caller but [`AttestationError::Malformed`] and
/// [`AttestationError::NotOurs`], which are of whoever sent the received one, and [`AttestationError::Sign`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AttestationError {
    /// None, more than 32, twice the same, or of two families.
    #[error("a signed list has 1 to {MAX_PREFIXES} different prefixes of one family")]
    Prefixes,
    /// A prefix that the received attestation does not pass on, or none at all.
    #[error("the received attestation does not pass on what is to be announced")]
    NotExported,
    /// A count or time that the format cannot say.
    #[error("{0} is out of the range of the format")]
    Field(&'static str),
    /// The received value does not decode.
    #[error("the received attestation is malformed: {0}")]
    Malformed(#[from] DecodeError),
    /// The received hops do not match the path.
    #[error("the received attestation does not match the path")]
    Path,
    /// The last hop gives this AS no key that it holds, or gives a key where this AS would skip others.
    #[error("the received attestation names none of the keys that {0} holds")]
    NotOurs(Asn),
    /// The chain has as many hops as the format allows.
    #[error("a chain has at most {MAX_HOPS} hops")]
    TooLong,
    /// The last hop is for the receivers of a directory and was not opened: see [`open`].
    #[error("the last hop is for all members of an exchange, and was not opened for this one")]
    NotOpened,
    /// With no key that may sign does the value fit: the shortest has so many octets.
    #[error("the shortest attestation has {need} octets, more than the receiver takes")]
    TooLarge {
        /// Octets of the shortest.
        need: usize,
    },
    /// The key did not sign.
    #[error(transparent)]
    Sign(#[from] SignError),
    /// A key signed, and its public half does not verify it: a fault of the machine or of the key file. Nothing leaves.
    #[error("what a key of {0} signed does not verify: its key file or this machine is faulty")]
    Faulty(SuiteId),
}

/// An attribute's value with a new hop.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SignedAttestation {
    pub value: Vec<u8>,
    /// Whether a key that was preferred was passed over because its value would have been too long.
    pub is_smaller: bool,
    /// The key that signed the hop.
    pub key: KeyId,
}

/// Signs an announcement of the AS's own prefixes with the first registered key of `ring`. What is signed is not verified:
/// see [`sign_all`].
pub fn originate(
    origination: &Origination<'_>,
    speaker: &Speaker,
    ring: &mut KeyRing,
    recipient: Recipient<'_>,
) -> Result<SignedAttestation, AttestationError> {
    Draft::origination(origination, speaker, ring, recipient)?.sign(ring)
}

/// Extends `received` by a hop of `speaker`, which received it with `path` (its own AS not yet on it) and passes `exports` on.
///
/// `received` has been validated: what it lets this AS sign is taken from it as it stands. What is signed is not verified: see
/// [`sign_all`].
pub fn extend(
    received: &Attestation<'_>,
    path: &Path,
    exports: &[Prefix],
    speaker: &Speaker,
    ring: &mut KeyRing,
    recipient: Recipient<'_>,
) -> Result<SignedAttestation, AttestationError> {
    Draft::extension(received, path, exports, speaker, ring, recipient)?.sign(ring)
}

/// Writes `received`, whose last hop is for the receivers of `directory`, with the opening of `receiver`'s leaf, as the
/// receiver does before it passes the route on. Other attestations come back as they are.
pub fn open(received: &Attestation<'_>, directory: &Tree, receiver: Asn) -> Option<Vec<u8>> {
    let last = received.last_hop()?;
    if !matches!(last.next, Next::Directory) {
        return Some(received.octets().to_vec());
    }
    let opening = directory.opening(receiver)?;
    let octets = received.octets();
    let mut value = octets[..octets.len() - last.octets.len()].to_vec();
    let next = Next::Slot { leaf: opening.leaf.view(), index: opening.index, siblings: &opening.siblings };
    // At most 64 hops.
    Hop { next, ..last }.encode(received.hop_count() as u8 - 1, &mut value);
    Some(value)
}

/// A hop that is to be signed: all but the key.
#[derive(Debug)]
pub struct Draft {
    /// The value before it.
    value: Vec<u8>,
    afi: Afi,
    nlri: Vec<u8>,
    prefix_count: u8,
    sequence: u64,
    base_time: u64,
    index: u8,
    skipped: Vec<Asn>,
    previous: chain::ChainHash,
    speaker: Speaker,
    not_before_offset: u16,
    exports: Exports,
    commitment: [u8; 32],
    /// `None`: the slots of a directory.
    leaf: Option<Leaf>,
    /// The keys that may sign, the preferred first.
    candidates: Vec<Candidate>,
    /// Octets that the value may have.
    max_octets: usize,
    /// Octets of the shortest value that did not fit.
    too_large: Option<usize>,
    exhausted: Option<SignError>,
    /// A key of this suite signed wrongly.
    faulty: Option<SuiteId>,
}

impl Draft {
    /// An announcement of the AS's own prefixes, for a registered key of `ring`.
    pub fn origination(
        origination: &Origination<'_>,
        speaker: &Speaker,
        ring: &KeyRing,
        recipient: Recipient<'_>,
    ) -> Result<Self, AttestationError> {
        let mut prefixes = origination.prefixes.to_vec();
        prefixes.sort_unstable();
        let first = prefixes.first().map(Prefix::afi);
        let is_list = prefixes.len() <= MAX_PREFIXES
            && prefixes.windows(2).all(|pair| pair[0] != pair[1])
            && prefixes.iter().all(|prefix| Some(prefix.afi()) == first);
        if first.is_none() || !is_list {
            return Err(AttestationError::Prefixes);
        }
        let mut value = Vec::with_capacity(64);
        chain::encode_head(&prefixes, origination.sequence, speaker.not_before, 1, &mut value);
        let start = value.clone();
        let head = Head::decode(&mut Reader { rest: &start })?;
        let hop = DraftHop { value, index: 0, skipped: &[], previous: [0; 32], not_before_offset: 0 };
        hop.draft(&head, head.listed(), speaker, recipient, candidates(ring, |pair| registered(pair, 0)))
    }

    /// A hop after those of `received`: see [`extend`].
    pub fn extension(
        received: &Attestation<'_>,
        path: &Path,
        exports: &[Prefix],
        speaker: &Speaker,
        ring: &KeyRing,
        recipient: Recipient<'_>,
    ) -> Result<Self, AttestationError> {
        if received.hop_count() >= MAX_HOPS {
            return Err(AttestationError::TooLong);
        }
        let (previous, cursor) = chain_hash(received, path, speaker.asn)?;
        let Some(last) = received.last_hop() else { return Err(AttestationError::Path) };
        let leaf = last.next.leaf().ok_or(AttestationError::NotOpened)?;
        let skipped = &path.entries()[cursor..];
        let candidates = after(ring, received, leaf, skipped.len(), speaker.asn)?;
        let offset = speaker.not_before.saturating_sub(received.head().base_time) / 60;
        let not_before_offset = u16::try_from(offset).map_err(|_| AttestationError::Field("the hop's not-before"))?;
        // At most 64 hops.
        let index = received.hop_count() as u8;
        let value = received.with_hop_count(index + 1);
        let hop = DraftHop { value, index, skipped, previous, not_before_offset };
        hop.draft(received.head(), exported(received, exports)?, speaker, recipient, candidates)
    }

    /// Within `most` octets: nothing is signed that does not fit, so that no index of a few-time key is lost to it.
    #[must_use]
    pub fn within(mut self, most: usize) -> Self {
        self.max_octets = most;
        self
    }

    /// Signs with such keys alone.
    #[must_use]
    pub fn only(mut self, ring: &KeyRing, may_sign: impl Fn(&KeyPair) -> bool) -> Self {
        self.candidates.retain(|candidate| may_sign(&ring.pairs[candidate.index]));
        self
    }

    /// The first candidate whose value fits, signed by itself.
    fn candidate(&mut self, ring: &KeyRing) -> Result<Candidate, AttestationError> {
        while let Some(&candidate) = self.candidates.first() {
            let need = self.length(&ring.pairs[candidate.index], candidate.signer, false);
            if need <= self.max_octets {
                return Ok(candidate);
            }
            self.too_large = Some(self.too_large.unwrap_or(usize::MAX).min(need));
            self.candidates.remove(0);
        }
        let too_large = |need| AttestationError::TooLarge { need };
        let none = self.too_large.map_or(AttestationError::NotOurs(self.speaker.asn), too_large);
        let none = self.exhausted.map_or(none, AttestationError::Sign);
        Err(self.faulty.map_or(none, AttestationError::Faulty))
    }

    /// The key in front is spent: the next one's turn.
    fn pass_over(&mut self, error: SignError) {
        self.exhausted = Some(error);
        self.candidates.remove(0);
    }

    /// Signs by itself with the first candidate that fits and is not spent.
    fn sign(mut self, ring: &mut KeyRing) -> Result<SignedAttestation, AttestationError> {
        loop {
            let candidate = self.candidate(ring)?;
            let pair = &mut ring.pairs[candidate.index];
            match pair.key.sign(&self.content(pair.suite, candidate.signer)) {
                Ok(signature) => return Ok(self.write(pair, candidate.signer, &signature, None)),
                Err(error @ SignError::Exhausted(_)) => self.pass_over(error),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn head(&self) -> Head<'_> {
        Head {
            afi: self.afi,
            nlri: &self.nlri,
            prefix_count: self.prefix_count,
            sequence: self.sequence,
            base_time: self.base_time,
        }
    }

    fn hop<'d>(&'d self, suite: SuiteId, signer: Signer) -> Hop<'d> {
        Hop {
            suite: suite as u8,
            signer,
            prepend: self.speaker.prepend,
            not_before_offset: self.not_before_offset,
            lifetime: self.speaker.lifetime,
            exports: self.exports,
            next: self.leaf.as_ref().map_or(Next::Directory, |leaf| Next::Neighbour(leaf.view())),
            burst: None,
            public: &[],
            signature: &[],
            octets: &[],
        }
    }

    /// What the hop says, signed by a key of `suite`.
    fn content(&self, suite: SuiteId, signer: Signer) -> Vec<u8> {
        let mut content = Vec::with_capacity(256);
        let input = SignedInput {
            index: self.index,
            asn: self.speaker.asn,
            skipped: &self.skipped,
            previous: &self.previous,
            commitment: &self.commitment,
        };
        input.encode(&self.head(), &self.hop(suite, signer), &mut content);
        content
    }

    /// Octets of the value with the suite's longest signature.
    fn length(&self, pair: &KeyPair, signer: Signer, in_burst: bool) -> usize {
        let signature = vec![0; crate::suite::of(pair.suite).map_or(0, |suite| suite.signature_len())];
        let opening = in_burst.then(OwnedOpening::longest);
        self.encode(pair, signer, &signature, opening.as_ref()).len()
    }

    fn encode(&self, pair: &KeyPair, signer: Signer, signature: &[u8], opening: Option<&OwnedOpening>) -> Vec<u8> {
        let carries_key = signer.is_chained() && pair.key.public().len() != LEAF_KEY_LEN;
        let public = if carries_key { pair.key.public() } else { &[] };
        let burst = opening.map(OwnedOpening::view);
        let mut value = Vec::with_capacity(self.value.len() + signature.len() + public.len() + 512);
        value.extend_from_slice(&self.value);
        Hop { burst, public, signature, ..self.hop(pair.suite, signer) }.encode(self.index, &mut value);
        value
    }

    fn write(
        &self,
        pair: &KeyPair,
        signer: Signer,
        signature: &[u8],
        opening: Option<&OwnedOpening>,
    ) -> SignedAttestation {
        let value = self.encode(pair, signer, signature, opening);
        SignedAttestation { value, is_smaller: self.too_large.is_some(), key: pair.leaf_key().id() }
    }
}

/// What a draft takes from the chain before it.
struct DraftHop<'d> {
    value: Vec<u8>,
    index: u8,
    skipped: &'d [Asn],
    previous: chain::ChainHash,
    not_before_offset: u16,
}

impl DraftHop<'_> {
    fn draft(
        self,
        head: &Head<'_>,
        exports: Exports,
        speaker: &Speaker,
        recipient: Recipient<'_>,
        candidates: Vec<Candidate>,
    ) -> Result<Draft, AttestationError> {
        if candidates.is_empty() {
            return Err(AttestationError::NotOurs(speaker.asn));
        }
        if speaker.prepend == 0 {
            return Err(AttestationError::Field("the prepend count"));
        }
        if speaker.lifetime == 0 {
            return Err(AttestationError::Field("the lifetime"));
        }
        Ok(Draft {
            value: self.value,
            afi: head.afi,
            nlri: head.nlri.to_vec(),
            prefix_count: head.prefix_count,
            sequence: head.sequence,
            base_time: head.base_time,
            index: self.index,
            skipped: self.skipped.to_vec(),
            previous: self.previous,
            speaker: *speaker,
            not_before_offset: self.not_before_offset,
            exports,
            commitment: recipient.commitment(),
            leaf: match recipient {
                Recipient::Neighbour(_, leaf) => Some(leaf.to_leaf()),
                Recipient::Directory(_) => None,
            },
            candidates,
            max_octets: usize::MAX,
            too_large: None,
            exhausted: None,
            faulty: None,
        })
    }
}

/// Whether each of several hops gets a signature of its own.
#[derive(Clone, Copy, Debug)]
pub enum Signatures<'a> {
    Each,
    /// One signature serves up to [`MAX_BURST`] hops, with salts from this secret seed.
    Burst(&'a Seed),
}

/// Signs all drafts, each with the first of its keys that fits and is not spent, and verifies what was signed before it gives
/// anything back: a key that signs wrongly, by a fault of the machine or a bad key file, would make other networks refuse
/// the routes. What does not verify is signed once more, and then with the next key.
///
/// Results come in the order of the drafts.
pub fn sign_all(
    drafts: Vec<Draft>,
    ring: &mut KeyRing,
    signatures: Signatures<'_>,
) -> Vec<Result<SignedAttestation, AttestationError>> {
    let mut done: Vec<Option<Result<SignedAttestation, AttestationError>>> = drafts.iter().map(|_| None).collect();
    let mut waiting: Vec<Waiting> =
        drafts.into_iter().enumerate().map(|(number, draft)| Waiting { number, draft, failed: false }).collect();
    while !waiting.is_empty() {
        waiting = sign_round(waiting, ring, signatures, &mut done);
    }
    done.into_iter().map(|result| result.unwrap_or(Err(AttestationError::Path))).collect()
}

/// A draft that is not signed yet.
struct Waiting {
    /// In the order in which the drafts came.
    number: usize,
    draft: Draft,
    /// Whether the key in front has signed it wrongly once.
    failed: bool,
}

/// Signs every draft once with the key in front of it, and returns those that must be signed again.
fn sign_round(
    waiting: Vec<Waiting>,
    ring: &mut KeyRing,
    signatures: Signatures<'_>,
    done: &mut [Option<Result<SignedAttestation, AttestationError>>],
) -> Vec<Waiting> {
    let seed = match signatures {
        Signatures::Each => None,
        Signatures::Burst(seed) => Some(seed),
    };
    // By key: what is signed by itself, and what shares a signature. A hop whose opening does not fit is signed by itself.
    let mut by_key: BTreeMap<usize, [Vec<(Waiting, Signer)>; 2]> = BTreeMap::new();
    for mut waits in waiting {
        match waits.draft.candidate(ring) {
            Ok(Candidate { index, signer }) => {
                let draft = &waits.draft;
                let shares = seed.is_some() && draft.length(&ring.pairs[index], signer, true) <= draft.max_octets;
                by_key.entry(index).or_default()[usize::from(shares)].push((waits, signer));
            }
            Err(error) => done[waits.number] = Some(Err(error)),
        }
    }
    let mut again = Vec::new();
    for (index, [alone, mut sharing]) in by_key {
        let pair = &mut ring.pairs[index];
        sign_with(pair, alone, None, done, &mut again);
        while !sharing.is_empty() {
            let rest = sharing.split_off(sharing.len().min(MAX_BURST));
            let burst = std::mem::replace(&mut sharing, rest);
            sign_with(pair, burst, seed, done, &mut again);
        }
    }
    again
}

/// Signs drafts with one key, together where there is a `seed`, and verifies what was signed.
fn sign_with(
    pair: &mut KeyPair,
    drafts: Vec<(Waiting, Signer)>,
    seed: Option<&Seed>,
    done: &mut [Option<Result<SignedAttestation, AttestationError>>],
    again: &mut Vec<Waiting>,
) {
    let suite = pair.suite;
    // One hop needs no tree.
    let seed = seed.filter(|_| drafts.len() > 1);
    let contents: Vec<Vec<u8>> = drafts.iter().map(|(waits, signer)| waits.draft.content(suite, *signer)).collect();
    let tree = seed.map(|seed| BurstTree::new(seed, &contents));
    let messages = match &tree {
        None => contents,
        Some(tree) => {
            let mut message = Vec::new();
            tree.encode_signed(chain::VERSION, suite as u8, &mut message);
            vec![message]
        }
    };
    let made: Vec<Result<Vec<u8>, SignError>> = messages.iter().map(|message| pair.key.sign(message)).collect();
    let right = verified(pair, &messages, &made);
    for (number, (mut waits, signer)) in drafts.into_iter().enumerate() {
        // A burst has one signature for all.
        let signed = if tree.is_some() { 0 } else { number };
        match &made[signed] {
            Ok(signature) if right[signed] => {
                let opening = tree.as_ref().map(|tree| tree.opening(number));
                let attested = waits.draft.write(pair, signer, signature, opening.as_ref());
                done[waits.number] = Some(Ok(attested));
            }
            Ok(_) if !waits.failed => again.push(Waiting { failed: true, ..waits }),
            Ok(_) => {
                waits.draft.faulty = Some(suite);
                waits.draft.candidates.remove(0);
                again.push(Waiting { failed: false, ..waits });
            }
            Err(error @ SignError::Exhausted(_)) => {
                waits.draft.pass_over(*error);
                again.push(Waiting { failed: false, ..waits });
            }
            Err(error) => done[waits.number] = Some(Err((*error).into())),
        }
    }
}

/// Which of the signatures verify, in one burst.
fn verified(pair: &KeyPair, messages: &[Vec<u8>], made: &[Result<Vec<u8>, SignError>]) -> Vec<bool> {
    let mut right = vec![false; made.len()];
    let signed: Vec<(usize, &Vec<u8>)> =
        made.iter().enumerate().filter_map(|(number, made)| Some((number, made.as_ref().ok()?))).collect();
    let claims: Vec<Claim<'_>> = signed
        .iter()
        .map(|(number, signature)| Claim { public: pair.key.public(), message: &messages[*number], signature })
        .collect();
    let verdicts = crate::suite::of(pair.suite).map(|suite| suite.verify_batch(&claims)).unwrap_or_default();
    for ((number, _), verdict) in signed.iter().zip(verdicts) {
        right[*number] = verdict;
    }
    right
}

/// The bitmap of `prefixes`, all of which `received` passes on.
fn exported(received: &Attestation<'_>, prefixes: &[Prefix]) -> Result<Exports, AttestationError> {
    let mut exports = Exports::NONE;
    for prefix in prefixes {
        let position = received.position(prefix).filter(|position| received.exports().contains(*position));
        exports = exports.with(position.ok_or(AttestationError::NotExported)?);
    }
    if exports == Exports::NONE { Err(AttestationError::NotExported) } else { Ok(exports) }
}

/// A key that may sign: its index in the ring, and how the hop names it.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    index: usize,
    signer: Signer,
}

/// The keys that may sign, the preferred first.
fn candidates(ring: &KeyRing, may_sign: impl Fn(&KeyPair) -> Option<Signer>) -> Vec<Candidate> {
    let of = |(index, pair): (usize, &KeyPair)| Some(Candidate { index, signer: may_sign(pair)? });
    ring.pairs.iter().enumerate().filter_map(of).collect()
}

/// How a hop names a registered key after a gap of `skipped` entries.
fn registered(pair: &KeyPair, skipped: u8) -> Option<Signer> {
    let tag = key_tag(pair.suite, pair.key.public());
    pair.registered.then_some(Signer::Registered { skipped, tag })
}

/// The keys that may sign after a hop that left `leaf` and `skipped` entries unattested.
fn after(
    ring: &KeyRing,
    received: &Attestation<'_>,
    leaf: LeafView<'_>,
    skipped: usize,
    asn: Asn,
) -> Result<Vec<Candidate>, AttestationError> {
    let requires_post_quantum = received.hops().any(|hop| hop.next.leaf().is_some_and(LeafView::requires_post_quantum));
    let may_sign =
        |pair: &KeyPair| !requires_post_quantum || crate::suite::of(pair.suite).is_some_and(Suite::is_post_quantum);
    if leaf.is_keyless() {
        let skipped = u8::try_from(skipped).map_err(|_| AttestationError::Field("the gap"))?;
        return Ok(candidates(ring, |pair| registered(pair, skipped).filter(|_| may_sign(pair))));
    }
    if skipped > 0 {
        return Err(AttestationError::NotOurs(asn));
    }
    Ok(candidates(ring, |pair| {
        let named = pair.leaf_key();
        let is_named = |second| leaf.key(named.suite, second) == Some(&named.key);
        let second = [false, true].into_iter().find(|second| is_named(*second))?;
        let is_strong = crate::suite::of(pair.suite).is_some_and(|suite| suite.strength() >= leaf.least_strength());
        (is_strong && may_sign(pair)).then_some(Signer::Chained { second })
    }))
}

/// The hash of all of `received`, and how many entries of `path` its hops attest.
fn chain_hash(
    received: &Attestation<'_>,
    path: &Path,
    receiver: Asn,
) -> Result<(chain::ChainHash, usize), AttestationError> {
    let entries = path.entries();
    let (mut previous, mut cursor) = ([0; 32], 0);
    let mut message = Vec::with_capacity(256);
    for (index, hop) in received.hops().enumerate() {
        let skipped = hop.signer.skipped();
        let end = cursor + skipped + usize::from(hop.prepend);
        let (Some(skipped), Some(&asn)) = (entries.get(cursor..cursor + skipped), entries.get(cursor + skipped)) else {
            return Err(AttestationError::Path);
        };
        if end > entries.len() {
            return Err(AttestationError::Path);
        }
        let next = entries.get(end).copied().unwrap_or(receiver);
        let commitment = hop.commitment(next).ok_or(AttestationError::NotOpened)?;
        message.clear();
        let index = index as u8;
        SignedInput { index, asn, skipped, previous: &previous, commitment: &commitment }.encode(
            received.head(),
            &hop,
            &mut message,
        );
        previous = hop.chain_hash(&message);
        cursor = end;
    }
    Ok((previous, cursor))
}

/// A leaf that endorses the keys that a neighbour offered, or a keyless one where it offered none.
pub fn endorse(offered: &[LeafKey], least_strength: u16) -> Result<Leaf, crate::leaf::LeafError> {
    if offered.is_empty() { Ok(Leaf::keyless()) } else { Leaf::new(offered, least_strength, false) }
}

/// Prefixes of one family in lists of at most 32, as [`originate`] takes them.
pub fn lists(prefixes: &[Prefix]) -> Vec<Vec<Prefix>> {
    let of_family = |afi: Afi| {
        let mut of_family: Vec<Prefix> = prefixes.iter().copied().filter(|prefix| prefix.afi() == afi).collect();
        of_family.sort_unstable();
        of_family.dedup();
        of_family
    };
    let chunks = |list: Vec<Prefix>| list.chunks(MAX_PREFIXES).map(<[Prefix]>::to_vec).collect::<Vec<_>>();
    [Afi::Ipv4, Afi::Ipv6].into_iter().map(of_family).flat_map(chunks).collect()
}
