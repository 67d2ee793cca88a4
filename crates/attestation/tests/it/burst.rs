//! A burst and the cache give each route the report that it has alone.

use std::sync::Arc;

use crate::common::network::{NOW, Network, p};
use wayleave_attestation::cache::ReportCache;
use wayleave_attestation::path::Path;
use wayleave_attestation::pki::{RegisteredKey, View};
use wayleave_attestation::report::Report;
use wayleave_attestation::suite::SuiteId;
use wayleave_attestation::validate::{Carried, Clock, Context, Route, validate, validate_burst};
use wayleave_core::{Asn, Prefix, UnixTime, VerdictKind};

/// Honest routes and forged ones among them.
fn routes(network: &mut Network) -> Vec<(Vec<Prefix>, Path, Vec<u8>)> {
    let mut routes = Vec::new();
    for i in 0..40 {
        let prefixes = vec![p(&format!("10.{i}.0.0/16"))];
        let ases: &[u32] = [&[1][..], &[1, 2], &[1, 3, 4], &[1, 2, 100, 3]][i % 4];
        let (mut value, path) = network.chain(&prefixes, ases, 9);
        if i % 7 == 3 {
            let last = value.len() - 1 - i;
            value[last] ^= 1;
        }
        routes.push((prefixes, path, value));
    }
    routes
}

fn as_routes(routes: &[(Vec<Prefix>, Path, Vec<u8>)]) -> Vec<Route<'_>> {
    let route = |(prefixes, path, value)| {
        let (prefixes, path, value): (&Vec<Prefix>, &Path, &Vec<u8>) = (prefixes, path, value);
        Route { prefixes, path, carried: Carried::Value(value), receiver: Asn(9) }
    };
    routes.iter().map(|(prefixes, path, value)| route((prefixes, path, value))).collect()
}

fn network() -> Network {
    let mut network = Network::new(5, &[SuiteId::KcEd25519]);
    network.register(Asn(3));
    network
}

#[test]
fn a_burst_says_of_each_route_what_is_said_of_it_alone() {
    let mut network = network();
    let routes = routes(&mut network);
    let routes = as_routes(&routes);
    let context = Context { view: &network.view, rules: &network.rules, clock: network.clock(), directories: &[] };
    let together = validate_burst(&context, &routes);
    let alone: Vec<Report> = routes.iter().map(|route| validate(&context, route)).collect();
    assert_eq!(together, alone);
    assert!(
        [VerdictKind::Valid, VerdictKind::Gap, VerdictKind::Invalid]
            .iter()
            .all(|kind| alone.iter().any(|report| report.kind == *kind))
    );
}

#[test]
fn the_cache_gives_the_same_reports_and_forgets_in_time() {
    let mut network = network();
    let kept = routes(&mut network);
    let twice: Vec<_> = kept.iter().chain(&kept).cloned().collect();
    let routes = as_routes(&twice);
    let mut cache = ReportCache::new(1000);
    let clock = |now: u64| Clock { now: UnixTime(now * 1_000_000), uncertainty: 600 };
    let rules = network.rules;
    let mut judge = |view: &View, now: u64| {
        let context = Context { view, rules: &rules, clock: clock(now), directories: &[] };
        let reports = cache.validate_burst(&context, &routes);
        let expected: Vec<Arc<Report>> = validate_burst(&context, &routes).into_iter().map(Arc::new).collect();
        assert_eq!(reports, expected);
        (cache.counts.hits, cache.counts.misses)
    };
    assert_eq!(judge(&network.view, NOW), (0, 80));
    assert_eq!(judge(&network.view, NOW + 100), (80, 80));
    // Reports of routes that expire leave with them; those of forged ones do not expire.
    let (hits, misses) = judge(&network.view, NOW + 24 * 3600 + 1);
    assert!(hits > 80 && misses > 80, "{hits} {misses}");
    // A clock that goes back, and another view.
    let before = judge(&network.view, NOW + 24 * 3600 + 1);
    assert_eq!(judge(&network.view, NOW + 24 * 3600 + 1), (before.0 + 80, before.1));
    let mut view = View::new(2);
    view.add_key(
        Asn(1),
        RegisteredKey { suite: SuiteId::KcEd25519, public: vec![1; 32], not_before: 0, not_after: NOW * 2 },
    );
    assert_eq!(judge(&view, NOW), (before.0 + 80, before.1 + 80));
}

#[test]
fn the_cache_is_bounded_and_drops_the_longest_unused() {
    let mut network = network();
    let kept = routes(&mut network);
    let routes = as_routes(&kept);
    let context = Context { view: &network.view, rules: &network.rules, clock: network.clock(), directories: &[] };
    let mut cache = ReportCache::new(10);
    cache.validate_burst(&context, &routes[..10]);
    cache.validate_burst(&context, &routes[..1]);
    cache.validate_burst(&context, &routes[10..11]);
    assert_eq!((cache.len(), cache.counts.evicted), (10, 1));
    let before = cache.counts.hits;
    cache.validate_burst(&context, &routes[..1]);
    assert_eq!(cache.counts.hits, before + 1, "the one used last stays");
    cache.validate_burst(&context, &routes);
    assert_eq!(cache.len(), 10);
}
