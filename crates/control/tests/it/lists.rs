//! Lists of removed nodes: who signs them, which takes whose place, and until when one is trusted.
//!
//! ICC, list keys: ended, of another realm, revoked, stolen with the highest number: what they sign is refused, and what they signed in
//! time stays.

use wayleave_control::advert::MAX_AHEAD;
use wayleave_control::database::{Change, Database, Refusal};
use wayleave_control::realm::{
    Base, Freshness, Invitee, JoinError, ListError, ListKey, ListSigner, MAX_REVOKED, MAX_STALENESS, Membership,
    NodeKeys, RealmKey, Registrar, RegistrarEvent, RegistrarInput, RegistrarOutput, Removal, RevocationList, Rolls,
    Token,
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
    let base = Base::default();
    let object = ListKey { realm: realm(0), generation, key: public(number), issued: NOW - 10, not_after, base };
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
        revoked: removed(&[1, 2]).into_iter().map(|removal| Removal { until: 0, ..removal }).collect(),
        rolls: Rolls::default(),
    };
    Signed::sign(&list, &key(1)).expect("in order")
}

/// The realm's key rolls to that of the realm 1, and the old one counts for a thousand seconds more.
pub(crate) fn rolls() -> Rolls {
    let times = [NOW - 100, NOW, NOW + 1_000];
    Rolls::default().and(realm(0), &realm_key(0), realm(1), times).expect("in order")
}

/// A list of nodes 1 and 2 that says more, by a list key of the next key.
pub(crate) fn of_next_key() -> Signed<RevocationList> {
    let base = Base { restored: vec![identity(3)], rolls: rolls() };
    let by = ListKey { base, issued: NOW, ..certificate(1, 3, NOW + 1_000).object().clone() };
    let by = Signed::sign(&by, &realm_key(1)).expect("in order");
    let list =
        RevocationList { by: Some(by), revoked: removed(&[1, 2]), rolls: rolls(), ..of_list_key().object().clone() };
    Signed::sign(&list, &key(1)).expect("in order")
}

/// A membership by the next key.
pub(crate) fn membership_of_next_key() -> Signed<Membership> {
    Signed::sign(&Membership { rolls: rolls(), number: 2, not_before: NOW, ..membership(1) }, &realm_key(1))
        .expect("in order")
}

/// A list of them as the version before had it.
pub(crate) fn version_1() -> Signed<RevocationList> {
    let list = RevocationList { generation: 0, number: NOW, next: 0, by: None, ..of_list_key().object().clone() };
    Signed::sign(&list, &realm_key(0)).expect("in order")
}

fn realm_signer() -> ListSigner {
    ListSigner::Realm(realm_key(0))
}

fn removed(nodes: &[u32]) -> Vec<Removal> {
    let mut all: Vec<Removal> =
        nodes.iter().map(|node| Removal { identity: identity(*node), until: NOW + 30 * DAY }).collect();
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
    signer.sign(before, generation, removed(nodes), &Rolls::default(), 600, at(secs).unix).expect("in order")
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
    let signed = one.sign(Some(last.object()), 0, removed(&[1, 2]), &Rolls::default(), 600, at(1_001).unix);
    assert_eq!(signed.err(), Some(ListError::Ended));
    let (number, issued, next) = ((NOW + 1_010) * 1_000_000, NOW + 1_000, NOW + 1_600);
    let object = RevocationList { number, issued, next, ..last.object().clone() };
    let back_dated = Signed::sign(&object, &key(1)).expect("in order");
    assert_eq!(database.check_revocations(&back_dated, NOW + 1_000), Ok(Change::New));
    assert_eq!(database.apply_revocations(back_dated, NOW + 1_200), Err(Refusal::ListKey));
    let late = RevocationList { issued: NOW + 1_001, next: NOW + 2_000, ..object };
    let late = Signed::sign(&late, &key(1)).expect("in order");
    assert_eq!(database.apply_revocations(late, NOW + 1_001), Err(Refusal::Signature));
    assert!(database.is_revoked(&identity(2)), "the list that it signed in time is in force");
    // Who knows no list yet takes none of a key that has ended either: its thief would rule whoever begins.
    let mut newcomer = Database::new(realm(0), 10);
    assert_eq!(newcomer.apply_revocations(last.clone(), NOW + 1_121), Err(Refusal::ListKey));
    assert_eq!(newcomer.apply_revocations(last, NOW + 1_120), Ok(Change::New));
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
    let most = (NOW + 30 + MAX_AHEAD) * 1_000_000 + 999_999;
    let object = RevocationList { number: most, ..list(&thief, Some(&honest), &[0, 1, 2, 3], 30).object().clone() };
    for number in [most + 1, u64::MAX] {
        let ahead = Signed::sign(&RevocationList { number, ..object.clone() }, &key(1)).expect("in order");
        assert_eq!(database.apply_revocations(ahead, NOW + 30), Err(Refusal::Future));
    }
    let worst = Signed::sign(&object, &key(1)).expect("in order");
    assert_eq!(database.apply_revocations(worst.clone(), NOW + 30), Ok(Change::New));
    // In its generation nothing is newer.
    let next = list(&realm_signer(), Some(&worst), &[1], 40);
    assert_ne!(database.apply_revocations(next, NOW + 40), Ok(Change::New));
    let next = realm_signer().sign(None, 1, removed(&[1]), &Rolls::default(), 600, at(50).unix).expect("in order");
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
    // Nobody here knows a membership of 77: the list says how long it may last.
    let without = |nodes, secs| list(&realm_signer(), Some(&first), nodes, secs);
    let end = 30 * DAY;
    for (nodes, missing) in [(&[77], 1), (&[1], 77)] {
        let refused = Err(Refusal::LeavesOut(identity(missing)));
        assert_eq!(database.check_revocations(&without(nodes, end), NOW + end), refused);
    }
    // Nor may one say that it is over earlier.
    let sooner = removed(&[1, 77]).into_iter().map(|removal| Removal { until: removal.until - 1, ..removal }).collect();
    let sooner = RevocationList { revoked: sooner, ..without(&[1, 77], 20).object().clone() };
    let sooner = Signed::sign(&sooner, &realm_key(0)).expect("in order");
    assert!(matches!(database.check_revocations(&sooner, NOW + 20), Err(Refusal::LeavesOut(_))));
    let without = |secs| without(&[], secs);
    assert_eq!(database.apply_revocations(without(end + 1), NOW + end + 1), Ok(Change::New));
    assert!(database.membership(&identity(1), NOW + end + 1).is_err());
}

#[test]
fn lists_of_version_1_are_read_and_written_as_they_were_and_take_the_place_of_none_of_version_2() {
    let before = version_1();
    assert_eq!(before.octets()[0], 1);
    // The octets of docs/wire/control.md.
    let fields = [&[1][..], &realm(0).0, &NOW.to_be_bytes(), &NOW.to_be_bytes(), &[0, 2]].concat();
    let fields = [&fields[..], &removed(&[1, 2])[0].identity.0, &removed(&[1, 2])[1].identity.0].concat();
    assert_eq!(before.octets()[..fields.len()], fields);
    let mut database = database(4, &[]);
    assert_eq!(database.apply_revocations(before.clone(), NOW), Ok(Change::New));
    let next = list(&realm_signer(), Some(&before), &[1, 2], 0);
    assert_eq!((next.octets()[0], next.object().number > NOW), (3, true));
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
    assert!(!registrar.has_realm_key(NOW));
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
    let (records, events) =
        order(&mut registrar, RegistrarInput::RevokeListKey { key: public(1), restored: Vec::new() }, 4);
    stored.extend(records);
    let [RegistrarEvent::Revoked(list), RegistrarEvent::ListKey(anew)] = &events[..] else { panic!("{events:?}") };
    assert_eq!((list.object().generation, list.object().has(&identity(7))), (1, true));
    assert_eq!((anew.object().generation, anew.object().key, anew.object().not_after), (1, public(2), NOW + 2 + DAY));
    let again = order(&mut registrar, RegistrarInput::RevokeListKey { key: public(1), restored: Vec::new() }, 5).1;
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
    let foreign = ListSigner::Realm(realm_key(1))
        .sign(None, 0, Vec::new(), &Rolls::default(), 600, at(7).unix)
        .expect("in order");
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

/// ICC, clocks: the operator's or a reader's clock was ahead, and is set back: lists go on at once.
#[test]
fn lists_go_on_after_a_clock_that_was_ahead_is_set_back() {
    let (mut right, mut wrong) = (Database::new(realm(0), 10), Database::new(realm(0), 10));
    let mut registrar = registrar();
    admitted(&mut registrar, 7);
    let ahead = order(&mut registrar, RegistrarInput::Revoke(identity(7)), 90 * DAY).0;
    let list = registrar.revocations().expect("a list").clone();
    assert_eq!(right.apply_revocations(list.clone(), NOW + 10), Err(Refusal::Future));
    assert_eq!(wrong.apply_revocations(list, NOW + 90 * DAY), Ok(Change::New));
    // All clocks are right again: the operator's records and one reader have the list of the future.
    for mut registrar in [registrar, Registrar::new(realm_key(0), Store::Kept(ahead), at(20).unix)] {
        registrar.handle_timeout(at(20));
        order(&mut registrar, RegistrarInput::NewList, 20);
        let list = registrar.revocations().expect("a list").clone();
        assert!(list.object().has(&identity(7)) && !list.object().is_ahead(NOW + 20));
        for reader in [&mut right, &mut wrong] {
            assert_ne!(
                reader
                    .apply_revocations(list.clone(), NOW + 20)
                    .map_err(|refusal| matches!(refusal, Refusal::Older(_))),
                Err(false)
            );
            assert!(reader.is_revoked(&identity(7)));
        }
        assert!(!wrong.revocations().expect("a list").object().is_ahead(NOW + 20));
    }
}

/// A machine that signs from an old list, or a thief, may have a certificate of the next generation.
#[test]
fn a_list_of_the_next_generation_brings_back_whom_the_realms_key_names_and_nobody_else() {
    let mut database = database(4, &[]);
    let first = list(&list_key(1, 0, NOW + DAY), None, &[1, 2], 10);
    database.apply_revocations(first, NOW + 10).expect("in order");
    let restored = |nodes: &[u32]| {
        let mut restored: Vec<_> = nodes.iter().map(|node| identity(*node)).collect();
        restored.sort_unstable();
        let base = Base { restored, rolls: Rolls::default() };
        let certificate = ListKey { base, ..certificate(2, 1, NOW + DAY).object().clone() };
        let certificate = Signed::sign(&certificate, &realm_key(0)).expect("in order");
        ListSigner::of_list_key(key(2), certificate).expect("its own certificate")
    };
    let next = |signer: &ListSigner| {
        signer.sign(None, 1, removed(&[2]), &Rolls::default(), 600, at(20).unix).expect("in order")
    };
    for names in [&[][..], &[3]] {
        let refused = database.apply_revocations(next(&restored(names)), NOW + 20);
        assert_eq!(refused, Err(Refusal::LeavesOut(identity(1))));
    }
    assert_eq!(database.apply_revocations(next(&restored(&[1])), NOW + 20), Ok(Change::New));
    assert_eq!([1, 2].map(|node| database.is_revoked(&identity(node))), [false, true]);
}

/// ICC, backup: old records are put back: nobody is a member again for it.
#[test]
fn the_operators_side_hears_from_path_servers_who_was_removed_elsewhere_or_since_its_backup() {
    let mut registrar = registrar();
    let mut backup = admitted(&mut registrar, 7);
    backup.extend(admitted(&mut registrar, 8));
    let mut database = Database::new(realm(0), 10);
    order(&mut registrar, RegistrarInput::Revoke(identity(7)), 10);
    let list = registrar.revocations().expect("a list").clone();
    database.apply_revocations(list.clone(), NOW + 10).expect("in order");
    let mut old = Registrar::new(realm_key(0), Store::Kept(backup), at(20).unix);
    old.handle_timeout(at(20));
    let refused = database.apply_revocations(old.revocations().expect("a list").clone(), NOW + 20);
    assert_eq!(refused, Err(Refusal::LeavesOut(identity(7))), "what the server says until its list was heard");
    let (stored, events) = order(&mut old, RegistrarInput::Heard(Box::new(list.clone())), 21);
    assert!(events.contains(&RegistrarEvent::RemovedElsewhere(vec![identity(7)])), "{events:?}");
    assert!(stored.iter().any(|record| matches!(record, Record::Heard(_))), "it is durable");
    assert!(old.is_revoked(&identity(7)) && !old.is_revoked(&identity(8)));
    let next = old.revocations().expect("a list").clone();
    assert_eq!(database.apply_revocations(next, NOW + 21), Ok(Change::New));
    // The same again is nothing new, and a foreign one nothing at all.
    let foreign = ListSigner::Realm(realm_key(1)).sign(None, 0, removed(&[8]), &Rolls::default(), 600, at(22).unix);
    for heard in [list, foreign.expect("in order")] {
        assert_eq!(order(&mut old, RegistrarInput::Heard(Box::new(heard)), 22), (Vec::new(), Vec::new()));
    }
    assert!(!old.is_revoked(&identity(8)));
}

#[test]
fn a_node_that_is_removed_stays_on_the_list_until_no_membership_of_it_can_last() {
    let mut registrar = registrar();
    let backup = admitted(&mut registrar, 7);
    // It has renewed since, and these records do not know.
    let renewal = RegistrarInput::Renewal { link: 1, request: 1, peer: identity(7), number: 1 };
    let renewed = order(&mut registrar, renewal, 16 * DAY).0;
    let [Record::Membership(renewed)] = &renewed[..] else { panic!("{renewed:?}") };
    let mut old = Registrar::new(realm_key(0), Store::Kept(backup), at(17 * DAY).unix);
    order(&mut old, RegistrarInput::Revoke(identity(7)), 17 * DAY);
    let end = renewed.object().not_after;
    assert!(current(&old).removal(&identity(7)).is_some_and(|removal| removal.until >= end));
    order(&mut old, RegistrarInput::NewList, end - NOW);
    assert!(current(&old).has(&identity(7)));
}

#[test]
fn whoever_removes_a_node_removes_those_that_took_its_place_by_its_keys() {
    let mut registrar = registrar();
    let mut stored = admitted(&mut registrar, 7);
    for (from, to) in [(7, 8), (8, 9)] {
        let key = SigningKey::from_seed(&seed(5, to)).verifying_key().to_bytes();
        let roll = RegistrarInput::Roll { link: 1, request: 1, peer: identity(from), key, servers: vec![server(900)] };
        let secs = 10 + DAY * u64::from(to);
        registrar.handle(roll, at(secs));
        let mut invitation = None;
        while let Some(output) = registrar.poll() {
            match output {
                RegistrarOutput::Persist { id, records } => {
                    stored.extend(records);
                    registrar.handle(RegistrarInput::Persisted(id), at(secs));
                }
                RegistrarOutput::Invited { answer, .. } => invitation = Some(answer.expect("an invitation")),
                _ => {}
            }
        }
        let token = Token::of(invitation.expect("an answer"), seed(5, to)).expect("its own");
        let request = token.join(&NodeKeys { identity: identity_key(to), noise: noise(to) }).expect("in order");
        let join = RegistrarInput::Join { link: 1, request: 2, octets: request.octets().clone() };
        stored.extend(order(&mut registrar, join, secs).0);
    }
    let mut again = Registrar::new(realm_key(0), Store::Kept(stored), at(20 * DAY).unix);
    assert_eq!(again.successors(&identity(7)), [7, 8, 9].map(identity));
    assert_eq!([7, 8, 9].map(|node| again.is_revoked(&identity(node))), [true, true, false]);
    // The key that was stolen is the first one.
    order(&mut again, RegistrarInput::Revoke(identity(7)), 20 * DAY);
    assert!([7, 8, 9].iter().all(|node| current(&again).has(&identity(*node))));
    let event = order(&mut again, RegistrarInput::Revoke(identity(7)), 20 * DAY).1;
    assert_eq!(event, [RegistrarEvent::Failed("the node is revoked already")]);
}

/// What a stolen list key removed stays removed, unless the operator says otherwise.
#[test]
fn the_next_generation_carries_every_removal_but_those_that_the_operator_names() {
    let mut registrar = registrar();
    let mut stored = [7, 8, 9].iter().flat_map(|node| admitted(&mut registrar, *node)).collect::<Vec<_>>();
    for number in [1, 2] {
        stored.extend(order(&mut registrar, RegistrarInput::ListKey { key: public(number), lasts: DAY }, 2).0);
    }
    stored.extend(order(&mut registrar, RegistrarInput::Revoke(identity(7)), 3).0);
    let base = registrar.revocations().expect("a list").clone();
    let thief = list_key(1, 0, NOW + DAY);
    let worst = thief.sign_again(&base, &[identity(8), identity(9)], 600, at(4).unix).expect("in order");
    let mut database = Database::new(realm(0), 10);
    database.apply_revocations(worst.clone(), NOW + 4).expect("in order");
    stored.extend(order(&mut registrar, RegistrarInput::Heard(Box::new(worst)), 5).0);
    let mut by_thief = registrar.removed_by(&public(1));
    by_thief.sort_unstable();
    assert_eq!(by_thief, {
        let mut both = [8, 9].map(identity);
        both.sort_unstable();
        both
    });
    let revoke = |restored| RegistrarInput::RevokeListKey { key: public(1), restored };
    let refused = order(&mut registrar, revoke(vec![identity(7)]), 6).1;
    assert!(matches!(&refused[..], [RegistrarEvent::Failed(_)]), "{refused:?}");
    stored.extend(order(&mut registrar, revoke(vec![identity(8)]), 6).0);
    // After a restart, and in lists of the other key.
    let mut again = Registrar::new(realm_key(0), Store::Kept(stored), at(7).unix);
    again.set_list_signer(list_key(2, 0, NOW + DAY));
    again.handle_timeout(at(7));
    let list = again.revocations().expect("a list").clone();
    assert_eq!(list.object().by.as_ref().map(|by| by.object().key), Some(public(2)));
    assert_eq!(database.apply_revocations(list, NOW + 7), Ok(Change::New));
    assert_eq!([7, 8, 9].map(|node| database.is_revoked(&identity(node))), [true, false, true]);
}

// The realm's key rolls

#[test]
fn what_the_next_key_signs_counts_from_its_date_for_whoever_knows_the_first_one() {
    let membership = membership_of_next_key();
    // A reader that has heard nothing of it follows by itself.
    let mut database = database(4, &[]);
    let early = NOW - MAX_AHEAD - 1;
    assert_eq!(Database::new(realm(0), 10).apply_membership(membership.clone(), early), Err(Refusal::Future));
    assert_eq!(database.apply_membership(membership.clone(), NOW), Ok(Change::New));
    // Without the rolls, or with those of another, it is not the realm's.
    let alone = Membership { rolls: Rolls::default(), number: 3, ..membership.object().clone() };
    let alone = Signed::sign(&alone, &realm_key(1)).expect("in order");
    assert_eq!(database.apply_membership(alone, NOW), Err(Refusal::Signature));
    let forged = Rolls::default().and(realm(0), &realm_key(1), realm(1), [NOW - 100, NOW, NOW + 1_000]);
    assert!(forged.is_err(), "nobody but the present key says which one is next");
    let back = rolls().and(realm(0), &realm_key(1), realm(0), [NOW, NOW + 10, NOW + 20]);
    assert!(back.is_err(), "no key is the realm's twice");
}

#[test]
fn what_the_key_before_signed_goes_on_to_its_end_and_what_it_signs_after_the_date_counts_for_nothing() {
    let mut database = database(4, &[]);
    let announced = realm_signer().sign(None, 0, removed(&[3]), &rolls(), 600, UnixTime((NOW - 50) * 1_000_000));
    assert_eq!(database.apply_revocations(announced.expect("in order"), NOW - 50), Ok(Change::New));
    let late = Membership { number: 9, not_before: NOW + 1, ..membership(1) };
    let late = Signed::sign(&late, &realm_key(0)).expect("in order");
    assert_eq!(database.apply_membership(late, NOW + 1), Err(Refusal::RealmKey));
    let late = realm_signer().sign(None, 0, removed(&[3]), &rolls(), 600, at(1).unix);
    assert_eq!(late.err(), Some(ListError::Rolled));
    // A list that has not heard of the roll takes the place of none that has.
    let without = list(&realm_signer(), None, &[3], 2);
    assert_eq!(database.apply_revocations(without, NOW + 2), Err(Refusal::RealmKey));
    let next = ListSigner::Realm(realm_key(1)).sign(None, 0, removed(&[3]), &rolls(), 600, at(3).unix);
    assert_eq!(database.apply_revocations(next.expect("in order"), NOW + 3), Ok(Change::New));
    // Another roll by the old key, which its thief may make, is none.
    let other =
        Rolls::default().and(realm(0), &realm_key(0), realm(2), [NOW - 99, NOW, NOW + 1_000]).expect("in order");
    let theirs = ListSigner::Realm(realm_key(2)).sign(None, 7, Vec::new(), &other, 600, at(4).unix).expect("in order");
    assert_eq!(database.apply_revocations(theirs, NOW + 4), Err(Refusal::RealmKey));
    let theirs = Membership { rolls: other, number: 9, ..membership(1) };
    let theirs = Signed::sign(&theirs, &realm_key(2)).expect("in order");
    assert_eq!(database.apply_membership(theirs, NOW + 4), Err(Refusal::RealmKey));
    // Members go on until the old key's end, also after a restart.
    let records: Vec<Record> = database.all_records().collect();
    let mut restarted = Database::new(realm(0), 10);
    restarted.restore(&records).expect("its own records");
    for database in [&mut database, &mut restarted] {
        assert!(database.membership(&identity(1), NOW + 1_000).is_ok());
        assert_eq!(database.membership(&identity(1), NOW + 1_001).err(), Some(Refusal::RealmKey));
        assert_eq!(database.members(NOW + 1_001).count(), 0);
        assert_eq!(database.apply_membership(membership_of_next_key(), NOW + 2_000), Ok(Change::New));
        assert!(database.membership(&identity(1), NOW + 2_000).is_ok());
    }
}

/// Whoever stole the realm's key signed a list key of the highest generation: once that key's time is over, the next key begins anew.
#[test]
fn after_the_end_of_a_stolen_realm_key_no_list_of_its_list_keys_rules() {
    let mut database = database(4, &[]);
    let theirs =
        list_key(1, u64::MAX, NOW + DAY).sign(None, u64::MAX, removed(&[0, 1, 2]), &Rolls::default(), 600, at(0).unix);
    assert_eq!(database.apply_revocations(theirs.expect("in order"), NOW), Ok(Change::New));
    let rolls = Rolls::default().and(realm(0), &realm_key(0), realm(1), [NOW + 10; 3]).expect("in order");
    let own = ListSigner::Realm(realm_key(1)).sign(None, 0, removed(&[3]), &rolls, 600, at(11).unix).expect("in order");
    assert_eq!(database.apply_revocations(own, NOW + 11), Ok(Change::New));
    assert_eq!([0, 3].map(|node| database.is_revoked(&identity(node))), [false, true]);
    let again = list_key(1, u64::MAX, NOW + DAY).sign(None, u64::MAX, removed(&[0]), &rolls, 600, at(12).unix);
    assert_eq!(database.apply_revocations(again.expect("in order"), NOW + 12), Err(Refusal::RealmKey));
}

#[test]
fn the_operators_side_rolls_the_realms_key_and_goes_on_with_the_next_one_from_its_date() {
    let mut registrar = registrar();
    let mut stored = admitted(&mut registrar, 7);
    let token = |registrar: &Registrar, node: u32, secs| {
        let grants = membership(node).grants;
        let invitee = Invitee { grants, not_after: NOW + DAY, membership: DAY, servers: vec![server(900)] };
        registrar.invite(invitee, seed(9, node), at(secs).unix)
    };
    let [old, other] = [8, 9].map(|node| token(&registrar, node, 2).expect("in order"));
    let roll = RegistrarInput::RollKey { next: realm(1), from: NOW + 100, until: NOW + 10 * DAY };
    let (records, events) = order(&mut registrar, roll.clone(), 3);
    stored.extend(records);
    assert!(matches!(&events[..], [RegistrarEvent::KeyRolled(roll)] if roll.next == realm(1)), "{events:?}");
    assert!(matches!(&order(&mut registrar, roll, 4).1[..], [RegistrarEvent::Failed(_)]), "one at a time");
    assert_eq!(current(&registrar).rolls.len(), 1, "lists say so before the date");
    let join = |registrar: &mut Registrar, token: &Token, node: u32, secs| {
        let request = token.join(&NodeKeys { identity: identity_key(node), noise: noise(node) }).expect("in order");
        order(registrar, RegistrarInput::Join { link: 1, request: 1, octets: request.octets().clone() }, secs)
    };
    let before = join(&mut registrar, &old, 8, 99);
    assert!(matches!(&before.1[..], [RegistrarEvent::Admitted(member)] if member.object().rolls.is_empty()));
    stored.extend(before.0);
    // The next key alone, after the date: the records know whose it is.
    let mut next = Registrar::new(realm_key(1), Store::Kept(stored.clone()), at(101).unix);
    assert_eq!((next.realm(), next.has_realm_key(NOW + 99), next.has_realm_key(NOW + 100)), (realm(0), false, true));
    assert_eq!(next.foreign_keys().collect::<Vec<RealmKey>>(), []);
    assert_eq!(Registrar::new(realm_key(2), Store::Kept(stored), at(101).unix).foreign_keys().count(), 1);
    next.handle_timeout(at(101));
    let list = next.revocations().expect("a list").clone();
    assert!(RevocationList::verify(&list, &realm(0)).is_ok());
    // Tokens of before are over, members are renewed, and others are invited, by the next key.
    let late = join(&mut next, &other, 9, 102).1;
    assert_eq!(late, [RegistrarEvent::Refused { identity: Some(identity(9)), error: JoinError::Expired }]);
    let renewed = order(&mut next, RegistrarInput::Renew(identity(7), DAY), 103).1;
    let anew = token(&next, 9, 104).expect("in order");
    let admitted = join(&mut next, &anew, 9, 105).1;
    let ([RegistrarEvent::Renewed(seven)], [RegistrarEvent::Admitted(nine)]) = (&renewed[..], &admitted[..]) else {
        panic!("{renewed:?} {admitted:?}")
    };
    let mut database = Database::new(realm(0), 10);
    for member in [seven, nine] {
        assert_eq!((member.object().realm, member.object().rolls.len()), (realm(0), 1));
        assert_eq!(database.apply_membership(member.clone(), NOW + 106), Ok(Change::New));
    }
    // The key before does nothing any more.
    assert!(!registrar.has_realm_key(NOW + 100));
    assert!(matches!(
        &order(&mut registrar, RegistrarInput::Renew(identity(7), DAY), 107).1[..],
        [RegistrarEvent::Failed(_)]
    ));
}

#[test]
fn a_stolen_realm_key_is_replaced_at_once_and_all_members_are_signed_anew() {
    let mut registrar = registrar();
    admitted(&mut registrar, 7);
    admitted(&mut registrar, 8);
    order(&mut registrar, RegistrarInput::ListKey { key: public(1), lasts: DAY }, 2);
    order(&mut registrar, RegistrarInput::Revoke(identity(8)), 3);
    // The thief has a list key of the highest generation, and the operator's side has heard of it.
    let theirs = list_key(9, u64::MAX, NOW + DAY);
    let theirs = theirs.sign(None, u64::MAX, removed(&[8]), &Rolls::default(), 600, at(4).unix).expect("in order");
    order(&mut registrar, RegistrarInput::Heard(Box::new(theirs)), 4);
    let revoke = RegistrarInput::RevokeListKey { key: public(1), restored: Vec::new() };
    assert!(matches!(&order(&mut registrar, revoke, 5).1[..], [RegistrarEvent::Failed(_)]));
    registrar.add_key(realm_key(1));
    let roll = RegistrarInput::RollKey { next: realm(1), from: NOW + 10, until: NOW + 10 };
    let (stored, _) = order(&mut registrar, roll, 10);
    let anew: Vec<&Membership> = registrar.members().filter(|member| !member.rolls.is_empty()).collect();
    assert_eq!(
        anew.iter().map(|member| (member.identity, member.not_after)).collect::<Vec<_>>(),
        [(identity(7), NOW + 1 + 30 * DAY)]
    );
    assert!(registrar.list_keys().all(|key| key.base.rolls.len() == 1 && key.generation == registrar.generation()));
    assert_eq!((registrar.generation(), current(&registrar).generation), (0, 0));
    let again = Registrar::new(realm_key(1), Store::Kept(stored), at(11).unix);
    let list = again.revocations().expect("a list").clone();
    let mut database = Database::new(realm(0), 10);
    assert_eq!(database.apply_revocations(list, NOW + 11), Ok(Change::New));
    let (answer, signed) = (again.members().next().expect("a member"), membership(7));
    assert_eq!((answer.identity, &answer.grants), (signed.identity, &signed.grants));
    // The node asks, and gets it before half of its time is over.
    let mut again = again;
    again.handle(RegistrarInput::Renewal { link: 1, request: 1, peer: identity(7), number: 1 }, at(12));
    assert!(
        matches!(again.poll(), Some(RegistrarOutput::Reply { answer: Ok(member), .. }) if member.object().rolls.len() == 1)
    );
}

// Whoever stole a key, and the operator's records

/// A list by `signer` with as many nodes that nobody knows, from the number `from` on.
fn invented(signer: &ListSigner, from: u32, count: u32, secs: u64) -> Signed<RevocationList> {
    let node = |number: u32| {
        let mut key = [0; 32];
        key[..4].copy_from_slice(&number.to_be_bytes());
        Removal { identity: IdentityKey(key), until: NOW + 30 * DAY }
    };
    let revoked = (from..from + count).map(node).collect();
    signer.sign(None, 0, revoked, &Rolls::default(), 600, at(secs).unix).expect("in order")
}

fn heard(registrar: &mut Registrar, list: &Signed<RevocationList>, secs: u64) -> (Vec<Record>, Vec<RegistrarEvent>) {
    order(registrar, RegistrarInput::Heard(Box::new(list.clone())), secs)
}

#[test]
fn a_stolen_list_key_with_lists_full_of_invented_nodes_ends_no_signing_and_is_revoked() {
    let most = u32::try_from(MAX_REVOKED).expect("small");
    let mut registrar = registrar();
    let mut stored = admitted(&mut registrar, 7);
    for number in [1, 2] {
        stored.extend(order(&mut registrar, RegistrarInput::ListKey { key: public(number), lasts: DAY }, 2).0);
    }
    let thief = list_key(1, 0, NOW + DAY);
    for number in 0..5 {
        let (records, events) =
            heard(&mut registrar, &invented(&thief, number * most, most, 3 + u64::from(number)), 20);
        let is_said =
            |event: &RegistrarEvent| matches!(event, RegistrarEvent::Invented { key, .. } if *key == public(1));
        assert!(events.iter().any(is_said), "{number}");
        stored.extend(records);
    }
    let (records, events) = order(&mut registrar, RegistrarInput::Revoke(identity(7)), 21);
    assert!(events.iter().any(|event| matches!(event, RegistrarEvent::Revoked(_))), "{events:?}");
    stored.extend(records);
    let mut kept = Registrar::new(realm_key(0), Store::Kept(stored), at(22).unix);
    for registrar in [&mut registrar, &mut kept] {
        let restored = registrar.removed_by(&public(1));
        assert!(!restored.contains(&identity(7)));
        let revoke = RegistrarInput::RevokeListKey { key: public(1), restored };
        let (_, events) = order(registrar, revoke, 23);
        let [RegistrarEvent::Revoked(list), RegistrarEvent::ListKey(other)] = &events[..] else { panic!("{events:?}") };
        assert_eq!(list.object().identities(), [identity(7)]);
        assert_eq!(other.object().base.restored, [], "who never was a member has no place there");
    }
}

#[test]
fn nodes_that_nobody_knows_are_on_the_list_of_a_revoked_key_no_more_though_nobody_names_them() {
    let mut registrar = registrar();
    let mut stored: Vec<Record> = [7, 8].iter().flat_map(|node| admitted(&mut registrar, *node)).collect();
    stored.extend(order(&mut registrar, RegistrarInput::ListKey { key: public(1), lasts: DAY }, 2).0);
    let thief = list_key(1, 0, NOW + DAY);
    let worst = invented(&thief, 0, 900, 3);
    let worst = thief.sign_again(&worst, &[identity(7), identity(8)], 600, at(4).unix).expect("in order");
    let mut database = Database::new(realm(0), 10);
    database.apply_revocations(worst.clone(), NOW + 5).expect("in order");
    stored.extend(heard(&mut registrar, &worst, 5).0);
    let revoke = RegistrarInput::RevokeListKey { key: public(1), restored: vec![identity(7)] };
    stored.extend(order(&mut registrar, revoke, 6).0);
    assert_eq!(current(&registrar).identities(), [identity(8)]);
    let kept = Registrar::new(realm_key(0), Store::Kept(stored), at(7).unix);
    assert_eq!(current(&kept).identities(), [identity(8)]);
    // A server that heard nothing of it in time takes the realm's own list first, and then any.
    registrar.set_list_signer(list_key(2, 1, NOW + DAY));
    order(&mut registrar, RegistrarInput::NewList, 8);
    let next = registrar.revocations().expect("a list").clone();
    assert!(matches!(database.apply_revocations(next.clone(), NOW + 8), Err(Refusal::LeavesOut(_))));
    for list in [kept.opening().expect("the first of its generation").clone(), next] {
        assert_eq!(database.apply_revocations(list, NOW + 9), Ok(Change::New));
    }
}

/// The list of whoever stole the realm's key, rolled it to a key of its own and signs with that.
fn of_thiefs_roll() -> Signed<RevocationList> {
    let rolls = Rolls::default().and(realm(0), &realm_key(0), realm(2), [NOW, NOW, NOW + 1_000]).expect("in order");
    ListSigner::Realm(realm_key(2)).sign(None, 0, removed(&[7]), &rolls, 600, at(3).unix).expect("in order")
}

#[test]
fn a_roll_of_the_realms_key_that_nobody_ordered_is_an_alarm_and_not_followed() {
    let mut registrar = registrar();
    admitted(&mut registrar, 7);
    let theirs = of_thiefs_roll();
    let (stored, events) = heard(&mut registrar, &theirs, 4);
    assert!(
        events.iter().any(|event| matches!(event, RegistrarEvent::RolledElsewhere(roll) if roll.next == realm(2))),
        "{events:?}"
    );
    assert!(registrar.rolls().is_empty() && registrar.is_revoked(&identity(7)));
    assert!(!stored.iter().any(|record| matches!(record, Record::Rolls(_))));
    registrar.add_key(realm_key(1));
    let roll = RegistrarInput::RollKey { next: realm(1), from: NOW + 5, until: NOW + 5 };
    let events = order(&mut registrar, roll, 5).1;
    assert!(
        events.iter().any(|event| matches!(event, RegistrarEvent::KeyRolled(roll) if roll.next == realm(1))),
        "{events:?}"
    );
    assert!(!registrar.is_revoked(&identity(7)));
    // By the operator's order, or where the next key is here, it is.
    let mut ordered = Registrar::new(realm_key(0), Store::New, at(0).unix);
    order(&mut ordered, RegistrarInput::List(Box::new(theirs.clone())), 4);
    assert_eq!(ordered.rolls().len(), 1);
    let mut own = Registrar::new(realm_key(0), Store::New, at(0).unix);
    own.add_key(realm_key(2));
    heard(&mut own, &theirs, 4);
    assert_eq!(own.rolls().len(), 1);
}

#[test]
fn whom_the_thief_of_the_realms_key_removed_is_a_member_again_after_the_roll_and_whom_the_operator_did_is_not() {
    let mut registrar = registrar();
    let mut stored: Vec<Record> = [7, 8].iter().flat_map(|node| admitted(&mut registrar, *node)).collect();
    stored.extend(order(&mut registrar, RegistrarInput::Revoke(identity(8)), 3).0);
    let theirs = list_key(9, u64::MAX, NOW + DAY);
    let theirs =
        theirs.sign(None, u64::MAX, removed(&[7, 8, 50]), &Rolls::default(), 600, at(4).unix).expect("in order");
    let mut database = Database::new(realm(0), 10);
    database.apply_revocations(theirs.clone(), NOW + 4).expect("in order");
    stored.extend(heard(&mut registrar, &theirs, 4).0);
    assert!(registrar.is_revoked(&identity(7)));
    registrar.add_key(realm_key(1));
    let roll = RegistrarInput::RollKey { next: realm(1), from: NOW + 10, until: NOW + 10 };
    let (records, events) = order(&mut registrar, roll, 10);
    assert!(events.contains(&RegistrarEvent::Restored(vec![identity(7)])), "{events:?}");
    stored.extend(records);
    let kept = Registrar::new(realm_key(1), Store::Kept(stored), at(11).unix);
    for registrar in [registrar, kept] {
        assert_eq!([7, 8, 50].map(|node| registrar.is_revoked(&identity(node))), [false, true, false]);
        let member = registrar.members().find(|member| member.identity == identity(7)).expect("a member");
        assert_eq!(member.rolls.len(), 1);
        assert_eq!(current(&registrar).identities(), [identity(8)]);
        // In the very second of the roll.
        let list = registrar.revocations().expect("a list").clone();
        assert_ne!(database.apply_revocations(list, NOW + 10).map_err(|_| ()), Err(()));
    }
}

#[test]
fn the_end_of_a_later_key_ends_those_before_it_too() {
    let rolls = Rolls::default().and(realm(0), &realm_key(0), realm(1), [NOW - 100, NOW - 100, NOW + 300 * DAY]);
    let rolls = rolls.and_then(|rolls| rolls.and(realm(0), &realm_key(1), realm(2), [NOW + 10; 3])).expect("in order");
    let mut database = Database::new(realm(0), 10);
    let list = ListSigner::Realm(realm_key(2)).sign(None, 0, Vec::new(), &rolls, 600, at(11).unix).expect("in order");
    assert_eq!(database.apply_revocations(list, NOW + 11), Ok(Change::New));
    let of_first = Membership { not_before: NOW - 200, ..membership(1) };
    let of_first = Signed::sign(&of_first, &realm_key(0)).expect("in order");
    assert_eq!(database.apply_membership(of_first, NOW + 11), Err(Refusal::RealmKey));
}

/// A key that was rolled in order goes on to sign with times of before: its thief has no say in what comes later.
#[test]
fn a_list_of_any_generation_that_is_made_before_the_present_one_takes_no_place() {
    let mut database = database(4, &[]);
    let own = ListSigner::Realm(realm_key(1)).sign(None, 0, Vec::new(), &rolls(), 600, at(500).unix).expect("in order");
    assert_eq!(database.apply_revocations(own, NOW + 500), Ok(Change::New));
    let theirs = RevocationList {
        realm: realm(0),
        generation: u64::MAX,
        number: (NOW + 500) * 1_000_000,
        issued: NOW - 1,
        next: NOW + 600,
        by: None,
        revoked: removed(&[0, 1, 2]),
        rolls: rolls(),
    };
    let theirs = Signed::sign(&theirs, &realm_key(0)).expect("in order");
    assert!(matches!(database.apply_revocations(theirs, NOW + 501), Err(Refusal::Older(_))));
}

#[test]
fn a_realm_key_that_was_stolen_while_a_roll_waits_is_ended_at_once() {
    let mut registrar = registrar();
    let mut stored = admitted(&mut registrar, 7);
    registrar.add_key(realm_key(1));
    let roll = RegistrarInput::RollKey { next: realm(1), from: NOW + 7 * DAY, until: NOW + 300 * DAY };
    stored.extend(order(&mut registrar, roll, 3).0);
    let mut database = Database::new(realm(0), 10);
    database.apply_revocations(registrar.revocations().expect("a list").clone(), NOW + 3).expect("in order");
    let stolen = RegistrarInput::RollKey { next: realm(2), from: NOW + 10, until: NOW + 10 };
    // The key that waits alone says which one is next.
    let mut without = Registrar::new(realm_key(0), Store::Kept(stored.clone()), at(10).unix);
    assert!(matches!(&order(&mut without, stolen.clone(), 10).1[..], [RegistrarEvent::Failed(_)]));
    registrar.add_key(realm_key(2));
    let (records, events) = order(&mut registrar, stolen, 10);
    assert!(events.iter().any(|event| matches!(event, RegistrarEvent::KeyRolled(roll) if roll.next == realm(2))));
    stored.extend(records);
    let kept = Registrar::new(realm_key(2), Store::Kept(stored), at(11).unix);
    assert!(kept.has_realm_key(NOW + 11) && kept.has_realm_key(NOW + 8 * DAY));
    let list = kept.revocations().expect("a list").clone();
    assert_eq!(database.apply_revocations(list, NOW + 11), Ok(Change::New));
    let of_thief = Signed::sign(&membership(1), &realm_key(0)).expect("in order");
    assert_eq!(database.apply_membership(of_thief, NOW + 11), Err(Refusal::RealmKey));
    let anew =
        Signed::sign(&Membership { rolls: kept.rolls().clone(), not_before: NOW + 11, ..membership(7) }, &realm_key(2));
    assert_eq!(database.apply_membership(anew.expect("in order"), NOW + 11), Ok(Change::New));
}

#[test]
fn whom_the_operator_removed_a_list_key_that_signed_it_did_not() {
    let mut registrar = registrar();
    let mut stored: Vec<Record> = [7, 8].iter().flat_map(|node| admitted(&mut registrar, *node)).collect();
    stored.extend(order(&mut registrar, RegistrarInput::ListKey { key: public(1), lasts: DAY }, 2).0);
    registrar.set_list_signer(list_key(1, 0, NOW + DAY));
    stored.extend(order(&mut registrar, RegistrarInput::Revoke(identity(7)), 3).0);
    let mut kept = Registrar::new(realm_key(0), Store::Kept(stored), at(4).unix);
    assert_eq!(kept.removed_by(&public(1)), []);
    let named = RegistrarInput::RevokeListKey { key: public(1), restored: vec![identity(7)] };
    assert!(matches!(&order(&mut kept, named, 5).1[..], [RegistrarEvent::Failed(_)]));
    // Whom a thief removed the operator may remove too.
    let base = kept.revocations().expect("a list").clone();
    let worst = list_key(1, 0, NOW + DAY).sign_again(&base, &[identity(8)], 600, at(6).unix).expect("in order");
    heard(&mut kept, &worst, 6);
    assert_eq!(kept.removed_by(&public(1)), [identity(8)]);
    order(&mut kept, RegistrarInput::Revoke(identity(8)), 7);
    assert_eq!(kept.removed_by(&public(1)), []);
}

#[test]
fn a_list_key_that_was_revoked_stays_so_after_the_realms_key_was_stolen() {
    let mut registrar = registrar();
    let mut stored = order(&mut registrar, RegistrarInput::ListKey { key: public(1), lasts: DAY }, 2).0;
    stored.extend(order(&mut registrar, RegistrarInput::RevokeListKey { key: public(1), restored: Vec::new() }, 3).0);
    let mut registrar = Registrar::new(realm_key(0), Store::Kept(stored), at(4).unix);
    registrar.add_key(realm_key(1));
    let roll = RegistrarInput::RollKey { next: realm(1), from: NOW + 10, until: NOW + 10 };
    let (records, _) = order(&mut registrar, roll, 10);
    assert!(!records.iter().any(|record| matches!(record, Record::ListKey(_))), "{records:?}");
    assert_eq!((registrar.generation(), current(&registrar).generation), (1, 1));
    let again = order(&mut registrar, RegistrarInput::ListKey { key: public(1), lasts: DAY }, 11).1;
    assert!(matches!(&again[..], [RegistrarEvent::Failed(_)]), "{again:?}");
}

/// ICC, backup: the records do not know how long the membership lasts that the node has.
#[test]
fn a_removal_lasts_as_long_as_any_membership_that_old_records_do_not_know() {
    for renews in [false, true] {
        let mut registrar = registrar();
        let backup = admitted(&mut registrar, 7);
        let longer = order(&mut registrar, RegistrarInput::Renew(identity(7), 300 * DAY), 10).1;
        let [RegistrarEvent::Renewed(longer)] = &longer[..] else { panic!("{longer:?}") };
        let mut database = Database::new(realm(0), 10);
        database.apply_membership(longer.clone(), NOW + 10).expect("in order");
        let mut old = Registrar::new(realm_key(0), Store::Kept(backup), at(20).unix);
        old.set_renews(renews);
        order(&mut old, RegistrarInput::Revoke(identity(7)), 20);
        database.apply_revocations(old.revocations().expect("a list").clone(), NOW + 20).expect("in order");
        let later = 32 * DAY;
        order(&mut old, RegistrarInput::NewList, later);
        if renews {
            let refused = database.apply_revocations(old.revocations().expect("a list").clone(), NOW + later);
            assert_eq!(refused, Err(Refusal::LeavesOut(identity(7))));
            let (stored, _) = order(&mut old, RegistrarInput::LeftOut(identity(7)), later + 1);
            assert!(stored.iter().any(|record| matches!(record, Record::Revocations(_))), "it is durable");
            // Whoever was not removed is not for it, and the same again is nothing.
            for node in [7, 8] {
                assert_eq!(order(&mut old, RegistrarInput::LeftOut(identity(node)), later + 1).0, []);
            }
        }
        let list = old.revocations().expect("a list").clone();
        assert_eq!(database.apply_revocations(list, NOW + later + 1), Ok(Change::New), "{renews}");
    }
}

#[test]
fn a_machine_that_signs_from_an_old_list_leaves_out_whom_its_certificate_says_is_a_member_again() {
    let old = list(&list_key(1, 0, NOW + DAY), None, &[1, 2], 10);
    let base = Base { restored: vec![identity(1)], rolls: Rolls::default() };
    let by = ListKey { base, ..certificate(2, 1, NOW + DAY).object().clone() };
    let by = Signed::sign(&by, &realm_key(0)).expect("in order");
    let signer = ListSigner::of_list_key(key(2), by).expect("its own certificate");
    let next = signer.sign_again(&old, &[], 600, at(20).unix).expect("in order");
    assert_eq!(next.object().identities(), [identity(2)]);
    // In its own generation it was removed since.
    let anew = signer.sign_again(&next, &[identity(1)], 600, at(30).unix).expect("in order");
    let kept = signer.sign_again(&anew, &[], 600, at(40).unix).expect("in order");
    assert!(kept.object().has(&identity(1)));
}

#[test]
fn lists_that_say_nothing_new_and_nodes_that_ask_again_and_again_leave_the_records_as_they_are() {
    let mut registrar = registrar();
    admitted(&mut registrar, 7);
    let mut stored = 0;
    for number in 0..1_000 {
        let list = list(&realm_signer(), None, &[50], 10 + number);
        stored += usize::from(!heard(&mut registrar, &list, 10 + number).0.is_empty());
    }
    assert_eq!(stored, 1);
    let mut stored = 0;
    for number in 0..1_000 {
        let roll = RegistrarInput::Roll {
            link: 1,
            request: 1,
            peer: identity(7),
            key: public(number),
            servers: vec![server(900)],
        };
        stored += order(&mut registrar, roll, 2_000 + u64::from(number)).0.len();
    }
    assert!((1..10).contains(&stored), "{stored}");
}

/// A member asks for other keys, and has them.
fn rolled(registrar: &mut Registrar, from: u32, to: u32, secs: u64) -> Vec<Record> {
    let key = SigningKey::from_seed(&seed(5, to)).verifying_key().to_bytes();
    let roll = RegistrarInput::Roll { link: 1, request: 1, peer: identity(from), key, servers: vec![server(900)] };
    registrar.handle(roll, at(secs));
    let (mut stored, mut invitation) = (Vec::new(), None);
    while let Some(output) = registrar.poll() {
        match output {
            RegistrarOutput::Persist { id, records } => {
                stored.extend(records);
                registrar.handle(RegistrarInput::Persisted(id), at(secs));
            }
            RegistrarOutput::Invited { answer, .. } => invitation = Some(answer.expect("an invitation")),
            _ => {}
        }
    }
    let token = Token::of(invitation.expect("an answer"), seed(5, to)).expect("its own");
    let request = token.join(&NodeKeys { identity: identity_key(to), noise: noise(to) }).expect("in order");
    let join = RegistrarInput::Join { link: 1, request: 2, octets: request.octets().clone() };
    stored.extend(order(registrar, join, secs).0);
    stored
}

#[test]
fn who_gets_other_keys_while_another_process_removes_it_is_removed_with_them() {
    let mut answers = registrar();
    let mut file = admitted(&mut answers, 7);
    let mut command = Registrar::new(realm_key(0), Store::Kept(file.clone()), at(9).unix);
    // The command is first with the file, and neither has read of the other.
    let removal = order(&mut command, RegistrarInput::Revoke(identity(7)), 10).0;
    let roll = rolled(&mut answers, 7, 8, 10);
    file.extend(removal.iter().cloned().chain(roll.iter().cloned()));
    order(&mut answers, RegistrarInput::Records(removal), 11);
    order(&mut command, RegistrarInput::Records(roll), 11);
    let third = Registrar::new(realm_key(0), Store::Kept(file), at(12).unix);
    for registrar in [&answers, &command, &third] {
        assert_eq!([7, 8].map(|node| registrar.is_revoked(&identity(node))), [true, true]);
    }
    assert!([&answers, &command].iter().all(|registrar| current(registrar).has(&identity(8))));
    // Without such a removal the new ones stay, also in records of the version before, where the invitation's use came first.
    let mut registrar = registrar();
    let (mut file, roll) = (admitted(&mut registrar, 7), rolled(&mut registrar, 7, 8, 10));
    let order = |record: &Record| match record {
        Record::Used { by: None, .. } => 0,
        Record::Used { .. } | Record::Membership(_) => 1,
        Record::Rolled { .. } => 2,
        _ => 3,
    };
    file.extend((0..4).flat_map(|place| roll.iter().filter(move |record| order(record) == place).cloned()));
    let kept = Registrar::new(realm_key(0), Store::Kept(file), at(12).unix);
    assert_eq!([7, 8].map(|node| kept.is_revoked(&identity(node))), [true, false]);
}

#[test]
fn who_joins_by_a_token_while_another_process_withdraws_it_is_removed() {
    let mut answers = registrar();
    let mut file = admitted(&mut answers, 7);
    let mut command = Registrar::new(realm_key(0), Store::Kept(file.clone()), at(1).unix);
    let grants = membership(8).grants;
    let invitee = Invitee { grants, not_after: NOW + 3_600, membership: 30 * DAY, servers: vec![server(900)] };
    let token = answers.invite(invitee, seed(9, 8), at(0).unix).expect("in order");
    let withdrawal = order(&mut command, RegistrarInput::Withdraw(token.invitation().key), 10).0;
    let request = token.join(&NodeKeys { identity: identity_key(8), noise: noise(8) }).expect("in order");
    let join = RegistrarInput::Join { link: 1, request: 1, octets: request.octets().clone() };
    let admission = order(&mut answers, join, 10).0;
    file.extend(withdrawal.iter().cloned().chain(admission));
    order(&mut answers, RegistrarInput::Records(withdrawal), 11);
    let third = Registrar::new(realm_key(0), Store::Kept(file), at(12).unix);
    for registrar in [&answers, &third] {
        assert!(registrar.is_revoked(&identity(8)) && !registrar.is_revoked(&identity(7)));
    }
    assert!(current(&answers).removal(&identity(8)).is_some_and(|removal| removal.until >= NOW + 30 * DAY));
}

#[test]
fn who_was_removed_on_another_machine_by_its_old_keys_is_removed_with_the_new_ones() {
    let mut registrar = registrar();
    admitted(&mut registrar, 7);
    registrar.handle_timeout(at(2));
    let exported = registrar.revocations().expect("a list").clone();
    rolled(&mut registrar, 7, 8, 10);
    // A list after that one, which has the old keys for the roll alone, removes nobody.
    let after = registrar.revocations().expect("a list").clone();
    let signer = list_key(1, 0, NOW + DAY);
    heard(&mut registrar, &signer.sign_again(&after, &[], 600, at(20).unix).expect("in order"), 20);
    assert!(!registrar.is_revoked(&identity(8)));
    let elsewhere = signer.sign_again(&exported, &[identity(7)], 600, at(30).unix).expect("in order");
    let events = heard(&mut registrar, &elsewhere, 30).1;
    assert!(events.contains(&RegistrarEvent::RemovedElsewhere(vec![identity(8)])), "{events:?}");
    assert!(current(&registrar).has(&identity(8)));
}

/// ICC, clocks: the operator's is behind, and the lists of another machine are from its future.
#[test]
fn a_list_that_is_ahead_of_the_operators_clock_is_reported() {
    let mut registrar = registrar();
    let ahead = list(&list_key(1, 0, NOW + DAY), None, &[7], 300);
    assert_eq!(heard(&mut registrar, &ahead, 0).1, [RegistrarEvent::Ahead { seconds: 300 }]);
    assert!(!registrar.is_revoked(&identity(7)));
    let foreign = ListSigner::Realm(realm_key(1)).sign(None, 0, removed(&[7]), &Rolls::default(), 600, at(300).unix);
    assert_eq!(heard(&mut registrar, &foreign.expect("in order"), 0).1, [], "anybody can say that");
}
