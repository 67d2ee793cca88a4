//! What the messages of all paper suites share: the signed formula, bit vectors over ordered neighbour lists, and RSA origin
//! keys (section III).
//!
//! The signed formula, `{N_0, ..., N_i; V_i; t_i^+}`, contains no prefix: literally, one signature is valid for every prefix of
//! its origin (threats F5). What KC-x signs has an [expiry](super::expiry) besides; the baselines have none.

use std::collections::HashMap;

use wayleave_core::Asn;
use wayleave_crypto::kdf;
use wayleave_crypto::secret::Secret;

use super::raw::{Block, Exponent, Moduli, RawPrivate, full_domain_hash};

/// Neighbours of an AS: our own limit, so that a vector has at most 8,192 octets.
pub const MAX_NEIGHBOURS: usize = 65_535;
/// ASes of a path that decoders accept: our own limit.
pub const MAX_HOPS: usize = 255;

/// The neighbours to which an AS sends: bit `j` stands for the `j`-th of its ordered list, the most significant bit of an
/// octet first.
///
/// On the wire: the number of bits (2 octets), then the bits, padded with zeros to whole octets.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct BitVector {
    bits: u16,
    octets: Octets,
}

/// The octets of a [`BitVector`]. Most vectors are short and need no allocation.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Octets {
    /// Their number, and the octets padded with zeros.
    Few(u8, [u8; FEW]),
    Many(Vec<u8>),
}

const FEW: usize = 22;

impl Default for Octets {
    fn default() -> Self {
        Self::Few(0, [0; FEW])
    }
}

impl Octets {
    fn of(octets: &[u8]) -> Self {
        match u8::try_from(octets.len()) {
            Ok(count) if octets.len() <= FEW => {
                let mut few = [0; FEW];
                few[..octets.len()].copy_from_slice(octets);
                Self::Few(count, few)
            }
            _ => Self::Many(octets.to_vec()),
        }
    }

    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Few(count, few) => &few[..usize::from(*count)],
            Self::Many(octets) => octets,
        }
    }

    fn as_mut_slice(&mut self) -> &mut [u8] {
        match self {
            Self::Few(count, few) => &mut few[..usize::from(*count)],
            Self::Many(octets) => octets,
        }
    }
}

impl BitVector {
    /// All zeros.
    #[must_use]
    pub fn zeros(bits: u16) -> Self {
        let count = usize::from(bits).div_ceil(8);
        let octets = if count <= FEW { Octets::Few(count as u8, [0; FEW]) } else { Octets::Many(vec![0; count]) };
        Self { bits, octets }
    }

    /// Sets bit `index`, unless it is outside the vector.
    pub fn set(&mut self, index: usize) {
        if index < usize::from(self.bits) {
            self.octets.as_mut_slice()[index / 8] |= 0x80 >> (index % 8);
        }
    }

    /// Whether bit `index` is set; false outside the vector.
    #[must_use]
    pub fn contains(&self, index: usize) -> bool {
        index < usize::from(self.bits) && self.octets.as_slice()[index / 8] & (0x80 >> (index % 8)) != 0
    }

    /// Appends the wire form.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.bits.to_be_bytes());
        out.extend_from_slice(self.octets.as_slice());
    }

    /// Decodes the wire form and returns the rest. `None` if it is truncated or its padding is not zero.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (count, rest) = bytes.split_first_chunk()?;
        let bits = u16::from_be_bytes(*count);
        let (octets, rest) = rest.split_at_checked(usize::from(bits).div_ceil(8))?;
        let padding = if bits % 8 == 0 { 0 } else { 0xff >> (bits % 8) };
        if octets.last().is_some_and(|last| last & padding != 0) {
            return None;
        }
        Some((Self { bits, octets: Octets::of(octets) }, rest))
    }

    /// Bytes of the wire form.
    #[must_use]
    pub fn wire_len(&self) -> usize {
        2 + self.octets.as_slice().len()
    }
}

/// `N_0, ..., N_i; V_i; t_i^+`, each list preceded by its length.
#[must_use]
pub fn formula(path: &[Asn], vector: &BitVector, key: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(2 + 4 * path.len() + vector.wire_len() + 2 + key.len());
    write_formula(&mut out, path, vector, key);
    out
}

/// Appends the same to `out`.
pub fn write_formula(out: &mut Vec<u8>, path: &[Asn], vector: &BitVector, key: &[u8]) {
    out.extend_from_slice(&short(path.len()));
    for asn in path {
        out.extend_from_slice(&asn.0.to_be_bytes());
    }
    vector.encode(out);
    out.extend_from_slice(&short(key.len()));
    out.extend_from_slice(key);
}

fn short(len: usize) -> [u8; 2] {
    u16::try_from(len).expect("paths and keys of the paper's suites are far below 64 KiB").to_be_bytes()
}

/// What every verifier knows from certificates: neighbour lists and origin keys. It also has the private halves, since one
/// value plays all ASes.
pub struct Certificates {
    seed: Secret<32>,
    moduli: Moduli,
    exponent: Exponent,
    neighbours: HashMap<Asn, Vec<Asn>>,
    positions: HashMap<(Asn, Asn), usize>,
    origins: HashMap<Asn, RawPrivate>,
}

impl Certificates {
    /// No certificates yet; all keys will come from `seed`.
    #[must_use]
    pub fn new(seed: &Secret<32>) -> Self {
        Self::with_moduli(seed, Moduli::High)
    }

    /// The same, with origin keys of this kind.
    #[must_use]
    pub fn with_moduli(seed: &Secret<32>, moduli: Moduli) -> Self {
        Self {
            seed: seed.clone(),
            moduli,
            exponent: Exponent::F4,
            neighbours: HashMap::new(),
            positions: HashMap::new(),
            origins: HashMap::new(),
        }
    }

    /// The same, with origin keys of this exponent.
    #[must_use]
    pub fn with_exponent(self, exponent: Exponent) -> Self {
        Self { exponent, ..self }
    }

    /// Makes the ASes of `path` (the origin first) neighbours, and a key for its origin.
    pub fn prepare(&mut self, path: &[Asn]) {
        for pair in path.windows(2) {
            self.connect(pair[0], pair[1]);
        }
        if let Some(&origin) = path.first() {
            self.add_origin(origin);
        }
    }

    /// Makes two ASes neighbours. Each is appended to the other's list, so that older vectors keep their meaning.
    pub fn connect(&mut self, a: Asn, b: Asn) {
        for (of, neighbour) in [(a, b), (b, a)] {
            let list = self.neighbours.entry(of).or_default();
            if of != neighbour && list.len() < MAX_NEIGHBOURS && !self.positions.contains_key(&(of, neighbour)) {
                self.positions.insert((of, neighbour), list.len());
                list.push(neighbour);
            }
        }
    }

    /// The ordered neighbour list in the certificate of `asn`.
    #[must_use]
    pub fn neighbours(&self, asn: Asn) -> &[Asn] {
        self.neighbours.get(&asn).map_or(&[], Vec::as_slice)
    }

    /// The vector with which the last AS of `path` sends to `to` and, with the same signature, to all its other neighbours
    /// that are not on the path. `to` becomes a neighbour if it is not one.
    pub fn export(&mut self, path: &[Asn], to: Asn) -> BitVector {
        let Some(&from) = path.last() else { return BitVector::default() };
        self.connect(from, to);
        let list = self.neighbours(from);
        let mut vector = BitVector::zeros(u16::try_from(list.len()).expect("connect keeps lists this short"));
        for (index, neighbour) in list.iter().enumerate() {
            if *neighbour == to || !path.contains(neighbour) {
                vector.set(index);
            }
        }
        vector
    }

    /// Whether `vector`, signed by `from`, includes `to`.
    #[must_use]
    pub fn allows(&self, from: Asn, vector: &BitVector, to: Asn) -> bool {
        self.positions.get(&(from, to)).is_some_and(|&index| vector.contains(index))
    }

    /// Makes the pair K_0 of `asn` if it has none.
    pub fn add_origin(&mut self, asn: Asn) {
        let (seed, exponent) = (&self.seed, self.exponent);
        self.origins.entry(asn).or_insert_with(|| {
            let seed = kdf::derive("wayleave/paper/origin/v1", seed.expose(), &asn.0.to_be_bytes());
            RawPrivate::with_exponent(&seed, self.moduli, exponent)
        });
    }

    /// The pair K_0 of `asn`.
    #[must_use]
    pub fn origin(&self, asn: Asn) -> Option<&RawPrivate> {
        self.origins.get(&asn)
    }

    /// The origin's signature over `message` with K_0^- (a full-domain hash under RSA-1024): 128 bytes.
    #[must_use]
    pub fn sign_as_origin(&self, asn: Asn, message: &[u8]) -> Option<Block> {
        self.origin(asn)?.apply(&origin_hash(message))
    }

    /// Whether `signature` is the origin's over `message`.
    #[must_use]
    pub fn verify_origin(&self, asn: Asn, message: &[u8], signature: &Block) -> bool {
        let Some(pair) = self.origin(asn) else { return false };
        pair.public().apply(signature) == Some(origin_hash(message))
    }
}

/// Cleared in its top bit, which every modulus has set, so that it is below all of them.
fn origin_hash(message: &[u8]) -> Block {
    let mut hash = full_domain_hash(&[b"wayleave/paper/origin-signature/v1", message]);
    hash[0] &= 0x7f;
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificates() -> Certificates {
        Certificates::new(&Secret::new([9; 32]))
    }

    #[test]
    fn a_vector_names_all_neighbours_but_those_on_the_path() {
        let mut certificates = certificates();
        certificates.connect(Asn(2), Asn(1));
        certificates.connect(Asn(2), Asn(3));
        certificates.connect(Asn(2), Asn(4));
        let vector = certificates.export(&[Asn(1), Asn(2)], Asn(3));
        assert!(!certificates.allows(Asn(2), &vector, Asn(1)));
        assert!(certificates.allows(Asn(2), &vector, Asn(3)));
        assert!(certificates.allows(Asn(2), &vector, Asn(4)));
        assert!(!certificates.allows(Asn(2), &vector, Asn(5)));
    }

    #[test]
    fn a_list_grows_at_its_end_and_older_vectors_keep_their_meaning() {
        let mut certificates = certificates();
        let old = certificates.export(&[Asn(1)], Asn(2));
        certificates.export(&[Asn(1)], Asn(3));
        assert!(certificates.allows(Asn(1), &old, Asn(2)));
        assert!(!certificates.allows(Asn(1), &old, Asn(3)));
    }

    #[test]
    fn a_vector_decodes_as_it_was_encoded_and_nothing_else_does() {
        let mut vector = BitVector::zeros(11);
        vector.set(0);
        vector.set(10);
        vector.set(11);
        let mut wire = Vec::new();
        vector.encode(&mut wire);
        assert_eq!(wire, [0, 11, 0x80, 0x20]);
        assert_eq!(BitVector::decode(&wire), Some((vector, &[][..])));
        assert_eq!(BitVector::decode(&[0, 11, 0x80, 0x21]), None);
        assert_eq!(BitVector::decode(&[0, 11, 0x80]), None);
    }

    #[test]
    fn an_origin_signs_what_only_its_own_key_verifies() {
        let mut certificates = certificates();
        certificates.prepare(&[Asn(1), Asn(2)]);
        certificates.add_origin(Asn(2));
        let message = formula(&[Asn(1)], &BitVector::zeros(1), b"key");
        let signature = certificates.sign_as_origin(Asn(1), &message).expect("prepared");
        assert!(certificates.verify_origin(Asn(1), &message, &signature));
        assert!(!certificates.verify_origin(Asn(2), &message, &signature));
        assert!(!certificates.verify_origin(Asn(3), &message, &signature));
        assert!(!certificates.verify_origin(Asn(1), b"other", &signature));
    }
}
