//! Transposition of bit matrices, in squares of 128 by 128.

/// A square of 128 rows of 128 bits; bit `j` of a row is bit `j % 64` of its word `j / 64`.
pub type Square = [[u64; 2]; 128];

/// Transposes in place: bit `j` of row `i` becomes bit `i` of row `j`. Time does not depend on the bits.
pub fn transpose(square: &mut Square) {
    swap::<32>(square, 0x0000_0000_ffff_ffff);
    swap::<16>(square, 0x0000_ffff_0000_ffff);
    swap::<8>(square, 0x00ff_00ff_00ff_00ff);
    swap::<4>(square, 0x0f0f_0f0f_0f0f_0f0f);
    swap::<2>(square, 0x3333_3333_3333_3333);
    swap::<1>(square, 0x5555_5555_5555_5555);
    let (upper, lower) = square.split_at_mut(64);
    for (a, b) in upper.iter_mut().zip(lower) {
        std::mem::swap(&mut a[1], &mut b[0]);
    }
}

/// Swaps the off-diagonal quarters of every `2 D` by `2 D` square; `low` has the columns whose bit `D` is clear.
#[inline(always)]
fn swap<const D: usize>(square: &mut Square, low: u64) {
    for pair in square.chunks_exact_mut(2 * D) {
        let (upper, lower) = pair.split_at_mut(D);
        for (a, b) in upper.iter_mut().zip(lower) {
            for (a, b) in a.iter_mut().zip(b) {
                let differ = ((*a >> D) ^ *b) & low;
                *b ^= differ;
                *a ^= differ << D;
            }
        }
    }
}

/// Transposes an 8 by 8 square: bit `j` of byte `i` becomes bit `i` of byte `j`.
#[must_use]
#[inline]
pub fn transpose8(mut x: u64) -> u64 {
    let mut differ = (x ^ (x >> 7)) & 0x00aa_00aa_00aa_00aa;
    x ^= differ ^ (differ << 7);
    differ = (x ^ (x >> 14)) & 0x0000_cccc_0000_cccc;
    x ^= differ ^ (differ << 14);
    differ = (x ^ (x >> 28)) & 0x0000_0000_f0f0_f0f0;
    x ^ differ ^ (differ << 28)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bit(square: &Square, row: usize, column: usize) -> u64 {
        (square[row][column / 64] >> (column % 64)) & 1
    }

    #[test]
    fn every_bit_goes_to_its_mirror_place() {
        let mut word = 1u64;
        let square: Square = std::array::from_fn(|_| {
            std::array::from_fn(|_| {
                word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                word ^ (word >> 29)
            })
        });
        let mut turned = square;
        transpose(&mut turned);
        for row in 0..128 {
            for column in 0..128 {
                assert_eq!(bit(&square, row, column), bit(&turned, column, row));
            }
        }
    }

    #[test]
    fn eight_by_eight_squares_turn_too() {
        for row in 0..8 {
            for column in 0..8 {
                assert_eq!(transpose8(1 << (8 * row + column)), 1 << (8 * column + row));
            }
        }
    }
}
