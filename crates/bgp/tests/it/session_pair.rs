//! Two sessions back to back over wires that cut, delay and interleave octets.
//!
//! BGP-10: 10^5 flaps; simultaneous opens: no growth; one session.

use std::net::Ipv4Addr;
use std::time::Duration;

use crate::common::pair::Pair;
use crate::common::{self, LOCAL, LOCAL_ID, PEER, PEER_ID, announce, attributes, config, p};
use wayleave_bgp::notification::{cease, code};
use wayleave_bgp::rib::AdjRibOut;
use wayleave_bgp::session::{
    AddPathOffer, Cause, Config, GracefulRestartOffer, HoldTime, Input, PeerAsn, State, Stop, StopReason,
};
use wayleave_bgp::{Capability, LongLivedFamily, Nlri, Notification, RefreshKind};
use wayleave_core::Afi;

fn seconds(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// Both may connect and both may be connected to.
fn configs() -> [Config; 2] {
    [config(), Config::new(PEER, PEER_ID, PeerAsn::Exactly(LOCAL))]
}

/// Only the first connects.
fn one_way() -> [Config; 2] {
    let [a, b] = configs();
    [a, Config { passive: true, ..b }]
}

#[test]
fn two_sessions_establish_and_exchange_updates() {
    let mut pair = Pair::new(one_way(), 1);
    pair.start();
    assert!(pair.is_up());
    let [a, b] = [&pair.reports[0].ups[0], &pair.reports[1].ups[0]];
    assert_eq!((a.peer_asn, a.peer_id), (PEER, PEER_ID));
    assert_eq!((b.peer_asn, b.peer_id), (LOCAL, LOCAL_ID));
    assert!(a.params.extended_message && b.params.extended_message && a.end_of_rib && a.enhanced_route_refresh);
    pair.give(0, Input::Send(vec![announce(&["192.0.2.0/24"]), announce(&["2001:db8::/32"])]));
    pair.give(0, Input::SendEndOfRib(Afi::Ipv4));
    pair.give(1, Input::Refresh { afi: Afi::Ipv6, kind: RefreshKind::Request });
    pair.settle();
    let announced: Vec<Nlri> = pair.reports[1].updates.iter().flat_map(|update| update.announced.clone()).collect();
    assert_eq!(announced, [Nlri::new(p("192.0.2.0/24")), Nlri::new(p("2001:db8::/32"))]);
    assert_eq!(pair.reports[1].ends_of_rib, [Afi::Ipv4]);
    assert_eq!(pair.reports[0].refreshes, 1);
    pair.wait(seconds(100_000));
    assert!(pair.is_up(), "KEEPALIVEs keep it up");
    assert_eq!((pair.reports[0].ups.len(), pair.reports[0].downs.len()), (1, 0));
}

#[test]
fn every_fragmentation_gives_the_same_routes() {
    for chunk in 1..=120 {
        let mut pair = Pair::new(one_way(), chunk as u64);
        pair.chunk = chunk;
        pair.start();
        assert!(pair.is_up(), "chunks of {chunk}");
        pair.give(0, Input::Send(vec![announce(&["192.0.2.0/24", "198.51.100.0/24"]), announce(&["2001:db8::/32"])]));
        pair.settle();
        assert_eq!(pair.reports[1].updates.iter().map(|update| update.announced.len()).sum::<usize>(), 3);
    }
    // One cut, at each octet of the whole conversation.
    let conversation = [common::peer_open(), common::keepalive(), announce(&["192.0.2.0/24"])].concat();
    for cut in 0..=conversation.len() {
        let mut rig = common::Rig::in_state(config(), State::OpenSent);
        rig.bytes(&conversation[..cut]);
        rig.bytes(&conversation[cut..]);
        assert_eq!(rig.session.state(), State::Established);
        assert_eq!(rig.session.counters().received.update, 1, "cut at {cut}");
    }
}

#[test]
fn simultaneous_opens_leave_one_session_whichever_identifier_is_greater() {
    for swap in [false, true] {
        for seed in 0..500 {
            let mut pair = Pair::new(configs(), seed);
            let (low, high) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
            let ids = if swap { [high, low] } else { [low, high] };
            let [a, b] = configs();
            pair.sessions[0].set_config(Config { router_id: ids[0], ..a });
            pair.sessions[1].set_config(Config { router_id: ids[1], ..b });
            pair.chunk = [usize::MAX, 7, 19][seed as usize % 3];
            pair.start();
            // Who loses both connections in a race tries again.
            pair.wait(seconds(30));
            assert!(pair.is_up(), "seed {seed}: {:?}", pair.states());
            assert_eq!(pair.open_wires(), 1, "seed {seed}");
            let ups = [pair.reports[0].ups.len(), pair.reports[1].ups.len()];
            let downs = [pair.reports[0].downs.len(), pair.reports[1].downs.len()];
            assert_eq!([ups[0] - downs[0], ups[1] - downs[1]], [1, 1], "seed {seed}");
        }
    }
}

#[test]
fn the_connection_of_the_greater_identifier_is_kept() {
    // Both connections stand at both ends before any octet is delivered.
    for (greater, kept_is_outgoing) in [(true, true), (false, false)] {
        let id = if greater { Ipv4Addr::new(10, 0, 0, 3) } else { LOCAL_ID };
        for first_is_outgoing in [true, false] {
            let mut rig = common::Rig::new(Config { router_id: id, ..config() });
            rig.give(Input::Start);
            rig.connect(true);
            let outgoing = rig.connection;
            rig.connect(false);
            let incoming = rig.connection;
            let order = if first_is_outgoing { [outgoing, incoming] } else { [incoming, outgoing] };
            for connection in order {
                rig.connection = connection;
                rig.bytes(&common::peer_open());
            }
            let kept = if kept_is_outgoing { outgoing } else { incoming };
            rig.connection = kept;
            let outputs = rig.bytes(&common::keepalive());
            assert!(outputs.iter().any(|output| matches!(
                output,
                wayleave_bgp::session::Output::Up(up) if up.connection == kept
            )));
            assert_eq!(rig.session.counters().collisions, 1);
            assert_eq!(rig.session.state(), State::Established);
        }
    }
}

#[test]
fn a_deferred_open_is_handled_when_the_winner_fails_or_stays_silent() {
    use wayleave_bgp::session::Output;
    for mute in [false, true] {
        // The peer's identifier is greater, so its connection wins; ours has the OPEN first.
        let mut rig = common::Rig::new(config());
        rig.give(Input::Start);
        rig.connect(true);
        let ours = rig.connection;
        rig.connect(false);
        let theirs = rig.connection;
        rig.connection = ours;
        let outputs = rig.bytes(&[common::peer_open(), common::keepalive()].concat());
        assert_eq!(outputs, [], "it waits for the other connection");
        let outputs = match mute {
            true => rig.wait(seconds(5)),
            false => rig.give(Input::Closed { connection: theirs }),
        };
        let up = outputs.iter().any(|output| matches!(output, Output::Up(up) if up.connection == ours));
        assert!(up, "mute: {mute}: {outputs:?}");
        let closes = outputs.contains(&Output::Close { connection: theirs });
        assert!(closes, "mute: {mute}: one connection is left");
        assert_eq!(rig.session.state(), State::Established);
    }
}

#[test]
fn octets_behind_a_deferred_open_are_bounded() {
    let mut rig = common::Rig::new(config());
    rig.give(Input::Start);
    rig.connect(true);
    let ours = rig.connection;
    rig.connect(false);
    rig.connection = ours;
    rig.bytes(&common::peer_open());
    let outputs = rig.bytes(&common::keepalive().repeat(1_000));
    assert_eq!(common::notified(&outputs), Some((6, 8)));
    assert_eq!(rig.session.state(), State::OpenSent, "the other connection stands");
}

#[test]
fn of_equal_identifiers_the_greater_as_keeps_its_connection() {
    for (local, outgoing_kept) in [(64_500, false), (64_600, true)] {
        let local_asn = wayleave_core::Asn(local);
        let mut rig = common::Rig::new(Config { local_asn, router_id: PEER_ID, ..config() });
        rig.give(Input::Start);
        rig.connect(true);
        let outgoing = rig.connection;
        rig.connect(false);
        let incoming = rig.connection;
        for connection in [outgoing, incoming] {
            rig.connection = connection;
            rig.bytes(&common::peer_open());
        }
        rig.connection = if outgoing_kept { outgoing } else { incoming };
        rig.bytes(&common::keepalive());
        assert_eq!(rig.session.state(), State::Established);
    }
}

#[test]
fn once_established_no_attempt_to_connect_is_left() {
    use wayleave_bgp::session::Output;
    let mut rig = common::Rig::in_state(config(), State::Connect);
    rig.connect(false);
    rig.bytes(&common::peer_open());
    rig.bytes(&common::keepalive());
    assert_eq!(rig.session.state(), State::Established);
    let outputs = rig.wait(seconds(80));
    assert!(outputs.iter().all(|output| matches!(output, Output::Send { .. })), "{outputs:?}");
    let outputs = rig.connect(true);
    assert!(matches!(outputs[..], [Output::Close { .. }]), "{outputs:?}");
    assert_eq!(rig.session.state(), State::Established);
}

#[test]
fn a_stream_that_never_pauses_at_a_message_boundary_does_not_grow_the_buffer() {
    let mut rig = common::Rig::in_state(config(), State::Established);
    let update = announce(&["192.0.2.0/24", "198.51.100.0/24"]);
    let shifted = [&update[1..], &update[..1]].concat();
    rig.bytes(&update[..1]);
    for _ in 0..10_000 {
        rig.bytes(&shifted);
    }
    assert_eq!(rig.session.counters().received.update, 10_000);
    assert!(rig.session.buffered() <= 1_024, "{} octets", rig.session.buffered());
}

#[test]
fn equal_identifiers_are_decided_by_the_as_number() {
    for seed in 0..50 {
        let [a, b] = configs();
        let mut pair = Pair::new([a, Config { router_id: LOCAL_ID, ..b }], seed);
        pair.start();
        pair.wait(seconds(30));
        assert!(pair.is_up());
        assert_eq!(pair.open_wires(), 1);
    }
}

#[test]
fn a_wire_that_goes_silent_takes_both_down_at_the_agreed_hold_time() {
    let [a, b] = one_way();
    let mut pair = Pair::new([Config { hold_time: HoldTime::from_secs(30).expect("valid"), ..a }, b], 3);
    pair.start();
    let start = pair.now;
    // Time passes for one side only: the other's KEEPALIVEs never come.
    while pair.sessions[0].state() == State::Established {
        let deadline = wayleave_core::Machine::deadline(&pair.sessions[0]).expect("timers run");
        wayleave_core::Machine::handle_timeout(&mut pair.sessions[0], common::at(deadline));
        while let Some(output) = wayleave_core::Machine::poll(&mut pair.sessions[0]) {
            if let wayleave_bgp::session::Output::Down(ended) = output {
                assert_eq!(ended.cause, Cause::HoldTimerExpired);
                assert_eq!(deadline, start + seconds(30));
            }
        }
    }
}

#[test]
fn a_shutdown_is_understood_and_a_start_brings_it_back() {
    let mut pair = Pair::new(one_way(), 4);
    pair.start();
    let reason = StopReason::Shutdown("Wartung bis 4 Uhr: ä".to_owned());
    pair.give(1, Input::Stop(Stop { administrative: true, reason }));
    pair.settle();
    let Cause::PeerEnded(notification) = &pair.reports[0].downs[0].cause else { panic!("a NOTIFICATION") };
    assert_eq!(notification.shutdown_text(), Some("Wartung bis 4 Uhr: ä"));
    pair.wait(seconds(600));
    assert_eq!(pair.sessions[1].state(), State::Idle);
    pair.give(1, Input::Start);
    pair.wait(seconds(121));
    assert!(pair.is_up());
}

#[test]
fn an_unreachable_peer_is_retried_until_it_is_reachable() {
    let mut pair = Pair::new(one_way(), 5);
    pair.reachable = false;
    pair.start();
    pair.wait(seconds(3_600));
    assert!((700..1_000).contains(&pair.reports[0].failed.len()), "{}", pair.reports[0].failed.len());
    pair.reachable = true;
    pair.wait(seconds(6));
    assert!(pair.is_up());
}

#[test]
fn a_hundred_thousand_flaps_leave_nothing_behind() {
    let [a, b] = configs();
    let impatient = |config| Config { idle_hold: Duration::ZERO, connect_retry: Duration::from_millis(1), ..config };
    let mut pair = Pair::new([impatient(a), impatient(b)], 6);
    pair.start();
    let mut flaps = 0;
    let mut most = 0;
    for round in 0u64..100_000 {
        match round % 3 {
            0 => pair.cut(),
            1 => pair.give(
                (round % 2) as usize,
                Input::Stop(Stop { administrative: false, reason: StopReason::Reset(String::new()) }),
            ),
            _ => pair.give(0, Input::Send(vec![vec![0; 19]])),
        }
        pair.settle();
        pair.wait(Duration::from_millis(10));
        flaps += 1;
        most = most.max(pair.sessions[0].buffered() + pair.sessions[1].buffered());
        assert!(pair.open_wires() <= 2, "round {round}");
        for report in &mut pair.reports {
            assert!(report.ups.len() <= report.downs.len() + 1, "round {round}: two sessions at once");
            assert!(report.downs.len() <= report.ups.len(), "round {round}: a Down without an Up");
            if report.ups.len() > 100 {
                // Only the balance matters.
                let gone = report.downs.len();
                report.ups.drain(..gone);
                report.downs.clear();
                report.failed.clear();
            }
        }
    }
    pair.wait(seconds(300));
    assert!(pair.is_up());
    assert_eq!((flaps, pair.open_wires()), (100_000, 1));
    assert!(most <= 32_768, "buffers held {most} octets");
    assert!(pair.sessions[0].counters().established > 50_000);
}

#[test]
fn add_path_is_agreed_where_one_sends_and_the_other_receives() {
    let [mut a, mut b] = one_way();
    a.offer.add_path_ipv4 = AddPathOffer { receive: false, send: true };
    a.offer.add_path_ipv6 = AddPathOffer { receive: true, send: true };
    b.offer.add_path_ipv4 = AddPathOffer { receive: true, send: false };
    b.offer.add_path_ipv6 = AddPathOffer { receive: false, send: false };
    let mut pair = Pair::new([a, b], 8);
    pair.start();
    let params = [pair.reports[0].ups[0].params, pair.reports[1].ups[0].params];
    assert!(params[0].add_path_send.ipv4 && params[1].add_path_receive.ipv4);
    assert!(!params[0].add_path_receive.ipv4 && !params[0].add_path_send.ipv6 && !params[0].add_path_receive.ipv6);
    let mut rib = AdjRibOut::new();
    for path_id in [1, 2, 3] {
        rib.announce(Nlri { prefix: p("192.0.2.0/24"), path_id }, attributes(&[LOCAL.0, path_id]).into());
        rib.announce(Nlri { prefix: p("2001:db8::/32"), path_id }, attributes(&[LOCAL.0, path_id]).into());
    }
    rib.session_up(params[0], true);
    pair.give(0, Input::Send(rib.next_batch(usize::MAX).messages));
    pair.settle();
    let mut announced: Vec<Nlri> = pair.reports[1].updates.iter().flat_map(|update| update.announced.clone()).collect();
    announced.sort();
    let path = |text: &str, path_id| Nlri { prefix: p(text), path_id };
    let expected =
        [path("192.0.2.0/24", 1), path("192.0.2.0/24", 2), path("192.0.2.0/24", 3), path("2001:db8::/32", 0)];
    assert_eq!(announced, expected);
    assert_eq!(pair.reports[1].ends_of_rib, [Afi::Ipv4, Afi::Ipv6]);
}

#[test]
fn routes_are_kept_through_a_loss_only_if_the_peer_requested_it() {
    for (offer, retains) in [
        (None, false),
        (Some(GracefulRestartOffer::default()), false),
        (
            Some(GracefulRestartOffer {
                restart_time: 60,
                restarted: true,
                families: vec![Afi::Ipv4],
                ..GracefulRestartOffer::default()
            }),
            true,
        ),
    ] {
        let [a, mut b] = one_way();
        b.offer.graceful_restart = offer.clone();
        let mut pair = Pair::new([a, b], 9);
        pair.start();
        let up = &pair.reports[0].ups[0];
        assert_eq!(up.end_of_rib, offer.is_some());
        assert_eq!((up.retain.is_some(), up.peer_restarted), (retains, retains));
        pair.cut();
        assert_eq!(pair.reports[0].downs[0].retain.is_some(), retains);
    }
}

/// RFC 8538: with the N bit of both ends, a NOTIFICATION leaves routes stale as a lost connection does, unless it is a Hard Reset.
#[test]
fn routes_are_kept_over_a_notification_only_if_both_ends_say_so_and_it_is_no_hard_reset() {
    let hard = Notification::with_data(code::CEASE, cease::HARD_RESET, [code::CEASE, cease::ADMINISTRATIVE_SHUTDOWN]);
    let soft = Notification::new(code::CEASE, cease::ADMINISTRATIVE_SHUTDOWN);
    let plain = StopReason::PassedOn(soft);
    for (ours, theirs, reason, retains) in [
        (true, true, plain.clone(), true),
        (true, false, plain.clone(), false),
        (false, true, plain, false),
        (true, true, StopReason::PassedOn(hard), false),
    ] {
        let offer = |notifications, families| GracefulRestartOffer {
            restart_time: 60,
            families,
            notifications,
            ..GracefulRestartOffer::default()
        };
        let [mut a, mut b] = one_way();
        a.offer.graceful_restart = Some(offer(ours, vec![]));
        b.offer.graceful_restart = Some(offer(theirs, vec![Afi::Ipv6]));
        let mut pair = Pair::new([a, b], 10);
        pair.start();
        assert_eq!(pair.reports[0].ups[0].retain.as_ref().map(|retain| retain.notifications), Some(ours && theirs));
        pair.give(1, Input::Stop(Stop { administrative: true, reason: reason.clone() }));
        pair.settle();
        let [of_a, of_b] = &pair.reports;
        assert_eq!(of_a.downs[0].retain.is_some(), retains, "{reason:?}");
        assert_eq!(of_b.downs[0].retain, None, "who stopped keeps nothing, and was asked for nothing");
    }
}

#[test]
fn a_long_lived_stale_time_is_agreed_beside_graceful_restart_only() {
    let family = |afi: Afi| LongLivedFamily { afi: afi.code(), safi: 1, flags: 0x80, stale_time: 3_600 };
    let stated = Capability::LongLivedGracefulRestart(vec![family(Afi::Ipv4), family(Afi::Ipv6)]);
    // A relay withholds nothing; whoever does is not asked whether it keeps routes itself.
    for (restart, ours, expected, wants, withholds) in [
        (true, true, vec![(Afi::Ipv4, seconds(3_600)), (Afi::Ipv6, seconds(3_600))], true, false),
        (true, false, vec![], true, false),
        (false, true, vec![], true, true),
        (false, false, vec![], true, true),
        (false, true, vec![], false, false),
    ] {
        let [mut a, mut b] = one_way();
        (a.offer.long_lived, a.withholds_stale) = (ours, wants);
        b.offer.more = vec![stated.clone()];
        let offer = GracefulRestartOffer { families: vec![Afi::Ipv4], ..GracefulRestartOffer::default() };
        b.offer.graceful_restart = restart.then_some(offer);
        let mut pair = Pair::new([a, b], 11);
        pair.start();
        let up = &pair.reports[0].ups[0];
        assert_eq!(up.retain.as_ref().map(|retain| retain.long_lived.clone()).unwrap_or_default(), expected);
        assert_eq!(up.params.withholds_stale, withholds);
    }
}
