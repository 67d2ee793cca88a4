//! The jitter of timers (RFC 4271 section 10), from a seed given at construction.

use std::time::Duration;

/// SplitMix64: far better than jitter needs, and one word of state.
#[derive(Clone, Debug)]
pub(super) struct Jitter(u64);

impl Jitter {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// `span` times a factor uniform in 0.75 to 1.
    pub(super) fn apply(&mut self, span: Duration) -> Duration {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let fraction = ((z ^ (z >> 31)) >> 48) as u32;
        span * 3 / 4 + span / 4 * fraction / 0xffff
    }
}
