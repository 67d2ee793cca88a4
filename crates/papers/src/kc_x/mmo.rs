//! The paper's hash: AES-128 in the mode of Matyas, Meyer and Oseas (section V-A, its references 18 and 19).
//!
//! `H(x) = E_k(x) xor x` of one block with a constant key `k`. The paper gives no widths. docs/decisions/0014-kc-mt-and-spv.md derives
//! from its sizes that private values have 16 bytes and inner nodes 8, so that two nodes are one block.

use sha2::{Digest as _, Sha256};
use wayleave_crypto::lanes::Aes128;

/// A private value, which a signature discloses.
pub type Value = [u8; 16];

/// A node of a tree.
pub type Node = [u8; 8];

/// The hash of whole messages.
pub type Digest = [u8; 16];

/// The constant key: the fraction of pi, a nothing-up-my-sleeve number.
const FIRST_KEY: [u8; 16] = 0x243f_6a88_85a3_08d3_1319_8a2e_0370_7344_u128.to_be_bytes();

/// Blocks that are kept to be added to their encryptions.
const CHUNK: usize = 16;

/// The hash with its expanded key.
pub struct Mmo(Aes128);

impl Default for Mmo {
    fn default() -> Self {
        Self(Aes128::new(&FIRST_KEY))
    }
}

impl Mmo {
    /// The hash of one of SPV's epochs, whose number is in every hash.
    #[must_use]
    pub fn of_epoch(epoch: u32) -> Self {
        let key = (u128::from_be_bytes(FIRST_KEY) ^ u128::from(epoch)).to_be_bytes();
        Self(Aes128::new(&key))
    }

    /// Replaces each block by its hash.
    pub fn hash_blocks(&self, blocks: &mut [[u8; 16]]) {
        let add = |blocks: &mut [[u8; 16]], plain: &[[u8; 16]]| {
            for (block, plain) in blocks.iter_mut().zip(plain) {
                *block = (u128::from_ne_bytes(*block) ^ u128::from_ne_bytes(*plain)).to_ne_bytes();
            }
        };
        let (chunks, rest) = blocks.as_chunks_mut::<CHUNK>();
        for chunk in chunks {
            let plain = *chunk;
            self.0.encrypt(chunk);
            add(chunk, &plain);
        }
        let mut plain = [[0; 16]; CHUNK];
        plain[..rest.len()].copy_from_slice(rest);
        self.0.encrypt(rest);
        add(rest, &plain);
    }

    /// The leaf over each private value.
    pub fn leaves(&self, values: &[Value]) -> Vec<Node> {
        let mut blocks = values.to_vec();
        self.hash_blocks(&mut blocks);
        blocks.iter().map(cut).collect()
    }

    /// The parents of a level: half as many nodes.
    pub fn parents(&self, level: &[Node]) -> Vec<Node> {
        let mut blocks: Vec<[u8; 16]> =
            level.as_chunks::<2>().0.iter().map(|[left, right]| join(*left, *right)).collect();
        self.hash_blocks(&mut blocks);
        blocks.iter().map(cut).collect()
    }
}

/// The hash of a message of any length: truncated SHA-256. The mode above would need a new key schedule for each block,
/// which on processors with AES instructions costs more than the rest of a verification. The paper names no hash for messages.
#[must_use]
pub fn message(message: &[u8]) -> Digest {
    *Sha256::digest(message).first_chunk().expect("16 of 32 bytes")
}

/// Two nodes as a block.
#[must_use]
pub fn join(left: Node, right: Node) -> [u8; 16] {
    let mut out = [0; 16];
    out[..8].copy_from_slice(&left);
    out[8..].copy_from_slice(&right);
    out
}

/// A hash truncated to a node.
#[must_use]
pub fn cut(block: &[u8; 16]) -> Node {
    *block.first_chunk().expect("8 of 16 bytes")
}

/// The private values of a tree: the numbers from `first` on, encrypted with AES-128 under the seed.
pub fn values(seed: &[u8; 16], first: u64, out: &mut [Value]) {
    for (value, number) in out.iter_mut().zip(first..) {
        *value = u128::from(number).to_be_bytes();
    }
    Aes128::new(seed).encrypt(out);
}

/// Private values, wiped when dropped.
#[derive(Clone)]
pub struct Values(pub Vec<Value>);

impl Drop for Values {
    fn drop(&mut self) {
        // As one slice: `Zeroize` writes octet by octet otherwise.
        self.0.fill([0; 16]);
        zeroize::optimization_barrier(&self.0[..]);
    }
}

#[cfg(test)]
mod tests {
    use aes::cipher::{Array, BlockCipherEncrypt, KeyInit};
    use aes::{Aes128Enc, Block};

    use super::*;

    #[test]
    fn a_block_is_hashed_as_its_encryption_xor_itself() {
        let mut blocks = [[0x32; 16], [0x88; 16]];
        let expected = blocks.map(|block| {
            let mut out = Block::from(block);
            Aes128Enc::new(Array::cast_from_core(&FIRST_KEY)).encrypt_block(&mut out);
            std::array::from_fn(|i| out[i] ^ block[i])
        });
        Mmo::default().hash_blocks(&mut blocks);
        assert_eq!(blocks, expected);
    }

    #[test]
    fn each_epoch_has_a_hash_of_its_own() {
        let hash = |mmo: Mmo| {
            let mut block = [[7; 16]];
            mmo.hash_blocks(&mut block);
            block
        };
        assert_eq!(hash(Mmo::default()), hash(Mmo::of_epoch(0)));
        assert_ne!(hash(Mmo::of_epoch(0)), hash(Mmo::of_epoch(1)));
    }

    #[test]
    fn many_blocks_are_hashed_as_one_by_one() {
        let mmo = Mmo::default();
        let mut many: Vec<[u8; 16]> = (0..130u128).map(|i| (i * i).to_be_bytes()).collect();
        let plain = many.clone();
        mmo.hash_blocks(&mut many);
        for (plain, hashed) in plain.into_iter().zip(many) {
            let mut one = [plain];
            mmo.hash_blocks(&mut one);
            assert_eq!(one[0], hashed);
        }
    }
}
