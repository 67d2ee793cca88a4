//! A tweakable circular-correlation-robust hash for oblivious transfer, batched over many blocks.
//!
//! `H(x, i) = pi(pi(x) xor i) xor pi(x)` (Guo, Katz, Wang, Yu, "Efficient and secure multiparty computation from
//! fixed-key block ciphers", IEEE S&P 2020, section 7.4, where fixed-key constructions without the tweak are shown
//! to break oblivious transfer). `pi` is AES-128 whose fixed key is the session's public tag, so that the tweak is the
//! pair (session, index): two sessions share neither permutation nor tweak.

use std::fmt;

use zeroize::Zeroizing;

use crate::lanes::Aes128;

/// Blocks hashed at a time: what stays in the first cache beside the caller's.
const BATCH: usize = 64;

/// The hash of one session. What it leaves in its scratch is wiped when dropped.
pub struct Tccr {
    pi: Aes128,
    /// The batch after the first permutation, kept from call to call, since wiping it takes longer than hashing.
    inner: Zeroizing<[[u8; 16]; BATCH]>,
}

impl Tccr {
    /// The hash of the session with the public tag `session`.
    #[must_use]
    pub fn new(session: &[u8; 16]) -> Self {
        Self { pi: Aes128::new(session), inner: Zeroizing::new([[0; 16]; BATCH]) }
    }

    /// Replaces block `k` by `H(block, i)`, where the tweak `i` is the 128-bit number `domain * 2^64 + first + k`.
    ///
    /// `domain` separates the two directions of a session; within one, no index may serve two transfers.
    pub fn hash(&mut self, domain: u64, first: u64, blocks: &mut [[u8; 16]]) {
        let mut tweak = (u128::from(domain) << 64) | u128::from(first);
        for batch in blocks.chunks_mut(BATCH) {
            let inner = &mut self.inner[..batch.len()];
            inner.copy_from_slice(batch);
            self.pi.encrypt(inner);
            for (block, once) in batch.iter_mut().zip(inner.iter()) {
                *block = (u128::from_le_bytes(*once) ^ tweak).to_le_bytes();
                tweak = tweak.wrapping_add(1);
            }
            self.pi.encrypt(batch);
            for (block, once) in batch.iter_mut().zip(inner.iter()) {
                *block = (u128::from_le_bytes(*block) ^ u128::from_le_bytes(*once)).to_le_bytes();
            }
        }
    }
}

impl fmt::Debug for Tccr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tccr(..)")
    }
}

#[cfg(test)]
mod tests {
    use aes::cipher::{BlockCipherEncrypt, KeyInit};
    use aes::{Aes128, Block};

    use super::*;

    fn one_by_one(session: &[u8; 16], tweak: u128, x: [u8; 16]) -> [u8; 16] {
        let pi = Aes128::new(session.into());
        let mut inner = Block::from(x);
        pi.encrypt_block(&mut inner);
        let inner = u128::from_le_bytes(inner.into());
        let mut outer = Block::from((inner ^ tweak).to_le_bytes());
        pi.encrypt_block(&mut outer);
        (u128::from_le_bytes(outer.into()) ^ inner).to_le_bytes()
    }

    #[test]
    fn a_batch_is_the_formula_block_by_block() {
        let mut tccr = Tccr::new(&[9; 16]);
        for len in [0usize, 1, 63, 64, 65, 200] {
            let mut blocks: Vec<[u8; 16]> = (0..len as u128).map(|x| (x * x * 77).to_le_bytes()).collect();
            let plain = blocks.clone();
            tccr.hash(1, u64::from(u32::MAX), &mut blocks);
            for (k, (x, hashed)) in plain.iter().zip(&blocks).enumerate() {
                let tweak = (1u128 << 64) + u128::from(u32::MAX) + k as u128;
                assert_eq!(*hashed, one_by_one(&[9; 16], tweak, *x));
            }
        }
    }

    #[test]
    fn session_domain_and_index_each_change_the_hash() {
        let hash = |session: u8, domain, first| {
            let mut block = [[5u8; 16]];
            Tccr::new(&[session; 16]).hash(domain, first, &mut block);
            block[0]
        };
        let all = [hash(0, 0, 0), hash(1, 0, 0), hash(0, 1, 0), hash(0, 0, 1)];
        for (i, a) in all.iter().enumerate() {
            assert!(all[..i].iter().all(|b| a != b));
        }
    }
}
