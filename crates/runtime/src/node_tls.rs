//! TLS between the nodes of a realm: version 1.3 only, and each side proves an Ed25519 key, which is the node's identity, by a raw
//! public key (RFC 7250). There is no certificate, and so no date and no name that could be wrong.
//!
//! What TLS has the key sign begins with 64 spaces and a context of its own (RFC 8446 section 4.4.3); what the control plane has
//! it sign is always a hash of 32 octets ([`wayleave_core::IdentityKey`]'s objects). Neither can be taken for the other.
//!
//! Who may do what is not decided here: a listening side accepts every node, and the machine behind it asks whether it is a
//! member. A connecting side accepts the node that it meant.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustls::client::AlwaysResolvesClientRawPublicKeys;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, OtherError, ServerConfig};
use rustls::{SignatureScheme, version};
use wayleave_core::IdentityKey;
use zeroize::Zeroizing;

use crate::identity::Fingerprint;
use crate::peer_check::{PeerCheck, Verifier};
use crate::tls::{Pin, Refusal, RefusalReason, Role};

/// In front of an Ed25519 key in a SubjectPublicKeyInfo (RFC 8410 section 4).
const SPKI: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
/// In front of an Ed25519 seed in PKCS #8 (RFC 8410 section 7).
const PKCS8: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];

/// What a node proves itself by.
#[derive(Clone)]
pub struct NodeIdentity {
    key: Arc<CertifiedKey>,
    identity: IdentityKey,
}

impl fmt::Debug for NodeIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeIdentity({}, ..)", self.identity)
    }
}

impl NodeIdentity {
    /// From the seed of the node's Ed25519 key.
    ///
    /// # Errors
    /// If the library takes no such key.
    pub fn from_seed(seed: &[u8; 32]) -> Result<Self, rustls::Error> {
        let mut der = Zeroizing::new(PKCS8.to_vec());
        der.extend_from_slice(seed);
        let key = aws_lc_rs::sign::any_eddsa_type(&PrivatePkcs8KeyDer::from(der.as_slice()))?;
        let public = key.public_key().ok_or_else(|| rustls::Error::General("the key has no public half".to_owned()))?;
        let identity = of_spki(&public).ok_or_else(|| rustls::Error::General("not an Ed25519 key".to_owned()))?;
        let shown = CertificateDer::from(public.to_vec());
        Ok(Self { key: Arc::new(CertifiedKey::new(vec![shown], key)), identity })
    }

    /// The public key, which names the node.
    #[must_use]
    pub fn identity(&self) -> IdentityKey {
        self.identity
    }
}

/// The Ed25519 key in a SubjectPublicKeyInfo, in its one encoding.
fn of_spki(octets: &[u8]) -> Option<IdentityKey> {
    let key = octets.strip_prefix(&SPKI)?;
    Some(IdentityKey(key.try_into().ok()?))
}

/// Verifies the nodes at the other end of one port's links.
#[derive(Clone, Debug)]
pub struct NodeVerifier {
    /// The node that is meant; a listener takes any.
    expected: Option<IdentityKey>,
    own: IdentityKey,
    provider: Arc<CryptoProvider>,
    refused: Arc<AtomicU64>,
}

fn pin(node: IdentityKey) -> Pin {
    Pin { name: format!("node {node}"), role: Role::Node(node), id: 0 }
}

impl NodeVerifier {
    pub(crate) fn new(own: &NodeIdentity, expected: Option<IdentityKey>) -> Self {
        let provider = Arc::new(aws_lc_rs::default_provider());
        Self { expected, own: own.identity, provider, refused: Arc::default() }
    }

    /// The node that is meant, if it is one.
    pub(crate) fn expected(&self) -> Option<Pin> {
        self.expected.map(pin)
    }

    pub(crate) fn count_refusal(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Who it is, if it may be at the other end.
    pub(crate) fn check(&self, shown: &CertificateDer<'_>) -> Result<Pin, Refusal> {
        let refusal = |reason| Refusal { fingerprint: Fingerprint::of(shown), reason };
        let node = of_spki(shown).ok_or(refusal(RefusalReason::Malformed))?;
        if node == self.own {
            return Err(refusal(RefusalReason::Own));
        }
        if self.expected.is_some_and(|expected| expected != node) {
            return Err(refusal(RefusalReason::OtherNode(node)));
        }
        Ok(pin(node))
    }
}

impl PeerCheck for NodeVerifier {
    const SHOWS_RAW_KEY: bool = true;

    fn verify(&self, shown: &CertificateDer<'_>, _now: UnixTime) -> Result<(), rustls::Error> {
        self.check(shown).map(drop).map_err(|refusal| {
            rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(refusal))))
        })
    }

    fn verify_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let key = SubjectPublicKeyInfoDer::from(shown.as_ref());
        verify_tls13_signature_with_raw_key(message, &key, signature, &self.provider.signature_verification_algorithms)
    }

    fn schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }
}

/// The side that listens.
pub(crate) fn server_config(
    own: &NodeIdentity,
    verifier: &NodeVerifier,
    protocols: &[&str],
) -> Result<Arc<ServerConfig>, rustls::Error> {
    let mut config = ServerConfig::builder_with_provider(Arc::clone(&verifier.provider))
        .with_protocol_versions(&[&version::TLS13])?
        .with_client_cert_verifier(Arc::new(Verifier(verifier.clone())))
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(Arc::clone(&own.key))));
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.max_early_data_size = 0;
    config.alpn_protocols = octets(protocols);
    Ok(Arc::new(config))
}

/// Names of protocols as TLS has them.
fn octets(protocols: &[&str]) -> Vec<Vec<u8>> {
    protocols.iter().map(|name| name.as_bytes().to_vec()).collect()
}

/// The side that connects.
pub(crate) fn client_config(
    own: &NodeIdentity,
    verifier: &NodeVerifier,
    protocols: &[&str],
) -> Result<Arc<ClientConfig>, rustls::Error> {
    let mut config = ClientConfig::builder_with_provider(Arc::clone(&verifier.provider))
        .with_protocol_versions(&[&version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Verifier(verifier.clone())))
        .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(Arc::clone(&own.key))));
    config.resumption = rustls::client::Resumption::disabled();
    config.enable_early_data = false;
    config.enable_sni = false;
    config.alpn_protocols = octets(protocols);
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_identity_that_signs_and_no_other_encoding_is_one() {
        let node = NodeIdentity::from_seed(&[7; 32]).expect("a key");
        // The public key of RFC 8032's algorithm for this seed, as the control plane computes it too.
        let spki: Vec<u8> = SPKI.iter().chain(&node.identity().0).copied().collect();
        assert_eq!(of_spki(&spki), Some(node.identity()));
        assert_eq!(of_spki(&spki[1..]), None);
        assert_eq!(of_spki(&[&spki[..], &[0]].concat()), None);
        assert!(!format!("{node:?}").contains(&"07".repeat(8)));
    }

    #[test]
    fn the_own_key_and_another_than_the_expected_node_are_refused() {
        let [one, two, three] = [1, 2, 3].map(|octet| NodeIdentity::from_seed(&[octet; 32]).expect("a key"));
        let shown = |node: &NodeIdentity| node.key.cert[0].clone();
        let any = NodeVerifier::new(&one, None);
        assert_eq!(any.check(&shown(&two)).expect("accepted").role, Role::Node(two.identity()));
        assert_eq!(any.check(&shown(&one)).map_err(|refusal| refusal.reason), Err(RefusalReason::Own));
        let meant = NodeVerifier::new(&one, Some(two.identity()));
        assert!(meant.check(&shown(&two)).is_ok());
        let other = meant.check(&shown(&three)).map_err(|refusal| refusal.reason);
        assert_eq!(other, Err(RefusalReason::OtherNode(three.identity())));
    }
}
