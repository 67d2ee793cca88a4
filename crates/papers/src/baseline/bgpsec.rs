//! BGPsec as a baseline: ECDSA over P-256 under router keys (RFC 8205, RFC 8608).
//!
//! A signature serves one neighbour and one prefix (section 4.1), so that an announcement of several prefixes has as many
//! attributes. Signing and verifying are those of `aws-lc-rs`, which draws the nonces of ECDSA itself.

use std::collections::HashMap;
use std::fmt;

use aws_lc_rs::agreement;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1, ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair, ParsedPublicKey,
};
use sha1::{Digest, Sha1};
use wayleave_attestation::suite::{KeyRefused, SuiteId};
use wayleave_core::{Asn, Prefix};
use wayleave_crypto::kdf;
use wayleave_crypto::secret::Secret;

use super::bgpsec_wire::{BgpsecPath, SUITE_ECDSA_P256, SecurePathSegment, SignatureBlock, SignatureSegment, Ski};
use crate::scheme::{Announcement, Scheme, SchemeError};

/// Octets of an uncompressed point (SEC 1 section 2.3.3).
pub const POINT_LEN: usize = 65;

/// The key identifier of a router key: SHA-1 over the bits of its public key.
#[must_use]
pub fn ski(point: &[u8; POINT_LEN]) -> Ski {
    Sha1::digest(point).into()
}

/// The public keys of routers, by AS and key identifier.
#[derive(Default)]
pub struct RouterKeys(HashMap<(Asn, Ski), ParsedPublicKey>);

impl RouterKeys {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the key (an uncompressed point) that a certificate binds to `asn`; returns its identifier.
    pub fn insert(&mut self, asn: Asn, point: &[u8]) -> Result<Ski, KeyRefused> {
        let point: &[u8; POINT_LEN] =
            point.try_into().map_err(|_| KeyRefused::Length { need: POINT_LEN, have: point.len() })?;
        if point[0] != 4 {
            return Err(KeyRefused::NotCanonical);
        }
        let parsed = ParsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, point);
        let parsed = parsed.map_err(|_| KeyRefused::Weak("the point is not on the curve"))?;
        let ski = ski(point);
        self.0.insert((asn, ski), parsed);
        Ok(ski)
    }

    /// Removes a key.
    pub fn remove(&mut self, asn: Asn, ski: &Ski) {
        self.0.remove(&(asn, *ski));
    }

    /// Whether every signature in a block of our suite is valid for `prefix` as received by `by` (RFC 8205 section 5.2).
    #[must_use]
    pub fn verify(&self, path: &BgpsecPath, prefix: &Prefix, by: Asn) -> bool {
        path.blocks.iter().any(|block| block.suite == SUITE_ECDSA_P256 && self.verify_block(path, block, prefix, by))
    }

    fn verify_block(&self, path: &BgpsecPath, block: &SignatureBlock, prefix: &Prefix, by: Asn) -> bool {
        if block.signatures.len() != path.segments.len() {
            return false;
        }
        let mut target = by;
        // All keys are looked up first: a missing one costs no verification.
        let Some(keys) = self.keys_of(path, block) else { return false };
        for (index, (key, signature)) in keys.iter().zip(&block.signatures).enumerate() {
            let signed = path.signed_octets(block, index, target, prefix);
            if key.verify_sig(&signed, &signature.signature).is_err() {
                return false;
            }
            target = path.segments[index].asn;
        }
        true
    }

    fn keys_of(&self, path: &BgpsecPath, block: &SignatureBlock) -> Option<Vec<&ParsedPublicKey>> {
        let pairs = path.segments.iter().zip(&block.signatures);
        pairs.map(|(segment, signature)| self.0.get(&(segment.asn, signature.ski))).collect()
    }
}

/// The private key of a router.
pub struct RouterKey {
    pair: EcdsaKeyPair,
    point: [u8; POINT_LEN],
    ski: Ski,
}

impl RouterKey {
    /// From the private scalar, big-endian: 1 to the curve's order less one.
    pub fn from_scalar(scalar: &Secret<32>) -> Result<Self, KeyRefused> {
        let refused = |_| KeyRefused::Weak("the scalar is zero or not below the order");
        let secret =
            agreement::PrivateKey::from_private_key(&agreement::ECDH_P256, scalar.expose()).map_err(refused)?;
        let public = secret.compute_public_key().map_err(|_| KeyRefused::Mismatch)?;
        let alg = &ECDSA_P256_SHA256_ASN1_SIGNING;
        let pair = EcdsaKeyPair::from_private_key_and_public_key(alg, scalar.expose(), public.as_ref());
        let pair = pair.map_err(|_| KeyRefused::Mismatch)?;
        let point: [u8; POINT_LEN] = pair.public_key().as_ref().try_into().map_err(|_| KeyRefused::NotCanonical)?;
        Ok(Self { ski: ski(&point), pair, point })
    }

    /// From a uniformly random seed; the same seed gives the same key.
    #[must_use]
    pub fn generate(seed: &Secret<32>) -> Self {
        (0u32..)
            .find_map(|counter| {
                let scalar = kdf::derive("wayleave/bgpsec/router-key/v1", seed.expose(), &counter.to_be_bytes());
                Self::from_scalar(&scalar).ok()
            })
            .expect("all but one in 2^32 scalars are below the order")
    }

    /// The public key, an uncompressed point.
    #[must_use]
    pub fn point(&self) -> &[u8; POINT_LEN] {
        &self.point
    }

    /// Its identifier.
    #[must_use]
    pub fn ski(&self) -> &Ski {
        &self.ski
    }

    /// Adds the segment and the signature of `asn`, which sends `prefix` to `target` (RFC 8205 section 4.2). Blocks of other
    /// suites are dropped. `None` if the received attribute has no block of our suite.
    #[must_use]
    pub fn extend(&self, received: &BgpsecPath, asn: Asn, target: Asn, prefix: &Prefix) -> Option<BgpsecPath> {
        let mut segments = vec![SecurePathSegment { p_count: 1, flags: 0, asn }];
        segments.extend_from_slice(&received.segments);
        let older = received.blocks.iter().find(|block| block.suite == SUITE_ECDSA_P256);
        let older = match older {
            Some(block) => block.signatures.as_slice(),
            None if received.segments.is_empty() => &[],
            None => return None,
        };
        // Its own signature comes first and is empty for now, since it does not cover itself.
        let mut signatures = vec![SignatureSegment { ski: self.ski, signature: Vec::new() }];
        signatures.extend_from_slice(older);
        let mut path = BgpsecPath { segments, blocks: vec![] };
        let mut block = SignatureBlock { suite: SUITE_ECDSA_P256, signatures };
        let signed = path.signed_octets(&block, 0, target, prefix);
        block.signatures[0].signature = self.sign(&signed);
        path.blocks.push(block);
        Some(path)
    }

    fn sign(&self, octets: &[u8]) -> Vec<u8> {
        let signature = self.pair.sign(&SystemRandom::new(), octets);
        signature.expect("signing fails only if memory does").as_ref().to_vec()
    }
}

impl fmt::Debug for RouterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RouterKey(..)")
    }
}

/// BGPsec with the router keys of every AS.
///
/// An attestation consists of the length (4 octets) and the value of the attribute of each prefix.
pub struct Bgpsec {
    seed: Secret<32>,
    private: HashMap<Asn, RouterKey>,
    public: RouterKeys,
}

impl Bgpsec {
    #[must_use]
    pub fn new(seed: &Secret<32>) -> Self {
        Self { seed: seed.clone(), private: HashMap::new(), public: RouterKeys::new() }
    }

    fn add(&mut self, asn: Asn) -> &RouterKey {
        self.private.entry(asn).or_insert_with(|| {
            let seed = kdf::derive("wayleave/bgpsec/world/v1", self.seed.expose(), &asn.0.to_be_bytes());
            let key = RouterKey::generate(&seed);
            self.public.insert(asn, key.point()).expect("a key of our own");
            key
        })
    }
}

impl Scheme for Bgpsec {
    fn name(&self) -> &'static str {
        SuiteId::Bgpsec.name()
    }

    fn prepare(&mut self, path: &[Asn]) {
        for &asn in path {
            self.add(asn);
        }
    }

    fn attest(&mut self, announcement: &Announcement, received: &[u8], to: Asn) -> Result<Vec<u8>, SchemeError> {
        let &asn = announcement.path.last().ok_or(SchemeError::Malformed)?;
        let received = if announcement.path.len() == 1 {
            vec![BgpsecPath::default(); announcement.prefixes.len()]
        } else {
            attributes(received).ok_or(SchemeError::Malformed)?
        };
        let before = &announcement.path[..announcement.path.len() - 1];
        if received.len() != announcement.prefixes.len()
            || received.iter().any(|path| !path.ases().eq(before.iter().copied()))
        {
            return Err(SchemeError::Malformed);
        }
        let key = self.add(asn);
        let mut out = Vec::new();
        for (path, prefix) in received.iter().zip(&announcement.prefixes) {
            let value = key.extend(path, asn, to, prefix).and_then(|path| path.encode());
            let value = value.ok_or(SchemeError::Malformed)?;
            let len = u32::try_from(value.len()).map_err(|_| SchemeError::Malformed)?;
            out.extend_from_slice(&len.to_be_bytes());
            out.extend_from_slice(&value);
        }
        Ok(out)
    }

    fn verify(&self, announcement: &Announcement, attestation: &[u8], by: Asn) -> bool {
        let Some(paths) = attributes(attestation) else { return false };
        !paths.is_empty()
            && paths.len() == announcement.prefixes.len()
            && paths.iter().zip(&announcement.prefixes).all(|(path, prefix)| {
                path.ases().eq(announcement.path.iter().copied()) && self.public.verify(path, prefix, by)
            })
    }

    fn signature_bytes(&self, attestation: &[u8]) -> usize {
        let blocks = attributes(attestation).unwrap_or_default().into_iter().flat_map(|path| path.blocks);
        blocks.flat_map(|block| block.signatures).map(|segment| segment.ski.len() + 2 + segment.signature.len()).sum()
    }
}

fn attributes(mut bytes: &[u8]) -> Option<Vec<BgpsecPath>> {
    let mut paths = Vec::new();
    while !bytes.is_empty() {
        let (&len, rest) = bytes.split_first_chunk()?;
        let (value, rest) = rest.split_at_checked(usize::try_from(u32::from_be_bytes(len)).ok()?)?;
        paths.push(BgpsecPath::decode(value).ok()?);
        bytes = rest;
    }
    Some(paths)
}
