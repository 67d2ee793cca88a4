//! The expiry of the paper's signatures (section III-B), in each of its suites.
//!
//! KCX-03, expiry: routes of the paper's suites beyond their expiry; the date made later in flight and by an AS that
//! signs onward; a hop of an earlier announcement under the origin's new one: refused, and valid when announced again.

use wayleave_attestation::suite::SuiteId;
use wayleave_core::{Asn, UnixTime};
use wayleave_crypto::secret::Secret;
use wayleave_papers::kc_x;
use wayleave_papers::kc_x::expiry::{Expiry, LIFETIME};
use wayleave_papers::kc_x::mt::{Attestation, KcMt};
use wayleave_papers::kc_x::origin::OriginStatement;
use wayleave_papers::scheme::Scheme;

use crate::paths::{announcement, chain};

const PREFIXES: [&str; 1] = ["192.0.2.0/24"];
/// Some time of announcement, in seconds since 1970; not a full hour.
const ANNOUNCED: u64 = 1_700_000_123;
/// The place of the expiry in every attestation: behind the number of hops.
const PLACE: std::ops::Range<usize> = 1..5;

fn at(secs: u64) -> UnixTime {
    UnixTime(secs * 1_000_000)
}

/// The paper's suites, at the time of announcement.
fn schemes() -> Vec<Box<dyn Scheme>> {
    let suites = [SuiteId::KcMtPaper, SuiteId::KcRsaPaper, SuiteId::KcHybridPaper];
    let scheme = |suite| {
        let mut scheme = kc_x::scheme(suite, &Secret::new([6; 32])).expect("a suite of the paper");
        scheme.set_time(at(ANNOUNCED));
        scheme
    };
    suites.map(scheme).into()
}

/// The last second in which a route announced at [`ANNOUNCED`] is valid.
fn last_second() -> u64 {
    u64::from(Expiry::of_route_announced_at(at(ANNOUNCED)).0)
}

#[test]
fn a_route_is_refused_once_its_expiry_has_passed_and_accepted_when_it_is_announced_again() {
    for mut scheme in schemes() {
        let path = [1, 2, 3];
        let route = announcement(&PREFIXES, &path);
        let old = chain(scheme.as_mut(), &PREFIXES, &path, 4);
        assert!((LIFETIME.as_secs()..LIFETIME.as_secs() + 3_600).contains(&(last_second() - ANNOUNCED)));
        for (time, valid) in [(ANNOUNCED, true), (last_second(), true), (last_second() + 1, false)] {
            scheme.set_time(at(time));
            assert_eq!(scheme.verify(&route, &old, Asn(4)), valid, "{} at {time}", scheme.name());
        }
        let new = chain(scheme.as_mut(), &PREFIXES, &path, 4);
        assert!(scheme.verify(&route, &new, Asn(4)), "{}", scheme.name());
        let verdicts = scheme.verify_burst(&[(&route, &old), (&route, &new)], Asn(4));
        assert_eq!(verdicts, [false, true], "{}", scheme.name());
    }
}

#[test]
fn nobody_on_the_path_extends_the_life_of_a_route() {
    for mut scheme in schemes() {
        let route = announcement(&PREFIXES, &[1, 2, 3]);
        let attestation = chain(scheme.as_mut(), &PREFIXES, &[1, 2, 3], 4);
        assert_eq!(attestation[PLACE], u32::try_from(last_second()).expect("before 2106").to_be_bytes());
        // As it came, and signed onward by an AS that received it so.
        let mut longer = attestation.clone();
        longer[PLACE.end - 1] += 1;
        assert!(!scheme.verify(&route, &longer, Asn(4)), "{}", scheme.name());
        let onward = announcement(&PREFIXES, &[1, 2, 3, 4]);
        let signed = scheme.attest(&onward, &longer, Asn(5)).expect("signs");
        assert!(!scheme.verify(&onward, &signed, Asn(5)), "{}", scheme.name());
        // An honest AS that signs later leaves the expiry as it is.
        scheme.set_time(at(last_second() - 1));
        let signed = scheme.attest(&onward, &attestation, Asn(5)).expect("signs");
        assert_eq!(signed[PLACE], attestation[PLACE], "{}", scheme.name());
        assert!(scheme.verify(&onward, &signed, Asn(5)), "{}", scheme.name());
    }
}

#[test]
fn a_hop_of_an_earlier_announcement_does_not_fit_a_later_one() {
    // Both announcements are under one tree of the origin, which signs for 15 UPDATEs.
    let mut scheme = KcMt::new(&Secret::new([6; 32]), OriginStatement::Remembered);
    scheme.set_time(at(ANNOUNCED));
    let old = Attestation::decode(&chain(&mut scheme, &PREFIXES, &[1, 2], 3)).expect("honest");
    scheme.set_time(at(last_second() + 1));
    let new = Attestation::decode(&chain(&mut scheme, &PREFIXES, &[1], 2)).expect("honest");
    assert_eq!(new.hops[0].key, old.hops[0].key, "still one tree");
    // AS 2 withdrew the route from AS 3, which has the hop for it and hears the origin's new statement elsewhere.
    let spliced = Attestation { hops: vec![new.hops[0].clone(), old.hops[1].clone()], ..new };
    assert!(!scheme.verify(&announcement(&PREFIXES, &[1, 2]), &spliced.encode(), Asn(3)));
}
