//! Platypus: packets by IP as they are, or in UDP over links; where they go follows from their outer header.

pub mod foreign;
pub mod provider;
mod rates;
pub mod revocations;
mod stamper;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, PoisonError};

use serde_json::{Map, Value, json};
use toml::Spanned;
use tracing::error;
use wayleave_control::capability::{RefusalReason, SharedRate};
use wayleave_core::{Afi, Instant, Now, Prefix, UnixTime};
use wayleave_crypto::lanes::CpuKernel;
use wayleave_crypto::secret::Key128;
use wayleave_dataplane::frame::Ingress;
use wayleave_dataplane::platypus::account::{Accounts, ChargeLine};
use wayleave_dataplane::platypus::outer::{destination, is_icmp_error};
use wayleave_dataplane::platypus::{Action, Config, PayerCounters, Reason, ReplayPolicy, Router, account, record};
use wayleave_dataplane::replay::{ClockJumps, ReplayFilter};
use wayleave_packet::platypus::header::Principal;
use wayleave_packet::platypus::header::offsets::{PROTOCOL, UDP_PORT};
use wayleave_packet::platypus::mint::{WaypointKey, WaypointKeys};
use wayleave_packet::platypus::verify::{self, Charge, Link, Policy, Waypoint};
use wayleave_runtime::Clock;
use wayleave_runtime::clock::unix_now;
use wayleave_runtime::packets::MAX_PACKETS;
use wayleave_runtime::packets::steering::Steering;
use wayleave_runtime::store::{Change, FileStore};

use super::batch::Batch;
use super::counters::{AccountTable, FormatCounters, PartitionCounters, PayerCounts, ReplayCounters};
use super::format::{Context, Control, Format};
use super::journal::{Account, Total};
use super::output::OutputQueues;
use super::ports::{AttachedPort, Carrier, PortKind, PortSpec};
use super::settings::{Settings, random};
use super::threads::Threads;
use crate::config::Fault;
use crate::config::router::platypus::{PlatypusSection, RepeatedName};
use crate::config::router::{FormatName, LinkSection};
use crate::failure::{Failure, Outcome};
use crate::roles::Events;
use crate::roles::stamping::{CapabilityEpoch, RouteCapabilities};
use foreign::ForeignReports;
use provider::{Provider, ProviderPlan};
use rates::Rates;
use revocations::{RevocationFile, SharedStatus};
use stamper::{Stamping, StampingPlan};

/// Stamping keys of delegations that a thread keeps.
const DELEGATIONS: usize = 1024;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
/// Reasons that follow from the router's state, and not from the packet alone.
const AFTER_MAC: [Reason; 12] = [
    Reason::Revoked,
    Reason::RevocationsUnknown,
    Reason::Sources,
    Reason::SourcesUnknown,
    Reason::BeforeStart,
    Reason::Replayed,
    Reason::ReplayFull,
    Reason::Rate,
    Reason::AccountsFull,
    Reason::Relayed,
    Reason::Unrelated,
    Reason::RelayLimit,
];
/// Of these what is a matter between a payer and its provider; ICMP errors name nobody who pays.
const OF_PAYERS: [(Reason, RefusalReason); RefusalReason::ALL.len()] = [
    (Reason::Revoked, RefusalReason::Revoked),
    (Reason::RevocationsUnknown, RefusalReason::RevocationsUnknown),
    (Reason::Sources, RefusalReason::Sources),
    (Reason::SourcesUnknown, RefusalReason::SourcesUnknown),
    (Reason::BeforeStart, RefusalReason::BeforeStart),
    (Reason::Replayed, RefusalReason::Replayed),
    (Reason::ReplayFull, RefusalReason::ReplayFull),
    (Reason::Rate, RefusalReason::Rate),
    (Reason::AccountsFull, RefusalReason::AccountsFull),
];
const _: () = assert!(AFTER_MAC.len() + verify::Reason::ALL.len() == Reason::COUNT, "a reason is shown nowhere");

/// All reasons for which a packet is not forwarded.
pub fn reasons() -> impl Iterator<Item = Reason> {
    verify::Reason::ALL.into_iter().map(Reason::Packet).chain(AFTER_MAC)
}

/// What a thread refused to each principal that it tells apart, by reason.
fn refused(router: &Router) -> Vec<(Principal, RefusalReason, u64)> {
    let of = |(principal, counters): (Option<Principal>, &PayerCounters)| {
        let counts = OF_PAYERS.map(|(reason, told)| (told, counters.refused(reason)));
        let told = counts.into_iter().filter(|(_, packets)| *packets > 0);
        principal
            .into_iter()
            .flat_map(move |principal| told.clone().map(move |(reason, packets)| (principal, reason, packets)))
    };
    router.payers().flat_map(of).collect()
}

/// One thread's router.
pub struct Platypus {
    router: Router,
    /// The other ends of links.
    remotes: Vec<SocketAddr>,
    /// What lies behind them, the longest prefix first.
    routes: Vec<(Prefix, usize)>,
    /// The ports of the links, and those that send by IPv4 and IPv6.
    links: Vec<usize>,
    ip: [Option<usize>; 2],
    stamping: Option<Stamping>,
    /// For each packet of the burst that goes out as data, where it was counted.
    charged: Box<[ChargeLine]>,
}

/// What threads forward by.
#[derive(Clone)]
pub struct Plan {
    waypoints: Vec<Waypoint>,
    ordinary: Vec<Prefix>,
    rates: Rates,
    stamping: Option<StampingPlan>,
    remotes: Vec<SocketAddr>,
    routes: Vec<(Prefix, usize)>,
}

/// Where a packet goes.
#[derive(Clone, Copy)]
enum NextHop {
    /// Over this link.
    Link(usize),
    /// By this port, to this address.
    Ip(usize, IpAddr),
}

fn section(settings: &Settings) -> Result<&PlatypusSection, Failure> {
    let section = settings.file.platypus.as_ref().map(Spanned::get_ref);
    section.ok_or_else(|| Failure::new("no section [platypus]"))
}

fn plain(networks: &[Spanned<Prefix>]) -> Vec<Prefix> {
    networks.iter().map(|network| *network.get_ref()).collect()
}

/// What the configuration names behind a link. Whose packets are stamped may send.
fn behind(link: &LinkSection) -> Link {
    let (own, peers) = (plain(&link.own_waypoints), plain(&link.peer_waypoints));
    let stamped = (!link.stamp.is_empty() && !peers.is_empty()).then(Vec::new);
    let sources = link.sources.clone().or(stamped).map(|mut sources| {
        sources.extend(&link.stamp);
        sources
    });
    Link { own, peers, sources }
}

/// The waypoints with their live keys.
fn waypoints(settings: &Settings, section: &PlatypusSection) -> Vec<Waypoint> {
    let addresses = || section.waypoints.get_ref().iter().map(|address| address.0);
    let own = addresses().filter_map(|address| Prefix::truncated(address, afi(address).bits()).ok());
    let policy = Policy {
        narrow: section.narrow,
        freshness: u32::try_from(*section.freshness_secs.get_ref()).unwrap_or(u32::MAX),
        check_source: true,
        own: own.chain(plain(&section.own_waypoints)).collect(),
        peers: plain(&section.peer_waypoints),
        links: settings.file.link.iter().map(|link| behind(link.get_ref())).collect(),
        refused: section.refused.clone(),
        waypoints: section.allowed_waypoints.iter().map(|address| address.0).collect(),
        sources: section.allowed_sources.clone(),
        customers: section.customers(&settings.file),
    };
    let live = settings.live_keys(PlatypusControl::KEYS_AHEAD);
    let key = |octets: &[u8; 16]| WaypointKey::new(&Key128::new(*octets));
    let mut keys = WaypointKeys::new(key(&live[0].1));
    for (from, octets) in &live[1..] {
        // The file's keys are in order, and only the first counts from the beginning.
        let _ = keys.rotate(key(octets), *from);
    }
    addresses().map(|address| Waypoint::new(address, keys.clone(), policy.clone())).collect()
}

fn afi(address: IpAddr) -> Afi {
    if address.is_ipv4() { Afi::Ipv4 } else { Afi::Ipv6 }
}

/// The number of the link at this index as a packet's ingress; zero is no link's, and names no waypoint.
fn link_number(index: usize) -> u16 {
    u16::try_from(index + 1).unwrap_or(0)
}

/// The configuration of one thread's router.
fn config(
    settings: &Settings,
    section: &PlatypusSection,
    waypoints: Vec<Waypoint>,
    replay: ReplayFilter,
) -> Outcome<Config> {
    Ok(Config {
        repeated: match section.repeated {
            RepeatedName::Pass => ReplayPolicy::Pass,
            RepeatedName::CountOnce => ReplayPolicy::CountOnce,
            RepeatedName::Drop => ReplayPolicy::Drop,
        },
        waypoints,
        replay,
        need_revocations: section.revocations.as_ref().is_some_and(|list| list.get_ref().required),
        answers_per_second: settings.share(*section.answers_per_second.get_ref()),
        accounts: usize::try_from(*section.accounts.get_ref()).unwrap_or(usize::MAX),
        account_seed: u64::from_be_bytes(random()?),
        delegations: DELEGATIONS,
    })
}

/// The replay filter; a minimal one, which is not used, where repeated packets pass.
fn replay(section: &PlatypusSection, started: UnixTime) -> Outcome<ReplayFilter> {
    let capacity = if section.repeated == RepeatedName::Pass { 1 } else { *section.replay_capacity.get_ref() };
    Ok(ReplayFilter::new(&Key128::new(random()?), usize::try_from(capacity).unwrap_or(usize::MAX), started))
}

impl Platypus {
    fn replay_counters(&self, filter: &ReplayFilter, now: Now) -> ReplayCounters {
        let payer = |payer: account::Payer| json!({ "principal": payer.principal.number(), "delegation": payer.delegation.map(|id| id.number()) });
        let partition = |(state, taken): (account::PayerState, u64)| PartitionCounters {
            payer: state.payer.map_or(Value::Null, payer),
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

    fn payer_counts(&self, now: Instant) -> BTreeMap<Option<u32>, PayerCounts> {
        let of = |(principal, counters): (Option<Principal>, &PayerCounters)| {
            let refused = AFTER_MAC.iter().map(|reason| (reason.name(), counters.refused(*reason))).collect();
            let counts = PayerCounts { credited: counters.credited, refused, rate: None };
            (principal.map(Principal::number), counts)
        };
        let mut counts: BTreeMap<Option<u32>, PayerCounts> = self.router.payers().map(of).collect();
        for state in self.router.account_table().payers(now) {
            if let Some(payer) = state.payer.filter(|payer| payer.delegation.is_none()) {
                counts.entry(Some(payer.principal.number())).or_default().rate = Some(state.rate);
            }
        }
        counts
    }

    fn account_table(&self) -> Option<AccountTable> {
        let table = self.router.account_table();
        let (open, most) = table.open();
        (most > 0).then(|| AccountTable { open, most, octets: table.memory(), folded: table.folded() })
    }

    fn take_over(&mut self, plan: Plan, ports: &[AttachedPort], now: Instant) {
        plan.rates.set(self.router.accounts(), now);
        self.router.set_ordinary(plan.ordinary);
        if let (Some(stamping), Some(plan)) = (&mut self.stamping, &plan.stamping) {
            stamping.reload(plan);
        }
        self.ip = [None; 2];
        (self.remotes, self.routes) = (plan.remotes, plan.routes);
        self.links = vec![0; self.remotes.len()];
        self.router.set_places(1 + self.remotes.len());
        for (number, attached) in ports.iter().enumerate().filter(|(_, attached)| !attached.is_control) {
            match attached.kind {
                PortKind::Link(link) => self.links[link] = number,
                PortKind::Ip(of) => self.ip[usize::from(of == Afi::Ipv6)] = Some(number),
                _ => {}
            }
        }
    }

    /// Takes out of the batch what the router does not process: ICMP messages that are no errors, and packets for others
    /// that are stamped here.
    fn sort_out(&mut self, batch: &mut Batch<'_>, out: &mut OutputQueues) {
        let Self { router, stamping, .. } = self;
        match batch.kind {
            PortKind::Icmp => batch.retain(|octets, _| is_icmp_error(octets)),
            PortKind::Link(link) => {
                let Some(stamping) = stamping.as_mut().filter(|stamping| stamping.is_for(link)) else { return };
                batch.retain(|octets, from| {
                    let is_for_us = router.is_waypoint(destination(octets));
                    if !is_for_us && !stamping.take(link, octets, *from, &mut out.grown) {
                        out.counters.unsent += 1;
                    }
                    is_for_us
                });
            }
            _ => {}
        }
    }

    /// Stamps the packets of the batch that were for others, and sends them on.
    fn stamp(&mut self, now: Now, out: &mut OutputQueues) {
        let Some(stamping) = self.stamping.as_mut().filter(|_| !out.grown.is_empty()) else { return };
        stamping.stamp(&mut out.grown, now);
        for packet in 0..out.grown.len() {
            let next = self.next_hop(destination(out.grown.octets(packet))).map(|next| match next {
                NextHop::Link(link) => (self.links[link], self.remotes[link]),
                NextHop::Ip(port, address) => (port, SocketAddr::new(address, 0)),
            });
            match next {
                // Not back to where it came from: two stampers would send it to each other until its end.
                Some((port, to)) if to != out.grown.from(packet) => out.grown_data(port, packet, to),
                _ => out.counters.unreachable += 1,
            }
        }
    }

    /// Where a packet to this outer destination goes.
    fn next_hop(&self, destination: Option<IpAddr>) -> Option<NextHop> {
        let destination = destination?;
        let host = Prefix::truncated(destination, afi(destination).bits()).ok()?;
        let is_behind = |prefix: &Prefix| prefix.afi() == host.afi() && prefix.contains(&host);
        match self.routes.iter().find(|(prefix, _)| is_behind(prefix)) {
            Some((_, link)) => Some(NextHop::Link(*link)),
            None => self.ip[usize::from(destination.is_ipv6())].map(|port| NextHop::Ip(port, destination)),
        }
    }
}

impl Format for Platypus {
    type Plan = Plan;
    type Account = Charge;
    type Control = PlatypusControl;

    fn open(
        control: &mut PlatypusControl,
        settings: &Settings,
        thread: usize,
        ports: &[AttachedPort],
        accounts: Vec<(Charge, Total)>,
    ) -> Outcome<Self> {
        let (section, plan) = (section(settings)?, control.plan(settings)?);
        let replay = match &control.replay {
            Some(replay) => replay.share(),
            None => control.replay.insert(replay(section, settings.started)?).share(),
        };
        let mut config = config(settings, section, plan.waypoints.clone(), replay)?;
        if config.accounts > 0 {
            config.accounts = Accounts::capacity(config.accounts, accounts.len());
        }
        let number = u32::try_from(thread).unwrap_or(u32::MAX);
        let stamping = plan.stamping.as_ref().map(|plan| Stamping::new(plan, number)).transpose()?;
        let router = Router::new(config, CpuKernel::best());
        let (remotes, routes, links) = (Vec::new(), Vec::new(), Vec::new());
        let charged = vec![ChargeLine::default(); MAX_PACKETS].into_boxed_slice();
        let mut platypus = Self { router, remotes, routes, links, ip: [None; 2], stamping, charged };
        // Every bucket is full whenever it begins.
        platypus.take_over(plan, ports, Instant(0));
        platypus.router.accounts().restore(accounts);
        Ok(platypus)
    }

    fn reload(&mut self, plan: Plan, ports: &[AttachedPort], now: Now) -> Result<(), Failure> {
        self.router.set_waypoints(plan.waypoints.clone());
        self.take_over(plan, ports, now.instant);
        Ok(())
    }

    #[inline]
    fn classify(&self, port: PortKind, from: &SocketAddr) -> Option<Ingress> {
        match port {
            PortKind::Link(number) if self.remotes[number] != *from => None,
            // Links have parts of their own in the limit of answers, and waypoints behind them.
            PortKind::Link(number) => Some(Ingress::External(link_number(number))),
            _ => Some(Ingress::Internal),
        }
    }

    fn process(&mut self, batch: &mut Batch<'_>, now: Now, out: &mut OutputQueues) {
        self.sort_out(batch, out);
        let actions = self.router.process(batch.frames(), now);
        // Packets in a row often go to one destination.
        let mut last = None;
        for (index, ((packet, frame, _), action)) in batch.packets().zip(actions).enumerate() {
            if let Action::Drop(_) = action {
                continue;
            }
            let destination = destination(frame.octets);
            let next = match last {
                Some((same, next)) if same == destination => next,
                _ => self.next_hop(destination),
            };
            last = Some((destination, next));
            let Some(next) = next else {
                out.counters.unreachable += 1;
                if action == Action::Route {
                    self.router.credit(self.router.charged(index));
                }
                continue;
            };
            let direct;
            let (port, to) = match next {
                NextHop::Link(link) => (self.links[link], &self.remotes[link]),
                NextHop::Ip(port, address) => {
                    direct = SocketAddr::new(address, 0);
                    (port, &direct)
                }
            };
            // Nobody is charged for an answer.
            self.charged[packet] = self.router.charged(index);
            match action {
                Action::Answer(_) => out.urgent(port, packet, *to),
                _ => out.data(port, packet, to),
            }
        }
        self.stamp(now, out);
    }

    #[cold]
    fn unsent(&mut self, packet: usize) {
        self.router.credit(std::mem::take(&mut self.charged[packet]));
    }

    fn journal(&mut self) -> Vec<(Charge, Total)> {
        self.router.accounts().journal()
    }

    fn close(&mut self, account: &Charge) -> bool {
        self.router.accounts().close(account)
    }

    fn counters(&self, now: Now) -> FormatCounters {
        let of = self.router.counters();
        let mut counters = FormatCounters {
            decided: [
                ("forwarded", of.forwarded),
                ("decapsulated", of.decapsulated),
                ("answered", of.answered),
                ("unanswered", of.unanswered),
            ]
            .into(),
            reasons: reasons().map(|reason| (reason.name(), of.of(reason))).collect(),
            replay: self.router.replay().map(|filter| self.replay_counters(filter, now)),
            accounts: self.account_table(),
            payers: self.payer_counts(now.instant),
            ..FormatCounters::default()
        };
        if let Some(stamping) = &self.stamping {
            (counters.stamped, counters.unstamped) = stamping.counters();
        }
        counters
    }

    fn observe(&self, now: Now) -> ClockJumps {
        self.router.observe(now)
    }

    fn accepts_from(&self) -> Option<u64> {
        self.router.replay().map(ReplayFilter::accepts_from)
    }
}

/// A principal, its delegation, a key epoch.
impl Account for Charge {
    fn key(&self) -> Vec<u8> {
        record::encode(self).to_vec()
    }

    fn from_key(key: &[u8]) -> Option<Self> {
        record::decode(key)
    }

    fn is_over(&self, now: UnixTime) -> bool {
        record::is_over(self, now)
    }

    fn json(&self) -> Value {
        json!({
            "principal": self.principal.number(),
            "delegation": self.delegation.map(|(id, _)| id.number()),
            "sub_delegation": self.delegation.and_then(|(_, sub)| sub).map(|id| id.number()),
            "epoch": self.epoch,
        })
    }

    fn principal(&self) -> Option<u32> {
        Some(self.principal.number())
    }
}

/// The list of revocations, the capabilities to stamp with, and the filter that threads share.
pub struct PlatypusControl {
    revocations: RevocationFile,
    /// Waypoints that are refused.
    foreign: ForeignReports,
    capabilities: Option<RouteCapabilities>,
    /// The key epochs of the capabilities that the threads have.
    stamped: Vec<Option<CapabilityEpoch>>,
    /// Made when the first thread opens.
    replay: Option<ReplayFilter>,
    /// How to reach the provider's key server, and the link to it.
    provider_plan: Option<ProviderPlan>,
    provider: Option<Provider>,
    /// How often the threads have been told other rates by it.
    told: u64,
}

/// What the status pages read.
#[derive(Clone)]
pub struct PlatypusView {
    list: SharedStatus,
    provider: Option<provider::SharedState>,
}

impl PlatypusControl {
    /// Packets a turn of the filter that there is, or that will be made.
    fn capacity(&self, section: &PlatypusSection) -> usize {
        let configured = || usize::try_from(*section.replay_capacity.get_ref()).unwrap_or(usize::MAX);
        self.replay.as_ref().map_or_else(configured, ReplayFilter::capacity)
    }

    /// The section's rates and those that the key server told, for so many threads.
    fn rates(&self, section: &PlatypusSection, told: &[(SharedRate, u64)], threads: u64) -> Rates {
        Rates::new(&section.with_shared(told), threads, self.capacity(section))
    }

    /// Says what is too small for the rates that the key server told.
    fn note_room(&self, settings: &Settings) {
        let (Some(provider), Ok(section)) = (&self.provider, section(settings)) else { return };
        let told = provider.rates().0;
        let shortages = || section.with_shared(&told).shortages(*settings.file.forwarding.workers.get_ref());
        let shortage = if told.is_empty() { None } else { shortages().into_iter().next() };
        let said = |fault: Fault| {
            let help = fault.help.unwrap_or_default();
            format!("with the rates that the key server told, {}; {help}", fault.message)
        };
        provider.note_room(shortage.map(said));
    }

    /// Notes the epochs that threads stamp with, and logs which capabilities end.
    fn note_stamped(&mut self) {
        let now = unix_now();
        self.stamped = self.capabilities.as_ref().map_or(Vec::new(), |capabilities| {
            capabilities.warn(now);
            capabilities.epochs(now)
        });
    }
}

impl Control<Platypus> for PlatypusControl {
    const NAME: FormatName = FormatName::Platypus;
    const KEYS_AHEAD: u64 = 86_400;
    const LIVE: &'static [&'static str] = &[
        "forwarding.keys",
        "link",
        "platypus.waypoints",
        "platypus.narrow",
        "platypus.freshness_secs",
        "platypus.own_waypoints",
        "platypus.peer_waypoints",
        "platypus.refused",
        "platypus.allowed_waypoints",
        "platypus.allowed_sources",
        "platypus.decapsulate",
        "platypus.customers",
        "platypus.rates",
        "platypus.revocations.file",
        "platypus.revocations.key",
        "stamper.routes",
        "stamper.rules",
    ];
    type View = PlatypusView;

    fn load(settings: &Settings, store: Option<&Arc<FileStore>>) -> Outcome<Self> {
        Ok(Self {
            revocations: RevocationFile::new(settings, store)?,
            foreign: ForeignReports::default(),
            capabilities: stamper::load(settings)?,
            stamped: Vec::new(),
            replay: None,
            provider_plan: provider::plan(settings, section(settings)?, store)?,
            provider: None,
            told: 0,
        })
    }

    async fn begin(&mut self, _: &Settings, _: Clock, _: &Events) -> Outcome {
        self.provider = self.provider_plan.as_ref().map(Provider::new).transpose()?;
        Ok(())
    }

    async fn failed(&mut self) -> Failure {
        match &mut self.provider {
            Some(provider) => provider.failed().await,
            None => std::future::pending().await,
        }
    }

    async fn end(self) {
        if let Some(provider) = self.provider {
            provider.end().await;
        }
    }

    fn counted(&mut self, totals: Vec<(Charge, Total)>, complete: Option<UnixTime>) {
        if let Some(provider) = &self.provider {
            provider.durable(totals, complete);
        }
    }

    fn forget(&mut self, accounts: Vec<Charge>, remove: impl FnOnce(&[Charge], Vec<Change>) -> bool) -> usize {
        self.provider.as_ref().map_or(0, |provider| provider.forget(accounts, remove))
    }

    fn ports(settings: &Settings) -> Vec<PortSpec> {
        let mut all = Vec::new();
        for address in section(settings).iter().flat_map(|section| section.waypoints.get_ref()).map(|text| text.0) {
            let (kind, icmp) = (PortKind::Ip(afi(address)), if address.is_ipv4() { ICMP } else { ICMPV6 });
            all.push(PortSpec::datagrams(kind, address, UDP_PORT, format!("waypoint {address} by UDP")));
            all.push(PortSpec::ip(kind, address, PROTOCOL, format!("waypoint {address}")));
            all.push(PortSpec::ip(PortKind::Icmp, address, icmp, format!("errors for waypoint {address}")));
        }
        for (number, section) in settings.file.link.iter().map(Spanned::get_ref).enumerate() {
            let ends = [section.local.get_ref().0, section.remote.get_ref().0];
            let carrier = Carrier {
                backend: *section.backend.get_ref(),
                device: section.device.as_ref(),
                queue: section.queue,
                gateway: section.gateway.as_ref().map(|gateway| gateway.0),
            };
            let name = format!("link {}", ends[0]);
            all.push(PortSpec::neighbor(PortKind::Link(number), ends, &carrier, Steering::Ip, name));
        }
        all
    }

    fn plan(&self, settings: &Settings) -> Result<Plan, Failure> {
        let section = section(settings)?;
        let told = self.provider.as_ref().map_or(Vec::new(), Provider::planned);
        let links = || settings.file.link.iter().map(Spanned::get_ref).enumerate();
        let routes = |(number, link): (usize, &'_ LinkSection)| {
            link.routes.iter().map(|prefix| (*prefix, number)).collect::<Vec<_>>()
        };
        let mut routes: Vec<(Prefix, usize)> = links().flat_map(routes).collect();
        routes.sort_by_key(|(prefix, _)| Reverse(prefix.len()));
        Ok(Plan {
            waypoints: waypoints(settings, section),
            ordinary: section.decapsulate.clone(),
            rates: self.rates(section, &told, *settings.file.forwarding.workers.get_ref()),
            stamping: self.capabilities.as_ref().map(|files| StampingPlan::new(&settings.file, files, unix_now())),
            remotes: links().map(|(_, link)| link.remote.get_ref().0).collect(),
            routes,
        })
    }

    fn start(&mut self, context: Context<'_, Platypus>) {
        self.note_stamped();
        self.note_room(context.settings);
        let (Some(plan), Some(provider)) = (&self.provider_plan, &mut self.provider) else { return };
        let started = provider.start(plan, context.threads.clone(), context.clock, context.log.clone());
        if let Err(failures) = started {
            failures.0.iter().for_each(|failure| error!("{failure}; usage is not reported"));
        }
    }

    fn check_reload(&self, next: &Self) -> Result<(), Failure> {
        if next.capabilities.is_some() == self.capabilities.is_some() {
            return Ok(());
        }
        Err(Failure::new("[stamper] was added or removed: that needs a restart"))
    }

    fn reload(&mut self, next: Self) {
        self.revocations.watch(next.revocations);
        self.capabilities = next.capabilities;
    }

    async fn planned(&mut self, settings: &Settings) {
        self.note_stamped();
        self.note_room(settings);
        if let Some(provider) = &self.provider {
            provider.applied();
        }
    }

    fn is_stale(&mut self, now: UnixTime) -> bool {
        let told = self.provider.as_ref().map_or(0, |provider| provider.rates().1);
        let is_told = std::mem::replace(&mut self.told, told) == told;
        !is_told || self.capabilities.as_ref().is_some_and(|capabilities| capabilities.epochs(now) != self.stamped)
    }

    async fn maintain(&mut self, settings: &Settings, threads: &Threads<Platypus>, log: &Events) {
        self.revocations.check(threads, log).await;
        self.revocations.announce(std::time::Instant::now());
        self.foreign.report(&settings.file.link, threads, log).await;
        match section(settings) {
            Ok(section) => {
                let told = self.provider.as_ref().map_or(Vec::new(), |provider| provider.rates().0);
                self.rates(section, &told, threads.count() as u64).divide(threads).await;
            }
            Err(failure) => error!("rates stay divided among the threads as before: {failure}"),
        }
    }

    fn view(&self) -> PlatypusView {
        PlatypusView { list: self.revocations.status(), provider: self.provider.as_ref().map(Provider::state) }
    }

    fn readiness(view: &PlatypusView) -> Result<(), String> {
        let list = view.list.lock().unwrap_or_else(PoisonError::into_inner);
        list.why_nothing_passes().map_or(Ok(()), Err)
    }

    fn status(view: &PlatypusView, members: &mut Map<String, Value>) {
        members.insert("provider".to_owned(), view.provider.as_ref().map_or(Value::Null, provider::status));
        let list = view.list.lock().unwrap_or_else(PoisonError::into_inner);
        members.insert("revocations".to_owned(), list.json());
        members.insert("problems".to_owned(), json!(Vec::from_iter(list.why_nothing_passes())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_customer_is_told_of_a_refusal_by_the_name_that_metrics_have() {
        for (reason, told) in OF_PAYERS {
            assert_eq!(reason.name(), told.name());
        }
        let is_told = |reason: &&Reason| OF_PAYERS.iter().any(|(of, _)| of == *reason);
        let others: Vec<&str> =
            AFTER_MAC.iter().filter(|reason| !is_told(reason)).map(|reason| reason.name()).collect();
        assert_eq!(others, ["relayed", "unrelated", "relay-limit"]);
        assert!(RefusalReason::ALL.iter().all(|told| OF_PAYERS.iter().any(|(_, of)| of == told)));
    }

    #[test]
    fn a_router_without_waypoints_filters_repeated_packets_for_those_that_a_reload_brings() {
        let section: PlatypusSection = toml::from_str("waypoints = []\n").expect("a section");
        assert_eq!(section.repeated, RepeatedName::Drop);
        assert!(replay(&section, UnixTime(0)).expect("random octets").memory() > 1 << 20);
    }
}
