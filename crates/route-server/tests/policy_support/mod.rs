//! Member sets for the tests of policies.
#![allow(dead_code, reason = "each test file uses a part")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use wayleave_core::Asn;
use wayleave_route_server::directory::{MemberSet, Slot};

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
    }
}

/// A set with one active slot for each AS number, in order.
pub(crate) fn set(asns: &[u32]) -> MemberSet {
    let slots = asns.iter().zip(0u8..).map(|(&asn, place)| slot(place, asn)).collect();
    MemberSet { exchange: "test-ix".into(), number: 1, slots }
}

/// The IPv4 address of the slot in this place.
pub(crate) fn lan4(place: u8) -> IpAddr {
    Ipv4Addr::new(192, 0, 2, place + 1).into()
}

/// The IPv6 address of the slot in this place.
pub(crate) fn lan6(place: u8) -> IpAddr {
    Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, u16::from(place) + 1).into()
}
