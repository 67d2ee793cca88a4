//! Gateways send packets of the profile `sealed` where every node of a path consents to them, and the others elsewhere.

use std::time::Duration;

use wayleave_dataplane::gateway::{PathStatus, Reason, Unsealed};
use wayleave_dataplane::icing;
use wayleave_packet::icing::header::{Packet, Part, Version};

use super::world::{A, B, World, identity, udp};

const V4: (&str, &str) = ("10.0.0.1", "10.0.1.1");

fn question(length: usize) -> Vec<u8> {
    udp(V4.0, V4.1, (1000, 53), &vec![b'q'; length])
}

fn answer() -> Vec<u8> {
    udp(V4.1, V4.0, (53, 1000), b"answer")
}

/// The path of a gateway to the other whose first forwarder is `node`.
fn path_by(world: &mut World, node: usize) -> PathStatus {
    let now = world.now();
    let peers = world.gateway(A).status(now);
    let by = |path: &&PathStatus| path.nodes[1] == identity(node);
    peers[0].paths.iter().find(by).expect("a path by this node").clone()
}

/// The versions of the packets that left a gateway for the first forwarder `node`, since the last call.
fn versions(world: &mut World, node: usize) -> Vec<Version> {
    let sent = std::mem::take(&mut world.sent);
    let by = sent.into_iter().filter(|(from, link, _)| (*from, usize::from(*link)) == (A, 100 + node));
    by.map(|(_, _, octets)| Packet::decode(&octets, Version::Standard).expect("well-formed").version()).collect()
}

fn refused_by_3() -> Unsealed {
    Unsealed { refusing: vec![identity(3)], ..Unsealed::default() }
}

/// Its advert says nothing of such packets.
fn before_3() -> Unsealed {
    Unsealed { before: vec![identity(3)], ..Unsealed::default() }
}

/// Exchanges a question a second; returns how many packets arrive at both ends in the end, and the path that they take.
fn exchange(world: &mut World, secs: u64) -> (usize, usize, Option<Version>, Unsealed) {
    for _ in 0..secs {
        world.send_plain(A, &question(20));
        world.run(Duration::from_secs(1));
    }
    world.received(A);
    world.received(B);
    world.send_plain(A, &question(20));
    world.send_plain(B, &answer());
    let path = path_by(world, 2);
    (world.received(B).len(), world.received(A).len(), path.packets, path.unsealed)
}

#[test]
fn everything_between_two_gateways_is_of_the_sealed_profile_where_all_consent() {
    let mut world = World::new(&[&[A, 2, 3, B]]);
    world.mtu = 1_400;
    world.send_plain(A, &question(20));
    world.run(Duration::from_secs(2));
    assert_eq!(world.received(B).len(), 1);
    world.send_plain(B, &answer());
    assert_eq!(world.received(A).len(), 1);
    let path = path_by(&mut world, 2);
    assert_eq!((path.packets, path.unsealed, path.is_held), (Some(Version::Sealed), Unsealed::default(), true));
    // What does not fit is split.
    world.send_plain(A, &udp("fd00:0::1", "fd00:1::1", (1000, 53), &[b'q'; 1_280 - 48]));
    assert_eq!(world.received(B).len(), 1);
    let is_part = |(_, _, octets): &(usize, u16, Vec<u8>)| {
        let packet = Packet::decode(octets, Version::Standard).expect("well-formed");
        (packet.version(), packet.part()) == (Version::Sealed, Part::Second)
    };
    assert!(world.sent.iter().any(is_part));
    assert!(versions(&mut world, 2).iter().all(|version| *version == Version::Sealed));
}

#[test]
fn a_node_that_checks_payloads_gets_packets_of_the_other_profile_and_other_paths_stay() {
    let mut world = World::new(&[&[A, 2, 3, B], &[A, 4, 5, 6, B]]);
    world.checking.insert(3);
    world.send_plain(A, &question(20));
    world.run(Duration::from_secs(3));
    assert_eq!(world.received(B).len(), 1);
    let path = path_by(&mut world, 2);
    assert_eq!((path.packets, path.unsealed), (Some(Version::Standard), refused_by_3()));
    assert_eq!(path_by(&mut world, 4).packets, Some(Version::Sealed));
    world.sent.clear();
    world.send_plain(A, &question(20));
    assert_eq!((world.received(B).len(), versions(&mut world, 2)), (1, vec![Version::Standard]));
    // Its policy changes: later proofs are for the sealed profile.
    world.checking.clear();
    for _ in 0..700 {
        world.send_plain(A, &question(20));
        world.run(Duration::from_secs(1));
    }
    let path = path_by(&mut world, 2);
    assert_eq!((path.packets, path.unsealed), (Some(Version::Sealed), Unsealed::default()));
}

#[test]
fn a_path_over_a_node_of_the_version_before_is_used_with_the_other_profile() {
    // The only path there is, and one beside another.
    for orders in [&[&[A, 2, 3, B][..]][..], &[&[A, 2, 3, B], &[A, 4, 5, 6, B]]] {
        let mut world = World::new(orders);
        world.old.insert(3);
        // Not the first packet is lost.
        world.send_plain(A, &question(20));
        world.run(Duration::from_secs(2));
        assert_eq!(world.received(B), [question(20)]);
        world.send_plain(B, &answer());
        assert_eq!(world.received(A), [answer()]);
        let path = path_by(&mut world, 2);
        assert_eq!((path.packets, path.unsealed), (Some(Version::Standard), before_3()));
        assert!(world.drops.is_empty(), "{:?}", world.drops);
    }
}

#[test]
fn a_node_that_goes_back_to_the_version_before_and_is_upgraded_again_changes_the_profile_of_its_paths() {
    let mut world = World::new(&[&[A, 2, 3, B]]);
    assert_eq!(exchange(&mut world, 5), (1, 1, Some(Version::Sealed), Unsealed::default()));
    // It was answered for long, and is so again a few seconds after the path server has the new advert.
    world.old.insert(3);
    assert_eq!(exchange(&mut world, 6), (1, 1, Some(Version::Standard), before_3()));
    // The list is renewed in its own time where nothing is wrong.
    world.old.clear();
    assert_eq!(exchange(&mut world, 40), (1, 1, Some(Version::Sealed), Unsealed::default()));
    // A gateway that is down for a while is no reason for the other profile.
    world.down.insert(2);
    let _ = exchange(&mut world, 10);
    world.down.clear();
    assert_eq!(exchange(&mut world, 10), (1, 1, Some(Version::Sealed), Unsealed::default()));
}

#[test]
fn proofs_that_were_asked_for_before_a_node_changed_its_program_are_worth_nothing() {
    // While nothing is sent, the list and the proofs get old; both are asked for with the next packet.
    let mut world = World::new(&[&[A, 2, 3, B]]);
    world.lasts = 60;
    let _ = exchange(&mut world, 5);
    world.run(Duration::from_secs(90));
    world.old.insert(3);
    assert_eq!(exchange(&mut world, 5), (1, 1, Some(Version::Standard), before_3()));
    world.run(Duration::from_secs(90));
    world.old.clear();
    assert_eq!(exchange(&mut world, 5), (1, 1, Some(Version::Sealed), Unsealed::default()));
}

#[test]
fn a_changed_payload_is_dropped_by_the_receivers_seal_and_counted_and_a_sample_before_that() {
    let mut world = World::new(&[&[A, 2, 3, B]]);
    world.send_plain(A, &question(200));
    world.run(Duration::from_secs(2));
    assert_eq!(world.received(B).len(), 1);
    world.tamper = Box::new(|from, to, octets| {
        // In front of node 3, behind the first octets of the payload and in front of the tag.
        if (from, to) == (A, 3) {
            let place = octets.len() - 20;
            octets[place] ^= 1;
        }
        true
    });
    world.drops.clear();
    for _ in 0..600 {
        world.send_plain(A, &question(200));
    }
    assert!(world.received(B).is_empty());
    let counters = world.gateway(B).counters().clone();
    let samples = (world.drops.len() as u64, counters.refused(icing::Reason::Sample));
    assert!(world.drops.iter().all(|drop| *drop == (3, icing::Reason::Sample)));
    assert!(samples.0 > 0 && samples.1 > 0);
    assert_eq!(counters.dropped(Reason::Seal), 600 - samples.0 - samples.1);
}
