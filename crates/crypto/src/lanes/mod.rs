//! AES-128, CMAC and PMAC over a burst of packets at once: VAES-512, AES-NI and portable kernels chosen at run time.
//!
//! All kernels take the same time for the same lengths, whatever the keys and octets, and none allocates.

mod aes128;
mod cmac;
mod columns;
mod pmac;
mod rows;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code, reason = "vector kernels: functions for processor features that `CpuKernel` has checked")]
mod x86;

pub use aes128::{Aes128, cbc_pair_each, encrypt_each};
pub use cmac::{BURST, CmacKey, Parts, cmac_each};
pub use columns::{Columns, LANES, Work, columns, fill, first_halves, join, rows, zeros};
pub use pmac::PmacKey;
pub use rows::{Row, tag_columns, tag_rows};

/// One AES block.
pub type Block = [u8; 16];

/// The code that computes; only those that this machine can run exist as values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CpuKernel(pub(super) Code);

/// What a [`CpuKernel`] runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Code {
    Portable,
    #[cfg(target_arch = "x86_64")]
    AesNi,
    #[cfg(target_arch = "x86_64")]
    Vaes512,
}

impl CpuKernel {
    /// The `aes` crate, block after block; constant time on every machine.
    pub const PORTABLE: Self = Self(Code::Portable);

    /// The fastest kernel of this machine.
    #[must_use]
    pub fn best() -> Self {
        Self::available().last().unwrap_or(Self::PORTABLE)
    }

    /// All kernels of this machine, the slowest first.
    pub fn available() -> impl Iterator<Item = Self> {
        #[cfg(target_arch = "x86_64")]
        let vector = [(x86::has_aes(), Code::AesNi), (x86::has_vaes512(), Code::Vaes512)];
        #[cfg(not(target_arch = "x86_64"))]
        let vector: [(bool, Code); 0] = [];
        let vector = vector.into_iter().filter(|(has, _)| *has).map(|(_, code)| Self(code));
        std::iter::once(Self::PORTABLE).chain(vector)
    }

    /// Its name, for reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self.0 {
            Code::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Code::AesNi => "aes-ni",
            #[cfg(target_arch = "x86_64")]
            Code::Vaes512 => "vaes-512",
        }
    }
}

/// Begins to bring the cache line of `place` nearer; a hint that changes nothing.
#[inline(always)]
pub fn prefetch<T>(place: &T) {
    #[cfg(target_arch = "x86_64")]
    x86::prefetch(std::ptr::from_ref(place).cast());
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

/// The same for octet `at` of `octets`, which need not be there.
#[inline(always)]
pub fn prefetch_octet(octets: &[u8], at: usize) {
    #[cfg(target_arch = "x86_64")]
    x86::prefetch(octets.as_ptr().wrapping_add(at));
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (octets, at);
}

/// `a ^= b`.
fn xor_into(a: &mut Block, b: &Block) {
    *a = (u128::from_ne_bytes(*a) ^ u128::from_ne_bytes(*b)).to_ne_bytes();
}

/// Twice `block` in GF(2^128) (RFC 4493 section 2.3), without a branch on its octets.
fn double(block: &Block) -> Block {
    let value = u128::from_be_bytes(*block);
    ((value << 1) ^ (0x87 * (value >> 127))).to_be_bytes()
}
