//! Which of the key servers with one database leases rates: this one, for as long as it holds the row of the lessor.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use wayleave_control::capability::RouterServerInput;
use wayleave_control::tenure::{Holder, LessorRow, RENEWAL, Tenure};
use wayleave_runtime::Clock;
use wayleave_store::{LessorLock, Store, StoreError};

use super::routers::{Event, Own};

/// How long the database may take; what is held is lost after twice that.
const LIMIT: Duration = Duration::from_secs(4);

/// Who leases, as far as it is known here.
#[derive(Clone, Default)]
pub struct LessorView {
    /// The row as it was seen last.
    pub row: LessorRow,
    /// Whether this server is the lessor.
    pub is_own: bool,
    /// Why it is not known.
    pub problem: Option<String>,
}

/// Holds the row, or waits for it.
pub struct LessorTask {
    pub store: Store,
    pub clock: Clock,
    pub events: mpsc::Sender<Event>,
    /// This server's name, for people.
    pub name: String,
    /// The highest epoch of another lessor of which routers have heard.
    pub heard: Arc<AtomicU64>,
    pub view: Arc<Mutex<LessorView>>,
    tenure: Tenure,
    lock: Option<LessorLock>,
    /// What the machine of links was told last.
    told: Option<u64>,
}

impl LessorTask {
    pub fn new(store: Store, clock: Clock, events: mpsc::Sender<Event>, name: String, holder: Holder) -> Self {
        let (heard, view, tenure) = (Arc::default(), Arc::default(), Tenure::new(holder));
        Self { store, clock, events, name, heard, view, tenure, lock: None, told: None }
    }

    /// Runs for as long as the role.
    pub async fn run(mut self) {
        loop {
            let heard = self.heard.swap(0, Ordering::AcqRel);
            if heard > 0 && !self.tenure.heard_of(heard, self.clock.now()) {
                self.say(Event::Own(Own::MadeUp(heard))).await;
            }
            let before = self.tenure.term(self.clock.now());
            // A database that does not answer at all is one that cannot be used.
            let looked = timeout(LIMIT, self.look()).await;
            let looked = looked.unwrap_or_else(|_| Err(StoreError::Unavailable("it does not answer".to_owned())));
            let term = self.tenure.term(self.clock.now());
            if term != before || term.map(|term| term.epoch) != self.told {
                self.told = term.map(|term| term.epoch);
                self.say(Event::Input(RouterServerInput::Term(term))).await;
            }
            self.show(looked, term.is_some());
            sleep(RENEWAL).await;
        }
    }

    fn show(&self, looked: Result<Option<LessorRow>, StoreError>, is_own: bool) {
        let mut view = self.view.lock().unwrap_or_else(PoisonError::into_inner);
        view.is_own = is_own;
        match looked {
            Ok(None) => view.problem = None,
            Ok(Some(row)) => (view.row, view.problem) = (row, None),
            Err(error) => view.problem = Some(format!("who leases rates is not known: {error}")),
        }
    }

    /// Renews the row, or takes it if it may be taken. Returns it, if it was looked at.
    async fn look(&mut self) -> Result<Option<LessorRow>, StoreError> {
        let (asked, holder) = (self.clock.now(), self.tenure.holder());
        if let Some(epoch) = self.tenure.renews(asked) {
            let is_own = self.store.renew_lessor(epoch, holder, self.lock.as_ref()).await?;
            self.tenure.renewed(is_own, asked, self.clock.now());
            // If it is lost, nothing more is leased before anything else is done.
            return Ok(None);
        }
        if self.lock.as_ref().is_none_or(|lock| !lock.is_in_place()) {
            self.lock = self.store.lock_lessor()?;
        }
        let row = self.store.lessor().await?;
        let Some(epoch) = self.tenure.wants(&row, self.lock.is_some(), self.clock.now()) else { return Ok(Some(row)) };
        if self.store.take_lessor(&row, epoch, (holder, &self.name)).await? {
            self.tenure.taken(epoch, asked);
            return Ok(Some(LessorRow { epoch, renewed: 0, holder: Some(holder), name: self.name.clone() }));
        }
        Ok(Some(row))
    }

    async fn say(&self, event: Event) {
        let _ = self.events.send(event).await; // fails if the role has stopped
    }
}

/// Gives the row up, for whoever waits for it. If that does not succeed, the others wait until it is vacant.
pub async fn give_up(store: &Store, view: &Mutex<LessorView>, holder: Holder) {
    let LessorView { row, is_own, .. } = view.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if is_own {
        let _ = timeout(RENEWAL, store.give_up_lessor(row.epoch, holder)).await; // it is vacant by itself soon
    }
}
