//! The consent server as a machine.
//!
//! ICD-05: a server's proof is good for its own path, tag and expiry alone.
//! ICC-01: requests for consent by strangers, forged, stale, from before the start, for other servers, nodes and
//! realms, with others' memberships and IDs: refused with the reason; each is in the audit log.
//! ICC-04: policies changed, nodes revoked, proofs used for other paths, tags, expiries: from the next request on; a
//! proof ends with its expiry.
//! ICC, older: a consent server without its records: it answers nothing before a path server has sent them.
//! ICC, IDs: an ID that two identities claim in requests: refused to the second; a path with an ID that no member's advert
//! has, not yet or not any more: refused; only the ID's holder reads what is sealed to it.

use std::collections::BTreeMap;

use wayleave_control::consent::{
    Audit, ConsentAnswer, ConsentRequest, ConsentServer, ConsentServerConfig, ConsentServerEvent, ConsentServerInput,
    ConsentServerOutput, Decision, MAX_NONCES, Policy, PolicyFile, RequestedPath, TagKeys, open,
};
use wayleave_control::database::Refusal;
use wayleave_control::frames::{Body, Frame};
use wayleave_control::realm::{MAX_STALENESS, Membership};
use wayleave_control::store::{Record, Store};
use wayleave_core::{Machine, Now};
use wayleave_crypto::signed::Signed;
use wayleave_packet::icing::header::{Hop, NodeId, Packet, Part, Path, Tag, Version};
use wayleave_packet::icing::mint::{Consent, EpochKey, Form, Nonce, Sender, encapsulate, tag_epoch};
use wayleave_packet::icing::verify::{PathKeys, check_consent};

use super::common::*;

pub(crate) fn policy(toml: &str) -> Policy {
    Policy::new(&toml::from_str::<PolicyFile>(toml).expect("the shape of a file")).expect("in order")
}

pub(crate) const EVERYBODY: &str = "[[rule]]\nname = \"everybody\"\nallow = true\nseconds = 600\n";

pub(crate) fn config(number: u32, nodes: &[u32], rules: &str, store: Store) -> ConsentServerConfig {
    let keys = |node: &u32| (identity(*node), TagKeys::new(vec![(0, master(*node))]));
    ConsentServerConfig {
        identity: identity_key(number),
        realm: realm(0),
        capacity: 1_000,
        nodes: nodes.iter().map(keys).collect(),
        policy: policy(rules),
        store,
        requests: 100,
        max_staleness: MAX_STALENESS,
        seed: seed(8, number),
    }
}

/// The server of node 1, with what a path server would have sent it; node 0 is on link 1.
fn server_of_node_1(rules: &str) -> ConsentServer {
    let store = Store::Kept(records(6, &small()));
    let mut server = ConsentServer::new(config(1_001, &[1], rules, store), at(0).unix);
    server.handle(ConsentServerInput::Connected { link: 1, peer: identity(0) }, at(1));
    drain(&mut server);
    server
}

/// A request of node 0 by 1 and 3 to 4, made a second after the beginning.
fn request(nonce: u8) -> ConsentRequest {
    let hops = [(1u32, TRANSIT), (3, TRANSIT), (4, DELIVER)].map(|(node, tag)| (secret(node, 20_000).id(), tag));
    ConsentRequest {
        realm: realm(0),
        server: identity(1_001),
        sender: identity(0),
        nonce: [nonce; 16],
        time: NOW + 1,
        path: RequestedPath { sender: secret(0, 20_000).id(), hops: hops.to_vec() },
        index: 1,
        expiry: NOW as u32 + 601,
        epoch_key: epoch_key(0, 0),
        packets: Version::Standard,
    }
}

fn body(request: &ConsentRequest) -> Body {
    Body::Consent {
        membership: signed_membership(0),
        request: Signed::sign(request, &identity_key(0)).expect("in order"),
    }
}

/// The answer on a link and what the audit log has of it.
fn ask(server: &mut ConsentServer, link: u64, body: Body, now: Now) -> (Result<Signed<ConsentAnswer>, Refusal>, Audit) {
    let octets = Frame { request: 5, body }.encode();
    server.handle(ConsentServerInput::Frame { link, octets: octets.into() }, now);
    let (mut answer, mut audit) = (None, None);
    for output in drain(server) {
        match output {
            ConsentServerOutput::Send { link: to, octets } => {
                assert_eq!(to, link);
                let frame = Frame::decode(&octets).expect("its own frame");
                answer = Some(match frame.body {
                    Body::Consented(answer) => Ok(answer),
                    Body::Refused(refusal) => Err(refusal),
                    other => panic!("{other:?}"),
                });
            }
            ConsentServerOutput::Audit(entry) => audit = Some(entry),
            ConsentServerOutput::Close { .. } | ConsentServerOutput::Persist(_) | ConsentServerOutput::Event(_) => {}
        }
    }
    (answer.expect("answered"), audit.expect("logged"))
}

fn refusal(server: &mut ConsentServer, request: &ConsentRequest) -> Option<Refusal> {
    let (answer, audit) = ask(server, 1, body(request), at(1));
    let refusal = answer.err();
    match (&audit.decision, refusal) {
        (Decision::Refused { refusal: logged, .. }, Some(refusal)) => assert_eq!(*logged, refusal),
        (Decision::Consented { .. }, None) => {}
        other => panic!("{other:?}"),
    }
    refusal
}

/// What packets with this consent, on this path for node 1, look like to node 1.
fn is_accepted(path: &RequestedPath, expiry: u32, consent: &Consent) -> bool {
    let hops: Vec<Hop> = path.hops.iter().map(|(node, tag)| Hop { node: *node, tag: *tag, expiry }).collect();
    let path = Path::new(path.sender, &hops).expect("nodes that differ");
    let consents = vec![consent.clone(); hops.len()];
    let sender = Sender::new(Version::Standard, &path, &secret(0, 20_000), &consents).expect("one each");
    let mut octets = Vec::new();
    encapsulate(&sender, (Form::Path, Part::Whole), 4, Nonce(7), b"payload", &mut octets).expect("it fits");
    let packet = Packet::decode(&octets, Version::Standard).expect("well-formed");
    // What the node itself computes.
    let own = master(1).consent(&path.hash(Version::Standard), 1, path.hop(1).tag, path.hop(1).expiry);
    let keys = PathKeys::new(path.route(Version::Standard), 1, path.count(), &own);
    check_consent(Version::Standard, &packet, &keys).is_ok()
}

#[test]
fn a_members_request_gets_a_proof_that_the_node_accepts_and_only_the_sender_can_read() {
    let mut server = server_of_node_1(EVERYBODY);
    let request = request(1);
    let (answer, audit) = ask(&mut server, 1, body(&request), at(1));
    let answer = answer.expect("consented");
    let object = answer.verify(&identity(1_001).0).expect("signed by the server");
    let consent = open(object, &secret(0, 20_000)).expect("sealed to the sender's ID");
    assert!(is_accepted(&request.path, object.expiry, &consent));
    assert_eq!(object.expiry, NOW as u32 + 601);
    for other in [secret(1, 20_000), secret(0, 20_001), secret(3, 20_000)] {
        assert!(open(object, &other).is_err());
    }
    assert_eq!((audit.sender, audit.node, audit.tag), (identity(0), Some(identity(1)), Some(TRANSIT)));
    assert_eq!(audit.path, request.path.hash(Version::Standard).ok());
    let rule = "everybody".to_owned();
    assert_eq!(audit.decision, Decision::Consented { expiry: NOW as u32 + 601, rule });
}

/// ICD-05: the proof is for this path, index, tag, epoch and expiry.
#[test]
fn a_proof_is_good_for_its_own_path_tag_and_expiry_alone() {
    let mut server = server_of_node_1(EVERYBODY);
    let request = request(1);
    let (answer, _) = ask(&mut server, 1, body(&request), at(1));
    let object = answer.expect("consented").object().clone();
    let consent = open(&object, &secret(0, 20_000)).expect("sealed to the sender's ID");
    assert!(is_accepted(&request.path, object.expiry, &consent));
    assert!(!is_accepted(&request.path, object.expiry + 1, &consent));
    let mut path = request.path.clone();
    path.hops.swap(1, 2);
    assert!(!is_accepted(&path, object.expiry, &consent));
    let mut path = request.path.clone();
    path.hops[0].1 = Tag(TRANSIT.0 + 1);
    assert!(!is_accepted(&path, object.expiry, &consent));
    let mut path = request.path.clone();
    path.hops.pop();
    assert!(!is_accepted(&path, object.expiry, &consent));
    // What is sealed is bound to all that the answer says.
    for change in [
        |answer: &mut ConsentAnswer| answer.expiry += 1,
        |answer: &mut ConsentAnswer| answer.request[0] ^= 1,
        |answer: &mut ConsentAnswer| answer.server = identity(1_003),
        |answer: &mut ConsentAnswer| answer.realm = realm(1),
        |answer: &mut ConsentAnswer| answer.sealed[40] ^= 1,
    ] {
        let mut other = object.clone();
        change(&mut other);
        assert!(open(&other, &secret(0, 20_000)).is_err());
    }
}

/// Answers to one ID may share an ephemeral key for a moment: never an answer's key, nor longer than that.
#[test]
fn answers_of_a_moment_to_one_id_share_an_ephemeral_key_and_each_is_opened_by_itself() {
    let mut server = server_of_node_1(EVERYBODY);
    let mut consented =
        |nonce, now| ask(&mut server, 1, body(&request(nonce)), now).0.expect("consented").object().clone();
    let [first, second, later] = [consented(1, at(1)), consented(2, at(1)), consented(3, at(2))];
    assert_eq!(first.ephemeral, second.ephemeral);
    assert_ne!(first.ephemeral, later.ephemeral);
    assert_ne!(first.sealed, second.sealed);
    for answer in [&first, &second, &later] {
        let consent = open(answer, &secret(0, 20_000)).expect("sealed to the sender's ID");
        assert!(is_accepted(&request(1).path, answer.expiry, &consent));
    }
    // The sealed proof of one request opens under no other.
    let moved = ConsentAnswer { sealed: first.sealed, ..second };
    assert!(open(&moved, &secret(0, 20_000)).is_err());
}

/// An epoch key is verified once; other octets for the same ID are not the verified ones.
#[test]
fn an_id_that_was_verified_once_is_refused_with_other_octets_and_after_its_time() {
    let mut server = server_of_node_1(EVERYBODY);
    assert_eq!(refusal(&mut server, &request(1)), None);
    for octet in [0, 11, 12, 44, EpochKey::LENGTH - 1] {
        let mut forged = request(10 + octet as u8);
        forged.epoch_key[octet] ^= 1;
        assert_eq!(refusal(&mut server, &forged), Some(Refusal::Signature), "octet {octet}");
    }
    assert_eq!(refusal(&mut server, &request(2)), None);
    let signed = Signed::sign(&request(3), &identity_key(0)).expect("in order");
    let (_, key) = ConsentRequest::verify(&signed, at(1).unix).expect("in order");
    let end = at(u64::from(key.not_after) - NOW);
    assert!(ConsentRequest::verify_with(&signed, Some(key), end.unix).is_ok());
    let late = at(u64::from(key.not_after) - NOW + 1);
    assert!(ConsentRequest::verify_with(&signed, Some(key), late.unix).is_err());
}

/// ICC-01.
#[test]
fn requests_of_strangers_forged_stale_or_for_others_are_refused_and_logged() {
    let mut server = server_of_node_1(EVERYBODY);
    let refused = |server: &mut ConsentServer, change: &dyn Fn(&mut ConsentRequest)| {
        let mut request = request(1);
        change(&mut request);
        refusal(server, &request)
    };
    assert_eq!(refused(&mut server, &|r| r.realm = realm(1)), Some(Refusal::Realm));
    assert_eq!(refused(&mut server, &|r| r.server = identity(1_003)), Some(Refusal::NotServed));
    assert_eq!(refused(&mut server, &|r| r.sender = identity(3)), Some(Refusal::NotOwn));
    assert_eq!(refused(&mut server, &|r| r.index = 2), Some(Refusal::NotServed));
    assert_eq!(refused(&mut server, &|r| r.path.hops[0].0 = secret(66, 1).id()), Some(Refusal::NotServed));
    assert_eq!(refused(&mut server, &|r| r.time = NOW + 32), Some(Refusal::Stale));
    // Made before the server started.
    assert_eq!(refused(&mut server, &|r| r.time = NOW), Some(Refusal::Stale));
    assert_eq!(refused(&mut server, &|r| r.expiry = NOW as u32), Some(Refusal::Expired));
    // An ID that the identity did not sign, or that is not in use yet.
    assert_eq!(
        refused(&mut server, &|r| (r.epoch_key, r.nonce) = (epoch_key(3, 0), [2; 16])),
        Some(Refusal::Signature)
    );
    let later = |r: &mut ConsentRequest| {
        (r.epoch_key, r.path.sender, r.nonce) = (epoch_key(0, 1), secret(0, 20_001).id(), [3; 16]);
    };
    assert_eq!(refused(&mut server, &later), Some(Refusal::Signature));
    let forged = Body::Consent {
        membership: signed_membership(0),
        request: Signed::sign(&request(4), &identity_key(3)).expect("in order"),
    };
    assert_eq!(ask(&mut server, 1, forged, at(1)).0.err(), Some(Refusal::Signature));
    // A membership of another realm, another node, an old one.
    let with = |membership: Signed<Membership>, nonce| Body::Consent {
        membership,
        request: Signed::sign(&request(nonce), &identity_key(0)).expect("in order"),
    };
    let sign = |membership: &Membership, key: u32| Signed::sign(membership, &realm_key(key)).expect("in order");
    let newer = Membership { number: 2, ..membership(0) };
    assert_eq!(ask(&mut server, 1, with(sign(&newer, 1), 5), at(1)).0.err(), Some(Refusal::Signature));
    assert_eq!(ask(&mut server, 1, with(signed_membership(3), 6), at(1)).0.err(), Some(Refusal::NotOwn));
    let older = Membership { number: 0, ..membership(0) };
    assert_eq!(ask(&mut server, 1, with(sign(&older, 0), 7), at(1)).0.err(), Some(Refusal::Older(1)));
    // Somebody who is no member at all, with a request in order otherwise.
    server.handle(ConsentServerInput::Connected { link: 2, peer: identity(50) }, at(1));
    let mut stranger = request(8);
    (stranger.sender, stranger.epoch_key, stranger.path.sender) =
        (identity(50), epoch_key(50, 0), secret(50, 20_000).id());
    let body = Body::Consent {
        membership: sign(&membership(50), 1),
        request: Signed::sign(&stranger, &identity_key(50)).expect("in order"),
    };
    assert_eq!(ask(&mut server, 2, body, at(1)).0.err(), Some(Refusal::Signature));
    let octets = vec![0; 9];
    let input = ConsentServerInput::Frame { link: 1, octets: vec![123; 9].into() };
    assert!(!format!("{input:?}").contains("123"), "there may be keys in it");
    server.handle(ConsentServerInput::Frame { link: 1, octets: octets.into() }, at(1));
    assert!(drain(&mut server).iter().any(|output| matches!(output, ConsentServerOutput::Audit(_))));
}

#[test]
fn a_server_that_started_with_its_clock_ahead_consents_once_that_is_right() {
    let store = Store::Kept(records(6, &small()));
    let mut server = ConsentServer::new(config(1_001, &[1], EVERYBODY, store), at(3_600).unix);
    let ahead = Now { unix: at(3_601).unix, ..at(1) };
    server.handle(ConsentServerInput::Connected { link: 1, peer: identity(0) }, ahead);
    drain(&mut server);
    let once = request(1);
    assert_eq!(ask(&mut server, 1, body(&once), ahead).0.err(), Some(Refusal::Stale));
    // What was stamped before the clock was set may have been answered in another life.
    assert_eq!(ask(&mut server, 1, body(&once), at(5)).0.err(), Some(Refusal::Stale));
    let mut later = request(1);
    (later.time, later.nonce[0]) = (NOW + 6, !later.nonce[0]);
    assert_eq!(ask(&mut server, 1, body(&later), at(6)).0.err(), None);
}

#[test]
fn a_request_that_came_before_is_refused_as_long_as_its_time_would_be_taken() {
    let mut server = server_of_node_1(EVERYBODY);
    let once = request(1);
    assert_eq!(refusal(&mut server, &once), None);
    assert_eq!(refusal(&mut server, &once), Some(Refusal::Replayed));
    for secs in [2, 15, 31] {
        assert_eq!(ask(&mut server, 1, body(&once), at(secs)).0.err(), Some(Refusal::Replayed));
    }
    assert_eq!(ask(&mut server, 1, body(&once), at(32)).0.err(), Some(Refusal::Stale));
    // After a restart nothing from before it is taken.
    let store = Store::Kept(records(6, &small()));
    let mut restarted = ConsentServer::new(config(1_001, &[1], EVERYBODY, store), at(2).unix);
    restarted.handle(ConsentServerInput::Connected { link: 1, peer: identity(0) }, at(3));
    drain(&mut restarted);
    assert_eq!(ask(&mut restarted, 1, body(&once), at(3)).0.err(), Some(Refusal::Stale));
}

#[test]
fn one_sender_uses_up_its_own_room_and_nobody_elses() {
    let mut server = server_of_node_1(EVERYBODY);
    let mut accepted = 0;
    let mut number = 0u32;
    // A link may ask 100 times a second; one sender's requests are remembered for at most a minute.
    for second in 1..50u64 {
        for _ in 0..150 {
            number += 1;
            let mut request = request(0);
            request.nonce[..4].copy_from_slice(&number.to_be_bytes());
            request.time = NOW + second + 20;
            if accepted + 5 < MAX_NONCES && second < 4 {
                accepted += usize::from(ask(&mut server, 1, body(&request), at(second)).0.is_ok());
            }
        }
        if second >= 4 {
            break;
        }
    }
    // The bucket's depth and three seconds' rate.
    assert!((400..=700).contains(&accepted), "{accepted}");
    server.handle(ConsentServerInput::Connected { link: 2, peer: identity(3) }, at(5));
    let mut other = request(9);
    (other.sender, other.epoch_key) = (identity(3), epoch_key(3, 0));
    other.path = RequestedPath {
        sender: secret(3, 20_000).id(),
        hops: vec![(secret(1, 20_000).id(), TRANSIT), (secret(5, 20_000).id(), DELIVER)],
    };
    let body = Body::Consent {
        membership: signed_membership(3),
        request: Signed::sign(&other, &identity_key(3)).expect("in order"),
    };
    assert!(ask(&mut server, 2, body, at(5)).0.is_ok());
}

#[test]
fn an_id_that_two_identities_claim_is_refused_to_the_second() {
    let mut server = server_of_node_1(EVERYBODY);
    // Node 3 signs the ID that node 0 advertises.
    let claim = |node: u32, id: u32, nonce: u8| {
        let key = EpochKey {
            epoch: 20_000,
            not_before: NOW as u32 - 10,
            not_after: NOW as u32 + 1_000,
            node: secret(id, 20_000).id(),
        };
        let mut request = request(nonce);
        (request.sender, request.path.sender) = (identity(node), secret(id, 20_000).id());
        request.epoch_key = key.sign(&identity_key(node));
        Body::Consent {
            membership: signed_membership(node),
            request: Signed::sign(&request, &identity_key(node)).expect("in order"),
        }
    };
    server.handle(ConsentServerInput::Connected { link: 3, peer: identity(5) }, at(1));
    assert_eq!(ask(&mut server, 3, claim(5, 0, 1), at(1)).0.err(), Some(Refusal::IdClaimed(identity(0))));
    // An ID that nobody advertises: whoever asks by it first has it, and can alone read what is sealed to it.
    assert!(ask(&mut server, 1, claim(0, 99, 2), at(1)).0.is_ok());
    assert_eq!(ask(&mut server, 3, claim(5, 99, 3), at(1)).0.err(), Some(Refusal::IdClaimed(identity(0))));
    // Once the first claim has ended, the ID is free.
    let mut later = match claim(5, 99, 4) {
        Body::Consent { request, .. } => request.object().clone(),
        other => panic!("{other:?}"),
    };
    let key = EpochKey {
        epoch: 20_001,
        not_before: NOW as u32 - 10,
        not_after: NOW as u32 + 9_000,
        node: secret(99, 20_000).id(),
    };
    // The adverts have ended by then: fresh ones, half an hour later.
    let fresh: Vec<_> = adverts(6, &small())
        .into_iter()
        .zip(0..)
        .map(|(mut advert, node)| {
            (advert.sequence, advert.issued) = (2, NOW + 1_100);
            Record::Advert(signed_advert(&advert, node))
        })
        .collect();
    server.handle(ConsentServerInput::Records { records: fresh, complete: true }, at(1_100));
    (later.epoch_key, later.time, later.expiry) = (key.sign(&identity_key(5)), NOW + 1_100, NOW as u32 + 1_400);
    let body = Body::Consent {
        membership: signed_membership(5),
        request: Signed::sign(&later, &identity_key(5)).expect("in order"),
    };
    assert!(ask(&mut server, 3, body, at(1_100)).0.is_ok());
}

#[test]
fn a_path_with_an_id_that_nobody_has_gets_no_consent_whatever_the_policy_says() {
    let mut server = server_of_node_1(EVERYBODY);
    let with = |id: NodeId, place: usize, nonce: u8| {
        let mut request = request(nonce);
        request.path.hops[place].0 = id;
        request
    };
    // Node 3 has no ID of that epoch; its next one it has advertised ahead.
    for (place, nonce) in [(1, 1), (2, 2)] {
        assert_eq!(refusal(&mut server, &with(secret(3, 20_002).id(), place, nonce)), Some(Refusal::NoAdvert));
    }
    assert_eq!(refusal(&mut server, &with(secret(3, 20_001).id(), 1, 3)), None);
    // The sender's own is proved by the request, and no advert need have it.
    let mut own = request(4);
    own.path.sender = secret(0, 20_002).id();
    let (not_before, not_after) = (NOW as u32 - 10, NOW as u32 + 1_000);
    own.epoch_key = EpochKey { epoch: 20_002, not_before, not_after, node: own.path.sender }.sign(&identity_key(0));
    assert_eq!(refusal(&mut server, &own), None);
    // A later advert without the ID does not end the claim; its last second does.
    let later = |node: u32, issued: u64| {
        let mut advert = adverts(6, &small())[node as usize].clone();
        (advert.sequence, advert.issued) = (2, issued);
        advert.ids = vec![epoch_key(node, 1)];
        Record::Advert(signed_advert(&advert, node))
    };
    // The first ID's last second.
    let last = 50_000;
    let records = vec![later(3, NOW + last)];
    server.handle(ConsentServerInput::Records { records, complete: true }, at(last));
    let mut at_last = |secs: u64, nonce: u8| {
        let mut request = request(nonce);
        // The own ID and that of node 1 are the next ones.
        (request.path.sender, request.epoch_key) = (secret(0, 20_001).id(), epoch_key(0, 1));
        request.path.hops[0].0 = secret(1, 20_001).id();
        request.path.hops[2].0 = secret(4, 20_001).id();
        (request.time, request.expiry) = (NOW + secs, (NOW + secs) as u32 + 600);
        ask(&mut server, 1, body(&request), at(secs)).0.err()
    };
    assert_eq!(at_last(last, 5), None);
    assert_eq!(at_last(last + 1, 6), Some(Refusal::NoAdvert));
    // Who is removed has no ID any more.
    let list = Record::Revocations(revocations(1, &[4]));
    let mut server = server_of_node_1(EVERYBODY);
    server.handle(ConsentServerInput::Records { records: vec![list], complete: true }, at(1));
    drain(&mut server);
    assert_eq!(refusal(&mut server, &request(7)), Some(Refusal::NoAdvert));
}

/// ICC-04: what a policy gave ends with its expiry; what it gives is what it says now.
#[test]
fn a_changed_policy_and_a_revocation_hold_from_the_next_request_on() {
    let mut server =
        server_of_node_1("[[rule]]\nname = \"n0\"\nallow = true\nseconds = 60\nsenders = [\"n0\"]\nafter = [\"n3\"]");
    let (answer, _) = ask(&mut server, 1, body(&request(1)), at(1));
    // The policy's minute, not the ten that were asked for.
    assert_eq!(answer.expect("consented").object().expiry, NOW as u32 + 61);
    server.handle(ConsentServerInput::Policy(policy("[[rule]]\nname = \"nobody\"\nallow = false")), at(1));
    let (answer, audit) = ask(&mut server, 1, body(&request(2)), at(1));
    assert_eq!(answer.err(), Some(Refusal::Policy));
    let rule = Some("nobody".to_owned());
    assert_eq!(audit.decision, Decision::Refused { refusal: Refusal::Policy, rule });
    server.handle(ConsentServerInput::Policy(policy("[[rule]]\nname = \"n0\"\nallow = true\nafter = [\"n4\"]")), at(1));
    assert_eq!(refusal(&mut server, &request(3)), Some(Refusal::Policy));
    server.handle(ConsentServerInput::Policy(policy(EVERYBODY)), at(1));
    let list = Record::Revocations(revocations(1, &[0]));
    server.handle(ConsentServerInput::Records { records: vec![list], complete: true }, at(1));
    drain(&mut server);
    assert_eq!(refusal(&mut server, &request(4)), Some(Refusal::Revoked));
}

#[test]
fn a_server_without_its_records_answers_nothing_before_a_path_server_has_sent_them() {
    for store in [Store::New, Store::Lost] {
        let mut server = ConsentServer::new(config(1_001, &[1], EVERYBODY, store), at(0).unix);
        server.handle(ConsentServerInput::Connected { link: 1, peer: identity(0) }, at(1));
        assert_eq!(refusal(&mut server, &request(1)), Some(Refusal::Recovering));
        let half = ConsentServerInput::Records { records: records(6, &small()), complete: false };
        server.handle(half, at(1));
        drain(&mut server);
        assert_eq!(refusal(&mut server, &request(1)), Some(Refusal::Recovering));
        server.handle(ConsentServerInput::Records { records: Vec::new(), complete: true }, at(1));
        drain(&mut server);
        assert_eq!(refusal(&mut server, &request(1)), None);
    }
}

#[test]
fn a_delegate_of_a_prefix_of_tags_consents_under_it_for_that_epoch_and_has_no_other_key() {
    let store = Store::Kept(records(6, &small()));
    let mut config = config(1_001, &[], EVERYBODY, store);
    config.nodes = BTreeMap::from([(identity(1), TagKeys::default())]);
    let mut server = ConsentServer::new(config, at(0).unix);
    server.handle(ConsentServerInput::Connected { link: 1, peer: identity(0) }, at(1));
    drain(&mut server);
    assert_eq!(refusal(&mut server, &request(1)), Some(Refusal::NoKey));
    let epoch = tag_epoch(NOW as u32 + 601);
    let branch = master(1).root(epoch).descend(TRANSIT, 2).expect("under the root");
    server.handle(ConsentServerInput::Delegate { node: identity(1), branch: branch.clone() }, at(1));
    let signed = request(2);
    let (answer, _) = ask(&mut server, 1, body(&signed), at(1));
    let object = answer.expect("consented").object().clone();
    let consent = open(&object, &secret(0, 20_000)).expect("sealed to the sender's ID");
    assert!(is_accepted(&signed.path, object.expiry, &consent));
    let mut beside = request(3);
    beside.path.hops[0].1 = DELIVER;
    assert_eq!(refusal(&mut server, &beside), Some(Refusal::NoKey));
    // A node that this server does not serve.
    server.handle(ConsentServerInput::Delegate { node: identity(3), branch }, at(1));
    assert!(drain(&mut server).iter().any(|output| matches!(output, ConsentServerOutput::Event(_))));
}

/// What the server answers to a node that gives its keys, and what it says of it.
fn give(server: &mut ConsentServer, link: u64, node: u32) -> (Option<Refusal>, usize) {
    let octets = Frame { request: 9, body: Body::Entrust { masters: vec![(0, master(node))] } }.encode();
    server.handle(ConsentServerInput::Frame { link, octets: octets.into() }, at(1));
    let (mut answer, mut said) = (None, 0);
    for output in drain(server) {
        match output {
            ConsentServerOutput::Send { octets, .. } => {
                answer = match Frame::decode(&octets).expect("its own frame") {
                    Frame { request: 9, body: Body::Entrusted } => Some(None),
                    Frame { request: 9, body: Body::Refused(refusal) } => Some(Some(refusal)),
                    other => panic!("{other:?}"),
                };
            }
            ConsentServerOutput::Event(ConsentServerEvent::Entrusted(who)) => {
                assert_eq!(who, identity(node));
                said += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    (answer.expect("answered"), said)
}

#[test]
fn a_node_gives_its_keys_itself_where_that_is_meant_and_nobody_else_gives_them() {
    let entrusted = || [(identity(1), TagKeys::entrusted())].into();
    let store = Store::Kept(records(6, &small()));
    let with = ConsentServerConfig { nodes: entrusted(), ..config(1_001, &[], EVERYBODY, store) };
    let mut server = ConsentServer::new(with, at(0).unix);
    for (link, peer) in [(1, 0), (2, 1), (3, 3)] {
        server.handle(ConsentServerInput::Connected { link, peer: identity(peer) }, at(1));
    }
    drain(&mut server);
    assert_eq!(refusal(&mut server, &request(1)), Some(Refusal::NoKey));
    assert!(server.awaited().eq([identity(1)]));
    // Another member's keys are its own, and it is not served here.
    assert_eq!(give(&mut server, 3, 3), (Some(Refusal::NotServed), 0));
    assert_eq!(refusal(&mut server, &request(2)), Some(Refusal::NoKey));
    assert_eq!(give(&mut server, 2, 1), (None, 1));
    assert_eq!(server.awaited().count(), 0);
    let (answer, _) = ask(&mut server, 1, body(&request(3)), at(1));
    let answer = answer.expect("consent");
    let consent = open(answer.object(), &secret(0, 20_000)).expect("sealed to it");
    assert!(is_accepted(&request(3).path, answer.object().expiry, &consent));
    // The same again says nothing new; a reload keeps what was given, unless the file has the keys from then on.
    assert_eq!(give(&mut server, 2, 1), (None, 0));
    server.handle(ConsentServerInput::Nodes(entrusted()), at(1));
    assert_eq!(refusal(&mut server, &request(4)), None);
    server.handle(ConsentServerInput::Nodes([(identity(1), TagKeys::default())].into()), at(1));
    assert_eq!(refusal(&mut server, &request(5)), Some(Refusal::NoKey));
    assert_eq!(give(&mut server, 2, 1), (Some(Refusal::NotServed), 0));
    // From the file the keys go on until the node gives its own; where it is served anew, it is asked for them by the end of its link.
    let from_file = || [(identity(1), TagKeys::new(vec![(0, master(1))]))].into();
    server.handle(ConsentServerInput::Nodes(from_file()), at(1));
    server.handle(ConsentServerInput::Nodes(entrusted()), at(1));
    assert_eq!(refusal(&mut server, &request(6)), None);
    for nodes in [BTreeMap::new(), entrusted()] {
        server.handle(ConsentServerInput::Nodes(nodes), at(1));
    }
    let closed = std::iter::from_fn(|| server.poll());
    assert_eq!(closed.filter(|output| matches!(output, ConsentServerOutput::Close { link: 2 })).count(), 1);
    // A print of the frame shows no key.
    let printed = format!("{:?}", Body::Entrust { masters: vec![(0, master(1))] });
    assert_eq!(printed, "Entrust { masters: [(0, TagMaster(..))] }");
}
