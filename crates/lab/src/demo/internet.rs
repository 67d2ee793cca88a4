//! An internet of routers, some behind attesting proxies: plan, layout and running processes.
//!
//! Every site has one router. At a site that attests, a proxy stands between the router and each of its neighbours and
//! appears to each as the other. A site without a proxy represents networks that do not know attestation.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use wayleave_bgp::LargeCommunity;
use wayleave_core::{Asn, Prefix};

use super::http;
use super::layout::Software;
use crate::bird::Bird;
use crate::frr::Frr;
use crate::netns::{Network, NetworkError, NetworkNamespace};
use crate::ports;
use crate::role_process::RoleProcess;
use crate::router_config::{Neighbour, RouterConfig};
use crate::routers::Routers;
use crate::speaker::{Identity, Speaker};
use crate::table::{Announcement, LearnedRoute, Router, RouterError};
use crate::tap::Tap;
use crate::transit::Transit;

/// Who owns the trust anchor's key and the folder of objects.
pub const ANCHOR: &str = "anchor";
/// Port at which a proxy listens for its own router, in a namespace of its own.
const INSIDE: u16 = 179;
/// Port at which it listens for the neighbour.
const OUTSIDE: u16 = 1790;
/// Port of a tap in front of it.
const TAPPED: u16 = 1791;
/// HostAllocator between the routers' addresses, those of proxies, and those of injectors.
const STRIDE: u8 = 20;

/// What an origin's signed record demands of its routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OriginPolicy {
    /// Its unattested routes are invalid.
    Strict,
    /// Its unattested routes are less preferred.
    Prefer,
    /// Its profile lists prefixes only.
    Unlisted,
}

/// A site as planned.
#[derive(Debug, Clone)]
pub struct PlannedSite {
    pub name: String,
    pub asn: Asn,
    pub software: Software,
    /// `None`: the site has no proxy.
    pub proxy: Option<ProxyPlan>,
}

/// A site's proxy as planned.
#[derive(Debug, Clone)]
pub struct ProxyPlan {
    /// Lines of `[policy]`.
    pub policy: String,
    /// Suites of its keys, the preferred first.
    pub suites: Vec<String>,
    /// What the AS's record demands.
    pub since: OriginPolicy,
    /// Prefixes that the AS may originate, with everything inside them.
    pub originates: Vec<Prefix>,
    /// Another site of the same AS whose key the proxy uses.
    pub key_of: Option<String>,
}

impl ProxyPlan {
    /// Default suite and policy, and a strict record for `originates`.
    #[must_use]
    pub fn strict(originates: &[Prefix]) -> Self {
        let (policy, suites) = (String::new(), vec!["kc-ed25519".to_owned()]);
        Self { policy, suites, since: OriginPolicy::Strict, originates: originates.to_vec(), key_of: None }
    }
}

/// A BGP session between two sites.
#[derive(Debug, Clone)]
pub struct Link {
    left: String,
    right: String,
    tapped: bool,
    /// The left router gives each of these an UPDATE of its own.
    one_by_one: Vec<Prefix>,
    extended_messages: bool,
}

/// Sites and links before anything runs.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    sites: Vec<PlannedSite>,
    links: Vec<Link>,
    injectors: Vec<(String, Asn, String)>,
    lowers: Vec<(String, LargeCommunity)>,
}

impl Plan {
    /// The router of `name` uses routes with this tag only where there is no other.
    #[must_use]
    pub fn lowering(mut self, name: &str, tag: LargeCommunity) -> Self {
        self.lowers.push((name.to_owned(), tag));
        self
    }

    /// Adds a site without a proxy.
    #[must_use]
    pub fn legacy(self, name: &str, asn: u32, software: Software) -> Self {
        self.site(name, asn, software, None)
    }

    /// Adds a site with a proxy.
    #[must_use]
    pub fn attesting(self, name: &str, asn: u32, software: Software, proxy_plan: ProxyPlan) -> Self {
        self.site(name, asn, software, Some(proxy_plan))
    }

    fn site(mut self, name: &str, asn: u32, software: Software, proxy: Option<ProxyPlan>) -> Self {
        self.sites.push(PlannedSite { name: name.to_owned(), asn: Asn(asn), software, proxy });
        self
    }

    /// Adds a session between two sites. Within one AS the session is internal and has no proxy.
    #[must_use]
    pub fn link(mut self, left: &str, right: &str) -> Self {
        let (left, right) = (left.to_owned(), right.to_owned());
        self.links.push(Link { left, right, tapped: false, one_by_one: Vec::new(), extended_messages: true });
        self
    }

    /// Records the traffic of the last link, which needs a proxy at one end and none at the other.
    #[must_use]
    pub fn tapped(mut self) -> Self {
        self.links.iter_mut().last().into_iter().for_each(|link| link.tapped = true);
        self
    }

    /// On the last link the left router sends each of `prefixes` in an UPDATE of its own.
    #[must_use]
    pub fn one_by_one(mut self, prefixes: &[Prefix]) -> Self {
        self.links.iter_mut().last().into_iter().for_each(|link| link.one_by_one = prefixes.to_vec());
        self
    }

    /// On the last link the routers offer no extended messages, where that is a choice.
    #[must_use]
    pub fn short_messages(mut self) -> Self {
        self.links.iter_mut().last().into_iter().for_each(|link| link.extended_messages = false);
        self
    }

    /// Adds a BGP speaker as a neighbour of a site, which announces arbitrary routes.
    #[must_use]
    pub fn injector(mut self, name: &str, asn: u32, at: &str) -> Self {
        self.injectors.push((name.to_owned(), Asn(asn), at.to_owned()));
        self
    }
}

/// One session pair of a proxy.
struct ProxyPair {
    name: String,
    inside: SocketAddr,
    outside: SocketAddr,
    /// The neighbour's address if the proxy connects; `None` if the neighbour does.
    connect: Option<SocketAddr>,
    neighbour: Asn,
}

/// A site with its processes.
pub struct RunningSite {
    pub plan: PlannedSite,
    pub address: Ipv4Addr,
    pub router: Box<dyn Router>,
    pub proxy: Option<RoleProcess>,
    proxy_namespace: NetworkNamespace,
    status: SocketAddr,
}

impl RunningSite {
    /// Reads a status page of its proxy.
    pub fn ask(&self, path: &str) -> Result<Value, String> {
        let answer = http::get_json(&self.proxy_namespace, self.status, path);
        answer.map_err(|error| format!("{} {path}: {error}", self.plan.name))
    }

    /// Routes that its router has learned and selected as best.
    pub fn best(&mut self) -> Result<Vec<LearnedRoute>, RouterError> {
        Ok(self.router.table()?.into_iter().filter(|route| route.best).collect())
    }
}

/// A BGP speaker next to a site that announces arbitrary routes.
pub struct Injector {
    pub identity: Identity,
    namespace: NetworkNamespace,
    pub speaker: Option<Speaker>,
}

impl Injector {
    /// Starts the speaker, if it does not run.
    pub fn start(&mut self) -> &Speaker {
        let (identity, namespace) = (self.identity.clone(), self.namespace.clone());
        self.speaker.get_or_insert_with(|| Speaker::start(identity, namespace))
    }
}

/// Sites, injectors and taps as they run.
pub struct Internet {
    /// In the order planned.
    pub sites: Vec<RunningSite>,
    /// In the order planned.
    pub injectors: Vec<Injector>,
    /// Recording taps, in the order of links.
    pub taps: Vec<Tap>,
    /// Keys, objects and configurations: of all together, or each site's in a folder of its own below.
    pub folder: PathBuf,
    is_apart: bool,
    binary: PathBuf,
    tapped: Vec<(NetworkNamespace, SocketAddr, SocketAddr)>,
}

/// Where an internet is laid out.
#[derive(Clone, Copy)]
pub enum Testbed<'a> {
    /// Real routers on the LAN of a network, with host numbers from this one on.
    Lan(&'a Network, &'a Routers, u8),
    /// The laboratory's own routers on loopback; files go to this folder.
    Loopback(&'a Path),
}

impl Testbed<'_> {
    fn first(self) -> u8 {
        match self {
            Self::Lan(_, _, first) => first,
            Self::Loopback(_) => 20,
        }
    }

    fn state(self) -> PathBuf {
        match self {
            Self::Lan(network, ..) => network.state().to_path_buf(),
            Self::Loopback(state) => state.to_path_buf(),
        }
    }

    fn attach(self, name: &str, addresses: &[String]) -> Result<NetworkNamespace, String> {
        match self {
            Self::Lan(network, ..) => network.attach(name, addresses).map_err(network_error),
            Self::Loopback(_) => Ok(NetworkNamespace::Own),
        }
    }

    /// An address for a status page.
    fn status(self) -> Result<SocketAddr, String> {
        match self {
            Self::Lan(..) => Ok(([127, 0, 0, 1], 8485).into()),
            Self::Loopback(_) => free_address(),
        }
    }
}

/// A free address on loopback.
fn free_address() -> Result<SocketAddr, String> {
    ports::free_address().map_err(|error| error.to_string())
}

/// Where a proxy listens on one link.
#[derive(Clone, Copy)]
struct ProxyEndpoints {
    inside: SocketAddr,
    outside: SocketAddr,
    tapped: SocketAddr,
}

/// Addresses and sessions of a site.
struct SiteLayout {
    namespace: NetworkNamespace,
    proxy_namespace: NetworkNamespace,
    address: Ipv4Addr,
    site: RouterConfig,
    pairs: Vec<ProxyPair>,
}

impl Internet {
    /// Lays `plan` out. Files go to `name` in the testbed's folder.
    pub fn new(plan: Plan, testbed: Testbed<'_>, binary: &Path, name: &str) -> Result<Self, String> {
        Self::laid_out(plan, testbed, binary, (testbed.state().join(name), false))
    }

    /// Lays `plan` out. Each site's proxy has a folder of its own in `folder`, and the trust anchor too.
    pub fn apart(plan: Plan, testbed: Testbed<'_>, binary: &Path, folder: &Path) -> Result<Self, String> {
        Self::laid_out(plan, testbed, binary, (folder.to_path_buf(), true))
    }

    fn laid_out(
        plan: Plan,
        testbed: Testbed<'_>,
        binary: &Path,
        (folder, is_apart): (PathBuf, bool),
    ) -> Result<Self, String> {
        let first = testbed.first();
        let mut layouts = lay_out_sites(&plan, testbed)?;
        let mut hosts = HostAllocator { testbed, next: first + STRIDE };
        let mut tapped = Vec::new();
        for link in &plan.links {
            lay_out_link(&plan, link, &mut layouts, &mut hosts, &mut tapped)?;
        }
        let mut injectors = Vec::new();
        for ((name, asn, at), host) in plan.injectors.iter().zip(first + 2 * STRIDE + STRIDE / 2..) {
            injectors.extend(lay_out_injector(&plan, (name, *asn, at), host, &mut layouts, &mut hosts)?);
        }
        let (sites, taps, binary) = (Vec::new(), Vec::new(), binary.to_path_buf());
        let mut internet = Self { sites, injectors, taps, folder, is_apart, binary, tapped };
        let own = plan.sites.iter().filter(|site| is_apart && site.proxy.is_some()).map(|site| site.name.as_str());
        for folder in std::iter::once(ANCHOR).chain(own).map(|owner| internet.folder_of(owner)) {
            std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        }
        for (site, layout) in plan.sites.iter().zip(layouts) {
            internet.add_site(site, layout, testbed)?;
        }
        internet.make_keys()?;
        Ok(internet)
    }

    fn add_site(&mut self, site: &PlannedSite, layout: SiteLayout, testbed: Testbed<'_>) -> Result<(), String> {
        let name = &site.name;
        let router: Box<dyn Router> = match (testbed, site.software) {
            (Testbed::Lan(network, routers, _), Software::Bird) => {
                Box::new(Bird::with_config(&routers.bird, layout.namespace, layout.site, network.state()))
            }
            (Testbed::Lan(network, routers, _), Software::Frr) => {
                Box::new(Frr::with_config(&routers.frr, layout.namespace, layout.site, network.state()))
            }
            (Testbed::Lan(..), Software::Gobgp | Software::OpenBgpd) => {
                return Err(format!("{name}: {} is for members of an exchange", site.software.name()));
            }
            (Testbed::Loopback(_), _) => Box::new(Transit::new(layout.site, layout.namespace)),
        };
        let status = testbed.status()?;
        let proxy = match &site.proxy {
            Some(proxy_plan) => {
                let config = match self.is_apart {
                    true => self.folder_of(name).join("wayleave.toml"),
                    false => self.folder.join(format!("{name}.toml")),
                };
                let text = self.proxy_configuration(site, proxy_plan, &layout.pairs, status);
                std::fs::write(&config, text).map_err(|error| format!("{}: {error}", config.display()))?;
                let (folder, log) = (self.folder_of(name), format!("{name}-proxy.log"));
                let log = folder.join(if self.is_apart { "log" } else { &log });
                let name = format!("{name}-proxy");
                Some(RoleProcess::new(name, &layout.proxy_namespace, &self.binary, "attest", config, log))
            }
            None => None,
        };
        let (plan, address, proxy_namespace) = (site.clone(), layout.address, layout.proxy_namespace);
        self.sites.push(RunningSite { plan, address, router, proxy, proxy_namespace, status });
        Ok(())
    }

    fn proxy_configuration(
        &self,
        site: &PlannedSite,
        proxy_plan: &ProxyPlan,
        pairs: &[ProxyPair],
        status: SocketAddr,
    ) -> String {
        let key = proxy_plan.key_of.as_ref().unwrap_or(&site.name);
        let mut text = format!(
            "[attest]
asn = {asn}
state = \"{state}\"

[keys]
signing = \"{key}\"
anchor = \"{anchor}\"
objects = \"{objects}\"

[policy]
{policy}
[status]
listen = \"{status}\"
",
            asn = site.asn.0,
            state = self.of(&site.name, "redb"),
            key = self.of(key, "key"),
            anchor = self.path("anchor.pub"),
            objects = self.path("objects"),
            policy = proxy_plan.policy,
        );
        for ProxyPair { name, inside, outside, connect, neighbour } in pairs {
            let outside = match connect {
                Some(to) => format!("connect = \"{to}\", bind = \"{}\"", outside.ip()),
                None => format!("listen = \"{outside}\""),
            };
            text += &format!(
                "\n[[pair]]\nname = \"{name}\"\ninside = {{ listen = \"{inside}\" }}\noutside = {{ {outside}, asn = {} }}\n",
                neighbour.0
            );
        }
        text
    }

    /// The site `name`.
    ///
    /// # Panics
    /// If there is none.
    pub fn site(&mut self, name: &str) -> &mut RunningSite {
        self.sites.iter_mut().find(|site| site.plan.name == name).expect("a name of the plan")
    }

    /// The injector `name`.
    ///
    /// # Panics
    /// If there is none.
    pub fn injector(&mut self, name: &str) -> &mut Injector {
        self.injectors.iter_mut().find(|injector| injector.identity.name == name).expect("a name of the plan")
    }

    /// `name` originates exactly `routes`.
    pub fn announce(&mut self, name: &str, routes: &[Prefix]) -> Result<(), String> {
        let routes: Vec<Announcement> = routes.iter().map(|prefix| Announcement::of(*prefix)).collect();
        self.site(name).router.announce(&routes).map_err(|error| error.to_string())
    }

    /// Starts proxies, taps and routers.
    pub fn start(&mut self) -> Result<(), String> {
        for site in &mut self.sites {
            if let Some(proxy) = &mut site.proxy {
                proxy.start()?;
            }
        }
        for (namespace, listen, to) in &self.tapped {
            self.taps.push(Tap::start(namespace, *listen, *to).map_err(|error| format!("tap at {listen}: {error}"))?);
        }
        for site in &mut self.sites {
            site.router.start().map_err(|error| error.to_string())?;
        }
        for injector in &mut self.injectors {
            injector.start();
        }
        Ok(())
    }

    /// The first site whose sessions are not all up, with its logs.
    pub fn first_missing(&mut self) -> Option<String> {
        self.sites.iter_mut().find_map(|site| match site.router.is_established() {
            Ok(true) => None,
            Ok(false) => Some(format!("{}: {}\n{}", site.plan.name, site.router.log_tail(), proxy_log(site))),
            Err(error) => Some(error.to_string()),
        })
    }

    /// Stops all proxies; false if one had to be killed.
    pub fn stop(&mut self, timeout: Duration) -> bool {
        let proxies = self.sites.iter_mut().filter_map(|site| site.proxy.as_mut());
        proxies.map(|proxy| proxy.stop(timeout)).filter(|in_order| !in_order).count() == 0
    }

    /// Log ends of proxies that have exited.
    pub fn exited(&mut self) -> Vec<String> {
        let proxies = self.sites.iter_mut().filter_map(|site| site.proxy.as_mut());
        proxies.filter_map(|proxy| (!proxy.is_running()).then(|| proxy.log_tail())).collect()
    }

    /// Runs a command of `wayleave` and returns its standard output.
    pub fn tool(&self, arguments: &[&str]) -> Result<String, String> {
        let output = std::process::Command::new(&self.binary).args(arguments).output();
        let output = output.map_err(|error| format!("{}: {error}", self.binary.display()))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Ok(text);
        }
        Err(format!("wayleave {}: {text}{}", arguments.join(" "), String::from_utf8_lossy(&output.stderr)))
    }

    /// A file of the trust anchor.
    fn path(&self, name: &str) -> String {
        self.folder_of(ANCHOR).join(name).display().to_string()
    }

    /// The folder with the files of a site, or of the trust anchor.
    fn folder_of(&self, owner: &str) -> PathBuf {
        if self.is_apart { self.folder.join(owner) } else { self.folder.clone() }
    }

    /// A file of a site.
    fn of(&self, site: &str, kind: &str) -> String {
        let name = if self.is_apart { "attest" } else { site };
        self.folder_of(site).join(format!("{name}.{kind}")).display().to_string()
    }

    /// Creates the trust anchor, and for each AS keys, profile and record.
    fn make_keys(&self) -> Result<(), String> {
        let (anchor, objects) = (self.path("anchor.key"), self.path("objects"));
        // Nobody here requires post-quantum suites, and a second signature of each object takes long.
        self.tool(&["keys", "anchor", &anchor, "--classical"])?;
        for site in &self.sites {
            let Some(proxy_plan) = &site.plan.proxy else { continue };
            if proxy_plan.key_of.is_some() {
                continue;
            }
            let (key, asn) = (self.of(&site.plan.name, "key"), site.plan.asn.0.to_string());
            let mut arguments = vec!["keys", "attest", &key, "--asn", &asn];
            proxy_plan.suites.iter().for_each(|suite| arguments.extend(["--suite", suite]));
            self.tool(&arguments)?;
            self.tool(&["keys", "profile", "--anchor", &anchor, "--objects", &objects, "--attest", &key])?;
            self.record(&site.plan.name, proxy_plan.since)?;
        }
        Ok(())
    }

    /// Signs a new record for the AS of site `name`.
    pub fn record(&self, name: &str, since: OriginPolicy) -> Result<(), String> {
        let site = self.sites.iter().find(|site| site.plan.name == name).ok_or("no such site")?;
        let prefixes = site.plan.proxy.iter().flat_map(|proxy_plan| &proxy_plan.originates);
        let prefixes: Vec<String> =
            prefixes.map(|p| format!("{p}-{}", if p.address().is_ipv4() { 32 } else { 128 })).collect();
        let (anchor, objects) = (self.path("anchor.key"), self.path("objects"));
        let asn = site.plan.asn.0.to_string();
        let mut arguments = vec!["keys", "record", "--anchor", &anchor, "--objects", &objects, "--asn", &asn];
        // A step of the demonstration takes back what an earlier one said.
        arguments.push("--replace");
        prefixes.iter().for_each(|prefix| arguments.extend(["--prefix", prefix]));
        match since {
            OriginPolicy::Strict => arguments.extend(["--attested", "strict"]),
            OriginPolicy::Prefer => arguments.extend(["--attested", "prefer"]),
            OriginPolicy::Unlisted => {}
        }
        self.tool(&arguments).map(drop)
    }
}

fn proxy_log(site: &RunningSite) -> String {
    site.proxy.as_ref().map(RoleProcess::log_tail).unwrap_or_default()
}

/// Hands out addresses to proxies.
struct HostAllocator<'a> {
    testbed: Testbed<'a>,
    next: u8,
}

fn lan(host: u8) -> Ipv4Addr {
    Ipv4Addr::new(192, 0, 2, host)
}

fn addresses(host: u8) -> [String; 2] {
    [format!("192.0.2.{host}/24"), format!("2001:db8::{host}/64")]
}

fn network_error(error: NetworkError) -> String {
    error.to_string()
}

fn lay_out_sites(plan: &Plan, testbed: Testbed<'_>) -> Result<Vec<SiteLayout>, String> {
    let lay = |(site, host): (&PlannedSite, u8)| {
        let namespace = testbed.attach(&site.name, &addresses(host))?;
        let proxy_namespace = match site.proxy {
            Some(_) => testbed.attach(&format!("{}-proxy", site.name), &[])?,
            None => NetworkNamespace::Own,
        };
        let (address, pairs) = (lan(host), Vec::new());
        let mut router = RouterConfig::new(&site.name, site.asn, address);
        router.lowers = plan.lowers.iter().find(|(name, _)| *name == site.name).map(|(_, tag)| *tag);
        Ok(SiteLayout { namespace, proxy_namespace, address, site: router, pairs })
    };
    plan.sites.iter().zip(testbed.first()..).map(lay).collect()
}

impl HostAllocator<'_> {
    /// A further LAN address for a proxy's namespace, or loopback ports.
    fn allocate(&mut self, namespace: &NetworkNamespace) -> Result<ProxyEndpoints, String> {
        let (Testbed::Lan(network, ..), NetworkNamespace::Named(name)) = (self.testbed, namespace) else {
            return Ok(ProxyEndpoints { inside: free_address()?, outside: free_address()?, tapped: free_address()? });
        };
        let host = self.next;
        self.next += 1;
        network.add_addresses(name, &addresses(host)).map_err(network_error)?;
        let at = |port| (lan(host), port).into();
        Ok(ProxyEndpoints { inside: at(INSIDE), outside: at(OUTSIDE), tapped: at(TAPPED) })
    }
}

fn index(plan: &Plan, name: &str) -> Result<usize, String> {
    plan.sites.iter().position(|site| site.name == name).ok_or_else(|| format!("the plan has no site {name}"))
}

fn neighbour(name: &str, local: Ipv4Addr, at: SocketAddr, asn: Asn, link: &Link) -> Neighbour {
    let address = match at.ip() {
        std::net::IpAddr::V4(address) => address,
        std::net::IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
    };
    Neighbour {
        name: name.to_owned(),
        local,
        address,
        port: at.port(),
        asn,
        passive: false,
        extended_messages: link.extended_messages,
        password: None,
        ttl_security: false,
        graceful_restart: false,
        meds: Vec::new(),
    }
}

fn lay_out_link(
    plan: &Plan,
    link: &Link,
    layouts: &mut [SiteLayout],
    hosts: &mut HostAllocator<'_>,
    tapped: &mut Vec<(NetworkNamespace, SocketAddr, SocketAddr)>,
) -> Result<(), String> {
    let ends = [index(plan, &link.left)?, index(plan, &link.right)?];
    let is_internal = plan.sites[ends[0]].asn == plan.sites[ends[1]].asn;
    // The endpoints of each side's proxy, if it has one on this link.
    let mut proxies = [None; 2];
    for (end, at) in proxies.iter_mut().zip(ends) {
        if plan.sites[at].proxy.is_some() && !is_internal {
            *end = Some(hosts.allocate(&layouts[at].proxy_namespace)?);
        }
    }
    for side in [0, 1] {
        let (me, other) = (ends[side], ends[1 - side]);
        let (name, asn) = (plan.sites[other].name.clone(), plan.sites[other].asn);
        let local = layouts[me].address;
        let at: SocketAddr = match (proxies[side], proxies[1 - side]) {
            (Some(own), far) => {
                // Between two proxies the right one connects; a router without a proxy connects by itself.
                let connect = far.filter(|_| side == 1).map(|far| far.outside);
                let ProxyEndpoints { inside, outside, .. } = own;
                layouts[me].pairs.push(ProxyPair { name: name.clone(), inside, outside, connect, neighbour: asn });
                inside
            }
            (None, Some(far)) if link.tapped => {
                tapped.push((layouts[other].proxy_namespace.clone(), far.tapped, far.outside));
                far.tapped
            }
            (None, Some(far)) => far.outside,
            (None, None) => (layouts[other].address, INSIDE).into(),
        };
        let mut neighbour = neighbour(&name, local, at, asn, link);
        if side == 0 {
            neighbour.meds = link.one_by_one.iter().copied().zip(1..).collect();
        }
        layouts[me].site.neighbours.push(neighbour);
    }
    Ok(())
}

/// An injector at a site without a proxy needs a router that listens. The laboratory's own router does not, so that such
/// an injector is left out on loopback.
fn lay_out_injector(
    plan: &Plan,
    (name, asn, at): (&str, Asn, &str),
    host: u8,
    layouts: &mut [SiteLayout],
    hosts: &mut HostAllocator<'_>,
) -> Result<Option<Injector>, String> {
    let site = index(plan, at)?;
    let is_proxied = plan.sites[site].proxy.is_some();
    if !is_proxied && matches!(hosts.testbed, Testbed::Loopback(_)) {
        return Ok(None);
    }
    let namespace = hosts.testbed.attach(name, &addresses(host))?;
    let local = layouts[site].address;
    let (peer, seen_at): (SocketAddr, SocketAddr) = if is_proxied {
        let ProxyEndpoints { inside, outside, .. } = hosts.allocate(&layouts[site].proxy_namespace)?;
        layouts[site].pairs.push(ProxyPair { name: name.to_owned(), inside, outside, connect: None, neighbour: asn });
        (outside, inside)
    } else {
        ((local, INSIDE).into(), (lan(host), INSIDE).into())
    };
    let link = Plan::default().link(at, name).links.remove(0);
    let mut neighbour = neighbour(&name.replace('-', ""), local, seen_at, asn, &link);
    // An injector connects and does not listen.
    neighbour.passive = !is_proxied;
    layouts[site].site.neighbours.push(neighbour);
    let identity = Identity {
        name: name.to_owned(),
        asn,
        address: lan(host),
        address6: Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, u16::from(host)),
        peer_asn: plan.sites[site].asn,
        peer,
    };
    Ok(Some(Injector { identity, namespace, speaker: None }))
}
