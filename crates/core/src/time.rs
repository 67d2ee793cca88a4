//! Time as an argument: what a driver read from its clocks when it called a machine.

use std::ops::{Add, Sub};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A point of monotonic time: nanoseconds since an origin that the driver chose, the same for all of one process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Instant(pub u64);

impl Instant {
    /// Time since `earlier`, or zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// So long before this, or the origin if that is later.
    #[must_use]
    pub fn before(self, span: Duration) -> Instant {
        Instant(self.0.saturating_sub(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, span: Duration) -> Instant {
        Instant(self.0.saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Instant> for Instant {
    type Output = Duration;

    fn sub(self, earlier: Instant) -> Duration {
        self.since(earlier)
    }
}

/// Wall-clock time: microseconds since 1970-01-01 00:00 UTC.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub struct UnixTime(pub u64);

impl UnixTime {
    /// Whole seconds since 1970-01-01 00:00 UTC.
    #[must_use]
    pub fn secs(self) -> u64 {
        self.0 / 1_000_000
    }
}

/// Both clocks as they were when a driver called a machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Now {
    /// Monotonic time, for timers.
    pub instant: Instant,
    /// Wall-clock time, for expiry and for people.
    pub unix: UnixTime,
}
