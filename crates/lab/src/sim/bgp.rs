//! Simulated routers with a BGP session to their member's proxy, over pipes in memory and in virtual time.
//!
//! Both ends run [`Peer`], as the daemons do. The router announces routes in UPDATEs and keeps those that it receives in
//! an Adj-RIB-In. The seed decides where octets are cut and in which order the sessions progress; a pipe has a bounded
//! size; sessions are opened, kept alive and given up by their own timers.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::Ipv4Addr;
use std::sync::Arc;

use wayleave_bgp::peer::{Input as PeerInput, Output as PeerOutput, Peer, PeerEvent, TcpRequest};
use wayleave_bgp::rib::{AdjRibIn, MaxPrefixes};
use wayleave_bgp::session::{Config, ConnectionId, Counters, Input as SessionInput, PeerAsn, State, Stop, StopReason};
use wayleave_bgp::{Attributes, Nlri, Update};
use wayleave_core::{Afi, Instant, Machine, Prefix};
use wayleave_member::router_session;

use super::{RS_ASN, Sim, member_address, member_asn};

/// Octets in one direction of a connection above which the sender is blocked.
const PIPE: usize = 128 << 10;
/// Octets delivered at once, at most.
const SEGMENT: usize = 16 << 10;
/// The BGP identifier of every member's proxy.
const PROXY_ID: Ipv4Addr = Ipv4Addr::new(10, 255, 255, 254);

/// The ends of a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum End {
    Router,
    Proxy,
}

impl End {
    const BOTH: [Self; 2] = [Self::Router, Self::Proxy];

    fn other(self) -> Self {
        match self {
            Self::Router => Self::Proxy,
            Self::Proxy => Self::Router,
        }
    }
}

/// One direction of a connection.
#[derive(Default)]
struct Pipe {
    octets: VecDeque<u8>,
    /// The sender was notified that the pipe is full.
    blocked: bool,
    /// The receiver has closed, or was notified that the sender has.
    closed: bool,
    /// The sender has closed.
    ended: bool,
}

/// A TCP connection between a router and its member's proxy.
struct Connection {
    id: ConnectionId,
    /// By receiver: the router's, then the proxy's.
    pipes: [Pipe; 2],
}

/// A router that speaks BGP.
struct Router {
    peer: Peer,
    adj_rib_in: AdjRibIn,
    /// UPDATEs that wait until the session takes them; the Adj-RIB-Out holds only the initial table of a session.
    queued_updates: VecDeque<Update>,
}

/// A member's router, its proxy's end of the session while the proxy runs, and their connections.
struct Port {
    router: Router,
    proxy: Option<Peer>,
    connections: Vec<Connection>,
    /// Nothing is delivered to either end.
    mute: bool,
    /// The router's operator has shut the session down.
    shut: bool,
}

impl Port {
    fn peer(&mut self, end: End) -> Option<&mut Peer> {
        match end {
            End::Router => Some(&mut self.router.peer),
            End::Proxy => self.proxy.as_mut(),
        }
    }

    fn pipe(&mut self, to: End, connection: ConnectionId) -> Option<&mut Pipe> {
        self.connections.iter_mut().find(|c| c.id == connection).map(|c| &mut c.pipes[to as usize])
    }

    /// The first connection with something to deliver to `end`.
    fn waiting(&self, end: End) -> Option<ConnectionId> {
        let waits = |pipe: &Pipe| !pipe.closed && (!pipe.octets.is_empty() || pipe.ended);
        self.connections.iter().find(|c| waits(&c.pipes[end as usize])).map(|c| c.id)
    }

    fn is_up(&self) -> bool {
        let is_established = |peer: &Peer| peer.state() == State::Established;
        is_established(&self.router.peer) && self.proxy.as_ref().is_some_and(is_established)
    }

    /// Whether its session has settled: up, or down if it cannot be up.
    fn is_quiet(&self) -> bool {
        let at_rest = match &self.proxy {
            Some(proxy) if self.mute || self.shut => {
                self.router.peer.state() != State::Established && proxy.state() != State::Established
            }
            Some(_) => self.is_up(),
            None => self.router.peer.state() != State::Established,
        };
        at_rest && self.router.queued_updates.is_empty()
    }
}

/// All routers of a simulation.
#[derive(Default)]
pub(super) struct Ports {
    ports: BTreeMap<u32, Port>,
    /// Ends with something to deliver.
    ready: BTreeSet<(u32, End)>,
    connections: u64,
}

impl Ports {
    /// Ends with something to deliver.
    pub(super) fn ready(&self) -> usize {
        self.ready.len()
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        let of = |port: &Port| {
            [Some(&port.router.peer), port.proxy.as_ref()].into_iter().flatten().filter_map(Peer::deadline).min()
        };
        self.ports.values().filter_map(of).min()
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.ready.is_empty() && self.ports.values().all(Port::is_quiet)
    }

    /// Updates which ends of `slot` have something to deliver.
    fn update_ready(&mut self, slot: u32) {
        for end in End::BOTH {
            let waits = self.ports.get(&slot).is_some_and(|port| port.waiting(end).is_some());
            if waits {
                self.ready.insert((slot, end));
            } else {
                self.ready.remove(&(slot, end));
            }
        }
    }
}

/// The configuration of a router: some support extended messages and enhanced route refresh, some do not.
fn router_config(slot: u32) -> Config {
    let mut config = Config::new(member_asn(slot), member_address(slot), PeerAsn::Exactly(RS_ASN));
    config.offer.extended_message = slot.is_multiple_of(2);
    config.offer.enhanced_route_refresh = slot.is_multiple_of(3);
    config
}

/// The seed of the jitter of a session's timers.
fn jitter_seed(seed: u64, slot: u32, end: End, life: u64) -> u64 {
    seed ^ (u64::from(slot) << 32) ^ ((end as u64) << 31) ^ life
}

/// For tests: inputs to routers and their sessions, and their state.
impl Sim {
    /// Whether the session between the router of `slot` and its member is up at both ends.
    #[must_use]
    pub fn is_router_up(&self, slot: u32) -> bool {
        self.ports.as_ref().and_then(|ports| ports.ports.get(&slot)).is_some_and(Port::is_up)
    }

    /// Routes that the router of `slot` has learned: its Adj-RIB-In if it is a speaker, else those it was given.
    #[must_use]
    pub fn table(&self, slot: u32) -> BTreeMap<Prefix, Attributes> {
        match &self.ports {
            Some(ports) => {
                let port = ports.ports.get(&slot);
                let rib = port.into_iter().flat_map(|port| port.router.adj_rib_in.iter());
                rib.map(|(nlri, route)| (nlri.prefix, (*route.attributes).clone())).collect()
            }
            None => self.tables.get(&slot).cloned().unwrap_or_default(),
        }
    }

    /// The router of `slot` sends an UPDATE.
    pub fn update(&mut self, slot: u32, withdrawn: &[Nlri], announced: &[Nlri], attributes: Option<&Attributes>) {
        let table = self.routers.entry(slot).or_default();
        withdrawn.iter().for_each(|nlri| drop(table.remove(nlri)));
        if let Some(attributes) = attributes {
            table.extend(announced.iter().map(|nlri| (*nlri, attributes.clone())));
        }
        self.router_update(slot, withdrawn.to_vec(), announced.to_vec(), attributes.cloned());
    }

    /// Counters of the sessions of the router of `slot`.
    #[must_use]
    pub fn router_counters(&self, slot: u32) -> Option<Counters> {
        Some(self.ports.as_ref()?.ports.get(&slot)?.router.peer.counters())
    }

    /// Resets the connection between the router of `slot` and its member; both ends notice at once.
    pub fn cut_router(&mut self, slot: u32) {
        let Some(port) = self.port(slot) else { return };
        for connection in std::mem::take(&mut port.connections) {
            for end in End::BOTH {
                self.session_input(slot, end, SessionInput::Closed { connection: connection.id });
            }
        }
        self.drain_port(slot);
    }

    /// Drops everything that would be delivered to either end of the session of `slot`, or stops doing so.
    pub fn mute_router(&mut self, slot: u32, mute: bool) {
        if let Some(port) = self.port(slot) {
            port.mute = mute;
        }
    }

    /// The operator of the router of `slot` resets the session.
    pub fn reset_router(&mut self, slot: u32) {
        let reason = StopReason::Reset("reset by a test".to_owned());
        self.session_input(slot, End::Router, SessionInput::Stop(Stop { administrative: false, reason }));
        self.drain_port(slot);
    }

    /// The operator of the router of `slot` shuts the session down.
    pub fn shut_router(&mut self, slot: u32) {
        if let Some(port) = self.port(slot) {
            port.shut = true;
            let reason = StopReason::Shutdown("shut by a test".to_owned());
            self.session_input(slot, End::Router, SessionInput::Stop(Stop { administrative: true, reason }));
            self.drain_port(slot);
        }
    }

    /// The router of `slot` requests all routes again (RFC 2918).
    pub fn refresh_router(&mut self, slot: u32, afi: Afi) {
        let kind = wayleave_bgp::RefreshKind::Request;
        self.session_input(slot, End::Router, SessionInput::Refresh { afi, kind });
        self.drain_port(slot);
    }
}

/// For the simulation.
impl Sim {
    fn port(&mut self, slot: u32) -> Option<&mut Port> {
        self.ports.as_mut()?.ports.get_mut(&slot)
    }

    /// The process of the proxy of `slot` starts; its router may be running already.
    pub(super) fn start_router_session(&mut self, slot: u32) {
        let (now, lives, seed) = (self.now, self.lives, self.setup.seed);
        let Some(ports) = &mut self.ports else { return };
        let is_new = !ports.ports.contains_key(&slot);
        let port = ports.ports.entry(slot).or_insert_with(|| Port {
            router: Router {
                peer: Peer::new(router_config(slot), jitter_seed(seed, slot, End::Router, 0), now),
                adj_rib_in: AdjRibIn::new(MaxPrefixes::NONE),
                queued_updates: VecDeque::new(),
            },
            proxy: None,
            connections: Vec::new(),
            mute: false,
            shut: false,
        });
        let config = router_session(RS_ASN, PROXY_ID, member_asn(slot));
        port.proxy = Some(Peer::new(config, jitter_seed(seed, slot, End::Proxy, lives), now));
        self.session_input(slot, End::Proxy, SessionInput::Start);
        if is_new {
            self.session_input(slot, End::Router, SessionInput::Start);
        }
        self.drain_port(slot);
    }

    /// The process of the proxy of `slot` is gone; the router's connection to it is reset.
    pub(super) fn drop_router_session(&mut self, slot: u32) {
        let Some(port) = self.port(slot) else { return };
        port.proxy = None;
        for connection in std::mem::take(&mut port.connections) {
            self.session_input(slot, End::Router, SessionInput::Closed { connection: connection.id });
        }
        self.drain_port(slot);
    }

    /// The operator of the router of `slot` takes the session down for good; the proxy gets the NOTIFICATION at once.
    pub(super) fn shut_router_for_good(&mut self, slot: u32) {
        self.shut_router(slot);
        while let Some(end) = self.ready_end_of(slot) {
            self.deliver_to(slot, end);
        }
    }

    fn ready_end_of(&self, slot: u32) -> Option<End> {
        let ports = self.ports.as_ref()?;
        End::BOTH.into_iter().find(|end| ports.ready.contains(&(slot, *end)))
    }

    /// Removes the router of `slot`.
    pub(super) fn remove_port(&mut self, slot: u32) {
        if let Some(ports) = &mut self.ports {
            ports.ports.remove(&slot);
            ports.update_ready(slot);
        }
    }

    /// The router of `slot` sends an UPDATE; its table contains the change already.
    pub(super) fn send_router_update(
        &mut self,
        slot: u32,
        withdrawn: Vec<Nlri>,
        announced: Vec<Nlri>,
        attributes: Option<Attributes>,
    ) {
        let now = self.now;
        let Some(Port { router, .. }) = self.port(slot) else { return };
        if router.peer.state() == State::Established {
            router.queued_updates.push_back(Update { withdrawn, announced, attributes, ..Update::default() });
            return self.drain_port(slot);
        }
        for nlri in withdrawn {
            router.peer.handle(PeerInput::Route { prefix: nlri.prefix, attributes: None }, now);
        }
        for nlri in announced {
            router.peer.handle(PeerInput::Route { prefix: nlri.prefix, attributes: attributes.clone() }, now);
        }
    }

    /// A session ended: the next one begins with all that the router announces now.
    fn reset_initial_table(&mut self, slot: u32) {
        let now = self.now;
        let table = self.routers.get(&slot).cloned().unwrap_or_default();
        let Some(Port { router, .. }) = self.port(slot) else { return };
        router.adj_rib_in.clear();
        router.queued_updates.clear();
        let before: Vec<Prefix> = router.peer.adj_rib_out().desired().map(|(nlri, _)| nlri.prefix).collect();
        for prefix in before.into_iter().filter(|prefix| !table.contains_key(&Nlri::new(*prefix))) {
            router.peer.handle(PeerInput::Route { prefix, attributes: None }, now);
        }
        for (nlri, attributes) in table {
            router.peer.handle(PeerInput::Route { prefix: nlri.prefix, attributes: Some(attributes) }, now);
        }
    }

    /// The proxy of `slot` is to announce this route to its router, or none.
    pub(super) fn install(&mut self, slot: u32, prefix: Prefix, attributes: Option<Attributes>) {
        let now = self.now;
        if let Some(proxy) = self.port(slot).and_then(|port| port.proxy.as_mut()) {
            proxy.handle(PeerInput::Route { prefix, attributes }, now);
        }
    }

    /// The proxy of `slot` is to announce these routes to its router, the best first. Where routers are no speakers, the table has the
    /// best alone, and [`Sim::path_tables`] all.
    pub(super) fn install_paths(&mut self, slot: u32, prefix: Prefix, paths: Vec<(u32, Attributes)>) {
        let now = self.now;
        if self.ports.is_some() {
            if let Some(proxy) = self.port(slot).and_then(|port| port.proxy.as_mut()) {
                proxy.handle(PeerInput::Paths { prefix, paths }, now);
            }
            return;
        }
        let table = self.tables.entry(slot).or_default();
        match paths.first() {
            Some((_, best)) => table.insert(prefix, best.clone()),
            None => table.remove(&prefix),
        };
        self.path_tables.entry(slot).or_default().insert(prefix, paths);
    }

    /// Delivers octets to the end that `pick` selects among those with something to deliver.
    pub(super) fn deliver_octets(&mut self, pick: usize) {
        let ready = self.ports.as_ref().and_then(|ports| ports.ready.iter().nth(pick).copied());
        if let Some((slot, end)) = ready {
            self.deliver_to(slot, end);
        }
    }

    fn deliver_to(&mut self, slot: u32, end: End) {
        let most = 1 + self.choose(SEGMENT);
        let Some(port) = self.port(slot) else { return };
        let mute = port.mute;
        let Some(connection) = port.waiting(end) else { return };
        let Some(pipe) = port.pipe(end, connection) else { return };
        let count = pipe.octets.len().min(most);
        let bytes: Vec<u8> = pipe.octets.drain(..count).collect();
        let writable = pipe.octets.len() < PIPE / 2 && std::mem::take(&mut pipe.blocked);
        if count == 0 {
            pipe.closed = true;
            self.session_input(slot, end, SessionInput::Closed { connection });
        } else if !mute {
            self.session_input(slot, end, SessionInput::Bytes { connection, bytes });
        }
        if writable {
            self.session_input(slot, end.other(), SessionInput::Writable { connection });
        }
        self.drain_port(slot);
    }

    /// Timers of sessions fire.
    pub(super) fn ports_timeout(&mut self) {
        let now = self.now;
        let Some(ports) = &mut self.ports else { return };
        let mut woken = Vec::new();
        for (slot, port) in &mut ports.ports {
            for end in End::BOTH {
                if let Some(peer) = port.peer(end).filter(|peer| peer.deadline().is_some_and(|at| at <= now.instant)) {
                    peer.handle_timeout(now);
                    woken.push(*slot);
                }
            }
        }
        woken.dedup();
        woken.into_iter().for_each(|slot| self.drain_port(slot));
    }

    fn session_input(&mut self, slot: u32, end: End, input: SessionInput) {
        let now = self.now;
        if let Some(peer) = self.port(slot).and_then(|port| port.peer(end)) {
            peer.handle(PeerInput::Session(input), now);
        }
    }

    /// Handles all outputs of both ends of a port.
    pub(super) fn drain_port(&mut self, slot: u32) {
        let mut busy = true;
        while std::mem::take(&mut busy) {
            for end in End::BOTH {
                while let Some(output) = self.port(slot).and_then(|port| port.peer(end)).and_then(Machine::poll) {
                    self.peer_output(slot, end, output);
                    busy = true;
                }
            }
            busy |= self.send_queued_update(slot);
        }
        if let Some(ports) = &mut self.ports {
            ports.update_ready(slot);
        }
    }

    /// Hands the router's session a queued UPDATE, if it takes one.
    fn send_queued_update(&mut self, slot: u32) -> bool {
        let now = self.now;
        let Some(Port { router, .. }) = self.port(slot) else { return false };
        // The initial table goes first.
        if !router.peer.is_writable() || router.peer.adj_rib_out().is_due() {
            return false;
        }
        let Some(update) = router.queued_updates.pop_front() else { return false };
        router.peer.handle(PeerInput::Once(Box::new(update)), now);
        true
    }

    fn peer_output(&mut self, slot: u32, end: End, output: PeerOutput) {
        match output {
            PeerOutput::Tcp(TcpRequest::Connect { attempt }) => self.dial(slot, end, attempt),
            PeerOutput::Tcp(TcpRequest::Send { connection, bytes }) => self.send_bytes(slot, end, connection, &bytes),
            PeerOutput::Tcp(TcpRequest::Close { connection }) => self.close_end(slot, end, connection),
            PeerOutput::Event(event) if end == End::Proxy => {
                self.router_event(slot, event);
            }
            PeerOutput::Event(event) => self.on_router_event(slot, event),
            PeerOutput::Established(_) | PeerOutput::Ended(_) | PeerOutput::Failed(_) => {}
            PeerOutput::EndOfRib(_) | PeerOutput::RouteRefresh { .. } => {}
            PeerOutput::Rejected(rejected) => {
                panic!("{} routes for the router of {slot} fit no message: {}", rejected.routes.len(), rejected.error);
            }
            PeerOutput::Unsendable(error) => panic!("an UPDATE of the router of {slot} fits no message: {error}"),
        }
    }

    /// A router opens a connection; the proxy accepts it if it runs.
    fn dial(&mut self, slot: u32, end: End, attempt: u64) {
        let Some(ports) = &mut self.ports else { return };
        ports.connections += 1;
        let connection = ConnectionId(ports.connections);
        let Some(port) = ports.ports.get_mut(&slot) else { return };
        if port.proxy.is_none() {
            return self.session_input(slot, end, SessionInput::ConnectFailed { attempt });
        }
        port.connections.push(Connection { id: connection, pipes: Default::default() });
        self.session_input(slot, end, SessionInput::Connected { connection, outgoing: true });
        self.session_input(slot, end.other(), SessionInput::Connected { connection, outgoing: false });
    }

    fn send_bytes(&mut self, slot: u32, from: End, connection: ConnectionId, bytes: &[u8]) {
        let Some(pipe) = self.port(slot).and_then(|port| port.pipe(from.other(), connection)) else { return };
        if pipe.closed || pipe.ended {
            return;
        }
        pipe.octets.extend(bytes);
        let is_full = pipe.octets.len() >= PIPE && !pipe.blocked;
        if is_full {
            pipe.blocked = true;
            self.session_input(slot, from, SessionInput::Blocked { connection });
        }
    }

    /// An end closes: it receives nothing more, and the other end notices after it has received all that was sent.
    fn close_end(&mut self, slot: u32, end: End, connection: ConnectionId) {
        let Some(port) = self.port(slot) else { return };
        if let Some(pipe) = port.pipe(end, connection) {
            *pipe = Pipe { closed: true, ..Pipe::default() };
        }
        if let Some(pipe) = port.pipe(end.other(), connection) {
            pipe.ended = true;
        }
        port.connections.retain(|connection| connection.pipes.iter().any(|pipe| !pipe.closed));
    }

    fn on_router_event(&mut self, slot: u32, event: PeerEvent) {
        match event {
            PeerEvent::Down => self.reset_initial_table(slot),
            PeerEvent::Update(update) => {
                assert!(update.problems.is_empty(), "the router of {slot} got {:?}", update.problems);
                let Some(port) = self.port(slot) else { return };
                let rib = &mut port.router.adj_rib_in;
                for nlri in &update.withdrawn {
                    rib.withdraw(nlri);
                }
                if let Some(attributes) = update.attributes.map(Arc::new) {
                    for nlri in update.announced {
                        rib.announce(nlri, Arc::clone(&attributes));
                    }
                }
            }
            PeerEvent::Up | PeerEvent::EndOfRib | PeerEvent::Stale(_) => {}
        }
    }
}
