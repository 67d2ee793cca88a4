//! What a report says of time, of own routes and of one prefix beside another.

use crate::common::network::{NOW, Network, p};
use wayleave_attestation::path::Path;
use wayleave_attestation::pipeline::policy::VerdictClass;
use wayleave_attestation::pki::{AttestedSince, RegisteredKey, Strictness, View, Vrp};
use wayleave_attestation::report::Problem;
use wayleave_attestation::suite::SuiteId;
use wayleave_attestation::validate::Carried;
use wayleave_core::{Asn, VerdictKind};

fn network() -> Network {
    Network::new(3, &[SuiteId::KcEd25519])
}

/// How often a route is looked at from `from` on until `to`, always when its last report ends.
fn looks(network: &mut Network, prefix: &str, path: &Path, value: &[u8], from: u64, to: u64) -> usize {
    let mut looks = 0;
    network.now = from;
    while network.now < to {
        looks += 1;
        let until = network.validate(&[p(prefix)], path, value, 9).until.expect("an end").secs();
        assert!(until > network.now, "a report made at {} ends at {until}", network.now);
        network.now = until;
    }
    looks
}

#[test]
fn a_signature_from_a_clock_that_is_fast_is_not_verified_again_and_again() {
    let mut network = network();
    let (value, path) = network.chain(&[p("192.0.2.0/24")], &[1, 2], 9);
    // Too early, in doubt, in time.
    assert_eq!(looks(&mut network, "192.0.2.0/24", &path, &value, NOW - 3600, NOW + 3600), 3);
    assert_eq!(looks(&mut network, "192.0.2.0/24", &path, &value, NOW - 599, NOW + 3600), 2);
}

#[test]
fn a_key_at_its_end_is_not_validated_again_and_again() {
    let mut network = network();
    let (value, path) = network.chain(&[p("192.0.2.0/24")], &[1, 2], 9);
    let public = network.nodes[&Asn(1)].ring.pairs[0].key.public().to_vec();
    network.view = View::new(2);
    let key = RegisteredKey { suite: SuiteId::KcEd25519, public, not_before: 0, not_after: NOW + 1000 };
    network.view.add_key(Asn(1), key);
    // While it holds, while our clock may be too fast, and after.
    assert_eq!(looks(&mut network, "192.0.2.0/24", &path, &value, NOW, NOW + 1000 + 601), 2);
}

#[test]
fn a_prefix_that_its_origin_may_not_announce_hides_nothing_of_the_prefix_beside_it() {
    let mut network = network();
    network.view.add_vrp(Vrp { prefix: p("198.51.100.0/24"), max_length: 24, asn: Asn(2) });
    let record = AttestedSince { since: 0, strictness: Strictness::Prefer, not_after: NOW * 2 };
    network.view.set_attested_since(Asn(1), record);
    let (own, other) = (p("192.0.2.0/24"), p("198.51.100.0/24"));
    let report = network.judge(&[own, other], &Path::from_travel(&[Asn(1), Asn(3)]), Carried::Absent, 9);
    assert_eq!(report.kind, VerdictKind::Invalid);
    assert_eq!(
        (VerdictClass::of(&report, &own), VerdictClass::of(&report, &other)),
        (VerdictClass::Missing, VerdictClass::Invalid)
    );
}

#[test]
fn a_route_without_a_path_has_the_receivers_as_as_its_origin() {
    let network = network();
    let judge = |receiver| network.judge(&[p("192.0.2.0/24")], &Path::default(), Carried::Absent, receiver);
    assert_eq!(judge(1).kind, VerdictKind::Unattested);
    let taken = judge(9);
    assert_eq!(taken.kind, VerdictKind::Invalid);
    let problem = taken.broken.expect("a reason").problem;
    assert_eq!(problem, Problem::OriginNotAuthorised { prefix: p("192.0.2.0/24") });
}
