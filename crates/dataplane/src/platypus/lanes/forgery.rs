//! How often a forgery succeeds: every bit of a binding is compared.
//!
//! PLA-13: the same in lanes: one in 65,536; none.
#![allow(clippy::disallowed_methods, reason = "a test reads its count from the environment")]

use std::net::{IpAddr, Ipv4Addr};

use wayleave_core::UnixTime;
use wayleave_crypto::lanes::{CpuKernel, LANES};
use wayleave_crypto::secret::Key128;
use wayleave_packet::platypus::header::{Capability, Carriage, Interval, Marks, Packet, Principal, Width};
use wayleave_packet::platypus::mint::{Hop, Nonce, Route, WaypointKey, WaypointKeys, encapsulate, epoch};
use wayleave_packet::platypus::verify::{Arrival, Policy, Waypoint};

use super::{BurstVerifier, Decision, Verdicts, WHOLE_TAG};
use crate::frame::BURST;

/// How many of `tries` random bindings pass a verifier that compares the `counted` bits of them.
fn accepted(counted: [u64; 2], tries: u64) -> u64 {
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
    let mut sound = Vec::new();
    encapsulate(&inner, &route, &mut sound).expect("a sound route");
    let here = Waypoint::new(address, keys, Policy::default());
    let at = Packet::decode(&sound).expect("sound").binding_range(0);
    let mut verifier = BurstVerifier::new(CpuKernel::best(), 1);
    verifier.counted = counted;
    let mut verdicts = Verdicts::default();
    let here = [here];
    let mut state = 1u64;
    // Bursts that are decided sixteen packets at a time, with a sound one in the middle of each sixteen; of the last sixteen
    // all are sound but one, which is in each lane in turn.
    let mut forged = vec![sound.clone(); BURST];
    let last = BURST - LANES;
    let each = last - last / LANES + 1;
    let mut lucky = 0;
    for turn in 0..tries.div_ceil(each as u64) {
        let is_sound = |index: usize| match index.checked_sub(last) {
            Some(lane) => lane as u64 != turn % LANES as u64,
            None => index % LANES == LANES / 2,
        };
        for (_, datagram) in forged.iter_mut().enumerate().filter(|(index, _)| !is_sound(*index)) {
            for half in datagram[at.clone()].chunks_mut(8) {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                half.copy_from_slice(&(state ^ state >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9).to_be_bytes());
            }
        }
        let datagrams: [&[u8]; BURST] =
            std::array::from_fn(|index| if is_sound(index) { &sound[..] } else { &forged[index] });
        verifier.verify(&here, &datagrams, &|_| Arrival::Ip, now, &mut verdicts);
        for index in 0..BURST {
            let is_forwarded = matches!(verdicts.get(index), Decision::Simple(_));
            assert!(is_forwarded || !is_sound(index));
            lucky += u64::from(is_forwarded && !is_sound(index));
        }
    }
    lucky
}

/// Within three standard deviations of the mean. `WAYLEAVE_PLATYPUS_FORGERIES=100000000` expects 1,526 +- 117.
#[test]
fn one_forgery_in_65_536_passes_if_16_bits_are_compared_and_none_if_all_are() {
    let tries = std::env::var("WAYLEAVE_PLATYPUS_FORGERIES").ok().and_then(|text| text.parse().ok());
    let tries: u64 = tries.unwrap_or(1_000_000);
    let first_sixteen = [u64::from_ne_bytes([0xff, 0xff, 0, 0, 0, 0, 0, 0]), 0];
    let lucky = accepted(first_sixteen, tries) as f64;
    let mean = tries as f64 / 65_536.0;
    assert!((lucky - mean).abs() <= 3.0 * mean.sqrt(), "{lucky} of {tries}, {mean} expected");
    assert_eq!(accepted(WHOLE_TAG, tries / 4), 0);
}
