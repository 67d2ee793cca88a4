//! Version 2, the profile `sealed`: what nodes check of payloads that are sealed, what they do not, and who is named.
//!
//! That bursts of both versions meet what each packet alone meets is shown by `random`.

use wayleave_dataplane::icing::{Action, Reason, Replaced, Report, Router, Spoiled, WINDOW, Wrong, locate, wrong};
use wayleave_packet::icing::header::{MIN_SEALED, Malformed, Packet, Part, SEALED, Version};
use wayleave_packet::icing::mint::{Form, MintError, Nonce, Sender, encapsulate};

use super::network::{
    LINK, Random, TIME, at, carry, consents, mesh, packet, packet_at, path, process, process_at, secret, sender_of,
};

/// Six nodes, of which 1 and 3 work together, with honest ones in front, between and behind.
const ORDER: [usize; 6] = [0, 1, 2, 3, 4, 5];
/// A payload's length.
const LENGTH: usize = 200;

fn payload(random: &mut Random) -> Vec<u8> {
    random.octets(LENGTH)
}

/// Another payload with the same ends, in place of a packet's.
fn with_other_payload(octets: &[u8]) -> Vec<u8> {
    let mut other = octets.to_vec();
    let end = other.len() - 16;
    other[end - (LENGTH - MIN_SEALED)..end].fill(0xee);
    other
}

#[test]
fn honest_packets_are_accepted_whole_and_in_parts_on_paths_of_2_to_16_nodes() {
    let mut random = Random(3);
    for count in [2, 3, 5, 16] {
        let order: Vec<usize> = (0..count).collect();
        let mut routers = mesh(count);
        let sender = sender_of(Version::Sealed, &order);
        for number in 0..300u32 {
            let form = if number == 0 { Form::Path } else { Form::Handle };
            let length = MIN_SEALED + random.below(300);
            let payload = random.octets(length);
            let delivered = carry(&mut routers, &order, 1, &packet(&sender, form, 2 * number, &payload)).unwrap();
            let whole = Packet::decode(&delivered, Version::Standard).unwrap();
            assert_eq!((whole.version(), whole.payload()), (Version::Sealed, &payload[..]));
            let mut part = Vec::new();
            let nonce = Nonce::new(at(TIME).unix, 2 * number + 1);
            let which = [Part::First, Part::Second][number as usize % 2];
            encapsulate(&sender, (form, which), SEALED, nonce, &payload[..number as usize % 40 % length], &mut part)
                .unwrap();
            assert!(carry(&mut routers, &order, 1, &part).is_ok());
        }
    }
}

#[test]
fn a_payload_that_is_not_sealed_or_too_short_is_malformed() {
    let sender = sender_of(Version::Sealed, &[0, 1, 2]);
    let mut out = Vec::new();
    let mut mint = |protocol, length, part| {
        encapsulate(&sender, (Form::Path, part), protocol, Nonce(1), &vec![7; length], &mut out)
    };
    assert_eq!(mint(4, 64, Part::Whole), Err(MintError::NotSealed));
    assert_eq!(mint(4, 64, Part::First), Err(MintError::NotSealed));
    assert_eq!(mint(SEALED, MIN_SEALED - 1, Part::Whole), Err(MintError::NotSealed));
    assert_eq!(mint(SEALED, MIN_SEALED - 1, Part::Second), Ok(()));
    let honest = packet(&sender, Form::Path, 1, &[7; MIN_SEALED]);
    for protocol in [0, 4, 41, 98, 100, 254] {
        let mut octets = honest.clone();
        octets[1] = protocol;
        let length = MIN_SEALED as u16;
        assert_eq!(Packet::decode(&octets, Version::Standard).err(), Some(Malformed::Sealed { protocol, length }));
        assert_eq!(process(&mut mesh(3)[1], &octets, LINK).0, Action::Drop(Reason::Malformed));
    }
    // A node of the paper's version speaks that alone.
    assert_eq!(Packet::decode(&honest, Version::Paper).err(), Some(Malformed::Version(2)));
}

#[test]
fn consent_to_one_profile_is_none_to_the_other() {
    let order = [0, 1, 2];
    for (given, sent) in [(Version::Standard, Version::Sealed), (Version::Sealed, Version::Standard)] {
        let mut routers = mesh(3);
        let path = path(&order);
        let crossed = Sender::new(sent, &path, &secret(0), &consents(&order, &path, given)).unwrap();
        let crossed = packet(&crossed, Form::Path, 1, &[7; 64]);
        assert_eq!(process(&mut routers[1], &crossed, LINK).0, Action::Drop(Reason::Consent));
        // Nor do the packets of a path that is known become those of the other profile by their first octet.
        let mut octets = packet(&sender_of(given, &order), Form::Path, 2, &[7; 64]);
        octets[1] = SEALED;
        let honest = packet(&sender_of(given, &order), Form::Path, 3, &[7; 64]);
        assert!(carry(&mut routers, &order, 1, &honest).is_ok());
        octets[0] ^= 0x30;
        assert_eq!(process(&mut routers[1], &octets, LINK).0, Action::Drop(Reason::Handle));
    }
}

#[test]
fn nodes_hash_the_ends_of_payloads_and_all_of_one_in_64() {
    let (order, count) = ([0, 1, 2], 20_000u32);
    for has_lanes in [true, false] {
        let mut routers: Vec<Router> = mesh(3);
        if !has_lanes {
            routers = routers.into_iter().map(Router::without_lanes).collect();
        }
        let sender = sender_of(Version::Sealed, &order);
        for number in 0..count {
            let octets = packet(&sender, if number == 0 { Form::Path } else { Form::Handle }, number, &[7; 1_000]);
            assert!(carry(&mut routers, &order, 1, &octets).is_ok());
        }
        for router in &routers[1..] {
            let samples = (router.counters().hashed - u64::from(count) * MIN_SEALED as u64) as f64 / 1_000.0;
            // Within four standard deviations.
            assert!((samples - 312.5).abs() < 4.0 * 312.5f64.sqrt() && samples.fract() == 0.0, "{samples}");
        }
    }
    let mut routers = mesh(3);
    assert!(
        carry(&mut routers, &order, 1, &packet(&sender_of(Version::Standard, &order), Form::Path, 1, &[7; 1_000]))
            .is_ok()
    );
    assert_eq!(routers[1].counters().hashed, 1_000);
}

/// Carries 1,000 packets, each of which node 1 sends on with a payload of its own; node 3 puts the sender's back if it `restores` it, and node 1
/// sends the sender's own packet where node 2 dropped the other if it `repeats`. Returns how many arrived, and the nodes' reports.
fn collude(restores: bool, repeats: bool, window: u32) -> (u32, Vec<Report>) {
    let (mut routers, mut random) = (mesh(6), Random(9));
    let sender = sender_of(Version::Sealed, &ORDER);
    let second = TIME + (window << WINDOW);
    assert!(carry(&mut routers, &ORDER, 1, &packet(&sender, Form::Path, 1, &payload(&mut random))).is_ok());
    let mut arrived = 0;
    let mut pass = |place: usize, octets: &[u8]| {
        let (action, after) = process_at(&mut routers[place], octets, LINK + place as u16 - 1, at(second));
        match action {
            Action::Drop(reason) => Err(reason),
            _ => Ok(after),
        }
    };
    for number in 0..1_000 {
        let octets = packet_at(&sender, Form::Handle, number, second, &payload(&mut random));
        let own = octets[octets.len() - LENGTH..].to_vec();
        let honest = pass(1, &octets).unwrap();
        let mut next = pass(2, &with_other_payload(&honest));
        if let (Err(reason), true) = (&next, repeats) {
            assert_eq!(*reason, Reason::Sample);
            // Nothing of the other is remembered, and this one is the sender's.
            next = pass(2, &honest);
        }
        let Ok(mut octets) = next else { continue };
        if restores {
            let begin = octets.len() - LENGTH;
            octets[begin..].copy_from_slice(&own);
        }
        let rest = (3..6).try_fold(octets, |octets, place| pass(place, &octets));
        arrived += u32::from(rest.is_ok());
    }
    let reports = (1..6).filter_map(|node| routers[node].reports(second >> WINDOW).next()).collect();
    (arrived, reports)
}

#[test]
fn two_nodes_that_carry_a_payload_of_their_own_through_an_honest_one_are_named_within_1_000_packets() {
    for repeats in [false, true] {
        let (arrived, reports) = collude(true, repeats, 2);
        let failed: Vec<u64> = reports.iter().map(|report| report.count.failed).collect();
        assert!(failed[1] > 4 && failed.iter().sum::<u64>() == failed[1], "{failed:?}");
        // With the sender's own packets sent where the others failed nothing is missing at the end, and yet it shows.
        assert_eq!(u64::from(arrived), if repeats { 1_000 } else { 1_000 - failed[1] });
        assert_eq!(wrong(&reports).replaced, Some(Replaced { from: 1, to: 2, failed: failed[1] }));
        assert!(reports.iter().all(|report| (report.index == 2 && !repeats) != (report.count.samples > 0)));
        // What node 1 says of itself moves the place to its other side, and no further.
        let mut lying = reports;
        lying[0].count.failed = 7;
        assert_eq!(wrong(&lying).replaced, Some(Replaced { from: 0, to: 1, failed: 7 }));
    }
}

#[test]
fn colluders_that_act_as_soon_as_a_path_is_known_are_named_by_reports_of_a_part_of_the_window() {
    let (_, reports) = collude(true, true, 0);
    assert!(reports.iter().all(|report| !report.is_whole && report.count.packets > 900), "{reports:?}");
    assert_eq!(wrong(&reports).replaced.map(|place| (place.from, place.to)), Some((1, 2)));
    // Parts of a window say nothing of losses.
    assert_eq!(locate(2_000, &reports), []);
}

#[test]
fn a_node_that_spoils_the_verifiers_of_another_frames_neither_it_nor_its_neighbour() {
    let (mut routers, mut random) = (mesh(6), Random(9));
    let sender = sender_of(Version::Sealed, &ORDER);
    assert!(carry(&mut routers, &ORDER, 1, &packet(&sender, Form::Path, 1, &payload(&mut random))).is_ok());
    let mut dropped = 0;
    for number in 2..6_402 {
        let mut octets = packet_at(&sender, Form::Handle, number, TIME, &payload(&mut random));
        for (place, router) in (1..).zip(&mut routers[1..4]) {
            let (action, after) = process_at(router, &octets, LINK + place - 1, at(TIME));
            dropped += u32::from(matches!(action, Action::Drop(_)));
            octets = after;
            if place == 1 {
                // Behind header and handle each node behind the sender has 24 octets, a pre-check and a verifier.
                let verifier = octets.len() - LENGTH - 24 * (ORDER.len() - 1) + 24 * 2 + 8;
                octets[verifier] ^= 1;
            }
        }
    }
    assert_eq!(dropped, 6_400);
    let reports: Vec<Report> = (1..4).filter_map(|node| routers[node].reports(TIME >> WINDOW).next()).collect();
    let count = reports[2].count;
    assert!((60..150).contains(&count.failed) && count.failed + count.spoiled == 6_400, "{count:?}");
    let spoiled = vec![Spoiled { at: 3, failed: count.failed, spoiled: count.spoiled }];
    assert_eq!(wrong(&reports), Wrong { replaced: None, spoiled });
}

#[test]
fn a_payload_that_is_not_put_back_fails_at_every_node_behind_and_the_first_one_names_the_place() {
    let (arrived, reports) = collude(false, false, 2);
    assert!(reports[2..].iter().all(|report| report.count.failed > 0) && arrived > 900);
    let failed = reports[1].count.failed;
    assert_eq!(wrong(&reports).replaced, Some(Replaced { from: 1, to: 2, failed }));
    // Without node 2's report the place is known less exactly.
    let fewer: Vec<Report> = reports.iter().copied().filter(|report| report.index != 2).collect();
    assert_eq!(wrong(&fewer).replaced.map(|place| (place.from, place.to)), Some((1, 3)));
}

#[test]
fn of_two_payloads_under_one_tag_a_node_takes_one_and_of_a_sample_the_senders() {
    let (order, mut random) = ([0, 1, 2], Random(5));
    let sender = sender_of(Version::Sealed, &order);
    let (mut samples, mut others) = (0, 0);
    for number in 0..2_000 {
        let mut routers = mesh(3);
        let first = packet(&sender, Form::Path, number, &payload(&mut random));
        let second = with_other_payload(&first);
        match process(&mut routers[1], &second, LINK).0 {
            Action::Drop(Reason::Sample) => {
                samples += 1;
                assert!(carry(&mut routers, &order, 1, &first).is_ok());
            }
            // No other packet of this nonce passes any more.
            _ => {
                others += 1;
                assert_eq!(process(&mut routers[1], &first, LINK).0, Action::Drop(Reason::Replayed));
            }
        }
        if samples > 3 && others > 200 {
            break;
        }
    }
    assert!(samples > 3);
    // Of the other profile every payload but the sender's is dropped.
    let octets = packet(&sender_of(Version::Standard, &order), Form::Path, 1, &payload(&mut random));
    assert_eq!(process(&mut mesh(3)[1], &with_other_payload(&octets), LINK).0, Action::Drop(Reason::Verifier));
}

#[test]
fn the_ends_of_a_payload_its_length_and_the_header_are_bound_as_before() {
    let order = [0, 1, 2];
    let sender = sender_of(Version::Sealed, &order);
    let honest = packet(&sender, Form::Path, 1, &[7; 100]);
    let begin = honest.len() - 100;
    for place in (begin..begin + 16).chain(honest.len() - 16..honest.len()).chain(8..16) {
        let mut octets = honest.clone();
        octets[place] ^= 4;
        let action = process(&mut mesh(3)[1], &octets, LINK).0;
        assert!(matches!(action, Action::Drop(_)), "octet {place}");
    }
    let mut longer = honest.clone();
    longer.insert(begin + 50, 7);
    longer[5] += 1;
    assert_eq!(process(&mut mesh(3)[1], &longer, LINK).0, Action::Drop(Reason::Verifier));
    // Parts are bound whole.
    let mut part = Vec::new();
    let nonce = Nonce::new(at(TIME).unix, 2);
    encapsulate(&sender, (Form::Path, Part::First), SEALED, nonce, &[7; 100], &mut part).unwrap();
    part[begin + 50] ^= 1;
    assert_eq!(process(&mut mesh(3)[1], &part, LINK).0, Action::Drop(Reason::Verifier));
}
