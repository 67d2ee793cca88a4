//! The paper's hybrid: KC-MT and KC-RSA mixed hop by hop (section IV-C and figure 3).
//!
//! Every AS grants a key pair of each kind, and the receiver signs with that of its primary suite. RSA signatures form one
//! aggregate, which includes the origin's; HORS signatures are in their hops.
//!
//! An attestation on the wire:
//!
//! ```text
//! hops (1) | expiry (4) | hop 0 | ... | hop i | S (128) | granted: two primes (128), the tree's seed (16)
//! hop: V (2 + bits/8) | salt (1) | modulus of t^+ (128) | root of t^+ (8) | length (2) | HORS signature, or nothing
//! ```

use std::collections::HashMap;

use sha2::{Digest as _, Sha256};
use wayleave_attestation::suite::SuiteId;
use wayleave_core::{Asn, UnixTime};
use wayleave_crypto::kdf;
use wayleave_crypto::secret::Secret;

use super::certificates::{BitVector, Certificates, MAX_HOPS};
use super::expiry::{Expiry, expiring_formula};
use super::hors::{HorsSignature, KC_MT, Tree, roots};
use super::mt::SIGMA;
use super::raw::{Block, MODULUS_LEN, Moduli, RawPrivate, RawPublic, full_domain_hash, xor};
use super::rsa::vectors_allow;
use crate::kc_x::mmo::{Digest, Mmo, Node, message};
use crate::scheme::{Announcement, Scheme, SchemeError};

/// Bytes of a root and of a tree's seed.
const NODE_LEN: usize = 8;
const SEED_LEN: usize = 16;
/// Bytes of the number of the tree that signed, which the paper counts with the disclosed nodes.
const SERIAL_LEN: usize = 2;
/// Granted keys kept: our own limit. The cache is emptied when it is full.
const MAX_GRANTED: usize = 200_000;

/// Which hops sign with KC-MT; the origin always signs with its RSA key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mix {
    /// One hop in so many: 2 is the paper's ratio 1:1, 3 its 2:1.
    OneIn(usize),
    /// This AS alone: KC-MT over a chain of KC-RSA, the worst case for an AS whose primary suite is KC-MT.
    Only(Asn),
}

impl Mix {
    fn is_tree(self, path: &[Asn]) -> bool {
        match self {
            Self::OneIn(every) => path.len() > 1 && path.len().is_multiple_of(every.max(1)),
            Self::Only(asn) => path.len() > 1 && path.last() == Some(&asn),
        }
    }
}

/// One hop of an attestation.
#[derive(Clone, Debug, PartialEq, Eq)]
struct HybridHop {
    vector: BitVector,
    salt: u8,
    modulus: Block,
    root: Node,
    /// Empty where the hop signs with RSA.
    hors: Vec<u8>,
}

impl HybridHop {
    fn key(&self) -> [u8; MODULUS_LEN + NODE_LEN] {
        let mut key = [0; MODULUS_LEN + NODE_LEN];
        key[..MODULUS_LEN].copy_from_slice(&self.modulus);
        key[MODULUS_LEN..].copy_from_slice(&self.root);
        key
    }
}

/// The attestation of an UPDATE.
#[derive(Clone, Debug)]
struct Attestation {
    expiry: Expiry,
    hops: Vec<HybridHop>,
    signature: Block,
    primes: Secret<MODULUS_LEN>,
    seed: Secret<SEED_LEN>,
}

impl Attestation {
    fn decode(bytes: &[u8]) -> Option<Self> {
        let (&count, rest) = bytes.split_first()?;
        let (expiry, mut rest) = Expiry::decode(rest)?;
        let mut hops = Vec::with_capacity(usize::from(count));
        for _ in 0..count {
            let (vector, after) = BitVector::decode(rest)?;
            let (&salt, after) = after.split_first()?;
            let (&modulus, after) = after.split_first_chunk()?;
            let (&root, after) = after.split_first_chunk()?;
            let (&len, after) = after.split_first_chunk()?;
            let (hors, after) = after.split_at_checked(usize::from(u16::from_be_bytes(len)))?;
            hops.push(HybridHop { vector, salt, modulus, root, hors: hors.to_vec() });
            rest = after;
        }
        let (&signature, rest) = rest.split_first_chunk()?;
        let (&primes, rest) = rest.split_first_chunk()?;
        let (primes, seed) = (Secret::new(primes), Secret::new(rest.try_into().ok()?));
        (count > 0).then_some(Self { expiry, hops, signature, primes, seed })
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = vec![u8::try_from(self.hops.len()).expect("at most MAX_HOPS")];
        out.extend_from_slice(&self.expiry.octets());
        for hop in &self.hops {
            hop.vector.encode(&mut out);
            out.push(hop.salt);
            out.extend_from_slice(&hop.key());
            out.extend_from_slice(&u16::try_from(hop.hors.len()).expect("a few hundred bytes").to_be_bytes());
            out.extend_from_slice(&hop.hors);
        }
        out.extend_from_slice(&self.signature);
        out.extend_from_slice(self.primes.expose());
        out.extend_from_slice(self.seed.expose());
        out
    }
}

/// What each hop signs: a hash of all messages and keys so far.
fn statements(expiry: Expiry, path: &[Asn], hops: &[HybridHop]) -> Vec<[u8; 32]> {
    let mut so_far = [0; 32];
    let statements = hops.iter().enumerate().map(|(index, hop)| {
        let message = expiring_formula(expiry, &path[..=index], &hop.vector, &hop.key());
        so_far = Sha256::new().chain_update(so_far).chain_update([hop.salt]).chain_update(message).finalize().into();
        so_far
    });
    statements.collect()
}

fn number(statement: &[u8; 32]) -> Block {
    full_domain_hash(&[b"wayleave/kc-hybrid-paper/v1", statement])
}

fn digest(statement: &[u8; 32]) -> Digest {
    message(statement)
}

/// The key pairs that an AS grants now.
struct GrantedPairs {
    pair: RawPrivate,
    seed: Secret<SEED_LEN>,
    root: Node,
    sent: u32,
    serial: u32,
}

/// The hybrid with the keys of every AS.
pub struct KcHybrid {
    mix: Mix,
    now: UnixTime,
    mmo: Mmo,
    certificates: Certificates,
    seed: Secret<32>,
    issued: HashMap<Asn, GrantedPairs>,
    /// Granted keys as received, by public half; each is checked once.
    pairs: HashMap<Block, RawPrivate>,
    trees: HashMap<Node, (Secret<SEED_LEN>, Tree)>,
}

impl KcHybrid {
    #[must_use]
    pub fn new(seed: &Secret<32>, mix: Mix) -> Self {
        Self {
            mix,
            now: UnixTime::default(),
            mmo: Mmo::default(),
            certificates: Certificates::new(seed),
            seed: seed.clone(),
            issued: HashMap::new(),
            pairs: HashMap::new(),
            trees: HashMap::new(),
        }
    }

    fn issue_tree(&self, asn: Asn, serial: u32) -> (Secret<SEED_LEN>, Node) {
        let context = [asn.0.to_be_bytes(), serial.to_be_bytes()].concat();
        let seed: Secret<SEED_LEN> = kdf::derive("wayleave/kc-hybrid-paper/tree/v1", self.seed.expose(), &context);
        let root = Tree::new(&self.mmo, KC_MT, seed.expose()).root();
        (seed, root)
    }

    /// Makes the key pairs that `asn` grants, if it has none.
    fn issue(&mut self, asn: Asn) {
        if self.issued.contains_key(&asn) {
            return;
        }
        let seed = kdf::derive("wayleave/kc-hybrid-paper/rsa/v1", self.seed.expose(), &asn.0.to_be_bytes());
        let pair = RawPrivate::generate(&seed, Moduli::High);
        self.pairs.insert(pair.public().modulus(), pair.clone());
        let (seed, root) = self.issue_tree(asn, 0);
        self.issued.insert(asn, GrantedPairs { pair, seed, root, sent: 0, serial: 0 });
    }

    /// The key that `asn` grants with its next UPDATE: a new tree after Sigma UPDATEs.
    fn grant(&mut self, asn: Asn) -> &GrantedPairs {
        self.issue(asn);
        let (sent, serial) = (self.issued[&asn].sent, self.issued[&asn].serial);
        let renewed = (sent == SIGMA).then(|| self.issue_tree(asn, serial + 1));
        let issued = self.issued.get_mut(&asn).expect("issued above");
        if let Some((seed, root)) = renewed {
            (issued.seed, issued.root, issued.sent, issued.serial) = (seed, root, 0, serial + 1);
        }
        issued.sent += 1;
        issued
    }

    fn granted_pair(&mut self, received: &Attestation) -> Result<&RawPrivate, SchemeError> {
        let modulus = received.hops.last().ok_or(SchemeError::Malformed)?.modulus;
        if self.pairs.get(&modulus).is_none_or(|pair| pair.encode() != received.primes) {
            let pair = RawPrivate::decode(&received.primes, Moduli::High).map_err(|_| SchemeError::Malformed)?;
            if pair.public().modulus() != modulus {
                return Err(SchemeError::Malformed);
            }
            if self.pairs.len() >= MAX_GRANTED {
                self.pairs.clear();
            }
            self.pairs.insert(modulus, pair);
        }
        Ok(&self.pairs[&modulus])
    }

    fn granted_tree(&mut self, received: &Attestation) -> Result<&Tree, SchemeError> {
        let root = received.hops.last().ok_or(SchemeError::Malformed)?.root;
        if self.trees.get(&root).is_none_or(|(seed, _)| *seed != received.seed) {
            let tree = Tree::new(&self.mmo, KC_MT, received.seed.expose());
            if tree.root() != root {
                return Err(SchemeError::Malformed);
            }
            if self.trees.len() >= MAX_GRANTED {
                self.trees.clear();
            }
            self.trees.insert(root, (received.seed.clone(), tree));
        }
        Ok(&self.trees[&root].1)
    }

    /// Signs the last hop with RSA, which adds to the aggregate.
    fn sign_rsa(
        &mut self,
        expiry: Expiry,
        path: &[Asn],
        hops: &mut [HybridHop],
        received: Option<&Attestation>,
    ) -> Result<Block, SchemeError> {
        let before = received.map_or([0; MODULUS_LEN], |received| received.signature);
        let signer = match received {
            None => self.certificates.origin(path[0]).ok_or(SchemeError::Malformed)?,
            Some(received) => self.granted_pair(received)?,
        };
        loop {
            let statement = *statements(expiry, path, hops).last().ok_or(SchemeError::Malformed)?;
            if let Some(signature) = signer.apply(&xor(&before, &number(&statement))) {
                return Ok(signature);
            }
            let last = hops.last_mut().ok_or(SchemeError::Malformed)?;
            last.salt = last.salt.checked_add(1).ok_or(SchemeError::Malformed)?;
        }
    }
}

impl Scheme for KcHybrid {
    fn name(&self) -> &'static str {
        SuiteId::KcHybridPaper.name()
    }

    fn prepare(&mut self, path: &[Asn]) {
        self.certificates.prepare(path);
        path.iter().for_each(|asn| self.issue(*asn));
    }

    fn set_time(&mut self, now: UnixTime) {
        self.now = now;
    }

    fn attest(&mut self, announcement: &Announcement, received: &[u8], to: Asn) -> Result<Vec<u8>, SchemeError> {
        let path = &announcement.path;
        let (&origin, &last) = path.first().zip(path.last()).ok_or(SchemeError::Malformed)?;
        let received = if path.len() == 1 {
            self.certificates.add_origin(origin);
            None
        } else {
            let received = Attestation::decode(received).filter(|received| received.hops.len() + 1 == path.len());
            Some(received.filter(|_| path.len() <= MAX_HOPS).ok_or(SchemeError::Malformed)?)
        };
        let origination = || Expiry::of_route_announced_at(self.now);
        let expiry = received.as_ref().map_or_else(origination, |received| received.expiry);
        let vector = self.certificates.export(path, to);
        let issued = self.grant(last);
        let (primes, seed) = (issued.pair.encode(), issued.seed.clone());
        let hop =
            HybridHop { vector, salt: 0, modulus: issued.pair.public().modulus(), root: issued.root, hors: Vec::new() };
        let mut hops = received.as_ref().map_or_else(Vec::new, |received| received.hops.clone());
        hops.push(hop);
        let signature = match &received {
            Some(received) if self.mix.is_tree(path) => {
                let statement = *statements(expiry, path, &hops).last().ok_or(SchemeError::Malformed)?;
                let mut hors = Vec::with_capacity(320);
                self.granted_tree(received)?.sign(&digest(&statement), &mut hors);
                hops.last_mut().ok_or(SchemeError::Malformed)?.hors = hors;
                received.signature
            }
            received => self.sign_rsa(expiry, path, &mut hops, received.as_ref())?,
        };
        Ok(Attestation { expiry, hops, signature, primes, seed }.encode())
    }

    fn verify(&self, announcement: &Announcement, attestation: &[u8], by: Asn) -> bool {
        let path = &announcement.path;
        let Some(Attestation { expiry, hops, mut signature, .. }) = Attestation::decode(attestation) else {
            return false;
        };
        if expiry.has_passed(self.now)
            || hops.len() != path.len()
            || !vectors_allow(&self.certificates, path, hops.iter().map(|hop| &hop.vector), by)
        {
            return false;
        }
        let Some(origin) = self.certificates.origin(path[0]) else { return false };
        let statements = statements(expiry, path, &hops);
        let (mut claims, mut expected) = (Vec::new(), Vec::new());
        for index in (1..hops.len()).rev() {
            let (hop, before, statement) = (&hops[index], &hops[index - 1], &statements[index]);
            if hop.hors.is_empty() {
                let Ok(key) = RawPublic::new(&before.modulus, Moduli::High) else { return false };
                let Some(peeled) = key.apply(&signature) else { return false };
                signature = xor(&peeled, &number(statement));
            } else {
                let Some(claimed) = HorsSignature::new(KC_MT, &digest(statement), &hop.hors) else { return false };
                claims.push(claimed);
                expected.push(before.root);
            }
        }
        // The trees first, since they cost least.
        hops[0].hors.is_empty()
            && roots(&self.mmo, KC_MT, &claims) == expected
            && origin.public().apply(&signature) == Some(number(&statements[0]))
    }

    fn signature_bytes(&self, attestation: &[u8]) -> usize {
        let Some(attestation) = Attestation::decode(attestation) else { return 0 };
        let trees = attestation.hops.iter().filter(|hop| !hop.hors.is_empty());
        MODULUS_LEN + trees.map(|hop| SERIAL_LEN + hop.hors.len()).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send(scheme: &mut KcHybrid, hops: u32) -> (Announcement, Vec<u8>) {
        let mut announcement = Announcement { prefixes: Vec::new(), path: Vec::new() };
        let mut attestation = Vec::new();
        for asn in 1..=hops {
            announcement.path.push(Asn(asn));
            attestation = scheme.attest(&announcement, &attestation, Asn(asn + 1)).expect("sound");
        }
        (announcement, attestation)
    }

    fn trees(attestation: &[u8]) -> usize {
        let decoded = Attestation::decode(attestation).expect("honest");
        decoded.hops.iter().filter(|hop| !hop.hors.is_empty()).count()
    }

    #[test]
    fn honest_paths_of_every_mix_verify() {
        for (mix, of_six) in [(Mix::OneIn(2), 3), (Mix::OneIn(3), 2), (Mix::Only(Asn(6)), 1), (Mix::OneIn(1), 5)] {
            let mut scheme = KcHybrid::new(&Secret::new([3; 32]), mix);
            for hops in 1..=6 {
                let (announcement, attestation) = send(&mut scheme, hops);
                assert!(scheme.verify(&announcement, &attestation, Asn(hops + 1)), "{mix:?} {hops}");
                assert!(!scheme.verify(&announcement, &attestation, Asn(77)));
            }
            let (_, attestation) = send(&mut scheme, 6);
            assert_eq!(trees(&attestation), of_six, "{mix:?}");
        }
    }

    #[test]
    fn no_bit_of_what_is_signed_may_change() {
        let mut scheme = KcHybrid::new(&Secret::new([3; 32]), Mix::OneIn(2));
        let (announcement, attestation) = send(&mut scheme, 4);
        for octet in 0..attestation.len() - MODULUS_LEN - SEED_LEN {
            let mut changed = attestation.clone();
            changed[octet] ^= 1 << (octet % 8);
            assert!(!scheme.verify(&announcement, &changed, Asn(5)), "octet {octet}");
        }
        for len in 0..attestation.len() {
            assert!(!scheme.verify(&announcement, &attestation[..len], Asn(5)));
        }
    }

    #[test]
    fn a_tree_serves_sigma_updates_and_no_more() {
        let mut scheme = KcHybrid::new(&Secret::new([3; 32]), Mix::OneIn(2));
        let announcement = Announcement { prefixes: Vec::new(), path: vec![Asn(1)] };
        let mut roots: Vec<Node> = (0..2 * SIGMA + 1)
            .map(|_| {
                let sent = scheme.attest(&announcement, &[], Asn(2)).expect("sound");
                Attestation::decode(&sent).expect("honest").hops[0].root
            })
            .collect();
        roots.dedup();
        assert_eq!(roots.len(), 3);
    }

    #[test]
    fn a_tree_costs_213_bytes_on_average_and_the_rest_is_one_aggregate() {
        let mut scheme = KcHybrid::new(&Secret::new([3; 32]), Mix::OneIn(2));
        let (mut announcement, received) = send(&mut scheme, 3);
        announcement.path.push(Asn(4));
        let before = scheme.signature_bytes(&received);
        let sizes = (0..300).map(|n| {
            let attestation = scheme.attest(&announcement, &received, Asn(1000 + n)).expect("sound");
            scheme.signature_bytes(&attestation) - before
        });
        let mean = sizes.sum::<usize>() / 300;
        assert!((212..=214).contains(&mean), "{mean}");
        let (_, rsa_alone) = send(&mut KcHybrid::new(&Secret::new([3; 32]), Mix::OneIn(9)), 4);
        assert_eq!(scheme.signature_bytes(&rsa_alone), MODULUS_LEN);
    }
}
