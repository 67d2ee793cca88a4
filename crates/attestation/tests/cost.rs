//! Times an UPDATE of the paper's mean path; run by hand, since no test asserts seconds.
#![allow(clippy::disallowed_methods, reason = "it measures")]

use std::time::Instant;

use wayleave_attestation::{Announcement, SuiteId, standard_scheme};
use wayleave_core::Asn;
use wayleave_crypto::secret::Secret;

#[test]
#[ignore = "a measurement"]
fn an_update_of_the_mean_path() {
    let mut scheme = standard_scheme(SuiteId::KcEd25519, &Secret::new([1; 32])).expect("a scheme");
    let mut burst = Vec::new();
    // 37 hops in ten UPDATEs; 1,000 UPDATEs over 500 ASes.
    for i in 0..1000u32 {
        let length = if i % 10 < 7 { 4 } else { 3 };
        let path: Vec<Asn> = (0..length).map(|j| Asn(1 + (i * 7 + j * 131) % 500)).collect();
        let prefix = format!("10.{}.{}.0/24", i / 250, i % 250).parse().expect("a prefix");
        let mut value = Vec::new();
        for end in 1..=path.len() {
            let announcement = Announcement { prefixes: vec![prefix], path: path[..end].to_vec() };
            value = scheme.attest(&announcement, &value, path.get(end).copied().unwrap_or(Asn(999))).expect("attests");
        }
        burst.push((Announcement { prefixes: vec![prefix], path }, value));
    }
    for size in [1, 8, 32, 64, 256, 1000] {
        let start = Instant::now();
        for chunk in burst.chunks(size) {
            let chunk: Vec<_> = chunk.iter().map(|(announcement, value)| (announcement, value.as_slice())).collect();
            assert!(scheme.verify_burst(&chunk, Asn(999)).iter().all(|right| *right));
        }
        let verify = start.elapsed() / burst.len() as u32;
        println!("bursts of {size}: verify {verify:?} an UPDATE");
    }
    let start = Instant::now();
    for (announcement, value) in &burst {
        let mut path = announcement.path.clone();
        path.push(Asn(999));
        let announcement = Announcement { prefixes: announcement.prefixes.clone(), path };
        scheme.attest(&announcement, value, Asn(998)).expect("attests");
    }
    println!("sign {:?} an UPDATE", start.elapsed() / burst.len() as u32);
}
