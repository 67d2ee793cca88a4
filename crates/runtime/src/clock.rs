//! The clock of a process: the only place where time is read for a machine.

use std::time::Duration;

use wayleave_core::{Instant, Now, UnixTime};

use crate::faults;

/// The runtime's timers stand still while the machine sleeps: whoever waits for a deadline looks at the clock again after this long.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// Both clocks of a process. The monotonic one counts the time that the machine sleeps (`CLOCK_BOOTTIME`), as all others do who wait
/// for it; its origin is the moment of [`Clock::start`].
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Duration,
}

impl Clock {
    /// Starts the monotonic clock. Call once per process, so that all machines share one origin.
    #[must_use]
    pub fn start() -> Self {
        Self { origin: since_boot() }
    }

    /// Reads both clocks.
    #[must_use]
    pub fn now(&self) -> Now {
        let since = since_boot().saturating_sub(self.origin).as_nanos();
        Now { instant: Instant(u64::try_from(since).unwrap_or(u64::MAX)), unix: unix_now() }
    }

    /// The runtime's own instant until which to wait for a machine's deadline: at most a second ahead, after which the clock is to be
    /// looked at again.
    #[must_use]
    pub fn at(&self, instant: Instant) -> tokio::time::Instant {
        tokio::time::Instant::now() + instant.since(self.now().instant).min(MAX_WAIT)
    }
}

/// Since the machine started, asleep or not.
fn since_boot() -> Duration {
    let since = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(u64::try_from(since.tv_sec).unwrap_or(0), u32::try_from(since.tv_nsec).unwrap_or(0))
        + faults::asleep()
}

/// Wall-clock time; zero if the machine's clock is before 1970.
#[must_use]
#[expect(clippy::disallowed_types, reason = "the driver is where the wall clock is read")]
pub fn unix_now() -> UnixTime {
    use std::time::SystemTime;
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default() + faults::asleep();
    let micros = u64::try_from(since.as_micros()).unwrap_or(u64::MAX);
    UnixTime(micros.saturating_add_signed(faults::ahead().saturating_mul(1_000_000)))
}

/// A time in seconds since 1970, as people read it: ISO 8601, in UTC.
#[must_use]
pub fn utc(secs: u64) -> String {
    let secs = i64::try_from(secs).unwrap_or(i64::MAX);
    match time::OffsetDateTime::from_unix_timestamp(secs) {
        Ok(at) => {
            let (hour, minute, second) = at.to_hms();
            format!("{}T{hour:02}:{minute:02}:{second:02}Z", at.date())
        }
        Err(_) => format!("second {secs} since 1970"),
    }
}

/// The second of a time of 1970 or later (RFC 3339); `None` if the text is no such time.
#[must_use]
pub fn unix_of_utc(text: &str) -> Option<u64> {
    let at = time::OffsetDateTime::parse(text, &time::format_description::well_known::Rfc3339).ok()?;
    u64::try_from(at.unix_timestamp()).ok()
}

/// The second of a time that a person gives: RFC 3339, a day (UTC), or seconds since 1970; `None` if the text is none of these.
#[must_use]
pub fn unix_of_time(text: &str) -> Option<u64> {
    text.parse().ok().or_else(|| unix_of_day(text)).or_else(|| unix_of_utc(text))
}

/// The first second of a day (UTC) of 1970 or later, from `YYYY-MM-DD`; `None` if the text is no such day.
#[must_use]
pub fn unix_of_day(text: &str) -> Option<u64> {
    let is_day = text.len() == 10
        && text.bytes().enumerate().all(|(at, octet)| match at {
            4 | 7 => octet == b'-',
            _ => octet.is_ascii_digit(),
        });
    if !is_day {
        return None;
    }
    let month = time::Month::try_from(text[5..7].parse::<u8>().ok()?).ok()?;
    let day = time::Date::from_calendar_date(text[..4].parse().ok()?, month, text[8..].parse().ok()?).ok()?;
    u64::try_from(day.midnight().assume_utc().unix_timestamp()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_read_as_it_is_written_and_in_other_zones() {
        for second in [0, 951_782_400, 1_800_000_000, 4_102_444_799] {
            assert_eq!(unix_of_utc(&utc(second)), Some(second));
        }
        assert_eq!(unix_of_utc("2027-01-15T10:00:00+02:00"), Some(1_800_000_000));
        for wrong in
            ["", "2027-01-15", "2027-01-15T08:00:00", "1969-12-31T23:59:59Z", "2027-02-30T00:00:00Z", "1800000000"]
        {
            assert_eq!(unix_of_utc(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_person_gives_a_time_a_day_or_seconds() {
        for text in ["2027-01-15T08:00:00Z", "2027-01-15T10:00:00+02:00", "1800000000"] {
            assert_eq!(unix_of_time(text), Some(1_800_000_000), "{text}");
        }
        assert_eq!(unix_of_time("2027-01-15"), Some(1_799_971_200));
        for wrong in ["", "tomorrow", "-5", "2027-01", "08:00"] {
            assert_eq!(unix_of_time(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn days_are_read_as_they_are_written() {
        assert_eq!(unix_of_day("1970-01-01"), Some(0));
        assert_eq!(unix_of_day("2023-11-14").map(utc).as_deref(), Some("2023-11-14T00:00:00Z"));
        for none in ["", "2023-02-29", "2023-13-01", "1969-12-31", "2023-1-01", "+023-01-01", "2023-01-01T", "20230101"]
        {
            assert_eq!(unix_of_day(none), None, "{none}");
        }
    }

    #[test]
    fn times_are_readable() {
        assert_eq!(utc(1_700_000_000), "2023-11-14T22:13:20Z");
        assert_eq!(utc(u64::MAX), format!("second {} since 1970", i64::MAX));
    }

    #[test]
    fn a_deadline_of_now_is_not_in_the_future() {
        let clock = Clock::start();
        let now = clock.now();
        assert!(clock.at(now.instant) <= tokio::time::Instant::now());
        assert!(now.unix.secs() > 1_600_000_000);
        // However far ahead a deadline is: the machine may sleep meanwhile.
        assert!(clock.at(now.instant + Duration::from_secs(3_600)) <= tokio::time::Instant::now() + MAX_WAIT);
    }
}
