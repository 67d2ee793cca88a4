//! CMAC under derived keys of sixteen messages of as many blocks each, everything in registers from the key's input to the
//! tag.

use std::arch::x86_64::{
    __m512i, _mm_maskz_loadu_epi8, _mm256_storeu_si256, _mm512_castsi128_si512, _mm512_cvtepi32_epi16,
    _mm512_inserti32x4, _mm512_loadu_si512, _mm512_mask_blend_epi8, _mm512_set1_epi8, _mm512_set1_epi32,
    _mm512_sllv_epi32, _mm512_sub_epi32, _mm512_testn_epi32_mask, _mm512_unpackhi_epi32, _mm512_unpackhi_epi64,
    _mm512_unpacklo_epi32, _mm512_unpacklo_epi64,
};

use super::super::rows::common_blocks;
use super::super::{Block, CmacKey, Code, Columns, CpuKernel, LANES, Row};
use super::{Vector, across, encrypt_vectors, schedule_and_encrypt, splat_all};

/// Vectors side by side.
const VECTORS: usize = 4;

/// Which message is in block `lane` of vector `side`: the next one after the block before it, or after the same block of the
/// vector before where vectors are `TURNED`.
#[inline(always)]
fn place<const TURNED: bool>(side: usize, lane: usize) -> usize {
    if TURNED { VECTORS * lane + side } else { VECTORS * side + lane }
}

/// See [`super::super::tag_rows`]. Of the wide kernel, as all `keys` are of a vector kernel.
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
            for (side, rows) in rows.as_chunks::<VECTORS>().0.iter().enumerate() {
                let [a, b, c, d] = rows.each_ref().map(|row| _mm512_loadu_si512(row.as_ptr().cast()));
                for (head, block) in heads.iter_mut().zip(across(a, b, c, d)) {
                    head[side] = block;
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

/// See [`super::super::tag_columns`]; kernels as of [`tag_rows`].
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
                *head = within(a, b, c, d);
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

/// The tags of messages whose first blocks, keys or their inputs among them, lie in vectors. The caller has the features, and
/// every tail as many blocks.
#[inline(always)]
unsafe fn tag<const TURNED: bool>(
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
            if *lanes == u16::MAX {
                secrets = out;
                continue;
            }
            for side in 0..VECTORS {
                let bit = |lane: usize| ((lanes >> place::<TURNED>(side, lane)) as u8 & 1) << lane;
                let bits = (0..VECTORS).fold(0, |bits, lane| bits | bit(lane));
                secrets[side] = __m512i::choose(bits, out[side], secrets[side]);
            }
        }
        let (mut once, mut state) = ([__m512i::zero(); VECTORS], first);
        let own = schedule_and_encrypt(secrets, &mut once, &mut state);
        let key = |round: usize, side: usize| own[round][side];
        for side in 0..VECTORS {
            state[side] = state[side].xor(second[side]);
        }
        encrypt_vectors(&mut state, key);
        for side in 0..VECTORS {
            state[side] = state[side].xor(third[side]);
        }
        let mut index = 0;
        while index + 1 < blocks {
            encrypt_vectors(&mut state, key);
            if index + 4 < blocks {
                let mut four = [[__m512i::zero(); 4]; VECTORS];
                for (side, four) in four.iter_mut().enumerate() {
                    *four = __m512i::gather_four(|lane| {
                        let tail = tails[place::<TURNED>(side, lane)];
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
                for (side, state) in state.iter_mut().enumerate() {
                    *state = state.xor(__m512i::gather(|lane| {
                        let tail = tails[place::<TURNED>(side, lane)];
                        &*tail.get_unchecked(16 * index..16 * index + 16).as_ptr().cast()
                    }));
                }
                index += 1;
            }
        }
        if blocks > 0 {
            encrypt_vectors(&mut state, key);
        }
        let ends = Ends::of::<TURNED>(tails, blocks);
        for (side, state) in state.iter_mut().enumerate() {
            let single = once[side].double();
            if blocks > 0 {
                *state = state.xor(ends.gather::<TURNED>(tails, side));
            }
            let complete = (ends.complete >> (VECTORS * side)) as u8 & 0xf;
            *state = state.xor(__m512i::choose(complete, single, single.double()));
        }
        encrypt_vectors(&mut state, key);
        state
    }
}

/// Four columns of words become blocks of four words within their quarters of the vectors: the first vector has blocks 0, 4,
/// 8 and 12, the next one 1, 5, 9 and 13, and so on.
#[inline]
#[target_feature(enable = "avx512f")]
fn within(a: __m512i, b: __m512i, c: __m512i, d: __m512i) -> [__m512i; VECTORS] {
    let (ab, cd) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
    let (ab_behind, cd_behind) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
    [
        _mm512_unpacklo_epi64(ab, cd),
        _mm512_unpackhi_epi64(ab, cd),
        _mm512_unpacklo_epi64(ab_behind, cd_behind),
        _mm512_unpackhi_epi64(ab_behind, cd_behind),
    ]
}

/// Where the last blocks of tails begin and end; all in the order of [`place`].
struct Ends {
    begin: usize,
    /// A bit for each octet that a last block has.
    octets: [u16; LANES],
    /// A bit for the place behind the last octet of each; none where there are sixteen.
    behind: [u64; VECTORS],
    /// A bit for each tail whose last block is complete, or that has none.
    complete: u16,
}

impl Ends {
    /// Of tails of as many `blocks`. The caller has the features.
    #[inline(always)]
    unsafe fn of<const TURNED: bool>(tails: &[&[u8]; LANES], blocks: usize) -> Self {
        let begin = 16 * blocks.saturating_sub(1);
        let lengths: [u32; LANES] =
            std::array::from_fn(|at| (tails[place::<TURNED>(at / VECTORS, at % VECTORS)].len() - begin) as u32);
        let mut ends = Self { begin, octets: [0; LANES], behind: [0; VECTORS], complete: u16::MAX };
        // SAFETY: the caller has the features; sixteen words have 64 octets, and as many halves have 32.
        unsafe {
            let one = _mm512_set1_epi32(1);
            let behind = _mm512_sllv_epi32(one, _mm512_loadu_si512(lengths.as_ptr().cast()));
            let octets = _mm512_cvtepi32_epi16(_mm512_sub_epi32(behind, one));
            _mm256_storeu_si256(ends.octets.as_mut_ptr().cast(), octets);
            _mm256_storeu_si256(ends.behind.as_mut_ptr().cast(), _mm512_cvtepi32_epi16(behind));
            if blocks > 0 {
                ends.complete = _mm512_testn_epi32_mask(behind, _mm512_set1_epi32(0xffff));
            }
        }
        ends
    }

    /// The last blocks of the tails of a vector, padded (RFC 4493 section 2.4). The caller has the features; `tails` are
    /// those that these ends are of, in the same order, and have a block.
    #[inline(always)]
    unsafe fn gather<const TURNED: bool>(&self, tails: &[&[u8]; LANES], side: usize) -> __m512i {
        // SAFETY: the caller has the features; only as many octets are read as there are.
        unsafe {
            let one = |lane: usize| {
                let tail = tails[place::<TURNED>(side, lane)];
                _mm_maskz_loadu_epi8(self.octets[VECTORS * side + lane], tail.as_ptr().add(self.begin).cast())
            };
            let vector = _mm512_castsi128_si512(one(0));
            let vector = _mm512_inserti32x4::<1>(vector, one(1));
            let vector = _mm512_inserti32x4::<2>(vector, one(2));
            let vector = _mm512_inserti32x4::<3>(vector, one(3));
            _mm512_mask_blend_epi8(self.behind[side], vector, _mm512_set1_epi8(-0x80))
        }
    }
}
