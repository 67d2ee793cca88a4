//! The time of an account as routers store it (`dataplane::platypus::record`), and the accounts of the ledger itself: sums of months,
//! sums of what came late, and how much of an account is in them.

use super::channel::ChargedAccount;
use super::usage::Calendar;
use wayleave_packet::platypus::header::{Interval, Principal};

/// Flags: it is delegated; sub-delegated; there is an interval; the account is a sum; it is what has gone into sums; it is a sum of what came late.
const DELEGATED: u8 = 1;
const SUB_DELEGATED: u8 = 2;
const INTERVAL: u8 = 4;
const SUM: u8 = 8;
const FOLDED: u8 = 16;
const LATE: u8 = 32;
/// Those of accounts that routers have.
const KNOWN: u8 = 7;
/// Where the flags lie, the exponent of the interval (of a sum: the account period), and the epoch (of a sum: the month, or the day
/// on which it came late).
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
    /// Times of accounts, and the ledger's own ones.
    pub const CALENDAR: Calendar<Self> = Calendar {
        payer: Self::principal,
        begins_at: Self::begins_at,
        ended_at: Self::ended_at,
        sum: Self::sum,
        late: Self::late,
        coarse: Self::coarse,
        folded: Self::folded,
        unfolded: Self::unfolded,
        is_own: Self::is_own,
    };

    /// The number of whoever pays.
    #[must_use]
    pub fn principal(&self) -> u32 {
        self.id(0)
    }

    /// The number of its delegation, and of its sub-delegation, if there is one.
    #[must_use]
    pub fn delegation(&self) -> Option<u32> {
        (self.0[FLAGS] & DELEGATED != 0).then(|| self.id(4))
    }

    #[must_use]
    pub fn sub_delegation(&self) -> Option<u32> {
        (self.0[FLAGS] & SUB_DELEGATED != 0).then(|| self.id(7))
    }

    /// The 24 bits from an octet on.
    fn id(&self, at: usize) -> u32 {
        u32::from_be_bytes([0, self.0[at], self.0[at + 1], self.0[at + 2]])
    }

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

    fn epoch(&self) -> u32 {
        u32::from_be_bytes([self.0[EPOCH], self.0[EPOCH + 1], self.0[EPOCH + 2], self.0[EPOCH + 3]])
    }

    /// The Unix second at which its key epoch begins; `None` if it has none.
    #[must_use]
    pub fn begins_at(&self) -> Option<u64> {
        Some(u64::from(self.epoch()) << self.interval()?.exponent())
    }

    /// The Unix second from which on nothing is charged to it; `None` if its time has no end, or it is of a kind that is not known.
    #[must_use]
    pub fn ended_at(&self) -> Option<u64> {
        let interval = self.interval()?;
        Some((u64::from(self.epoch()) + AFTER) << interval.exponent())
    }

    fn interval(&self) -> Option<Interval> {
        if self.0[FLAGS] & INTERVAL == 0 || self.is_own() { None } else { Interval::new(self.0[EXPONENT]) }
    }

    /// Whether it is one of the ledger's own accounts, which no router has.
    #[must_use]
    pub fn is_own(&self) -> bool {
        self.0[FLAGS] & !KNOWN != 0
    }

    /// A sum of the same payer.
    fn sum_of(&self, kind: u8, account_period: u8, time: u32) -> Self {
        let mut sum = *self;
        sum.0[FLAGS] = self.0[FLAGS] & !INTERVAL | kind;
        sum.0[EXPONENT] = account_period;
        sum.0[EPOCH..].copy_from_slice(&time.to_be_bytes());
        sum
    }

    /// The account with the sum of the month in which its epoch begins, when the principal's number had its owner of this account period;
    /// itself if it has no epoch.
    #[must_use]
    pub fn sum(&self, account_period: u8) -> Self {
        self.begins_at().map_or(*self, |begins| self.sum_of(SUM, account_period, Month::of(begins).0))
    }

    /// The account with the sum of what was reported late, on the day that began at this Unix second (until the year 2106).
    #[must_use]
    pub fn late(&self, account_period: u8, day: u64) -> Self {
        self.sum_of(SUM | LATE, account_period, u32::try_from(day).unwrap_or(u32::MAX))
    }

    /// The same without delegations.
    #[must_use]
    pub fn coarse(&self) -> Self {
        let mut coarse = *self;
        coarse.0[FLAGS] &= !(DELEGATED | SUB_DELEGATED);
        coarse.0[FLAGS + 1..EXPONENT].fill(0);
        coarse
    }

    /// The account that says how much of this one is in sums.
    #[must_use]
    pub fn folded(&self) -> Self {
        let mut folded = *self;
        folded.0[FLAGS] |= FOLDED;
        folded
    }

    /// The account of which this one says how much is in sums, if it is such a one.
    #[must_use]
    pub fn unfolded(&self) -> Option<Self> {
        let mut account = *self;
        account.0[FLAGS] &= !FOLDED;
        (self.0[FLAGS] & FOLDED != 0).then_some(account)
    }

    /// The month, if it is the sum of one.
    #[must_use]
    pub fn month(&self) -> Option<Month> {
        (self.0[FLAGS] & (SUM | LATE) == SUM).then(|| Month(self.epoch()))
    }

    /// The Unix second at which the day began on which this came late, if it is such a sum.
    #[must_use]
    pub fn late_since(&self) -> Option<u64> {
        (self.0[FLAGS] & LATE != 0).then(|| self.epoch().into())
    }

    /// Which of the owners that its number had one after the other, if it is a sum.
    #[must_use]
    pub fn account_period(&self) -> Option<u8> {
        (self.0[FLAGS] & SUM != 0).then_some(self.0[EXPONENT])
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
        let (first, last) = (account(5, 12, 400_000).sum(0), account(5, 12, 400_001).sum(0));
        assert_eq!(first, last);
        assert!(
            first.month().is_some_and(|month| month.begin() <= 400_000 << 12 && month.next().begin() > 400_001 << 12)
        );
        assert_eq!((first.ended_at(), first.sum(0)), (None, first));
        assert_ne!(account(4, 12, 400_000).sum(0), first, "another payer");
        assert_ne!(account(5, 12, 400_000).sum(1), first, "another owner of the number");
        assert_eq!(account(5, 12, 400_000).month(), None);
        assert_eq!(account(0, 0, 1).sum(0), account(0, 0, 1));
    }

    #[test]
    fn the_ledgers_own_accounts_are_told_apart_and_have_no_end() {
        let plain = ChargedAccount([0, 0, 7, 5, 0, 0, 3, 0, 0, 0, 12, 0, 6, 26, 128]);
        let (sum, late, folded) = (plain.sum(2), plain.late(2, 1_800_000_000), plain.folded());
        assert!(!plain.is_own() && [sum, late, folded].iter().all(ChargedAccount::is_own));
        assert!([sum, late, folded].iter().all(|account| account.ended_at().or(account.begins_at()).is_none()));
        assert_eq!((late.late_since(), late.month(), late.account_period()), (Some(1_800_000_000), None, Some(2)));
        assert_eq!((sum.late_since(), sum.month().is_some(), sum.account_period()), (None, true, Some(2)));
        assert_eq!((folded.late_since(), folded.month(), folded.account_period()), (None, None, None));
        assert_eq!([folded, plain, sum, late].map(|account| account.unfolded()), [Some(plain), None, None, None]);
    }
}
