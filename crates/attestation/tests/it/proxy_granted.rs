//! Granted keys between proxies: the private half goes down a protected session, in a non-transitive attribute, to the
//! neighbour that asked for it, and nowhere else.
//!
//! KCX-17: granted keys: a neighbour registers later, bad grants without end: the next hop names its own keys and
//! nothing is handed over; told once in a session, the good pair stays.

use std::time::Duration;

use crate::common::proxy_net::{ATTRIBUTE, At, Net, config, p, ring, shared, view};
use wayleave_attestation::chain::Attestation;
use wayleave_attestation::pipeline::policy::VerdictClass;
use wayleave_attestation::proxy::Event;
use wayleave_attestation::proxy::handover::{HANDOVER, Handover};
use wayleave_attestation::proxy::session_pair::Side;
use wayleave_attestation::report::KeyOrigin;
use wayleave_attestation::sign::KeyRing;
use wayleave_attestation::suite::SuiteId;
use wayleave_bgp::AttributeFlags;
use wayleave_core::Asn;
use wayleave_crypto::kdf;
use wayleave_crypto::secret::Secret;

const ORIGIN: u32 = 64_496;
const MIDDLE: u32 = 64_497;
const LAST: u32 = 64_498;
const PREFIX: &str = "192.0.2.0/24";
const ED: &[SuiteId] = &[SuiteId::KcEd25519];
const SECRET: [u8; 32] = [0x5a; 32];

/// Origin, middle and last. The origin grants to the middle as these two say; the middle has no keys of its own, and the
/// last offers its own. Only the origin has a profile, unless the middle shall have one too.
fn line(of_origin: Handover, of_middle: Handover, profiles: &[u32]) -> Net {
    let mut net = Net::new();
    for asn in [ORIGIN, MIDDLE, LAST] {
        net.speaker(asn);
    }
    let sessions = [net.session(0, |_| ()), net.session(1, |_| ()), net.session(1, |_| ()), net.session(2, |_| ())];
    net.speakers[2].is_end = true;
    let mut origin = config(ORIGIN, 1, false);
    (origin.pairs[0].ends[1].connects, origin.pairs[0].ends[1].listens) = (true, false);
    origin.pairs[0].handover = of_origin;
    let mut middle = config(MIDDLE, 2, false);
    (middle.pairs[1].ends[1].connects, middle.pairs[1].ends[1].listens) = (true, false);
    middle.pairs[0].handover = of_middle;
    let a = net.proxy(origin, ring(ORIGIN, ED));
    let b = net.proxy(middle, KeyRing::default());
    let c = net.proxy(config(LAST, 1, false), ring(LAST, ED));
    net.proxies[a].hold_secret(Secret::new(SECRET));
    for (session, (proxy, pair)) in sessions.into_iter().zip([(a, 0), (b, 0), (b, 1), (c, 0)]) {
        net.link(session, At::Proxy(proxy, pair, Side::Inside));
    }
    net.link(At::Proxy(a, 0, Side::Outside), At::Proxy(b, 0, Side::Outside));
    net.link(At::Proxy(b, 1, Side::Outside), At::Proxy(c, 0, Side::Outside));
    for proxy in [a, b, c] {
        net.tell(proxy, shared(view(1, profiles, &[(ORIGIN, PREFIX)])));
    }
    net.start();
    net.wait(Duration::from_secs(20));
    net.announce(0, PREFIX);
    net
}

const GRANTS: Handover = Handover { grants: true, takes: false, is_protected: true };
const TAKES: Handover = Handover { grants: false, takes: true, is_protected: true };

/// The private half that the origin makes for the middle.
fn private_half() -> [u8; 32] {
    let seed: Secret<32> = kdf::derive("wayleave/attestation/granted/v1", &secret(), &MIDDLE.to_be_bytes());
    *seed.expose()
}

fn secret() -> [u8; 32] {
    SECRET
}

/// The ends that sent the private half, or a part of it.
fn senders(net: &Net) -> Vec<At> {
    let half = private_half();
    let has = |octets: &Vec<u8>| octets.windows(8).any(|window| half.windows(8).any(|part| part == window));
    net.seen.iter().filter(|(_, octets)| has(octets)).map(|(at, _)| *at).collect()
}

fn keys_at_the_last(net: &mut Net) -> (VerdictClass, Vec<Option<KeyOrigin>>) {
    let why = net.proxies[2].why(p(PREFIX));
    let route = &why.routes[0];
    (route.class, route.hops.iter().map(|hop| hop.key).collect())
}

#[test]
fn a_granted_pair_signs_and_its_private_half_is_on_one_session_alone() {
    let mut net = line(GRANTS, TAKES, &[ORIGIN]);
    let expected = (VerdictClass::Valid, vec![Some(KeyOrigin::Registered), Some(KeyOrigin::Granted)]);
    assert_eq!(keys_at_the_last(&mut net), expected);
    let why = net.proxies[2].why(p(PREFIX));
    assert_eq!(why.routes[0].hops[1].could_have_signed, [Asn(MIDDLE), Asn(ORIGIN)]);
    assert_eq!(senders(&net), [At::Proxy(0, 0, Side::Outside)]);
    // Not in a transitive attribute there either: the value ends before, and the grant's flags say so.
    let octets = &net.seen[&At::Proxy(0, 0, Side::Outside)];
    let grant = octets.windows(2).any(|head| head == [AttributeFlags::OPTIONAL_NON_TRANSITIVE.0, HANDOVER.0]);
    assert!(grant && !octets.windows(2).any(|head| head == [AttributeFlags::OPTIONAL_TRANSITIVE.0, HANDOVER.0]));
    for speaker in 0..3 {
        for route in net.speakers[speaker].learned.values() {
            assert_eq!(route.get(HANDOVER), None);
        }
    }
    let value = net.has(2, PREFIX).and_then(|route| route.get(ATTRIBUTE)).expect("attested").value.to_vec();
    let half = private_half();
    assert!(!value.windows(8).any(|window| half.windows(8).any(|part| part == window)));
    // It is held, and shown without its private half.
    assert_eq!(net.proxies[1].own_keys().len(), 1);
}

#[test]
fn nothing_is_handed_over_on_a_session_that_is_not_protected_or_to_who_does_not_ask() {
    let open = |handover: Handover| Handover { is_protected: false, ..handover };
    let no = Handover::default();
    for (of_origin, of_middle) in [(open(GRANTS), TAKES), (GRANTS, open(TAKES)), (GRANTS, no), (no, TAKES)] {
        let mut net = line(of_origin, of_middle, &[ORIGIN]);
        assert_eq!(senders(&net), [], "{of_origin:?} {of_middle:?}");
        // The middle has no key: the route passes it as one that does not attest.
        assert_eq!(keys_at_the_last(&mut net).0, VerdictClass::Gap);
    }
}

#[test]
fn an_as_with_a_profile_gets_no_keys_of_anothers_making() {
    let mut net = line(GRANTS, TAKES, &[ORIGIN, MIDDLE]);
    assert_eq!(senders(&net), []);
    assert_eq!(keys_at_the_last(&mut net).0, VerdictClass::Gap);
}

#[test]
fn a_neighbour_that_registers_later_is_no_longer_granted_a_pair() {
    let mut net = line(GRANTS, TAKES, &[ORIGIN]);
    let named = |net: &Net| {
        let value = net.has(2, PREFIX).and_then(|route| route.get(ATTRIBUTE)).expect("attested").value.to_vec();
        let attestation = Attestation::decode(&value).expect("well formed");
        attestation.hops().next().and_then(|hop| hop.next.leaf()).map(|leaf| (leaf.is_granted(), leaf.is_keyless()))
    };
    assert_eq!(named(&net), Some((true, false)));
    net.seen.clear();
    for (generation, profiles, expected) in
        [(2, &[ORIGIN, MIDDLE][..], (false, true)), (3, &[ORIGIN][..], (true, false))]
    {
        net.tell(0, shared(view(generation, profiles, &[(ORIGIN, PREFIX)])));
        net.wait(Duration::from_secs(40));
        assert_eq!(named(&net), Some(expected), "{profiles:?}");
        assert_eq!(senders(&net).is_empty(), expected.1, "{profiles:?}");
    }
}

#[test]
fn a_grant_that_was_not_asked_for_goes_nowhere() {
    let mut net = line(GRANTS, TAKES, &[ORIGIN]);
    // The origin's own speaker, and a neighbour that is not trusted with it, put something there.
    for at in [At::Speaker(0, 0), At::Speaker(1, 1)] {
        let At::Speaker(speaker, place) = at else { continue };
        let mut edit = net.speakers[speaker].peers[place].adj_rib_out().desired().next().expect("a route").1.edit();
        edit.set(HANDOVER, AttributeFlags::OPTIONAL_NON_TRANSITIVE, &[1, 2, 3]);
        let octets = crate::common::proxy_net::update(edit.finish().as_octets(), &[24, 192, 0, 2]);
        net.inject(at, &octets);
    }
    assert!(!net.events.iter().any(|(_, event)| matches!(event, Event::GrantRefused(..))));
    let sent = &net.seen[&At::Proxy(1, 1, Side::Outside)];
    assert!(!sent.windows(6).any(|octets| octets == [0x80, HANDOVER.0, 3, 1, 2, 3]));
    // From the neighbour that may hand over, what is no grant is reported, and the session stays.
    let value = [&[0x80, HANDOVER.0, 3][..], &[9, 9, 9]].concat();
    let mut attributes = net.speakers[1].learned[&(0, p(PREFIX))].as_octets().to_vec();
    attributes.extend_from_slice(&value);
    net.inject(At::Proxy(0, 0, Side::Outside), &crate::common::proxy_net::update(&attributes, &[24, 192, 0, 2]));
    assert!(net.events.iter().any(|(proxy, event)| *proxy == 1 && matches!(event, Event::GrantRefused(0, _))));
    assert!(net.speakers.iter().all(|speaker| speaker.ends.is_empty()));
}

#[test]
fn bad_grants_without_end_are_reported_once_in_a_session_and_the_good_key_stays() {
    let mut net = line(GRANTS, TAKES, &[ORIGIN]);
    let attributes = net.speakers[1].learned[&(0, p(PREFIX))].as_octets().to_vec();
    for number in 0..20 {
        let octets = [&attributes[..], &[0x80, HANDOVER.0, 3, 9, 9, number]].concat();
        net.inject(At::Proxy(0, 0, Side::Outside), &crate::common::proxy_net::update(&octets, &[24, 192, 0, 2]));
    }
    let refused = |net: &Net| net.events.iter().filter(|(_, event)| matches!(event, Event::GrantRefused(..))).count();
    assert_eq!(refused(&net), 1);
    assert_eq!(net.proxies[1].own_keys().len(), 1);
    // The next session begins anew.
    net.cut(At::Proxy(0, 0, Side::Outside));
    net.reconnect();
    net.wait(Duration::from_secs(140));
    net.inject(At::Proxy(0, 0, Side::Outside), &{
        let octets = [&attributes[..], &[0x80, HANDOVER.0, 3, 9, 9, 9]].concat();
        crate::common::proxy_net::update(&octets, &[24, 192, 0, 2])
    });
    assert_eq!(refused(&net), 2);
}

#[test]
fn a_granted_pair_is_no_key_of_anybody_else() {
    // The chain names the middle: with the same pair the origin could sign for it, and nobody could without.
    let net = line(GRANTS, TAKES, &[ORIGIN]);
    let value = net.has(2, PREFIX).and_then(|route| route.get(ATTRIBUTE)).expect("attested").value.to_vec();
    let attestation = Attestation::decode(&value).expect("well formed");
    let leaf = attestation.hops().next().and_then(|hop| hop.next.leaf()).expect("a leaf");
    assert!(leaf.is_granted());
    assert_eq!(leaf.keys().count(), 1);
}
