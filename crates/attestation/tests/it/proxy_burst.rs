//! An AS with more than 32 neighbours: one signature serves a burst of routes to all, and no hop shows anything of the others.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::proxy_net::{ATTRIBUTE, At, Net, config, p, ring, shared, view};
use wayleave_attestation::burst::BurstOpening;
use wayleave_attestation::chain::Attestation;
use wayleave_attestation::pipeline::policy::VerdictClass;
use wayleave_attestation::pki::View;
use wayleave_attestation::proxy::session_pair::Side;
use wayleave_attestation::sign::{KeyPair, KeyRing};
use wayleave_attestation::suite::SuiteId;
use wayleave_attestation::{SignError, SuiteKey};
use wayleave_core::Asn;
use wayleave_crypto::secret::Secret;

const ORIGIN: u32 = 64_496;
const HUB: u32 = 64_497;
const FIRST: u32 = 65_001;
const PREFIX: &str = "192.0.2.0/24";
const ED: &[SuiteId] = &[SuiteId::KcEd25519];

/// A key that counts how often it signs.
struct Counting {
    key: Box<dyn SuiteKey>,
    signed: Arc<AtomicUsize>,
}

impl SuiteKey for Counting {
    fn public(&self) -> &[u8] {
        self.key.public()
    }

    fn sign(&mut self, message: &[u8]) -> Result<Vec<u8>, SignError> {
        self.signed.fetch_add(1, Ordering::Relaxed);
        self.key.sign(message)
    }
}

/// An origin, and a hub with so many neighbours, of which every fifth does not attest. Speaker 0 is the origin, 1 the
/// hub; proxy 0 is the origin's, 1 the hub's, then those of the neighbours that attest.
struct Star {
    net: Net,
    neighbours: Vec<u32>,
    signed: Arc<AtomicUsize>,
    /// By neighbour, its proxy.
    proxies: Vec<Option<usize>>,
}

fn known() -> View {
    view(1, &[ORIGIN, HUB], &[(ORIGIN, PREFIX), (HUB, "10.0.0.0/8")])
}

impl Star {
    fn new(count: u32, change: impl Fn(u32, &mut wayleave_attestation::proxy::ProxyConfig)) -> Self {
        let mut net = Net::new();
        net.speaker(ORIGIN);
        net.speaker(HUB);
        let neighbours: Vec<u32> = (0..count).map(|number| FIRST + number).collect();
        neighbours.iter().for_each(|asn| {
            let speaker = net.speaker(*asn);
            net.speakers[speaker].is_end = true;
        });
        let signed = Arc::new(AtomicUsize::new(0));
        let key = ring(HUB, ED).pairs.remove(0).key;
        let counting: Box<dyn SuiteKey> = Box::new(Counting { key, signed: Arc::clone(&signed) });
        let pair = KeyPair { suite: SuiteId::KcEd25519, key: counting, registered: false };
        let mut outgoing = config(ORIGIN, 1, false);
        (outgoing.pairs[0].ends[1].connects, outgoing.pairs[0].ends[1].listens) = (true, false);
        change(ORIGIN, &mut outgoing);
        let origin = net.proxy(outgoing, ring(ORIGIN, ED));
        let mut of_hub = config(HUB, neighbours.len() + 1, false);
        change(HUB, &mut of_hub);
        let hub = net.proxy(of_hub, KeyRing { pairs: vec![pair] });
        net.proxies[hub].hold_secret(Secret::new([7; 32]));
        let session = net.session(0, |_| ());
        net.link(session, At::Proxy(origin, 0, Side::Inside));
        let session = net.session(1, |_| ());
        net.link(session, At::Proxy(hub, 0, Side::Inside));
        net.link(At::Proxy(origin, 0, Side::Outside), At::Proxy(hub, 0, Side::Outside));
        let mut proxies = Vec::new();
        for (number, asn) in neighbours.iter().enumerate() {
            let inside = net.session(1, |_| ());
            net.link(inside, At::Proxy(hub, number + 1, Side::Inside));
            let session = net.session(number + 2, |_| ());
            if number % 5 == 4 {
                net.link(session, At::Proxy(hub, number + 1, Side::Outside));
                proxies.push(None);
                continue;
            }
            let mut connecting = config(*asn, 1, false);
            (connecting.pairs[0].ends[1].connects, connecting.pairs[0].ends[1].listens) = (true, false);
            let proxy = net.proxy(connecting, ring(*asn, ED));
            net.link(session, At::Proxy(proxy, 0, Side::Inside));
            net.link(At::Proxy(proxy, 0, Side::Outside), At::Proxy(hub, number + 1, Side::Outside));
            proxies.push(Some(proxy));
        }
        for proxy in 0..net.proxies.len() {
            net.tell(proxy, shared(known()));
        }
        net.start();
        net.wait(Duration::from_secs(30));
        Self { net, neighbours, signed, proxies }
    }

    fn value(&self, number: usize, prefix: &str) -> Vec<u8> {
        let route = self.net.has(number + 2, prefix).unwrap_or_else(|| panic!("neighbour {number} has it"));
        route.get(ATTRIBUTE).expect("attested").value.to_vec()
    }

    fn signatures(&self, act: impl FnOnce(&mut Net), net: &mut Net) -> usize {
        let before = self.signed.load(Ordering::Relaxed);
        act(net);
        self.signed.load(Ordering::Relaxed) - before
    }
}

#[test]
fn one_signature_serves_forty_neighbours_and_each_carries_its_opening() {
    let mut star = Star::new(40, |_, _| ());
    let mut net = std::mem::replace(&mut star.net, Net::new());
    // The first route to come is signed at once, and all others while that job runs.
    assert_eq!(star.signatures(|net| net.announce(0, PREFIX), &mut net), 2, "extended");
    assert_eq!(star.signatures(|net| net.announce(1, "10.1.0.0/16"), &mut net), 2, "originated");
    star.net = net;
    let mut signatures = BTreeSet::new();
    let mut salts = BTreeSet::new();
    for number in 0..star.neighbours.len() {
        let value = star.value(number, PREFIX);
        let attestation = Attestation::decode(&value).expect("well formed");
        let last = attestation.last_hop().expect("a hop");
        if let Some(BurstOpening { salt, siblings, .. }) = last.burst {
            assert_eq!(siblings.len(), 8 * 32, "one height whatever the burst");
            salts.insert(salt.to_vec());
        }
        assert_eq!(last.next.leaf().map(|leaf| leaf.is_keyless()), Some(number % 5 == 4));
        signatures.insert(last.signature.to_vec());
        if let Some(proxy) = star.proxies[number] {
            for prefix in [PREFIX, "10.1.0.0/16"] {
                let why = star.net.proxies[proxy].why(p(prefix));
                assert_eq!(why.routes[0].class, VerdictClass::Valid, "{prefix}: {why:?}");
            }
        }
    }
    assert_eq!((signatures.len(), salts.len()), (2, 39));
    // What one got is of no use to another: the leaf names its AS.
    let (one, other) = (star.value(0, PREFIX), star.value(1, PREFIX));
    assert_ne!(one, other);
}

#[test]
fn a_neighbour_whose_session_comes_back_gets_a_new_signature_and_the_others_keep_theirs() {
    let mut star = Star::new(40, |_, _| ());
    star.net.announce(0, PREFIX);
    let before: Vec<Vec<u8>> = (0..40).map(|number| star.value(number, PREFIX)).collect();
    let at = At::Proxy(star.proxies[3].expect("a proxy"), 0, Side::Outside);
    star.net.cut(at);
    star.net.reconnect();
    star.net.wait(Duration::from_secs(70));
    star.net.reconnect();
    star.net.wait(Duration::from_secs(70));
    for (number, before) in before.iter().enumerate() {
        assert_eq!(star.value(number, PREFIX) == *before, number != 3, "{number}");
    }
    let proxy = star.proxies[3].expect("a proxy");
    assert_eq!(star.net.proxies[proxy].why(p(PREFIX)).routes[0].class, VerdictClass::Valid);
}

#[test]
fn a_burst_of_many_routes_to_many_neighbours_has_few_signatures() {
    let mut star = Star::new(40, |_, _| ());
    let mut net = std::mem::replace(&mut star.net, Net::new());
    let prefixes: Vec<String> = (0..16).map(|number| format!("10.{number}.0.0/16")).collect();
    let signatures = star.signatures(|net| net.announce_all(1, &prefixes), &mut net);
    // 640 hops in trees of at most 256 leaves, and the one that came before all others.
    assert_eq!(signatures, 4);
}

#[test]
fn where_the_opening_does_not_fit_the_neighbour_gets_a_signature_of_its_own() {
    let mut star = Star::new(40, |asn, config| {
        if asn != HUB {
            return;
        }
        (config.pairs[1].max_octets, config.pairs[1].max_octets_extended) = (400, 400);
    });
    star.net.announce(0, PREFIX);
    let value = star.value(0, PREFIX);
    let last = Attestation::decode(&value).expect("well formed").last_hop().map(|hop| hop.burst.is_none());
    assert_eq!(last, Some(true));
    let proxy = star.proxies[0].expect("a proxy");
    assert_eq!(star.net.proxies[proxy].why(p(PREFIX)).routes[0].class, VerdictClass::Valid);
    assert!(star.net.has(3, PREFIX).is_some_and(|route| route.as_path().asns().any(|asn| asn == Asn(HUB))));
}

#[test]
fn few_neighbours_get_signatures_of_their_own() {
    let mut star = Star::new(6, |_, _| ());
    star.net.announce(0, PREFIX);
    for number in 0..6 {
        let value = star.value(number, PREFIX);
        let last = Attestation::decode(&value).expect("well formed").last_hop().map(|hop| hop.octets.len());
        assert!(last.is_some_and(|octets| octets <= 109), "{last:?}");
    }
}

#[test]
fn what_is_signed_again_ahead_of_expiry_is_signed_once_for_all() {
    // What is signed for twenty minutes is signed again after ten to fifteen.
    let mut star = Star::new(40, |_, config| config.pipeline.lifetime = 20);
    star.net.announce(0, PREFIX);
    let before = star.signed.load(Ordering::Relaxed);
    star.net.wait(Duration::from_secs(16 * 60));
    let signed = star.signed.load(Ordering::Relaxed) - before;
    // The hub signs again when its own time comes and when the origin's renewal does.
    assert!((1..=4).contains(&signed), "{signed} signatures");
    let proxy = star.proxies[0].expect("a proxy");
    assert_eq!(star.net.proxies[proxy].why(p(PREFIX)).routes[0].class, VerdictClass::Valid);
}
