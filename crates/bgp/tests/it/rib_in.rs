//! Adj-RIB-In, Loc-RIB and the pool of attributes.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use crate::common::{self, p};
use proptest::prelude::*;
use wayleave_bgp::decision::{Options, Step, best};
use wayleave_bgp::rib::{
    AdjRibIn, Announced, AttributePool, BestChange, LimitAction, LocRib, LocRoute, MaxPrefixes, PeerId, Source,
    candidate,
};
use wayleave_bgp::{Attributes, Nlri};
use wayleave_core::{Afi, Instant};

fn attributes(version: u32) -> Arc<Attributes> {
    Arc::new(common::attributes(&[64511, version]))
}

fn n(text: &str) -> Nlri {
    Nlri::new(p(text))
}

#[test]
fn a_second_announcement_takes_the_place_of_the_first() {
    let mut rib = AdjRibIn::new(MaxPrefixes::NONE);
    assert_eq!(rib.announce(n("192.0.2.0/24"), attributes(1)), Announced::New);
    assert_eq!(rib.announce(n("192.0.2.0/24"), attributes(1)), Announced::Unchanged);
    assert_eq!(rib.announce(n("192.0.2.0/24"), attributes(2)), Announced::Replaced);
    assert_eq!((rib.len(), rib.prefixes(Afi::Ipv4)), (1, 1));
    assert_eq!(rib.get(&n("192.0.2.0/24")).expect("there").attributes, attributes(2));
    assert!(rib.withdraw(&n("192.0.2.0/24")).is_some());
    assert!(rib.withdraw(&n("192.0.2.0/24")).is_none(), "a withdrawal of nothing is nothing");
    assert_eq!((rib.len(), rib.prefixes(Afi::Ipv4)), (0, 0));
}

#[test]
fn paths_of_one_prefix_are_routes_of_their_own_and_one_prefix() {
    let mut rib = AdjRibIn::new(MaxPrefixes::NONE);
    let path = |path_id| Nlri { prefix: p("192.0.2.0/24"), path_id };
    for path_id in [9, 0, u32::MAX] {
        assert_eq!(rib.announce(path(path_id), attributes(path_id)), Announced::New);
    }
    rib.announce(n("192.0.2.0/25"), attributes(1));
    assert_eq!((rib.len(), rib.prefixes(Afi::Ipv4)), (4, 2));
    let ids: Vec<u32> = rib.paths(p("192.0.2.0/24")).map(|(nlri, _)| nlri.path_id).collect();
    assert_eq!(ids, [0, 9, u32::MAX]);
    rib.withdraw(&path(9));
    assert_eq!((rib.len(), rib.prefixes(Afi::Ipv4)), (3, 2));
}

#[test]
fn routes_are_walked_in_prefix_order() {
    let mut rib = AdjRibIn::new(MaxPrefixes::NONE);
    let sorted = ["9.0.0.0/8", "10.0.0.0/8", "10.0.0.0/9", "10.128.0.0/9", "::/0", "2001:db8::/32", "2001:db8::/48"];
    for text in sorted.iter().rev() {
        rib.announce(n(text), attributes(1));
    }
    let walked: Vec<String> = rib.iter().map(|(nlri, _)| nlri.to_string()).collect();
    assert_eq!(walked, sorted);
}

#[test]
fn the_limit_warns_then_acts() {
    for (action, at_limit) in [
        (LimitAction::Warn, Announced::NewWithWarning { prefixes: 11, limit: 10 }),
        (LimitAction::Refuse, Announced::Refused { limit: 10 }),
        (LimitAction::Stop, Announced::StopSession { afi: Afi::Ipv4, limit: 10 }),
    ] {
        let mut rib = AdjRibIn::new(MaxPrefixes { ipv4: Some(10), ipv6: None, warn_percent: 80, action });
        let mut warnings = Vec::new();
        for i in 1..=10 {
            if rib.announce(n(&format!("10.{i}.0.0/16")), attributes(1)) != Announced::New {
                warnings.push(i);
            }
        }
        assert_eq!(warnings, [8], "once, at four fifths");
        assert_eq!(rib.announce(n("11.0.0.0/8"), attributes(1)), at_limit);
        assert_eq!(rib.announce(n("10.1.0.0/16"), attributes(2)), Announced::Replaced, "known ones may change");
        let second = Nlri { path_id: 3, ..n("10.1.0.0/16") };
        assert_eq!(rib.announce(second, attributes(2)), Announced::New, "a further path is no further prefix");
        assert_eq!(rib.announce(n("2001:db8::/32"), attributes(1)), Announced::New, "no limit there");
        assert_eq!(rib.prefixes(Afi::Ipv4), if action == LimitAction::Warn { 11 } else { 10 });
    }
}

#[test]
fn stale_routes_stay_until_announced_again_ended_or_expired() {
    let until = Instant(0) + Duration::from_secs(120);
    let table = || {
        let mut rib = AdjRibIn::new(MaxPrefixes::NONE);
        for text in ["10.0.0.0/8", "192.0.2.0/24", "198.51.100.0/24", "2001:db8::/32"] {
            rib.announce(n(text), attributes(1));
        }
        assert_eq!(rib.mark_stale(Afi::Ipv4, until), []);
        assert_eq!((rib.stale(Afi::Ipv4), rib.stale(Afi::Ipv6), rib.deadline()), (3, 0, Some(until)));
        assert_eq!(rib.announce(n("10.0.0.0/8"), attributes(1)), Announced::Unchanged, "and fresh again");
        assert_eq!(rib.announce(n("192.0.2.0/24"), attributes(2)), Announced::Replaced);
        assert_eq!(rib.stale(Afi::Ipv4), 1);
        rib
    };
    let mut ended = table();
    let gone: Vec<Nlri> = ended.purge_stale(Afi::Ipv4).into_iter().map(|(nlri, _)| nlri).collect();
    assert_eq!((gone, ended.deadline(), ended.len()), (vec![n("198.51.100.0/24")], None, 3));
    // End-of-RIB never comes.
    let mut expired = table();
    assert_eq!(expired.purge_expired(Instant(until.0 - 1)), []);
    assert_eq!(expired.purge_expired(until).len(), 1);
    assert_eq!((expired.len(), expired.stale(Afi::Ipv4), expired.deadline()), (3, 0, None));
    // A second restart before the first has ended: what is stale twice goes.
    let mut again = table();
    assert_eq!(again.mark_stale(Afi::Ipv4, until).len(), 1);
    assert_eq!((again.stale(Afi::Ipv4), again.len()), (2, 3));
    assert_eq!(again.purge_family(Afi::Ipv4).len(), 2);
    assert_eq!(again.clear().len(), 1);
    assert!(again.is_empty());
}

fn route(peer: u32, path: &[u32], path_id: u32) -> LocRoute {
    let attributes = Arc::new(common::attributes(path));
    let source = Source {
        router_id: Ipv4Addr::from(peer),
        address: IpAddr::V4(Ipv4Addr::from(peer)),
        external: true,
        igp_metric: None,
    };
    LocRoute { peer: PeerId(peer), candidate: candidate(&attributes, path_id, &source, None), attributes }
}

#[test]
fn the_best_route_follows_its_candidates() {
    let mut rib = LocRib::new(Options::default());
    let prefix = p("192.0.2.0/24");
    let (long, short) = (route(1, &[1, 2, 3], 0), route(2, &[2, 3], 0));
    assert_eq!(rib.announce(prefix, long.clone()), BestChange::Best(long.clone()));
    assert_eq!(rib.announce(prefix, short.clone()), BestChange::Best(short.clone()));
    assert_eq!(rib.announce(prefix, long.clone()), BestChange::Unchanged);
    let explanation = rib.explain(&prefix, 1).expect("a reason");
    assert_eq!((explanation.step, explanation.by), (Step::AsPathLength, 0));
    assert_eq!(rib.explain(&prefix, 0), None);
    assert_eq!(rib.withdraw(PeerId(2), &Nlri::new(prefix)), BestChange::Best(long.clone()));
    assert_eq!(rib.withdraw(PeerId(2), &Nlri::new(prefix)), BestChange::Unchanged);
    assert_eq!(rib.purge(PeerId(1)), [(prefix, BestChange::Gone)]);
    assert!(rib.is_empty());
}

#[test]
fn a_withdrawal_below_the_best_may_change_the_best() {
    let mut rib = LocRib::new(Options::default());
    let prefix = p("192.0.2.0/24");
    // `low` puts `high` out by MED, within AS 1, and loses to `other` of AS 2, which `high` would beat.
    let with_med = |route: LocRoute, med| LocRoute {
        candidate: wayleave_bgp::decision::Candidate { med: Some(med), ..route.candidate },
        ..route
    };
    let low = with_med(route(3, &[1, 9], 0), 1);
    let high = with_med(route(1, &[1, 9], 0), 2);
    let other = with_med(route(2, &[2, 9], 0), 50);
    for route in [&low, &high, &other] {
        rib.announce(prefix, route.clone());
    }
    assert_eq!(rib.best(&prefix), Some(&other));
    assert_eq!(rib.withdraw(PeerId(3), &Nlri::new(prefix)), BestChange::Best(high));
}

#[test]
fn equal_attributes_are_kept_once_and_forgotten_when_unused() {
    let mut pool = AttributePool::new();
    let held: Vec<Arc<Attributes>> = (0..1_000).map(|i| pool.intern(common::attributes(&[64511, i % 10]))).collect();
    assert_eq!(pool.len(), 10);
    assert!(Arc::ptr_eq(&held[0], &held[10]));
    pool.sweep();
    assert_eq!(pool.len(), 10);
    drop(held);
    pool.sweep();
    assert!(pool.is_empty());
}

proptest! {
    #[test]
    fn loc_rib_holds_what_a_plain_map_holds_and_its_best(
        steps in proptest::collection::vec((0u32..4, 0usize..3, 0u32..2, proptest::collection::vec(1u32..4, 1..4), any::<bool>()), 1..80),
        purged in 0u32..4,
    ) {
        let mut rib = LocRib::new(Options::default());
        let mut model: BTreeMap<(usize, u32, u32), LocRoute> = BTreeMap::new();
        for (peer, at, path_id, path, announce) in steps {
            let prefix = p(&format!("10.{at}.0.0/16"));
            if announce {
                let route = route(peer, &path, path_id);
                rib.announce(prefix, route.clone());
                model.insert((at, peer, path_id), route);
            } else {
                rib.withdraw(PeerId(peer), &Nlri { prefix, path_id });
                model.remove(&(at, peer, path_id));
            }
        }
        for purge in [false, true] {
            if purge {
                rib.purge(PeerId(purged));
                model.retain(|(_, peer, _), _| *peer != purged);
            }
            for at in 0..3 {
                let prefix = p(&format!("10.{at}.0.0/16"));
                let routes: Vec<LocRoute> =
                    model.iter().filter(|((other, ..), _)| *other == at).map(|(_, route)| route.clone()).collect();
                let candidates: Vec<_> = routes.iter().map(|route| route.candidate).collect();
                let expected = best(&candidates, &Options::default()).map(|i| &routes[i]);
                prop_assert_eq!(rib.best(&prefix), expected);
                prop_assert_eq!(rib.candidates(&prefix).len(), routes.len());
            }
        }
    }
}
