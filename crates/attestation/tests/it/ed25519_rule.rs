//! The one rule of Ed25519: the published edge cases, and a batch that always agrees with its parts.
//!
//! KCX-13: the twelve cases of "Taming the many EdDSAs", the 196 of ZIP-215, torsion in keys and commitments, errors
//! that cancel: one verdict, alone and in every batch.

use curve25519_dalek::constants::EIGHT_TORSION;
use curve25519_dalek::edwards::{CompressedEdwardsY, EdwardsPoint};
use curve25519_dalek::scalar::Scalar;
use proptest::prelude::*;
use sha2::{Digest, Sha512};
use wayleave_attestation::suite::ed25519::Ed25519;
use wayleave_attestation::suite::{Claim, Suite};
use wayleave_crypto::secret::Secret;

/// Key, message, signature.
type Case = ([u8; 32], Vec<u8>, [u8; 64]);

/// What the rule says of each case; alone, as one batch, among good signatures, and in pairs with a good one.
fn verdicts(cases: &[Case]) -> Vec<bool> {
    let alone: Vec<bool> =
        cases.iter().map(|(key, message, signature)| Ed25519.verify(key, message, signature)).collect();
    let claims: Vec<Claim<'_>> = cases.iter().map(claim).collect();
    assert_eq!(Ed25519.verify_batch(&claims), alone);
    let good = honest(7, b"good");
    for (case, right) in cases.iter().zip(&alone) {
        for size in [4, 9] {
            let mut batch = vec![claim(&good); size];
            batch[size / 2] = claim(case);
            let mut expected = vec![true; size];
            expected[size / 2] = *right;
            assert_eq!(Ed25519.verify_batch(&batch), expected);
        }
    }
    alone
}

fn claim((public, message, signature): &Case) -> Claim<'_> {
    Claim { public, message, signature }
}

fn honest(seed: u8, message: &[u8]) -> Case {
    let mut key = Ed25519.generate(&Secret::new([seed; 32]));
    let signature = key.sign(message).expect("signs");
    (key.public().try_into().expect("32"), message.to_vec(), signature.try_into().expect("64"))
}

fn hex<const N: usize>(text: &str) -> [u8; N] {
    let mut out = [0; N];
    for (byte, digits) in out.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).expect("ASCII"), 16).expect("hexadecimal");
    }
    out
}

#[test]
fn the_twelve_cases_of_taming_the_many_eddsas() {
    let text = include_str!("../../../../test-data/attestation/ed25519-speccheck.json");
    let cases: Vec<serde_json::Value> = serde_json::from_str(text).expect("JSON");
    let field = |case: &serde_json::Value, name: &str| case[name].as_str().expect("a string").to_owned();
    let read: Vec<Case> = cases
        .iter()
        .map(|case| {
            let message: [u8; 32] = hex(&field(case, "message"));
            (hex(&field(case, "pub_key")), message.to_vec(), hex(&field(case, "signature")))
        })
        .collect();
    // 0, 1, 11: a key of small order. 6, 7: S is not below L. 8, 9: R is not canonical. 10, 11: nor is the key.
    // 2 to 5 satisfy the equation with the cofactor; 4 and 5 only that one.
    let expected = [false, false, true, true, true, true, false, false, false, false, false, false];
    assert_eq!(verdicts(&read), expected);
}

/// Every encoding of a point of small order: the eight points, and y + p or a sign that says nothing where these fit.
fn small_order_encodings() -> Vec<[u8; 32]> {
    let mut encodings: Vec<[u8; 32]> = Vec::new();
    for point in EIGHT_TORSION {
        let canonical = point.compress().to_bytes();
        let mut candidates = vec![canonical];
        for sign in [0, 0x80] {
            let mut y = canonical;
            y[31] &= 0x7f;
            let mut signed = y;
            signed[31] |= sign;
            candidates.push(signed);
            // y + p stays below 2^255 where y < 19.
            if y[0] < 19 && y[1..].iter().all(|byte| *byte == 0) {
                let mut long = [0xff; 32];
                long[0] = 0xed + y[0];
                long[31] = 0x7f | sign;
                candidates.push(long);
            }
        }
        let same = |bytes: &[u8; 32]| CompressedEdwardsY(*bytes).decompress().is_some_and(|other| other == point);
        candidates.retain(same);
        encodings.extend(candidates);
    }
    encodings.sort_unstable();
    encodings.dedup();
    encodings
}

#[test]
fn the_196_cases_of_zip_215_are_refused_for_their_keys_of_small_order() {
    let encodings = small_order_encodings();
    assert_eq!(encodings.len(), 14);
    let mut cases = Vec::new();
    for public in &encodings {
        for commitment in &encodings {
            let mut signature = [0; 64];
            signature[..32].copy_from_slice(commitment);
            cases.push((*public, b"Zcash".to_vec(), signature));
        }
    }
    assert_eq!(cases.len(), 196);
    // ZIP-215 accepts all of them: such a key signs everything for everybody. We refuse the keys, in both ways.
    assert_eq!(verdicts(&cases), vec![false; 196]);
}

/// A signature whose key and commitment carry components of small order: the equation with the cofactor holds.
fn with_torsion(key: usize, commitment: usize, message: &[u8]) -> Case {
    let (secret, nonce) = (Scalar::from(1_234_567_u64), Scalar::from(7_654_321_u64));
    let public = (EdwardsPoint::mul_base(&secret) + EIGHT_TORSION[key]).compress().to_bytes();
    let commitment = (EdwardsPoint::mul_base(&nonce) + EIGHT_TORSION[commitment]).compress().to_bytes();
    let digest = Sha512::new().chain_update(commitment).chain_update(public).chain_update(message);
    let challenge = Scalar::from_bytes_mod_order_wide(&digest.finalize().into());
    let mut signature = [0; 64];
    signature[..32].copy_from_slice(&commitment);
    signature[32..].copy_from_slice((nonce + challenge * secret).as_bytes());
    (public, message.to_vec(), signature)
}

#[test]
fn components_of_small_order_count_alike_alone_and_in_batches() {
    let mut cases = Vec::new();
    for key in 0..8 {
        for commitment in 0..8 {
            cases.push(with_torsion(key, commitment, b"torsion"));
        }
    }
    assert_eq!(verdicts(&cases), vec![true; 64]);
    for (_, message, _) in &mut cases {
        message.push(0);
    }
    assert_eq!(verdicts(&cases), vec![false; 64]);
}

#[test]
fn errors_that_would_cancel_in_a_plain_sum_do_not() {
    let mut cases: Vec<Case> = (0..8).map(|i| honest(i, &[i])).collect();
    let shift = |case: &mut Case, by: Scalar| {
        let response = Scalar::from_canonical_bytes(case.2[32..].try_into().expect("32")).expect("below L");
        case.2[32..].copy_from_slice((response + by).as_bytes());
    };
    shift(&mut cases[2], Scalar::ONE);
    shift(&mut cases[5], -Scalar::ONE);
    let expected: Vec<bool> = (0..8).map(|i| i != 2 && i != 5).collect();
    assert_eq!(verdicts(&cases), expected);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_batch_agrees_with_its_parts(
        edits in proptest::collection::vec((0u8..5, 0u8..4, 0usize..96, any::<u8>()), 1..40),
    ) {
        let cases: Vec<Case> = edits.iter().enumerate().map(|(i, &(seed, kind, at, bits))| {
            let mut case = match kind {
                0 => with_torsion(usize::from(bits) % 8, at % 8, &[i as u8]),
                _ => honest(seed, &[i as u8]),
            };
            if kind == 3 {
                match at {
                    0..64 => case.2[at] ^= bits,
                    _ => case.0[at - 64] ^= bits,
                }
            }
            case
        }).collect();
        let claims: Vec<Claim<'_>> = cases.iter().map(claim).collect();
        let alone: Vec<bool> = claims.iter().map(|c| Ed25519.verify(c.public, c.message, c.signature)).collect();
        prop_assert_eq!(Ed25519.verify_batch(&claims), alone);
    }
}
