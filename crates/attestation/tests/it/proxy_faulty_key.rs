//! A key that signs wrongly, now and then or always: nothing that does not verify leaves.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::proxy_net::{ATTRIBUTE, At, Net, config, p, ring, shared, view};
use wayleave_attestation::pipeline::RouteEvent;
use wayleave_attestation::pipeline::policy::VerdictClass;
use wayleave_attestation::proxy::Event;
use wayleave_attestation::proxy::session_pair::Side;
use wayleave_attestation::sign::{KeyPair, KeyRing};
use wayleave_attestation::suite::SuiteId;
use wayleave_attestation::{SignError, SuiteKey};

const ORIGIN: u32 = 64_496;
const LAST: u32 = 64_498;
const ED: &[SuiteId] = &[SuiteId::KcEd25519];

/// A key of which every `every`-th signature is wrong.
struct Faulty {
    key: Box<dyn SuiteKey>,
    every: usize,
    signed: Arc<AtomicUsize>,
}

impl SuiteKey for Faulty {
    fn public(&self) -> &[u8] {
        self.key.public()
    }

    fn sign(&mut self, message: &[u8]) -> Result<Vec<u8>, SignError> {
        let mut signature = self.key.sign(message)?;
        let number = 1 + self.signed.fetch_add(1, Ordering::Relaxed);
        signature[7] ^= u8::from(number.is_multiple_of(self.every));
        Ok(signature)
    }
}

/// An origin with this key, and a neighbour. Speaker 0 and proxy 0 are the origin's.
fn pair(every: usize, second: Option<KeyPair>) -> (Net, Arc<AtomicUsize>) {
    let mut net = Net::new();
    net.speaker(ORIGIN);
    net.speaker(LAST);
    let signed = Arc::new(AtomicUsize::new(0));
    let key = ring(ORIGIN, ED).pairs.remove(0).key;
    let key: Box<dyn SuiteKey> = Box::new(Faulty { key, every, signed: Arc::clone(&signed) });
    let mut pairs = vec![KeyPair { suite: SuiteId::KcEd25519, key, registered: false }];
    pairs.extend(second);
    let mut outgoing = config(ORIGIN, 1, false);
    (outgoing.pairs[0].ends[1].connects, outgoing.pairs[0].ends[1].listens) = (true, false);
    let own = net.proxy(outgoing, KeyRing { pairs });
    let other = net.proxy(config(LAST, 1, false), KeyRing::default());
    let sessions = [net.session(0, |_| ()), net.session(1, |_| ())];
    net.link(sessions[0], At::Proxy(own, 0, Side::Inside));
    net.link(sessions[1], At::Proxy(other, 0, Side::Inside));
    net.link(At::Proxy(own, 0, Side::Outside), At::Proxy(other, 0, Side::Outside));
    for proxy in [own, other] {
        net.tell(proxy, shared(view(1, &[ORIGIN], &[(ORIGIN, "10.0.0.0/8")])));
    }
    net.start();
    net.wait(Duration::from_secs(20));
    (net, signed)
}

fn prefixes(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("10.{number}.0.0/16")).collect()
}

#[test]
fn what_is_signed_wrongly_now_and_then_is_signed_again_before_it_leaves() {
    let (mut net, signed) = pair(3, None);
    let prefixes = prefixes(40);
    for prefix in &prefixes {
        net.announce(0, prefix);
    }
    for prefix in &prefixes {
        let why = net.proxies[1].why(p(prefix));
        assert_eq!(why.routes[0].class, VerdictClass::Valid, "{why:?}");
    }
    assert!(signed.load(Ordering::Relaxed) > 40);
}

#[test]
fn a_key_that_always_signs_wrongly_sends_nothing_and_says_so() {
    let (mut net, signed) = pair(1, None);
    net.announce(0, "10.1.0.0/16");
    assert!(net.has(1, "10.1.0.0/16").is_none());
    assert_eq!(signed.load(Ordering::Relaxed), 2, "once more, and no further");
    let is_faulty = |event: &Event| {
        matches!(event, Event::Route { event: RouteEvent::Faulty { suite: SuiteId::KcEd25519, .. }, .. })
    };
    assert!(net.events.iter().any(|(proxy, event)| *proxy == 0 && is_faulty(event)));
    assert_eq!(net.proxies[0].status().pairs[0].counts.faulty, 1);
    // It is tried again later, not in a loop.
    net.wait(Duration::from_secs(599));
    assert_eq!(signed.load(Ordering::Relaxed), 2);
    net.wait(Duration::from_secs(2));
    assert_eq!(signed.load(Ordering::Relaxed), 4);
}

#[test]
fn the_next_key_takes_the_place_of_one_that_signs_wrongly() {
    let second = ring(ORIGIN, &[SuiteId::KcP256]).pairs.remove(0);
    let (mut net, _) = pair(1, Some(second));
    let mut known = view(2, &[ORIGIN], &[(ORIGIN, "10.0.0.0/8")]);
    let public = ring(ORIGIN, &[SuiteId::KcP256]).pairs[0].key.public().to_vec();
    let key =
        wayleave_attestation::pki::RegisteredKey { suite: SuiteId::KcP256, public, not_before: 0, not_after: u64::MAX };
    known.add_key(wayleave_core::Asn(ORIGIN), key);
    for proxy in [0, 1] {
        net.tell(proxy, shared(known.clone()));
    }
    net.settle();
    net.announce(0, "10.1.0.0/16");
    assert!(net.has(1, "10.1.0.0/16").is_some_and(|route| route.get(ATTRIBUTE).is_some()));
    assert_eq!(net.proxies[1].why(p("10.1.0.0/16")).routes[0].class, VerdictClass::Valid);
}
