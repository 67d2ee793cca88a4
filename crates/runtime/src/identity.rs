//! Identities: the key file with its TLS key, self-signed certificate and signing seed, and fingerprints of certificates.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use crate::clock::unix_now;

/// Default validity of a certificate: ten years of 365 days. Trust rests on pins, not on dates; the date bounds how long
/// a forgotten key can be used.
pub const DEFAULT_VALIDITY: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// Largest key file that is read.
const MAX_KEY_FILE: u64 = 64 * 1024;
const TAG_KEY: &str = "PRIVATE KEY";
const TAG_CERTIFICATE: &str = "CERTIFICATE";
const TAG_SIGNING: &str = "WAYLEAVE SIGNING SEED";

/// SHA-256 of a certificate's DER encoding; in text `sha256:` and 64 lowercase hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(pub [u8; 32]);

impl Fingerprint {
    /// The fingerprint of a certificate.
    #[must_use]
    pub fn of(certificate: &CertificateDer<'_>) -> Self {
        Self(Sha256::digest(certificate.as_ref()).into())
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sha256:")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not a fingerprint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a fingerprint (`sha256:` and 64 hexadecimal digits)")]
pub struct ParseFingerprintError(String);

impl FromStr for Fingerprint {
    type Err = ParseFingerprintError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = text.strip_prefix("sha256:").and_then(from_hex);
        digits.map(Self).ok_or_else(|| ParseFingerprintError(text.to_owned()))
    }
}

/// Exactly 32 octets in hexadecimal, either case.
#[must_use]
pub fn from_hex(text: &str) -> Option<[u8; 32]> {
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut out = [0u8; 32];
    for (i, byte) in out.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).ok()?;
    }
    Some(out)
}

/// Octets in hexadecimal, two digits each; `None` for anything else.
#[must_use]
pub fn octets_of(text: &str) -> Option<Vec<u8>> {
    let is_hex = text.len().is_multiple_of(2) && text.bytes().all(|octet| octet.is_ascii_hexdigit());
    let octet = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
    text.as_bytes().chunks_exact(2).filter(|_| is_hex).map(octet).collect::<Option<_>>().filter(|_| is_hex)
}

/// Octets as lowercase hexadecimal.
#[must_use]
pub fn to_hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Why an identity could not be made, read or written.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// Others than the owner may read the key file.
    #[error("{0} can be read by others than its owner; run: chmod 600 {0}")]
    TooOpen(PathBuf),
    /// A new key would overwrite an old one.
    #[error("{0} exists already and is not overwritten; move it away to make a new key")]
    Exists(PathBuf),
    /// The key file could not be read or written.
    #[error("{0}: {1}")]
    Io(PathBuf, io::Error),
    /// A part of the file is missing or malformed.
    #[error("{0} is not a Wayleave key file: {1} is missing or malformed")]
    Malformed(PathBuf, &'static str),
    #[error("cannot make a certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    #[error("the system gave no randomness: {0}")]
    Random(getrandom::Error),
}

/// The identity of a process: a TLS key with its certificate, and the seed of a separate signing key. `Debug` prints
/// public parts only.
pub struct Identity {
    tls_key: Zeroizing<Vec<u8>>,
    certificate: CertificateDer<'static>,
    signing_seed: Zeroizing<[u8; 32]>,
}

impl Identity {
    /// Makes new keys. `name` becomes the certificate's subject; it is not checked, since trust rests on the pin.
    pub fn generate(name: &str, validity: Duration) -> Result<Self, IdentityError> {
        let mut seed = Zeroizing::new([0u8; 32]);
        getrandom::fill(seed.as_mut()).map_err(IdentityError::Random)?;
        let now = unix_now().secs();
        // An hour back, for peers whose clocks are behind ours.
        Self::with_dates(name, now.saturating_sub(3600), now.saturating_add(validity.as_secs()), seed)
    }

    /// With explicit dates (seconds since 1970), for tests of expiry.
    pub(crate) fn with_dates(
        name: &str,
        not_before: u64,
        not_after: u64,
        signing_seed: Zeroizing<[u8; 32]>,
    ) -> Result<Self, IdentityError> {
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?;
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        (params.not_before, params.not_after) = (date(not_before), date(not_after));
        let certificate = params.self_signed(&key)?.der().clone();
        Ok(Self { tls_key: Zeroizing::new(key.serialize_der()), certificate, signing_seed })
    }

    /// Reads a key file, which only its owner may be able to read.
    pub fn load(path: &Path) -> Result<Self, IdentityError> {
        let io = |error| IdentityError::Io(path.to_owned(), error);
        let meta = fs::metadata(path).map_err(io)?;
        if meta.mode() & 0o077 != 0 {
            return Err(IdentityError::TooOpen(path.to_owned()));
        }
        if meta.len() > MAX_KEY_FILE {
            return Err(IdentityError::Malformed(path.to_owned(), "a size under 64 KiB"));
        }
        let text = Zeroizing::new(fs::read(path).map_err(io)?);
        Self::from_pem(&text).map_err(|what| IdentityError::Malformed(path.to_owned(), what))
    }

    /// Writes the key file, readable by its owner alone. Refuses to overwrite.
    pub fn save(&self, path: &Path) -> Result<(), IdentityError> {
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let mut file = made.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => IdentityError::Exists(path.to_owned()),
            _ => IdentityError::Io(path.to_owned(), error),
        })?;
        let text = self.to_pem();
        let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
        written.map_err(|error| IdentityError::Io(path.to_owned(), error))
    }

    fn to_pem(&self) -> Zeroizing<String> {
        let parts = [
            pem::Pem::new(TAG_KEY, self.tls_key.to_vec()),
            pem::Pem::new(TAG_CERTIFICATE, self.certificate.to_vec()),
            pem::Pem::new(TAG_SIGNING, self.signing_seed.to_vec()),
        ];
        let config = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);
        Zeroizing::new(pem::encode_many_config(&parts, config))
    }

    /// The error names the part that is missing or malformed.
    fn from_pem(text: &[u8]) -> Result<Self, &'static str> {
        let parts = pem::parse_many(text).map_err(|_| "a PEM section")?;
        let part = |tag: &'static str| {
            let found = parts.iter().find(|part| part.tag() == tag);
            found.map(|part| part.contents().to_vec()).ok_or(tag)
        };
        let seed: [u8; 32] = Zeroizing::new(part(TAG_SIGNING)?).as_slice().try_into().map_err(|_| TAG_SIGNING)?;
        let identity = Self {
            tls_key: Zeroizing::new(part(TAG_KEY)?),
            certificate: part(TAG_CERTIFICATE)?.into(),
            signing_seed: Zeroizing::new(seed),
        };
        rustls::crypto::aws_lc_rs::sign::any_supported_type(&identity.tls_key()).map_err(|_| TAG_KEY)?;
        webpki::EndEntityCert::try_from(&identity.certificate).map_err(|_| TAG_CERTIFICATE)?;
        Ok(identity)
    }

    /// The certificate, public.
    #[must_use]
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// The certificate's fingerprint, which others pin.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(&self.certificate)
    }

    /// The seed of the Ed25519 signing key, for the machine that signs.
    #[must_use]
    pub fn signing_seed(&self) -> &[u8; 32] {
        &self.signing_seed
    }

    pub(crate) fn tls_key(&self) -> PrivateKeyDer<'static> {
        PrivatePkcs8KeyDer::from(self.tls_key.to_vec()).into()
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({}, ..)", self.fingerprint())
    }
}

/// The date `secs` after 1970, no later than the last that X.509 can express.
fn date(secs: u64) -> time::OffsetDateTime {
    const LAST: i64 = 253_402_300_799; // 9999-12-31T23:59:59Z
    let secs = i64::try_from(secs).unwrap_or(LAST).min(LAST);
    time::OffsetDateTime::from_unix_timestamp(secs).unwrap_or(time::OffsetDateTime::UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A folder that goes with the test.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("wayleave-identity-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&folder);
            fs::create_dir_all(&folder).expect("a folder");
            Self(folder)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_key_file_comes_back_as_it_was_and_is_never_overwritten() {
        let scratch = Scratch::new("alpha");
        let path = scratch.0.join("alpha.key");
        let identity = Identity::generate("alpha", DEFAULT_VALIDITY).expect("keys");
        identity.save(&path).expect("written");
        let again = Identity::load(&path).expect("read");
        assert_eq!(again.fingerprint(), identity.fingerprint());
        assert_eq!(again.signing_seed(), identity.signing_seed());
        assert!(matches!(identity.save(&path), Err(IdentityError::Exists(_))));
    }

    #[test]
    fn a_key_file_that_others_can_read_is_refused_with_the_remedy() {
        let scratch = Scratch::new("open");
        let path = scratch.0.join("open.key");
        Identity::generate("open", DEFAULT_VALIDITY).expect("keys").save(&path).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("mode");
        let error = Identity::load(&path).expect_err("too open").to_string();
        assert!(error.contains("chmod 600"), "{error}");
    }

    #[test]
    fn a_file_without_a_part_is_named_with_the_part() {
        let scratch = Scratch::new("half");
        let path = scratch.0.join("half.key");
        let identity = Identity::generate("half", DEFAULT_VALIDITY).expect("keys");
        let text = identity.to_pem().replace(TAG_SIGNING, "SOMETHING ELSE");
        fs::write(&path, text).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("mode");
        let error = Identity::load(&path).expect_err("half").to_string();
        assert!(error.contains(TAG_SIGNING), "{error}");
    }

    #[test]
    fn debug_output_shows_no_key() {
        let identity = Identity::generate("alpha", DEFAULT_VALIDITY).expect("keys");
        let shown = format!("{identity:?}");
        assert!(shown.starts_with("Identity(sha256:") && shown.len() < 100, "{shown}");
    }

    #[test]
    fn a_fingerprint_reads_as_it_prints() {
        let fingerprint = Fingerprint([0xab; 32]);
        assert_eq!(fingerprint.to_string().parse(), Ok(fingerprint));
        assert!("sha256:ab".parse::<Fingerprint>().is_err());
        assert!("ab".repeat(32).parse::<Fingerprint>().is_err());
    }
}
