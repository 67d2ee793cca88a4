//! A BGP speaker of our own: it replaces a router where there is none, and announces recorded tables.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use wayleave_bgp::mrt::{Record, decompress};
use wayleave_bgp::peer::{Input, Output, Peer, PeerEvent};
use wayleave_bgp::session::{Config, PeerAsn};
use wayleave_bgp::{AsPathBuf, Attributes, Ipv6NextHop, Message, Origin, Update, mrt};
use wayleave_core::{Afi, Asn, Machine, Prefix};

use crate::netns::NetworkNamespace;
use crate::peer_tcp::{Clock, TcpEvent, TcpPeer, with_short_timers};
use crate::table::{Announcement, LearnedRoute, Peering, Router, RouterError};

/// Routes by prefix, as a speaker sends them.
pub type Routes = BTreeMap<Prefix, Attributes>;

/// A speaker's identity and its peer.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Name for errors.
    pub name: String,
    pub asn: Asn,
    /// Its BGP identifier, and the next hop of its IPv4 routes.
    pub address: Ipv4Addr,
    /// The next hop of its IPv6 routes.
    pub address6: Ipv6Addr,
    pub peer_asn: Asn,
    /// Where the peer listens.
    pub peer: SocketAddr,
}

impl Identity {
    fn attributes(&self, route: &Announcement) -> Attributes {
        let mut edit = Attributes::builder();
        let path = [&[self.asn], &route.behind[..]].concat();
        edit.origin(Origin::Igp).as_path(AsPathBuf::from_sequence(&path).as_path());
        edit.communities(&route.communities).large_communities(&route.large_communities);
        self.with_next_hop(edit.finish(), route.prefix.afi())
    }

    /// A neighbour's route as an AS announces it: its own number prepended, itself as next hop.
    fn passed_on(&self, attributes: &Attributes, afi: Afi) -> Attributes {
        let mut edit = attributes.to_forward().edit();
        edit.prepend(self.asn, 1).med(None).local_pref(None);
        self.with_next_hop(edit.finish(), afi)
    }

    fn with_next_hop(&self, attributes: Attributes, afi: Afi) -> Attributes {
        let mut edit = attributes.edit();
        match afi {
            Afi::Ipv4 => edit.ipv4_next_hop(self.address),
            Afi::Ipv6 => edit.ipv6_next_hop(Some(Ipv6NextHop { global: self.address6, link_local: None })),
        };
        edit.finish()
    }
}

/// State of a running speaker, for other threads.
#[derive(Debug, Default)]
struct View {
    established: bool,
    learned: BTreeMap<Prefix, Attributes>,
    last_failure: String,
    /// How often a session ended.
    ended: u32,
}

impl View {
    fn update(&mut self, update: Update) {
        for nlri in update.withdrawn {
            self.learned.remove(&nlri.prefix);
        }
        if let Some(attributes) = update.attributes {
            self.learned.extend(update.announced.iter().map(|nlri| (nlri.prefix, attributes.clone())));
        }
    }
}

enum Event {
    Tcp(TcpEvent),
    Routes(Routes),
    End,
}

impl From<TcpEvent> for Event {
    fn from(event: TcpEvent) -> Self {
        Event::Tcp(event)
    }
}

/// A running speaker; dropped, it closes its session.
#[derive(Debug)]
pub struct Speaker {
    events: Sender<Event>,
    view: Arc<Mutex<View>>,
    thread: Option<JoinHandle<()>>,
}

impl Speaker {
    /// Starts a speaker that connects from `place` and keeps trying.
    #[must_use]
    pub fn start(identity: Identity, namespace: NetworkNamespace) -> Self {
        let (events, inbox) = channel();
        let view = Arc::new(Mutex::new(View::default()));
        let thread = {
            let (events, view) = (events.clone(), Arc::clone(&view));
            std::thread::spawn(move || {
                // The threads that read and connect are started from here, and so run in the same network namespace.
                let seen = Arc::clone(&view);
                let ran = namespace.within(move || Driver::new(&identity, events, view).run(&inbox));
                if let Err(error) = ran {
                    lock(&seen).last_failure = error.to_string();
                }
            })
        };
        Self { events, view, thread: Some(thread) }
    }

    /// Announces exactly `routes` from now on.
    pub fn announce(&self, routes: Routes) {
        // The receiver is gone only if the thread panicked, and then `is_established` stays false.
        let _ = self.events.send(Event::Routes(routes));
    }

    /// Whether the session is up.
    #[must_use]
    pub fn is_established(&self) -> bool {
        lock(&self.view).established
    }

    /// What the peer announced, by prefix.
    #[must_use]
    pub fn learned(&self) -> BTreeMap<Prefix, Attributes> {
        lock(&self.view).learned.clone()
    }

    /// How often an established session has ended.
    #[must_use]
    pub fn ended(&self) -> u32 {
        lock(&self.view).ended
    }

    /// Why the last connection failed or ended.
    #[must_use]
    pub fn last_failure(&self) -> String {
        lock(&self.view).last_failure.clone()
    }
}

impl Drop for Speaker {
    fn drop(&mut self) {
        let _ = self.events.send(Event::End);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn lock(view: &Mutex<View>) -> std::sync::MutexGuard<'_, View> {
    view.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Owns a speaker's only peer.
struct Driver {
    peer: TcpPeer<Event>,
    clock: Clock,
    view: Arc<Mutex<View>>,
    routes: Routes,
}

impl Driver {
    fn new(identity: &Identity, events: Sender<Event>, view: Arc<Mutex<View>>) -> Self {
        let config = Config::new(identity.asn, identity.address, PeerAsn::Exactly(identity.peer_asn));
        let clock = Clock::start();
        let peer = Peer::new(with_short_timers(config), u64::from(u32::from(identity.address)), clock.now());
        let peer = TcpPeer::new(peer, 0, identity.peer, clock, events);
        Self { peer, clock, view, routes: Routes::new() }
    }

    fn run(mut self, inbox: &Receiver<Event>) {
        self.peer.start();
        loop {
            self.act();
            let wait = self.peer.peer.deadline().map(|deadline| deadline.since(self.clock.now().instant));
            match inbox.recv_timeout(wait.unwrap_or(Duration::from_secs(1))) {
                Ok(Event::End) | Err(RecvTimeoutError::Disconnected) => break,
                Ok(Event::Tcp(event)) => self.peer.on_tcp(event),
                Ok(Event::Routes(routes)) => self.announce(routes),
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.peer.peer.handle_timeout(self.clock.now());
        }
        self.peer.stop();
        self.act();
    }

    /// Announces exactly `routes`.
    fn announce(&mut self, routes: Routes) {
        for prefix in self.routes.keys().filter(|prefix| !routes.contains_key(prefix)) {
            self.peer.handle(Input::Route { prefix: *prefix, attributes: None });
        }
        for (prefix, attributes) in &routes {
            if self.routes.get(prefix) != Some(attributes) {
                self.peer.handle(Input::Route { prefix: *prefix, attributes: Some(attributes.clone()) });
            }
        }
        self.routes = routes;
    }

    fn act(&mut self) {
        while let Some(output) = self.peer.poll() {
            let mut view = lock(&self.view);
            match output {
                Output::Established(_) => view.established = true,
                Output::Ended(ended) => {
                    let last_failure = ended.cause.to_string();
                    *view = View { last_failure, ended: view.ended + 1, ..View::default() };
                }
                Output::Failed(ended) => view.last_failure = ended.cause.to_string(),
                Output::Event(PeerEvent::Update(update)) => view.update(*update),
                // A route that this session cannot carry (too long, or of a family not agreed) is left out.
                Output::Rejected(_) | Output::Unsendable(_) => {}
                Output::Tcp(_) | Output::Event(_) | Output::EndOfRib(_) | Output::RouteRefresh { .. } => {}
            }
        }
        if let Some(error) = self.peer.take_failure() {
            lock(&self.view).last_failure = error.to_string();
        }
    }
}

/// Reads up to `most` different IPv4 and IPv6 prefixes of an MRT file, with the attributes that were last recorded, as
/// `identity` would pass them on: its AS in front, itself as next hop. Routes that name one of `avoid` in their path
/// (the receivers, say) are left out.
pub fn routes_of_mrt(path: &Path, identity: &Identity, most: usize, avoid: &[Asn]) -> io::Result<Routes> {
    let source = decompress(BufReader::new(File::open(path)?))?;
    let mut routes = Routes::new();
    for record in mrt::MrtReader::new(source).flatten() {
        for (prefix, attributes) in routes_of_record(record) {
            let known = attributes.as_path().asns().any(|asn| avoid.contains(&asn) || asn == identity.asn);
            if known || (routes.len() >= most && !routes.contains_key(&prefix)) {
                continue;
            }
            let mut edit = attributes.edit();
            edit.communities(&[]).extended_communities(&[]).large_communities(&[]);
            routes.insert(prefix, identity.passed_on(&edit.finish(), prefix.afi()));
        }
        if routes.len() >= most {
            break;
        }
    }
    Ok(routes)
}

/// What a record announces.
fn routes_of_record(record: Record) -> Vec<(Prefix, Attributes)> {
    match record {
        Record::Message(message) => {
            let Ok((Message::Update(update), _)) = Message::decode(&message.octets, &message.params()) else {
                return Vec::new();
            };
            let Some(attributes) = update.attributes else { return Vec::new() };
            update.announced.iter().map(|nlri| (nlri.prefix, attributes.clone())).collect()
        }
        Record::Rib(entries) => {
            let first = entries.iter().find_map(|entry| Some((entry.prefix, entry.to_attributes().ok()?)));
            first.into_iter().collect()
        }
        _ => Vec::new(),
    }
}

/// A speaker as a [`Router`].
#[derive(Debug)]
pub struct SpeakingRouter {
    identity: Identity,
    namespace: NetworkNamespace,
    routes: Vec<Announcement>,
    /// Routes besides its own, such as a customer's.
    more: Routes,
    speaker: Option<Speaker>,
}

impl SpeakingRouter {
    /// A router that is not started yet and will connect to `port` of its peer.
    #[must_use]
    pub fn new(namespace: NetworkNamespace, peering: &Peering, port: u16) -> Self {
        let identity = Identity {
            name: peering.name.clone(),
            asn: peering.asn,
            address: peering.address,
            address6: Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, u16::from(peering.address.octets()[3])),
            peer_asn: peering.peer_asn,
            peer: (peering.peer_address, port).into(),
        };
        Self { identity, namespace, routes: Vec::new(), more: Routes::new(), speaker: None }
    }

    /// Who it is.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    fn announce_all(&self) {
        let Some(speaker) = &self.speaker else { return };
        let own = self.routes.iter().map(|route| (route.prefix, self.identity.attributes(route)));
        let more = self.more.iter();
        let more = more.map(|(prefix, route)| (*prefix, self.identity.passed_on(route, prefix.afi())));
        speaker.announce(more.chain(own).collect());
    }
}

impl Router for SpeakingRouter {
    fn name(&self) -> &str {
        &self.identity.name
    }

    fn software(&self) -> String {
        "a speaker of the laboratory".to_owned()
    }

    fn start(&mut self) -> Result<(), RouterError> {
        self.speaker = Some(Speaker::start(self.identity.clone(), self.namespace.clone()));
        self.announce_all();
        Ok(())
    }

    fn kill(&mut self) {
        self.speaker = None;
    }

    fn announce(&mut self, routes: &[Announcement]) -> Result<(), RouterError> {
        self.routes = routes.to_vec();
        self.announce_all();
        Ok(())
    }

    fn pass_on(&mut self, routes: Routes) {
        self.more = routes;
        self.announce_all();
    }

    fn is_established(&mut self) -> Result<bool, RouterError> {
        Ok(self.speaker.as_ref().is_some_and(Speaker::is_established))
    }

    fn table(&mut self) -> Result<Vec<LearnedRoute>, RouterError> {
        let learned = self.speaker.as_ref().map(Speaker::learned).unwrap_or_default();
        Ok(learned.iter().map(|(prefix, attributes)| learned_route(*prefix, attributes)).collect())
    }

    fn show(&mut self, prefix: Prefix) -> Result<String, RouterError> {
        let route = self.table()?.into_iter().find(|route| route.prefix == prefix);
        let Some(route) = route else { return Ok(format!("{prefix}: no route")) };
        let path: Vec<String> = route.as_path.iter().map(|asn| asn.0.to_string()).collect();
        let next_hop = route.next_hop.map_or("-".to_owned(), |address| address.to_string());
        Ok(format!("{prefix} via {next_hop} path {}", path.join(" ")))
    }

    fn log_tail(&self) -> String {
        self.speaker.as_ref().map(Speaker::last_failure).unwrap_or_default()
    }
}

/// A route as a table holds it.
pub(crate) fn learned_route(prefix: Prefix, attributes: &Attributes) -> LearnedRoute {
    let next_hop = match prefix.afi() {
        Afi::Ipv4 => attributes.ipv4_next_hop().map(Into::into),
        Afi::Ipv6 => attributes.ipv6_next_hop().map(|hop| hop.global.into()),
    };
    LearnedRoute {
        prefix,
        next_hop,
        as_path: attributes.as_path().asns().collect(),
        communities: attributes.communities().collect(),
        large_communities: attributes.large_communities().collect(),
        med: attributes.med(),
        best: true,
    }
}
