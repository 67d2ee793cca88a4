//! The I/O of an attesting proxy: the sockets of its pairs, the store, jobs, the log.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use tokio::sync::mpsc;
use tracing::{debug, info, warn};
use wayleave_attestation::pipeline::explain::reason;
use wayleave_attestation::pipeline::{Reserve, RouteEvent};
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
use crate::roles::attestation::{self, KEYS_EXHAUSTED, first, key_faulty, slot_record};
use crate::roles::bgp_peer::describe_malformed;
use crate::roles::events::{EventLine, Events, event, shown};
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

    fn report(&mut self, event: ProxyEvent) {
        match event {
            ProxyEvent::Pair(pair, PairEvent::Failed(side, ended)) => {
                self.log_no_session(pair, format!("{} peer: {}", side.name(), ended.cause));
            }
            event => {
                if let ProxyEvent::Pair(pair, PairEvent::Up(..)) = event {
                    self.logged_causes.retain(|(of, _)| *of != pair);
                }
                self.log.report(line(event, &self.names));
            }
        }
    }
}

/// What the operator is told.
pub fn line(event: ProxyEvent, names: &[String]) -> EventLine {
    match event {
        ProxyEvent::Pair(pair, event) => pair_line(event, pair, &names[pair]),
        ProxyEvent::Route { pair, event } => route_line(&event, &names[pair]).by(pair),
        ProxyEvent::Process(event) => attestation::process_line(&event),
        ProxyEvent::Offered(pair, keys) => event!(INFO "offered" by pair, { pair = names[pair], keys = keys.len() }
            "the outside peer offers its attestation keys"),
        ProxyEvent::NewKeys { keys, signs, is_bound } => {
            let ids: Vec<String> = keys.iter().map(ToString::to_string).collect();
            let then = match signs {
                Some(key) if keys.contains(&key) => format!("routes are signed again, with {key}, which is registered"),
                Some(key) => format!(
                    "none of them is registered yet, and {key} goes on signing until the profile lists one (\"wayleave keys profile ... --add\")"
                ),
                None if is_bound => "no key here is registered".to_owned(),
                None => "this AS has no profile, so that they sign where a neighbour endorses them".to_owned(),
            };
            event!(INFO "new-keys" {; ids, signs = signs.map(|key| key.to_string()) } "new keys {}: {then}; no session ends", ids.join(", "))
        }
        ProxyEvent::Older { pair, nlri, origin, have, newest } => {
            event!(WARN "older" by pair, { pair = names[pair], have, newest; prefix = nlri.prefix, origin }
                "route {nlri} of {origin}: an older attestation replaced a newer one: a replay, or the origin's other session")
        }
        ProxyEvent::Suspect(pair) => {
            event!(WARN "wrong-signatures" by pair, { pair = names[pair] } "{}", attestation::SUSPECT)
        }
        ProxyEvent::GrantRefused(pair, error) => {
            event!(ERROR "grant-refused" by pair, { pair = names[pair]; why = shown(error) }
            "keys that the neighbour handed over are refused: {error}; its hops name keys that this AS does not have")
        }
    }
}

fn route_line(event: &RouteEvent, pair: &str) -> EventLine {
    let (routes, prefixes) = (event.routes().len(), attestation::prefixes(event.routes()));
    let first = first(event.routes());
    match event {
        RouteEvent::Verdict { nlri, class, report } => {
            let why = reason(report);
            event!(WARN "verdict" { pair, nlri = shown(nlri), class; prefix = nlri.prefix, why } "route {nlri} is {}: {why}", class.name())
        }
        RouteEvent::Refused { class, report, .. } => {
            let why = reason(report);
            event!(WARN "not-sent" { pair, routes, first; class, why }
                "routes from inside are not signed and not sent: {} ({why})", class.name())
        }
        RouteEvent::NotExtended { error, .. } => event!(WARN "not-extended" { pair, routes, first; why = shown(error) }
            "routes sent without this AS's signature, their chain ends here: {error}"),
        RouteEvent::TooLong { need, .. } => event!(ERROR "too-long" { pair, need, routes, first }
            "routes not sent: their attestation needs {need} octets, which this peer does not take; use extended messages or a suite with \
             shorter signatures"),
        RouteEvent::Exhausted { .. } => event!(ERROR "exhausted" { pair, routes } "routes not sent: {KEYS_EXHAUSTED}"),
        RouteEvent::Faulty { suite, .. } => event!(ERROR "key-faulty" { pair, routes, suite = suite.name() }
            "routes not sent: {}", key_faulty(*suite)),
        RouteEvent::NotAuthorised { .. } => {
            event!(WARN "not-authorised" { pair, routes, first = prefixes.first(); prefixes }
            "routes from inside not signed and not sent: {}", attestation::NOT_AUTHORISED)
        }
        RouteEvent::Failed { task, .. } => event!(ERROR "failed" { pair, routes, first; doing = task }
            "a job failed while {task}: a bug, please report it with the lines above; its routes are held back and tried again later"),
    }
}

/// Of the sessions of the pair with this number and name.
fn pair_line(event: PairEvent, number: usize, pair: &str) -> EventLine {
    match event {
        PairEvent::Up(side, up) => {
            event!(INFO "up" { pair, id = shown(up.peer_id); side = side.name(), peer = up.peer_asn }
            "BGP session with the {} peer ({}) up", side.name(), up.peer_asn)
        }
        PairEvent::Down(side, ended) => event!(WARN "down" { pair; side = side.name(), cause = shown(&ended.cause) }
            "BGP session with the {} peer down: {}", side.name(), ended.cause),
        // Each cause is told once; see `log_no_session`.
        PairEvent::Failed(side, ended) => {
            event!(INFO "failed" by number, { pair; side = side.name(), cause = shown(&ended.cause) }
            "no BGP session: {} peer: {}", side.name(), ended.cause)
        }
        PairEvent::Malformed(side, problems, routes) => event!(WARN "malformed" by number, { pair; side = side.name() }
            "malformed UPDATE from the {} peer: {}; the session stays up (RFC 7606)",
            side.name(), describe_malformed(&problems, routes.iter())),
        PairEvent::Rejected(side, rejected) => {
            event!(WARN "rejected" by number, { pair, routes = rejected.routes.len(); side = side.name() }
            "routes not sent to the {} peer: {}", side.name(), rejected.error)
        }
        PairEvent::OutOfMemory(side) => event!(ERROR "out-of-memory" by number, { pair; side = side.name() }
            "the routes of this pair take more than `most_memory_mib`: the session with the {} peer is stopped", side.name()),
        PairEvent::OverLimit(side, nlri) => {
            event!(WARN "over-limit" by number, { pair, nlri = shown(nlri); side = side.name() }
            "the {} peer announces more prefixes than `max_prefixes`", side.name())
        }
    }
}
