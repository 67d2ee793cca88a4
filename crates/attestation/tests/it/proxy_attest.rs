//! Proxies of several ASes back to back: what is proved, what policy does with it, and what bad peers get.
//!
//! KCX-16: a router that aggregates behind its proxy: nothing signed, the value as it came.
//! BGP-12: an attested UPDATE above 4,096 octets to a peer with and without extended messages: sent, or sent with a
//! smaller suite, or not at all and counted.

use std::collections::HashMap;
use std::time::Duration;

use crate::common::proxy_net::{ATTRIBUTE, At, Net, START, attested, config, p, ring, seed, shared, update, view};
use wayleave_attestation::pipeline::policy::{Treatment, VerdictClass};
use wayleave_attestation::pipeline::{ProcessEvent, RouteEvent};
use wayleave_attestation::pki::{RegisteredKey, Strictness};
use wayleave_attestation::proxy::session_pair::Side;
use wayleave_attestation::proxy::{Event, Input, ProxyConfig};
use wayleave_attestation::report::Lack;
use wayleave_attestation::sign::KeyRing;
use wayleave_attestation::suite::SuiteId;
use wayleave_bgp::{
    AsPathBuf, AttributeCode, AttributeFlags, Attributes, AttributesEditor, LargeCommunity, SegmentKind,
};
use wayleave_core::Asn;

const ED: &[SuiteId] = &[SuiteId::KcEd25519];
const ORIGIN: u32 = 64_496;
const MIDDLE: u32 = 64_497;
const LAST: u32 = 64_498;
const PREFIX: &str = "192.0.2.0/24";

/// A line of ASes: speaker 0 is the origin's. Those in `attesting` have a proxy at each of their sessions.
struct AsChain {
    net: Net,
    /// By place in the line, the proxy's number.
    proxies: Vec<Option<usize>>,
}

impl AsChain {
    fn new(asns: &[u32], attesting: &[u32], change: impl Fn(&mut ProxyConfig)) -> Self {
        Self::with(asns, attesting, change, |asn| ring(asn, ED))
    }

    fn with(asns: &[u32], attesting: &[u32], change: impl Fn(&mut ProxyConfig), keys: impl Fn(u32) -> KeyRing) -> Self {
        let mut net = Net::new();
        let mut proxies = Vec::new();
        for (place, asn) in asns.iter().enumerate() {
            net.speaker(*asn);
            let sessions = usize::from(place > 0) + usize::from(place + 1 < asns.len());
            let proxy = attesting.contains(asn).then(|| {
                let mut config = config(*asn, sessions, false);
                // The last pair faces the next AS and connects there.
                if place + 1 < asns.len() {
                    let end = &mut config.pairs[sessions - 1].ends[1];
                    (end.connects, end.listens) = (true, false);
                }
                change(&mut config);
                net.proxy(config, keys(*asn))
            });
            proxies.push(proxy);
        }
        for place in 0..asns.len() - 1 {
            let mut ends = Vec::new();
            for (place, pair) in [(place, usize::from(place > 0)), (place + 1, 0)] {
                let session = net.session(place, |_| ());
                ends.push(match proxies[place] {
                    Some(proxy) => {
                        net.link(session, At::Proxy(proxy, pair, Side::Inside));
                        At::Proxy(proxy, pair, Side::Outside)
                    }
                    None => session,
                });
            }
            net.link(ends[0], ends[1]);
        }
        let last = asns.len() - 1;
        net.speakers[last].is_end = true;
        Self { net, proxies }
    }

    fn start(&mut self, known: impl Fn() -> wayleave_attestation::pki::View) {
        for proxy in self.proxies.clone().into_iter().flatten() {
            self.net.tell(proxy, shared(known()));
        }
        self.net.start();
        // Proxies that connect wait a moment, and others for them.
        self.net.wait(Duration::from_secs(20));
    }

    fn class(&mut self, place: usize, prefix: &str) -> Option<VerdictClass> {
        let proxy = self.proxies[place]?;
        let why = self.net.proxies[proxy].why(p(prefix));
        why.routes.iter().find(|route| route.direction == "in").map(|route| route.class)
    }
}

fn known() -> wayleave_attestation::pki::View {
    view(1, &[ORIGIN, MIDDLE, LAST], &[(ORIGIN, PREFIX), (ORIGIN, "10.0.0.0/8")])
}

/// The middle signs whatever its router announces, as a careless or corrupt AS does.
fn careless(config: &mut ProxyConfig) {
    if config.pipeline.asn == Asn(MIDDLE) {
        config.pipeline.announces_unauthorised = true;
        for class in VerdictClass::ALL {
            config.pipeline.policy.set(class, Treatment::default());
        }
    }
}

fn three() -> AsChain {
    let mut line = AsChain::new(&[ORIGIN, MIDDLE, LAST], &[ORIGIN, MIDDLE, LAST], careless);
    line.start(known);
    line
}

/// Changes what one speaker passes on from now on, by telling its peer so.
fn forge(net: &mut Net, at: At, prefix: &str, change: impl FnOnce(&mut AttributesEditor)) {
    let At::Speaker(speaker, place) = at else { panic!("a speaker") };
    let passed = net.speakers[speaker].peers[place].adj_rib_out().desired().find(|(nlri, _)| nlri.prefix == p(prefix));
    let mut edit = passed.expect("it passes it on").1.edit();
    change(&mut edit);
    let input = wayleave_bgp::peer::Input::Route { prefix: p(prefix), attributes: Some(edit.finish()) };
    use wayleave_core::Machine;
    net.speakers[speaker].peers[place].handle(input, net.now);
    net.wait(Duration::from_millis(1));
}

#[test]
fn a_path_of_attesting_ases_is_valid_at_its_end() {
    let mut line = three();
    line.net.announce(0, PREFIX);
    assert_eq!(line.class(1, PREFIX), Some(VerdictClass::Valid));
    assert_eq!(line.class(2, PREFIX), Some(VerdictClass::Valid));
    let route = line.net.has(2, PREFIX).expect("it came");
    assert!(route.get(ATTRIBUTE).is_some());
    let why = line.net.proxies[line.proxies[2].expect("a proxy")].why(p(PREFIX));
    let hops: Vec<(Asn, bool)> = why.routes[0].hops.iter().map(|hop| (hop.asn, hop.proved)).collect();
    assert_eq!(hops, [(Asn(ORIGIN), true), (Asn(MIDDLE), true)]);
    line.net.withdraw(0, PREFIX);
    assert_eq!(line.net.has(2, PREFIX), None);
}

#[test]
fn prepending_is_signed_for() {
    let mut line = three();
    line.net.announce_with(0, PREFIX, |edit| {
        edit.prepend(Asn(ORIGIN), 2);
    });
    assert_eq!(line.class(2, PREFIX), Some(VerdictClass::Valid));
    // Taking one away shortens the path, and breaks it.
    forge(&mut line.net, At::Speaker(1, 1), PREFIX, |edit| {
        let path = wayleave_bgp::AsPathBuf::from_sequence(&[Asn(MIDDLE), Asn(ORIGIN)]);
        edit.as_path(path.as_path());
    });
    assert_eq!(line.class(2, PREFIX), Some(VerdictClass::Invalid));
    assert_eq!(line.net.has(2, PREFIX), None);
}

#[test]
fn an_as_without_attestation_in_the_middle_is_a_gap_and_gets_no_private_key() {
    let mut line = AsChain::new(&[ORIGIN, MIDDLE, LAST, 64_499], &[ORIGIN, LAST, 64_499], |_| ());
    line.start(known);
    line.net.announce(0, PREFIX);
    assert_eq!(line.class(2, PREFIX), Some(VerdictClass::Gap));
    assert_eq!(line.class(3, PREFIX), Some(VerdictClass::Gap));
    let proxy = line.proxies[3].expect("a proxy");
    let why = line.net.proxies[proxy].why(p(PREFIX));
    let hops: Vec<(u32, bool)> = why.routes[0].hops.iter().map(|hop| (hop.asn.0, hop.proved)).collect();
    assert_eq!(hops, [(ORIGIN, true), (MIDDLE, false), (LAST, true)]);
    assert!(why.routes[0].hops[1].words.contains("gap"));
    // KCX-10: no octet of a seed on any wire.
    for octets in line.net.seen.values() {
        for asn in [ORIGIN, LAST, 64_499] {
            let seed = seed(asn, SuiteId::KcEd25519);
            assert!(!octets.windows(8).any(|window| seed.expose().starts_with(window)));
        }
    }
}

#[test]
fn a_path_shorter_than_the_real_one_is_refused() {
    let mut line = three();
    line.net.announce(0, PREFIX);
    forge(&mut line.net, At::Speaker(1, 1), PREFIX, |edit| {
        // The middle leaves the origin out: it would be one hop long.
        edit.as_path(wayleave_bgp::AsPathBuf::from_sequence(&[Asn(MIDDLE)]).as_path());
    });
    assert_eq!(line.class(2, PREFIX), Some(VerdictClass::Invalid));
    assert_eq!(line.net.has(2, PREFIX), None);
}

#[test]
fn a_neighbour_that_leaves_itself_out_is_refused() {
    // Nothing claims an attestation here, so that only the session knows who the neighbour is.
    for is_route_server in [false, true] {
        let mut line = AsChain::new(&[ORIGIN, MIDDLE, LAST], &[LAST], |config| {
            config.pairs.iter_mut().for_each(|pair| pair.ends[1].first_as = !is_route_server);
        });
        line.start(known);
        line.net.announce(0, PREFIX);
        assert!(line.net.has(2, PREFIX).is_some());
        forge(&mut line.net, At::Speaker(1, 1), PREFIX, |edit| {
            edit.as_path(wayleave_bgp::AsPathBuf::from_sequence(&[Asn(ORIGIN)]).as_path());
        });
        assert_eq!(line.net.has(2, PREFIX).is_some(), is_route_server);
        assert!(line.net.speakers.iter().all(|speaker| speaker.ends.is_empty()));
    }
}

#[test]
fn a_clock_that_is_set_back_signs_all_sent_routes_again() {
    let mut line = three();
    line.net.announce(0, PREFIX);
    let before = line.net.has(2, PREFIX).and_then(|route| route.get(ATTRIBUTE)).map(|value| value.value.to_vec());
    line.net.now.unix.0 -= 3_000 * 1_000_000;
    line.net.fire();
    line.net.wait(Duration::from_secs(1));
    let after = line.net.has(2, PREFIX).and_then(|route| route.get(ATTRIBUTE)).map(|value| value.value.to_vec());
    assert!(after.is_some() && after != before);
    assert_eq!(line.class(2, PREFIX), Some(VerdictClass::Valid));
}

#[test]
fn an_origin_that_may_not_announce_a_prefix_is_refused_though_it_signs() {
    let mut line = three();
    line.net.announce(1, "10.1.0.0/16");
    assert_eq!(line.class(2, "10.1.0.0/16"), Some(VerdictClass::Invalid));
    assert_eq!(line.net.has(2, "10.1.0.0/16"), None);
}

#[test]
fn a_stripped_attribute_is_invalid_worse_or_nothing_as_the_origin_says() {
    for (strictness, class) in [
        (Some(Strictness::Strict), VerdictClass::Invalid),
        (Some(Strictness::Prefer), VerdictClass::Missing),
        (None, VerdictClass::Unattested),
    ] {
        // The middle does not attest, and takes the attribute off.
        let mut line = AsChain::new(&[ORIGIN, MIDDLE, LAST], &[ORIGIN, LAST], |config| {
            config.pipeline.policy.set(VerdictClass::Missing, Treatment { med: Some(900), ..Treatment::default() });
        });
        line.net.speakers[1].strips = true;
        line.start(|| {
            let mut known = known();
            strictness.into_iter().for_each(|strictness| attested(&mut known, ORIGIN, strictness));
            known
        });
        line.net.announce(0, PREFIX);
        assert_eq!(line.class(2, PREFIX), Some(class));
        let came = line.net.has(2, PREFIX).map(Attributes::med);
        let expected = match class {
            VerdictClass::Invalid => None,
            VerdictClass::Missing => Some(Some(900)),
            _ => Some(None),
        };
        assert_eq!(came, expected, "{class:?}");
    }
}

#[test]
fn what_came_in_at_one_border_router_is_signed_at_the_other() {
    // Origin, then one AS with two border routers and a proxy at each, then the last.
    let mut net = Net::new();
    for asn in [ORIGIN, MIDDLE, MIDDLE, LAST] {
        net.speaker(asn);
    }
    let origin = net.session(0, |_| ());
    let ingress = net.session(1, |_| ());
    let internal = |config: &mut wayleave_bgp::session::Config| {
        config.peer_asn = wayleave_bgp::session::PeerAsn::Exactly(Asn(MIDDLE));
    };
    let (inner1, inner2) = (net.session(1, internal), net.session(2, internal));
    let egress = net.session(2, |_| ());
    let last = net.session(3, |_| ());
    net.speakers[3].is_end = true;
    let outgoing = |asn| {
        let mut config = config(asn, 1, false);
        (config.pairs[0].ends[1].connects, config.pairs[0].ends[1].listens) = (true, false);
        config
    };
    let a = net.proxy(outgoing(ORIGIN), ring(ORIGIN, ED));
    let b1 = net.proxy(config(MIDDLE, 1, false), ring(MIDDLE, ED));
    let b2 = net.proxy(outgoing(MIDDLE), ring(MIDDLE, ED));
    let c = net.proxy(config(LAST, 1, false), ring(LAST, ED));
    for (session, proxy) in [(origin, a), (ingress, b1), (egress, b2), (last, c)] {
        net.link(session, At::Proxy(proxy, 0, Side::Inside));
        net.tell(proxy, shared(known()));
    }
    net.link(inner1, inner2);
    net.link(At::Proxy(a, 0, Side::Outside), At::Proxy(b1, 0, Side::Outside));
    net.link(At::Proxy(b2, 0, Side::Outside), At::Proxy(c, 0, Side::Outside));
    net.start();
    net.wait(Duration::from_secs(20));
    net.announce(0, PREFIX);
    let why = net.proxies[c].why(p(PREFIX));
    assert_eq!(why.routes.first().map(|route| route.class), Some(VerdictClass::Valid), "{why:?}");
    assert!(net.has(3, PREFIX).is_some());
}

#[test]
fn a_list_of_thirty_prefixes_that_a_router_splits_still_verifies() {
    let mut line = AsChain::new(&[ORIGIN, MIDDLE, LAST], &[ORIGIN, LAST], |_| ());
    line.net.speakers[1].strips = false;
    for i in 0..30 {
        line.net.announce(0, &format!("10.{i}.0.0/16"));
    }
    line.start(known);
    let prefixes: Vec<String> = (0..30).map(|i| format!("10.{i}.0.0/16")).collect();
    for prefix in &prefixes {
        assert_eq!(line.class(2, prefix), Some(VerdictClass::Gap), "{prefix}");
    }
    // One list: one attribute for all.
    let values: std::collections::BTreeSet<Vec<u8>> = line.net.speakers[1]
        .learned
        .values()
        .map(|route| route.get(ATTRIBUTE).expect("attested").value.to_vec())
        .collect();
    assert_eq!(values.len(), 1);
    // Split and changed by the router in the middle, one by one.
    for prefix in prefixes.iter().take(5) {
        forge(&mut line.net, At::Speaker(1, 1), prefix, |edit| {
            edit.med(Some(5));
        });
        assert_eq!(line.class(2, prefix), Some(VerdictClass::Gap), "{prefix}");
    }
}

#[test]
fn one_prefix_outside_the_list_does_not_harm_the_others_of_its_update() {
    let mut line = three();
    line.net.announce(0, PREFIX);
    // The middle's speaker puts another prefix under the same attributes.
    let passed = line.net.speakers[1].peers[1].adj_rib_out().desired().next().map(|(_, passed)| (**passed).clone());
    let mut nlri = vec![24, 192, 0, 2];
    nlri.extend_from_slice(&[16, 10, 9]);
    let attributes = passed.expect("it passes it on");
    line.net.inject(At::Speaker(1, 1), &update(attributes.as_octets(), &nlri));
    assert_eq!(line.class(2, PREFIX), Some(VerdictClass::Valid));
    assert_eq!(line.class(2, "10.9.0.0/16"), Some(VerdictClass::Invalid));
    assert!(line.net.has(2, PREFIX).is_some());
    assert_eq!(line.net.has(2, "10.9.0.0/16"), None);
}

#[test]
fn an_as_whose_keys_are_not_those_of_its_profile_signs_nothing_and_says_so() {
    let mut line = AsChain::new(&[ORIGIN, LAST], &[ORIGIN, LAST], |_| ());
    // The profile of the origin has another key than its proxy: that of another AS, so that it is one.
    let other = |generation| {
        let mut view = view(generation, &[LAST], &[(ORIGIN, PREFIX)]);
        let pair = ring(MIDDLE, ED).pairs.remove(0);
        let public = pair.key.public().to_vec();
        let key = RegisteredKey { suite: pair.suite, public, not_before: START - 3600, not_after: START + 86_400 };
        view.add_key(Asn(ORIGIN), key);
        attested(&mut view, ORIGIN, Strictness::Strict);
        view
    };
    line.start(|| other(1));
    line.net.announce(0, PREFIX);
    let proxy = line.proxies[0].expect("a proxy");
    let is_unregistered = |event: &Event| matches!(event, Event::Process(ProcessEvent::KeysUnregistered { asn: Asn(ORIGIN), keys }) if keys.len() == 1);
    let said = line.net.events.iter().filter(|(of, event)| *of == proxy && is_unregistered(event)).count();
    assert_eq!(said, 1, "once");
    assert_eq!(line.net.proxies[proxy].status().unregistered_keys.len(), 1);
    let why = line.net.proxies[proxy].why(p(PREFIX));
    assert!(why.routes[0].outcome.starts_with("sent unsigned"), "{why:?}");
    assert!(why.routes[0].advice.cure.contains("have the key registered"), "{why:?}");
    assert_eq!(line.net.proxies[proxy].own_keys()[0].state, "not registered yet: signs nothing");
    assert_eq!(line.class(1, PREFIX), Some(VerdictClass::Invalid));
    // It is registered: it signs, and that is said too.
    let mut registered = view(2, &[ORIGIN, LAST], &[(ORIGIN, PREFIX)]);
    attested(&mut registered, ORIGIN, Strictness::Strict);
    for proxy in line.proxies.clone().into_iter().flatten() {
        line.net.tell(proxy, shared(registered.clone()));
    }
    line.net.wait(Duration::from_secs(1));
    assert_eq!(line.class(1, PREFIX), Some(VerdictClass::Valid));
    let signs = |event: &Event| matches!(event, Event::Process(ProcessEvent::OtherKeySigns { before: None, .. }));
    assert!(line.net.events.iter().any(|(of, event)| *of == proxy && signs(event)));
    let keys = line.net.proxies[proxy].own_keys();
    assert_eq!((keys[0].state, keys[0].routes), ("signs", 1));
    assert!(line.net.proxies[proxy].status().unregistered_keys.is_empty());
    // Without a profile, and with a record that says `strict`: own routes would be invalid at others, and it says so.
    let no_profile = |strictness| {
        let mut view = view(4, &[LAST], &[(ORIGIN, PREFIX)]);
        attested(&mut view, ORIGIN, strictness);
        view
    };
    line.net.tell(proxy, shared(no_profile(Strictness::Strict)));
    line.net.wait(Duration::from_secs(1));
    assert_eq!(line.net.proxies[proxy].status().unregistered_keys.len(), 1);
    let said = line.net.events.iter().filter(|(of, event)| *of == proxy && is_unregistered(event)).count();
    assert_eq!(said, 2, "once more");
    line.net.tell(proxy, shared(no_profile(Strictness::Prefer)));
    line.net.wait(Duration::from_secs(1));
    assert!(line.net.proxies[proxy].status().unregistered_keys.is_empty(), "unsigned routes are no worse than others");
    line.net.tell(proxy, shared(registered.clone()));
    line.net.wait(Duration::from_secs(1));
    // Its neighbour has another profile of it: the hop is broken there, and no gap.
    let last = line.proxies[1].expect("a proxy");
    line.net.tell(last, shared(other(3)));
    line.net.wait(Duration::from_secs(1));
    let why = line.net.proxies[last].why(p(PREFIX));
    assert!(why.routes[0].hops[0].broken && !why.routes[0].hops[0].words.contains("gap"), "{why:?}");
}

#[test]
fn own_routes_that_leave_unsigned_say_what_is_missing() {
    let cases: [(&[SuiteId], Strictness, &str, &str); 2] = [
        (&[], Strictness::Prefer, "sent on without an attestation of ours", "else set `signing`"),
        (ED, Strictness::PostQuantum, "record requires a post-quantum suite", "--suite kc-hbs"),
    ];
    for (suites, strictness, outcome, cure) in cases {
        let keys = |asn| ring(asn, if asn == ORIGIN { suites } else { ED });
        let mut line = AsChain::with(&[ORIGIN, LAST], &[ORIGIN, LAST], |_| (), keys);
        line.start(|| {
            let mut view = view(1, &[ORIGIN, LAST], &[(ORIGIN, PREFIX)]);
            attested(&mut view, ORIGIN, strictness);
            view
        });
        line.net.announce(0, PREFIX);
        let why = line.net.proxies[line.proxies[0].expect("a proxy")].why(p(PREFIX));
        assert!(why.routes[0].outcome.contains(outcome), "{why:?}");
        assert!(why.routes[0].advice.cure.contains(cure), "{why:?}");
    }
}

#[test]
fn an_old_key_of_each_suite_is_no_longer_needed_once_what_it_signed_is_over() {
    let two = &[SuiteId::KcEd25519, SuiteId::KcP256];
    let mut net = Net::new();
    let proxy = net.proxy(config(ORIGIN, 1, false), ring(ORIGIN, two));
    let mut registered = view(1, &[], &[]);
    for pair in [ORIGIN, MIDDLE].into_iter().flat_map(|of| ring(of, two).pairs) {
        let public = pair.key.public().to_vec();
        let key =
            RegisteredKey { suite: pair.suite, public, not_before: START - 3600, not_after: START + 400 * 86_400 };
        registered.add_key(Asn(ORIGIN), key);
    }
    net.tell(proxy, shared(registered));
    net.tell(proxy, Input::Keys(ring(MIDDLE, two), HashMap::new()));
    let states = |net: &mut Net| net.proxies[proxy].own_keys().iter().map(|key| key.state).collect::<Vec<_>>();
    let (signs, other) = ("signs", "signs what the first does not fit");
    let keep = "replaced: keep it registered while what it signed holds";
    assert_eq!(states(&mut net), [signs, other, keep, keep]);
    let until: Vec<Option<u64>> = net.proxies[proxy].own_keys().iter().map(|key| key.needed_until).collect();
    assert!(until[..2] == [None, None] && until[2].is_some_and(|until| until >= START + 3600), "{until:?}");
    // What was signed before the start is over, too.
    net.wait(Duration::from_secs(25 * 3600));
    let over = "replaced, no longer needed: take it out of the profile";
    assert_eq!(states(&mut net), [signs, other, over, over]);
}

#[test]
fn routes_are_validated_again_when_a_record_changes() {
    let mut line = three();
    line.net.announce(0, PREFIX);
    let proxy = line.proxies[2].expect("a proxy");
    line.net.tell(proxy, shared(view(2, &[ORIGIN, MIDDLE, LAST], &[(MIDDLE, PREFIX)])));
    line.net.settle();
    assert_eq!(line.net.has(2, PREFIX), None);
    line.net.tell(proxy, shared(known()));
    line.net.settle();
    assert!(line.net.has(2, PREFIX).is_some());
}

#[test]
fn routes_are_validated_again_when_a_chain_expires_and_origins_sign_again_before() {
    let mut line = AsChain::new(&[ORIGIN, MIDDLE, LAST], &[ORIGIN, MIDDLE, LAST], |config| {
        careless(config);
        config.pipeline.policy.set(VerdictClass::Valid, Treatment { large_community: tag(1), ..Treatment::default() });
    });
    line.start(known);
    line.net.announce(0, PREFIX);
    let first = line.net.has(2, PREFIX).and_then(|route| route.get(ATTRIBUTE)).map(|found| found.value.to_vec());
    line.net.wait(Duration::from_secs(20 * 3600));
    let second = line.net.has(2, PREFIX).and_then(|route| route.get(ATTRIBUTE)).map(|found| found.value.to_vec());
    assert!(second.is_some() && first != second, "the origin signs again");
    assert_eq!(line.class(2, PREFIX), Some(VerdictClass::Valid));
    let renewed = line.net.proxies[line.proxies[0].expect("a proxy")].status().counts.renewed;
    assert!(renewed >= 1);
    // The middle does not pass renewals on any more: what the last has expires.
    line.net.speakers[1].is_deaf = true;
    line.net.wait(Duration::from_secs(30 * 3600));
    assert_eq!(line.class(2, PREFIX), Some(VerdictClass::Expired));
    assert_eq!(line.net.has(2, PREFIX), None);
}

#[test]
fn our_own_as_on_a_path_is_a_loop_and_nobody_s_false_claim() {
    let mut line = three();
    line.net.announce(0, PREFIX);
    forge(&mut line.net, At::Speaker(1, 1), PREFIX, |edit| {
        let path = wayleave_bgp::AsPathBuf::from_sequence(&[Asn(MIDDLE), Asn(LAST), Asn(ORIGIN)]);
        edit.as_path(path.as_path());
    });
    let proxy = line.proxies[2].expect("a proxy");
    let status = line.net.proxies[proxy].status();
    assert_eq!((status.counts.loops, status.counts.rejected, status.classes["invalid"]), (1, 0, 0));
    assert_eq!(line.net.has(2, PREFIX), None);
    assert!(
        !line
            .net
            .events
            .iter()
            .any(|(_, event)| matches!(event, Event::Route { event: RouteEvent::Verdict { .. }, .. }))
    );
}

fn tag(number: u32) -> Option<LargeCommunity> {
    format!("64498:1:{number}").parse().ok()
}

#[test]
fn policy_tags_ranks_and_can_change_without_a_new_update() {
    let mut line = three();
    line.net.announce_with(0, PREFIX, |edit| {
        edit.large_communities(&[tag(1).expect("a community")]);
    });
    let proxy = line.proxies[2].expect("a proxy");
    let tags = |line: &AsChain| {
        line.net.has(2, PREFIX).map(|route| route.large_communities().collect::<Vec<_>>()).unwrap_or_default()
    };
    let mut policy = config(LAST, 1, false).pipeline.policy;
    policy.set(VerdictClass::Gap, Treatment { large_community: tag(1), ..Treatment::default() });
    policy.set(VerdictClass::Valid, Treatment { large_community: tag(2), ..Treatment::default() });
    line.net.tell(proxy, Input::Policy(policy.clone()));
    line.net.settle();
    // What came from outside as ours is taken off.
    assert_eq!(tags(&line), [tag(2).expect("a community")]);
    policy.set(VerdictClass::Valid, Treatment { reject: true, ..Treatment::default() });
    line.net.tell(proxy, Input::Policy(policy));
    line.net.settle();
    assert_eq!(line.net.has(2, PREFIX), None);
}

#[test]
fn malformed_attributes_cost_their_routes_and_no_session() {
    let mut line = three();
    line.net.announce(0, PREFIX);
    let passed = line.net.speakers[1].peers[1].adj_rib_out().desired().next().map(|(_, passed)| (**passed).clone());
    let passed = passed.expect("it passes it on");
    let value = passed.get(ATTRIBUTE).expect("attested").value.to_vec();
    let without = |flags: u8, value: &[u8]| {
        let mut edit = passed.edit();
        edit.remove(ATTRIBUTE).set(ATTRIBUTE, AttributeFlags(flags), value);
        edit.finish().as_octets().to_vec()
    };
    let nlri = [24, 192, 0, 2];
    let mut try_it = |octets: &[u8]| {
        line.net.inject(At::Speaker(1, 1), &update(octets, &nlri));
        assert!(line.net.speakers.iter().all(|speaker| speaker.ends.is_empty()), "no session ends");
        (line.class(2, PREFIX), line.net.has(2, PREFIX).is_some())
    };
    // Cut short, with octets behind, flags of a non-transitive attribute.
    assert_eq!(try_it(&without(0xc0, &value[..value.len() - 1])), (Some(VerdictClass::Malformed), false));
    assert_eq!(try_it(&without(0xc0, &[&value[..], &[0]].concat())), (Some(VerdictClass::Malformed), false));
    assert_eq!(try_it(&without(0xc0, &[])), (Some(VerdictClass::Malformed), false));
    assert_eq!(try_it(&without(0x80, &value)), (Some(VerdictClass::Malformed), false));
    // A well-known attribute of this code exists nowhere: treated as withdrawn by the codec (RFC 7606).
    assert!(!try_it(&without(0x40, &value)).1);
    // A later version, and a suite that nobody knows: nothing is claimed.
    let mut later = value.clone();
    later[0] = 9;
    assert_eq!(try_it(&without(0xc0, &later)), (Some(VerdictClass::Unattested), true));
    // The Partial bit, and the extended length for a short value, change nothing.
    assert_eq!(try_it(&without(0xe0, &value)), (Some(VerdictClass::Valid), true));
    let mut extended = passed.edit().remove(ATTRIBUTE).finish().as_octets().to_vec();
    extended.extend_from_slice(&[0xd0, ATTRIBUTE.0]);
    extended.extend_from_slice(&(value.len() as u16).to_be_bytes());
    extended.extend_from_slice(&value);
    assert_eq!(try_it(&extended), (Some(VerdictClass::Valid), true));
    // Two of them: the first counts (RFC 7606 section 3 (g)).
    let mut twice = extended.clone();
    twice.extend_from_slice(&[0xc0, ATTRIBUTE.0, 1, 9]);
    assert_eq!(try_it(&twice), (Some(VerdictClass::Valid), true));
    let mut wrong_first = passed.edit().remove(ATTRIBUTE).finish().as_octets().to_vec();
    wrong_first.extend_from_slice(&[0xc0, ATTRIBUTE.0, 1, 1]);
    wrong_first.extend_from_slice(&extended[extended.len() - value.len() - 4..]);
    assert_eq!(try_it(&wrong_first), (Some(VerdictClass::Malformed), false));
}

#[test]
fn an_attestation_too_long_for_the_peer_is_not_sent_and_never_cut() {
    let mut line = AsChain::new(&[ORIGIN, MIDDLE, LAST], &[ORIGIN, MIDDLE, LAST], |config| {
        if config.pipeline.asn == Asn(MIDDLE) {
            config.pairs[1].max_octets_extended = 150;
            config.pairs[1].max_octets = 150;
        }
    });
    line.start(known);
    line.net.announce(0, PREFIX);
    assert!(line.net.has(1, PREFIX).is_some());
    assert_eq!(line.net.has(2, PREFIX), None);
    let proxy = line.proxies[1].expect("a proxy");
    assert_eq!(line.net.proxies[proxy].status().counts.too_long, 1);
    assert!(
        line.net
            .events
            .iter()
            .any(|(of, event)| *of == proxy && matches!(event, Event::Route { event: RouteEvent::TooLong { .. }, .. }))
    );
    assert!(line.net.speakers.iter().all(|speaker| speaker.ends.is_empty()));
}

#[test]
fn a_clock_that_is_set_is_reported_and_everything_is_validated_again() {
    let mut line = three();
    line.net.announce(0, PREFIX);
    line.net.now.unix.0 += 5 * 86_400 * 1_000_000;
    line.net.fire();
    assert!(
        line.net.events.iter().any(|(_, event)| matches!(event, Event::Process(ProcessEvent::ClockStepped(432_000..))))
    );
    assert_ne!(line.net.now.unix.secs(), START);
}

/// Announces `prefix` from the middle as a router does that aggregates the origin's routes, with `part` as the
/// attestation that it took over from one of them.
fn aggregate(line: &mut AsChain, prefix: &str, part: Option<&[u8]>) {
    let mut path = AsPathBuf::new();
    path.push_segment(SegmentKind::Set, &[Asn(ORIGIN)]);
    line.net.announce_with(1, prefix, |edit| {
        let aggregator = [&MIDDLE.to_be_bytes()[..], &[192, 0, 2, 2]].concat();
        edit.as_path(path.as_path());
        edit.set(AttributeCode::AGGREGATOR, AttributeFlags::OPTIONAL_TRANSITIVE, &aggregator);
        if let Some(part) = part {
            edit.set(ATTRIBUTE, AttributeFlags::OPTIONAL_TRANSITIVE, part);
        }
    });
}

/// Three ASes that pass aggregates on, as [`three`] otherwise.
fn three_with_aggregates() -> AsChain {
    let all = &[ORIGIN, MIDDLE, LAST];
    let mut line = AsChain::new(all, all, |config| {
        careless(config);
        config.pipeline.policy.set(VerdictClass::Aggregate, Treatment::default());
    });
    line.start(known);
    line
}

#[test]
fn a_route_with_an_as_set_goes_neither_in_nor_out_and_why_says_by_which_rule() {
    // The last one meets the route that the middle passes on.
    let mut line = three();
    aggregate(&mut line, "192.1.0.0/16", None);
    assert_eq!(line.class(2, "192.1.0.0/16"), Some(VerdictClass::Aggregate));
    assert_eq!(line.net.has(2, "192.1.0.0/16"), None);
    let why = line.net.proxies[line.proxies[2].expect("a proxy")].why(p("192.1.0.0/16"));
    let route = why.routes.iter().find(|route| route.direction == "in").expect("it came");
    assert!(
        route.advice.rule.contains("RFC 9774 section 3") && route.advice.cure.contains("aggregate = {}"),
        "{route:?}"
    );
    let status = line.net.proxies[line.proxies[2].expect("a proxy")].status();
    assert_eq!(status.classes["aggregate"], 1);
    // The middle's own proxy does not let it out, whoever made the set.
    let all = &[ORIGIN, MIDDLE, LAST];
    let mut line = AsChain::new(all, all, |_| ());
    line.start(known);
    aggregate(&mut line, "192.1.0.0/16", None);
    assert_eq!(line.class(2, "192.1.0.0/16"), None);
    let refused = |(_, event): &(usize, Event)| {
        matches!(event, Event::Route { event: RouteEvent::Refused { class: VerdictClass::Aggregate, .. }, .. })
    };
    assert!(line.net.events.iter().any(refused));
}

#[test]
fn an_aggregate_is_unattested_and_nobody_signs_for_it() {
    let mut line = three_with_aggregates();
    line.net.announce(0, PREFIX);
    let value_at = |line: &AsChain, place: usize, prefix: &str| {
        line.net.has(place, prefix).expect("it came").get(ATTRIBUTE).map(|found| found.value.to_vec())
    };
    let part = value_at(&line, 1, PREFIX).expect("attested");
    let counts = |line: &mut AsChain, place: usize| {
        let counts = line.net.proxies[line.proxies[place].expect("a proxy")].status().counts;
        (counts.originated, counts.extended, counts.not_extended, counts.unattested)
    };
    let before = counts(&mut line, 1);
    for (number, carried) in (1u64..).zip([None, Some(&part[..])]) {
        let prefix = format!("192.{number}.0.0/16");
        aggregate(&mut line, &prefix, carried);
        // Before prepending the path holds nothing but a set: the middle must not pass for the origin.
        assert_eq!(value_at(&line, 2, &prefix).as_deref(), carried);
        assert_eq!(line.class(2, &prefix), Some(VerdictClass::Aggregate));
        // It goes both ways, to the origin's AS too.
        assert_eq!(counts(&mut line, 1), (before.0, before.1, before.2, before.3 + 2 * number));
        let why = line.net.proxies[line.proxies[2].expect("a proxy")].why(p(&prefix));
        let route = why.routes.iter().find(|route| route.direction == "in").expect("it came");
        assert_eq!(route.lack, Some(Lack::Aggregate));
        assert!(route.hops.iter().all(|hop| !hop.proved));
    }
    // The more specific route stays proved beside it.
    assert_eq!(line.class(2, PREFIX), Some(VerdictClass::Valid));
}

#[test]
fn an_aggregate_of_what_somebody_registered_is_refused() {
    let mut line = three();
    line.net.announce(0, PREFIX);
    let part = line.net.has(1, PREFIX).and_then(|route| route.get(ATTRIBUTE)).map(|found| found.value.to_vec());
    line.net.withdraw(0, PREFIX);
    aggregate(&mut line, PREFIX, part.as_deref());
    assert_eq!(line.class(2, PREFIX), Some(VerdictClass::Invalid));
    assert_eq!(line.net.has(2, PREFIX), None);
}
