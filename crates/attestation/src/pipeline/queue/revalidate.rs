//! When routes are validated or signed again: before what was found or signed expires, or some time after a failed job.

use std::collections::BTreeSet;

/// Seconds until a job is tried again for routes on which it panicked. A route that makes our code panic does so each
/// time: it must not keep a core busy, and a later UPDATE for the prefix is worked on at once anyway.
pub(crate) const RETRY_FAILED: u64 = 600;
/// Seconds until routes are tried again whose time passed while a job worked on them.
const RETRY_LATE: u64 = 60;

/// Routes by the time at which they are due, in seconds since 1970. A route's owner keeps its time as well, since it is
/// needed to remove the route from here.
#[derive(Debug)]
pub(crate) struct RevalidationSchedule<K>(BTreeSet<(u64, K)>);

impl<K: Ord + Copy> RevalidationSchedule<K> {
    pub(crate) fn new() -> Self {
        Self(BTreeSet::new())
    }

    /// Moves a route from the time at which it was due to another.
    pub(crate) fn reschedule(&mut self, route: K, before: Option<u64>, due: Option<u64>) {
        before.map(|before| self.0.remove(&(before, route)));
        self.0.extend(due.map(|due| (due, route)));
    }

    /// Removes a route that was due at `before`.
    pub(crate) fn cancel(&mut self, route: K, before: Option<u64>) {
        self.reschedule(route, before, None);
    }

    /// Takes the first route that is due at `unix`.
    pub(crate) fn take_due(&mut self, unix: u64) -> Option<K> {
        let (due, route) = *self.0.first()?;
        (due <= unix).then(|| self.0.pop_first())?;
        Some(route)
    }

    pub(crate) fn next(&self) -> Option<u64> {
        self.0.first().map(|(due, _)| *due)
    }

    pub(crate) fn retain(&mut self, is_kept: impl Fn(&K) -> bool) {
        self.0.retain(|(_, route)| is_kept(route));
    }
}

/// `due`, or some time from now where `due` has passed: a job that failed leaves an older result in place, whose time is
/// over, and the route must not be tried in a loop.
pub(crate) fn not_in_the_past(due: u64, unix: u64) -> u64 {
    if due > unix { due } else { unix + RETRY_LATE }
}
