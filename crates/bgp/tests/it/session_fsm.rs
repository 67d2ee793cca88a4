//! The state machine against RFC 4271 section 8, event by event; each test or row names the event.
//!
//! BGP-08: OPEN malformed, hold times, identifiers, in the states of RFC 4271: the right NOTIFICATION.
//! BGP-09: a peer that takes one octet in ten seconds, or none: no more memory; the session ends by the hold timer.
//! BGP-14: markers, lengths, types, in every state: the right NOTIFICATION.

use std::time::Duration;

use crate::common::{
    self, Rig, announce, config, ended, keepalive, notification, notified, open, open_body, peer_open, raw, sent,
};
use wayleave_bgp::session::{Cause, Config, Erred, HoldTime, Input, Output, PeerAsn, Role, State, Stop, StopReason};
use wayleave_bgp::{Capability, Message, Notification, RefreshKind, end_of_rib};
use wayleave_core::{Afi, Asn, Machine};

const STATES: [State; 6] =
    [State::Idle, State::Connect, State::Active, State::OpenSent, State::OpenConfirm, State::Established];

const ONES: [u8; 16] = [0xff; 16];

fn seconds(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn stop(administrative: bool) -> Input {
    Input::Stop(Stop { administrative, reason: StopReason::Shutdown("maintenance".to_owned()) })
}

/// The event, its octets, and for each state from OpenSent on: the next state and the NOTIFICATION sent.
type Row = (&'static str, Vec<u8>, [(State, Option<(u8, u8)>); 3]);

/// The octets, and code, subcode and data of the answer.
type BadHeader = (Vec<u8>, (u8, u8), Vec<u8>);

/// The OPEN's name and body, and the NOTIFICATION sent.
type OpenRow = (&'static str, Vec<u8>, Option<(u8, u8)>);

#[test]
fn messages_lead_where_the_state_tables_say() {
    use State::{Established, Idle, OpenConfirm, OpenSent};
    let rows: Vec<Row> = vec![
        ("19 BGPOpen", peer_open(), [(OpenConfirm, None), (Idle, Some((5, 2))), (Idle, Some((5, 3)))]),
        ("21 BGPHeaderErr: type", raw(ONES, None, 6, &[]), [(Idle, Some((1, 3))); 3]),
        ("21 BGPHeaderErr: length", raw(ONES, Some(18), 4, &[]), [(Idle, Some((1, 2))); 3]),
        ("21 BGPHeaderErr: marker", raw([0; 16], None, 4, &[]), [(Idle, Some((1, 1))); 3]),
        (
            "22 BGPOpenMsgErr: version",
            raw(ONES, None, 1, &open_body(3, 64511, 90, [10, 0, 0, 2], &[])),
            [(Idle, Some((2, 1))), (Idle, Some((5, 2))), (Idle, Some((5, 3)))],
        ),
        ("24 NotifMsgVerErr", raw(ONES, None, 3, &[2, 1, 0, 4]), [(Idle, None); 3]),
        ("25 NotifMsg", raw(ONES, None, 3, &[6, 2]), [(Idle, None); 3]),
        ("26 KeepAliveMsg", keepalive(), [(Idle, Some((5, 1))), (Established, None), (Established, None)]),
        (
            "27 UpdateMsg",
            announce(&["192.0.2.0/24"]),
            [(Idle, Some((5, 1))), (Idle, Some((5, 2))), (Established, None)],
        ),
        (
            "28 UpdateMsgErr, beyond RFC 7606",
            raw(ONES, None, 2, &[0xff, 0xff, 0, 0]),
            [(Idle, Some((5, 1))), (Idle, Some((5, 2))), (Idle, Some((3, 1)))],
        ),
        (
            "ROUTE-REFRESH (RFC 2918)",
            raw(ONES, None, 5, &[0, 1, 0, 1]),
            [(Idle, Some((5, 1))), (Idle, Some((5, 2))), (Established, None)],
        ),
    ];
    for (event, octets, expected) in rows {
        for (state, (next, expected)) in [OpenSent, OpenConfirm, Established].into_iter().zip(expected) {
            let mut rig = Rig::in_state(config(), state);
            let outputs = rig.bytes(&octets);
            assert_eq!(rig.session.state(), next, "{event} in {state}");
            assert_eq!(notified(&outputs), expected, "{event} in {state}");
        }
    }
}

#[test]
fn bad_headers_are_answered_in_every_state_with_a_connection_and_ignored_in_the_others() {
    let mut rows: Vec<BadHeader> = vec![];
    for at in 0..16 {
        let mut marker = ONES;
        marker[at] ^= 1;
        rows.push((raw(marker, None, 4, &[]), (1, 1), vec![]));
    }
    for length in [0u16, 1, 18, 4_097, 65_535] {
        rows.push((raw(ONES, Some(length), 4, &[]), (1, 2), length.to_be_bytes().to_vec()));
        rows.push((raw(ONES, Some(length), 2, &[]), (1, 2), length.to_be_bytes().to_vec()));
    }
    rows.push((raw(ONES, Some(19), 1, &[]), (1, 2), vec![0, 19])); // OPEN of 19 octets
    rows.push((raw(ONES, Some(19), 2, &[]), (1, 2), vec![0, 19])); // UPDATE of 19 octets
    rows.push((raw(ONES, Some(20), 4, &[0]), (1, 2), vec![0, 20])); // KEEPALIVE of 20 octets
    for kind in [0u8, 6, 255] {
        rows.push((raw(ONES, None, kind, &[]), (1, 3), vec![kind]));
    }
    for (octets, (code, subcode), data) in &rows {
        for state in STATES {
            let mut rig = Rig::in_state(config(), state);
            let outputs = rig.bytes(octets);
            if state < State::OpenSent {
                assert_eq!((outputs.len(), rig.session.state()), (0, state), "no connection in {state}: {octets:?}");
                continue;
            }
            let expected = Notification::with_data(*code, *subcode, data.clone());
            assert_eq!(notification(&outputs), Some(expected), "{octets:?} in {state}");
            assert_eq!(rig.session.state(), State::Idle);
            assert!(matches!(outputs.last(), Some(Output::Failed(_) | Output::Down(_))));
        }
        let mut delayed = Rig::new(Config { delay_open: Some(seconds(10)), ..config() });
        delayed.give(Input::Start);
        delayed.connect(true);
        let outputs = delayed.bytes(octets);
        assert_eq!(notified(&outputs), Some((*code, *subcode)), "{octets:?} while OPEN is delayed");
    }
}

#[test]
fn event_1_manual_start_connects_and_event_4_passive_start_waits() {
    let mut active = Rig::new(config());
    assert_eq!(active.give(Input::Start), [Output::Connect { attempt: 1 }]);
    assert_eq!(active.session.state(), State::Connect);
    assert_eq!(active.give(Input::Start), [], "a second start is without effect");
    let mut passive = Rig::new(Config { passive: true, ..config() });
    assert_eq!(passive.give(Input::Start), []);
    assert_eq!(passive.session.state(), State::Active);
    assert_eq!(passive.wait(seconds(100_000)), [], "a passive session never connects");
}

#[test]
fn event_2_manual_stop_ceases_and_stays_in_idle() {
    for state in STATES {
        let mut rig = Rig::in_state(config(), state);
        let outputs = rig.give(stop(true));
        assert_eq!(rig.session.state(), State::Idle);
        assert_eq!(notified(&outputs), (state >= State::OpenSent).then_some((6, 2)), "{state}");
        if let Some(notification) = notification(&outputs) {
            assert_eq!(notification.shutdown_text(), Some("maintenance"));
        }
        assert_eq!(rig.session.deadline(), None, "{state}: nothing is to happen by itself");
    }
}

#[test]
fn event_8_automatic_stop_ceases_and_event_13_starts_again() {
    for state in STATES {
        let mut rig = Rig::in_state(config(), state);
        rig.give(stop(false));
        assert_eq!(rig.session.state(), State::Idle);
        let outputs = rig.wait(seconds(2));
        match state {
            State::Idle => assert_eq!(outputs, []),
            _ => assert!(matches!(outputs[..], [Output::Connect { .. }]), "{state}: {outputs:?}"),
        }
    }
}

#[test]
fn event_9_connect_retry_gives_up_the_attempt_and_makes_a_new_one() {
    let mut rig = Rig::in_state(config(), State::Connect);
    let outputs = rig.wait(seconds(5));
    assert!(matches!(outputs[..], [Output::Failed(_), Output::Connect { attempt: 2 }]), "{outputs:?}");
    assert_eq!(rig.give(Input::ConnectFailed { attempt: 1 }), [], "the old attempt is of no interest");
    assert_eq!(rig.session.state(), State::Connect);
    let mut rig = Rig::in_state(config(), State::Active);
    assert_eq!(rig.wait(seconds(5)), [Output::Connect { attempt: 2 }]);
}

#[test]
fn event_10_the_hold_timer_expires_at_its_very_instant() {
    for state in [State::OpenConfirm, State::Established] {
        let mut rig = Rig::in_state(config(), state);
        let start = rig.now;
        let last = start + seconds(90);
        let before = rig.wait_until(wayleave_core::Instant(last.0 - 1));
        assert!(before.iter().all(|output| matches!(output, Output::Send { .. })), "KEEPALIVEs only: {before:?}");
        assert_eq!(rig.session.state(), state);
        let outputs = rig.wait_until(last);
        assert_eq!(notified(&outputs), Some((4, 0)));
        assert_eq!(ended(&outputs).expect("an end").cause, Cause::HoldTimerExpired);
        assert_eq!(rig.session.state(), State::Idle);
    }
    let mut rig = Rig::in_state(config(), State::OpenSent);
    assert_eq!(notified(&rig.wait(Duration::from_nanos(239_999_999_999))), None);
    assert_eq!(notified(&rig.wait(Duration::from_nanos(1))), Some((4, 0)), "four minutes for an OPEN");
}

#[test]
fn event_10_only_keepalive_and_update_put_the_hold_timer_off() {
    for (octets, puts_off) in
        [(keepalive(), true), (announce(&["192.0.2.0/24"]), true), (raw(ONES, None, 5, &[0, 1, 0, 1]), false)]
    {
        let mut rig = Rig::in_state(config(), State::Established);
        rig.wait(seconds(89));
        rig.bytes(&octets);
        rig.wait(seconds(2));
        assert_eq!(rig.session.state() == State::Established, puts_off);
    }
}

#[test]
fn event_11_keepalives_go_out_three_times_per_hold_time_at_least() {
    let mut rig = Rig::in_state(config(), State::Established);
    let mut count = 0;
    for _ in 0..10 {
        let outputs = rig.wait(seconds(89));
        count += sent(&outputs).filter(|message| *message == Message::Keepalive).count();
        rig.bytes(&keepalive());
    }
    assert!((29..=40).contains(&count), "{count} in 890 s with a hold time of 90 s");
}

#[test]
fn event_12_a_delayed_open_goes_out_at_its_time() {
    let mut rig = Rig::new(Config { delay_open: Some(seconds(10)), ..config() });
    rig.give(Input::Start);
    assert_eq!(rig.connect(true), []);
    assert_eq!(rig.session.state(), State::Connect);
    assert_eq!(rig.wait(Duration::from_millis(9_999)), []);
    let outputs = rig.wait(Duration::from_millis(1));
    assert!(matches!(sent(&outputs).next(), Some(Message::Open(_))));
    assert_eq!(rig.session.state(), State::OpenSent);
}

#[test]
fn event_20_an_open_that_comes_while_ours_is_delayed_is_answered_with_ours_and_a_keepalive() {
    let mut rig = Rig::new(Config { delay_open: Some(seconds(10)), ..config() });
    rig.give(Input::Start);
    rig.connect(true);
    let outputs = rig.bytes(&peer_open());
    let sent: Vec<Message> = sent(&outputs).collect();
    assert!(matches!(sent[..], [Message::Open(_), Message::Keepalive]));
    assert_eq!(rig.session.state(), State::OpenConfirm);
}

#[test]
fn event_13_rests_double_with_each_failure_and_a_long_session_resets_them() {
    let mut rig = Rig::in_state(config(), State::Connect);
    let mut rests = Vec::new();
    for _ in 0..10 {
        rig.connect(true);
        rig.bytes(&raw(ONES, None, 3, &[6, 2]));
        assert_eq!(rig.session.state(), State::Idle);
        let due = rig.session.deadline().expect("it starts again by itself");
        rests.push(due.since(rig.now));
        rig.wait_until(due);
    }
    for (i, rest) in rests.iter().enumerate() {
        let most = seconds((1 << i).min(120));
        assert!(*rest <= most && *rest >= most * 3 / 4, "rest {i}: {rest:?} of {most:?}");
    }
    rig.connect(true);
    rig.bytes(&peer_open());
    rig.bytes(&keepalive());
    for _ in 0..4 {
        rig.wait(seconds(40));
        rig.bytes(&keepalive());
    }
    rig.closed();
    assert!(rig.session.deadline().expect("a rest").since(rig.now) <= seconds(1));
}

#[test]
fn events_14_to_17_a_connection_sends_open_and_none_is_taken_in_idle() {
    for outgoing in [true, false] {
        let mut rig = Rig::in_state(config(), State::Connect);
        let outputs = rig.connect(outgoing);
        let Some(Message::Open(open)) = sent(&outputs).next() else { panic!("an OPEN: {outputs:?}") };
        assert_eq!((open.asn, open.identifier, open.hold_time), (common::LOCAL, common::LOCAL_ID, 90));
        assert_eq!(rig.session.state(), State::OpenSent);
        let mut idle = Rig::new(config());
        let outputs = idle.connect(outgoing);
        assert!(matches!(outputs[..], [Output::Close { .. }]), "{outputs:?}");
    }
}

#[test]
fn event_18_a_failed_attempt_leads_to_active_a_lost_open_sent_to_active_and_anything_later_to_idle() {
    let mut rig = Rig::in_state(config(), State::Connect);
    assert_eq!(ended(&rig.give(Input::ConnectFailed { attempt: 1 })).map(|e| e.cause.erred()), Some(Erred::Network));
    assert_eq!(rig.session.state(), State::Active);
    for (state, next) in
        [(State::OpenSent, State::Active), (State::OpenConfirm, State::Idle), (State::Established, State::Idle)]
    {
        let mut rig = Rig::in_state(config(), state);
        let outputs = rig.closed();
        assert_eq!(rig.session.state(), next);
        assert_eq!(notified(&outputs), None);
        assert_eq!(outputs.iter().any(|o| matches!(o, Output::Down(_))), state == State::Established);
        assert!(rig.session.deadline().is_some(), "{state}: it tries again by itself");
    }
}

#[test]
fn event_22_each_bad_open_gets_its_subcode() {
    let id = [10, 0, 0, 2];
    let four = |asn: u32| [&[2u8, 6, 65, 4][..], &asn.to_be_bytes()].concat();
    let role = |role: u8| [&[2u8, 3, 9, 1, role][..], &four(64511)].concat();
    let rows: Vec<OpenRow> = vec![
        ("sound, two-octet", open_body(4, 64511, 90, id, &[]), None),
        ("sound, four-octet", open_body(4, 23456, 90, id, &four(64511)), None),
        ("version 3", open_body(3, 64511, 90, id, &[]), Some((2, 1))),
        ("version 5", open_body(5, 64511, 90, id, &[]), Some((2, 1))),
        ("another AS", open_body(4, 64512, 90, id, &[]), Some((2, 2))),
        ("AS 0", open_body(4, 0, 90, id, &[]), Some((2, 2))),
        ("AS_TRANS without capability", open_body(4, 23456, 90, id, &[]), Some((2, 2))),
        ("AS 0 in the capability", open_body(4, 64511, 90, id, &four(0)), Some((2, 2))),
        ("identifier 0", open_body(4, 64511, 90, [0; 4], &[]), Some((2, 3))),
        ("hold time 1", open_body(4, 64511, 1, id, &[]), Some((2, 6))),
        ("hold time 2", open_body(4, 64511, 2, id, &[]), Some((2, 6))),
        ("hold time 0", open_body(4, 64511, 0, id, &[]), None),
        ("hold time 3", open_body(4, 64511, 3, id, &[]), None),
        ("a parameter that is no capability", open_body(4, 64511, 90, id, &[1, 1, 0]), Some((2, 4))),
        ("only a family we lack", open_body(4, 64511, 90, id, &[2, 6, 1, 4, 0, 25, 0, 65]), Some((2, 7))),
        ("role that fits", open_body(4, 64511, 90, id, &role(2)), None),
        ("role that does not fit", open_body(4, 64511, 90, id, &role(1)), Some((2, 11))),
        ("unknown role", open_body(4, 64511, 90, id, &role(200)), Some((2, 11))),
    ];
    for (name, body, expected) in rows {
        let mut rig = Rig::in_state(Config { role: Some(Role::RouteServer), ..config() }, State::OpenSent);
        let outputs = rig.bytes(&raw(ONES, None, 1, &body));
        assert_eq!(notified(&outputs), expected, "{name}");
        let next = if expected.is_some() { State::Idle } else { State::OpenConfirm };
        assert_eq!(rig.session.state(), next, "{name}");
    }
}

#[test]
fn two_different_roles_are_refused_and_strict_mode_requires_one() {
    let with_roles = |roles: &[u8]| {
        let mut open = open();
        open.capabilities.extend(roles.iter().map(|&role| Capability::Role(role)));
        common::encode(&Message::Open(open))
    };
    for (strict_role, roles, expected) in [
        (false, &[2u8, 2][..], None),
        (false, &[2, 3], Some((2, 11))),
        (false, &[], None),
        (true, &[], Some((2, 11))),
        (true, &[2], None),
    ] {
        let mut rig = Rig::in_state(Config { role: Some(Role::RouteServer), strict_role, ..config() }, State::OpenSent);
        assert_eq!(notified(&rig.bytes(&with_roles(roles))), expected, "{roles:?} strict: {strict_role}");
    }
}

#[test]
fn a_role_that_does_not_fit_is_named_with_the_one_that_does() {
    for (strict_role, roles, words) in [
        (false, &[4u8][..], "the peer's OPEN states the role peer, rs-client is expected (RFC 9234)"),
        (false, &[2, 3], "the peer's OPEN states the role customer, rs-client is expected (RFC 9234)"),
        (false, &[200], "the peer's OPEN states the role 200, which is not defined, rs-client is expected (RFC 9234)"),
        (true, &[], "the peer's OPEN states no role, rs-client is expected (RFC 9234)"),
    ] {
        let mut rig = Rig::in_state(Config { role: Some(Role::RouteServer), strict_role, ..config() }, State::OpenSent);
        let mut open = open();
        open.capabilities.extend(roles.iter().map(|&role| Capability::Role(role)));
        let outputs = rig.bytes(&common::encode(&Message::Open(open)));
        let cause = &ended(&outputs).expect("ended").cause;
        let Cause::RoleMismatch { stated, expected: Role::RouteServerClient, .. } = cause else { panic!("{cause}") };
        assert_eq!(*stated, roles.last().copied());
        assert_eq!((cause.to_string().as_str(), cause.erred()), (words, Erred::Peer));
        assert_eq!(cause.notification(), Some(&Notification::new(2, 11)));
    }
    // Another fault of the same OPEN that is found first is the cause.
    let mut rig = Rig::in_state(Config { role: Some(Role::RouteServer), ..config() }, State::OpenSent);
    let mut open = open();
    open.hold_time = 1;
    open.capabilities.push(Capability::Role(4));
    let outputs = rig.bytes(&common::encode(&Message::Open(open)));
    assert_eq!(ended(&outputs).expect("ended").cause, Cause::PeerErred(Notification::new(2, 6)));
}

#[test]
fn an_open_with_an_unexpected_as_is_refused_and_its_number_reported() {
    let mut rig = Rig::in_state(config(), State::OpenSent);
    let mut open = open();
    open.asn = Asn(64_499);
    open.capabilities = vec![Capability::unicast(Afi::Ipv4), Capability::FourOctetAs(open.asn)];
    let outputs = rig.bytes(&common::encode(&Message::Open(open)));
    assert_eq!(notified(&outputs), Some((2, 2)));
    let cause = &ended(&outputs).expect("ended").cause;
    assert_eq!(*cause, Cause::UnexpectedAs { announced: Asn(64_499), notification: Notification::new(2, 2) });
    assert_eq!(cause.erred(), Erred::Peer);
    assert_eq!(cause.to_string(), "the peer's OPEN says AS64499, another AS is configured");
}

#[test]
fn an_identifier_like_ours_is_refused_within_our_as_only() {
    for (asn, expected) in [(common::LOCAL, Some((2, 3))), (common::PEER, None)] {
        let mut rig = Rig::in_state(Config { peer_asn: PeerAsn::Any, ..config() }, State::OpenSent);
        let mut open = open();
        open.asn = asn;
        open.identifier = common::LOCAL_ID;
        open.capabilities.retain(|capability| !matches!(capability, Capability::FourOctetAs(_)));
        open.capabilities.push(Capability::FourOctetAs(asn));
        assert_eq!(notified(&rig.bytes(&common::encode(&Message::Open(open)))), expected);
    }
}

#[test]
fn rfc_6608_names_the_state_and_the_message() {
    for (state, subcode) in [(State::OpenSent, 1), (State::OpenConfirm, 2)] {
        let mut rig = Rig::in_state(config(), state);
        let outputs = rig.bytes(&announce(&["192.0.2.0/24"]));
        assert_eq!(notification(&outputs), Some(Notification::with_data(5, subcode, [2])));
    }
    let mut rig = Rig::in_state(config(), State::Established);
    assert_eq!(notification(&rig.bytes(&peer_open())), Some(Notification::with_data(5, 3, [1])));
}

#[test]
fn an_established_session_reports_what_was_agreed() {
    let mut rig = Rig::in_state(config(), State::OpenConfirm);
    let outputs = rig.bytes(&keepalive());
    let [Output::Up(up)] = &outputs[..] else { panic!("{outputs:?}") };
    assert_eq!((up.peer_asn, up.peer_id, up.hold_time), (common::PEER, common::PEER_ID, HoldTime::DEFAULT));
    assert!(up.params.four_octet_as && up.params.ipv4_unicast && up.params.ipv6_unicast && up.params.external);
    assert!(!up.params.extended_message, "the peer does not offer it");
    assert!(up.route_refresh && up.enhanced_route_refresh && up.end_of_rib);
    assert_eq!(up.retain, None, "the peer keeps nothing through a restart");
}

#[test]
fn a_peer_without_capabilities_gets_ipv4_and_two_octets() {
    let mut rig = Rig::in_state(config(), State::OpenSent);
    rig.bytes(&raw(ONES, None, 1, &open_body(4, 64511, 30, [10, 0, 0, 2], &[])));
    let outputs = rig.bytes(&keepalive());
    let [Output::Up(up)] = &outputs[..] else { panic!("{outputs:?}") };
    assert!(up.params.ipv4_unicast && !up.params.ipv6_unicast && !up.params.four_octet_as);
    assert_eq!(up.hold_time.secs(), 30, "the smaller of both");
    assert!(!up.end_of_rib && !up.route_refresh);
    assert_eq!(rig.give(Input::Refresh { afi: Afi::Ipv4, kind: RefreshKind::Request }), []);
    assert_eq!(rig.give(Input::SendEndOfRib(Afi::Ipv6)), [], "a family that was not agreed");
}

#[test]
fn a_hold_time_of_zero_stops_both_timers() {
    let mut rig = Rig::in_state(config(), State::OpenSent);
    rig.bytes(&raw(ONES, None, 1, &open_body(4, 64511, 0, [10, 0, 0, 2], &[])));
    rig.bytes(&keepalive());
    assert_eq!(rig.session.deadline(), None);
    assert_eq!(rig.wait(seconds(1_000_000)), []);
    assert_eq!(rig.session.state(), State::Established);
}

#[test]
fn any_as_is_accepted_but_the_reserved_ones() {
    for (asn, accepted) in [(1, true), (64500, true), (4_200_000_000, true), (0, false), (23456, false)] {
        assert_eq!(PeerAsn::Any.accepts(Asn(asn)), accepted);
        assert_eq!(PeerAsn::Exactly(Asn(asn)).accepts(Asn(asn)), asn != 0);
    }
    assert_eq!([0, 1, 2, 3].map(|secs| HoldTime::from_secs(secs).is_some()), [true, false, false, true]);
}

#[test]
fn end_of_rib_and_refresh_come_out_as_what_they_are() {
    let mut rig = Rig::in_state(config(), State::Established);
    assert_eq!(rig.bytes(&end_of_rib(Afi::Ipv4)), [Output::EndOfRib(Afi::Ipv4)]);
    assert_eq!(rig.bytes(&end_of_rib(Afi::Ipv6)), [Output::EndOfRib(Afi::Ipv6)]);
    for (octets, expected) in [
        ([0, 1, 0, 1], Some((Afi::Ipv4, RefreshKind::Request))),
        ([0, 2, 1, 1], Some((Afi::Ipv6, RefreshKind::Begin))),
        ([0, 2, 2, 1], Some((Afi::Ipv6, RefreshKind::End))),
        ([0, 1, 7, 1], None),
        ([0, 25, 0, 65], None),
    ] {
        let outputs = rig.bytes(&raw(ONES, None, 5, &octets));
        assert_eq!(outputs, Vec::from_iter(expected.map(|(afi, kind)| Output::RouteRefresh { afi, kind })));
    }
    assert_eq!(rig.session.counters().refreshes_ignored, 2);
    let outputs = rig.bytes(&raw(ONES, None, 5, &[0, 1, 0]));
    assert_eq!(notified(&outputs), Some((7, 1)), "RFC 7313 section 5");
}

#[test]
fn a_malformed_update_that_rfc_7606_can_mend_keeps_the_session() {
    let mut rig = Rig::in_state(config(), State::Established);
    // ORIGIN 9, an AS path and a next hop, one prefix.
    let body = [
        &[0, 0, 0, 20][..],
        &[0x40, 1, 1, 9],
        &[0x40, 2, 6, 2, 1, 0, 0, 0xfb, 0xff],
        &[0x40, 3, 4, 192, 0, 2, 1],
        &[24, 192, 0, 2],
    ]
    .concat();
    let outputs = rig.bytes(&raw(ONES, None, 2, &body));
    let [Output::Update(update)] = &outputs[..] else { panic!("{outputs:?}") };
    assert_eq!((update.announced.len(), update.withdrawn.len(), update.problems.len()), (0, 1, 1));
    assert_eq!(rig.session.state(), State::Established);
    let counters = rig.session.counters();
    assert_eq!((counters.malformed_updates, counters.treated_as_withdraw, counters.peer_errors), (1, 1, 0));
}

#[test]
fn a_blocked_connection_holds_keepalives_back_and_goes_down_at_the_send_hold_time() {
    let mut rig = Rig::in_state(config(), State::Established);
    assert!(rig.session.is_writable());
    let connection = rig.connection;
    rig.give(Input::Blocked { connection });
    assert!(!rig.session.is_writable());
    for second in 0..479 {
        let outputs = rig.wait(seconds(1));
        assert_eq!(outputs, [], "second {second}: nothing is added to what cannot be sent");
        rig.bytes(&keepalive());
    }
    let mut freed = Rig::in_state(config(), State::Established);
    let connection = freed.connection;
    freed.give(Input::Blocked { connection });
    freed.wait(seconds(80));
    assert_eq!(sent(&freed.give(Input::Writable { connection })).collect::<Vec<_>>(), [Message::Keepalive]);
    assert!(freed.session.is_writable());
    let outputs = rig.wait(seconds(1));
    assert_eq!(notified(&outputs), Some((8, 0)));
    assert_eq!(ended(&outputs).expect("an end").cause, Cause::SendHoldTimerExpired);
}

#[test]
fn a_slow_peer_costs_no_memory_and_meets_the_hold_timer() {
    let mut rig = Rig::in_state(config(), State::Established);
    let message = announce(&["192.0.2.0/24", "198.51.100.0/24"]);
    let mut outputs = Vec::new();
    for octet in message.iter().cycle() {
        outputs.extend(rig.wait(seconds(10)));
        if rig.session.state() != State::Established {
            break;
        }
        outputs.extend(rig.bytes(&[*octet]));
        assert!(rig.session.buffered() <= 8_192);
    }
    assert_eq!(ended(&outputs).expect("an end").cause, Cause::HoldTimerExpired);
}

#[test]
fn what_is_sent_while_not_established_is_dropped_and_counted() {
    for state in STATES {
        let mut rig = Rig::in_state(config(), state);
        let outputs = rig.give(Input::Send(vec![announce(&["192.0.2.0/24"])]));
        let is_sent = matches!(outputs[..], [Output::Send { .. }]);
        assert_eq!(is_sent, state == State::Established);
        assert_eq!(rig.session.counters().dropped, u64::from(!is_sent));
    }
}

#[test]
fn a_connection_too_many_is_refused_in_established() {
    let mut rig = Rig::in_state(config(), State::Established);
    let first = rig.connection;
    let outputs = rig.connect(false);
    assert_eq!(notified(&outputs), Some((6, 7)));
    assert!(matches!(outputs.last(), Some(Output::Close { connection }) if *connection != first));
    assert_eq!(rig.session.state(), State::Established);
}

#[test]
fn a_peer_that_keeps_its_routes_through_a_restart_may_connect_again() {
    use wayleave_bgp::GracefulRestartFamily;
    let mut rig = Rig::in_state(config(), State::OpenSent);
    let mut open = open();
    open.capabilities.pop();
    let families = vec![GracefulRestartFamily { afi: 1, safi: 1, flags: 0x80 }];
    open.capabilities.push(Capability::GracefulRestart { flags: 0, restart_time: 120, families });
    rig.bytes(&common::encode(&Message::Open(open)));
    rig.bytes(&keepalive());
    let outputs = rig.connect(false);
    let end = ended(&outputs).expect("the old session ends");
    let retain = end.retain.as_ref().expect("its routes stay");
    assert_eq!((&end.cause, &retain.families[..]), (&Cause::PeerRestarted, &[Afi::Ipv4][..]));
    assert_eq!(retain.restart_time, seconds(120));
    assert_eq!(rig.session.state(), State::OpenSent);
    // Lost without a NOTIFICATION: routes stay; ended by one: they go.
    rig.bytes(&peer_open());
    rig.bytes(&keepalive());
    assert_eq!(ended(&rig.closed()).expect("an end").retain, None, "this time it kept nothing");
}

#[test]
fn a_silent_connection_of_the_peer_does_not_prevent_ours() {
    let mut rig = Rig::in_state(config(), State::Active);
    rig.connect(false);
    assert_eq!(rig.session.state(), State::OpenSent);
    let outputs = rig.wait(seconds(5));
    assert!(matches!(outputs[..], [Output::Connect { .. }]), "{outputs:?}");
}
