//! Sixteen packets by columns: the layout in which one instruction works on a field of all of them.
//!
//! [`tag_columns`](super::tag_columns) takes messages in this layout, and SHA-256's lanes leave their words in it; forwarding
//! compares headers in it. Both directions are one transposition, so they stand here together.

#[cfg(target_arch = "x86_64")]
use super::Code;
use super::{Block, CpuKernel, LANES};

/// Words of 32 bits, as they lie in memory: `[w][p]` is word `w` of packet `p`.
pub type Columns = [[u32; LANES]; LANES];

/// Reads the first 64 octets of at most [`LANES`] packets. A shorter packet is followed by zeros, and a missing one is all
/// zeros.
pub fn columns(kernel: CpuKernel, packets: &[&[u8]], out: &mut Columns) {
    match kernel.0 {
        #[cfg(target_arch = "x86_64")]
        Code::Vaes512 => super::x86::columns(kernel, packets, out),
        _ => {
            for lane in 0..LANES {
                let packet = packets.get(lane).copied().unwrap_or_default();
                let mut front = [0; 4 * LANES];
                let front = packet.first_chunk().unwrap_or_else(|| {
                    front[..packet.len()].copy_from_slice(packet);
                    &front
                });
                for (column, word) in out.iter_mut().zip(front.as_chunks().0) {
                    column[lane] = u32::from_ne_bytes(*word);
                }
            }
        }
    }
}

/// The inverse: `out[p]` has the words `[w][p]` of `columns`, as four blocks.
pub fn rows(kernel: CpuKernel, columns: &Columns, out: &mut [[Block; 4]; LANES]) {
    match kernel.0 {
        #[cfg(target_arch = "x86_64")]
        Code::Vaes512 => super::x86::rows(kernel, columns, out),
        _ => {
            for (lane, row) in out.iter_mut().enumerate() {
                for (word, column) in row.as_flattened_mut().as_chunks_mut().0.iter_mut().zip(columns) {
                    *word = column[lane].to_ne_bytes();
                }
            }
        }
    }
}
