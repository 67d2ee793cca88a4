//! AES-128 encryption (FIPS 197): many blocks under one key, or each under a key of its own.

use aes::cipher::{Array, BlockCipherEncrypt, KeyInit};
use zeroize::{Zeroize, ZeroizeOnDrop};

use super::{Block, Code, CpuKernel, xor_into};

pub(super) type RoundKeys = [Block; 11];

/// An expanded key. It has no printable form and is wiped when dropped.
#[derive(Clone)]
pub struct Aes128 {
    kernel: CpuKernel,
    /// Added to every input first; zero for plain AES. The round keys have it already, the portable cipher does not.
    pub(super) whitening: Block,
    round_keys: RoundKeys,
    portable: aes::Aes128,
}

impl Drop for Aes128 {
    fn drop(&mut self) {
        self.round_keys.zeroize();
        self.whitening.zeroize();
    }
}

impl ZeroizeOnDrop for Aes128 {}

impl Aes128 {
    /// Expands `key` for the fastest kernel of this machine.
    #[must_use]
    pub fn new(key: &Block) -> Self {
        Self::with_kernel(key, CpuKernel::best())
    }

    /// Expands `key` for `kernel`.
    #[must_use]
    pub fn with_kernel(key: &Block, kernel: CpuKernel) -> Self {
        let round_keys = match kernel.0 {
            Code::Portable => [[0; 16]; 11],
            #[cfg(target_arch = "x86_64")]
            Code::AesNi | Code::Vaes512 => super::x86::expand(kernel, key),
        };
        Self { kernel, whitening: [0; 16], round_keys, portable: aes::Aes128::new(&(*key).into()) }
    }

    /// The same key with `whitening` added to every input: it encrypts to `E_key(whitening ^ block)`.
    pub(super) fn whitened(&self, whitening: &Block) -> Self {
        let mut other = self.clone();
        xor_into(&mut other.whitening, whitening);
        xor_into(&mut other.round_keys[0], whitening);
        other
    }

    #[must_use]
    pub fn kernel(&self) -> CpuKernel {
        self.kernel
    }

    #[cfg(target_arch = "x86_64")]
    pub(super) fn round_keys(&self) -> &RoundKeys {
        &self.round_keys
    }

    /// Encrypts every block in place.
    #[inline]
    pub fn encrypt(&self, blocks: &mut [Block]) {
        match self.kernel.0 {
            Code::Portable => {
                blocks.iter_mut().for_each(|block| xor_into(block, &self.whitening));
                // All at once: the crate computes several side by side where it has to do without AES instructions.
                self.portable.encrypt_blocks(Array::cast_slice_from_core_mut(blocks));
            }
            #[cfg(target_arch = "x86_64")]
            Code::AesNi | Code::Vaes512 => super::x86::encrypt(self.kernel, &self.round_keys, blocks),
        }
    }

    #[must_use]
    pub fn encrypt_one(&self, block: &Block) -> Block {
        let mut out = *block;
        self.encrypt(std::slice::from_mut(&mut out));
        out
    }
}

/// Encrypts each block in place under the key with the same index: as many as the shorter slice has.
pub fn encrypt_each(kernel: CpuKernel, keys: &[Block], blocks: &mut [Block]) {
    match kernel.0 {
        Code::Portable => {
            for (key, block) in keys.iter().zip(blocks) {
                aes::Aes128::new(&(*key).into()).encrypt_block(block.into());
            }
        }
        #[cfg(target_arch = "x86_64")]
        Code::AesNi | Code::Vaes512 => super::x86::encrypt_each(kernel, keys, blocks),
    }
}

/// Replaces each block of `first` by the CBC-MAC of itself and the block of `second` with the same index,
/// `E(E(first) ^ second)`, under the key with that index: as many as the shortest slice has. This is a pseudorandom
/// function as long as no message under a key is the beginning of another.
pub fn cbc_pair_each(kernel: CpuKernel, keys: &[Block], first: &mut [Block], second: &[Block]) {
    match kernel.0 {
        Code::Portable => {
            for ((key, block), second) in keys.iter().zip(first).zip(second) {
                let cipher = aes::Aes128::new(&(*key).into());
                cipher.encrypt_block(block.into());
                xor_into(block, second);
                cipher.encrypt_block(block.into());
            }
        }
        #[cfg(target_arch = "x86_64")]
        Code::AesNi | Code::Vaes512 => super::x86::cbc_pair_each(kernel, keys, first, second),
    }
}
