//! Ranking: the classes that a member gives the routes that it holds for a prefix.

use crate::common::{attributes, policy, prefix, slot};
use proptest::prelude::*;
use wayleave_bgp::decision::Step;
use wayleave_bgp::{Attributes, Community, Origin};
use wayleave_core::VerdictKind;
use wayleave_route_server::directory::Slot;
use wayleave_route_server::policy::ranking::{RankInput, RankLoss, explain, rank};
use wayleave_route_server::policy::{Policy, Rejection};

/// A route of the member in slot `place`, whose AS is 64500 plus its place.
#[derive(Clone, Debug)]
struct TestRoute {
    announcer: Slot,
    attributes: Attributes,
    path_id: u32,
    verdict: VerdictKind,
}

fn test_route(place: u8, behind: &[u32]) -> TestRoute {
    let asn = 64500 + u32::from(place);
    let path = [&[asn], behind].concat();
    TestRoute {
        announcer: slot(place, asn),
        attributes: attributes(&path, place).finish(),
        path_id: 0,
        verdict: VerdictKind::Unattested,
    }
}

fn inputs(routes: &[TestRoute]) -> Vec<RankInput<'_>> {
    routes
        .iter()
        .map(|held| RankInput {
            prefix: prefix("198.51.100.0/24"),
            attributes: &held.attributes,
            announcer: &held.announcer,
            path_id: held.path_id,
            verdict: held.verdict,
        })
        .collect()
}

fn classes(policy: &Policy, routes: &[TestRoute]) -> Vec<Option<u8>> {
    rank(policy, &inputs(routes))
}

#[test]
fn nothing_held_has_no_class_and_a_lone_route_has_the_best() {
    assert_eq!(classes(&Policy::default(), &[]), []);
    assert_eq!(classes(&Policy::default(), &[test_route(0, &[1, 2, 3])]), [Some(255)]);
}

#[test]
fn routes_of_equal_length_and_origin_share_a_class_whatever_else_differs() {
    let mut routes = [test_route(0, &[1]), test_route(1, &[2]), test_route(2, &[3, 3]), test_route(3, &[4])];
    let mut worse = routes[1].attributes.edit();
    worse.med(Some(500));
    routes[1].attributes = worse.finish();
    routes[3].path_id = 7;
    assert_eq!(classes(&Policy::default(), &routes), [Some(255), Some(255), Some(254), Some(255)]);
}

/// The route with this ORIGIN and this MED.
fn with(mut route: TestRoute, origin: Origin, med: Option<u32>) -> TestRoute {
    let mut editor = route.attributes.edit();
    editor.origin(origin).med(med);
    route.attributes = editor.finish();
    route
}

#[test]
fn origin_counts_after_the_paths_length_igp_before_egp_before_incomplete() {
    let of = |place, behind, origin| with(test_route(place, behind), origin, None);
    let routes = [
        of(0, &[1], Origin::Incomplete),
        of(1, &[1], Origin::Igp),
        of(2, &[1], Origin::Egp),
        of(3, &[1], Origin::Igp),
        of(4, &[], Origin::Incomplete),
    ];
    assert_eq!(classes(&Policy::default(), &routes), [252, 254, 253, 254, 255].map(Some));
    let why = explain(&Policy::default(), &inputs(&routes[..4]), 0);
    assert_eq!(why, Some(RankLoss::Step(Step::Origin)));
    let narrow = policy("ranking = { width = 1 }");
    assert_eq!(classes(&narrow, &routes), [0, 0, 0, 0, 1].map(Some), "the best stands alone with any width");
    let by_rule = policy("rule = [{ direction = 'import', family = 'ipv4', class = 128 }]");
    assert_eq!(classes(&by_rule, &routes), [255; 5].map(Some), "a class of a rule makes its routes equal");
}

#[test]
fn med_counts_last_between_routes_of_one_neighbouring_as_unless_the_ranking_says_otherwise() {
    let of = |place, path_id, med| TestRoute { path_id, ..with(test_route(place, &[1]), Origin::Igp, med) };
    // Three paths of one AS, two of another and one without MED, which counts as 0 (RFC 4271 section 9.1.2.2 c).
    let routes = [of(0, 0, Some(50)), of(0, 1, Some(10)), of(0, 2, Some(50)), of(1, 0, Some(70)), of(1, 1, Some(80))];
    assert_eq!(classes(&Policy::default(), &routes), [254, 255, 254, 255, 254].map(Some));
    assert_eq!(explain(&Policy::default(), &inputs(&routes), 0), Some(RankLoss::Step(Step::Med)));
    assert_eq!(explain(&Policy::default(), &inputs(&routes), 3), None);
    let absent = [of(0, 0, Some(1)), of(0, 1, None)];
    assert_eq!(classes(&Policy::default(), &absent), [254, 255].map(Some));
    let always = policy("ranking = { med = 'always' }");
    assert_eq!(classes(&always, &routes), [254, 255, 254, 253, 252].map(Some));
    let never = policy("ranking = { med = 'never' }");
    assert_eq!(classes(&never, &routes), [255; 5].map(Some));
    let rule = policy("rule = [{ direction = 'import', peer = 64500, set_med = 3 }]");
    assert_eq!(classes(&rule, &routes), [255, 255, 255, 255, 254].map(Some), "a rule's MED is compared");
}

#[test]
fn a_stale_route_comes_after_all_others_whatever_rules_prefer() {
    let mut routes = [test_route(0, &[]), test_route(1, &[1, 1, 1]), going(test_route(2, &[]))];
    let mut editor = routes[0].attributes.edit();
    editor.communities(&[Community::LLGR_STALE]);
    routes[0].attributes = editor.finish();
    let prefers = "rule = [{ direction = 'import', peer = 64500, class = 255 }]";
    for own in ["", prefers, "ranking = { strict = true }"] {
        assert_eq!(classes(&policy(own), &routes), [253, 255, 254].map(Some), "{own}");
        assert_eq!(explain(&policy(own), &inputs(&routes), 0), Some(RankLoss::Stale), "{own}");
    }
    assert_eq!(classes(&Policy::default(), &routes[..1]), [Some(255)], "the only route is used");
}

#[test]
fn local_pref_of_a_rule_goes_before_length_and_local_pref_as_received_counts_nothing() {
    let mut routes = [test_route(0, &[]), test_route(1, &[2, 2]), test_route(2, &[])];
    let mut claims = routes[2].attributes.edit();
    claims.local_pref(Some(1000));
    routes[2].attributes = claims.finish();
    let prefers = policy("rule = [{ direction = 'import', peer = 64501, local_pref = 101 }]");
    assert_eq!(classes(&prefers, &routes), [Some(254), Some(255), Some(254)]);
    let avoids = policy("rule = [{ direction = 'import', peer = 64500, local_pref = 99 }]");
    assert_eq!(classes(&avoids, &routes), [Some(253), Some(254), Some(255)]);
}

#[test]
fn a_class_of_a_rule_goes_before_all_and_makes_its_routes_equal() {
    let rules = policy(
        "
        [[rule]]
        direction = 'import'
        peer = [64500, 64501]
        class = 200
        [[rule]]
        direction = 'import'
        peer = 64502
        class = 10
        [[rule]]
        direction = 'import'
        peer = 64503
        class = 128",
    );
    let routes = [
        test_route(0, &[]),
        test_route(1, &[1, 1, 1]),
        test_route(2, &[]),
        test_route(3, &[1, 1]),
        test_route(4, &[]),
        test_route(5, &[1]),
    ];
    assert_eq!(classes(&rules, &routes), [Some(255), Some(255), Some(251), Some(254), Some(253), Some(252)]);
}

#[test]
fn rejected_routes_have_no_class_and_move_no_other() {
    let rules = policy("rule = [{ direction = 'import', as_path = '_64511_', reject = true }]");
    let mut routes = [test_route(0, &[64511]), test_route(1, &[1]), test_route(2, &[1])];
    routes[2].verdict = VerdictKind::Invalid;
    assert_eq!(classes(&rules, &routes), [None, Some(255), None]);
}

/// The route with GRACEFUL_SHUTDOWN (RFC 8326).
fn going(mut route: TestRoute) -> TestRoute {
    let mut editor = route.attributes.edit();
    editor.communities(&[Community::new(64500, 1), Community::GRACEFUL_SHUTDOWN]);
    route.attributes = editor.finish();
    route
}

#[test]
fn a_route_with_graceful_shutdown_comes_after_all_without_whatever_rules_prefer() {
    let routes =
        [going(test_route(0, &[])), test_route(1, &[1, 1, 1]), going(test_route(2, &[1])), test_route(3, &[1])];
    for strict in ["", "ranking = { strict = true }"] {
        assert_eq!(classes(&policy(strict), &routes), [Some(253), Some(254), Some(252), Some(255)], "{strict}");
        let prefers = "\nrule = [{ direction = 'import', peer = [64500, 64502], class = 255 }]";
        let preferred = classes(&policy(&format!("{strict}{prefers}")), &routes);
        let (going, staying) = ([preferred[0], preferred[2]], [preferred[1], preferred[3]]);
        assert!(going.iter().max() < staying.iter().min(), "{strict}: {preferred:?}");
    }
    let why = explain(&Policy::default(), &inputs(&routes), 0);
    assert_eq!(why, Some(RankLoss::GracefulShutdown));
    assert_eq!(classes(&Policy::default(), &routes[..1]), [Some(255)], "the only route is used");
}

#[test]
fn graceful_shutdown_counts_for_nothing_where_it_is_off_or_a_rule_names_it() {
    let routes = [going(test_route(0, &[])), test_route(1, &[1])];
    for own in [
        "ranking = { graceful_shutdown = false }",
        "rule = [{ direction = 'import', community = '65535:0', local_pref = 100 }]",
        "rule = [{ direction = 'import', community = ['1:1', 'graceful-shutdown'], set_med = 1 }]",
    ] {
        assert_eq!(classes(&policy(own), &routes), [Some(255), Some(254)], "{own}");
    }
    for other in [
        "rule = [{ direction = 'import', community = '65535:*', set_med = 1 }]",
        "rule = [{ direction = 'import', peer = 64501, community = '65535:0', set_med = 1 }]",
        "rule = [{ direction = 'import', prefix = '192.0.2.0/24', community = '65535:0', set_med = 1 }]",
        "rule = [{ direction = 'export', community = '65535:0', announce = 'none' }]",
    ] {
        assert_eq!(classes(&policy(other), &routes), [Some(254), Some(255)], "{other}");
    }
    let lowers = policy("rule = [{ direction = 'import', community = '65535:0', local_pref = 90 }]");
    assert_eq!(classes(&lowers, &routes), [Some(254), Some(255)], "the rule says how far");
}

#[test]
fn strict_ranks_by_the_whole_decision_process() {
    let strict = policy("ranking = { strict = true }");
    let mut routes = [test_route(0, &[1]), test_route(1, &[1]), test_route(2, &[]), test_route(3, &[1])];
    let mut worse = routes[0].attributes.edit();
    worse.origin(Origin::Incomplete);
    routes[0].attributes = worse.finish();
    assert_eq!(classes(&strict, &routes), [Some(252), Some(254), Some(255), Some(253)]);
    let by_class =
        policy("ranking = { strict = true }\nrule = [{ direction = 'import', peer = [64503, 64500], class = 200 }]");
    assert_eq!(classes(&by_class, &routes), [Some(254), Some(252), Some(253), Some(255)]);
}

#[test]
fn strict_compares_med_within_one_neighbour_only() {
    let strict = policy("ranking = { strict = true }");
    let med = |place: u8, path_id: u32, med: u32| {
        let mut route = test_route(place, &[1]);
        let mut editor = route.attributes.edit();
        editor.med(Some(med));
        (route.attributes, route.path_id) = (editor.finish(), path_id);
        route
    };
    let routes = [med(0, 1, 50), med(0, 2, 10), med(1, 1, 5)];
    assert_eq!(classes(&strict, &routes), [Some(254), Some(255), Some(253)]);
}

#[test]
fn a_narrow_width_tells_the_best_apart_and_lumps_the_rest() {
    let routes: Vec<TestRoute> = (0..6).map(|place| test_route(place, &vec![1; usize::from(place)])).collect();
    let two_bits = policy("ranking = { width = 2 }");
    assert_eq!(classes(&two_bits, &routes), [3, 2, 1, 0, 0, 0].map(Some));
    let one_bit = policy("ranking = { width = 1 }");
    assert_eq!(classes(&one_bit, &routes), [1, 0, 0, 0, 0, 0].map(Some));
    let four_bits = policy("ranking = { width = 4 }");
    assert_eq!(classes(&four_bits, &routes), [15, 14, 13, 12, 11, 10].map(Some));
}

#[test]
fn a_route_that_is_not_best_says_why() {
    let rules = policy(
        "rule = [{ direction = 'import', peer = 64500, reject = true }, { direction = 'import', peer = 64501, class = 5 }]",
    );
    let routes =
        [test_route(0, &[]), test_route(1, &[]), test_route(2, &[1, 1]), test_route(3, &[1]), test_route(4, &[2])];
    let why = |policy: &Policy, at| explain(policy, &inputs(&routes), at);
    assert_eq!(why(&rules, 0), Some(RankLoss::Rejected(Rejection::Rule(0))));
    assert_eq!(why(&rules, 1), Some(RankLoss::Class { own: 5, best: 128 }));
    assert_eq!(why(&rules, 2), Some(RankLoss::Step(Step::AsPathLength)));
    assert_eq!(why(&rules, 3), None);
    assert_eq!(why(&rules, 4), None);
    let strict =
        policy("ranking = { strict = true }\nrule = [{ direction = 'import', peer = [64500, 64501], reject = true }]");
    assert_eq!(why(&strict, 3), None);
    assert_eq!(why(&strict, 4), Some(RankLoss::Step(Step::RouterId)));
    assert_eq!(why(&strict, 9), None);
}

fn any_test_route() -> impl Strategy<Value = TestRoute> {
    let verdict = prop_oneof![3 => Just(VerdictKind::Valid), 1 => Just(VerdictKind::Invalid)];
    let med = prop::option::of(0u32..3);
    (0u8..4, prop::collection::vec(1u32..4, 0..4), med, 0u8..3, verdict).prop_map(
        |(place, behind, med, origin, verdict)| {
            let mut route = test_route(place, &behind);
            let mut editor = route.attributes.edit();
            editor.med(med).origin(Origin::from_octet(origin).expect("an origin"));
            route.attributes = editor.finish();
            route.verdict = verdict;
            route
        },
    )
}

fn any_routes() -> impl Strategy<Value = Vec<TestRoute>> {
    prop::collection::vec(any_test_route(), 0..12).prop_map(|mut routes| {
        routes.iter_mut().zip(0..).for_each(|(route, path_id)| route.path_id = path_id);
        routes
    })
}

const POLICIES: [&str; 5] = [
    "",
    "ranking = { strict = true }",
    "rule = [{ direction = 'import', peer = 64501, class = 7 }, { direction = 'import', as_path = '_3$', local_pref = 5 }]",
    "ranking = { width = 3, strict = true }\nrule = [{ direction = 'import', as_path = '_2_', reject = true }]",
    "ranking = { med = 'always' }",
];

proptest! {
    #[test]
    fn the_order_of_arrival_changes_no_class(
        (routes, shuffled) in any_routes().prop_flat_map(|routes| {
            let shuffled = Just(routes.clone()).prop_shuffle();
            (Just(routes), shuffled)
        }),
        which in 0usize..POLICIES.len()
    ) {
        let policy = policy(POLICIES[which]);
        let mut before: Vec<_> = routes.iter().map(|r| r.path_id).zip(classes(&policy, &routes)).collect();
        let mut after: Vec<_> = shuffled.iter().map(|r| r.path_id).zip(classes(&policy, &shuffled)).collect();
        before.sort_unstable();
        after.sort_unstable();
        prop_assert_eq!(before, after);
    }

    /// RFC 8326: what has the community loses to each that it equals or that is worse.
    #[test]
    fn no_route_with_graceful_shutdown_wins_against_one_without(
        routes in any_routes(), goes in prop::collection::vec(any::<bool>(), 8), which in 0usize..POLICIES.len()
    ) {
        let policy = policy(POLICIES[which]);
        let marked: Vec<TestRoute> = routes.iter().zip(goes.iter().cycle())
            .map(|(route, goes)| if *goes { going(route.clone()) } else { route.clone() }).collect();
        let (before, after) = (classes(&policy, &routes), classes(&policy, &marked));
        for (route, class) in before.iter().enumerate() {
            prop_assert_eq!(class.is_some(), after[route].is_some(), "it refuses nothing");
        }
        let of = |wanted: bool| {
            let all = after.iter().zip(goes.iter().cycle());
            all.filter(move |(_, goes)| **goes == wanted).filter_map(|(class, _)| *class)
        };
        if let (Some(best_going), Some(best_staying)) = (of(true).max(), of(false).max()) {
            prop_assert!(best_going < best_staying, "{:?}", after);
        }
    }

    #[test]
    fn some_accepted_route_has_the_best_class_and_strict_tells_all_apart(routes in any_routes()) {
        for (at, text) in POLICIES.into_iter().enumerate() {
            let policy = policy(text);
            let mut accepted: Vec<u8> = classes(&policy, &routes).into_iter().flatten().collect();
            let top = u8::MAX >> (8 - policy.ranking().width);
            prop_assert_eq!(accepted.iter().max().copied(), (!accepted.is_empty()).then_some(top));
            for (index, class) in classes(&policy, &routes).into_iter().enumerate() {
                prop_assert_eq!(explain(&policy, &inputs(&routes), index).is_none(), class == Some(top));
            }
            let all = accepted.len();
            accepted.sort_unstable();
            accepted.dedup();
            prop_assert!(at != 1 || accepted.len() == all);
        }
    }
}
