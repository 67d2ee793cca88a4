//! `run gateway`: a TUN interface or a proxy on one side, neighbours by UDP on the other, and names for members of the realm.
//!
//! A thread forwards (`worker`); the rest of the process asks servers for it (`source`), keeps names (`names`) and routes, and
//! shows what happens (`views`).

mod dns;
mod host_filter;
mod host_routes;
mod inner_side;
mod names;
pub(super) mod proxy;
pub(super) mod resolver;
mod source;
mod views;
mod worker;

use std::collections::{BTreeSet, HashMap};
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tracing::{info, warn};
use wayleave_control::consent::{Policy, Question, Subject};
use wayleave_control::labels::Labels;
use wayleave_control::node::Realm;
use wayleave_control::realm::Roles;
use wayleave_core::{Afi, IdentityKey, InnerTraffic, Now, Prefix};
use wayleave_crypto::lanes::CpuKernel;
use wayleave_dataplane::gateway::internet::is_wide;
use wayleave_dataplane::gateway::{
    Choices, Config, Event as Happened, Gateway, Internet, Member, Name, PathPolicy, Reload,
};
use wayleave_dataplane::icing;
use wayleave_dataplane::link::Links;
use wayleave_runtime::Clock;
use wayleave_runtime::clock::unix_now;
use wayleave_runtime::inherited;
use wayleave_runtime::packets::stack::{self, StackPort};
use wayleave_runtime::packets::tun::Tun;
use wayleave_runtime::resolved::LinkNames;
use wayleave_runtime::routes::{MAIN, Routes, mark_connections};
use wayleave_runtime::store::{Change, FileStore, Store as _, StoreError};

use super::daemon::{Daemon, Role, seed};
use super::events::{EventLine, Events, event};
use super::link_threads::{self, LinkThread};
use super::links;
use super::overlay::refused_consents::RefusedConsents;
use super::overlay::{self, Overlay, OwnIds};
use crate::config::choices::{ChoicesFile, PinSection};
use crate::config::consent::load_policy;
use crate::config::gateway::{GatewayFile, GatewaySection, NO_DEFAULT_ROUTE, PolicySection};
use crate::config::links::{LinkPeer, LinkSocket};
use crate::config::overlay::{NodeRef, OverlaySection, Settings};
use crate::config::receiving::{self, Known};
use crate::config::rs::{StatusSection, examples_left};
use crate::config::{Source, Text};
use crate::failure::{Failure, Outcome};
use host_filter::{HostFilter, HostRules};
use host_routes::HostRoutes;
use inner_side::InnerSide;
use names::{Blocks, Directory, Names, Register};
use proxy::Proxy;
use resolver::Resolver;
use source::{LabFile, Servers};
use views::GatewayView;
use worker::{ASKS, Ask, Ends, FLOWS, Handle, Part, Running, SocketPart};

/// Paths and keys of nodes that each thread keeps, at least.
const LEAST_KEPT: usize = 1_024;
/// Questions to servers that are under way at a time.
const MOST_QUESTIONS: usize = 256;
/// The MTU that others are told rises at most this often.
const MTU_RISES: Duration = Duration::from_secs(60);
/// How often the file of what the user decides is looked at.
const LOOK: Duration = Duration::from_millis(300);
/// An exit looks whether its filter is there once in so many looks at that file.
const LOOKS: u32 = 7;
/// And after a failure once in so many times as many.
const FAILED_LOOKS: u32 = 15;
/// A name that no member has is logged once it has had none for so long: at a start and a join members come one after the other.
const UNRESOLVED: Duration = Duration::from_secs(5);

/// What all parts of the role share.
pub struct Shared {
    pub own: IdentityKey,
    pub suffix: String,
    /// The TUN interface; none with a proxy.
    pub interface: Option<String>,
    pub proxy: Option<Arc<Proxy>>,
    pub known: RwLock<Arc<Known>>,
    /// Names of policies, the default one first.
    pub policies: RwLock<Vec<String>>,
    /// What policies and choices name that no known member is called.
    pub unresolved: RwLock<Arc<Vec<Unresolved>>>,
    /// Within which prefixes members' prefixes are routed, and those that are not: nobody accepts them here.
    pub accepted: RwLock<Vec<Prefix>>,
    pub unaccepted: RwLock<BTreeSet<Prefix>>,
    /// What each member may begin to send here; everything without it.
    pub admitted: RwLock<Option<Arc<Admitted>>>,
    /// Why the machine's packet filter is not as it should be.
    pub filter_faults: RwLock<Vec<String>>,
    /// How systemd-resolved stands to the names; none where it is not to be told.
    pub resolver: Option<Arc<RwLock<resolver::State>>>,
    pub names: Register<FileStore>,
    pub blocks: Blocks,
    /// The file of what the user decides, what it says, and what is wrong with it.
    pub choices_file: PathBuf,
    pub choices: RwLock<(Arc<ChoicesFile>, Option<String>)>,
    /// The first of the threads that forward, which speaks with neighbours, and all of them.
    pub worker: Handle,
    pub workers: Vec<Handle>,
    /// The node's part in the realm; none in the laboratory.
    pub node: Option<overlay::Handle>,
    /// The other ends of the node's links, as they were applied last.
    pub link_peers: RwLock<Arc<Vec<LinkPeer>>>,
    /// The mark of the gateway's own packets; none with a proxy.
    pub mark: Option<u32>,
    /// How many packets were refused for their consent of late.
    pub refused_consents: Mutex<RefusedConsents>,
}

impl Shared {
    pub fn known(&self) -> Arc<Known> {
        Arc::clone(&self.known.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn policies(&self) -> Vec<String> {
        self.policies.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn unresolved(&self) -> Arc<Vec<Unresolved>> {
        Arc::clone(&self.unresolved.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn refused_consents(&self) -> MutexGuard<'_, RefusedConsents> {
        self.refused_consents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn filter_faults(&self) -> Vec<String> {
        self.filter_faults.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How systemd-resolved stands to the names.
    pub fn resolver(&self) -> Option<resolver::State> {
        self.resolver.as_ref().map(|state| state.read().unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// What the user has decided, and what is wrong with the file that says it.
    pub fn choices(&self) -> (Arc<ChoicesFile>, Option<String>) {
        self.choices.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sends what all addresses of names stand for. It is sent under the lock: what is given meanwhile is told after it, and not taken back by it.
    fn publish_names(&self, send: impl FnOnce(Vec<(IpAddr, Name)>)) {
        let names = self.names.names();
        let policies = self.policies();
        let known = self.known();
        let gateways: BTreeSet<IdentityKey> = known.members.iter().map(|member| member.identity).collect();
        let is_known =
            |policy: &str, node: &IdentityKey| policies.iter().any(|name| name == policy) && gateways.contains(node);
        let of = |(policy, node, number): (&str, IdentityKey, u32)| {
            self.blocks.addresses(number).map(|address| (address, names::name(policy, node)))
        };
        send(names.given().filter(|(policy, node, _)| is_known(policy, node)).flat_map(of).collect());
        drop(names);
    }
}

impl Directory for Shared {
    fn suffix(&self) -> &str {
        &self.suffix
    }

    async fn look_up(&self, policy: Option<&str>, node: &str) -> Option<Result<Vec<IpAddr>, ()>> {
        let mut policies = self.policies().into_iter();
        let policy = policies.find(|name| policy.is_none_or(|policy| name.eq_ignore_ascii_case(policy)))?;
        let known = self.known();
        let identity = known.gateway_of(node).filter(|identity| *identity != self.own)?;
        let Some((number, is_new)) = self.names.reserve(&policy, identity) else { return Some(Err(())) };
        let was_saved = self.names.is_saved(number);
        if is_new {
            // Whoever asked has its addresses once it is durable.
            let pair = self.blocks.addresses(number).map(|address| (address, names::name(&policy, identity)));
            self.worker.send(move |worker| worker.gateway.add_names(pair));
        }
        if !self.names.is_durable(number).await {
            return Some(Err(()));
        }
        // What forwards has taken it by then, however late it gets a processor: the first packet to an address that it does not know would be
        // answered as one to nobody.
        if !was_saved && self.worker.ask(|_| ()).await.is_none() {
            return Some(Err(()));
        }
        let addresses = self.blocks.addresses(number);
        Some(Ok(names::usable(addresses, &known.prefixes, [&self.own, &identity])))
    }

    fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    fn name_of(&self, address: IpAddr) -> Option<String> {
        let (known, policies) = (self.known(), self.policies());
        let number = self.blocks.number_of(address).filter(|number| self.names.is_saved(*number))?;
        let names = self.names.names();
        let (policy, node, _) = names.given().find(|(_, _, given)| *given == number)?;
        if !policies.iter().any(|name| name == policy) || !known.is_gateway(&node) {
            return None;
        }
        let (node, _) = known.names.iter().find(|(_, identity)| **identity == node)?;
        Some(format!("{policy}.{node}.{}.", self.suffix.trim_end_matches('.')))
    }
}

/// A running gateway.
pub struct GatewayRole {
    shared: Arc<Shared>,
    running: Vec<Running>,
    control: Control,
    servers: Servers,
    asks: mpsc::Receiver<Ask>,
    questions: Arc<tokio::sync::Semaphore>,
    policies: Vec<PolicySection>,
    resolved: Vec<PathPolicy>,
    /// None with a proxy.
    host: Option<HostRoutes>,
    /// The machine's packet filter; none with a proxy.
    filter: Option<HostFilter>,
    /// Whether members are to reach the Internet through this machine.
    is_exit: bool,
    internet: Internet,
    /// What members may begin to send here, the realm's key, and the minute of the day for which it was last applied.
    policy: Option<Policy>,
    realm_key: [u8; 32],
    minute: u16,
    /// How often the file of choices was looked at since the filter was.
    look_at_filter: u32,
    /// The mark of the gateway's own packets; none with a proxy.
    mark: Option<u32>,
    /// Within which prefixes members' prefixes are routed, and which ones are not.
    accepted: Vec<Prefix>,
    sockets: Vec<LinkSocket>,
    /// What serves names or applications.
    serving: Vec<JoinHandle<()>>,
    /// What has systemd-resolved ask for names here.
    resolver: Option<Resolver>,
    log: Events,
    /// When to look at the file of choices, and how it was.
    look: tokio::time::Interval,
    looked: Looked,
    /// When to log the names that are not resolved, if they have not changed by then.
    log_unresolved: Option<tokio::time::Instant>,
    /// The same for neighbours that contradict this gateway, which at a start their first advert may.
    log_disagreements: Option<tokio::time::Instant>,
    disagreements: Vec<String>,
    /// What was said of links, and the MTU that others were told.
    watch: links::Watch,
    mtu: Option<u16>,
    mtu_since: Option<tokio::time::Instant>,
}

/// Which inner packets each member may begin to send, all of them if none is listed.
pub type Admitted = HashMap<IdentityKey, Vec<InnerTraffic>>;

/// What each member may begin by the policy, in this minute of the day. What the way was is not known here, and denies.
fn admitted(policy: &Policy, known: &Known, realm: [u8; 32], minute: u16) -> Admitted {
    let mut names: HashMap<IdentityKey, Vec<String>> = HashMap::new();
    for (name, identity) in &known.names {
        names.entry(*identity).or_default().push(name.clone());
    }
    let of = |member: &Member| {
        let identity = member.identity;
        let sender = Subject { identity: Some(identity), names: names.remove(&identity).unwrap_or_default() };
        let nobody = Subject::default();
        let question = Question {
            sender: &sender,
            realm,
            tag: None,
            packets: None,
            minute,
            before: &nobody,
            after: None,
            others: std::slice::from_ref(&nobody),
            labels: &Labels::default(),
        };
        Some((identity, policy.admitted(&question)?.to_vec()))
    };
    known.members.iter().filter_map(of).collect()
}

fn minute_of_day() -> u16 {
    (unix_now().secs() / 60 % 1_440) as u16
}

/// Members' prefixes within what is accepted, and the others.
fn offered(known: &Known, own: &IdentityKey, accepted: &[Prefix]) -> (BTreeSet<Prefix>, BTreeSet<Prefix>) {
    let of_others = known.prefixes.iter().filter(|(_, owner)| *owner != own).map(|(prefix, _)| *prefix);
    of_others.partition(|prefix| accepted.iter().any(|accepted| accepted.contains(prefix)))
}

/// The networks beside the machine.
fn beside() -> BTreeSet<Prefix> {
    let of = |afi: Afi| Routes::open().and_then(|mut routes| routes.beside(afi)).unwrap_or_default();
    let all = [Afi::Ipv4, Afi::Ipv6].into_iter().flat_map(of);
    all.filter(|prefix| prefix.len() > 0).collect()
}

/// The machine's own routes that go before the gateway's: all but default ones.
fn own_routes() -> Vec<Prefix> {
    let of = |afi: Afi| Routes::open().and_then(|mut routes| routes.prefixes(afi, MAIN)).unwrap_or_default();
    let all = [Afi::Ipv4, Afi::Ipv6].into_iter().flat_map(of);
    all.filter(|prefix| prefix.len() > 0 && !is_link_local(prefix)).collect()
}

/// Of which every interface has one.
fn is_link_local(prefix: &Prefix) -> bool {
    matches!(prefix.address(), IpAddr::V6(address) if address.is_unicast_link_local())
}

/// When a file was last written (seconds and nanoseconds), and its length; `None` if there is none.
type Looked = Option<(i64, i64, u64)>;

fn look(path: &Path) -> Looked {
    let data = std::fs::metadata(path).ok()?;
    Some((data.mtime(), data.mtime_nsec(), data.len()))
}

/// What makes the role look again at what is known.
enum Control {
    Overlay {
        overlay: Box<Overlay>,
        settings: Box<Settings>,
        section: Box<OverlaySection>,
        realm: watch::Receiver<Arc<Realm>>,
        ids: watch::Receiver<Arc<OwnIds>>,
        resolutions: watch::Receiver<()>,
    },
    Laboratory,
}

/// What the role waits for.
pub enum Event {
    Ask(Ask),
    Changed,
    Look,
}

impl Role for GatewayRole {
    const NAME: &'static str = "gateway";
    const LIVE: &'static [&'static str] = &[
        "policy",
        "gateway.accept",
        "gateway.exit",
        "gateway.consent_policy",
        "overlay.neighbour",
        "overlay.tags_offered",
        "overlay.mtu",
        "overlay.consent",
    ];
    type Config = GatewayFile;
    type View = GatewayView;
    type Event = Event;

    fn parse(source: &Source) -> Outcome<GatewayFile> {
        GatewayFile::parse(source)
    }

    fn status(config: &GatewayFile) -> Option<&StatusSection> {
        config.status.as_ref()
    }

    async fn start(config: GatewayFile, daemon: &Daemon) -> Outcome<Self> {
        if config.has_examples() {
            return Err(examples_left().into());
        }
        let Daemon { clock, source, events: log, .. } = daemon;
        let section = &config.gateway;
        let table = u32::try_from(*section.table.get_ref()).unwrap_or(u32::MAX); // the configuration was checked
        let proxy = daemon.options.proxy.or(section.proxy.as_ref().map(|proxy| proxy.get_ref().0));
        if let Some(fault) = proxy.and_then(|proxy| section.proxy_fault(proxy)) {
            return Err(Failure::new(format!("--proxy: {fault}")).into());
        }
        let inherited = inherited(proxy)?;
        let mark = proxy.is_none().then_some(table);
        mark.into_iter().for_each(mark_connections);
        let (control, servers, known, noise, own, realm_key, links) = match (&config.overlay, &config.laboratory) {
            (Some(overlay), _) => {
                let settings = overlay.get_ref().load(source)?;
                settings.require(Roles::GATEWAY, "gateway")?;
                let overlay_running = Overlay::start(&settings, *clock, log).await?;
                let handle = overlay_running.handle();
                let (realm, mut ids) = (handle.realm(), handle.ids());
                // The node makes its IDs by itself, at once.
                let _ = ids.wait_for(|ids| !ids.ids.is_empty()).await;
                let ids_now = ids.borrow().clone();
                let ids_now = (&*ids_now.ids, &ids_now.agreed);
                let known = receiving::of_realm(&settings, overlay.get_ref(), &realm.borrow().clone(), ids_now);
                let noise = settings.noise.clone().ok_or_else(|| Failure::new("a gateway needs a static key"))?;
                let seconds = u32::try_from(*section.consent_secs.get_ref()).unwrap_or(u32::MAX);
                let own = settings.own();
                let realm_key = overlay.get_ref().realm().0;
                let links = Some(links::machine(&settings)?);
                let control = Control::Overlay {
                    overlay: Box::new(overlay_running),
                    settings: Box::new(settings),
                    section: Box::new(overlay.get_ref().clone()),
                    realm,
                    ids,
                    resolutions: handle.resolutions(),
                };
                (control, Servers::Overlay(handle, seconds), known, noise, own, realm_key, links)
            }
            (None, Some(laboratory)) => {
                warn!("paths and proofs come from a file: for the laboratory only");
                let file = LabFile::read(&source.resolve(laboratory.file.get_ref()))?;
                let (known, noise, own) = (file.known()?, file.noise()?, file.identity.0);
                let (realm_key, links) = (file.realm()?, file.links()?);
                let servers = Servers::File(Arc::new(RwLock::new(file)));
                (Control::Laboratory, servers, known, noise, own, realm_key, links)
            }
            (None, None) => return Err(Failure::new("no section [overlay]").into()),
        };
        let store = Arc::new(FileStore::open(&source.resolve(section.state.get_ref()))?);
        let blocks = Blocks::of(section);
        let names = Names::load(&store, &blocks)?;
        let mtu = u16::try_from(*section.mtu.get_ref()).unwrap_or(1_500);
        let (inner_sides, host, proxy) = match proxy {
            None => {
                let (queues, host) = open_tun(section, table, mtu)?;
                (queues.into_iter().map(|tun| InnerSide::Tun { tun, scratch: Vec::new() }).collect(), Some(host), None)
            }
            Some(address) => {
                let (port, proxy) = open_proxy(address, inherited, mtu, *clock).await?;
                (vec![InnerSide::Stack { port, scratch: Vec::new() }], None, Some(proxy))
            }
        };
        let choices_file = source.resolve(section.choices.get_ref());
        let looked = look(&choices_file);
        let choices = ChoicesFile::load(&choices_file)?;
        let resolved = resolve(config.policy.iter().map(|policy| policy.get_ref()), &choices, &known);
        let mut receiver = receiving::receiver(&known, clock.now().unix)?;
        // Threads have a part each of the memory for paths, and know those of the others.
        for kept in [&mut receiver.paths, &mut receiver.peers] {
            *kept = (*kept / inner_sides.len()).max(LEAST_KEPT);
        }
        let gateway = Gateway::new(
            Config {
                identity: own,
                realm: realm_key,
                noise,
                receiver: receiver.clone(),
                neighbours: Vec::new(),
                policies: resolved.clone(),
                name_blocks: blocks.all().to_vec(),
                is_process: host.is_none(),
                seed: seed()?,
            },
            CpuKernel::best(),
        );
        let mut gateway = gateway.map_err(|error| Failure::new(format!("the links contradict each other: {error}")))?;
        restore_flows(&mut gateway, &store, clock.now(), host.is_some())?;
        let (to_asks, asks) = mpsc::channel(ASKS);
        let tun = inner_sides.iter().find_map(|inner_side| match inner_side {
            InnerSide::Tun { tun, .. } => Some((tun.name().to_owned(), tun.index())),
            InnerSide::Stack { .. } => None,
        });
        let interface = tun.as_ref().map(|(name, _)| name.clone());
        let running = start_threads(gateway, &receiver, links, inner_sides, *clock, &to_asks, &store)?;
        let workers: Vec<Handle> = running.iter().map(|thread| thread.handle.clone()).collect();
        let [worker, ..] = &workers[..] else { return Err(Failure::new("there is no thread that forwards").into()) };
        // Whatever an earlier life left is taken back, also if it had another number, or this one is a proxy.
        let filter =
            HostFilter::open(interface.as_deref().unwrap_or_default(), mark.unwrap_or_default(), Arc::clone(&store));
        let mut filter = filter.map_err(|error| Failure::new(error.to_string()))?;
        let filter = match mark {
            Some(_) => {
                filter.note_routes()?;
                // After what an earlier life left, maybe in another table, is taken back.
                for (fault, is_tunnel) in section.names_in_use() {
                    if is_tunnel {
                        host.into_iter().for_each(HostRoutes::close);
                        return Err(source.failure(fault).into());
                    }
                    warn!("{}: {}", fault.message, fault.help.unwrap_or_default());
                }
                Some(filter)
            }
            None => {
                filter.close();
                None
            }
        };
        let shared = Arc::new(Shared {
            own,
            suffix: section.suffix.get_ref().clone(),
            interface,
            proxy: proxy.as_ref().map(|(proxy, _)| Arc::clone(proxy)),
            known: RwLock::new(Arc::new(known)),
            policies: RwLock::new(resolved.iter().map(|policy| policy.name.clone()).collect()),
            unresolved: RwLock::default(),
            accepted: RwLock::default(),
            unaccepted: RwLock::default(),
            admitted: RwLock::default(),
            filter_faults: RwLock::default(),
            resolver: (section.tells_resolved() && tun.is_some()).then(Arc::default),
            names: Register::new(names, store),
            blocks,
            choices_file,
            choices: RwLock::new((Arc::new(choices), None)),
            worker: worker.clone(),
            workers,
            node: match &servers {
                Servers::Overlay(handle, _) => Some(handle.clone()),
                Servers::File(_) => None,
            },
            link_peers: RwLock::default(),
            refused_consents: Mutex::default(),
            mark,
        });
        let (mut serving, mut resolver) = (Vec::new(), None);
        match (proxy, &section.dns) {
            (Some((proxy, listener)), _) => {
                info!(at = %proxy.address, suffix = shared.suffix, "a proxy serves applications, without a TUN interface");
                serving.push(tokio::spawn(proxy.stack.clone().run()));
                serving.push(tokio::spawn(proxy::serve(listener, Arc::clone(&shared), proxy, log.clone())));
            }
            (None, None) => {}
            (None, Some(at)) => {
                let at = at.get_ref().0;
                let fault = |error: std::io::Error| {
                    Failure::system(format!("cannot answer names at {at}"), &error)
                        .help("another resolver may be there: choose another address and tell the resolver to ask here")
                };
                let datagrams = UdpSocket::bind(at).await.map_err(fault)?;
                let at = datagrams.local_addr().map_err(fault)?;
                let connections = TcpListener::bind(at).await.map_err(fault)?;
                info!(at = %at, suffix = shared.suffix, "names are answered");
                serving.push(tokio::spawn(dns::serve((datagrams, connections), Arc::clone(&shared))));
                resolver = shared.resolver.clone().zip(tun).map(|(state, (interface, index))| {
                    let zones = dns::zones(&shared.suffix, &shared.blocks);
                    Resolver::start(interface, LinkNames { index, server: at, zones }, state, log.clone())
                });
            }
        }
        let mut role = Self {
            shared,
            running,
            control,
            servers,
            asks,
            questions: Arc::new(tokio::sync::Semaphore::new(MOST_QUESTIONS)),
            policies: config.policy.iter().map(|policy| policy.get_ref().clone()).collect(),
            resolved,
            host,
            filter,
            is_exit: section.exit,
            internet: Internet::default(),
            policy: policy_of(section, source)?,
            realm_key,
            minute: minute_of_day(),
            look_at_filter: 0,
            mark,
            accepted: section.accepted(),
            sockets: Vec::new(),
            serving,
            resolver,
            log: log.clone(),
            look: tokio::time::interval(LOOK),
            looked,
            log_unresolved: None,
            log_disagreements: None,
            disagreements: Vec::new(),
            watch: links::Watch::default(),
            mtu: None,
            mtu_since: None,
        };
        role.apply().await;
        Ok(role)
    }

    fn view(&self) -> GatewayView {
        GatewayView(Arc::clone(&self.shared))
    }

    async fn reload(&mut self, config: GatewayFile, source: &Source) -> Outcome {
        let policy = policy_of(&config.gateway, source)?;
        let laboratory = config.laboratory.as_ref();
        let file =
            laboratory.map(|laboratory| LabFile::read(&source.resolve(laboratory.file.get_ref()))).transpose()?;
        if let (Servers::File(current), Some(file)) = (&self.servers, file) {
            let known = file.known()?;
            *current.write().unwrap_or_else(PoisonError::into_inner) = file;
            self.set_known(known);
        }
        if let (Control::Overlay { overlay, section, .. }, Some(fresh)) = (&mut self.control, &config.overlay) {
            **section = fresh.get_ref().clone();
            let mtu = self.mtu.unwrap_or(u16::MAX);
            overlay.handle().reload(links::with_mtu(section, mtu)).await;
        }
        self.policies = config.policy.iter().map(|policy| policy.get_ref().clone()).collect();
        self.accepted = config.gateway.accepted();
        self.is_exit = config.gateway.exit;
        self.policy = policy;
        self.refresh();
        self.apply().await;
        Ok(())
    }

    async fn next(&mut self) -> Result<Event, Failure> {
        match &mut self.control {
            Control::Laboratory => tokio::select! {
                ask = self.asks.recv() => question(ask),
                _ = self.look.tick() => Ok(Event::Look),
            },
            Control::Overlay { overlay, realm, ids, resolutions, .. } => tokio::select! {
                ask = self.asks.recv() => question(ask),
                _ = self.look.tick() => Ok(Event::Look),
                Ok(()) = realm.changed() => Ok(Event::Changed),
                Ok(()) = ids.changed() => Ok(Event::Changed),
                Ok(()) = resolutions.changed() => Ok(Event::Changed),
                failure = overlay.failed() => Err(failure),
            },
        }
    }

    async fn handle(&mut self, event: Event) -> Outcome {
        match event {
            Event::Changed => {
                self.refresh();
                self.apply().await;
            }
            Event::Look => {
                self.look_at_links().await;
                if self.policy.is_some() && self.minute != minute_of_day() {
                    let admitted = self.admit(&self.shared.known());
                    self.shared.worker.send(move |worker| worker.gateway.set_admitted(admitted));
                }
                if self.look_again() || self.filter_is_gone().await {
                    self.apply().await;
                }
                if self.log_unresolved.take_if(|at| *at <= tokio::time::Instant::now()).is_some() {
                    self.shared.unresolved().iter().for_each(|name| self.log.report(unresolved_line(name)));
                }
                if self.log_disagreements.take_if(|at| *at <= tokio::time::Instant::now()).is_some() {
                    self.disagreements.iter().for_each(|why| self.log.report(disagreement_line(why)));
                }
            }
            Event::Ask(Ask::Happened(event)) => {
                let known = self.shared.known();
                self.log.report(line(&event, |peer| known.describe(peer)));
            }
            Event::Ask(Ask::Paths(peer)) => {
                let (servers, worker) = (self.servers.clone(), self.shared.worker.clone());
                self.question(async move {
                    let paths = servers.paths(peer).await;
                    worker.send(move |worker| {
                        let now = worker.clock.now();
                        worker.gateway.set_paths(peer, paths, now);
                    });
                });
            }
            Event::Ask(Ask::Proofs(peer, hash, path)) => {
                let (servers, worker) = (self.servers.clone(), self.shared.worker.clone());
                self.question(async move {
                    let path = servers.proofs(hash, *path).await;
                    worker.send(move |worker| {
                        let now = worker.clock.now();
                        worker.gateway.set_proofs(peer, hash, path, now);
                    });
                });
            }
        }
        Ok(())
    }

    async fn stop(self) {
        // Before nobody answers any more, and before its interface is gone.
        if let Some(resolver) = self.resolver {
            resolver.stop().await;
        }
        self.serving.iter().for_each(JoinHandle::abort);
        let running = self.running;
        // The first one last: it says to neighbours that this end goes.
        let _ = tokio::task::spawn_blocking(move || running.into_iter().rev().for_each(Running::stop)).await;
        self.filter.into_iter().for_each(|mut filter| filter.close());
        self.host.into_iter().for_each(HostRoutes::close);
        if let Control::Overlay { overlay, .. } = self.control {
            overlay.stop().await;
        }
    }
}

/// The policy that says what members may begin to send here, if there is one.
fn policy_of(section: &GatewaySection, source: &Source) -> Outcome<Option<Policy>> {
    let loaded = section.consent_policy.as_ref().map(|named| load_policy(named, source)).transpose()?;
    Ok(loaded.map(|(policy, _)| policy))
}

/// Makes the TUN interface, with a queue for each thread, and the routes to it.
fn open_tun(section: &GatewaySection, table: u32, mtu: u16) -> Outcome<(Vec<Tun>, HostRoutes)> {
    let name = section.interface.as_ref().ok_or_else(|| {
        Failure::new("[gateway] has no `interface`")
            .help("name the TUN interface, or be a proxy, which needs none: `--proxy 127.0.0.1:1080`")
    })?;
    let name = name.get_ref();
    let queues = Tun::open_queues(name, mtu.into(), section.threads()).map_err(|error| {
        let help = match error.kind() {
            ErrorKind::ResourceBusy => {
                "an interface of this name is there already, maybe another gateway's: give `interface` of [gateway] another name"
            }
            _ => "this needs /dev/net/tun and root or CAP_NET_ADMIN, which the unit file grants; `--proxy 127.0.0.1:1080` needs neither",
        };
        Failure::system(format!("cannot make the TUN interface {name}"), &error).help(help)
    })?;
    if let Some(other) = host_routes::user_of(table, name) {
        let help = format!("give `table` of [gateway] another number, such as {}", table + 80);
        return Err(Failure::new(format!(
            "routing table {table} is in use by the interface {other}, maybe of another gateway"
        ))
        .help(help)
        .into());
    }
    let netlink = |error: std::io::Error| Failure::system("cannot set routes", &error);
    let index = queues.first().map(Tun::index).unwrap_or_default();
    let host = HostRoutes::open(table, index).map_err(netlink)?;
    Ok((queues, host))
}

/// Starts a thread for each inner side, which share the gateway. The first one has the links.
fn start_threads(
    mut gateway: Gateway,
    receiver: &icing::Config,
    links: Option<Links>,
    inner_sides: Vec<InnerSide>,
    clock: Clock,
    asks: &mpsc::Sender<Ask>,
    store: &Arc<FileStore>,
) -> Outcome<Vec<Running>> {
    let fault = |error: std::io::Error| Failure::system("cannot make an eventfd", &error);
    let has_others = inner_sides.len() > 1;
    let shared = has_others.then(link_threads::Shared::new).transpose().map_err(fault)?.map(Arc::new);
    let has_links = links.is_some();
    let mut ends = links.map(|links| Ends::Proven(LinkThread::first(links, shared.clone())));
    let mut others = Vec::new();
    for _ in 1..inner_sides.len() {
        let other = gateway.another(receiver.clone(), CpuKernel::best());
        others.push(other.map_err(|error| Failure::new(format!("the links contradict each other: {error}")))?);
    }
    let of_other =
        || shared.as_ref().filter(|_| has_links).map(|shared| Ends::Proven(LinkThread::other(Arc::clone(shared))));
    let parts = [gateway].into_iter().chain(others).zip(inner_sides).map(|(gateway, inner_side)| {
        let ends = ends.take().or_else(of_other).unwrap_or_else(|| Ends::Fixed(Vec::new()));
        Part { gateway, ends, inner_side }
    });
    Ok(worker::start(parts.collect(), clock, asks, store)?)
}

/// The socket that systemd hands over for a proxy at this address, if it does.
fn inherited(proxy: Option<SocketAddr>) -> Outcome<Option<std::net::TcpListener>> {
    let unusable = |error: std::io::Error| {
        Failure::system("cannot use what systemd hands over as the proxy's socket", &error)
            .help("the .socket unit needs one `ListenStream=` with the address of the proxy, such as 127.0.0.1:1080")
    };
    let Some(listener) = inherited::listener().map_err(unusable)? else { return Ok(None) };
    let at = listener.local_addr().map_err(unusable)?;
    match proxy {
        Some(proxy) if proxy == at => Ok(Some(listener)),
        Some(proxy) => Err(Failure::new(format!(
            "systemd hands over a socket at {at}, and the proxy is to be at {proxy}: nobody would serve one of them"
        ))
        .help("have `ListenStream=` of the .socket unit and `--proxy` of the service, or `proxy` of [gateway], say the same")
        .into()),
        None => Err(Failure::new(format!(
            "systemd hands over a socket at {at}, and this gateway is no proxy: nobody would serve it"
        ))
        .help("disable the .socket unit, or start the role with `--proxy`")
        .into()),
    }
}

/// Makes the stack, and takes the address at which applications are served.
async fn open_proxy(
    address: SocketAddr,
    inherited: Option<std::net::TcpListener>,
    mtu: u16,
    clock: Clock,
) -> Outcome<(StackPort, (Arc<Proxy>, TcpListener))> {
    let fault = |error: std::io::Error| Failure::system(format!("cannot serve applications at {address}"), &error);
    let is_inherited = inherited.is_some();
    let listener = match inherited {
        Some(listener) => TcpListener::from_std(listener).map_err(fault)?,
        None => TcpListener::bind(address).await.map_err(fault)?,
    };
    let address = listener.local_addr().map_err(fault)?;
    let mut seed = [0; 8];
    getrandom::fill(&mut seed).map_err(|error| Failure::new(format!("the system gave no randomness: {error}")))?;
    let (stack, port) = stack::open(clock, mtu, u64::from_ne_bytes(seed)).map_err(fault)?;
    let (opened, refused) = (AtomicU64::new(0), AtomicU64::new(0));
    let proxy =
        Proxy { address, is_inherited, stack, opened, refused, datagrams: proxy::associations::Counters::default() };
    Ok((port, (Arc::new(proxy), listener)))
}

/// Takes up the connections by name of the life before if they outlive it, and removes the records of those that are over. Those of a proxy
/// ended with it, and the far ends are told so once they send.
fn restore_flows(gateway: &mut Gateway, store: &FileStore, now: Now, outlive: bool) -> Outcome {
    let failed = |error: StoreError| Failure::new(error.to_string());
    let records = store.load(FLOWS).map_err(failed)?;
    let over = records.into_iter().filter(|(key, value)| !(outlive && gateway.restore_flow(key, value, now)));
    let over: Vec<Change> = over.map(|(key, _)| Change { table: FLOWS, key, value: None }).collect();
    store.submit(over, Box::new(|| ())).map_err(failed)?;
    Ok(())
}

/// What the operator is told.
pub fn line(event: &Happened, describe: impl Fn(&IdentityKey) -> String) -> EventLine {
    match event {
        Happened::SessionBegan { peer } => {
            event!(INFO "session-began" { peer = describe(peer) } "a session has begun")
        }
        Happened::PathDied { peer } => event!(WARN "path-died" { peer = describe(peer) }
            "a path is dead: probes stayed unanswered, or its first node has stopped; flows go by the spare one"),
        Happened::PathChanged { peer } => {
            event!(INFO "path-changed" { peer = describe(peer) } "flows go by another path")
        }
    }
}

pub fn unresolved_line(unresolved: &Unresolved) -> EventLine {
    event!(WARN "name-unresolved" { name = unresolved.name.clone(); why = unresolved.to_string() } "{unresolved}")
}

pub fn disagreement_line(why: &str) -> EventLine {
    event!(WARN "neighbour-disagrees" {; why = why.to_owned() } "{why}")
}

pub fn paths_decided_line(avoided: usize, pins: usize) -> EventLine {
    event!(INFO "paths-decided" { avoided, pins } "other paths are avoided or pinned now")
}

/// What the forwarding thread asks.
fn question(ask: Option<Ask>) -> Result<Event, Failure> {
    let stopped = || Failure::new("the forwarding thread has stopped: a bug, please report it");
    ask.map(Event::Ask).ok_or_else(stopped)
}

impl GatewayRole {
    /// Says how links have changed, and tells others of the largest packet that passes over them.
    async fn look_at_links(&mut self) {
        let of = self.shared.worker.ask(|worker| {
            let now = worker.clock.now();
            worker.ends.links().map(|links| links.status(now)).unwrap_or_default()
        });
        let Some(all) = of.await else { return };
        let known = self.shared.known();
        self.watch.lines(&all, |node| known.describe(node)).into_iter().for_each(|line| self.log.report(line));
        let Control::Overlay { overlay, section, .. } = &self.control else { return };
        links::resolve_again(&overlay.handle(), section, &all);
        let Some((mtu, is_whole)) = links::usable_mtu(section, &all) else { return };
        // Less at once; more once that has been so for a while: each change is an advert.
        let now = tokio::time::Instant::now();
        let may_rise = is_whole && self.mtu_since.is_none_or(|since| now - since >= MTU_RISES);
        let changes = self.mtu.is_none_or(|before| mtu < before || mtu > before && may_rise);
        if changes {
            (self.mtu, self.mtu_since) = (Some(mtu), Some(now));
            overlay.handle().reload(links::with_mtu(section, mtu)).await;
        }
    }

    /// Reads the file of choices if it has changed; returns whether it says something else. What is wrong with it changes nothing.
    fn look_again(&mut self) -> bool {
        let looked = look(&self.shared.choices_file);
        if looked == self.looked {
            return false;
        }
        self.looked = looked;
        let (before, _) = self.shared.choices();
        let (choices, wrong) = match ChoicesFile::load(&self.shared.choices_file) {
            Ok(choices) => (Arc::new(choices), None),
            Err(failures) => (Arc::clone(&before), Some(failures.to_string())),
        };
        if let Some(wrong) = &wrong {
            warn!("what was decided before stays in force: {wrong}");
        }
        let has_changed = choices != before;
        if has_changed {
            self.log.report(paths_decided_line(choices.avoid.len(), choices.pin.len()));
        }
        *self.shared.choices.write().unwrap_or_else(PoisonError::into_inner) = (choices, wrong);
        has_changed
    }

    /// Puts a question to servers, beside others; one too many is dropped, and the machine puts it again.
    fn question(&self, question: impl Future<Output = ()> + Send + 'static) {
        let Ok(permit) = Arc::clone(&self.questions).try_acquire_owned() else { return };
        tokio::spawn(async move {
            question.await;
            drop(permit);
        });
    }

    fn set_known(&self, known: Known) {
        *self.shared.known.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(known);
    }

    /// Looks at the realm again.
    fn refresh(&mut self) {
        if let Control::Overlay { settings, section, realm, ids, .. } = &mut self.control {
            let (realm, ids) = (realm.borrow_and_update().clone(), ids.borrow_and_update().clone());
            let known = receiving::of_realm(settings, section, &realm, (&ids.ids, &ids.agreed));
            self.set_known(known);
        }
    }

    /// Applies what is known: members, links, policies, routes, names.
    async fn apply(&mut self) {
        let known = self.shared.known();
        let internet = self.set_filter(&known).await;
        let admitted = self.admit(&known);
        let threads = self.shared.workers.len();
        let mut fresh: Vec<Vec<_>> = (0..threads).map(|_| Vec::new()).collect();
        let wanted = match &self.control {
            Control::Overlay { section, .. } => links::sockets(section),
            Control::Laboratory => known.fixed.iter().map(|neighbour| LinkSocket::Udp(neighbour.local)).collect(),
        };
        for local in wanted {
            if !self.sockets.contains(&local) {
                match links::open_sockets(local, self.mark, threads) {
                    Ok(links::Opened { data, mut control }) => {
                        self.sockets.push(local);
                        let data = data.into_iter().map(Some).chain(std::iter::repeat_with(|| None));
                        fresh.iter_mut().zip(data).for_each(|(of_thread, data)| {
                            of_thread.push(SocketPart { data, control: control.take() });
                        });
                    }
                    Err(error) => warn!(?local, "cannot receive from neighbours: {error}; it is tried again"),
                }
            }
        }
        let fixed = known.fixed.iter().filter_map(|neighbour| {
            let socket = self.sockets.iter().position(|local| *local == LinkSocket::Udp(neighbour.local))?;
            Some((neighbour.link, (socket, neighbour.remote)))
        });
        let fixed: Vec<_> = fixed.collect();
        let peers = match (&self.control, &self.shared.node) {
            (Control::Overlay { section, .. }, Some(node)) => {
                let peers = Arc::new(node.link_peers(section));
                *self.shared.link_peers.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&peers);
                let disagreements = links::disagreements(&peers);
                if disagreements != self.disagreements {
                    self.disagreements = disagreements;
                    self.log_disagreements = Some(tokio::time::Instant::now() + UNRESOLVED);
                }
                links::peers(node, section, &self.sockets)
            }
            _ => match &self.servers {
                Servers::File(file) => file.read().unwrap_or_else(PoisonError::into_inner).peers(&self.sockets),
                Servers::Overlay(..) => Vec::new(),
            },
        };
        let resolved = resolve(self.policies.iter(), &self.shared.choices().0, &known);
        let policies = (resolved != self.resolved).then(|| resolved.clone());
        self.resolved = resolved;
        *self.shared.policies.write().unwrap_or_else(PoisonError::into_inner) =
            self.resolved.iter().map(|policy| policy.name.clone()).collect();
        let unresolved = unresolved(&self.policies, &self.shared.choices().0, &known);
        if unresolved != *self.shared.unresolved() {
            *self.shared.unresolved.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(unresolved);
            self.log_unresolved = Some(tokio::time::Instant::now() + UNRESOLVED);
        }
        // Neighbours are told of nothing before every thread is asked to have its socket.
        let mut fresh = fresh.into_iter();
        let of_first = fresh.next().unwrap_or_default();
        for (worker, fresh) in self.shared.workers[1..].iter().zip(fresh) {
            let (policy, fixed) = (known.receiver.clone(), fixed.clone());
            worker.send(move |worker| {
                worker.add_sockets(fresh, fixed);
                // The first one says it if the links contradict each other.
                let _ = worker.gateway.set_policy(policy);
            });
        }
        let reload = |names| Reload {
            members: known.members.clone(),
            prefixes: known.prefixes.clone(),
            internet,
            admitted,
            nodes: known.nodes.clone(),
            policies,
            receiver: known.receiver.clone(),
            neighbours: known.neighbours.clone(),
            names,
        };
        self.shared.publish_names(|names| {
            let reload = reload(names);
            self.shared.worker.send(move |worker| {
                worker.add_sockets(of_first, fixed);
                let now = worker.clock.now();
                worker.ends.links_mut().into_iter().for_each(|links| links.set_peers(peers.clone(), now));
                if let Err(error) = worker.gateway.reload(reload, now) {
                    warn!("the links contradict each other: {error}; the ones in force stay");
                }
            });
        });
        self.set_routes(&known);
    }

    /// Says what members may begin to send here, in this minute.
    fn admit(&mut self, known: &Known) -> Option<Admitted> {
        self.minute = minute_of_day();
        let admitted = self.policy.as_ref().map(|policy| admitted(policy, known, self.realm_key, self.minute));
        *self.shared.admitted.write().unwrap_or_else(PoisonError::into_inner) = admitted.clone().map(Arc::new);
        admitted
    }

    /// Sets what goes through the machine: the Internet for members, and what comes for the gateway's own sockets past a strict reverse path
    /// filter. Returns what of the Internet the forwarding thread may pass: it is told once the filter is there.
    async fn set_filter(&mut self, known: &Known) -> Internet {
        let own = self.shared.own;
        let (routed, _) = offered(known, &own, &self.accepted);
        let uses_exit = routed.iter().any(is_wide);
        let Some(filter) = &mut self.filter else { return Internet::default() };
        let of_realm = known.prefixes.iter().filter(|(_, owner)| **owner == own).map(|(prefix, _)| *prefix);
        let mut granted: Vec<Prefix> = of_realm.collect();
        if let (true, Control::Overlay { settings, .. }) = (granted.is_empty(), &self.control) {
            // What the realm's servers have not told yet.
            granted.clone_from(&settings.membership.object().grants.prefixes);
        }
        let has_wide = granted.iter().any(is_wide);
        let exit = (self.is_exit && has_wide).then(|| host_filter::Exit { granted, beside: beside() });
        let is_strict = host_filter::is_strict();
        let wanted =
            HostRules { exit, has_mark: uses_exit && host_filter::has_nft() || is_strict && !routed.is_empty() };
        if self.internet.is_own {
            // Until what is to be there is there.
            self.internet.is_own = false;
            let internet = self.internet;
            self.shared.worker.ask(move |worker| worker.gateway.set_internet(internet)).await;
            // What another thread has let pass before is written by then.
            for worker in &self.shared.workers {
                worker.ask(|_| ()).await;
            }
        }
        let result = filter.set(&wanted);
        self.internet = Internet { is_own: wanted.exit.is_some() && result.is_ok(), is_used: uses_exit };
        let mut faults: Vec<String> = match result {
            Ok(faults) => faults,
            // Without a strict filter the mark is for filters of others (firewalld has one), which few have.
            Err(_) if wanted.exit.is_none() && !is_strict => Vec::new(),
            Err(failures) => failures.0.iter().map(ToString::to_string).collect(),
        };
        if self.is_exit && !has_wide {
            faults.push(NO_DEFAULT_ROUTE.to_owned());
        }
        if uses_exit {
            let wide = own_routes().into_iter().filter(is_wide);
            faults.extend(wide.map(|route| {
                format!("this machine has a route to {route} of its own, which goes first: what it covers does not go by the exit")
            }));
        }
        let mut before = self.shared.filter_faults.write().unwrap_or_else(PoisonError::into_inner);
        faults.iter().filter(|fault| !before.contains(fault)).for_each(|fault| warn!("{fault}"));
        *before = faults;
        self.internet
    }

    /// Whether somebody flushed the filter, or set a setting, or it could not be set: then nothing of the Internet passes until it is there again.
    /// This looks every two seconds, and after a failure every half minute.
    async fn filter_is_gone(&mut self) -> bool {
        self.look_at_filter += 1;
        let Some(filter) = self.filter.as_mut().filter(|filter| filter.is_needed()) else { return false };
        // What could not be set is tried again, but less often: all is applied anew with it.
        if self.look_at_filter < if filter.is_known() { LOOKS } else { LOOKS * FAILED_LOOKS } {
            return false;
        }
        self.look_at_filter = 0;
        if filter.is_known() {
            if filter.holds() && filter.is_beside(&beside()) {
                return false;
            }
            warn!("the machine's packet filter, a setting or a network beside it has changed: the filter is set again");
        }
        filter.doubt();
        true
    }

    /// The node's own addresses; routes to what is accepted of members' prefixes, and to names.
    fn set_routes(&mut self, known: &Known) {
        let own = self.shared.own;
        // As the other members know them.
        let this = known.members.iter().find(|member| member.identity == own);
        let addresses = this.map_or(&[][..], |this| &this.addresses);
        if let Some(proxy) = &self.shared.proxy {
            proxy.stack.set_addresses(addresses);
        }
        let Some(host) = &mut self.host else { return };
        host.add_addresses(addresses);
        let (mut wanted, refused) = offered(known, &own, &self.accepted);
        wanted.extend(self.shared.blocks.all());
        // Where the Internet is accepted, nothing to it leaves in clear while nobody offers it.
        let guarded = self.accepted.iter().filter(|prefix| is_wide(prefix)).copied().collect();
        host.set(&wanted, &guarded);
        *self.shared.accepted.write().unwrap_or_else(PoisonError::into_inner) = self.accepted.clone();
        let mut before = self.shared.unaccepted.write().unwrap_or_else(PoisonError::into_inner);
        for prefix in refused.difference(&before) {
            info!(%prefix, "a member has a prefix that is not routed: `accept` of [gateway] does not have it");
        }
        *before = refused;
    }
}

/// A name in a policy or in the file of choices that no known member is called.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unresolved {
    /// The policy; `None` if the user decided it for all of them.
    pub policy: Option<String>,
    /// `avoid`, `require` or `pin`.
    pub key: &'static str,
    pub name: String,
}

impl std::fmt::Display for Unresolved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { policy, key, name } = self;
        let effect = match *key {
            "avoid" => "so no path over a node that is not known here is used",
            _ => "so no path satisfies it",
        };
        match policy {
            Some(policy) => {
                write!(f, "`{key}` of policy {policy} names `{name}`, and no known member is called so, {effect}")
            }
            None => write!(f, "`wayleave path {key}` names `{name}`, and no known member is called so, {effect}"),
        }
    }
}

/// What is named that no known member is called.
fn unresolved(policies: &[PolicySection], choices: &ChoicesFile, known: &Known) -> Vec<Unresolved> {
    let mut all = Vec::new();
    let mut look = |policy: Option<&str>, key, node: &NodeRef| {
        if known.identity(node).is_none() {
            let found = Unresolved { policy: policy.map(str::to_owned), key, name: node.to_string() };
            all.extend((!all.contains(&found)).then_some(found));
        }
    };
    for policy in policies {
        let name = Some(policy.name.get_ref().as_str());
        policy.names().for_each(|(key, node)| look(name, key, &node.get_ref().0));
    }
    choices.avoid.iter().for_each(|node| look(None, "avoid", &node.0));
    for pin in &choices.pin {
        pin.over.iter().for_each(|node| look(Some(&pin.policy), "pin", &node.0));
    }
    all
}

/// The policies with identities in the place of names. A required or pinned node that nobody knows is on no path; one that is to be avoided may
/// be any that is not known, and paths cross none of these ([`Gateway::set_nodes`]).
fn resolve<'a>(
    policies: impl Iterator<Item = &'a PolicySection>,
    choices: &ChoicesFile,
    known: &Known,
) -> Vec<PathPolicy> {
    const NOBODY: IdentityKey = IdentityKey([0; 32]);
    let identities = |nodes: &[toml::Spanned<Text<NodeRef>>]| -> Vec<IdentityKey> {
        nodes.iter().map(|node| known.identity(&node.get_ref().0).unwrap_or(NOBODY)).collect()
    };
    let of_all = |nodes: &[Text<NodeRef>]| -> Vec<IdentityKey> {
        nodes.iter().map(|node| known.identity(&node.0).unwrap_or(NOBODY)).collect()
    };
    let decided = |policy: &str| {
        let pins = choices.pin.iter().filter(|pin| pin.policy.eq_ignore_ascii_case(policy));
        let pin = |pin: &PinSection| Some((known.identity(&pin.node.0)?, of_all(&pin.over)));
        Choices { avoid: of_all(&choices.avoid), pins: pins.filter_map(pin).collect() }
    };
    policies
        .map(|policy| PathPolicy {
            name: policy.name.get_ref().clone(),
            order: policy.order.order(),
            avoid: identities(&policy.avoid),
            require: identities(&policy.require),
            pin: policy.pin.as_ref().map(|nodes| identities(nodes)),
            choices: decided(policy.name.get_ref()),
        })
        .collect()
}
