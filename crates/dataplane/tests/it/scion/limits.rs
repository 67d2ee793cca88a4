//! Interfaces, times, pointers, floods, MAC bits and extension headers at their edges.
//!
//! SCI-05: interface zero, foreign ways in and out: dropped; answers under the rate limit.
//! SCI-06: every expiry to the microsecond, clocks off, a rotation of keys: by rule; no packet lost.
//! SCI-07: every path meta header, 64 and 65 hops: refused or consistent.
//! SCI-09: a flood of forged packets among good ones, in memory: all good ones pass, forged ones are counted by
//! interface.
//! SCI-09, throttled: a limit on wrong MACs for each interface, and guessing behind one: no more MACs are checked there
//! than the limit says; other interfaces do not notice; without the limit all are checked.
//! SCI-11: every bit of the MAC changed: refused.
//! SCI-12: chains of extension headers, unknown options, padding: walked to their end and no further.
//! SCI, cost: paths of 3 to 63 hops, the current one near either end or in the middle: one MAC is checked for each.

use super::fixture::{CHILD_1, CHILD_2, HERE, PARENT_1, TIME, at, config, key, now, process, router};
use super::packets::{inbound, mint, outbound, path, template, transit};
use crate::common::{Random, times};
use wayleave_dataplane::frame::{BURST, Frame, Ingress};
use wayleave_dataplane::scion::{Action, Config, ConfigError, EpochKey, Interface, Keys, Link, Owner, Reason, Router};
use wayleave_packet::scion::{ForwardingKey, IsdAs, Packet, PathMeta, next_header};

const IN: Ingress = Ingress::External(PARENT_1);

fn refused(action: Action) -> Option<Reason> {
    match action {
        Action::Drop(reason) | Action::Answer(reason) => Some(reason),
        _ => None,
    }
}

#[test]
fn interface_zero_and_foreign_interfaces_lead_nowhere() {
    let packet = transit(PARENT_1, CHILD_1, true, IN).encode();
    for (ingress, reason) in [
        (Ingress::External(0), Reason::WrongIngress),
        (Ingress::External(999), Reason::WrongIngress),
        (Ingress::External(CHILD_1), Reason::WrongIngress),
    ] {
        assert_eq!(refused(process(&mut router(), &packet, ingress, now()).0), Some(reason));
    }
    // A packet from outside is not at its path's first hop, and one at the last hop does not leave.
    let mut packet = template(&[3], 1);
    mint(&mut packet, 1, 0, CHILD_1, false, &key());
    assert_eq!(
        refused(process(&mut router(), &packet.encode(), Ingress::External(0), now()).0),
        Some(Reason::WrongIngress)
    );
    for leaves in [0, 404, u16::MAX] {
        let packet = transit(PARENT_1, leaves, true, IN).encode();
        assert_eq!(refused(process(&mut router(), &packet, IN, now()).0), Some(Reason::UnknownEgress));
    }
    let packet = outbound(404, true).encode();
    assert_eq!(refused(process(&mut router(), &packet, Ingress::Internal, now()).0), Some(Reason::UnknownEgress));
}

#[test]
fn answers_are_limited_and_what_is_not_answered_is_counted() {
    let mut router = Router::new(&Config { answers_per_second: 100, answers_burst: 10, ..config() }).unwrap();
    let mut packet = transit(PARENT_1, CHILD_1, true, IN);
    packet.payload = vec![0; 100];
    let packet = packet.encode();
    let mut answers = 0;
    // Two seconds, a wrong packet every 100 microseconds.
    for step in 0..20_000 {
        let (action, _) = process(&mut router, &packet, Ingress::External(CHILD_1), at(60_000_000 + step * 100));
        answers += u64::from(matches!(action, Action::Answer(_)));
    }
    // What eleven places leave to one of them: `scmp.rs` has the limit by place, to the last answer.
    assert_eq!(answers, 6 + 9 + 99);
    assert_eq!(router.counters().answered, answers);
    assert_eq!(router.counters().unanswered, 20_000 - answers);
    assert_eq!(router.counters().of(Reason::WrongIngress), 20_000);
}

#[test]
fn a_hop_field_ends_to_the_microsecond_for_every_expiry() {
    for exp_time in 0..=255 {
        let mut packet = template(&[3], 1);
        path(&mut packet).hops[1].exp_time = exp_time;
        mint(&mut packet, 1, PARENT_1, CHILD_1, false, &key());
        let packet = packet.encode();
        let life = 337_500_000 * (i64::from(exp_time) + 1);
        assert_eq!(process(&mut router(), &packet, IN, at(life - 1)).0, Action::Forward(CHILD_1), "{exp_time}");
        assert_eq!(refused(process(&mut router(), &packet, IN, at(life)).0), Some(Reason::Expired), "{exp_time}");
    }
}

#[test]
fn a_segment_may_begin_up_to_337_5_seconds_ahead() {
    let packet = transit(PARENT_1, CHILD_1, true, IN).encode();
    assert_eq!(process(&mut router(), &packet, IN, at(-337_500_000)).0, Action::Forward(CHILD_1));
    assert_eq!(refused(process(&mut router(), &packet, IN, at(-337_500_001)).0), Some(Reason::Future));
    // Timestamps of 32 bits end, and nothing overflows.
    let mut packet = template(&[3], 1);
    path(&mut packet).infos[0].timestamp = u32::MAX;
    path(&mut packet).hops[1].exp_time = 255;
    mint(&mut packet, 1, PARENT_1, CHILD_1, false, &key());
    let end = at((i64::from(u32::MAX) - i64::from(TIME)) * 1_000_000 + 86_000_000_000);
    assert_eq!(process(&mut router(), &packet.encode(), IN, end).0, Action::Forward(CHILD_1));
}

#[test]
fn a_rotation_of_keys_loses_no_packet() {
    let (old, new) = (key(), ForwardingKey::new(b"the following ke"));
    let from = TIME + 3_600;
    let packet = |timestamp: u32, key: &ForwardingKey| {
        let mut packet = template(&[3], 1);
        path(&mut packet).infos[0].timestamp = timestamp;
        mint(&mut packet, 1, PARENT_1, CHILD_1, false, key);
        packet.encode()
    };
    let mut router = router();
    for minute in 0..(4 * 60) {
        let now = at(minute * 60_000_000);
        if minute == 30 {
            // The new key is known half an hour before it is used.
            router.set_keys(Keys::one(old.clone()).rotated(EpochKey { from, key: new.clone() }));
        }
        // A segment of this minute and one of two hours ago, each minted with the key of its time, in one burst.
        let minted = |timestamp: u32| packet(timestamp, if timestamp >= from { &new } else { &old });
        let time = TIME + minute as u32 * 60;
        let mut packets: Vec<Vec<u8>> = (0..BURST as u32).map(|n| minted(time - n % 2 * 7_200 - n)).collect();
        let mut frames: Vec<Frame<'_>> = packets.iter_mut().map(|octets| Frame { octets, ingress: IN }).collect();
        let actions = router.process(&mut frames, now);
        assert!(actions.iter().all(|action| *action == Action::Forward(CHILD_1)), "{minute} {actions:?}");
    }
    // Neither key serves the other's time.
    assert_eq!(refused(process(&mut router, &packet(from - 1, &new), IN, at(0)).0), Some(Reason::Future));
    assert_eq!(refused(process(&mut router, &packet(from - 1, &new), IN, at(3_600_000_000)).0), Some(Reason::BadMac));
    assert_eq!(refused(process(&mut router, &packet(from, &old), IN, at(3_600_000_000)).0), Some(Reason::BadMac));
}

#[test]
fn every_path_meta_header_of_a_packet_is_refused_or_agrees() {
    // All pointers and many lengths over one packet: none panics, and those that pass are the true one.
    let packet = transit(PARENT_1, CHILD_1, true, IN).encode();
    let mut passed = 0;
    for pointer in 0..=255 {
        for a in 0..64 {
            for (b, c) in [(0, 0), (1, 0), (2, 0), (3, 0), (0, 1), (1, 1), (63, 63), (a, 63 - a)] {
                let mut packet = packet.clone();
                let meta = PathMeta { segment_len: [a, b, c], ..PathMeta::default() }.octets();
                packet[36..40].copy_from_slice(&[pointer, meta[1], meta[2], meta[3]]);
                let (action, _) = process(&mut router(), &packet, IN, now());
                passed += usize::from(refused(action).is_none());
            }
        }
    }
    assert_eq!(passed, 1);
}

#[test]
fn paths_of_64_hops_pass_and_of_65_do_not() {
    let mut packet = template(&[32, 32], 40);
    mint(&mut packet, 40, PARENT_1, CHILD_1, false, &key());
    assert_eq!(process(&mut router(), &packet.encode(), IN, now()).0, Action::Forward(CHILD_1));
    let mut packet = template(&[33, 32], 40);
    mint(&mut packet, 40, PARENT_1, CHILD_1, false, &key());
    assert_eq!(process(&mut router(), &packet.encode(), IN, now()).0, Action::Drop(Reason::MalformedPath));
    // At the path's end there is no next hop.
    let mut packet = inbound(PARENT_1, true);
    mint(&mut packet, 2, PARENT_1, CHILD_1, false, &key());
    packet.header.dst = IsdAs::new(9, 9);
    assert_eq!(refused(process(&mut router(), &packet.encode(), IN, now()).0), Some(Reason::DestinationAddress));
}

#[test]
fn a_flood_of_forged_packets_leaves_good_ones_alone() {
    let mut router = Router::new(&Config { answers_per_second: 100, answers_burst: 10, ..config() }).unwrap();
    let good = transit(PARENT_1, CHILD_1, true, IN).encode();
    let mut source = Random(11);
    let bursts = times("WAYLEAVE_SCION_FLOOD", 2_000);
    let mut forwarded = 0;
    for burst in 0..bursts {
        let mut packets = vec![good.clone(); BURST];
        // One good packet among 63 forged ones, at a random place.
        let place = source.below(BURST);
        for (index, packet) in packets.iter_mut().enumerate().filter(|(index, _)| *index != place) {
            let forged = source.next().to_be_bytes();
            packet[36 + 4 + 8 + 12 + 6..][..6].copy_from_slice(&forged[..6]);
            packet[36 + 4 + 2] = index as u8;
        }
        let mut frames: Vec<Frame<'_>> = packets.iter_mut().map(|octets| Frame { octets, ingress: IN }).collect();
        let actions = router.process(&mut frames, at(60_000_000 + burst as i64 * 10));
        assert_eq!(actions[place], Action::Forward(CHILD_1));
        forwarded += 1;
    }
    assert_eq!(router.counters().forwarded, forwarded);
    assert_eq!(router.counters().of(Reason::BadMac), (bursts * (BURST - 1)) as u64);
    assert_eq!(router.bad_macs(PARENT_1), (bursts * (BURST - 1)) as u64);
    assert_eq!(router.bad_macs(CHILD_1), 0);
    let seconds = 1 + bursts as u64 * 10 / 1_000_000;
    assert!(router.counters().answered <= 10 + 100 * seconds);
}

/// C1 of the threats: guessing behind one interface is slowed, and only there.
#[test]
fn beyond_its_limit_of_wrong_macs_an_interface_is_not_checked_and_others_are() {
    let mut router = router().with_bad_mac_limit(100, 20);
    let good = transit(PARENT_1, CHILD_1, true, IN).encode();
    let mut forged = good.clone();
    forged[36 + 4 + 8 + 12 + 6] ^= 1;
    let back = Ingress::External(CHILD_1);
    let other = transit(CHILD_1, PARENT_1, true, back).encode();
    let own = outbound(CHILD_1, true).encode();
    // A second, a forged packet every 100 microseconds.
    for step in 0..10_000 {
        process(&mut router, &forged, IN, at(60_000_000 + step * 100));
        // Packets from elsewhere pass all the while.
        for (packet, ingress, out) in [(&other, back, PARENT_1), (&own, Ingress::Internal, CHILD_1)] {
            let (action, _) = process(&mut router, packet, ingress, at(60_000_000 + step * 100));
            assert_eq!(action, Action::Forward(out));
        }
    }
    let counters = router.counters();
    assert!((118..=121).contains(&counters.of(Reason::BadMac)), "{}", counters.of(Reason::BadMac));
    assert_eq!(counters.of(Reason::BadMac) + counters.of(Reason::Throttled), 10_000);
    assert_eq!(counters.macs, counters.of(Reason::BadMac) + 20_000);
    // Good packets of that interface are dropped too until there is credit again.
    assert_eq!(process(&mut router, &good, IN, at(61_000_000 - 100)).0, Action::Drop(Reason::Throttled));
    assert_eq!(process(&mut router, &good, IN, at(61_020_000)).0, Action::Forward(CHILD_1));
    // New interfaces keep their neighbours' credit as it is.
    router.reload(&config()).unwrap();
    assert_eq!(process(&mut router, &good, IN, at(61_020_000)).0, Action::Forward(CHILD_1));
    // Another limit keeps the credit as well; without a limit nothing is dropped.
    for _ in 0..3 {
        process(&mut router, &forged, IN, at(61_020_000));
    }
    router.set_bad_mac_limit(Some((10, 1_000)));
    assert_eq!(process(&mut router, &good, IN, at(61_021_000)).0, Action::Drop(Reason::Throttled));
    router.set_bad_mac_limit(None);
    assert_eq!(process(&mut router, &good, IN, at(61_021_000)).0, Action::Forward(CHILD_1));
}

#[test]
fn a_reload_takes_another_limit_of_answers() {
    let mut router = Router::new(&Config { answers_per_second: 100, answers_burst: 10, ..config() }).unwrap();
    let mut forged = transit(PARENT_1, CHILD_1, true, IN).encode();
    forged[36 + 4 + 8 + 12 + 6] ^= 1;
    let answered = |router: &mut Router, microsecond| {
        let before = router.counters().answered;
        (0..1_000).for_each(|_| drop(process(router, &forged, IN, at(microsecond))));
        router.counters().answered - before
    };
    // Of its own one at once, and the shared half.
    assert_eq!(answered(&mut router, 60_000_000), 1 + 5);
    router.reload(&Config { answers_per_second: 1_000, answers_burst: 500, ..config() }).unwrap();
    assert_eq!(answered(&mut router, 60_000_000), 0);
    assert_eq!(answered(&mut router, 61_000_000), 250 + 22);
}

#[test]
fn without_a_limit_every_wrong_mac_is_checked() {
    let mut router = router();
    let mut forged = transit(PARENT_1, CHILD_1, true, IN).encode();
    forged[36 + 4 + 8 + 12 + 6] ^= 1;
    for _ in 0..1_000 {
        process(&mut router, &forged, IN, now());
    }
    assert_eq!(router.counters().of(Reason::BadMac), 1_000);
}

/// SCION's claim that a hop costs one MAC, however long the path is: counted in AES blocks.
#[test]
fn a_hop_costs_one_aes_block_whatever_the_path_length() {
    for hops in 3..=63u8 {
        for current in [1, usize::from(hops) / 2, usize::from(hops) - 2] {
            let mut packet = template(&[hops], current);
            mint(&mut packet, current, PARENT_1, CHILD_1, false, &key());
            let mut router = router();
            let (action, _) = process(&mut router, &packet.encode(), IN, now());
            assert_eq!((action, router.counters().macs), (Action::Forward(CHILD_1), 1), "{hops} hops, at {current}");
        }
    }
}

#[test]
fn every_bit_of_the_mac_counts() {
    for bit in 0..48 {
        let mut packet = transit(PARENT_1, CHILD_1, true, IN).encode();
        packet[66 + bit / 8] ^= 1 << (bit % 8);
        assert_eq!(refused(process(&mut router(), &packet, IN, now()).0), Some(Reason::BadMac), "{bit}");
    }
}

fn with_extensions(extensions: &[(u8, Vec<u8>)], last: u8) -> Packet {
    let mut packet = transit(PARENT_1, CHILD_1, true, IN);
    let mut payload = Vec::new();
    for (index, (_, options)) in extensions.iter().enumerate() {
        let next = extensions.get(index + 1).map_or(last, |(kind, _)| *kind);
        payload.push(next);
        payload.push(((options.len() + 2) / 4 - 1) as u8);
        payload.extend(options);
    }
    packet.header.next_header = extensions.first().map_or(last, |(kind, _)| *kind);
    payload.extend([0; 100]);
    packet.payload = payload;
    packet
}

#[test]
fn extension_headers_are_walked_to_their_end_and_no_further() {
    let (hop, end) = (next_header::HOP_BY_HOP, next_header::END_TO_END);
    let padding = |octets: usize| vec![0u8; octets];
    let verdict = |extensions: &[(u8, Vec<u8>)]| {
        let packet = with_extensions(extensions, next_header::UDP);
        refused(process(&mut router(), &packet.encode(), IN, now()).0)
    };
    // The longest ones, unknown options, and padding of every kind pass.
    let unknown: Vec<u8> = [vec![253, 4, 1, 2, 3, 4], vec![77, 0], vec![1, 2, 0, 0], vec![0, 0]].concat();
    for extensions in [
        vec![(hop, padding(1_022))],
        vec![(hop, padding(2)), (end, padding(1_022))],
        vec![(end, unknown.clone())],
        vec![(hop, vec![1, 0])],
        vec![(hop, [vec![1, 252], vec![0; 252]].concat())],
    ] {
        assert_eq!(verdict(&extensions), None, "{extensions:?}");
    }
    // Chains, a wrong order, options that run over their header.
    for extensions in [
        vec![(end, padding(2)), (hop, padding(2))],
        vec![(hop, padding(2)), (hop, padding(2))],
        vec![(end, padding(2)), (end, padding(2))],
        vec![(hop, padding(2)); 255],
        vec![(hop, vec![5, 1])],
        vec![(hop, vec![0, 5])],
        vec![(end, vec![1, 255, 0, 0, 0, 0])],
    ] {
        assert_eq!(verdict(&extensions), Some(Reason::Extension), "{extensions:?}");
    }
    // A header that runs over the packet.
    let mut packet = with_extensions(&[(hop, padding(2))], next_header::UDP);
    packet.payload = vec![next_header::UDP, 255, 0, 0];
    assert_eq!(refused(process(&mut router(), &packet.encode(), IN, now()).0), Some(Reason::Extension));
    packet.payload = vec![next_header::UDP];
    assert_eq!(refused(process(&mut router(), &packet.encode(), IN, now()).0), Some(Reason::Extension));
}

#[test]
fn configurations_that_make_no_router_are_refused_with_the_reason() {
    let with = |interface: Interface| {
        let mut config = config();
        config.interfaces.push(interface);
        Router::new(&config).err()
    };
    let good = Interface { id: 77, link: Link::Child, neighbor: IsdAs::new(1, 5), owner: Owner::This };
    assert_eq!(with(good), None);
    assert_eq!(with(Interface { id: 0, ..good }), Some(ConfigError::InterfaceZero));
    assert_eq!(with(Interface { id: CHILD_2, ..good }), Some(ConfigError::Duplicate(CHILD_2)));
    let owner = Owner::Sibling(2);
    assert_eq!(with(Interface { owner, ..good }), Some(ConfigError::NoSuchSibling { interface: 77, sibling: 2 }));
    for neighbor in [HERE, IsdAs::new(0, 5), IsdAs::new(1, 0)] {
        assert_eq!(with(Interface { neighbor, ..good }), Some(ConfigError::Neighbor { interface: 77, neighbor }));
    }
    let isd_as = IsdAs::new(0, 3);
    assert_eq!(Router::new(&Config { isd_as, ..config() }).err(), Some(ConfigError::IsdAs(isd_as)));
}

#[test]
fn a_burst_too_long_is_processed_as_far_as_a_burst_goes() {
    let good = transit(PARENT_1, CHILD_1, true, IN).encode();
    let mut packets = vec![good; BURST + 3];
    let mut frames: Vec<Frame<'_>> = packets.iter_mut().map(|octets| Frame { octets, ingress: IN }).collect();
    let mut router = router();
    router.process(&mut frames, now());
    assert_eq!(router.counters().forwarded, BURST as u64);
    assert_eq!(Action::default(), Action::Drop(Reason::Unprocessed));
}
