//! `kc-p256`: known answers, one encoding, and hostile keys and signatures.

use wayleave_attestation::suite::p256::{KEY_LEN, P256, SIGNATURE_LEN};
use wayleave_attestation::{Claim, KeyRefused, Suite, SuiteId, SuiteKey, suite};
use wayleave_crypto::secret::Secret;

fn hex(text: &str) -> Vec<u8> {
    let text: String = text.split_whitespace().collect();
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("hex")).collect()
}

/// The key of RFC 6979 appendix A.2.5.
fn published() -> (Secret<32>, Vec<u8>) {
    let scalar = hex("C9AFA9D845BA75166B5C215767B1D6934E50C3DB36E89B127B8A622B120F6721");
    let point = hex("04 60FED4BA255A9D31C961EB74C6356D68C049B8923B61FA6CE669622E60F29FB6
        7903FE1008B8BC99A41AE9E95628BC64F2F1B20C2D7E9F5177A3C294D4462299");
    (Secret::new(scalar.try_into().expect("32 octets")), point)
}

/// Its signatures of "sample" and "test" with SHA-256.
fn signatures() -> [(&'static [u8], Vec<u8>); 2] {
    [
        (
            b"sample",
            hex("EFD48B2AACB6A8FD1140DD9CD45E81D69D2C877B56AAF991C34D0EA84EAF3716
                F7CB1C942D657C41D436C7A1B6E29F65F3E900DBB9AFF4064DC4AB2F843ACDA8"),
        ),
        (
            b"test",
            hex("F1ABB023518351CD71D881567B1EA663ED3EFCF6C5132B354F28D3B0B7D38367
                019F4113742A2B14BD25926B49C649155F267E60D3814B4C0CC84250E46F0083"),
        ),
    ]
}

/// The curve's order less s: the other right signature.
fn turned(signature: &[u8]) -> Vec<u8> {
    let order = hex("FFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551");
    let mut out = signature.to_vec();
    let mut borrow = 0i16;
    for at in (0..32).rev() {
        let difference = i16::from(order[at]) - i16::from(signature[32 + at]) - borrow;
        borrow = i16::from(difference < 0);
        out[32 + at] = difference.rem_euclid(256) as u8;
    }
    out
}

#[test]
fn the_published_signatures_are_right_in_either_half() {
    let (scalar, point) = published();
    let pair = P256.pair(&scalar).expect("a pair");
    assert_eq!(pair.public(), point);
    for (message, signature) in signatures() {
        assert!(P256.verify(&point, message, &signature));
        assert!(P256.verify(&point, message, &turned(&signature)));
        assert!(!P256.verify(&point, b"else", &signature));
    }
}

#[test]
fn what_a_pair_signs_is_right_and_no_bit_may_change() {
    let mut key = P256.generate(&Secret::new([5; 32]));
    assert_eq!(key.public(), P256.generate(&Secret::new([5; 32])).public());
    let signature = key.sign(b"message").expect("signed");
    assert_eq!((signature.len(), key.public().len()), (SIGNATURE_LEN, KEY_LEN));
    assert!(P256.verify(key.public(), b"message", &signature));
    for octet in 0..SIGNATURE_LEN {
        let mut changed = signature.clone();
        changed[octet] ^= 1 << (octet % 8);
        assert!(!P256.verify(key.public(), b"message", &changed));
    }
    for octet in 0..KEY_LEN {
        let mut changed = key.public().to_vec();
        changed[octet] ^= 1 << (octet % 8);
        assert!(!P256.verify(&changed, b"message", &signature));
    }
}

#[test]
fn there_is_one_encoding_of_a_key_and_one_of_a_signature() {
    let (_, point) = published();
    let [(message, signature), _] = signatures();
    let compressed = [&[3u8][..], &point[1..33]].concat();
    assert_eq!(P256.check_key(&compressed), Err(KeyRefused::Length { need: 65, have: 33 }));
    for form in [0u8, 2, 3, 5, 6, 7] {
        let mut other = point.clone();
        other[0] = form;
        assert_eq!(P256.check_key(&other), Err(KeyRefused::NotCanonical));
        assert!(!P256.verify(&other, message, &signature));
    }
    let mut off = point.clone();
    off[64] ^= 1;
    assert_eq!(P256.check_key(&off), Err(KeyRefused::Weak("the point is not on the curve")));
    assert!(P256.check_key(&[4; 65]).is_err() && P256.check_key(&[]).is_err());
    // DER, one octet more or less, and zeros for r or s.
    let der = [&[0x30, 0x46, 2, 0x21, 0][..], &signature[..32], &[2, 0x21, 0], &signature[32..]].concat();
    assert!(!P256.verify(&point, message, &der));
    assert!(!P256.verify(&point, message, &signature[1..]));
    assert!(!P256.verify(&point, message, &[&signature[..], &[0]].concat()));
    for half in [0..32, 32..64] {
        let mut zero = signature.clone();
        zero[half].fill(0);
        assert!(!P256.verify(&point, message, &zero));
    }
    // s beyond the order is congruent to a right one, and is no signature.
    let mut small = signatures()[1].1.clone();
    assert_eq!(small[32], 1);
    let order = hex("FFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551");
    let mut carry = 0u16;
    for at in (0..32).rev() {
        let sum = u16::from(small[32 + at]) + u16::from(order[at]) + carry;
        small[32 + at] = sum as u8;
        carry = sum >> 8;
    }
    assert!(!P256.verify(&point, b"test", &small));
}

#[test]
fn a_burst_gives_each_claim_its_own_verdict() {
    let mut keys: Vec<Box<dyn SuiteKey>> = (1..4).map(|seed| P256.generate(&Secret::new([seed; 32]))).collect();
    let mut made: Vec<(Vec<u8>, [u8; 1], Vec<u8>)> = Vec::new();
    for number in 0..12u8 {
        let key = &mut keys[usize::from(number / 4)];
        made.push((key.public().to_vec(), [number], key.sign(&[number]).expect("signed")));
    }
    made[2].1 = [99];
    made[5].0.truncate(64);
    made[9].2.truncate(60);
    let claims: Vec<Claim<'_>> =
        made.iter().map(|(public, message, signature)| Claim { public, message, signature }).collect();
    let expected: Vec<bool> = (0..12).map(|number| ![2, 5, 9].contains(&number)).collect();
    assert_eq!(P256.verify_batch(&claims), expected);
    assert!(P256.verify_batch(&[]).is_empty());
}

#[test]
fn hostile_pairs_are_refused() {
    let (scalar, point) = published();
    let other = P256.generate(&Secret::new([9; 32])).public().to_vec();
    assert!(P256.take_granted(&point, scalar.expose()).is_ok());
    assert_eq!(P256.take_granted(&other, scalar.expose()).err(), Some(KeyRefused::Mismatch));
    for bad in [[0u8; 32], [0xff; 32]] {
        assert!(matches!(P256.take_granted(&point, &bad).err(), Some(KeyRefused::Weak(_))));
    }
    assert!(matches!(P256.take_granted(&point, &[1; 31]).err(), Some(KeyRefused::Length { .. })));
}

#[test]
fn the_suite_is_found_by_number_and_name() {
    assert_eq!(SuiteId::from_byte(5), Some(SuiteId::KcP256));
    assert_eq!(SuiteId::from_name("kc-p256"), Some(SuiteId::KcP256));
    let found = suite::of(SuiteId::KcP256).expect("a suite for chains");
    assert_eq!((found.id(), found.strength(), SuiteId::KcP256.is_reserved()), (SuiteId::KcP256, 128, false));
}
