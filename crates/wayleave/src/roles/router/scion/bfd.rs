//! BFD sessions of a SCION router with the neighbour behind each of its interfaces, and with the AS's other routers: a link
//! whose session is not up is down for the data plane.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};
use tokio::sync::mpsc::{Receiver, UnboundedReceiver, UnboundedSender, unbounded_channel};
use tracing::{info, warn};
use wayleave_core::{Instant, Now};
use wayleave_dataplane::bfd::{Config, ControlPacket, Output, Session, State};
use wayleave_dataplane::frame::Ingress;
use wayleave_packet::scion::{ForwardingKey, Header, HostAddress, IsdAs, Layout, Packet, Path, next_header};
use wayleave_runtime::Clock;

use super::Engine;
use super::worker::{Control, Task, Way, Worker};
use crate::config::router::{RouterFile, ScionSection};
use crate::key_files::forwarding::ForwardingKeys;
use crate::roles::Events;

/// Expedited forwarding (RFC 3246).
const TRAFFIC_CLASS: u8 = 0xb8;
/// Not zero, which stands for no flow.
const FLOW_ID: u32 = 1;
/// How long a hop field of a packet lasts: six hours, which is a quarter of the most.
const EXP_TIME: u8 = 63;

/// The other end of a session.
#[derive(Clone)]
struct Peer {
    ingress: Ingress,
    way: Way,
    to: SocketAddr,
    /// Interfaces that are down while the session is.
    interfaces: Vec<u16>,
    /// Without its path, which has a time of its own.
    header: Header,
}

impl Peer {
    fn name(&self) -> String {
        match self.ingress {
            Ingress::External(interface) => format!("interface {interface}"),
            Ingress::Sibling(sibling) => format!("sibling {sibling}"),
            Ingress::Internal => "internal".to_owned(),
        }
    }
}

/// What a configuration wants.
pub struct Wanted {
    peers: Vec<Peer>,
    /// All interfaces of the AS.
    interfaces: Vec<u16>,
    timers: Timers,
    /// What makes one-hop paths; none without peers.
    key: Option<ForwardingKey>,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Timers {
    desired_min_tx: u32,
    required_min_rx: u32,
    detect_multiplier: u8,
}

impl Wanted {
    /// Sessions that the file wants, with the key that is in force at `now` (Unix seconds).
    pub fn new(file: &RouterFile, keys: &ForwardingKeys, now: u64) -> Self {
        let interfaces = file.interface.iter().map(|section| *section.get_ref().id.get_ref()).collect();
        let none = Self { peers: Vec::new(), interfaces, timers: Timers::default(), key: None };
        let Some(scion) = file.scion.as_ref().map(toml::Spanned::get_ref) else { return none };
        let Some(bfd) = scion.bfd.as_ref().map(toml::Spanned::get_ref) else { return none };
        // `check` has seen that they fit.
        let micros = |milliseconds: u64| u32::try_from(milliseconds * 1_000).unwrap_or(u32::MAX);
        let timers = Timers {
            desired_min_tx: micros(*bfd.transmit_ms.get_ref()),
            required_min_rx: micros(*bfd.receive_ms.get_ref()),
            detect_multiplier: u8::try_from(*bfd.multiplier.get_ref()).unwrap_or(u8::MAX),
        };
        let key = keys.live(now, 0).last().map(|(_, key)| ForwardingKey::new(key));
        let mut peers = neighbors(file, scion);
        peers.extend(siblings(file, scion));
        Self { peers, timers, key, ..none }
    }
}

/// From `src` to `dst`, whose router is `to`.
fn header(dst: IsdAs, src: IsdAs, [to, from]: [SocketAddr; 2]) -> Header {
    Header {
        traffic_class: TRAFFIC_CLASS,
        flow_id: FLOW_ID,
        next_header: next_header::BFD,
        dst,
        src,
        dst_host: host(to),
        src_host: host(from),
        path: Path::Empty,
    }
}

fn host(address: SocketAddr) -> HostAddress {
    match address.ip() {
        IpAddr::V4(v4) => HostAddress::V4(v4),
        IpAddr::V6(v6) => HostAddress::V6(v6),
    }
}

/// A session for each own interface that does not refuse it.
fn neighbors(file: &RouterFile, scion: &ScionSection) -> Vec<Peer> {
    let sections = file.interface.iter().map(toml::Spanned::get_ref).filter(|section| section.bfd);
    let peer = |section: &crate::config::router::InterfaceSection| {
        let (local, remote) = (section.local.as_ref()?.get_ref().0, section.remote.as_ref()?.get_ref().0);
        let id = *section.id.get_ref();
        Some(Peer {
            ingress: Ingress::External(id),
            way: Way::Interface(id),
            to: remote,
            interfaces: vec![id],
            header: header(section.neighbor.get_ref().0, scion.isd_as.get_ref().0, [remote, local]),
        })
    };
    sections.filter_map(peer).collect()
}

/// A session for each other router of the AS, which all its interfaces hang on.
fn siblings(file: &RouterFile, scion: &ScionSection) -> Vec<Peer> {
    let peer = |(number, address): (usize, &toml::Spanned<crate::config::Text<SocketAddr>>)| {
        let number = number as u16; // interfaces name siblings by 16 bits
        let (local, remote) = (scion.internal.get_ref().0, address.get_ref().0);
        let sections = file.interface.iter().map(toml::Spanned::get_ref);
        let own = sections.filter(|section| section.sibling.as_ref().map(toml::Spanned::get_ref) == Some(&number));
        Peer {
            ingress: Ingress::Sibling(number),
            way: Way::Internal,
            to: remote,
            interfaces: own.map(|section| *section.id.get_ref()).collect(),
            header: header(scion.isd_as.get_ref().0, scion.isd_as.get_ref().0, [remote, local]),
        }
    };
    scion.siblings.iter().enumerate().map(peer).collect()
}

/// What the sessions' task shows, and how it is told another configuration.
#[derive(Clone)]
pub struct Sessions {
    reloads: UnboundedSender<Wanted>,
    shown: Arc<Mutex<Shown>>,
}

#[derive(Default)]
struct Shown {
    states: BTreeMap<String, State>,
    malformed: u64,
}

impl Sessions {
    /// Starts the task. `control` brings this router's own control packets.
    pub fn start(
        wanted: Wanted,
        control: Receiver<Control>,
        workers: Vec<Sender<Task>>,
        clock: Clock,
        log: Events,
    ) -> Self {
        let (reloads, told) = unbounded_channel();
        let shown = Arc::<Mutex<Shown>>::default();
        let mut driver = Driver {
            live: HashMap::new(),
            timers: Timers::default(),
            key: None,
            workers,
            clock,
            log,
            shown: Arc::clone(&shown),
        };
        driver.take(wanted);
        drop(tokio::spawn(driver.run(control, told)));
        Self { reloads, shown }
    }

    /// Takes another configuration, which the threads have already. Their links are set anew.
    pub fn reload(&self, wanted: Wanted) {
        let _ = self.reloads.send(wanted); // the task ends with the process
    }

    /// The state of each session by its name, and packets that were none; null without sessions.
    pub fn json(&self) -> Value {
        let shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if shown.states.is_empty() {
            return Value::Null;
        }
        let states: serde_json::Map<String, Value> =
            shown.states.iter().map(|(name, state)| (name.clone(), json!(state.name()))).collect();
        json!({ "sessions": states, "malformed": shown.malformed })
    }
}

struct Live {
    peer: Peer,
    session: Session,
}

struct Driver {
    live: HashMap<Ingress, Live>,
    timers: Timers,
    key: Option<ForwardingKey>,
    workers: Vec<Sender<Task>>,
    clock: Clock,
    log: Events,
    shown: Arc<Mutex<Shown>>,
}

impl Driver {
    async fn run(mut self, mut control: Receiver<Control>, mut told: UnboundedReceiver<Wanted>) {
        loop {
            let due = self.live.values().filter_map(|live| live.session.deadline()).min();
            let clock = self.clock;
            let wait = async move {
                match due {
                    Some(due) => tokio::time::sleep_until(clock.at(due)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                heard = control.recv() => match heard {
                    Some(heard) => self.receive(&heard),
                    None => return,
                },
                wanted = told.recv() => match wanted {
                    Some(wanted) => self.take(wanted),
                    None => return,
                },
                () = wait => {}
            }
            self.act();
        }
    }

    fn receive(&mut self, heard: &Control) {
        let now = self.clock.now().instant;
        // A session that a reload has ended, or never had.
        let Some(live) = self.live.get_mut(&heard.ingress) else { return };
        let payload = Layout::decode(&heard.octets).map(|layout| &heard.octets[layout.header_len..]);
        match payload.ok().and_then(|payload| ControlPacket::decode(payload).ok()) {
            Some(packet) => live.session.receive(&packet, now),
            None => self.shown.lock().unwrap_or_else(PoisonError::into_inner).malformed += 1,
        }
    }

    /// Sessions that stay as they were go on; links without a session are up.
    fn take(&mut self, wanted: Wanted) {
        let now = self.clock.now().instant;
        let are_other = wanted.timers != self.timers;
        (self.timers, self.key) = (wanted.timers, wanted.key);
        let mut before = std::mem::take(&mut self.live);
        for peer in wanted.peers {
            let kept = before.remove(&peer.ingress).filter(|live| live.peer.to == peer.to && !are_other);
            let Some(session) = kept.map(|live| live.session).or_else(|| self.open(now)) else { continue };
            self.live.insert(peer.ingress, Live { peer, session });
        }
        let is_up = |id: &u16| {
            let mut of = self.live.values().filter(|live| live.peer.interfaces.contains(id));
            of.all(|live| live.session.state() == State::Up)
        };
        let links: Vec<(u16, bool)> = wanted.interfaces.iter().map(|id| (*id, is_up(id))).collect();
        self.set_links(links);
        self.show();
    }

    /// A session under a name that nobody foresees; none if the system gives no randomness.
    fn open(&self, now: Instant) -> Option<Session> {
        let mut random = [0; 12];
        if let Err(error) = getrandom::fill(&mut random) {
            warn!(%error, "no BFD session: the system gives no randomness");
            return None;
        }
        let (name, seed) = random.split_first_chunk::<4>()?;
        let discriminator = NonZeroU32::new(u32::from_be_bytes(*name)).unwrap_or(NonZeroU32::MIN);
        let Timers { desired_min_tx, required_min_rx, detect_multiplier } = self.timers;
        let seed = u64::from_be_bytes(seed.try_into().ok()?);
        Some(Session::new(Config { discriminator, desired_min_tx, required_min_rx, detect_multiplier, seed }, now))
    }

    /// Lets every session do what is due, and does what follows.
    fn act(&mut self) {
        let now = self.clock.now();
        let (mut packets, mut links, mut has_changed) = (Vec::new(), Vec::new(), false);
        for live in self.live.values_mut() {
            live.session.handle_timeout(now.instant);
            while let Some(output) = live.session.poll() {
                match output {
                    Output::Send(packet) => packets.push((live.peer.clone(), packet)),
                    Output::Changed(state, diagnostic) => {
                        let (peer, diagnostic) = (live.peer.name(), diagnostic.number());
                        info!(peer, state = state.name(), diagnostic, "BFD");
                        let event =
                            json!({ "event": "bfd", "peer": peer, "state": state.name(), "diagnostic": diagnostic });
                        self.log.note(&event);
                        links.extend(live.peer.interfaces.iter().map(|id| (*id, state == State::Up)));
                        has_changed = true;
                    }
                }
            }
        }
        packets.into_iter().for_each(|(peer, packet)| self.send(peer, &packet, now));
        if has_changed {
            self.set_links(links);
            self.show();
        }
    }

    fn send(&self, peer: Peer, packet: &ControlPacket, now: Now) {
        let mut header = peer.header;
        if let (Ingress::External(id), Some(key)) = (peer.ingress, &self.key) {
            header.path = Path::OneHop(key.one_hop(0, now.unix.secs() as u32, EXP_TIME, id));
        }
        let octets = Packet { header, payload: packet.encode().to_vec() }.encode();
        let (way, to) = (peer.way, peer.to);
        // The first thread has a port of every way.
        if let Some(first) = self.workers.first() {
            let _ = first.send(Box::new(move |worker: &mut Worker| worker.send_own(way, to, &octets))); // it has ended
        }
    }

    fn set_links(&self, links: Vec<(u16, bool)>) {
        for worker in &self.workers {
            let links = links.clone();
            let task = move |worker: &mut Worker| {
                if let Engine::Scion(engine) = &mut worker.engine {
                    links.iter().for_each(|(id, is_up)| engine.router.set_link(*id, *is_up));
                }
            };
            let _ = worker.send(Box::new(task)); // it has ended
        }
    }

    fn show(&self) {
        let states = self.live.values().map(|live| (live.peer.name(), live.session.state())).collect();
        self.shown.lock().unwrap_or_else(PoisonError::into_inner).states = states;
    }
}
