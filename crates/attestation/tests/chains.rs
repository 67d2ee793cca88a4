//! Honest chains are valid, whatever their length and suites, and say of each hop what it proves.

mod world;

use wayleave_attestation::chain::{Attestation, MAX_HOPS};
use wayleave_attestation::suite::SuiteId;
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
