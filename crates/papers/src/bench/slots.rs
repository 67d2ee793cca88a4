//! Memory for the packets of a benchmark: slots of 2 KiB over 8 MiB, which is more than the nearer caches hold.

use wayleave_dataplane::frame::{BURST, Frame, Ingress};

/// Octets of a slot.
pub const SLOT: usize = 2_048;
/// Octets of all slots.
pub const SPAN: usize = 8 << 20;
/// Packets of one pass.
pub const PACKETS: usize = SPAN / SLOT;

/// Octets of a cache line.
const LINE: usize = 64;
/// Different offsets at which packets begin, at most.
const TURNS: usize = 8;

/// Offset of the packets in their slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Headroom {
    /// Each packet begins one cache line further than the one before, over 512 octets in turn or as far as there is room.
    Staggered,
    /// All packets begin with their slots. All headers then fall into two of the 64 sets of the L1 cache and into one in 32
    /// of the L2 cache, and most are evicted from both before they are used again.
    None,
}

/// Aligned like a driver's frames, each within one page.
#[derive(Clone, Debug)]
#[repr(align(2048))]
struct Slot([u8; SLOT]);

/// Packets of one length in their slots.
#[derive(Debug)]
pub struct Slots {
    arena: Vec<Slot>,
    length: usize,
    turns: usize,
}

impl Slots {
    /// Packets of zeros, of `length` octets or as many as a slot has.
    #[must_use]
    pub fn new(length: usize, headroom: Headroom) -> Self {
        let length = length.min(SLOT);
        let offsets = ((SLOT - length) / LINE + 1).min(TURNS);
        // A power of two divides the burst size, so that every burst begins at the same offset.
        let turns = if headroom == Headroom::None { 1 } else { 1 << offsets.ilog2() };
        Self { arena: vec![Slot([0; SLOT]); PACKETS], length, turns }
    }

    /// Octets of each packet.
    #[must_use]
    pub fn length(&self) -> usize {
        self.length
    }

    /// All packets in the order of their slots.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
        let (length, turns) = (self.length, self.turns);
        let begins = (0..turns).map(|turn| turn * LINE).cycle();
        self.arena.iter_mut().zip(begins).map(move |(slot, begin)| &mut slot.0[begin..begin + length])
    }

    /// Applies `make` to each packet and returns the results in bursts.
    #[inline(always)]
    pub fn bursts<'a, T>(&'a mut self, mut make: impl FnMut(&'a mut [u8]) -> T) -> impl Iterator<Item = [T; BURST]> {
        let (length, turns) = (self.length, self.turns);
        self.arena.chunks_exact_mut(BURST).map(move |burst| {
            let mut slots = burst.iter_mut();
            let mut begin = 0;
            std::array::from_fn(|_| {
                let slot = slots.next().expect("as many slots as packets");
                let one = make(&mut slot.0[begin..begin + length]);
                begin = if begin + LINE == turns * LINE { 0 } else { begin + LINE };
                one
            })
        })
    }

    /// The packets as frames with one ingress, in bursts.
    #[inline(always)]
    pub fn frames(&mut self, ingress: Ingress) -> impl Iterator<Item = [Frame<'_>; BURST]> {
        self.bursts(move |octets| Frame { octets, ingress })
    }

    /// Copies of the first `octets` of each packet, one after another.
    #[must_use]
    pub fn fronts(&mut self, octets: usize) -> Vec<u8> {
        self.iter_mut().flat_map(|packet| packet[..octets].to_vec()).collect()
    }

    /// Restores what [`fronts`](Self::fronts) copied.
    pub fn put_back(&mut self, fronts: &[u8], octets: usize) {
        for (packet, front) in self.iter_mut().zip(fronts.chunks_exact(octets)) {
            packet[..octets].copy_from_slice(front);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_packet_lies_in_its_slot_and_both_ways_give_the_same() {
        for headroom in [Headroom::Staggered, Headroom::None] {
            for length in [0, 64, 1_518, 1_600, 1_601, 1_985, 2_048] {
                let mut slots = Slots::new(length, headroom);
                let base = slots.arena.as_ptr() as usize;
                let places: Vec<usize> = slots.iter_mut().map(|packet| packet.as_ptr() as usize - base).collect();
                assert_eq!(places.len(), PACKETS);
                for (number, place) in places.iter().enumerate() {
                    assert!(place / SLOT == number && place % SLOT + length <= SLOT, "{length} {headroom:?}");
                }
                let other: Vec<usize> = slots.bursts(|packet| packet.as_ptr() as usize - base).flatten().collect();
                assert_eq!(places, other, "{length} {headroom:?}");
            }
        }
    }
}
