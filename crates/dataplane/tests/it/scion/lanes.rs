//! SCI-02: packets in lanes are decided and rewritten as on the general path, and as the model does it one by one: groups of
//! good packets in every lane, and one among them that is not.

use super::fixture::{
    CHILD_1, CHILD_2, CHILD_SIBLING, CORE_1, CORE_2, HERE, KEY, PARENT_1, PARENT_2, PEER_1, PEER_2, TIME, at, config,
    key, now, router,
};
use super::model::{Model, Verdict};
use super::packets::{ELSEWHERE, mint, path, template};
use crate::common::Random;
use wayleave_crypto::lanes::{CmacKey, CpuKernel};
use wayleave_dataplane::frame::{BURST, Frame, Ingress};
use wayleave_dataplane::scion::{Action, EpochKey, Interface, Keys, Link, Owner, Reason, Router};
use wayleave_packet::scion::{ForwardingKey, HostAddress, Packet, next_header};

/// Pairs of ingress and egress that a packet in transit may use.
const WAYS: [(u16, u16); 8] = [
    (PARENT_1, CHILD_1),
    (PARENT_2, CHILD_2),
    (PARENT_1, CHILD_2),
    (CHILD_1, PARENT_2),
    (CHILD_2, PEER_1),
    (PEER_2, CHILD_1),
    (CORE_1, CORE_2),
    (CORE_2, CORE_1),
];

/// The fields of a packet in transit.
#[derive(Clone, Copy)]
struct TransitFields {
    enters: u16,
    leaves: u16,
    hops: u8,
    current: usize,
    construction: bool,
    timestamp: u32,
}

impl TransitFields {
    fn random(source: &mut Random) -> Self {
        let (enters, leaves) = source.pick(&WAYS);
        let hops = 3 + source.below(6) as u8;
        let current = 1 + source.below(usize::from(hops) - 2);
        let timestamp = TIME - source.below(3_600) as u32;
        Self { enters, leaves, hops, current, construction: source.one_in(2), timestamp }
    }

    fn packet(self, source: &mut Random, key: &ForwardingKey) -> Packet {
        let mut packet = template(&[self.hops], self.current);
        let info = &mut path(&mut packet).infos[0];
        (info.construction, info.timestamp, info.seg_id) = (self.construction, self.timestamp, source.next() as u16);
        mint(&mut packet, self.current, self.enters, self.leaves, !self.construction, key);
        if source.one_in(3) {
            packet.header.src_host = HostAddress::V6([7; 16].into());
        }
        packet.payload.resize(8 + source.below(90), 5);
        packet
    }
}

/// Kinds of packets that are not good, or that the lanes do not take.
const KINDS: usize = 17;

/// A packet of this kind, and where it comes in.
fn odd(kind: usize, source: &mut Random) -> (Vec<u8>, Ingress) {
    let mut way = TransitFields::random(source);
    match kind {
        0 => way.timestamp = TIME - 7 * 86_400,
        1 => way.timestamp = TIME + 86_400,
        2 => way.leaves = 999,
        3 => way.leaves = 0,
        4 => way.leaves = way.enters,
        5 => way.leaves = CHILD_SIBLING,
        6 => way.current = usize::from(way.hops) - 1,
        _ => {}
    }
    let mut packet = way.packet(source, &key());
    let mut ingress = Ingress::External(way.enters);
    let spoiled = path(&mut packet);
    match kind {
        7 => spoiled.hops[way.current].mac[source.below(6)] ^= 1 << source.below(8),
        8 => spoiled.infos[0].seg_id ^= 1 << source.below(16),
        9 => spoiled.infos[0].peering = true,
        10 => {
            let field = &mut spoiled.hops[way.current];
            (field.ingress_alert, field.egress_alert) = (true, source.one_in(2));
            // A traceroute request.
            packet.header.next_header = next_header::SCMP;
            packet.payload = [vec![130, 0], vec![0; 58]].concat();
        }
        11 => packet.header.dst = HERE,
        12 => packet.header.src = HERE,
        13 => ingress = Ingress::External(if way.enters == PEER_1 { PEER_2 } else { PEER_1 }),
        14 => ingress = source.pick(&[Ingress::Internal, Ingress::Sibling(0), Ingress::External(0)]),
        15 => {
            let mut extension = vec![packet.header.next_header, 0, 1, source.below(2) as u8];
            packet.header.next_header = next_header::HOP_BY_HOP;
            extension.append(&mut packet.payload);
            packet.payload = extension;
        }
        _ => {}
    }
    let mut octets = packet.encode();
    if kind == 16 {
        octets.push(0);
    }
    (octets, ingress)
}

/// What `router` does with a burst, and the packets afterwards: the same with lanes and without.
fn process(router: &mut Router, burst: &[(Vec<u8>, Ingress)]) -> Vec<(Action, Vec<u8>)> {
    let mut general = router.clone().without_lanes();
    let expected = process_once(&mut general, burst);
    let found = process_once(router, burst);
    assert_eq!(found, expected);
    assert_eq!(router.counters(), general.counters());
    found
}

fn process_once(router: &mut Router, burst: &[(Vec<u8>, Ingress)]) -> Vec<(Action, Vec<u8>)> {
    let mut burst = burst.to_vec();
    let mut frames: Vec<Frame<'_>> =
        burst.iter_mut().map(|(octets, ingress)| Frame { octets, ingress: *ingress }).collect();
    let actions = router.process(&mut frames, now());
    actions.into_iter().zip(&frames).map(|(action, frame)| (action, frame.octets.to_vec())).collect()
}

fn assert_as_the_model(model: &Model, packet: &(Vec<u8>, Ingress), got: &(Action, Vec<u8>)) {
    let (mut expected, ingress) = packet.clone();
    let verdict = match model.process(&mut expected, ingress, now()) {
        Verdict::Forward(interface) => Action::Forward(interface),
        Verdict::Sibling(sibling) => Action::Sibling(sibling),
        Verdict::Deliver => Action::Deliver,
        Verdict::Control => Action::Control,
        Verdict::Traceroute => Action::Answer(Reason::Traceroute),
        Verdict::Refuse(reason) => Action::Drop(reason),
    };
    match got {
        (Action::Answer(Reason::Traceroute) | Action::Drop(Reason::Traceroute), _) => {
            assert_eq!(verdict, Action::Answer(Reason::Traceroute));
        }
        (Action::Answer(reason), _) => assert_eq!(Action::Drop(*reason), verdict),
        (action, octets) => {
            assert_eq!(*action, verdict, "{packet:02x?}");
            assert_eq!(*octets, expected, "{packet:02x?}");
        }
    }
}

#[test]
fn bursts_of_every_size_of_good_packets_are_rewritten_as_the_model_does() {
    let mut source = Random(21);
    let model = Model { here: HERE, key: KEY, down: Vec::new() };
    for kernel in CpuKernel::available() {
        let keys = Keys::one(ForwardingKey::from_cmac(CmacKey::with_kernel(&KEY, kernel)));
        for size in 0..=BURST {
            let mut router = router();
            router.set_keys(keys.clone());
            let burst: Vec<(Vec<u8>, Ingress)> = (0..size)
                .map(|_| {
                    let way = TransitFields::random(&mut source);
                    (way.packet(&mut source, &key()).encode(), Ingress::External(way.enters))
                })
                .collect();
            for (packet, got) in burst.iter().zip(process(&mut router, &burst)) {
                assert!(matches!(got.0, Action::Forward(_)), "{kernel:?} {size} {got:?}");
                assert_as_the_model(&model, packet, &got);
            }
            let counters = router.counters();
            assert_eq!((counters.macs, counters.forwarded, counters.refused()), (size as u64, size as u64, 0));
        }
    }
}

#[test]
fn one_that_is_not_like_the_others_is_found_in_every_place() {
    let mut source = Random(22);
    let model = Model { here: HERE, key: KEY, down: vec![CHILD_2] };
    let mut router = router();
    router.set_link(CHILD_2, false);
    let (mut refused, mut traced) = (std::collections::BTreeSet::new(), 0);
    for kind in 0..KINDS {
        for place in 0..32 {
            let burst: Vec<(Vec<u8>, Ingress)> = (0..32)
                .map(|lane| {
                    if lane == place {
                        return odd(kind, &mut source);
                    }
                    // Some of them leave by the link that is down.
                    let way = TransitFields::random(&mut source);
                    (way.packet(&mut source, &key()).encode(), Ingress::External(way.enters))
                })
                .collect();
            for (packet, got) in burst.iter().zip(process(&mut router, &burst)) {
                if let Action::Drop(reason) | Action::Answer(reason) = got.0 {
                    refused.insert(reason.name());
                }
                traced += usize::from(got.0 == Action::Answer(Reason::Traceroute));
                assert_as_the_model(&model, packet, &got);
            }
        }
    }
    let reasons = [
        Reason::Expired,
        Reason::Future,
        Reason::UnknownEgress,
        Reason::Direction,
        Reason::BadMac,
        Reason::MalformedPath,
        Reason::DestinationAddress,
        Reason::SourceAddress,
        Reason::WrongIngress,
        Reason::TransitSource,
        Reason::PacketSize,
        Reason::LinkDown,
    ];
    for reason in reasons {
        assert!(refused.contains(reason.name()), "{reason:?} {refused:?}");
    }
    assert!(traced > 10, "{traced}");
}

#[test]
fn packets_under_two_keys_are_rewritten_under_their_own() {
    let mut source = Random(23);
    let next = *b"the following ke";
    let (old, new, from) = (key(), ForwardingKey::new(&next), TIME - 1_800);
    let mut router = router();
    router.set_keys(Keys::one(old.clone()).rotated(EpochKey { from, key: new.clone() }));
    for mixed in [false, true, true, true] {
        let mut burst = Vec::new();
        let mut keys = Vec::new();
        while burst.len() < BURST {
            let way = TransitFields::random(&mut source);
            // Where they are not mixed, whole groups are under one key.
            let is_new = if mixed { source.one_in(2) } else { burst.len() / 16 % 2 == 0 };
            let way = TransitFields { timestamp: if is_new { from } else { from - 1 }, ..way };
            let wrong = mixed && source.one_in(20);
            let key = if is_new != wrong { &new } else { &old };
            burst.push((way.packet(&mut source, key).encode(), Ingress::External(way.enters)));
            keys.push(if is_new { next } else { KEY });
        }
        for ((packet, got), key) in burst.iter().zip(process(&mut router, &burst)).zip(keys) {
            assert_as_the_model(&Model { here: HERE, key, down: Vec::new() }, packet, &got);
        }
    }
}

/// A burst in two directions by turns.
fn turns(source: &mut Random) -> Vec<(Vec<u8>, Ingress)> {
    let turn = |lane: usize| {
        let (enters, leaves) = if lane.is_multiple_of(2) { (PARENT_1, CHILD_1) } else { (CHILD_1, PARENT_1) };
        let way = TransitFields { enters, leaves, hops: 3, current: 1, construction: true, timestamp: TIME };
        (way.packet(source, &key()).encode(), Ingress::External(enters))
    };
    (0..BURST).map(turn).collect()
}

#[test]
fn what_a_reload_or_a_link_changes_holds_for_the_next_burst() {
    let mut source = Random(24);
    let mut router = router();
    let mut expect = |router: &mut Router, even: Result<Action, Reason>, odd: Result<Action, Reason>| {
        for (lane, got) in process(router, &turns(&mut source)).into_iter().enumerate() {
            let got = match got.0 {
                Action::Drop(reason) | Action::Answer(reason) => Err(reason),
                action => Ok(action),
            };
            assert_eq!(got, if lane.is_multiple_of(2) { even } else { odd }, "{lane}");
        }
    };
    let (down, up) = (Ok(Action::Forward(CHILD_1)), Ok(Action::Forward(PARENT_1)));
    expect(&mut router, down, up);
    router.set_link(CHILD_1, false);
    expect(&mut router, Err(Reason::LinkDown), up);
    router.set_link(CHILD_1, true);
    expect(&mut router, down, up);
    let with = |change: &dyn Fn(&mut Interface)| {
        let mut config = config();
        config.interfaces.iter_mut().filter(|interface| interface.id == CHILD_1).for_each(change);
        config
    };
    let mut without = config();
    without.interfaces.retain(|interface| interface.id != CHILD_1);
    router.reload(&without).unwrap();
    expect(&mut router, Err(Reason::UnknownEgress), Err(Reason::WrongIngress));
    router.reload(&with(&|interface| interface.owner = Owner::Sibling(0))).unwrap();
    expect(&mut router, Ok(Action::Sibling(0)), up);
    router.reload(&with(&|interface| interface.link = Link::Parent)).unwrap();
    expect(&mut router, Err(Reason::Direction), Err(Reason::Direction));
    router.reload(&config()).unwrap();
    expect(&mut router, down, up);
    let mut elsewhere = config();
    elsewhere.isd_as = ELSEWHERE;
    router.reload(&elsewhere).unwrap();
    expect(&mut router, Err(Reason::DestinationAddress), Err(Reason::DestinationAddress));
}

#[test]
fn an_interface_over_its_limit_takes_no_other_with_it() {
    let mut source = Random(25);
    let mut router = router().with_bad_mac_limit(1, 3);
    let mut forged = turns(&mut source).swap_remove(0);
    let last = 36 + 4 + 8 + 2 * 12 - 1;
    forged.0[last] ^= 1;
    for _ in 0..3 {
        let (action, _) = super::fixture::process(&mut router, &forged.0, forged.1, at(60_000_000));
        assert!(matches!(action, Action::Answer(Reason::BadMac) | Action::Drop(Reason::BadMac)), "{action:?}");
    }
    let before = router.counters().macs;
    for (lane, (action, _)) in process(&mut router, &turns(&mut source)).into_iter().enumerate() {
        let expected = if lane.is_multiple_of(2) { Action::Drop(Reason::Throttled) } else { Action::Forward(PARENT_1) };
        assert_eq!(action, expected, "{lane}");
    }
    assert_eq!(router.counters().macs - before, BURST as u64 / 2);
}
