//! A burst and the cache give each route the report that it has alone.
//!
//! KCX-31: thousands of keys for one hop that share a tag: tried twice at most.
//! KCX-32: what changes around a signature between bursts: no second verification; reports equal those without a cache.

use crate::common::network::{NOW, Network, Random, p};
use wayleave_attestation::cache::VerifiedSignatures;
use wayleave_attestation::path::Path;
use wayleave_attestation::pki::{RegisteredKey, View, key_tag};
use wayleave_attestation::report::Report;
use wayleave_attestation::suite::SuiteId;
use wayleave_attestation::validate::{
    Carried, Clock, Context, Route, Rules, validate, validate_burst, validate_burst_with,
};
use wayleave_core::{Asn, Prefix, UnixTime, VerdictKind};
use wayleave_crypto::hash::hash;

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

/// Validates with the cache; returns how many signatures that took. The reports are those of plain validation.
fn judge(known: &mut VerifiedSignatures, context: &Context<'_>, routes: &[Route<'_>], alone: bool) -> u64 {
    let (reports, work) = validate_burst_with(context, routes, known, alone);
    let plain: Vec<Report> = routes.iter().map(|route| validate(context, route)).collect();
    assert_eq!(reports, plain);
    work.verified
}

#[test]
fn what_changes_around_a_signature_costs_no_second_verification_of_it() {
    let mut network = network();
    let routes = routes(&mut network);
    let routes = as_routes(&routes);
    let twice: Vec<Route<'_>> = routes.iter().chain(&routes).copied().collect();
    let clock = |now: u64| Clock { now: UnixTime(now * 1_000_000), uncertainty: 600 };
    let empty = View::new(9);
    let strict = Rules { least_strength: 256, ..network.rules };
    let context = |view, rules, now| Context { view, rules, clock: clock(now), directories: &[] };
    let mut known = VerifiedSignatures::new(1 << 20);
    let first = judge(&mut known, &context(&network.view, &network.rules, NOW), &twice, false);
    let wrong = judge(&mut known, &context(&network.view, &network.rules, NOW + 100), &routes, false);
    assert!(wrong < first / 4, "{wrong} of {first}: only those that are wrong");
    let mut other = network.view.clone();
    let key = RegisteredKey { suite: SuiteId::KcEd25519, public: vec![1; 32], not_before: 0, not_after: NOW * 2 };
    other.add_key(Asn(5), key);
    for (view, rules, now) in [
        (&other, &network.rules, NOW),
        (&network.view, &strict, NOW),
        (&network.view, &network.rules, NOW + 24 * 3600 + 1),
        (&network.view, &network.rules, NOW - 24 * 3600),
        (&empty, &network.rules, NOW),
    ] {
        assert!(judge(&mut known, &context(view, rules, now), &twice, false) <= wrong);
    }
    assert_eq!(
        judge(&mut known, &context(&network.view, &network.rules, NOW), &routes, true),
        wrong,
        "alone as together"
    );
}

#[test]
fn reports_are_those_of_plain_validation_whatever_the_cache_has_seen() {
    let mut network = network();
    let kept = routes(&mut network);
    let mut random = Random(7);
    // So few entries that most are dropped while they are still in use.
    let (mut small, mut large) = (VerifiedSignatures::new(1_200), VerifiedSignatures::new(1 << 20));
    for round in 0..60 {
        let mut some: Vec<_> = (0..12).map(|_| kept[random.below(kept.len())].clone()).collect();
        for (_, _, value) in some.iter_mut().filter(|_| round % 3 == 0) {
            let place = random.below(value.len());
            value[place] ^= 1 << random.below(8);
        }
        if round % 10 == 9 {
            network.view = View::new(round);
            (1..=4).filter(|_| random.below(3) > 0).for_each(|asn| network.register(Asn(asn)));
        }
        let routes = as_routes(&some);
        let clock = Clock { now: UnixTime((NOW + random.below(100_000) as u64) * 1_000_000), uncertainty: 600 };
        let context = Context { view: &network.view, rules: &network.rules, clock, directories: &[] };
        judge(&mut small, &context, &routes, round % 2 == 0);
        judge(&mut large, &context, &routes, round % 2 == 1);
        assert!(small.octets() <= small.limit() && small.limit() <= 1_200);
    }
    assert!(small.counts.evicted > 0 && large.counts.hits > small.counts.hits);
}

#[test]
fn keys_that_share_a_tag_are_tried_twice_at_most() {
    let mut network = Network::new(2, &[SuiteId::KcEd25519]);
    let (value, path) = network.chain(&[p("192.0.2.0/24")], &[1], 9);
    let own = network.nodes[&Asn(1)].ring.pairs[0].key.public().to_vec();
    let tag = key_tag(SuiteId::KcEd25519, &own);
    // Keys that routers of AS 1 have, found by trying, until two are lower than its own.
    let publics = (0_u64..).map(|number| hash("test/router", &[&number.to_be_bytes()]).to_vec());
    let same_tag: Vec<Vec<u8>> = publics.filter(|public| key_tag(SuiteId::KcEd25519, public) == tag).take(6).collect();
    let work = |routers: &[Vec<u8>], is_profile: bool| {
        let mut view = View::new(1);
        let key = |public: &Vec<u8>| RegisteredKey {
            suite: SuiteId::KcEd25519,
            public: public.clone(),
            not_before: 0,
            not_after: NOW * 2,
        };
        match is_profile {
            true => view.add_key(Asn(1), key(&own)),
            false => view.add_router_key(Asn(1), key(&own)),
        }
        routers.iter().for_each(|public| view.add_router_key(Asn(1), key(public)));
        let context = Context { view: &view, rules: &network.rules, clock: network.clock(), directories: &[] };
        let prefixes = [p("192.0.2.0/24")];
        let route = Route { prefixes: &prefixes, path: &path, carried: Carried::Value(&value), receiver: Asn(9) };
        let (reports, work) = validate_burst_with(&context, &[route], &mut VerifiedSignatures::new(0), false);
        (reports[0].hops[0].proved, work.verified)
    };
    assert_eq!(work(&[], true), (true, 1));
    // The profile's key comes first.
    assert_eq!(work(&same_tag, true), (true, 1));
    let (_, tries) = work(&same_tag, false);
    assert!(tries <= 2, "{tries} keys were tried");
}
