//! Bit-sliced values: one row of bits for each wire, one bit of a row for each lane.

use std::fmt;

use wayleave_crypto::transpose::transpose8;
use zeroize::Zeroize;

/// A matrix of `rows` by `lanes` bits. Lane `l` of a row is bit `l % 64` of its word `l / 64`; bits past the last lane
/// are zero, always.
///
/// A lane is one independent evaluation, such as one member for one prefix; a row is one wire over all lanes. The
/// contents may be secret: they are wiped when dropped and have no printable form.
#[derive(Clone, PartialEq, Eq)]
pub struct BitRows {
    rows: usize,
    lanes: usize,
    words: usize,
    bits: Vec<u64>,
}

impl BitRows {
    /// All zeros: also the share of a party that does not know an input which the other party provides alone.
    ///
    /// # Panics
    /// If the matrix does not fit the address space.
    #[must_use]
    pub fn zero(rows: usize, lanes: usize) -> Self {
        let words = lanes.div_ceil(64);
        let len = rows.checked_mul(words).expect("a matrix of bits fits the address space");
        Self { rows, lanes, words, bits: vec![0; len] }
    }

    /// The number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The number of lanes: bits in each row.
    #[must_use]
    pub fn lanes(&self) -> usize {
        self.lanes
    }

    /// The words of row `row`.
    ///
    /// # Panics
    /// If there is no such row.
    #[must_use]
    pub fn row(&self, row: usize) -> &[u64] {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        &self.bits[row * self.words..][..self.words]
    }

    /// Sets a whole row from its words; bits past the last lane are cleared.
    ///
    /// # Panics
    /// If there is no such row or `words` has another length.
    pub fn set_row(&mut self, row: usize, words: &[u64]) {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        let last = last_word(self.lanes);
        let own = &mut self.bits[row * self.words..][..self.words];
        own.copy_from_slice(words);
        if let Some(word) = own.last_mut() {
            *word &= last;
        }
    }

    /// The bit of `row` in `lane`.
    ///
    /// # Panics
    /// If there is no such row or lane.
    #[must_use]
    pub fn bit(&self, row: usize, lane: usize) -> bool {
        assert!(lane < self.lanes, "lane {lane} of {}", self.lanes);
        (self.row(row)[lane / 64] >> (lane % 64)) & 1 == 1
    }

    /// Sets the bit of `row` in `lane`.
    ///
    /// # Panics
    /// If there is no such row or lane.
    pub fn set_bit(&mut self, row: usize, lane: usize, bit: bool) {
        assert!(row < self.rows && lane < self.lanes, "row {row} of {}, lane {lane} of {}", self.rows, self.lanes);
        let word = &mut self.bits[row * self.words + lane / 64];
        let place = lane % 64;
        *word = (*word & !(1 << place)) | (u64::from(bit) << place);
    }

    /// Sets rows `first..first + bits` of `lane` to the low `bits` bits of `value`, the least significant first.
    ///
    /// # Panics
    /// If there is no such row or lane, or `bits` is more than 128.
    pub fn set_number(&mut self, first: usize, bits: usize, lane: usize, value: u128) {
        assert!(bits <= 128, "{bits} bits of 128");
        for bit in 0..bits {
            self.set_bit(first + bit, lane, (value >> bit) & 1 == 1);
        }
    }

    /// The number in rows `first..first + bits` of `lane`, the least significant row first.
    ///
    /// # Panics
    /// If there is no such row or lane, or `bits` is more than 128.
    #[must_use]
    pub fn number(&self, first: usize, bits: usize, lane: usize) -> u128 {
        assert!(bits <= 128, "{bits} bits of 128");
        (0..bits).fold(0, |value, bit| value | (u128::from(self.bit(first + bit, lane)) << bit))
    }

    /// Bytes of one lane as [`set_lane`](Self::set_lane) takes them: row `r` is bit `r % 8` of byte `r / 8`.
    #[must_use]
    pub fn lane_bytes(&self) -> usize {
        self.rows.div_ceil(8)
    }

    /// Sets all rows of `lane` from its bytes; bits past the last row are ignored.
    ///
    /// # Panics
    /// If there is no such lane or `bytes` is not [`lane_bytes`](Self::lane_bytes) long.
    pub fn set_lane(&mut self, lane: usize, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.lane_bytes(), "bytes of a lane");
        assert!(lane < self.lanes, "lane {lane} of {}", self.lanes);
        let (word, place) = (lane / 64, lane % 64);
        for row in 0..self.rows {
            let bit = u64::from((bytes[row / 8] >> (row % 8)) & 1);
            let own = &mut self.bits[row * self.words + word];
            *own = (*own & !(1 << place)) | (bit << place);
        }
    }

    /// The rows of `lane` as bytes; see [`set_lane`](Self::set_lane). Bits past the last row are zero.
    ///
    /// # Panics
    /// If there is no such lane.
    #[must_use]
    pub fn lane(&self, lane: usize) -> Vec<u8> {
        assert!(lane < self.lanes, "lane {lane} of {}", self.lanes);
        let mut bytes = vec![0u8; self.lane_bytes()];
        for row in 0..self.rows {
            bytes[row / 8] |= (((self.bits[row * self.words + lane / 64] >> (lane % 64)) & 1) as u8) << (row % 8);
        }
        bytes
    }

    /// Builds the matrix from one byte row per lane, all lanes at once: `bytes` holds `lanes` times
    /// `rows.div_ceil(8)` bytes, each lane as in [`set_lane`](Self::set_lane). `None` if the length differs.
    #[must_use]
    pub fn from_lanes(rows: usize, lanes: usize, bytes: &[u8]) -> Option<Self> {
        let stride = rows.div_ceil(8);
        if stride.checked_mul(lanes) != Some(bytes.len()) {
            return None;
        }
        let mut out = Self::zero(rows, lanes);
        for first in (0..lanes).step_by(8) {
            for column in 0..stride {
                let square = (first..lanes.min(first + 8))
                    .enumerate()
                    .fold(0u64, |square, (k, lane)| square | (u64::from(bytes[lane * stride + column]) << (8 * k)));
                let turned = transpose8(square).to_le_bytes();
                for (row, byte) in (8 * column..rows.min(8 * column + 8)).zip(turned) {
                    out.bits[row * out.words + first / 64] |= u64::from(byte) << (first % 64);
                }
            }
        }
        Some(out)
    }

    /// All lanes as bytes, one after another: the inverse of [`from_lanes`](Self::from_lanes).
    #[must_use]
    pub fn to_lanes(&self) -> Vec<u8> {
        let stride = self.lane_bytes();
        let mut bytes = vec![0u8; stride * self.lanes];
        for first in (0..self.lanes).step_by(8) {
            for column in 0..stride {
                let square = (8 * column..self.rows.min(8 * column + 8)).enumerate().fold(0u64, |square, (k, row)| {
                    let byte = (self.bits[row * self.words + first / 64] >> (first % 64)) & 0xff;
                    square | (byte << (8 * k))
                });
                let turned = transpose8(square).to_le_bytes();
                for (lane, byte) in (first..self.lanes.min(first + 8)).zip(turned) {
                    bytes[lane * stride + column] = byte;
                }
            }
        }
        bytes
    }

    /// The exclusive or with `other`, or `None` if the shapes differ.
    #[must_use]
    pub fn xor(&self, other: &Self) -> Option<Self> {
        if (self.rows, self.lanes) != (other.rows, other.lanes) {
            return None;
        }
        let mut out = self.clone();
        for (a, b) in out.bits.iter_mut().zip(&other.bits) {
            *a ^= b;
        }
        Some(out)
    }

    pub(crate) fn words(&self) -> &[u64] {
        &self.bits
    }
}

impl Drop for BitRows {
    fn drop(&mut self) {
        self.bits.zeroize();
    }
}

impl fmt::Debug for BitRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BitRows {{ rows: {}, lanes: {}, .. }}", self.rows, self.lanes)
    }
}

/// The bits of the last word of a row that belong to lanes.
pub(crate) fn last_word(lanes: usize) -> u64 {
    match lanes % 64 {
        0 => u64::MAX,
        used => (1 << used) - 1,
    }
}

/// Copies `count` bits of `from`, from bit `start` on, to the start of `to`; the rest of `to` is cleared.
pub(crate) fn copy_bits(from: &[u64], start: usize, to: &mut [u64], count: usize) {
    let shift = start % 64;
    let from = &from[start / 64..];
    let used = count.div_ceil(64);
    if shift == 0 {
        to[..used].copy_from_slice(&from[..used]);
    } else {
        for (k, word) in to[..used].iter_mut().enumerate() {
            let high = from.get(k + 1).copied().unwrap_or(0);
            *word = (from[k] >> shift) | (high << (64 - shift));
        }
    }
    to[used..].fill(0);
    if used > 0 {
        to[used - 1] &= last_word(count);
    }
}

/// Copies `count` bits from the start of `from` into the bits of `to` from `start` on, which must be zero.
pub(crate) fn append_bits(from: &[u64], to: &mut [u64], start: usize, count: usize) {
    let shift = start % 64;
    let to = &mut to[start / 64..];
    for (k, word) in from[..count.div_ceil(64)].iter().enumerate() {
        to[k] |= word << shift;
        if shift != 0
            && let Some(next) = to.get_mut(k + 1)
        {
            *next |= word >> (64 - shift);
        }
    }
}

/// Appends a row of `lanes` bits to a message, as `lanes.div_ceil(8)` bytes.
pub(crate) fn write_row(out: &mut Vec<u8>, row: impl Iterator<Item = u64>, lanes: usize) {
    let end = out.len() + lanes.div_ceil(8);
    for word in row {
        out.extend_from_slice(&word.to_le_bytes());
    }
    out.truncate(end);
}

/// Reads a row of bits from its bytes; the row has `bytes.len().div_ceil(8)` words.
pub(crate) fn read_row(bytes: &[u8], row: &mut [u64]) {
    let (words, rest) = bytes.as_chunks::<8>();
    for (to, from) in row.iter_mut().zip(words) {
        *to = u64::from_le_bytes(*from);
    }
    if !rest.is_empty() {
        let mut last = [0u8; 8];
        last[..rest.len()].copy_from_slice(rest);
        row[words.len()] = u64::from_le_bytes(last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_matrix_prints_its_shape_only() {
        assert_eq!(format!("{:?}", BitRows::zero(3, 9)), "BitRows { rows: 3, lanes: 9, .. }");
    }

    #[test]
    fn numbers_are_read_as_they_were_set() {
        let mut rows = BitRows::zero(10, 70);
        rows.set_number(2, 8, 69, 0x1a5);
        assert_eq!(rows.number(2, 8, 69), 0xa5);
        assert_eq!(rows.number(2, 8, 68), 0);
    }

    proptest! {
        #[test]
        fn lanes_as_bytes_and_back(rows in 0usize..40, lanes in 0usize..200, seed in any::<u64>()) {
            let bytes: Vec<u8> = (0..rows.div_ceil(8) * lanes)
                .map(|k| (seed.wrapping_mul(2 * k as u64 + 1) >> 32) as u8)
                .enumerate()
                .map(|(k, byte)| match rows % 8 {
                    used if used != 0 && (k + 1).is_multiple_of(rows.div_ceil(8)) => byte & ((1 << used) - 1),
                    _ => byte,
                })
                .collect();
            let matrix = BitRows::from_lanes(rows, lanes, &bytes).unwrap();
            prop_assert_eq!(&matrix.to_lanes(), &bytes);
            let mut other = BitRows::zero(rows, lanes);
            for lane in 0..lanes {
                let own = &bytes[lane * rows.div_ceil(8)..][..rows.div_ceil(8)];
                other.set_lane(lane, own);
                prop_assert_eq!(&other.lane(lane), own);
            }
            prop_assert!(other == matrix);
            prop_assert!(BitRows::from_lanes(rows, lanes + 1, &bytes).is_none() || rows == 0);
        }

        #[test]
        fn bits_are_copied_from_and_to_any_place(start in 0usize..130, count in 0usize..130, seed in any::<u64>()) {
            let from: Vec<u64> = (0..5).map(|k| seed.wrapping_mul(2 * k + 3).rotate_left(17)).collect();
            let mut cut = vec![u64::MAX; 3];
            copy_bits(&from, start, &mut cut, count);
            let bit = |words: &[u64], place: usize| (words[place / 64] >> (place % 64)) & 1;
            for place in 0..192 {
                prop_assert_eq!(bit(&cut, place), if place < count { bit(&from, start + place) } else { 0 });
            }
            let mut back = vec![0u64; 5];
            append_bits(&cut, &mut back, start, count);
            for place in 0..320 {
                let inside = (start..start + count).contains(&place);
                prop_assert_eq!(bit(&back, place), if inside { bit(&from, place) } else { 0 });
            }
        }

        #[test]
        fn a_row_is_read_as_it_was_written(lanes in 0usize..300, seed in any::<u64>()) {
            let mut row: Vec<u64> = (0..lanes.div_ceil(64) as u64).map(|k| seed.wrapping_mul(2 * k + 1)).collect();
            if let Some(word) = row.last_mut() { *word &= last_word(lanes); }
            let mut bytes = Vec::new();
            write_row(&mut bytes, row.iter().copied(), lanes);
            prop_assert_eq!(bytes.len(), lanes.div_ceil(8));
            let mut back = vec![0; row.len()];
            read_row(&bytes, &mut back);
            prop_assert_eq!(back, row);
        }
    }
}
