//! The product's suites as a [`Scheme`]: chains in the attribute's own format.

use std::collections::HashMap;

use wayleave_attestation::chain::Attestation;
use wayleave_attestation::leaf::Leaf;
use wayleave_attestation::path::Path;
use wayleave_attestation::pki::{RegisteredKey, View};
use wayleave_attestation::sign::{
    self, AttestationError, DEFAULT_LIFETIME, KeyPair, KeyRing, Origination, Recipient, Speaker,
};
use wayleave_attestation::suite::{self, SignError, Suite, SuiteId};
use wayleave_attestation::validate::{Carried, Clock, Context, Route, Rules, validate_burst};
use wayleave_core::{Asn, UnixTime};
use wayleave_crypto::hash::hash;
use wayleave_crypto::secret::Secret;

use crate::scheme::{Announcement, Scheme, SchemeError};

/// Unix seconds at which attestations are signed and validated.
const NOW: u64 = 1_700_000_000;

/// Chains of `suite`, with one leaf and one signature for each neighbour; `None` for a reserved number.
#[must_use]
pub fn standard_scheme(suite: SuiteId, seed: &Secret<32>) -> Option<Box<dyn Scheme>> {
    let implementation = suite::of(suite)?;
    Some(Box::new(Standard {
        suite: implementation,
        seed: seed.clone(),
        nodes: HashMap::new(),
        view: View::new(0),
        rules: Rules::default(),
    }))
}

/// A key of `asn` that `view` knows for ever, at its first slot, and its leaf.
pub(crate) fn registered(suite: &dyn Suite, seed: &Secret<32>, asn: Asn, view: &mut View) -> (KeyRing, Leaf) {
    let mut key = suite.generate(seed);
    key.set_slot(Some(0));
    let public = key.public().to_vec();
    view.add_key(asn, RegisteredKey { suite: suite.id(), public, not_before: 0, not_after: u64::MAX });
    let pair = KeyPair { suite: suite.id(), key, registered: true };
    let least = suite.strength() / 16 * 16;
    let leaf = Leaf::new(&[pair.leaf_key()], least, false).expect("one key of a known suite is a leaf");
    (KeyRing { pairs: vec![pair] }, leaf)
}

struct Standard {
    suite: &'static dyn Suite,
    seed: Secret<32>,
    nodes: HashMap<Asn, Node>,
    view: View,
    rules: Rules,
}

struct Node {
    ring: KeyRing,
    leaf: Leaf,
    /// The slot in which a few-time key signs.
    slot: u64,
}

impl Node {
    /// A scheme has no clock: the next slot of a few-time key comes when the one before is spent.
    fn advance_slot(&mut self) {
        for pair in self.ring.pairs.iter_mut().filter(|pair| pair.key.left_in_slot() == 0) {
            self.slot += 1;
            pair.key.set_slot(Some(self.slot));
        }
    }
}

impl Standard {
    fn node(&mut self, asn: Asn) -> &mut Node {
        let Self { suite, seed, view, .. } = self;
        self.nodes.entry(asn).or_insert_with(|| {
            let seed = hash("wayleave/attestation/scheme/v1", &[seed.expose(), &asn.0.to_be_bytes()]);
            let (ring, leaf) = registered(*suite, &Secret::new(seed), asn, view);
            Node { ring, leaf, slot: 0 }
        })
    }
}

impl Scheme for Standard {
    fn name(&self) -> &'static str {
        self.suite.id().name()
    }

    fn prepare(&mut self, path: &[Asn]) {
        path.iter().for_each(|asn| {
            self.node(*asn);
        });
    }

    fn attest(&mut self, announcement: &Announcement, received: &[u8], to: Asn) -> Result<Vec<u8>, SchemeError> {
        let Some((&asn, before)) = announcement.path.split_last() else { return Err(SchemeError::Malformed) };
        let leaf = self.node(to).leaf.clone();
        let onward = Recipient::Neighbour(to, leaf.view());
        let speaker = Speaker { asn, prepend: 1, not_before: NOW, lifetime: DEFAULT_LIFETIME };
        let node = self.node(asn);
        node.advance_slot();
        let ring = &mut node.ring;
        let attested = if received.is_empty() {
            let origination = Origination { prefixes: &announcement.prefixes, sequence: 1 };
            sign::originate(&origination, &speaker, ring, onward)
        } else {
            let received = Attestation::decode(received).map_err(|_| SchemeError::Malformed)?;
            sign::extend(&received, &Path::from_travel(before), &announcement.prefixes, &speaker, ring, onward)
        };
        attested.map(|attested| attested.value).map_err(|error| match error {
            AttestationError::Sign(SignError::Exhausted(_) | SignError::NotReserved(_)) => SchemeError::Exhausted(asn),
            _ => SchemeError::Malformed,
        })
    }

    fn verify(&self, announcement: &Announcement, attestation: &[u8], by: Asn) -> bool {
        self.verify_burst(&[(announcement, attestation)], by).iter().all(|right| *right)
    }

    fn verify_burst(&self, burst: &[(&Announcement, &[u8])], by: Asn) -> Vec<bool> {
        let paths: Vec<Path> = burst.iter().map(|(announcement, _)| Path::from_travel(&announcement.path)).collect();
        let routes = burst.iter().zip(&paths).map(|((announcement, value), path)| Route {
            prefixes: &announcement.prefixes,
            path,
            carried: Carried::Value(value),
            receiver: by,
        });
        let routes: Vec<Route<'_>> = routes.collect();
        let clock = Clock { now: UnixTime(NOW * 1_000_000), uncertainty: 0 };
        let context = Context { view: &self.view, rules: &self.rules, clock, directories: &[] };
        validate_burst(&context, &routes).iter().map(|report| report.path_is_proved()).collect()
    }

    fn signature_bytes(&self, attestation: &[u8]) -> usize {
        let hops = |attestation: Attestation<'_>| attestation.hops().map(|hop| hop.octets.len()).sum();
        Attestation::decode(attestation).map_or(0, hops)
    }
}
