//! The I/O of an attesting proxy: the sockets of its pairs, the store, jobs, the log.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tracing::{debug, error, info, warn};
use wayleave_attestation::pipeline::explain::reason;
use wayleave_attestation::pipeline::{ProcessEvent, Reserve, RouteEvent};
use wayleave_attestation::proxy::session_pair::{self, Side};
use wayleave_attestation::proxy::{Event as ProxyEvent, Input, Output, PairEvent, Proxy};
use wayleave_bgp::session;
use wayleave_runtime::bgp_tcp::{TcpEvent, TcpOptions};
use wayleave_runtime::drive::{Io, Query, Step};
use wayleave_runtime::log_limit::Line;
use wayleave_runtime::starts::PeerName;
use wayleave_runtime::store::{FileStore, Store};

use crate::config::Source;
use crate::config::attest::{AttestFile, EndSection};
use crate::failure::{Failure, Outcome};
use crate::roles::Events;
use crate::roles::attestation::{self, KEYS_EXHAUSTED, first, key_faulty, slot_record};
use crate::roles::bgp_peer::malformed_words;
use crate::roles::peer_tcp::{Endpoint, PeerTcp, TcpInput};

/// TCP events of one end that may wait; then its connections wait.
const TCP_QUEUE: usize = 64;
/// Causes of failed attempts that are logged between two sessions, for each pair.
const LOGGED_CAUSES: usize = 16;

/// What reaches the machine's loop.
pub enum Event {
    Tcp(usize, Side, TcpEvent),
    Input(Input),
    Query(Query<Proxy>),
    Stop,
}

impl From<Input> for Event {
    fn from(input: Input) -> Self {
        Event::Input(input)
    }
}

impl From<Query<Proxy>> for Event {
    fn from(query: Query<Proxy>) -> Self {
        Event::Query(query)
    }
}

fn endpoint(end: &EndSection, source: &Source) -> Outcome<Endpoint> {
    let keys = end.protection_keys();
    let protection = keys.protection(source)?;
    let bind = end.bind.map(|bind| bind.0);
    let options = TcpOptions { peer: keys.peer(), bind, ttl: end.ttl, protection, ..TcpOptions::default() };
    Ok(Endpoint { listen: keys.listen, connect: keys.connect, options })
}

/// The connections of both ends of each pair, inside then outside.
pub type PairConnections = Vec<[PeerTcp; 2]>;

/// Listens for the peers of all pairs. What happens to their connections reaches the machine's loop with pair and side.
pub async fn listen(file: &AttestFile, source: &Source, events: &mpsc::Sender<Event>) -> Outcome<PairConnections> {
    let mut all = Vec::new();
    for (number, pair) in file.pair.iter().enumerate() {
        let pair = pair.get_ref();
        let mut ends = Vec::new();
        for (side, section) in [(Side::Inside, &pair.inside), (Side::Outside, &pair.outside)] {
            let (to, mut tcp) = mpsc::channel(TCP_QUEUE);
            let mut endpoint = endpoint(section.get_ref(), source)?;
            endpoint.options.name = Some(format!("the {} peer of pair {}", side.name(), pair.name).into());
            let wanted = endpoint.listen;
            let connections = PeerTcp::open(endpoint, to).await.map_err(|error| {
                let at = wanted.map(|address| format!(" at {address}")).unwrap_or_default();
                let what = format!("pair {}: cannot listen for the {} peer{at}", pair.name, side.name());
                Failure::listen_bgp(what, &error)
            })?;
            if let Some(address) = connections.address {
                info!(pair = pair.name, side = side.name(), %address, "listening for the {} peer at {address}", side.name());
            }
            let protection = connections.protection();
            info!(
                pair = pair.name,
                side = side.name(),
                protection,
                "protection of the session with the {} peer: {protection}",
                side.name()
            );
            let events = events.clone();
            tokio::spawn(async move {
                while let Some(event) = tcp.recv().await {
                    if events.send(Event::Tcp(number, side, event)).await.is_err() {
                        return;
                    }
                }
            });
            ends.push(connections);
        }
        all.push(ends.try_into().map_err(|_| Failure::new("a pair has two ends"))?);
    }
    Ok(all)
}

pub struct ProxyIo {
    connections: PairConnections,
    names: Vec<String>,
    events: mpsc::Sender<Event>,
    store: Arc<FileStore>,
    log: Events,
    logged_causes: BTreeSet<(usize, String)>,
}

impl Io<Proxy> for ProxyIo {
    type Event = Event;
    type Error = Failure;

    fn source<'a>(&'a self, event: &'a Event) -> Option<&'a PeerName> {
        match event {
            Event::Tcp(pair, side, event) => self.connections[*pair][*side as usize].source(event),
            Event::Input(_) | Event::Query(_) | Event::Stop => None,
        }
    }

    fn step(&mut self, event: Event) -> Step<Proxy> {
        match event {
            Event::Tcp(pair, side, event) => match self.tcp(pair, side, event) {
                Some(input) => Step::Input(Input::Pair(pair, session_pair::Input::Wire(side, input))),
                None => Step::Ignore,
            },
            Event::Input(input) => Step::Input(input),
            Event::Query(query) => Step::Query(query),
            Event::Stop => Step::Stop,
        }
    }

    fn perform(&mut self, output: Output, feedback: &mut VecDeque<Input>) -> Result<(), Failure> {
        match output {
            Output::Tcp { pair, side, request } => {
                if let Some(input) = self.connections[pair][side as usize].perform(request) {
                    feedback.push_back(Input::Pair(pair, session_pair::Input::Wire(side, input)));
                }
            }
            Output::Job(job) => attestation::work(move || Input::JobDone(job.run()), &self.events),
            Output::Persist(Reserve { id, public, slot }) => {
                let events = self.events.clone();
                let durable = move || drop(events.blocking_send(Event::Input(Input::Persisted(id))));
                self.store.submit(vec![slot_record(public, slot)], Box::new(durable))?;
            }
            Output::Event(event) => self.report(event),
        }
        Ok(())
    }
}

impl ProxyIo {
    pub fn new(
        file: &AttestFile,
        connections: PairConnections,
        (store, log): (Arc<FileStore>, Events),
        events: &mpsc::Sender<Event>,
    ) -> Self {
        Self {
            connections,
            names: file.pair.iter().map(|pair| pair.get_ref().name.clone()).collect(),
            events: events.clone(),
            store,
            log,
            logged_causes: BTreeSet::new(),
        }
    }

    fn tcp(&mut self, pair: usize, side: Side, event: TcpEvent) -> Option<session::Input> {
        match self.connections[pair][side as usize].translate(event) {
            TcpInput::Session(input) => Some(input),
            TcpInput::ConnectFailed(input, why) => {
                self.log_no_session(pair, format!("cannot connect to the {} peer: {why}", side.name()));
                Some(input)
            }
            TcpInput::Refused(ip) => {
                if let Some(Line { suppressed }) = self.log.admit("stranger", 2 * pair + side as usize) {
                    let (pair, side) = (&self.names[pair], side.name());
                    warn!(
                        pair,
                        side,
                        suppressed,
                        "BGP connection from {ip} refused: `address` (with a password also `connect`) names another speaker"
                    );
                }
                None
            }
        }
    }

    /// Logs why a pair has no session, each cause once until it has one: speakers try again and again.
    fn log_no_session(&mut self, pair: usize, cause: String) {
        let (key, name) = ((pair, cause), &self.names[pair]);
        let known = self.logged_causes.iter().filter(|(of, _)| *of == pair).count();
        if self.logged_causes.contains(&key) || known >= LOGGED_CAUSES {
            debug!(pair = name, "no BGP session: {}", key.1);
        } else {
            info!(pair = name, "no BGP session: {}", key.1);
            self.logged_causes.insert(key);
        }
    }

    /// Logs an event, and keeps it for `show events`.
    fn report(&mut self, event: ProxyEvent) {
        if let Some(noted) = self.log_event(event) {
            self.log.note(&noted);
        }
    }

    fn log_event(&mut self, event: ProxyEvent) -> Option<Value> {
        let Line { suppressed } = match kind(&event) {
            Some((kind, pair)) => self.log.admit(kind, pair)?,
            None => Line::default(),
        };
        let pair_event = |event: &str, name: &str| json!({ "event": event, "pair": name });
        match event {
            ProxyEvent::Pair(pair, event) => self.log_pair(pair, event, suppressed),
            ProxyEvent::Offered(pair, keys) => {
                info!(pair = self.names[pair], keys = keys.len(), "the outside peer offers its attestation keys");
                None
            }
            ProxyEvent::Route { pair, event: RouteEvent::Verdict { nlri, class, report } } => {
                let (name, why) = (&self.names[pair], reason(&report));
                warn!(pair = name, %nlri, class = class.name(), suppressed, "route {nlri} is {}: {why}", class.name());
                let mut noted = pair_event("verdict", name);
                noted["prefix"] = json!(nlri.prefix);
                noted["class"] = json!(class);
                noted["why"] = json!(why);
                Some(noted)
            }
            ProxyEvent::Route { pair, event: RouteEvent::NotExtended { routes, error } } => {
                warn!(
                    pair = self.names[pair],
                    routes = routes.len(),
                    first = first(&routes),
                    suppressed,
                    "routes sent without this AS's signature, their chain ends here: {error}"
                );
                None
            }
            ProxyEvent::Route { pair, event: RouteEvent::TooLong { routes, need } } => {
                error!(
                    pair = self.names[pair],
                    need,
                    routes = routes.len(),
                    first = first(&routes),
                    suppressed,
                    "routes not sent: their attestation needs {need} octets, which this peer does not take; use extended messages or a suite with shorter signatures"
                );
                None
            }
            ProxyEvent::Route { pair, event: RouteEvent::Exhausted { routes } } => {
                error!(pair = self.names[pair], routes = routes.len(), suppressed, "routes not sent: {KEYS_EXHAUSTED}");
                None
            }
            ProxyEvent::Route { pair, event: RouteEvent::Faulty { routes, suite } } => {
                let name = &self.names[pair];
                error!(
                    pair = name,
                    routes = routes.len(),
                    suite = suite.name(),
                    suppressed,
                    "routes not sent: {}",
                    key_faulty(suite)
                );
                let mut noted = pair_event("key-faulty", name);
                noted["suite"] = json!(suite.name());
                noted["routes"] = json!(routes.len());
                Some(noted)
            }
            ProxyEvent::Route { pair, event: RouteEvent::NotAuthorised { routes } } => {
                let name = &self.names[pair];
                warn!(
                    pair = name,
                    routes = routes.len(),
                    first = routes.first().map(|nlri| display(nlri.prefix)),
                    suppressed,
                    "routes from inside not signed and not sent: {}",
                    attestation::NOT_AUTHORISED
                );
                let mut noted = pair_event("not-authorised", name);
                noted["prefixes"] = json!(routes.iter().map(|nlri| nlri.prefix).collect::<Vec<_>>());
                Some(noted)
            }
            ProxyEvent::NewKeys(ids) => {
                let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
                info!(
                    "new keys: routes are signed again, by the first of {} that is registered; no session ends",
                    ids.join(", ")
                );
                Some(json!({ "event": "new-keys", "ids": ids }))
            }
            ProxyEvent::Older { pair, nlri, origin, have, newest } => {
                let name = &self.names[pair];
                warn!(
                    pair = name,
                    have,
                    newest,
                    suppressed,
                    "route {nlri} of {origin}: an older attestation replaced a newer one: a replay, or the origin's other session"
                );
                let mut noted = pair_event("older", name);
                noted["prefix"] = json!(nlri.prefix);
                noted["origin"] = json!(origin);
                Some(noted)
            }
            ProxyEvent::Suspect(pair) => {
                let name = &self.names[pair];
                warn!(pair = name, "{}", attestation::SUSPECT);
                Some(pair_event("wrong-signatures", name))
            }
            ProxyEvent::GrantRefused(pair, error) => {
                error!(
                    pair = self.names[pair],
                    "keys that the neighbour handed over are refused: {error}; its hops name keys that this AS does not have"
                );
                None
            }
            ProxyEvent::Process(ProcessEvent::KeyEnds(end)) => Some(attestation::log_key_ends(end)),
            ProxyEvent::Process(ProcessEvent::KeyWaits(wait)) => Some(attestation::log_key_waits(wait)),
            ProxyEvent::Process(ProcessEvent::KeySigns(suite)) => Some(attestation::log_key_signs(suite)),
            ProxyEvent::Route { pair, event: RouteEvent::Failed { task, routes } } => {
                let name = &self.names[pair];
                error!(
                    pair = name,
                    routes = routes.len(),
                    first = first(&routes),
                    suppressed,
                    "a job failed while {task}: a bug, please report it with the lines above; its routes are held back and tried again later"
                );
                let mut noted = pair_event("failed", name);
                noted["doing"] = json!(task);
                noted["routes"] = json!(routes.len());
                Some(noted)
            }
            ProxyEvent::Route { pair, event: RouteEvent::Refused { routes, class, report } } => {
                let (name, why) = (&self.names[pair], reason(&report));
                warn!(
                    pair = name,
                    routes = routes.len(),
                    first = first(&routes),
                    suppressed,
                    "routes from inside are not signed and not sent: {} ({why})",
                    class.name()
                );
                let mut noted = pair_event("not-sent", name);
                noted["routes"] = json!(routes.len());
                noted["class"] = json!(class);
                noted["why"] = json!(why);
                Some(noted)
            }
            ProxyEvent::Process(ProcessEvent::ClockInDoubt(doubt)) => {
                Some(attestation::log_clock_in_doubt(doubt.is_some()))
            }
            ProxyEvent::Process(ProcessEvent::ClockStepped(seconds)) => Some(attestation::log_clock_stepped(seconds)),
        }
    }

    fn log_pair(&mut self, pair: usize, event: PairEvent, suppressed: Option<u64>) -> Option<Value> {
        let name = self.names[pair].clone();
        match event {
            PairEvent::Up(side, up) => {
                info!(pair = name, id = %up.peer_id, "BGP session with the {} peer ({}) up", side.name(), up.peer_asn);
                self.logged_causes.retain(|(of, _)| *of != pair);
                Some(json!({ "event": "up", "pair": name, "side": side.name(), "peer": up.peer_asn }))
            }
            PairEvent::Down(side, ended) => {
                let cause = ended.cause.to_string();
                warn!(pair = name, "BGP session with the {} peer down: {cause}", side.name());
                Some(json!({ "event": "down", "pair": name, "side": side.name(), "cause": cause }))
            }
            PairEvent::Failed(side, ended) => {
                self.log_no_session(pair, format!("{} peer: {}", side.name(), ended.cause));
                None
            }
            PairEvent::Malformed(side, problems, routes) => {
                let problems = malformed_words(&problems, routes.iter());
                warn!(
                    pair = name,
                    suppressed,
                    "malformed UPDATE from the {} peer: {problems}; the session stays up (RFC 7606)",
                    side.name()
                );
                None
            }
            PairEvent::Rejected(side, rejected) => {
                let routes = rejected.routes.len();
                warn!(
                    pair = name,
                    routes,
                    suppressed,
                    "routes not sent to the {} peer: {}",
                    side.name(),
                    rejected.error
                );
                None
            }
            PairEvent::OutOfMemory(side) => {
                error!(
                    pair = name,
                    "the routes of this pair take more than `most_memory_mib`: the session with the {} peer is stopped",
                    side.name()
                );
                Some(json!({ "event": "out-of-memory", "pair": name, "side": side.name() }))
            }
            PairEvent::OverLimit(side, nlri) => {
                warn!(pair = name, %nlri, suppressed, "the {} peer announces more prefixes than `max_prefixes`", side.name());
                None
            }
        }
    }
}

/// What a line is about that the peers of a pair can cause again and again, and the pair.
fn kind(event: &ProxyEvent) -> Option<(&'static str, usize)> {
    Some(match event {
        ProxyEvent::Route { pair, event } => (attestation::kind(event), *pair),
        ProxyEvent::Older { pair, .. } => ("older", *pair),
        ProxyEvent::Suspect(pair) => ("wrong-signatures", *pair),
        ProxyEvent::GrantRefused(pair, _) => ("grant-refused", *pair),
        ProxyEvent::Pair(pair, PairEvent::Malformed(..)) => ("malformed", *pair),
        ProxyEvent::Pair(pair, PairEvent::Rejected(..)) => ("rejected", *pair),
        ProxyEvent::Pair(pair, PairEvent::OverLimit(..)) => ("over-limit", *pair),
        ProxyEvent::Pair(pair, PairEvent::OutOfMemory(_)) => ("out-of-memory", *pair),
        ProxyEvent::Pair(_, PairEvent::Up(..) | PairEvent::Down(..) | PairEvent::Failed(..))
        | ProxyEvent::Offered(..)
        | ProxyEvent::NewKeys(_)
        | ProxyEvent::Process(_) => return None,
    })
}
