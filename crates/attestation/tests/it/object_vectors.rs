//! Signed objects and manifests, as an independent program makes them (`test-data/attestation/objects.py`).
//!
//! KCX, objects, encoding: objects and manifests of both versions, by an independent program with an SLH-DSA of its own
//! (`test-data/attestation/objects.py`): the same octets; a reader of both halves takes version 2 alone.

use serde_json::Value;
use wayleave_attestation::pki::{
    Addition, Anchor, Manifest, ManifestEntry, Object, ObjectSet, Profile, ProfileKey, Record, Refused, Role, Signed,
    Span, Strictness, TRUST_ANCHOR,
};
use wayleave_attestation::suite::ed25519::Ed25519;
use wayleave_attestation::suite::slh_dsa::SlhDsa;
use wayleave_attestation::suite::{Suite, SuiteId, SuiteKey};
use wayleave_core::Asn;
use wayleave_crypto::secret::Secret;

const AS: Asn = Asn(64_496);
const BEGIN: u64 = 1_700_000_000;
const NOW: u64 = 1_800_000_000;

fn published() -> Value {
    serde_json::from_str(include_str!("../../../../test-data/attestation/objects.json")).expect("JSON")
}

fn octets(text: &Value) -> Vec<u8> {
    let text = text.as_str().expect("text").as_bytes();
    text.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).expect("ASCII"), 16).expect("hex")).collect()
}

fn ed25519(byte: u8) -> Box<dyn SuiteKey> {
    Ed25519.generate(&Secret::new([byte; 32]))
}

fn span(sequence: u64) -> Span {
    Span { sequence, not_before: BEGIN, not_after: 1_900_000_000 }
}

fn listed(role: Role, byte: u8) -> ProfileKey {
    ProfileKey { role, suite: SuiteId::KcEd25519, public: ed25519(byte).public().to_vec() }
}

/// The objects of the vectors, in their order, each with its kind's name.
fn made() -> Vec<(&'static str, Vec<u8>)> {
    let mut second = SlhDsa.generate(&Secret::new([1; 32]));
    let mut by_anchor = |version: u8, object: Object| match version {
        1 => object.sign(&mut *ed25519(1)).expect("signs"),
        _ => object.sign_hybrid(&mut *ed25519(1), &mut *second).expect("signs"),
    };
    let by_identity = |object: Object| object.sign(&mut *ed25519(2)).expect("signs");
    let profile = || {
        let keys = vec![listed(Role::Identity, 2), listed(Role::Attest, 3)];
        Object::Profile(Profile { asn: AS, span: span(7), keys })
    };
    let record = || {
        let prefixes = ["192.0.2.0/24", "2001:db8::/32"].map(|prefix| prefix.parse().expect("a prefix"));
        let prefixes = prefixes.into_iter().zip([26, 48]).collect();
        let attested_since = Some((BEGIN + 86_400, Strictness::PostQuantum));
        Object::Record(Record { asn: AS, span: span(8), attested_since, prefixes })
    };
    let manifest = |publisher: Asn, number: u64, objects: &[&[u8]]| {
        let entry = |octets: &&[u8]| {
            ManifestEntry::of(&Signed::decode(octets).expect("decodes").object, octets).expect("no manifest")
        };
        Object::Manifest(Manifest { publisher, span: span(number), entries: objects.iter().map(entry).collect() })
    };
    let mut all = Vec::new();
    for version in [1, 2] {
        let (profile, record) = (by_anchor(version, profile()), by_anchor(version, record()));
        let list = by_anchor(version, manifest(TRUST_ANCHOR, 10, &[&profile, &record]));
        all.extend([("profile", profile), ("record", record)]);
        let addition = Addition { asn: AS, span: span(9), keys: vec![listed(Role::Attest, 4)] };
        let addition = by_identity(Object::Addition(addition));
        let own_list = by_identity(manifest(AS, 11, &[&addition]));
        all.extend((version == 1).then_some(("addition", addition)));
        all.push(("manifest", list));
        all.extend((version == 1).then_some(("manifest of the AS", own_list)));
    }
    all
}

#[test]
fn objects_and_manifests_are_those_of_the_independent_program_and_count_by_the_anchors_keys() {
    let published = published();
    let objects = published["objects"].as_array().expect("a list");
    let made = made();
    assert_eq!(objects.len(), made.len());
    for (entry, (kind, octets)) in objects.iter().zip(&made) {
        assert_eq!(entry["kind"], *kind);
        assert!(self::octets(&entry["octets"]) == *octets, "{kind} of version {}", entry["version"]);
    }
    let public = octets(&published["anchor"]).try_into().expect("32");
    let second: [u8; 32] = octets(&published["anchor-post-quantum"]).try_into().expect("32");
    for post_quantum in [None, Some(second)] {
        let anchor =
            Anchor { name: "vectors".to_owned(), public, post_quantum, not_before: 0, not_after: u64::MAX - 1 };
        for version in 1..=2u64 {
            let mut set = ObjectSet::new(anchor.clone(), NOW).expect("an anchor");
            let of_version = objects.iter().filter(|entry| entry["version"] == version);
            let results: Vec<Result<(), Refused>> =
                of_version.map(|entry| set.insert(&octets(&entry["octets"]), NOW).map(drop)).collect();
            match (post_quantum, version) {
                (Some(_), 1) => {
                    // Without the profile nobody vouches for what the AS signs.
                    let stripped = Err(Refused::NotHybrid(AS));
                    assert_eq!(results[..2], [stripped, stripped]);
                    assert!(results.iter().all(Result::is_err), "{results:?}");
                }
                _ => assert!(results.iter().all(Result::is_ok), "{results:?}"),
            }
        }
    }
}
