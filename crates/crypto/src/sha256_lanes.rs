//! SHA-256's compression function over sixteen independent blocks at once, for hash trees and chains.
//!
//! With AVX-512 the sixteen lanes are the sixteen words of a register. Elsewhere the `sha2` crate computes one lane after
//! another, with the machine's SHA instructions. A test shows that both give the same words.

use sha2::block_api::compress256;

pub use crate::lanes::LANES;

/// One 32-bit word of each lane.
pub type Word = [u32; LANES];

/// SHA-256's eight words of state, each of all lanes.
pub type State = [Word; 8];

/// The sixteen big-endian words of a 64-byte block, each of all lanes.
pub type Block = [Word; 16];

/// SHA-256's initial state (FIPS 180-4 section 5.3.3).
pub const INITIAL: [u32; 8] =
    [0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a, 0x510e_527f, 0x9b05_688c, 0x1f83_d9ab, 0x5be0_cd19];

/// One compression in one lane: `state` after `block`.
pub fn compress(state: &mut [u32; 8], block: &[u8; 64]) {
    compress256(state, std::slice::from_ref(block));
}

/// Sixteen compressions: each lane of `state` after that lane of `block`.
pub fn compress_lanes(state: &mut State, block: &Block) {
    #[cfg(target_arch = "x86_64")]
    if wide::available() {
        return wide::compress(state, block);
    }
    compress_each(state, block);
}

/// Reads the words of sixteen blocks of octets, one block for each lane.
pub fn load(blocks: &[&[u8; 64]; LANES], words: &mut Block) {
    #[cfg(target_arch = "x86_64")]
    if wide::available() {
        return wide::load_blocks(blocks, words);
    }
    load_each(blocks, words);
}

fn load_each(blocks: &[&[u8; 64]; LANES], words: &mut Block) {
    for (lane, block) in blocks.iter().enumerate() {
        for (word, octets) in words.iter_mut().zip(block.as_chunks::<4>().0) {
            word[lane] = u32::from_be_bytes(*octets);
        }
    }
}

/// Whether this machine computes all lanes at once. If not, sixteen lanes take sixteen times as long as one.
#[must_use]
pub fn lanes_run_at_once() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        wide::available()
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        false
    }
}

fn compress_each(state: &mut State, block: &Block) {
    for lane in 0..LANES {
        let mut words = state.map(|word| word[lane]);
        let mut octets = [0; 64];
        for (four, word) in octets.chunks_exact_mut(4).zip(block) {
            four.copy_from_slice(&word[lane].to_be_bytes());
        }
        compress(&mut words, &octets);
        for (word, new) in state.iter_mut().zip(words) {
            word[lane] = new;
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code, reason = "loads, stores and the call of a function for a processor feature that was just checked")]
mod wide {
    use std::arch::x86_64::{
        __m512i, _mm512_add_epi32, _mm512_loadu_si512, _mm512_ror_epi32, _mm512_set_epi64, _mm512_set1_epi32,
        _mm512_shuffle_epi8, _mm512_shuffle_i32x4, _mm512_srli_epi32, _mm512_storeu_si512, _mm512_ternarylogic_epi32,
        _mm512_unpackhi_epi32, _mm512_unpackhi_epi64, _mm512_unpacklo_epi32, _mm512_unpacklo_epi64,
    };

    use super::{Block, LANES, State, Word};

    pub(super) fn available() -> bool {
        is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw")
    }

    pub(super) fn compress(state: &mut State, block: &Block) {
        assert!(available());
        // SAFETY: the processor has AVX-512F, as was just asserted.
        unsafe { compress_avx512(state, block) }
    }

    pub(super) fn load_blocks(blocks: &[&[u8; 64]; LANES], words: &mut Block) {
        assert!(available());
        // SAFETY: the processor has AVX-512F and AVX-512BW, as was just asserted.
        unsafe { load_avx512(blocks, words) }
    }

    /// Transposes sixteen rows of sixteen words: within quarters of registers first, and then the quarters.
    #[target_feature(enable = "avx512f,avx512bw")]
    fn load_avx512(blocks: &[&[u8; 64]; LANES], words: &mut Block) {
        let reversed = {
            let (low, high) = (0x0405_0607_0001_0203, 0x0c0d_0e0f_0809_0a0b);
            _mm512_set_epi64(high, low, high, low, high, low, high, low)
        };
        let mut rows = [reversed; LANES];
        for (row, block) in rows.iter_mut().zip(blocks) {
            // SAFETY: a block has 64 octets.
            let octets = unsafe { _mm512_loadu_si512(block.as_ptr().cast()) };
            *row = _mm512_shuffle_epi8(octets, reversed);
        }
        // Afterwards quarter `q` of `quads[g][c]` has word `4 q + c` of rows `4 g` to `4 g + 3`.
        let mut quads = [[reversed; 4]; 4];
        for (quad, rows) in quads.iter_mut().zip(rows.as_chunks::<4>().0) {
            let [a, b, c, d] = *rows;
            let (ab_low, ab_high) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
            let (cd_low, cd_high) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
            *quad = [
                _mm512_unpacklo_epi64(ab_low, cd_low),
                _mm512_unpackhi_epi64(ab_low, cd_low),
                _mm512_unpacklo_epi64(ab_high, cd_high),
                _mm512_unpackhi_epi64(ab_high, cd_high),
            ];
        }
        for column in 0..4 {
            let [a, b, c, d] = quads.map(|quad| quad[column]);
            let (ab_even, ab_odd) = (_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xdd>(a, b));
            let (cd_even, cd_odd) = (_mm512_shuffle_i32x4::<0x88>(c, d), _mm512_shuffle_i32x4::<0xdd>(c, d));
            store(&mut words[column], _mm512_shuffle_i32x4::<0x88>(ab_even, cd_even));
            store(&mut words[column + 8], _mm512_shuffle_i32x4::<0xdd>(ab_even, cd_even));
            store(&mut words[column + 4], _mm512_shuffle_i32x4::<0x88>(ab_odd, cd_odd));
            store(&mut words[column + 12], _mm512_shuffle_i32x4::<0xdd>(ab_odd, cd_odd));
        }
    }

    fn load(word: &Word) -> __m512i {
        // SAFETY: a `Word` is 64 bytes, which an unaligned load of 512 bits reads.
        unsafe { _mm512_loadu_si512(word.as_ptr().cast()) }
    }

    fn store(word: &mut Word, value: __m512i) {
        // SAFETY: a `Word` is 64 bytes, which an unaligned store of 512 bits writes.
        unsafe { _mm512_storeu_si512(word.as_mut_ptr().cast(), value) }
    }

    /// Exclusive or of three.
    const XOR: i32 = 0x96;
    /// FIPS 180-4's Ch: the second where the first has a one, else the third.
    const CHOICE: i32 = 0xca;
    /// FIPS 180-4's Maj.
    const MAJORITY: i32 = 0xe8;

    #[target_feature(enable = "avx512f")]
    fn compress_avx512(state: &mut State, block: &Block) {
        let mut w = block.each_ref().map(load);
        let start = state.each_ref().map(load);
        let mut v = start;
        // Written out, so that the sixteen words of the schedule stay in registers.
        macro_rules! sixteen_rounds {
            ($constants:expr, $schedule:literal: $($i:literal)*) => {$(
                if $schedule {
                    w[$i] = scheduled(w[$i], w[($i + 1) & 15], w[($i + 9) & 15], w[($i + 14) & 15]);
                }
                v = round(v, _mm512_add_epi32(w[$i], _mm512_set1_epi32($constants[$i].cast_signed())));
            )*};
        }
        let (constants, _) = K.as_chunks::<16>();
        sixteen_rounds!(constants[0], false: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
        for constants in &constants[1..] {
            sixteen_rounds!(constants, true: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
        }
        for ((word, start), new) in state.iter_mut().zip(start).zip(v) {
            store(word, _mm512_add_epi32(start, new));
        }
    }

    /// Step 3 of FIPS 180-4 section 6.2.2, `fed` being K(t) + W(t).
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn round([a, b, c, d, e, f, g, h]: [__m512i; 8], fed: __m512i) -> [__m512i; 8] {
        let choice = _mm512_ternarylogic_epi32::<CHOICE>(e, f, g);
        let sum1 = _mm512_ternarylogic_epi32::<XOR>(
            _mm512_ror_epi32::<6>(e),
            _mm512_ror_epi32::<11>(e),
            _mm512_ror_epi32::<25>(e),
        );
        let t1 = _mm512_add_epi32(_mm512_add_epi32(_mm512_add_epi32(h, fed), choice), sum1);
        let sum0 = _mm512_ternarylogic_epi32::<XOR>(
            _mm512_ror_epi32::<2>(a),
            _mm512_ror_epi32::<13>(a),
            _mm512_ror_epi32::<22>(a),
        );
        let t2 = _mm512_add_epi32(sum0, _mm512_ternarylogic_epi32::<MAJORITY>(a, b, c));
        [_mm512_add_epi32(t1, t2), a, b, c, _mm512_add_epi32(d, t1), e, f, g]
    }

    /// W(t) from W(t-16), W(t-15), W(t-7) and W(t-2): step 1 of FIPS 180-4 section 6.2.2.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn scheduled(sixteen: __m512i, fifteen: __m512i, seven: __m512i, two: __m512i) -> __m512i {
        let sigma1 = _mm512_ternarylogic_epi32::<XOR>(
            _mm512_ror_epi32::<17>(two),
            _mm512_ror_epi32::<19>(two),
            _mm512_srli_epi32::<10>(two),
        );
        let sigma0 = _mm512_ternarylogic_epi32::<XOR>(
            _mm512_ror_epi32::<7>(fifteen),
            _mm512_ror_epi32::<18>(fifteen),
            _mm512_srli_epi32::<3>(fifteen),
        );
        _mm512_add_epi32(_mm512_add_epi32(sixteen, seven), _mm512_add_epi32(sigma0, sigma1))
    }

    /// FIPS 180-4 section 4.2.2.
    #[rustfmt::skip]
    const K: [u32; 64] = [
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
        0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
        0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
        0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
        0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
        0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
        0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
    ];
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;

    /// Blocks and states that differ in every lane and every word.
    fn example(seed: u32) -> (State, Block) {
        let mut x = seed | 1;
        let mut next = || {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            x.rotate_left(x & 31)
        };
        (State::default().map(|word| word.map(|_| next())), Block::default().map(|word| word.map(|_| next())))
    }

    #[test]
    fn sixteen_lanes_are_sixteen_times_one_lane() {
        for seed in 0..200 {
            let (state, block) = example(seed);
            let (mut lanes, mut each) = (state, state);
            compress_lanes(&mut lanes, &block);
            compress_each(&mut each, &block);
            assert_eq!(lanes, each);
        }
    }

    #[test]
    fn blocks_loaded_in_lanes_are_those_loaded_word_by_word() {
        let octets: [[u8; 64]; LANES] =
            std::array::from_fn(|lane| std::array::from_fn(|at| (lane * 64 + at * 7) as u8 ^ (lane as u8) << 3));
        let (mut together, mut each) = (Block::default(), Block::default());
        load(&octets.each_ref(), &mut together);
        load_each(&octets.each_ref(), &mut each);
        assert_eq!(together, each);
    }

    #[test]
    fn a_padded_block_gives_the_hash() {
        let mut block = [0u8; 64];
        block[..3].copy_from_slice(b"abc");
        block[3] = 0x80;
        block[63] = 24;
        let mut state = INITIAL;
        compress(&mut state, &block);
        let hash: Vec<u8> = state.iter().flat_map(|word| word.to_be_bytes()).collect();
        assert_eq!(hash, Sha256::digest(b"abc").to_vec());
    }
}
