//! A pair is not there for its ends: they see each other, fall together, and lose nothing.

use std::time::Duration;

use crate::common::proxy_net::{At, Net, config, update};
use wayleave_attestation::proxy::session_pair::Side;
use wayleave_attestation::proxy::{Input, session_pair};
use wayleave_attestation::sign::KeyRing;
use wayleave_bgp::session::{self, Cause, Config, ConnectionId, GracefulRestartOffer, HoldTime, PeerAsn, Role};
use wayleave_bgp::{AttributeCode, AttributeFlags, Capability, Message, MessageType, RefreshKind, SessionParams};
use wayleave_core::{Afi, Asn};

/// Speaker 0 of AS 64497 inside, speaker 1 of AS 64498 outside; the sessions' configurations may be changed.
fn net(inside: impl FnOnce(&mut Config), outside: impl FnOnce(&mut Config)) -> Net {
    let mut net = Net::new();
    net.speaker(64_497);
    net.speaker(64_498);
    let a = net.session(0, inside);
    let b = net.session(1, outside);
    let proxy = net.proxy(config(64_497, 1, false), KeyRing::default());
    net.link(a, At::Proxy(proxy, 0, Side::Inside));
    net.link(b, At::Proxy(proxy, 0, Side::Outside));
    net
}

fn plain() -> Net {
    let mut net = net(|_| (), |_| ());
    net.start();
    net
}

#[test]
fn each_end_sees_the_other_ends_number_identifier_and_capabilities() {
    let mut net = net(
        |config| {
            config.hold_time = HoldTime::from_secs(30).expect("a hold time");
            config.role = Some(Role::Customer);
        },
        |config| {
            config.offer.extended_message = false;
            config.offer.ipv6_unicast = false;
            config.role = Some(Role::Provider);
        },
    );
    net.start();
    let (a, b) = (&net.speakers[0].ups[0], &net.speakers[1].ups[0]);
    assert_eq!((a.peer_asn, a.peer_id.octets()), (Asn(64_498), [192, 0, 2, 2]));
    assert_eq!((b.peer_asn, b.peer_id.octets()), (Asn(64_497), [192, 0, 2, 1]));
    assert_eq!((a.hold_time.secs(), b.hold_time.secs()), (30, 30));
    for up in [a, b] {
        assert!(!up.params.extended_message && !up.params.ipv6_unicast && up.params.four_octet_as);
        assert!(up.route_refresh && up.enhanced_route_refresh && up.end_of_rib);
    }
    assert!(a.peer_capabilities.contains(&Capability::Role(0)) && b.peer_capabilities.contains(&Capability::Role(3)));
}

#[test]
fn what_the_proxy_cannot_keep_is_not_promised() {
    let restart = || {
        Some(GracefulRestartOffer { restart_time: 120, families: vec![Afi::Ipv4], ..GracefulRestartOffer::default() })
    };
    let mut net = net(
        |config| {
            config.offer.graceful_restart = restart();
            config.offer.more = vec![Capability::Unknown { code: 73, value: vec![0, 0] }];
        },
        |config| config.offer.graceful_restart = restart(),
    );
    net.start();
    for speaker in &net.speakers {
        let up = &speaker.ups[0];
        assert_eq!(up.retain, None);
        assert!(up.end_of_rib);
        assert!(!up.peer_capabilities.iter().any(|capability| matches!(capability, Capability::Unknown { .. })));
    }
}

#[test]
fn a_session_with_a_two_octet_speaker_has_two_octet_numbers_at_both_ends() {
    let mut net = net(|_| (), |config| config.offer.four_octet_as = false);
    net.start();
    assert!(net.speakers.iter().all(|speaker| !speaker.ups[0].params.four_octet_as));
    net.announce_with(0, "192.0.2.0/24", |edit| {
        edit.prepend(Asn(4_200_000_000), 1);
    });
    let path: Vec<Asn> = net.has(1, "192.0.2.0/24").expect("it came").as_path().asns().collect();
    assert_eq!(path, [Asn(64_497), Asn(4_200_000_000)]);
}

#[test]
fn attributes_pass_octet_for_octet_and_next_hops_stay() {
    let mut net = plain();
    net.announce_with(0, "198.51.100.0/24", |edit| {
        edit.med(Some(7)).prepend(Asn(64_500), 2);
        edit.set(AttributeCode(200), AttributeFlags(0xc0), &[1, 2, 3]);
        edit.set(AttributeCode(201), AttributeFlags(0xe0), &[0; 300]);
        edit.set(AttributeCode(202), AttributeFlags(0x80), &[9]);
    });
    let sent = net.speakers[0].peers[0].adj_rib_out().sent().next().map(|(_, sent)| (**sent).clone());
    assert_eq!(net.has(1, "198.51.100.0/24"), sent.as_ref());
    assert_eq!(sent.and_then(|sent| sent.ipv4_next_hop()), Some([192, 0, 2, 1].into()));
    net.withdraw(0, "198.51.100.0/24");
    assert_eq!(net.has(1, "198.51.100.0/24"), None);
}

#[test]
fn the_end_of_the_routes_comes_behind_the_routes() {
    let mut net = net(|_| (), |_| ());
    for i in 0..40 {
        net.announce(0, &format!("10.{i}.0.0/16"));
    }
    net.start();
    assert_eq!(net.speakers[1].learned.len(), 40);
    assert_eq!((net.speakers[0].ends_of_rib, net.speakers[1].ends_of_rib), (1, 1));
    // On the wire too: the last UPDATE towards the outside is the mark.
    let params = SessionParams::new(Asn(64_497), Asn(64_498));
    let mut rest = &net.seen[&At::Proxy(0, 0, Side::Outside)][..];
    let (mut announced, mut ended) = (0, false);
    while let Ok((message, after)) = Message::decode(rest, &params) {
        rest = after;
        let Message::Update(update) = message else { continue };
        assert!(!ended || update.announced.is_empty(), "a route after the mark");
        announced += update.announced.len();
        ended |= update.end_of_rib == Some(Afi::Ipv4);
    }
    assert_eq!((announced, ended), (40, true));
}

#[test]
fn a_notification_is_carried_over_word_for_word_and_routes_go() {
    let mut net = plain();
    net.announce(0, "192.0.2.0/24");
    net.announce(1, "198.51.100.0/24");
    net.shut(At::Speaker(1, 0), "maintenance until four");
    assert!(net.speakers[0].learned.is_empty());
    let Cause::PeerEnded(notification) = &net.speakers[0].ends[0].cause else { panic!("ended by the peer") };
    assert_eq!(notification.shutdown_text(), Some("maintenance until four"));
    let pair = net.proxies[0].pair(0).expect("a pair");
    assert!(Side::BOTH.iter().all(|side| pair.rib_in(*side).is_empty() && pair.established(*side).is_none()));
}

#[test]
fn a_lost_connection_takes_the_other_down_and_both_come_back() {
    let mut net = plain();
    net.announce(0, "192.0.2.0/24");
    net.cut(At::Speaker(0, 0));
    assert!(net.speakers[1].learned.is_empty());
    let Cause::PeerEnded(notification) = &net.speakers[1].ends[0].cause else { panic!("ended by the peer") };
    assert_eq!((notification.code, notification.subcode), (6, 4));
    net.wait(Duration::from_secs(5));
    net.reconnect();
    net.wait(Duration::from_secs(5));
    assert_eq!(net.speakers[1].ups.len(), 2);
    assert!(net.has(1, "192.0.2.0/24").is_some());
}

#[test]
fn one_end_alone_gets_no_answer() {
    let mut net = Net::new();
    net.speaker(64_497);
    let a = net.session(0, |_| ());
    let proxy = net.proxy(config(64_497, 1, false), KeyRing::default());
    net.link(a, At::Proxy(proxy, 0, Side::Inside));
    net.start();
    assert!(net.speakers[0].ups.is_empty());
    assert!(net.proxies[0].pair(0).expect("a pair").waits(Side::Inside));
    let said = net.proxies[0].status().pairs[0].problem.clone().expect("it is not up");
    assert!(said.contains("the inside peer is here, the outside peer is not"), "{said}");
    assert!(!net.seen.contains_key(&At::Proxy(0, 0, Side::Inside)));
    // Before the speaker gives up by itself.
    net.wait(Duration::from_secs(201));
    assert!(!net.proxies[0].pair(0).expect("a pair").waits(Side::Inside));
}

#[test]
fn a_stranger_is_refused_and_the_other_end_learns_nothing_of_it() {
    let mut net = Net::new();
    net.speaker(64_999);
    net.speaker(64_498);
    let a = net.session(0, |_| ());
    let b = net.session(1, |_| ());
    let proxy = net.proxy(config(64_497, 1, false), KeyRing::default());
    net.link(a, At::Proxy(proxy, 0, Side::Inside));
    net.link(b, At::Proxy(proxy, 0, Side::Outside));
    net.start();
    let Cause::PeerEnded(notification) = &net.speakers[0].failed[0].cause else { panic!("no notification") };
    assert_eq!((notification.code, notification.subcode), (2, 2));
    assert!(net.speakers[1].ups.is_empty() && net.speakers[1].failed.is_empty());
    assert!(!net.seen.contains_key(&At::Proxy(0, 0, Side::Outside)));
}

#[test]
fn a_pair_that_is_not_up_says_who_sent_which_notification_and_what_to_do() {
    // The router inside expects its neighbour in another AS.
    let mut net = net(|config| config.peer_asn = PeerAsn::Exactly(Asn(64_499)), |_| ());
    net.start();
    let status = net.proxies[0].status();
    let said = status.pairs[0].problem.clone().expect("it is not up");
    assert!(said.contains("the inside peer: it sent the NOTIFICATION ") && said.contains("(2/2)"), "{said}");
    assert!(said.contains("your router must have this neighbour in AS64498"), "{said}");
    assert!(status.pairs[0].inside.last_end.as_ref().is_some_and(|end| end.contains("(2/2)")), "{status:?}");
    assert_eq!(net.proxies[0].lacks().as_deref(), Some("pair pair 0 is not up"), "it is logged at each change");
    assert_eq!(net.proxies[0].why("192.0.2.0/24".parse().expect("a prefix")).problems, [said]);
    // One that is up has no problem.
    let mut net = plain();
    let status = net.proxies[0].status();
    assert_eq!((&status.pairs[0].problem, &status.pairs[0].inside.last_end), (&None, &None));
    assert_eq!(net.proxies[0].lacks(), None);
}

#[test]
fn a_pair_that_is_not_up_names_the_end_that_failed_first_and_none_that_is_back() {
    let mut net = plain();
    let problem = |net: &mut Net| net.proxies[0].status().pairs[0].problem.clone().expect("it is not up");
    let connect = |net: &mut Net, side: Side, number: u64, octets: &[u8]| {
        let (at, connection) = (At::Proxy(0, 0, side), ConnectionId(number));
        net.give(at, session::Input::Connected { connection, outgoing: false });
        net.give(at, session::Input::Bytes { connection, bytes: octets.to_vec() });
    };
    let sent = net.seen[&At::Speaker(0, 0)].clone();
    let open = &sent[..usize::from(u16::from_be_bytes([sent[16], sent[17]]))];
    net.shut(At::Speaker(0, 0), "a restart");
    net.wait(Duration::from_secs(5));
    let first = problem(&mut net);
    assert!(first.contains("the inside peer: it sent the NOTIFICATION "), "{first}");
    // Now the neighbour errs, too.
    connect(&mut net, Side::Outside, 9_001, &[0; 19]);
    assert!(net.proxies[0].status().pairs[0].outside.last_end.is_some());
    assert_eq!(problem(&mut net), first);
    assert_eq!(net.proxies[0].lacks().as_deref(), Some("pair pair 0 is not up"));
    // The own router is back, and waits.
    connect(&mut net, Side::Inside, 9_002, open);
    let said = problem(&mut net);
    assert!(said.contains("the outside peer: it erred, and this proxy sent the NOTIFICATION "), "{said}");
    assert_eq!(net.proxies[0].status().pairs[0].inside.last_end, None);
}

#[test]
fn a_peer_that_has_connected_and_is_silent_is_not_said_to_be_away() {
    let mut net = Net::new();
    net.proxy(config(64_497, 1, false), KeyRing::default());
    net.start();
    let problem = |net: &mut Net| net.proxies[0].status().pairs[0].problem.clone().expect("it is not up");
    assert!(problem(&mut net).contains("neither peer has connected"));
    let connected = |number| session::Input::Connected { connection: ConnectionId(number), outgoing: false };
    net.give(At::Proxy(0, 0, Side::Inside), connected(9_001));
    let said = problem(&mut net);
    assert!(said.contains("the inside peer has connected and sent no OPEN yet, the outside peer has not"), "{said}");
    net.give(At::Proxy(0, 0, Side::Outside), connected(9_002));
    assert!(problem(&mut net).contains("both peers have connected and sent no OPEN yet"));
}

#[test]
fn a_refresh_goes_to_the_other_end_and_is_answered_at_once() {
    let mut net = plain();
    net.announce(0, "192.0.2.0/24");
    let before = net.speakers[1].updates.len();
    let refresh = wayleave_bgp::session::Input::Refresh { afi: Afi::Ipv4, kind: RefreshKind::Request };
    net.give(At::Speaker(1, 0), refresh);
    net.settle();
    assert_eq!(net.speakers[1].updates.len(), before + 1);
    let is_requested = net.seen[&At::Proxy(0, 0, Side::Inside)]
        .windows(23)
        .any(|octets| octets[..16] == [0xff; 16] && octets[18] == MessageType::RouteRefresh.octet());
    assert!(is_requested, "the inside was not asked");
    assert!(net.has(1, "192.0.2.0/24").is_some());
}

#[test]
fn what_a_marked_refresh_no_longer_names_goes() {
    let mut net = plain();
    net.announce(0, "192.0.2.0/24");
    let mark = |kind| wayleave_bgp::session::Input::Refresh { afi: Afi::Ipv4, kind };
    net.give(At::Speaker(0, 0), mark(RefreshKind::Begin));
    net.give(At::Speaker(0, 0), mark(RefreshKind::End));
    net.settle();
    assert_eq!(net.has(1, "192.0.2.0/24"), None);
}

#[test]
fn octets_may_come_one_by_one() {
    let mut net = net(|_| (), |_| ());
    net.chunk = 1;
    net.announce(0, "192.0.2.0/24");
    net.start();
    assert!(net.has(1, "192.0.2.0/24").is_some());
}

#[test]
fn a_stop_reaches_both_ends_and_no_connection_is_accepted_any_more() {
    let mut net = plain();
    net.tell(0, Input::Pair(0, session_pair::Input::Stop("wayleave is stopping".to_owned())));
    net.settle();
    for speaker in &net.speakers {
        let Cause::PeerEnded(notification) = &speaker.ends[0].cause else { panic!("no notification") };
        assert_eq!(notification.shutdown_text(), Some("wayleave is stopping"));
    }
    net.wait(Duration::from_secs(10));
    net.reconnect();
    assert!(net.speakers.iter().all(|speaker| speaker.ups.len() == 1));
}

#[test]
fn a_malformed_update_costs_its_routes_and_no_session() {
    let mut net = plain();
    net.announce(0, "192.0.2.0/24");
    // ORIGIN of two octets: treat-as-withdraw (RFC 7606 section 7.1).
    let mut attributes = vec![0x40, 1, 2, 0, 0];
    attributes.extend_from_slice(&[0x40, 2, 6, 2, 1, 0, 0, 0xfb, 0xf1]);
    attributes.extend_from_slice(&[0x40, 3, 4, 192, 0, 2, 1]);
    net.inject(At::Speaker(0, 0), &update(&attributes, &[24, 192, 0, 2]));
    assert_eq!(net.has(1, "192.0.2.0/24"), None);
    assert!(net.speakers.iter().all(|speaker| speaker.ends.is_empty()));
}
