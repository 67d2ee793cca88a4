//! SAS-V as a baseline: sequential aggregate signatures by RSA-1024 with bit vectors (Lysyanskaya, Micali, Reyzin and
//! Shacham, Eurocrypt 2004; Zhao, Smith and Nicol, CCS 2005).
//!
//! Each AS adds a full-domain hash over all messages and keys so far to the aggregate, modulo its certified modulus, and
//! applies its private permutation. An aggregate above the next modulus is reduced, and one bit of the hop records that. An
//! attestation consists of the vector and an octet with that bit of each hop, and 128 bytes.

use std::collections::HashMap;

use sha2::{Digest, Sha256};
use wayleave_attestation::suite::SuiteId;
use wayleave_core::Asn;
use wayleave_crypto::kdf;
use wayleave_crypto::secret::Secret;

use super::s_bgp::prefixes;
use crate::kc_x::certificates::{BitVector, Certificates, MAX_HOPS, formula};
use crate::kc_x::raw::{Block, MODULUS_LEN, Moduli, RawPrivate, full_domain_hash};
use crate::kc_x::rsa::vectors_allow;
use crate::scheme::{Announcement, Scheme, SchemeError};

/// SAS-V with the certified keys of every AS.
pub struct SasV {
    certificates: Certificates,
    seed: Secret<32>,
    keys: HashMap<Asn, RawPrivate>,
}

impl SasV {
    #[must_use]
    pub fn new(seed: &Secret<32>) -> Self {
        Self { certificates: Certificates::new(seed), seed: seed.clone(), keys: HashMap::new() }
    }

    fn add(&mut self, asn: Asn) {
        self.keys.entry(asn).or_insert_with(|| {
            let seed = kdf::derive("wayleave/sas-v/world/v1", self.seed.expose(), &asn.0.to_be_bytes());
            RawPrivate::generate(&seed, Moduli::Any)
        });
    }

    /// The hash of every hop; `None` if an AS has no certified key.
    fn hashes(&self, announcement: &Announcement, hops: &[SasVHop]) -> Option<Vec<Block>> {
        let path = &announcement.path;
        let prefixes = prefixes(&announcement.prefixes);
        let mut so_far = [0; 32];
        let hashes = hops.iter().enumerate().map(|(index, hop)| {
            let key = self.keys.get(&path[index])?.public().modulus();
            let message = formula(&path[..=index], &hop.vector, &prefixes);
            so_far = Sha256::new().chain_update(so_far).chain_update(key).chain_update(message).finalize().into();
            Some(full_domain_hash(&[b"wayleave/sas-v/v1", &so_far]))
        });
        hashes.collect()
    }
}

impl Scheme for SasV {
    fn name(&self) -> &'static str {
        SuiteId::SasV.name()
    }

    fn prepare(&mut self, path: &[Asn]) {
        for pair in path.windows(2) {
            self.certificates.connect(pair[0], pair[1]);
        }
        for &asn in path {
            self.add(asn);
        }
    }

    fn attest(&mut self, announcement: &Announcement, received: &[u8], to: Asn) -> Result<Vec<u8>, SchemeError> {
        let path = &announcement.path;
        let &last = path.last().ok_or(SchemeError::Malformed)?;
        let received = if path.len() == 1 { Some((Vec::new(), [0; MODULUS_LEN])) } else { decode(received) };
        let received = received.filter(|(hops, _)| hops.len() + 1 == path.len() && path.len() <= MAX_HOPS);
        let (mut hops, aggregate) = received.ok_or(SchemeError::Malformed)?;
        let vector = self.certificates.export(path, to);
        self.add(last);
        hops.push(SasVHop { vector, above: false });
        let hashes = self.hashes(announcement, &hops).ok_or(SchemeError::Malformed)?;
        let key = self.keys.get(&last).expect("added above");
        let (aggregate, above) = key.public().reduced(&aggregate);
        let hash = key.public().reduced(hashes.last().expect("a hop was pushed")).0;
        let signature = key.apply(&key.public().sum(&aggregate, &hash)).expect("a sum modulo n is below n");
        hops.last_mut().expect("a hop was pushed").above = above;
        Ok(encode(&hops, &signature))
    }

    fn verify(&self, announcement: &Announcement, attestation: &[u8], by: Asn) -> bool {
        let path = &announcement.path;
        let Some((hops, mut aggregate)) = decode(attestation) else { return false };
        if hops.len() != path.len() || !vectors_allow(&self.certificates, path, hops.iter().map(|hop| &hop.vector), by)
        {
            return false;
        }
        let Some(hashes) = self.hashes(announcement, &hops) else { return false };
        for ((asn, hop), hash) in path.iter().zip(&hops).zip(&hashes).rev() {
            let Some(key) = self.keys.get(asn).map(RawPrivate::public) else { return false };
            let Some(sum) = key.apply(&aggregate) else { return false };
            let before = key.difference(&sum, &key.reduced(hash).0);
            let Some(before) = (if hop.above { key.raised(&before) } else { Some(before) }) else { return false };
            aggregate = before;
        }
        aggregate == [0; MODULUS_LEN]
    }

    fn signature_bytes(&self, attestation: &[u8]) -> usize {
        decode(attestation).map_or(0, |_| MODULUS_LEN)
    }
}

struct SasVHop {
    vector: BitVector,
    /// Whether the preceding aggregate was above its modulus.
    above: bool,
}

fn encode(hops: &[SasVHop], signature: &Block) -> Vec<u8> {
    let mut out = vec![u8::try_from(hops.len()).expect("at most MAX_HOPS")];
    for hop in hops {
        hop.vector.encode(&mut out);
        out.push(u8::from(hop.above));
    }
    out.extend_from_slice(signature);
    out
}

fn decode(bytes: &[u8]) -> Option<(Vec<SasVHop>, Block)> {
    let (&count, mut rest) = bytes.split_first()?;
    let mut hops = Vec::with_capacity(usize::from(count));
    for _ in 0..count {
        let (vector, after) = BitVector::decode(rest)?;
        let (&above, after) = after.split_first()?;
        if above > 1 {
            return None;
        }
        hops.push(SasVHop { vector, above: above == 1 });
        rest = after;
    }
    (count > 0).then_some((hops, rest.try_into().ok()?))
}
