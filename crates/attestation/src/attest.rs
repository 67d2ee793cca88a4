//! The signing side: originating an attestation, extending a received one, and one signature for many neighbours.

use wayleave_core::{Afi, Asn, Prefix};

use crate::chain::{
    self, Attestation, DecodeError, Head, Hop, MAX_HOPS, MAX_PREFIXES, Next, Reader, SignedInput, Signer,
};
use crate::leaf::{LEAF_KEY_LEN, Leaf, LeafKey, LeafView, SALT_LEN, Tree};
use crate::path::Path;
use crate::pki::key_tag;
use crate::suite::{SignError, SuiteId, SuiteKey};

/// Minutes that a hop holds where nothing else is said: 24 hours.
pub const DEFAULT_LIFETIME: u16 = 24 * 60;
/// Neighbours up to which each gets a signature of its own; beyond, one signature over a root serves all.
pub const MOST_DIRECT: usize = 32;

/// A private key and its suite.
pub struct Pair {
    /// The suite.
    pub suite: SuiteId,
    /// The private key.
    pub key: Box<dyn SuiteKey>,
    /// Whether the PKI lists it for the AS.
    pub registered: bool,
}

impl Pair {
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
    pub pairs: Vec<Pair>,
}

/// What the signing AS says of itself in its hop.
#[derive(Clone, Copy, Debug)]
pub struct Speaker {
    /// Its number.
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

/// For whom a hop is.
#[derive(Clone, Copy, Debug)]
pub enum Onward<'a> {
    /// One neighbour.
    Neighbour(Asn, LeafView<'a>),
    /// All neighbours under a tree.
    Tree(&'a Tree),
}

/// Why no attestation was made. All are errors of the caller but [`AttestError::Malformed`] and
/// [`AttestError::NotOurs`], which are of whoever sent the received one, and [`AttestError::Sign`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AttestError {
    /// None, more than 32, twice the same, or of two families.
    #[error("a signed list has 1 to {MAX_PREFIXES} different prefixes of one family")]
    Prefixes,
    /// A count or time that the format cannot say.
    #[error("{0} does not fit")]
    Field(&'static str),
    /// The received value does not decode.
    #[error("the received attestation is malformed: {0}")]
    Malformed(#[from] DecodeError),
    /// The received hops do not match the path.
    #[error("the received attestation is not of this path")]
    Path,
    /// The last hop gives this AS no key that it holds, or gives a key where this AS would skip others.
    #[error("the received attestation lets {0} sign with none of its keys")]
    NotOurs(Asn),
    /// The chain has as many hops as the format allows.
    #[error("a chain has at most {MAX_HOPS} hops")]
    TooLong,
    /// The last hop is for the receivers of a directory and was not opened: see [`open`].
    #[error("the last hop is for the receivers of a directory: open it first")]
    NotOpened,
    /// The key did not sign.
    #[error(transparent)]
    Sign(#[from] SignError),
}

/// A signed hop with all before it, ready to be written for each neighbour that it serves.
#[derive(Clone, Debug)]
pub struct Attested<'a> {
    /// The value up to the new hop.
    before: Vec<u8>,
    index: u8,
    hop: OwnHop,
    onward: Onward<'a>,
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

impl Attested<'_> {
    /// The attribute's value for `neighbour`; `None` if the hop does not serve it.
    #[must_use]
    pub fn for_neighbour(&self, neighbour: Asn) -> Option<Vec<u8>> {
        match self.onward {
            Onward::Neighbour(asn, leaf) => (asn == neighbour).then(|| self.write(Next::Direct(leaf))),
            Onward::Tree(tree) => {
                let opening = tree.opening(neighbour)?;
                let leaf = opening.leaf.view();
                let (salt, index) = (&opening.salt, opening.index);
                Some(self.write(Next::Opening { leaf, salt, index, siblings: &opening.siblings }))
            }
        }
    }

    /// The one value for all receivers of a directory, each of which computes its own opening; `None` if the hop is
    /// not signed over a directory's tree.
    #[must_use]
    pub fn for_directory(&self) -> Option<Vec<u8>> {
        match self.onward {
            Onward::Tree(tree) if tree.is_directory() => Some(self.write(Next::Directory)),
            _ => None,
        }
    }

    fn write(&self, next: Next<'_>) -> Vec<u8> {
        let mut value = Vec::with_capacity(self.before.len() + self.hop.signature.len() + self.hop.public.len() + 64);
        value.extend_from_slice(&self.before);
        self.hop.with(next).encode(self.index, &mut value);
        value
    }
}

/// Signs an announcement of the AS's own prefixes with the first registered key of `ring`.
pub fn originate<'a>(
    origination: &Origination<'_>,
    speaker: &Speaker,
    ring: &mut KeyRing,
    onward: Onward<'a>,
) -> Result<Attested<'a>, AttestError> {
    let mut prefixes = origination.prefixes.to_vec();
    prefixes.sort_unstable();
    let first = prefixes.first().map(Prefix::afi);
    let is_list = prefixes.len() <= MAX_PREFIXES
        && prefixes.windows(2).all(|pair| pair[0] != pair[1])
        && prefixes.iter().all(|prefix| Some(prefix.afi()) == first);
    if first.is_none() || !is_list {
        return Err(AttestError::Prefixes);
    }
    let pair = ring.pairs.iter_mut().find(|pair| pair.registered).ok_or(AttestError::NotOurs(speaker.asn))?;
    let mut value = Vec::with_capacity(64);
    chain::encode_head(&prefixes, origination.sequence, speaker.not_before, 1, &mut value);
    let start = value.clone();
    let head = Head::decode(&mut Reader { rest: &start })?;
    let tag = key_tag(pair.suite, pair.key.public());
    let place = Place { index: 0, signer: Signer::Registered { skipped: 0, tag }, skipped: &[], previous: [0; 32] };
    sign(value, place, speaker, (&head, 0), pair, onward)
}

/// Extends `received` by a hop of `speaker`, which received it with `path` (its own AS not yet on it).
///
/// `received` has been validated: what it lets this AS sign is taken from it as it stands.
pub fn extend<'a>(
    received: &Attestation<'_>,
    path: &Path,
    speaker: &Speaker,
    ring: &mut KeyRing,
    onward: Onward<'a>,
) -> Result<Attested<'a>, AttestError> {
    if received.hop_count() >= MAX_HOPS {
        return Err(AttestError::TooLong);
    }
    let (previous, cursor) = chain_hash(received, path, speaker.asn)?;
    let Some(last) = received.last_hop() else { return Err(AttestError::Path) };
    let leaf = last.next.leaf().ok_or(AttestError::NotOpened)?;
    let skipped = &path.entries()[cursor..];
    let (pair, signer) = choose(ring, leaf, skipped.len(), speaker.asn)?;
    let offset = speaker.not_before.saturating_sub(received.head().base_time) / 60;
    let offset = u16::try_from(offset).map_err(|_| AttestError::Field("the hop's not-before"))?;
    let value = received.with_hop_count(received.hop_count() as u8 + 1);
    let place = Place { index: received.hop_count() as u8, signer, skipped, previous };
    sign(value, place, speaker, (received.head(), offset), pair, onward)
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

/// Where a new hop stands.
struct Place<'a> {
    index: u8,
    signer: Signer,
    skipped: &'a [Asn],
    previous: chain::ChainHash,
}

fn sign<'a>(
    value: Vec<u8>,
    place: Place<'_>,
    speaker: &Speaker,
    (head, not_before_offset): (&Head<'_>, u16),
    pair: &mut Pair,
    onward: Onward<'a>,
) -> Result<Attested<'a>, AttestError> {
    if speaker.prepend == 0 {
        return Err(AttestError::Field("the prepend count"));
    }
    if speaker.lifetime == 0 {
        return Err(AttestError::Field("the lifetime"));
    }
    let carries_key = place.signer == Signer::Chained && pair.key.public().len() != LEAF_KEY_LEN;
    let mut hop = OwnHop {
        suite: pair.suite,
        signer: place.signer,
        prepend: speaker.prepend,
        not_before_offset,
        lifetime: speaker.lifetime,
        public: if carries_key { pair.key.public().to_vec() } else { Vec::new() },
        signature: Vec::new(),
    };
    let (commitment, next) = match onward {
        Onward::Neighbour(asn, leaf) => (leaf.direct_commitment(asn), Next::Direct(leaf)),
        Onward::Tree(tree) => (tree.root(), Next::Directory),
    };
    let mut message = Vec::with_capacity(256);
    let input = SignedInput {
        index: place.index,
        asn: speaker.asn,
        skipped: place.skipped,
        previous: &place.previous,
        commitment: &commitment,
    };
    input.encode(head, &hop.with(next), &mut message);
    hop.signature = pair.key.sign(&message)?;
    Ok(Attested { before: value, index: place.index, hop, onward })
}

/// The hash of all of `received`, and how many entries of `path` its hops attest.
fn chain_hash(
    received: &Attestation<'_>,
    path: &Path,
    receiver: Asn,
) -> Result<(chain::ChainHash, usize), AttestError> {
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
            return Err(AttestError::Path);
        };
        if end > entries.len() {
            return Err(AttestError::Path);
        }
        let next = entries.get(end).copied().unwrap_or(receiver);
        let commitment = hop.commitment(next).ok_or(AttestError::NotOpened)?;
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

/// The key to sign with after a hop that left `leaf` and `skipped` entries unattested.
fn choose<'a>(
    ring: &'a mut KeyRing,
    leaf: LeafView<'_>,
    skipped: usize,
    asn: Asn,
) -> Result<(&'a mut Pair, Signer), AttestError> {
    let not_ours = AttestError::NotOurs(asn);
    if leaf.is_keyless() {
        let skipped = u8::try_from(skipped).map_err(|_| AttestError::Field("the gap"))?;
        let pair = ring.pairs.iter_mut().find(|pair| pair.registered).ok_or(not_ours)?;
        let tag = key_tag(pair.suite, pair.key.public());
        return Ok((pair, Signer::Registered { skipped, tag }));
    }
    if skipped > 0 {
        return Err(not_ours);
    }
    let is_allowed = |pair: &&mut Pair| {
        let named = pair.leaf_key();
        leaf.keys().any(|(suite, key)| suite == named.suite && *key == named.key)
            && crate::suite::of(pair.suite).is_some_and(|suite| suite.strength() >= leaf.least_strength())
    };
    ring.pairs.iter_mut().find(is_allowed).map(|pair| (pair, Signer::Chained)).ok_or(not_ours)
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
