//! How long an attestation may be for a neighbour, and what few-time keys lose to it: nothing.
//!
//! KCX-12: a key that nears its end and ends: a warning before, and nothing goes out unsigned after.

use std::collections::HashMap;
use std::time::Duration;

use crate::common::few_time::{Counting, SharedHbs};
use crate::common::proxy_net::{ATTRIBUTE, At, Net, START, config, p, seed, shared, view};
use wayleave_attestation::SuiteKey;
use wayleave_attestation::chain::Attestation;
use wayleave_attestation::pipeline::policy::VerdictClass;
use wayleave_attestation::pipeline::{KeyEnd, ProcessEvent, RouteEvent};
use wayleave_attestation::pki::{RegisteredKey, View};
use wayleave_attestation::proxy::session_pair::Side;
use wayleave_attestation::proxy::{Event, Proxy};
use wayleave_attestation::sign::{KeyPair, KeyRing};
use wayleave_attestation::suite::hbs::{SIGNATURE, SLOT_SIGNATURES};
use wayleave_attestation::suite::{self, SuiteId};
use wayleave_core::Asn;

const ORIGIN: u32 = 64_496;
const MIDDLE: u32 = 64_497;
const LAST: u32 = 64_498;
const PREFIX: &str = "192.0.2.0/24";

fn pairs(asn: u32, suites: &[SuiteId]) -> KeyRing {
    let pair = |id: &SuiteId| {
        let key: Box<dyn SuiteKey> = match id {
            SuiteId::KcHbs => Box::new(SharedHbs::new((asn % 4) as u8, START - 1000)),
            id => suite::of(*id).expect("standard").generate(&seed(asn, *id)),
        };
        KeyPair { suite: *id, key, registered: false }
    };
    KeyRing { pairs: suites.iter().map(pair).collect() }
}

fn known(suites: &[SuiteId]) -> View {
    let mut known = view(1, &[], &[(ORIGIN, PREFIX)]);
    for asn in [ORIGIN, MIDDLE, LAST] {
        for pair in pairs(asn, suites).pairs {
            let public = pair.key.public().to_vec();
            let key = RegisteredKey { suite: pair.suite, public, not_before: 0, not_after: u64::MAX };
            known.add_key(Asn(asn), key);
        }
    }
    known
}

/// Origin, middle and last, each with a proxy that has these keys; the middle's neighbours have extended messages or
/// not.
fn line(suites: &[SuiteId], extended: bool) -> Net {
    let mut net = Net::new();
    for asn in [ORIGIN, MIDDLE, LAST] {
        net.speaker(asn);
    }
    let mut session = |speaker| net.session(speaker, |config| config.offer.extended_message = extended);
    let (origin, left, right, last) = (session(0), session(1), session(1), session(2));
    net.speakers[2].is_end = true;
    let connecting = |asn, pairs: usize| {
        let mut config = config(asn, pairs, false);
        let last = &mut config.pairs[pairs - 1];
        (last.ends[1].connects, last.ends[1].listens) = (true, false);
        // One hash-based hop fits a neighbour without extended messages, two do not.
        last.max_octets = 2_400;
        config
    };
    let a = net.proxy(connecting(ORIGIN, 1), pairs(ORIGIN, suites));
    let b = net.proxy(connecting(MIDDLE, 2), pairs(MIDDLE, suites));
    let c = net.proxy(config(LAST, 1, false), pairs(LAST, suites));
    for (session, proxy, pair) in [(origin, a, 0), (left, b, 0), (right, b, 1), (last, c, 0)] {
        net.link(session, At::Proxy(proxy, pair, Side::Inside));
    }
    net.link(At::Proxy(a, 0, Side::Outside), At::Proxy(b, 0, Side::Outside));
    net.link(At::Proxy(b, 1, Side::Outside), At::Proxy(c, 0, Side::Outside));
    for proxy in [a, b, c] {
        net.tell(proxy, shared(known(suites)));
    }
    net.start();
    net.wait(Duration::from_secs(20));
    net
}

fn suites_at_the_last(net: &Net) -> Vec<u8> {
    let value = net.has(2, PREFIX).and_then(|route| route.get(ATTRIBUTE)).expect("attested").value;
    assert!(value.len() <= 60_000);
    Attestation::decode(value).expect("well formed").hops().map(|hop| hop.suite).collect()
}

/// Signatures that a proxy has made with its first key in this slot.
fn signatures(net: &mut Net, proxy: usize) -> u64 {
    SLOT_SIGNATURES - net.proxies[proxy].own_keys()[0].left.expect("a few-time key")
}

fn class_at_the_last(net: &mut Net) -> VerdictClass {
    net.proxies[2].why(p(PREFIX)).routes[0].class
}

#[test]
fn without_extended_messages_a_smaller_suite_signs_and_no_index_is_lost() {
    let suites = [SuiteId::KcHbs, SuiteId::KcEd25519];
    let mut net = line(&suites, false);
    net.announce(0, PREFIX);
    assert_eq!(suites_at_the_last(&net), [SuiteId::KcHbs as u8, SuiteId::KcEd25519 as u8]);
    assert_eq!(class_at_the_last(&mut net), VerdictClass::Valid);
    assert_eq!(net.proxies[1].status().counts.smaller, 1);
    // The origin signed once, the middle never, with its few-time key.
    assert_eq!((signatures(&mut net, 0), signatures(&mut net, 1)), (1, 0));
}

#[test]
fn with_extended_messages_the_preferred_suite_signs() {
    let suites = [SuiteId::KcHbs, SuiteId::KcEd25519];
    let mut net = line(&suites, true);
    net.announce(0, PREFIX);
    assert_eq!(suites_at_the_last(&net), [SuiteId::KcHbs as u8; 2]);
    assert_eq!(class_at_the_last(&mut net), VerdictClass::Valid);
    assert_eq!(net.proxies[1].status().counts.smaller, 0);
}

#[test]
fn with_a_large_suite_alone_nothing_is_sent_and_no_index_is_lost() {
    let mut net = line(&[SuiteId::KcHbs], false);
    net.announce(0, PREFIX);
    assert_eq!(net.has(2, PREFIX), None);
    let need = net.events.iter().find_map(|(_, event)| match event {
        Event::Route { pair: 1, event: RouteEvent::TooLong { need, .. } } => Some(*need),
        _ => None,
    });
    assert!(need.is_some_and(|need| (2 * SIGNATURE..2 * SIGNATURE + 300).contains(&need)), "{need:?}");
    assert_eq!(signatures(&mut net, 1), 0);
    // Looked at again, and still nothing is lost.
    net.withdraw(0, PREFIX);
    net.announce(0, PREFIX);
    assert_eq!((signatures(&mut net, 0), signatures(&mut net, 1)), (2, 0));
}

#[test]
fn chains_of_p256_router_keys_are_valid() {
    let mut net = line(&[SuiteId::KcP256], true);
    net.announce(0, PREFIX);
    assert_eq!(suites_at_the_last(&net), [SuiteId::KcP256 as u8; 2]);
    assert_eq!(class_at_the_last(&mut net), VerdictClass::Valid);
}

#[test]
fn a_warning_comes_before_a_few_time_key_ends_and_nothing_goes_out_unsigned_after() {
    let mut net = Net::new();
    net.speaker(ORIGIN);
    net.speaker(LAST);
    let (a, b) = (net.session(0, |_| ()), net.session(1, |_| ()));
    let mut key = Counting::new(&[7; 32], START - 800);
    key.slots.count = 107;
    let ring = KeyRing { pairs: vec![KeyPair { suite: SuiteId::KcEd25519, key: Box::new(key), registered: true }] };
    net.proxies.push(Proxy::new(config(ORIGIN, 1, false), ring, &HashMap::new(), 1, net.now));
    net.link(a, At::Proxy(0, 0, Side::Inside));
    net.link(b, At::Proxy(0, 0, Side::Outside));
    net.start();
    net.wait(Duration::from_secs(20));
    net.announce(0, "10.1.0.0/16");
    assert!(net.has(1, "10.1.0.0/16").is_some());
    let warned: Vec<&ProcessEvent> = net
        .events
        .iter()
        .filter_map(|(_, event)| match event {
            Event::Process(event @ ProcessEvent::KeyEnds(_)) => Some(event),
            _ => None,
        })
        .collect();
    let end = KeyEnd { suite: SuiteId::KcEd25519, ends: START + 56, days: 0 };
    assert_eq!(warned, [&ProcessEvent::KeyEnds(end)], "once");
    let status = net.proxies[0].status().few_time_keys;
    assert_eq!((status[0].slot, status[0].ends), (Some(102), START + 56));
    net.wait(Duration::from_secs(40));
    net.announce(0, "10.2.0.0/16");
    assert_eq!(net.has(1, "10.2.0.0/16"), None);
    assert!(
        net.events
            .iter()
            .any(|(_, event)| matches!(event, Event::Route { pair: 0, event: RouteEvent::Exhausted { .. } }))
    );
}
