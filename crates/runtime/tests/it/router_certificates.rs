//! Router certificates of RFC 8209 under a trust anchor and an authority made for the test.
//!
//! KCX-18: a certificate or list whose time begins later, rules that a certificate breaks: refused with the date or the
//! reason.

use std::time::{Duration, UNIX_EPOCH};

use rpki::crypto::signer::Signer;
use rpki::crypto::softsigner::{KeyId, SoftSigner};
use rpki::crypto::{PublicKey as SubjectKey, PublicKeyFormat};
use rpki::repository::cert::{ExtendedKeyUsage, KeyUsage, Overclaim, TbsCert};
use rpki::repository::crl::{CrlEntry, TbsCertList};
use rpki::repository::resources::{Asn as RpkiAsn, Prefix as RpkiPrefix};
use rpki::repository::x509::{Time, Validity};
use rpki::uri::Rsync;
use wayleave_core::{Asn, UnixTime};
use wayleave_runtime::rpki::PublicKey;
use wayleave_runtime::rpki::certificates::{Authorities, CertificateError, import};

const NOW: u64 = 1_700_000_000;
const DAY: u64 = 86_400;

fn at(secs: u64) -> UnixTime {
    UnixTime(secs * 1_000_000)
}

fn time(secs: u64) -> Time {
    Time::from(UNIX_EPOCH + Duration::from_secs(secs))
}

fn rsync(text: &str) -> Rsync {
    text.parse().expect("a URI")
}

/// The public key of AS 65536 in RFC 8208 appendix A, as SubjectPublicKeyInfo.
fn router_key() -> (SubjectKey, [u8; 65]) {
    let hex = "3059301306072a8648ce3d020106082a8648ce3d0301070342000428FC5FE9AFCF5F4CAB3F5F85CB212FC1E9D0E0DBEAEE425BD2F0\
               D3175AA0E989EA9B603E38F35FB329DF495641F2BA040F1C3AC6138307F257CBA6B8B588F41F";
    let info: Vec<u8> =
        (0..hex.len() / 2).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).expect("hex")).collect();
    (SubjectKey::decode(info.as_slice()).expect("a key"), info[26..].try_into().expect("65 octets"))
}

/// A trust anchor for all ASes, and an authority below it for 64496 to 64511.
struct TestRpki {
    signer: SoftSigner,
    anchor: KeyId,
    authority: KeyId,
}

impl TestRpki {
    fn new() -> Self {
        let signer = SoftSigner::new();
        let [anchor, authority] = [(); 2].map(|()| signer.create_key(PublicKeyFormat::Rsa).expect("a key"));
        Self { signer, anchor, authority }
    }

    fn public(&self, key: &KeyId) -> SubjectKey {
        self.signer.get_key_info(key).expect("a key of ours")
    }

    fn authority_certificate(&self, key: &KeyId, issuer: &KeyId, serial: u64, ases: (u32, u32)) -> Vec<u8> {
        let (public, issuing) = (self.public(key), self.public(issuer));
        let validity = Validity::new(time(NOW - DAY), time(NOW + DAY));
        let name = issuing.to_subject_name();
        let mut certificate =
            TbsCert::new(serial.into(), name, validity, None, public, KeyUsage::Ca, Overclaim::Refuse);
        certificate.set_basic_ca(Some(true));
        certificate.set_ca_repository(Some(rsync("rsync://example.net/repo/ca/")));
        certificate.set_rpki_manifest(Some(rsync("rsync://example.net/repo/ca/ca.mft")));
        if !std::ptr::eq(key, issuer) {
            certificate.set_authority_key_identifier(Some(issuing.key_identifier()));
            certificate.set_ca_issuer(Some(rsync("rsync://example.net/repo/ta.cer")));
            certificate.set_crl_uri(Some(rsync("rsync://example.net/repo/ta.crl")));
        }
        certificate.build_v4_resource_blocks(|blocks| blocks.push(RpkiPrefix::new(0, 0)));
        certificate
            .build_as_resource_blocks(|blocks| blocks.push((RpkiAsn::from_u32(ases.0), RpkiAsn::from_u32(ases.1))));
        certificate.into_cert(&self.signer, issuer).expect("signed").to_captured().into_bytes().to_vec()
    }

    /// With what the test changes in it.
    fn router_certificate(&self, serial: u64, change: impl FnOnce(&mut TbsCert)) -> Vec<u8> {
        let issuing = self.public(&self.authority);
        let validity = Validity::new(time(NOW - DAY), time(NOW + DAY));
        let (key, _) = router_key();
        let name = issuing.to_subject_name();
        let mut certificate = TbsCert::new(serial.into(), name, validity, None, key, KeyUsage::Ee, Overclaim::Refuse);
        certificate.set_authority_key_identifier(Some(issuing.key_identifier()));
        certificate.set_ca_issuer(Some(rsync("rsync://example.net/repo/ca.cer")));
        certificate.set_crl_uri(Some(rsync("rsync://example.net/repo/ca/ca.crl")));
        certificate.set_extended_key_usage(Some(ExtendedKeyUsage::create_router()));
        certificate.build_as_resource_blocks(|blocks| {
            blocks.push(RpkiAsn::from_u32(64_496));
            blocks.push(RpkiAsn::from_u32(64_499));
        });
        change(&mut certificate);
        certificate.into_cert(&self.signer, &self.authority).expect("signed").to_captured().into_bytes().to_vec()
    }

    fn revocation_list(&self, issuer: &KeyId, revoked: &[u64], made: u64) -> Vec<u8> {
        let public = self.public(issuer);
        let entries: Vec<_> = revoked.iter().map(|serial| CrlEntry::new((*serial).into(), time(made))).collect();
        let list = TbsCertList::new(
            Default::default(),
            public.to_subject_name(),
            time(made),
            time(made + DAY),
            entries,
            public.key_identifier(),
            1u64.into(),
        );
        list.into_crl(&self.signer, issuer).expect("signed").to_captured().into_bytes().to_vec()
    }

    fn authorities(&self) -> Authorities {
        let mut authorities = Authorities::new();
        let anchor = self.authority_certificate(&self.anchor, &self.anchor, 1, (0, u32::MAX));
        authorities.add_trust_anchor("test", &anchor, at(NOW)).expect("an anchor");
        authorities.add_revocation_list(&self.revocation_list(&self.anchor, &[], NOW - 60)).expect("a list");
        let authority = self.authority_certificate(&self.authority, &self.anchor, 2, (64_496, 64_511));
        authorities.add_authority(&authority, at(NOW)).expect("an authority");
        authorities.add_revocation_list(&self.revocation_list(&self.authority, &[99], NOW - 60)).expect("a list");
        authorities
    }
}

#[test]
fn a_router_certificate_gives_its_key_for_each_of_its_ases() {
    let rpki = TestRpki::new();
    let keys = rpki.authorities().router_keys(&rpki.router_certificate(3, |_| {}), at(NOW)).expect("valid");
    assert_eq!(keys.iter().map(|key| key.asn).collect::<Vec<_>>(), [Asn(64_496), Asn(64_499)]);
    for key in keys {
        assert_eq!(key.public_key(), Ok(PublicKey::EcdsaP256(router_key().1)));
    }
}

#[test]
fn certificates_that_break_a_rule_are_refused() {
    let rpki = TestRpki::new();
    let authorities = rpki.authorities();
    let judge = |certificate: &[u8], now| authorities.router_keys(certificate, at(now)).expect_err("refused");
    let invalid = |error: CertificateError| assert!(matches!(error, CertificateError::Invalid(_)), "{error}");
    let good = rpki.router_certificate(3, |_| {});
    // Out of its dates; the list of the issuer is as well.
    assert!(authorities.router_keys(&good, at(NOW + 2 * DAY)).is_err());
    assert!(authorities.router_keys(&good, at(NOW - 2 * DAY)).is_err());
    // ASes that its issuer does not have.
    invalid(judge(
        &rpki.router_certificate(3, |c| c.build_as_resource_blocks(|b| b.push(RpkiAsn::from_u32(65_000)))),
        NOW,
    ));
    // No router's.
    invalid(judge(&rpki.router_certificate(3, |c| c.set_extended_key_usage(None)), NOW));
    // A key that no router has.
    let rsa = rpki.public(&rpki.anchor);
    invalid(judge(&rpki.router_certificate(3, |c| c.set_subject_public_key(rsa)), NOW));
    // Revoked.
    assert_eq!(judge(&rpki.router_certificate(99, |_| {}), NOW), CertificateError::Revoked);
    // Of an authority of another trust anchor.
    let other = TestRpki::new().router_certificate(3, |_| {});
    assert_eq!(judge(&other, NOW), CertificateError::UnknownIssuer);
    // A changed octet of the signature, and of the text.
    for from_end in [1, 400] {
        let mut changed = good.clone();
        let index = changed.len() - from_end;
        changed[index] ^= 1;
        assert!(authorities.router_keys(&changed, at(NOW)).is_err());
    }
    for len in 0..good.len() {
        assert!(authorities.router_keys(&good[..len], at(NOW)).is_err());
    }
}

#[test]
fn nothing_counts_without_a_fresh_revocation_list() {
    let rpki = TestRpki::new();
    let mut authorities = Authorities::new();
    let anchor = rpki.authority_certificate(&rpki.anchor, &rpki.anchor, 1, (0, u32::MAX));
    authorities.add_trust_anchor("test", &anchor, at(NOW)).expect("an anchor");
    let authority = rpki.authority_certificate(&rpki.authority, &rpki.anchor, 2, (64_496, 64_511));
    let refused = authorities.add_authority(&authority, at(NOW));
    assert_eq!(refused, Err(CertificateError::NoRevocationList));
    let stale = rpki.revocation_list(&rpki.anchor, &[], NOW - 2 * DAY);
    authorities.add_revocation_list(&stale).expect("a list");
    assert_eq!(authorities.add_authority(&authority, at(NOW)), Err(CertificateError::StaleRevocationList));
    let revoking = rpki.revocation_list(&rpki.anchor, &[2], NOW - 60);
    authorities.add_revocation_list(&revoking).expect("a list");
    // An older list does not bring it back.
    authorities.add_revocation_list(&stale).expect("a list");
    assert_eq!(authorities.add_authority(&authority, at(NOW)), Err(CertificateError::Revoked));
    // A list that another authority signed.
    let forged = rpki.revocation_list(&rpki.authority, &[], NOW);
    assert_eq!(authorities.add_revocation_list(&forged), Err(CertificateError::UnknownIssuer));
}

#[test]
fn a_folder_in_any_order_gives_its_keys_with_the_earliest_expiry() {
    let rpki = TestRpki::new();
    let file = |name: &str, octets: Vec<u8>| (name.to_owned(), octets);
    let anchors = [file("ta.cer", rpki.authority_certificate(&rpki.anchor, &rpki.anchor, 1, (0, u32::MAX)))];
    let certificates = [
        file("a-router.cer", rpki.router_certificate(3, |_| {})),
        file("b-ca.cer", rpki.authority_certificate(&rpki.authority, &rpki.anchor, 2, (64_496, 64_511))),
        file("c-revoked.cer", rpki.router_certificate(99, |_| {})),
        file("d-nonsense.cer", vec![1, 2, 3]),
    ];
    let lists = [
        file("ca.crl", rpki.revocation_list(&rpki.authority, &[99], NOW - 60)),
        file("ta.crl", rpki.revocation_list(&rpki.anchor, &[], NOW - 7200)),
        file("other.crl", TestRpki::new().revocation_list(&rpki.anchor, &[], NOW)),
    ];
    let (keys, refused) = import(&anchors, &certificates, &lists, at(NOW));
    assert_eq!(keys.iter().map(|found| found.key.asn).collect::<Vec<_>>(), [Asn(64_496), Asn(64_499)]);
    // The anchor's list ends before its certificates do.
    assert_eq!((keys[0].not_before, keys[0].not_after), (NOW - DAY, NOW - 7200 + DAY));
    let refused: Vec<&str> = refused.iter().map(|(name, _)| name.as_str()).collect();
    for name in ["c-revoked.cer", "d-nonsense.cer", "other.crl"] {
        assert!(refused.contains(&name), "{name}: {refused:?}");
    }
    assert_eq!(refused.len(), 3);
    // Without the authority's own list nothing below it counts, and nothing without an anchor.
    let (keys, refused) = import(&anchors, &certificates, &lists[1..2], at(NOW));
    assert!(keys.is_empty() && refused.iter().any(|(name, _)| name == "a-router.cer"));
    assert!(import(&[], &certificates, &lists, at(NOW)).0.is_empty());
}

#[test]
fn a_certificate_that_is_not_yet_valid_is_refused_with_its_date() {
    let rpki = TestRpki::new();
    let anchor = rpki.authority_certificate(&rpki.anchor, &rpki.anchor, 1, (0, u32::MAX));
    let early = at(NOW - 2 * DAY);
    let begins = |from| Err(CertificateError::NotYet { from });
    assert_eq!(Authorities::new().add_trust_anchor("test", &anchor, early), begins(NOW - DAY));
    let later = rpki.router_certificate(4, |certificate| {
        certificate.set_validity(Validity::new(time(NOW + 60), time(NOW + DAY)));
    });
    assert_eq!(rpki.authorities().router_keys(&later, at(NOW)).map(|_| ()), begins(NOW + 60));
    assert_eq!(rpki.authorities().router_keys(&later, at(NOW + 60)).map(|keys| keys.len()), Ok(2));
    let mut authorities = rpki.authorities();
    authorities.add_revocation_list(&rpki.revocation_list(&rpki.authority, &[], NOW + 90)).expect("a list");
    let router = rpki.router_certificate(3, |_| {});
    assert_eq!(authorities.router_keys(&router, at(NOW)).map(|_| ()), begins(NOW + 90));
}
