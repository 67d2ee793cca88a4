//! The limit on what a router answers: SCMP messages, ICMP errors.
//!
//! Whoever sends packets that are answered uses up the router's answers. So half of the rate is divided evenly among the
//! places where packets come in (interfaces, links, hosts), and the other half is for whoever comes first: a flood at one
//! place gets its own part and the shared half, and leaves each other place its part. The limit is taken before any work is
//! done for an answer, and what is taken is not given back if there is nothing to answer: work is bounded too.

use wayleave_core::Instant;

/// Answers a second, and at once, of all places together and of each.
#[derive(Clone, Debug)]
pub struct AnswerLimit {
    shared: Allowance,
    own: Box<[Allowance]>,
}

/// A token bucket whose rate need not be a whole number of answers a second: a place's part may be less than one.
#[derive(Clone, Debug)]
struct Allowance {
    /// Nanoseconds of one answer.
    cost: u64,
    /// Nanoseconds of a full bucket.
    depth: u64,
    /// Nanoseconds of credit.
    credit: u64,
    last: Instant,
}

impl Allowance {
    const NONE: Self = Self { cost: 1, depth: 0, credit: 0, last: Instant(0) };

    /// A full one, of `per_second / parts` answers a second and `burst / parts` at once, but one at least.
    fn new(per_second: u32, burst: u32, parts: u64) -> Self {
        let Some(cost) = parts.saturating_mul(1_000_000_000).checked_div(per_second.into()) else {
            return Self::NONE;
        };
        let cost = cost.max(1);
        let depth = cost.saturating_mul((u64::from(burst) / parts).max(1));
        Self { cost, depth, credit: depth, last: Instant(0) }
    }

    fn take(&mut self, now: Instant) -> bool {
        let credit = self.credit.saturating_add(now.0.saturating_sub(self.last.0)).min(self.depth);
        self.last = self.last.max(now);
        let has_one = credit >= self.cost;
        self.credit = if has_one { credit - self.cost } else { credit };
        has_one
    }

    /// This one as `next`, with as many answers left as before if there is room for them.
    fn retuned(&self, next: Self) -> Self {
        let credit = u128::from(self.credit) * u128::from(next.cost) / u128::from(self.cost);
        Self { credit: u64::try_from(credit).unwrap_or(u64::MAX).min(next.depth), last: self.last, ..next }
    }
}

impl AnswerLimit {
    /// `per_second` answers to packets from all of `places`, which are one at least, and `burst` at once. Where a part of the
    /// burst is less than one answer it is one, so that all places together may get up to one each beyond it. A rate of zero
    /// allows none.
    #[must_use]
    pub fn new(per_second: u32, burst: u32, places: usize) -> Self {
        let places = places.max(1);
        if places == 1 {
            return Self { shared: Allowance::NONE, own: [Allowance::new(per_second, burst, 1)].into() };
        }
        let own = Allowance::new(per_second, burst, 2 * places as u64);
        Self { shared: Allowance::new(per_second, burst, 2), own: vec![own; places].into() }
    }

    /// Other numbers, without credit for what is used up. Places keep what they have left by their numbers.
    pub fn retune(&mut self, per_second: u32, burst: u32, places: usize) {
        let mut next = Self::new(per_second, burst, places);
        next.shared = self.shared.retuned(next.shared);
        for (next, before) in next.own.iter_mut().zip(&self.own) {
            *next = before.retuned(next.clone());
        }
        *self = next;
    }

    /// Takes one answer to a packet that came in at `place`: of the place's own part, or else of the shared half. Returns
    /// whether there was one.
    pub fn take(&mut self, place: usize, now: Instant) -> bool {
        self.own.get_mut(place).is_some_and(|own| own.take(now)) || self.shared.take(now)
    }
}

#[cfg(test)]
mod tests {
    //! FWD, limit of answers: what one place leaves the others: its part and the shared half; all together have the
    //! whole rate.

    use super::*;

    /// Answers to a flood at `place` within a second from `begin` on, one packet each microsecond.
    fn flood(limit: &mut AnswerLimit, place: usize, begin: u64) -> usize {
        (0..1_000_000).filter(|micros| limit.take(place, Instant(begin + micros * 1_000))).count()
    }

    #[test]
    fn one_place_gets_its_part_and_the_shared_half_and_all_together_the_whole() {
        let second = 1_000_000_000;
        let mut alone = AnswerLimit::new(100, 10, 1);
        assert_eq!(flood(&mut alone, 0, second), 10 + 99);
        // Of ten places each has 5 a second of its own, and all have 50 beside them.
        let mut ten = AnswerLimit::new(100, 10, 10);
        assert_eq!(flood(&mut ten, 3, second), 1 + 4 + 5 + 49);
        // The flood at one place has left the others their parts.
        assert_eq!((0..10).map(|place| usize::from(ten.take(place, Instant(2 * second - 1)))).sum::<usize>(), 9);
        let mut together = AnswerLimit::new(100, 10, 10);
        let steps = (0..10_000_000).filter(|step| together.take(step % 10, Instant(second + *step as u64 * 100)));
        assert_eq!(steps.count(), 10 + 10 * 4 + 5 + 49);
    }

    #[test]
    fn parts_below_one_a_second_come_and_a_rate_of_zero_gives_nothing() {
        let mut slow = AnswerLimit::new(1, 1, 50);
        assert!(slow.take(7, Instant(1)));
        assert!(slow.take(7, Instant(1)), "the shared one");
        assert!(!slow.take(7, Instant(1)));
        assert!(!slow.take(7, Instant(1_999_999_999)));
        assert!(slow.take(7, Instant(2_000_000_001)), "a shared one every two seconds");
        assert!(slow.take(7, Instant(100_000_000_001)), "and one of its own every hundred");
        let mut none = AnswerLimit::new(0, 0, 3);
        assert!((0..1_000).all(|n| !none.take(n % 4, Instant(n as u64 * 1_000_000_000))));
    }

    #[test]
    fn other_numbers_give_no_credit() {
        let mut limit = AnswerLimit::new(100, 40, 2);
        assert_eq!((0..100).filter(|_| limit.take(0, Instant(7))).count(), 30);
        limit.retune(1_000, 400, 2);
        assert_eq!((0..1_000).filter(|_| limit.take(0, Instant(7))).count(), 0);
        assert_eq!((0..1_000).filter(|_| limit.take(1, Instant(7))).count(), 10);
        // A new place begins with its part.
        limit.retune(1_000, 400, 3);
        assert_eq!((0..1_000).filter(|_| limit.take(2, Instant(7))).count(), 66);
    }
}
