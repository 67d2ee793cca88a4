//! The roles that a console shows: each is asked for its overview and its events, and what is new goes to whoever looks.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::{broadcast, watch};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::Instant;
use wayleave_runtime::clock::unix_now;
use wayleave_runtime::http::{Told, ViewError};

use crate::config::console::{ConsoleFile, StatusPages};
use crate::config::fetch;
use crate::failure::Failure;

/// Between two looks at the events of a role, while a browser is open; and between two looks at all else.
const EVENTS_INTERVAL: Duration = Duration::from_millis(150);
const OVERVIEW_INTERVAL: Duration = Duration::from_secs(1);
/// The same while nobody looks.
const IDLE_INTERVAL: Duration = Duration::from_secs(10);
/// How long a role may take to answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Events of all roles that are kept, newest last.
const MAX_EVENTS: usize = 1_000;
/// Messages that may wait for one browser; who misses one begins anew.
const QUEUE: usize = 256;

/// One party of an exchange.
type PartyOf = (String, u64);

/// All of them.
pub struct Sources {
    all: Vec<(String, StatusPages)>,
    is_lab: bool,
    state: Mutex<State>,
    told: broadcast::Sender<Told>,
    /// Why the console must not go on.
    refused: watch::Sender<Option<String>>,
}

#[derive(Default)]
struct State {
    /// What is known of each, by name.
    seen: BTreeMap<String, Seen>,
    events: VecDeque<Value>,
    /// Which party each is that is one.
    parties: BTreeMap<String, PartyOf>,
}

/// What is known of a role.
#[derive(Clone, Default, PartialEq)]
struct Seen {
    /// Its overview, as it last gave it.
    overview: Option<Value>,
    /// Why it does not answer, while it does not.
    absent: Option<String>,
    /// When it last answered, in seconds of Unix time.
    answered: Option<u64>,
}

/// What a look at the events of a role has brought so far.
#[derive(Default)]
struct Read {
    /// The last of its list, by which new ones are told.
    last: Option<Value>,
}

impl Sources {
    pub fn new(config: &ConsoleFile) -> Self {
        let all = config.sources.iter().map(|entry| (entry.name.get_ref().clone(), entry.at.get_ref().0.clone()));
        Self {
            all: all.collect(),
            is_lab: config.console.lab,
            state: Mutex::default(),
            told: broadcast::channel(QUEUE).0,
            refused: watch::channel(None).0,
        }
    }

    /// Asks all roles until the result is dropped.
    pub fn watch(self: &Arc<Self>) -> JoinSet<()> {
        let mut tasks = JoinSet::new();
        for (name, pages) in self.all.clone() {
            let sources = Arc::clone(self);
            tasks.spawn(async move { sources.watch_one(name, pages).await });
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
        let state = self.state();
        let one = |(name, pages): &(String, StatusPages)| {
            let seen = state.seen.get(name).cloned().unwrap_or_default();
            describe(name, pages, &seen)
        };
        json!({ "version": 1, "lab": self.is_lab, "sources": self.all.iter().map(one).collect::<Vec<_>>() })
    }

    /// What a browser is told first, and what it is told later.
    pub fn stream(&self) -> (Vec<Told>, broadcast::Receiver<Told>) {
        // What comes in between is told twice, and nothing is missing.
        let later = self.told.subscribe();
        let list = self.list();
        let events: Vec<Value> = self.state().events.iter().cloned().collect();
        (vec![("sources", list), ("events", json!(events))], later)
    }

    /// A page of a role: `path` is its name and its parameters, as in a request.
    pub async fn page(&self, name: &str, path: String) -> Result<Value, ViewError> {
        let Some((_, pages)) = self.all.iter().find(|(known, _)| known == name) else {
            return Err(ViewError::NotFound(format!("no source is named `{}`", name.escape_debug())));
        };
        ask(pages.clone(), path).await.map_err(|failure| ViewError::Failed(failure.in_one_line()))
    }

    async fn watch_one(&self, name: String, pages: StatusPages) {
        let (mut read, mut next_overview, mut is_known) = (Read::default(), Instant::now(), false);
        loop {
            if Instant::now() >= next_overview {
                next_overview = Instant::now() + OVERVIEW_INTERVAL;
                let overview = ask(pages.clone(), "overview".to_owned()).await;
                // Which party it is stays until it is another process.
                if overview.is_ok() && !is_known {
                    is_known = self.learn_party(&name, &pages).await;
                }
                is_known &= overview.is_ok();
                self.take_overview(&name, &pages, overview);
            }
            if let Ok(list) = ask(pages.clone(), "events".to_owned()).await {
                self.take_events(&name, &list, &mut read);
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

    /// Whether it is known which party a role is, if it is one.
    async fn learn_party(&self, name: &str, pages: &StatusPages) -> bool {
        let Ok(status) = ask(pages.clone(), "status".to_owned()).await else { return false };
        let party = status["party"].as_u64().zip(status["exchange"].as_str());
        let Some((number, exchange)) = party else { return true };
        let mut state = self.state();
        state.parties.insert(name.to_owned(), (exchange.to_owned(), number));
        let other = state.parties.iter().find(|(_, (of, other))| of == exchange && *other != number);
        if let (Some((other, _)), false) = (other, self.is_lab) {
            let why = format!(
                "`{name}` and `{other}` are both parties of the exchange {}: nobody may see both, since together they know every policy",
                exchange.escape_debug()
            );
            self.refused.send_replace(Some(why));
        }
        true
    }

    fn take_overview(&self, name: &str, pages: &StatusPages, overview: Result<Value, Failure>) {
        let mut state = self.state();
        let seen = state.seen.entry(name.to_owned()).or_default();
        let before = (seen.overview.clone(), seen.absent.clone());
        match overview {
            Ok(overview) => {
                seen.answered = Some(unix_now().secs());
                (seen.overview, seen.absent) = (Some(overview), None);
            }
            Err(failure) => seen.absent = Some(failure.in_one_line()),
        }
        if before != (seen.overview.clone(), seen.absent.clone()) {
            let told = describe(name, pages, seen);
            let _ = self.told.send(("source", told)); // nobody may look
        }
    }

    fn take_events(&self, name: &str, list: &Value, read: &mut Read) {
        let all = list["events"].as_array().map_or(&[][..], Vec::as_slice);
        let new = newer(all, read.last.as_ref());
        if new.is_empty() {
            return;
        }
        read.last = all.last().cloned();
        let mut state = self.state();
        for event in new {
            let mut event = event.clone();
            event["source"] = json!(name);
            if state.events.len() == MAX_EVENTS {
                state.events.pop_front();
            }
            state.events.push_back(event.clone());
            let _ = self.told.send(("event", event)); // nobody may look
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The events that came after `last`. All, if it is not among them: the role has begun anew, or has had more than it keeps.
fn newer<'a>(all: &'a [Value], last: Option<&Value>) -> &'a [Value] {
    let at = last.and_then(|last| all.iter().rposition(|event| event == last));
    at.map_or(all, |at| &all[at + 1..])
}

fn describe(name: &str, pages: &StatusPages, seen: &Seen) -> Value {
    json!({
        "name": name,
        "at": pages.to_string(),
        "overview": seen.overview,
        "absent": seen.absent,
        "answered": seen.answered,
    })
}

/// Asks a role for `/api/v1/PATH`.
async fn ask(pages: StatusPages, path: String) -> Result<Value, Failure> {
    let asked = spawn_blocking(move || fetch::json_within(&pages.target(), &format!("/api/v1/{path}"), TIMEOUT));
    match asked.await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(failures)) => Err(failures.0.into_iter().next().unwrap_or_else(|| Failure::new("no answer"))),
        Err(_) => Err(Failure::new("the console stops")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_new_is_told_and_all_of_a_role_that_began_anew() {
        let events: Vec<Value> = (0..4).map(|at| json!({ "unix": at })).collect();
        assert_eq!(newer(&events, None).len(), 4);
        assert_eq!(newer(&events, Some(&events[1])), &events[2..]);
        assert!(newer(&events, Some(&events[3])).is_empty());
        assert_eq!(newer(&events[2..], Some(&events[0])), &events[2..], "more than it keeps");
    }
}
