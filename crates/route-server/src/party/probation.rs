//! Members whose rankings do not come in time: nobody waits for them until they have been in time again for a while.
//!
//! Only public facts count: when rankings of a batch arrived at both parties. A member sends them at a fixed time, whatever it
//! ranks, so that being late says nothing of its policy. Where that time is at once (a tick of zero) nobody is put on
//! probation, since then lateness would show how much work a member had with what it may open.

use std::collections::BTreeMap;
use std::time::Duration;

use wayleave_core::Instant;

/// Rankings that a member may miss before nobody waits for it.
const MISSES: u32 = 2;
/// Rankings in a row, in time, after which those that it missed before do not count: whoever misses one now and then delays fewer
/// than one round in a hundred.
const FORGIVEN: u32 = 200;
/// After which time they do not count either, where rounds are rare.
const FORGOTTEN: Duration = Duration::from_secs(3600);
/// Batches without a member's ranking that are remembered until their deadlines: our own limit.
const MAX_OPEN: usize = 256;
/// How long a member must have been in time before it is waited for again, after its first probation. It doubles each time.
const SHORTEST: Duration = Duration::from_secs(30);
/// Doublings at most: an hour and four minutes.
const DOUBLINGS: u32 = 7;

/// What is known of all members.
#[derive(Debug, Default)]
pub(super) struct Punctuality(BTreeMap<u32, Record>);

#[derive(Debug, Default)]
struct Record {
    /// Rankings missed, that count.
    missed: u32,
    /// When the last one was.
    missed_at: Instant,
    /// Rankings in time since then.
    in_time: u32,
    probation: Option<Probation>,
    /// Probations that have ended.
    ended: u32,
}

#[derive(Debug, Default)]
struct Probation {
    in_time_since: Option<Instant>,
    /// Batches that began without the member's ranking before its deadline.
    open: BTreeMap<u64, OpenBatch>,
}

#[derive(Debug)]
struct OpenBatch {
    deadline: Instant,
    /// Whether the ranking is at party 1, and at party 2.
    is_at: [bool; 2],
}

impl Probation {
    /// Forgets batches whose rankings can be in time no more: then the while begins anew.
    fn expire(&mut self, now: Instant) {
        let open = self.open.len();
        self.open.retain(|_, open| now < open.deadline);
        if self.open.len() < open || open > MAX_OPEN {
            self.in_time_since = None;
        }
        if open > MAX_OPEN {
            self.open.pop_first();
        }
    }
}

/// What a missed ranking means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Missed {
    /// The next one is waited for.
    Tolerated,
    /// From now on nobody waits for the member.
    Begins,
    /// Nobody waited for it.
    OnProbation,
}

impl Punctuality {
    pub(super) fn is_on_probation(&self, slot: u32) -> bool {
        self.0.get(&slot).is_some_and(|record| record.probation.is_some())
    }

    /// Slots on probation, ascending.
    pub(super) fn on_probation(&self) -> impl Iterator<Item = u32> {
        self.0.iter().filter(|(_, record)| record.probation.is_some()).map(|(slot, _)| *slot)
    }

    /// The evaluation of batch `seq` began without the member's ranking. `is_at`: whether party 1 and party 2 have it.
    pub(super) fn missed(&mut self, slot: u32, seq: u64, deadline: Instant, is_at: [bool; 2], now: Instant) -> Missed {
        let record = self.0.entry(slot).or_default();
        if let Some(probation) = &mut record.probation {
            probation.open.insert(seq, OpenBatch { deadline, is_at });
            probation.expire(now);
            return Missed::OnProbation;
        }
        if now.since(record.missed_at) >= FORGOTTEN {
            record.missed = 0;
        }
        record.missed += 1;
        (record.missed_at, record.in_time) = (now, 0);
        if record.missed < MISSES {
            return Missed::Tolerated;
        }
        record.probation = Some(Probation::default());
        Missed::Begins
    }

    /// The member's ranking of batch `seq` came to party 1 (0) or party 2 (1) after the evaluation had begun. Returns whether
    /// the member is waited for again.
    pub(super) fn came(&mut self, slot: u32, seq: u64, party: usize, now: Instant) -> bool {
        let probation = self.0.get_mut(&slot).and_then(|record| record.probation.as_mut());
        let Some(probation) = probation else { return false };
        probation.expire(now);
        let Some(open) = probation.open.get_mut(&seq) else { return false };
        open.is_at[party] = true;
        if open.is_at != [true; 2] {
            return false;
        }
        probation.open.remove(&seq);
        self.in_time(slot, now)
    }

    /// The member's ranking was at both parties in time. Returns whether it is waited for again, after a probation.
    pub(super) fn in_time(&mut self, slot: u32, now: Instant) -> bool {
        let Some(record) = self.0.get_mut(&slot) else { return false };
        record.in_time = record.in_time.saturating_add(1);
        if record.in_time >= FORGIVEN {
            record.missed = 0;
        }
        let Some(probation) = &mut record.probation else { return false };
        probation.expire(now);
        let since = *probation.in_time_since.get_or_insert(now);
        if now.since(since) < SHORTEST * (1 << record.ended.min(DOUBLINGS)) {
            return false;
        }
        record.probation = None;
        record.missed = 0;
        record.ended = record.ended.saturating_add(1);
        true
    }
}

#[cfg(test)]
mod tests {
    //! SIX, slow members: a member that ranks late, for one party only, or again in time: two misses begin a probation,
    //! which ends after a while in time.

    use super::*;

    fn at(secs: u64) -> Instant {
        Instant(secs * 1_000_000_000)
    }

    #[test]
    fn two_misses_begin_a_probation_and_one_that_is_made_good_does_not() {
        let mut all = Punctuality::default();
        for (seq, missed, then_in_time) in [
            (1, Missed::Tolerated, FORGIVEN),
            (2, Missed::Tolerated, FORGIVEN - 1),
            (3, Missed::Begins, 0),
            (4, Missed::OnProbation, 0),
        ] {
            assert_eq!(all.missed(7, seq, at(seq + 1), [true, false], at(seq + 1)), missed, "{seq}");
            (0..then_in_time).for_each(|_| assert!(!all.in_time(7, at(seq + 1))));
        }
        assert_eq!(all.missed(8, 1, at(1), [false; 2], at(1)), Missed::Tolerated);
        assert_eq!(all.missed(8, 2, at(3_601), [false; 2], at(3_601)), Missed::Tolerated, "an hour later");
        assert_eq!(all.missed(9, 1, at(1), [false; 2], at(1)), Missed::Tolerated);
        assert_eq!(all.missed(9, 2, at(3_600), [false; 2], at(3_600)), Missed::Begins, "sooner");
        assert!(all.is_on_probation(7) && !all.is_on_probation(8));
        assert_eq!(all.on_probation().collect::<Vec<_>>(), [7, 9]);
    }

    #[test]
    fn a_probation_ends_after_a_while_in_time_and_lasts_longer_each_time() {
        let mut all = Punctuality::default();
        let (mut seq, mut now) = (0, 0);
        for expected in [30, 60, 120, 240, 480, 960, 1_920, 3_840, 3_840] {
            for _ in 0..MISSES {
                seq += 1;
                all.missed(7, seq, at(now), [false; 2], at(now));
            }
            assert!(all.is_on_probation(7));
            let begin = now;
            let ended = (0..).find(|_| {
                now += 10;
                all.in_time(7, at(now))
            });
            assert!(ended.is_some() && now - begin - 10 == expected, "{} is not {expected}", now - begin - 10);
        }
    }

    #[test]
    fn a_ranking_counts_as_in_time_only_if_both_parties_have_it_before_its_deadline() {
        let mut all = Punctuality::default();
        all.missed(7, 1, at(1), [false; 2], at(1));
        all.missed(7, 2, at(2), [false; 2], at(2));
        // Each batch begins at its time without the member and has its deadline a second later.
        let mut batch = |seq: u64, at_one: u64, at_two: u64| {
            let begin = seq * 10;
            all.missed(7, seq, at(begin + 1), [false; 2], at(begin));
            let one = all.came(7, seq, 0, Instant(at(begin).0 + at_one * 1_000_000));
            one | all.came(7, seq, 1, Instant(at(begin).0 + at_two * 1_000_000))
        };
        assert!(!(10..20).any(|seq| batch(seq, 100, 1_500)), "late at party 2");
        assert!(!(20..23).any(|seq| batch(seq, 100, 200)));
        assert!(!batch(23, 1_500, 200), "the while begins anew");
        assert!(!(24..27).any(|seq| batch(seq, 100, 200)));
        assert!(batch(27, 100, 200));
        assert!(!all.is_on_probation(7));
    }
}
