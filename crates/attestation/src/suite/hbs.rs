//! `kc-hbs`: stateful hash-based signatures, two levels of Merkle trees over W-OTS, for 2^20 signatures of a key.
//!
//! The functions are those of SLH-DSA-SHA2-128 (FIPS 205) without its few-time layer: since every signature has an
//! index of its own, which the signer makes durable before it signs, a leaf signs the message's hash directly, as
//! in XMSS (RFC 8391). That hash binds the signer's randomiser, the key and the index.
//!
//! A signature is the index (4 bytes), the randomiser (16), then for the lower and the upper tree the chains' values
//! and the siblings on the way to the root. A public key is the public seed (16 bytes) and the upper root (16).

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;

use sha2::{Digest, Sha256};
use wayleave_crypto::kdf;
use wayleave_crypto::secret::Secret;

use super::{Claim, KeyRefused, SignError, Suite, SuiteId, SuiteKey};
use crate::hash::tree::{Claimed, Seeds, Tree, TreeId, Winternitz, roots};
use crate::hash::{NODE, Node, PublicSeed};

/// Height of each of the two levels.
const HEIGHT: u32 = 10;
/// Signatures of a key.
pub const SIGNATURES: u64 = 1 << (2 * HEIGHT);
/// Signatures of a lower tree.
pub const TREE_SIGNATURES: u64 = 1 << HEIGHT;
/// W-OTS of the lower trees, which sign messages.
const LOWER: Winternitz = Winternitz { bits: 4 };
/// W-OTS of the upper tree, which signs the roots of the lower ones: fewer and longer chains, since a verifier computes
/// them once for all signatures of a burst that share them.
const UPPER: Winternitz = Winternitz { bits: 7 };

/// Bytes of a public key.
pub const PUBLIC_KEY: usize = 2 * NODE;
/// Bytes of the index and the randomiser.
const HEAD: usize = 4 + NODE;
const LOWER_CHAINS: usize = NODE * LOWER.chains();
const UPPER_CHAINS: usize = NODE * UPPER.chains();
const PATH: usize = NODE * HEIGHT as usize;
/// Bytes of a signature.
pub const SIGNATURE: usize = HEAD + LOWER_CHAINS + PATH + UPPER_CHAINS + PATH;

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
        Box::new(HbsKey::new(seed, Part::WHOLE))
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
        let lower_roots = roots(LOWER, &lower);
        // A signer's messages in a burst mostly carry one and the same upper part: it is computed once for all of them.
        let mut upper: Vec<Claimed<'_>> = Vec::with_capacity(parsed.len());
        let mut indices: HashMap<(&[u8], u32, Node), usize> = HashMap::with_capacity(parsed.len());
        let shared: Vec<usize> = parsed
            .iter()
            .zip(lower_roots)
            .map(|(parsed, lower_root)| {
                let claimed = parsed.upper(lower_root);
                let index = indices.get(&(parsed.public, claimed.pair, lower_root)).copied();
                let same = |index: &usize| (upper[*index].chains, upper[*index].path) == (claimed.chains, claimed.path);
                index.filter(same).unwrap_or_else(|| {
                    upper.push(claimed);
                    indices.insert((parsed.public, claimed.pair, lower_root), upper.len() - 1);
                    upper.len() - 1
                })
            })
            .collect();
        let mut publics: Vec<&[u8]> = vec![&[]; upper.len()];
        parsed.iter().zip(&shared).for_each(|(parsed, index)| publics[*index] = parsed.public);
        let right = upper_parts(&upper, &publics);
        for (number, index) in numbers.into_iter().zip(shared) {
            verdicts[number] = right[index];
        }
        verdicts
    }
}

/// Upper parts that a thread remembers, by their hash; our own limit. One stays the same for 1,024 signatures of a key.
const KNOWN: usize = 1 << 13;

thread_local! {
    /// Hashes of upper parts that were right. Each has one slot, which the next one with that slot takes.
    static KNOWN_PARTS: RefCell<Vec<[u8; 32]>> = const { RefCell::new(Vec::new()) };
}

/// Whether each upper part leads to the root in its public key. Those found right before are not computed again: what is
/// remembered is a hash of all that the answer depends on, so that the answers are the same without.
fn upper_parts(upper: &[Claimed<'_>], publics: &[&[u8]]) -> Vec<bool> {
    let hashes: Vec<[u8; 32]> = upper.iter().zip(publics).map(|(claimed, public)| part_hash(claimed, public)).collect();
    let slot = |hash: &[u8; 32]| usize::from(u16::from_be_bytes([hash[0], hash[1]])) % KNOWN;
    KNOWN_PARTS.with_borrow_mut(|known| {
        known.resize(KNOWN, [0; 32]);
        let mut right: Vec<bool> = hashes.iter().map(|hash| known[slot(hash)] == *hash).collect();
        let new: Vec<usize> = (0..upper.len()).filter(|index| !right[*index]).collect();
        let claims: Vec<Claimed<'_>> = new.iter().map(|index| upper[*index]).collect();
        for (index, root) in new.into_iter().zip(roots(UPPER, &claims)) {
            right[index] = publics[index].ends_with(&root);
            if right[index] {
                known[slot(&hashes[index])] = hashes[index];
            }
        }
        right
    })
}

/// A hash of the public key, the leaf, the lower root and what is to prove it, all of fixed width.
fn part_hash(claimed: &Claimed<'_>, public: &[u8]) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(b"wayleave/attestation/hbs/upper-part/v1");
    hash.update(public);
    hash.update(claimed.pair.to_be_bytes());
    hash.update(claimed.message);
    hash.update(claimed.chains.as_flattened());
    hash.update(claimed.path.as_flattened());
    hash.finalize().into()
}

/// A claim whose lengths and index are right.
struct Parsed<'a> {
    public: &'a [u8],
    seed: PublicSeed,
    index: u32,
    digest: Node,
    lower_chains: &'a [Node],
    lower_path: &'a [Node],
    upper_chains: &'a [Node],
    upper_path: &'a [Node],
}

impl<'a> Parsed<'a> {
    fn new(claim: &Claim<'a>) -> Option<Self> {
        if claim.public.len() != PUBLIC_KEY || claim.signature.len() != SIGNATURE {
            return None;
        }
        let seed = claim.public.first_chunk::<NODE>()?;
        let (index, rest) = claim.signature.split_first_chunk::<4>()?;
        let index = u32::from_be_bytes(*index);
        if u64::from(index) >= SIGNATURES {
            return None;
        }
        let (randomiser, rest) = rest.split_first_chunk::<NODE>()?;
        let (lower_chains, rest) = rest.split_at(LOWER_CHAINS);
        let (lower_path, rest) = rest.split_at(PATH);
        let (upper_chains, upper_path) = rest.split_at(UPPER_CHAINS);
        Some(Self {
            public: claim.public,
            seed: PublicSeed::new(seed),
            index,
            digest: digest(claim.public, index, randomiser, claim.message),
            lower_chains: lower_chains.as_chunks().0,
            lower_path: lower_path.as_chunks().0,
            upper_chains: upper_chains.as_chunks().0,
            upper_path: upper_path.as_chunks().0,
        })
    }

    fn lower(&self) -> Claimed<'_> {
        let (tree, pair) = split(self.index);
        Claimed {
            seed: &self.seed,
            tree_id: lower_tree_id(tree),
            pair,
            message: self.digest,
            chains: self.lower_chains,
            path: self.lower_path,
        }
    }

    fn upper(&self, message: Node) -> Claimed<'_> {
        let (pair, _) = split(self.index);
        Claimed {
            seed: &self.seed,
            tree_id: UPPER_TREE,
            pair,
            message,
            chains: self.upper_chains,
            path: self.upper_path,
        }
    }
}

/// The number of the lower tree, and of the leaf in it.
fn split(index: u32) -> (u32, u32) {
    (index >> HEIGHT, index & ((1 << HEIGHT) - 1))
}

const UPPER_TREE: TreeId = TreeId { layer: 1, tree: 0 };

fn lower_tree_id(tree: u32) -> TreeId {
    TreeId { layer: 0, tree: u64::from(tree) }
}

/// What a leaf signs: a hash of label, public key, index, randomiser and message, all but the last of fixed width.
fn digest(public: &[u8], index: u32, randomiser: &Node, message: &[u8]) -> Node {
    let mut hash = Sha256::new();
    hash.update(b"wayleave/attestation/hbs/message/v1");
    hash.update(public);
    hash.update(index.to_be_bytes());
    hash.update(randomiser);
    hash.update(message);
    hash.finalize()[..NODE].try_into().expect("16 of 32 bytes")
}

/// Which of a key's signatures one of its holders may make: the `number`-th of `of` equal parts, each a run of whole
/// lower trees, so that two proxies of one AS never come to sign with the same leaf.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    number: u16,
    of: u16,
}

impl Part {
    /// All signatures.
    pub const WHOLE: Self = Self { number: 0, of: 1 };

    /// The `number`-th of `of` parts, from 0; there are at most as many as lower trees (1,024).
    #[must_use]
    pub fn new(number: u16, of: u16) -> Option<Self> {
        (number < of && u64::from(of) <= TREE_SIGNATURES).then_some(Self { number, of })
    }

    /// The indices of this part.
    #[must_use]
    pub fn indices(self) -> std::ops::Range<u64> {
        let trees = |number: u64| number * TREE_SIGNATURES / u64::from(self.of);
        let number = u64::from(self.number);
        trees(number) << HEIGHT..trees(number + 1) << HEIGHT
    }
}

/// A private key with the index of its next signature.
///
/// Each lower tree is made when its first signature comes, or before by [`SuiteKey::make_ahead`], and the upper tree's
/// signature of its root is stored with it.
pub struct HbsKey {
    seeds: Seeds,
    /// From which the randomisers come.
    randomiser: Secret<NODE>,
    public: [u8; PUBLIC_KEY],
    upper: Tree,
    current: Option<LowerTree>,
    ahead: Option<LowerTree>,
    part: std::ops::Range<u64>,
    next: u64,
    /// Indices below this one are durably reserved.
    limit: u64,
}

/// A lower tree and the upper tree's signature of its root.
struct LowerTree {
    number: u32,
    tree: Tree,
    signed: Vec<u8>,
}

impl HbsKey {
    /// The key of a uniformly random seed, which makes the upper tree. Every holder of the seed has a part of its own.
    #[must_use]
    pub fn new(seed: &Secret<32>, part: Part) -> Self {
        let secrets: Secret<{ 3 * NODE }> = kdf::derive("wayleave/attestation/hbs/key/v1", seed.expose(), b"");
        let third = |number: usize| secrets.expose().as_chunks::<NODE>().0[number];
        let public_seed = third(2);
        let seeds = Seeds { secret: Secret::new(third(0)), public: PublicSeed::new(&public_seed) };
        let upper = Tree::new(&seeds, UPPER, UPPER_TREE, HEIGHT);
        let mut public = [0; PUBLIC_KEY];
        public[..NODE].copy_from_slice(&public_seed);
        public[NODE..].copy_from_slice(&upper.root());
        let part = part.indices();
        let (next, limit) = (part.start, part.start);
        let randomiser = Secret::new(third(1));
        Self { seeds, randomiser, public, upper, current: None, ahead: None, part, next, limit }
    }

    fn make(&self, number: u32) -> LowerTree {
        let tree = Tree::new(&self.seeds, LOWER, lower_tree_id(number), HEIGHT);
        let mut signed = self.seeds.sign(UPPER, UPPER_TREE, number, &tree.root());
        signed.extend(self.upper.path(number));
        LowerTree { number, tree, signed }
    }

    fn next_tree(&self) -> u32 {
        (self.next >> HEIGHT) as u32
    }
}

impl SuiteKey for HbsKey {
    fn public(&self) -> &[u8] {
        &self.public
    }

    fn sign(&mut self, message: &[u8]) -> Result<Vec<u8>, SignError> {
        if self.next >= self.part.end {
            return Err(SignError::Exhausted(self.part.end - self.part.start));
        }
        if self.next >= self.limit {
            return Err(SignError::NotReserved(self.next));
        }
        let number = self.next_tree();
        if self.current.as_ref().is_none_or(|tree| tree.number != number) {
            let ahead = self.ahead.take().filter(|tree| tree.number == number);
            self.current = Some(ahead.unwrap_or_else(|| self.make(number)));
        }
        let index = u32::try_from(self.next).expect("an index has 20 bits");
        // Whatever happens from here on, this index signs no more.
        self.next += 1;
        let lower = self.current.as_ref().expect("set above");
        let randomiser: Secret<NODE> =
            kdf::derive("wayleave/attestation/hbs/randomiser/v1", self.randomiser.expose(), &index.to_be_bytes());
        let (tree, pair) = split(index);
        let digest = digest(&self.public, index, randomiser.expose(), message);
        let mut signature = Vec::with_capacity(SIGNATURE);
        signature.extend_from_slice(&index.to_be_bytes());
        signature.extend_from_slice(randomiser.expose());
        signature.extend(self.seeds.sign(LOWER, lower_tree_id(tree), pair, &digest));
        signature.extend(lower.tree.path(pair));
        signature.extend_from_slice(&lower.signed);
        Ok(signature)
    }

    fn next_index(&self) -> Option<u64> {
        Some(self.next)
    }

    fn signatures(&self) -> Option<Range<u64>> {
        Some(self.part.clone())
    }

    fn reserve(&mut self, from: u64, limit: u64) {
        self.next = self.next.max(from);
        self.limit = self.limit.max(limit.min(self.part.end));
    }

    fn make_ahead(&mut self) {
        let have = |tree: &Option<LowerTree>, number| tree.as_ref().is_some_and(|tree| tree.number == number);
        let mut number = self.next_tree();
        if have(&self.current, number) {
            number += 1;
        }
        if u64::from(number) << HEIGHT < self.part.end && !have(&self.ahead, number) {
            self.ahead = Some(self.make(number));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(part: Part) -> HbsKey {
        HbsKey::new(&Secret::new([3; 32]), part)
    }

    #[test]
    fn signs_what_its_public_key_verifies_and_no_bit_may_change() {
        let mut key = key(Part::WHOLE);
        key.reserve(0, 2);
        let signature = key.sign(b"message").expect("reserved");
        assert_eq!(signature.len(), SIGNATURE);
        assert!(KcHbs.verify(key.public(), b"message", &signature));
        assert!(!KcHbs.verify(key.public(), b"massage", &signature));
        let bits = |octets: usize| (0..octets).map(|octet| (octet, 1u8 << (octet % 8)));
        let mut changed: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        for (octet, bit) in bits(SIGNATURE) {
            let mut signature = signature.clone();
            signature[octet] ^= bit;
            changed.push((key.public().to_vec(), signature));
        }
        for (octet, bit) in bits(PUBLIC_KEY) {
            let mut public = key.public().to_vec();
            public[octet] ^= bit;
            changed.push((public, signature.clone()));
        }
        let claims: Vec<Claim<'_>> =
            changed.iter().map(|(public, signature)| Claim { public, message: b"message", signature }).collect();
        assert_eq!(KcHbs.verify_batch(&claims), vec![false; claims.len()]);
    }

    #[test]
    fn a_batch_gives_each_claim_its_own_verdict() {
        let mut key = key(Part::WHOLE);
        key.reserve(0, 40);
        let signatures: Vec<Vec<u8>> = (0..40u8).map(|i| key.sign(&[i]).expect("reserved")).collect();
        let messages: Vec<[u8; 1]> = (0..40u8).map(|i| [if i % 3 == 0 { 99 } else { i }]).collect();
        let mut claims: Vec<Claim<'_>> = signatures
            .iter()
            .zip(&messages)
            .map(|(signature, message)| Claim { public: key.public(), message, signature })
            .collect();
        claims[4].signature = &signatures[4][1..];
        claims[5].public = b"short";
        let expected: Vec<bool> = (0..40).map(|i| i % 3 != 0 && i != 4 && i != 5).collect();
        assert_eq!(KcHbs.verify_batch(&claims), expected);
    }

    #[test]
    fn a_wrong_upper_part_spoils_only_its_own_claim() {
        let mut key = key(Part::WHOLE);
        key.reserve(0, 6);
        let mut signatures: Vec<Vec<u8>> = (0..6).map(|_| key.sign(b"m").expect("reserved")).collect();
        for wrong in [0, 3] {
            signatures[wrong][SIGNATURE - 1] ^= 1;
        }
        let claim = |signature| Claim { public: key.public(), message: b"m", signature };
        let claims: Vec<Claim<'_>> = signatures.iter().map(|signature| claim(signature)).collect();
        assert_eq!(KcHbs.verify_batch(&claims), [false, true, true, false, true, true]);
        // And so it is when the right upper part is known already.
        assert_eq!(KcHbs.verify_batch(&claims), [false, true, true, false, true, true]);
        assert!(!KcHbs.verify(key.public(), b"m", &signatures[3]));
    }

    #[test]
    fn a_known_upper_part_counts_for_its_own_key_and_leaf_only() {
        let mut key = key(Part::WHOLE);
        key.reserve(0, 1);
        let signature = key.sign(b"m").expect("reserved");
        assert!(KcHbs.verify(key.public(), b"m", &signature));
        let parsed = Parsed::new(&Claim { public: key.public(), message: b"m", signature: &signature }).expect("whole");
        let lower_root = roots(LOWER, &[parsed.lower()])[0];
        let right = parsed.upper(lower_root);
        let other_key = [&key.public()[..NODE], &[7; NODE]].concat();
        let claims = [right, right, Claimed { pair: 1, ..right }, Claimed { message: [7; NODE], ..right }];
        let publics = [key.public(), &other_key, key.public(), key.public()];
        assert_eq!(upper_parts(&claims, &publics), [true, false, false, false]);
    }

    #[test]
    fn nothing_is_signed_before_it_is_reserved() {
        let mut key = key(Part::WHOLE);
        assert_eq!(key.sign(b"m"), Err(SignError::NotReserved(0)));
        key.reserve(0, 1);
        assert!(key.sign(b"m").is_ok());
        assert_eq!(key.sign(b"m"), Err(SignError::NotReserved(1)));
    }

    #[test]
    fn a_life_cut_off_at_any_point_never_lets_an_index_sign_twice() {
        // KCX-12: the counter is written, then the key learns of it; a kill may fall before, between or after.
        let mut used = Vec::new();
        let mut durable = 0;
        for life in 0..12u64 {
            let mut key = key(Part::WHOLE);
            let from = durable;
            if life % 4 == 0 {
                continue; // Killed before the counter was written.
            }
            durable = from + 5;
            if life % 4 == 1 {
                continue; // Killed after it was written and before any signature.
            }
            key.reserve(from, durable);
            for _ in 0..life % 4 {
                let signature = key.sign(b"m").expect("reserved");
                used.push(u32::from_be_bytes(*signature.first_chunk().expect("an index")));
            }
        }
        let mut distinct = used.clone();
        distinct.dedup();
        assert_eq!(used, distinct);
        assert!(used.is_sorted() && used.len() > 10);
    }

    #[test]
    fn holders_of_one_key_have_disjoint_parts_and_all_together_the_whole() {
        for of in [1u16, 2, 3, 7, 1024] {
            let mut next = 0;
            for number in 0..of {
                let part = Part::new(number, of).expect("a part");
                assert_eq!(part.indices().start, next);
                assert!(!part.indices().is_empty());
                next = part.indices().end;
            }
            assert_eq!(next, SIGNATURES);
        }
        assert_eq!(Part::new(2, 2), None);
        assert_eq!(Part::new(0, 1025), None);
    }

    #[test]
    fn two_holders_sign_under_one_public_key_and_stop_at_the_end_of_their_part() {
        let part = Part::new(1, 1024).expect("a part");
        let (mut one, mut two) = (key(Part::new(0, 1024).expect("a part")), key(part));
        one.reserve(0, u64::MAX);
        two.reserve(part.indices().end - 1, u64::MAX);
        assert_eq!(one.public(), two.public());
        let (first, last) = (one.sign(b"m").expect("reserved"), two.sign(b"m").expect("reserved"));
        assert_eq!(first[..4], [0, 0, 0, 0]);
        assert_eq!(last[..4], 2047u32.to_be_bytes());
        assert!(KcHbs.verify(one.public(), b"m", &last) && KcHbs.verify(one.public(), b"m", &first));
        assert_eq!(two.sign(b"m"), Err(SignError::Exhausted(1024)));
    }

    #[test]
    fn a_tree_made_ahead_is_the_one_that_would_have_been_made() {
        let (mut ahead, mut late) = (key(Part::WHOLE), key(Part::WHOLE));
        for key in [&mut ahead, &mut late] {
            key.reserve(TREE_SIGNATURES - 1, TREE_SIGNATURES + 1);
        }
        ahead.make_ahead();
        assert_eq!(ahead.sign(b"m"), late.sign(b"m"));
        ahead.make_ahead();
        assert!(ahead.ahead.as_ref().is_some_and(|tree| tree.number == 1));
        assert_eq!(ahead.sign(b"m"), late.sign(b"m"));
        assert!(ahead.ahead.is_none());
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "a test reads its count from the environment")]
    fn grinding_finds_no_message_that_an_observed_signature_covers() {
        // KCX-04 against this suite: with two hundred signatures in hand, try messages under each index and randomiser
        // in turn; one would do whose digits all lie at or above a signed one's. `WAYLEAVE_GRINDS` says how often.
        let mut key = key(Part::WHOLE);
        key.reserve(0, 200);
        let signatures: Vec<Vec<u8>> = (0..200u8).map(|i| key.sign(&[i]).expect("reserved")).collect();
        let tries = std::env::var("WAYLEAVE_GRINDS").ok().and_then(|tries| tries.parse().ok()).unwrap_or(20_000);
        for number in 0..tries {
            let signature = &signatures[number % signatures.len()];
            let (index, rest) = signature.split_first_chunk::<4>().expect("an index");
            let randomiser = rest.first_chunk().expect("a randomiser");
            let index = u32::from_be_bytes(*index);
            let signed = digest(key.public(), index, randomiser, &[(number % signatures.len()) as u8]);
            let forged = digest(key.public(), index, randomiser, &[b"forged", &number.to_be_bytes()[..]].concat());
            assert!(!LOWER.covers(&signed, &forged));
        }
    }
}
