//! TLS of an API: version 1.3 only; the server shows a certificate, the client shows none and pins the server's public key.
//!
//! The pin is SHA-256 of the certificate's SubjectPublicKeyInfo (as in RFC 7469 section 2.4), so that a certificate that is
//! renewed with the same key keeps it. Names, dates and issuers are not looked at: whoever holds the pinned key is the server.
//! A server may show a chain of the operator's own, for clients that verify it in the ordinary way.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::str::FromStr;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls13_signature};
use rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs1KeyDer, PrivatePkcs8KeyDer, PrivateSec1KeyDer, UnixTime,
};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, OtherError, ServerConfig, SignatureScheme, version,
};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use crate::identity::{Identity, from_hex, to_hex};
use crate::peer_check::{PeerCheck, Verifier};

/// Octets of a file of certificates or of a key, at most.
const MAX_FILE: u64 = 256 * 1024;
/// How every pin begins.
const PREFIX: &str = "spki:sha256:";

/// SHA-256 of a server's SubjectPublicKeyInfo; in text `spki:sha256:` and 64 lowercase hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyPin(pub [u8; 32]);

impl KeyPin {
    /// The pin of a certificate; `None` if it is none.
    #[must_use]
    pub fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let certificate = webpki::EndEntityCert::try_from(certificate).ok()?;
        Some(Self(Sha256::digest(certificate.subject_public_key_info().as_ref()).into()))
    }
}

impl fmt::Display for KeyPin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", to_hex(&self.0))
    }
}

impl fmt::Debug for KeyPin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is no pin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected the pin of a server's key: `spki:sha256:` and 64 hexadecimal digits")]
pub struct BadKeyPin;

impl FromStr for KeyPin {
    type Err = BadKeyPin;

    fn from_str(text: &str) -> Result<Self, BadKeyPin> {
        text.strip_prefix(PREFIX).and_then(from_hex).map(Self).ok_or(BadKeyPin)
    }
}

/// Why a server has nothing to show.
#[derive(Debug, thiserror::Error)]
pub enum ApiKeyError {
    #[error("{0}: {1}")]
    Io(String, std::io::Error),
    #[error("{0} can be read by others than its owner; run: chmod 600 {0}")]
    TooOpen(String),
    #[error("{0} has no certificate in PEM (BEGIN CERTIFICATE)")]
    NoCertificate(String),
    #[error("{0} has no private key in PEM (PKCS #8, SEC 1 or PKCS #1)")]
    NoKey(String),
    #[error("the first certificate of {0} is malformed")]
    Certificate(String),
    #[error("the key in {key} is not that of the first certificate in {chain}")]
    Mismatch { chain: String, key: String },
    #[error("the key in {0} is of a kind that TLS does not use here")]
    Unsupported(String),
}

/// What the server of an API shows, with its private key.
#[derive(Clone)]
pub struct ApiKey {
    key: Arc<CertifiedKey>,
    pin: KeyPin,
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ApiKey({}, ..)", self.pin)
    }
}

impl ApiKey {
    /// The certificate of a key file that `wayleave keys new` made.
    ///
    /// # Errors
    /// If the library takes no such key.
    pub fn of_identity(identity: &Identity) -> Result<Self, ApiKeyError> {
        let name = || "the key file".to_owned();
        let chain = vec![identity.certificate().clone()];
        Self::new(chain, &identity.tls_key(), name(), name())
    }

    /// A chain of the operator's own and its private key, both in PEM. Only its owner may be able to read the key.
    ///
    /// # Errors
    /// What is wrong with the files.
    pub fn load(chain: &Path, key: &Path) -> Result<Self, ApiKeyError> {
        let (chain_name, key_name) = (chain.display().to_string(), key.display().to_string());
        let parts = read(chain, &chain_name)?;
        let parts = pem::parse_many(&*parts).unwrap_or_default();
        let certificates: Vec<CertificateDer<'static>> = parts
            .iter()
            .filter(|part| part.tag() == "CERTIFICATE")
            .map(|part| part.contents().to_vec().into())
            .collect();
        if certificates.is_empty() {
            return Err(ApiKeyError::NoCertificate(chain_name));
        }
        let mode = fs::metadata(key).map_err(|error| ApiKeyError::Io(key_name.clone(), error))?.mode();
        if mode & 0o077 != 0 {
            return Err(ApiKeyError::TooOpen(key_name));
        }
        let text = read(key, &key_name)?;
        let private = private_key(&text).ok_or_else(|| ApiKeyError::NoKey(key_name.clone()))?;
        Self::new(certificates, &private, chain_name, key_name)
    }

    fn new(
        chain: Vec<CertificateDer<'static>>,
        private: &PrivateKeyDer<'static>,
        chain_name: String,
        key_name: String,
    ) -> Result<Self, ApiKeyError> {
        let signing = aws_lc_rs::sign::any_supported_type(private);
        let signing = signing.map_err(|_| ApiKeyError::Unsupported(key_name.clone()))?;
        let pin = chain.first().and_then(KeyPin::of);
        let pin = pin.ok_or_else(|| ApiKeyError::Certificate(chain_name.clone()))?;
        let key = CertifiedKey::new(chain, signing);
        match key.keys_match() {
            Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => {}
            Err(_) => return Err(ApiKeyError::Mismatch { chain: chain_name, key: key_name }),
        }
        Ok(Self { key: Arc::new(key), pin })
    }

    /// What clients pin.
    #[must_use]
    pub fn pin(&self) -> KeyPin {
        self.pin
    }
}

/// What a running server shows: another certificate can take its place, for connections that begin afterwards.
#[derive(Debug)]
pub struct ShownKey(RwLock<ApiKey>);

impl ShownKey {
    #[must_use]
    pub fn new(key: ApiKey) -> Arc<Self> {
        Arc::new(Self(RwLock::new(key)))
    }

    /// Shows another certificate from now on.
    pub fn replace(&self, key: ApiKey) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = key;
    }

    /// What clients pin now.
    #[must_use]
    pub fn pin(&self) -> KeyPin {
        self.0.read().unwrap_or_else(PoisonError::into_inner).pin
    }

    /// The side that listens.
    ///
    /// # Errors
    /// If the library refuses its own configuration.
    pub fn server_config(self: &Arc<Self>) -> Result<Arc<ServerConfig>, rustls::Error> {
        let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_protocol_versions(&[&version::TLS13])?
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(self) as Arc<dyn ResolvesServerCert>);
        config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config.max_early_data_size = 0;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

impl ResolvesServerCert for ShownKey {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner).key))
    }
}

fn read(path: &Path, name: &str) -> Result<Zeroizing<Vec<u8>>, ApiKeyError> {
    let io = |error| ApiKeyError::Io(name.to_owned(), error);
    if fs::metadata(path).map_err(io)?.len() > MAX_FILE {
        return Err(io(std::io::Error::new(std::io::ErrorKind::FileTooLarge, "longer than 256 KiB")));
    }
    Ok(Zeroizing::new(fs::read(path).map_err(io)?))
}

fn private_key(text: &[u8]) -> Option<PrivateKeyDer<'static>> {
    pem::parse_many(text).ok()?.iter().find_map(|part| {
        let octets = part.contents().to_vec();
        match part.tag() {
            "PRIVATE KEY" => Some(PrivatePkcs8KeyDer::from(octets).into()),
            "EC PRIVATE KEY" => Some(PrivateSec1KeyDer::from(octets).into()),
            "RSA PRIVATE KEY" => Some(PrivatePkcs1KeyDer::from(octets).into()),
            _ => None,
        }
    })
}

/// Another server answers than the one that was pinned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("another server answers there: its key is {got}, and the pin is {pinned}")]
pub struct OtherServer {
    pub pinned: KeyPin,
    pub got: KeyPin,
}

/// Accepts the holder of one key.
#[derive(Debug)]
struct Pinned {
    pin: KeyPin,
    provider: Arc<CryptoProvider>,
}

impl PeerCheck for Pinned {
    const SHOWS_RAW_KEY: bool = false;

    fn verify(&self, shown: &CertificateDer<'_>, _now: UnixTime) -> Result<(), rustls::Error> {
        let got = KeyPin::of(shown).ok_or(CertificateError::BadEncoding)?;
        if got == self.pin {
            return Ok(());
        }
        let other = OtherServer { pinned: self.pin, got };
        Err(rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(other)))))
    }

    fn verify_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, shown, signature, &self.provider.signature_verification_algorithms)
    }

    fn schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// The side that connects, to the holder of the pinned key alone.
///
/// # Errors
/// If the library refuses its own configuration.
pub fn client_config(pin: KeyPin) -> Result<Arc<ClientConfig>, rustls::Error> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Verifier(Pinned { pin, provider })))
        .with_no_client_auth();
    config.resumption = rustls::client::Resumption::disabled();
    config.enable_early_data = false;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// The wrong server behind a failed handshake, if that was the reason.
#[must_use]
pub fn other_server(error: &std::io::Error) -> Option<OtherServer> {
    match error.get_ref()?.downcast_ref::<rustls::Error>()? {
        rustls::Error::InvalidCertificate(CertificateError::Other(other)) => other.0.downcast_ref().copied(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::DEFAULT_VALIDITY;

    #[test]
    fn a_pin_is_that_of_the_key_and_has_one_text() {
        let identity = Identity::generate("keys.example.net", DEFAULT_VALIDITY).expect("keys");
        let key = ApiKey::of_identity(&identity).expect("a key");
        assert_eq!(KeyPin::of(identity.certificate()), Some(key.pin()));
        assert_ne!(key.pin().0, identity.fingerprint().0, "of the key, not of the certificate");
        assert_eq!(key.pin().to_string().parse::<KeyPin>().ok(), Some(key.pin()));
        assert!("spki:sha256:00".parse::<KeyPin>().is_err());
        assert!(format!("sha256:{}", "00".repeat(32)).parse::<KeyPin>().is_err(), "a certificate's fingerprint");
        assert!(!format!("{key:?}").contains("PRIVATE"));
    }

    #[test]
    fn another_key_takes_the_place_of_one_that_is_shown() {
        let key = || ApiKey::of_identity(&Identity::generate("a", DEFAULT_VALIDITY).expect("keys")).expect("a key");
        let (first, second) = (key(), key());
        let shown = ShownKey::new(first.clone());
        assert_eq!(shown.pin(), first.pin());
        shown.replace(second.clone());
        assert_eq!(shown.pin(), second.pin());
    }
}
