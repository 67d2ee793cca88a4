//! Honest packets: accepted everywhere, with paths and with handles, whatever they carry.
//!
//! ICD-01: honest packets on paths of 2 to 16 nodes, with path and with handle: accepted everywhere.
//! ICD-11: payloads of no octets, of 65,507 and of 65,535: accepted.

use wayleave_core::Instant;
use wayleave_crypto::lanes::CpuKernel;
use wayleave_dataplane::frame::{BURST, Frame, Ingress};
use wayleave_dataplane::icing::{Action, Policy, Reason, Router, Stamp, Stamper};
use wayleave_packet::icing::header::{MIN_SEALED, Packet, Part, PathHolders, SEALED, Tag, Version};
use wayleave_packet::icing::mint::{Form, Forms, Front, Joiner, NodeSecret, Nonce, Sender, cut, encapsulate};

use super::network::{self, LINK, Random, TAGS, TIME, at, carry, mesh, packet, process, process_at, sender};

/// ICD-01.
#[test]
fn honest_packets_are_accepted_on_paths_of_2_to_16_nodes_with_path_and_with_handle() {
    let mut routers = mesh(16);
    let mut random = Random(1);
    for count in 2..=16 {
        let mut order: Vec<usize> = (0..16).collect();
        for place in 0..count {
            order.swap(place, place + random.below(16 - place));
        }
        order.truncate(count);
        let sender = sender(&order);
        for (counter, length) in [0, 1, 16, 17, 64, 500, 1_500].into_iter().enumerate() {
            let payload = random.octets(length);
            let form = if counter == 0 { Form::Path } else { [Form::Path, Form::Handle][counter % 2] };
            let octets = packet(&sender, form, counter as u32, &payload);
            assert_eq!(octets.len(), sender.header_length(form) + length);
            let delivered = carry(&mut routers, &order, 1, &octets).unwrap();
            let packet = Packet::decode(&delivered, Version::Standard).unwrap();
            assert_eq!(packet.payload(), payload);
            assert!(packet.is_last());
            // Every node behind the sender reports that it holds the path.
            assert_eq!(u32::from(packet.held()), (1 << count) - 2);
        }
    }
}

/// ICD-11, without the interface: what a datagram and a super-packet's segment can hold.
#[test]
fn payloads_of_no_octets_and_of_as_many_as_the_length_says_are_accepted() {
    let mut routers = mesh(3);
    let sender = sender(&[0, 1, 2]);
    for (counter, length) in [0, 65_507 - sender.header_length(Form::Path), 65_535].into_iter().enumerate() {
        let octets = packet(&sender, Form::Path, counter as u32, &vec![7; length]);
        assert!(carry(&mut routers, &[0, 1, 2], 1, &octets).is_ok(), "{length}");
    }
    let mut out = Vec::new();
    let nonce = Nonce::new(at(TIME).unix, 9);
    assert!(encapsulate(&sender, (Form::Path, Part::Whole), 4, nonce, &vec![7; 65_536], &mut out).is_err());
}

#[test]
fn the_sender_sends_handles_once_the_receiver_says_that_all_nodes_hold_the_path() {
    let order = [0, 1, 2, 3];
    let mut routers = mesh(4);
    let sender = sender(&order);
    let mut forms = Forms::new(sender.handle(), sender.count());
    let instant = |ms: u64| Instant(ms * 1_000_000);
    // A handle that no node holds is dropped.
    let lost = carry(&mut routers, &order, 1, &packet(&sender, Form::Handle, 0, b"x"));
    assert_eq!(lost, Err((1, Reason::UnknownHandle)));
    let form = forms.next(instant(0));
    let delivered = carry(&mut routers, &order, 1, &packet(&sender, form, 1, b"x")).unwrap();
    let held = Packet::decode(&delivered, Version::Standard).unwrap().held();
    let answer = PathHolders { handle: sender.handle(), nodes: held }.encode();
    forms.acknowledge(&PathHolders::decode(&answer).unwrap());
    assert_eq!(forms.next(instant(1)), Form::Handle);
    let octets = packet(&sender, Form::Handle, 2, b"x");
    assert!(
        octets.len() + wayleave_packet::icing::header::path_length(4) == packet(&sender, Form::Path, 2, b"x").len()
    );
    assert!(carry(&mut routers, &order, 1, &octets).is_ok());
    // A node that restarts knows the path again once the sender repeats it.
    routers[2] = network::router(2, 4);
    assert_eq!(carry(&mut routers, &order, 1, &packet(&sender, Form::Handle, 3, b"")), Err((2, Reason::UnknownHandle)));
    assert_eq!(forms.next(instant(1_001)), Form::Path);
    assert!(carry(&mut routers, &order, 1, &packet(&sender, Form::Path, 4, b"")).is_ok());
    assert!(carry(&mut routers, &order, 1, &packet(&sender, Form::Handle, 5, b"")).is_ok());
}

#[test]
fn a_payload_split_over_two_packets_is_joined_by_the_receiver() {
    let order = [0, 1, 2];
    let mut routers = mesh(3);
    let sender = sender(&order);
    let payload: Vec<u8> = (0..1_400u32).map(|n| n as u8).collect();
    let (first, second) = cut(&payload, 1_200).unwrap();
    let mut joiner = Joiner::default();
    let mut out = Vec::new();
    let nonce = Nonce::new(at(TIME).unix, 5);
    for (part, octets, nonce, is_whole) in
        [(Part::First, first, nonce, false), (Part::Second, second, nonce.next(), true)]
    {
        let mut octets_out = Vec::new();
        encapsulate(&sender, (Form::Path, part), 4, nonce, octets, &mut octets_out).unwrap();
        let delivered = carry(&mut routers, &order, 1, &octets_out).unwrap();
        let packet = Packet::decode(&delivered, Version::Standard).unwrap();
        let joined =
            joiner.join(packet.handle(), packet.nonce(), packet.part(), packet.payload(), Instant(0), &mut out);
        assert_eq!(joined, is_whole);
    }
    assert_eq!(out, payload);
}

#[test]
fn many_packets_stamped_together_are_those_stamped_one_by_one_on_every_kernel() {
    let mut random = Random(4);
    let orders = [&[0, 1][..], &[1, 2, 3, 4], &[5, 4, 3, 2, 1, 0, 6, 7]];
    let sealed = orders.map(|order| network::sender_of(Version::Sealed, order));
    let senders: Vec<Sender> = orders.map(sender).into_iter().chain(sealed).collect();
    for kernel in CpuKernel::available() {
        // Samples for nodes at either end of paths among them.
        for count in [1, 7, 8, 9].into_iter().chain([64; 20]) {
            let choices: Vec<(usize, Form, Vec<u8>)> = (0..count)
                .map(|_| {
                    let (which, length) = (random.below(6), MIN_SEALED + random.below(200));
                    (which, [Form::Path, Form::Handle][random.below(2)], random.octets(length))
                })
                .collect();
            let mut buffers: Vec<Vec<u8>> = choices
                .iter()
                .map(|(which, form, payload)| {
                    let mut buffer = vec![0xaa; senders[*which].header_length(*form)];
                    buffer.extend_from_slice(payload);
                    buffer
                })
                .collect();
            let nonce = |place: usize| Nonce::new(at(TIME).unix, place as u32);
            let mut stamps: Vec<Stamp<'_>> = choices
                .iter()
                .zip(&mut buffers)
                .enumerate()
                .map(|(place, ((which, form, _), octets))| Stamp {
                    sender: &senders[*which],
                    front: Front {
                        form: *form,
                        part: Part::Whole,
                        protocol: if *which < 3 { 4 } else { SEALED },
                        nonce: nonce(place),
                    },
                    octets,
                })
                .collect();
            Stamper::new(kernel).stamp(&mut stamps).unwrap();
            for (place, (which, form, payload)) in choices.iter().enumerate() {
                assert_eq!(buffers[place], packet(&senders[*which], *form, place as u32, payload));
            }
        }
    }
}

#[test]
fn a_burst_of_packets_meets_what_each_alone_meets() {
    let order = [0, 1, 2];
    let sender = sender(&order);
    let mut random = Random(9);
    for kernel in CpuKernel::available() {
        let mut together = Router::new(network::config(1, 3), kernel).unwrap();
        let mut alone = network::router(1, 3);
        let mut packets: Vec<Vec<u8>> = (0..BURST as u32)
            .map(|n| {
                let form = if n < 2 { Form::Path } else { Form::Handle };
                let length = random.below(300);
                packet(&sender, form, n, &random.octets(length))
            })
            .collect();
        for octets in packets.iter_mut().skip(3).step_by(5) {
            let at = random.below(octets.len());
            octets[at] ^= 1 << random.below(8);
        }
        let mut expected = Vec::new();
        for octets in &packets {
            expected.push(process(&mut alone, octets, LINK));
        }
        let mut frames: Vec<Frame<'_>> =
            packets.iter_mut().map(|octets| Frame { octets, ingress: Ingress::External(LINK) }).collect();
        let found = together.process(&mut frames, at(TIME));
        for (place, (action, after)) in expected.iter().enumerate() {
            assert_eq!((found[place], &packets[place]), (*action, after), "{place}");
        }
    }
}

fn service_path(tag: u32) -> Sender {
    let order = [0, 1, 2];
    let path = network::path_with(&order, Tag(tag), network::EXPIRY);
    let consents = network::consents(&order, &path, Version::Standard);
    Sender::new(Version::Standard, &path, &network::secret(0), &consents).unwrap()
}

#[test]
fn tags_choose_queue_link_and_service() {
    let next = LINK + 2;
    let cases = [
        (TAGS, Action::Forward { link: next, queue: 1 }),
        (TAGS | 0x00ff_ffff, Action::Service { service: 7, link: next, queue: 2 }),
        (TAGS | 0x0040_1234, Action::Forward { link: network::OPEN, queue: 3 }),
        (TAGS | 0x0041_0000, Action::Forward { link: next, queue: 1 }),
        (TAGS ^ 0x0100_0000, Action::Drop(Reason::UnknownTag)),
    ];
    for (tag, expected) in cases {
        let octets = packet(&service_path(tag), Form::Path, 1, b"payload");
        let (action, after) = process(&mut network::router(1, 3), &octets, LINK);
        assert_eq!(action, expected, "{tag:#x}");
        if tag == TAGS | 0x00ff_ffff {
            let last = process(&mut network::router(2, 3), &after, LINK + 1).0;
            assert_eq!(last, Action::Deliver { service: 7, queue: 2 });
        }
    }
}

/// The previous, current and next epoch's keys are in use together, so that rotation loses no packet.
#[test]
fn a_node_changes_its_keys_and_policy_without_losing_a_packet() {
    let seed = network::seed(1);
    let keys = |epochs: std::ops::RangeInclusive<u32>| epochs.map(|epoch| NodeSecret::derive(&seed, epoch)).collect();
    let policy = |epochs| Policy { secrets: keys(epochs), ..network::policy(1, 3) };
    let mut router = network::router(1, 3);
    router.set_policy(policy(9..=11)).unwrap();
    let sender = |epoch: u32| {
        let hop = |node, _| wayleave_packet::icing::header::Hop { node, tag: Tag(TAGS), expiry: network::EXPIRY };
        let hops = [hop(NodeSecret::derive(&seed, epoch).id(), 0), hop(network::id(2), 0)];
        let path = wayleave_packet::icing::header::Path::new(network::id(0), &hops).unwrap();
        let consents = network::consents(&[0, 1, 2], &path, Version::Standard);
        Sender::new(Version::Standard, &path, &network::secret(0), &consents).unwrap()
    };
    let (old, new) = (sender(10), sender(11));
    let forwarded = |action| matches!(action, Action::Forward { .. });
    for counter in 0..10 {
        let form = if counter == 0 { Form::Path } else { Form::Handle };
        assert!(forwarded(process(&mut router, &packet(&old, form, counter, b""), LINK).0));
        assert!(forwarded(process(&mut router, &packet(&new, form, counter, b""), LINK).0));
        if counter == 5 {
            router.set_policy(policy(10..=12)).unwrap();
        }
    }
    // Once the key is gone, so are the paths that named it.
    router.set_policy(policy(11..=13)).unwrap();
    assert_eq!(router.paths(), 1);
    assert_eq!(process(&mut router, &packet(&old, Form::Path, 20, b""), LINK).0, Action::Drop(Reason::NotForUs));
    assert!(forwarded(process(&mut router, &packet(&new, Form::Handle, 20, b""), LINK).0));
    // A change of a tag's meaning applies to known paths at once.
    router.set_policy(Policy { rules: Vec::new(), ..policy(11..=13) }).unwrap();
    assert_eq!(process(&mut router, &packet(&new, Form::Handle, 21, b""), LINK).0, Action::Drop(Reason::UnknownTag));
    router.set_policy(policy(11..=13)).unwrap();
    assert!(forwarded(process(&mut router, &packet(&new, Form::Handle, 21, b""), LINK).0));
}

#[test]
fn a_master_of_tag_keys_is_replaced_from_an_epoch_on() {
    let epoch = wayleave_packet::icing::mint::tag_epoch(network::EXPIRY);
    let mut router = network::router(1, 3);
    let new = (epoch + 1, network::master(9));
    let masters = vec![(0, network::master(1)), new];
    router.set_policy(Policy { masters, ..network::policy(1, 3) }).unwrap();
    assert!(matches!(
        process(&mut router, &packet(&sender(&[0, 1, 2]), Form::Path, 1, b""), LINK).0,
        Action::Forward { .. }
    ));
    let later = (epoch + 1) << 12;
    let path = network::path_with(&[0, 1, 2], Tag(TAGS), later + 10);
    for (node, expected) in [(9, true), (1, false)] {
        let consent = |(index, node): (usize, usize)| {
            network::master(node).consent(&path.hash(Version::Standard), index, Tag(TAGS), later + 10)
        };
        let consents = [(1, node), (2, 2)].map(consent);
        let sender = Sender::new(Version::Standard, &path, &network::secret(0), &consents).unwrap();
        let octets = network::packet_at(&sender, Form::Path, node as u32, later, b"");
        let (action, _) = process_at(&mut router, &octets, LINK, at(later));
        assert_eq!(matches!(action, Action::Forward { .. }), expected);
    }
}

/// Known paths end with the master under which the node consented.
#[test]
fn another_master_of_the_same_epoch_ends_the_paths_kept_under_the_old_one() {
    let mut router = network::router(1, 3);
    let sender = sender(&[0, 1, 2]);
    assert!(matches!(process(&mut router, &packet(&sender, Form::Path, 1, b""), LINK).0, Action::Forward { .. }));
    router.set_policy(network::policy(1, 3)).unwrap();
    assert_eq!(router.paths(), 1);
    router.set_policy(Policy { masters: vec![(0, network::master(9))], ..network::policy(1, 3) }).unwrap();
    assert_eq!(router.paths(), 0);
    assert_eq!(process(&mut router, &packet(&sender, Form::Path, 2, b""), LINK).0, Action::Drop(Reason::Consent));
}
