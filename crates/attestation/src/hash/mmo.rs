//! The paper's hash: AES-128 in the mode of Matyas, Meyer and Oseas, as its references [18] and [19] have it (section V-A).
//!
//! `H(x) = E_k(x) xor x`, where `k` is a constant for the first block and the hash so far for each next one. The paper
//! gives no widths; docs/departures.md derives from its sizes that private values have 16 bytes and inner nodes 8, so
//! that two nodes are one block. Lab and benchmarks only.

use aes::cipher::{Array, BlockCipherEncrypt, KeyInit};
use aes::{Aes128Enc, Block};
use zeroize::Zeroize;

/// A private value: what a signature discloses.
pub type Value = [u8; 16];

/// A node of a tree.
pub type Node = [u8; 8];

/// The hash of whole messages.
pub type Digest = [u8; 16];

/// The constant key of the first block: the fraction of pi, a number with nothing up its sleeve.
const FIRST_KEY: [u8; 16] = 0x243f_6a88_85a3_08d3_1319_8a2e_0370_7344_u128.to_be_bytes();

/// The hash, its constant key expanded.
pub struct Mmo(Aes128Enc);

impl Default for Mmo {
    fn default() -> Self {
        Self(Aes128Enc::new(Array::cast_from_core(&FIRST_KEY)))
    }
}

impl Mmo {
    /// Replaces each block by its hash, many at a time.
    pub fn hash_blocks(&self, blocks: &mut [[u8; 16]]) {
        for some in blocks.chunks_mut(8) {
            let mut plain = [[0; 16]; 8];
            plain[..some.len()].copy_from_slice(some);
            self.0.encrypt_blocks(Array::cast_slice_from_core_mut(some));
            for (block, plain) in some.iter_mut().zip(plain) {
                *block = (u128::from_ne_bytes(*block) ^ u128::from_ne_bytes(plain)).to_ne_bytes();
            }
        }
    }

    /// The leaf over each private value.
    pub fn leaves(&self, values: &[Value]) -> Vec<Node> {
        let mut blocks = values.to_vec();
        self.hash_blocks(&mut blocks);
        blocks.iter().map(cut).collect()
    }

    /// The parents of a level: half as many.
    pub fn parents(&self, level: &[Node]) -> Vec<Node> {
        let mut blocks: Vec<[u8; 16]> =
            level.as_chunks::<2>().0.iter().map(|[left, right]| join(*left, *right)).collect();
        self.hash_blocks(&mut blocks);
        blocks.iter().map(cut).collect()
    }

    /// The hash of a message of any length: a one bit, zeros and the length in bits fill the last block
    /// (Merkle-Damgaard strengthening).
    pub fn message(&self, message: &[u8]) -> Digest {
        let (whole, rest) = message.as_chunks::<16>();
        let mut last = [[0; 16]; 2];
        let end = last.as_flattened_mut();
        end[..rest.len()].copy_from_slice(rest);
        end[rest.len()] = 0x80;
        let blocks = if rest.len() < 8 { 1 } else { 2 };
        end[16 * blocks - 8..16 * blocks].copy_from_slice(&(8 * message.len() as u64).to_be_bytes());
        let mut hash: Option<Digest> = None;
        for block in whole.iter().chain(&last[..blocks]) {
            let mut out = Block::from(*block);
            match hash {
                None => self.0.encrypt_block(&mut out),
                Some(key) => Aes128Enc::new(Array::cast_from_core(&key)).encrypt_block(&mut out),
            }
            let mixed = u128::from_ne_bytes(out.into()) ^ u128::from_ne_bytes(*block);
            hash = Some(mixed.to_ne_bytes());
        }
        hash.expect("there is at least the last block")
    }
}

/// Two nodes as a block.
#[must_use]
pub fn join(left: Node, right: Node) -> [u8; 16] {
    let mut out = [0; 16];
    out[..8].copy_from_slice(&left);
    out[8..].copy_from_slice(&right);
    out
}

/// A hash, cut to a node.
#[must_use]
pub fn cut(block: &[u8; 16]) -> Node {
    *block.first_chunk().expect("8 of 16 bytes")
}

/// The private values of a tree: AES-128 under the seed, of the numbers from `first` on.
pub fn values(seed: &[u8; 16], first: u64, out: &mut [Value]) {
    for (value, number) in out.iter_mut().zip(first..) {
        *value = u128::from(number).to_be_bytes();
    }
    Aes128Enc::new(Array::cast_from_core(seed)).encrypt_blocks(Array::cast_slice_from_core_mut(out));
}

/// Private values, wiped when dropped.
#[derive(Clone)]
pub struct Values(pub Vec<Value>);

impl Drop for Values {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mode_is_encryption_xor_plaintext_chained_by_keys() {
        let message: Vec<u8> = (0..40).collect();
        let mut padded = message.clone();
        padded.push(0x80);
        padded.resize(64, 0);
        padded[63] = 64;
        padded[62] = 1;
        let mut hash = FIRST_KEY;
        for block in padded.as_chunks::<16>().0 {
            let mut out = Block::from(*block);
            Aes128Enc::new(Array::cast_from_core(&hash)).encrypt_block(&mut out);
            hash = std::array::from_fn(|i| out[i] ^ block[i]);
        }
        assert_eq!(Mmo::default().message(&message[..40]), hash);
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

    #[test]
    fn messages_of_all_lengths_differ() {
        let mmo = Mmo::default();
        let mut seen: Vec<Digest> = (0..70).map(|len| mmo.message(&vec![0; len])).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 70);
    }
}
