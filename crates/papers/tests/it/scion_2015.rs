//! The switch of the paper of 2015: up to the core and down again, a model that it equals, and its known weaknesses.
//!
//! SCI-02: random, mutated and malformed packets and runs of packets at a switch of the paper's format: equal to the
//! model.

use wayleave_crypto::lanes::{Aes128, CpuKernel};
use wayleave_dataplane::frame::{BURST, Frame, Ingress};
use wayleave_dataplane::scion::{Action, Reason};
use wayleave_papers::scion_2015::{FIXED_LEN, HalfPath, Header, OpaqueField, OpaqueKey, Switch, join};

use crate::random::{Random, times};

fn key(of: u8) -> OpaqueKey {
    OpaqueKey::new(&[of; 16])
}

/// From AS 3 over 2 and the core 1 down over 4 to 5; each AS numbers its interfaces as (AS, neighbour).
fn header() -> Header {
    let (mut up, mut down) = (HalfPath::default(), HalfPath::default());
    up.extend(&key(1), 0, 12);
    up.extend(&key(2), 21, 23);
    up.extend(&key(3), 32, 0);
    down.extend(&key(1), 0, 14);
    down.extend(&key(4), 41, 45);
    down.extend(&key(5), 54, 0);
    join(&up, &down, *b"source..", *b"dest....", 17).unwrap()
}

fn process(switch: &mut Switch, packet: &mut Vec<u8>, ingress: Ingress) -> Action {
    switch.process(&mut [Frame { octets: packet, ingress }])[0]
}

#[test]
fn a_packet_goes_up_to_the_core_and_down_to_its_end() {
    let mut packet = header().encode(b"payload");
    let ways = [
        (3, Ingress::Internal, Action::Forward(32)),
        (2, Ingress::External(23), Action::Forward(21)),
        (1, Ingress::External(12), Action::Forward(14)),
        (4, Ingress::External(41), Action::Forward(45)),
        (5, Ingress::External(54), Action::Deliver),
    ];
    for (of, ingress, action) in ways {
        let mut switch = Switch::new(key(of), &[12, 14, 21, 23, 32, 41, 45, 54]);
        // The packet of another AS's key, or from another interface, is dropped.
        let mut stranger = Switch::new(key(9), &[12, 14, 21, 23, 32, 41, 45, 54]);
        assert_eq!(process(&mut stranger, &mut packet.clone(), ingress), Action::Drop(Reason::BadMac));
        let elsewhere = Ingress::External(99);
        assert_eq!(process(&mut switch, &mut packet.clone(), elsewhere), Action::Drop(Reason::WrongIngress));
        assert_eq!(process(&mut switch, &mut packet, ingress), action, "AS {of}");
    }
    let (after, payload) = Header::decode(&packet).unwrap();
    assert_eq!((after.pointer, payload), (5, &b"payload"[..]));
}

#[test]
fn the_way_in_and_the_way_out_may_be_two_switches_and_both_verify() {
    let mut header = header();
    header.pointer = 4;
    let mut packet = header.encode(&[]);
    let mut way_in = Switch::new(key(4), &[41]);
    assert_eq!(process(&mut way_in, &mut packet, Ingress::External(41)), Action::Sibling(0));
    let mut way_out = Switch::new(key(4), &[45]);
    let mut forged = packet.clone();
    forged[FIXED_LEN + 8 * 4 + 7] ^= 1;
    assert_eq!(process(&mut way_out, &mut forged, Ingress::Sibling(0)), Action::Drop(Reason::BadMac));
    assert_eq!(process(&mut way_out, &mut packet, Ingress::Sibling(0)), Action::Forward(45));
    assert_eq!(Header::decode(&packet).unwrap().0.pointer, 5);
}

/// A model: the paper's rules for one packet.
fn model(key: &OpaqueKey, own: &[u16], octets: &mut [u8], ingress: Ingress) -> Result<Action, Reason> {
    let (header, _) = Header::decode(octets).map_err(|_| Reason::Malformed)?;
    let up = usize::from(header.up);
    let verify = |at: usize| {
        let field = header.fields[at];
        let previous = if at < up { header.fields[..up].get(at + 1) } else { header.fields[up..at].last() };
        let previous = previous.map_or([0; 8], |field| field.octets());
        if key.mac(field.ingress, field.egress, previous) == field.mac { Ok(()) } else { Err(Reason::BadMac) }
    };
    let ways = |at: usize| {
        let OpaqueField { ingress, egress, .. } = header.fields[at];
        if at < up { (egress, ingress) } else { (ingress, egress) }
    };
    let mut pointer = usize::from(header.pointer);
    if let Ingress::External(interface) = ingress
        && (ways(pointer).0 != interface || interface == 0)
    {
        return Err(Reason::WrongIngress);
    }
    verify(pointer)?;
    if pointer + 1 == up && up < header.fields.len() {
        pointer += 1;
        verify(pointer)?;
    }
    let egress = ways(pointer).1;
    if egress == 0 {
        return Ok(Action::Deliver);
    }
    let ours = own.contains(&egress);
    pointer += usize::from(ours);
    if pointer >= header.fields.len() {
        return Err(Reason::PathEnd);
    }
    octets[3] = pointer as u8;
    Ok(if ours { Action::Forward(egress) } else { Action::Sibling(0) })
}

/// A packet in transit between two of the interfaces 1 to 9, at a field of either half.
fn transit(source: &mut Random, key: &OpaqueKey) -> (Vec<u8>, Ingress) {
    let (enters, leaves) = (1 + source.below(9) as u16, 1 + source.below(9) as u16);
    let (mut up, mut down) = (HalfPath::default(), HalfPath::default());
    for half in [&mut up, &mut down] {
        half.extend(key, 0, 7);
        (0..1 + source.below(3)).for_each(|_| half.extend(key, 8, 9));
        half.extend(key, 6, 0);
    }
    let against = source.one_in(2);
    let half = if against { &mut up } else { &mut down };
    let place = 1 + source.below(half.fields.len() - 2);
    half.fields.truncate(place);
    // Against construction the packet enters where the beacon left.
    if against {
        half.extend(key, leaves, enters)
    } else {
        half.extend(key, enters, leaves)
    };
    (0..1 + source.below(2)).for_each(|_| half.extend(key, 5, 4));
    let at = if against { up.fields.len() - 1 - place } else { up.fields.len() + place };
    let mut header = join(&up, &down, [1; 8], [2; 8], 17).unwrap();
    header.pointer = at as u8;
    (header.encode(&vec![3; source.below(100)]), Ingress::External(enters))
}

#[test]
fn runs_of_good_packets_with_one_bad_packet_equal_the_model() {
    let mut source = Random(4);
    let own: Vec<u16> = (1..=9).collect();
    let key = key(7);
    for kernel in CpuKernel::available() {
        let mut switch = Switch::new(OpaqueKey::from_aes(Aes128::with_kernel(&[7; 16], kernel)), &own);
        for (size, kind) in (0..=BURST).flat_map(|size| (0..9).map(move |kind| (size, kind))) {
            let mut burst: Vec<(Vec<u8>, Ingress)> = (0..size).map(|_| transit(&mut source, &key)).collect();
            if let Some((octets, ingress)) = burst.get_mut(source.below(size)) {
                let field = FIXED_LEN + 8 * usize::from(octets[3]);
                match kind {
                    0 => octets[field + 4 + source.below(4)] ^= 1 << source.below(8),
                    1 => *ingress = Ingress::External(10),
                    2 => *ingress = Ingress::Sibling(0),
                    3 => octets[0] ^= 1 << source.below(8),
                    4 => octets[2] = octets[1] + 1,
                    5 => octets[3] = octets[1],
                    6 => octets.push(0),
                    // The previous or next field, one of which the MAC covers.
                    7 => octets[field - 8] ^= 1,
                    8 => octets[field + 8] ^= 1,
                    _ => {}
                }
            }
            let mut expected = burst.clone();
            let mut frames: Vec<Frame<'_>> =
                burst.iter_mut().map(|(octets, ingress)| Frame { octets, ingress: *ingress }).collect();
            let actions = switch.process(&mut frames);
            for ((frame, action), (octets, ingress)) in frames.iter().zip(actions).zip(&mut expected) {
                let verdict = model(&key, &own, octets, *ingress).unwrap_or_else(Action::Drop);
                assert_eq!(action, verdict, "{kernel:?} {size} {kind} {ingress:?} {octets:02x?}");
                assert_eq!(frame.octets, &octets[..], "{kernel:?} {size} {kind} {ingress:?}");
            }
        }
        let counters = switch.counters();
        assert!(counters.forwarded > 10 * counters.refused(), "{kernel:?} {}", counters.refused());
        for reason in [Reason::BadMac, Reason::WrongIngress, Reason::Malformed] {
            assert!(counters.of(reason) > 50, "{kernel:?} {reason:?}");
        }
    }
}

#[test]
fn the_switch_equals_its_model_on_random_and_mutated_packets() {
    let mut source = Random(3);
    let (key, own) = (key(7), [1u16, 2, 3]);
    let mut switch = Switch::new(key.clone(), &own);
    let mut seen = std::collections::BTreeMap::new();
    for _ in 0..times("WAYLEAVE_SCION_PACKETS", 1_000_000) / BURST / 4 {
        let mut arrivals: Vec<(Vec<u8>, Ingress)> = (0..BURST)
            .map(|_| {
                // All fields are those of this AS, so that every pointer may verify.
                let mut half = || {
                    let mut half = HalfPath::default();
                    for _ in 0..source.below(4) {
                        half.extend(&key, source.below(5) as u16, source.below(5) as u16);
                    }
                    half
                };
                let (up, down) = (half(), half());
                let mut header =
                    join(&up, &down, [1; 8], [2; 8], 17).unwrap_or_else(|| Header { pointer: 0, ..self::header() });
                header.pointer = source.below(header.fields.len()) as u8;
                let mut packet = header.encode(&[5; 20]);
                if source.one_in(2) {
                    let at = source.below(packet.len());
                    packet[at] ^= 1 << source.below(8);
                }
                if source.one_in(20) {
                    packet.truncate(source.below(packet.len()));
                }
                let ingress = match source.below(3) {
                    0 => Ingress::Internal,
                    1 => Ingress::Sibling(0),
                    _ => Ingress::External(source.below(5) as u16),
                };
                (packet, ingress)
            })
            .collect();
        let mut expected = arrivals.clone();
        let mut frames: Vec<Frame<'_>> =
            arrivals.iter_mut().map(|(octets, ingress)| Frame { octets, ingress: *ingress }).collect();
        let actions = switch.process(&mut frames);
        for ((frame, action), (octets, ingress)) in frames.iter().zip(actions).zip(&mut expected) {
            let verdict = model(&key, &own, octets, *ingress).unwrap_or_else(Action::Drop);
            assert_eq!(action, verdict, "{ingress:?} {octets:02x?}");
            assert_eq!(frame.octets, octets);
            *seen.entry(format!("{verdict:?}")).or_insert(0) += 1;
        }
    }
    assert!(seen.len() >= 9, "{seen:?}");
}

#[test]
fn an_opaque_field_is_good_for_ever_and_in_either_half() {
    // Today's SCION corrects this: the MAC covers no time and no direction of travel.
    let mut down = HalfPath::default();
    down.extend(&key(1), 0, 14);
    down.extend(&key(4), 41, 45);
    let none = HalfPath::default();
    let mut forward = join(&none, &down, [0; 8], [0; 8], 17).unwrap();
    forward.pointer = 1;
    let mut backward = join(&down, &none, [0; 8], [0; 8], 17).unwrap();
    backward.pointer = 0;
    let mut switch = Switch::new(key(4), &[]);
    assert_eq!(process(&mut switch, &mut forward.encode(&[]), Ingress::External(41)), Action::Sibling(0));
    assert_eq!(process(&mut switch, &mut backward.encode(&[]), Ingress::External(45)), Action::Sibling(0));
}
