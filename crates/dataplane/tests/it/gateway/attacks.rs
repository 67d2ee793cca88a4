//! What gateways do with packets that nobody should have sent.
//!
//! ICC, gateway attacks: replays on the wire and in packets of one's own, changed octets between two nodes, a skipped
//! node, a bogus consent, strangers, removed members, garbage: dropped at the node and with the counter that the test
//! names; nothing is answered.
//! ICC-07: inner sources of others, loopback, martians, others' addresses, a tunnel in a tunnel in a tunnel, fragments:
//! refused by the receiving gateway; counted.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use wayleave_core::InnerPrefixes;
use wayleave_crypto::dh::DhSecret;
use wayleave_dataplane::gateway::offload::{Kind, Offload};
use wayleave_dataplane::gateway::{Gateway, Member, Reason};
use wayleave_dataplane::icing;
use wayleave_packet::icing::header::Part;
use wayleave_packet::icing::header::{FRONT, Packet, Version, header_length};
use wayleave_packet::icing::mint::{Form, Nonce, Sender, encapsulate};

use super::world::{
    A, B, World, addresses, checksum, identity, ip, noise, prefixes, process_of, tcp, udp, with_blocks,
};
use crate::icing::network::{self, LINK};

const V4: (&str, &str) = ("10.0.0.1", "10.0.1.1");

/// A flow from A to B is on its way.
fn world() -> World {
    let mut world = World::new(&[&[A, 2, 3, B], &[A, 4, 5, 6, B]]);
    world.send_plain(A, &udp(V4.0, V4.1, (1000, 53), b"begin"));
    world.run(Duration::from_millis(600));
    assert_eq!(world.received(B).len(), 1);
    world.sent.clear();
    world
}

/// What A believes of the realm.
fn deceive(world: &mut World, of_a: &[&str], address_of_b: &str) {
    let mut table = InnerPrefixes::default();
    for prefix in of_a {
        table.insert(prefix.parse().unwrap(), identity(A));
    }
    for prefix in prefixes(B) {
        table.insert(prefix, identity(B));
    }
    let member = |node: usize, addresses: Vec<std::net::IpAddr>| Member {
        identity: identity(node),
        noise: DhSecret::from_seed(&noise(node)).public(),
        ids: vec![network::id(node)],
        addresses,
    };
    let members = vec![member(A, addresses(A).to_vec()), member(B, vec![address_of_b.parse().unwrap()])];
    world.gateway(A).set_realm(members, table);
}

/// What a gateway believes of the realm, in which some have wide prefixes as well.
fn realm(gateway: &mut Gateway, wide: &[(&str, usize)]) {
    let mut table = InnerPrefixes::default();
    let all = [A, B, 8].into_iter().flat_map(|node| prefixes(node).map(|prefix| (prefix, node)));
    let wide = wide.iter().map(|(prefix, node)| (prefix.parse().unwrap(), *node));
    for (prefix, node) in all.chain(wide) {
        table.insert(prefix, identity(node));
    }
    let member = |node: usize| Member {
        identity: identity(node),
        noise: DhSecret::from_seed(&noise(node)).public(),
        ids: vec![network::id(node)],
        addresses: addresses(node).to_vec(),
    };
    gateway.set_realm([A, B, 8].map(member).to_vec(), table);
}

#[test]
fn a_replayed_packet_dies_at_the_first_hop_and_a_replayed_message_at_the_gateway() {
    let mut world = world();
    world.send_plain(A, &udp(V4.0, V4.1, (1000, 53), b"once"));
    assert_eq!(world.received(B).len(), 1);
    let (_, _, octets) = world.sent[0].clone();
    world.inject(A, 2, &octets);
    assert_eq!(world.drops, [(2, icing::Reason::Replayed)]);
    // Who holds the consents puts an old message into a packet of his own.
    let header = header_length(4, false);
    let order = [A, 2, 3, B];
    let sender = network::sender(&order);
    let mut again = Vec::new();
    let nonce = Nonce::new(world.now().unix, 7);
    encapsulate(&sender, (Form::Path, Part::Whole), 99, nonce, &octets[header..], &mut again).unwrap();
    world.inject(A, 2, &again);
    assert!(world.received(B).is_empty());
    assert_eq!(world.gateway(B).counters().dropped(Reason::Replayed), 1);
}

#[test]
fn a_packet_with_a_changed_octet_dies_at_the_next_honest_node() {
    for at in 0..80usize {
        let mut world = world();
        // Between nodes 2 and 3.
        world.tamper = Box::new(move |_, to, octets: &mut Vec<u8>| {
            if to == 3 {
                let place = (at * 7) % octets.len();
                octets[place] ^= 1 << (at % 8);
            }
            true
        });
        world.send_plain(A, &udp(V4.0, V4.1, (1000, 53), b"payload"));
        let octets = &world.sent[0].2;
        let place = (at * 7) % octets.len();
        // Which nodes hold the path is not authenticated on the way, and the proof for node 2 has served. One for B is found
        // there.
        let is_covered = !(6..8).contains(&place) && !(32..56).contains(&place);
        assert_eq!(world.received(B).is_empty(), is_covered, "octet {place}");
        assert!(world.drops.iter().all(|(node, _)| *node == 3));
        if at > 20 {
            continue;
        }
        world.tamper = Box::new(|_, _, _| true);
        world.send_plain(A, &udp(V4.0, V4.1, (1000, 53), b"payload"));
        assert_eq!(world.received(B).len(), 1);
    }
}

#[test]
fn a_skipped_node_is_missed() {
    let mut world = world();
    world.tamper = Box::new(|_, _, _| true);
    world.send_plain(A, &udp(V4.0, V4.1, (1000, 53), b"payload"));
    world.received(B);
    world.drops.clear();
    // A sends to 3 what was for 2, and says that it is for 3.
    world.down.insert(2);
    world.sent.clear();
    world.send_plain(A, &udp(V4.0, V4.1, (1000, 53), b"payload"));
    let mut octets = world.sent[0].2.clone();
    octets[3] = 2;
    world.inject(2, 3, &octets);
    assert_eq!(world.drops, [(3, icing::Reason::Verifier)]);
    assert!(world.received(B).is_empty());
}

#[test]
fn a_bogus_consent_dies_at_the_node_that_did_not_give_it() {
    let mut world = world();
    let order = [A, 2, 3, B];
    let path = network::path(&order);
    let mut consents = network::consents(&order, &path, Version::Standard);
    let hash = path.hash(Version::Standard);
    consents[1] = network::master(7).consent(&hash, 2, path.hop(2).tag, path.hop(2).expiry);
    let sender = Sender::new(Version::Standard, &path, &network::secret(A), &consents).unwrap();
    let mut octets = Vec::new();
    encapsulate(&sender, (Form::Path, Part::Whole), 99, Nonce::new(world.now().unix, 1), b"x", &mut octets).unwrap();
    world.inject(A, 2, &octets);
    assert_eq!(world.drops, [(3, icing::Reason::Consent)]);
    assert!(octets.len() > FRONT);
}

/// ICC-07.
#[test]
fn inner_sources_of_others_are_refused_whoever_asks() {
    let mut world = world();
    deceive(&mut world, &["10.0.0.0/24", "10.0.8.0/24", "127.0.0.0/8"], "10.0.1.1");
    for (source, count) in [("10.0.8.1", 1), ("127.0.0.1", 2)] {
        world.send_plain(A, &udp(source, V4.1, (1000, 53), b"spoofed"));
        world.run(Duration::from_millis(700));
        assert!(world.received(B).is_empty());
        assert_eq!(world.gateway(B).counters().dropped(Reason::InnerSource), count);
    }
    world.send_plain(A, &udp(V4.0, V4.1, (1000, 53), b"own"));
    assert_eq!(world.received(B).len(), 1);
}

/// ICC-07: an address belongs to the member with the longest prefix around it, at both ends and in both directions.
#[test]
fn the_holder_of_a_wide_prefix_does_not_speak_for_the_member_with_a_longer_one() {
    let mut world = world();
    let wide = [("10.0.0.0/8", A), ("fd00::/16", A), ("192.168.0.0/16", B)];
    realm(world.gateway(B), &wide);
    // A does not look: it believes that all is its own.
    deceive(&mut world, &["10.0.0.0/24", "10.0.0.0/16", "fd00:8::/64", "10.0.1.7/32"], "10.0.1.1");
    for (from, to, count) in [("10.0.8.1", V4.1, 1), ("fd00:8::1", "fd00:1::1", 2), ("10.0.1.7", V4.1, 3)] {
        world.send_plain(A, &udp(from, to, (1000, 53), b"spoofed"));
        world.run(Duration::from_millis(700));
        assert!(world.received(B).is_empty(), "{from}");
        assert_eq!(world.gateway(B).counters().dropped(Reason::InnerSource), count, "{from}");
    }
    world.send_plain(A, &udp("10.0.77.1", V4.1, (1000, 53), b"of the wide prefix"));
    assert_eq!(world.received(B).len(), 1);
    // B does not take what is for a member with a longer prefix than its own.
    realm(world.gateway(B), &[("10.0.0.0/8", A), ("10.0.0.0/12", B)]);
    deceive(&mut world, &["10.0.0.0/24"], "10.0.8.1");
    world.send_plain(A, &udp(V4.0, "198.18.0.1", (1000, 53), b"for another"));
    world.run(Duration::from_millis(700));
    assert!(world.received(B).is_empty());
    assert_eq!(world.gateway(B).counters().dropped(Reason::InnerDestination), 1);
    // Its own packets do not leave with another's source.
    realm(world.gateway(A), &wide);
    let errors = world.gateway(A).counters().dropped(Reason::OwnSource);
    world.send_plain(A, &udp("10.0.8.1", V4.1, (1000, 53), b"spoofed"));
    assert_eq!(world.gateway(A).counters().dropped(Reason::OwnSource), errors + 1);
}

/// ICC-07: a member's prefix around the addresses of names, which is as wide as it likes, gives it none of them.
#[test]
fn the_addresses_of_names_are_no_members() {
    let mut world = World::new(&[&[A, 2, 3, B], &[A, 4, 5, 6, B]]);
    let wide = |node| [("198.0.0.0/8", node), ("198.18.0.0/24", node), ("fd00::/8", node), ("fd77::/96", node)];
    realm(world.gateway(B), &wide(A));
    // A does not look: for it they are addresses like others.
    *world.gateway(A) = with_blocks(A, 0, &[]);
    deceive(&mut world, &["10.0.0.0/24", "198.0.0.0/8", "fd00::/64", "fd00::/8"], V4.1);
    world.send_plain(A, &udp(V4.0, V4.1, (1000, 53), b"begin"));
    world.run(Duration::from_millis(700));
    assert_eq!(world.received(B).len(), 1);
    for (from, to, count) in [("198.18.0.1", V4.1, 1), ("198.19.255.254", V4.1, 2), ("fd77::1", "fd00:1::1", 3)] {
        world.send_plain(A, &udp(from, to, (1000, 53), b"as if by a name"));
        world.run(Duration::from_millis(700));
        assert!(world.received(B).is_empty(), "{from}");
        assert_eq!(world.gateway(B).counters().dropped(Reason::InnerSource), count, "{from}");
    }
    // What is no name, or none any more, goes to nobody.
    world.gateway(B).set_names([]);
    for (from, to, count) in [(V4.1, "198.18.0.1", 1), ("fd00:1::1", "fd77::1", 2)] {
        world.send_plain(B, &udp(from, to, (1000, 53), b"to a name"));
        world.run(Duration::from_millis(700));
        assert!(world.received(A).iter().all(|packet| !packet.ends_with(b"to a name")), "{to}");
        assert_eq!(world.gateway(B).counters().dropped(Reason::NoMember), count, "{to}");
    }
    // They are not this gateway's own either.
    world.received(B);
    realm(world.gateway(B), &wide(B));
    world.send_plain(B, &udp("198.18.0.1", V4.0, (1000, 53), b"x"));
    assert_eq!(world.gateway(B).counters().dropped(Reason::OwnSource), 1);
    deceive(&mut world, &["10.0.0.0/24"], "198.18.0.9");
    world.send_plain(A, &udp(V4.0, "198.18.0.1", (1000, 53), b"x"));
    world.run(Duration::from_millis(700));
    assert!(world.received(B).is_empty());
    assert_eq!(world.gateway(B).counters().dropped(Reason::InnerDestination), 1);
}

#[test]
fn inner_martians_loopback_and_addresses_of_others_are_refused() {
    for (address, reason) in [
        ("127.0.0.1", Reason::InnerMartian),
        ("224.0.0.1", Reason::InnerMartian),
        ("169.254.1.1", Reason::InnerMartian),
        ("10.0.8.1", Reason::InnerDestination),
        ("192.0.2.1", Reason::InnerDestination),
        ("10.0.0.1", Reason::InnerDestination),
    ] {
        let mut world = world();
        deceive(&mut world, &["10.0.0.0/24"], address);
        world.send_plain(A, &udp(V4.0, "198.18.0.1", (1000, 53), b"x"));
        world.run(Duration::from_millis(700));
        assert!(world.received(B).is_empty(), "{address}");
        assert_eq!(world.gateway(B).counters().dropped(reason), 1, "{address}");
    }
}

#[test]
fn tunnels_in_tunnels_in_tunnels_are_refused() {
    let mut world = world();
    let order = [A, 2, 3, B];
    let sender = network::sender(&order);
    let tunnel = |inner: &[u8]| {
        let mut octets = Vec::new();
        encapsulate(&sender, (Form::Handle, Part::Whole), 4, Nonce(7), inner, &mut octets).unwrap();
        udp(V4.0, V4.1, (9, 49_254), &octets)
    };
    let plain = tcp(V4.0, V4.1, (1, 2), 1, 0x10, &[], b"x");
    let two = tunnel(&plain);
    let three = tunnel(&two);
    world.send_plain(A, &two);
    assert_eq!(world.received(B), [two]);
    world.send_plain(A, &three);
    let mut fragment = ip(V4.0, V4.1, 17, 0, &[0; 64]);
    fragment[6] = 0x20;
    let sum = !super::world::checksum(&[&fragment[..10], &fragment[12..20]]);
    fragment[10..12].copy_from_slice(&sum.to_be_bytes());
    world.send_plain(A, &fragment);
    assert!(world.received(B).is_empty());
    assert_eq!(world.gateway(B).counters().dropped(Reason::InnerNested), 1);
    assert_eq!(world.gateway(A).counters().dropped(Reason::Fragment), 1, "fragments may hide anything");
}

#[test]
fn strangers_get_no_session_and_a_removed_member_loses_it() {
    let mut world = world();
    // B's realm no longer has A.
    let mut table = InnerPrefixes::default();
    for prefix in prefixes(B) {
        table.insert(prefix, identity(B));
    }
    world.gateway(B).set_realm(Vec::new(), table);
    world.send_plain(A, &udp(V4.0, V4.1, (1000, 53), b"x"));
    world.run(Duration::from_secs(1));
    assert!(world.received(B).is_empty());
    assert!(world.gateway(B).counters().dropped(Reason::Stranger) > 0);
    let now = world.now();
    assert!(world.gateway(B).status(now).is_empty());
    // The session ends at A too, and the next one is not granted.
    world.run(Duration::from_secs(200));
    world.send_plain(A, &udp(V4.0, V4.1, (1000, 53), b"x"));
    world.run(Duration::from_secs(2));
    assert!(world.gateway(B).counters().dropped(Reason::Stranger) > 0);
}

#[test]
fn a_gateway_forwards_nothing_and_answers_no_garbage() {
    let mut world = world();
    // B is in the middle of a path.
    let order = [A, B, 3];
    let path = network::path(&order);
    let consents = network::consents(&order, &path, Version::Standard);
    let sender = Sender::new(Version::Standard, &path, &network::secret(A), &consents).unwrap();
    let mut octets = Vec::new();
    encapsulate(&sender, (Form::Path, Part::Whole), 99, Nonce::new(world.now().unix, 1), b"x", &mut octets).unwrap();
    world.inject(A, B, &octets);
    assert_eq!(world.gateway(B).counters().dropped(Reason::NotForwarder), 1);
    world.sent.clear();
    let sender = network::sender(&[A, 2, 3, B]);
    let mut random = crate::common::Random(5);
    for number in 0..2_000u32 {
        let length = random.below(200);
        let mut payload = random.octets(length);
        if number % 2 == 0 && length >= 8 {
            payload[..8].copy_from_slice(&[1 + (number / 2 % 3) as u8, 0, 0, 0, 0, 0, 0, 5]);
        }
        let protocol = [99, 99, 99, 4, 254][random.below(5)];
        let nonce = Nonce::new(world.now().unix, 1_000 + number);
        encapsulate(&sender, (Form::Path, Part::Whole), protocol, nonce, &payload, &mut octets).unwrap();
        world.inject(A, 2, &octets);
    }
    assert!(world.sent.is_empty() && world.received(B).is_empty());
    let counters = world.gateway(B).counters();
    for reason in [Reason::NotSealed, Reason::Malformed, Reason::UnknownSession, Reason::Seal, Reason::Busy] {
        assert!(counters.dropped(reason) > 0, "{reason:?}");
    }
    assert_eq!(LINK, 100);
}

#[test]
fn a_packet_that_stands_for_an_absurd_number_of_segments_is_dropped_and_counted() {
    let mut world = world();
    let big = tcp(V4.0, V4.1, (1, 2), 1, 0x18, &[], &[7; 65_000]);
    let of = |kind, size| Offload { needs_checksum: true, kind, size, ..Offload::default() };
    for size in [1, 8, 47] {
        world.send(A, &big, &of(Kind::Tcp4, size));
    }
    world.send(A, &udp(V4.0, V4.1, (1, 2), &[7; 65_000]), &of(Kind::Udp, 1));
    assert_eq!(world.gateway(A).counters().dropped(Reason::TooManySegments), 4);
    assert!(world.sent.is_empty() && world.received(A).is_empty(), "nothing is sealed for it");
    // The least segment of Linux, and few small ones, are segments.
    world.send(A, &big, &of(Kind::Tcp4, 48));
    world.send(A, &tcp(V4.0, V4.1, (1, 2), 65_001, 0x18, &[], &[7; 100]), &of(Kind::Tcp4, 1));
    assert_eq!(world.gateway(A).counters().sent, 1 + 65_000u64.div_ceil(48) + 100);
}

/// Sends what A has sealed in packets of node 8's own, over node 3.
fn in_packets_of_another(world: &mut World, message: &[u8], count: u32) {
    let sender = network::sender(&[8, 3, B]);
    let nonce = Nonce::new(world.now().unix, count);
    let mut octets = Vec::new();
    encapsulate(&sender, (Form::Path, Part::Whole), 99, nonce, message, &mut octets).unwrap();
    world.inject(8, 3, &octets);
}

#[test]
fn what_one_gateway_sealed_does_not_count_in_packets_of_another() {
    // The consent servers of the path to B refuse A, say; 8 carries for it.
    let mut world = World::new(&[&[A, 2, 3, B]]);
    world.down.insert(3);
    world.send_plain(A, &udp(V4.0, V4.1, (1000, 53), b"first"));
    world.run(Duration::from_millis(100));
    let payload = |octets: &[u8]| Packet::decode(octets, Version::Standard).unwrap().payload().to_vec();
    let initiation = world.sent.iter().map(|(_, _, octets)| payload(octets)).find(|message| message[0] == 1).unwrap();
    world.down.clear();
    in_packets_of_another(&mut world, &initiation, 1);
    let now = world.now();
    assert!(world.gateway(B).status(now).is_empty(), "no session with A");
    // The prologue has whose packet it was.
    assert_eq!(world.gateway(B).counters().dropped(Reason::Seal), 1);
    // By its own path it gets one; what it seals does not open in another's packets.
    world.run(Duration::from_secs(2));
    assert_eq!(world.received(B).len(), 1);
    world.down.insert(2);
    world.sent.clear();
    world.send_plain(A, &udp(V4.0, V4.1, (1000, 53), b"second"));
    let data = world.sent.iter().map(|(_, _, octets)| payload(octets)).find(|message| message[0] == 3).unwrap();
    in_packets_of_another(&mut world, &data, 2);
    assert!(world.received(B).is_empty());
    assert_eq!(world.gateway(B).counters().dropped(Reason::OtherSender), 1);
}

#[test]
fn an_initiation_that_is_sent_again_takes_nothing_of_its_senders_part() {
    let mut world = world();
    let captured = Rc::new(RefCell::new(Vec::new()));
    let to_b = Rc::clone(&captured);
    world.tamper = Box::new(move |_, to, octets: &mut Vec<u8>| {
        if to == B {
            to_b.borrow_mut().push(octets.clone());
        }
        true
    });
    let is_initiation = |octets: &[u8]| Packet::decode(octets, Version::Standard).unwrap().payload()[0] == 1;
    let began = || captured.borrow().iter().find(|octets| is_initiation(octets)).cloned();
    // The session of the beginning is renewed after two minutes.
    let initiation = (0..1_500)
        .find_map(|_| {
            world.send_plain(A, &udp(V4.0, V4.1, (1000, 53), b"payload"));
            world.run(Duration::from_millis(100));
            began()
        })
        .unwrap();
    for _ in 0..1_000 {
        world.inject(3, B, &initiation);
    }
    let counters = world.gateway(B).counters();
    assert_eq!((counters.dropped(Reason::Replayed), counters.dropped(Reason::Busy)), (1_000, 0), "{counters:?}");
    // What its proofs do not cover is another one each time: it is one packet all the same.
    let packet = Packet::decode(&initiation, Version::Standard).unwrap();
    assert_eq!(packet.version(), Version::Sealed);
    let inside = initiation.len() - packet.payload().len() + 16;
    for number in 0..1_000u16 {
        let mut other = initiation.clone();
        other[inside..inside + 2].copy_from_slice(&number.to_be_bytes());
        world.inject(3, B, &other);
    }
    let counters = world.gateway(B).counters();
    assert_eq!((counters.dropped(Reason::Replayed), counters.dropped(Reason::Busy)), (2_000, 0), "{counters:?}");
}

#[test]
fn twenty_thousand_initiations_a_second_by_one_member_cost_no_other_its_session() {
    let mut world = world();
    let mut random = crate::common::Random(5);
    let mut count = 0;
    for _ in 0..117 {
        world.send_plain(A, &udp(V4.0, V4.1, (1000, 53), b"payload"));
        world.run(Duration::from_secs(1));
    }
    world.sent.clear();
    // From 117 to 123 seconds, and by the link by which A's packets come.
    for millis in 0..6_000 {
        world.micros += 1_000;
        for _ in 0..20 {
            count += 1;
            let message = [&[1, 0, 0, 0, 0, 0, 0, 5][..], &random.octets(160)].concat();
            in_packets_of_another(&mut world, &message, count);
        }
        if millis % 100 == 0 {
            world.send_plain(A, &udp(V4.0, V4.1, (1000, 53), b"payload"));
        }
        let now = world.now();
        [A, B].into_iter().for_each(|node| world.gateway(node).handle_timeout(now));
        world.settle();
    }
    let counters = world.gateway(B).counters();
    assert!(counters.dropped(Reason::Busy) > 100_000 && counters.dropped(Reason::Seal) > 500, "{counters:?}");
    let is_initiation = |octets: &Vec<u8>| Packet::decode(octets, Version::Standard).unwrap().payload()[0] == 1;
    let initiations = world.sent.iter().filter(|(node, _, octets)| *node == A && is_initiation(octets)).count();
    assert_eq!((initiations, world.gateway(A).counters().sessions), (1, 2), "renewed at the first try");
    assert_eq!(world.received(B).len(), 117 + 60);
}

#[test]
fn a_host_that_sends_to_nobody_without_end_takes_no_other_hosts_errors() {
    let mut world = world();
    let long = tcp("10.0.0.7", V4.1, (1, 2), 1, 0x18, &[], &[7; 1_400]);
    let mut told = 0;
    for number in 0..5_000u32 {
        world.send_plain(A, &udp(V4.0, "10.99.0.1", (number as u16, 53), b"nobody"));
        if number % 1_000 == 999 {
            world.received(A);
            world.send_plain(A, &long);
            told += world.received(A).iter().filter(|octets| octets[16..20] == [10, 0, 0, 7]).count();
        }
        world.micros += 1_000;
    }
    assert_eq!(told, 5);
}

#[test]
fn probes_without_end_are_answered_within_a_limit() {
    let mut world = world();
    let now = world.now();
    let answers = world.gateway(A).counters().answers;
    for _ in 0..1_000 {
        world.gateway(A).want(identity(B), 0, now);
        world.settle();
    }
    let refused = world.gateway(B).counters().dropped(Reason::Busy);
    let probes = world.gateway(A).counters().probes;
    assert!(refused >= 1_000 && probes >= 1_000 + refused / 2, "{refused} of {probes}");
    assert!(world.gateway(A).counters().answers - answers <= 2 * 200, "by active and spare path each");
    world.run(Duration::from_secs(2));
    world.send_plain(A, &udp(V4.0, V4.1, (1000, 53), b"goes on"));
    assert_eq!(world.received(B).len(), 1);
}

#[test]
fn packets_and_offloads_that_contradict_each_other_harm_nobody() {
    let mut world = world();
    let mut random = crate::common::Random(11);
    let good = [
        tcp(V4.0, V4.1, (1, 2), 1, 0x18, &[2, 4, 5, 0xb4], &[7; 900]),
        tcp("fd00:0::1", "fd00:1::1", (1, 2), 1, 0x02, &[1, 1, 1, 1], &[7; 900]),
        udp(V4.0, V4.1, (1, 2), &[7; 900]),
    ];
    for _ in 0..4_000 {
        let mut header: [u8; 10] = random.octets(10).try_into().expect("ten");
        header[1] = [0, 1, 4, 5][random.below(4)];
        let mut octets = good[random.below(3)].clone();
        for _ in 0..random.below(4) {
            // The lengths stay, so that what is behind them is looked at.
            let place = 6 + random.below(octets.len().min(60) - 6);
            octets[place] = random.next() as u8;
        }
        if random.one_in(4) {
            octets.truncate(random.below(octets.len()));
        }
        let Some(offload) = Offload::decode(&header) else { continue };
        world.send(A, &octets, &offload);
        world.inner.clear();
        world.sent.clear();
        world.drops.clear();
    }
    world.send_plain(A, &udp(V4.0, V4.1, (1000, 53), b"still here"));
    assert_eq!(world.received(B).len(), 1);
}

#[test]
fn one_application_of_a_proxy_takes_no_error_of_another() {
    let mut world = world();
    world.gateways.insert(A, process_of(A));
    for number in 0..500u16 {
        world.send_plain(A, &udp(V4.0, "10.0.77.1", (1_000, number), b"to nobody"));
    }
    assert_eq!(world.received(A).len(), 500, "each is told at once");
    let now = world.now();
    let host = world.gateway(B);
    for number in 0..500u16 {
        host.inner(&mut udp(V4.1, "10.0.77.1", (1_000, number), b"to nobody"), &Offload::default(), now);
    }
    world.settle();
    assert_eq!(world.received(B).len(), 10, "a host has its part");
}

#[test]
fn an_error_about_what_this_side_never_sent_is_dropped_also_where_everything_is_admitted() {
    let mut world = world();
    world.send_plain(A, &udp(V4.0, V4.1, (53, 5_353), b"nobody asked"));
    world.run(Duration::from_millis(100));
    assert_eq!(world.received(B).len(), 1);
    let never_sent = udp(V4.1, V4.0, (5_353, 53), b"?");
    world.send_plain(A, &unreachable(V4, &never_sent));
    assert!(world.received(B).is_empty());
    assert_eq!(world.gateway(B).counters().dropped(Reason::InnerUnrelated), 1);
    world.send_plain(B, &never_sent);
    world.send_plain(A, &unreachable(V4, &never_sent));
    assert_eq!(world.received(B).len(), 1, "now it has");
}

#[test]
fn a_member_begins_what_is_admitted_and_nothing_else_and_answers_pass() {
    const SYN: u8 = 2;
    const SYN_ACK: u8 = 0x12;
    let mut world = world();
    let admit = |world: &mut World, all: Option<&[&str]>| {
        let of_a = all.map(|all| all.iter().map(|text| text.parse().unwrap()).collect());
        let admitted = of_a.map(|of_a| [(identity(A), of_a)].into());
        world.gateway(B).set_admitted(Some(admitted.unwrap_or_default()));
    };
    admit(&mut world, Some(&["tcp/80", "icmp"]));
    let syn = |port: u16, to: u16| tcp(V4.0, V4.1, (port, to), 70, SYN, &[], b"");
    let dropped = |world: &mut World| world.gateway(B).counters().dropped(Reason::InnerRefused);
    world.send_plain(A, &syn(2_000, 80));
    assert_eq!(world.received(B).len(), 1);
    // A SYN that is refused is reset, and by that nothing is let in: not the same again, and no data.
    for number in 1..=3 {
        world.send_plain(A, &syn(2_001, 22));
        assert!(world.received(B).is_empty());
        let back = world.received(A);
        assert_eq!(back, [tcp_reset((V4.1, V4.0), (22, 2_001), 71)], "{number}");
        assert_eq!(dropped(&mut world), number);
    }
    world.send_plain(A, &tcp(V4.0, V4.1, (2_001, 22), 71, 0x10, &[], b"data"));
    world.send_plain(A, &udp(V4.0, V4.1, (1_000, 53), b"the flow of before is over"));
    world.send_plain(A, &ip(V4.0, V4.1, 47, 0, &[0; 20]));
    assert!(world.received(B).is_empty() && world.received(A).is_empty());
    assert_eq!(dropped(&mut world), 6);
    // By a name as well, under the name.
    world.send_plain(A, &tcp(V4.0, "198.18.0.1", (2_002, 22), 70, SYN, &[], b""));
    assert_eq!(world.received(A), [tcp_reset(("198.18.0.1", V4.0), (22, 2_002), 71)]);
    // What this side began is answered: a connection, a question; errors pass.
    world.send_plain(B, &tcp(V4.1, V4.0, (22, 3_000), 5, SYN, &[], b""));
    world.send_plain(A, &tcp(V4.0, V4.1, (3_000, 22), 6, SYN_ACK, &[], b""));
    world.send_plain(B, &udp(V4.1, V4.0, (5_353, 53), b"?"));
    world.send_plain(A, &udp(V4.0, V4.1, (53, 5_353), b"!"));
    let question = udp(V4.1, V4.0, (5_353, 53), b"?");
    world.send_plain(A, &unreachable((V4.0, V4.1), &question));
    assert_eq!(world.received(B).len(), 3);
    // But none about what was not sent to who says it.
    let before = world.gateway(B).counters().dropped(Reason::InnerUnrelated);
    let elsewhere = [udp(V4.1, "10.0.3.1", (5_353, 53), b"?"), udp(V4.1, V4.0, (5_354, 53), b"?"), b"nothing".to_vec()];
    for quoted in &elsewhere {
        world.send_plain(A, &unreachable((V4.0, V4.1), quoted));
    }
    assert!(world.received(B).is_empty());
    // Nor to another host than the one that sent it.
    world.send_plain(A, &unreachable((V4.0, "10.0.1.9"), &question));
    assert!(world.received(B).is_empty());
    assert_eq!(world.gateway(B).counters().dropped(Reason::InnerUnrelated), before + 4);
    // A router behind A may have cut it.
    let mut cut = question.clone();
    cut[6] |= 0x20;
    world.send_plain(A, &unreachable((V4.0, V4.1), &cut));
    assert_eq!(world.received(B).len(), 1);
    // And only that: another port of the same host is not.
    world.send_plain(A, &udp(V4.0, V4.1, (53, 5_354), b"!"));
    assert!(world.received(B).is_empty());
    // What this side says on a connection that it has forgotten does not make it its own.
    world.send_plain(B, &tcp(V4.1, V4.0, (22, 7_000), 5, 0x10, &[], b"said again"));
    world.send_plain(A, &syn(7_000, 22));
    assert!(world.received(B).is_empty());
    // Resets have a limit; so nobody has a node send without end.
    world.received(A);
    for port in 0..200 {
        world.send_plain(A, &syn(4_000 + port, 22));
    }
    assert!(world.received(A).len() <= 20);
    // A change ends what is no longer admitted; all and nothing.
    admit(&mut world, Some(&["udp"]));
    world.send_plain(A, &tcp(V4.0, V4.1, (2_000, 80), 71, 0x10, &[], b"more"));
    assert!(world.received(B).is_empty());
    admit(&mut world, Some(&[]));
    world.send_plain(A, &syn(2_003, 22));
    assert_eq!(world.received(B).len(), 1);
    admit(&mut world, None);
    world.send_plain(A, &syn(2_004, 22));
    assert!(world.received(B).is_empty());
    world.send_plain(A, &unreachable((V4.0, V4.1), &question));
    assert_eq!(world.received(B).len(), 1, "an error about what this side began");
    world.gateway(B).set_admitted(None);
    world.send_plain(A, &unreachable((V4.0, V4.1), &elsewhere[0]));
    assert!(world.received(B).is_empty());
    world.send_plain(A, &syn(2_005, 22));
    assert_eq!(world.received(B).len(), 1);
}

/// An ICMP error about a packet of which it has the first octets.
fn unreachable((from, to): (&str, &str), about: &[u8]) -> Vec<u8> {
    ip(from, to, 1, 2, &[&[3, 3, 0, 0, 0, 0, 0, 0], &about[..about.len().min(28)]].concat())
}

/// A reset without a window and a sequence number, which acknowledges this.
fn tcp_reset((from, to): (&str, &str), ports: (u16, u16), acknowledged: u32) -> Vec<u8> {
    let mut transport = [ports.0.to_be_bytes(), ports.1.to_be_bytes()].concat();
    transport.extend([0; 4]);
    transport.extend(acknowledged.to_be_bytes());
    transport.extend([5 << 4, 0x14, 0, 0, 0, 0, 0, 0]);
    let mut out = ip(from, to, 6, 16, &transport);
    // No fragments are made of it, and it has no number.
    (out[4..8]).copy_from_slice(&[0; 4]);
    out[10..12].copy_from_slice(&[0; 2]);
    let sum = !checksum(&[&out[..20]]);
    out[10..12].copy_from_slice(&sum.to_be_bytes());
    out
}
