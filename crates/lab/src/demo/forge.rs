//! Routes of a dishonest AS: forged paths, copied and expired attestations.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use wayleave_attestation::leaf::Leaf;
use wayleave_attestation::sign::{KeyPair, KeyRing, Origination, Recipient, Speaker, originate};
use wayleave_attestation::suite::{self, SuiteId};
use wayleave_bgp::{AsPathBuf, AttributeCode, AttributeFlags, Attributes, Origin};
use wayleave_core::{Asn, Prefix};
use wayleave_crypto::secret::Secret;

use crate::speaker::Identity;

/// The attestation's attribute.
pub const ATTRIBUTE: AttributeCode = AttributeCode(wayleave_attestation::chain::TYPE_CODE);

/// A route of `identity` with any path and any attestation, or none.
#[must_use]
pub fn route(identity: &Identity, path: &[Asn], attestation: Option<&[u8]>) -> Attributes {
    let mut edit = Attributes::builder();
    edit.origin(Origin::Igp).as_path(AsPathBuf::from_sequence(path).as_path()).ipv4_next_hop(identity.address);
    if let Some(value) = attestation {
        let flags = AttributeFlags(AttributeFlags::OPTIONAL | AttributeFlags::TRANSITIVE | AttributeFlags::PARTIAL);
        edit.set(ATTRIBUTE, flags, value);
    }
    edit.finish()
}

/// The attestation that a route carries.
#[must_use]
pub fn attestation(route: &Attributes) -> Option<Vec<u8>> {
    route.get(ATTRIBUTE).map(|attribute| attribute.value.to_vec())
}

/// Signs, with the first key of an AS's key file, that `origin` announced `prefix` to `neighbour`, an AS that offers no
/// key, from `ago` before now and for an hour.
///
/// # Errors
/// If the file is not a key file, or the key cannot sign.
pub fn attest(file: &Path, origin: Asn, prefix: Prefix, neighbour: Asn, ago: Duration) -> Result<Vec<u8>, String> {
    let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let word = |name: &str| {
        let line = text.lines().find_map(|line| line.trim().strip_prefix(name)?.trim().strip_prefix('='));
        line.map(|value| value.trim().trim_matches('"').to_owned()).ok_or_else(|| format!("no {name} in a key file"))
    };
    let suite = SuiteId::from_name(&word("suite")?).ok_or("an unknown suite")?;
    let seed = Secret::new(seed(&word("seed")?).ok_or("a seed of 64 digits")?);
    let key = suite::of(suite).ok_or("a suite that is not for keys")?.generate(&seed);
    let mut ring = KeyRing { pairs: vec![KeyPair { suite, key, registered: true }] };
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let not_before = now.saturating_sub(ago).as_secs();
    let speaker = Speaker { asn: origin, prepend: 1, not_before, lifetime: 60 };
    let leaf = Leaf::keyless();
    let origination = Origination { prefixes: &[prefix], sequence: not_before };
    let attested = originate(&origination, &speaker, &mut ring, Recipient::Neighbour(neighbour, leaf.view()));
    attested.map(|attested| attested.value).map_err(|error| error.to_string())
}

fn seed(hex: &str) -> Option<[u8; 32]> {
    let octets: Option<Vec<u8>> =
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok()).collect();
    octets?.try_into().ok()
}

/// The seeds of a key file, as bytes and as the file spells them: these must never appear on a link.
///
/// # Errors
/// If the file cannot be read.
pub fn secrets(file: &Path) -> Result<Vec<Vec<u8>>, String> {
    let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let spelt: Vec<&str> = text.split('"').filter(|word| word.len() == 64 && seed(word).is_some()).collect();
    let octets = spelt.iter().filter_map(|word| seed(word).map(Vec::from));
    Ok(octets.chain(spelt.iter().map(|word| word.as_bytes().to_vec())).collect())
}
