//! Whatever is changed in an attested route, it is not accepted (KCX-02).
//!
//! `WAYLEAVE_MUTATIONS` sets how many mutants are tried; `scripts/soak` tries ten million.
#![allow(clippy::disallowed_methods, reason = "a test reads its count from the environment")]

use crate::common::network::{NOW, Network, Random, p};
use wayleave_attestation::chain::Attestation;
use wayleave_attestation::path::Path;
use wayleave_attestation::pki::{AttestedSince, Strictness};
use wayleave_attestation::suite::{self, SuiteId};
use wayleave_attestation::validate::{Carried, Context, Route, validate_burst};
use wayleave_core::{Asn, Prefix, VerdictKind};

/// A route as received: everything that an adversary may change.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Received {
    prefixes: Vec<Prefix>,
    path: Vec<Asn>,
    value: Vec<u8>,
    receiver: Asn,
}

/// Honest routes of several lengths, suites and forms, to be mutated and to take parts from.
fn honest(network: &mut Network) -> Vec<Received> {
    let lists = [vec![p("192.0.2.0/24")], vec![p("192.0.2.0/25"), p("192.0.2.128/25")], vec![p("2001:db8::/48")]];
    let paths: [&[u32]; 6] = [&[1], &[1, 2], &[1, 2, 3, 4], &[1, 3, 2], &[1, 2, 3, 4, 5, 6], &[1, 6, 4]];
    let mut routes = Vec::new();
    for prefixes in &lists {
        for path in paths {
            let (value, path) = network.chain(prefixes, path, 7);
            let path = path.entries().to_vec();
            routes.push(Received { prefixes: prefixes.clone(), path, value, receiver: Asn(7) });
        }
    }
    routes
}

/// The octets before the hops, and each hop's.
fn parts(value: &[u8]) -> Option<(Vec<u8>, Vec<Vec<u8>>)> {
    let attestation = Attestation::decode(value).ok()?;
    let hops: Vec<Vec<u8>> = attestation.hops().map(|hop| hop.octets.to_vec()).collect();
    let head = value.len() - hops.iter().map(Vec::len).sum::<usize>();
    Some((value[..head].to_vec(), hops))
}

fn whole(mut head: Vec<u8>, hops: &[Vec<u8>]) -> Vec<u8> {
    if let Some(count) = head.last_mut() {
        *count = hops.len() as u8;
    }
    head.extend(hops.iter().flatten());
    head
}

fn mutate(random: &mut Random, honest: &[Received]) -> Received {
    let mut route = honest[random.below(honest.len())].clone();
    let other = &honest[random.below(honest.len())];
    for _ in 0..=random.below(2) {
        match random.below(10) {
            0..=3 => mutate_octets(random, &mut route.value),
            4..=6 => mutate_hops(random, &mut route.value, &other.value),
            7 | 8 => mutate_path(random, &mut route, other),
            _ => match random.below(3) {
                0 => route.prefixes = other.prefixes.clone(),
                1 => route.prefixes.push(p("10.1.0.0/16")),
                _ => route.receiver = Asn(8 + random.below(3) as u32),
            },
        }
    }
    route
}

fn mutate_octets(random: &mut Random, value: &mut Vec<u8>) {
    let at = random.below(value.len());
    match random.below(6) {
        0..=2 => value[at] ^= 1 << random.below(8),
        3 => value[at] = random.next() as u8,
        4 => {
            value.remove(at);
        }
        _ => value.insert(at, random.next() as u8),
    }
}

/// Order, drop, duplicate, or take a hop or the head of another attestation.
fn mutate_hops(random: &mut Random, value: &mut Vec<u8>, other: &[u8]) {
    let (Some((mut head, mut hops)), Some((other_head, other_hops))) = (parts(value), parts(other)) else { return };
    let (at, from) = (random.below(hops.len()), random.below(other_hops.len()));
    match random.below(7) {
        0 => {
            hops.remove(at);
        }
        1 => hops.insert(at, hops[at].clone()),
        2 => {
            let with = random.below(hops.len());
            hops.swap(at, with);
        }
        3 => hops[at] = other_hops[from].clone(),
        4 => hops.insert(at, other_hops[from].clone()),
        5 => head = other_head,
        _ => {
            hops.truncate(at);
            hops.extend_from_slice(&other_hops[from..]);
        }
    }
    *value = whole(head, &hops);
}

fn mutate_path(random: &mut Random, route: &mut Received, other: &Received) {
    let (at, asn) = (random.below(route.path.len()), Asn(1 + random.below(9) as u32));
    match random.below(6) {
        0 => route.path[at] = asn,
        1 => route.path.insert(at, asn),
        2 if route.path.len() > 1 => {
            route.path.remove(at);
        }
        3 => route.path.insert(at, route.path[at]),
        4 => route.path.push(asn),
        _ => route.path = other.path.clone(),
    }
}

#[test]
fn no_mutant_is_accepted() {
    let count: usize = std::env::var("WAYLEAVE_MUTATIONS").map_or(20_000, |count| count.parse().expect("a number"));
    let suites: Vec<SuiteId> =
        [SuiteId::KcEd25519, SuiteId::KcHbs].into_iter().filter(|suite| suite::of(*suite).is_some()).collect();
    // AS 7, the receiver, has keys too: what it was given it would have to sign before others may pass it on.
    let mut network = Network::new(7, &suites);
    // Every second AS signs with the other suite.
    for (number, node) in network.nodes.values_mut().enumerate() {
        if number % 2 == 1 {
            node.ring.pairs.reverse();
        }
    }
    // Nothing that was attested may pass as unattested.
    let record = AttestedSince { since: 0, strictness: Strictness::Strict, post_quantum: false, not_after: NOW * 2 };
    network.view.set_attested_since(Asn(1), record);
    let honest = honest(&mut network);
    for route in &honest {
        let report = network.validate(&route.prefixes, &Path::from_travel(&route.path), &route.value, 7);
        assert_eq!(report.kind, VerdictKind::Valid);
    }
    let mut random = Random(0x5eed);
    let context = Context { view: &network.view, rules: &network.rules, clock: network.clock(), directories: &[] };
    let mut tried = 0;
    while tried < count {
        let mutants: Vec<Received> =
            (0..64).map(|_| mutate(&mut random, &honest)).filter(|mutant| !is_honest(mutant, &honest)).collect();
        let paths: Vec<Path> = mutants.iter().map(|mutant| Path::from_travel(&mutant.path)).collect();
        let routes = mutants.iter().zip(&paths).map(|(mutant, path)| Route {
            prefixes: &mutant.prefixes,
            path,
            carried: Carried::Value(&mutant.value),
            receiver: mutant.receiver,
        });
        let routes: Vec<Route<'_>> = routes.collect();
        for (mutant, report) in mutants.iter().zip(validate_burst(&context, &routes)) {
            assert_eq!(report.kind, VerdictKind::Invalid, "{mutant:?}\n{report:?}");
        }
        tried += mutants.len();
    }
}

/// Whether a mutant says what an honest route says: any subset of the signed list does.
fn is_honest(mutant: &Received, honest: &[Received]) -> bool {
    honest.iter().any(|route| {
        route.value == mutant.value
            && route.path == mutant.path
            && route.receiver == mutant.receiver
            && mutant.prefixes.iter().all(|prefix| route.prefixes.contains(prefix))
    })
}
