//! The transposition of sixteen rows of sixteen words, in registers.

use std::arch::x86_64::{
    __m512i, _mm512_loadu_si512, _mm512_maskz_loadu_epi8, _mm512_setzero_si512, _mm512_storeu_si512,
    _mm512_unpackhi_epi32, _mm512_unpackhi_epi64, _mm512_unpacklo_epi32, _mm512_unpacklo_epi64,
};

use super::super::{Block, Code, Columns, CpuKernel, LANES};
use super::across;

/// Octets of a row.
const ROW: usize = 4 * LANES;

/// See [`super::super::columns`]; for the VAES-512 kernel.
pub(crate) fn columns(kernel: CpuKernel, packets: &[&[u8]], out: &mut Columns) {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi1,bmi2")]
    fn inner(packets: &[&[u8]], out: &mut Columns) {
        let mut rows = [_mm512_setzero_si512(); LANES];
        if packets.len() == LANES && packets.iter().all(|packet| packet.len() >= ROW) {
            // SAFETY: every packet has the 64 octets that are read.
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

/// See [`super::super::rows`]; for the VAES-512 kernel.
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

/// Word `w` of row `r` becomes word `r` of column `w`.
#[inline]
#[target_feature(enable = "avx512f")]
fn transpose(rows: [__m512i; LANES]) -> [__m512i; LANES] {
    let mut columns = [_mm512_setzero_si512(); LANES];
    // First within groups of four rows: `fours[w][group]` has four blocks, which are words `w`, 4 + `w`, 8 + `w` and 12 + `w`
    // of the group's rows. Then across the groups, which brings together the blocks of one word.
    let mut fours = [[_mm512_setzero_si512(); 4]; 4];
    for (group, rows) in rows.as_chunks::<4>().0.iter().enumerate() {
        let [a, b, c, d] = *rows;
        let (ab_low, cd_low) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
        let (ab_high, cd_high) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
        fours[0][group] = _mm512_unpacklo_epi64(ab_low, cd_low);
        fours[1][group] = _mm512_unpackhi_epi64(ab_low, cd_low);
        fours[2][group] = _mm512_unpacklo_epi64(ab_high, cd_high);
        fours[3][group] = _mm512_unpackhi_epi64(ab_high, cd_high);
    }
    for (word, [a, b, c, d]) in fours.into_iter().enumerate() {
        for (four, column) in across(a, b, c, d).into_iter().enumerate() {
            columns[4 * four + word] = column;
        }
    }
    columns
}
