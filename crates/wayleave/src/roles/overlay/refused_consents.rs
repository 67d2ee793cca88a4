//! Packets that a node refuses for their consent: with another node's tag keys at a consent server every one of them is.

use std::time::{Duration, Instant};

/// So many packets that are refused for their consent within one to two of these spans are a problem.
const MANY: u64 = 3;
const WINDOW: Duration = Duration::from_secs(60);
/// After a packet with a good consent nothing is said for so long: the keys were right.
const GOOD: Duration = Duration::from_secs(20);

/// How many packets were refused for their consent, and how many had a good one, since the start.
#[derive(Clone, Copy, Debug, Default)]
pub struct Consents {
    pub refused: u64,
    pub good: u64,
}

/// How many packets were refused for their consent of late. Some may be forged or out of date; if no other packets come, the keys are wrong.
#[derive(Debug, Default)]
pub struct RefusedConsents {
    /// When the window began, and how many there were by then.
    window: Option<(Instant, Consents)>,
    /// How many there were when the window before began.
    before: Consents,
    count: Consents,
    /// When the last good one came, and how many were refused by then.
    last_good: Option<(Instant, u64)>,
    now: Option<Instant>,
}

impl RefusedConsents {
    pub fn note(&mut self, count: Consents, now: Instant) {
        let (since, had) = *self.window.get_or_insert((now, count));
        if now.duration_since(since) >= WINDOW {
            (self.before, self.window) = (had, Some((now, count)));
        }
        if count.good > self.count.good {
            self.last_good = Some((now, count.refused));
        }
        (self.count, self.now) = (count, Some(now));
    }

    /// What an operator has to see to.
    pub fn problem(&self) -> Option<String> {
        let (good_at, had) = self.last_good.map_or((None, 0), |(at, had)| (Some(at), had));
        let count = self.count.refused.saturating_sub(self.before.refused.max(had));
        let is_good = good_at.zip(self.now).is_some_and(|(at, now)| now.duration_since(at) < GOOD);
        // With wrong keys none is good; else whoever has the consent of the first node alone could accuse the server.
        (count >= MANY && !is_good).then(|| {
            format!(
                "{count} packets that name this node were refused of late for their consent: the consent server proves it with other tag keys \
                 than this node's (`tags` of its [[consent.node]] has to be a copy of `tags` of [overlay] here), or somebody forges packets"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_with_wrong_consents_are_a_problem_for_as_long_as_they_come() {
        let (mut refused, start) = (RefusedConsents::default(), Instant::now());
        let at = |secs| start + Duration::from_secs(secs);
        for (secs, count, good, is_said) in [
            (0, 0, 0, false),
            (10, 2, 0, false),
            (20, 3, 0, true),
            (70, 3, 0, true),
            (131, 3, 0, false),
            (140, 5, 0, false),
            (150, 6, 0, true),
            // Somebody's are good: the keys are.
            (160, 9, 1, false),
            (170, 12, 1, false),
            // They were: no packet passes any more.
            (181, 12, 1, true),
            (300, 12, 1, true),
            (310, 15, 1, true),
            (380, 18, 1, true),
            (500, 18, 1, false),
        ] {
            refused.note(Consents { refused: count, good }, at(secs));
            assert_eq!(refused.problem().is_some(), is_said, "after {secs} s");
        }
    }
}
