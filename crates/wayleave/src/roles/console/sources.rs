//! The roles that a console shows: each is asked for its overview and its events, and what is new goes to whoever looks.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, broadcast, watch};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::Instant;
use wayleave_runtime::clock::unix_now;
use wayleave_runtime::http::{Told, ViewError};

use super::answers::{Event, EventList, Said};
use super::standing::{Identity, Refusal, Rule, Standing};
use crate::config::console::{ConsoleFile, StatusPages};
use crate::config::fetch::{self, Limits};
use crate::failure::Failure;

/// Between two looks at the events of a role, while a browser is open; and between two looks at all else.
const EVENTS_INTERVAL: Duration = Duration::from_millis(150);
const OVERVIEW_INTERVAL: Duration = Duration::from_secs(1);
/// The same while nobody looks.
const IDLE_INTERVAL: Duration = Duration::from_secs(10);
/// How long a role may take for a whole answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Octets of an answer that the console asks for by itself, and of one that a browser asks for.
const MAX_OCTETS: usize = 1 << 20;
const MAX_PAGE: usize = 16 << 20;
/// Events of a role that are kept, and that are told at once: the newest.
const MAX_EVENTS: usize = 200;
/// Pages of one role that browsers may be waiting for, beside what the console asks for; and of all roles.
const MAX_ASKED: usize = 3;
const MAX_ASKED_OF_ALL: usize = 64;
/// Messages that may wait for one browser; who misses one begins anew.
const QUEUE: usize = 256;

/// All of them.
pub struct Sources {
    all: Vec<Source>,
    is_lab: bool,
    state: Mutex<State>,
    asked: Semaphore,
    told: broadcast::Sender<Told>,
    /// Why the console must not go on.
    refused: watch::Sender<Option<String>>,
}

struct Source {
    name: String,
    pages: StatusPages,
    /// Pages that browsers may still ask for.
    asked: Semaphore,
}

struct State {
    rule: Rule,
    /// What is known of each, by name.
    seen: BTreeMap<String, Seen>,
}

/// What is known of a role. There is nothing of its own before it was allowed.
#[derive(Default)]
struct Seen {
    standing: Standing,
    /// Its overview, as it last gave it.
    overview: Option<Said>,
    /// Why it is not shown as of now: it does not answer, or may not be shown.
    absent: Option<String>,
    /// When it last answered, in seconds of Unix time.
    answered: Option<u64>,
    events: VecDeque<Event>,
    /// The process that the last event is of, and its number.
    last: (String, u64),
}

/// A source, as a browser is told of it.
#[derive(Serialize)]
struct Described<'a> {
    name: &'a str,
    at: String,
    overview: Option<&'a Said>,
    absent: Option<&'a str>,
    answered: Option<u64>,
}

/// All sources, likewise.
#[derive(Serialize)]
struct Listed<'a> {
    version: u32,
    lab: bool,
    sources: Vec<Described<'a>>,
}

impl Seen {
    /// The process that may be shown.
    fn allowed(&self) -> Option<&Identity> {
        match &self.standing {
            Standing::Allowed(identity) => Some(identity),
            Standing::Unknown | Standing::Refused(_) => None,
        }
    }

    /// Takes over what a role has said of itself. Whether a browser sees a difference, and why the console must end.
    fn take_overview(&mut self, source: &str, said: Result<Said, String>, rule: &mut Rule) -> (bool, Option<String>) {
        let decided = said.map(|said| (rule.decide(source, &said), said));
        let (overview, absent, ends) = match decided {
            Ok((Ok(identity), said)) => {
                self.standing = Standing::Allowed(identity);
                self.answered = Some(unix_now().secs());
                (Some(said), None, None)
            }
            Ok((Err(refusal), _)) => {
                let (why, ends) = match refusal {
                    Refusal::Source(why) => (why, None),
                    Refusal::BothParties(why) => (why.clone(), Some(why)),
                };
                *self = Self { standing: Standing::Refused(why.clone()), ..Self::default() };
                self.absent = Some(why);
                return (true, ends);
            }
            // It stays on the page as it last was. Whoever answers next says anew what it is.
            Err(why) => {
                self.standing = Standing::Unknown;
                let is_new = self.absent.as_ref() != Some(&why);
                self.absent = Some(why);
                return (is_new, None);
            }
        };
        let is_new = self.overview != overview || self.absent != absent;
        (self.overview, self.absent) = (overview, absent);
        (is_new, ends)
    }

    /// Which events are to be asked for: those after this number.
    fn after(&self) -> u64 {
        let (run, number) = &self.last;
        if self.allowed().is_some_and(|identity| identity.run == *run) { *number } else { 0 }
    }

    /// Takes events of the process that may be shown, and returns those that are new.
    fn take_events(&mut self, source: &str, answer: Value) -> Vec<Event> {
        let list = EventList::of(source, answer, self.after());
        if self.allowed().is_none_or(|identity| identity.run != list.run) {
            return Vec::new();
        }
        let Some(newest) = list.events.last() else { return Vec::new() };
        self.last = (list.run, newest.number);
        let mut new = list.events;
        new.drain(..new.len().saturating_sub(MAX_EVENTS));
        self.events.extend(new.iter().cloned());
        let beyond = self.events.len().saturating_sub(MAX_EVENTS);
        self.events.drain(..beyond);
        new
    }

    fn describe<'a>(&'a self, name: &'a str, pages: &StatusPages) -> Described<'a> {
        let (overview, absent) = (self.overview.as_ref(), self.absent.as_deref());
        Described { name, at: pages.to_string(), overview, absent, answered: self.answered }
    }
}

impl State {
    fn list<'a>(&'a self, all: &'a [Source], is_lab: bool) -> Listed<'a> {
        let sources =
            all.iter().filter_map(|source| Some(self.seen.get(&source.name)?.describe(&source.name, &source.pages)));
        Listed { version: 1, lab: is_lab, sources: sources.collect() }
    }

    /// The events of all roles, the newest last.
    fn events(&self) -> Vec<&Event> {
        let mut events: Vec<&Event> = self.seen.values().flat_map(|seen| &seen.events).collect();
        events.sort_by_key(|event| event.unix);
        events
    }

    fn seen(&mut self, name: &str) -> &mut Seen {
        self.seen.entry(name.to_owned()).or_default()
    }
}

impl Sources {
    pub fn new(config: &ConsoleFile) -> Self {
        let all = config.sources.iter().map(|entry| Source {
            name: entry.name.get_ref().clone(),
            pages: entry.at.get_ref().0.clone(),
            asked: Semaphore::new(MAX_ASKED),
        });
        let all: Vec<Source> = all.collect();
        let is_lab = config.console.lab;
        let seen = all.iter().map(|source| (source.name.clone(), Seen::default())).collect();
        Self {
            all,
            is_lab,
            state: Mutex::new(State { rule: Rule::new(is_lab), seen }),
            asked: Semaphore::new(MAX_ASKED_OF_ALL),
            told: broadcast::channel(QUEUE).0,
            refused: watch::channel(None).0,
        }
    }

    /// Asks all roles until the result is dropped.
    pub fn watch(self: &Arc<Self>) -> JoinSet<()> {
        let mut tasks = JoinSet::new();
        for at in 0..self.all.len() {
            let sources = Arc::clone(self);
            tasks.spawn(async move { sources.watch_one(&sources.all[at]).await });
        }
        tasks
    }

    /// Waits until the console must end. Cancel safe.
    pub async fn refused(&self) -> Failure {
        let mut refused = self.refused.subscribe();
        match refused.wait_for(Option::is_some).await.ok().and_then(|why| why.clone()) {
            Some(why) => Failure::new(why).help(
                "give each operator a console of its own; a laboratory's may show both, with `lab = true` in [console]",
            ),
            None => std::future::pending().await,
        }
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// The sources that answer.
    pub fn answering(&self) -> usize {
        self.state().seen.values().filter(|seen| seen.overview.is_some() && seen.absent.is_none()).count()
    }

    /// All sources, in the order of the configuration.
    pub fn list(&self) -> Value {
        json!(self.state().list(&self.all, self.is_lab))
    }

    /// What a browser is told first, and what it is told later.
    pub fn stream(&self) -> (Vec<Told>, broadcast::Receiver<Told>) {
        // Whatever is told later is told under this lock: nothing comes twice, and nothing is missing.
        let state = self.state();
        let first = [("sources", text(&state.list(&self.all, self.is_lab))), ("events", text(&state.events()))];
        (first.into(), self.told.subscribe())
    }

    /// A page of a role: `path` is its name and its parameters, as in a request.
    pub async fn page(&self, name: &str, path: String) -> Result<Value, ViewError> {
        let Some(source) = self.all.iter().find(|source| source.name == name) else {
            return Err(ViewError::NotFound(format!("no source is named `{}`", name.escape_debug())));
        };
        let Some(before) = self.allowed(source)? else { return Err(not_known(name)) };
        let busy = |_| ViewError::Failed(format!("too many pages of `{name}` are being read: try again in a moment"));
        let _asked = (self.asked.try_acquire().map_err(busy)?, source.asked.try_acquire().map_err(busy)?);
        let own = ["overview", "events", "status"].contains(&path.split('?').next().unwrap_or_default());
        let page = ask(source.pages.clone(), path, if own { MAX_OCTETS } else { MAX_PAGE }).await;
        // Another role may have come to this place: the page is given if the same process answers after it as before.
        self.learn(source).await;
        match self.allowed(source)? {
            Some(identity) if identity == before => page.map_err(|failure| ViewError::Failed(failure.in_one_line())),
            _ => Err(not_known(name)),
        }
    }

    /// What a source is, if it has said so.
    fn allowed(&self, source: &Source) -> Result<Option<Identity>, ViewError> {
        let mut state = self.state();
        match &state.seen(&source.name).standing {
            Standing::Allowed(identity) => Ok(Some(identity.clone())),
            Standing::Unknown => Ok(None),
            Standing::Refused(why) => Err(ViewError::Failed(why.clone())),
        }
    }

    async fn watch_one(&self, source: &Source) {
        let mut next_overview = Instant::now();
        loop {
            if Instant::now() >= next_overview {
                next_overview = Instant::now() + OVERVIEW_INTERVAL;
                self.learn(source).await;
            }
            if let Ok(Some(_)) = self.allowed(source) {
                let after = self.state().seen(&source.name).after();
                let path = format!("events?after={after}&most={MAX_EVENTS}");
                if let Ok(answer) = ask(source.pages.clone(), path, MAX_OCTETS).await {
                    self.take_events(source, answer);
                }
            }
            if self.told.receiver_count() > 0 {
                tokio::time::sleep(EVENTS_INTERVAL).await;
                continue;
            }
            // A browser that comes waits no longer than this for what is new.
            let until = Instant::now() + IDLE_INTERVAL;
            while self.told.receiver_count() == 0 && Instant::now() < until {
                tokio::time::sleep(EVENTS_INTERVAL).await;
            }
        }
    }

    /// Asks a source for its overview, which says what it is.
    async fn learn(&self, source: &Source) {
        let answer = ask(source.pages.clone(), "overview".to_owned(), MAX_OCTETS).await;
        let said = answer.map_err(|failure| failure.in_one_line()).and_then(Said::of);
        let mut state = self.state();
        let State { rule, seen } = &mut *state;
        let seen = seen.entry(source.name.clone()).or_default();
        let (is_new, ends) = seen.take_overview(&source.name, said, rule);
        if let Some(why) = ends {
            self.refused.send_replace(Some(why));
        }
        if is_new && self.told.receiver_count() > 0 {
            let _ = self.told.send(("source", text(&seen.describe(&source.name, &source.pages)))); // nobody may look
        }
    }

    fn take_events(&self, source: &Source, answer: Value) {
        let mut state = self.state();
        let new = state.seen(&source.name).take_events(&source.name, answer);
        if !new.is_empty() && self.told.receiver_count() > 0 {
            let _ = self.told.send(("news", text(&new))); // nobody may look
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn not_known(name: &str) -> ViewError {
    ViewError::Failed(format!("`{name}` has not said what it is, and only then may it be shown; try again in a moment"))
}

fn text(value: &impl Serialize) -> Arc<str> {
    json!(value).to_string().into()
}

/// Asks a role for `/api/v1/PATH`.
async fn ask(pages: StatusPages, path: String, octets: usize) -> Result<Value, Failure> {
    let limits = Limits { octets, ..Limits::within(TIMEOUT) };
    let asked = spawn_blocking(move || fetch::json_within(&pages.target(), &format!("/api/v1/{path}"), limits));
    match asked.await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(failures)) => Err(failures.0.into_iter().next().unwrap_or_else(|| Failure::new("no answer"))),
        Err(_) => Err(Failure::new("the console stops")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(run: &str, party: Option<u64>) -> Said {
        let role = if party.is_some() { "rs" } else { "member" };
        let overview = json!({ "role": role, "run": run, "title": "", "ready": true, "problems": [], "columns": [], "rows": [],
            "counts": [], "party": party, "exchange": party.map(|_| "ix") });
        Said::of(overview).expect("an overview")
    }

    fn events(run: &str, numbers: std::ops::RangeInclusive<u64>) -> Value {
        let event = |number: u64| json!({ "time": "t", "unix": number, "number": number, "what": { "event": "same" } });
        json!({ "run": run, "events": numbers.map(event).collect::<Vec<_>>() })
    }

    fn numbers(events: &[Event]) -> Vec<u64> {
        events.iter().map(|event| event.number).collect()
    }

    #[test]
    fn nothing_of_a_source_is_taken_before_it_is_allowed_nor_from_another_process() {
        let (mut seen, mut rule) = (Seen::default(), Rule::new(false));
        assert!(seen.take_events("alpha", events("a", 1..=3)).is_empty() && seen.events.is_empty());
        seen.take_overview("alpha", Err("no answer".into()), &mut rule);
        assert!(seen.take_events("alpha", events("a", 1..=3)).is_empty());
        assert_eq!(seen.take_overview("alpha", Ok(said("a", None)), &mut rule), (true, None));
        assert_eq!(seen.take_overview("alpha", Ok(said("a", None)), &mut rule), (false, None));
        assert!(seen.take_events("alpha", events("b", 1..=3)).is_empty(), "another process has taken its place");
        assert_eq!(numbers(&seen.take_events("alpha", events("a", 1..=3))), [1, 2, 3]);
        // It does not answer, and the next answer may be another's.
        seen.take_overview("alpha", Err("no answer".into()), &mut rule);
        assert!(seen.overview.is_some() && seen.take_events("alpha", events("a", 4..=4)).is_empty());
    }

    #[test]
    fn of_the_other_party_nothing_is_kept() {
        let mut rule = Rule::new(false);
        let (mut one, mut two) = (Seen::default(), Seen::default());
        assert_eq!(one.take_overview("one", Ok(said("a", Some(1))), &mut rule), (true, None));
        let (_, ends) = two.take_overview("two", Ok(said("b", Some(2))), &mut rule);
        assert!(ends.is_some() && two.overview.is_none() && two.absent == ends);
        assert!(two.take_events("two", events("b", 1..=3)).is_empty());
        // What was shown goes, if its place is taken by who may not be shown.
        one.take_events("one", events("a", 1..=3));
        let (_, ends) = one.take_overview("one", Ok(said("c", Some(2))), &mut rule);
        assert!(ends.is_some() && one.overview.is_none() && one.events.is_empty());
    }

    #[test]
    fn only_what_is_new_is_told_and_all_of_a_role_that_began_anew() {
        let (mut seen, mut rule) = (Seen::default(), Rule::new(false));
        seen.take_overview("alpha", Ok(said("a", None)), &mut rule);
        seen.take_events("alpha", events("a", 1..=3));
        assert_eq!((seen.after(), numbers(&seen.take_events("alpha", events("a", 2..=5)))), (3, vec![4, 5]));
        assert!(seen.take_events("alpha", events("a", 2..=5)).is_empty());
        seen.take_overview("alpha", Ok(said("b", None)), &mut rule);
        assert_eq!((seen.after(), numbers(&seen.take_events("alpha", events("b", 1..=9)))), (0, (1..=9).collect()));
        // However many there are at once.
        let flood = seen.take_events("alpha", events("b", 10..=999));
        assert_eq!((flood.len(), flood[0].number), (MAX_EVENTS, 800));
        assert_eq!(numbers(seen.events.make_contiguous()), numbers(&flood));
    }

    #[test]
    fn events_of_all_roles_are_in_the_order_of_time_and_none_pushes_out_anothers() {
        let mut state = State { rule: Rule::new(false), seen: BTreeMap::new() };
        for (name, range) in [("bravo", 2..=2), ("alpha", 1..=999), ("charlie", 900..=900)] {
            let State { rule, seen } = &mut state;
            let seen = seen.entry(name.to_owned()).or_default();
            seen.take_overview(name, Ok(said("a", None)), rule);
            seen.take_events(name, events("a", range));
        }
        let all = state.events();
        assert_eq!((all[0].source.as_str(), all.len()), ("bravo", MAX_EVENTS + 2));
        assert!(all.windows(2).all(|pair| pair[0].unix <= pair[1].unix));
    }
}
