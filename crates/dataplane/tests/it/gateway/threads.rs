//! Several threads of one gateway.
//!
//! ICD-11, gateway: threads that send and receive at once: no number twice, every packet once, whichever thread it comes to.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use wayleave_core::{InnerPrefixes, Now};
use wayleave_crypto::dh::DhSecret;
use wayleave_dataplane::frame::{BURST, Frame, Ingress};
use wayleave_dataplane::gateway::offload::{Offload, each_packet};
use wayleave_dataplane::gateway::{Gateway, Internet, Member, Name, Output, PathPolicy, Reason, Reload};
use wayleave_dataplane::icing::{ConfigError, Policy};
use wayleave_packet::icing::header::{Packet, Version};

use super::world::{A, B, NODES, World, identity, noise, thread_of, udp};
use crate::icing::network::{self, LINK};

const ENDS: (&str, &str) = ("10.0.0.1", "10.0.1.1");
const THREADS: usize = 4;
/// Packets that each thread sends: all together are fewer than may come late in a session.
const EACH: u16 = 1_500;

/// What a thread hands to its system of packets that come from `from`.
fn arrive(gateway: &mut Gateway, from: usize, packets: &mut [Vec<u8>], now: Now) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    for burst in packets.chunks_mut(BURST) {
        let ingress = Ingress::External(LINK + from as u16);
        let mut frames: Vec<Frame<'_>> = burst.iter_mut().map(|octets| Frame { octets, ingress }).collect();
        gateway.outer(&mut frames, now);
        while let Some(output) = gateway.poll() {
            if let Output::Inner(ready) = output {
                each_packet(&ready.octets, &ready.offload, &mut Vec::new(), |packet| out.push(packet.to_vec()));
            }
        }
    }
    out
}

#[test]
fn a_thread_knows_the_paths_that_another_has_learnt_and_refuses_what_another_has_taken() {
    let mut world = World::new(&[&[A, 2, 3, B]]);
    let mut other = thread_of(world.gateway(B), B);
    world.send_plain(A, &udp(ENDS.0, ENDS.1, (1000, 53), b"first"));
    world.run(Duration::from_secs(2));
    assert_eq!(world.received(B).len(), 1);
    let caught = Rc::new(RefCell::new(Vec::new()));
    let catching = Rc::clone(&caught);
    world.tamper = Box::new(move |_, to, octets| {
        if to == B {
            catching.borrow_mut().push(octets.clone());
        }
        to != B
    });
    let packet = udp(ENDS.0, ENDS.1, (1000, 53), b"second");
    world.send_plain(A, &packet);
    let caught = caught.take();
    let [octets] = &caught[..] else { panic!("{} packets", caught.len()) };
    assert!(Packet::decode(octets, Version::Standard).unwrap().path().is_none(), "it has the handle alone");
    let now = world.now();
    assert_eq!(arrive(&mut other, 3, &mut [octets.clone()], now), [packet]);
    for again in [&mut other, world.gateway(B)] {
        assert!(arrive(again, 3, &mut [octets.clone()], now).is_empty());
    }
    let counters = other.counters();
    assert_eq!((counters.received, counters.dropped(Reason::Replayed)), (2, 2), "all threads count together");
    assert_eq!(world.gateway(B).counters().received, 2);
}

#[test]
fn a_reload_is_one_turn_so_that_no_packet_meets_half_of_it() {
    let mut world = World::new(&[&[A, 2, 3, B]]);
    let now = world.now();
    let other = thread_of(world.gateway(A), A);
    let mut prefixes = InnerPrefixes::default();
    prefixes.insert("10.0.0.0/24".parse().unwrap(), identity(A));
    prefixes.insert("0.0.0.0/0".parse().unwrap(), identity(B));
    let member = |node: usize| Member {
        identity: identity(node),
        noise: DhSecret::from_seed(&noise(node)).public(),
        ids: vec![network::id(node)],
        addresses: vec![format!("10.0.{node}.1").parse().unwrap()],
    };
    let name = Name { policy: "only".to_owned(), node: identity(B) };
    let reload = |receiver| Reload {
        members: [A, B].map(member).to_vec(),
        prefixes: prefixes.clone(),
        internet: Internet { is_own: false, is_used: true },
        admitted: Some([(identity(B), Vec::new())].into()),
        nodes: [A, 2, 3, B].map(identity).into(),
        policies: Some(vec![PathPolicy { name: "only".to_owned(), ..PathPolicy::default() }]),
        receiver,
        neighbours: vec![(identity(2), LINK + 2)],
        names: vec![("198.18.0.9".parse().unwrap(), name.clone())],
    };
    let before = other.counters().turns;
    assert!(world.gateway(A).reload(reload(network::policy(A, NODES)), now).is_ok());
    assert_eq!(other.counters().turns, before + 1, "for all threads");
    // The name under the new policy, and the Internet by the new member.
    for to in ["198.18.0.9", "203.0.113.9"] {
        world.send_plain(A, &udp(ENDS.0, to, (1000, 53), b"payload"));
    }
    assert_eq!(world.gateway(A).counters().dropped(Reason::NoMember), 0);
    assert_eq!(world.gateway(A).status(now).len(), 1);
    let wrong = Policy { secrets: Vec::new(), ..network::policy(A, NODES) };
    assert_eq!(world.gateway(A).reload(reload(wrong), now), Err(ConfigError::Keys(0)));
}

#[test]
fn a_packet_may_come_65_000_packets_late_and_one_that_is_later_is_told_from_one_that_came_before() {
    let mut world = World::new(&[&[A, B]]);
    world.send_plain(A, &udp(ENDS.0, ENDS.1, (1000, 53), b"first"));
    world.run(Duration::from_secs(2));
    let now = world.now();
    let (mut sender, mut receiver) = (world.gateways.remove(&A).unwrap(), world.gateways.remove(&B).unwrap());
    let mut next = || {
        sender.inner(&mut udp(ENDS.0, ENDS.1, (1000, 53), b"another"), &Offload::default(), now);
        let Some(Output::Wire { octets, .. }) = sender.poll() else { panic!("no packet") };
        octets
    };
    let early: Vec<Vec<u8>> = (0..200).map(|_| next()).collect();
    let mut come = |octets: &[u8]| arrive(&mut receiver, A, &mut [octets.to_vec()], now).len();
    let last = (0..65_000).fold(Vec::new(), |_, _| next());
    assert_eq!((come(&last), come(&early[0]), come(&early[0])), (1, 1, 0));
    let last = (0..1_000).fold(Vec::new(), |_, _| next());
    assert_eq!((come(&last), come(&early[1]), come(&early[199])), (1, 0, 0));
    let counters = receiver.counters();
    assert_eq!([Reason::Replayed, Reason::TooOld].map(|reason| counters.dropped(reason)), [1, 2]);
}

#[test]
fn threads_that_send_and_receive_at_once_use_no_number_twice_and_deliver_each_packet_once() {
    let mut world = World::new(&[&[A, B]]);
    let mut senders: Vec<Gateway> = (1..THREADS).map(|_| thread_of(world.gateway(A), A)).collect();
    let mut receivers: Vec<Gateway> = (1..THREADS).map(|_| thread_of(world.gateway(B), B)).collect();
    world.send_plain(A, &udp(ENDS.0, ENDS.1, (1000, 53), b"first"));
    world.run(Duration::from_secs(2));
    let now = world.now();
    senders.extend(world.gateways.remove(&A));
    receivers.extend(world.gateways.remove(&B));
    let packet = |thread: usize, number: u16| {
        let payload = [&(thread as u16).to_be_bytes()[..], &number.to_be_bytes(), &[7; 60]].concat();
        udp(ENDS.0, ENDS.1, (1000 + thread as u16, 53), &payload)
    };
    let sent = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for (thread, sender) in senders.iter_mut().enumerate() {
            let sent = &sent;
            scope.spawn(move || {
                for number in 0..EACH {
                    sender.inner(&mut packet(thread, number), &Offload::default(), now);
                    while let Some(output) = sender.poll() {
                        if let Output::Wire { octets, .. } = output {
                            sent.lock().unwrap().push(octets);
                        }
                    }
                }
            });
        }
    });
    let mut sent = sent.into_inner().unwrap();
    let all = THREADS * usize::from(EACH);
    assert_eq!(sent.len(), all);
    let numbers = |octets: &Vec<u8>| {
        let packet = Packet::decode(octets, Version::Standard).unwrap();
        (packet.nonce(), packet.payload()[8..16].to_vec())
    };
    assert_eq!(sent.iter().map(|octets| numbers(octets).0).collect::<BTreeSet<_>>().len(), all, "nonces");
    assert_eq!(sent.iter().map(|octets| numbers(octets).1).collect::<BTreeSet<_>>().len(), all, "numbers of messages");
    // Each packet comes twice, to two threads: one of them takes it.
    let (half, received) = (all / 2, Mutex::new(Vec::new()));
    let parts: Vec<Vec<Vec<u8>>> = (0..THREADS)
        .map(|thread| {
            let begin = if thread % 2 == 0 { 0 } else { half };
            let mut part = sent[begin..begin + half].to_vec();
            part.rotate_left(thread * BURST);
            part
        })
        .collect();
    sent.clear();
    thread::scope(|scope| {
        for (receiver, mut part) in receivers.iter_mut().zip(parts) {
            let received = &received;
            scope.spawn(move || {
                let ready = arrive(receiver, A, &mut part, now);
                received.lock().unwrap().extend(ready);
            });
        }
    });
    let received = received.into_inner().unwrap();
    // Without IP headers: packets of several datagrams have an ID for all.
    let datagram = |octets: &[u8]| octets[20..].to_vec();
    let expected: BTreeSet<Vec<u8>> =
        (0..THREADS).flat_map(|thread| (0..EACH).map(move |number| datagram(&packet(thread, number)))).collect();
    assert_eq!(received.len(), all);
    assert!(received.iter().map(|octets| datagram(octets)).collect::<BTreeSet<_>>() == expected);
    let counters = receivers[0].counters();
    assert_eq!(counters.dropped(Reason::Replayed), all as u64);
}
