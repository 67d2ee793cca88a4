//! A small network of ASes with keys of every standard suite, for the tests of chains.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

use std::collections::BTreeMap;

use wayleave_attestation::chain::Attestation;
use wayleave_attestation::leaf::Leaf;
use wayleave_attestation::path::Path;
use wayleave_attestation::pki::{RegisteredKey, View, Vrp};
use wayleave_attestation::report::Report;
use wayleave_attestation::sign::{self, DEFAULT_LIFETIME, KeyPair, KeyRing, Origination, Recipient, Speaker};
use wayleave_attestation::suite::{self, SuiteId, SuiteKey};
use wayleave_attestation::validate::{self, Carried, Clock, Context, DEFAULT_UNCERTAINTY, Route, Rules};
use wayleave_core::{Asn, Prefix, UnixTime};
use wayleave_crypto::hash::hash;
use wayleave_crypto::secret::Secret;

use super::few_time::SharedHbs;

/// When the tests play.
pub const NOW: u64 = 1_700_000_000;

/// Reads a prefix.
pub fn p(text: &str) -> Prefix {
    text.parse().expect("a prefix")
}

/// One AS.
pub struct Node {
    pub ring: KeyRing,
}

/// What the ASes know, and their private keys.
pub struct Network {
    pub nodes: BTreeMap<Asn, Node>,
    pub view: View,
    pub rules: Rules,
    pub now: u64,
}

/// A pair of `asn`; `life` tells pairs of one AS and suite apart. Every fourth AS has the same hash-based key, since making
/// more takes long.
pub fn pair(asn: Asn, suite: SuiteId, life: u8) -> KeyPair {
    let seed = hash("test/key", &[&asn.0.to_be_bytes(), &[suite as u8, life]]);
    let key: Box<dyn SuiteKey> = match suite {
        SuiteId::KcHbs => Box::new(SharedHbs::signing((asn.0 % 4) as u8 + 4 * life)),
        suite => suite::of(suite).expect("a standard suite").generate(&Secret::new(seed)),
    };
    KeyPair { suite, key, registered: false }
}

impl Network {
    /// ASes 1 to `count` with a pair of each of `suites`, none registered but AS 1's; AS 1 may announce 192.0.2.0/24
    /// and 2001:db8::/32 and what lies within.
    pub fn new(count: u32, suites: &[SuiteId]) -> Self {
        let mut network = Self { nodes: BTreeMap::new(), view: View::new(1), rules: Rules::default(), now: NOW };
        for asn in 1..=count {
            let pairs = suites.iter().map(|suite| pair(Asn(asn), *suite, 0)).collect();
            network.nodes.insert(Asn(asn), Node { ring: KeyRing { pairs } });
        }
        network.register(Asn(1));
        for prefix in ["192.0.2.0/24", "2001:db8::/32", "10.0.0.0/8"] {
            let prefix = p(prefix);
            network.view.add_vrp(Vrp { prefix, max_length: prefix.afi().bits(), asn: Asn(1) });
        }
        network
    }

    /// Puts the keys of `asn` into the PKI.
    pub fn register(&mut self, asn: Asn) {
        for pair in &mut self.nodes.get_mut(&asn).expect("an AS of the network").ring.pairs {
            pair.registered = true;
            let public = pair.key.public().to_vec();
            let key = RegisteredKey { suite: pair.suite, public, not_before: 0, not_after: NOW * 2 };
            self.view.add_key(asn, key);
        }
    }

    /// The leaf that endorses all keys of `asn`.
    pub fn leaf(&self, asn: Asn) -> Leaf {
        match self.nodes.get(&asn) {
            Some(node) => {
                let keys: Vec<_> = node.ring.pairs.iter().map(KeyPair::leaf_key).collect();
                Leaf::new(&keys, 112, false).expect("a leaf")
            }
            None => Leaf::keyless(),
        }
    }

    pub fn speaker(&self, asn: Asn, prepend: u8) -> Speaker {
        Speaker { asn, prepend, not_before: self.now, lifetime: DEFAULT_LIFETIME }
    }

    /// What `asn` sends to `next` of `prefixes`, having `received` with `path`; nothing is received by the origin.
    pub fn send(&mut self, prefixes: &[Prefix], path: &Path, received: &[u8], asn: Asn, next: Asn) -> Vec<u8> {
        let leaf = self.leaf(next);
        self.send_leaf(prefixes, path, received, asn, next, &leaf)
    }

    pub fn send_leaf(
        &mut self,
        prefixes: &[Prefix],
        path: &Path,
        received: &[u8],
        asn: Asn,
        next: Asn,
        leaf: &Leaf,
    ) -> Vec<u8> {
        let speaker = self.speaker(asn, 1);
        let ring = &mut self.nodes.get_mut(&asn).expect("an AS of the network").ring;
        let onward = Recipient::Neighbour(next, leaf.view());
        let attested = if received.is_empty() {
            sign::originate(&Origination { prefixes, sequence: 1 }, &speaker, ring, onward)
        } else {
            let received = Attestation::decode(received).expect("decodes");
            sign::extend(&received, path, prefixes, &speaker, ring, onward)
        };
        attested.expect("attests").value
    }

    /// The attribute of `prefixes` along `ases` as `receiver` gets it, and its path. ASes not of the network are legacy:
    /// they pass the attribute on.
    pub fn chain(&mut self, prefixes: &[Prefix], ases: &[u32], receiver: u32) -> (Vec<u8>, Path) {
        let mut value = Vec::new();
        let mut path = Path::default();
        for (i, asn) in ases.iter().enumerate() {
            let next = Asn(ases.get(i + 1).copied().unwrap_or(receiver));
            if self.nodes.contains_key(&Asn(*asn)) {
                value = self.send(prefixes, &path, &value, Asn(*asn), next);
            }
            path.push(Asn(*asn), 1);
        }
        (value, path)
    }

    pub fn clock(&self) -> Clock {
        Clock { now: UnixTime(self.now * 1_000_000), uncertainty: DEFAULT_UNCERTAINTY }
    }

    /// What `receiver` finds.
    pub fn validate(&self, prefixes: &[Prefix], path: &Path, value: &[u8], receiver: u32) -> Report {
        self.judge(prefixes, path, Carried::Value(value), receiver)
    }

    pub fn judge(&self, prefixes: &[Prefix], path: &Path, carried: Carried<'_>, receiver: u32) -> Report {
        let context = Context { view: &self.view, rules: &self.rules, clock: self.clock(), directories: &[] };
        validate::validate(&context, &Route { prefixes, path, carried, receiver: Asn(receiver) })
    }
}

/// A small generator, so that a seed always gives the same cases (xorshift64*).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() >> 16) as usize % end.max(1)
    }
}
