//! AES-CMAC (RFC 4493) of a burst of messages, under one key for all or a key for each.

use aes::cipher::{BlockCipherEncrypt, KeyInit};
use subtle::{Choice, ConstantTimeEq};

use super::{Aes128, BURST, Block, Code, CpuKernel, double, xor_into};

/// One message in two parts, so that a header can be built apart from the payload that follows it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Parts<'a> {
    pub head: &'a [Block],
    /// What follows the head.
    pub tail: &'a [u8],
}

impl<'a> Parts<'a> {
    /// A message in one piece.
    #[must_use]
    pub fn whole(octets: &'a [u8]) -> Self {
        Self { head: &[], tail: octets }
    }

    /// The number of blocks, the last one perhaps incomplete; one for an empty message.
    pub(super) fn blocks(&self) -> usize {
        (self.head.len() + self.tail.len().div_ceil(16)).max(1)
    }

    /// Block `index`, which must be complete.
    #[inline(always)]
    pub(super) fn block(&self, index: usize) -> &'a Block {
        match self.head.get(index) {
            Some(block) => block,
            None => &self.tail.as_chunks().0[index - self.head.len()],
        }
    }

    /// The last block, padded if it is incomplete, under the subkey for its case (RFC 4493 section 2.4).
    fn closed(&self, k1: &Block, k2: &Block) -> Block {
        let (whole, rest) = self.tail.as_chunks();
        let complete = if rest.is_empty() { whole.last().or(self.head.last()) } else { None };
        let mut last = complete.copied().unwrap_or_else(|| padded(rest));
        xor_into(&mut last, if complete.is_some() { k1 } else { k2 });
        last
    }
}

/// Fewer than 16 octets, then a one bit and zeros.
pub(super) fn padded(octets: &[u8]) -> Block {
    let mut out = [0; 16];
    out[..octets.len()].copy_from_slice(octets);
    out[octets.len()] = 0x80;
    out
}

/// K1 and K2, of the encryption of the zero block (RFC 4493 section 2.3).
fn subkeys(zero: &Block) -> (Block, Block) {
    let k1 = double(zero);
    (k1, double(&k1))
}

/// A CMAC key, expanded.
#[derive(Clone)]
pub struct CmacKey {
    aes: Aes128,
    /// The same key with K1 in its first round key: it tags a message of one complete block by one encryption.
    single: Aes128,
    k1: Block,
    k2: Block,
}

impl Drop for CmacKey {
    fn drop(&mut self) {
        zeroize::Zeroize::zeroize(&mut self.k1);
        zeroize::Zeroize::zeroize(&mut self.k2);
    }
}

impl CmacKey {
    /// Expands `key` for the fastest kernel of this machine.
    #[must_use]
    pub fn new(key: &Block) -> Self {
        Self::with_kernel(key, CpuKernel::best())
    }

    /// Expands `key` for `kernel`.
    #[must_use]
    pub fn with_kernel(key: &Block, kernel: CpuKernel) -> Self {
        let aes = Aes128::with_kernel(key, kernel);
        let (k1, k2) = subkeys(&aes.encrypt_one(&[0; 16]));
        let single = aes.whitened(&k1);
        Self { aes, single, k1, k2 }
    }

    /// The key that tags a message of one complete block by one encryption.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn single(&self) -> &Aes128 {
        &self.single
    }

    /// Replaces every block by the tag of the message that is this one block, at one AES operation each.
    #[inline]
    pub fn tag_blocks(&self, blocks: &mut [Block]) {
        self.single.encrypt(blocks);
    }

    #[must_use]
    pub fn kernel(&self) -> CpuKernel {
        self.aes.kernel()
    }

    /// The tag of one message.
    #[must_use]
    pub fn tag(&self, message: &[u8]) -> Block {
        let mut tag = [[0; 16]];
        self.tag_burst(&[Parts::whole(message)], &mut tag);
        tag[0]
    }

    /// Writes the tags of `messages` into `tags`: as many as the shorter slice has.
    pub fn tag_burst(&self, messages: &[Parts<'_>], tags: &mut [Block]) {
        for (messages, tags) in messages.chunks(BURST).zip(tags.chunks_mut(BURST)) {
            let count = messages.len().min(tags.len());
            match self.aes.kernel().0 {
                Code::Portable => {
                    for (message, tag) in messages.iter().zip(tags) {
                        *tag = self.portable(message);
                    }
                }
                #[cfg(target_arch = "x86_64")]
                Code::AesNi | Code::Vaes512 => super::x86::cmac(
                    self.aes.kernel(),
                    super::x86::Keys::One(self.aes.round_keys(), &self.k1, &self.k2),
                    &messages[..count],
                    &mut tags[..count],
                ),
            }
        }
    }

    /// Whether `tag` is that of `message`, in constant time. A `tag` of fewer than 16 octets is compared with the first ones.
    #[must_use]
    pub fn verify(&self, message: &[u8], tag: &[u8]) -> Choice {
        self.tag(message)[..tag.len().min(16)].ct_eq(tag)
    }

    fn portable(&self, message: &Parts<'_>) -> Block {
        let last = message.blocks() - 1;
        let mut state = [0; 16];
        for index in 0..last {
            xor_into(&mut state, message.block(index));
            state = self.aes.encrypt_one(&state);
        }
        xor_into(&mut state, &message.closed(&self.k1, &self.k2));
        self.aes.encrypt_one(&state)
    }
}

/// The tag of each message under the key at the same place, into `tags`; as many as the shortest slice has.
pub fn cmac_each(kernel: CpuKernel, keys: &[Block], messages: &[Parts<'_>], tags: &mut [Block]) {
    for ((keys, messages), tags) in keys.chunks(BURST).zip(messages.chunks(BURST)).zip(tags.chunks_mut(BURST)) {
        let count = keys.len().min(messages.len()).min(tags.len());
        match kernel.0 {
            Code::Portable => {
                for ((key, message), tag) in keys.iter().zip(messages).zip(tags) {
                    *tag = once(key, message);
                }
            }
            #[cfg(target_arch = "x86_64")]
            Code::AesNi | Code::Vaes512 => {
                let keys = super::x86::Keys::Each(&keys[..count]);
                super::x86::cmac(kernel, keys, &messages[..count], &mut tags[..count]);
            }
        }
    }
}

/// The tag of one message under a key that is used once: nothing is kept that a further message would need.
fn once(key: &Block, message: &Parts<'_>) -> Block {
    let aes = aes::Aes128::new(key.into());
    let mut zero = [0; 16];
    aes.encrypt_block((&mut zero).into());
    let (k1, k2) = subkeys(&zero);
    let last = message.blocks() - 1;
    let mut state = [0; 16];
    for index in 0..last {
        xor_into(&mut state, message.block(index));
        aes.encrypt_block((&mut state).into());
    }
    xor_into(&mut state, &message.closed(&k1, &k2));
    aes.encrypt_block((&mut state).into());
    state
}
