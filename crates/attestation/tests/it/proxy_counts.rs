//! Few-time keys in the proxy: no signature before its slot of time is durable, and no index twice, whenever the proxy
//! dies and whatever becomes of its store.
//!
//! KCX-12: 300 lives of a proxy in virtual time; a clock that is not synchronised: no index signs twice; routes wait,
//! are not withdrawn.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::few_time::Counting;
use crate::common::proxy_net::{ATTRIBUTE, At, Net, START, config, p, seed, shared, view};
use wayleave_attestation::SuiteKey;
use wayleave_attestation::chain::Attestation;
use wayleave_attestation::pipeline::{ProcessEvent, WaitReason};
use wayleave_attestation::proxy::session_pair::Side;
use wayleave_attestation::proxy::{Event, Input, Proxy};
use wayleave_attestation::sign::{KeyPair, KeyRing};
use wayleave_attestation::suite::SuiteId;
use wayleave_attestation::suite::hbs::{HbsKey, Part};

const ORIGIN: u32 = 64_496;
const LAST: u32 = 64_497;

/// By key, the last slot that is durable.
type Stored = HashMap<Vec<u8>, u64>;

/// Indices of a few-time key, each a slot and a number in it, in the order of their use.
type Signed = Arc<Mutex<Vec<(u64, u64)>>>;

/// The origin's proxy with a few-time key, so many seconds after the beginning, and a speaker on each side.
fn net(signed: &Signed, durable: &Arc<Mutex<Option<u64>>>, stored: &Stored, secs: u64) -> Net {
    let mut net = Net::new();
    net.now.unix.0 += secs * 1_000_000;
    net.speaker(ORIGIN);
    net.speaker(LAST);
    let (a, b) = (net.session(0, |_| ()), net.session(1, |_| ()));
    let (signed, durable) = (Arc::clone(signed), Arc::clone(durable));
    let key = Counting { signed, durable, ..Counting::new(&[7; 32], START - 1000) };
    let pair = KeyPair { suite: SuiteId::KcEd25519, key: Box::new(key), registered: true };
    let ring = KeyRing { pairs: vec![pair] };
    net.proxies.push(Proxy::new(config(ORIGIN, 1, false), ring, stored, 1, net.now));
    net.link(a, At::Proxy(0, 0, Side::Inside));
    net.link(b, At::Proxy(0, 0, Side::Outside));
    net.durable = false;
    net
}

/// What the proxy asked to be made durable is in the store.
fn write(net: &Net, stored: &mut Stored, durable: &Mutex<Option<u64>>) {
    for (_, _, public, slot) in &net.persists {
        stored.insert(public.clone(), *slot);
        *durable.lock().expect("one thread") = Some(*slot);
    }
}

/// The proxy learns of it.
fn tell(net: &mut Net) {
    for (proxy, id, _, _) in std::mem::take(&mut net.persists) {
        net.tell(proxy, Input::Persisted(id));
    }
    net.settle();
}

fn assert_distinct(signed: &Signed) {
    let signed = signed.lock().expect("one thread");
    let distinct: BTreeSet<&(u64, u64)> = signed.iter().collect();
    assert_eq!(distinct.len(), signed.len(), "an index was used twice");
}

#[test]
fn a_proxy_killed_at_any_point_never_signs_twice_with_one_index_though_its_store_is_lost() {
    let signed = Signed::default();
    let (mut stored, mut copy) = (Stored::new(), Stored::new());
    let mut secs = 0;
    for life in 0..300u32 {
        let durable = Arc::default();
        let before = signed.lock().expect("one thread").len();
        let count = || signed.lock().expect("one thread").len() - before;
        let mut net = net(&signed, &durable, &stored, secs);
        net.start();
        for i in 0..life % 5 {
            net.announce(0, &format!("10.{i}.0.0/16"));
        }
        assert_eq!((count(), net.persists.len()), (0, 0), "a start uses nothing up");
        // Some lives end at once, some before the slot is durable, some after it is and before word of it came, some later.
        if life % 4 == 0 {
            secs += 1;
            continue;
        }
        net.wait(Duration::from_secs(16));
        assert_eq!(count(), 0, "signed before the slot was durable");
        if life % 3 > 0 {
            write(&net, &mut stored, &durable);
        }
        if life % 3 > 1 {
            tell(&mut net);
            // One signature serves all prefixes of a list.
            assert_eq!(count(), usize::from(life % 5 > 0), "within two slots");
        }
        secs += 16 + u64::from(life % 9);
        match life % 13 {
            1 | 7 => stored.clear(),
            2 | 5 | 11 => stored = copy.clone(),
            3 | 8 => copy = stored.clone(),
            _ => {}
        }
    }
    assert_distinct(&signed);
    let signed = signed.lock().expect("one thread");
    assert!(signed.len() > 50, "only {} signatures were made", signed.len());
}

#[test]
fn routes_wait_and_are_not_withdrawn_while_the_clock_is_not_synchronised() {
    let (signed, durable) = (Signed::default(), Arc::new(Mutex::new(Some(u64::MAX))));
    let mut net = net(&signed, &durable, &Stored::new(), 0);
    net.durable = true;
    net.start();
    net.wait(Duration::from_secs(20));
    net.announce(0, "10.1.0.0/16");
    assert!(net.has(1, "10.1.0.0/16").is_some());
    net.tell(0, Input::ClockSynchronised(false));
    net.announce(0, "10.2.0.0/16");
    net.announce(0, "10.1.0.0/16");
    net.wait(Duration::from_secs(60));
    assert!(net.has(1, "10.1.0.0/16").is_some(), "what was sent stands");
    assert!(net.has(1, "10.2.0.0/16").is_none());
    let waits = |net: &Net, reason| {
        let is_wait =
            |event: &Event| matches!(event, Event::Process(ProcessEvent::KeyWaits(wait)) if wait.reason == reason);
        net.events.iter().filter(|(_, event)| is_wait(event)).count()
    };
    assert_eq!(waits(&net, WaitReason::ClockNotSynchronised), 1, "told once");
    assert_eq!(net.proxies[0].status().few_time_keys[0].waits, Some(WaitReason::ClockNotSynchronised));
    net.tell(0, Input::ClockSynchronised(true));
    net.wait(Duration::from_secs(16));
    assert!(net.has(1, "10.2.0.0/16").is_some());
    assert_distinct(&signed);
}

#[test]
fn hash_based_signatures_pass_from_proxy_to_proxy_and_two_parts_never_meet() {
    let key = |number| HbsKey::new(&seed(ORIGIN, SuiteId::KcHbs), START - 1000, Part::new(number, 2).expect("a part"));
    let keys = [key(0), key(1)];
    let public = keys[0].public().to_vec();
    assert_eq!(keys[1].public(), public);
    let known = |mut net: Net| {
        for proxy in 0..net.proxies.len() {
            let mut known = view(1, &[], &[(ORIGIN, "10.0.0.0/8")]);
            known.add_key(
                wayleave_core::Asn(ORIGIN),
                wayleave_attestation::pki::RegisteredKey {
                    suite: SuiteId::KcHbs,
                    public: public.clone(),
                    not_before: 0,
                    not_after: u64::MAX,
                },
            );
            net.tell(proxy, shared(known));
        }
        net
    };
    let mut net = Net::new();
    net.speaker(ORIGIN);
    net.speaker(LAST);
    net.speaker(LAST);
    let sessions = [net.session(0, |_| ()), net.session(1, |_| ()), net.session(0, |_| ()), net.session(2, |_| ())];
    // Two proxies of the origin hold the same key, each its part.
    for (key, (number, far)) in keys.into_iter().zip([(0u16, 1), (1, 3)]) {
        let ring = KeyRing { pairs: vec![KeyPair { suite: SuiteId::KcHbs, key: Box::new(key), registered: false }] };
        let mut outgoing = config(ORIGIN, 1, false);
        (outgoing.pairs[0].ends[1].connects, outgoing.pairs[0].ends[1].listens) = (true, false);
        let own = net.proxy(outgoing, ring);
        let other = net.proxy(config(LAST, 1, false), KeyRing::default());
        net.link(sessions[usize::from(number) * 2], At::Proxy(own, 0, Side::Inside));
        net.link(sessions[far], At::Proxy(other, 0, Side::Inside));
        net.link(At::Proxy(own, 0, Side::Outside), At::Proxy(other, 0, Side::Outside));
    }
    let mut net = known(net);
    net.start();
    net.wait(Duration::from_secs(20));
    net.announce(0, "10.1.0.0/16");
    for speaker in [1, 2] {
        assert!(net.has(speaker, "10.1.0.0/16").is_some_and(|route| route.get(ATTRIBUTE).is_some()));
    }
    for proxy in [1, 3] {
        let why = net.proxies[proxy].why(p("10.1.0.0/16"));
        assert!(why.routes[0].hops[0].proved, "{why:?}");
    }
    let within_slot = |speaker: usize| {
        let route = net.has(speaker, "10.1.0.0/16").expect("a route");
        let value = route.get(ATTRIBUTE).expect("attested").value;
        let signature = Attestation::decode(value).expect("well formed").last_hop().expect("a hop").signature.to_vec();
        signature[..5].iter().fold(0, |index, octet| index << 8 | u64::from(*octet)) % (1 << 14)
    };
    assert_eq!([1, 2].map(within_slot), [0, 1 << 13]);
    let slots: Vec<u64> = net.persists.iter().map(|(_, _, _, slot)| *slot).collect();
    assert_eq!(slots, [(1000 + 20) / 8 + 1; 2], "the slot of now, and the next");
}
