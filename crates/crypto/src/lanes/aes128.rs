//! AES-128 in one direction (FIPS 197): one key over many blocks, or a key of its own for each block.

use aes::cipher::{BlockCipherEncrypt, KeyInit};
use zeroize::{Zeroize, ZeroizeOnDrop};

use super::{Block, Code, CpuKernel, xor_into};

/// The round keys, the first one first.
pub(super) type RoundKeys = [Block; 11];

/// One key, expanded. It has no printable form and is wiped when dropped.
#[derive(Clone)]
pub struct Aes128 {
    kernel: CpuKernel,
    /// Exclusive-ored into the input first; zero for plain AES.
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

    /// The same key, for which `encrypt` is `E_key(whitening ^ block)`.
    pub(super) fn whitened(&self, whitening: &Block) -> Self {
        let mut other = self.clone();
        xor_into(&mut other.whitening, whitening);
        xor_into(&mut other.round_keys[0], whitening);
        other
    }

    /// The code that computes with it.
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
                for block in blocks {
                    xor_into(block, &self.whitening);
                    self.portable.encrypt_block(block.into());
                }
            }
            #[cfg(target_arch = "x86_64")]
            Code::AesNi | Code::Vaes512 => super::x86::encrypt(self.kernel, &self.round_keys, blocks),
        }
    }

    /// The encryption of one block.
    #[must_use]
    pub fn encrypt_one(&self, block: &Block) -> Block {
        let mut out = *block;
        self.encrypt(std::slice::from_mut(&mut out));
        out
    }
}

/// Encrypts each of `blocks` in place under the key at the same place; as many as the shorter slice has.
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

/// Replaces each of `first` by the CBC-MAC of itself and its fellow of `second`, `E(E(first) ^ second)`, under the key at
/// the same place; as many as the shortest slice has. It is a pseudorandom function where no message under a key is
/// another's beginning.
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
