//! Sixteen rows of sixteen words become columns and back, in registers.

use std::arch::x86_64::{
    __m512i, _mm512_loadu_si512, _mm512_maskz_loadu_epi8, _mm512_setzero_si512, _mm512_storeu_si512,
    _mm512_unpackhi_epi32, _mm512_unpackhi_epi64, _mm512_unpacklo_epi32, _mm512_unpacklo_epi64,
};

use super::super::{Block, Code, Columns, Kernel, SIDE, Work};
use super::across;

/// Octets of a row.
const ROW: usize = 4 * SIDE;

/// See [`super::super::columns`]; of the wide kernel.
pub(crate) fn columns(kernel: Kernel, packets: &[&[u8]], out: &mut Columns) {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi1,bmi2")]
    fn inner(packets: &[&[u8]], out: &mut Columns) {
        let mut rows = [_mm512_setzero_si512(); SIDE];
        for (row, packet) in rows.iter_mut().zip(packets) {
            // SAFETY: as many octets are read as there are.
            *row = unsafe {
                if packet.len() >= ROW {
                    _mm512_loadu_si512(packet.as_ptr().cast())
                } else {
                    _mm512_maskz_loadu_epi8((1 << packet.len()) - 1, packet.as_ptr().cast())
                }
            };
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
pub(crate) fn rows(kernel: Kernel, columns: &Columns, out: &mut [[Block; 4]; SIDE]) {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi1,bmi2")]
    fn inner(columns: &Columns, out: &mut [[Block; 4]; SIDE]) {
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

/// See [`super::super::Kernel::run`]; of the wide kernel.
#[inline(always)]
pub(crate) fn run<W: Work>(kernel: Kernel, work: W) -> W::Output {
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
fn transpose(rows: [__m512i; SIDE]) -> [__m512i; SIDE] {
    let mut columns = [_mm512_setzero_si512(); SIDE];
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
