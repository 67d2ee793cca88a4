//! The published test vectors of the control plane hold: `test-data/wire/control.py`, which shares no code with this, makes the
//! same.
//!
//! `WAYLEAVE_WRITE_VECTORS=1` writes a new file.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use wayleave_control::advert::{Advert, Extension};
use wayleave_control::frames::Frame;
use wayleave_crypto::signed::{Object, Signed};
use wayleave_packet::icing::header::Version;

use super::common::*;
use super::objects::{consent_answer, consent_request, consent_request_for, join_request, token};
use super::{frames, lists};

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../test-data/wire/control.json")
}

fn hex(octets: &[u8]) -> String {
    octets.iter().map(|octet| format!("{octet:02x}")).collect()
}

fn object<T: Object>(kind: &str, signed: &Signed<T>, signer: &str) -> Value {
    json!({ "kind": kind, "label": T::LABEL, "signer_seed": signer, "octets": hex(signed.octets()), "digest": hex(&signed.digest()) })
}

fn vectors() -> Value {
    let seed_of = |key: wayleave_crypto::sign::SigningKey| hex(key.seed().expose());
    let realm = seed_of(realm_key(0));
    let mut advert = adverts(6, &small())[1].clone();
    let unreachable = advert.links.iter_mut().find(|link| link.neighbour == identity(5)).expect("a neighbour");
    unreachable.endpoint = None;
    advert.open = Some(endpoint("open.example.net:49252"));
    advert.extensions = vec![Extension { kind: 7, value: b"later".to_vec() }];
    let advert = signed_advert(&advert, 1);
    let known = |kind, value: &[u8]| Extension { kind, value: value.to_vec() };
    let extensions = vec![known(1, b"tls.example.net:443"), known(2, &[1, 2])];
    let extended = Advert { extensions, ..adverts(6, &small())[1].clone() };
    assert_eq!(extended.tls().as_ref(), Some(&endpoint("tls.example.net:443")));
    assert!(extended.reads(Version::Sealed));
    let extended = signed_advert(&extended, 1);
    let join = join_request();
    let answer = consent_answer();
    let request = consent_request();
    let sealed = consent_request_for(Version::Sealed);
    let consent = wayleave_control::consent::open(answer.object(), &secret(0, 20_000)).expect("sealed to node 0");
    json!({
        "format": "the control plane; see docs/wire/control.md",
        "objects": [
            object("membership", &signed_membership(1), &realm),
            object("list-key", &lists::certificate(1, 3, NOW + 1_000), &realm),
            object("revocations", &revocations(5, &[1, 2]), &realm),
            object("revocations-by-list-key", &lists::of_list_key(), &hex(seed(7, 1).expose())),
            object("revocations-version-1", &lists::version_1(), &realm),
            object("membership-of-next-key", &lists::membership_of_next_key(), &seed_of(realm_key(1))),
            object("revocations-of-next-key", &lists::of_next_key(), &hex(seed(7, 1).expose())),
            object("invitation", &join.object().invitation, &realm),
            object("join", &join, &hex(seed(9, 7).expose())),
            object("advert", &advert, &seed_of(identity_key(1))),
            object("advert-with-extensions", &extended, &seed_of(identity_key(1))),
            object("consent-request", &request, &seed_of(identity_key(0))),
            object("consent-request-sealed", &sealed, &seed_of(identity_key(0))),
            object("consent-answer", &answer, &seed_of(identity_key(1_001))),
        ],
        "token": token().expose(),
        "consent": {
            "node_seed": hex(seed(3, 0).expose()),
            "node_epoch": 20_000,
            "ephemeral_seed": hex(seed(5, 1).expose()),
            "proof": hex(consent.key().expose()),
        },
        "frames": frames::all().iter().map(|frame| hex(&frame.encode())).collect::<Vec<_>>(),
    })
}

#[test]
fn the_published_vectors_hold() {
    let found = vectors();
    if std::env::var("WAYLEAVE_WRITE_VECTORS").is_ok() {
        let text = serde_json::to_string_pretty(&found).expect("numbers and text") + "\n";
        std::fs::write(file(), text).expect("the folder is there");
    }
    let published: Value = serde_json::from_slice(&std::fs::read(file()).expect("the file is there")).expect("JSON");
    assert_eq!(found, published);
    for frame in published["frames"].as_array().expect("a list") {
        let text = frame.as_str().expect("hexadecimal digits").as_bytes();
        let octet =
            |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("ASCII"), 16).expect("hexadecimal");
        let octets: Vec<u8> = text.chunks(2).map(octet).collect();
        assert_eq!(Frame::decode(&octets).expect("a frame").encode(), octets);
    }
}
