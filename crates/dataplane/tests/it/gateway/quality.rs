//! Hops that pass probes and not data, or lose some of all.
//!
//! ICC, liveness: in front of a node on the only path, or on the first of two, packets longer than 1,000 octets are dropped, those that
//! are not as long as a probe, those with the handle alone, one in ten, and three in ten: data go by the spare path, or in smaller packets
//! on the only one; loss is measured; no path that carries data, and none that is idle, is taken for dead.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use wayleave_dataplane::gateway::{PathStatus, RETRIED};
use wayleave_packet::icing::header::{Packet, Version};

use super::world::{A, B, World, identity, tcp, udp};
use crate::common::Random;

const V4: (&str, &str) = ("10.0.0.1", "10.0.1.1");
const FIRST: &[usize] = &[A, 2, 3, B];
const SPARE: &[usize] = &[A, 4, 5, 6, B];
const LARGE: usize = 1_300;

fn message(octets: usize) -> Vec<u8> {
    udp(V4.0, V4.1, (1_000, 53), &vec![7; octets])
}

/// A flow is under way.
fn world(orders: &[&[usize]]) -> World {
    let mut world = World::new(orders);
    world.send_plain(A, &message(10));
    world.run(Duration::from_secs(3));
    assert_eq!(world.received(B).len(), 1);
    world
}

fn paths(world: &mut World, node: usize) -> Vec<PathStatus> {
    let now = world.now();
    world.gateway(node).status(now).into_iter().flat_map(|peer| peer.paths).collect()
}

/// The path over these nodes.
fn path(world: &mut World, order: &[usize]) -> PathStatus {
    let nodes: Vec<_> = order.iter().map(|node| identity(*node)).collect();
    paths(world, A).into_iter().find(|path| path.nodes == nodes).expect("a path over them")
}

/// Packets of A in front of node 3 pass if `passes` says so.
fn in_front_of_3(world: &mut World, mut passes: impl FnMut(&[u8]) -> bool + 'static) {
    world.tamper = Box::new(move |sender, to, octets| sender != A || to != 3 || passes(octets));
}

fn has_path(octets: &[u8]) -> bool {
    Packet::decode(octets, Version::Standard).unwrap().path().is_some()
}

/// A segment every 100 ms, of as much as A's system may send; returns how many of the last ten arrived.
fn stream(world: &mut World, seconds: u32) -> usize {
    let mut most = LARGE;
    for number in 0..10 * seconds {
        if number + 10 == 10 * seconds {
            world.received(B);
        }
        world.send_plain(A, &tcp(V4.0, V4.1, (1_000, 80), number, 0x10, &[], &vec![7; most]));
        // A host that is told of a size keeps to it.
        for told in world.received(A).iter().filter(|octets| octets[9] == 1 && octets[20..22] == [3, 4]) {
            most = most.min(usize::from(u16::from_be_bytes([told[26], told[27]])) - 40);
        }
        world.run(Duration::from_millis(100));
    }
    world.received(B).len()
}

#[test]
fn a_hop_that_drops_long_packets_is_gone_around_or_sent_shorter_ones() {
    for orders in [&[FIRST, SPARE][..], &[FIRST]] {
        let mut world = world(orders);
        in_front_of_3(&mut world, |octets| octets.len() <= 1_000);
        stream(&mut world, 6);
        assert_eq!(stream(&mut world, 2), 10, "{orders:?}");
        let first = path(&mut world, FIRST);
        assert_eq!((first.size, first.dead_since), (1_000, None));
        let passed = |node| world.passed.get(&node).copied().unwrap_or(0);
        assert_eq!(passed(5) > 20, orders.len() > 1);
        // Both know the other's room when a connection begins.
        world.send_plain(A, &tcp(V4.0, V4.1, (1_001, 80), 1, 0x02, &[2, 4, 5, 0xb4], b""));
        let syn = world.received(B).pop().expect("a SYN");
        let most = u16::from_be_bytes([syn[42], syn[43]]);
        assert_eq!(most < 1_000, orders.len() == 1, "{most}");
        // What passes again is found, some minutes later.
        in_front_of_3(&mut world, |_| true);
        for _ in 0..RETRIED.as_secs() / 10 + 2 {
            world.send_plain(A, &message(10));
            world.run(Duration::from_secs(10));
        }
        assert_eq!(path(&mut world, FIRST).size, 1_472);
    }
}

#[test]
fn a_hop_that_passes_only_what_is_as_long_as_a_probe_is_gone_around() {
    let mut world = world(&[FIRST, SPARE]);
    let lengths: BTreeSet<usize> =
        world.sent.iter().map(|(_, _, octets)| octets.len()).filter(|length| *length < 1_400).collect();
    in_front_of_3(&mut world, move |octets| lengths.contains(&octets.len()));
    stream(&mut world, 6);
    assert_eq!(stream(&mut world, 2), 10);
    assert!(path(&mut world, FIRST).dead_since.is_some());
}

/// Probes of all kinds pass it. Nothing but the counts in answers tells.
#[test]
fn a_hop_that_passes_all_probes_and_no_data_is_gone_around_once_some_tens_are_lost() {
    let mut world = world(&[FIRST, SPARE]);
    let length = message(500).len();
    let around = world.sent.iter().map(|(_, _, octets)| octets.len()).min().unwrap();
    in_front_of_3(&mut world, move |octets| {
        has_path(octets) || octets.len() < around + length - 200 || octets.len() > 1_400
    });
    for _ in 0..300 {
        world.send_plain(A, &message(500));
        world.run(Duration::from_millis(10));
    }
    world.received(B);
    for _ in 0..100 {
        world.send_plain(A, &message(500));
        world.run(Duration::from_millis(10));
    }
    assert_eq!(world.received(B).len(), 100);
    let first = path(&mut world, FIRST);
    assert!(
        first.dead_since.is_some()
            && first.answered.is_some_and(|at| world.now().instant.since(at) < Duration::from_secs(1))
    );
    // It carries data again, some minutes after the hop does.
    in_front_of_3(&mut world, |_| true);
    for _ in 0..RETRIED.as_secs() / 10 + 2 {
        world.send_plain(A, &message(10));
        world.run(Duration::from_secs(10));
    }
    assert_eq!(path(&mut world, FIRST).dead_since, None);
    let before = world.passed[&3];
    (0..100).for_each(|_| world.send_plain(A, &message(10)));
    assert!(world.passed[&3] >= before + 100);
}

#[test]
fn a_hop_that_drops_what_has_the_handle_alone_is_gone_around_or_sent_the_path() {
    for orders in [&[FIRST, SPARE][..], &[FIRST]] {
        let mut world = world(orders);
        in_front_of_3(&mut world, has_path);
        stream(&mut world, 4);
        assert_eq!(stream(&mut world, 2), 10, "{orders:?}");
        assert!(path(&mut world, FIRST).dead_since.is_some());
        let changes = world.gateway(A).counters().failovers;
        in_front_of_3(&mut world, |_| true);
        assert_eq!(stream(&mut world, 20), 10);
        assert_eq!(path(&mut world, FIRST).dead_since, None);
        assert!(world.gateway(A).counters().failovers <= changes + 1);
    }
}

#[test]
fn loss_is_measured() {
    let mut world = world(&[FIRST, SPARE]);
    assert_eq!(path(&mut world, FIRST).loss, None);
    let (mut random, mut block) = (Random(3), Vec::new());
    in_front_of_3(&mut world, move |octets| {
        if has_path(octets) {
            return true;
        }
        // One in ten, at a random place among them.
        if block.is_empty() {
            block = vec![true; 10];
            block[random.below(10)] = false;
        }
        block.pop().unwrap_or(true)
    });
    for number in 0..6_000u32 {
        world.send_plain(A, &message(10));
        world.send_plain(B, &udp(V4.1, V4.0, (53, 1_000), b"answer"));
        if number % 4 == 0 {
            world.run(Duration::from_millis(50));
        }
    }
    let first = path(&mut world, FIRST);
    let loss = first.loss.expect("measured");
    assert!((99_000..=101_000).contains(&loss), "{loss}");
    assert_eq!((first.loss_back, first.dead_since, first.size), (Some(0), None, 1_472));
    // The other end knows it as well.
    let back: Vec<_> = FIRST.iter().rev().map(|node| identity(*node)).collect();
    let theirs = paths(&mut world, B).into_iter().find(|path| path.nodes == back).expect("the same nodes");
    assert_eq!(theirs.loss, Some(0));
    assert!(theirs.loss_back.is_some_and(|loss| (99_000..=101_000).contains(&loss)), "{theirs:?}");
    assert_eq!(world.gateway(A).counters().failovers, 0);
    // What is lost no more counts no more.
    in_front_of_3(&mut world, |_| true);
    for number in 0..6_000u32 {
        world.send_plain(A, &message(10));
        if number % 4 == 0 {
            world.run(Duration::from_millis(50));
        }
    }
    assert_eq!(path(&mut world, FIRST).loss, Some(0));
}

/// Of all kinds of packets three in ten, in one direction.
#[test]
fn a_path_that_loses_three_in_ten_is_not_dead() {
    for seed in 1..=10 {
        let mut world = world(&[FIRST]);
        let mut random = Random(seed);
        in_front_of_3(&mut world, move |_| random.below(10) >= 3);
        for _ in 0..60 * 10 {
            world.send_plain(A, &message(LARGE - 300));
            world.run(Duration::from_millis(100));
        }
        let first = path(&mut world, FIRST);
        assert_eq!((world.gateway(A).counters().dead, first.size), (0, 1_472), "seed {seed}");
        assert!(first.loss.is_some_and(|loss| (230_000..370_000).contains(&loss)), "{first:?}");
        // And if it does die, that is found out.
        world.down.insert(3);
        for _ in 0..50 {
            world.send_plain(A, &message(10));
            world.run(Duration::from_millis(100));
        }
        assert_eq!(world.gateway(A).counters().dead, 1);
    }
}

#[test]
fn what_is_carried_for_each_member_is_counted_and_outlives_what_is_known_of_its_paths() {
    let mut world = World::new(&[FIRST, SPARE]);
    let begun = world.now().unix.secs();
    let traffic = |world: &mut World, node| -> Vec<_> {
        let all = world.gateway(node).traffic();
        all.into_iter().filter(|(_, traffic)| traffic.handshake.is_some()).collect()
    };
    assert_eq!(traffic(&mut world, A), []);
    (0..3).for_each(|_| world.send_plain(A, &message(100)));
    world.send_plain(B, &udp(V4.1, V4.0, (53, 1_000), b"answer"));
    for _ in 0..2 {
        let [(b, of_b)] = traffic(&mut world, A)[..] else { panic!("one") };
        assert_eq!((b, of_b.sent.packets, of_b.sent.octets), (identity(B), 3, 3 * 128));
        assert_eq!((of_b.received.packets, of_b.received.octets), (1, 34));
        assert_eq!(of_b.handshake, Some(begun));
        let [(a, of_a)] = traffic(&mut world, B)[..] else { panic!("one") };
        assert_eq!((a, of_a.sent, of_a.received), (identity(A), of_b.received, of_b.sent));
        world.run(Duration::from_secs(300));
        let now = world.now();
        assert!(world.gateway(A).status(now).is_empty());
    }
}

#[test]
fn an_idle_path_is_neither_dead_nor_narrow_and_is_tested_all_the_same() {
    let mut world = world(&[FIRST, SPARE]);
    world.sent.clear();
    for _ in 0..12 {
        world.send_plain(A, &message(10));
        world.run(Duration::from_secs(10));
    }
    assert_eq!(world.gateway(A).counters().dead, 0);
    for path in paths(&mut world, A) {
        assert_eq!((path.size, path.loss, path.dead_since), (1_472, None, None));
    }
    let of_a = |is: fn(&[u8]) -> bool| world.sent.iter().filter(|(node, _, octets)| *node == A && is(octets)).count();
    // Two paths, two probes a second on each: half with the path, a quarter of full size.
    let (with_path, full) = (of_a(has_path), of_a(|octets| octets.len() == 1_472));
    assert!((220..=260).contains(&with_path) && (110..=130).contains(&full), "{with_path} {full}");
}

#[test]
fn the_only_path_is_used_though_it_passes_no_data_of_some_lengths_and_is_alive_once_it_does() {
    let mut world = world(&[FIRST]);
    let dropped = Rc::new(RefCell::new(0));
    let count = Rc::clone(&dropped);
    in_front_of_3(&mut world, move |octets| {
        let is_data = !has_path(octets) && octets.len() > 900 && octets.len() < 1_400;
        *count.borrow_mut() += u32::from(is_data);
        !is_data
    });
    for _ in 0..300 {
        world.send_plain(A, &message(1_000));
        world.run(Duration::from_millis(10));
    }
    assert!(*dropped.borrow() == 300 && path(&mut world, FIRST).dead_since.is_some());
    // It is the only path, and what it passes is sent.
    world.received(B);
    world.send_plain(A, &message(10));
    assert_eq!(world.received(B).len(), 1);
    // Once data pass, it is alive.
    in_front_of_3(&mut world, |_| true);
    for _ in 0..200 {
        world.send_plain(A, &message(1_000));
        world.run(Duration::from_millis(10));
    }
    assert_eq!(path(&mut world, FIRST).dead_since, None);
}
