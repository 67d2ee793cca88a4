//! The 95th percentile of what one who pays sent: by samples of five minutes, of which the greatest twentieth does not count.

/// Seconds of a sample.
pub const SAMPLE_SECS: u64 = 300;
/// By how many seconds what a router is known to have reported is behind its last report: it confirms a time five minutes before, and once a
/// minute.
const LAG: u64 = 300 + 2 * 60;
/// Samples over which a report is spread at most: those of a day. What a router kept for longer is in none.
const MOST_SPREAD: u64 = 86_400 / SAMPLE_SECS;

wayleave_core::wire! {
    /// The 95th percentile of a month.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
    pub struct Percentile {
        /// Which of the owners that the principal's number had one after the other, from 0.
        pub owner: u8,
        /// The Unix seconds between which the month lies.
        pub begins: u64,
        pub ends: u64,
        pub octets_per_second: u64,
        /// Samples of the month that are known only roughly: a router was cut off, and what it counted meanwhile is spread over them.
        pub rough: u32,
    }
}

/// The beginnings of the samples of what a router has counted after a Unix second and reports at another, with a part of the octets for
/// each; and whether they are rough. What came within the length of one sample, as far as is known, is of the last one; what a router kept
/// for more than a day is in none, so that nobody pays for a peak that there was not.
#[must_use]
pub fn samples(octets: u64, (after, until): (Option<u64>, u64)) -> (Vec<(u64, u64)>, bool) {
    let last = until / SAMPLE_SECS;
    let whole = |octets| vec![(last * SAMPLE_SECS, octets)];
    let Some(after) = after.filter(|after| *after <= until) else { return (whole(octets), true) };
    if until - after <= SAMPLE_SECS + LAG {
        return (whole(octets), false);
    }
    let first = after / SAMPLE_SECS;
    let count = last - first + 1;
    if count > MOST_SPREAD {
        return (whole(0), true);
    }
    let (each, rest) = (octets / count, octets % count);
    let part = |at: u64| ((first + at) * SAMPLE_SECS, each + u64::from(at < rest));
    ((0..count).map(part).collect(), true)
}

/// How many samples of a time between two Unix seconds do not count: its percentile is the greatest of the others.
#[must_use]
pub fn discarded_samples((begins, ends): (u64, u64)) -> u64 {
    ends.saturating_sub(begins) / SAMPLE_SECS / 20
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_of_its_sample_or_spread_over_those_for_which_its_router_was_away() {
        assert_eq!(samples(7, (Some(230), 650)), (vec![(600, 7)], false));
        assert_eq!(
            samples(7, (Some(180), 900)),
            (vec![(900, 7)], false),
            "a router confirms what was five minutes ago"
        );
        assert_eq!(samples(7, (None, 650)), (vec![(600, 7)], true), "nobody knows since when");
        assert_eq!(samples(7, (Some(900), 650)), (vec![(600, 7)], true), "a clock that is ahead");
        assert_eq!(samples(7, (Some(10), 850)), (vec![(0, 3), (300, 2), (600, 2)], true));
        let (all, is_rough) = samples(u64::MAX, (Some(86_400 + 300), 2 * 86_400));
        assert!(is_rough && all.len() as u64 == MOST_SPREAD && all[0].0 == 86_400 + 300);
        assert_eq!(all.iter().map(|(_, part)| u128::from(*part)).sum::<u128>(), u128::from(u64::MAX));
        assert_eq!(samples(7, (Some(86_400), 2 * 86_400)), (vec![(2 * 86_400, 0)], true));
        assert_eq!(discarded_samples((0, 30 * 86_400)), 432);
    }
}
