//! What a proxy lets out: nothing that its own policy refuses, nothing that is no longer true, to all neighbours in turn.
//!
//! KCX-35: a proxy behind a border without one: a forged route from inside, a record that changes, a hop that expires,
//! a policy that rejects more: nothing is signed that policy rejects, and what stood before is withdrawn.
//! KCX-36: a few-time key that may not sign yet or any more; five neighbours and four signatures a slot: End-of-RIB
//! behind the routes, six minutes late at most; a changed route is withdrawn until the key may sign; no neighbour is
//! ever more than a slot ahead, and all routes come.
//! KCX-37: keys registered, questions asked, a policy changed while a job that signs is held: none of it waits for the
//! job; what it signed with the old keys is signed again.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use crate::common::few_time::Counting;
use crate::common::network::{Network, pair};
use crate::common::proxy_net::{ATTRIBUTE, At, Net, START, config, p, shared, view};
use wayleave_attestation::pipeline::RouteEvent;
use wayleave_attestation::pipeline::policy::{Policy, Treatment, VerdictClass};
use wayleave_attestation::pki::Vrp;
use wayleave_attestation::proxy::session_pair::Side;
use wayleave_attestation::proxy::{Event, Input};
use wayleave_attestation::sign::{KeyPair, KeyRing};
use wayleave_attestation::suite::SuiteId;
use wayleave_attestation::{SignError, SuiteKey};
use wayleave_bgp::{AsPathBuf, AttributeFlags};
use wayleave_core::{Asn, Machine as _};

const ED: &[SuiteId] = &[SuiteId::KcEd25519];
/// The AS of the proxy, and its neighbour.
const OWN: u32 = 2;
const NEXT: u32 = 3;
const PREFIX: &str = "192.0.2.0/24";

/// The border router of AS 2, inside its proxy, and AS 3 outside. What AS 1 sends comes in elsewhere, where nobody validates.
fn border(ring: KeyRing) -> (Net, Network) {
    let mut net = Net::new();
    let mut network = Network::new(3, ED);
    network.now = START;
    network.register(Asn(OWN));
    net.speaker(OWN);
    net.speaker(NEXT);
    net.speakers[1].is_end = true;
    let sessions = [net.session(0, |_| ()), net.session(1, |_| ())];
    let mut config = config(OWN, 1, false);
    // The prefixes of these tests are in no record of its AS.
    config.pipeline.announces_unauthorised = true;
    let proxy = net.proxy(config, ring);
    net.link(sessions[0], At::Proxy(proxy, 0, Side::Inside));
    net.link(sessions[1], At::Proxy(proxy, 0, Side::Outside));
    net.tell(proxy, shared(network.view.clone()));
    (net, network)
}

fn keys() -> KeyRing {
    KeyRing { pairs: vec![pair(Asn(OWN), SuiteId::KcEd25519, 0)] }
}

/// The slots and numbers of signatures made.
type Signed = Arc<Mutex<Vec<(u64, u64)>>>;

/// A few-time key with so many signatures in each slot, and where it signed.
fn few_time(signatures: u64) -> (KeyRing, Signed) {
    let mut key = Counting::new(&[7; 32], START - 1000);
    key.key = pair(Asn(OWN), SuiteId::KcEd25519, 0).key;
    key.slots.signatures = signatures;
    let signed = Arc::clone(&key.signed);
    let pair = KeyPair { suite: SuiteId::KcEd25519, key: Box::new(key), registered: true };
    (KeyRing { pairs: vec![pair] }, signed)
}

/// The border router announces a route of AS 1 with this attestation, or without one.
fn from_1(net: &mut Net, value: Option<&[u8]>) {
    net.announce_with(0, PREFIX, |edit| {
        edit.as_path(AsPathBuf::from_sequence(&[Asn(1)]).as_path());
        value.into_iter().for_each(|value| {
            edit.set(ATTRIBUTE, AttributeFlags::OPTIONAL_TRANSITIVE, value);
        });
    });
}

fn refused(net: &Net) -> Vec<VerdictClass> {
    let class = |event: &Event| match event {
        Event::Route { event: RouteEvent::Refused { class, .. }, .. } => Some(*class),
        _ => None,
    };
    net.events.iter().filter_map(|(_, event)| class(event)).collect()
}

#[test]
fn a_false_route_that_came_in_elsewhere_is_not_signed_and_what_stood_before_is_withdrawn() {
    let (mut net, mut network) = border(keys());
    net.start();
    let (value, _) = network.chain(&[p(PREFIX)], &[1], OWN);
    from_1(&mut net, Some(&value));
    let hops = |net: &Net| net.proxies[0].pair(0).map(|pair| pair.rib_out(Side::Outside).len());
    assert!(net.has(1, PREFIX).is_some_and(|route| route.get(ATTRIBUTE).is_some()));
    assert_eq!(net.proxies[0].status().pairs[0].counts.extended, 1);
    let mut forged = value.clone();
    *forged.last_mut().expect("octets") ^= 1;
    from_1(&mut net, Some(&forged));
    assert_eq!((net.has(1, PREFIX), hops(&net)), (None, Some(0)));
    assert_eq!(refused(&net), [VerdictClass::Invalid]);
    let status = net.proxies[0].status();
    let (pair, counts) = (&status.pairs[0], status.pairs[0].counts);
    assert_eq!((pair.held_back, pair.first_held_back, pair.rejected_from_inside), (0, None, 1), "others cause it");
    assert_eq!((counts.extended, counts.rejected, counts.wrong > 0), (1, 1, true));
    from_1(&mut net, Some(&value));
    assert!(net.has(1, PREFIX).is_some());
}

#[test]
fn a_route_whose_verdict_changes_is_no_longer_signed() {
    let (mut net, mut network) = border(keys());
    net.start();
    let (value, _) = network.chain(&[p(PREFIX)], &[1], OWN);
    from_1(&mut net, Some(&value));
    assert!(net.has(1, PREFIX).is_some());
    // Another AS alone may originate a part of it from now on.
    let mut other = view(2, &[], &[]);
    other.add_vrp(Vrp { prefix: p(PREFIX), max_length: 24, asn: Asn(9) });
    net.tell(0, shared(other));
    net.settle();
    assert_eq!((net.has(1, PREFIX), refused(&net)), (None, vec![VerdictClass::Invalid]));
    net.tell(0, shared(network.view.clone()));
    net.settle();
    assert!(net.has(1, PREFIX).is_some());
    // And when the origin's hop has expired, which nobody renewed.
    net.wait(Duration::from_secs(26 * 3600));
    assert_eq!((net.has(1, PREFIX), refused(&net).last()), (None, Some(&VerdictClass::Expired)));
}

#[test]
fn what_a_new_policy_rejects_is_withdrawn_from_neighbours_too() {
    let (mut net, _) = border(keys());
    net.start();
    from_1(&mut net, None);
    assert!(net.has(1, PREFIX).is_some(), "unattested, and passed on as it came");
    let mut policy = Policy::default();
    policy.set(VerdictClass::Unattested, Treatment { reject: true, ..Treatment::default() });
    net.tell(0, Input::Policy(policy));
    net.settle();
    assert_eq!((net.has(1, PREFIX), refused(&net)), (None, vec![VerdictClass::Unattested]));
    net.tell(0, Input::Policy(Policy::default()));
    net.settle();
    assert!(net.has(1, PREFIX).is_some());
}

#[test]
fn end_of_rib_comes_after_the_routes_that_waited_for_a_slot_of_time() {
    let (mut net, _) = border(few_time(1_000).0);
    ["10.1.0.0/16", "10.2.0.0/16"].iter().for_each(|prefix| net.announce(0, prefix));
    net.start();
    net.wait(Duration::from_secs(7));
    assert_eq!((net.speakers[1].learned.len(), net.speakers[1].ends_of_rib), (0, 0), "no slot has begun");
    net.wait(Duration::from_secs(10));
    assert_eq!((net.speakers[1].learned.len(), net.speakers[1].ends_of_rib), (2, 1));
}

#[test]
fn end_of_rib_does_not_wait_for_ever_for_a_key_that_never_signs() {
    let (mut net, _) = border(few_time(1_000).0);
    net.announce(0, "10.1.0.0/16");
    net.start();
    net.tell(0, Input::ClockSynchronised(false));
    net.wait(Duration::from_secs(355));
    assert_eq!(net.speakers[1].ends_of_rib, 0);
    net.wait(Duration::from_secs(10));
    assert_eq!((net.speakers[1].learned.len(), net.speakers[1].ends_of_rib), (0, 1));
}

#[test]
fn a_route_that_changes_while_the_key_may_not_sign_is_withdrawn_until_it_may() {
    let (mut net, mut network) = border(few_time(1_000).0);
    net.start();
    net.wait(Duration::from_secs(20));
    net.announce(0, "10.1.0.0/16");
    let (value, _) = network.chain(&[p(PREFIX)], &[1], OWN);
    from_1(&mut net, Some(&value));
    assert_eq!(net.speakers[1].learned.len(), 2);
    net.tell(0, Input::ClockSynchronised(false));
    // The route of AS 1 has a newer attestation alone: what was sent is as true as before.
    network.now += 60;
    let (newer, _) = network.chain(&[p(PREFIX)], &[1], OWN);
    assert_ne!(newer, value);
    from_1(&mut net, Some(&newer));
    let sent = net.has(1, PREFIX).cloned();
    // The own route has another community: perhaps nobody is to have it any more.
    net.announce_with(0, "10.1.0.0/16", |edit| {
        edit.communities(&[wayleave_bgp::Community::NO_EXPORT]);
    });
    net.wait(Duration::from_secs(60));
    assert_eq!((net.has(1, "10.1.0.0/16"), net.has(1, PREFIX).cloned()), (None, sent.clone()));
    net.tell(0, Input::ClockSynchronised(true));
    net.wait(Duration::from_secs(17));
    assert!(net.has(1, "10.1.0.0/16").is_some_and(|route| route.communities().count() == 1));
    assert!(net.has(1, PREFIX).is_some() && net.has(1, PREFIX).cloned() != sent);
}

#[test]
fn scarce_signatures_of_a_few_time_key_serve_all_neighbours_in_turn() {
    const PAIRS: usize = 5;
    const ROUTES: u32 = 30;
    let (ring, signed) = few_time(4);
    let mut net = Net::new();
    net.speaker(OWN);
    let proxy = net.proxy(config(OWN, PAIRS, false), ring);
    for place in 0..PAIRS {
        net.speaker(NEXT + place as u32);
        net.speakers[place + 1].is_end = true;
        let sessions = [net.session(0, |_| ()), net.session(place + 1, |_| ())];
        net.link(sessions[0], At::Proxy(proxy, place, Side::Inside));
        net.link(sessions[1], At::Proxy(proxy, place, Side::Outside));
    }
    // Each has attributes of its own, so that each takes a signature for each neighbour.
    for number in 0..ROUTES {
        net.announce_with(0, &format!("10.{number}.0.0/16"), |edit| {
            edit.communities(&[wayleave_bgp::Community(number)]);
        });
    }
    net.start();
    let has = |net: &Net| -> Vec<usize> { net.speakers[1..].iter().map(|speaker| speaker.learned.len()).collect() };
    for _ in 0..20 {
        net.wait(Duration::from_secs(8));
        let has = has(&net);
        let (least, most) = (has.iter().min().expect("pairs"), has.iter().max().expect("pairs"));
        assert!(most - least <= 4, "{has:?}");
    }
    let made = signed.lock().expect("one thread").len();
    assert_eq!(made, has(&net).iter().sum::<usize>());
    assert!(made >= 4 * 16, "the slots are used: {made}");
    // Within a neighbour, too, nothing is left behind for ever: all come at last, and whoever is to have more gets it.
    for number in ROUTES..2 * ROUTES {
        let mut edit = wayleave_bgp::Attributes::builder();
        edit.origin(wayleave_bgp::Origin::Igp).ipv4_next_hop([192, 0, 2, 1].into());
        edit.as_path(AsPathBuf::from_sequence(&[Asn(OWN)]).as_path());
        edit.communities(&[wayleave_bgp::Community(number)]);
        let (prefix, attributes) = (p(&format!("10.{number}.0.0/16")), Some(edit.finish()));
        net.speakers[0].peers[1].handle(wayleave_bgp::peer::Input::Route { prefix, attributes }, net.now);
    }
    net.wait(Duration::from_secs(8 * 60));
    let mut all = [ROUTES as usize; PAIRS];
    all[1] *= 2;
    assert_eq!(has(&net), all);
}

/// A key whose signature is made when it is released, or after ten seconds, which the test counts as a failure.
struct SlowKey {
    key: Box<dyn SuiteKey>,
    released: Mutex<mpsc::Receiver<()>>,
    late: Arc<Mutex<usize>>,
}

impl SuiteKey for SlowKey {
    fn public(&self) -> &[u8] {
        self.key.public()
    }

    fn sign(&mut self, message: &[u8]) -> Result<Vec<u8>, SignError> {
        let released = self.released.lock().expect("one job at a time");
        if released.recv_timeout(Duration::from_secs(10)).is_err() {
            *self.late.lock().expect("no panic within") += 1;
        }
        self.key.sign(message)
    }
}

#[test]
#[allow(clippy::disallowed_methods, reason = "a job runs beside the test, as a driver would run it")]
fn registrations_and_questions_do_not_wait_for_a_job_that_signs() {
    let (release, released) = mpsc::channel();
    let late = Arc::default();
    let key = pair(Asn(OWN), SuiteId::KcEd25519, 0).key;
    let slow = SlowKey { key, released: Mutex::new(released), late: Arc::clone(&late) };
    let ring = KeyRing { pairs: vec![KeyPair { suite: SuiteId::KcEd25519, key: Box::new(slow), registered: false }] };
    let (mut net, network) = border(ring);
    net.pool = Some(VecDeque::new());
    net.start();
    net.announce(0, PREFIX);
    let (proxy, job) = net.pool.as_mut().and_then(VecDeque::pop_front).expect("a job that signs");
    let job = std::thread::spawn(move || job.run());
    // Other keys are registered, then the own ones again; somebody asks, a policy comes, time passes.
    net.tell(proxy, shared(view(2, &[], &[])));
    assert!(!net.proxies[0].own_keys()[0].registered);
    net.tell(proxy, shared(network.view.clone()));
    assert!(net.proxies[0].own_keys()[0].registered);
    net.tell(proxy, Input::Policy(Policy::default()));
    assert_eq!(net.proxies[0].status().asn, Asn(OWN));
    net.announce(0, "192.0.2.128/25");
    assert_eq!(*late.lock().expect("no panic within"), 0, "something waited until the job was done");
    release.send(()).expect("the key is there");
    let done = job.join().expect("no panic");
    net.tell(proxy, Input::JobDone(done));
    // What was signed before the keys changed is signed again, now as its origin.
    for _ in 0..8 {
        release.send(()).expect("the key is there");
    }
    while net.run_job() {}
    net.settle();
    assert!(net.has(1, PREFIX).is_some_and(|route| route.get(ATTRIBUTE).is_some()));
    assert_eq!(*late.lock().expect("no panic within"), 0);
}
