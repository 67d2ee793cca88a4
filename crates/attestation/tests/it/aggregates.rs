//! A route with an AS_SET proves nobody, whatever attestation it carries.
//!
//! KCX-16: a set in every place of an honest path, with and without the attestation of a part; a strict origin hidden
//! in a set: unattested with no hop proved, invalid where the prefix is registered.

use crate::common::network::{NOW, Network, p};
use proptest::prelude::*;
use wayleave_attestation::path::Path;
use wayleave_attestation::pki::{AttestedSince, Strictness};
use wayleave_attestation::report::{Lack, Problem};
use wayleave_attestation::suite::SuiteId;
use wayleave_attestation::validate::Carried;
use wayleave_bgp::{AsPathBuf, SegmentKind};
use wayleave_core::{Asn, VerdictKind};

const PART: &str = "192.0.2.0/24";
const WHOLE: &str = "192.0.0.0/16";

/// A path in the order of AS_PATH: the last AS first. A set stands in front of entry `at`, behind all at their number.
fn with_set(ases: &[u32], at: usize, set: &[u32]) -> Path {
    let asns = |numbers: &[u32]| numbers.iter().copied().map(Asn).collect::<Vec<_>>();
    let mut path = AsPathBuf::new();
    for (kind, part) in
        [(SegmentKind::Sequence, &ases[..at]), (SegmentKind::Set, set), (SegmentKind::Sequence, &ases[at..])]
    {
        path.push_segment(kind, &asns(part));
    }
    Path::from_as_path(path.as_path())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn a_set_anywhere_in_the_path_of_a_valid_chain_leaves_nothing_proved(
        length in 1u32..=5,
        at: prop::sample::Index,
        set in prop::collection::vec(1u32..=9, 1..=4),
    ) {
        let mut network = Network::new(6, &[SuiteId::KcEd25519]);
        let ases: Vec<u32> = (1..=length).collect();
        let (value, path) = network.chain(&[p(PART)], &ases, 99);
        prop_assert_eq!(network.validate(&[p(PART)], &path, &value, 99).kind, VerdictKind::Valid);
        let backwards: Vec<u32> = ases.iter().rev().copied().collect();
        let at = at.index(backwards.len() + 1);
        let aggregate = with_set(&backwards, at, &set);
        for prefix in [PART, WHOLE] {
            let report = network.validate(&[p(prefix)], &aggregate, &value, 99);
            prop_assert!(report.hops.is_empty() && report.tail.is_empty());
            // A path that ends with a set has no origin that could be authorised; nobody registered the whole.
            if prefix == PART && at == backwards.len() {
                prop_assert_eq!(report.kind, VerdictKind::Invalid);
            } else {
                prop_assert_eq!((report.kind, report.lack), (VerdictKind::Unattested, Some(Lack::Aggregate)));
            }
        }
    }
}

#[test]
fn nobody_hides_a_stripped_attestation_in_a_set() {
    let mut network = Network::new(3, &[SuiteId::KcEd25519]);
    let strict = AttestedSince { since: NOW - 1, strictness: Strictness::Strict, not_after: NOW + 1000 };
    network.view.set_attested_since(Asn(1), strict);
    let problem = |path: &Path| {
        let report = network.judge(&[p(PART)], path, Carried::Absent, 9);
        report.broken.unwrap_or_else(|| panic!("{path:?}")).problem
    };
    // AS 2 makes a set of the origin, or of an AS on the way.
    assert_eq!(problem(&with_set(&[2], 1, &[1])), Problem::OriginNotAuthorised { prefix: p(PART) });
    assert_eq!(problem(&with_set(&[], 0, &[1])), Problem::OriginNotAuthorised { prefix: p(PART) });
    assert_eq!(problem(&with_set(&[3, 1], 1, &[2])), Problem::Stripped);
}
