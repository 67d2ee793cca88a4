//! Verification of upstream paths by ASPA (draft-ietf-sidrops-aspa-verification): known answers, and the draft's steps written out plainly.
//!
//! OPS, ASPA: records of any content, paths that are prepended, empty, or have sets: a path is valid, invalid or unknown as the draft says,
//! and what a change of the records does not concern keeps its state.

use proptest::collection::vec;
use proptest::prelude::*;
use wayleave_bgp::aspa::{Aspas, Flaw, Hop, PathState};
use wayleave_bgp::{AsPathBuf, SegmentKind};
use wayleave_core::Asn;

fn aspas(pairs: &[(u32, u32)]) -> Aspas {
    pairs.iter().map(|(customer, provider)| (Asn(*customer), Asn(*provider))).collect()
}

fn path(asns: &[u32]) -> AsPathBuf {
    AsPathBuf::from_sequence(&asns.iter().copied().map(Asn).collect::<Vec<_>>())
}

fn not_provider(customer: u32, provider: u32) -> PathState {
    PathState::Invalid(Flaw::NotProvider { customer: Asn(customer), provider: Asn(provider) })
}

/// A small internet: 10 buys from 20 and 21, 20 from 30, 40 from 50; 30 says that it buys from nobody; 21 and 50 say nothing.
const WORLD: [(u32, u32); 5] = [(10, 20), (10, 21), (20, 30), (30, 0), (40, 50)];

#[test]
fn known_paths_have_the_outcome_that_their_hops_give() {
    let aspas = aspas(&WORLD);
    assert_eq!(aspas.len(), 4);
    for (asns, expected) in [
        // The neighbour is the origin: no hop is to be looked at, with records or without.
        (&[10][..], PathState::Valid),
        (&[99], PathState::Valid),
        // Up all the way.
        (&[20, 10], PathState::Valid),
        (&[30, 20, 10], PathState::Valid),
        // Prepended anywhere.
        (&[30, 30, 20, 20, 20, 10, 10], PathState::Valid),
        (&[10, 10, 10], PathState::Valid),
        // An AS says nothing, at the begin, in the middle, at the end.
        (&[21, 10], PathState::Valid),
        (&[99, 21, 10], PathState::Unknown(Asn(21))),
        (&[20, 10, 98], PathState::Unknown(Asn(98))),
        (&[60, 50, 40], PathState::Unknown(Asn(50))),
        // A customer leaks what it has from one provider to another, or to a peer of the exchange.
        (&[10, 20], not_provider(20, 10)),
        (&[21, 10, 20, 30], not_provider(30, 20)),
        (&[10, 30], not_provider(30, 10)),
        // One invalid hop, whatever the others: no record that comes can mend it.
        (&[99, 40, 98], not_provider(40, 99)),
        (&[99, 21, 40, 10], not_provider(10, 40)),
        // A lateral peer of the origin's passes it on: it is no provider of the origin.
        (&[40, 30], not_provider(30, 40)),
        // Over the origin's provider to a peer of that, which passes it on to an exchange.
        (&[40, 20, 10], not_provider(20, 40)),
        // Who buys from nobody hands a route to no provider, and AS 0 is none.
        (&[0, 30], not_provider(30, 0)),
        // The same AS again, not side by side: two hops.
        (&[10, 20, 10], not_provider(20, 10)),
    ] {
        assert_eq!(aspas.upstream(&path(asns).as_path()), expected, "{asns:?}");
    }
    assert_eq!(aspas.upstream(&AsPathBuf::new().as_path()), PathState::Invalid(Flaw::Empty));
    for kind in [SegmentKind::Set, SegmentKind::ConfedSequence, SegmentKind::ConfedSet] {
        let mut unordered = path(&[20, 10]);
        unordered.push_segment(kind, &[Asn(10)]);
        assert_eq!(aspas.upstream(&unordered.as_path()), PathState::Invalid(Flaw::Unordered), "{kind:?}");
    }
    // A path of several sequences is one path.
    let mut long = path(&[30, 20]);
    long.push_segment(SegmentKind::Sequence, &[Asn(20), Asn(10)]);
    assert_eq!(aspas.upstream(&long.as_path()), PathState::Valid);
}

#[test]
fn several_records_of_one_customer_count_together_and_none_is_no_record_without_providers() {
    let aspas = aspas(&[(10, 21), (10, 20), (10, 20), (11, 0), (u32::MAX, u32::MAX), (0, 1)]);
    for (customer, provider, expected) in [
        (10, 20, Hop::Provider),
        (10, 21, Hop::Provider),
        (10, 22, Hop::NotProvider),
        (10, 1, Hop::NotProvider),
        (11, 20, Hop::NotProvider),
        (11, 0, Hop::NotProvider),
        (12, 20, Hop::NoAttestation),
        (9, u32::MAX, Hop::NoAttestation),
        (u32::MAX, u32::MAX, Hop::Provider),
        (u32::MAX, 0, Hop::NotProvider),
        (0, 1, Hop::Provider),
        (0, 0, Hop::NotProvider),
    ] {
        assert_eq!(aspas.hop(Asn(customer), Asn(provider)), expected, "{customer} {provider}");
    }
    assert!(Aspas::default().is_empty());
    assert_eq!(Aspas::default().hop(Asn(1), Asn(2)), Hop::NoAttestation);
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Plain {
    Valid,
    Invalid,
    Unknown,
}

/// The draft's steps one after the other, with AS(1) the origin, over lists.
fn plain(records: &[(u32, u32)], segments: &[(bool, Vec<u32>)]) -> Plain {
    let mut ordered: Vec<u32> = Vec::new();
    for (is_set, asns) in segments {
        if *is_set {
            return Plain::Invalid;
        }
        ordered.extend(asns);
    }
    ordered.reverse();
    ordered.dedup();
    if ordered.is_empty() {
        return Plain::Invalid;
    }
    let providers_of = |customer: u32| -> Vec<u32> {
        records.iter().filter(|record| record.0 == customer).map(|record| record.1).collect()
    };
    let hops: Vec<(u32, u32)> = (1..ordered.len()).map(|i| (ordered[i - 1], ordered[i])).collect();
    for (customer, provider) in &hops {
        let providers = providers_of(*customer);
        if !providers.is_empty() && (*provider == 0 || !providers.contains(provider)) {
            return Plain::Invalid;
        }
    }
    if hops.iter().any(|(customer, _)| providers_of(*customer).is_empty()) { Plain::Unknown } else { Plain::Valid }
}

fn built(segments: &[(bool, Vec<u32>)]) -> AsPathBuf {
    let mut path = AsPathBuf::new();
    for (is_set, asns) in segments {
        let kind = if *is_set { SegmentKind::Set } else { SegmentKind::Sequence };
        path.push_segment(kind, &asns.iter().copied().map(Asn).collect::<Vec<_>>());
    }
    path
}

fn outcome(state: PathState) -> Plain {
    match state {
        PathState::Valid => Plain::Valid,
        PathState::Invalid(_) => Plain::Invalid,
        PathState::Unknown(_) => Plain::Unknown,
    }
}

fn records() -> impl Strategy<Value = Vec<(u32, u32)>> {
    vec((0..6u32, 0..6u32), 0..14)
}

fn segments() -> impl Strategy<Value = Vec<(bool, Vec<u32>)>> {
    vec((prop_oneof![9 => Just(false), 1 => Just(true)], vec(0..7u32, 1..5)), 0..3)
}

proptest! {
    #[test]
    fn a_path_is_as_the_draft_says(records in records(), segments in segments()) {
        let (aspas, path) = (aspas(&records), built(&segments));
        let state = aspas.upstream(&path.as_path());
        prop_assert_eq!(outcome(state), plain(&records, &segments));
        match state {
            PathState::Invalid(Flaw::NotProvider { customer, provider }) => {
                prop_assert_eq!(aspas.hop(customer, provider), Hop::NotProvider);
            }
            PathState::Unknown(customer) => {
                prop_assert_eq!(aspas.hop(customer, Asn(u32::MAX)), Hop::NoAttestation);
            }
            _ => {}
        }
    }

    #[test]
    fn a_path_of_unchanged_customers_keeps_its_state(one in records(), more in records(), segments in segments()) {
        let (before, after, path) = (aspas(&one), aspas(&more), built(&segments));
        let changed = before.difference(&after);
        prop_assert_eq!(&changed, &after.difference(&before));
        prop_assert_eq!(changed.is_empty(), before == after);
        if !changed.may_change(&path.as_path()) && before.is_empty() == after.is_empty() {
            prop_assert_eq!(before.upstream(&path.as_path()), after.upstream(&path.as_path()));
        }
        let is_ordered = segments.iter().all(|(is_set, _)| !is_set);
        if before.is_empty() != after.is_empty() && !is_ordered {
            prop_assert!(changed.may_change(&path.as_path()));
        }
    }
}
