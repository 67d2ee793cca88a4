//! Holds what roles log of each event, and what `show events` has of it, to a file: a change of either is seen in it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use wayleave_attestation::clock_doubt::ClockDoubt;
use wayleave_attestation::grant::GrantError;
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
use wayleave_bgp::rib::RejectedRoutes;
use wayleave_bgp::session::{Cause, ConnectionId, Ended, Established, HoldTime, State};
use wayleave_bgp::{Action, AttributeCode, Attributes, EncodeError, Fault, Problem, SessionParams};
use wayleave_control::capability::{
    ChangeBody, LookupFailure, Position, RatePayer, RouterClientEvent, RouterEvent, SharedRate, Terms, UsageRefusal,
};
use wayleave_control::consent::{ConsentServerEvent, HopFailure, HopFault};
use wayleave_control::database::Refusal;
use wayleave_control::leases::Offline;
use wayleave_control::node::NodeEvent;
use wayleave_control::path::{PathFailure, PathServerEvent};
use wayleave_control::realm::{
    Base, Freshness, Grants, JoinError, KeyRoll, ListError, ListKey, Membership, RealmKey, RegistrarEvent, Roles, Rolls,
};
use wayleave_control::store::Record;
use wayleave_core::wire::Malformed;
use wayleave_core::{Afi, Asn, IdentityKey, VerdictKind};
use wayleave_crypto::dh::DhSecret;
use wayleave_crypto::secret::Secret;
use wayleave_crypto::sign::SigningKey;
use wayleave_crypto::signed::Signed;
use wayleave_dataplane::bfd::{Diagnostic, State as BfdState};
use wayleave_dataplane::gateway::Event as GatewayEvent;
use wayleave_dataplane::gateway::proxy::{Host, Target};
use wayleave_dataplane::link::{LinkStatus, State as LinkState, Transport};
use wayleave_dataplane::platypus::ForeignWaypoint;
use wayleave_dataplane::replay::ClockJumps;
use wayleave_packet::platypus::header::{DelegationId, Interval, Principal, Width};
use wayleave_packet::platypus::verify::Arrival;
use wayleave_route_server::member::MemberEvent;
use wayleave_route_server::party::PartyEvent;
use wayleave_route_server::versions::Versions;
use wayleave_runtime::identity::Fingerprint;
use wayleave_runtime::resolved::LinkNames;

use super::daemon::reload_failed;
use super::events::EventLine;
use super::gateway::Unresolved;
use super::link_faults::LinkEndpoint;
use super::member::io::ExchangeLabels;
use super::overlay::renewal::Failed;
use super::overlay::{entrusting, freshness, renewal};
use super::router::{platypus, scion, supervisor};
use super::{attest, attestation, consent, gateway, key, links, member, overlay, path, realm, rs, stamper};
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
    let max_prefixes = |is_out| MemberEvent::MaxPrefixes {
        slot: 3,
        name: "charlie".into(),
        asn: 64499,
        afi: Afi::Ipv6,
        prefixes: if is_out { 21 } else { 20 },
        limit: 20,
        is_out,
    };
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
        MemberEvent::DataTaken { number: 8, members: 3 },
        max_prefixes(true),
        max_prefixes(false),
        MemberEvent::DataRefused { number: 8, why: "they are another exchange's".into() },
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
        ProcessEvent::ClockInDoubt(Some(ClockDoubt::Slow)),
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
    let established = Established {
        connection: ConnectionId(1),
        params: SessionParams::new(Asn(64500), Asn(64499)),
        peer_id: [192, 0, 2, 1].into(),
        peer_asn: Asn(64499),
        hold_time: HoldTime::DEFAULT,
        route_refresh: true,
        enhanced_route_refresh: false,
        end_of_rib: true,
        retain: None,
        peer_restarted: false,
        forwarding_kept: Vec::new(),
        transparent: false,
        peer_capabilities: Vec::new(),
    };
    let problem =
        Problem { attribute: Some(AttributeCode::ORIGIN), fault: Fault::Length(2), action: Action::TreatAsWithdraw };
    let rejected = RejectedRoutes {
        routes: vec![nlri()],
        attributes: Arc::new(Attributes::builder().finish()),
        error: EncodeError::TooLong { need: 5000, most: 4096 },
    };
    let ended = || Ended { connection: None, state: State::Established, cause: Cause::HoldTimerExpired, retain: None };
    events.extend([
        ProxyEvent::Older { pair: 0, nlri: nlri(), origin: Asn(64499), have: 5, newest: 7 },
        ProxyEvent::Suspect(0),
        ProxyEvent::NewKeys { keys: vec![key(2)], signs: Some(key(1)), is_bound: true },
        ProxyEvent::NewKeys { keys: vec![key(2)], signs: Some(key(2)), is_bound: true },
        ProxyEvent::NewKeys { keys: vec![key(2)], signs: None, is_bound: true },
        ProxyEvent::NewKeys { keys: vec![key(2)], signs: None, is_bound: false },
        ProxyEvent::Offered(0, vec![LeafKey::of(SuiteId::KcEd25519, &[1; 32])]),
        ProxyEvent::GrantRefused(0, GrantError::Stranger(Asn(64511))),
        ProxyEvent::Pair(0, PairEvent::Up(Side::Outside, Box::new(established))),
        ProxyEvent::Pair(0, PairEvent::Down(Side::Outside, ended())),
        ProxyEvent::Pair(0, PairEvent::Failed(Side::Outside, ended())),
        ProxyEvent::Pair(0, PairEvent::Malformed(Side::Outside, vec![problem], vec![nlri()])),
        ProxyEvent::Pair(0, PairEvent::Rejected(Side::Outside, rejected)),
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

/// The time of samples, a Unix second.
const THEN: u64 = 1_800_000_000;

fn node(number: u8) -> IdentityKey {
    IdentityKey([number; 32])
}

/// The first roll of a realm's key.
fn key_roll() -> KeyRoll {
    let (realm, next) = (RealmKey([1; 32]), RealmKey([2; 32]));
    KeyRoll { realm, number: 1, next, issued: THEN - 86_400, from: THEN, until: THEN + 86_400 }
}

fn realm_key() -> SigningKey {
    SigningKey::from_seed(&Secret::new([1; 32]))
}

fn membership() -> Signed<Membership> {
    let object = Membership {
        realm: RealmKey([1; 32]),
        number: 1,
        identity: node(3),
        noise: DhSecret::from_seed(&Secret::new([1; 32])).public(),
        grants: Grants {
            roles: Roles::FORWARDER,
            names: vec!["charlie".parse().expect("a name")],
            prefixes: Vec::new(),
        },
        not_before: THEN - 86_400,
        not_after: THEN,
        rolls: Rolls::default(),
    };
    Signed::sign(&object, &realm_key()).expect("sound")
}

fn list_key() -> Signed<ListKey> {
    let (realm, base) = (RealmKey([1; 32]), Base::default());
    let object = ListKey { realm, generation: 1, key: [4; 32], issued: THEN - 86_400, not_after: THEN, base };
    Signed::sign(&object, &realm_key()).expect("sound")
}

fn registrar_events() -> Vec<RegistrarEvent> {
    vec![
        RegistrarEvent::Admitted(membership()),
        RegistrarEvent::Refused { identity: Some(node(3)), error: JoinError::Used },
        RegistrarEvent::Refused { identity: None, error: JoinError::Expired },
        RegistrarEvent::Renewed(membership()),
        RegistrarEvent::NotRenewed { identity: node(3), error: JoinError::Revoked },
        RegistrarEvent::Rolled { from: node(3), to: node(4) },
        RegistrarEvent::ListKey(list_key()),
        RegistrarEvent::RemovedElsewhere(vec![node(3), node(4)]),
        RegistrarEvent::Invented { key: [4; 32], left: 7 },
        RegistrarEvent::Ahead { seconds: 60 },
        RegistrarEvent::RolledElsewhere(key_roll()),
        RegistrarEvent::Restored(vec![node(3)]),
        RegistrarEvent::KeyRolled(key_roll()),
        RegistrarEvent::NoList(ListError::Ended),
        RegistrarEvent::Failed("the member is not known"),
    ]
}

fn node_events() -> Vec<NodeEvent> {
    let server = node(1);
    let reasons = vec![HopFailure { index: 2, server, fault: HopFault::Silent }];
    let rolled = |to| Box::new(Record::Rolled { from: node(3), to });
    vec![
        NodeEvent::Removed { server },
        NodeEvent::Registered { server, sequence: 7 },
        NodeEvent::NotRegistered { server, refusal: Refusal::NotMember },
        NodeEvent::Disbelieved { server, failure: PathFailure::Ends },
        NodeEvent::Conflict { known: rolled(node(4)), other: rolled(node(5)) },
        NodeEvent::Delayed { id: 1, reasons },
        NodeEvent::StoreDamaged,
    ]
}

fn path_server_events() -> Vec<PathServerEvent> {
    vec![
        PathServerEvent::Registered(node(3), 7),
        PathServerEvent::Refused { peer: node(3), refusal: Refusal::NotMember },
        PathServerEvent::Recovered(node(1)),
        PathServerEvent::StoreDamaged,
    ]
}

fn consent_server_events() -> Vec<ConsentServerEvent> {
    vec![
        ConsentServerEvent::Ready,
        ConsentServerEvent::RecordRefused(Refusal::NotMember),
        ConsentServerEvent::StoreDamaged,
        ConsentServerEvent::NotDelegated(node(3)),
        ConsentServerEvent::Entrusted(node(3)),
    ]
}

/// What is told of a membership and of the keys of a node's tags.
fn renewals() -> Vec<EventLine> {
    let lines = [Failed::Refused(JoinError::Revoked), Failed::Other("no answer".into())];
    let lines = lines.iter().zip([THEN - 1, THEN + 1]).map(|(failed, now)| failed.describe(THEN, now));
    let mut lines: Vec<EventLine> = lines.map(|why| renewal::not_renewed_line(&why)).collect();
    lines.push(renewal::renewed_line(THEN));
    lines
}

/// What is told of links to neighbours, of each what was known before and what is known now.
fn link_lines() -> Vec<EventLine> {
    let udp = |state, port: u16| LinkStatus {
        address: Some(([192, 0, 2, 1], port).into()),
        transport: Some(Transport::Udp),
        ..links::tests::link(1, state, None, None)
    };
    let (up, down) = (udp(LinkState::Up, 4000), udp(LinkState::Asked, 4000));
    let tls = LinkStatus { transport: Some(Transport::Tls), ..up.clone() };
    let versions = LinkStatus { other_versions: Some((3, 4)), ..down.clone() };
    let changes = [
        (&down, &versions),
        (&down, &up),
        (&up, &udp(LinkState::Stopped, 4000)),
        (&up, &down),
        (&up, &tls),
        (&tls, &up),
        (&up, &udp(LinkState::Up, 4001)),
    ];
    changes.iter().filter_map(|(before, now)| links::line(Some(before), now, "charlie".into())).collect()
}

fn router_events() -> Vec<RouterEvent> {
    let payer = RatePayer { principal: principal(), delegation: None };
    let rate = SharedRate { payer, rate: 1_000_000, routers: 2, offline: Offline::Floor };
    vec![
        RouterEvent::Untaken { router: 1, entries: 7 },
        RouterEvent::Connected(1),
        RouterEvent::Disconnected(1),
        RouterEvent::Stranger(node(3)),
        RouterEvent::Malformed { router: 1, error: Malformed::TooLong(3) },
        RouterEvent::Unexpected(2),
        RouterEvent::Refused { router: 1, why: UsageRefusal::Unreadable },
        RouterEvent::Behind(1),
        RouterEvent::Late(1),
        RouterEvent::TooLate(1),
        RouterEvent::Differs { router: 1, rate },
        RouterEvent::Lacks { router: 1, seen: 12, own: 10 },
        RouterEvent::Ahead { router: 1, has: 12, own: 10 },
    ]
}

/// What is told of routers and usage at a key server.
fn key_server_lines() -> Vec<EventLine> {
    use key::routers::{Own, line, own_line, superseded_line};
    let names = BTreeMap::from([(1, "fra1".to_owned())]);
    let own = [
        Own::Unwritten(Some("the database takes no usage: it is full".into())),
        Own::Unwritten(None),
        Own::SetBack(BTreeMap::new()),
        Own::Closed(3, THEN),
        Own::MadeUp(12),
    ];
    let mut lines: Vec<EventLine> = router_events().iter().map(|event| line(event, &names)).collect();
    lines.extend(own.iter().filter_map(own_line));
    lines.push(superseded_line(1, "fra1".into(), 12));
    lines
}

fn principal() -> Principal {
    Principal::new(7).expect("24 bits")
}

fn quota_lines() -> Vec<EventLine> {
    let payer = |delegation| RatePayer { principal: principal(), delegation };
    vec![
        key::quotas::exceeded_line(payer(None), 2_000, 1_000),
        key::quotas::used_up_line(payer(None), 2_000),
        key::quotas::used_up_line(payer(DelegationId::new(3)), 2_000),
    ]
}

/// What is told of key servers at a router.
fn provider_lines() -> Vec<EventLine> {
    use platypus::provider::{behind_line, connected_line, disconnected_line, line, rates_line};
    let position = |number| Position { timeline: 0, number, digest: [0; 32] };
    let events = [
        RouterClientEvent::Refused(UsageRefusal::Unreadable),
        RouterClientEvent::Untaken(7),
        RouterClientEvent::Lessor { link: 1, epoch: 12 },
        RouterClientEvent::Lacks { seen: position(12), own: position(10) },
        RouterClientEvent::Superseded { epoch: 12, octets: Vec::new() },
    ];
    let server = "192.0.2.1:4100";
    let mut lines: Vec<EventLine> = events.iter().filter_map(|event| line(event, 1, |_| server.into())).collect();
    lines.extend([
        connected_line(0, server),
        disconnected_line(0, server, "the peer closed it", true),
        disconnected_line(1, server, "the peer closed it", false),
        rates_line(2),
        behind_line(),
    ]);
    lines
}

fn secret_lines() -> Vec<EventLine> {
    let terms = Terms {
        waypoint: [198, 51, 100, 1].into(),
        principal: principal(),
        interval: Interval::SHORTEST,
        width: Width::Full,
        delegation: None,
    };
    let zone = "keys.example.net";
    vec![
        stamper::secrets::found_line(&terms, zone, 12),
        stamper::secrets::missing_line(&terms, zone, LookupFailure::Silent),
    ]
}

fn gateway_lines() -> Vec<EventLine> {
    let peer = node(3);
    let events =
        [GatewayEvent::SessionBegan { peer }, GatewayEvent::PathDied { peer }, GatewayEvent::PathChanged { peer }];
    let unresolved =
        |policy: Option<&str>, key| Unresolved { policy: policy.map(Into::into), key, name: "dave".into() };
    let mut lines: Vec<EventLine> = events.iter().map(|event| gateway::line(event, |_| "charlie".into())).collect();
    lines.extend([
        gateway::unresolved_line(&unresolved(Some("fast"), "require")),
        gateway::unresolved_line(&unresolved(None, "avoid")),
        gateway::disagreement_line("charlie says that it is a peer of this node"),
        gateway::paths_decided_line(1, 2),
    ]);
    lines
}

fn resolver_lines() -> Vec<EventLine> {
    use gateway::resolver::{State, line};
    let zones = vec!["demo".to_owned(), "77.fd.ip6.arpa".to_owned()];
    let names = LinkNames { index: 3, server: ([198, 18, 0, 1], 53).into(), zones };
    let states = [State::Set, State::Absent, State::Failed("systemd-resolved refuses".into())];
    states.iter().map(|state| line("wayleave0", &names, state)).collect()
}

/// The events of a source file below `roles`, each as the log and `show events` have it.
struct Section {
    role: &'static str,
    file: &'static str,
    lines: Vec<String>,
}

fn section(role: &'static str, file: &'static str, lines: impl IntoIterator<Item = EventLine>) -> Section {
    Section { role, file, lines: lines.into_iter().map(|line| line.to_string()).collect() }
}

fn sections() -> Vec<Section> {
    let exchange = exchange();
    let member = member_events().into_iter().map(|event| member::io::line(&event, &exchange, "the peer closed it"));
    let unknown =
        member::io::unknown_peers("AS64498", "`hide_from` of rule 2", "no member has AS64498 in member set 5");
    let names = ["east".to_owned()];
    let failure = Failure::new("unknown field `lsten`").help("it is `listen`");
    let target = |host| Target { host, port: 443 };
    let foreign = |arrival| ForeignWaypoint { waypoint: [198, 51, 100, 9].into(), arrival, principal: principal() };
    vec![
        section("party", "rs/io.rs", party_events().iter().map(|event| rs::io::line(event, "the peer closed it"))),
        section("member", "member/io.rs", member.chain([unknown])),
        section("attestation of a member", "attestation.rs", attestation_events().iter().map(attestation::line)),
        section(
            "attesting proxy",
            "attest/io.rs",
            proxy_events().into_iter().map(|event| attest::io::line(event, &names)),
        ),
        section("every role", "daemon.rs", [reload_failed(Path::new("party1.toml"), &failure)]),
        section("registrar of a realm", "realm/io.rs", registrar_events().iter().filter_map(realm::io::line)),
        section("path server", "path/io.rs", path_server_events().iter().map(path::io::line)),
        section("consent server", "consent/io.rs", consent_server_events().iter().map(consent::io::line)),
        section("node of an overlay", "overlay/io.rs", node_events().iter().map(overlay::io::line)),
        section(
            "what nodes and servers know of the realm",
            "overlay/freshness.rs",
            [Freshness::Fresh, Freshness::Overdue(THEN), Freshness::Stale(THEN)]
                .map(freshness::line)
                .into_iter()
                .chain([freshness::roll_line(&key_roll())]),
        ),
        section("membership of a node", "overlay/renewal.rs", renewals()),
        section(
            "tag keys of a node",
            "overlay/entrusting.rs",
            [
                entrusting::entrusted_line("192.0.2.1:4100"),
                entrusting::not_entrusted_line("the consent server at 192.0.2.1:4100 has not got the keys"),
            ],
        ),
        section("links to neighbours", "links.rs", link_lines()),
        section("gateway", "gateway.rs", gateway_lines()),
        section(
            "proxy of a gateway",
            "gateway/proxy.rs",
            [
                gateway::proxy::refused_line(
                    &target(Host::Name("charlie.demo".into())),
                    "no node is called charlie.demo",
                ),
                gateway::proxy::malformed_line("the request is neither SOCKS nor HTTP"),
            ],
        ),
        section("names of a gateway", "gateway/resolver.rs", resolver_lines()),
        section(
            "router",
            "router/supervisor.rs",
            [
                supervisor::clock_jump_line(ClockJumps { ahead: 1, back: 0, last: 2_000_000 }),
                supervisor::clock_jump_line(ClockJumps { ahead: 1, back: 1, last: -4_000_000 }),
                supervisor::keys_line(&[THEN, THEN + 86_400]),
            ],
        ),
        section(
            "SCION router",
            "router/scion/bfd.rs",
            [scion::bfd::changed_line("interface 3", BfdState::Down, Diagnostic::TIME_EXPIRED)],
        ),
        section("PLATYPUS router and its key servers", "router/platypus/provider.rs", provider_lines()),
        section(
            "revocations of a PLATYPUS router",
            "router/platypus/revocations.rs",
            [
                platypus::revocations::refused_line(Path::new("revocations"), "the file is too short"),
                platypus::revocations::taken_over_line(2, Some(7), 1),
            ],
        ),
        section(
            "waypoints of a PLATYPUS router",
            "router/platypus/foreign.rs",
            [platypus::foreign::line(foreign(Arrival::Ip), &[])],
        ),
        section("key server and routers", "key/routers.rs", key_server_lines()),
        section(
            "key server",
            "key/core.rs",
            [
                key::core::database_down_line("it does not answer", Duration::from_secs(600)),
                key::core::database_up_line(Duration::from_secs(60)),
                key::core::order_line(7, &ChangeBody::Close { principal: principal() }),
            ],
        ),
        section(
            "API of a key server",
            "key/operator.rs",
            [key::operator::change_line(7, "billing", "account 7 closed")],
        ),
        section("quotas of a key server", "key/quotas.rs", quota_lines()),
        section(
            "stamper",
            "stamper.rs",
            [
                stamper::capabilities_changed_line(),
                stamper::registered_line(1000),
                stamper::registration_ended_line(1000),
            ],
        ),
        section("secrets of a stamper", "stamper/secrets.rs", secret_lines()),
        section(
            "rules of a stamper",
            "stamper/system.rs",
            [
                stamper::system::group_missing_line(0, "user.slice/backup"),
                stamper::system::group_made_line(0, "user.slice/backup"),
                stamper::system::filter_removed_line(),
                stamper::system::filter_refused_line("`nft` cannot be run"),
            ],
        ),
    ]
}

/// The file, which `WAYLEAVE_WRITE=1` writes anew.
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../test-data/logs/events.txt");

#[test]
fn lines_and_entries_of_events_are_those_of_the_file() {
    let mut text = String::new();
    for Section { role, lines, .. } in sections() {
        let _ = writeln!(text, "# {role}\n{}", lines.concat());
    }
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

/// Events that are noted for `show events` alone, and have no line of the log.
const WITHOUT_LINE: [(&str, &str); 4] = [
    ("overlay/mod.rs", "store-damaged"), // whoever opened the state has logged what is wrong with it
    ("realm/io.rs", "revocations"),      // each new list: path servers log what they take
    ("router/platypus/provider.rs", "revocations-received"), // its line follows when the list is in force
    ("router/supervisor.rs", "reload"),  // `daemon` logs it
];

/// What follows a pattern each time up to the next quotation mark: the kind of an event.
fn kinds<'a>(text: &'a str, pattern: &str) -> impl Iterator<Item = &'a str> {
    text.split(pattern).skip(1).filter_map(|rest| {
        let (_, kind) = rest.split_once('"')?;
        kind.split_once('"').map(|(kind, _)| kind)
    })
}

/// All kinds of events in source files below a directory, with the names of their files below `roles`.
fn kinds_in_sources(directory: &Path, roles: &Path, all: &mut BTreeSet<(String, String)>) {
    for entry in std::fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        let name = path.strip_prefix(roles).expect("below it").display().to_string();
        match path.extension() {
            _ if path.is_dir() => kinds_in_sources(&path, roles, all),
            // These two say what an event looks like.
            Some(extension) if extension == "rs" && name != "events.rs" && name != "log_lines.rs" => {
                let text = std::fs::read_to_string(&path).expect("a source file");
                let found = kinds(&text, "event!(").chain(kinds(&text, "json!({ \"event\":"));
                all.extend(found.map(|kind| (name.clone(), kind.to_owned())));
            }
            _ => {}
        }
    }
}

#[test]
fn every_kind_of_event_in_the_sources_is_in_the_file() {
    let roles = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src/roles"));
    let mut found = BTreeSet::new();
    kinds_in_sources(roles, roles, &mut found);
    assert!(found.len() > 150, "{} kinds of events were found", found.len());
    let mut sampled: BTreeSet<(String, String)> = BTreeSet::new();
    for Section { file, lines, .. } in sections() {
        let heads = lines.iter().filter_map(|line| line.split_once(" [")?.1.split_once(']'));
        sampled.extend(heads.map(|(head, _)| (file.to_owned(), head.split(" by ").next().unwrap_or(head).to_owned())));
    }
    sampled.extend(WITHOUT_LINE.map(|(file, kind)| (file.to_owned(), kind.to_owned())));
    let lacks: Vec<_> = found.difference(&sampled).collect();
    assert!(lacks.is_empty(), "no sample of these: add one to `sections` and run with WAYLEAVE_WRITE=1: {lacks:?}");
}
