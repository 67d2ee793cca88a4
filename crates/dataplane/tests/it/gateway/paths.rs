//! Paths that die, end, are refused, and are chosen again.
//!
//! ICC, gateway limits: more flows, waiting packets, outputs than there is room for: the tables' own limits; counted;
//! other peers' are untouched.
//! ICC-08: each forwarder of a path dies and comes back, in virtual time: the flow goes on over the spare path within
//! two seconds; the policy holds; the first path is used again.
//! ICC-08, by process: what is sent again when a path dies: the newest segment of each TCP flow, and acknowledgements
//! push nobody's data out.
//! ICC-11: policies shortest, longest, avoid, require, pin, in both directions: the forwarders' counters show the path
//! chosen, and no other.
//! ICC-11, decided: nodes avoided and paths pinned while a flow is live, none left, and all of it undone: from the next
//! packet on nothing leaves over another path, probes neither; the flow goes on.

use std::collections::BTreeSet;
use std::time::Duration;

use wayleave_core::{IdentityKey, InnerPrefixes};
use wayleave_crypto::dh::DhSecret;
use wayleave_dataplane::gateway::offload::Offload;
use wayleave_dataplane::gateway::{Choices, Event, Gateway, LIMIT_WAITING, Member, Reason, RouteState};

use super::world::{A, B, World, gateway, identity, noise, policies, prefixes, run_of, tcp, udp};
use crate::icing::network::LINK;

const V4: (&str, &str) = ("10.0.0.1", "10.0.1.1");

fn two_paths() -> World {
    World::new(&[&[A, 2, 3, B], &[A, 4, 5, 6, B]])
}

fn question() -> Vec<u8> {
    udp(V4.0, V4.1, (1000, 53), b"question")
}

fn segment() -> Vec<u8> {
    tcp(V4.0, V4.1, (1000, 80), 1, 0x10, &[], b"a segment")
}

fn answer() -> Vec<u8> {
    udp(V4.1, V4.0, (53, 1000), b"answer")
}

/// One question and its answer, and how many of the two arrived.
fn exchange(world: &mut World) -> usize {
    world.send_plain(A, &question());
    let requests = world.received(B).len();
    world.send_plain(B, &answer());
    requests + world.received(A).len()
}

#[test]
fn after_a_step_of_the_clock_back_or_ahead_traffic_goes_on_within_seconds_and_sessions_are_renewed() {
    let mut world = two_paths();
    let exchange = |world: &mut World, secs: u64| {
        for _ in 0..secs {
            world.send_plain(A, &question());
            world.run(Duration::from_secs(1));
        }
        world.received(A);
        world.received(B);
        world.send_plain(A, &question());
        world.send_plain(B, &answer());
        (world.received(A).len(), world.received(B).len())
    };
    assert_eq!(exchange(&mut world, 5), (1, 1));
    // Nodes refuse for seven seconds what they may have seen before their own clocks went back.
    for secs in [30, 90, 30, 27, 3_600, 0] {
        world.ahead = secs * 1_000_000;
        assert_eq!(exchange(&mut world, 10), (1, 1), "ahead by {secs} s");
        assert_eq!(exchange(&mut world, 140), (1, 1), "ahead by {secs} s, in a later session");
    }
}

/// A lid is closed and opened again; both clocks have gone on meanwhile, longer than a session lasts.
#[test]
fn after_a_sleep_of_either_gateway_or_of_both_traffic_goes_on_within_seconds() {
    for asleep in [&[A][..], &[B], &[A, B]] {
        for length in [40, 600, 3_600] {
            let mut world = two_paths();
            world.send_plain(A, &question());
            world.run(Duration::from_secs(5));
            assert_eq!((world.received(B).len(), exchange(&mut world)), (1, 2));
            world.asleep.extend(asleep);
            // Time passes in one step for who sleeps, and as ever for the other.
            world.run(Duration::from_secs(length));
            world.asleep.clear();
            for _ in 0..10 {
                exchange(&mut world);
                world.run(Duration::from_secs(1));
            }
            world.received(A);
            world.received(B);
            assert_eq!(exchange(&mut world), 2, "{asleep:?} for {length} s");
        }
    }
}

#[test]
fn a_killed_forwarder_costs_two_seconds_and_the_flow_goes_on_over_the_spare_path() {
    for killed in [2, 3] {
        let mut world = two_paths();
        world.send_plain(A, &question());
        world.run(Duration::from_secs(2));
        assert_eq!(world.received(B).len(), 1);
        assert_eq!(exchange(&mut world), 2);
        world.down.insert(killed);
        let mut lost = 0;
        while exchange(&mut world) < 2 {
            world.run(Duration::from_millis(50));
            lost += 1;
            assert!(lost <= 45, "{killed} is down for more than two seconds");
        }
        for _ in 0..200 {
            assert_eq!(exchange(&mut world), 2);
            world.run(Duration::from_millis(100));
        }
        assert!(world.passed[&5] > 100);
        assert!(world.events.contains(&(A, Event::PathDied { peer: identity(B) })));
        assert!(world.events.contains(&(A, Event::PathChanged { peer: identity(B) })));
        // It comes back, and after it has proven itself the shorter path is used again.
        world.down.clear();
        world.run(Duration::from_secs(1));
        for _ in 0..300 {
            assert_eq!(exchange(&mut world), 2);
            world.run(Duration::from_millis(100));
        }
        let before = world.passed[&5];
        for _ in 0..20 {
            assert_eq!(exchange(&mut world), 2);
        }
        assert_eq!(world.passed[&5], before, "the first path is used again");
    }
}

/// TCP repeats its oldest segment while nothing is answered: that one is on the spare path as soon as the other is known to be dead,
/// and not when the sender's own timer, doubled by then, ends once more.
#[test]
fn a_neighbour_that_says_that_it_ends_costs_no_packet() {
    let mut world = two_paths();
    world.send_plain(A, &question());
    world.run(Duration::from_secs(2));
    assert_eq!((world.received(B).len(), exchange(&mut world)), (1, 2));
    world.down.insert(2);
    let now = world.now();
    world.gateway(A).link_closed(LINK + 2, now);
    world.send_plain(A, &question());
    assert_eq!(world.received(B).len(), 1, "by the other path, at once");
    assert!(world.events.contains(&(A, Event::PathDied { peer: identity(B) })));
    world.run(Duration::from_secs(1));
    assert_eq!(exchange(&mut world), 2);
}

#[test]
fn the_newest_segment_of_each_tcp_flow_is_sent_again_when_its_path_dies() {
    let of_flow = |port: u16, text: &str| tcp(V4.0, V4.1, (port, 80), 1, 0x10, &[], text.as_bytes());
    let mut world = two_paths();
    for _ in 0..20 {
        assert_eq!(exchange(&mut world), 2);
        world.run(Duration::from_millis(100));
    }
    assert_eq!(world.gateway(A).counters().resent, 0, "the path answers");
    world.down.insert(2);
    world.run(Duration::from_millis(850));
    for (port, text) in [(1000, "first"), (1000, "second"), (1001, "other"), (1000, "third")] {
        world.send_plain(A, &of_flow(port, text));
    }
    // What other protocols lost stays lost: nothing of theirs may come twice.
    world.send_plain(A, &question());
    assert!(world.received(B).is_empty());
    world.run(Duration::from_secs(2));
    let came = world.received(B);
    assert_eq!(came, [of_flow(1001, "other"), of_flow(1000, "third")]);
    assert_eq!(world.gateway(A).counters().resent, 2);
    // However many flows there are, so many packets are kept.
    world.down.clear();
    world.run(Duration::from_secs(30));
    let mut world = two_paths();
    world.send_plain(A, &question());
    world.run(Duration::from_secs(2));
    world.received(B);
    world.down.insert(2);
    world.run(Duration::from_millis(850));
    for port in 2_000..2_200 {
        world.send_plain(A, &of_flow(port, "one of many"));
    }
    world.run(Duration::from_secs(2));
    let ports: Vec<u16> = world.received(B).iter().map(|packet| u16::from_be_bytes([packet[20], packet[21]])).collect();
    assert_eq!(ports, (2_136..2_200).collect::<Vec<u16>>());
}

/// While a peer's data arrive and nothing of ours does, it repeats them and each repetition is acknowledged. What is to be repeated on
/// this side is older than those acknowledgements, and its timer has doubled as often.
#[test]
fn an_acknowledgement_does_not_take_the_place_of_data_when_a_path_dies() {
    const FIN: u8 = 0x11;
    for (flags, text) in [(0x10, "data"), (FIN, "")] {
        let own = |flags: u8, number: u32, text: &str| tcp(V4.0, V4.1, (1000, 80), number, flags, &[], text.as_bytes());
        let mut world = two_paths();
        for _ in 0..20 {
            assert_eq!(exchange(&mut world), 2);
            world.run(Duration::from_millis(100));
        }
        world.down.insert(2);
        world.run(Duration::from_millis(850));
        world.send_plain(A, &own(0x10, 4, ""));
        world.send_plain(A, &own(flags, 1, text));
        world.send_plain(A, &own(0x10, 5, ""));
        world.send_plain(A, &own(0x10, 6, ""));
        assert!(world.received(B).is_empty());
        world.run(Duration::from_secs(2));
        assert_eq!(world.received(B), [own(flags, 1, text), own(0x10, 6, "")]);
        assert_eq!(world.gateway(A).counters().resent, 2);
    }
}

#[test]
fn acknowledgements_of_many_flows_push_nobodys_data_out() {
    let own = |port: u16, text: &str| tcp(V4.0, V4.1, (port, 80), 1, 0x10, &[], text.as_bytes());
    let mut world = two_paths();
    world.send_plain(A, &question());
    world.run(Duration::from_secs(2));
    world.received(B);
    world.down.insert(2);
    world.run(Duration::from_millis(850));
    for port in 2_000..2_064 {
        world.send_plain(A, &own(port, "data"));
        world.send_plain(A, &own(port, ""));
    }
    world.run(Duration::from_secs(2));
    let came = world.received(B);
    assert_eq!(came, (2_000..2_064).map(|port| own(port, "data")).collect::<Vec<_>>());
}

/// All paths are down for a while: what is remembered waits for the one that comes back, and not for long.
#[test]
fn what_is_remembered_waits_for_a_path_that_answers() {
    for (seconds, is_sent) in [(1, true), (8, false)] {
        let mut world = two_paths();
        for _ in 0..20 {
            assert_eq!(exchange(&mut world), 2);
            world.run(Duration::from_millis(100));
        }
        world.down.extend([2, 5]);
        world.run(Duration::from_millis(850));
        world.send_plain(A, &segment());
        world.run(Duration::from_secs(seconds));
        assert!(world.received(B).is_empty());
        world.down.remove(&5);
        world.run(Duration::from_secs(3));
        assert_eq!(world.received(B).contains(&segment()), is_sent, "after {seconds} s");
    }
}

#[test]
fn a_path_that_was_only_late_and_a_host_with_one_path_see_no_packet_twice() {
    let mut world = two_paths();
    world.send_plain(A, &question());
    world.run(Duration::from_secs(2));
    world.received(B);
    world.down.insert(2);
    world.run(Duration::from_millis(850));
    world.send_plain(A, &segment());
    world.down.clear();
    for _ in 0..50 {
        assert_eq!(exchange(&mut world), 2);
        world.run(Duration::from_millis(100));
    }
    assert_eq!(world.gateway(A).counters().resent, 0);
    let mut world = World::new(&[&[A, 2, 3, B]]);
    world.send_plain(A, &question());
    world.run(Duration::from_secs(2));
    world.down.insert(2);
    for _ in 0..30 {
        world.send_plain(A, &segment());
        world.run(Duration::from_millis(100));
    }
    assert_eq!(world.gateway(A).counters().resent, 0);
}

#[test]
fn a_gateway_that_restarted_is_reached_again_within_seconds_though_it_sends_nothing() {
    // Both paths can be used, or a node refuses the spare one.
    for refusing in [None, Some(5)] {
        let mut world = two_paths();
        world.refusing.extend(refusing);
        world.send_plain(A, &question());
        world.run(Duration::from_secs(8));
        world.received(B);
        assert_eq!(exchange(&mut world), 2);
        world.gateways.insert(B, run_of(B, 1));
        let mut lost = 0;
        loop {
            world.send_plain(A, &question());
            if !world.received(B).is_empty() {
                break;
            }
            world.run(Duration::from_millis(50));
            lost += 1;
            assert!(lost <= 80, "not reached for four seconds, {refusing:?} refuses");
        }
        for _ in 0..100 {
            assert_eq!(exchange(&mut world), 2);
            world.run(Duration::from_millis(100));
        }
    }
}

#[test]
fn a_spare_path_keeps_the_policy() {
    let mut world = two_paths();
    let question = udp(V4.0, "198.18.0.2", (1000, 53), b"clean");
    world.send_plain(A, &question);
    world.run(Duration::from_secs(2));
    assert_eq!(world.received(B).len(), 1);
    // The only clean path dies: nothing of this flow goes over node 2.
    world.down.insert(5);
    let before = world.passed.get(&2).copied();
    for _ in 0..100 {
        world.send_plain(A, &question);
        world.run(Duration::from_millis(100));
    }
    assert!(world.received(B).is_empty());
    assert_eq!(world.passed.get(&2).copied(), before);
    world.down.clear();
    world.run(Duration::from_secs(2));
    world.send_plain(A, &question);
    assert_eq!(world.received(B).len(), 1);
}

#[test]
fn consents_are_renewed_ahead_of_their_end_and_no_packet_is_lost() {
    let mut world = two_paths();
    world.lasts = 10;
    world.send_plain(A, &question());
    world.run(Duration::from_millis(200));
    assert_eq!(world.received(B).len(), 1);
    for _ in 0..600 {
        assert_eq!(exchange(&mut world), 2);
        world.run(Duration::from_millis(100));
    }
    assert!(world.drops.is_empty(), "{:?}", world.drops);
    let requests = world.gateway(A).counters().proof_requests;
    // Two paths, each about every five seconds for a minute.
    assert!((20..=40).contains(&requests), "{requests}");
}

#[test]
fn consents_that_are_not_renewed_end_and_the_source_is_told_that_it_is_prohibited() {
    let mut world = World::new(&[&[A, 2, 3, B]]);
    world.lasts = 10;
    world.send_plain(A, &question());
    world.run(Duration::from_millis(200));
    world.refusing.insert(3);
    // What was given lasts until it ends.
    while world.now().unix.secs() < u64::from(crate::icing::network::TIME) + 9 {
        world.send_plain(A, &question());
        world.run(Duration::from_millis(100));
    }
    assert!(world.received(A).is_empty());
    world.run(Duration::from_secs(2));
    world.received(B);
    world.sent.clear();
    world.send_plain(A, &question());
    let errors = world.received(A);
    assert_eq!((errors.len(), errors[0][20], errors[0][21]), (1, 3, 13));
    assert!(world.received(B).is_empty() && world.sent.is_empty());
    let now = world.now();
    let status = world.gateway(A).status(now);
    assert_eq!(status[0].routes[0].state, RouteState::NoConsent("node 3 refuses".to_owned()));
    // It is asked for again, and then the flow goes on.
    world.refusing.clear();
    world.run(Duration::from_secs(2));
    world.send_plain(A, &question());
    assert_eq!(world.received(B).len(), 1);
}

#[test]
fn one_refusal_leaves_the_other_path() {
    let mut world = two_paths();
    world.refusing.insert(3);
    world.send_plain(A, &question());
    world.run(Duration::from_millis(200));
    assert_eq!(world.received(B).len(), 1);
    assert!(world.passed[&5] > 0 && !world.passed.contains_key(&3));
}

#[test]
fn a_policy_that_no_path_satisfies_and_a_path_server_that_is_away_are_told() {
    let mut world = two_paths();
    world.send_plain(A, &udp(V4.0, "198.18.0.3", (1000, 53), b"none"));
    world.run(Duration::from_millis(200));
    let errors = world.received(A);
    assert_eq!((errors[0][20], errors[0][21]), (3, 13));
    let now = world.now();
    let routes = world.gateway(A).status(now).remove(0).routes;
    let RouteState::NoPath(why) = &routes[0].state else { panic!("{:?}", routes[0].state) };
    assert_eq!(why, "policy `none` allows none of 2 known paths");

    let mut world = two_paths();
    world.has_path_server = false;
    world.send_plain(A, &question());
    let errors = world.received(A);
    assert_eq!((errors[0][20], errors[0][21]), (3, 13));
    world.has_path_server = true;
    world.run(Duration::from_secs(2));
    world.send_plain(A, &question());
    world.run(Duration::from_millis(200));
    assert_eq!(world.received(B).len(), 1);
}

#[test]
fn probes_end_with_the_flows_and_so_do_questions() {
    let mut world = two_paths();
    world.lasts = 10;
    world.send_plain(A, &question());
    world.run(Duration::from_secs(40));
    world.sent.clear();
    let requests = [A, B].map(|node| world.gateway(node).counters().proof_requests);
    world.run(Duration::from_secs(60));
    assert!(world.sent.is_empty(), "{} packets", world.sent.len());
    assert_eq!([A, B].map(|node| world.gateway(node).counters().proof_requests), requests);
    world.send_plain(A, &question());
    world.run(Duration::from_millis(200));
    world.received(B);
    assert_eq!(exchange(&mut world), 2);
}

/// Work is done for those that are in use.
#[test]
fn a_thousand_idle_peers_cost_no_work() {
    let mut idle = gateway(A);
    let address = |number: u16| format!("10.1.{}.{}", number >> 8, number & 255).parse::<std::net::IpAddr>().unwrap();
    let identity_of = |number: u16| IdentityKey([&number.to_be_bytes()[..], &[7; 30]].concat().try_into().unwrap());
    let mut table = InnerPrefixes::default();
    for prefix in prefixes(A) {
        table.insert(prefix, identity(A));
    }
    let members = (0..1_000).map(|number| {
        table.insert(format!("{}/32", address(number)).parse().unwrap(), identity_of(number));
        let noise = DhSecret::from_seed(&noise(B)).public();
        Member { identity: identity_of(number), noise, ids: Vec::new(), addresses: vec![address(number)] }
    });
    let members: Vec<Member> = members.collect();
    idle.set_realm(members, table);
    let mut micros = u64::from(crate::icing::network::TIME) * 1_000_000;
    for number in 0..1_000 {
        let now = crate::icing::network::at_micros(micros);
        let packet = udp("10.0.0.1", &address(number).to_string(), (1_000, 53), b"nobody answers");
        idle.inner(&mut packet.clone(), &Offload::default(), now);
    }
    let mut run = |gateway: &mut Gateway, secs: u64, talks: bool| {
        let (visits, end) = (gateway.counters().visits, micros + secs * 1_000_000);
        while micros < end {
            micros += 50_000;
            let now = crate::icing::network::at_micros(micros);
            if talks && micros % 1_000_000 == 0 {
                let packet = udp("10.0.0.1", &address(3).to_string(), (1_000, 53), b"still");
                gateway.inner(&mut packet.clone(), &Offload::default(), now);
            }
            gateway.handle_timeout(now);
            while gateway.poll().is_some() {}
        }
        gateway.counters().visits - visits
    };
    assert!(run(&mut idle, 20, false) >= 100_000, "in use");
    assert_eq!(run(&mut idle, 30, false), 0, "idle");
    // One that is in use costs what it did, and the others nothing.
    let visits = run(&mut idle, 60, true);
    assert!((500..=610).contains(&visits), "{visits}");
    // They end all the same.
    run(&mut idle, 20, true);
    let now = crate::icing::network::at_micros(micros);
    assert_eq!(idle.status(now).len(), 1);
}

#[test]
fn tables_and_queues_have_limits_that_show() {
    let mut world = World::new(&[]);
    world.has_path_server = true;
    world.orders = vec![vec![A, 2, 3, B]];
    // No answer to the handshake: everything waits.
    world.down.insert(3);
    for number in 0..100u16 {
        world.send_plain(A, &udp(V4.0, V4.1, (number, 53), b"x"));
    }
    let counters = world.gateway(A).counters();
    assert_eq!(counters.dropped(Reason::QueueFull), 100 - LIMIT_WAITING as u64);
    world.run(Duration::from_secs(4));
    assert_eq!(world.gateway(A).counters().dropped(Reason::Waited), LIMIT_WAITING as u64);
    let now = world.now();
    assert_eq!(world.gateway(A).status(now)[0].waiting, 0);
    world.down.clear();
    world.send_plain(A, &question());
    world.run(Duration::from_secs(2));
    assert_eq!(world.received(B).len(), 1);
}

/// Sets what the user behind A decides, and returns the links by which A has sent since, and how many exchanges went well.
fn decide(world: &mut World, choices: &Choices) -> (BTreeSet<u16>, usize) {
    let mut policies = policies();
    policies.iter_mut().for_each(|policy| policy.choices = choices.clone());
    let now = world.now();
    world.gateway(A).set_policies(policies, now);
    world.settle();
    world.sent.clear();
    let mut whole = 0;
    for _ in 0..30 {
        whole += usize::from(exchange(world) == 2);
        world.run(Duration::from_millis(100));
    }
    let links = world.sent.iter().filter(|(node, ..)| *node == A).map(|(_, link, _)| *link).collect();
    (links, whole)
}

#[test]
fn what_a_user_decides_holds_from_the_next_packet_on_and_flows_go_on() {
    let mut world = two_paths();
    world.send_plain(A, &question());
    world.run(Duration::from_secs(2));
    world.received(B);
    let (both, whole) = decide(&mut world, &Choices::default());
    assert_eq!((both.len(), whole), (2, 30), "the other path is probed");
    // Not one packet more leaves over the node, neither data nor probe, and none is lost.
    let (avoiding, whole) = decide(&mut world, &Choices { avoid: vec![identity(2)], ..Choices::default() });
    assert_eq!((avoiding.len(), whole), (1, 30));
    // The same by a pin, and over the other path by another one.
    let pin = |over: &[usize]| {
        let over = over.iter().map(|node| identity(*node)).collect();
        Choices { pins: vec![(identity(B), over)], ..Choices::default() }
    };
    assert_eq!(decide(&mut world, &pin(&[4, 5, 6])), (avoiding.clone(), 30));
    let (pinned, whole) = decide(&mut world, &pin(&[2, 3]));
    assert!(pinned.len() == 1 && pinned.is_disjoint(&avoiding) && whole >= 29, "{pinned:?} {whole}");
    // No path is left: nothing leaves, and the user is told that the reason is the user's own.
    let both_firsts = Choices { avoid: vec![identity(2), identity(4)], ..Choices::default() };
    let (none, _) = decide(&mut world, &both_firsts);
    world.send_plain(A, &question());
    assert!(none.is_empty() && world.received(B).is_empty(), "{none:?}");
    world.received(A);
    let now = world.now();
    let state = world.gateway(A).status(now)[0].routes[0].state.clone();
    assert!(matches!(&state, RouteState::NoPath(why) if why.contains("`path avoid`")), "{state:?}");
    // Undone: all as before.
    let (both_again, whole) = decide(&mut world, &Choices::default());
    assert!(both_again == both && whole >= 28, "{both_again:?} {whole}");
}

/// A node of which no name is known may be one that a policy avoids by a name that is not resolved yet.
#[test]
fn a_path_over_a_node_that_is_not_known_is_not_used_before_it_is_known() {
    let mut world = two_paths();
    let now = world.now();
    let without_2 = [A, B, 3, 4, 5, 6].map(identity);
    world.gateway(A).set_nodes(without_2.into(), None, now);
    let (links, whole) = decide(&mut world, &Choices::default());
    assert_eq!((links, whole), (BTreeSet::from([LINK + 4]), 30));
    let now = world.now();
    world.gateway(A).set_nodes([A, B].map(identity).into(), None, now);
    world.send_plain(A, &question());
    world.run(Duration::from_secs(2));
    let now = world.now();
    let state = world.gateway(A).status(now)[0].routes[0].state.clone();
    assert!(matches!(&state, RouteState::NoPath(why) if why.contains("not known")), "{state:?}");
    assert_eq!(world.received(A).len(), 1, "A's system is told that the question did not go");
    world.gateway(A).set_nodes([A, B, 2, 3, 4, 5, 6].map(identity).into(), None, now);
    world.run(Duration::from_secs(2));
    let (both, whole) = decide(&mut world, &Choices::default());
    assert_eq!((both.len(), whole), (2, 30));
}

#[test]
fn a_path_over_a_removed_node_is_left_with_the_next_packet_and_no_packet_is_lost() {
    let mut world = two_paths();
    world.send_plain(A, &question());
    world.run(Duration::from_secs(12));
    world.received(B);
    let (both, whole) = decide(&mut world, &Choices::default());
    assert_eq!((both.len(), whole), (2, 30), "the shorter path is in use, and the other one is probed");
    let now = world.now();
    // The path server is away, and all consents hold: nothing but the removal speaks against the path.
    world.has_path_server = false;
    for gateway in [A, B] {
        world.gateway(gateway).set_nodes([A, B, 3, 4, 5, 6].map(identity).into(), None, now);
    }
    let (links, whole) = decide(&mut world, &Choices::default());
    assert_eq!((links, whole), (BTreeSet::from([LINK + 4]), 30));
}

/// A name moves from node 2 to node 4: what avoids it avoids 4 from then on, and 2 has no name that is known.
#[test]
fn no_packet_goes_over_a_node_whose_name_has_moved_to_another() {
    let mut world = two_paths();
    let now = world.now();
    world.gateway(A).set_nodes([A, B, 2, 3, 4, 5, 6].map(identity).into(), None, now);
    let (both, _) = decide(&mut world, &Choices::default());
    assert_eq!(both.len(), 2, "both have consents");
    let (links, whole) = decide(&mut world, &Choices { avoid: vec![identity(2)], ..Choices::default() });
    assert_eq!((links, whole), (BTreeSet::from([LINK + 4]), 30));
    let mut fresh = policies();
    fresh.iter_mut().for_each(|policy| policy.choices.avoid = vec![identity(4)]);
    let now = world.now();
    world.sent.clear();
    world.gateway(A).set_nodes([A, B, 3, 4, 5, 6].map(identity).into(), Some(fresh), now);
    world.settle();
    world.send_plain(A, &question());
    world.run(Duration::from_secs(1));
    assert_eq!(world.sent.iter().filter(|(node, ..)| *node == A).count(), 0);
}
