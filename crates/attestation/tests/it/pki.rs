//! Signed objects, the set under a trust anchor, and the view of it.
//!
//! KCX-31: keys that share a tag, in a profile or an addition: refused.

use std::collections::HashMap;

use wayleave_attestation::leaf::LeafKey;
use wayleave_attestation::pki::{
    Addition, Anchor, AnchorError, Object, ObjectError, ObjectSet, Omitted, OriginValidity, Profile, ProfileKey,
    Record, Refused, RetainedObject, Role, SignObjectError, Span, Strictness, key_tag,
};
use wayleave_attestation::suite::ed25519::Ed25519;
use wayleave_attestation::suite::{Suite, SuiteId, SuiteKey};
use wayleave_core::{Asn, Prefix};
use wayleave_crypto::secret::Secret;

const NOW: u64 = 1_000;

fn key(byte: u8) -> Box<dyn SuiteKey> {
    Ed25519.generate(&Secret::new([byte; 32]))
}

fn set() -> ObjectSet {
    let public = key(1).public().try_into().expect("32");
    let anchor = Anchor { name: "lab".to_owned(), public, post_quantum: None, not_before: 10, not_after: 9_000 };
    ObjectSet::new(anchor, NOW).expect("an anchor")
}

fn span(sequence: u64) -> Span {
    Span { sequence, not_before: 500, not_after: 2_000 }
}

fn listed(role: Role, byte: u8) -> ProfileKey {
    ProfileKey { role, suite: SuiteId::KcEd25519, public: key(byte).public().to_vec() }
}

fn profile(asn: u32, sequence: u64, keys: Vec<ProfileKey>) -> Object {
    Object::Profile(Profile { asn: Asn(asn), span: span(sequence), keys })
}

fn signed(object: Object, by: u8) -> Vec<u8> {
    object.sign(&mut *key(by)).expect("signs")
}

fn knows(set: &ObjectSet, asn: u32, byte: u8) -> bool {
    let (view, _) = set.view(1, NOW);
    view.key_of_leaf(Asn(asn), &LeafKey::of(SuiteId::KcEd25519, key(byte).public())).is_some()
}

#[test]
fn an_anchor_outside_its_time_or_without_a_key_is_refused() {
    let mut anchor = set().anchor().clone();
    assert_eq!(ObjectSet::new(anchor.clone(), 9).err(), Some(AnchorError::NotYet(10)));
    assert_eq!(ObjectSet::new(anchor.clone(), 9_001).err(), Some(AnchorError::Expired(9_000)));
    anchor.public = [0; 32];
    assert!(matches!(ObjectSet::new(anchor, NOW), Err(AnchorError::Key(_))));
}

#[test]
fn only_what_the_anchor_signed_counts_and_the_latest_of_it() {
    let mut set = set();
    let stranger = signed(profile(5, 1, vec![listed(Role::Attest, 50)]), 2);
    assert_eq!(set.insert(&stranger, NOW).err(), Some(Refused::Signature(Asn(5))));
    set.insert(&signed(profile(5, 2, vec![listed(Role::Attest, 50)]), 1), NOW).expect("taken");
    assert!(knows(&set, 5, 50));
    let older = signed(profile(5, 1, vec![listed(Role::Attest, 51)]), 1);
    assert_eq!(set.insert(&older, NOW).err(), Some(Refused::Superseded { asn: Asn(5), have: 1, known: 2 }));
    set.insert(&signed(profile(5, 3, vec![listed(Role::Attest, 52)]), 1), NOW).expect("taken");
    assert!(knows(&set, 5, 52) && !knows(&set, 5, 50));
    assert_eq!(set.insert(&signed(profile(6, 1, Vec::new()), 1), 2_001).err(), Some(Refused::Expired(Asn(6))));
}

/// Two keys for attestations that share a tag, found among some hundred.
fn of_one_tag() -> [ProfileKey; 2] {
    let mut known: HashMap<[u8; 2], ProfileKey> = HashMap::new();
    for number in 0_u64.. {
        let mut seed = [9; 32];
        seed[..8].copy_from_slice(&number.to_be_bytes());
        let public = Ed25519.generate(&Secret::new(seed)).public().to_vec();
        let key = ProfileKey { role: Role::Attest, suite: SuiteId::KcEd25519, public };
        if let Some(other) = known.insert(key_tag(key.suite, &key.public), key.clone()) {
            return [other, key];
        }
    }
    unreachable!("there are 65,536 tags")
}

#[test]
fn no_two_keys_of_an_as_share_suite_and_tag() {
    let [one, other] = of_one_tag();
    let tag = key_tag(one.suite, &one.public);
    let both = profile(5, 1, vec![one.clone(), other.clone()]);
    let refused = ObjectError::TagTwice(SuiteId::KcEd25519, tag);
    assert_eq!(both.sign(&mut *key(1)), Err(SignObjectError::Object(refused)));
    // Another role has no tags.
    let identity = ProfileKey { role: Role::Identity, ..other.clone() };
    assert!(profile(5, 1, vec![one.clone(), identity]).sign(&mut *key(1)).is_ok());
    // Nor does an addition bring a second one.
    let mut set = set();
    set.insert(&signed(profile(5, 1, vec![one.clone(), listed(Role::Identity, 60)]), 1), NOW).expect("taken");
    let added = Object::Addition(Addition { asn: Asn(5), span: span(1), keys: vec![other.clone()] });
    set.insert(&signed(added, 60), NOW).expect("taken");
    let (view, omitted) = set.view(1, NOW);
    assert_eq!(omitted, [Omitted::SameTag(Asn(5))]);
    let counted: Vec<&[u8]> = view.keys(Asn(5), one.suite, tag).map(|key| key.public.as_slice()).collect();
    assert_eq!(counted, [one.public.as_slice()]);
}

#[test]
fn no_key_serves_two_roles_or_two_ases() {
    let twice = profile(5, 1, vec![listed(Role::Attest, 50), listed(Role::Scion, 50)]);
    assert_eq!(twice.sign(&mut *key(1)), Err(SignObjectError::Object(ObjectError::KeyTwice)));
    let mut set = set();
    for asn in [5, 6] {
        set.insert(&signed(profile(asn, 1, vec![listed(Role::Attest, 50)]), 1), NOW).expect("taken");
    }
    let (view, omitted) = set.view(1, NOW);
    assert_eq!(omitted, [Omitted::Shared(Asn(5), Asn(6))]);
    assert!(!knows(&set, 5, 50) && !knows(&set, 6, 50));
    assert!(view.is_registered(Asn(5)), "a profile without keys still binds");
}

#[test]
fn an_as_that_adds_anothers_key_takes_it_from_nobody() {
    let mut set = set();
    set.insert(&signed(profile(5, 1, vec![listed(Role::Attest, 50)]), 1), NOW).expect("taken");
    set.insert(&signed(profile(6, 1, vec![listed(Role::Identity, 40)]), 1), NOW).expect("taken");
    let keys = vec![listed(Role::Attest, 50), listed(Role::Attest, 51)];
    let addition = Object::Addition(Addition { asn: Asn(6), span: span(1), keys });
    set.insert(&signed(addition, 40), NOW).expect("taken");
    let (_, omitted) = set.view(1, NOW);
    assert_eq!(omitted, [Omitted::OthersKey(Asn(6), Asn(5))]);
    assert!(knows(&set, 5, 50) && !knows(&set, 6, 50) && knows(&set, 6, 51));
}

#[test]
fn keys_of_other_roles_sign_no_hop() {
    let mut set = set();
    let roles = Role::ALL.into_iter().zip(60..).map(|(role, byte)| listed(role, byte)).collect();
    set.insert(&signed(profile(5, 1, roles), 1), NOW).expect("taken");
    assert!(knows(&set, 5, 60));
    assert!((61..66).all(|byte| !knows(&set, 5, byte)));
}

#[test]
fn an_as_adds_keys_with_its_identity_key_as_long_as_its_profile_lists_it() {
    let mut set = set();
    let addition = |sequence, byte| {
        let keys = vec![listed(Role::Attest, byte)];
        Object::Addition(Addition { asn: Asn(5), span: span(sequence), keys })
    };
    assert_eq!(set.insert(&signed(addition(1, 70), 40), NOW).err(), Some(Refused::Signature(Asn(5))));
    let keys = vec![listed(Role::Identity, 40), listed(Role::Attest, 50)];
    set.insert(&signed(profile(5, 1, keys), 1), NOW).expect("taken");
    assert_eq!(set.insert(&signed(addition(1, 70), 50), NOW).err(), Some(Refused::Signature(Asn(5))));
    set.insert(&signed(addition(1, 70), 40), NOW).expect("taken");
    assert!(knows(&set, 5, 70) && knows(&set, 5, 50));
    set.insert(&signed(profile(5, 2, vec![listed(Role::Identity, 41)]), 1), NOW).expect("taken");
    assert!(!knows(&set, 5, 70));
    assert_eq!(set.view(1, NOW).1, [Omitted::Addition(Asn(5))]);
}

#[test]
fn records_say_who_originates_what_and_who_attests_until_they_end() {
    let mut set = set();
    let prefix: Prefix = "192.0.2.0/24".parse().expect("a prefix");
    let attested_since = Some((800, Strictness::Strict));
    let record = Record { asn: Asn(5), span: span(1), attested_since, prefixes: vec![(prefix, 24)] };
    set.insert(&signed(Object::Record(record), 1), NOW).expect("taken");
    let (view, _) = set.view(1, NOW);
    assert_eq!(view.origin_validity(&prefix, Some(Asn(5))), OriginValidity::Valid);
    assert_eq!(view.attested_since(Asn(5)).map(|since| since.since), Some(800));
    assert_eq!(set.next_change(NOW), Some(2_001));
    for now in [499, 2_001, 9_001] {
        assert_eq!(set.view(1, now).0.origin_validity(&prefix, Some(Asn(5))), OriginValidity::NotFound);
    }
}

/// A profile with this key, from `begins` on.
fn beginning(sequence: u64, begins: u64, byte: u8) -> Vec<u8> {
    let span = Span { sequence, not_before: begins, not_after: 2_000 };
    signed(Object::Profile(Profile { asn: Asn(5), span, keys: vec![listed(Role::Attest, byte)] }), 1)
}

#[test]
fn an_object_whose_time_has_not_begun_takes_the_place_of_none() {
    // In whichever order the folder has them.
    let objects = [beginning(1, 500, 50), beginning(2, 1_500, 51), beginning(3, 1_800, 52)];
    for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2]] {
        let mut set = set();
        for at in order {
            set.insert(&objects[at], NOW).expect("taken");
        }
        let key_at = |now| {
            let (view, _) = set.view(1, now);
            [50, 51, 52]
                .map(|byte| view.key_of_leaf(Asn(5), &LeafKey::of(SuiteId::KcEd25519, key(byte).public())).is_some())
        };
        assert_eq!(key_at(NOW), [true, false, false]);
        assert_eq!(key_at(1_500), [false, true, false]);
        assert_eq!(key_at(1_900), [false, false, true]);
        assert_eq!(set.next_change(NOW), Some(1_500));
    }
    let mut many = set();
    for sequence in 1..5 {
        many.insert(&beginning(sequence, 1_200 + sequence, 50), NOW).expect("taken");
    }
    assert_eq!(many.insert(&beginning(6, 1_900, 50), NOW).err(), Some(Refused::TooManyAhead(Asn(5))));
}

#[test]
fn objects_never_go_back() {
    let mut before = set();
    before.insert(&beginning(3, 500, 53), NOW).expect("taken");
    let other = signed(profile(6, 1, vec![listed(Role::Attest, 60)]), 1);
    before.insert(&other, NOW).expect("taken");
    // The folder has an older profile of AS 5, and lost that of AS 6.
    let remembered: Vec<Vec<u8>> = before.objects().map(|(_, octets)| octets.to_vec()).collect();
    let read = |folder: &[Vec<u8>], now: u64| {
        let mut set = set();
        for octets in &remembered {
            let _ = set.insert(octets, now);
            set.remember(octets, now);
        }
        let refused: Vec<_> = folder.iter().filter_map(|octets| set.insert(octets, now).err()).collect();
        let kept = set.kept(&folder.iter().map(Vec::as_slice).collect(), now);
        (set, refused, kept)
    };
    let (now, refused, kept) = read(&[beginning(2, 500, 52)], NOW);
    assert_eq!(refused, [Refused::Superseded { asn: Asn(5), have: 2, known: 3 }]);
    let profile = |asn, sequence, in_folder| RetainedObject {
        asn: Asn(asn),
        kind: "profile",
        sequence,
        begins: None,
        in_folder,
        expired: None,
    };
    assert_eq!(kept, [profile(5, 3, Some(2)), profile(6, 1, None)]);
    assert!(knows(&now, 5, 53) && !knows(&now, 5, 52) && knows(&now, 6, 60));
    // A later one in the folder counts, and so does the same once more.
    let (later, refused, kept) = read(&[beginning(4, 500, 54), other.clone()], NOW);
    assert_eq!((refused, kept), (vec![], vec![]));
    assert!(knows(&later, 5, 54));
    // What was in force has expired: an older one with a longer life still does not count again.
    let long = Span { sequence: 2, not_before: 500, not_after: 8_000 };
    let older = Object::Profile(Profile { asn: Asn(5), span: long, keys: vec![listed(Role::Attest, 52)] });
    let (expired, refused, kept) = read(&[signed(older, 1)], 2_001);
    assert_eq!((refused.len(), kept), (1, vec![]));
    assert_eq!(expired.objects().count(), 0);
}

#[test]
fn keys_of_a_later_version_leave_the_others_to_their_as() {
    let known = signed(profile(5, 1, vec![listed(Role::Attest, 50)]), 1);
    // Two keys, the second of suite 99, which nobody knows: written by hand, since nothing here makes it.
    let body = 2 + 4 + 8 * 3;
    let mut octets = known[..known.len() - 64].to_vec();
    octets[body..body + 2].copy_from_slice(&2u16.to_be_bytes());
    octets.extend_from_slice(&[1, 99, 0, 3, 7, 7, 7]);
    let mut message = Vec::new();
    message.extend_from_slice(&22u16.to_be_bytes());
    message.extend_from_slice(b"wayleave/pki/object/v1");
    message.extend_from_slice(&octets);
    octets.extend(key(1).sign(&message).expect("signs"));
    let mut set = set();
    set.insert(&octets, NOW).expect("taken");
    assert!(knows(&set, 5, 50));
}
