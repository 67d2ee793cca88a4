//! Times an UPDATE of the paper's mean path beside BGPsec; run by hand, since no test asserts seconds.
#![allow(clippy::disallowed_methods, reason = "it measures")]

use std::time::{Duration, Instant};

use wayleave_attestation::baseline::bgpsec::Bgpsec;
use wayleave_attestation::{Announcement, Scheme, SuiteId, standard_scheme};
use wayleave_core::Asn;
use wayleave_crypto::secret::Secret;

/// How often each burst is verified.
const PASSES: usize = 20;
/// The AS that receives and signs.
const RECEIVER: Asn = Asn(999);

/// 1,000 UPDATEs of 3.7 hops on average, over paths among 500 ASes.
fn announcements() -> Vec<Announcement> {
    let announcement = |i: u32| {
        let length = if i % 10 < 7 { 4 } else { 3 };
        let path = (0..length).map(|j| Asn(1 + (i * 7 + j * 131) % 500)).collect();
        let prefix = format!("10.{}.{}.0/24", i / 250, i % 250).parse().expect("a prefix");
        Announcement { prefixes: vec![prefix], path }
    };
    (0..1000).map(announcement).collect()
}

fn attest(scheme: &mut dyn Scheme, announcement: &Announcement) -> Vec<u8> {
    let (path, mut value) = (&announcement.path, Vec::new());
    for end in 1..=path.len() {
        let announcement = Announcement { prefixes: announcement.prefixes.clone(), path: path[..end].to_vec() };
        value = scheme.attest(&announcement, &value, path.get(end).copied().unwrap_or(RECEIVER)).expect("attests");
    }
    value
}

fn measure(scheme: &mut dyn Scheme, bursts: &[usize]) {
    let announcements = announcements();
    let values: Vec<Vec<u8>> = announcements.iter().map(|announcement| attest(scheme, announcement)).collect();
    let received: Vec<_> = announcements.iter().zip(values.iter().map(Vec::as_slice)).collect();
    for size in bursts {
        let mut times = Vec::new();
        for burst in std::iter::repeat_n(received.chunks(*size), PASSES).flatten() {
            let start = Instant::now();
            assert!(scheme.verify_burst(burst, RECEIVER).iter().all(|right| *right));
            times.push(start.elapsed() / burst.len() as u32);
        }
        println!("{} verify, bursts of {size}: {:?} an UPDATE", scheme.name(), least(&times));
    }
    let onward: Vec<Announcement> = announcements
        .iter()
        .map(|announcement| {
            let mut onward = announcement.clone();
            onward.path.push(RECEIVER);
            onward
        })
        .collect();
    scheme.attest(&onward[0], &values[0], Asn(998)).expect("attests");
    let mut times = Vec::new();
    for (onward, value) in onward.iter().zip(&values) {
        let start = Instant::now();
        scheme.attest(onward, value, Asn(998)).expect("attests");
        times.push(start.elapsed());
    }
    println!("{} sign: {:?} an UPDATE", scheme.name(), least(&times));
}

/// The least, which other work on the machine does not move.
fn least(times: &[Duration]) -> Duration {
    times.iter().min().copied().unwrap_or_default()
}

#[test]
#[ignore = "a measurement"]
fn an_update_of_the_mean_path() {
    let seed = Secret::new([1; 32]);
    for _ in 0..2 {
        let mut ed25519 = standard_scheme(SuiteId::KcEd25519, &seed).expect("a standard suite");
        measure(&mut *ed25519, &[1, 8, 64, 256, 1000]);
        measure(&mut Bgpsec::new(&seed), &[1, 64]);
    }
}
