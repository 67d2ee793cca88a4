//! Every bad peer meets its verdict, in one piece and octet by octet, and the next honest peer is served.
//!
//! BGP-08: peers with malformed OPENs, repeated capabilities, wrong roles: each answered as listed.

use std::net::IpAddr;

use crate::common::bad_bgp::{BadPeer, Verdict, bad_openers, bad_talkers};
use crate::common::{self, Rig, config, ended, notified};
use proptest::prelude::*;
use wayleave_bgp::session::{Accept, Config, Erred, Input, Output, PeerAsn, Responder, State, Stop, StopReason};
use wayleave_bgp::{Capability, Message, Notification};
use wayleave_core::{Asn, Instant, Machine};

fn judge(peer: &BadPeer, chunk: usize) {
    let start = if peer.established { State::Established } else { State::OpenSent };
    let mut rig = Rig::in_state(config(), start);
    let mut outputs = Vec::new();
    for bytes in peer.octets.chunks(chunk) {
        outputs.extend(rig.bytes(bytes));
    }
    let name = peer.name;
    let downs = outputs.iter().filter(|output| matches!(output, Output::Down(_))).count();
    match peer.verdict {
        Verdict::Told(code, subcode) => {
            assert_eq!(notified(&outputs), Some((code, subcode)), "{name}");
            assert_eq!(ended(&outputs).expect("an end").cause.erred(), Erred::Peer, "{name}");
            assert_eq!((downs, rig.session.state()), (usize::from(peer.established), State::Idle), "{name}");
        }
        Verdict::Silence => {
            assert_eq!(notified(&outputs), None, "{name}");
            assert_eq!((downs, rig.session.state()), (usize::from(peer.established), State::Idle), "{name}");
        }
        Verdict::Stands { malformed } => {
            assert_eq!((downs, rig.session.state()), (0, State::Established), "{name}");
            assert_eq!(rig.session.counters().malformed_updates, malformed, "{name}");
        }
        Verdict::Waits => {
            assert!(matches!(rig.session.state(), State::OpenSent | State::OpenConfirm), "{name}");
            assert_eq!(ended(&outputs), None, "{name}");
        }
    }
    assert!(rig.session.buffered() <= 256 * 1_024, "{name}");
    serves_an_honest_peer(rig, name);
}

/// Whatever has happened, an honest peer is served next.
fn serves_an_honest_peer(mut rig: Rig, name: &str) {
    rig.give(Input::Stop(Stop { administrative: true, reason: StopReason::OutOfResources }));
    rig.give(Input::Start);
    rig.connect(true);
    rig.bytes(&common::peer_open());
    rig.bytes(&common::keepalive());
    assert_eq!(rig.session.state(), State::Established, "after {name}");
}

#[test]
fn every_bad_peer_is_answered_as_listed() {
    for peer in bad_openers().iter().chain(&bad_talkers()) {
        for chunk in [usize::MAX, 1, 19, 1_000] {
            judge(peer, chunk);
        }
    }
}

#[test]
fn only_unknown_attributes_are_harmless_with_and_without_graceful_restart() {
    for restart in [true, false] {
        let mut rig = Rig::in_state(config(), State::OpenSent);
        let mut open = common::open();
        open.capabilities.retain(|c| restart || !matches!(c, Capability::GracefulRestart { .. }));
        rig.bytes(&common::encode(&Message::Open(open)));
        rig.bytes(&common::keepalive());
        for attributes in
            [&[0xc0u8, 99, 0][..], &[0xc0, 99, 1, 0, 0xe0, 200, 2, 1, 1], &[0x80, 77, 0], &[0xd0, 99, 0, 0]]
        {
            let outputs = rig.bytes(&common::bad_bgp::update(&[], attributes, &[]));
            assert_eq!(notified(&outputs), None);
            assert_eq!(rig.session.state(), State::Established);
        }
    }
}

#[test]
fn a_listener_hands_each_connection_to_its_session() {
    let shared: IpAddr = "127.0.0.1".parse().expect("an address");
    let alone: IpAddr = "192.0.2.7".parse().expect("an address");
    let mut responder = Responder::new();
    responder.insert(common::p("127.0.0.1/32"), PeerAsn::Exactly(Asn(64511)), "first");
    responder.insert(common::p("127.0.0.1/32"), PeerAsn::Exactly(Asn(64512)), "second");
    responder.insert(common::p("192.0.2.0/24"), PeerAsn::Any, "anyone of the net");
    responder.insert(common::p("192.0.2.7/32"), PeerAsn::Exactly(Asn(64513)), "one host of it");
    assert_eq!(responder.accept(alone), Accept::Session("one host of it"));
    assert_eq!(responder.accept("192.0.2.8".parse().expect("an address")), Accept::Session("anyone of the net"));
    assert_eq!(responder.accept("::ffff:192.0.2.7".parse().expect("an address")), Accept::Session("one host of it"));
    assert_eq!(responder.accept(shared), Accept::NeedOpen);
    let open = common::peer_open();
    for cut in 0..open.len() {
        assert_eq!(responder.identify(shared, &open[..cut]), Accept::NeedOpen);
    }
    assert_eq!(responder.identify(shared, &open), Accept::Session("first"));
    assert_eq!(responder.identify(shared, &[open, common::keepalive()].concat()), Accept::Session("first"));
    let refusal = |accept| match accept {
        Accept::Refuse(refusal) => refusal.notification,
        accept => panic!("{accept:?}"),
    };
    assert_eq!(refusal(responder.accept("2001:db8::1".parse().expect("an address"))), Notification::new(6, 5));
    assert_eq!(refusal(responder.identify(shared, b"GET / HTTP/1.1\r\n\r\n\r\n")), Notification::new(1, 1));
    assert_eq!(refusal(responder.identify(shared, &common::keepalive())).code, 5);
    let stranger = Message::Open(wayleave_bgp::Open { asn: Asn(1), capabilities: vec![], ..common::open() });
    assert_eq!(refusal(responder.identify(shared, &common::encode(&stranger))), Notification::new(6, 5));
    assert_eq!(responder.refused(), 4);
    responder.remove(&"second");
    assert_eq!(responder.accept(shared), Accept::Session("first"));
}

/// What may happen to a session, in any order.
#[derive(Clone, Debug)]
enum Event {
    Start,
    Stop(bool),
    Connected(bool),
    ConnectFailed,
    Closed(usize),
    Good(usize, usize),
    Bytes(usize, Vec<u8>),
    Send,
    Blocked(usize),
    Writable(usize),
    Wait(u64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        2 => Just(Event::Start),
        1 => any::<bool>().prop_map(Event::Stop),
        4 => any::<bool>().prop_map(Event::Connected),
        1 => Just(Event::ConnectFailed),
        1 => (0usize..4).prop_map(Event::Closed),
        12 => (0usize..4, 0usize..7).prop_map(|(connection, message)| Event::Good(connection, message)),
        3 => (0usize..4, proptest::collection::vec(any::<u8>(), 0..80)).prop_map(|(c, bytes)| Event::Bytes(c, bytes)),
        1 => Just(Event::Send),
        1 => (0usize..4).prop_map(Event::Blocked),
        1 => (0usize..4).prop_map(Event::Writable),
        2 => (0u64..200_000).prop_map(Event::Wait),
    ]
}

/// A message that an honest peer might send, cut in two now and then.
fn good(message: usize) -> Vec<u8> {
    match message {
        0 | 1 => common::peer_open(),
        2 | 3 => common::keepalive(),
        4 => common::announce(&["192.0.2.0/24"]),
        5 => common::raw([0xff; 16], None, 5, &[0, 1, 0, 1]),
        _ => [common::peer_open(), common::keepalive(), common::announce(&["2001:db8::/32"])].concat(),
    }
}

proptest! {
    #[test]
    fn no_order_of_events_panics_or_leaves_two_sessions(
        passive in any::<bool>(),
        delayed in any::<bool>(),
        greater in any::<bool>(),
        events in proptest::collection::vec(event(), 1..80),
    ) {
        let router_id = if greater { [10, 0, 0, 9].into() } else { common::LOCAL_ID };
        let delay_open = delayed.then(|| std::time::Duration::from_secs(3));
        let mut rig = Rig::new(Config { passive, delay_open, router_id, ..config() });
        let mut open: Vec<wayleave_bgp::session::ConnectionId> = Vec::new();
        let (mut ups, mut downs) = (0i64, 0i64);
        for event in events {
            let pick = |open: &[wayleave_bgp::session::ConnectionId], i: usize| {
                open.get(i).copied().unwrap_or(wayleave_bgp::session::ConnectionId(99_999))
            };
            let outputs = match event {
                Event::Start => rig.give(Input::Start),
                Event::Stop(administrative) => {
                    rig.give(Input::Stop(Stop { administrative, reason: StopReason::OutOfResources }))
                }
                Event::Connected(outgoing) => {
                    let outputs = rig.connect(outgoing);
                    open.push(rig.connection);
                    outputs
                }
                Event::ConnectFailed => rig.give(Input::ConnectFailed { attempt: 1 }),
                Event::Closed(i) => {
                    let connection = pick(&open, i);
                    let known = open.contains(&connection);
                    let outputs = rig.give(Input::Closed { connection });
                    prop_assert!(known || outputs.is_empty());
                    outputs
                }
                Event::Good(i, message) => {
                    rig.connection = pick(&open, i);
                    rig.bytes(&good(message))
                }
                Event::Bytes(i, bytes) => {
                    rig.connection = pick(&open, i);
                    rig.bytes(&bytes)
                }
                Event::Send => rig.give(Input::Send(vec![common::announce(&["192.0.2.0/24"])])),
                Event::Blocked(i) => { let connection = pick(&open, i); rig.give(Input::Blocked { connection }) }
                Event::Writable(i) => { let connection = pick(&open, i); rig.give(Input::Writable { connection }) }
                Event::Wait(milliseconds) => rig.wait(std::time::Duration::from_millis(milliseconds)),
            };
            for output in outputs {
                match output {
                    Output::Up(_) => ups += 1,
                    Output::Down(_) => downs += 1,
                    Output::Close { connection } => open.retain(|other| *other != connection),
                    Output::Send { connection, .. } => {
                        // A refused connection gets a NOTIFICATION; every other octet goes to an open connection.
                        prop_assert!(open.contains(&connection));
                    }
                    _ => {}
                }
                prop_assert!(ups - downs == 0 || ups - downs == 1, "{ups} up, {downs} down");
            }
            prop_assert!(open.len() <= 2, "{open:?}");
            prop_assert_eq!(rig.session.state() == State::Established, ups - downs == 1);
            prop_assert!(rig.session.buffered() <= 32_768);
        }
    }

    #[test]
    fn no_stream_of_octets_panics_in_any_state(
        state in 3usize..6,
        chunks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..200), 0..20),
        framed in any::<bool>(),
    ) {
        let state = [State::Idle, State::Connect, State::Active, State::OpenSent, State::OpenConfirm, State::Established][state];
        let mut rig = Rig::in_state(config(), state);
        for chunk in chunks {
            let octets = match (framed, chunk.split_first()) {
                (true, Some((kind, body))) => common::raw([0xff; 16], None, kind % 7, body),
                _ => chunk,
            };
            rig.bytes(&octets);
            rig.session.handle_timeout(common::at(Instant(rig.now.0 + 1)));
        }
    }
}
