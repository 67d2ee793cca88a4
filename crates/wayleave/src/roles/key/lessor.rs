//! Which of the key servers with one database leases rates: this one, for as long as it holds the row of the lessor.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio::time::{sleep, timeout};
use wayleave_control::capability::{RouterNumber, RouterServerInput};
use wayleave_control::tenure::{LessorRow, RENEWAL, Tenure, VALID};
use wayleave_core::Instant;
use wayleave_runtime::Clock;
use wayleave_store::{LessorLock, Store, StoreError};

use super::core::{Core, lock};
use super::routers::{Event, Own};

/// How soon the row is looked at again, at least.
const PAUSE: Duration = Duration::from_millis(50);
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

/// What the links' side tells the task that holds the row.
#[derive(Default)]
pub struct LessorSignals {
    /// How many routers are connected.
    pub connected: AtomicUsize,
    /// The highest epoch of another lessor of which routers have heard.
    pub heard: AtomicU64,
    /// The row is to be looked at now.
    pub due: Notify,
}

/// Holds the row, or waits for it.
pub struct LessorTask {
    pub store: Store,
    pub core: Arc<Mutex<Core>>,
    pub clock: Clock,
    pub events: mpsc::Sender<Event>,
    /// This server's name, for people.
    pub name: String,
    /// The numbers of the routers.
    pub routers: Arc<Mutex<BTreeSet<RouterNumber>>>,
    pub signals: Arc<LessorSignals>,
    pub view: Arc<Mutex<LessorView>>,
    pub tenure: Tenure,
    pub state: LessorState,
}

#[derive(Default)]
pub struct LessorState {
    lock: Option<LessorLock>,
    /// The row as this server wrote it, while it holds it.
    written: LessorRow,
    /// What the machine of links was told last.
    told: Option<u64>,
    /// Since when no router is connected.
    alone: Option<Instant>,
}

impl LessorTask {
    /// Runs for as long as the role.
    pub async fn run(mut self) {
        loop {
            self.heed().await;
            // A database that does not answer at all is one that cannot be used.
            let looked = timeout(LIMIT, self.look()).await;
            let looked = looked.unwrap_or_else(|_| Err(StoreError::Unavailable("it does not answer".to_owned())));
            let now = self.clock.now();
            let term = self.tenure.term(now);
            if term.is_some() || self.state.told.is_some() {
                self.state.told = term.map(|term| term.epoch);
                let others = self.tenure.routers(&self.present(), now.instant);
                self.say(Event::Input(RouterServerInput::Term(term, others))).await;
            }
            if term.is_none() {
                // Another process may take it.
                self.state.lock = None;
            }
            self.show(looked, term.is_some());
            sleep(PAUSE).await;
            let _ = timeout(RENEWAL, self.signals.due.notified()).await; // nobody need say so
        }
    }

    fn present(&self) -> BTreeSet<RouterNumber> {
        self.routers.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn heed(&mut self) {
        let (epoch, now) = (self.signals.heard.swap(0, Ordering::AcqRel), self.clock.now());
        if !self.tenure.heard_of(epoch, now) {
            self.say(Event::Own(Own::MadeUp(epoch))).await;
        }
        self.tenure.heed(now);
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
        // Who does not know the present rates leases none.
        if let Some(outage) = lock(&self.core).outage() {
            return Err(StoreError::Unavailable(outage.why.clone()));
        }
        if self.is_unreached(asked.instant) {
            // Another may have links to routers.
            let is_held = self.tenure.renews(asked).is_some();
            if is_held {
                self.tenure.given_up(None);
                self.store.give_up_lessor(holder).await?;
            }
            let row = self.store.lessor().await?;
            if is_held && row.holder.is_none() && row.epoch == self.state.written.epoch {
                self.tenure.given_up(Some(row.clone()));
            }
            return Ok(Some(row));
        }
        if let Some(epoch) = self.tenure.renews(asked) {
            let is_own = self.renew(epoch, asked.instant).await?;
            self.tenure.renewed(is_own, asked, self.clock.now());
            // If it is lost, nothing more is leased before anything else is done.
            return Ok(is_own.then(|| self.state.written.clone()));
        }
        let is_alone = self.store.is_on_one_machine().then(|| self.is_alone()).transpose()?;
        let row = self.store.lessor().await?;
        let Some(epoch) = self.tenure.wants(&row, is_alone, self.clock.now()) else { return Ok(Some(row)) };
        let mut routers = self.tenure.routers(&self.present(), asked.instant);
        routers.extend(&row.routers);
        // Of the same epoch it is another row all the same.
        let renewed = if epoch == row.epoch { row.renewed + 1 } else { 0 };
        let own = LessorRow { epoch, renewed, holder: Some(holder), name: self.name.clone(), routers };
        let is_taken = match self.store.take_lessor(&row, &own).await {
            // A full disk: that no other process takes it is certain, and that the epoch is a later one follows from the time.
            Err(error) if error.is_outage() && is_alone == Some(true) => true,
            taken => taken?,
        };
        if !is_taken {
            return Ok(Some(row));
        }
        self.tenure.taken(&row, epoch, asked);
        self.state.written = own.clone();
        Ok(Some(own))
    }

    /// Whether no router has been connected for a while.
    fn is_unreached(&mut self, now: Instant) -> bool {
        if self.signals.connected.load(Ordering::Acquire) > 0 {
            self.state.alone = None;
            return false;
        }
        // At its start nobody is connected yet, and nothing is held. On one machine routers reach each process alike.
        let since = *self.state.alone.get_or_insert(now);
        self.state.told.is_none() || !self.store.is_on_one_machine() && now.since(since) >= VALID
    }

    /// Whether this process has the lock.
    fn is_alone(&mut self) -> Result<bool, StoreError> {
        if self.state.lock.as_ref().is_none_or(|lock| !lock.is_in_place()) {
            self.state.lock = self.store.lock_lessor()?;
        }
        Ok(self.state.lock.is_some())
    }

    /// Whether the row is still this server's. Routers that were added, or taken out long ago, are written there first.
    async fn renew(&mut self, epoch: u64, now: Instant) -> Result<bool, StoreError> {
        let (holder, routers) = (self.tenure.holder(), self.tenure.routers(&self.present(), now));
        if routers != self.state.written.routers {
            let row = self.store.lessor().await?;
            if (row.epoch, row.holder) != (epoch, Some(holder)) {
                return Ok(false);
            }
            let own = LessorRow { renewed: row.renewed + 1, routers, ..row.clone() };
            match self.store.take_lessor(&row, &own).await {
                // A full disk: with the lock it is this server's all the same, and is written later.
                Err(error) if error.is_outage() && self.state.lock.is_some() => {}
                written => {
                    let is_own = written?;
                    self.state.written = own;
                    return Ok(is_own);
                }
            }
        }
        self.store.renew_lessor(epoch, holder, self.state.lock.as_ref()).await
    }

    async fn say(&self, event: Event) {
        let _ = self.events.send(event).await; // fails if the role has stopped
    }
}

#[cfg(test)]
mod tests {
    use sqlx::Connection as _;
    use wayleave_control::tenure::Holder;
    use wayleave_store::{Location, StoreKey};

    use super::*;
    use crate::config::testing::Provider;
    use crate::roles::Events;

    async fn administer(place: &Location, sql: &str) {
        let uri = format!("sqlite://{place}");
        let mut connection = sqlx::SqliteConnection::connect(&uri).await.expect("opened");
        sqlx::query(sql).execute(&mut connection).await.expect("done");
        connection.close().await.expect("closed");
    }

    /// The row refuses what it would on a full disk. With the lock no other process has taken it; without, nobody knows.
    #[tokio::test]
    async fn who_has_the_lock_leases_while_the_disk_is_full_and_writes_added_routers_later() {
        let provider = Provider::new("lessor-full");
        let (config, source) = provider.config();
        let clock = Clock::start();
        let (core, _) = Core::open(&config, &source, clock, Events::default()).expect("opened");
        let place = config.database(&source);
        let key = StoreKey::new(config.provider(&source).expect("a key").store_key());
        let (events, _said) = mpsc::channel(1);
        let mut task = LessorTask {
            store: Store::open(&place, key).await.expect("opened"),
            core: Arc::new(Mutex::new(core)),
            clock,
            events,
            name: "this server".to_owned(),
            routers: Arc::new(Mutex::new(BTreeSet::from([1]))),
            signals: Arc::default(),
            view: Arc::default(),
            tenure: Tenure::new(Holder([1; 16])),
            state: LessorState::default(),
        };
        task.signals.connected.store(1, Ordering::Release);
        let taken = task.look().await.expect("taken").expect("a row");
        assert_eq!(taken.routers, BTreeSet::from([1]));
        let full = "CREATE TRIGGER no_space BEFORE UPDATE ON lessor
                    BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END";
        administer(&place, full).await;
        task.routers.lock().expect("sound").insert(2);
        assert_eq!(task.look().await, Ok(Some(taken.clone())));
        assert_eq!(task.tenure.term(clock.now()).map(|term| term.epoch), Some(taken.epoch));
        assert_eq!(task.store.lessor().await.as_ref(), Ok(&taken));
        let lock = task.state.lock.take();
        assert!(task.look().await.is_err_and(|error| error.is_outage()));
        task.state.lock = lock;
        administer(&place, "DROP TRIGGER no_space").await;
        let renewed = LessorRow { renewed: taken.renewed + 1, routers: BTreeSet::from([1, 2]), ..taken };
        assert_eq!(task.look().await, Ok(Some(renewed.clone())));
        assert_eq!(task.store.lessor().await, Ok(renewed));
    }
}
