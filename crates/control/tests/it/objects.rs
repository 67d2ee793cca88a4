//! Signed objects: one encoding each, and no octet of it may change; nothing signed as one thing counts as another.
//!
//! ICC, objects: every octet of every signed object changed, cut, extended; signatures under other labels; parts of
//! other objects, realms and nodes: refused.

use proptest::prelude::*;
use wayleave_control::advert::{
    Advert, Endpoint, Extension, MAX_EXTENSION, MAX_EXTENSIONS, MAX_LINKS, NoEndpoint, Relationship, TLS_EXTENSION,
    TagUse,
};
use wayleave_control::consent::{ConsentAnswer, ConsentRequest, RequestedPath, SealingKey, seal};
use wayleave_control::realm::{Invitee, JoinRequest, ListKey, Membership, NodeKeys, Registrar, RevocationList, Token};
use wayleave_control::store::{Record, Store};
use wayleave_core::wire::{Malformed, Writer};
use wayleave_core::{IdentityKey, UnixTime};
use wayleave_crypto::dh::DhSecret;
use wayleave_crypto::signed::{NotSigned, Object, Signed};
use wayleave_packet::icing::header::Version;

use super::common::*;
use super::lists;

pub(crate) fn token() -> Token {
    let registrar = Registrar::new(realm_key(0), Store::New, UnixTime(NOW * 1_000_000));
    let grants = membership(7).grants;
    let invitee =
        Invitee { grants, not_after: NOW + 3_600, membership: 86_400, servers: vec![server(900), server(901)] };
    registrar.invite(invitee, seed(9, 7), UnixTime(NOW * 1_000_000)).expect("in order")
}

pub(crate) fn join_request() -> Signed<JoinRequest> {
    token().join(&NodeKeys { identity: identity_key(7), noise: noise(7) }).expect("in order")
}

pub(crate) fn consent_request() -> Signed<ConsentRequest> {
    consent_request_for(Version::Standard)
}

/// The same for packets of `version`.
pub(crate) fn consent_request_for(version: Version) -> Signed<ConsentRequest> {
    let hops = [1u32, 3, 4].map(|node| (secret(node, 20_000).id(), if node == 4 { DELIVER } else { TRANSIT }));
    let request = ConsentRequest {
        realm: realm(0),
        server: identity(1_001),
        sender: identity(0),
        nonce: [7; 16],
        time: NOW,
        path: RequestedPath { sender: secret(0, 20_000).id(), hops: hops.to_vec() },
        index: 1,
        expiry: NOW as u32 + 600,
        epoch_key: epoch_key(0, 0),
        packets: version,
    };
    Signed::sign(&request, &identity_key(0)).expect("in order")
}

pub(crate) fn consent_answer() -> Signed<ConsentAnswer> {
    let request = consent_request();
    let object = request.object();
    let hash = object.path.hash(Version::Standard).expect("a path");
    let consent = master(1).consent(&hash, 1, TRANSIT, object.expiry);
    let answer = ConsentAnswer {
        realm: realm(0),
        server: identity(1_001),
        request: request.digest(),
        expiry: object.expiry,
        ephemeral: DhSecret::from_seed(&seed(5, 1)).public(),
        sealed: [0; 64],
    };
    let key = SealingKey::new(&object.path.sender, &seed(5, 1)).expect("an honest ID");
    let answer = seal(answer, &key, &consent).expect("sealed");
    Signed::sign(&answer, &identity_key(1_001)).expect("in order")
}

/// Whatever one bit of the octets is, the object is refused.
fn no_bit_may_change<T: Object + std::fmt::Debug>(signed: &Signed<T>, verify: impl Fn(&Signed<T>) -> bool) {
    assert!(verify(signed));
    let octets = signed.octets().to_vec();
    assert_eq!(Signed::<T>::decode(&octets).as_ref().map(|again| again.octets()), Ok(signed.octets()));
    for at in 0..octets.len() {
        // Every octet, a bit of each in turn; the first and last octets with all eight.
        let bits = if at < 8 || at + 8 > octets.len() { 0..8 } else { at as u32 % 8..at as u32 % 8 + 1 };
        for bit in bits {
            let mut other = octets.clone();
            other[at] ^= 1 << bit;
            let is_accepted = Signed::<T>::decode(&other).is_ok_and(|other| verify(&other));
            assert!(!is_accepted, "octet {at}, bit {bit}");
        }
    }
    for length in 0..octets.len() {
        assert!(Signed::<T>::decode(&octets[..length]).is_err(), "{length} octets");
    }
    let longer = [&octets[..], &[0]].concat();
    assert!(Signed::<T>::decode(&longer).is_err());
}

#[test]
fn no_bit_of_a_signed_object_may_change() {
    no_bit_may_change(&signed_membership(3), |signed| signed.verify(&realm(0).0).is_ok());
    no_bit_may_change(&revocations(5, &[3, 1, 2]), |signed| RevocationList::verify(signed, &realm(0)).is_ok());
    no_bit_may_change(&lists::version_1(), |signed| RevocationList::verify(signed, &realm(0)).is_ok());
    no_bit_may_change(&lists::of_list_key(), |signed| RevocationList::verify(signed, &realm(0)).is_ok());
    no_bit_may_change(&lists::certificate(1, 0, NOW + 1), |signed| signed.verify(&realm(0).0).is_ok());
    let links = [(1, Relationship::Provider), (2, Relationship::Peer)];
    let advert = signed_advert(&advert(0, &links), 0);
    no_bit_may_change(&advert, |signed| Advert::verify(signed).is_ok());
    no_bit_may_change(&join_request(), |signed| JoinRequest::verify(signed, &realm(0), &realm_key(0)).is_ok());
    no_bit_may_change(&consent_request_for(Version::Sealed), |signed| {
        ConsentRequest::verify(signed, at(0).unix).is_ok()
    });
    no_bit_may_change(&consent_request(), |signed| ConsentRequest::verify(signed, at(0).unix).is_ok());
    no_bit_may_change(&consent_answer(), |signed| signed.verify(&identity(1_001).0).is_ok());
    let invitation = join_request().object().invitation.clone();
    no_bit_may_change(&invitation, |signed| signed.verify(&realm(0).0).is_ok());
}

/// The octets of one kind with the signature that another kind's label would have.
fn sign_as<T: Object>(octets: &[u8], key: &wayleave_crypto::sign::SigningKey) -> Vec<u8> {
    let covered = &octets[..octets.len() - 64];
    [covered, &key.sign(T::LABEL, covered)].concat()
}

#[test]
fn a_signature_under_another_kinds_label_does_not_count() {
    let membership = signed_membership(3);
    type SignAs = fn(&[u8], &wayleave_crypto::sign::SigningKey) -> Vec<u8>;
    let labels: [SignAs; 7] = [
        sign_as::<RevocationList>,
        sign_as::<ListKey>,
        sign_as::<Advert>,
        sign_as::<JoinRequest>,
        sign_as::<ConsentRequest>,
        sign_as::<ConsentAnswer>,
        sign_as::<wayleave_control::realm::Invitation>,
    ];
    for label in labels {
        let other = Signed::<Membership>::decode(&label(membership.octets(), &realm_key(0))).expect("well-formed");
        assert_eq!(other.verify(&realm(0).0).err(), Some(NotSigned));
    }
    let same = sign_as::<Membership>(membership.octets(), &realm_key(0));
    assert_eq!(same, membership.octets().to_vec());
}

#[test]
fn parts_of_one_object_in_another_do_not_count() {
    // The signature of one membership under another, of another realm, of a member instead of the realm.
    let (a, b) = (signed_membership(3), signed_membership(4));
    let splice =
        |body: &[u8], signature: &[u8]| [&body[..body.len() - 64], &signature[signature.len() - 64..]].concat();
    let spliced = Signed::<Membership>::decode(&splice(a.octets(), b.octets())).expect("well-formed");
    assert!(spliced.verify(&realm(0).0).is_err());
    let other_realm = Signed::sign(&membership(3), &realm_key(1)).expect("in order");
    assert!(other_realm.verify(&realm(0).0).is_err());
    assert!(Signed::sign(&membership(3), &identity_key(3)).expect("in order").verify(&realm(0).0).is_err());
    // A node ID that another node signed, in an advert that its own node signed.
    let mut advert = advert(0, &[(1, Relationship::Provider)]);
    assert!(Advert::verify(&signed_advert(&advert, 0)).is_ok());
    advert.ids[0] = epoch_key(5, 0);
    assert_eq!(Advert::verify(&signed_advert(&advert, 0)).err(), Some(NotSigned));
    // A request by an ID of another node, and by an own ID that is not the path's.
    let mut request = consent_request().object().clone();
    request.epoch_key = epoch_key(5, 0);
    let signed = Signed::sign(&request, &identity_key(0)).expect("in order");
    assert!(ConsentRequest::verify(&signed, at(0).unix).is_err());
    request.epoch_key = epoch_key(0, 1);
    let signed = Signed::sign(&request, &identity_key(0)).expect("in order");
    assert!(ConsentRequest::verify(&signed, at(50_000).unix).is_err());
}

#[test]
fn fields_that_may_not_be_are_refused_with_their_names() {
    let refused = |change: &dyn Fn(&mut Advert)| {
        let mut advert = advert(0, &[(1, Relationship::Provider), (2, Relationship::Peer)]);
        change(&mut advert);
        Signed::sign(&advert, &identity_key(0)).err()
    };
    assert_eq!(refused(&|_| {}), None);
    assert_eq!(refused(&|advert| advert.lifetime = 0), Some(Malformed::Value("the lifetime")));
    assert_eq!(refused(&|advert| advert.lifetime = 61), Some(Malformed::Value("the lifetime")));
    assert_eq!(refused(&|advert| advert.mtu = 1_231), Some(Malformed::Value("the MTU")));
    assert_eq!(refused(&|advert| advert.ids.clear()), Some(Malformed::Value("the node IDs")));
    assert_eq!(refused(&|advert| advert.ids.reverse()), Some(Malformed::Order("the node IDs")));
    assert_eq!(refused(&|advert| advert.links.reverse()), Some(Malformed::Order("the neighbours")));
    assert_eq!(refused(&|advert| advert.links[1] = advert.links[0].clone()), Some(Malformed::Order("the neighbours")));
    assert_eq!(refused(&|advert| advert.tags.reverse()), Some(Malformed::Order("the tags")));
    assert_eq!(refused(&|advert| advert.tags[0].usage = TagUse::Service), None);
    let own = |advert: &mut Advert| {
        advert.links.truncate(1);
        advert.links[0].neighbour = advert.identity;
    };
    assert_eq!(refused(&own), Some(Malformed::Value("a neighbour")));
    let extension = |kind| Extension { kind, value: vec![7; MAX_EXTENSION] };
    assert_eq!(refused(&|advert| advert.extensions = vec![extension(0), extension(u16::MAX)]), None);
    let twice = |advert: &mut Advert| advert.extensions = vec![extension(3), extension(3)];
    assert_eq!(refused(&twice), Some(Malformed::Order("the extensions")));
    let many = |advert: &mut Advert| advert.extensions = (0..=MAX_EXTENSIONS as u16).map(extension).collect();
    assert_eq!(refused(&many), Some(Malformed::TooMany { count: MAX_EXTENSIONS + 1, most: MAX_EXTENSIONS }));
    // An open node has no neighbours that it knows of beforehand, and needs IDs.
    let alone = |advert: &mut Advert| (advert.links.clear(), advert.open = Some(endpoint("192.0.2.1:1"))).1;
    assert_eq!(refused(&alone), None);
    assert_eq!(refused(&|advert| (alone(advert), advert.ids.clear()).1), Some(Malformed::Value("the node IDs")));
    // A departure may have no ID.
    assert_eq!(refused(&|advert| (advert.links.clear(), advert.ids.clear()).0), None);
    let mut membership = membership(1);
    membership.not_after = membership.not_before + 400 * 86_400 + 1;
    assert_eq!(Signed::sign(&membership, &realm_key(0)).err(), Some(Malformed::Value("the validity")));
    membership.not_after = membership.not_before;
    membership.grants.names.clear();
    assert_eq!(Signed::sign(&membership, &realm_key(0)).err(), Some(Malformed::Value("the list of names")));
}

#[test]
fn an_endpoint_is_an_address_or_name_that_can_be_sent_to_and_a_port() {
    let label = "x".repeat(63);
    let longest = format!("{label}.{label}.{label}.{}:1", "x".repeat(61));
    for text in ["192.0.2.1:49252", "[2001:db8::1]:1", "node.example.net:65535", "a:1", "_x.1a-b:7", &longest] {
        let endpoint: Endpoint = text.parse().expect(text);
        assert_eq!((endpoint.as_str(), endpoint.literal()), (text, text.parse().ok()));
    }
    let too_long = format!("{label}.{label}.{label}.{}:1", "x".repeat(62));
    for text in [
        "",
        ":1",
        "a",
        "a:",
        "a:0",
        "a:65536",
        "a:+1",
        "a:01",
        "a b:1",
        "a..b:1",
        ".a:1",
        "a.:1",
        "-a:1",
        "a-:1",
        "a/b:1",
        "0.0.0.0:1",
        "[::]:1",
        "224.0.0.1:1",
        "[ff02::1]:1",
        "192.0.2.1:0",
        "[fe80::1%1]:1",
        "[2001:DB8::1]:1",
        "[2001:db8:0::1]:1",
        "2001:db8::1:1",
        "192.0.2:1",
        "256.0.0.1:1",
        "010.0.0.1:1",
        "a.7:1",
        "\u{e9}:1",
        "a\n:1",
        &too_long,
    ] {
        assert_eq!(text.parse::<Endpoint>(), Err(NoEndpoint), "{text}");
    }
    // The decoder takes no others.
    let mut octets = signed_advert(&advert(0, &[(1, Relationship::Provider)]), 0).octets().to_vec();
    let at = octets.windows(7).position(|octets| octets == b":49254\0").expect("the link's endpoint");
    octets[at + 1..at + 6].copy_from_slice(b"00000");
    assert_eq!(Signed::<Advert>::decode(&octets).err(), Some(Malformed::Value("an endpoint")));
}

#[test]
fn where_a_node_is_reached_over_tls_is_an_extension_that_only_an_endpoint_fills() {
    let mut advert = advert(1, &[]);
    let of = |advert: &Advert| advert.tls().map(|endpoint| endpoint.to_string());
    assert_eq!(of(&advert), None);
    for (value, expected) in [
        ("node.example.net:443", Some("node.example.net:443")),
        ("[2001:db8::1]:443", Some("[2001:db8::1]:443")),
        ("", None),
        ("0.0.0.0:443", None),
        ("node.example.net", None),
        ("\u{e9}:443", None),
    ] {
        advert.extensions = vec![Extension { kind: TLS_EXTENSION, value: value.into() }];
        assert_eq!(of(&advert).as_deref(), expected, "{value}");
        advert.extensions[0].kind += 1;
        assert_eq!(of(&advert), None, "another kind");
    }
}

/// What a later version adds comes through this one unchanged, with the signature over it.
#[test]
fn extensions_that_are_not_known_are_kept() {
    let mut advert = advert(0, &[(1, Relationship::Provider)]);
    advert.extensions = vec![Extension { kind: 9, value: b"later".to_vec() }];
    let signed = signed_advert(&advert, 0);
    let mut database = database(2, &[]);
    database.apply_advert(later(&signed, &advert), NOW).expect("in order");
    let record = database.records(&identity(0)).last().expect("the advert");
    let Ok(Record::Advert(read)) = Record::decode(&record.encode()) else { panic!("no advert") };
    assert_eq!(Advert::verify(&read).expect("signed").extensions, advert.extensions);
}

/// The same advert, newer than the one that is known.
fn later(signed: &Signed<Advert>, advert: &Advert) -> Signed<Advert> {
    let sequence = signed.object().sequence + 1;
    signed_advert(&Advert { sequence, ..advert.clone() }, 0)
}

/// A store of the version before is not damaged: its adverts are left out, and what was granted and removed is there.
#[test]
fn adverts_of_the_version_before_are_left_out_of_a_store() {
    let record = Record::Advert(signed_advert(&advert(1, &[]), 1)).encode();
    assert_eq!(
        record[..6],
        [2, 0, 0, ((record.len() - 5) >> 8) as u8, (record.len() - 5) as u8, 2],
        "kind, length, version"
    );
    let with_version = |version: u8| [&record[..5], &[version], &record[6..]].concat();
    assert_eq!(Record::restore(&with_version(1)), Ok(None));
    assert_eq!(Record::decode(&with_version(1)), Err(Malformed::Version(1)));
    for version in [0, 3, 255] {
        assert_eq!(Record::restore(&with_version(version)), Err(Malformed::Version(version)));
    }
    let membership = Record::Membership(signed_membership(1));
    assert_eq!(Record::restore(&membership.encode()), Ok(Some(membership.clone())));
    let mut other = membership.encode();
    other[5] = 0;
    assert_eq!(Record::restore(&other), Err(Malformed::Version(0)), "of no other object is there an earlier version");
}

#[test]
fn counts_are_bounded_before_anything_is_allocated() {
    // An advert that says 65,535 links and has none.
    let mut octets = signed_advert(&advert(0, &[(1, Relationship::Provider)]), 0).octets().to_vec();
    let at = 1 + 64 + 8 + 8 + 1 + 2 + 2 + 2 * 108;
    assert_eq!(octets[at..at + 2], [0, 1]);
    octets[at..at + 2].fill(0xff);
    let most = (octets.len() - at - 2) / 37;
    assert_eq!(Signed::<Advert>::decode(&octets).err(), Some(Malformed::TooMany { count: 65_535, most }));
    assert!(most < MAX_LINKS);
    let long = vec![1; Advert::MAX + 1];
    assert_eq!(Signed::<Advert>::decode(&long).err(), Some(Malformed::TooLong(1)));
}

/// The encoding of a signed object without its signature.
fn body<T: Object>(object: &T) -> Vec<u8> {
    let mut out = Writer::new();
    object.write(&mut out);
    out.finish()
}

fn names() -> impl Strategy<Value = Vec<wayleave_control::realm::Name>> {
    proptest::collection::btree_set("[a-z]{1,3}", 1..4).prop_map(|names| names.iter().map(|text| name(text)).collect())
}

fn memberships() -> impl Strategy<Value = Membership> {
    let prefix = (any::<u32>(), 0u8..=32).prop_map(|(bits, length)| {
        wayleave_core::Prefix::truncated(std::net::Ipv4Addr::from(bits).into(), length).expect("at most 32")
    });
    let prefixes = proptest::collection::btree_set(prefix, 0..4).prop_map(|set| set.into_iter().collect::<Vec<_>>());
    (0u64..3, names(), prefixes, 0u64..1_000, 0u64..1_000).prop_map(|(number, names, prefixes, begin, lasts)| {
        let mut membership = membership(number as u32);
        membership.number = number;
        (membership.grants.names, membership.grants.prefixes) = (names, prefixes);
        (membership.not_before, membership.not_after) = (begin, begin + lasts);
        membership
    })
}

proptest! {
    #[test]
    fn different_memberships_are_never_encoded_alike(a in memberships(), b in memberships()) {
        prop_assert_eq!(a == b, body(&a) == body(&b));
        let signed = Signed::sign(&a, &realm_key(0)).expect("in order");
        let again = Signed::<Membership>::decode(signed.octets()).expect("its own encoding");
        prop_assert_eq!(again.object(), &a);
    }

    #[test]
    fn any_octets_are_refused_or_have_one_encoding(octets in proptest::collection::vec(any::<u8>(), 0..300)) {
        let mut octets = octets;
        if let Some(first) = octets.first_mut() {
            *first = 1;
        }
        if let Ok(list) = Signed::<RevocationList>::decode(&octets) {
            prop_assert!(list.verify(&realm(0).0).is_err());
        }
        if let Ok(record) = Record::decode(&octets) {
            prop_assert_eq!(record.encode(), octets);
        }
    }
}

#[test]
fn records_are_read_as_they_were_written() {
    let all = [
        Record::Membership(signed_membership(1)),
        Record::Advert(signed_advert(&advert(1, &[]), 1)),
        Record::Revocations(revocations(3, &[1])),
        Record::Used { key: [3; 32], by: None },
        Record::Used { key: [3; 32], by: Some(IdentityKey([4; 32])) },
        Record::Ordered { identity: IdentityKey([4; 32]), until: 5 },
        Record::Heard(revocations(3, &[1])),
        Record::ListKeyRevoked { key: [3; 32], generation: 1 },
    ];
    let mut keys = Vec::new();
    for record in all {
        assert_eq!(Record::decode(&record.encode()), Ok(record.clone()));
        assert!(Record::decode(&record.encode()[1..]).is_err());
        keys.push(record.key());
    }
    keys.dedup();
    assert_eq!(keys.len(), 7);
}
