//! What proofs are computed over, the same for those who make them and those who check them: packet hashes, consent
//! pre-checks, and the tags of which verifiers are made.
//!
//! The functions on whole proofs are the definition. Their parts are public too, since vector paths compute the proofs of
//! many packets from the same inputs.

use wayleave_crypto::hash::sha256_of_parts;
use wayleave_crypto::lanes::{Aes128, Block, CpuKernel};
use wayleave_crypto::sha256_packets::HEAD;

use super::header::{FIXED, RouteHash, at};

/// `H`, the hash of a packet: of its fixed fields that do not change on the way, what its path is bound to, and the payload.
#[must_use]
pub fn packet_hash(front: &[u8; FIXED], route: &RouteHash, payload: &[u8]) -> [u8; 32] {
    sha256_of_parts(&[&hash_head(front, route), payload])
}

/// The octets under a packet's hash in front of the payload. `front` has the packet's fixed fields.
#[inline]
#[must_use]
pub fn hash_head(front: &[u8; FIXED], route: &RouteHash) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[..3].copy_from_slice(b"Ih1");
    head[3] = front[0];
    head[4] = front[at::PROTOCOL];
    head[6..8].copy_from_slice(&front[at::LENGTH..at::LENGTH + 2]);
    head[8..16].copy_from_slice(&front[at::NONCE..]);
    head[16..].copy_from_slice(&route.0);
    head
}

/// The block that begins with the consent pre-check `c_j`, under `PoC_j`.
#[must_use]
pub fn consent_tag(consent: &Block, route: &RouteHash, nonce: &[u8; 8]) -> Block {
    encrypt(consent, consent_block(route, nonce))
}

/// The block whose encryption under `PoC_j` begins with the consent pre-check. Its first octet is none of those of
/// [`proof_blocks`], which are encrypted under the same key.
#[inline]
#[must_use]
pub fn consent_block(route: &RouteHash, nonce: &[u8; 8]) -> Block {
    let mut block = [0; 16];
    block[0] = 0xf0;
    block[1..8].copy_from_slice(&route.0[..7]);
    block[8..].copy_from_slice(nonce);
    block
}

/// `A_j` under `PoC_j` (`from` and `to` are `j`), or `PoP_ij` under `k_ij` (`from` is `i`, `to` is `j`): the CBC-MAC of two
/// blocks.
#[must_use]
pub fn proof_tag(key: &Block, from: usize, to: usize, hash: &[u8; 32]) -> Block {
    let [first, second] = proof_blocks(from, to, hash);
    let mut state = encrypt(key, first);
    xor_into(&mut state, &second);
    encrypt(key, state)
}

/// The two blocks under a [`proof_tag`]: an octet with both indices, and 248 bits of the hash.
#[inline]
#[must_use]
pub fn proof_blocks(from: usize, to: usize, hash: &[u8; 32]) -> [Block; 2] {
    let (first, second) = hash_blocks(hash);
    [with_indices(first, from, to), second]
}

/// Those two blocks without the indices. The first one is a number whose lowest octet is the block's first, so that
/// [`with_indices`] is one operation for each node of a path.
#[inline(always)]
#[must_use]
pub fn hash_blocks(hash: &[u8; 32]) -> (u128, Block) {
    let [high, low] = [&hash[..16], &hash[16..]].map(|half| u128::from_be_bytes(half.try_into().expect("16 octets")));
    ((high >> 8).swap_bytes(), (high << 120 | low >> 8).to_be_bytes())
}

/// The first block with both indices in its first octet: they are below 16, and `from` is never above `to`.
#[inline(always)]
#[must_use]
pub fn with_indices(first: u128, from: usize, to: usize) -> Block {
    (first | (from << 4 | to) as u128).to_le_bytes()
}

/// Adds `b` to `a` in GF(2).
#[inline]
pub fn xor_into(a: &mut Block, b: &Block) {
    *a = (u128::from_ne_bytes(*a) ^ u128::from_ne_bytes(*b)).to_ne_bytes();
}

fn encrypt(key: &Block, block: Block) -> Block {
    Aes128::with_kernel(key, CpuKernel::PORTABLE).encrypt_one(&block)
}
