//! RPKI data about origins, routers and providers: over RTR from a relying party's cache, from a file of ROAs, or from router certificates.
//!
//! The formats and protocols are the `rpki` crate's; here they become plain values, bounded and checked.

pub mod certificates;
pub mod file;
pub mod rtr;

use std::collections::BTreeSet;
use std::path::PathBuf;

use rpki::crypto::{PublicKey as SubjectKey, PublicKeyFormat};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use wayleave_core::{Asn, Prefix};

/// Where validated data come from.
#[derive(Clone, PartialEq, Eq)]
pub enum DataSource {
    /// A relying party's cache, over RTR.
    Cache(rtr::Cache),
    /// A local file of ROAs.
    File(PathBuf),
}

impl DataSource {
    /// The cache's address, or the file's path.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Cache(cache) => cache.address.clone(),
            Self::File(path) => path.display().to_string(),
        }
    }

    /// Follows it until the task is aborted; the receiver sees every change.
    #[must_use]
    pub fn follow(&self) -> (watch::Receiver<rtr::Snapshot>, JoinHandle<()>) {
        match self {
            Self::Cache(cache) => rtr::follow(cache.clone()),
            Self::File(path) => file::follow(path.clone()),
        }
    }
}

/// One source of several, of which one counts at a time (RFC 8210 section 10).
#[derive(Clone, PartialEq, Eq)]
pub struct PreferredSource {
    /// The lowest number is preferred.
    pub preference: u32,
    pub source: DataSource,
}

/// Octets of a key identifier.
pub const SKI_LEN: usize = 20;
/// A SubjectPublicKeyInfo of Ed25519 (RFC 8410 section 4), up to its 32 octets of key.
const ED25519_HEAD: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// A validated ROA payload: `asn` may originate `prefix` and what lies in it, down to `max_length` bits (RFC 6811).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Vrp {
    pub prefix: Prefix,
    /// The longest prefix that may be originated, in bits.
    pub max_length: u8,
    pub asn: Asn,
}

/// A router key (RFC 8209): `asn` signs with it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RouterKey {
    pub asn: Asn,
    /// The key identifier: SHA-1 over the bits of the public key.
    pub ski: [u8; SKI_LEN],
    /// The SubjectPublicKeyInfo, as DER.
    pub info: Vec<u8>,
}

/// A public key of a supported kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PublicKey {
    /// ECDSA over P-256, the only kind that RFC 8608 has: an uncompressed point.
    EcdsaP256([u8; 65]),
    /// Ed25519: no standard lets a router certificate carry it, but a cache of one's own may.
    Ed25519([u8; 32]),
    /// RSA with the exponent 65537: the modulus, big-endian. As for Ed25519, only a cache of one's own may carry it.
    Rsa(Vec<u8>),
}

/// Why a router key cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RouterKeyError {
    /// Not the encoding of a public key of a supported kind.
    #[error("the public key is malformed or of an unsupported kind")]
    Unknown,
    /// The identifier differs from the key's.
    #[error("the key identifier does not match the public key")]
    Identifier,
}

impl RouterKey {
    /// The public key, after its identifier was checked.
    pub fn public_key(&self) -> Result<PublicKey, RouterKeyError> {
        if let Some(key) = self.info.strip_prefix(&ED25519_HEAD) {
            let key: [u8; 32] = key.try_into().map_err(|_| RouterKeyError::Unknown)?;
            return if self.ski == sha1(&key) { Ok(PublicKey::Ed25519(key)) } else { Err(RouterKeyError::Identifier) };
        }
        let key = SubjectKey::decode(self.info.as_slice()).map_err(|_| RouterKeyError::Unknown)?;
        // The decoder may ignore trailing octets, but each key must have one encoding only.
        if key.to_info_bytes() != self.info {
            return Err(RouterKeyError::Unknown);
        }
        if key.key_identifier().as_slice() != self.ski {
            return Err(RouterKeyError::Identifier);
        }
        match key.algorithm() {
            PublicKeyFormat::EcdsaP256 => match key.bits().try_into() {
                Ok(point) if key.bits()[0] == 4 => Ok(PublicKey::EcdsaP256(point)),
                _ => Err(RouterKeyError::Unknown),
            },
            PublicKeyFormat::Rsa => rsa_modulus(key.bits()).ok_or(RouterKeyError::Unknown),
        }
    }
}

/// The modulus of an `RSAPublicKey` of 2,048 or 3,072 bits whose exponent is 65537 (RFC 8017 appendix A.1.1).
fn rsa_modulus(bits: &[u8]) -> Option<PublicKey> {
    const EXPONENT: [u8; 5] = [0x02, 0x03, 0x01, 0x00, 0x01];
    let (head, modulus_len): (&[u8; 9], usize) = match bits.len() {
        398 => (&[0x30, 0x82, 0x01, 0x8a, 0x02, 0x82, 0x01, 0x81, 0x00], 384),
        270 => (&[0x30, 0x82, 0x01, 0x0a, 0x02, 0x82, 0x01, 0x01, 0x00], 256),
        _ => return None,
    };
    let modulus = bits.strip_prefix(head)?.strip_suffix(&EXPONENT)?;
    (modulus.len() == modulus_len && modulus[0] & 0x80 != 0).then(|| PublicKey::Rsa(modulus.to_vec()))
}

fn sha1(octets: &[u8]) -> [u8; SKI_LEN] {
    use sha1::Digest;
    sha1::Sha1::digest(octets).into()
}

/// The data of one source.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RpkiData {
    pub vrps: BTreeSet<Vrp>,
    pub router_keys: BTreeSet<RouterKey>,
    /// Customers, each with one of its providers (ASPA, draft-ietf-sidrops-aspa-profile): several records of one customer are one.
    pub aspas: BTreeSet<(Asn, Asn)>,
}

impl RpkiData {
    /// Whether there is nothing at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.vrps.is_empty() && self.router_keys.is_empty() && self.aspas.is_empty()
    }

    /// The union of all `sources`.
    #[must_use]
    pub fn merged<'a>(sources: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut merged = Self::default();
        for source in sources {
            merged.vrps.extend(source.vrps.iter().copied());
            merged.router_keys.extend(source.router_keys.iter().cloned());
            merged.aspas.extend(source.aspas.iter().copied());
        }
        merged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_info(info: Vec<u8>, bits: &[u8]) -> RouterKey {
        RouterKey { asn: Asn(64_496), ski: sha1(bits), info }
    }

    fn point() -> Vec<u8> {
        // The public key of AS 64496 in RFC 8208 appendix A.
        let hex = "047391BABB92A0CB3BE10E59B19EBFFB214E04A91E0CBA1B139A7D38D90F77E55AA05B8E695678E0FA16904B55D9D4F5C0DFC5\
                   8895EE50BC4F75D205A25BD36FF5";
        (0..hex.len() / 2).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).expect("hex")).collect()
    }

    fn p256_info(point: &[u8]) -> Vec<u8> {
        let head = [
            0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48,
            0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
        ];
        [&head[..], point].concat()
    }

    #[test]
    fn router_keys_of_every_known_kind_are_read() {
        let key = with_info(p256_info(&point()), &point());
        assert_eq!(key.public_key(), Ok(PublicKey::EcdsaP256(point().try_into().expect("65 octets"))));
        let key = with_info([&ED25519_HEAD[..], &[7; 32]].concat(), &[7; 32]);
        assert_eq!(key.public_key(), Ok(PublicKey::Ed25519([7; 32])));
        for (len, head) in [(384, [0x01u8, 0x8a, 0x01, 0x81]), (256, [0x01, 0x0a, 0x01, 0x01])] {
            let [a, b, c, d] = head;
            let modulus = vec![0x81; len];
            let bits = [&[0x30, 0x82, a, b, 0x02, 0x82, c, d, 0x00][..], &modulus, &[2, 3, 1, 0, 1]].concat();
            assert_eq!(rsa_modulus(&bits), Some(PublicKey::Rsa(modulus)));
            assert_eq!(rsa_modulus(&bits[1..]), None);
        }
    }

    #[test]
    fn a_key_with_another_identifier_or_encoding_is_refused() {
        let mut key = with_info(p256_info(&point()), &point());
        key.ski[0] ^= 1;
        assert_eq!(key.public_key(), Err(RouterKeyError::Identifier));
        let mut longer = p256_info(&point());
        longer.push(0);
        assert_eq!(with_info(longer, &point()).public_key(), Err(RouterKeyError::Unknown));
        for len in 0..91 {
            assert!(with_info(p256_info(&point())[..len].to_vec(), &point()).public_key().is_err());
        }
        let mut compressed = point();
        compressed[0] = 3;
        assert_eq!(with_info(p256_info(&compressed), &compressed).public_key(), Err(RouterKeyError::Unknown));
    }
}
