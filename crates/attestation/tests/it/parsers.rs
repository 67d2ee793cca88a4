//! Whatever octets come, the parsers of attestations and of UPDATEs end with an error or a value, and never with a panic.
//!
//! Honest octets with random changes, and random ones. `WAYLEAVE_PARSES` sets how many; `scripts/soak` tries 200 million of
//! each. The fuzz targets do the same with a sense of which octets matter.
//!
//! BGP-13: any octets, and honest ones with random changes, as UPDATE and attestation: an error or a value with this
//! encoding; no panic, and no route is valid by them (`WAYLEAVE_PARSES` says how many).
#![allow(clippy::disallowed_methods, reason = "a test reads its count from the environment")]

use crate::common::network::{Network, Random, p};
use wayleave_attestation::chain::{Attestation, TYPE_CODE};
use wayleave_attestation::grant::Grant;
use wayleave_attestation::leaf::LeafView;
use wayleave_attestation::pki::Signed;
use wayleave_attestation::suite::SuiteId;
use wayleave_bgp::{
    AsPathBuf, AttributeCode, AttributeFlags, Attributes, Origin, SessionParams, Update, UpdateView, encode_updates,
};
use wayleave_core::Asn;

fn count() -> usize {
    std::env::var("WAYLEAVE_PARSES").map_or(200_000, |count| count.parse().expect("a number"))
}

/// Values that parsers stumble over.
const EDGES: [u8; 8] = [0, 1, 0x7f, 0x80, 0xfe, 0xff, 32, 64];

/// Changes `octets`, or makes some of their own.
fn change(random: &mut Random, octets: &mut Vec<u8>) {
    if random.below(16) == 0 {
        octets.clear();
        let len = random.below(96);
        octets.extend((0..len).map(|_| random.next() as u8));
        return;
    }
    for _ in 0..=random.below(4) {
        let at = random.below(octets.len());
        match random.below(6) {
            _ if octets.is_empty() => octets.push(random.next() as u8),
            0 | 1 => octets[at] ^= 1 << random.below(8),
            2 => octets[at] = EDGES[random.below(EDGES.len())],
            3 => octets.truncate(at),
            4 => {
                octets.remove(at);
            }
            _ => octets.insert(at, random.next() as u8),
        }
    }
}

/// What decodes has this encoding and no other.
fn look(octets: &[u8]) -> bool {
    let attestation = Attestation::decode(octets);
    if let Ok(attestation) = &attestation {
        assert_eq!(attestation.octets(), octets);
        assert_eq!(attestation.hops().count(), attestation.hop_count());
        assert!(attestation.prefixes().is_sorted_by(|a, b| a < b));
    }
    if let Some((leaf, rest)) = LeafView::decode(octets) {
        assert_eq!(leaf.octets().len() + rest.len(), octets.len());
    }
    if let Ok(signed) = Signed::decode(octets) {
        assert!(!signed.verify(&[3; 32]));
    }
    let _ = Grant::decode(octets, Asn(0), Asn(0), true);
    attestation.is_ok()
}

#[test]
fn no_octets_make_the_parsers_of_attestations_panic() {
    let mut network = Network::new(4, &[SuiteId::KcEd25519, SuiteId::KcHbs]);
    let mut honest: Vec<Vec<u8>> = Vec::new();
    for path in [&[1][..], &[1, 2], &[1, 2, 3, 4]] {
        honest.push(network.chain(&[p("192.0.2.0/24")], path, 9).0);
        honest.push(network.chain(&[p("2001:db8::/48"), p("2001:db8:1::/48")], path, 9).0);
    }
    honest.push(network.leaf(Asn(2)).view().octets().to_vec());
    let mut random = Random(0x5eed);
    let (mut octets, mut decoded) = (Vec::new(), 0);
    for _ in 0..count() {
        octets.clone_from(&honest[random.below(honest.len())]);
        change(&mut random, &mut octets);
        decoded += usize::from(look(&octets));
    }
    assert!(decoded > count() / 20, "only {decoded} decoded: nothing deep was reached");
}

#[test]
fn no_octets_make_the_parser_of_updates_panic_and_nothing_malformed_goes_on() {
    let params = SessionParams::new(Asn(9), Asn(3));
    let mut network = Network::new(3, &[SuiteId::KcEd25519]);
    let (value, _) = network.chain(&[p("192.0.2.0/24")], &[1, 2, 3], 9);
    let mut edit = Attributes::builder();
    edit.origin(Origin::Igp).as_path(AsPathBuf::from_sequence(&[Asn(3), Asn(2), Asn(1)]).as_path());
    edit.ipv4_next_hop([192, 0, 2, 1].into()).set(
        AttributeCode(TYPE_CODE),
        AttributeFlags::OPTIONAL_TRANSITIVE,
        &value,
    );
    let attributes = edit.finish();
    let prefixes = [p("192.0.2.0/24").into(), p("198.51.100.0/22").into()];
    let messages = encode_updates(Some(&attributes), &prefixes, &[], &params).expect("honest");
    let honest: Vec<Vec<u8>> = messages.into_iter().map(|message| message[19..].to_vec()).collect();
    let (mut random, mut octets, mut whole) = (Random(0x5eed), Vec::new(), 0);
    for _ in 0..count() {
        octets.clone_from(&honest[random.below(honest.len())]);
        change(&mut random, &mut octets);
        let (view, update) = (UpdateView::decode(&octets, &params), Update::decode(&octets, &params));
        assert_eq!(view.is_ok(), update.is_ok());
        let Ok(update) = update else { continue };
        let onward = update.attributes.as_ref().map(Attributes::to_forward);
        let Ok(messages) = encode_updates(onward.as_ref(), &update.announced, &update.withdrawn, &params) else {
            continue;
        };
        for message in messages {
            assert!(message.len() <= params.max_message_len());
            let again = Update::decode(&message[19..], &params).expect("what goes on is well formed");
            assert_eq!(again.problems, []);
        }
        whole += usize::from(update.problems.is_empty());
    }
    assert!(whole > count() / 50, "only {whole} were whole: nothing deep was reached");
}
