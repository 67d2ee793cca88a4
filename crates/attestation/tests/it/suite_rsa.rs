//! `kc-rsa`: signatures, keys from seeds, and hostile keys refused by bounded work.
//!
//! KCX-06: public keys and key pairs with an even modulus, a square, e = 1, p = 0, numbers that disagree, 16 kbit:
//! refused after at most 64 multiplications, far below a millisecond.

use std::sync::LazyLock;

use wayleave_attestation::suite::rsa::{RSA_2048, RSA_3072, Rsa, RsaPair};
use wayleave_attestation::{KeyRefused, Suite, SuiteKey};
use wayleave_crypto::secret::Secret;

/// Modular multiplications that a refusal may cost: at 3,072 bits each takes a few microseconds, so that this is far
/// below a millisecond.
const MOST_MULTIPLICATIONS: u32 = 64;

static PAIR: LazyLock<(Vec<u8>, Vec<u8>)> = LazyLock::new(|| {
    let pair = RSA_3072.pair(&Secret::new([1; 32]));
    (pair.primes().to_vec(), pair.public().to_vec())
});

fn pair() -> RsaPair {
    RSA_3072.accept_granted(&PAIR.0).expect("its own primes")
}

#[test]
fn signatures_verify_under_their_key_and_message_only() {
    for (suite, seed, len) in [(&RSA_3072, 1, 384), (&RSA_2048, 2, 256)] {
        let mut pair = suite.generate(&Secret::new([seed; 32]));
        let signature = pair.sign(b"message").expect("signs");
        assert_eq!((pair.public().len(), signature.len()), (len, len));
        assert_eq!((suite.public_key_len(), suite.signature_len()), (len, len));
        assert_eq!(suite.check_key(pair.public()), Ok(()));
        assert!(suite.verify(pair.public(), b"message", &signature));
        assert!(!suite.verify(pair.public(), b"massage", &signature));
        for index in [0, len / 2, len - 1] {
            let mut bad = signature.clone();
            bad[index] ^= 1;
            assert!(!suite.verify(pair.public(), b"message", &bad));
            let mut other = pair.public().to_vec();
            other[index] ^= 2;
            assert!(!suite.verify(&other, b"message", &signature));
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_pair_and_primes_travel() {
    assert_eq!(PAIR.1, pair().public());
    let mut pair = pair();
    let signature = pair.sign(b"granted").expect("signs");
    assert!(RSA_3072.verify(&PAIR.1, b"granted", &signature));
}

#[test]
fn a_granted_pair_is_taken_for_its_own_public_half_only() {
    let private = pair().private_half().expect("handed over");
    let mut taken = RSA_3072.take_granted(&PAIR.1, &private).expect("its own");
    let signature = taken.sign(b"granted").expect("signs");
    assert!(RSA_3072.verify(&PAIR.1, b"granted", &signature));
    let mut other = PAIR.1.clone();
    other[200] ^= 1;
    assert_eq!(RSA_3072.take_granted(&other, &private).err(), Some(KeyRefused::Mismatch));
}

#[test]
fn verifying_answers_false_to_any_octets() {
    let lengths = [0, 1, 255, 256, 383, 384, 385, 2048];
    for len in lengths {
        for octet in [0u8, 1, 2, 0x7f, 0x80, 0xff] {
            let bytes = vec![octet; len];
            for suite in [&RSA_3072, &RSA_2048] {
                assert!(!suite.verify(&bytes, b"message", &bytes));
                assert!(!suite.verify(&PAIR.1, b"message", &bytes));
                assert!(!suite.verify(&bytes, b"message", &PAIR.1));
            }
        }
    }
}

#[test]
fn hostile_public_keys_are_refused_by_bounded_work() {
    let good = &PAIR.1;
    let changed = |index: usize, octet: u8| {
        let mut key = good.clone();
        key[index] = octet;
        key
    };
    let (p, _) = PAIR.0.split_at(192);
    let square = square(p);
    let weak = KeyRefused::Weak;
    let cases = [
        ("even", changed(383, good[383] & 0xfe), weak("the modulus is even")),
        ("one bit short", changed(0, good[0] & 0x7f), KeyRefused::NotCanonical),
        ("one octet short", good[1..].to_vec(), KeyRefused::Length { need: 384, have: 383 }),
        ("16 kbit", vec![0xff; 2048], KeyRefused::Length { need: 384, have: 2048 }),
        ("empty", vec![], KeyRefused::Length { need: 384, have: 0 }),
        ("n = p^2", square, weak("the modulus is a square")),
        ("three times a number", vec![0xff; 384], weak("the modulus has a small factor")),
    ];
    for (name, key, why) in cases {
        let examined = RSA_3072.examine(&key);
        assert_eq!(examined.verdict, Err(why), "{name}");
        assert!(examined.multiplications <= MOST_MULTIPLICATIONS, "{name}: {}", examined.multiplications);
    }
    assert!(RSA_3072.examine(good).multiplications <= MOST_MULTIPLICATIONS);
}

#[test]
fn a_modulus_with_a_factor_below_2_to_the_16_is_refused() {
    // 65521, the largest prime below 2^16, and 3, the smallest odd one, times whatever gives 3,072 bits.
    for factor in [3u32, 65_521] {
        let mut product = vec![0u8; 384];
        let mut carry = 0u32;
        for (index, octet) in product.iter_mut().enumerate().rev() {
            // About 2^3072 / factor, odd: its low octets are those of a good modulus.
            let other = if index >= 2 { u32::from(PAIR.1[index]) } else { 0 };
            carry += other * factor;
            *octet = (carry & 0xff) as u8;
            carry >>= 8;
        }
        if product[0] & 0x80 == 0 {
            // Add factor times 2^3063 and its like until the top bit is set.
            let step = factor << (15 - factor.ilog2());
            while product[0] & 0x80 == 0 {
                let top = u32::from(product[0]) << 8 | u32::from(product[1]);
                let raised = top + (step & 0xffff);
                product[0] = (raised >> 8 & 0xff) as u8;
                product[1] = (raised & 0xff) as u8;
            }
        }
        assert_eq!(RSA_3072.check_key(&product), Err(KeyRefused::Weak("the modulus has a small factor")), "{factor}");
    }
}

#[test]
fn hostile_pairs_are_refused_by_bounded_work() {
    let (p, q) = PAIR.0.split_at(192);
    let pair = |p: &[u8], q: &[u8]| [p, q].concat();
    let even = {
        let mut even = p.to_vec();
        even[191] &= 0xfe;
        even
    };
    let one = [vec![0; 191], vec![1]].concat();
    let weak = KeyRefused::Weak;
    let cases = [
        ("p = q", pair(p, p), weak("the modulus is a square")),
        ("p = 0", pair(&[0; 192], q), weak("a prime is even")),
        ("p even", pair(&even, q), weak("a prime is even")),
        ("p = 1", pair(&one, q), weak("a prime is one")),
        ("short", p.to_vec(), KeyRefused::Length { need: 384, have: 192 }),
        ("16 kbit", vec![0xff; 2048], KeyRefused::Length { need: 384, have: 2048 }),
        ("small factors", pair(&[0xff; 192], q), weak("the modulus has a small factor")),
    ];
    for (name, primes, why) in cases {
        let examined = RSA_3072.examine_granted(&primes);
        assert_eq!(examined.verdict, Err(why), "{name}");
        assert!(examined.multiplications <= MOST_MULTIPLICATIONS, "{name}: {}", examined.multiplications);
        assert_eq!(RSA_3072.accept_granted(&primes).expect_err(name), why);
    }
    // A composite without small factors passes those checks, and fails its trial.
    let composite = next_odd_after(p);
    let examined = RSA_3072.examine_granted(&pair(&composite, q));
    let accepted = RSA_3072.accept_granted(&pair(&composite, q));
    assert_eq!(accepted.expect_err("not a prime"), examined.verdict.err().unwrap_or(KeyRefused::Mismatch));
}

#[test]
fn a_private_key_whose_numbers_disagree_is_refused() {
    let numbers = Numbers::of(&PAIR.0);
    let good = numbers.der();
    assert_eq!(RSA_3072.accept_pkcs1(&good).expect("its own numbers").public(), PAIR.1);
    let name = ["n", "e", "d", "p", "q", "dP", "dQ", "qInv"];
    for (index, name) in name.into_iter().enumerate() {
        let mut bad = numbers.clone();
        let last = bad.0[index].len() - 1;
        bad.0[index][last] ^= 2;
        assert!(RSA_3072.accept_pkcs1(&bad.der()).is_err(), "{name}");
        bad.0[index] = vec![1];
        assert!(RSA_3072.accept_pkcs1(&bad.der()).is_err(), "{name} = 1");
        bad.0[index] = vec![0];
        assert!(RSA_3072.accept_pkcs1(&bad.der()).is_err(), "{name} = 0");
        bad.0[index] = vec![0x7f; 2048];
        assert!(RSA_3072.accept_pkcs1(&bad.der()).is_err(), "{name} of 16 kbit");
    }
    let mut e = numbers.clone();
    e.0[1] = vec![1];
    assert_eq!(RSA_3072.accept_pkcs1(&e.der()).expect_err("e = 1"), KeyRefused::Weak("the exponent is not 65537"));
    for len in 0..good.len() {
        assert!(RSA_3072.accept_pkcs1(&good[..len]).is_err());
    }
}

/// The eight numbers of an `RSAPrivateKey`.
#[derive(Clone)]
struct Numbers([Vec<u8>; 8]);

impl Numbers {
    fn of(primes: &[u8]) -> Self {
        let der = Rsa::pkcs1_of(&RSA_3072, primes).expect("good primes");
        let mut rest = &der[4 + 3..];
        Self(std::array::from_fn(|_| {
            let (len, head) = match rest[1] {
                0x82 => (usize::from(rest[2]) << 8 | usize::from(rest[3]), 4),
                0x81 => (usize::from(rest[2]), 3),
                short => (usize::from(short), 2),
            };
            let number = rest[head..head + len].iter().copied().skip_while(|octet| *octet == 0).collect();
            rest = &rest[head + len..];
            number
        }))
    }

    fn der(&self) -> Vec<u8> {
        let mut body = vec![2, 1, 0];
        for number in &self.0 {
            let signed: Vec<u8> = if number[0] & 0x80 == 0 { number.clone() } else { [&[0], &number[..]].concat() };
            body.push(2);
            body.extend(length(signed.len()));
            body.extend(signed);
        }
        [vec![0x30], length(body.len()), body].concat()
    }
}

fn length(len: usize) -> Vec<u8> {
    match len {
        0..0x80 => vec![len as u8],
        0x80..0x100 => vec![0x81, len as u8],
        _ => vec![0x82, (len >> 8) as u8, len as u8],
    }
}

fn square(number: &[u8]) -> Vec<u8> {
    let mut out = vec![0u32; number.len() * 2];
    for (i, a) in number.iter().rev().enumerate() {
        let mut carry = 0;
        for (j, b) in number.iter().rev().enumerate() {
            carry += out[i + j] + u32::from(*a) * u32::from(*b);
            out[i + j] = carry & 0xff;
            carry >>= 8;
        }
        out[i + number.len()] = carry;
    }
    out.into_iter().rev().map(|octet| octet as u8).collect()
}

fn next_odd_after(number: &[u8]) -> Vec<u8> {
    let mut out = number.to_vec();
    // Fixed by the seed: not a prime, and without small factors or with, refused in either case.
    out[100] ^= 0x10;
    out
}
