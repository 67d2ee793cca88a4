//! Holds what roles log of each event, and what `show events` has of it, to a file: a change of either is seen in it.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};
use wayleave_attestation::leaf::{KeyId, LeafKey};
use wayleave_attestation::member::MemberAttestationEvent;
use wayleave_attestation::pipeline::policy::VerdictClass;
use wayleave_attestation::pipeline::{KeyEnd, KeyWait, ProcessEvent, RouteEvent, WaitReason};
use wayleave_attestation::proxy::session_pair::Side;
use wayleave_attestation::proxy::{Event as ProxyEvent, PairEvent};
use wayleave_attestation::report::Report;
use wayleave_attestation::sign::AttestationError;
use wayleave_attestation::suite::SuiteId;
use wayleave_bgp::Nlri;
use wayleave_bgp::session::{Cause, Ended, State};
use wayleave_core::{Asn, VerdictKind};
use wayleave_route_server::member::MemberEvent;
use wayleave_route_server::party::PartyEvent;
use wayleave_route_server::versions::Versions;
use wayleave_runtime::identity::Fingerprint;

use super::daemon::reload_failed;
use super::link_faults::LinkEndpoint;
use super::member::io::ExchangeLabels;
use super::{attest, attestation, member, rs};
use crate::failure::Failure;
use crate::output::cell_of;

fn party_events() -> Vec<PartyEvent> {
    use wayleave_route_server::frames::Refusal;
    use wayleave_route_server::party::OlderStore;
    vec![
        PartyEvent::Agreed { objects: 7, dropped: 2, lost: 1 },
        PartyEvent::PeerPartyDown,
        PartyEvent::BadFrame { slot: Some(3), what: "3 octets short".into() },
        PartyEvent::BadFrame { slot: None, what: "3 octets short".into() },
        PartyEvent::Refused { slot: 3, version: 9, reason: Refusal::OldVersion },
        PartyEvent::Mismatch { slot: 3, version: 9 },
        PartyEvent::MissedRanking { slot: 3 },
        PartyEvent::LateRankings { slot: 3 },
        PartyEvent::Probation { slot: 3, begins: true },
        PartyEvent::Probation { slot: 3, begins: false },
        PartyEvent::Behind { slot: 3, begins: true },
        PartyEvent::Behind { slot: 3, begins: false },
        PartyEvent::Deferred { slot: 3, seconds: 60 },
        PartyEvent::OwnOrder { slot: 3, seconds: 60 },
        PartyEvent::EpochLater { seconds: 60 },
        PartyEvent::Stalled { slot: Some(3) },
        PartyEvent::Stalled { slot: None },
        PartyEvent::Expired { slot: 3 },
        PartyEvent::OtherExport { objects: 7 },
        PartyEvent::Order { number: 1, is_drawn: true },
        PartyEvent::Order { number: 1, is_drawn: false },
        PartyEvent::OlderStore(OlderStore { party: 2, holds: 10, agreed: 12 }),
        PartyEvent::OlderStores { slot: 3, took: 12, holds: 10 },
        PartyEvent::MembersRefused { why: "not signed by both operators".into() },
        PartyEvent::Format { format: 1, before: 0 },
        PartyEvent::Format { format: 0, before: 1 },
        PartyEvent::VersionsDiffer {
            slot: 3,
            told: Versions { least: 7, highest: 7 },
            ours: Versions { least: 7, highest: 8 },
        },
        PartyEvent::Engine { what: "a message of another round".into() },
    ]
}

fn member_events() -> Vec<MemberEvent> {
    use wayleave_route_server::frames::{Miss, Refusal, Rejection};
    use wayleave_route_server::member::{Alarm, Suspect};
    let new = |earlier, held| MemberEvent::NewMember { slot: 3, name: "charlie".into(), asn: 64499, earlier, held };
    let alarm = |handle: Option<&str>| Alarm {
        what: "two results for one prefix".into(),
        handle: handle.map(Into::into),
        suspects: vec![Suspect::Party(1), Suspect::Announcer(Some(4)), Suspect::Announcer(None)],
    };
    vec![
        MemberEvent::Alarm(alarm(Some("4:17"))),
        MemberEvent::Alarm(alarm(None)),
        MemberEvent::Queued { ahead: 4 },
        MemberEvent::Deferred { seconds: 60 },
        MemberEvent::OwnOrder { seconds: 60 },
        MemberEvent::Synced { objects: 7, own: 2 },
        MemberEvent::Refused { version: 9, reason: Refusal::MaxPrefix },
        MemberEvent::Column { from: 4, to: 5, objects: 7 },
        new(None, false),
        new(None, true),
        new(Some(1), false),
        new(Some(1), true),
        MemberEvent::NotAMember { slot: 3 },
        MemberEvent::OlderSet { party: 2, shown: 4, in_force: 5 },
        MemberEvent::SetsDiffer { numbers: [4, 5] },
        MemberEvent::ExportsDiffer { modes: ["direct".into(), "mpc".into()] },
        MemberEvent::NoVersion {
            parties: [Versions { least: 7, highest: 7 }, Versions { least: 8, highest: 9 }],
            ours: Versions { least: 7, highest: 8 },
        },
        MemberEvent::RankingMissed { batch: 12, why: Miss::Absent },
        MemberEvent::OutcomeOverdue { batch: 12 },
        MemberEvent::NotCompeting { routes: 2, prefix: "192.0.2.0/24".into() },
        MemberEvent::NotAnnounced { prefix: "192.0.2.0/24".into(), why: "the policy exports it to nobody".into() },
        MemberEvent::Stale { routes: 7 },
        MemberEvent::Kept { routes: 7 },
        MemberEvent::SessionDown,
        MemberEvent::Rejected { party: 1, why: Rejection::Exchange { ours: "other".into() } },
        MemberEvent::Rejected { party: 2, why: Rejection::Slot { proved: 4 } },
        MemberEvent::Rejected {
            party: 1,
            why: Rejection::Versions { ours: Versions { least: 9, highest: 10 }, later: Vec::new() },
        },
        MemberEvent::Rejected { party: 1, why: Rejection::Format { ours: 1 } },
        MemberEvent::Rejected {
            party: 2,
            why: Rejection::Told { told: Versions { least: 7, highest: 7 }, ours: Versions { least: 7, highest: 8 } },
        },
        MemberEvent::SetRefused { party: 2, why: "that does not count".into() },
    ]
}

fn route_events() -> Vec<RouteEvent> {
    let nlri = || Nlri { prefix: "192.0.2.0/24".parse().expect("a prefix"), path_id: 0 };
    let routes = || vec![nlri(), Nlri { prefix: "2001:db8::/32".parse().expect("a prefix"), path_id: 5 }];
    let report = || {
        Arc::new(Report {
            kind: VerdictKind::Invalid,
            broken: None,
            lack: None,
            hops: Vec::new(),
            tail: Vec::new(),
            prefixes: Vec::new(),
            until: None,
            in_doubt: false,
        })
    };
    vec![
        RouteEvent::Verdict { nlri: nlri(), class: VerdictClass::Gap, report: report() },
        RouteEvent::Refused { routes: routes(), class: VerdictClass::Missing, report: report() },
        RouteEvent::NotExtended { routes: routes(), error: AttestationError::NotExported },
        RouteEvent::TooLong { routes: routes(), need: 5000 },
        RouteEvent::Exhausted { routes: routes() },
        RouteEvent::NotAuthorised { routes: routes() },
        RouteEvent::NotAuthorised { routes: Vec::new() },
        RouteEvent::Faulty { routes: routes(), suite: SuiteId::KcHbs },
        RouteEvent::Failed { task: "signing", routes: routes() },
    ]
}

/// The name of a key.
fn key(number: u8) -> KeyId {
    LeafKey::of(SuiteId::KcEd25519, &[number; 32]).id()
}

fn process_events() -> Vec<ProcessEvent> {
    let waits = |reason, until| ProcessEvent::KeyWaits(KeyWait { suite: SuiteId::KcHbs, reason, until });
    vec![
        ProcessEvent::KeyEnds(KeyEnd { suite: SuiteId::KcHbs, ends: 1_800_000_000, days: 9 }),
        waits(WaitReason::FirstSlotAhead, Some(1_800_000_000)),
        waits(WaitReason::SlotSpent, None),
        waits(WaitReason::ClockNotSynchronised, None),
        waits(WaitReason::StoreIsAhead, Some(1_800_000_000)),
        ProcessEvent::KeySigns(SuiteId::KcHbs),
        ProcessEvent::KeysUnregistered { asn: Asn(64499), keys: vec![key(1)] },
        ProcessEvent::OtherKeySigns { key: key(2), before: Some(key(1)) },
        ProcessEvent::ClockStepped(-30),
        ProcessEvent::ClockInDoubt(None),
    ]
}

fn attestation_events() -> Vec<MemberAttestationEvent> {
    let routes =
        |announcer| route_events().into_iter().map(move |event| MemberAttestationEvent::Route { announcer, event });
    let mut events: Vec<MemberAttestationEvent> = routes(Some(3)).collect();
    events.extend(process_events().into_iter().map(MemberAttestationEvent::Process));
    events.extend([
        MemberAttestationEvent::Suspect(3),
        MemberAttestationEvent::OutOfMemory(3),
        MemberAttestationEvent::OtherKeysListed,
    ]);
    events
}

fn proxy_events() -> Vec<ProxyEvent> {
    let mut events: Vec<ProxyEvent> =
        route_events().into_iter().map(|event| ProxyEvent::Route { pair: 0, event }).collect();
    events.extend(process_events().into_iter().map(ProxyEvent::Process));
    let nlri = || Nlri { prefix: "192.0.2.0/24".parse().expect("a prefix"), path_id: 0 };
    let ended = || Ended { connection: None, state: State::Established, cause: Cause::HoldTimerExpired, retain: None };
    events.extend([
        ProxyEvent::Older { pair: 0, nlri: nlri(), origin: Asn(64499), have: 5, newest: 7 },
        ProxyEvent::Suspect(0),
        ProxyEvent::NewKeys { keys: vec![key(2)], signs: Some(key(1)), is_bound: true },
        ProxyEvent::NewKeys { keys: vec![key(2)], signs: Some(key(2)), is_bound: true },
        ProxyEvent::NewKeys { keys: vec![key(2)], signs: None, is_bound: true },
        ProxyEvent::NewKeys { keys: vec![key(2)], signs: None, is_bound: false },
        ProxyEvent::Pair(0, PairEvent::Down(Side::Outside, ended())),
        ProxyEvent::Pair(0, PairEvent::OverLimit(Side::Inside, nlri())),
        ProxyEvent::Pair(0, PairEvent::OutOfMemory(Side::Inside)),
    ]);
    events
}

fn exchange() -> ExchangeLabels {
    let party = |number: u32| LinkEndpoint {
        name: format!("party {number}"),
        address: format!("192.0.2.{number}:4100"),
        address_setting: "`[[exchange.party]] address`",
        pin_setting: "`[[exchange.party]] tls`",
        own: Fingerprint([0; 32]),
        unknown_there: "its operator adds it",
        other_pin: None,
    };
    ExchangeLabels { name: "example".to_owned(), slot: 3, parties: [party(1), party(2)] }
}

/// The file, which `WAYLEAVE_WRITE=1` writes anew.
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../test-data/logs/events.txt");

#[test]
fn lines_and_entries_of_events_are_those_of_the_file() {
    let mut text = String::new();
    let mut put = |role: &str, lines: Vec<String>| {
        let _ = writeln!(text, "# {role}\n{}", lines.concat());
    };
    put("party", party_events().iter().map(|event| rs::io::line(event, "the peer closed it").to_string()).collect());
    let exchange = exchange();
    let of_member = |event: &MemberEvent| member::io::line(event, &exchange, "the peer closed it").to_string();
    put("member", member_events().iter().map(of_member).collect());
    put(
        "attestation of a member",
        attestation_events().iter().map(|event| attestation::line(event).to_string()).collect(),
    );
    let names = ["east".to_owned()];
    put(
        "attesting proxy",
        proxy_events().into_iter().map(|event| attest::io::line(event, &names).to_string()).collect(),
    );
    let failure = Failure::new("unknown field `lsten`").help("it is `listen`");
    put("every role", vec![reload_failed(Path::new("party1.toml"), &failure).to_string()]);
    for entry in text.lines().filter_map(|line| line.strip_prefix("    ")) {
        let entry: Map<String, Value> = serde_json::from_str(entry).expect("an entry is JSON");
        for (name, value) in entry.iter().filter(|(_, value)| value.as_u64().is_some_and(|number| number < 1 << 30)) {
            assert_eq!(cell_of(name, value), value.to_string(), "`{name}` would be shown as a time: {entry:?}");
        }
    }
    if std::env::var_os("WAYLEAVE_WRITE").is_some() {
        std::fs::write(FILE, &text).expect("written");
    }
    let kept = std::fs::read_to_string(Path::new(FILE)).expect("the file");
    for (number, (new, old)) in text.lines().zip(kept.lines()).enumerate() {
        assert_eq!(new, old, "line {} of test-data/logs/events.txt; WAYLEAVE_WRITE=1 writes it anew", number + 1);
    }
    assert_eq!(text.lines().count(), kept.lines().count());
}
