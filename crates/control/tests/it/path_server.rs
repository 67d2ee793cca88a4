//! The path server as a machine.
//!
//! ICC-02: everything that a path server stores and sends, searched for every key of the nodes: none is there.
//! ICC-03: partial paths without number, loops, a thousand queries at once: refused, or the links looked at stay below
//! the limit; others do not notice.
//! ICC, older: a server that lost its store: it asks its peer before it answers.
//! ICC, a removed node: its subscription ends, and it learns nothing more.

use std::collections::BTreeMap;

use wayleave_control::advert::{Advert, Relationship};
use wayleave_control::database::Refusal;
use wayleave_control::frames::{Body, Frame, Host};
use wayleave_control::labels::Labels;
use wayleave_control::path::{PathServer, PathServerConfig, PathServerEvent, PathServerInput, PathServerOutput};
use wayleave_control::store::{Record, Store};
use wayleave_control::topology::{PartialPath, Step};
use wayleave_core::{IdentityKey, Machine, Now};
use wayleave_packet::Path;

use super::common::*;
use wayleave_control::realm::{MAX_STALENESS, Membership, RevocationList};
use wayleave_crypto::signed::Signed;

pub(crate) fn config(store: Store) -> PathServerConfig {
    PathServerConfig {
        realm: realm(0),
        capacity: 1_000,
        peers: vec![identity(800)],
        store,
        requests: 20,
        max_staleness: MAX_STALENESS,
        instance: 42,
    }
}

/// A server that knows the small topology.
pub(crate) fn server_of_six() -> PathServer {
    PathServer::new(config(Store::Kept(records(6, &small()))))
}

fn connect(server: &mut PathServer, link: u64, node: u32) {
    server.handle(PathServerInput::Connected { link, peer: identity(node) }, at(0));
}

/// Sends a frame over `link`; what is to be stored is stored; returns the answers on all links.
pub(crate) fn ask(server: &mut PathServer, link: u64, body: Body, now: Now) -> Vec<(u64, Frame)> {
    let octets = Frame { request: 9, body }.encode();
    server.handle(PathServerInput::Frame { link, octets }, now);
    answers(server, now).0
}

fn answers(server: &mut PathServer, now: Now) -> (Vec<(u64, Frame)>, Vec<Record>) {
    let (mut frames, mut stored) = (Vec::new(), Vec::new());
    while let Some(output) = server.poll() {
        match output {
            PathServerOutput::Send { link, octets } => {
                frames.push((link, Frame::decode(&octets).expect("its own frame")));
            }
            PathServerOutput::Persist { id, records } => {
                stored.extend(records);
                server.handle(PathServerInput::Persisted(id), now);
            }
            PathServerOutput::Close { .. } | PathServerOutput::Event(_) => {}
        }
    }
    (frames, stored)
}

/// A node of the version before is told, under the number of its registration, which is what it logs.
#[test]
fn an_advert_of_another_version_is_refused_under_the_number_of_its_registration() {
    let mut server = server_of_six();
    connect(&mut server, 1, 0);
    let advert = signed_advert(&adverts(6, &small())[0], 0);
    let request = 1 << 31 | 7;
    let mut octets =
        Frame { request, body: Body::Register { membership: signed_membership(0), advert: advert.clone() } }.encode();
    let at_version = octets.len() - advert.octets().len();
    octets[at_version] = 1;
    server.handle(PathServerInput::Frame { link: 1, octets }, at(0));
    let (frames, _) = answers(&mut server, at(0));
    assert_eq!((frames[0].1.request, refusal(&frames)), (request, Some(Refusal::Malformed)));
    // Of a frame of another version the number is not known.
    server.handle(PathServerInput::Frame { link: 1, octets: vec![2, 1, 0, 0, 0, 9] }, at(0));
    let (frames, _) = answers(&mut server, at(0));
    assert_eq!((frames[0].1.request, refusal(&frames)), (0, Some(Refusal::Malformed)));
}

fn refusal(frames: &[(u64, Frame)]) -> Option<Refusal> {
    frames.iter().find_map(|(_, frame)| match frame.body {
        Body::Refused(refusal) => Some(refusal),
        _ => None,
    })
}

pub(crate) fn register(node: u32, advert: &Advert) -> Body {
    Body::Register { membership: signed_membership(node), advert: signed_advert(advert, node) }
}

fn paths(frames: Vec<(u64, Frame)>) -> (Vec<Path>, Vec<Record>) {
    match frames.into_iter().next().expect("an answer").1.body {
        Body::Paths { paths, records, .. } => (paths, records),
        other => panic!("{other:?}"),
    }
}

fn nodes(path: &Path) -> Vec<IdentityKey> {
    path.nodes().map(|(identity, ..)| identity).collect()
}

fn find(name_of: &str) -> Body {
    Body::FindHost { host: Host::Name(name(name_of)), partials: Vec::new() }
}

#[test]
fn a_node_registers_and_its_registration_is_answered_once_it_is_durable() {
    let mut server = PathServer::new(config(Store::New));
    connect(&mut server, 1, 0);
    let body = register(0, &advert(0, &[(1, Relationship::Provider)]));
    server.handle(PathServerInput::Frame { link: 1, octets: Frame { request: 9, body }.encode() }, at(0));
    let outputs = drain(&mut server);
    let [PathServerOutput::Persist { id, records }] = &outputs[..] else { panic!("{outputs:?}") };
    assert_eq!(records.len(), 2);
    assert!(server.database().advert(&identity(0), NOW).is_none());
    server.handle(PathServerInput::Persisted(*id), at(0));
    let (frames, _) = answers(&mut server, at(0));
    assert!(matches!(frames[..], [(1, Frame { request: 9, body: Body::Registered { number: 1 } })]), "{frames:?}");
    assert!(server.database().advert(&identity(0), NOW).is_some());
    // The same again is answered from memory; an older one after a restart is refused.
    let same = ask(&mut server, 1, register(0, &advert(0, &[(1, Relationship::Provider)])), at(0));
    assert!(matches!(same[..], [(1, Frame { body: Body::Registered { number: 1 }, .. })]));
    let newer = Advert { sequence: 5, ..advert(0, &[(1, Relationship::Provider)]) };
    let octets = Frame { request: 9, body: register(0, &newer) }.encode();
    server.handle(PathServerInput::Frame { link: 1, octets }, at(0));
    let stored: Vec<Record> = [records.clone(), answers(&mut server, at(0)).1].concat();
    let mut restarted = PathServer::new(config(Store::Kept(stored)));
    connect(&mut restarted, 1, 0);
    let older = Advert { sequence: 4, ..advert(0, &[(1, Relationship::Provider)]) };
    assert_eq!(refusal(&ask(&mut restarted, 1, register(0, &older), at(0))), Some(Refusal::Older(5)));
}

#[test]
fn only_the_node_itself_registers_and_only_members_do() {
    let mut server = PathServer::new(config(Store::New));
    connect(&mut server, 1, 1);
    assert_eq!(refusal(&ask(&mut server, 1, register(0, &advert(0, &[])), at(0))), Some(Refusal::NotOwn));
    connect(&mut server, 2, 0);
    let forged = wayleave_crypto::signed::Signed::sign(&membership(0), &realm_key(1)).expect("in order");
    let body = Body::Register { membership: forged, advert: signed_advert(&advert(0, &[]), 0) };
    assert_eq!(refusal(&ask(&mut server, 2, body, at(0))), Some(Refusal::Signature));
    // Somebody else's membership with one's own advert.
    let body = Body::Register { membership: signed_membership(1), advert: signed_advert(&advert(0, &[]), 0) };
    assert_eq!(refusal(&ask(&mut server, 2, body, at(0))), Some(Refusal::NotOwn));
    // Records are taken from other servers alone.
    let records = Body::Records { instance: 1, version: 1, complete: true, records: records(6, &small()) };
    assert_eq!(refusal(&ask(&mut server, 2, records, at(0))), Some(Refusal::Malformed));
    assert!(server.database().is_empty());
}

#[test]
fn paths_come_with_ids_interfaces_tags_expiry_mtu_labels_and_every_nodes_records() {
    let mut server = server_of_six();
    let mut labels = Labels::default();
    labels.insert(identity(3), "green", identity(700));
    server.handle(PathServerInput::Labels(labels), at(0));
    connect(&mut server, 1, 0);
    let (paths, records) = paths(ask(&mut server, 1, find("n4"), at(0)));
    let mut found: Vec<_> = paths.iter().map(nodes).collect();
    found.sort_unstable();
    let mut expected: Vec<_> =
        [[0, 1, 3, 4], [0, 2, 3, 4], [0, 1, 5, 4]].map(|path| path.map(identity).to_vec()).to_vec();
    expected.sort_unstable();
    assert_eq!(found, expected);
    let path = paths.iter().find(|path| nodes(path)[1..3] == [1, 3].map(identity)).expect("by 1 and 3");
    let parts: Vec<_> = path.nodes().map(|(_, id, tag)| (id, tag)).collect();
    let id = |node| secret(node, 20_000).id();
    assert_eq!(parts[1..], [(id(1), TRANSIT), (id(3), TRANSIT), (id(4), DELIVER)]);
    assert_eq!(parts[0].0, id(0));
    assert_eq!((path.mtu(), path.expiry()), (1_400, NOW + 1_800));
    let interfaces: Vec<_> = path.hops().iter().map(|hop| (hop.ingress, hop.egress)).collect();
    // A node's interface to neighbour n has number n + 1.
    assert_eq!(interfaces, [(0, 2), (1, 4), (2, 5), (4, 0)]);
    let label = &path.labels()[0];
    assert_eq!((label.hop, label.text.as_str(), label.signer), (2, "green", identity(700)));
    let mut described = BTreeMap::new();
    for record in records {
        match record {
            Record::Membership(membership) => *described.entry(membership.object().identity).or_insert(0) += 1,
            Record::Advert(advert) => *described.entry(advert.object().identity).or_insert(0) += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(described, (0..6).map(|node| (identity(node), 2)).collect());
}

#[test]
fn hosts_are_found_by_name_identity_and_inner_address() {
    let mut server = server_of_six();
    connect(&mut server, 1, 0);
    let mut count = |host| match &ask(&mut server, 1, Body::FindHost { host, partials: Vec::new() }, at(0))[0].1.body {
        Body::Paths { paths, .. } => Ok(paths.len()),
        Body::Refused(refusal) => Err(*refusal),
        other => panic!("{other:?}"),
    };
    assert_eq!(count(Host::Name(name("n4"))), Ok(3));
    assert_eq!(count(Host::Identity(identity(4))), Ok(3));
    assert_eq!(count(Host::Address("10.0.4.200".parse().expect("an address"))), Ok(3));
    assert_eq!(count(Host::Name(name("n9"))), Err(Refusal::NoSuchHost));
    assert_eq!(count(Host::Identity(identity(9))), Err(Refusal::NoSuchHost));
    assert_eq!(count(Host::Address("10.9.4.200".parse().expect("an address"))), Err(Refusal::NoSuchHost));
    // Oneself: there is nothing to find.
    assert_eq!(count(Host::Identity(identity(0))), Ok(0));
}

#[test]
fn a_path_to_a_path_server_is_found_by_role() {
    let mut all = records(6, &small());
    let mut member = membership(4);
    member.grants.roles = wayleave_control::realm::Roles::PATH_SERVER;
    all[4] = Record::Membership(wayleave_crypto::signed::Signed::sign(&member, &realm_key(0)).expect("in order"));
    let mut server = PathServer::new(config(Store::Kept(all)));
    connect(&mut server, 1, 0);
    let (paths, _) = paths(ask(&mut server, 1, Body::FindPathServer { partials: Vec::new() }, at(0)));
    assert_eq!(paths.len(), 3);
    assert!(paths.iter().all(|path| nodes(path).last() == Some(&identity(4))));
}

#[test]
fn strangers_and_nodes_without_an_advert_get_no_paths() {
    let mut server = server_of_six();
    connect(&mut server, 1, 50);
    assert_eq!(refusal(&ask(&mut server, 1, find("n4"), at(0))), Some(Refusal::NotMember));
    let subscribe = Body::Subscribe { instance: 0, since: 0 };
    assert_eq!(refusal(&ask(&mut server, 1, subscribe, at(0))), Some(Refusal::NotMember));
    let list = revocations(2, &[0]);
    assert!(refusal(&ask(&mut server, 1, Body::SubmitRevocations(list), at(0))).is_none());
    connect(&mut server, 2, 0);
    assert_eq!(refusal(&ask(&mut server, 2, find("n4"), at(0))), Some(Refusal::Revoked));
    connect(&mut server, 3, 1);
    // When all adverts have ended, members remain and paths do not.
    assert_eq!(refusal(&ask(&mut server, 3, find("n4"), at(1_801))), Some(Refusal::NoAdvert));
}

/// ICC-03: as many partial paths as a frame can have, and more; then as many queries as a link can send.
#[test]
fn partial_path_bombs_are_refused_or_cost_no_more_than_the_limit() {
    let mut server = server_of_six();
    connect(&mut server, 1, 0);
    let claim = |to: u32| PartialPath { nodes: vec![identity(0), identity(to)], steps: vec![Step::Up] };
    let claims = |count: usize| (0..count).map(|_| claim(1)).collect::<Vec<_>>();
    let body = |partials| Body::FindHost { host: Host::Name(name("n4")), partials };
    let (found, _) = paths(ask(&mut server, 1, body(claims(16)), at(0)));
    assert_eq!(found.len(), 3);
    // Ten thousand do not decode: the frame is refused before any is looked at.
    assert_eq!(refusal(&ask(&mut server, 1, body(claims(10_000)), at(0))), Some(Refusal::Malformed));
    let looped =
        PartialPath { nodes: [0, 1, 3, 1].map(identity).to_vec(), steps: vec![Step::Up, Step::Up, Step::Down] };
    assert_eq!(refusal(&ask(&mut server, 1, body(vec![looped]), at(0))), Some(Refusal::PartialPath));
    let mut passed = 0;
    for _ in 0..1_000 {
        passed += usize::from(refusal(&ask(&mut server, 1, body(claims(16)), at(0))) != Some(Refusal::TooOften));
    }
    assert!(passed <= 100, "{passed}");
    assert!(server.statistics().search_steps < 101 * 200, "{}", server.statistics().search_steps);
    // Others do not notice, and a second later the link may ask again.
    connect(&mut server, 2, 1);
    assert_eq!(refusal(&ask(&mut server, 2, find("n4"), at(0))), None);
    assert_eq!(refusal(&ask(&mut server, 1, find("n4"), at(1))), None);
}

#[test]
fn subscribers_get_everything_then_every_change_and_nothing_twice() {
    let mut server = server_of_six();
    connect(&mut server, 1, 0);
    let count = |frames: &[(u64, Frame)]| {
        frames
            .iter()
            .map(|(_, frame)| match &frame.body {
                Body::Records { records, complete, instance: 42, .. } => (records.len(), *complete),
                other => panic!("{other:?}"),
            })
            .collect::<Vec<_>>()
    };
    let first = ask(&mut server, 1, Body::Subscribe { instance: 0, since: 0 }, at(0));
    assert_eq!(count(&first), [(12, true)]);
    let Body::Records { version, .. } = first[0].1.body else { panic!() };
    // One node changes twice: one record of each kind, the latest.
    connect(&mut server, 2, 3);
    for sequence in [2, 3] {
        let advert = Advert { sequence, ..adverts(6, &small()).remove(3) };
        ask(&mut server, 2, register(3, &advert), at(0));
    }
    assert_eq!(server.deadline(), Some(at_ms(200).instant));
    server.handle_timeout(at_ms(200));
    let (changes, _) = answers(&mut server, at(0));
    assert_eq!(count(&changes), [(2, true)]);
    // A list of removed nodes comes alone.
    ask(&mut server, 2, Body::SubmitRevocations(revocations(7, &[5])), at(1));
    server.handle_timeout(at(2));
    assert_eq!(count(&answers(&mut server, at(2)).0), [(1, true)]);
    // Whoever comes back says how far it was.
    connect(&mut server, 3, 0);
    let again = ask(&mut server, 3, Body::Subscribe { instance: 42, since: version }, at(2));
    assert_eq!(count(&again), [(3, true)]);
    let other_life = ask(&mut server, 3, Body::Subscribe { instance: 41, since: version }, at(2));
    assert_eq!(count(&other_life), [(13, true)]);
}

#[test]
fn a_removed_subscriber_learns_nothing_more() {
    let mut server = server_of_six();
    connect(&mut server, 1, 0);
    connect(&mut server, 2, 3);
    ask(&mut server, 1, Body::Subscribe { instance: 0, since: 0 }, at(0));
    ask(&mut server, 2, Body::Subscribe { instance: 0, since: 0 }, at(0));
    ask(&mut server, 2, Body::SubmitRevocations(revocations(7, &[0])), at(1));
    server.handle_timeout(at(2));
    let (frames, _) = answers(&mut server, at(2));
    let (to_removed, others): (Vec<_>, Vec<_>) = frames.into_iter().partition(|(link, _)| *link == 1);
    assert_eq!(refusal(&to_removed), Some(Refusal::Revoked), "but why");
    assert_eq!((to_removed.len(), others.len(), others[0].0), (1, 1, 2));
    // Once.
    ask(&mut server, 2, Body::SubmitRevocations(revocations(8, &[0, 5])), at(3));
    server.handle_timeout(at(4));
    assert!(answers(&mut server, at(4)).0.iter().all(|(link, _)| *link == 2));
}

#[test]
fn a_node_that_registers_all_the_time_is_slowed_down() {
    let mut server = server_of_six();
    connect(&mut server, 1, 3);
    let mut accepted = 0;
    for sequence in 2..40 {
        let advert = Advert { sequence, ..adverts(6, &small()).remove(3) };
        accepted += usize::from(refusal(&ask(&mut server, 1, register(3, &advert), at(0))).is_none());
    }
    assert_eq!(accepted, 10);
}

#[test]
fn a_server_that_lost_its_store_asks_its_peer_before_it_answers() {
    for store in [Store::Lost, Store::Kept(vec![forged_record()])] {
        let mut server = PathServer::new(config(store));
        connect(&mut server, 1, 0);
        drain(&mut server);
        assert_eq!(refusal(&ask(&mut server, 1, find("n4"), at(0))), Some(Refusal::Recovering));
        let body = register(0, &advert(0, &[(1, Relationship::Provider)]));
        assert_eq!(refusal(&ask(&mut server, 1, body, at(0))), Some(Refusal::Recovering));
        let body = Body::Subscribe { instance: 0, since: 0 };
        assert_eq!(refusal(&ask(&mut server, 1, body, at(0))), Some(Refusal::Recovering));
        // Its peer is asked as soon as the link is up, and what it sends is believed as far as it is signed.
        connect(&mut server, 2, 800);
        let (frames, _) = answers(&mut server, at(0));
        assert!(matches!(frames[..], [(2, Frame { body: Body::Subscribe { .. }, .. })]));
        let newer = Advert { sequence: 9, ..advert(0, &[(1, Relationship::Provider)]) };
        let mut all = records(6, &small());
        all.push(Record::Advert(signed_advert(&newer, 0)));
        all.push(Record::Membership(
            wayleave_crypto::signed::Signed::sign(&membership(60), &realm_key(1)).expect("in order"),
        ));
        let body = Body::Records { instance: 3, version: 8, complete: true, records: all };
        server.handle(PathServerInput::Frame { link: 2, octets: Frame { request: 0, body }.encode() }, at(0));
        let events: Vec<PathServerOutput> = drain(&mut server);
        assert!(events.contains(&PathServerOutput::Event(PathServerEvent::Recovered(identity(800)))));
        let refused = PathServerEvent::Refused { peer: identity(800), refusal: Refusal::Signature };
        assert!(events.contains(&PathServerOutput::Event(refused)));
        assert_eq!(refusal(&ask(&mut server, 1, find("n4"), at(0))), None);
        // An older advert than the peer had is refused.
        let body = register(0, &Advert { sequence: 8, ..newer });
        assert_eq!(refusal(&ask(&mut server, 1, body, at(0))), Some(Refusal::Older(9)));
    }
}

fn forged_record() -> Record {
    Record::Membership(wayleave_crypto::signed::Signed::sign(&membership(0), &realm_key(1)).expect("in order"))
}

#[test]
fn no_octet_that_a_path_server_stores_or_sends_is_part_of_a_key() {
    let mut server = server_of_six();
    connect(&mut server, 1, 0);
    let frames = ask(&mut server, 1, find("n4"), at(0));
    let mut octets: Vec<u8> = frames.iter().flat_map(|(_, frame)| frame.encode()).collect();
    octets.extend(server.database().all_records().flat_map(|record| record.encode()));
    let contains = |secret: &[u8]| octets.windows(16).any(|window| window == &secret[..16]);
    for node in 0..6u32 {
        assert!(!contains(identity_key(node).seed().expose()));
        assert!(!contains(seed(3, node).expose()) && !contains(seed(4, node).expose()));
        let root = master(node).root(1_800_000_000 >> 12);
        assert!(!contains(root.key().expose()));
        assert!(contains(&identity(node).0), "the search itself works");
    }
}

#[test]
fn octets_that_are_no_frame_are_refused_and_change_nothing() {
    let mut server = server_of_six();
    connect(&mut server, 1, 0);
    let version = server.database().version();
    for octets in [&b""[..], &[1], &[2, 1, 0, 0, 0, 0], &[1, 99, 0, 0, 0, 0], &[1, 2, 0, 0, 0, 0, 1]] {
        server.handle(PathServerInput::Frame { link: 1, octets: octets.to_vec() }, at(0));
        assert_eq!(refusal(&answers(&mut server, at(0)).0), Some(Refusal::Malformed));
    }
    // A frame that servers send, and a link that is not there.
    let paths = Body::Paths { is_cut: false, paths: Vec::new(), records: Vec::new() };
    assert_eq!(refusal(&ask(&mut server, 1, paths, at(0))), Some(Refusal::Malformed));
    assert!(ask(&mut server, 77, find("n4"), at(0)).is_empty());
    assert_eq!(server.database().version(), version);
}

/// ICC, list keys: a stolen one floods servers with ever newer lists: after some each is refused, and another key's are taken as before.
#[test]
fn a_list_key_signs_so_many_lists_a_second_and_others_go_on() {
    use wayleave_control::realm::{ListSigner, Rolls};
    let mut server = server_of_six();
    connect(&mut server, 1, 50);
    let (thief, other) = (super::lists::list_key(1, 0, NOW + 1_000), super::lists::list_key(2, 0, NOW + 1_000));
    let mut taken = 0;
    for number in 0..100 {
        // From many identities, which cost nothing.
        connect(&mut server, 100 + number, 100 + number as u32);
        let before = server.database().revocations().map(|list| list.object().clone());
        let sign =
            |signer: &ListSigner| signer.sign(before.as_ref(), 0, Vec::new(), &Rolls::default(), 600, at(0).unix);
        let list = sign(&thief).expect("in order");
        match refusal(&ask(&mut server, 100 + number, Body::SubmitRevocations(list), at(0))) {
            None => taken += 1,
            Some(refusal) => assert_eq!(refusal, Refusal::TooOften),
        }
    }
    assert_eq!(taken, 60);
    let before = server.database().revocations().map(|list| list.object().clone());
    let list = other.sign(before.as_ref(), 0, Vec::new(), &Rolls::default(), 600, at(0).unix).expect("in order");
    assert_eq!(refusal(&ask(&mut server, 1, Body::SubmitRevocations(list.clone()), at(0))), None);
    // Anybody may read which list is in force.
    let answer = ask(&mut server, 1, Body::FindRevocations, at(0));
    assert!(matches!(&answer[..], [(1, Frame { body: Body::Revocations(Some(known)), .. })] if *known == list));
}

/// Whose membership the realm's next key has to sign anew learns that by the list, and then the rest.
#[test]
fn a_subscriber_whose_membership_ended_with_the_realms_key_gets_the_list_and_after_its_next_membership_the_rest() {
    use wayleave_control::realm::{ListSigner, Rolls};
    let mut server = server_of_six();
    connect(&mut server, 1, 0);
    ask(&mut server, 1, Body::Subscribe { instance: 0, since: 0 }, at(0));
    let rolls = Rolls::default().and(realm(0), &realm_key(0), realm(1), [NOW + 1; 3]).expect("in order");
    let list = ListSigner::Realm(realm_key(1)).sign(None, 0, Vec::new(), &rolls, 600, at(2).unix).expect("in order");
    connect(&mut server, 2, 50);
    ask(&mut server, 2, Body::SubmitRevocations(list.clone()), at(2));
    let records = |frames: &[(u64, Frame)]| -> Vec<Record> {
        let of_link = frames.iter().filter(|(link, _)| *link == 1);
        let all = of_link.filter_map(|(_, frame)| match &frame.body {
            Body::Records { records, .. } => Some(records.clone()),
            _ => None,
        });
        all.flatten().collect()
    };
    server.handle_timeout(at(3));
    assert_eq!(records(&answers(&mut server, at(3)).0), [Record::Revocations(list.clone())]);
    // The same for one that comes back now, which is no stranger's place.
    connect(&mut server, 1, 0);
    let told = ask(&mut server, 1, Body::Subscribe { instance: 0, since: 0 }, at(4));
    assert_eq!((records(&told), refusal(&told)), (vec![Record::Revocations(list)], None));
    let stranger = ask(&mut server, 2, Body::Subscribe { instance: 0, since: 0 }, at(4));
    assert_eq!(refusal(&stranger), Some(Refusal::NotMember));
    let next = Membership { rolls, number: 2, not_before: NOW + 4, ..membership(0) };
    let next = Signed::sign(&next, &realm_key(1)).expect("in order");
    let mut renewed = adverts(6, &small())[0].clone();
    renewed.sequence += 1;
    let advert = signed_advert(&renewed, 0);
    ask(&mut server, 1, Body::Register { membership: next.clone(), advert }, at(5));
    server.handle_timeout(at(6));
    assert!(records(&answers(&mut server, at(6)).0).contains(&Record::Membership(next)));
}

/// A server that never knew the node, as after it lost its records: the node learns by the list that the realm's key has rolled.
#[test]
fn a_node_that_a_server_does_not_know_and_whose_membership_ended_with_the_realms_key_gets_the_list_and_no_advert() {
    use wayleave_control::realm::{ListSigner, Rolls};
    let rolls = Rolls::default().and(realm(0), &realm_key(0), realm(1), [NOW + 1; 3]).expect("in order");
    let list = ListSigner::Realm(realm_key(1)).sign(None, 0, Vec::new(), &rolls, 600, at(2).unix).expect("in order");
    let mut server = PathServer::new(config(Store::Kept(vec![Record::Revocations(list.clone())])));
    connect(&mut server, 1, 0);
    let advert = adverts(6, &small())[0].clone();
    assert_eq!(refusal(&ask(&mut server, 1, register(0, &advert), at(3))), Some(Refusal::RealmKey));
    let told = ask(&mut server, 1, Body::Subscribe { instance: 0, since: 0 }, at(3));
    let lists = |frames: &[(u64, Frame)]| {
        let is_it = |(_, frame): &&(u64, Frame)| match &frame.body {
            Body::Records { records, complete, .. } => {
                assert_eq!((&records[..], *complete), (&[Record::Revocations(list.clone())][..], false));
                true
            }
            _ => false,
        };
        frames.iter().filter(is_it).count()
    };
    assert_eq!((refusal(&told), lists(&told)), (None, 1));
    // Once, however much others change.
    let next = |secs| {
        let before = (secs > 4).then_some(&list);
        let before = before.map(|list| list.object());
        ListSigner::Realm(realm_key(1)).sign(before, 0, Vec::new(), &rolls, 600, at(secs).unix).expect("in order")
    };
    let joined = Membership { rolls: rolls.clone(), number: 2, not_before: NOW + 4, ..membership(1) };
    let joined = Signed::sign(&joined, &realm_key(1)).expect("in order");
    connect(&mut server, 2, 1);
    for number in 1..6 {
        let advert = Advert { sequence: 100 + number, ..adverts(6, &small())[1].clone() };
        let body = Body::Register { membership: joined.clone(), advert: signed_advert(&advert, 1) };
        assert_eq!(refusal(&ask(&mut server, 2, body, at(4 + number))), None);
        server.handle_timeout(at(5 + number));
        assert_eq!(lists(&answers(&mut server, at(5 + number)).0), 0, "{number}");
    }
    // Another list it gets.
    connect(&mut server, 3, 50);
    let later = next(20);
    ask(&mut server, 3, Body::SubmitRevocations(later.clone()), at(20));
    server.handle_timeout(at(21));
    let told = answers(&mut server, at(21)).0;
    assert!(told.iter().any(|(link, frame)| *link == 1
        && matches!(&frame.body, Body::Records { records, .. } if records[..] == [Record::Revocations(later.clone())])));
}

#[test]
fn of_two_lists_that_come_at_once_the_later_one_is_there_after_a_restart() {
    let mut server = server_of_six();
    let submit = |server: &mut PathServer, link: u64, list: &Signed<RevocationList>| {
        connect(server, link, 50 + link as u32);
        let octets = Frame { request: 9, body: Body::SubmitRevocations(list.clone()) }.encode();
        server.handle(PathServerInput::Frame { link, octets }, at(1));
    };
    let (first, second) = (revocations(1, &[1]), revocations(2, &[1, 2]));
    submit(&mut server, 1, &second);
    submit(&mut server, 2, &first);
    let mut store = std::collections::BTreeMap::new();
    let mut asked = Vec::new();
    loop {
        while let Some(output) = server.poll() {
            if let PathServerOutput::Persist { id, records } = output {
                store.extend(records.into_iter().map(|record| (record.key(), record)));
                asked.push(id);
            }
        }
        if asked.is_empty() {
            break;
        }
        std::mem::take(&mut asked).into_iter().for_each(|id| server.handle(PathServerInput::Persisted(id), at(1)));
    }
    let again = PathServer::new(config(Store::Kept(store.into_values().collect())));
    assert_eq!(again.database().revocations(), Some(&second));
}
