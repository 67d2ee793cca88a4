//! TLS between roles: version 1.3 only, both sides with a certificate, and no trust but in pinned certificates.
//!
//! A certificate is accepted exactly if its fingerprint is pinned for the role that a port serves, it is within its dates
//! and its holder signed the handshake. Sessions are never resumed, so that every connection is verified.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, OtherError, ServerConfig};
use rustls::{SignatureScheme, version};
use tokio::sync::watch;
use wayleave_core::IdentityKey;

use crate::clock::unix_now;
use crate::identity::{Fingerprint, Identity};
use crate::peer_check::{PeerCheck, Verifier};

/// What a pinned peer is. A port serves one role.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Role {
    /// A party of the route server; its id is 1 or 2.
    Party,
    /// A member of the exchange; its id is its slot.
    Member,
    /// Who was a member and was removed; its id is its former slot. No port serves it, and it is told so.
    Former,
    /// A node of a realm, named by its key. It is not pinned: see [`crate::node_tls`].
    Node(IdentityKey),
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Party => "party",
            Role::Member => "member",
            Role::Former => "former member, which was removed",
            Role::Node(_) => "node",
        })
    }
}

/// The owner of a pinned certificate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pin {
    pub name: String,
    pub role: Role,
    /// Party number or slot.
    pub id: u32,
}

/// The pinned certificates, shared by all ports that use them. Replacing the table acts at once: links whose certificate
/// is no longer in it are closed.
#[derive(Clone, Debug)]
pub struct Pins(Arc<watch::Sender<HashMap<Fingerprint, Pin>>>);

impl Pins {
    /// A table with these pins.
    pub fn new(pins: impl IntoIterator<Item = (Fingerprint, Pin)>) -> Self {
        Self(Arc::new(watch::Sender::new(pins.into_iter().collect())))
    }

    /// Replaces all pins.
    pub fn replace(&self, pins: impl IntoIterator<Item = (Fingerprint, Pin)>) {
        self.0.send_replace(pins.into_iter().collect());
    }

    /// The pin with this fingerprint.
    #[must_use]
    pub fn find(&self, fingerprint: &Fingerprint) -> Option<Pin> {
        self.0.borrow().get(fingerprint).cloned()
    }

    /// All pinned fingerprints, in no order.
    #[must_use]
    pub fn fingerprints(&self) -> Vec<Fingerprint> {
        self.0.borrow().keys().copied().collect()
    }

    /// The pin, if there is exactly one.
    #[must_use]
    pub fn only(&self) -> Option<Pin> {
        let pins = self.0.borrow();
        pins.values().next().filter(|_| pins.len() == 1).cloned()
    }

    pub(crate) fn changes(&self) -> watch::Receiver<HashMap<Fingerprint, Pin>> {
        self.0.subscribe()
    }
}

/// Why a certificate was refused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum RefusalReason {
    /// Its fingerprint is not pinned, or no longer.
    #[error("the certificate is not pinned here")]
    Unknown,
    /// It is pinned, but for another role than this port serves.
    #[error("the certificate belongs to a {0}, which this port does not serve")]
    WrongRole(Role),
    /// It is this process's own.
    #[error("the certificate is our own: the peer and this process use one key file")]
    Own,
    /// Its dates are over.
    #[error("the certificate has expired")]
    Expired,
    /// Its dates have not begun: more likely one of the clocks is wrong.
    #[error("the certificate is not valid yet (is a clock wrong?)")]
    NotYetValid,
    /// It is no certificate that we can use.
    #[error("the certificate is malformed or of an unsupported kind")]
    Malformed,
    /// Another node answers at the address.
    #[error("another node answers there: {0}; check the address and the key")]
    OtherNode(IdentityKey),
}

/// A refused certificate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{fingerprint}: {reason}")]
pub struct Refusal {
    pub fingerprint: Fingerprint,
    pub reason: RefusalReason,
}

/// Verifies the certificates of one port's peers: a table of pins and the role that the port serves.
#[derive(Clone, Debug)]
pub struct PinVerifier {
    pins: Pins,
    role: Role,
    own: Option<Fingerprint>,
    provider: Arc<CryptoProvider>,
    refused: Arc<AtomicU64>,
    /// The last removed peer that was refused: for the log, which the alert's error does not reach with a fingerprint.
    removed: Arc<Mutex<Option<Refusal>>>,
}

impl PinVerifier {
    /// Accepts pinned peers of `role`.
    #[must_use]
    pub fn new(pins: Pins, role: Role) -> Self {
        let provider = Arc::new(aws_lc_rs::default_provider());
        Self { pins, role, own: None, provider, refused: Arc::default(), removed: Arc::default() }
    }

    /// Refuses the certificate of `identity`, also if it is pinned: a key has one role.
    #[must_use]
    pub fn not_own(self, identity: &Identity) -> Self {
        Self { own: Some(identity.fingerprint()), ..self }
    }

    /// The pins in force.
    #[must_use]
    pub fn pins(&self) -> &Pins {
        &self.pins
    }

    /// How many certificates were refused since the start.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// The removed peer that a failed handshake refused, if that was the reason. Of two at one time the log may name one twice.
    pub(crate) fn removed_peer(&self, error: &io::Error) -> Option<Refusal> {
        let tls = error.get_ref()?.downcast_ref::<rustls::Error>()?;
        let is_removed = matches!(tls, rustls::Error::InvalidCertificate(CertificateError::Revoked));
        is_removed.then(|| *self.removed.lock().unwrap_or_else(PoisonError::into_inner)).flatten()
    }

    pub(crate) fn count_refusal(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// The pin of the certificate, if it is accepted at `now` (seconds since 1970).
    pub fn check(&self, certificate: &CertificateDer<'_>, now: u64) -> Result<Pin, Refusal> {
        let fingerprint = Fingerprint::of(certificate);
        let refusal = |reason| Refusal { fingerprint, reason };
        if self.own == Some(fingerprint) {
            return Err(refusal(RefusalReason::Own));
        }
        let pin = self.pins.find(&fingerprint).ok_or(refusal(RefusalReason::Unknown))?;
        if pin.role != self.role {
            return Err(refusal(RefusalReason::WrongRole(pin.role)));
        }
        self.check_dates(certificate, now).map_err(refusal)?;
        Ok(pin)
    }

    /// A pinned certificate is its own trust anchor; what is left to check is its form, its signature over itself and
    /// its dates.
    fn check_dates(&self, certificate: &CertificateDer<'_>, now: u64) -> Result<(), RefusalReason> {
        let anchors = [webpki::anchor_from_trusted_cert(certificate).map_err(|_| RefusalReason::Malformed)?];
        let end_entity = webpki::EndEntityCert::try_from(certificate).map_err(|_| RefusalReason::Malformed)?;
        let checked = end_entity.verify_for_usage(
            self.provider.signature_verification_algorithms.all,
            &anchors,
            &[],
            UnixTime::since_unix_epoch(std::time::Duration::from_secs(now)),
            webpki::KeyUsage::client_auth(),
            None,
            None,
        );
        match checked {
            Ok(_) => Ok(()),
            Err(webpki::Error::CertExpired { .. }) => Err(RefusalReason::Expired),
            Err(webpki::Error::CertNotValidYet { .. }) => Err(RefusalReason::NotYetValid),
            Err(_) => Err(RefusalReason::Malformed),
        }
    }
}

impl PeerCheck for PinVerifier {
    const SHOWS_RAW_KEY: bool = false;

    fn verify(&self, certificate: &CertificateDer<'_>, now: UnixTime) -> Result<(), rustls::Error> {
        self.check(certificate, now.as_secs()).map(drop).map_err(|refusal| {
            rustls::Error::InvalidCertificate(match refusal.reason {
                // The alert `certificate_revoked` (RFC 8446 section 6.2), by which the peer learns that it was removed.
                RefusalReason::WrongRole(Role::Former) => {
                    *self.removed.lock().unwrap_or_else(PoisonError::into_inner) = Some(refusal);
                    CertificateError::Revoked
                }
                _ => CertificateError::Other(OtherError(Arc::new(refusal))),
            })
        })
    }

    fn verify_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// The refusal inside a failed handshake, if a certificate was the reason.
#[must_use]
pub fn refusal_of(error: &io::Error) -> Option<Refusal> {
    let tls = error.get_ref()?.downcast_ref::<rustls::Error>()?;
    match tls {
        rustls::Error::InvalidCertificate(CertificateError::Other(other)) => other.0.downcast_ref().copied(),
        _ => None,
    }
}

/// The side that listens.
pub fn server_config(identity: &Identity, verifier: &PinVerifier) -> Result<Arc<ServerConfig>, rustls::Error> {
    let mut config = ServerConfig::builder_with_provider(Arc::clone(&verifier.provider))
        .with_protocol_versions(&[&version::TLS13])?
        .with_client_cert_verifier(Arc::new(Verifier(verifier.clone())))
        .with_single_cert(vec![identity.certificate().clone()], identity.tls_key())?;
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.max_early_data_size = 0;
    Ok(Arc::new(config))
}

/// The side that connects.
pub fn client_config(identity: &Identity, verifier: &PinVerifier) -> Result<Arc<ClientConfig>, rustls::Error> {
    let certificate = vec![identity.certificate().clone()];
    client(verifier, |builder| builder.with_client_auth_cert(certificate, identity.tls_key()))
}

/// The side that connects, to see the peer's certificate and no more: it shows none, and the peer ends the connection.
pub(crate) fn anonymous_config(verifier: &PinVerifier) -> Result<Arc<ClientConfig>, rustls::Error> {
    client(verifier, |builder| Ok(builder.with_no_client_auth()))
}

type ClientBuilder = rustls::ConfigBuilder<ClientConfig, rustls::client::WantsClientCert>;

fn client(
    verifier: &PinVerifier,
    identify: impl FnOnce(ClientBuilder) -> Result<ClientConfig, rustls::Error>,
) -> Result<Arc<ClientConfig>, rustls::Error> {
    let builder = ClientConfig::builder_with_provider(Arc::clone(&verifier.provider))
        .with_protocol_versions(&[&version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Verifier(verifier.clone())));
    let mut config = identify(builder)?;
    config.resumption = rustls::client::Resumption::disabled();
    config.enable_early_data = false;
    config.enable_sni = false;
    Ok(Arc::new(config))
}

/// What is wrong with the dates or the form of a certificate at `now` (seconds since 1970), whoever has pinned it.
#[must_use]
pub fn own_fault(identity: &Identity, now: u64) -> Option<RefusalReason> {
    PinVerifier::new(Pins::new([]), Role::Party).check_dates(identity.certificate(), now).err()
}

/// The current time in seconds since 1970, for [`PinVerifier::check`].
pub(crate) fn now_secs() -> u64 {
    unix_now().secs()
}

#[cfg(test)]
mod tests {
    //! OPS, one role for each key: a peer with our own certificate, or with one of another role: refused, also if it is
    //! pinned.

    use super::*;
    use crate::identity::DEFAULT_VALIDITY;
    use zeroize::Zeroizing;

    fn pin(role: Role) -> Pin {
        Pin { name: "alpha".into(), role, id: 1 }
    }

    #[test]
    fn a_pinned_certificate_of_the_role_passes_within_its_dates_only() {
        let identity = Identity::with_dates("alpha", 1_000, 2_000, Zeroizing::new([1; 32])).expect("keys");
        let verifier = PinVerifier::new(Pins::new([(identity.fingerprint(), pin(Role::Member))]), Role::Member);
        let check = |now| verifier.check(identity.certificate(), now).map_err(|refusal| refusal.reason);
        assert_eq!(check(999), Err(RefusalReason::NotYetValid));
        assert_eq!(check(1_500), Ok(pin(Role::Member)));
        assert_eq!(check(2_001), Err(RefusalReason::Expired));
    }

    #[test]
    fn a_peer_with_our_own_certificate_is_refused_also_if_it_is_pinned() {
        let own = Identity::generate("alpha", DEFAULT_VALIDITY).expect("keys");
        let pins = Pins::new([(own.fingerprint(), pin(Role::Member))]);
        let verifier = PinVerifier::new(pins, Role::Member).not_own(&own);
        let reason = verifier.check(own.certificate(), now_secs()).map_err(|refusal| refusal.reason);
        assert_eq!(reason, Err(RefusalReason::Own));
    }

    #[test]
    fn an_unknown_a_revoked_and_a_wrong_role_certificate_are_refused() {
        let identity = Identity::generate("alpha", DEFAULT_VALIDITY).expect("keys");
        let pins = Pins::new([]);
        let verifier = PinVerifier::new(pins.clone(), Role::Member);
        let check = || verifier.check(identity.certificate(), now_secs()).map_err(|refusal| refusal.reason);
        assert_eq!(check(), Err(RefusalReason::Unknown));
        pins.replace([(identity.fingerprint(), pin(Role::Member))]);
        assert_eq!(check(), Ok(pin(Role::Member)));
        pins.replace([(identity.fingerprint(), pin(Role::Party))]);
        assert_eq!(check(), Err(RefusalReason::WrongRole(Role::Party)));
        pins.replace([]);
        assert_eq!(check(), Err(RefusalReason::Unknown));
    }
}
