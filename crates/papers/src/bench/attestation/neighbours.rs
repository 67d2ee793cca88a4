//! What an UPDATE costs an attesting proxy by the number of neighbours that it is announced to. The papers' schemes sign once for
//! all neighbours, by their bit vector (section III-A); the product signs for each of up to [`MAX_DIRECT`] by itself.
//!
//! The work is the proxy's: the UPDATE is validated where it comes in; for each neighbour it is checked again, with its signatures
//! known by then, signed, and what was signed is verified before it leaves.

use std::collections::{BTreeMap, BTreeSet};

use wayleave_attestation::burst::MAX_BURST;
use wayleave_attestation::cache::VerifiedSignatures;
use wayleave_attestation::chain::Attestation;
use wayleave_attestation::leaf::Leaf;
use wayleave_attestation::path::Path;
use wayleave_attestation::pki::View;
use wayleave_attestation::sign::{
    self, DEFAULT_LIFETIME, Draft, KeyRing, MAX_DIRECT, Origination, Recipient, Signatures, Speaker,
};
use wayleave_attestation::suite::{self, Suite, SuiteId};
use wayleave_attestation::validate::{self, Carried, Clock, Context, Rules};
use wayleave_core::{Asn, UnixTime};
use wayleave_crypto::hash::hash;
use wayleave_crypto::secret::{Secret, Seed};

use super::workload::{Route, routes, share_keys};
use super::{BURST, Options, ROUTER, SEED, seed};
use crate::report::Report;
use crate::standard::registered;

/// Neighbours. Beyond [`MAX_DIRECT`] one signature serves a burst of hops.
pub const NEIGHBOURS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
/// The suites that are measured where none is asked for: the product's first, and its post-quantum one.
pub const SUITES: [SuiteId; 2] = [SuiteId::KcEd25519, SuiteId::KcHbs];

/// Keys that the ASes of all paths share, since making one of `kc-hbs` takes seconds.
const FEW_KEYS: u32 = 5;
/// The first neighbour's number. All neighbours have the key of this one.
const FIRST: u32 = 64_600;
/// Unix seconds at which everything is signed and validated.
const NOW: u64 = 1_700_000_000;
/// Octets of what is known of signatures: more than these UPDATEs need.
const KNOWN: usize = 1 << 20;

/// Adds the results of the suites that are wanted.
pub(super) fn add(report: &mut Report, options: &Options, repetitions: usize) {
    let wanted = |id: &SuiteId| match options.suites.as_slice() {
        [] => SUITES.contains(id),
        names => names.contains(id),
    };
    let count = if options.short { BURST / 4 } else { BURST };
    for id in SuiteId::ALL.into_iter().filter(wanted) {
        let Some(suite) = suite::of(id) else { continue };
        let mut routes = routes(count, FEW_KEYS, SEED);
        share_keys(&mut routes, FEW_KEYS);
        let mut proxy = Proxy::new(suite, &routes);
        for neighbours in NEIGHBOURS {
            let targets = proxy.neighbours(neighbours);
            let work = |proxy: &mut Proxy, burst| {
                let mut sum = Work::default();
                for from in (0..count).step_by(burst) {
                    sum.add(proxy.pass(from..count.min(from + burst), &targets, options.clock));
                }
                sum
            };
            // The first one fills the caches with this suite's own data.
            work(&mut proxy, BURST);
            let bursts: Vec<Work> = (0..repetitions).map(|_| work(&mut proxy, BURST)).collect();
            let alone: Vec<Work> = (0..repetitions).map(|_| work(&mut proxy, 1)).collect();
            let mut add = |what: &str, works: &[Work], of: fn(&Work) -> u64| {
                let samples: Vec<f64> = works.iter().map(|work| of(work) as f64 / count as f64 / 1e9).collect();
                report.add(format!("{what}.{id}.{neighbours}"), "s", &samples);
            };
            add("neighbours", &bursts, |work| work.validate + work.sign);
            add("neighbours_sign", &bursts, |work| work.sign);
            add("neighbours_alone", &alone, |work| work.validate + work.sign);
            let each = |sum: usize| sum as f64 / count as f64;
            report.exact(format!("neighbours_octets.{id}.{neighbours}"), "bytes", each(bursts[0].octets));
            report.exact(format!("neighbours_signatures.{id}.{neighbours}"), "count", each(bursts[0].signatures));
        }
        if proxy.ahead > 0 {
            let each = proxy.ahead as f64 / proxy.signed.max(1) as f64;
            report.counted(format!("neighbours_ahead.{id}"), "s", each / 1e9, proxy.signed);
        }
    }
}

/// The work for some UPDATEs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Work {
    /// Nanoseconds until all are known to be valid.
    validate: u64,
    /// Nanoseconds until they are signed for all neighbours.
    sign: u64,
    /// Octets of the attestations that leave.
    octets: usize,
    /// Different signatures of the proxy's among them.
    signatures: usize,
}

impl Work {
    fn add(&mut self, other: Self) {
        self.validate += other.validate;
        self.sign += other.sign;
        self.octets += other.octets;
        self.signatures += other.signatures;
    }
}

/// An UPDATE as the proxy receives it.
struct Received {
    route: Route,
    path: Path,
    attestation: Vec<u8>,
}

/// The proxy of [`ROUTER`], with the keys of all other ASes, so that it can play each of them.
struct Proxy {
    suite: &'static dyn Suite,
    view: View,
    nodes: BTreeMap<Asn, Node>,
    received: Vec<Received>,
    /// The slot of the proxy's key, if that is a few-time one.
    slot: u64,
    /// Nanoseconds for what a few-time key needs, made ahead.
    ahead: u64,
    /// Signatures that the proxy has made.
    signed: usize,
}

struct Node {
    ring: KeyRing,
    leaf: Leaf,
}

impl Proxy {
    fn new(suite: &'static dyn Suite, routes: &[Route]) -> Self {
        let (view, nodes) = (View::new(0), BTreeMap::new());
        let mut proxy = Self { suite, view, nodes, received: Vec::new(), slot: 0, ahead: 0, signed: 0 };
        proxy.received = routes.iter().map(|route| proxy.receive(route)).collect();
        // What serves a few-time key for eighteen hours is not counted.
        proxy.reserve(1, || 0);
        proxy
    }

    fn node(&mut self, asn: Asn) -> &mut Node {
        let Self { suite, view, nodes, .. } = self;
        nodes.entry(asn).or_insert_with(|| {
            let key_seed = hash("wayleave/bench/neighbours/v1", &[seed().expose(), &asn.0.to_be_bytes()]);
            let (ring, leaf) = registered(*suite, &Secret::new(key_seed), asn, view);
            Node { ring, leaf }
        })
    }

    /// Lets every AS of the route sign in turn, up to the proxy.
    fn receive(&mut self, route: &Route) -> Received {
        let mut attestation = Vec::new();
        for (index, asn) in route.path.iter().enumerate() {
            let to = route.path.get(index + 1).copied().unwrap_or(ROUTER);
            let leaf = self.node(to).leaf.clone();
            let onward = Recipient::Neighbour(to, leaf.view());
            let ring = &mut self.node(*asn).ring;
            let signed = if index == 0 {
                let origination = Origination { prefixes: &route.prefixes, sequence: 1 };
                sign::originate(&origination, &speaker(*asn), ring, onward)
            } else {
                let received = Attestation::decode(&attestation).expect("it was just signed");
                let path = Path::from_travel(&route.path[..index]);
                sign::extend(&received, &path, &route.prefixes, &speaker(*asn), ring, onward)
            };
            attestation = signed.expect("fewer UPDATEs than signatures of a slot").value;
        }
        Received { route: route.clone(), path: Path::from_travel(&route.path), attestation }
    }

    /// So many neighbours, and the leaves that name their keys.
    fn neighbours(&mut self, count: usize) -> Vec<(Asn, Leaf)> {
        let leaf = self.node(Asn(FIRST)).leaf.clone();
        (FIRST..).map(Asn).take(count).map(|asn| (asn, leaf.clone())).collect()
    }

    /// Lets a few-time key have `count` signatures left in its slot. Its trees are made when nothing more urgent waits: that is not
    /// part of an UPDATE's work, but counted by itself.
    fn reserve(&mut self, count: usize, clock: fn() -> u64) {
        let Self { nodes, slot, ahead, .. } = self;
        let Some(node) = nodes.get_mut(&ROUTER) else { return };
        for pair in node.ring.pairs.iter_mut().filter(|pair| pair.key.slots().is_some()) {
            if pair.key.left_in_slot() < count as u64 {
                *slot += 1;
                pair.key.set_slot(Some(*slot));
            }
            let start = clock();
            pair.key.make_ahead(*slot + 1);
            *ahead += clock() - start;
        }
    }

    /// Validates some of the UPDATEs, which wait together, and signs them for all `targets`.
    fn pass(&mut self, some: std::ops::Range<usize>, targets: &[(Asn, Leaf)], clock: fn() -> u64) -> Work {
        let mut work = Work::default();
        let mut known = VerifiedSignatures::new(KNOWN);
        let start = clock();
        self.validate(some.clone(), &mut known);
        work.validate = clock() - start;
        // One signature serves a burst of hops for all of them, or each is signed by itself, neighbour by neighbour.
        let salts = (targets.len() > MAX_DIRECT).then(|| Seed::new([9; 32]));
        let signatures = salts.as_ref().map_or(Signatures::Each, Signatures::Burst);
        let mut sent = BTreeSet::new();
        for together in targets.chunks(if salts.is_some() { targets.len() } else { 1 }) {
            let hops = together.len() * some.len();
            let count = if salts.is_some() { hops.div_ceil(MAX_BURST) } else { hops };
            self.reserve(count, clock);
            self.signed += count;
            let start = clock();
            for _ in together {
                self.validate(some.clone(), &mut known);
            }
            let values = self.sign(some.clone(), together, signatures);
            work.sign += clock() - start;
            for value in &values {
                let hop = Attestation::decode(value).ok().and_then(|attestation| attestation.last_hop());
                sent.extend(hop.map(|hop| hop.signature.to_vec()));
            }
            work.octets += values.iter().map(Vec::len).sum::<usize>();
        }
        work.signatures = sent.len();
        work
    }

    fn validate(&self, some: std::ops::Range<usize>, known: &mut VerifiedSignatures) {
        let received = self.received[some].iter().map(|received| validate::Route {
            prefixes: &received.route.prefixes,
            path: &received.path,
            carried: Carried::Value(&received.attestation),
            receiver: ROUTER,
        });
        let received: Vec<_> = received.collect();
        let rules = Rules::default();
        let clock = Clock { now: UnixTime(NOW * 1_000_000), uncertainty: 0 };
        let context = Context { view: &self.view, rules: &rules, clock, directories: &[] };
        let (reports, _) = validate::validate_burst_with(&context, &received, known, false);
        assert!(reports.iter().all(|report| report.path_is_proved()), "an honest UPDATE was refused");
    }

    /// The attestations with which some of the UPDATEs leave for each of the targets.
    fn sign(
        &mut self,
        some: std::ops::Range<usize>,
        targets: &[(Asn, Leaf)],
        signatures: Signatures<'_>,
    ) -> Vec<Vec<u8>> {
        let Self { nodes, received, .. } = self;
        let ring = &mut nodes.get_mut(&ROUTER).expect("it has received UPDATEs").ring;
        let mut drafts = Vec::with_capacity(some.len() * targets.len());
        for (asn, leaf) in targets {
            for Received { route, path, attestation } in &received[some.clone()] {
                let attestation = Attestation::decode(attestation).expect("it was validated");
                let onward = Recipient::Neighbour(*asn, leaf.view());
                let draft = Draft::extension(&attestation, path, &route.prefixes, &speaker(ROUTER), ring, onward);
                drafts.push(draft.expect("the router holds the key that the last hop names"));
            }
        }
        let signed = sign::sign_all(drafts, ring, signatures).into_iter();
        signed.map(|signed| signed.expect("signatures are left in the slot").value).collect()
    }
}

fn speaker(asn: Asn) -> Speaker {
    Speaker { asn, prepend: 1, not_before: NOW, lifetime: DEFAULT_LIFETIME }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn no_clock() -> u64 {
        0
    }

    /// Four UPDATEs of one origin.
    fn proxy(id: SuiteId) -> Proxy {
        let routes = routes(4, 2, SEED).into_iter().map(|route| Route { path: vec![Asn(1)], ..route });
        Proxy::new(suite::of(id).expect("implemented"), &routes.collect::<Vec<_>>())
    }

    #[test]
    fn each_neighbour_has_a_signature_of_its_own_until_one_serves_a_burst() {
        // A key of `kc-hbs` takes seconds to make.
        for id in [SuiteId::KcEd25519, SuiteId::KcP256] {
            let mut proxy = proxy(id);
            let received: usize = proxy.received.iter().map(|one| one.attestation.len()).sum();
            let mut octets_of_one = 0;
            for neighbours in NEIGHBOURS {
                let targets = proxy.neighbours(neighbours);
                let work = proxy.pass(0..4, &targets, no_clock);
                // Four UPDATEs for 64 neighbours are as many hops as one signature serves.
                assert_eq!(work.signatures, if neighbours > MAX_DIRECT { 1 } else { 4 * neighbours }, "{id}");
                octets_of_one = if neighbours == 1 { work.octets } else { octets_of_one };
                assert!(octets_of_one > received);
                if neighbours <= MAX_DIRECT {
                    assert_eq!(work.octets, neighbours * octets_of_one, "{id}");
                } else {
                    // An opening comes with each hop.
                    assert!(work.octets > neighbours * octets_of_one, "{id}");
                }
            }
            // 63 neighbours in all for each of four UPDATEs, and once one for all.
            assert_eq!(proxy.signed, 4 * 63 + 1, "{id}");
        }
    }
}
