//! New suites, new keys, and a requirement of post-quantum suites: nothing honest becomes invalid, nothing forged valid.

use wayleave_attestation::chain::{Attestation, Hop};
use wayleave_attestation::leaf::{Leaf, LeafKey};
use wayleave_attestation::path::Path;
use wayleave_attestation::pki::{AttestedSince, RegisteredKey, Strictness};
use wayleave_attestation::report::{Lack, Problem, Report};
use wayleave_attestation::sign::{self, Draft, KeyPair, KeyRing, Recipient, Signatures};
use wayleave_attestation::suite::{self, SuiteId};
use wayleave_core::{Asn, Prefix, VerdictKind};

use crate::common::network::{NOW, Network, p, pair};

const ED: SuiteId = SuiteId::KcEd25519;
const HBS: SuiteId = SuiteId::KcHbs;

fn prefixes() -> Vec<Prefix> {
    vec![p("192.0.2.0/24")]
}

fn travel(ases: &[u32]) -> Path {
    Path::from_travel(&ases.iter().map(|asn| Asn(*asn)).collect::<Vec<_>>())
}

fn problem(report: &Report) -> Problem {
    report.broken.as_ref().unwrap_or_else(|| panic!("{report:?}")).problem
}

fn record(strictness: Strictness) -> AttestedSince {
    AttestedSince { since: 0, strictness, not_after: NOW * 2 }
}

/// What `asn` sends on with this ring, to a neighbour with this leaf.
fn extend(network: &Network, value: &[u8], path: &Path, asn: u32, pairs: Vec<KeyPair>, next: (u32, &Leaf)) -> Vec<u8> {
    let received = Attestation::decode(value).expect("decodes");
    let onward = Recipient::Neighbour(Asn(next.0), next.1.view());
    let mut ring = KeyRing { pairs };
    sign::extend(&received, path, &prefixes(), &network.speaker(Asn(asn), 1), &mut ring, onward).expect("signs").value
}

fn endorsing(pairs: &[KeyPair]) -> Leaf {
    let keys: Vec<LeafKey> = pairs.iter().map(KeyPair::leaf_key).collect();
    Leaf::new(&keys, 112, false).expect("a leaf")
}

/// The value with the last hop under another suite's number, which nobody knows.
fn with_unknown_suite(value: &[u8]) -> Vec<u8> {
    let attestation = Attestation::decode(value).expect("decodes");
    let last = attestation.last_hop().expect("a hop");
    let mut changed = value[..value.len() - last.octets.len()].to_vec();
    Hop { suite: 99, public: &[], ..last }.encode(attestation.hop_count() as u8 - 1, &mut changed);
    changed
}

#[test]
fn a_new_suite_at_a_later_hop_is_a_gap_and_a_strict_origins_routes_stay() {
    let mut network = Network::new(4, &[ED]);
    network.view.set_attested_since(Asn(1), record(Strictness::Strict));
    // AS 1 endorses what AS 2 offers, a key of a suite that this verifier does not know among them.
    let keys = [pair(Asn(2), ED, 0).leaf_key(), LeafKey { suite: 99, key: [9; 32] }];
    let leaf = Leaf::new(&keys, 112, false).expect("a leaf");
    let to_2 = network.send_leaf(&prefixes(), &Path::default(), &[], Asn(1), Asn(2), &leaf);
    let to_3 = network.send(&prefixes(), &travel(&[1]), &to_2, Asn(2), Asn(3));
    assert_eq!(network.validate(&prefixes(), &travel(&[1, 2]), &to_3, 3).kind, VerdictKind::Valid);
    let report = network.validate(&prefixes(), &travel(&[1, 2]), &with_unknown_suite(&to_3), 3);
    assert_eq!((report.kind, report.lack), (VerdictKind::Gap, Some(Lack::UnknownSuite { suite: 99 })));
    // Where the leaf does not list it, it is a forgery.
    let (listed, path) = network.chain(&prefixes(), &[1, 2], 3);
    assert_eq!(problem(&network.validate(&prefixes(), &path, &with_unknown_suite(&listed), 3)), Problem::KeyNotListed);
    // The origin's own suite must be known: its record is strict.
    let (own, path) = network.chain(&prefixes(), &[1], 3);
    assert_eq!(problem(&network.validate(&prefixes(), &path, &with_unknown_suite(&own), 3)), Problem::Stripped);
}

#[test]
fn two_border_routers_of_one_as_change_keys_and_no_route_becomes_invalid() {
    // The old key, both, both with the new one preferred, the new key.
    let [old, new] = [0, 1];
    let stages: [&[u8]; 4] = [&[old], &[old, new], &[new, old], &[new]];
    let ring = |stage: usize| stages[stage].iter().map(|life| pair(Asn(2), ED, *life)).collect::<Vec<_>>();
    // One router after the other takes each step; AS 2 is registered with all keys that any of them has, and routes
    // that were signed before are still under way.
    let steps = [(0, 0), (1, 0), (1, 1), (2, 1), (2, 2), (3, 2), (3, 3)];
    for registered in [false, true] {
        let mut under_way: Vec<(Vec<u8>, Path)> = Vec::new();
        for (ingress, egress) in steps {
            let mut network = Network::new(4, &[ED]);
            if registered {
                for life in [old, new] {
                    let public = pair(Asn(2), ED, life).key.public().to_vec();
                    let key = RegisteredKey { suite: ED, public, not_before: 0, not_after: NOW * 2 };
                    network.view.add_key(Asn(2), key);
                }
            }
            // What the ingress router offered is what AS 1 endorses; the egress router signs.
            let leaf = endorsing(&ring(ingress));
            let to_2 = network.send_leaf(&prefixes(), &Path::default(), &[], Asn(1), Asn(2), &leaf);
            let to_3 = extend(&network, &to_2, &travel(&[1]), 2, ring(egress), (3, &network.leaf(Asn(3))));
            under_way.push((to_3, travel(&[1, 2])));
            for (value, path) in &under_way {
                let report = network.validate(&prefixes(), path, value, 3);
                assert_eq!(report.kind, VerdictKind::Valid, "ingress {ingress}, egress {egress}: {report:?}");
            }
        }
    }
}

#[test]
fn a_third_key_of_one_suite_is_refused_and_does_not_silence_the_others() {
    let keys = [0, 1, 2].map(|life| pair(Asn(2), ED, life).leaf_key());
    assert!(Leaf::new(&keys, 112, false).is_err());
    assert!(Leaf::new(&keys[..2], 112, false).is_ok());
    assert!(Leaf::new(&[keys[0], keys[0]], 112, false).is_err());
}

#[test]
fn an_as_that_registers_revokes_what_was_endorsed_for_it() {
    let mut network = Network::new(4, &[ED]);
    let (value, path) = network.chain(&prefixes(), &[1, 2], 3);
    assert_eq!(network.validate(&prefixes(), &path, &value, 3).kind, VerdictKind::Valid);
    // A profile without a key of this suite is enough.
    network.view.register(Asn(2));
    assert_eq!(problem(&network.validate(&prefixes(), &path, &value, 3)), Problem::KeyNotRegistered);
}

/// A network of six ASes with keys of both suites, of which AS 1, 4 and 6 are registered, and AS 1 requires post-quantum suites.
fn post_quantum(suites: &[SuiteId]) -> Network {
    let mut network = Network::new(6, suites);
    network.register(Asn(4));
    network.register(Asn(6));
    network.view.set_attested_since(Asn(1), record(Strictness::PostQuantum));
    network
}

#[test]
fn where_every_as_has_a_post_quantum_key_the_chain_is_valid() {
    let mut network = post_quantum(&[HBS, ED]);
    let (value, path) = network.chain(&prefixes(), &[1, 2, 3], 4);
    assert_eq!(network.validate(&prefixes(), &path, &value, 4).kind, VerdictKind::Valid);
}

#[test]
fn an_as_without_a_post_quantum_key_is_a_gap_and_a_classical_hop_of_one_with_such_a_key_is_invalid() {
    let mut network = post_quantum(&[HBS, ED]);
    // AS 2 has a classical key alone; what it signs ends the chain.
    network.nodes.get_mut(&Asn(2)).expect("AS 2").ring.pairs.retain(|pair| pair.suite == ED);
    let (value, path) = network.chain(&prefixes(), &[1, 2], 3);
    let report = network.validate(&prefixes(), &path, &value, 3);
    assert_eq!((report.kind, report.lack), (VerdictKind::Gap, Some(Lack::NotPostQuantum { asn: Asn(2) })));
    // AS 3 has both, and somebody signs for it with the classical one.
    let mut network = post_quantum(&[HBS, ED]);
    let (to_3, path) = network.chain(&prefixes(), &[1, 2], 3);
    let forged = extend(&network, &to_3, &path, 3, vec![pair(Asn(3), ED, 0)], (4, &network.leaf(Asn(4))));
    assert_eq!(problem(&network.validate(&prefixes(), &travel(&[1, 2, 3]), &forged, 4)), Problem::NotPostQuantum);
}

#[test]
fn a_leaf_that_requires_post_quantum_suites_binds_all_who_follow() {
    let mut network = Network::new(5, &[HBS, ED]);
    let leaf = network.leaf(Asn(2)).requiring_post_quantum();
    let to_2 = network.send_leaf(&prefixes(), &Path::default(), &[], Asn(1), Asn(2), &leaf);
    // An honest signer with a classical key alone does not sign.
    let received = Attestation::decode(&to_2).expect("decodes");
    let (onward, speaker) = (network.leaf(Asn(3)), network.speaker(Asn(2), 1));
    let mut ring = KeyRing { pairs: vec![pair(Asn(2), ED, 0)] };
    let recipient = Recipient::Neighbour(Asn(3), onward.view());
    assert!(sign::extend(&received, &travel(&[1]), &prefixes(), &speaker, &mut ring, recipient).is_err());
    let to_3 = network.send(&prefixes(), &travel(&[1]), &to_2, Asn(2), Asn(3));
    assert_eq!(network.validate(&prefixes(), &travel(&[1, 2]), &to_3, 3).kind, VerdictKind::Valid);
    let to_4 = network.send(&prefixes(), &travel(&[1, 2]), &to_3, Asn(3), Asn(4));
    assert_eq!(network.validate(&prefixes(), &travel(&[1, 2, 3]), &to_4, 4).kind, VerdictKind::Valid);
}

/// An adversary who has every classical private key, of registered and other ASes.
struct Breaker<'n> {
    network: &'n Network,
}

impl Breaker<'_> {
    fn key(asn: u32) -> KeyPair {
        KeyPair { registered: true, ..pair(Asn(asn), ED, 0) }
    }

    /// Whether any of the leaves that it may write gives it a way on.
    fn extensions(&self, value: &[u8], path: &[u32], asn: u32, next: u32) -> Vec<Vec<u8>> {
        let Ok(received) = Attestation::decode(value) else { return Vec::new() };
        let leaves = [Leaf::keyless(), endorsing(&[pair(Asn(next), ED, 0)]), self.network.leaf(Asn(next))];
        let mut values = Vec::new();
        for leaf in &leaves {
            let onward = Recipient::Neighbour(Asn(next), leaf.view());
            let mut ring = KeyRing { pairs: vec![Self::key(asn)] };
            let speaker = self.network.speaker(Asn(asn), 1);
            let made = sign::extend(&received, &travel(path), &prefixes(), &speaker, &mut ring, onward);
            values.extend(made.map(|made| made.value));
        }
        values
    }
}

#[test]
fn a_verifier_for_whom_classical_keys_are_broken_calls_no_forged_route_valid() {
    let mut network = post_quantum(&[HBS, ED]);
    // What the adversary may begin with: honest hops of AS 1 that it received, and origins' hops of its own making.
    let to_5 = network.chain(&prefixes(), &[1], 5).0;
    let to_2 = network.chain(&prefixes(), &[1], 2).0;
    let keyless = network.send_leaf(&prefixes(), &Path::default(), &[], Asn(1), Asn(5), &Leaf::keyless());
    let mut starts = vec![(vec![1], to_5), (vec![1], to_2), (vec![1], keyless)];
    for leaf in [Leaf::keyless(), network.leaf(Asn(5)), endorsing(&[pair(Asn(5), ED, 0)])] {
        let origination = sign::Origination { prefixes: &prefixes(), sequence: 9 };
        let mut ring = KeyRing { pairs: vec![Breaker::key(1)] };
        let onward = Recipient::Neighbour(Asn(5), leaf.view());
        let made = sign::originate(&origination, &network.speaker(Asn(1), 1), &mut ring, onward);
        starts.push((vec![1], made.expect("signs").value));
    }
    let breaker = Breaker { network: &network };
    // Every forged continuation by one hop, over registered and other ASes, with gaps, and some of these by a further one, to AS 3.
    let mut tried = 0;
    let mut frontier = starts;
    for every in [1, 19] {
        let mut further = Vec::new();
        for (path, value) in frontier.iter().step_by(every) {
            for gap in [None, Some(77)] {
                for asn in [2, 4, 5, 6] {
                    if path.contains(&asn) {
                        continue;
                    }
                    let before: Vec<u32> = path.iter().copied().chain(gap).collect();
                    for next in [3, 2, 4] {
                        for forged in breaker.extensions(value, &before, asn, next) {
                            let path: Vec<u32> = before.iter().copied().chain([asn]).collect();
                            let report = network.validate(&prefixes(), &travel(&path), &forged, 3);
                            assert_ne!(report.kind, VerdictKind::Valid, "{path:?} {report:?}");
                            tried += 1;
                            further.push((path, forged));
                        }
                    }
                }
            }
        }
        frontier = further;
    }
    assert!(tried > 100, "{tried}");
    // The same routes are valid for a verifier of an origin that does not require it: the search is not empty.
    let mut classical = Network::new(6, &[ED]);
    let (value, path) = classical.chain(&prefixes(), &[1, 5], 3);
    assert_eq!(classical.validate(&prefixes(), &path, &value, 3).kind, VerdictKind::Valid);
    assert!(suite::of(HBS).is_some_and(|suite| suite.is_post_quantum()));
}

#[test]
fn a_requirement_that_begins_later_ends_the_verdict_of_what_is_valid_until_then() {
    let mut network = Network::new(3, &[ED]);
    let since = NOW + 3_600;
    let later = AttestedSince { since, strictness: Strictness::PostQuantum, not_after: NOW * 2 };
    network.view.set_attested_since(Asn(1), later);
    let (value, path) = network.chain(&prefixes(), &[1, 2], 3);
    let report = network.validate(&prefixes(), &path, &value, 3);
    assert_eq!((report.kind, report.until.map(|until| until.secs())), (VerdictKind::Valid, Some(since)));
    network.now = since;
    assert_eq!(problem(&network.validate(&prefixes(), &path, &value, 3)), Problem::NotPostQuantum);
}

#[test]
fn a_signer_leaves_out_the_keys_that_verifiers_would_refuse() {
    let network = post_quantum(&[ED, HBS]);
    let (leaf, ring) = (network.leaf(Asn(5)), &network.nodes[&Asn(1)].ring);
    let origination = sign::Origination { prefixes: &prefixes(), sequence: 1 };
    let onward = Recipient::Neighbour(Asn(5), leaf.view());
    let draft = Draft::origination(&origination, &network.speaker(Asn(1), 1), ring, onward).expect("may sign");
    let draft = draft.only(ring, |pair| suite::of(pair.suite).is_some_and(|suite| suite.is_post_quantum()));
    let mut ring = KeyRing { pairs: [ED, HBS].map(|suite| pair(Asn(1), suite, 0)).into() };
    let signed = sign::sign_all(vec![draft], &mut ring, Signatures::Each).remove(0).expect("signs").value;
    assert_eq!(network.validate(&prefixes(), &travel(&[1]), &signed, 5).kind, VerdictKind::Valid);
    let both = network.nodes[&Asn(1)].ring.pairs.iter().map(|pair| pair.suite).collect::<Vec<_>>();
    assert_eq!(both[0], ED, "the preferred one is the one that was left out");
}
