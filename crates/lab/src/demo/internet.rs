//! An internet of routers, some behind attesting proxies: who is where, what connects them, and the running whole.
//!
//! Every site has one router. A site that attests has a proxy between its router and each of its neighbours; to both it
//! passes for the other. A site without stands for all that know nothing of attestations.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use wayleave_bgp::LargeCommunity;
use wayleave_core::{Asn, Prefix};

use super::http;
use super::layout::Software;
use super::world::Role;
use crate::bird::Bird;
use crate::frr::Frr;
use crate::netns::{Network, NetworkError, Place};
use crate::ports;
use crate::routers::Routers;
use crate::site::{Neighbour, Site};
use crate::speaker::{Identity, Speaker};
use crate::table::{Announcement, LearnedRoute, Router, RouterError};
use crate::tap::Tap;
use crate::transit::Transit;

/// Where a proxy waits for its own router, in a namespace of its own.
const INSIDE: u16 = 179;
/// Where it waits for the neighbour.
const OUTSIDE: u16 = 1790;
/// Where a tap waits in front of it.
const TAPPED: u16 = 1791;
/// Hosts between the routers' addresses, those of proxies, and those of guests.
const STRIDE: u8 = 20;

/// What an origin's record says of routes without an attestation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Since {
    /// They are invalid.
    Strict,
    /// They are worse.
    Prefer,
    /// Nothing: there is a record of prefixes and no more.
    Unlisted,
}

/// A site as planned.
#[derive(Debug, Clone)]
pub struct PlannedSite {
    /// Name.
    pub name: String,
    /// AS number.
    pub asn: Asn,
    /// Its router.
    pub software: Software,
    /// Lines of its proxy's configuration from `[policy]` on; `None`: it has no proxy.
    pub proxy: Option<Proxied>,
}

/// What a site's proxy is told.
#[derive(Debug, Clone)]
pub struct Proxied {
    /// Lines of `[policy]`.
    pub policy: String,
    /// Suites of its keys, the preferred first.
    pub suites: Vec<String>,
    /// What its record says.
    pub since: Since,
    /// Prefixes that it may originate, and what lies within them.
    pub originates: Vec<Prefix>,
    /// Whether its proxy takes the key of another site of the same AS.
    pub key_of: Option<String>,
}

impl Proxied {
    /// With the default suite, everything by default, and a strict record for `originates`.
    #[must_use]
    pub fn strict(originates: &[Prefix]) -> Self {
        let (policy, suites) = (String::new(), vec!["kc-ed25519".to_owned()]);
        Self { policy, suites, since: Since::Strict, originates: originates.to_vec(), key_of: None }
    }
}

/// Who speaks with whom.
#[derive(Debug, Clone)]
pub struct Link {
    left: String,
    right: String,
    tapped: bool,
    /// The left router gives each of these an UPDATE of its own.
    one_by_one: Vec<Prefix>,
    extended_messages: bool,
}

/// Everything before anything runs.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    sites: Vec<PlannedSite>,
    links: Vec<Link>,
    guests: Vec<(String, Asn, String)>,
    lowers: Vec<(String, LargeCommunity)>,
}

impl Plan {
    /// The router of `name` uses routes with this tag only where there is no other.
    #[must_use]
    pub fn lowering(mut self, name: &str, tag: LargeCommunity) -> Self {
        self.lowers.push((name.to_owned(), tag));
        self
    }

    /// A site without a proxy.
    #[must_use]
    pub fn legacy(self, name: &str, asn: u32, software: Software) -> Self {
        self.site(name, asn, software, None)
    }

    /// A site with one.
    #[must_use]
    pub fn attesting(self, name: &str, asn: u32, software: Software, proxied: Proxied) -> Self {
        self.site(name, asn, software, Some(proxied))
    }

    fn site(mut self, name: &str, asn: u32, software: Software, proxy: Option<Proxied>) -> Self {
        self.sites.push(PlannedSite { name: name.to_owned(), asn: Asn(asn), software, proxy });
        self
    }

    /// A session between two sites; of one AS, an internal one that passes no proxy.
    #[must_use]
    pub fn link(mut self, left: &str, right: &str) -> Self {
        let (left, right) = (left.to_owned(), right.to_owned());
        self.links.push(Link { left, right, tapped: false, one_by_one: Vec::new(), extended_messages: true });
        self
    }

    /// What passes on the last link, which needs a proxy at one end and none at the other, is kept.
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

    /// A speaker of ours as a neighbour of a site: one that says whatever it is told to.
    #[must_use]
    pub fn guest(mut self, name: &str, asn: u32, at: &str) -> Self {
        self.guests.push((name.to_owned(), Asn(asn), at.to_owned()));
        self
    }
}

/// One end of a pair of a proxy.
struct PairEnd {
    name: String,
    inside: SocketAddr,
    outside: SocketAddr,
    /// Where to connect outside; otherwise the neighbour connects.
    connect: Option<SocketAddr>,
    neighbour: Asn,
}

/// A site that can run.
pub struct RunningSite {
    /// What was planned.
    pub plan: PlannedSite,
    /// Its router's address.
    pub address: Ipv4Addr,
    /// Its router.
    pub router: Box<dyn Router>,
    /// Its proxy's process.
    pub proxy: Option<Role>,
    proxy_place: Place,
    status: SocketAddr,
}

impl RunningSite {
    /// A status page of its proxy.
    pub fn ask(&self, path: &str) -> Result<Value, String> {
        let answer = http::get_json(&self.proxy_place, self.status, path);
        answer.map_err(|error| format!("{} {path}: {error}", self.plan.name))
    }

    /// What its router has learned and uses.
    pub fn best(&mut self) -> Result<Vec<LearnedRoute>, RouterError> {
        Ok(self.router.table()?.into_iter().filter(|route| route.best).collect())
    }
}

/// A speaker of ours next to a site.
pub struct Guest {
    /// Who it is.
    pub identity: Identity,
    place: Place,
    /// It, once it runs.
    pub speaker: Option<Speaker>,
}

impl Guest {
    /// Starts it.
    pub fn start(&mut self) -> &Speaker {
        let (identity, place) = (self.identity.clone(), self.place.clone());
        self.speaker.get_or_insert_with(|| Speaker::start(identity, place))
    }
}

/// The whole.
pub struct Internet {
    /// Sites in the order planned.
    pub sites: Vec<RunningSite>,
    /// Guests in the order planned.
    pub guests: Vec<Guest>,
    /// Wires that keep what passes, in the order of links.
    pub taps: Vec<Tap>,
    /// Keys, objects and configurations.
    pub folder: PathBuf,
    binary: PathBuf,
    tapped: Vec<(Place, SocketAddr, SocketAddr)>,
}

/// On what an internet stands.
#[derive(Clone, Copy)]
pub enum Ground<'a> {
    /// Real routers on the LAN of a network, from this host on.
    Lan(&'a Network, &'a Routers, u8),
    /// Routers of ours on loopback; files go to this folder.
    Loopback(&'a Path),
}

impl Ground<'_> {
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

    fn attach(self, name: &str, addresses: &[String]) -> Result<Place, String> {
        match self {
            Self::Lan(network, ..) => network.attach(name, addresses).map_err(laid_out),
            Self::Loopback(_) => Ok(Place::Here),
        }
    }

    /// Where a process serves its status page.
    fn status(self) -> Result<SocketAddr, String> {
        match self {
            Self::Lan(..) => Ok(([127, 0, 0, 1], 8485).into()),
            Self::Loopback(_) => free_address(),
        }
    }
}

/// A port that nothing uses.
fn free_address() -> Result<SocketAddr, String> {
    ports::free_address().map_err(|error| error.to_string())
}

/// Where a proxy waits on a link.
#[derive(Clone, Copy)]
struct Seat {
    inside: SocketAddr,
    outside: SocketAddr,
    tapped: SocketAddr,
}

/// What laying out needs to know of each site.
struct Laid {
    place: Place,
    proxy_place: Place,
    address: Ipv4Addr,
    site: Site,
    pairs: Vec<PairEnd>,
}

impl Internet {
    /// Lays `plan` out; files go to the folder `name` of the ground's.
    pub fn new(plan: Plan, ground: Ground<'_>, binary: &Path, name: &str) -> Result<Self, String> {
        let first = ground.first();
        let mut laid = lay_sites(&plan, ground)?;
        let mut hosts = Hosts { ground, next: first + STRIDE };
        let mut tapped = Vec::new();
        for link in &plan.links {
            lay_link(&plan, link, &mut laid, &mut hosts, &mut tapped)?;
        }
        let mut guests = Vec::new();
        for ((name, asn, at), host) in plan.guests.iter().zip(first + 2 * STRIDE + STRIDE / 2..) {
            guests.extend(lay_guest(&plan, (name, *asn, at), host, &mut laid, &mut hosts)?);
        }
        let folder = ground.state().join(name);
        std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let mut internet =
            Self { sites: Vec::new(), guests, taps: Vec::new(), folder, binary: binary.to_path_buf(), tapped };
        for (site, laid) in plan.sites.iter().zip(laid) {
            internet.add_site(site, laid, ground)?;
        }
        internet.make_keys()?;
        Ok(internet)
    }

    fn add_site(&mut self, site: &PlannedSite, laid: Laid, ground: Ground<'_>) -> Result<(), String> {
        let name = &site.name;
        let router: Box<dyn Router> = match (ground, site.software) {
            (Ground::Lan(network, routers, _), Software::Bird) => {
                Box::new(Bird::of_site(&routers.bird, laid.place, laid.site, network.state()))
            }
            (Ground::Lan(network, routers, _), Software::Frr) => {
                Box::new(Frr::of_site(&routers.frr, laid.place, laid.site, network.state()))
            }
            (Ground::Loopback(_), _) => Box::new(Transit::new(laid.site, laid.place)),
        };
        let status = ground.status()?;
        let proxy = match &site.proxy {
            Some(proxied) => {
                let config = self.folder.join(format!("{name}.toml"));
                let text = self.proxy_configuration(site, proxied, &laid.pairs, status);
                std::fs::write(&config, text).map_err(|error| format!("{}: {error}", config.display()))?;
                let log = self.folder.join(format!("{name}-proxy.log"));
                let name = format!("{name}-proxy");
                Some(Role::new(name, &laid.proxy_place, &self.binary, "attest", config, log))
            }
            None => None,
        };
        let (plan, address, proxy_place) = (site.clone(), laid.address, laid.proxy_place);
        self.sites.push(RunningSite { plan, address, router, proxy, proxy_place, status });
        Ok(())
    }

    fn proxy_configuration(
        &self,
        site: &PlannedSite,
        proxied: &Proxied,
        pairs: &[PairEnd],
        status: SocketAddr,
    ) -> String {
        let folder = self.folder.display();
        let key = proxied.key_of.as_ref().unwrap_or(&site.name);
        let mut text = format!(
            "[attest]
asn = {asn}
state = \"{folder}/{name}.redb\"

[keys]
signing = \"{folder}/{key}.key\"
anchor = \"{folder}/anchor.pub\"
objects = \"{folder}/objects\"

[policy]
{policy}
[status]
listen = \"{status}\"
",
            asn = site.asn.0,
            name = site.name,
            policy = proxied.policy,
        );
        for PairEnd { name, inside, outside, connect, neighbour } in pairs {
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

    /// The site of that name.
    ///
    /// # Panics
    /// If there is none.
    pub fn site(&mut self, name: &str) -> &mut RunningSite {
        self.sites.iter_mut().find(|site| site.plan.name == name).expect("a name of the plan")
    }

    /// The guest of that name.
    ///
    /// # Panics
    /// If there is none.
    pub fn guest(&mut self, name: &str) -> &mut Guest {
        self.guests.iter_mut().find(|guest| guest.identity.name == name).expect("a name of the plan")
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
        for (place, listen, to) in &self.tapped {
            self.taps.push(Tap::start(place, *listen, *to).map_err(|error| format!("tap at {listen}: {error}"))?);
        }
        for site in &mut self.sites {
            site.router.start().map_err(|error| error.to_string())?;
        }
        for guest in &mut self.guests {
            guest.start();
        }
        Ok(())
    }

    /// Whose sessions are not all up; `None` if all are.
    pub fn first_missing(&mut self) -> Option<String> {
        self.sites.iter_mut().find_map(|site| match site.router.is_established() {
            Ok(true) => None,
            Ok(false) => Some(format!("{}: {}\n{}", site.plan.name, site.router.log_tail(), proxy_log(site))),
            Err(error) => Some(error.to_string()),
        })
    }

    /// Ends all proxies in order; false if one had to be killed.
    pub fn stop(&mut self, patience: Duration) -> bool {
        let proxies = self.sites.iter_mut().filter_map(|site| site.proxy.as_mut());
        proxies.map(|proxy| proxy.stop(patience)).filter(|in_order| !in_order).count() == 0
    }

    /// Proxies that should run and do not, with what they said last.
    pub fn dead(&mut self) -> Vec<String> {
        let proxies = self.sites.iter_mut().filter_map(|site| site.proxy.as_mut());
        proxies.filter_map(|proxy| (!proxy.is_running()).then(|| proxy.log_tail())).collect()
    }

    /// Runs a command of the program; what it printed.
    pub fn tool(&self, arguments: &[&str]) -> Result<String, String> {
        let output = std::process::Command::new(&self.binary).args(arguments).output();
        let output = output.map_err(|error| format!("{}: {error}", self.binary.display()))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Ok(text);
        }
        Err(format!("wayleave {}: {text}{}", arguments.join(" "), String::from_utf8_lossy(&output.stderr)))
    }

    fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    /// A trust anchor, the keys of each AS, its profile and its record.
    fn make_keys(&self) -> Result<(), String> {
        let (anchor, objects) = (self.path("anchor.key"), self.path("objects"));
        self.tool(&["keys", "anchor", &anchor])?;
        for site in &self.sites {
            let Some(proxied) = &site.plan.proxy else { continue };
            if proxied.key_of.is_some() {
                continue;
            }
            let (key, asn) = (self.path(&format!("{}.key", site.plan.name)), site.plan.asn.0.to_string());
            let mut arguments = vec!["keys", "attest", &key, "--asn", &asn];
            proxied.suites.iter().for_each(|suite| arguments.extend(["--suite", suite]));
            self.tool(&arguments)?;
            self.tool(&["keys", "profile", "--anchor", &anchor, "--objects", &objects, "--attest", &key])?;
            self.record(&site.plan.name, proxied.since)?;
        }
        Ok(())
    }

    /// Writes the record of `name` anew.
    pub fn record(&self, name: &str, since: Since) -> Result<(), String> {
        let site = self.sites.iter().find(|site| site.plan.name == name).ok_or("no such site")?;
        let prefixes = site.plan.proxy.iter().flat_map(|proxied| &proxied.originates);
        let prefixes: Vec<String> =
            prefixes.map(|p| format!("{p}-{}", if p.address().is_ipv4() { 32 } else { 128 })).collect();
        let (anchor, objects) = (self.path("anchor.key"), self.path("objects"));
        let asn = site.plan.asn.0.to_string();
        let mut arguments = vec!["keys", "record", "--anchor", &anchor, "--objects", &objects, "--asn", &asn];
        prefixes.iter().for_each(|prefix| arguments.extend(["--prefix", prefix]));
        match since {
            Since::Strict => arguments.extend(["--attested", "strict"]),
            Since::Prefer => arguments.extend(["--attested", "prefer"]),
            Since::Unlisted => {}
        }
        self.tool(&arguments).map(drop)
    }
}

fn proxy_log(site: &RunningSite) -> String {
    site.proxy.as_ref().map(Role::log_tail).unwrap_or_default()
}

/// Addresses of proxies.
struct Hosts<'a> {
    ground: Ground<'a>,
    next: u8,
}

fn lan(host: u8) -> Ipv4Addr {
    Ipv4Addr::new(192, 0, 2, host)
}

fn addresses(host: u8) -> [String; 2] {
    [format!("192.0.2.{host}/24"), format!("2001:db8::{host}/64")]
}

fn laid_out(error: NetworkError) -> String {
    error.to_string()
}

fn lay_sites(plan: &Plan, ground: Ground<'_>) -> Result<Vec<Laid>, String> {
    let lay = |(site, host): (&PlannedSite, u8)| {
        let place = ground.attach(&site.name, &addresses(host))?;
        let proxy_place = match site.proxy {
            Some(_) => ground.attach(&format!("{}-proxy", site.name), &[])?,
            None => Place::Here,
        };
        let (address, pairs) = (lan(host), Vec::new());
        let mut router = Site::new(&site.name, site.asn, address);
        router.lowers = plan.lowers.iter().find(|(name, _)| *name == site.name).map(|(_, tag)| *tag);
        Ok(Laid { place, proxy_place, address, site: router, pairs })
    };
    plan.sites.iter().zip(ground.first()..).map(lay).collect()
}

impl Hosts<'_> {
    /// An address of the LAN more for a proxy's place, or ports of loopback.
    fn give(&mut self, place: &Place) -> Result<Seat, String> {
        let (Ground::Lan(network, ..), Place::Namespace(name)) = (self.ground, place) else {
            return Ok(Seat { inside: free_address()?, outside: free_address()?, tapped: free_address()? });
        };
        let host = self.next;
        self.next += 1;
        network.add_addresses(name, &addresses(host)).map_err(laid_out)?;
        let at = |port| (lan(host), port).into();
        Ok(Seat { inside: at(INSIDE), outside: at(OUTSIDE), tapped: at(TAPPED) })
    }
}

fn index(plan: &Plan, name: &str) -> Result<usize, String> {
    plan.sites.iter().position(|site| site.name == name).ok_or_else(|| format!("no site is named {name}"))
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
        meds: Vec::new(),
    }
}

fn lay_link(
    plan: &Plan,
    link: &Link,
    laid: &mut [Laid],
    hosts: &mut Hosts<'_>,
    tapped: &mut Vec<(Place, SocketAddr, SocketAddr)>,
) -> Result<(), String> {
    let ends = [index(plan, &link.left)?, index(plan, &link.right)?];
    let is_internal = plan.sites[ends[0]].asn == plan.sites[ends[1]].asn;
    // Where each end's proxy is, if it has one on this link.
    let mut proxies = [None; 2];
    for (end, at) in proxies.iter_mut().zip(ends) {
        if plan.sites[at].proxy.is_some() && !is_internal {
            *end = Some(hosts.give(&laid[at].proxy_place)?);
        }
    }
    for side in [0, 1] {
        let (me, other) = (ends[side], ends[1 - side]);
        let (name, asn) = (plan.sites[other].name.clone(), plan.sites[other].asn);
        let local = laid[me].address;
        let at: SocketAddr = match (proxies[side], proxies[1 - side]) {
            (Some(own), far) => {
                // Of two proxies the right one connects; a legacy router connects itself.
                let connect = far.filter(|_| side == 1).map(|far| far.outside);
                let Seat { inside, outside, .. } = own;
                laid[me].pairs.push(PairEnd { name: name.clone(), inside, outside, connect, neighbour: asn });
                inside
            }
            (None, Some(far)) if link.tapped => {
                tapped.push((laid[other].proxy_place.clone(), far.tapped, far.outside));
                far.tapped
            }
            (None, Some(far)) => far.outside,
            (None, None) => (laid[other].address, INSIDE).into(),
        };
        let mut neighbour = neighbour(&name, local, at, asn, link);
        if side == 0 {
            neighbour.meds = link.one_by_one.iter().copied().zip(1..).collect();
        }
        laid[me].site.neighbours.push(neighbour);
    }
    Ok(())
}

/// A guest at a site without a proxy needs a router that listens, which ours does not: it is left out on loopback.
fn lay_guest(
    plan: &Plan,
    (name, asn, at): (&str, Asn, &str),
    host: u8,
    laid: &mut [Laid],
    hosts: &mut Hosts<'_>,
) -> Result<Option<Guest>, String> {
    let site = index(plan, at)?;
    let is_proxied = plan.sites[site].proxy.is_some();
    if !is_proxied && matches!(hosts.ground, Ground::Loopback(_)) {
        return Ok(None);
    }
    let place = hosts.ground.attach(name, &addresses(host))?;
    let local = laid[site].address;
    let (peer, seen_at): (SocketAddr, SocketAddr) = if is_proxied {
        let Seat { inside, outside, .. } = hosts.give(&laid[site].proxy_place)?;
        laid[site].pairs.push(PairEnd { name: name.to_owned(), inside, outside, connect: None, neighbour: asn });
        (outside, inside)
    } else {
        ((local, INSIDE).into(), (lan(host), INSIDE).into())
    };
    let link = Plan::default().link(at, name).links.remove(0);
    let mut neighbour = neighbour(&name.replace('-', ""), local, seen_at, asn, &link);
    // A guest connects and does not listen.
    neighbour.passive = !is_proxied;
    laid[site].site.neighbours.push(neighbour);
    let identity = Identity {
        name: name.to_owned(),
        asn,
        address: lan(host),
        address6: Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, u16::from(host)),
        peer_asn: plan.sites[site].asn,
        peer,
    };
    Ok(Some(Guest { identity, place, speaker: None }))
}
