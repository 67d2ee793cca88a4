//! BFD sessions of a SCION router (RFC 5880): with the neighbour behind each of its interfaces, and with the AS's other
//! routers. A link whose session is not up is down for the data plane.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use toml::Spanned;
use tracing::warn;
use wayleave_core::{Instant, Now};
use wayleave_dataplane::bfd::{Config, ControlPacket, Diagnostic, Output, Session, State};
use wayleave_dataplane::frame::Ingress;
use wayleave_packet::scion::{ForwardingKey, Header, HostAddress, IsdAs, Layout, Packet, Path, next_header};
use wayleave_runtime::Clock;

use super::Scion;
use crate::config::Text;
use crate::config::router::scion::{InterfaceSection, ScionSection};
use crate::roles::events::{EventLine, Events, event};
use crate::roles::router::format::Context;
use crate::roles::router::output;
use crate::roles::router::ports::PortKind;
use crate::roles::router::settings::Settings;
use crate::roles::router::threads::Threads;

/// Expedited forwarding (RFC 3246).
const TRAFFIC_CLASS: u8 = 0xb8;
/// Not zero, which stands for no flow.
const FLOW_ID: u32 = 1;
/// The lifetime of a packet's hop field: six hours, a quarter of the greatest.
const EXP_TIME: u8 = 63;
/// Configurations that wait for the sessions: one. The next reload waits until this one is taken over; sessions do that at
/// once, and no number of signals makes the queue grow.
const RELOADS: usize = 1;

/// The other end of a session.
#[derive(Clone)]
struct Peer {
    ingress: Ingress,
    port: PortKind,
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

/// The sessions that a configuration asks for.
pub struct SessionsSpec {
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

impl SessionsSpec {
    /// Sessions by the settings, with the key that is in force now.
    pub fn new(settings: &Settings) -> Self {
        let file = &settings.file;
        let interfaces = file.interface.iter().map(|section| *section.get_ref().id.get_ref()).collect();
        let none = Self { peers: Vec::new(), interfaces, timers: Timers::default(), key: None };
        let Some(scion) = file.scion.as_ref().map(Spanned::get_ref) else { return none };
        let Some(bfd) = scion.bfd.as_ref().map(Spanned::get_ref) else { return none };
        // The configuration was checked: they fit.
        let micros = |milliseconds: u64| u32::try_from(milliseconds * 1_000).unwrap_or(u32::MAX);
        let timers = Timers {
            desired_min_tx: micros(*bfd.transmit_ms.get_ref()),
            required_min_rx: micros(*bfd.receive_ms.get_ref()),
            detect_multiplier: u8::try_from(*bfd.multiplier.get_ref()).unwrap_or(u8::MAX),
        };
        let key = settings.live_keys(0).last().map(|(_, key)| ForwardingKey::new(key));
        let mut peers = neighbors(settings, scion);
        if bfd.siblings {
            peers.extend(siblings(settings, scion));
        }
        Self { peers, timers, key, ..none }
    }
}

/// The header of packets from `src` to `dst`, whose router is `to`.
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

/// A session for each interface of this router that does not refuse it.
fn neighbors(settings: &Settings, scion: &ScionSection) -> Vec<Peer> {
    let sections = settings.file.interface.iter().map(Spanned::get_ref).filter(|section| section.bfd);
    let peer = |section: &InterfaceSection| {
        let (local, remote) = (section.local.as_ref()?.get_ref().0, section.remote.as_ref()?.get_ref().0);
        let id = *section.id.get_ref();
        Some(Peer {
            ingress: Ingress::External(id),
            port: PortKind::Interface(id),
            to: remote,
            interfaces: vec![id],
            header: header(section.neighbor.get_ref().0, scion.isd_as.get_ref().0, [remote, local]),
        })
    };
    sections.filter_map(peer).collect()
}

/// A session for each other router of the AS; all interfaces of that router depend on it.
fn siblings(settings: &Settings, scion: &ScionSection) -> Vec<Peer> {
    let peer = |(number, address): (usize, &Spanned<Text<SocketAddr>>)| {
        let number = number as u16; // interfaces name siblings by 16 bits
        let (local, remote) = (scion.internal.get_ref().0, address.get_ref().0);
        let sections = settings.file.interface.iter().map(Spanned::get_ref);
        let own = sections.filter(|section| section.sibling.as_ref().map(Spanned::get_ref) == Some(&number));
        Peer {
            ingress: Ingress::Sibling(number),
            port: PortKind::Internal,
            to: remote,
            interfaces: own.map(|section| *section.id.get_ref()).collect(),
            header: header(scion.isd_as.get_ref().0, scion.isd_as.get_ref().0, [remote, local]),
        }
    };
    scion.siblings.iter().enumerate().map(peer).collect()
}

/// The running sessions, as the rest of the process sees them.
#[derive(Clone)]
pub struct Sessions {
    reloads: Sender<SessionsSpec>,
    states: Arc<Mutex<States>>,
}

/// What the status view shows.
#[derive(Default)]
struct States {
    by_name: BTreeMap<String, State>,
    malformed: u64,
}

impl Sessions {
    /// Starts the task that runs all sessions.
    pub fn start(context: Context<'_, Scion>) -> Self {
        let (reloads, specs) = channel(RELOADS);
        let states = Arc::<Mutex<States>>::default();
        let mut driver = Driver {
            live: HashMap::new(),
            timers: Timers::default(),
            key: None,
            threads: context.threads.clone(),
            clock: context.clock,
            log: context.log.clone(),
            states: Arc::clone(&states),
        };
        driver.take_over(SessionsSpec::new(context.settings));
        drop(tokio::spawn(driver.run(context.received, specs)));
        Self { reloads, states }
    }

    /// Takes over another configuration, which the threads have already. The links of all threads are set again.
    pub async fn reload(&self, spec: SessionsSpec) {
        let _ = self.reloads.send(spec).await; // the task ends with the process
    }

    /// Whether a session is up, if there are any: while none is, no link works that has one.
    ///
    /// # Errors
    /// Which sessions are not up.
    pub fn readiness(&self) -> Result<(), String> {
        let states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        if states.by_name.is_empty() || states.by_name.values().any(|state| *state == State::Up) {
            return Ok(());
        }
        let names: Vec<&str> = states.by_name.keys().map(String::as_str).collect();
        Err(format!("no BFD session is up: {}", names.join(", ")))
    }

    /// The state of each session by its name, and the number of malformed packets; null without sessions.
    pub fn json(&self) -> Value {
        let states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        if states.by_name.is_empty() {
            return Value::Null;
        }
        let sessions: serde_json::Map<String, Value> =
            states.by_name.iter().map(|(name, state)| (name.clone(), json!(state.name()))).collect();
        json!({ "sessions": sessions, "malformed": states.malformed })
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
    threads: Threads<Scion>,
    clock: Clock,
    log: Events,
    states: Arc<Mutex<States>>,
}

impl Driver {
    async fn run(mut self, mut received: Receiver<output::ControlPacket>, mut specs: Receiver<SessionsSpec>) {
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
                packet = received.recv() => match packet {
                    Some(packet) => self.receive(&packet),
                    None => return,
                },
                spec = specs.recv() => match spec {
                    Some(spec) => self.take_over(spec),
                    None => return,
                },
                () = wait => {}
            }
            self.act();
        }
    }

    fn receive(&mut self, packet: &output::ControlPacket) {
        let now = self.clock.now().instant;
        // There is none where a reload has ended the session, or none is configured.
        let Some(live) = self.live.get_mut(&packet.ingress) else { return };
        let payload = Layout::decode(&packet.octets).map(|layout| &packet.octets[layout.header_len..]);
        match payload.ok().and_then(|payload| ControlPacket::decode(payload).ok()) {
            Some(packet) => live.session.receive(&packet, now),
            None => self.states.lock().unwrap_or_else(PoisonError::into_inner).malformed += 1,
        }
    }

    /// Sessions that stay as they were go on; links without a session are up.
    fn take_over(&mut self, spec: SessionsSpec) {
        let now = self.clock.now().instant;
        let are_timers_new = spec.timers != self.timers;
        (self.timers, self.key) = (spec.timers, spec.key);
        let mut before: Vec<Live> = std::mem::take(&mut self.live).into_values().collect();
        for peer in spec.peers {
            // By port and address: a sibling's number changes with those in front of it.
            let is_same = |live: &Live| live.peer.port == peer.port && live.peer.to == peer.to && !are_timers_new;
            let kept = before.iter().position(is_same).map(|at| before.swap_remove(at));
            let Some(session) = kept.map(|live| live.session).or_else(|| self.open(now)) else { continue };
            self.live.insert(peer.ingress, Live { peer, session });
        }
        let is_up = |id: &u16| {
            let mut of = self.live.values().filter(|live| live.peer.interfaces.contains(id));
            of.all(|live| live.session.state() == State::Up)
        };
        let links: Vec<(u16, bool)> = spec.interfaces.iter().map(|id| (*id, is_up(id))).collect();
        self.set_links(&links);
        self.show();
    }

    /// A new session. Its discriminator is random, so that nobody off the path can forge its packets; `None` if the system
    /// gives no randomness.
    fn open(&self, now: Instant) -> Option<Session> {
        let mut random = [0; 12];
        if let Err(error) = getrandom::fill(&mut random) {
            warn!(%error, "a BFD session is not started, since the system gives no randomness: its link stays up unchecked");
            return None;
        }
        let (name, seed) = random.split_first_chunk::<4>()?;
        let discriminator = NonZeroU32::new(u32::from_be_bytes(*name)).unwrap_or(NonZeroU32::MIN);
        let Timers { desired_min_tx, required_min_rx, detect_multiplier } = self.timers;
        let seed = u64::from_be_bytes(seed.try_into().ok()?);
        Some(Session::new(Config { discriminator, desired_min_tx, required_min_rx, detect_multiplier, seed }, now))
    }

    /// Runs the timers of all sessions, sends their packets, and sets the links of those that changed.
    fn act(&mut self) {
        let now = self.clock.now();
        let (mut packets, mut links, mut has_changed) = (Vec::new(), Vec::new(), false);
        for live in self.live.values_mut() {
            live.session.handle_timeout(now.instant);
            while let Some(output) = live.session.poll() {
                match output {
                    Output::Send(packet) => packets.push((live.peer.clone(), packet)),
                    Output::Changed(state, diagnostic) => {
                        self.log.report(changed_line(&live.peer.name(), state, diagnostic));
                        links.extend(live.peer.interfaces.iter().map(|id| (*id, state == State::Up)));
                        has_changed = true;
                    }
                }
            }
        }
        packets.into_iter().for_each(|(peer, packet)| self.send(peer, &packet, now));
        if has_changed {
            self.set_links(&links);
            self.show();
        }
    }

    fn send(&self, peer: Peer, packet: &ControlPacket, now: Now) {
        let mut header = peer.header;
        if let (Ingress::External(id), Some(key)) = (peer.ingress, &self.key) {
            header.path = Path::OneHop(key.one_hop(0, now.unix.secs() as u32, EXP_TIME, id));
        }
        let octets = Packet { header, payload: packet.encode().to_vec() }.encode();
        let (port, to) = (peer.port, peer.to);
        // The first thread has a port of every kind.
        self.threads.request(0, move |worker| worker.send_own(port, to, &octets));
    }

    fn set_links(&self, links: &[(u16, bool)]) {
        for thread in 0..self.threads.count() {
            let links = links.to_vec();
            self.threads.request(thread, move |worker| worker.format.set_links(&links));
        }
    }

    fn show(&self) {
        let by_name = self.live.values().map(|live| (live.peer.name(), live.session.state())).collect();
        self.states.lock().unwrap_or_else(PoisonError::into_inner).by_name = by_name;
    }
}

pub fn changed_line(peer: &str, state: State, diagnostic: Diagnostic) -> EventLine {
    event!(INFO "bfd" { peer, state = state.name(), diagnostic = diagnostic.number() } "BFD session changed state")
}
