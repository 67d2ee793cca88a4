//! Signing: originate an attestation, extend a received one, and serve many neighbours by one signature.

use wayleave_core::{Afi, Asn, Prefix};

use crate::chain::{
    self, Attestation, DecodeError, Head, Hop, MAX_HOPS, MAX_PREFIXES, Next, Reader, SignedInput, Signer,
};
use crate::leaf::{LEAF_KEY_LEN, Leaf, LeafKey, LeafView, SALT_LEN, Tree};
use crate::path::Path;
use crate::pki::key_tag;
use crate::suite::{SignError, SuiteId, SuiteKey};

/// Minutes that a hop holds unless configured otherwise: 24 hours.
pub const DEFAULT_LIFETIME: u16 = 24 * 60;
/// Neighbours up to which each gets a signature of its own; beyond, one signature over a tree serves all.
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
    /// All neighbours under a tree.
    Tree(&'a Tree),
}

/// Why no attestation was made. All are errors of the caller but [`AttestationError::Malformed`] and
/// [`AttestationError::NotOurs`], which are of whoever sent the received one, and [`AttestationError::Sign`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AttestationError {
    /// None, more than 32, twice the same, or of two families.
    #[error("a signed list has 1 to {MAX_PREFIXES} different prefixes of one family")]
    Prefixes,
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
}

/// A signed hop with all before it, ready to be written for each neighbour that it serves.
#[derive(Clone, Debug)]
pub struct SignedAttestation<'a> {
    signed: SignedHop,
    recipient: Recipient<'a>,
}

/// A signed hop with all before it, without what names the next AS: it can be kept, and written later for any neighbour
/// of the tree for which it was signed.
#[derive(Clone, Debug)]
pub struct SignedHop {
    /// The value up to the new hop.
    before: Vec<u8>,
    index: u8,
    hop: OwnHop,
    is_smaller: bool,
}

impl SignedHop {
    /// The hop for those under `tree`, which must be the one that it was signed for.
    #[must_use]
    pub fn under(self, tree: &Tree) -> SignedAttestation<'_> {
        SignedAttestation { signed: self, recipient: Recipient::Tree(tree) }
    }

    fn write(&self, next: Next<'_>) -> Vec<u8> {
        let mut value = Vec::with_capacity(self.before.len() + self.hop.signature.len() + self.hop.public.len() + 64);
        value.extend_from_slice(&self.before);
        self.hop.with(next).encode(self.index, &mut value);
        value
    }
}

/// The fields of a hop that do not depend on the neighbour.
#[derive(Clone, Debug)]
struct OwnHop {
    suite: SuiteId,
    signer: Signer,
    prepend: u8,
    not_before_offset: u16,
    lifetime: u16,
    public: Vec<u8>,
    signature: Vec<u8>,
}

impl OwnHop {
    fn with<'a>(&'a self, next: Next<'a>) -> Hop<'a> {
        Hop {
            suite: self.suite as u8,
            signer: self.signer,
            prepend: self.prepend,
            not_before_offset: self.not_before_offset,
            lifetime: self.lifetime,
            next,
            public: &self.public,
            signature: &self.signature,
            octets: &[],
        }
    }
}

impl SignedAttestation<'_> {
    /// Whether a key that was preferred was passed over because its value would have been too long.
    #[must_use]
    pub fn is_smaller(&self) -> bool {
        self.signed.is_smaller
    }

    /// The hop, to be kept.
    #[must_use]
    pub fn into_signed(self) -> SignedHop {
        self.signed
    }

    /// The attribute's value for `neighbour`; `None` if the hop does not serve it.
    #[must_use]
    pub fn for_neighbour(&self, neighbour: Asn) -> Option<Vec<u8>> {
        match self.recipient {
            Recipient::Neighbour(asn, leaf) => (asn == neighbour).then(|| self.signed.write(Next::Direct(leaf))),
            Recipient::Tree(tree) => {
                let opening = tree.opening(neighbour)?;
                let leaf = opening.leaf.view();
                let (salt, index) = (&opening.salt, opening.index);
                Some(self.signed.write(Next::Opening { leaf, salt, index, siblings: &opening.siblings }))
            }
        }
    }

    /// The one value for all receivers of a directory, each of which computes its own opening; `None` if the hop is
    /// not signed over a directory's tree.
    #[must_use]
    pub fn for_directory(&self) -> Option<Vec<u8>> {
        match self.recipient {
            Recipient::Tree(tree) if tree.is_directory() => Some(self.signed.write(Next::Directory)),
            _ => None,
        }
    }
}

/// Signs an announcement of the AS's own prefixes with the first registered key of `ring`.
pub fn originate<'a>(
    origination: &Origination<'_>,
    speaker: &Speaker,
    ring: &mut KeyRing,
    recipient: Recipient<'a>,
) -> Result<SignedAttestation<'a>, AttestationError> {
    originate_within(usize::MAX, origination, speaker, ring, recipient)
}

/// As [`originate`], with the first key whose value has at most `most` octets, and the next where a few-time key is
/// spent. Nothing is signed that does not fit: no index of a few-time key is lost to it.
pub fn originate_within<'a>(
    most: usize,
    origination: &Origination<'_>,
    speaker: &Speaker,
    ring: &mut KeyRing,
    recipient: Recipient<'a>,
) -> Result<SignedAttestation<'a>, AttestationError> {
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
    let draft = Draft { value, index: 0, skipped: &[], previous: [0; 32], speaker, head: &head, not_before_offset: 0 };
    let candidates = candidates(ring, |pair| registered(pair, 0));
    draft.sign_within(most, &candidates, ring, recipient)
}

/// Extends `received` by a hop of `speaker`, which received it with `path` (its own AS not yet on it).
///
/// `received` has been validated: what it lets this AS sign is taken from it as it stands.
pub fn extend<'a>(
    received: &Attestation<'_>,
    path: &Path,
    speaker: &Speaker,
    ring: &mut KeyRing,
    recipient: Recipient<'a>,
) -> Result<SignedAttestation<'a>, AttestationError> {
    extend_within(usize::MAX, received, path, speaker, ring, recipient)
}

/// As [`extend`], within `most` octets as [`originate_within`].
pub fn extend_within<'a>(
    most: usize,
    received: &Attestation<'_>,
    path: &Path,
    speaker: &Speaker,
    ring: &mut KeyRing,
    recipient: Recipient<'a>,
) -> Result<SignedAttestation<'a>, AttestationError> {
    if received.hop_count() >= MAX_HOPS {
        return Err(AttestationError::TooLong);
    }
    let (previous, cursor) = chain_hash(received, path, speaker.asn)?;
    let Some(last) = received.last_hop() else { return Err(AttestationError::Path) };
    let leaf = last.next.leaf().ok_or(AttestationError::NotOpened)?;
    let skipped = &path.entries()[cursor..];
    let candidates = after(ring, leaf, skipped.len(), speaker.asn)?;
    let offset = speaker.not_before.saturating_sub(received.head().base_time) / 60;
    let not_before_offset = u16::try_from(offset).map_err(|_| AttestationError::Field("the hop's not-before"))?;
    let value = received.with_hop_count(received.hop_count() as u8 + 1);
    let index = received.hop_count() as u8;
    let draft = Draft { value, index, skipped, previous, speaker, head: received.head(), not_before_offset };
    draft.sign_within(most, &candidates, ring, recipient)
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
    let (leaf, salt): (LeafView<'_>, &[u8; SALT_LEN]) = (opening.leaf.view(), &opening.salt);
    let next = Next::Opening { leaf, salt, index: opening.index, siblings: &opening.siblings };
    Hop { next, ..last }.encode(received.hop_count() as u8 - 1, &mut value);
    Some(value)
}

/// A hop that is to be signed: all but the key.
struct Draft<'d> {
    /// The value before it.
    value: Vec<u8>,
    index: u8,
    skipped: &'d [Asn],
    previous: chain::ChainHash,
    speaker: &'d Speaker,
    head: &'d Head<'d>,
    not_before_offset: u16,
}

impl Draft<'_> {
    /// Signs with the first of `candidates` that fits and is not spent.
    fn sign_within<'a>(
        &self,
        most: usize,
        candidates: &[Candidate],
        ring: &mut KeyRing,
        recipient: Recipient<'a>,
    ) -> Result<SignedAttestation<'a>, AttestationError> {
        if candidates.is_empty() {
            return Err(AttestationError::NotOurs(self.speaker.asn));
        }
        if self.speaker.prepend == 0 {
            return Err(AttestationError::Field("the prepend count"));
        }
        if self.speaker.lifetime == 0 {
            return Err(AttestationError::Field("the lifetime"));
        }
        let (mut shortest, mut spent) = (None, None);
        for candidate in candidates {
            let pair = &mut ring.pairs[candidate.index];
            let hop = self.hop(pair, candidate.signer);
            let need = self.length(&hop, recipient);
            if need > most {
                shortest = Some(shortest.unwrap_or(usize::MAX).min(need));
                continue;
            }
            match self.sign(hop, pair, recipient) {
                Err(AttestationError::Sign(error @ SignError::Exhausted(_))) => spent = Some(error),
                made => {
                    return made.map(|hop| SignedAttestation {
                        signed: SignedHop {
                            before: self.value.clone(),
                            index: self.index,
                            hop,
                            is_smaller: shortest.is_some(),
                        },
                        recipient,
                    });
                }
            }
        }
        Err(spent.map_or(AttestationError::TooLarge { need: shortest.unwrap_or(usize::MAX) }, AttestationError::Sign))
    }

    /// The hop with a signature of zeros, as long as the suite's longest.
    fn hop(&self, pair: &KeyPair, signer: Signer) -> OwnHop {
        let carries_key = signer == Signer::Chained && pair.key.public().len() != LEAF_KEY_LEN;
        let signature_len = crate::suite::of(pair.suite).map_or(0, |suite| suite.signature_len());
        OwnHop {
            suite: pair.suite,
            signer,
            prepend: self.speaker.prepend,
            not_before_offset: self.not_before_offset,
            lifetime: self.speaker.lifetime,
            public: if carries_key { pair.key.public().to_vec() } else { Vec::new() },
            signature: vec![0; signature_len],
        }
    }

    /// Octets of the value, for whichever neighbour it is the longest.
    fn length(&self, hop: &OwnHop, recipient: Recipient<'_>) -> usize {
        let (next, opening) = match recipient {
            Recipient::Neighbour(_, leaf) => (Next::Direct(leaf), 0),
            Recipient::Tree(tree) => (Next::Directory, if tree.is_directory() { 0 } else { tree.longest_opening() }),
        };
        let mut octets = Vec::with_capacity(hop.signature.len() + hop.public.len() + 256);
        hop.with(next).encode(self.index, &mut octets);
        self.value.len() + octets.len() + opening
    }

    fn sign(&self, mut hop: OwnHop, pair: &mut KeyPair, recipient: Recipient<'_>) -> Result<OwnHop, AttestationError> {
        let (commitment, next) = match recipient {
            Recipient::Neighbour(asn, leaf) => (leaf.direct_commitment(asn), Next::Direct(leaf)),
            Recipient::Tree(tree) => (tree.root(), Next::Directory),
        };
        let mut message = Vec::with_capacity(256);
        let input = SignedInput {
            index: self.index,
            asn: self.speaker.asn,
            skipped: self.skipped,
            previous: &self.previous,
            commitment: &commitment,
        };
        input.encode(self.head, &hop.with(next), &mut message);
        hop.signature = pair.key.sign(&message)?;
        Ok(hop)
    }
}

/// A key that may sign: its index in the ring, and how the hop names it.
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
fn after(ring: &KeyRing, leaf: LeafView<'_>, skipped: usize, asn: Asn) -> Result<Vec<Candidate>, AttestationError> {
    if leaf.is_keyless() {
        let skipped = u8::try_from(skipped).map_err(|_| AttestationError::Field("the gap"))?;
        return Ok(candidates(ring, |pair| registered(pair, skipped)));
    }
    if skipped > 0 {
        return Err(AttestationError::NotOurs(asn));
    }
    Ok(candidates(ring, |pair| {
        let named = pair.leaf_key();
        let is_listed = leaf.keys().any(|(suite, key)| suite == named.suite && *key == named.key);
        let is_strong = crate::suite::of(pair.suite).is_some_and(|suite| suite.strength() >= leaf.least_strength());
        (is_listed && is_strong).then_some(Signer::Chained)
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
        let skipped = match hop.signer {
            Signer::Registered { skipped, .. } => usize::from(skipped),
            Signer::Chained => 0,
        };
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
