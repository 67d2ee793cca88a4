//! `run router`: the verifying router. Threads forward; everything else is told to them between two bursts.

mod accounts;
mod bfd;
mod icing;
mod journal;
mod pages;
mod platypus;
mod ports;
mod rates;
mod reports;
mod revocations;
mod scion;
mod stamper;
mod worker;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::sync::mpsc;
use tracing::{error, info, warn};
use wayleave_core::Now;
use wayleave_dataplane::platypus::account::Total;
use wayleave_dataplane::replay::ReplayFilter;
use wayleave_runtime::Clock;
use wayleave_runtime::clock::unix_now;
use wayleave_runtime::huge_pages;
use wayleave_runtime::packets::Burst;
use wayleave_runtime::signals::{Request, Signals};
use wayleave_runtime::store::{FileStore, Store};
use wayleave_runtime::systemd::{Notice, monotonic_micros, notify};

use super::{Events, not_ready_yet, warn_of_restart};
use crate::config::router::{Format, PlatypusSection, RouterFile, ScionSection};
use crate::config::{Fault, Source};
use crate::failure::{Failure, Failures, Outcome};
use crate::key_files::forwarding::ForwardingKeys;
use accounts::{Account, Payer};
use journal::Journal;
use ports::Wanted;
use revocations::Watched;
use stamper::{Held, Plan};
use worker::{Attached, Handle, Out, Tally, Way, ask};

/// What a reload takes in; keys and lists are read again too.
const LIVE: [&str; 18] = [
    "scion",
    "interface",
    "link",
    "forwarding.keys",
    "platypus.waypoints",
    "platypus.narrow",
    "platypus.freshness_secs",
    "platypus.refused",
    "platypus.allowed_waypoints",
    "platypus.rates",
    "platypus.revocations.file",
    "platypus.revocations.key",
    "stamper.routes",
    "stamper.rules",
    "icing.tags",
    "icing.services",
    "icing.accounts",
    "icing.identity",
];
/// How often accounts go to the journal: what a crash may lose is this and the time of a commit.
const JOURNAL_EVERY: Duration = Duration::from_millis(250);
/// How often keys, lists and their files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long ahead of its time the next key is taken in: clocks differ. Seconds.
const AHEAD_SCION: u64 = 400;
const AHEAD_PLATYPUS: u64 = 86_400;
const AHEAD_ICING: u64 = 2 << 12;
/// The table of accounts.
const ACCOUNTS: &str = "accounts";

/// One thread's data plane.
pub enum Engine {
    Scion(Box<scion::Engine>),
    Platypus(Box<platypus::Engine>),
    Icing(Box<icing::Engine>),
}

impl Engine {
    #[inline]
    fn process(
        &mut self,
        burst: &mut Burst,
        first: usize,
        from: (usize, Way),
        now: Now,
        out: &mut Out,
        tally: &mut Tally,
    ) {
        match self {
            Engine::Scion(engine) => engine.process(burst, first, from, now, out, tally),
            Engine::Platypus(engine) => engine.process(burst, first, from, now, out, tally),
            Engine::Icing(engine) => engine.process(burst, first, from, now, out, tally),
        }
    }
}

/// Keys to verify with, and capabilities to stamp with.
type Secrets<'a> = (&'a ForwardingKeys, Option<&'a Held>);

/// Runs the router until SIGTERM.
pub async fn run(path: &Path) -> Outcome {
    huge_pages::ask();
    let source = Source::read(path)?;
    let file = RouterFile::parse(&source)?;
    let clock = Clock::start();
    let keys = load_keys(&file, &source)?;
    let held = Held::load(&file, &source)?;
    let store = match &file.forwarding.state {
        Some(state) => Some(Arc::new(FileStore::open(&source.resolve(state))?)),
        None => None,
    };
    let journal = restored(store.as_deref())?;
    let mut signals = Signals::listen().map_err(|error| Failure::new(format!("no signals: {error}")))?;
    let (control, heard) = mpsc::channel(worker::CONTROL_QUEUE);
    let workers = start(&file, (&keys, held.as_ref()), &journal, clock, &control)?;
    let (ready, is_ready) = not_ready_yet();
    let log = Events::default();
    let tasks = workers.iter().map(|worker| worker.tasks.clone()).collect();
    let wanted = bfd::Wanted::new(&file, &keys, unix_now().secs());
    let sessions = bfd::Sessions::start(wanted, heard, tasks, clock, log.clone());
    let shown = pages::Shown::new(&file, &workers, &journal, store.clone(), (log, sessions.clone()));
    shown.configured(&file, &keys);
    shown.identified(icing::identity(&file, &source)?);
    let log = shown.log.clone();
    let _pages = pages::serve(&file, &shown, is_ready).await?;
    let watched = Watched::new(&file, &source, store.clone())?;
    let mut router = Daemon {
        path: path.to_owned(),
        started: source.clone(),
        source,
        live: live_times(&keys, &file),
        stamped: stamped_epochs(held.as_ref()),
        file,
        keys,
        held,
        store: store.clone(),
        workers,
        watched,
        log,
        shown,
        sessions,
        journal: Journal::new(store.map(|store| store as Arc<dyn Store>), &journal),
    };
    router.watched.look(&router.workers, &router.log).await;
    info!(format = router.file.forwarding.format.name(), threads = router.workers.len(), "running");
    drop(ready.send_replace(Ok(())));
    notify(Notice::Ready);
    let mut journal = tokio::time::interval(JOURNAL_EVERY);
    let mut look = tokio::time::interval(LOOK_EVERY);
    loop {
        tokio::select! {
            asked = signals.next() => match asked {
                Request::Reload => {
                    notify(Notice::Reloading(monotonic_micros()));
                    router.reload().await;
                    notify(Notice::Ready);
                }
                Request::Stop => break,
            },
            _ = journal.tick() => router.journal().await,
            _ = look.tick() => router.look().await?,
        }
    }
    notify(Notice::Stopping);
    info!("stopping");
    router.stop().await;
    Ok(())
}

fn load_keys(file: &RouterFile, source: &Source) -> Result<ForwardingKeys, Failure> {
    let named = &file.forwarding.keys;
    ForwardingKeys::load(file.forwarding.format, &source.resolve(named.get_ref()))
        .map_err(|failure| source.failure(Fault::of(named.span(), &failure)))
}

fn ahead(format: Format) -> u64 {
    match format {
        Format::Scion => AHEAD_SCION,
        Format::Platypus => AHEAD_PLATYPUS,
        Format::Icing => AHEAD_ICING,
    }
}

/// The beginnings of the keys that are live now.
fn live_times(keys: &ForwardingKeys, file: &RouterFile) -> Vec<u64> {
    let live = keys.live(unix_now().secs(), ahead(file.forwarding.format));
    live.iter().map(|(from, _)| *from).collect()
}

/// The key epochs of what is stamped now; says which capabilities end.
fn stamped_epochs(held: Option<&Held>) -> Vec<Option<stamper::Stamped>> {
    let Some(held) = held else { return Vec::new() };
    held.warn(unix_now());
    held.epochs(unix_now())
}

/// The accounts that the journal holds.
fn restored(store: Option<&FileStore>) -> Outcome<Vec<Account>> {
    let Some(store) = store else { return Ok(Vec::new()) };
    let records = store.load(ACCOUNTS)?;
    let known: Vec<Account> = records.iter().filter_map(|(key, value)| accounts::read_record(key, value)).collect();
    if known.len() < records.len() {
        warn!(records = records.len() - known.len(), "records of accounts that this version does not read");
    }
    Ok(known)
}

/// Opens all ports and starts all threads, or none.
fn start(
    file: &RouterFile,
    secrets: Secrets<'_>,
    journal: &[Account],
    clock: Clock,
    control: &mpsc::Sender<worker::Control>,
) -> Outcome<Vec<Handle>> {
    let count = usize::try_from(*file.forwarding.workers.get_ref()).unwrap_or(1);
    let mut sets: Vec<Vec<Attached>> = (0..count).map(|_| Vec::new()).collect();
    for wanted in ports::wanted(file) {
        for (set, attached) in wanted.open(count)? {
            sets[set].push(attached);
        }
    }
    let mut engines = Vec::new();
    let replay = platypus::replay(file)?;
    for (number, set) in sets.iter().enumerate() {
        engines.push(engine(file, secrets, set, (journal, &replay), number)?);
    }
    let mut workers = Vec::new();
    for (number, (engine, set)) in engines.into_iter().zip(sets).enumerate() {
        let core = file.forwarding.cores.as_ref().map(|cores| cores.get_ref()[number]);
        let worker = worker::start(number, engine, set, clock, core, control.clone())
            .map_err(|error| Failure::new(format!("no thread: {error}")))?;
        workers.push(worker);
    }
    Ok(workers)
}

fn engine(
    file: &RouterFile,
    (keys, held): Secrets<'_>,
    ports: &[Attached],
    (journal, replay): (&[Account], &ReplayFilter),
    number: usize,
) -> Outcome<Engine> {
    let now = unix_now().secs();
    let ahead = ahead(file.forwarding.format);
    Ok(match (&file.scion, &file.platypus) {
        (Some(section), _) => {
            let section: &ScionSection = section.get_ref();
            let config = scion::config(file, section, scion::keys(keys, now, ahead));
            let engine = scion::Engine::new(&config, scion::Table::new(file, section), ports);
            Engine::Scion(Box::new(engine.map_err(|error| Failure::new(error.to_string()))?))
        }
        (None, Some(section)) => {
            let section: &PlatypusSection = section.get_ref();
            let waypoints = platypus::waypoints(section, keys, now, ahead);
            let mut config = platypus::config(file, section, waypoints.clone(), replay.share())?;
            let own =
                journal.iter().filter(|(worker, payer, _)| *worker == number && !journal::is_over(payer, unix_now()));
            let own = own.filter_map(|(_, payer, total)| match payer {
                Payer::Platypus(charge) => Some((*charge, *total)),
                Payer::Icing(_) => None,
            });
            let own: Vec<_> = own.collect();
            if config.accounts > 0 {
                // An account that found no room would begin at nothing, and take its own record's place.
                config.accounts = config.accounts.max(own.len());
            }
            let plan = held.map(|held| Plan::new(file, held, unix_now()));
            let table = platypus::Table::new(file, section, waypoints, plan);
            let mut engine = platypus::Engine::new(config, table, ports, number)?;
            engine.router.accounts().restore(own);
            Engine::Platypus(Box::new(engine))
        }
        (None, None) if file.icing.is_some() => {
            let policy = icing::policy(file, keys, now, ahead);
            let mut engine = icing::Engine::new(file, policy, icing::Table::new(file), ports)?;
            engine.restore(journal);
            Engine::Icing(Box::new(engine))
        }
        // `parse` has seen that there is one.
        (None, None) => return Err(Failure::new("no section for the format").into()),
    })
}

/// What a reload changes in a thread's engine.
#[derive(Clone)]
enum Reload {
    Scion(Box<wayleave_dataplane::scion::Config>, scion::Table),
    Platypus(platypus::Table),
    Icing(Box<wayleave_dataplane::icing::Policy>, icing::Table),
}

impl Reload {
    fn of(file: &RouterFile, (keys, held): Secrets<'_>) -> Result<Self, Failure> {
        let now = unix_now().secs();
        let ahead = ahead(file.forwarding.format);
        match (&file.scion, &file.platypus) {
            (Some(section), _) => {
                let config = scion::config(file, section.get_ref(), scion::keys(keys, now, ahead));
                let tried = wayleave_dataplane::scion::Router::new(&config);
                tried.map_err(|error| Failure::new(error.to_string()))?;
                Ok(Reload::Scion(Box::new(config), scion::Table::new(file, section.get_ref())))
            }
            (None, Some(section)) => {
                let waypoints = platypus::waypoints(section.get_ref(), keys, now, ahead);
                let plan = held.map(|held| Plan::new(file, held, unix_now()));
                Ok(Reload::Platypus(platypus::Table::new(file, section.get_ref(), waypoints, plan)))
            }
            (None, None) if file.icing.is_some() => {
                let policy = icing::policy(file, keys, now, ahead);
                icing::tried(&policy)?;
                Ok(Reload::Icing(Box::new(policy), icing::Table::new(file)))
            }
            (None, None) => Err(Failure::new("no section for the format")),
        }
    }

    /// Takes over ports and configuration between two bursts: what waits at a port that leaves is forwarded first.
    fn apply(self, worker: &mut worker::Worker, wanted: &[Wanted], mut opened: Vec<Attached>) {
        let is_wanted = |attached: &Attached| wanted.iter().any(|wanted| wanted.key == attached.key);
        for place in 0..worker.ports.len() {
            if !is_wanted(&worker.ports[place]) {
                worker.empty(place);
            }
        }
        worker.ports.retain(is_wanted);
        worker.ports.append(&mut opened);
        for attached in &mut worker.ports {
            if let Some(wanted) = wanted.iter().find(|wanted| wanted.key == attached.key) {
                attached.way = wanted.way;
            }
        }
        worker.fit();
        match (self, &mut worker.engine) {
            (Reload::Scion(config, table), Engine::Scion(engine)) => {
                if let Err(error) = engine.reload(&config, table, &worker.ports) {
                    error!(%error, "ALARM: this thread did not take the configuration"); // it was tried before
                }
            }
            (Reload::Icing(policy, table), Engine::Icing(engine)) => {
                if let Err(error) = engine.reload(*policy, table, &worker.ports) {
                    error!(%error, "ALARM: this thread did not take the configuration"); // it was tried before
                }
            }
            (Reload::Platypus(table), Engine::Platypus(engine)) => {
                engine.reload(table, &worker.ports, worker.clock.now());
            }
            _ => {}
        }
    }
}

/// The process around the threads.
struct Daemon {
    path: PathBuf,
    started: Source,
    source: Source,
    file: RouterFile,
    keys: ForwardingKeys,
    /// The beginnings of the keys that the threads have.
    live: Vec<u64>,
    held: Option<Held>,
    /// The key epochs of the capabilities that the threads have.
    stamped: Vec<Option<stamper::Stamped>>,
    store: Option<Arc<FileStore>>,
    workers: Vec<Handle>,
    watched: Watched,
    log: Events,
    shown: pages::Shown,
    sessions: bfd::Sessions,
    journal: Journal,
}

impl Daemon {
    /// Writes down what accounts have sent since the last time.
    async fn journal(&mut self) {
        if self.store.is_none() {
            return;
        }
        for (number, worker) in self.workers.iter().enumerate() {
            let totals = ask(&worker.tasks, |worker| last_totals(&mut worker.engine)).await;
            self.journal.take(number, totals.unwrap_or_default(), &self.shown);
        }
        self.journal.submit();
    }

    /// What follows from the time: keys that begin, lists that are new. A thread that has ended ends the process.
    async fn look(&mut self) -> Outcome {
        if self.workers.iter().any(|worker| worker.thread.is_finished()) {
            return Err(
                Failure::new("a forwarding thread stopped: a bug, please report it with the lines above").into()
            );
        }
        let is_stamped_anew = self.held.as_ref().is_some_and(|held| held.epochs(unix_now()) != self.stamped);
        if is_stamped_anew || live_times(&self.keys, &self.file) != self.live {
            self.apply(Vec::new()).await;
        }
        for worker in &self.workers {
            for port in ask(&worker.tasks, worker::Worker::renew).await.unwrap_or_default() {
                warn!(port, "its network interface is another one now: opened anew");
            }
        }
        self.watched.look(&self.workers, &self.log).await;
        if let Some(section) = &self.file.platypus {
            let rates = rates::Rates::new(section.get_ref(), self.workers.len() as u64);
            rates.divide(&self.workers).await;
        }
        self.close_accounts().await;
        Ok(())
    }

    /// Makes room where the epoch of an account is over, and its last record durable.
    async fn close_accounts(&mut self) {
        for (key, (number, payer)) in self.journal.over(unix_now()) {
            let Payer::Platypus(charge) = payer else { continue };
            let Some(worker) = self.workers.get(number) else { continue };
            let close = move |worker: &mut worker::Worker| match &mut worker.engine {
                Engine::Platypus(engine) => engine.router.accounts().close(&charge),
                Engine::Scion(_) | Engine::Icing(_) => false,
            };
            if ask(&worker.tasks, close).await == Some(true) {
                self.journal.closed(&key);
            }
        }
    }

    async fn reload(&mut self) {
        if let Err(failures) = self.try_reload().await {
            for failure in failures.0 {
                error!("reload: {failure}; nothing changed");
            }
        }
    }

    async fn try_reload(&mut self) -> Result<(), Failures> {
        let source = Source::read(&self.path)?;
        let mut file = RouterFile::parse(&source)?;
        if file.forwarding.format != self.file.forwarding.format {
            return Err(Failure::new("another format needs a restart").into());
        }
        // Threads stay as they are until a restart.
        file.forwarding.workers = self.file.forwarding.workers.clone();
        let keys = load_keys(&file, &source)?;
        let watched = Watched::new(&file, &source, self.store.clone())?;
        let identity = icing::identity(&file, &source)?;
        let held = Held::load(&file, &source)?;
        if held.is_some() != self.held.is_some() {
            return Err(Failure::new("[stamper] is not there, or is there now: that needs a restart").into());
        }
        Reload::of(&file, (&keys, held.as_ref()))?;
        let before = ports::wanted(&self.file);
        let mut opened: Vec<(usize, Attached)> = Vec::new();
        for wanted in ports::wanted(&file).into_iter().filter(|now| before.iter().all(|then| then.key != now.key)) {
            if before.iter().any(|then| then.stands_at() == wanted.stands_at()) {
                return Err(wanted.needs_restart().into());
            }
            opened.extend(wanted.open(self.workers.len())?);
        }
        warn_of_restart(&self.started, &source, &LIVE);
        (self.source, self.file, self.keys, self.held) = (source, file, keys, held);
        self.watched.take_over(watched);
        self.apply(opened).await;
        self.shown.identified(identity);
        info!(
            interfaces = self.file.interface.len(),
            links = self.file.link.len(),
            "configuration and keys read again"
        );
        self.log.note(&json!({ "event": "reload" }));
        Ok(())
    }

    /// Tells every thread the configuration and keys at hand.
    async fn apply(&mut self, mut opened: Vec<(usize, Attached)>) {
        let change = match Reload::of(&self.file, (&self.keys, self.held.as_ref())) {
            Ok(change) => change,
            Err(failure) => return error!("{failure}; nothing changed"),
        };
        for (number, worker) in self.workers.iter().enumerate() {
            let own = opened.extract_if(.., |(set, _)| *set == number).map(|(_, attached)| attached).collect();
            let (change, wanted) = (change.clone(), ports::wanted(&self.file));
            ask(&worker.tasks, move |worker| change.apply(worker, &wanted, own)).await;
        }
        let live = live_times(&self.keys, &self.file);
        if live != self.live {
            info!(from = ?live, "forwarding keys");
            self.log.note(&json!({ "event": "keys", "from": live }));
        }
        self.live = live;
        self.sessions.reload(bfd::Wanted::new(&self.file, &self.keys, unix_now().secs()));
        self.stamped = stamped_epochs(self.held.as_ref());
        self.shown.configured(&self.file, &self.keys);
    }

    /// Takes in what still waits, writes the last totals, and ends the threads.
    async fn stop(mut self) {
        for worker in &self.workers {
            let drained = |worker: &mut worker::Worker| (0..worker.ports.len()).for_each(|place| worker.empty(place));
            ask(&worker.tasks, drained).await;
        }
        for (number, worker) in self.workers.into_iter().enumerate() {
            ask(&worker.tasks, worker::Worker::stop).await;
            match worker.thread.join() {
                // A thread forwards to its end: what it counted then is known only now.
                Ok(mut engine) => self.journal.take(number, last_totals(&mut engine), &self.shown),
                Err(_) => error!("a thread ended badly"),
            }
        }
        self.journal.finish().await;
    }
}

/// What accounts have sent, where that is not written down yet.
fn last_totals(engine: &mut Engine) -> Vec<(Payer, Total)> {
    match engine {
        Engine::Platypus(engine) => {
            let totals = engine.router.accounts().journal().into_iter();
            totals.map(|(charge, total)| (Payer::Platypus(charge), total)).collect()
        }
        Engine::Icing(engine) => engine.journal(),
        Engine::Scion(_) => Vec::new(),
    }
}
