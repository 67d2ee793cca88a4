//! KC-MT as the paper has it: HORS over a hash tree, keys granted hop by hop, an origin key of RSA (sections III, IV-B).
//!
//! An attestation on the wire:
//!
//! ```text
//! hops (1) | expiry (4) | hop 0 | ... | hop i | t_i^- (16)
//! hop 0: V (2 + bits/8) | t_0^+ (8) | RSA signature (128)
//! hop i: V (2 + bits/8) | t_i^+ (8) | serial of t_{i-1} (2) | length (2) | HORS signature (213 bytes on average with
//!        the serial, as the paper counts)
//! ```

use std::collections::VecDeque;
use std::collections::hash_map::{Entry, HashMap};

use wayleave_attestation::suite::SuiteId;
use wayleave_core::{Asn, UnixTime};
use wayleave_crypto::kdf;
use wayleave_crypto::secret::Secret;

use super::certificates::{BitVector, Certificates, MAX_HOPS};
use super::expiry::{Expiry, expiring_formula, write_expiring_formula};
use super::hors::{HorsSignature, KC_MT, Tree, roots};
use super::origin::{OriginStatement, VerifiedStatements};
use super::raw::{Block, Exponent};
use super::rsa::vectors_allow;
use crate::kc_x::mmo::{Digest, Mmo, Node, message};
use crate::scheme::{Announcement, Scheme, SchemeError};

/// Sigma: the UPDATEs that one tree may sign, the paper's number for a forgery probability of 2^-11.
pub const SIGMA: u32 = 15;

/// The private half t_i^-: the seed of the private values.
pub type Seed = [u8; 16];

/// One hop: what it signs with its predecessor's key, including the key that it grants in turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeHop {
    /// The neighbours that the hop sends to.
    pub vector: BitVector,
    /// t_i^+: the root of the tree that it grants to them.
    pub key: Node,
    /// The signature.
    pub signature: Signature,
}

/// The signature of the origin or of another hop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Signature {
    /// By K_0^-.
    Origin(Box<Block>),
    /// By t_{i-1}^-.
    Granted {
        /// The number, modulo 2^16, of the predecessor's tree.
        serial: u16,
        /// The disclosed values and nodes.
        hors: Vec<u8>,
    },
}

/// The attestation of an UPDATE.
#[derive(Clone, Debug)]
pub struct Attestation {
    /// When the route expires, signed by every hop.
    pub expiry: Expiry,
    /// One for each AS of the path, the origin first.
    pub hops: Vec<TreeHop>,
    /// t_i^-.
    pub granted: Secret<16>,
}

/// The hash of what hop `index` of `path` signs.
#[must_use]
pub fn digest(expiry: Expiry, path: &[Asn], index: usize, vector: &BitVector, key: &Node) -> Digest {
    message(&expiring_formula(expiry, &path[..=index], vector, key))
}

impl Attestation {
    /// Decodes the wire form; `None` if it is malformed or something follows it.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let AttestationView { expiry, hops, granted } = AttestationView::decode(bytes)?;
        let owned = |hop: HopView<'_>| TreeHop {
            vector: hop.vector,
            key: hop.key,
            signature: match hop.signature {
                SignatureView::Origin(signature) => Signature::Origin(Box::new(*signature)),
                SignatureView::Granted { serial, hors } => Signature::Granted { serial, hors: hors.to_vec() },
            },
        };
        Some(Self { expiry, hops: hops.into_iter().map(owned).collect(), granted: Secret::new(*granted) })
    }

    /// The wire form.
    ///
    /// # Panics
    /// If there are more than [`MAX_HOPS`] hops, or a HORS signature is longer than any is.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(192 + 256 * self.hops.len());
        out.push(u8::try_from(self.hops.len()).expect("at most MAX_HOPS"));
        out.extend_from_slice(&self.expiry.octets());
        self.hops.iter().for_each(|hop| hop.encode(&mut out));
        out.extend_from_slice(self.granted.expose());
        out
    }
}

/// An attestation borrowed from a message.
struct AttestationView<'a> {
    expiry: Expiry,
    hops: Vec<HopView<'a>>,
    granted: &'a Seed,
}

struct HopView<'a> {
    vector: BitVector,
    key: Node,
    signature: SignatureView<'a>,
}

enum SignatureView<'a> {
    Origin(&'a Block),
    Granted { serial: u16, hors: &'a [u8] },
}

impl<'a> AttestationView<'a> {
    fn decode(bytes: &'a [u8]) -> Option<Self> {
        let (&count, rest) = bytes.split_first()?;
        let (expiry, mut rest) = Expiry::decode(rest)?;
        let mut hops = Vec::with_capacity(usize::from(count));
        for index in 0..count {
            let (vector, after) = BitVector::decode(rest)?;
            let (&key, after) = after.split_first_chunk()?;
            let (signature, after) = if index == 0 {
                let (signature, after) = after.split_first_chunk()?;
                (SignatureView::Origin(signature), after)
            } else {
                let (serial, after) = after.split_first_chunk()?;
                let (len, after) = after.split_first_chunk()?;
                let (hors, after) = after.split_at_checked(usize::from(u16::from_be_bytes(*len)))?;
                (SignatureView::Granted { serial: u16::from_be_bytes(*serial), hors }, after)
            };
            hops.push(HopView { vector, key, signature });
            rest = after;
        }
        let granted = rest.try_into().ok()?;
        (count > 0).then_some(Self { expiry, hops, granted })
    }
}

/// All that the next signer needs of a received attestation.
struct LastGranted<'a> {
    expiry: Expiry,
    count: usize,
    /// The hops as they came.
    hops: &'a [u8],
    /// t^+ and t^- of the last hop.
    key: &'a Node,
    seed: &'a Seed,
}

fn last_granted(bytes: &[u8]) -> Option<LastGranted<'_>> {
    let (&count, rest) = bytes.split_first()?;
    let (expiry, hops) = Expiry::decode(rest)?;
    let mut rest = hops;
    let mut last = None;
    for index in 0..count {
        let (bits, after) = rest.split_first_chunk()?;
        let (_, after) = after.split_at_checked(usize::from(u16::from_be_bytes(*bits)).div_ceil(8))?;
        let (key, after) = after.split_first_chunk()?;
        let len = match index {
            0 => size_of::<Block>(),
            _ => 4 + usize::from(u16::from_be_bytes(*after.get(2..)?.first_chunk()?)),
        };
        (last, rest) = (Some(key), after.split_at_checked(len)?.1);
    }
    let (hops, seed) = (&hops[..hops.len() - rest.len()], rest.try_into().ok()?);
    Some(LastGranted { expiry, count: usize::from(count), hops, key: last?, seed })
}

impl TreeHop {
    fn encode(&self, out: &mut Vec<u8>) {
        self.vector.encode(out);
        out.extend_from_slice(&self.key);
        match &self.signature {
            Signature::Origin(signature) => out.extend_from_slice(&signature[..]),
            Signature::Granted { serial, hors } => {
                out.extend_from_slice(&serial.to_be_bytes());
                out.extend_from_slice(&u16::try_from(hors.len()).expect("a few hundred bytes").to_be_bytes());
                out.extend_from_slice(hors);
            }
        }
    }
}

/// A tree that an AS grants to its neighbours.
struct GrantedTree {
    serial: u16,
    seed: Secret<16>,
    root: Node,
}

/// The trees of an AS: the one it grants, with the number of UPDATEs sent with it, and the next ones, made ahead.
struct TreeSupply {
    current: GrantedTree,
    sent: u32,
    ahead: VecDeque<GrantedTree>,
}

/// Trees that an AS makes ahead, our own limit.
const AHEAD: usize = 8;

/// A granted tree, which its holder keeps after the first signature.
struct ReceivedTree {
    seed: Secret<16>,
    serial: u16,
    tree: Tree,
}

/// KC-MT with the keys of every AS.
pub struct KcMt {
    now: UnixTime,
    certificates: Certificates,
    mmo: Mmo,
    seed: Secret<32>,
    issuing: HashMap<Asn, TreeSupply>,
    /// Each origin's last statement and its signature, which stay the same while the origin grants one key.
    said: HashMap<Asn, (Vec<u8>, Block)>,
    /// By holder and issuer: one tree for each neighbour, as the paper counts memory.
    held: HashMap<(Asn, Asn), ReceivedTree>,
    /// The origins' statements `{E; N_0; V_0; t_0^+}` that need not be verified again.
    statements: VerifiedStatements<(Expiry, BitVector, Node, Block)>,
}

impl KcMt {
    #[must_use]
    pub fn new(seed: &Secret<32>, statement: OriginStatement) -> Self {
        Self::with_exponent(seed, statement, Exponent::F4)
    }

    /// The same, with origin keys of this exponent.
    #[must_use]
    pub fn with_exponent(seed: &Secret<32>, statement: OriginStatement, exponent: Exponent) -> Self {
        Self {
            now: UnixTime::default(),
            certificates: Certificates::new(seed).with_exponent(exponent),
            mmo: Mmo::default(),
            seed: seed.clone(),
            issuing: HashMap::new(),
            said: HashMap::new(),
            held: HashMap::new(),
            statements: VerifiedStatements::new(statement),
        }
    }

    /// Neighbour lists and origin keys.
    #[must_use]
    pub fn certificates(&self) -> &Certificates {
        &self.certificates
    }

    /// The same, to add neighbours.
    pub fn certificates_mut(&mut self) -> &mut Certificates {
        &mut self.certificates
    }

    /// The tree number `serial` of `asn`.
    fn issue(&self, asn: Asn, serial: u16) -> GrantedTree {
        let context = [asn.0.to_be_bytes().as_slice(), &serial.to_be_bytes()].concat();
        let seed: Secret<16> = kdf::derive("wayleave/kc-mt-paper/t/v1", self.seed.expose(), &context);
        let root = Tree::new(&self.mmo, KC_MT, seed.expose()).root();
        GrantedTree { serial, seed, root }
    }

    /// Makes the tree that `asn` grants now, and `count` after it.
    fn issue_ahead(&mut self, asn: Asn, count: usize) {
        if !self.issuing.contains_key(&asn) {
            let issuing = TreeSupply { current: self.issue(asn, 0), sent: 0, ahead: VecDeque::new() };
            self.issuing.insert(asn, issuing);
        }
        loop {
            let issuing = &self.issuing[&asn];
            if issuing.ahead.len() >= count {
                return;
            }
            let last = issuing.ahead.back().unwrap_or(&issuing.current).serial;
            let next = self.issue(asn, last.wrapping_add(1));
            self.issuing.get_mut(&asn).expect("inserted above").ahead.push_back(next);
        }
    }

    /// The key that `asn` grants with its next UPDATE: a new one after Sigma UPDATEs.
    fn grant(&mut self, asn: Asn) -> (Secret<16>, Node) {
        let ready = |issuing: &&mut TreeSupply| issuing.sent < SIGMA || !issuing.ahead.is_empty();
        if self.issuing.get_mut(&asn).as_ref().filter(|issuing| ready(issuing)).is_none() {
            self.issue_ahead(asn, 1);
        }
        let issuing = self.issuing.get_mut(&asn).expect("issued above");
        if issuing.sent >= SIGMA {
            issuing.current = issuing.ahead.pop_front().expect("made above");
            issuing.sent = 0;
        }
        issuing.sent += 1;
        (issuing.current.seed.clone(), issuing.current.root)
    }

    /// Signs with the received key. With a new key the holder first makes its tree (the paper's S1).
    fn sign_with(&mut self, holder: Asn, issuer: Asn, seed: &Seed, key: &Node, digest: &Digest) -> Option<Signature> {
        let make = |mmo: &Mmo, issuing: &HashMap<Asn, TreeSupply>| ReceivedTree {
            seed: Secret::new(*seed),
            serial: issuing.get(&issuer).map_or(0, |issuing| issuing.current.serial),
            tree: Tree::new(mmo, KC_MT, seed),
        };
        let held = match self.held.entry((holder, issuer)) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(make(&self.mmo, &self.issuing)),
        };
        if held.seed.expose() != seed {
            *held = make(&self.mmo, &self.issuing);
        }
        // Nobody could verify signatures of a pair whose halves do not belong together.
        if held.tree.root() != *key {
            return None;
        }
        let mut hors = Vec::with_capacity(320);
        held.tree.sign(digest, &mut hors);
        Some(Signature::Granted { serial: held.serial, hors })
    }

    /// The origin's signature over its statement.
    fn say(&mut self, origin: Asn, statement: Vec<u8>) -> Block {
        if let Some((_, signature)) = self.said.get(&origin).filter(|(said, _)| *said == statement) {
            return *signature;
        }
        self.certificates.add_origin(origin);
        let signature = self.certificates.sign_as_origin(origin, &statement).expect("made above");
        self.said.insert(origin, (statement, signature));
        signature
    }

    fn origin_says(&self, origin: Asn, expiry: Expiry, hop: &HopView<'_>) -> bool {
        let SignatureView::Origin(signature) = hop.signature else { return false };
        let said = |(until, vector, key, before): &(Expiry, BitVector, Node, Block)| {
            (until, vector, key, before) == (&expiry, &hop.vector, &hop.key, signature)
        };
        if self.statements.contains(origin, said) {
            return true;
        }
        let statement = expiring_formula(expiry, &[origin], &hop.vector, &hop.key);
        let holds = self.certificates.verify_origin(origin, &statement, signature);
        if holds {
            self.statements.add(origin, (expiry, hop.vector.clone(), hop.key, *signature));
        }
        holds
    }
}

impl Scheme for KcMt {
    fn name(&self) -> &'static str {
        SuiteId::KcMtPaper.name()
    }

    fn prepare(&mut self, path: &[Asn]) {
        self.certificates.prepare(path);
        for &asn in path {
            self.issue_ahead(asn, AHEAD);
        }
    }

    fn set_time(&mut self, now: UnixTime) {
        self.now = now;
    }

    fn attest(&mut self, announcement: &Announcement, received: &[u8], to: Asn) -> Result<Vec<u8>, SchemeError> {
        let path = &announcement.path;
        let (&origin, &last) = path.first().zip(path.last()).ok_or(SchemeError::Malformed)?;
        if path.len() > MAX_HOPS {
            return Err(SchemeError::Malformed);
        }
        let vector = self.certificates.export(path, to);
        let before = if path.len() == 1 {
            None
        } else {
            let before = last_granted(received).filter(|before| before.count + 1 == path.len());
            Some(before.ok_or(SchemeError::Malformed)?)
        };
        let expiry = before.as_ref().map_or_else(|| Expiry::of_route_announced_at(self.now), |before| before.expiry);
        let (granted, key) = self.grant(last);
        let signature = match &before {
            None => Signature::Origin(Box::new(self.say(origin, expiring_formula(expiry, path, &vector, &key)))),
            Some(before) => {
                let digest = digest(expiry, path, path.len() - 1, &vector, &key);
                let issuer = path[path.len() - 2];
                self.sign_with(last, issuer, before.seed, before.key, &digest).ok_or(SchemeError::Malformed)?
            }
        };
        // The hops before are copied unchanged.
        let hops = before.map_or(&[][..], |before| before.hops);
        let mut out = Vec::with_capacity(hops.len() + vector.wire_len() + 360);
        out.push(u8::try_from(path.len()).expect("at most MAX_HOPS"));
        out.extend_from_slice(&expiry.octets());
        out.extend_from_slice(hops);
        TreeHop { vector, key, signature }.encode(&mut out);
        out.extend_from_slice(granted.expose());
        Ok(out)
    }

    fn verify(&self, announcement: &Announcement, attestation: &[u8], by: Asn) -> bool {
        self.verify_burst(&[(announcement, attestation)], by)[0]
    }

    fn verify_burst(&self, burst: &[(&Announcement, &[u8])], by: Asn) -> Vec<bool> {
        let decoded: Vec<Option<AttestationView<'_>>> = burst
            .iter()
            .map(|(announcement, bytes)| {
                AttestationView::decode(bytes).filter(|found| found.hops.len() == announcement.path.len())
            })
            .collect();
        let mut verdicts = vec![false; burst.len()];
        let mut signed = Vec::with_capacity(128);
        let (mut claims, mut expected) = (Vec::with_capacity(4 * burst.len()), Vec::with_capacity(4 * burst.len()));
        for (number, ((announcement, _), attestation)) in burst.iter().zip(&decoded).enumerate() {
            let Some(AttestationView { expiry, hops, .. }) = attestation else { continue };
            let path = &announcement.path;
            verdicts[number] = !expiry.has_passed(self.now)
                && vectors_allow(&self.certificates, path, hops.iter().map(|hop| &hop.vector), by)
                && self.origin_says(path[0], *expiry, &hops[0]);
            for (index, hop) in hops.iter().enumerate().skip(1).filter(|_| verdicts[number]) {
                let SignatureView::Granted { hors, .. } = hop.signature else { continue };
                signed.clear();
                write_expiring_formula(&mut signed, *expiry, &path[..=index], &hop.vector, &hop.key);
                match HorsSignature::new(KC_MT, &message(&signed), hors) {
                    Some(claimed) => {
                        claims.push(claimed);
                        expected.push((number, hops[index - 1].key));
                    }
                    None => {
                        verdicts[number] = false;
                        break;
                    }
                }
            }
        }
        for (root, (number, key)) in roots(&self.mmo, KC_MT, &claims).into_iter().zip(expected) {
            verdicts[number] &= root == key;
        }
        verdicts
    }

    fn signature_bytes(&self, attestation: &[u8]) -> usize {
        let Some(attestation) = Attestation::decode(attestation) else { return 0 };
        let bytes = |hop: &TreeHop| match &hop.signature {
            Signature::Origin(signature) => signature.len(),
            Signature::Granted { hors, .. } => 2 + hors.len(),
        };
        attestation.hops.iter().map(bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An UPDATE from AS 1 through `hops` ASes, as received by the next one.
    fn send(scheme: &mut KcMt, hops: u32) -> (Announcement, Vec<u8>) {
        send_along(scheme, &(1..=hops + 1).map(Asn).collect::<Vec<_>>())
    }

    /// The same along `ases`, as received by the last of them.
    fn send_along(scheme: &mut KcMt, ases: &[Asn]) -> (Announcement, Vec<u8>) {
        let mut announcement = Announcement { prefixes: Vec::new(), path: Vec::new() };
        let mut attestation = Vec::new();
        for pair in ases.windows(2) {
            announcement.path.push(pair[0]);
            attestation = scheme.attest(&announcement, &attestation, pair[1]).expect("sound");
        }
        (announcement, attestation)
    }

    fn scheme() -> KcMt {
        KcMt::new(&Secret::new([8; 32]), OriginStatement::Remembered)
    }

    #[test]
    fn honest_paths_verify_for_whom_they_were_sent_to() {
        let mut scheme = scheme();
        for hops in [1, 2, 3, 4, 9] {
            let (announcement, attestation) = send(&mut scheme, hops);
            assert!(scheme.verify(&announcement, &attestation, Asn(hops + 1)));
            assert!(!scheme.verify(&announcement, &attestation, Asn(77)));
            let mut other = announcement.clone();
            other.path[0] = Asn(78);
            assert!(!scheme.verify(&other, &attestation, Asn(hops + 1)));
            other.path.remove(0);
            assert!(!scheme.verify(&other, &attestation, Asn(hops + 1)));
        }
    }

    #[test]
    fn no_bit_of_what_is_signed_may_change() {
        let mut scheme = scheme();
        let (announcement, attestation) = send(&mut scheme, 3);
        // The last 16 octets are t_3^-, which is for the receiver alone; each signature's serial only names a tree.
        let serials: Vec<usize> = {
            let decoded = Attestation::decode(&attestation).expect("honest");
            let mut at = 1 + Expiry::LEN;
            decoded
                .hops
                .iter()
                .filter_map(|hop| {
                    let front = at + hop.vector.wire_len() + 8;
                    match &hop.signature {
                        Signature::Origin(_) => {
                            at = front + 128;
                            None
                        }
                        Signature::Granted { hors, .. } => {
                            at = front + 4 + hors.len();
                            Some(front)
                        }
                    }
                })
                .collect()
        };
        for octet in 0..attestation.len() - 16 {
            let mut changed = attestation.clone();
            changed[octet] ^= 1 << (octet % 8);
            let named = serials.iter().any(|at| (*at..at + 2).contains(&octet));
            assert_eq!(scheme.verify(&announcement, &changed, Asn(4)), named, "octet {octet}");
        }
    }

    #[test]
    fn a_tree_serves_sigma_updates_and_no_more() {
        let mut scheme = scheme();
        let announcement = Announcement { prefixes: Vec::new(), path: vec![Asn(1)] };
        let mut keys: Vec<Node> = (0..2 * SIGMA + 1)
            .map(|_| {
                let sent = scheme.attest(&announcement, &[], Asn(2)).expect("sound");
                Attestation::decode(&sent).expect("honest").hops[0].key
            })
            .collect();
        assert_eq!(keys.iter().filter(|key| **key == keys[0]).count(), SIGMA as usize);
        keys.dedup();
        assert_eq!(keys.len(), 3);
    }

    #[test]
    fn a_signature_has_the_published_average_size() {
        let mut scheme = scheme();
        let (mut bytes, mut hops) = (0, 0);
        for number in 0..300 {
            let ases = [1, 1000 + number, 2000 + number, 3000 + number, 4000 + number, 2].map(Asn);
            let (_, attestation) = send_along(&mut scheme, &ases);
            bytes += scheme.signature_bytes(&attestation) - 128;
            hops += 4;
        }
        // Table VI's own figures divide to 212.5 bytes a hop; the text says 213.
        assert_eq!((bytes + hops / 2) / hops, 213);
    }

    #[test]
    fn truncated_and_padded_attestations_are_refused() {
        let mut scheme = scheme();
        let (announcement, attestation) = send(&mut scheme, 3);
        for len in 0..attestation.len() {
            assert!(!scheme.verify(&announcement, &attestation[..len], Asn(4)));
        }
        let longer = [attestation.as_slice(), &[0]].concat();
        assert!(!scheme.verify(&announcement, &longer, Asn(4)));
    }
}
