//! Router keys of the RPKI as keys for attestations: from an RTR cache, or from a folder of certificates.

use std::fs;
use std::path::{Path, PathBuf};

use wayleave_attestation::pki::RegisteredKey;
use wayleave_attestation::suite::{self, SuiteId};
use wayleave_core::{Asn, UnixTime};
use wayleave_runtime::rpki::certificates::{CertificateError, CertifiedKey, File, import};
use wayleave_runtime::rpki::{PublicKey, RouterKey};

use crate::failure::Failure;

/// Largest number of files in a folder.
const MAX_FILES: usize = 200_000;
/// Largest file that is read, in octets.
const MAX_OCTETS: u64 = 16 << 20;

/// A router key as attestation key, valid between these times in seconds since 1970. `Err` is the reason why it cannot be
/// used.
pub fn registered(key: &RouterKey, not_before: u64, not_after: u64) -> Result<(Asn, RegisteredKey), String> {
    let wrong = |why: &dyn std::fmt::Display| format!("a router key of {}: {why}", key.asn);
    let (suite, public) = match key.public_key().map_err(|error| wrong(&error))? {
        PublicKey::EcdsaP256(point) => (SuiteId::KcP256, point.to_vec()),
        PublicKey::Ed25519(public) => (SuiteId::KcEd25519, public.to_vec()),
        PublicKey::Rsa(modulus) if modulus.len() == 256 => (SuiteId::KcRsa2048, modulus),
        PublicKey::Rsa(modulus) => (SuiteId::KcRsa, modulus),
    };
    if let Some(Err(refused)) = suite::of(suite).map(|suite| suite.check_key(&public)) {
        return Err(wrong(&refused));
    }
    Ok((key.asn, RegisteredKey { suite, public, not_before, not_after }))
}

/// The content of a folder of certificates.
#[derive(Default)]
pub struct Imported {
    pub keys: Vec<CertifiedKey>,
    /// Refused files, each with the reason.
    pub refused: Vec<String>,
    /// When the first certificate that is not valid yet begins, in seconds since 1970.
    pub begins: Option<u64>,
}

/// The router keys of a folder's certificates under these trust anchors.
pub fn read(anchors: &[PathBuf], folder: &Path, now: UnixTime) -> Result<Imported, Failure> {
    let mut unreadable = Vec::new();
    let mut load = |paths: &[PathBuf]| -> Vec<File> {
        let mut files = Vec::new();
        for path in paths {
            let name = path.display().to_string();
            match fs::metadata(path) {
                Ok(meta) if meta.len() > MAX_OCTETS => unreadable.push(format!("{name}: longer than 16 MiB")),
                Ok(_) => match fs::read(path) {
                    Ok(octets) => files.push((name, octets)),
                    Err(error) => unreadable.push(format!("{name}: {error}")),
                },
                Err(error) => unreadable.push(format!("{name}: {error}")),
            }
        }
        files
    };
    let anchors = load(anchors);
    let (certificates, lists) = (load(&files(folder, "cer")?), load(&files(folder, "crl")?));
    let (keys, refused) = import(&anchors, &certificates, &lists, now);
    let begins = refused.iter().filter_map(|(_, error)| match error {
        CertificateError::NotYet { from } => Some(*from),
        _ => None,
    });
    let begins = begins.min();
    let described = |(name, error): (String, CertificateError)| format!("{name}: {error}");
    unreadable.extend(refused.into_iter().map(described));
    Ok(Imported { keys, refused: unreadable, begins })
}

/// The files of a folder with this ending, in order.
pub fn files(folder: &Path, ending: &str) -> Result<Vec<PathBuf>, Failure> {
    let system = |error| Failure::system(folder.display(), &error);
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(system)? {
        let path = entry.map_err(system)?.path();
        if path.extension().is_some_and(|extension| extension == ending) {
            files.push(path);
        }
        if files.len() > MAX_FILES {
            return Err(Failure::new(format!("{} holds more than {MAX_FILES} files", folder.display())));
        }
    }
    files.sort();
    Ok(files)
}
