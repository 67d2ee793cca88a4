//! The number of correlations of each width that an evaluation takes, and how a refill is cut into chunks.

use std::ops::{Add, AddAssign, Mul};

use crate::circuit::Circuit;

/// Correlations of one chunk, unless the caller says otherwise; a message of setup is about 8 bytes for each.
pub const DEFAULT_CHUNK: usize = 16_384;

/// The vector length of a correlation: 1, 2, 4, ... or 128 bits. A shorter vector takes the next width up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Width(u8);

impl Width {
    /// All widths, the narrowest first.
    pub const ALL: [Self; 8] = [Self(0), Self(1), Self(2), Self(3), Self(4), Self(5), Self(6), Self(7)];

    /// The narrowest width for a vector of `bits` bits; `None` for 0 or more than 128.
    #[must_use]
    pub fn fitting(bits: usize) -> Option<Self> {
        Self::ALL.into_iter().find(|width| bits > 0 && bits <= width.bits())
    }

    /// The vector length.
    #[must_use]
    pub fn bits(self) -> usize {
        1 << self.0
    }

    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }

    /// Bits of memory of one correlation: the bit, the vector and their product.
    pub(crate) fn stored_bits(self) -> usize {
        1 + 2 * self.bits()
    }
}

/// One message of setup: `count` correlations of one width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    pub width: Width,
    /// A multiple of 128, at most [`Chunk::MAX`].
    pub count: usize,
}

impl Chunk {
    /// Our own limit: a message of 2 MiB.
    pub const MAX: usize = 1 << 18;
}

/// Correlations of each width.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand([usize; 8]);

impl Demand {
    /// What one evaluation of `circuit` over `lanes` lanes takes from the pool, exactly.
    #[must_use]
    pub fn of(circuit: &Circuit, lanes: usize) -> Self {
        let mut demand = Self::default();
        for width in circuit.products().filter_map(|product| Width::fitting(product.vector.len())) {
            demand.0[width.index()] = demand.0[width.index()].saturating_add(lanes);
        }
        demand
    }

    /// `count` correlations of one width.
    #[must_use]
    pub fn just(width: Width, count: usize) -> Self {
        let mut demand = Self::default();
        demand.0[width.index()] = count;
        demand
    }

    /// How many of `width`.
    #[must_use]
    pub fn count(&self, width: Width) -> usize {
        self.0[width.index()]
    }

    /// How many in all: each is one random oblivious transfer in each direction.
    #[must_use]
    pub fn total(&self) -> usize {
        self.0.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Bytes of memory that they take in a pool.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let bits = |width: Width| self.count(width).saturating_mul(width.stored_bits());
        Width::ALL.into_iter().fold(0usize, |sum, width| sum.saturating_add(bits(width))).div_ceil(8)
    }

    /// `self` minus `have`, not less than zero.
    #[must_use]
    pub fn beyond(&self, have: &Self) -> Self {
        Self(std::array::from_fn(|width| self.0[width].saturating_sub(have.0[width])))
    }

    /// Cuts the demand into chunks of at most `chunk` correlations (rounded up to a multiple of 128), the widest first.
    /// Two parties that start from equal demands get equal chunks.
    #[must_use]
    pub fn chunks(&self, chunk: usize) -> Vec<Chunk> {
        let chunk = chunk.clamp(1, Chunk::MAX).next_multiple_of(128);
        let mut chunks = Vec::new();
        for width in Width::ALL.into_iter().rev() {
            let mut left = self.count(width);
            while left > 0 {
                let count = left.min(chunk).next_multiple_of(128);
                chunks.push(Chunk { width, count });
                left = left.saturating_sub(count);
            }
        }
        chunks
    }
}

impl Add for Demand {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(std::array::from_fn(|width| self.0[width].saturating_add(other.0[width])))
    }
}

impl AddAssign for Demand {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Mul<usize> for Demand {
    type Output = Self;

    fn mul(self, times: usize) -> Self {
        Self(self.0.map(|count| count.saturating_mul(times)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_takes_the_next_width_up() {
        let bits = |bits| Width::fitting(bits).map(Width::bits);
        assert_eq!([0, 1, 2, 3, 17, 128, 129].map(bits), [None, Some(1), Some(2), Some(4), Some(32), Some(128), None]);
    }

    #[test]
    fn chunks_cover_the_demand() {
        let demand = Demand::just(Width::ALL[0], 1000) + Demand::just(Width::ALL[7], 300);
        let chunks: Vec<_> = demand.chunks(500).iter().map(|chunk| (chunk.width.bits(), chunk.count)).collect();
        assert_eq!(chunks, [(128, 384), (1, 512), (1, 512)]);
        assert_eq!((demand * 2).total(), 2600);
        assert_eq!((demand * 2).beyond(&demand), demand);
    }
}
