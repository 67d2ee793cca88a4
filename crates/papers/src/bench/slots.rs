//! Where the packets of a benchmark lie: slots of 2 KiB over 8 MiB.

use crate::frame::{BURST, Frame, Ingress};

/// Octets between the beginnings of two slots.
pub const SLOT: usize = 2_048;
/// Octets over which the slots lie.
pub const SPAN: usize = 8 << 20;
/// Packets of one pass.
pub const PACKETS: usize = SPAN / SLOT;

/// Octets of a cache line.
const LINE: usize = 64;
/// In how many different places packets begin, at most.
const TURNS: usize = 8;

/// Where in their slots packets begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Headroom {
    /// A cache line further than the packet before, over 512 octets in turn or as far as there is room.
    Staggered,
    /// At the beginning. All headers then fall into two of the 64 sets of the nearest cache, and into one in 32 of the next
    /// one's: most are gone from both before they are needed again.
    None,
}

/// As a driver's frames lie: within one page.
#[derive(Clone, Debug)]
#[repr(align(2048))]
struct Slot([u8; SLOT]);

/// Packets of one length, and whatever stands in front of each.
#[derive(Debug)]
pub struct Slots {
    arena: Vec<Slot>,
    length: usize,
    turns: usize,
}

impl Slots {
    /// All zeros; each has `length` octets, or as many as a slot has.
    #[must_use]
    pub fn new(length: usize, headroom: Headroom) -> Self {
        let length = length.min(SLOT);
        let room = ((SLOT - length) / LINE + 1).min(TURNS);
        // A divisor of a burst, which so begins where the one before did.
        let turns = if headroom == Headroom::None { 1 } else { 1 << room.ilog2() };
        Self { arena: vec![Slot([0; SLOT]); PACKETS], length, turns }
    }

    /// Octets of each.
    #[must_use]
    pub fn length(&self) -> usize {
        self.length
    }

    /// All of them, in the order of their places.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
        let (length, turns) = (self.length, self.turns);
        let begins = (0..turns).map(|turn| turn * LINE).cycle();
        self.arena.iter_mut().zip(begins).map(move |(slot, begin)| &mut slot.0[begin..begin + length])
    }

    /// What `make` makes of each, a burst at a time.
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

    /// As frames that came in by one way.
    #[inline(always)]
    pub fn frames(&mut self, ingress: Ingress) -> impl Iterator<Item = [Frame<'_>; BURST]> {
        self.bursts(move |octets| Frame { octets, ingress })
    }

    /// The first `octets` of each, one after another.
    #[must_use]
    pub fn fronts(&mut self, octets: usize) -> Vec<u8> {
        self.iter_mut().flat_map(|packet| packet[..octets].to_vec()).collect()
    }

    /// Puts back what [`fronts`](Self::fronts) returned.
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
