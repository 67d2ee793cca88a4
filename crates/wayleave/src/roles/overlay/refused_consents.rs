//! Packets that a node refuses for their consent: with another node's tag keys at a consent server every one of them is.

use std::time::{Duration, Instant};

/// So many packets that are refused for their consent within one to two of these spans are a problem.
const MANY: u64 = 3;
const WINDOW: Duration = Duration::from_secs(60);

/// How many packets were refused for their consent of late: a few may be forged or out of date, many mean wrong keys.
#[derive(Debug, Default)]
pub struct RefusedConsents {
    /// When the window began, and how many there were by then.
    window: Option<(Instant, u64)>,
    /// How many there were when the window before began.
    before: u64,
    count: u64,
}

impl RefusedConsents {
    pub fn note(&mut self, count: u64, now: Instant) {
        let (since, had) = *self.window.get_or_insert((now, count));
        if now.duration_since(since) >= WINDOW {
            (self.before, self.window) = (had, Some((now, count)));
        }
        self.count = count;
    }

    /// What an operator has to see to.
    pub fn problem(&self) -> Option<String> {
        let count = self.count.saturating_sub(self.before);
        (count >= MANY).then(|| {
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
        for (secs, count, is_said) in [
            (0, 0, false),
            (10, 2, false),
            (20, 3, true),
            (70, 3, true),
            (131, 3, false),
            (140, 5, false),
            (150, 6, true),
            (300, 6, true),
            (420, 6, false),
        ] {
            refused.note(count, at(secs));
            assert_eq!(refused.problem().is_some(), is_said, "after {secs} s");
        }
    }
}
