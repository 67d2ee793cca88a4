//! `run stamper`: packets of this host, chosen by destination, user, control group or socket mark, leave with capabilities.
//!
//! The system hands them to TUN interfaces, one for each kind of sender (`system`); a thread stamps and sends them (`worker`).

mod filter;
pub mod registration;
pub(super) mod secrets;
pub(super) mod system;
mod views;
mod worker;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::{Notify, mpsc, oneshot};
use toml::Spanned;
use tracing::warn;
use wayleave_control::capability::Credential;
use wayleave_core::{Afi, Prefix, UnixTime};
use wayleave_crypto::lanes::CpuKernel;
use wayleave_dataplane::stamper::arriving::Arriving;
use wayleave_dataplane::stamper::replies::{ReplyGrants, ReplyRequests};
use wayleave_dataplane::stamper::{
    Config, ConfigError, Location, Route, Rule, RuleAction, Rules, SenderClass, Stamper,
};
use wayleave_packet::platypus::header::Carriage;
use wayleave_packet::platypus::header::offsets::{PROTOCOL, UDP_PORT};
use wayleave_packet::platypus::mint::Hop;
use wayleave_runtime::clock::{unix_now, utc};
use wayleave_runtime::packets::ip::Ip;

use super::daemon::{Daemon, QUEUE, Role, seed};
use super::events::{EventLine, Events, event};
use super::stamping::{CapabilityEpoch, CapabilityFile, RouteCapabilities};
use crate::config::router::stamper::{Otherwise, RouteSection, RuleSection};
use crate::config::rs::StatusSection;
use crate::config::stamper::{Addresses, HostFile};
use crate::config::{Fault, Source};
use crate::failure::{Failure, Outcome};
use crate::key_files::capability::Capabilities;
use registration::{MAX_OF_USER, MAX_REGISTRATIONS, Registered, RegisteredCapability, Registration, Socket};
use secrets::{Answers, LookedUp, LookupCounters, Secrets};
use system::System;
use views::{RouteView, RuleView, StamperSnapshot, StamperView};
use worker::{Replies, Running};

/// How often files and epochs are looked at.
const LOOK: Duration = Duration::from_millis(500);
/// How many of these looks pass between two at the table of nftables, which takes a process each.
const CHECK: u32 = 10;
/// The MTU of interfaces that no route limits.
const DEFAULT_MTU: u32 = 1_500;
/// Octets that a reply grows by, of IPv4 and of IPv6: UDP, a header, and a delegated and sub-delegated capability.
const REPLY_GROWTH: [u32; 2] = [8 + 20 + 24 + 16, 8 + 44 + 48 + 16];
/// The least MTU with which an interface has IPv6 (RFC 8200 section 5).
const IPV6_MTU: u32 = 1_280;
const NO_INTERFACE: &str = "its waypoints have IPv6 addresses, and new interfaces have no IPv6 here (`disable_ipv6`): its rule without `to` leads no \
                            packet to it";
/// Stamped packets leave by a socket that receives nothing (IPPROTO_RAW).
const RAW: u8 = 255;

/// What stamping follows from: the configuration and the files that it names.
struct Plan {
    file: HostFile,
    source: Source,
    capabilities: RouteCapabilities,
    /// By route: what pays for replies.
    paying: Vec<Option<Capabilities>>,
    /// Capabilities that are named by their lines.
    lines: Vec<Credential>,
}

impl Plan {
    fn load(file: HostFile, source: &Source, secrets: &mut Secrets) -> Outcome<Self> {
        let capabilities = RouteCapabilities::load(file.stamper.get_ref(), source, secrets)?;
        let mut lines: Vec<Credential> = capabilities.lines().cloned().collect();
        let client = file.host.get_ref().addresses();
        let paying = RouteCapabilities::replies(file.stamper.get_ref(), source, client, (secrets, &mut lines))?;
        let plan = Self { file, source: source.clone(), capabilities, paying, lines };
        // Whatever epoch the capabilities are of, routes and rules fit or do not.
        match Stamper::new(plan.config(UnixTime(0)), CpuKernel::best()) {
            Ok(_) => {}
            Err(error) => return Err(source.failure(plan.locate(error)).into()),
        }
        match plan.short_route() {
            Some(fault) => Err(source.failure(fault).into()),
            None => Ok(plan),
        }
    }

    /// A route that leaves packets less than IPv6 needs, whose interface is for IPv6 too.
    fn short_route(&self) -> Option<Fault> {
        let (routes, rules) = (self.routes(UnixTime(0)), self.rules());
        let leaves = |route: usize| Stamper::least_headroom(routes.get(route..=route)?);
        let short = |route: &usize| leaves(*route).is_some_and(|headroom| headroom < IPV6_MTU as usize);
        let of_v6 = SenderClass::of(&rules).into_iter().filter(|class| self.takes_v6(class));
        let all = of_v6.flat_map(|class| routes_of(&class, &rules).map(usize::from).collect::<Vec<_>>());
        let route = all.into_iter().find(short)?;
        let mtu = &self.file.stamper.get_ref().routes.get(route)?.get_ref().mtu;
        let message = format!(
            "the route leaves packets {} octets, and its interface is for IPv6 too, which needs {IPV6_MTU}",
            leaves(route)?
        );
        Some(Fault::at(mtu.span(), message).help("a path with a greater `mtu`, or fewer capabilities"))
    }

    fn routes(&self, now: UnixTime) -> Vec<Route> {
        self.capabilities.routes(self.file.stamper.get_ref(), now)
    }

    /// Whether packets of IPv6 pass the interface of a class: its own, or perhaps what arrives for this host.
    fn takes_v6(&self, class: &SenderClass) -> bool {
        class.to.iter().any(|to| to.afi() == Afi::Ipv6) || self.file.host.get_ref().addresses().v6.is_some()
    }

    /// The rules in force, each with its number in the file.
    fn numbered_rules(&self) -> Vec<(usize, Rule)> {
        self.file.rules_in_force(|route| self.capabilities.family(usize::from(route)))
    }

    fn rules(&self) -> Vec<Rule> {
        self.numbered_rules().into_iter().map(|(_, rule)| rule).collect()
    }

    /// What is wrong with routes and rules that no stamper takes, and where.
    fn locate(&self, error: ConfigError) -> Fault {
        let in_file = |index: usize| self.numbered_rules().get(index).map_or(index, |(number, _)| *number);
        self.file.locate(match error {
            ConfigError::Twice(index) => ConfigError::Twice(in_file(index)),
            ConfigError::NoRoute(index) => ConfigError::NoRoute(in_file(index)),
            ConfigError::Delegation(index) => ConfigError::Delegation(in_file(index)),
            of_routes => of_routes,
        })
    }

    fn config(&self, now: UnixTime) -> Config {
        let section = self.file.stamper.get_ref();
        // Packets of others may be stamped already; the host's own are not.
        let location = match self.file.host.get_ref().sources.is_empty() {
            true => Location::Host,
            false => Location::Network(section.position.position()),
        };
        Config { location, routes: self.routes(now), rules: self.rules(), share: section.share().into() }
    }

    /// Routes by waypoints of IPv6 of rules without `to`, where no interface can have IPv6: no packet is led to these routes.
    fn without_interface(&self) -> BTreeSet<u16> {
        if system::has_ipv6() {
            return BTreeSet::new();
        }
        let lacks = |rule: &Rule| rule.to.afi() == Afi::Ipv6 && self.file.is_of_both_families(rule);
        self.rules().iter().filter(|rule| lacks(rule)).filter_map(|rule| rule.action.route()).collect()
    }

    /// The files of capabilities, and when each was last written.
    fn files(&self) -> BTreeMap<PathBuf, Written> {
        let routes = self.file.stamper.get_ref().routes.iter();
        let named = routes.map(Spanned::get_ref).flat_map(|route| route.capabilities.iter().chain(&route.reply));
        let written = |named: &Spanned<PathBuf>| {
            let path = self.source.resolve(named.get_ref());
            let data = std::fs::metadata(&path).ok();
            (path, data.map(|data| (data.ino(), data.mtime(), data.mtime_nsec(), data.len())))
        };
        named.map(written).collect()
    }

    /// Whether replies are stamped with what clients hand over.
    fn takes_replies(&self) -> bool {
        self.file.host.get_ref().takes_replies()
    }

    /// The waypoints that these may be for.
    fn reply_waypoints(&self) -> Vec<Prefix> {
        self.file.host.get_ref().reply_waypoints.iter().map(|named| *named.get_ref()).collect()
    }

    fn shown(&self, system: &System, now: UnixTime) -> StamperSnapshot {
        let section = self.file.stamper.get_ref();
        let (rules, sections) = (self.numbered_rules(), self.file.rule_sections().collect::<Vec<_>>());
        let name =
            |action: RuleAction| action.route().map(|route| section.routes[usize::from(route)].get_ref().name.clone());
        let route = |(section, files): (&Spanned<RouteSection>, &[CapabilityFile])| {
            RouteView::new(section.get_ref(), files, now)
        };
        let interface = |rule: &Rule| {
            let interface = system.interfaces.get(&(rule.user, rule.mark));
            interface.map(|interface| interface.name.clone()).unwrap_or_default()
        };
        let rule = |(rule, section): (&Rule, &Spanned<RuleSection>)| RuleView {
            to: rule.to,
            user: rule.user,
            mark: rule.mark,
            cgroup: section.get_ref().cgroup.as_ref().map(|cgroup| cgroup.get_ref().clone()),
            is_missing: section.get_ref().cgroup.as_ref().is_some_and(|cgroup| !system.has_group(cgroup.get_ref())),
            route: name(rule.action),
            otherwise: Some(section.get_ref().otherwise()).filter(|_| rule.action != RuleAction::Pass),
            interface: interface(rule),
        };
        let mut routes: Vec<RouteView> = section.routes.iter().zip(self.capabilities.by_route()).map(route).collect();
        for number in self.without_interface() {
            routes[usize::from(number)].set_trouble(NO_INTERFACE);
        }
        StamperSnapshot {
            routes,
            rules: rules.iter().filter_map(|(number, of)| Some(rule((of, sections.get(*number)?.1)))).collect(),
            lookups: LookupCounters::default(),
            answers: Answers::new(),
            dropped: system.dropped,
            table: Rules::new(&self.rules()).unwrap_or_default(),
        }
    }
}

/// File number, last write (seconds and nanoseconds), length; `None` if there is no file.
type Written = Option<(u64, i64, i64, u64)>;

/// A running stamper.
pub struct StamperRole {
    plan: Plan,
    files: BTreeMap<PathBuf, Written>,
    /// The key epochs that the thread stamps with.
    stamped: (Vec<Option<CapabilityEpoch>>, Vec<Option<u32>>),
    system: System,
    /// The machine's addresses, by the last look.
    local: BTreeSet<IpAddr>,
    running: Running,
    secrets: Secrets,
    shown: Arc<RwLock<StamperSnapshot>>,
    look: tokio::time::Interval,
    looks: u32,
    /// Clients that pay for replies, and what packets to each are stamped with.
    clients: Vec<(IpAddr, Hop, Carriage)>,
    granted: Arc<Notify>,
    /// See [`Event::Confirm`].
    confirm: Arc<Notify>,
    /// What users have registered, by the number of their connection.
    registered: BTreeMap<u64, Registration>,
    /// How many packets had been stamped when each began.
    stamped_before: BTreeMap<u64, u64>,
    /// Users that wait for the secrets of their lines, and whom to tell what became of it.
    awaiting: BTreeMap<u64, (Registration, oneshot::Sender<Result<(), String>>)>,
    registering: mpsc::Receiver<Registered>,
    /// See [`Plan::without_interface`].
    without_interface: BTreeSet<u16>,
    _socket: Option<Socket>,
    log: Events,
}

/// What the role waits for.
pub enum Event {
    Look,
    /// A control group may have been made or removed.
    Groups,
    Granted,
    Registered(Registered),
    LookedUp(LookedUp),
    /// Somebody asks why, and wants to know whether the secrets still hold.
    Confirm,
}

/// Whether there is a rule for packets of a user to a prefix.
fn is_ruled(rules: &[Rule], to: &Prefix, user: u32) -> bool {
    rules.iter().any(|rule| (rule.to, rule.user, rule.mark) == (*to, Some(user), None))
}

/// The rules whose packets are dropped if they are not stamped.
fn required(rules: &[Rule]) -> Vec<Rule> {
    rules.iter().filter(|rule| rule.action.is_required()).copied().collect()
}

/// The routes of a class's packets.
fn routes_of(class: &SenderClass, rules: &[Rule]) -> impl Iterator<Item = u16> {
    let of_class = rules.iter().filter(|rule| (rule.user, rule.mark) == (class.user, class.mark));
    of_class.filter_map(|rule| rule.action.route())
}

/// What becomes of packets to `to` that a user or a client, and not the operator, brings capabilities for, while they cannot be stamped: what
/// the operator's rules have become of any of them.
fn otherwise(required: &[Rule], user: Option<u32>, to: &Prefix) -> Otherwise {
    let is_of = |rule: &Rule| {
        let is_of_user = rule.mark.is_none() && (rule.user.is_none() || rule.user == user);
        is_of_user && (rule.to.contains(to) || to.contains(&rule.to))
    };
    if required.iter().any(is_of) { Otherwise::Drop } else { Otherwise::Plain }
}

/// Who is asked for secrets, if the configuration says it.
fn resolvers(file: &HostFile) -> Vec<IpAddr> {
    file.host.get_ref().resolvers.iter().map(|resolver| resolver.0).collect()
}

impl Role for StamperRole {
    const NAME: &'static str = "stamper";
    const LIVE: &'static [&'static str] = &["stamper.routes", "stamper.rules"];
    type Config = HostFile;
    type View = StamperView;
    type Event = Event;

    fn parse(source: &Source) -> Outcome<HostFile> {
        HostFile::parse(source)
    }

    fn status(config: &HostFile) -> Option<&StatusSection> {
        config.status.as_ref()
    }

    async fn start(config: HostFile, daemon: &Daemon) -> Outcome<Self> {
        let resolvers = resolvers(&config);
        let mut secrets = Secrets::new(resolvers, daemon.events.clone());
        let plan = Plan::load(config, &daemon.source, &mut secrets)?;
        let host = plan.file.host.get_ref();
        let raw = |error: std::io::Error| {
            Failure::system("cannot open a raw socket", &error)
                .help("this needs root or CAP_NET_RAW and CAP_NET_ADMIN; the unit file grants them")
        };
        let open = |any: IpAddr| -> std::io::Result<Ip> {
            let out = Ip::open(any, RAW)?;
            out.set_mark(*host.mark.get_ref())?;
            Ok(out)
        };
        let v6 = match open(Ipv6Addr::UNSPECIFIED.into()) {
            // A system without IPv6 sends none.
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::AFNOSUPPORT.raw_os_error()) => None,
            opened => Some(opened.map_err(raw)?),
        };
        let out = (open(Ipv4Addr::UNSPECIFIED.into()).map_err(raw)?, v6);
        let receives = host.receives(plan.file.stamper.get_ref());
        let addresses = if receives { host.addresses() } else { Addresses::default() };
        let mut arriving = match receives {
            true => {
                let mut sockets = Vec::new();
                for address in addresses.all() {
                    let failed =
                        |error| Failure::system(format!("cannot receive stamped packets at {address}"), &error);
                    let in_udp = |error| {
                        let at = SocketAddr::new(address, UDP_PORT);
                        Failure::system(format!("cannot receive stamped packets at {at}"), &error)
                    };
                    sockets.push(Ip::open(address, PROTOCOL).map_err(failed)?);
                    sockets.push(Ip::open_datagrams(address, UDP_PORT).map_err(in_udp)?);
                }
                let of =
                    |networks: &[Spanned<Prefix>]| networks.iter().map(|named| *named.get_ref()).collect::<Vec<_>>();
                let from = [of(&host.receive_from), of(&host.reply_waypoints)].concat();
                let inside = [of(&host.sources), of(&host.refused_sources)].concat();
                Some((sockets, Arriving::new(addresses.all().collect(), from, inside)))
            }
            false => None,
        };
        let now = unix_now();
        let stamper = Stamper::new(plan.config(now), CpuKernel::best());
        let stamper = stamper.map_err(|error| daemon.source.failure(plan.locate(error)))?;
        let mut system = System::open(&plan.file, daemon.events.clone())?;
        let local = system.local().map_err(|error| Failure::system("cannot read this machine's addresses", &error))?;
        if let Some((_, arriving)) = &mut arriving {
            arriving.set_local(local.clone());
        }
        let granted = Arc::new(Notify::new());
        let replies = match receives {
            true => Some(Replies {
                addresses,
                paying: plan.paying.clone(),
                requests: ReplyRequests::default(),
                grants: match plan.takes_replies() {
                    true => Some(ReplyGrants::new(&seed()?, plan.reply_waypoints())),
                    false => None,
                },
                granted: Arc::clone(&granted),
            }),
            false => None,
        };
        let (registrations, registering) = mpsc::channel(QUEUE);
        let users = host.users.iter().filter_map(|user| user.get_ref().number()).collect();
        let socket = match &host.socket {
            Some(at) => Some(Socket::listen(daemon.source.resolve(at.get_ref()), users, registrations)?),
            None => None,
        };
        let running = worker::start((stamper, replies), out, arriving, daemon.clock)?;
        let mut role = Self {
            files: plan.files(),
            stamped: (Vec::new(), Vec::new()),
            shown: Arc::new(RwLock::new(plan.shown(&system, now))),
            plan,
            system,
            local,
            running,
            secrets,
            look: tokio::time::interval(LOOK),
            looks: 0,
            clients: Vec::new(),
            granted,
            confirm: Arc::default(),
            registered: BTreeMap::new(),
            stamped_before: BTreeMap::new(),
            awaiting: BTreeMap::new(),
            registering,
            without_interface: BTreeSet::new(),
            _socket: socket,
            log: daemon.events.clone(),
        };
        match role.apply(now).await {
            Ok(()) => Ok(role),
            Err(failures) => {
                role.stop().await;
                Err(failures)
            }
        }
    }

    fn view(&self) -> StamperView {
        let (worker, shown, confirm) =
            (self.running.handle.clone(), Arc::clone(&self.shown), Arc::clone(&self.confirm));
        StamperView { worker, shown, confirm }
    }

    async fn reload(&mut self, config: HostFile, source: &Source) -> Outcome {
        let configured = resolvers(&config);
        self.plan = Plan::load(config, source, &mut self.secrets)?;
        self.secrets.set_resolvers(configured);
        self.keep_secrets();
        self.files = self.plan.files();
        self.apply(unix_now()).await
    }

    async fn next(&mut self) -> Result<Event, Failure> {
        Ok(tokio::select! {
            _ = self.look.tick() => Event::Look,
            () = self.system.groups_changed() => Event::Groups,
            () = self.granted.notified() => Event::Granted,
            Some(registered) = self.registering.recv() => Event::Registered(registered),
            ended = self.secrets.next() => Event::LookedUp(ended),
            () = self.confirm.notified() => Event::Confirm,
        })
    }

    async fn handle(&mut self, event: Event) -> Outcome {
        let now = unix_now();
        let event = match event {
            Event::Registered(registered) => {
                self.register(registered, now).await;
                return Ok(());
            }
            Event::LookedUp(ended) => {
                self.looked_up(ended, now).await;
                return Ok(());
            }
            Event::Groups => {
                self.filter(now);
                return Ok(());
            }
            Event::Confirm => {
                self.secrets.confirm(None, now);
                self.secrets.ask(now);
                self.show_lookups();
                return Ok(());
            }
            event => event,
        };
        self.secrets.ask(now);
        if self.plan.takes_replies() {
            let is_new = matches!(event, Event::Granted);
            if self.clients_changed(is_new, now).await
                && let Err(failures) = self.apply(now).await
            {
                warn!("replies leave as they did before: {failures}");
            }
            if is_new {
                return Ok(());
            }
        }
        self.looks = self.looks.wrapping_add(1);
        if self.looks.is_multiple_of(CHECK) {
            self.system.check(&self.plan.file, &self.plan.rules());
            self.shown.write().unwrap_or_else(PoisonError::into_inner).dropped = self.system.dropped;
        }
        self.look_at_addresses();
        // Also where the system had no watch left.
        self.filter(now);
        let files = self.plan.files();
        if files != self.files {
            self.files = files;
            if self.plan_again() {
                self.log.report(capabilities_changed_line());
                self.stamped.0.clear();
                self.keep_secrets();
            }
        }
        if self.epochs(now) != self.stamped
            && let Err(failures) = self.apply(now).await
        {
            warn!("packet routes unchanged: {failures}");
        }
        Ok(())
    }

    async fn stop(self) {
        self.system.close();
        let running = self.running;
        let _ = tokio::task::spawn_blocking(move || running.stop()).await;
    }
}

impl StamperRole {
    /// Forgets the secrets of lines that neither the configuration nor a user names any more.
    fn keep_secrets(&mut self) {
        let awaiting = self.awaiting.values().map(|(registration, _)| registration);
        let named = self.registered.values().chain(awaiting).flat_map(|registration| &registration.capabilities);
        let named = named.filter_map(|capability| capability.line.clone());
        let used: Vec<Credential> = self.plan.lines.iter().cloned().chain(named).collect();
        self.secrets.keep(&used);
    }

    /// A look-up has ended. Files are read and packet routes set only if it has changed something: a zone that is silent has many fail alike.
    async fn looked_up(&mut self, ended: LookedUp, now: UnixTime) {
        let is_of_plan = self.plan.lines.contains(ended.credential());
        let is_new = self.secrets.done(ended, now);
        if is_new && is_of_plan {
            self.plan_again();
        }
        if is_new {
            self.look_up_registered();
        }
        self.settle_awaiting(now).await;
        if !is_new {
            self.show_lookups();
        } else if let Err(failures) = self.apply(now).await {
            warn!("packet routes unchanged: {failures}");
        }
    }

    /// Takes over which addresses the machine has: none of them is where a packet comes from that arrives with a header.
    fn look_at_addresses(&mut self) {
        // Fails where the system has no memory: what was known holds until the next look.
        let Ok(local) = self.system.local() else { return };
        if local != self.local {
            self.local.clone_from(&local);
            self.running.handle.send(move |worker| worker.set_local(local));
        }
    }

    /// Takes over which control groups are there.
    fn filter(&mut self, now: UnixTime) {
        if !self.system.groups_differ(&self.plan.file) {
            return;
        }
        match self.system.set_filter(&self.plan.file, &self.plan.rules()) {
            Ok(false) => {}
            Ok(true) => *self.shown.write().unwrap_or_else(PoisonError::into_inner) = self.shown(now),
            Err(failures) => warn!("control groups and packets to drop are as before: {failures}"),
        }
    }

    /// Takes over what is known of the secrets of the lines that users registered.
    fn look_up_registered(&mut self) {
        for registration in self.registered.values_mut() {
            // Fails where the system gives no randomness: the secrets that are there serve on.
            let _ = self.secrets.fill(registration);
        }
    }

    /// Registers the users whose secrets are there now, and refuses those whose look-up failed.
    async fn settle_awaiting(&mut self, now: UnixTime) {
        for (number, (mut registration, answer)) in std::mem::take(&mut self.awaiting) {
            match self.secrets.fill(&mut registration) {
                Ok(None) => self.begin(number, registration, answer, now).await,
                Ok(Some(None)) => _ = self.awaiting.insert(number, (registration, answer)),
                Ok(Some(Some(failure))) => {
                    let why = format!("no secret: {failure}; it was asked for at {}", utc(now.secs()));
                    self.refuse(&registration, answer, why);
                }
                Err(failure) => self.refuse(&registration, answer, failure.to_string()),
            }
        }
        self.keep_secrets();
    }

    fn refuse(&self, registration: &Registration, answer: oneshot::Sender<Result<(), String>>, why: String) {
        warn!(user = registration.user, "a registration is refused: {why}");
        // Fails if the user has gone.
        let _ = answer.send(Err(why));
    }

    async fn begin(
        &mut self,
        number: u64,
        registration: Registration,
        answer: oneshot::Sender<Result<(), String>>,
        now: UnixTime,
    ) {
        let user = registration.user;
        let outcome = self.try_register(number, registration, now).await;
        match &outcome {
            Ok(()) => {
                if let Some(before) = self.count_stamped().await {
                    self.stamped_before.insert(number, before);
                }
                self.log.report(registered_line(user));
            }
            Err(why) => warn!(user, "a registration is refused: {why}"),
        }
        // Fails if the user has gone; then the connection's end follows.
        let _ = answer.send(outcome);
    }

    /// Reads the files again; if one cannot be used, all stay as they were.
    fn plan_again(&mut self) -> bool {
        match Plan::load(self.plan.file.clone(), &self.plan.source, &mut self.secrets) {
            Ok(plan) => {
                self.plan = plan;
                true
            }
            Err(failures) => {
                warn!("the capabilities that were read before stay in force: {failures}");
                false
            }
        }
    }

    /// Asks the thread for the clients that pay for replies, if there are new ones or some whose capabilities have ended.
    async fn clients_changed(&mut self, is_new: bool, now: UnixTime) -> bool {
        let clients = self.running.handle.ask(move |worker| {
            let grants = worker.replies.as_mut()?.grants.as_mut()?;
            let have_ended = grants.expire(now);
            (is_new || have_ended)
                .then(|| grants.clients().map(|(client, hop, carriage)| (client, hop.clone(), carriage)).collect())
        });
        let Some(Some(clients)) = clients.await else { return false };
        self.clients = clients;
        true
    }

    /// The key epochs that are stamped with at `now`: those of the plan's files, and of what users registered.
    fn epochs(&self, now: UnixTime) -> (Vec<Option<CapabilityEpoch>>, Vec<Option<u32>>) {
        let registered = self.registered.values().flat_map(|registration| &registration.capabilities);
        let epoch = |held: &RegisteredCapability| Some(held.capabilities.hop(now)?.capability.epoch);
        (self.plan.capabilities.epochs(now), registered.map(epoch).collect())
    }

    /// Shows what the look-ups came to, where nothing else has changed.
    fn show_lookups(&self) {
        let mut shown = self.shown.write().unwrap_or_else(PoisonError::into_inner);
        (shown.lookups, shown.answers) = (self.secrets.counters, self.secrets.answers());
    }

    /// What is in force, for the pages.
    fn shown(&self, now: UnixTime) -> StamperSnapshot {
        let mut shown = self.plan.shown(&self.system, now);
        (shown.lookups, shown.answers) = (self.secrets.counters, self.secrets.answers());
        let required = required(&self.plan.rules());
        for registration in self.registered.values() {
            let name = format!("registered by user {}", registration.user);
            shown.routes.push(RouteView::registered(&name, registration, now));
            let interface = self.system.interfaces.get(&(Some(registration.user), None));
            let rule = |to: &Prefix| RuleView {
                to: *to,
                user: Some(registration.user),
                mark: None,
                cgroup: None,
                is_missing: false,
                route: Some(name.clone()),
                otherwise: Some(otherwise(&required, Some(registration.user), to)),
                interface: interface.map(|interface| interface.name.clone()).unwrap_or_default(),
            };
            shown.rules.extend(registration.to.iter().map(rule));
        }
        shown.table = Rules::new(&self.routes_and_rules(now).1).unwrap_or_default();
        shown
    }

    /// How many packets were stamped since the start.
    async fn count_stamped(&self) -> Option<u64> {
        self.running.handle.ask(|worker| worker.stamper.counters().stamped).await
    }

    /// A user registers, or its connection has ended.
    async fn register(&mut self, registered: Registered, now: UnixTime) {
        match registered {
            Registered::Ended(number, stamped) => {
                let Some(ended) = self.registered.remove(&number) else { return };
                if let Some(before) = self.stamped_before.remove(&number)
                    && let Some(now) = self.count_stamped().await
                {
                    let _ = stamped.send(now > before); // fails if the user has gone
                }
                self.keep_secrets();
                self.log.report(registration_ended_line(ended.user));
                if let Err(failures) = self.apply(now).await {
                    warn!("packet routes unchanged: {failures}");
                }
            }
            Registered::Begun(number, registration, answer) => {
                let (user, awaiting) = (registration.user, self.awaiting.values());
                let of_user = awaiting.filter(|(other, _)| other.user == user).count();
                if of_user >= MAX_OF_USER || self.awaiting.len() + self.registered.len() >= MAX_REGISTRATIONS {
                    return self.refuse(&registration, answer, "there are too many registrations".to_owned());
                }
                // A secret that is there may have been revoked since: who begins is told, and not left to a timeout.
                self.secrets.confirm(Some(&registration), now);
                self.awaiting.insert(number, (registration, answer));
                self.settle_awaiting(now).await;
                self.secrets.ask(now);
            }
        }
    }

    async fn try_register(&mut self, number: u64, registration: Registration, now: UnixTime) -> Result<(), String> {
        let user = registration.user;
        if self.registered.values().filter(|other| other.user == user).count() >= MAX_OF_USER {
            return Err(format!("user {user} has {MAX_OF_USER} registrations already"));
        }
        if registration.capabilities.iter().any(|held| held.capabilities.hop(now).is_none()) {
            return Err("no waypoint accepts these capabilities now: their key epochs have ended".to_owned());
        }
        let twice = || "there is a rule or a registration for these packets already".to_owned();
        let configured = self.plan.rules();
        if registration.to.iter().any(|to| is_ruled(&configured, to, user)) {
            return Err(twice());
        }
        self.registered.insert(number, registration);
        let (routes, rules) = self.routes_and_rules(now);
        if let Some(short) = self.short(user, &routes, &rules) {
            self.registered.remove(&number);
            return Err(format!(
                "a route leaves packets {short} octets, and IPv6 needs {IPV6_MTU}, for which the interface of user {user} is too: a path with \
                 a greater MTU, or fewer capabilities"
            ));
        }
        let config = Config { location: Location::Host, routes, rules, share: (0, 1) };
        let applied = match Stamper::new(config, CpuKernel::best()) {
            Ok(_) => self.apply(now).await.map_err(|failures| failures.to_string()),
            Err(ConfigError::Twice(_)) => Err(twice()),
            Err(ConfigError::Delegation(_)) => {
                Err("the capabilities are not delegated for all destinations".to_owned())
            }
            Err(ConfigError::NoRoute(_)) => {
                Err("destinations and waypoints are of two families: register each by itself".to_owned())
            }
            Err(error) => Err(error.to_string()),
        };
        if applied.is_err() {
            self.registered.remove(&number);
            // Whatever was changed on the way is taken back.
            let _ = self.apply(now).await;
        }
        applied
    }

    /// The octets that the shortest route of a user's packets leaves, if these are less than IPv6 needs and the user's interface has IPv6:
    /// of whichever registration or rule the route is.
    fn short(&self, user: u32, routes: &[Route], rules: &[Rule]) -> Option<usize> {
        let of_user = |class: &SenderClass| (class.user, class.mark) == (Some(user), None);
        let class = SenderClass::of(rules).into_iter().find(of_user).filter(|class| self.plan.takes_v6(class))?;
        let of_class = routes_of(&class, rules).filter_map(|route| routes.get(usize::from(route)).cloned());
        let headroom = Stamper::least_headroom(&of_class.collect::<Vec<_>>());
        headroom.filter(|headroom| *headroom < IPV6_MTU as usize)
    }

    /// Routes and rules of the plan, of users and of clients, in this order.
    fn routes_and_rules(&self, now: UnixTime) -> (Vec<Route>, Vec<Rule>) {
        let (mut routes, mut rules) = (self.plan.routes(now), self.plan.rules());
        let (required, configured) = (required(&rules), rules.clone());
        let rule = |user: Option<u32>, to: Prefix, route: u16| {
            let action = match otherwise(&required, user, &to) {
                Otherwise::Plain => RuleAction::Take(route),
                Otherwise::Drop => RuleAction::Require(route),
            };
            Rule { to, user, mark: None, action }
        };
        for registration in self.registered.values() {
            let Ok(route) = u16::try_from(routes.len()) else { break };
            routes.push(registration.route(now));
            // A rule that the configuration has got since comes first, as where a client's packets are meant.
            let own = registration.to.iter().filter(|to| !is_ruled(&configured, to, registration.user));
            rules.extend(own.map(|to| rule(Some(registration.user), *to, route)));
        }
        for (client, hop, carriage) in &self.clients {
            let length = if client.is_ipv4() { Afi::Ipv4 } else { Afi::Ipv6 }.bits();
            let (Ok(to), Ok(route)) = (Prefix::new(*client, length), u16::try_from(routes.len())) else { continue };
            // A rule of the configuration comes first.
            if rules.iter().any(|rule| (rule.to, rule.user, rule.mark) == (to, None, None)) {
                continue;
            }
            let hops = vec![hop.clone()];
            // The client made it for the address that it asked, and not for others of this host.
            let asked = self.plan.file.host.get_ref().addresses().towards(*client);
            let only_from = asked.filter(|_| hop.capability.marks.is_reply());
            routes.push(Route { hops, sealed: false, carriage: *carriage, mtu: DEFAULT_MTU as usize, only_from });
            rules.push(rule(None, to, route));
        }
        (routes, rules)
    }

    /// The MTU of a class's interface: what the longest of its routes leaves.
    fn mtu(&self, class: &SenderClass, routes: &[Route], rules: &[Rule]) -> u32 {
        let of_class = routes_of(class, rules).filter_map(|route| routes.get(usize::from(route)).cloned());
        let headroom = Stamper::least_headroom(&of_class.collect::<Vec<_>>());
        let headroom = headroom.and_then(|headroom| u32::try_from(headroom).ok()).unwrap_or(DEFAULT_MTU);
        // Clients come and go; the interface stays.
        let takes_replies = self.plan.takes_replies() && (class.user, class.mark) == (None, None);
        let growth = REPLY_GROWTH[usize::from(self.plan.file.host.get_ref().addresses().v6.is_some())];
        let mtu = if takes_replies { headroom.min(DEFAULT_MTU - growth) } else { headroom };
        // Below this the system takes IPv6 from an interface. A longer packet for a short route of IPv4 cannot be stamped then.
        if self.plan.takes_v6(class) { mtu.max(IPV6_MTU) } else { mtu }
    }

    /// Stamps by the plan from now on, and leads packets to the stamper.
    async fn apply(&mut self, now: UnixTime) -> Outcome {
        let (routes, rules) = self.routes_and_rules(now);
        let mut classes = SenderClass::of(&rules);
        let is_anybody = |class: &SenderClass| (class.user, class.mark) == (None, None);
        if self.plan.file.host.get_ref().addresses() != Addresses::default() && !classes.iter().any(is_anybody) {
            // What arrives is handed to the system by an interface, also if nothing leaves by it.
            classes.push(SenderClass { user: None, mark: None, to: Vec::new() });
        }
        let mtu = |class: SenderClass| {
            let mtu = self.mtu(&class, &routes, &rules);
            (class, mtu)
        };
        let mut classes: Vec<(SenderClass, u32)> = classes.into_iter().map(mtu).collect();
        if !system::has_ipv6() {
            // Who asked for IPv6 is told that it is missing; a rule without `to` means what there is.
            for (SenderClass { user, mark, to }, _) in &mut classes {
                let of = |to: &Prefix| Rule { to: *to, user: *user, mark: *mark, action: RuleAction::Pass };
                to.retain(|to| to.afi() == Afi::Ipv4 || !self.plan.file.is_of_both_families(&of(to)));
            }
        }
        let (paying, configured) = (self.plan.paying.clone(), self.plan.file.stamper.get_ref().routes.len());
        self.running.handle.send(move |worker| {
            if let Some(replies) = &mut worker.replies {
                replies.paying = paying;
            }
            // Their waypoints are taken from what pays, too.
            worker.set_routes((routes, configured), &rules);
        });
        self.system.set_filter(&self.plan.file, &self.plan.rules())?;
        self.system.set(&classes, &self.running.handle).await?;
        self.plan.capabilities.warn(now);
        let without_interface = self.plan.without_interface();
        for number in without_interface.difference(&self.without_interface) {
            let route = &self.plan.file.stamper.get_ref().routes[usize::from(*number)].get_ref().name;
            warn!("route {route}: {NO_INTERFACE}");
        }
        self.without_interface = without_interface;
        self.stamped = self.epochs(now);
        *self.shown.write().unwrap_or_else(PoisonError::into_inner) = self.shown(now);
        Ok(())
    }
}

pub fn capabilities_changed_line() -> EventLine {
    event!(INFO "capabilities-changed" {} "files of capabilities have changed and are used from now on")
}

pub fn registered_line(user: u32) -> EventLine {
    event!(INFO "registered" { user } "a user has registered capabilities for its packets")
}

pub fn registration_ended_line(user: u32) -> EventLine {
    event!(INFO "registration-ended" { user } "a registration has ended")
}
