//! Properties of all paper suites and baselines: only honest chains verify, and only for their receivers.

use wayleave_attestation::SuiteId;
use wayleave_core::Asn;
use wayleave_crypto::secret::Secret;
use wayleave_papers::scheme::{Scheme, SchemeError};
use wayleave_papers::{baseline, kc_x};

use crate::paths::{announcement, chain};

const PREFIXES: [&str; 2] = ["192.0.2.0/24", "198.51.100.0/22"];

fn schemes() -> Vec<Box<dyn Scheme>> {
    let seed = Secret::new([8; 32]);
    let all = SuiteId::RESERVED.into_iter();
    let schemes: Vec<_> =
        all.filter_map(|suite| baseline::scheme(suite, &seed).or(kc_x::scheme(suite, &seed))).collect();
    assert!(schemes.len() >= 4, "each of those below");
    schemes
}

#[test]
fn every_scheme_verifies_honest_chains_for_their_receivers_only() {
    for mut scheme in schemes() {
        let path: Vec<u32> = (1..=8).collect();
        scheme.prepare(&path.iter().map(|n| Asn(*n)).collect::<Vec<_>>());
        for hops in 1..=path.len() {
            let path = &path[..hops];
            let attestation = chain(scheme.as_mut(), &PREFIXES, path, 99);
            assert!(
                scheme.verify(&announcement(&PREFIXES, path), &attestation, Asn(99)),
                "{} of {hops}",
                scheme.name()
            );
            assert!(
                !scheme.verify(&announcement(&PREFIXES, path), &attestation, Asn(98)),
                "{} of {hops}",
                scheme.name()
            );
            assert!(scheme.signature_bytes(&attestation) >= 40);
        }
    }
}

#[test]
fn no_scheme_verifies_a_changed_path() {
    for mut scheme in schemes() {
        let attestation = chain(scheme.as_mut(), &PREFIXES, &[1, 2, 3, 4], 5);
        for path in [&[1, 2, 4, 3][..], &[2, 3, 4], &[1, 3, 4], &[1, 2, 3], &[1, 2, 3, 4, 4], &[6, 2, 3, 4], &[]] {
            assert!(!scheme.verify(&announcement(&PREFIXES, path), &attestation, Asn(5)), "{} {path:?}", scheme.name());
        }
    }
}

#[test]
fn the_baselines_sign_the_prefixes() {
    for suite in [SuiteId::SBgp, SuiteId::SasV, SuiteId::Bgpsec] {
        let mut scheme = baseline::scheme(suite, &Secret::new([8; 32])).expect("a baseline");
        let attestation = chain(scheme.as_mut(), &PREFIXES, &[1, 2], 3);
        let mut other = announcement(&PREFIXES, &[1, 2]);
        other.prefixes[1] = "198.51.100.0/24".parse().expect("a prefix");
        assert!(!scheme.verify(&other, &attestation, Asn(3)), "{suite}");
        other.prefixes.pop();
        assert!(!scheme.verify(&other, &attestation, Asn(3)), "{suite}");
    }
}

#[test]
fn sizes_are_those_of_the_paper() {
    let seed = Secret::new([8; 32]);
    for hops in 1..=5 {
        let path: Vec<u32> = (1..=hops).collect();
        let size = |suite| {
            let mut scheme = baseline::scheme(suite, &seed).expect("a baseline");
            let attestation = chain(scheme.as_mut(), &PREFIXES, &path, 99);
            scheme.signature_bytes(&attestation)
        };
        assert_eq!(size(SuiteId::SBgp), 40 * path.len());
        assert_eq!(size(SuiteId::SasV), 128);
    }
}

#[test]
fn changed_octets_never_verify() {
    for suite in [SuiteId::SBgp, SuiteId::SasV] {
        let mut scheme = baseline::scheme(suite, &Secret::new([8; 32])).expect("a baseline");
        let attestation = chain(scheme.as_mut(), &PREFIXES, &[1, 2, 3], 4);
        for index in 0..attestation.len() {
            let mut bad = attestation.clone();
            bad[index] ^= 1 << (index % 8);
            assert!(!scheme.verify(&announcement(&PREFIXES, &[1, 2, 3]), &bad, Asn(4)), "{suite}: octet {index}");
        }
        for len in 0..attestation.len() {
            assert!(
                !scheme.verify(&announcement(&PREFIXES, &[1, 2, 3]), &attestation[..len], Asn(4)),
                "{suite}: {len} octets"
            );
        }
    }
}

#[test]
fn what_was_received_must_fit_the_path() {
    for mut scheme in schemes() {
        let attestation = chain(scheme.as_mut(), &PREFIXES, &[1, 2], 3);
        for (path, received) in [(&[1, 2, 3][..], &attestation[1..]), (&[1, 2, 3, 4], &attestation), (&[1, 2], &[])] {
            let refused = scheme.attest(&announcement(&PREFIXES, path), received, Asn(9));
            assert_eq!(refused, Err(SchemeError::Malformed), "{} {path:?}", scheme.name());
        }
    }
}

#[test]
fn a_hundred_random_chains_of_sas_v_verify_whatever_the_order_of_their_moduli() {
    let mut scheme = baseline::scheme(SuiteId::SasV, &Secret::new([9; 32])).expect("a baseline");
    let mut state = 7u32;
    for _ in 0..100 {
        let mut path = Vec::new();
        while path.len() < 4 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let asn = 1 + (state >> 16) % 20;
            if !path.contains(&asn) {
                path.push(asn);
            }
        }
        let attestation = chain(scheme.as_mut(), &PREFIXES, &path, 99);
        assert!(scheme.verify(&announcement(&PREFIXES, &path), &attestation, Asn(99)));
    }
}
