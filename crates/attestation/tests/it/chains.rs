//! Honest chains are valid, whatever their length and suites, and say of each hop what it proves.
//!
//! `WAYLEAVE_CHAINS` sets how many random chains are made; `scripts/soak` makes a million.
//!
//! KCX-01: honest chains of 1 to 64 hops in every suite of the standard chain and random mixes of them: valid.
#![allow(clippy::disallowed_methods, reason = "a test reads its count from the environment")]

use crate::common::network::{Network, Node, p, pair};
use proptest::prelude::*;
use wayleave_attestation::chain::{Attestation, MAX_HOPS};
use wayleave_attestation::sign::{KeyPair, KeyRing};
use wayleave_attestation::suite::{self, SuiteId};
use wayleave_core::{Asn, VerdictKind};
use wayleave_crypto::secret::Secret;

#[test]
fn honest_chains_of_every_length_are_valid() {
    let mut network = Network::new(MAX_HOPS as u32, &[SuiteId::KcEd25519]);
    let prefixes = [p("192.0.2.0/24")];
    for length in [1, 2, 3, 4, 7, 16, 33, 64] {
        let ases: Vec<u32> = (1..=length).collect();
        let (value, path) = network.chain(&prefixes, &ases, 99);
        let report = network.validate(&prefixes, &path, &value, 99);
        assert_eq!(report.kind, VerdictKind::Valid, "{report:?}");
        assert_eq!(report.hops.len(), length as usize);
        assert!(report.hops.iter().all(|hop| hop.proved));
    }
}

#[test]
fn an_ed25519_hop_takes_109_octets_and_an_origins_105() {
    let mut network = Network::new(9, &[SuiteId::KcEd25519]);
    let prefixes = [p("192.0.2.0/24")];
    let (value, _) = network.chain(&prefixes, &[1, 2, 3, 4], 5);
    let attestation = Attestation::decode(&value).expect("decodes");
    let lengths: Vec<usize> = attestation.hops().map(|hop| hop.octets.len()).collect();
    assert!(lengths[0] == 105 && lengths[1..].iter().all(|octets| *octets == 109), "{lengths:?}");
}

#[test]
fn an_endorsed_key_could_be_its_issuers() {
    let mut network = Network::new(4, &[SuiteId::KcEd25519]);
    network.register(Asn(3));
    let prefixes = [p("192.0.2.0/24")];
    let (value, path) = network.chain(&prefixes, &[1, 2, 3, 4], 5);
    let report = network.validate(&prefixes, &path, &value, 5);
    let could = |hop| report.could_have_signed(hop).collect::<Vec<_>>();
    assert_eq!(could(0), [Asn(1)]);
    assert_eq!(could(1), [Asn(2), Asn(1)]);
    assert_eq!(could(2), [Asn(3)]);
    assert_eq!(could(3), [Asn(4), Asn(3)]);
}

#[test]
fn honest_chains_of_any_mix_of_suites_are_valid() {
    let all = [SuiteId::KcEd25519, SuiteId::KcHbs, SuiteId::KcRsa2048, SuiteId::KcP256];
    let suites: Vec<SuiteId> = all.into_iter().filter(|suite| suite::of(*suite).is_some()).collect();
    // Each AS holds a key of each suite; what it prefers, and what its neighbour lists, differs from case to case.
    let mut network = Network::new(6, &suites);
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    let prefixes = [p("192.0.2.0/24"), p("192.0.2.128/25")];
    let cases = (proptest::collection::vec(0..suites.len(), 6), 1usize..=6, 0u32..4);
    let mut runner = proptest::test_runner::TestRunner::new_with_rng(
        config,
        proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha),
    );
    let network = std::cell::RefCell::new(&mut network);
    let honest = |(preferred, length, start): (Vec<usize>, usize, u32)| {
        let mut network = network.borrow_mut();
        for (node, first) in network.nodes.values_mut().zip(&preferred) {
            let at = node.ring.pairs.iter().position(|pair| pair.suite == suites[*first]).expect("each suite");
            node.ring.pairs.swap(0, at);
        }
        // AS 1 first, then the others from some place on.
        let ases: Vec<u32> = (0..length as u32).map(|i| if i == 0 { 1 } else { 2 + (start + i) % 5 }).collect();
        let (value, path) = network.chain(&prefixes, &ases, 9);
        let report = network.validate(&prefixes, &path, &value, 9);
        prop_assert_eq!(report.kind, VerdictKind::Valid);
        for (hop, asn) in report.hops.iter().zip(&ases) {
            prop_assert_eq!(hop.suite_id(), Some(suites[preferred[*asn as usize - 1]]));
        }
        Ok(())
    };
    runner.run(&cases, honest).expect("all are valid");
}

/// A network of as many ASes as a path may have, with keys of all standard suites. Every eighth has a hash-based key; all
/// share one RSA key of each size, since making more takes minutes.
fn wide_network() -> Network {
    let mut network = Network::new(1, &[]);
    let shared: Vec<_> = [SuiteId::KcRsa2048, SuiteId::KcRsa]
        .map(|suite| (suite, suite::of(suite).expect("standard").generate(&Secret::new([suite as u8; 32]))))
        .into_iter()
        .collect();
    for asn in 1..=MAX_HOPS as u32 {
        let mut pairs = vec![pair(Asn(asn), SuiteId::KcEd25519, 0)];
        if asn % 8 == 1 {
            pairs.push(pair(Asn(asn), SuiteId::KcHbs, 0));
        }
        for (suite, key) in &shared {
            let private = key.private_half().expect("RSA keys are handed over");
            let key = suite::of(*suite).expect("standard").take_granted(key.public(), &private).expect("its own");
            pairs.push(KeyPair { suite: *suite, key, registered: false });
        }
        network.nodes.insert(Asn(asn), Node { ring: KeyRing { pairs } });
    }
    network.register(Asn(1));
    network
}

#[test]
fn honest_chains_of_any_length_and_mix_are_valid() {
    let count: u64 = std::env::var("WAYLEAVE_CHAINS").map_or(150, |count| count.parse().expect("a number"));
    let mut network = wide_network();
    let prefixes = [p("192.0.2.0/24"), p("192.0.2.128/25")];
    let mut state = 0x5eed_u64;
    let mut below = |end: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % end
    };
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..count {
        // Most paths are short, as real ones are; one in sixteen has any length.
        let length = 1 + if below(16) == 0 { below(MAX_HOPS) } else { below(6) };
        let start = below(MAX_HOPS - 1);
        let next = |i: usize| 2 + ((start + 5 * i) % (MAX_HOPS - 1)) as u32;
        let ases: Vec<u32> = (0..length).map(|i| if i == 0 { 1 } else { next(i) }).collect();
        for asn in &ases {
            let pairs = &mut network.nodes.get_mut(&Asn(*asn)).expect("an AS of the network").ring.pairs;
            // RSA signs slowly: one hop in eight has it.
            let wanted = match below(16) {
                0 => SuiteId::KcRsa2048,
                1 => SuiteId::KcRsa,
                2..8 => SuiteId::KcHbs,
                _ => SuiteId::KcEd25519,
            };
            let at = pairs.iter().position(|pair| pair.suite == wanted).unwrap_or(0);
            pairs.swap(0, at);
        }
        let (value, path) = network.chain(&prefixes, &ases, 99);
        let report = network.validate(&prefixes, &path, &value, 99);
        assert_eq!(report.kind, VerdictKind::Valid, "{ases:?} {report:?}");
        seen.extend(report.hops.iter().filter_map(wayleave_attestation::report::HopReport::suite_id));
    }
    assert_eq!(seen.len(), 4, "every suite was there: {seen:?}");
}
