//! What a peer may ask for: a token bucket in virtual time, one for each identity.

use std::time::Duration;

use wayleave_core::Instant;

/// Tokens that come back at a rate, up to a depth.
#[derive(Clone, Debug)]
pub struct Budget {
    /// The time for one token.
    interval: Duration,
    depth: u32,
    /// When the bucket would be full if nothing more is taken.
    full_at: Instant,
}

impl Budget {
    /// `per_second` tokens come back each second, and up to `depth` are there at once. Full at first.
    #[must_use]
    pub fn new(per_second: u32, depth: u32) -> Self {
        let interval = Duration::from_nanos(1_000_000_000 / u64::from(per_second.max(1)));
        Self { interval, depth, full_at: Instant(0) }
    }

    /// Takes a token, if there is one.
    pub fn take(&mut self, now: Instant) -> bool {
        let full_at = self.full_at.max(now) + self.interval;
        let is_there = full_at.since(now) <= self.interval * self.depth;
        if is_there {
            self.full_at = full_at;
        }
        is_there
    }

    /// Whether nothing is missing: a new one is the same.
    #[must_use]
    pub fn is_full(&self, now: Instant) -> bool {
        self.full_at <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_as_deep_as_the_bucket_passes_and_then_the_rate() {
        let mut budget = Budget::new(10, 5);
        let start = Instant(77);
        assert_eq!((0..20).filter(|_| budget.take(start)).count(), 5);
        let taken = (1..=1_000u64).filter(|ms| budget.take(start + Duration::from_millis(*ms))).count();
        assert_eq!(taken, 10);
    }
}
