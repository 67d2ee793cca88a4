//! The size of a group of columns: what the extension pays in streams to send less.

use crate::base_ot::BASE_OTS;

/// Columns of the extension that share one piece of a chunk's message: 1, 2, 4 or 8, the `k` of SoftSpokenOT.
///
/// A transfer costs `128 / k - 1` bits of message and `(128 / k) 2^k` bits of streams, so that 1 and 2 cost the receiver the same
/// streams. Both parties must use the same; the greeting says which.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupBits(u8);

impl GroupBits {
    /// All of them, the smallest first.
    pub const ALL: [Self; 4] = [Self(1), Self(2), Self(4), Self(8)];

    /// Half the bytes of one column a group, for about the same processor time.
    pub const STANDARD: Self = Self(2);

    /// Columns of a group.
    #[must_use]
    pub fn get(self) -> usize {
        self.0.into()
    }

    /// Groups of `bits` columns, if that is 1, 2, 4 or 8.
    #[must_use]
    pub fn new(bits: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|group| group.0 == bits)
    }

    pub(crate) fn octet(self) -> u8 {
        self.0
    }

    /// Groups of all columns together.
    pub(crate) fn groups(self) -> usize {
        BASE_OTS / self.get()
    }

    /// Bytes that each party sends for a chunk of `count` correlations.
    #[must_use]
    pub fn chunk_bytes(self, count: usize) -> usize {
        super::HEADER_BYTES + super::column_bytes(count) * (self.groups() - 1) + super::check::PROOF_BYTES
    }

    /// Bytes that each party sends to puncture the other's trees, and for their check, between the base OTs and the first chunk.
    #[must_use]
    pub fn tree_bytes(self) -> usize {
        self.groups() * self.tree_bytes_each()
    }

    /// The part of one tree.
    pub(crate) fn tree_bytes_each(self) -> usize {
        (self.get() - 1) * super::tree::LEVEL_BYTES + super::tree::CHECK_BYTES
    }
}
