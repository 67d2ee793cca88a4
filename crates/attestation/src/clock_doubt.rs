//! Doubt of our own clock: when many origins seem to be wrong about the time, it is we who are.

use std::collections::BTreeMap;

use wayleave_core::{Asn, UnixTime, VerdictKind};

use crate::report::{Problem, Report};

/// Origins that must disagree with our clock before it is doubted.
const LEAST_ORIGINS: usize = 3;
/// Seconds for which an origin's last attestation counts.
const WINDOW: u64 = 3600;
/// Origins that are kept, at most; beyond, the oldest are dropped.
const MAX_ORIGINS: usize = 4096;

/// Which way our clock seems to be wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClockDoubt {
    /// Most origins sign for times that have not come: it may be slow.
    Slow,
    /// Most origins' signatures have expired: it may be fast.
    Fast,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum OriginTime {
    InTime,
    Early,
    Late,
}

/// What the newest genuine chain of an origin says.
#[derive(Clone, Copy, Debug)]
struct Heard {
    /// When it came, in seconds since 1970.
    when: u64,
    /// When it was signed, by the origin's clock.
    signed: u64,
    time: OriginTime,
}

/// What the newest genuine chain of each origin says of the time.
#[derive(Debug, Default)]
pub struct ClockWatch {
    origins: BTreeMap<Asn, Heard>,
}

impl ClockWatch {
    /// Notes what a report says of its origin's time. Only chains with right signatures count, since anybody can write a time;
    /// only what the origin itself signed, since any AS after it may sign for as short a time as it likes; and none that is
    /// older than the newest of that origin, since anybody can send again what has expired.
    pub fn observe(&mut self, report: &Report, now: UnixTime) {
        let Some(origin) = report.hops.first().filter(|hop| hop.proved) else { return };
        let now = now.secs();
        let time = match (report.kind, &report.broken) {
            (VerdictKind::Expired, _) if origin.not_after < now => OriginTime::Late,
            (_, Some(broken)) if broken.problem == Problem::NotYetValid && broken.hop == Some(0) => OriginTime::Early,
            (_, Some(broken)) if broken.problem != Problem::NotYetValid => return,
            _ => OriginTime::InTime,
        };
        let heard = Heard { when: now, signed: origin.not_before, time };
        if self.origins.get(&origin.asn).is_some_and(|newest| newest.signed > heard.signed) {
            return;
        }
        self.origins.insert(origin.asn, heard);
        if self.origins.len() > MAX_ORIGINS {
            self.drop_oldest();
        }
    }

    /// Drops the older half, so that a table with many origins is not searched for each route.
    fn drop_oldest(&mut self) {
        let mut times: Vec<u64> = self.origins.values().map(|heard| heard.when).collect();
        let half = times.len() / 2;
        let median = *times.select_nth_unstable(half).1;
        let above = times.iter().filter(|when| **when > median).count();
        let (mut newer, mut left) = (BTreeMap::new(), half.saturating_sub(above));
        for (asn, heard) in std::mem::take(&mut self.origins).into_iter().filter(|(_, heard)| heard.when >= median) {
            // Many may have come in the same second.
            if heard.when > median || left > 0 {
                left -= usize::from(heard.when == median);
                newer.insert(asn, heard);
            }
        }
        self.origins = newer;
    }

    /// Whether our clock is in doubt at `now`: at least three origins, and most of those of the last hour, agree that it
    /// is wrong in one direction.
    #[must_use]
    pub fn doubt(&self, now: UnixTime) -> Option<ClockDoubt> {
        let recent = self.origins.values().filter(|heard| now.secs().saturating_sub(heard.when) <= WINDOW);
        let (mut early, mut late, mut all) = (0, 0, 0);
        for heard in recent {
            all += 1;
            early += usize::from(heard.time == OriginTime::Early);
            late += usize::from(heard.time == OriginTime::Late);
        }
        let most = |count: usize| count >= LEAST_ORIGINS && count * 2 > all;
        match (most(early), most(late)) {
            (true, _) => Some(ClockDoubt::Slow),
            (_, true) => Some(ClockDoubt::Fast),
            _ => None,
        }
    }
}
