//! Any octets as the attribute's value, a signed object, or keys of a neighbour: an error, or something that has this
//! encoding and no other; and whatever the value, no route is valid by it that nobody attested.
//!
//! KCX-06: any octets as a key pair: refused by bounded work.
//! BGP-13: any octets as an attestation: an error or a value with this encoding.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use wayleave_attestation::chain::Attestation;
use wayleave_attestation::grant::Grant;
use wayleave_attestation::leaf::LeafView;
use wayleave_attestation::path::Path;
use wayleave_attestation::pki::{Object, RegisteredKey, Signed, View, Vrp};
use wayleave_attestation::suite::{self, SuiteId};
use wayleave_attestation::validate::{Carried, Clock, Context, Route, Rules, validate};
use wayleave_core::{Asn, UnixTime, VerdictKind};
use wayleave_crypto::secret::Secret;

static VIEW: LazyLock<View> = LazyLock::new(|| {
    let mut view = View::new(1);
    for asn in [1, 3] {
        let key = suite::of(SuiteId::KcEd25519).expect("standard").generate(&Secret::new([asn as u8; 32]));
        let public = key.public().to_vec();
        view.add_key(Asn(asn), RegisteredKey { suite: SuiteId::KcEd25519, public, not_before: 0, not_after: u64::MAX });
    }
    for text in ["0.0.0.0/0", "::/0"] {
        let prefix: wayleave_core::Prefix = text.parse().expect("a prefix");
        view.add_vrp(Vrp { prefix, max_length: prefix.afi().bits(), asn: Asn(1) });
    }
    view
});

fuzz_target!(|data: &[u8]| {
    let Some((&length, data)) = data.split_first() else { return };
    if let Ok(attestation) = Attestation::decode(data) {
        assert_eq!(attestation.octets(), data);
        assert_eq!(attestation.hops().count(), attestation.hop_count());
        let prefixes: Vec<_> = attestation.prefixes().collect();
        assert!(!prefixes.is_empty() && prefixes.is_sorted_by(|a, b| a < b));
        let path: Vec<Asn> = (1..=u32::from(length % 70)).map(Asn).collect();
        let path = Path::from_travel(&path);
        let rules = Rules { lab: true, ..Rules::default() };
        let now = UnixTime(attestation.head().base_time.saturating_mul(1_000_000));
        let context = Context { view: &VIEW, rules: &rules, clock: Clock { now, uncertainty: 0 }, directories: &[] };
        let carried = Carried::Value(data);
        let report = validate(&context, &Route { prefixes: &prefixes, path: &path, carried, receiver: Asn(99) });
        // The corpus has no signature of these keys.
        assert_ne!(report.kind, VerdictKind::Valid);
        assert_ne!(report.kind, VerdictKind::Gap);
    }
    if let Some((leaf, rest)) = LeafView::decode(data) {
        assert_eq!(leaf.octets().len() + rest.len(), data.len());
        assert!(leaf.keys().count() <= 4);
    }
    if let Ok(signed) = Signed::decode(data) {
        assert!(!signed.verify(&[3; 32]) && !signed.verify_hybrid(&[3; 32], &[3; 32]));
        // A manifest, too, lists what its publisher signs, in order, and nothing else.
        if let Object::Manifest(manifest) = &signed.object {
            assert!(manifest.entries.is_sorted_by(|a, b| (a.kind, a.asn, a.sequence) < (b.kind, b.asn, b.sequence)));
            assert!(manifest.entries.iter().all(|entry| entry.kind < 4 && entry.sequence < manifest.span.sequence));
        }
    }
    let _ = Grant::decode(data, Asn(0), Asn(0), true);
});
