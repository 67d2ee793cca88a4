//! ICING: packets in UDP or Ethernet over links; the meaning of each tag says where they go.

mod overlay;
mod remembered;
mod reports;

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use serde_json::{Map, Value, json};
use toml::Spanned;
use wayleave_core::{Now, UnixTime};
use wayleave_crypto::lanes::CpuKernel;
use wayleave_crypto::secret::Key128;
use wayleave_crypto::sign::SigningKey;
use wayleave_dataplane::frame::Ingress;
use wayleave_dataplane::icing::{
    self, Action, ChargeLine, Config, ConfigError, Link, MAX_FRESHNESS, Meaning, Output, Policy, Reason, Router,
    TagRule, record,
};
use wayleave_dataplane::link::message::is_message;
use wayleave_dataplane::link::{At, Counters as LinkCounters, Datagram, LinkStatus, Links, Peer, State as LinkState};
use wayleave_dataplane::replay::{ClockJumps, MOST_PARTITIONS, ReplayFilter};
use wayleave_packet::icing::header::{ETHERTYPE, Version};
use wayleave_packet::icing::mint::{NodeSecret, TAG_EPOCH, TagMaster};
use wayleave_runtime::Clock;
use wayleave_runtime::http::{Metric, ViewError};
use wayleave_runtime::identity::Identity;
use wayleave_runtime::packets::{Burst, MAX_PACKETS};
use wayleave_runtime::store::FileStore;

use super::batch::Batch;
use super::counters::{FormatCounters, PartitionCounters, ReplayCounters};
use super::format::{Control, Format};
use super::journal::{Account, Total};
use super::output::OutputQueues;
use super::ports::{AttachedPort, PortKind, PortSpec};
use super::settings::{Settings, random};
use super::threads::Threads;
use super::view::RouterView;

use crate::config::Fault;
use crate::config::links::LinkSocket;
use crate::config::overlay::OverlaySection;
use crate::config::router::icing::{AccountSection, IcingSection, TagSection};
use crate::config::router::{Backend, FormatName, LinkSection};
use crate::failure::{Failure, Outcome};
use crate::key_files::forwarding::{icing_master, icing_secret};
use crate::key_files::signing_key;
use crate::output::cell;
use crate::roles::Events;
use crate::roles::daemon::{Views, fresh};
use crate::roles::link_threads::{self, LinkThread};
use crate::roles::links::{self, Watch};
use crate::roles::overlay::Handle;
use crate::roles::overlay::refused_consents::{Consents, RefusedConsents};
use overlay::OverlayNode;
use remembered::Remembered;
use reports::ReportQuery;

/// Octets of the longest packet.
const LONGEST: u64 = 65_535;

/// The node's router.
pub struct Icing {
    router: Router,
    addresses: Addresses,
    /// The port of each link, and the one of services.
    ports: Vec<Option<usize>>,
    internal: Option<usize>,
    /// Links of a node of an overlay, whose neighbours prove themselves, and the port of each of their sockets.
    links: Option<LinkThread>,
    sockets: Vec<Socket>,
    /// Where each packet of the burst was counted, by its index there.
    charged: Box<[ChargeLine]>,
}

/// A socket of links: its address, by which it keeps its number for the life of the thread, its kind of port, and its port if it is open.
struct Socket {
    local: LinkSocket,
    kind: PortKind,
    port: Option<usize>,
}

/// How a packet leaves.
#[derive(Clone, Copy)]
enum Next {
    /// By this port, to this address.
    Port(usize, SocketAddr),
    /// By a socket that only the first thread has.
    OtherThread(At),
}

/// What the thread forwards by.
#[derive(Clone)]
pub struct Plan {
    policy: Box<Policy>,
    ends: Ends,
}

/// Where packets go, and who proves himself there.
#[derive(Clone)]
struct Ends {
    addresses: Addresses,
    /// With the numbers of `sockets`.
    peers: Vec<Peer>,
    sockets: Vec<LinkSocket>,
}

/// Where links and services are.
#[derive(Clone, Default)]
struct Addresses {
    /// Number and other end, in the order of the configuration.
    links: Vec<(u16, SocketAddr)>,
    services: Vec<(u16, SocketAddr)>,
}

impl Addresses {
    fn new(settings: &Settings, section: &IcingSection) -> Self {
        let links = settings.file.link.iter().map(Spanned::get_ref);
        let links = links.map(|link| (link.id.unwrap_or_default(), link.remote.get_ref().0)).collect();
        Self { links, services: section.services.iter().map(|service| (service.id, service.address.0)).collect() }
    }
}

fn section(settings: &Settings) -> Result<&IcingSection, Failure> {
    let section = settings.file.icing.as_ref().map(Spanned::get_ref);
    section.ok_or_else(|| Failure::new("no section [icing]"))
}

/// The masters of tag keys, each with the tag epoch from which it is used.
fn masters(settings: &Settings) -> Vec<(u32, TagMaster)> {
    let live = settings.live_keys(IcingControl::KEYS_AHEAD);
    live.iter().map(|(from, key)| ((*from >> TAG_EPOCH) as u32, icing_master(key))).collect()
}

/// What the file and the live keys say. A tag master counts from the tag epoch on in which its key begins.
///
/// A node of an overlay has its IDs from its own epochs, and its neighbours' from their adverts.
fn policy(settings: &Settings, section: &IcingSection, node: Option<&Handle>) -> Policy {
    let live = settings.live_keys(IcingControl::KEYS_AHEAD);
    let accounts: Vec<icing::Account> = section.accounts.iter().map(account).collect();
    let mut secrets: Vec<NodeSecret> = live.iter().map(|(_, key)| icing_secret(key)).collect();
    let mut links: Vec<Link> = settings.file.link.iter().map(|link| policy_link(link.get_ref())).collect();
    let mut agreed = Arc::default();
    if let (Some(node), Some(section)) = (node, overlay_section(settings)) {
        secrets = overlay::secrets(node);
        links.extend(overlay::links(node, section));
        // Each account with a rate counts at each link. Members that the node lists come first; those beyond are not served.
        let rated = accounts.iter().filter(|account| account.rate > 0).count();
        links.truncate(MOST_PARTITIONS.checked_div(rated).unwrap_or(usize::MAX));
        agreed = Arc::clone(&node.ids().borrow().agreed);
    }
    Policy {
        secrets,
        masters: masters(settings),
        links,
        rules: section.tags.iter().map(|tag| rule(tag, &accounts)).collect(),
        accounts,
        agreed,
    }
}

fn overlay_section(settings: &Settings) -> Option<&OverlaySection> {
    settings.file.overlay.as_ref().map(Spanned::get_ref)
}

fn policy_link(section: &LinkSection) -> Link {
    let nodes = section.nodes.iter().map(|node| node.0).collect();
    Link { id: section.id.unwrap_or_default(), nodes, is_open: section.open }
}

/// If the file does not say, an account may send a second's octets at once, and the longest packet in any case.
fn account(section: &AccountSection) -> icing::Account {
    let rate = section.rate;
    icing::Account { id: *section.id.get_ref(), rate, depth: section.depth.unwrap_or(rate.max(LONGEST)) }
}

fn rule(tag: &TagSection, accounts: &[icing::Account]) -> TagRule {
    let output = match (tag.link, tag.service) {
        (Some(link), _) => Output::Link(link),
        (None, Some(service)) => Output::Service(service),
        (None, None) => Output::Next,
    };
    let prefix = tag.prefix.get_ref().0;
    let index = |id| accounts.iter().position(|account| account.id == id);
    // The configuration was checked: it is there, and the number of accounts has 16 bits.
    let account = tag.account.and_then(index).map(|index| index as u16);
    TagRule { bits: prefix.0, depth: prefix.1, meaning: Meaning { queue: tag.queue, output, account } }
}

fn config(section: &IcingSection, policy: Policy, started: UnixTime) -> Outcome<Config> {
    let size = |number: &Spanned<u64>| usize::try_from(*number.get_ref()).unwrap_or(usize::MAX);
    Ok(Config {
        version: Version::Standard,
        policy,
        agreements_per_second: u32::try_from(*section.agreements_per_second.get_ref()).unwrap_or(u32::MAX),
        paths: size(&section.paths),
        peers: size(&section.peers),
        freshness: u32::try_from(*section.freshness_secs.get_ref()).unwrap_or(u32::MAX),
        replay_capacity: size(&section.replay_capacity),
        started,
        replay_key: Key128::new(random()?),
        seed: u64::from_be_bytes(random()?),
    })
}

/// Whether a router would take the policy.
fn try_policy(policy: &Policy) -> Result<(), Failure> {
    let least = Config {
        version: Version::Standard,
        policy: policy.clone(),
        agreements_per_second: 1,
        paths: 1,
        peers: 1,
        freshness: MAX_FRESHNESS,
        replay_capacity: 0,
        started: UnixTime(0),
        replay_key: Key128::new([0; 16]),
        seed: 0,
    };
    Router::new(least, CpuKernel::best()).map(drop).map_err(|error| refused(&error))
}

fn refused(error: &ConfigError) -> Failure {
    Failure::new(error.to_string())
}

impl Icing {
    fn take_over(&mut self, ends: Ends, ports: &[AttachedPort], now: Now) {
        // What leaves by a control socket would not leave as data do.
        let at = |kind| ports.iter().position(|attached| attached.kind == kind && !attached.is_control);
        self.ports = (0..ends.addresses.links.len()).map(|number| at(PortKind::Link(number))).collect();
        self.internal = at(PortKind::Internal);
        self.addresses = ends.addresses;
        for socket in &mut self.sockets {
            (socket.kind, socket.port) = (PortKind::Overlay(usize::MAX), None);
        }
        let mut numbers = Vec::new();
        for (number, local) in ends.sockets.into_iter().enumerate() {
            let kind = PortKind::Overlay(number);
            let place = self.sockets.iter().position(|socket| socket.local == local).unwrap_or(self.sockets.len());
            let socket = Socket { local, kind, port: at(kind) };
            if place < self.sockets.len() {
                self.sockets[place] = socket;
            } else {
                self.sockets.push(socket);
            }
            numbers.push(place);
        }
        if let Some(links) = self.links.as_mut().and_then(LinkThread::links_mut) {
            let own = |peer: Peer| {
                let sockets = peer.sockets.iter().filter_map(|number| numbers.get(*number).copied()).collect();
                let endpoints = peer.endpoints.iter();
                let endpoints = endpoints.filter_map(|(number, there)| Some((*numbers.get(*number)?, *there)));
                let tls = peer.tls.and_then(|number| numbers.get(number).copied());
                Peer { sockets, endpoints: endpoints.collect(), tls, ..peer }
            };
            links.set_peers(ends.peers.into_iter().map(own).collect(), now);
        }
    }

    /// The number of the socket at a port.
    #[inline]
    fn socket(&self, port: PortKind) -> Option<usize> {
        self.sockets.iter().position(|socket| socket.kind == port)
    }

    /// How the links to neighbours are that prove themselves, and what they count.
    pub fn links(&self, now: Now) -> Option<(Vec<LinkStatus>, LinkCounters)> {
        let links = self.links.as_ref()?.links()?;
        Some((links.status(now), links.counters()))
    }

    fn replay_counters(&self, filter: &ReplayFilter, now: Now) -> ReplayCounters {
        let partition = |(state, taken): (icing::PayerState, u64)| PartitionCounters {
            payer: state.payer.map_or(Value::Null, |(link, account)| json!({ "link": link, "account": account })),
            packets: state.partition.limit().into(),
            taken,
            over_rate: state.refused.rate,
            no_room: state.refused.partition,
        };
        ReplayCounters {
            taken: filter.load(now.instant),
            octets: filter.memory(),
            accepts_from: filter.accepts_from(),
            clock: filter.clock_jumps(),
            partitions: self.router.partitions(now).map(partition).collect(),
        }
    }

    fn note_received(&mut self, batch: &mut Batch<'_>, now: Now) {
        let (Some(links), PortKind::Overlay(_)) = (&mut self.links, batch.kind) else { return };
        for run in batch.frames().chunk_by(|a, b| a.ingress == b.ingress) {
            if let Some(Ingress::External(link)) = run.first().map(|frame| frame.ingress) {
                let octets: usize = run.iter().map(|frame| frame.octets.len()).sum();
                links.note_received(link, (run.len() as u64, octets as u64), now.instant);
            }
        }
    }

    fn note_sent(&mut self, (link, packets, octets): (u16, u64, u64), now: Now) {
        if let Some(links) = &mut self.links
            && packets > 0
        {
            links.note_sent(link, (packets, octets), now.instant);
        }
    }

    /// How the neighbour behind a link is reached.
    fn link(&self, link: u16) -> Option<Next> {
        if let Some(at) = self.links.as_ref().and_then(|links| links.address(link)) {
            return Some(self.sockets.get(at.0)?.port.map_or(Next::OtherThread(at), |port| Next::Port(port, at.1)));
        }
        let number = self.addresses.links.iter().position(|(id, _)| *id == link)?;
        Some(Next::Port(self.ports[number]?, self.addresses.links[number].1))
    }

    fn service(&self, service: u16) -> Option<Next> {
        let (_, address) = self.addresses.services.iter().find(|(id, _)| *id == service)?;
        Some(Next::Port(self.internal?, *address))
    }
}

impl Format for Icing {
    type Plan = Plan;
    type Account = AccountId;
    type Control = IcingControl;

    fn open(
        control: &mut IcingControl,
        settings: &Settings,
        thread: usize,
        ports: &[AttachedPort],
        accounts: Vec<(AccountId, Total)>,
    ) -> Outcome<Self> {
        let Plan { policy, ends } = control.plan(settings)?;
        let mut config = config(section(settings)?, *policy, settings.started)?;
        if control.shared.is_some() {
            config.replay_capacity = 0; // it gets the first thread's filter
        }
        let router = Router::new(config, CpuKernel::best());
        let mut router = router.map_err(|error| refused(&error))?;
        let has_others = *settings.file.forwarding.workers.get_ref() > 1;
        match &control.shared {
            Some(shared) => router.share(shared),
            // A filter of one thread takes no locks.
            None if has_others => control.shared = Some(router.shared()),
            None => {}
        }
        let links = match control.machine.take() {
            Some(links) => Some(LinkThread::first(links, has_others.then(|| Arc::clone(&control.threads)))),
            None if thread > 0 && control.node.is_some() => Some(LinkThread::other(Arc::clone(&control.threads))),
            None => None,
        };
        let mut icing = Self {
            router,
            addresses: Addresses::default(),
            ports: Vec::new(),
            internal: None,
            links,
            sockets: Vec::new(),
            charged: vec![ChargeLine::default(); MAX_PACKETS].into_boxed_slice(),
        };
        icing.take_over(ends, ports, control.clock.unwrap_or_else(Clock::start).now());
        let narrow = |count| u64::try_from(count).unwrap_or(u64::MAX);
        icing.router.restore(accounts.into_iter().map(|(account, total)| {
            (account.0, icing::Total { packets: narrow(total.packets), octets: narrow(total.octets) })
        }));
        Ok(icing)
    }

    /// Paths that the policy still knows stay too.
    fn reload(&mut self, plan: Plan, ports: &[AttachedPort], now: Now) -> Result<(), Failure> {
        let Plan { policy, ends } = plan;
        self.router.set_policy(*policy).map_err(|error| refused(&error))?;
        self.take_over(ends, ports, now);
        Ok(())
    }

    #[inline]
    fn classify(&self, port: PortKind, from: &SocketAddr) -> Option<Ingress> {
        let id = match port {
            PortKind::Link(number) => self.addresses.links.get(number).filter(|(_, remote)| remote == from)?.0,
            PortKind::Overlay(_) => self.links.as_ref()?.link_at((self.socket(port)?, *from))?,
            _ => return None,
        };
        Some(Ingress::External(id))
    }

    #[inline]
    fn is_message(&self, port: PortKind, octets: &[u8]) -> bool {
        matches!(port, PortKind::Overlay(_)) && is_message(octets)
    }

    fn listen(&mut self, port: PortKind, burst: &mut Burst, now: Now) {
        let (Some(socket), Some(links)) = (self.socket(port), &mut self.links) else { return };
        for (from, octets) in burst.packets_mut(0) {
            if is_message(octets) {
                links.receive((socket, *from), octets, now);
            }
        }
    }

    fn speak(&mut self, now: Now) -> Option<(PortKind, SocketAddr, Vec<u8>)> {
        let Datagram { socket, to, octets } = self.links.as_mut()?.poll(now)?;
        Some((self.sockets.get(socket)?.kind, to, octets))
    }

    fn waker(&self) -> Option<BorrowedFd<'_>> {
        self.links.as_ref()?.waker()
    }

    fn leave(&mut self) {
        self.links.iter_mut().for_each(LinkThread::close);
    }

    fn process(&mut self, batch: &mut Batch<'_>, now: Now, out: &mut OutputQueues) {
        self.note_received(batch, now);
        let actions = self.router.process(batch.frames(), now);
        // Octets for one neighbour in a row.
        let mut run = (0, 0, 0);
        for (index, ((packet, frame, ..), action)) in batch.packets().zip(actions).enumerate() {
            let (next, queue) = match action {
                Action::Drop(_) => continue,
                Action::Forward { link, queue } => {
                    let next = self.link(link);
                    if run.0 != link {
                        self.note_sent(run, now);
                        run = (link, 0, 0);
                    }
                    // What is handed over is counted by who sends it.
                    if matches!(next, Some(Next::Port(..))) {
                        run = (link, run.1 + 1, run.2 + frame.octets.len() as u64);
                    }
                    (next, queue)
                }
                Action::Service { service, queue, .. } | Action::Deliver { service, queue } => {
                    (self.service(service), queue)
                }
            };
            let charged = self.router.charged(index);
            self.charged[packet] = charged;
            match next {
                None => {
                    out.counters.unreachable += 1;
                    self.router.credit(charged);
                }
                Some(Next::Port(port, to)) if queue > 0 => out.urgent(port, packet, to),
                Some(Next::Port(port, to)) => out.data(port, packet, &to),
                Some(Next::OtherThread(to)) => {
                    let is_taken = self.links.as_ref().is_some_and(|links| links.hand_over(to, frame.octets));
                    if !is_taken {
                        out.counters.unsent += 1;
                        self.router.credit(charged);
                    }
                }
            }
        }
        self.note_sent(run, now);
    }

    #[cold]
    fn unsent(&mut self, packet: usize) {
        self.router.credit(std::mem::take(&mut self.charged[packet]));
    }

    fn journal(&mut self) -> Vec<(AccountId, Total)> {
        let wide = |total: icing::Total| Total { packets: total.packets.into(), octets: total.octets.into() };
        self.router.journal().into_iter().map(|(id, total)| (AccountId(id), wide(total))).collect()
    }

    fn observe(&self, now: Now) -> ClockJumps {
        self.router.observe(now)
    }

    fn accepts_from(&self) -> Option<u64> {
        self.router.replay().map(ReplayFilter::accepts_from)
    }

    fn counters(&self, now: Now) -> FormatCounters {
        let of = self.router.counters();
        FormatCounters {
            decided: [("forwarded", of.forwarded), ("served", of.served), ("delivered", of.delivered)].into(),
            agreements: Some(of.agreements),
            agreed: Some(self.router.agreed_keys()),
            reasons: Reason::ALL.iter().map(|reason| (reason.name(), of.of(*reason))).collect(),
            replay: self.router.replay().map(|filter| self.replay_counters(filter, now)),
            ..FormatCounters::default()
        }
    }
}

/// The account that a tag names. It has no end.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct AccountId(u16);

impl Account for AccountId {
    fn key(&self) -> Vec<u8> {
        record::encode(self.0).to_vec()
    }

    fn from_key(key: &[u8]) -> Option<Self> {
        record::decode(key).map(Self)
    }

    fn is_over(&self, _: UnixTime) -> bool {
        false
    }

    fn json(&self) -> Value {
        json!({ "account": self.0 })
    }
}

/// The key that signs reports, if the file names one; a reload may change it.
type SharedIdentity = Arc<Mutex<Option<Arc<SigningKey>>>>;

/// What signs reports, and the node's part in an overlay.
pub struct IcingControl {
    identity: SharedIdentity,
    node: Option<OverlayNode>,
    /// The same, also for a control that a reload tries.
    handle: Option<Handle>,
    /// What pages show of the overlay, which a reload may change.
    shown: SharedOverlay,
    /// For the first thread, when it begins.
    machine: Option<Links>,
    /// What the threads share: where neighbours are; from the first one on, what they have accepted and charged.
    threads: Arc<link_threads::Shared>,
    shared: Option<icing::Shared>,
    clock: Option<Clock>,
    watch: Watch,
    links: SharedLinks,
    refused: SharedRefused,
    /// Where neighbours were, and are.
    remembered: Option<Remembered>,
}

/// How the links are: the first thread speaks with neighbours.
async fn link_status(threads: &Threads<Icing>) -> Option<(Vec<LinkStatus>, LinkCounters)> {
    threads.query(0, |worker| worker.format.links(worker.clock.now())).await.flatten()
}

/// A node's part in an overlay, with the configuration in force.
type SharedOverlay = Arc<Mutex<Option<(Handle, OverlaySection)>>>;

/// What status pages read.
#[derive(Clone)]
pub struct IcingView {
    identity: SharedIdentity,
    overlay: SharedOverlay,
    links: SharedLinks,
    refused: SharedRefused,
}

/// How many packets were refused for their consent of late.
type SharedRefused = Arc<Mutex<RefusedConsents>>;

/// How links were a second ago at most, and what they count.
type SharedLinks = Arc<Mutex<(Vec<LinkStatus>, LinkCounters)>>;

impl IcingView {
    fn node(&self) -> Option<(Handle, OverlaySection)> {
        self.overlay.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn found(&self) -> Result<(Handle, OverlaySection), ViewError> {
        self.node()
            .ok_or_else(|| ViewError::NotFound("this router is no node of an overlay: [overlay] is missing".to_owned()))
    }
}

impl Control<Icing> for IcingControl {
    const NAME: FormatName = FormatName::Icing;
    const KEYS_AHEAD: u64 = 2 << TAG_EPOCH;
    const LIVE: &'static [&'static str] = &[
        "forwarding.keys",
        "link",
        "icing.tags",
        "icing.services",
        "icing.accounts",
        "icing.identity",
        "overlay.neighbour",
        "overlay.open",
        "overlay.tls",
        "overlay.tags_offered",
        "overlay.consent",
        "overlay.mtu",
    ];
    type View = IcingView;

    fn load(settings: &Settings, _: Option<&Arc<FileStore>>) -> Outcome<Self> {
        let identity = match &section(settings)?.identity {
            None => None,
            Some(named) => {
                let loaded = Identity::load(&settings.source.resolve(named.get_ref()));
                let key = loaded.map(|identity| signing_key(&identity)).map_err(|error| Failure::from_error(&error));
                let key = key.map_err(|failure| settings.source.failure(Fault::of(named.span(), &failure)))?;
                Some(Arc::new(key))
            }
        };
        Ok(Self {
            identity: Arc::new(Mutex::new(identity)),
            node: None,
            handle: None,
            shown: Arc::default(),
            machine: None,
            threads: Arc::new(
                link_threads::Shared::new().map_err(|error| Failure::system("cannot make an eventfd", &error))?,
            ),
            shared: None,
            clock: None,
            watch: Watch::default(),
            links: Arc::default(),
            refused: Arc::default(),
            remembered: None,
        })
    }

    fn ports(settings: &Settings) -> Vec<PortSpec> {
        let mut all = Vec::new();
        let section = section(settings);
        if let Some((section, local)) = section.ok().and_then(|section| Some((section, section.internal.as_ref()?))) {
            let (local, backend) = (local.get_ref().0, *section.backend.get_ref());
            all.push(PortSpec::udp(PortKind::Internal, local, backend, "the services' end".to_owned()));
        }
        let sockets = overlay_section(settings).map(links::sockets).unwrap_or_default();
        all.extend(sockets.into_iter().enumerate().map(|(number, local)| PortSpec::overlay(number, local)));
        for (number, section) in settings.file.link.iter().map(Spanned::get_ref).enumerate() {
            let (kind, local) = (PortKind::Link(number), section.local.get_ref().0);
            all.push(match (section.backend.get_ref(), &section.device, &section.neighbor) {
                (Backend::Ethernet, Some(device), Some(neighbor)) => {
                    let neighbor = neighbor.get_ref().0;
                    let name = format!("link to {neighbor} at {device}");
                    PortSpec::ethernet(kind, device, neighbor.0, ETHERTYPE, name)
                }
                (backend, ..) => PortSpec::udp(kind, local, *backend, format!("link {local}")),
            });
        }
        all
    }

    fn plan(&self, settings: &Settings) -> Result<Plan, Failure> {
        let section = section(settings)?;
        let policy = policy(settings, section, self.handle.as_ref());
        try_policy(&policy)?;
        let addresses = Addresses::new(settings, section);
        let of_node = self.handle.as_ref().zip(overlay_section(settings));
        let (peers, sockets) = of_node.map_or_else(Default::default, |(node, section)| {
            let sockets = links::sockets(section);
            let mut peers = links::peers(node, section, &sockets);
            self.remembered.iter().for_each(|remembered| remembered.add_to(&mut peers, &sockets));
            (peers, sockets)
        });
        Ok(Plan { policy: Box::new(policy), ends: Ends { addresses, peers, sockets } })
    }

    async fn begin(&mut self, settings: &Settings, clock: Clock, log: &Events) -> Outcome {
        let Some(section) = overlay_section(settings) else { return Ok(()) };
        let node = OverlayNode::start(settings, section, clock, log).await?;
        node.handle().set_tag_masters(masters(settings));
        self.remembered = Some(Remembered::load(node.handle().store()));
        self.handle = Some(node.handle());
        self.machine = Some(links::machine(&section.load(&settings.source)?)?);
        self.clock = Some(clock);
        *self.shown.lock().unwrap_or_else(PoisonError::into_inner) = Some((node.handle(), section.clone()));
        self.node = Some(node);
        Ok(())
    }

    fn hand_over(&self, next: &mut Self) {
        next.handle.clone_from(&self.handle);
    }

    fn is_stale(&mut self, _: UnixTime) -> bool {
        self.node.as_mut().is_some_and(OverlayNode::has_changed)
    }

    async fn planned(&mut self, settings: &Settings) {
        let Some((handle, section)) = self.handle.as_ref().zip(overlay_section(settings)) else { return };
        *self.shown.lock().unwrap_or_else(PoisonError::into_inner) = Some((handle.clone(), section.clone()));
        handle.set_tag_masters(masters(settings));
        handle.reload(section.clone()).await;
    }

    async fn maintain(&mut self, settings: &Settings, threads: &Threads<Icing>, log: &Events) {
        let Some(handle) = &self.handle else { return };
        if let Ok(entropy) = fresh() {
            threads.request(0, move |worker| {
                if let Some(links) = worker.format.links.as_mut().and_then(LinkThread::links_mut) {
                    links.reseed(&entropy);
                }
            });
        }
        let Some((all, counters)) = link_status(threads).await else { return };
        *self.links.lock().unwrap_or_else(PoisonError::into_inner) = (all.clone(), counters);
        let consents = threads.query_all(|worker| {
            let counters = worker.format.router.counters();
            let good = counters.forwarded + counters.served + counters.delivered;
            Consents { refused: counters.of(Reason::Consent), good }
        });
        if let Some(all) = consents.await {
            let (refused, good) = (all.iter().map(|of| of.refused).sum(), all.iter().map(|of| of.good).sum());
            let mut known = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
            known.note(Consents { refused, good }, Instant::now());
        }
        self.remembered.iter_mut().for_each(|remembered| remembered.note(&all));
        let lines = self.watch.lines(&all, |node| handle.describe(node));
        lines.into_iter().for_each(|line| log.report(line));
        if let Some(section) = overlay_section(settings) {
            links::resolve_again(handle, section, &all);
        }
    }

    async fn failed(&mut self) -> Failure {
        match &mut self.node {
            Some(node) => node.failed().await,
            None => std::future::pending().await,
        }
    }

    async fn end(self) {
        if let Some(node) = self.node {
            node.stop().await;
        }
    }

    fn reload(&mut self, next: Self) {
        let identity = next.identity.lock().unwrap_or_else(PoisonError::into_inner).take();
        *self.identity.lock().unwrap_or_else(PoisonError::into_inner) = identity;
    }

    fn view(&self) -> IcingView {
        IcingView {
            identity: Arc::clone(&self.identity),
            overlay: Arc::clone(&self.shown),
            links: Arc::clone(&self.links),
            refused: Arc::clone(&self.refused),
        }
    }

    fn neighbours(view: &IcingView) -> Option<Vec<Value>> {
        let (handle, section) = view.node()?;
        Some(overlay::describe(&handle, &section))
    }

    fn status(view: &IcingView, members: &mut Map<String, Value>) {
        if let Some((handle, section)) = view.node() {
            let rows = overlay::describe(&handle, &section);
            let known = rows.iter().filter(|row| row["state"] == "known").count();
            members.insert("neighbours".to_owned(), json!(rows.len()));
            members.insert("neighbours_known".to_owned(), json!(known));
            let links = view.links.lock().unwrap_or_else(PoisonError::into_inner);
            members.insert("links_up".to_owned(), json!(links::up(&links.0)));
            let of_links = links::problems(&links.0, |node| handle.describe(node));
            let refused = view.refused.lock().unwrap_or_else(PoisonError::into_inner).problem();
            let of_peers = links::disagreements(&handle.link_peers(&section));
            let of_links = [of_peers, of_links, refused.into_iter().collect()].concat();
            members.insert("problems".to_owned(), json!([handle.problems(), of_links].concat()));
        }
    }

    fn metrics(view: &IcingView) -> Vec<Metric> {
        if view.node().is_none() {
            return Vec::new();
        }
        let links = view.links.lock().unwrap_or_else(PoisonError::into_inner);
        links::metrics(&links.0, links.1)
    }

    fn readiness(view: &IcingView) -> Result<(), String> {
        let Some((handle, section)) = view.node() else { return Ok(()) };
        if let Some(removal) = handle.removal() {
            return Err(removal.to_owned());
        }
        let rows = overlay::describe(&handle, &section);
        if let Some(row) = rows.iter().find(|row| row["state"] != "known") {
            return Err(format!("no link to a neighbour: {}", cell(&row["why"])));
        }
        let links = view.links.lock().unwrap_or_else(PoisonError::into_inner);
        // A forwarder that waits for members has nobody to ask.
        if links.0.iter().all(|link| link.state == LinkState::Awaited) {
            return Ok(());
        }
        links::readiness(&links.0, |node| handle.describe(node))
    }

    fn pages(views: Views<RouterView<Icing>>) -> Views<RouterView<Icing>> {
        views
            .page("reports", |view: RouterView<Icing>, parameters| async move {
                let query = ReportQuery::read(&parameters)?;
                let identity = view.format.identity.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let identity = identity.ok_or_else(|| {
                    ViewError::NotFound("this node signs no reports: [icing] names no `identity`".to_owned())
                })?;
                query.answer(&view.threads, &identity).await
            })
            .page("links", |view: RouterView<Icing>, _| async move {
                let (handle, section) = view.format.found()?;
                let (links, _) = link_status(&view.threads).await.ok_or(ViewError::Unavailable)?;
                let mut rows = links::rows(&links, |node| handle.describe(node));
                let peers = handle.link_peers(&section);
                links::add_adverts(&mut rows, &peers, |endpoint| handle.resolution(endpoint));
                Ok(json!({ "version": 1, "links": rows, "missing": links::missing(&peers), "mark": null }))
            })
            .order("links/ask", |view: RouterView<Icing>| async move {
                let asked = view.threads.query(0, |worker| {
                    let now = worker.clock.now();
                    if let Some(links) = worker.format.links.as_mut().and_then(LinkThread::links_mut) {
                        links.ask_endpoints(now);
                    }
                });
                asked.await;
                Ok(json!({ "version": 1 }))
            })
            .page("overlay", |view: RouterView<Icing>, _| async move {
                let (handle, _) = view.format.found()?;
                Ok(crate::output::versioned(handle.status().await?))
            })
            .page("neighbours", |view: RouterView<Icing>, _| async move {
                let (handle, section) = view.format.found()?;
                Ok(json!({ "version": 1, "neighbours": overlay::describe(&handle, &section) }))
            })
            .page("members", |view: RouterView<Icing>, _| async move { view.format.found()?.0.members().await })
            .page("paths", |view: RouterView<Icing>, parameters| async move {
                overlay::paths(&view.format.found()?.0, &parameters).await
            })
    }
}
