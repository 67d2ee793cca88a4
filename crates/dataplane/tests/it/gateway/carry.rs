//! What honest gateways carry.
//!
//! ICD-11, gateway: large segments of TCP over IPv4 and IPv6, packets of the path's room and one more: cut into equal
//! packets in one message, gathered again, each verified by itself.
//! ICC-09: eight and more nodes, 1,280 octets of IPv6, "don't fragment" set and not: packet too big, with the room;
//! what must not be refused is split.
//! ICC-11: names choose policies: a flow takes the first path of its own policy.
//! ICC-12: connections begin with segments that fit: clamped at both ends.

use std::time::Duration;

use wayleave_dataplane::gateway::offload::{Kind, Offload};
use wayleave_dataplane::gateway::{Event, Reason};
use wayleave_packet::icing::header::{Packet, Part, Version};

use super::world::{A, B, World, identity, ip, tcp, udp};

const V4: (&str, &str) = ("10.0.0.1", "10.0.1.1");
const V6: (&str, &str) = ("fd00:0::1", "fd00:1::1");

fn world() -> World {
    World::new(&[&[A, 2, 3, B], &[A, 4, 5, 6, B]])
}

#[test]
fn the_first_packet_waits_for_path_consents_and_session_and_replies_are_packets_of_the_other_end() {
    for ends in [V4, V6] {
        let mut world = world();
        let question = udp(ends.0, ends.1, (1000, 53), b"question");
        world.send_plain(A, &question);
        world.run(Duration::from_millis(100));
        assert_eq!(world.received(B), [question]);
        let answer = udp(ends.1, ends.0, (53, 1000), b"answer");
        world.send_plain(B, &answer);
        assert_eq!(world.received(A), [answer]);
        for node in [A, B] {
            let counters = world.gateway(node).counters().clone();
            assert_eq!((counters.sent, counters.received, counters.sessions), (1, 1, 1));
            assert!(Reason::ALL.iter().all(|reason| counters.dropped(*reason) == 0));
        }
        assert!(world.drops.is_empty());
        // The reply went over the same nodes: B's own path, with B's own consents.
        assert!(world.events.contains(&(A, Event::SessionBegan { peer: identity(B) })));
        assert!(world.passed[&2] > 0 && world.passed[&3] > 0);
        // Nothing that a hop could read.
        let is_inside =
            |needle: &[u8]| world.sent.iter().any(|(_, _, octets)| octets.windows(needle.len()).any(|w| w == needle));
        assert!(!is_inside(b"question") && !is_inside(b"answer"));
    }
}

#[test]
fn servers_are_asked_once_for_many_packets() {
    let mut world = world();
    for number in 0..2_000u16 {
        world.send_plain(A, &udp(V4.0, V4.1, (1000, 53), &number.to_be_bytes()));
        if number % 100 == 0 {
            world.run(Duration::from_millis(50));
        }
    }
    world.run(Duration::from_millis(100));
    assert_eq!(world.received(B).len(), 2_000);
    let counters = world.gateway(A).counters();
    // One question for paths; active and spare path have consents each.
    assert_eq!((counters.path_requests, counters.proof_requests), (1, 2));
}

#[test]
fn names_choose_policies_and_answers_come_from_the_address_of_the_name() {
    for (name, local, real) in [("198.18.0.2", "10.0.0.1", "10.0.1.1"), ("fd77::1", "fd00::1", "fd00:1::1")] {
        let mut world = world();
        world.send_plain(A, &udp(local, name, (1000, 53), b"to the name"));
        world.run(Duration::from_millis(100));
        assert_eq!(world.received(B), [udp(local, real, (1000, 53), b"to the name")]);
        world.send_plain(B, &udp(real, local, (53, 1000), b"answer"));
        assert_eq!(world.received(A), [udp(name, local, (53, 1000), b"answer")]);
        let is_clean = name == "198.18.0.2";
        // Policy `clean` avoids node 2, for both directions.
        assert_eq!(world.passed.contains_key(&2), !is_clean);
        for _ in 0..10 {
            world.send_plain(A, &udp(local, name, (1000, 53), b"again"));
            world.send_plain(B, &udp(real, local, (53, 1000), b"again"));
            world.run(Duration::from_millis(500));
        }
        assert_eq!((world.received(A).len(), world.received(B).len()), (10, 10));
        assert_eq!(world.passed.contains_key(&2), !is_clean, "neither do probes and their answers");
    }
}

#[test]
fn a_flow_takes_the_first_path_of_its_own_policy_though_another_is_ready() {
    let mut world = world();
    let clean = udp(V4.0, "198.18.0.2", (1000, 53), b"clean");
    let fast = udp(V4.0, "198.18.0.1", (1001, 53), b"fast");
    world.send_plain(A, &clean);
    world.run(Duration::from_secs(1));
    assert!(!world.passed.contains_key(&2));
    let before = world.passed[&5];
    for _ in 0..40 {
        world.send_plain(A, &fast);
        world.send_plain(B, &udp(V4.1, V4.0, (53, 1001), b"answer"));
        world.run(Duration::from_millis(100));
    }
    assert_eq!((world.received(A).len(), world.received(B).len()), (40, 41));
    // Both ways over the shorter path, but for the first ones and probes.
    let over_the_other = world.passed[&5] - before;
    assert!(world.passed[&2] >= 75 && over_the_other < 60, "{} {over_the_other}", world.passed[&2]);
}

#[test]
fn two_names_of_one_node_at_one_pair_of_ports_are_refused_and_not_mixed_up() {
    let mut world = world();
    world.send_plain(A, &udp(V4.0, "198.18.0.1", (1000, 53), b"one"));
    world.run(Duration::from_millis(100));
    world.send_plain(A, &udp(V4.0, "198.18.0.2", (1000, 53), b"two"));
    world.send_plain(A, &udp(V4.0, V4.1, (1000, 53), b"three"));
    world.run(Duration::from_millis(100));
    assert_eq!(world.received(B).len(), 1);
    assert_eq!(world.gateway(A).counters().dropped(Reason::FlowConflict), 2);
    world.send_plain(A, &udp(V4.0, "198.18.0.2", (1001, 53), b"two"));
    world.run(Duration::from_millis(100));
    assert_eq!(world.received(B).len(), 1);
}

#[test]
fn a_large_segment_crosses_as_one_message_of_equal_packets_and_arrives_as_one() {
    for (ends, kind) in [(V4, Kind::Tcp4), (V6, Kind::Tcp6)] {
        let mut world = world();
        world.send_plain(A, &tcp(ends.0, ends.1, (1000, 22), 1, 0x18, &[], b"first"));
        // The path is held once the first probes were answered.
        world.run(Duration::from_millis(600));
        assert_eq!(world.received(B).len(), 1);
        world.sent.clear();
        let payload: Vec<u8> = (0..30_000u32).map(|n| (n / 7) as u8).collect();
        let big = tcp(ends.0, ends.1, (1000, 22), 6, 0x18, &[], &payload);
        let offload = Offload { needs_checksum: true, kind, size: 1_200, ..Offload::default() };
        world.send(A, &big, &offload);
        let lengths: Vec<usize> = world.sent.iter().map(|(_, _, octets)| octets.len()).collect();
        assert_eq!(lengths.len(), 25);
        assert!(lengths.iter().all(|length| *length == lengths[0]));
        let all = world.inner.remove(&B).unwrap();
        assert_eq!(all.len(), 1, "gathered again");
        assert_eq!((all[0].octets.len(), all[0].offload.kind, all[0].offload.size), (big.len(), kind, 1_200));
        assert_eq!(all[0].octets[all[0].octets.len() - payload.len()..], payload);
        let counters = world.gateway(A).counters();
        assert_eq!((counters.sent, counters.split), (26, 0));
    }
}

#[test]
fn packets_go_without_their_path_once_every_node_holds_it_and_every_other_probe_repeats_it() {
    let mut world = world();
    let packet = udp(V4.0, V4.1, (1000, 53), b"payload");
    world.send_plain(A, &packet);
    world.run(Duration::from_millis(600));
    world.sent.clear();
    for _ in 0..40 {
        world.send_plain(A, &packet);
        world.run(Duration::from_millis(50));
    }
    let of_a: Vec<(bool, usize)> = world
        .sent
        .iter()
        .filter(|(node, _, _)| *node == A)
        .map(|(_, _, octets)| (Packet::decode(octets, Version::Standard).unwrap().path().is_none(), octets.len()))
        .collect();
    let data = of_a.iter().filter(|(is_without, length)| *is_without && *length < 200).count();
    let (without, with) = (of_a.iter().filter(|(is, _)| *is).count(), of_a.iter().filter(|(is, _)| !*is).count());
    assert_eq!(data, 40);
    // Two paths, each probed every 500 ms: one half with the path, the other as data go.
    assert!((3..=5).contains(&with) && (43..=45).contains(&without), "{with} {without}");
    // A forwarder that starts anew learns the path by the next probe, or by the one that follows when that is unanswered.
    world.routers[2] = crate::icing::network::router(2, super::world::NODES);
    world.run(Duration::from_millis(850));
    world.received(B);
    world.send_plain(A, &packet);
    assert_eq!(world.received(B).len(), 1);
}

#[test]
fn what_is_too_long_is_told_to_its_source_and_what_must_pass_is_split() {
    let mut world = world();
    world.mtu = 1_400;
    world.send_plain(A, &udp(V6.0, V6.1, (1000, 53), b"begin"));
    world.run(Duration::from_millis(600));
    // 4 nodes: 104 octets of header, 16 of message, 16 of tag.
    let capacity = 1_400 - 104 - 32;
    let fits = udp(V6.0, V6.1, (1000, 53), &vec![7; capacity - 48]);
    let least = udp(V6.0, V6.1, (1000, 53), &[8; 1_280 - 48]);
    let too_long = udp(V6.0, V6.1, (1000, 53), &[9; 1_281 - 48]);
    world.received(B);
    for packet in [&fits, &least] {
        world.send_plain(A, packet);
        assert_eq!(world.received(B), std::slice::from_ref(packet));
    }
    assert_eq!(world.gateway(A).counters().split, 1);
    let parts: Vec<Part> = world
        .sent
        .iter()
        .rev()
        .take(2)
        .map(|(_, _, octets)| Packet::decode(octets, Version::Standard).unwrap().part())
        .collect();
    assert_eq!(parts, [Part::Second, Part::First]);
    world.send_plain(A, &too_long);
    assert!(world.received(B).is_empty());
    let errors = world.received(A);
    assert_eq!(errors.len(), 1);
    // RFC 4443 section 3.2: packet too big, never below 1280.
    assert_eq!((errors[0][40], &errors[0][44..48]), (2, &1_280u32.to_be_bytes()[..]));
    assert!(too_long.starts_with(&errors[0][48..]));
    // IPv4 with "don't fragment" is told the room; without it, it is split.
    let v4 = udp(V4.0, V4.1, (1000, 53), &vec![9; capacity - 27]);
    world.send_plain(A, &v4);
    let errors = world.received(A);
    assert_eq!((errors[0][20], errors[0][21], &errors[0][26..28]), (3, 4, &(capacity as u16).to_be_bytes()[..]));
    let mut may_be_cut = v4;
    may_be_cut[6] = 0;
    let sum = !super::world::checksum(&[&may_be_cut[..10], &may_be_cut[12..20]]);
    may_be_cut[10..12].copy_from_slice(&sum.to_be_bytes());
    world.send_plain(A, &may_be_cut);
    assert_eq!(world.received(B), [may_be_cut]);
    assert_eq!(world.gateway(A).counters().dropped(Reason::TooBig), 2);
}

#[test]
fn connections_begin_with_segments_that_fit_at_both_ends() {
    let mut world = world();
    world.send_plain(A, &udp(V4.0, V4.1, (1000, 53), b"begin"));
    world.run(Duration::from_millis(600));
    world.received(B);
    let named = |packet: &[u8]| u16::from_be_bytes([packet[42], packet[43]]);
    world.send_plain(A, &tcp(V4.0, V4.1, (1000, 22), 1, 2, &[2, 4, 0x05, 0xb4], b""));
    let syn = &world.received(B)[0];
    // Of the spare path's five nodes: 128 octets of header.
    let most = 1_472 - 128 - 32 - 40;
    assert_eq!(named(syn), most);
    assert_eq!(syn, &tcp(V4.0, V4.1, (1000, 22), 1, 2, &[2, 4, (most >> 8) as u8, most as u8], b""));
    assert!(world.gateway(A).counters().clamped + world.gateway(B).counters().clamped >= 1);
}

#[test]
fn sixteen_nodes_and_1280_octets_pass_and_nothing_vanishes_silently() {
    // ICC-09: the longest path, and the shortest packet that IPv6 promises to carry.
    let mut world = World::new(&[&[A, 2, 3, 4, 5, 6, 7, 9, B]]);
    world.mtu = 1_280;
    for length in [100, 600, 1_000, 1_200, 1_280] {
        let packet = udp(V6.0, V6.1, (1000, 53), &vec![7; length - 48]);
        world.send_plain(A, &packet);
        world.run(Duration::from_millis(600));
        assert_eq!(world.received(B), [packet], "{length}");
    }
}

#[test]
fn destinations_of_nobody_are_unreachable_and_ones_that_are_none_are_dropped_quietly() {
    let mut world = world();
    world.send_plain(A, &udp(V4.0, "10.0.77.1", (1000, 53), b""));
    let errors = world.received(A);
    assert_eq!((errors.len(), errors[0][20], errors[0][21]), (1, 3, 1));
    world.send_plain(A, &udp(V4.0, "224.0.0.5", (1000, 53), b""));
    world.send_plain(A, &udp(V6.0, "ff02::2", (1000, 53), b""));
    world.send_plain(A, &udp("10.0.1.7", V4.1, (1000, 53), b""));
    world.send_plain(A, &ip(V4.0, V4.1, 17, 0, b"")[..19]);
    assert!(world.received(A).is_empty());
    let counters = world.gateway(A).counters();
    let counts =
        [Reason::NoMember, Reason::Martian, Reason::OwnSource, Reason::NotIp].map(|reason| counters.dropped(reason));
    assert_eq!(counts, [1, 2, 1, 1]);
}

#[test]
fn a_session_is_renewed_before_it_ends_and_no_packet_is_lost() {
    let mut world = world();
    let packet = udp(V4.0, V4.1, (1000, 53), b"payload");
    world.send_plain(A, &packet);
    world.run(Duration::from_millis(200));
    for _ in 0..400 {
        world.send_plain(A, &packet);
        world.run(Duration::from_secs(1));
    }
    assert_eq!(world.received(B).len(), 401);
    let began = |node| {
        world
            .events
            .iter()
            .filter(|event| **event == (node, Event::SessionBegan { peer: identity(if node == A { B } else { A }) }))
            .count()
    };
    assert_eq!((began(A), began(B)), (4, 4));
}
