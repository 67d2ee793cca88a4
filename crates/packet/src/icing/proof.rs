//! What proofs are computed over, the same for who makes them and who checks them.

use wayleave_crypto::lanes::Block;
use wayleave_crypto::sha256_packets::HEAD;

use super::header::{RouteHash, at};

/// Octets in front of the payload under a packet's hash. `front` begins with the packet's fixed fields.
#[inline]
pub(super) fn hash_head(front: &[u8; 16], route: &RouteHash) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[..3].copy_from_slice(b"Ih1");
    head[3] = front[0];
    head[4] = front[at::PROTOCOL];
    head[6..8].copy_from_slice(&front[at::LENGTH..at::LENGTH + 2]);
    head[8..16].copy_from_slice(&front[at::NONCE..]);
    head[16..].copy_from_slice(&route.0);
    head
}

/// The block whose encryption under `PoC_j` begins with the consent pre-check. Its first octet is none of [`proof_blocks`].
#[inline]
pub(super) fn consent_block(route: &RouteHash, nonce: &[u8; 8]) -> Block {
    let mut block = [0; 16];
    block[0] = 0xf0;
    block[1..8].copy_from_slice(&route.0[..7]);
    block[8..].copy_from_slice(nonce);
    block
}

/// The two blocks under `A_j` (`from` and `to` are `j`) or `PoP_ij` (`i`, then `j`): both indices, then 248 bits of the hash.
#[inline]
pub(super) fn proof_blocks(from: usize, to: usize, hash: &[u8; 32]) -> [Block; 2] {
    let (first, second) = hash_blocks(hash);
    [with_indices(first, from, to), second]
}

/// Those two blocks without the indices; the first one as a number, its first octet lowest.
#[inline(always)]
pub(super) fn hash_blocks(hash: &[u8; 32]) -> (u128, Block) {
    let [high, low] = [&hash[..16], &hash[16..]].map(|half| u128::from_be_bytes(half.try_into().expect("16 octets")));
    ((high >> 8).swap_bytes(), (high << 120 | low >> 8).to_be_bytes())
}

/// The first block with both indices in its first octet: they are below 16, and `from` is never above `to`.
#[inline(always)]
pub(super) fn with_indices(first: u128, from: usize, to: usize) -> Block {
    (first | (from << 4 | to) as u128).to_le_bytes()
}

/// `a ^= b`.
#[inline]
pub(super) fn xor_into(a: &mut [u8; 16], b: &Block) {
    *a = (u128::from_ne_bytes(*a) ^ u128::from_ne_bytes(*b)).to_ne_bytes();
}
