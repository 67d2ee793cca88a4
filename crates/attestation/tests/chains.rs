//! Honest chains are valid, whatever their length and suites, and say of each hop what it proves.

mod world;

use proptest::prelude::*;
use wayleave_attestation::chain::{Attestation, MAX_HOPS};
use wayleave_attestation::suite::{self, SuiteId};
use wayleave_core::{Asn, VerdictKind};
use world::{World, p};

#[test]
fn honest_chains_of_every_length_are_valid() {
    let mut world = World::new(MAX_HOPS as u32, &[SuiteId::KcEd25519]);
    let prefixes = [p("192.0.2.0/24")];
    for length in [1, 2, 3, 4, 7, 16, 33, 64] {
        let ases: Vec<u32> = (1..=length).collect();
        let (value, path) = world.chain(&prefixes, &ases, 99);
        let report = world.validate(&prefixes, &path, &value, 99);
        assert_eq!(report.kind, VerdictKind::Valid, "{report:?}");
        assert_eq!(report.hops.len(), length as usize);
        assert!(report.hops.iter().all(|hop| hop.proved));
    }
}

#[test]
fn an_ed25519_hop_takes_104_octets() {
    let mut world = World::new(9, &[SuiteId::KcEd25519]);
    let prefixes = [p("192.0.2.0/24")];
    let (value, _) = world.chain(&prefixes, &[1, 2, 3, 4], 5);
    let attestation = Attestation::decode(&value).expect("decodes");
    assert!(attestation.hops().all(|hop| hop.octets.len() == 104));
}

#[test]
fn an_endorsed_key_could_be_its_issuers() {
    let mut world = World::new(4, &[SuiteId::KcEd25519]);
    world.register(Asn(3));
    let prefixes = [p("192.0.2.0/24")];
    let (value, path) = world.chain(&prefixes, &[1, 2, 3, 4], 5);
    let report = world.validate(&prefixes, &path, &value, 5);
    let could = |hop| report.could_have_signed(hop).collect::<Vec<_>>();
    assert_eq!(could(0), [Asn(1)]);
    assert_eq!(could(1), [Asn(2), Asn(1)]);
    assert_eq!(could(2), [Asn(3)]);
    assert_eq!(could(3), [Asn(4), Asn(3)]);
}

#[test]
fn honest_chains_of_any_mix_of_suites_are_valid() {
    let all = [SuiteId::KcEd25519, SuiteId::KcHbs, SuiteId::KcRsa2048];
    let suites: Vec<SuiteId> = all.into_iter().filter(|suite| suite::of(*suite).is_some()).collect();
    // Each AS holds a key of each suite; what it prefers, and what its neighbour lists, differs from case to case.
    let mut world = World::new(6, &suites);
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    let prefixes = [p("192.0.2.0/24"), p("192.0.2.128/25")];
    let cases = (proptest::collection::vec(0..suites.len(), 6), 1usize..=6, 0u32..4);
    let mut runner = proptest::test_runner::TestRunner::new_with_rng(
        config,
        proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha),
    );
    let world = std::cell::RefCell::new(&mut world);
    let honest = |(preferred, length, start): (Vec<usize>, usize, u32)| {
        let mut world = world.borrow_mut();
        for (node, first) in world.nodes.values_mut().zip(&preferred) {
            let at = node.ring.pairs.iter().position(|pair| pair.suite == suites[*first]).expect("each suite");
            node.ring.pairs.swap(0, at);
        }
        // AS 1 first, then the others from some place on.
        let ases: Vec<u32> = (0..length as u32).map(|i| if i == 0 { 1 } else { 2 + (start + i) % 5 }).collect();
        let (value, path) = world.chain(&prefixes, &ases, 9);
        let report = world.validate(&prefixes, &path, &value, 9);
        prop_assert_eq!(report.kind, VerdictKind::Valid);
        for (hop, asn) in report.hops.iter().zip(&ases) {
            prop_assert_eq!(hop.suite_id(), Some(suites[preferred[*asn as usize - 1]]));
        }
        Ok(())
    };
    runner.run(&cases, honest).expect("all are valid");
}
