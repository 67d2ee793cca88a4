//! What the vector paths of all formats share: sixteen packets by columns, results as bit masks over lanes, code compiled
//! for the processor at hand, and prefetching.
//!
//! The kernels themselves ([`CpuKernel`]) are [`wayleave_crypto`]'s, since ciphers choose among them too, and a burst must
//! be processed on one kernel from its headers to its MACs.

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code, reason = "vector instructions: functions for processor features that `CpuKernel` has checked")]
mod x86;

use wayleave_crypto::lanes::Block;

use crate::frame::Frame;

pub use wayleave_crypto::lanes::{Columns, CpuKernel, LANES, columns, rows};

/// Plain code that is worth compiling for the vector instructions of each kernel: loops over columns.
///
/// The compiler turns such loops into vector instructions, but only into those that the function may use. So [`run_on`]
/// calls [`run`] inside a function that has the kernel's processor features.
///
/// [`run`]: VectorCode::run
/// [`run_on`]: VectorCode::run_on
pub trait VectorCode: Sized {
    type Output;

    /// The code. Only what is inlined into it is compiled for the kernel: it and all it calls on the fast path must be
    /// `#[inline(always)]`.
    fn run(self) -> Self::Output;

    /// Runs the code as compiled for `kernel`.
    #[inline(always)]
    fn run_on(self, kernel: CpuKernel) -> Self::Output {
        #[cfg(target_arch = "x86_64")]
        if kernel.has_avx512() {
            return x86::run(kernel, self);
        }
        let _ = kernel;
        self.run()
    }
}

/// The lanes that are zero, as a mask: the first lane is the lowest bit. Takes the same time whatever is in the lanes.
#[inline(always)]
#[must_use]
pub fn zeros(kernel: CpuKernel, lanes: &[u32; LANES]) -> u16 {
    #[cfg(target_arch = "x86_64")]
    if kernel.has_avx512() {
        return x86::zeros(kernel, lanes);
    }
    let _ = kernel;
    lanes.iter().enumerate().fold(0, |mask, (lane, word)| mask | u16::from(*word == 0) << lane)
}

/// Writes `word` to the lanes whose bits are set in `mask`.
#[inline(always)]
pub fn fill(kernel: CpuKernel, mask: u16, word: u32, lanes: &mut [u32; LANES]) {
    #[cfg(target_arch = "x86_64")]
    if kernel.has_avx512() {
        return x86::fill(kernel, mask, word, lanes);
    }
    let _ = kernel;
    for (lane, out) in lanes.iter_mut().enumerate() {
        *out = if mask >> lane & 1 != 0 { word } else { *out };
    }
}

/// Makes each block of two halves, as they lie in memory: one of `first` and then one of `second`.
#[inline(always)]
pub fn join(kernel: CpuKernel, first: &[u64; LANES], second: &[u64; LANES], out: &mut [Block; LANES]) {
    #[cfg(target_arch = "x86_64")]
    if kernel.has_avx512() {
        return x86::join(kernel, first, second, out);
    }
    let _ = kernel;
    for (block, (first, second)) in out.iter_mut().zip(first.iter().zip(second)) {
        let (upper, lower) = block.split_at_mut(8);
        upper.copy_from_slice(&first.to_ne_bytes());
        lower.copy_from_slice(&second.to_ne_bytes());
    }
}

/// The first half of each block, as it lies in memory.
#[inline(always)]
#[must_use]
pub fn first_halves(kernel: CpuKernel, blocks: &[Block; LANES]) -> [u64; LANES] {
    #[cfg(target_arch = "x86_64")]
    if kernel.has_avx512() {
        return x86::first_halves(kernel, blocks);
    }
    let _ = kernel;
    blocks.map(|[a, b, c, d, e, f, g, h, ..]| u64::from_ne_bytes([a, b, c, d, e, f, g, h]))
}

/// Begins to load the cache line of `value`: a hint, which pays where the value is read some tens of nanoseconds later.
#[inline(always)]
pub fn prefetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    x86::prefetch(std::ptr::from_ref(value).cast());
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}

/// The same for octet `at` of `octets`, which may lie beyond their end.
#[inline(always)]
pub fn prefetch_octet(octets: &[u8], at: usize) {
    #[cfg(target_arch = "x86_64")]
    x86::prefetch(octets.as_ptr().wrapping_add(at));
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (octets, at);
}

/// Begins to load the first `LINES` cache lines of each packet, so that they arrive side by side while others are processed.
#[inline(always)]
pub fn prefetch_headers<const LINES: usize>(frames: &[Frame<'_>]) {
    for frame in frames {
        for line in 0..LINES {
            prefetch_octet(frame.octets, 64 * line);
        }
    }
}

#[cfg(test)]
mod tests;
