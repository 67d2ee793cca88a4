//! A router of our own with many BGP sessions: it learns routes, chooses the best, and announces it to the others.

use std::collections::HashMap;
use std::net::Ipv6Addr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use wayleave_bgp::peer::{Input, Output, Peer, PeerEvent};
use wayleave_bgp::rib::{BestChange, LocRib, LocRoute, PeerId, Source, candidate};
use wayleave_bgp::session::{Config, PeerAsn, State};
use wayleave_bgp::{AsPathBuf, Attributes, Ipv6NextHop, Nlri, Origin, Update};
use wayleave_core::{Afi, Machine, Prefix};

use crate::netns::NetworkNamespace;
use crate::peer_tcp::{Clock, TcpEvent, TcpPeer, with_short_timers};
use crate::router_config::RouterConfig;
use crate::speaker::learned_route;
use crate::table::{Announcement, LearnedRoute, Router, RouterError};

enum Event {
    Tcp(TcpEvent),
    Originate(Vec<Announcement>),
    End,
}

impl From<TcpEvent> for Event {
    fn from(event: TcpEvent) -> Self {
        Event::Tcp(event)
    }
}

/// State of a running router, for other threads.
#[derive(Debug, Default)]
struct View {
    up: Vec<bool>,
    table: Vec<LearnedRoute>,
    last_failure: String,
}

/// A site's router, speaking from our own code.
#[derive(Debug)]
pub struct Transit {
    site: RouterConfig,
    namespace: NetworkNamespace,
    routes: Vec<Announcement>,
    view: Arc<Mutex<View>>,
    running: Option<(Sender<Event>, JoinHandle<()>)>,
}

impl Transit {
    /// A router that is not started yet; it will connect to all its neighbours.
    #[must_use]
    pub fn new(site: RouterConfig, namespace: NetworkNamespace) -> Self {
        Self { site, namespace, routes: Vec::new(), view: Arc::default(), running: None }
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
        let (site, view, namespace) = (self.site.clone(), Arc::clone(&self.view), self.namespace.clone());
        let to = events.clone();
        let thread = std::thread::spawn(move || {
            let seen = Arc::clone(&view);
            // The threads that read and connect are started from here, and so run in the same network namespace.
            if let Err(error) = namespace.within(move || Driver::new(site, &to, view).run(&inbox)) {
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

/// Owns the peers and the routes of a router.
struct Driver {
    site: RouterConfig,
    /// In the order of the site's neighbours.
    peers: Vec<TcpPeer<Event>>,
    rib: LocRib,
    own: HashMap<Prefix, Attributes>,
    view: Arc<Mutex<View>>,
    clock: Clock,
}

impl Driver {
    fn new(site: RouterConfig, events: &Sender<Event>, view: Arc<Mutex<View>>) -> Self {
        let clock = Clock::start();
        let peer = |(at, neighbour): (usize, &crate::router_config::Neighbour)| {
            let mut config = Config::new(site.asn, site.router_id, PeerAsn::Exactly(neighbour.asn));
            config.offer.extended_message = neighbour.extended_messages;
            let seed = u64::from(u32::from(site.router_id)) << 8 | at as u64;
            let peer = Peer::new(with_short_timers(config), seed, clock.now());
            TcpPeer::new(peer, at, (neighbour.address, neighbour.port).into(), clock, events.clone())
        };
        let peers = site.neighbours.iter().enumerate().map(peer).collect();
        Self { peers, rib: LocRib::new(Default::default()), own: HashMap::new(), view, clock, site }
    }

    fn run(mut self, inbox: &Receiver<Event>) {
        self.peers.iter_mut().for_each(TcpPeer::start);
        loop {
            self.act_all();
            self.show();
            let now = self.clock.now();
            let deadline = self.peers.iter().filter_map(|peer| peer.peer.deadline()).min();
            let wait = deadline.map_or(Duration::from_secs(1), |deadline| deadline.since(now.instant));
            match inbox.recv_timeout(wait) {
                Ok(Event::End) | Err(RecvTimeoutError::Disconnected) => break,
                Ok(Event::Tcp(event)) => self.peers[event.peer].on_tcp(event),
                Ok(Event::Originate(routes)) => self.originate(&routes),
                Err(RecvTimeoutError::Timeout) => {}
            }
            let now = self.clock.now();
            self.peers.iter_mut().for_each(|peer| peer.peer.handle_timeout(now));
        }
        self.peers.iter_mut().for_each(TcpPeer::stop);
        self.act_all();
    }

    /// Does what the peers want done, until none has anything left: a route of one makes work for the others.
    fn act_all(&mut self) {
        let mut busy = true;
        while std::mem::take(&mut busy) {
            for at in 0..self.peers.len() {
                busy |= self.act(at);
            }
        }
    }

    /// Returns whether there was anything to do.
    fn act(&mut self, at: usize) -> bool {
        let mut busy = false;
        while let Some(output) = self.peers[at].poll() {
            busy = true;
            match output {
                Output::Event(PeerEvent::Update(update)) => self.on_update(at, *update),
                Output::Event(PeerEvent::Down) => {
                    for (prefix, change) in self.rib.purge(id(at)) {
                        self.pass_on(prefix, &change);
                    }
                }
                Output::Ended(ended) | Output::Failed(ended) => lock(&self.view).last_failure = ended.cause.to_string(),
                Output::Rejected(rejected) => lock(&self.view).last_failure = rejected.error.to_string(),
                Output::Unsendable(error) => lock(&self.view).last_failure = error.to_string(),
                Output::Event(PeerEvent::Up | PeerEvent::EndOfRib | PeerEvent::Stale(_)) | Output::Established(_) => {}
                Output::Tcp(_) | Output::EndOfRib(_) | Output::RouteRefresh { .. } => {}
            }
        }
        if let Some(error) = self.peers[at].take_failure() {
            lock(&self.view).last_failure = error.to_string();
        }
        busy
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
            self.announce_to_peers(prefix, best.as_ref());
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
            BestChange::Best(route) => self.announce_to_peers(prefix, Some(&route.clone())),
            BestChange::Gone => self.announce_to_peers(prefix, None),
        }
    }

    /// Announces the best route of a prefix to every neighbour but the one it came from.
    fn announce_to_peers(&mut self, prefix: Prefix, best: Option<&LocRoute>) {
        for at in 0..self.peers.len() {
            let learned = best.filter(|route| route.peer != id(at)).map(|route| route.attributes.to_forward());
            let attributes = self.own.get(&prefix).cloned().or(learned);
            let attributes = attributes.map(|attributes| self.outgoing(&attributes, prefix.afi()));
            self.peers[at].handle(Input::Route { prefix, attributes });
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
        view.up = self.peers.iter().map(|peer| peer.peer.state() == State::Established).collect();
        view.table.clear();
        for (prefix, _) in self.rib.iter() {
            for (namespace, route) in self.rib.candidates(prefix).iter().enumerate() {
                let best = namespace == 0 && !self.own.contains_key(prefix);
                view.table.push(LearnedRoute { best, ..learned_route(*prefix, &route.attributes) });
            }
        }
    }
}

fn id(at: usize) -> PeerId {
    PeerId(u32::try_from(at).unwrap_or(u32::MAX))
}
