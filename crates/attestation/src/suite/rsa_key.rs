//! RSA keys before they are used: made from a seed, or received from another AS and refused when hostile (threats K9).
//!
//! Every check is bounded: the cheap ones come first, and [`Examined`] counts the modular multiplications of the rest.

use std::sync::LazyLock;

use crypto_bigint::modular::{FixedMontyForm, FixedMontyParams};
use crypto_bigint::{Limb, NonZero, Uint};
use crypto_primes::hazmat::{SetBits, SmallFactorsSieveFactory};
use crypto_primes::{Flavor, is_prime, sieve_and_find};
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::SeedableRng;
use wayleave_crypto::secret::Secret;
use zeroize::{Zeroize, Zeroizing};

use super::KeyRefused;

/// The public exponent of every key; it is prime.
pub const EXPONENT: u32 = 65_537;
/// No modulus may have a prime factor below this.
const SMALL_FACTORS_END: u32 = 1 << 16;
/// Octets of the longest private key that is read: one of 4,096 bits is shorter.
const MAX_PRIVATE_LEN: usize = 3_000;

/// What a check found, and what it cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Examined {
    /// Whether the key may be used.
    pub verdict: Result<(), KeyRefused>,
    /// Modular multiplications spent, each of a microsecond or a few.
    pub multiplications: u32,
}

impl Examined {
    fn refused(why: KeyRefused) -> Self {
        Self { verdict: Err(why), multiplications: 0 }
    }
}

/// Checks a modulus of `LIMBS` words: exact length, odd, no square, no prime factor below 2^16.
#[must_use]
pub fn examine_modulus<const LIMBS: usize>(modulus: &[u8]) -> Examined {
    let need = LIMBS * Limb::BYTES;
    if modulus.len() != need {
        return Examined::refused(KeyRefused::Length { need, have: modulus.len() });
    }
    if modulus[0] & 0x80 == 0 {
        return Examined::refused(KeyRefused::NotCanonical);
    }
    let n = Uint::<LIMBS>::from_be_slice(modulus);
    let Some(odd) = n.to_odd().into_option() else {
        return Examined::refused(KeyRefused::Weak("the modulus is even"));
    };
    // Squares of odd numbers are 1 modulo 8, so that most moduli need no root.
    if modulus[need - 1] % 8 == 1 && n.floor_sqrt_vartime().wrapping_square() == n {
        return Examined::refused(KeyRefused::Weak("the modulus is a square"));
    }
    let params = FixedMontyParams::new_vartime(odd);
    let (product, multiplications) = product_of_small_primes(&params);
    if n.gcd_vartime(&product) == Uint::ONE {
        Examined { verdict: Ok(()), multiplications }
    } else {
        Examined { verdict: Err(KeyRefused::Weak("the modulus has a small factor")), multiplications }
    }
}

/// The product of the odd primes below 2^16, modulo `n`: Horner's rule over chunks as wide as `n`.
fn product_of_small_primes<const LIMBS: usize>(params: &FixedMontyParams<LIMBS>) -> (Uint<LIMBS>, u32) {
    static PRODUCT: LazyLock<Vec<u64>> = LazyLock::new(|| {
        let mut product = vec![1u64];
        for prime in odd_primes() {
            let mut carry = 0u128;
            for word in &mut product {
                carry += u128::from(*word) * u128::from(prime);
                *word = (carry & u128::from(u64::MAX)) as u64;
                carry >>= 64;
            }
            if carry != 0 {
                product.push(carry as u64);
            }
        }
        product
    });
    let shift = FixedMontyForm::from_montgomery(*params.r2(), params);
    let mut sum = FixedMontyForm::zero(params);
    let mut multiplications = 0;
    for chunk in PRODUCT.chunks(LIMBS).rev() {
        let words: [u64; LIMBS] = std::array::from_fn(|i| chunk.get(i).copied().unwrap_or(0));
        let mut addend = Uint::<LIMBS>::from_words(words);
        // The modulus has its top bit set, so that one subtraction is enough.
        if addend >= *params.modulus().as_ref() {
            addend = addend.wrapping_sub(params.modulus().as_ref());
        }
        // Not in Montgomery form: times R^2 over R is the shift by a whole chunk.
        sum = sum.mul(&shift).add(&FixedMontyForm::from_montgomery(addend, params));
        multiplications += 1;
    }
    (*sum.as_montgomery(), multiplications)
}

fn odd_primes() -> impl Iterator<Item = u32> {
    let mut composite = vec![false; SMALL_FACTORS_END as usize];
    let mut primes = Vec::new();
    for n in (3..SMALL_FACTORS_END).step_by(2) {
        if !composite[n as usize] {
            primes.push(n);
            for multiple in (n as usize * n as usize..composite.len()).step_by(2 * n as usize) {
                composite[multiple] = true;
            }
        }
    }
    primes.into_iter()
}

/// The inverse of 65537 modulo `m`; `None` where there is none.
#[must_use]
pub fn inverse_of_exponent<const LIMBS: usize>(m: &Uint<LIMBS>) -> Option<Uint<LIMBS>> {
    inverse_of(EXPONENT, m)
}

/// The inverse of the odd prime `e` modulo `m`; `None` where there is none.
#[must_use]
pub fn inverse_of<const LIMBS: usize>(e: u32, m: &Uint<LIMBS>) -> Option<Uint<LIMBS>> {
    let e = u64::from(e);
    let divisor = NonZero::<Limb>::new(Limb(e)).into_option().expect("a prime is not zero");
    let (quotient, remainder) = m.div_rem_limb(divisor);
    let r = remainder.0;
    if r == 0 {
        return None;
    }
    // e * d = k * m + 1 where k is minus the inverse of m modulo e; with m = quotient * e + r that is the sum below.
    let k = e - power_mod(r, e - 2, e);
    Some(quotient.wrapping_mul(&Uint::<LIMBS>::from_u64(k)).wrapping_add(&Uint::from_u64((r * k + 1) / e)))
}

fn power_mod(base: u64, exponent: u64, modulus: u64) -> u64 {
    let bits = (0..64).rev().map(|i| exponent >> i & 1);
    bits.fold(1, |power, bit| {
        let square = power * power % modulus;
        if bit == 1 { square * base % modulus } else { square }
    })
}

/// The two primes of a key of `FULL` words, which is twice `HALF`. Wiped when it is dropped.
pub struct Primes<const HALF: usize, const FULL: usize> {
    p: Uint<HALF>,
    q: Uint<HALF>,
}

impl<const HALF: usize, const FULL: usize> Drop for Primes<HALF, FULL> {
    fn drop(&mut self) {
        self.p.zeroize();
        self.q.zeroize();
    }
}

impl<const HALF: usize, const FULL: usize> Primes<HALF, FULL> {
    /// Octets of a prime.
    const PRIME_LEN: usize = HALF * Limb::BYTES;

    /// From a uniformly random seed; the same seed gives the same primes. Both have their two top bits set.
    ///
    /// # Panics
    /// Never: the sieve starts again until a prime is found.
    #[must_use]
    pub fn generate(seed: &Secret<32>) -> Self {
        let mut random = ChaCha20Rng::from_seed(*seed.expose());
        loop {
            let primes = Self { p: prime(&mut random), q: prime(&mut random) };
            if primes.examine().verdict.is_ok() {
                return primes;
            }
        }
    }

    /// From the two primes, big-endian and of equal length: how a granted key travels.
    pub fn decode(bytes: &[u8]) -> Result<Self, KeyRefused> {
        let primes = Self::decode_unchecked(bytes)?;
        primes.examine().verdict?;
        Ok(primes)
    }

    /// As [`Primes::decode`], of the right length but otherwise unchecked.
    pub(super) fn decode_unchecked(bytes: &[u8]) -> Result<Self, KeyRefused> {
        let need = 2 * Self::PRIME_LEN;
        if bytes.len() != need {
            return Err(KeyRefused::Length { need, have: bytes.len() });
        }
        let (p, q) = bytes.split_at(Self::PRIME_LEN);
        Ok(Self { p: Uint::from_be_slice(p), q: Uint::from_be_slice(q) })
    }

    /// From an `RSAPrivateKey` (RFC 8017 appendix A.1.2) in which every number is the one that the primes give.
    pub fn from_pkcs1(der: &[u8]) -> Result<Self, KeyRefused> {
        let [n, e, d, p, q, d_p, d_q, q_inverse] = read_pkcs1(der)?;
        if *e != EXPONENT.to_be_bytes()[1..] {
            return Err(KeyRefused::Weak("the exponent is not 65537"));
        }
        if n.len() != 2 * Self::PRIME_LEN || p.len() != Self::PRIME_LEN || q.len() != Self::PRIME_LEN {
            return Err(KeyRefused::Length { need: 2 * Self::PRIME_LEN, have: n.len() });
        }
        let primes = Self::decode(&Zeroizing::new([p, q].concat()))?;
        let numbers = primes.numbers().ok_or(KeyRefused::Mismatch)?;
        // A private exponent may be the inverse modulo (p - 1)(q - 1) or modulo their least common multiple.
        let same = n == primes.modulus()
            && d_p == stripped(&numbers.d_p)
            && d_q == stripped(&numbers.d_q)
            && q_inverse == stripped(&numbers.q_inverse)
            && primes.is_private_exponent(d);
        if same { Ok(primes) } else { Err(KeyRefused::Mismatch) }
    }

    /// The two primes, big-endian.
    #[must_use]
    pub fn encode(&self) -> Zeroizing<Vec<u8>> {
        let (p, q) = (Zeroizing::new(octets(&self.p)), Zeroizing::new(octets(&self.q)));
        Zeroizing::new([p.as_slice(), q.as_slice()].concat())
    }

    /// The modulus, big-endian.
    #[must_use]
    pub fn modulus(&self) -> Vec<u8> {
        let (low, high) = self.p.widening_mul(&self.q);
        [octets(&high), octets(&low)].concat()
    }

    /// The key as an `RSAPrivateKey`; `None` if the primes give none.
    #[must_use]
    pub fn to_pkcs1(&self) -> Option<Zeroizing<Vec<u8>>> {
        let numbers = self.numbers()?;
        let mut body = Zeroizing::new(vec![0x02, 0x01, 0x00]);
        put_integer(&mut body, &self.modulus());
        put_integer(&mut body, &EXPONENT.to_be_bytes());
        for number in [&numbers.d, &octets(&self.p), &octets(&self.q), &numbers.d_p, &numbers.d_q, &numbers.q_inverse] {
            put_integer(&mut body, number);
        }
        let mut der = Zeroizing::new(vec![0x30]);
        put_length(&mut der, body.len());
        der.extend_from_slice(&body);
        Some(der)
    }

    /// Checks the pair by all that does not need an exponentiation; that both are primes shows when it signs.
    #[must_use]
    pub fn examine(&self) -> Examined {
        if self.p == self.q {
            return Examined::refused(KeyRefused::Weak("the modulus is a square"));
        }
        if !bool::from(self.p.is_odd() & self.q.is_odd()) {
            return Examined::refused(KeyRefused::Weak("a prime is even"));
        }
        let one = Uint::ONE;
        if self.p == one || self.q == one {
            return Examined::refused(KeyRefused::Weak("a prime is one"));
        }
        let inverse = |prime: &Uint<HALF>| inverse_of_exponent(&prime.wrapping_sub(&one)).is_some();
        if !inverse(&self.p) || !inverse(&self.q) {
            return Examined::refused(KeyRefused::Weak("the exponent has no inverse"));
        }
        examine_modulus::<FULL>(&self.modulus())
    }

    fn is_private_exponent(&self, d: &[u8]) -> bool {
        if d.len() > 2 * Self::PRIME_LEN {
            return false;
        }
        let d = Uint::<FULL>::from_be_slice(&padded(d, FULL * Limb::BYTES));
        [&self.p, &self.q].into_iter().all(|prime| {
            let order = prime.wrapping_sub(&Uint::ONE);
            let wide: Uint<FULL> = order.resize();
            let order_nz = NonZero::new(wide).into_option();
            let inverse = inverse_of_exponent(&order);
            order_nz.zip(inverse).is_some_and(|(order, inverse)| d.rem(&order) == inverse.resize())
        })
    }

    fn numbers(&self) -> Option<Numbers> {
        let one = Uint::ONE;
        let (order_p, order_q) = (self.p.wrapping_sub(&one), self.q.wrapping_sub(&one));
        let (low, high) = order_p.widening_mul(&order_q);
        let phi = Uint::<FULL>::from_be_slice(&Zeroizing::new([octets(&high), octets(&low)].concat()));
        let p = FixedMontyParams::new(self.p.to_odd().into_option()?);
        let q_inverse = FixedMontyForm::new(&self.q, &p).invert().into_option()?;
        Some(Numbers {
            d: octets(&inverse_of_exponent(&phi)?),
            d_p: octets(&inverse_of_exponent(&order_p)?),
            d_q: octets(&inverse_of_exponent(&order_q)?),
            q_inverse: octets(&q_inverse.retrieve()),
        })
    }
}

/// What follows from the primes, big-endian.
#[derive(Zeroize)]
#[zeroize(drop)]
struct Numbers {
    d: Vec<u8>,
    d_p: Vec<u8>,
    d_q: Vec<u8>,
    q_inverse: Vec<u8>,
}

fn prime<const LIMBS: usize>(random: &mut ChaCha20Rng) -> Uint<LIMBS> {
    let sieve = SmallFactorsSieveFactory::new(Flavor::Any, Uint::<LIMBS>::BITS, SetBits::TwoMsb).expect("it fits");
    sieve_and_find(random, sieve, |_, candidate: &Uint<LIMBS>| is_prime(Flavor::Any, candidate))
        .expect("no error but for bad sizes")
        .expect("the sieve is restarted until a prime is found")
}

fn octets<const LIMBS: usize>(x: &Uint<LIMBS>) -> Vec<u8> {
    x.to_be_bytes().as_ref().to_vec()
}

fn stripped(number: &[u8]) -> &[u8] {
    let zeros = number.iter().take_while(|octet| **octet == 0).count();
    &number[zeros..]
}

fn padded(number: &[u8], len: usize) -> Zeroizing<Vec<u8>> {
    let mut out = Zeroizing::new(vec![0; len - number.len()]);
    out.extend_from_slice(number);
    out
}

fn put_integer(out: &mut Vec<u8>, number: &[u8]) {
    let number = stripped(number);
    let sign = usize::from(number.first().is_none_or(|top| top & 0x80 != 0));
    out.push(0x02);
    put_length(out, number.len() + sign);
    out.extend(std::iter::repeat_n(0, sign));
    out.extend_from_slice(number);
}

fn put_length(out: &mut Vec<u8>, len: usize) {
    let len = u16::try_from(len).expect("our keys are far below 64 KiB").to_be_bytes();
    match len {
        [0, short @ 0..0x80] => out.push(short),
        [0, low] => out.extend([0x81, low]),
        [high, low] => out.extend([0x82, high, low]),
    }
}

/// The eight numbers after the version, without leading zeros.
fn read_pkcs1(der: &[u8]) -> Result<[&[u8]; 8], KeyRefused> {
    if der.len() > MAX_PRIVATE_LEN {
        return Err(KeyRefused::Length { need: MAX_PRIVATE_LEN, have: der.len() });
    }
    let (body, rest) = read_element(0x30, der).ok_or(KeyRefused::NotCanonical)?;
    let (version, mut numbers) = read_element(0x02, body).ok_or(KeyRefused::NotCanonical)?;
    if !rest.is_empty() || version != [0] {
        return Err(KeyRefused::NotCanonical);
    }
    let mut out = [&[][..]; 8];
    for number in &mut out {
        let (octets, after) = read_element(0x02, numbers).ok_or(KeyRefused::NotCanonical)?;
        *number = match octets {
            [0] => &[],
            [0, tail @ ..] if tail[0] & 0x80 != 0 => tail,
            [first, ..] if (1..0x80).contains(first) => octets,
            _ => return Err(KeyRefused::NotCanonical),
        };
        numbers = after;
    }
    if numbers.is_empty() { Ok(out) } else { Err(KeyRefused::NotCanonical) }
}

/// The content of a DER element of this tag, and the rest.
fn read_element(tag: u8, bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&found, rest) = bytes.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (len, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81 => (usize::from(*rest.first().filter(|len| **len >= 0x80)?), &rest[1..]),
        0x82 => {
            let (&len, rest) = rest.split_first_chunk()?;
            (usize::from(u16::from_be_bytes(len)), rest)
        }
        _ => return None,
    };
    if found != tag || (first == 0x82 && len < 0x100) {
        return None;
    }
    rest.split_at_checked(len)
}
