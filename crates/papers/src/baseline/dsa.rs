//! DSA-1024 with a subgroup of 160 bits (FIPS 186-4), with which S-BGP signs; k^-1 and r are computed ahead.
//!
//! `aws-lc-rs` gives no access to DSA or to big numbers without `unsafe`. The arithmetic is therefore that of
//! `crypto-bigint`, the fastest well-kept one in safe Rust. A verification computes both powers together over windows, as
//! common libraries do: 160 squarings and about 60 multiplications. With tables of a key's powers (2 KiB a key,
//! [`VerifyingKey::with_tables`]), which no publication has, it takes 80 squarings and about 50 multiplications.

use std::fmt;
use std::sync::LazyLock;

use crypto_bigint::modular::{FixedMontyForm, FixedMontyParams};
use crypto_bigint::{U192, U1024};
use sha1::{Digest, Sha1};
use wayleave_attestation::suite::KeyRefused;
use wayleave_crypto::kdf;
use wayleave_crypto::secret::Secret;
use zeroize::Zeroize;

/// Bytes of a signature: r and s.
pub const SIGNATURE_LEN: usize = 40;
/// Bytes of a public key.
pub const PUBLIC_LEN: usize = 128;

/// Bytes of a number modulo q.
const SCALAR_LEN: usize = 20;
/// Bits of an exponent.
const EXPONENT_BITS: usize = 160;
/// Bits of a window over the powers of the generator, and of a public key.
const GENERATOR_WINDOW: usize = 8;
const PUBLIC_WINDOW: usize = 4;

type Element = FixedMontyForm<{ U1024::LIMBS }>;
type Scalar = FixedMontyForm<{ U192::LIMBS }>;

/// The domain parameters that all ASes share: those of RFC 6979 appendix A.2.1.
struct Group {
    p: FixedMontyParams<{ U1024::LIMBS }>,
    q: FixedMontyParams<{ U192::LIMBS }>,
    /// Its powers for whole exponents, and for exponents split in two.
    generator: [Powers; 2],
}

static GROUP: LazyLock<Group> = LazyLock::new(|| {
    let p = U1024::from_be_hex(
        "86F5CA03DCFEB225063FF830A0C769B9DD9D6153AD91D7CE27F787C43278B447E6533B86B18BED6E8A48B784A14C252C\
         5BE0DBF60B86D6385BD2F12FB763ED8873ABFD3F5BA2E0A8C0A59082EAC056935E529DAF7C610467899C77ADEDFC846C\
         881870B7B19B2B58F9BE0521A17002E3BDD6B86685EE90B3D9A1B02B782B1779",
    );
    let q = U192::from_be_hex("00000000996F967F6C8E388D9E28D01E205FBA957A5698B1");
    let g = U1024::from_be_hex(
        "07B0F92546150B62514BB771E2A0C0CE387F03BDA6C56B505209FF25FD3C133D89BBCD97E904E09114D9A7DEFDEADFC9\
         078EA544D2E401AEECC40BB9FBBF78FD87995A10A1C27CB7789B594BA7EFB5C4326A9FE59A070E136DB77175464ADCA4\
         17BE5DCE2F40D10A46A3A3943F26AB7FD9C0398FF8C76EE0A56826A8A88F1DBD",
    );
    let p = FixedMontyParams::new_vartime(p.to_odd().into_option().expect("a prime"));
    let q = FixedMontyParams::new_vartime(q.to_odd().into_option().expect("a prime"));
    let g = FixedMontyForm::new(&g, &p);
    Group { generator: [1, 2].map(|parts| Powers::of(&g, GENERATOR_WINDOW, parts)), p, q }
});

/// The odd powers of a base up to 2^window, for each of the equal parts into which exponents are split.
#[derive(Clone)]
struct Powers {
    window: usize,
    parts: Vec<Vec<U1024>>,
}

impl Powers {
    fn of(base: &Element, window: usize, parts: usize) -> Self {
        let mut base = *base;
        let mut tables = vec![odd_powers(&base, window)];
        while tables.len() < parts {
            base = base.square_repeat_vartime((EXPONENT_BITS / parts) as u32);
            tables.push(odd_powers(&base, window));
        }
        Self { window, parts: tables }
    }

    fn part_bits(&self) -> usize {
        EXPONENT_BITS / self.parts.len()
    }

    /// The multiplications for the part of the exponent from bit `low`: bit positions in the part, and indices of odd
    /// powers.
    fn windows(&self, exponent: &U192, low: usize) -> Vec<(usize, usize)> {
        let bit = |i: usize| exponent.bit_vartime((low + i) as u32);
        let mut windows = Vec::with_capacity(self.part_bits() / self.window + 1);
        let mut at = self.part_bits();
        while at > 0 {
            if !bit(at - 1) {
                at -= 1;
                continue;
            }
            // The longest window from here whose last bit is a one.
            let mut end = at.saturating_sub(self.window);
            while !bit(end) {
                end += 1;
            }
            let value = (end..at).rev().fold(0, |value, i| value << 1 | usize::from(bit(i)));
            windows.push((end, value >> 1));
            at = end;
        }
        windows
    }
}

fn odd_powers(base: &Element, window: usize) -> Vec<U1024> {
    let square = base.square();
    let powers = std::iter::successors(Some(*base), |power| Some(power.mul(&square)));
    powers.take(1 << (window - 1)).map(|power| *power.as_montgomery()).collect()
}

/// The product of powers, computed together: as many squarings as a part of an exponent has bits. All exponents are split
/// into the same parts.
fn product(terms: &[(&Powers, U192)]) -> U1024 {
    let params = &GROUP.p;
    let part_bits = terms.iter().map(|(powers, _)| powers.part_bits()).max().unwrap_or(0);
    let mut at_bit: Vec<Vec<&U1024>> = vec![Vec::new(); part_bits];
    for (powers, exponent) in terms {
        for (part, table) in powers.parts.iter().enumerate() {
            for (bit, index) in powers.windows(exponent, part * part_bits) {
                at_bit[bit].push(&table[index]);
            }
        }
    }
    let mut product = FixedMontyForm::one(params);
    let mut squarings = 0;
    for factors in at_bit.iter().rev() {
        squarings += 1;
        if !factors.is_empty() {
            product = product.square_repeat_vartime(squarings);
            squarings = 0;
        }
        for factor in factors {
            product = product.mul(&FixedMontyForm::from_montgomery(**factor, params));
        }
    }
    product.square_repeat_vartime(squarings).retrieve()
}

/// A number modulo q from an element: r of g^k.
fn modulo_q(element: &U1024) -> U192 {
    let q: U1024 = GROUP.q.modulus().as_ref().resize();
    element.rem_vartime(&q.to_nz().into_option().expect("a prime")).resize()
}

fn scalar(number: &U192) -> Scalar {
    FixedMontyForm::new(number, &GROUP.q)
}

/// SHA-1 of the message, as a number modulo q.
fn digest(message: &[u8]) -> Scalar {
    scalar(&from_octets(&Sha1::digest(message).into()))
}

fn from_octets(octets: &[u8; SCALAR_LEN]) -> U192 {
    let mut wide = [0; 24];
    wide[4..].copy_from_slice(octets);
    U192::from_be_slice(&wide)
}

fn to_octets(number: &U192) -> [u8; SCALAR_LEN] {
    let mut octets = [0; SCALAR_LEN];
    octets.copy_from_slice(&number.to_be_bytes().as_ref()[4..]);
    octets
}

/// A public key y = g^x.
#[derive(Clone)]
pub struct VerifyingKey {
    y: Element,
    tables: Option<Powers>,
}

impl VerifyingKey {
    /// Checks that y lies in the subgroup.
    pub fn new(y: &[u8; PUBLIC_LEN]) -> Result<Self, KeyRefused> {
        let y = U1024::from_be_slice(y);
        if y <= U1024::ONE || y >= *GROUP.p.modulus().as_ref() {
            return Err(KeyRefused::NotCanonical);
        }
        let element = FixedMontyForm::new(&y, &GROUP.p);
        if element.pow_vartime(GROUP.q.modulus().as_ref()).retrieve() != U1024::ONE {
            return Err(KeyRefused::Weak("the key is outside the subgroup"));
        }
        Ok(Self { y: element, tables: None })
    }

    /// The same key with tables of its powers.
    #[must_use]
    pub fn with_tables(self) -> Self {
        Self { tables: Some(Powers::of(&self.y, PUBLIC_WINDOW, 2)), y: self.y }
    }

    /// y, big-endian.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; PUBLIC_LEN] {
        let mut octets = [0; PUBLIC_LEN];
        octets.copy_from_slice(self.y.retrieve().to_be_bytes().as_ref());
        octets
    }

    /// Whether `signature` is valid for `message` under this key (FIPS 186-4 section 4.7).
    #[must_use]
    pub fn verify(&self, message: &[u8], signature: &[u8; SIGNATURE_LEN]) -> bool {
        let (r, s) = signature.split_at(SCALAR_LEN);
        let [r, s] = [r, s].map(|half| from_octets(half.try_into().expect("half of 40")));
        let in_range = |number: &U192| *number != U192::ZERO && number < GROUP.q.modulus().as_ref();
        if !in_range(&r) || !in_range(&s) {
            return false;
        }
        let Some(w) = scalar(&s).invert_vartime().into_option() else { return false };
        let (u1, u2) = (digest(message).mul(&w).retrieve(), scalar(&r).mul(&w).retrieve());
        let [whole, split] = &GROUP.generator;
        let power = match &self.tables {
            Some(tables) => product(&[(split, u1), (tables, u2)]),
            None => product(&[(whole, u1), (&Powers::of(&self.y, PUBLIC_WINDOW, 1), u2)]),
        };
        modulo_q(&power) == r
    }
}

impl fmt::Debug for VerifyingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VerifyingKey({})", self.y.retrieve())
    }
}

/// The part of a signature that does not depend on the message: k^-1 and r. It is used once.
pub struct PartialSignature {
    k_inverse: Scalar,
    r: U192,
}

impl PartialSignature {
    /// From k, a secret number from 1 to q - 1 that is never used again; `None` if r would be zero.
    #[must_use]
    pub fn new(k: &Secret<SCALAR_LEN>) -> Option<Self> {
        let mut k = from_octets(k.expose());
        if k >= *GROUP.q.modulus().as_ref() {
            return None;
        }
        let k_inverse = scalar(&k).invert().into_option();
        let r = modulo_q(&product(&[(&GROUP.generator[1], k)]));
        k.zeroize();
        k_inverse.filter(|_| r != U192::ZERO).map(|k_inverse| Self { k_inverse, r })
    }
}

impl Drop for PartialSignature {
    fn drop(&mut self) {
        self.k_inverse.zeroize();
    }
}

impl fmt::Debug for PartialSignature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PartialSignature(..)")
    }
}

/// A private key x, the seed of its k, and signatures computed ahead.
pub struct SigningKey {
    x: Scalar,
    seed: Secret<32>,
    count: u64,
    ahead: Vec<PartialSignature>,
    public: VerifyingKey,
}

impl SigningKey {
    /// From a uniformly random seed. The same seed gives the same key and the same k in the same order, so that only one
    /// value may be made from it.
    #[must_use]
    pub fn generate(seed: &Secret<32>) -> Self {
        let x = kdf::derive("wayleave/dsa/x/v1", seed.expose(), b"");
        let nonces = kdf::derive("wayleave/dsa/k/v1", seed.expose(), b"");
        Self::from_private(&reduced(&x), nonces)
    }

    /// From x and the seed of all k.
    #[must_use]
    pub fn from_private(x: &Secret<SCALAR_LEN>, nonces: Secret<32>) -> Self {
        let x = from_octets(x.expose());
        let y = FixedMontyForm::new(&product(&[(&GROUP.generator[1], x)]), &GROUP.p);
        let public = VerifyingKey { y, tables: None };
        Self { x: scalar(&x), seed: nonces, count: 0, ahead: Vec::new(), public }
    }

    /// The public half.
    #[must_use]
    pub fn public(&self) -> &VerifyingKey {
        &self.public
    }

    /// Adds tables of its powers to the public half.
    pub fn tabulate(&mut self) {
        self.public.tables = Some(Powers::of(&self.public.y, PUBLIC_WINDOW, 2));
    }

    /// Signatures computed ahead.
    #[must_use]
    pub fn ahead(&self) -> usize {
        self.ahead.len()
    }

    /// Computes ahead until there are `count` signatures.
    pub fn compute_ahead(&mut self, count: usize) {
        while self.ahead.len() < count {
            let ahead = self.next_ahead();
            self.ahead.push(ahead);
        }
    }

    fn next_ahead(&mut self) -> PartialSignature {
        loop {
            let k = kdf::derive("wayleave/dsa/k/v1", self.seed.expose(), &self.count.to_be_bytes());
            self.count += 1;
            if let Some(ahead) = PartialSignature::new(&reduced(&k)) {
                return ahead;
            }
        }
    }

    /// Signs with a signature computed ahead, if there is one.
    pub fn sign(&mut self, message: &[u8]) -> [u8; SIGNATURE_LEN] {
        loop {
            let ahead = self.ahead.pop().unwrap_or_else(|| self.next_ahead());
            if let Some(signature) = self.sign_with(message, &ahead) {
                return signature;
            }
        }
    }

    /// Completes a signature computed ahead; `None` in the one case of 2^160 in which s is zero.
    #[must_use]
    pub fn sign_with(&self, message: &[u8], ahead: &PartialSignature) -> Option<[u8; SIGNATURE_LEN]> {
        let s = self.x.mul(&scalar(&ahead.r)).add(&digest(message)).mul(&ahead.k_inverse).retrieve();
        let mut signature = [0; SIGNATURE_LEN];
        signature[..SCALAR_LEN].copy_from_slice(&to_octets(&ahead.r));
        signature[SCALAR_LEN..].copy_from_slice(&to_octets(&s));
        (s != U192::ZERO).then_some(signature)
    }
}

impl Drop for SigningKey {
    fn drop(&mut self) {
        self.x.zeroize();
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningKey(..)")
    }
}

/// A number modulo q from 24 uniformly random bytes; its bias is 2^-32.
fn reduced(random: &Secret<24>) -> Secret<SCALAR_LEN> {
    Secret::new(to_octets(&scalar(&U192::from_be_slice(random.expose())).retrieve()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn octets<const N: usize>(hex: &str) -> [u8; N] {
        std::array::from_fn(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).expect("hex"))
    }

    fn published() -> SigningKey {
        let x = Secret::new(octets("411602CB19A6CCC34494D79D98EF1E7ED5AF25F7"));
        SigningKey::from_private(&x, Secret::new([0; 32]))
    }

    #[test]
    fn the_published_answers_of_rfc_6979_come_out() {
        let key = published();
        let y = octets(
            "5DF5E01DED31D0297E274E1691C192FE5868FEF9E19A84776454B100CF16F65392195A38B90523E2542EE61871C0440CB87C322FC\
             4B4D2EC5E1E7EC766E1BE8D4CE935437DC11C3C8FD426338933EBFE739CB3465F4D3668C5E473508253B1E682F65CBDC4FAE93C2E\
             A212390E54905A86E2223170B44EAA7DA5DD9FFCFB7F3B",
        );
        assert_eq!(key.public().to_bytes(), y);
        let cases = [
            (
                &b"sample"[..],
                "7BDB6B0FF756E1BB5D53583EF979082F9AD5BD5B",
                "2E1A0C2562B2912CAAF89186FB0F42001585DA5529EFB6B0AFF2D7A68EB70CA313022253B9A88DF5",
            ),
            (
                b"test",
                "5C842DF4F9E344EE09F056838B42C7A17F4A6433",
                "42AB2052FD43E123F0607F115052A67DCD9C5C77183916B0230D45B9931491D4C6B0BD2FB4AAF088",
            ),
        ];
        for (message, k, signature) in cases {
            let ahead = PartialSignature::new(&Secret::new(octets(k))).expect("a published k");
            assert_eq!(key.sign_with(message, &ahead), Some(octets(signature)));
            assert!(key.public().verify(message, &octets(signature)));
            assert!(key.public().clone().with_tables().verify(message, &octets(signature)));
            assert!(!key.public().clone().with_tables().verify(b"other", &octets(signature)));
            assert!(!key.public().verify(b"other", &octets(signature)));
        }
    }

    #[test]
    fn signatures_verify_whether_computed_ahead_or_not() {
        let mut key = SigningKey::generate(&Secret::new([5; 32]));
        key.compute_ahead(2);
        let signatures: Vec<_> = (0..4).map(|_| key.sign(b"message")).collect();
        for (index, signature) in signatures.iter().enumerate() {
            assert!(key.public().verify(b"message", signature));
            assert!(!signatures[..index].contains(signature), "no k twice");
            for bit in 0..320 {
                let mut bad = *signature;
                bad[bit / 8] ^= 1 << (bit % 8);
                assert!(!key.public().verify(b"message", &bad));
            }
        }
    }

    #[test]
    fn hostile_keys_and_signatures_are_refused() {
        for y in [[0; 128], [0xff; 128], U1024::ONE.to_be_bytes().as_ref().try_into().expect("128")] {
            assert!(VerifyingKey::new(&y).is_err());
        }
        let mut y = published().public().to_bytes();
        assert!(VerifyingKey::new(&y).is_ok());
        y[127] ^= 1;
        assert!(VerifyingKey::new(&y).is_err());
        let q: [u8; 20] = octets("996F967F6C8E388D9E28D01E205FBA957A5698B1");
        let mut signature = [0; 40];
        assert!(!published().public().verify(b"sample", &signature));
        signature[..20].copy_from_slice(&q);
        signature[20..].copy_from_slice(&q);
        assert!(!published().public().verify(b"sample", &signature));
        assert!(!published().public().verify(b"sample", &[0xff; 40]));
    }

    #[test]
    fn products_of_powers_are_those_of_plain_exponentiation() {
        let base = FixedMontyForm::new(&U1024::from_u64(3), &GROUP.p);
        let whole = Powers::of(&base, PUBLIC_WINDOW, 1);
        let split = Powers::of(&base, GENERATOR_WINDOW, 2);
        for exponent in [U192::ZERO, U192::ONE, U192::from_u64(0xdead_beef), U192::MAX >> 32, U192::ONE << 80] {
            let expected = base.pow_vartime(&exponent).retrieve();
            assert_eq!(product(&[(&whole, exponent)]), expected);
            assert_eq!(product(&[(&split, exponent)]), expected);
        }
    }
}
