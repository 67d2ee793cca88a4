//! The process around the threads: it opens them, reloads them, keeps their journal, and stops them.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::{Interval, MissedTickBehavior, interval};
use tracing::{error, info, warn};
use wayleave_dataplane::replay::{ClockJumps, begins};
use wayleave_runtime::clock::unix_now;
use wayleave_runtime::store::{FileStore, Store};

use super::format::{Context, Control, Format};
use super::journal::{Account, Journal, Record};
use super::log_differences;
use super::output::{CONTROL_QUEUE, OutputQueues};
use super::ports::{AttachedPort, PortSpec};
use super::settings::{Settings, random};
use super::tally::TallyFile;
use super::threads::{self, Threads};
use super::view::RouterView;
use super::worker::Worker;
use crate::config::Source;
use crate::config::router::RouterFile;
use crate::config::rs::StatusSection;
use crate::failure::{Failure, Outcome};
use crate::roles::daemon::{Daemon, Role};
use crate::roles::events::{EventLine, Events, event};

/// How often accounts go to the tally: a kill of the process may lose this, and what a thread takes to answer.
const TALLY_INTERVAL: Duration = Duration::from_millis(5);
/// The pause for each record of the round before, if that is longer: a record takes a microsecond or two here, and a fraction of that
/// at its thread, so that very many accounts take a tenth of one core at most.
const TALLY_PAUSE: Duration = Duration::from_micros(20);
/// How often accounts go to the store: a loss of power may take this and the time of a commit.
const JOURNAL_INTERVAL: Duration = Duration::from_millis(250);
/// How often keys, lists and their files are checked.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(1);
/// Rounds of it after which accounts of long ago are looked for.
const FORGET_ROUNDS: u32 = 10;

/// A running router of one format.
pub struct Supervisor<F: Format> {
    settings: Settings,
    control: F::Control,
    store: Option<Arc<FileStore>>,
    threads: Threads<F>,
    joins: Vec<JoinHandle<F>>,
    journal: Journal<F::Account>,
    view: RouterView<F>,
    log: Events,
    /// The beginnings of the keys that the threads have.
    live: Vec<u64>,
    /// How the wall clock had jumped when that was last told.
    jumps: ClockJumps,
    tally_due: Interval,
    journal_due: Interval,
    maintenance_due: Interval,
    /// Of maintenance.
    rounds: u32,
}

/// What is due.
pub enum Task {
    Tally,
    Journal,
    Maintenance,
}

impl<F: Format> Role for Supervisor<F> {
    const NAME: &'static str = "router";
    const LIVE: &'static [&'static str] = F::Control::LIVE;
    type Config = RouterFile;
    type View = RouterView<F>;
    type Event = Task;

    fn parse(source: &Source) -> Outcome<RouterFile> {
        let file = RouterFile::parse(source)?;
        if file.forwarding.format != F::Control::NAME {
            return Err(Failure::new("another `format` needs a restart").into());
        }
        Ok(file)
    }

    fn status(file: &RouterFile) -> Option<&StatusSection> {
        file.status.as_ref()
    }

    /// Opens all ports and starts all threads, or none.
    async fn start(file: RouterFile, daemon: &Daemon) -> Outcome<Self> {
        let mut settings = Settings::load(file, &daemon.source)?;
        let store = match &settings.file.forwarding.state {
            Some(state) => Some(Arc::new(FileStore::open(&settings.source.resolve(state.get_ref()))?)),
            None => None,
        };
        let mut control = F::Control::load(&settings, store.as_ref())?;
        control.begin(&settings, daemon.clock, &daemon.events).await?;
        let state = settings.file.forwarding.state.as_ref().filter(|_| F::Account::ARE_THERE);
        let tally = match state {
            Some(state) => Some(TallyFile::beside(&settings.source.resolve(state.get_ref()), random()?)),
            None => None,
        };
        let kept = store.clone().map(|store| store as Arc<dyn Store>);
        let (journal, restored) = Journal::restore(kept, tally, unix_now())?;
        settings.started = begins(settings.started, journal.last_counted());
        if let Some(last) = journal.last_counted().filter(|last| *last > unix_now()) {
            let secs = last.0.saturating_sub(unix_now().0) as f64 * 1e-6;
            error!(
                secs,
                "the wall clock went back since this router ran before: packets stamped up to what was counted then are refused \
                 for up to seven seconds; if it went back further, packets of that time could be repeated once; check the \
                 time service of this machine"
            );
        }
        let (packets, received) = mpsc::channel(CONTROL_QUEUE);
        let opened = open(&settings, &mut control, &restored)?;
        let (threads, queries) = Threads::channels(opened.len());
        let mut joins = Vec::new();
        for (number, ((format, ports), queries)) in opened.into_iter().zip(queries).enumerate() {
            let worker = Worker::new(format, ports, OutputQueues::new(packets.clone()), daemon.clock, queries);
            let core = settings.file.forwarding.cores.as_ref().map(|cores| cores.get_ref()[number]);
            let thread = threads::start(number, core, worker)
                .map_err(|error| Failure::system("cannot start a forwarding thread", &error))?;
            joins.push(thread);
        }
        let log = daemon.events.clone();
        let clock = daemon.clock;
        control.start(Context { settings: &settings, threads: &threads, received, clock, log: &log });
        control.maintain(&settings, &threads, &log).await;
        let view = RouterView::new(&settings, &control, threads.clone(), journal.totals.clone(), store.clone());
        let live = settings.live_times(unix_now(), F::Control::KEYS_AHEAD);
        let (mut tally_due, journal_due) = (interval(TALLY_INTERVAL), interval(JOURNAL_INTERVAL));
        // Rounds that were missed are in the next one.
        tally_due.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let maintenance_due = interval(MAINTENANCE_INTERVAL);
        let (format, jumps) = (settings.file.forwarding.format.name(), ClockJumps::default());
        info!(format, threads = threads.count(), "forwarding");
        Ok(Self {
            settings,
            control,
            store,
            threads,
            joins,
            journal,
            view,
            log,
            live,
            jumps,
            tally_due,
            journal_due,
            maintenance_due,
            rounds: 0,
        })
    }

    fn view(&self) -> RouterView<F> {
        self.view.clone()
    }

    async fn reload(&mut self, mut file: RouterFile, source: &Source) -> Outcome {
        // The number of threads stays until a restart.
        file.forwarding.workers = self.settings.file.forwarding.workers.clone();
        let settings = Settings::load(file, source)?;
        let mut control = F::Control::load(&settings, self.store.as_ref())?;
        self.control.hand_over(&mut control);
        self.control.check_reload(&control)?;
        control.plan(&settings)?;
        let opened = self.open_new_ports(&settings)?;
        log_differences(source, Some(&self.settings.source));
        self.settings = settings;
        self.control.reload(control);
        self.plan(opened).await;
        self.log.note(&json!({ "event": "reload" }));
        Ok(())
    }

    async fn next(&mut self) -> Result<Task, Failure> {
        tokio::select! {
            _ = self.tally_due.tick(), if self.journal.is_kept() => Ok(Task::Tally),
            _ = self.journal_due.tick(), if self.journal.is_kept() => Ok(Task::Journal),
            _ = self.maintenance_due.tick() => Ok(Task::Maintenance),
            failure = self.control.failed() => Err(failure),
        }
    }

    /// # Errors
    /// If a thread has ended: the process must end too, since its share of the packets is no longer forwarded.
    async fn handle(&mut self, task: Task) -> Outcome {
        match task {
            Task::Tally => self.count().await,
            Task::Journal => self.write_journal().await,
            Task::Maintenance => {
                if self.joins.iter().any(JoinHandle::is_finished) {
                    let why = "a forwarding thread stopped: a bug, please report it with the lines above";
                    return Err(Failure::new(why).into());
                }
                self.maintain().await;
            }
        }
        Ok(())
    }

    /// Forwards what still waits, writes the last totals, and ends the threads.
    async fn stop(mut self) {
        for thread in 0..self.threads.count() {
            self.threads.query(thread, Worker::drain_all).await;
        }
        // The first one is last: it may have what others hand to it.
        for (thread, join) in self.joins.into_iter().enumerate().rev() {
            self.threads.query(thread, Worker::stop).await;
            match join.join() {
                // A thread forwards to its end: what it counted then is known only now.
                Ok(mut format) => self.journal.add(thread, format.journal()),
                Err(_) => error!(thread, "a forwarding thread failed: what its accounts sent last is not counted"),
            }
        }
        self.journal.tally(unix_now());
        self.journal.finish().await;
        self.control.end().await;
    }
}

impl<F: Format> Supervisor<F> {
    /// Puts what accounts have sent since the last time into the tally. A thread answers between two bursts: what it says is what it
    /// has handed to the system, so that no total is above what was sent.
    async fn count(&mut self) {
        self.journal.begin_round(unix_now());
        let question = |worker: &mut Worker<F>| worker.format.journal();
        // All at a time: a thread that has no packets answers after a few milliseconds.
        let answers: Vec<_> = (0..self.threads.count()).map(|thread| self.threads.ask(thread, question)).collect();
        let mut records = 0;
        for (thread, answer) in answers.into_iter().enumerate() {
            // One that has ended has nothing to say; maintenance sees it.
            let Some(answer) = answer else { continue };
            let totals = answer.await.unwrap_or_default();
            records += u32::try_from(totals.len()).unwrap_or(u32::MAX);
            self.journal.add(thread, totals);
        }
        self.journal.tally(unix_now());
        let pause = TALLY_PAUSE.saturating_mul(records);
        if pause > TALLY_INTERVAL {
            self.tally_due.reset_after(pause);
        }
    }

    /// Writes down what accounts have sent since the last time, and reports what is durable.
    async fn write_journal(&mut self) {
        self.count().await;
        self.journal.submit(unix_now());
        let durable = self.journal.durable();
        self.control.counted(durable, self.journal.complete());
    }

    /// Does what is due: takes keys that begin, reads lists that are new, reopens ports whose interface was replaced.
    async fn maintain(&mut self) {
        self.watch_clock().await;
        let now = unix_now();
        if self.control.is_stale(now) || self.settings.live_times(now, F::Control::KEYS_AHEAD) != self.live {
            self.plan(Vec::new()).await;
        }
        for port in self.threads.query_all(Worker::renew_ports).await.into_iter().flatten().flatten() {
            warn!(port, "the network interface of a port was replaced: port opened anew");
        }
        self.control.maintain(&self.settings, &self.threads, &self.log).await;
        self.close_accounts().await;
        self.rounds = self.rounds.wrapping_add(1);
        if self.rounds.is_multiple_of(FORGET_ROUNDS) {
            self.forget_accounts();
        }
    }

    /// Drops accounts that ended long ago and whose totals whoever bills has.
    fn forget_accounts(&mut self) {
        let (old, journal) = (self.journal.forgettable(unix_now()), &mut self.journal);
        let accounts = self.control.forget(old, |accounts, more| journal.forget(accounts, more));
        if accounts > 0 {
            info!(accounts, "accounts that ended long ago are with the key server, and forgotten here");
        }
    }

    /// Tells of jumps of the wall clock. All threads know the same of them.
    async fn watch_clock(&mut self) {
        let observe = |worker: &mut Worker<F>| worker.format.observe(worker.clock.now());
        let Some(jumps) = self.threads.query(0, observe).await.filter(|jumps| *jumps != self.jumps) else { return };
        self.log.report(clock_jump_line(jumps));
        self.jumps = jumps;
    }

    /// Makes room where an account is over and its last record is durable.
    async fn close_accounts(&mut self) {
        for (key, (thread, account)) in self.journal.over(unix_now()) {
            let close = move |worker: &mut Worker<F>| worker.format.close(&account);
            if self.threads.query(thread, close).await == Some(true) {
                self.journal.close(&key);
            }
        }
    }

    /// Opens the ports that `settings` has and the running configuration has not.
    fn open_new_ports(&self, settings: &Settings) -> Result<Vec<(usize, AttachedPort)>, Failure> {
        let before = F::Control::ports(&self.settings);
        let mut opened = Vec::new();
        let new = |spec: &PortSpec| before.iter().all(|then| then.key != spec.key);
        for spec in F::Control::ports(settings).into_iter().filter(new) {
            if before.iter().any(|then| then.address() == spec.address()) {
                return Err(spec.needs_restart());
            }
            opened.extend(spec.open(self.threads.count())?);
        }
        Ok(opened)
    }

    /// Gives every thread the plan that follows from the settings at hand, and its share of the ports just opened.
    async fn plan(&mut self, mut opened: Vec<(usize, AttachedPort)>) {
        let plan = match self.control.plan(&self.settings) {
            Ok(plan) => plan,
            Err(failure) => return error!("{failure}; the forwarding threads go on as before"),
        };
        let specs = F::Control::ports(&self.settings);
        for thread in 0..self.threads.count() {
            let own = opened.extract_if(.., |(of, _)| *of == thread).map(|(_, attached)| attached).collect();
            let (plan, specs) = (plan.clone(), specs.clone());
            let reload = move |worker: &mut Worker<F>| worker.reload(plan, &specs, own);
            if let Some(Err(failure)) = self.threads.query(thread, reload).await {
                // The plan was tried before; threads differ now until the next reload.
                error!(thread, "{failure}; this thread goes on with its old configuration: restart the router");
            }
        }
        let live = self.settings.live_times(unix_now(), F::Control::KEYS_AHEAD);
        if live != self.live {
            self.log.report(keys_line(&live));
        }
        self.live = live;
        self.control.planned(&self.settings).await;
        self.view.configure(&self.settings);
    }
}

pub fn clock_jump_line(jumps: ClockJumps) -> EventLine {
    let consequence = if jumps.last < 0 {
        "packets stamped up to what was accepted before are refused for up to seven seconds; if it went back further, \
         packets of that time could be repeated once"
    } else {
        "packets stamped by clocks that did not jump are refused"
    };
    event!(ERROR "clock-jump" { secs = jumps.last as f64 * 1e-6; ahead = jumps.ahead, back = jumps.back }
        "the wall clock jumped: {consequence}; check the time service of this machine and of its senders")
}

pub fn keys_line(from: &[u64]) -> EventLine {
    event!(INFO "keys" { from } "forwarding keys in force, by the second from which each counts")
}

/// Opens all ports, and a format over those of each thread.
fn open<F: Format>(
    settings: &Settings,
    control: &mut F::Control,
    restored: &[Record<F::Account>],
) -> Outcome<Vec<(F, Vec<AttachedPort>)>> {
    let count = usize::try_from(settings.workers()).unwrap_or(1);
    let mut ports: Vec<Vec<AttachedPort>> = (0..count).map(|_| Vec::new()).collect();
    for spec in F::Control::ports(settings) {
        for (thread, attached) in spec.open(count)? {
            ports[thread].push(attached);
        }
    }
    let mut all = Vec::new();
    for (thread, ports) in ports.into_iter().enumerate() {
        let own = restored.iter().filter(|record| record.thread == thread);
        let own = own.map(|record| (record.account, record.total)).collect();
        all.push((F::open(control, settings, thread, &ports, own)?, ports));
    }
    Ok(all)
}
