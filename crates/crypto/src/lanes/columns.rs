//! The first octets of sixteen packets by columns, so that a field of all of them is compared in a few instructions.

#[cfg(target_arch = "x86_64")]
use super::Code;
use super::{Block, CpuKernel};

/// Packets that lie beside each other.
pub const LANES: usize = 16;

/// Words of 32 bits, as they lie in memory: `[w][p]` is word `w` of packet `p`.
pub type Columns = [[u32; LANES]; LANES];

/// Reads the first 64 octets of at most [`LANES`] packets; zeros where a packet is shorter, and for packets that are
/// not there.
pub fn columns(kernel: CpuKernel, packets: &[&[u8]], out: &mut Columns) {
    match kernel.0 {
        #[cfg(target_arch = "x86_64")]
        Code::Vaes512 => super::x86::columns(kernel, packets, out),
        _ => {
            for place in 0..LANES {
                let packet = packets.get(place).copied().unwrap_or_default();
                let mut front = [0; 4 * LANES];
                let front = packet.first_chunk().unwrap_or_else(|| {
                    front[..packet.len()].copy_from_slice(packet);
                    &front
                });
                for (column, word) in out.iter_mut().zip(front.as_chunks().0) {
                    column[place] = u32::from_ne_bytes(*word);
                }
            }
        }
    }
}

/// The other way: `out[p]` is four blocks whose words are `[w][p]` of `columns`.
pub fn rows(kernel: CpuKernel, columns: &Columns, out: &mut [[Block; 4]; LANES]) {
    match kernel.0 {
        #[cfg(target_arch = "x86_64")]
        Code::Vaes512 => super::x86::rows(kernel, columns, out),
        _ => {
            for (place, row) in out.iter_mut().enumerate() {
                for (word, column) in row.as_flattened_mut().as_chunks_mut().0.iter_mut().zip(columns) {
                    *word = column[place].to_ne_bytes();
                }
            }
        }
    }
}

/// A bit for each that is zero, the first one lowest.
#[inline(always)]
#[must_use]
pub fn zeros(kernel: CpuKernel, lanes: &[u32; LANES]) -> u16 {
    match kernel.0 {
        #[cfg(target_arch = "x86_64")]
        Code::Vaes512 => super::x86::zeros(kernel, lanes),
        _ => lanes.iter().enumerate().fold(0, |bits, (lane, word)| bits | u16::from(*word == 0) << lane),
    }
}

/// Writes `word` to the lanes whose bits are set.
#[inline(always)]
pub fn fill(kernel: CpuKernel, bits: u16, word: u32, lanes: &mut [u32; LANES]) {
    match kernel.0 {
        #[cfg(target_arch = "x86_64")]
        Code::Vaes512 => super::x86::fill(kernel, bits, word, lanes),
        _ => {
            for (lane, out) in lanes.iter_mut().enumerate() {
                *out = if bits >> lane & 1 != 0 { word } else { *out };
            }
        }
    }
}

/// Blocks of two halves each, as they lie in memory: those in `first`, and those in `second` behind them.
#[inline(always)]
pub fn join(kernel: CpuKernel, first: &[u64; LANES], second: &[u64; LANES], out: &mut [Block; LANES]) {
    match kernel.0 {
        #[cfg(target_arch = "x86_64")]
        Code::Vaes512 => super::x86::join(kernel, first, second, out),
        _ => {
            for (block, (first, second)) in out.iter_mut().zip(first.iter().zip(second)) {
                let (upper, lower) = block.split_at_mut(8);
                upper.copy_from_slice(&first.to_ne_bytes());
                lower.copy_from_slice(&second.to_ne_bytes());
            }
        }
    }
}

/// The first halves of blocks, as they lie in memory.
#[inline(always)]
#[must_use]
pub fn first_halves(kernel: CpuKernel, blocks: &[Block; LANES]) -> [u64; LANES] {
    match kernel.0 {
        #[cfg(target_arch = "x86_64")]
        Code::Vaes512 => super::x86::first_halves(kernel, blocks),
        _ => blocks.map(|[a, b, c, d, e, f, g, h, ..]| u64::from_ne_bytes([a, b, c, d, e, f, g, h])),
    }
}

/// Plain code that is worth compiling for the instructions of each kernel: loops over columns.
pub trait Work {
    /// What comes of it.
    type Output;

    /// Does it. Only what is inlined here (`#[inline(always)]`, as this must be) is compiled for the kernel.
    fn run(self) -> Self::Output;
}

impl CpuKernel {
    /// Runs `work` with the instructions of this kernel.
    #[inline(always)]
    pub fn run<W: Work>(self, work: W) -> W::Output {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Code::Vaes512 => super::x86::run(self, work),
            _ => work.run(),
        }
    }
}
