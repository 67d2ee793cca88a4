//! Events of a role. Each is written once, by `event!`, as a kind, a level, a text and fields: the line of the log, the limit of
//! such lines, the entry of `show events` and the count of the metrics all come from it.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::{self, Display};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use serde_json::{Map, Value, json};
use tokio::time::Instant;
use tracing::{Level, error, info, warn};
use wayleave_runtime::clock::{unix_now, utc};
use wayleave_runtime::http::{Metric, Unit};
use wayleave_runtime::log_limit::{Line, LogLimit};

/// Events in the list; older ones are dropped.
pub const MAX_EVENTS: usize = 1000;
/// Kinds and causes of lines whose limits are kept; all beyond share one. As many as an exchange has members, and a few kinds.
const MAX_LIMITS: usize = 4096;

/// Causes of lines of one pair of a member's proxy: the numbers of its parties.
const CAUSES_OF_PAIR: usize = 1 << 16;

/// What a line is about, and who caused it: a pair, a slot.
type Kind = (&'static str, usize);

/// What an operator is told: `event!` makes it.
#[derive(Clone, Debug)]
pub struct EventLine {
    level: Level,
    kind: &'static str,
    /// Who has caused it, where others can cause it again and again. Without one it has no limit.
    cause: Option<usize>,
    text: String,
    fields: Vec<(&'static str, Recorded)>,
    /// For `show events` alone.
    details: Vec<(&'static str, Recorded)>,
}

/// The value of a field.
#[derive(Clone, Debug)]
pub struct Recorded {
    value: Value,
    /// Whether a text stands in the log without quotation marks.
    is_bare: bool,
}

/// What a field can hold.
pub trait Record {
    fn record(&self) -> Recorded;
}

impl<T: Serialize> Record for T {
    fn record(&self) -> Recorded {
        Recorded { value: json!(self), is_bare: false }
    }
}

/// A value that is recorded as it is displayed, without quotation marks.
pub struct Shown(String);

impl Record for Shown {
    fn record(&self) -> Recorded {
        Recorded { value: json!(self.0), is_bare: true }
    }
}

pub fn shown(value: impl Display) -> Shown {
    Shown(value.to_string())
}

/// An [`EventLine`]: a level, the kind, `by` whom if others can cause it again and again, fields, and the text with its arguments. What
/// follows a semicolon among the fields is for `show events` alone. A field that is null is not logged.
///
/// ```ignore
/// event!(WARN "refused" by *slot, { slot, version; why = reason.to_string() } "object of slot {slot} refused: {reason}")
/// ```
macro_rules! event {
    ($level:ident $kind:literal $(by $cause:expr,)?
     { $($name:ident $(= $value:expr)?),* $(; $($detail:ident $(= $of:expr)?),*)? } $($text:tt)+) => {
        $crate::roles::events::EventLine::new(tracing::Level::$level, $kind, format!($($text)+))
            $(.by($cause))?
            $(.field(stringify!($name), &$crate::roles::events::value!($name $($value)?)))*
            $($(.detail(stringify!($detail), &$crate::roles::events::value!($detail $($of)?)))*)?
    };
}

/// A field's value: that of the variable with its name, unless another is given.
macro_rules! value {
    ($name:ident) => {
        $name
    };
    ($name:ident $value:expr) => {
        $value
    };
}

pub(crate) use {event, value};

impl EventLine {
    pub fn new(level: Level, kind: &'static str, text: String) -> Self {
        Self { level, kind, cause: None, text, fields: Vec::new(), details: Vec::new() }
    }

    pub fn by(self, cause: impl TryInto<usize>) -> Self {
        Self { cause: Some(cause.try_into().unwrap_or(usize::MAX)), ..self }
    }

    pub fn field(mut self, name: &'static str, value: &impl Record) -> Self {
        self.fields.push((name, value.record()));
        self
    }

    pub fn detail(mut self, name: &'static str, value: &impl Record) -> Self {
        self.details.push((name, value.record()));
        self
    }

    /// Of this pair of a member's proxy, the `number`th: its lines have a limit of their own.
    pub fn of_pair(self, number: usize, name: &str) -> Self {
        let cause = self.cause.map(|cause| cause.saturating_add(number.saturating_mul(CAUSES_OF_PAIR)));
        Self { cause, ..self }.field("pair", &shown(name))
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    /// As `show events` has it.
    fn what(&self) -> Value {
        let all = self.fields.iter().chain(&self.details);
        let fields = all.map(|(name, field)| ((*name).to_owned(), field.value.clone()));
        [("event".to_owned(), json!(self.kind))].into_iter().chain(fields).collect::<Map<_, _>>().into()
    }
}

/// As the log has it, and below it as `show events` does.
#[cfg(test)]
impl Display for EventLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cause = self.cause.map_or(String::new(), |cause| format!(" by {cause}"));
        writeln!(f, "{} [{}{cause}] {}{}", self.level, self.kind, self.text, Fields(&self.fields))?;
        writeln!(f, "    {}", self.what())
    }
}

/// The fields as they stand in the log: behind the text, or with `#` as members of its JSON object, which the log's formatter puts
/// beside those of its own.
struct Fields<'a>(&'a [(&'static str, Recorded)]);

impl Display for Fields<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, Recorded { value, is_bare }) in self.0.iter().filter(|(_, field)| !field.value.is_null()) {
            match value {
                value if f.alternate() => write!(f, ",\"{name}\":{value}")?,
                Value::String(text) if *is_bare => write!(f, " {name}={text}")?,
                Value::String(text) => write!(f, " {name}={text:?}")?,
                value => write!(f, " {name}={value}")?,
            }
        }
        Ok(())
    }
}

/// A bounded list of events, the newest last, and how many lines of each kind may be logged.
#[derive(Clone, Debug, Default)]
pub struct Events(Arc<Mutex<Noted>>);

#[derive(Debug)]
struct Noted {
    /// Differs in each process, so that who reads the list knows when it has begun anew.
    run: String,
    /// The newest, with its number. Numbers rise by one from 1.
    last: u64,
    events: VecDeque<(u64, Value)>,
    limits: BTreeMap<Kind, LogLimit>,
    /// Events of each kind since the start, those beyond a limit included.
    counts: BTreeMap<&'static str, u64>,
}

impl Default for Noted {
    fn default() -> Self {
        // The keys of each `RandomState` are the system's randomness.
        let run = format!("{:016x}", RandomState::new().hash_one(unix_now().secs()));
        Self { run, last: 0, events: VecDeque::new(), limits: BTreeMap::new(), counts: BTreeMap::new() }
    }
}

impl Events {
    fn lock(&self) -> MutexGuard<'_, Noted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Logs an event and keeps it, unless there were too many of its kind by whoever caused it.
    pub fn report(&self, event: EventLine) {
        *self.lock().counts.entry(event.kind).or_default() += 1;
        let line = event.cause.map_or(Some(Line::default()), |cause| self.admit(event.kind, cause));
        let Some(Line { suppressed }) = line else { return };
        self.note(&event.what());
        let mut fields = event.fields;
        fields.push(("suppressed", suppressed.record()));
        // The macros of `tracing` know each field when they are compiled, so that these go as one; see `wayleave_runtime::logs`.
        let (fields, text) = (Fields(&fields), event.text);
        match event.level {
            Level::ERROR => error!(fields = %fields, "{text}"),
            Level::WARN => warn!(fields = %fields, "{text}"),
            _ => info!(fields = %fields, "{text}"),
        }
    }

    /// How many events of each kind there were since the start, those beyond a limit included.
    pub fn metric(&self) -> Metric {
        let counts =
            self.lock().counts.iter().map(|(kind, count)| (vec![("kind", (*kind).to_owned())], *count)).collect();
        Metric::counters("reported", Unit::Events, "What `show events` and the log tell of, by kind", counts)
    }

    /// Adds an event with the time.
    pub fn note(&self, event: &impl Serialize) {
        let now = unix_now().secs();
        let noted = &mut *self.lock();
        noted.last += 1;
        let event = json!({ "number": noted.last, "unix": now, "time": utc(now), "what": event });
        if noted.events.len() == MAX_EVENTS {
            noted.events.pop_front();
        }
        noted.events.push_back((noted.last, event));
    }

    /// Whether one more line of this kind is logged and noted that `who` has caused; if not, it is counted. For all that a peer
    /// can cause again and again: it must neither fill a disk nor push everything else out of the list.
    pub fn admit(&self, kind: &'static str, who: usize) -> Option<Line> {
        let limits = &mut self.lock().limits;
        let is_known = limits.contains_key(&(kind, who));
        let key = if is_known || limits.len() < MAX_LIMITS { (kind, who) } else { ("other", 0) };
        limits.entry(key).or_default().note(Instant::now())
    }

    /// What tells this process from any other that answers at the same place.
    pub fn run(&self) -> String {
        self.lock().run.clone()
    }

    /// The whole list as JSON, with how many lines of each kind were not logged.
    #[cfg(test)]
    pub fn list(&self) -> Value {
        self.list_after(0, MAX_EVENTS)
    }

    /// The `most` newest events that came after the one with this number. All count as newer if no event has had the number yet: it
    /// is of an earlier process.
    pub fn list_after(&self, after: u64, most: usize) -> Value {
        let noted = self.lock();
        let after = if after > noted.last { 0 } else { after };
        let mut events: Vec<&Value> =
            noted.events.iter().rev().take_while(|(number, _)| *number > after).take(most).map(|(_, of)| of).collect();
        events.reverse();
        let mut suppressed: BTreeMap<&str, u64> = BTreeMap::new();
        for ((kind, _), limit) in noted.limits.iter().filter(|(_, limit)| limit.suppressed() > 0) {
            *suppressed.entry(kind).or_default() += limit.suppressed();
        }
        json!({ "version": 1, "run": noted.run, "events": events, "suppressed": suppressed })
    }
}

#[cfg(test)]
mod tests {
    //! KCX-38: endless causes of log lines: few limits, and every line that is left out is counted.

    use super::*;

    #[test]
    fn who_reads_the_list_again_is_given_what_is_new() {
        let events = Events::default();
        for at in 1..=4 {
            events.note(&json!({ "event": "same", "at": at }));
        }
        let numbers = |after, most| {
            let list = events.list_after(after, most);
            list["events"].as_array().expect("a list").iter().map(|event| event["number"].as_u64()).collect::<Vec<_>>()
        };
        assert_eq!(numbers(0, 9), [Some(1), Some(2), Some(3), Some(4)]);
        assert_eq!(numbers(2, 9), [Some(3), Some(4)]);
        assert_eq!(numbers(0, 1), [Some(4)], "the newest");
        assert!(numbers(4, 9).is_empty());
        assert_eq!(numbers(5, 9).len(), 4, "a number of an earlier process");
        assert_ne!(events.run(), Events::default().run());
    }

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
