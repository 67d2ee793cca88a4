//! Sixteen rows of sixteen words become columns and back, in registers.

use std::arch::x86_64::{
    __m512i, _mm512_loadu_si512, _mm512_mask_storeu_epi32, _mm512_maskz_loadu_epi8, _mm512_permutex2var_epi64,
    _mm512_set1_epi32, _mm512_setr_epi64, _mm512_setzero_si512, _mm512_storeu_si512, _mm512_testn_epi32_mask,
    _mm512_unpackhi_epi32, _mm512_unpackhi_epi64, _mm512_unpacklo_epi32, _mm512_unpacklo_epi64,
};

use super::super::{Block, Code, Columns, CpuKernel, LANES, Work};
use super::across;

/// Octets of a row.
const ROW: usize = 4 * LANES;

/// See [`super::super::columns`]; of the wide kernel.
pub(crate) fn columns(kernel: CpuKernel, packets: &[&[u8]], out: &mut Columns) {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi1,bmi2")]
    fn inner(packets: &[&[u8]], out: &mut Columns) {
        let mut rows = [_mm512_setzero_si512(); LANES];
        if packets.len() == LANES && packets.iter().all(|packet| packet.len() >= ROW) {
            // SAFETY: each has as many octets as are read.
            rows = std::array::from_fn(|row| unsafe { _mm512_loadu_si512(packets[row].as_ptr().cast()) });
        } else {
            for (row, packet) in rows.iter_mut().zip(packets) {
                let mask = if packet.len() >= ROW { u64::MAX } else { (1 << packet.len()) - 1 };
                // SAFETY: as many octets are read as there are.
                *row = unsafe { _mm512_maskz_loadu_epi8(mask, packet.as_ptr().cast()) };
            }
        }
        for (column, out) in transpose(rows).into_iter().zip(out) {
            // SAFETY: a column has 64 octets.
            unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), column) };
        }
    }
    assert!(kernel.0 == Code::Vaes512);
    // SAFETY: this kernel exists only after `has_vaes512`.
    unsafe { inner(packets, out) }
}

/// See [`super::super::rows`]; of the wide kernel.
pub(crate) fn rows(kernel: CpuKernel, columns: &Columns, out: &mut [[Block; 4]; LANES]) {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi1,bmi2")]
    fn inner(columns: &Columns, out: &mut [[Block; 4]; LANES]) {
        // SAFETY: a column has 64 octets.
        let columns = columns.each_ref().map(|column| unsafe { _mm512_loadu_si512(column.as_ptr().cast()) });
        for (row, out) in transpose(columns).into_iter().zip(out) {
            // SAFETY: a row has 64 octets.
            unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), row) };
        }
    }
    assert!(kernel.0 == Code::Vaes512);
    // SAFETY: this kernel exists only after `has_vaes512`.
    unsafe { inner(columns, out) }
}

/// See [`super::super::zeros`]; of the wide kernel.
#[inline(always)]
pub(crate) fn zeros(kernel: CpuKernel, lanes: &[u32; LANES]) -> u16 {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi1,bmi2")]
    fn inner(lanes: &[u32; LANES]) -> u16 {
        // SAFETY: there are 64 octets.
        let lanes = unsafe { _mm512_loadu_si512(lanes.as_ptr().cast()) };
        _mm512_testn_epi32_mask(lanes, lanes)
    }
    assert!(kernel.0 == Code::Vaes512);
    // SAFETY: this kernel exists only after `has_vaes512`.
    unsafe { inner(lanes) }
}

/// See [`super::super::fill`]; of the wide kernel.
#[inline(always)]
pub(crate) fn fill(kernel: CpuKernel, bits: u16, word: u32, lanes: &mut [u32; LANES]) {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi1,bmi2")]
    fn inner(bits: u16, word: u32, lanes: &mut [u32; LANES]) {
        // SAFETY: there are 64 octets.
        unsafe { _mm512_mask_storeu_epi32(lanes.as_mut_ptr().cast(), bits, _mm512_set1_epi32(word.cast_signed())) }
    }
    assert!(kernel.0 == Code::Vaes512);
    // SAFETY: this kernel exists only after `has_vaes512`.
    unsafe { inner(bits, word, lanes) }
}

/// See [`super::super::join`]; of the wide kernel.
#[inline(always)]
pub(crate) fn join(kernel: CpuKernel, first: &[u64; LANES], second: &[u64; LANES], out: &mut [Block; LANES]) {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi1,bmi2")]
    fn inner(first: &[u64; LANES], second: &[u64; LANES], out: &mut [Block; LANES]) {
        // One from the first vector, then the one at the same place in the second.
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
    assert!(kernel.0 == Code::Vaes512);
    // SAFETY: this kernel exists only after `has_vaes512`.
    unsafe { inner(first, second, out) }
}

/// See [`super::super::first_halves`]; of the wide kernel.
#[inline(always)]
pub(crate) fn first_halves(kernel: CpuKernel, blocks: &[Block; LANES]) -> [u64; LANES] {
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
    assert!(kernel.0 == Code::Vaes512);
    // SAFETY: this kernel exists only after `has_vaes512`.
    unsafe { inner(blocks) }
}

/// See [`super::super::CpuKernel::run`]; of the wide kernel.
#[inline(always)]
pub(crate) fn run<W: Work>(kernel: CpuKernel, work: W) -> W::Output {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi1,bmi2")]
    fn inner<W: Work>(work: W) -> W::Output {
        work.run()
    }
    assert!(kernel.0 == Code::Vaes512);
    // SAFETY: this kernel exists only after `has_vaes512`.
    unsafe { inner(work) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn transpose(rows: [__m512i; LANES]) -> [__m512i; LANES] {
    let mut columns = [_mm512_setzero_si512(); LANES];
    // Of four rows: each block has word `w`, 4 + `w`, 8 + `w` or 12 + `w` of all four.
    let mut fours = [[_mm512_setzero_si512(); 4]; 4];
    for (group, rows) in rows.as_chunks::<4>().0.iter().enumerate() {
        let [a, b, c, d] = *rows;
        let (ab, cd) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
        let (ab_behind, cd_behind) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
        fours[0][group] = _mm512_unpacklo_epi64(ab, cd);
        fours[1][group] = _mm512_unpackhi_epi64(ab, cd);
        fours[2][group] = _mm512_unpacklo_epi64(ab_behind, cd_behind);
        fours[3][group] = _mm512_unpackhi_epi64(ab_behind, cd_behind);
    }
    for (word, [a, b, c, d]) in fours.into_iter().enumerate() {
        for (place, column) in across(a, b, c, d).into_iter().enumerate() {
            columns[4 * place + word] = column;
        }
    }
    columns
}
