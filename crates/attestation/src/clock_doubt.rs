//! ClockDoubt of our own clock: when many origins seem to be wrong about the time, it is we who are.

use std::collections::BTreeMap;

use wayleave_core::{Asn, UnixTime, VerdictKind};

use crate::report::{Problem, Report};

/// Origins that must disagree with our clock before it is doubted.
const LEAST_ORIGINS: usize = 3;
/// Seconds for which an origin's last word counts.
const WINDOW: u64 = 3600;
/// Origins kept, at most; beyond, the oldest words go.
const MOST_ORIGINS: usize = 4096;

/// Which way our clock seems to be wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClockDoubt {
    /// Most origins sign for times that have not come: it may be slow.
    Slow,
    /// Most origins' signatures have expired: it may be fast.
    Fast,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Word {
    InTime,
    Early,
    Late,
}

/// The last word of each origin whose chain was genuine.
#[derive(Debug, Default)]
pub struct ClockWatch {
    words: BTreeMap<Asn, (u64, Word)>,
}

impl ClockWatch {
    /// Notes what a report says of its origin's time. Only chains with right signatures say anything.
    pub fn observe(&mut self, report: &Report, now: UnixTime) {
        let Some(origin) = report.hops.first().filter(|hop| hop.proved) else { return };
        let word = match (report.kind, &report.broken) {
            (VerdictKind::Expired, _) => Word::Late,
            (_, Some(broken)) if broken.problem == Problem::NotYetValid => Word::Early,
            (_, None) => Word::InTime,
            _ => return,
        };
        let now = now.secs();
        self.words.insert(origin.asn, (now, word));
        if self.words.len() > MOST_ORIGINS {
            self.words.retain(|_, (when, _)| now.saturating_sub(*when) <= WINDOW);
        }
        if self.words.len() > MOST_ORIGINS {
            let oldest = self.words.iter().min_by_key(|(_, (when, _))| *when).map(|(asn, _)| *asn);
            oldest.map(|asn| self.words.remove(&asn));
        }
    }

    /// Whether our clock is in doubt at `now`: at least three origins, and most of those heard lately, agree that it
    /// is wrong in one direction.
    #[must_use]
    pub fn doubt(&self, now: UnixTime) -> Option<ClockDoubt> {
        let lately = self.words.values().filter(|(when, _)| now.secs().saturating_sub(*when) <= WINDOW);
        let (mut early, mut late, mut all) = (0, 0, 0);
        for (_, word) in lately {
            all += 1;
            early += usize::from(*word == Word::Early);
            late += usize::from(*word == Word::Late);
        }
        let most = |count: usize| count >= LEAST_ORIGINS && count * 2 > all;
        match (most(early), most(late)) {
            (true, _) => Some(ClockDoubt::Slow),
            (_, true) => Some(ClockDoubt::Fast),
            _ => None,
        }
    }
}
