//! What every role has: configuration and reload, signals, readiness, the state of the store, status pages, logs of start
//! and stop, shutdown. A role adds its machine, its inputs and its outputs.

use std::future::Future;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::{info, warn};
use wayleave_core::Machine;
use wayleave_crypto::secret::{Secret, Seed};
use wayleave_runtime::clock::{unix_now, utc};
use wayleave_runtime::drive::{Io, Query, ask, drive};
use wayleave_runtime::http::{Metric, Pages, Parameters, Reply, Serving, ViewError};
use wayleave_runtime::process_metrics::Detail;
use wayleave_runtime::signals::{Request, Signals};
use wayleave_runtime::store::{FileStore, Health, Store};
use wayleave_runtime::systemd::{Notice, monotonic_micros, notify, watchdog};
use wayleave_runtime::{Clock, ending, faults, starts};

use super::events::{EventLine, MAX_EVENTS, event, shown};
use super::settings::{Order, Orders, Settings};
use super::{Events, parts, settings};
use crate::config::Source;
use crate::config::check::of_another_role;
use crate::config::rs::StatusSection;
use crate::failure::{Failure, Failures, Outcome};
use crate::overview::Overview;

/// Events that may wait for a machine. Whoever sends more waits, as the machine's loop never does.
pub const QUEUE: usize = 1024;
/// Interval between two checks of a role's readiness.
const READINESS_INTERVAL: Duration = Duration::from_millis(200);
/// How long a role that has failed may take to drop what it has, and the exit code if it takes longer: that of any failure.
const END_LIMIT: Duration = Duration::from_secs(5);
const FAILED: u8 = 1;
/// Routes in a view without `?most=N`.
const DEFAULT_ROUTES: usize = 1000;
/// What `?most=N` may be at most: our own limit, since all of them are in memory at once.
const MOST_ROUTES: usize = 100_000;

/// What another configuration would change at what a role has, as it is found.
pub type Comparison = Pin<Box<dyn Future<Output = Option<Value>> + Send>>;

/// A role, as [`run`] starts, reloads and stops it.
pub trait Role: Sized {
    /// As in `wayleave run NAME`; part of every metric's name.
    const NAME: &'static str;
    /// The configuration keys that a reload applies, with all keys below them. All others need a restart.
    const LIVE: &'static [&'static str];
    /// How exactly its page of metrics says what the process takes of its machine.
    const DETAIL: Detail = Detail::Exact;
    /// The configuration file's content, checked.
    type Config;
    /// What the status pages read.
    type View: View;
    /// What [`Role::next`] waits for; `Infallible` if nothing but a failure.
    type Event;

    /// Reads and checks a configuration.
    fn parse(source: &Source) -> Outcome<Self::Config>;

    /// Where the status pages are served; without the section there are none.
    fn status(config: &Self::Config) -> Option<&StatusSection>;

    /// Opens sockets and state, and starts the machine.
    async fn start(config: Self::Config, daemon: &Daemon) -> Outcome<Self>;

    /// What the status pages read while the role runs.
    fn view(&self) -> Self::View;

    /// Applies the live keys of a new configuration, and reads again the files that it names. Changes nothing if it fails.
    async fn reload(&mut self, config: Self::Config, source: &Source) -> Outcome;

    /// What a reload applies also where the configuration has errors, by the configuration in force. Nothing, unless it must not
    /// wait until somebody has mended the file.
    async fn reload_without_configuration(&mut self) -> Outcome {
        Ok(())
    }

    /// What another configuration would change beside settings, where the role can tell. Nothing is changed, and the role goes on while
    /// it is found.
    fn differences(&self, _config: Self::Config) -> Option<Comparison> {
        None
    }

    /// Waits for an event of the role's own. Must be cancel safe: signals interrupt it. An error ends the process.
    async fn next(&mut self) -> Result<Self::Event, Failure>;

    /// Handles an event; never interrupted. An error ends the process.
    async fn handle(&mut self, _event: Self::Event) -> Outcome {
        Ok(())
    }

    /// Ends sessions and threads, and writes what must survive.
    async fn stop(self);
}

/// What the status pages read of a running role. Clones are views of the same role.
pub trait View: Clone + Send + Sync + 'static {
    /// The content of `/api/v1/status`; `version` and `store` are added.
    fn status(&self) -> impl Future<Output = Result<Value, ViewError>> + Send;

    /// What is shown first, from [`View::status`]; the role's problems and readiness are added.
    fn overview(&self, status: &Value) -> impl Future<Output = Result<Overview, ViewError>> + Send;

    /// The metrics of this moment; `None` once the role has stopped.
    fn metrics(&self) -> impl Future<Output = Option<Vec<Metric>>> + Send;

    /// Whether the role does its work, and if not, what is missing; `None` once it has stopped. The store's state is added.
    fn readiness(&self) -> impl Future<Output = Option<Result<(), String>>> + Send;

    /// The role's state, if it keeps any.
    fn store(&self) -> Option<&Arc<FileStore>>;

    /// The views of its parts by name, if it does the same several times: then what it shows is made of theirs.
    fn parts(&self) -> &[(String, Self)] {
        &[]
    }

    /// Adds the role's own views; `status` and `events` are there already.
    fn pages(views: Views<Self>) -> Views<Self>;
}

/// The status pages of a role in the making.
pub struct Views<V> {
    pages: Pages,
    view: V,
    last_reload: LastReload,
    /// The paths that need no parameter.
    paths: Vec<String>,
    /// Whether the role has a page of its own at `/`.
    has_front: bool,
}

impl<V: View> Views<V> {
    /// Adds `/api/v1/NAME`. A request with a parameter that the page does not have is refused.
    #[must_use]
    pub fn page<F, T>(self, name: &str, page: F) -> Self
    where
        F: Fn(V, Parameters) -> T + Send + Sync + 'static,
        T: Future<Output = Result<Value, ViewError>> + Send + 'static,
    {
        self.page_of(name, known_parameters(name), page)
    }

    fn page_of<F, T>(self, name: &str, known: &'static [&'static str], page: F) -> Self
    where
        F: Fn(V, Parameters) -> T + Send + Sync + 'static,
        T: Future<Output = Result<Value, ViewError>> + Send + 'static,
    {
        let Self { pages, view, last_reload, mut paths, has_front } = self;
        let of_page = view.clone();
        let path = format!("/api/v1/{name}");
        if !WITH_PARAMETER.contains(&name) {
            paths.push(path.clone());
        }
        let (page, name) = (Arc::new(page), name.to_owned());
        let pages = pages.view(&path, move |parameters| {
            let checked = check_parameters(&parameters, known);
            let (view, name, page) = (of_page.clone(), name.clone(), Arc::clone(&page));
            async move {
                checked?;
                parts::answer(view, &name, parameters, |view, parameters| page(view, parameters)).await
            }
        });
        Self { pages, view, last_reload, paths, has_front }
    }

    /// The same with these parameters, where roles have others.
    #[must_use]
    pub fn page_with<F, T>(self, name: &str, known: &'static [&'static str], page: F) -> Self
    where
        F: Fn(V, Parameters) -> T + Send + Sync + 'static,
        T: Future<Output = Result<Value, ViewError>> + Send + 'static,
    {
        self.page_of(name, known, page)
    }

    /// Adds all pages below `path`, which follow another program's rules; `first` is the one to which the first page leads.
    #[must_use]
    pub fn tree<F, T>(self, path: &str, first: &str, page: F) -> Self
    where
        F: Fn(V, String, Parameters) -> T + Send + Sync + 'static,
        T: Future<Output = Result<Reply, ViewError>> + Send + 'static,
    {
        let Self { pages, view, last_reload, mut paths, has_front } = self;
        match view.parts() {
            [] => paths.push(format!("{path}/{first}")),
            parts => paths.extend(parts.iter().map(|(name, _)| format!("{path}/{name}/{first}"))),
        }
        let of_page = view.clone();
        let pages = pages.tree(path, move |rest, parameters| {
            let answer = parts::part_of_path(&of_page, rest).map(|(view, rest)| page(view, rest, parameters));
            async move { answer?.await }
        });
        Self { pages, view, last_reload, paths, has_front }
    }

    /// What the pages read.
    pub fn view(&self) -> &V {
        &self.view
    }

    /// Adds something that is done at a POST to `/api/v1/NAME`.
    #[must_use]
    pub fn order<F, T>(self, name: &str, order: F) -> Self
    where
        F: Fn(V) -> T + Send + Sync + 'static,
        T: Future<Output = Result<Value, ViewError>> + Send + 'static,
    {
        let Self { pages, view, last_reload, paths, has_front } = self;
        let of_order = view.clone();
        let pages = pages.order(&format!("/api/v1/{name}"), move || order(of_order.clone()));
        Self { pages, view, last_reload, paths, has_front }
    }

    /// Adds something that is done at a POST to `/api/v1/NAME` from this machine, and changes what the role does.
    #[must_use]
    pub fn local_order<F, T>(self, name: &str, order: F) -> Self
    where
        F: Fn(V, Parameters) -> T + Send + Sync + 'static,
        T: Future<Output = Result<Value, ViewError>> + Send + 'static,
    {
        let Self { pages, view, last_reload, paths, has_front } = self;
        let of_order = view.clone();
        let known = known_parameters(name);
        let (order, name) = (Arc::new(order), name.to_owned());
        let path = format!("/api/v1/{name}");
        let pages = pages.local_order(&path, move |parameters| {
            let checked = check_parameters(&parameters, known);
            let (view, name, order) = (of_order.clone(), name.clone(), Arc::clone(&order));
            async move {
                checked?;
                parts::answer(view, &name, parameters, |view, parameters| order(view, parameters)).await
            }
        });
        Self { pages, view, last_reload, paths, has_front }
    }

    /// The same for what concerns the whole role, also where it has parts.
    #[must_use]
    fn order_to_all<F, T>(self, name: &str, order: F) -> Self
    where
        F: Fn(Parameters) -> T + Send + Sync + 'static,
        T: Future<Output = Result<Value, ViewError>> + Send + 'static,
    {
        let Self { pages, view, last_reload, paths, has_front } = self;
        let known = known_parameters(name);
        let (path, name) = (format!("/api/v1/{name}"), name.to_owned());
        let pages = pages.local_order(&path, move |parameters| {
            let checked = parts::of_all(&name, &parameters).and_then(|()| check_parameters(&parameters, known));
            let answer = checked.map(|()| order(parameters));
            async move { answer?.await }
        });
        Self { pages, view, last_reload, paths, has_front }
    }

    /// Adds pages that are neither JSON nor what all roles have; one of them is `/`.
    #[must_use]
    pub fn site(self, add: impl FnOnce(Pages) -> Pages) -> Self {
        Self { pages: add(self.pages), has_front: true, ..self }
    }

    /// Adds `/`, which shows the overview and leads to the other pages.
    fn front(self, role: &'static str) -> Pages {
        let Self { pages, view, last_reload, paths, has_front } = self;
        if has_front {
            return pages;
        }
        pages.html("/", move || {
            let (view, last_reload, paths) = (view.clone(), last_reload.clone(), paths.clone());
            async move { Ok(overview(&view, &last_reload).await?.html(role, &utc(unix_now().secs()), &paths)) }
        })
    }
}

/// What is wrong with the last reload, if it failed: the configuration in force is then older than the file. Clones are views of the
/// same.
#[derive(Clone, Debug, Default)]
struct LastReload(Arc<Mutex<Option<String>>>);

impl LastReload {
    fn set(&self, problem: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = problem;
    }

    fn problem(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Adds the problem to those of a status.
    fn report(&self, status: &mut Value) {
        let Some(problem) = self.problem() else { return };
        match status["problems"].as_array_mut() {
            Some(problems) => problems.push(json!(problem)),
            None => status["problems"] = json!([problem]),
        }
    }

    fn metric(&self) -> Metric {
        let help = "Whether the last reload succeeded; otherwise the configuration in force is older than the file";
        Metric::up("reload", help, self.problem().is_none())
    }
}

/// A role's status, with its version, the state of its store and what is wrong with the last reload.
async fn whole_status<V: View>(view: &V, last_reload: &LastReload) -> Result<Value, ViewError> {
    let mut value = crate::output::versioned(view.status().await?);
    last_reload.report(&mut value);
    value["store"] = view.store().map_or(Value::Null, |store| match &*store.health().borrow() {
        Health::Good => json!("good"),
        Health::Failing(why) => json!(why),
    });
    Ok(value)
}

async fn overview<V: View>(view: &V, last_reload: &LastReload) -> Result<Overview, ViewError> {
    if view.parts().is_empty() {
        return overview_of_one(view, last_reload).await;
    }
    let mut each = Vec::new();
    for (name, view) in view.parts() {
        each.push((name.clone(), overview_of_one(view, last_reload).await?));
    }
    Ok(parts::overview(each))
}

async fn overview_of_one<V: View>(view: &V, last_reload: &LastReload) -> Result<Overview, ViewError> {
    let status = whole_status(view, last_reload).await?;
    let readiness = view.readiness().await.ok_or(ViewError::Unavailable)?;
    Ok(view.overview(&status).await?.finished(&status, readiness))
}

/// What the command line says beside the configuration.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// A peer is refused at a third start within a minute.
    pub refuses: bool,
    /// Where a gateway is a proxy.
    pub proxy: Option<SocketAddr>,
}

/// What a role is given at its start.
pub struct Daemon {
    /// The one clock of the process.
    pub clock: Clock,
    /// The configuration that the process started with; later ones are compared with it.
    pub source: Source,
    /// The configuration's file.
    pub path: PathBuf,
    /// The last events, for `show events`.
    pub events: Events,
    pub options: Options,
    last_reload: LastReload,
}

/// As many files may be open as the system lets this process have: an ordinary user's shell says 1,024, fewer than a role may have
/// connections.
fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        warn!("the limit of open files stays: {error}; fewer connections than there might be are taken at a time");
    }
}

/// Runs a role until SIGTERM or SIGINT, or until it fails.
pub async fn run<R: Role>(path: &Path, options: Options) -> Outcome {
    let source = Source::read(path)?;
    let config =
        R::parse(&source).map_err(|failures| of_another_role(&source, R::NAME).map_or(failures, Into::into))?;
    let no_signals = |error: std::io::Error| Failure::new(format!("cannot listen for signals: {error}"));
    let mut signals = Signals::listen().map_err(no_signals)?;
    ending::limit_stop().map_err(no_signals)?;
    raise_open_files();
    let daemon = Daemon {
        clock: Clock::start(),
        source,
        path: path.to_owned(),
        events: Events::default(),
        options,
        last_reload: LastReload::default(),
    };
    let status = R::status(&config).cloned();
    if let Some(record) = record_of_starts(&daemon.source, path) {
        starts::begin(&record, options.refuses);
    }
    let mut role = R::start(config, &daemon).await?;
    let (ready, is_ready) = watch::channel(Err("starting".to_owned()));
    let (orders, mut ordered) = mpsc::channel(1);
    let mut settings = Settings::new(daemon.source.clone(), R::LIVE);
    let _pages = match serve::<R>(status.as_ref(), &role, &daemon, (is_ready, orders)).await {
        Ok(pages) => pages,
        Err(failures) => {
            role.stop().await;
            return Err(failures);
        }
    };
    let (answers, answered) = watch::channel(Instant::now());
    let watching = tokio::spawn(watch_readiness(role.view(), ready, answers));
    let mut heartbeat = Heartbeat::new(watchdog(), answered);
    let comparing = Comparing::default();
    info!(role = R::NAME, configuration = %path.display(), "started");
    notify(Notice::Ready);
    let outcome = loop {
        faults::point("main");
        tokio::select! {
            request = signals.next() => match request {
                Request::Reload => drop(reload_and_say(&mut role, &daemon, &mut settings).await),
                Request::Stop => break Ok(()),
            },
            Some((order, answer)) = ordered.recv() => {
                match order {
                    // Who asked may have gone.
                    Order::Reload => drop(answer.send(reload_and_say(&mut role, &daemon, &mut settings).await)),
                    Order::Diff(file) => {
                        let (said, comparison) = diff(&role, &settings, &file);
                        comparing.begin(said, comparison, answer);
                    }
                }
            }
            event = role.next() => {
                let handled = match event {
                    Ok(event) => role.handle(event).await,
                    Err(failure) => Err(failure.into()),
                };
                if handled.is_err() {
                    break handled;
                }
            }
            () = heartbeat.due() => heartbeat.beat(),
            () = faults::turn() => {}
        }
    };
    watching.abort();
    if outcome.is_err() {
        // What the role has is dropped now; whoever waits for a thread that has gone wrong waits no longer than this.
        ending::within(END_LIMIT, FAILED);
        return outcome;
    }
    notify(Notice::Stopping);
    info!(role = R::NAME, "stopping");
    faults::point("stop");
    role.stop().await;
    starts::end_in_order();
    Ok(())
}

/// Where the record of starts lies: beside the role's state, or in the folder that systemd gives a role without one; `None` if there
/// is neither.
fn record_of_starts(source: &Source, configuration: &Path) -> Option<PathBuf> {
    let mut name = state_path(source)
        .or_else(|| {
            let folder = PathBuf::from(std::env::var_os("STATE_DIRECTORY")?);
            Some(folder.join(configuration.file_stem()?))
        })?
        .into_os_string();
    name.push(".starts");
    Some(name.into())
}

/// The file of the role's state, whatever its section calls it.
fn state_path(source: &Source) -> Option<PathBuf> {
    state_of(source.text()).map(|path| source.resolve(&path))
}

fn state_of(text: &str) -> Option<PathBuf> {
    let file: toml::Table = text.parse().ok()?;
    let named = |section: &toml::Value| {
        let settings = section.as_table()?;
        let of = |name: &str| settings.get(name)?.as_str().map(PathBuf::from);
        // A key server has its keys where it may not write, and its position where it does.
        let position = of("accounts").map(|accounts| of("position").unwrap_or(accounts));
        of("state").or(position).or_else(|| of("records"))
    };
    file.values().find_map(named)
}

/// Notifications to systemd that the process is alive. Each needs two: the role's loop, which sends it, and its machine or thread,
/// which must have answered since.
struct Heartbeat {
    /// How long the process may be silent; without a limit nothing is sent.
    limit: Option<Duration>,
    /// When the machine last answered.
    answered: watch::Receiver<Instant>,
    next: Instant,
}

impl Heartbeat {
    fn new(limit: Option<Duration>, answered: watch::Receiver<Instant>) -> Self {
        Self { limit, answered, next: Instant::now() }
    }

    /// Waits until a notification is due. Cancel safe.
    async fn due(&self) {
        match self.limit {
            Some(_) => tokio::time::sleep_until(self.next).await,
            None => std::future::pending().await,
        }
    }

    fn beat(&mut self) {
        let Some(limit) = self.limit else { return };
        self.next = Instant::now() + limit / 4;
        if self.answered.borrow().elapsed() < limit / 2 {
            notify(Notice::Alive);
        }
    }
}

/// What a reload with this file would change: at settings, and where the role can tell, at what it has.
fn diff<R: Role>(role: &R, settings: &Settings, file: &Path) -> (Value, Option<Comparison>) {
    let mut parsed = None;
    let said = settings.diff(file, |source| {
        parsed = Some(R::parse(source)?);
        Ok(())
    });
    let comparison = parsed.and_then(|config| role.differences(config));
    (said, comparison)
}

/// The one comparison that goes on beside the role's loop: with many routes it takes longer than heartbeats and signals may wait.
struct Comparing(Arc<Semaphore>);

impl Default for Comparing {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(1)))
    }
}

impl Comparing {
    /// Answers with what is said of settings and what is found, unless another comparison goes on. It ends when who asked has gone.
    fn begin(&self, mut said: Value, comparison: Option<Comparison>, mut answer: oneshot::Sender<Value>) {
        let Some(comparison) = comparison else {
            let _ = answer.send(said); // who asked may have gone, here and below
            return;
        };
        let Ok(turn) = Arc::clone(&self.0).try_acquire_owned() else {
            let failure = Failure::new("the role still compares a configuration that was asked about before")
                .help("ask again when that is answered");
            let _ = answer.send(settings::refused(&failure.into()));
            return;
        };
        tokio::spawn(async move {
            tokio::select! {
                () = answer.closed() => {}
                found = comparison => {
                    said["policy"] = found.unwrap_or(Value::Null);
                    drop(turn);
                    let _ = answer.send(said);
                }
            }
        });
    }
}

/// Reloads, as systemd expects it, and says what came of it.
async fn reload_and_say<R: Role>(role: &mut R, daemon: &Daemon, settings: &mut Settings) -> Value {
    notify(Notice::Reloading(monotonic_micros()));
    let said = reload(role, daemon, settings).await;
    notify(Notice::Ready);
    said
}

/// Reads the configuration again. A configuration with errors changes nothing but what must not wait for its cure.
async fn reload<R: Role>(role: &mut R, daemon: &Daemon, settings: &mut Settings) -> Value {
    let Daemon { path, events, last_reload, .. } = daemon;
    let failed = |failures: &Failures| {
        for failure in &failures.0 {
            events.report(reload_failed(path, failure));
        }
    };
    let read = Source::read(path).map_err(Failures::from);
    let outcome = match read.and_then(|source| Ok((R::parse(&source)?, source))) {
        Ok((config, source)) => match role.reload(config, &source).await {
            Ok(()) => {
                let keys = daemon.source.changed(&source, R::LIVE);
                if !keys.is_empty() {
                    warn!(
                        keys = keys.join(", "),
                        "reload: these settings have changed and take effect only after a restart"
                    );
                }
                info!(configuration = %path.display(), "configuration reloaded");
                Ok(settings.apply(source))
            }
            Err(failures) => {
                failed(&failures);
                Err(failures)
            }
        },
        Err(failures) => {
            failed(&failures);
            role.reload_without_configuration().await.unwrap_or_else(|failures| failed(&failures));
            Err(failures)
        }
    };
    let failures = outcome.as_ref().err();
    last_reload.set(failures.and_then(|failures| reload_problem(path, failures, unix_now().secs())));
    outcome.unwrap_or_else(|failures| settings::refused(&failures))
}

/// What is told of a failure of a reload.
pub fn reload_failed(configuration: &Path, failure: &Failure) -> EventLine {
    let (path, all) = (configuration.display(), failure.in_one_line());
    event!(ERROR "reload-failed" { configuration = shown(path); why = failure.without_values() }
        "reload failed, the configuration in force stays: {all}; `wayleave check {path}` shows the place")
}

/// What a status has of a failed reload until one succeeds: its first failure.
fn reload_problem(configuration: &Path, failures: &Failures, now: u64) -> Option<String> {
    let first = failures.0.first()?.without_values();
    let why = first.lines().next().unwrap_or_default();
    Some(format!(
        "the configuration in force is older than the file: reload failed at {}: {why}; mend it (`wayleave check {}` shows the \
         place), and reload again",
        utc(now),
        configuration.display()
    ))
}

async fn serve<R: Role>(
    status: Option<&StatusSection>,
    role: &R,
    daemon: &Daemon,
    (is_ready, orders): (watch::Receiver<Result<(), String>>, Orders),
) -> Outcome<Option<Serving>> {
    let Some(status) = status else { return Ok(None) };
    let address = status.listen.get_ref().0;
    let (view, events, run) = (role.view(), daemon.events.clone(), daemon.events.run());
    let last_reload = daemon.last_reload.clone();
    let of_metrics = (view.clone(), events.clone(), last_reload.clone());
    let of_events = view.clone();
    let pages = Pages::new(R::NAME, is_ready)
        .view("/api/v1/events", move |parameters| {
            let list = check_parameters(&parameters, known_parameters("events"))
                .and_then(|()| event_list(&events, &parameters))
                .and_then(|list| parts::events(&of_events, list, &parameters));
            async move { list }
        })
        .metrics((crate::BUILD, R::DETAIL), move || {
            let (view, events, last_reload) = of_metrics.clone();
            async move {
                let mut metrics = parts::metrics(&view).await?;
                metrics.extend([events.metric(), last_reload.metric()]);
                Some(metrics)
            }
        });
    let of_status = last_reload.clone();
    let of_overview = last_reload.clone();
    let views = Views { pages, view, last_reload, paths: vec!["/api/v1/events".to_owned()], has_front: false }
        .page("status", move |view: R::View, _| {
            let last_reload = of_status.clone();
            async move { whole_status(&view, &last_reload).await }
        })
        .order_to_all("reload", {
            let orders = orders.clone();
            move |_| settings::ask(orders.clone(), Ok(Order::Reload))
        })
        .order_to_all("diff", {
            let path = daemon.path.clone();
            move |parameters| settings::ask(orders.clone(), settings::diff_of(&path, &parameters))
        })
        .page("overview", move |view, _| {
            let (last_reload, run) = (of_overview.clone(), run.clone());
            async move {
                let mut value = crate::output::versioned(json!(overview(&view, &last_reload).await?));
                value["role"] = json!(R::NAME);
                value["program"] = json!(crate::VERSION);
                value["run"] = json!(run);
                Ok(value)
            }
        });
    let serving = R::View::pages(views).front(R::NAME).serve(address).await;
    let serving =
        serving.map_err(|error| Failure::system(format!("cannot serve the status pages at {address}"), &error))?;
    info!(address = %serving.address, "status pages at http://{}", serving.address);
    Ok(Some(serving))
}

/// Publishes readiness for `/readyz`: the store's failure first, then what the role misses; and when the role last answered.
async fn watch_readiness<V: View>(view: V, ready: watch::Sender<Result<(), String>>, answered: watch::Sender<Instant>) {
    while let Some(now) = parts::readiness(&view).await {
        answered.send_replace(Instant::now());
        ready.send_if_modified(|before| {
            let has_changed = *before != now;
            if has_changed {
                match &now {
                    Ok(()) => info!("ready"),
                    Err(why) => info!("not ready: {why}"),
                }
                *before = now;
            }
            has_changed
        });
        tokio::time::sleep(READINESS_INTERVAL).await;
    }
}

/// A machine that runs on a thread of its own, since an evaluation or a large table may take longer than other tasks should
/// wait.
pub struct Running<E> {
    /// The machine's queue.
    pub events: mpsc::Sender<E>,
    thread: JoinHandle<Result<(), Failure>>,
}

impl<E: Send + 'static> Running<E> {
    /// Starts the machine; `io` translates the events of `inbox` and performs the machine's outputs.
    pub fn start<M, I>(machine: M, io: I, clock: Clock, (events, inbox): (mpsc::Sender<E>, mpsc::Receiver<E>)) -> Self
    where
        M: Machine + Send + 'static,
        I: Io<M, Event = E, Error = Failure> + Send + 'static,
    {
        let runtime = tokio::runtime::Handle::current();
        let thread = tokio::task::spawn_blocking(move || runtime.block_on(drive(machine, clock, inbox, io)));
        Self { events, thread }
    }

    /// Waits until the machine ends without being stopped, and returns why. Cancel safe.
    pub async fn failed(&mut self) -> Failure {
        match (&mut self.thread).await {
            Ok(Err(failure)) => failure,
            Ok(Ok(())) => Failure::new("the role's machine stopped without a reason: a bug, please report it"),
            Err(_) => Failure::new("the role's machine stopped: a bug, please report it with the lines above"),
        }
    }

    /// Stops the machine by `event`, and waits for its end.
    pub async fn stop(self, event: E) {
        let _ = self.events.send(event).await; // fails if it has ended
        let _ = self.thread.await;
    }
}

/// Puts a query to the machine behind `events`.
pub async fn query<M, E, T>(
    events: &mpsc::Sender<E>,
    query: impl FnOnce(&mut M) -> T + Send + 'static,
) -> Result<T, ViewError>
where
    E: From<Query<M>>,
    T: Send + 'static,
{
    ask(events, query).await.ok_or(ViewError::Unavailable)
}

/// The pages that need a parameter.
const WITH_PARAMETER: [&str; 3] = ["why", "ping", "paths"];

/// The parameters of the page `name`.
fn known_parameters(name: &str) -> &'static [&'static str] {
    match name {
        "routes" => &["most"],
        "reports" => &["most", "handle"],
        "events" => &["after", "most"],
        "why" => &["prefix", "name"],
        "ping" => &["name"],
        "paths" => &["host"],
        "usage" => &["principal", "after"],
        "session/disable" => &["message"],
        "diff" => &["file"],
        _ => &[],
    }
}

/// Refuses a parameter that a page does not have: a misspelt one would be ignored, and the answer be taken for another one.
fn check_parameters(parameters: &Parameters, known: &[&str]) -> Result<(), ViewError> {
    let is_known = |name: &&String| known.contains(&name.as_str()) || *name == parts::PAIR;
    let Some(name) = parameters.keys().find(|name| !is_known(name)) else { return Ok(()) };
    let expected = if known.is_empty() { "none".to_owned() } else { format!("`{}`", known.join("`, `")) };
    Err(ViewError::Request(format!("unknown parameter `{name}`, expected {expected}")))
}

/// How many routes (or reports) a request asks for: `?most=N`.
pub fn most(parameters: &Parameters) -> Result<usize, ViewError> {
    let Some(text) = parameters.get("most") else { return Ok(DEFAULT_ROUTES) };
    let most: usize = text.parse().map_err(|_| ViewError::Request("`most` is not a number".to_owned()))?;
    if most > MOST_ROUTES {
        return Err(ViewError::Request(format!(
            "`most` is {most}, expected {MOST_ROUTES} at most: ask for a prefix or a member, or read the looking glass's pages"
        )));
    }
    Ok(most)
}

/// The events of a request: those after the one with the number `?after=N`, and of these the newest, `?most=N`.
fn event_list(events: &Events, parameters: &Parameters) -> Result<Value, ViewError> {
    let number = |name: &str| match parameters.get(name).map(|text| text.parse::<u64>()) {
        Some(Err(_)) => Err(ViewError::Request(format!("`{name}` is not a number"))),
        Some(Ok(number)) => Ok(Some(number)),
        None => Ok(None),
    };
    let most = number("most")?.and_then(|most| usize::try_from(most).ok()).unwrap_or(MAX_EVENTS);
    Ok(events.list_after(number("after")?.unwrap_or(0), most))
}

/// The prefix of a request: `?prefix=ADDRESS/LENGTH`.
pub fn prefix(parameters: &Parameters) -> Result<wayleave_core::Prefix, ViewError> {
    let text = parameters.get("prefix").ok_or_else(|| {
        ViewError::Request("this role explains prefixes, expected one such as `wayleave why 203.0.113.0/24`".into())
    })?;
    text.parse().map_err(|error| ViewError::Request(format!("{error}")))
}

/// A view of `rows`, of which one more than `most` was fetched to know whether there are more.
pub fn routes<T: serde::Serialize>(mut rows: Vec<T>, most: usize) -> Value {
    let more = rows.len() > most;
    rows.truncate(most);
    json!({ "version": 1, "routes": rows, "more": more })
}

/// Randomness for a machine, from the system.
pub fn seed() -> Outcome<Seed> {
    Ok(fresh()?)
}

/// Fresh entropy of the system.
pub fn fresh() -> Result<Seed, Failure> {
    let mut seed = [0u8; 32];
    getrandom::fill(&mut seed).map_err(|error| Failure::new(format!("the system gave no randomness: {error}")))?;
    Ok(Secret::new(seed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_a_bound_of_what_it_may_ask_for() {
        let asked = |text: &str| most(&Parameters::from([("most".to_owned(), text.to_owned())]));
        assert_eq!((most(&Parameters::new()), asked("100000")), (Ok(DEFAULT_ROUTES), Ok(MOST_ROUTES)));
        for wrong in ["100001", "18446744073709551615", "18446744073709551616", "-1"] {
            assert!(matches!(asked(wrong), Err(ViewError::Request(_))), "{wrong}");
        }
    }

    #[test]
    fn the_record_of_starts_lies_beside_what_the_role_writes() {
        let of = |text: &str| state_of(text).map(|path| path.display().to_string());
        let key = "[key]\naccounts = \"accounts.key\"\n";
        assert_eq!(of(key).as_deref(), Some("accounts.key"));
        let placed = format!("{key}position = \"/var/lib/wayleave/position\"\n");
        assert_eq!(of(&placed).as_deref(), Some("/var/lib/wayleave/position"));
        let router = "[forwarding]\nkeys = \"r.key\"\nstate = \"/var/lib/wayleave/r.redb\"\n";
        assert_eq!(of(router).as_deref(), Some("/var/lib/wayleave/r.redb"));
        assert_eq!(of("[stamper]\nposition = \"last\"\n"), None, "where it puts headers");
    }

    #[tokio::test]
    async fn one_comparison_goes_on_at_a_time_and_ends_when_who_asked_has_gone() {
        let comparing = Comparing::default();
        let ask = |comparison: Option<Comparison>| {
            let (answer, answered) = oneshot::channel();
            comparing.begin(json!({ "errors": [] }), comparison, answer);
            answered
        };
        let (held, lives) = oneshot::channel::<()>();
        let endless: Comparison = Box::pin(async move {
            let _held = held;
            std::future::pending().await
        });
        let first = ask(Some(endless));
        let at_once = || -> Option<Comparison> { Some(Box::pin(async { Some(json!({ "in_all": 1 })) })) };
        let refused = ask(at_once()).await.expect("answered at once");
        let message = refused["errors"][0]["message"].as_str().unwrap_or_default();
        assert!(message.contains("still compares"), "{refused}");
        assert_eq!(ask(None).await.expect("answered"), json!({ "errors": [] }), "nothing to compare");
        drop(first);
        assert!(lives.await.is_err(), "the comparison is dropped");
        // What holds its turn is dropped with it, and may be so a moment later.
        let next = loop {
            let said = ask(at_once()).await.expect("answered");
            if said["errors"] == json!([]) {
                break said;
            }
            tokio::task::yield_now().await;
        };
        assert_eq!(next["policy"]["in_all"], 1);
        assert_eq!(
            ask(at_once()).await.expect("answered")["policy"]["in_all"],
            1,
            "whoever was answered may ask again"
        );
    }

    #[test]
    fn a_reload_that_failed_stays_a_problem_until_one_succeeds() {
        let last = LastReload::default();
        let failures = Failures(vec![Failure::new("unknown field `lsten`\nmore").help("it is `listen`")]);
        last.set(reload_problem(Path::new("party1.toml"), &failures, 0));
        // Some roles have problems of their own, and some have no such list.
        for mut status in [json!({ "problems": ["no peer"] }), json!({})] {
            last.report(&mut status);
            let all = status["problems"].as_array().expect("a list");
            let problem = all.last().and_then(Value::as_str).expect("a problem");
            let begins = "the configuration in force is older than the file: reload failed at 1970-01-01T00:00:00Z: \
                          unknown field `lsten`;";
            assert!(problem.starts_with(begins) && problem.contains("`wayleave check party1.toml`"), "{problem}");
        }
        // Pages are read without a login.
        let file = std::env::temp_dir().join(format!("wayleave-reload-{}.toml", std::process::id()));
        std::fs::write(&file, "port = \"hunter2\"\n").expect("written");
        let source = Source::read(&file).expect("a file");
        std::fs::remove_file(&file).expect("removed");
        let failures = source.parse::<std::collections::BTreeMap<String, u16>>().expect_err("no number");
        assert!(failures.0[0].in_one_line().contains("hunter2"), "the log has it");
        let problem = reload_problem(Path::new("party1.toml"), &failures, 0).expect("a problem");
        assert!(problem.contains(".toml:1:8: expected a number from 0 to 65535;"), "{problem}");
        assert!(!problem.contains("hunter2"), "{problem}");
        let event = reload_failed(Path::new("party1.toml"), &failures.0[0]).to_string();
        let (line, shown) = event.split_once("\n").expect("what the log has, and what `show events` has");
        assert!(line.contains("hunter2") && !shown.contains("hunter2"), "{event}");
        last.set(None);
        let mut status = json!({ "problems": [] });
        last.report(&mut status);
        assert_eq!(status, json!({ "problems": [] }));
    }
}
