//! A router of ours with many sessions, where there is no real one: it learns, chooses and passes on.

use std::collections::HashMap;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv6Addr, Shutdown, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use wayleave_bgp::peer::{Input, Output, Peer, PeerEvent};
use wayleave_bgp::rib::{BestChange, LocRib, LocRoute, PeerId, Source, candidate};
use wayleave_bgp::session::{Config, ConnectionId, HoldTime, Input as SessionInput, PeerAsn, State, Stop, StopReason};
use wayleave_bgp::{AsPathBuf, Attributes, Ipv6NextHop, Nlri, Origin, Update};
use wayleave_core::{Afi, Machine, Now, Prefix, UnixTime};

use crate::netns::Place;
use crate::site::Site;
use crate::speaker::learned_route;
use crate::table::{Announcement, LearnedRoute, Router, RouterError};

/// How long a connection may take to open, or one write to be taken.
const PATIENCE: Duration = Duration::from_secs(5);

enum Event {
    Connected { peer: usize, attempt: u64, stream: io::Result<TcpStream> },
    Bytes { peer: usize, connection: ConnectionId, bytes: Vec<u8> },
    Closed { peer: usize, connection: ConnectionId },
    Originate(Vec<Announcement>),
    End,
}

/// What the world outside may see.
#[derive(Debug, Default)]
struct View {
    up: Vec<bool>,
    table: Vec<LearnedRoute>,
    last_failure: String,
}

/// A site's router, speaking from our own code.
#[derive(Debug)]
pub struct Transit {
    site: Site,
    place: Place,
    routes: Vec<Announcement>,
    view: Arc<Mutex<View>>,
    running: Option<(Sender<Event>, JoinHandle<()>)>,
}

impl Transit {
    /// Not started yet. It connects to all its neighbours.
    #[must_use]
    pub fn new(site: Site, place: Place) -> Self {
        Self { site, place, routes: Vec::new(), view: Arc::default(), running: None }
    }

    fn stop(&mut self) {
        if let Some((events, thread)) = self.running.take() {
            let _ = events.send(Event::End);
            let _ = thread.join();
        }
    }
}

impl Drop for Transit {
    fn drop(&mut self) {
        self.stop();
    }
}

fn lock(view: &Mutex<View>) -> std::sync::MutexGuard<'_, View> {
    view.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Router for Transit {
    fn name(&self) -> &str {
        &self.site.name
    }

    fn software(&self) -> String {
        "a router of the laboratory".to_owned()
    }

    fn start(&mut self) -> Result<(), RouterError> {
        let (events, inbox) = channel();
        let (site, view, place) = (self.site.clone(), Arc::clone(&self.view), self.place.clone());
        let to = events.clone();
        let thread = std::thread::spawn(move || {
            let seen = Arc::clone(&view);
            // The threads that read and connect start from here and so stand in the same place.
            if let Err(error) = place.within(move || Driver::new(site, to, view).run(&inbox)) {
                lock(&seen).last_failure = error.to_string();
            }
        });
        let _ = events.send(Event::Originate(self.routes.clone()));
        self.running = Some((events, thread));
        Ok(())
    }

    fn kill(&mut self) {
        self.stop();
        *lock(&self.view) = View::default();
    }

    fn announce(&mut self, routes: &[Announcement]) -> Result<(), RouterError> {
        self.routes = routes.to_vec();
        if let Some((events, _)) = &self.running {
            let _ = events.send(Event::Originate(self.routes.clone()));
        }
        Ok(())
    }

    fn is_established(&mut self) -> Result<bool, RouterError> {
        let view = lock(&self.view);
        Ok(!view.up.is_empty() && view.up.iter().all(|up| *up))
    }

    fn table(&mut self) -> Result<Vec<LearnedRoute>, RouterError> {
        Ok(lock(&self.view).table.clone())
    }

    fn show(&mut self, prefix: Prefix) -> Result<String, RouterError> {
        let table = self.table()?;
        let lines = table.iter().filter(|route| route.prefix == prefix).map(|route| {
            let path: Vec<String> = route.as_path.iter().map(|asn| asn.0.to_string()).collect();
            format!("{}{prefix} path {}", if route.best { "* " } else { "  " }, path.join(" "))
        });
        let lines: Vec<String> = lines.collect();
        Ok(if lines.is_empty() { format!("{prefix}: no route") } else { lines.join("\n") })
    }

    fn log_tail(&self) -> String {
        lock(&self.view).last_failure.clone()
    }
}

/// One session and its sockets.
struct Line {
    peer: Peer,
    streams: HashMap<ConnectionId, TcpStream>,
    connections: u64,
}

/// Owns the sockets, the clock and the routes of a router.
struct Driver {
    site: Site,
    lines: Vec<Line>,
    rib: LocRib,
    own: HashMap<Prefix, Attributes>,
    events: Sender<Event>,
    view: Arc<Mutex<View>>,
    origin: Instant,
}

impl Driver {
    fn new(site: Site, events: Sender<Event>, view: Arc<Mutex<View>>) -> Self {
        let origin = Instant::now();
        let mut driver = Self {
            site,
            lines: Vec::new(),
            rib: LocRib::new(Default::default()),
            own: HashMap::new(),
            events,
            view,
            origin,
        };
        let now = driver.now();
        let site = &driver.site;
        let line = |(neighbour, place): (&crate::site::Neighbour, u64)| {
            let mut config = Config::new(site.asn, site.router_id, PeerAsn::Exactly(neighbour.asn));
            config.hold_time = HoldTime::from_secs(9).unwrap_or_default();
            config.offer.extended_message = neighbour.extended_messages;
            config.connect_retry = Duration::from_secs(1);
            config.idle_hold = Duration::from_millis(200);
            config.idle_hold_most = Duration::from_secs(1);
            let seed = u64::from(u32::from(site.router_id)) << 8 | place;
            Line { peer: Peer::new(config, seed, now), streams: HashMap::new(), connections: 0 }
        };
        driver.lines = site.neighbours.iter().zip(0..).map(line).collect();
        driver
    }

    fn now(&self) -> Now {
        let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Now {
            instant: wayleave_core::Instant(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX)),
            unix: UnixTime(u64::try_from(unix.as_micros()).unwrap_or(u64::MAX)),
        }
    }

    fn run(mut self, inbox: &Receiver<Event>) {
        for at in 0..self.lines.len() {
            self.session(at, SessionInput::Start);
        }
        loop {
            let now = self.now();
            let deadline = self.lines.iter().filter_map(|line| line.peer.deadline()).min();
            let wait = deadline.map_or(Duration::from_secs(1), |deadline| deadline.since(now.instant));
            match inbox.recv_timeout(wait) {
                Ok(Event::End) | Err(RecvTimeoutError::Disconnected) => return self.end(),
                Ok(event) => self.on_event(event),
                Err(RecvTimeoutError::Timeout) => {}
            }
            let now = self.now();
            self.lines.iter_mut().for_each(|line| line.peer.handle_timeout(now));
            (0..self.lines.len()).for_each(|at| self.act(at));
            self.show();
        }
    }

    fn end(&mut self) {
        for at in 0..self.lines.len() {
            let reason = StopReason::Shutdown("the laboratory ends".to_owned());
            self.session(at, SessionInput::Stop(Stop { administrative: true, reason }));
        }
    }

    fn session(&mut self, at: usize, input: SessionInput) {
        let now = self.now();
        self.lines[at].peer.handle(Input::Session(input), now);
        self.act(at);
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Connected { peer, attempt, stream } => self.on_connected(peer, attempt, stream),
            Event::Bytes { peer, connection, bytes } => self.session(peer, SessionInput::Bytes { connection, bytes }),
            Event::Closed { peer, connection } => self.session(peer, SessionInput::Closed { connection }),
            Event::Originate(routes) => self.originate(&routes),
            Event::End => {}
        }
    }

    fn on_connected(&mut self, at: usize, attempt: u64, stream: io::Result<TcpStream>) {
        let stream = stream.and_then(|stream| {
            stream.set_nodelay(true)?;
            stream.set_write_timeout(Some(PATIENCE))?;
            Ok((stream.try_clone()?, stream))
        });
        match stream {
            Ok((reader, stream)) => {
                let line = &mut self.lines[at];
                line.connections += 1;
                let connection = ConnectionId(line.connections);
                line.streams.insert(connection, stream);
                let events = self.events.clone();
                std::thread::spawn(move || read(reader, at, connection, &events));
                self.session(at, SessionInput::Connected { connection, outgoing: true });
            }
            Err(error) => {
                lock(&self.view).last_failure = error.to_string();
                self.session(at, SessionInput::ConnectFailed { attempt });
            }
        }
    }

    /// Does what a peer wants done.
    fn act(&mut self, at: usize) {
        while let Some(output) = self.lines[at].peer.poll() {
            match output {
                Output::Connect { attempt } => self.connect(at, attempt),
                Output::Send { connection, bytes } => self.send(at, connection, &bytes),
                Output::Close { connection } => {
                    if let Some(stream) = self.lines[at].streams.remove(&connection) {
                        let _ = stream.shutdown(Shutdown::Both);
                    }
                }
                Output::Event(PeerEvent::Update(update)) => self.on_update(at, *update),
                Output::Event(PeerEvent::Down) => {
                    for (prefix, change) in self.rib.purge(id(at)) {
                        self.pass_on(prefix, &change);
                    }
                }
                Output::Ended(ended) | Output::Failed(ended) => lock(&self.view).last_failure = ended.cause.to_string(),
                Output::Rejected(rejected) => lock(&self.view).last_failure = rejected.error.to_string(),
                Output::Unsendable(error) => lock(&self.view).last_failure = error.to_string(),
                Output::Event(PeerEvent::Up | PeerEvent::EndOfRib) | Output::Established(_) => {}
            }
        }
    }

    fn connect(&self, at: usize, attempt: u64) {
        let neighbour = &self.site.neighbours[at];
        let (to, events) = ((neighbour.address, neighbour.port).into(), self.events.clone());
        std::thread::spawn(move || {
            let stream = TcpStream::connect_timeout(&to, PATIENCE);
            let _ = events.send(Event::Connected { peer: at, attempt, stream });
        });
    }

    fn send(&mut self, at: usize, connection: ConnectionId, bytes: &[u8]) {
        let Some(stream) = self.lines[at].streams.get_mut(&connection) else { return };
        if stream.write_all(bytes).is_err() {
            let _ = stream.shutdown(Shutdown::Both);
            let _ = self.events.send(Event::Closed { peer: at, connection });
        }
    }

    fn on_update(&mut self, at: usize, update: Update) {
        for nlri in update.withdrawn {
            let change = self.rib.withdraw(id(at), &Nlri::new(nlri.prefix));
            self.pass_on(nlri.prefix, &change);
        }
        let Some(attributes) = update.attributes else { return };
        let neighbour = &self.site.neighbours[at];
        let is_loop = attributes.as_path().asns().any(|asn| asn == self.site.asn);
        let source = Source {
            router_id: neighbour.address,
            address: neighbour.address.into(),
            external: neighbour.asn != self.site.asn,
            igp_metric: Some(0),
        };
        let route = LocRoute {
            peer: id(at),
            candidate: candidate(&attributes, 0, &source, None),
            attributes: Arc::new(attributes),
        };
        for nlri in update.announced {
            let change = if is_loop {
                self.rib.withdraw(id(at), &Nlri::new(nlri.prefix))
            } else {
                self.rib.announce(nlri.prefix, route.clone())
            };
            self.pass_on(nlri.prefix, &change);
        }
    }

    fn originate(&mut self, routes: &[Announcement]) {
        let before: Vec<Prefix> = self.own.keys().copied().collect();
        self.own = routes.iter().map(|route| (route.prefix, self.of_own(route))).collect();
        for prefix in before.into_iter().chain(routes.iter().map(|route| route.prefix)) {
            let best = self.rib.best(&prefix).cloned();
            self.tell(prefix, best.as_ref());
        }
    }

    fn of_own(&self, route: &Announcement) -> Attributes {
        let mut edit = Attributes::builder();
        edit.origin(Origin::Igp).communities(&route.communities).large_communities(&route.large_communities);
        edit.as_path(AsPathBuf::from_sequence(&[]).as_path());
        edit.finish()
    }

    fn pass_on(&mut self, prefix: Prefix, change: &BestChange) {
        match change {
            BestChange::Unchanged => {}
            BestChange::Best(route) => self.tell(prefix, Some(&route.clone())),
            BestChange::Gone => self.tell(prefix, None),
        }
    }

    /// Tells every neighbour what is to be known of a prefix; who it came from hears nothing of it.
    fn tell(&mut self, prefix: Prefix, best: Option<&LocRoute>) {
        let now = self.now();
        for at in 0..self.lines.len() {
            let learned = best.filter(|route| route.peer != id(at)).map(|route| route.attributes.to_forward());
            let attributes = self.own.get(&prefix).cloned().or(learned);
            let attributes = attributes.map(|attributes| self.outgoing(&attributes, prefix.afi()));
            self.lines[at].peer.handle(Input::Route { prefix, attributes }, now);
        }
    }

    fn outgoing(&self, attributes: &Attributes, afi: Afi) -> Attributes {
        let mut edit = attributes.edit();
        edit.prepend(self.site.asn, 1).med(None).local_pref(None);
        let global = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, u16::from(self.site.router_id.octets()[3]));
        match afi {
            Afi::Ipv4 => edit.ipv4_next_hop(self.site.router_id),
            Afi::Ipv6 => edit.ipv6_next_hop(Some(Ipv6NextHop { global, link_local: None })),
        };
        edit.finish()
    }

    fn show(&self) {
        let mut view = lock(&self.view);
        view.up = self.lines.iter().map(|line| line.peer.state() == State::Established).collect();
        view.table.clear();
        for (prefix, _) in self.rib.iter() {
            for (place, route) in self.rib.candidates(prefix).iter().enumerate() {
                let best = place == 0 && !self.own.contains_key(prefix);
                view.table.push(LearnedRoute { best, ..learned_route(*prefix, &route.attributes) });
            }
        }
    }
}

fn id(at: usize) -> PeerId {
    PeerId(u32::try_from(at).unwrap_or(u32::MAX))
}

/// Hands what comes in to the driver until the connection ends.
fn read(mut stream: TcpStream, peer: usize, connection: ConnectionId, events: &Sender<Event>) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        if events.send(Event::Bytes { peer, connection, bytes: buffer[..count].to_vec() }).is_err() {
            return;
        }
    }
    let _ = events.send(Event::Closed { peer, connection });
}
