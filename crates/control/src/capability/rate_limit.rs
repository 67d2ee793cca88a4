//! Response rate limiting: what one source prefix is answered by UDP without a cookie.
//!
//! As ordinary name servers do: the answers to a prefix (IPv4 /24, IPv6 /56) share a token bucket. Of those beyond it every second
//! one is truncated, so that whoever really asks goes on by TCP; the others are dropped. Who shows a good cookie, or asks by TCP,
//! receives at the address that it claims, and is not limited.

use std::hash::{DefaultHasher, Hasher};
use std::net::IpAddr;
use std::time::Duration;

use wayleave_core::Instant;
use wayleave_crypto::secret::Key128;

/// Prefixes that are told apart, at most: 1.5 MB.
const ENTRIES: usize = 1 << 16;
/// Entries in which the bucket of one prefix may lie.
const WAYS: usize = 4;
/// Seconds of answers that a prefix may have at once.
const BURST_SECS: u32 = 2;

/// What becomes of an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Within the limit.
    Answer,
    /// Over the limit: an answer without its records, so that TCP follows.
    Truncate,
    /// Over the limit: silence.
    Drop,
}

/// The bucket of a prefix, in virtual time.
#[derive(Clone, Copy)]
struct Bucket {
    /// Zero for an entry that was never used.
    prefix: u64,
    /// When it would be full if nothing more was answered.
    full_at: Instant,
    /// Whether the last answer over the limit was dropped.
    was_dropped: bool,
}

const UNUSED: Bucket = Bucket { prefix: 0, full_at: Instant(0), was_dropped: false };

/// The buckets of all prefixes.
pub struct RateLimit {
    /// The time for one answer, and for a burst; `None` without a limit.
    interval: Option<(Duration, Duration)>,
    /// Keeps the entries of two prefixes from being made equal on purpose.
    key: Key128,
    buckets: Vec<Bucket>,
}

impl RateLimit {
    /// At most `per_second` answers a second to a prefix; no limit if it is zero.
    #[must_use]
    pub fn new(key: Key128, per_second: u32) -> Self {
        let mut limit = Self { interval: None, key, buckets: Vec::new() };
        limit.set(per_second);
        limit
    }

    /// Another limit from now on; what was answered already counts.
    pub fn set(&mut self, per_second: u32) {
        self.interval = (per_second > 0).then(|| {
            let interval = Duration::from_nanos(1_000_000_000 / u64::from(per_second));
            (interval, interval * per_second.saturating_mul(BURST_SECS))
        });
        match self.interval {
            Some(_) if self.buckets.is_empty() => self.buckets = vec![UNUSED; ENTRIES],
            Some(_) => {}
            None => self.buckets = Vec::new(),
        }
    }

    /// What becomes of an answer to `address`, which counts against its prefix.
    pub fn take(&mut self, address: IpAddr, now: Instant) -> Verdict {
        let Some((interval, burst)) = self.interval else { return Verdict::Answer };
        let prefix = prefix(address);
        let bucket = self.bucket(prefix);
        let full_at = bucket.full_at.max(now) + interval;
        if full_at.since(now) <= burst {
            (bucket.full_at, bucket.was_dropped) = (full_at, false);
            return Verdict::Answer;
        }
        bucket.was_dropped = !bucket.was_dropped;
        if bucket.was_dropped { Verdict::Drop } else { Verdict::Truncate }
    }

    /// The bucket of a prefix. A prefix without one takes over the fullest bucket that it may have, as full as that is: one that
    /// is full says nothing, and where a flood of invented sources leaves none full, a new source does not bring new tokens.
    fn bucket(&mut self, prefix: u64) -> &mut Bucket {
        let mut hasher = DefaultHasher::new();
        hasher.write(self.key.expose());
        hasher.write_u64(prefix);
        let first = hasher.finish() as usize % (ENTRIES / WAYS) * WAYS;
        let ways = &mut self.buckets[first..first + WAYS];
        let own = ways.iter().position(|bucket| bucket.prefix == prefix);
        let fullest = || ways.iter().enumerate().min_by_key(|(_, bucket)| bucket.full_at).map_or(0, |(at, _)| at);
        let at = own.unwrap_or_else(fullest);
        ways[at].prefix = prefix;
        &mut ways[at]
    }
}

/// The prefix of an address, and its family: never zero.
fn prefix(address: IpAddr) -> u64 {
    match address {
        IpAddr::V4(v4) => 4 << 56 | u64::from(v4.to_bits() >> 8),
        IpAddr::V6(v6) => 6 << 56 | (v6.to_bits() >> 72) as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn limit(per_second: u32) -> RateLimit {
        RateLimit::new(Key128::new([1; 16]), per_second)
    }

    fn count(limit: &mut RateLimit, from: &str, times: usize, now: Instant) -> [usize; 3] {
        let mut counts = [0; 3];
        for _ in 0..times {
            counts[match limit.take(address(from), now) {
                Verdict::Answer => 0,
                Verdict::Truncate => 1,
                Verdict::Drop => 2,
            }] += 1;
        }
        counts
    }

    #[test]
    fn a_prefix_has_a_burst_and_then_its_rate_and_every_second_answer_beyond_is_truncated() {
        let mut limit = limit(10);
        let start = Instant(77);
        assert_eq!(count(&mut limit, "192.0.2.1", 40, start), [20, 10, 10]);
        assert_eq!(count(&mut limit, "192.0.2.254", 2, start), [0, 1, 1], "the same /24");
        assert_eq!(count(&mut limit, "192.0.3.1", 40, start), [20, 10, 10], "another");
        assert_eq!(count(&mut limit, "192.0.2.1", 40, start + Duration::from_secs(1)), [10, 15, 15]);
        assert_eq!(count(&mut limit, "2001:db8::1", 40, start), [20, 10, 10]);
        assert_eq!(count(&mut limit, "2001:db8:0:ff::1", 2, start), [0, 1, 1], "the same /56");
        assert_eq!(count(&mut limit, "2001:db8:0:100::1", 40, start), [20, 10, 10], "another");
    }

    #[test]
    fn without_a_limit_everything_is_answered_and_a_limit_can_change() {
        let mut limit = limit(0);
        assert_eq!(count(&mut limit, "192.0.2.1", 1_000, Instant(0)), [1_000, 0, 0]);
        limit.set(1);
        assert_eq!(count(&mut limit, "192.0.2.1", 1_000, Instant(0))[0], 2);
        limit.set(0);
        assert_eq!(count(&mut limit, "192.0.2.1", 1_000, Instant(0)), [1_000, 0, 0]);
        limit.set(u32::MAX);
        assert_eq!(count(&mut limit, "192.0.2.1", 1_000, Instant(0)), [1_000, 0, 0]);
    }

    #[test]
    fn a_flood_of_invented_sources_stays_within_the_table_and_idle_prefixes_have_their_tokens() {
        let mut limit = limit(1);
        let mut answered = 0;
        for number in 0..4 * ENTRIES as u32 {
            for _ in 0..4 {
                let from = IpAddr::V4((number << 8).into());
                answered += usize::from(limit.take(from, Instant(0)) == Verdict::Answer);
            }
        }
        // A burst for each bucket of the table, and no more however many sources there are.
        assert!((ENTRIES..=2 * ENTRIES).contains(&answered), "{answered}");
        assert_eq!(limit.buckets.len(), ENTRIES);
        let later = Instant(0) + Duration::from_secs(2);
        assert_eq!(count(&mut limit, "2001:db8::1", 4, later), [2, 1, 1]);
    }
}
