//! What proofs are computed over, the same for those who make them and those who check them: packet hashes, consent
//! pre-checks, and the tags of which verifiers are made.
//!
//! The functions on whole proofs are the definition. Their parts are public too, since vector paths compute the proofs of
//! many packets from the same inputs.

use wayleave_crypto::hash::{sha256, sha256_of_parts};
use wayleave_crypto::lanes::{Aes128, Block, CpuKernel};
use wayleave_crypto::sha256_packets::HEAD;

use super::header::{FIXED, FLAG_FIRST, FLAG_SECOND, RouteHash, SEAL_END, Version, at};

/// `H`, the hash of a packet: of its fixed fields that do not change on the way, what its path is bound to, and the payload, or
/// the two ends of one that is sealed.
#[must_use]
pub fn packet_hash(front: &[u8; FIXED], route: &RouteHash, payload: &[u8]) -> [u8; 32] {
    let head = hash_head(front, route);
    match sealed_ends(front, payload) {
        Some(ends) => sha256_of_parts(&[&head, &ends]),
        None => sha256_of_parts(&[&head, payload]),
    }
}

/// The first and the last octets of a payload that is sealed as a whole, which stand for it under `H`; `None` if `H` covers all of it. A
/// part of a split payload has no seal's tag at its end.
#[inline]
#[must_use]
pub fn sealed_ends(front: &[u8; FIXED], payload: &[u8]) -> Option<[u8; 2 * SEAL_END]> {
    let is_sealed = front[0] >> 4 == Version::Sealed as u8 && front[0] & (FLAG_FIRST | FLAG_SECOND) == 0;
    let (first, last) = (payload.first_chunk::<SEAL_END>()?, payload.last_chunk::<SEAL_END>()?);
    let mut ends = [0; 2 * SEAL_END];
    ends[..SEAL_END].copy_from_slice(first);
    ends[SEAL_END..].copy_from_slice(last);
    is_sealed.then_some(ends)
}

/// Whether a sealed packet is a sample for node `j`, by `PoP_0j` over `H`: one in 64 is, and nobody but the sender and the node can tell.
#[inline]
#[must_use]
pub fn is_sample(provenance: &Block) -> bool {
    provenance[15] & 63 == 0
}

/// `H'`: what the sender's proofs for node `j` cover in place of `H` if the packet is a sample for it.
#[must_use]
pub fn sample_hash(hash: &[u8; 32], payload: &[u8]) -> [u8; 32] {
    sha256_of_parts(&[b"Is2", hash, &sha256(payload)])
}

/// The octets under a packet's hash in front of the payload. `front` has the packet's fixed fields.
#[inline]
#[must_use]
pub fn hash_head(front: &[u8; FIXED], route: &RouteHash) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[..3].copy_from_slice(if front[0] >> 4 == Version::Sealed as u8 { b"Ih2" } else { b"Ih1" });
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

/// `A_j` and `PoP_0j`, of which the sender makes the verifier of node `index`, under `PoC_j` and `k_0j`.
#[must_use]
pub fn sender_tags([consent, pair]: [&Block; 2], index: usize, hash: &[u8; 32]) -> [Block; 2] {
    [proof_tag(consent, index, index, hash), proof_tag(pair, 0, index, hash)]
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
