//! RSA-1024 as a permutation, with which the paper's origin keys, KC-RSA and SAS-V sign (section IV-A).
//!
//! The arithmetic is that of `crypto-bigint`; the primes come from `crypto-primes`.

use std::fmt;

use crypto_bigint::modular::{FixedMontyForm, FixedMontyParams};
use crypto_bigint::{CheckedAdd, Odd, U512, U1024};
use crypto_primes::hazmat::{SetBits, SmallFactorsSieveFactory};
use crypto_primes::{Flavor, is_prime, sieve_and_find};
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::SeedableRng;
use sha2::{Digest, Sha256};
use wayleave_attestation::suite::KeyRefused;
use wayleave_attestation::suite::rsa_key::inverse_of;
use wayleave_crypto::secret::Secret;
use zeroize::Zeroize;

/// Bytes of a modulus and of a signature.
pub const MODULUS_LEN: usize = 128;
/// Bytes of each of the two primes.
pub const PRIME_LEN: usize = 64;

/// A big-endian number below some modulus.
pub type Block = [u8; MODULUS_LEN];

/// Which moduli a key may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moduli {
    /// Any of 1,024 bits, as common libraries make them. Both primes have their two top bits set.
    Any,
    /// Those whose 64 top bits are ones, so that of 2^64 values below one modulus all but one are below another (threats
    /// K7). Both primes have their 65 top bits set.
    High,
}

/// The public exponent of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Exponent {
    /// 65537, with which the paper's times agree: RSA-1024 signs 19 times as slowly as it verifies.
    F4 = 65_537,
    /// 3: a verification takes two multiplications instead of 17. Over a hash as long as the modulus it counts as equally
    /// sound.
    Three = 3,
}

/// The public half: `x -> x^e mod n`; `e` is 65537 by default.
#[derive(Clone)]
pub struct RawPublic {
    params: FixedMontyParams<{ U1024::LIMBS }>,
    exponent: Exponent,
}

impl RawPublic {
    /// Checks that the modulus has 1,024 bits, is odd and of the kind `moduli`.
    pub fn new(modulus: &Block, moduli: Moduli) -> Result<Self, KeyRefused> {
        if modulus[0] & 0x80 == 0 {
            return Err(KeyRefused::NotCanonical);
        }
        if moduli == Moduli::High && modulus[..8] != [0xff; 8] {
            return Err(KeyRefused::Weak("the 64 top bits of the modulus are not all set"));
        }
        let odd: Option<Odd<U1024>> = U1024::from_be_slice(modulus).to_odd().into();
        let odd = odd.ok_or(KeyRefused::Weak("the modulus is even"))?;
        Ok(Self { params: FixedMontyParams::new_vartime(odd), exponent: Exponent::F4 })
    }

    /// The modulus, big-endian.
    #[must_use]
    pub fn modulus(&self) -> Block {
        to_block(self.params.modulus())
    }

    /// Whether `x` is below the modulus, the domain of the permutation.
    #[must_use]
    pub fn in_domain(&self, x: &Block) -> bool {
        U1024::from_be_slice(x) < **self.params.modulus()
    }

    /// `x` reduced modulo n, and whether it was not below it. One subtraction is enough, since moduli have their top bit set.
    #[must_use]
    pub fn reduced(&self, x: &Block) -> (Block, bool) {
        let x = U1024::from_be_slice(x);
        let n = self.params.modulus().as_ref();
        if x < *n { (to_block(&x), false) } else { (to_block(&x.wrapping_sub(n)), true) }
    }

    /// `x + n`; `None` if it does not fit.
    #[must_use]
    pub fn raised(&self, x: &Block) -> Option<Block> {
        let sum = U1024::from_be_slice(x).checked_add(self.params.modulus().as_ref());
        sum.into_option().map(|sum| to_block(&sum))
    }

    /// `a + b mod n`, of two numbers below the modulus.
    #[must_use]
    pub fn sum(&self, a: &Block, b: &Block) -> Block {
        let (a, b) = (U1024::from_be_slice(a), U1024::from_be_slice(b));
        to_block(&a.add_mod(&b, self.params.modulus().as_nz_ref()))
    }

    /// `a - b mod n`, of two numbers below the modulus.
    #[must_use]
    pub fn difference(&self, a: &Block, b: &Block) -> Block {
        let (a, b) = (U1024::from_be_slice(a), U1024::from_be_slice(b));
        to_block(&a.sub_mod(&b, self.params.modulus().as_nz_ref()))
    }

    /// `x^e mod n`; `None` if `x` is not below the modulus.
    #[must_use]
    pub fn apply(&self, x: &Block) -> Option<Block> {
        if !self.in_domain(x) {
            return None;
        }
        let base = FixedMontyForm::new(&U1024::from_be_slice(x), &self.params);
        let squarings = (self.exponent as u32).ilog2();
        Some(to_block(&base.square_repeat_vartime(squarings).mul(&base).retrieve()))
    }
}

impl fmt::Debug for RawPublic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RawPublic({})", self.params.modulus().as_ref())
    }
}

/// The private half: the inverse permutation, by the Chinese remainder theorem.
#[derive(Clone)]
pub struct RawPrivate {
    public: RawPublic,
    p: FixedMontyParams<{ U512::LIMBS }>,
    q: FixedMontyParams<{ U512::LIMBS }>,
    d_p: U512,
    d_q: U512,
    /// The inverse of `q` modulo `p`.
    q_inverse: FixedMontyForm<{ U512::LIMBS }>,
}

impl RawPrivate {
    /// Makes a pair from a uniformly random seed; the same seed gives the same pair.
    #[must_use]
    pub fn generate(seed: &Secret<32>, moduli: Moduli) -> Self {
        Self::with_exponent(seed, moduli, Exponent::F4)
    }

    /// The same with this exponent.
    #[must_use]
    pub fn with_exponent(seed: &Secret<32>, moduli: Moduli, exponent: Exponent) -> Self {
        let mut random = ChaCha20Rng::from_seed(*seed.expose());
        loop {
            let (p, q) = (prime(&mut random, moduli), prime(&mut random, moduli));
            if let Ok(pair) = Self::of(&p, &q, moduli, exponent) {
                return pair;
            }
        }
    }

    /// A pair from its two primes. A granted key is sent in this form alone, so that its parts cannot contradict each other.
    ///
    /// The cheap checks come first. A trial shows whether both numbers are primes, since the inverse permutation undoes the
    /// permutation only if they are.
    pub fn from_primes(p: &U512, q: &U512, moduli: Moduli) -> Result<Self, KeyRefused> {
        Self::of(p, q, moduli, Exponent::F4)
    }

    fn of(p: &U512, q: &U512, moduli: Moduli, exponent: Exponent) -> Result<Self, KeyRefused> {
        if p == q {
            return Err(KeyRefused::Weak("the modulus is a square"));
        }
        let (Some(odd_p), Some(odd_q)) = (p.to_odd().into_option(), q.to_odd().into_option()) else {
            return Err(KeyRefused::Weak("a prime is even"));
        };
        let product: U1024 = p.concatenating_mul(q);
        let public = RawPublic { exponent, ..RawPublic::new(&to_block(&product), moduli)? };
        let inverse = |prime: &U512| inverse_of(exponent as u32, &prime.wrapping_sub(&U512::ONE));
        let (Some(d_p), Some(d_q)) = (inverse(p), inverse(q)) else {
            return Err(KeyRefused::Weak("the exponent has no inverse"));
        };
        let (p, q_params) = (FixedMontyParams::new(odd_p), FixedMontyParams::new(odd_q));
        let q_inverse = Option::from(FixedMontyForm::new(q, &p).invert());
        let q_inverse = q_inverse.ok_or(KeyRefused::Weak("the primes have a common factor"))?;
        let pair = Self { public, p, q: q_params, d_p, d_q, q_inverse };
        pair.trial()?;
        Ok(pair)
    }

    /// A pair from 128 bytes: the two primes, big-endian.
    pub fn decode(bytes: &Secret<MODULUS_LEN>, moduli: Moduli) -> Result<Self, KeyRefused> {
        let (p, q) = bytes.expose().split_at(PRIME_LEN);
        Self::from_primes(&U512::from_be_slice(p), &U512::from_be_slice(q), moduli)
    }

    /// The two primes, big-endian, which are granted to the next hop (the paper's t^-).
    #[must_use]
    pub fn encode(&self) -> Secret<MODULUS_LEN> {
        let mut bytes = [0; MODULUS_LEN];
        bytes[..PRIME_LEN].copy_from_slice(self.p.modulus().to_be_bytes().as_ref());
        bytes[PRIME_LEN..].copy_from_slice(self.q.modulus().to_be_bytes().as_ref());
        let secret = Secret::new(bytes);
        bytes.zeroize();
        secret
    }

    /// The public half.
    #[must_use]
    pub fn public(&self) -> &RawPublic {
        &self.public
    }

    /// The number that the public half maps to `x`; `None` if `x` is not below the modulus.
    #[must_use]
    pub fn apply(&self, x: &Block) -> Option<Block> {
        if !self.public.in_domain(x) {
            return None;
        }
        let x = U1024::from_be_slice(x);
        let m_p = reduce(&x, &self.p).pow_amm(&self.d_p);
        let m_q = reduce(&x, &self.q).pow_amm(&self.d_q).retrieve();
        let h = m_p.sub(&FixedMontyForm::new(&m_q, &self.p)).mul(&self.q_inverse).retrieve();
        let product: U1024 = h.concatenating_mul(self.q.modulus().as_ref());
        Some(to_block(&product.wrapping_add(&m_q.resize())))
    }

    /// As [`RawPrivate::apply`], but reduces a number above the modulus first, as a raw RSA operation does. The public half
    /// then does not return the original number.
    #[must_use]
    pub fn apply_reduced(&self, x: &Block) -> Block {
        self.apply(&self.public.reduced(x).0).expect("below the modulus")
    }

    fn trial(&self) -> Result<(), KeyRefused> {
        let mut x = full_domain_hash(&[b"wayleave/raw-rsa/trial/v1", &self.public.modulus()]);
        x[0] &= 0x7f;
        let there = self.apply(&x).and_then(|y| self.public.apply(&y));
        if there == Some(x) { Ok(()) } else { Err(KeyRefused::Mismatch) }
    }
}

impl Drop for RawPrivate {
    fn drop(&mut self) {
        self.d_p.zeroize();
        self.d_q.zeroize();
        self.p.zeroize();
        self.q.zeroize();
        self.q_inverse.zeroize();
    }
}

impl fmt::Debug for RawPrivate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RawPrivate(..)")
    }
}

/// A hash as long as a modulus: MGF1 with SHA-256 (RFC 8017 appendix B.2.1) over the hash of the parts, each preceded by its
/// length. All bits are random, so that the value may be above a modulus.
#[must_use]
pub fn full_domain_hash(parts: &[&[u8]]) -> Block {
    let mut state = Sha256::new();
    for part in parts {
        state.update((part.len() as u64).to_be_bytes());
        state.update(part);
    }
    let seed = state.finalize();
    let mut out = [0; MODULUS_LEN];
    for (counter, chunk) in (0u32..).zip(out.chunks_exact_mut(32)) {
        chunk.copy_from_slice(&Sha256::new().chain_update(seed).chain_update(counter.to_be_bytes()).finalize());
    }
    out
}

/// Bitwise exclusive or of two numbers.
#[must_use]
pub fn xor(a: &Block, b: &Block) -> Block {
    std::array::from_fn(|i| a[i] ^ b[i])
}

fn to_block(x: &U1024) -> Block {
    let mut block = [0; MODULUS_LEN];
    block.copy_from_slice(x.to_be_bytes().as_ref());
    block
}

/// `x` modulo a prime in Montgomery form, without a division, whose time would depend on the prime.
fn reduce(x: &U1024, prime: &FixedMontyParams<{ U512::LIMBS }>) -> FixedMontyForm<{ U512::LIMBS }> {
    let (low, high): (U512, U512) = x.split();
    // The Montgomery form of 2^512 is R^2, since R is 2^512: the constant that converts to Montgomery form.
    let two_512 = FixedMontyForm::from_montgomery(*prime.r2(), prime);
    FixedMontyForm::new(&high, prime).mul(&two_512).add(&FixedMontyForm::new(&low, prime))
}

fn prime(random: &mut ChaCha20Rng, moduli: Moduli) -> U512 {
    match moduli {
        Moduli::Any => {
            let sieve = SmallFactorsSieveFactory::new(Flavor::Any, U512::BITS, SetBits::TwoMsb).expect("512 bits fit");
            sieve_and_find(random, sieve, |_, candidate: &U512| is_prime(Flavor::Any, candidate))
                .expect("no error but for bad sizes")
                .expect("the sieve is restarted until a prime is found")
        }
        Moduli::High => high_prime(random),
    }
}

/// A prime whose 65 top bits are set: the first one above a random start.
fn high_prime(random: &mut ChaCha20Rng) -> U512 {
    use crypto_bigint::RandomBits;
    use crypto_primes::hazmat::SmallFactorsSieve;
    const FREE_BITS: u32 = U512::BITS - 65;
    let bits = std::num::NonZero::new(U512::BITS).expect("512 is not zero");
    loop {
        let start = U512::random_bits(random, FREE_BITS) | (U512::MAX << FREE_BITS);
        let mut sieve = SmallFactorsSieve::new(start, bits, false).expect("512 bits fit");
        if let Some(found) = sieve.find(|candidate| is_prime(Flavor::Any, candidate)) {
            return found;
        }
    }
}

#[cfg(test)]
mod tests {
    //! KCX-06: hostile key pairs of the paper's RSA: refused.

    use super::*;

    fn pair(n: u8, moduli: Moduli) -> RawPrivate {
        RawPrivate::generate(&Secret::new([n; 32]), moduli)
    }

    #[test]
    fn the_private_half_undoes_the_public_half() {
        let of = |(moduli, exponent)| RawPrivate::with_exponent(&Secret::new([1; 32]), moduli, exponent);
        for pair in [(Moduli::Any, Exponent::F4), (Moduli::High, Exponent::F4), (Moduli::Any, Exponent::Three)].map(of)
        {
            let mut x = full_domain_hash(&[b"x"]);
            x[0] &= 0x3f;
            let y = pair.apply(&x).expect("below");
            assert_eq!(pair.public().apply(&y), Some(x));
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_pair_and_high_moduli_have_64_ones() {
        let (a, b) = (pair(2, Moduli::High), pair(2, Moduli::High));
        assert_eq!(a.public().modulus(), b.public().modulus());
        assert_eq!(a.public().modulus()[..8], [0xff; 8]);
        let again = RawPrivate::decode(&a.encode(), Moduli::High).expect("its own primes");
        assert_eq!(again.public().modulus(), a.public().modulus());
    }

    #[test]
    fn a_number_above_the_modulus_is_outside_the_domain() {
        let pair = pair(3, Moduli::Any);
        assert_eq!(pair.apply(&[0xff; 128]), None);
        assert_eq!(pair.public().apply(&[0xff; 128]), None);
        assert_eq!(pair.public().apply(&pair.public().modulus()), None);
    }

    #[test]
    fn hostile_pairs_are_refused() {
        let good = pair(4, Moduli::Any);
        let p = *good.p.modulus().as_ref();
        let q = *good.q.modulus().as_ref();
        let refused = |p: U512, q: U512| RawPrivate::from_primes(&p, &q, Moduli::Any).expect_err("hostile");
        assert_eq!(refused(p, p), KeyRefused::Weak("the modulus is a square"));
        assert_eq!(refused(U512::ZERO, q), KeyRefused::Weak("a prime is even"));
        assert_eq!(refused(p.wrapping_sub(&U512::ONE), q), KeyRefused::Weak("a prime is even"));
        assert_eq!(refused(U512::ONE, q), KeyRefused::NotCanonical);
        assert!(RawPrivate::from_primes(&p.wrapping_sub(&U512::from_u8(2)), &q, Moduli::Any).is_err());
        assert_eq!(
            RawPrivate::from_primes(&p, &q, Moduli::High).expect_err("not high"),
            KeyRefused::Weak("the 64 top bits of the modulus are not all set")
        );
    }
}
