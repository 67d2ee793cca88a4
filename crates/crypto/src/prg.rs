//! A pseudorandom generator: AES-128 in counter mode from a 16-byte seed, with random access by block.

use std::fmt;

use zeroize::Zeroizing;

use crate::lanes::Aes128;

/// Bytes of one block of the stream.
pub const BLOCK: usize = 16;

/// The stream of one seed: block `i` is `AES-128(seed, i)`, `i` as 64 bits, little-endian, above it zeros.
///
/// The caller must not read a block twice for two purposes. The key schedule is wiped when dropped.
pub struct Prg(Aes128);

impl Prg {
    /// The stream of `seed`, which must be secret and uniformly random, and have no other use.
    #[must_use]
    pub fn new(seed: &[u8; 16]) -> Self {
        Self(Aes128::new(seed))
    }

    /// Fills `out` with the blocks `first`, `first + 1`, ... (the counter wraps after 2^64 blocks).
    pub fn blocks(&self, first: u64, out: &mut [[u8; BLOCK]]) {
        for (counter, block) in (0u64..).zip(out.iter_mut()) {
            *block = u128::from(first.wrapping_add(counter)).to_le_bytes();
        }
        self.0.encrypt(out);
    }

    /// Fills `out` with the bytes from the start of block `first` on; what is left of the last block is dropped.
    pub fn fill(&self, first: u64, out: &mut [u8]) {
        let (blocks, rest) = out.as_chunks_mut::<BLOCK>();
        self.blocks(first, blocks);
        if !rest.is_empty() {
            let mut last = Zeroizing::new([[0; BLOCK]]);
            self.blocks(first.wrapping_add(blocks.len() as u64), last.as_mut());
            rest.copy_from_slice(&last[0][..rest.len()]);
        }
    }
}

impl fmt::Debug for Prg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Prg(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_zero_is_aes_of_zero() {
        // AES-128 under the zero key of the zero block (FIPS 197 arithmetic; NIST AESAVS, the GFSbox start value).
        let mut out = [0u8; 16];
        Prg::new(&[0; 16]).fill(0, &mut out);
        assert_eq!(u128::from_be_bytes(out), 0x66e9_4bd4_ef8a_2c3b_884c_fa59_ca34_2b2e);
    }

    #[test]
    fn any_part_of_the_stream_can_be_read_alone() {
        let prg = Prg::new(&[7; 16]);
        let mut whole = [0u8; 16 * 40];
        prg.fill(3, &mut whole);
        for block in 0..40 {
            for len in [1, 15, 16] {
                let mut part = vec![0u8; len];
                prg.fill(3 + block as u64, &mut part);
                assert_eq!(part, whole[16 * block..][..len]);
            }
        }
    }

    #[test]
    fn the_counter_wraps_without_panic() {
        let prg = Prg::new(&[1; 16]);
        let (mut out, mut zero) = ([[0u8; 16]; 2], [[0u8; 16]; 1]);
        prg.blocks(u64::MAX, &mut out);
        prg.blocks(0, &mut zero);
        assert_eq!(out[1], zero[0]);
    }
}
