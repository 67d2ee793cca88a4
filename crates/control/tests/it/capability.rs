//! Capabilities in people's hands: the published values hold (`test-data/wire/capabilities.py`, which shares no code with this),
//! and a key server and its holders understand each other whatever lies between them.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

use hickory_proto::op::{Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::TXT;
use hickory_proto::rr::rdata::opt::{EdnsCode, EdnsOption};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use proptest::prelude::*;
use serde_json::Value;
use wayleave_control::capability::*;
use wayleave_control::signed::Signed;
use wayleave_core::{Machine, Now, Prefix, UnixTime};
use wayleave_crypto::secret::{Key128, Seed};
use wayleave_crypto::sign::SigningKey;
use wayleave_packet::platypus::header::{Delegation, DelegationId, Interval, Principal, SubDelegation, Width};
use wayleave_packet::platypus::mint::{WaypointKey, WaypointKeys};
use wayleave_packet::platypus::revocation::Revocation;

use super::common::{NOW, at, seed};

const FORGED: [LookupEvent; 1] = [LookupEvent::Forged(SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 53))];
const ZONE: &str = "keys.example.net";
const WAYPOINT: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1));

fn zone() -> Zone {
    ZONE.parse().expect("a zone")
}

fn provider() -> ProviderKey {
    ProviderKey::new(Seed::new(std::array::from_fn(|at| at as u8)))
}

fn principal(number: u32) -> Principal {
    Principal::new(number).expect("24 bits")
}

fn id(number: u32) -> DelegationId {
    DelegationId::new(number).expect("24 bits")
}

fn interval(n: u8) -> Interval {
    Interval::new(n).expect("4 to 24")
}

fn terms(number: u32) -> Terms {
    let (interval, width) = (interval(12), Width::Full);
    Terms { waypoint: WAYPOINT, principal: principal(number), interval, width, delegation: None }
}

fn signer() -> SigningKey {
    SigningKey::from_seed(&seed(30, 0))
}

fn waypoint_key() -> WaypointKey {
    WaypointKey::new(&Key128::new([9; 16]))
}

fn server_with(policy: &[LookupRule]) -> KeyServer {
    KeyServer::new(KeyServerConfig {
        zone: zone(),
        name_servers: vec![NameServer {
            name: format!("ns.{ZONE}"),
            addresses: vec!["192.0.2.53".parse().expect("one")],
        }],
        provider: provider(),
        writer: signer().verifying_key(),
        signer: Some(signer()),
        waypoints: HashMap::from([(WAYPOINT, WaypointKeys::new(waypoint_key()))]),
        policy: LookupPolicy::new(policy).expect("rules"),
    })
    .expect("a server")
}

fn change(server: &mut KeyServer, body: ChangeBody, now: Now) -> Signed<Change> {
    let change = server.sign(body, now.unix).expect("the writer").expect("possible");
    server.apply(&change).expect("the next");
    change
}

fn open_account(server: &mut KeyServer, number: u32) {
    let body = ChangeBody::Account { principal: principal(number), generation: 0, name: format!("customer {number}") };
    change(server, body, at(0));
}

fn grant(server: &mut KeyServer, terms: Terms) -> Credential {
    change(server, ChangeBody::Grant(Grant { terms, not_before: 0, not_after: u64::MAX }), at(0));
    let key = provider().account(terms.principal, 0).master(&terms);
    Credential { zone: zone(), terms, key }
}

/// A server with one capability of principal 7.
fn one() -> (KeyServer, Credential) {
    let mut server = server_with(&[]);
    open_account(&mut server, 7);
    let credential = grant(&mut server, terms(7));
    assert!(server.prepare(at(0).unix, u32::MAX));
    (server, credential)
}

fn client(transport: Transport) -> Client {
    Client { address: "192.0.2.99".parse().expect("an address"), transport }
}

fn resolver(number: u8) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, number], 53))
}

fn epoch_at(now: Now) -> u32 {
    (now.unix.secs() >> 12) as u32
}

/// Runs a look-up; `answer` stands for the network: it is given the question and how it came, and may say nothing.
fn run(
    credential: &Credential,
    epoch: u32,
    now: Now,
    servers: Vec<SocketAddr>,
    mut answer: impl FnMut(SocketAddr, Transport, &[u8]) -> Vec<Vec<u8>>,
) -> (Result<Obtained, LookupFailure>, Vec<LookupEvent>) {
    let mut lookup =
        Lookup::new(LookupConfig { credential: credential.clone(), epoch, servers, seed: seed(31, epoch) });
    lookup.handle(LookupInput::Start, now);
    let mut events = Vec::new();
    loop {
        let Some(output) = lookup.poll() else {
            let deadline = lookup.deadline().expect("it waits for something");
            lookup.handle_timeout(Now { instant: deadline, unix: now.unix });
            continue;
        };
        match output {
            LookupOutput::Done(outcome) => return (outcome, events),
            LookupOutput::Event(event) => events.push(event),
            LookupOutput::Datagram { to, octets } => {
                for octets in answer(to, Transport::Udp, &octets) {
                    lookup.handle(LookupInput::Datagram { from: to, octets }, now);
                }
            }
            LookupOutput::Stream { to, octets } => match answer(to, Transport::Tcp, &octets).into_iter().next() {
                Some(octets) => lookup.handle(LookupInput::Stream { from: to, octets }, now),
                None => lookup.handle(LookupInput::StreamFailed(to), now),
            },
        }
    }
}

fn reply(server: &mut KeyServer, question: &[u8], transport: Transport, now: Now) -> Vec<u8> {
    match server.serve(question, client(transport), now) {
        Served::Reply(octets) => octets,
        Served::Nothing => Vec::new(),
        Served::Order(order) => {
            if let Some(change) = &order.change {
                server.apply(change).expect("the next");
            }
            server.acknowledge(&order, Ok(()), now)
        }
    }
}

fn direct(
    server: &mut KeyServer,
    credential: &Credential,
    epoch: u32,
    now: Now,
) -> (Result<Obtained, LookupFailure>, Vec<LookupEvent>) {
    run(credential, epoch, now, vec![resolver(1)], |_, transport, octets| vec![reply(server, octets, transport, now)])
}

fn hex(octets: &[u8]) -> String {
    octets.iter().map(|octet| format!("{octet:02x}")).collect()
}

fn unhex(value: &Value) -> Vec<u8> {
    let text = value.as_str().expect("a text");
    (0..text.len() / 2).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).expect("hexadecimal")).collect()
}

fn published_terms(value: &Value) -> Terms {
    let number = |name: &str| value[name].as_u64().map(|number| number as u32);
    let prefix = value["prefix"].as_str().map(|text| text.parse::<Prefix>().expect("a prefix"));
    let sub = number("sub").map(|sub| SubDelegation { at: number("at").expect("with it") as u8, id: id(sub) });
    Terms {
        waypoint: value["waypoint"].as_str().expect("an address").parse().expect("an address"),
        principal: principal(number("principal").expect("a number")),
        interval: interval(number("interval").expect("a number") as u8),
        width: if value["narrow"] == true { Width::Narrow } else { Width::Full },
        delegation: prefix.map(|prefix| Delegation { prefix, id: id(number("id").expect("with it")), sub }),
    }
}

#[test]
fn keys_names_answers_and_requests_are_as_an_independent_program_makes_them() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../test-data/wire/capabilities.json");
    let file: Value = serde_json::from_slice(&std::fs::read(path).expect("there")).expect("JSON");
    let cases = file["cases"].as_array().expect("a list");
    assert_eq!(cases.len(), 6);
    for case in cases {
        let terms = published_terms(&case["terms"]);
        let epoch = case["epoch"].as_u64().expect("a number") as u32;
        let generation = case["generation"].as_u64().expect("a number") as u32;
        let key = provider().account(terms.principal, generation).master(&terms);
        assert_eq!(hex(key.expose()), case["key"], "{terms}");
        let credential = Credential { zone: zone(), terms, key: key.clone() };
        assert_eq!(hex(&credential.handle(epoch).0), case["handle"]);
        let lookup = LookupConfig { credential, epoch, servers: Vec::new(), seed: seed(1, 1) };
        assert_eq!(Lookup::new(lookup).name(), case["name"]);
        let capability = terms.capability(epoch);
        let secret = Answer::Secret(Key128::new(std::array::from_fn(|at| 100 + at as u8)));
        assert_eq!(hex(&secret.seal(&key, &capability, &zone())), case["secret"]);
        let denied = Answer::Denied(Denial::NotNow { retry_secs: 90 });
        assert_eq!(hex(&denied.seal(&key, &capability, &zone())), case["not_now"]);
        let request = Request {
            interval: terms.interval,
            epoch,
            handle: key.handle(&capability),
            time: 1_800_000_000,
            nonce: [1, 2, 3, 4],
            order: Order::RevokeEpoch,
        };
        let signed = SignedRequest::sign(request, &key);
        assert_eq!(hex(&signed.encode()), case["request"]);
        assert_eq!(SignedRequest::decode(&unhex(&case["request"])), Ok(signed.clone()));
        let done = Acknowledgement { status: Status::Done, number: 77, time: 1_800_000_003 };
        assert_eq!(hex(&done.encode(&signed, &key)), case["done"]);
    }
}

#[test]
fn a_secret_that_is_looked_up_is_the_waypoints_own_and_takes_one_question() {
    let (mut server, credential) = one();
    let now = at(0);
    let keys = WaypointKeys::new(waypoint_key());
    for epoch in [epoch_at(now), epoch_at(now) + 1, epoch_at(now) - 1] {
        let mut asked = 0;
        let (outcome, events) = run(&credential, epoch, now, vec![resolver(1)], |_, transport, octets| {
            asked += 1;
            assert_eq!(transport, Transport::Udp);
            let answer = reply(&mut server, octets, transport, now);
            assert!(answer.len() <= octets.len(), "{} for {}", answer.len(), octets.len());
            vec![answer]
        });
        let obtained = outcome.expect("a secret");
        assert_eq!((asked, events), (1, vec![]));
        let hop = obtained.secret.hop();
        assert_eq!(keys.stamp_key(&hop.capability), Some(hop.key));
        assert_eq!(obtained.until, u64::from(epoch + 1) << 12);
    }
    assert_eq!(server.counters().secrets, 3);
}

#[test]
fn an_epoch_that_is_not_accepted_and_a_capability_that_nobody_has_get_the_same_answer() {
    let (mut server, credential) = one();
    let now = at(0);
    let stranger = Credential { key: MasterKey::new(Key128::new([1; 16])), ..credential.clone() };
    let mut lengths = Vec::new();
    for (credential, epoch) in [
        (&credential, epoch_at(now) + 2),
        (&credential, epoch_at(now) - 2),
        (&credential, epoch_at(now) - 16),
        (&stranger, epoch_at(now)),
    ] {
        let (outcome, _) = run(credential, epoch, now, vec![resolver(1)], |_, transport, octets| {
            let answer = reply(&mut server, octets, transport, now);
            let message = Message::from_vec(&answer).expect("a message");
            assert_eq!((message.metadata.response_code, message.answers.len()), (ResponseCode::NXDomain, 0));
            lengths.push(answer.len());
            vec![answer]
        });
        assert_eq!(outcome, Err(LookupFailure::Unknown));
    }
    assert!(lengths.iter().all(|length| *length == lengths[0]), "{lengths:?}");
    // By UDP and by TCP, each.
    assert_eq!((server.counters().wrong_epoch, server.counters().unknown, server.counters().secrets), (6, 2, 0));
}

#[test]
fn handles_of_one_capability_differ_in_every_epoch_and_between_capabilities() {
    let (_, credential) = one();
    let mut other = credential.clone();
    other.terms.width = Width::Narrow;
    let mut seen = std::collections::HashSet::new();
    for epoch in 0..2_000 {
        assert!(seen.insert(credential.handle(epoch).0));
        assert!(seen.insert(other.handle(epoch).0));
    }
}

fn message(question: &[u8], change: impl FnOnce(&mut Message)) -> Vec<u8> {
    let mut message = Message::from_vec(question).expect("a question");
    message.metadata.message_type = MessageType::Response;
    message.edns = None;
    change(&mut message);
    message.to_vec().expect("encoded")
}

/// PLA-07: each thing that a resolver can do to an answer is refused, counted and shown, and delays the key at most.
#[test]
fn hostile_resolvers_delay_a_key_and_never_replace_it() {
    let now = at(0);
    let name = |question: &[u8]| Message::from_vec(question).expect("one").queries[0].name().clone();
    let text =
        |name: Name, ttl, octets: &[u8]| Record::from_rdata(name, ttl, RData::TXT(TXT::from_bytes(vec![octets])));
    type Hostile<'a> = Box<dyn FnMut(&mut KeyServer, &[u8]) -> Vec<Vec<u8>> + 'a>;
    let (mut old_server, old) = one();
    let stale = reply(
        &mut old_server,
        &{
            let lookup = LookupConfig {
                credential: old,
                epoch: epoch_at(now) - 1,
                servers: vec![resolver(1)],
                seed: seed(1, 1),
            };
            let mut lookup = Lookup::new(lookup);
            lookup.handle(LookupInput::Start, now);
            let Some(LookupOutput::Datagram { octets, .. }) = lookup.poll() else { panic!("a question") };
            octets
        },
        Transport::Udp,
        now,
    );
    let stale = match &Message::from_vec(&stale).expect("a message").answers[0].data {
        RData::TXT(text) => text.txt_data.concat(),
        other => panic!("{other}"),
    };
    let cases: Vec<(&str, Hostile<'_>, &[LookupEvent])> = vec![
        ("silent", Box::new(|_, _| vec![]), &[]),
        ("no such name", Box::new(|_, q| vec![message(q, |m| m.metadata.response_code = ResponseCode::NXDomain)]), &[]),
        ("failure", Box::new(|_, q| vec![message(q, |m| m.metadata.response_code = ResponseCode::ServFail)]), &[]),
        ("truncated", Box::new(|_, q| vec![message(q, |m| m.metadata.truncation = true)]), &[]),
        (
            "poisoned",
            Box::new(|_, q| {
                vec![message(q, |m| {
                    m.add_answer(text(name(q), 9, &[7; SEALED]));
                })]
            }),
            &FORGED,
        ),
        (
            "the last epoch's answer under this epoch's name",
            Box::new(|_, q| {
                vec![message(q, |m| {
                    m.add_answer(text(name(q), 9, &stale));
                })]
            }),
            &FORGED,
        ),
        (
            "an answer for another name",
            Box::new(|s, q| {
                let mut good = Message::from_vec(&reply(s, q, Transport::Udp, at(0))).expect("a message");
                good.answers[0].name = Name::from_ascii("other.keys.example.net.").expect("a name");
                vec![good.to_vec().expect("encoded")]
            }),
            &[],
        ),
        (
            "a reply to another question",
            Box::new(|s, q| {
                let mut good = Message::from_vec(&reply(s, q, Transport::Udp, at(0))).expect("a message");
                good.queries =
                    vec![Query::query(Name::from_ascii("x.keys.example.net.").expect("a name"), RecordType::TXT)];
                vec![good.to_vec().expect("encoded")]
            }),
            &[LookupEvent::Stray(ReplyError::Question)],
        ),
        (
            "another message ID",
            Box::new(|s, q| {
                let mut good = reply(s, q, Transport::Udp, at(0));
                good[0] ^= 1;
                vec![good]
            }),
            &[LookupEvent::Stray(ReplyError::Id)],
        ),
        ("garbage", Box::new(|_, _| vec![vec![0xff; 40], vec![]]), &[LookupEvent::Stray(ReplyError::Malformed); 2]),
    ];
    for (what, mut hostile, expected) in cases {
        let (mut server, credential) = one();
        let mut by_tcp = 0;
        // The resolver's UDP is hostile, its TCP reaches the key server.
        let (outcome, events) = run(&credential, epoch_at(now), now, vec![resolver(1)], |_, transport, octets| {
            if transport == Transport::Udp {
                return hostile(&mut server, octets);
            }
            by_tcp += 1;
            vec![reply(&mut server, octets, transport, now)]
        });
        assert!(outcome.is_ok(), "{what}: {outcome:?}");
        assert_eq!((by_tcp, &events[..]), (1, expected), "{what}");
        // All of the first resolver is hostile, the second is not.
        let (outcome, _) =
            run(&credential, epoch_at(now), now, vec![resolver(1), resolver(2)], |to, transport, octets| {
                if to == resolver(1) {
                    hostile(&mut server, octets)
                } else {
                    vec![reply(&mut server, octets, transport, now)]
                }
            });
        assert!(outcome.is_ok(), "{what}, second server: {outcome:?}");
        // There is no other.
        let (outcome, _) =
            run(&credential, epoch_at(now), now, vec![resolver(1)], |_, _, octets| hostile(&mut server, octets));
        assert!(outcome.is_err(), "{what}: nothing is made up");
    }
}

#[test]
fn a_denial_of_earlier_that_a_resolver_repeats_does_not_keep_the_secret_away() {
    let rule =
        LookupRule { name: "busy".into(), hours: Some("08:00-08:01".into()), retry_secs: 60, ..LookupRule::default() };
    let mut server = server_with(&[rule]);
    open_account(&mut server, 7);
    let credential = grant(&mut server, terms(7));
    // 1,800,000,000 is 08:00 in UTC: an answer of then, whose text is repeated in the same epoch two minutes later.
    let mut kept = Vec::new();
    assert!(server.prepare(at(0).unix, u32::MAX));
    let (outcome, _) = run(&credential, epoch_at(at(0)), at(0), vec![resolver(1)], |_, transport, question| {
        let answer = reply(&mut server, question, transport, at(0));
        kept = Message::from_vec(&answer).expect("a message").answers;
        vec![answer]
    });
    let denied = LookupFailure::Denied(Denial::NotNow { retry_secs: 60 });
    assert_eq!(outcome.err(), Some(denied));
    let later = Now { instant: at(0).instant, unix: UnixTime(at(0).unix.0 + 120_000_000) };
    assert_eq!(epoch_at(later), epoch_at(at(0)));
    assert!(server.prepare(later.unix, u32::MAX));
    let repeated = |question: &[u8]| vec![message(question, |message| message.answers.clone_from(&kept))];
    let (outcome, _) =
        run(&credential, epoch_at(later), later, vec![resolver(1), resolver(2)], |to, transport, question| {
            match (to, transport) {
                (to, Transport::Tcp) if to == resolver(2) => vec![reply(&mut server, question, Transport::Tcp, later)],
                _ => repeated(question),
            }
        });
    assert!(outcome.is_ok(), "{outcome:?}");
    // With nobody who says otherwise, it is what is known.
    let (outcome, _) = run(&credential, epoch_at(later), later, vec![resolver(1)], |_, _, question| repeated(question));
    assert_eq!(outcome.err(), Some(denied));
}

#[test]
fn a_ttl_that_was_changed_is_reported_and_the_secret_ends_with_its_epoch() {
    let (mut server, credential) = one();
    let now = at(0);
    let end = u64::from(epoch_at(now) + 1) << 12;
    for (ttl, is_reported) in
        [(u32::MAX, true), (0, false), ((end - NOW) as u32, false), ((end - NOW) as u32 + 60, true)]
    {
        let (outcome, events) = run(&credential, epoch_at(now), now, vec![resolver(1)], |_, transport, octets| {
            let mut answer = Message::from_vec(&reply(&mut server, octets, transport, now)).expect("a message");
            assert_eq!(u64::from(answer.answers[0].ttl), end - NOW);
            answer.answers[0].ttl = ttl;
            vec![answer.to_vec().expect("encoded")]
        });
        assert_eq!(outcome.expect("a secret").until, end);
        assert_eq!(events.len(), usize::from(is_reported), "{ttl}");
    }
}

#[test]
fn letters_of_any_case_mean_the_same_and_are_returned_as_they_came() {
    let (mut server, credential) = one();
    let now = at(0);
    let mut lookup =
        Lookup::new(LookupConfig { credential, epoch: epoch_at(now), servers: vec![resolver(1)], seed: seed(1, 1) });
    let name = lookup.name();
    lookup.handle(LookupInput::Start, now);
    for mangled in [name.to_ascii_uppercase(), name.clone()] {
        let mut question = Message::new(7, MessageType::Query, OpCode::Query);
        question.add_query(Query::query(Name::from_ascii(format!("{mangled}.")).expect("a name"), RecordType::TXT));
        let answer = reply(&mut server, &question.to_vec().expect("encoded"), Transport::Tcp, now);
        let answer = Message::from_vec(&answer).expect("a message");
        assert_eq!(answer.queries[0].name().to_ascii(), format!("{mangled}."));
        assert_eq!(answer.answers.len(), 1, "{mangled}");
    }
}

#[test]
fn policy_by_hours_and_load_denies_a_holder_a_key_and_says_when_to_ask() {
    // 1,800,000,000 is 08:00 in UTC.
    let rule = |hours: &str| LookupRule {
        name: "day".into(),
        hours: Some(hours.into()),
        principals: vec![7],
        retry_secs: 900,
        ..LookupRule::default()
    };
    for (hours, is_denied) in
        [("08:00-18:00", true), ("08:01-18:00", false), ("22:00-08:00", false), ("22:00-08:01", true)]
    {
        let mut server = server_with(&[rule(hours)]);
        open_account(&mut server, 7);
        open_account(&mut server, 8);
        let (denied, free) = (grant(&mut server, terms(7)), grant(&mut server, terms(8)));
        assert!(server.prepare(at(0).unix, u32::MAX));
        let (outcome, _) = direct(&mut server, &denied, epoch_at(at(0)), at(0));
        let expected = LookupFailure::Denied(Denial::NotNow { retry_secs: 900 });
        assert_eq!(outcome.err(), is_denied.then_some(expected), "{hours}");
        assert!(direct(&mut server, &free, epoch_at(at(0)), at(0)).0.is_ok());
    }
    let mut server =
        server_with(&[LookupRule { name: "busy".into(), load: Some(5), retry_secs: 1, ..LookupRule::default() }]);
    open_account(&mut server, 7);
    let credential = grant(&mut server, terms(7));
    assert!(server.prepare(at(0).unix, u32::MAX));
    for _ in 0..5 {
        assert!(
            direct(&mut server, &credential, epoch_at(at(0)), at(0)).0.is_ok(),
            "the load is that of the second before"
        );
    }
    assert!(direct(&mut server, &credential, epoch_at(at(1)), at(1)).0.is_err());
    assert!(direct(&mut server, &credential, epoch_at(at(3)), at(3)).0.is_ok());
    for wrong in ["8:00-18:00", "08:00", "08:00-25:00", "08:60-09:00"] {
        assert!(LookupPolicy::new(&[rule(wrong)]).is_err(), "{wrong}");
    }
}

fn order(
    server: &mut KeyServer,
    credential: &Credential,
    order: Order,
    nonce: u8,
    now: Now,
) -> Option<Acknowledgement> {
    let ordering = Ordering::new(credential.clone(), order, [nonce; 4], epoch_at(now), now.unix);
    let question = ordering.question(u16::from(nonce));
    let answer = reply(server, &question, Transport::Udp, now);
    assert!(answer.len() <= question.len());
    ordering.read(&answer, u16::from(nonce)).expect("an answer")
}

/// PLA-06, at the key server: what is revoked stays so until no router would accept it, however often the request is made.
#[test]
fn a_revocation_by_its_holder_is_durable_idempotent_and_acknowledged() {
    let (mut server, credential) = one();
    let first = order(&mut server, &credential, Order::RevokeEpoch, 1, at(0)).expect("acknowledged");
    assert_eq!(first.status, Status::Done);
    let number = server.state().number();
    let again = order(&mut server, &credential, Order::RevokeEpoch, 2, at(1)).expect("acknowledged");
    assert_eq!((again.status, server.state().number()), (Status::Done, number), "done once");
    let epoch = epoch_at(at(0));
    let entry = Revocation { principal: principal(7), delegation: None, epoch: Some((interval(12), epoch)) };
    assert_eq!(server.state().revocations().collect::<Vec<_>>(), [&entry]);
    assert_eq!(entry.expires_at(), Some(u64::from(epoch + 3) << 12));
    let denied = Err(LookupFailure::Denied(Denial::Revoked));
    assert_eq!(direct(&mut server, &credential, epoch, at(2)).0, denied);
    assert!(direct(&mut server, &credential, epoch + 1, at(2)).0.is_ok(), "the next epoch's secret is another");
}

#[test]
fn forged_late_and_foreign_orders_change_nothing() {
    let (mut server, credential) = one();
    let number = server.state().number();
    let thief = Credential { key: MasterKey::new(Key128::new([5; 16])), ..credential.clone() };
    assert_eq!(order(&mut server, &thief, Order::RevokeEpoch, 1, at(0)), None);
    // The right handle with another's MAC.
    let request = Request {
        interval: interval(12),
        epoch: epoch_at(at(0)),
        handle: credential.handle(epoch_at(at(0))),
        time: NOW,
        nonce: [0; 4],
        order: Order::RevokeEpoch,
    };
    let forged = SignedRequest::sign(request, &thief.key);
    assert!(!forged.is_from(&credential.key));
    // A clock that is wrong by more than the window, in both directions.
    for wrong in [NOW - WINDOW - 1, NOW + WINDOW + 1] {
        let ordering =
            Ordering::new(credential.clone(), Order::RevokeEpoch, [3; 4], epoch_at(at(0)), UnixTime(wrong * 1_000_000));
        let answer = reply(&mut server, &ordering.question(3), Transport::Udp, at(0));
        let told = ordering.read(&answer, 3).expect("an answer").expect("acknowledged");
        assert_eq!((told.status, told.time), (Status::Clock, NOW));
        assert_eq!(ordering.read(&answer, 4), Err(ReplyError::Id));
    }
    assert_eq!(server.state().number(), number);
    let counters = server.counters();
    assert_eq!((counters.orders, counters.orders_forged, counters.orders_clock), (0, 1, 2));
}

#[test]
fn an_acknowledgement_is_for_its_request_alone() {
    let (_, credential) = one();
    let request = |nonce| {
        let handle = credential.handle(1);
        let request = Request {
            interval: interval(12),
            epoch: 1,
            handle,
            time: NOW,
            nonce: [nonce; 4],
            order: Order::RevokeEpoch,
        };
        SignedRequest::sign(request, &credential.key)
    };
    let octets = Acknowledgement { status: Status::Done, number: 1, time: NOW }.encode(&request(1), &credential.key);
    assert!(Acknowledgement::open(&octets, &request(1), &credential.key).is_some());
    assert_eq!(Acknowledgement::open(&octets, &request(2), &credential.key), None);
    for bit in 0..octets.len() * 8 {
        let mut changed = octets.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(Acknowledgement::open(&changed, &request(1), &credential.key), None, "bit {bit}");
    }
}

/// PLA-04, by lookup: a holder delegates without the provider's people; the delegate looks up secrets for its prefix alone, and
/// is revoked alone.
#[test]
fn delegations_are_registered_looked_up_handed_on_once_and_revoked() {
    let (mut server, credential) = one();
    let now = at(0);
    let epoch = epoch_at(now);
    let prefix = |text: &str| text.parse::<Prefix>().expect("a prefix");
    let done = |answer: Option<Acknowledgement>| answer.expect("acknowledged").status;
    let wide = Order::Delegate { id: id(3), prefix: prefix("203.0.0.0/8") };
    assert_eq!(done(order(&mut server, &credential, wide, 1, now)), Status::Done);
    let own = delegated(&credential.terms, id(3), prefix("203.0.0.0/8")).expect("possible");
    let delegate = credential.delegate(own);
    let keys = WaypointKeys::new(waypoint_key());
    let hop = direct(&mut server, &delegate, epoch, now).0.expect("a secret").secret.hop();
    assert_eq!(keys.stamp_key(&hop.capability), Some(hop.key));
    // The same prefix twice, one outside, and one that is handed on to a part.
    assert_eq!(done(order(&mut server, &credential, wide, 2, now)), Status::Done);
    let outside = Order::Delegate { id: id(9), prefix: prefix("192.0.2.0/24") };
    assert_eq!(done(order(&mut server, &delegate, outside, 3, now)), Status::NotAllowed);
    let part = Order::Delegate { id: id(9), prefix: prefix("203.0.113.0/24") };
    assert_eq!(done(order(&mut server, &delegate, part, 4, now)), Status::Done);
    let sub = delegate.delegate(delegated(&delegate.terms, id(9), prefix("203.0.113.0/24")).expect("possible"));
    let hop = direct(&mut server, &sub, epoch, now).0.expect("a secret").secret.hop();
    assert_eq!(keys.stamp_key(&hop.capability), Some(hop.key));
    assert_eq!(done(order(&mut server, &sub, part, 5, now)), Status::NotAllowed, "handed on twice");
    assert_eq!(server.state().grants(), 3);
    // Who has a part revokes neither the whole nor another's.
    let whole = Order::RevokeDelegation { id: id(3), sub: None };
    assert_eq!(done(order(&mut server, &sub, whole, 6, now)), Status::NotAllowed);
    let others = Order::RevokeDelegation { id: id(4), sub: None };
    assert_eq!(done(order(&mut server, &delegate, others, 7, now)), Status::NotAllowed);
    let branch = Order::RevokeDelegation { id: id(3), sub: Some(id(9)) };
    assert_eq!(done(order(&mut server, &delegate, branch, 8, now)), Status::Done);
    let denied = Err(LookupFailure::Denied(Denial::Revoked));
    assert_eq!(direct(&mut server, &sub, epoch, now).0, denied);
    assert!(direct(&mut server, &delegate, epoch, now).0.is_ok());
    assert_eq!(done(order(&mut server, &credential, whole, 9, now)), Status::Done);
    assert_eq!(direct(&mut server, &delegate, epoch, now).0, denied);
    assert!(direct(&mut server, &credential, epoch, now).0.is_ok());
}

#[test]
fn a_replica_follows_the_writers_changes_and_notices_one_that_was_set_back() {
    let (mut writer, mut replica) = (server_with(&[]), server_with(&[]));
    let mut changes = Vec::new();
    for number in 1..6 {
        let body = ChangeBody::Account { principal: principal(number), generation: 0, name: format!("c{number}") };
        changes.push(change(&mut writer, body, at(0)));
    }
    assert_eq!(replica.apply(&changes[1]), Err(ChangeError::Gap { held: 0, got: 2 }));
    for change in &changes[..4] {
        replica.apply(change).expect("the next");
    }
    assert_eq!(replica.apply(&changes[3]), Err(ChangeError::Gap { held: 4, got: 4 }));
    // A writer from an old copy: the same numbers for something else, and then more.
    let mut old = server_with(&[]);
    changes[..3].iter().for_each(|change| old.apply(change).expect("the next"));
    let close = |number| ChangeBody::Close { principal: principal(number) };
    change(&mut old, close(1), at(9));
    let forked = change(&mut old, close(2), at(9));
    assert_eq!(replica.apply(&forked), Err(ChangeError::Fork(5)));
    // Another's signature.
    let state = State::new(provider());
    let stranger = SigningKey::from_seed(&seed(30, 1));
    let body = ChangeBody::Account { principal: principal(1), generation: 0, name: String::new() };
    let foreign = state.sign(body, &stranger, at(0).unix).expect("possible");
    assert_eq!(server_with(&[]).apply(&foreign), Err(ChangeError::Signature(1)));
    replica.apply(&changes[4]).expect("the next");
    assert_eq!((replica.state().number(), replica.state().accounts()), (5, 5));
}

#[test]
fn a_higher_generation_replaces_every_key_of_an_account_and_a_closed_account_is_gone() {
    let (mut server, credential) = one();
    let now = at(0);
    assert!(direct(&mut server, &credential, epoch_at(now), now).0.is_ok());
    change(&mut server, ChangeBody::Account { principal: principal(7), generation: 1, name: "new".into() }, now);
    assert_eq!(direct(&mut server, &credential, epoch_at(now), now).0, Err(LookupFailure::Unknown));
    let key = provider().account(principal(7), 1).master(&credential.terms);
    let renewed = Credential { key, ..credential.clone() };
    assert!(direct(&mut server, &renewed, epoch_at(now), now).0.is_ok());
    let back = ChangeBody::Account { principal: principal(7), generation: 0, name: "old".into() };
    let refused = server.sign(back, now.unix).expect("the writer");
    assert_eq!(refused.err(), Some(ChangeError::Generation { held: 1, got: 0 }));
    change(&mut server, ChangeBody::Withdraw(credential.terms), now);
    assert_eq!(direct(&mut server, &renewed, epoch_at(now), now).0, Err(LookupFailure::Unknown));
    change(&mut server, ChangeBody::Close { principal: principal(7) }, now);
    assert_eq!((server.state().accounts(), server.state().grants()), (0, 0));
}

/// PLA-15: every interval at once, about 2038 and 2106, when 31 and 32 bits of seconds end.
#[test]
fn every_interval_is_looked_up_across_2038_and_2106() {
    let mut server = server_with(&[]);
    open_account(&mut server, 7);
    let mut credentials = Vec::new();
    for n in 4..=24 {
        credentials.push(grant(&mut server, Terms { interval: interval(n), ..terms(7) }));
    }
    for second in [(1u64 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 32) + 5_000] {
        let now = Now { unix: UnixTime(second * 1_000_000), ..at(0) };
        assert!(server.prepare(now.unix, u32::MAX));
        for credential in &credentials {
            let epoch = (second >> credential.terms.interval.exponent()) as u32;
            let (outcome, events) = direct(&mut server, credential, epoch, now);
            let obtained = outcome.expect("a secret");
            assert!(events.is_empty());
            assert_eq!(obtained.secret.capability.epoch, epoch);
            assert!(obtained.until > second);
        }
    }
}

#[test]
fn state_for_each_principal_stays_below_two_hundred_octets() {
    let count: u32 = std::env::var("WAYLEAVE_PRINCIPALS").ok().and_then(|text| text.parse().ok()).unwrap_or(100_000);
    let mut server = server_with(&[]);
    for number in 0..count {
        let body = ChangeBody::Account { principal: principal(number), generation: 0, name: String::new() };
        change(&mut server, body, at(0));
        change(
            &mut server,
            ChangeBody::Grant(Grant { terms: terms(number), not_before: 0, not_after: u64::MAX }),
            at(0),
        );
    }
    assert!(server.prepare(at(0).unix, u32::MAX));
    let each = server.memory() / count as usize;
    println!("{each} octets for each of {count} principals");
    assert!(each < 200, "{each} octets");
}

fn arbitrary_terms() -> impl Strategy<Value = Terms> {
    let address = prop_oneof![any::<[u8; 4]>().prop_map(IpAddr::from), any::<[u8; 16]>().prop_map(IpAddr::from)];
    let numbers = (0u32..1 << 24, 4u8..=24, any::<bool>(), 0u32..1 << 24, 0u32..1 << 24);
    (address, numbers, 0u8..3, any::<u8>(), any::<u8>()).prop_map(|(waypoint, numbers, kind, length, at)| {
        let (number, n, narrow, first, second) = numbers;
        let most = if waypoint.is_ipv4() { 32 } else { 128 };
        let length = length % (most + 1);
        let sub = (kind == 2).then(|| SubDelegation { at: at % (length + 1), id: id(second) });
        let prefix = Prefix::truncated(waypoint, length).expect("a length");
        Terms {
            waypoint,
            principal: principal(number),
            interval: interval(n),
            width: if narrow { Width::Narrow } else { Width::Full },
            delegation: (kind > 0).then(|| Delegation { prefix, id: id(first), sub }),
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn a_credential_is_one_line_that_reads_back_and_no_changed_one_does(terms in arbitrary_terms(), key: [u8; 16], at: usize, to in 0u8..64) {
        let credential = Credential { zone: zone(), terms, key: MasterKey::new(Key128::new(key)) };
        let line = credential.expose();
        prop_assert!(!line.contains(char::is_whitespace));
        prop_assert_eq!(line.parse::<Credential>(), Ok(credential));
        let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        let at = PREFIX.len() + at % (line.len() - PREFIX.len());
        let mut changed = line.clone().into_bytes();
        changed[at] = digits[usize::from(to)];
        let changed = String::from_utf8(changed).expect("ASCII");
        prop_assert!(changed == line || changed.parse::<Credential>().is_err());
        prop_assert!(line[..line.len() - 1].parse::<Credential>().is_err());
    }

    #[test]
    fn derived_step_by_step_or_at_once_a_master_key_is_the_same(terms in arbitrary_terms()) {
        let account = provider().account(terms.principal, 0);
        if let Some(parent) = terms.parent() {
            prop_assert_eq!(account.master(&terms), account.master(&parent).delegate(&terms));
        }
    }

    /// Without a cookie no answer is longer than its question, whatever it asks.
    #[test]
    fn no_answer_without_a_cookie_is_longer_than_its_question(
        kind in 0usize..8,
        record in prop_oneof![Just(16u16), Just(2), Just(6), Just(1), Just(28), Just(255), any::<u16>()],
        edns: bool,
        padding in 0usize..300,
        cookie in prop_oneof![Just(None), proptest::collection::vec(any::<u8>(), 0..45).prop_map(Some)],
        garbage in proptest::collection::vec(any::<u8>(), 0..80),
    ) {
        let (mut server, credential) = one();
        let lookup = |credential: Credential, epoch| {
            Lookup::new(LookupConfig { credential, epoch, servers: vec![], seed: seed(1, 1) }).name()
        };
        let now = at(0);
        let ordering = Ordering::new(credential.clone(), Order::RevokeEpoch, [7; 4], epoch_at(now), now.unix);
        let order = Message::from_vec(&ordering.question(1)).expect("one").queries[0].name().to_ascii();
        let names = [
            lookup(credential.clone(), epoch_at(now)),
            lookup(credential, 0),
            ZONE.to_owned(),
            format!("ns.{ZONE}"),
            format!("nothing.here.{ZONE}"),
            "example.org".to_owned(),
            order,
            ".".to_owned(),
        ];
        let mut question = Message::new(9, MessageType::Query, OpCode::Query);
        let name = format!("{}.", names[kind].trim_end_matches('.'));
        question.add_query(Query::query(Name::from_ascii(&name).expect("a name"), RecordType::from(record)));
        if edns {
            let mut options = hickory_proto::op::Edns::new();
            options.set_max_payload(1_232);
            if padding > 0 {
                options.options_mut().insert(EdnsOption::Unknown(12, vec![0; padding]));
            }
            if let Some(cookie) = cookie {
                options.options_mut().insert(EdnsOption::Unknown(10, cookie));
            }
            question.set_edns(options);
        }
        for octets in [question.to_vec().expect("encoded"), garbage] {
            let answer = reply(&mut server, &octets, Transport::Udp, now);
            prop_assert!(answer.len() <= octets.len(), "{} for {}", answer.len(), octets.len());
        }
    }
}

#[test]
fn a_cookie_that_was_given_lets_a_short_question_have_its_answer_until_it_is_old_or_anothers() {
    let (mut server, credential) = one();
    let epoch = epoch_at(at(0));
    let name = Lookup::new(LookupConfig { credential, epoch, servers: vec![], seed: seed(1, 1) }).name();
    let question = |cookie: Vec<u8>| {
        let mut question = Message::new(9, MessageType::Query, OpCode::Query);
        question.add_query(Query::query(Name::from_ascii(format!("{name}.")).expect("a name"), RecordType::TXT));
        let mut edns = hickory_proto::op::Edns::new();
        edns.set_max_payload(1_232);
        edns.options_mut().insert(EdnsOption::Unknown(10, cookie));
        question.set_edns(edns);
        question.to_vec().expect("encoded")
    };
    let read = |octets: &[u8]| {
        let message = Message::from_vec(octets).expect("a message");
        let cookie = message.edns.as_ref().and_then(|edns| edns.option(10.into()).cloned());
        let cookie = cookie.map(|option| match option {
            EdnsOption::Unknown(_, octets) => octets,
            _ => Vec::new(),
        });
        (message.metadata.truncation, message.answers.len(), cookie)
    };
    let first = reply(&mut server, &question(vec![1; 8]), Transport::Udp, at(0));
    assert_eq!(read(&first), (true, 0, None), "a cookie would make the answer longer than the question");
    let (_, answers, cookie) = read(&reply(&mut server, &question(vec![1; 8]), Transport::Tcp, at(0)));
    let cookie = cookie.expect("given by TCP");
    assert_eq!((answers, cookie.len()), (1, 24));
    let with = |server: &mut KeyServer, cookie: Vec<u8>, secs| {
        read(&reply(server, &question(cookie), Transport::Udp, at(secs))).1
    };
    assert_eq!(with(&mut server, cookie.clone(), 0), 1);
    assert_eq!(with(&mut server, cookie.clone(), 600), 1);
    assert_eq!(with(&mut server, cookie.clone(), 3_601), 0, "old");
    for bit in 0..24 * 8 {
        let mut changed = cookie.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        // The three reserved octets are part of what is compared.
        assert_eq!(with(&mut server, changed, 0), 0, "bit {bit}");
    }
    let other = Client { address: "192.0.2.98".parse().expect("an address"), transport: Transport::Udp };
    let Served::Reply(answer) = server.serve(&question(cookie), other, at(0)) else { panic!("an answer") };
    assert_eq!(read(&answer).1, 0, "another client's");
}

/// Every answer of a server, as octets, to a question by UDP.
fn answered(server: &mut KeyServer, question: &[u8], now: Now) -> Option<Vec<u8>> {
    match server.serve(question, client(Transport::Udp), now) {
        Served::Reply(answer) => Some(answer),
        _ => None,
    }
}

fn first_question(credential: &Credential, now: Now) -> Vec<u8> {
    let (epoch, servers) = (epoch_at(now), vec![resolver(1)]);
    let config = LookupConfig { credential: credential.clone(), epoch, servers, seed: seed(1, 1) };
    let mut lookup = Lookup::new(config);
    lookup.handle(LookupInput::Start, now);
    match lookup.poll() {
        Some(LookupOutput::Datagram { octets, .. }) => octets,
        other => panic!("{other:?}"),
    }
}

/// Another question.
fn asked(question: &[u8], change: impl FnOnce(&mut Message)) -> Vec<u8> {
    let mut message = Message::from_vec(question).expect("a question");
    change(&mut message);
    message.to_vec().expect("encoded")
}

/// An option that says nothing makes the general decoder answer.
fn with_an_unknown_option(question: &[u8]) -> Vec<u8> {
    asked(question, |message| {
        let edns = message.edns.as_mut().expect("padded");
        edns.options_mut().insert(EdnsOption::Unknown(65_001, Vec::new()));
    })
}

#[test]
fn questions_of_the_usual_shape_are_answered_as_the_general_decoder_answers_them() {
    let (mut server, credential) = one();
    let now = at(0);
    let known = first_question(&credential, now);
    let stranger = Credential { key: MasterKey::new(Key128::new([8; 16])), ..credential.clone() };
    let unknown = first_question(&stranger, now);
    let apex = asked(&known, |message| {
        message.queries[0].set_name(Name::from_ascii(format!("{ZONE}.")).expect("a name"));
    });
    for question in [&known, &unknown, &apex] {
        let general = answered(&mut server, &with_an_unknown_option(question), now).expect("answered");
        let quick = answered(&mut server, question, now).expect("answered");
        let (general, quick) = (Message::from_vec(&general).expect("read"), Message::from_vec(&quick).expect("read"));
        assert_eq!((&quick.metadata, &quick.queries), (&general.metadata, &general.queries));
        assert_eq!((&quick.answers, &quick.authorities), (&general.answers, &general.authorities));
        assert_eq!(quick.edns.is_some(), general.edns.is_some());
        // Cut anywhere, it is no question, and nothing of it is answered at length.
        for length in 0..question.len() {
            if let Some(answer) = answered(&mut server, &question[..length], now) {
                assert!(answer.len() <= length, "{length}");
            }
        }
    }
    assert_eq!(server.counters().repeated, 1, "the second secret of the epoch was sealed once");
    let sealed = answered(&mut server, &known, now);
    change(&mut server, ChangeBody::Account { principal: principal(7), generation: 1, name: "new".into() }, now);
    assert_ne!(answered(&mut server, &known, now), sealed, "what was kept ends with the keys");
}

#[test]
fn a_network_beyond_its_limit_is_sent_to_tcp_or_gets_nothing_and_a_cookie_or_tcp_is_answered() {
    let (mut server, credential) = one();
    server.limit_sources(Some(SourceLimit { per_second: 10, burst: 10 }));
    let now = at(0);
    let question = first_question(&credential, now);
    for _ in 0..10 {
        let answer = Message::from_vec(&answered(&mut server, &question, now).expect("answered")).expect("read");
        assert_eq!(answer.answers.len(), 1);
    }
    let told = answered(&mut server, &question, now).expect("told");
    assert!(told.len() <= question.len());
    let told = Message::from_vec(&told).expect("read");
    assert!(told.metadata.truncation && told.answers.is_empty());
    assert_eq!(answered(&mut server, &question, now), None);
    assert_eq!(answered(&mut server, b"garbage that is long enough", now), None);
    assert_eq!((server.counters().limited_to_tcp, server.counters().limited), (1, 2));
    assert!(direct(&mut server, &credential, epoch_at(now), at(0)).0.is_ok(), "by TCP at the latest");
    // Who shows a cookie that was made for its address has no limit.
    let asking = |option: Vec<u8>| {
        asked(&question, |message| {
            let edns = message.edns.as_mut().expect("padded");
            edns.options_mut().insert(EdnsOption::Unknown(10, option));
        })
    };
    let Served::Reply(first) = server.serve(&asking(vec![1; 8]), client(Transport::Tcp), now) else { panic!("none") };
    let edns = Message::from_vec(&first).expect("read").edns.expect("present");
    let Some(EdnsOption::Unknown(_, cookie)) = edns.option(EdnsCode::Cookie) else { panic!("no cookie") };
    let asking = asking(cookie.clone());
    for _ in 0..50 {
        let answer = Message::from_vec(&answered(&mut server, &asking, now).expect("answered")).expect("read");
        assert_eq!(answer.answers.len(), 1);
    }
}
