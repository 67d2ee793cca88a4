//! KC-RSA with the XOR-ed aggregate: honest chains, sizes, mutations, and the domain problem of the literal equations.
//!
//! KCX-05: random chains of KC-RSA: none fails with full-domain hashes and high moduli; one in six by the literal
//! equations (`WAYLEAVE_KC_RSA_CHAINS` says how many).

use wayleave_core::Asn;
use wayleave_crypto::secret::Secret;
use wayleave_papers::kc_x::rsa::{Attestation, KcRsa, Mode};
use wayleave_papers::scheme::Scheme;

use crate::paths::{announcement, chain};

const PREFIXES: [&str; 1] = ["192.0.2.0/24"];

#[test]
fn honest_chains_verify_and_the_aggregate_is_128_bytes() {
    let mut scheme = KcRsa::new(&Secret::new([1; 32]), Mode::FullDomain);
    let path: Vec<u32> = (1..=12).collect();
    for hops in 1..=path.len() {
        let attestation = chain(&mut scheme, &PREFIXES, &path[..hops], 99);
        assert!(scheme.verify(&announcement(&PREFIXES, &path[..hops]), &attestation, Asn(99)));
        assert_eq!(scheme.signature_bytes(&attestation), 128);
        let sizes = Attestation::decode(&attestation).expect("decodes").sizes();
        assert_eq!(sizes.moduli, 128 * hops, "what the paper does not count");
        let beside = sizes.vectors + sizes.expiry + sizes.granted;
        assert_eq!(sizes.signature + sizes.moduli + beside, attestation.len());
    }
}

#[test]
fn no_mutation_of_path_vector_key_or_signature_verifies() {
    let mut scheme = KcRsa::new(&Secret::new([2; 32]), Mode::FullDomain);
    let path = [1, 2, 3];
    let attestation = chain(&mut scheme, &PREFIXES, &path, 4);
    let good = announcement(&PREFIXES, &path);
    // The last 128 bytes are the private key granted to the next hop, which the verifier does not use.
    for index in 0..attestation.len() - 128 {
        let mut bad = attestation.clone();
        bad[index] ^= 1 << (index % 8);
        assert!(!scheme.verify(&good, &bad, Asn(4)), "octet {index}");
    }
    for path in [&[1, 3, 2][..], &[1, 2], &[2, 3], &[1, 2, 5], &[1, 2, 3, 3], &[]] {
        assert!(!scheme.verify(&announcement(&PREFIXES, path), &attestation, Asn(4)));
    }
    assert!(!scheme.verify(&good, &attestation, Asn(5)));
}

/// Chains by the literal equations, at most.
const MOST_LITERAL: u32 = 2_000;

#[test]
fn the_full_domain_never_fails_and_the_literal_equations_do() {
    // The rate depends on the distribution of moduli: with primes whose two top bits are set, 6 % for each exclusive or.
    // There is one key for each of 40 ASes; every chain is a random walk over four of them. `WAYLEAVE_KC_RSA_CHAINS` sets the
    // number of chains (KCX-05).
    let chains = std::env::var_os("WAYLEAVE_KC_RSA_CHAINS");
    let chains: u32 = chains.and_then(|count| count.to_str()?.parse().ok()).unwrap_or(200);
    let mut failures = Vec::new();
    for mode in [Mode::FullDomain, Mode::Literal] {
        let mut scheme = KcRsa::new(&Secret::new([3; 32]), mode);
        let mut state = 1u32;
        let mut failed = 0;
        // A few chains suffice for the literal equations.
        let chains = if mode == Mode::Literal { chains.min(MOST_LITERAL) } else { chains };
        for _ in 0..chains {
            let mut path = Vec::new();
            while path.len() < 4 {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let asn = 1 + (state >> 16) % 40;
                if !path.contains(&asn) {
                    path.push(asn);
                }
            }
            let attestation = chain(&mut scheme, &PREFIXES, &path, 99);
            failed += u32::from(!scheme.verify(&announcement(&PREFIXES, &path), &attestation, Asn(99)));
        }
        failures.push(failed);
    }
    let literal = f64::from(failures[1]) / f64::from(chains.min(MOST_LITERAL));
    println!("of {chains} chains of 4: full domain {} failed, literal {} ({literal:.3})", failures[0], failures[1]);
    assert_eq!(failures[0], 0);
    assert!((0.05..0.30).contains(&literal), "{literal}");
}
