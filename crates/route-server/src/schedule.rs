//! The schedule by which members take up what batches bring.
//!
//! It follows from numbers that everybody knows, of objects and of candidates, and says nothing of what a member may open: rankings and
//! credit leave by it. Party 1 makes batches that leave members behind it by a bounded time only.

use std::time::Duration;

use wayleave_core::Instant;

/// Time in which each object is opened, and each candidate looked at, by the schedule. A machine that is slower than that ranks some
/// routes of a large batch as if they were not valid.
const OBJECT: Duration = Duration::from_micros(120);
const CANDIDATE: Duration = Duration::from_micros(2);
/// How much later than a tick after its batch a ranking leaves at most: half of what the parties wait by default.
const LATEST_RANKING: Duration = Duration::from_millis(500);

/// The time that so many objects and candidates take.
pub(crate) fn work(objects: usize, candidates: usize) -> Duration {
    let each = |time: Duration, number: usize| time * u32::try_from(number).unwrap_or(u32::MAX);
    each(OBJECT, objects).saturating_add(each(CANDIDATE, candidates))
}

/// The time in which a member takes up work of that kind if a quarter of it goes to what it is sent again.
pub(crate) fn with_spare(work: Duration) -> Duration {
    work.saturating_add(work / 3)
}

/// The work that it takes up so in a time.
pub(crate) fn without_spare(time: Duration) -> Duration {
    time * 3 / 4
}

/// When all that came would be opened if all of it could be.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Schedule(Instant);

impl Schedule {
    /// A batch brings what takes so long.
    pub(crate) fn came(&mut self, work: Duration, now: Instant) {
        self.0 = self.0.max(now) + work;
    }

    /// How long what has come still takes.
    pub(crate) fn left(self, now: Instant) -> Duration {
        self.0.since(now)
    }

    /// When the ranking of what has come leaves.
    pub(crate) fn ranking(self, now: Instant, tick: Duration) -> Instant {
        self.done(now, tick).min(now + tick + LATEST_RANKING)
    }

    /// When what has come is said to be taken up.
    pub(crate) fn done(self, now: Instant, tick: Duration) -> Instant {
        if tick.is_zero() { now } else { self.0.max(now + tick) }
    }
}
