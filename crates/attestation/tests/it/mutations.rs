//! Whatever is changed in an attested route, it is not accepted.
//!
//! `WAYLEAVE_MUTATIONS` sets how many mutants are tried; `scripts/soak` tries ten million.
//!
//! KCX-02: octets, hops, paths, prefixes and receivers of honest routes changed at random, parts of two joined: none
//! accepted.
#![allow(clippy::disallowed_methods, reason = "a test reads its count from the environment")]

use crate::common::network::{NOW, Network, Random, p};
use wayleave_attestation::chain::{Attestation, Exports, Hop};
use wayleave_attestation::leaf::{Leaf, Tree};
use wayleave_attestation::path::Path;
use wayleave_attestation::pki::{AttestedSince, Strictness};
use wayleave_attestation::sign::{self, Draft, Origination, Recipient, Signatures};
use wayleave_attestation::suite::{self, SuiteId};
use wayleave_attestation::validate::{Carried, Context, Route, validate, validate_burst};
use wayleave_core::{Asn, Prefix, VerdictKind};
use wayleave_crypto::secret::Seed;

/// A route as received: everything that an adversary may change.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Received {
    prefixes: Vec<Prefix>,
    path: Vec<Asn>,
    value: Vec<u8>,
    receiver: Asn,
}

/// Honest routes of several lengths, suites and forms, to be mutated and to take parts from.
fn honest(network: &mut Network, directory: &Tree) -> Vec<Received> {
    let lists = [vec![p("192.0.2.0/24")], vec![p("192.0.2.0/25"), p("192.0.2.128/25")], vec![p("2001:db8::/48")]];
    let paths: [&[u32]; 6] = [&[1], &[1, 2], &[1, 2, 3, 4], &[1, 3, 2], &[1, 2, 3, 4, 5, 6], &[1, 6, 4]];
    let mut routes = Vec::new();
    for prefixes in &lists {
        for path in paths {
            let (value, path) = network.chain(prefixes, path, 7);
            let path = path.entries().to_vec();
            routes.push(Received { prefixes: prefixes.clone(), path, value, receiver: Asn(7) });
        }
        routes.extend(bursts(network, prefixes));
        routes.extend(of_exchange(network, prefixes, directory));
    }
    routes.extend(filtered(network, &lists[1]));
    routes
}

/// AS 2 signs once for several neighbours and paths, and AS 3 extends what it was sent.
fn bursts(network: &mut Network, prefixes: &[Prefix]) -> Vec<Received> {
    let received = [network.chain(prefixes, &[1], 2), network.chain(prefixes, &[1, 4], 2)];
    let speaker = network.speaker(Asn(2), 1);
    let neighbours: Vec<(u32, Leaf)> = [3, 7, 8, 9].into_iter().map(|asn| (asn, network.leaf(Asn(asn)))).collect();
    let ring = &mut network.nodes.get_mut(&Asn(2)).expect("AS 2").ring;
    let (mut drafts, mut routes) = (Vec::new(), Vec::new());
    for (value, path) in &received {
        let attestation = Attestation::decode(value).expect("decodes");
        for (asn, leaf) in &neighbours {
            let onward = Recipient::Neighbour(Asn(*asn), leaf.view());
            drafts.push(Draft::extension(&attestation, path, prefixes, &speaker, ring, onward).expect("may sign"));
            let path = [path.entries(), &[Asn(2)]].concat();
            routes.push(Received { prefixes: prefixes.to_vec(), path, value: Vec::new(), receiver: Asn(*asn) });
        }
    }
    let salts = Seed::new([5; 32]);
    for (route, signed) in routes.iter_mut().zip(sign::sign_all(drafts, ring, Signatures::Burst(&salts))) {
        route.value = signed.expect("signs").value;
        if route.receiver == Asn(3) {
            let path = Path::from_travel(&route.path);
            route.value = network.send(prefixes, &path, &route.value, Asn(3), Asn(7));
            route.path.push(Asn(3));
            route.receiver = Asn(7);
        }
    }
    routes
}

/// AS 1 signs for the slots of a directory, and AS 3 passes the route on.
fn of_exchange(network: &mut Network, prefixes: &[Prefix], directory: &Tree) -> [Received; 2] {
    let speaker = network.speaker(Asn(1), 1);
    let ring = &mut network.nodes.get_mut(&Asn(1)).expect("AS 1").ring;
    let onward = Recipient::Directory(directory);
    let value = sign::originate(&Origination { prefixes, sequence: 1 }, &speaker, ring, onward).expect("signs").value;
    let opened = sign::open(&Attestation::decode(&value).expect("decodes"), directory, Asn(3)).expect("a slot");
    let passed_on = network.send(prefixes, &Path::from_travel(&[Asn(1)]), &opened, Asn(3), Asn(7));
    let received =
        |path: &[Asn], value| Received { prefixes: prefixes.to_vec(), path: path.to_vec(), value, receiver: Asn(7) };
    [received(&[Asn(1)], value), received(&[Asn(1), Asn(3)], passed_on)]
}

/// AS 2 passes on either prefix alone.
fn filtered(network: &mut Network, list: &[Prefix]) -> Vec<Received> {
    let (to_2, path) = network.chain(list, &[1], 2);
    let mut routes = Vec::new();
    for prefix in list {
        let mut path = path.clone();
        let to_3 = network.send(&[*prefix], &path, &to_2, Asn(2), Asn(3));
        path.push(Asn(2), 1);
        let value = network.send(&[*prefix], &path, &to_3, Asn(3), Asn(7));
        path.push(Asn(3), 1);
        routes.push(Received { prefixes: vec![*prefix], path: path.entries().to_vec(), value, receiver: Asn(7) });
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
        match random.below(14) {
            0..=3 => mutate_octets(random, &mut route.value),
            4..=6 => mutate_hops(random, &mut route.value, &other.value),
            7..=10 => mutate_fields(random, &mut route.value, &other.value),
            11 | 12 => mutate_path(random, &mut route, other),
            _ => match random.below(4) {
                0 => route.prefixes = other.prefixes.clone(),
                1 => route.prefixes.push(p("10.1.0.0/16")),
                // Everything that the origin signed.
                2 => route.prefixes = listed(&route.value),
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

fn listed(value: &[u8]) -> Vec<Prefix> {
    Attestation::decode(value).map(|attestation| attestation.prefixes().collect()).unwrap_or_default()
}

/// Puts single fields of another attestation's hop into a hop: another leaf, opening, bitmap, signature, time or key.
fn mutate_fields(random: &mut Random, value: &mut Vec<u8>, other: &[u8]) {
    let (Ok(own), Ok(other)) = (Attestation::decode(value), Attestation::decode(other)) else { return };
    let (hops, other): (Vec<Hop<'_>>, Vec<Hop<'_>>) = (own.hops().collect(), other.hops().collect());
    let (at, from) = (random.below(hops.len()), other[random.below(other.len())]);
    let mut hop = hops[at];
    for _ in 0..=random.below(3) {
        match random.below(12) {
            0 | 1 => hop.next = from.next,
            2 | 3 => hop.burst = from.burst,
            4 => hop.exports = from.exports,
            5 => hop.exports = Exports(hop.exports.0 ^ 1 << 31 >> random.below(2)),
            6 => (hop.signature, hop.suite, hop.public) = (from.signature, from.suite, from.public),
            7 => (hop.signature, hop.burst) = (from.signature, from.burst),
            8 => hop.signer = from.signer,
            9 => hop.prepend = 1 + random.below(20) as u8,
            10 => hop.lifetime = hop.lifetime.wrapping_add(1).max(1),
            _ => hop.not_before_offset ^= 1,
        }
    }
    let mut mutant = value[..value.len() - hops.iter().map(|hop| hop.octets.len()).sum::<usize>()].to_vec();
    for (index, unchanged) in hops.iter().enumerate() {
        if index == at {
            // At most 64 hops.
            hop.encode(index as u8, &mut mutant);
        } else {
            mutant.extend_from_slice(unchanged.octets);
        }
    }
    *value = mutant;
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
    // ASes 7 to 9, the receivers, have keys too: what they were given they would have to sign before others may pass it on.
    let mut network = Network::new(9, &suites);
    // Every second AS signs with the other suite.
    for (number, node) in network.nodes.values_mut().enumerate() {
        if number % 2 == 1 {
            node.ring.pairs.reverse();
        }
    }
    // Nothing that was attested may pass as unattested.
    let record = AttestedSince { since: 0, strictness: Strictness::Strict, not_after: NOW * 2 };
    network.view.set_attested_since(Asn(1), record);
    let slots: Vec<(Asn, Leaf)> = [7, 3, 2].iter().map(|asn| (Asn(*asn), network.leaf(Asn(*asn)))).collect();
    let directories = [Tree::directory(&slots).expect("a directory")];
    let honest = honest(&mut network, &directories[0]);
    let clock = network.clock();
    let context = Context { view: &network.view, rules: &network.rules, clock, directories: &directories };
    for route in &honest {
        let path = Path::from_travel(&route.path);
        let (prefixes, carried, receiver) = (&route.prefixes, Carried::Value(&route.value), route.receiver);
        let report = validate(&context, &Route { prefixes, path: &path, carried, receiver });
        assert_eq!(report.kind, VerdictKind::Valid, "{report:?}");
    }
    let mut random = Random(0x5eed);
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

/// Whether a mutant says what an honest route says: any subset of the prefixes that are passed on does.
fn is_honest(mutant: &Received, honest: &[Received]) -> bool {
    honest.iter().any(|route| {
        route.value == mutant.value
            && route.path == mutant.path
            && route.receiver == mutant.receiver
            && mutant.prefixes.iter().all(|prefix| route.prefixes.contains(prefix))
    })
}
