//! `run attest`: the attesting proxy between BGP speakers and their neighbours.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::sleep_until;
use tracing::{debug, error, info, warn};
use wayleave_attestation::pipeline::explain::reason;
use wayleave_attestation::pipeline::{Job, SignaturesLeft};
use wayleave_attestation::proxy::handover::Handover;
use wayleave_attestation::proxy::session_pair::{self, Side};
use wayleave_attestation::proxy::{
    EndConfig, Event as Happened, Input, Output, PairEvent, PairOptions, Proxy, ProxyConfig,
};
use wayleave_attestation::validate::Rules;
use wayleave_bgp::AttributeCode;
use wayleave_bgp::rib::{LimitAction, MaxPrefixes};
use wayleave_bgp::session::{self, ConnectionId, PeerAsn};
use wayleave_core::{Machine, Prefix};
use wayleave_runtime::Clock;
use wayleave_runtime::bgp_tcp::{Sockets, TcpEvent, TcpOptions};
use wayleave_runtime::drive::{Question, ask};
use wayleave_runtime::http::{Metric, Pages, Serving, ViewError};
use wayleave_runtime::signals::{Asked, Signals};
use wayleave_runtime::store::{Change, FileStore, Health, Store};
use wayleave_runtime::systemd::{Notice, monotonic_micros, notify};

use super::origins::{Origins, Summary, Wanted};
use super::{Events, QUEUE, READY_EVERY, Ready, most_of, not_ready_yet, warn_of_restart};
use crate::config::Source;
use crate::config::attest::{AttestFile, EndSection, PairSection};
use crate::failure::{Failure, Outcome};
use crate::key_files::attestation as files;

/// What a reload takes in; keys and objects are read again too.
const LIVE: [&str; 3] = ["policy", "keys.objects", "rpki"];
/// How often what nobody needs is let go.
const SWEEP: Duration = Duration::from_secs(30);
/// How long a stop may take.
const FAREWELL: Duration = Duration::from_millis(500);
/// Causes for want of a session that are told in the log, for each pair.
const CAUSES_SAID: usize = 16;
/// The table of few-time keys' counts, and that of the last time seen.
const COUNTS: &str = "counts";
const TIMES: &str = "times";
/// The key of the last time seen.
const LAST: &[u8] = b"last";

/// What reaches the loop around the machine.
enum Event {
    Tcp(usize, Side, TcpEvent),
    Given(Input),
    Ask(Question<Proxy>),
    Reload,
    Stop,
}

impl From<Question<Proxy>> for Event {
    fn from(question: Question<Proxy>) -> Self {
        Event::Ask(question)
    }
}

/// Runs the proxy until SIGTERM.
pub async fn run(path: &Path) -> Outcome {
    let source = Source::read(path)?;
    let file = AttestFile::parse(&source)?;
    let clock = Clock::start();
    let store = Arc::new(FileStore::open(&source.beside(&file.attest.state))?);
    let last_time = check_clock(&store, clock)?;
    // An anchor that has expired, or files that cannot be read, are told before anything runs.
    let origins = Origins::follow(wanted(&file, &source)).await?;
    let ring = files::ring(&file.keys, *file.attest.asn.get_ref(), &source)?;
    let used = used_before(&store)?;
    let mut seed = [0u8; 8];
    getrandom::fill(&mut seed).map_err(|error| Failure::new(format!("the system gave no randomness: {error}")))?;
    let mut proxy = Proxy::new(proxy_config(&file), ring, &used, u64::from_be_bytes(seed), clock.now());
    proxy.hold_secret(super::seed()?);

    let (events, inbox) = mpsc::channel(QUEUE);
    let mut signals = Signals::listen().map_err(|error| Failure::new(format!("no signals: {error}")))?;
    let sockets = listen(&file, &events).await?;
    let (ready, is_ready) = not_ready_yet();
    let log = Events::default();
    let known = origins.summary();
    let shown = Shown { events: events.clone(), log: log.clone(), store: Arc::clone(&store), known };
    let _pages = serve(&file, &shown, is_ready).await?;
    let names = file.pair.iter().map(|pair| pair.get_ref().name.clone()).collect();
    let driver = Driver {
        proxy,
        clock,
        sockets,
        ends: file.pair.iter().map(|pair| places(pair.get_ref())).collect(),
        events: events.clone(),
        store: Arc::clone(&store),
        log,
        names,
        causes_said: BTreeSet::new(),
        source,
        path: path.to_owned(),
        last_time,
        origins,
    };
    let mut running = tokio::spawn(driver.run(inbox));
    let watching = tokio::spawn(watch_ready(shown.clone(), ready));
    info!(asn = %file.attest.asn.get_ref(), pairs = file.pair.len(), "running");
    notify(Notice::Ready);
    loop {
        tokio::select! {
            asked = signals.next() => match asked {
                Asked::Reload => {
                    notify(Notice::Reloading(monotonic_micros()));
                    let _ = events.send(Event::Reload).await;
                    notify(Notice::Ready);
                }
                Asked::Stop => break,
            },
            ended = &mut running => {
                watching.abort();
                return Err(match ended {
                    Ok(Err(failure)) => failure,
                    _ => Failure::new("the proxy stopped: a bug, please report it with the lines above"),
                }.into());
            }
        }
    }
    notify(Notice::Stopping);
    info!("stopping");
    watching.abort();
    let _ = events.send(Event::Stop).await;
    let _ = running.await;
    Ok(())
}

fn wanted(file: &AttestFile, source: &Source) -> Wanted {
    Wanted { keys: file.keys.clone(), rpki: file.rpki.clone(), source: source.clone() }
}

/// A clock that stands before a time it has already shown is wrong, and with it every expiry.
pub(super) fn check_clock(store: &FileStore, clock: Clock) -> Outcome<u64> {
    let last = store.load(TIMES)?.into_iter().find(|(key, _)| key == LAST);
    let last = last.and_then(|(_, value)| Some(u64::from_be_bytes(value.try_into().ok()?))).unwrap_or(0);
    let now = clock.now().unix.secs();
    if now + 600 < last {
        error!(
            now,
            last, "ALARM: the clock stands before a time that it has already shown; set it, expiries are in doubt"
        );
    }
    Ok(last)
}

/// How often few-time keys may have signed in earlier lives, by encoded public key.
pub(super) fn used_before(store: &FileStore) -> Outcome<HashMap<Vec<u8>, u64>> {
    let rows = store.load(COUNTS)?.into_iter();
    Ok(rows.filter_map(|(key, value)| Some((key, u64::from_be_bytes(value.try_into().ok()?)))).collect())
}

/// The write that says that the few-time key `public` may have signed with every index below `limit`.
pub(super) fn count(public: Vec<u8>, limit: u64) -> Change {
    Change { table: COUNTS, key: public, value: Some(limit.to_be_bytes().to_vec()) }
}

/// The write of what the clock shows, so that a clock set back is noticed at the next start.
pub(super) fn time_shown(now: u64) -> Change {
    Change { table: TIMES, key: LAST.to_vec(), value: Some(now.to_be_bytes().to_vec()) }
}

fn proxy_config(file: &AttestFile) -> ProxyConfig {
    let attest = &file.attest;
    // `check` has seen that each fits.
    let small = |number: u64| u8::try_from(number).unwrap_or(u8::MAX);
    let least_strength = u16::try_from(*attest.least_strength.get_ref()).unwrap_or(0);
    let lifetime = u16::try_from(*attest.lifetime_minutes.get_ref()).unwrap_or(u16::MAX);
    ProxyConfig {
        asn: *attest.asn.get_ref(),
        attribute: AttributeCode(small(*attest.attribute.get_ref())),
        capability: small(*attest.capability.get_ref()),
        rules: Rules { lab: attest.lab, least_strength, ..Rules::default() },
        uncertainty: *attest.clock_uncertainty_secs.get_ref(),
        lifetime,
        least_strength,
        policy: file.policy.policy(),
        own: attest.originate.clone(),
        pairs: file.pair.iter().map(|pair| options(file, pair.get_ref())).collect(),
    }
}

fn options(file: &AttestFile, pair: &PairSection) -> PairOptions {
    let end = |section: &EndSection, asn| EndConfig {
        peer_asn: section.asn.as_ref().map_or(asn, |asn| PeerAsn::Exactly(*asn.get_ref())),
        listens: section.listen.is_some(),
        connects: section.connect.is_some(),
        first_as: !section.route_server && asn == PeerAsn::Any,
        limits: match section.max_prefixes {
            Some(most) => {
                MaxPrefixes { ipv4: Some(most), ipv6: Some(most), warn_percent: 80, action: LimitAction::Stop }
            }
            None => MaxPrefixes::NONE,
        },
    };
    let octets = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    PairOptions {
        name: pair.name.clone(),
        ends: [
            end(pair.inside.get_ref(), PeerAsn::Exactly(*file.attest.asn.get_ref())),
            end(pair.outside.get_ref(), PeerAsn::Any),
        ],
        most: octets(*pair.most_octets.get_ref()),
        most_extended: octets(*pair.most_octets_extended.get_ref()),
        handover: Handover {
            grants: pair.keys.is_granted(),
            takes: pair.take_granted.as_ref().is_some_and(|takes| *takes.get_ref()),
            is_protected: pair.outside.get_ref().protected,
        },
    }
}

/// Where an end is, and who may call.
#[derive(Clone, Copy)]
struct Place {
    connect: Option<SocketAddr>,
    only: Option<IpAddr>,
}

fn places(pair: &PairSection) -> [Place; 2] {
    [&pair.inside, &pair.outside].map(|end| {
        let end = end.get_ref();
        let only = end.address.map(|address| address.0);
        Place { connect: end.connect.map(|address| address.0), only }
    })
}

/// The sockets of each pair's ends; what happens there reaches the loop with its place.
async fn listen(file: &AttestFile, events: &mpsc::Sender<Event>) -> Outcome<Vec<[Sockets<TcpEvent>; 2]>> {
    let mut all = Vec::new();
    for (place, pair) in file.pair.iter().enumerate() {
        let pair = pair.get_ref();
        let mut ends = Vec::new();
        for (side, section) in [(Side::Inside, &pair.inside), (Side::Outside, &pair.outside)] {
            let section = section.get_ref();
            let (to, mut tcp) = mpsc::channel(64);
            let options = TcpOptions { bind: section.bind.map(|bind| bind.0), ttl: section.ttl.map(u32::from) };
            let mut sockets = Sockets::new(to, options);
            if let Some(listen) = &section.listen {
                let address = listen.get_ref().0;
                let bound = sockets.listen(address).await.map_err(|error| {
                    let what = format!("pair {}: cannot wait for the {} peer at {address}", pair.name, side.name());
                    let failure = Failure::system(what, &error);
                    match error.kind() {
                        std::io::ErrorKind::PermissionDenied => failure.help(
                            "ports below 1024 need CAP_NET_BIND_SERVICE (the systemd unit has it), or use port 1790",
                        ),
                        _ => failure,
                    }
                })?;
                info!(pair = pair.name, side = side.name(), address = %bound, "waiting");
            }
            let events = events.clone();
            tokio::spawn(async move {
                while let Some(event) = tcp.recv().await {
                    if events.send(Event::Tcp(place, side, event)).await.is_err() {
                        return;
                    }
                }
            });
            ends.push(sockets);
        }
        all.push(ends.try_into().map_err(|_| Failure::new("a pair has two ends"))?);
    }
    Ok(all)
}

struct Driver {
    proxy: Proxy,
    clock: Clock,
    sockets: Vec<[Sockets<TcpEvent>; 2]>,
    ends: Vec<[Place; 2]>,
    events: mpsc::Sender<Event>,
    store: Arc<FileStore>,
    log: Events,
    names: Vec<String>,
    causes_said: BTreeSet<(usize, String)>,
    source: Source,
    path: std::path::PathBuf,
    /// The latest time that the clock has shown, in this life or an earlier one, in seconds since 1970.
    last_time: u64,
    origins: Origins,
}

impl Driver {
    async fn run(mut self, mut inbox: mpsc::Receiver<Event>) -> Result<(), Failure> {
        self.learn();
        for place in 0..self.names.len() {
            self.tell(Input::Pair(place, session_pair::Input::Start));
        }
        self.act()?;
        let mut sweep = tokio::time::interval(SWEEP);
        loop {
            let deadline = self.proxy.deadline();
            let due = deadline.map_or_else(tokio::time::Instant::now, |at| self.clock.at(at));
            tokio::select! {
                event = inbox.recv() => match event {
                    Some(Event::Stop) | None => break,
                    Some(event) => self.take(event),
                },
                () = sleep_until(due), if deadline.is_some() => {}
                Ok(()) = self.origins.views.changed() => self.learn(),
                _ = sweep.tick() => {
                    self.proxy.sweep();
                    self.note_time();
                }
            }
            let now = self.clock.now();
            if self.proxy.deadline().is_some_and(|deadline| deadline <= now.instant) {
                self.proxy.handle_timeout(now);
            }
            self.act()?;
        }
        for place in 0..self.names.len() {
            self.tell(Input::Pair(place, session_pair::Input::Stop("wayleave is stopping".to_owned())));
        }
        self.act()?;
        tokio::time::sleep(FAREWELL).await;
        Ok(())
    }

    fn tell(&mut self, input: Input) {
        self.proxy.handle(input, self.clock.now());
    }

    fn wire(&mut self, place: usize, side: Side, input: session::Input) {
        self.tell(Input::Pair(place, session_pair::Input::Wire(side, input)));
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Tcp(place, side, event) => self.tcp(place, side, event),
            Event::Given(input) => self.tell(input),
            Event::Ask(question) => question(&mut self.proxy),
            Event::Reload => self.reload(),
            Event::Stop => {}
        }
    }

    fn tcp(&mut self, place: usize, side: Side, event: TcpEvent) {
        let input = match event {
            TcpEvent::Accepted { connection, address } => {
                let ip = address.ip().to_canonical();
                if self.ends[place][side as usize].only.is_some_and(|only| only != ip) {
                    warn!(pair = self.names[place], side = side.name(), %address, "a BGP connection from elsewhere, refused");
                    self.sockets[place][side as usize].close(connection);
                    return;
                }
                session::Input::Connected { connection: ConnectionId(connection), outgoing: false }
            }
            TcpEvent::Connected { connection, .. } => {
                session::Input::Connected { connection: ConnectionId(connection), outgoing: true }
            }
            TcpEvent::ConnectFailed { attempt, error } => {
                self.say_once(place, format!("{} peer: cannot connect: {error}", side.name()));
                session::Input::ConnectFailed { attempt }
            }
            TcpEvent::Bytes { connection, bytes } => {
                session::Input::Bytes { connection: ConnectionId(connection), bytes }
            }
            TcpEvent::Closed { connection } => session::Input::Closed { connection: ConnectionId(connection) },
            TcpEvent::Writable { connection } => session::Input::Writable { connection: ConnectionId(connection) },
        };
        self.wire(place, side, input);
    }

    /// Does what the proxy wants done.
    fn act(&mut self) -> Result<(), Failure> {
        while let Some(output) = self.proxy.poll() {
            match output {
                Output::Connect { pair, side, attempt } => match self.ends[pair][side as usize].connect {
                    Some(to) => self.sockets[pair][side as usize].connect(attempt, to),
                    None => self.wire(pair, side, session::Input::ConnectFailed { attempt }),
                },
                Output::Send { pair, side, connection, bytes } => {
                    if !self.sockets[pair][side as usize].send(connection.0, bytes) {
                        self.wire(pair, side, session::Input::Blocked { connection });
                    }
                }
                Output::Close { pair, side, connection } => self.sockets[pair][side as usize].close(connection.0),
                Output::Work(job) => self.work(job),
                Output::Persist { id, public, limit } => {
                    let events = self.events.clone();
                    let durable = move || drop(events.blocking_send(Event::Given(Input::Persisted(id))));
                    let submitted = self.store.submit(vec![count(public, limit)], Box::new(durable));
                    submitted.map_err(|error| Failure::from_error(&error))?;
                }
                Output::Event(event) => self.note(event),
            }
        }
        Ok(())
    }

    /// Signatures are made and checked on threads of their own.
    fn work(&self, job: Job) {
        let events = self.events.clone();
        tokio::task::spawn_blocking(move || {
            let _ = events.blocking_send(Event::Given(Input::Done(job.run()))); // fails only when the proxy has stopped
        });
    }

    /// Takes in what is known of origins by now.
    fn learn(&mut self) {
        let view = Arc::clone(&self.origins.views.borrow_and_update());
        self.tell(Input::View(view));
    }

    fn reload(&mut self) {
        let source = match Source::read(&self.path) {
            Ok(source) => source,
            Err(failure) => return error!("reload: {failure}; nothing changed"),
        };
        match AttestFile::parse(&source) {
            Ok(file) => {
                warn_of_restart(&self.source, &source, &LIVE);
                self.tell(Input::Policy(file.policy.policy()));
                self.origins.look(wanted(&file, &source));
                self.source = source;
                info!("policy, keys and records read again");
            }
            Err(failures) => failures.0.iter().for_each(|failure| error!("reload: {failure}; nothing changed")),
        }
    }

    fn note_time(&mut self) {
        self.last_time = self.last_time.max(self.clock.now().unix.secs());
        let _ = self.store.submit(vec![time_shown(self.last_time)], Box::new(|| ()));
    }

    fn say_once(&mut self, place: usize, cause: String) {
        let key = (place, cause);
        let known = self.causes_said.iter().filter(|(of, _)| *of == place).count();
        if self.causes_said.contains(&key) || known >= CAUSES_SAID {
            debug!(pair = self.names[place], cause = key.1, "no BGP session");
        } else {
            info!(pair = self.names[place], cause = key.1, "no BGP session");
            self.causes_said.insert(key);
        }
    }

    fn note(&mut self, event: Happened) {
        let told = |event: &str, place: usize, names: &[String]| json!({ "event": event, "pair": names[place] });
        match event {
            Happened::Pair(place, PairEvent::Up(side, up)) => {
                info!(pair = self.names[place], side = side.name(), peer = %up.peer_asn, id = %up.peer_id, "BGP session up");
                self.causes_said.retain(|(of, _)| *of != place);
                let mut noted = told("up", place, &self.names);
                noted["side"] = json!(side.name());
                noted["peer"] = json!(up.peer_asn);
                self.log.note(&noted);
            }
            Happened::Pair(place, PairEvent::Down(side, ended)) => {
                warn!(pair = self.names[place], side = side.name(), cause = %ended.cause, "BGP session down");
                let mut noted = told("down", place, &self.names);
                noted["side"] = json!(side.name());
                noted["cause"] = json!(ended.cause.to_string());
                self.log.note(&noted);
            }
            Happened::Pair(place, PairEvent::Failed(side, ended)) => {
                self.say_once(place, format!("{} peer: {}", side.name(), ended.cause));
            }
            Happened::Pair(place, PairEvent::Malformed(side, problems)) => {
                let problems: Vec<String> = problems.iter().take(4).map(ToString::to_string).collect();
                warn!(
                    pair = self.names[place],
                    side = side.name(),
                    problems = problems.join(", "),
                    "a malformed UPDATE; the session stays (RFC 7606)"
                );
            }
            Happened::Pair(place, PairEvent::Rejected(side, rejected)) => {
                warn!(pair = self.names[place], side = side.name(), error = %rejected.error, routes = rejected.routes.len(), "routes that this session cannot carry");
            }
            Happened::Pair(place, PairEvent::OverLimit(side, nlri)) => {
                warn!(pair = self.names[place], side = side.name(), %nlri, "beyond the limit of prefixes");
            }
            Happened::Offered(place, keys) => {
                info!(pair = self.names[place], keys = keys.len(), "keys offered by the outside peer");
            }
            Happened::Verdict { pair, nlri, class, report } => {
                let why = reason(&report);
                warn!(pair = self.names[pair], %nlri, class = class.name(), why, "verdict");
                let mut noted = told("verdict", pair, &self.names);
                noted["prefix"] = json!(nlri.prefix);
                noted["class"] = json!(class);
                noted["why"] = json!(why);
                self.log.note(&noted);
            }
            Happened::NotExtended(place, routes, error) => {
                warn!(pair = self.names[place], %error, routes = routes.len(), first = ?routes.first(), "passed on without our hop");
            }
            Happened::TooLong(place, routes, need) => {
                error!(pair = self.names[place], need, routes = routes.len(), first = ?routes.first(), "not sent: the attestation is too long for this peer");
            }
            Happened::Exhausted(place, routes) => {
                error!(pair = self.names[place], routes = routes.len(), "ALARM: not sent: the signing keys are spent");
            }
            Happened::Older { pair, nlri, origin, have, newest } => {
                warn!(pair = self.names[pair], %nlri, %origin, have, newest, "an older attestation came in place of a newer one: a replay, or the origin's other session");
                let mut noted = told("older", pair, &self.names);
                noted["prefix"] = json!(nlri.prefix);
                noted["origin"] = json!(origin);
                self.log.note(&noted);
            }
            Happened::GrantRefused(place, error) => {
                error!(pair = self.names[place], %error, "ALARM: the neighbour handed over keys that are none for us; they are not taken");
            }
            Happened::KeyEnds(left) => {
                let SignaturesLeft { suite, left, of } = left;
                error!(%suite, left, of, "ALARM: a few-time key will end: make new keys (`wayleave keys attest`) and a new profile");
                self.log.note(&json!({ "event": "key ends", "suite": suite.name(), "left": left, "of": of }));
            }
            Happened::Failed { pair, what, routes } => {
                error!(pair = self.names[pair], what, routes = routes.len(), first = ?routes.first(), "ALARM: work panicked: a bug, please report it with the lines above; these routes go nowhere and are tried again later");
                let mut noted = told("failed", pair, &self.names);
                noted["doing"] = json!(what);
                noted["routes"] = json!(routes.len());
                self.log.note(&noted);
            }
            Happened::ClockInDoubt(Some(_)) => {
                error!(
                    "ALARM: most origins disagree with this machine's clock; check it (`timedatectl`), expiries are in doubt"
                );
                self.log.note(&json!({ "event": "clock", "in_doubt": true }));
            }
            Happened::ClockInDoubt(None) => {
                info!("this machine's clock is no longer in doubt");
                self.log.note(&json!({ "event": "clock", "in_doubt": false }));
            }
            Happened::ClockStepped(seconds) => {
                error!(seconds, "ALARM: the wall clock was set; every verdict is looked at again");
                self.log.note(&json!({ "event": "clock", "stepped_secs": seconds }));
            }
        }
    }
}

/// Says when every pair is up, and when not, why not.
async fn watch_ready(shown: Shown, ready: Ready) {
    let health = shown.store.health();
    loop {
        let Some(lacks) = ask(&shown.events, |proxy: &mut Proxy| proxy.lacks()).await else { return };
        let failing = match &*health.borrow() {
            Health::Failing(why) => Some(why.clone()),
            Health::Good => None,
        };
        let now = failing.or(lacks).map_or(Ok(()), Err);
        ready.send_if_modified(|before| {
            let changed = *before != now;
            *before = now;
            changed
        });
        tokio::time::sleep(READY_EVERY).await;
    }
}

/// What views are made from.
#[derive(Clone)]
struct Shown {
    events: mpsc::Sender<Event>,
    log: Events,
    store: Arc<FileStore>,
    known: watch::Receiver<Summary>,
}

impl Shown {
    async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Proxy) -> T + Send + 'static,
    ) -> Result<T, ViewError> {
        ask(&self.events, question).await.ok_or(ViewError::Unavailable)
    }

    async fn status(&self) -> Result<Value, ViewError> {
        let status = self.ask(|proxy| proxy.status()).await?;
        let mut value = crate::output::versioned(json!(status));
        value["known"] = json!(*self.known.borrow());
        value["store"] = match &*self.store.health().borrow() {
            Health::Good => json!("good"),
            Health::Failing(why) => json!(why),
        };
        Ok(value)
    }

    async fn peers(&self) -> Result<Value, ViewError> {
        let status = self.ask(|proxy| proxy.status()).await?;
        let rows: Vec<Value> = status
            .pairs
            .iter()
            .flat_map(|pair| {
                [("inside", &pair.inside), ("outside", &pair.outside)].map(|(side, end)| {
                    let mut row = json!(end);
                    row["peer"] = json!(format!("{} {side}", pair.name));
                    row
                })
            })
            .collect();
        Ok(json!({ "version": 1, "peers": rows }))
    }

    async fn routes(&self, most: usize) -> Result<Value, ViewError> {
        let mut routes = self.ask(move |proxy| proxy.routes(most.saturating_add(1))).await?;
        let more = routes.len() > most;
        routes.truncate(most);
        Ok(json!({ "version": 1, "routes": routes, "more": more }))
    }

    async fn why(&self, prefix: Option<&String>) -> Result<Value, ViewError> {
        let prefix = prefix.ok_or_else(|| ViewError::Request("say ?prefix=ADDRESS/LENGTH".into()))?;
        let prefix: Prefix = prefix.parse().map_err(|error| ViewError::Request(format!("{error}")))?;
        let why = self.ask(move |proxy| proxy.why(prefix)).await?;
        Ok(crate::output::versioned(json!(why)))
    }
}

async fn serve(
    file: &AttestFile,
    shown: &Shown,
    is_ready: watch::Receiver<Result<(), String>>,
) -> Outcome<Option<Serving>> {
    let Some(status) = &file.status else { return Ok(None) };
    let address = status.listen.get_ref().0;
    let of = || shown.clone();
    let (a, b, c, d, e, f, g) = (of(), of(), of(), of(), of(), of(), of());
    let pages = Pages::new("attest", is_ready)
        .view("/api/v1/status", move |_| {
            let shown = a.clone();
            async move { shown.status().await }
        })
        .view("/api/v1/routes", move |parameters| {
            let shown = b.clone();
            async move { shown.routes(most_of(&parameters)?).await }
        })
        .view("/api/v1/peers", move |_| {
            let shown = c.clone();
            async move { shown.peers().await }
        })
        .view("/api/v1/why", move |parameters| {
            let shown = d.clone();
            async move { shown.why(parameters.get("prefix")).await }
        })
        .view("/api/v1/events", move |_| {
            let list = e.log.list();
            async move { Ok(list) }
        })
        .view("/api/v1/keys", move |_| {
            let shown = g.clone();
            async move { Ok(json!({ "version": 1, "keys": shown.ask(|proxy| proxy.own_keys()).await? })) }
        })
        .metrics(move || {
            let shown = f.clone();
            async move {
                let mut metrics = metrics(&shown.ask(|proxy| proxy.status()).await.ok()?);
                metrics.extend(shown.known.borrow().metrics());
                Some(metrics)
            }
        });
    let serving = pages.serve(address).await;
    let serving =
        serving.map_err(|error| Failure::system(format!("cannot serve the status page at {address}"), &error))?;
    info!(address = %serving.address, "status page");
    Ok(Some(serving))
}

fn metrics(status: &wayleave_attestation::proxy::Status) -> Vec<Metric> {
    let pairs = &status.pairs;
    let counts = &status.counts;
    let up = pairs.iter().filter(|pair| pair.inside.up && pair.outside.up).count();
    let few_time = status.few_time_left.map(|share| {
        Metric::gauge("few_time_left_ratio", "Least share of a few-time key's signatures that is left", share)
    });
    let class = |name: &str| status.classes.get(name).copied().unwrap_or(0) as f64;
    let mut metrics = vec![
        Metric::gauge("pairs", "Pairs configured", pairs.len() as f64),
        Metric::gauge("pairs_up", "Pairs with both sessions up", up as f64),
        Metric::gauge("routes_valid", "Routes from outside that are valid", class("valid")),
        Metric::gauge("routes_gap", "Routes from outside that are proved with gaps", class("gap")),
        Metric::gauge("routes_unattested", "Routes from outside that claim nothing", class("unattested")),
        Metric::gauge("routes_missing", "Routes from outside whose attestation is missed", class("missing")),
        Metric::gauge("routes_expired", "Routes from outside that have expired", class("expired")),
        Metric::gauge("routes_invalid", "Routes from outside that are invalid", class("invalid")),
        Metric::gauge("routes_malformed", "Routes from outside whose attestation cannot be read", class("malformed")),
        Metric::counter("validated", "Routes validated", counts.validated),
        Metric::counter("rejected", "Routes rejected by policy", counts.rejected),
        Metric::counter("loops", "Routes with our own AS on their path", counts.loops),
        Metric::counter("originated", "Routes signed as their origin", counts.originated),
        Metric::counter("extended", "Routes whose chain was extended", counts.extended),
        Metric::counter("renewed", "Routes signed again ahead of expiry", counts.renewed),
        Metric::counter("passed_unattested", "Routes out without an attestation", counts.unattested),
        Metric::counter("not_extended", "Routes out with a chain that could not be extended", counts.not_extended),
        Metric::counter("smaller_suite", "Routes signed with a smaller suite to fit", counts.smaller),
        Metric::counter("too_long", "Routes not sent because no attestation fits", counts.too_long),
        Metric::counter("oversize", "Routes that a session's message size did not take", counts.oversize),
        Metric::counter("exhausted", "Routes not sent because keys are spent", counts.exhausted),
        Metric::counter("older", "Attestations older than one that the origin had sent the same way", counts.older),
        Metric::counter("failed", "Routes on which work panicked", counts.failed),
        Metric::counter("malformed_updates", "Malformed UPDATEs (RFC 7606)", counts.malformed_updates),
    ];
    metrics.extend(few_time);
    metrics
}
