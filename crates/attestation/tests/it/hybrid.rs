//! Objects that an Ed25519 and an SLH-DSA key sign: what a verifier of both halves takes from an adversary for whom every Ed25519
//! key is broken.
//!
//! KCX, hybrid objects: every Ed25519 key and the folder in the adversary's hands; the second half stripped, replaced,
//! or of a stranger: refused; no route of an origin that requires post-quantum suites is valid; under one half of the
//! anchor an honest one is a gap.

use std::sync::LazyLock;

use wayleave_attestation::chain::Attestation;
use wayleave_attestation::leaf::{Leaf, LeafKey};
use wayleave_attestation::path::Path;
use wayleave_attestation::pki::{
    Addition, Anchor, AnchorError, Manifest, Object, ObjectSet, Profile, ProfileKey, Record, Refused, Role, Span,
    Strictness, TRUST_ANCHOR,
};
use wayleave_attestation::report::{Lack, Problem};
use wayleave_attestation::sign::{self, KeyPair, KeyRing, Recipient};
use wayleave_attestation::suite::ed25519::{self, Ed25519};
use wayleave_attestation::suite::slh_dsa::{self, SlhDsa};
use wayleave_attestation::suite::{SignError, Suite, SuiteId, SuiteKey};
use wayleave_core::{Asn, Prefix, VerdictKind};
use wayleave_crypto::secret::Secret;

use crate::common::network::{NOW, Network, p, pair};

const ED: SuiteId = SuiteId::KcEd25519;
const HBS: SuiteId = SuiteId::KcHbs;

/// The Ed25519 key of the anchor (1) or an AS's identity: the adversary has them all.
fn classical(byte: u8) -> Box<dyn SuiteKey> {
    Ed25519.generate(&Secret::new([byte; 32]))
}

/// The SLH-DSA keys, which the adversary does not have: the anchor's (1), AS 1's identity (2); and one of its own (9).
fn post_quantum(byte: u8) -> Box<dyn SuiteKey> {
    SlhDsa.generate(&Secret::new([byte; 32]))
}

fn prefixes() -> Vec<Prefix> {
    vec![p("192.0.2.0/24")]
}

fn span(sequence: u64) -> Span {
    Span { sequence, not_before: NOW - 100, not_after: NOW + 1_000_000 }
}

fn attest(pair: &KeyPair) -> ProfileKey {
    ProfileKey { role: Role::Attest, suite: pair.suite, public: pair.key.public().to_vec() }
}

fn identity(suite: SuiteId, key: &dyn SuiteKey) -> ProfileKey {
    ProfileKey { role: Role::Identity, suite, public: key.public().to_vec() }
}

fn profile(asn: u32, sequence: u64, keys: Vec<ProfileKey>) -> Object {
    Object::Profile(Profile { asn: Asn(asn), span: span(sequence), keys })
}

fn addition(asn: u32, sequence: u64, pair: &KeyPair) -> Object {
    Object::Addition(Addition { asn: Asn(asn), span: span(sequence), keys: vec![attest(pair)] })
}

fn record(sequence: u64, strictness: Option<Strictness>) -> Object {
    let attested_since = strictness.map(|strictness| (NOW - 50, strictness));
    let prefixes = prefixes().into_iter().map(|prefix| (prefix, 32)).collect();
    Object::Record(Record { asn: Asn(1), span: span(sequence), attested_since, prefixes })
}

fn by_both(object: Object, by: u8) -> Vec<u8> {
    object.sign_hybrid(classical(by).as_mut(), post_quantum(by).as_mut()).expect("signs")
}

fn by_ed25519(object: Object, by: u8) -> Vec<u8> {
    object.sign(classical(by).as_mut()).expect("signs")
}

/// What the honest anchor published: profiles of AS 1 and 4, with keys of both suites and an Ed25519 identity key, and AS 1's record,
/// which requires post-quantum suites.
static PUBLISHED: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let keys = |asn: u32| {
        vec![
            attest(&pair(Asn(asn), HBS, 0)),
            attest(&pair(Asn(asn), ED, 0)),
            identity(ED, classical(40 + asn as u8).as_ref()),
        ]
    };
    let objects = [profile(1, 1, keys(1)), profile(4, 1, keys(4)), record(1, Some(Strictness::PostQuantum))];
    objects.map(|object| by_both(object, 1)).into()
});

fn anchor(with_both: bool) -> Anchor {
    let octets = |key: Box<dyn SuiteKey>| key.public().try_into().expect("32 octets");
    let post_quantum = with_both.then(|| octets(post_quantum(1)));
    Anchor { name: "lab".to_owned(), public: octets(classical(1)), post_quantum, not_before: 0, not_after: NOW * 2 }
}

fn published(with_both: bool) -> ObjectSet {
    let mut set = ObjectSet::new(anchor(with_both), NOW).expect("an anchor");
    for octets in PUBLISHED.iter() {
        set.insert(octets, NOW).expect("taken");
    }
    set
}

/// What stands where a second signature should be.
struct NoKey(Vec<u8>);

impl SuiteKey for NoKey {
    fn public(&self) -> &[u8] {
        &[]
    }

    fn sign(&mut self, _: &[u8]) -> Result<Vec<u8>, SignError> {
        Ok(self.0.clone())
    }
}

/// Every way to pass off `object` that needs no SLH-DSA key: the Ed25519 half is right in all.
fn forgeries(object: &Object) -> Vec<Vec<u8>> {
    let with = |second: Vec<u8>| object.clone().sign_hybrid(classical(1).as_mut(), &mut NoKey(second)).expect("signs");
    let genuine = &PUBLISHED[0];
    let anothers = genuine[genuine.len() - slh_dsa::SIGNATURE_LEN..].to_vec();
    let both = with(anothers);
    // Both halves said to be one, with the Ed25519 half over version 2, alone or in the place of both.
    let mut stripped = both[..both.len() - slh_dsa::SIGNATURE_LEN].to_vec();
    let twice = [&stripped[..], &stripped[stripped.len() - ed25519::SIGNATURE_LEN..]].concat();
    stripped[0] = 1;
    vec![by_ed25519(object.clone(), 1), both, with(vec![0; slh_dsa::SIGNATURE_LEN]), stripped, twice]
}

#[test]
fn a_verifier_of_both_halves_takes_only_what_both_keys_signed_whatever_the_object_says() {
    let mut set = published(true);
    let before: Vec<Vec<u8>> = set.objects().map(|(_, octets)| octets.to_vec()).collect();
    let manifest = Object::Manifest(Manifest { publisher: TRUST_ANCHOR, span: span(u64::MAX), entries: Vec::new() });
    let objects = [profile(1, 9, vec![attest(&pair(Asn(2), HBS, 0))]), record(9, None), manifest];
    for object in &objects {
        for octets in forgeries(object) {
            assert!(set.insert(&octets, NOW).is_err());
            // Nor does one that was in a state file stand in the way of what the anchor signs.
            set.remember(&octets, NOW);
        }
    }
    assert_eq!(set.insert(&by_ed25519(objects[1].clone(), 1), NOW).err(), Some(Refused::NotHybrid(Asn(1))));
    // A second half of a key of its own.
    let own = objects[1].clone().sign_hybrid(classical(1).as_mut(), post_quantum(9).as_mut()).expect("signs");
    assert_eq!(set.insert(&own, NOW).err(), Some(Refused::Signature(Asn(1))));
    let after: Vec<Vec<u8>> = set.objects().map(|(_, octets)| octets.to_vec()).collect();
    assert_eq!(before, after);
    set.insert(&by_both(record(2, None), 1), NOW).expect("no forgery raised the floor");
    // The genuine object with its second half stripped, and signed again by whoever has the Ed25519 key.
    let mut stripped = PUBLISHED[2][..PUBLISHED[2].len() - slh_dsa::SIGNATURE_LEN].to_vec();
    stripped[0] = 1;
    assert_eq!(published(true).insert(&stripped, NOW).err(), Some(Refused::Signature(Asn(1))));
}

#[test]
fn a_verifier_of_the_first_half_alone_takes_what_both_keys_signed() {
    let mut set = published(false);
    assert_eq!(set.objects().count(), 3);
    set.insert(&by_ed25519(record(2, None), 1), NOW).expect("as before");
    // A broken Ed25519 half is refused also where the second one is right.
    let mut wrong = PUBLISHED[0].clone();
    let at = wrong.len() - slh_dsa::SIGNATURE_LEN - 1;
    wrong[at] ^= 1;
    for with_both in [false, true] {
        assert_eq!(published(with_both).insert(&wrong, NOW).err(), Some(Refused::Signature(Asn(1))));
    }
    let unfilled = Anchor { post_quantum: Some([0; slh_dsa::KEY_LEN]), ..anchor(true) };
    assert!(matches!(ObjectSet::new(unfilled, NOW), Err(AnchorError::Key(_))));
}

fn travel(ases: &[u32]) -> Path {
    Path::from_travel(&ases.iter().map(|asn| Asn(*asn)).collect::<Vec<_>>())
}

/// A network that knows what this set says, and nothing else.
fn network(set: &ObjectSet) -> Network {
    let mut network = Network::new(6, &[HBS, ED]);
    for asn in [1, 4] {
        network.register(Asn(asn));
    }
    network.view = set.view(2, NOW).0;
    network
}

fn endorsing(pairs: &[KeyPair]) -> Leaf {
    let keys: Vec<LeafKey> = pairs.iter().map(KeyPair::leaf_key).collect();
    Leaf::new(&keys, 112, false).expect("a leaf")
}

/// What the holder of `key` signs in the name of `asn`, over `received` (the origin's if it is empty), to `next` with `leaf`.
fn forge(
    network: &Network,
    received: &[u8],
    path: &[u32],
    asn: u32,
    key: KeyPair,
    next: (u32, &Leaf),
) -> Option<Vec<u8>> {
    let (speaker, onward) = (network.speaker(Asn(asn), 1), Recipient::Neighbour(Asn(next.0), next.1.view()));
    let mut ring = KeyRing { pairs: vec![key] };
    let made = if received.is_empty() {
        sign::originate(&sign::Origination { prefixes: &prefixes(), sequence: 9 }, &speaker, &mut ring, onward)
    } else {
        sign::extend(&Attestation::decode(received).ok()?, &travel(path), &prefixes(), &speaker, &mut ring, onward)
    };
    made.ok().map(|made| made.value)
}

/// A hash-based key of the adversary's own, which no honest AS has.
fn own() -> KeyPair {
    KeyPair { registered: true, ..pair(Asn(2), HBS, 1) }
}

#[test]
fn with_every_ed25519_key_and_the_folder_an_adversary_makes_no_route_of_a_post_quantum_origin_valid() {
    let mut set = published(true);
    // The honest route is valid.
    let mut honest = network(&set);
    let (value, path) = honest.chain(&prefixes(), &[1, 3], 4);
    assert_eq!(honest.validate(&prefixes(), &path, &value, 4).kind, VerdictKind::Valid);
    // It forges what the anchor signs, and additions with the identity keys of AS 1 and 4, in any order.
    for object in [profile(1, 9, vec![attest(&own())]), record(9, None), record(9, Some(Strictness::Strict))] {
        for octets in forgeries(&object) {
            assert!(set.insert(&octets, NOW).is_err());
        }
    }
    for asn in [1, 4] {
        set.insert(&by_ed25519(addition(asn, 9, &own()), 40 + asn as u8), NOW)
            .expect("their profiles list no second key");
    }
    let network = network(&set);
    let to_5 = honest.chain(&prefixes(), &[1], 5).0;
    let keyless = honest.send_leaf(&prefixes(), &Path::default(), &[], Asn(1), Asn(5), &Leaf::keyless());
    let leaves = [Leaf::keyless(), endorsing(&[own()]), network.leaf(Asn(3)), network.leaf(Asn(4))];
    let classical_key = |asn: u32| KeyPair { registered: true, ..pair(Asn(asn), ED, 0) };
    // Origins' hops of its own making, and what AS 5, which is corrupt, makes of what it received.
    let mut routes: Vec<(Vec<u32>, Vec<u8>)> = Vec::new();
    for leaf in &leaves {
        for key in [own(), classical_key(1)] {
            routes.extend(forge(&network, &[], &[], 1, key, (3, leaf)).map(|value| (vec![1], value)));
        }
        for key in [pair(Asn(5), HBS, 0), classical_key(5)] {
            // With the keys that it names for AS 4 in its leaf, or past AS 4 by a gap.
            routes.extend(forge(&network, &to_5, &[1], 5, key, (4, leaf)).map(|value| (vec![1, 5], value)));
        }
    }
    let mut tried = 0;
    for (path, value) in routes.clone() {
        let report = network.validate(&prefixes(), &travel(&path), &value, 3);
        assert_ne!(report.kind, VerdictKind::Valid, "{path:?} {report:?}");
        for asn in [4, 6] {
            for is_own in [true, false] {
                for registered in [true, false] {
                    for gap in [None, Some(77)] {
                        let before: Vec<u32> = path.iter().copied().chain(gap).collect();
                        let key = if is_own { own() } else { classical_key(asn) };
                        let key = KeyPair { registered, ..key };
                        let Some(forged) = forge(&network, &value, &before, asn, key, (3, &network.leaf(Asn(3))))
                        else {
                            continue;
                        };
                        let path: Vec<u32> = before.iter().copied().chain([asn]).collect();
                        let report = network.validate(&prefixes(), &travel(&path), &forged, 3);
                        assert_ne!(report.kind, VerdictKind::Valid, "{path:?} {report:?}");
                        tried += 1;
                    }
                }
            }
        }
    }
    // AS 4 re-anchors after a gap with a key that only the forged addition lists.
    let forged = forge(&network, &keyless, &[1, 5], 4, own(), (3, &network.leaf(Asn(3)))).expect("signs");
    let report = network.validate(&prefixes(), &travel(&[1, 5, 4]), &forged, 3);
    assert_eq!(report.broken.map(|broken| broken.problem), Some(Problem::KeyNotRegistered));
    assert!(tried > 20, "{tried}");
}

#[test]
fn a_route_that_requires_post_quantum_suites_is_not_valid_under_one_half_of_the_anchor_and_not_invalid_either() {
    let mut network = network(&published(false));
    let (value, path) = network.chain(&prefixes(), &[1, 3], 4);
    let report = network.validate(&prefixes(), &path, &value, 4);
    assert_eq!((report.kind, report.lack), (VerdictKind::Gap, Some(Lack::ClassicalAnchor)));
    // A strict origin that does not require it is valid there, as ever.
    let mut set = published(false);
    set.insert(&by_ed25519(record(2, Some(Strictness::Strict)), 1), NOW).expect("taken");
    network.view = set.view(3, NOW).0;
    assert_eq!(network.validate(&prefixes(), &path, &value, 4).kind, VerdictKind::Valid);
}

#[test]
fn what_an_as_adds_counts_as_post_quantum_if_both_its_identity_keys_signed_it() {
    let mut set = published(true);
    let added = pair(Asn(1), HBS, 1);
    // Somebody forges an addition with the highest of all sequences, while the profile lists an Ed25519 identity key alone.
    let highest = by_ed25519(addition(1, u64::MAX, &own()), 41);
    set.insert(&highest, NOW).expect("taken");
    let keys = vec![
        attest(&pair(Asn(1), ED, 0)),
        identity(ED, classical(2).as_ref()),
        identity(SuiteId::SlhDsa128s, post_quantum(2).as_ref()),
    ];
    let both = by_both(profile(1, 2, keys), 1);
    set.insert(&both, NOW).expect("taken");
    // After a restart: nothing is held to what was forged.
    let remembered: Vec<Vec<u8>> = set.objects().map(|(_, octets)| octets.to_vec()).collect();
    let mut set = ObjectSet::new(anchor(true), NOW).expect("an anchor");
    for octets in &remembered {
        let _ = set.insert(octets, NOW);
        set.remember(octets, NOW);
    }
    assert_eq!(set.insert(&by_ed25519(addition(1, 3, &added), 2), NOW).err(), Some(Refused::NotHybrid(Asn(1))));
    set.insert(&by_both(addition(1, 2, &added), 2), NOW).expect("taken");
    let mut network = network(&set);
    let ring = KeyRing { pairs: vec![KeyPair { registered: true, ..added }] };
    network.nodes.get_mut(&Asn(1)).expect("AS 1").ring = ring;
    let (value, path) = network.chain(&prefixes(), &[1, 3], 4);
    let report = network.validate(&prefixes(), &path, &value, 4);
    assert_eq!(report.kind, VerdictKind::Valid, "{report:?}");
}
