//! CMAC under derived keys of sixteen messages of equal numbers of blocks. Everything stays in registers, from the input of
//! the keys to the tags.

use std::arch::x86_64::{
    __m512i, _mm_maskz_loadu_epi8, _mm256_storeu_si256, _mm512_castsi128_si512, _mm512_cvtepi32_epi16,
    _mm512_inserti32x4, _mm512_loadu_si512, _mm512_mask_blend_epi8, _mm512_set1_epi8, _mm512_set1_epi32,
    _mm512_sllv_epi32, _mm512_sub_epi32, _mm512_testn_epi32_mask, _mm512_unpackhi_epi32, _mm512_unpackhi_epi64,
    _mm512_unpacklo_epi32, _mm512_unpacklo_epi64,
};

use super::super::derived_cmac::common_blocks;
use super::super::{Block, CmacKey, Code, Columns, CpuKernel, LANES, Row};
use super::{Vector, across, encrypt_vectors, schedule_and_encrypt, splat_all};

/// Vectors of four blocks each, one block for every message.
const VECTORS: usize = 4;

/// The message in block `block` of vector `vector`. Messages that come in rows fill one vector after the other. Messages that
/// come in columns are `TRANSPOSED` only within quarters of vectors, which saves four permutations a block: they fill block 0
/// of each vector, then block 1, and so on.
#[inline(always)]
fn message_of<const TRANSPOSED: bool>(vector: usize, block: usize) -> usize {
    if TRANSPOSED { VECTORS * block + vector } else { VECTORS * vector + block }
}

/// See [`super::super::tag_rows`]; for the VAES-512 kernel. All `keys` are of a vector kernel: a portable one has no round
/// keys.
pub(crate) fn tag_rows(
    kernel: CpuKernel,
    keys: &[(&CmacKey, u16)],
    rows: &[Row; LANES],
    tails: &[&[u8]; LANES],
    tags: &mut [Block; LANES],
) -> bool {
    #[target_feature(enable = "aes,ssse3,vaes,avx512f,avx512bw,avx512vl,bmi1,bmi2")]
    fn wide(keys: &[(&CmacKey, u16)], rows: &[Row; LANES], tails: &[&[u8]; LANES], tags: &mut [Block; LANES]) -> bool {
        // A tail that is shorter than the others would be read beyond its end.
        let Some(blocks) = common_blocks(tails) else { return false };
        // SAFETY: this function has the features, a row has 64 octets, and every tail has as many blocks.
        unsafe {
            let mut heads = [[__m512i::zero(); VECTORS]; 4];
            for (vector, rows) in rows.as_chunks::<VECTORS>().0.iter().enumerate() {
                let [a, b, c, d] = rows.each_ref().map(|row| _mm512_loadu_si512(row.as_ptr().cast()));
                for (head, block) in heads.iter_mut().zip(across(a, b, c, d)) {
                    head[vector] = block;
                }
            }
            let state = tag::<false>(keys, heads, tails, blocks);
            for (state, tags) in state.iter().zip(tags.as_chunks_mut::<VECTORS>().0) {
                state.store(tags);
            }
        }
        true
    }
    assert!(kernel.0 == Code::Vaes512 && keys.iter().all(|(key, _)| key.single().kernel().0 != Code::Portable));
    // SAFETY: this kernel exists only after `has_vaes512`.
    unsafe { wide(keys, rows, tails, tags) }
}

/// See [`super::super::tag_columns`]; the same kernels as for [`tag_rows`].
pub(crate) fn tag_columns(
    kernel: CpuKernel,
    keys: &[(&CmacKey, u16)],
    columns: &Columns,
    tails: &[&[u8]; LANES],
    tags: &mut [Block; LANES],
) -> bool {
    #[target_feature(enable = "aes,ssse3,vaes,avx512f,avx512bw,avx512vl,bmi1,bmi2")]
    fn wide(keys: &[(&CmacKey, u16)], columns: &Columns, tails: &[&[u8]; LANES], tags: &mut [Block; LANES]) -> bool {
        let Some(blocks) = common_blocks(tails) else { return false };
        // SAFETY: this function has the features, a column has 64 octets, and every tail has as many blocks.
        unsafe {
            let mut heads = [[__m512i::zero(); VECTORS]; 4];
            for (head, words) in heads.iter_mut().zip(columns.as_chunks::<4>().0) {
                let [a, b, c, d] = words.each_ref().map(|word| _mm512_loadu_si512(word.as_ptr().cast()));
                *head = blocks_within_quarters(a, b, c, d);
            }
            let [a, b, c, d] = tag::<true>(keys, heads, tails, blocks);
            for (state, tags) in across(a, b, c, d).iter().zip(tags.as_chunks_mut::<VECTORS>().0) {
                state.store(tags);
            }
        }
        true
    }
    assert!(kernel.0 == Code::Vaes512 && keys.iter().all(|(key, _)| key.single().kernel().0 != Code::Portable));
    // SAFETY: this kernel exists only after `has_vaes512`.
    unsafe { wide(keys, columns, tails, tags) }
}

/// The tags of messages whose keys' inputs and first three blocks lie in vectors.
///
/// Constant time: branches depend on the number of blocks and on the masks of `keys` alone, which are public (packets carry
/// them in clear). Keys, octets and tags only pass through vector arithmetic. The caller has the features, and all tails
/// have `blocks` blocks.
#[inline(always)]
unsafe fn tag<const TRANSPOSED: bool>(
    keys: &[(&CmacKey, u16)],
    [inputs, first, second, third]: [[__m512i; VECTORS]; 4],
    tails: &[&[u8]; LANES],
    blocks: usize,
) -> [__m512i; VECTORS] {
    // SAFETY: the caller has the features; blocks before the last of a tail are whole.
    unsafe {
        let mut secrets = inputs;
        for (key, lanes) in keys {
            let round_keys: [__m512i; 11] = splat_all(key.single().round_keys());
            let mut out = inputs;
            encrypt_vectors(&mut out, |round, _| round_keys[round]);
            // The common case: all lanes are under one key, and nothing is chosen.
            if *lanes == u16::MAX {
                secrets = out;
                continue;
            }
            for vector in 0..VECTORS {
                let bit = |lane: usize| ((lanes >> message_of::<TRANSPOSED>(vector, lane)) as u8 & 1) << lane;
                let bits = (0..VECTORS).fold(0, |bits, lane| bits | bit(lane));
                secrets[vector] = __m512i::choose(bits, out[vector], secrets[vector]);
            }
        }
        // `once` becomes the encryption of the zero block, of which the subkeys are made (RFC 4493 section 2.3).
        let (mut once, mut state) = ([__m512i::zero(); VECTORS], first);
        let own = schedule_and_encrypt(secrets, &mut once, &mut state);
        let key = |round: usize, vector: usize| own[round][vector];
        for vector in 0..VECTORS {
            state[vector] = state[vector].xor(second[vector]);
        }
        encrypt_vectors(&mut state, key);
        for vector in 0..VECTORS {
            state[vector] = state[vector].xor(third[vector]);
        }
        // All blocks of the tails but the last, four at a time while there are as many: so a cache line of each message is
        // read once, though sixteen messages push each other out of the cache.
        let mut index = 0;
        while index + 1 < blocks {
            encrypt_vectors(&mut state, key);
            if index + 4 < blocks {
                let mut four = [[__m512i::zero(); 4]; VECTORS];
                for (vector, four) in four.iter_mut().enumerate() {
                    *four = __m512i::gather_four(|lane| {
                        let tail = tails[message_of::<TRANSPOSED>(vector, lane)];
                        &*tail.get_unchecked(16 * index..16 * index + 64).as_ptr().cast()
                    });
                }
                for block in 0..4 {
                    if block > 0 {
                        encrypt_vectors(&mut state, key);
                    }
                    for (state, four) in state.iter_mut().zip(&four) {
                        *state = state.xor(four[block]);
                    }
                }
                index += 4;
            } else {
                for (vector, state) in state.iter_mut().enumerate() {
                    *state = state.xor(__m512i::gather(|lane| {
                        let tail = tails[message_of::<TRANSPOSED>(vector, lane)];
                        &*tail.get_unchecked(16 * index..16 * index + 16).as_ptr().cast()
                    }));
                }
                index += 1;
            }
        }
        if blocks > 0 {
            encrypt_vectors(&mut state, key);
        }
        // The last block, padded, and K1 where it is complete or K2 where it is not (RFC 4493 section 2.4).
        let ends = Ends::of::<TRANSPOSED>(tails, blocks);
        for (vector, state) in state.iter_mut().enumerate() {
            let single = once[vector].double();
            if blocks > 0 {
                *state = state.xor(ends.gather::<TRANSPOSED>(tails, vector));
            }
            let complete = (ends.complete >> (VECTORS * vector)) as u8 & 0xf;
            *state = state.xor(__m512i::choose(complete, single, single.double()));
        }
        encrypt_vectors(&mut state, key);
        state
    }
}

/// Four columns of words become blocks of four words, each within its quarter of the vectors: the first vector has messages
/// 0, 4, 8 and 12, the next one 1, 5, 9 and 13, and so on.
#[inline]
#[target_feature(enable = "avx512f")]
fn blocks_within_quarters(a: __m512i, b: __m512i, c: __m512i, d: __m512i) -> [__m512i; VECTORS] {
    let (ab_low, cd_low) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
    let (ab_high, cd_high) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
    [
        _mm512_unpacklo_epi64(ab_low, cd_low),
        _mm512_unpackhi_epi64(ab_low, cd_low),
        _mm512_unpacklo_epi64(ab_high, cd_high),
        _mm512_unpackhi_epi64(ab_high, cd_high),
    ]
}

/// Where the last blocks of tails begin and end, in the order of [`message_of`].
struct Ends {
    begin: usize,
    /// A bit for each octet that a last block has.
    octets: [u16; LANES],
    /// A bit for the octet behind the last one of each, where the padding begins; none where there are sixteen octets.
    padding: [u64; VECTORS],
    /// A bit for each tail whose last block is complete, or that has none.
    complete: u16,
}

impl Ends {
    /// Of tails of as many `blocks`. The caller has the features.
    #[inline(always)]
    unsafe fn of<const TRANSPOSED: bool>(tails: &[&[u8]; LANES], blocks: usize) -> Self {
        let begin = 16 * blocks.saturating_sub(1);
        let lengths: [u32; LANES] = std::array::from_fn(|at| {
            (tails[message_of::<TRANSPOSED>(at / VECTORS, at % VECTORS)].len() - begin) as u32
        });
        let mut ends = Self { begin, octets: [0; LANES], padding: [0; VECTORS], complete: u16::MAX };
        // SAFETY: the caller has the features; sixteen words have 64 octets, and as many halves have 32.
        unsafe {
            let one = _mm512_set1_epi32(1);
            let padding = _mm512_sllv_epi32(one, _mm512_loadu_si512(lengths.as_ptr().cast()));
            let octets = _mm512_cvtepi32_epi16(_mm512_sub_epi32(padding, one));
            _mm256_storeu_si256(ends.octets.as_mut_ptr().cast(), octets);
            _mm256_storeu_si256(ends.padding.as_mut_ptr().cast(), _mm512_cvtepi32_epi16(padding));
            if blocks > 0 {
                ends.complete = _mm512_testn_epi32_mask(padding, _mm512_set1_epi32(0xffff));
            }
        }
        ends
    }

    /// The last blocks of the tails of a vector, padded (RFC 4493 section 2.4). The caller has the features; `tails` are
    /// those that these ends are of, in the same order, and have a block.
    #[inline(always)]
    unsafe fn gather<const TRANSPOSED: bool>(&self, tails: &[&[u8]; LANES], vector: usize) -> __m512i {
        // SAFETY: the caller has the features; only as many octets are read as there are.
        unsafe {
            let one = |lane: usize| {
                let tail = tails[message_of::<TRANSPOSED>(vector, lane)];
                _mm_maskz_loadu_epi8(self.octets[VECTORS * vector + lane], tail.as_ptr().add(self.begin).cast())
            };
            let blocks = _mm512_castsi128_si512(one(0));
            let blocks = _mm512_inserti32x4::<1>(blocks, one(1));
            let blocks = _mm512_inserti32x4::<2>(blocks, one(2));
            let blocks = _mm512_inserti32x4::<3>(blocks, one(3));
            _mm512_mask_blend_epi8(self.padding[vector], blocks, _mm512_set1_epi8(-0x80))
        }
    }
}
