//! Lists of removed nodes: who signs them, which takes whose place, and until when one is trusted.
//!
//! ICC, list keys: ended, of another realm, revoked, stolen with the highest number: what they sign is refused, and what they signed in
//! time stays.

use wayleave_control::database::{Change, Database, Refusal};
use wayleave_control::realm::{
    Freshness, Invitee, JoinError, ListError, ListKey, ListSigner, MAX_STALENESS, NodeKeys, Registrar, RegistrarEvent,
    RegistrarInput, RegistrarOutput, RevocationList,
};
use wayleave_control::store::{Record, Store};
use wayleave_core::wire::Malformed;
use wayleave_core::{IdentityKey, Machine, UnixTime};
use wayleave_crypto::sign::SigningKey;
use wayleave_crypto::signed::{Object, Signed};

use super::common::*;

const DAY: u64 = 86_400;

fn key(number: u32) -> SigningKey {
    SigningKey::from_seed(&seed(7, number))
}

fn public(number: u32) -> [u8; 32] {
    key(number).verifying_key().to_bytes()
}

/// What the realm's key says of the list key `number`.
pub(crate) fn certificate(number: u32, generation: u64, not_after: u64) -> Signed<ListKey> {
    let object = ListKey { realm: realm(0), generation, key: public(number), issued: NOW - 10, not_after };
    Signed::sign(&object, &realm_key(0)).expect("in order")
}

pub(crate) fn list_key(number: u32, generation: u64, not_after: u64) -> ListSigner {
    ListSigner::of_list_key(key(number), certificate(number, generation, not_after)).expect("its own certificate")
}

/// A list of nodes 1 and 2 that a list key of generation 3 signed.
pub(crate) fn of_list_key() -> Signed<RevocationList> {
    let list = RevocationList {
        realm: realm(0),
        generation: 3,
        number: NOW * 1_000_000,
        issued: NOW,
        next: NOW + 600,
        by: Some(certificate(1, 3, NOW + 1_000)),
        revoked: removed(&[1, 2]),
    };
    Signed::sign(&list, &key(1)).expect("in order")
}

/// A list of them as the version before had it.
pub(crate) fn version_1() -> Signed<RevocationList> {
    let list = RevocationList { generation: 0, number: NOW, next: 0, by: None, ..of_list_key().object().clone() };
    Signed::sign(&list, &realm_key(0)).expect("in order")
}

fn realm_signer() -> ListSigner {
    ListSigner::Realm(realm_key(0))
}

fn removed(nodes: &[u32]) -> Vec<IdentityKey> {
    let mut all: Vec<IdentityKey> = nodes.iter().map(|node| identity(*node)).collect();
    all.sort_unstable();
    all
}

/// The list after `before` by `signer`, made at this second.
fn list(
    signer: &ListSigner,
    before: Option<&Signed<RevocationList>>,
    nodes: &[u32],
    secs: u64,
) -> Signed<RevocationList> {
    let generation = before.map_or(0, |before| before.object().generation);
    let before = before.map(Signed::object);
    signer.sign(before, generation, removed(nodes), 600, at(secs).unix).expect("in order")
}

#[test]
fn a_list_key_signs_lists_until_it_ends_and_what_it_signed_in_time_stays() {
    let mut database = database(4, &[]);
    let (one, two) = (list_key(1, 0, NOW + 1_000), list_key(2, 0, NOW + DAY));
    let first = list(&one, None, &[1], 10);
    assert_eq!(database.apply_revocations(first.clone(), NOW + 10), Ok(Change::New));
    assert!(database.is_revoked(&identity(1)));
    // Another key, and the realm's own, go on after it.
    let second = list(&two, Some(&first), &[1, 2], 20);
    assert_eq!(database.apply_revocations(second.clone(), NOW + 20), Ok(Change::New));
    assert_eq!(
        database.apply_revocations(first, NOW + 20).map_err(|refusal| matches!(refusal, Refusal::Older(_))),
        Err(true)
    );
    let third = list(&realm_signer(), Some(&second), &[1, 2], 30);
    assert_eq!(database.apply_revocations(third.clone(), NOW + 30), Ok(Change::New));
    let last = list(&one, Some(&third), &[1, 2], 990);
    assert_eq!(database.apply_revocations(last.clone(), NOW + 990), Ok(Change::New));
    // The key has ended: it signs nothing, says its owner's program; and what its thief signs with a time of before counts no more.
    let signed = one.sign(Some(last.object()), 0, removed(&[1, 2]), 600, at(1_001).unix);
    assert_eq!(signed.err(), Some(ListError::Ended));
    let object = RevocationList { number: u64::MAX, issued: NOW + 1_000, ..last.object().clone() };
    let back_dated = Signed::sign(&object, &key(1)).expect("in order");
    assert_eq!(database.check_revocations(&back_dated, NOW + 1_000), Ok(Change::New));
    assert_eq!(database.apply_revocations(back_dated, NOW + 1_200), Err(Refusal::ListKey));
    let late = RevocationList { issued: NOW + 1_001, next: NOW + 2_000, ..object };
    let late = Signed::sign(&late, &key(1)).expect("in order");
    assert_eq!(database.apply_revocations(late, NOW + 1_001), Err(Refusal::Signature));
    assert!(database.is_revoked(&identity(2)), "the list that it signed in time is in force");
    // Who knows no list yet has no better one.
    let mut newcomer = Database::new(realm(0), 10);
    assert_eq!(newcomer.apply_revocations(last, NOW + 5_000), Ok(Change::New));
}

#[test]
fn a_list_by_a_key_that_the_realm_did_not_sign_is_refused() {
    let mut database = database(4, &[]);
    let good = list(&list_key(1, 0, NOW + DAY), None, &[1], 10);
    let sign = |by: Option<Signed<ListKey>>, key: &SigningKey| {
        Signed::sign(&RevocationList { by, ..good.object().clone() }, key)
    };
    let mut refused = |list: Signed<RevocationList>| database.apply_revocations(list, NOW + 10);
    // By itself, by another key than the certificate's, with a certificate that another realm or nobody signed.
    assert_eq!(refused(sign(None, &key(1)).expect("in order")), Err(Refusal::Signature));
    assert_eq!(refused(sign(good.object().by.clone(), &key(2)).expect("in order")), Err(Refusal::Signature));
    assert_eq!(refused(sign(good.object().by.clone(), &realm_key(0)).expect("in order")), Err(Refusal::Signature));
    let own = Signed::sign(certificate(1, 0, NOW + DAY).object(), &key(1)).expect("in order");
    assert_eq!(refused(sign(Some(own), &key(1)).expect("in order")), Err(Refusal::Signature));
    let foreign = ListKey { realm: realm(1), ..certificate(1, 0, NOW + DAY).object().clone() };
    let foreign = Signed::sign(&foreign, &realm_key(1)).expect("in order");
    assert_eq!(sign(Some(foreign), &key(1)).err(), Some(Malformed::Value("the list key")));
    assert_eq!(sign(Some(certificate(1, 1, NOW + DAY)), &key(1)).err(), Some(Malformed::Value("the list key")));
    let other_key = ListSigner::of_list_key(key(2), certificate(1, 0, NOW + DAY));
    assert!(other_key.is_none());
    // A certificate is no list, and the other way round.
    let covered = &good.octets()[..good.octets().len() - 64];
    let relabelled = [covered, &key(1).sign(ListKey::LABEL, covered)].concat();
    assert_eq!(refused(Signed::decode(&relabelled).expect("well-formed")), Err(Refusal::Signature));
    assert_eq!(refused(good), Ok(Change::New));
}

/// Whoever stole a list key signs with the highest number, removes everybody and lets those return who were removed.
#[test]
fn a_stolen_list_key_lets_nobody_return_and_is_ended_by_the_next_generation() {
    let mut database = database(4, &[]);
    let thief = list_key(1, 0, NOW + DAY);
    let honest = list(&realm_signer(), None, &[1], 10);
    database.apply_revocations(honest.clone(), NOW + 10).expect("in order");
    let without = list(&thief, Some(&honest), &[], 20);
    assert_eq!(database.apply_revocations(without, NOW + 20), Err(Refusal::LeavesOut(identity(1))));
    let object = RevocationList { number: u64::MAX, ..list(&thief, Some(&honest), &[0, 1, 2, 3], 30).object().clone() };
    let worst = Signed::sign(&object, &key(1)).expect("in order");
    assert_eq!(database.apply_revocations(worst.clone(), NOW + 30), Ok(Change::New));
    // In its generation nothing is newer.
    let next = list(&realm_signer(), Some(&worst), &[1], 40);
    assert_ne!(database.apply_revocations(next, NOW + 40), Ok(Change::New));
    let next = realm_signer().sign(None, 1, removed(&[1]), 600, at(50).unix).expect("in order");
    assert_eq!(database.apply_revocations(next.clone(), NOW + 50), Ok(Change::New));
    assert_eq!([0, 1, 2].map(|node| database.is_revoked(&identity(node))), [false, true, false]);
    assert_eq!(database.apply_revocations(worst, NOW + 60), Err(Refusal::ListKey));
    let again = Signed::sign(&RevocationList { number: 5, ..object }, &key(1)).expect("in order");
    assert_eq!(database.apply_revocations(again, NOW + 60), Err(Refusal::ListKey));
    // The other list key goes on with what the realm's key signed of it since.
    assert_eq!(list_key(2, 0, NOW + DAY).sign_again(&next, &[], 600, at(70).unix), Err(ListError::Revoked));
    let other = list_key(2, 1, NOW + DAY).sign_again(&next, &[identity(2)], 600, at(70).unix).expect("in order");
    assert_eq!(database.apply_revocations(other, NOW + 70), Ok(Change::New));
    assert_eq!([1, 2].map(|node| database.is_revoked(&identity(node))), [true, true]);
}

#[test]
fn who_was_removed_leaves_the_list_once_its_membership_has_ended_and_not_before() {
    let mut database = database(4, &[]);
    let first = list(&realm_signer(), None, &[1, 77], 10);
    database.apply_revocations(first.clone(), NOW + 10).expect("in order");
    // Nobody knows a membership of 77.
    let without = |secs| list(&realm_signer(), Some(&first), &[], secs);
    let end = 30 * DAY;
    assert_eq!(database.check_revocations(&without(end), NOW + end), Err(Refusal::LeavesOut(identity(1))));
    assert_eq!(database.apply_revocations(without(end + 1), NOW + end + 1), Ok(Change::New));
    assert!(database.membership(&identity(1), NOW + end + 1).is_err());
}

#[test]
fn lists_of_version_1_are_read_and_written_as_they_were_and_take_the_place_of_none_of_version_2() {
    let before = version_1();
    assert_eq!(before.octets()[0], 1);
    // The octets of docs/wire/control.md.
    let fields = [&[1][..], &realm(0).0, &NOW.to_be_bytes(), &NOW.to_be_bytes(), &[0, 2]].concat();
    let fields = [&fields[..], &removed(&[1, 2])[0].0, &removed(&[1, 2])[1].0].concat();
    assert_eq!(before.octets()[..fields.len()], fields);
    let mut database = database(4, &[]);
    assert_eq!(database.apply_revocations(before.clone(), NOW), Ok(Change::New));
    let next = list(&realm_signer(), Some(&before), &[1, 2], 0);
    assert_eq!((next.octets()[0], next.object().number > NOW), (2, true));
    assert_eq!(database.apply_revocations(next, NOW), Ok(Change::New));
    assert!(database.apply_revocations(before, NOW).is_err());
    for (version, change) in [(2, 0), (2, NOW), (2, NOW + 32 * DAY)] {
        let list = RevocationList { next: change, ..list(&realm_signer(), None, &[1], 0).object().clone() };
        let signed = Signed::sign(&list, &realm_key(0));
        assert_eq!(signed.is_ok(), change == 0, "{version} {change}");
    }
}

#[test]
fn a_list_is_overdue_after_twice_its_interval_and_stale_after_max_staleness() {
    let list = list(&realm_signer(), None, &[], 0);
    let due = NOW + 600;
    let of = |list: Option<&RevocationList>, most, now| Freshness::of(list, NOW, most, now);
    let known = Some(list.object());
    let cases = [
        (due, Freshness::Fresh),
        (due + 1_200, Freshness::Fresh),
        (due + 1_201, Freshness::Overdue(due)),
        (due + DAY, Freshness::Overdue(due)),
        (due + DAY + 1, Freshness::Stale(due)),
        // Of a clock that was set back nothing follows.
        (0, Freshness::Fresh),
    ];
    for (now, expected) in cases {
        assert_eq!(of(known, MAX_STALENESS, now), expected, "{now}");
    }
    // Half of `max_staleness` where that is less, so that somebody is told before consent ends.
    assert_eq!(of(known, 1_000, due + 501), Freshness::Overdue(due));
    // No list, or none that says: from the reader's beginning.
    for list in [None, Some(&RevocationList { next: 0, ..list.object().clone() })] {
        assert_eq!(of(list, DAY, NOW + DAY / 2), Freshness::Fresh);
        assert_eq!(of(list, DAY, NOW + DAY / 2 + 1), Freshness::Overdue(NOW));
        assert_eq!(of(list, DAY, NOW + DAY + 1), Freshness::Stale(NOW));
    }
}

// The operator's side

fn registrar() -> Registrar {
    Registrar::new(realm_key(0), Store::New, at(0).unix)
}

/// Carries out what it wants stored; returns the records and events.
fn settle(registrar: &mut Registrar, secs: u64) -> (Vec<Record>, Vec<RegistrarEvent>) {
    let (mut stored, mut events) = (Vec::new(), Vec::new());
    while let Some(output) = registrar.poll() {
        match output {
            RegistrarOutput::Persist { id, records } => {
                stored.extend(records);
                registrar.handle(RegistrarInput::Persisted(id), at(secs));
            }
            RegistrarOutput::Event(event) => events.push(event),
            RegistrarOutput::Reply { .. } | RegistrarOutput::Invited { .. } => {}
        }
    }
    (stored, events)
}

fn order(registrar: &mut Registrar, input: RegistrarInput, secs: u64) -> (Vec<Record>, Vec<RegistrarEvent>) {
    registrar.handle(input, at(secs));
    settle(registrar, secs)
}

/// A node that joined.
fn admitted(registrar: &mut Registrar, node: u32) -> Vec<Record> {
    let invitee = Invitee {
        grants: membership(node).grants,
        not_after: NOW + 3_600,
        membership: 30 * DAY,
        servers: vec![server(900)],
    };
    let token = registrar.invite(invitee, seed(9, node), at(0).unix).expect("in order");
    let request = token.join(&NodeKeys { identity: identity_key(node), noise: noise(node) }).expect("in order");
    order(registrar, RegistrarInput::Join { link: 1, request: 1, octets: request.octets().clone() }, 1).0
}

fn current(registrar: &Registrar) -> RevocationList {
    registrar.revocations().expect("a list").object().clone()
}

#[test]
fn the_operators_side_signs_the_next_list_in_time_by_itself_and_each_is_newer() {
    let mut registrar = registrar();
    let mut database = Database::new(realm(0), 10);
    let mut seen = 0;
    for secs in 0..3_600 {
        if registrar.deadline().is_some_and(|due| due <= at(secs).instant) {
            registrar.handle_timeout(at(secs));
            let (stored, events) = settle(&mut registrar, secs);
            assert_eq!((stored, events), (Vec::new(), Vec::new()), "a list that removes nobody need not be durable");
            seen += 1;
        }
        let list = registrar.revocations().expect("from the start").clone();
        assert!(list.object().next > NOW + secs, "{secs}");
        database.apply_revocations(list, NOW + secs).expect("each follows on the one before");
    }
    assert_eq!(seen, 12);
    // One that begins again from its records goes on above what others have.
    let mut again = Registrar::new(realm_key(0), Store::Kept(Vec::new()), at(3_600).unix);
    again.handle_timeout(at(3_600));
    assert_eq!(database.apply_revocations(again.revocations().expect("a list").clone(), NOW + 3_600), Ok(Change::New));
}

#[test]
fn without_the_realms_key_lists_go_on_and_nobody_is_admitted_renewed_or_invited() {
    let mut with_key = registrar();
    let mut stored = admitted(&mut with_key, 7);
    stored.extend(order(&mut with_key, RegistrarInput::ListKey { key: public(1), lasts: DAY }, 2).0);
    let signer = list_key(1, 0, NOW + DAY);
    let mut registrar = Registrar::with(signer, Store::Kept(stored), at(10).unix);
    assert!(!registrar.has_realm_key());
    registrar.handle_timeout(at(10));
    let list = registrar.revocations().expect("a list").clone();
    assert!(list.object().by.is_some() && RevocationList::verify(&list, &realm(0)).is_ok());
    assert!(
        order(&mut registrar, RegistrarInput::Revoke(identity(7)), 11)
            .1
            .iter()
            .any(|event| matches!(event, RegistrarEvent::Revoked(list) if list.object().has(&identity(7))))
    );
    assert!(matches!(
        &order(&mut registrar, RegistrarInput::Renew(identity(7), 100), 12).1[..],
        [RegistrarEvent::Failed(_)]
    ));
    let renewal = RegistrarInput::Renewal { link: 1, request: 1, peer: identity(7), number: 1 };
    let event = RegistrarEvent::NotRenewed { identity: identity(7), error: JoinError::Revoked };
    assert_eq!(order(&mut registrar, renewal, 13).1, [event]);
    let request = super::objects::join_request();
    let events =
        order(&mut registrar, RegistrarInput::Join { link: 1, request: 1, octets: request.octets().clone() }, 14).1;
    assert_eq!(events, [RegistrarEvent::Refused { identity: Some(identity(7)), error: JoinError::OffLine }]);
    // Its key ends: it says so, and the list in force stays.
    let before = current(&registrar);
    registrar.handle_timeout(at(2 * DAY));
    assert_eq!(settle(&mut registrar, 2 * DAY).1, [RegistrarEvent::NoList(ListError::Ended)]);
    assert_eq!(current(&registrar), before);
}

#[test]
fn a_list_key_is_revoked_by_the_realms_key_and_the_others_go_on_in_the_next_generation() {
    let mut registrar = registrar();
    let mut stored = admitted(&mut registrar, 7);
    for number in [1, 2] {
        let (records, events) = order(&mut registrar, RegistrarInput::ListKey { key: public(number), lasts: DAY }, 2);
        assert!(matches!(&events[..], [RegistrarEvent::ListKey(_)]));
        stored.extend(records);
    }
    stored.extend(order(&mut registrar, RegistrarInput::Revoke(identity(7)), 3).0);
    let (records, events) = order(&mut registrar, RegistrarInput::RevokeListKey(public(1)), 4);
    stored.extend(records);
    let [RegistrarEvent::Revoked(list), RegistrarEvent::ListKey(anew)] = &events[..] else { panic!("{events:?}") };
    assert_eq!((list.object().generation, list.object().has(&identity(7))), (1, true));
    assert_eq!((anew.object().generation, anew.object().key, anew.object().not_after), (1, public(2), NOW + 2 + DAY));
    let again = order(&mut registrar, RegistrarInput::RevokeListKey(public(1)), 5).1;
    assert_eq!(again, [RegistrarEvent::Failed("the list key is revoked already")]);
    // The file of the other key is of before: its new certificate is in the records.
    let mut kept = Registrar::new(realm_key(0), Store::Kept(stored), at(6).unix);
    kept.set_list_signer(list_key(2, 0, NOW + DAY));
    kept.handle_timeout(at(6));
    let list = current(&kept);
    assert_eq!((list.generation, list.by.map(|by| by.object().key)), (1, Some(public(2))));
    // With the revoked one the realm's key signs, where it is.
    kept.set_list_signer(list_key(1, 0, NOW + DAY));
    kept.handle_timeout(at(400));
    assert_eq!((current(&kept).generation, current(&kept).by), (1, None));
}

#[test]
fn a_list_that_was_signed_elsewhere_is_taken_once_and_its_removals_hold() {
    let mut registrar = registrar();
    admitted(&mut registrar, 7);
    admitted(&mut registrar, 8);
    registrar.handle_timeout(at(2));
    let base = registrar.revocations().expect("a list").clone();
    // Meanwhile another is removed here.
    order(&mut registrar, RegistrarInput::Revoke(identity(8)), 3);
    let elsewhere = list_key(1, 0, NOW + DAY).sign_again(&base, &[identity(7)], 7 * DAY, at(4).unix).expect("in order");
    let (stored, _) = order(&mut registrar, RegistrarInput::List(Box::new(elsewhere.clone())), 5);
    assert!(!stored.is_empty());
    let list = current(&registrar);
    assert_eq!([7, 8].map(|node| list.has(&identity(node))), [true, true]);
    assert!(list.number > elsewhere.object().number);
    let again = order(&mut registrar, RegistrarInput::List(Box::new(elsewhere)), 6).1;
    assert_eq!(again, [RegistrarEvent::Failed("a later list is in force: publish it, or sign another after it")]);
    let foreign = ListSigner::Realm(realm_key(1)).sign(None, 0, Vec::new(), 600, at(7).unix).expect("in order");
    let foreign = order(&mut registrar, RegistrarInput::List(Box::new(foreign)), 7).1;
    assert_eq!(foreign, [RegistrarEvent::Failed("the list is not signed by this realm or a list key of it")]);
}

#[test]
fn two_lists_that_are_made_apart_in_one_second_differ_in_their_numbers() {
    let base = list(&realm_signer(), None, &[], 0);
    let made = |micros: u64| {
        let now = UnixTime(NOW * 1_000_000 + 5_000_000 + micros);
        realm_signer().sign_again(&base, &[], 600, now).expect("in order").object().number
    };
    assert_ne!(made(1), made(2));
}
