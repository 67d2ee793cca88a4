//! `kc-ed25519`: Ed25519 (RFC 8032) under one verification rule, by which a batch and its parts always agree.
//!
//! The rule, for a key `A`, a message `M` and a signature `(R, S)`:
//!
//! 1. `A` and `R` are canonical encodings of points of the curve: `y < p`, and no sign where `x = 0`;
//! 2. `A` is not of small order;
//! 3. `S < L`;
//! 4. `[8](S·B − k·A − R) = 0` with `k = SHA-512(R ‖ A ‖ M) mod L`.
//!
//! Equation 4 is that of ZIP-215: the cofactor takes components of small order away, so a sum of such equations with
//! random coefficients holds if and only if each holds (but for a chance of 2^-128). Conditions 1 to 3 are checked
//! signature by signature, in a batch as alone. ZIP-215 itself accepts what 1 and 2 refuse; they are ours, because an
//! attribute must have one encoding and a key of small order signs for everybody.

use std::collections::HashMap;
use std::fmt;

use curve25519_dalek::edwards::{CompressedEdwardsY, EdwardsPoint};
use curve25519_dalek::scalar::Scalar;
use curve25519_dalek::traits::{IsIdentity, VartimeMultiscalarMul};
use ed25519_dalek::Signer;
use sha2::{Digest, Sha256, Sha512};
use wayleave_crypto::secret::Secret;
use zeroize::Zeroizing;

use super::{Claim, KeyRefused, SignError, Suite, SuiteId, SuiteKey};

/// Bytes of a public key.
pub const KEY_LEN: usize = 32;
/// Bytes of a signature.
pub const SIGNATURE_LEN: usize = 64;

/// Below this many signatures single checks cost less than one sum.
const LEAST_BATCH: usize = 2;

/// The suite; it has no state.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ed25519;

/// A private key.
struct Key {
    signing: ed25519_dalek::SigningKey,
    public: [u8; KEY_LEN],
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ed25519Key(..)")
    }
}

impl Suite for Ed25519 {
    fn id(&self) -> SuiteId {
        SuiteId::KcEd25519
    }

    fn strength(&self) -> u16 {
        128
    }

    fn public_key_len(&self) -> usize {
        KEY_LEN
    }

    fn signature_len(&self) -> usize {
        SIGNATURE_LEN
    }

    fn generate(&self, seed: &Secret<32>) -> Box<dyn SuiteKey> {
        let signing = ed25519_dalek::SigningKey::from_bytes(seed.expose());
        let public = signing.verifying_key().to_bytes();
        Box::new(Key { signing, public })
    }

    fn check_key(&self, public: &[u8]) -> Result<(), KeyRefused> {
        let encoded: &[u8; KEY_LEN] =
            public.try_into().map_err(|_| KeyRefused::Length { need: KEY_LEN, have: public.len() })?;
        let point = point(encoded).ok_or(KeyRefused::NotCanonical)?;
        if point.is_small_order() { Err(KeyRefused::Weak("of small order")) } else { Ok(()) }
    }

    fn take_granted(&self, public: &[u8], private: &[u8]) -> Result<Box<dyn SuiteKey>, KeyRefused> {
        self.check_key(public)?;
        let seed: &[u8; 32] = private.try_into().map_err(|_| KeyRefused::Length { need: 32, have: private.len() })?;
        let key = self.generate(&Secret::new(*seed));
        if key.public() == public { Ok(key) } else { Err(KeyRefused::Mismatch) }
    }

    fn verify(&self, public: &[u8], message: &[u8], signature: &[u8]) -> bool {
        let mut keys = Keys::default();
        Equation::read(&Claim { public, message, signature }, &mut keys).is_some_and(|equation| equation.holds(&keys))
    }

    fn verify_batch(&self, claims: &[Claim<'_>]) -> Vec<bool> {
        let mut answers = vec![false; claims.len()];
        let mut keys = Keys::default();
        let mut equations = Vec::with_capacity(claims.len());
        for (index, claim) in claims.iter().enumerate() {
            if let Some(equation) = Equation::read(claim, &mut keys) {
                equations.push((index, equation));
            }
        }
        check(&equations, &keys, &mut answers, &mut BatchWork::for_batch(equations.len()));
        answers
    }
}

impl SuiteKey for Key {
    fn public(&self) -> &[u8] {
        &self.public
    }

    fn private_half(&self) -> Option<Zeroizing<Vec<u8>>> {
        Some(Zeroizing::new(self.signing.to_bytes().to_vec()))
    }

    fn sign(&mut self, message: &[u8]) -> Result<Vec<u8>, SignError> {
        Ok(self.signing.sign(message).to_bytes().to_vec())
    }
}

/// The keys of a batch, each decompressed once.
#[derive(Default)]
struct Keys {
    points: Vec<EdwardsPoint>,
    /// The index of the key's point; `None` for a key that the rule refuses.
    known: HashMap<[u8; KEY_LEN], Option<usize>>,
}

impl Keys {
    /// The index of the point of `encoded`, if conditions 1 and 2 hold for it.
    fn index(&mut self, encoded: &[u8; KEY_LEN]) -> Option<usize> {
        if let Some(&index) = self.known.get(encoded) {
            return index;
        }
        let index = point(encoded).filter(|point| !point.is_small_order()).map(|point| {
            self.points.push(point);
            self.points.len() - 1
        });
        self.known.insert(*encoded, index);
        index
    }
}

/// Equation 4 of one signature, once conditions 1 to 3 hold.
struct Equation {
    key: usize,
    commitment: EdwardsPoint,
    challenge: Scalar,
    response: Scalar,
    /// `R ‖ S`, for the coefficients.
    signature: [u8; SIGNATURE_LEN],
}

impl Equation {
    fn read(claim: &Claim<'_>, keys: &mut Keys) -> Option<Self> {
        let public: &[u8; KEY_LEN] = claim.public.try_into().ok()?;
        let signature: [u8; SIGNATURE_LEN] = claim.signature.try_into().ok()?;
        let (commitment, response) = signature.split_at(32);
        let response = Option::<Scalar>::from(Scalar::from_canonical_bytes(response.try_into().ok()?))?;
        let key = keys.index(public)?;
        let commitment = point(commitment.try_into().ok()?)?;
        let digest = Sha512::new().chain_update(&signature[..32]).chain_update(public).chain_update(claim.message);
        let challenge = Scalar::from_bytes_mod_order_wide(&digest.finalize().into());
        Some(Self { key, commitment, challenge, response, signature })
    }

    fn holds(&self, keys: &Keys) -> bool {
        let minus_key = -keys.points[self.key];
        let sum = EdwardsPoint::vartime_double_scalar_mul_basepoint(&self.challenge, &minus_key, &self.response);
        (sum - self.commitment).mul_by_cofactor().is_identity()
    }
}

/// The work that a batch may cost, in signatures.
struct BatchWork {
    /// Terms of sums that may still be added up. Halving finds one wrong signature among many with sums of three times the
    /// batch. Where there are more, it would add up the batch again for each of its levels: the rest is then checked alone.
    sums: usize,
    /// Terms that were added up, and signatures checked alone.
    done: usize,
}

impl BatchWork {
    fn for_batch(signatures: usize) -> Self {
        Self { sums: 3 * signatures, done: 0 }
    }
}

/// Sets the answer of every equation that holds: by one sum if all do, else half by half, as far as `work` allows.
fn check(equations: &[(usize, Equation)], keys: &Keys, answers: &mut [bool], work: &mut BatchWork) {
    work.done += equations.len();
    if equations.len() < LEAST_BATCH || work.sums < equations.len() {
        for (index, equation) in equations {
            answers[*index] = equation.holds(keys);
        }
        return;
    }
    work.sums -= equations.len();
    if all_hold(equations, keys) {
        equations.iter().for_each(|(index, _)| answers[*index] = true);
    } else {
        let (left, right) = equations.split_at(equations.len() / 2);
        check(left, keys, answers, work);
        check(right, keys, answers, work);
    }
}

/// Whether the sum of all equations with 128-bit coefficients holds.
///
/// The coefficients come from a hash of the whole batch, so whoever chose the signatures could not choose them, and
/// the same batch always has the same answer. One key's terms are added up before its one multiplication.
fn all_hold(equations: &[(usize, Equation)], keys: &Keys) -> bool {
    let mut coefficients = Coefficients::new(equations);
    let mut of_base = Scalar::ZERO;
    let mut of_keys = vec![Scalar::ZERO; keys.points.len()];
    let terms = 1 + equations.len() + keys.points.len();
    let (mut scalars, mut points) = (Vec::with_capacity(terms), Vec::with_capacity(terms));
    for (_, equation) in equations {
        let coefficient = coefficients.take();
        of_base -= coefficient * equation.response;
        of_keys[equation.key] += coefficient * equation.challenge;
        scalars.push(coefficient);
        points.push(equation.commitment);
    }
    scalars.push(of_base);
    points.push(curve25519_dalek::constants::ED25519_BASEPOINT_POINT);
    // The keys of other parts of the batch have no term here.
    for (scalar, point) in of_keys.iter().zip(&keys.points).filter(|(scalar, _)| **scalar != Scalar::ZERO) {
        scalars.push(*scalar);
        points.push(*point);
    }
    EdwardsPoint::vartime_multiscalar_mul(&scalars, &points).mul_by_cofactor().is_identity()
}

/// The coefficients of a batch, two from each hash.
struct Coefficients {
    seed: [u8; 32],
    counter: u32,
    block: [u8; 32],
}

impl Coefficients {
    fn new(equations: &[(usize, Equation)]) -> Self {
        let mut transcript = Sha256::new();
        transcript.update(b"wayleave/attestation/ed25519-batch/v1");
        transcript.update((equations.len() as u64).to_be_bytes());
        for (_, equation) in equations {
            // The challenge binds the key and the message.
            transcript.update(equation.challenge.as_bytes());
            transcript.update(equation.signature);
        }
        Self { seed: transcript.finalize().into(), counter: 0, block: [0; 32] }
    }

    fn take(&mut self) -> Scalar {
        let half = (self.counter % 2) as usize * 16;
        if half == 0 {
            let block = Sha256::new().chain_update(self.seed).chain_update(self.counter.to_be_bytes());
            self.block = block.finalize().into();
        }
        self.counter += 1;
        let mut bytes = [0; 32];
        bytes[..16].copy_from_slice(&self.block[half..half + 16]);
        // Below 2^128, so already reduced.
        Scalar::from_bytes_mod_order(bytes)
    }
}

/// The point of a canonical encoding.
fn point(encoded: &[u8; 32]) -> Option<EdwardsPoint> {
    if is_canonical(encoded) { CompressedEdwardsY(*encoded).decompress() } else { None }
}

/// Whether `y < p = 2^255 − 19`, and the sign is clear where `x = 0` (that is, `y = ±1`).
fn is_canonical(encoded: &[u8; 32]) -> bool {
    let sign = encoded[31] >> 7;
    let middle_is = |byte: u8| encoded[1..31].iter().all(|&b| b == byte);
    if encoded[31] & 0x7f == 0x7f && middle_is(0xff) {
        // p − 1 ends in 0xec.
        return encoded[0] < 0xec || (encoded[0] == 0xec && sign == 0);
    }
    let is_one = encoded[0] == 1 && encoded[31] & 0x7f == 0 && middle_is(0);
    !(is_one && sign == 1)
}

#[cfg(test)]
mod tests {
    //! KCX-33: batches with one wrong signature and with nothing else: a batch costs four times its length at most.

    use super::*;

    fn key(byte: u8) -> Box<dyn SuiteKey> {
        Ed25519.generate(&Secret::new([byte; 32]))
    }

    #[test]
    fn signatures_verify_alone_and_in_a_batch() {
        let mut keys: Vec<_> = (0..5).map(key).collect();
        let messages: Vec<Vec<u8>> = (0..40u8).map(|i| vec![i; usize::from(i)]).collect();
        let signed: Vec<_> = messages
            .iter()
            .enumerate()
            .map(|(i, message)| (keys[i % 5].public().to_vec(), keys[i % 5].sign(message).expect("signs")))
            .collect();
        let mut claims: Vec<Claim<'_>> = signed
            .iter()
            .zip(&messages)
            .map(|((public, signature), message)| Claim { public, message, signature })
            .collect();
        assert_eq!(Ed25519.verify_batch(&claims), vec![true; 40]);
        claims[17].message = b"another";
        claims[38].public = claims[0].public;
        let answers = Ed25519.verify_batch(&claims);
        for (index, claim) in claims.iter().enumerate() {
            assert_eq!(answers[index], index != 17 && index != 38);
            assert_eq!(answers[index], Ed25519.verify(claim.public, claim.message, claim.signature));
        }
    }

    #[test]
    fn only_canonical_encodings_of_large_order_are_keys() {
        assert_eq!(Ed25519.check_key(key(1).public()), Ok(()));
        assert_eq!(Ed25519.check_key(&[0; 31]), Err(KeyRefused::Length { need: 32, have: 31 }));
        let mut one = [0; 32];
        one[0] = 1;
        assert_eq!(Ed25519.check_key(&one), Err(KeyRefused::Weak("of small order")));
        one[31] = 0x80;
        assert_eq!(Ed25519.check_key(&one), Err(KeyRefused::NotCanonical));
        let mut p = [0xff; 32];
        p[0] = 0xed;
        p[31] = 0x7f;
        assert_eq!(Ed25519.check_key(&p), Err(KeyRefused::NotCanonical));
    }

    #[test]
    fn a_batch_of_garbage_costs_four_times_its_length_and_one_of_honest_signatures_once() {
        let mut keys: Vec<_> = (0..8).map(key).collect();
        let message = b"one message".as_slice();
        let signed: Vec<_> =
            (0..256).map(|i| (keys[i % 8].public().to_vec(), keys[i % 8].sign(message).expect("signs"))).collect();
        let work = |is_wrong: &dyn Fn(usize) -> bool| {
            let message_of = |index| if is_wrong(index) { b"another one".as_slice() } else { message };
            let claims = signed.iter().enumerate().map(|(index, (public, signature))| Claim {
                public,
                message: message_of(index),
                signature,
            });
            let (mut points, mut equations) = (Keys::default(), Vec::new());
            for (index, claim) in claims.enumerate() {
                equations.push((index, Equation::read(&claim, &mut points).expect("reads")));
            }
            let (mut answers, mut work) = (vec![false; 256], BatchWork::for_batch(256));
            check(&equations, &points, &mut answers, &mut work);
            assert!((0..256).all(|index| answers[index] != is_wrong(index)));
            work.done
        };
        assert_eq!(work(&|_| false), 256);
        assert!(work(&|index| index == 100) <= 3 * 256);
        for every in [1, 2, 3, 7, 50] {
            let done = work(&|index| index % every == 0);
            assert!(done <= 4 * 256, "one wrong in {every}: {done}");
        }
    }
}
