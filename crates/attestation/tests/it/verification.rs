//! What verification costs a proxy: which routes a change of keys concerns, and what is left to honest neighbours beside
//! one that sends garbage. Costs are counted in signatures, not in seconds.
//!
//! KCX-32: a key changes anywhere: only routes whose path names the AS are validated again, and no right signature is
//! verified twice.
//! KCX-33: ten times as much garbage from one neighbour as honest routes from another: honest goodput stays above four
//! fifths; a suspect gets all that is left.

use std::collections::VecDeque;
use std::time::Duration;

use crate::common::network::Network;
use crate::common::proxy_net::{ATTRIBUTE, At, Net, START, config, p, shared};
use wayleave_attestation::pki::{RegisteredKey, View};
use wayleave_attestation::proxy::Event;
use wayleave_attestation::proxy::session_pair::Side;
use wayleave_attestation::sign::KeyRing;
use wayleave_attestation::suite::SuiteId;
use wayleave_bgp::{AsPathBuf, AttributeFlags, AttributesEditor};
use wayleave_core::{Asn, Prefix};

/// The AS whose proxy verifies.
const LAST: u32 = 64_500;

/// A proxy with a speaker of its own for each pair, and a neighbour beyond each, which announces what a test tells it.
struct Verifier {
    net: Net,
    /// Who signs the neighbours' routes.
    network: Network,
    neighbours: Vec<usize>,
}

impl Verifier {
    /// `neighbours` are AS numbers.
    fn new(neighbours: &[u32]) -> Self {
        let mut net = Net::new();
        let mut network = Network::new(9, &[SuiteId::KcEd25519]);
        network.now = START;
        let proxy = net.proxy(config(LAST, neighbours.len(), false), KeyRing::default());
        let mut places = Vec::new();
        for (pair, asn) in neighbours.iter().enumerate() {
            let (inside, outside) = (net.speaker(LAST), net.speaker(*asn));
            net.speakers[inside].is_end = true;
            let (a, b) = (net.session(inside, |_| ()), net.session(outside, |_| ()));
            net.link(a, At::Proxy(proxy, pair, Side::Inside));
            net.link(b, At::Proxy(proxy, pair, Side::Outside));
            places.push(outside);
        }
        net.tell(proxy, shared(network.view.clone()));
        net.start();
        Self { net, network, neighbours: places }
    }

    fn validated(&mut self, pair: usize) -> u64 {
        self.net.proxies[0].status().pairs[pair].counts.validated
    }

    fn signatures(&mut self) -> u64 {
        self.net.proxies[0].status().counts.signatures
    }

    /// The value of a route to `prefix` along `ases`.
    fn value(&mut self, prefix: Prefix, ases: &[u32]) -> Vec<u8> {
        self.network.chain(&[prefix], ases, LAST).0
    }

    /// The neighbour of a pair announces a route along `ases`, of which it is the last.
    fn announce(&mut self, pair: usize, prefix: Prefix, ases: &[u32], value: &[u8]) {
        let before: Vec<Asn> = ases.iter().rev().skip(1).map(|asn| Asn(*asn)).collect();
        self.net.announce_with(self.neighbours[pair], &prefix.to_string(), |edit: &mut AttributesEditor| {
            edit.as_path(AsPathBuf::from_sequence(&before).as_path());
            edit.set(ATTRIBUTE, AttributeFlags::OPTIONAL_TRANSITIVE, value);
        });
    }

    /// Announces a good route.
    fn announce_honest(&mut self, pair: usize, prefix: Prefix, ases: &[u32]) {
        let value = self.value(prefix, ases);
        self.announce(pair, prefix, ases, &value);
    }
}

fn prefix(number: u32) -> Prefix {
    Prefix::new((0x0a00_0000 | number << 8).to_be_bytes().into(), 24).expect("a prefix")
}

fn other_key(view: &mut View, asn: u32) {
    let key =
        RegisteredKey { suite: SuiteId::KcEd25519, public: vec![asn as u8; 32], not_before: 0, not_after: u64::MAX };
    view.add_key(Asn(asn), key);
}

#[test]
fn a_changed_key_revalidates_the_routes_whose_path_names_its_as_and_verifies_nothing_again() {
    let mut verifier = Verifier::new(&[3, 4]);
    for number in 0..10 {
        verifier.announce_honest(0, prefix(number), &[1, 2, 3]);
        verifier.announce_honest(1, prefix(100 + number), &[1, 4]);
    }
    let (before, signatures) = ([verifier.validated(0), verifier.validated(1)], verifier.signatures());
    assert_eq!((before, signatures), ([10, 10], 50));
    let mut revalidated = |asn: Option<u32>| {
        let before = [verifier.validated(0), verifier.validated(1)];
        let mut view = verifier.network.view.clone();
        asn.into_iter().for_each(|asn| other_key(&mut view, asn));
        verifier.net.tell(0, shared(view));
        verifier.net.settle();
        assert_eq!(verifier.signatures(), signatures, "what is right stays right");
        [verifier.validated(0) - before[0], verifier.validated(1) - before[1]]
    };
    // The change and its end.
    assert_eq!([revalidated(Some(9)), revalidated(None)], [[0, 0]; 2]);
    assert_eq!([revalidated(Some(2)), revalidated(None)], [[10, 0]; 2]);
    assert_eq!([revalidated(Some(4)), revalidated(None)], [[0, 10]; 2]);
    assert_eq!([revalidated(Some(1)), revalidated(None)], [[10, 10]; 2]);
}

/// Signatures that the pool verifies in one tick of ten milliseconds: about one thread's.
const PER_TICK: i64 = 200;
const TICKS: u32 = 150;

/// Routes of the honest neighbour that are validated in time beside `garbage` times as many signatures of another, which
/// begins at once.
fn goodput(honest_per_tick: u32, garbage: u32) -> u64 {
    const HOPS: [u32; 3] = [1, 2, 3];
    let mut verifier = Verifier::new(&[3, 4]);
    // One honest chain over as many hops; a prefix put in its place makes every signature wrong.
    let pattern = prefix(0);
    let value = verifier.value(pattern, &[1, 2, 4]);
    let needle = [24, 10, 0, 0];
    let at = value.windows(4).position(|octets| octets == needle).expect("the signed list");
    verifier.net.pool = Some(VecDeque::new());
    let (mut left, mut next) = (0, 0);
    for _ in 0..TICKS {
        for _ in 0..garbage * honest_per_tick {
            next += 1;
            let prefix = prefix(next % 0xffff);
            let mut value = value.clone();
            value[at + 1..at + 4].copy_from_slice(&prefix.octets()[..3]);
            // Each time another attestation, also for a prefix that had one.
            let last = value.len() - 1 - (next / 0xffff) as usize;
            value[last] ^= 1;
            verifier.announce(1, prefix, &[1, 2, 4], &value);
        }
        for _ in 0..honest_per_tick {
            next += 1;
            verifier.announce_honest(
                0,
                Prefix::new((0x0a00_0000 | next).to_be_bytes().into(), 32).expect("a prefix"),
                &HOPS,
            );
        }
        left = PER_TICK.min(left + PER_TICK);
        while left > 0 {
            let before = verifier.signatures();
            if !verifier.net.run_job() {
                break;
            }
            left -= (verifier.signatures() - before) as i64;
        }
        verifier.net.wait(Duration::from_millis(10));
    }
    if garbage > 0 {
        let is_suspect = |event: &(usize, Event)| matches!(event.1, Event::Suspect(1));
        assert_eq!(
            verifier.net.events.iter().filter(|event| is_suspect(event)).count(),
            1,
            "the operator is told once"
        );
        assert!(verifier.validated(1) > 0, "garbage is looked at too");
        assert_eq!(verifier.net.proxies[0].status().pairs[0].counts.wrong, 0);
    }
    verifier.validated(0)
}

#[test]
fn honest_goodput_stays_above_four_fifths_beside_ten_times_as_much_garbage() {
    // 60 routes of three signatures: nine tenths of the pool.
    let (alone, beside) = (goodput(60, 0), goodput(60, 10));
    assert!(alone > u64::from(TICKS) * 55, "{alone}");
    assert!(beside * 10 > alone * 8, "{beside} of {alone} routes");
}

#[test]
fn a_suspect_neighbour_gets_all_that_others_leave() {
    let mut verifier = Verifier::new(&[3, 4]);
    let good = verifier.value(prefix(0), &[1, 2, 4]);
    for number in 1..200 {
        let mut value = good.clone();
        let last = value.len() - 1 - number as usize % 64;
        value[last] ^= 1;
        verifier.announce(1, prefix(0), &[1, 2, 4], &value);
        verifier.net.now.instant.0 += 1;
    }
    assert!(verifier.net.events.iter().any(|(_, event)| matches!(event, Event::Suspect(1))));
    // Nobody else has routes to be verified: it waits for nothing, whatever it has spent.
    let before = verifier.validated(1);
    (0..400).for_each(|number| verifier.announce_honest(1, prefix(number), &[1, 2, 4]));
    assert_eq!(verifier.validated(1), before + 400);
    assert!(verifier.net.has(2, &p("10.0.7.0/24").to_string()).is_some());
}
