//! The hash of tables whose keys nobody chooses.

use std::hash::Hasher;

/// A multiplicative hash. It need not resist chosen keys here: entries come from the key server, and look-ups from packets
/// whose MAC was right.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct MixHasher(u64);

impl Hasher for MixHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, octets: &[u8]) {
        for octet in octets {
            self.write_u128(u128::from(*octet));
        }
    }

    fn write_u8(&mut self, number: u8) {
        self.write_u128(number.into());
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u128(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        self.write_u128(number.into());
    }

    fn write_isize(&mut self, number: isize) {
        self.write_u128(number as u128);
    }

    fn write_u128(&mut self, number: u128) {
        let folded = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (number >> 64) as u64;
        self.0 = (self.0 ^ folded).wrapping_mul(0xd6e8_feb8_6659_fd93);
        self.0 ^= self.0 >> 32;
    }
}
