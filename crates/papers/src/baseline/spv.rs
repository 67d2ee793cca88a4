//! SPV, the predecessor of KC-MT (Hu, Perrig, Sirbu, "SPV: Secure Path Vector Routing for Securing BGP", SIGCOMM 2004, as
//! described in section IV-B of the KC-x paper): one-time signatures whose keys all come from the origin.
//!
//! For each epoch the origin has one private key for each position of a path. Each is the hash of the one before, so that its
//! holder can compute all later and no earlier ones. A tree of 256 private values follows from each (the single-ASN key
//! pair). The sixteen roots are the leaves of the ASPATH authenticator, whose root is the epoch's public key. The epochs'
//! public keys are the leaves of the multi-epoch public key, which the origin's RSA key signs.
//!
//! A private value hashes to a semi-private one, and that to a leaf. An AS that forwards an UPDATE replaces the private values
//! of the previous hop by semi-private ones, so that a longer path does not disclose the last hop of a shorter one.
//!
//! An attestation on the wire:
//!
//! ```text
//! hops (1) | epoch (4) | multi-epoch public key (8) | its RSA signature (128) | siblings of the epoch (4 * 8)
//! | single-ASN public keys (16 * 8) | hop 0 | ... | hop i | single-ASN private key of position i + 1 (16)
//! hop: V (2 + bits/8) | length (2) | values (16 each) and nodes (8 each)
//! ```

use std::collections::HashMap;
use std::fmt;

use wayleave_attestation::suite::SuiteId;
use wayleave_core::Asn;
use wayleave_crypto::kdf;
use wayleave_crypto::secret::Secret;

use crate::kc_x::certificates::{BitVector, Certificates, formula};
use crate::kc_x::hors::{HorsSignature, SPV, Tree, roots};
use crate::kc_x::mmo::{Digest, Mmo, Node, Values, cut, join, message, values};
use crate::kc_x::origin::{OriginStatement, VerifiedStatements};
use crate::kc_x::raw::{Block, Exponent};
use crate::kc_x::rsa::vectors_allow;
use crate::scheme::{Announcement, Scheme, SchemeError};

/// Positions of a path that have a key: the most ASes of a path.
pub const POSITIONS: usize = 16;
/// Epochs under one multi-epoch public key.
pub const EPOCHS: usize = 16;
/// UPDATEs of an origin in an epoch, which the parameters allow at a forgery probability of 2^-11.
pub const SIGNATURES: u32 = 15;

/// Levels of the ASPATH authenticator, and of the tree over the epochs.
const LEVELS: usize = POSITIONS.ilog2() as usize;

/// A single-ASN private key: the seed of all private values of its position and of all later keys.
type PrivateKey = Secret<16>;

/// One hop of an attestation.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SpvHop {
    vector: BitVector,
    /// The disclosed values (private at the last hop, semi-private before it), then the nodes.
    signature: Vec<u8>,
}

/// The origin's statement about an epoch's keys.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Statement {
    epoch: u32,
    multi_epoch_key: Node,
    signature: Box<Block>,
    siblings: [Node; LEVELS],
    public_keys: [Node; POSITIONS],
}

/// The attestation of an UPDATE.
#[derive(Clone, Debug)]
struct Attestation {
    statement: Statement,
    hops: Vec<SpvHop>,
    next: PrivateKey,
}

impl Attestation {
    fn decode(bytes: &[u8]) -> Option<Self> {
        let (&count, rest) = bytes.split_first()?;
        let (epoch, rest) = rest.split_first_chunk()?;
        let (&multi_epoch_key, rest) = rest.split_first_chunk()?;
        let (&signature, rest) = rest.split_first_chunk()?;
        let (siblings, rest) = rest.split_first_chunk::<{ 8 * LEVELS }>()?;
        let (public_keys, mut rest) = rest.split_first_chunk::<{ 8 * POSITIONS }>()?;
        if count == 0 || usize::from(count) > POSITIONS {
            return None;
        }
        let mut hops = Vec::with_capacity(usize::from(count));
        for _ in 0..count {
            let (vector, after) = BitVector::decode(rest)?;
            let (len, after) = after.split_first_chunk()?;
            let (signature, after) = after.split_at_checked(usize::from(u16::from_be_bytes(*len)))?;
            hops.push(SpvHop { vector, signature: signature.to_vec() });
            rest = after;
        }
        let statement = Statement {
            epoch: u32::from_be_bytes(*epoch),
            multi_epoch_key,
            signature: Box::new(signature),
            siblings: siblings.as_chunks().0.try_into().ok()?,
            public_keys: public_keys.as_chunks().0.try_into().ok()?,
        };
        Some(Self { statement, hops, next: Secret::new(rest.try_into().ok()?) })
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(384 + 384 * self.hops.len());
        out.push(u8::try_from(self.hops.len()).expect("at most POSITIONS"));
        out.extend_from_slice(&self.statement.epoch.to_be_bytes());
        out.extend_from_slice(&self.statement.multi_epoch_key);
        out.extend_from_slice(&self.statement.signature[..]);
        out.extend_from_slice(self.statement.siblings.as_flattened());
        out.extend_from_slice(self.statement.public_keys.as_flattened());
        for hop in &self.hops {
            hop.vector.encode(&mut out);
            out.extend_from_slice(&u16::try_from(hop.signature.len()).expect("some hundred bytes").to_be_bytes());
            out.extend_from_slice(&hop.signature);
        }
        out.extend_from_slice(self.next.expose());
        out
    }
}

/// The hash of what hop `index` signs: the epoch, the path so far, its vector and the prefixes.
fn digest(epoch: u32, announcement: &Announcement, index: usize, vector: &BitVector) -> Digest {
    let mut bound = epoch.to_be_bytes().to_vec();
    bound.extend(announcement.prefixes.iter().flat_map(|prefix| {
        let mut octets = prefix.octets().to_vec();
        octets.extend([prefix.len(), prefix.afi().code().to_be_bytes()[1]]);
        octets
    }));
    let bound = message(&bound);
    message(&formula(&announcement.path[..=index], vector, &bound))
}

/// The private key of the next position.
fn next_key(mmo: &Mmo, key: &PrivateKey) -> PrivateKey {
    let mut block = [*key.expose()];
    mmo.hash_blocks(&mut block);
    Secret::new(block[0])
}

/// The single-ASN key pair of a private key: private values, semi-private values, leaves and tree.
fn single_asn(mmo: &Mmo, key: &PrivateKey) -> Tree {
    let mut private = Values(vec![[0; 16]; SPV.leaves()]);
    values(key.expose(), 0, &mut private.0);
    let mut semi_private = private.0.clone();
    mmo.hash_blocks(&mut semi_private);
    let leaves = mmo.leaves(&semi_private);
    Tree::over(mmo, SPV, private, leaves)
}

/// The root over sixteen leaves.
fn root(mmo: &Mmo, leaves: &[Node]) -> Node {
    (0..LEVELS).fold(leaves.to_vec(), |level, _| mmo.parents(&level))[0]
}

/// An origin's keys under one multi-epoch public key.
struct Origin {
    generation: u32,
    multi_epoch_key: Node,
    signature: Box<Block>,
    /// The epochs' public keys.
    epoch_keys: Vec<Node>,
    /// The epoch in use: its first private key and its single-ASN public keys.
    epoch: usize,
    first: PrivateKey,
    public_keys: [Node; POSITIONS],
    sent: u32,
}

/// SPV with the keys of every AS.
pub struct Spv {
    certificates: Certificates,
    seed: Secret<32>,
    origins: HashMap<Asn, Origin>,
    /// The origins' multi-epoch keys whose signatures were verified.
    statements: VerifiedStatements<(Node, Block)>,
}

impl fmt::Debug for Spv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Spv(..)")
    }
}

impl Spv {
    #[must_use]
    pub fn new(seed: &Secret<32>, statement: OriginStatement) -> Self {
        Self::with_exponent(seed, statement, Exponent::F4)
    }

    /// The same, with origin keys of this exponent.
    #[must_use]
    pub fn with_exponent(seed: &Secret<32>, statement: OriginStatement, exponent: Exponent) -> Self {
        Self {
            certificates: Certificates::new(seed).with_exponent(exponent),
            seed: seed.clone(),
            origins: HashMap::new(),
            statements: VerifiedStatements::new(statement),
        }
    }

    /// Neighbour lists and origin keys.
    #[must_use]
    pub fn certificates(&self) -> &Certificates {
        &self.certificates
    }

    /// The keys of one epoch: the first private key and the public keys of all positions.
    fn epoch_keys(&self, asn: Asn, epoch: u32) -> (PrivateKey, [Node; POSITIONS]) {
        let mmo = Mmo::of_epoch(epoch);
        let context = [asn.0.to_be_bytes(), epoch.to_be_bytes()].concat();
        let first: PrivateKey = kdf::derive("wayleave/spv/epoch/v1", self.seed.expose(), &context);
        let mut key = first.clone();
        let public_keys = std::array::from_fn(|position| {
            if position > 0 {
                key = next_key(&mmo, &key);
            }
            single_asn(&mmo, &key).root()
        });
        (first, public_keys)
    }

    /// The signed keys of all epochs under one multi-epoch key.
    fn make_origin(&mut self, asn: Asn, generation: u32) {
        self.certificates.add_origin(asn);
        let first_epoch = generation * EPOCHS as u32;
        let mut keys = (first_epoch..).take(EPOCHS).map(|epoch| self.epoch_keys(asn, epoch));
        let (first, public_keys) = keys.next().expect("there are sixteen epochs");
        let mut epoch_keys = vec![root(&Mmo::of_epoch(first_epoch), &public_keys)];
        epoch_keys.extend(keys.zip(first_epoch + 1..).map(|((_, keys), epoch)| root(&Mmo::of_epoch(epoch), &keys)));
        let multi_epoch_key = root(&Mmo::default(), &epoch_keys);
        let signature = self.certificates.sign_as_origin(asn, &multi_epoch_key).expect("made above");
        let signature = Box::new(signature);
        let origin =
            Origin { generation, multi_epoch_key, signature, epoch_keys, epoch: 0, first, public_keys, sent: 0 };
        self.origins.insert(asn, origin);
    }

    /// The keys that the origin sends with its next UPDATE: those of a new epoch after Sigma UPDATEs.
    fn statement(&mut self, asn: Asn) -> (Statement, PrivateKey) {
        let last_epoch = |origin: &Origin| origin.epoch + 1 == EPOCHS;
        match self.origins.get(&asn) {
            None => self.make_origin(asn, 0),
            Some(origin) if origin.sent >= SIGNATURES && last_epoch(origin) => {
                self.make_origin(asn, origin.generation + 1);
            }
            Some(origin) if origin.sent >= SIGNATURES => {
                let next = origin.epoch + 1;
                let (first, public_keys) = self.epoch_keys(asn, origin.generation * EPOCHS as u32 + next as u32);
                let origin = self.origins.get_mut(&asn).expect("looked up above");
                (origin.epoch, origin.first, origin.public_keys, origin.sent) = (next, first, public_keys, 0);
            }
            Some(_) => {}
        }
        let origin = self.origins.get_mut(&asn).expect("made above");
        origin.sent += 1;
        let mut siblings = [Node::default(); LEVELS];
        let (mut level, mut index) = (origin.epoch_keys.clone(), origin.epoch);
        for sibling in &mut siblings {
            *sibling = level[index ^ 1];
            level = Mmo::default().parents(&level);
            index /= 2;
        }
        let statement = Statement {
            epoch: origin.generation * EPOCHS as u32 + origin.epoch as u32,
            multi_epoch_key: origin.multi_epoch_key,
            signature: origin.signature.clone(),
            siblings,
            public_keys: origin.public_keys,
        };
        (statement, origin.first.clone())
    }

    /// Whether the single-ASN public keys belong to a multi-epoch public key of the origin.
    fn origin_says(&self, asn: Asn, statement: &Statement) -> bool {
        let mmo = Mmo::of_epoch(statement.epoch);
        let (mut node, mut index) = (root(&mmo, &statement.public_keys), statement.epoch as usize % EPOCHS);
        let plain = Mmo::default();
        for sibling in statement.siblings {
            let mut block = [if index & 1 == 0 { join(node, sibling) } else { join(sibling, node) }];
            plain.hash_blocks(&mut block);
            (node, index) = (cut(&block[0]), index / 2);
        }
        if node != statement.multi_epoch_key {
            return false;
        }
        let said = (statement.multi_epoch_key, *statement.signature);
        if self.statements.contains(asn, |one| *one == said) {
            return true;
        }
        let holds = self.certificates.verify_origin(asn, &statement.multi_epoch_key, &statement.signature);
        if holds {
            self.statements.add(asn, said);
        }
        holds
    }

    fn verify_one(&self, announcement: &Announcement, attestation: &Attestation, by: Asn) -> bool {
        let (statement, hops) = (&attestation.statement, &attestation.hops);
        let path = &announcement.path;
        if hops.len() != path.len()
            || !vectors_allow(&self.certificates, path, hops.iter().map(|hop| &hop.vector), by)
            || !self.origin_says(path[0], statement)
        {
            return false;
        }
        let mmo = Mmo::of_epoch(statement.epoch);
        let digest = |index: usize| digest(statement.epoch, announcement, index, &hops[index].vector);
        // Only the last hop's values are still private.
        let Some((last, before)) = hops.split_last() else { return false };
        let mut degraded = last.signature.clone();
        let private = size_of::<[u8; 16]>() * SPV.chosen(&digest(before.len())).len();
        let Some(private) = degraded.get_mut(..private) else { return false };
        mmo.hash_blocks(private.as_chunks_mut().0);
        let signatures = before.iter().map(|hop| &hop.signature).chain([&degraded]);
        let claims =
            signatures.enumerate().map(|(index, signature)| HorsSignature::new(SPV, &digest(index), signature));
        let Some(claims) = claims.collect::<Option<Vec<_>>>() else { return false };
        roots(&mmo, SPV, &claims).iter().zip(&statement.public_keys).all(|(root, key)| root == key)
    }
}

impl Scheme for Spv {
    fn name(&self) -> &'static str {
        SuiteId::Spv.name()
    }

    fn prepare(&mut self, path: &[Asn]) {
        self.certificates.prepare(path);
        if let Some(origin) = path.first().filter(|origin| !self.origins.contains_key(origin)) {
            self.make_origin(*origin, 0);
        }
    }

    fn attest(&mut self, announcement: &Announcement, received: &[u8], to: Asn) -> Result<Vec<u8>, SchemeError> {
        let path = &announcement.path;
        let &last = path.last().ok_or(SchemeError::Malformed)?;
        if path.len() > POSITIONS {
            return Err(SchemeError::Exhausted(last));
        }
        let vector = self.certificates.export(path, to);
        let (statement, mut hops, key) = if path.len() == 1 {
            let (statement, key) = self.statement(last);
            (statement, Vec::new(), key)
        } else {
            let received = Attestation::decode(received).ok_or(SchemeError::Malformed)?;
            (received.statement, received.hops, received.next)
        };
        if hops.len() + 1 != path.len() {
            return Err(SchemeError::Malformed);
        }
        let mmo = Mmo::of_epoch(statement.epoch);
        if let Some(before) = hops.last_mut() {
            let index = path.len() - 2;
            let chosen = SPV.chosen(&digest(statement.epoch, announcement, index, &before.vector));
            let private = before.signature.get_mut(..16 * chosen.len()).ok_or(SchemeError::Malformed)?;
            mmo.hash_blocks(private.as_chunks_mut().0);
        }
        let mut signature = Vec::with_capacity(400);
        let digest = digest(statement.epoch, announcement, path.len() - 1, &vector);
        single_asn(&mmo, &key).sign(&digest, &mut signature);
        hops.push(SpvHop { vector, signature });
        Ok(Attestation { statement, hops, next: next_key(&mmo, &key) }.encode())
    }

    fn verify(&self, announcement: &Announcement, attestation: &[u8], by: Asn) -> bool {
        Attestation::decode(attestation).is_some_and(|attestation| self.verify_one(announcement, &attestation, by))
    }

    fn signature_bytes(&self, attestation: &[u8]) -> usize {
        let bytes = |found: Attestation| {
            found.hops.iter().map(|hop| hop.signature.len()).sum::<usize>() + 8 * found.statement.public_keys.len()
        };
        Attestation::decode(attestation).map_or(0, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send(scheme: &mut Spv, hops: u32) -> (Announcement, Vec<u8>) {
        send_prefix(scheme, hops, "192.0.2.0/24")
    }

    fn send_prefix(scheme: &mut Spv, hops: u32, prefix: &str) -> (Announcement, Vec<u8>) {
        let prefix = prefix.parse().expect("a prefix");
        let mut announcement = Announcement { prefixes: vec![prefix], path: Vec::new() };
        let mut attestation = Vec::new();
        for asn in 1..=hops {
            announcement.path.push(Asn(asn));
            attestation = scheme.attest(&announcement, &attestation, Asn(asn + 1)).expect("sound");
        }
        (announcement, attestation)
    }

    fn scheme() -> Spv {
        Spv::new(&Secret::new([8; 32]), OriginStatement::Remembered)
    }

    #[test]
    fn honest_paths_verify_for_whom_they_were_sent_to() {
        let mut scheme = scheme();
        for hops in [1, 2, 4, 16] {
            let (announcement, attestation) = send(&mut scheme, hops);
            assert!(scheme.verify(&announcement, &attestation, Asn(hops + 1)));
            assert!(!scheme.verify(&announcement, &attestation, Asn(77)));
            let mut other = announcement.clone();
            other.prefixes[0] = "192.0.2.0/25".parse().expect("a prefix");
            assert!(!scheme.verify(&other, &attestation, Asn(hops + 1)));
        }
        let mut long = Announcement { prefixes: Vec::new(), path: (1..=17).map(Asn).collect() };
        assert_eq!(scheme.attest(&long, &[], Asn(18)), Err(SchemeError::Exhausted(Asn(17))));
        long.path.clear();
        assert_eq!(scheme.attest(&long, &[], Asn(18)), Err(SchemeError::Malformed));
    }

    #[test]
    fn no_bit_of_what_is_signed_may_change() {
        let mut scheme = scheme();
        let (announcement, attestation) = send(&mut scheme, 3);
        // The multi-epoch key covers all single-ASN public keys; the last 16 octets are the receiver's private key.
        for octet in 0..attestation.len() - 16 {
            let mut changed = attestation.clone();
            changed[octet] ^= 1 << (octet % 8);
            assert!(!scheme.verify(&announcement, &changed, Asn(4)), "octet {octet}");
        }
        for len in 0..attestation.len() {
            assert!(!scheme.verify(&announcement, &attestation[..len], Asn(4)));
        }
    }

    #[test]
    fn a_longer_path_does_not_give_away_the_end_of_a_shorter_one() {
        let mut scheme = scheme();
        let (mut announcement, attestation) = send(&mut scheme, 3);
        let mut cut = Attestation::decode(&attestation).expect("honest");
        cut.hops.pop();
        announcement.path.pop();
        assert!(!scheme.verify(&announcement, &cut.encode(), Asn(3)));
    }

    #[test]
    fn an_epoch_serves_fifteen_updates_of_its_origin() {
        let mut scheme = scheme();
        let announcement = Announcement { prefixes: Vec::new(), path: vec![Asn(1)] };
        let epochs: Vec<u32> = (0..16 * SIGNATURES + 1)
            .map(|_| {
                let sent = scheme.attest(&announcement, &[], Asn(2)).expect("sound");
                assert!(scheme.verify(&announcement, &sent, Asn(2)));
                Attestation::decode(&sent).expect("honest").statement.epoch
            })
            .collect();
        assert_eq!(epochs, (0..16 * SIGNATURES + 1).map(|sent| sent / SIGNATURES).collect::<Vec<_>>());
    }

    #[test]
    fn a_signature_has_nearly_the_published_average_size() {
        let mut scheme = scheme();
        let mut bytes = 0;
        for number in 0..300 {
            let (_, attestation) = send_prefix(&mut scheme, 4, &format!("10.{}.{}.0/24", number / 256, number % 256));
            bytes += scheme.signature_bytes(&attestation);
        }
        // The paper says 353; the exact mean of this encoding is 354.2.
        assert!((353..=355).contains(&((bytes + 600) / 1200)));
    }
}
