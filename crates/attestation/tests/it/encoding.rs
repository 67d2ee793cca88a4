//! The encodings: what decodes encodes back, nothing panics, and no two inputs of a signature are alike.

use std::collections::HashMap;

use proptest::prelude::*;
use wayleave_attestation::chain::{Attestation, Exports, Head, Hop, Next, SignedInput, Signer};
use wayleave_attestation::leaf::{Leaf, LeafKey, LeafView};
use wayleave_attestation::pki::{Object, Profile, ProfileKey, Record, Role, Signed, Span, Strictness};
use wayleave_attestation::suite::ed25519::Ed25519;
use wayleave_attestation::suite::{Suite, SuiteId};
use wayleave_core::{Afi, Asn, Prefix};
use wayleave_crypto::secret::Secret;

/// Everything that a signed input says, in a form that can be compared.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Content {
    suite: u8,
    index: u8,
    signer: u8,
    directory: bool,
    prepend: u8,
    asn: u32,
    sequence: u64,
    times: (u64, u64),
    exports: u32,
    previous: [u8; 32],
    commitment: [u8; 32],
    afi: Afi,
    nlri: Vec<u8>,
    skipped: Vec<u32>,
}

impl Content {
    fn encode(&self) -> Vec<u8> {
        let leaf = Leaf::keyless();
        let skipped: Vec<Asn> = self.skipped.iter().copied().map(Asn).collect();
        let signer = match self.signer {
            0 => Signer::Chained { second: false },
            _ => Signer::Registered { skipped: skipped.len() as u8, tag: [0; 2] },
        };
        let hop = Hop {
            suite: self.suite,
            signer,
            prepend: self.prepend,
            not_before_offset: 0,
            lifetime: self.times.1 as u16,
            exports: Exports(self.exports),
            next: if self.directory { Next::Directory } else { Next::Neighbour(leaf.view()) },
            burst: None,
            public: &[],
            signature: &[],
            octets: &[],
        };
        let head = Head {
            afi: self.afi,
            nlri: &self.nlri,
            prefix_count: 32,
            sequence: self.sequence,
            base_time: self.times.0,
        };
        let input = SignedInput {
            index: self.index,
            asn: Asn(self.asn),
            skipped: &skipped,
            previous: &self.previous,
            commitment: &self.commitment,
        };
        let mut out = Vec::new();
        input.encode(&head, &hop, &mut out);
        out
    }
}

prop_compose! {
    /// Few values for each field, so that near misses are common.
    fn content()(
        suite in 1u8..3, index in 0u8..3, registered in any::<bool>(), directory in any::<bool>(), prepend in 1u8..3,
        asn in 1u32..3, sequence in 0u64..2, start in 0u64..2, lifetime in 1u64..3, exports in 0u32..3, previous in 0u8..2,
        commitment in 0u8..2, ipv6 in any::<bool>(), nlri in proptest::collection::vec(0u8..2, 0..6),
        skipped in proptest::collection::vec(0u32..2, 0..4),
    ) -> Content {
        let skipped = if registered { skipped } else { Vec::new() };
        Content {
            suite, index, signer: if registered { 1 + u8::from(!skipped.is_empty()) } else { 0 }, directory, prepend, asn, sequence,
            times: (start, lifetime), exports, previous: [previous; 32], commitment: [commitment; 32],
            afi: if ipv6 { Afi::Ipv6 } else { Afi::Ipv4 }, nlri, skipped,
        }
    }
}

fn prefixes() -> impl Strategy<Value = Vec<Prefix>> {
    proptest::collection::btree_set((any::<u32>(), 0u8..=32), 1..=32).prop_map(|set| {
        let prefix = |(bits, length)| Prefix::from_nlri(Afi::Ipv4, length, &u32::to_be_bytes(bits)).expect("fits");
        let mut prefixes: Vec<Prefix> = set.into_iter().map(prefix).collect();
        prefixes.sort_unstable();
        prefixes.dedup();
        prefixes
    })
}

prop_compose! {
    fn leaf()(suites in proptest::collection::btree_set(any::<u8>(), 0..=4), key in any::<[u8; 32]>(), units in 0u16..16, granted in any::<bool>()) -> Leaf {
        let keys: Vec<LeafKey> = suites.into_iter().map(|suite| LeafKey { suite, key }).collect();
        if keys.is_empty() { Leaf::keyless() } else { Leaf::new(&keys, units * 16, granted).expect("a leaf") }
    }
}

/// A value whose form is right and whose signatures are noise, written by hand from the documented format.
fn value() -> impl Strategy<Value = Vec<u8>> {
    let hop = (
        any::<u8>(),
        1u8..=255,
        0u8..3,
        (any::<bool>(), proptest::option::of(1u8..=8), any::<u32>()),
        1u16..,
        leaf(),
        1u8..=4,
        proptest::collection::vec(any::<u8>(), 0..90),
    );
    (prefixes(), any::<u64>(), any::<u32>(), proptest::collection::vec(hop, 1..6)).prop_map(
        |(prefixes, sequence, base, hops)| {
            let mut out = vec![2, 0, 0, 1, 1, prefixes.len() as u8];
            for prefix in &prefixes {
                out.push(prefix.len());
                out.extend_from_slice(&prefix.octets()[..usize::from(prefix.len()).div_ceil(8)]);
            }
            out.extend_from_slice(&sequence.to_be_bytes());
            out.extend_from_slice(&u64::from(base).to_be_bytes());
            out.push(hops.len() as u8);
            let listed = u32::MAX.checked_shl(32 - prefixes.len() as u32).unwrap_or(0);
            for (index, (suite, prepend, signer, form, lifetime, leaf, depth, noise)) in hops.into_iter().enumerate() {
                let (slot, burst, exports) = form;
                let suite = suite.max(1);
                let signer = if index == 0 { 1 } else { signer };
                let short = if prepend < 8 { prepend } else { 0 };
                let next = if slot { 2 } else { 0 };
                out.extend_from_slice(&[suite, signer << 6 | next << 4 | u8::from(burst.is_some()) << 3 | short]);
                if short == 0 {
                    out.push(prepend);
                }
                if signer == 2 {
                    out.push(prepend);
                }
                if signer > 0 {
                    out.extend_from_slice(&[7, 9]);
                }
                if index > 0 {
                    out.extend_from_slice(&[0, 5]);
                }
                out.extend_from_slice(&lifetime.to_be_bytes());
                if index > 0 {
                    // The first prefix at least.
                    out.extend_from_slice(&((exports & listed) | 1 << 31).to_be_bytes());
                }
                out.extend_from_slice(leaf.view().octets());
                if slot {
                    out.extend_from_slice(&[depth, 0, 1]);
                    out.extend(std::iter::repeat_n(4, usize::from(depth) * 32));
                }
                if let Some(depth) = burst {
                    out.extend_from_slice(&[3; 16]);
                    out.extend_from_slice(&[depth, 1]);
                    out.extend(std::iter::repeat_n(4, usize::from(depth) * 32));
                }
                if suite == 1 {
                    out.extend_from_slice(&[6; 64]);
                } else {
                    let key: &[u8] = if signer == 0 { &[8; 33] } else { &[] };
                    out.extend_from_slice(&(key.len() as u16).to_be_bytes());
                    out.extend_from_slice(key);
                    out.extend_from_slice(&(noise.len() as u16).to_be_bytes());
                    out.extend_from_slice(&noise);
                }
            }
            out
        },
    )
}

fn ask_everything(octets: &[u8]) {
    let Ok(attestation) = Attestation::decode(octets) else { return };
    assert_eq!(attestation.octets(), octets);
    assert_eq!(attestation.hops().count(), attestation.hop_count());
    let hops: usize = attestation.hops().map(|hop| hop.octets.len()).sum();
    assert!(hops < octets.len());
    assert!((1..=32).contains(&attestation.prefixes().count()));
    for hop in attestation.hops() {
        let _ = (hop.commitment(Asn(1)), hop.not_after(u64::MAX), hop.next.leaf().map(|leaf| leaf.keys().count()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn two_different_inputs_are_never_signed_alike(many in proptest::collection::vec(content(), 2..60)) {
        let mut seen: HashMap<Vec<u8>, Content> = HashMap::new();
        for content in many {
            if let Some(other) = seen.insert(content.encode(), content.clone()) {
                prop_assert_eq!(other, content);
            }
        }
    }

    #[test]
    fn what_is_well_formed_decodes_to_itself(value in value()) {
        let attestation = Attestation::decode(&value);
        prop_assert!(attestation.is_ok(), "{:?}", attestation);
        ask_everything(&value);
    }

    #[test]
    fn decoding_never_panics(mut value in value(), edits in proptest::collection::vec((any::<u16>(), any::<u8>()), 0..6), cut in any::<u16>()) {
        for (at, byte) in edits {
            let at = usize::from(at) % value.len();
            value[at] = byte;
        }
        ask_everything(&value);
        value.truncate(usize::from(cut) % (value.len() + 1));
        ask_everything(&value);
    }

    #[test]
    fn noise_is_no_attestation_and_no_object(octets in proptest::collection::vec(any::<u8>(), 0..300)) {
        ask_everything(&octets);
        prop_assert!(Signed::decode(&octets).is_err() || octets.len() > 64);
        let _ = LeafView::decode(&octets);
    }

    #[test]
    fn a_leaf_has_one_encoding(leaf in leaf(), rest in proptest::collection::vec(any::<u8>(), 0..4)) {
        let mut octets = leaf.view().octets().to_vec();
        octets.extend_from_slice(&rest);
        let (read, after) = LeafView::decode(&octets).expect("a leaf");
        prop_assert_eq!(read.to_leaf(), leaf);
        prop_assert_eq!(after, &rest[..]);
    }

    #[test]
    fn objects_come_back_as_they_were_signed(
        asn in any::<u32>(), sequence in any::<u64>(), prefixes in prefixes(), strict in any::<bool>(), keys in 0u8..5,
    ) {
        let span = Span { sequence, not_before: 1, not_after: 2 };
        let mut key = Ed25519.generate(&Secret::new([1; 32]));
        let attested_since = strict.then_some((7, Strictness::Strict));
        let record = Record { asn: Asn(asn), span, attested_since, prefixes: prefixes.iter().map(|p| (*p, 32)).collect() };
        let keys = (0..keys).map(|i| ProfileKey { role: Role::Attest, suite: SuiteId::KcEd25519, public: vec![i; 32] });
        let profile = Profile { asn: Asn(asn), span, keys: keys.collect() };
        for object in [Object::Record(record), Object::Profile(profile)] {
            let octets = object.clone().sign(&mut *key).expect("signs");
            let signed = Signed::decode(&octets).expect("decodes");
            prop_assert!(signed.verify(key.public()));
            prop_assert_eq!(&signed.object, &object);
            let mut other = octets.clone();
            other[9] ^= 1;
            prop_assert!(!Signed::decode(&other).is_ok_and(|signed| signed.verify(key.public())));
        }
    }
}
