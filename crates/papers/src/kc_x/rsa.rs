//! KC-RSA as the paper has it: RSA-1024 with the XOR-ed aggregate signature (section IV-A, equations 2 and 3).
//!
//! The aggregate has 128 bytes whatever the length of the path. A verifier also needs the modulus of every hop's key, which
//! the paper does not count: [`Sizes`] has both.
//!
//! An attestation on the wire:
//!
//! ```text
//! hops (1) | expiry (4) | hop 0 | ... | hop i | S_i (128) | t_i^- (128: two primes)
//! hop: V (2 + bits/8, padded) | salt (1) | modulus of t^+ (128)
//! ```

use std::collections::HashMap;

use sha1::Sha1;
use sha2::{Digest, Sha256};
use wayleave_attestation::suite::SuiteId;
use wayleave_core::{Asn, UnixTime};
use wayleave_crypto::kdf;
use wayleave_crypto::secret::Secret;

use super::certificates::{BitVector, Certificates, MAX_HOPS};
use super::expiry::{Expiry, expiring_formula};
use super::raw::{Block, MODULUS_LEN, Moduli, RawPrivate, RawPublic, full_domain_hash, xor};
use crate::scheme::{Announcement, Scheme, SchemeError};

/// How messages are mapped to numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// The literal equations: SHA-1 of the hop's own message in the low bits, and any modulus. A hop never verifies if the
    /// preceding signature is above its modulus (threats K7, K8).
    Literal,
    /// Moduli with their 64 top bits set, and a hash as long as the modulus over all messages and keys so far.
    FullDomain,
}

impl Mode {
    /// The moduli that this mode's keys have.
    #[must_use]
    pub fn moduli(self) -> Moduli {
        match self {
            Self::Literal => Moduli::Any,
            Self::FullDomain => Moduli::High,
        }
    }
}

/// One hop of an attestation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RsaHop {
    /// The neighbours that the hop sends to.
    pub vector: BitVector,
    /// The signer increments it until the number to sign is below its modulus; always 0 in literal mode.
    pub salt: u8,
    /// t_i^+: the modulus of the key that it grants to all of them.
    pub key: Block,
}

/// The attestation of an UPDATE.
#[derive(Clone, Debug)]
pub struct Attestation {
    /// When the route expires, signed by every hop.
    pub expiry: Expiry,
    /// One for each AS of the path, the origin first.
    pub hops: Vec<RsaHop>,
    /// S_i, the aggregate of all signatures.
    pub signature: Block,
    /// t_i^-: the two primes of the last hop's granted key.
    pub granted: Secret<MODULUS_LEN>,
}

/// Bytes of the parts of an attestation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// The aggregate, which the paper counts.
    pub signature: usize,
    /// The moduli, without which no signature verifies.
    pub moduli: usize,
    /// Bit vectors, salts and the count of hops.
    pub vectors: usize,
    /// The expiry, which the paper does not count.
    pub expiry: usize,
    /// The private key handed to the next hop.
    pub granted: usize,
}

/// What a hop continues.
#[derive(Clone, Copy, Debug)]
pub enum Previous<'a> {
    /// Nothing: it is the origin's, whose route expires then.
    Origination(Expiry),
    Received(&'a Attestation),
}

impl Attestation {
    /// Decodes the wire form; `None` if it is malformed or something follows it.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (&count, rest) = bytes.split_first()?;
        let (expiry, mut rest) = Expiry::decode(rest)?;
        let mut hops = Vec::with_capacity(usize::from(count));
        for _ in 0..count {
            let (vector, after) = BitVector::decode(rest)?;
            let (&salt, after) = after.split_first()?;
            let (&key, after) = after.split_first_chunk()?;
            hops.push(RsaHop { vector, salt, key });
            rest = after;
        }
        let (&signature, rest) = rest.split_first_chunk()?;
        let granted = Secret::new(rest.try_into().ok()?);
        (count > 0).then_some(Self { expiry, hops, signature, granted })
    }

    /// The wire form.
    ///
    /// # Panics
    /// If there are more than [`MAX_HOPS`] hops, which [`Attestation::extend`] never makes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![u8::try_from(self.hops.len()).expect("at most MAX_HOPS")];
        out.extend_from_slice(&self.expiry.octets());
        for hop in &self.hops {
            hop.vector.encode(&mut out);
            out.push(hop.salt);
            out.extend_from_slice(&hop.key);
        }
        out.extend_from_slice(&self.signature);
        out.extend_from_slice(self.granted.expose());
        out
    }

    /// Bytes of its parts.
    #[must_use]
    pub fn sizes(&self) -> Sizes {
        let vectors = 1 + self.hops.iter().map(|hop| hop.vector.wire_len() + 1).sum::<usize>();
        Sizes {
            signature: MODULUS_LEN,
            moduli: MODULUS_LEN * self.hops.len(),
            vectors,
            expiry: Expiry::LEN,
            granted: MODULUS_LEN,
        }
    }

    /// The attestation of `path`, whose last AS grants `next` and signs with `signer`: K_0^- at the origin, else the key
    /// t_{i-1}^- received with what it continues. `None` if the path would be too long.
    #[must_use]
    pub fn extend(
        mode: Mode,
        previous: Previous<'_>,
        path: &[Asn],
        vector: BitVector,
        next: &RawPrivate,
        signer: &RawPrivate,
    ) -> Option<Self> {
        let (expiry, mut hops, before) = match previous {
            Previous::Origination(expiry) => (expiry, Vec::new(), [0; MODULUS_LEN]),
            Previous::Received(Self { expiry, hops, signature, .. }) => (*expiry, hops.clone(), *signature),
        };
        if hops.len() + 1 != path.len() || path.len() > MAX_HOPS {
            return None;
        }
        hops.push(RsaHop { vector, salt: 0, key: next.public().modulus() });
        let signature = loop {
            let hashes = hashes(mode, expiry, path, &hops);
            let number = xor(&before, hashes.last().expect("a hop was pushed"));
            if let Some(signature) = signer.apply(&number) {
                break signature;
            }
            if mode == Mode::Literal {
                break signer.apply_reduced(&number);
            }
            let last = hops.last_mut().expect("a hop was pushed");
            last.salt = last.salt.checked_add(1)?;
        };
        Some(Self { expiry, hops, signature, granted: next.encode() })
    }

    /// The paper's steps 1 to 5: removes the signatures from the last to the first, which K_0^+ must verify. Each AS of the
    /// path must be in the vector of the one before it, and the route must not have expired.
    #[must_use]
    pub fn verify(&self, mode: Mode, certificates: &Certificates, path: &[Asn], by: Asn, now: UnixTime) -> bool {
        if self.expiry.has_passed(now)
            || self.hops.len() != path.len()
            || !vectors_allow(certificates, path, self.hops.iter().map(|hop| &hop.vector), by)
        {
            return false;
        }
        let Some(origin) = certificates.origin(path[0]) else { return false };
        let hashes = hashes(mode, self.expiry, path, &self.hops);
        let mut signature = self.signature;
        for (index, hash) in hashes.iter().enumerate().skip(1).rev() {
            let Ok(key) = RawPublic::new(&self.hops[index - 1].key, mode.moduli()) else { return false };
            let Some(number) = key.apply(&signature) else { return false };
            signature = xor(&number, hash);
        }
        origin.public().apply(&signature) == Some(hashes[0])
    }
}

/// Whether each vector includes the next AS of the path, and the last one includes `by`.
pub(crate) fn vectors_allow<'a>(
    certificates: &Certificates,
    path: &[Asn],
    vectors: impl Iterator<Item = &'a BitVector>,
    by: Asn,
) -> bool {
    let next = path.iter().skip(1).chain(std::iter::once(&by));
    path.iter().zip(vectors).zip(next).all(|((from, vector), to)| certificates.allows(*from, vector, *to))
}

/// The number to which each hop's message is mapped.
fn hashes(mode: Mode, expiry: Expiry, path: &[Asn], hops: &[RsaHop]) -> Vec<Block> {
    let mut so_far = [0; 32];
    let message = |i: usize, hop: &RsaHop| expiring_formula(expiry, &path[..=i], &hop.vector, &hop.key);
    let messages = hops.iter().enumerate().map(|(i, hop)| (hop, message(i, hop)));
    messages
        .map(|(hop, message)| match mode {
            Mode::Literal => low_hash(&message),
            Mode::FullDomain => {
                let state = Sha256::new().chain_update(so_far).chain_update([hop.salt]).chain_update(&message);
                so_far = state.finalize().into();
                full_domain_hash(&[b"wayleave/kc-rsa-paper/v1", &so_far])
            }
        })
        .collect()
}

/// SHA-1 in the low 160 bits.
fn low_hash(message: &[u8]) -> Block {
    let mut block = [0; MODULUS_LEN];
    block[MODULUS_LEN - 20..].copy_from_slice(&Sha1::digest(message));
    block
}

/// KC-RSA with the keys of every AS.
pub struct KcRsa {
    mode: Mode,
    now: UnixTime,
    certificates: Certificates,
    seed: Secret<32>,
    /// t_i, made ahead.
    pairs: HashMap<Asn, RawPrivate>,
    /// Granted keys as received, by modulus: a speaker checks a key once and then signs many messages with it.
    granted: HashMap<Block, RawPrivate>,
}

/// Granted keys kept: our own limit. The cache is emptied when it is full.
const MAX_GRANTED: usize = 200_000;

impl KcRsa {
    #[must_use]
    pub fn new(seed: &Secret<32>, mode: Mode) -> Self {
        let certificates = Certificates::with_moduli(seed, mode.moduli());
        Self {
            mode,
            now: UnixTime::default(),
            certificates,
            seed: seed.clone(),
            pairs: HashMap::new(),
            granted: HashMap::new(),
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

    /// The pair t_i that `asn` grants; it is made if there is none.
    pub fn pair(&mut self, asn: Asn) -> &RawPrivate {
        self.pairs.entry(asn).or_insert_with(|| {
            let seed = kdf::derive("wayleave/kc-rsa-paper/t/v1", self.seed.expose(), &asn.0.to_be_bytes());
            RawPrivate::generate(&seed, self.mode.moduli())
        })
    }

    fn take_granted(&mut self, received: &Attestation) -> Result<(), SchemeError> {
        let modulus = received.hops.last().ok_or(SchemeError::Malformed)?.key;
        if self.granted.get(&modulus).is_some_and(|pair| pair.encode() == received.granted) {
            return Ok(());
        }
        let pair = RawPrivate::decode(&received.granted, self.mode.moduli()).map_err(|_| SchemeError::Malformed)?;
        if pair.public().modulus() != modulus {
            return Err(SchemeError::Malformed);
        }
        if self.granted.len() >= MAX_GRANTED {
            self.granted.clear();
        }
        self.granted.insert(modulus, pair);
        Ok(())
    }
}

impl Scheme for KcRsa {
    fn name(&self) -> &'static str {
        SuiteId::KcRsaPaper.name()
    }

    fn prepare(&mut self, path: &[Asn]) {
        self.certificates.prepare(path);
        for &asn in path {
            self.pair(asn);
            let granted = self.pair(asn).clone();
            self.granted.insert(granted.public().modulus(), granted);
        }
    }

    fn set_time(&mut self, now: UnixTime) {
        self.now = now;
    }

    fn attest(&mut self, announcement: &Announcement, received: &[u8], to: Asn) -> Result<Vec<u8>, SchemeError> {
        let path = &announcement.path;
        let (&origin, &last) = path.first().zip(path.last()).ok_or(SchemeError::Malformed)?;
        let vector = self.certificates.export(path, to);
        self.pair(last);
        let received = if path.len() == 1 {
            self.certificates.add_origin(origin);
            None
        } else {
            let received = Attestation::decode(received).ok_or(SchemeError::Malformed)?;
            self.take_granted(&received)?;
            Some(received)
        };
        let next = self.pairs.get(&last).expect("made above");
        let signer = match &received {
            None => self.certificates.origin(origin).expect("made above"),
            Some(received) => &self.granted[&received.hops[received.hops.len() - 1].key],
        };
        let origination = Previous::Origination(Expiry::of_route_announced_at(self.now));
        let previous = received.as_ref().map_or(origination, Previous::Received);
        let attestation = Attestation::extend(self.mode, previous, path, vector, next, signer);
        Ok(attestation.ok_or(SchemeError::Malformed)?.encode())
    }

    fn verify(&self, announcement: &Announcement, attestation: &[u8], by: Asn) -> bool {
        Attestation::decode(attestation).is_some_and(|attestation| {
            attestation.verify(self.mode, &self.certificates, &announcement.path, by, self.now)
        })
    }

    fn signature_bytes(&self, attestation: &[u8]) -> usize {
        Attestation::decode(attestation).map_or(0, |attestation| attestation.sizes().signature)
    }
}
