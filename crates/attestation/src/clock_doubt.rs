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

/// What the last genuine chain of each origin says of the time, and when it came.
#[derive(Debug, Default)]
pub struct ClockWatch {
    origins: BTreeMap<Asn, (u64, OriginTime)>,
}

impl ClockWatch {
    /// Notes what a report says of its origin's time. Only chains with right signatures count: anybody can write a time.
    pub fn observe(&mut self, report: &Report, now: UnixTime) {
        let Some(origin) = report.hops.first().filter(|hop| hop.proved) else { return };
        let time = match (report.kind, &report.broken) {
            (VerdictKind::Expired, _) => OriginTime::Late,
            (_, Some(broken)) if broken.problem == Problem::NotYetValid => OriginTime::Early,
            (_, None) => OriginTime::InTime,
            _ => return,
        };
        let now = now.secs();
        self.origins.insert(origin.asn, (now, time));
        if self.origins.len() > MAX_ORIGINS {
            self.origins.retain(|_, (when, _)| now.saturating_sub(*when) <= WINDOW);
        }
        if self.origins.len() > MAX_ORIGINS {
            let oldest = self.origins.iter().min_by_key(|(_, (when, _))| *when).map(|(asn, _)| *asn);
            oldest.map(|asn| self.origins.remove(&asn));
        }
    }

    /// Whether our clock is in doubt at `now`: at least three origins, and most of those of the last hour, agree that it
    /// is wrong in one direction.
    #[must_use]
    pub fn doubt(&self, now: UnixTime) -> Option<ClockDoubt> {
        let recent = self.origins.values().filter(|(when, _)| now.secs().saturating_sub(*when) <= WINDOW);
        let (mut early, mut late, mut all) = (0, 0, 0);
        for (_, time) in recent {
            all += 1;
            early += usize::from(*time == OriginTime::Early);
            late += usize::from(*time == OriginTime::Late);
        }
        let most = |count: usize| count >= LEAST_ORIGINS && count * 2 > all;
        match (most(early), most(late)) {
            (true, _) => Some(ClockDoubt::Slow),
            (_, true) => Some(ClockDoubt::Fast),
            _ => None,
        }
    }
}
