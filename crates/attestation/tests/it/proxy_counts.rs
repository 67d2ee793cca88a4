//! Few-time keys in the proxy: no signature before its count is durable, and none twice, whenever the proxy dies.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use crate::common::proxy_net::{ATTRIBUTE, At, Net, config, p, seed, shared, view};
use wayleave_attestation::proxy::Proxy;
use wayleave_attestation::proxy::session_pair::Side;
use wayleave_attestation::sign::{KeyPair, KeyRing};
use wayleave_attestation::suite::SuiteId;
use wayleave_attestation::suite::hbs::{HbsKey, Part};
use wayleave_attestation::{SignError, SuiteKey};

const ORIGIN: u32 = 64_496;
const LAST: u32 = 64_497;

/// A few-time key that writes down with which indices it signed.
struct Counting {
    public: Vec<u8>,
    next: u64,
    limit: u64,
    signed: std::sync::Arc<std::sync::Mutex<Vec<u64>>>,
    /// What was durable when it signed.
    durable: std::sync::Arc<std::sync::Mutex<u64>>,
}

impl SuiteKey for Counting {
    fn public(&self) -> &[u8] {
        &self.public
    }

    fn sign(&mut self, _message: &[u8]) -> Result<Vec<u8>, SignError> {
        if self.next >= self.limit {
            return Err(SignError::NotReserved(self.next));
        }
        let durable = *self.durable.lock().expect("one thread");
        assert!(self.next < durable, "signature {} while {durable} are durable", self.next);
        self.signed.lock().expect("one thread").push(self.next);
        self.next += 1;
        Ok(vec![0; 64])
    }

    fn next_index(&self) -> Option<u64> {
        Some(self.next)
    }

    fn reserve(&mut self, from: u64, limit: u64) {
        self.next = self.next.max(from);
        self.limit = self.limit.max(limit);
    }
}

/// The origin's proxy with a counting key, and a speaker on each side.
fn net(key: Counting, used: &HashMap<Vec<u8>, u64>) -> Net {
    let mut net = Net::new();
    net.speaker(ORIGIN);
    net.speaker(LAST);
    let (a, b) = (net.session(0, |_| ()), net.session(1, |_| ()));
    let pair = KeyPair { suite: SuiteId::KcEd25519, key: Box::new(key), registered: true };
    let ring = KeyRing { pairs: vec![pair] };
    net.proxies.push(Proxy::new(config(ORIGIN, 1, false), ring, used, 1, net.now));
    net.link(a, At::Proxy(0, 0, Side::Inside));
    net.link(b, At::Proxy(0, 0, Side::Outside));
    net
}

#[test]
fn a_proxy_killed_between_count_and_signature_never_signs_twice_with_one_index() {
    let signed = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    // The store: what is in it survives.
    let mut store: HashMap<Vec<u8>, u64> = HashMap::new();
    let mut lives = BTreeMap::new();
    for life in 0..1_000u32 {
        let durable = std::sync::Arc::new(std::sync::Mutex::new(0));
        let key = Counting {
            public: vec![7; 32],
            next: 0,
            limit: 0,
            signed: std::sync::Arc::clone(&signed),
            durable: std::sync::Arc::clone(&durable),
        };
        let before = signed.lock().expect("one thread").len();
        let mut net = net(key, &store);
        net.durable = false;
        net.start();
        // Some lives end before the count is durable, some after it is and before word of it came, some later.
        let routes = life % 5;
        for i in 0..routes {
            net.announce(0, &format!("10.{i}.0.0/16"));
        }
        assert_eq!(signed.lock().expect("one thread").len(), before, "signed before the count was durable");
        if life % 3 > 0 {
            for (_, _, public, limit) in net.persists.clone() {
                store.insert(public, limit);
                *durable.lock().expect("one thread") = limit;
            }
        }
        if life % 3 > 1 {
            for (proxy, id, _, _) in std::mem::take(&mut net.persists) {
                net.tell(proxy, wayleave_attestation::proxy::Input::Persisted(id));
            }
            net.settle();
        }
        lives.insert(life, signed.lock().expect("one thread").len() - before);
    }
    let signed = signed.lock().expect("one thread");
    let different: BTreeSet<u64> = signed.iter().copied().collect();
    assert_eq!(different.len(), signed.len(), "an index was used twice");
    assert!(signed.len() > 250, "only {} signatures were made", signed.len());
}

#[test]
fn hash_based_signatures_pass_from_proxy_to_proxy_and_two_parts_never_meet() {
    let known = |mut net: Net| {
        for proxy in 0..net.proxies.len() {
            let mut known = view(1, &[], &[(ORIGIN, "10.0.0.0/8")]);
            let key = HbsKey::new(&seed(ORIGIN, SuiteId::KcHbs), Part::WHOLE);
            known.add_key(
                wayleave_core::Asn(ORIGIN),
                wayleave_attestation::pki::RegisteredKey {
                    suite: SuiteId::KcHbs,
                    public: key.public().to_vec(),
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
    for (number, far) in [(0, 1), (1, 3)] {
        let part = Part::new(number, 2).expect("a part");
        let key: Box<dyn SuiteKey> = Box::new(HbsKey::new(&seed(ORIGIN, SuiteId::KcHbs), part));
        let ring = KeyRing { pairs: vec![KeyPair { suite: SuiteId::KcHbs, key, registered: false }] };
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
    let indices: Vec<Option<u64>> = [0, 2].iter().map(|proxy| net.proxies[*proxy].own_keys()[0].next_index).collect();
    assert_eq!(indices, [Some(1), Some((1 << 19) + 1)]);
    let limits: Vec<u64> = net.persists.iter().map(|(_, _, _, limit)| *limit).collect();
    assert_eq!(limits, [1024, (1 << 19) + 1024]);
}
