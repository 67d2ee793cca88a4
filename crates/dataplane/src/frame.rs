//! A packet in a burst, where it came from, and what becomes of it.

use wayleave_crypto::lanes::prefetch_octet;

use crate::counters::Reason;

/// Packets processed at a time.
pub const BURST: usize = 64;

/// Where a packet came in. The driver knows it from the socket or queue, never from the packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Ingress {
    /// From the neighbour behind this interface of ours; never zero.
    External(u16),
    /// From another router of this AS, by its place in the configuration.
    Sibling(u16),
    /// From a host of this AS.
    Internal,
}

/// A packet in place.
#[derive(Debug)]
pub struct Frame<'a> {
    /// The packet's octets, without what carried it here. An answer may make them fewer, never more.
    pub octets: &'a mut [u8],
    /// Where it came in.
    pub ingress: Ingress,
}

/// Begins to bring the first `LINES` cache lines of each of `frames` nearer, for they are read soon.
#[inline(always)]
pub fn fetch<const LINES: usize>(frames: &[Frame<'_>]) {
    for frame in frames {
        for line in 0..LINES {
            prefetch_octet(frame.octets, 64 * line);
        }
    }
}

/// What becomes of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// Nothing more.
    Drop(Reason),
    /// Out of this interface of ours, to the neighbour.
    Forward(u16),
    /// To another router of this AS, by its place in the configuration, which owns the way out.
    Sibling(u16),
    /// To the host of this AS that the header names.
    Deliver,
    /// To this router's own control traffic (BFD).
    Control,
    /// The octets are now an answer: back to where the packet came from. The reason says what for.
    Answer(Reason),
}

impl Default for Action {
    fn default() -> Self {
        Self::Drop(Reason::Unprocessed)
    }
}
