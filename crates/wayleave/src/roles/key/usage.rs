//! What routers reported goes to the database: by two tasks beside the loop of the routers' links, which leases rates and waits for no database.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::sleep;
use wayleave_control::capability::{
    AccountPeriods, JournalId, ReportOutcome, RouterNumber, RouterServerInput, UsageChange, UsageRefusal, UsageReport,
};
use wayleave_core::UnixTime;
use wayleave_runtime::Clock;
use wayleave_store::{MAX_OF_PAYER, Note, Store, StoreError};

use super::core::{Core, lock};
use super::routers::{Event, Own};
use super::usage_metrics::UsageMetrics;

/// What routers said that goes into one transaction, at most.
const TOGETHER: usize = 32;
/// How soon the database is tried again.
pub const RETRY: Duration = Duration::from_secs(1);
/// How often it is looked whether something is to be closed or added to sums.
const SETTLE: Duration = Duration::from_millis(500);
/// Totals that are added to sums at a time: others wait for the database meanwhile.
const FOLDED: usize = 10_000;
/// Seconds after its end for which usage of a key epoch is kept as it was reported: a year, and a month to bill it.
const KEPT_SECS: u64 = 400 * 86_400;

/// A step of the machine of links.
pub struct UsageStep {
    pub step: u64,
    pub change: UsageChange,
    /// How often the database had been set back, as far as the loop had heard.
    pub era: u64,
}

/// Why one of the tasks cannot go on, if it cannot.
#[derive(Clone, Default)]
pub struct UsageProblem(Arc<Mutex<Option<String>>>);

impl UsageProblem {
    /// What it is.
    pub fn get(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets it; returns whether it is another one.
    fn set(&self, problem: Option<String>) -> bool {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = *held != problem;
        *held = problem;
        is_new
    }
}

/// What both tasks have.
#[derive(Clone)]
pub struct UsageStore {
    pub store: Store,
    pub core: Arc<Mutex<Core>>,
    pub events: mpsc::Sender<Event>,
    /// How often the database was set back.
    pub era: Arc<AtomicU64>,
    /// What this task does, and why it cannot.
    pub doing: &'static str,
    pub problem: UsageProblem,
    /// Who has many records.
    pub heavy: UsageProblem,
    pub metrics: UsageMetrics,
}

impl UsageStore {
    fn periods(&self) -> AccountPeriods {
        lock(&self.core).server.state().reopened().iter().copied().collect()
    }

    /// Notes what came of a step, and says so once when that changes.
    async fn noted<T>(&self, outcome: Result<T, StoreError>) -> Option<T> {
        let (value, problem) = match outcome {
            Ok(value) => (Some(value), None),
            Err(error) => (None, Some(format!("{} cannot be written: {error}", self.doing))),
        };
        let why = problem.clone();
        if self.problem.set(problem) {
            let event = Event::Own(Own::Unwritten(why));
            let _ = self.events.send(event).await; // fails if the role has stopped
        }
        value
    }

    /// Writes what routers said, in order, and tells the machine once it is durable. What cannot be written now is tried again: routers keep
    /// it, and their reports wait.
    pub async fn write(self, mut steps: mpsc::UnboundedReceiver<UsageStep>) {
        let mut together = Vec::new();
        while steps.recv_many(&mut together, TOGETHER).await > 0 {
            let era = self.era.load(Ordering::Acquire);
            let (numbers, changes): (Vec<u64>, Vec<UsageChange>) = together
                .drain(..)
                .map(|UsageStep { step, change, era: of }| {
                    (step, if of < era { without_confirmation(change) } else { change })
                })
                .unzip();
            let outcomes = self.carry_out(&changes).await;
            for (step, outcome) in numbers.into_iter().zip(outcomes) {
                outcome.iter().for_each(|outcome| self.metrics.add(&outcome.more));
                let stored = Event::Input(RouterServerInput::Stored { step, outcome });
                let _ = self.events.send(stored).await; // fails if the role has stopped
            }
        }
        // The machine that sends steps has ended, and says why.
        std::future::pending::<()>().await;
    }

    /// Writes all of them, again and again until the database can be used. If it cannot be read, each goes by itself: a row that somebody
    /// changed holds up what touches it alone.
    async fn carry_out(&self, changes: &[UsageChange]) -> Vec<Result<ReportOutcome, UsageRefusal>> {
        loop {
            let written = self.store.change_usage(changes, &self.periods()).await;
            let is_unreadable = written.as_ref().is_err_and(|error| !error.is_outage());
            if let Some(outcomes) = self.noted(written).await {
                return outcomes;
            }
            if is_unreadable {
                break;
            }
            sleep(RETRY).await;
        }
        let mut outcomes = Vec::with_capacity(changes.len());
        for change in changes {
            outcomes.push(loop {
                match self.store.change_usage(std::slice::from_ref(change), &self.periods()).await {
                    Ok(mut outcome) => break outcome.pop().unwrap_or_else(|| Ok(ReportOutcome::default())),
                    Err(error) if error.is_outage() => sleep(RETRY).await,
                    Err(_) => break Err(UsageRefusal::Unreadable),
                }
            });
        }
        outcomes
    }

    /// Adds what is closed to sums, closes what ended long ago, and says what others closed and confirmed.
    pub async fn settle(self, routers: Arc<Mutex<BTreeSet<RouterNumber>>>, clock: Clock) {
        let mut seen = None;
        loop {
            let configured = routers.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let settled = self.settle_once(&mut seen, &configured, clock.now().unix.secs()).await;
            self.noted(settled).await;
            sleep(SETTLE).await;
        }
    }

    async fn say(&self, event: Event) {
        let _ = self.events.send(event).await; // fails if the role has stopped
    }

    /// `seen` is the last statement that was complete.
    async fn settle_once(
        &self,
        seen: &mut Option<u64>,
        routers: &BTreeSet<RouterNumber>,
        now: u64,
    ) -> Result<(), StoreError> {
        let (head, known) = (self.store.usage_head().await?, self.store.known_routers().await?);
        self.metrics.set_head(head);
        if head.is_complete && seen.replace(head.statement).is_some_and(|seen| seen != head.statement) {
            self.say(Event::Own(Own::Closed(head.statement, head.closed_before))).await;
        }
        // An old copy of the database: what it lacks, routers have to report again.
        if self.store.take_set_back() {
            self.era.fetch_add(1, Ordering::AcqRel);
            self.say(Event::Own(Own::SetBack(known.confirmed))).await;
        } else {
            self.say(Event::Input(RouterServerInput::Confirmed(known.confirmed))).await;
        }
        let heavy = self.store.heavy_payers().await?;
        self.heavy.set(heavy.first().map(|(principal, records)| {
            format!(
                "principal {principal} has {records} records of usage, of {MAX_OF_PAYER} at most: close time (`wayleave cap usage --close`)"
            )
        }));
        // Who does not know of all owners of a number adds nothing up.
        if lock(&self.core).outage().is_none() {
            // The next round goes on: routers are told meanwhile what is confirmed.
            self.store.fold_usage_for(SETTLE, FOLDED, &self.periods()).await?;
            let note = Note { actor: "the key server", reason: "it ended more than 400 days ago" };
            self.store.close_old_usage(KEPT_SECS, routers, (now, note)).await?;
        }
        Ok(())
    }
}

/// What a router said before the database was set back: what it confirmed then it may have to report again.
fn without_confirmation(change: UsageChange) -> UsageChange {
    match change {
        UsageChange::Confirm { router, .. } => {
            let nothing = UsageReport { journal: JournalId([0; 16]), number: 0, entries: Vec::new() };
            UsageChange::Report { router, report: nothing, received: UnixTime(0) }
        }
        other => other,
    }
}
