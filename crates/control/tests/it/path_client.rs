//! The client of path servers: it believes what nodes signed and nothing else.
//!
//! ICC, older: an older advert in an answer: not believed, also after a restart.
//! ICC, servers: path servers that hang, refuse, lie or cannot be reached: passed over with the reason; nothing is
//! believed that was not signed.
//! ICC, counts: flows on known paths, renewals, links that came since: one request to a path server, and one question
//! more for the links that came; renewed ahead of expiry, only if used.

use wayleave_control::advert::Advert;
use wayleave_control::database::Refusal;
use wayleave_control::frames::{Body, Frame, Host};
use wayleave_control::path::{
    PathClient, PathClientConfig, PathClientInput, PathClientOutput, PathFailure, PathFault, PathServer,
    PathServerInput,
};
use wayleave_control::store::{Record, Store};
use wayleave_core::{IdentityKey, Machine, Now};
use wayleave_crypto::signed::Signed;
use wayleave_packet::{Hop, HopId, Path};

use super::common::*;
use super::path_server::{ask, server_of_six};

fn client() -> PathClient {
    let servers = vec![server(900), server(901)];
    PathClient::new(PathClientConfig { own: identity(0), realm: realm(0), capacity: 100, servers, store: Store::New })
}

fn host() -> Host {
    Host::Name(name("n4"))
}

struct Outcome {
    sent: Vec<(IdentityKey, Vec<u8>)>,
    paths: Option<Vec<Path>>,
    failed: Option<Vec<(IdentityKey, PathFailure)>>,
    disbelieved: Vec<PathFailure>,
}

fn outcome(client: &mut PathClient) -> Outcome {
    let mut all = Outcome { sent: Vec::new(), paths: None, failed: None, disbelieved: Vec::new() };
    for output in drain(client) {
        match output {
            PathClientOutput::Send { to, octets } => all.sent.push((to.identity, octets)),
            PathClientOutput::Paths { paths, .. } => all.paths = Some(paths),
            PathClientOutput::Failed { reasons, .. } => all.failed = Some(reasons),
            PathClientOutput::Disbelieved { failure, .. } => all.disbelieved.push(failure),
            PathClientOutput::Conflict { .. } | PathClientOutput::Persist(_) => {}
        }
    }
    all
}

fn find(client: &mut PathClient, now: Now) -> Outcome {
    client.handle(PathClientInput::Find(host()), now);
    outcome(client)
}

fn give(client: &mut PathClient, from: u32, octets: Vec<u8>, now: Now) -> Outcome {
    client.handle(PathClientInput::Frame { from: identity(from), octets }, now);
    outcome(client)
}

/// What an honest server answers to these octets.
fn honest(octets: &[u8], now: Now) -> Frame {
    let mut server: PathServer = server_of_six();
    server.handle(PathServerInput::Connected { link: 1, peer: identity(0) }, now);
    let request = Frame::decode(octets).expect("its own frame");
    let (_, mut frame) = ask(&mut server, 1, request.body, now).remove(0);
    frame.request = request.request;
    frame
}

fn answer(octets: &[u8], change: impl Fn(&mut Vec<Path>, &mut Vec<Record>)) -> Vec<u8> {
    let mut frame = honest(octets, at(0));
    if let Body::Paths { paths, records, .. } = &mut frame.body {
        change(paths, records);
    }
    frame.encode()
}

#[test]
fn a_flow_takes_one_round_trip_and_the_next_ones_take_none() {
    let mut client = client();
    let query = find(&mut client, at(0));
    assert!(matches!(query.sent[..], [(to, _)] if to == identity(900)));
    // Another flow to the same host while the first one waits.
    assert!(find(&mut client, at_ms(5)).sent.is_empty());
    let got = give(&mut client, 900, honest(&query.sent[0].1, at(0)).encode(), at_ms(10));
    assert_eq!(got.paths.expect("three paths").len(), 3);
    assert!(got.disbelieved.is_empty());
    for n in 0..1_000 {
        let again = find(&mut client, at_ms(20 + n));
        assert_eq!((again.paths.expect("remembered").len(), again.sent.len()), (3, 0));
    }
    assert_eq!(client.requests(), 1);
    // Whoever consents for the nodes of a path is known from their adverts.
    let path = find(&mut client, at(2)).paths.expect("remembered").remove(0);
    let servers = client.consent_servers(&path, at(2)).expect("each has one");
    assert_eq!(servers.len(), 3);
    assert_eq!(servers[2], server(1_004));
}

#[test]
fn what_is_forgotten_is_asked_for_again() {
    let mut client = client();
    for round in 0..3 {
        let query = find(&mut client, at(round));
        assert_eq!((query.sent.len(), query.paths.is_none()), (1, true), "round {round}");
        // Whoever waits already is answered all the same.
        client.handle(PathClientInput::Forget(host()), at(round));
        let got = give(&mut client, 900, honest(&query.sent[0].1, at(0)).encode(), at(round));
        assert_eq!(got.paths.expect("three paths").len(), 3);
        assert!(find(&mut client, at(round)).sent.is_empty());
        client.handle(PathClientInput::Forget(host()), at(round));
    }
    assert_eq!(client.requests(), 3);
}

/// Somebody who asked while the realm came up would keep the few paths of then, whoever refuses them.
#[test]
fn paths_that_came_since_are_asked_for_beside_and_only_once() {
    let mut client = client();
    let query = find(&mut client, at(0));
    let few = answer(&query.sent[0].1, |paths, _| paths.truncate(1));
    assert_eq!(give(&mut client, 900, few, at(0)).paths.expect("one path").len(), 1);
    assert_eq!(find(&mut client, at(5)).sent.len(), 0, "nothing is new");
    // An advert that was renewed brings nothing; one with another link does.
    let six = server_of_six();
    let of_five = six.database().advert(&identity(5), NOW).expect("an advert").clone();
    let renewed = Advert { sequence: of_five.sequence + 1, ..of_five.clone() };
    let other = Advert { sequence: of_five.sequence + 2, links: Vec::new(), ..of_five };
    let follow = |client: &mut PathClient, advert: &Advert, secs| {
        let advert = Signed::sign(advert, &identity_key(5)).expect("in order");
        client.handle(PathClientInput::Records(vec![Record::Advert(advert)]), at(secs));
        drain(client);
    };
    follow(&mut client, &renewed, 6);
    assert_eq!(find(&mut client, at(9)).sent.len(), 0);
    follow(&mut client, &other, 10);
    // What is remembered is given at once.
    let beside = find(&mut client, at(11));
    assert_eq!((beside.paths.expect("remembered").len(), beside.sent.len()), (1, 1));
    let late = find(&mut client, at_ms(11_100));
    assert_eq!((late.paths.expect("remembered").len(), late.sent.len()), (1, 0), "one question at a time");
    let more = give(&mut client, 900, answer(&beside.sent[0].1, |_, _| ()), at(12));
    assert!(more.paths.is_none(), "nobody waits for it");
    let all = find(&mut client, at(20));
    assert!(all.paths.expect("by the new answer").len() > 1 && all.sent.is_empty());
}

#[test]
fn paths_in_use_are_renewed_ahead_of_expiry_and_others_are_not() {
    for is_used in [true, false] {
        let mut client = client();
        let query = find(&mut client, at(0));
        give(&mut client, 900, honest(&query.sent[0].1, at(0)).encode(), at(0));
        if is_used {
            find(&mut client, at(1_000));
        }
        // Paths end 1,800 s after the beginning.
        assert_eq!(client.deadline(), Some(at(1_740).instant));
        client.handle_timeout(at(1_740));
        assert_eq!(outcome(&mut client).sent.len(), usize::from(is_used));
        if is_used {
            // No server answers: what is known is used to its end, then refused.
            client.handle_timeout(at(1_742));
            client.handle_timeout(at(1_744));
            assert_eq!(outcome(&mut client).sent.len(), 1);
            assert!(find(&mut client, at(1_800)).paths.is_some());
        }
        let late = find(&mut client, at(1_801));
        assert!(late.paths.is_none());
        assert_eq!(late.sent.len(), 1);
    }
}

#[test]
fn servers_that_hang_refuse_or_cannot_be_reached_are_passed_over_with_the_reason() {
    let mut client = client();
    let first = find(&mut client, at(0));
    client.handle_timeout(at(1));
    assert!(outcome(&mut client).sent.is_empty());
    client.handle_timeout(at(2));
    let second = outcome(&mut client);
    assert!(matches!(second.sent[..], [(to, _)] if to == identity(901)));
    // The first server's answer comes too late.
    let late = give(&mut client, 900, honest(&first.sent[0].1, at(0)).encode(), at(2));
    assert!(late.paths.is_none() && late.disbelieved.is_empty());
    let number = Frame::decode(&second.sent[0].1).expect("its own").request;
    let refused = Frame { request: number, body: Body::Refused(Refusal::Recovering) }.encode();
    // From the wrong server it changes nothing.
    assert!(give(&mut client, 900, refused.clone(), at(2)).failed.is_none());
    let failed = give(&mut client, 901, refused, at(2)).failed.expect("no server is left");
    let reasons = [(identity(900), PathFailure::Silent), (identity(901), PathFailure::Refused(Refusal::Recovering))];
    assert_eq!(failed, reasons);
    // For a second, nobody is asked again.
    let again = find(&mut client, at_ms(2_900));
    assert_eq!((again.sent.len(), again.failed), (0, Some(reasons.to_vec())));
    // The one that was silent is asked last for a while: nobody waits for it a second time.
    let query = find(&mut client, at(4));
    assert!(matches!(query.sent[..], [(to, _)] if to == identity(901)));
    client.handle(PathClientInput::Unreachable(identity(901)), at(4));
    assert!(matches!(outcome(&mut client).sent[..], [(to, _)] if to == identity(900)));
    let failed = give(&mut client, 900, vec![1, 2, 3], at(4)).failed.expect("no server is left");
    assert_eq!(failed[1].1, PathFailure::Malformed);
    // Then it is asked first again.
    let query = find(&mut client, at(40));
    assert!(matches!(query.sent[..], [(to, _)] if to == identity(900)));
}

#[test]
fn a_lying_server_gets_nothing_believed_that_nodes_did_not_sign() {
    let lie = |change: &dyn Fn(&mut Vec<Path>, &mut Vec<Record>)| {
        let mut client = client();
        let query = find(&mut client, at(0));
        give(&mut client, 900, answer(&query.sent[0].1, change), at(0))
    };
    let rebuilt = |path: &Path, change: &dyn Fn(usize, &mut HopId)| {
        let hops = path.hops().iter().enumerate().map(|(at, hop)| {
            let mut hop: Hop = *hop;
            change(at, &mut hop.at);
            hop
        });
        Path::icing(hops.collect(), path.expiry(), path.mtu())
    };
    // IDs, expiry and MTU of its own: what the nodes signed stands in their place.
    let own_id = lie(&|paths, _| {
        for path in paths.iter_mut() {
            let change = |at: usize, hop: &mut HopId| {
                if let (2, HopId::Node { id, .. }) = (at, hop) {
                    *id = secret(66, 1).id();
                }
            };
            *path = rebuilt(path, &change).expect("well-formed");
        }
    });
    for path in own_id.paths.expect("rebuilt") {
        assert!(path.nodes().all(|(_, id, _)| id != secret(66, 1).id()));
    }
    let promised = lie(&|paths, _| {
        for path in paths.iter_mut() {
            *path = Path::icing(path.hops().to_vec(), u64::MAX, 9_000).expect("well-formed");
        }
    });
    assert!(promised.paths.expect("rebuilt").iter().all(|path| path.mtu() == 1_400 && path.expiry() == NOW + 1_800));
    // A path to somebody else, from somebody else, over a link that is not there, over nobody.
    let only = |nodes: &'static [u32]| {
        lie(&|paths, _| {
            let hop = |node: &u32| {
                let at = HopId::Node { identity: identity(*node), id: secret(*node, 20_000).id(), tag: TRANSIT };
                Hop { at, ingress: 0, egress: 0 }
            };
            *paths = vec![Path::icing(nodes.iter().map(hop).collect(), NOW + 100, 1_400).expect("well-formed")];
        })
        .disbelieved
    };
    assert_eq!(only(&[0, 1, 3]), [PathFailure::Ends]);
    assert_eq!(only(&[1, 3, 4]), [PathFailure::Ends]);
    // Nodes of which no record came are not known.
    assert_eq!(only(&[0, 4]), [PathFailure::Path(PathFault::Link(0))]);
    assert_eq!(only(&[0, 9, 4]), [PathFailure::Path(PathFault::Unknown(1))]);
    // Down to 1 over 3, and up again to 5: no way for packets of others.
    assert_eq!(only(&[0, 2, 3, 1, 5, 4]), [PathFailure::Path(PathFault::Valley(3))]);
    // Records that are not signed as they must be.
    let forged = lie(&|_, records| {
        let forged = wayleave_crypto::signed::Signed::sign(&membership(4), &realm_key(1)).expect("in order");
        *records = records
            .iter()
            .map(|record| match record {
                Record::Membership(member) if member.object().identity == identity(4) => {
                    Record::Membership(forged.clone())
                }
                other => other.clone(),
            })
            .collect();
    });
    assert!(forged.paths.is_none());
    assert!(forged.disbelieved.contains(&PathFailure::Record(Refusal::Signature)));
    assert_eq!(forged.sent.len(), 1, "the next server is asked");
}

#[test]
fn an_older_advert_is_not_believed_also_after_a_restart() {
    let newer = wayleave_control::advert::Advert { sequence: 9, ..adverts(6, &small()).remove(3) };
    let mut kept = records(6, &small());
    kept.push(Record::Advert(signed_advert(&newer, 3)));
    let servers = vec![server(900)];
    let store = Store::Kept(
        kept.into_iter()
            .filter(|record| match record {
                Record::Advert(advert) => advert.object().identity != identity(3) || advert.object().sequence == 9,
                _ => true,
            })
            .collect(),
    );
    let mut client =
        PathClient::new(PathClientConfig { own: identity(0), realm: realm(0), capacity: 100, servers, store });
    let query = find(&mut client, at(0));
    // The server's records have sequence 1.
    let got = give(&mut client, 900, honest(&query.sent[0].1, at(0)).encode(), at(0));
    assert_eq!(got.paths.expect("the links are the same").len(), 3);
    assert_eq!(client.database().advert(&identity(3), NOW).map(|advert| advert.sequence), Some(9));
}
