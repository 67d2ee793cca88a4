//! A small RPKI of the test's own: a trust anchor, an authority, and certificates of routers (RFC 8209).
#![allow(unreachable_pub, reason = "a test uses it")]
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "certificates hold around the time of the test"
)]

use std::path::Path;
use std::time::{Duration, SystemTime};

use rpki::crypto::signer::Signer;
use rpki::crypto::softsigner::{KeyId, SoftSigner};
use rpki::crypto::{PublicKey, PublicKeyFormat};
use rpki::repository::cert::{ExtendedKeyUsage, KeyUsage, Overclaim, TbsCert};
use rpki::repository::crl::TbsCertList;
use rpki::repository::resources::{Asn, Prefix};
use rpki::repository::x509::{Time, Validity};
use rpki::uri::Rsync;

const DAY: Duration = Duration::from_secs(86_400);
/// What stands before a point of P-256 in SubjectPublicKeyInfo (RFC 5480).
pub const P256_HEAD: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce,
    0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

fn rsync(name: &str) -> Rsync {
    format!("rsync://example.net/repo/{name}").parse().expect("a URI")
}

fn day() -> Validity {
    let now = SystemTime::now();
    Validity::new(Time::from(now - DAY), Time::from(now + DAY))
}

/// The anchor for all ASes, and an authority below it.
pub struct Rpki {
    signer: SoftSigner,
    anchor: KeyId,
    authority: KeyId,
}

impl Rpki {
    /// Writes the anchor's certificate as `ta.cer`, and into the folder `rpki` the authority's and both revocation lists.
    pub fn new(folder: &Path) -> Self {
        let signer = SoftSigner::new();
        let [anchor, authority] = [(); 2].map(|()| signer.create_key(PublicKeyFormat::Rsa).expect("a key"));
        let rpki = Self { signer, anchor, authority };
        let write = |name: &str, octets: Vec<u8>| std::fs::write(folder.join(name), octets).expect("written");
        std::fs::create_dir(folder.join("rpki")).expect("a folder");
        write("ta.cer", rpki.authority(&rpki.anchor, 1));
        write("rpki/ca.cer", rpki.authority(&rpki.authority, 2));
        write("rpki/ta.crl", rpki.revocation_list(&rpki.anchor));
        write("rpki/ca.crl", rpki.revocation_list(&rpki.authority));
        rpki
    }

    fn public(&self, key: &KeyId) -> PublicKey {
        self.signer.get_key_info(key).expect("a key of ours")
    }

    /// The certificate of one of the two, issued by the anchor; its own has the serial 1.
    fn authority(&self, key: &KeyId, serial: u64) -> Vec<u8> {
        let (public, issuing) = (self.public(key), self.public(&self.anchor));
        let name = issuing.to_subject_name();
        let mut certificate = TbsCert::new(serial.into(), name, day(), None, public, KeyUsage::Ca, Overclaim::Refuse);
        certificate.set_basic_ca(Some(true));
        certificate.set_ca_repository(Some(rsync("ca/")));
        certificate.set_rpki_manifest(Some(rsync("ca/ca.mft")));
        if serial > 1 {
            certificate.set_authority_key_identifier(Some(issuing.key_identifier()));
            certificate.set_ca_issuer(Some(rsync("ta.cer")));
            certificate.set_crl_uri(Some(rsync("ta.crl")));
        }
        certificate.build_v4_resource_blocks(|blocks| blocks.push(Prefix::new(0, 0)));
        certificate.build_as_resource_blocks(|blocks| blocks.push((Asn::from_u32(0), Asn::from_u32(u32::MAX))));
        certificate.into_cert(&self.signer, &self.anchor).expect("signed").to_captured().into_bytes().to_vec()
    }

    /// That `point`, of P-256, is a key of a router of `asn`.
    pub fn router(&self, asn: u32, point: &[u8]) -> Vec<u8> {
        let issuing = self.public(&self.authority);
        let key = PublicKey::decode([&P256_HEAD, point].concat().as_slice()).expect("a key");
        let name = issuing.to_subject_name();
        let mut certificate = TbsCert::new(3u64.into(), name, day(), None, key, KeyUsage::Ee, Overclaim::Refuse);
        certificate.set_authority_key_identifier(Some(issuing.key_identifier()));
        certificate.set_ca_issuer(Some(rsync("ca.cer")));
        certificate.set_crl_uri(Some(rsync("ca/ca.crl")));
        certificate.set_extended_key_usage(Some(ExtendedKeyUsage::create_router()));
        certificate.build_as_resource_blocks(|blocks| blocks.push(Asn::from_u32(asn)));
        certificate.into_cert(&self.signer, &self.authority).expect("signed").to_captured().into_bytes().to_vec()
    }

    fn revocation_list(&self, issuer: &KeyId) -> Vec<u8> {
        let public = self.public(issuer);
        let (from, until) = (Time::from(SystemTime::now() - DAY), Time::from(SystemTime::now() + DAY));
        let (name, number) = (public.to_subject_name(), 1u64.into());
        let list = TbsCertList::new(Default::default(), name, from, until, Vec::new(), public.key_identifier(), number);
        list.into_crl(&self.signer, issuer).expect("signed").to_captured().into_bytes().to_vec()
    }
}
