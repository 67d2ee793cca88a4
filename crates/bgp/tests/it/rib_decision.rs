//! The decision process against the text of RFC 4271 section 9.1.2.2, and its independence of the order of arrival.

use std::cmp::Ordering;
use std::net::{IpAddr, Ipv4Addr};

use proptest::prelude::*;
use wayleave_bgp::decision::{
    Candidate, Explanation, Med, Options, Step, best, compare, deciding_step, explain, order, rank,
};
use wayleave_core::Asn;

fn base() -> Candidate {
    Candidate {
        local_pref: None,
        as_path_length: 3,
        origin: 0,
        med: None,
        neighbour_as: Some(Asn(1)),
        external: true,
        igp_metric: Some(10),
        router_id: Ipv4Addr::new(10, 0, 0, 1),
        cluster_list_length: 0,
        peer_address: IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
        path_id: 0,
    }
}

#[test]
fn each_step_decides_when_all_before_it_are_equal() {
    let ip = |last| IpAddr::V4(Ipv4Addr::new(192, 0, 2, last));
    // Each row is the better and the worse; whatever comes later in the process favours the worse.
    let worse_later = Candidate {
        router_id: Ipv4Addr::new(10, 0, 0, 9),
        cluster_list_length: 9,
        peer_address: ip(99),
        path_id: 9,
        ..base()
    };
    let rows = [
        (Step::LocalPref, Candidate { local_pref: Some(101), as_path_length: 9, ..worse_later }, base()),
        (Step::AsPathLength, Candidate { as_path_length: 2, origin: 2, ..worse_later }, base()),
        (Step::Origin, Candidate { med: Some(9), ..worse_later }, Candidate { origin: 1, ..base() }),
        (Step::Med, Candidate { med: Some(1), external: false, ..worse_later }, Candidate { med: Some(2), ..base() }),
        (Step::External, Candidate { igp_metric: Some(99), ..worse_later }, Candidate { external: false, ..base() }),
        (Step::IgpMetric, Candidate { igp_metric: Some(9), ..worse_later }, base()),
        (
            Step::RouterId,
            Candidate { cluster_list_length: 9, ..base() },
            Candidate { router_id: Ipv4Addr::new(10, 0, 0, 2), ..base() },
        ),
        (
            Step::ClusterListLength,
            Candidate { peer_address: ip(9), ..base() },
            Candidate { cluster_list_length: 1, ..base() },
        ),
        (Step::PeerAddress, Candidate { path_id: 9, ..base() }, Candidate { peer_address: ip(2), ..base() }),
        (Step::PathId, base(), Candidate { path_id: 1, ..base() }),
    ];
    let options = Options::default();
    for (step, better, worse) in rows {
        assert_eq!(deciding_step(&better, &worse, &options), Some((step, Ordering::Less)), "{step}");
        assert_eq!(compare(&worse, &better, &options), Ordering::Greater, "{step}");
        assert_eq!(explain(&[worse, better], 0, &options), Some(Explanation { step, by: 1 }));
        assert_eq!(explain(&[worse, better], 1, &options), None);
        let mut both = [worse, better];
        assert_eq!(rank(&mut both, &options), [0, 1]);
        assert_eq!(both, [better, worse]);
        assert_ne!(step.value(&better, &options), step.value(&worse, &options), "{step}");
    }
}

#[test]
fn a_missing_local_pref_or_med_counts_as_the_options_say() {
    let options = Options::default();
    let hundred = Candidate { local_pref: Some(100), ..base() };
    assert_eq!(compare(&base(), &hundred, &options), Ordering::Equal);
    let with_med = Candidate { med: Some(5), ..base() };
    assert_eq!(compare(&base(), &with_med, &options), Ordering::Less);
    let worst = Options { missing_med_is_worst: true, ..options };
    assert_eq!(compare(&base(), &with_med, &worst), Ordering::Greater);
    let longer = Candidate { as_path_length: 9, ..base() };
    assert_eq!(compare(&base(), &longer, &Options { as_path_length: false, ..options }), Ordering::Equal);
    let unknown = Candidate { igp_metric: None, ..base() };
    assert_eq!(compare(&base(), &unknown, &options), Ordering::Less, "unknown is further than any known cost");
}

#[test]
fn med_is_compared_within_one_neighbouring_as_only() {
    let low = Candidate { med: Some(1), router_id: Ipv4Addr::new(10, 0, 0, 2), ..base() };
    let high = Candidate { med: Some(9), ..base() };
    let elsewhere = Candidate { neighbour_as: Some(Asn(2)), ..high };
    let options = Options::default();
    assert_eq!(compare(&low, &high, &options), Ordering::Less);
    assert_eq!(compare(&low, &elsewhere, &options), Ordering::Greater);
    let always = Options { med: Med::AlwaysCompare, ..options };
    assert_eq!(compare(&low, &elsewhere, &always), Ordering::Less);
    assert_eq!(compare(&low, &high, &Options { med: Med::Ignore, ..options }), Ordering::Greater);
}

/// a beats b by MED, b beats c and c beats a by router identifier: a ring.
fn ring() -> [Candidate; 3] {
    let id = |last| Ipv4Addr::new(10, 0, 0, last);
    let a = Candidate { med: Some(1), router_id: id(3), ..base() };
    let b = Candidate { med: Some(2), router_id: id(1), ..base() };
    let c = Candidate { neighbour_as: Some(Asn(2)), med: Some(50), router_id: id(2), ..base() };
    [a, b, c]
}

#[test]
fn a_ring_of_pairs_is_ranked_the_same_from_every_order() {
    let [a, b, c] = ring();
    let options = Options::default();
    assert!(
        compare(&a, &b, &options).is_lt() && compare(&b, &c, &options).is_lt() && compare(&c, &a, &options).is_lt()
    );
    for mut candidates in [[a, b, c], [a, c, b], [b, a, c], [b, c, a], [c, a, b], [c, b, a]] {
        assert_eq!(candidates[best(&candidates, &options).expect("one is best")], c);
        assert_eq!(rank(&mut candidates, &options), [0, 1, 2]);
        assert_eq!(candidates, [c, a, b]);
    }
    // b would beat c, were they alone; it went out by the MED of a, which then lost to c.
    assert_eq!(explain(&[a, b, c], 1, &options), Some(Explanation { step: Step::Med, by: 0 }));
    assert_eq!(explain(&[a, b, c], 0, &options), Some(Explanation { step: Step::RouterId, by: 2 }));
}

#[test]
fn equal_routes_share_a_class_and_keep_their_order() {
    let options = Options::default();
    let worse = Candidate { as_path_length: 4, ..base() };
    let hundred = Candidate { local_pref: Some(100), ..base() };
    let mut candidates = [worse, base(), hundred, worse];
    assert_eq!(rank(&mut candidates, &options), [0, 0, 1, 1]);
    assert_eq!(candidates, [base(), hundred, worse, worse]);
    assert_eq!(explain(&candidates, 1, &options), None);
    assert_eq!(best(&[], &options), None);
    assert_eq!(rank(&mut [], &options), []);
}

#[test]
fn equal_routes_of_two_neighbours_are_ranked_the_same_from_every_order() {
    let options = Options { missing_med_is_worst: true, ..Options::default() };
    let internal = Candidate { external: false, ..base() };
    let first = Candidate { med: Some(0), ..internal };
    // Beats the third by coming from outside, and loses to the first by MED.
    let second = base();
    let third = Candidate { neighbour_as: Some(Asn(2)), ..internal };
    assert_eq!(compare(&first, &third, &options), Ordering::Equal);
    for mut candidates in [[first, second, third], [third, second, first], [second, third, first]] {
        assert_eq!(rank(&mut candidates, &options), [0, 1, 2]);
        assert_eq!(candidates, [first, second, third]);
    }
}

/// RFC 4271 section 9.1.2.2 word for word: remove from consideration, step by step.
fn eliminate(candidates: &[Candidate], options: &Options) -> Vec<usize> {
    let mut left: Vec<usize> = (0..candidates.len()).collect();
    let keep = |left: &mut Vec<usize>, beats: &dyn Fn(&Candidate, &Candidate) -> bool| {
        let all = left.clone();
        left.retain(|&i| !all.iter().any(|&j| beats(&candidates[j], &candidates[i])));
    };
    let pref = |c: &Candidate| c.local_pref.unwrap_or(options.default_local_pref);
    let med = |c: &Candidate| c.med.unwrap_or(if options.missing_med_is_worst { u32::MAX } else { 0 });
    keep(&mut left, &|a, b| pref(a) > pref(b));
    keep(&mut left, &|a, b| options.as_path_length && a.as_path_length < b.as_path_length);
    keep(&mut left, &|a, b| a.origin < b.origin);
    keep(&mut left, &|a, b| {
        let comparable = match options.med {
            Med::SameNeighbour => a.neighbour_as == b.neighbour_as,
            Med::AlwaysCompare => true,
            Med::Ignore => false,
        };
        comparable && med(a) < med(b)
    });
    keep(&mut left, &|a, b| a.external && !b.external);
    keep(&mut left, &|a, b| a.igp_metric.unwrap_or(u32::MAX) < b.igp_metric.unwrap_or(u32::MAX));
    keep(&mut left, &|a, b| a.router_id < b.router_id);
    keep(&mut left, &|a, b| a.cluster_list_length < b.cluster_list_length);
    keep(&mut left, &|a, b| a.peer_address < b.peer_address);
    keep(&mut left, &|a, b| a.path_id < b.path_id);
    left
}

fn candidate() -> impl Strategy<Value = Candidate> {
    let first = (proptest::option::weighted(0.3, 99u32..102), 1u32..3, 0u8..2, proptest::option::of(0u32..3));
    let second = (0u32..3, any::<bool>(), proptest::option::weighted(0.9, 1u32..3), 1u8..4, 0u32..2, 1u8..3, 0u32..2);
    (first, second).prop_map(
        |((local_pref, as_path_length, origin, med), (neighbour, external, igp_metric, id, cluster, ip, path_id))| {
            Candidate {
                local_pref,
                as_path_length,
                origin,
                med,
                neighbour_as: (neighbour > 0).then_some(Asn(neighbour)),
                external,
                igp_metric,
                router_id: Ipv4Addr::new(10, 0, 0, id),
                cluster_list_length: cluster,
                peer_address: IpAddr::V4(Ipv4Addr::new(192, 0, 2, ip)),
                path_id,
            }
        },
    )
}

fn options() -> impl Strategy<Value = Options> {
    let med = prop_oneof![3 => Just(Med::SameNeighbour), 1 => Just(Med::AlwaysCompare), 1 => Just(Med::Ignore)];
    (med, any::<bool>(), any::<bool>()).prop_map(|(med, missing_med_is_worst, as_path_length)| Options {
        med,
        missing_med_is_worst,
        as_path_length,
        ..Options::default()
    })
}

proptest! {
    #[test]
    fn the_head_of_every_suffix_is_what_the_rfc_leaves(
        mut candidates in proptest::collection::vec(candidate(), 1..12),
        options in options(),
    ) {
        rank(&mut candidates, &options);
        for from in 0..candidates.len() {
            let left = eliminate(&candidates[from..], &options);
            prop_assert!(left.contains(&0), "suffix {from}: {left:?} of {candidates:#?}");
        }
        prop_assert_eq!(best(&candidates, &options), Some(0));
    }

    #[test]
    fn ranks_and_classes_do_not_depend_on_the_order_of_arrival(
        (candidates, shuffled) in proptest::collection::vec(candidate(), 0..12)
            .prop_flat_map(|all| (Just(all.clone()), Just(all).prop_shuffle())),
        options in options(),
    ) {
        let (mut candidates, mut shuffled) = (candidates, shuffled);
        prop_assert_eq!(rank(&mut candidates, &options), rank(&mut shuffled, &options));
        for (a, b) in candidates.iter().zip(&shuffled) {
            prop_assert_eq!(compare(a, b, &options), Ordering::Equal);
        }
    }

    #[test]
    fn an_explanation_names_a_step_that_its_route_wins(
        candidates in proptest::collection::vec(candidate(), 1..12),
        options in options(),
    ) {
        let left = eliminate(&candidates, &options);
        for loser in 0..candidates.len() {
            match explain(&candidates, loser, &options) {
                None => prop_assert!(left.contains(&loser)),
                Some(Explanation { step, by }) => {
                    prop_assert!(!left.contains(&loser));
                    prop_assert_eq!(deciding_step(&candidates[by], &candidates[loser], &options), Some((step, Ordering::Less)));
                }
            }
        }
    }

    #[test]
    fn always_comparing_med_is_a_total_order(
        a in candidate(), b in candidate(), c in candidate(),
    ) {
        let options = Options { med: Med::AlwaysCompare, ..Options::default() };
        prop_assert_eq!(compare(&a, &b, &options), compare(&b, &a, &options).reverse());
        if compare(&a, &b, &options).is_le() && compare(&b, &c, &options).is_le() {
            prop_assert!(compare(&a, &c, &options).is_le());
        }
        prop_assert_eq!(order(&[a, b, c], &options).len(), 3);
    }
}
