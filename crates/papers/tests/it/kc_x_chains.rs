//! Honest chains of the paper suites, baselines and mixes verify, whatever their length.
//!
//! KCX-01: honest chains of 1 to 64 hops in the paper's suites, its hybrid at 1:1, 2:1 and KC-MT over KC-RSA, and the
//! baselines (SPV to its 16): valid. `WAYLEAVE_CHAINS` says how many random ones.

use wayleave_attestation::SuiteId;
use wayleave_core::Asn;
use wayleave_crypto::secret::Secret;
use wayleave_papers::bench::attestation::{self, SuiteVariant};

#[test]
fn honest_chains_of_the_papers_suites_and_mixes_are_valid() {
    let seed = Secret::new([6; 32]);
    for variant in SuiteVariant::all().into_iter().filter(|variant| variant.suite.is_reserved()) {
        let mut scheme = variant.scheme(&seed).expect("it is there");
        // SPV has sixteen positions.
        let longest = if variant.suite == SuiteId::Spv { 16 } else { 64 };
        for length in [1, 2, 3, 4, 7, 16, 33, 64].into_iter().filter(|length| *length <= longest) {
            let path: Vec<Asn> = (1..=length).map(Asn).collect();
            let received = attestation::receive(scheme.as_mut(), &path, &["192.0.2.0/24".parse().expect("a prefix")])
                .expect("attests");
            let right = scheme.verify(&received.announcement, &received.attestation, attestation::ROUTER);
            assert!(right, "{} of {length}", variant.name());
        }
    }
}
