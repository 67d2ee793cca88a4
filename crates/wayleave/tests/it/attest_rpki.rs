//! `run attest` with what the RPKI says: an RTR cache, and router certificates in a folder.
//!
//! KCX-18: a router's certificate that appears, is replaced, breaks: what lies in the folder counts at once, and what
//! was known where nothing can be read.

use std::fs;
use std::sync::Arc;

use crate::common::attesting::{PREFIX, Proxy, UNDER_THE_ANCHOR, own, prefix, speaker};
use crate::common::certified::{P256_HEAD, Rpki};
use crate::common::rtr::{Cache, origin, pdu};
use crate::common::{Folder, eventually, free, text};
use rustls::ServerConfig;
use serde_json::json;
use wayleave_attestation::chain::TYPE_CODE;
use wayleave_bgp::AttributeCode;
use wayleave_papers::baseline::bgpsec::ski;

const ORIGIN: u32 = 64_496;
const LAST: u32 = 64_497;

/// That `point`, of P-256, is a key of a router of `asn`.
fn router_key(asn: u32, point: &[u8]) -> Vec<u8> {
    let ski = ski(point.try_into().expect("65 octets"));
    pdu(9, 0x0100, &[&ski[..], &asn.to_be_bytes(), &P256_HEAD, point].concat())
}

/// The key of a file of attestation keys, as octets.
fn public_key(shown: &str) -> Vec<u8> {
    let hex = shown.lines().find_map(|line| line.strip_prefix("attest  attest:kc-p256:")).expect("a key");
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex")).collect()
}

#[test]
fn origins_and_router_keys_of_a_cache_take_effect_without_a_new_update() {
    let folder = Folder::new("attest-rtr");
    let shown = folder.ok(&["keys", "attest", "64496.key", "--asn", "64496", "--suite", "kc-p256"]);
    folder.ok(&["keys", "attest", "64497.key", "--asn", "64497"]);
    let key = router_key(ORIGIN, &public_key(&shown));
    let cache = Cache::start([origin(ORIGIN), key.clone()].concat());
    let rpki = format!("[rpki]\ncache = \"{}\"\n", cache.address);
    let meet = free();
    let keys = |asn: u32| format!("signing = \"{asn}.key\"\n");
    let mut a = Proxy::with_keys(&folder, ORIGIN, &format!("connect = \"{meet}\""), &keys(ORIGIN), &rpki);
    a.announce_unauthorised();
    let b = Proxy::with_keys(&folder, LAST, &format!("listen = \"{meet}\""), &keys(LAST), &rpki);
    let (left, right) = (speaker(ORIGIN, LAST, 1, &a), speaker(LAST, ORIGIN, 2, &b));
    left.announce(own(ORIGIN));
    let has = || right.learned().get(&prefix()).is_some_and(|route| route.get(AttributeCode(TYPE_CODE)).is_some());
    eventually("the route arrives, attested", has);
    assert_eq!(b.class(), "valid");
    let why = text(&b.ask(&["why", PREFIX]).stdout);
    assert!(why.contains("+ AS64496  signed with kc-p256 and its registered key "), "{why}");
    assert_eq!(a.json(&["show", "keys"])["keys"][0]["registered"], true);
    let known = b.json(&["show", "status"])["known"]["cache"].clone();
    let expected = json!({ "address": cache.address, "standing": "current", "vrps": 1, "router_keys": 1 });
    assert_eq!(known, expected);

    // Another AS may originate it now.
    cache.change([origin(64_499), key.clone()].concat());
    eventually("the route is refused", || right.learned().is_empty());
    assert_eq!(b.class(), "invalid");
    cache.change([origin(ORIGIN), key].concat());
    eventually("the route is let in again", has);
    // The router's key is taken back: nobody can prove anything, and the origin signs no more.
    cache.change(origin(ORIGIN));
    eventually("nothing is claimed", || b.class() == "unattested");
    cache.stop();
    eventually("the cache is missed", || b.json(&["show", "status"])["known"]["cache"]["standing"] == "stale");
    assert!(b.log().contains("RTR cache unreachable: what it has sent counts until it expires"));
    // What it said still counts.
    assert_eq!(b.json(&["show", "status"])["known"]["vrps"], 1);
    assert!(right.learned().contains_key(&prefix()));
}

#[test]
fn a_cache_over_tls_is_accepted_only_with_the_configured_name_and_authority() {
    let folder = Folder::new("attest-rtr-tls");
    let issued = rcgen::generate_simple_self_signed(vec!["cache.example".to_owned()]).expect("a certificate");
    folder.write("cache-ca.pem", &issued.cert.pem());
    let key = rustls::pki_types::PrivateKeyDer::try_from(issued.signing_key.serialize_der()).expect("a key");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let tls = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().expect("versions");
    let tls = tls.with_no_client_auth().with_single_cert(vec![issued.cert.der().clone()], key).expect("a pair");
    let cache = Cache::over(Some(Arc::new(tls)), origin(ORIGIN));
    let rpki = |name: &str| {
        let authorities = "authorities = \"cache-ca.pem\"";
        format!("[rpki]\ncache = \"{}\"\ntls = {{ name = \"{name}\", {authorities} }}\n", cache.address)
    };
    let proxy = Proxy::with_keys(&folder, LAST, &format!("listen = \"{}\"", free()), "", &rpki("cache.example"));
    let known = || proxy.json(&["show", "status"])["known"].clone();
    eventually("the cache is in force", || known()["cache"]["standing"] == "current");
    assert_eq!(known()["vrps"], 1);
    assert!(!proxy.log().contains("ERROR"), "{}", proxy.log());
    // Another name is demanded: what was known counts on, and nothing comes.
    let config = fs::read_to_string(folder.0.join("as64497.toml")).expect("a configuration");
    folder.write("as64497.toml", &config.replace("cache.example", "other.example"));
    proxy.signal("-HUP");
    eventually("the other name is missed", || known()["cache"]["standing"] == "stale");
    eventually("the reason is logged", || proxy.log().contains("certificate not valid for name \"other.example\""));
    assert_eq!(known()["vrps"], 1);
    folder.write("as64497.toml", &config);
    proxy.signal("-HUP");
    eventually("the cache is in force again", || known()["cache"]["standing"] == "current");
}

#[test]
fn a_router_certificate_that_appears_is_replaced_or_breaks_takes_effect_at_once() {
    let folder = Folder::new("attest-certificates");
    let keys = ["64496", "other"].map(|name| {
        public_key(&folder.ok(&["keys", "attest", &format!("{name}.key"), "--asn", "64496", "--suite", "kc-p256"]))
    });
    folder.ok(&["keys", "anchor", "anchor.key", "--classical"]);
    folder.sign(&["record", "--asn", "64496", "--prefix", PREFIX]);
    let rpki = Rpki::new(&folder.0);
    let router = |octets: &[u8]| fs::write(folder.0.join("rpki/router.cer"), octets).expect("written");
    let section = "[rpki]\nanchors = [\"ta.cer\"]\ncertificates = \"rpki\"\n";
    let meet = free();
    let a = Proxy::new(&folder, ORIGIN, &format!("connect = \"{meet}\""), section);
    let b = Proxy::with_keys(&folder, LAST, &format!("listen = \"{meet}\""), UNDER_THE_ANCHOR, section);
    let (left, right) = (speaker(ORIGIN, LAST, 1, &a), speaker(LAST, ORIGIN, 2, &b));
    left.announce(own(ORIGIN));
    eventually("the route arrives", || right.learned().contains_key(&prefix()));
    let becomes = |class: &str, certified: u64, refused: u64| {
        [&a, &b].iter().for_each(|proxy| proxy.signal("-HUP"));
        eventually(class, || b.class() == class);
        let known = || b.json(&["show", "status"])["known"].clone();
        eventually("it is counted", || known()["certified_keys"] == certified && known()["refused"] == refused);
    };
    becomes("unattested", 0, 0);
    // It appears.
    let good = rpki.router(ORIGIN, &keys[0]);
    router(&good);
    becomes("valid", 1, 0);
    assert_eq!(a.json(&["show", "keys"])["keys"][0]["registered"], true);
    // It is replaced by one for another key: what was signed with the first counts no longer, and nothing more is signed.
    router(&rpki.router(ORIGIN, &keys[1]));
    becomes("unattested", 1, 0);
    router(&good);
    becomes("valid", 1, 0);
    // It is broken, as by a copy that was cut off.
    router(&good[..good.len() / 2]);
    becomes("unattested", 0, 1);
    assert!(b.log().contains("router.cer: "), "{}", b.log());
    router(&good);
    becomes("valid", 1, 0);
    // Where nothing can be read, what was known counts.
    fs::rename(folder.0.join("rpki"), folder.0.join("away")).expect("renamed");
    b.signal("-HUP");
    eventually("it is logged", || b.log().contains("what was known before still counts until it expires"));
    assert_eq!(b.class(), "valid");
}

#[test]
fn check_reports_faults_in_the_rpki_section() {
    let folder = Folder::new("attest-rpki-check");
    let check = |rpki: &str| {
        folder.write("a.toml", &format!("[attest]\nasn = 64496\nstate = \"a.redb\"\n[keys]\n[rpki]\n{rpki}\n"));
        let output = folder.run(&["check", "a.toml"]);
        (output.status.code(), text(&output.stdout) + &text(&output.stderr))
    };
    let (code, said) = check("cache = \"127.0.0.1:3323\"");
    assert_eq!(code, Some(0), "{said}");
    assert!(!said.contains("no origin's key is known"), "{said}");
    for (wrong, expected) in [
        ("cache = \"127.0.0.1\"", "expected a host and port"),
        ("tls = { name = \"a.example\", authorities = \"ca.pem\" }", "`tls` without a cache"),
        ("certificates = \"rpki\"", "certificates without a trust anchor"),
        ("anchors = [\"ta.cer\"]", "trust anchors without certificates"),
        ("cashe = 1", "unknown field `cashe`"),
    ] {
        let (code, said) = check(wrong);
        assert_eq!(code, Some(1), "{wrong}");
        assert!(said.contains(expected), "{wrong}: {said}");
    }
    folder.write("ca.pem", "nothing");
    let (code, said) = check("cache = \"127.0.0.1:3323\"\ntls = { name = \"a.example\", authorities = \"ca.pem\" }");
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("the file contains no certificate"), "{said}");
}
