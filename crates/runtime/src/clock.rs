//! The clock of a process: the only place where time is read for a machine.

use std::time::Duration;

use wayleave_core::{Instant, Now, UnixTime};

/// Both clocks of a process. The monotonic origin is the moment of [`Clock::start`].
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: tokio::time::Instant,
}

impl Clock {
    /// Starts the monotonic clock. Call once per process, so that all machines share one origin.
    #[must_use]
    pub fn start() -> Self {
        Self { origin: tokio::time::Instant::now() }
    }

    /// Reads both clocks.
    #[must_use]
    pub fn now(&self) -> Now {
        let since = u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Now { instant: Instant(since), unix: unix_now() }
    }

    /// The runtime's own instant for a machine's deadline.
    #[must_use]
    pub fn at(&self, instant: Instant) -> tokio::time::Instant {
        self.origin + Duration::from_nanos(instant.0)
    }
}

/// Wall-clock time; zero if the machine's clock is before 1970.
#[must_use]
#[expect(clippy::disallowed_types, reason = "the driver is where the wall clock is read")]
pub fn unix_now() -> UnixTime {
    use std::time::SystemTime;
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    UnixTime(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}

/// A time in seconds since 1970, as people read it.
#[must_use]
pub fn utc(secs: u64) -> String {
    let secs = i64::try_from(secs).unwrap_or(i64::MAX);
    match time::OffsetDateTime::from_unix_timestamp(secs) {
        Ok(at) => {
            let (hour, minute, second) = at.to_hms();
            format!("{} {hour:02}:{minute:02}:{second:02} UTC", at.date())
        }
        Err(_) => format!("second {secs} since 1970"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_readable() {
        assert_eq!(utc(1_700_000_000), "2023-11-14 22:13:20 UTC");
        assert_eq!(utc(u64::MAX), format!("second {} since 1970", i64::MAX));
    }

    #[test]
    fn a_deadline_of_now_is_not_in_the_future() {
        let clock = Clock::start();
        let now = clock.now();
        assert!(clock.at(now.instant) <= tokio::time::Instant::now());
        assert!(now.unix.secs() > 1_600_000_000);
    }
}
