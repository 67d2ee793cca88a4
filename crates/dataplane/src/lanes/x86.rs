//! The operations on lanes for processors with AVX-512.
//!
//! Each public function asserts that the kernel has AVX-512, and then calls code that was compiled for it. The assertion is
//! what makes the call sound; the compiler removes it where the kernel was just matched.

use std::arch::x86_64::{
    _mm512_loadu_si512, _mm512_mask_storeu_epi32, _mm512_permutex2var_epi64, _mm512_set1_epi32, _mm512_setr_epi64,
    _mm512_storeu_si512, _mm512_testn_epi32_mask,
};

use wayleave_crypto::lanes::Block;

use super::{CpuKernel, LANES, VectorCode};

/// Begins to load the cache line of `address`.
#[inline(always)]
pub(super) fn prefetch(address: *const u8) {
    // SAFETY: every x86-64 processor has this instruction. It is a hint: it takes any address, and changes nothing that a
    // program sees.
    unsafe { std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast()) };
}

/// See [`super::zeros`].
#[inline(always)]
pub(super) fn zeros(kernel: CpuKernel, lanes: &[u32; LANES]) -> u16 {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi1,bmi2")]
    fn inner(lanes: &[u32; LANES]) -> u16 {
        // SAFETY: there are 64 octets.
        let lanes = unsafe { _mm512_loadu_si512(lanes.as_ptr().cast()) };
        _mm512_testn_epi32_mask(lanes, lanes)
    }
    assert!(kernel.has_avx512());
    // SAFETY: the processor has these features, as was just asserted.
    unsafe { inner(lanes) }
}

/// See [`super::fill`].
#[inline(always)]
pub(super) fn fill(kernel: CpuKernel, bits: u16, word: u32, lanes: &mut [u32; LANES]) {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi1,bmi2")]
    fn inner(bits: u16, word: u32, lanes: &mut [u32; LANES]) {
        // SAFETY: there are 64 octets.
        unsafe { _mm512_mask_storeu_epi32(lanes.as_mut_ptr().cast(), bits, _mm512_set1_epi32(word.cast_signed())) }
    }
    assert!(kernel.has_avx512());
    // SAFETY: the processor has these features, as was just asserted.
    unsafe { inner(bits, word, lanes) }
}

/// See [`super::join`].
#[inline(always)]
pub(super) fn join(kernel: CpuKernel, first: &[u64; LANES], second: &[u64; LANES], out: &mut [Block; LANES]) {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi1,bmi2")]
    fn inner(first: &[u64; LANES], second: &[u64; LANES], out: &mut [Block; LANES]) {
        // Numbers below 8 choose from the first vector, the others from the second: a half from each in turn.
        let lower = _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11);
        let upper = _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15);
        let halves = first.as_chunks::<8>().0.iter().zip(second.as_chunks::<8>().0);
        for (out, (first, second)) in out.as_chunks_mut::<8>().0.iter_mut().zip(halves) {
            // SAFETY: eight halves have 64 octets, and eight blocks have 128.
            unsafe {
                let first = _mm512_loadu_si512(first.as_ptr().cast());
                let second = _mm512_loadu_si512(second.as_ptr().cast());
                let out = out.as_mut_ptr();
                _mm512_storeu_si512(out.cast(), _mm512_permutex2var_epi64(first, lower, second));
                _mm512_storeu_si512(out.add(4).cast(), _mm512_permutex2var_epi64(first, upper, second));
            }
        }
    }
    assert!(kernel.has_avx512());
    // SAFETY: the processor has these features, as was just asserted.
    unsafe { inner(first, second, out) }
}

/// See [`super::first_halves`].
#[inline(always)]
pub(super) fn first_halves(kernel: CpuKernel, blocks: &[Block; LANES]) -> [u64; LANES] {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi1,bmi2")]
    fn inner(blocks: &[Block; LANES]) -> [u64; LANES] {
        let even = _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14);
        let mut out = [0u64; LANES];
        for (out, blocks) in out.as_chunks_mut::<8>().0.iter_mut().zip(blocks.as_chunks::<8>().0) {
            // SAFETY: eight blocks have 128 octets, and eight halves have 64.
            unsafe {
                let blocks = blocks.as_ptr();
                let (lower, upper) = (_mm512_loadu_si512(blocks.cast()), _mm512_loadu_si512(blocks.add(4).cast()));
                _mm512_storeu_si512(out.as_mut_ptr().cast(), _mm512_permutex2var_epi64(lower, even, upper));
            }
        }
        out
    }
    assert!(kernel.has_avx512());
    // SAFETY: the processor has these features, as was just asserted.
    unsafe { inner(blocks) }
}

/// See [`VectorCode::run_on`].
#[inline(always)]
pub(super) fn run<C: VectorCode>(kernel: CpuKernel, code: C) -> C::Output {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi1,bmi2")]
    fn inner<C: VectorCode>(code: C) -> C::Output {
        code.run()
    }
    assert!(kernel.has_avx512());
    // SAFETY: the processor has these features, as was just asserted.
    unsafe { inner(code) }
}
