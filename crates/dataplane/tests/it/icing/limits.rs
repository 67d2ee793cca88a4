//! Packets that are refused for their form, keys, time or consent.
//!
//! ICD-05: consent to another path, tag, index, epoch or time, half of it; expiries around every limit: dropped,
//! without an agreement.
//! ICD-07: IDs of small order, in second encodings, on the twist: refused.
//! ICD-08: replays at every second of the window and beyond, with path and with handle: once; dropped.
//! ICD-09: counts, indices and lengths that lie, every truncation: refused.

use wayleave_crypto::lanes::CpuKernel;
use wayleave_dataplane::icing::{Action, Config, ConfigError, Link, Policy, Reason, Router, TagRule};
use wayleave_packet::icing::header::{Hop, NodeId, Path, Tag, Version};
use wayleave_packet::icing::mint::{Consent, Form, Sender, TAG_EPOCH, tag_epoch};

use super::model::{Crafted, Who};
use super::network::{self, EXPIRY, LINK, Random, TAGS, TIME, at, packet, packet_at, process, process_at, sender};

const ORDER: [usize; 3] = [0, 1, 2];

fn sender_with(path: &Path, consents: &[Consent]) -> Sender {
    Sender::new(Version::Standard, path, &network::secret(0), consents).unwrap()
}

/// ICD-05.
#[test]
fn consent_to_another_path_tag_epoch_or_time_or_half_of_it_is_none() {
    let path = network::path(&ORDER);
    let hash = path.hash(Version::Standard);
    let tag = Tag(TAGS);
    let right = network::consents(&ORDER, &path, Version::Standard);
    let other_path = network::path(&[0, 1, 3]).hash(Version::Standard);
    let mut half = *right[0].key().expose();
    half[8..].fill(0);
    let wrong = [
        network::master(1).consent(&other_path, 1, tag, EXPIRY),
        network::master(1).consent(&hash, 1, Tag(TAGS + 1), EXPIRY),
        network::master(1).consent(&hash, 2, tag, EXPIRY),
        network::master(1).consent(&hash, 1, tag, EXPIRY + 1),
        network::master(1).consent(&hash, 1, tag, EXPIRY + (1 << TAG_EPOCH)),
        network::master(2).consent(&hash, 1, tag, EXPIRY),
        Consent::new(wayleave_crypto::secret::Key128::new(half)),
    ];
    let mut router = network::router(1, 4);
    for (number, consent) in wrong.into_iter().enumerate() {
        let octets = packet(&sender_with(&path, &[consent, right[1].clone()]), Form::Path, 1, b"");
        assert_eq!(process(&mut router, &octets, LINK).0, Action::Drop(Reason::Consent), "{number}");
    }
    // No agreement was computed for any of them.
    assert_eq!(router.counters().agreements, 0);
    let octets = packet(&sender_with(&path, &right), Form::Path, 1, b"");
    assert!(matches!(process(&mut router, &octets, LINK).0, Action::Forward { .. }));
    // A delegate of the tag's prefix in this epoch consents as well as the node itself.
    let branch = network::master(1).root(tag_epoch(EXPIRY)).descend(tag, 8).unwrap();
    assert_eq!(branch.consent(&hash, 1, tag, EXPIRY).as_ref(), Some(&right[0]));
}

#[test]
fn consent_ends_at_its_second_and_may_not_end_too_late() {
    let cases = [
        (0, None),
        (-1, Some(Reason::Expired)),
        (-100_000, Some(Reason::Expired)),
        (1, None),
        (8_192, None),
        (8_193, Some(Reason::Future)),
        (i32::MAX, Some(Reason::Future)),
    ];
    for now in [TIME, u32::MAX - 3, 5_000] {
        for (ahead, expected) in cases {
            let expiry = now.wrapping_add_signed(ahead);
            let path = network::path_with(&ORDER, Tag(TAGS), expiry);
            let sender = sender_with(&path, &network::consents(&ORDER, &path, Version::Standard));
            let octets = packet_at(&sender, Form::Path, 1, now, b"");
            let (action, _) = process_at(&mut network::router_at(1, 3, now), &octets, LINK, at(now));
            let found = if let Action::Drop(reason) = action { Some(reason) } else { None };
            assert_eq!(found, expected, "{ahead} ahead of {now}");
            // On a known path as on a new one.
            let mut router = network::router_at(1, 3, now);
            let early = if ahead < 0 { now.wrapping_add_signed(ahead) } else { now };
            let first = packet_at(&sender, Form::Path, 2, early, b"");
            process_at(&mut router, &first, LINK, at(early));
            let (action, _) = process_at(&mut router, &octets, LINK, at(now));
            let found = if let Action::Drop(reason) = action { Some(reason) } else { None };
            assert_eq!(found, expected, "{ahead} ahead of {now}, kept");
        }
    }
}

/// ICD-07.
#[test]
fn nodes_that_are_no_keys_are_refused() {
    let number = |low: u8| {
        let mut octets = [0; 32];
        octets[0] = low;
        octets
    };
    let near_p = |low: u8| {
        let mut octets = [0xff; 32];
        (octets[0], octets[31]) = (low, 0x7f);
        octets
    };
    let with_top_bit = {
        let mut octets = network::id(2).to_bytes();
        octets[31] |= 0x80;
        octets
    };
    let hex = |text: &str| std::array::from_fn(|n| u8::from_str_radix(&text[2 * n..2 * n + 2], 16).unwrap());
    let refused = [
        (number(0), Reason::Malformed),
        (number(1), Reason::Malformed),
        (hex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"), Reason::Malformed),
        (hex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"), Reason::Malformed),
        (near_p(0xec), Reason::Malformed),
        (near_p(0xed), Reason::Malformed),
        (near_p(0xee), Reason::Malformed),
        (near_p(0xff), Reason::Malformed),
        ([0xff; 32], Reason::Malformed),
        (with_top_bit, Reason::Malformed),
        // On the twist: found before any agreement with it is used.
        (number(2), Reason::Node),
    ];
    for (octets, reason) in refused {
        for place in [0, 2] {
            let mut hops: Vec<_> = ORDER.iter().map(|node| (Who::Node(*node), TAGS, EXPIRY)).collect();
            hops[place].0 = Who::Id(octets);
            let crafted = Crafted::new(1, &hops);
            let from = if place == 0 { network::OPEN } else { LINK };
            let mut policy = network::policy(1, 3);
            // The next node is anybody.
            policy.rules[0].meaning.output = wayleave_dataplane::icing::Output::Link(network::OPEN);
            let mut router = network::router(1, 3);
            router.set_policy(policy).unwrap();
            let octets = crafted.packet(1, 0, u64::from(TIME) << 32, b"");
            assert_eq!(process(&mut router, &octets, from).0, Action::Drop(reason), "{octets:02x?}");
            assert_eq!(router.paths(), 0);
        }
    }
    assert!(NodeId::from_bytes(number(2)).is_some_and(|id| !id.is_on_curve()));
    assert!(NodeId::from_bytes(number(9)).is_some_and(|id| id.is_on_curve()));
}

/// ICD-08.
#[test]
fn a_packet_passes_once_within_the_window_and_not_at_all_beyond() {
    let sender = sender(&ORDER);
    for offset in -3i32..=7 {
        let mut router = network::router(1, 3);
        let octets = packet(&sender, Form::Path, 1, b"payload");
        let now = at(TIME.wrapping_add_signed(offset));
        let first = process_at(&mut router, &octets, LINK, now).0;
        if !(-1..=5).contains(&offset) {
            assert_eq!(first, Action::Drop(Reason::Stale));
            continue;
        }
        assert!(matches!(first, Action::Forward { .. }));
        for later in offset..=5 {
            let now = at(TIME.wrapping_add_signed(later));
            assert_eq!(process_at(&mut router, &octets, LINK, now).0, Action::Drop(Reason::Replayed));
        }
        let now = at(TIME.wrapping_add_signed(6));
        assert_eq!(process_at(&mut router, &octets, LINK, now).0, Action::Drop(Reason::Stale));
        // With the handle in place of the path it is another packet, which its sender did not make.
        let mut other = octets.clone();
        other.drain(32..32 + 32 + 80);
        other[0] |= 8;
        let now = at(TIME.wrapping_add_signed(offset));
        assert_eq!(process_at(&mut router, &other, LINK, now).0, Action::Drop(Reason::Verifier));
    }
}

#[test]
fn the_window_is_as_long_as_the_configuration_says_between_two_and_five_seconds() {
    for (freshness, window) in [(0, 2), (2, 2), (3, 3), (5, 5), (30, 5)] {
        let config = Config { freshness, ..network::config(1, 3) };
        let mut router = Router::new(config, CpuKernel::best()).unwrap();
        for age in 0..8 {
            let octets = packet(&sender(&ORDER), Form::Path, age, b"payload");
            let found = process_at(&mut router, &octets, LINK, at(TIME + age)).0;
            assert_eq!(found == Action::Drop(Reason::Stale), age > window, "{age} of {window}");
        }
    }
}

#[test]
fn an_attacker_who_sends_a_packet_again_and_again_gets_it_counted_once() {
    let mut router = network::router(1, 3);
    let octets = packet(&sender(&ORDER), Form::Path, 1, b"payload");
    for _ in 0..1_000 {
        process(&mut router, &octets, LINK);
    }
    assert_eq!((router.counters().forwarded, router.counters().of(Reason::Replayed)), (1, 999));
}

/// ICD-09.
#[test]
fn counts_indices_and_lengths_that_lie_are_refused() {
    let octets = packet(&sender(&ORDER), Form::Path, 1, b"payload");
    let mut router = network::router(1, 3);
    for length in 0..octets.len() {
        assert_eq!(process(&mut router, &octets[..length], LINK).0, Action::Drop(Reason::Malformed), "{length}");
    }
    let with = |at: usize, value: u8| {
        let mut octets = octets.clone();
        octets[at] = value;
        octets
    };
    for count in (0..=255).filter(|count| *count != 3) {
        assert_eq!(process(&mut router, &with(2, count), LINK).0, Action::Drop(Reason::Malformed), "{count}");
    }
    for index in 0..=255 {
        let expected = match index {
            1 => continue,
            2 => Reason::NotForUs,
            _ => Reason::Malformed,
        };
        assert_eq!(process(&mut router, &with(3, index), LINK).0, Action::Drop(expected), "{index}");
    }
    for length in (0..=255).filter(|length| *length != 7) {
        assert_eq!(process(&mut router, &with(5, length), LINK).0, Action::Drop(Reason::Malformed), "{length}");
    }
    for first in (0..=255u8).filter(|first| ![0x10, 0x12, 0x14].contains(first)) {
        assert_eq!(process(&mut router, &with(0, first), LINK).0, Action::Drop(Reason::Malformed), "{first:#x}");
    }
    // Well-formed packets of up to sixteen nodes whose counts disagree with everything else.
    let mut random = Random(3);
    for _ in 0..20_000 {
        let length = random.below(1_200);
        let mut octets = random.octets(length);
        if let [first, _, count, index, high, low, ..] = &mut octets[..] {
            (*first, *count, *index) = (0x10 | *first & 8, *count % 20, *index % 20);
            let header = 32
                + 24 * usize::from(count.saturating_sub(1))
                + if *first & 8 == 0 { 32 + 40 * usize::from(count.saturating_sub(1)) } else { 0 };
            let payload = length.saturating_sub(header) as u16;
            [*high, *low] = payload.to_be_bytes();
        }
        assert!(matches!(process(&mut router, &octets, LINK).0, Action::Drop(_)));
    }
    assert!(matches!(process(&mut router, &octets, LINK).0, Action::Forward { .. }));
}

#[test]
fn a_path_of_one_node_or_of_seventeen_is_none() {
    let hop = Hop { node: network::id(1), tag: Tag(TAGS), expiry: EXPIRY };
    assert!(Path::new(network::id(0), &[]).is_err());
    let hops: Vec<Hop> = (1..=16).map(|node| Hop { node: network::id(node), ..hop }).collect();
    assert!(Path::new(network::id(0), &hops[..15]).is_ok());
    assert!(Path::new(network::id(0), &hops).is_err());
    assert!(Path::new(network::id(1), &[hop]).is_err());
}

#[test]
fn a_policy_that_contradicts_itself_is_refused_and_the_old_one_stays() {
    let good = network::policy(1, 3);
    let mut router = network::router(1, 3);
    let rule = |bits, depth| TagRule { bits, depth, ..good.rules[0] };
    let link = |id, node| Link { id, nodes: vec![node], is_open: false };
    let bad = [
        (Policy { secrets: Vec::new(), ..good.clone() }, ConfigError::Keys(0)),
        (Policy { links: vec![link(0, network::id(3))], ..good.clone() }, ConfigError::Link(0)),
        (
            Policy { links: vec![link(1, network::id(3)), link(1, network::id(4))], ..good.clone() },
            ConfigError::Link(1),
        ),
        (Policy { links: vec![link(5, network::id(1))], ..good.clone() }, ConfigError::Node(network::id(1), 5)),
        (Policy { rules: vec![rule(1, 31)], ..good.clone() }, ConfigError::Rule(1, 31)),
        (Policy { rules: vec![rule(0, 33)], ..good.clone() }, ConfigError::Rule(0, 33)),
        (Policy { rules: vec![rule(TAGS, 8), rule(TAGS, 8)], ..good.clone() }, ConfigError::Rule(TAGS, 8)),
        (
            Policy { rules: vec![good.rules[2]], links: good.links[..2].to_vec(), ..good.clone() },
            ConfigError::Missing(good.rules[2].bits, good.rules[2].depth),
        ),
    ];
    for (policy, error) in bad {
        assert_eq!(router.set_policy(policy).unwrap_err(), error);
    }
    let octets = packet(&sender(&ORDER), Form::Path, 1, b"");
    assert!(matches!(process(&mut router, &octets, LINK).0, Action::Forward { .. }));
}
