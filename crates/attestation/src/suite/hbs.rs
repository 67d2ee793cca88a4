//! `kc-hbs`: hash-based signatures whose indices follow time, three levels of Merkle trees over W-OTS, 2^40 indices of a key.
//!
//! The functions are those of SLH-DSA-SHA2-128 (FIPS 205) without its few-time layer: since every signature has an
//! index of its own, a leaf signs the message's hash directly, as in XMSS (RFC 8391). That hash binds the signer's
//! randomiser, the key and the index.
//!
//! An index is a slot of eight seconds since the key's birth (26 bits), then one of four trees and a leaf of it (14 bits).
//! Birth and number of parts are what the key is derived from, beside the seed: keys that divide their indices otherwise
//! share none.
//!
//! A signature is the index (5 bytes), the randomiser (16), then for the lower, middle and upper tree the chains' values
//! and the siblings on the way to the root. A public key is the public seed (16 bytes) and the upper root (16).

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;

use sha2::{Digest, Sha256};
use wayleave_crypto::kdf;
use wayleave_crypto::secret::Secret;

use super::{Claim, KeyRefused, SignError, Slots, Suite, SuiteId, SuiteKey};
use crate::hash::tree::{Claimed, Leaves, Seeds, Tree, TreeId, Winternitz, roots};
use crate::hash::{NODE, Node, PublicSeed};

/// One level of trees.
struct Level {
    layer: u8,
    height: u32,
    winternitz: Winternitz,
}

impl Level {
    /// Bytes of its chains' values in a signature.
    const fn chains(&self) -> usize {
        NODE * self.winternitz.chains()
    }

    /// Bytes of its siblings in a signature.
    const fn path(&self) -> usize {
        NODE * self.height as usize
    }

    fn tree_id(&self, tree: u64) -> TreeId {
        TreeId { layer: self.layer, tree }
    }
}

/// Signs messages.
const LOWER: Level = Level { layer: 0, height: 12, winternitz: Winternitz { bits: 4 } };
/// Signs the roots of the lower trees, of which four serve a slot.
const MIDDLE: Level = Level { layer: 1, height: 15, winternitz: Winternitz { bits: 5 } };
/// Signs the roots of the middle trees, of which each serves eighteen hours: fewer and longer chains, since a verifier
/// computes them once for all that. Every start makes this tree (0.7 s of a core), and the middle one while the first slot is
/// ahead (1 s).
const UPPER: Level = Level { layer: 2, height: 13, winternitz: Winternitz { bits: 7 } };

/// Bits of an index.
const INDEX_BITS: u32 = LOWER.height + MIDDLE.height + UPPER.height;
/// Bits that choose a tree within a slot.
const TREE_BITS: u32 = 2;
/// Bits that choose an index within a slot.
const WITHIN_SLOT: u32 = LOWER.height + TREE_BITS;
/// Slots of a key's life.
pub const SLOTS: u64 = 1 << (INDEX_BITS - WITHIN_SLOT);
/// Indices of a slot.
pub const SLOT_SIGNATURES: u64 = 1 << WITHIN_SLOT;
/// Slots that one middle tree serves.
const MIDDLE_SLOTS: u64 = 1 << (MIDDLE.height - TREE_BITS);
/// Slots at the end of a middle tree during which the next one is made ahead.
const GROWING: u64 = MIDDLE_SLOTS * 3 / 4;
/// Leaves of the next middle tree that are made at a time.
const GROW: u32 = 256;
/// Lower trees of a key in memory: the current one, the next of its slot, and the first of the next slot.
const MAX_LOWER: usize = 3;
/// Parts of a key, at most: 64 signatures of each slot for each.
pub const MAX_PARTS: u16 = 256;

/// Bytes of a public key.
pub const PUBLIC_KEY: usize = 2 * NODE;
/// Bytes of an index.
const INDEX: usize = INDEX_BITS.div_ceil(8) as usize;
/// Bytes of a signature.
pub const SIGNATURE: usize =
    INDEX + NODE + LOWER.chains() + LOWER.path() + MIDDLE.chains() + MIDDLE.path() + UPPER.chains() + UPPER.path();

/// The suite.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KcHbs;

impl Suite for KcHbs {
    fn id(&self) -> SuiteId {
        SuiteId::KcHbs
    }

    fn strength(&self) -> u16 {
        128
    }

    fn is_post_quantum(&self) -> bool {
        true
    }

    fn public_key_len(&self) -> usize {
        PUBLIC_KEY
    }

    fn signature_len(&self) -> usize {
        SIGNATURE
    }

    fn generate(&self, seed: &Secret<32>) -> Box<dyn SuiteKey> {
        Box::new(HbsKey::new(seed, 0, Part::WHOLE))
    }

    fn check_key(&self, public: &[u8]) -> Result<(), KeyRefused> {
        // Any 32 bytes are a key: which of them are honest cannot be seen, as with any hash.
        if public.len() == PUBLIC_KEY {
            Ok(())
        } else {
            Err(KeyRefused::Length { need: PUBLIC_KEY, have: public.len() })
        }
    }

    fn verify(&self, public: &[u8], message: &[u8], signature: &[u8]) -> bool {
        self.verify_batch(&[Claim { public, message, signature }])[0]
    }

    fn verify_batch(&self, claims: &[Claim<'_>]) -> Vec<bool> {
        let mut verdicts = vec![false; claims.len()];
        let (numbers, parsed): (Vec<usize>, Vec<Parsed<'_>>) =
            claims.iter().map(Parsed::new).enumerate().filter_map(|(i, parsed)| Some((i, parsed?))).unzip();
        let lower: Vec<Claimed<'_>> = parsed.iter().map(Parsed::lower).collect();
        let middle = parsed.iter().zip(roots(LOWER.winternitz, &lower));
        let right = middle_parts(middle.map(|(parsed, root)| parsed.above(root)).collect());
        for (number, right) in numbers.into_iter().zip(right) {
            verdicts[number] = right;
        }
        verdicts
    }
}

/// Upper parts that a thread remembers, by their hash, and likewise middle ones; our own limit (a megabyte for both). An
/// upper part stays the same for eighteen hours of a key, a middle one for up to 4,096 signatures.
const KNOWN: usize = 1 << 14;

thread_local! {
    /// Hashes of middle and of upper parts that were right. Each has one place, which the next one with that place takes.
    static KNOWN_PARTS: RefCell<[Vec<[u8; 32]>; 2]> = const { RefCell::new([Vec::new(), Vec::new()]) };
}

/// Which of the parts are right, as `verify` says of those that are not remembered; equal ones are verified once. What is
/// remembered is a hash of all that the answer depends on, so that the answers are the same without.
fn remembered(kind: usize, hashes: &[[u8; 32]], verify: impl FnOnce(&[usize]) -> Vec<bool>) -> Vec<bool> {
    let place = |hash: &[u8; 32]| usize::from(u16::from_be_bytes([hash[0], hash[1]])) % KNOWN;
    let mut verdicts: HashMap<[u8; 32], bool> = HashMap::new();
    let mut new = Vec::new();
    KNOWN_PARTS.with_borrow_mut(|known| {
        known[kind].resize(KNOWN, [0; 32]);
        for (index, hash) in hashes.iter().enumerate() {
            verdicts.entry(*hash).or_insert_with(|| {
                let is_known = known[kind][place(hash)] == *hash;
                if !is_known {
                    new.push(index);
                }
                is_known
            });
        }
    });
    let right = verify(&new);
    KNOWN_PARTS.with_borrow_mut(|known| {
        for (index, _) in new.iter().zip(right).filter(|(_, right)| *right) {
            let hash = hashes[*index];
            verdicts.insert(hash, true);
            known[kind][place(&hash)] = hash;
        }
    });
    hashes.iter().map(|hash| verdicts[hash]).collect()
}

/// Whether the middle and the upper part of each signature lead from its lower root to the root in its public key.
fn middle_parts(parts: Vec<Above<'_>>) -> Vec<bool> {
    let hashes: Vec<[u8; 32]> = parts.iter().map(Above::hash).collect();
    remembered(0, &hashes, |new| {
        let middle: Vec<Claimed<'_>> = new.iter().map(|index| parts[*index].middle).collect();
        let upper = new.iter().zip(roots(MIDDLE.winternitz, &middle));
        upper_parts(
            &upper
                .map(|(index, message)| {
                    let part = &parts[*index];
                    (part.public, Claimed { message, ..part.upper })
                })
                .collect::<Vec<_>>(),
        )
    })
}

/// Whether each upper part leads to the root in its public key.
fn upper_parts(parts: &[(&[u8], Claimed<'_>)]) -> Vec<bool> {
    let hashes: Vec<[u8; 32]> = parts
        .iter()
        .map(|(public, claimed)| {
            let mut hash = Sha256::new();
            hash.update(b"wayleave/attestation/hbs/upper-part/v2");
            hash.update(public);
            absorb(&mut hash, claimed);
            hash.finalize().into()
        })
        .collect();
    remembered(1, &hashes, |new| {
        let claims: Vec<Claimed<'_>> = new.iter().map(|index| parts[*index].1).collect();
        let roots = roots(UPPER.winternitz, &claims);
        new.iter().zip(roots).map(|(index, root)| parts[*index].0.ends_with(&root)).collect()
    })
}

/// Tree, leaf, message and what is to prove it, all of fixed width.
fn absorb(hash: &mut Sha256, claimed: &Claimed<'_>) {
    hash.update(claimed.tree_id.tree.to_be_bytes());
    hash.update(claimed.pair.to_be_bytes());
    hash.update(claimed.message);
    hash.update(claimed.chains.as_flattened());
    hash.update(claimed.path.as_flattened());
}

/// What a signature says above its lower tree.
struct Above<'a> {
    public: &'a [u8],
    middle: Claimed<'a>,
    /// Its message is the middle root, which is not known yet.
    upper: Claimed<'a>,
}

impl Above<'_> {
    fn hash(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        hash.update(b"wayleave/attestation/hbs/middle-part/v2");
        hash.update(self.public);
        absorb(&mut hash, &self.middle);
        absorb(&mut hash, &self.upper);
        hash.finalize().into()
    }
}

/// What a signature says about one tree.
#[derive(Clone, Copy)]
struct TreePart<'a> {
    chains: &'a [Node],
    path: &'a [Node],
}

impl<'a> TreePart<'a> {
    /// Splits it off a signature that is long enough.
    fn split(level: &Level, octets: &'a [u8]) -> (Self, &'a [u8]) {
        let (chains, rest) = octets.split_at(level.chains());
        let (path, rest) = rest.split_at(level.path());
        (Self { chains: chains.as_chunks().0, path: path.as_chunks().0 }, rest)
    }
}

/// A claim whose lengths are right.
struct Parsed<'a> {
    public: &'a [u8],
    seed: PublicSeed,
    index: u64,
    digest: Node,
    lower: TreePart<'a>,
    middle: TreePart<'a>,
    upper: TreePart<'a>,
}

impl<'a> Parsed<'a> {
    fn new(claim: &Claim<'a>) -> Option<Self> {
        if claim.public.len() != PUBLIC_KEY || claim.signature.len() != SIGNATURE {
            return None;
        }
        let seed = claim.public.first_chunk::<NODE>()?;
        let (index, rest) = claim.signature.split_first_chunk::<INDEX>()?;
        let (randomiser, rest) = rest.split_first_chunk::<NODE>()?;
        let digest = digest(claim.public, index, randomiser, claim.message);
        let (lower, rest) = TreePart::split(&LOWER, rest);
        let (middle, rest) = TreePart::split(&MIDDLE, rest);
        let (upper, _) = TreePart::split(&UPPER, rest);
        // Every value of 40 bits is an index.
        let index = index.iter().fold(0, |index, octet| index << 8 | u64::from(*octet));
        Some(Self { public: claim.public, seed: PublicSeed::new(seed), index, digest, lower, middle, upper })
    }

    fn claimed(&self, level: &Level, part: TreePart<'a>, index: u64, message: Node) -> Claimed<'_> {
        let (tree, pair) = split(level, index);
        Claimed { seed: &self.seed, tree_id: level.tree_id(tree), pair, message, chains: part.chains, path: part.path }
    }

    fn lower(&self) -> Claimed<'_> {
        self.claimed(&LOWER, self.lower, self.index, self.digest)
    }

    fn above(&self, lower_root: Node) -> Above<'_> {
        let lower_tree = self.index >> LOWER.height;
        Above {
            public: self.public,
            middle: self.claimed(&MIDDLE, self.middle, lower_tree, lower_root),
            upper: self.claimed(&UPPER, self.upper, lower_tree >> MIDDLE.height, [0; NODE]),
        }
    }
}

/// The number of the tree of a level, and of the leaf in it.
fn split(level: &Level, index: u64) -> (u64, u32) {
    (index >> level.height, (index & ((1 << level.height) - 1)) as u32)
}

/// An index as it is encoded.
fn encoded(index: u64) -> [u8; INDEX] {
    *index.to_be_bytes().last_chunk().expect("five of eight octets")
}

/// What a leaf signs: a hash of label, public key, index, randomiser and message, all but the last of fixed width.
fn digest(public: &[u8], index: &[u8; INDEX], randomiser: &Node, message: &[u8]) -> Node {
    let mut hash = Sha256::new();
    hash.update(b"wayleave/attestation/hbs/message/v2");
    hash.update(public);
    hash.update(index);
    hash.update(randomiser);
    hash.update(message);
    hash.finalize()[..NODE].try_into().expect("16 of 32 bytes")
}

/// Which of a key's signatures one of its holders may make: the `number`-th of `of` equal parts of every slot, so that
/// hosts that sign at the same time never use one leaf.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    number: u16,
    of: u16,
}

impl Part {
    /// All signatures.
    pub const WHOLE: Self = Self { number: 0, of: 1 };

    /// The `number`-th of `of` parts, from 0; there are at most [`MAX_PARTS`].
    #[must_use]
    pub fn new(number: u16, of: u16) -> Option<Self> {
        (number < of && of <= MAX_PARTS).then_some(Self { number, of })
    }

    /// Its indices within every slot.
    #[must_use]
    pub fn within_slot(self) -> Range<u64> {
        let begin = |number: u16| u64::from(number) * SLOT_SIGNATURES / u64::from(self.of);
        begin(self.number)..begin(self.number + 1)
    }

    /// Its indices in one slot.
    fn indices(self, slot: u64) -> Range<u64> {
        let Range { start, end } = self.within_slot();
        slot * SLOT_SIGNATURES + start..slot * SLOT_SIGNATURES + end
    }
}

/// A private key with the slot in which it signs.
///
/// Each lower and middle tree is made when its first signature comes, or before by [`SuiteKey::make_ahead`], and the
/// signatures above it are stored with it. A key has at most three lower and two middle trees and the leaves of a third: 4 MiB
/// with the upper one.
#[cfg_attr(test, derive(Clone))]
pub struct HbsKey {
    seeds: Seeds,
    /// From which the randomisers come.
    randomiser: Secret<NODE>,
    public: [u8; PUBLIC_KEY],
    slots: Slots,
    part: Part,
    upper: Tree,
    middle: Vec<SignedTree>,
    lower: Vec<SignedTree>,
    /// Of the next middle tree.
    growing: Option<Leaves>,
    /// The latest slot that was set.
    slot: Option<u64>,
    may_sign: bool,
    /// Indices that are left in that slot.
    indices: Range<u64>,
}

/// A tree and the signatures above it, from the upper trees' leaves to the public key.
#[cfg_attr(test, derive(Clone))]
struct SignedTree {
    number: u64,
    tree: Tree,
    above: Vec<u8>,
}

impl HbsKey {
    /// The key of a uniformly random seed, born at `birth` (seconds since 1970), which makes the upper tree. All holders of
    /// the seed have parts of one division, each its own.
    #[must_use]
    pub fn new(seed: &Secret<32>, birth: u64, part: Part) -> Self {
        let secrets = Self::derive(seed, birth, part.of);
        let third = |number: usize| secrets.expose().as_chunks::<NODE>().0[number];
        let public_seed = third(2);
        let seeds = Seeds { secret: Secret::new(third(0)), public: PublicSeed::new(&public_seed) };
        let upper = Tree::new(&seeds, UPPER.winternitz, UPPER.tree_id(0), UPPER.height);
        let mut public = [0; PUBLIC_KEY];
        public[..NODE].copy_from_slice(&public_seed);
        public[NODE..].copy_from_slice(&upper.root());
        let Range { start, end } = part.within_slot();
        Self {
            seeds,
            randomiser: Secret::new(third(1)),
            public,
            slots: Slots { birth, count: SLOTS, signatures: end - start },
            part,
            upper,
            middle: Vec::new(),
            lower: Vec::new(),
            growing: None,
            slot: None,
            may_sign: false,
            indices: 0..0,
        }
    }

    /// What the key is made from: other births and divisions share none of it.
    fn derive(seed: &Secret<32>, birth: u64, parts: u16) -> Secret<{ 3 * NODE }> {
        let division = [birth.to_be_bytes().as_slice(), &parts.to_be_bytes()].concat();
        kdf::derive("wayleave/attestation/hbs/key/v2", seed.expose(), &division)
    }

    /// Makes a middle tree unless it is there. The one before stays: its last slot may not be over.
    fn make_middle(&mut self, number: u64) -> &SignedTree {
        if let Some(place) = self.middle.iter().position(|middle| middle.number == number) {
            return &self.middle[place];
        }
        let grown = self.growing.take().filter(|leaves| leaves.tree_id() == MIDDLE.tree_id(number));
        let leaves = grown.unwrap_or_else(|| Leaves::new(MIDDLE.winternitz, MIDDLE.tree_id(number), MIDDLE.height));
        let tree = Tree::over(&self.seeds, leaves);
        let pair = number as u32;
        let mut above = self.seeds.sign(UPPER.winternitz, UPPER.tree_id(0), pair, &tree.root());
        above.extend(self.upper.path(pair));
        self.middle.retain(|middle| middle.number + 1 == number);
        self.middle.push(SignedTree { number, tree, above });
        self.middle.last().expect("just pushed")
    }

    /// Makes a lower tree unless it is there. Those of earlier slots go.
    fn make_lower(&mut self, number: u64) -> &SignedTree {
        if let Some(place) = self.lower.iter().position(|lower| lower.number == number) {
            return &self.lower[place];
        }
        let tree = Tree::new(&self.seeds, LOWER.winternitz, LOWER.tree_id(number), LOWER.height);
        let (middle_number, pair) = split(&MIDDLE, number);
        let middle = self.make_middle(middle_number);
        let (path, upper) = (middle.tree.path(pair), middle.above.clone());
        let mut above = self.seeds.sign(MIDDLE.winternitz, MIDDLE.tree_id(middle_number), pair, &tree.root());
        above.extend(path);
        above.extend(upper);
        let oldest = self.slot.map_or(0, |_| self.indices.start >> LOWER.height);
        self.lower.retain(|lower| lower.number >= oldest);
        if self.lower.len() == MAX_LOWER {
            self.lower.remove(0);
        }
        self.lower.push(SignedTree { number, tree, above });
        self.lower.last().expect("just pushed")
    }

    /// Makes some leaves of the next middle tree, where the one of `slot` nears its end.
    fn grow(&mut self, slot: u64) {
        let next = slot / MIDDLE_SLOTS + 1;
        if slot % MIDDLE_SLOTS < MIDDLE_SLOTS - GROWING || next * MIDDLE_SLOTS >= SLOTS {
            return;
        }
        let id = MIDDLE.tree_id(next);
        let leaves = self.growing.take().filter(|leaves| leaves.tree_id() == id);
        let mut leaves = leaves.unwrap_or_else(|| Leaves::new(MIDDLE.winternitz, id, MIDDLE.height));
        leaves.grow(&self.seeds, GROW);
        self.growing = Some(leaves);
    }
}

impl SuiteKey for HbsKey {
    fn public(&self) -> &[u8] {
        &self.public
    }

    fn sign(&mut self, message: &[u8]) -> Result<Vec<u8>, SignError> {
        if self.slot.is_some_and(|slot| slot >= SLOTS) {
            return Err(SignError::Exhausted(SLOTS));
        }
        let index = self.indices.start;
        if !self.may_sign || self.indices.is_empty() {
            return Err(SignError::NotReserved(index));
        }
        // Whatever happens from here on, this index signs no more.
        self.indices.start += 1;
        let (number, pair) = split(&LOWER, index);
        let tree = self.make_lower(number);
        let (path, above) = (tree.tree.path(pair), tree.above.clone());
        let octets = encoded(index);
        let randomiser: Secret<NODE> =
            kdf::derive("wayleave/attestation/hbs/randomiser/v2", self.randomiser.expose(), &octets);
        let digest = digest(&self.public, &octets, randomiser.expose(), message);
        let mut signature = Vec::with_capacity(SIGNATURE);
        signature.extend_from_slice(&octets);
        signature.extend_from_slice(randomiser.expose());
        signature.extend(self.seeds.sign(LOWER.winternitz, LOWER.tree_id(number), pair, &digest));
        signature.extend(path);
        signature.extend(above);
        Ok(signature)
    }

    fn slots(&self) -> Option<Slots> {
        Some(self.slots)
    }

    fn set_slot(&mut self, slot: Option<u64>) {
        self.may_sign = false;
        let Some(slot) = slot else { return };
        if self.slot.is_none_or(|latest| slot > latest) {
            self.slot = Some(slot);
            self.indices = self.part.indices(slot.min(SLOTS));
        }
        self.may_sign = self.slot == Some(slot) && slot < SLOTS;
    }

    fn left_in_slot(&self) -> u64 {
        if self.slot.is_none() { self.slots.signatures } else { self.indices.end - self.indices.start }
    }

    fn make_ahead(&mut self, slot: u64) {
        // The next tree of the current slot first, once the current one is half used.
        let half = 1 << (LOWER.height - 1);
        if self.may_sign && !self.indices.is_empty() {
            self.make_lower(self.indices.start >> LOWER.height);
            let soon = self.indices.start + half;
            if soon < self.indices.end {
                self.make_lower(soon >> LOWER.height);
            }
        }
        if slot < SLOTS {
            self.make_lower(self.part.indices(slot).start >> LOWER.height);
            self.grow(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    //! KCX-04: grinding with 200 signatures of `kc-hbs` in hand: none forged, in 20,000 tries and in as many as
    //! `WAYLEAVE_GRINDS` says.
    //! KCX-12: holders of one key, slots and leaves: disjoint parts, and nothing is signed without a slot, in an
    //! earlier one or after the last.

    use std::sync::OnceLock;

    use super::*;

    const BIRTH: u64 = 1_700_000_000;

    /// The holder of one of three parts. The key is made once for all tests.
    fn key(number: u16) -> HbsKey {
        static KEY: OnceLock<HbsKey> = OnceLock::new();
        let key = KEY.get_or_init(|| {
            let mut key = HbsKey::new(&Secret::new([3; 32]), BIRTH, Part { number: 0, of: 3 });
            key.make_ahead(1);
            key
        });
        HbsKey { part: Part { number, of: 3 }, ..key.clone() }
    }

    /// Signatures of `[0]`, `[1]` and so on in slot 7.
    fn signed() -> &'static (Vec<u8>, Vec<Vec<u8>>) {
        static SIGNED: OnceLock<(Vec<u8>, Vec<Vec<u8>>)> = OnceLock::new();
        SIGNED.get_or_init(|| {
            let mut key = key(0);
            key.set_slot(Some(7));
            let signatures = (0..200u8).map(|i| key.sign(&[i]).expect("a slot is set")).collect();
            (key.public().to_vec(), signatures)
        })
    }

    fn index_of(signature: &[u8]) -> u64 {
        signature[..INDEX].iter().fold(0, |index, octet| index << 8 | u64::from(*octet))
    }

    #[test]
    fn signs_what_its_public_key_verifies_and_no_bit_may_change() {
        let (public, signatures) = signed();
        let signature = &signatures[0];
        assert_eq!((signature.len(), index_of(signature)), (SIGNATURE, 7 * SLOT_SIGNATURES));
        assert!(KcHbs.verify(public, &[0], signature));
        assert!(!KcHbs.verify(public, &[1], signature));
        let bits = |octets: usize| (0..octets).map(|octet| (octet, 1u8 << (octet % 8)));
        let mut changed: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        for (octet, bit) in bits(SIGNATURE) {
            let mut signature = signature.clone();
            signature[octet] ^= bit;
            changed.push((public.clone(), signature));
        }
        for (octet, bit) in bits(PUBLIC_KEY) {
            let mut public = public.clone();
            public[octet] ^= bit;
            changed.push((public, signature.clone()));
        }
        let claims: Vec<Claim<'_>> =
            changed.iter().map(|(public, signature)| Claim { public, message: &[0], signature }).collect();
        assert_eq!(KcHbs.verify_batch(&claims), vec![false; claims.len()]);
    }

    #[test]
    fn a_batch_gives_each_claim_its_own_verdict() {
        let (public, signatures) = signed();
        let messages: Vec<[u8; 1]> = (0..40u8).map(|i| [if i % 3 == 0 { 99 } else { i }]).collect();
        let mut claims: Vec<Claim<'_>> =
            signatures.iter().zip(&messages).map(|(signature, message)| Claim { public, message, signature }).collect();
        claims[4].signature = &signatures[4][1..];
        claims[5].public = b"short";
        let expected: Vec<bool> = (0..40).map(|i| i % 3 != 0 && i != 4 && i != 5).collect();
        assert_eq!(KcHbs.verify_batch(&claims), expected);
    }

    #[test]
    fn a_wrong_middle_or_upper_part_spoils_only_its_own_claim() {
        let (public, signatures) = signed();
        let mut signatures = signatures[..6].to_vec();
        signatures[0][SIGNATURE - 1] ^= 1;
        signatures[3][SIGNATURE - UPPER.chains() - UPPER.path() - 1] ^= 1;
        let messages: Vec<[u8; 1]> = (0..6).map(|i| [i]).collect();
        let claims: Vec<Claim<'_>> =
            signatures.iter().zip(&messages).map(|(signature, message)| Claim { public, message, signature }).collect();
        assert_eq!(KcHbs.verify_batch(&claims), [false, true, true, false, true, true]);
        // And so it is when the right parts are known already.
        assert_eq!(KcHbs.verify_batch(&claims), [false, true, true, false, true, true]);
        assert!(!KcHbs.verify(public, &[3], &signatures[3]));
    }

    #[test]
    fn a_known_part_counts_for_its_own_key_tree_and_leaf_only() {
        let (public, signatures) = signed();
        assert!(KcHbs.verify(public, &[0], &signatures[0]));
        let parsed = Parsed::new(&Claim { public, message: &[0], signature: &signatures[0] }).expect("whole");
        let lower_root = roots(LOWER.winternitz, &[parsed.lower()])[0];
        let Above { middle, upper, .. } = parsed.above(lower_root);
        let other_key = [&public[..NODE], &[7; NODE]].concat();
        let above = |public, middle, upper| Above { public, middle, upper };
        let parts = vec![
            above(public, middle, upper),
            above(&other_key, middle, upper),
            above(public, Claimed { pair: 1, ..middle }, upper),
            above(public, Claimed { tree_id: MIDDLE.tree_id(1), ..middle }, upper),
            above(public, Claimed { message: [7; NODE], ..middle }, upper),
            above(public, middle, Claimed { pair: 1, ..upper }),
        ];
        assert_eq!(middle_parts(parts), [true, false, false, false, false, false]);
        let right = Claimed { message: roots(MIDDLE.winternitz, &[middle])[0], ..upper };
        let parts = [
            (public.as_slice(), right),
            (other_key.as_slice(), right),
            (public, Claimed { pair: 1, ..right }),
            (public, Claimed { message: [7; NODE], ..right }),
        ];
        assert_eq!(upper_parts(&parts), [true, false, false, false]);
    }

    #[test]
    fn nothing_is_signed_without_a_slot_nor_in_an_earlier_one_nor_after_the_last() {
        let mut key = key(2);
        assert!(matches!(key.sign(b"m"), Err(SignError::NotReserved(_))));
        key.set_slot(Some(9));
        let first = index_of(&key.sign(b"m").expect("a slot is set"));
        assert_eq!(first, 9 * SLOT_SIGNATURES + 10_922);
        key.set_slot(None);
        assert_eq!(key.sign(b"m"), Err(SignError::NotReserved(first + 1)));
        key.set_slot(Some(8));
        assert_eq!(key.sign(b"m"), Err(SignError::NotReserved(first + 1)));
        // The same slot goes on where it was.
        key.set_slot(Some(9));
        assert_eq!(index_of(&key.sign(b"m").expect("some are left")), first + 1);
        assert_eq!(key.left_in_slot(), SLOT_SIGNATURES - 10_922 - 2);
        let end = 10 * SLOT_SIGNATURES;
        key.indices.start = end - 1;
        assert_eq!(index_of(&key.sign(b"m").expect("one is left")), end - 1);
        assert_eq!((key.left_in_slot(), key.sign(b"m")), (0, Err(SignError::NotReserved(end))));
        key.set_slot(Some(9));
        assert_eq!(key.sign(b"m"), Err(SignError::NotReserved(end)));
        key.set_slot(Some(SLOTS - 1));
        assert_eq!((key.may_sign, key.indices.end), (true, SLOTS * SLOT_SIGNATURES));
        key.set_slot(Some(SLOTS));
        assert_eq!(key.sign(b"m"), Err(SignError::Exhausted(SLOTS)));
    }

    #[test]
    fn holders_of_one_key_have_disjoint_parts_and_all_together_the_slot() {
        for of in [1u16, 2, 3, 7, 256] {
            let mut next = 0;
            for number in 0..of {
                let part = Part::new(number, of).expect("a part").within_slot();
                assert_eq!(part.start, next);
                assert!(part.end - part.start >= SLOT_SIGNATURES / u64::from(of));
                next = part.end;
            }
            assert_eq!(next, SLOT_SIGNATURES);
        }
        assert_eq!(Part::new(2, 2), None);
        assert_eq!(Part::new(0, 257), None);
    }

    #[test]
    fn holders_of_one_key_sign_under_one_public_key_with_leaves_of_their_own() {
        let (mut one, mut two) = (key(0), key(1));
        assert_eq!(one.public(), two.public());
        one.set_slot(Some(1));
        two.set_slot(Some(1));
        let (first, second) = (one.sign(b"m").expect("set"), two.sign(b"m").expect("set"));
        assert_eq!([&first, &second].map(|signature| index_of(signature)), [1 << 14, (1 << 14) + 5461]);
        assert_eq!(
            KcHbs.verify_batch(&[&first, &second].map(|signature| Claim {
                public: one.public(),
                message: b"m",
                signature,
            })),
            [true, true]
        );
    }

    #[test]
    fn another_birth_or_division_is_another_key() {
        // Or else a host could sign with indices that were another's before.
        let derive = |birth, parts| *HbsKey::derive(&Secret::new([3; 32]), birth, parts).expose();
        let secrets = [(BIRTH, 1), (BIRTH + 1, 1), (BIRTH, 2), (BIRTH, 3)].map(|(birth, parts)| derive(birth, parts));
        for (number, one) in secrets.iter().enumerate() {
            let thirds = |secret: &[u8; 3 * NODE]| -> Vec<Node> { secret.as_chunks().0.to_vec() };
            assert!(secrets[..number].iter().flat_map(thirds).all(|third| !thirds(one).contains(&third)));
        }
    }

    #[test]
    fn trees_made_ahead_are_those_that_would_have_been_made() {
        let (mut ahead, mut late) = (key(0), key(0));
        let last = MIDDLE_SLOTS - 1;
        ahead.make_ahead(last);
        for slot in [last, last + 1] {
            ahead.set_slot(Some(slot));
            late.set_slot(Some(slot));
            assert_eq!(ahead.sign(b"m"), late.sign(b"m"), "slot {slot}");
            ahead.make_ahead(slot + 1);
            // The trees of slots that are over go.
            assert!(ahead.lower.len() <= MAX_LOWER && ahead.middle.len() <= 2);
        }
        // Within a slot, once half of a tree is used.
        ahead.indices.start += 1 << (LOWER.height - 1);
        ahead.make_ahead(last + 2);
        let next = (ahead.indices.start >> LOWER.height) + 1;
        assert!(ahead.lower.iter().any(|tree| tree.number == next));
        assert!(ahead.lower.iter().any(|tree| tree.number == (last + 2) << TREE_BITS));
    }

    #[test]
    fn the_next_middle_tree_grows_while_the_key_is_used() {
        let mut key = key(0);
        key.grow(MIDDLE_SLOTS - GROWING - 1);
        assert!(key.growing.is_none());
        let calls = (1u64 << MIDDLE.height) / u64::from(GROW);
        assert!(calls < GROWING / 2, "{calls}");
        for slot in 0..4 {
            key.grow(MIDDLE_SLOTS - GROWING + slot);
        }
        let leaves = key.growing.take().expect("begun");
        assert_eq!(leaves.tree_id(), MIDDLE.tree_id(1));
        // The last one has no next.
        key.grow(SLOTS - 1);
        assert!(key.growing.is_none());
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "a test reads its count from the environment")]
    fn grinding_finds_no_message_that_an_observed_signature_covers() {
        // KCX-04 against this suite: with two hundred signatures in hand, try messages under each index and randomiser
        // in turn; one would do whose digits all lie at or above a signed one's. `WAYLEAVE_GRINDS` says how often.
        let (public, signatures) = signed();
        let tries = std::env::var("WAYLEAVE_GRINDS").ok().and_then(|tries| tries.parse().ok()).unwrap_or(20_000);
        for number in 0..tries {
            let signature = &signatures[number % signatures.len()];
            let (index, rest) = signature.split_first_chunk::<INDEX>().expect("an index");
            let randomiser = rest.first_chunk().expect("a randomiser");
            let signed = digest(public, index, randomiser, &[(number % signatures.len()) as u8]);
            let forged = digest(public, index, randomiser, &[b"forged", &number.to_be_bytes()[..]].concat());
            assert!(!LOWER.winternitz.covers(&signed, &forged));
        }
    }
}
