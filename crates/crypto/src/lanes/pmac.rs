//! AES-PMAC (Black and Rogaway, EUROCRYPT 2002): its blocks are independent, so that one message fills the lanes.

use super::{Aes128, Block, CpuKernel, double, xor_into};

/// Blocks encrypted at a time.
const WIDE: usize = 16;

/// A PMAC key, expanded.
#[derive(Clone)]
pub struct PmacKey {
    aes: Aes128,
    /// `L(i)`, twice the one before it, for as many as the number of blocks has bits.
    powers: [Block; 32],
    /// `L` over `x` in the field.
    inverse: Block,
}

impl Drop for PmacKey {
    fn drop(&mut self) {
        zeroize::Zeroize::zeroize(&mut self.powers);
        zeroize::Zeroize::zeroize(&mut self.inverse);
    }
}

impl PmacKey {
    /// Expands `key` for the fastest kernel of this machine.
    #[must_use]
    pub fn new(key: &Block) -> Self {
        Self::with_kernel(key, CpuKernel::best())
    }

    /// Expands `key` for `kernel`.
    #[must_use]
    pub fn with_kernel(key: &Block, kernel: CpuKernel) -> Self {
        let aes = Aes128::with_kernel(key, kernel);
        let mut powers = [aes.encrypt_one(&[0; 16]); 32];
        for index in 1..powers.len() {
            powers[index] = double(&powers[index - 1]);
        }
        let value = u128::from_be_bytes(powers[0]);
        let inverse = (value >> 1) ^ ((value & 1) * ((1 << 127) | 0x43));
        Self { aes, powers, inverse: inverse.to_be_bytes() }
    }

    /// The tag of `message`.
    #[must_use]
    pub fn tag(&self, message: &[u8]) -> Block {
        let whole = message.len().saturating_sub(1) / 16;
        let (blocks, rest) = message.split_at(whole * 16);
        let (mut offset, mut sum) = ([0; 16], [0; 16]);
        let mut number = 0usize;
        for chunk in blocks.as_chunks::<16>().0.chunks(WIDE) {
            let mut wide = [[0; 16]; WIDE];
            for (lane, block) in wide.iter_mut().zip(chunk) {
                number += 1;
                xor_into(&mut offset, &self.powers[number.trailing_zeros() as usize % 32]);
                *lane = *block;
                xor_into(lane, &offset);
            }
            self.aes.encrypt(&mut wide[..chunk.len()]);
            for lane in &wide[..chunk.len()] {
                xor_into(&mut sum, lane);
            }
        }
        let mut last = [0; 16];
        last[..rest.len()].copy_from_slice(rest);
        if rest.len() == 16 {
            xor_into(&mut sum, &self.inverse);
        } else {
            last[rest.len()] = 0x80;
        }
        xor_into(&mut sum, &last);
        self.aes.encrypt_one(&sum)
    }
}
