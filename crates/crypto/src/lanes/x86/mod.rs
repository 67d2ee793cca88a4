//! The kernels of x86-64, generic over vectors of one block (AES-NI) or of four (VAES with AVX-512).
//!
//! An operation of a vector is sound only where the processor has its features. So the operations are `unsafe` and
//! `#[inline(always)]`; `dispatch!` inlines them into functions that are compiled for those features, and calls these only
//! with a kernel that was made after the processor had been asked for them.

mod cmac;
mod columns;
mod derived_cmac;

use std::arch::x86_64::{
    __m128i, __m512i, _mm_aesenc_si128, _mm_aesenclast_si128, _mm_and_si128, _mm_loadu_si128, _mm_maskz_loadu_epi8,
    _mm_set1_epi32, _mm_setr_epi8, _mm_setzero_si128, _mm_shuffle_epi8, _mm_slli_epi64, _mm_slli_si128, _mm_srli_epi64,
    _mm_srli_si128, _mm_storeu_si128, _mm_sub_epi64, _mm_xor_si128, _mm512_aesenc_epi128, _mm512_aesenclast_epi128,
    _mm512_and_si512, _mm512_broadcast_i32x4, _mm512_bslli_epi128, _mm512_bsrli_epi128, _mm512_castsi128_si512,
    _mm512_inserti32x4, _mm512_loadu_si512, _mm512_mask_blend_epi8, _mm512_mask_blend_epi64, _mm512_set1_epi8,
    _mm512_set1_epi32, _mm512_set1_epi64, _mm512_setzero_si512, _mm512_shuffle_epi8, _mm512_shuffle_i32x4,
    _mm512_slli_epi64, _mm512_srli_epi64, _mm512_storeu_si512, _mm512_sub_epi64, _mm512_ternarylogic_epi32,
    _mm512_xor_si512,
};

use super::aes128::RoundKeys;
use super::{Block, Code, CpuKernel, Parts};
use cmac::cmac_in;
pub(super) use columns::{columns, rows};
pub(super) use derived_cmac::{tag_columns, tag_rows};

pub(super) fn has_aes() -> bool {
    is_x86_feature_detected!("aes") && is_x86_feature_detected!("ssse3")
}

pub(super) fn has_vaes512() -> bool {
    has_aes()
        && is_x86_feature_detected!("vaes")
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
}

/// Calls `$generic` with the vectors of `$kernel`, inside a function that is compiled for their processor features.
macro_rules! dispatch {
    ($kernel:expr, $generic:ident, ($($argument:ident: $kind:ty),*) $(-> $result:ty)?) => {{
        #[target_feature(enable = "aes,ssse3")]
        fn narrow($($argument: $kind),*) $(-> $result)? {
            // SAFETY: this function has the features that `__m128i`'s operations need.
            unsafe { $generic::<__m128i>($($argument),*) }
        }
        #[target_feature(enable = "aes,ssse3,vaes,avx512f,avx512bw,avx512vl")]
        fn wide($($argument: $kind),*) $(-> $result)? {
            // SAFETY: this function has the features that `__m512i`'s operations need.
            unsafe { $generic::<__m512i>($($argument),*) }
        }
        match $kernel.0 {
            // SAFETY: a `CpuKernel` of this code exists only after `has_vaes512`.
            Code::Vaes512 => unsafe { wide($($argument),*) },
            // SAFETY: a `CpuKernel` of this code exists only after `has_aes`; the portable one never comes here.
            Code::AesNi | Code::Portable => unsafe { narrow($($argument),*) },
        }
    }};
}

/// The round keys of `key`.
pub(super) fn expand(kernel: CpuKernel, key: &Block) -> RoundKeys {
    debug_assert!(kernel != CpuKernel::PORTABLE);
    #[target_feature(enable = "aes,ssse3")]
    fn expanded(key: &Block) -> RoundKeys {
        // SAFETY: this function has the features that `__m128i`'s operations need.
        unsafe { schedule([__m128i::splat(key)]).map(|[key]| key.first()) }
    }
    // SAFETY: both vector kernels exist only after `has_aes`.
    unsafe { expanded(key) }
}

/// Encrypts `blocks` in place under one key.
pub(super) fn encrypt(kernel: CpuKernel, keys: &RoundKeys, blocks: &mut [Block]) {
    dispatch!(kernel, encrypt_in, (keys: &RoundKeys, blocks: &mut [Block]));
}

/// See [`super::encrypt_each`].
pub(super) fn encrypt_each(kernel: CpuKernel, keys: &[Block], blocks: &mut [Block]) {
    dispatch!(kernel, encrypt_each_in, (keys: &[Block], blocks: &mut [Block]));
}

/// See [`super::cbc_pair_each`].
pub(super) fn cbc_pair_each(kernel: CpuKernel, keys: &[Block], first: &mut [Block], second: &[Block]) {
    dispatch!(kernel, cbc_pair_each_in, (keys: &[Block], first: &mut [Block], second: &[Block]));
}

/// The keys of a burst of messages.
#[derive(Clone, Copy)]
pub(super) enum Keys<'a> {
    /// One key for all messages: its round keys, K1 and K2.
    One(&'a RoundKeys, &'a Block, &'a Block),
    /// A key for each.
    Each(&'a [Block]),
}

/// The CMAC of at most [`BURST`] messages; all slices have one length.
pub(super) fn cmac(kernel: CpuKernel, keys: Keys<'_>, messages: &[Parts<'_>], tags: &mut [Block]) {
    dispatch!(kernel, cmac_in, (keys: Keys<'_>, messages: &[Parts<'_>], tags: &mut [Block]));
}

/// One or more blocks in a register. Every operation requires the processor features of its vector.
trait Vector: Copy {
    /// Blocks in one vector.
    const BLOCKS: usize;
    unsafe fn zero() -> Self;
    /// The block in every position.
    unsafe fn splat(block: &Block) -> Self;
    /// `BLOCKS` consecutive blocks.
    unsafe fn load(blocks: &[Block]) -> Self;
    unsafe fn store(self, blocks: &mut [Block]);
    /// Blocks from anywhere in memory.
    unsafe fn gather<'a>(block: impl FnMut(usize) -> &'a Block) -> Self;
    unsafe fn first(self) -> Block;
    unsafe fn xor(self, other: Self) -> Self;
    unsafe fn round(self, key: Self) -> Self;
    unsafe fn last_round(self, key: Self) -> Self;
    /// The next round key after this one: `SubWord(RotWord(w3))` by one AES round on four equal columns, for which
    /// ShiftRows does nothing.
    unsafe fn next_key(self, rcon: u8) -> Self;
    /// Twice each block in GF(2^128) (RFC 4493 section 2.3).
    unsafe fn double(self) -> Self;
    /// Four consecutive blocks of each message; the first vector has the first block of each, and so on.
    unsafe fn gather_four<'a>(blocks: impl FnMut(usize) -> &'a [Block; 4]) -> [Self; 4];
    /// At most 16 octets for each block; fewer are padded by a one bit and zeros (RFC 4493 section 2.4).
    unsafe fn gather_padded<'a>(octets: impl FnMut(usize) -> &'a [u8]) -> Self;
    /// Each block from `one` where its bit is set, and from `other` where it is not.
    unsafe fn choose(bits: u8, one: Self, other: Self) -> Self;
}

impl Vector for __m128i {
    const BLOCKS: usize = 1;

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller has the features.
        unsafe { _mm_setzero_si128() }
    }

    #[inline(always)]
    unsafe fn splat(block: &Block) -> Self {
        // SAFETY: the block has 16 octets.
        unsafe { _mm_loadu_si128(block.as_ptr().cast()) }
    }

    #[inline(always)]
    unsafe fn load(blocks: &[Block]) -> Self {
        // SAFETY: indexing has checked that there is a block.
        unsafe { Self::splat(&blocks[0]) }
    }

    #[inline(always)]
    unsafe fn store(self, blocks: &mut [Block]) {
        // SAFETY: indexing has checked that there is a block.
        unsafe { _mm_storeu_si128(blocks[0].as_mut_ptr().cast(), self) }
    }

    #[inline(always)]
    unsafe fn gather<'a>(mut block: impl FnMut(usize) -> &'a Block) -> Self {
        // SAFETY: the block has 16 octets.
        unsafe { Self::splat(block(0)) }
    }

    #[inline(always)]
    unsafe fn gather_four<'a>(mut blocks: impl FnMut(usize) -> &'a [Block; 4]) -> [Self; 4] {
        let [a, b, c, d] = blocks(0);
        // SAFETY: each block has 16 octets.
        unsafe { [Self::splat(a), Self::splat(b), Self::splat(c), Self::splat(d)] }
    }

    #[inline(always)]
    unsafe fn first(self) -> Block {
        let mut block = [[0; 16]];
        // SAFETY: there is one block.
        unsafe { self.store(&mut block) };
        block[0]
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: the caller has the features.
        unsafe { _mm_xor_si128(self, other) }
    }

    #[inline(always)]
    unsafe fn round(self, key: Self) -> Self {
        // SAFETY: the caller has the features.
        unsafe { _mm_aesenc_si128(self, key) }
    }

    #[inline(always)]
    unsafe fn last_round(self, key: Self) -> Self {
        // SAFETY: the caller has the features.
        unsafe { _mm_aesenclast_si128(self, key) }
    }

    #[inline(always)]
    unsafe fn next_key(self, rcon: u8) -> Self {
        // SAFETY: the caller has the features.
        unsafe {
            let rotate = _mm_setr_epi8(13, 14, 15, 12, 13, 14, 15, 12, 13, 14, 15, 12, 13, 14, 15, 12);
            let word = _mm_aesenclast_si128(_mm_shuffle_epi8(self, rotate), _mm_set1_epi32(i32::from(rcon)));
            let two = _mm_xor_si128(self, _mm_slli_si128::<4>(self));
            _mm_xor_si128(_mm_xor_si128(two, _mm_slli_si128::<8>(two)), word)
        }
    }

    #[inline(always)]
    unsafe fn double(self) -> Self {
        // SAFETY: the caller has the features.
        unsafe {
            let reverse = _mm_setr_epi8(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
            let value = _mm_shuffle_epi8(self, reverse);
            let carries = _mm_srli_epi64::<63>(value);
            // What leaves at the top comes back as 0x87 (x^7 + x^2 + x + 1).
            let reduction = _mm_sub_epi64(_mm_setzero_si128(), _mm_srli_si128::<8>(carries));
            let reduction = _mm_and_si128(reduction, _mm_setr_epi8(-0x79, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
            let shifted = _mm_xor_si128(_mm_slli_epi64::<1>(value), _mm_slli_si128::<8>(carries));
            _mm_shuffle_epi8(_mm_xor_si128(shifted, reduction), reverse)
        }
    }

    #[inline(always)]
    unsafe fn gather_padded<'a>(mut octets: impl FnMut(usize) -> &'a [u8]) -> Self {
        let octets = octets(0);
        let block = octets.first_chunk().copied().unwrap_or_else(|| super::cmac::padded(octets));
        // SAFETY: the block has 16 octets.
        unsafe { Self::splat(&block) }
    }

    #[inline(always)]
    unsafe fn choose(bits: u8, one: Self, other: Self) -> Self {
        if bits & 1 != 0 { one } else { other }
    }
}

impl Vector for __m512i {
    const BLOCKS: usize = 4;

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller has the features.
        unsafe { _mm512_setzero_si512() }
    }

    #[inline(always)]
    unsafe fn splat(block: &Block) -> Self {
        // SAFETY: the caller has the features, and the block has 16 octets.
        unsafe { _mm512_broadcast_i32x4(_mm_loadu_si128(block.as_ptr().cast())) }
    }

    #[inline(always)]
    unsafe fn load(blocks: &[Block]) -> Self {
        // SAFETY: slicing has checked that there are four blocks.
        unsafe { _mm512_loadu_si512(blocks[..4].as_ptr().cast()) }
    }

    #[inline(always)]
    unsafe fn store(self, blocks: &mut [Block]) {
        // SAFETY: slicing has checked that there are four blocks.
        unsafe { _mm512_storeu_si512(blocks[..4].as_mut_ptr().cast(), self) }
    }

    #[inline(always)]
    unsafe fn gather<'a>(mut block: impl FnMut(usize) -> &'a Block) -> Self {
        // SAFETY: the caller has the features, and each block has 16 octets.
        unsafe {
            let mut one = |index| _mm_loadu_si128(block(index).as_ptr().cast());
            let vector = _mm512_castsi128_si512(one(0));
            let vector = _mm512_inserti32x4::<1>(vector, one(1));
            let vector = _mm512_inserti32x4::<2>(vector, one(2));
            _mm512_inserti32x4::<3>(vector, one(3))
        }
    }

    #[inline(always)]
    unsafe fn gather_four<'a>(mut blocks: impl FnMut(usize) -> &'a [Block; 4]) -> [Self; 4] {
        // SAFETY: the caller has the features, and four blocks have 64 octets.
        unsafe {
            let mut one = |index| _mm512_loadu_si512(blocks(index).as_ptr().cast());
            across(one(0), one(1), one(2), one(3))
        }
    }

    #[inline(always)]
    unsafe fn first(self) -> Block {
        let mut blocks = [[0; 16]; 4];
        // SAFETY: there are four blocks.
        unsafe { self.store(&mut blocks) };
        blocks[0]
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: the caller has the features.
        unsafe { _mm512_xor_si512(self, other) }
    }

    #[inline(always)]
    unsafe fn round(self, key: Self) -> Self {
        // SAFETY: the caller has the features.
        unsafe { _mm512_aesenc_epi128(self, key) }
    }

    #[inline(always)]
    unsafe fn last_round(self, key: Self) -> Self {
        // SAFETY: the caller has the features.
        unsafe { _mm512_aesenclast_epi128(self, key) }
    }

    #[inline(always)]
    unsafe fn next_key(self, rcon: u8) -> Self {
        // SAFETY: the caller has the features.
        unsafe {
            let word = _mm512_shuffle_epi8(self, _mm512_set1_epi32(0x0c0f_0e0d));
            let word = _mm512_aesenclast_epi128(word, _mm512_set1_epi32(i32::from(rcon)));
            let two = _mm512_xor_si512(self, _mm512_bslli_epi128::<4>(self));
            // The exclusive or of three.
            _mm512_ternarylogic_epi32::<0x96>(two, _mm512_bslli_epi128::<8>(two), word)
        }
    }

    #[inline(always)]
    unsafe fn double(self) -> Self {
        // SAFETY: the caller has the features.
        unsafe {
            let reverse = _mm_setr_epi8(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
            let reverse = _mm512_broadcast_i32x4(reverse);
            let value = _mm512_shuffle_epi8(self, reverse);
            let carries = _mm512_srli_epi64::<63>(value);
            // What leaves at the top comes back as 0x87 (x^7 + x^2 + x + 1).
            let reduction = _mm512_sub_epi64(_mm512_setzero_si512(), _mm512_bsrli_epi128::<8>(carries));
            let reduction = _mm512_and_si512(reduction, _mm512_set1_epi64(0x87));
            let shifted = _mm512_xor_si512(_mm512_slli_epi64::<1>(value), _mm512_bslli_epi128::<8>(carries));
            _mm512_shuffle_epi8(_mm512_xor_si512(shifted, reduction), reverse)
        }
    }

    #[inline(always)]
    unsafe fn gather_padded<'a>(mut octets: impl FnMut(usize) -> &'a [u8]) -> Self {
        let mut ends = 0u64;
        // SAFETY: the caller has the features; only as many octets are read as there are.
        unsafe {
            let mut one = |lane: usize| {
                let octets = octets(lane);
                // The bit behind the last octet, which leaves the sixteen bits of a block that is complete.
                let end = 1u32 << octets.len().min(16);
                ends |= u64::from(end as u16) << (16 * lane);
                _mm_maskz_loadu_epi8((end - 1) as u16, octets.as_ptr().cast())
            };
            let vector = _mm512_castsi128_si512(one(0));
            let vector = _mm512_inserti32x4::<1>(vector, one(1));
            let vector = _mm512_inserti32x4::<2>(vector, one(2));
            let vector = _mm512_inserti32x4::<3>(vector, one(3));
            _mm512_mask_blend_epi8(ends, vector, _mm512_set1_epi8(-0x80))
        }
    }

    #[inline(always)]
    unsafe fn choose(bits: u8, one: Self, other: Self) -> Self {
        /// Each of four bits twice: a block has two words of 64 bits.
        const TWICE: [u8; 16] = [0, 3, 12, 15, 48, 51, 60, 63, 192, 195, 204, 207, 240, 243, 252, 255];
        // SAFETY: the caller has the features.
        unsafe { _mm512_mask_blend_epi64(TWICE[usize::from(bits % 16)], other, one) }
    }
}

/// Transposes four rows of four blocks: the first blocks of all rows, the second ones, and so on.
#[inline]
#[target_feature(enable = "avx512f")]
fn across(a: __m512i, b: __m512i, c: __m512i, d: __m512i) -> [__m512i; 4] {
    // Halves of two rows at a time, and then every other block of two such pairs.
    let (ab_low, cd_low) = (_mm512_shuffle_i32x4::<0x44>(a, b), _mm512_shuffle_i32x4::<0x44>(c, d));
    let (ab_high, cd_high) = (_mm512_shuffle_i32x4::<0xee>(a, b), _mm512_shuffle_i32x4::<0xee>(c, d));
    [
        _mm512_shuffle_i32x4::<0x88>(ab_low, cd_low),
        _mm512_shuffle_i32x4::<0xdd>(ab_low, cd_low),
        _mm512_shuffle_i32x4::<0x88>(ab_high, cd_high),
        _mm512_shuffle_i32x4::<0xdd>(ab_high, cd_high),
    ]
}

/// The round keys of the key in each block of `keys` (FIPS 197 section 5.2), indexed by round and then by vector.
#[inline(always)]
unsafe fn schedule<V: Vector, const R: usize>(keys: [V; R]) -> [[V; R]; 11] {
    let mut rounds = [keys; 11];
    // One key after the other, each of which stays in a register; the processor overlaps their chains. The rounds are
    // written out, so that their constants are immediate operands.
    macro_rules! expand {
        ($lane:ident, $($round:literal $rcon:literal),*) => {{
            let key = keys[$lane];
            // SAFETY: the caller has the features.
            $(let key = unsafe { key.next_key($rcon) }; rounds[$round][$lane] = key;)*
            let _ = key;
        }};
    }
    for lane in 0..R {
        expand!(lane, 1 0x01, 2 0x02, 3 0x04, 4 0x08, 5 0x10, 6 0x20, 7 0x40, 8 0x80, 9 0x1b, 10 0x36);
    }
    rounds
}

/// [`schedule`], and the encryption of two blocks under each key, each round as soon as its key is there: the processor
/// expands keys and encrypts in different execution units, which so work at the same time.
#[inline(always)]
unsafe fn schedule_and_encrypt<V: Vector, const R: usize>(
    keys: [V; R],
    first: &mut [V; R],
    second: &mut [V; R],
) -> [[V; R]; 11] {
    let mut rounds = [keys; 11];
    let mut key = keys;
    // SAFETY: the caller has the features.
    unsafe {
        for lane in 0..R {
            (first[lane], second[lane]) = (first[lane].xor(key[lane]), second[lane].xor(key[lane]));
        }
        macro_rules! expand {
            ($($round:literal $rcon:literal $encrypt:ident),*) => {{
                $(for lane in 0..R {
                    key[lane] = key[lane].next_key($rcon);
                    rounds[$round][lane] = key[lane];
                    (first[lane], second[lane]) = (first[lane].$encrypt(key[lane]), second[lane].$encrypt(key[lane]));
                })*
            }};
        }
        expand!(
            1 0x01 round, 2 0x02 round, 3 0x04 round, 4 0x08 round, 5 0x10 round, 6 0x20 round, 7 0x40 round,
            8 0x80 round, 9 0x1b round, 10 0x36 last_round
        );
    }
    rounds
}

/// Every round key in every block of a vector.
#[inline(always)]
unsafe fn splat_all<V: Vector>(round_keys: &RoundKeys) -> [V; 11] {
    // SAFETY: the caller has the features.
    unsafe {
        let mut out = [V::zero(); 11];
        for (vector, key) in out.iter_mut().zip(round_keys) {
            *vector = V::splat(key);
        }
        out
    }
}

/// Encrypts `R` vectors together: while a round of one is under way, rounds of the others begin.
#[inline(always)]
unsafe fn encrypt_vectors<V: Vector, const R: usize>(state: &mut [V; R], key: impl Fn(usize, usize) -> V) {
    // SAFETY: the caller has the features.
    unsafe {
        for (lane, block) in state.iter_mut().enumerate() {
            *block = block.xor(key(0, lane));
        }
        for round in 1..10 {
            for (lane, block) in state.iter_mut().enumerate() {
                *block = block.round(key(round, lane));
            }
        }
        for (lane, block) in state.iter_mut().enumerate() {
            *block = block.last_round(key(10, lane));
        }
    }
}

#[inline(always)]
unsafe fn encrypt_in<V: Vector>(keys: &RoundKeys, blocks: &mut [Block]) {
    // SAFETY: the caller has the features; every load and store is of as many blocks as the vector has.
    unsafe {
        let keys: [V; 11] = splat_all(keys);
        let mut groups = blocks.chunks_exact_mut(4 * V::BLOCKS);
        for group in &mut groups {
            let mut state = [V::zero(); 4];
            for (vector, blocks) in state.iter_mut().zip(group.chunks_exact(V::BLOCKS)) {
                *vector = V::load(blocks);
            }
            encrypt_vectors(&mut state, |round, _| keys[round]);
            for (vector, blocks) in state.iter().zip(group.chunks_exact_mut(V::BLOCKS)) {
                vector.store(blocks);
            }
        }
        for group in groups.into_remainder().chunks_mut(V::BLOCKS) {
            let mut copy = [[0; 16]; 4];
            copy[..group.len()].copy_from_slice(group);
            let mut state = [V::load(&copy)];
            encrypt_vectors(&mut state, |round, _| keys[round]);
            state[0].store(&mut copy);
            group.copy_from_slice(&copy[..group.len()]);
        }
    }
}

#[inline(always)]
unsafe fn encrypt_each_in<V: Vector>(keys: &[Block], blocks: &mut [Block]) {
    for (keys, blocks) in keys.chunks(4 * V::BLOCKS).zip(blocks.chunks_mut(4 * V::BLOCKS)) {
        let count = keys.len().min(blocks.len());
        let (mut key_copy, mut copy) = ([[0; 16]; 16], [[0; 16]; 16]);
        key_copy[..count].copy_from_slice(&keys[..count]);
        copy[..count].copy_from_slice(&blocks[..count]);
        // SAFETY: the caller has the features; both copies hold four vectors.
        unsafe {
            let at = |blocks: &[Block], lane: usize| V::load(&blocks[lane * V::BLOCKS..]);
            // Loops, since a closure that a function of `core` calls does not have the features.
            let (mut keys, mut state) = ([V::zero(); 4], [V::zero(); 4]);
            for (lane, (keys, state)) in keys.iter_mut().zip(&mut state).enumerate() {
                *keys = at(&key_copy, lane);
                *state = at(&copy, lane);
            }
            let keys = schedule(keys);
            encrypt_vectors(&mut state, |round, lane| keys[round][lane]);
            for (lane, vector) in state.iter().enumerate() {
                vector.store(&mut copy[lane * V::BLOCKS..]);
            }
        }
        blocks[..count].copy_from_slice(&copy[..count]);
    }
}

#[inline(always)]
unsafe fn cbc_pair_each_in<V: Vector>(keys: &[Block], first: &mut [Block], second: &[Block]) {
    let lanes = 4 * V::BLOCKS;
    let groups = keys.chunks(lanes).zip(first.chunks_mut(lanes)).zip(second.chunks(lanes));
    for ((keys, first), second) in groups {
        let count = keys.len().min(first.len()).min(second.len());
        // SAFETY: the caller has the features; every slice given has as many blocks as the lanes.
        unsafe {
            if count == lanes {
                cbc_pair_group::<V>(keys, first, second);
                continue;
            }
            let mut copies = [[[0; 16]; 16]; 3];
            copies[0][..count].copy_from_slice(&keys[..count]);
            copies[1][..count].copy_from_slice(&first[..count]);
            copies[2][..count].copy_from_slice(&second[..count]);
            let [keys, copy, second] = &mut copies;
            cbc_pair_group::<V>(keys, copy, second);
            first[..count].copy_from_slice(&copy[..count]);
        }
    }
}

/// Four vectors of keys and of messages.
#[inline(always)]
unsafe fn cbc_pair_group<V: Vector>(keys: &[Block], first: &mut [Block], second: &[Block]) {
    // SAFETY: the caller has the features, and gives as many blocks as four vectors hold.
    unsafe {
        let (mut own, mut state) = ([V::zero(); 4], [V::zero(); 4]);
        for (lane, (own, state)) in own.iter_mut().zip(&mut state).enumerate() {
            *own = V::load(&keys[lane * V::BLOCKS..]);
            *state = V::load(&first[lane * V::BLOCKS..]);
        }
        let own = schedule(own);
        encrypt_vectors(&mut state, |round, lane| own[round][lane]);
        for (lane, state) in state.iter_mut().enumerate() {
            *state = state.xor(V::load(&second[lane * V::BLOCKS..]));
        }
        encrypt_vectors(&mut state, |round, lane| own[round][lane]);
        for (lane, vector) in state.iter().enumerate() {
            vector.store(&mut first[lane * V::BLOCKS..]);
        }
    }
}
