//! How much later than others' rankings may come before a round begins without them.
//!
//! It is one time for all, and no member sets it: the time within which the links of nine tenths of the members answered in the last
//! hour, at most a tenth of what a round usually takes, or of the time in which this one's rankings leave by the schedule. Only public facts count: when rankings were at both parties, and when rounds
//! began and ended.

use std::collections::BTreeMap;
use std::time::Duration;

use wayleave_core::Instant;

/// For how long what was measured counts, at least; at most twice that.
const HALF: Duration = Duration::from_secs(1800);
/// What is added to the time within which links answered: a quarter of it, and a millisecond for what computers do meanwhile.
const SPARE: Duration = Duration::from_millis(1);
/// Of the usual round, and of the time in which rankings are taken before one was measured.
const PART: u32 = 10;

/// The allowance of each round.
#[derive(Clone, Copy, Debug)]
pub(super) struct AllowanceFor {
    most: Duration,
    /// What a round usually takes, of which it is a part at most.
    usual: Option<Duration>,
}

impl AllowanceFor {
    /// That of a round whose rankings leave so long after its ticks.
    pub(super) fn of_round(self, leaves_after: Duration) -> Duration {
        self.usual.map_or(self.most, |usual| self.most.min(usual.max(leaves_after) / PART))
    }
}

/// What party 1 measures.
#[derive(Debug)]
pub(super) struct Allowance {
    /// The operator's setting.
    fixed: Option<Duration>,
    /// The longest time in which each member's ranking came to be at both parties after it was expected: in this half hour, and in the last.
    longest: [BTreeMap<u32, Duration>; 2],
    since: Instant,
    now: AllowanceFor,
    /// How many rounds had ended when that was last worked out.
    followed: u64,
}

impl Allowance {
    /// Before anything is measured: a tenth of `rank_wait`.
    pub(super) fn new(fixed: Option<Duration>, rank_wait: Duration, now: Instant) -> Self {
        let longest = [BTreeMap::new(), BTreeMap::new()];
        let first =
            AllowanceFor { most: fixed.unwrap_or(rank_wait / PART), usual: fixed.is_none().then_some(rank_wait) };
        Self { fixed, longest, since: now, now: first, followed: 0 }
    }

    /// How much later rankings may come.
    pub(super) fn get(&self) -> AllowanceFor {
        self.now
    }

    /// A member's ranking came so long after it was expected.
    pub(super) fn note(&mut self, slot: u32, after: Duration, now: Instant) {
        if now.since(self.since) >= HALF {
            self.since = now;
            self.longest.swap(0, 1);
            self.longest[0].clear();
        }
        let longest = self.longest[0].entry(slot).or_default();
        *longest = after.max(*longest);
    }

    /// Follows what was measured, once more than `rounds` have ended; `usual`: what a round usually takes.
    pub(super) fn follow(&mut self, rounds: u64, usual: impl FnOnce() -> Option<Duration>) {
        if self.fixed.is_some() || std::mem::replace(&mut self.followed, rounds) == rounds {
            return;
        }
        let Some(usual) = usual() else { return };
        let most = self.of_links().map_or(Duration::MAX, |links| links + links / 4 + SPARE);
        self.now = AllowanceFor { most, usual: Some(usual) };
    }

    /// The time within which nine tenths of the links answered. The slowest one is not among these, however few there are.
    fn of_links(&self) -> Option<Duration> {
        let [these, those] = &self.longest;
        let mut all: BTreeMap<u32, Duration> = those.clone();
        for (slot, longest) in these {
            let of = all.entry(*slot).or_default();
            *of = (*of).max(*longest);
        }
        let mut all: Vec<Duration> = all.into_values().collect();
        all.sort_unstable();
        let counted = (all.len() * 9).div_ceil(10).min(all.len().saturating_sub(1));
        all.get(counted.checked_sub(1)?).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn get(allowance: &Allowance) -> Duration {
        allowance.get().of_round(Duration::ZERO)
    }

    fn at(secs: u64) -> Instant {
        Instant(secs * 1_000_000_000)
    }

    #[test]
    fn no_member_sets_it_and_it_is_at_most_a_tenth_of_the_usual_round() {
        let mut allowance = Allowance::new(None, ms(1000), at(0));
        assert_eq!(get(&allowance), ms(100));
        for members in 2..40u32 {
            let mut of = Allowance::new(None, ms(1000), at(0));
            (1..members).for_each(|slot| of.note(slot, ms(4), at(1)));
            of.note(0, ms(900), at(1));
            of.follow(1, || Some(ms(1000)));
            assert_eq!(get(&of), ms(6), "{members} members");
        }
        (0..10).for_each(|slot| allowance.note(slot, ms(40), at(1)));
        allowance.follow(1, || Some(ms(100)));
        assert_eq!(get(&allowance), ms(10));
        assert_eq!(allowance.get().of_round(ms(300)), ms(30), "where a large batch has rankings leave later");
        allowance.follow(1, || Some(ms(1000)));
        assert_eq!(get(&allowance), ms(10), "no round has ended since");
        allowance.follow(2, || Some(ms(1000)));
        assert_eq!(get(&allowance), ms(51));
    }

    #[test]
    fn what_was_measured_counts_for_an_hour_at_most() {
        let mut allowance = Allowance::new(None, ms(1000), at(0));
        (0..10).for_each(|slot| allowance.note(slot, ms(40), at(1)));
        for (second, expected) in [(1_800, 51), (3_599, 51), (3_600, 6)] {
            (0..10).for_each(|slot| allowance.note(slot, ms(4), at(second)));
            allowance.follow(second, || Some(ms(1000)));
            assert_eq!(get(&allowance), ms(expected), "after {second} s");
        }
    }

    #[test]
    fn a_setting_counts_whatever_is_measured() {
        let mut allowance = Allowance::new(Some(ms(70)), ms(1000), at(0));
        (0..10).for_each(|slot| allowance.note(slot, ms(4), at(1)));
        allowance.follow(1, || Some(ms(100)));
        assert_eq!(get(&allowance), ms(70));
    }
}
