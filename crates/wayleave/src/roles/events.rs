//! The last events of a role, for `show events`, and the limits of what it logs.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::Instant;
use wayleave_runtime::clock::{unix_now, utc};
use wayleave_runtime::log_limit::{Line, LogLimit};

/// Events in the list; older ones are dropped.
const MAX_EVENTS: usize = 1000;
/// Kinds and causes of lines whose limits are kept; all beyond share one. As many as an exchange has members, and a few kinds.
const MAX_LIMITS: usize = 4096;

/// What a line is about, and who caused it: a pair, a slot.
type Kind = (&'static str, usize);

/// A bounded list of events, the newest last, and how many lines of each kind may be logged.
#[derive(Clone, Debug, Default)]
pub struct Events(Arc<Mutex<Noted>>);

#[derive(Debug, Default)]
struct Noted {
    events: VecDeque<Value>,
    limits: BTreeMap<Kind, LogLimit>,
}

impl Events {
    fn lock(&self) -> MutexGuard<'_, Noted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an event with the time.
    pub fn note(&self, event: &impl Serialize) {
        let now = unix_now().secs();
        let event = json!({ "unix": now, "time": utc(now), "what": event });
        let events = &mut self.lock().events;
        if events.len() == MAX_EVENTS {
            events.pop_front();
        }
        events.push_back(event);
    }

    /// Whether one more line of this kind is logged and noted that `who` has caused; if not, it is counted. For all that a peer
    /// can cause again and again: it must neither fill a disk nor push everything else out of the list.
    pub fn admit(&self, kind: &'static str, who: usize) -> Option<Line> {
        let limits = &mut self.lock().limits;
        let is_known = limits.contains_key(&(kind, who));
        let key = if is_known || limits.len() < MAX_LIMITS { (kind, who) } else { ("other", 0) };
        limits.entry(key).or_default().note(Instant::now())
    }

    /// The list as JSON, with how many lines of each kind were not logged.
    pub fn list(&self) -> Value {
        let noted = self.lock();
        let mut suppressed: BTreeMap<&str, u64> = BTreeMap::new();
        for ((kind, _), limit) in noted.limits.iter().filter(|(_, limit)| limit.suppressed() > 0) {
            *suppressed.entry(kind).or_default() += limit.suppressed();
        }
        json!({ "version": 1, "events": noted.events.iter().collect::<Vec<_>>(), "suppressed": suppressed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endless_causes_have_few_limits_and_every_line_that_is_left_out_is_counted() {
        let events = Events::default();
        let admitted =
            |kind: &'static str, who| (0..1_000).filter(|_| events.admit(kind, who).is_some()).count() as u64;
        let lines = admitted("verdict", 1) + admitted("verdict", 2);
        assert!((40..=60).contains(&lines), "{lines}");
        assert_eq!(events.list()["suppressed"], json!({ "verdict": 2_000 - lines }));
        for who in 0..2 * MAX_LIMITS {
            events.admit("stranger", who);
        }
        assert!(events.lock().limits.len() <= MAX_LIMITS + 1);
    }
}
