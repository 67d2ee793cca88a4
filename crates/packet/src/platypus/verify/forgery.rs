//! How often a forger is lucky: the whole binding is compared, and not a part of it.
//!
//! PLA-13: a million random bindings against 16 compared bits (more by `WAYLEAVE_PLATYPUS_FORGERIES`), and against all:
//! one in 65,536; none.
#![allow(clippy::disallowed_methods, reason = "a test reads its count from the environment")]

use std::net::{IpAddr, Ipv4Addr};

use wayleave_core::UnixTime;
use wayleave_crypto::secret::Key128;

use super::super::header::{Capability, Carriage, Interval, Marks, Packet, Principal, Width};
use super::super::mint::{Hop, Nonce, Route, WaypointKey, WaypointKeys, encapsulate, epoch};
use super::{Arrival, Policy, Verdict, Waypoint};

/// How many of `tries` random bindings pass a waypoint that compares `octets` of them.
fn accepted(octets: usize, tries: u64) -> u64 {
    let now = UnixTime(1_795_240_800_000_000);
    let address = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1));
    let interval = Interval::new(12).expect("in range");
    let keys = WaypointKeys::new(WaypointKey::new(&Key128::new([7; 16])));
    let capability = Capability {
        waypoint: address,
        principal: Principal::new(1).expect("24 bits"),
        interval,
        epoch: epoch::epoch_at(interval, now),
        marks: Marks::default(),
        delegation: None,
        width: Width::Full,
    };
    let hops = [Hop { capability, key: keys.stamp_key(&capability).expect("held") }];
    let route =
        Route { hops: &hops, nonce: Nonce::new(now, 1), sealed: false, reply_option: &[], carriage: Carriage::Ip };
    let mut inner = [0u8; 24];
    inner[0] = 0x45;
    inner[3] = 24;
    inner[8] = 64;
    inner[12..16].copy_from_slice(&[192, 0, 2, 1]);
    inner[16..20].copy_from_slice(&[203, 0, 113, 1]);
    let mut datagram = Vec::new();
    encapsulate(&inner, &route, &mut datagram).expect("a sound route");
    let mut here = Waypoint::new(address, keys, Policy::default());
    here.compared = octets;
    let is_forwarded = |datagram: &[u8]| {
        let packet = Packet::decode(datagram).expect("a binding is any octets");
        matches!(here.verify(&packet, Arrival::Ip, now), Verdict::Forward(_))
    };
    assert!(is_forwarded(&datagram));
    let binding = Packet::decode(&datagram).expect("sound").binding_range(0);
    let mut state = 1u64;
    let mut lucky = 0;
    for _ in 0..tries {
        for half in datagram[binding.clone()].chunks_mut(8) {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            half.copy_from_slice(&(state ^ state >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9).to_be_bytes());
        }
        lucky += u64::from(is_forwarded(&datagram));
    }
    lucky
}

/// Within three standard deviations of the mean. `WAYLEAVE_PLATYPUS_FORGERIES=100000000` expects 1,526 +- 117.
#[test]
fn one_forgery_in_65_536_passes_if_16_bits_are_compared_and_none_if_all_are() {
    let tries = std::env::var("WAYLEAVE_PLATYPUS_FORGERIES").ok().and_then(|text| text.parse().ok());
    let tries: u64 = tries.unwrap_or(1_000_000);
    let lucky = accepted(2, tries) as f64;
    let mean = tries as f64 / 65_536.0;
    assert!((lucky - mean).abs() <= 3.0 * mean.sqrt(), "{lucky} of {tries}, {mean} expected");
    assert_eq!(accepted(16, tries / 4), 0);
}
