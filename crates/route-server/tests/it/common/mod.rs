//! Member sets for the tests of policies.
#![allow(dead_code, reason = "each test file uses a part")]

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use wayleave_bgp::{AsPathBuf, Attributes, AttributesEditor, Ipv6NextHop, Origin};
use wayleave_core::{Asn, Prefix};
use wayleave_crypto::secret::Secret;
use wayleave_crypto::sign::{SigningKey, VerifyingKey};
use wayleave_route_server::directory::{Claim, Directory, MemberSet, Request, Slot};
use wayleave_route_server::member::MemberConfig;
use wayleave_route_server::policy::pattern::AnyCommunity;
use wayleave_route_server::policy::{Policy, PolicyConfig};
use wayleave_route_server::versions::Speaks;

/// The exchange's AS number in these tests.
pub(crate) const RS: Asn = Asn(64496);

/// An active slot whose keys and addresses follow from its place, which must be below 250.
pub(crate) fn slot(place: u8, asn: u32) -> Slot {
    Slot {
        active: true,
        asn: Asn(asn),
        name: format!("as{asn}-{place}"),
        addresses: vec![lan4(place), lan6(place)],
        tls: [place + 1; 32],
        sign: [place + 1; 32],
        max_prefix: 100,
        held: false,
    }
}

/// How a member of `test-ix` is configured, as far as its test does not say otherwise.
pub(crate) fn member_config(slot: u32, operators: [VerifyingKey; 2]) -> MemberConfig {
    MemberConfig {
        exchange: "test-ix".to_owned(),
        rs_asn: RS,
        operators,
        slot,
        keys: Vec::new(),
        select_best: false,
        stale: Duration::from_secs(60),
        settle: Duration::from_secs(5),
        lab: false,
        accept_as_set: false,
        paths: 1,
        has_role: false,
        validates: false,
        speaks: Speaks::default(),
    }
}

/// A set with one active slot for each AS number, in order.
pub(crate) fn set(asns: &[u32]) -> MemberSet {
    let slots = asns.iter().zip(0u8..).map(|(&asn, place)| slot(place, asn)).collect();
    MemberSet { exchange: "test-ix".into(), number: 1, slots, attest: BTreeMap::new(), profile: None, data: None }
}

/// The signing key with this number. Members have those below 200, the operators 200 and 201.
pub(crate) fn key(number: u8) -> SigningKey {
    SigningKey::from_seed(&Secret::new([number; 32]))
}

/// Its public half.
pub(crate) fn public(number: u8) -> [u8; 32] {
    key(number).verifying_key().to_bytes()
}

/// The operators' keys.
pub(crate) const OPERATORS: [u8; 2] = [200, 201];

/// What the member with key `number` says of itself.
pub(crate) fn claim(number: u8, asn: u32) -> Claim {
    Claim {
        serial: 1,
        asn: Asn(asn),
        name: format!("as{asn}-{number}"),
        tls: [number; 32],
        sign: public(number),
        attest: Vec::new(),
        addresses: vec![lan4(number), lan6(number)],
    }
}

/// The same, signed.
pub(crate) fn request(number: u8, asn: u32) -> Request {
    claim(number, asn).sign("test-ix", &key(number))
}

/// An exchange without members.
pub(crate) fn empty() -> Directory {
    Directory::new("test-ix", OPERATORS.map(public)).expect("a name and two keys")
}

/// `directory` with these requests, as both operators sign them.
pub(crate) fn admit(directory: &Directory, requests: &[Request]) -> Directory {
    let mut next = directory.clone();
    for request in requests {
        let change = next.requested(request, 100).expect("of this exchange");
        next = both(&next, vec![change]);
    }
    next
}

/// `directory` with these changes, as both operators sign them.
pub(crate) fn both(directory: &Directory, changes: Vec<wayleave_route_server::directory::Change>) -> Directory {
    let [one, two] = OPERATORS.map(key);
    directory.signed_by_both(changes, [&one, &two]).expect("a sound set")
}

/// The IPv4 address of the slot in this place.
pub(crate) fn lan4(place: u8) -> IpAddr {
    Ipv4Addr::new(192, 0, 2, place + 1).into()
}

/// The IPv6 address of the slot in this place.
pub(crate) fn lan6(place: u8) -> IpAddr {
    Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, u16::from(place) + 1).into()
}

/// The attributes of a route with this AS path whose next hops belong to the slot in `place`.
pub(crate) fn attributes(path: &[u32], place: u8) -> AttributesEditor {
    let path: Vec<Asn> = path.iter().copied().map(Asn).collect();
    let mut editor = Attributes::builder();
    editor.origin(Origin::Igp).as_path(AsPathBuf::from_sequence(&path).as_path());
    if let (IpAddr::V4(v4), IpAddr::V6(global)) = (lan4(place), lan6(place)) {
        editor.ipv4_next_hop(v4).ipv6_next_hop(Some(Ipv6NextHop { global, link_local: None }));
    }
    editor
}

/// Attributes with these communities of any kind, in order.
pub(crate) fn with_communities(path: &[u32], place: u8, communities: &[&str]) -> Attributes {
    let mut editor = attributes(path, place);
    set_communities(&mut editor, communities);
    editor.finish()
}

/// Replaces all communities.
pub(crate) fn set_communities(editor: &mut AttributesEditor, communities: &[&str]) {
    let (mut standard, mut large, mut extended) = (vec![], vec![], vec![]);
    for text in communities {
        match text.parse().unwrap_or_else(|_| AnyCommunity::Extended(text.parse().expect("a community"))) {
            AnyCommunity::Standard(community) => standard.push(community),
            AnyCommunity::Large(community) => large.push(community),
            AnyCommunity::Extended(community) => extended.push(community),
        }
    }
    editor.communities(&standard).large_communities(&large).extended_communities(&extended);
}

/// A policy from its TOML.
pub(crate) fn policy(text: &str) -> Policy {
    let config: PolicyConfig = toml::from_str(text).unwrap_or_else(|error| panic!("{error}"));
    Policy::compile(&config).unwrap_or_else(|error| panic!("{error}"))
}

/// A prefix.
pub(crate) fn prefix(text: &str) -> Prefix {
    text.parse().expect("a prefix")
}
