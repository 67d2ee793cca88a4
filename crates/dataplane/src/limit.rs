//! A token bucket, which is given the time.

use wayleave_core::Instant;

/// Allows `rate` events a second, and at most `burst` at once.
#[derive(Clone, Debug)]
pub struct TokenBucket {
    /// Nanoseconds of one event.
    cost: u64,
    /// Nanoseconds of a full bucket.
    depth: u64,
    /// Nanoseconds of credit.
    credit: u64,
    last: Instant,
}

impl TokenBucket {
    /// A full bucket. A `rate` of zero allows only the first `burst` events.
    #[must_use]
    pub fn new(rate: u32, burst: u32) -> Self {
        let cost = 1_000_000_000u64.checked_div(rate.into()).unwrap_or(u64::MAX >> 32).max(1);
        let depth = cost.saturating_mul(burst.into());
        Self { cost, depth, credit: depth, last: Instant(0) }
    }

    /// Changes rate and burst. As many events may happen at once as before, if the new burst is no less.
    pub fn retune(&mut self, rate: u32, burst: u32) {
        let next = Self::new(rate, burst);
        let credit = u128::from(self.credit) * u128::from(next.cost) / u128::from(self.cost);
        self.credit = u64::try_from(credit).unwrap_or(u64::MAX).min(next.depth);
        (self.cost, self.depth) = (next.cost, next.depth);
    }

    /// Whether one more event may happen at `now`, without taking it.
    pub fn ready(&mut self, now: Instant) -> bool {
        self.credit = self.credit_at(now);
        self.last = self.last.max(now);
        self.credit >= self.cost
    }

    /// [`TokenBucket::ready`] of a bucket that cannot be changed.
    #[must_use]
    pub fn is_ready(&self, now: Instant) -> bool {
        self.credit_at(now) >= self.cost
    }

    fn credit_at(&self, now: Instant) -> u64 {
        self.credit.saturating_add(now.0.saturating_sub(self.last.0)).min(self.depth)
    }

    /// Takes one more event if it may happen at `now`; returns whether it did.
    pub fn take(&mut self, now: Instant) -> bool {
        self.take_all(1, now)
    }

    /// Takes `count` more events, or none of them; returns whether it did.
    pub fn take_all(&mut self, count: u32, now: Instant) -> bool {
        let cost = self.cost.saturating_mul(count.into());
        let pass = count == 0 || self.ready(now) && self.credit >= cost;
        if pass {
            self.credit -= cost;
        }
        pass
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_gives_its_burst_and_then_its_rate() {
        let mut bucket = TokenBucket::new(100, 5);
        let taken = (0..50).filter(|_| bucket.take(Instant(7))).count();
        assert_eq!(taken, 5);
        let taken = (1..=1_000).filter(|ms| bucket.take(Instant(7 + ms * 1_000_000))).count();
        assert_eq!(taken, 100);
        // Time that goes back gives nothing.
        assert!(!bucket.take(Instant(0)));
    }

    #[test]
    fn another_rate_keeps_the_level() {
        let mut bucket = TokenBucket::new(100, 5);
        let taken = |bucket: &mut TokenBucket, now| (0..50).filter(|_| bucket.take(Instant(now))).count();
        assert!(bucket.take_all(3, Instant(7)));
        bucket.retune(1_000, 20);
        assert_eq!(taken(&mut bucket, 7), 2);
        assert_eq!(taken(&mut bucket, 7 + 10_000_000), 10);
        assert_eq!(taken(&mut bucket, 1_000_000_000), 20);
        // A smaller burst holds less.
        let mut bucket = TokenBucket::new(100, 5);
        bucket.retune(100, 2);
        assert_eq!(taken(&mut bucket, 7), 2);
    }

    #[test]
    fn several_events_are_taken_all_or_none() {
        let mut bucket = TokenBucket::new(100, 5);
        assert!(!bucket.take_all(6, Instant(7)));
        assert!(bucket.take_all(5, Instant(7)));
        assert!(bucket.take_all(0, Instant(7)));
        assert!(!bucket.take(Instant(7)));
    }
}
