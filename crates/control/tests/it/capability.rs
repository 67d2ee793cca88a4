//! Capabilities in people's hands: the published values hold (`test-data/wire/capabilities.py`, which shares no code with this),
//! and a key server and its holders understand each other whatever lies between them.
//!
//! PLA-03, 15, look-ups: epochs two and sixteen away, of every interval; 2038 and 2106: the same answer as for a
//! stranger; the right epoch's secret.
//! PLA-04, look-ups: a holder delegates, a delegate hands on, within and outside the prefix, twice: by rule; each looks
//! up its own secret alone, and is revoked alone.
//! PLA-04, sources: a holder says where its delegation sends from, a delegate does, or it lies outside what is granted:
//! by rule; secrets of whoever names sources are bound, also where others were answered before.
//! PLA-06, look-ups: revoked by the holder, by a forger, by a late clock, twice: once, durable, in the routers' list,
//! whose number never falls.
//! PLA-06, one principal's orders: as many lasting revocations as are allowed, and one more: full; others and epochs go
//! on.
//! PLA-07: cached answers of the last epoch, poisoned, truncated, for other names and questions, garbage, changed TTLs,
//! letters of other case, no EDNS: the right key by TCP or from another server, or a clean failure; counted and shown.
//! PLA-07, slow and old: a resolver that repeats the denial of a revocation that was lifted, or of a grant that was
//! renewed: a denial counts once all have been asked.
//! PLA-07, a denial of earlier: "not now", kept by a resolver and repeated when the secret is given again: the secret
//! by TCP or from another server.
//! PLA, key server's flood: one source asks a hundred times: truncated answers and silence, counted; its own cookie
//! lifts the limit.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

use hickory_proto::op::{Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::TXT;
use hickory_proto::rr::rdata::opt::EdnsOption;
use hickory_proto::rr::{Name, RData, Record, RecordType};
use proptest::prelude::*;
use serde_json::Value;
use wayleave_control::capability::*;
use wayleave_core::{Machine, Now, Prefix, UnixTime};
use wayleave_crypto::secret::{Key128, Seed};
use wayleave_crypto::sign::SigningKey;
use wayleave_crypto::signed::Signed;
use wayleave_packet::platypus::header::{Delegation, DelegationId, Interval, Marks, Principal, SubDelegation, Width};
use wayleave_packet::platypus::mint::{WaypointKey, WaypointKeys};
use wayleave_packet::platypus::revocation::Revocation;
use wayleave_packet::platypus::sources::{MAX_SOURCES, Sources};

use super::common::{NOW, at, seed};
use super::rows::reloaded;

const FORGED: [LookupEvent; 1] = [LookupEvent::Forged(SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 53))];
const ZONE: &str = "keys.example.net";
pub(super) const WAYPOINT: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1));

pub(super) fn zone() -> Zone {
    ZONE.parse().expect("a zone")
}

pub(super) fn provider() -> ProviderKey {
    ProviderKey::new(Seed::new(std::array::from_fn(|at| at as u8)))
}

pub(super) fn principal(number: u32) -> Principal {
    Principal::new(number).expect("24 bits")
}

pub(super) fn id(number: u32) -> DelegationId {
    DelegationId::new(number).expect("24 bits")
}

pub(super) fn interval(n: u8) -> Interval {
    Interval::new(n).expect("4 to 24")
}

pub(super) fn terms(number: u32) -> Terms {
    let (interval, width) = (interval(12), Width::Full);
    Terms { waypoint: WAYPOINT, principal: principal(number), interval, width, delegation: None }
}

pub(super) fn signer() -> SigningKey {
    SigningKey::from_seed(&seed(30, 0))
}

fn waypoint_key() -> WaypointKey {
    WaypointKey::new(&Key128::new([9; 16]))
}

pub(super) fn server_with(policy: &[LookupRule]) -> KeyServer {
    limited_server(policy, 0)
}

pub(super) fn limited_server(policy: &[LookupRule], responses_per_second: u32) -> KeyServer {
    KeyServer::new(KeyServerConfig {
        zone: zone(),
        name_servers: vec![NameServer {
            name: format!("ns.{ZONE}"),
            addresses: vec!["192.0.2.53".parse().expect("one")],
        }],
        provider: provider(),
        signer: signer(),
        waypoints: HashMap::from([(WAYPOINT, WaypointKeys::new(waypoint_key()))]),
        policy: LookupPolicy::new(policy).expect("rules"),
        responses_per_second,
    })
    .expect("a server")
}

pub(super) fn change(server: &mut KeyServer, body: ChangeBody, now: Now) -> Signed<Change> {
    let change = server.sign(body, now.unix).expect("possible");
    server.apply(&change).expect("the next");
    change
}

pub(super) fn open_account(server: &mut KeyServer, number: u32) {
    let body = ChangeBody::Account { principal: principal(number), generation: 0, name: format!("customer {number}") };
    change(server, body, at(0));
}

pub(super) fn grant(server: &mut KeyServer, terms: Terms) -> Credential {
    change(server, ChangeBody::Grant(Grant { terms, not_before: 0, not_after: u64::MAX }), at(0));
    let key = provider().account(terms.principal, 0).master(&terms);
    Credential { zone: zone(), terms, key }
}

/// A server with one capability of principal 7.
pub(super) fn one() -> (KeyServer, Credential) {
    let mut server = server_with(&[]);
    open_account(&mut server, 7);
    let credential = grant(&mut server, terms(7));
    assert!(server.prepare(at(0).unix, u32::MAX));
    (server, credential)
}

pub(super) fn client(transport: Transport) -> Client {
    Client { address: "192.0.2.99".parse().expect("an address"), transport }
}

fn resolver(number: u8) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, number], 53))
}

pub(super) fn epoch_at(now: Now) -> u32 {
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

pub(super) fn reply(server: &mut KeyServer, question: &[u8], transport: Transport, now: Now) -> Vec<u8> {
    match server.serve(question, client(transport), now) {
        Served::Reply(octets) => octets,
        Served::Nothing => Vec::new(),
        Served::Order(order) => {
            if let Some(change) = &order.change {
                server.apply(change).expect("the next");
            }
            server.acknowledge(&order, Ok(()), now)
        }
        Served::Status(status) => server.answer_status(&status, None, now),
    }
}

pub(super) fn direct(
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

pub(super) fn unhex(value: &Value) -> Vec<u8> {
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
        for (marks, name) in [(Marks::default(), "secret"), (Marks::BOUND, "bound")] {
            let secret = Answer::Secret { key: Key128::new(std::array::from_fn(|at| 100 + at as u8)), marks };
            assert_eq!(hex(&secret.seal(&key, &capability, &zone())), case[name]);
            assert_eq!(Answer::open(&unhex(&case[name]), &key, &capability, &zone()), Ok(secret));
        }
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
        let (three, nine, prefix) = (id(3), id(9), "203.0.113.0/24".parse().expect("a prefix"));
        let orders = [
            Order::RevokeEpoch,
            Order::RevokeDelegation { id: three, sub: Some(nine) },
            Order::Delegate { id: three, prefix, until: None },
            Order::Delegate { id: three, prefix, until: Some(1_900_000_000) },
            Order::Withdraw { id: three, sub: Some(nine) },
            Order::Withdraw { id: three, sub: None },
            Order::Sources { id: three, prefixes: ordered_prefixes(&["192.0.2.0/25", "203.0.113.9/32"]) },
            Order::Status,
            Order::Delegations { from: 12 },
            Order::Limit {
                id: three,
                limit: DelegationLimit {
                    rate: Some(RateTerms { rate: 1_250_000, burst: 2_000, ..RateTerms::default() }),
                    month_octets: None,
                },
            },
            Order::Limit {
                id: three,
                limit: DelegationLimit {
                    rate: Some(RateTerms { rate: 1_250_000, ..RateTerms::default() }),
                    month_octets: Some(10 << 40),
                },
            },
            Order::Limit { id: three, limit: DelegationLimit::default() },
            Order::Refusals,
        ];
        let ordered = orders.map(|order| SignedRequest::sign(Request { order, ..request }, &key));
        let published = case["orders"].as_array().expect("a list");
        assert_eq!(ordered.iter().map(|signed| hex(&signed.encode())).collect::<Vec<_>>(), *published);
        for (signed, octets) in ordered.into_iter().zip(published) {
            assert_eq!(SignedRequest::decode(&unhex(octets)), Ok(signed));
        }
        let signed = SignedRequest::sign(request, &key);
        assert_eq!(hex(&signed.encode()), case["request"]);
        assert_eq!(SignedRequest::decode(&unhex(&case["request"])), Ok(signed.clone()));
        let done = Acknowledgement { status: Status::Done, number: 77, time: 1_800_000_003 };
        assert_eq!(hex(&done.encode(&signed, &key)), case["done"]);
        let (number, time) = (77, 1_800_000_003);
        let rate = Some(RateTerms { rate: 1_250_000, ..RateTerms::default() });
        let usage = HolderUsage {
            packets: 5,
            octets: 5_000,
            month_packets: 2,
            month_octets: 2_000,
            closed_before: 1_799_000_000,
            is_partial: false,
        };
        let status = CapabilityStatus {
            not_before: 1_700_000_000,
            not_after: 1_900_000_000,
            denied: Some(Denial::NotNow { retry_secs: 90 }),
            delegations: 1,
            rate,
            month_octets: Some(10 << 40),
            usage: Some(usage),
        };
        let held = HeldDelegation {
            id: (three, Some(nine)),
            prefix,
            not_after: 1_900_000_000,
            denied: Some(Denial::Revoked),
            rate: None,
            month_octets: None,
        };
        let page = DelegationPage { all: 13, from: 12, delegations: vec![held] };
        let refusals = HeldRefusals {
            routers: 2,
            since: 1_799_990_000,
            as_of: 1_800_000_000,
            packets: vec![(RefusalReason::Revoked, 3), (RefusalReason::Rate, 40)],
        };
        let reports = [
            (Order::Status, HolderContent::Status(status)),
            (Order::Delegations { from: 12 }, HolderContent::Delegations(page)),
            (Order::Refusals, HolderContent::Refusals(refusals)),
        ];
        for ((order, content), name) in reports.into_iter().zip(["status", "delegations", "refusals"]) {
            let signed = SignedRequest::sign(Request { order, ..request }, &key);
            let report = HolderReport { number, time, content };
            assert_eq!(hex(&report.seal(&signed, &key)), case[name], "{name}");
            assert_eq!(HolderReport::open(&unhex(&case[name]), &signed, &key), Some(report));
        }
    }
}

#[test]
fn a_secret_that_is_looked_up_is_the_waypoints_own_and_takes_one_question() {
    let (mut server, credential) = one();
    let now = at(0);
    let keys = WaypointKeys::new(waypoint_key());
    for epoch in [epoch_at(now), epoch_at(now) + 1, epoch_at(now) - 1] {
        let mut questions = 0;
        let (outcome, events) = run(&credential, epoch, now, vec![resolver(1)], |_, transport, octets| {
            questions += 1;
            assert_eq!(transport, Transport::Udp);
            let answer = reply(&mut server, octets, transport, now);
            assert!(answer.len() <= octets.len(), "{} for {}", answer.len(), octets.len());
            vec![answer]
        });
        let obtained = outcome.expect("a secret");
        assert_eq!((questions, events), (1, vec![]));
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
fn a_revocation_that_was_lifted_or_a_grant_that_was_renewed_is_not_withheld_by_who_repeats_the_denial() {
    let (server, credential) = &mut one();
    let entry = Revocation { principal: principal(7), delegation: None, epoch: None };
    let ended = Grant { terms: terms(7), not_before: 0, not_after: 1 };
    let granted = Grant { not_after: u64::MAX, ..ended };
    let cases = [
        (ChangeBody::Revoke(entry), ChangeBody::Lift(entry), Denial::Revoked),
        (ChangeBody::Grant(ended), ChangeBody::Grant(granted), Denial::Ended),
    ];
    for (denying, allowing, denial) in cases {
        change(server, denying, at(0));
        assert!(server.prepare(at(0).unix, u32::MAX));
        let mut kept = Vec::new();
        let denied = Err(LookupFailure::Denied(denial));
        type Answer<'a> = &'a mut dyn FnMut(SocketAddr, Transport, &[u8]) -> Vec<u8>;
        let ask = |to: Vec<SocketAddr>, answer: Answer<'_>| {
            run(credential, epoch_at(at(0)), at(0), to, |to, transport, question| vec![answer(to, transport, question)])
        };
        let (outcome, _) = ask(vec![resolver(1)], &mut |_, transport, question| {
            let answer = reply(server, question, transport, at(0));
            kept = Message::from_vec(&answer).expect("a message").answers;
            answer
        });
        assert_eq!(outcome, denied);
        change(server, allowing, at(0));
        assert!(server.prepare(at(0).unix, u32::MAX));
        let repeated = |question: &[u8]| message(question, |message| message.answers.clone_from(&kept));
        let (outcome, _) = ask(vec![resolver(1), resolver(2)], &mut |to, transport, question| {
            if to == resolver(2) { reply(server, question, transport, at(0)) } else { repeated(question) }
        });
        assert!(outcome.is_ok(), "{denial}: {outcome:?}");
        // With nobody who says otherwise, it is what is known.
        let (outcome, _) = ask(vec![resolver(1), resolver(2)], &mut |_, _, question| repeated(question));
        assert_eq!(outcome, denied);
    }
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
    for (hours, is_denied) in [
        ("08:00-18:00", true),
        ("08:01-18:00", true),
        ("10:00-18:00", false),
        ("22:00-08:00", false),
        ("22:00-08:01", true),
    ] {
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

pub(super) fn order(
    server: &mut KeyServer,
    credential: &Credential,
    order: Order,
    nonce: u8,
    now: Now,
) -> Option<Acknowledgement> {
    let epoch = (now.unix.secs() >> credential.terms.interval.exponent()) as u32;
    let ordering = Ordering::new(credential.clone(), order, [nonce; 4], epoch, now.unix);
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

/// Routers know a secret by the account and the epoch, not by the waypoint: who holds one capability of an account ends no other's.
#[test]
fn a_holder_revokes_an_epoch_only_where_no_other_capability_of_the_account_ends_with_it() {
    let (mut server, credential) = one();
    let other = Terms { waypoint: IpAddr::V4(Ipv4Addr::new(198, 51, 100, 2)), ..credential.terms };
    let longer = Terms { interval: Interval::new(13).expect("in range"), ..other };
    change(&mut server, ChangeBody::Grant(Grant { terms: longer, not_before: 0, not_after: u64::MAX }), at(0));
    change(&mut server, ChangeBody::Grant(Grant { terms: other, not_before: 0, not_after: u64::MAX }), at(0));
    let status = |server: &mut KeyServer, credential: &Credential, nonce| {
        order(server, credential, Order::RevokeEpoch, nonce, at(0)).expect("acknowledged").status
    };
    assert_eq!(status(&mut server, &credential, 1), Status::Shared);
    assert_eq!(server.state().revocations().len(), 0);
    change(&mut server, ChangeBody::Withdraw(other), at(0));
    assert_eq!(status(&mut server, &credential, 2), Status::Done, "the one of other epochs stays");
    // What is done already is done for whoever asks.
    change(&mut server, ChangeBody::Grant(Grant { terms: other, not_before: 0, not_after: u64::MAX }), at(0));
    assert_eq!(status(&mut server, &credential, 3), Status::Done);
}

/// PLA-07: a name has at most 255 octets, each label at most 63 (RFC 1035, section 2.3.4).
#[test]
fn the_longest_orders_fit_a_name_under_the_longest_zone() {
    let zone: Zone = format!("{}.{}", "a".repeat(63), "b".repeat(36)).parse().expect("100 characters");
    let waypoint = "2001:db8::1".parse().expect("an address");
    let mut server = KeyServer::new(KeyServerConfig {
        zone: zone.clone(),
        name_servers: Vec::new(),
        provider: provider(),
        signer: signer(),
        waypoints: HashMap::from([(waypoint, WaypointKeys::new(waypoint_key()))]),
        policy: LookupPolicy::default(),
        responses_per_second: 0,
    })
    .expect("a server");
    open_account(&mut server, 7);
    let whole = Credential { zone: zone.clone(), ..grant(&mut server, Terms { waypoint, ..terms(7) }) };
    assert!(server.prepare(at(0).unix, u32::MAX));
    let prefix = "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff/128".parse().expect("a prefix");
    let orders = [
        Order::Delegate { id: id(0xff_ffff), prefix, until: None },
        Order::RevokeDelegation { id: id(0xff_ffff), sub: Some(id(0xff_fffe)) },
        Order::Withdraw { id: id(0xff_ffff), sub: Some(id(0xff_fffe)) },
        Order::Delegate { id: id(0xff_fffe), prefix, until: Some(u64::MAX - 1) },
        Order::Delegate { id: id(0xff_fffd), prefix, until: None },
        Order::Sources { id: id(0xff_fffd), prefixes: OrderedPrefixes::new(&[prefix]).expect("one fits") },
        Order::Limit {
            id: id(0xff_fffd),
            limit: DelegationLimit {
                rate: Some(RateTerms { rate: RateTerms::MOST, burst: RateTerms::MOST, ..RateTerms::default() }),
                month_octets: Some(VolumeQuota::MOST),
            },
        },
        Order::Sources {
            id: id(0xff_fffd),
            prefixes: ordered_prefixes(&["192.0.2.1/32", "192.0.2.3/32", "192.0.2.5/32", "192.0.2.7/32"]),
        },
        Order::RevokeEpoch,
    ];
    assert_eq!(OrderedPrefixes::new(&["2001:db8::/64".parse().expect("a prefix"), prefix]), None, "too long");

    for (order, nonce) in orders.into_iter().zip(1..) {
        let ordering = Ordering::new(whole.clone(), order, [nonce; 4], epoch_at(at(0)), at(0).unix);
        let question = ordering.question(u16::from(nonce));
        let name = Message::from_vec(&question).expect("a message").queries[0].name().clone();
        assert!(name.len() <= 255 && name.iter().all(|label| label.len() <= 63), "{order:?}: {} octets", name.len());
        let answer = reply(&mut server, &question, Transport::Udp, at(0));
        let acknowledged = ordering.read(&answer, u16::from(nonce)).expect("an answer").expect("acknowledged");
        assert_eq!(acknowledged.status, Status::Done, "{order:?}");
    }
    assert!("a.".repeat(51).trim_end_matches('.').parse::<Zone>().is_err(), "101 characters");
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
    // The holder's own order with one letter changed, be it of the handle, of what is ordered, or of the MAC.
    let own = Ordering::new(credential.clone(), Order::RevokeEpoch, [2; 4], epoch_at(at(0)), at(0).unix).question(2);
    let zone = own.windows(5).position(|octets| octets == b"\x04keys").expect("the zone");
    let (mut label, mut changes) = (12, 0);
    while label < zone {
        let next = label + 1 + usize::from(own[label]);
        // Of the last letter not all bits are used.
        for place in label + 1..next.min(zone - 1) {
            let mut changed = own.clone();
            changed[place] = if own[place].eq_ignore_ascii_case(&b'a') { b'b' } else { b'a' };
            let served = server.serve(&changed, client(Transport::Udp), at(0));
            assert!(!matches!(served, Served::Order(_)), "letter {place} changed");
            changes += 1;
        }
        label = next;
    }
    let forgeries = server.counters().orders_forged;
    assert!(changes > 60 && forgeries > changes / 2, "{forgeries} of {changes}");
    // A clock that is wrong by more than the window, in both directions.
    for wrong in [NOW - WINDOW - 1, NOW + WINDOW + 1] {
        let ordering =
            Ordering::new(credential.clone(), Order::RevokeEpoch, [3; 4], epoch_at(at(0)), UnixTime(wrong * 1_000_000));
        let answer = reply(&mut server, &ordering.question(3), Transport::Udp, at(0));
        let acknowledged = ordering.read(&answer, 3).expect("an answer").expect("acknowledged");
        assert_eq!((acknowledged.status, acknowledged.time), (Status::Clock, NOW));
        assert_eq!(ordering.read(&answer, 4), Err(ReplyError::Id));
    }
    assert_eq!(server.state().number(), number);
    let counters = server.counters();
    assert_eq!((counters.orders, counters.orders_forged, counters.orders_clock), (0, forgeries, 2));
    // As it was, it is carried out.
    assert!(matches!(server.serve(&own, client(Transport::Udp), at(0)), Served::Order(_)));
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
    let wide = Order::Delegate { id: id(3), prefix: prefix("203.0.0.0/8"), until: None };
    assert_eq!(done(order(&mut server, &credential, wide, 1, now)), Status::Done);
    let own = delegated(&credential.terms, id(3), prefix("203.0.0.0/8")).expect("possible");
    let delegate = credential.delegate(own);
    let keys = WaypointKeys::new(waypoint_key());
    let hop = direct(&mut server, &delegate, epoch, now).0.expect("a secret").secret.hop();
    assert_eq!(keys.stamp_key(&hop.capability), Some(hop.key));
    // The same prefix twice, one outside, and one that is handed on to a part.
    assert_eq!(done(order(&mut server, &credential, wide, 2, now)), Status::Done);
    let outside = Order::Delegate { id: id(9), prefix: prefix("192.0.2.0/24"), until: None };
    assert_eq!(done(order(&mut server, &delegate, outside, 3, now)), Status::NotAllowed);
    let part = Order::Delegate { id: id(9), prefix: prefix("203.0.113.0/24"), until: None };
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

fn ordered_prefixes(all: &[&str]) -> OrderedPrefixes {
    let all: Vec<Prefix> = all.iter().map(|text| prefix(text)).collect();
    OrderedPrefixes::new(&all).expect("ascending, and short enough")
}

fn sources(delegation: Option<u32>, prefixes: &[&str]) -> Sources {
    let prefixes = prefixes.iter().map(|text| prefix(text)).collect();
    Sources { principal: principal(7), delegation: delegation.map(id), delegates_any: false, prefixes }
}

#[test]
fn a_delegation_names_its_own_sources_within_the_grants() {
    let (mut server, credential) = one();
    let delegate = branch(&mut server, &credential, 3, u64::MAX);
    let mut nonce = 0;
    let mut say = |server: &mut KeyServer, holder: &Credential, number: u32, all: &[&str]| {
        nonce += 1;
        let given = Order::Sources { id: id(number), prefixes: ordered_prefixes(all) };
        order(server, holder, given, nonce, at(nonce.into())).expect("acknowledged").status
    };
    let set = |server: &mut KeyServer, sources: Sources| drop(change(server, ChangeBody::SetSources(sources), at(0)));
    // The principal names none: its delegation may be restricted to any.
    assert_eq!(say(&mut server, &credential, 3, &["192.0.2.0/24"]), Status::Done);
    let number = server.state().number();
    assert_eq!(say(&mut server, &credential, 3, &["192.0.2.0/24"]), Status::Done);
    assert_eq!(server.state().number(), number, "done once");
    assert!(server.state().sources().eq([&sources(Some(3), &["192.0.2.0/24"])]));
    // Nobody's but one's own, and none that is not registered.
    assert_eq!(say(&mut server, &delegate, 3, &["192.0.2.0/25"]), Status::NotAllowed);
    assert_eq!(say(&mut server, &credential, 4, &["192.0.2.0/25"]), Status::NotAllowed);
    // Within the principal's, as long as that does not say otherwise.
    set(&mut server, sources(None, &["198.18.0.0/24", "198.18.4.0/24"]));
    assert_eq!(say(&mut server, &credential, 3, &["192.0.2.0/25"]), Status::NotAllowed);
    assert_eq!(say(&mut server, &credential, 3, &["198.18.4.0/25", "198.18.5.0/24"]), Status::NotAllowed);
    assert_eq!(say(&mut server, &credential, 3, &["198.18.0.0/25", "198.18.4.0/24"]), Status::Done);
    set(&mut server, Sources { delegates_any: true, ..sources(None, &["198.18.0.0/24"]) });
    assert_eq!(say(&mut server, &credential, 3, &["192.0.2.0/25"]), Status::Done);
    // It names none any more, and that is remembered as long as it is there.
    assert_eq!(say(&mut server, &credential, 3, &[]), Status::Done);
    assert_eq!(server.state().sources_of(principal(7)).count(), 2);
    let withdrawn = order(&mut server, &credential, Order::Withdraw { id: id(3), sub: None }, 99, at(99));
    assert_eq!(withdrawn.expect("acknowledged").status, Status::Done);
    assert_eq!(server.state().sources_of(principal(7)).count(), 1);
}

/// The list for routers has room for all principals, and the operator's word comes before the holders'.
#[test]
fn holders_name_so_many_sources_and_no_more() {
    let (mut server, credential) = one();
    branch(&mut server, &credential, 3, u64::MAX);
    let set = |server: &mut KeyServer, sources: Sources| drop(change(server, ChangeBody::SetSources(sources), at(0)));
    let all: Vec<String> = (10..26).map(|at| format!("198.18.{at}.0/24")).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    for number in 0..(PRINCIPAL_SOURCES / 16) as u32 {
        set(&mut server, sources(Some(100 + number), &all));
    }
    let order_of = |prefixes| Order::Sources { id: id(3), prefixes: ordered_prefixes(prefixes) };
    let full = order(&mut server, &credential, order_of(&["192.0.2.0/24"]), 1, at(0)).expect("acknowledged");
    assert_eq!(full.status, Status::Full);
    set(&mut server, sources(Some(100), &[]));
    let done = order(&mut server, &credential, order_of(&["192.0.2.0/24"]), 2, at(0)).expect("acknowledged");
    assert_eq!(done.status, Status::Done);
}

#[test]
fn a_grant_with_sources_is_answered_with_bound_secrets() {
    let (mut server, credential) = one();
    let delegate = branch(&mut server, &credential, 3, u64::MAX);
    let keys = WaypointKeys::new(waypoint_key());
    assert!(server.prepare(at(0).unix, u32::MAX));
    let is_bound = |server: &mut KeyServer, holder: &Credential| {
        // Twice, so that the second answer is the one that was kept.
        let [first, second] = [0, 1].map(|second| {
            let found = direct(server, holder, epoch_at(at(0)), at(second)).0.expect("a secret").secret;
            // What the waypoint makes of the packet's capability is what the holder has.
            let hop = found.hop();
            assert_eq!(keys.stamp_key(&hop.capability), Some(hop.key));
            found
        });
        assert_eq!(first, second);
        first.capability.marks == Marks::BOUND
    };
    let both = |server: &mut KeyServer| [&credential, &delegate].map(|holder| is_bound(server, holder));
    assert_eq!(both(&mut server), [false, false]);
    let set = |server: &mut KeyServer, sources: Sources| drop(change(server, ChangeBody::SetSources(sources), at(0)));
    set(&mut server, sources(Some(3), &["192.0.2.0/24"]));
    assert_eq!(both(&mut server), [false, true]);
    set(&mut server, sources(None, &["192.0.2.0/24"]));
    assert_eq!(both(&mut server), [true, true]);
    set(&mut server, sources(Some(3), &[]));
    assert_eq!(both(&mut server), [true, true], "its principal's count");
    set(&mut server, sources(None, &[]));
    assert_eq!(both(&mut server), [false, false]);
}

#[test]
fn sources_that_make_no_sense_and_too_many_of_all_are_refused() {
    let (mut server, _) = one();
    let refused = |server: &KeyServer, sources: Sources| {
        server.sign(ChangeBody::SetSources(sources), at(0).unix).expect_err("refused")
    };
    let unsorted = sources(None, &["198.18.4.0/24", "198.18.0.0/24"]);
    let speaks_for_others = Sources { delegates_any: true, ..sources(Some(3), &[]) };
    let many = |count: u8| {
        let prefixes = (0..count).map(|at| prefix(&format!("198.18.{at}.0/24"))).collect();
        Sources { prefixes, ..sources(None, &[]) }
    };
    for wrong in [unsorted, speaks_for_others, many(17)] {
        assert_eq!(refused(&server, wrong), ChangeError::SourcesTerms);
    }
    let nobodys = Sources { principal: principal(8), ..sources(None, &[]) };
    assert_eq!(refused(&server, nobodys), ChangeError::NoAccount(8));
    change(&mut server, ChangeBody::SetSources(many(16)), at(0));
    let within = |number: u32| Sources { delegation: Some(id(number)), ..many(16) };
    let beyond = Sources { prefixes: vec![prefix("198.18.0.0/23")], ..within(1) };
    assert_eq!(refused(&server, beyond), ChangeError::SourcesBeyond);
    // As many as the list has space for.
    let mut rows = server.state().rows();
    rows.extend((1..MAX_SOURCES as u32 / 16).map(|number| Row::Sources(within(number))));
    let end = ChangesEnd {
        number: server.state().number(),
        last: server.state().last(),
        issued: server.state().times().seconds.to_vec(),
        times: Vec::new(),
    };
    server.replace(State::from_rows::<RowError>(provider(), &end, rows.into_iter().map(Ok)).expect("a state"));
    assert_eq!(refused(&server, within(1 << 20)), ChangeError::Sources);
    // Another one in the place of these is no more.
    change(
        &mut server,
        ChangeBody::SetSources(Sources { prefixes: within(5).prefixes[1..].to_vec(), ..within(5) }),
        at(0),
    );
    let one_more = Sources { prefixes: within(9).prefixes[..1].to_vec(), ..within(1 << 20) };
    change(&mut server, ChangeBody::SetSources(one_more), at(0));
    assert_eq!(
        refused(&server, Sources { prefixes: vec![prefix("198.18.0.0/25")], ..within(7 << 20) }),
        ChangeError::Sources
    );
}

#[test]
fn one_principals_holders_fill_no_list_that_all_routers_read() {
    let (mut server, credential) = one();
    for number in 0..MAX_REVOKED as u32 {
        let entry = Revocation { principal: principal(7), delegation: Some((id(number), None)), epoch: None };
        change(&mut server, ChangeBody::Revoke(entry), at(0));
    }
    let more = |number| Order::RevokeDelegation { id: id(number), sub: None };
    let full = order(&mut server, &credential, more(MAX_REVOKED as u32), 1, at(0)).expect("acknowledged");
    assert_eq!(full.status, Status::Full);
    // What is revoked stays so, and an epoch can be.
    let again = order(&mut server, &credential, more(5), 2, at(0)).expect("acknowledged");
    let epoch = order(&mut server, &credential, Order::RevokeEpoch, 3, at(0)).expect("acknowledged");
    assert_eq!((again.status, epoch.status), (Status::Done, Status::Done));
}

pub(super) fn prefix(text: &str) -> Prefix {
    text.parse().expect("a prefix")
}

/// A delegation of `credential`, by the operator, for 203.0.0.0/8 and until then.
pub(super) fn branch(server: &mut KeyServer, credential: &Credential, number: u32, not_after: u64) -> Credential {
    let terms = delegated(&credential.terms, id(number), prefix("203.0.0.0/8")).expect("possible");
    change(server, ChangeBody::Grant(Grant { terms, not_before: 0, not_after }), at(0));
    credential.delegate(terms)
}

/// Orders as fast as may be: one each second. Returns how many were done before one had another status, and that.
fn until_refused(
    server: &mut KeyServer,
    credential: &Credential,
    second: &mut u64,
    ordered: impl Fn(u32) -> Order,
) -> (usize, Status) {
    for count in 0..5_000 {
        *second += 1;
        let now = at(*second);
        let acknowledged = order(server, credential, ordered(count), *second as u8, now).expect("acknowledged");
        if acknowledged.status != Status::Done {
            return (count as usize, acknowledged.status);
        }
    }
    panic!("all was done");
}

/// A server with a capability of principal 7, and two delegations of it.
fn with_delegates() -> (KeyServer, [Credential; 3]) {
    let mut server = server_with(&[]);
    open_account(&mut server, 7);
    let whole = grant(&mut server, terms(7));
    let (first, second) = (branch(&mut server, &whole, 7, u64::MAX), branch(&mut server, &whole, 8, u64::MAX));
    assert!(server.prepare(at(0).unix, u32::MAX));
    (server, [whole, first, second])
}

#[test]
fn a_delegate_that_revokes_all_it_can_leaves_room_to_other_delegates_and_to_its_principal() {
    let (mut server, [whole, first, second]) = with_delegates();
    let mut seconds = 0;
    let sub_of = |own: u32| move |number| Order::RevokeDelegation { id: id(own), sub: Some(id(number)) };
    let (most, status) = until_refused(&mut server, &first, &mut seconds, sub_of(7));
    assert_eq!((most, status), (DELEGATES_REVOKED / 2, Status::Full));
    let (left, status) = until_refused(&mut server, &second, &mut seconds, sub_of(8));
    assert_eq!((left, status), (DELEGATES_REVOKED / 4, Status::Full));
    // What was done stays done, and is no entry twice.
    let number = server.state().number();
    let again = order(&mut server, &first, sub_of(7)(0), 1, at(seconds)).expect("acknowledged");
    assert_eq!((again.status, server.state().number()), (Status::Done, number));
    // The principal revokes the delegate, whose entries say nothing new then: routers get one for them all.
    let revoked = Order::RevokeDelegation { id: id(7), sub: None };
    assert_eq!(order(&mut server, &whole, revoked, 2, at(seconds)).map(|done| done.status), Some(Status::Done));
    assert_eq!(server.state().listed(0).count(), 1 + left);
    assert_eq!(server.state().revocations().len(), 1 + most + left);
    // So there is room for the other's again, and none for more of the first one's.
    let more = order(&mut server, &second, sub_of(8)(5_000), 3, at(seconds + 1)).expect("acknowledged");
    let none = order(&mut server, &first, sub_of(7)(5_000), 4, at(seconds + 1)).expect("acknowledged");
    assert_eq!((more.status, none.status), (Status::Done, Status::Full));
    // If the revocation is lifted, what the delegate revoked is revoked again.
    let entry = Revocation { principal: principal(7), delegation: Some((id(7), None)), epoch: None };
    change(&mut server, ChangeBody::Lift(entry), at(seconds));
    assert_eq!(server.state().listed(0).count(), most + left + 1);
}

#[test]
fn a_delegate_that_registers_all_it_can_leaves_room_to_its_principal_and_holders_leave_some_to_the_operator() {
    let (mut server, [whole, first, second]) = with_delegates();
    let mut seconds = 0;
    let part = |number: u32| Order::Delegate { id: id(100 + number), prefix: prefix("203.0.113.0/24"), until: None };
    let (most, status) = until_refused(&mut server, &first, &mut seconds, part);
    assert_eq!((most, status), (DELEGATES_GRANTS / 2, Status::Full));
    let (left, status) = until_refused(&mut server, &second, &mut seconds, part);
    assert_eq!((left, status), (DELEGATES_GRANTS / 4, Status::Full));
    let (own, status) = until_refused(&mut server, &whole, &mut seconds, part);
    assert_eq!((3 + most + left + own, status), (MAX_GRANTS - OPERATOR_GRANTS, Status::Full));
    for number in 0..OPERATOR_GRANTS as u32 {
        branch(&mut server, &whole, 10_000 + number, u64::MAX);
    }
    assert_eq!(server.state().grants(), MAX_GRANTS);
}

#[test]
fn a_grant_that_is_withdrawn_takes_along_all_that_was_delegated_from_it_and_nothing_else() {
    let (mut server, [whole, first, second]) = with_delegates();
    let now = at(0);
    let part = Order::Delegate { id: id(9), prefix: prefix("203.0.113.0/24"), until: None };
    order(&mut server, &first, part, 1, now).expect("acknowledged");
    let sub = first.delegate(delegated(&first.terms, id(9), prefix("203.0.113.0/24")).expect("possible"));
    let other = grant(&mut server, Terms { width: Width::Narrow, ..terms(7) });
    let other_branch = branch(&mut server, &other, 7, u64::MAX);
    let all = [&whole, &first, &sub, &second, &other, &other_branch];
    let answered = |server: &mut KeyServer| {
        let answers = all.iter().map(|credential| direct(server, credential, epoch_at(now), now).0.is_ok());
        answers.collect::<Vec<_>>()
    };
    assert_eq!(answered(&mut server), [true; 6]);
    assert_eq!(server.state().delegated_from(first.terms).map(|grant| grant.terms).collect::<Vec<_>>(), [sub.terms]);
    let withdrawn = change(&mut server, ChangeBody::WithdrawBranch(first.terms), now);
    assert_eq!(Signed::<Change>::decode(withdrawn.octets()).as_ref(), Ok(&withdrawn));
    assert_eq!(answered(&mut server), [true, false, false, true, true, true]);
    assert_eq!(server.state().delegated_from(whole.terms).count(), 1);
    change(&mut server, ChangeBody::WithdrawBranch(whole.terms), now);
    assert_eq!(answered(&mut server), [false, false, false, false, true, true]);
    assert_eq!((server.state().grants(), server.state().grants_of(principal(7)).count()), (2, 2));
    let gone = server.sign(ChangeBody::WithdrawBranch(whole.terms), now.unix);
    assert_eq!(gone.err(), Some(ChangeError::NoGrant));
    // Their places are used again.
    let again = grant(&mut server, terms(7));
    assert!(direct(&mut server, &again, epoch_at(now), now).0.is_ok());
}

#[test]
fn a_grant_that_is_shortened_ends_what_was_delegated_from_it_with_itself() {
    let (mut server, [whole, first, second]) = with_delegates();
    let now = at(0);
    let part = Order::Delegate { id: id(9), prefix: prefix("203.0.113.0/24"), until: None };
    order(&mut server, &first, part, 1, now).expect("acknowledged");
    let sub = first.delegate(delegated(&first.terms, id(9), prefix("203.0.113.0/24")).expect("possible"));
    let until = |server: &mut KeyServer, of: &Credential, not_after| {
        change(server, ChangeBody::Grant(Grant { terms: of.terms, not_before: 0, not_after }), now);
    };
    let ends = |server: &KeyServer| {
        let end = |of: &Credential| {
            server
                .state()
                .capped_grants_of(principal(7))
                .find(|grant| grant.terms == of.terms)
                .map(|grant| grant.not_after)
        };
        [&whole, &first, &sub, &second].map(|of| end(of).expect("granted"))
    };
    let (soon, later) = (NOW - 1, NOW + 1_000_000);
    until(&mut server, &whole, later);
    until(&mut server, &first, soon);
    assert_eq!(ends(&server), [later, soon, soon, later]);
    let ended = Err(LookupFailure::Denied(Denial::Ended));
    assert_eq!(direct(&mut server, &first, epoch_at(now), now).0, ended);
    assert_eq!(direct(&mut server, &sub, epoch_at(now), now).0, ended);
    assert!(direct(&mut server, &second, epoch_at(now), now).0.is_ok());
    // Nor does a delegate of what has ended order anything new below it.
    let more = Order::Delegate { id: id(10), prefix: prefix("203.0.113.0/24"), until: None };
    let refused = order(&mut server, &first, more, 2, now).expect("acknowledged");
    assert_eq!(refused.status, Status::NotAllowed);
    // The one in between is withdrawn alone, as in records of earlier versions: the other stands on the whole.
    change(&mut server, ChangeBody::Withdraw(first.terms), now);
    assert!(direct(&mut server, &sub, epoch_at(now), now).0.is_ok());
    until(&mut server, &whole, soon);
    assert_eq!(direct(&mut server, &sub, epoch_at(now), now).0, ended);
    until(&mut server, &whole, later);
    until(&mut server, &first, soon);
    assert_eq!(direct(&mut server, &sub, epoch_at(now), now).0, ended, "it stands on the new one");
    assert_eq!(ends(&server), [later, soon, soon, later]);
    // A grant of the operator's without one above it is as it says.
    let orphan = Terms { interval: interval(13), ..first.terms };
    change(&mut server, ChangeBody::Grant(Grant { terms: orphan, not_before: 0, not_after: u64::MAX }), now);
    let kept = server.state().capped_grants_of(principal(7)).find(|grant| grant.terms == orphan);
    assert_eq!(kept.map(|grant| grant.not_after), Some(u64::MAX));
}

#[test]
fn an_order_that_is_repeated_later_brings_nothing_back_that_was_taken_away_meanwhile() {
    let (mut server, [whole, ..]) = with_delegates();
    let orders: [(Order, u8); 3] = [
        (Order::Delegate { id: id(30), prefix: prefix("203.0.113.0/24"), until: None }, 1),
        (Order::RevokeDelegation { id: id(8), sub: None }, 2),
        (Order::RevokeEpoch, 3),
    ];
    // Each by a holder whose clock is ahead as far as may be, so that it is good for longest, and each with a second one that found it done.
    let ahead = UnixTime((NOW + WINDOW) * 1_000_000);
    let signed = |order, nonce: u8| {
        let ordering = Ordering::new(whole.clone(), order, [nonce; 4], epoch_at(at(0)), ahead);
        (ordering.question(7), ordering)
    };
    let questions: Vec<_> = orders.iter().flat_map(|(order, n)| [signed(*order, *n), signed(*order, 10 + n)]).collect();
    let status = |server: &mut KeyServer, (question, ordering): &(Vec<u8>, Ordering), now| {
        let answer = reply(server, question, Transport::Tcp, now);
        ordering.read(&answer, 7).expect("an answer").expect("acknowledged").status
    };
    for question in &questions {
        assert_eq!(status(&mut server, question, at(0)), Status::Done);
    }
    let terms = delegated(&whole.terms, id(30), prefix("203.0.113.0/24")).expect("possible");
    let entries: Vec<Revocation> = server.state().revocations().copied().collect();
    assert_eq!(entries.len(), 2);
    change(&mut server, ChangeBody::WithdrawBranch(terms), at(1));
    for entry in entries {
        change(&mut server, ChangeBody::Lift(entry), at(1));
    }
    let number = server.state().number();
    // Whoever saw them on the way repeats them until they are too old.
    for second in [2, 299, 300, 599, 2 * WINDOW] {
        for question in &questions {
            assert_eq!(status(&mut server, question, at(second)), Status::Done, "{second}");
        }
    }
    for question in &questions {
        assert_eq!(status(&mut server, question, at(2 * WINDOW + 1)), Status::Clock);
    }
    assert_eq!((server.state().number(), server.state().revocations().len()), (number, 0));
    assert!(server.state().find(&terms).is_none());
    assert_eq!((server.counters().orders, server.counters().orders_repeated), (6, 30));
    // The holder orders it anew.
    let again = order(&mut server, &whole, orders[0].0, 9, at(2 * WINDOW)).expect("acknowledged");
    assert_eq!((again.status, server.state().find(&terms).is_some()), (Status::Done, true));
}

/// A copy of one order, and a holder that orders all the time, use up nothing of others.
#[test]
fn neither_copies_of_an_order_nor_one_holders_own_keep_others_from_revoking() {
    let (mut server, [whole, first, second]) = with_delegates();
    open_account(&mut server, 9);
    let stranger = grant(&mut server, terms(9));
    assert!(server.prepare(at(0).unix, u32::MAX));
    let now = at(0);
    let captured = Ordering::new(stranger.clone(), Order::RevokeEpoch, [1; 4], epoch_at(now), now.unix).question(1);
    for _ in 0..10_000 {
        assert!(!reply(&mut server, &captured, Transport::Tcp, now).is_empty());
    }
    assert_eq!((server.counters().orders, server.counters().orders_repeated), (1, 9_999));
    // One that is refused is so each time, and its holder's other orders are not.
    let foreign = Order::Delegate { id: id(4), prefix: prefix("2001:db8::/32"), until: None };
    let captured = Ordering::new(stranger.clone(), foreign, [2; 4], epoch_at(now), now.unix);
    for _ in 0..1_000 {
        let answer = reply(&mut server, &captured.question(2), Transport::Tcp, now);
        let acknowledged = captured.read(&answer, 2).expect("an answer").expect("acknowledged");
        assert_eq!(acknowledged.status, Status::NotAllowed);
    }
    let own = order(&mut server, &stranger, Order::RevokeDelegation { id: id(1), sub: None }, 3, now);
    assert_eq!(
        (own.map(|acknowledged| acknowledged.status), server.counters().orders_refused),
        (Some(Status::Done), 1)
    );
    // A delegate orders as fast as it can.
    let sub = |number: u32| Order::RevokeDelegation { id: id(7), sub: Some(id(number)) };
    let statuses =
        (0..250).map(|n| order(&mut server, &first, sub(n), n as u8, now).map(|acknowledged| acknowledged.status));
    let statuses: Vec<_> = statuses.collect();
    let done = statuses.iter().filter(|status| **status == Some(Status::Done)).count();
    assert_eq!(done, 20);
    assert!(statuses[done..].iter().all(|status| *status == Some(Status::Busy)), "who is over is told so");
    assert_eq!(server.counters().orders_busy, 230);
    // Another delegate, and the principal itself.
    let of_second = Order::RevokeDelegation { id: id(8), sub: Some(id(1)) };
    assert_eq!(
        order(&mut server, &second, of_second, 1, now).map(|acknowledged| acknowledged.status),
        Some(Status::Done)
    );
    let own = Order::RevokeDelegation { id: id(7), sub: None };
    assert_eq!(order(&mut server, &whole, own, 2, now).map(|acknowledged| acknowledged.status), Some(Status::Done));
    // A second later there are two more.
    let later = (0..9).filter(|n| {
        order(&mut server, &first, sub(1_000 + n), *n as u8, at(1))
            .is_some_and(|acknowledged| acknowledged.status == Status::Done)
    });
    assert_eq!(later.count(), 2);
}

#[test]
fn a_clock_that_is_ahead_for_once_lets_no_revocation_out_of_the_list_or_the_records() {
    let (mut server, credential) = one();
    order(&mut server, &credential, Order::RevokeEpoch, 1, at(0)).expect("acknowledged");
    let year = 365 * 86_400;
    let listed = |server: &KeyServer, second| server.state().listed(NOW + second).count();
    assert_eq!((listed(&server, 0), listed(&server, year)), (1, 1));
    // As many as are looked through for what has expired, and changes by the wrong clock, the last one too.
    for number in 0..1_100 {
        let entry = Revocation { principal: principal(8), delegation: Some((id(number), None)), epoch: None };
        let is_ahead = number % 100 == 22 || number == 1_099;
        change(&mut server, ChangeBody::Revoke(entry), if is_ahead { at(year) } else { at(1) });
    }
    let epoch = epoch_at(at(0));
    assert!(server.state().is_revoked(&credential.terms, epoch));
    assert_eq!(listed(&server, year), 1_101);
    // Somebody starts meanwhile.
    let restored = reloaded(server.state());
    assert!(restored.is_revoked(&credential.terms, epoch));
    assert_eq!(restored.listed(NOW + year).count(), 1_101);
    assert_eq!(direct(&mut server, &credential, epoch, at(2)).0, Err(LookupFailure::Denied(Denial::Revoked)));
    // By time that has passed in truth it goes, from the list and from the records.
    for number in 0..3_000 {
        let entry = Revocation { principal: principal(8), delegation: Some((id(10_000 + number), None)), epoch: None };
        change(&mut server, ChangeBody::Revoke(entry), at(year));
    }
    assert_eq!((listed(&server, year), listed(&server, 0)), (4_100, 4_100), "swept out");
    assert!(!server.state().is_revoked(&credential.terms, epoch));
}

#[test]
fn grants_with_short_epochs_keep_no_others_from_their_handles() {
    const OTHERS: u32 = 2_000;
    let mut server = server_with(&[]);
    (1..=OTHERS).for_each(|number| open_account(&mut server, number));
    let mut long = Vec::new();
    for number in 1..=OTHERS {
        // Half of all have epochs of 16 seconds, whose tables cannot be made in time.
        grant(&mut server, Terms { interval: interval(4), ..terms(number) });
        if number % 2 == 0 {
            long.push(grant(&mut server, terms(number)));
        }
    }
    // Fifty handles a second: those of a short epoch need 40 s.
    for second in 0..400 {
        server.prepare(at(second).unix, 50);
    }
    let now = at(400);
    for credential in [&long[0], &long[long.len() - 1]] {
        assert!(direct(&mut server, credential, epoch_at(now), now).0.is_ok());
    }
}

#[test]
fn slots_of_grants_with_other_epochs_cost_next_to_nothing() {
    const OTHERS: u32 = 3_200;
    let mut server = server_with(&[]);
    for number in 1..=OTHERS {
        open_account(&mut server, number);
        grant(&mut server, terms(number));
    }
    let short = grant(&mut server, Terms { interval: interval(4), ..terms(1) });
    // A hundred of work for each of its tables, and one for each handle of the others' three.
    let most = 3 * (OTHERS / 32 + 1) + 3 * OTHERS;
    assert!(!server.prepare(at(0).unix, most / 10) && server.prepare(at(0).unix, most));
    assert!(direct(&mut server, &short, (NOW >> 4) as u32, at(0)).0.is_ok());
}

#[test]
fn a_server_follows_anothers_changes_and_notices_one_that_was_set_back() {
    let (mut writer, mut follower) = (server_with(&[]), server_with(&[]));
    let mut changes = Vec::new();
    for number in 1..6 {
        let body = ChangeBody::Account { principal: principal(number), generation: 0, name: format!("c{number}") };
        changes.push(change(&mut writer, body, at(0)));
    }
    assert_eq!(follower.apply(&changes[1]), Err(ChangeError::Gap { held: 0, got: 2 }));
    for change in &changes[..4] {
        follower.apply(change).expect("the next");
    }
    assert_eq!(follower.apply(&changes[3]), Err(ChangeError::Gap { held: 4, got: 4 }));
    // A writer from an old copy: the same numbers for something else, and then more.
    let mut old = server_with(&[]);
    changes[..3].iter().for_each(|change| old.apply(change).expect("the next"));
    let close = |number| ChangeBody::Close { principal: principal(number) };
    change(&mut old, close(1), at(9));
    let forked = change(&mut old, close(2), at(9));
    assert_eq!(follower.apply(&forked), Err(ChangeError::Fork(5)));
    // Another's signature.
    let state = State::new(provider());
    let stranger = SigningKey::from_seed(&seed(30, 1));
    let body = ChangeBody::Account { principal: principal(1), generation: 0, name: String::new() };
    let foreign = state.sign(body, &stranger, at(0).unix).expect("possible");
    assert_eq!(server_with(&[]).apply(&foreign), Err(ChangeError::Signature(1)));
    follower.apply(&changes[4]).expect("the next");
    assert_eq!((follower.state().number(), follower.state().accounts()), (5, 5));
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
    let refused = server.sign(back, now.unix);
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

/// The name and the capability of a principal among many; epochs are of two lengths.
fn among_many(number: u32) -> (String, Terms) {
    let interval = interval(if number.is_multiple_of(2) { 12 } else { 10 });
    (format!("customer {number:07}"), Terms { interval, ..terms(number) })
}

/// A server of so many principals that followed every change.
fn followed(count: u32) -> KeyServer {
    let mut server = server_with(&[]);
    for number in 0..count {
        let (name, terms) = among_many(number);
        change(&mut server, ChangeBody::Account { principal: principal(number), generation: 0, name }, at(0));
        change(&mut server, ChangeBody::Grant(Grant { terms, not_before: 0, not_after: u64::MAX }), at(0));
    }
    server
}

/// The same from rows, which are made one by one: twenty million changes are signed and verified for half an hour.
fn restored(count: u32) -> KeyServer {
    let account =
        |number: u32| Row::Account { principal: principal(number), generation: 0, name: among_many(number).0 };
    let grant = |number: u32| Row::Grant(Grant { terms: among_many(number).1, not_before: 0, not_after: u64::MAX });
    let number = u64::from(count) * 2;
    let seconds = |most: usize| vec![at(0).unix.secs(); most.min(count as usize * 2)];
    let end = ChangesEnd { number, last: [9; 32], issued: seconds(TIMES), times: seconds(256) };
    let rows = (0..count).map(account).chain((0..count).map(grant));
    let state = State::from_rows::<RowError>(provider(), &end, rows.map(Ok)).expect("rows of a state");
    let mut server = server_with(&[]);
    server.replace(state);
    server
}

/// Accounts with names, whose capabilities have epochs of two lengths. `make soak` has ten million, and looks at the process's memory as well.
#[test]
fn state_for_each_principal_stays_below_two_hundred_octets() {
    let memory = |mut server: KeyServer| {
        assert!(server.prepare(at(0).unix, u32::MAX));
        (server.state().grants(), server.memory())
    };
    assert_eq!(memory(restored(5_000)), memory(followed(5_000)), "it does not matter how the state came");
    let count: u32 = std::env::var("WAYLEAVE_PRINCIPALS").ok().and_then(|text| text.parse().ok()).unwrap_or(100_000);
    let before = resident();
    let mut server = restored(count);
    assert_eq!((server.state().accounts(), server.state().grants()), (count as usize, count as usize));
    assert!(server.prepare(at(0).unix, u32::MAX));
    let each = server.memory() / count as usize;
    println!("{each} octets for each of {count} principals");
    assert!(each < 200, "{each} octets");
    // What else the tests of this process hold is little against millions of principals.
    if count >= 1_000_000 {
        let each = resident().saturating_sub(before) / count as usize;
        println!("{each} octets of the process's memory");
        assert!(each < 200, "{each} octets of the process's memory");
    }
}

/// Octets of memory that this process has (`/proc/self/statm`, pages of 4 KiB).
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").expect("of this process");
    text.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).expect("a number") * 4096
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

/// A question as a resolver puts it, with an OPT record of these options.
pub(super) fn plain_question(name: &str, record: RecordType, options: Option<Vec<(u16, Vec<u8>)>>) -> Message {
    let mut question = Message::new(9, MessageType::Query, OpCode::Query);
    let name = Name::from_ascii(format!("{}.", name.trim_end_matches('.'))).expect("a name");
    question.add_query(Query::query(name, record));
    if let Some(options) = options {
        let mut edns = hickory_proto::op::Edns::new();
        edns.set_max_payload(1_232);
        options.into_iter().for_each(|(code, octets)| edns.options_mut().insert(EdnsOption::Unknown(code, octets)));
        question.set_edns(edns);
    }
    question
}

pub(super) fn lookup_name(credential: &Credential, epoch: u32) -> String {
    Lookup::new(LookupConfig { credential: credential.clone(), epoch, servers: vec![], seed: seed(1, 1) }).name()
}

#[test]
fn a_sealed_answer_has_the_octets_that_the_dns_codec_gives_it() {
    let (mut server, credential) = one();
    let name = lookup_name(&credential, epoch_at(at(0)));
    let cookie = |octets: Vec<u8>| Some(vec![(10, octets)]);
    let padded = Some(vec![(10, vec![3; 8]), (12, vec![0; 100])]);
    let mut given = None;
    for (what, name, options, transport, has_cookie) in [
        ("no OPT record", name.clone(), None, Transport::Tcp, false),
        ("an OPT record", name.clone(), Some(vec![]), Transport::Tcp, false),
        ("a cookie by TCP", name.clone(), cookie(vec![3; 8]), Transport::Tcp, true),
        ("a cookie that is malformed", name.clone(), cookie(vec![3; 7]), Transport::Tcp, false),
        ("room for a cookie", name.clone(), padded, Transport::Udp, true),
        ("letters of the other case", name.to_ascii_uppercase(), Some(vec![(12, vec![0; 120])]), Transport::Udp, false),
    ] {
        let mut question = plain_question(&name, RecordType::TXT, options);
        for recursion_desired in [false, true] {
            question.metadata.recursion_desired = recursion_desired;
            let octets = reply(&mut server, &question.to_vec().expect("encoded"), transport, at(0));
            let answer = Message::from_vec(&octets).expect("a message");
            assert_eq!((answer.answers.len(), answer.metadata.recursion_desired), (1, recursion_desired), "{what}");
            assert!(answer.metadata.authoritative && !answer.metadata.truncation, "{what}");
            assert_eq!(answer.queries, question.queries, "{what}");
            let option = answer.edns.as_ref().and_then(|edns| edns.option(10.into()).cloned());
            assert_eq!((answer.edns.is_some(), option.is_some()), (question.edns.is_some(), has_cookie), "{what}");
            if let Some(EdnsOption::Unknown(_, octets)) = option {
                given = Some(octets);
            }
            assert_eq!(answer.to_vec().expect("encoded"), octets, "{what}");
        }
    }
    // A cookie that was given is good by UDP, without padding.
    let question = plain_question(&name, RecordType::TXT, cookie(given.expect("a cookie"))).to_vec().expect("encoded");
    let octets = reply(&mut server, &question, Transport::Udp, at(1));
    assert!(octets.len() > question.len());
    assert_eq!(Message::from_vec(&octets).expect("a message").to_vec().expect("encoded"), octets);
}

/// Each kind of answer, by the counter that it moves, at every length of its question.
#[test]
fn without_a_cookie_no_kind_of_answer_is_longer_than_its_question() {
    let busy = LookupRule { name: "busy".into(), principals: vec![8], retry_secs: 60, ..LookupRule::default() };
    let mut server = limited_server(&[busy], 0);
    let now = at(0);
    let epoch = epoch_at(now);
    (7..=11).for_each(|number| open_account(&mut server, number));
    let [held, denied, revoked, used_up] = [7, 8, 9, 11].map(|number| grant(&mut server, terms(number)));
    let elsewhere = Terms { waypoint: "198.51.100.2".parse().expect("an address"), ..terms(10) };
    let (keyless, past) = (grant(&mut server, elsewhere), Terms { width: Width::Narrow, ..terms(10) });
    change(&mut server, ChangeBody::Grant(Grant { terms: past, not_before: 0, not_after: 1 }), now);
    let past = Credential { zone: zone(), terms: past, key: provider().account(principal(10), 0).master(&past) };
    let entry = Revocation { principal: principal(9), delegation: None, epoch: None };
    change(&mut server, ChangeBody::Revoke(entry), now);
    let quota = VolumeQuota { soft: None, hard: Some(1) };
    change(&mut server, ChangeBody::SetQuota { principal: principal(11), quota }, now);
    let month = Month::of(NOW).begin();
    change(
        &mut server,
        ChangeBody::UseUpQuota { payer: RatePayer { principal: principal(11), delegation: None }, month },
        now,
    );
    assert!(server.prepare(now.unix, u32::MAX));
    let stranger = Credential { key: MasterKey::new(Key128::new([1; 16])), ..held.clone() };
    let ordered = |credential: &Credential, order, nonce, unix| {
        let ordering = Ordering::new(credential.clone(), order, [nonce; 4], epoch, unix);
        Message::from_vec(&ordering.question(1)).expect("one").queries[0].name().to_ascii()
    };
    let late = UnixTime((NOW + WINDOW + 1) * 1_000_000);
    let text = RecordType::TXT;
    let delegate = Order::Delegate { id: id(4), prefix: "203.0.113.0/24".parse().expect("a prefix"), until: None };
    let questions = [
        ("secrets", lookup_name(&held, epoch), text),
        ("not_now", lookup_name(&denied, epoch), text),
        ("revoked", lookup_name(&revoked, epoch), text),
        ("ended", lookup_name(&past, epoch), text),
        ("used_up", lookup_name(&used_up, epoch), text),
        ("unknown", lookup_name(&stranger, epoch), text),
        ("wrong_epoch", lookup_name(&held, epoch + 2), text),
        ("no_key", lookup_name(&keyless, epoch), text),
        ("static_records", ZONE.to_owned(), text),
        ("static_records", ZONE.to_owned(), RecordType::SOA),
        ("static_records", ZONE.to_owned(), RecordType::NS),
        ("static_records", format!("ns.{ZONE}"), RecordType::A),
        ("static_records", format!("ns.{ZONE}"), RecordType::AAAA),
        ("nothing", format!("nothing.{ZONE}"), text),
        ("nothing", lookup_name(&held, epoch), RecordType::ANY),
        ("foreign", "example.org".to_owned(), text),
        ("orders", ordered(&held, Order::RevokeEpoch, 1, now.unix), text),
        ("orders_forged", ordered(&stranger, Order::RevokeEpoch, 2, now.unix), text),
        ("orders_clock", ordered(&held, Order::RevokeEpoch, 3, late), text),
        ("orders_refused", ordered(&revoked, delegate, 4, now.unix), text),
    ];
    let counted = |server: &KeyServer, what: &str| {
        server.counters().all().into_iter().find(|(name, _)| *name == what).expect("a counter").1
    };
    let check = |server: &mut KeyServer, what: &str, octets: &[u8]| {
        let answer = reply(server, octets, Transport::Udp, now);
        assert!(answer.len() <= octets.len(), "{what}: {} for {}", answer.len(), octets.len());
        answer
    };
    for (what, name, record) in &questions {
        let before = counted(&server, what);
        let mut lengths = Vec::new();
        for padding in (0..200).map(|octets| Some(vec![(12, vec![0; octets])])).chain([None, Some(vec![])]) {
            let question = plain_question(name, *record, padding).to_vec().expect("encoded");
            lengths.push(check(&mut server, what, &question).len());
        }
        assert!(counted(&server, what) > before, "{what} was answered");
        assert!(lengths.iter().max() > lengths.iter().min(), "{what}: cut and whole");
    }
    // Messages that are no question, and a version of EDNS that nobody has.
    let good = plain_question(&questions[0].1, text, Some(vec![]));
    let mut update = good.clone();
    update.metadata.op_code = OpCode::Update;
    let mut two = good.clone();
    two.queries.push(good.queries[0].clone());
    let mut none = good.clone();
    none.queries.clear();
    let mut next = good.clone();
    next.edns.iter_mut().for_each(|edns| {
        edns.set_version(1);
    });
    for (what, message) in [("update", update), ("two questions", two), ("no question", none), ("EDNS 1", next)] {
        let octets = message.to_vec().expect("encoded");
        assert!(!check(&mut server, what, &octets).is_empty(), "{what}");
    }
    let whole = good.to_vec().expect("encoded");
    (0..whole.len()).for_each(|length| drop(check(&mut server, "a part", &whole[..length])));
    // More orders than one holder may give at once.
    for nonce in 10..100 {
        let name = ordered(&held, Order::RevokeEpoch, nonce, now.unix);
        let question = plain_question(&name, text, Some(vec![(12, vec![0; 150])])).to_vec().expect("encoded");
        check(&mut server, "orders_busy", &question);
    }
    // What is over the limit of a source.
    let mut limited = limited_server(&[], 1);
    assert!(limited.prepare(now.unix, u32::MAX));
    let question = plain_question(&lookup_name(&stranger, epoch_at(now)), text, Some(vec![(12, vec![0; 150])]));
    let question = question.to_vec().expect("encoded");
    for _ in 0..6 {
        check(&mut limited, "unknown", &question);
    }
    let ServerCounters { rate_slipped, rate_dropped, .. } = limited.counters();
    assert_eq!((rate_slipped, rate_dropped), (2, 2));
    // No kind of answer was left out.
    let seen = |name: &str| counted(&server, name) + counted(&limited, name) > 0;
    for (name, _) in server.counters().all() {
        assert!(seen(name), "{name} was not asked for");
    }
}

#[test]
fn a_source_prefix_over_its_limit_has_truncated_answers_and_silence_and_goes_on_by_tcp_or_with_a_cookie() {
    let mut server = limited_server(&[], 10);
    open_account(&mut server, 7);
    let credential = grant(&mut server, terms(7));
    assert!(server.prepare(at(0).unix, u32::MAX));
    let name = lookup_name(&credential, epoch_at(at(0)));
    let padded = Some(vec![(10, vec![1; 8]), (12, vec![0; 150])]);
    let question = plain_question(&name, RecordType::TXT, padded).to_vec().expect("encoded");
    let client = |address: &str| Client { address: address.parse().expect("an address"), transport: Transport::Udp };
    let ask = |server: &mut KeyServer, octets: &[u8], from: Client, secs| match server.serve(octets, from, at(secs)) {
        Served::Reply(octets) => Some(Message::from_vec(&octets).expect("a message")),
        Served::Nothing => None,
        Served::Order(_) | Served::Status(_) => panic!("no order"),
    };
    let kind = |answer: &Option<Message>| match answer {
        Some(answer) if answer.metadata.truncation => "truncated",
        Some(answer) if answer.answers.len() == 1 => "answered",
        Some(_) => "empty",
        None => "silence",
    };
    // Two seconds' worth at once; hosts of one prefix share it.
    let mut cookie = None;
    for at in 0..20u8 {
        let answer = ask(&mut server, &question, client(&format!("192.0.2.{at}")), 0);
        assert_eq!(kind(&answer), "answered");
        if at == 9 {
            cookie = answer.and_then(|answer| answer.edns?.option(10.into()).cloned());
        }
    }
    for expected in ["silence", "truncated", "silence", "truncated"] {
        assert_eq!(kind(&ask(&mut server, &question, client("192.0.2.9"), 0)), expected);
    }
    assert_eq!(kind(&ask(&mut server, &question, client("192.0.3.9"), 0)), "answered", "another prefix");
    let tcp = Client { transport: Transport::Tcp, ..client("192.0.2.9") };
    assert_eq!(kind(&ask(&mut server, &question, tcp, 0)), "answered");
    // The cookie that it was given, at its own address alone.
    let Some(EdnsOption::Unknown(_, cookie)) = cookie else { panic!("a cookie") };
    let with = plain_question(&name, RecordType::TXT, Some(vec![(10, cookie)])).to_vec().expect("encoded");
    for _ in 0..40 {
        assert_eq!(kind(&ask(&mut server, &with, client("192.0.2.9"), 0)), "answered");
    }
    assert_eq!(kind(&ask(&mut server, &with, client("192.0.2.10"), 0)), "silence", "another's cookie");
    // What is malformed, foreign or unknown counts as well, and what is malformed is never truncated.
    let malformed = [&[0; 12][..], &[0xff; 20]].concat();
    let malformed = [&[9, 9, 1, 0, 0, 9][..], &malformed[6..]].concat();
    (0..4).for_each(|_| assert_eq!(kind(&ask(&mut server, &malformed, client("192.0.2.9"), 0)), "silence"));
    // An order over the limit is not carried out: it comes by TCP.
    let number = server.state().number();
    let ordering = Ordering::new(credential.clone(), Order::RevokeEpoch, [1; 4], epoch_at(at(0)), at(0).unix);
    for _ in 0..2 {
        let answer = ask(&mut server, &ordering.question(3), client("192.0.2.9"), 0);
        assert!(matches!(kind(&answer), "silence" | "truncated"));
    }
    assert_eq!(server.state().number(), number);
    // Tokens come back with time, and a look-up needs no more than one round trip by UDP or one by TCP.
    assert_eq!(kind(&ask(&mut server, &question, client("192.0.2.9"), 1)), "answered");
    let flood =
        |server: &mut KeyServer| (0..99).for_each(|_| drop(server.serve(&question, client("192.0.2.9"), at(1))));
    flood(&mut server);
    let (outcome, _) = direct(&mut server, &credential, epoch_at(at(1)), at(1));
    assert!(outcome.is_ok(), "{outcome:?}");
    let ServerCounters { rate_slipped, rate_dropped, .. } = server.counters();
    assert!(rate_slipped > 40 && rate_dropped > 40);
    // Without a limit from now on.
    server.reload(HashMap::from([(WAYPOINT, WaypointKeys::new(waypoint_key()))]), LookupPolicy::default(), 0);
    assert_eq!(kind(&ask(&mut server, &question, client("192.0.2.9"), 1)), "answered");
}

#[test]
fn an_answer_that_is_repeated_is_the_same_and_never_outlives_its_grant_its_policy_or_its_waypoints_key() {
    let (mut server, credential) = one();
    let now = at(0);
    let epoch = epoch_at(now);
    let question = plain_question(&lookup_name(&credential, epoch), RecordType::TXT, None).to_vec().expect("encoded");
    let ask = |server: &mut KeyServer| reply(server, &question, Transport::Tcp, now);
    let first = ask(&mut server);
    assert_eq!(ask(&mut server), first);
    assert_eq!(server.counters().secrets, 2);
    // Only the TTL follows the clock.
    let mut later = Message::from_vec(&reply(&mut server, &question, Transport::Tcp, at(9))).expect("a message");
    later.answers[0].ttl += 9;
    assert_eq!(later.to_vec().expect("encoded"), first);
    // Another key of the waypoint makes another secret.
    let other = WaypointKey::new(&Key128::new([8; 16]));
    let reload = |server: &mut KeyServer, key| {
        server.reload(HashMap::from([(WAYPOINT, WaypointKeys::new(key))]), LookupPolicy::default(), 0);
    };
    reload(&mut server, other);
    let changed = ask(&mut server);
    assert_ne!(changed, first);
    assert_eq!(ask(&mut server), changed);
    reload(&mut server, waypoint_key());
    assert_eq!(ask(&mut server), first);
    let outcome = |server: &mut KeyServer| direct(server, &credential, epoch, now).0;
    let busy = LookupRule { name: "busy".into(), retry_secs: 60, ..LookupRule::default() };
    let policy = LookupPolicy::new(&[busy]).expect("rules");
    server.reload(HashMap::from([(WAYPOINT, WaypointKeys::new(waypoint_key()))]), policy, 0);
    let denied = |denial| Err(LookupFailure::Denied(denial));
    assert_eq!(outcome(&mut server), denied(Denial::NotNow { retry_secs: 60 }));
    reload(&mut server, waypoint_key());
    assert!(outcome(&mut server).is_ok());
    let entry = Revocation { principal: principal(7), delegation: None, epoch: None };
    change(&mut server, ChangeBody::Revoke(entry), now);
    assert_eq!(outcome(&mut server), denied(Denial::Revoked));
    change(&mut server, ChangeBody::Lift(entry), now);
    assert!(outcome(&mut server).is_ok());
    // Its slot is given to another grant.
    change(&mut server, ChangeBody::Withdraw(credential.terms), now);
    assert_eq!(outcome(&mut server), Err(LookupFailure::Unknown));
    let another = grant(&mut server, Terms { width: Width::Narrow, ..terms(7) });
    assert_eq!(outcome(&mut server), Err(LookupFailure::Unknown));
    assert!(direct(&mut server, &another, epoch, now).0.is_ok());
    grant(&mut server, credential.terms);
    assert!(outcome(&mut server).is_ok());
    change(&mut server, ChangeBody::Account { principal: principal(7), generation: 1, name: "new".into() }, now);
    assert_eq!(outcome(&mut server), Err(LookupFailure::Unknown));
}

/// Who has used up a quota gets no secrets of the month's key epochs, and what it looked up before is on the list for routers; who raises
/// the quota ends that, and lifts nothing that others revoked.
#[test]
fn a_quota_that_is_used_up_ends_with_the_month_or_when_it_is_raised() {
    let (server, credential) = &mut one();
    let month = Month::of(NOW);
    let epoch = |second: u64| (second >> credential.terms.interval.exponent()) as u32;
    let quota =
        |hard| ChangeBody::SetQuota { principal: principal(7), quota: VolumeQuota { soft: None, hard: Some(hard) } };
    let own = RatePayer { principal: principal(7), delegation: None };
    let use_up = |month: Month| ChangeBody::UseUpQuota { payer: own, month: month.begin() };
    let signed = |server: &KeyServer, body| server.sign(body, at(0).unix).map(drop);
    assert_eq!(signed(server, use_up(month)), Err(ChangeError::NoQuota));
    assert_eq!(signed(server, quota(0)), Err(ChangeError::QuotaTerms));
    change(server, quota(1_000), at(0));
    assert_eq!(signed(server, ChangeBody::UseUpQuota { payer: own, month: NOW }), Err(ChangeError::NoQuota));
    let ask = |server: &mut KeyServer, second: u64| {
        let now = at(second - NOW);
        assert!(server.prepare(now.unix, u32::MAX));
        direct(server, credential, epoch(second), now).0.map(drop)
    };
    let listed = |server: &KeyServer| {
        let mut all: Vec<_> = server.state().listed(NOW).collect();
        all.sort_unstable();
        all
    };
    assert_eq!((ask(server, NOW), listed(server)), (Ok(()), Vec::new()));
    // The thief's secret is revoked by its holder meanwhile: that stays.
    let current = epoch(NOW);
    let entry = |epoch| Revocation {
        principal: principal(7),
        delegation: None,
        epoch: Some((credential.terms.interval, epoch)),
    };
    change(server, ChangeBody::Revoke(entry(current - 1)), at(0));
    change(server, use_up(month), at(0));
    assert_eq!(signed(server, use_up(month)), Err(ChangeError::NoQuota), "it is known");
    let used_up = Err(LookupFailure::Denied(Denial::UsedUp));
    assert_eq!(ask(server, NOW), used_up);
    assert!(server.counters().used_up > 0);
    assert_eq!(listed(server), [entry(current - 1), entry(current), entry(current + 1)]);
    assert_eq!(reloaded(server.state()).listed(NOW).count(), 3);
    // The same or less is used up too; more is not, nor none.
    change(server, quota(500), at(1));
    assert_eq!(ask(server, NOW), used_up);
    change(server, quota(501), at(1));
    assert_eq!((ask(server, NOW), listed(server)), (Ok(()), vec![entry(current - 1)]));
    change(server, use_up(month), at(1));
    change(server, ChangeBody::EndQuota { principal: principal(7) }, at(2));
    assert_eq!((ask(server, NOW), listed(server)), (Ok(()), vec![entry(current - 1)]));
    // A key epoch counts for the month in which it begins.
    change(server, quota(500), at(2));
    change(server, use_up(month), at(2));
    let next = month.next().begin();
    let length = 1 << credential.terms.interval.exponent();
    let first = u64::from(epoch(next + length - 1)) << credential.terms.interval.exponent();
    assert_eq!(ask(server, first - 1), used_up);
    assert_eq!(ask(server, first), Ok(()));
    assert_eq!(Month::of(first), month.next());
    // What has expired leaves the list once enough changes are of a later time, whatever one clock says.
    let late = first + 4 * length;
    assert_eq!(server.state().listed(late).count(), 3);
    (0..256).for_each(|_| drop(change(server, quota(500), at(late - NOW))));
    assert_eq!(server.state().listed(late).count(), 0);
}
