//! AES-128, CMAC and PMAC of many messages at once, on the fastest kernel of the machine: VAES-512, AES-NI or portable.
//!
//! A kernel's time depends on the lengths of messages alone, never on keys or octets: there is no table that a secret
//! indexes and no branch on one. No kernel allocates. All of them are tested against the same known answers and against
//! each other.

mod aes128;
mod cmac;
mod columns;
mod derived_cmac;
mod pmac;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code, reason = "vector instructions: functions for processor features that `CpuKernel` has checked")]
mod x86;

pub use aes128::{Aes128, cbc_pair_each, encrypt_each};
pub use cmac::{CmacKey, Parts, cmac_each};
pub use columns::{Columns, columns, rows};
pub use derived_cmac::{Row, tag_columns, tag_rows};
pub use pmac::PmacKey;

/// Messages that are computed in one call, and packets that a router processes in one call. A burst is long enough to fill
/// all lanes several times, and short enough that its headers stay in the nearest cache. More messages are taken burst by
/// burst.
pub const BURST: usize = 64;

/// Messages side by side: as many as the widest vectors have words of 32 bits.
pub const LANES: usize = 16;

/// One AES block.
pub type Block = [u8; 16];

/// The processor features that code is compiled for.
///
/// Only kernels that this machine can run exist as values, so that having one is the permission to run its code. The type
/// stands here and not with the forwarding code, which dispatches on it too, because ciphers are below that code and a
/// burst must be processed on one kernel throughout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CpuKernel(pub(super) Code);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Code {
    Portable,
    #[cfg(target_arch = "x86_64")]
    AesNi,
    #[cfg(target_arch = "x86_64")]
    Vaes512,
}

impl CpuKernel {
    /// The `aes` crate, block after block: constant time on every machine.
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

    /// Whether the processor has AVX-512 (F, BW and VL), BMI1 and BMI2, and code may be compiled for them.
    #[inline(always)]
    #[must_use]
    pub const fn has_avx512(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return matches!(self.0, Code::Vaes512);
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// The name in reports.
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

fn xor_into(a: &mut Block, b: &Block) {
    *a = (u128::from_ne_bytes(*a) ^ u128::from_ne_bytes(*b)).to_ne_bytes();
}

/// Twice `block` in GF(2^128) (RFC 4493 section 2.3), without a branch on its octets.
fn double(block: &Block) -> Block {
    let value = u128::from_be_bytes(*block);
    ((value << 1) ^ (0x87 * (value >> 127))).to_be_bytes()
}
