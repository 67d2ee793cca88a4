//! What is known never becomes older, and strangers add nothing.
//!
//! ICC-05: forged departures, adverts of 10,000 nodes that are no members, old, from the future, too many: refused with
//! the reason; no room is taken.
//! ICC, older: memberships, revocations and adverts that are older, also after a restart: refused.
//! ICC, IDs: a node ID claimed by two identities, in adverts, in either order: the first claim stands.

use wayleave_control::advert::{MAX_AHEAD, Relationship};
use wayleave_control::database::{Change, Database, Refusal};
use wayleave_control::realm::Membership;
use wayleave_control::store::Record;
use wayleave_crypto::signed::Signed;

use super::common::*;

fn sign(membership: &Membership) -> Signed<Membership> {
    Signed::sign(membership, &realm_key(0)).expect("in order")
}

#[test]
fn an_older_object_never_replaces_a_newer_one_also_after_a_restart() {
    let mut database = Database::new(realm(0), 10);
    let number = |number| sign(&Membership { number, ..membership(0) });
    let sequence = |sequence| {
        let mut advert = advert(0, &[(1, Relationship::Provider)]);
        advert.sequence = sequence;
        signed_advert(&advert, 0)
    };
    assert_eq!(database.apply_membership(number(5), NOW), Ok(Change::New));
    assert_eq!(database.apply_advert(sequence(7), NOW), Ok(Change::New));
    assert_eq!(database.apply_revocations(revocations(3, &[9]), NOW), Ok(Change::New));
    let check = |database: &mut Database| {
        assert_eq!(database.apply_membership(number(5), NOW), Ok(Change::Same));
        assert_eq!(database.apply_membership(number(4), NOW), Err(Refusal::Older(5)));
        assert_eq!(database.apply_advert(sequence(7), NOW), Ok(Change::Same));
        assert_eq!(database.apply_advert(sequence(6), NOW), Err(Refusal::Older(7)));
        assert_eq!(database.apply_revocations(revocations(2, &[]), NOW), Err(Refusal::Older(3)));
        // The same number with other content: two processes use one identity.
        let mut other = advert(0, &[(2, Relationship::Provider)]);
        other.sequence = 7;
        assert_eq!(database.apply_advert(signed_advert(&other, 0), NOW), Err(Refusal::Conflict));
        assert_eq!(database.apply_revocations(revocations(3, &[]), NOW), Err(Refusal::Conflict));
    };
    check(&mut database);
    let records: Vec<Record> = database.all_records().collect();
    let mut restarted = Database::new(realm(0), 10);
    // In whatever order the store gives them back.
    restarted.restore(&records.into_iter().rev().collect::<Vec<_>>()).expect("its own records");
    check(&mut restarted);
    assert_eq!(restarted.apply_advert(sequence(8), NOW), Ok(Change::New));
    assert_eq!(restarted.apply_revocations(revocations(4, &[0, 9]), NOW), Ok(Change::New));
    // A revoked node's older and newer objects are all refused, and an older list does not bring it back.
    assert_eq!(restarted.apply_membership(number(6), NOW), Err(Refusal::Revoked));
    assert_eq!(restarted.apply_advert(sequence(9), NOW), Err(Refusal::Revoked));
    assert_eq!(restarted.apply_revocations(revocations(3, &[9]), NOW), Err(Refusal::Older(4)));
    assert!(restarted.advert(&identity(0), NOW).is_none());
}

#[test]
fn strangers_the_revoked_and_foreign_realms_are_refused_with_the_reason() {
    let mut database = database(6, &small());
    let stranger = signed_advert(&advert(50, &[(0, Relationship::Provider)]), 50);
    assert_eq!(database.apply_advert(stranger, NOW), Err(Refusal::NotMember));
    let mut foreign = advert(0, &[]);
    foreign.realm = realm(1);
    assert_eq!(database.apply_advert(signed_advert(&foreign, 0), NOW), Err(Refusal::Realm));
    let foreign = Signed::sign(&Membership { realm: realm(1), ..membership(9) }, &realm_key(1)).expect("in order");
    assert_eq!(database.apply_membership(foreign, NOW), Err(Refusal::Realm));
    let forged = Signed::sign(&membership(9), &realm_key(1)).expect("in order");
    assert_eq!(database.apply_membership(forged, NOW), Err(Refusal::Signature));
    // A departure that a neighbour forged (ICC-05).
    let mut departure = advert(1, &[]);
    departure.sequence = 9;
    assert_eq!(database.apply_advert(signed_advert(&departure, 3), NOW), Err(Refusal::Signature));
    assert!(database.advert(&identity(1), NOW).is_some());
    assert_eq!(database.apply_advert(signed_advert(&departure, 1), NOW), Ok(Change::New));
    assert!(database.advert(&identity(1), NOW).is_none());
}

#[test]
fn times_are_checked_to_the_second() {
    let mut database = Database::new(realm(0), 10);
    database.apply_membership(signed_membership(0), NOW).expect("in order");
    let issued = |issued, sequence| {
        let mut advert = advert(0, &[(1, Relationship::Provider)]);
        (advert.issued, advert.sequence) = (issued, sequence);
        signed_advert(&advert, 0)
    };
    assert_eq!(database.apply_advert(issued(NOW + MAX_AHEAD + 1, 1), NOW), Err(Refusal::Future));
    assert_eq!(database.apply_advert(issued(NOW - 1_801, 1), NOW), Err(Refusal::Expired));
    assert_eq!(database.apply_advert(issued(NOW - 1_800, 1), NOW), Ok(Change::New));
    assert_eq!(database.apply_advert(issued(NOW + MAX_AHEAD, 2), NOW), Ok(Change::New));
    assert!(database.advert(&identity(0), NOW + MAX_AHEAD + 1_800).is_some());
    assert!(database.advert(&identity(0), NOW + MAX_AHEAD + 1_801).is_none());
    // No node ID in use.
    assert_eq!(database.apply_advert(issued(NOW + 400_000, 3), NOW + 400_000), Err(Refusal::Expired));
    let member = sign(&Membership { not_after: NOW - 1, ..membership(1) });
    assert_eq!(database.apply_membership(member, NOW), Err(Refusal::Expired));
    let member = sign(&Membership { not_before: NOW + MAX_AHEAD + 1, ..membership(1) });
    assert_eq!(database.apply_membership(member, NOW), Err(Refusal::Future));
}

/// Two adverts, each of whose nodes claims the same ID of this epoch.
#[test]
fn of_two_claims_of_one_id_the_first_stands_whichever_that_is() {
    for [first, second] in [[0u32, 1], [1, 0]] {
        let mut database = Database::new(realm(0), 10);
        let claim = |node: u32| {
            let key = wayleave_packet::icing::mint::EpochKey {
                epoch: 20_000,
                not_before: NOW as u32 - 10,
                not_after: NOW as u32 + 1_000,
                node: secret(77, 1).id(),
            };
            let mut advert = advert(node, &[(5, Relationship::Provider)]);
            advert.ids = vec![key.sign(&identity_key(node))];
            signed_advert(&advert, node)
        };
        for node in [0, 1] {
            database.apply_membership(signed_membership(node), NOW).expect("in order");
        }
        assert_eq!(database.apply_advert(claim(first), NOW), Ok(Change::New));
        assert_eq!(database.apply_advert(claim(second), NOW), Err(Refusal::IdClaimed(identity(first))));
        assert_eq!(database.claimant(&secret(77, 1).id(), NOW), Some(identity(first)));
        // Until the claim ends, or its node is removed.
        assert_eq!(database.claimant(&secret(77, 1).id(), NOW + 1_001), None);
        database.apply_revocations(revocations(1, &[first]), NOW).expect("in order");
        assert_eq!(database.apply_advert(claim(second), NOW), Ok(Change::New));
        assert_eq!(database.claimant(&secret(77, 1).id(), NOW), Some(identity(second)));
    }
}

/// ICC-05: ten thousand nodes that are none, and more members than there is room for.
#[test]
fn members_beyond_the_capacity_and_fake_nodes_take_no_room() {
    let mut database = Database::new(realm(0), 8);
    for node in 0..8 {
        database.apply_membership(signed_membership(node), NOW).expect("there is room");
    }
    assert_eq!(database.apply_membership(signed_membership(8), NOW), Err(Refusal::Full));
    // Fake nodes' adverts are refused before a signature is checked: one object stands for all.
    let mut fake = advert(500, &[(0, Relationship::Provider)]);
    for number in 0..10_000u32 {
        fake.sequence = number.into();
        fake.identity.0[..4].copy_from_slice(&number.to_be_bytes());
        let octets = signed_octets(&fake);
        assert_eq!(database.apply_advert(octets, NOW), Err(Refusal::NotMember));
    }
    assert_eq!(database.len(), 8);
    // Once memberships have ended, their room is free; numbers of the others stay.
    let later = NOW + 31 * 86_400;
    let new = sign(&Membership { not_before: later, not_after: later + 100, ..membership(8) });
    assert_eq!(database.apply_membership(new, later), Ok(Change::New));
    assert_eq!(database.len(), 8);
}

/// The advert's octets with a signature of zeros.
fn signed_octets(advert: &wayleave_control::advert::Advert) -> Signed<wayleave_control::advert::Advert> {
    use wayleave_core::wire::{Wire, Writer};
    use wayleave_crypto::signed::Object;
    let mut out = Writer::new();
    out.u8(wayleave_control::advert::Advert::VERSION);
    advert.write(&mut out);
    out.bytes(&[0; 64]);
    Signed::decode(&out.finish()).expect("well-formed")
}

#[test]
fn a_name_or_prefix_has_one_member_and_is_free_once_that_is_gone() {
    let mut database = Database::new(realm(0), 10);
    database.apply_membership(signed_membership(0), NOW).expect("in order");
    let mut taken = membership(1);
    taken.grants.names = vec![name("n0")];
    assert_eq!(database.apply_membership(sign(&taken), NOW), Err(Refusal::Taken(identity(0))));
    taken.grants = membership(1).grants;
    taken.grants.prefixes = membership(0).grants.prefixes;
    assert_eq!(database.apply_membership(sign(&taken), NOW), Err(Refusal::Taken(identity(0))));
    assert_eq!(database.owner("10.0.0.9".parse().expect("an address"), NOW), Some(identity(0)));
    database.apply_revocations(revocations(1, &[0]), NOW).expect("in order");
    assert_eq!(database.named(&name("n0"), NOW), None);
    assert_eq!(database.apply_membership(sign(&taken), NOW), Ok(Change::New));
    assert_eq!(database.owner("10.0.0.9".parse().expect("an address"), NOW), Some(identity(1)));
}

#[test]
fn a_noise_key_is_one_members() {
    let mut database = Database::new(realm(0), 100);
    database.apply_membership(signed_membership(1), NOW).expect("in order");
    let theirs = Membership { noise: noise(1).public(), ..membership(2) };
    let sign = |membership: &Membership| Signed::sign(membership, &realm_key(0)).expect("in order");
    assert_eq!(database.apply_membership(sign(&theirs), NOW), Err(Refusal::Taken(identity(1))));
    // Its own next membership, and another's once it has ended.
    let next = Membership { number: 2, not_after: NOW + 50, ..membership(1) };
    assert_eq!(database.apply_membership(sign(&next), NOW), Ok(Change::New));
    assert_eq!(database.apply_membership(sign(&theirs), NOW + 51), Ok(Change::New));
    // A key that a member gave up is free.
    let other = Membership { number: 2, noise: noise(9).public(), ..theirs.clone() };
    assert_eq!(database.apply_membership(sign(&other), NOW + 51), Ok(Change::New));
    let third = Membership { noise: noise(1).public(), ..membership(3) };
    assert_eq!(database.apply_membership(sign(&third), NOW + 51), Ok(Change::New));
}
