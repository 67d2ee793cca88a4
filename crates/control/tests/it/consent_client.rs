//! The client of consent servers: all nodes of a path at once, nothing believed that is not signed, sealed and asked for.
//!
//! ICC, servers: consent servers that hang, refuse, lie, answer late, with another's answer or to another request:
//! named with the reason; paths live until their proofs end.
//! ICC, counts: 1,000 flows on known paths: one request to each consent server, and packets ask nobody.

use std::collections::BTreeMap;

use wayleave_control::consent::{
    ConsentClient, ConsentClientConfig, ConsentClientInput, ConsentClientOutput, ConsentServer, ConsentServerInput,
    ConsentServerOutput, HopFailure, HopFault, Policy, PolicyFile, Rule,
};
use wayleave_control::database::Refusal;
use wayleave_control::frames::{Body, Frame};
use wayleave_control::labels::Labels;
use wayleave_control::path::build;
use wayleave_control::realm::Server;
use wayleave_control::store::Store;
use wayleave_core::{IdentityKey, Machine, Now};
use wayleave_crypto::signed::Signed;
use wayleave_packet::Path;
use wayleave_packet::icing::header::Version;

use super::common::*;
use super::consent::{EVERYBODY, config};

/// A client of node 0, and the path by 1 and 3 to 4.
fn client() -> (ConsentClient, Path, Vec<Server>) {
    let mut client =
        ConsentClient::new(ConsentClientConfig { identity: identity_key(0), realm: realm(0), seed: seed(8, 0) });
    let ids = vec![(secret(0, 20_000), epoch_key(0, 0)), (secret(0, 20_001), epoch_key(0, 1))];
    client.handle(ConsentClientInput::Node { membership: signed_membership(0), ids }, at(1));
    let nodes = [0, 1, 3, 4].map(identity);
    let path = build(&database(6, &small()), &Labels::default(), &[], &nodes, NOW).expect("a path");
    (client, path, [1, 3, 4].map(|node| server(1_000 + node)).to_vec())
}

/// The consent servers of nodes 1, 3 and 4.
fn servers() -> BTreeMap<IdentityKey, ConsentServer> {
    let server = |node: u32| {
        let store = Store::Kept(records(6, &small()));
        let mut server = ConsentServer::new(config(1_000 + node, &[node], EVERYBODY, store), at(0).unix);
        server.handle(ConsentServerInput::Connected { link: 1, peer: identity(0) }, at(1));
        (identity(1_000 + node), server)
    };
    [1, 3, 4].map(server).into_iter().collect()
}

#[derive(Default)]
struct Outcome {
    sent: Vec<(IdentityKey, Vec<u8>)>,
    ready: Option<Path>,
    failed: Option<Vec<HopFailure>>,
    delayed: Option<Vec<HopFailure>>,
}

fn outcome(client: &mut ConsentClient) -> Outcome {
    let mut all = Outcome::default();
    for output in drain(client) {
        match output {
            ConsentClientOutput::Send { to, octets } => all.sent.push((to.identity, octets)),
            ConsentClientOutput::Ready { id: 7, path } => all.ready = Some(path),
            ConsentClientOutput::Failed { id: 7, reasons } => all.failed = Some(reasons),
            ConsentClientOutput::Delayed { id: 7, reasons } => all.delayed = Some(reasons),
            other => panic!("{other:?}"),
        }
    }
    all
}

fn obtain(client: &mut ConsentClient, path: &Path, servers: &[Server], now: Now) -> Outcome {
    let (path, servers) = (path.clone(), servers.to_vec());
    client.handle(ConsentClientInput::Obtain { id: 7, path, servers, seconds: 300 }, now);
    outcome(client)
}

fn answer(server: &mut ConsentServer, octets: &[u8], now: Now) -> Vec<u8> {
    server.handle(ConsentServerInput::Frame { link: 1, octets: octets.to_vec().into() }, now);
    let sent = drain(server).into_iter().find_map(|output| match output {
        ConsentServerOutput::Send { octets, .. } => Some(octets),
        _ => None,
    });
    sent.expect("answered")
}

fn give(client: &mut ConsentClient, from: IdentityKey, octets: Vec<u8>, now: Now) -> Outcome {
    client.handle(ConsentClientInput::Frame { from, octets }, now);
    outcome(client)
}

#[test]
fn a_path_is_ready_after_one_round_trip_to_all_servers_at_once_and_packets_on_it_ask_nobody() {
    let ((mut client, path, hops), mut servers) = (client(), servers());
    let requests = obtain(&mut client, &path, &hops, at(2));
    assert_eq!(requests.sent.len(), 3);
    let mut last = Outcome::default();
    for (to, octets) in &requests.sent {
        assert!(last.ready.is_none());
        let answer = answer(servers.get_mut(to).expect("one of the three"), octets, at(2));
        last = give(&mut client, *to, answer, at(2));
    }
    let ready = std::mem::take(&mut last).ready.expect("all have consented");
    assert_eq!(ready.expiry(), NOW + 302);
    ready.sender(Version::Standard, &secret(0, 20_000)).expect("every proof is there");
    assert_eq!(client.requests(), 3);
    // Renewed when a third of the time is left.
    assert_eq!(client.deadline(), Some(at(202).instant));
    client.handle_timeout(at(201));
    assert!(outcome(&mut client).sent.is_empty());
    client.handle_timeout(at(202));
    let renewal = outcome(&mut client);
    assert_eq!(renewal.sent.len(), 3);
    for (to, octets) in &renewal.sent {
        let answer = answer(servers.get_mut(to).expect("one of the three"), octets, at(202));
        last = give(&mut client, *to, answer, at(202));
    }
    assert_eq!(last.ready.expect("again").expiry(), NOW + 502);
    // What is not used any longer is not renewed.
    client.handle(ConsentClientInput::Release { id: 7 }, at(203));
    assert_eq!(client.deadline(), None);
}

#[test]
fn servers_that_hang_refuse_or_cannot_be_reached_are_named_with_the_node_and_the_reason() {
    let ((mut client, path, hops), mut servers) = (client(), servers());
    let requests = obtain(&mut client, &path, &hops, at(2));
    let (to, octets) = &requests.sent[0];
    let answer = answer(servers.get_mut(to).expect("there"), octets, at(2));
    give(&mut client, *to, answer, at(2));
    let number = Frame::decode(&requests.sent[1].1).expect("its own").request;
    let refused = Frame { request: number, body: Body::Refused(Refusal::Policy) }.encode();
    assert!(give(&mut client, requests.sent[1].0, refused, at(2)).failed.is_none());
    client.handle_timeout(at(4));
    let failed = outcome(&mut client).failed.expect("two are missing");
    let failure = |index, server, fault| HopFailure { index, server: identity(server), fault };
    assert_eq!(failed, [failure(2, 1_003, HopFault::Refused(Refusal::Policy)), failure(3, 1_004, HopFault::Silent)]);
    // At once, if every server that is missing cannot be reached.
    let requests = obtain(&mut client, &path, &hops, at(5));
    assert_eq!(requests.sent.len(), 3);
    [1_001, 1_003].iter().for_each(|n| client.handle(ConsentClientInput::Unreachable(identity(*n)), at(5)));
    assert!(outcome(&mut client).failed.is_none());
    let failed = give(&mut client, identity(1_004), vec![9, 9], at(5)).failed.expect("none is left");
    let faults: Vec<HopFault> = failed.iter().map(|failure| failure.fault).collect();
    assert_eq!(faults, [HopFault::Unreachable, HopFault::Unreachable, HopFault::Malformed]);
}

#[test]
fn lies_and_anothers_answers_are_not_taken_and_late_ones_change_nothing() {
    let lie = |change: &dyn Fn(&mut wayleave_control::consent::ConsentAnswer), key: u32| {
        let ((mut client, path, hops), mut servers) = (client(), servers());
        let requests = obtain(&mut client, &path, &hops, at(2));
        for (to, octets) in &requests.sent {
            let honest = answer(servers.get_mut(to).expect("there"), octets, at(2));
            let mut frame = Frame::decode(&honest).expect("its own");
            if *to == identity(1_003)
                && let Body::Consented(answer) = &frame.body
            {
                let mut object = answer.object().clone();
                change(&mut object);
                frame.body = Body::Consented(Signed::sign(&object, &identity_key(key)).expect("in order"));
            }
            let outcome = give(&mut client, *to, frame.encode(), at(2));
            if let Some(reasons) = outcome.failed {
                assert_eq!((reasons.len(), reasons[0].index, reasons[0].server), (1, 2, identity(1_003)));
                return Some(reasons[0].fault);
            }
            if outcome.ready.is_some() {
                return None;
            }
        }
        panic!("neither ready nor failed");
    };
    assert_eq!(lie(&|_| {}, 1_003), None);
    assert_eq!(lie(&|_| {}, 1_001), Some(HopFault::Signature));
    assert_eq!(lie(&|answer| answer.request[3] ^= 1, 1_003), Some(HopFault::OtherRequest));
    assert_eq!(lie(&|answer| answer.server = identity(1_001), 1_003), Some(HopFault::OtherRequest));
    assert_eq!(lie(&|answer| answer.realm = realm(1), 1_003), Some(HopFault::OtherRequest));
    assert_eq!(lie(&|answer| answer.expiry = NOW as u32, 1_003), Some(HopFault::Expiry));
    assert_eq!(lie(&|answer| answer.expiry += 300, 1_003), Some(HopFault::Expiry));
    assert_eq!(lie(&|answer| answer.expiry -= 1, 1_003), Some(HopFault::Sealed));
    assert_eq!(lie(&|answer| answer.sealed[50] ^= 1, 1_003), Some(HopFault::Sealed));

    // The answer of one server from another's link, and an answer of an earlier round.
    let ((mut client, path, hops), mut servers) = (client(), servers());
    let first = obtain(&mut client, &path, &hops, at(2));
    let late: Vec<_> = first
        .sent
        .iter()
        .map(|(to, octets)| (*to, answer(servers.get_mut(to).expect("there"), octets, at(2))))
        .collect();
    let crossed = give(&mut client, late[1].0, late[0].1.clone(), at(2));
    assert!(crossed.failed.is_none() && crossed.ready.is_none());
    client.handle_timeout(at(4));
    assert!(outcome(&mut client).failed.is_some());
    obtain(&mut client, &path, &hops, at(5));
    for (from, octets) in late {
        let outcome = give(&mut client, from, octets, at(5));
        assert!(outcome.ready.is_none() && outcome.failed.is_none());
    }
}

#[test]
fn when_servers_are_down_a_path_lives_until_its_consents_end_and_the_reason_is_known() {
    let ((mut client, path, hops), mut servers) = (client(), servers());
    for (to, octets) in &obtain(&mut client, &path, &hops, at(2)).sent {
        let answer = answer(servers.get_mut(to).expect("there"), octets, at(2));
        give(&mut client, *to, answer, at(2));
    }
    let (mut delayed, mut secs) = (0, 0);
    let failed = loop {
        let deadline = client.deadline().expect("it tries until the end");
        secs = ((deadline.0 - 1_000_000_000) / 1_000_000_000).max(secs);
        assert!(secs < 400);
        client.handle_timeout(at(secs));
        let outcome = outcome(&mut client);
        delayed += usize::from(outcome.delayed.is_some());
        if let Some(failed) = outcome.failed {
            break failed;
        }
    };
    assert!((302..340).contains(&secs), "{secs}");
    assert!((5..10).contains(&delayed), "{delayed}");
    assert!(failed.iter().all(|failure| failure.fault == HopFault::Silent));
}

#[test]
fn a_path_from_another_node_or_with_too_few_servers_is_not_asked_for() {
    let (mut client, path, hops) = client();
    let few = obtain(&mut client, &path, &hops[1..], at(2));
    assert_eq!((few.sent.len(), few.failed.expect("refused")[0].fault), (0, HopFault::Path));
    let nodes = [1, 3, 4].map(identity);
    let theirs = build(&database(6, &small()), &Labels::default(), &[], &nodes, NOW).expect("a path");
    assert_eq!(obtain(&mut client, &theirs, &hops[1..], at(2)).failed.expect("refused")[0].fault, HopFault::Path);
}

/// Asks for consents to packets with sealed payloads and passes what servers say to and fro until the path is ready; returns it and how many
/// requests there were. `refuses` answers in the place of a server.
fn obtain_sealed(
    client: &mut ConsentClient,
    servers: &mut BTreeMap<IdentityKey, ConsentServer>,
    (path, hops): (&Path, &[Server]),
    refuses: impl Fn(&IdentityKey, &Frame) -> Option<Refusal>,
    now: Now,
) -> (Outcome, usize) {
    let mut path = path.clone();
    path.set_version(Version::Sealed);
    let mut last = obtain(client, &path, hops, now);
    let mut requests = 0;
    while !last.sent.is_empty() {
        let mut next = Outcome::default();
        for (to, octets) in std::mem::take(&mut last.sent) {
            requests += 1;
            let frame = Frame::decode(&octets).expect("its own");
            let answer = match refuses(&to, &frame) {
                Some(refusal) => Frame { request: frame.request, body: Body::Refused(refusal) }.encode(),
                None => answer(servers.get_mut(&to).expect("one of the three"), &octets, now),
            };
            next = give(client, to, answer, now);
        }
        last = next;
    }
    (last, requests)
}

fn is_sealed(frame: &Frame) -> bool {
    matches!(&frame.body, Body::Consent { request, .. } if request.object().packets == Version::Sealed)
}

/// The nodes for whose sake a path is for packets of the standard version.
fn unsealed(path: &Path) -> Vec<usize> {
    path.unsealed_by().collect()
}

#[test]
fn consents_for_sealed_payloads_are_others_and_make_packets_of_their_version() {
    let ((mut client, path, hops), mut servers) = (client(), servers());
    let (got, requests) = obtain_sealed(&mut client, &mut servers, (&path, &hops), |_, _| None, at(2));
    let ready = got.ready.expect("all have consented");
    assert_eq!((ready.version(), unsealed(&ready), requests), (Version::Sealed, vec![], 3));
    let sealed = ready.sender(ready.version(), &secret(0, 20_000)).expect("every proof is there");
    let standard = obtain(&mut client, &path, &hops, at(3));
    let mut last = Outcome::default();
    for (to, octets) in standard.sent {
        let answer = answer(servers.get_mut(&to).expect("one of the three"), &octets, at(3));
        last = give(&mut client, to, answer, at(3));
    }
    let standard = last.ready.expect("all have consented").sender(Version::Standard, &secret(0, 20_000));
    let standard = standard.expect("every proof is there");
    assert!((1..4).all(|index| sealed.keys(index)[0] != standard.keys(index)[0]));
}

#[test]
fn a_node_whose_policy_refuses_sealed_payloads_gets_the_others_and_is_asked_once() {
    let ((mut client, path, hops), mut servers) = (client(), servers());
    let checked = PolicyFile {
        rule: vec![Rule {
            profiles: vec!["payload".to_owned()],
            name: "checked".to_owned(),
            allow: true,
            seconds: 300,
            ..Rule::default()
        }],
        test: Vec::new(),
    };
    let policy = Policy::new(&checked).expect("sound");
    servers.get_mut(&identity(1_003)).expect("there").handle(ConsentServerInput::Policy(policy), at(1));
    let (got, requests) = obtain_sealed(&mut client, &mut servers, (&path, &hops), |_, _| None, at(2));
    let ready = got.ready.expect("all have consented to that");
    // The second node of the path refused; its server says so in a refusal of its own, and all are asked again.
    assert_eq!((ready.version(), unsealed(&ready), requests), (Version::Standard, vec![2], 6));
    ready.sender(Version::Standard, &secret(0, 20_000)).expect("every proof is there");
    let again = obtain_sealed(
        &mut client,
        &mut servers,
        (&path, &hops),
        |_, frame| {
            assert!(!is_sealed(frame));
            None
        },
        at(3),
    );
    assert_eq!((unsealed(&again.0.ready.expect("as before")), again.1), (vec![2], 3));
    // The node's policy is another one now: what was remembered is forgotten once it is refused.
    let sealed =
        PolicyFile { rule: vec![Rule { profiles: vec!["sealed".to_owned()], ..checked.rule[0].clone() }], ..checked };
    let policy = Policy::new(&sealed).expect("sound");
    servers.get_mut(&identity(1_003)).expect("there").handle(ConsentServerInput::Policy(policy), at(4));
    let (got, requests) = obtain_sealed(&mut client, &mut servers, (&path, &hops), |_, _| None, at(4));
    let ready = got.ready.expect("all consent to sealed payloads");
    assert_eq!((ready.version(), unsealed(&ready), requests), (Version::Sealed, vec![], 6));
}

#[test]
fn a_server_of_the_version_before_is_asked_as_before() {
    let ((mut client, path, hops), mut servers) = (client(), servers());
    let is_old =
        |to: &IdentityKey, frame: &Frame| (*to == identity(1_004) && is_sealed(frame)).then_some(Refusal::Malformed);
    let (got, requests) = obtain_sealed(&mut client, &mut servers, (&path, &hops), is_old, at(2));
    let ready = got.ready.expect("all have consented to that");
    assert_eq!((ready.version(), unsealed(&ready), requests), (Version::Standard, vec![3], 6));
    // Two of them: both are named.
    let (mut client, mut servers) = (self::client().0, self::servers());
    let are_old =
        |to: &IdentityKey, frame: &Frame| (*to != identity(1_003) && is_sealed(frame)).then_some(Refusal::Malformed);
    let (got, _) = obtain_sealed(&mut client, &mut servers, (&path, &hops), are_old, at(2));
    assert_eq!(unsealed(&got.ready.expect("all have consented to that")), [1, 3]);
    // What nobody allows in either profile is refused at once, with its reason.
    let ((mut client, ..), refuses) =
        (self::client(), |to: &IdentityKey, _: &Frame| (*to == identity(1_001)).then_some(Refusal::Policy));
    let (got, requests) = obtain_sealed(&mut client, &mut servers, (&path, &hops), refuses, at(4));
    assert_eq!((got.failed.expect("refused")[0].fault, requests), (HopFault::Refused(Refusal::Policy), 3));
}
