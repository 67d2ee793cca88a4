//! What both kinds of TLS have in common: one check of whoever is at the other end, whether it listens or connects.

use std::fmt;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, SignatureScheme};

/// Decides who may be at the other end of a link.
pub(crate) trait PeerCheck: fmt::Debug + Send + Sync {
    /// Whether peers show a raw public key (RFC 7250) and no certificate.
    const SHOWS_RAW_KEY: bool;

    /// Whether the peer that shows this may be there.
    fn verify(&self, shown: &CertificateDer<'_>, now: UnixTime) -> Result<(), rustls::Error>;

    /// Whether the peer holds the key of what it shows (RFC 8446 section 4.4.3).
    fn verify_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error>;

    fn schemes(&self) -> Vec<SignatureScheme>;
}

/// A check for either side of a handshake of TLS 1.3.
#[derive(Debug)]
pub(crate) struct Verifier<C>(pub(crate) C);

/// Never negotiated: only 1.3 is offered.
fn no_tls12() -> Result<HandshakeSignatureValid, rustls::Error> {
    Err(rustls::PeerIncompatible::Tls13RequiredForQuic.into())
}

impl<C: PeerCheck> ClientCertVerifier for Verifier<C> {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.0.verify(end_entity, now).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        C::SHOWS_RAW_KEY
    }
}

impl<C: PeerCheck> ServerCertVerifier for Verifier<C> {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.0.verify(end_entity, now).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        C::SHOWS_RAW_KEY
    }
}
