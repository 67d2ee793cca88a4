//! One BGP peer: its session, the routes that it is to have, and sessions that relay another peer's.

use std::sync::Arc;
use std::time::Duration;

use wayleave_bgp::peer::{Begin, Input, Output, Peer, PeerEvent, Stale, TcpRequest};
use wayleave_bgp::session::{self, Config, ConnectionId, PeerAsn, State, Stop, StopReason};
use wayleave_bgp::{
    Capability, GracefulRestartFamily, LongLivedFamily, Message, Nlri, RefreshKind, RouteRefresh, SessionParams, Update,
};
use wayleave_core::{Afi, Asn, Instant, Machine};

use crate::common::{self, LOCAL, PEER, announce, at, attributes, config, encode, keepalive, p, peer_open};

/// The peer under test, and what its connections and its driver were given.
struct Rig {
    peer: Peer,
    now: Instant,
    outputs: Vec<Output>,
}

impl Rig {
    fn relay() -> Self {
        let now = Instant(1_000_000_000);
        Self { peer: Peer::relay(at(now)), now, outputs: Vec::new() }
    }

    /// A peer with a session of its own, up on connection 1.
    fn established(config: Config) -> Self {
        let now = Instant(1_000_000_000);
        let mut rig = Self { peer: Peer::new(config, 7, at(now)), now, outputs: Vec::new() };
        rig.session(session::Input::Start);
        rig.session(session::Input::Connected { connection: ConnectionId(1), outgoing: true });
        rig.come_up(1);
        rig
    }

    fn give(&mut self, input: Input) {
        self.peer.handle(input, at(self.now));
        self.outputs.extend(std::iter::from_fn(|| self.peer.poll()));
    }

    fn session(&mut self, input: session::Input) {
        self.give(Input::Session(input));
    }

    fn bytes(&mut self, connection: u64, bytes: Vec<u8>) {
        self.session(session::Input::Bytes { connection: ConnectionId(connection), bytes });
    }

    fn come_up(&mut self, connection: u64) {
        self.bytes(connection, peer_open());
        self.bytes(connection, keepalive());
        assert_eq!(self.peer.state(), State::Established);
    }

    fn begin(&mut self, config: Config, connection: u64, received: Vec<u8>) {
        let connection = ConnectionId(connection);
        self.give(Input::Begin(Box::new(Begin { config: passive(config), seed: 1, connection, received })));
    }

    /// Forgets what came out so far and returns the messages among it.
    fn sent(&mut self) -> Vec<Message> {
        let params = SessionParams::new(PEER, LOCAL);
        let mut messages = Vec::new();
        for output in std::mem::take(&mut self.outputs) {
            let Output::Tcp(TcpRequest::Send { bytes, .. }) = output else { continue };
            let mut rest = bytes.as_slice();
            while !rest.is_empty() {
                let (message, left) = Message::decode(rest, &params).expect("what we send can be decoded");
                messages.push(message);
                rest = left;
            }
        }
        messages
    }
}

fn passive(config: Config) -> Config {
    Config { passive: true, ..config }
}

fn path(prefix: &str, through: &[u32]) -> Input {
    Input::Path { nlri: Nlri::new(p(prefix)), attributes: Some(Arc::new(attributes(through))) }
}

fn updates(messages: &[Message]) -> Vec<&Update> {
    messages.iter().filter_map(|m| if let Message::Update(update) = m { Some(update) } else { None }).collect()
}

#[test]
fn a_relay_sends_nothing_until_its_session_begins_and_then_the_open_that_it_is_given() {
    let mut rig = Rig::relay();
    rig.session(session::Input::Start);
    rig.session(session::Input::Connected { connection: ConnectionId(1), outgoing: false });
    rig.give(path("192.0.2.0/24", &[64500]));
    assert!(rig.outputs.is_empty() && !rig.peer.has_session() && rig.peer.deadline().is_none());

    let repeated = Config::new(Asn(70_000), [198, 51, 100, 7].into(), PeerAsn::Exactly(PEER));
    rig.begin(repeated, 1, peer_open());
    let sent = rig.sent();
    let [Message::Open(open), Message::Keepalive] = sent.as_slice() else { panic!("{sent:?}") };
    assert_eq!((open.asn, open.identifier.octets()), (Asn(70_000), [198, 51, 100, 7]));
    assert_eq!(rig.peer.state(), State::OpenConfirm, "the peer's OPEN had come before");
}

#[test]
fn a_relay_sends_end_of_rib_on_request_and_after_the_routes() {
    let mut rig = Rig::relay();
    rig.give(path("192.0.2.0/24", &[64500]));
    rig.begin(config(), 1, Vec::new());
    rig.come_up(1);
    let sent = rig.sent();
    let announced: Vec<_> =
        updates(&sent).into_iter().map(|update| (update.announced.len(), update.end_of_rib)).collect();
    assert_eq!(announced, [(1, None)], "no End-of-RIB of its own");

    rig.session(session::Input::Blocked { connection: ConnectionId(1) });
    rig.give(Input::EndOfRib(Afi::Ipv4));
    rig.give(path("198.51.100.0/24", &[64500]));
    assert!(!rig.peer.is_due() && rig.sent().is_empty(), "the connection takes nothing");
    rig.session(session::Input::Writable { connection: ConnectionId(1) });
    let sent = rig.sent();
    let ends: Vec<_> = updates(&sent).into_iter().map(|update| update.end_of_rib).collect();
    assert_eq!(ends, [None, Some(Afi::Ipv4)]);
}

#[test]
fn a_relay_without_session_keeps_routes_and_counters_for_the_next_one() {
    let mut rig = Rig::relay();
    rig.give(path("192.0.2.0/24", &[64500]));
    rig.begin(config(), 1, Vec::new());
    rig.come_up(1);
    let reason = StopReason::Reset("the other session ended".to_owned());
    rig.session(session::Input::Stop(Stop { administrative: true, reason }));
    assert!(!rig.peer.has_session() && rig.peer.established().is_none());
    assert!(rig.outputs.iter().any(|output| matches!(output, Output::Event(PeerEvent::Down))));
    assert_eq!((rig.peer.counters().established, rig.peer.counters().sent.notification), (1, 1));
    rig.outputs.clear();

    rig.begin(Config { local_asn: Asn(64_501), ..config() }, 2, Vec::new());
    rig.come_up(2);
    let sent = rig.sent();
    assert!(matches!(&sent[0], Message::Open(open) if open.asn == Asn(64_501)));
    assert_eq!(updates(&sent).len(), 1, "the route goes out again");
    assert_eq!(rig.peer.counters().established, 2);
}

#[test]
fn a_lost_relay_session_is_not_restarted() {
    let mut rig = Rig::relay();
    rig.begin(config(), 1, Vec::new());
    rig.session(session::Input::Closed { connection: ConnectionId(1) });
    assert!(matches!(rig.outputs.last(), Some(Output::Failed(_))), "{:?}", rig.outputs.last());
    assert!(!rig.peer.has_session() && rig.peer.deadline().is_none());
    rig.now = rig.now + Duration::from_secs(600);
    rig.peer.handle_timeout(at(rig.now));
    assert!(rig.peer.poll().is_none());
}

#[test]
fn a_second_begin_closes_its_connection() {
    let mut rig = Rig::relay();
    rig.begin(config(), 1, Vec::new());
    rig.outputs.clear();
    rig.begin(config(), 2, Vec::new());
    let [Output::Tcp(TcpRequest::Close { connection: ConnectionId(2) })] = rig.outputs.as_slice() else {
        panic!("{:?}", rig.outputs)
    };
}

#[test]
fn a_refresh_is_answered_and_reported() {
    let mut rig = Rig::established(config());
    rig.give(path("192.0.2.0/24", &[64500]));
    rig.outputs.clear();
    rig.bytes(1, encode(&Message::RouteRefresh(RouteRefresh::request(Afi::Ipv4))));
    let reported =
        |output: &Output| matches!(output, Output::RouteRefresh { afi: Afi::Ipv4, kind: RefreshKind::Request });
    assert!(rig.outputs.iter().any(reported));
    let sent = rig.sent();
    let [Message::RouteRefresh(begin), Message::Update(again), Message::RouteRefresh(end)] = sent.as_slice() else {
        panic!("{sent:?}")
    };
    assert_eq!((begin.kind, again.announced.len(), end.kind), (RefreshKind::Begin, 1, RefreshKind::End));
}

#[test]
fn a_session_of_its_own_sends_end_of_rib_after_the_initial_table_and_reports_the_peers() {
    let mut rig = Rig::established(config());
    let sent = rig.sent();
    let ends: Vec<_> = updates(&sent).into_iter().filter_map(|update| update.end_of_rib).collect();
    assert_eq!(ends, [Afi::Ipv4, Afi::Ipv6]);

    let is_complete = |output: &Output| matches!(output, Output::Event(PeerEvent::EndOfRib));
    rig.bytes(1, [announce(&["192.0.2.0/24"]), wayleave_bgp::end_of_rib(Afi::Ipv4)].concat());
    assert!(matches!(rig.outputs.last(), Some(Output::EndOfRib(Afi::Ipv4))), "{:?}", rig.outputs);
    rig.bytes(1, wayleave_bgp::end_of_rib(Afi::Ipv6));
    assert_eq!(rig.outputs.iter().filter(|output| is_complete(output)).count(), 1);
}

#[test]
fn a_route_that_changes_while_the_peer_does_not_read_is_sent_once() {
    let mut rig = Rig::established(config());
    rig.outputs.clear();
    rig.session(session::Input::Blocked { connection: ConnectionId(1) });
    for version in 0..100 {
        rig.give(Input::Route { prefix: p("192.0.2.0/24"), attributes: Some(attributes(&[64500, version])) });
    }
    assert!(rig.sent().is_empty());
    rig.session(session::Input::Writable { connection: ConnectionId(1) });
    let sent = rig.sent();
    let paths: Vec<Vec<Asn>> =
        updates(&sent).iter().map(|u| u.attributes.as_ref().expect("announced").as_path().asns().collect()).collect();
    assert_eq!(paths, [[Asn(64500), Asn(99)]]);
}

#[test]
fn the_routes_of_a_peer_that_restarts_are_reported_stale_then_long_lived_then_gone() {
    let seconds = Duration::from_secs;
    let mut config = config();
    config.keeps = Some(session::Keeps { restart: seconds(100), long_lived: seconds(50) });
    config.offer.long_lived = true;
    let open = || {
        let family = GracefulRestartFamily { afi: 1, safi: 1, flags: 0x80 };
        let mut open = common::open();
        open.capabilities.extend([
            Capability::GracefulRestart { flags: 0, restart_time: 30, families: vec![family] },
            Capability::LongLivedGracefulRestart(vec![LongLivedFamily {
                afi: 1,
                safi: 1,
                flags: 0x80,
                stale_time: 3_600,
            }]),
        ]);
        encode(&Message::Open(open))
    };
    let stale = |rig: &mut Rig| -> Vec<Stale> {
        let outputs = std::mem::take(&mut rig.outputs);
        let of = |output| if let Output::Event(PeerEvent::Stale(stale)) = output { Some(stale) } else { None };
        outputs.into_iter().filter_map(of).collect()
    };
    let now = Instant(1_000_000_000);
    let mut rig = Rig { peer: Peer::new(config, 7, at(now)), now, outputs: Vec::new() };
    rig.session(session::Input::Start);
    rig.session(session::Input::Connected { connection: ConnectionId(1), outgoing: true });
    rig.bytes(1, open());
    rig.bytes(1, keepalive());
    rig.outputs.clear();
    rig.session(session::Input::Closed { connection: ConnectionId(1) });
    assert!(!rig.outputs.iter().any(|output| matches!(output, Output::Event(PeerEvent::Down))), "nothing is gone");
    assert_eq!(stale(&mut rig), [Stale::Kept(vec![Afi::Ipv4])]);
    let pass = |rig: &mut Rig, span: Duration| {
        rig.now = rig.now + span;
        rig.peer.handle_timeout(at(rig.now));
        rig.outputs.extend(std::iter::from_fn(|| rig.peer.poll()));
        stale(rig)
    };
    assert_eq!(pass(&mut rig, seconds(30)), [Stale::LongLived(Afi::Ipv4)]);
    assert_eq!(rig.peer.stale().collect::<Vec<_>>(), [(Afi::Ipv4, rig.now + seconds(50), true)]);
    assert_eq!(pass(&mut rig, seconds(50)), [Stale::Gone(Afi::Ipv4)]);
    assert_eq!(rig.peer.stale().count(), 0);
    // It is back, and restarts once more; its operator's neighbour disables the session meanwhile.
    rig.session(session::Input::Connected { connection: ConnectionId(2), outgoing: false });
    rig.bytes(2, open());
    rig.bytes(2, keepalive());
    rig.session(session::Input::Closed { connection: ConnectionId(2) });
    assert_eq!(stale(&mut rig), [Stale::Kept(vec![Afi::Ipv4])]);
    rig.session(session::Input::Stop(Stop { administrative: true, reason: StopReason::Shutdown(String::new()) }));
    assert_eq!(stale(&mut rig), [Stale::Gone(Afi::Ipv4)]);
    assert_eq!(rig.peer.stale().count(), 0);
}
