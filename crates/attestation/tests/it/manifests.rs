//! Manifests: what a folder withholds or has older is seen, and their numbers never go back.
//!
//! KCX, manifests: an object withheld, older, not listed; an older manifest; a stale one; none; of another publisher;
//! cut short: an alarm that names the object; what was known stays; numbers never go back; no outage.
//! KCX, an anchor's file that changes: what was known goes on to count.

use wayleave_attestation::pki::{
    Addition, Anchor, FolderContents, Manifest, ManifestAlarm, ManifestEntry, Object, ObjectError, ObjectSet, Profile,
    ProfileKey, Record, Refused, RetainedObject, Role, SignObjectError, Signed, Span, TRUST_ANCHOR,
};
use wayleave_attestation::suite::ed25519::Ed25519;
use wayleave_attestation::suite::slh_dsa::SlhDsa;
use wayleave_attestation::suite::{Suite, SuiteId, SuiteKey};
use wayleave_core::Asn;
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

fn signed(object: Object, by: u8) -> Vec<u8> {
    object.sign(&mut *key(by)).expect("signs")
}

fn profile(asn: u32, sequence: u64) -> Vec<u8> {
    let keys = vec![ProfileKey { role: Role::Identity, suite: SuiteId::KcEd25519, public: key(40).public().to_vec() }];
    signed(Object::Profile(Profile { asn: Asn(asn), span: span(sequence), keys }), 1)
}

fn record(asn: u32, sequence: u64) -> Vec<u8> {
    let record = Record { asn: Asn(asn), span: span(sequence), attested_since: None, prefixes: Vec::new() };
    signed(Object::Record(record), 1)
}

fn addition(asn: u32, sequence: u64) -> Vec<u8> {
    signed(Object::Addition(Addition { asn: Asn(asn), span: span(sequence), keys: Vec::new() }), 40)
}

fn entry(octets: &[u8]) -> ManifestEntry {
    ManifestEntry::of(&Signed::decode(octets).expect("decodes").object, octets).expect("no manifest")
}

fn listing(publisher: Asn, number: u64, objects: &[&[u8]]) -> Object {
    let entries = objects.iter().map(|octets| entry(octets)).collect();
    Object::Manifest(Manifest { publisher, span: span(number), entries })
}

fn manifest(number: u64, objects: &[&[u8]]) -> Vec<u8> {
    signed(listing(TRUST_ANCHOR, number, objects), 1)
}

/// A set of what was remembered and of the folder, with what it says of the folder.
fn read(remembered: &[Vec<u8>], folder: &[Vec<u8>], now: u64) -> (ObjectSet, Vec<RetainedObject>, Vec<ManifestAlarm>) {
    let mut set = set();
    for octets in remembered {
        let _ = set.insert(octets, now);
        set.remember(octets, now);
    }
    let mut sorted = folder.to_vec();
    sorted.sort_by_key(|octets| octets[1]);
    let mut contents: FolderContents = folder.iter().map(Vec::as_slice).collect();
    for octets in &sorted {
        if let Err(Refused::Expired(_)) = set.insert(octets, now) {
            contents.add_expired(octets);
        }
    }
    let (kept, alarms) = (set.kept(&contents, now), set.manifest_alarms(&contents, now));
    (set, kept, alarms)
}

#[test]
fn a_manifest_shows_what_a_folder_withholds_or_has_older() {
    let (profile_5, record_5, record_6) = (profile(5, 3), record(5, 4), record(6, 2));
    let listed = manifest(9, &[&profile_5, &record_5, &record_6]);
    let whole = vec![profile_5.clone(), record_5.clone(), record_6.clone(), listed.clone()];
    assert_eq!(read(&[], &whole, NOW).2, []);
    // Nobody here has seen them: the record of AS 6 is away, and that of AS 5 is an older one.
    let (set, kept, alarms) = read(&[], &[profile_5.clone(), record(5, 1), listed.clone()], NOW);
    let withheld = |asn, sequence, in_folder| ManifestAlarm::Withheld {
        asn: Asn(asn),
        kind: "record",
        sequence,
        in_folder,
        number: 9,
    };
    assert_eq!((kept, alarms.clone()), (vec![], vec![withheld(5, 4, Some(1)), withheld(6, 2, None)]));
    assert_eq!(set.objects().count(), 3, "what is there counts");
    let said = alarms[1].to_string();
    assert!(said.contains("withholds the record of AS6 with sequence 2, which manifest 9 lists"), "{said}");
    // What was known here is in force, and is reported as such alone.
    let (set, kept, alarms) = read(&whole, &[profile_5.clone(), record(5, 1), listed.clone()], NOW);
    let lost: Vec<(Asn, u64, Option<u64>)> =
        kept.iter().map(|kept| (kept.asn, kept.sequence, kept.in_folder)).collect();
    assert_eq!((lost, alarms), (vec![(Asn(5), 4, Some(1)), (Asn(6), 2, None)], vec![]));
    assert_eq!(set.objects().count(), 4);
    // A later object than the manifest lists is no alarm, and one that has expired is not missed.
    let later = [profile_5.clone(), record(5, 12), record_6.clone(), listed.clone()];
    assert_eq!(read(&[], &later, NOW).2, []);
    let only_stale = read(&[], &[listed], 2_001).2;
    assert!(matches!(
        only_stale[..],
        [ManifestAlarm::Stale { number: 9, next_update: 2_000, publisher: TRUST_ANCHOR }]
    ));
}

#[test]
fn a_folder_without_a_manifest_or_with_an_object_that_it_should_not_have_is_an_alarm_and_no_outage() {
    let (profile_5, record_6) = (profile(5, 3), record(6, 2));
    let (set, _, alarms) = read(&[], &[profile_5.clone(), record_6.clone()], NOW);
    assert_eq!((alarms, set.objects().count()), (vec![ManifestAlarm::Missing { publisher: TRUST_ANCHOR }], 2));
    let unlisted = ManifestAlarm::Unlisted { asn: Asn(6), kind: "record", sequence: 2, number: 9 };
    let (set, _, alarms) = read(&[], &[profile_5.clone(), record_6, manifest(9, &[&profile_5])], NOW);
    assert_eq!((alarms, set.objects().count()), (vec![unlisted], 3));
}

#[test]
fn numbers_of_manifests_never_go_back_and_a_stale_one_still_counts() {
    let (profile_5, record_6) = (profile(5, 3), record(6, 2));
    let (older, newer) = (manifest(8, &[&profile_5]), manifest(9, &[&profile_5, &record_6]));
    let remembered: Vec<Vec<u8>> =
        read(&[], &[profile_5.clone(), newer.clone()], NOW).0.objects().map(|(_, octets)| octets.to_vec()).collect();
    // The older list would not miss the record of AS 6.
    for now in [NOW, 2_500] {
        let (mut set, kept, alarms) = read(&remembered, &[profile_5.clone(), older.clone()], now);
        assert_eq!(set.insert(&older, now).err(), Some(Refused::Superseded { asn: TRUST_ANCHOR, have: 8, known: 9 }));
        assert_eq!(set.manifest(TRUST_ANCHOR, now).map(|manifest| manifest.span.sequence), Some(9));
        assert!(kept.iter().any(|kept| (kept.kind, kept.sequence, kept.in_folder) == ("manifest", 9, Some(8))));
        let is_withheld = |alarm: &ManifestAlarm| matches!(alarm, ManifestAlarm::Withheld { asn: Asn(6), .. });
        assert_eq!(alarms.iter().any(is_withheld), now == NOW, "{alarms:?}");
    }
    // It becomes stale on time, without a new file.
    let (set, ..) = read(&[], &[profile_5, newer], NOW);
    assert_eq!(set.next_change(NOW), Some(2_001));
}

#[test]
fn an_as_lists_its_own_additions_with_its_identity_key_and_nobody_elses() {
    let (profile_5, addition_5) = (profile(5, 3), addition(5, 4));
    let of_5 = signed(listing(Asn(5), 9, &[&addition_5]), 40);
    let of_anchor = manifest(9, &[&profile_5]);
    let whole = [profile_5.clone(), addition_5.clone(), of_5.clone(), of_anchor.clone()];
    assert_eq!(read(&[], &whole, NOW).2, []);
    let (.., alarms) = read(&[], &[profile_5.clone(), of_5.clone(), of_anchor.clone()], NOW);
    assert!(
        matches!(alarms[..], [ManifestAlarm::Withheld { asn: Asn(5), kind: "addition", sequence: 4, .. }]),
        "{alarms:?}"
    );
    // The anchor's key does not sign for the AS, nor a stranger's for either.
    let mut set = read(&[], &whole[..2], NOW).0;
    for (octets, asn) in
        [(signed(listing(Asn(5), 9, &[]), 1), Asn(5)), (signed(listing(TRUST_ANCHOR, 9, &[]), 40), TRUST_ANCHOR)]
    {
        assert_eq!(set.insert(&octets, NOW).err(), Some(Refused::Signature(asn)));
    }
    // And each lists what it signs.
    let refused = |object: Object| object.sign(&mut *key(1)).err();
    let field = |what| Some(SignObjectError::Object(ObjectError::Field(what)));
    assert_eq!(refused(listing(TRUST_ANCHOR, 9, &[&addition_5])), field("the kind or AS of an entry"));
    assert_eq!(refused(listing(Asn(6), 9, &[&addition_5])), field("the kind or AS of an entry"));
    assert_eq!(refused(listing(Asn(5), 9, &[&profile_5])), field("the kind or AS of an entry"));
    assert_eq!(
        refused(listing(TRUST_ANCHOR, 3, &[&profile_5])),
        field("the number, not above the sequences of the entries,")
    );
    assert_eq!(
        refused(listing(TRUST_ANCHOR, 9, &[&profile_5, &profile_5])),
        Some(SignObjectError::Object(ObjectError::Order("the entries")))
    );
}

#[test]
fn a_manifest_has_one_encoding_and_its_count_is_checked_before_anything_is_allocated() {
    let octets = manifest(9, &[&profile(5, 3), &record(5, 4)]);
    assert!(Signed::decode(&octets).is_ok());
    let count = 2 + 4 + 3 * 8;
    for wrong in [0_u32, 1, 3, 200_000, 200_001, u32::MAX] {
        let mut octets = octets.clone();
        octets[count..count + 4].copy_from_slice(&wrong.to_be_bytes());
        assert!(Signed::decode(&octets).is_err(), "{wrong}");
    }
    for end in 0..octets.len() {
        assert!(Signed::decode(&octets[..end]).is_err(), "{end}");
    }
    for version in [0, 3, 255] {
        let mut octets = octets.clone();
        octets[0] = version;
        assert_eq!(Signed::decode(&octets).err(), Some(ObjectError::Kind(version, 4)));
    }
}

#[test]
fn a_lost_object_that_waits_for_its_time_is_reported_as_waiting() {
    let later = Span { sequence: 7, not_before: 1_500, not_after: 2_000 };
    let waits = signed(Object::Profile(Profile { asn: Asn(5), span: later, keys: Vec::new() }), 1);
    let in_force = profile(5, 3);
    let (_, kept, _) = read(&[in_force.clone(), waits.clone()], &[], NOW);
    let said: Vec<(u64, Option<u64>)> = kept.iter().map(|kept| (kept.sequence, kept.begins)).collect();
    assert_eq!(said, [(3, None), (7, Some(1_500))]);
    let (_, kept, _) = read(&[in_force, waits], &[], 1_600);
    let said: Vec<(u64, Option<u64>)> = kept.iter().map(|kept| (kept.sequence, kept.begins)).collect();
    assert_eq!(said, [(7, None)]);
}

#[test]
fn a_lost_object_is_said_to_be_followed_by_an_expired_one_only_if_that_is_genuine() {
    let follower = |sequence: u64, by: u8| {
        let over = Span { sequence, not_before: 500, not_after: 900 };
        signed(Object::Record(Record { asn: Asn(5), span: over, attested_since: None, prefixes: Vec::new() }), by)
    };
    let said = |folder: &[Vec<u8>]| {
        let (_, kept, _) = read(&[record(5, 3)], folder, NOW);
        kept.iter().map(|kept| (kept.in_folder, kept.expired)).collect::<Vec<_>>()
    };
    assert_eq!(said(&[follower(8, 1)]), [(Some(8), Some(900))]);
    assert_eq!(
        said(&[follower(8, 2)]),
        [(Some(8), None)],
        "a forged one is found by whoever looks who changed the folder"
    );
    assert_eq!(said(&[follower(8, 1), follower(9, 2)]), [(Some(9), None)]);
    assert_eq!(said(&[follower(2, 1)]), [(Some(2), None)], "an older one");
}

/// What an anchor's file without its second key looks like, stripped or forgotten: nothing is refused, and it is said.
#[test]
fn second_signatures_that_nobody_checks_are_an_alarm() {
    let contents = |objects: &[Vec<u8>]| objects.iter().map(Vec::as_slice).collect::<FolderContents>();
    let mut set = set();
    let plain = record(6, 2);
    set.insert(&plain, NOW).expect("genuine");
    let has_alarm = |set: &ObjectSet, objects: &[Vec<u8>]| {
        let alarms = set.manifest_alarms(&contents(objects), NOW);
        alarms.into_iter().find(|alarm| matches!(alarm, ManifestAlarm::Unchecked { .. }))
    };
    assert_eq!(has_alarm(&set, std::slice::from_ref(&plain)), None);
    let record = Record { asn: Asn(7), span: span(2), attested_since: None, prefixes: Vec::new() };
    let mut second = SlhDsa.generate(&Secret::new([1; 32]));
    let hybrid = Object::Record(record).sign_hybrid(&mut *key(1), &mut *second).expect("signs");
    set.insert(&hybrid, NOW).expect("its first signature is right");
    assert_eq!(has_alarm(&set, &[plain, hybrid]), Some(ManifestAlarm::Unchecked { objects: 1 }));
}
