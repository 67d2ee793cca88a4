//! The time of an account as routers store it (`dataplane::platypus::record`), and the account that has the sum of its month.

use super::channel::ChargedAccount;
use super::usage::Calendar;
use wayleave_packet::platypus::header::{Interval, Principal};

/// Flags: there is an interval; the account is the sum of a month.
const INTERVAL: u8 = 4;
const SUM: u8 = 8;
/// Those of accounts that routers have.
const KNOWN: u8 = 7;
/// Where the flags lie, the exponent of the interval, and the epoch.
const FLAGS: usize = 3;
const EXPONENT: usize = 10;
const EPOCH: usize = 11;
/// Epochs after its own in which an epoch may still be charged, by routers whose clocks differ.
const AFTER: u64 = 3;
const DAY: u64 = 86_400;

/// A calendar month in UTC.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Month(u32);

impl Month {
    /// The month of a Unix second.
    #[must_use]
    pub fn of(second: u64) -> Self {
        // Days since the first of March of the year 0, in cycles of 400 years: the leap day is the last one of a year.
        let days = second / DAY + 719_468;
        let (cycle, day) = (days / 146_097, days % 146_097);
        let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
        let of_year = day - (365 * year + year / 4 - year / 100);
        let month = (5 * of_year + 2) / 153;
        let months = (cycle * 400 + year) * 12 + month + 2;
        // Months since January 1970; the second fits 34 bits in any epoch of 32 bits and an interval of 24 at most.
        Self(u32::try_from(months - 1_970 * 12).unwrap_or(u32::MAX))
    }

    /// The Unix second at which it begins.
    #[must_use]
    pub fn begin(self) -> u64 {
        let months = u64::from(self.0) + 1_970 * 12;
        // The year begins in March.
        let (year, month) = ((months - 2) / 12, (months - 2) % 12);
        let days = year / 400 * 146_097 + year % 400 * 365 + year % 400 / 4 - year % 400 / 100 + (153 * month + 2) / 5;
        (days - 719_468) * DAY
    }

    /// The month after it.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl ChargedAccount {
    /// The first and the last account that a principal can have.
    #[must_use]
    pub fn bounds(principal: Principal) -> (Self, Self) {
        let filled = |octet| {
            let mut account = [octet; Self::LENGTH];
            account[..FLAGS].copy_from_slice(&principal.octets());
            Self(account)
        };
        (filled(0), filled(0xff))
    }

    /// Ends of accounts, and sums of months.
    pub const CALENDAR: Calendar<Self> =
        Calendar { ended_at: Self::ended_at, sum: Self::sum, is_sum: |account| account.0[FLAGS] & SUM != 0 };

    fn epoch(&self) -> u32 {
        u32::from_be_bytes([self.0[EPOCH], self.0[EPOCH + 1], self.0[EPOCH + 2], self.0[EPOCH + 3]])
    }

    /// The Unix second from which on nothing is charged to it; `None` if its time has no end, or it is of a kind that is not known.
    #[must_use]
    pub fn ended_at(&self) -> Option<u64> {
        let interval = self.interval()?;
        Some((u64::from(self.epoch()) + AFTER) << interval.exponent())
    }

    fn interval(&self) -> Option<Interval> {
        let flags = self.0[FLAGS];
        if flags & INTERVAL == 0 || flags & !KNOWN != 0 { None } else { Interval::new(self.0[EXPONENT]) }
    }

    /// The account with the sum of the month in which its epoch begins; itself if it has no epoch.
    #[must_use]
    pub fn sum(&self) -> Self {
        let Some(interval) = self.interval() else { return *self };
        let month = Month::of(u64::from(self.epoch()) << interval.exponent());
        let mut sum = *self;
        sum.0[FLAGS] = self.0[FLAGS] & !INTERVAL | SUM;
        sum.0[EXPONENT] = 0;
        sum.0[EPOCH..].copy_from_slice(&month.0.to_be_bytes());
        sum
    }

    /// The month, if it is a sum.
    #[must_use]
    pub fn month(&self) -> Option<Month> {
        (self.0[FLAGS] & SUM != 0).then(|| Month(self.epoch()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counted from 1970 on.
    fn begins() -> impl Iterator<Item = u64> {
        let lengths = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
        let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
        let days = (1_970..2_520)
            .flat_map(move |year| (0..12).map(move |month| lengths[month] + u64::from(month == 1 && is_leap(year))));
        days.scan(0, |begin, days| {
            let this = *begin;
            *begin += days * DAY;
            Some(this)
        })
    }

    #[test]
    fn months_are_those_of_the_calendar() {
        for (number, begin) in begins().enumerate() {
            let month = Month(number as u32);
            assert_eq!((month.begin(), Month::of(begin)), (begin, month));
            assert_eq!(Month::of(begin + 86_399), month);
            if begin > 0 {
                assert_eq!(Month::of(begin - 1).next(), month);
            }
        }
    }

    #[test]
    fn an_account_has_an_end_and_one_sum_for_its_month() {
        let account = |flags: u8, exponent, epoch: u32| {
            let [a, b, c, d] = epoch.to_be_bytes();
            ChargedAccount([0, 0, 7, flags, 0, 0, 3, 0, 0, 0, exponent, a, b, c, d])
        };
        assert_eq!(account(5, 12, 400_000).ended_at(), Some(400_003 << 12));
        assert_eq!(account(1, 0, 400_000).ended_at(), None, "version 0");
        assert_eq!(account(5, 3, 400_000).ended_at(), None, "no interval");
        assert_eq!(account(4, 24, u32::MAX).ended_at(), Some((u64::from(u32::MAX) + 3) << 24));
        let (first, last) = (account(5, 12, 400_000).sum(), account(5, 12, 400_001).sum());
        assert_eq!(first, last);
        assert!(
            first.month().is_some_and(|month| month.begin() <= 400_000 << 12 && month.next().begin() > 400_001 << 12)
        );
        assert_eq!((first.ended_at(), first.sum()), (None, first));
        assert_ne!(account(4, 12, 400_000).sum(), first, "another payer");
        assert_eq!(account(5, 12, 400_000).month(), None);
        assert_eq!(account(0, 0, 1).sum(), account(0, 0, 1));
    }
}
