//! A program of the version before among those of this one: each end says in a sentence what is wrong, and nobody else notices.
//!
//! ICC, versions, by process: a client that speaks the protocol of before alone, and one of the first version with its adverts, at a path
//! server, a consent server and the operator's side; a path server of either version that answers routers, consent servers and the
//! operator's side of this one; a neighbour to which handshakes of links are none.

use std::net::UdpSocket;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::timeout;
use wayleave_control::database::Refusal;
use wayleave_control::frames::{Body, Frame};
use wayleave_crypto::secret::Seed;
use wayleave_crypto::sign::SigningKey;
use wayleave_crypto::signed::Signed;
use wayleave_packet::icing::mint::NodeSecret;
use wayleave_runtime::links::{ConnectFailure, Limits, LinkEvent, Links};
use wayleave_runtime::node_tls::NodeIdentity;

use super::attacks::{Wire, advert, fake_at, key, listens, membership, seed};
use super::harness::{Row, Running};
use crate::common::eventually;

/// What a program says of the version before; that of the first version says nothing.
const BEFORE: &[&str] = &["wayleave-realm/2"];
const FIRST: &[&str] = &[];
/// What both ends of a link say that have no version in common.
const NO_PROTOCOL: &str =
    "the peer speaks none of the protocols that this program does: one of the two programs is older";
/// What a server says, and a node of it, that cannot read what it is sent.
const MALFORMED: &str = "malformed: the sender erred, or speaks another version";

/// Why no link to a server comes up.
fn failure(address: &str, server: &str, own: &Seed, protocols: &'static [&'static str]) -> ConnectFailure {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("threads");
    let own = NodeIdentity::from_seed(own.expose()).expect("a key");
    let (to, mut events) = mpsc::channel::<LinkEvent>(16);
    let links = Links::new(Limits { protocols, ..Limits::default() });
    let _inside = runtime.enter();
    let _connecting = links.connect_node(address.to_owned(), &own, key(server), to).expect("a configuration");
    let event = runtime.block_on(async { timeout(Duration::from_secs(10), events.recv()).await });
    match event.expect("in time").expect("an event") {
        LinkEvent::Failed { failure, .. } => failure,
        other => panic!("{other:?}"),
    }
}

fn has_problem(running: &Running, what: &str) -> bool {
    let problems = running.status("problems");
    let all = problems.as_array().unwrap_or_else(|| panic!("{}: {problems}", running.name));
    all.iter().any(|problem| problem.as_str().is_some_and(|problem| problem.contains(what)))
}

#[test]
fn every_server_refuses_a_program_of_the_version_before_with_a_sentence_that_both_ends_log() {
    let row = Row::new("before").settled();
    let realm = &row.realm;
    let a = seed(&realm.path("a/identity.key"));
    let servers = [
        (&row.path_server, "paths/path.toml"),
        (&row.consent[0], "consent-b/consent.toml"),
        (&realm.operator, "realm/realm.toml"),
    ];
    for (server, file) in servers {
        let identity = server.status("identity");
        let who = identity.as_str().unwrap_or_else(|| panic!("{}: {identity}", server.name));
        let failure = failure(&listens(realm, file), who, &a, BEFORE);
        assert_eq!(failure, ConnectFailure::NoProtocol, "{}", server.name);
        assert!(failure.to_string().contains(NO_PROTOCOL));
        eventually(&format!("{} logs it: {}", server.name, server.log()), || server.log().contains(NO_PROTOCOL));
    }
    // The first version says nothing of itself, so that its links come up; its adverts are not read.
    let mut wire = Wire::open(&listens(realm, "paths/path.toml"), &realm.identity("paths"), &a);
    let (own, membership) = (SigningKey::from_seed(&a), membership(&realm.folder.0, "a"));
    let id = NodeSecret::from_seed(&Seed::new([5; 32])).id();
    let advert = Signed::sign(&advert(membership.object().realm, &own, id), &own).expect("well formed");
    let (request, length) = (1 << 31 | 7, advert.octets().len());
    let mut octets = Frame { request, body: Body::Register { membership, advert } }.encode();
    let version = octets.len() - length;
    octets[version] = 1;
    wire.send(octets);
    let answer = wire.frame();
    assert_eq!(answer.request, request, "it learns which of its requests is meant");
    assert!(matches!(answer.body, Body::Refused(Refusal::Malformed)), "{:?}", answer.body);
    assert!(Refusal::Malformed.to_string().contains(MALFORMED));
    eventually("the path server logs it", || row.path_server.log().contains(MALFORMED));
    // Frames of a version that is none.
    let consent = &row.consent[0];
    let who = consent.status("identity");
    let mut wire = Wire::open(&listens(realm, "consent-b/consent.toml"), who.as_str().expect("a key"), &a);
    wire.send(vec![2, 10, 0, 0, 0, 9]);
    assert!(matches!(wire.frame().body, Body::Refused(Refusal::Malformed)));
    // The members of this version go on.
    eventually("a has its consents", || row.is_consented("c"));
}

#[test]
fn a_path_server_of_a_version_before_is_named_by_everybody_who_asks_it_until_it_is_upgraded() {
    let mut row = Row::new("older-server").settled();
    let address = listens(&row.realm, "paths/path.toml");
    let own = seed(&row.realm.path("paths/identity.key"));
    row.path_server.kill();
    let before = fake_at(own.expose(), &address, BEFORE, |_| None);
    let named = |row: &Row, what: &str, is_named: bool| {
        for running in [&row.nodes[0], &row.consent[0], &row.realm.operator] {
            eventually(&format!("{}, {what}, {is_named}: {}", running.name, running.status("problems")), || {
                has_problem(running, what) == is_named
            });
        }
    };
    named(&row, NO_PROTOCOL, true);
    assert!(row.nodes[0].log().contains(NO_PROTOCOL), "{}", row.nodes[0].log());
    drop(before);
    // The first version lets everybody in, and reads no advert; nor does it know the request.
    let refuses: fn(&[u8]) -> Option<Vec<u8>> =
        |_| Some(Frame { request: 0, body: Body::Refused(Refusal::Malformed) }.encode());
    let first = fake_at(own.expose(), &address, FIRST, refuses);
    named(&row, NO_PROTOCOL, false);
    eventually("a names it", || has_problem(&row.nodes[0], MALFORMED));
    drop(first);
    row.path_server.resume();
    eventually("a is registered again", || !has_problem(&row.nodes[0], MALFORMED));
}

#[test]
fn a_neighbour_to_which_handshakes_are_none_is_named_until_it_answers() {
    let mut row = Row::new("older-neighbour").settled();
    row.nodes[0].kill();
    row.nodes[1].kill();
    // A program of the version before receives where b did, and does not answer.
    let config = row.realm.read("b/router.toml");
    let places = config.lines().filter_map(|line| line.strip_prefix("local = \""));
    let silent: Vec<UdpSocket> =
        places.map(|at| UdpSocket::bind(at.trim_end_matches('"')).expect("b's place")).collect();
    assert_eq!(silent.len(), 2);
    row.nodes[0].resume();
    let problem = "no link to b: ";
    eventually("a names b", || has_problem(&row.nodes[0], problem));
    let said = row.nodes[0].status("problems").to_string();
    assert!(said.contains("its program is of another version") && said.contains("wayleave --version"), "{said}");
    drop(silent);
    row.nodes[1].resume();
    eventually("b answers", || !has_problem(&row.nodes[0], problem));
}
