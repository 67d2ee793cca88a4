//! The links to the provider's key servers: durable totals go to one of them, lists of revocations and shares of rates come from there.
//!
//! A list goes to the file that [`super::revocations`] reads, so that a restart has it and one piece of code decides which list is in
//! force. Without a link the router forwards on: totals wait, the list stays, and shares of rates stay for a minute and then dwindle to the router's floors.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};
use toml::Spanned;
use tracing::{error, warn};
use wayleave_control::capability::{
    ChannelMessage, ChargedAccount, JournalId, MAX_MESSAGE, Position, RatePayer, RefusalReport, RefusedPackets,
    RouterClient, RouterClientEvent, SharedRate, Usage,
};
use wayleave_control::realm::Server;
use wayleave_control::tenure::last_epoch;
use wayleave_core::wire::{decode, encode};
use wayleave_core::{Instant, UnixTime};
use wayleave_crypto::sign::VerifyingKey;
use wayleave_dataplane::platypus::account::{Payer, shares};
use wayleave_dataplane::platypus::record;
use wayleave_dataplane::platypus::revocation::RevocationList;
use wayleave_packet::platypus::header::{DelegationId, Principal};
use wayleave_packet::platypus::verify::Charge;
use wayleave_runtime::Clock;
use wayleave_runtime::clock::unix_now;
use wayleave_runtime::frames::FrameError;
use wayleave_runtime::links::{Connecting, Limits, LinkEvent, Links};
use wayleave_runtime::log_limit::Line;
use wayleave_runtime::node_tls::NodeIdentity;
use wayleave_runtime::starts::{Handling, PeerName};
use wayleave_runtime::store::{Change, FileStore, Store};

use super::{Platypus, refused};
use crate::config::router::platypus::PlatypusSection;
use crate::failure::{Failure, Outcome};
use crate::key_files::node::{self, KeyKind};
use crate::key_files::revocation::{self, SIGNATURE};
use crate::roles::daemon::QUEUE;
use crate::roles::events::{EventLine, Events, event, shown};
use crate::roles::router::journal::Total;
use crate::roles::router::settings::{Settings, random};
use crate::roles::router::threads::Threads;
use crate::roles::router::worker::Worker;

/// The journal's identity, and what its totals were when it began.
const TABLE: &str = "usage";
const BASE: &str = "usage-base";
const JOURNAL: &[u8] = b"journal";
/// How often this router was started.
const STARTS: &[u8] = b"starts";
/// The rates that the server told last, as it sent them.
const RATES: &[u8] = b"rates";
/// The highest epoch of a lessor of rates that was heard of.
const EPOCH: &[u8] = b"epoch";
/// The last change of the database that was told.
const SEEN: &[u8] = b"seen";
/// What is wrong with the configuration beside the rates that were told.
const ROOM: &str = "room";
/// Octets that may wait for the key server.
const LINK_QUEUE: usize = 4 << 20;

/// What is needed to reach the key server.
pub struct ProviderPlan {
    identity: NodeIdentity,
    servers: Vec<Server>,
    store: Arc<FileStore>,
    list: Option<(PathBuf, VerifyingKey)>,
}

/// What threads, the link's task and the status page share.
pub struct State {
    client: RouterClient,
    /// A new identity with its base that the store did not take yet.
    unwritten: Option<(JournalId, BTreeMap<ChargedAccount, Usage>)>,
    /// The key servers, in the order of the configuration.
    servers: Vec<ServerLink>,
    /// What is wrong, by what it is about.
    problems: BTreeMap<&'static str, String>,
    /// What the server told, each rate with its burst or zero; and how often that was another than before.
    rates: Vec<(SharedRate, u64)>,
    told: u64,
    /// Those that threads have, or are about to get.
    planned: Vec<(SharedRate, u64)>,
    /// They are not in the store yet; nor is this epoch of a lessor.
    are_unkept: bool,
    unkept_epoch: Option<u64>,
    unkept_seen: Option<Position>,
    /// Of this process, for leases.
    session: u64,
}

/// That a link is no more.
fn ended(name: &str, reason: &str, is_heard: bool) -> String {
    // Only a link that the other end closed says something about it.
    let is_unheard = !is_heard && reason == FrameError::Closed.to_string();
    format!("no link to the key server at {name}: {reason}{}", if is_unheard { UNHEARD } else { "" })
}

/// What a server that closed its link without a word may lack.
const UNHEARD: &str = "; it closed the link without a word: is this router's identity (`wayleave keys show` of its file) in a [[key.router]] there?";

/// A key server, and the link to it.
struct ServerLink {
    name: String,
    link: Option<u64>,
    /// It said something by this link.
    is_heard: bool,
    problem: Option<String>,
}

impl ServerLink {
    fn new(server: &Server) -> Self {
        Self { name: server.address.clone(), link: None, is_heard: false, problem: None }
    }
}

pub type SharedState = Arc<Mutex<State>>;

/// The running link.
pub struct Provider {
    state: SharedState,
    task: Option<JoinHandle<()>>,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads what the section names; `None` without a provider.
///
/// # Errors
/// What is wrong with the identity's file.
pub fn plan(
    settings: &Settings,
    section: &PlatypusSection,
    store: Option<&Arc<FileStore>>,
) -> Outcome<Option<ProviderPlan>> {
    let (Some(provider), Some(store)) = (&section.provider, store) else { return Ok(None) };
    let provider = provider.get_ref();
    let seed = node::load(KeyKind::Identity, &settings.source.resolve(provider.identity.get_ref()))?;
    let list = section.revocations.as_ref().map(Spanned::get_ref);
    Ok(Some(ProviderPlan {
        identity: NodeIdentity::from_seed(seed.expose())?,
        servers: provider.servers().collect(),
        store: Arc::clone(store),
        list: list.map(|list| (settings.source.resolve(&list.file), list.key.0.0)),
    }))
}

impl Provider {
    /// Reads the journal's identity, or makes one.
    ///
    /// # Errors
    /// What is wrong with the state file.
    pub fn new(plan: &ProviderPlan) -> Outcome<Self> {
        let stored: BTreeMap<Vec<u8>, Vec<u8>> = plan.store.load(TABLE)?.into_iter().collect();
        let journal = stored.get(JOURNAL).and_then(|value| Some(JournalId(value.as_slice().try_into().ok()?)));
        // What the process before had is over. If this is not durable before a crash, the next start's share waits until it is over by itself.
        let starts =
            stored.get(STARTS).and_then(|value| value.as_slice().try_into().ok()).map_or(0, u32::from_be_bytes);
        let starts = starts.wrapping_add(1);
        let change = Change { table: TABLE, key: STARTS.to_vec(), value: Some(starts.to_be_bytes().to_vec()) };
        plan.store.submit(vec![change], Box::new(|| ()))?;
        let session = u64::from(starts) << 32 | u64::from(u32::from_be_bytes(random()?));
        let base = match journal {
            Some(_) => plan.store.load(BASE)?.iter().filter_map(|(key, value)| read_base(key, value)).collect(),
            None => BTreeMap::new(),
        };
        let list = match &plan.list {
            // A file that is no list counts as none: the server has a good one.
            Some((path, key)) => revocation::open(path, key).ok().flatten().map(|list| list.sequence),
            None => None,
        };
        let (id, is_new) = match journal {
            Some(id) => (id, false),
            None => (JournalId(random()?), true),
        };
        let heard = plan.servers.iter().filter_map(|server| stored.get(&epoch_key(server))?.as_slice().try_into().ok());
        // A clock was wrong then, or is now.
        let heard = heard.map(u64::from_be_bytes).filter(|epoch| *epoch <= last_epoch(unix_now()));
        let seen = plan.servers.iter().filter_map(|server| decode(stored.get(&seen_key(server))?).ok());
        let seen = seen.max_by_key(Position::order).unwrap_or_default();
        let mut client = RouterClient::new(id, base, list).with_epoch({ heard }.max().unwrap_or(0)).with_seen(seen);
        // Until it is told others: where the server cannot be reached, this router keeps to its floors of these.
        let told = plan.servers.iter().filter_map(|server| stored.get(&rates_key(server)));
        let told = told.filter_map(|value| match ChannelMessage::decode(value) {
            Ok(ChannelMessage::Rates(rates)) => Some(rates),
            _ => None,
        });
        let rates = { told }.next().unwrap_or_default();
        client.share(&plain(&rates), session);
        let unwritten = is_new.then(|| {
            client.hold();
            (id, BTreeMap::new())
        });
        let state = State {
            client,
            unwritten,
            servers: plan.servers.iter().map(ServerLink::new).collect(),
            problems: BTreeMap::new(),
            planned: rates.clone(),
            rates,
            told: 0,
            are_unkept: false,
            unkept_epoch: None,
            unkept_seen: None,
            session,
        };
        Ok(Self { state: Arc::new(Mutex::new(state)), task: None })
    }

    /// Connects, and goes on connecting.
    ///
    /// # Errors
    /// What is wrong with the identity.
    pub fn start(&mut self, plan: &ProviderPlan, threads: Threads<Platypus>, clock: Clock, log: Events) -> Outcome {
        let links = Links::new(Limits { queue: LINK_QUEUE, frame: MAX_MESSAGE as u32, ..Limits::default() });
        let (events, inbox) = mpsc::channel(QUEUE);
        let mut connecting = Vec::new();
        for (server, of) in plan.servers.iter().enumerate() {
            let (own, mut from) = mpsc::channel(QUEUE);
            connecting.push(links.connect_node(of.address.clone(), &plan.identity, of.identity, own)?);
            let events = events.clone();
            tokio::spawn(async move {
                while let Some(event) = from.recv().await {
                    if events.send((server, event)).await.is_err() {
                        return;
                    }
                }
            });
        }
        let task = Task {
            state: Arc::clone(&self.state),
            links,
            threads,
            clock,
            store: Arc::clone(&plan.store),
            list: plan.list.clone(),
            rates_keys: plan.servers.iter().map(rates_key).collect(),
            epoch_keys: plan.servers.iter().map(epoch_key).collect(),
            seen_keys: plan.servers.iter().map(seen_key).collect(),
            looked: clock.now().instant,
            begun: clock.now().instant,
            told_refusals: clock.now().instant,
            log,
            _connecting: connecting,
        };
        self.task = Some(tokio::spawn(task.run(inbox)));
        Ok(())
    }

    /// What the status page reads.
    pub fn state(&self) -> SharedState {
        Arc::clone(&self.state)
    }

    /// The rates that the server told, each with its burst or zero, and how often that was another than before.
    pub fn rates(&self) -> (Vec<(SharedRate, u64)>, u64) {
        let state = lock(&self.state);
        (state.rates.clone(), state.told)
    }

    /// The rates that threads are about to get.
    pub fn planned(&self) -> Vec<(SharedRate, u64)> {
        let mut state = lock(&self.state);
        state.planned = state.rates.clone();
        state.planned.clone()
    }

    /// All threads have what was planned: from now on the server hears of it.
    pub fn applied(&self) {
        let mut state = lock(&self.state);
        let (rates, session) = (plain(&state.planned), state.session);
        state.client.share(&rates, session);
    }

    /// Says, or no longer, that something in the configuration is too small for the rates that were told.
    pub fn note_room(&self, problem: Option<String>) {
        let mut state = lock(&self.state);
        match problem {
            Some(problem) => state.problems.insert(ROOM, problem),
            None => state.problems.remove(ROOM),
        };
    }

    /// These totals are durable here, and with them everything that was counted until `complete`.
    pub fn durable(&self, totals: Vec<(Charge, Total)>, complete: Option<UnixTime>) {
        let mut state = lock(&self.state);
        for (charge, Total { packets, octets }) in totals {
            state.client.durable(ChargedAccount(record::encode(&charge)), Usage { packets, octets });
        }
        complete.into_iter().for_each(|until| state.client.counted_until(until.secs()));
    }

    /// Forgets those of these accounts whose totals the key server has, if `remove` takes them out of the store together with the
    /// parts of the base that go with them. Returns how many.
    pub fn forget(&self, accounts: Vec<Charge>, remove: impl FnOnce(&[Charge], Vec<Change>) -> bool) -> usize {
        forget(&mut lock(&self.state), accounts, remove)
    }

    /// Waits until the link's task ends without being stopped. Cancel safe.
    pub async fn failed(&mut self) -> Failure {
        if let Some(task) = &mut self.task {
            let _ = task.await; // a panic has been printed already
            return Failure::new("the link to the key server stopped: a bug, please report it with the lines above");
        }
        std::future::pending().await
    }

    /// Ends the link.
    pub async fn end(self) {
        if let Some(task) = self.task {
            task.abort();
            let _ = task.await; // it was ended
        }
    }
}

/// See [`Provider::forget`]. The lock is held until the store has taken the removal: no new identity begins between, with a base from
/// which the accounts are gone while their totals are in the store still. Such totals would be billed once more under that identity.
fn forget(state: &mut State, accounts: Vec<Charge>, remove: impl FnOnce(&[Charge], Vec<Change>) -> bool) -> usize {
    // While a new identity waits for the store, its base has these accounts.
    if state.unwritten.is_some() {
        return 0;
    }
    let key = |charge: &Charge| ChargedAccount(record::encode(charge));
    let forgotten: Vec<Charge> =
        accounts.into_iter().filter(|charge| state.client.is_forgettable(&key(charge))).collect();
    let base = |charge: &Charge| Change { table: BASE, key: record::encode(charge).to_vec(), value: None };
    if forgotten.is_empty() || !remove(&forgotten, forgotten.iter().map(base).collect()) {
        return 0;
    }
    forgotten.iter().for_each(|charge| state.client.forget(&key(charge)));
    forgotten.len()
}

/// Its member of the status view.
pub fn status(state: &SharedState) -> Value {
    let state = lock(state);
    let rate = |(rate, burst): &(SharedRate, u64)| {
        json!({
            "principal": rate.payer.principal.number(),
            "delegation": rate.payer.delegation.map(DelegationId::number),
            "rate": rate.rate,
            "routers": rate.routers,
            "burst": Some(*burst).filter(|burst| *burst > 0),
            "offline": rate.offline.name(),
        })
    };
    let server = |server: &ServerLink| {
        json!({
            "address": server.name,
            "connected": server.link.is_some(),
            "takes_usage": server.link.is_some() && server.link == state.client.reports_to(),
            "leases": server.link.is_some() && server.link == state.client.lessor(),
        })
    };
    let problems = state.servers.iter().filter_map(|server| server.problem.as_ref()).chain(state.problems.values());
    json!({
        "connected": state.client.is_up(),
        "servers": state.servers.iter().map(server).collect::<Vec<_>>(),
        "rates": state.rates.iter().map(rate).collect::<Vec<_>>(),
        "waiting": state.client.waiting(),
        "durable_until": state.client.durable_until(),
        "problems": problems.collect::<Vec<_>>(),
    })
}

/// The link's task.
struct Task {
    state: SharedState,
    links: Links,
    threads: Threads<Platypus>,
    clock: Clock,
    store: Arc<FileStore>,
    list: Option<(PathBuf, VerifyingKey)>,
    rates_keys: Vec<Vec<u8>>,
    epoch_keys: Vec<Vec<u8>>,
    seen_keys: Vec<Vec<u8>>,
    /// When demands were last taken.
    looked: Instant,
    /// Since when threads count, and when it was last told what they refused.
    begun: Instant,
    told_refusals: Instant,
    log: Events,
    _connecting: Vec<Connecting>,
}

impl Task {
    async fn run(mut self, mut inbox: mpsc::Receiver<(usize, LinkEvent)>) {
        let mut due = interval(RouterClient::INTERVAL);
        due.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let written = Arc::new(AtomicBool::new(false));
        loop {
            tokio::select! {
                event = inbox.recv() => match event {
                    Some((server, event)) => self.event(server, event).await,
                    None => return,
                },
                _ = due.tick() => {
                    if written.swap(false, Ordering::AcqRel) {
                        lock(&self.state).client.begun();
                    }
                    self.write_identity(&written);
                    self.keep_rates();
                    self.lease().await;
                    self.report();
                    self.tell_refusals().await;
                }
            }
        }
    }

    fn note(&self, about: &'static str, problem: Option<String>) {
        let mut state = lock(&self.state);
        match problem {
            Some(problem) => state.problems.insert(about, problem),
            None => state.problems.remove(about),
        };
    }

    async fn event(&mut self, server: usize, event: LinkEvent) {
        let source = event.source().cloned();
        match event {
            LinkEvent::Up { link, .. } => {
                let (name, watch, hello) = {
                    let mut state = lock(&self.state);
                    // What others said is not over.
                    if !state.client.is_up() {
                        state.problems.retain(|about, _| *about == ROOM);
                    }
                    let hello = state.client.connected(link);
                    let server = &mut state.servers[server];
                    (server.link, server.is_heard) = (Some(link), false);
                    // One that takes a link and closes it has the same problem as before.
                    if !server.problem.as_ref().is_some_and(|problem| problem.ends_with(UNHEARD)) {
                        server.problem = None;
                    }
                    (server.name.clone(), state.client.watch(), hello)
                };
                self.log.report(connected_line(server, &name));
                // In front of a list that may be long.
                self.links.send(link, watch);
                if self.list.is_some() {
                    self.links.send(link, hello);
                }
            }
            LinkEvent::Frame { link, bytes, .. } => self.frame(link, source.as_ref(), &bytes).await,
            LinkEvent::Down { link, reason } => {
                let (name, is_up, events) = {
                    let mut state = lock(&self.state);
                    let events = state.client.disconnected(link);
                    let is_up = state.client.is_up();
                    let server = &mut state.servers[server];
                    // A newer one may be up.
                    if server.link == Some(link) {
                        server.link = None;
                        let problem = ended(&server.name, &reason, server.is_heard);
                        server.problem.get_or_insert(problem);
                    }
                    (server.name.clone(), is_up, events)
                };
                self.log.report(disconnected_line(server, &name, &reason, is_up));
                self.perform(link, events).await;
            }
            LinkEvent::Failed { failure, .. } => {
                let mut state = lock(&self.state);
                let server = &mut state.servers[server];
                warn!(server = server.name, "the key server cannot be reached: {failure}");
                server.problem = Some(format!("no link to the key server at {}: {failure}", server.name));
            }
        }
    }

    async fn frame(&mut self, link: u64, source: Option<&PeerName>, octets: &[u8]) {
        let now = self.clock.now().instant;
        let handling = source.map(Handling::begin);
        let taken = {
            let mut state = lock(&self.state);
            if let Some(server) = state.servers.iter_mut().find(|server| server.link == Some(link) && !server.is_heard)
            {
                (server.is_heard, server.problem) = (true, None);
            }
            state.client.frame(link, octets, now)
        };
        drop(handling);
        match taken {
            Ok(events) => self.perform(link, events).await,
            Err(fault) => {
                let name = self.name_of(link);
                error!(server = name, "{fault}");
                if let Some(server) = lock(&self.state).servers.iter_mut().find(|server| server.link == Some(link)) {
                    server.problem = Some(format!("{fault} ({name})"));
                }
                return self.links.close_refused(link, "a message that this router does not understand");
            }
        }
        self.report();
    }

    fn name_of(&self, link: u64) -> String {
        let state = lock(&self.state);
        state.servers.iter().find(|server| server.link == Some(link)).map_or_else(String::new, |of| of.name.clone())
    }

    /// Does what follows from what came by a link.
    async fn perform(&self, link: u64, events: Vec<RouterClientEvent>) {
        for event in events {
            if let Some(line) = line(&event, link, |link| self.name_of(link)) {
                self.log.report(line);
            }
            match event {
                RouterClientEvent::List(octets) => self.keep(octets).await,
                RouterClientEvent::Behind => self.begin(),
                RouterClientEvent::Refused(why) => {
                    let name = self.name_of(link);
                    self.note("usage", Some(format!("the key server at {name} does not take usage: {why}")));
                }
                RouterClientEvent::Taken => self.note("usage", None),
                RouterClientEvent::Untaken(_) => {}
                RouterClientEvent::Rates(rates) => self.take_rates(rates),
                RouterClientEvent::Lessor { epoch, .. } => lock(&self.state).unkept_epoch = Some(epoch),
                RouterClientEvent::Seen(position) => {
                    let mut state = lock(&self.state);
                    state.unkept_seen = Some(position);
                    // It may have been adopted.
                    state.servers.iter_mut().filter(|of| of.link == Some(link)).for_each(|of| of.problem = None);
                }
                RouterClientEvent::Lacks { seen, .. } => {
                    let (name, seen) = (self.name_of(link), seen.number);
                    if let Some(server) = lock(&self.state).servers.iter_mut().find(|server| server.link == Some(link))
                    {
                        server.problem = Some(format!(
                            "the database of the key server at {name} was set back, or is another: it lacks change {seen}"
                        ));
                    }
                }
                RouterClientEvent::Superseded { octets, .. } => self.links.send(link, octets),
            }
        }
    }

    /// Takes rates that the server told; threads have them with the next plan.
    fn take_rates(&self, rates: Vec<(SharedRate, u64)>) {
        let mut state = lock(&self.state);
        if state.rates == rates {
            return;
        }
        (state.rates, state.told, state.are_unkept) = (rates, state.told + 1, true);
        let count = state.rates.len();
        drop(state);
        self.keep_rates();
        self.log.report(rates_line(count));
    }

    /// Hands the rates that were told to the store, which may be busy: for a restart while there is no server.
    fn keep_rates(&self) {
        let mut state = lock(&self.state);
        if let Some(epoch) = state.unkept_epoch {
            let value = || Some(epoch.to_be_bytes().to_vec());
            let change = |key: &Vec<u8>| Change { table: TABLE, key: key.clone(), value: value() };
            let changes = self.epoch_keys.iter().map(change).collect();
            state.unkept_epoch = self.store.submit(changes, Box::new(|| ())).is_err().then_some(epoch);
        }
        if let Some(seen) = state.unkept_seen {
            let change = |key: &Vec<u8>| Change { table: TABLE, key: key.clone(), value: Some(encode(&seen)) };
            let changes = self.seen_keys.iter().map(change).collect();
            state.unkept_seen = self.store.submit(changes, Box::new(|| ())).is_err().then_some(seen);
        }
        if !state.are_unkept {
            return;
        }
        let message = ChannelMessage::Rates(state.rates.clone()).encode();
        let change = |key: &Vec<u8>| Change { table: TABLE, key: key.clone(), value: Some(message.clone()) };
        state.are_unkept = self.store.submit(self.rates_keys.iter().map(change).collect(), Box::new(|| ())).is_err();
    }

    /// The server has greater totals than this router: it goes on under another identity.
    fn begin(&self) {
        let Ok(id) = random() else { return error!("usage is not reported: the system gave no randomness") };
        self.log.report(behind_line());
        let mut state = lock(&self.state);
        let base = state.client.begin(JournalId(id)).clone();
        state.unwritten = Some((JournalId(id), base));
    }

    /// Hands a new identity to the store, which may be busy; nothing is reported before it is durable.
    fn write_identity(&self, written: &Arc<AtomicBool>) {
        let mut state = lock(&self.state);
        let Some((id, base)) = &state.unwritten else { return };
        let identity = Change { table: TABLE, key: JOURNAL.to_vec(), value: Some(id.0.to_vec()) };
        let total = |(account, total): (&ChargedAccount, &Usage)| Change {
            table: BASE,
            key: account.0.to_vec(),
            value: Some([total.packets.to_be_bytes(), total.octets.to_be_bytes()].concat()),
        };
        let changes = base.iter().map(total).chain([identity]).collect();
        let written = Arc::clone(written);
        match self.store.submit(changes, Box::new(move || written.store(true, Ordering::Release))) {
            Ok(()) => state.unwritten = None,
            Err(error) => {
                if let Some(Line { suppressed }) = self.log.admit("usage-identity", 0) {
                    error!(suppressed, "usage is not reported: {error}");
                }
            }
        }
    }

    fn report(&self) {
        let now = self.clock.now();
        let (report, confirmation, question, rates) = {
            let mut state = lock(&self.state);
            state.client.set_last_epoch(last_epoch(now.unix));
            let client = &mut state.client;
            let (report, confirmation) = (client.report(now.instant), client.confirm(now.instant));
            (report, confirmation, client.watch_again(now.instant), client.recounted())
        };
        if let Some(RouterClientEvent::Rates(rates)) = rates {
            self.take_rates(rates);
        }
        report.into_iter().chain(confirmation).chain(question).for_each(|(link, octets)| self.links.send(link, octets));
    }

    /// Tells the key servers from time to time what was refused to those who pay.
    async fn tell_refusals(&mut self) {
        let now = self.clock.now().instant;
        if now.since(self.told_refusals) < RouterClient::REFUSALS {
            return;
        }
        self.told_refusals = now;
        // A thread that has ended takes its counts along, and its process soon.
        let Some(counts) = self.threads.query_all(|worker| refused(&worker.format.router)).await else { return };
        let mut sums = BTreeMap::<Principal, RefusedPackets>::new();
        for (principal, reason, packets) in counts.into_iter().flatten() {
            let sum = sums.entry(principal).or_default().entry(reason).or_default();
            *sum = sum.saturating_add(packets);
        }
        let report = RefusalReport::largest(now.since(self.begun).as_secs() + 1, sums);
        let (links, octets) = lock(&self.state).client.tell_refusals(report);
        links.into_iter().for_each(|link| self.links.send(link, octets.clone()));
    }

    /// Puts a list where the router reads it.
    async fn keep(&self, octets: Vec<u8>) {
        let Some((path, key)) = self.list.clone() else { return };
        // Each server sends its own: what is no later than another's is not looked at.
        if number_of(&octets).is_some_and(|number| !lock(&self.state).client.is_later(number)) {
            return;
        }
        let kept = tokio::task::spawn_blocking(move || keep_list(&path, &key, &octets)).await;
        match kept {
            Ok(Ok(number)) => {
                let say = lock(&self.state).client.has_list(number);
                if let Some((links, octets)) = say {
                    links.into_iter().for_each(|link| self.links.send(link, octets.clone()));
                }
                self.note("list", None);
                self.log.note(&json!({ "event": "revocations-received", "sequence": number }));
            }
            Ok(Err(why)) => {
                error!("the list of revocations from the key server is not kept: {why}");
                self.note("list", Some(format!("the key server's list of revocations is not kept: {why}")));
            }
            Err(_) => error!("the list of revocations from the key server is not kept: a bug, please report it"),
        }
    }

    /// Asks for shares by the demand that threads have met, and divides among them what this router has.
    async fn lease(&mut self) {
        let rates: Vec<SharedRate> = lock(&self.state).client.shared().collect();
        if rates.is_empty() {
            return;
        }
        let payers: Vec<Payer> = rates.iter().map(|rate| payer(&rate.payer)).collect();
        let mut demands: Vec<Vec<u64>> = Vec::new();
        for thread in 0..self.threads.count() {
            let payers = payers.clone();
            let take = move |worker: &mut Worker<Platypus>| -> Vec<u64> {
                payers.iter().map(|payer| worker.format.router.accounts().take_demand(payer)).collect()
            };
            demands.push(self.threads.query(thread, take).await.unwrap_or_else(|| vec![0; rates.len()]));
        }
        let now = self.clock.now().instant;
        let passed = now.since(std::mem::replace(&mut self.looked, now)).as_nanos().max(1);
        let (request, leases) = {
            let mut state = lock(&self.state);
            for (number, rate) in rates.iter().enumerate() {
                let octets: u128 = demands.iter().map(|demand| u128::from(demand[number])).sum();
                let demand = u64::try_from(octets.saturating_mul(1_000_000_000) / passed).unwrap_or(u64::MAX);
                state.client.demand(&rate.payer, demand);
            }
            let leases: Vec<(RatePayer, (u64, Instant))> = state.client.leases(now).collect();
            (state.client.ask(now), leases)
        };
        // The configuration may have changed between: a lease of a rate that is no longer shared is nobody's.
        let lease = |of: &RatePayer| leases.iter().find(|(payer, _)| payer == of).map(|(_, lease)| *lease);
        let mut of_threads: Vec<Vec<(Payer, u64, Instant)>> = vec![Vec::new(); demands.len()];
        for (number, rate) in rates.iter().enumerate() {
            let Some((share, ends)) = lease(&rate.payer) else { continue };
            let demand: Vec<u64> = demands.iter().map(|demand| demand[number]).collect();
            for (thread, share) in shares(share, &demand).into_iter().enumerate() {
                of_threads[thread].push((payers[number], share, ends));
            }
        }
        for (thread, leases) in of_threads.into_iter().enumerate() {
            let set = move |worker: &mut Worker<Platypus>| {
                let now = worker.clock.now().instant;
                for (payer, share, ends) in leases {
                    worker.format.router.accounts().set_lease(&payer, share, ends, now);
                }
            };
            // One that has ended forwards nothing.
            let _ = self.threads.query(thread, set).await;
        }
        // It says what is in use: not before all threads use it, and nothing more.
        request.into_iter().for_each(|(link, octets)| self.links.send(link, octets));
    }
}

/// Under what the rates of this server are in the store: another one's are not taken for them.
fn rates_key(server: &Server) -> Vec<u8> {
    [RATES, &server.identity.0].concat()
}

/// The same of the highest epoch of a lessor.
fn epoch_key(server: &Server) -> Vec<u8> {
    [EPOCH, &server.identity.0].concat()
}

/// The same of the last change that was told.
fn seen_key(server: &Server) -> Vec<u8> {
    [SEEN, &server.identity.0].concat()
}

fn plain(rates: &[(SharedRate, u64)]) -> Vec<SharedRate> {
    rates.iter().map(|(rate, _)| *rate).collect()
}

fn payer(payer: &RatePayer) -> Payer {
    Payer { principal: payer.principal, delegation: payer.delegation }
}

fn read_base(key: &[u8], value: &[u8]) -> Option<(ChargedAccount, Usage)> {
    let (packets, octets) = value.split_first_chunk::<16>()?;
    let total = Usage { packets: u128::from_be_bytes(*packets), octets: u128::from_be_bytes(octets.try_into().ok()?) };
    Some((ChargedAccount(key.try_into().ok()?), total))
}

/// The number that a signed list says to have.
fn number_of(octets: &[u8]) -> Option<u64> {
    octets.get(SIGNATURE..)?.first_chunk().map(|number| u64::from_be_bytes(*number))
}

/// Replaces the list in `path` by one that is newer and signed, in one step. Returns the number of the list that is there then.
fn keep_list(path: &Path, key: &VerifyingKey, octets: &[u8]) -> Result<u64, String> {
    let (signature, list) = octets.split_first_chunk::<SIGNATURE>().ok_or("it is too short")?;
    let number = RevocationList::open(list, signature, key).map_err(|error| error.to_string())?.sequence;
    let before = revocation::open(path, key).ok().flatten().map(|list| list.sequence);
    if let Some(before) = before.filter(|before| *before >= number) {
        return Ok(before);
    }
    revocation::put(path, &[octets]).map_err(|failures| failures.to_string())?;
    Ok(number)
}

/// What the operator is told of what came by a link; `name_of` is that of the key server at the other end of one.
pub fn line(event: &RouterClientEvent, link: u64, name_of: impl Fn(u64) -> String) -> Option<EventLine> {
    Some(match event {
        RouterClientEvent::Refused(why) => event!(ERROR "usage-refused" {; server = name_of(link), why = shown(why) }
            "the key server does not take this router's usage: {why}"),
        RouterClientEvent::Untaken(accounts) => event!(ERROR "usage-untaken" { accounts }
            "the key server has no room for {accounts} accounts of this router's, of those who pay for them: they are kept here, and \
             reported again in ten minutes; its operator has to close time"),
        RouterClientEvent::Lessor { link, epoch } => event!(INFO "lessor" { epoch; server = name_of(*link) }
            "rates are leased by this key server"),
        RouterClientEvent::Lacks { seen, own } => {
            let (seen, own) = (seen.number, own.number);
            event!(ERROR "provider-behind" { seen, own; server = name_of(link) }
                "the key server's database ends with change {own} and lacks change {seen} as this router has seen it: it was set back, or \
                 is another; its rates and shares are not taken until its operator restores it, or accepts it (`wayleave cap adopt`)")
        }
        RouterClientEvent::Superseded { epoch, .. } => {
            event!(WARN "lessor-superseded" { epoch; server = name_of(link) }
            "the key server says that it leases rates, and another one has done so since: it is asked for nothing")
        }
        // `begin` reports that the server is ahead, once there is another identity.
        RouterClientEvent::List(_)
        | RouterClientEvent::Behind
        | RouterClientEvent::Taken
        | RouterClientEvent::Rates(_)
        | RouterClientEvent::Seen(_) => return None,
    })
}

pub fn connected_line(number: usize, server: &str) -> EventLine {
    event!(INFO "provider-connected" by number, {; server } "the key server is connected")
}

pub fn disconnected_line(number: usize, server: &str, why: &str, others_are_up: bool) -> EventLine {
    let consequence = if others_are_up {
        "others go on for it"
    } else {
        "usage waits, and shares of rates stay for a minute and then dwindle to this router's floors"
    };
    event!(WARN "provider-disconnected" by number, {; server, why }
        "the link to the key server is down: {why}; {consequence}")
}

pub fn rates_line(count: usize) -> EventLine {
    event!(INFO "rates" {; rates = count } "the key server told {count} rates that routers share")
}

pub fn behind_line() -> EventLine {
    event!(WARN "usage-behind" {}
        "the key server has greater totals than this router's state: it was put back; usage is counted from here on, and what was \
         forwarded since the copy was made is billed no second time")
}

#[cfg(test)]
mod tests {
    use wayleave_control::capability::{Ledger, UsageAnswer};
    use wayleave_packet::platypus::header::{Interval, Principal};

    use super::*;

    #[test]
    fn only_a_server_that_closes_the_link_without_a_word_is_said_to_do_so() {
        let closed = FrameError::Closed.to_string();
        assert!(ended("key.example.net", &closed, false).ends_with(UNHEARD));
        assert!(!ended("key.example.net", &closed, true).contains("without a word"));
        for reason in [FrameError::Truncated, FrameError::Silent(std::time::Duration::from_secs(30))] {
            assert!(!ended("key.example.net", &reason.to_string(), false).contains("without a word"), "{reason}");
        }
    }

    fn charge(epoch: u32) -> Charge {
        let principal = Principal::new(7).expect("24 bits");
        Charge { principal, delegation: None, interval: Interval::new(12), epoch }
    }

    /// Connected to a key server that takes whatever is reported.
    struct Site {
        state: State,
        ledger: Ledger<ChargedAccount>,
    }

    impl Site {
        fn new(journal: JournalId, base: BTreeMap<ChargedAccount, Usage>, totals: &BTreeMap<u32, u128>) -> Self {
            let mut client = RouterClient::new(journal, base, None);
            for (epoch, packets) in totals {
                let usage = Usage { packets: *packets, octets: packets * 100 };
                client.durable(ChargedAccount(record::encode(&charge(*epoch))), usage);
            }
            client.connected(1);
            let continues = ChannelMessage::Continues { position: Position::default() }.encode();
            assert_eq!(client.frame(1, &continues, Instant(1)), Ok(Vec::new()));
            let state = State {
                client,
                unwritten: None,
                servers: Vec::new(),
                problems: BTreeMap::new(),
                rates: Vec::new(),
                told: 0,
                planned: Vec::new(),
                are_unkept: false,
                unkept_epoch: None,
                unkept_seen: None,
                session: 1,
            };
            Self { state, ledger: Ledger::new(100) }
        }

        fn report(&mut self) {
            while let Some((_, octets)) = self.state.client.report(Instant(1)) {
                let Ok(ChannelMessage::Report(report)) = ChannelMessage::decode(&octets) else { panic!("no report") };
                let taken = self.ledger.take(1, &report, 0).expect("there is room");
                let answer = UsageAnswer { number: report.number, is_behind: taken.is_behind };
                let events = self.state.client.frame(1, &ChannelMessage::Answer(answer).encode(), Instant(1));
                assert_eq!(events, Ok(Vec::new()));
            }
        }

        fn billed(&self) -> u128 {
            self.ledger.sums().values().map(|sum| sum.packets).sum()
        }
    }

    #[test]
    fn accounts_whose_removal_the_store_refuses_stay_and_are_on_no_bill_twice_under_a_new_identity() {
        let totals = BTreeMap::from([(1, 100), (2, 50)]);
        let mut site = Site::new(JournalId([1; 16]), BTreeMap::new(), &totals);
        site.report();
        assert_eq!(site.billed(), 150);
        let old = || vec![charge(1)];
        let mut offered = 0;
        let refuse = |accounts: &[Charge], bases: Vec<Change>| {
            offered += accounts.len() + bases.len();
            false
        };
        assert_eq!((forget(&mut site.state, old(), refuse), offered), (0, 2), "the store is busy");
        // The router goes on under a new identity, and starts again with what the store has: all totals, and the new base.
        let base = site.state.client.begin(JournalId([2; 16])).clone();
        assert_eq!(base.len(), 2, "what the store still has is billed already");
        let ledger = site.ledger;
        site = Site { ledger, ..Site::new(JournalId([2; 16]), base, &totals) };
        site.report();
        assert_eq!(site.billed(), 150);
        // What the store took is gone from the next base too.
        assert_eq!(forget(&mut site.state, old(), |_, _| true), 1);
        assert_eq!(forget(&mut site.state, old(), |_, _| true), 0, "gone");
        assert_eq!(site.state.client.begin(JournalId([3; 16])).len(), 1);
        // A new identity that is not durable yet holds all of them.
        site.state.unwritten = Some((JournalId([3; 16]), BTreeMap::new()));
        assert_eq!(forget(&mut site.state, vec![charge(2)], |_, _| true), 0);
    }
}
