//! Columns of a group from the streams of its leaves: for each bit of a leaf's number, the sum of the streams that have it.
//!
//! The sums run up the tree, so that all columns of `k` bits and the sum of all streams cost some `2^(k + 1)` additions.

use wayleave_crypto::prg::Prg;

use super::xor;

/// Writes the sum of all streams, from block `first` on, to `total`, and the sums of those with each bit, the highest one first,
/// to `columns`, which begin `apart` bytes after each other. `sums` has space for as many columns.
pub(super) fn all(leaves: &[Prg], first: u64, total: &mut [u8], columns: &mut [u8], apart: usize, sums: &mut [u8]) {
    let length = total.len();
    sum(Below { leaves, first, is_begun: false }, total, columns, (length, apart), sums);
}

/// The same where leaf 0 lacks, and without the total: the leaves are those from number 1 on. Columns have `length` bytes.
pub(super) fn all_but_first(
    leaves: &[Prg],
    first: u64,
    columns: &mut [u8],
    (length, apart): (usize, usize),
    sums: &mut [u8],
) {
    let Some((own, deeper)) = columns.split_at_mut_checked(apart) else { return };
    // Numbers 1 to `half - 1` lie on the left.
    let half = leaves.len().div_ceil(2);
    let (left, right) = leaves.split_at(half - 1);
    let sums = &mut sums[length..];
    all_but_first(left, first, deeper, (length, apart), sums);
    sum(Below { leaves: right, first, is_begun: true }, &mut own[..length], deeper, (length, apart), sums);
}

/// Leaves below a node.
#[derive(Clone, Copy)]
struct Below<'l> {
    leaves: &'l [Prg],
    first: u64,
    /// Whether the columns have something to add to.
    is_begun: bool,
}

/// Writes the sum of the streams below a node to `total`, and adds to the columns of the levels below it.
fn sum(node: Below<'_>, total: &mut [u8], columns: &mut [u8], (length, apart): (usize, usize), sums: &mut [u8]) {
    let Some((own, deeper)) = columns.split_at_mut_checked(apart).filter(|_| node.leaves.len() > 1) else {
        return node.leaves[0].fill(node.first, total);
    };
    let (left, right) = node.leaves.split_at(node.leaves.len() / 2);
    let (right_sum, sums) = sums.split_at_mut(length);
    let own = &mut own[..length];
    sum(Below { leaves: left, ..node }, total, deeper, (length, apart), sums);
    let right = Below { leaves: right, is_begun: true, ..node };
    if node.is_begun {
        sum(right, right_sum, deeper, (length, apart), sums);
        xor(own, right_sum);
        xor(total, right_sum);
    } else {
        sum(right, own, deeper, (length, apart), sums);
        xor(total, own);
    }
}

#[cfg(test)]
mod tests {
    //! MPC-06: columns of a group against plain sums: equal.

    use super::*;

    #[test]
    fn columns_are_sums_by_the_bits_of_the_leaves_numbers() {
        let (length, apart, first) = (48, 64, 5);
        for levels in [1usize, 2, 4, 8] {
            let leaves: Vec<Prg> = (0..1u32 << levels).map(|n| Prg::new(&[(n * 7 + 1) as u8; 16])).collect();
            let stream = |number: usize| {
                let mut out = vec![0; length];
                leaves[number].fill(first, &mut out);
                out
            };
            let of = |is_in: &dyn Fn(usize) -> bool| {
                let mut out = vec![0; length];
                (0..leaves.len()).filter(|number| is_in(*number)).for_each(|number| xor(&mut out, &stream(number)));
                out
            };
            let (mut total, mut columns) = (vec![0xaa; length], vec![0xbb; apart * levels]);
            let mut sums = vec![0xcc; length * levels];
            all(&leaves, first, &mut total, &mut columns, apart, &mut sums);
            assert_eq!(total, of(&|_| true));
            let by_bit: Vec<Vec<u8>> =
                (0..levels).map(|level| of(&|number| (number >> (levels - 1 - level)) & 1 == 1)).collect();
            for (column, expected) in columns.chunks_exact(apart).zip(&by_bit) {
                assert_eq!(column[..length], *expected, "{levels} levels");
                assert!(column[length..].iter().all(|octet| *octet == 0xbb), "what lies between columns stays");
            }
            columns.fill(0xbb);
            all_but_first(&leaves[1..], first, &mut columns, (length, apart), &mut sums);
            for (column, expected) in columns.chunks_exact(apart).zip(&by_bit) {
                assert_eq!(column[..length], *expected, "{levels} levels, without leaf 0");
            }
        }
    }
}
