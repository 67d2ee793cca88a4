//! Our clock with its uncertainty, and the bounds of time that a conclusion rests on.

use std::time::Duration;

use wayleave_core::{Instant, Now, UnixTime};

/// Our clock, and how far it may be wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Clock {
    /// What it says.
    pub now: UnixTime,
    /// Seconds by which it may be wrong in either direction, other ASes' clocks included.
    pub uncertainty: u64,
}

/// Seconds by which clocks may differ where nothing else is known.
pub const DEFAULT_UNCERTAINTY: u64 = 600;

/// How far the two clocks may drift apart between two calls before somebody has set the wall clock.
const STEP: Duration = Duration::from_secs(10);
/// The longest sleep, so that a step of the wall clock is noticed that soon.
const MAX_SLEEP: Duration = Duration::from_secs(30);

/// The seconds by which somebody has set the wall clock between two calls; `None` if nobody has.
pub(crate) fn stepped(before: Now, now: Now) -> Option<i64> {
    let passed = now.instant.since(before.instant).as_micros() as i64;
    let stepped = (now.unix.0 as i64).saturating_sub(before.unix.0 as i64).saturating_sub(passed);
    (stepped.unsigned_abs() > STEP.as_micros() as u64).then_some(stepped / 1_000_000)
}

/// When to wake for what is due at `unix`, in seconds since 1970, and soon enough to notice a step of the wall clock.
pub(crate) fn wake(now: Now, unix: u64) -> Instant {
    let span = Duration::from_micros(unix.saturating_mul(1_000_000).saturating_sub(now.unix.0));
    now.instant + span.min(MAX_SLEEP)
}

/// A time as people read it (ISO 8601, UTC), from seconds since 1970.
pub(crate) fn utc(secs: u64) -> String {
    let (days, second) = (secs / 86_400, secs % 86_400);
    // Years begin in March here, so that the leap day is the last of its year; 719,468 days lie between 0000-03-01 and 1970.
    let (era, day) = ((days + 719_468) / 146_097, (days + 719_468) % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (year, month) = match month {
        0..10 => (era * 400 + year, month + 3),
        _ => (era * 400 + year + 1, month - 9),
    };
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

impl Clock {
    pub(crate) fn earliest(&self) -> u64 {
        self.now.secs().saturating_sub(self.uncertainty)
    }

    pub(crate) fn latest(&self) -> u64 {
        self.now.secs().saturating_add(self.uncertainty)
    }

    /// Whether it may be between the two now.
    #[must_use]
    pub fn allows(&self, not_before: u64, not_after: u64) -> bool {
        not_before <= self.latest() && not_after >= self.earliest()
    }
}

/// The bounds of time that a conclusion rests on.
pub(crate) struct Bounds {
    clock: Clock,
    /// The first bound ahead, in seconds since 1970.
    next: u64,
    pub(crate) in_doubt: bool,
}

impl Bounds {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, next: u64::MAX, in_doubt: false }
    }

    /// Notes a bound; whether it lies ahead even if our clock is as slow as it may be.
    pub(crate) fn is_early(&mut self, not_before: u64) -> bool {
        let early = not_before > self.clock.latest();
        if early {
            self.next = self.next.min(not_before.saturating_sub(self.clock.uncertainty));
        } else if not_before > self.clock.now.secs() {
            self.in_doubt = true;
            self.next = self.next.min(not_before);
        }
        early
    }

    /// Notes a bound; whether it has passed even if our clock is as fast as it may be.
    pub(crate) fn is_late(&mut self, not_after: u64) -> bool {
        let now = self.clock.now.secs();
        let late = not_after < self.clock.earliest();
        if not_after >= now {
            self.next = self.next.min(not_after.saturating_add(1));
        } else if !late {
            self.in_doubt = true;
            self.next = self.next.min(not_after.saturating_add(self.clock.uncertainty).saturating_add(1));
        }
        late
    }

    /// Whether a record of the PKI holds now.
    pub(crate) fn holds(&mut self, since: u64, until: u64) -> bool {
        let now = self.clock.now.secs();
        if since > now {
            self.next = self.next.min(since);
        } else if until >= now {
            self.next = self.next.min(until.saturating_add(1));
        }
        since <= now && now <= until
    }

    /// When the route must be validated again, if the keys that were used hold until `keys_until`; always ahead of now.
    pub(crate) fn until(&self, keys_until: u64) -> Option<UnixTime> {
        let keys_until = if keys_until >= self.clock.now.secs() {
            keys_until.saturating_add(1)
        } else {
            // A key counts as long as our clock may be that much too fast.
            keys_until.saturating_add(self.clock.uncertainty).saturating_add(1)
        };
        let next = self.next.min(keys_until);
        (next < u64::MAX).then(|| UnixTime(next.saturating_mul(1_000_000)))
    }
}

#[cfg(test)]
mod tests {
    use super::utc;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (secs, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_700_000_000, "2023-11-14T22:13:20Z"),
            (1_800_000_000, "2027-01-15T08:00:00Z"),
            (4_107_542_399, "2100-02-28T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc(secs), text);
        }
        assert!(!utc(u64::MAX).is_empty());
    }
}
