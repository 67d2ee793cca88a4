//! The MACs of a group of packets on the general path, computed together.

use wayleave_packet::scion::{Hop, MacInput};

use super::super::config::Keys;
use crate::lanes::LANES;

/// Hops to verify: one of each packet, or two where it changes from one segment to another.
const HOPS: usize = 2 * LANES;

/// Inputs of MACs, replaced by the tags once computed: first those under the older key, then those under the newer one.
pub(super) struct MacBatch {
    blocks: [MacInput; 2 * HOPS],
    count: [usize; 2],
}

/// Where the tag of an input will be.
#[derive(Clone, Copy, Default)]
pub(super) struct MacIndex(u8);

impl MacBatch {
    pub(super) const EMPTY: Self = Self { blocks: [[0; 16]; 2 * HOPS], count: [0; 2] };

    /// Adds the input of `hop`, under the key of its segment. A group has no more hops than there is room for.
    #[inline(always)]
    pub(super) fn push(&mut self, hop: &Hop, keys: &Keys) -> MacIndex {
        let key = usize::from(keys.newer(hop.timestamp()));
        let index = (key * HOPS + self.count[key]) % (2 * HOPS);
        self.blocks[index] = hop.mac_input();
        self.count[key] += 1;
        MacIndex(index as u8)
    }

    /// Replaces all inputs by their tags, returns how many there were, and begins a new batch.
    pub(super) fn compute(&mut self, keys: &Keys) -> usize {
        let (older, newer) = self.blocks.split_at_mut(HOPS);
        if self.count[0] != 0 {
            keys.old.tag_blocks(&mut older[..self.count[0]]);
        }
        if self.count[1] != 0 {
            keys.new.tag_blocks(&mut newer[..self.count[1]]);
        }
        let [old, new] = std::mem::take(&mut self.count);
        old + new
    }

    /// The computed MAC, in the low 48 bits.
    #[inline(always)]
    pub(super) fn mac(&self, index: MacIndex) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.blocks[usize::from(index.0) % (2 * HOPS)];
        Hop::computed_mac(u64::from_ne_bytes([a, b, c, d, e, f, g, h]))
    }
}
