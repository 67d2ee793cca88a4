//! Sums of products in the field of 2^128 elements: a linear universal hash.
//!
//! An element is 16 octets, little-endian: bit `i` is the coefficient of `x^i`, modulo `x^128 + x^7 + x^2 + x + 1`. (GHASH has the same
//! field with the bits of an octet in the other order, NIST SP 800-38D section 6.3.) Time depends on the number of elements alone.

/// The sum of `weights[i] * blocks[i]`. For weights that are uniformly random and independent of the blocks, two lists of blocks
/// that differ have equal sums with probability 2^-128, and the sum of two lists' sums is the sum of the lists' sum.
///
/// # Panics
/// If the lists differ in length.
#[must_use]
pub fn sum_of_products(weights: &[[u8; 16]], blocks: &[[u8; 16]]) -> [u8; 16] {
    assert_eq!(weights.len(), blocks.len(), "a weight for each block");
    #[cfg(target_arch = "x86_64")]
    if let Some(wide) = x86::sum(weights, blocks) {
        return reduce(wide).to_le_bytes();
    }
    reduce(portable(weights, blocks)).to_le_bytes()
}

/// A product of 255 bits: its low and its high half.
type Wide = [u128; 2];

fn reduce([low, high]: Wide) -> u128 {
    // `x^128` is `x^7 + x^2 + x + 1`; what that pushes out above is at most seven bits, which are folded once more.
    let over = (high >> 127) ^ (high >> 126) ^ (high >> 121);
    let folded = high ^ over;
    low ^ folded ^ (folded << 1) ^ (folded << 2) ^ (folded << 7)
}

fn portable(weights: &[[u8; 16]], blocks: &[[u8; 16]]) -> Wide {
    weights.iter().zip(blocks).fold([0; 2], |[low, high], (weight, block)| {
        let [more_low, more_high] = product(u128::from_le_bytes(*weight), u128::from_le_bytes(*block));
        [low ^ more_low, high ^ more_high]
    })
}

/// The product without reduction: Karatsuba's three products of halves.
fn product(a: u128, b: u128) -> Wide {
    let ([a_low, a_high], [b_low, b_high]) = (halves(a), halves(b));
    let (low, high) = (product_of_halves(a_low, b_low), product_of_halves(a_high, b_high));
    let middle = product_of_halves(a_low ^ a_high, b_low ^ b_high) ^ low ^ high;
    [low ^ (middle << 64), high ^ (middle >> 64)]
}

fn halves(value: u128) -> [u64; 2] {
    [value as u64, (value >> 64) as u64]
}

fn product_of_halves(a: u64, b: u64) -> u128 {
    // The upper half is the lower half of the product of the mirrored factors, mirrored.
    let low = low_half(a, b);
    let high = low_half(a.reverse_bits(), b.reverse_bits()).reverse_bits() >> 1;
    u128::from(low) | (u128::from(high) << 64)
}

/// The lower 64 bits of the product, by multiplications of integers whose ones stand four bits apart: what carries over stays
/// below the next of them (T. Pornin, BearSSL, `ghash_ctmul64.c`).
fn low_half(a: u64, b: u64) -> u64 {
    const APART: u64 = 0x1111_1111_1111_1111;
    let part = |value: u64, place: usize| value & (APART << place);
    (0..4).fold(0, |sum, place| {
        let terms = (0..4).fold(0u64, |terms, i| terms ^ part(a, i).wrapping_mul(part(b, (place + 4 - i) % 4)));
        sum | part(terms, place)
    })
}

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code, reason = "carry-less multiplication: functions for processor features that were just checked")]
mod x86 {
    use std::arch::x86_64::{
        __m128i, __m512i, _mm_clmulepi64_si128, _mm_loadu_si128, _mm_setzero_si128, _mm_storeu_si128, _mm_xor_si128,
        _mm512_castsi512_si128, _mm512_clmulepi64_epi128, _mm512_extracti32x4_epi32, _mm512_loadu_si512,
        _mm512_maskz_loadu_epi64, _mm512_setzero_si512, _mm512_ternarylogic_epi32, _mm512_xor_si512,
    };

    use super::Wide;

    /// Blocks of a wide vector.
    const BLOCKS: usize = 4;
    /// Exclusive or of three.
    const XOR: i32 = 0x96;

    /// The sum without reduction, if the processor multiplies without carry.
    pub(super) fn sum(weights: &[[u8; 16]], blocks: &[[u8; 16]]) -> Option<Wide> {
        sum_wide(weights, blocks).or_else(|| sum_narrow(weights, blocks))
    }

    /// The same with four blocks to a vector.
    pub(super) fn sum_wide(weights: &[[u8; 16]], blocks: &[[u8; 16]]) -> Option<Wide> {
        let has = is_x86_feature_detected!("vpclmulqdq") && is_x86_feature_detected!("avx512f");
        // SAFETY: the processor has both features, as was just checked.
        has.then(|| unsafe { wide(weights, blocks) })
    }

    /// The same with one block to a vector.
    pub(super) fn sum_narrow(weights: &[[u8; 16]], blocks: &[[u8; 16]]) -> Option<Wide> {
        // SAFETY: the processor has the feature, as was just checked.
        is_x86_feature_detected!("pclmulqdq").then(|| unsafe { narrow(weights, blocks) })
    }

    #[target_feature(enable = "pclmulqdq")]
    fn narrow(weights: &[[u8; 16]], blocks: &[[u8; 16]]) -> Wide {
        let mut sums = [_mm_setzero_si128(); 3];
        for (weight, block) in weights.iter().zip(blocks) {
            let (weight, block) = (load(weight), load(block));
            let [low, middle, high] = &mut sums;
            *low = _mm_xor_si128(*low, _mm_clmulepi64_si128::<0x00>(weight, block));
            *high = _mm_xor_si128(*high, _mm_clmulepi64_si128::<0x11>(weight, block));
            let cross =
                _mm_xor_si128(_mm_clmulepi64_si128::<0x01>(weight, block), _mm_clmulepi64_si128::<0x10>(weight, block));
            *middle = _mm_xor_si128(*middle, cross);
        }
        join(sums.map(number))
    }

    #[target_feature(enable = "vpclmulqdq,avx512f")]
    fn wide(weights: &[[u8; 16]], blocks: &[[u8; 16]]) -> Wide {
        let mut sums = [_mm512_setzero_si512(); 3];
        let (weights, last_weights) = weights.as_chunks::<BLOCKS>();
        let (blocks, last_blocks) = blocks.as_chunks::<BLOCKS>();
        for (weights, blocks) in weights.iter().zip(blocks) {
            add(&mut sums, load_wide(weights), load_wide(blocks));
        }
        let mask = (1u8 << (2 * last_weights.len())) - 1;
        // SAFETY: two words of 64 bits are loaded for each block that is left, and none beyond them.
        let [weights, blocks] =
            [last_weights, last_blocks].map(|last| unsafe { _mm512_maskz_loadu_epi64(mask, last.as_ptr().cast()) });
        add(&mut sums, weights, blocks);
        join(sums.map(|sum| {
            let quarters = [
                _mm512_castsi512_si128(sum),
                _mm512_extracti32x4_epi32::<1>(sum),
                _mm512_extracti32x4_epi32::<2>(sum),
                _mm512_extracti32x4_epi32::<3>(sum),
            ];
            quarters.map(number).into_iter().fold(0, |sum, quarter| sum ^ quarter)
        }))
    }

    #[inline]
    #[target_feature(enable = "vpclmulqdq,avx512f")]
    fn add([low, middle, high]: &mut [__m512i; 3], weights: __m512i, blocks: __m512i) {
        *low = _mm512_xor_si512(*low, _mm512_clmulepi64_epi128::<0x00>(weights, blocks));
        *high = _mm512_xor_si512(*high, _mm512_clmulepi64_epi128::<0x11>(weights, blocks));
        *middle = _mm512_ternarylogic_epi32::<XOR>(
            *middle,
            _mm512_clmulepi64_epi128::<0x01>(weights, blocks),
            _mm512_clmulepi64_epi128::<0x10>(weights, blocks),
        );
    }

    /// A function and no closure: what a function of `core` calls for each element is compiled without the features, and each vector then
    /// costs a call.
    #[inline]
    #[target_feature(enable = "vpclmulqdq,avx512f")]
    fn load_wide(blocks: &[[u8; 16]; BLOCKS]) -> __m512i {
        // SAFETY: four blocks are the 512 bits that are loaded.
        unsafe { _mm512_loadu_si512(blocks.as_ptr().cast()) }
    }

    fn load(block: &[u8; 16]) -> __m128i {
        // SAFETY: a block is the 128 bits that are loaded; every x86-64 processor has SSE2.
        unsafe { _mm_loadu_si128(block.as_ptr().cast()) }
    }

    fn number(vector: __m128i) -> u128 {
        let mut block = [0; 16];
        // SAFETY: a block is the 128 bits that are stored; every x86-64 processor has SSE2.
        unsafe { _mm_storeu_si128(block.as_mut_ptr().cast(), vector) };
        u128::from_le_bytes(block)
    }

    fn join([low, middle, high]: [u128; 3]) -> Wide {
        [low ^ (middle << 64), high ^ (middle >> 64)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prg::Prg;

    /// An element from GHASH's form of it.
    fn from_ghash(hex: u128) -> [u8; 16] {
        hex.reverse_bits().to_le_bytes()
    }

    /// The product bit by bit.
    fn plain(a: [u8; 16], b: [u8; 16]) -> u128 {
        let (mut a, b) = (u128::from_le_bytes(a), u128::from_le_bytes(b));
        let mut sum = 0;
        for bit in 0..128 {
            sum ^= if (b >> bit) & 1 == 1 { a } else { 0 };
            a = (a << 1) ^ if a >> 127 == 1 { 0x87 } else { 0 };
        }
        sum
    }

    fn random(seed: u8, count: usize) -> Vec<[u8; 16]> {
        let mut out = vec![[0; 16]; count];
        Prg::new(&[seed; 16]).blocks(0, &mut out);
        out
    }

    #[test]
    fn ghash_of_the_gcm_specification() {
        // McGrew and Viega, "The Galois/Counter Mode of Operation", test case 2: H, one block of ciphertext, the block of lengths.
        let key = from_ghash(0x66e9_4bd4_ef8a_2c3b_884c_fa59_ca34_2b2e);
        let text = from_ghash(0x0388_dace_60b6_a392_f328_c2b9_71b2_fe78);
        let once = sum_of_products(&[key], &[text]);
        assert_eq!(once, from_ghash(0x5e2e_c746_9170_6288_2c85_b068_5353_deb7));
        let lengths = from_ghash(128);
        let sum = u128::from_le_bytes(once) ^ u128::from_le_bytes(lengths);
        let twice = sum_of_products(&[key], &[sum.to_le_bytes()]);
        assert_eq!(twice, from_ghash(0xf38c_bb1a_d692_23dc_c345_7ae5_b6b0_f885));
    }

    #[test]
    fn every_way_to_multiply_gives_the_product_bit_by_bit() {
        let mut edges: Vec<[u8; 16]> =
            [0, 1, 2, 1 << 63, 1 << 64, 1 << 127, u128::MAX, 0x87, 3 << 126].map(u128::to_le_bytes).into();
        edges.extend(random(1, 8));
        for a in &edges {
            for b in &edges {
                let expected = plain(*a, *b);
                assert_eq!(u128::from_le_bytes(sum_of_products(&[*a], &[*b])), expected);
                assert_eq!(reduce(portable(&[*a], &[*b])), expected);
            }
        }
    }

    #[test]
    fn sums_of_any_length_are_sums_of_products() {
        for count in [0, 1, 2, 3, 4, 5, 7, 8, 64, 131] {
            let (weights, blocks) = (random(2, count), random(3, count));
            let expected = weights.iter().zip(&blocks).fold(0, |sum, (a, b)| sum ^ plain(*a, *b));
            assert_eq!(u128::from_le_bytes(sum_of_products(&weights, &blocks)), expected, "{count} products");
            assert_eq!(reduce(portable(&weights, &blocks)), expected, "{count} products");
            #[cfg(target_arch = "x86_64")]
            for sum in [x86::sum_wide(&weights, &blocks), x86::sum_narrow(&weights, &blocks)].into_iter().flatten() {
                assert_eq!(reduce(sum), expected, "{count} products");
            }
        }
    }
}
