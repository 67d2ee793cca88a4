//! Faults of our own in the work of a proxy: they cost the routes that caused them, and nothing else.
//!
//! KCX-19: work on one route panics, in its burst and alone: only that route is left out, it is told, and tried again
//! ten minutes later.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::proxy_net::{ATTRIBUTE, At, Net, config, ring, shared, view};
use wayleave_attestation::pipeline::RouteEvent;
use wayleave_attestation::proxy::Event;
use wayleave_attestation::proxy::session_pair::Side;
use wayleave_attestation::sign::{KeyPair, KeyRing};
use wayleave_attestation::suite::SuiteId;
use wayleave_attestation::{SignError, SuiteKey};

const ORIGIN: u32 = 64_496;
const LAST: u32 = 64_497;

/// A key that panics when it shall sign for 10.66.0.0/16.
struct Faulty {
    key: Box<dyn SuiteKey>,
    panics: Arc<AtomicBool>,
}

impl SuiteKey for Faulty {
    fn public(&self) -> &[u8] {
        self.key.public()
    }

    fn sign(&mut self, message: &[u8]) -> Result<Vec<u8>, SignError> {
        let is_bad = message.windows(3).any(|window| window == [16, 10, 66]);
        assert!(!is_bad || !self.panics.load(Ordering::Relaxed), "a fault");
        self.key.sign(message)
    }
}

#[test]
fn a_panic_costs_the_route_that_caused_it_until_it_is_tried_again() {
    let panics = Arc::new(AtomicBool::new(true));
    let mut net = Net::new();
    net.speaker(ORIGIN);
    net.speaker(LAST);
    let (a, b) = (net.session(0, |_| ()), net.session(1, |_| ()));
    let key = ring(ORIGIN, &[SuiteId::KcEd25519]).pairs.remove(0).key;
    let key: Box<dyn SuiteKey> = Box::new(Faulty { key, panics: Arc::clone(&panics) });
    let ring = KeyRing { pairs: vec![KeyPair { suite: SuiteId::KcEd25519, key, registered: false }] };
    let proxy = net.proxy(config(ORIGIN, 1, false), ring);
    net.link(a, At::Proxy(proxy, 0, Side::Inside));
    net.link(b, At::Proxy(proxy, 0, Side::Outside));
    net.tell(proxy, shared(view(1, &[ORIGIN], &[(ORIGIN, "10.0.0.0/8")])));
    // Both go into one burst, each with attributes of its own.
    net.announce(0, "10.1.0.0/16");
    net.announce_with(0, "10.66.0.0/16", |edit| {
        edit.med(Some(5));
    });
    net.start();
    net.wait(Duration::from_secs(20));
    assert!(net.has(1, "10.1.0.0/16").is_some_and(|route| route.get(ATTRIBUTE).is_some()));
    assert_eq!(net.has(1, "10.66.0.0/16"), None, "what is not signed does not go out as if nobody attested");
    assert_eq!(net.proxies[proxy].status().counts.failed, 1);
    assert!(
        net.events
            .iter()
            .any(|(_, event)| matches!(event, Event::Route { event: RouteEvent::Failed { task: "signing", routes }, .. } if routes.len() == 1))
    );
    // Work goes on, and the route is tried again.
    net.announce(0, "10.2.0.0/16");
    assert!(net.has(1, "10.2.0.0/16").is_some_and(|route| route.get(ATTRIBUTE).is_some()));
    panics.store(false, Ordering::Relaxed);
    net.wait(Duration::from_secs(601));
    assert!(net.has(1, "10.66.0.0/16").is_some_and(|route| route.get(ATTRIBUTE).is_some()));
    assert!(net.speakers.iter().all(|speaker| speaker.ends.is_empty()));
}
