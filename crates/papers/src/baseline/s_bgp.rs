//! S-BGP as a baseline: DSA-1024 with precomputation, bit vectors, a certified key for each AS (paper section V).
//!
//! Each AS signs the prefixes, the path up to itself, and the bit vector of the neighbours to which it sends. An attestation
//! consists of the vector and 40 bytes of each hop.

use std::collections::HashMap;

use wayleave_attestation::suite::SuiteId;
use wayleave_core::{Asn, Prefix};
use wayleave_crypto::kdf;
use wayleave_crypto::secret::Secret;

use super::dsa::{SIGNATURE_LEN, SigningKey};
use crate::kc_x::certificates::{BitVector, Certificates, MAX_HOPS, formula};
use crate::kc_x::rsa::vectors_allow;
use crate::scheme::{Announcement, Scheme, SchemeError};

/// The least numbers of signatures computed ahead: for the last two ASes of a prepared path, which sign next, and for the
/// others.
const AHEAD_LAST: usize = 256;
const AHEAD_OTHERS: usize = 4;
/// Signatures computed ahead at most: our own limit.
const AHEAD_MOST: usize = 1 << 20;

/// S-BGP with the keys of every AS.
pub struct SBgp {
    certificates: Certificates,
    seed: Secret<32>,
    keys: HashMap<Asn, SigningKey>,
    tables: bool,
}

impl SBgp {
    /// Every public key has tables of its powers (2 KiB each), which makes S-BGP as fast as possible; the paper only
    /// prepares signing.
    #[must_use]
    pub fn new(seed: &Secret<32>) -> Self {
        Self { tables: true, ..Self::without_tables(seed) }
    }

    /// The same without tables: as in the paper, only signing is prepared.
    #[must_use]
    pub fn without_tables(seed: &Secret<32>) -> Self {
        Self { certificates: Certificates::new(seed), seed: seed.clone(), keys: HashMap::new(), tables: false }
    }

    /// Computes ahead until there are `count` signatures of `asn`.
    pub fn compute_ahead(&mut self, asn: Asn, count: usize) {
        self.key(asn).compute_ahead(count);
    }

    fn key(&mut self, asn: Asn) -> &mut SigningKey {
        self.keys.entry(asn).or_insert_with(|| {
            let seed = kdf::derive("wayleave/s-bgp/world/v1", self.seed.expose(), &asn.0.to_be_bytes());
            let mut key = SigningKey::generate(&seed);
            if self.tables {
                key.tabulate();
            }
            key
        })
    }
}

impl Scheme for SBgp {
    fn name(&self) -> &'static str {
        SuiteId::SBgp.name()
    }

    fn prepare(&mut self, path: &[Asn]) {
        for pair in path.windows(2) {
            self.certificates.connect(pair[0], pair[1]);
        }
        // A path is prepared once for each UPDATE on it: each of its ASes will sign once more.
        for (index, &asn) in path.iter().enumerate() {
            let least = if index + 2 >= path.len() { AHEAD_LAST } else { AHEAD_OTHERS };
            let key = self.key(asn);
            key.compute_ahead((key.ahead() + 1).clamp(least, AHEAD_MOST));
        }
    }

    fn attest(&mut self, announcement: &Announcement, received: &[u8], to: Asn) -> Result<Vec<u8>, SchemeError> {
        let path = &announcement.path;
        let &last = path.last().ok_or(SchemeError::Malformed)?;
        let hops = if path.len() == 1 { Some(Vec::new()) } else { decode(received) };
        let hops = hops.filter(|hops| hops.len() + 1 == path.len() && path.len() <= MAX_HOPS);
        let hops = hops.ok_or(SchemeError::Malformed)?;
        let vector = self.certificates.export(path, to);
        let signature = self.key(last).sign(&signed(announcement, path, &vector));
        let mut out = vec![u8::try_from(path.len()).expect("at most MAX_HOPS")];
        for hop in hops.iter().chain([&SBgpHop { vector, signature }]) {
            hop.vector.encode(&mut out);
            out.extend_from_slice(&hop.signature);
        }
        Ok(out)
    }

    fn verify(&self, announcement: &Announcement, attestation: &[u8], by: Asn) -> bool {
        let path = &announcement.path;
        let Some(hops) = decode(attestation).filter(|hops| hops.len() == path.len()) else { return false };
        vectors_allow(&self.certificates, path, hops.iter().map(|hop| &hop.vector), by)
            && path.iter().zip(&hops).enumerate().all(|(index, (asn, hop))| {
                let message = signed(announcement, &path[..=index], &hop.vector);
                self.keys.get(asn).is_some_and(|key| key.public().verify(&message, &hop.signature))
            })
    }

    fn signature_bytes(&self, attestation: &[u8]) -> usize {
        decode(attestation).map_or(0, |hops| hops.len() * SIGNATURE_LEN)
    }
}

struct SBgpHop {
    vector: BitVector,
    signature: [u8; SIGNATURE_LEN],
}

fn decode(bytes: &[u8]) -> Option<Vec<SBgpHop>> {
    let (&count, mut rest) = bytes.split_first()?;
    let mut hops = Vec::with_capacity(usize::from(count));
    for _ in 0..count {
        let (vector, after) = BitVector::decode(rest)?;
        let (&signature, after) = after.split_first_chunk()?;
        hops.push(SBgpHop { vector, signature });
        rest = after;
    }
    (rest.is_empty() && count > 0).then_some(hops)
}

fn signed(announcement: &Announcement, path: &[Asn], vector: &BitVector) -> Vec<u8> {
    formula(path, vector, &prefixes(&announcement.prefixes))
}

/// The prefixes, each preceded by its family and length.
pub(super) fn prefixes(prefixes: &[Prefix]) -> Vec<u8> {
    let mut out = Vec::with_capacity(prefixes.len() * 8);
    for prefix in prefixes {
        out.extend_from_slice(&prefix.afi().code().to_be_bytes());
        out.push(prefix.len());
        out.extend_from_slice(&prefix.octets()[..usize::from(prefix.len()).div_ceil(8)]);
    }
    out
}
