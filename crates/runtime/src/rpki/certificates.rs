//! Router certificates (RFC 8209) from files: each is checked against its chain up to a trust anchor, its dates, and its
//! issuer's revocation list.
//!
//! A network with a relying party takes router keys from its cache instead ([`super::rtr`]), which also checks
//! manifests.

use std::collections::HashMap;
use std::time::{Duration, UNIX_EPOCH};

use rpki::crypto::KeyIdentifier;
use rpki::repository::cert::{Cert, ResourceCert};
use rpki::repository::crl::Crl;
use rpki::repository::tal::TalInfo;
use rpki::repository::x509::Time;
use wayleave_core::{Asn, UnixTime};

use super::RouterKey;

/// Octets of a certificate or list, at most: our own limit.
const MAX_LEN: usize = 16 << 20;
/// ASes that one router certificate may name: our own limit.
const MAX_ASES: u32 = 1_024;
/// Authorities between a trust anchor and a router: our own limit.
const MAX_LEVELS: usize = 32;
/// Certificates of authorities: our own limit.
const MAX_AUTHORITIES: usize = 100_000;

/// Why a certificate or list was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    /// Above one of our limits.
    #[error("above the limit: {0}")]
    TooMuch(&'static str),
    #[error("malformed: {0}")]
    Malformed(String),
    /// No accepted authority has issued it.
    #[error("its issuer is not among the accepted authorities")]
    UnknownIssuer,
    /// It breaks a rule, is out of its dates, claims what its issuer does not have, or its signature is wrong.
    #[error("not valid: {0}")]
    Invalid(String),
    /// There is no accepted revocation list of the issuer.
    #[error("its issuer's revocation list is missing")]
    NoRevocationList,
    /// Its own time, or that of its issuer's revocation list, has not begun.
    #[error("not valid before {}", utc_of(.from))]
    NotYet {
        /// Seconds since 1970.
        from: u64,
    },
    /// The issuer's revocation list is out of date.
    #[error("its issuer's revocation list is out of date")]
    StaleRevocationList,
    #[error("revoked by its issuer")]
    Revoked,
}

fn utc_of(secs: &u64) -> String {
    crate::clock::utc(*secs)
}

/// A router key from a certificate, and its validity.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CertifiedKey {
    pub key: RouterKey,
    /// Seconds since 1970 from which the certificate is valid.
    pub not_before: u64,
    /// Seconds since 1970 until which it, every certificate above it and their issuers' revocation lists are valid.
    pub not_after: u64,
}

/// A file: its name for error messages, and its contents.
pub type File = (String, Vec<u8>);

/// The router keys of a folder's certificates: `anchors` are certificates of trust anchors, which the caller
/// trusts, `certificates` those of authorities and routers in any order, `lists` revocation lists. Returns the keys, and
/// each refused file with the reason.
#[must_use]
pub fn import(
    anchors: &[File],
    certificates: &[File],
    lists: &[File],
    now: UnixTime,
) -> (Vec<CertifiedKey>, Vec<(String, CertificateError)>) {
    let mut authorities = Authorities::new();
    let mut refused: Vec<(String, CertificateError)> = Vec::new();
    for (name, der) in anchors {
        refused.extend(authorities.add_trust_anchor(name, der, now).err().map(|error| (name.clone(), error)));
    }
    let mut waiting: Vec<(&File, CertificateError)> = Vec::new();
    let (mut routers, mut pending) = (Vec::new(), Vec::new());
    for file in certificates {
        match decode(&file.1) {
            Ok(certificate) if certificate.is_ca() => pending.push(file),
            Ok(_) => routers.push(file),
            Err(error) => refused.push((file.0.clone(), error)),
        }
    }
    let mut pending_lists: Vec<&File> = lists.iter().collect();
    // One level of the hierarchy at a time: a certificate is accepted only after its issuer.
    for _ in 0..MAX_LEVELS {
        let before = pending.len() + pending_lists.len();
        pending_lists.retain(|(name, der)| match authorities.add_revocation_list(der) {
            Err(CertificateError::UnknownIssuer) => true,
            done => {
                refused.extend(done.err().map(|error| (name.clone(), error)));
                false
            }
        });
        waiting.clear();
        pending.retain(|file| match authorities.add_authority(&file.1, now) {
            Err(error @ (CertificateError::UnknownIssuer | CertificateError::NoRevocationList)) => {
                waiting.push((file, error));
                true
            }
            done => {
                refused.extend(done.err().map(|error| (file.0.clone(), error)));
                false
            }
        });
        if pending.len() + pending_lists.len() == before {
            break;
        }
    }
    refused.extend(waiting.into_iter().map(|((name, _), error)| (name.clone(), error)));
    refused.extend(pending_lists.into_iter().map(|(name, _)| (name.clone(), CertificateError::UnknownIssuer)));
    let mut keys = Vec::new();
    for (name, der) in routers {
        match authorities.imported(der, now) {
            Ok(more) => keys.extend(more),
            Err(error) => refused.push((name.clone(), error)),
        }
    }
    (keys, refused)
}

/// The accepted authorities, whose router certificates are valid.
#[derive(Default)]
pub struct Authorities {
    certificates: HashMap<KeyIdentifier, Authority>,
    revocation_lists: HashMap<KeyIdentifier, Crl>,
}

struct Authority {
    certificate: ResourceCert,
    /// Until when it and all above it are valid, in seconds since 1970.
    until: u64,
}

impl Authorities {
    /// Without authorities.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a trust anchor's own certificate, which the caller trusts.
    pub fn add_trust_anchor(&mut self, name: &str, der: &[u8], now: UnixTime) -> Result<(), CertificateError> {
        let info = TalInfo::from_name(name.to_owned()).into_arc();
        let certificate = decode(der)?;
        has_begun(certificate.validity().not_before(), now)?;
        let certificate = certificate.validate_ta_at(info, false, time(now)).map_err(invalid)?;
        self.add(certificate, u64::MAX)
    }

    /// Adds the certificate of an authority that an accepted one has issued and not revoked.
    pub fn add_authority(&mut self, der: &[u8], now: UnixTime) -> Result<(), CertificateError> {
        let certificate = decode(der)?;
        let (issuer, until) = self.issuer(&certificate, now)?;
        has_begun(certificate.validity().not_before(), now)?;
        let certificate = certificate.validate_ca_at(&issuer.certificate, false, time(now)).map_err(invalid)?;
        self.add(certificate, until)
    }

    /// Adds the revocation list of an authority; a later one replaces an earlier one, never the reverse.
    pub fn add_revocation_list(&mut self, der: &[u8]) -> Result<(), CertificateError> {
        check_len(der)?;
        let list = Crl::decode(der).map_err(malformed)?;
        let identifier = *list.authority_key_identifier();
        let issuer = self.certificates.get(&identifier).ok_or(CertificateError::UnknownIssuer)?;
        list.verify_signature(issuer.certificate.as_cert().subject_public_key_info()).map_err(invalid)?;
        let is_older = |held: &Crl| list.this_update() < held.this_update();
        if !self.revocation_lists.get(&identifier).is_some_and(is_older) {
            self.revocation_lists.insert(identifier, list);
        }
        Ok(())
    }

    /// The keys of a router certificate: one for each AS that it names.
    pub fn router_keys(&self, der: &[u8], now: UnixTime) -> Result<Vec<RouterKey>, CertificateError> {
        self.imported(der, now).map(|keys| keys.into_iter().map(|imported| imported.key).collect())
    }

    fn imported(&self, der: &[u8], now: UnixTime) -> Result<Vec<CertifiedKey>, CertificateError> {
        let certificate = decode(der)?;
        let (issuer, until) = self.issuer(&certificate, now)?;
        has_begun(certificate.validity().not_before(), now)?;
        certificate.validate_router_at(&issuer.certificate, false, time(now)).map_err(invalid)?;
        let blocks = certificate.as_resources().to_blocks().map_err(invalid)?;
        if blocks.asn_count() > MAX_ASES {
            return Err(CertificateError::TooMuch("ASes of one certificate"));
        }
        let public = certificate.subject_public_key_info();
        let ski = public.key_identifier();
        let ski = ski.as_slice().try_into().map_err(|_| CertificateError::Invalid("the key identifier".to_owned()))?;
        let info = public.to_info_bytes().to_vec();
        let validity = certificate.validity();
        let (not_before, not_after) = (secs(validity.not_before()), secs(validity.not_after()).min(until));
        let key = |asn: rpki::resources::Asn| RouterKey { asn: Asn(asn.into_u32()), ski, info: info.clone() };
        Ok(blocks.iter_asns().map(|asn| CertifiedKey { key: key(asn), not_before, not_after }).collect())
    }

    fn add(&mut self, certificate: ResourceCert, until: u64) -> Result<(), CertificateError> {
        if self.certificates.len() >= MAX_AUTHORITIES {
            return Err(CertificateError::TooMuch("authorities"));
        }
        let until = until.min(secs(certificate.as_cert().validity().not_after()));
        let identifier = certificate.as_cert().subject_key_identifier();
        self.certificates.insert(identifier, Authority { certificate, until });
        Ok(())
    }

    /// The issuer of `certificate`, if it has not revoked it, and until when the issuer is valid.
    fn issuer(&self, certificate: &Cert, now: UnixTime) -> Result<(&Authority, u64), CertificateError> {
        let identifier = certificate.authority_key_identifier().ok_or(CertificateError::UnknownIssuer)?;
        let issuer = self.certificates.get(&identifier).ok_or(CertificateError::UnknownIssuer)?;
        issuer.certificate.as_cert().verify_validity(time(now)).map_err(invalid)?;
        let list = self.revocation_lists.get(&identifier).ok_or(CertificateError::NoRevocationList)?;
        has_begun(list.this_update(), now)?;
        if list.next_update() < time(now) {
            return Err(CertificateError::StaleRevocationList);
        }
        if list.contains(certificate.serial_number()) {
            return Err(CertificateError::Revoked);
        }
        Ok((issuer, issuer.until.min(secs(list.next_update()))))
    }
}

fn has_begun(from: Time, now: UnixTime) -> Result<(), CertificateError> {
    let from = secs(from);
    if from > now.secs() { Err(CertificateError::NotYet { from }) } else { Ok(()) }
}

fn decode(der: &[u8]) -> Result<Cert, CertificateError> {
    check_len(der)?;
    Cert::decode(der).map_err(malformed)
}

fn check_len(der: &[u8]) -> Result<(), CertificateError> {
    if der.len() > MAX_LEN { Err(CertificateError::TooMuch("octets")) } else { Ok(()) }
}

fn time(now: UnixTime) -> Time {
    Time::from(UNIX_EPOCH + Duration::from_secs(now.secs()))
}

/// Seconds since 1970.
fn secs(time: Time) -> u64 {
    u64::try_from(time.timestamp()).unwrap_or(0)
}

fn malformed(error: impl std::fmt::Display) -> CertificateError {
    CertificateError::Malformed(error.to_string())
}

fn invalid(error: impl std::fmt::Display) -> CertificateError {
    CertificateError::Invalid(error.to_string())
}
